# SPDX-License-Identifier: Apache-2.0
"""The bytes of a blob: a Python value as one line of JSON, and what JSON cannot say behind it. `_extra` calls this.

    blob = JSON "\\n" tail

The JSON has no newline, so `ckptctl cat CKPT blob/extra.data | head -1 | jq` reads it. The tail holds the bytes of
tensors, arrays and byte strings of AT_MIN or more, one after the other in the order of the JSON, where {"$at":
[offset, length]} stands for them. Base64 inside the JSON cost ten times as much for the 5 kB of a random generator,
and fifty times for 16 MB.

A value that JSON has stands for itself. Any other is an object with one key that begins with "$"
(tests/python/test_codec.py shows each): $tuple, $set, $frozenset, $bytes (hexadecimal), $bytearray, $float (nan, inf,
-inf, or the 16 digits of a NaN), $int (hexadecimal, beyond 4,096 bits), $str (code points, of one that is no
Unicode), $complex, $dict (pairs: of keys that are no strings, or begin with "$"), $ordered, $counter, $defaultdict,
$deque, $range, $slice, $datetime, $date, $time, $timedelta, $path, $namespace, $enum, $namedtuple, $dataclass,
$tensor, $size, $torch (a dtype or a device), $generator, $ndarray, $numpy, $pickle.

Exact: decode(encode(x)) has the types and bits of x. Two things are lost: whether one object stood in two places, and
the device of a tensor (it comes back on the CPU). Only $pickle may run code, and only with allow_pickle=True. Classes
of $enum, $namedtuple and $dataclass are looked up among the imported modules and never imported; their __init__ is
not called. Whatever the bytes are, decode returns a value or raises CodecError.
"""

from __future__ import annotations

import base64
import binascii
import collections
import ctypes
import dataclasses
import datetime
import enum
import json
import math
import pathlib
import pickle
import struct
import sys
import types
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

from . import _told
from ._codec_types import (
    AT_MIN as AT_MIN,
    class_name as class_name,
    CodecError as CodecError,
    DEPTH_MAX as DEPTH_MAX,
    FACTORIES,
    find_class,
    INT_END,
    is_namedtuple,
    is_plain_dataclass,
    NAN,
    numpy_name,
    PATHS,
    PickleRefused as PickleRefused,
    TORCH_DTYPES as TORCH_DTYPES,
    TORCH_NAMES,
)


class Part(NamedTuple):
    """Bytes of the tail: `nbytes` at `address`, which `owner` keeps alive."""

    address: int
    nbytes: int
    owner: object


class Encoded(NamedTuple):
    """A blob in pieces: the line of JSON with its newline, then the parts."""

    head: bytes
    parts: List[Part]

    @property
    def nbytes(self) -> int:
        return len(self.head) + sum(p.nbytes for p in self.parts)

    def write(self, address: int) -> None:
        """Copy the blob to `address`, where there is room for nbytes."""
        ctypes.memmove(address, self.head, len(self.head))
        address += len(self.head)
        for p in self.parts:
            ctypes.memmove(address, p.address, p.nbytes)
            address += p.nbytes


