# SPDX-License-Identifier: Apache-2.0
"""The mesh that a DTensor is declared on: `_layout` calls lift().

torch gives each rank of a job its own submesh: mesh["fsdp"] of an (fsdp, tp) mesh is another set of ranks for each tp
coordinate. A checkpoint needs one mesh that all ranks declare alike. So a submesh is lifted to the mesh that it was cut
from: along the dimensions that it lacks the tensor is replicated, because each of the sibling submeshes holds it.

Which shard a rank has is its number in the process group of the mesh dimension that cuts: collectives know nothing
else. A process group sorts its ranks, unless the mesh was made with preserve_rank_order, so in DeviceMesh("cpu", [3, 1,
0, 2]) rank 0 has the first shard. Therefore in_group_order() moves the ranks of a mesh, along the dimensions that cut a
tensor, to the places that are their numbers. A rank learns only the groups that it is in. Of the others it assumes that
they were made by the same rule; ranks that assume different things declare different meshes, and ckpt_seal refuses.

The arrays of ranks, and the ranks of process groups, are all that is looked at. Nothing is sent.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from ._types import Mesh

# Dimensions of a mesh along which ranks hold different tensors, not copies: pipeline stages.
STAGES: FrozenSet[str] = frozenset(("pp", "pipe", "pipeline", "pipeline_parallel", "stage"))


class Lifted(NamedTuple):
    """The mesh to declare, and where each dimension of the DTensor's mesh is in it (None: its size is 1)."""

    mesh: Mesh
    dims: Tuple[Optional[int], ...]
    rank_max: int
    known: Dict[int, Optional[Tuple[int, ...]]]  # coordinates that were asked for

    def coordinate(self, rank: int) -> Optional[Tuple[int, ...]]:
        """The coordinate of a rank in the mesh; None if it is not in it."""
        if rank not in self.known:
            self.known[rank] = coordinate(self.mesh, rank)
        return self.known[rank]


def _found(mesh: Mesh, dims: Sequence[Optional[int]]) -> Lifted:
    return Lifted(mesh, tuple(dims), max(mesh.ranks, default=0), {})


def world_mesh(ranks: Sequence[int]) -> Mesh:
    """The mesh of what these ranks hold alike."""
    return Mesh(("rank",), (len(ranks),), tuple(ranks))


_lifted: Dict[int, Tuple["weakref.ref[Any]", Dict[Tuple[int, ...], Lifted]]] = {}


def lift(device_mesh: Any, cutting: Tuple[int, ...] = ()) -> Lifted:
    """The mesh on which a tensor is declared that these dimensions of a torch DeviceMesh cut, ascending. The answer is
    kept as long as the mesh lives.

    ValueError: the submesh is no regular part of its root mesh; or in_group_order() has no answer.
    """
    key = id(device_mesh)
    if key not in _lifted or _lifted[key][0]() is not device_mesh:

        def forget(ref: Any, key: int = key) -> None:
            if key in _lifted and _lifted[key][0] is ref:
                del _lifted[key]

        _lifted[key] = (weakref.ref(device_mesh, forget), {})
    answers = _lifted[key][1]
    if () not in answers:
        root = root_of(device_mesh)
        answers[()] = alone(device_mesh) if root is device_mesh else lift_ranks(_mesh_of(device_mesh), _mesh_of(root))
    if cutting not in answers:
        answers[cutting] = in_group_order(device_mesh, answers[()], cutting)
    return answers[cutting]


def alone(device_mesh: Any) -> Lifted:
    """This mesh itself, not lifted."""
    return _identity(_mesh_of(device_mesh))


def root_of(device_mesh: Any) -> Any:
    """The mesh that this one was cut from, or itself: DeviceMesh._get_root_mesh; in older torch _mesh_resources."""
    method = getattr(device_mesh, "_get_root_mesh", None)
    if method is not None:
        return method()
    import torch.distributed.device_mesh as module

    resources = getattr(module, "_mesh_resources", None)
    for name in ("get_root_mesh", "get_parent_mesh"):  # 2.5 and later; 2.4 and before
        method = getattr(resources, name, None)
        if method is not None:
            return method(device_mesh) or device_mesh
    return device_mesh


def _mesh_of(device_mesh: Any) -> Mesh:
    array = device_mesh.mesh
    sizes = tuple(int(n) for n in array.shape)
    names = getattr(device_mesh, "mesh_dim_names", None) or tuple("dim%d" % i for i in range(len(sizes)))
    return Mesh(tuple(str(n) for n in names), sizes, tuple(array.flatten().tolist()))


# --- the order of ranks ---


