# SPDX-License-Identifier: Apache-2.0
"""What the modules of this package tell each other about one tensor of the training state.

`_layout` says how a tensor is cut, `_state` makes the list of entries of a model and its optimizers, `_memory` moves
them, `_watch` looks whether they are still where they were, `run` declares them. The numbers are those of ckpt.h
(`_lib`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, MutableMapping, Optional, Protocol, Sequence, Tuple

if TYPE_CHECKING:
    import torch


class Devices(Protocol):
    """The devices of a run: `_cuda.Devices`."""

    def streams(self) -> Sequence[Tuple[int, int]]:
        """Number and current stream of each device; the first one is ckpt_opts.device - 1."""

    def capturing(self) -> bool:
        """Is a CUDA graph being captured?"""

    def settle(self) -> None:
        """Wait until the devices have done everything that they were given."""


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A mesh of ranks: names and sizes of its dimensions, and the global rank at each coordinate, row-major."""

    names: Tuple[str, ...]
    sizes: Tuple[int, ...]
    ranks: Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    """What one mesh dimension does to a tensor: struct ckpt_placement."""

    how: int
    mesh_dim: int
    tensor_dim: int = 0
    split_factor: int = 0
    reduce: int = 0
    flags: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """Elements that this rank holds. `local` is a plain strided tensor (a view, never a copy), of the extents of the
    box.

    start, extent: the box in the global tensor, in elements. Both are None where the layout says what the rank holds.
    """

    local: "torch.Tensor"
    start: Optional[Tuple[int, ...]] = None
    extent: Optional[Tuple[int, ...]] = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a tensor is cut. mesh None is CKPT_ALONE. parts is empty where this rank's share is empty."""

    shape: Tuple[int, ...]  # global
    mode: int  # enum ckpt_mode
    mesh: Optional[Mesh]
    placements: Tuple[Placement, ...]
    parts: Tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Home:
    """Where the training program keeps the tensor: `mapping[key]`, as module._parameters["weight"] or
    optimizer.state[p]["exp_avg"].

    Who wants to know whether the object was replaced compares `mapping.get(key) is value`.
    """

    mapping: MutableMapping[Any, Any]
    key: Any
    value: "torch.Tensor"


@dataclasses.dataclass
class Entry:
    """One tensor of the checkpoint, as this rank declares it."""

    component: str  # "model", "optim"
    name: str  # the fully qualified name; of optimizer state NAME.exp_avg
    role: int  # enum ckpt_role
    cls: int  # enum ckpt_class
    dtype: int  # enum ckpt_dtype
    layout: Layout
    home: Home
    of: Optional[str] = None  # COMPONENT/NAME
    aliases: Tuple[str, ...] = ()  # other names of the same tensor (tied weights), without the component
    id: int = -1  # of ckpt_tensor_add
    key: str = dataclasses.field(init=False)  # component/name, the name of the tensor in every table and file

    def __post_init__(self) -> None:
        self.key = self.component + "/" + self.name
