# SPDX-License-Identifier: Apache-2.0
"""How a tensor of a training program is cut over the ranks: describe() gives what ckpt_tensor_add is told.

`_state` calls this for each tensor. It looks at the tensor of this rank alone: no process group is used, nothing is
copied. What ckptd cannot save is an Unsupported (a TypeError), which says why, and what to do about it. The rules that
turn a layout into elements are those of docs/LAYOUTS.md; here they are used to check that the local tensor has the
shape that its layout says.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi, _cuda, _mesh
from ._types import Layout, Mesh, Part, Placement

if TYPE_CHECKING:
    import torch

SHARD = _abi.CKPT_SHARD
CHUNK, TORCH_ORDER, BOXES = _abi.CKPT_CHUNK, _abi.CKPT_TORCH_ORDER, _abi.CKPT_BOXES

# enum ckpt_dtype, by torch's name of the type
_DTYPES: Dict[str, int] = {
    "bool": _abi.CKPT_BOOL,
    "uint8": _abi.CKPT_U8,
    "int8": _abi.CKPT_I8,
    "float8_e4m3fn": _abi.CKPT_F8_E4M3,
    "float8_e5m2": _abi.CKPT_F8_E5M2,
    "float8_e8m0fnu": _abi.CKPT_F8_E8M0,
    "uint16": _abi.CKPT_U16,
    "int16": _abi.CKPT_I16,
    "float16": _abi.CKPT_F16,
    "bfloat16": _abi.CKPT_BF16,
    "uint32": _abi.CKPT_U32,
    "int32": _abi.CKPT_I32,
    "float32": _abi.CKPT_F32,
    "uint64": _abi.CKPT_U64,
    "int64": _abi.CKPT_I64,
    "float64": _abi.CKPT_F64,
    "complex64": _abi.CKPT_C64,
    "complex128": _abi.CKPT_C128,
    "complex32": _abi.CKPT_C32,
    "float8_e4m3fnuz": _abi.CKPT_F8_E4M3FNUZ,
    "float8_e5m2fnuz": _abi.CKPT_F8_E5M2FNUZ,
    "float4_e2m1fn_x2": _abi.CKPT_F4,
}


class Unsupported(TypeError):
    """A tensor that cannot be saved. str(e): what it is, why not, and what to do."""


_dtype_numbers: Dict["torch.dtype", int] = {}
_dtype_torch: Dict[int, "torch.dtype"] = {}


def _dtypes_fill() -> None:
    import torch

    for name, number in _DTYPES.items():
        dtype = getattr(torch, name, None)
        if dtype is not None:
            _dtype_numbers[dtype] = number
            _dtype_torch[number] = dtype


def dtype_of(dtype: "torch.dtype") -> int:
    """enum ckpt_dtype of a torch dtype. Unsupported: it has none."""
    if not _dtype_numbers:
        _dtypes_fill()
    number = _dtype_numbers.get(dtype)
    if number is None:
        raise Unsupported("its type is %s, which ckptd has no number for: save a view of it as uint8" % dtype)
    return number


def dtype_to_torch(number: int) -> "torch.dtype":
    """The torch dtype of an enum ckpt_dtype. Unsupported: this torch has no such type."""
    if not _dtype_numbers:
        _dtypes_fill()
    if number not in _dtype_torch:
        name = [n for n, i in _DTYPES.items() if i == number]
        raise Unsupported("its type is %s, which this version of torch lacks" % (name[0] if name else number))
    return _dtype_torch[number]


def dtensor_class() -> Optional[type]:
    """torch's DTensor if anything has imported it, else None: then no tensor is one. torch 2.4 has it in `_tensor`."""
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        found = getattr(sys.modules.get(name), "DTensor", None)
        if isinstance(found, type):
            return found
    return None


def is_dtensor(tensor: Any) -> bool:
    found = dtensor_class()
    return found is not None and isinstance(tensor, found)


def out_of_order(tensor: Any) -> bool:
    """Is this a DTensor whose shards are not where its mesh has the ranks (`_mesh`)? DCP looks for them there."""
    if not is_dtensor(tensor):
        return False
    mesh, cutting = tensor._spec.mesh, tuple(d for d, p in enumerate(tensor.placements) if not p.is_replicate())
    try:
        return _mesh.lift(mesh, cutting).mesh != _mesh.lift(mesh).mesh
    except ValueError:
        return True


# --- what memory a tensor has ---


