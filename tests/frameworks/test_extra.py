# SPDX-License-Identifier: Apache-2.0
"""Extras with real torch: what is collected from schedulers, scalers, loaders, generators and optimizers comes back,
also on another number of ranks. The ranks of a test are made one after the other in this process; what needs a daemon
has its own.
"""

import copy
import dataclasses
import os
import pathlib
import json
import random
import subprocess
import sys
import types
import unittest
import warnings
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import rig  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from torch.optim import lr_scheduler as lrs  # noqa: E402

from ckptd import _codec, _lib, _nested, _values  # noqa: E402
from ckptd._extra import CAP_MIN, ExtraError, Extras  # noqa: E402
from ckptd._rng import rng  # noqa: E402


class Fake:
    """A handle whose blobs go nowhere. `seen`: what ckpt_blob_resize was called with."""

    rank, world = 0, 1

    def __init__(self):
        self.seen = []
        self.blobs = {}

    def blob_add(self, name, cap, how):
        assert how == _lib.CKPT_PER_RANK | _lib.CKPT_JSON
        self.blobs[name] = _values.Blob(name, how, cap)
        return self.blobs[name]

    def blob_resize(self, name, cap):
        self.seen.append((name, cap))
        self.blobs[name].cap = cap


def bytes_of(extras):
    return {b.name: bytes(b._map[: b.length.value]) for b in extras.blobs}


def make(objects=None, **more):
    extras = Extras(objects, **more)
    extras.declare(Fake())
    return extras


def grows(extras):
    """Collect. Did a blob get more room?"""
    said = []
    extras.collect(lambda: said.append(True))
    return bool(said)


def saved(objects=None, **more):
    """The blobs of one rank now."""
    extras = make(objects, **more)
    extras.collect()
    return bytes_of(extras)


def load(steps, rank, world, objects=None, **more):
    """Restore what the ranks of a job saved, of which `steps` are the blobs."""
    decoded = Extras(objects, **more).decode_from(lambda name, r: steps[r].get(name), len(steps), rank, world)
    decoded.load()
    return decoded


def training(make_sched, lr=0.1, tensor=False):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 3)
    optim = torch.optim.AdamW(model.parameters(), lr=torch.tensor(lr) if tensor else lr)
    return optim, make_sched(optim)


class Warm:
    """A lambda with a state."""

    def __init__(self, k):
        self.k = k

    def __call__(self, epoch):
        return self.k / (epoch + 1)


class CustomLoader:
    def __init__(self, rank):
        self.rank, self.at = rank, 0

    def state_dict(self):
        return {"rank": self.rank, "at": self.at}

    def load_state_dict(self, state):
        self.rank, self.at = state["rank"], state["at"]


@dataclasses.dataclass
class Progress:
    seen: int
    losses: list


class Schedulers(unittest.TestCase):
    KINDS = {
        "cosine": lambda o: lrs.CosineAnnealingLR(o, 20),
        "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 4),
        "lambda": lambda o: lrs.LambdaLR(o, lambda e: 0.9**e),
        "callable": lambda o: lrs.LambdaLR(o, Warm(3.0)),
        "multiplicative": lambda o: lrs.MultiplicativeLR(o, lambda e: 0.95),
        "cycle": lambda o: lrs.OneCycleLR(o, 1.0, total_steps=40),
        "cyclic": lambda o: lrs.CyclicLR(o, 0.1, 1.0, step_size_up=5, cycle_momentum=False, scale_fn=Warm(2.0)),
        "sequence": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o), lrs.CosineAnnealingLR(o, 20)], [8]),
        "chain": lambda o: lrs.ChainedScheduler([lrs.LinearLR(o), lrs.ExponentialLR(o, 0.9)]),
        "multistep": lambda o: lrs.MultiStepLR(o, [3, 9]),
    }

    def rates(self, optim, sched, n):
        out = []
        for _ in range(n):
            optim.step()
            sched.step()
            out.append([float(g["lr"]) for g in optim.param_groups])
        return out

    def test_every_scheduler_continues_with_the_same_rates(self):
        for tensor in (False, True):
            for name, kind in self.KINDS.items():
                if tensor and name in ("cycle", "cyclic", "chain"):
                    continue
                with self.subTest(name, tensor=tensor), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    optim, sched = training(kind, tensor=tensor)
                    self.rates(optim, sched, 7)
                    step = saved({"sched": sched}, optims={"optim": optim})
                    expected = self.rates(optim, sched, 9)
                    optim, sched = training(kind, tensor=tensor)
                    load([step], 0, 1, {"sched": sched}, optims={"optim": optim})
                    self.assertEqual(self.rates(optim, sched, 9), expected)

    def test_plateau_keeps_its_best_which_begins_as_infinity(self):
        optim, sched = training(lambda o: lrs.ReduceLROnPlateau(o, patience=1))
        step = saved({"sched": sched})
        self.assertIn(b'"$float": "inf"', step["extra.sched"])
        sched.step(1.0)
        later = saved({"sched": sched})
        sched.load_state_dict(training(lambda o: lrs.ReduceLROnPlateau(o, patience=1))[1].state_dict())
        load([later], 0, 1, {"sched": sched})
        self.assertEqual(sched.best, 1.0)


