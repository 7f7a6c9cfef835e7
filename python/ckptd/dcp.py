# SPDX-License-Identifier: Apache-2.0
"""`ckptd.dcp`: native steps for programs that use torch.distributed.checkpoint (DCP).

    dcp.load(state, storage_reader=ckptd.dcp.Reader("ckpts/"))                     # any mesh, no daemon
    dcp.save(state, checkpoint_id="step-100", storage_writer=writer)               # through the daemon
    dcp.async_save(state, checkpoint_id="step-100", storage_writer=writer)

with `writer = ckptd.dcp.Writer(store="ckpts/", job="gpt")`, made once. It is for programs that are to stay with DCP's
calls: DCP still plans with collectives and copies the state, which `ckptd.attach` does not. DCP refuses to save some
layouts, for example uneven FSDP2 over tensor parallelism; attach saves those too.

DCP names a tensor by its path in the state dictionary, "model.wte.weight"; a checkpoint calls it "model/wte.weight".
The default rule is that of `fqn_of_key`, under which what attach saved loads into {"model": model.state_dict(),
"optim": get_optimizer_state_dict(model, optim)}, and the reverse. Requires torch.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import re
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import torch
from torch.distributed.checkpoint import metadata as _md
from torch.distributed.checkpoint import planner as _planner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _arguments, _fill, _layout, _reader
from ._pieces import DTYPES, Range
from ._types import Entry, Home, Layout, Part
from .errors import CkptdError, NothingToRestore, error

Path = Union[str, "os.PathLike[str]"]
BLOB = "dcp"  # the blob per rank in which a Writer keeps what is no tensor
_PREFIXES = (("model.", "model/"), ("optim.state.", "optim/"), ("optimizer.state.", "optimizer/"))
_REST = "dcp/"
_GROUPS = ".groups"  # ends the name of the blob of an optimizer's param_groups (_extra)
_ALIGN = 64


def key_of_fqn(fqn: str) -> str:
    """The key in a checkpoint of DCP's name for a tensor.

    "model.X" is "model/X", "optim.state.X" is "optim/X", "optimizer.state.X" is "optimizer/X", any other Y is "dcp/Y".
    """
    for prefix, component in _PREFIXES:
        if fqn.startswith(prefix) and len(fqn) > len(prefix):
            return component + fqn[len(prefix) :]
    return _REST + fqn


def fqn_of_key(key: str) -> str:
    """DCP's name for a tensor of a checkpoint: the reverse of key_of_fqn. "C/X" of another component C is "C.X"."""
    for prefix, component in _PREFIXES:
        if key.startswith(component):
            return prefix + key[len(component) :]
    return key[len(_REST) :] if key.startswith(_REST) else key.replace("/", ".", 1)


# --- what is no tensor ---


def _pack(items: Iterable[Tuple[str, bytes]], paths: Dict[str, Any]) -> bytes:
    """The blob of a rank: a line of JSON, then the bytes of the items. paths: of planner_data, for DCP's own tools."""
    index: Dict[str, Any] = {}
    tail: List[bytes] = []
    at = 0
    for fqn, data in items:
        index[fqn] = [at, len(data)]
        tail.append(data)
        at += len(data)
    head = json.dumps({"bytes": index, "paths": paths}, separators=(",", ":")).encode()
    return b"".join([head, b"\n", *tail])