def plain_check(tensor: "torch.Tensor") -> None:
    """Raise Unsupported unless this is an ordinary tensor: strided memory of this host, no element twice."""
    import torch

    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        _subclass_check(tensor)
    if tensor.layout is not torch.strided:
        raise Unsupported("it is sparse (%s): save its indices and values as tensors of their own" % tensor.layout)
    if tensor.is_nested:
        raise Unsupported("it is a nested tensor: save its values and offsets as tensors of their own")
    if tensor.is_quantized:
        raise Unsupported("it is quantized (%s): save int_repr() and the scales as tensors of their own" % tensor.dtype)
    if tensor.is_meta:
        raise Unsupported("it is on the meta device and has no memory: call to_empty(), and initialise it, first")
    why = _cuda.refused(tensor)
    if why is not None:
        raise Unsupported("it is on %s (%s): move it to the CPU, or to a CUDA device" % (tensor.device, why))
    if tensor.is_conj():
        raise Unsupported("its memory holds the conjugates of its values: assign tensor.resolve_conj() in its place")
    if tensor.is_neg():
        raise Unsupported("its memory holds the negatives of its values: assign tensor.resolve_neg() in its place")
    if tensor.dim() > _abi.CKPT_DIMS_MAX:
        raise Unsupported("it has %d dimensions: at most %d are possible" % (tensor.dim(), _abi.CKPT_DIMS_MAX))
    if not tensor.is_contiguous():
        _overlap_check(tensor)
    if dtype_of(tensor.dtype) == _abi.CKPT_F4 and tensor.dim() == 0:
        raise Unsupported("it is one byte of two 4-bit numbers without a dimension: give it the shape [1]")


def _subclass_check(tensor: "torch.Tensor") -> None:
    import torch

    kind = type(tensor)
    if kind.__name__ in ("UninitializedParameter", "UninitializedBuffer"):
        raise Unsupported("it has no shape yet (%s): run a forward pass first" % kind.__name__)
    ordinary = getattr(torch.Tensor, "__torch_dispatch__", None)
    if getattr(kind, "__torch_dispatch__", None) is not ordinary and kind is not torch.nn.Parameter:
        raise Unsupported(
            "it is a %s.%s, a tensor subclass whose memory ckptd does not know: give the class __tensor_flatten__, or "
            "save the tensors inside it" % (kind.__module__, kind.__qualname__)
        )


