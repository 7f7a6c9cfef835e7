# SPDX-License-Identifier: Apache-2.0
"""What attach and step are given, checked and brought into one form. `run` calls it, before anything is changed.

What is wrong here is wrong in the program: it is always an exception (ValueError, TypeError, NotSupported).
"""

from __future__ import annotations

import errno
import operator
import os
import re
from itertools import chain
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _cuda, _lib, errors
from ._memory import meta_device

GUARDS = {"bounded": _lib.CKPT_BOUNDED, "never": _lib.CKPT_NEVER, "finish": _lib.CKPT_FINISH}
STATES = {"staged": _lib.CKPT_STAGED, "persisted": _lib.CKPT_PERSISTED, "committed": _lib.CKPT_COMMITTED}
SOURCES = {"any": 0, "memory": _lib.CKPT_FROM_MEMORY, "disk": _lib.CKPT_FROM_DISK}
ALLOWS = {
    "reshard": _lib.CKPT_ALLOW_RESHARD,
    "reduce": _lib.CKPT_ALLOW_REDUCE,
    "replicate": _lib.CKPT_ALLOW_REPLICATE,
    "drop": _lib.CKPT_ALLOW_DROP,
}
TORCH_MIN = (2, 4)
NAMED = 8  # names in a sentence; further ones are counted


def one_of(what: str, given: Any, known: Mapping[str, int]) -> int:
    """known[given]; ValueError names what it may be."""
    if not isinstance(given, str) or given not in known:
        raise ValueError("%s is %r: it must be one of %s" % (what, given, ", ".join(map(repr, known))))
    return known[given]


def explicit_flags(explicit: bool, allow: Iterable[str]) -> int:
    """restore's explicit= and allow=; TypeError, ValueError."""
    if isinstance(allow, str):
        raise TypeError("allow is %r: it must be a list, as in [%r]" % (allow, allow))
    flags = sum({one_of("allow", kind, ALLOWS) for kind in allow})
    if flags and not explicit:
        raise ValueError("allow is %r: without explicit=True everything is allowed" % (allow,))
    return flags | (_lib.CKPT_EXPLICIT if explicit else 0)


def number(what: str, given: Any, least: int) -> int:
    """An integer that is at least `least`; TypeError, ValueError."""
    if isinstance(given, bool):
        raise TypeError("%s is %r: it must be an integer" % (what, given))
    try:
        n = operator.index(given)
    except TypeError:
        raise TypeError("%s is %r: it must be an integer" % (what, given)) from None
    if n < least:
        raise ValueError("%s is %d: it must be at least %d" % (what, n, least))
    return n


def joined(keys: Optional[Union[str, Iterable[str]]]) -> Optional[str]:
    """Keys of notes, as ckpt_opts.keep_best has them: with commas between them."""
    return keys if keys is None or isinstance(keys, str) else ",".join(keys) or None


def ranks_of(ranks: Any, rank: int, world: int) -> Optional[List[int]]:
    """attach's ranks=, in order; TypeError, ValueError."""
    if ranks is None:
        return None
    found = sorted({number("ranks", r, 0) for r in ranks})
    if rank not in found or found[-1] >= world:
        text = "ranks is %s: it must have this rank, %d, and no rank that is not of the job, which has %d"
        raise ValueError(text % (found, rank, world))
    return found


def names(found: Iterable[str]) -> str:
    """Names for a sentence, of many only the first ones."""
    all_of = list(found)
    text = ", ".join(all_of[:NAMED])
    return text + (" and %d more" % (len(all_of) - NAMED) if len(all_of) > NAMED else "")


def store_of(store: Union[str, "os.PathLike[str]", None]) -> Optional[str]:
    """The directory of attach's store=, or of CKPTD_STORE, which exists now: `~` is a home directory, and missing
    parents are made. None: neither was given, which the library says. ValueError: no checkpoint can be saved there."""
    given = os.environ.get("CKPTD_STORE") if store is None else os.fspath(store)
    if not given:
        return None
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", given):
        text = "store is %r, a URL: ckptd saves into directories; give it one of a file system that is mounted here"
        raise ValueError(text % given)
    path = os.path.abspath(os.path.expanduser(given))
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))
    except OSError as e:
        why = "it is a file" if isinstance(e, FileExistsError) else e.strerror
        raise ValueError("store is %r: no checkpoint can be saved into %s: %s" % (given, path, why)) from e
    return path


