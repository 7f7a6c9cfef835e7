# SPDX-License-Identifier: Apache-2.0
"""_codec: whatever the bytes of a blob are, decode returns a value or raises ValueError. No torch.

SEED and N are read from the environment: SEED=7 N=100000 python tests/python/test_codec_fuzz.py
"""

import json
import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from test_codec import VALUES, decode, encode  # noqa: E402
from ckptd._codec import _DECODE  # noqa: E402

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
N = int(os.environ.get("N", 3000))
WORDS = [b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"1" * 5000, b"[" * 300, b'"$at"', b"1099511627776", b"NaN"]
WORDS += [b"\\ud800"]
JUNK = [None, True, -1, 0, 1 << 70, 1e308, "", "x", "nan", "ff", "int", [], [1], [1, 2], [[1, 2]], [[[], 1]], {}]
JUNK += [{"$at": [0, 600]}]
JUNK += [["int", "x"], ["PosixPath", "\0"], ["float32", {"$bytes": "00"}], {"class": "test_codec:Inner", "fields": {}}]
JUNK += [{"class": "test_codec:Point", "fields": {"x": 1}}, ["test_codec:Bits", "?", 1 << 70]]
JUNK += [{"dtype": "float64", "shape": [1 << 59], "data": ""}, {"dtype": "F32", "shape": [0, 1 << 40], "data": "!"}]
JUNK += [["O", 1], "9999-99-99", "2024-01-01T25:00"]


class Fuzz(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        print("seed %d" % SEED, file=sys.stderr)

    def harmless(self, blob):
        try:
            decode(blob, warn=lambda text: None)
        except ValueError:
            pass
        except BaseException as e:
            self.fail("seed %d: %s: %s of %r" % (SEED, type(e).__name__, e, bytes(blob)[:2000]))

    def changed(self, blob):
        r, out = self.rng, bytearray(blob)
        for _ in range(r.choice((1, 1, 2, 8))):
            at = r.randrange(len(out) + 1)
            how = r.randrange(6)
            if how == 0 and out:
                out[at % len(out)] ^= 1 << r.randrange(8)
            elif how == 1 and out:
                out[at % len(out)] = r.choice(b'[]{}",:$0129-.eE\\ \n')
            elif how == 2:
                del out[at : at + r.choice((1, 2, 8, 100))]
            elif how == 3:
                out[at:at] = r.choice(WORDS)
            elif how == 4:
                other = r.randrange(len(out) + 1)
                out[at:at] = out[other : other + r.randrange(200)]
            else:
                del out[at:]
        return bytes(out)

    def test_changed_bytes(self):
        seeds = [encode(v) for v in VALUES.values()]
        for _ in range(N):
            self.harmless(self.changed(self.rng.choice(seeds)))

    def test_every_tag_with_every_kind_of_value(self):
        for tag in _DECODE:
            for junk in JUNK:
                for outer in (junk, [junk], [junk, junk], [junk, None, junk]):
                    self.harmless(json.dumps({tag: outer}).encode() + b"\n" + bytes(600))
                    self.harmless(json.dumps({"a": [{tag: outer}]}).encode() + b"\n")

    def test_tags_inside_tags(self):
        tags = list(_DECODE)
        for _ in range(N):
            value = self.rng.choice(JUNK)
            for _ in range(self.rng.randrange(1, 5)):
                inner = (value, [value], [value, value], {"a": value}, [[value, 1]])
                value = {self.rng.choice(tags): self.rng.choice(inner)}
            self.harmless(json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    unittest.main()
