# SPDX-License-Identifier: Apache-2.0
"""The binding of libckpt.so: one method of `Handle` for each call of ckpt/ckpt.h, which says what each of them means.

Called by `run`, `_memory`, `_extra` and the tests. Standard library only; torch is not imported. Times are in seconds, sizes in
bytes, addresses are ints. Results below zero are exceptions (`errors`); results above zero (CKPT_SKIPPED, ...) are returned.

Invariants: no call holds the GIL while it is in the library. What C may still read or write is kept alive by the handle. The
fast calls (snapshot, guard, last) allocate nothing in C and no structure here. After a fork, a handle works in the parent only.

Threads: one at a time per handle; a second one gets WrongThread. wait, stats, why, stop and notices may be called beside any
other call. A call that waits can be interrupted (Ctrl-C) within WAIT_SLICE seconds, but for restore, which all ranks do
together.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import dataclasses
import errno
import logging
import mmap
import os
import re
import sys
import threading
import time
import weakref
from ctypes import POINTER, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _find, errors
from ._abi import *
from ._types import Entry, Mesh, Part

log = logging.getLogger("ckptd")
log.addHandler(logging.NullHandler())  # nothing is printed unless the program configures logging

WAIT_SLICE = 0.2  # seconds: how long a wait stays in the library before it looks for signals and detach
NOTES_MAX = 16
AT_EXIT_STAGED = 5.0  # seconds that the end of the interpreter waits for the copy of the last snapshot
_STEPS_MAX = 128  # the library returns at most so many
_BLOB_ROOM = 1 << 30  # the largest cap: address space, not memory
_LEVELS = {3: logging.ERROR, 4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
_NOTICES_MAX = 256


# --- the library ---
def _signatures() -> Dict[str, Tuple[Any, ...]]:
    """Arguments of each call, and c_int as its result unless the last item is ("returns", type)."""
    c, err = c_void_p, c_void_p
    return {
        "ckpt_attach": (POINTER(ckpt_opts), POINTER(c_void_p), err),
        "ckpt_mesh": (c, c_uint32, POINTER(c_char_p), POINTER(c_uint32), POINTER(c_uint32), POINTER(c_uint32), err),
        "ckpt_alloc": (c, c_uint64, POINTER(c_void_p), err),
        "ckpt_tensor_add": (c, POINTER(ckpt_tensor), POINTER(c_uint32), err),
        "ckpt_tensor_move": (c, c_uint32, c_void_p, c_uint32, err),
        "ckpt_tensor_drop": (c, c_uint32),
        "ckpt_blob_add": (c, c_char_p, c_int, c_void_p, c_void_p, c_uint64, err),
        "ckpt_blob_resize": (c, c_char_p, c_uint64, err),
        "ckpt_average": (c, c_char_p, c_char_p, err),
        "ckpt_seal": (c, c_uint64, err),
        "ckpt_snapshot": (c, c_uint64, c_void_p),
        "ckpt_guard": (c, c_void_p),
        "ckpt_wait": (c, c_uint64, c_int, c_uint64, err),
        "ckpt_steps": (c, POINTER(ckpt_step), c_uint32),
        "ckpt_tensors": (c, POINTER(ckpt_want), TENSOR_FN, c_void_p, err),
        "ckpt_unmatched": (c, TENSOR_FN, c_void_p),
        "ckpt_restore": (c, POINTER(ckpt_want), POINTER(ckpt_got), err),
        "ckpt_blob_read": (c, c_char_p, c_uint32, c_void_p, c_uint64, POINTER(c_uint64)),
        "ckpt_fingerprint": (c, c_uint32, POINTER(c_uint64)),
        "ckpt_stats": (c, POINTER(ckpt_stats)),
        "ckpt_fresh": (c,),
        "ckpt_why": (c, err),
        "ckpt_detach": (c, c_uint64),
    }


def load(path: Optional[str] = None) -> ctypes.CDLL:
    """Load a libckpt.so and check that it is the one this package was written for.

    VersionMismatch: its version, or the size of a structure, is another; both versions and the file are named.
    LibraryMissing: there is none.
    """
    path = path or _find.library()
    try:
        lib = ctypes.CDLL(path)  # never PyDLL: it would hold the GIL
    except OSError as e:
        if path == _find.SONAME:
            raise _find.missing() from e
        raise errors.error("load", errno.ELIBACC, "%s cannot be loaded: %s" % (path, e)) from e
    try:
        lib.ckpt_version.restype = c_char_p
        lib.ckpt_version.argtypes = ()
        lib.ckpt_sizeof.restype = c_uint32
        lib.ckpt_sizeof.argtypes = (c_char_p,)
        _check_version(lib, path)
        for name, args in _signatures().items():
            getattr(lib, name).argtypes = args
            getattr(lib, name).restype = c_int
    except AttributeError as e:
        text = "%s is no libckpt.so of version %s, which this package is made for: %s" % (path, CKPT_VERSION, e)
        raise errors.error("load", errno.EPROTO, text) from e
    return lib


def _check_version(lib: ctypes.CDLL, path: str) -> None:
    version = lib.ckpt_version().decode("utf-8", "replace")
    do = "use the libckpt.so of this package's version"
    if version != CKPT_VERSION:
        text = "%s is version %s, and this Python package is made for version %s: %s" % (path, version, CKPT_VERSION, do)
        raise errors.error("load", errno.EPROTO, text)
    for structure in STRUCTURES:
        theirs, ours = lib.ckpt_sizeof(structure.__name__.encode()), ctypes.sizeof(structure)
        if theirs != ours:
            text = "%s: version %s, where struct %s has %d bytes; in this Python package, also version %s, it has %d: %s" % (
                path, version, structure.__name__, theirs, CKPT_VERSION, ours, do)  # fmt: skip
            raise errors.error("load", errno.EPROTO, text)


_library: Optional[ctypes.CDLL] = None
_library_lock = threading.Lock()


def library() -> ctypes.CDLL:
    """The library, loaded and checked once. See load()."""
    global _library
    with _library_lock:
        if _library is None:
            _library = load()
        return _library


# --- what calls return ---
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """A restorable step. where: 1 memory, 2 disk, 3 both."""

    step: int
    bytes: int
    where: int
    complete: bool


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor or blob of a step (ckpt_tensor_info). rank: whose it is, of a blob per rank, else None. fp: None if unknown."""

    what: int  # enum ckpt_what
    component: str
    name: str
    of: str
    dtype: int
    role: int
    cls: int
    shape: Tuple[int, ...]  # global
    numel: int
    fp: Optional[int]
    step: int
    blob: bool
    media: int
    rank: Optional[int]
    text: str

    @property
    def key(self) -> str:
        return self.component + "/" + self.name


