# SPDX-License-Identifier: Apache-2.0
"""Loading libckpt.so: its calls' signatures, and whether it is the one that this package was written for. See
`_lib`."""

from __future__ import annotations

import ctypes
import errno
import threading
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple

from . import _find, errors
from ._abi import *


def _signatures() -> Dict[str, Tuple[Any, ...]]:
    """The arguments of each call; all of them return an int."""
    c, err = c_void_p, c_void_p
    return {
        "ckpt_attach": (POINTER(ckpt_opts), POINTER(c_void_p), err),
        "ckpt_mesh": (c, c_uint32, POINTER(c_char_p), POINTER(c_uint32), POINTER(c_uint32), POINTER(c_uint32), err),
        "ckpt_alloc": (c, c_uint64, POINTER(c_void_p), err),
        "ckpt_tensor_add": (c, POINTER(ckpt_tensor), POINTER(c_uint32), err),
        "ckpt_tensor_move": (c, c_uint32, c_void_p, c_uint32, err),
        "ckpt_tensor_drop": (c, c_uint32),
        "ckpt_blob_add": (c, c_char_p, c_int, c_void_p, c_void_p, c_uint64, err),
        "ckpt_blob_resize": (c, c_char_p, c_uint64, err),
        "ckpt_average": (c, c_char_p, c_char_p, err),
        "ckpt_attr": (c, c_char_p, c_char_p, err),
        "ckpt_seal": (c, c_uint64, err),
        "ckpt_snapshot": (c, c_uint64, c_void_p),
        "ckpt_guard": (c, c_void_p),
        "ckpt_stop": (c,),
        "ckpt_last": (c, c_uint64),
        "ckpt_wait": (c, c_uint64, c_int, c_uint64, err),
        "ckpt_steps": (c, POINTER(ckpt_step), c_uint32),
        "ckpt_tensors": (c, POINTER(ckpt_want), TENSOR_FN, c_void_p, err),
        "ckpt_unmatched": (c, TENSOR_FN, c_void_p),
        "ckpt_restore": (c, POINTER(ckpt_want), POINTER(ckpt_got), err),
        "ckpt_blob_read": (c, c_char_p, c_uint32, c_void_p, c_uint64, POINTER(c_uint64)),
        "ckpt_fingerprint": (c, c_uint32, POINTER(c_uint64)),
        "ckpt_stats": (c, POINTER(ckpt_stats)),
        "ckpt_fresh": (c,),
        "ckpt_why": (c, err),
        "ckpt_detach": (c, c_uint64),
    }


def load(path: Optional[str] = None) -> ctypes.CDLL:
    """Load a libckpt.so and check that it is the one this package was written for.

    VersionMismatch: its version, or the size of a structure, is another; both versions and the file are named.
    LibraryMissing: there is none.
    """
    path = path or _find.library()
    try:
        lib = ctypes.CDLL(path)  # never PyDLL: it would hold the GIL
    except OSError as e:
        if path == _find.SONAME:
            raise _find.missing() from e
        raise errors.error("load", errno.ELIBACC, "%s cannot be loaded: %s" % (path, e)) from e
    try:
        lib.ckpt_version.restype = c_char_p
        lib.ckpt_version.argtypes = ()
        lib.ckpt_sizeof.restype = c_uint32
        lib.ckpt_sizeof.argtypes = (c_char_p,)
        _check_version(lib, path)
        for name, args in _signatures().items():
            getattr(lib, name).argtypes = args
            getattr(lib, name).restype = c_int
    except AttributeError as e:
        text = "%s is no libckpt.so of version %s, which this package is made for: %s" % (path, CKPT_VERSION, e)
        raise errors.error("load", errno.EPROTO, text) from e
    return lib


def _check_version(lib: ctypes.CDLL, path: str) -> None:
    version = lib.ckpt_version().decode("utf-8", "replace")
    do = "use the libckpt.so of this package's version"
    if version != CKPT_VERSION:
        text = "%s is version %s, and this Python package is made for %s: %s" % (path, version, CKPT_VERSION, do)
        raise errors.error("load", errno.EPROTO, text)
    for structure in STRUCTURES:
        theirs, ours = lib.ckpt_sizeof(structure.__name__.encode()), ctypes.sizeof(structure)
        if theirs != ours:
            text = "%s of version %s: struct %s has %d bytes there, and %d in this Python package of version %s: %s"
            text %= (path, version, structure.__name__, theirs, ours, CKPT_VERSION, do)
            raise errors.error("load", errno.EPROTO, text)


_library: Optional[ctypes.CDLL] = None
_library_lock = threading.Lock()


def library() -> ctypes.CDLL:
    """The library, loaded and checked once. See load()."""
    global _library
    with _library_lock:
        if _library is None:
            _library = load()
        return _library
