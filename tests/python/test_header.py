# SPDX-License-Identifier: Apache-2.0
"""ckptd/_abi.py says what ckpt/ckpt.h says."""

import ctypes
import os
import re
import unittest

from rig import ROOT, _lib

from ckptd import _abi

TYPES = {
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int": ctypes.c_int,
    "double": ctypes.c_double,
    "void *": ctypes.c_void_p,
    "const char *": ctypes.c_char_p,
    "const int64_t *": ctypes.POINTER(ctypes.c_int64),
    "const uint64_t *": ctypes.POINTER(ctypes.c_uint64),
    "const struct ckpt_placement *": ctypes.POINTER(_abi.ckpt_placement),
    "const struct ckpt_local *": ctypes.POINTER(_abi.ckpt_local),
    "const struct ckpt_note *": ctypes.POINTER(_abi.ckpt_note),
    "const struct ckpt_stream *": ctypes.POINTER(_abi.ckpt_stream),
}
FUNCTIONS = {"agree": _abi.AGREE_FN, "log": _abi.LOG_FN}


def header():
    with open(os.path.join(ROOT, "ckpt", "ckpt.h"), encoding="utf-8") as f:
        return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S))


def enumerators(text):
    """Name and value of each."""
    out = {}
    for body in re.findall(r"\benum\b[^{};]*\{(.*?)\}", text, re.S):
        value = -1
        for item in filter(None, (x.strip() for x in body.split(","))):
            name, _, given = (x.strip() for x in item.partition("="))
            value = eval(given, {}, dict(out)) if given else value + 1
            out[name] = value
    return out


def defines(text):
    values = {"UINT64_MAX": 2**64 - 1, "UINT32_MAX": 2**32 - 1}
    found = re.findall(r"^#define (CKPT_[A-Z_]+) +(\S+)", text, re.M)
    return {name: values.get(value) or eval(value) for name, value in found}


def structures(text):
    """Name, and [(field, type)] of each."""
    out = {}
    for name, body in re.findall(r"\bstruct (ckpt_\w+) \{(.*?)\n?\}", text, re.S):
        out[name] = fields = []
        for line in filter(None, (" ".join(x.split()) for x in body.split(";"))):
            function = re.match(r"(?:int|void) \(\*(\w+)\)\(", line)
            if function:
                fields.append((function.group(1), FUNCTIONS[function.group(1)]))
                continue
            kind, names = re.match(r"((?:const )?(?:struct )?\w+ )(.*)", line).groups()
            for one in names.split(","):
                stars, field, length = re.match(r" *(\**)(\w+)(?:\[(\d+)\])?$", one).groups()
                full = (kind + stars).strip()
                base = ctypes.c_char if full == "char" else TYPES[full]
                fields.append((field, base * int(length) if length else base))
    return out


class Header(unittest.TestCase):
    def test_constants_are_those_of_the_header(self):
        theirs = {**defines(header()), **enumerators(header())}
        ours = {name: value for name, value in vars(_abi).items() if name.startswith("CKPT_")}
        self.assertGreater(len(theirs), 90)
        self.assertEqual(ours, theirs)

    def test_structures_have_the_fields_of_the_header_in_its_order_and_types(self):
        theirs = structures(header())
        ours = {s.__name__: s._fields_ for s in _abi.STRUCTURES}
        self.assertEqual(set(ours), set(theirs))
        for name, fields in theirs.items():
            self.assertEqual(ours[name], fields, name)

    def test_every_structure_has_the_size_that_the_library_has(self):
        lib = _lib.library()
        for structure in _abi.STRUCTURES:
            self.assertEqual(ctypes.sizeof(structure), lib.ckpt_sizeof(structure.__name__.encode()), structure)

    def test_every_function_has_a_method(self):
        functions = set(re.findall(r"^(?:int|const char \*|uint32_t) ?(ckpt_\w+)\(", header(), re.M))
        self.assertGreater(len(functions), 20)
        for name in functions - {"ckpt_version", "ckpt_sizeof"}:
            self.assertTrue(hasattr(_lib.Handle, name[len("ckpt_") :]), name)
            self.assertIsNotNone(getattr(_lib.library(), name).argtypes, name)

    def test_every_number_of_the_vocabulary_has_a_kind(self):
        with open(os.path.join(ROOT, "ckpt", "ckpt.h"), encoding="utf-8") as f:
            codes = re.findall(r"^ \*\t-(E[A-Z0-9]+) ", f.read(), re.M)
        self.assertGreater(len(codes), 15)
        import errno

        from ckptd import errors

        for code in codes:
            e = errors.error("restore", -getattr(errno, code), "a sentence")
            self.assertEqual((e.errno, str(e)), (getattr(errno, code), "a sentence"))
            if code != "EIO":
                self.assertIsNot(type(e), errors.CkptdError, code)
