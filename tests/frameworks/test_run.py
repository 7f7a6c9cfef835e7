# SPDX-License-Identifier: Apache-2.0
"""ckptd.attach and Run on one rank: what a training program sees, in the good case and in the bad ones."""

import glob
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import unittest
import unittest.mock
import warnings

import ranks
import torch

import ckptd
from ckptd import _codec, _lib, _nested, _words, errors

SECONDS = 60.0  # of what hangs


class Net(torch.nn.Module):
    """Linear layers, running statistics, a tied head."""

    def __init__(self, width=16, tied=False):
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.second = torch.nn.Linear(width, 8, bias=not tied)
        if tied:
            self.third = torch.nn.Linear(width, 8, bias=False)
            self.third.weight = self.second.weight

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


def make(optimizer="adamw", seed=1, **kwargs):
    torch.manual_seed(seed)
    model = Net(**kwargs)
    kinds = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1),
    }
    return model, kinds[optimizer](model.parameters())


def update(model, optim, step):
    """One step of training; it depends on nothing but the state and the step."""
    generator = torch.Generator().manual_seed(step)
    loss = model(torch.randn(12, 8, generator=generator)).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
    return loss


def bits(model, optim=None):
    """Every bit of the state, by name."""
    found = {k: v.detach().clone().view(-1).view(torch.uint8).numpy().tobytes() for k, v in model.state_dict().items()}
    if optim is not None:
        for i, p in enumerate(p for g in optim.param_groups for p in g["params"]):
            for k, v in optim.state.get(p, {}).items():
                found["%d.%s" % (i, k)] = (
                    v.view(-1).view(torch.uint8).numpy().tobytes() if torch.is_tensor(v) else repr(v)
                )
    return found


def train(run, model, optim, first, last, **kwargs):
    for step in range(first, last + 1):
        with run.step(step, **kwargs):
            update(model, optim, step)


def train_and_pause(rank, optimizer, steps):
    """Train, wait for the last commit, leave the digest, and stay until SIGKILL."""
    model, optim = make(optimizer)
    sched = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    run = rank.attach(model, optim, extra={"sched": sched, "rng": ckptd.rng()}, guard="finish")
    run.restore()
    for step in range(1, steps + 1):
        with run.step(step):
            update(model, optim, step)
            sched.step()
    run.wait()
    torch.save((bits(model, optim), sched.state_dict(), torch.random.get_rng_state()), os.path.join(rank.dir, "kept"))
    rank.pause("trained")


def resume(rank, optimizer, source):
    model, optim = make(optimizer, seed=2)
    torch.manual_seed(99)
    sched = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    run = rank.attach(model, optim, extra={"sched": sched, "rng": ckptd.rng()})
    start = run.restore(source=source)
    kept, sched_kept, rng_kept = torch.load(os.path.join(rank.dir, "kept"), weights_only=False)
    same = bits(model, optim) == kept
    return (
        int(start),
        start.where,
        same,
        sched.state_dict() == sched_kept,
        torch.equal(torch.random.get_rng_state(), rng_kept),
    )


def train_while_told(rank):
    """Five steps for each file go-1, go-2, ...; returns what ends it. Nothing says which launch this is."""
    model, optim = make()
    run = ckptd.attach(model, optim, store=rank.store, job=rank.job, socket=rank.socket, rank=0, world=1, guard="finish")
    run.restore()
    step = 0
    for turn in range(1, 100):
        while not os.path.exists(os.path.join(rank.dir, "go-%d" % turn)):
            time.sleep(0.001)
        try:
            train(run, model, optim, step + 1, step + 5)
            step += 5
            rank.say("committed %d" % run.wait())
        except errors.Superseded as e:
            return str(e)


class One(ranks.Case):
    """A test here is the only rank, in its own process."""

    def attach(self, job, model, optim=None, **options):
        options.setdefault("strict", True)
        options.setdefault("guard", "finish")
        job.launches += 1
        run = ckptd.attach(
            model,
            optim,
            store=job.store,
            job=job.name,
            socket=job.socket,
            rank=0,
            world=1,
            generation=job.launches,
            **options,
        )
        self.addCleanup(run.detach)
        return run

    def begun(self, optimizer="adamw", **options):
        job = self.job()
        model, optim = make(optimizer)
        run = self.attach(job, model, optim, **options)
        run.restore()
        return job, run, model, optim

    def setUp(self):
        warnings.simplefilter("always")
        self.addCleanup(warnings.resetwarnings)

    def shown(self, job, step):
        return json.loads(job.ctl("show", "-C", os.path.join(job.store, job.name), "step:%d" % step, "--json"))


class Policy(One):
    def kept(self, job):
        where = os.path.join(job.store, job.name)
        return json.loads(job.ctl("keep", "--json", where))["keeps"]

    def test_attach_sets_the_policy_of_the_job_and_ckptd_obeys_it(self):
        job, run, model, optim = self.begun(keep_last=1, keep_every=4, keep_within="1s", keep_best=["loss", "acc:max:2"])
        self.assertEqual(
            self.kept(job)["options"],
            "--keep-last 1 --keep-every 4 --keep-within 1s --keep-best loss:min:1 --keep-best acc:max:2",
        )
        self.assertEqual(self.kept(job)["source"], "job")
        run.detach()
        run = self.attach(job, model, optim, keep_last=2)
        run.restore()
        for step in range(1, 6):
            train(run, model, optim, step, step)
            run.wait()
        self.assertEqual(self.kept(job)["options"], "--keep-last 2")

        def steps():
            found = json.loads(job.ctl("ls", "--json", os.path.join(job.store, job.name)))["checkpoints"]
            return [s["step"] for s in found]

        deadline = time.monotonic() + SECONDS
        while len(steps()) > 3 and time.monotonic() < deadline:  # the two newest, and the newest that was verified
            time.sleep(0.05)
        self.assertLessEqual(len(steps()), 3)
        self.assertEqual(steps()[:2], [5, 4])
        run.detach()
        self.attach(job, model, optim)  # says nothing of it
        self.assertEqual(self.kept(job)["options"], "--keep-last 2")

    def test_a_rule_that_is_none_is_an_error_of_attach(self):
        job = self.job()
        model, optim = make()
        for wrong in ({"keep_within": "soon"}, {"keep_best": "loss:mean"}, {"keep_best": ["a", ""]}, {"keep_last": -1}):
            with self.assertRaises(ValueError):
                self.attach(job, model, optim, **wrong)