def in_group_order(device_mesh: Any, placed: Lifted, cutting: Sequence[int]) -> Lifted:
    """`placed`, which device_mesh was lifted to, with the ranks where their numbers in process groups say: along those
    dimensions of device_mesh that cut a tensor.

    Along other dimensions the ranks stay, so each replica of HSDP may have an order of its own. If several dimensions
    cut, each of them must reorder all of its rows alike. Otherwise torch's collectives join shards of different rows,
    and two ranks may have the same shard. ValueError, with the ranks: they do not; or nothing says in which order the
    groups have their ranks.
    """
    mesh = placed.mesh
    groups = {m: _groups(device_mesh, d, mesh, m) for d, m in enumerate(placed.dims) if d in cutting and m is not None}
    if all(groups[m] == rows(mesh, m) for m in groups):
        return placed
    number = {m: {rank: i for row in groups[m] for i, rank in enumerate(row)} for m in groups}
    strides, ranks = strides_of(mesh.sizes), list(mesh.ranks)
    moves: Dict[Tuple[Any, ...], int] = {}
    for i, rank in enumerate(mesh.ranks):
        to = list(unravel(i, mesh.sizes))
        row = tuple(c for d, c in enumerate(to) if d not in groups)
        for m in groups:
            if moves.setdefault((row, m, to[m]), number[m][rank]) != number[m][rank]:
                raise ValueError(_no_permutation(mesh, groups))
            to[m] = number[m][rank]
        ranks[sum(c * stride for c, stride in zip(to, strides))] = rank
    return _found(dataclasses.replace(mesh, ranks=tuple(ranks)), placed.dims)


def rows(mesh: Mesh, m: int) -> List[List[int]]:
    """The ranks along dimension m, for each coordinate of the other dimensions."""
    stride, n = strides_of(mesh.sizes)[m], mesh.sizes[m]
    return [list(mesh.ranks[i : i + n * stride : stride]) for i in range(len(mesh.ranks)) if i // stride % n == 0]


def _groups(device_mesh: Any, d: int, mesh: Mesh, m: int) -> List[List[int]]:
    """rows() of a dimension, which is d of device_mesh, each in the order of its process group. ValueError: see
    in_group_order.
    """
    each, own = rows(mesh, m), group_of(device_mesh, d)
    if own is None:
        if all(row == sorted(row) for row in each):
            return each
        if device_mesh.get_coordinate() is not None:
            raise ValueError(_unknown_order(mesh, m, "this process has no process group of it"))
        kept = _keeps_order(device_mesh)
    elif len(each) == 1 and sorted(own) == sorted(each[0]):
        return [own]
    else:
        mine = next((row for row in each if sorted(row) == sorted(own)), None)
        if own not in (mine, sorted(mine or ())):
            raise ValueError(_unknown_order(mesh, m, "its process group has the ranks %s" % own[:RANKS_SHOWN]))
        kept = _keeps_order(device_mesh) if own == mine == sorted(own) else own == mine
    return [row if kept else sorted(row) for row in each]


def group_of(device_mesh: Any, d: int) -> Optional[List[int]]:
    """The ranks of this process's group along a dimension, in the order of their numbers; None: it has none."""
    import torch.distributed as dist

    try:
        group = device_mesh.get_group(d)
        return None if group is None else [int(rank) for rank in dist.get_process_group_ranks(group)]
    except Exception:  # of another kind in each version of torch
        return None


def _keeps_order(device_mesh: Any) -> bool:
    """Do process groups that this rank is not in keep the order of the mesh?"""
    import torch

    known = getattr(device_mesh, "_preserve_rank_order", None)
    if known is None or known:
        return bool(known)
    # Torch that knows preserve_rank_order makes the groups of a default group that is bound to a device by split_group,
    # which always keeps the order.
    from torch.distributed.distributed_c10d import _get_default_group

    return getattr(_get_default_group(), "bound_device_id", None) is not None and torch.accelerator.is_available()


RANKS_SHOWN = 64
_ASCENDING = "make it with ranks that ascend along each dimension, or with preserve_rank_order=True"


def _no_permutation(mesh: Mesh, groups: Dict[int, List[List[int]]]) -> str:
    orders = ["%s has %s" % (mesh.names[m], ", ".join(map(str, groups[m][:RANKS_SHOWN]))) for m in sorted(groups)]
    return (
        "the process groups of its mesh %s of ranks %s have their ranks in an order that is no permutation of the mesh "
        "(%s): torch joins shards of different rows there; %s"
        % (_shown(mesh), list(mesh.ranks[:RANKS_SHOWN]), "; ".join(orders), _ASCENDING)
    )


def _unknown_order(mesh: Mesh, m: int, why: str) -> str:
    return "nothing says in which order the ranks %s of the mesh %s have the shards along %s: %s; %s" % (
        list(mesh.ranks[:RANKS_SHOWN]),
        _shown(mesh),
        mesh.names[m],
        why,
        _ASCENDING,
    )


# --- lifting ---


def _identity(mesh: Mesh) -> Lifted:
    return _found(mesh, range(len(mesh.sizes)))


def strides_of(sizes: Sequence[int]) -> List[int]:
    """Row-major strides, in elements."""
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 1, 0, -1):
        strides[d - 1] = strides[d] * sizes[d]
    return strides


