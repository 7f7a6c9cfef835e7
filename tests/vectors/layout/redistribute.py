#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which steps PyTorch takes from one layout to another, and what they cost by its own model: redistribute.py [FILE]

FILE (redistribute_more.jsonl beside this) has a question a line, with or without an answer. Each is asked of the PyTorch that runs this
(the lines are those of 2.15.0), and printed with its answer, as tests/unit/test_answer_steps.c reads it:
    {"shape":[8,6],"dtype":"float32","mesh":[2,2],"devices_per_host":8,"src":["S(0)","R"],"dst":["_S(1, 2)","S(0)"],
     "src_order":[[0,[0]]]?,"dst_order":[[0,[1]],[1,[0]]]?,
     "torch_uses":"graph","greedy":{..}?,"graph":{"steps":[{"op","mesh_dim","from","to","bytes","us"}],"us","trace"}}
Split factors are read literally. torch_uses: the planner that PyTorch takes by itself; greedy is left out where it
is not that one, and where it leads through a state that PyTorch cannot spell: a cut that is not the last one ends.

    build/venv/bin/python tests/vectors/layout/redistribute.py | cmp - tests/vectors/layout/redistribute_more.jsonl
"""
import json
import math
import os
import re
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._collective_utils import MeshTopoInfo, _compute_placement_transition_cost
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import DTensorRedistributePlanner, _update_shard_order_and_placements
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = os.path.dirname(os.path.abspath(__file__))
QUESTION = ("shape", "dtype", "mesh", "devices_per_host", "src", "dst", "src_order", "dst_order")


def placement(text):
    kind, args = re.fullmatch(r"(R|P|S|_S)(?:\((.*)\))?", text).groups()
    if kind == "R":
        return Replicate()
    if kind == "P":
        return Partial(args)
    numbers = [int(x) for x in args.split(",")]
    return Shard(*numbers) if kind == "S" else _StridedShard(numbers[0], split_factor=numbers[1])


def spell(p):
    if isinstance(p, _StridedShard):
        return "_S(%d, %d)" % (p.dim, p.split_factor)
    return "S(%d)" % p.dim if p.is_shard() else "P(%s)" % p.reduce_op if p.is_partial() else "R"


def cuts(p):
    return p.is_shard() or isinstance(p, _StridedShard)


def op_of(before, after):
    if before.is_partial():
        return "all_reduce" if after.is_replicate() else "reduce_scatter"
    if cuts(before) and not after.is_partial():
        return "all_gather" if after.is_replicate() else "all_to_all"
    return "local"


def spec_of(q, side, mesh):
    meta = TensorMeta(torch.Size(q["shape"]), torch.empty(q["shape"], device="meta").stride(), getattr(torch, q["dtype"]))
    order = q.get(side + "_order")
    if order is not None:
        order = tuple(ShardOrderEntry(tensor_dim=d, mesh_dims=tuple(m)) for d, m in order)
    return DTensorSpec(
        mesh, tuple(map(placement, q[side])), tensor_meta=meta, shard_order=order, use_strided_shard_as_shard_order=False
    )


def steps_of(q, src, infos, topo):
    """The price of each step is asked for by itself: from the bytes of the state before it."""
    size, placements = getattr(torch, q["dtype"]).itemsize * math.prod(q["shape"]), list(src.placements)
    order = DTensorRedistributePlanner._ShardOrder_to_dict(src.shard_order)
    steps = []
    for info in infos:
        before, after = info.src_dst_placements
        held = size / math.prod(n for n, p in zip(q["mesh"], placements) if cuts(p))
        us, _ = _compute_placement_transition_cost(before, after, topo, info.mesh_dim, held / 2**30)
        op = op_of(before, after)
        if op == "local":
            us, held = 0.0, 0
        elif op == "all_gather":
            held *= q["mesh"][info.mesh_dim]
        steps.append({"op": op, "mesh_dim": info.mesh_dim, "from": spell(before), "to": spell(after), "bytes": round(held, 3), "us": us})
        _update_shard_order_and_placements(info, placements, order)
    return steps


def answer(q, mesh):
    _mesh_resources.num_devices_per_host = staticmethod(lambda device_type: q["devices_per_host"])
    MeshTopoInfo.build_from_mesh.cache_clear()
    topo = MeshTopoInfo.build_from_mesh(mesh)
    src, dst = spec_of(q, "src", mesh), spec_of(q, "dst", mesh)
    plain = all(DTensorSpec.is_default_device_order(s.shard_order) for s in (src, dst))
    strided = any(isinstance(p, _StridedShard) for p in (*src.placements, *dst.placements))
    ret = dict(q, torch_uses="greedy" if plain and not strided else "graph")
    for name in ("greedy", "graph") if ret["torch_uses"] == "greedy" else ("graph",):
        planner = DTensorRedistributePlanner(mesh, src.tensor_meta)
        if name == "greedy":
            infos = planner.generate_greedy_transform_infos(src, dst)
        else:
            infos = planner.generate_graph_based_transform_infos(src, dst, src.shape)
        try:
            steps = steps_of(q, src, infos, topo)
            trace = planner.stringify_transform_infos(mesh, infos, src.placements, src.shard_order)
        except ValueError:
            if name != "greedy":
                raise
            continue
        ret[name] = {"steps": steps, "us": sum((s["us"] for s in steps), 0.0), "trace": trace}
    return ret


def main():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    meshes = {}
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "redistribute_more.jsonl")) as lines:
        for line in lines:
            line = json.loads(line)
            shape = tuple(line["mesh"])
            if shape not in meshes:
                meshes[shape] = DeviceMesh("cpu", torch.arange(math.prod(shape)).view(shape))
            q = {key: line[key] for key in QUESTION if key in line}
            print(json.dumps(answer(q, meshes[shape]), separators=(",", ":")))


main()