class Optimizers(unittest.TestCase):
    def test_hyperparameters_come_back_and_a_tensor_stays_the_same_tensor(self):
        optim, _ = training(lambda o: None, tensor=True)
        more = {"lr": 0.5, "betas": (0.8, 0.9), "tag": "b"}
        optim.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], **more})
        step = saved(optims={"optim": optim})
        again, _ = training(lambda o: None, lr=9.0, tensor=True)
        again.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 9.0})
        rate = again.param_groups[0]["lr"]
        load([step], 0, 1, optims={"optim": again})
        self.assertIs(again.param_groups[0]["lr"], rate)
        self.assertEqual(rate.item(), torch.tensor(0.1).item())
        self.assertEqual(again.param_groups[1]["lr"], 0.5)
        self.assertEqual(again.param_groups[1]["betas"], (0.8, 0.9))
        self.assertEqual(again.param_groups[1]["tag"], "b")
        self.assertEqual(len(again.param_groups[0]["params"]), 2)

    def test_another_number_of_groups_is_named(self):
        optim, _ = training(lambda o: None)
        step = saved(optims={"optim": optim})
        optim.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        with self.assertRaisesRegex(ExtraError, "optim.groups: .* 1 param_groups, and the optimizer 2"):
            load([step], 0, 1, optims={"optim": optim})

    def lbfgs(self, steps, optim=None, model=None):
        if model is None:
            torch.manual_seed(2)
            model = torch.nn.Linear(4, 1)
            optim = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3)
        x = torch.linspace(-1, 1, 20).reshape(5, 4)

        def closure():
            optim.zero_grad()
            loss = (model(x).sin() ** 2).sum()
            loss.backward()
            return loss

        for _ in range(steps):
            optim.step(closure)
        return model, optim

    def test_state_that_is_no_tensor_comes_back_by_name(self):
        model, optim = self.lbfgs(3)
        names = {p: n for n, p in model.named_parameters()}
        step = saved(optims={"optim": optim}, names=names)
        self.assertIn(b'"weight"', step["optim.groups"])
        tensors = {path: v.clone() for path, v in _nested.tensors_in(optim.state[model.weight])}
        weights = copy.deepcopy(model.state_dict())
        self.lbfgs(2, optim, model)
        expected = copy.deepcopy(model.state_dict())
        other, again = self.lbfgs(0)
        other.load_state_dict(weights)
        for path, tensor in tensors.items():  # what `run` restores
            _nested.put(again.state[other.weight], path.split("."), tensor)
        load([step], 0, 1, optims={"optim": again}, names={p: n for n, p in other.named_parameters()})
        self.lbfgs(2, again, other)
        for name, t in other.state_dict().items():
            self.assertTrue(torch.equal(t, expected[name]), name)

    def test_state_of_a_parameter_that_is_not_there_is_said(self):
        model, optim = self.lbfgs(1)
        step = saved(optims={"optim": optim}, names={p: "old." + n for n, p in model.named_parameters()})
        out = load([step], 0, 1, optims={"optim": optim}, names={p: n for n, p in model.named_parameters()})
        self.assertRegex(out.notes[0], "optim.groups: the optimizer has no parameter old.weight of which state")

    def test_state_that_appears_without_a_new_parameter_is_found(self):
        optim, _ = training(lambda o: None)
        p = optim.param_groups[0]["params"][0]
        optim.state[p]["exp_avg"] = torch.zeros(3)
        extras = make(optims={"optim": optim})
        extras.collect()
        self.assertNotIn(b"late", bytes_of(extras)["optim.groups"])
        optim.state[p]["late"] = 5
        extras.collect()
        self.assertIn(b'"late": 5', bytes_of(extras)["optim.groups"])
        optim.state[p]["late"] = torch.zeros(2)
        extras.collect()
        self.assertNotIn(b"late", bytes_of(extras)["optim.groups"])


