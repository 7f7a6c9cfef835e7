# SPDX-License-Identifier: Apache-2.0
"""Optimizers are heard (python/ckptd/_heard.py): one that steps outside of the block, and one that was never attached."""

import copy
import gc
import json
import os
import pickle
import signal
import threading
import time
import unittest
import unittest.mock
import warnings

import ranks
import test_run
import torch
from test_run import bits, make, train, update
from torch.optim import optimizer as torch_optimizer

import ckptd
from ckptd import errors


class Inner(torch.optim.SGD):
    """What Outer has inside."""


class Outer:
    """A wrapper that is no torch optimizer. own: its state is not that of the optimizer inside."""

    def __init__(self, params, own):
        self.inner = Inner(params, lr=0.1, momentum=0.9)
        self.param_groups, self.mine = self.inner.param_groups, {} if own else None

    @property
    def state(self):
        return self.inner.state if self.mine is None else self.mine

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()


def one_rank_alone(rank, how, last):
    """Rank 1 does something that the others do not, in step 3. What each rank was warned of, and the newest step."""
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8)
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim, guard="finish", strict=False)
    run.restore()
    other = torch.optim.AdamW(model.parameters(), lr=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, last + 1):
            model(torch.ones(2, 8)).sum().backward()
            if step == 3 and rank.rank == 1 and how == "outside":
                optim.step()
            with run.step(step):
                (other if step == 3 and rank.rank == 1 and how == "unattached" else optim).step()
            if how == "unattached" and step == 4:  # then `wait` takes the step, with the moments of the new one
                run.replace_optimizer(optim, other)
                optim, other = other, None
            if step != 3:
                with unittest.mock.patch("logging.Logger._log"):
                    try:
                        run.wait(timeout=ranks.LIMIT)
                    except errors.NotSaved:
                        pass
    run.detach()
    return [w.category.__name__ for w in caught if issubclass(w.category, errors.NotSaving)]


