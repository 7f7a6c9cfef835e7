# SPDX-License-Identifier: Apache-2.0
"""The list of what is saved of a model and its optimizers, and optimizer state before the first step."""

import contextlib
import copy
import dataclasses
import functools
import gc
import types
import unittest
from unittest import mock

from one_process import as_rank, torch  # first: it sets the path

import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from ckptd import _layout, _names, _nested, _optim, _state
from torch.distributed.device_mesh import init_device_mesh
from torch_names import distribute_tensor, fully_shard, Replicate, Shard, since
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


class Net(nn.Module):
    """Tied weights, a frozen layer, persistent buffers and one that is not, a 0-d parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.head(self.norm(self.frozen(self.embed(x))) * self.scale * self.mask)


def backward(model, seed=0):
    for i, p in enumerate(model.parameters()):
        if p.requires_grad:
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed + i)).to(p.dtype)


def collect(model, optims=None, rank=0, world=1, **more):
    return _state.collect(model, optims, rank=rank, world=world, **more)


def table(state):
    return {e.key: e for e in state.entries}


class Collect(unittest.TestCase):
    def test_names_classes_and_roles(self):
        net = Net()
        optim = torch.optim.AdamW(net.parameters())
        _optim.create_state(optim)
        state = collect(net, optim)
        state.check()
        got = {e.key: (e.role, e.cls, e.of) for e in state.entries if e.component == "model"}
        param, buffer = (_state.PARAM, _state.STABLE, None), (_state.BUFFER, _state.VOLATILE, None)
        self.assertEqual(
            got,
            {
                "model/scale": param,
                "model/embed.weight": param,
                "model/norm.weight": param,
                "model/norm.bias": param,
                "model/frozen.weight": param,
                "model/frozen.bias": param,
                "model/seen": buffer,
                "model/norm.running_mean": buffer,
                "model/norm.running_var": buffer,
                "model/norm.num_batches_tracked": buffer,
            },
        )
        roles = {e.name: (e.role, e.cls, e.of) for e in state.entries if e.component == "optim"}
        self.assertEqual(len(roles), 3 * 4)
        self.assertEqual(roles["norm.bias.step"], (_state.COUNTER, _state.STABLE, "model/norm.bias"))
        self.assertEqual(roles["embed.weight.exp_avg"], (_state.MOMENT1, _state.STABLE, "model/embed.weight"))
        self.assertEqual(roles["scale.exp_avg_sq"], (_state.MOMENT2, _state.STABLE, "model/scale"))
        self.assertEqual(state.aliases, {"model/head.weight": "model/embed.weight"})
        self.assertEqual(table(state)["model/embed.weight"].aliases, ("head.weight",))
        names = {e.name for e in state.entries if e.component == "model"}
        self.assertEqual(set(net.state_dict()), names | {"head.weight"})

    def test_homes_are_where_the_program_keeps_its_tensors(self):
        net = Net()
        optim = torch.optim.AdamW(net.parameters())
        _optim.create_state(optim)
        for e in collect(net, optim).entries:
            self.assertIs(e.home.mapping.get(e.home.key), e.home.value, e.key)
            self.assertEqual([p.local.data_ptr() for p in e.layout.parts], [e.home.value.data_ptr()])
        net.norm.weight = nn.Parameter(torch.zeros(4))
        moved = [e.key for e in collect(net, optim).entries if e.home.mapping.get(e.home.key) is not e.home.value]
        self.assertEqual(moved, [])

    def test_wrappers_leave_no_segment(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        plain = {e.key for e in collect(Net()).entries}
        net = Net()
        net.frozen = checkpoint_wrapper(net.frozen)
        net.norm = torch.compile(net.norm)
        self.assertEqual({e.key for e in collect(torch.compile(net)).entries}, plain)
        with as_rank(0, 2):
            wrapped = nn.parallel.DistributedDataParallel(Net())
            self.assertEqual({e.key for e in collect(wrapped, world=2).entries}, plain)

    def test_a_module_of_the_user_named_module_stays(self):
        outer = nn.Module()
        outer.module = nn.Linear(2, 2)
        self.assertEqual({e.name for e in collect(outer).entries}, {"module.weight", "module.bias"})

    def test_a_module_with_two_names_and_memory_with_two_parameters_are_one_tensor(self):
        net = nn.Module()
        net.a = nn.Linear(2, 3)
        net.b = net.a
        net.c = nn.Parameter(net.a.weight.data)
        net.register_buffer("d", torch.zeros(2))
        net.register_buffer("e", net.d)
        state = collect(net)
        self.assertEqual({e.name for e in state.entries}, {"c", "d", "a.bias"})
        self.assertEqual(
            state.aliases,
            {
                "model/a.weight": "model/c",
                "model/b.weight": "model/c",
                "model/b.bias": "model/a.bias",
                "model/e": "model/d",
            },
        )

    def test_state_of_a_tied_parameter_has_the_first_name_and_is_once(self):
        net = nn.Module()
        net.a = nn.Parameter(torch.zeros(2, 3))
        net.b = nn.Parameter(net.a.data)
        optim = torch.optim.AdamW([net.b])
        _optim.create_state(optim)
        state = collect(net, optim)
        state.check()
        self.assertEqual(table(state)["optim/a.exp_avg"].of, "model/a")
        both = torch.optim.AdamW(net.parameters())
        _optim.create_state(both)
        problems = collect(net, both).problems
        self.assertEqual(len(problems), 1)
        self.assertIn("model/b: the optimizer updates it and model/a, which are the same memory", problems[0])

    def test_two_optimizers(self):
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        first, second = torch.optim.AdamW(net[0].parameters()), torch.optim.SGD(net[1].parameters(), momentum=0.9)
        self.assertEqual(_state.components_of([first, second]), ["optim", "optim"])
        both = torch.optim.Adagrad(net.parameters())
        self.assertEqual(_state.components_of([first, second, both]), ["optim", "optim", "optim1"])
        _optim.create_state(first)
        state = collect(net, {"a": first, "b": second, "c": both})
        state.check()
        keys = set(table(state))
        self.assertIn("optim/0.weight.exp_avg", keys)
        self.assertIn("optim1/0.weight.sum", keys)
        self.assertIn("optim1/1.weight.sum", keys)
        self.assertIn("x/0.weight.exp_avg", table(collect(net, [first], components=["x"])))

    def test_an_optimizer_that_was_given_twice_counts_once(self):
        net = nn.Linear(2, 2)
        optim = torch.optim.Adagrad(net.parameters())
        collect(net, [optim, optim]).check()

    def test_parts_of_a_pipeline_stage_and_named_models(self):
        parts = [nn.Sequential(), nn.Sequential()]
        parts[0].add_module("0", nn.Linear(2, 2))
        parts[1].add_module("2", nn.Linear(2, 2))
        self.assertEqual([e.name for e in collect(parts).entries], ["0.weight", "0.bias", "2.weight", "2.bias"])
        named = collect({"g": nn.Linear(2, 2), "d": nn.Linear(2, 2)})
        self.assertEqual([e.name for e in named.entries], ["g.weight", "g.bias", "d.weight", "d.bias"])
        self.assertEqual(collect(None).entries, [])

    def test_ranks_of_a_pipeline_stage(self):
        for e in collect(Net(), rank=2, world=4, ranks=(2, 3)).entries:
            self.assertEqual(e.layout.mesh.ranks, (2, 3))
        with as_rank(5, 8):
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "fsdp"))
            net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
            fully_shard(net, mesh=mesh["fsdp"])
            optim = torch.optim.AdamW(net.parameters())
            _optim.create_state(optim)
            for e in collect(net, optim, rank=5, world=8).entries:
                self.assertEqual(sorted(e.layout.mesh.ranks), [4, 5, 6, 7], e.key)

    def test_everything_that_is_wrong_is_listed_in_one_exception(self):
        net = nn.Module()
        net.a = nn.Parameter(torch.zeros(3).expand(2, 3))
        net.register_buffer("b", torch.zeros(2, 2).to_sparse())
        net.register_buffer("c", torch.zeros(2, device="meta"))
        net.d = nn.Parameter(torch.zeros(2, dtype=torch.float32))
        net.add_module("x" * 1100, nn.Linear(1, 1, bias=False))
        net.lone = nn.Module()
        net.lone.register_parameter("nul\0", nn.Parameter(torch.zeros(1)))
        stray = nn.Parameter(torch.zeros(5, 4))
        optim = torch.optim.AdamW([net.d, stray])
        state = collect(net, optim)
        with self.assertRaises(_state.UnsupportedState) as caught:
            state.check()
        text = str(caught.exception)
        found = ("model/a: ", "model/b: it is sparse", "model/c: it is on the meta", "1107 bytes", "zero byte")
        for said in found + ("(5, 4)", "masters="):
            self.assertIn(said, text)
        self.assertEqual(len(caught.exception.problems), 6)
        self.assertEqual([e.name for e in state.entries], ["d"])

    def test_names_that_collide(self):
        a, b = nn.Linear(2, 2), nn.Linear(2, 2)
        state = collect([a, b])
        self.assertEqual(len(state.problems), 2)
        self.assertIn("model/weight: two tensors have this name", state.problems[0])

    def test_masters_and_derived_parameters(self):
        class Mixed(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})

            def step(self, closure=None):
                pass

        net = nn.Linear(3, 2, dtype=torch.bfloat16)
        optim = Mixed(net.parameters())
        for p in net.parameters():
            optim.state[p]["master_param"] = p.detach().float()
        state = collect(net, optim)
        state.check()
        got = table(state)
        param, master = got["model/weight"], got["optim/weight.master_param"]
        self.assertEqual((param.cls, param.of), (_state.DERIVED, "optim/weight.master_param"))
        self.assertEqual((master.role, master.of), (_state.MASTER, "model/weight"))

    def test_masters_that_the_optimizer_updates(self):
        net = nn.Linear(3, 2, dtype=torch.bfloat16)
        masters = {n: nn.Parameter(p.detach().float()) for n, p in net.named_parameters()}
        optim = torch.optim.AdamW(masters.values())
        _optim.create_state(optim)
        self.assertEqual(len(collect(net, optim).problems), 2)
        for given in (masters, {p: masters[n] for n, p in net.named_parameters()}):
            state = collect(net, optim, masters=given)
            state.check()
            got = table(state)
            self.assertEqual((got["model/bias"].cls, got["model/bias"].of), (_state.DERIVED, "optim/bias.master"))
            self.assertEqual(got["optim/bias.exp_avg"].of, "model/bias")
            home = got["optim/weight.master"].home
            self.assertIs(home.mapping.get(home.key), masters["weight"])
        self.assertIn("no parameter", collect(net, None, masters={"nope": masters["bias"]}).problems[0])

    def test_a_parameter_of_another_cut_than_its_master_is_not_derived(self):
        with as_rank(0, 2):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
            net = nn.Linear(3, 2, bias=False, dtype=torch.bfloat16)
            master = nn.Parameter(distribute_tensor(net.weight.detach().float(), mesh, [Shard(0)], src_data_rank=None))
            state = collect(net, torch.optim.AdamW([master]), world=2, masters={"weight": master})
            state.check()
            self.assertEqual(table(state)["model/weight"].cls, _state.STABLE)

    def test_nested_state_and_values_that_are_no_tensors(self):
        @dataclasses.dataclass
        class Factor:
            left: torch.Tensor
            rank: int

        net = nn.Linear(2, 2, bias=False)
        optim = torch.optim.SGD(net.parameters())
        p = net.weight
        optim.state[p].update({"step": 3, "none": None, "q": [torch.zeros(2, 2), {"u": torch.zeros(2)}]})
        optim.state[p].update({"f": Factor(torch.zeros(2), 4), 7: torch.ones(1)})
        optim.state["global"] = {"norm": torch.zeros(3), "n": 1}
        state = collect(net, optim)
        state.check()
        names = {e.name for e in state.entries if e.component == "optim"}
        self.assertEqual(names, {"weight.q.0", "weight.q.1.u", "weight.f.left", "weight.7", "state.global.norm"})
        for e in state.entries:
            self.assertIs(e.home.mapping.get(e.home.key), e.home.value, e.key)
        self.assertEqual({x.name for x in state.loose}, {"weight.step", "weight.f.rank", "state.global.n"})
        self.assertEqual([x.mapping[x.key] for x in state.loose if x.name == "weight.step"], [3])

    def test_extra_state_of_modules_is_named(self):
        class Odd(nn.Module):
            def get_extra_state(self):
                return 1

            def set_extra_state(self, state):
                pass

        net = nn.Sequential(nn.Linear(1, 1), Odd())
        self.assertEqual([(n, m) for n, m in collect(net).extra_states], [("1", net[1])])

    def test_wrapper_subclasses_are_taken_apart(self):
        net = nn.Module()
        net.w = nn.Parameter(Scaled(torch.zeros(4, 2, dtype=torch.int8), torch.ones(4)), requires_grad=False)
        state = collect(net)
        state.check()
        got = [(e.name, e.layout.shape, e.dtype) for e in state.entries]
        self.assertEqual(got, [("w.q", (4, 2), 3), ("w.scale", (4,), 13)])
        for e in state.entries:
            self.assertIs(e.home.mapping.get(e.home.key), e.home.value)

    def test_plain_state_of_a_sharded_parameter(self):
        for rank in range(3):
            with as_rank(rank, 3):
                mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("fsdp",))
                net = nn.Linear(3, 4, bias=False)
                fully_shard(net, mesh=mesh)
                optim = torch.optim.SGD(net.parameters())
                p = net.weight
                optim.state[p]["local"] = torch.zeros(p._local_tensor.shape)
                optim.state[p]["whole"] = torch.zeros(4, 3)
                optim.state[p]["norm"] = torch.zeros(1)
                optim.state[p]["rows"] = torch.zeros(p._local_tensor.shape[0] + 7)
                state = collect(net, optim, rank=rank, world=3)
                got = table(state)
                self.assertTrue(_layout.same_cut(got["optim/weight.local"].layout, got["model/weight"].layout))
                self.assertEqual(got["optim/weight.whole"].layout.placements, ())
                self.assertEqual(got["optim/weight.norm"].layout.shape, (1,))
                self.assertEqual(len(state.problems), 1)
                self.assertIn("optim/weight.rows: its shape", state.problems[0])

    @since(2, 5, "no Adafactor")
    def test_no_collective_is_called(self):
        with as_rank(1, 6), no_collectives():
            mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("fsdp", "tp"))
            net = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))
            for n, p in list(net[0].named_parameters()):
                value = distribute_tensor(p.detach(), mesh["tp"], [Shard(0)], src_data_rank=None)
                setattr(net[0], n, nn.Parameter(value))
            fully_shard(net, mesh=mesh["fsdp"])
            optims = [torch.optim.AdamW(net.parameters()), torch.optim.Adafactor(net.parameters())]
            for optim in optims:
                self.assertEqual(_optim.create_state(optim), 4)
            collect(net, optims, rank=1, world=6).check()

    def test_time_is_linear(self):
        """Not by the clock: what collect() calls for twice as many parameters is twice as much."""
        import cProfile
        import pstats

        calls = []
        for n in (200, 400):
            net = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(n)])
            optim = torch.optim.AdamW(net.parameters())
            _optim.create_state(optim)
            profile = cProfile.Profile()
            profile.runcall(collect, net, optim)
            calls.append(pstats.Stats(profile).total_calls)
        self.assertLess(calls[1], 2.05 * calls[0])

    def test_the_garbage_collector_is_on_again(self):
        self.assertTrue(gc.isenabled())
        with self.assertRaises(TypeError):
            collect(3)
        self.assertTrue(gc.isenabled())


class Scaled(torch.Tensor):
    """As torchao's: two tensors in one."""

    @staticmethod
    def __new__(cls, q, scale):
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=torch.float32)

    def __init__(self, q, scale):
        self.q, self.scale = q, scale

    def __tensor_flatten__(self):
        return ["q", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Scaled(args[0].q, args[0].scale)
        raise NotImplementedError(str(func))


@contextlib.contextmanager
def no_collectives():
    """Every collective of torch.distributed raises inside the block."""

    def refuse(name):
        def called(*args, **kwargs):
            raise AssertionError("a collective was called: %s" % name)

        return called

    text = (
        "all_reduce all_gather all_gather_into_tensor all_gather_object broadcast broadcast_object_list reduce "
        "reduce_scatter reduce_scatter_tensor scatter gather gather_object barrier monitored_barrier all_to_all "
        "all_to_all_single send recv isend irecv"  # init_device_mesh makes groups: that is the program's own
    )
    names = [n for n in text.split() if hasattr(dist, n)]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(dist, name, refuse(name)))
            if hasattr(dist.distributed_c10d, name):
                stack.enter_context(mock.patch.object(dist.distributed_c10d, name, refuse(name)))
        import torch.distributed._functional_collectives as funcol

        for name in ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"):
            stack.enter_context(mock.patch.object(funcol, name, refuse(name)))
        yield


