# SPDX-License-Identifier: Apache-2.0
"""Training state in memory that the daemon reads: `class Arena` and `materialise`. `run` calls them.

A storage is torch's name for a piece of memory that one or more tensors share. `Arena.move_in` copies the bytes of
each storage into memory of `alloc` (ckpt_alloc), exchanges the storage's pointer, and frees the old memory. The
storage stays the same object, so parameters, views, DTensor locals, FSDP2's padded shards, tensors saved for backward
and the optimizer's lists all follow, and none of them is told. How `run` uses it:

    arena = Arena(handle.alloc)
    materialise(model, arena)                       # only if something is on the meta device
    arena.move_in(tensors_of(entries, [model]))     # what cannot be moved is returned, logged, and stays where it is
    ...                                             # call it again for state that is made later
    arena.close()                                   # after ckpt_detach: the tensors stay where they are and stay usable

**Exchange.** `UntypedStorage._swap_data_ptr_(other)` (torch 2.15) exchanges the DataPtr, the size, `resizable`, the
allocator and the access flags of two storages (c10::StorageImpl::swap_data_ptr). It asks that both are on one device
and that both have the same number of bytes, or one of them none. A copy-on-write storage gets its own memory first.
Tensors, sizes, strides and version counters do not change. A moved storage is not resizable: `storage.resize_()`
raises an error, where it would have left the daemon with other memory. Older versions of torch have no such call.
There each alias that is found gets `set_`: the tensors given, DTensor locals, FSDP2's padded shards. The storage's
use count tells whether a tensor is missing. Then the storage stays where it is, and the tensors that the garbage
collector knows are named. So no alias is ever left behind.

**What stays where it is** ("foreign", the library copies it through a thread): memory that torch cannot resize,
because numpy, safetensors, a file or another owner has it too; memory shared with other processes;
sparse tensors and unknown subclasses; memory of another run that is still attached in this process. Memory of CUDA
devices stays, too, and is not listed: the library copies it from there (`_cuda`). A tensor that was given away through
DLPack cannot be recognised: its consumer keeps a pointer to memory that is freed here. Export after attach, not before.

**How much.** ckpt_alloc makes all of its memory resident. One request for everything would double the memory of the
process, so `move_in` asks in pieces of at most the largest storage, 64 MiB, or a 64th of all, whichever is largest,
and frees the old memory as it goes. (Of tensors of less than two pages the C library keeps the old memory, for its
next use.) `materialise` asks once, for nothing has to be freed.

**Fork.** Memory from ckpt_alloc is shared with children of fork, as it is with the daemon. A DataLoader worker reads
the present parameters, not those of the time of the fork. If it writes to a parameter or a buffer, it writes to the
trainer's. A worker that changes a module must change a copy (`copy.deepcopy(module)`), as with `share_memory()`. Its
exit unmaps nothing in the parent and detaches nothing. `move_in` in a child moves into the child's own memory and
leaves the parent's alone.

**Threads.** Nobody may use the tensors while they are moved. A move takes as long as a copy of the bytes.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from typing import Union

from . import _cuda, _told

if TYPE_CHECKING:
    import torch

    from ckptd._types import Entry

_log = logging.getLogger("ckptd")

ALIGN = 64  # bytes: of each storage in the arena
PAGES = 2 << 20  # bytes: ckpt_alloc gives whole huge pages
PIECE_MIN = 64 << 20  # bytes: smaller pieces save no memory worth a mapping
PIECES_MAX = 64  # of one move; the library maps at most 4,096 segments for a rank
NAMES_SHOWN = 8  # in one line of the log
MADV_REMOVE = 9  # linux/mman.h


class Foreign(NamedTuple):
    """A storage that stays where it is."""

    names: Tuple[str, ...]  # of the tensors in it, as far as they were given; else their shapes
    nbytes: int
    reason: str


class Materialised(NamedTuple):
    """What `materialise` did. All of it is filled with zeros."""

    tensors: int
    nbytes: int
    # buffers that no checkpoint holds (persistent=False): no restore fills them, so the user must
    not_saved: Tuple[str, ...]


class _Piece:
    """Memory of one request. `used` bytes of it are given out."""

    def __init__(self, base: int, nbytes: int, pinned: bool) -> None:
        self.base = base
        self.nbytes = nbytes
        self.pinned = pinned
        self.used = 0
        self.pid = os.getpid()
        self.retired = False

    def take(self, nbytes: int) -> Optional[int]:
        """The address of nbytes of this piece that nobody has, or None."""
        if nbytes > self.nbytes - self.used:
            return None
        at = self.base + self.used
        self.used = min(self.nbytes, self.used + _up(nbytes, ALIGN))
        return at


class _Store:
    """One storage and what is known to lie in it."""

    def __init__(self, storage: "torch.UntypedStorage") -> None:
        self.storage = storage
        self.nbytes = storage.nbytes()
        self.names: List[str] = []
        self.aliases: List["torch.Tensor"] = []
        self.pinned = False
        self.on_device = False


# All memory that any arena of this process has asked for. It is never unmapped (CKPT_KEEP_MEMORY), and stays listed.
_pieces: List[_Piece] = []


class Arena:
    """Memory for training state.

    alloc(nbytes) returns the address of nbytes zeroed bytes, 64-byte aligned, that stay mapped until the process
    exits: ckpt_alloc with CKPT_KEEP_MEMORY. register(address, nbytes) locks pages for the GPU's copy engine and
    returns whether it could; None: cudaHostRegister, where torch has a CUDA runtime. It is called only for memory
    that replaces pinned memory."""

    def __init__(self, alloc: Callable[[int], int], register: Optional[Callable[[int, int], bool]] = None) -> None:
        self._alloc = alloc
        self._register = register if register is not None else cuda_register
        self._mine: List[_Piece] = []
        self._stay: Dict[int, Foreign] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""
        return sum(piece.nbytes for piece in self._mine)

    @property
    def used(self) -> int:
        """Bytes that storages have, with what aligns them."""
        return sum(piece.used for piece in self._mine)

    @property
    def foreign(self) -> Sequence[Foreign]:
        """What the last `move_in` left where it is."""
        return tuple(self._stay.values())

    def holds(self, address: int) -> bool:
        """Does this address lie in the arena?"""
        return any(piece.base <= address < piece.base + piece.nbytes for piece in self._mine)

    def move_in(self, tensors: "Iterable[Union[torch.Tensor, Tuple[str, torch.Tensor]]]") -> List[Foreign]:
        """Move every storage under these tensors into the arena, and return what stays where it is.

        A tensor may come with its name, which only the log uses. What is in the arena already, or on a CUDA device, is
        left alone. Gradients are not moved. If `alloc` raises an error, the rest stays where it is, with that reason.
        Errors: none.
        """
        import torch

        stores = _gather(tensors)
        refused: List[Tuple[_Store, str]] = []
        movable: List[_Store] = []
        for store in stores:
            if store.nbytes == 0 or store.on_device or self.holds(store.storage.data_ptr()):
                continue
            reason = _why_not(store.storage)
            if reason is None:
                store.pinned = _is_pinned(store.storage)
                movable.append(store)
            else:
                refused.append((store, reason))
        exchange: Callable[[_Store, int], Optional[str]] = _exchange if _swap_of(torch) else _Aliases(movable).exchange
        with torch.no_grad():
            for pinned in (False, True):
                refused += self._move([store for store in movable if store.pinned is pinned], pinned, exchange)
        del movable
        _give_back()
        known = self._stay
        self._stay = {id_: Foreign(tuple(s.names), s.nbytes, why) for s, why in refused for id_ in [s.storage._cdata]}
        _say([stay for key, stay in self._stay.items() if known.get(key) != stay])
        return list(self._stay.values())

    def reserve(self, nbytes: int, pinned: bool = False) -> None:
        """Ask once for nbytes that later calls of `storage` use. Errors: those of alloc; MemoryError if pages cannot
        be locked."""
        if nbytes > 0:
            self._ask(nbytes, pinned)

    def storage(self, nbytes: int, pinned: bool = False) -> "torch.UntypedStorage":
        """A new storage of zeros in the arena. Errors: as `reserve`."""
        if nbytes == 0:
            return _bytes_at(0, 0).untyped_storage()
        at = self._take(nbytes, pinned)
        if at is None:
            self._ask(nbytes, pinned)
            at = self._take(nbytes, pinned)
        assert at is not None
        return _bytes_at(at, nbytes).untyped_storage()

    def close(self) -> None:
        """The handle is detached. The memory stays, and so do the tensors in it; a later run may move them to its
        own."""
        for piece in self._mine:
            piece.retired = True

    def _take(self, nbytes: int, pinned: bool) -> Optional[int]:
        for piece in reversed(self._mine):
            if piece.pinned is pinned and piece.pid == os.getpid():
                at = piece.take(nbytes)
                if at is not None:
                    return at
        return None

    def _ask(self, nbytes: int, pinned: bool) -> None:
        nbytes = _up(nbytes, PAGES)
        base = self._alloc(nbytes)
        if base % ALIGN:
            raise ValueError(f"alloc({nbytes}) returned {base:#x}, which is not {ALIGN}-byte aligned")
        piece = _Piece(base, nbytes, pinned)
        if pinned and not self._register(base, nbytes):
            piece.pinned = False  # it is good memory for what need not be pinned
            self._mine.append(piece)
            _pieces.append(piece)
            raise MemoryError(f"{nbytes} bytes cannot be page-locked (cudaHostRegister), which this tensor needs")
        self._mine.append(piece)
        _pieces.append(piece)

    def _move(
        self, stores: List[_Store], pinned: bool, exchange: Callable[[_Store, int], Optional[str]]
    ) -> List[Tuple[_Store, str]]:
        """Move these storages, piece by piece. Returns those that stay, and why."""
        refused: List[Tuple[_Store, str]] = []
        total = sum(_up(store.nbytes, ALIGN) for store in stores)
        piece = max(PIECE_MIN, total // PIECES_MAX, max((store.nbytes for store in stores), default=0))
        for i, store in enumerate(stores):
            at = self._take(store.nbytes, pinned)
            if at is None:
                _give_back()
                try:
                    self._ask(_first(stores[i:], piece), pinned)
                except Exception as error:  # whatever alloc raises: the state is as good as before, only elsewhere
                    reason = f"no shared memory for it: {error}"
                    return refused + [(rest, reason) for rest in stores[i:]]
                at = self._take(store.nbytes, pinned)
                assert at is not None
            old = store.storage.data_ptr()
            reason_left = exchange(store, at)
            if reason_left is not None:
                refused.append((store, reason_left))
            else:
                _forget_old(old, store.nbytes)
        return refused


def tensors_of(
    entries: "Iterable[Entry]", modules: "Iterable[torch.nn.Module]" = ()
) -> "List[Tuple[str, torch.Tensor]]":
    """What `Arena.move_in` must be given for these entries, with names: the tensors, the views in their layouts, and
    the padded shards that FSDP2 keeps in these modules. Without `_swap_data_ptr_`, all aliases must be in one
    call."""
    found = []
    for entry in entries:
        found.append((entry.key, entry.home.value))
        found += [(entry.key, part.local) for part in entry.layout.parts if part.local is not entry.home.value]
    for module in modules:
        for param in fsdp_params(module):
            name = getattr(param, "_param_fqn", None) or param._module_info.param_name
            found.append((f"{name} (FSDP2's padded shard)", param._sharded_param_data))
            found.append((name, param.sharded_param))
    return found


def plain_tensors(tensor: "torch.Tensor") -> "Iterator[torch.Tensor]":
    """The plain tensors under a tensor: a DTensor's local, what a wrapper subclass flattens to, or the tensor
    itself."""
    local = getattr(tensor, "_local_tensor", None)
    shards = getattr(tensor, "_local_shards", None)  # LocalShardsWrapper
    if local is not None:
        yield from plain_tensors(local)
    elif isinstance(shards, (list, tuple)):
        for shard in shards:
            yield from plain_tensors(shard)
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(tensor, name))
    else:
        yield tensor


def fsdp_params(model: "torch.nn.Module") -> Iterator[Any]:
    """FSDP2's FSDPParam objects of a model, each once.

    torch 2.4 to 2.15: FSDPModule._get_fsdp_state() gives an FSDPState with `_fsdp_param_group` or, in newer ones, a
    list `_fsdp_param_groups`; a group has `fsdp_params`."""
    seen = set()
    for module in model.modules():
        get_state = getattr(module, "_get_fsdp_state", None)
        state = get_state() if get_state is not None else None
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for param in getattr(group, "fsdp_params", ()):
                if id(param) not in seen:
                    seen.add(id(param))
                    yield param


def cuda_register(address: int, nbytes: int) -> bool:
    """Lock pages so that a GPU copies from them directly; `Tensor.is_pinned()` is true for them then.

    FSDP2's CPUOffloadPolicy(pin_memory=True) looks at that before the first forward pass and moves what is not pinned
    into memory of its own, where the daemon would not see it. False: no CUDA runtime here, or it refused."""
    import torch

    if not torch.cuda.is_available():
        return False
    cuda: Any = torch.cuda
    result = cuda.cudart().cudaHostRegister(address, nbytes, 1)  # cudaHostRegisterPortable
    if int(result) != 0:
        _told.tell("cudaHostRegister", "cudaHostRegister of %d bytes failed: %s" % (nbytes, result), own=True)
    return int(result) == 0


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _first(stores: Sequence[_Store], piece: int) -> int:
    """Bytes that the first of these storages need together, as many as fit in a piece, and at least one."""
    need = 0
    for store in stores:
        more = _up(store.nbytes, ALIGN)
        if need and need + more > piece:
            break
        need += more
    return need


def _gather(tensors: "Iterable[Union[torch.Tensor, Tuple[str, torch.Tensor]]]") -> List[_Store]:
    """The storages under these tensors, each once, in order."""
    stores: Dict[int, _Store] = {}
    for given in tensors:
        name, tensor = given if isinstance(given, tuple) else ("", given)
        for plain in plain_tensors(tensor):
            try:
                storage = plain.untyped_storage()
            except (NotImplementedError, RuntimeError) as error:  # sparse, quantised by an opaque type, ...
                why = str(error).split("\n")[0]
                _told.tell(
                    "stays: no storage", f"{name or _looks(plain)} stays where it is: it has no storage ({why})", own=True
                )
                continue
            store = stores.setdefault(storage._cdata, _Store(storage))
            store.on_device = _cuda.index_of(plain) is not None
            label = name or _looks(plain)
            if label not in store.names:
                store.names.append(label)
            for alias in (plain, plain._base):  # a view keeps the tensor that it is a view of
                if alias is not None and not any(alias is known for known in store.aliases):
                    store.aliases.append(alias)
    return list(stores.values())


def _looks(tensor: "torch.Tensor") -> str:
    return f"a tensor of shape {list(tensor.shape)} and {str(tensor.dtype).replace('torch.', '')}"


def _why_not(storage: "torch.UntypedStorage") -> Optional[str]:
    """Why a storage must stay where it is. None: it can be moved."""
    if storage.device.type != "cpu":
        return f"it is on the {storage.device.type} device"
    address = storage.data_ptr()
    for piece in _pieces:
        if piece.base <= address < piece.base + piece.nbytes:
            if piece.retired or piece.pid != os.getpid():
                return None
            return "it lies in the memory of another run that is still attached in this process"
    if storage._get_filename() is not None:
        return "it is mapped from a file"
    if storage.is_shared():
        return "it is shared with other processes, or mapped from a file"
    if not storage.resizable():
        return "its memory has another owner too (numpy, safetensors, torch.load(mmap=True), ...)"
    return None


def _is_pinned(storage: "torch.UntypedStorage") -> bool:
    import torch

    return torch.cuda.is_available() and bool(storage.is_pinned())


def _swap_of(torch_: Any) -> Optional[Callable[[Any, Any], None]]:
    """UntypedStorage._swap_data_ptr_, where torch has it: 2.15."""
    return getattr(torch_.UntypedStorage, "_swap_data_ptr_", None)


def exchanges() -> bool:
    """Do tensors that are moved stay what they are, and their views too?"""
    import torch

    return _swap_of(torch) is not None


def _bytes_at(address: int, nbytes: int) -> "torch.Tensor":
    """The memory at this address, as a uint8 tensor of a storage of its own, which does not own the memory."""
    import torch

    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)


def _all_bytes(storage: "torch.UntypedStorage") -> "torch.Tensor":
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _exchange(store: _Store, at: int) -> Optional[str]:
    """Copy a storage's bytes to this address and exchange its pointer. The old memory is freed on return."""
    new = _bytes_at(at, store.nbytes)
    new.copy_(_all_bytes(store.storage))
    exchanged: Any = store.storage
    exchanged._swap_data_ptr_(new.untyped_storage())
    return None


