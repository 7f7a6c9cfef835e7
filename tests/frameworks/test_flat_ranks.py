# SPDX-License-Identifier: Apache-2.0
"""FSDP1 and ZeroRedundancyOptimizer with real ranks and a daemon: what one saves, the others and a plain model restore,
bit for bit."""

import unittest

import ranks  # first: it sets the path

import torch
import torch.nn as nn

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.a = nn.Linear(3, 5)
        self.b = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
        self.head = nn.Linear(7, 3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen += 1
        return self.head(self.b(self.a(x)))


def made(kind, optimizer):
    """A wrapped model and its optimizer."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = Net()
    if kind.startswith("fsdp1"):
        orig = kind == "fsdp1 orig"
        net.b = FSDP(net.b, use_orig_params=orig, device_id=CPU)
        net = FSDP(net, use_orig_params=orig, device_id=CPU)
    if kind == "zero":
        return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    if optimizer == "sgd":
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return net, torch.optim.AdamW(net.parameters(), lr=0.1)


def held(net, optim, rank):
    """{key: [(start, extent, values)]} of this rank."""
    from ckptd import _state

    state = _state.collect(net, optim, rank=rank.rank, world=rank.world)
    state.check()
    found = {}
    for e in state.entries:
        shape, found[e.key] = e.layout.shape, []
        for p in e.layout.parts:
            box = (p.start, p.extent) if p.start is not None else ((0,) * len(shape), shape)
            found[e.key].append((*box, p.local.detach().flatten().tolist(), shape))
    return found


def train(rank, kind, optimizer):
    net, optim = made(kind, optimizer)
    run = rank.attach(net, optim)
    run.restore()
    for step in (1, 2):
        net(torch.ones(2, 3)).square().sum().backward()
        with run.step(step):
            optim.step()
            optim.zero_grad()
    run.wait()
    found = held(net, optim, rank)
    run.detach()
    return found


def resume(rank, kind, optimizer):
    net, optim = made(kind, optimizer)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(9)
    run = rank.attach(net, optim)
    assert run.restore() == 2
    found = held(net, optim, rank)
    run.detach()
    return found


def whole(results):
    """{key: tensor} of all ranks' parts. Ranks that hold the same elements must have the same values."""
    found, count = {}, {}
    for held_here in results:
        for key, parts in held_here.items():
            for start, extent, values, shape in parts:
                at = tuple(slice(s, s + n) for s, n in zip(start, extent))
                into = found.setdefault(key, torch.full(shape, float("nan")))
                values = torch.tensor(values).view(extent)
                times = count.setdefault(key, torch.zeros(shape))
                assert bool(((into[at] == values) | (times[at] == 0)).all()), "%s differs between two ranks" % key
                into[at] = values
                times[at] += 1
    assert all(bool((c > 0).all()) for c in count.values()), "elements that no rank holds"
    return found


class Flat(ranks.Case):
    def check(self, optimizer, saver, readers):
        job = self.job()
        saved = whole(job.run(2, train, saver, optimizer))
        self.assertIn("optim/b.0.weight.%s" % ("momentum_buffer" if optimizer == "sgd" else "exp_avg"), saved)
        for kind, n in readers:
            with self.subTest(saver=saver, reader=kind, ranks=n):
                got = whole(job.run(n, resume, kind, optimizer))
                self.assertEqual(set(got), set(saved))
                for key in saved:
                    self.assertTrue(torch.equal(got[key], saved[key]), key)

    def test_adamw(self):
        self.check("adamw", "fsdp1 orig", (("fsdp1 flat", 3), ("plain", 1), ("zero", 2), ("fsdp1 orig", 2)))

    def test_sgd_whose_momentum_only_the_checkpoint_knows(self):
        self.check("sgd", "fsdp1 flat", (("fsdp1 orig", 3), ("plain", 1)))

    def test_zero(self):
        self.check("adamw", "zero", (("fsdp1 flat", 2), ("plain", 1)))


if __name__ == "__main__":
    unittest.main()
