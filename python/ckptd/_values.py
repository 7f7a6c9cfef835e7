# SPDX-License-Identifier: Apache-2.0
"""What goes into the calls of `_lib.Handle` and comes out of them, as Python values. See `_lib`.

Names are those of ckpt.h. The functions that begin with "to_" build C structures; what they return must outlive the
call.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import mmap
import os
from ctypes import POINTER, c_uint64
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import errors
from ._abi import *
from ._types import Entry, Part

BLOB_ROOM = 1 << 30  # the largest cap: address space, not memory


@dataclasses.dataclass(frozen=True)
class StepInfo:
    """A restorable step. where: 1 memory, 2 disk, 3 both."""

    step: int
    bytes: int
    where: int
    complete: bool


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor or blob of a step (ckpt_tensor_info). rank: whose a blob per rank is, else None. fp: None if unknown."""

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
    average_taken: int
    average_left_out: int
    average_waits: int
    average_wait_ns: int
    thinned: int


@dataclasses.dataclass(frozen=True)
class Notice:
    """A line of the library's log that a person should see. level: syslog's, 3 error, 4 warning."""

    level: int
    text: str


class Blob:
    """Bytes that each snapshot copies by value. Made by Handle.blob_add; write() them before a snapshot."""

    def __init__(self, name: str, how: int, cap: int) -> None:
        self.name, self.how, self.cap = name, how, cap
        self._map, self.room = reserve(cap)
        self._start = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._start)
        self.length = c_uint64(0)

    def write(self, data: Union[bytes, bytearray, memoryview]) -> None:
        """Set the bytes that the next snapshot copies. If they are more than .cap, call Handle.blob_resize before it.

        NoRoom: they are more than the 1 GiB that a blob may have, or than the address space that this process has.
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


def reserve(cap: int) -> Tuple[mmap.mmap, int]:
    """Address space for a blob that may grow: no memory is used until it is written."""
    room = max(BLOB_ROOM, cap)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    while True:
        try:
            return mmap.mmap(-1, room, flags=flags), room
        except (OSError, ValueError, MemoryError):
            if room // 2 < max(cap, mmap.PAGESIZE):
                raise
            room //= 2


def to_u64s(values: Sequence[int]) -> Any:
    return (c_uint64 * len(values))(*values)


def to_name(text: Optional[str]) -> Optional[bytes]:
    """InvalidCall: C would end the text at a zero byte, and use what is before it."""
    if text is None:
        return None
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise errors.error("call", errno.EINVAL, "%r is no Unicode text: %s" % (text, e)) from e
    if b"\0" in raw:
        raise errors.error("call", errno.EINVAL, "%r has a zero byte" % text)
    return raw


def to_path(path: Union[None, str, bytes, "os.PathLike[str]"]) -> Optional[bytes]:
    raw = None if path is None else os.fsencode(path)
    if raw is not None and b"\0" in raw:
        raise errors.error("call", errno.EINVAL, "the path %r has a zero byte" % raw)
    return raw


def in_bits(bits: int, values: Mapping[str, int]) -> None:
    """InvalidCall: a value has more bits, or is below zero. ctypes would cut it in silence."""
    for what, value in values.items():
        if not 0 <= value < 2**bits:
            raise errors.error("call", errno.EINVAL, "%s is %d: it must be 0 to 2^%d - 1" % (what, value, bits))


def from_text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def to_ns(seconds: float) -> int:
    return int(min(max(seconds * 1e9, 0), 2**63))


def to_locals(parts: Iterable[Part]) -> Tuple[Any, int, List[Any]]:
    """struct ckpt_local of each part that has elements, their number, and the arrays that must outlive the call."""
    held = [part for part in parts if part.local.numel()]
    array = (ckpt_local * max(len(held), 1))()
    keep: List[Any] = []
    for to, part in zip(array, held):
        stride = part.local.stride()
        to.ptr = part.local.data_ptr()
        to.stride = (ctypes.c_int64 * len(stride))(*stride)  # the structure keeps the array
        if part.start is not None and part.extent is not None:
            to.start, to.extent = to_u64s(part.start), to_u64s(part.extent)
        keep.append(to)
    return array, len(held), keep


def held_of(parts: Iterable[Part]) -> Tuple[Any, ...]:
    """What keeps the parts' memory. On a device that is another view of it: `p.data = ...` takes it from the parameter,
    and the caching allocator would give it to others while a copy reads it."""
    return tuple(part.local.detach() if getattr(part.local, "is_cuda", False) else part.local for part in parts)


_TENSOR_SIZE = ctypes.sizeof(ckpt_tensor)


def to_tensor(entry: Entry, mesh: int) -> Tuple[ckpt_tensor, List[Any]]:
    """struct ckpt_tensor of an entry, and what must outlive the call."""
    layout = entry.layout
    local, nlocal, keep = to_locals(layout.parts)
    place = (ckpt_placement * len(layout.placements))() if layout.placements else None
    for to, p in zip(place or (), layout.placements):
        to.how, to.reduce, to.mesh_dim, to.tensor_dim = p.how, p.reduce, p.mesh_dim, p.tensor_dim
        to.flags, to.split_factor = p.flags, p.split_factor
    t = ckpt_tensor(
        size=_TENSOR_SIZE,
        cls=entry.cls,
        role=entry.role,
        dtype=entry.dtype,
        component=to_name(entry.component),
        name=to_name(entry.name),
        of=to_name(entry.of),
        ndim=len(layout.shape),
        mesh=mesh,
        nplace=len(layout.placements),
        nlocal=nlocal,
        shape=to_u64s(layout.shape),  # the structure keeps what its pointers are given
        place=place,
        local=local,
        mode=layout.mode,
    )
    return t, keep


def to_want(step: Optional[int], flags: int, only: Optional[str], timeout: float) -> ckpt_want:
    in_bits(64, {"step": step or 0})
    return ckpt_want(
        size=ctypes.sizeof(ckpt_want),
        flags=flags,
        step=CKPT_LATEST if step is None else step,
        only=to_name(only),
        deadline_ns=to_ns(timeout),
    )


def from_tensor_info(x: ckpt_tensor_info) -> TensorInfo:
    return TensorInfo(
        what=x.what,
        component=from_text(x.component),
        name=from_text(x.name),
        of=from_text(x.of),
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
        text=from_text(x.text),
    )
