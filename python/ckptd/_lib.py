# SPDX-License-Identifier: Apache-2.0
"""The binding of libckpt.so: one method of `Handle` for each call of ckpt/ckpt.h, which says what each of them means.

Called by `run`, `_memory`, `_extra` and the tests. Standard library only; torch is not imported. Times are in
seconds, sizes in bytes, addresses are ints. Results below zero are exceptions (`errors`); results above zero
(CKPT_SKIPPED, ...) are returned. This module has all names of `_abi` and `_values`, too.

Invariants: no call holds the GIL while it is in the library. What C may still read or write is kept alive by the
handle. The fast calls (snapshot, guard, last) allocate no structure. After a fork, a handle works in the parent only.

Threads: one at a time per handle; a second one gets WrongThread. wait, stats, why, stop and notices may be called
beside any other call. A call that waits can be interrupted (Ctrl-C) within WAIT_SLICE seconds. Only restore cannot:
all ranks do it together. If a signal comes while restore writes to the log, ctypes drops what its handler raises.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import dataclasses
import errno
import logging
import os
import re
import sys
import threading
import time
import weakref
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import errors
from ._abi import *
from ._load import library, load
from ._types import Devices, Entry, Mesh, Part
from ._values import *
from ._words import said

log = logging.getLogger("ckptd")

WAIT_SLICE = 0.2  # seconds: how long a wait stays in the library before it looks for signals and detach
NOTES_MAX = 16
AT_EXIT_STAGED = 5.0  # seconds that the end of the interpreter waits for the copy of the last snapshot
_STEPS_MAX = 128  # the library returns at most so many
_LEVELS = {3: logging.ERROR, 4: logging.WARNING, 5: logging.INFO, 6: logging.INFO, 7: logging.DEBUG}
_NOTICES_MAX = 256


_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_callbacks: Dict[int, Any] = {}  # what the library may call, by the address of its handle: until that is detached


class Handle:
    """One rank's attachment to the daemon (ckpt *). Made by Handle.attach.

    Every method raises ForkedError in a forked child, Detached after detach, and WrongThread while another thread is
    inside a call that is not [any] in ckpt.h.
    """

    def __init__(self, lib: ctypes.CDLL) -> None:
        """For attach only."""
        self._lib = lib
        self._c: Optional[int] = None
        self._pid = os.getpid()
        # Held by the thread that is inside a call. An exception of a signal's handler (Ctrl-C) can come between taking
        # it and the call. Then it stays held, and the same thread goes on all the same.
        self._one = threading.RLock()
        self._any = threading.Condition(threading.RLock())  # protects _inside; a signal's handler may come back into it
        self._inside: List[int] = []  # the threads of calls that are [any], and under way
        self._closing = False
        self._log_fn: Any = None
        self._agree_fn: Any = None
        self._queue: Deque[Notice] = collections.deque(maxlen=_NOTICES_MAX)
        self._meshes: Dict[Mesh, int] = {}
        self._blobs: Dict[str, Blob] = {}
        self._memory: Dict[int, Tuple[Any, ...]] = {}  # tensors' memory, by id
        self._left: List[Any] = []  # memory that a copy may still read: until the next guard
        self.devices: Optional[Devices] = None  # of the tensors; None: all of them are in host memory
        self._last_step: Optional[int] = None
        self._waits_for = ""
        self._err = ckpt_err()
        self._mark = ckpt_mark(size=ctypes.sizeof(ckpt_mark))
        self._notes = (ckpt_note * NOTES_MAX)()
        self._mark.note = ctypes.cast(self._notes, POINTER(ckpt_note))
        self._mark_at = ctypes.addressof(self._mark)
        self._before = ckpt_mark(size=ctypes.sizeof(ckpt_mark))  # what guard gives
        self._before_at = ctypes.addressof(self._before)
        self._streams = (ckpt_stream * 1)()  # those of further devices, in both
        self._note_keys: Dict[str, bytes] = {}
        self._now = ckpt_stats(size=ctypes.sizeof(ckpt_stats))
        self._snapshot = lib.ckpt_snapshot
        self._guard = lib.ckpt_guard
        self._last = lib.ckpt_last
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
        launch: int = 0,
        token: int = 0,
        run: int = 0,
        restart: int = 0,
        slots: int = 0,
        persist_every: int = 0,
        guard: int = CKPT_BOUNDED,
        guard_seconds: float = 0.0,
        memory_max: int = 0,
        check: int = 0,
        device: int = 0,
        copy_rate: int = 0,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_within: Optional[str] = None,
        keep_best: Optional[str] = None,
        timeout: float = 0.0,
        flags: int = CKPT_AUTOSTART | CKPT_USE_ENV | CKPT_KEEP_MEMORY,
        agree: Optional[Callable[[int], int]] = None,
        lib: Optional[ctypes.CDLL] = None,
    ) -> "Handle":
        """ckpt_attach. Every option is that of struct ckpt_opts; 0 is its default.

        agree: returns the minimum over all ranks of its argument; called by restore, and by attach if no number says
        which launch this is. None: all ranks are on this
        host. Without a daemon it succeeds detached, and the library keeps trying, unless flags has CKPT_REQUIRE.
        VersionMismatch, LibraryMissing: the library cannot be used. AlreadyAttached, Superseded, InvalidCall,
        NotSupported, NoRoom.
        """
        _in_32_bits(rank=rank, world=world, slots=slots, persist_every=persist_every, guard=guard, check=check)
        _in_32_bits(device=device, keep_last=keep_last)
        _in_64_bits(token=token, run=run, restart=restart, keep_every=keep_every)
        _in_64_bits(generation=generation, launch=launch, memory_max=memory_max, copy_rate=copy_rate)
        self = cls(lib or library())
        self._log_fn = LOG_FN(_log_to(self._queue))
        self._agree_fn = AGREE_FN(_agree_by(agree)) if agree else AGREE_FN()
        opts = ckpt_opts(
            size=ctypes.sizeof(ckpt_opts),
            flags=flags,
            job=to_name(job),
            store=to_path(store),
            socket=to_path(socket),
            rank=rank,
            world=world,
            generation=generation,
            agree=self._agree_fn,
            slots=slots,
            persist_every=persist_every,
            device=device,
            guard=guard,
            guard_ns=to_ns(guard_seconds),
            memory_max=memory_max,
            log=self._log_fn,
            check=check,
            wait_ns=to_ns(timeout),
            launch=launch,
            copy_rate=copy_rate,
            run=run,
            restart=restart,
            token=token,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_within=to_name(keep_within),
            keep_best=to_name(keep_best),
        )
        handle = c_void_p()
        rc = self._lib.ckpt_attach(byref(opts), byref(handle), byref(self._err))
        if rc < 0:
            raise errors.error("attach", rc, said(from_text(self._err.msg)))
        self._c = handle.value
        assert self._c is not None
        _callbacks[self._c] = (self._log_fn, self._agree_fn)
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
        if getattr(_logging, "now", False):
            self._one.release()
            text = "a handler of the log is inside a call of the library: it makes none"
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
            self._inside.append(threading.get_ident())
            return c

    def _leave_any(self) -> None:
        with self._any:
            self._inside.remove(threading.get_ident())
            if self._closing:
                self._any.notify_all()

    def _call(self, name: str, *args: Any) -> int:
        """A call with a struct ckpt_err as its last argument."""
        c = self._enter()
        self._err.code, self._err.msg = 0, b""
        try:
            rc: int = getattr(self._lib, "ckpt_" + name)(c, *args, byref(self._err))
            if rc < 0:
                raise errors.error(name, rc, said(from_text(self._err.msg)) or _say(name, rc))
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
        names = (c_char_p * max(len(mesh.names), 1))(*[to_name(n) for n in mesh.names])
        sizes = (c_uint32 * max(len(mesh.sizes), 1))(*mesh.sizes)
        count = 1
        for size in mesh.sizes:
            count *= size
        _in_32_bits(**{"a size of the mesh": max(mesh.sizes, default=0), "a rank of it": max(mesh.ranks, default=0)})
        if len(mesh.names) != len(mesh.sizes) or len(mesh.ranks) != count:
            text = "%s does not have a name for each size and a rank for each coordinate" % (mesh,)
            raise errors.error("mesh", errno.EINVAL, text)
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
        t, _keep = to_tensor(entry, self.mesh(entry.layout.mesh))
        number = c_uint32()
        self._call("tensor_add", byref(t), byref(number))
        self._memory[number.value] = held_of(entry.layout.parts)
        entry.id = number.value
        return entry.id

    def tensor_move(self, number: int, parts: Sequence[Part]) -> None:
        """The tensor lies in other memory now (ckpt_tensor_move). Then seal, on this rank alone."""
        local, n, _keep = to_locals(parts)
        self._call("tensor_move", number, local if n else None, n)
        self._left.append(self._memory.get(number))
        self._memory[number] = held_of(parts)

    def tensor_drop(self, number: int) -> None:
        """The tensor is no longer saved or restored (ckpt_tensor_drop). Then seal, on all ranks."""
        self._call_bare("tensor_drop", number)
        self._left.append(self._memory.pop(number, None))

    def blob_add(self, name: str, cap: int, how: int = 0) -> Blob:
        """Declare bytes that each snapshot copies (ckpt_blob_add). how: CKPT_PER_RANK, CKPT_JSON, ... Then seal."""
        blob = Blob(name, how, cap)
        self._call("blob_add", to_name(name), how, blob.address, ctypes.addressof(blob.length), cap)
        self._blobs[name] = blob
        return blob

    def blob_resize(self, name: str, cap: int) -> None:
        """Other room for a blob (ckpt_blob_resize). Then seal: on this rank alone if it is per rank, or else on all."""
        blob = self._blobs.get(name)
        if blob is not None and cap > blob.room:
            text = "blob %s: %d bytes are more than the %d that it can have" % (name, cap, blob.room)
            raise errors.error("blob_resize", errno.E2BIG, text)
        self._call("blob_resize", to_name(name), cap)
        if blob is not None:
            blob.cap = cap

    def average(self, name: str, spec: Optional[str]) -> None:
        """Declare an average of the weights, or remove it with spec None (ckpt_average). Then seal, on all ranks."""
        self._call("average", to_name(name), to_name(spec))

    def attr(self, key: str, value: Optional[str]) -> None:
        """Declare a key and a text that every later step has; None removes it (ckpt_attr). Then seal, on all ranks."""
        self._call("attr", to_name(key), to_name(value))

    def seal(self, timeout: float = 60.0) -> int:
        """Send the declarations, wait for all ranks (ckpt_seal). 0: ready. CKPT_SKIPPED: not yet; reason() says why."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            rc = self._call("seal", to_ns(min(max(left, 0.0), WAIT_SLICE)))
            self._waits_for = said(from_text(self._err.msg)) if rc else ""
            if rc != CKPT_SKIPPED or left <= WAIT_SLICE:
                return rc

    def reason(self) -> str:
        """What the newest seal waits for: which ranks are missing, or that no daemon listens. Empty: it returned 0."""
        return self._waits_for

    # --- each step ---
    def snapshot(
        self, step: int, flags: int = 0, notes: Optional[Mapping[str, float]] = None, wait: Optional[float] = None
    ) -> int:
        """ckpt_snapshot: 0, CKPT_SKIPPED, CKPT_DETACHED, CKPT_FAILING.

        flags: CKPT_FINAL, ...; notes: at most 16 numbers; wait: at most so many seconds for a slot (None: 60).

        InvalidCall: the step does not grow. NotRestorable: the job has steps, and restore was not called. Superseded.
        """
        if not 0 <= step < 2**64:
            raise errors.error("snapshot", errno.EINVAL, "step %d must be 0 to 2^64 - 1" % step)
        c = self._enter()
        try:
            mark = self._mark_set(flags, notes, wait) if flags or notes or self.devices else None
            before, self._last_step = self._last_step, step  # first: an exception (Ctrl-C) may follow the call
            rc: int = self._snapshot(c, step, mark)
            if rc != 0 and rc != CKPT_FAILING:
                self._last_step = before
            if rc < 0:
                self._raise_why("snapshot", rc)
            return rc
        finally:
            self._one.release()

    def _mark_set(self, flags: int, notes: Optional[Mapping[str, float]], wait: Optional[float]) -> int:
        self._mark.flags = flags
        self._mark.wait_ns = 0 if wait is None else max(to_ns(max(wait, 0.0)), 1)
        n = 0
        for key, value in (notes or {}).items():
            if n == NOTES_MAX:
                text = "a snapshot has at most %d notes, not %d" % (NOTES_MAX, len(notes or ()))
                raise errors.error("snapshot", errno.EINVAL, text)
            raw = self._note_keys.get(key)
            if raw is None:
                raw = self._note_keys[key] = to_name(key) or b""
            note = self._notes[n]
            note.key, note.value = raw, value
            n += 1
        self._mark.nnote = n
        self._streams_set(self._mark)
        return self._mark_at

    def _streams_set(self, mark: ckpt_mark) -> None:
        """The streams that change the state: of the device that was opened, and of the others."""
        streams = self.devices.streams() if self.devices is not None else ()
        if len(streams) > len(self._streams) + 1:
            self._streams = (ckpt_stream * (len(streams) - 1))()
        for i, (index, stream) in enumerate(streams):
            if i == 0:
                mark.stream = stream
            else:
                self._streams[i - 1].stream, self._streams[i - 1].device = stream, 1 + index
        mark.nstream = max(len(streams) - 1, 0)
        mark.more = self._streams

    def _raise_why(self, call: str, rc: int) -> None:
        """The library's sentence, if ckpt_why has one for this very code."""
        known = self._lib.ckpt_why(self._c, byref(self._err)) == rc
        raise errors.error(call, rc, said(from_text(self._err.msg)) if known else _say(call, rc))

    def guard(self) -> int:
        """The state is about to change (ckpt_guard). 0 or CKPT_TORN."""
        c = self._enter()
        try:
            mark = None
            if self.devices is not None:
                self._streams_set(self._before)
                mark = self._before_at
            rc: int = self._guard(c, mark)
            if self._left:
                self._left_free()
            if rc < 0:
                raise errors.error("guard", rc, _say("guard", rc))
            return rc
        finally:
            self._one.release()

    def _left_free(self) -> None:
        """Free memory that tensors have left. A copy on a device may be under way when guard returns: the streams that
        guard was given wait for it, and another stream that reuses the memory would not."""
        if self.devices is not None:
            if self.devices.capturing():
                return
            self.devices.settle()
        self._left.clear()

    def last(self, step: int) -> bool:
        """Is this step, which begins now, the last one on all ranks, because a rank called stop (ckpt_last)?"""
        if not 0 <= step < 2**64:
            raise errors.error("last", errno.EINVAL, "step %d must be 0 to 2^64 - 1" % step)
        c = self._enter()
        try:
            rc: int = self._last(c, step)
            if rc < 0:
                raise errors.error("last", rc, _say("last", rc))
            return rc != 0
        finally:
            self._one.release()

    def stop(self) -> None:
        """[any] The launch shall end: all ranks stop after the same step (ckpt_stop). A signal's handler may call
        it."""
        c = self._enter_any()
        try:
            rc = self._lib.ckpt_stop(c)
        finally:
            self._leave_any()
        if rc < 0:
            raise errors.error("stop", rc, _say("stop", rc))

    def wait(self, step: int, state: int = CKPT_COMMITTED, timeout: float = 60.0) -> None:
        """[any] Wait until a step is CKPT_STAGED, CKPT_PERSISTED or CKPT_COMMITTED (ckpt_wait). TimedOut, NotSaved.

        Until it returns, this rank must not change the step's state.
        """
        _in_64_bits(step=step)
        c = self._enter_any()
        err = ckpt_err()
        until = time.monotonic() + timeout
        try:
            while True:
                left = until - time.monotonic()
                rc = self._lib.ckpt_wait(c, step, state, to_ns(min(max(left, 0.0), WAIT_SLICE)), byref(err))
                if rc == -errno.ETIMEDOUT and left > WAIT_SLICE:
                    if not self._closing:
                        continue
                    text = "this handle was detached while it waited for step %d" % step
                    raise errors.error("wait", errno.ESHUTDOWN, text)
                if rc == 0:
                    return
                text = said(from_text(err.msg))
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
        want = to_want(step, flags, only, 0.0)
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

        timeout: how long to wait for the other ranks. NothingToRestore: start at step 0. NotFitting: all mismatches.
        NotRestorable, Damaged, NotMapped, TimedOut, InvalidCall.
        """
        want = to_want(step, flags, only, timeout)
        at = self.devices.streams() if self.devices is not None else ()
        streams = (ckpt_stream * len(at))(*(ckpt_stream(stream=s, device=1 + index) for index, s in at))
        want.nstream, want.more = len(at), streams
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
            id=from_text(got.id),
            passed=said(from_text(got.passed)),
            averages=from_text(got.averages),
        )

    def blob_read(self, name: str, old_rank: int = 0) -> bytes:
        """A blob of the restored step (ckpt_blob_read). old_rank: whose, of the job that wrote it. NothingToRestore."""
        _in_32_bits(old_rank=old_rank)
        length = c_uint64()
        raw = to_name(name)
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
        self._stats_into(s)
        fields = {f.name: getattr(s, f.name) for f in dataclasses.fields(Stats)}
        fields["stall_log2_ns"] = tuple(s.stall_log2_ns)
        return Stats(**fields)

    def committed(self) -> int:
        """[any] The newest committed step, of ckpt_stats: it makes no Stats."""
        self._stats_into(self._now)
        return int(self._now.last_committed_step)

    def _stats_into(self, s: ckpt_stats) -> None:
        c = self._enter_any()
        try:
            rc = self._lib.ckpt_stats(c, byref(s))
        finally:
            self._leave_any()
        if rc < 0:
            raise errors.error("stats", rc, _say("stats", rc))

    def why(self) -> Optional[errors.CkptdError]:
        """[any] Why the newest snapshot took nothing or was torn, or steps are not written (ckpt_why).

        None: all is well.

        Its kind is that of wait: NotSaved for a step that is torn.
        """
        err = ckpt_err()
        c = self._enter_any()
        try:
            rc = self._lib.ckpt_why(c, byref(err))
        finally:
            self._leave_any()
        return errors.error("wait", rc, said(from_text(err.msg))) if rc < 0 else None

    def notices(self) -> List[Notice]:
        """[any] The library's warnings and errors since the last call, oldest first; at most 256 are kept."""
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

        Memory of alloc stays mapped (CKPT_KEEP_MEMORY). A wait of another thread ends with Detached. TimedOut and
        NotSaved: the newest step is not committed; the handle is detached all the same. WrongThread: a signal's handler
        came into a call of this thread, or another thread is inside one.
        """
        self._mine()
        if self._c is None:
            return
        try:
            if drain > 0 and self._last_step is not None:
                self.wait(self._last_step, CKPT_COMMITTED, drain)
        finally:
            self._detach()

    def _is_inside(self) -> bool:
        """Is this thread inside an [any] call? _inside may still have it of a call that an exception ended at its
        entry."""
        calls = [getattr(type(self), name).__code__ for name in ("wait", "stats", "why", "stop")]
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code in calls and frame.f_locals.get("self") is self:
                return True
        return False

    def _detach(self) -> None:
        c = self._enter()
        try:
            with self._any:
                if self._is_inside():
                    text = "a signal's handler cannot detach while this thread is inside a call: raise, and detach then"
                    raise errors.error("detach", errno.EDEADLK, text)
                self._closing = True
                me = threading.get_ident()
                while any(thread != me for thread in self._inside):
                    self._any.wait(WAIT_SLICE)
                self._c = None
            self._lib.ckpt_detach(c, 0)
            _callbacks.pop(c, None)
            self._blobs.clear()
            self._memory.clear()
            self._left.clear()
        finally:
            self._one.release()
        _handles.discard(self)

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


def _in_32_bits(**values: int) -> None:
    in_bits(32, values)


def _in_64_bits(**values: int) -> None:
    in_bits(64, values)


_logging = threading.local()  # .now: this thread runs handlers of the log for the library


def _log_to(queue: Deque[Notice]) -> Callable[[Any, int, bytes], None]:
    """The library's log. It may be called by any thread, so it does not refer to the handle."""

    def take(_ctx: Any, level: int, line: bytes) -> None:
        _logging.now = True
        try:
            text = said(from_text(line))
            if level <= 4:
                queue.append(Notice(level, text))
            if log.hasHandlers():  # otherwise `_told` warns, once of each kind, and logging itself would on each rank
                log.log(_LEVELS.get(level, logging.INFO), "%s", text)
        except Exception:  # of a handler of the user's logging: it must not reach C
            pass
        finally:
            _logging.now = False

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
        found.append(from_tensor_info(t.contents))
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
            if handle._last_step is not None and handle._one.acquire(False):
                handle._one.release()
                try:
                    handle.wait(handle._last_step, CKPT_STAGED, AT_EXIT_STAGED)
                except errors.CkptdError:
                    pass
            handle.detach()
        except Exception:
            pass
