# SPDX-License-Identifier: Apache-2.0
"""Replicas that have drifted apart: the daemon compares them, the library says it, notices() has it for run.py."""

import re
import threading

from rig import LIMIT, Case, Memory, Mesh, _lib, entry, until


class Drift(Case):
    def test_a_replica_that_differs_by_a_bit_is_a_notice_of_rank_0_with_tensor_ranks_and_steps(self):
        self.daemon()
        ranks, memory, mesh = [], [], Mesh(("dp",), (3,), (0, 1, 2))
        for r in range(3):
            h = self.attach(rank=r, world=3)
            at = h.alloc(8000)
            memory.append(Memory(at, 1000))
            h.tensor_add(entry("norm.weight", memory[r], mesh=mesh))
            h.tensor_add(entry("other", Memory(at + 4000, 1000), mesh=mesh))
            ranks.append(h)
        threads = [threading.Thread(target=h.seal, args=(LIMIT,)) for h in ranks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for n in range(1, 400):
            for h in ranks:
                h.guard()
            if n == 150:  # all has been compared, and was equal
                self.assertEqual([h.notices() for h in ranks], [[], [], []])
                memory[1].write([0.0] * 7 + [1e-30] + [0.0] * 992)
            for h in ranks:
                h.snapshot(n, _lib.CKPT_STAGE_ONLY)
            for h in ranks:
                h.wait(n, _lib.CKPT_STAGED, LIMIT)
        for h in ranks:
            h.guard()
        found = []
        until("rank 0 is told", lambda: found.extend(x for x in ranks[0].notices() if "drifted apart" in x.text) or found)
        self.assertEqual([x.level for x in found], [4])
        said = r"model/norm\.weight: minority 1, against 0, 2; last equal in step (\d+), first unequal in step (\d+)$"
        self.assertRegex(found[0].text, said)
        equal, unequal = map(int, re.search(said, found[0].text).groups())
        self.assertTrue(equal < 150 <= unequal, (equal, unequal))
        self.assertEqual([h.notices() for h in ranks[1:]], [[], []])