class Scaler(unittest.TestCase):
    def train(self, scaler, losses):
        p = torch.nn.Parameter(torch.ones(2))
        optim = torch.optim.SGD([p], lr=0.1)
        for x in losses:
            optim.zero_grad()
            scaler.scale((p * x).sum()).backward()
            scaler.step(optim)
            scaler.update()
        return p.tolist()

    def test_a_scale_that_skipped_steps_have_lowered_comes_back(self):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.train(scaler, [1.0, float("inf"), float("inf"), 1.0])
        self.assertEqual(scaler.get_scale(), 256.0)
        step = saved({"scaler": scaler})
        expected = self.train(scaler, [1.0, 1.0, 1.0]), scaler.state_dict()
        again = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        load([step], 0, 1, {"scaler": again})
        self.assertEqual((self.train(again, [1.0, 1.0, 1.0]), again.state_dict()), expected)

    def test_a_disabled_one_has_no_state_and_an_enabled_one_says_so(self):
        step = saved({"scaler": torch.amp.GradScaler("cpu", enabled=False)})
        again = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.assertIn("was disabled", load([step], 0, 1, {"scaler": again}).notes[0])
        self.assertEqual(again.get_scale(), 4.0)
        load([saved({"scaler": again})], 0, 1, {"scaler": torch.amp.GradScaler("cpu", enabled=False)})


class Loader(unittest.TestCase):
    def batches(self, loader, n):
        it = iter(loader)
        return [next(it).tolist() for _ in range(n)], it

    def test_a_loader_goes_on_in_the_middle_of_an_epoch(self):
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader
        except ImportError:
            self.skipTest("torchdata is not installed")
        for workers in (0, 2):
            with self.subTest(workers=workers), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(5)
                loader = StatefulDataLoader(list(range(60)), batch_size=4, shuffle=True, num_workers=workers)
                _, it = self.batches(loader, 4)
                extras = make({"data": loader, "rng": rng()})
                extras.collect()
                step = bytes_of(extras)
                self.assertNotIn(b"$pickle", step["extra.data"])
                expected = [b.tolist() for b in it]
                del it
                torch.manual_seed(6)
                again = StatefulDataLoader(list(range(60)), batch_size=4, shuffle=True, num_workers=workers)
                load([step], 0, 1, {"data": again, "rng": rng()})
                rest = [b.tolist() for b in again]
                self.assertEqual(rest, expected)
                self.assertEqual(len(rest), 11)