class _Aliases:
    """Moves storages by `set_`, where torch cannot exchange pointers. A storage with an alias that is not known
    stays."""

    def __init__(self, stores: Iterable[_Store]) -> None:
        import torch

        # How many tensors and storage objects hold a storage. torch 2.1 to 2.15; without it only gc is asked.
        self._use_count = getattr(torch._C, "_storage_Use_Count", None)
        self._by_gc: Dict[int, List["torch.Tensor"]] = {store.storage._cdata: [] for store in stores}
        known = {id(alias) for store in stores for alias in store.aliases}
        for seen in gc.get_objects():
            if issubclass(type(seen), torch.Tensor) and id(seen) not in known:
                try:
                    self._by_gc[seen.untyped_storage()._cdata].append(seen)
                except Exception:
                    # of another storage, or without one; a lazy module's parameter and a class of the user may
                    # raise anything
                    pass

    def exchange(self, store: _Store, at: int) -> Optional[str]:
        """As `_exchange`, or the reason why the storage stays."""
        import torch

        others = self._by_gc[store.storage._cdata]
        missing = len(others)
        if self._use_count is not None:  # one for store.storage itself
            missing = self._use_count(store.storage._cdata) - len(store.aliases) - 1
        if missing or others:
            named = ", ".join(_looks(other) for other in others[:NAMES_SHOWN])
            return (
                f"torch {_torch_version()} cannot exchange a storage's memory, and {max(missing, len(others))} more "
                f"tensors share it{' (' + named + ')' if named else ''}"
            )
        new = _bytes_at(at, store.nbytes)
        new.copy_(_all_bytes(store.storage))
        storage = new.untyped_storage()
        for alias in store.aliases:
            # Not alias.set_(): it forgets the parameter's gradient accumulator, on which DDP has its hooks, and every
            # rank would train on its own gradients from then on. It counts as a change of the values, too.
            new = torch.empty(0, dtype=alias.dtype)
            alias.data = new.set_(storage, alias.storage_offset(), alias.size(), alias.stride())
        store.storage = storage
        return None


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