# --- encoding ---
class _Encoder:
    def __init__(self, careful: bool, allow_pickle: bool) -> None:
        self.careful = careful  # strings may have surrogates, which UTF-8 cannot say
        self.allow_pickle = allow_pickle
        self.parts: List[Part] = []
        self.bytes_tail = 0
        self.depth = 0

    def value(self, x: Any) -> Any:
        kind = type(x)
        if kind is str:
            return {"$str": list(map(ord, x))} if self.careful and not _is_unicode(x) else x
        if x is None or kind is bool:
            return x
        if kind is int:
            return x if -INT_END < x < INT_END else {"$int": hex(x)}
        if kind is float:
            return x if math.isfinite(x) else {"$float": _float_name(x)}
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise CodecError("values are nested deeper than %d, or one contains itself" % DEPTH_MAX)
        encode = _ENCODE.get(kind)
        y = encode(self, x) if encode else self.other(x)
        self.depth -= 1
        return y

    def items(self, x: Sequence[Any]) -> List[Any]:
        kinds = set(map(type, x))
        if kinds <= {int} and x and -INT_END < min(x) and max(x) < INT_END:
            return x if type(x) is list else list(x)
        if kinds == {float} and all(map(math.isfinite, x)):
            return x if type(x) is list else list(x)
        out = []
        for i, v in enumerate(x):
            try:
                out.append(self.value(v))
            except CodecError as e:
                raise e.inside(i)
        return out

    def mapping(self, x: Dict[Any, Any]) -> Dict[str, Any]:
        out = {}
        for k, v in x.items():
            if type(k) is not str or k[:1] == "$" or (self.careful and not _is_unicode(k)):
                return {"$dict": self.pairs(x)}
        for k, v in x.items():
            try:
                out[k] = self.value(v)
            except CodecError as e:
                raise e.inside(k)
        return out

    def pairs(self, x: Dict[Any, Any]) -> List[Any]:
        out = []
        for k, v in x.items():
            try:
                out.append([self.value(k), self.value(v)])
            except CodecError as e:
                raise e.inside(k)
        return out

    def members(self, x: Any) -> List[Any]:
        """Sorted, so that equal sets are equal bytes; but not where members are in the tail, which has its order."""
        nparts = len(self.parts)
        out = [self.value(v) for v in x]
        return sorted(out, key=json.dumps) if len(self.parts) == nparts else out

    def data(self, at: int, nbytes: int, owner: object) -> Any:
        """The bytes at an address: base64, or where they are in the tail."""
        if nbytes < AT_MIN:
            return base64.b64encode(ctypes.string_at(at, nbytes)).decode("ascii") if nbytes else ""
        self.parts.append(Part(at, nbytes, owner))
        self.bytes_tail += nbytes
        return {"$at": [self.bytes_tail - nbytes, nbytes]}

    def raw(self, x: Union[bytes, bytearray]) -> Any:
        if len(x) < AT_MIN:
            return x.hex()
        whole = bytes(x)
        at = ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0
        return self.data(at, len(whole), whole)

    def tensor(self, x: Any, torch: Any) -> Dict[str, Any]:
        kind = type(x)
        dtype = TORCH_DTYPES.get(str(x.dtype)[6:])  # torch.float32
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            raise CodecError("a tensor of class %s: give it to attach as model or optimizer state" % class_name(kind))
        if x.layout is not torch.strided or x.device.type == "meta" or dtype is None or x.is_quantized:
            raise CodecError("a tensor of %s, %s on %s has no encoding" % (x.dtype, x.layout, x.device))
        y = x.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        say: Dict[str, Any] = {"dtype": dtype, "shape": list(x.shape)}
        if x.requires_grad:
            say["grad"] = True
        if kind is not torch.Tensor:
            say["parameter"] = True
        say["data"] = self.data(y.data_ptr(), y.numel() * y.element_size(), y)
        return {"$tensor": say}

    def ndarray(self, x: Any) -> Dict[str, Any]:
        y = x if x.flags.c_contiguous and x.dtype.isnative else x.copy(order="C").astype(x.dtype.newbyteorder("="))
        say: Dict[str, Any] = {"dtype": numpy_name(x.dtype), "shape": list(x.shape)}
        if not x.dtype.isnative:
            say["order"] = "swapped"
        say["data"] = self.data(y.ctypes.data, y.nbytes, y)
        return {"$ndarray": say}

    def scalar(self, x: Any) -> Dict[str, Any]:
        """A numpy scalar. A value that is not finite is its bytes: NaNs have many."""
        y = x.item()
        if isinstance(y, (float, complex)) and (y != y or abs(y) == math.inf):
            return {"$numpy": [x.dtype.name, {"$bytes": x.tobytes().hex()}]}
        return {"$numpy": [x.dtype.name, self.value(y)]}

    def pickle(self, x: Any) -> Dict[str, Any]:
        name = class_name(type(x))
        if not self.allow_pickle:
            raise PickleRefused("an object of %s has no encoding but pickle, which is not allowed" % name)
        try:
            whole = pickle.dumps(x, protocol=4)
        except Exception as e:
            why = "%s: %s" % (type(e).__name__, e)
            raise CodecError("an object of %s: it has no encoding, and pickle says %s" % (name, why))
        return {"$pickle": {"class": name, "data": {"$bytes": self.raw(whole)}}}

    def other(self, x: Any) -> Any:
        kind = type(x)
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and hasattr(torch, "Tensor"):
            if isinstance(x, torch.Tensor):
                return self.tensor(x, torch)
            if kind is torch.dtype or kind is torch.device:
                return {"$torch": str(x)}
            if kind is torch.Size:
                return {"$size": list(x)}
            if kind is torch.Generator:
                return {"$generator": {"device": str(x.device), "state": self.value(x.get_state())}}
        if numpy is not None and hasattr(numpy, "ndarray"):
            if kind is numpy.ndarray and numpy_name(x.dtype):
                return self.ndarray(x)
            if isinstance(x, numpy.generic) and kind is x.dtype.type and numpy_name(x.dtype):
                return self.scalar(x)
        if isinstance(x, enum.Enum):
            return {"$enum": [class_name(kind), x.name, x.value if type(x.value) is int else None]}
        if is_namedtuple(kind):
            return {"$namedtuple": {"class": class_name(kind), "fields": dict(zip(x._fields, self.items(tuple(x))))}}
        if is_plain_dataclass(kind):
            return self.dataclass(x)
        return self.pickle(x)

    def dataclass(self, x: Any) -> Dict[str, Any]:
        have = {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if hasattr(x, f.name)}
        have.update(getattr(x, "__dict__", {}))
        return {"$dataclass": {"class": class_name(type(x)), "fields": self.mapping(have)}}


