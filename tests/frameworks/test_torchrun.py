# SPDX-License-Identifier: Apache-2.0
"""Real torchrun with --max-restarts: ranks kill themselves in an update, torchrun starts all of them again."""

import os
import pickle
import subprocess
import sys
import unittest

import gpt
import matrix
import ranks
from torch_names import fsdp2_on_cpu


class Torchrun(matrix.Cell):
    @fsdp2_on_cpu
    def test_a_rank_dies_twice_in_an_update_and_the_end_is_that_of_a_run_that_was_never_interrupted(self):
        kind, how, steps = "fsdp4", "foreach", 8
        draw = self.draw()
        self.steps = steps
        self.refer(kind, how, with_dcp=False)
        job = self.job()
        first, second = draw.randrange(2, 5), draw.randrange(5, steps + 1)
        deaths = f"{draw.randrange(4)}:{first},{draw.randrange(4)}:{second}"
        self.say(f"deaths (rank:step) {deaths}")
        env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([ranks.PACKAGE, ranks.HERE]))
        env["PATH"] = ranks.BUILD + os.pathsep + env["PATH"]
        # Otherwise ranks that start again meet in a store that still has the addresses of the last launch (torch 2.15,
        # gloo).
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=4",
            "--max-restarts=3",
            os.path.join(ranks.HERE, "torchrun_gpt.py"),
            job.dir,
            job.socket,
            kind,
            how,
            str(steps),
            deaths,
        ]
        done = subprocess.run(
            command,
            env=env,
            cwd=job.dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ranks.LIMIT,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-60000:])
        for rank in range(4):
            with open(f"{job.dir}/end-{rank}", "rb") as f:
                got = pickle.load(f)
            self.assertEqual(got["launch"], 2, "torchrun started the ranks another number of times")
            self.assertGreaterEqual(got["start"], first - 1)
            self.assertEqual(got["losses"], self.reference[rank]["losses"][got["start"] :])
            self.same(got["end"], self.reference[rank]["end"], f"rank {rank}")


if __name__ == "__main__":
    unittest.main()
