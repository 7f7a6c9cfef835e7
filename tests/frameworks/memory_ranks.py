# SPDX-License-Identifier: Apache-2.0
"""What test_memory.py and test_watch.py share: memory that stands for ckpt_alloc's, a training step, ranks as
processes."""

import ctypes
import mmap
import multiprocessing
import os
import pathlib
import sys
import tempfile
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

MIB = 1 << 20


class Shared:
    """Stands for ckpt_alloc with CKPT_KEEP_MEMORY: shared memory, zeroed, resident at once, never unmapped."""

    maps = []  # for ever, as the library's

    def __init__(self, fail_after=None):
        self.asked = []
        self.fail_after = fail_after

    def __call__(self, nbytes):
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise OSError(12, "the host cannot give so much")
        memory = mmap.mmap(-1, nbytes)
        memory.madvise(23)  # MADV_POPULATE_WRITE
        Shared.maps.append(memory)
        self.asked.append(nbytes)
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def status_kib(what):
    """A line of /proc/self/status: VmHWM, VmRSS, RssAnon, RssShmem."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(what + ":"))


def peak_begins():
    """VmHWM counts from here. Returns what is resident now, in KiB."""
    with open("/proc/self/clear_refs", "w") as out:
        out.write("5")
    return status_kib("VmRSS")


def state_of(model, *optims):
    """All tensors of the training state, by name."""
    found = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items()}
    for n, optim in enumerate(optims):
        for i, inner in enumerate(optim.state.values()):
            found.update({f"optim{n}.{i}.{key}": v for key, v in inner.items() if isinstance(v, torch.Tensor)})
    return found


def train(model, optim, steps, seed=0, width=8):
    """Steps on data of a seed. Returns the losses."""
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed + step)
        loss = model(torch.randn(6, width, generator=generator)).square().mean()
        loss.backward()
        optim.step()
        optim.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def _rank(body, rank, world, where, out):
    try:
        dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=world)
        torch.set_num_threads(1)
        body(rank, world)
        dist.barrier()
        dist.destroy_process_group()
        out.put((rank, None))
    except BaseException:
        out.put((rank, traceback.format_exc()))


def processes():
    """Processes that fork from one that has imported torch and nothing else: importing it takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"])
    return context


def on_ranks(world, body):
    """Run body(rank, world) in processes with gloo. Raises AssertionError with the first rank's traceback."""
    context = processes()
    with tempfile.TemporaryDirectory() as where:
        out = context.Queue()
        ranks = [context.Process(target=_rank, args=(body, r, world, where, out), daemon=True) for r in range(world)]
        for process in ranks:
            process.start()
        try:
            for _ in ranks:
                rank, error = out.get(timeout=120)
                if error is not None:
                    raise AssertionError(f"rank {rank}:\n{error}")
        finally:
            for process in ranks:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()


def in_process(body):
    """Run body() in a fresh process: for what is measured, or cannot be undone. Raises AssertionError with its
    traceback."""
    context = processes()
    out = context.Queue()
    process = context.Process(target=_alone, args=(body, out), daemon=True)
    process.start()
    error = out.get(timeout=120)
    process.join(timeout=10)
    if error is not None:
        raise AssertionError(error)


def _alone(body, out):
    try:
        torch.set_num_threads(1)
        body()
        out.put(None)
    except BaseException:
        out.put(traceback.format_exc())
