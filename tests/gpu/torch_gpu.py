# SPDX-License-Identifier: Apache-2.0
"""torch_gpu.py - a GPT-like model under FSDP2 on one GPU, with ckptd and beside it. Called by run.sh and gpubench.

    torch_gpu.py test DIR     it is saved and restored, and losses are equal bit for bit with ckptd and without; exit 77 and the
                              reason where torch or CUDA is missing
    torch_gpu.py bench DIR    E10: rows for gpubench (gpu_rows.h), one a line

The steps of `bench` come in blocks A B B A ...: A without snapshots, B with one a step by ckptd, or one a block by dcp.async_save.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

BLOCKS, STEPS = 6, 40
EXPERIMENT = "E10"


def missing() -> str:
    """Why it cannot run here; "" if it can."""
    try:
        import torch
    except ImportError as e:
        return "torch is not installed here (%s)" % e
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return "torch %s has no fully_shard" % torch.__version__
    try:
        import ckptd  # noqa: F401
    except ImportError as e:
        return "the package ckptd cannot be imported: %s" % e
    return ""


def put(row: str, **fields: object) -> None:
    print(json.dumps(dict(experiment=EXPERIMENT, row=row, **fields)), flush=True)


class Job:
    """The model, its optimizer, and one step of training on data that are a function of the step."""

    def __init__(self, layers: int = 12, width: int = 1024, batch: int = 8, length: int = 512) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.torch, self.batch, self.length, self.words = torch, batch, length, 8192
        torch.manual_seed(0)
        layer = lambda: torch.nn.TransformerEncoderLayer(  # noqa: E731
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embed = torch.nn.Embedding(self.words, width)
        self.model = torch.nn.Sequential(self.embed, *[layer() for _ in range(layers)], torch.nn.Linear(width, self.words)).cuda()
        mesh = init_device_mesh("cuda", (1,))
        for part in self.model:
            fully_shard(part, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.step = 0

    def loss(self):
        torch = self.torch
        g = torch.Generator().manual_seed(self.step)
        x = torch.randint(0, self.words, (self.batch, self.length + 1), generator=g).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            y = self.model(x[:, :-1])
        return torch.nn.functional.cross_entropy(y.flatten(0, 1).float(), x[:, 1:].flatten())

    def update(self) -> None:
        self.optim.step()
        self.optim.zero_grad()

    def train(self, run=None) -> float:
        """One step; what loss.item() is."""
        loss = self.loss()
        loss.backward()
        self.step += 1
        if run is None:
            value = loss.item()
            self.update()
        else:
            value = loss.item()
            with run.step(self.step, loss=value):
                self.update()
        return value


def distributed(directory: str) -> None:
    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(False)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method="file://%s/rendezvous" % directory, rank=0, world_size=1)
    torch.cuda.set_device(0)


def test(directory: str) -> int:
    why = missing()
    if why:
        print(why)
        return 77
    import ckptd

    distributed(directory)
    small = dict(layers=2, width=256, batch=2, length=64)
    job = Job(**small)
    alone = [job.train() for _ in range(8)]
    job = Job(**small)
    run = ckptd.attach(job.model, job.optim, store=directory + "/torch", job="torch", rank=0, world=1)
    if run.restore() != 0:
        print("the store is not empty")
        return 1
    beside = [job.train(run) for _ in range(4)]
    run.wait()
    want = [p.to_local().clone() for p in job.model.parameters()]
    rest = [job.train() for _ in range(4)]
    if beside + rest != alone:
        print("losses differ: %r without ckptd, %r with it" % (alone, beside + rest))
        return 1
    step = run.restore()
    if step != 4 or not all(job.torch.equal(a, b.to_local()) for a, b in zip(want, job.model.parameters())):
        print("the parameters of step %d are not those that were saved" % step)
        return 1
    job.step = step
    again = [job.train() for _ in range(4)]
    if again != rest:
        print("after the restore losses are %r, before it %r" % (again, rest))
        return 1
    return 0


def blocks(job: Job, one) -> "tuple[list, list]":
    """Seconds of a step: medians of the blocks without `one` and with it."""
    torch = job.torch
    sides = ([], [])
    for i in range(2 * BLOCKS):
        b = i % 4 in (1, 2)
        times = []
        for k in range(STEPS + 2):
            begin = time.perf_counter()
            one(job, k) if b else job.train()
            torch.cuda.synchronize()
            if k >= 2:
                times.append(time.perf_counter() - begin)
        sides[b].append(statistics.median(times))
    return sides


def compared(name: str, what: str, job: Job, one, limit: "float | None") -> None:
    a, b = blocks(job, one)
    each = sorted(y / x - 1 for x, y in zip(a, b))
    tokens = job.batch * job.length
    fields = dict(
        what=what + "; numerator and denominator: tokens/s with it and without", unit="ratio", value=statistics.median(each),
        low=each[0], high=each[-1], numerator=tokens / statistics.median(b), denominator=tokens / statistics.median(a),
        n=BLOCKS * STEPS, time=True,
    )
    if limit is not None:
        fields.update(bound="<=", limit=limit)
    put(name, **fields)


def bench(directory: str) -> int:
    why = missing()
    if why:
        put("torch", why=why)
        return 0
    import ckptd
    import torch.distributed.checkpoint as dcp

    distributed(directory)
    job = Job()
    run = ckptd.attach(job.model, job.optim, store=directory + "/torch", job="torch", rank=0, world=1, persist_every=1000000)
    run.restore()
    compared("slowdown", "a step with a snapshot by ckptd each step", job, lambda j, k: j.train(run), 0.003)
    run.wait()

    def state():
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optim = get_state_dict(job.model, job.optim)
        return {"model": model, "optim": optim}

    def saver(kind: str):
        pending = []

        def one(j: Job, k: int) -> None:
            j.train()
            if k % 10 == 2:
                while pending:
                    pending.pop().result()
                more = {}
                if kind == "process":
                    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

                    more = dict(async_checkpointer_type=AsyncCheckpointerType.PROCESS)
                elif kind == "pinned":
                    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

                    more = dict(async_stager=DefaultStager(StagingOptions(True, True, True, True)))
                future = dcp.async_save(state(), checkpoint_id="%s/dcp-%s" % (directory, kind), **more)
                pending.append(getattr(future, "upload_completion", future))

        return one

    for kind in ("thread", "process", "pinned"):
        try:
            compared("dcp_" + kind, "a step with dcp.async_save (%s) every tenth step" % kind, job, saver(kind), None)
        except Exception as e:  # what a version of torch does not have is no failure of ckptd
            put("dcp_" + kind, why="dcp.async_save (%s): %s: %s" % (kind, type(e).__name__, str(e)[:300]))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("test", "bench"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    os.makedirs(sys.argv[2], exist_ok=True)
    sys.exit({"test": test, "bench": bench}[sys.argv[1]](sys.argv[2]))