def _is_unicode(x: str) -> bool:
    try:
        x.encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


def _float_name(x: float) -> str:
    if x != x:
        bits = struct.pack(">d", x).hex()
        return "nan" if bits == NAN else bits
    return "inf" if x > 0 else "-inf"


def _encode_datetime(e: _Encoder, x: Any) -> Any:
    zone = x.tzinfo
    plain = zone is None or type(zone) is datetime.timezone
    if plain and zone is not None:  # ISO 8601 has no names
        plain = zone.tzname(None) == datetime.timezone(zone.utcoffset(None)).tzname(None)
    if plain and x.fold == 0:
        return {"$" + type(x).__name__: x.isoformat()}
    return e.pickle(x)


def _encode_defaultdict(e: _Encoder, x: Any) -> Any:
    factory = x.default_factory
    name = factory.__name__ if isinstance(factory, type) else None
    if factory is not None and FACTORIES.get(name) is not factory:
        return e.pickle(x)
    return {"$defaultdict": [name, e.pairs(x)]}


_ENCODE: Dict[type, Callable[[_Encoder, Any], Any]] = {
    dict: _Encoder.mapping,
    list: _Encoder.items,
    tuple: lambda e, x: {"$tuple": e.items(x)},
    set: lambda e, x: {"$set": e.members(x)},
    frozenset: lambda e, x: {"$frozenset": e.members(x)},
    bytes: lambda e, x: {"$bytes": e.raw(x)},
    bytearray: lambda e, x: {"$bytearray": e.raw(x)},
    complex: lambda e, x: {"$complex": [e.value(x.real), e.value(x.imag)]},
    collections.OrderedDict: lambda e, x: {"$ordered": e.pairs(x)},
    collections.Counter: lambda e, x: {"$counter": e.pairs(x)},
    collections.defaultdict: _encode_defaultdict,
    collections.deque: lambda e, x: {"$deque": [x.maxlen, e.items(tuple(x))]},
    range: lambda e, x: {"$range": [x.start, x.stop, x.step]},
    slice: lambda e, x: {"$slice": e.items([x.start, x.stop, x.step])},
    datetime.datetime: _encode_datetime,
    datetime.time: _encode_datetime,
    datetime.date: lambda e, x: {"$date": x.isoformat()},
    datetime.timedelta: lambda e, x: {"$timedelta": [x.days, x.seconds, x.microseconds]},
    types.SimpleNamespace: lambda e, x: {"$namespace": e.mapping(vars(x))},
    **{c: lambda e, x: {"$path": [type(x).__name__, e.value(str(x))]} for c in PATHS.values()},
}


