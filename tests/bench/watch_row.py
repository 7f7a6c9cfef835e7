# SPDX-License-Identifier: Apache-2.0
"""How long ckptd._watch.Watch.check takes: VENV/bin/python tests/bench/watch_row.py [ROUNDS]

One row for each kind of state: microseconds for a check, the median and the 90th percentile of ROUNDS, and the median
for 1,000 tensors of the state. The limit is 250 us for 1,000; the program exits with 1 if a row is above it. Of more
than 2,000 tensors a check compares 2,000, and of the others the dictionaries and one parameter of each module, which
the row's time has, too. """

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "frameworks"))

from memory_ranks import Shared

import torch
import torch.distributed as dist
from test_watch import entries_of
from torch import nn

from ckptd._memory import Arena
from ckptd._watch import TURN, Watch

LIMIT = 250.0


def state(layers, mesh=None):
    """Layers of Linear and BatchNorm with AdamW's state: 19 tensors for each."""
    model = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(layers))
    if mesh is not None:
        from torch.distributed.tensor import distribute_module

        model = distribute_module(model, mesh)
    optim = torch.optim.AdamW(model.parameters(), foreach=True)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optim.step()
    Arena(Shared()).move_in([*model.parameters(), *model.buffers()])
    return model, optim


def row(name, layers, rounds, mesh=None):
    model, optim = state(layers, mesh)
    entries = entries_of(model, optim)
    watch = Watch(entries, [model], [optim])
    turns = -(-len(entries) // TURN)
    times = []
    for step in range(1, rounds + 1):
        begin = time.perf_counter_ns()
        changes = watch.check(step)
        times.append((time.perf_counter_ns() - begin) / 1000)
        assert changes == []
    watch.close()
    looked = len(entries) / turns
    median, high = statistics.median(times), statistics.quantiles(times, n=10)[-1]
    per = median * 1000 / len(entries)
    time_ = f"{median:7.1f} us ({high:.1f}), {per:6.1f} us for 1,000"
    print(f"{name:28} {len(entries):6} tensors, {looked:6.0f} compared: {time_}")
    return per


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    worst = max(
        row("plain", 58, rounds),
        row("plain", 116, rounds),
        row("DTensor", 58, rounds, mesh),
        row("plain, in turns", 400, rounds),
    )
    dist.destroy_process_group()
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
