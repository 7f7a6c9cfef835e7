# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a tensor lie: index sets, files in memory, and elements that are rounded from others.

`_reader` asks here for the elements of one tensor. An index set is what `ckptctl show --json` prints (docs/JSON.md):
for each dimension a list of [START, STOP] or {"start", "len", "stride", "count"}. The elements of a piece are the
product of these lists, packed row-major.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .errors import error

if TYPE_CHECKING:
    import torch

FILES_MAX = 1024  # files that stay mapped without a tensor that needs them: the kernel allows 65,530 mappings
RUNS_MAX = 64  # blocks of one piece that are copied one by one; if there are more, elements are gathered by index
ROUND_MAX = 1 << 22  # elements that are rounded at once: bounds the memory for it to a few times 16 MiB

# The names of ckpt.h and of safetensors, and what torch calls the same. Older versions of torch lack some of them.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "C128": "complex128",
    "C32": "complex32",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "F4": 1, "C128": 16}
SIZES.update({"U32": 4, "I32": 4, "F32": 4, "C32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8})


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a dtype by its name in ckpt.h. An element of F4 is a byte of two values."""
    return 1 if dtype.startswith("F8_") else SIZES[dtype]


def torch_dtype(dtype: str) -> "torch.dtype":
    """torch's dtype of a name in ckpt.h. TypeError: the installed torch has none."""
    import torch

    found = getattr(torch, DTYPES.get(dtype, ""), None)
    if found is None:
        raise TypeError(f"torch {torch.__version__} has no dtype for {dtype}")
    return found  # type: ignore[no-any-return]


# --- index sets ---


@dataclasses.dataclass(frozen=True)
class Run:
    """Indices [start, stop) of one dimension; the first of them is number `at` of the piece's list."""

    start: int
    stop: int
    at: int


Block = Tuple[Tuple[slice, slice], ...]  # for each dimension: where in the result, where in the piece


def runs_of(entries: Sequence[Any], halve: bool = False) -> List[Run]:
    """The runs of one dimension of an index set. halve: it counts values of F4, the runs count bytes."""
    runs: List[Run] = []
    at = 0
    unit = 2 if halve else 1
    for entry in entries:
        if isinstance(entry, dict):
            first, length, stride, count = (int(entry[key]) for key in ("start", "len", "stride", "count"))
        else:
            first, length, stride, count = int(entry[0]), int(entry[1]) - int(entry[0]), 0, 1
        for i in range(count):
            start = (first + i * stride) // unit
            runs.append(Run(start, start + length // unit, at))
            at += length // unit
    return runs


@dataclasses.dataclass(frozen=True)
class Range:
    """What is asked of one dimension: `count` indices from `start` on, `step` apart."""

    start: int
    step: int
    count: int


def meet(asked: Range, runs: Sequence[Run]) -> List[Tuple[slice, slice]]:
    """Where the indices that are asked for lie in the list of a piece: (slice of the result, slice of the piece)."""
    found = []
    for run in runs:
        first = max(0, -(-(run.start - asked.start) // asked.step))
        last = min(asked.count, -(-(run.stop - asked.start) // asked.step))
        if first >= last:
            continue
        here = run.at + asked.start + first * asked.step - run.start
        found.append((slice(first, last), slice(here, here + (last - first - 1) * asked.step + 1, asked.step)))
    return found


def copy_blocks(into: "torch.Tensor", piece: "torch.Tensor", met: Sequence[Sequence[Tuple[slice, slice]]]) -> None:
    """into[where] = piece[where], for the product of the lists of `met`, one list for each dimension."""
    import torch

    blocks = 1
    for pairs in met:
        blocks *= len(pairs)
    if blocks <= RUNS_MAX:
        for block in itertools.product(*met):
            into[tuple(to for to, _ in block)].copy_(piece[tuple(at for _, at in block)])
        return
    lists = []
    for side in (0, 1):
        numbers = [[torch.arange(p[side].start, p[side].stop, p[side].step or 1) for p in pairs] for pairs in met]
        lists.append([torch.cat(n) for n in numbers])
    shape = [len(n) for n in lists[0]]
    spread = [
        tuple(n.view([-1 if d == i else 1 for i in range(len(shape))]) for d, n in enumerate(side)) for side in lists
    ]
    into.view(_as_bits(into))[spread[0]] = piece.view(_as_bits(piece))[spread[1]]


def _as_bits(tensor: "torch.Tensor") -> "torch.dtype":
    """An integer dtype of the same size, which torch can index whatever the dtype is; complex128 is itself."""
    import torch

    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return sizes.get(tensor.element_size(), tensor.dtype)


# --- files ---


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.9 to 3.12 have no name for it


def map_file(fd: int, size: int) -> "ctypes.Array[ctypes.c_ubyte]":
    """The file as a buffer, which keeps no descriptor. It is unmapped when nothing refers to the buffer any more.

    The mapping is private: who writes to it changes this process's copy of the page, never the file.
    """
    at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _NORESERVE, fd, 0)
    if at is None or at == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    buffer = (ctypes.c_ubyte * size).from_address(at)
    weakref.finalize(buffer, _libc.munmap, at, size).atexit = False
    return buffer


class Files:
    """The part files of one step, mapped at their first use. Any thread."""

    def __init__(self, directory: str, sizes: Dict[str, int]) -> None:
        self.directory = directory
        self._sizes = sizes
        self._mapped: "OrderedDict[str, ctypes.Array[ctypes.c_ubyte]]" = OrderedDict()
        self._lock = threading.Lock()
        self.closed = False

    def __getitem__(self, name: str) -> "ctypes.Array[ctypes.c_ubyte]":
        with self._lock:
            if self.closed:
                raise ValueError(f"{self.directory}: the checkpoint is closed")
            if name not in self._mapped:
                self._mapped[name] = self._map(name)
            self._mapped.move_to_end(name)
            if len(self._mapped) > FILES_MAX:
                self._mapped.popitem(last=False)
            return self._mapped.get(name) or self._map(name)

    def _map(self, name: str) -> "ctypes.Array[ctypes.c_ubyte]":
        path = os.path.join(self.directory, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if not os.path.exists(os.path.join(self.directory, "MANIFEST")):
                text = f"{self.directory} was removed after it was opened: open another step"
                raise error("restore", errno.ENOENT, text) from None
            text = f"{path} is missing: ckptctl verify {self.directory} says what else is wrong"
            raise error("restore", errno.EUCLEAN, text) from None
        try:
            size = os.fstat(fd).st_size
            if size != self._sizes[name]:
                text = f"{path} has {size} bytes, but MANIFEST says {self._sizes[name]}: the step is damaged"
                raise error("restore", errno.EBADMSG, f"{text} (ckptctl verify {self.directory})")
            return map_file(fd, size)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of all files. Memory that a tensor still shows stays mapped until that tensor is gone."""
        with self._lock:
            self.closed = True
            self._mapped.clear()


# --- rounding ---


def rounded(source: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
    """F32 elements rounded to bfloat16 or float16, with the bits that docs/FORMAT.md gives to every value.

    To nearest, ties to even, to infinity where it overflows; subnormal numbers and -0 are kept. torch's own cast
    gives other bits for a NaN, and on some processors flushes subnormal numbers, so integers do the work.
    """
    import torch

    out = torch.empty(source.shape, dtype=dtype)
    flat = source.reshape(-1)
    into = out.view(-1)
    for at in range(0, flat.numel(), ROUND_MAX):
        _round(flat[at : at + ROUND_MAX], into[at : at + ROUND_MAX])
    return out


def _round(x: "torch.Tensor", out: "torch.Tensor") -> None:
    import torch

    bits = x.contiguous().view(torch.int32)
    number = bits & 0x7FFFFFFF
    nan = number > 0x7F800000
    if out.dtype is torch.bfloat16:
        top = bits >> 16
        result = (number + 0x7FFF + (top & 1)).bitwise_right_shift_(16).bitwise_or_(top & 0x8000)
        result = torch.where(nan, (top & 0xFFFF) | 0x40, result)
    else:
        result = _half(number).bitwise_or_((bits >> 16) & 0x8000)
        result = torch.where(nan, ((bits >> 16) & 0x8000) | 0x7E00 | ((bits >> 13) & 0x3FF), result)
    out.view(torch.int16).copy_(torch.where(result > 0x7FFF, result - 0x10000, result))


def _half(number: "torch.Tensor") -> "torch.Tensor":
    """The bits of float16 for those of float32 without their sign; a NaN gives anything."""
    import torch

    # A normal result: the exponent is 112 less, and 13 bits of the fraction are rounded away.
    normal = (number - (112 << 23) + 0xFFF + ((number >> 13) & 1)) >> 13
    # A subnormal one counts in units of 2^-24. The fraction with its leading 1 has 24 bits. It is shifted by 14 to 24
    # places, which leaves at most 10 bits; from 25 places on nothing is left, whatever the bits below are.
    places = (126 - (number >> 23)).clamp_(14, 25)
    fraction = (number & 0x7FFFFF) | 0x800000
    kept = fraction >> places
    rest = fraction & ((torch.ones_like(places) << places) - 1)
    half = torch.ones_like(places) << (places - 1)
    up = (rest > half) | ((rest == half) & ((kept & 1) == 1))
    small = torch.where(places >= 25, torch.zeros_like(kept), kept + up.to(torch.int32))
    result = torch.where(number < 0x38800000, small, normal)
    return torch.where(number >= 0x47800000, torch.full_like(result, 0x7C00), result).clamp_(max=0x7C00)


# --- what is asked of a tensor ---


def resolve_index(index: Any, shape: Sequence[int]) -> Tuple[List[Range], List[bool]]:
    """What an index asks for: a Range for each dimension, and whether it keeps the dimension (an int does not).

    ints, slices with positive steps, Ellipsis, and tuples of these, as in numpy. IndexError, TypeError.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can have only one Ellipsis")
    given = len(items) - len(dots)
    if given > len(shape):
        raise IndexError(f"{given} indices for a tensor of {len(shape)} dimensions")
    fill: List[Any] = [slice(None)] * (len(shape) - given)
    if dots:
        items[dots[0] : dots[0] + 1] = fill
    else:
        items += fill
    ranges = [_range_of(item, size, d) for d, (item, size) in enumerate(zip(items, shape))]
    return ranges, [isinstance(item, slice) for item in items]


def _range_of(item: Any, size: int, dim: int) -> Range:
    if isinstance(item, slice):
        start, stop, step = item.indices(size)
        if step < 1:
            raise IndexError(f"dimension {dim}: the step of a slice must be positive, not {step}")
        return Range(start, step, len(range(start, stop, step)))
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise TypeError(f"dimension {dim}: an index is an int, a slice or Ellipsis, not {type(item).__name__}")
    number = item.__index__()
    if not -size <= number < size:
        raise IndexError(f"dimension {dim}: index {number} is out of range for {size}")
    return Range(number % size, 1, 1)


def boxes_of(lists: Sequence[Sequence[Run]]) -> Iterator[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """The boxes (start, extent) that an index set consists of, in the order of its elements' first ones."""
    for runs in itertools.product(*lists):
        yield tuple(r.start for r in runs), tuple(r.stop - r.start for r in runs)


def joined_runs(numbers: Sequence[int]) -> Optional[List[Run]]:
    """Ascending numbers as runs; None if they do not ascend."""
    runs: List[Run] = []
    for at, number in enumerate(numbers):
        if runs and number < runs[-1].stop:
            return None
        if runs and number == runs[-1].stop:
            runs[-1] = Run(runs[-1].start, number + 1, runs[-1].at)
        else:
            runs.append(Run(number, number + 1, at))
    return runs