@dataclasses.dataclass(frozen=True)
class Got:
    """What a restore did (ckpt_got). where: 1 memory, 2 disk. passed, averages: texts, one thing a line."""

    step: int
    where: int
    world_saved: int
    ntensor: int
    nmissing: int
    nunused: int
    npassed: int
    id: str
    passed: str
    averages: str


@dataclasses.dataclass(frozen=True)
class Stats:
    """ckpt_stats; times in nanoseconds, as there."""

    taken: int
    skipped: int
    torn: int
    staged: int
    persisted: int
    committed: int
    failed: int
    last_committed_step: int
    stall_ns_sum: int
    stall_ns_max: int
    copy_bytes: int
    copy_ns: int
    unguarded: int
    reattached: int
    stall_log2_ns: Tuple[int, ...]
    staged_ns: int
    persisted_ns: int
    committed_ns: int


@dataclasses.dataclass(frozen=True)
class Notice:
    """A line of the library's log that a person should see. level: syslog's, 3 error, 4 warning."""

    level: int
    text: str


class Blob:
    """Bytes that each snapshot copies by value. Made by Handle.blob_add; write() them before a snapshot."""

    def __init__(self, name: str, how: int, cap: int) -> None:
        self.name, self.how, self.cap = name, how, cap
        self._map, self.room = _reserve(cap)
        self._start = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._start)
        self.length = c_uint64(0)

    def write(self, data: Union[bytes, bytearray, memoryview]) -> None:
        """Set the bytes that the next snapshot copies. If they are more than .cap, call Handle.blob_resize before it.

        NoRoom: they are more than the 1 GiB that a blob may have (or than the address space that this process was given).
        """
        n = len(data)
        if n > self.room:
            text = "blob %s: %d bytes are more than the %d that it can have" % (self.name, n, self.room)
            raise errors.error("blob", errno.E2BIG, text)
        self._map[:n] = bytes(data)
        self.length.value = n

    @property
    def fits(self) -> bool:
        """False: the next snapshot would be skipped, until Handle.blob_resize gives more room."""
        return self.length.value <= self.cap


