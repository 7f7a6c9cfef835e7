# SPDX-License-Identifier: Apache-2.0
"""Parameters that lie in a flat buffer: FSDP1's FlatParameter, and any partition in the manner of ZeRO.

A rank holds elements [start, stop) of a flattened tensor, counted row-major. They are declared as boxes (CKPT_BOXES),
at most 2 * ndim - 1 of them. `_state` calls this.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _layout, _mesh
from ._types import Layout, Mesh, Part

if TYPE_CHECKING:
    import torch

Box = Tuple[Tuple[int, ...], Tuple[int, ...]]


def boxes_of_interval(shape: Sequence[int], start: int, stop: int) -> List[Box]:
    """Elements [start, stop) of a tensor of this shape, row-major, as (start, extent) of boxes in the same order.

    They are disjoint, at most 2 * len(shape) - 1, and each is contiguous in the flat buffer. A 0-d tensor is one box
    ((), ()). ValueError: the interval is not inside the tensor.
    """
    numel = 1
    for n in shape:
        numel *= n
    if not 0 <= start <= stop <= numel:
        raise ValueError("elements %d to %d are not a range in a tensor of %d elements" % (start, stop, numel))
    found: List[Box] = []
    if not shape:
        return [((), ())] if start < stop else found
    while start < stop:
        unit, d = 1, len(shape) - 1  # all of the dimensions behind d, some of d, one of the others
        while d > 0 and start % (unit * shape[d]) == 0 and unit * shape[d] <= stop - start:
            unit *= shape[d]
            d -= 1
        at = start // unit
        many = min(shape[d] - at % shape[d], (stop - start) // unit)
        origin, extent = [0] * len(shape), list(shape)
        for k in range(d, -1, -1):
            origin[k], extent[k] = at % shape[k], many if k == d else 1
            at //= shape[k]
        found.append((tuple(origin), tuple(extent)))
        start += many * unit
    return found


def interval_parts(flat: "torch.Tensor", shape: Sequence[int], start: int, stop: int) -> List[Part]:
    """The boxes of [start, stop) with views of `flat`, a contiguous 1-d tensor of stop - start elements."""
    parts, at = [], 0
    flat = flat.detach()
    for origin, extent in boxes_of_interval(shape, start, stop):
        n = 1
        for e in extent:
            n *= e
        parts.append(Part(flat[at : at + n].view(extent), origin, extent))
        at += n
    return parts


@dataclasses.dataclass(frozen=True)
class Piece:
    """What this rank's shard of a FlatParameter has of one original parameter."""

    name: str  # of the original parameter, from the module that FSDP wrapped
    shape: Tuple[int, ...]
    offset: int  # of its first element in the shard
    start: int  # elements [start, stop) of the original parameter
    stop: int
    alike: Mesh  # the ranks that hold exactly these elements
    holders: Mesh  # the ranks that hold any element of it: on these, what each has once (`step`) is replicated

    def layout(self, flat: "torch.Tensor", offset: Optional[int] = None) -> Layout:
        """Of a tensor that is cut like the shard (or, with offset 0, like this piece of it)."""
        at = self.offset if offset is None else offset
        n = self.stop - self.start
        parts = interval_parts(flat.reshape(-1)[at : at + n], self.shape, self.start, self.stop) if n else []
        return _layout.boxes(self.shape, self.alike, parts)


@dataclasses.dataclass
class Flat:
    """One FlatParameter of FSDP1."""

    param: Any
    module: Any  # the module that FSDP wrapped: names of pieces begin there
    pieces: List[Piece]
    original: Optional[List[Any]]  # with use_orig_params: the parameters, in the order of pieces
    shared: List[Tuple[Any, str, int]]  # module, parameter name, and the piece that it is tied to


def flat_parameters(modules: Iterator[Any], rank: int) -> List[Flat]:
    """The FlatParameters that FSDP1 made in these modules. Unsupported: one of them is not sharded at the moment."""
    found = []
    for module in modules:
        handle = module.__dict__.get("_handle")
        if handle is None or not hasattr(handle, "flat_param"):
            continue
        found.append(_flat_of(module, handle, rank))
    return found