_libc = ctypes.CDLL(None)


def _forget_old(address: int, nbytes: int) -> None:
    """If a storage lay in memory of an arena that is closed, give its pages back: nothing unmaps that memory."""
    for piece in _pieces:
        if piece.retired and piece.pid == os.getpid() and piece.base <= address < piece.base + piece.nbytes:
            page = os.sysconf("SC_PAGESIZE")
            first, end = _up(address, page), (address + nbytes) // page * page
            if end > first:
                _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), MADV_REMOVE)


def _give_back() -> None:
    """Return what the C library's heap and torch's cache of pinned memory keep of the freed memory."""
    import torch

    trim = getattr(_libc, "malloc_trim", None)  # glibc
    if trim is not None:
        trim(ctypes.c_size_t(0))
    empty = getattr(torch._C, "_host_emptyCache", None)  # torch 2.5 to 2.15
    if empty is not None and torch.cuda.is_available():
        empty()


def _say(stays: Sequence[Foreign]) -> None:
    """A warning for each reason."""
    by_reason: Dict[str, List[Foreign]] = {}
    for stay in stays:
        by_reason.setdefault(stay.reason, []).append(stay)
    for reason, some in by_reason.items():
        names = [name for stay in some for name in stay.names[:1]]
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        text = "%d bytes stay outside the daemon's memory, and a thread of this process copies them, because %s: %s%s" % (
            sum(stay.nbytes for stay in some), reason, ", ".join(names[:NAMES_SHOWN]), more,
        )  # fmt: skip
        _told.tell("stays: " + reason, text, own=True)


