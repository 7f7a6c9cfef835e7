# SPDX-License-Identifier: Apache-2.0
"""What a program that has configured nothing reads on stderr: real programs, under torchrun, whose stderr is kept."""

import os
import re
import subprocess
import sys
import textwrap
import unittest
import warnings

import ranks

from ckptd import _outcome, _told, errors

# Each part is one run of the job PART, and says on stderr where it begins.
PARTS = """
import contextlib, glob, sys
import torch, torch.distributed as dist
import ckptd

dist.init_process_group("gloo")
rank, store = dist.get_rank(), sys.argv[1]

def make(**more):
    torch.manual_seed(0)
    layers = {"a": torch.nn.Linear(64, 64), **{k: torch.nn.Linear(64, n) for k, n in more.items()}}
    model = torch.nn.ModuleDict(layers)
    return model, torch.optim.AdamW(model.parameters())

@contextlib.contextmanager
def attach(part, model, optim):
    dist.barrier()
    if rank == 0:
        print("PART", part, file=sys.stderr, flush=True)
    dist.barrier()
    with ckptd.attach(model, optim, store=store, job=part, guard="finish") as run:
        yield run
        dist.barrier()  # no rank detaches while another one attaches

def update(model, optim):
    sum(layer(torch.ones(4, 64)).square().mean() for layer in model.values()).backward()
    optim.step()
    optim.zero_grad()

def train(run, model, optim, first, last, outside=lambda: None):
    for step in range(first, last + 1):
        with run.step(step):
            update(model, optim)
        outside()

def saved(part):
    model, optim = make()
    with attach(part, model, optim) as run:
        run.restore()
        for step in range(1, 4):
            train(run, model, optim, step, step)
            run.wait()
"""

ALL = PARTS + """
saved("well")

model, optim = make()
def outside():
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.001)
with attach("torn", model, optim) as run:
    run.restore()
    train(run, model, optim, 1, 40, outside)

saved("names")
model, optim = make(b=3, c=4)
with attach("names", model, optim) as run:
    assert run.restore(strict=False) == 3

with torch.device("meta"):
    model, optim = make()
with attach("meta", model, optim) as run:
    assert run.restore() == 0

model, optim = make()
with attach("dropped", model, optim) as run:
    run.restore()
    run.step(1).__enter__()

saved("passed")
if rank == 0:
    for part in glob.glob(store + "/passed/*3/*.part"):
        with open(part, "r+b") as f:
            f.seek(5000)
            f.write(b"wrong")
model, optim = make()
with attach("passed", model, optim) as run:
    assert run.restore(source="disk") == 2
dist.barrier()
"""


