# SPDX-License-Identifier: Apache-2.0
"""What both directions of `_codec` know: limits, errors, names of types, and how classes are found."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any, Dict, Optional

AT_MIN = 512  # bytes: shorter ones stand in the JSON
DEPTH_MAX = 100  # of nested values: json and this module stay far from Python's own limit
INT_BITS_MAX = 4096  # Python refuses to print longer integers, see sys.set_int_max_str_digits
INT_END = 1 << INT_BITS_MAX
NAN = "7ff8000000000000"


class CodecError(ValueError):
    """A value that has no encoding, or bytes that are no encoding of a value. `path` says where, as ".groups[0].lr"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = ""

    def inside(self, key: object) -> "CodecError":
        """The same error one level further out."""
        self.path = ("." + key if isinstance(key, str) and key.isidentifier() else "[%.80r]" % (key,)) + self.path
        return self

    def __str__(self) -> str:
        return "at %s: %s" % (self.path, self.why) if self.path else self.why


class PickleRefused(CodecError):
    """The blob has an object that only pickle can restore, and the caller did not allow pickle."""


# The numbers of torch and safetensors: torch's name -> safetensors' name.
TORCH_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex32": "C32", "complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4",
}  # fmt: skip
TORCH_NAMES = {v: k for k, v in TORCH_DTYPES.items()}
_NUMPY_DTYPES = frozenset(
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
)
PATHS = {
    c.__name__: c for c in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath)
}
FACTORIES: Dict[Optional[str], Any] = {
    c.__name__: c for c in (int, float, str, bool, list, dict, set, tuple, bytes, complex)
}
FACTORIES[None] = None


def class_name(cls: type) -> str:
    """MODULE:QUALNAME."""
    return "%s:%s" % (cls.__module__, cls.__qualname__)


def find_class(name: object) -> Optional[type]:
    """The class of this MODULE:QUALNAME, if its module is imported. Nothing is imported."""
    module, _, qualname = name.partition(":") if isinstance(name, str) else ("", "", "")
    at: Any = sys.modules.get(module)
    for part in qualname.split("."):
        at = getattr(at, "__dict__", {}).get(part) if at is not None else None
    return at if isinstance(at, type) else None


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_plain_dataclass(cls: type) -> bool:
    """A dataclass whose instances are their attributes: not one that is also a dict, or says itself how it is
    pickled.
    """
    if not dataclasses.is_dataclass(cls) or cls.__new__ is not object.__new__:
        return False
    own = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
    frozen_slots = ("__getstate__", "__setstate__")  # which dataclass(slots=True, frozen=True) makes itself
    for name in own:
        have = getattr(cls, name, None)
        if have is None or have is getattr(object, name, None):
            continue
        if name in frozen_slots and getattr(have, "__module__", "") == "dataclasses":
            continue
        return False
    return True


_numpy_named: Dict[Any, Optional[str]] = {}  # numpy makes a dtype's name anew each time, in 5 us


def numpy_name(dtype: Any) -> Optional[str]:
    """The name of a dtype, if that says all of it: not of longdouble, for example, whose bytes differ between
    machines.
    """
    if dtype not in _numpy_named and len(_numpy_named) < 1000:
        _numpy_named[dtype] = dtype.name if dtype.names is None and dtype.name in _NUMPY_DTYPES else None
    return _numpy_named.get(dtype)