def coordinate(mesh: Mesh, rank: int) -> Optional[Tuple[int, ...]]:
    """The coordinate of a rank in the mesh; None if it is not in it."""
    try:
        at = mesh.ranks.index(rank)
    except ValueError:
        return None
    return unravel(at, mesh.sizes)


def unravel(at: int, sizes: Sequence[int]) -> Tuple[int, ...]:
    """The coordinate of a row-major position."""
    coord = []
    for n in reversed(sizes):
        coord.append(at % n)
        at //= n
    return tuple(reversed(coord))


def lift_ranks(sub: Mesh, root: Mesh) -> Lifted:
    """lift(), of two arrays of ranks."""
    where = {rank: at for at, rank in enumerate(root.ranks)}
    if not sub.ranks or any(rank not in where for rank in sub.ranks):
        return _identity(sub)
    at = [where[rank] for rank in sub.ranks]
    dims = _dims_in_root(sub, root, at)
    if dims is not None:
        return _without_stages(root, dims, unravel(at[0], root.sizes))
    return _tiled(sub, root, at)


def _dims_in_root(sub: Mesh, root: Mesh, at: List[int]) -> Optional[Tuple[Optional[int], ...]]:
    """For each dimension of sub the dimension of root that it is, if that is so for all of them, in root's order."""
    root_strides, sub_strides = strides_of(root.sizes), strides_of(sub.sizes)
    dims: List[Optional[int]] = []
    first = unravel(at[0], root.sizes)
    for j, n in enumerate(sub.sizes):
        found = None
        step = at[sub_strides[j]] - at[0] if n > 1 else 0
        for d, size in enumerate(root.sizes):
            if size != n or d in dims or first[d] != 0 and n > 1:
                continue
            if (n == 1 and root.names[d] == sub.names[j]) or (n > 1 and root_strides[d] == step):
                found = d
                break
        if found is None and n > 1:
            return None
        dims.append(found)
    kept = [d for d in dims if d is not None]
    if kept != sorted(kept):
        return None
    for i, position in enumerate(at):  # the whole array, not the first row of each dimension alone
        coord = unravel(i, sub.sizes)
        if position - at[0] != sum(c * root_strides[d] for c, d in zip(coord, dims) if d is not None):
            return None
    return tuple(dims)


def _without_stages(root: Mesh, dims: Tuple[Optional[int], ...], at: Tuple[int, ...]) -> Lifted:
    """Root, but only at our coordinate of the dimensions of pipeline stages that the tensor's mesh lacks."""
    keep = [d for d, name in enumerate(root.names) if d in dims or name.lower() not in STAGES or root.sizes[d] == 1]
    if len(keep) == len(root.sizes):
        return _found(root, dims)
    ranks = []
    for i, rank in enumerate(root.ranks):
        coord = unravel(i, root.sizes)
        if all(d in keep or coord[d] == at[d] for d in range(len(at))):
            ranks.append(rank)
    mesh = Mesh(tuple(root.names[d] for d in keep), tuple(root.sizes[d] for d in keep), tuple(ranks))
    return _found(mesh, [None if d is None else keep.index(d) for d in dims])


def _tiled(sub: Mesh, root: Mesh, at: List[int]) -> Lifted:
    """Flattened, unflattened, permuted parts of root: the siblings are the translates of this submesh that fill root.

    The smallest position that no sibling has yet is always the first one of a sibling, so one pass finds them all.
    """
    offsets = [position - min(at) for position in at]
    domain = _domain(root, at)
    allowed, taken, bases = set(domain), set(), []
    for position in domain:
        if position in taken:
            continue
        tile = [position + offset for offset in offsets]
        if any(p not in allowed or p in taken for p in tile):
            raise ValueError(
                "the mesh %s of ranks %s is no regular part of the mesh %s that it was cut from: distribute the tensor "
                "over the whole mesh" % (_shown(sub), list(sub.ranks[:16]), _shown(root))
            )
        taken.update(tile)
        bases.append(position)
    if len(bases) == 1:
        return _identity(sub)
    name = "replica"
    while name in sub.names:
        name += "_"
    ranks = tuple(root.ranks[base + offset] for base in bases for offset in offsets)
    mesh = Mesh((name,) + sub.names, (len(bases),) + sub.sizes, ranks)
    return _found(mesh, range(1, len(sub.sizes) + 1))


def _domain(root: Mesh, at: List[int]) -> List[int]:
    """The positions of root that hold this tensor: those of our pipeline stage, unless the submesh spans stages."""
    coords = [unravel(position, root.sizes) for position in at]
    fixed = [
        d
        for d, name in enumerate(root.names)
        if name.lower() in STAGES and all(coord[d] == coords[0][d] for coord in coords)
    ]
    every = range(len(root.ranks))
    if not fixed:
        return list(every)
    return [i for i in every if all(unravel(i, root.sizes)[d] == coords[0][d] for d in fixed)]


def _shown(mesh: Mesh) -> str:
    return ",".join("%s=%d" % pair for pair in zip(mesh.names, mesh.sizes)) or "()"
