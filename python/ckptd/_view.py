# SPDX-License-Identifier: Apache-2.0
"""`ckptd.view`: rules for `ckptctl export --view`, which give one file for load_state_dict(strict=True).

`python -m ckptd view CKPT` prints them. docs/LAYOUTS.md has the notation (ckpt/table/view.h).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, List, Optional, Sequence

from . import _reader

MODEL = "model"  # the component of parameters and buffers


def view(path: Any, *, store: Any = None) -> str:
    """The text of a view file for a step: the names of the model's own state_dict, tied tensors under each of their
    names.

    path, store: as of ckptd.open. With it,

        ckptctl export CKPT DIR --mesh rank=1 --view FILE

    writes DIR/rank-00000.safetensors, which `model.load_state_dict(safetensors.torch.load_file(...), strict=True)`
    takes. Optimizer state, averages and blobs are dropped. NothingToRestore, Damaged, ...: as ckptd.open. NotFitting:
    the step has no tensor of component "model".
    """
    with _reader.open(path, store=store) as checkpoint:
        return view_of(checkpoint)


def view_of(checkpoint: Any) -> str:
    """The same of a Checkpoint that is open."""
    import errno

    from .errors import error

    blobs = {checkpoint.blob_key(name, rank).partition("/")[0] for name, rank in checkpoint.blobs}
    components = {key.partition("/")[0] for key in checkpoint} | blobs
    if not any(key.startswith(MODEL + "/") for key in checkpoint):
        text = f"step {checkpoint.step} ({checkpoint.path}) has no tensor of component {MODEL}: no model is in it"
        raise error("restore", errno.EMEDIUMTYPE, text)
    lines = [
        f"# The model of step {checkpoint.step} under the names of its own state_dict:",
        "# ckptctl export CKPT DIR --mesh rank=1 --view THIS",
    ]
    lines += [f"drop {_pattern(component)}/*" for component in sorted(components - {MODEL})]
    for alias, key in sorted(checkpoint.aliases.items()):
        if alias.startswith(MODEL + "/") and key in checkpoint and alias not in checkpoint:
            lines.append(f"copy {_pattern(key)} -> {_template(alias)}")
    lines.append(f"rename {MODEL}/* -> /{{1}}")
    return "\n".join(lines) + "\n"


def _pattern(name: str) -> str:
    """A name as a pattern that matches itself alone."""
    return re.sub(r"([\\*?#\s])", r"\\\1", name)


def _template(name: str) -> str:
    """A name as a NEW of a rule."""
    return re.sub(r"([\\#{}\s])", r"\\\1", name)


def view_main(argv: Optional[Sequence[str]] = None) -> int:
    """`python -m ckptd view CKPT [-C STORE]`: print the view, return the exit status."""
    from .errors import CkptdError

    parser = argparse.ArgumentParser(
        prog="python -m ckptd view",
        description="Print a view file for `ckptctl export CKPT DIR --mesh rank=1 --view FILE`: "
        "the restored file then has the names of the model's own state_dict, and nothing else.",
    )
    what = "latest (the default), step:12000, tag:best, or a path"
    where = "store or job directory (default: $CKPTD_STORE, else the current directory)"
    parser.add_argument("ckpt", nargs="?", default="latest", help=what)
    parser.add_argument("-C", "--store", help=where)
    given: List[str] = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(given)
    try:
        text = view(args.ckpt, store=args.store)
    except CkptdError as e:
        sys.stderr.write(f"{parser.prog}: {e}\n")
        return 1
    try:
        sys.stdout.buffer.write(text.encode("utf-8"))  # of names, whatever the locale is
        sys.stdout.flush()
    except OSError as e:
        if not isinstance(e, BrokenPipeError):  # who reads no further wants no more
            sys.stderr.write(f"{parser.prog}: the view could not be written: {e.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the end of Python tries again
        return 1
    return 0