def encode_parts(x: Any, *, allow_pickle: bool = True) -> Encoded:
    """The blob of a value, in pieces. The parts point into the value's own memory where it is contiguous: write them
    at once.

    CodecError: something in it has no encoding; the text says where and what.
    """
    for careful in (False, True):
        e = _Encoder(careful, allow_pickle)
        try:
            line = json.dumps(e.value(x), ensure_ascii=False, allow_nan=False, check_circular=False)
            return Encoded(line.encode("utf-8") + b"\n", e.parts)
        except UnicodeEncodeError:
            if careful:
                raise
    raise AssertionError("not reached")


def encode(x: Any, *, allow_pickle: bool = True) -> bytes:
    """The blob of a value."""
    e = encode_parts(x, allow_pickle=allow_pickle)
    out = ctypes.create_string_buffer(e.nbytes)
    e.write(ctypes.addressof(out))
    return out.raw


# --- decoding ---
def _no(why: str) -> NoReturn:
    raise CodecError(why)


def _pairs_once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        _no("an object of the JSON has a key twice")
    return out


def _split(blob: Union[bytes, bytearray, memoryview]) -> Tuple[Any, memoryview]:
    """The JSON of a blob, and its tail."""
    whole = memoryview(blob).cast("B")
    raw = bytes(whole)
    end = raw.find(b"\n")
    if end < 0:
        _no("the blob has no line of JSON")
    try:
        line = raw[:end].decode("utf-8")
        said = json.loads(line, object_pairs_hook=_pairs_once, parse_constant=lambda c: _no("%s is not JSON" % c))
    except CodecError:
        raise
    except (ValueError, RecursionError) as e:
        raise CodecError("the first line of the blob is not JSON: %s" % e)
    return said, whole[end + 1 :]


def head(blob: Union[bytes, bytearray, memoryview]) -> Any:
    """The JSON of a blob as it stands, for programs that only show it: nothing is decoded and no code of the blob
    runs.
    """
    return _split(blob)[0]


