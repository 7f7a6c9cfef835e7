# SPDX-License-Identifier: Apache-2.0
"""`ckptd.load`: a committed step into a model that exists, without a daemon: for notebooks, evaluation, and export.

Each rank reads only the elements that it holds (`_layout` says which). No collective is called. Training resumes with
`run.restore`, which also restores what is no tensor, from memory too, and on all ranks the same step.
"""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union, overload

from . import _ctl, _reader
from ._pieces import Range, Run, boxes_of, rounded
from ._reader import Checkpoint, Tensor
from ._types import Entry, Layout
from .errors import error

if TYPE_CHECKING:
    import torch

_LISTED = 200  # names of one kind in a message
GROUPS = ".groups"  # ends the name of the blob of an optimizer's param_groups (_extra)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What load filled. missing: keys of the program that the step lacks, which are as they were; param_groups are
    blob/optim.groups. unexpected: the reverse.
    """

    step: int
    missing: Tuple[str, ...]
    unexpected: Tuple[str, ...]


@overload
def load(
    path: Any,
    like: None = None,
    optim: None = None,
    *,
    strict: bool = True,
    verify: bool = True,
    average: Optional[str] = None,
    step: Optional[int] = None,
    only: Optional[str] = None,
    cast: bool = False,
    store: Any = None,
) -> Dict[str, "torch.Tensor"]: ...
@overload
def load(
    path: Any,
    like: Any,
    optim: Any = None,
    *,
    strict: bool = True,
    verify: bool = True,
    average: Optional[str] = None,
    step: Optional[int] = None,
    only: Optional[str] = None,
    cast: bool = False,
    store: Any = None,
) -> Loaded: ...
def load(
    path: Any,
    like: Any = None,
    optim: Any = None,
    *,
    strict: bool = True,
    verify: bool = True,
    average: Optional[str] = None,
    step: Optional[int] = None,
    only: Optional[str] = None,
    cast: bool = False,
    store: Any = None,
) -> Union[Loaded, Dict[str, "torch.Tensor"]]:
    """Fill a model, and optimizers, in place from a committed step; no daemon is needed.

    path, store: as of ckptd.open; step: of the store that path is. like: a module: plain, DDP, FSDP, tensor-parallel,
    or a sequence of them (pipeline parts). optim: an optimizer, or a sequence or dict of them: its tensors, which are
    made if it has none yet, and its param_groups. Without like and optim a new dict is returned: the model's own
    state_dict, tied tensors under each of their names, on the CPU.

    strict: NotFitting if the step lacks a tensor of the program, or the program one of the step; with strict=False what
    is in both is filled, and Loaded lists the rest. Other shapes are never accepted; other dtypes only with cast=True
    (rounded to nearest even), but for an average, which is F32 and is rounded to the parameter's dtype. All mismatches
    are listed before anything is written. average: the model of this average instead of the weights. only: this
    component alone. verify: check every byte of the step first; Damaged: nothing was written. Every rank does so,
    because no rank can know what another one found. If the program lets one rank check (Checkpoint.verify) and tells
    the others, give verify=False.

    Several ranks: each of them opens path by itself. While the job still saves, the newest step may be another one for
    each rank: name the step.

    Schedulers, random numbers and other extras are not restored: Checkpoint.extras has them.
    """
    if average is not None and (optim is not None or only is not None):
        raise error("load", errno.EINVAL, "an average is a model: give neither optim nor only with average")
    rank, world = place()
    with _reader.Checkpoint(_ctl.show(_ctl.arguments(path, store, step))) as checkpoint:
        if verify:
            checkpoint.verify()
        source: Mapping[str, Tensor] = checkpoint if average is None else checkpoint.average(average)
        if like is None and optim is None:
            return _state_dict(checkpoint, source, only or "model")
        return _fill(checkpoint, source, like, optim, _Options(strict, cast or average is not None, only, rank, world))


class _Options(NamedTuple):
    strict: bool
    cast: bool
    only: Optional[str]
    rank: int
    world: int


def place() -> Tuple[int, int]:
    """This process's rank, and the world's size."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _state_dict(checkpoint: "Checkpoint", source: Mapping[str, "Tensor"], only: str) -> Dict[str, "torch.Tensor"]:
    found = {key[len(only) + 1 :]: t[...].clone() for key, t in source.items() if key.startswith(only + "/")}
    if not found:
        text = f"step {checkpoint.step} ({checkpoint.path}) has no tensor of component {only}"
        raise error("restore", errno.EMEDIUMTYPE, text)
    for alias, key in checkpoint.aliases.items():
        if alias.startswith(only + "/") and key.startswith(only + "/") and key[len(only) + 1 :] in found:
            found.setdefault(alias[len(only) + 1 :], found[key[len(only) + 1 :]])
    return found


# --- what fits what ---


