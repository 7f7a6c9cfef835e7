# SPDX-License-Identifier: Apache-2.0
"""Every mesh: killed, resumed on the same one and on every other one, from memory and from disk. The small model.

Which optimizer a mesh is tried with is drawn (SEED=); FULL=1 tries all of them with each.
"""

import os
import unittest

import gpt
import matrix
import ranks
from torch_names import fsdp2_on_cpu


class Matrix(matrix.Cell):
    def all(self, kind):
        turn = (list(gpt.MESHES).index(kind) + ranks.seed()) % len(gpt.OPTIMS)
        hows = gpt.OPTIMS if os.environ.get("FULL") else [gpt.OPTIMS[turn]]
        for how in hows:
            with self.subTest(how=how):
                self.cell(kind, how, ("plain", "fsdp4", "tp22") if os.environ.get("SHORT") else None)

    def test_plain(self):
        self.all("plain")

    def test_ddp_on_2(self):
        self.all("ddp2")

    @fsdp2_on_cpu
    def test_fsdp_on_4(self):
        self.all("fsdp4")

    @fsdp2_on_cpu
    def test_hsdp_2_times_2(self):
        self.all("hsdp22")

    @fsdp2_on_cpu
    def test_fsdp_2_times_tp_2(self):
        self.all("tp22")

    @fsdp2_on_cpu
    def test_fsdp_3_times_tp_2(self):
        self.all("tp32")


if __name__ == "__main__":
    unittest.main()