class Objects(unittest.TestCase):
    def test_dicts_and_lists_are_restored_in_place(self):
        t = torch.arange(3.0)
        state = {"a": [1, {"b": (1, 2)}], "t": t, "gone": 1, 5: "five", "p": Progress(1, [0.5])}
        inner = state["a"]
        step = saved({"state": state, "list": inner})
        state.update(a=inner, new=3)
        del state["gone"]
        inner[1]["b"] = None
        inner.append(9)
        t.zero_()
        load([step], 0, 1, {"state": state, "list": inner})
        self.assertIs(state["a"], inner)
        self.assertIs(state["t"], t)
        self.assertEqual(t.tolist(), [0, 1, 2])
        self.assertEqual(inner, [1, {"b": (1, 2)}])
        self.assertEqual((state["gone"], state[5], "new" in state), (1, "five", False))
        self.assertEqual(state["p"], Progress(1, [0.5]))

    def test_a_pair_of_functions(self):
        at = {"n": (1, float("nan"))}
        step = saved({"pair": (lambda: at["n"], lambda v: at.update(n=v))})
        at["n"] = None
        load([step], 0, 1, {"pair": (lambda: at["n"], lambda v: at.update(n=v))})
        self.assertEqual(repr(at["n"]), "(1, nan)")

    def test_random_generators_of_the_program(self):
        def four():
            g = torch.Generator()
            g.manual_seed(3)
            return {"r": random.Random(3), "g": g, "n": numpy.random.default_rng(3), "s": numpy.random.RandomState(3)}

        def draw(x):
            return x["r"].random(), torch.rand(1, generator=x["g"]).item(), x["n"].random(), x["s"].rand()

        a = four()
        draw(a)
        step = saved(a)
        expected = draw(a)
        b = four()
        load([step], 0, 1, b)
        self.assertEqual(draw(b), expected)

    def test_every_dtype_and_shape_of_torch(self):
        values = {}
        for name in _codec.TORCH_DTYPES:
            dtype = getattr(torch, name, None)
            if dtype is not None:
                for shape in ((), (0, 3), (5,), (40, 21)):
                    n = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
                    raw = torch.randint(0, 2 if name == "bool" else 256, (max(n, 1),), dtype=torch.uint8)[:n]
                    values[name, shape] = torch.empty(0, dtype=dtype) if not n else raw.view(dtype).reshape(shape)
        values["strided"] = torch.arange(1000.0).reshape(10, 100).t()[3:50:2]
        values["conj"] = torch.randn(200, dtype=torch.complex64).conj()
        values["parameter"] = torch.nn.Parameter(torch.ones(3))
        values["frozen"] = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        values["others"] = [torch.float8_e5m2, torch.device("cuda", 3), torch.Size([2, 3])]
        values["others"] += [numpy.float32(0.1), numpy.int8(-3), numpy.float64("-inf"), numpy.bool_(True)]
        values["arrays"] = [numpy.arange(300.0).reshape(20, 15).T, numpy.array(3, ">i4"), numpy.zeros((0, 2), bool)]
        out = _codec.decode(_codec.encode(values, allow_pickle=False))
        for key, x in values.items():
            y = out[key]
            self.assertIs(type(x), type(y), key)
            if isinstance(x, torch.Tensor):
                self.assertEqual((x.dtype, x.shape, x.requires_grad), (y.dtype, y.shape, y.requires_grad), key)
                x, y = x.detach().resolve_conj().contiguous().reshape(-1), y.detach().contiguous().reshape(-1)
                self.assertTrue(torch.equal(x.view(torch.uint8), y.view(torch.uint8)), key)
            elif key == "arrays":
                for a, b in zip(x, y):
                    self.assertEqual((a.dtype, a.shape, a.tobytes()), (b.dtype, b.shape, b.tobytes()))
            else:
                self.assertEqual([type(v) for v in x], [type(v) for v in y])
                self.assertEqual(x, y)

    def test_what_has_no_encoding_is_named(self):
        for value, why in (
            (torch.zeros(3, device="meta"), "meta"),
            (torch.zeros(3, 3).to_sparse(), "sparse"),
            (torch.zeros(3).as_subclass(type("Mine", (torch.Tensor,), {})), "Mine"),
            (lambda: 0, "function"),
            (copy, "module"),
        ):
            extras = make({"good": {"a": 1}, "bad": {"x": [0, value]}})
            with self.assertRaisesRegex(ExtraError, r"extra\.bad: .*at \.x\[1\]: .*%s" % why) as caught:
                extras.collect()
            self.assertEqual(caught.exception.name, "extra.bad")

    def test_what_is_of_no_known_kind_is_refused_at_once(self):
        for value in (3, "x", (1, 2), lambda: 0, object()):
            with self.assertRaisesRegex(TypeError, r"extra\.n is a .*state_dict"):
                Extras({"n": value})
        with self.assertRaisesRegex(TypeError, "should be a string"):
            Extras({3: {}})