def _fill(checkpoint: "Checkpoint", source: Mapping[str, "Tensor"], like: Any, optim: Any, options: _Options) -> Loaded:
    from . import _state

    optims = _state.optimizers_of(optim)
    entries = _entries(checkpoint, like, optims, options)
    pairs: List[Tuple[Entry, Tensor]] = []
    missing, wrong = [], []
    for entry in entries:
        saved = _saved(checkpoint, source, entry)
        if saved is None:
            missing.append(entry.key)
            continue
        pairs.append((entry, saved))
        wrong += _mismatch(entry, saved, options.cast)
    missing += _missing_groups(checkpoint, optims, options)
    unexpected = _unexpected(checkpoint, source, entries, pairs)
    _check(checkpoint, wrong, missing if options.strict else [], unexpected if options.strict else [])
    groups = _groups(checkpoint, optims, options)
    for entry, saved in pairs:
        fill_parts(entry.key, saved, entry.layout, options.rank)
    for put, value in groups:
        put(value)
    return Loaded(checkpoint.step, tuple(missing), tuple(unexpected))


class _Saved(NamedTuple):
    """A tensor of a checkpoint, as `_state.create_state_like` asks for it."""

    component: str
    name: str
    of: Optional[str]
    dtype: int
    shape: Tuple[int, ...]


def _entries(checkpoint: "Checkpoint", like: Any, optims: Sequence[Any], options: _Options) -> List[Entry]:
    """The tensors of the program, with optimizer state that is made if it does not exist yet. TypeError:
    unsupported."""
    from . import _abi, _state

    for optim in optims:
        _state.create_state(optim)
    state = _state.collect(like, optims, rank=options.rank, world=options.world)
    if optims:
        saved = [
            _Saved(t.component, t.name, t.of, int(getattr(_abi, "CKPT_" + t.dtype_name)), t.shape)
            for t in checkpoint.values()
        ]
        names = {p: about.name for p, about in state.parameters.items()}
        problems: List[str] = []
        for component, optim in zip(_state.components_of(optims), optims):
            problems += _state.create_state_like(optim, saved, names=names, component=component)
        if problems:
            text = "\n".join(["optimizer state of the step that cannot be made:", *problems])
            raise error("restore", errno.EMEDIUMTYPE, text)
        state = _state.collect(like, optims, rank=options.rank, world=options.world)
    state.check()
    return [e for e in state.entries if options.only in (None, e.component)]


def _saved(checkpoint: "Checkpoint", source: Mapping[str, "Tensor"], entry: Entry) -> Optional["Tensor"]:
    """The tensor of the step that fills an entry: of its key, or of another name of it in the step or in the
    program."""
    component = entry.component + "/"
    for key in (entry.key, *(component + alias for alias in entry.aliases)):
        for name in (key, checkpoint.aliases.get(key, "")):
            if name in source:
                return source[name]
    return None


def _mismatch(entry: Entry, saved: "Tensor", cast: bool) -> List[str]:
    from . import _layout

    lines = []
    if saved.shape != entry.layout.shape:
        lines.append(f"  {entry.key}: shape {entry.layout.shape} in the program, {saved.shape} in the step")
    wanted = _layout.dtype_to_torch(entry.dtype)
    if wanted != saved.dtype and not cast:
        lines.append(f"  {entry.key}: {wanted} in the program, {saved.dtype} in the step (cast=True casts)")
    if saved.is_partial:
        lines.append(f"  {entry.key}: the step has operands of a pending reduction (ckptctl export reduces them)")
    return lines


def _unexpected(
    checkpoint: "Checkpoint", source: Mapping[str, "Tensor"], entries: List[Entry], pairs: List[Tuple[Entry, "Tensor"]]
) -> List[str]:
    """Tensors of the step that belong to what was given, and that nothing in the program takes.

    A tied weight that the step has twice (DCP saves it so) is taken under both names if both have the same elements.
    """
    components = {entry.component for entry in entries}
    taken = {tensor.key for _, tensor in pairs}
    for entry, tensor in pairs:
        for alias in entry.aliases:
            twin = source.get(f"{entry.component}/{alias}")
            if twin is not None and twin.fingerprint is not None and twin.fingerprint == tensor.fingerprint:
                taken.add(twin.key)
    return [key for key in source if key.partition("/")[0] in components and key not in taken]


def _check(checkpoint: "Checkpoint", wrong: List[str], missing: List[str], unexpected: List[str]) -> None:
    lines = list(wrong)
    for title, keys in (("the step lacks", missing), ("the program lacks", unexpected)):
        lines += [f"  {title} {key}" for key in keys[:_LISTED]]
        if len(keys) > _LISTED:
            lines.append(f"  ... and {len(keys) - _LISTED} more that {title}")
    if lines:
        text = f"step {checkpoint.step} ({checkpoint.path}) does not fit; nothing was written:"
        hint = [] if wrong else ["strict=False fills what is in both"]
        raise error("restore", errno.EMEDIUMTYPE, "\n".join([text, *lines, *hint]))