def described(optim):
    """What a state has: for each parameter in order the keys with shape, local shape, type, device and kind."""
    found = []
    for group in optim.param_groups:
        for p in group["params"]:
            values = {}
            for key, v in optim.state.get(p, {}).items():
                local = getattr(v, "_local_tensor", v)
                if isinstance(v, torch.Tensor):
                    values[key] = (tuple(v.shape), tuple(local.shape), local.stride(), v.dtype, v.device)
                    values[key] += (type(v).__name__, getattr(v, "placements", None), v.requires_grad)
                else:
                    values[key] = type(v)
            found.append(values)
    return found


O = torch.optim
OPTIMIZERS = {
    "AdamW": O.AdamW,
    "AdamW foreach": functools.partial(O.AdamW, foreach=True),
    "AdamW fused": functools.partial(O.AdamW, fused=True),
    "AdamW amsgrad": functools.partial(O.AdamW, amsgrad=True),
    "Adam": O.Adam,
    "Adam fused amsgrad": functools.partial(O.Adam, fused=True, amsgrad=True),
    "NAdam": O.NAdam,
    "RAdam": O.RAdam,
    "Adamax": O.Adamax,
    "Adadelta": O.Adadelta,
    "ASGD": O.ASGD,
    "Rprop": O.Rprop,
    "RMSprop": functools.partial(O.RMSprop, momentum=0.9, centered=True),
    "SGD": O.SGD,
    "SGD with momentum": functools.partial(O.SGD, momentum=0.9),
    "SGD fused": functools.partial(O.SGD, fused=True),
    "Adagrad": O.Adagrad,
    "Adafactor": getattr(O, "Adafactor", None),
    "Muon": getattr(O, "Muon", None),
}