def _reserve(cap: int) -> Tuple[mmap.mmap, int]:
    """Address space for a blob that may grow: no memory is used until it is written."""
    room = max(_BLOB_ROOM, cap)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    while True:
        try:
            return mmap.mmap(-1, room, flags=flags), room
        except (OSError, ValueError, MemoryError):
            if room // 2 < max(cap, mmap.PAGESIZE):
                raise
            room //= 2


# --- arguments ---
def _u64s(values: Sequence[int]) -> Any:
    return (c_uint64 * len(values))(*values)


def _name(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode("utf-8")


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _ns(seconds: float) -> int:
    return min(max(int(seconds * 1e9), 0), 2**63)


def _locals(parts: Iterable[Part]) -> Tuple[Any, int, List[Any]]:
    """struct ckpt_local of each part that has elements, their number, and the arrays that must outlive the call."""
    held = [part for part in parts if part.local.numel()]
    array = (ckpt_local * max(len(held), 1))()
    keep: List[Any] = []
    for to, part in zip(array, held):
        stride = part.local.stride()
        arrays = [(ctypes.c_int64 * len(stride))(*stride)]
        to.ptr = part.local.data_ptr()
        to.stride = ctypes.cast(arrays[0], POINTER(ctypes.c_int64))
        if part.start is not None and part.extent is not None:
            arrays += [_u64s(part.start), _u64s(part.extent)]
            to.start = ctypes.cast(arrays[1], POINTER(c_uint64))
            to.extent = ctypes.cast(arrays[2], POINTER(c_uint64))
        keep += arrays
    return array, len(held), keep


def _tensor(entry: Entry, mesh: int) -> Tuple[ckpt_tensor, List[Any]]:
    """struct ckpt_tensor of an entry, and what must outlive the call."""
    layout = entry.layout
    local, nlocal, keep = _locals(layout.parts)
    place = (ckpt_placement * max(len(layout.placements), 1))()
    for to, p in zip(place, layout.placements):
        to.how, to.reduce, to.mesh_dim, to.tensor_dim = p.how, p.reduce, p.mesh_dim, p.tensor_dim
        to.flags, to.split_factor = p.flags, p.split_factor
    shape = _u64s(layout.shape)
    t = ckpt_tensor(
        size=ctypes.sizeof(ckpt_tensor),
        cls=entry.cls,
        role=entry.role,
        dtype=entry.dtype,
        component=_name(entry.component),
        name=_name(entry.name),
        of=_name(entry.of),
        ndim=len(layout.shape),
        mesh=mesh,
        nplace=len(layout.placements),
        nlocal=nlocal,
        shape=ctypes.cast(shape, POINTER(c_uint64)),
        place=ctypes.cast(place, POINTER(ckpt_placement)),
        local=ctypes.cast(local, POINTER(ckpt_local)),
        mode=layout.mode,
    )
    return t, keep + [local, place, shape]


def _want(step: Optional[int], flags: int, only: Optional[str], timeout: float) -> ckpt_want:
    return ckpt_want(
        size=ctypes.sizeof(ckpt_want),
        flags=flags,
        step=CKPT_LATEST if step is None else step,
        only=_name(only),
        deadline_ns=_ns(timeout),
    )


def _tensor_info(x: ckpt_tensor_info) -> TensorInfo:
    return TensorInfo(
        what=x.what,
        component=_text(x.component),
        name=_text(x.name),
        of=_text(x.of),
        dtype=x.dtype,
        role=x.role,
        cls=x.cls,
        shape=tuple(x.shape[i] for i in range(x.ndim)),
        numel=x.numel,
        fp=x.fp if x.fp_known else None,
        step=x.step,
        blob=bool(x.blob),
        media=x.media,
        rank=None if x.rank == 2**32 - 1 else x.rank,
        text=_text(x.text),
    )


# --- the handle ---
_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class Handle:
    """One rank's attachment to the daemon (ckpt *). Made by Handle.attach.

    Every method raises ForkedError in a forked child, Detached after detach, and WrongThread while another thread is inside a
    call that is not [any] in ckpt.h.
    """

    def __init__(self, lib: ctypes.CDLL) -> None:
        """For attach only."""
        self._lib = lib
        self._c: Optional[int] = None
        self._pid = os.getpid()
        self._one = threading.Lock()  # held by the thread that is inside a call
        self._any = threading.Condition(threading.RLock())  # protects _inside; a signal's handler may come back into it
        self._inside = 0  # calls that are [any], and under way
        self._closing = False
        self._log_fn: Any = None
        self._agree_fn: Any = None
        self._queue: Deque[Notice] = collections.deque(maxlen=_NOTICES_MAX)
        self._meshes: Dict[Mesh, int] = {}
        self._blobs: Dict[str, Blob] = {}
        self._memory: Dict[int, Tuple[Any, ...]] = {}  # tensors' memory, by id
        self._left: List[Any] = []  # memory that a copy may still read: until the next guard
        self._last_step: Optional[int] = None
        self._waits_for = ""
        self._err = ckpt_err()
        self._mark = ckpt_mark(size=ctypes.sizeof(ckpt_mark))
        self._notes = (ckpt_note * NOTES_MAX)()
        self._mark.note = ctypes.cast(self._notes, POINTER(ckpt_note))
        self._mark_at = ctypes.addressof(self._mark)
        self._note_keys: Dict[str, bytes] = {}
        self._snapshot = lib.ckpt_snapshot
        self._guard = lib.ckpt_guard
        self.rank, self.world, self.job = 0, 1, ""

    @classmethod
    def attach(
        cls,
        *,
        store: Optional[Union[str, "os.PathLike[str]"]],
        job: Optional[str],
        rank: int = 0,
        world: int = 1,
        socket: Optional[str] = None,
        generation: int = 0,
        slots: int = 0,
        persist_every: int = 0,
        guard: int = CKPT_BOUNDED,
        guard_seconds: float = 0.0,
        memory_max: int = 0,
        check: int = 0,
        timeout: float = 0.0,
        flags: int = CKPT_AUTOSTART | CKPT_USE_ENV | CKPT_KEEP_MEMORY,
        agree: Optional[Callable[[int], int]] = None,
        lib: Optional[ctypes.CDLL] = None,
    ) -> "Handle":
        """ckpt_attach. Every option is that of struct ckpt_opts; 0 is its default.

        agree: returns the minimum over all ranks of its argument; called by restore. Without it all ranks are on this host.
        Without a daemon it succeeds detached, and the library keeps trying, unless flags has CKPT_REQUIRE. VersionMismatch,
        LibraryMissing: the library cannot be used. AlreadyAttached, Superseded, InvalidCall, NotSupported, NoRoom.
        """
        for what, value, bits in (
            ("rank", rank, 32), ("world", world, 32), ("generation", generation, 64), ("slots", slots, 32), ("check", check, 32),
            ("persist_every", persist_every, 32), ("memory_max", memory_max, 64), ("guard", guard, 32),
        ):  # fmt: skip
            if not 0 <= value < 2**bits:  # ctypes would cut it in silence
                raise errors.error("attach", errno.EINVAL, "%s is %d: it must be 0 to 2^%d - 1" % (what, value, bits))
        self = cls(lib or library())
        self._log_fn = LOG_FN(_log_to(self._queue))
        self._agree_fn = AGREE_FN(_agree_by(agree)) if agree else AGREE_FN()
        opts = ckpt_opts(
            size=ctypes.sizeof(ckpt_opts),
            flags=flags,
            job=_name(job),
            store=None if store is None else os.fsencode(store),
            socket=None if socket is None else os.fsencode(socket),
            rank=rank,
            world=world,
            generation=generation,
            agree=self._agree_fn,
            slots=slots,
            persist_every=persist_every,
            guard=guard,
            guard_ns=_ns(guard_seconds),
            memory_max=memory_max,
            log=self._log_fn,
            check=check,
            wait_ns=_ns(timeout),
        )
        handle = c_void_p()
        rc = self._lib.ckpt_attach(byref(opts), byref(handle), byref(self._err))
        if rc < 0:
            raise errors.error("attach", rc, _text(self._err.msg))
        self._c = handle.value
        self.rank, self.world, self.job = rank, world, job or os.environ.get("CKPTD_JOB", "")
        _handles.add(self)
        return self

    # --- who may call ---
    def _enter(self) -> int:
        """Begin a call that only one thread may be in. Whoever calls it calls self._one.release() afterwards."""
        if not self._one.acquire(False):
            self._mine()
            text = "another thread is inside a call of this handle: one thread at a time may use it"
            raise errors.error("call", errno.EDEADLK, text)
        c = self._c
        if c is None or self._pid != os.getpid():
            self._one.release()
            self._mine()
            raise errors.error("call", errno.ESHUTDOWN, "this handle was detached")
        return c

    def _mine(self) -> None:
        if self._pid != os.getpid():
            text = "this handle belongs to the parent process, %d: a forked child cannot use it" % self._pid
            raise errors.error("call", errno.ECHILD, text)

    def _enter_any(self) -> int:
        """Begin a call that may run beside others. Whoever calls it calls _leave_any afterwards."""
        self._mine()
        with self._any:
            c = self._c
            if c is None or self._closing:
                raise errors.error("call", errno.ESHUTDOWN, "this handle was detached")
            self._inside += 1
            return c

    def _leave_any(self) -> None:
        with self._any:
            self._inside -= 1
            if self._closing:
                self._any.notify_all()

    def _call(self, name: str, *args: Any) -> int:
        """A call with a struct ckpt_err as its last argument."""
        c = self._enter()
        self._err.code, self._err.msg = 0, b""
        try:
            rc: int = getattr(self._lib, "ckpt_" + name)(c, *args, byref(self._err))
            if rc < 0:
                raise errors.error(name, rc, _text(self._err.msg) or _say(name, rc))
            return rc
        finally:
            self._one.release()

    def _call_bare(self, name: str, *args: Any) -> int:
        """A call without one."""
        c = self._enter()
        try:
            rc: int = getattr(self._lib, "ckpt_" + name)(c, *args)
            if rc < 0:
                raise errors.error(name, rc, _say(name, rc))
            return rc
        finally:
            self._one.release()

    # --- declarations ---
    def mesh(self, mesh: Optional[Mesh]) -> int:
        """The number of a mesh (ckpt_mesh), declared once; None: CKPT_ALONE."""
        if mesh is None:
            return CKPT_ALONE
        known = self._meshes.get(mesh)
        if known is not None:
            return known
        names = (c_char_p * max(len(mesh.names), 1))(*[_name(n) for n in mesh.names])
        sizes = (c_uint32 * max(len(mesh.sizes), 1))(*mesh.sizes)
        count = 1
        for size in mesh.sizes:
            count *= size
        if len(mesh.names) != len(mesh.sizes) or len(mesh.ranks) != count:
            raise errors.error("mesh", errno.EINVAL, "the mesh %s does not have a name for each size, and a rank for each "
                               "coordinate" % (mesh,))  # fmt: skip
        ranks = (c_uint32 * max(len(mesh.ranks), 1))(*mesh.ranks)
        number = c_uint32()
        self._call("mesh", len(mesh.sizes), names, sizes, ranks, byref(number))
        self._meshes[mesh] = number.value
        return number.value

    def alloc(self, size: int) -> int:
        """The address of `size` bytes, zeroed, 2 MiB-aligned, that the daemon reads in place (ckpt_alloc). NoRoom."""
        if not 0 <= size < 2**63:
            raise errors.error("alloc", errno.EINVAL, "%d bytes cannot be allocated" % size)
        at = c_void_p()
        self._call("alloc", size, byref(at))
        return at.value or 0

    def tensor_add(self, entry: Entry) -> int:
        """Declare a tensor (ckpt_tensor_add); its id, which entry.id has too. Then seal."""
        t, keep = _tensor(entry, self.mesh(entry.layout.mesh))
        number = c_uint32()
        self._call("tensor_add", byref(t), byref(number))
        self._memory[number.value] = tuple(part.local for part in entry.layout.parts)
        entry.id = number.value
        del keep
        return entry.id

    def tensor_move(self, number: int, parts: Sequence[Part]) -> None:
        """The tensor lies in other memory now (ckpt_tensor_move). Then seal, on this rank alone."""
        local, n, keep = _locals(parts)
        self._call("tensor_move", number, local if n else None, n)
        self._left.append(self._memory.get(number))
        self._memory[number] = tuple(part.local for part in parts)
        del keep

    def tensor_drop(self, number: int) -> None:
        """The tensor is no longer saved or restored (ckpt_tensor_drop). Then seal, on all ranks."""
        self._call_bare("tensor_drop", number)
        self._left.append(self._memory.pop(number, None))

    def blob_add(self, name: str, cap: int, how: int = 0) -> Blob:
        """Declare bytes that each snapshot copies (ckpt_blob_add). how: CKPT_PER_RANK, CKPT_JSON, ... Then seal."""
        blob = Blob(name, how, cap)
        self._call("blob_add", _name(name), how, blob.address, ctypes.addressof(blob.length), cap)
        self._blobs[name] = blob
        return blob

    def blob_resize(self, name: str, cap: int) -> None:
        """Other room for a blob (ckpt_blob_resize). Then seal: on this rank alone if it is per rank, otherwise on all."""
        blob = self._blobs.get(name)
        if blob is not None and cap > blob.room:
            text = "blob %s: %d bytes are more than the %d that it can have" % (name, cap, blob.room)
            raise errors.error("blob_resize", errno.E2BIG, text)
        self._call("blob_resize", _name(name), cap)
        if blob is not None:
            blob.cap = cap

    def average(self, name: str, spec: Optional[str]) -> None:
        """Declare an average of the weights, or remove it with spec None (ckpt_average). Then seal, on all ranks."""
        self._call("average", _name(name), _name(spec))

    def seal(self, timeout: float = 60.0) -> int:
        """Send the declarations and wait for all ranks (ckpt_seal). 0: ready. CKPT_SKIPPED: not yet; .reason() says why."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            rc = self._call("seal", _ns(min(max(left, 0.0), WAIT_SLICE)))
            self._waits_for = _text(self._err.msg) if rc else ""
            if rc != CKPT_SKIPPED or left <= WAIT_SLICE:
                return rc

    def reason(self) -> str:
        """What the newest seal waits for: which ranks are missing, or that no daemon listens. Empty: it returned 0."""
        return self._waits_for

    # --- each step ---
    def snapshot(self, step: int, flags: int = 0, notes: Optional[Mapping[str, float]] = None) -> int:
        """ckpt_snapshot. flags: CKPT_PERSIST, ...; notes: at most 16 numbers. 0, CKPT_SKIPPED, CKPT_DETACHED, CKPT_FAILING.

        InvalidCall: the step does not grow. NotRestorable: the job has steps, and restore was not called. Superseded.
        """
        if not 0 <= step < 2**64:
            raise errors.error("snapshot", errno.EINVAL, "step %d must be 0 to 2^64 - 1" % step)
        c = self._enter()
        try:
            mark = self._mark_set(flags, notes) if flags or notes else None
            rc: int = self._snapshot(c, step, mark)
            if rc == 0 or rc == CKPT_FAILING:
                self._last_step = step
            if rc < 0:
                self._raise_why("snapshot", rc)
            return rc
        finally:
            self._one.release()

    def _mark_set(self, flags: int, notes: Optional[Mapping[str, float]]) -> int:
        self._mark.flags = flags
        n = 0
        for key, value in (notes or {}).items():
            if n == NOTES_MAX:
                raise errors.error("snapshot", errno.EINVAL, "a snapshot has at most %d notes, not %d" % (NOTES_MAX, len(notes or ())))
            raw = self._note_keys.get(key)
            if raw is None:
                raw = self._note_keys[key] = key.encode("utf-8")
            note = self._notes[n]
            note.key, note.value = raw, value
            n += 1
        self._mark.nnote = n
        return self._mark_at

    def _raise_why(self, call: str, rc: int) -> None:
        """The library's sentence, if ckpt_why has one for this very code."""
        known = self._lib.ckpt_why(self._c, byref(self._err)) == rc
        raise errors.error(call, rc, _text(self._err.msg) if known else _say(call, rc))

    def guard(self) -> int:
        """The state is about to change (ckpt_guard). 0 or CKPT_TORN."""
        c = self._enter()
        try:
            rc: int = self._guard(c, None)
            if self._left:
                self._left.clear()
            if rc < 0:
                raise errors.error("guard", rc, _say("guard", rc))
            return rc
        finally:
            self._one.release()

    def wait(self, step: int, state: int = CKPT_COMMITTED, timeout: float = 60.0) -> None:
        """[any] Wait until a step is CKPT_STAGED, CKPT_PERSISTED or CKPT_COMMITTED (ckpt_wait). TimedOut, NotSaved.

        Until it returns, this rank must not change the step's state.
        """
        c = self._enter_any()
        err = ckpt_err()
        until = time.monotonic() + timeout
        try:
            while True:
                left = until - time.monotonic()
                rc = self._lib.ckpt_wait(c, step, state, _ns(min(max(left, 0.0), WAIT_SLICE)), byref(err))
                if rc == -errno.ETIMEDOUT and left > WAIT_SLICE:
                    if self._closing:
                        raise errors.error("wait", errno.ESHUTDOWN, "this handle was detached while wait(%d) waited" % step)
                    continue
                if rc == 0:
                    return
                text = _text(err.msg)
                if rc == -errno.ETIMEDOUT:  # the library's sentence has the length of the slice
                    text = re.sub(r"after [0-9.]+ s$", "after %.1f s" % timeout, text)
                raise errors.error("wait", rc, text)
        finally:
            self._leave_any()

    # --- what there is ---
    def steps(self) -> List[StepInfo]:
        """The restorable steps, newest first (ckpt_steps). NoDaemon, TimedOut."""
        array = (ckpt_step * _STEPS_MAX)()
        n = self._call_bare("steps", array, _STEPS_MAX)
        return [StepInfo(x.step, x.bytes, x.where, bool(x.complete)) for x in array[:n]]

    def tensors(self, step: Optional[int] = None, flags: int = 0, only: Optional[str] = None) -> List[TensorInfo]:
        """What a step holds (ckpt_tensors); None: the newest. flags: CKPT_FROM_DISK, ... NothingToRestore, NoDaemon."""
        want = _want(step, flags, only, 0.0)
        fn, found = _collector()
        self._call("tensors", byref(want), fn, None)
        return found

    def unmatched(self) -> List[TensorInfo]:
        """What did not match in the newest restore: CKPT_MISSING, CKPT_UNUSED, CKPT_MISMATCH (ckpt_unmatched)."""
        fn, found = _collector()
        self._call_bare("unmatched", fn, None)
        return found

    def restore(
        self, step: Optional[int] = None, flags: int = 0, only: Optional[str] = None, timeout: float = 60.0
    ) -> Got:
        """Fill every declared tensor, on all ranks together (ckpt_restore); step None: the newest.

        timeout: how long to wait for the other ranks. NothingToRestore: start at step 0. NotFitting lists all mismatches.
        NotRestorable, Damaged, NotMapped, TimedOut, InvalidCall.
        """
        want = _want(step, flags, only, timeout)
        got = ckpt_got(size=ctypes.sizeof(ckpt_got))
        self._call("restore", byref(want), byref(got))
        return Got(
            step=got.step,
            where=got.where,
            world_saved=got.world_saved,
            ntensor=got.ntensor,
            nmissing=got.nmissing,
            nunused=got.nunused,
            npassed=got.npassed,
            id=_text(got.id),
            passed=_text(got.passed),
            averages=_text(got.averages),
        )

    def blob_read(self, name: str, old_rank: int = 0) -> bytes:
        """A blob of the restored step (ckpt_blob_read). old_rank: whose, of the job that wrote it. NothingToRestore."""
        length = c_uint64()
        raw = _name(name)
        try:
            self._call_bare("blob_read", raw, old_rank, None, 0, byref(length))
            buffer = ctypes.create_string_buffer(max(length.value, 1))
            self._call_bare("blob_read", raw, old_rank, buffer, length.value, byref(length))
        except errors.NothingToRestore as e:
            text = "the restored step has no blob %s of rank %d" % (name, old_rank)
            raise errors.error("blob_read", errno.ENOENT, text) from e
        return buffer.raw[: length.value]

    def fingerprint(self, number: int) -> int:
        """The sum over the elements of a tensor that this rank owns (ckpt_fingerprint)."""
        out = c_uint64()
        self._call_bare("fingerprint", number, byref(out))
        return out.value

    def fresh(self) -> None:
        """Start over although the job has committed steps (ckpt_fresh)."""
        self._call_bare("fresh")

    def stats(self) -> Stats:
        """[any] ckpt_stats."""
        s = ckpt_stats(size=ctypes.sizeof(ckpt_stats))
        c = self._enter_any()
        try:
            rc = self._lib.ckpt_stats(c, byref(s))
        finally:
            self._leave_any()
        if rc < 0:
            raise errors.error("stats", rc, _say("stats", rc))
        fields = {f.name: getattr(s, f.name) for f in dataclasses.fields(Stats)}
        fields["stall_log2_ns"] = tuple(s.stall_log2_ns)
        return Stats(**fields)

    def why(self) -> Optional[errors.CkptdError]:
        """[any] Why the newest snapshot took nothing or was torn, or steps are not written (ckpt_why). None: all is well."""
        err = ckpt_err()
        c = self._enter_any()
        try:
            rc = self._lib.ckpt_why(c, byref(err))
        finally:
            self._leave_any()
        return errors.error("wait", rc, _text(err.msg)) if rc < 0 else None

    def notices(self) -> List[Notice]:
        """[any] Lines of the library at level warning or error since the last call, oldest first; at most 256 are kept."""
        out: List[Notice] = []
        while True:
            try:
                out.append(self._queue.popleft())
            except IndexError:
                return out

    # --- the end ---
    @property
    def attached(self) -> bool:
        """False after detach, and in a forked child."""
        return self._c is not None and self._pid == os.getpid()

    def detach(self, drain: float = 0.0) -> None:
        """Detach this rank (ckpt_detach); a second call does nothing. drain: seconds to wait for the newest commit.

        Memory of alloc stays mapped (CKPT_KEEP_MEMORY). A wait of another thread ends with Detached. TimedOut and NotSaved: the
        newest step is not committed; the handle is detached all the same.
        """
        self._mine()
        if self._c is None:
            return
        c = self._enter()
        try:
            with self._any:
                self._closing = True
                while self._inside:
                    self._any.wait(WAIT_SLICE)
                self._c = None
            rc: int = self._lib.ckpt_detach(c, _ns(drain))
            self._blobs.clear()
            self._memory.clear()
            self._left.clear()
        finally:
            self._one.release()
        _handles.discard(self)
        if rc < 0:
            raise errors.error("wait", rc, "the newest step was not committed within %.1f s" % drain)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *args: object) -> None:
        self.detach()

    def __del__(self) -> None:
        try:
            if self._c is not None and self._pid == os.getpid() and not sys.is_finalizing():
                self.detach()
        except Exception:  # nobody could catch it, and nothing is printed
            pass