def _missing_groups(checkpoint: "Checkpoint", optims: Sequence[Any], options: _Options) -> List[str]:
    """The blobs of param_groups that the step lacks: DCP, for one, keeps them in another way."""
    from . import _state

    wanted = [c + GROUPS for c in _state.components_of(optims) if options.only in (None, c)]
    return [f"blob/{name}" for name in wanted if (name, 0) not in checkpoint.blobs]


def _groups(checkpoint: "Checkpoint", optims: Sequence[Any], options: _Options) -> List[Tuple[Any, Any]]:
    """(what takes them, param_groups) of each optimizer. Nothing is changed yet."""
    from . import _codec, _state
    from ._extra import OptimGroups

    found: List[Tuple[Any, Any]] = []
    for component, optim in zip(_state.components_of(optims), optims):
        if options.only not in (None, component) or (component + GROUPS, 0) not in checkpoint.blobs:
            continue
        saved = _codec.decode(checkpoint.blob(component + GROUPS, options.rank % checkpoint.world_size))
        if len(saved["groups"]) != len(optim.param_groups):
            have, need = len(saved["groups"]), len(optim.param_groups)
            text = f"{component}: the step has {have} param_groups, and the optimizer {need}; nothing was written"
            raise error("restore", errno.EMEDIUMTYPE, text)
        found.append((OptimGroups(optim).load_state_dict, saved))
    return found


# --- elements ---


def held(layout: Layout, rank: int) -> List[List[Run]]:
    """For each tensor dimension the indices that a rank holds, by a layout without boxes (docs/LAYOUTS.md)."""
    from . import _layout, _mesh

    lists = [[Run(0, n, 0)] if n else [] for n in layout.shape]
    coord = _mesh.coordinate(layout.mesh, rank) if layout.mesh is not None else None
    if layout.mesh is None or coord is None:
        return [[] for _ in lists]
    cuts: Optional[List[Any]] = [
        _layout._Cut(p.mesh_dim, layout.mesh.sizes[p.mesh_dim], coord[p.mesh_dim], p.tensor_dim, max(p.split_factor, 1))
        for p in layout.placements
        if p.how == _layout.SHARD
    ]
    if layout.mode == _layout.TORCH_ORDER:
        cuts = _layout.order_of(cuts or [])
    for cut in cuts or []:
        lists[cut.dim] = _cut(lists[cut.dim], cut.size, cut.coord, cut.factor)
    return lists


def _cut(runs: List[Run], parts: int, part: int, factor: int) -> List[Run]:
    """Part `part` of torch.chunk(parts) of each of the `factor` pieces of a list: torch's _StridedShard; factor 1:
    Shard.
    """
    n = sum(run.stop - run.start for run in runs)
    each = -(-n // factor)
    result: List[Run] = []
    for begin in range(0, n, each or 1):
        length = min(each, n - begin)
        chunk = -(-length // parts)
        result += _positions(runs, begin + min(part * chunk, length), begin + min((part + 1) * chunk, length), result)
    return result


def _positions(runs: List[Run], first: int, last: int, before: List[Run]) -> List[Run]:
    """Positions [first, last) of a list, numbered on from `before`."""
    at = before[-1].at + before[-1].stop - before[-1].start if before else 0
    found = []
    for run in runs:
        a, b = max(first, run.at), min(last, run.at + run.stop - run.start)
        if a < b:
            found.append(Run(run.start + a - run.at, run.start + b - run.at, at))
            at += b - a
    return found


def fill_parts(key: str, saved: "Tensor", layout: Layout, rank: int) -> None:
    """Fill the local tensors of a layout with what this rank holds. key: for messages."""
    import torch

    with torch.no_grad():
        for part in layout.parts:
            local = part.local.detach()
            if part.start is not None and part.extent is not None:
                copy_into(local, saved, [Range(s, 1, n) for s, n in zip(part.start, part.extent)])
                continue
            lists = held(layout, rank)
            if tuple(sum(r.stop - r.start for r in runs) for runs in lists) != tuple(local.shape):
                text = f"{key}: its local tensor has shape {tuple(local.shape)}, which is not what its layout says"
                raise error("load", errno.EINVAL, text)
            at = boxes_of([[Run(r.at, r.at + r.stop - r.start, 0) for r in runs] for runs in lists])
            for (start, extent), (to, _) in zip(boxes_of(lists), at):
                into = local[tuple(slice(t, t + n) for t, n in zip(to, extent))]
                copy_into(into, saved, [Range(s, 1, n) for s, n in zip(start, extent)])


def copy_into(into: "torch.Tensor", saved: "Tensor", ranges: Sequence[Range]) -> None:
    """Elements of the step, cast if the dtypes differ: from F32 to BF16 and F16 as ckptd rounds them."""
    import torch

    if into.dtype == saved.dtype:
        return saved.read_into(into, ranges)
    found = saved.read(ranges)
    if found.dtype is torch.float32 and into.dtype in (torch.bfloat16, torch.float16):
        found = rounded(found, into.dtype)
    into.copy_(found)
