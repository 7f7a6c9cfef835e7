# SPDX-License-Identifier: Apache-2.0
"""The names of a model's tensors: what torch calls FQNs, without the segments that wrappers add. `_state` calls this.

torch.compile, DistributedDataParallel, FSDP1 and activation checkpointing put a module inside another one. Their
segments are left out, so a checkpoint has the same names with and without them.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from ._abi import CKPT_NAME_MAX

_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_PARALLEL = frozenset(("DistributedDataParallel", "DataParallel"))


def modules_of(model: Any) -> List[Tuple[str, Any]]:
    """(prefix, module) of each module, in the order of state_dict(), also of one that has several names.

    model: a module; a sequence of modules (the parts of a pipeline stage), whose names must not collide; a mapping,
    whose keys become the first segment; None. A prefix is "" or ends with a dot.
    """
    found: List[Tuple[str, Any]] = []
    if model is None:
        return found
    if isinstance(model, Mapping):
        for key, part in model.items():
            _walk(part, str(key) + ".", found)
    elif isinstance(model, Sequence) and not hasattr(model, "named_parameters"):
        for part in model:
            _walk(part, "", found)
    else:
        _walk(model, "", found)
    return found


def _walk(module: Any, prefix: str, found: List[Tuple[str, Any]]) -> None:
    if not hasattr(module, "_parameters") or not hasattr(module, "_modules"):
        raise TypeError("%s is no torch.nn.Module" % type(module).__name__)
    found.append((prefix, module))
    for name, child in module._modules.items():
        if child is not None:
            _walk(child, prefix if _is_wrapper(module, name) else prefix + name + ".", found)


def _is_wrapper(module: Any, name: str) -> bool:
    return name in _WRAPPERS or (name == "module" and any(c.__name__ in _PARALLEL for c in type(module).__mro__))


def strip(name: str) -> str:
    """A name without wrapper segments. DistributedDataParallel's "module" cannot be known by name: it stays."""
    return ".".join(segment for segment in name.split(".") if segment not in _WRAPPERS)


def name_problem(name: str) -> Optional[str]:
    """Why ckpt.h refuses this name; None: it is fine."""
    if not name:
        return "its name is empty"
    if "\0" in name:
        return "its name has a zero byte"
    try:
        size = len(name.encode()) if not name.isascii() else len(name)
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    if size > CKPT_NAME_MAX:
        return "its name has %d bytes: at most %d are possible" % (size, CKPT_NAME_MAX)
    return None


class Items(MutableMapping[Any, Any]):
    """A list or a tuple as a mapping from its indices, so that a Home can name one of its items."""

    def __init__(self, items: Any) -> None:
        self.items_ = items

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.items_[key]
        except IndexError:
            raise KeyError(key) from None

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: Any) -> None:
        raise TypeError("an item of a list keeps its place")

    def __iter__(self) -> Iterator[Any]:
        return iter(range(len(self.items_)))

    def __len__(self) -> int:
        return len(self.items_)


class Attributes(MutableMapping[Any, Any]):
    """The named attributes of an object as a mapping, such as the tensors inside a wrapper subclass."""

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self.owner = owner
        self.names = tuple(names)

    def __getitem__(self, key: Any) -> Any:
        if key not in self.names:
            raise KeyError(key)
        try:
            return getattr(self.owner, key)
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: Any, value: Any) -> None:
        setattr(self.owner, key, value)

    def __delitem__(self, key: Any) -> None:
        delattr(self.owner, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