class Failures(unittest.TestCase):
    def test_a_failing_state_dict_fails_the_step_and_hinders_no_other_object(self):
        class Fails:
            fail = False

            def state_dict(self):
                if self.fail:
                    raise KeyError("not now")
                return {"a": 1}

            load_state_dict = None.__class__.__call__

        fails, good = Fails(), {"n": 1}
        fails.load_state_dict = lambda s: None
        extras = make({"bad": fails, "good": good})
        extras.collect()
        fails.fail, good["n"] = True, 2
        with self.assertRaisesRegex(ExtraError, "extra.bad: its state cannot be saved: KeyError: 'not now'"):
            extras.collect()  # with which Run refuses the step (CKPT_REFUSE)
        self.assertIn(b'"n": 2', bytes_of(extras)["extra.good"])
        fails.fail = False
        self.assertFalse(grows(extras))

    def test_what_grows_beside_a_failure_is_said_all_the_same_and_before_it_has_more_room(self):
        state, bad = {"n": 1}, {"x": lambda: 0}
        extras = make({"bad": bad, "state": state})
        state["n"] = "x" * 2 * CAP_MIN
        rooms = []
        with self.assertRaises(ExtraError):
            extras.collect(lambda: rooms.append(extras.blobs[1].cap))
        self.assertEqual(rooms, [CAP_MIN], "or an exception could come in between, and nobody would seal any more")
        bad.clear()
        self.assertFalse(grows(extras))

    def test_no_object_is_touched_if_a_blob_is_damaged_or_needs_pickle(self):
        a, b = {"n": 1}, CustomLoader(0)
        step = saved({"a": a, "b": b})
        for bad in (step["extra.b"][:-3], _codec.encode({"n": {1j: Warm(2.0)}})):
            a["n"] = 5
            with self.assertRaisesRegex(ExtraError, "extra.b: its bytes cannot be read"):
                load([{**step, "extra.b": bad}], 0, 1, {"a": a, "b": b}, allow_pickle=False)
            self.assertEqual(a, {"n": 5})

    def test_a_failing_load_state_dict_is_named(self):
        class Fails(CustomLoader):
            def load_state_dict(self, state):
                raise RuntimeError("no such key")

        with self.assertRaisesRegex(ExtraError, "extra.b: its state cannot be restored: RuntimeError: no such key"):
            load([saved({"b": CustomLoader(0)})], 0, 1, {"b": Fails(0)})

    def test_what_the_step_does_not_have_is_listed_and_stays(self):
        a, b = {"n": 1}, {"n": 2}
        out = load([saved({"a": a})], 0, 1, {"a": a, "b": b})
        self.assertEqual((out.missing, b), (["extra.b"], {"n": 2}))


class Growth(unittest.TestCase):
    def test_a_blob_that_outgrows_its_room_gets_more_and_keeps_its_address(self):
        state = {"log": "x"}
        extras = make({"state": state})
        handle, blob = extras._handle, extras.blobs[0]
        before = blob.address
        self.assertFalse(grows(extras))
        state["log"] = "x" * CAP_MIN
        self.assertTrue(grows(extras))
        self.assertEqual(len(handle.seen), 1)
        self.assertGreaterEqual(handle.seen[0][1], CAP_MIN + 10)
        state["log"] += "y" * 100
        self.assertFalse(grows(extras), "there is headroom")
        self.assertEqual(blob.address, before)
        self.assertEqual(_codec.decode(bytes_of(extras)["extra.state"]), state)

    def test_a_tensor_of_a_state_is_copied_as_it_is(self):
        state = {"t": torch.randn(100000)}
        step = saved({"state": state})
        self.assertLess(len(step["extra.state"]), 400200)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, n=30):
        return self.drop(torch.ones(n)).tolist()