def _flat_of(fsdp: Any, handle: Any, rank: int) -> Flat:
    import torch.distributed as dist

    flat = handle.flat_param
    column = [int(r) for r in dist.get_process_group_ranks(handle.process_group)]
    sharded = bool(getattr(handle, "uses_sharded_strategy", len(column) > 1))
    if sharded and not handle.is_sharded(flat):
        raise _layout.Unsupported(
            "FSDP has gathered its parameters at the moment (%s): call this outside of forward, backward and "
            "summon_full_params" % ", ".join(flat._fqns[:3])
        )
    inter = getattr(fsdp, "_inter_node_pg", None)
    row = [int(r) for r in dist.get_process_group_ranks(inter)] if inter is not None else [rank]
    columns = _columns(getattr(fsdp, "_device_mesh", None) if inter is not None else None, column, row, rank)
    alike = Mesh(("replica",), (len(row),), tuple(ranks[handle.process_group.rank()] for ranks in columns))
    ends = _offsets(flat)
    turned = [n for n, dense in zip(flat._fqns, getattr(flat, "_contiguities", ())) if not dense]
    if turned:
        raise _layout.Unsupported(
            "FSDP flattened %s in the order of its memory, which is not row-major: make it contiguous before FSDP "
            "wraps it" % ", ".join(turned)
        )
    size = int(flat._sharded_size.numel())
    pieces = []
    for name, shape, info, (begin, end) in zip(flat._fqns, flat._shapes, flat._shard_param_infos, ends):
        numel = end - begin
        shape = tuple(int(n) for n in shape)
        if not sharded:
            every = Mesh(("replica",), (len(column),), tuple(column))
            pieces.append(Piece(name, shape, begin, 0, numel, every, every))
            continue
        holders = [i for i in range(len(column)) if begin < (i + 1) * size and end > i * size]
        ranks = tuple(ranks[i] for ranks in columns for i in holders)
        mesh = Mesh(("replica", "shard"), (len(row), len(holders)), ranks)
        first = info.intra_param_start_idx if info.in_shard else 0
        last = info.intra_param_end_idx + 1 if info.in_shard else 0
        pieces.append(Piece(name, shape, info.offset_in_shard or 0, first, last, alike, mesh))
    original = getattr(flat, "_params", None)
    return Flat(flat, handle._fully_sharded_module, pieces, list(original) if original else None, _shared(flat))


def _columns(device_mesh: Any, column: List[int], row: List[int], rank: int) -> List[List[int]]:
    """The ranks of each replica, in the order of their shards. column: of our own; row: of our group of replicas.

    Without a mesh, torch gives each node the same number of ranks, one after the other. Unsupported: nothing says in
    which order the ranks of a replica have the shards.
    """
    if device_mesh is None:
        return [[r + other - rank for r in column] for other in row]
    try:
        mesh = _mesh.in_group_order(device_mesh, _mesh.alone(device_mesh), (1,)).mesh
    except ValueError as e:
        raise _layout.Unsupported(str(e)) from None
    return _mesh.rows(mesh, 1)


def _offsets(flat: Any) -> List[Tuple[int, int]]:
    """[begin, end) of each original parameter in the unsharded flat parameter, which may have padding between them."""
    numels = getattr(flat, "_numels_with_padding", None) or flat._numels
    padding = getattr(flat, "_is_padding_mask", None) or [False] * len(numels)
    ends, at = [], 0
    for n, is_padding in zip(numels, padding):
        if not is_padding:
            ends.append((at, at + int(n)))
        at += int(n)
    return ends


def _shared(flat: Any) -> List[Tuple[Any, str, int]]:
    """Tied parameters: FSDP1 keeps the first one alone, and notes the others."""
    first = {(info.module, info.param_name): i for i, info in enumerate(flat._param_infos)}
    found = []
    for info in flat._shared_param_infos:
        piece = first.get((info.prim_module, info.prim_param_name))
        if piece is not None:
            found.append((info.module, info.param_name, piece))
    return found


def pieces_by_parameter(flats: Sequence[Flat]) -> Dict[Any, Tuple[Flat, Optional[int]]]:
    """Of each parameter that FSDP1 registers: the FlatParameter, and its piece (None: it is the flat one)."""
    found: Dict[Any, Tuple[Flat, Optional[int]]] = {}
    for flat in flats:
        found[flat.param] = (flat, None)
        for i, param in enumerate(flat.original or ()):
            found[param] = (flat, i)
    return found
