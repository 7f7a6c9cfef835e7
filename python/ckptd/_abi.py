# SPDX-License-Identifier: Apache-2.0
"""ckpt/ckpt.h in Python: its constants and structures, under its names. `_lib` uses them and hands them on.

tests/python/test_header.py reads ckpt.h and compares every value, and every field's name, order and type, so the two
cannot drift apart. At run time `_load` compares the sizes with those of the library that it has loaded.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

CKPT_ABI: Final = 2
CKPT_VERSION: Final = "0.2.0"
CKPT_LATEST: Final = 2**64 - 1
CKPT_NAME_MAX: Final = 1024
CKPT_DIMS_MAX: Final = 16
CKPT_ALONE: Final = 2**32 - 1
CKPT_JOB_MAX: Final = 64

# enum ckpt_outcome
CKPT_SKIPPED: Final = 1
CKPT_TORN: Final = 2
CKPT_DETACHED: Final = 3
CKPT_FAILING: Final = 4
# enum ckpt_state
CKPT_STAGED: Final = 1
CKPT_PERSISTED: Final = 2
CKPT_COMMITTED: Final = 3
# enum ckpt_class
CKPT_STABLE: Final = 0
CKPT_VOLATILE: Final = 1
CKPT_CONST: Final = 2
CKPT_DERIVED: Final = 3
CKPT_SINK: Final = 4
# enum ckpt_role
CKPT_OTHER: Final = 0
CKPT_PARAM: Final = 1
CKPT_MASTER: Final = 2
CKPT_MOMENT1: Final = 3
CKPT_MOMENT2: Final = 4
CKPT_BUFFER: Final = 5
CKPT_AVERAGE: Final = 6
CKPT_COUNTER: Final = 7
# enum ckpt_dtype
CKPT_BOOL: Final = 1
CKPT_U8: Final = 2
CKPT_I8: Final = 3
CKPT_F8_E4M3: Final = 4
CKPT_F8_E5M2: Final = 5
CKPT_F8_E8M0: Final = 6
CKPT_U16: Final = 7
CKPT_I16: Final = 8
CKPT_F16: Final = 9
CKPT_BF16: Final = 10
CKPT_U32: Final = 11
CKPT_I32: Final = 12
CKPT_F32: Final = 13
CKPT_U64: Final = 14
CKPT_I64: Final = 15
CKPT_F64: Final = 16
CKPT_C64: Final = 17
CKPT_C128: Final = 18
CKPT_C32: Final = 19
CKPT_F8_E4M3FNUZ: Final = 20
CKPT_F8_E5M2FNUZ: Final = 21
CKPT_F4: Final = 22
# enum ckpt_media
CKPT_RAW: Final = 0
CKPT_MEDIA_JSON: Final = 1
CKPT_MEDIA_TEXT: Final = 2
CKPT_MEDIA_PICKLE: Final = 3
CKPT_MEDIA_TORCH: Final = 4
CKPT_MEDIA_NPY: Final = 5
# ckpt_blob_add
CKPT_PER_RANK: Final = 1
CKPT_JSON: Final = 1 << 8
CKPT_TEXT: Final = 2 << 8
CKPT_PICKLE: Final = 3 << 8
CKPT_TORCH: Final = 4 << 8
CKPT_NPY: Final = 5 << 8
# enum ckpt_how
CKPT_REPLICATE: Final = 0
CKPT_SHARD: Final = 1
CKPT_ONLY: Final = 2
CKPT_PARTIAL: Final = 3
# enum ckpt_reduce
CKPT_SUM: Final = 0
CKPT_AVG: Final = 1
CKPT_MIN: Final = 2
CKPT_MAX: Final = 3
CKPT_PRODUCT: Final = 4
# ckpt_placement.flags
CKPT_KEEP_PARTIAL: Final = 1
# enum ckpt_mode
CKPT_CHUNK: Final = 0
CKPT_FLAT: Final = 1
CKPT_UNFLATTEN_PAD: Final = 2
CKPT_TORCH_ORDER: Final = 3
CKPT_BOXES: Final = 4
# enum ckpt_policy
CKPT_BOUNDED: Final = 0
CKPT_NEVER: Final = 1
CKPT_FINISH: Final = 2
# ckpt_opts.flags
CKPT_REQUIRE: Final = 1
CKPT_AUTOSTART: Final = 2
CKPT_USE_ENV: Final = 4
CKPT_KEEP_MEMORY: Final = 8
CKPT_NCCL: Final = 16
CKPT_TAKEOVER: Final = 32
CKPT_FOREIGN_OWNER: Final = 64
# ckpt_mark.flags
CKPT_PERSIST: Final = 1
CKPT_STAGE_ONLY: Final = 2
CKPT_NO_EMA: Final = 4
CKPT_FINAL: Final = 8
CKPT_REFUSE: Final = 16
# ckpt_want.flags
CKPT_LENIENT: Final = 1
CKPT_FROM_DISK: Final = 2
CKPT_DRY_RUN: Final = 4
CKPT_FROM_MEMORY: Final = 8
CKPT_EXACT: Final = 16
CKPT_PEEK: Final = 32
CKPT_EXPLICIT: Final = 64
CKPT_ALLOW_RESHARD: Final = 128
CKPT_ALLOW_REDUCE: Final = 256
CKPT_ALLOW_REPLICATE: Final = 512
CKPT_ALLOW_DROP: Final = 1024
# enum ckpt_what
CKPT_SAVED: Final = 0
CKPT_MISSING: Final = 1
CKPT_UNUSED: Final = 2
CKPT_MISMATCH: Final = 3

# Bytes of one element, by enum ckpt_dtype.
DTYPE_BYTES: Final = {
    CKPT_BOOL: 1,
    CKPT_U8: 1,
    CKPT_I8: 1,
    CKPT_F8_E4M3: 1,
    CKPT_F8_E5M2: 1,
    CKPT_F8_E8M0: 1,
    CKPT_F8_E4M3FNUZ: 1,
    CKPT_F8_E5M2FNUZ: 1,
    CKPT_F4: 1,
    CKPT_U16: 2,
    CKPT_I16: 2,
    CKPT_F16: 2,
    CKPT_BF16: 2,
    CKPT_U32: 4,
    CKPT_I32: 4,
    CKPT_F32: 4,
    CKPT_C32: 4,
    CKPT_U64: 8,
    CKPT_I64: 8,
    CKPT_F64: 8,
    CKPT_C64: 8,
    CKPT_C128: 16,
}

AGREE_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_uint64))
LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class ckpt_err(ctypes.Structure):
    _fields_ = [("code", c_int), ("msg", c_char * 4092)]


class ckpt_opts(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("job", c_char_p),
        ("store", c_char_p),
        ("socket", c_char_p),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("generation", c_uint64),
        ("agree", AGREE_FN),
        ("agree_ctx", c_void_p),
        ("slots", c_uint32),
        ("persist_every", c_uint32),
        ("device", c_uint32),
        ("guard", c_uint32),
        ("guard_ns", c_uint64),
        ("memory_max", c_uint64),
        ("log", LOG_FN),
        ("log_ctx", c_void_p),
        ("check", c_uint32),
        ("pad", c_uint32),
        ("wait_ns", c_uint64),
        ("launch", c_uint64),
        ("copy_rate", c_uint64),
        ("nccl", c_void_p),
        ("run", c_uint64),
        ("restart", c_uint64),
        ("token", c_uint64),
        ("keep_last", c_uint32),
        ("pad_keep", c_uint32),
        ("keep_every", c_uint64),
        ("keep_within", c_char_p),
        ("keep_best", c_char_p),
        ("restart_wait_ns", c_uint64),
    ]


class ckpt_placement(ctypes.Structure):
    _fields_ = [
        ("how", c_uint8),
        ("reduce", c_uint8),
        ("mesh_dim", c_uint16),
        ("tensor_dim", c_uint16),
        ("flags", c_uint16),
        ("split_factor", c_uint32),
    ]


class ckpt_local(ctypes.Structure):
    _fields_ = [
        ("ptr", c_void_p),
        ("stride", POINTER(c_int64)),
        ("start", POINTER(c_uint64)),
        ("extent", POINTER(c_uint64)),
    ]


class ckpt_tensor(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("cls", c_uint32),
        ("role", c_uint32),
        ("dtype", c_uint32),
        ("component", c_char_p),
        ("name", c_char_p),
        ("of", c_char_p),
        ("ndim", c_uint32),
        ("mesh", c_uint32),
        ("nplace", c_uint32),
        ("nlocal", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("place", POINTER(ckpt_placement)),
        ("local", POINTER(ckpt_local)),
        ("group", c_uint32),
        ("mode", c_uint32),
    ]


class ckpt_note(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_double)]


class ckpt_stream(ctypes.Structure):
    _fields_ = [("stream", c_void_p), ("device", c_uint32), ("pad", c_uint32)]


class ckpt_mark(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("stream", c_void_p),
        ("groups", c_uint64),
        ("note", POINTER(ckpt_note)),
        ("nnote", c_uint32),
        ("nstream", c_uint32),
        ("more", POINTER(ckpt_stream)),
        ("wait_ns", c_uint64),
    ]


class ckpt_step(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("bytes", c_uint64), ("where", c_uint32), ("complete", c_uint32)]


class ckpt_want(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("step", c_uint64),
        ("only", c_char_p),
        ("deadline_ns", c_uint64),
        ("nstream", c_uint32),
        ("pad", c_uint32),
        ("more", POINTER(ckpt_stream)),
    ]


class ckpt_got(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("where", c_uint32),
        ("step", c_uint64),
        ("world_saved", c_uint32),
        ("ntensor", c_uint32),
        ("nmissing", c_uint32),
        ("nunused", c_uint32),
        ("npassed", c_uint32),
        ("pad", c_uint32),
        ("id", c_char * 40),
        ("passed", c_char * 512),
        ("averages", c_char * 512),
    ]


class ckpt_stats(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("pad", c_uint32),
        ("taken", c_uint64),
        ("skipped", c_uint64),
        ("torn", c_uint64),
        ("staged", c_uint64),
        ("persisted", c_uint64),
        ("committed", c_uint64),
        ("failed", c_uint64),
        ("last_committed_step", c_uint64),
        ("stall_ns_sum", c_uint64),
        ("stall_ns_max", c_uint64),
        ("copy_bytes", c_uint64),
        ("copy_ns", c_uint64),
        ("unguarded", c_uint64),
        ("reattached", c_uint64),
        ("stall_log2_ns", c_uint64 * 40),
        ("staged_ns", c_uint64),
        ("persisted_ns", c_uint64),
        ("committed_ns", c_uint64),
        ("average_taken", c_uint64),
        ("average_left_out", c_uint64),
        ("average_waits", c_uint64),
        ("average_wait_ns", c_uint64),
        ("thinned", c_uint64),
    ]


class ckpt_tensor_info(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("what", c_uint32),
        ("component", c_char_p),
        ("name", c_char_p),
        ("of", c_char_p),
        ("dtype", c_uint32),
        ("role", c_uint32),
        ("cls", c_uint32),
        ("ndim", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("numel", c_uint64),
        ("fp", c_uint64),
        ("step", c_uint64),
        ("fp_known", c_uint32),
        ("blob", c_uint32),
        ("media", c_uint32),
        ("rank", c_uint32),
        ("text", c_char_p),
    ]


TENSOR_FN = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(ckpt_tensor_info))

STRUCTURES: Final = (
    ckpt_err,
    ckpt_opts,
    ckpt_placement,
    ckpt_local,
    ckpt_tensor,
    ckpt_note,
    ckpt_stream,
    ckpt_mark,
    ckpt_step,
    ckpt_want,
    ckpt_got,
    ckpt_stats,
    ckpt_tensor_info,
)
