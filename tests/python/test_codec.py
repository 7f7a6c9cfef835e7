# SPDX-License-Identifier: Apache-2.0
"""_codec: what goes into a blob comes out of it, with its types and bits. No torch."""

import collections
import dataclasses
import datetime
import enum
import fractions
import json
import math
import pathlib
import struct
import sys
import types
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from ckptd import _codec  # noqa: E402
from ckptd._codec import CodecError, PickleRefused, decode, encode  # noqa: E402

Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Bits(enum.Flag):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Inner:
    a: int
    b: "list[float]"


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    name: str = "n"
    made: int = dataclasses.field(init=False, default=3)

    def __post_init__(self):
        raise AssertionError("must not run when it is decoded")


class Custom:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Custom and self.x == other.x


class Str(str):
    pass


def bits(x):
    return struct.pack(">d", x)


VALUES = {
    "null": None,
    "true": True,
    "int": -5,
    "beyond 64 bits": 2**200 + 1,
    "beyond Python's printing": -(7**20000),
    "zero": -0.0,
    "least": 5e-324,
    "third": 1 / 3,
    "infinite": [math.inf, -math.inf, 1.0],
    "text": 'a"\\\n\0é\U0001f600\u2028',
    "surrogates": ["\ud800\udc00", {"\udfff": "\ud800"}],
    "bytes": b"\0\xff",
    "long bytes": [bytes(range(256)) * 4, bytearray(b"z" * 5000), b"y" * _codec.AT_MIN, b"x" * (_codec.AT_MIN - 1)],
    "empty": [[], {}, (), set(), frozenset(), b"", bytearray(), ""],
    "tuple": (1, (2.0, [3]), None),
    "sets": [{1, 2, (3, "x")}, frozenset({None, "a"})],
    "set of long bytes": {bytes([i]) * 600 for i in range(9)},
    "complex": [1 - 2j, complex(-0.0, math.inf)],
    "keys": {1: "a", "1": "b", None: 0, (1, 2): [1], 1.5: {True: 2}, b"k": 1},
    "dollar": {"$tuple": [1], "x": {"$": {"$float": "nan"}}, "a$b": 1},
    "ordered": collections.OrderedDict([("b", 1), ("a", {"x": (1,)})]),
    "counter": collections.Counter("abca"),
    "defaultdict": [collections.defaultdict(list, {"a": [1]}), collections.defaultdict(None, {3: 4})],
    "deque": [collections.deque([1, (2,)], 5), collections.deque()],
    "range": [range(3), range(10, -5, -2), slice(1, None, 3)],
    "datetime": [
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=-5, minutes=30))),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "named")),
        datetime.datetime(2024, 2, 29, fold=1),
        datetime.date(1, 1, 1),
        datetime.time(23, 59),
        datetime.timedelta(-1, 3, 9),
    ],
    "path": [pathlib.Path("/a/ü"), pathlib.PureWindowsPath("c:\\x")],
    "namespace": types.SimpleNamespace(a=1, b=(2,)),
    "enum": [Colour.RED, Colour.GREEN, Bits.A, Bits.A | Bits.B, Bits(0), Level.LOW],
    "namedtuple": Point(1, Point([2], (3,))),
    "dataclass": {"k": [Inner(1, [0.5, -0.0])]},
    "subclass": [Str("x"), fractions.Fraction(1, 3), Custom([1, 2])],
    "list of ints": list(range(1000)),
    "list of floats": [0.1] * 50 + [-0.0],
}


