# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint of any mesh to one file that the plain model takes: python -m ckptd view, ckptctl export
--view."""

import os
import subprocess
import sys
import unittest

import gpt
import matrix
import ranks
from torch_names import fsdp2_on_cpu


class PlainFile(matrix.Cell):
    @fsdp2_on_cpu
    def test_one_file_that_load_state_dict_takes_strictly(self):
        from safetensors.torch import load_file

        for kind, how in (("tp32", "foreach"), ("fsdp4", "masters")):
            with self.subTest(kind=kind, how=how):
                self.steps = 2
                self.refer(kind, how, with_dcp=False)
                job = self.job()
                job.run(gpt.WORLD[kind], matrix.train, kind, how, "tiny", self.steps)
                job.daemon_stop()  # neither needs it
                rules, out = os.path.join(job.dir, "view"), os.path.join(job.dir, "out")
                path = os.path.join(job.store, "gpt")
                env = dict(os.environ, PYTHONPATH=ranks.PACKAGE, PATH=ranks.BUILD + os.pathsep + os.environ["PATH"])
                with open(rules, "wb") as f:
                    subprocess.run(
                        [sys.executable, "-m", "ckptd", "view", "-C", path, "latest"], env=env, stdout=f, check=True
                    )
                job.ctl("export", "-C", path, "latest", out, "--mesh", "rank=1", "--view", rules)
                state = load_file(os.path.join(out, "rank-00000.safetensors"))
                plain = gpt.build("plain", dtype=gpt.dtype_of(how))
                plain.load_state_dict(state, strict=True)
                want = self.expected[self.steps]["plain"][0]
                self.same(
                    {k: gpt.digest(t) for k, t in gpt.named(plain).items()},
                    {k: d for k, d in want.items() if k.startswith("model/")},
                    kind,
                )
                self.assertIs(plain.head.weight, plain.wte.weight)


if __name__ == "__main__":
    unittest.main()
