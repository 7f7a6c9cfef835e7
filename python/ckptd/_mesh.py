# SPDX-License-Identifier: Apache-2.0
"""The mesh that a DTensor is declared on: `_layout` calls lift().

torch gives each rank of a job its own submesh: mesh["fsdp"] of an (fsdp, tp) mesh is another set of ranks for each tp
coordinate. A checkpoint needs one mesh that all ranks declare alike. So a submesh is lifted to the mesh that it was cut
from: along the dimensions that it lacks the tensor is replicated, because each of the sibling submeshes holds it.

Everything here is computed from the arrays of ranks, which every torch from 2.4 on has. No process group is used.
"""

from __future__ import annotations

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


_lifted: Dict[int, Tuple["weakref.ref[Any]", Lifted]] = {}


def lift(device_mesh: Any) -> Lifted:
    """The mesh on which a tensor of this torch DeviceMesh is declared. The answer is kept as long as the mesh lives.

    ValueError: the submesh is no regular part of its root mesh.
    """
    key = id(device_mesh)
    known = _lifted.get(key)
    if known is not None and known[0]() is device_mesh:
        return known[1]
    root = root_of(device_mesh)
    sub_mesh = _mesh_of(device_mesh)
    got = _identity(sub_mesh) if root is device_mesh else lift_ranks(sub_mesh, _mesh_of(root))

    def forget(ref: Any, key: int = key) -> None:
        if key in _lifted and _lifted[key][0] is ref:
            del _lifted[key]

    _lifted[key] = (weakref.ref(device_mesh, forget), got)
    return got


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