class _Decoder:
    def __init__(self, tail: memoryview, allow_pickle: bool, warn: Callable[[str], None]) -> None:
        self.tail = tail
        self.allow_pickle = allow_pickle
        self.warn = warn
        self.used = 0
        self.depth = 0

    def value(self, y: Any) -> Any:
        if type(y) not in (list, dict):
            return y
        self.depth += 1
        if self.depth > 2 * DEPTH_MAX + 8:
            _no("values are nested too deep")
        out: Any
        if type(y) is list:
            out = self.items(y)
        elif any(k[:1] == "$" for k in y):
            out = self.tagged(y)
        else:
            out = self.mapping(y)
        self.depth -= 1
        return out

    def items(self, y: Any) -> List[Any]:
        if type(y) is not list:
            _no("there should be a list, not %.80r" % (y,))
        if not set(map(type, y)) & {list, dict}:
            return y
        out = []
        for i, v in enumerate(y):
            try:
                out.append(self.value(v))
            except CodecError as e:
                raise e.inside(i)
        return out

    def mapping(self, y: Any) -> Dict[str, Any]:
        if type(y) is not dict:
            _no("there should be an object, not %.80r" % (y,))
        for k, v in y.items():
            if type(v) in (list, dict):
                try:
                    y[k] = self.value(v)
                except CodecError as e:
                    raise e.inside(k)
        return y

    def tagged(self, y: Dict[str, Any]) -> Any:
        tag = next(iter(y))
        decode = _DECODE.get(tag)
        if len(y) != 1 or decode is None:
            _no("%.80r is no encoding that this version knows" % (sorted(y),))
        try:
            return decode(self, y[tag])
        except CodecError:
            raise
        except Exception as e:  # of any constructor of the standard library, torch or numpy
            raise CodecError("%s cannot be decoded: %s: %s" % (tag, type(e).__name__, e))

    def pairs(self, y: Any) -> List[Tuple[Any, Any]]:
        out = []
        for k, v in self.exactly(y, list):
            key = self.value(k)
            try:
                out.append((key, self.value(v)))
            except CodecError as e:
                raise e.inside(key)
        if len(dict(out)) != len(out):
            _no("a dictionary has a key twice")
        return out

    @staticmethod
    def exactly(y: Any, *kinds: type) -> Any:
        if type(y) not in kinds:
            _no("there should be %s, not %.80r" % (" or ".join(k.__name__ for k in kinds), y))
        return y

    def fields(self, y: Any, *need: str, also: Sequence[str] = ()) -> Any:
        if type(y) is not dict or not set(need) <= set(y) <= set(need) | set(also):
            _no("there should be an object of %s, not %.80r" % (", ".join(need), y))
        return y

    def data(self, y: Any) -> bytes:
        """What _Encoder.data said. The parts of the tail follow each other, so that none is used twice."""
        if type(y) is str:
            return base64.b64decode(y, validate=True)
        at = self.fields(y, "$at")["$at"]
        if type(at) is not list or list(map(type, at)) != [int, int] or at[0] != self.used or at[1] < AT_MIN:
            _no("the tail has no such part: %.80r" % (at,))
        if at[1] > len(self.tail) - self.used:
            _no("the blob ends too early: a part of the tail has %d bytes, and %d are left"
                % (at[1], len(self.tail) - self.used))  # fmt: skip
        self.used += at[1]
        return bytes(self.tail[at[0] : self.used])

    def raw(self, y: Any) -> bytes:
        return binascii.unhexlify(y) if type(y) is str else self.data(y)

    def shape(self, y: Any) -> Tuple[int, ...]:
        if type(y) is not list or not all(type(n) is int and 0 <= n < 1 << 60 for n in y) or len(y) > 64:
            _no("a shape is %.80r" % (y,))
        return tuple(y)

    def elements(self, y: Any, itemsize: int) -> Tuple[Tuple[int, ...], bytes]:
        shape = self.shape(y["shape"])
        whole = self.data(y["data"])
        if math.prod(shape) * itemsize != len(whole):
            _no("elements of shape %s and %d bytes each are %d bytes" % (list(shape), itemsize, len(whole)))
        return shape, whole


def _torch() -> Any:
    import torch

    return torch


def _numpy() -> Any:
    import numpy

    return numpy


def _decode_tensor(d: _Decoder, y: Any) -> Any:
    d.fields(y, "dtype", "shape", "data", also=("grad", "parameter"))
    torch = _torch()
    dtype = getattr(torch, TORCH_NAMES.get(d.exactly(y["dtype"], str), "?"), None)
    if dtype is None:
        _no("this torch has no dtype %.40r" % y["dtype"])
    shape, whole = d.elements(y, torch.empty((), dtype=dtype).element_size())
    out = torch.empty(shape, dtype=dtype)
    ctypes.memmove(out.data_ptr(), whole, len(whole))
    grad = d.exactly(y.get("grad", False), bool)
    if d.exactly(y.get("parameter", False), bool):
        return torch.nn.Parameter(out, requires_grad=grad)
    return out.requires_grad_() if grad else out


def _decode_ndarray(d: _Decoder, y: Any) -> Any:
    d.fields(y, "dtype", "shape", "data", also=("order",))
    numpy = _numpy()
    dtype = numpy.dtype(d.exactly(y["dtype"], str))
    if not numpy_name(dtype):
        _no("an array of %.40r" % y["dtype"])
    shape, whole = d.elements(y, dtype.itemsize)
    out = numpy.frombuffer(bytearray(whole), dtype=dtype).reshape(shape)
    return out.astype(dtype.newbyteorder("S")) if y.get("order") == "swapped" else out