def _unpack(blob: bytes, where: str) -> Tuple[Dict[str, bytes], Dict[str, Any]]:
    head, _, tail = blob.partition(b"\n")
    try:
        said = json.loads(head)
        found = {fqn: tail[at : at + size] for fqn, (at, size) in said["bytes"].items()}
        if any(len(found[fqn]) != size for fqn, (_, size) in said["bytes"].items()):
            raise ValueError("it ends too early")
        return found, {fqn: tuple(path) for fqn, path in said["paths"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise error("restore", errno.EPROTO, f"{where}: blob {BLOB} is not one that ckptd.dcp.Writer wrote: {e}") from e


# --- reading ---


class _Opened(NamedTuple):
    """What the coordinator gives each rank with its plan: the step that it opened."""

    id: Optional[str]
    path: str


class Reader(StorageReader):
    """A StorageReader of DCP on a committed native step. No daemon is needed, and any mesh may read it.

    path, store: as of ckptd.open; a checkpoint_id given to dcp.load counts instead of path. verify: check every byte
    first, on the coordinator. names: DCP's name for a key of the checkpoint, fqn_of_key by default; with `lambda key:
    key.split("/", 1)[1]` a plain `dcp.load(model.state_dict(), ...)` works; None leaves the tensor out. cast: also fill
    tensors of another dtype than the saved one; without it they are refused.

    All ranks read the step that the coordinator opens, also if path is a store to which the job still saves. Every rank
    reads only the elements that it asks for, from mapped files. A tensor is one chunk to DCP, however many
    pieces it has: so a plan has one item for each local tensor, and not one for each pair of pieces.
    """

    def __init__(
        self,
        path: Any = None,
        *,
        store: Any = None,
        verify: bool = False,
        names: Callable[[str], Optional[str]] = fqn_of_key,
        cast: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.store, self.names, self.cast = path, store, names, cast
        self._verify = verify
        self._checkpoint: Optional[_reader.Checkpoint] = None
        self._keys: Dict[str, str] = {}
        self._bytes: Dict[str, Optional[bytes]] = {}

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """DCP: a load begins."""
        self._checkpoint = None
        if checkpoint_id is not None:
            self.path = checkpoint_id

    @property
    def checkpoint(self) -> _reader.Checkpoint:
        """The step, opened at the first use: all that ckptd.open offers."""
        if self._checkpoint is None:
            if self.path is None:
                text = "which checkpoint? Give Reader a path, or dcp.load a checkpoint_id"
                raise error("restore", errno.EINVAL, text)
            self._checkpoint = _reader.open(self.path, store=self.store)
        return self._checkpoint

    def read_metadata(self, *args: Any, **kwargs: Any) -> _md.Metadata:
        """DCP: what there is. Called on every rank."""
        checkpoint = self.checkpoint
        state: Dict[str, Any] = {}
        paths: Dict[str, Any] = {}
        self._keys, self._bytes = {}, self._byte_items(paths)
        for key, tensor in checkpoint.items():
            fqn = self.names(key)
            if fqn is None or tensor.is_partial or not _has_dtype(tensor):
                continue
            if fqn in self._keys:
                text = f"names calls {self._keys[fqn]} and {key} both {fqn}"
                raise error("restore", errno.EINVAL, text)
            self._keys[fqn] = key
            state[fqn] = _tensor_metadata(tensor)
        for alias, key in checkpoint.aliases.items():
            fqn, same = self.names(alias), checkpoint.find(key)
            if fqn is not None and same is not None and fqn not in state:
                self._keys[fqn] = key
                state[fqn] = _tensor_metadata(same)
        for fqn in self._bytes:
            state.setdefault(fqn, _md.BytesStorageMetadata())
        planner_data = {fqn: paths.get(fqn) or _path_of(fqn, self._keys.get(fqn)) for fqn in state}
        storage_data = {index: None for index in _indices(state)}
        return _md.Metadata(state_dict_metadata=state, planner_data=planner_data, storage_data=storage_data)

    def _byte_items(self, paths: Dict[str, Any]) -> Dict[str, Optional[bytes]]:
        """What is no tensor: as a Writer kept it, and param_groups as attach kept them. None: it stays as the program
        has it.
        """
        found: Dict[str, Optional[bytes]] = {}
        for name, rank in self.checkpoint.blobs:
            if name == BLOB:
                items, more = _unpack(self.checkpoint.blob(name, rank), self.checkpoint.path)
                found.update(items)
                paths.update(more)
            elif name.endswith(_GROUPS) and rank in (None, 0):
                self._group_items(name[: -len(_GROUPS)], self.checkpoint.blob(name, rank), found, paths)
        return found

    def _group_items(
        self, component: str, blob: bytes, found: Dict[str, Optional[bytes]], paths: Dict[str, Any]
    ) -> None:
        """param_groups of attach, under the names that they have beside get_optimizer_state_dict's "state"."""
        from . import _codec
        from ._extra import READ_NOT

        probe = self.names(component + "/p")
        if probe is None or not probe.endswith("state.p"):
            return  # names says of no place for them
        top = probe[: -len("state.p")]
        saved = _codec.decode(blob)
        for i, group in enumerate(saved["groups"]):
            for key in {**group, **dict.fromkeys(READ_NOT)}:
                fqn = f"{top}param_groups.{i}.{key}"
                found[fqn] = None if key in READ_NOT else _saved_bytes(group[key])
                paths[fqn] = (*filter(None, top.rstrip(".").split(".")), "param_groups", i, key)
        for of, inner in saved.get("state", {}).items():
            for key, value in inner.items():
                found[f"{top}state.{of}.{key}"] = _saved_bytes(value)
                paths[f"{top}state.{of}.{key}"] = (*filter(None, top.rstrip(".").split(".")), "state", of, key)

    def set_up_storage_reader(self, metadata: _md.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """DCP: the metadata is known."""
        if self._verify and is_coordinator:
            self.checkpoint.verify()

    def prepare_local_plan(self, plan: _planner.LoadPlan) -> _planner.LoadPlan:
        """DCP: nothing to change."""
        return plan

    def prepare_global_plan(self, plans: List[_planner.LoadPlan]) -> List[_planner.LoadPlan]:
        """DCP, on the coordinator: each rank learns which step is read."""
        opened = _Opened(self.checkpoint.id, self.checkpoint.path)
        return [dataclasses.replace(plan, storage_data=opened) for plan in plans]

    def _follow(self, plan: _planner.LoadPlan) -> None:
        """Open the step that the coordinator opened. The newest one was another, if one was committed in between."""
        opened = plan.storage_data
        if not isinstance(opened, _Opened) or opened.id == self.checkpoint.id:
            return
        shapes = {fqn: self.checkpoint[key].shape for fqn, key in self._keys.items()}
        self._checkpoint = _reader.open(opened.path)
        Reader.read_metadata(self)
        for item in plan.items:
            fqn = item.storage_index.fqn
            if fqn in shapes and (fqn not in self._keys or shapes[fqn] != self._tensor(item).shape):
                text = f"{opened.path} was planned by another rank, and {fqn} has another shape there: load again"
                raise error("restore", errno.EMEDIUMTYPE, text)

    def read_data(self, plan: _planner.LoadPlan, planner: _planner.LoadPlanner) -> "Future[None]":
        """DCP: fill what this rank asked for, of the step that the coordinator opened.

        NotFitting lists every tensor of another dtype, before anything is written.
        """
        self._follow(plan)
        tensors = [item for item in plan.items if item.type != _planner.LoadItemType.BYTE_IO]
        own = _own_reading(tensors, planner)
        tensors = [item for item in tensors if item.dest_index.fqn not in own]
        if not self.cast:
            wanted = [(item.storage_index.fqn, planner.resolve_tensor(item).dtype) for item in tensors]
            self._check_dtypes(wanted + [(fqn, target.dtype) for fqn, target in own.items()])
        for item in plan.items:
            data = self._bytes.get(item.storage_index.fqn) if item.type == _planner.LoadItemType.BYTE_IO else None
            if data is not None:
                planner.load_bytes(item, io.BytesIO(data))
        for item in tensors:
            self._read(item, planner)
        for fqn, target in own.items():
            self._read_whole(self.checkpoint[self._keys[fqn]], target)
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _check_dtypes(self, wanted: List[Tuple[str, "torch.dtype"]]) -> None:
        lines = []
        for fqn, dtype in wanted:
            saved = self.checkpoint[self._keys[fqn]].dtype
            if saved != dtype:
                lines.append(f"  {fqn} is {dtype}, and {saved} in the checkpoint")
        if lines:
            text = f"{self.checkpoint.path} has other dtypes (Reader(cast=True) casts):"
            raise error("restore", errno.EMEDIUMTYPE, "\n".join([text, *sorted(set(lines))]))

    def _tensor(self, item: _planner.ReadItem) -> _reader.Tensor:
        return self.checkpoint[self._keys[item.storage_index.fqn]]

    def _read(self, item: _planner.ReadItem, planner: _planner.LoadPlanner) -> None:
        begin = tuple(item.storage_index.offset or ()) or (0,) * len(item.storage_offsets)
        start = [a + b for a, b in zip(begin, item.storage_offsets)]
        source = self._tensor(item)
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            text = f"DCP asks for {tuple(item.lengths)} elements of {source.key}, for a tensor of {tuple(target.shape)}"
            raise error("restore", errno.EINVAL, f"{text}: it cannot plan this layout; ckptd.load and attach can")
        _fill.copy_into(target, source, [Range(s, 1, n) for s, n in zip(start, item.lengths)])
        planner.commit_tensor(item, target)

    def _read_whole(self, source: _reader.Tensor, target: torch.Tensor) -> None:
        """Fill a DTensor by what ckptd knows of its layout."""
        rank, world = _fill.place()
        _fill.fill_parts(source.key, source, _layout.describe(target, rank=rank, world=world), rank)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """DCP: could this be the name of a checkpoint?"""
        return bool(os.fspath(checkpoint_id))


def _own_reading(items: List[_planner.ReadItem], planner: _planner.LoadPlanner) -> Dict[str, torch.Tensor]:
    """DTensors for which DCP's plan is not followed: of FSDP2 over tensor parallelism it takes a wrong box if rows are
    uneven, and of a mesh with ranks out of order another rank's.
    """
    state = getattr(planner, "state_dict", None)
    found: Dict[str, torch.Tensor] = {}
    for item in items:
        target: Any = state.get(item.dest_index.fqn) if isinstance(state, dict) else None
        if not _layout.is_dtensor(target):
            continue
        strided = any(type(p).__name__ == "_StridedShard" for p in target.placements)
        if strided or _layout.out_of_order(target):
            found[item.dest_index.fqn] = target
    return found


def _saved_bytes(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _has_dtype(tensor: _reader.Tensor) -> bool:
    return hasattr(torch, DTYPES.get(tensor.dtype_name, ""))


def _tensor_metadata(tensor: _reader.Tensor) -> _md.TensorStorageMetadata:
    size = torch.Size(tensor.shape)
    chunk = _md.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return _md.TensorStorageMetadata(properties=_md.TensorProperties(dtype=tensor.dtype), size=size, chunks=[chunk])


def _indices(state: Dict[str, Any]) -> Iterable[_md.MetadataIndex]:
    for fqn, what in state.items():
        if isinstance(what, _md.TensorStorageMetadata):
            yield _md.MetadataIndex(fqn, what.chunks[0].offsets, 0)
        else:
            yield _md.MetadataIndex(fqn)


def _path_of(fqn: str, key: Optional[str]) -> Tuple[Any, ...]:
    """Where DCP's own tools put a tensor in a nested dictionary: the FQN of a parameter is one level of it."""
    if key is None or fqn_of_key(key) != fqn:
        return (fqn,)
    if fqn.startswith(("optim.state.", "optimizer.state.")):
        top, _, rest = fqn.split(".", 2)
        of, _, name = rest.rpartition(".")
        return (top, "state", of, name) if of else (top, "state", name)
    top, _, rest = fqn.partition(".")
    return (top, rest) if key.startswith("model/") else (fqn,)


# --- writing ---


_run = time.time_ns()  # of this process, if it coordinates


@dataclasses.dataclass(frozen=True)
class _Place:
    """What the coordinator gives each rank with its plan: who it is, whatever process group DCP uses.

    launch: a number that no other launch of the job has, and higher than that of the one before. run: the same for all
    launches that this coordinator makes: a later one takes over from ranks that are still attached to the one before.
    """

    rank: int
    world: int
    launch: int
    run: int


@dataclasses.dataclass(frozen=True)
class _Item:
    """A box of a tensor that this rank writes. The same items need no new declarations."""

    fqn: str
    dtype: "torch.dtype"
    shape: Tuple[int, ...]
    start: Tuple[int, ...]
    extent: Tuple[int, ...]

    @property
    def nbytes(self) -> int:
        numel = 1
        for n in self.extent:
            numel *= n
        return numel * torch.empty(0, dtype=self.dtype).element_size()


class _Session:
    """A rank's handle, kept over saves, and what is declared on it. One thread at a time (the lock of its caller)."""

    def __init__(self, options: "_Options", place: _Place) -> None:
        from . import _abi, _lib

        self._abi = _abi
        self.options, self.place = options, place
        self.lock = threading.Lock()
        flags = _abi.CKPT_REQUIRE | _abi.CKPT_AUTOSTART | _abi.CKPT_USE_ENV | _abi.CKPT_KEEP_MEMORY
        self.handle = _lib.Handle.attach(
            store=options.store,
            job=options.job,
            socket=options.socket,
            rank=place.rank,
            world=place.world,
            launch=place.launch,
            run=place.run,
            restart=place.launch,
            timeout=options.timeout,
            flags=flags,
        )
        self._items: Tuple[_Item, ...] = ()
        self._ids: List[int] = []
        self._views: List[Tuple[_Item, torch.Tensor]] = []
        self._arena: Optional[torch.Tensor] = None
        self._blob = self.handle.blob_add(BLOB, 1 << 16, _abi.CKPT_PER_RANK)
        self._newest: Optional[int] = None
        self._is_begun = False

    def save(
        self, step: int, items: Tuple[_Item, ...], data: List[torch.Tensor], blob: bytes, key: Callable[[str], str]
    ) -> None:
        """Store a step, on all ranks together; return when it is committed."""
        if self._newest is not None and step <= self._newest:
            text = f"step {step} is not newer than step {self._newest} of job {self.options.job}, which is the newest"
            hint = "give a higher number; or to go back, a new Writer(resume=STEP) that says from which step"
            raise error("snapshot", errno.EINVAL, f"{text}: {hint}")
        self.handle.guard()
        if items != self._items:
            self._declare(items, key)
        for (_, view), source in zip(self._views, data):
            view.copy_(source.detach())
        if len(blob) > self._blob.cap:
            self.handle.blob_resize(BLOB, 2 * len(blob))
        self._blob.write(blob)
        self._seal()
        if not self._is_begun:
            self._begin(step)
            for (_, view), source in zip(self._views, data):
                view.copy_(source.detach())
        self._snapshot(step)
        self.handle.wait(step, self._abi.CKPT_COMMITTED, self.options.timeout)
        self._newest = step

    def _declare(self, items: Tuple[_Item, ...], key: Callable[[str], str]) -> None:
        for number in self._ids:
            self.handle.tensor_drop(number)
        self._ids, self._items = [], ()
        self._views = self._lay_out(items)
        parts: Dict[str, List[Part]] = {}
        of: Dict[str, _Item] = {}
        for item, view in self._views:
            of[item.fqn] = item
            part = parts.setdefault(item.fqn, [])
            if view.numel():
                part.append(Part(view, item.start, item.extent))
        for fqn, item in of.items():
            self._ids.append(self.handle.tensor_add(self._entry(key(fqn), item, tuple(parts[fqn]))))
        self._items = items

    def _lay_out(self, items: Tuple[_Item, ...]) -> List[Tuple[_Item, torch.Tensor]]:
        """A tensor for each item, in memory that the daemon reads in place. Memory is made anew only if it is too
        small.
        """
        import ctypes

        sizes = [-(-item.nbytes // _ALIGN) * _ALIGN for item in items]
        total = sum(sizes)
        if total and (self._arena is None or self._arena.numel() < total):
            buffer = (ctypes.c_ubyte * total).from_address(self.handle.alloc(total))
            self._arena = torch.frombuffer(buffer, dtype=torch.uint8)
        views, at = [], 0
        for item, size in zip(items, sizes):
            if item.nbytes and self._arena is not None:
                view = self._arena[at : at + item.nbytes].view(item.dtype).view(item.extent)
            else:
                view = torch.empty(item.extent, dtype=item.dtype)
            views.append((item, view))
            at += size
        return views

    def _entry(self, key: str, item: _Item, parts: Tuple[Part, ...]) -> Entry:
        component, _, name = key.partition("/")
        layout = Layout(item.shape, self._abi.CKPT_BOXES, None, (), parts)
        home = Home({}, None, torch.empty(0))
        role = self._role(component, name)
        return Entry(component, name, role, self._abi.CKPT_STABLE, self._dtype(item), layout, home)

    def _dtype(self, item: _Item) -> int:
        for name, known in DTYPES.items():
            if item.dtype == getattr(torch, known, None):
                return int(getattr(self._abi, "CKPT_" + name))
        raise error("save", errno.EOPNOTSUPP, f"{item.fqn} is {item.dtype}, which no checkpoint of ckptd holds")

    def _role(self, component: str, name: str) -> int:
        abi = self._abi
        if component == "model":
            return int(abi.CKPT_PARAM)
        last = name.rpartition(".")[2]
        roles = {"exp_avg": abi.CKPT_MOMENT1, "exp_avg_sq": abi.CKPT_MOMENT2, "step": abi.CKPT_COUNTER}
        return int(roles.get(last, abi.CKPT_OTHER)) if component.startswith("optim") else int(abi.CKPT_OTHER)

    def _seal(self) -> None:
        until = time.monotonic() + self.options.timeout
        while self.handle.seal(min(5.0, max(0.0, until - time.monotonic()))):
            if "no daemon" in self.handle.reason():
                raise error("save", errno.ECONNREFUSED, self.handle.reason())
            if time.monotonic() < until:
                continue
            text = f"the ranks were not ready within {self.options.timeout:.0f} s: {self.handle.reason()}"
            raise error("save", errno.ETIMEDOUT, text)

    def _begin(self, step: int) -> None:
        """Continue the job: no element is read. Steps above the one that it goes on from are set aside at the first
        commit.
        """
        abi = self._abi
        try:
            got = self.handle.restore(self.options.resume, abi.CKPT_LENIENT, "-", self.options.timeout)
            newest: Optional[int] = got.step
        except NothingToRestore:
            if self.options.resume is not None:
                raise
            newest = None
        self._is_begun, self._newest = True, newest
        if newest is not None and step <= newest:
            text = f"job {self.options.job} already has step {newest}, and step {step} is not newer"
            hint = "give a higher number; or to go back, Writer(resume=STEP) says from which step"
            raise error("snapshot", errno.EINVAL, f"{text}: {hint}")

    def _snapshot(self, step: int) -> None:
        abi = self._abi
        until = time.monotonic() + self.options.timeout
        while True:
            rc = self.handle.snapshot(step, abi.CKPT_PERSIST)
            if rc in (0, abi.CKPT_FAILING):
                return
            if rc == abi.CKPT_DETACHED:
                raise error("snapshot", errno.ECONNREFUSED, f"step {step} was not saved: ckptd has ended")
            if time.monotonic() > until:
                text = f"step {step} was not saved: no slot became free"
                raise self.handle.why() or error("snapshot", errno.ETIMEDOUT, text)
            time.sleep(0.005)  # rare: an older step is still being written


@dataclasses.dataclass(frozen=True)
class _Options:
    store: str
    job: str
    socket: Optional[str]
    resume: Optional[int]
    timeout: float


# Sessions by (process, options, rank). In DCP's background process a Writer is unpickled for each save, and must find
# its own.
_sessions: Dict[Tuple[int, _Options, int], _Session] = {}
_sessions_lock = threading.Lock()


class Writer(StorageWriter):
    """A StorageWriter of DCP that stores native steps through the daemon, for dcp.save and dcp.async_save (thread,
    process).

    store, job: as of ckptd.attach. The step's number: the digits at the end of checkpoint_id ("step-100", "ckpts/100"),
    or `step`, for one save. resume: the step that training went on from, if that is not the newest one: newer ones are
    then set aside. names: the key for a name of DCP, key_of_fqn by default; the reverse of the Reader's. timeout:
    seconds to wait for the other ranks, and for the commit.

    Make it once and keep it: the handle and the memory (a copy of what the rank saves, beside DCP's own) stay. A save
    returns when the step is committed. It never pretends: NoDaemon, NotSaved, NoRoom, TimedOut, Superseded; InvalidCall
    if the step is not newer than the newest one, on every rank alike. All ranks run on one host in this version. A
    rank's DCP plan may change from save to save. use_collectives=False is refused, because nobody then knows who saves
    what.
    """

    def __init__(
        self,
        store: Path,
        job: str,
        *,
        step: Optional[int] = None,
        resume: Optional[int] = None,
        names: Callable[[str], str] = key_of_fqn,
        socket: Optional[str] = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__()
        self._options = _Options(_arguments.store_of(store) or "", job, socket, resume, timeout)
        self.names = names
        self.step = step
        self._given = step

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """DCP: a save begins."""
        self.step = self._given
        if checkpoint_id is None:
            return
        digits = re.search(r"(\d+)/*$", os.fspath(checkpoint_id))
        if digits is None and self._given is None:
            text = f"checkpoint_id {os.fspath(checkpoint_id)!r} does not end in a step's number"
            raise error("save", errno.EINVAL, text)
        if digits is not None:
            self.step = int(digits.group(1))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """DCP: who am I?"""
        if kwargs.get("use_collectives") is False:
            text = "ckptd.dcp.Writer needs use_collectives=True: without it no two ranks agree who saves a replica"
            raise error("save", errno.EOPNOTSUPP, text)
        if self.step is None:
            text = "which step? Give dcp.save a checkpoint_id that ends in its number, or Writer a step"
            raise error("save", errno.EINVAL, text)

    def prepare_local_plan(self, plan: _planner.SavePlan) -> _planner.SavePlan:
        """DCP: nothing to change."""
        return plan

    def prepare_global_plan(self, plans: List[_planner.SavePlan]) -> List[_planner.SavePlan]:
        """DCP, on the coordinator: each rank learns its number in the process group that DCP uses."""
        world = len(plans)
        with _sessions_lock:
            kept = [s.place.launch for key, s in _sessions.items() if self._owns(key) and s.place.world == world]
        launch = kept[0] if kept else time.time_ns()
        return [dataclasses.replace(plan, storage_data=_Place(r, world, launch, _run)) for r, plan in enumerate(plans)]

    def write_data(self, plan: _planner.SavePlan, planner: _planner.SavePlanner) -> "Future[List[WriteResult]]":
        """DCP: store what the plan says, on every rank; it returns when the step is committed."""
        if self.step is None or not isinstance(plan.storage_data, _Place):
            raise error("save", errno.EINVAL, "DCP called write_data before it had planned the save")
        _check_order(planner)
        session = self._session(plan.storage_data)
        items, data, loose = [], [], []
        results = []
        for item in plan.items:
            value = planner.resolve_data(item)
            if isinstance(value, io.BytesIO):
                raw = bytes(value.getbuffer())
                loose.append((item.index.fqn, raw))
                results.append(WriteResult(index=item.index, size_in_bytes=len(raw), storage_data=None))
                continue
            items.append(_item_of(item, value))
            data.append(value)
            results.append(WriteResult(index=item.index, size_in_bytes=items[-1].nbytes, storage_data=None))
        paths = {i.index.fqn: (plan.planner_data or {}).get(i.index.fqn, (i.index.fqn,)) for i in plan.items}
        with session.lock:
            session.save(self.step, tuple(items), data, _pack(loose, paths), self.names)
        done: "Future[List[WriteResult]]" = Future()
        done.set_result(results)
        return done

    def _session(self, place: _Place) -> _Session:
        """This rank's session of the launch. One of another launch or world is ended: it would save alone."""
        with _sessions_lock:
            key = (os.getpid(), self._options, place.rank)
            if key in _sessions and _sessions[key].place != place:
                _sessions.pop(key).handle.detach()
            if key not in _sessions:
                _sessions[key] = _Session(self._options, place)
            return _sessions[key]

    def _owns(self, key: Tuple[int, _Options, int]) -> bool:
        return key[:2] == (os.getpid(), self._options)

    def finish(self, metadata: _md.Metadata, results: List[List[WriteResult]]) -> None:
        """DCP, on the coordinator: every rank has waited for the commit, so nothing is left to do."""
        metadata.storage_data = {result.index: None for rank in results for result in rank}

    def close(self) -> None:
        """Detach this process's ranks. The steps stay; memory that torch shows stays mapped."""
        with _sessions_lock:
            for key in filter(self._owns, list(_sessions)):
                _sessions.pop(key).handle.detach()

    def storage_meta(self) -> Optional[Any]:
        """DCP: what it may note about the storage."""
        meta = getattr(_md, "StorageMeta", None)
        return meta(checkpoint_id=str(self.step), save_id=f"{self._options.job}-{self.step}") if meta else None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """DCP: does it end in a step's number?"""
        return re.search(r"\d+/*$", os.fspath(checkpoint_id)) is not None


def _check_order(planner: _planner.SavePlanner) -> None:
    """Refuse, on every rank alike, tensors that DCP would save with the rows of one rank in the place of another's."""
    state = getattr(planner, "state_dict", None)
    names = sorted(fqn for fqn, t in (state or {}).items() if _layout.out_of_order(t))
    if names:
        text = ", ".join(names[:16]) + (", ..." if len(names) > 16 else "")
        text += ": the ranks of the mesh are not in the order of its process groups, and DCP would store the rows in the"
        text += " order of the mesh: save with ckptd.attach, or make the mesh with preserve_rank_order=True"
        raise error("save", errno.EOPNOTSUPP, text)


def _item_of(item: _planner.WriteItem, value: torch.Tensor) -> _Item:
    if item.tensor_data is None:
        raise error("save", errno.EINVAL, f"DCP's plan says nothing of the shape of {item.index.fqn}")
    chunk = item.tensor_data.chunk
    if tuple(value.shape) != tuple(chunk.sizes):
        text = f"{item.index.fqn}: DCP plans {tuple(chunk.sizes)}, and the tensor has {tuple(value.shape)}"
        raise error("save", errno.EINVAL, text)
    shape, start = tuple(item.tensor_data.size), tuple(chunk.offsets)
    return _Item(item.index.fqn, value.dtype, shape, start, tuple(chunk.sizes))