def torch_check() -> None:
    """ImportError unless torch is here, in a version that this package knows."""
    try:
        import torch
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        text = "ckptd.attach needs PyTorch %d.%d or later, and this Python has none: pip install torch"
        raise ImportError(text % TORCH_MIN) from e
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if found and (int(found.group(1)), int(found.group(2))) < TORCH_MIN:
        text = "ckptd.attach needs PyTorch %d.%d or later, and this is %s: pip install --upgrade torch"
        raise ImportError(text % (*TORCH_MIN, torch.__version__))


def modules_of(model: Any) -> List[Any]:
    """The modules of attach's first argument: one, a sequence of them (parts of a pipeline), or None."""
    torch_check()
    import torch

    if model is None:
        return []
    if isinstance(model, torch.nn.Module):
        return [model]
    found = (
        list(model.values()) if isinstance(model, Mapping) else list(model) if isinstance(model, Iterable) else [model]
    )
    for m in found:
        if not isinstance(m, torch.nn.Module):
            raise TypeError("model has a %s: it must be a torch.nn.Module, or a sequence of them" % type(m).__name__)
    return found


def optimizers_of(optim: Any) -> List[Any]:
    """The optimizers of attach's second argument: one, a sequence or dict of them, or None."""
    import torch

    if optim is None:
        return []
    if isinstance(optim, torch.optim.Optimizer):
        return [optim]
    found = (
        list(optim.values()) if isinstance(optim, Mapping) else list(optim) if isinstance(optim, Iterable) else [optim]
    )
    for o in found:
        if not isinstance(o, torch.optim.Optimizer):
            raise TypeError("optim has a %s: it must be a torch.optim.Optimizer, or several of them" % type(o).__name__)
    return found


def state_of(optims: Iterable[Any]) -> Iterable[Tuple[str, Any]]:
    """The tensors of the optimizers' state that exist, each with a name for messages."""
    import torch

    for o in optims:
        for state in o.state.values():
            for key, value in state.items() if isinstance(state, Mapping) else ():
                if isinstance(value, torch.Tensor):
                    yield "%s of %s" % (key, type(o).__name__), value


def devices_of(modules: Sequence[Any], optims: Sequence[Any]) -> _cuda.Devices:
    """The first CUDA device of the state. NotSupported, with names, if a tensor is on a device that the library cannot
    read."""
    far: Dict[str, List[str]] = {}
    found: List[Optional[int]] = []
    tensors = [kind for m in modules for kind in (m.named_parameters(), m.named_buffers())]
    for name, t in chain(*tensors, state_of(optims)):
        why = _cuda.refused(t)
        if why is not None:
            far.setdefault(why, []).append(name)
        else:
            found.append(_cuda.index_of(t))
    if far:
        text = "; ".join("%s: %s" % (device, names(some)) for device, some in sorted(far.items()))
        raise errors.error(
            "attach",
            errno.EOPNOTSUPP,
            "this version saves state in host memory and on CUDA devices, and these tensors are elsewhere (%s): "
            "move the model to the CPU, or use FSDP2 with CPUOffloadPolicy" % text,
        )
    return _cuda.Devices(next((i for i in chain(found, map(meta_device, modules)) if i is not None), None))


def loss_of(loss: Any) -> Optional[float]:
    """The loss as a number: of a float, a tensor of one element, or a DTensor that every rank holds whole; else None.

    No collective is called: a DTensor that is sharded, or is a pending sum, has no value here. TypeError, ValueError.
    """
    if loss is None or isinstance(loss, (int, float)):
        return None if loss is None else float(loss)
    if hasattr(loss, "placements") and hasattr(loss, "to_local"):
        if not all(p.is_replicate() for p in loss.placements):
            return None
        loss = loss.to_local()
    if hasattr(loss, "detach"):
        loss = loss.detach()
    if hasattr(loss, "numel") and loss.numel() != 1:
        raise ValueError("loss has %d elements: it must be a number, or a tensor of one element" % loss.numel())
    if hasattr(loss, "item"):
        loss = loss.item()
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise TypeError("loss is a %s: it must be a number, or a tensor of one element" % type(loss).__name__) from None


def notes_of(loss: Any, notes: Optional[Mapping[str, Any]]) -> Dict[str, float]:
    """The notes of a snapshot: `loss` is the note "loss"."""
    out: Dict[str, float] = {}
    value = loss_of(loss)
    if value is not None:
        out["loss"] = value
    for key, given in (notes or {}).items():
        note = loss_of(given)
        if note is not None:
            out[str(key)] = note
    if len(out) > _lib.NOTES_MAX:
        raise ValueError("a step has at most %d notes, and %d were given" % (_lib.NOTES_MAX, len(out)))
    return out