def _say(call: str, rc: int) -> str:
    return "%s failed: %s" % (call, os.strerror(-rc))


def _log_to(queue: Deque[Notice]) -> Callable[[Any, int, bytes], None]:
    """The library's log. It may be called by any thread, so it does not refer to the handle."""

    def take(_ctx: Any, level: int, line: bytes) -> None:
        try:
            text = _text(line)
            if level <= 4:
                queue.append(Notice(level, text))
            log.log(_LEVELS.get(level, logging.INFO), "%s", text)
        except Exception:  # of a handler of the user's logging: it must not reach C
            pass

    return take


def _agree_by(agree: Callable[[int], int]) -> Callable[[Any, int, Any], int]:
    def call(_ctx: Any, mine: int, ret_min: Any) -> int:
        try:
            ret_min[0] = agree(mine)
            return 0
        except Exception:
            log.exception("agree failed")
            return -errno.EIO

    return call


def _collector() -> Tuple[Any, List[TensorInfo]]:
    found: List[TensorInfo] = []

    def take(_arg: Any, t: Any) -> int:
        found.append(_tensor_info(t.contents))
        return 0

    return TENSOR_FN(take), found


@atexit.register
def _at_exit() -> None:
    """Detach what is attached, while library threads may still log: none of them runs into an interpreter that ends.

    A snapshot whose copy is under way is waited for: without it, detach's guard would give it up.
    """
    for handle in list(_handles):
        try:
            if not handle.attached:
                continue
            if handle._last_step is not None and not handle._one.locked():
                try:
                    handle.wait(handle._last_step, CKPT_STAGED, AT_EXIT_STAGED)
                except errors.CkptdError:
                    pass
            handle.detach()
        except Exception:
            pass