def run_program(job, text, *launcher, code=0):
    path = os.path.join(job.dir, "program.py")
    with open(path, "w") as f:
        f.write(text)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    env.update(OMP_NUM_THREADS="1", PYTHONPATH=ranks.PACKAGE, CKPTD_SOCKET=job.socket)
    env["PATH"] = ranks.BUILD + os.pathsep + env["PATH"]
    done = subprocess.run(
        [sys.executable, *launcher, path, job.store], env=env, cwd=job.dir, capture_output=True, text=True, timeout=ranks.LIMIT
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def told(text):
    """The warnings of this package, [(category, text)]: the text goes on until the line of the program, indented."""
    found = re.findall(r"^\S+\.py:\d+: (\w+): ((?:.|\n)*?)\n  \S", text, re.M)
    names = [n for n in dir(errors) if isinstance(getattr(errors, n), type) and issubclass(getattr(errors, n), Warning)]
    return [(category, said) for category, said in found if category in names]


class Stderr(ranks.Case):
    def test_each_trouble_is_on_stderr_once_from_one_rank_and_a_good_run_says_nothing(self):
        job = self.job()
        err = run_program(job, ALL, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        parts = re.split(r"^PART (.*)\n", err, flags=re.M)
        by_part = {}
        for part, said in zip(parts[1::2], map(told, parts[2::2])):
            by_part.setdefault(part, []).extend(said)
        self.assertEqual(
            {part: [category for category, _ in said] for part, said in by_part.items()},
            {
                "well": [],
                "torn": ["UnguardedUpdate", "NotSaving"],
                "names": ["CkptdWarning"],
                "meta": ["CkptdWarning"],
                "dropped": ["NotSaving"],
                "passed": ["StepsPassed"],
            },
            err,
        )
        lost = by_part["torn"][1][1]
        # Rank 0 has marked the newest one, or rank 1 had passed it before.
        self.assertRegex(lost, r"^the last 10 marked steps came to nothing(.|\n)*(rank \d+ changed model/|the step was skipped: )")
        self.assertIn("No step is committed yet", lost)
        self.assertIn("into the block of run.step" if " changed model/" in lost else "Mark fewer steps", lost)
        self.assertRegex(by_part["names"][0][1], "step 3: (.|\n)* 16 names(.|\n)*model/b.bias: the program has it")
        self.assertIn("the model was on the meta device", by_part["meta"][0][1])
        self.assertIn("step 1 was entered and never left", by_part["dropped"][0][1])
        self.assertRegex(by_part["passed"][0][1], "^step 2 is restored(.|\n)*step 3: .*part is damaged")

    def test_a_rank_that_does_not_come_in_attachs_time_is_named(self):
        text = """
            import sys, torch, ckptd
            model = torch.nn.Linear(8, 8)
            with ckptd.attach(model, store=sys.argv[1], job="gpt", rank=0, world=2, timeout=0.5):
                pass
            """
        ((category, said),) = told(run_program(self.job(), textwrap.dedent(text)))
        self.assertEqual(category, "NotSaving")
        self.assertRegex(said, "no step is saved until all ranks are there: (.|\n)*rank.* 1")


class Fates:
    """A job whose steps end as `fate` says."""

    def __init__(self, persist_every=1):
        self.of = {}
        self.asks = 0
        self.still = _outcome.Standstill(persist_every, self.fate)
        self.now, self.step, self.committed = 0.0, 0, 0

    def fate(self, step):
        self.asks += 1
        return self.of[step]

    def mark(self, fate, seconds=0.001, persist=None):
        said = self.still.asked(self.now, self.committed)
        self.step, self.now = self.step + 1, self.now + seconds
        self.of[self.step] = fate
        self.still.marked(self.now, self.step, persist)
        return said


class Standstill(unittest.TestCase):
    def test_ten_marks_that_came_to_nothing_are_told_and_nine_are_not(self):
        for good in (0, 1, 2, 7):
            job = Fates()
            said = [job.mark(True) for _ in range(good)] + [job.mark(False) for _ in range(12)]
            self.assertEqual(said, [None] * (good + 11) + ["marks"])
        job = Fates()
        said = [job.mark(step % 10 == 0) for step in range(200)]
        self.assertEqual(set(said), {None})

    def test_steps_that_are_on_the_way_are_not_nothing(self):
        job = Fates()
        self.assertEqual({job.mark(None) for _ in range(100)}, {None})
        job = Fates()
        said = [job.mark(None) for _ in range(2)] + [job.mark(False) for _ in range(12)]
        self.assertEqual(said[-1], "marks")

    def test_a_good_run_asks_for_one_step_in_three(self):
        job = Fates()
        self.assertEqual({job.mark(True) for _ in range(300)}, {None})
        self.assertLessEqual(job.asks, 100)

    def test_five_minutes_without_a_commit_are_told_if_a_step_was_to_be_written(self):
        job = Fates()
        said = [job.mark(True, 60.0) for _ in range(8)]
        self.assertEqual(said, [None] * 7 + ["commits"])
        job.committed = 8
        self.assertIsNone(job.mark(True, 60.0))
        job = Fates(persist_every=1000)
        self.assertEqual({job.mark(True, 60.0) for _ in range(1000)}, {None})
        self.assertEqual([job.mark(True, 60.0) for _ in range(7)][-1], "commits")
        job = Fates()
        self.assertEqual({job.mark(True, 60.0, persist=False) for _ in range(30)}, {None})
        for _ in range(10):  # steps that take longer than that, each of which is committed
            self.assertIsNone(job.mark(True, 1000.0))
            job.committed = job.step


class Once(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("always")
        self.addCleanup(warnings.resetwarnings)

    def caught(self, tell):
        with warnings.catch_warnings(record=True) as caught:
            tell()
        return [str(w.message) for w in caught]

    def test_of_two_processes_of_a_launch_one_tells_what_each_sees_for_itself(self):
        launch = (os.getpid(), "store", "job")
        first = _told.begin(1, *launch)
        self.addCleanup(first.close)
        self.assertEqual(self.caught(lambda: _told.tell("a", "text", own=True)), ["text"])
        other = (
            "import sys; from ckptd import _told\n"
            "_told.begin(int(sys.argv[1]), %d, 'store', sys.argv[2]); _told.tell('a', 'text', own=True)\n"
            "_told.tell('b', 'what all see')" % os.getpid()
        )
        for rank, job, want in (("0", "job", ["b"]), ("2", "job", []), ("2", "other", ["a"])):
            env = dict(os.environ, PYTHONPATH=ranks.PACKAGE)
            done = subprocess.run([sys.executable, "-c", other, rank, job], env=env, capture_output=True, text=True, check=True)
            said = [kind for kind, text in (("a", "Warning: text"), ("b", "what all see")) if text in done.stderr]
            self.assertEqual(said, want, done.stderr)

    def test_what_has_ended_is_told_again(self):
        self.addCleanup(_told.begin(0, "again").close)
        self.assertEqual(self.caught(lambda: [_told.tell("a", text) for text in ("one", "two")]), ["one"])
        _told.ended("a")
        self.assertEqual(self.caught(lambda: _told.tell("a", "three")), ["three"])

    def test_lines_that_the_package_says_itself_are_lines_of_the_library(self):
        source = ""
        for path in (os.path.join(ranks.ROOT, "ckpt/client", name) for name in os.listdir(os.path.join(ranks.ROOT, "ckpt/client"))):
            with open(path) as f:
                source += re.sub(r'"\s*\n\s*"', "", f.read())
        for phrase in _told.LIBRARY:
            self.assertIn(phrase, source)


if __name__ == "__main__":
    unittest.main()