class Heard(test_run.One):
    def begun(self, optimizer="adamw", **options):
        options.setdefault("strict", False)
        return super().begun(optimizer, **options)

    def steps(self, job):
        listed = job.ctl("ls", "--json", os.path.join(job.store, job.name))
        return sorted(s["step"] for s in json.loads(listed)["checkpoints"])

    def refused(self, category, text, run, model, optim, step):
        """A step of training, which is not saved, with one warning that says this."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(run, model, optim, step, step)
        said = [w for w in caught if issubclass(w.category, errors.NotSaving)]
        self.assertEqual([w.category for w in said], [category])
        self.assertEqual(said[0].filename, test_run.__file__)
        self.assertRegex(str(said[0].message), text)

    def saved_alike(self, job, run, model, optim, step):
        """The newest step is this one, and it has every bit of what the program has."""
        self.assertEqual(run.wait(timeout=test_run.SECONDS), step)
        now = bits(model, optim)
        self.assertEqual(run.restore(step), step)
        self.assertEqual(bits(model, optim), now)


class Outside(Heard):
    def test_a_step_is_not_saved_if_an_attached_optimizer_stepped_before_it_and_the_next_one_is(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        update(model, optim, 7)
        text = r"AdamW \(of model/first.weight, (.|\n)*stepped outside of `with run.step`, before step 2(.|\n)*into the block"
        self.refused(ckptd.UnguardedUpdate, text, run, model, optim, 2)
        self.assertEqual(run.stats()["outcomes"]["outside"], 1)
        train(run, model, optim, 3, 3)
        self.saved_alike(job, run, model, optim, 3)
        self.assertEqual(self.steps(job), [1, 3])

    def test_the_program_is_warned_once(self):
        job, run, model, optim = self.begun()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(1, 6):
                update(model, optim, step)
                with run.step(step):
                    pass
        self.assertEqual([w.category for w in caught], [ckptd.UnguardedUpdate])
        self.assertEqual(run.stats()["outcomes"]["outside"], 5)
        self.assertEqual(run.stats()["taken"], 0)

    def test_strict_makes_it_an_exception(self):
        job, run, model, optim = self.begun(strict=True)
        update(model, optim, 1)
        with self.assertRaisesRegex(errors.InvalidCall, "AdamW (.|\n)*stepped outside"):
            train(run, model, optim, 1, 1)

    def test_the_copy_of_the_step_before_is_right_or_is_given_up(self):
        """The optimizer updates a thousandth of the state: the words that the library compares would not find it."""
        for attempt in range(3):
            job = self.job("gpt%d" % attempt)
            model = torch.nn.ParameterDict(
                {"large": torch.nn.Parameter(torch.ones(1 << 20)), "small": torch.nn.Parameter(torch.ones(1 << 10))}
            )
            optim = torch.optim.SGD([model["small"]], lr=0.5)
            run = self.attach(job, model, optim, guard="bounded", strict=False)
            run.restore()
            job.daemon.send_signal(signal.SIGSTOP)  # it has copied nothing when the optimizer steps
            try:
                with run.step(1):
                    pass
                model["small"].sum().backward()
                optim.step()
            finally:
                job.daemon.send_signal(signal.SIGCONT)
            while not run.stats()["staged"] + run.stats()["torn"]:
                time.sleep(0.001)
            with warnings.catch_warnings(record=True), run.step(2):
                pass
            with run.step(3):
                pass
            self.assertEqual(run.wait(timeout=test_run.SECONDS), 3)
            self.assertEqual(self.steps(job), [3])
            run.detach()

    def test_neither_wait_nor_save_nor_detach_marks_a_state_that_was_changed_outside(self):
        for how in ("wait", "save", "detach"):
            with self.subTest(how):
                job, run, model, optim = self.begun(every=2)
                train(run, model, optim, 1, 2)
                self.assertEqual(run.wait(), 2)
                train(run, model, optim, 3, 3)
                update(model, optim, 4)
                if how == "wait":
                    self.assertEqual(run.wait(), 2)
                elif how == "save":
                    with warnings.catch_warnings(record=True), self.assertRaises(errors.CkptdError):
                        run.save(timeout=5.0)
                run.detach()
                self.assertEqual(self.steps(job), [2])
                job.end()

    def test_if_no_guard_can_be_called_the_step_before_is_never_written(self):
        for how in ("step", "wait", "detach"):
            with self.subTest(how):
                job, run, model, optim = self.begun()
                train(run, model, optim, 1, 1)
                with unittest.mock.patch.object(run._handle, "guard", side_effect=errors.error("guard", 35, "busy")):
                    update(model, optim, 2)
                if how == "step":
                    with warnings.catch_warnings(record=True):
                        train(run, model, optim, 2, 2)
                    train(run, model, optim, 3, 3)
                    self.assertEqual(run.wait(), 3)
                elif how == "wait":
                    with warnings.catch_warnings(record=True), self.assertRaises(errors.CkptdError):
                        run.wait(timeout=5.0)
                run.detach()
                self.assertEqual(self.steps(job), [3] if how == "step" else [])
                job.end()

    def test_what_was_done_before_a_restore_does_not_matter(self):
        job, run, model, optim = self.begun(strict=True)
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        update(model, optim, 9)
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        self.assertEqual(run.restore(), 1)
        train(run, model, optim, 2, 2)
        self.saved_alike(job, run, model, optim, 2)

    def test_optimizers_in_the_backward_pass(self):
        job = self.job()
        model, _ = make()
        optims = {p: torch.optim.SGD([p], lr=0.01, momentum=0.9) for p in model.parameters()}
        for p, optim in optims.items():
            p.register_post_accumulate_grad_hook(lambda p, optim=optim: optim.step() or optim.zero_grad())
        run = self.attach(job, model, list(optims.values()), strict=False)
        run.restore()

        def backward(step):
            model(torch.randn(12, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()

        with run.step(1):
            backward(1)
        self.assertEqual(run.wait(), 1)
        backward(2)
        with self.assertWarnsRegex(ckptd.UnguardedUpdate, r"SGD (.|\n)*outside(.|\n)*loss.backward\(\)"), run.step(2):
            pass
        with run.step(3):
            backward(3)
        self.assertEqual(run.wait(), 3)
        self.assertEqual(self.steps(job), [1, 3])

    def test_a_step_in_another_thread_that_has_not_ended_when_the_block_ends(self):
        job, run, model, optim = self.begun()
        begun, goes_on = threading.Event(), threading.Event()

        def closure():
            begun.set()
            goes_on.wait(test_run.SECONDS)

        thread = threading.Thread(target=lambda: optim.step(closure))
        with self.assertWarnsRegex(ckptd.UnguardedUpdate, "or did not end in it"):
            with run.step(1):
                thread.start()
                begun.wait(test_run.SECONDS)
        goes_on.set()
        thread.join()
        with warnings.catch_warnings(record=True):
            train(run, model, optim, 2, 2)
        train(run, model, optim, 3, 3)
        self.saved_alike(job, run, model, optim, 3)
        self.assertEqual(self.steps(job), [3])

    def test_a_compiled_step_is_heard(self):
        job, run, model, optim = self.begun()
        step = torch.compile(optim.step, backend="eager")
        with run.step(1):
            model(torch.randn(12, 8)).sum().backward()
            step()
        self.assertEqual(run.wait(), 1)
        step()
        with self.assertWarnsRegex(ckptd.UnguardedUpdate, "AdamW"), run.step(2):
            step()
        with run.step(3):
            step()
        self.saved_alike(job, run, model, optim, 3)
        self.assertEqual(self.steps(job), [1, 3])

    def test_ranks_agree(self):
        for how, category in (("outside", "UnguardedUpdate"), ("unattached", "UnattachedOptimizer")):
            with self.subTest(how):
                job = self.job(how)
                said = job.run(2, one_rank_alone, how, 6, group=False)
                self.assertEqual(said, [[], [category]])
                self.assertEqual(self.steps(job), [1, 2, 4, 5, 6])


class Unattached(Heard):
    def test_no_step_is_saved_until_the_dead_optimizer_is_replaced_and_then_the_new_moments_are(self):
        job, run, model, old = self.begun()
        train(run, model, old, 1, 2)
        self.assertEqual(run.wait(), 2)
        new = torch.optim.AdamW(model.parameters(), lr=1e-3)
        text = r"AdamW \(of model/first.weight, (.|\n)*was never attached(.|\n)*run.replace_optimizer\(old, new\)"
        self.refused(ckptd.UnattachedOptimizer, text, run, model, new, 3)
        train(run, model, new, 4, 5)
        train(run, model, old, 6, 6)
        self.assertEqual(run.stats()["outcomes"]["unattached"], 4)
        run.replace_optimizer(old, new)
        self.assertEqual(run.save(), 6)
        train(run, model, new, 7, 8)
        self.assertEqual(run.wait(), 8)
        kept, lr = bits(model, new), new.param_groups[0]["lr"]
        run.detach()
        self.assertEqual(self.steps(job), [1, 2, 6, 7, 8])
        back, optim = make(seed=5)
        again = self.attach(job, back, optim)
        self.assertEqual(again.restore(), 8)
        self.assertEqual(bits(back, optim), kept)
        self.assertEqual(optim.param_groups[0]["lr"], lr)

    def test_a_new_attach_saves_what_it_is_given(self):
        job, run, model, old = self.begun()
        train(run, model, old, 1, 1)
        new = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self.refused(ckptd.UnattachedOptimizer, "SGD", run, model, new, 2)
        run.detach()
        run = self.attach(job, model, new)
        run.fresh()
        train(run, model, new, 3, 3)
        self.saved_alike(job, run, model, new, 3)

    def test_an_optimizer_of_another_kind_takes_the_place_and_its_state_alone_is_saved(self):
        job, run, model, old = self.begun()
        train(run, model, old, 1, 1)
        new = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        run.replace_optimizer(old, new)
        train(run, model, new, 2, 3)
        self.saved_alike(job, run, model, new, 3)
        names = {t["name"] for t in self.shown(job, 3)["tensors"] if t["component"] == "optim"}
        self.assertEqual({name.rpartition(".")[2] for name in names}, {"momentum_buffer"})
        train(run, model, old, 4, 4)  # which is not attached any more
        self.assertEqual(run.stats()["outcomes"]["unattached"], 1)

    def test_the_optimizer_of_new_parameters_is_named_in_the_step_that_has_them(self):
        job, run, model, old = self.begun()
        train(run, model, old, 1, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with run.step(2):
                model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
                new = torch.optim.AdamW(model.parameters(), lr=1e-2)
                update(model, new, 2)
        self.assertIn(ckptd.UnattachedOptimizer, [w.category for w in caught])
        run.replace_optimizer(old, new)
        train(run, model, new, 3, 3)
        self.saved_alike(job, run, model, new, 3)

    def test_what_cannot_be_replaced_is_named_and_nothing_changes(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        other, of_other = make(seed=2)
        new = torch.optim.SGD(model.parameters(), lr=1e-3)
        with self.assertRaisesRegex(errors.InvalidCall, "this SGD is not attached: attached are AdamW"):
            run.replace_optimizer(new, new)
        with self.assertRaisesRegex(TypeError, "optim/param_groups.0.0: the optimizer updates a tensor .* that is no parameter"):
            run.replace_optimizer(optim, of_other)
        with self.assertRaisesRegex(TypeError, "int is no optimizer"):
            run.replace_optimizer(optim, 7)
        with self.assertRaisesRegex(errors.AlreadyAttached, "AdamW is attached already"):
            run.replace_optimizer(optim, optim)
        with self.assertRaisesRegex(RuntimeError, "inside of step 2"), run.step(2):
            run.replace_optimizer(optim, new)
        train(run, model, optim, 3, 3)
        self.saved_alike(job, run, model, optim, 3)

    def test_names_of_other_optimizers_never_change(self):
        job = self.job()
        model, _ = make()
        one, two = [torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]
        run = self.attach(job, model, [one, two])
        run.restore()
        with self.assertRaisesRegex(errors.InvalidCall, "other optimizers would have other names"):
            run.replace_optimizer(one, torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9))
        run.replace_optimizer(two, torch.optim.AdamW(model.first.parameters()))

    def test_optimizers_of_other_parameters_do_not_matter(self):
        job, run, model, optim = self.begun(strict=True)
        other, of_other = make(seed=2)
        update(other, of_other, 1)
        with run.step(1):
            update(other, of_other, 1)
            update(model, optim, 1)
        update(other, of_other, 1)
        train(run, model, optim, 2, 2)
        self.saved_alike(job, run, model, optim, 2)

    def test_a_job_that_saves_weights_alone_hears_only_where_an_optimizer_steps(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, strict=False)
        run.restore()
        train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        update(model, optim, 2)
        self.refused(ckptd.UnguardedUpdate, "AdamW", run, model, optim, 2)

    def test_an_optimizer_among_the_extras_is_saved(self):
        job = self.job()
        model, _ = make()
        one = torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9)
        two = torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9)
        other, of_other = make(seed=2)
        run = self.attach(job, model, one, extra={"two": two, "other": of_other})
        run.restore()
        for step in (1, 2):
            with run.step(step):
                update(model, one, step)
                two.step()
            update(other, of_other, step)
        self.assertEqual(run.wait(), 2)

    def test_an_optimizer_inside_of_a_wrapper_is_attached_if_its_state_is_the_wrappers(self):
        for own in (False, True):
            with self.subTest(own=own):
                job = self.job("own%d" % own)
                model, _ = make()
                optim = Outer(model.parameters(), own)
                run = self.attach(job, model, optim, strict=False)
                run.restore()
                if own:
                    self.refused(ckptd.UnattachedOptimizer, "Inner", run, model, optim, 1)
                else:
                    train(run, model, optim, 1, 1)
                    self.assertEqual(run.wait(), 1)
                    update(model, optim, 2)
                    self.refused(ckptd.UnguardedUpdate, "Inner", run, model, optim, 2)
                run.detach()

    def test_an_optimizer_that_does_not_exist_any_more_is_missed_by_nobody(self):
        job, run, model, optim = self.begun()
        self.refused(
            ckptd.UnattachedOptimizer, "SGD", run, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 1
        )
        gc.collect()
        train(run, model, optim, 2, 2)
        self.saved_alike(job, run, model, optim, 2)


class Allowed(Heard):
    """What optimizers may do in a block."""

    def test_closures_scalers_and_kinds(self):
        for kind, options in (("adamw", {"foreach": True}), ("adamw", {"fused": True}), ("lbfgs", {}), ("scaler", {})):
            with self.subTest(kind, **options):
                job = self.job(kind + "".join(options))
                model, _ = make()
                if kind == "lbfgs":
                    optim = torch.optim.LBFGS(model.parameters(), max_iter=3)
                else:
                    optim = torch.optim.AdamW(model.parameters(), **options)
                scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaler")
                run = self.attach(job, model, optim)
                run.restore()

                def closure():
                    optim.zero_grad()
                    loss = model(torch.ones(12, 8)).square().mean()
                    scaler.scale(loss).backward()
                    return loss

                for step in (1, 2, 3):
                    with run.step(step):
                        if kind == "lbfgs":
                            optim.step(closure)
                            continue
                        closure()
                        if step == 2:
                            model.first.weight.grad.fill_(float("inf"))  # the scaler then skips the update
                        scaler.step(optim) if kind == "scaler" else optim.step()
                        scaler.update()
                    self.assertEqual(run.wait(), step)
                run.detach()

    def test_two_runs_hear_their_own_optimizers(self):
        first, second = self.job("one"), self.job("two")
        (one, of_one), (two, of_two) = make(), make(seed=2)
        a, b = self.attach(first, one, of_one), self.attach(second, two, of_two)
        a.restore(), b.restore()

        def both(run, model, optim):
            train(run, model, optim, 1, 5)

        threads = [threading.Thread(target=both, args=of) for of in ((a, one, of_one), (b, two, of_two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in (a, b):
            run._thread = threading.get_ident()
            self.assertEqual(run.wait(), 5)

    def test_nothing_is_left_after_detach_and_optimizers_can_be_copied_and_pickled(self):
        hooks = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
        before = [len(all_of) for all_of in hooks]
        job, run, model, optim = self.begun()
        self.assertEqual([len(all_of) for all_of in hooks], [n + 1 for n in before])
        copy.deepcopy(optim)
        pickle.loads(pickle.dumps(optim))
        run.detach()
        self.assertEqual([len(all_of) for all_of in hooks], before)
        update(model, optim, 1)
        self.assertRaises(Exception, lambda: self.attach(self.job("bad"), torch.nn.LazyLinear(3)))
        gc.collect()
        self.assertEqual([len(all_of) for all_of in hooks], before)


if __name__ == "__main__":
    unittest.main()
