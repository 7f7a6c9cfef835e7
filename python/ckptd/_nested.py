# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in containers: dictionaries, lists, tuples and dataclasses inside optim.state[parameter].

The tensors in a container are tensors of the checkpoint, as those beside it: `_state` names them by their path, and
`_watch` looks whether they are still there. What holds them is a value of the optimizer's blob (`_extra`): an outline,
which has a mark in the place of each tensor. A restore needs the tensors before it can read the blob. So `_optim` makes
them in containers of class Made, and `_extra` puts them into what the outline says.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping  # isinstance of those of typing is ten times slower
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence, Tuple

if TYPE_CHECKING:
    import torch

MARK = "ckptd: this is a tensor of the checkpoint"


class Made(Dict[Any, Any]):
    """A container that a restore made, because the checkpoint has tensors in it: what it was, the blob says."""


def children(value: Any) -> List[Tuple[Any, Any]]:
    """(key, value) of what a container holds; of anything else nothing."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        return list(vars(value).items())
    return []


def is_container(value: Any) -> bool:
    """Can tensors be in it?"""
    if isinstance(value, (Mapping, list, tuple)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def tensors_in(value: Any, path: str = "") -> "Iterator[Tuple[str, torch.Tensor]]":
    """The tensors in a value, with their paths: "0.u" is the key "u" of item 0."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    for key, child in children(value):
        yield from tensors_in(child, "%s.%s" % (path, key) if path else str(key))


def form(value: Any) -> Any:
    """Equal for two values that have tensors at the same places: 1 for a tensor, a list for a container, else 0."""
    import torch

    if isinstance(value, torch.Tensor):
        return 1
    return [(key, form(child)) for key, child in children(value)] if is_container(value) else 0


def outline(value: Any) -> Any:
    """A copy of a container with MARK in the place of each tensor; another value, or one without tensors, as it is."""
    if next(tensors_in(value), None) is None:
        return value
    return _with(value, lambda _, child: outline(child))


def rebuild(value: Any, found: "Mapping[str, torch.Tensor]", path: str = "") -> Any:
    """What outline() was given, with the tensors of these paths. KeyError: there is no tensor for a path."""
    if isinstance(value, str) and value == MARK:
        return found[path]
    if not is_container(value):
        return value
    return _with(value, lambda key, child: rebuild(child, found, "%s.%s" % (path, key) if path else str(key)))


def _with(value: Any, changed: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return MARK
    new = [(key, changed(key, child)) for key, child in children(value)]
    if isinstance(value, tuple):
        items = [child for _, child in new]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [child for _, child in new]
    out = copy.copy(value)
    (out if isinstance(out, MutableMapping) else vars(out)).update(new)
    return out


def put(inner: MutableMapping[Any, Any], path: Sequence[str], tensor: "torch.Tensor") -> bool:
    """Make inner[path[0]][path[1]]... this tensor, with containers on the way, if nothing is there. False: something
    that is not of class Made is on the way."""
    at: MutableMapping[Any, Any] = inner
    for key in path[:-1]:
        at = at.setdefault(key, Made())
        if not isinstance(at, Made):
            return False
    at.setdefault(path[-1], tensor)
    return True


class Inside(MutableMapping[Any, Any]):
    """The container at a path of optim.state[owner], as a mapping, whatever object is there at the time of a look."""

    def __init__(self, optim: Any, owner: Any, path: Tuple[Any, ...]) -> None:
        self.optim, self.owner, self.path = optim, owner, path

    def _at(self) -> Any:
        value = self.optim.state.get(self.owner)
        for key in self.path:
            value = _item(value, key)
        return value

    def __getitem__(self, key: Any) -> Any:
        return _item(self._at(), key)

    def __setitem__(self, key: Any, value: Any) -> None:
        at = self._at()
        (at if isinstance(at, (MutableMapping, list)) else vars(at))[key] = value

    def __delitem__(self, key: Any) -> None:
        raise TypeError("what is in a container of an optimizer's state keeps its place")

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in children(self._at())])

    def __len__(self) -> int:
        return len(children(self._at()))


def _item(value: Any, key: Any) -> Any:
    if isinstance(value, (list, tuple)):
        if isinstance(key, int) and key < len(value):
            return value[key]
        raise KeyError(key)
    if isinstance(value, Mapping):
        return value[key]
    return getattr(value, "__dict__", {})[key]