# --- the meta device ---


def meta_device(model: "torch.nn.Module") -> Optional[int]:
    """The CUDA device where tensors of this model that are on the meta device belong; None: in host memory, or there
    are none. It is that of FSDP2, unless FSDP2 offloads to the CPU; that of the mesh of DTensors; or where the model
    has its other tensors."""
    tensors = [t for kind in (model.parameters(), model.buffers()) for t in kind]
    metas = [t for t in tensors if t.is_meta]
    if not metas or any(getattr(param, "offload_to_cpu", False) for param in fsdp_params(model)):
        return None
    for tensor in metas:
        if getattr(getattr(getattr(tensor, "_spec", None), "mesh", None), "device_type", None) == "cuda":
            import torch

            return torch.cuda.current_device()
    return next((i for i in map(_cuda.index_of, tensors) if i is not None), None)


def materialise(
    model: "Union[torch.nn.Module, Sequence[torch.nn.Module]]", arena: Optional[Arena] = None
) -> Materialised:
    """Give every parameter and buffer on the meta device its memory, straight in the arena, filled with zeros. If they
    belong on a CUDA device (meta_device), they get memory of that device instead.

    The peak is 1.0 times what this rank holds. Parameters stay the same objects (torch.utils.swap_tensors), so an
    optimizer that was made before keeps them, ties stay ties, and attributes stay. FSDP2's padded shards are made
    here, so that its lazy_init finds them padded, and pinned if CPUOffloadPolicy(pin_memory=True) asks for it.
    Without an arena the memory is torch's own. What is not on the meta device is left alone.

    Next, `run.restore()` fills the model. If that returns 0, there was nothing to restore: the user initialises it,
    as after `model.to_empty()`, for example `model.init_weights()` or each module's `reset_parameters()`. Buffers
    that no checkpoint holds (persistent=False) are listed in the result and in the log, because no restore fills
    them.

    Errors: TypeError for a parameter whose shape or type is not known; MemoryError, or what alloc raises, without
    memory."""
    import torch

    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    slots = [slot for one in models for slot in _slots(one)]
    sharded = [param for one in models for param in fsdp_params(one) if param.sharded_param.is_meta]
    plan = _MetaPlan()
    for slot in slots:
        plan.add(slot.name, slot.tensor)
    for param in sharded:
        plan.add(str(param._module_info.param_name), param._sharded_param_data)
        plan.add(str(param._module_info.param_name), param.sharded_param)
    pinned = any(getattr(param, "pin_memory", False) for param in sharded)
    plan.allocate(arena, pinned, next((d for d in map(meta_device, models) if d is not None), None))
    done: Dict[int, "torch.Tensor"] = {}
    for slot in slots:
        if id(slot.tensor) not in done:
            done[id(slot.tensor)] = plan.become(slot.tensor)
        slot.mapping[slot.key] = done[id(slot.tensor)]
    for param in sharded:
        old = param.sharded_param
        param.sharded_param = done.get(id(old), old)
        if param.sharded_param.is_meta:  # not registered in its module: it is unsharded at the moment
            param.sharded_param = plan.become(old)
        param._sharded_param_data = plan.view(param._sharded_param_data)
    not_saved = tuple(slot.name for slot in slots if not slot.saved)
    if not_saved:
        text = "buffers that no checkpoint holds are zero after they left the meta device; set them yourself: %s"
        _told.tell("meta buffers", text % ", ".join(not_saved), own=True)
    return Materialised(len({id(slot.tensor) for slot in slots}), plan.nbytes, not_saved)


