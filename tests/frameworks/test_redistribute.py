# SPDX-License-Identifier: Apache-2.0
"""The vectors of PyTorch's planners are what this PyTorch answers, where it is the one that answered them."""

import os
import subprocess
import sys
import unittest

import torch

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VECTORS = os.path.join(TOP, "tests", "vectors", "layout")


class Planners(unittest.TestCase):
    @unittest.skipUnless(torch.__version__.startswith("2.15.0"), "the vectors are those of PyTorch 2.15.0")
    def test_the_steps_of_redistributions_are_those_of_the_vectors(self):
        program = [sys.executable, "-W", "ignore", os.path.join(VECTORS, "redistribute.py")]
        answers = subprocess.run(program, check=True, capture_output=True, text=True, timeout=600).stdout
        with open(os.path.join(VECTORS, "redistribute_more.jsonl")) as vectors:
            self.assertEqual(answers.splitlines(), vectors.read().splitlines())
