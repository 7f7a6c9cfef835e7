# SPDX-License-Identifier: Apache-2.0
"""Real ranks (gloo): after a step of training, the elements that describe() says a rank holds are those that it has.

The values of the whole tensors are known beforehand. The collectives of this test are its own.
"""

import unittest

import ranks  # first: it sets the path

import torch
import torch.nn as nn
from torch_names import fsdp2_on_cpu

SHAPES = ((8, 6), (7, 5), (5,), (1, 3))


def check(rank, kind):
    """In each rank: the parts of every tensor are what ckptctl says that this rank holds."""
    import torch.distributed as dist
    from ckptd import _layout, _optim, _state
    from one_process import ckptctl_says

    net, wholes = MAKE[kind](rank)
    optim = torch.optim.AdamW(net.parameters(), lr=0.5)
    _optim.create_state(optim)
    before = declared(net, optim, rank)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optim.step()
    state = _state.collect(net, optim, rank=rank.rank, world=rank.world)
    state.check()
    after = declared(net, optim, rank)
    assert before == after, "the state of a real step is declared otherwise than the one made before it"
    everywhere = [None] * rank.world
    dist.all_gather_object(everywhere, after)
    assert all(a == after for a in everywhere), "two ranks declare different layouts"
    checked = 0
    for e in state.entries:
        if e.component != "model" or e.layout.mode == _layout.BOXES:
            continue
        whole = wholes[e.name] - 0.5 - 0.5 * 0.01 * wholes[e.name]  # one step of AdamW with gradients of 1
        said = ckptctl_says([e.layout])[0][rank.rank]
        parts = e.layout.parts
        assert len(parts) == (1 if said.numel() else 0), (e.key, said, parts)
        if parts:
            want = whole.flatten()[said.flatten()].view(said.shape)
            torch.testing.assert_close(parts[0].local, want, rtol=1e-5, atol=1e-5)
            checked += 1
    return checked


def listed(net, optim, rank):
    from ckptd import _state

    return _state.collect(net, optim, rank=rank.rank, world=rank.world).entries


def declared(net, optim, rank):
    entries = listed(net, optim, rank)
    return [(e.key, e.layout.shape, e.layout.mode, e.layout.mesh, e.layout.placements, e.dtype) for e in entries]


def fsdp_over_tp(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import distribute_tensor, fully_shard, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    net, wholes = nn.Module(), {}
    for i, shape in enumerate(SHAPES):
        whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
        wholes["tp%d" % i], wholes["norm%d" % i] = whole, whole + 1
        net.register_parameter("tp%d" % i, nn.Parameter(distribute_tensor(whole.clone(), mesh["tp"], [Shard(0)])))
        net.register_parameter("norm%d" % i, nn.Parameter(whole + 1))
    fully_shard(net, mesh=mesh["fsdp"])
    return net, wholes


def hsdp(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import fully_shard

    net, wholes = nn.Module(), {}
    for i, shape in enumerate(SHAPES):
        wholes["p%d" % i] = torch.arange(float(torch.Size(shape).numel())).view(shape)
        net.register_parameter("p%d" % i, nn.Parameter(wholes["p%d" % i].clone()))
    fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp")))
    return net, wholes


def fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    return FSDP(net, use_orig_params=True, device_id=torch.device("cpu")), {}


MAKE = {"fsdp2 x tp": fsdp_over_tp, "hsdp": hsdp}


def flat_step(rank):
    """FSDP1: a real step leaves the state that was made before it, on the ranks that were said to hold it."""
    from ckptd import _optim, _state

    torch.manual_seed(3)
    net, _ = fsdp1(rank)
    twin, _ = fsdp1(rank)
    optim, other = torch.optim.AdamW(net.parameters()), torch.optim.AdamW(twin.parameters())
    _optim.create_state(optim)
    twin(torch.ones(2, 5)).sum().backward()
    other.step()
    made = {e.key: (e.layout.shape, e.layout.mesh) for e in listed(net, optim, rank)}
    real = {e.key: (e.layout.shape, e.layout.mesh) for e in listed(twin, other, rank) if e.layout.parts}
    assert real.items() <= made.items(), (real, made)
    _state.collect(twin, other, rank=rank.rank, world=rank.world).check()
    return len(real)


class Ranks(ranks.Case):
    @fsdp2_on_cpu
    def test_what_is_said_is_what_is_held(self):
        job = self.job(daemon=False)
        for kind in MAKE:
            self.assertGreater(min(job.run(4, check, kind)), 2)
        self.assertGreater(min(job.run(2, flat_step)), 3)


if __name__ == "__main__":
    unittest.main()
