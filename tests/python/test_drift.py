# SPDX-License-Identifier: Apache-2.0
"""Replicas that have drifted apart: the daemon compares them, the library says it, notices() has it for run.py."""

import re
import threading

from rig import LIMIT, Case, Memory, Mesh, _lib, entry, until


class Drift(Case):
    def test_of_many_tensors_sixteen_are_named_and_the_others_are_not_hidden(self):
        self.daemon()
        ranks, memory, mesh = [], [], Mesh(("dp",), (2,), (0, 1))
        for r in range(2):
            h = self.attach(rank=r, world=2)
            memory.append(Memory(h.alloc(20 * 400), 2000))
            memory[r].write([float(r)] * 2000)
            for i in range(20):
                h.tensor_add(
                    entry(
                        "layers.%02d.a_name_of_the_usual_length.weight" % i,
                        Memory(memory[r].address + i * 400, 100),
                        mesh=mesh,
                    )
                )
            ranks.append(h)
        threads = [threading.Thread(target=h.seal, args=(LIMIT,)) for h in ranks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for n in range(1, 140):
            for h in ranks:
                h.guard()
            for h in ranks:
                h.snapshot(n, _lib.CKPT_STAGE_ONLY)
            for h in ranks:
                h.wait(n, _lib.CKPT_STAGED, LIMIT)
        found = []

        def told():
            found.extend(x.text for x in ranks[0].notices() if "drifted apart" in x.text)
            return len(found) >= 17

        until("rank 0 is told of 16 and that there are more", told)
        self.assertEqual(len(found), 17)
        named = [
            re.search(r"model/layers\.(\d\d)\.\S+: ranks 0 \| 1; unequal when first compared, in step \d+$", x)
            for x in found
        ]
        self.assertEqual(len({m.group(1) for m in named if m}), 16)
        self.assertEqual(
            [x for x, m in zip(found, named) if not m][0].split(": ")[-1], "more tensors than those that were named"
        )

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
        until(
            "rank 0 is told", lambda: found.extend(x for x in ranks[0].notices() if "drifted apart" in x.text) or found
        )
        self.assertEqual([x.level for x in found], [4])
        said = r"model/norm\.weight: minority 1, against 0, 2; last equal in step (\d+), first unequal in step (\d+)$"
        self.assertRegex(found[0].text, said)
        equal, unequal = map(int, re.search(said, found[0].text).groups())
        self.assertTrue(equal < 150 <= unequal, (equal, unequal))
        self.assertEqual([h.notices() for h in ranks[1:]], [[], []])