def _overlap_check(tensor: "torch.Tensor") -> None:
    """Elements that share memory, as after expand(), cannot be restored one by one."""
    if tensor.numel() == 0:
        return
    reach = 0
    for stride, size in sorted((st, n) for st, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride <= reach:
            raise Unsupported(
                "several of its elements are the same memory (shape %s, strides %s, as after expand): assign "
                "tensor.clone() in its place" % (tuple(tensor.shape), tuple(tensor.stride()))
            )
        reach += stride * (size - 1)


# --- describe ---


def describe(tensor: "torch.Tensor", *, rank: int, world: int, ranks: Optional[Sequence[int]] = None) -> Layout:
    """How this tensor is cut, as rank `rank` of `world` declares it.

    DTensor: its placements on its root mesh. A tensor with the four attributes of torch's CheckpointableTensor, or with
    LocalShardsWrapper inside: boxes. Any other tensor: replicated on `ranks`, or on the whole world without them.
    Unsupported: see above. The parts are views: no element is copied.
    """
    if is_dtensor(tensor):
        return _describe_dtensor(tensor, rank, world)
    if getattr(tensor, "global_offsets", None) is not None and hasattr(tensor, "local_sizes"):
        return checkpointable(tensor, tensor)
    plain_check(tensor)
    return replicated(tensor, _mesh.world_mesh(ranks if ranks is not None else range(world)))


def replicated(tensor: "torch.Tensor", mesh: Mesh) -> Layout:
    """A plain tensor that all ranks of the mesh hold alike."""
    return Layout(tuple(tensor.shape), CHUNK, mesh, (), (Part(tensor),) if tensor.numel() else ())


def same_cut(a: Layout, b: Layout) -> bool:
    """Do both say that this rank holds the same elements of tensors of one shape?"""
    return (a.shape, a.mode, a.mesh, a.placements) == (b.shape, b.mode, b.mesh, b.placements) and [
        (p.start, p.extent) for p in a.parts
    ] == [(p.start, p.extent) for p in b.parts]


class _Cut(NamedTuple):
    """One mesh dimension that cuts: in the tensor's mesh at `at`, of `size` ranks, of which this one is number `coord`.
    """

    at: int
    size: int
    coord: int
    dim: int
    factor: int


def _describe_dtensor(tensor: Any, rank: int, world: int) -> Layout:
    shape = tuple(int(n) for n in tensor.shape)
    spec = tensor._spec
    cuts = _cuts(spec.placements, spec.mesh.shape, len(shape))
    try:
        lifted = _mesh.lift(spec.mesh, tuple(c.at for c in cuts))
    except ValueError as e:
        raise Unsupported(str(e)) from None
    mesh = lifted.mesh
    if lifted.rank_max >= world:
        raise Unsupported("its mesh has rank %d, but the job has %d ranks" % (lifted.rank_max, world))
    local = tensor._local_tensor
    coord = lifted.coordinate(rank)
    here = [coord[d] if coord is not None and d is not None else 0 for d in lifted.dims]
    cuts = [c._replace(coord=here[c.at]) for c in cuts]
    if _is_fsdp_of_2_4():
        cuts = _with_factors(cuts)
    if hasattr(local, "local_shards") and hasattr(local, "local_offsets"):
        cutting = {lifted.dims[c.at] for c in cuts}
        return _describe_shards(local, shape, (mesh, _mesh.lift(spec.mesh).mesh), cutting, rank)
    mode, cuts = _reading(spec, cuts, shape, tuple(local.shape) if coord is not None else None)
    _joined_check(spec, lifted, cuts)
    placements = tuple(
        Placement(SHARD, at, c.dim, c.factor if c.factor > 1 else 0)
        for c, at in ((c, lifted.dims[c.at]) for c in cuts)
        if at is not None
    )
    plain_check(local)
    parts = (Part(local),) if coord is not None and local.numel() else ()
    return Layout(shape, mode, mesh, placements, parts)


def _cuts(placements: Sequence[Any], sizes: Sequence[int], ndim: int) -> List[_Cut]:
    """The placements that cut, in the order of the mesh, each with coordinate 0. Unsupported: a placement that cannot
    be declared.
    """
    cuts = []
    for at, p in enumerate(placements):
        kind = type(p).__name__
        if p.is_replicate():
            continue
        if p.is_partial():
            raise Unsupported(
                "it is a pending reduction, %s over mesh dimension %d: reduce it first, as with "
                "tensor.redistribute(placements=[Replicate()])" % (p, at)
            )
        if kind not in ("Shard", "_StridedShard"):
            raise Unsupported("its placement %s is of a kind that ckptd does not know (%s)" % (p, kind))
        dim = p.dim + ndim if p.dim < 0 else p.dim
        factor = int(getattr(p, "split_factor", 1))
        if not 0 <= dim < ndim or factor < 1:
            raise Unsupported("its placement %s does not fit a tensor of %d dimensions" % (p, ndim))
        cuts.append(_Cut(at, int(sizes[at]), 0, dim, factor))
    return cuts


def _joined_check(spec: Any, lifted: _mesh.Lifted, cuts: Sequence[_Cut]) -> None:
    """Unsupported: a flattened mesh joins mesh dimensions that cut one tensor dimension, and numbers the ranks in
    another order than they do. full_tensor() gathers by the flattened mesh, distribute_tensor has cut by the others.
    """
    joined = {d: {lifted.dims[c.at] for c in cuts if c.dim == d and c.factor == 1} for d in {c.dim for c in cuts}}
    if all(len(at) < 2 for at in joined.values()):
        return
    for name, flat in getattr(_mesh.root_of(spec.mesh), "_flatten_mapping", {}).items():
        group = _mesh.group_of(flat, 0) or []
        coords = [coord for coord in map(lifted.coordinate, group) if coord is not None]
        if len(coords) < len(group):
            continue
        differ = {d for d, of in enumerate(zip(*coords)) if len(set(of)) > 1}
        if coords != sorted(coords) and any(differ <= at for at in joined.values()):
            raise Unsupported(
                "the process group of the flattened mesh %s has the ranks %s, and by the mesh dimensions from which it "
                "was made they hold its shards in the order %s: make the mesh with ranks that ascend, or do without "
                "the flattened one" % (name, group[: _mesh.RANKS_SHOWN], [r for _, r in sorted(zip(coords, group))])
            )


def _is_fsdp_of_2_4() -> bool:
    """Does this program use FSDP2 of a torch without _StridedShard (2.4)?"""
    placements = sys.modules.get("torch.distributed._tensor.placement_types")
    fsdp = "torch.distributed._composable.fsdp" in sys.modules
    return fsdp and placements is not None and not hasattr(placements, "_StridedShard")


def _with_factors(cuts: List[_Cut]) -> List[_Cut]:
    """The cuts with the factors that FSDP2 of later torch gives.

    FSDP2 over TP cuts what TP has cut, although its mesh dimension comes first. torch 2.4 calls both placements Shard,
    as if FSDP2 had cut first: its own full_tensor() is wrong there.
    """
    out: List[_Cut] = []
    for c in reversed(cuts):
        sizes = [later.size for later in out if later.dim == c.dim]
        out.append(c._replace(factor=math.prod(sizes)))
    return out[::-1]


def _reading(
    spec: Any, cuts: List[_Cut], shape: Tuple[int, ...], local: Optional[Tuple[int, ...]]
) -> Tuple[int, List[_Cut]]:
    """The mode, and the cuts in the order to declare them. local None: this rank holds nothing, and has no shape.

    Split factors mean an order of the mesh dimensions (FSDP2 over TP), unless torch says that they are meant literally,
    or they say no order, or the local tensor has the shape of the literal reading alone (distribute_tensor).
    """
    if not any(c.factor > 1 for c in cuts):
        ordered = _in_shard_order(spec, cuts)
        _shape_check(_local_shape(shape, ordered), local, spec)
        return CHUNK, ordered
    order = order_of(cuts) if getattr(spec, "use_strided_shard_as_shard_order", None) is not False else None
    if order is not None and (local is None or _fits(_local_shape(shape, order), local)):
        return TORCH_ORDER, cuts
    cuts = _in_shard_order(spec, cuts)
    literal = _local_shape(shape, cuts)
    if order is not None and not _fits(literal, local):
        raise Unsupported(
            "its local tensor has shape %s, but %s means %s if split factors say an order, and %s if they are literal"
            % (local, tuple(spec.placements), _local_shape(shape, order), literal)
        )
    _shape_check(literal, local, spec)
    return CHUNK, cuts


def _in_shard_order(spec: Any, cuts: List[_Cut]) -> List[_Cut]:
    """Plain shards in the order in which they cut: DTensorSpec.shard_order of newer torch, else that of the mesh."""
    order = getattr(spec, "shard_order", None)
    if not order:
        return cuts
    first: Dict[int, int] = {}
    for entry in order:
        for i, m in enumerate(entry.mesh_dims):
            first[m] = i
    return sorted(cuts, key=lambda c: (c.dim, first.get(c.at, c.at)))


def order_of(cuts: Sequence[_Cut]) -> Optional[List[_Cut]]:
    """The cuts in the order that their split factors say, without the factors; None: they say no order.

    A factor is the product of the sizes of those mesh dimensions that cut the same tensor dimension earlier and come
    later in the mesh. So the last mesh dimension is placed first, and each one before it is put where the product is
    its factor.
    """
    order: Dict[int, List[_Cut]] = {}
    for c in sorted(cuts, key=lambda c: -c.at):
        done = order.setdefault(c.dim, [])
        product, place = 1, None
        for i in range(len(done) + 1):
            if product == c.factor:
                place = i
                break
            if i < len(done):
                product *= done[i].size
        if place is None:
            return None
        done.insert(place, c._replace(factor=1))
    return [c for dim in sorted(order) for c in order[dim]]


def chunk_length(n: int, parts: int, i: int) -> int:
    """How many of n elements part i of torch.chunk(parts) has."""
    each = -(-n // parts)
    return max(0, min(n, (i + 1) * each) - min(n, i * each))


def strided_length(n: int, parts: int, i: int, factor: int) -> int:
    """The same of torch's _StridedShard, read literally: n is cut in `factor` pieces, and each of these in `parts`."""
    if n == 0:
        return 0
    each = -(-n // factor)
    return n // each * chunk_length(each, parts, i) + chunk_length(n % each, parts, i)


def _local_shape(shape: Tuple[int, ...], cuts: Sequence[_Cut]) -> Tuple[int, ...]:
    local = list(shape)
    for c in cuts:
        local[c.dim] = strided_length(local[c.dim], c.size, c.coord, c.factor)
    return tuple(local)


def _fits(expected: Tuple[int, ...], local: Optional[Tuple[int, ...]]) -> bool:
    """An empty local tensor may have any shape: FSDP2 sets only the dimension that it cuts to 0."""
    return local is None or expected == local or (0 in expected and 0 in local)


def _shape_check(expected: Tuple[int, ...], local: Optional[Tuple[int, ...]], spec: Any) -> None:
    if not _fits(expected, local):
        cutting = tuple(d for d, p in enumerate(spec.placements) if not p.is_replicate())
        if _mesh.lift(spec.mesh, cutting).mesh != _mesh.lift(spec.mesh).mesh:
            why = (
                "the process groups have the ranks %s of this mesh in another order, and distribute_tensor cuts uneven "
                "shards wrongly there: make the mesh with ranks that ascend along each dimension"
                % spec.mesh.mesh.flatten().tolist()[: _mesh.RANKS_SHOWN]
            )
        else:
            why = "if it was made with from_local, and its shards are uneven, give from_local the shape and stride"
        raise Unsupported(
            "its local tensor has shape %s, but %s on a mesh of %s means %s here: %s"
            % (local, tuple(spec.placements), tuple(spec.mesh.shape), expected, why)
        )


# --- boxes ---


def boxes(shape: Tuple[int, ...], mesh: Optional[Mesh], parts: Sequence[Part]) -> Layout:
    """A layout of boxes. mesh: the ranks that hold these same boxes; None, or this rank alone: CKPT_ALONE."""
    return Layout(shape, BOXES, mesh if mesh is not None and len(mesh.ranks) > 1 else None, (), tuple(parts))


def _box(local: "torch.Tensor", start: Sequence[int]) -> Part:
    return Part(local, tuple(int(n) for n in start), tuple(local.shape))


def _describe_shards(local: Any, shape: Tuple[int, ...], meshes: Tuple[Mesh, Mesh], cutting: Any, rank: int) -> Layout:
    """A DTensor of several local shards (LocalShardsWrapper): boxes, which the ranks of replicated dimensions share.

    meshes: with the ranks in the order of their groups, and as they are. Nobody knows by which of the two the shards
    were given out.
    """
    alike, same = (_alike(mesh, cutting, rank) for mesh in meshes)
    if alike is None:
        return boxes(shape, None, ())
    if alike != same:
        raise Unsupported(
            "by the order of process groups the ranks %s have these shards, and by their places in its mesh the ranks "
            "%s: make the mesh with ranks that ascend along each dimension" % (alike, same)
        )
    parts = []
    for shard, start in zip(local.local_shards(), local.local_offsets()):
        plain_check(shard)
        if shard.numel():
            parts.append(_box(shard, start))
    return boxes(shape, Mesh(("replica",), (len(alike),), tuple(alike)), parts)


def _alike(mesh: Mesh, cutting: Any, rank: int) -> Optional[List[int]]:
    """The ranks, ascending, that have the coordinates of this one in these dimensions; None: it is not in the mesh."""
    coord = _mesh.coordinate(mesh, rank)
    if coord is None:
        return None
    each = ((other, _mesh.unravel(i, mesh.sizes)) for i, other in enumerate(mesh.ranks))
    return sorted(other for other, at in each if all(at[d] == coord[d] for d in cutting if d is not None))


def checkpointable(memory: Any, tensor: Any) -> Layout:
    """torch's CheckpointableTensor (torch.distributed.checkpoint.protocol): each shard is a box of this rank alone.

    memory: where the elements are: the tensor itself, or optimizer state of its shape.
    """
    plain_check(memory)
    shape = tuple(int(n) for n in tensor.global_shape)
    starts, sizes, places = tensor.global_offsets, tensor.local_sizes, tensor.local_offsets
    if not len(starts) == len(sizes) == len(places):
        raise Unsupported("its global_offsets, local_offsets and local_sizes are of different lengths")
    parts = []
    for start, size, place in zip(starts, sizes, places):
        if (
            len(start) != len(shape)
            or len(size) != len(shape)
            or any(a < 0 or n < 0 or a + n > whole for a, n, whole in zip(start, size, shape))
        ):
            raise Unsupported("its shard at %s of %s is outside its shape, %s" % (tuple(start), tuple(size), shape))
        view = memory.detach()
        if len(place):
            view = view[tuple(slice(a, a + n) for a, n in zip(place, size))]
        if tuple(view.shape) != tuple(size):
            raise Unsupported(
                "its shard at %s has size %s, but its memory has %s" % (tuple(start), tuple(size), tuple(view.shape))
            )
        if view.numel():
            parts.append(_box(view, start))
    return boxes(shape, None, parts)


def dtensor_like(tensor: Any, local: "torch.Tensor") -> Any:
    """A DTensor of this local tensor, with the mesh, placements, shape and stride of another DTensor."""
    kind = type(tensor) if type(tensor).__name__ == "DTensor" else dtensor_class()
    assert kind is not None
    make: Any = kind
    return make(local, tensor._spec, requires_grad=False)