def _decode_numpy(d: _Decoder, y: Any) -> Any:
    name, value = y
    dtype = _numpy().dtype(d.exactly(name, str))
    if not numpy_name(dtype):
        _no("a scalar of %.40r" % name)
    value = d.value(value)
    if type(value) is bytes:
        return _numpy().frombuffer(value, dtype=dtype, count=1)[0]
    return dtype.type(d.exactly(value, bool, int, float, complex))


def _decode_generator(d: _Decoder, y: Any) -> Any:
    d.fields(y, "device", "state")
    out = _torch().Generator(_torch().device(d.exactly(y["device"], str)))
    out.set_state(d.value(y["state"]))
    return out


def _decode_torch(d: _Decoder, y: Any) -> Any:
    torch = _torch()
    if d.exactly(y, str)[:6] == "torch.":
        dtype = getattr(torch, y[6:], None)
        return dtype if isinstance(dtype, torch.dtype) else _no("this torch has no %.40r" % y)
    return torch.device(y)


def _decode_int(d: _Decoder, y: Any) -> int:
    out = int(d.exactly(y, str), 16)
    return out if -INT_END < out < INT_END or hex(out) == y else _no("an integer is %.80r" % y)


def _decode_float(d: _Decoder, y: Any) -> float:
    if d.exactly(y, str) in ("nan", "inf", "-inf"):
        return float(y)
    out: float = struct.unpack(">d", bytes.fromhex(y))[0]
    return out if out != out else _no("%r is no NaN" % y)


def _decode_enum(d: _Decoder, y: Any) -> Any:
    name, member, value = y
    cls = find_class(d.exactly(name, str))
    if cls is not None and issubclass(cls, enum.Enum):
        if member in cls._member_map_:
            return cls._member_map_[member]
        if issubclass(cls, enum.Flag) and type(value) is int:
            return cls(value)
    d.warn("there is no enumeration %.200s with a member %.200s among the imported modules" % (name, member))
    return {"$enum": y}


def _decode_namedtuple(d: _Decoder, y: Any) -> Any:
    d.fields(y, "class", "fields")
    fields = d.mapping(y["fields"])
    cls = find_class(d.exactly(y["class"], str))
    if cls is not None and is_namedtuple(cls) and cls._fields == tuple(fields):  # type: ignore[attr-defined]
        return tuple.__new__(cls, fields.values())
    d.warn("there is no named tuple %.200s of %.200s among the imported modules" % (y["class"], ", ".join(fields)))
    return {"$namedtuple": y}


def _decode_dataclass(d: _Decoder, y: Any) -> Any:
    """Fields that the class has got since are set to their defaults; one that it has no longer is a warning."""
    d.fields(y, "class", "fields")
    have = d.mapping(y["fields"])
    cls = find_class(d.exactly(y["class"], str))
    if cls is not None and is_plain_dataclass(cls):
        out: Any = object.__new__(cls)
        for f in dataclasses.fields(cls):
            if f.name not in have and f.default is not dataclasses.MISSING:
                have[f.name] = f.default
            elif f.name not in have and f.default_factory is not dataclasses.MISSING:
                have[f.name] = f.default_factory()
        if hasattr(out, "__dict__") or set(have) <= {f.name for f in dataclasses.fields(cls)}:
            for name, value in have.items():
                object.__setattr__(out, name, value)
            return out
    d.warn("there is no dataclass %.200s of these fields among the imported modules" % y["class"])
    return {"$dataclass": y}


def _decode_pickle(d: _Decoder, y: Any) -> Any:
    d.fields(y, "class", "data")
    name = d.exactly(y["class"], str)
    whole = d.value(d.fields(y["data"], "$bytes"))
    if not d.allow_pickle:
        raise PickleRefused("an object of %.200s was saved with pickle, which may run any code: it is not read" % name)
    return pickle.loads(d.exactly(whole, bytes))