class Random(unittest.TestCase):
    """A rank is its three global generators, which are exchanged."""

    def ranks(self, seeds):
        """The steps of ranks that were seeded so, and what each draws afterwards."""
        steps, after = [], []
        for seed in seeds:
            torch.manual_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed)
            self.draw()
            steps.append(saved({"rng": rng()}))
            after.append(self.draw())
        return steps, after

    def draw(self):
        return Net()(), random.random(), random.gauss(0, 1), numpy.random.randn()

    def restore(self, steps, world):
        """What each of `world` ranks draws after the restore."""
        out = []
        for rank in range(world):
            torch.manual_seed(99)
            random.seed(99)
            numpy.random.seed(99)
            load(steps, rank, world, {"rng": rng()})
            out.append(self.draw())
        return out

    def test_on_the_same_ranks_dropout_goes_on_bit_for_bit(self):
        steps, after = self.ranks([1, 2, 3])
        self.assertEqual(self.restore(steps, 3), after)

    def test_on_fewer_ranks_the_first_ones_go_on(self):
        steps, after = self.ranks([1, 2, 3])
        self.assertEqual(self.restore(steps, 2), after[:2])

    def test_on_more_ranks_the_new_ones_have_streams_of_their_own_each_time_the_same(self):
        for seeds, world in (([1], 3), ([1, 2], 6)):
            steps, after = self.ranks(seeds)
            got = self.restore(steps, world)
            self.assertEqual(got[: len(seeds)], after)
            for k in range(4):
                self.assertEqual(len({repr(d[k]) for d in got}), world, "each rank draws something else")
            self.assertEqual(self.restore(steps, world), got)

    def test_ranks_that_had_one_stream_have_one_stream(self):
        """Tensor parallel ranks draw the same dropout. New ones must, too."""
        steps, after = self.ranks([7, 7])
        self.assertEqual(self.restore(steps, 4), [after[0]] * 4)
        steps, _ = self.ranks([1, 1, 2, 2])
        got = self.restore(steps, 8)
        for a in (0, 2, 4, 6):
            self.assertEqual(got[a], got[a + 1])
        self.assertEqual(len({repr(d) for d in got}), 4)

    def test_the_random_numbers_are_restored_after_all_else(self):
        class Draws(CustomLoader):
            def load_state_dict(self, state):
                torch.rand(10)

        torch.manual_seed(4)
        step = saved({"rng": rng(), "zz": Draws(0)})
        expected = self.draw()
        random.seed(1)
        load([step], 0, 1, {"rng": rng(), "zz": Draws(0)})
        self.assertEqual(self.draw()[0], expected[0])

    def test_cuda_states_follow_the_current_device(self):
        class Cuda:
            """Two devices. The device's name is its generator."""

            def __init__(self, current, count=2):
                self.current = current
                self.default_generators = [torch.Generator().manual_seed(d) for d in (10, 20, 30)[:count]]

            is_available = is_initialized = staticmethod(lambda: True)
            device_count = lambda self: len(self.default_generators)  # noqa: E731
            current_device = lambda self: self.current  # noqa: E731
            get_rng_state_all = lambda self: [g.get_state() for g in self.default_generators]  # noqa: E731
            set_rng_state = lambda self, s, d: self.default_generators[d].set_state(s)  # noqa: E731
            draw = lambda self: [torch.rand(1, generator=g).item() for g in self.default_generators]  # noqa: E731

        real = torch.cuda
        try:
            torch.cuda = Cuda(1)
            step = saved({"rng": rng()})
            expected = torch.cuda.draw()
            torch.cuda = Cuda(1)
            torch.cuda.draw()
            load([step], 0, 1, {"rng": rng()})
            self.assertEqual(torch.cuda.draw(), expected)
            torch.cuda = Cuda(0)
            load([step], 0, 1, {"rng": rng()})
            self.assertEqual(torch.cuda.draw()[0], expected[1])
            load([step], 3, 4, {"rng": rng()})
            self.assertNotIn(torch.cuda.draw()[0], expected)
            for count in (1, 3):
                torch.cuda = Cuda(0, count)
                other = Cuda(0, count).draw()[1:]
                notes = load([step], 0, 1, {"rng": rng()}).notes
                self.assertEqual(torch.cuda.draw(), [expected[1]] + other)
                self.assertIn("of 2 CUDA devices were saved, and this process has %d" % count, "".join(notes))
        finally:
            torch.cuda = real


