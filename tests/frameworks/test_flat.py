# SPDX-License-Identifier: Apache-2.0
"""FSDP1's flat parameters and ZeroRedundancyOptimizer: what each rank declares of the original parameters."""

import collections
import unittest

from one_process import as_rank, numel_of, torch  # first: it sets the path

import torch.nn as nn
from ckptd import _layout, _optim, _state
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch_names import since

Info = collections.namedtuple("Info", "component name of dtype shape")
CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 5)
        self.b = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
        self.c = nn.Parameter(torch.zeros(2, 3, 2))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.a.weight
        self.register_buffer("seen", torch.zeros(2))


def numbered():
    """A Net whose elements are their own indices."""
    net = Net()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.arange(float(p.numel())).view(p.shape))
    return net


SHAPES = {
    "a.weight": (5, 3),
    "a.bias": (5,),
    "b.0.weight": (7, 5),
    "b.0.bias": (7,),
    "b.1.weight": (7,),
    "b.1.bias": (7,),
    "c": (2, 3, 2),
}


class Fsdp1(unittest.TestCase):
    def check_job(self, world, wrap, optimizer=torch.optim.AdamW):
        held = {}
        for rank in range(world):
            with as_rank(rank, world):
                net = wrap(numbered())
                optim = optimizer(net.parameters())
                _optim.create_state(optim)
                state = _state.collect(net, optim, rank=rank, world=world)
                state.check()
                self.assertEqual(state.aliases, {"model/head.weight": "model/a.weight"})
                for e in state.entries:
                    self.check_entry(e, rank, held)
        self.assertEqual({n for n in held if n.startswith("model/")}, {"model/" + n for n in SHAPES} | {"model/seen"})
        for name, shape in SHAPES.items():
            for key in ("model/" + name, "optim/" + name + ".exp_avg", "optim/" + name + ".exp_avg_sq"):
                self.check_cover(key, shape, held[key])
        return held

    def check_entry(self, e, rank, held):
        held.setdefault(e.key, {})[rank] = e.layout
        if e.component == "model" and e.name != "seen":
            self.assertEqual(e.layout.shape, SHAPES[e.name])
            whole = torch.arange(float(numel_of(e.layout.shape))).view(e.layout.shape)
            for part in e.layout.parts:
                said = whole[tuple(slice(s, s + n) for s, n in zip(part.start, part.extent))]
                self.assertEqual(part.local.tolist(), said.tolist(), e.key)
        for part in e.layout.parts:
            storage = e.home.value.untyped_storage()
            first = part.local.data_ptr() - storage.data_ptr()
            self.assertTrue(0 <= first < max(1, storage.nbytes()), "%s: its part is a copy" % e.key)

    def check_cover(self, key, shape, layouts):
        """All boxes of all ranks have every element once; boxes that a mesh holds alike count once."""
        count = torch.zeros(shape)
        for rank, layout in layouts.items():
            self.assertEqual(layout.mode, _layout.BOXES, key)
            ranks = layout.mesh.ranks if layout.mesh is not None else (rank,)
            self.assertIn(rank, ranks)
            if rank != min(ranks):
                mine = [(p.start, p.extent) for p in layout.parts]
                self.assertEqual(mine, [(p.start, p.extent) for p in layouts[min(ranks)].parts], key)
                continue
            for p in layout.parts:
                count[tuple(slice(s, s + n) for s, n in zip(p.start, p.extent))] += 1
        self.assertTrue(torch.equal(count, torch.ones(shape)), (key, count))

    def wraps(self, **more):
        def wrap(net):
            more["device_id"] = CPU
            net.b = FSDP(net.b, **more)
            return FSDP(net, **more)

        return wrap

    def test_with_and_without_original_parameters(self):
        for world in (1, 2, 3, 5):
            for orig in (False, True):
                with self.subTest(world=world, orig=orig):
                    self.check_job(world, self.wraps(use_orig_params=orig))

    def test_step_is_on_the_ranks_that_hold_the_parameter(self):
        for orig in (False, True):
            held = self.check_job(5, self.wraps(use_orig_params=orig))
            for name in SHAPES:
                holders = {r for r, one in held["model/" + name].items() if one.parts}
                steps = held["optim/%s.step" % name]
                self.assertEqual(set(steps), holders, name)
                for layout in steps.values():
                    self.assertEqual((set(layout.mesh.ranks), layout.shape), (holders, ()))

    def test_no_shard_holds_everything_on_every_rank(self):
        held = self.check_job(2, self.wraps(sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True))
        self.assertEqual(held["model/c"][1].mesh.ranks, (0, 1))

    def test_hybrid_shard(self):
        def wrap(net):
            mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("replicate", "shard"))
            hybrid = ShardingStrategy.HYBRID_SHARD
            return FSDP(net, device_mesh=mesh, sharding_strategy=hybrid, use_orig_params=True, device_id=CPU)

        held = self.check_job(6, wrap)
        self.assertEqual(held["model/c"][1].mesh.ranks, (1, 4))
        for name in SHAPES:
            holders = {r for r, one in held["model/" + name].items() if one.parts}
            step = held["optim/%s.step" % name]
            self.assertEqual({r % 3 for r in holders}, {r - 3 for r in holders if r > 2})
            self.assertEqual((set(step), set(step[min(step)].mesh.ranks)), (holders, holders))

    def test_hybrid_shard_on_meshes_with_ranks_in_another_order(self):
        """A shard is its number in the process group, which sorts: here each replica has an order of its own."""
        for array, alike in (([[3, 1], [0, 2]], (3, 2)), ([[0, 3], [1, 2]], (3, 2)), ([[2, 3], [1, 0]], (3, 1))):

            def wrap(net):
                mesh = DeviceMesh("cpu", array, mesh_dim_names=("replicate", "shard"))
                hybrid = ShardingStrategy.HYBRID_SHARD
                return FSDP(net, device_mesh=mesh, sharding_strategy=hybrid, use_orig_params=True, device_id=CPU)

            with self.subTest(mesh=array):
                held = self.check_job(4, wrap)
                self.assertEqual(held["model/c"][3].mesh.ranks, alike)
                for name in SHAPES:
                    holders = {r for r, one in held["model/" + name].items() if one.parts}
                    for layout in held["optim/%s.step" % name].values():
                        self.assertEqual(set(layout.mesh.ranks), holders)

    def test_state_that_a_checkpoint_has(self):
        """SGD's momentum, which _init_group does not make: flat like the parameter."""
        saved = [Info("optim", n + ".momentum_buffer", "model/" + n, 13, shape) for n, shape in SHAPES.items()]
        for orig, rank in ((orig, rank) for orig in (False, True) for rank in range(3)):
            with as_rank(rank, 3):
                net = self.wraps(use_orig_params=orig)(numbered())
                optim = torch.optim.SGD(net.parameters(), momentum=0.9)
                state = _state.collect(net, optim, rank=rank, world=3)
                names = {p: one.name for p, one in state.parameters.items()}
                self.assertEqual(_optim.create_state_like(optim, saved, names=names), [])
                state = _state.collect(net, optim, rank=rank, world=3)
                state.check()
                got = {e.key: e.layout for e in state.entries}
                for n in SHAPES:
                    ours = got["optim/%s.momentum_buffer" % n]
                    self.assertTrue(_layout.same_cut(ours, got["model/" + n]), (orig, rank, n))

    def test_the_names_are_those_of_the_plain_model(self):
        with as_rank(0, 2):
            wrapped = _state.collect(self.wraps(use_orig_params=False)(numbered()), None, rank=0, world=2)
            plain = _state.collect(numbered(), None, rank=0, world=2)
            self.assertEqual({e.key for e in wrapped.entries}, {e.key for e in plain.entries})

    def test_gathered_parameters_are_refused(self):
        with as_rank(0, 2):
            net = FSDP(numbered(), use_orig_params=True, device_id=CPU)
            handle = net._handle
            handle.flat_param.data = torch.zeros(handle.flat_param.numel() * 2)
            problems = _state.collect(net, None, rank=0, world=2).problems
            self.assertTrue(any("FSDP has gathered" in p for p in problems), problems)

    @since(2, 5, "FSDP flattens everything row-major")
    def test_parameters_that_are_not_row_major_are_refused(self):
        with as_rank(0, 2):
            net = nn.Module()
            net.w = nn.Parameter(torch.zeros(4, 3).t())
            problems = _state.collect(FSDP(net, use_orig_params=True, device_id=CPU), None, rank=0, world=2).problems
            self.assertTrue(any("not row-major" in p for p in problems), problems)


class Zero(unittest.TestCase):
    def test_each_state_is_on_one_rank(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        owners = {}
        for rank in range(3):
            with as_rank(rank, 3):
                net = numbered()
                optim = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)
                self.assertGreater(_optim.create_state(optim), 0)
                state = _state.collect(net, optim, rank=rank, world=3)
                state.check()
                for e in state.entries:
                    if e.component == "optim":
                        self.assertEqual((e.layout.mode, e.layout.mesh, e.layout.placements), (_layout.BOXES, None, ()))
                        (part,) = e.layout.parts
                        self.assertEqual((part.start, part.extent), ((0,) * len(e.layout.shape), e.layout.shape))
                        self.assertNotIn(e.key, owners)
                        owners[e.key] = rank
        keys = {"optim/%s.%s" % (n, k) for n in SHAPES for k in ("step", "exp_avg", "exp_avg_sq")}
        self.assertEqual(set(owners), keys)
        self.assertEqual(set(owners.values()), {0, 1, 2})


if __name__ == "__main__":
    unittest.main()
