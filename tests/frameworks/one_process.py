# SPDX-License-Identifier: Apache-2.0
"""One process that plays each rank of a job in turn, without any communication: torch's fake process group.

What a rank holds, and what this package says of it, needs no message. So a job of any shape can be checked in a second.
"""

import contextlib
import json
import os
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "python"))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ckptd import _layout


@contextlib.contextmanager
def as_rank(rank, world):
    """This process is rank `rank` of `world` inside the block."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        caches_clear()


def caches_clear():
    """DTensor keeps answers by the mesh, and meshes of two ranks of this process may be equal."""
    from torch_names import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    for name in ("propagate_op_sharding",):
        answers = getattr(propagator, name, None)
        cache = getattr(answers, "cache", answers)  # in torch 2.4 the cache itself
        if cache is not None and hasattr(cache, "cache_clear"):
            cache.cache_clear()
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()


def question(layout):
    """What `ckptctl layout --batch` is asked about a layout that is not boxes."""
    text = ["R"] * len(layout.mesh.sizes)
    order = {}
    for p in layout.placements:
        assert p.how == _layout.SHARD and text[p.mesh_dim] == "R"
        strided = p.split_factor > 1
        text[p.mesh_dim] = "_S(%d, %d)" % (p.tensor_dim, p.split_factor) if strided else "S(%d)" % p.tensor_dim
        order.setdefault(p.tensor_dim, []).append(p.mesh_dim)
    asked = {
        "shape": list(layout.shape),
        "mesh": list(layout.mesh.sizes),
        "placements": text,
        "ranks": list(layout.mesh.ranks),
    }
    if layout.mode == _layout.TORCH_ORDER:
        asked["mode"] = "order"
    else:
        asked["mode"] = "literal"
        asked["order"] = sorted(order.items())
    return asked


def ckptctl_says(layouts):
    """For each layout the elements of each rank: [{rank: tensor of row-major indices into the global tensor}]."""
    asked = "\n".join(json.dumps(question(one)) for one in layouts) + "\n"
    ctl = os.path.join(ROOT, "build", "ckptctl")
    got = subprocess.run([ctl, "layout", "--batch"], input=asked, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in got.stdout.splitlines()]
    assert len(answers) == len(layouts), got.stderr
    found = []
    for layout, answer in zip(layouts, answers):
        assert not isinstance(answer, dict), (question(layout), answer)
        held = {}
        for rank, share in zip(sorted(layout.mesh.ranks), answer):
            held[rank] = elements(layout.shape, share["runs"])
        found.append(held)
    return found


def elements(shape, runs):
    """The part of arange(numel).view(shape) that these runs of each dimension are."""
    whole = torch.arange(numel_of(shape)).view(shape)
    for d, pairs in enumerate(runs):
        index = [i for start, stop in pairs for i in range(start, stop)]
        whole = whole.index_select(d, torch.tensor(index, dtype=torch.long))
    return whole


def numel_of(shape):
    n = 1
    for size in shape:
        n *= size
    return n
