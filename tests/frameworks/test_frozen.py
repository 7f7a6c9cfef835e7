# SPDX-License-Identifier: Apache-2.0
"""Frozen parameters are written once, and followed at once when they change (python/ckptd/_frozen.py)."""

import os
import unittest
import warnings

import test_run
import torch
from test_run import bits
from torch_names import fsdp2_on_cpu

MIB = 1 << 20


class Tuned(torch.nn.Module):
    """Frozen weights of 8 MiB, an adapter of 1 MiB, running statistics, and a head that is tied to an embedding."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(8)])
        self.norm = torch.nn.BatchNorm1d(512)
        self.adapter = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(256, 512))
        for p in self.base.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return self.norm(self.base(x)) + self.adapter(x)


def tuned(seed=1):
    torch.manual_seed(seed)
    model = Tuned()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def update(model, optim):
    model(torch.randn(8, 512)).square().mean().backward()
    optim.step()
    optim.zero_grad()


def classes(about):
    return {t["component"] + "/" + t["name"]: t["class"] for t in about["tensors"]}


def sharded(rank, how):
    """FSDP2: the frozen shards are changed in step 3, on one rank alone or on all. The sums of what was written."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 64))
    model[0].requires_grad_(False)
    mesh = init_device_mesh("cpu", (rank.world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model[1].parameters(), lr=0.01)
    run = rank.attach(model, optim, guard="finish")
    run.restore()
    for step in range(1, 6):
        with run.step(step):
            model(torch.ones(4, 64)).square().mean().backward()
            optim.step()
            optim.zero_grad()
            if step == 3:
                with torch.no_grad():
                    if how == "all":
                        model[0].weight.mul_(2)
                    elif rank.rank == 1:
                        model[0].weight._local_tensor.mul_(2)
        run.wait()
    kept = [p._local_tensor.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    step = run.restore()
    same = all(torch.equal(a, p._local_tensor) for a, p in zip(kept, model.parameters()))
    run.detach()
    return int(step), same


class Frozen(test_run.One):
    def begun(self, **options):
        job = self.job(options.pop("name", "gpt"))
        model, optim = tuned()
        run = self.attach(job, model, optim, **options)
        run.restore()
        return job, run, model, optim

    def train(self, run, model, optim, *steps):
        for step in steps:
            with run.step(step):
                update(model, optim)
            self.assertEqual(run.wait(), step)

    def written(self, job, seen):
        """The bytes of the files that were not there at the last call; links are no files of their own."""
        new = {}
        for at, _, files in os.walk(os.path.join(job.store, job.name)):
            for s in (os.stat(os.path.join(at, f)) for f in files):
                new[s.st_ino, s.st_mtime_ns] = s.st_size
        found = sum(size for file, size in new.items() if file not in seen)
        seen.update(new)
        return found

    def resumed(self, job, run, model, optim):
        """What a new start gets is every bit of this state."""
        kept = bits(model, optim)
        run.detach()
        back, back_optim = tuned(seed=9)
        again = self.attach(job, back, back_optim)
        self.assertGreater(again.restore(), 0)
        self.assertEqual(bits(back, back_optim), kept)
        return again, back, back_optim

    def test_from_the_second_step_on_little_more_than_what_is_trained_is_written(self):
        for averages in ({}, {"fast": "constant decay=.9"}):
            with self.subTest(averages):
                job, run, model, optim = self.begun(name="a%d" % len(averages), averages=averages, slots=3)
                trained = 3 + len(averages)  # weights, two moments, averages
                trained *= sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
                seen = {}
                for step in range(1, 9):
                    self.train(run, model, optim, step)
                    now = self.written(job, seen)
                    if step == 1:
                        self.assertGreater(now, 8 * MIB)
                    else:
                        self.assertLessEqual(now, 1.2 * trained)
                of = classes(self.shown(job, 8))
                self.assertEqual({of["model/base.%d.weight" % i] for i in range(8)}, {"const"})
                self.assertNotIn("const", {c for name, c in of.items() if "base" not in name})
                if averages:
                    with run.averaged("fast"):
                        pass
                self.resumed(job, run, model, optim)

    def test_what_is_changed_by_hand_is_in_the_step_that_has_it(self):
        ways = {
            "copy_": lambda model: model.base[3].weight.view(-1)[5:6].copy_(torch.tensor([7.0])),
            "load_state_dict": lambda model: model.load_state_dict(
                {k: v + 1 if k == "base.2.weight" else v.clone() for k, v in model.state_dict().items()}
            ),
            "replaced": lambda model: setattr(model.base[1].weight, "data", model.base[1].weight.data + 1),
            "all": lambda model: [p.data.mul_(2) for p in model.base.parameters()],
        }
        for way, change in ways.items():
            with self.subTest(way):
                job, run, model, optim = self.begun(name=way)
                self.train(run, model, optim, 1, 2)
                with warnings.catch_warnings(record=True), torch.no_grad(), run.step(3):
                    change(model)
                self.assertEqual(run.wait(), 3)
                kept = bits(model)
                for step in (3, 4):
                    with torch.no_grad():
                        [p.zero_() for p in model.parameters()]
                    self.assertEqual(run.restore(step), step)
                    self.assertEqual({k: v for k, v in bits(model).items() if k in kept and "base" in k},
                                     {k: v for k, v in kept.items() if "base" in k})  # fmt: skip
                    if step == 3:
                        self.train(run, model, optim, 4)
                run.detach()

    def test_a_change_between_two_snapshots_of_which_one_stays_in_memory_is_not_lost(self):
        job, run, model, optim = self.begun(persist_every=2)
        for step in range(1, 9):
            with run.step(step):
                update(model, optim)
                if step in (3, 6):
                    with torch.no_grad():
                        model.base[0].weight[0, :1].add_(1)
            run.wait("staged")
        run.save() if run.wait() != 8 else None
        self.resumed(job, run, model, optim)

    def test_unfreezing_is_followed_at_once(self):
        for way in ("requires_grad", "add_param_group"):
            with self.subTest(way):
                job, run, model, optim = self.begun(name=way)
                self.train(run, model, optim, 1, 2)
                model.base[5].requires_grad_(True)
                if way == "add_param_group":
                    optim.add_param_group({"params": list(model.base[5].parameters())})
                self.train(run, model, optim, 3)
                of = classes(self.shown(job, 3))
                self.assertEqual(of["model/base.5.weight"], "stable")
                self.assertEqual(of["model/base.4.weight"], "const")
                self.train(run, model, optim, 4)
                kept = bits(model)
                run.restore(4)
                self.assertEqual(bits(model), kept)
                model.base[5].requires_grad_(False)  # it may be frozen again: it stays what it is until the next attach
                self.train(run, model, optim, 5)
                self.assertEqual(classes(self.shown(job, 5))["model/base.5.weight"], "stable")
                run.detach()

    def test_an_average_begins_anew_when_something_is_unfrozen_and_steps_go_on(self):
        job, run, model, optim = self.begun(averages={"fast": "constant decay=.9"}, slots=3)
        self.train(run, model, optim, 1, 2)
        with run.averaged("fast"):
            pass
        model.base[0].requires_grad_(True)
        optim.add_param_group({"params": list(model.base[0].parameters())})
        for step in (3, 4, 5):
            with run.step(step):
                update(model, optim)
            self.assertEqual(run.wait(timeout=60), step)
        raw = bits(model)
        with run.averaged("fast") as step:
            self.assertEqual(step, 5)
            for name in ("base.0.weight", "adapter.0.weight"):
                self.assertTrue(bits(model)[name] != raw[name], name)
        self.assertTrue(bits(model) == raw)

    def test_what_may_change_is_never_constant(self):
        job = self.job()
        model, optim = tuned()
        model.base[0].weight.requires_grad_(True)
        optim.add_param_group({"params": [model.base[0].weight, model.base[1].weight]})
        model.base[0].weight.requires_grad_(False)  # the optimizer has it
        model.head = torch.nn.Linear(512, 512, bias=False)
        model.head.weight = torch.nn.Parameter(model.base[2].weight.detach())  # another parameter, the same memory
        model.norm.register_buffer("view", model.base[3].weight.detach())
        run = self.attach(job, model, optim, averages={"slow": "constant decay=.9 base.4.*=average"}, slots=3)
        run.restore()
        self.train(run, model, optim, 1)
        of = classes(self.shown(job, 1))
        self.assertEqual([of["model/base.%d.weight" % i] for i in range(8)], ["stable"] * 5 + ["const"] * 3)

    def test_a_checkpoint_of_changing_weights_is_restored_into_frozen_ones_and_the_other_way(self):
        job = self.job()
        torch.manual_seed(4)
        model = Tuned()
        model.base.requires_grad_(True)
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        run = self.attach(job, model, optim)
        run.restore()
        self.train(run, model, optim, 1)
        kept = bits(model)
        run.detach()
        for step, frozen in ((2, True), (3, False)):
            back = Tuned()
            back.base.requires_grad_(not frozen)
            optim = torch.optim.SGD([p for p in back.parameters() if p.requires_grad], lr=0.0)
            run = self.attach(job, back, optim)
            for _ in range(2):
                self.assertEqual(run.restore(), step - 1)
            self.assertEqual({k: v for k, v in bits(back).items() if "base" in k},
                             {k: v for k, v in kept.items() if "base" in k})  # fmt: skip
            with run.step(step):
                pass
            self.assertEqual(run.wait(), step)
            self.assertEqual(classes(self.shown(job, step))["model/base.0.weight"], "const" if frozen else "stable")
            run.detach()

    @fsdp2_on_cpu
    def test_shards_that_one_rank_or_all_change_are_in_the_step_that_has_them(self):
        for how in ("all", "one"):
            with self.subTest(how):
                self.assertEqual(self.job(how).run(2, sharded, how), [(5, True)] * 2)


if __name__ == "__main__":
    unittest.main()