def small_net(name):
    torch.manual_seed(1)
    if name == "Muon":
        return nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 4, bias=False))
    net = nn.Sequential(nn.Linear(3, 5), nn.Conv2d(2, 3, 3), nn.LayerNorm(4))
    net.register_parameter("scalar", nn.Parameter(torch.ones(())))
    if name != "Adafactor":  # it divides by the number of elements
        net.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    net[2].bias.requires_grad_(False)
    return net


class CreateState(unittest.TestCase):
    def test_it_is_what_a_first_step_leaves(self):
        for name, make in OPTIMIZERS.items():
            if make is None:
                continue
            with self.subTest(name):
                net, twin = small_net(name), small_net(name)
                optim, other = make(net.parameters()), make(twin.parameters())
                before = [p.detach().clone() for p in net.parameters()]
                random = torch.get_rng_state()
                made = _optim.create_state(optim)
                backward(twin)
                other.step()
                if name.startswith("SGD"):
                    self.assertEqual((made, dict(optim.state)), (0, {}))
                    continue
                self.assertEqual(described(optim), described(other))
                self.assertEqual(torch.get_rng_state().tolist(), random.tolist())
                for p, was in zip(net.parameters(), before):
                    self.assertTrue(torch.equal(p, was))
                    self.assertIsNone(p.grad)
                    step = optim.state.get(p, {}).get("step")
                    self.assertTrue(step is None or float(step) == 0.0)

    def test_the_next_steps_are_those_of_an_optimizer_that_was_left_alone(self):
        for name, make in OPTIMIZERS.items():
            if make is None:
                continue
            with self.subTest(name):
                net, twin = small_net(name), small_net(name)
                optim, other = make(net.parameters()), make(twin.parameters())
                _optim.create_state(optim)
                for seed in range(3):
                    backward(net, seed), backward(twin, seed)
                    optim.step(), other.step()
                for a, b in zip(net.parameters(), twin.parameters()):
                    self.assertTrue(torch.equal(a, b), name)

    def test_capturable_keeps_step_on_the_device_of_the_parameter(self):
        net = nn.Linear(2, 2)
        optim = torch.optim.AdamW(net.parameters(), capturable=True)
        self.assertEqual(_optim.create_state(optim), 2)
        self.assertEqual(optim.state[net.weight]["step"].device, net.weight.device)

    def test_gradients_that_exist_stay_and_no_copy_of_them_is_made(self):
        net = nn.Linear(500, 400)
        backward(net)
        grads = [p.grad for p in net.parameters()]
        values = [g.clone() for g in grads]
        seen = []
        optim = torch.optim.AdamW(net.parameters())
        original = optim._init_group

        @functools.wraps(original)
        def spy(group, *lists):
            seen.extend(p.grad.untyped_storage().nbytes() for p in group["params"])
            return original(group, *lists)

        with mock.patch.object(optim, "_init_group", spy):
            _optim.create_state(optim)
        self.assertEqual(seen, [4, 4])
        for p, g, v in zip(net.parameters(), grads, values):
            self.assertIs(p.grad, g)
            self.assertTrue(torch.equal(g, v))

    def test_state_that_exists_stays(self):
        net = nn.Linear(2, 2)
        optim = torch.optim.AdamW(net.parameters())
        backward(net)
        optim.step()
        optim.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        was = {p: dict(s) for p, s in optim.state.items()}
        self.assertEqual(_optim.create_state(optim), 1)
        for p, s in was.items():
            self.assertTrue(all(optim.state[p][k] is v for k, v in s.items()))

    def test_an_optimizer_with_a_step_of_its_own_is_left_alone(self):
        class Mine(torch.optim.AdamW):
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if not self.state[p]:
                            self.state[p]["mine"] = torch.zeros_like(p)

        net = nn.Linear(2, 2)
        optim = Mine(net.parameters())
        self.assertEqual(_optim.create_state(optim), 0)
        self.assertEqual(dict(optim.state), {})
        optim.step()
        self.assertIn("mine", optim.state[net.weight])

    def test_gradients_come_back_if_the_optimizer_refuses(self):
        p = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        optim = torch.optim.Adafactor([p]) if hasattr(torch.optim, "Adafactor") else self.skipTest("no Adafactor")
        with self.assertRaises(RuntimeError):
            _optim.create_state(optim)
        self.assertIsNone(p.grad)
        self.assertEqual(dict(optim.state), {})

    @since(2, 5, "an optimizer cannot update parameters of FSDP2 over TP beside parameters of FSDP2")
    def test_dtensors(self):
        """Twins under FSDP2 over TP, for each rank: what the state is like does not depend on the gradient's values."""
        for rank in range(6):
            with as_rank(rank, 6):
                for name in ("AdamW", "AdamW foreach", "AdamW fused", "RMSprop", "Adagrad", "NAdam", "RAdam"):
                    net, twin = dtensor_net(), dtensor_net()
                    optim, other = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](twin.parameters())
                    self.assertEqual(_optim.create_state(optim), 3 if name != "Adagrad" else 0)
                    for p in twin.parameters():
                        p.grad = torch.ones_like(p)
                    other.step()
                    self.assertEqual(described(optim), described(other), (rank, name))

    def test_adafactor_on_dtensors(self):
        if not hasattr(torch.optim, "Adafactor"):
            self.skipTest("no Adafactor")
        with as_rank(1, 6):
            net = dtensor_net()
            optim = torch.optim.Adafactor(net.parameters())
            self.assertEqual(_optim.create_state(optim), 3)
            collect(net, optim, rank=1, world=6).check()


