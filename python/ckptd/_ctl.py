# SPDX-License-Identifier: Apache-2.0
"""Runs ckptctl and turns its answers into Python: one document of JSON, or an exception with its text.

Called by `_reader` and `_load`. ckptctl reads the store itself, so no daemon is needed.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _find
from .errors import CkptdError, error

# Exit codes of ckptctl (ckptctl -h), and the errno of ckpt.h that says the same.
_CODES = {
    2: errno.EINVAL,
    4: errno.EBADMSG,
    5: errno.EUCLEAN,
    7: errno.EMEDIUMTYPE,
    8: errno.EPROTONOSUPPORT,
    10: errno.ENOENT,
    11: errno.EBUSY,
    12: errno.EACCES,
    13: errno.ENOSPC,
    14: errno.ECONNREFUSED,
    15: errno.ETIMEDOUT,
}


SCHEMA = "ckptd.show/1"


def program() -> str:
    """The path of ckptctl. LibraryMissing: it was not found."""
    return _find.program("ckptctl")


def run(args: Sequence[str], good: Tuple[int, ...] = (0,)) -> "subprocess.CompletedProcess[bytes]":
    """ckptctl ARGS. CkptdError: it exited with another code than those of `good`; the text is its own."""
    done = subprocess.run([program(), *args], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode not in good:
        raise _failure(args[0], done)
    return done


def _failure(verb: str, done: "subprocess.CompletedProcess[bytes]") -> CkptdError:
    lines: List[str] = []
    for line in done.stderr.decode(errors="replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        if isinstance(said, dict) and said.get("message"):
            hint = said.get("next")
            lines.append(str(said["message"]) + (f" ({hint})" if hint else ""))
    if not lines:
        how = f"died of signal {-done.returncode}" if done.returncode < 0 else f"ended with code {done.returncode}"
        lines = [f"{program()} {verb} {how} and said nothing"]
    return error("restore", _CODES.get(done.returncode, errno.EIO), "\n".join(lines))


def arguments(path: Any, store: Any = None, step: Optional[int] = None) -> List[str]:
    """The arguments of ckptctl that name a checkpoint.

    path: a step's directory, a store, a job's directory in one (then the newest step), a name ("latest", "tag:best",
    "JOB@latest") or a step's number, with store. step: the step of the store that path is.
    """
    if step is not None:
        if store is not None:
            raise ValueError(
                "path, store and step were given: a path that is a store goes with step, a name of a step with store"
            )
        path, store = step, path
    if isinstance(path, int) and path < 0:
        raise error("restore", errno.EINVAL, f"step {path} must be 0 or more")
    name = str(path) if isinstance(path, int) else os.fsdecode(path)
    if store is None and os.path.isdir(name) and not os.path.exists(os.path.join(name, "MANIFEST")):
        if not os.path.basename(os.path.abspath(name)).startswith((".", "step-")):
            name, store = "latest", name
    return [_word(name)] if store is None else [_word(name), "-C", _word(os.fsdecode(store))]


def _word(name: str) -> str:
    """A path, and never an option of ckptctl."""
    return os.path.join(".", name) if name.startswith("-") else name


def show(name: Sequence[str]) -> Dict[str, Any]:
    """The document that `ckptctl show CKPT --json` prints (docs/JSON.md)."""
    text = run(["show", *name, "--json"]).stdout
    try:
        answer = _parse(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.get("schema") != SCHEMA:
        what = f"{program()} show {name[0]} --json printed {len(text)} bytes that are no answer of ckptctl"
        raise error("restore", errno.EPROTO, f"{what}: {text[:80]!r}")
    if answer.get("complete") is False:
        raise error("restore", errno.EIO, f"ckptctl show {name[0]} ended in the middle of its answer: call it again")
    return answer


def _parse(text: bytes) -> Any:
    """json.loads, which takes three times as long if the garbage collector runs meanwhile: 100,000 tensors are 3 M
    objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return json.loads(text.decode(errors="replace"))
    finally:
        if was_enabled:
            gc.enable()


def verify(path: str) -> None:
    """Read and check every byte of a step. Damaged: bytes differ from their sums; all errors are in the text.

    The result is not kept with the step (--no-mark), because who reads a step may not own its store. Foreign files are
    no fault.
    """
    run(["verify", "--data", "--no-mark", "--json", "--quiet", path], good=(0, 3))
