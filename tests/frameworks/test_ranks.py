# SPDX-License-Identifier: Apache-2.0
"""The rig itself: what ranks.py promises to the tests that use it."""

import os
import signal
import unittest

import ranks


def total(rank, addend):
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(rank.rank + addend)])
    dist.all_reduce(x)
    return x.item(), os.getpid()


def wait_for_the_end(rank):
    rank.say("here")
    rank.pause("and there" if rank.rank else "first")


def fail(rank):
    if rank.rank == 1:
        raise ValueError("so it is")
    import torch.distributed as dist

    dist.barrier()


def end_by_signal(rank):
    rank.say("ready")
    signal.pause()


class Rig(ranks.Case):
    def test_ranks_meet_and_return_what_the_function_returns(self):
        job = self.job(daemon=False)
        first = job.run(3, total, 10)
        self.assertEqual([x for x, _ in first], [33.0] * 3)
        second = job.run(3, total, 20)
        self.assertEqual([x for x, _ in second], [63.0] * 3)
        self.assertEqual({p for _, p in first}, {p for _, p in second}, "the processes were not used again")
        third = job.run(3, total, 20, fresh=True)
        self.assertFalse({p for _, p in second} & {p for _, p in third}, "fresh ranks ran something before")

    def test_killed_ranks_are_gone_and_others_take_their_place(self):
        job = self.job(daemon=False)
        started = job.start(2, wait_for_the_end)
        started.until("here")
        started.until("first", some=True)
        pids = [p.process.pid for p in started.processes]
        started.kill()
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))
        self.assertEqual(job.run(2, total, 0)[0][0], 1.0)

    def test_a_rank_that_raises_is_named_with_what_it_raised(self):
        with self.assertRaisesRegex(ranks.RankFailed, r"ranks \[1\] failed(.|\n)*so it is"):
            self.job(daemon=False).run(2, fail)

    def test_an_event_that_never_comes_is_a_failure_with_the_place_where_ranks_are(self):
        started = self.job(daemon=False).start(1, wait_for_the_end)
        started.until("here")
        with self.assertRaisesRegex(ranks.RankFailed, r"did not reach 'never'(.|\n)*in pause"):
            started.until("never", limit=0.1)

    def test_a_signal_reaches_the_ranks(self):
        started = self.job(daemon=False).start(2, end_by_signal, fresh=True)
        started.until("ready")
        started.signal(signal.SIGTERM)
        self.assertEqual(started.wait_exit(), [-signal.SIGTERM] * 2)

    def test_a_job_has_a_daemon_of_its_own(self):
        job = self.job()
        pid = job.daemon.pid
        self.assertIn(f'"pid":{pid},', job.ctl("status", "--json", "-S", job.socket))
        job.daemon_kill()
        self.assertFalse(os.path.exists(f"/proc/{pid}"))
        self.assertFalse(job.daemon_listens())


if __name__ == "__main__":
    unittest.main()
