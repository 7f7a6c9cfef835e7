#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planners of redistributions of PyTorch and of ckptd on the same pairs of layouts: redist_torch.py CKPTBENCH PAIRS SEED

Both get the same question, one after the other; who is first takes turns. Pairs are drawn: meshes of 2 to 4 dimensions of 2 or 4,
tensors of 1 to 3, Replicate, Shard, pending sums that end or stay, half of them with shard orders of any kind. PyTorch's model prices them, 8 devices
a host. PyTorch is asked by _gen_transform_infos_non_cached, as DTensor.redistribute asks it for a pair that it has not seen; all that
it keeps between pairs (the planner of a mesh and a shape, what it knows of a mesh) it keeps. ckptd is asked within one process
(`ckptbench plan pairs`); both take the time around the call alone. The search (graph) gets all pairs, the greedy pass those whose
orders are the default.

The program fails if the steps of one pair differ. Prints lines "NAME NUMBER" for graph and greedy: ours_graph, torch_graph, ns;
ratio_graph, ours by PyTorch's for one pair.
"""
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached
from torch.testing._internal.distributed.fake_pg import FakeStore

DEVICES_PER_HOST = 8
MESHES = [(2, 2), (4, 2), (2, 4), (2, 2, 2), (2, 4, 2), (2, 2, 2, 2)]
SHAPES = [(4096,), (64, 96), (17, 5), (1024, 4096), (8, 16, 32)]


def draw_state(rng, mesh, ndim, default, sums):
    """A placement for each mesh dimension, and the order in which mesh dimensions cut each tensor dimension."""
    placements = [
        Partial("sum") if kept else Replicate() if rng.random() < 0.3 else Shard(rng.randrange(ndim))
        for kept in sums
    ]
    order = []
    for d in range(ndim):
        cuts = [i for i, p in enumerate(placements) if p.is_shard(d)]
        if not default:
            rng.shuffle(cuts)
        if cuts:
            order.append(ShardOrderEntry(tensor_dim=d, mesh_dims=tuple(cuts)))
    return tuple(placements), tuple(order)


def draw(rng):
    mesh, shape, default = rng.choice(MESHES), rng.choice(SHAPES), rng.random() < 0.5
    sums = [rng.random() < 0.15 for _ in mesh]
    src = draw_state(rng, mesh, len(shape), default, sums)
    dst = draw_state(rng, mesh, len(shape), default, [s and rng.random() < 0.2 for s in sums])
    return mesh, shape, src, dst, default


def spell(p):
    return f"S({p.dim})" if p.is_shard() else "P(sum)" if p.is_partial() else "R"


def state_text(state):
    """As redist_state_parse reads it."""
    placements, order = state
    place = {m: k for entry in order for k, m in enumerate(entry.mesh_dims)}
    return "".join(spell(p) + (f"[{place[i]}]" if i in place else "") for i, p in enumerate(placements))


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "plan", "pairs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, pair, planner):
        mesh, shape, src, dst, _ = pair
        words = (",".join(map(str, mesh)), ",".join(map(str, shape)), state_text(src), state_text(dst), planner)
        print(*words, file=self.process.stdin, flush=True)
        ns, *steps = self.process.stdout.readline().split() or sys.exit("ckptbench plan pairs has failed")
        return int(ns), steps

    def end(self):
        self.process.stdin.close()
        if self.process.wait():
            sys.exit("ckptbench plan pairs has failed")


class Theirs:
    def __init__(self):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
        _mesh_resources.num_devices_per_host = staticmethod(lambda device_type: DEVICES_PER_HOST)
        self.mesh = {m: DeviceMesh("cpu", torch.arange(torch.Size(m).numel()).view(m)) for m in MESHES}

    def ask(self, pair, planner):
        mesh, shape, src, dst, _ = pair
        meta = TensorMeta(torch.Size(shape), torch.empty(shape, device="meta").stride(), torch.float32)
        specs = [DTensorSpec(self.mesh[mesh], s[0], tensor_meta=meta, shard_order=s[1]) for s in (src, dst)]
        begin = time.perf_counter_ns()
        infos = _gen_transform_infos_non_cached(*specs, use_graph_based_transform=planner == "graph")
        ns = time.perf_counter_ns() - begin
        return ns, [f"{i.mesh_dim}:{spell(i.src_dst_placements[0])}>{spell(i.src_dst_placements[1])}" for i in infos]


def main():
    rng = random.Random(int(sys.argv[3]))
    ours, theirs = Ours(sys.argv[1]), Theirs()
    for i in range(int(sys.argv[2])):
        pair = draw(rng)
        for planner in ("graph", "greedy") if pair[4] else ("graph",):
            sides = [("ours", ours), ("torch", theirs)]
            ns, steps = {}, {}
            for name, side in sides[:: 1 if i % 2 else -1]:
                ns[name], steps[name] = side.ask(pair, planner)
                print(f"{name}_{planner}", ns[name])
            if steps["ours"] != steps["torch"]:
                sys.exit(f"mesh {pair[0]}, shape {pair[1]}: {state_text(pair[2])} -> {state_text(pair[3])}, {planner}: {steps}")
            print(f"ratio_{planner}", ns["ours"] / ns["torch"])
    ours.end()


main()
