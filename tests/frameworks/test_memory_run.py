# SPDX-License-Identifier: Apache-2.0
"""State in the memory of the real libckpt.so, beside a real ckptd: workers that fork, and what is left after detach."""

import gc
import os
import unittest

import ranks
import torch

import ckptd


def mapping_of(address):
    """The name of the mapping of this process that an address lies in."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, end = (int(x, 16) for x in line.split()[0].split("-"))
            if first <= address < end:
                return line.split(None, 5)[-1].strip()
    return None


class Reading(torch.utils.data.Dataset):
    """Each item is what the worker sees of the model."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.model.weight.detach().clone(), os.getpid()


class Memory(ranks.Case):
    def attach(self, job, model, optim):
        job.launches += 1
        run = ckptd.attach(
            model, optim, store=job.store, job=job.name, socket=job.socket, rank=0, world=1, generation=job.launches,
            strict=True, guard="finish",
        )  # fmt: skip
        self.addCleanup(run.detach)
        return run

    def setUp(self):
        torch.manual_seed(1)
        self.model = torch.nn.Linear(64, 64)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def update(self):
        self.model(torch.ones(2, 64)).square().mean().backward()
        self.optim.step()
        self.optim.zero_grad()

    def state(self):
        return [*self.model.parameters(), *(t for inner in self.optim.state.values() for t in inner.values())]

    def test_forked_workers_read_the_state_and_leave_and_every_step_is_committed(self):
        run = self.attach(self.job(), self.model, self.optim)
        run.restore()
        self.assertTrue(all("memfd:" in mapping_of(t.data_ptr()) for t in self.state()))
        for step in range(1, 5):
            loader = torch.utils.data.DataLoader(Reading(self.model), num_workers=2, multiprocessing_context="fork")
            for seen, pid in loader:
                self.assertNotEqual(int(pid), os.getpid())
                self.assertTrue(torch.equal(seen[0], self.model.weight))
            with run.step(step):
                self.update()
            self.assertEqual(run.wait(), step)
        self.assertTrue(all("memfd:" in mapping_of(t.data_ptr()) for t in self.state()))

    def test_after_detach_the_state_trains_on_and_a_second_run_takes_it(self):
        job = self.job()
        run = self.attach(job, self.model, self.optim)
        run.restore()
        with run.step(1):
            self.update()
        run.wait()
        run.detach()
        kept = [t.detach().clone() for t in self.state()]
        first = [t.data_ptr() for t in self.state()]
        del run
        gc.collect()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(kept, self.state())))
        self.update()
        run = self.attach(job, self.model, self.optim)
        self.assertFalse(set(first) & {t.data_ptr() for t in self.state()})
        self.assertEqual(run.restore(), 1)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(kept, self.state())))
        with run.step(2):
            self.update()
        self.assertEqual(run.wait(), 2)


if __name__ == "__main__":
    unittest.main()
