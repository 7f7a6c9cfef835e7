# SPDX-License-Identifier: Apache-2.0
"""Where libckpt.so, ckptd and ckptctl are. Called by `_lib`, `__main__` and `_reader`.

Looked for in this order; the first directory that has the file counts:
1. CKPTD_LIBRARY, where it is set: the path of a libckpt.so. The programs are looked for beside it, and in ../bin of it.
2. ckptd/_programs, which a wheel brings.
3. build/ of the clone that this package lies in, where it is used from a clone.
4. What the system has: the dynamic loader's directories, and PATH.
"""

from __future__ import annotations

import errno
import os
from typing import List, Optional

from . import errors

SONAME = "libckpt.so.0"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _clone() -> Optional[str]:
    """The root of the clone that this file lies in as python/ckptd/_find.py; None: it lies elsewhere."""
    root = os.path.dirname(os.path.dirname(_HERE))
    is_clone = os.path.isfile(os.path.join(root, "ckpt", "ckpt.h"))
    return root if is_clone and os.path.basename(os.path.dirname(_HERE)) == "python" else None


def _directories() -> List[str]:
    """Where all three files may lie, in order."""
    clone = _clone()
    return [os.path.join(_HERE, "_programs")] + ([os.path.join(clone, "build")] if clone else [])


def _missing(name: str, looked: List[str]) -> errors.CkptdError:
    clone = _clone()
    do = "install ckptd's wheel, or set CKPTD_LIBRARY to the path of a libckpt.so"
    if clone:
        do = "run `make` in %s" % clone
    return errors.error("find", errno.ELIBACC, "%s is in none of %s: %s" % (name, ", ".join(looked), do))


def library() -> str:
    """The path of libckpt.so, or its soname, for the dynamic loader to find. LibraryMissing: CKPTD_LIBRARY is wrong."""
    given = os.environ.get("CKPTD_LIBRARY")
    if given:
        if not os.path.isfile(given):
            raise errors.error("find", errno.ELIBACC, "CKPTD_LIBRARY is %s, which is not a file" % given)
        return os.path.abspath(given)
    for directory in _directories():
        path = os.path.join(directory, "libckpt.so")
        if os.path.isfile(path):
            return path
    return SONAME


def missing() -> errors.CkptdError:
    """The exception for a library() that the dynamic loader does not find either."""
    return _missing("libckpt.so", _directories() + ["the dynamic loader's directories"])


def program(name: str) -> str:
    """The path of "ckptctl" or "ckptd", of the build of library() where it can be. LibraryMissing: there is none."""
    given = os.environ.get("CKPTD_LIBRARY")
    looked = _directories()
    if given:
        beside = os.path.dirname(os.path.abspath(given))
        looked = [beside, os.path.join(os.path.dirname(beside), "bin")] + looked
    for directory in looked:
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and _is_program(path):
            return path
    raise _missing(name, looked + ["PATH"])


def _is_program(path: str) -> bool:
    """Is it an ELF file? This package's own console script would only come back here."""
    try:
        with open(path, "rb") as f:
            return f.read(4) == b"\x7fELF"
    except OSError:
        return False
