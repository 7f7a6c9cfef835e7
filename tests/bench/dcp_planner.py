#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch DCP's load planner takes for one rank's plan: dcp_planner.py RANK... < LIST

LIST is of `ckptbench plan list MODEL`: both meshes, then a line a tensor. The metadata that DCP would
read from .metadata (a chunk per distinct shard of the mesh that saved) are made first and not timed.
Timed is what its DefaultLoadPlanner does for a state dict of sharded tensors: a call of
create_read_items_for_chunk_list for each tensor of which the rank holds something. Prints lines
"NAME NUMBER"; every byte that the rank holds must be read by some item, or the program fails.
"""
import itertools
import math
import re
import sys
import time

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


def mesh_of(spec):
    return [(n, int(k)) for n, k in (x.split("=") for x in spec.split(","))]


def box(shape, cuts, mesh, coord):
    """The shard of a coordinate as (offsets, sizes); None where it is empty. Each cut is torch.chunk."""
    start, size = [0] * len(shape), list(shape)
    for dim, name in cuts:
        i = [n for n, _ in mesh].index(name)
        c = -(-size[dim] // mesh[i][1])
        at = min(coord[i] * c, size[dim])
        start[dim] += at
        size[dim] = min(c, size[dim] - at)
    return None if 0 in size else (tuple(start), tuple(size))


def cuts_of(text):
    return [(int(d), n) for d, n in re.findall(r"Shard\((\d+)\)@([\w.-]+)", text)]


def chunk_of(b):
    return ChunkStorageMetadata(offsets=torch.Size(b[0]), sizes=torch.Size(b[1]))


def main():
    lines = sys.stdin.read().splitlines()
    _, src, dst = lines[0].split(" ")
    src, dst = mesh_of(src), mesh_of(dst)
    coords = list(itertools.product(*(range(k) for _, k in src)))
    memo, tensors, saved_chunks = {}, [], 0
    for line in lines[1:]:
        name, shape, before, after = line.split("\t")
        shape = tuple(int(x) for x in shape.split(","))
        key = (shape, before)
        if key not in memo:
            memo[key] = sorted({b for b in (box(shape, cuts_of(before), src, c) for c in coords) if b})
        md = TensorStorageMetadata(
            properties=TensorProperties(dtype=torch.float32),
            size=torch.Size(shape),
            chunks=[chunk_of(b) for b in memo[key]],
        )
        saved_chunks += len(memo[key])
        tensors.append((name, shape, after, md))
    print("dcp_chunks", saved_chunks)
    sizes = [k for _, k in dst]
    for rank in map(int, sys.argv[1:]):
        coord, r = [], rank
        for k in reversed(sizes):
            coord.insert(0, r % k)
            r //= k
        mine = [(n, md, box(s, cuts_of(a), dst, coord)) for n, s, a, md in tensors]
        mine = [(n, md, [chunk_of(b)], math.prod(b[1])) for n, md, b in mine if b]
        begin = time.perf_counter_ns()
        items = [create_read_items_for_chunk_list(n, md, local) for n, md, local, _ in mine]
        ns = time.perf_counter_ns() - begin
        read = sum(math.prod(i.lengths) for x in items for i in x)
        if read != sum(n for _, _, _, n in mine):
            sys.exit(f"rank {rank}: DCP's plan reads {read} elements of {sum(n for _, _, _, n in mine)}")
        print("dcp_rank_plan", ns)
        print("dcp_ops", sum(map(len, items)))


main()
