# SPDX-License-Identifier: Apache-2.0
"""States that an exception has left half-made: nothing marks them, and every step that is committed is what its block
made. The exceptions of the program, of a signal's handler between any two instructions of the package, and of SIGINT."""

import contextlib
import hashlib
import os
import re
import select
import signal
import subprocess
import sys
import unittest
import unittest.mock
import warnings

import ranks
import torch
from test_run import One, SECONDS, bits, make, train, update

import ckptd
from ckptd import _lib, errors
from ckptd._progress import Progress

WHAT = ("taken", "skipped", "torn", "every", "memory")
CALLS = ("wait", "save", "detach", "preempted")
WHEN = ("before", "in", "after")
KINDS = (KeyboardInterrupt, SystemExit, GeneratorExit, ZeroDivisionError)


def content(saved):
    """Every bit of a step on disk, by name."""
    found = {}
    for name in (n for n in saved if n.startswith(("model/", "optim/"))):
        tensor = saved[name]
        tensor = tensor[...] if len(tensor.shape) else tensor[()]
        found[name] = torch.as_tensor(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return digest(found)


def state(model, optim):
    """The same of what memory holds now."""
    names = {p: n for n, p in model.named_parameters()}
    found = {"model/" + n: t for n, t in model.state_dict().items()}
    for p, values in optim.state.items():
        found.update({"optim/%s.%s" % (names[p], k): v for k, v in values.items()})
    return digest({n: t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for n, t in found.items()})


def digest(found):
    h = hashlib.sha256()
    for name in sorted(found):
        h.update(name.encode() + b"\0" + found[name])
    return h.hexdigest()


def steps_on_disk(job):
    for name in sorted(os.listdir(job)):
        if re.fullmatch("step-[0-9]+", name):
            with ckptd.open(os.path.join(job, name)) as saved:
                yield saved.step, content(saved)


class Kept(dict):
    """What each step must be, by its number."""

    def train(self, run, model, optim, step, **options):
        with run.step(step, **options):
            update(model, optim, step)
            self[step] = state(model, optim)

    def wrong(self, job):
        """(how many steps are on disk, those that are not what their blocks have made)"""
        there = list(steps_on_disk(job))
        return len(there), [step for step, found in there if self.get(step) != found]


def fail(run, model, optim, step, when, kind):
    """The block of this step is ended by an exception before, in or after the update."""
    with contextlib.suppress(kind), run.step(step):
        if when == "after":
            update(model, optim, step)
        elif when == "in":
            with torch.no_grad():
                model.first.weight.add_(1.0)  # and the other tensors are as before
        raise kind()


class Matrix(One):
    def begun_with(self, job, what):
        """Steps 1 to 3, of which 2 is committed, and 3 has had the fate of `what`."""
        model, optim = make()
        options = {"every": 2} if what == "every" else {"guard": "bounded"} if what == "torn" else {}
        run = self.attach(job, model, optim, strict=False, **options)
        run.restore()
        kept = Kept()
        kept.train(run, model, optim, 1)
        kept.train(run, model, optim, 2)
        self.assertEqual(run.wait(), 2)
        if what == "torn":  # nothing is copied, so the guard of step 4 gives the copy up
            job.daemon.send_signal(signal.SIGSTOP)
            os.waitpid(job.daemon.pid, os.WUNTRACED)
        if what == "skipped":
            with unittest.mock.patch.object(run._handle, "snapshot", return_value=_lib.CKPT_SKIPPED):
                kept.train(run, model, optim, 3)
        else:
            kept.train(run, model, optim, 3, **({"persist": False} if what == "memory" else {}))
        return run, model, optim, kept

    def one(self, job, what, call, when, kind):
        job.name = "-".join((what, call, when))
        at = os.path.join(job.store, job.name)
        run, model, optim, kept = self.begun_with(job, what)
        if call == "preempted":
            run._handle.stop()
        fail(run, model, optim, 4, when, kind)
        if what == "torn":
            job.daemon.send_signal(signal.SIGCONT)
            self.assertGreaterEqual(run.stats()["outcomes"]["torn"], 1)
        if call == "save":
            for wait in (True, False):
                with self.assertRaisesRegex(errors.NotSaved, r"step 4 is unfinished(.|\n)*finished step is 3"):
                    run.save(wait=wait)
        elif call in ("wait", "preempted"):
            self.assertEqual(run.wait(timeout=SECONDS), 3 if what == "taken" else 2)
            self.assertEqual(run.wait("staged", timeout=SECONDS), 3 if what in ("taken", "memory") else 2)
        if call == "preempted":
            with self.assertRaises(ckptd.Preempted) as caught:
                kept.train(run, model, optim, 4)
            self.assertEqual((caught.exception.step, caught.exception.committed), (4, True))
        run.detach()
        model, optim = make(seed=7)
        run = self.attach(job, model, optim)
        last = 4 if call == "preempted" else 3 if what in ("taken", "memory") else 2
        self.assertEqual(run.restore(), last)
        self.assertEqual(state(model, optim), kept[last])
        run.detach()
        there, wrong = kept.wrong(at)
        self.assertEqual(wrong, [])
        return there

    def test_an_unfinished_state_is_never_marked(self):
        job = self.job()
        turn = there = 0
        for what in WHAT:
            for call in CALLS:
                for when in WHEN:
                    with self.subTest(what=what, call=call, when=when):
                        there += self.one(job, what, call, when, KINDS[turn % len(KINDS)])
                    turn += 1
        self.assertGreaterEqual(there, 2 * len(WHAT) * len(CALLS) * len(WHEN))

    def test_a_comparison_finds_a_state_that_was_marked_half_made(self):
        job = self.job()

        def leave(progress):
            progress._now = progress._now._replace(state=type(progress._now.state).FINISHED, step=3)

        run, model, optim, kept = self.begun_with(job, "skipped")
        with unittest.mock.patch.object(Progress, "give_up", leave):
            fail(run, model, optim, 4, "in", KeyboardInterrupt)
        run.wait(timeout=SECONDS)
        self.assertEqual(kept.wrong(os.path.join(job.store, job.name))[1], [3])

    def test_the_first_step_can_be_unfinished_and_a_block_that_ends_well_ends_it(self):
        job, run, model, optim = self.begun()
        fail(run, model, optim, 1, "in", KeyboardInterrupt)
        self.assertEqual(run.wait(), 0)
        with self.assertRaisesRegex(errors.NotSaved, "step 1 is unfinished(.|\n)*no step is finished yet"):
            run.save()
        train(run, model, optim, 1, 1)
        self.assertEqual(run.save(), 1)

    def test_a_restore_ends_it(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        run.wait()
        kept = bits(model, optim)
        fail(run, model, optim, 3, "in", KeyboardInterrupt)
        self.assertEqual(run.restore(), 2)
        self.assertEqual(bits(model, optim), kept)
        self.assertEqual((run.save(), run.wait()), (2, 2))
        train(run, model, optim, 3, 3)
        self.assertEqual(run.wait(), 3)

    def test_a_restore_that_fails_half_way_leaves_an_unfinished_state(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 2)
        run.wait()
        real = run._handle.restore

        def fails(step=None, flags=0, **options):
            if flags & _lib.CKPT_DRY_RUN:
                return real(step, flags, **options)
            with torch.no_grad():
                model.first.weight.zero_()
            raise errors.error("restore", 110, "the daemon was silent")

        train(run, model, optim, 3, 3)
        run.wait()
        with unittest.mock.patch.object(run._handle, "restore", fails), self.assertRaises(errors.TimedOut):
            run.restore(2)
        with self.assertRaisesRegex(errors.NotSaved, "a restore of it has not ended(.|\n)*finished step is 3"):
            run.save()
        self.assertEqual(run.wait(), 3)
        self.assertEqual(run.restore(), 3)
        self.assertEqual(run.save(), 3)

    def test_weights_that_an_average_has_not_given_back_are_not_marked_and_the_next_call_gives_them_back(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, averages={"fast": "constant decay=.9"}, every=2)
        run.restore()
        for step in (1, 2, 3):
            train(run, model, optim, step, step)
            run.wait()
        raw = bits(model, optim)
        copy, calls = torch.Tensor.copy_, []

        def interrupted(at, *args):
            calls.append(at)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return copy(at, *args)

        with self.assertRaises(KeyboardInterrupt), run.averaged("fast"):
            torch.Tensor.copy_ = interrupted
            self.addCleanup(setattr, torch.Tensor, "copy_", copy)
        torch.Tensor.copy_ = copy
        self.assertEqual(len(calls), 2)
        self.assertNotEqual(bits(model, optim), raw)
        self.assertEqual(run.save(), 3)
        self.assertEqual(bits(model, optim), raw)
        self.assertEqual(run.restore(3), 3)
        self.assertEqual(bits(model, optim), raw)


class Interrupts(One):
    """Exceptions that come between two instructions of the package."""

    def test_an_exception_around_the_librarys_mark_is_no_error(self):
        for after in (False, True):
            for call in ("wait", "save", "save without waiting", "next"):
                with self.subTest(after=after, call=call):
                    job, run, model, optim = self.begun()
                    kept = Kept()
                    kept.train(run, model, optim, 1)
                    real = run._handle._snapshot

                    def interrupted(*args):
                        run._handle._snapshot = real
                        if after:
                            self.assertEqual(real(*args), 0)
                        raise KeyboardInterrupt

                    run._handle._snapshot = interrupted
                    with self.assertRaises(KeyboardInterrupt):
                        kept.train(run, model, optim, 2)
                    if call == "next":
                        kept.train(run, model, optim, 3)
                    if call.startswith("save"):
                        self.assertEqual(run.save(wait=call == "save"), 2)
                    self.assertEqual(run.wait(timeout=SECONDS), 3 if call == "next" else 2)
                    self.assertEqual(run.stats()["outcomes"]["refused"], 0)
                    self.assertEqual(kept.wrong(os.path.join(job.store, job.name))[1], [])

    def test_an_exception_at_the_first_instruction_of_the_end_of_a_block_leaves_it_and_the_state_is_unfinished(self):
        job, run, model, optim = self.begun()
        train(run, model, optim, 1, 1)
        run.wait()

        def trace(frame, event, _):
            if frame.f_code is type(run.step(9)).__exit__.__code__:
                sys.settrace(None)
                raise KeyboardInterrupt

        kept = None
        try:
            with run.step(2):
                update(model, optim, 2)
                sys.settrace(trace)
        except KeyboardInterrupt as e:
            kept = e  # and with it the frames
        self.assertIsNotNone(kept)
        with self.assertRaisesRegex(errors.NotSaved, "step 2 is unfinished"):
            run.save()
        self.assertEqual(run.wait(), 1)
        train(run, model, optim, 2, 2)
        self.assertEqual(run.wait(), 2)
        del kept

    def test_after_an_exception_at_any_instruction_of_the_package_training_goes_on_and_every_step_is_right(self):
        """By an exception at the n-th of the instructions of a step and of a save, for each n."""
        job, run, model, optim = self.begun(strict=False)
        here = os.path.dirname(ckptd.__file__) + os.sep
        count = [0, 0]

        def trace(frame, event, _):
            if not frame.f_code.co_filename.startswith(here):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                count[0] += 1
                if count[0] == count[1]:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        kept, step = Kept(), 1

        def traced(at):
            count[:] = [0, at]
            with contextlib.suppress(KeyboardInterrupt):
                sys.settrace(trace)
                try:
                    kept.train(run, model, optim, step)
                    run.save()
                finally:
                    sys.settrace(None)
            return count[0]

        total = traced(0)
        draw = self.draw()
        points = range(1, total + 200)
        if os.environ.get("FULL") != "1":
            points = sorted(draw.sample(points, 80))
        for at in points:
            step += 1
            traced(at)
            finished = run._progress.finished
            self.assertFalse(run._progress.unfinished and finished == step, "at %d" % at)
            if draw.random() < 0.5:
                with contextlib.suppress(errors.NotSaved):
                    run.save(timeout=SECONDS)
            self.assertLessEqual(run.wait(timeout=SECONDS), finished)
            if finished < step:
                step -= draw.randrange(2)  # once more, or go on
        step += 1
        kept.train(run, model, optim, step)
        self.assertEqual(run.wait(timeout=SECONDS), step)
        self.assertEqual(run.stats()["outcomes"]["refused"], 0)
        there, wrong = kept.wrong(os.path.join(job.store, job.name))
        self.assertEqual(wrong, [])
        self.assertGreater(there, len(points) // 4)


SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(%d, signal.SIGINT)
    os.write(1, b".")
"""


def storm(rank, times, seed):
    """Train, while another process sends SIGINT at random instants; each time go on in some way or other. Returns how
    often the state was finished and unfinished then, and what is wrong on disk. ctypes drops an exception (lost) that
    comes while the library calls the function of its log in the main thread, as restore does."""
    import random

    warnings.simplefilter("error", errors.NotSaving)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw = random.Random(seed)
    model, optim = make()
    averages = {"fast": "constant decay=.9"}
    extra = {"rng": ckptd.rng(), "log": {"n": 0}}
    run = rank.attach(model, optim, strict=False, slots=3, averages=averages, extra=extra)
    run.restore()
    kept, step, seen = Kept(), 0, {"unfinished": 0, "finished": 0, "lost": 0}
    kept.train(run, model, optim, 1)
    run.wait()
    at = os.path.join(rank.store, rank.job)
    step = 1
    command = [sys.executable, "-c", SENDER % os.getpid()]
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(times):
        torch.set_grad_enabled(True)  # torch.no_grad leaves it off if it is interrupted
        step = max(run._progress.finished, step - draw.randrange(2))
        calls, after = [draw.random() for _ in range(10_000)], 0
        try:
            sender.stdin.write("%.6f\n" % (draw.random() * 0.02))
            sender.stdin.flush()
            for dice in calls:
                after += bool(select.select([sender.stdout], [], [], 0)[0])  # it was sent
                if after > 3:
                    break
                step += 1
                kept.train(run, model, optim, step)
                if dice < 0.1:
                    run.wait()
                elif dice < 0.2:
                    run.save()
                elif dice < 0.25:
                    step = int(run.restore())
                elif dice < 0.3:
                    with contextlib.suppress(errors.NothingToRestore), run.averaged("fast"):
                        pass
            seen["lost"] += 1
        except KeyboardInterrupt:
            seen["unfinished" if run._progress.unfinished else "finished"] += 1
        assert os.read(sender.stdout.fileno(), 1) == b"."
        dice = draw.random()
        if dice < 0.4:
            with contextlib.suppress(errors.NotSaved):
                run.save(timeout=SECONDS)
        elif dice < 0.7:
            run.wait(timeout=SECONDS)
        elif dice < 0.8:
            step = int(run.restore())
            assert state(model, optim) == kept[step], "step %d was restored, and is another" % step
    sender.stdin.close()
    sender.wait()
    step = max(step, run._progress.finished) + 1
    kept.train(run, model, optim, step)
    assert run.wait(timeout=SECONDS) == step
    outcomes = run.stats()["outcomes"]
    run.detach()
    return seen, kept.wrong(at), outcomes


class Signals(ranks.Case):
    def test_after_sigint_at_random_instants_every_committed_step_is_what_its_block_made(self):
        times = 2000 if os.environ.get("FULL") == "1" else 60
        seen, (there, wrong), outcomes = self.job().run(
            1, storm, times, self.draw().random(), group=False, fresh=True, limit=1200
        )[0]
        print("# %d SIGINTs: %s; %d steps on disk; %s" % (times, seen, there, outcomes), flush=True)
        self.assertEqual(sum(seen.values()), times)
        self.assertEqual(wrong, [])
        self.assertGreater(min(seen["finished"], seen["unfinished"]), times // 20)
        self.assertLess(seen["lost"], times // 4)
        self.assertGreater(there, times // 10)
        self.assertEqual(outcomes["refused"], 0)


if __name__ == "__main__":
    unittest.main()