class Resume(One):
    def test_after_sigkill_every_bit_is_back_from_memory_and_from_disk(self):
        for optimizer in ("adamw", "sgd"):
            with self.subTest(optimizer):
                job = self.job()
                started = job.start(1, train_and_pause, optimizer, 5, group=False)
                started.until("trained")
                started.kill()
                self.assertEqual(
                    job.run(1, resume, optimizer, "memory", group=False)[0], (5, "memory", True, True, True)
                )
                job.daemon_kill()
                job.daemon_start()
                self.assertEqual(job.run(1, resume, optimizer, "disk", group=False)[0], (5, "disk", True, True, True))

    def test_training_that_was_resumed_ends_with_the_bits_of_training_that_was_not(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), 0)
        train(run, model, optim, 1, 4)
        self.assertEqual(run.wait(), 4)
        run.detach()
        train_on, optim_on = make(seed=3)
        run = self.attach(job, train_on, optim_on)
        self.assertEqual(run.restore(), 4)
        train(run, train_on, optim_on, 5, 8)
        for step in range(5, 9):
            update(model, optim, step)
        self.assertEqual(bits(train_on, optim_on), bits(model, optim))

    def test_going_back_to_an_older_step(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        run.wait()
        at_2 = bits(model, optim)
        train(run, model, optim, 3, 4)
        run.wait()
        self.assertEqual(run.restore(2), 2)
        self.assertEqual(bits(model, optim), at_2)
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)
        with self.assertRaises(errors.NothingToRestore):
            run.restore(77)

    def test_restore_without_a_step_is_zero_and_changes_nothing(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim)
        before = bits(model, optim)
        start = run.restore()
        self.assertEqual((start, start.where, start.missing, start.unused), (0, "nothing", (), ()))
        self.assertEqual(bits(model, optim), before)

    def test_a_model_on_the_meta_device_is_filled(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        run.wait()
        run.detach()
        with torch.device("meta"):
            empty = Net()
        on_meta = torch.optim.AdamW(empty.parameters(), lr=1e-2)
        run = self.attach(job, empty, on_meta)
        self.assertEqual(run.restore(), 2)
        self.assertEqual(bits(empty, on_meta), bits(model, optim))

    def test_names_that_only_one_side_has_are_listed_and_nothing_is_written(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, extra={"old": {"x": 1}})
        run.restore()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        other, other_optim = make(seed=5)
        other.head = torch.nn.Linear(8, 2)
        del other.second.bias
        other.second.register_parameter("bias", None)
        other_optim = torch.optim.AdamW(other.parameters(), lr=1e-2)
        mine = {"y": 2}
        run = self.attach(job, other, other_optim, extra={"new": mine})
        before = bits(other, other_optim)
        with self.assertRaises(errors.NotFitting) as caught:
            run.restore()
        for name in (
            "model/head.weight: the program has it",
            "model/second.bias: the checkpoint has it",
            "blob/extra.old",
            "blob/extra.new",
        ):
            self.assertIn(name, str(caught.exception))
        self.assertEqual(bits(other, other_optim), before)
        start = run.restore(strict=False)
        self.assertEqual(start, 1)
        self.assertIn("model/head.weight", start.missing)
        self.assertIn("optim/head.weight.exp_avg", start.missing)
        self.assertIn("blob/extra.new", start.missing)
        self.assertIn("model/second.bias", start.unused)
        self.assertIn("blob/extra.old", start.unused)
        self.assertEqual(bits(other)["head.weight"], before["head.weight"])
        self.assertEqual(bits(other)["first.weight"], bits(model)["first.weight"])
        self.assertEqual(mine, {"y": 2})

    def test_explicit_lists_what_is_more_than_copying_and_allow_permits_it_by_kind(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        same, same_optim = make(seed=5)
        run = self.attach(job, same, same_optim)
        self.assertEqual(run.restore(explicit=True), 1)  # it is only copied
        self.assertEqual(bits(same, same_optim), bits(model, optim))
        run.detach()
        less, _ = make(seed=5)
        less.second.register_parameter("bias", None)
        run = self.attach(job, less, torch.optim.AdamW(less.parameters(), lr=1e-2))
        before = bits(less)
        for allow in ((), ["reshard", "replicate", "reduce"]):
            with self.assertRaises(errors.NotFitting) as caught:
                run.restore(strict=False, explicit=True, allow=allow)
            self.assertIn("model/second.bias: drop, ", str(caught.exception))
            self.assertNotIn("first.weight", str(caught.exception))
            self.assertEqual(bits(less), before)
        for wrong in ("reshard", 7):
            with self.assertRaises(TypeError):
                run.restore(explicit=True, allow=wrong)
        with self.assertRaisesRegex(ValueError, "allow is 'cut'.*'reshard'.*'drop'"):
            run.restore(explicit=True, allow=["cut"])
        with self.assertRaisesRegex(ValueError, "without explicit=True"):
            run.restore(allow=["drop"])
        start = run.restore(strict=False, explicit=True, allow=["drop"])
        self.assertEqual(start, 1)
        self.assertIn("model/second.bias", start.unused)
        self.assertEqual(bits(less)["first.weight"], bits(model)["first.weight"])

    def test_another_shape_is_refused_always(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        wide, wide_optim = make(width=17)
        run = self.attach(job, wide, wide_optim)
        before = bits(wide, wide_optim)
        for strict in (True, False):
            with self.assertRaisesRegex(errors.NotFitting, "first.weight"):
                run.restore(strict=strict)
        self.assertEqual(bits(wide, wide_optim), before)

    def test_a_program_that_forgets_restore_hears_of_it_at_its_first_step(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        run = self.attach(job, model, optim, strict=False)
        with self.assertRaisesRegex(errors.NotRestorable, "call run.restore before the first step, or run.fresh to start over"):
            train(run, model, optim, 2, 2)
        run.fresh()
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)


class Object:
    """An extra: its state is a number. fails: its load_state_dict raises once."""

    def __init__(self, n=0, fails=False):
        self.n, self.fails = n, fails

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        if self.fails:
            self.fails = False
            raise RuntimeError("no such key")
        self.n = state["n"]


class Extras(One):
    """What restore does with objects that will not take what was saved of them."""

    def saved(self, **extra):
        """A job whose steps 1 and 2 are committed; the bits of both."""
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, extra=extra)
        run.restore()
        kept = {}
        for step in (1, 2):
            train(run, model, optim, step, step)
            kept[step] = bits(model, optim)
            run.wait()
        run.detach()
        return job, kept

    def test_what_is_known_to_fail_is_found_before_a_byte_of_the_model_changes(self):
        job, kept = self.saved(a=Object(5), b={"x": 1}, rng=ckptd.rng())

        def undecodable(*args, **kwargs):
            raise ValueError("not a class that this program has")

        for what, said in (
            ("bytes", "extra.a: its bytes cannot be read: not a class"),
            ("another type", "extra.b: its state cannot be restored: TypeError: the step has a dict"),
            ("random numbers", "extra.rng: its state cannot be restored: (TypeError|ValueError|RuntimeError)"),
        ):
            with self.subTest(what):
                model, optim = make(seed=3)
                a, b = Object(7), [1] if what == "another type" else {"x": 9}
                run = self.attach(job, model, optim, extra={"a": a, "b": b, "rng": ckptd.rng()})
                before = bits(model, optim)
                decode = _codec.decode

                def broken(raw, **kwargs):
                    if what == "bytes" and raw.startswith(b'{"n"'):
                        undecodable()
                    value = decode(raw, **kwargs)
                    if what == "random numbers" and isinstance(value, dict) and "torch" in value:
                        value["torch"] = value["torch"][:7]
                    return value

                with unittest.mock.patch.object(_codec, "decode", broken):
                    with self.assertRaisesRegex(ckptd.ExtraError, said) as caught:
                        run.restore()
                self.assertIsNone(caught.exception.restored)
                self.assertEqual(bits(model, optim), before)
                self.assertEqual((a.n, b), (7, [1] if what == "another type" else {"x": 9}))
                if what != "another type":
                    self.assertEqual(run.restore(), 2)
                    self.assertEqual((bits(model, optim), a.n, b), (kept[2], 5, {"x": 1}))
                run.detach()

    def test_another_number_of_param_groups_is_found_before_a_byte_of_the_model_changes(self):
        job, _ = self.saved()
        model, _ = make(seed=3)
        first, rest = list(model.parameters())[:1], list(model.parameters())[1:]
        optim = torch.optim.AdamW([{"params": first}, {"params": rest}])
        run = self.attach(job, model, optim)
        before = bits(model, optim)
        with self.assertRaisesRegex(ckptd.ExtraError, "1 param_groups, and the optimizer 2"):
            run.restore()
        self.assertEqual(bits(model, optim), before)

    def test_an_object_that_raises_says_what_is_restored_and_what_not_and_the_next_step_is_not_refused(self):
        job, kept = self.saved(a=Object(5), b=Object(6), c=Object(7))
        model, optim = make(seed=3)
        a, b, c = Object(), Object(fails=True), Object()
        run = self.attach(job, model, optim, extra={"a": a, "b": b, "c": c})
        with self.assertRaises(ckptd.ExtraError) as caught:
            run.restore()
        e = caught.exception
        self.assertIsInstance(e, ckptd.CkptdError)
        self.assertEqual((e.name, e.restored, e.restored.where), ("extra.b", 2, "memory"))
        self.assertEqual((set(e.loaded), e.untried), ({"optim.groups", "extra.a"}, ("extra.c",)))
        self.assertRegex(str(e), "RuntimeError: no such key(.|\n)*step 2 are restored(.|\n)*as before: extra.c")
        self.assertEqual((a.n, b.n, c.n), (5, 0, 0))
        self.assertEqual(bits(model, optim), kept[2])
        with self.assertRaisesRegex(errors.NotSaved, "not all of its extras are restored"):
            run.save()
        self.assertEqual(run.wait(), 2)
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)
        self.assertEqual(run.restore(), 3)
        b.fails = True  # back from step 5 to step 3: the steps count on from there
        train(run, model, optim, 4, 5)
        run.wait()
        with self.assertRaises(ckptd.ExtraError):
            run.restore(3)
        train(run, model, optim, 4, 4)
        self.assertEqual(run.wait(), 4)

    def damage(self, job, step, where):
        """Invert a byte of these bytes of a step on disk."""
        path = os.path.join(job.store, job.name, "step-%012d" % step)
        for name in os.listdir(path):
            with open(os.path.join(path, name), "r+b") as f:
                at = f.read().find(where)
                if at >= 0:
                    f.seek(at)
                    f.write(bytes([where[0] ^ 1]))
                    return
        self.fail("step %d does not have these bytes" % step)

    def test_if_the_newest_step_is_damaged_tensors_and_extras_are_those_of_the_next_older_one(self):
        for where in ("tensors", "extras", "both"):
            with self.subTest(where):
                job = self.job()
                model, optim = make()
                at = Object()
                run = self.attach(job, model, optim, extra={"at": at})
                run.restore()
                kept = {}
                for step in (1, 2, 3):
                    at.n = 1000 + step
                    train(run, model, optim, step, step)
                    kept[step] = bits(model, optim)
                    run.wait()
                run.detach()
                job.daemon_kill()
                job.daemon_start()
                if where != "extras":
                    self.damage(job, 3, kept[3]["first.weight"])
                if where != "tensors":
                    self.damage(job, 3 if where == "extras" else 2, b'"n": %d' % (1003 if where == "extras" else 1002))
                model, optim = make(seed=3)
                at = Object()
                run = self.attach(job, model, optim, extra={"at": at})
                start = run.restore()
                left = 1 if where == "both" else 2
                self.assertEqual((start, at.n, start.where), (left, 1000 + left, "disk"))
                self.assertEqual(bits(model, optim), kept[left])
                self.assertEqual(len(start.passed.splitlines()), 3 - left, start.passed)
                train(run, model, optim, left + 1, left + 1)
                self.assertEqual(run.wait(), left + 1)

    def test_if_every_step_is_damaged_it_is_an_error_and_the_state_unfinished(self):
        job, kept = self.saved()
        job.daemon_kill()
        job.daemon_start()
        for step in (1, 2):
            self.damage(job, step, kept[step]["first.weight"])
        model, optim = make(seed=3)
        run = self.attach(job, model, optim)
        with self.assertRaisesRegex(errors.Damaged, "memory is undefined(.|\n)*step 2(.|\n)*step 1"):
            run.restore()
        with self.assertRaises(errors.NotSaved):
            run.save()


class Boxes(torch.optim.Optimizer):
    """Its state is in containers, which are replaced and grow; a value that is None becomes a tensor later."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        shared = self.state["shared"]
        if not shared:
            shared.update(norm=torch.zeros(3), n=0)
        shared["norm"] += 1
        shared["n"] += 1
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state.update(n=0, pair=(torch.zeros_like(p), torch.ones(2)), late=None, old=[], odd={1: [None, "a"]})
            state["n"] += 1
            state["pair"] = (state["pair"][0] * 0.9 + p.grad, state["pair"][1] + 1)
            state["old"].append({"grad": p.grad.clone(), "n": state["n"]})
            if state["n"] >= 3:
                state["late"] = torch.zeros_like(p) if state["late"] is None else state["late"].add_(p.grad)
            p.sub_(state["pair"][0] + state["old"][0]["grad"], alpha=0.01 / state["n"])


def boxes():
    torch.manual_seed(1)
    model = Net()
    return model, Boxes(model.parameters())


def contents(model, optim):
    names = {p: n for n, p in model.named_parameters()}
    found = {
        "%s.%s" % (names.get(of, of), path): t
        for of, inner in optim.state.items()
        for path, t in _nested.tensors_in(inner)
    }
    rest = {names.get(of, of): {k: _nested.outline(v) for k, v in inner.items()} for of, inner in optim.state.items()}
    rest = {of: {k: v for k, v in inner.items() if v != _nested.MARK} for of, inner in rest.items()}
    return {**bits(model), **{k: v.numpy().tobytes() for k, v in found.items()}}, rest


class StateInContainers(One):
    def test_what_containers_hold_is_saved_as_it_is_and_restored(self):
        job = self.job()
        model, optim = boxes()
        run = self.attach(job, model, optim)
        run.restore()
        for step in range(1, 6):
            train(run, model, optim, step, step)
            run.wait()
            with ckptd.open(os.path.join(job.store, job.name)) as saved:
                for of, path, tensor in (
                    (p, path, t) for p in optim.state for path, t in _nested.tensors_in(optim.state[p])
                ):
                    name = next((n for n, p in model.named_parameters() if p is of), "state.shared")
                    self.assertTrue(torch.equal(saved["optim/%s.%s" % (name, path)][...], tensor), (step, name, path))
        self.assertLess(run._blobs.extras.blobs[0].length.value, 6000)  # no tensor is in the blob
        wanted = contents(model, optim)
        for step in range(6, 9):
            update(model, optim, step)
        later = contents(model, optim)
        run.detach()
        model, optim = boxes()
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), 5)
        self.assertEqual(contents(model, optim), wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.StateMoved)
            train(run, model, optim, 6, 8)
        self.assertEqual(contents(model, optim), later)
        run.wait()
        self.assertEqual(run.restore(), 8)
        self.assertEqual(contents(model, optim), later)

    def test_an_optimizer_begins_with_its_own_state_after_a_restore_that_failed_and_after_fresh(self):
        job = self.job()
        model, optim = boxes()
        run = self.attach(job, model, optim)
        run.restore()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        model, optim = boxes()
        run = self.attach(job, model, optim, extra={"more": {}})
        self.assertEqual(dict(optim.state), {})
        with self.assertRaisesRegex(errors.NotFitting, "extra.more"):
            run.restore()
        self.assertEqual(dict(optim.state), {})
        run.fresh()
        train(run, model, optim, 2, 3)
        self.assertEqual(run.wait(), 3)
        self.assertEqual(optim.state[model.first.weight]["n"], 2)


class Steps(One):
    def test_momentum_that_the_first_step_makes_is_in_the_first_step(self):
        job, run, model, optim = self.begun("sgd")
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(run.stats()["outcomes"]["skipped"], 0)
        names = {t["component"] + "/" + t["name"] for t in self.shown(job, 1)["tensors"]}
        self.assertIn("optim/first.weight.momentum_buffer", names)

    def test_misuse_of_step_is_named(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        for step in (2, 1, 0):
            with self.assertRaisesRegex(ValueError, "steps must grow"):
                train(run, model, optim, step, step)
        with self.assertRaisesRegex(ValueError, "at least 0"):
            run.step(-1)
        with self.assertRaisesRegex(TypeError, "integer"):
            run.step(1.5)
        with self.assertRaisesRegex(RuntimeError, "inside of step 3"), run.step(3), run.step(4):
            pass
        for call in (run.restore, run.save, run.wait):
            with self.assertRaisesRegex(RuntimeError, "inside of step 3"), run.step(3):
                call()
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)

    def test_a_step_that_raises_is_not_saved_and_can_be_entered_again(self):
        job, run, model, optim = self.begun()
        with self.assertRaisesRegex(KeyError, "mine"), run.step(1):
            update(model, optim, 1)
            raise KeyError("mine")
        self.assertEqual(run.stats()["taken"], 0)
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)

    def test_every_nth_step_and_save_between(self):
        job, run, model, optim = self.begun(every=3)
        train(run, model, optim, 1, 5)
        self.assertEqual(run.wait(), 3)
        self.assertEqual(run.stats()["outcomes"]["taken"], 1)
        self.assertEqual(run.save(), 5)
        self.assertEqual(run.save(), 5)
        at_5 = bits(model, optim)
        train(run, model, optim, 6, 6)
        run.wait()
        self.assertEqual(run.restore(5), 5)
        self.assertEqual(bits(model, optim), at_5)
        with self.assertRaisesRegex(ValueError, "before the first step"):
            self.begun()[1].save()

    def test_persist_every_keeps_steps_in_memory(self):
        job, run, model, optim = self.begun(persist_every=4)
        train(run, model, optim, 1, 1)
        run.wait("staged")
        train(run, model, optim, 2, 2, persist=True)
        self.assertEqual(run.wait(), 2)
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait("staged"), 3)
        self.assertEqual(run.wait(), 2)

    def test_a_snapshot_that_was_skipped_is_taken_again_by_wait(self):
        job, run, model, optim = self.begun()
        job.daemon.send_signal(signal.SIGSTOP)  # nothing is copied or written: the slots are full after some steps
        self.addCleanup(lambda: job.daemon and job.daemon.send_signal(signal.SIGCONT))
        run._outcomes.strict = False
        run._handle.guard  # the guard would wait for copies of a daemon that is stopped
        with self.assertLogs("ckptd", "WARNING") as logs, warnings.catch_warnings(record=True):
            for step in range(1, 6):
                run._progress.enter(step, True, None)
                update(model, optim, step)
                run._progress.leave()
                run._notes = {"loss": step / 2}
                run._snapshot(step, 0)
        self.assertTrue(any("skipped" in line for line in logs.output), logs.output)
        job.daemon.send_signal(signal.SIGCONT)
        self.assertEqual(run.wait(timeout=SECONDS), 5)
        self.assertEqual(self.shown(job, 5)["notes"], {"loss": 2.5})
        self.assertEqual(run.restore(), 5)

    def test_a_state_that_was_changed_outside_of_a_step_is_torn_and_never_committed(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(2)
        with self.assertLogs("ckptd", "WARNING") as logs:
            train(run, model, optim, 2, 2)
        self.assertTrue(any("the snapshot of step 1 was torn" in line for line in logs.output), logs.output)
        self.assertEqual(run.stats()["outcomes"]["torn"], 1)
        self.assertEqual(run.wait(), 2)

    def test_losses_of_all_kinds_are_notes(self):
        job, run, model, optim = self.begun()
        losses = [
            torch.tensor(1.5, requires_grad=True),
            2.5,
            None,
            float("nan"),
            torch.tensor([4.5], dtype=torch.bfloat16),
            3,
        ]
        for step, loss in enumerate(losses, 1):
            train(run, model, optim, step, step, loss=loss, notes={"lr": 0.25})
            self.assertEqual(run.wait(), step)
        notes = [self.shown(job, s)["notes"] for s in range(1, 7)]
        self.assertEqual(
            [n.get("loss") for n in notes][:3] + [notes[4]["loss"], notes[5]["loss"]], [1.5, 2.5, None, 4.5, 3.0]
        )
        self.assertEqual({n["lr"] for n in notes}, {0.25})
        with self.assertRaisesRegex(ValueError, "2 elements"), run.step(7, loss=torch.zeros(2)):
            pass
        with self.assertRaisesRegex(TypeError, "str"), run.step(8, loss="high"):
            pass

    def test_a_step_that_save_takes_has_its_own_loss(self):
        job, run, model, optim = self.begun(every=10)
        train(run, model, optim, 1, 2, loss=9.0)
        train(run, model, optim, 3, 3, loss=1.5, notes={"lr": 0.25})
        self.assertEqual(run.save(), 3)
        self.assertEqual(self.shown(job, 3)["notes"], {"loss": 1.5, "lr": 0.25})

    def test_the_job_stops_after_the_step_that_follows_a_signal(self):
        job, run, model, optim = self.begun(every=10)
        run.on_signal(signal.SIGTERM, within=SECONDS)
        train(run, model, optim, 1, 2)
        os.kill(os.getpid(), signal.SIGTERM)
        with self.assertRaises(ckptd.Preempted) as caught:
            train(run, model, optim, 3, 9)
        self.assertEqual((caught.exception.step, caught.exception.committed), (3, True))
        self.assertEqual(self.shown(job, 3)["step"], 3)
        run.detach()
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)


class Hazards(One):
    def resumed(self, job, run, **options):
        """The bits that a new run finds."""
        run.wait()
        run.detach()
        model, optim = make(seed=9)
        again = self.attach(job, model, optim, **options)
        again.restore()
        return bits(model, optim)

    def test_statistics_that_the_next_forward_changes_are_those_of_the_step(self):
        for memory in ("alloc", "foreign"):
            with self.subTest(memory):
                job, run, model, optim = self.begun(memory=memory)
                kept = {}
                for step in range(1, 7):
                    loss = model(torch.randn(12, 8)).square().mean()  # as a trainer does: while the last copy may run
                    loss.backward()
                    with run.step(step):
                        optim.step()
                        optim.zero_grad()
                    kept[step] = {k: v.clone() for k, v in model.norm.named_buffers()}
                run.wait()
                compared = 0
                for step in kept:
                    at = os.path.join(job.store, job.name, "step-%012d" % step)
                    if os.path.isdir(at):
                        with ckptd.open(at) as saved:
                            for name, value in kept[step].items():
                                self.assertTrue(
                                    torch.equal(saved["model/norm." + name][...], value), "%s of step %d" % (name, step)
                                )
                                compared += 1
                self.assertGreaterEqual(compared, 6)

    def test_replaced_tensors_are_saved_from_where_they_are_and_named(self):
        for memory in ("alloc", "foreign"):
            with self.subTest(memory):
                job, run, model, optim = self.begun(memory=memory)
                train(run, model, optim, 1, 1)
                saved = {k: v.clone() * 2 for k, v in model.state_dict().items()}
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    with run.step(2):
                        model.load_state_dict(saved, assign=True)
                said = [w for w in caught if issubclass(w.category, errors.StateMoved)]
                self.assertEqual(len(said), 1)
                self.assertRegex(
                    str(said[0].message),
                    "first.weight(.|\n)*The optimizer still updates the old tensors of model/first.weight(.|\n)*replace_optimizer",
                )
                self.assertEqual(said[0].filename, __file__)
                self.assertEqual({k: v for k, v in self.resumed(job, run).items() if k in saved}, bits(model))

    def test_an_optimizer_that_loads_its_state_is_followed(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        with warnings.catch_warnings(record=True):
            with run.step(3):
                optim.load_state_dict(optim.state_dict())
                update(model, optim, 3)
        self.assertEqual(self.resumed(job, run), bits(model, optim))

    def test_what_took_the_place_of_a_layer_and_of_loaded_state_is_followed_in_the_steps_after_it_too(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        with warnings.catch_warnings(record=True):
            with run.step(3):
                update(model, optim, 3)
                optim.load_state_dict(optim.state_dict())
                model.norm = torch.nn.BatchNorm1d(16)
            for step in (4, 5, 6):
                with run.step(step):
                    update(model, optim, step)
                    model.second.bias = torch.nn.Parameter(model.second.bias.detach() + 1)
                run.wait()
                names = {p: n for n, p in model.named_parameters()}
                with ckptd.open(os.path.join(job.store, job.name)) as saved:
                    self.assertEqual(saved.step, step)
                    for p, name in names.items():
                        self.assertTrue(torch.equal(saved["model/" + name][...], p), (step, name))
                        for key, tensor in optim.state.get(p, {}).items():
                            got = saved["optim/%s.%s" % (name, key)]
                            self.assertTrue(
                                torch.equal(got[...] if tensor.dim() else got[()], tensor), (step, name, key)
                            )

    def test_state_that_cannot_be_collected_costs_its_steps_and_not_the_training(self):
        job, run, model, optim = self.begun(strict=False)
        train(run, model, optim, 1, 1)
        run.wait()
        model.late = torch.nn.LazyLinear(3)
        with self.assertWarnsRegex(errors.NotSaving, "uninitialized"):
            with run.step(2):
                pass
        del model.late
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)

    def test_a_freed_storage_is_named_and_that_step_is_not_saved(self):
        job, run, model, optim = self.begun(memory="foreign", strict=False)
        train(run, model, optim, 1, 1)
        storage, kept = model.first.weight.untyped_storage(), model.first.weight.detach().clone()
        nbytes = storage.nbytes()
        with self.assertWarnsRegex(errors.NotSaving, "model/first.weight was freed"):
            with run.step(2):
                storage.resize_(0)
        self.assertEqual(run.stats()["outcomes"]["unmarked"], 1)
        with run.step(3):
            storage.resize_(nbytes)
            with torch.no_grad():
                model.first.weight.copy_(kept)
        self.assertEqual(self.resumed(job, run), bits(model, optim))

    def test_weights_that_are_tied_later_are_one_tensor_from_the_second_step_on(self):
        job, run, model, optim = self.begun(strict=False)
        model.extra = torch.nn.Linear(16, 8, bias=False)
        with warnings.catch_warnings(record=True):
            train(run, model, optim, 1, 1)
            model.extra.weight = model.second.weight
            train(run, model, optim, 2, 4)
        run.wait()
        about = self.shown(job, 4)
        self.assertNotIn("extra.weight", {t["name"] for t in about["tensors"]})

    def test_a_state_dict_that_raises_costs_its_steps_and_not_the_training(self):
        class Fails:
            bad = False

            def state_dict(self):
                if self.bad:
                    raise RuntimeError("not now")
                return {"n": 7}

            def load_state_dict(self, state):
                self.got = state

        at = Fails()
        job, run, model, optim = self.begun(extra={"it": at}, strict=False)
        train(run, model, optim, 1, 1)
        run.wait()
        at.bad = True
        with self.assertWarnsRegex(errors.NotSaving, "extra.it(.|\n)*not now"):
            train(run, model, optim, 2, 2)
        at.bad = False
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)
        self.assertNotIn(
            2,
            [s["step"] for s in json.loads(job.ctl("ls", "--json", os.path.join(job.store, job.name)))["checkpoints"]],
        )
        at.bad = True
        run.detach()
        with self.assertRaisesRegex(Exception, "extra.it(.|\n)*not now"):
            self.attach(job, model, optim, extra={"it": at})

    def test_an_extra_that_grows_is_saved_whole_and_no_step_is_skipped(self):
        log = []
        job, run, model, optim = self.begun(extra={"log": log}, persist_every=1000, slots=4)  # slots are free always
        for step in range(1, 5):
            log.append("x" * 30000)
            train(run, model, optim, step, step)
            self.assertEqual(run.wait("staged"), step)
        self.assertEqual(run.stats()["outcomes"]["skipped"], 0)
        run.detach()
        back = []
        again = self.attach(job, model, optim, extra={"log": back})
        again.restore()
        self.assertEqual(back, log)

    def test_a_run_that_lives_is_not_ended_by_accident_and_can_be_taken_over(self):
        job = self.job()
        model, optim = make()

        def go(turn):
            open(os.path.join(job.dir, "go-%d" % turn), "w").close()
            started.until("committed %d" % (5 * turn))

        def attach(**how):
            return ckptd.attach(model, optim, store=job.store, job=job.name, socket=job.socket, rank=0, world=1, **how)

        started = job.start(1, train_while_told, group=False)
        go(1)
        with self.assertRaisesRegex(
            errors.AlreadyAttached, r"process \d+ \(rank 0 of 1\) .* newest step is 5, marked [\d.]+ s ago"
        ):
            attach()
        # An evaluation: it restores, and marks nothing.
        with attach(takeover=True) as run:
            go(2)
            self.assertEqual(run.restore(), 10)
            go(3)
        go(4)
        with attach(takeover=True, guard="finish") as run:
            self.assertEqual(run.restore(), 20)
            go(5)
            with self.assertRaisesRegex(errors.Superseded, "has committed step 25 .*restore again"):
                train(run, model, optim, 21, 21)
            self.assertEqual(run.restore(), 25)
            train(run, model, optim, 26, 27)
            self.assertEqual(run.wait(), 27)
            open(os.path.join(job.dir, "go-6"), "w").close()
            self.assertRegex(started.wait()[0], "has taken over")
        self.assertNotIn("error", job.daemon_log())

    def test_a_second_attach_of_a_model_or_of_a_rank_is_refused(self):
        job, run, model, optim = self.begun()
        with self.assertRaisesRegex(errors.AlreadyAttached, "Net is attached already in this process, as rank 0 of job gpt"):
            self.attach(job, model)
        other, other_optim = make()
        with self.assertRaisesRegex(errors.AlreadyAttached, "AdamW"):
            self.attach(job, other, optim)
        job.launches -= 1  # the same launch
        with self.assertRaises(errors.AlreadyAttached):
            ckptd.attach(
                other, other_optim, store=job.store, job=job.name, socket=job.socket, rank=0, world=1, generation=1
            )
        run.detach()
        self.attach(job, model, optim).restore()

    def test_an_attach_in_the_place_of_a_live_run_names_it_and_replace_detaches_it(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 3)
        self.assertEqual(run.wait(), 3)
        with self.assertRaisesRegex(
            errors.AlreadyAttached, "this Net is attached already in this process, as rank 0 of job gpt in %s, at step 3: "
            "give attach replace=True" % job.store
        ):  # fmt: skip
            self.attach(job, model, optim)
        self.assertEqual(run.stats()["outcomes"]["taken"], 3)  # it lives
        before = bits(model, optim)
        again = self.attach(job, model, optim, replace=True)
        self.assertEqual(again.restore(), 3)
        self.assertEqual(bits(model, optim), before)
        with self.assertRaises(errors.Detached):
            run.save()
        train(again, model, optim, 4, 4)
        self.assertEqual(again.wait(), 4)

    def calls_of_the_first_mark(self, tensors, late):
        """Functions of Python that the end of the first step calls, if it makes state of `late` of the parameters; what it
        has declared comes back."""
        job = self.job()
        model = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(tensors))
        some = list(model.parameters())[:late]
        for p in some:
            p.grad = torch.ones_like(p)
        optim = torch.optim.SGD(some, lr=0.1, momentum=0.9)
        run = self.attach(job, model, optim)
        run.restore()
        run._progress.enter(1, run._enter(1, None), lambda: self)
        optim.step()
        count = [0]

        def called(_frame, event, _arg):
            count[0] += event == "call"

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            run._leave(1, None, None, None)
        finally:
            sys.setprofile(before)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(len(run._session.entries), tensors + late)
        at_1 = bits(model, optim)
        run.detach()
        fresh = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(tensors))
        again = torch.optim.SGD(list(fresh.parameters())[:late], lr=0.1, momentum=0.9)
        self.assertEqual(self.attach(job, fresh, again).restore(), 1)
        self.assertEqual(bits(fresh, again), at_1)
        return count[0]

    def test_state_that_the_first_step_makes_costs_by_its_own_number(self):
        few, many = self.calls_of_the_first_mark(50, 50), self.calls_of_the_first_mark(200, 200)
        self.assertLess((many - few) / 150, 140)
        small, large = self.calls_of_the_first_mark(50, 20), self.calls_of_the_first_mark(400, 20)
        self.assertLess((large - small) / 350, 15)

    def test_a_cell_of_a_notebook_runs_twice(self):
        job = self.job()
        cell = compile(
            "model, optim = make()\n"
            "run = ckptd.attach(model, optim, store=job.store, job=job.name, socket=job.socket, strict=True, replace=True,\n"
            "                   guard='finish')\n"
            "start = run.restore()\n"
            "train(run, model, optim, start + 1, start + 3)\n"
            "run.wait()\n", "cell", "exec",
        )  # fmt: skip
        notebook = {"make": make, "train": train, "ckptd": ckptd, "job": job}
        for start in (0, 3, 6):
            exec(cell, notebook)
            self.assertEqual(notebook["start"], start)
        refused = compile("run = ckptd.attach(*make(), store=job.store, job=job.name, socket=job.socket)", "cell", "exec")
        with self.assertRaisesRegex(errors.AlreadyAttached, "^rank 0 of job gpt is attached already in this .*replace=True"):
            exec(refused, notebook)
        notebook["run"].detach()
        model, optim = make()
        update(model, optim, 1)
        for step in range(2, 10):
            update(model, optim, step)
        self.assertEqual(bits(notebook["model"], notebook["optim"]), bits(model, optim))

    def test_an_attach_that_fails_leaves_a_model_that_can_be_used_and_attached(self):
        job = self.job()
        model, optim = make()
        before = bits(model, optim)
        model.bad = torch.nn.Parameter(torch.zeros(4).to_sparse(), requires_grad=False)
        with self.assertRaisesRegex(TypeError, "model/bad: it is sparse"):
            self.attach(job, model, optim)
        del model.bad
        self.assertEqual(bits(model), {k: v for k, v in before.items() if k in bits(model)})
        update(model, optim, 1)
        for wrong, what in (
            ({"averages": {"a": "constant decay=2"}}, "decay"),
            ({"averages": {"a": "nonsense"}}, "nonsense"),
        ):
            with self.assertRaisesRegex(errors.InvalidCall, what):
                self.attach(job, model, optim, **wrong)
        update(model, optim, 2)
        run = self.attach(job, model, optim)
        run.restore()
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)

    def test_wrong_arguments_are_named(self):
        job = self.job()
        model, optim = make()
        for wrong, what in (
            ({"guard": "often"}, "'bounded', 'never', 'finish'"),
            ({"memory": "gpu"}, "'alloc', 'foreign'"),
            ({"every": 0}, "every is 0"),
            ({"persist_every": 1.5}, "persist_every is 1.5"),
            ({"averages": ["fast"]}, "averages is a list"),
            ({"extra": {"x": object()}}, "extra.x is a "),
            ({"ranks": [0, 1]}, "ranks is .0, 1.: it must have this rank, 0"),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), what):
                self.attach(job, model, optim, **wrong)
        with self.assertRaisesRegex(TypeError, "model has a int"):
            self.attach(job, 3)
        with self.assertRaisesRegex(TypeError, "no optimizer"):
            self.attach(job, model, [3])
        run = self.attach(job, model, optim)
        with self.assertRaisesRegex(ValueError, "'any', 'memory', 'disk'"):
            run.restore(source="tape")
        with self.assertRaisesRegex(ValueError, "'staged', 'persisted', 'committed'"):
            run.wait("saved")

    def test_a_store_that_cannot_be_one_is_a_value_error_with_the_reason_and_nothing_is_attached(self):
        job = self.job(daemon=False)
        model, optim = make()
        at = os.path.join(job.dir, "at")
        with open(at, "w"):
            pass
        reasons = {
            at: "at: it is a file",
            at + "/below": "below: Not a directory",
            "/proc/1/nothing": "/proc/1/nothing: No such file or directory",
            "s3://bucket/ckpts": "'s3://bucket/ckpts', a URL",
            "file:///tmp/x": "a URL",
            job.dir + "/" + "x" * 300: "File name too long",
        }
        if os.geteuid() != 0:
            os.mkdir(job.dir + "/closed", 0o500)
            reasons[job.dir + "/closed"] = "Permission denied"
        for store, why in reasons.items():
            job.store = store
            with self.subTest(store), self.assertRaises(ValueError) as caught:
                self.attach(job, model, optim, strict=False)
            self.assertIn(why, str(caught.exception))
            self.assertNotIsInstance(caught.exception, errors.NoDaemon)
        with unittest.mock.patch.object(os, "access", lambda *_, **__: False):
            job.store = job.dir
            with self.assertRaisesRegex(ValueError, "no checkpoint can be saved into .*: Permission denied"):
                self.attach(job, model, optim, strict=False)
        job.store = os.path.join(job.dir, "store")
        job.daemon_start()
        self.attach(job, model, optim).detach()  # the model can still be attached

    def test_missing_parents_of_the_store_are_made_and_a_tilde_is_the_home_directory(self):
        job = self.job()
        model, optim = make()
        with unittest.mock.patch.dict(os.environ, HOME=job.dir):
            job.store = "~/a/b/c"
            run = self.attach(job, model, optim)
        run.restore()
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(sorted(os.listdir(os.path.join(job.dir, "a/b/c"))), [".ckptd", job.name][-1:])

    def test_no_sentence_names_a_call_of_the_library(self):
        for text, want in (
            ("rank 1 changed model/ckpt_guard.w after ckpt_snapshot and before ckpt_guard: call ckpt_guard before you modify "
             "the state", "rank 1 changed model/ckpt_guard.w outside of run.step: put every change of the state into its block"),
            ("step 5: blob extra.it is 65 bytes long, and has space for 64: make it shorter, or call ckpt_blob_resize, and "
             "then ckpt_seal", "step 5: the state of extra.it could not be saved"),
            ("no daemon listens on /x/CKPT_A: start ckptd, or set CKPT_AUTOSTART", "no daemon listens on /x/CKPT_A: start ckptd"),
            ("call ckpt_restore again", "call run.restore again"),
        ):  # fmt: skip
            self.assertEqual(_words.said(text), want)
        sources = [
            path for room in ("ckpt", "daemon") for path in glob.glob(os.path.join(ranks.ROOT, room, "**/*.c"), recursive=True)
            if "/cli/" not in path
        ]  # fmt: skip
        seen = 0
        for path in sources:
            with open(path) as f:
                source = re.sub(r'"\s*\n\s*"', "", f.read())
            for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source):
                if " " in text and re.search(r"\bckpt_[a-z]|CKPT_[A-Z]", text):
                    seen += 1
                    self.assertNotRegex(_words.said(text), r"\bckpt_[a-z]|\bCKPT_[A-Z]", path)
        self.assertGreater(seen, 50)

    def test_state_on_another_kind_of_device_is_refused_by_name_before_anything_is_changed(self):
        class Far(Net):
            def named_parameters(self, *args, **kwargs):
                yield from super().named_parameters(*args, **kwargs)
                yield "far.weight", unittest.mock.Mock(device=torch.device("xpu", 0))

        job = self.job()
        with self.assertRaisesRegex(errors.NotSupported, "on CUDA devices, and(.|\n)*of type xpu: far.weight[^,]"):
            self.attach(job, Far())

    def test_without_a_daemon_training_goes_on_with_one_warning_and_saving_begins_when_there_is_one(self):
        job = self.job(daemon=False)
        model, optim = make()
        os.environ["CKPTD_DISABLE"] = "1"  # as if none could be started
        self.addCleanup(os.environ.pop, "CKPTD_DISABLE", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = self.attach(job, model, optim, strict=False, timeout=1.0)
            self.assertEqual(run.restore(), 0)
            train(run, model, optim, 1, 4)
        said = [w for w in caught if issubclass(w.category, errors.NotSaving)]
        self.assertEqual(len(said), 1, [str(w.message) for w in said])
        self.assertEqual(run.stats()["outcomes"]["taken"], 0)

    def test_a_daemon_that_is_killed_is_warned_of_once_and_its_return_is_logged(self):
        with unittest.mock.patch.object(_lib, "CKPT_AUTOSTART", 0):  # or the library would start another one
            job, run, model, optim = self.begun(strict=False, timeout=5.0)
        train(run, model, optim, 1, 1)
        run.wait()
        job.daemon_kill()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = 2
            while run.stats()["outcomes"]["detached"] < 3:
                train(run, model, optim, step, step)
                step += 1
        said = [w for w in caught if issubclass(w.category, errors.NotSaving)]
        self.assertEqual(len(said), 1)
        self.assertEqual(said[0].filename, __file__)
        job.daemon_start()
        with self.assertLogs("ckptd", "WARNING") as logs:
            taken = run.stats()["outcomes"]["taken"]
            while run.stats()["outcomes"]["taken"] == taken:
                train(run, model, optim, step, step)
                step += 1
        self.assertTrue(any("saved again from step" in line for line in logs.output), logs.output)
        run.wait()

    def test_without_a_daemon_a_job_that_has_steps_does_not_begin_anew(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        job.daemon_stop()
        os.environ["CKPTD_DISABLE"] = "1"
        self.addCleanup(os.environ.pop, "CKPTD_DISABLE", None)
        run = self.attach(job, model, optim, strict=False, timeout=1.0)
        with self.assertRaisesRegex(errors.NoDaemon, "may have steps"):
            run.restore()

    def test_a_daemon_that_comes_later_and_has_steps_of_the_job_does_not_end_the_training(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        job.daemon_stop()
        with unittest.mock.patch.object(_lib, "CKPT_AUTOSTART", 0):
            run = self.attach(job, model, optim, strict=False, timeout=1.0)
        with self.assertRaises(errors.NoDaemon):
            run.restore()  # the program goes on all the same
        train(run, model, optim, 2, 2)
        job.daemon_start()
        step = 3
        while not run.stats()["outcomes"]["refused"]:
            train(run, model, optim, step, step)
            step += 1
        train(run, model, optim, step, step)
        self.assertEqual(run.stats()["outcomes"]["taken"], 0)
        run.fresh()
        train(run, model, optim, step + 1, step + 1)
        self.assertEqual(run.wait(timeout=SECONDS), step + 1)

    def test_ctrl_c_in_the_middle_of_a_call_leaves_a_run_that_goes_on(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run._handle._one.acquire()  # as if the interrupt had come before the call, and after the lock was taken
        run._handle._enter_any()
        entered = run.step(2)
        entered.__enter__()
        with self.assertRaisesRegex(RuntimeError, "inside of step 2"):
            train(run, model, optim, 3, 3)
        del entered  # as if it had come before the block began
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)
        run.detach()

    def test_a_wait_of_another_thread_marks_nothing(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()
        run._progress.enter(2, True, None)
        run._progress.leave()  # as if step 2 had been skipped
        got = []
        with run.step(3):
            thread = threading.Thread(
                target=lambda: got.append(run.wait(timeout=SECONDS))
            )  # in the middle of the next one
            thread.start()
            thread.join()
            update(model, optim, 3)
        self.assertEqual(got, [1])
        self.assertEqual(run.wait(), 3)
        self.assertEqual([s.step for s in run._handle.steps()][:2], [3, 1])

    def test_a_handler_of_the_log_makes_no_call(self):
        job, run, model, optim = self.begun()
        raised = []

        class Calls(logging.Handler):
            def emit(self, record):
                try:
                    run._handle.guard()
                except errors.WrongThread as e:
                    raised.append(str(e))

        handler = Calls()
        logging.getLogger("ckptd").addHandler(handler)
        self.addCleanup(logging.getLogger("ckptd").removeHandler, handler)
        _lib._log_to(run._handle._queue)(None, 4, b"a line of the library")
        self.assertEqual(len(raised), 1, raised)
        train(run, model, optim, 1, 1)

    def test_a_forked_child_and_a_second_thread_are_refused(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                with run.step(2):
                    pass
                text = "nothing was raised"
            except BaseException as e:
                text = type(e).__name__
            os.write(write, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(os.read(read, 100), b"ForkedError")
        entered, leave, raised = threading.Event(), threading.Event(), []

        def other():
            with run._handle._one:
                entered.set()
                leave.wait(SECONDS)

        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(SECONDS)
        with self.assertRaises(errors.WrongThread), run.step(2):
            pass
        leave.set()
        thread.join()
        train(run, model, optim, 2, 2)
        self.assertEqual(run.wait(), 2)

    def test_a_run_that_ended_says_so_and_the_model_goes_on(self):
        job = self.job()
        model, optim = make()
        with self.attach(job, model, optim) as run:
            run.restore()
            train(run, model, optim, 1, 1)
            run.wait()
        run.detach()
        for call in (run.restore, run.wait, lambda: train(run, model, optim, 2, 2)):
            with self.assertRaises(errors.Detached):
                call()
        update(model, optim, 2)


class Averages(One):
    def test_the_average_is_in_the_model_bit_for_bit_and_the_weights_are_back_after_it(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, averages={"fast": "constant decay=.9 *.bias=copy"}, slots=3)
        run.restore()
        average = None
        for step in range(1, 6):
            train(run, model, optim, step, step)
            run.wait()
            weights = {n: p.detach().clone() for n, p in model.named_parameters() if not n.endswith(".bias")}
            average = (
                weights if average is None else {n: torch.lerp(average[n], w, 1 - 0.9) for n, w in weights.items()}
            )
        raw, objects = bits(model, optim), list(model.parameters())
        with run.averaged("fast") as step:
            self.assertEqual(step, 5)
            now = dict(model.named_parameters())
            for name, value in average.items():
                self.assertTrue(torch.equal(now[name], value), name)
            self.assertTrue(all(a is b for a, b in zip(objects, model.parameters())))
            with self.assertRaisesRegex(RuntimeError, "average 'fast' is in the model"):
                train(run, model, optim, 6, 6)
        self.assertEqual(bits(model, optim), raw)
        with self.assertRaisesRegex(KeyError, "mine"), run.averaged("fast"):
            raise KeyError("mine")
        self.assertEqual(bits(model, optim), raw)
        train(run, model, optim, 6, 6)
        self.assertEqual(run.wait(), 6)
        self.assertEqual(run.restore(), 6)
        train(run, model, optim, 7, 7)
        run.wait()
        with run.averaged("fast") as step:
            self.assertEqual(step, 7)
        with self.assertRaisesRegex(KeyError, "slow"), run.averaged("slow"):
            pass

    def test_steps_that_an_average_leaves_out_are_counted_and_warned_of_once(self):
        job = self.job()
        model = torch.nn.Linear(4096, 2048, bias=False)  # a copy takes longer than a guard that does not wait
        run = self.attach(job, model, averages={"fast": "constant decay=.9"}, guard="never", slots=3)
        run.restore()
        until = time.monotonic() + SECONDS
        kind = ckptd.AveragesLeftOut
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step = 0
            while time.monotonic() < until and not any(w.category is kind for w in said):
                for step in range(step + 1, step + 4):  # the third one is waited for
                    with run.step(step), torch.no_grad():
                        model.weight.add_(1)
                self.assertEqual(run.wait(), step)
            for step in range(step + 1, step + 30):
                with run.step(step), torch.no_grad():
                    model.weight.add_(1)
        self.assertEqual(len([w for w in said if w.category is kind]), 1)
        stats = run.stats()
        self.assertGreater(stats["average_left_out"] * 100, stats["average_left_out"] + stats["average_taken"])
        self.assertEqual(stats["average_waits"], 0)

    def test_with_every_no_step_is_left_out(self):
        job = self.job()
        model = torch.nn.Linear(4096, 2048, bias=False)
        run = self.attach(job, model, averages={"fast": "constant decay=.9 every"}, guard="never", slots=3)
        run.restore()
        for step in range(1, 21):
            with run.step(step), torch.no_grad():
                model.weight.add_(1)
        self.assertEqual(run.wait(), 20)
        stats = run.stats()
        self.assertEqual((stats["average_taken"], stats["average_left_out"]), (19, 0))
        self.assertEqual((stats["torn"], stats["skipped"]), (0, 0))
        self.assertGreater(stats["average_waits"], 0)

    def test_no_step_has_the_average_yet(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, averages={"fast": "constant decay=.9"})
        run.restore()
        before = bits(model, optim)
        with self.assertRaises(errors.NothingToRestore), run.averaged("fast"):
            pass
        self.assertEqual(bits(model, optim), before)


class Import(unittest.TestCase):
    def test_the_package_needs_neither_torch_nor_the_library_to_be_imported(self):
        import subprocess
        import sys

        code = "import sys; sys.modules['torch'] = None; import ckptd, ckptd.errors; print(ckptd.Preempted.__name__, len(dir(ckptd)) > 20)"
        env = dict(os.environ, PYTHONPATH=ranks.PACKAGE, CKPT_LIB="/nowhere")
        out = subprocess.run(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        self.assertEqual(out, "Preempted True\n")


if __name__ == "__main__":
    logging.getLogger("ckptd").addHandler(logging.NullHandler())
    unittest.main()