def dtensor_net():
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("fsdp", "tp"))
    net = nn.Module()
    for i, shape in enumerate(((7, 3), (5,))):
        value = distribute_tensor(torch.ones(shape), mesh["tp"], [Shard(0)], src_data_rank=None)
        net.register_parameter("p%d" % i, nn.Parameter(value))
    net.register_parameter("norm", nn.Parameter(torch.ones(7)))
    fully_shard(net, mesh=mesh["fsdp"])
    return net


def saved(state):
    """The entries of a state as ckpt_tensors lists them."""
    return [info(e.name, e.of or "", e.dtype, e.layout.shape, e.component) for e in state.entries]


def info(name, of, dtype, shape, component="optim"):
    return types.SimpleNamespace(component=component, name=name, of=of, dtype=dtype, shape=shape)


class CreateStateLike(unittest.TestCase):
    def names(self, state):
        return {p: one.name for p, one in state.parameters.items()}

    def test_momentum_of_sgd(self):
        net, twin = small_net("SGD"), small_net("SGD")
        make = functools.partial(torch.optim.SGD, momentum=0.9)
        optim, other = make(net.parameters()), make(twin.parameters())
        backward(twin)
        other.step()
        was = collect(twin, other)
        state = collect(net, optim)
        self.assertEqual(_optim.create_state_like(optim, saved(was), names=self.names(state)), [])
        for key in described(other)[0]:
            self.assertEqual(key, "momentum_buffer")
        self.assertEqual(described(optim), described(other))
        self.assertEqual([e.key for e in collect(net, optim).entries], [e.key for e in was.entries])

    def test_state_in_another_type_and_of_another_shape(self):
        net = nn.Linear(3, 2, dtype=torch.bfloat16)
        optim = torch.optim.SGD(net.parameters())
        had = [
            ("weight.m", "model/weight", 13, (2, 3)),
            ("weight.step", "model/weight", 13, ()),
            ("weight.row", "model/weight", 13, (2,)),
            ("weight.q.0", "model/weight", 13, (2, 3)),
            ("weight.odd", "model/weight", 99, (2, 3)),
            ("gone.m", "model/gone", 13, (2,)),
        ]
        infos = [info(*one) for one in had]
        problems = _optim.create_state_like(optim, infos, names=self.names(collect(net, optim)))
        got = optim.state[net.weight]
        made = dict(_nested.tensors_in(got))
        shapes = {"m": (2, 3), "step": (), "row": (2,), "q.0": (2, 3)}
        self.assertEqual({k: tuple(v.shape) for k, v in made.items()}, shapes)
        self.assertEqual({v.dtype for v in made.values()}, {torch.float32})
        self.assertIsInstance(got["q"], _nested.Made)
        self.assertEqual(len(problems), 1)
        self.assertIn("optim/weight.odd", problems[0])
        before = {k: v.fill_(1) for k, v in made.items()}
        _optim.create_state_like(optim, infos, names=self.names(collect(net, optim)))
        for path, tensor in _nested.tensors_in(got):  # a second call leaves what there is
            self.assertIs(tensor, before[path])

    def test_dtensors(self):
        with as_rank(4, 6), no_collectives():
            net = dtensor_net()
            optim = torch.optim.SGD(net.parameters(), momentum=0.9)
            state = collect(net, optim, rank=4, world=6)
            infos = [
                info("p0.momentum_buffer", "model/p0", 13, (7, 3)),
                info("p0.row", "model/p0", 13, (7,)),
            ]
            problems = _optim.create_state_like(optim, infos, names=self.names(state))
            self.assertEqual(len(problems), 1)
            self.assertIn("optim/p0.row: it has shape (7,)", problems[0])
            self.assertEqual(optim.state[net.p0]["momentum_buffer"].placements, net.p0.placements)
            got = table(collect(net, optim, rank=4, world=6))
            self.assertTrue(_layout.same_cut(got["optim/p0.momentum_buffer"].layout, got["model/p0"].layout))

    def test_what_exists_stays_and_other_components_are_not_touched(self):
        net = nn.Linear(3, 2)
        optim = torch.optim.AdamW(net.parameters())
        _optim.create_state(optim)
        was = {p: dict(s) for p, s in optim.state.items()}
        infos = saved(collect(net, optim))
        infos.append(info("weight.m", "model/weight", 13, (2, 3), "optim1"))
        self.assertEqual(_optim.create_state_like(optim, infos, names=self.names(collect(net, optim))), [])
        for p, s in was.items():
            self.assertEqual({k: id(v) for k, v in s.items()}, {k: id(v) for k, v in optim.state[p].items()})


if __name__ == "__main__":
    unittest.main()