class _Slot(NamedTuple):
    """A place in a module that holds a tensor on the meta device."""

    name: str
    mapping: Dict[str, Any]  # module._parameters or module._buffers
    key: str
    tensor: "torch.Tensor"
    saved: bool  # in state_dict()


def _slots(model: "torch.nn.Module") -> Iterator[_Slot]:
    import torch.nn.parameter

    lazy: Any = torch.nn.parameter

    for path, module in model.named_modules():
        for mapping in (module._parameters, module._buffers):
            for key, tensor in mapping.items():
                name = f"{path}.{key}" if path else key
                if isinstance(tensor, lazy.UninitializedTensorMixin):
                    raise TypeError(f"{name} has no shape yet (lazy module): run a forward pass before ckptd.attach")
                if tensor is not None and tensor.is_meta:
                    yield _Slot(name, mapping, key, tensor, key not in module._non_persistent_buffers_set)


class _MetaPlan:
    """Memory for tensors on the meta device. Those that share a storage there share one here."""

    def __init__(self) -> None:
        # of each meta storage: the plain tensors in it, without repetition
        self._groups: Dict[int, List["torch.Tensor"]] = {}
        self._storages: Dict[int, "torch.UntypedStorage"] = {}
        self.nbytes = 0

    def add(self, name: str, tensor: "torch.Tensor") -> None:
        for plain in _meta_plain(name, tensor):
            group = self._groups.setdefault(plain.untyped_storage()._cdata, [])
            if not any(plain is known for known in group):
                group.append(plain)

    def allocate(self, arena: Optional[Arena], pinned: bool, index: Optional[int]) -> None:
        """One request for all of it. index: of a CUDA device; None: host memory."""
        import torch

        sizes = {key: self._need(group) for key, group in self._groups.items()}
        self.nbytes = sum(sizes.values())
        if arena is not None and index is None:
            arena.reserve(sum(_up(size, ALIGN) for size in sizes.values()), pinned)
        for key, size in sizes.items():
            if index is not None:
                self._storages[key] = torch.zeros(size, dtype=torch.uint8, device="cuda:%d" % index).untyped_storage()
            elif arena is not None:
                self._storages[key] = arena.storage(size, pinned)
            else:
                self._storages[key] = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned).untyped_storage()

    def view(self, plain: "torch.Tensor") -> "torch.Tensor":
        """The tensor that a plain one becomes: the same dtype, shape and, in a storage of several, the same place."""
        import torch

        key = plain.untyped_storage()._cdata
        offset, stride = plain.storage_offset(), plain.stride()
        if len(self._groups[key]) == 1:
            offset, stride = 0, torch.empty_like(plain).stride()
        new = torch.empty(0, dtype=plain.dtype, device=self._storages[key].device)
        with torch.no_grad():
            new.set_(self._storages[key], offset, plain.size(), stride)
        return new

    def become(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Make a parameter or buffer of the meta device a real one. Returns the object that is real now: `tensor`
        itself, or, if something holds on to its insides (a weak reference, a gradient's graph), a new one that takes
        its place."""
        import torch

        local = getattr(tensor, "_local_tensor", None)
        new = self.view(local if local is not None else tensor)
        if local is not None:
            new = _dtensor()(new, getattr(tensor, "_spec"), requires_grad=False)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        _take_over(tensor, new)
        try:
            utils: Any = torch.utils
            utils.swap_tensors(tensor, new)
            return tensor
        except RuntimeError as error:
            _log.info("a tensor on the meta device is replaced by another object: %s", str(error).split("\n")[0])
            return new

    @staticmethod
    def _need(group: "List[torch.Tensor]") -> int:
        """Bytes of the storage: up to the last element of any of its tensors; of one alone, what it needs itself."""
        if len(group) == 1:
            return group[0].numel() * group[0].element_size()
        return max(storage_end(tensor) for tensor in group)


def storage_end(plain: "torch.Tensor") -> int:
    """Bytes of its storage up to the end of a plain tensor; 0 for one without elements."""
    if plain.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(plain.size(), plain.stride()))
    return (int(plain.storage_offset()) + last + 1) * plain.element_size()


def _dtensor() -> Any:
    """torch.distributed.tensor; in torch 2.4 torch.distributed._tensor."""
    import importlib

    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        found = getattr(importlib.import_module(name), "DTensor", None)
        if found is not None:
            return found
    raise RuntimeError(f"torch {_torch_version()} has no DTensor")


def _meta_plain(name: str, tensor: "torch.Tensor") -> "List[torch.Tensor]":
    """The one plain tensor under a parameter, a buffer or a DTensor. Errors: TypeError for another subclass."""
    import torch

    local: "torch.Tensor" = getattr(tensor, "_local_tensor", tensor)
    usual = type(local) is torch.Tensor or isinstance(local, torch.nn.Parameter)
    if not usual or hasattr(local, "__tensor_flatten__"):
        raise TypeError(f"{name} is a {type(local).__name__} on the meta device: give it memory before ckptd.attach")
    return [local]


def _take_over(old: "torch.Tensor", new: "torch.Tensor") -> None:
    """What a user may have put on a tensor of the meta device: attributes, grad_dtype and hooks."""
    become: Any = new
    become.__dict__.update(old.__dict__)
    if getattr(old, "_has_grad_dtype_override", False):
        become.grad_dtype = getattr(old, "grad_dtype")
    for hook in (getattr(old, "_backward_hooks", None) or {}).values():
        become.register_hook(hook)
    for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
        become.register_post_accumulate_grad_hook(hook)
