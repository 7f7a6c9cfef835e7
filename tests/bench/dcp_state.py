# SPDX-License-Identifier: Apache-2.0
"""The state of bench_job.h, one rank of it, through PyTorch's own ways to save and load. Run by frameworks.sh.

usage: dcp_state.py DIR BYTES, then a line per measurement on standard input:

    save N     torch.distributed.checkpoint.save to DIR/dcp-N: what it syncs is synced
    async N    async_save to DIR/dcp-N: what the caller waits for (blocked), and until it is done
    load N     load of DIR/dcp-N into existing tensors, from a cold cache
    st_save N  safetensors.torch.save_file to DIR/st-N, and fsync, which it does not do itself
    st_load N  load_file of it, from a cold cache
    memcpy     one copy of the state to touched memory

Each prints lines "NAME NANOSECONDS", then "end". The first line printed is "ready 0" after "state BYTES".
"""
import os
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

LAYERS, COLS, PARAM_BYTES = 12, 1024, 14


def make_state(total):
    """96 tensors: weight and bias of each layer as BF16 parameter, FP32 master and two FP32 moments."""
    rows = max(-(-total // (PARAM_BYTES * COLS * LAYERS)), 1)
    state = {}
    generator = torch.Generator().manual_seed(1)
    for layer in range(LAYERS):
        for name, shape in (("weight", (rows, COLS)), ("bias", (COLS,))):
            for suffix, dtype in (
                ("", torch.bfloat16),
                (".master", torch.float32),
                (".exp_avg", torch.float32),
                (".exp_avg_sq", torch.float32),
            ):
                words = torch.randint(0, 1 << 16, shape, generator=generator, dtype=torch.int32)
                state[f"layers.{layer}.{name}{suffix}"] = (words.float() * 1.0001).to(dtype)
    return state


def files(path):
    return [os.path.join(d, f) for d, _, names in os.walk(path) for f in names] or [path]


def cold(path):
    """Drop a file or a directory of files from the page cache."""
    for name in files(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def say(name, ns):
    print(name, ns, flush=True)


def main():
    directory, state = sys.argv[1], make_state(int(sys.argv[2]))
    room = {k: torch.zeros_like(v) for k, v in state.items()}
    say("state", sum(t.numel() * t.element_size() for t in state.values()))
    say("ready", 0)
    for line in sys.stdin:
        what, number = (line.split() + ["0"])[:2]
        dcp_dir, st = os.path.join(directory, f"dcp-{number}"), os.path.join(directory, f"st-{number}")
        if what == "load":
            cold(dcp_dir)
        if what == "st_load":
            cold(st)
        begin = time.monotonic_ns()
        if what == "save":
            dcp.save(state, checkpoint_id=dcp_dir)
        elif what == "async":
            done = dcp.async_save(state, checkpoint_id=dcp_dir)
            say("async_blocked", time.monotonic_ns() - begin)
            done.result()
        elif what == "load":
            dcp.load(room, checkpoint_id=dcp_dir)
        elif what == "st_save":
            save_file(state, st)
            with open(st, "rb+") as f:
                os.fsync(f.fileno())
        elif what == "st_load":
            loaded = load_file(st)
            del loaded
        elif what == "memcpy":
            for k, v in state.items():
                room[k].copy_(v)
        elif what == "remove":
            shutil.rmtree(dcp_dir, ignore_errors=True)
            if os.path.exists(st):
                os.unlink(st)
        else:
            sys.exit(f"dcp_state.py: {what}?")
        say(what, time.monotonic_ns() - begin)
        if what == "load" and any(not torch.equal(room[k], state[k]) for k in state):
            sys.exit("dcp_state.py: what was loaded is not what was saved")
        say("end", 0)


if __name__ == "__main__":
    main()