class Codec(unittest.TestCase):
    def same(self, a, b, where=""):
        self.assertIs(type(a), type(b), where)
        if isinstance(a, float):
            self.assertEqual(bits(a), bits(b), where)
        elif isinstance(a, (list, tuple, collections.deque)):
            self.assertEqual(len(a), len(b), where)
            for i, (x, y) in enumerate(zip(a, b)):
                self.same(x, y, "%s[%d]" % (where, i))
        elif isinstance(a, dict):
            self.same(list(a), list(b), where + " keys")
            for k in a:
                self.same(a[k], b[k], "%s[%r]" % (where, k))
        else:
            self.assertEqual(a, b, where)

    def test_every_value_comes_back_with_its_types_and_bits(self):
        for name, value in VALUES.items():
            with self.subTest(name):
                self.same(decode(encode(value), allow_pickle=True), value, name)
        self.same(decode(encode(VALUES), allow_pickle=True), VALUES)

    def test_every_nan_keeps_its_bits(self):
        for raw in ("7ff8000000000000", "fff8000000000000", "7ff8000000000001", "7ff4000000000000"):
            x = struct.unpack(">d", bytes.fromhex(raw))[0]
            self.assertEqual(bits(decode(encode([x]))[0]).hex(), bits(x).hex())

    def test_only_what_json_cannot_say_needs_pickle(self):
        for name, value in VALUES.items():
            with self.subTest(name):
                if name in ("subclass", "datetime"):  # a named time zone
                    with self.assertRaises(PickleRefused):
                        decode(encode(value))
                    with self.assertRaises(PickleRefused):
                        encode(value, allow_pickle=False)
                else:
                    self.assertNotIn(b"$pickle", encode(value, allow_pickle=False))

    def test_the_refusal_of_pickle_names_the_class_and_the_place(self):
        with self.assertRaisesRegex(PickleRefused, r"at \.a\[1\]: .*:Custom"):
            decode(encode({"a": [1, Custom(1)]}))

    def test_the_head_is_one_line_of_json_even_with_a_tail(self):
        blob = encode(VALUES)
        line, tail = blob.split(b"\n", 1)
        self.assertEqual(json.loads(line), _codec.head(blob))
        self.assertIn(b"z" * 5000, tail)
        self.assertLess(len(line), 40000)

    def test_a_simple_state_is_plain_json(self):
        state = {"last_epoch": 3, "_last_lr": [0.1], "mode": "min", "best": None}
        self.assertEqual(encode(state), b'{"last_epoch": 3, "_last_lr": [0.1], "mode": "min", "best": null}\n')

    def test_no_code_of_a_dataclass_runs(self):
        out = object.__new__(Outer)
        for k, v in (("inner", Inner(1, [])), ("name", "x"), ("made", 4)):
            object.__setattr__(out, k, v)
        self.assertEqual(decode(encode(out)), out)

    def test_a_class_that_is_not_imported_stays_as_it_was_written(self):
        for value, tag in ((Inner(1, [2.0]), "$dataclass"), (Colour.RED, "$enum"), (Point(1, 2), "$namedtuple")):
            blob = encode([value]).replace(__name__.encode() + b":", b"this:" if tag == "$enum" else b"antigravity:")
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                out = decode(blob)
            self.assertEqual(list(out[0]), [tag])
            self.assertEqual(len(said), 1)
            self.assertNotIn("antigravity", sys.modules)
            self.assertNotIn("this", sys.modules)

    def test_no_class_but_the_kind_that_was_said_is_made(self):
        for text in ('{"$dataclass": {"class": "subprocess:Popen", "fields": {}}}', '{"$enum": ["os:path", "x", 1]}'):
            heard = []
            out = decode(text.encode() + b"\n", warn=heard.append)
            self.assertIsInstance(out, dict)
            self.assertEqual(len(heard), 1)

    def test_a_value_that_contains_itself_is_named(self):
        a = {"b": []}
        a["b"].append(a)
        with self.assertRaisesRegex(CodecError, "contains itself"):
            encode(a)

    def test_what_cannot_be_pickled_is_named_with_its_place(self):
        with self.assertRaisesRegex(CodecError, r"at \.f\['x y'\]: .*function"):
            encode({"f": {"x y": lambda: 0}})

    def test_damaged_blobs_are_refused(self):
        whole = encode({"a": b"z" * 1000})
        for blob, why in (
            (b"", "no line"),
            (b"{}", "no line"),
            (b"{\n", "not JSON"),
            (b"NaN\n", "not JSON"),
            (b'{"a": 1, "a": 2}\n', "twice"),
            (b'{"$what": 1}\n', "no encoding"),
            (b'{"$tuple": [], "b": 1}\n', "no encoding"),
            (b"[" * 50000 + b"\n", "JSON|deep"),
            (b"[" * 400 + b"]" * 400 + b"\n", "deep"),
            (b"1" * 10000 + b"\n", ""),
            (b'[{"$bytes": {"$at": [0, 600]}}, {"$bytes": {"$at": [0, 600]}}]\n' + bytes(1200), "no such part"),
            (b'[{"$bytes": {"$at": [600, 600]}}]\n' + bytes(1200), "no such part"),
            (whole[:-1], "too early"),
            (whole + b"x", "nothing in it uses"),
            (b'{"$ndarray": {"dtype": "float64", "shape": [1000000000000], "data": ""}}\n', ""),
        ):
            with self.subTest(blob[:40]):
                with self.assertRaisesRegex(CodecError, why):
                    if blob[:1] == b"1" and sys.version_info < (3, 11):
                        raise CodecError("Python before 3.11 reads such numbers")
                    decode(blob)


if __name__ == "__main__":
    unittest.main()
