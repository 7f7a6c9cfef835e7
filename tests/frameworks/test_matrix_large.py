# SPDX-License-Identifier: Apache-2.0
"""A GPT of 20.5 M parameters, killed at random instants and resumed: two of the meshes, drawn, onto two others each."""

import os
import unittest

import gpt
import matrix
from torch_names import fsdp2_on_cpu


class Large(matrix.Cell):
    size, steps, pace = "large", 5, 3.0

    @unittest.skipIf(os.environ.get("SHORT"), "the short half")
    @fsdp2_on_cpu
    def test_20_million_parameters(self):
        draw = self.draw()
        kinds = draw.sample(["fsdp4", "hsdp22", "tp22", "tp32"], 2)
        for kind, how in zip(kinds, draw.sample(gpt.OPTIMS, 2)):
            with self.subTest(kind=kind, how=how):
                self.cell(kind, how, draw.sample([k for k in matrix.KINDS if k != kind], 2))

    def test_it_is_that_large(self):
        self.assertGreaterEqual(sum(p.numel() for p in gpt.GPT(gpt.LARGE).parameters()), 20_000_000)


if __name__ == "__main__":
    unittest.main()