class Tracker(unittest.TestCase):
    """torch 2.4 to 2.8: DTensor's tracker has states of its own. It exists on CUDA alone, so it is made here."""

    def test_the_states_of_a_tracker_come_back_if_it_exists(self):
        try:
            import torch.distributed.tensor._random as module
        except ImportError:
            import torch.distributed._tensor.random as module  # torch 2.4
        tracker = types.SimpleNamespace(rng_states={"parallel-rng": torch.arange(16, dtype=torch.uint8)})
        with mock.patch.object(module, "_rng_tracker", tracker):
            step = saved({"rng": rng()})
            tracker.rng_states["parallel-rng"] = torch.zeros(16, dtype=torch.uint8)
            self.assertEqual(load([step], 0, 1, {"rng": rng()}).notes, [])
            self.assertEqual(tracker.rng_states["parallel-rng"].tolist(), list(range(16)))
            # Ranks share it: a new one has the same.
            tracker.rng_states["parallel-rng"] = torch.zeros(16, dtype=torch.uint8)
            load([step, step], 2, 3, {"rng": rng()})
            self.assertEqual(tracker.rng_states["parallel-rng"].tolist(), list(range(16)))
        self.assertRegex(load([step], 0, 1, {"rng": rng()}).notes[0], "of dtensor was saved, and is not in use here")


class OtherWorlds(unittest.TestCase):
    def test_each_rank_gets_its_own_or_that_of_the_rank_modulo_the_old_ranks(self):
        steps = []
        for r in range(3):
            a = CustomLoader(r)
            a.at = r * 10
            steps.append(saved({"data": a}))
        for world in (1, 2, 3, 5, 7):
            for rank in range(world):
                a = CustomLoader(-1)
                notes = load(steps, rank, world, {"data": a}).notes
                self.assertEqual((a.rank, a.at), (rank % 3, rank % 3 * 10))
                self.assertEqual(len(notes), world != 3)
                if notes:
                    self.assertRegex(notes[0], "3 ranks saved .* %d restore it: .*extra.data.*rank %d" % (world, rank))

    def test_what_all_ranks_had_alike_is_no_news(self):
        steps = [saved({"sched": {"n": 1}})] * 2
        self.assertEqual(load(steps, 2, 3, {"sched": {"n": 0}}).notes, [])


class Daemon(rig.Case):
    """Through a daemon: a blob that grows, one that fails, and what `ckptctl` shows."""

    def snap(self, handle, step, flags=0):
        rc = handle.snapshot(step, flags)
        if rc == 0:
            handle.wait(step, _lib.CKPT_COMMITTED)
        handle.guard()
        return rc

    def test_a_growing_state_is_in_every_step_and_comes_back(self):
        self.daemon()
        handle, _ = self.job()
        state, data = {"log": ""}, CustomLoader(0)
        extras = Extras({"state": state, "data": data})
        extras.declare(handle)
        self.assertEqual(handle.seal(rig.LIMIT), 0)
        lengths = [10, CAP_MIN, CAP_MIN + 1, 1 << 20, 100]
        for step, n in enumerate(lengths, 1):
            state["log"], data.at = "x" * n, step
            if grows(extras):
                self.assertEqual(handle.seal(rig.LIMIT), 0)
            self.assertEqual(self.snap(handle, step, _lib.CKPT_PERSIST), 0)
        for step, n in enumerate(lengths, 1):
            got = handle.restore(step)
            self.assertEqual(extras.unmatched(handle, step), ([], []))
            decoded = extras.decode(handle, got)
            decoded.load()
            self.assertEqual((len(state["log"]), data.at), (n, step))

    def test_the_step_of_a_failing_state_dict_is_skipped_and_the_next_one_taken(self):
        self.daemon()
        handle, _ = self.job()
        state = {"n": 1}
        extras = Extras({"state": state})
        extras.declare(handle)
        self.assertEqual(handle.seal(rig.LIMIT), 0)
        for step, value in ((1, 1), (2, lambda: 0), (3, 3)):
            state["n"] = value
            if step == 2:
                with self.assertRaises(ExtraError):
                    extras.collect()
                self.assertEqual(self.snap(handle, step, _lib.CKPT_REFUSE), _lib.CKPT_SKIPPED)
                self.assertIn("step 2: rank 0 has no state of it", str(handle.why()))
            else:
                extras.collect()
                self.assertEqual(self.snap(handle, step, _lib.CKPT_PERSIST), 0)
        self.assertEqual([s.step for s in handle.steps()], [3, 1])

    def test_ckptctl_shows_the_json_and_runs_nothing(self):
        self.daemon()
        handle, _ = self.job()
        extras = Extras({"state": {"a": [1, 2.5], "w": Warm(2.0), "t": torch.zeros(1000)}})
        extras.declare(handle)
        self.assertEqual(handle.seal(rig.LIMIT), 0)
        extras.collect()
        self.assertEqual(self.snap(handle, 1, _lib.CKPT_PERSIST), 0)
        ckptctl = [os.path.join(rig.BUILD, "ckptctl")]
        raw = subprocess.run(
            ckptctl + ["cat", "latest", "blob/extra.state", "--rank", "0", "-C", os.path.join(self.store, "a")],
            stdout=subprocess.PIPE, check=True, timeout=rig.LIMIT,
        ).stdout  # fmt: skip
        said = json.loads(raw.split(b"\n")[0])
        self.assertEqual(said["a"], [1, 2.5])
        self.assertEqual(said["t"]["$tensor"]["shape"], [1000])
        self.assertRegex(said["w"]["$pickle"]["class"], "Warm$")
        with self.assertRaises(_codec.PickleRefused):
            _codec.decode(raw)


