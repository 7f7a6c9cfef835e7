# SPDX-License-Identifier: Apache-2.0
"""SIGTERM at random instants: all ranks stop after the same step, it is on disk, and no step that was reached is
lost."""

import contextlib
import os
import signal
import time
import unittest

import gpt
import matrix
import ranks
from torch_names import fsdp2_on_cpu


def until_told(rank, kind, how, steps, daemon):
    """Train until SIGTERM, then kill the daemon: what it has not committed is lost. Returns the step that Preempted
    names, and the newest one that this rank has completed."""
    import ckptd

    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    run = rank.attach(trainer.model, trainer.optim, extra={"sched": trainer.sched, "rng": ckptd.rng()})
    run.on_signal(signal.SIGTERM, within=60)
    start = int(run.restore())
    rank.say("restored")
    reached = start
    try:
        for step in range(start, steps):
            loss = trainer.loss(step)
            loss.backward()
            with run.step(step + 1, loss=loss.item()):
                trainer.update()
                reached = step + 1
            rank.say(f"step {reached}")
    except ckptd.Preempted as stop:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGKILL)
        result = {"start": start, "told": stop.step, "reached": reached, "have": trainer.digests()}
        run.detach()
        return result
    raise AssertionError(f"{steps} steps, and nobody said stop")


class Preempted(ranks.Case):
    def preempt(self, kind, how, targets):
        draw = self.draw(kind, how)
        job = self.job()
        last = 0
        for turn in range(2 if os.environ.get("SHORT") else 4):
            started = job.start(gpt.WORLD[kind], until_told, kind, how, 10_000, job.daemon.pid)
            started.until("restored")
            if draw.random() < 0.7:
                started.until(f"step {last + draw.randrange(1, 4)}", some=True)
            time.sleep(draw.random() * 0.2)  # the instant is random: nothing waits for anything here
            started.signal(signal.SIGTERM, targets(draw, gpt.WORLD[kind]))
            results = started.wait()
            told = {r["told"] for r in results}
            self.assertEqual(len(told), 1, f"ranks stopped after different steps: {results}")
            self.assertEqual({r["start"] for r in results}, {last}, "steps were lost that had been reached")
            self.assertEqual({r["reached"] for r in results}, told, "the step that was saved is not the newest one")
            last = told.pop()
            job.daemon_kill()  # the ranks have done so already
            job.daemon_start()
            again = job.run(gpt.WORLD[kind], matrix.restored, kind, how, "tiny", "disk")
            for before, after in zip(results, again):
                self.assertEqual(after["step"], last)
                self.assertEqual(after["have"], before["have"], "what was saved is not what the rank had at the end")

    @fsdp2_on_cpu
    def test_every_rank_gets_sigterm_as_a_scheduler_sends_it(self):
        self.preempt("fsdp4", "foreach", lambda draw, n: range(n))

    def test_one_rank_that_gets_it_is_enough(self):
        self.preempt("ddp2", "fused", lambda draw, n: [draw.randrange(n)])


if __name__ == "__main__":
    unittest.main()