def _decode_defaultdict(d: _Decoder, y: Any) -> Any:
    name, pairs = y
    if name is not None and name not in FACTORIES:
        _no("a defaultdict of %.80r" % name)
    return collections.defaultdict(FACTORIES[name], d.pairs(pairs))


def _decode_deque(d: _Decoder, y: Any) -> Any:
    longest, items = y
    return collections.deque(d.items(items), longest)


def _decode_range(d: _Decoder, y: Any) -> range:
    a, b, c = map(_integer, y)
    return range(a, b, c)


def _decode_time(kind: Any) -> Callable[[_Decoder, Any], Any]:
    return lambda d, y: kind.fromisoformat(d.exactly(y, str))


def _decode_timedelta(d: _Decoder, y: Any) -> datetime.timedelta:
    days, seconds, micro = map(_integer, y)
    return datetime.timedelta(days, seconds, micro)


def _decode_complex(d: _Decoder, y: Any) -> complex:
    a, b = (d.exactly(d.value(v), float) for v in y)
    return complex(a, b)


def _integer(y: Any) -> int:
    return y if type(y) is int else _no("there should be an integer, not %.80r" % (y,))


def _decode_path(d: _Decoder, y: Any) -> pathlib.PurePath:
    kind, text = y
    return PATHS[kind](d.exactly(d.value(text), str))


_DECODE: Dict[str, Callable[[_Decoder, Any], Any]] = {
    "$str": lambda d, y: "".join(map(chr, y)),
    "$int": _decode_int,
    "$float": _decode_float,
    "$complex": _decode_complex,
    "$tuple": lambda d, y: tuple(d.items(y)),
    "$set": lambda d, y: set(d.items(y)),
    "$frozenset": lambda d, y: frozenset(d.items(y)),
    "$bytes": _Decoder.raw,
    "$bytearray": lambda d, y: bytearray(d.raw(y)),
    "$dict": lambda d, y: dict(d.pairs(y)),
    "$ordered": lambda d, y: collections.OrderedDict(d.pairs(y)),
    "$counter": lambda d, y: collections.Counter(dict(d.pairs(y))),
    "$defaultdict": _decode_defaultdict,
    "$deque": _decode_deque,
    "$range": _decode_range,
    "$slice": lambda d, y: slice(*d.items(y)),
    "$datetime": _decode_time(datetime.datetime),
    "$date": _decode_time(datetime.date),
    "$time": _decode_time(datetime.time),
    "$timedelta": _decode_timedelta,
    "$path": _decode_path,
    "$namespace": lambda d, y: types.SimpleNamespace(**d.mapping(y)),
    "$enum": _decode_enum,
    "$namedtuple": _decode_namedtuple,
    "$dataclass": _decode_dataclass,
    "$tensor": _decode_tensor,
    "$ndarray": _decode_ndarray,
    "$numpy": _decode_numpy,
    "$size": lambda d, y: _torch().Size(d.shape(y)),
    "$torch": _decode_torch,
    "$generator": _decode_generator,
    "$pickle": _decode_pickle,
}


def _warn(text: str) -> None:
    _told.tell("value: " + text, text + ": the value stays as it was written", own=True)


def decode(
    blob: Union[bytes, bytearray, memoryview],
    *,
    allow_pickle: bool = False,
    warn: Callable[[str], None] = _warn,
) -> Any:
    """The value of a blob. `warn` is called with a sentence where a class is not there any more.

    PickleRefused: the value has objects of pickle. CodecError (a ValueError): the bytes are no encoding of a value.
    """
    said, tail = _split(blob)
    d = _Decoder(tail, allow_pickle, warn)
    try:
        out = d.value(said)
    except RecursionError:
        raise CodecError("values are nested too deep")
    if d.used != len(tail):
        _no("the blob has %d bytes that nothing in it uses" % (len(tail) - d.used))
    return out