TRAIN = """
import os, random, signal, sys, warnings
import numpy, torch, ckptd
from torchdata.stateful_dataloader import StatefulDataLoader
warnings.simplefilter("ignore")
socket, store, last, die, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))
optim = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda n: 1 / (n + 1))
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
data = StatefulDataLoader(list(range(24)), batch_size=5, shuffle=True, num_workers=workers)
log = []
run = ckptd.attach(model, optim, store=store, job="whole", socket=socket, strict=True,
                   guard="finish",
                   extra={"sched": sched, "scaler": scaler, "data": data, "log": log, "rng": ckptd.rng()})
step = run.restore()
while step < last:
    for batch in data:
        x = batch.float()[:, None] * torch.linspace(0, 1, 7) + random.random() + numpy.random.rand()
        loss = (model(x) ** 2).mean()
        if step == 3:
            loss = loss * float("inf")
        optim.zero_grad()
        scaler.scale(loss).backward()
        step += 1
        log.append([step, batch.tolist(), loss.item().hex(), float(optim.param_groups[0]["lr"]), scaler.get_scale()])
        with run.step(step, loss=loss):
            scaler.step(optim); scaler.update(); sched.step()
        if step == die:
            run.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == last:
            break
run.wait()
run.detach()
print(repr(log), [p.tolist() for p in model.parameters()])
"""


class Whole(rig.Case):
    def train(self, name, last, die, workers):
        env = dict(os.environ, PYTHONPATH=rig.PACKAGE)
        command = [sys.executable, "-c", TRAIN, self.socket, os.path.join(self.dir, name)]
        command += [str(n) for n in (last, die, workers)]
        p = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * rig.LIMIT)
        self.assertEqual(p.returncode, -9 if die else 0, p.stderr.decode())
        return p.stdout

    def test_a_killed_run_ends_as_one_that_was_not_killed(self):
        try:
            import torchdata.stateful_dataloader  # noqa: F401
        except ImportError:
            self.skipTest("torchdata is not installed")
        self.daemon()
        for workers, die in ((0, 5), (2, 8)):  # at the end of an epoch of 5 batches, and in the middle of one
            expected = self.train("straight%d" % workers, 11, 0, workers)
            self.assertIn(b"inf", expected, "a step was skipped by the scaler")
            self.train("killed%d" % workers, 11, die, workers)
            self.assertEqual(self.train("killed%d" % workers, 11, 0, workers), expected)


if __name__ == "__main__":
    unittest.main()
