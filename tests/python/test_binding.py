# SPDX-License-Identifier: Apache-2.0
"""The calls of the binding through a real daemon: what each of them returns, and which exception bad input gets."""

import ctypes
import errno
import os
import subprocess
import threading

from rig import BUILD, LIMIT, Case, Layout, Memory, Mesh, Part, Placement, _lib, entry, errors

TWO = Mesh(("fsdp",), (2,), (0, 1))


def step(h, n, flags=0, notes=None):
    """One step whose state is in the store when it returns."""
    h.guard()
    rc = h.snapshot(n, flags, notes)
    if rc == 0:
        h.wait(n, _lib.CKPT_COMMITTED, LIMIT)
    return rc


class Calls(Case):
    def setUp(self):
        super().setUp()
        self.daemon()

    def two(self):
        """Both ranks of a job with a tensor of 9 rows, 0 to 8: 5 on rank 0, 4 on rank 1."""
        ranks = [self.attach(rank=r, world=2) for r in range(2)]
        for r, h in enumerate(ranks):
            memory = Memory(h.alloc(64), 5 - r)
            memory.write(range(5 * r, 5 * r + memory.n))
            h.tensor_add(entry("w", memory, (9,), TWO, (Placement(_lib.CKPT_SHARD, 0),)))
        thread = threading.Thread(target=ranks[1].seal, args=(LIMIT,))
        thread.start()
        self.assertEqual(ranks[0].seal(LIMIT), 0)
        thread.join()
        return ranks

    def show(self):
        """What ckptctl shows of the newest step."""
        command = [os.path.join(BUILD, "ckptctl"), "show", "-C", os.path.join(self.store, "a"), "latest", "--json"]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout

    def test_what_was_saved_is_what_is_restored(self):
        h, w = self.job()
        w.write(range(1000))
        with self.assertRaises(errors.NothingToRestore) as e:
            h.restore()
        self.assertEqual(e.exception.errno, errno.ENOENT)
        self.assertEqual(step(h, 7, _lib.CKPT_FINAL, {"loss": 1.25}), 0)
        h.detach()
        h, w = self.job()
        got = h.restore()
        self.assertEqual((got.step, got.ntensor, got.world_saved), (7, 1, 1))
        self.assertEqual(w.read(), list(range(1000)))
        self.assertEqual([(s.step, s.complete) for s in h.steps()], [(7, True)])
        self.assertIn("loss", self.show())

    def test_two_ranks_save_a_shard_each_and_one_rank_restores_both(self):
        ranks = self.two()
        for h in ranks:
            h.guard()
            self.assertEqual(h.snapshot(1, _lib.CKPT_FINAL), 0)
        for h in ranks:
            h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
            h.detach()
        h, w = self.job(9)
        self.assertEqual(h.restore(flags=_lib.CKPT_FROM_DISK).world_saved, 2)
        self.assertEqual(w.read(), list(range(9)))

    def test_boxes_of_a_tensor_are_put_together(self):
        """Rows 0 and 1 of 4 x 6 in two boxes, the others in one whose memory is transposed."""
        h = self.attach()
        at = h.alloc(4 * 24)
        Memory(at, 24).write(range(24))
        boxes = (
            Part(Memory(at, 4, (2, 1)), (0, 0), (2, 2)),
            Part(Memory(at + 16, 8, (4, 1)), (0, 2), (2, 4)),
            Part(Memory(at + 48, 12, (1, 2)), (2, 0), (2, 6)),
        )
        e = entry("w", Memory(at, 24))
        e.layout = Layout((4, 6), _lib.CKPT_BOXES, None, (), boxes)
        h.tensor_add(e)
        self.assertEqual(h.seal(LIMIT), 0)
        step(h, 1, _lib.CKPT_FINAL)
        h.detach()
        h = self.attach()
        whole = Memory(h.alloc(4 * 24), 24, (6, 1))
        h.tensor_add(entry("w", whole, (4, 6)))
        h.seal(LIMIT)
        h.restore(flags=_lib.CKPT_EXPLICIT)  # the rank has what it wrote
        self.assertEqual(whole.read(), [0, 1, 4, 5, 6, 7, 2, 3, 8, 9, 10, 11]
                         + [12, 14, 16, 18, 20, 22, 13, 15, 17, 19, 21, 23])  # fmt: skip

    def test_a_blob_grows_and_each_rank_reads_what_it_wrote(self):
        h, _ = self.job()
        blob = h.blob_add("extra.data", 8, _lib.CKPT_PER_RANK | _lib.CKPT_JSON)
        h.seal(LIMIT)
        blob.write(b"12345678")
        self.assertTrue(blob.fits)
        self.assertEqual(step(h, 1), 0)
        blob.write(b"x" * 100000)
        self.assertFalse(blob.fits)
        self.assertEqual(h.snapshot(2), _lib.CKPT_SKIPPED)
        self.assertIn("extra.data", str(h.why()))
        h.blob_resize("extra.data", 100000)
        self.assertTrue(blob.fits)
        self.assertEqual(h.seal(LIMIT), 0)
        self.assertEqual(step(h, 3, _lib.CKPT_FINAL), 0)
        self.assertEqual(h.restore().step, 3)
        self.assertEqual(h.blob_read("extra.data"), b"x" * 100000)
        with self.assertRaisesRegex(errors.NothingToRestore, "extra.none"):
            h.blob_read("extra.none")
        with self.assertRaisesRegex(errors.NoRoom, "extra.data"):
            blob.write(bytes((1 << 30) + 1))

    def test_what_does_not_fit_is_listed_by_name(self):
        h, _ = self.job()
        step(h, 1, _lib.CKPT_FINAL)
        h.detach()
        h = self.attach()
        memory = Memory(h.alloc(8192), 500)
        h.tensor_add(entry("w", memory))
        h.tensor_add(entry("new", memory, dtype=_lib.CKPT_I32))
        h.seal(LIMIT)
        with self.assertRaises(errors.NotFitting) as e:
            h.restore()
        self.assertIn("model/w", str(e.exception))
        self.assertIn("model/new", str(e.exception))
        self.assertEqual({(t.key, t.what) for t in h.unmatched()},
                         {("model/w", _lib.CKPT_MISMATCH), ("model/new", _lib.CKPT_MISSING)})  # fmt: skip
        self.assertEqual([(t.key, t.shape, t.blob) for t in h.tensors()], [("model/w", (1000,), False)])
        with self.assertRaises(errors.NotRestorable):
            h.snapshot(2)
        h.fresh()

    def test_a_tensor_moves_and_goes(self):
        h, w = self.job()
        w.write([1.0] * 1000)
        other = Memory(h.alloc(4000), 1000)
        other.write([2.0] * 1000)
        step(h, 1)
        h.tensor_move(0, [Part(other)])
        self.assertEqual(h.seal(LIMIT), 0)
        self.assertEqual(step(h, 2), 0)
        other.write([3.0] * 1000)
        h.restore()
        self.assertEqual((w.read()[0], other.read()[0]), (1.0, 2.0))
        self.assertNotEqual(h.fingerprint(0), 0)
        h.tensor_drop(0)
        with self.assertRaises(errors.InvalidCall):
            h.fingerprint(0)

    def test_steps_that_go_back_and_steps_that_were_never_marked(self):
        h, _ = self.job()
        step(h, 5)
        with self.assertRaises(errors.InvalidCall):
            h.snapshot(4)
        with self.assertRaises(errors.NotSaved):
            h.wait(3, _lib.CKPT_COMMITTED, LIMIT)
        for bad in (-1, 2**64):
            with self.assertRaises(errors.InvalidCall):
                h.snapshot(bad)
        with self.assertRaisesRegex(errors.InvalidCall, "16 notes"):
            h.snapshot(6, 0, {str(i): 0.0 for i in range(17)})
        stats = h.stats()
        self.assertEqual((stats.committed, stats.last_committed_step), (1, 5))

    def test_a_wait_that_runs_out_says_how_long_it_was(self):
        h, _ = self.job()
        h.snapshot(1, _lib.CKPT_STAGE_ONLY)
        with self.assertRaises(errors.NotSaved):
            h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
        os.kill(self.process.pid, 19)  # SIGSTOP: nothing is copied any more
        try:
            h.snapshot(2)
            with self.assertRaisesRegex(errors.TimedOut, r"step 2 .* after 0\.5 s"):
                h.wait(2, _lib.CKPT_COMMITTED, 0.5)
            self.assertIsInstance(errors.error("wait", -errno.ETIMEDOUT, ""), TimeoutError)
        finally:
            os.kill(self.process.pid, 18)

    def test_a_mesh_that_is_malformed_and_numbers_that_do_not_fit(self):
        h = self.attach()
        with self.assertRaisesRegex(errors.InvalidCall, "a name for each size"):
            h.mesh(Mesh(("a",), (2,), (0,)))
        with self.assertRaises(errors.InvalidCall):
            h.mesh(Mesh(("a",), (2,), (0, 2**32)))
        with self.assertRaises(errors.InvalidCall):
            h.mesh(Mesh(("a",), (2,), (0, 0)))
        with self.assertRaises(errors.InvalidCall):
            h.alloc(-1)
        with self.assertRaises(errors.NoRoom):
            h.alloc(1 << 60)
        for options in ({"rank": 2**32}, {"world": -1}, {"slots": 9}, {"generation": 2**64}):
            with self.assertRaises(errors.InvalidCall):
                _lib.Handle.attach(store=self.store, job="b", socket=self.socket, **options)

    def test_what_c_would_cut_in_silence_is_refused(self):
        """A zero byte ends a text in C, and ctypes takes a number modulo 2^32 or 2^64."""
        h, _ = self.job()
        for call in (
            lambda: h.attr("user.a\0b", "x"), lambda: h.attr("user.a", "x\0y"), lambda: h.attr("user.\ud800", "x"),
            lambda: h.average("a\0b", "constant decay=.9"), lambda: h.blob_add("b\0c", 10),
            lambda: h.tensor_add(entry("w\0x", Memory(h.alloc(40), 10))), lambda: h.snapshot(1, 0, {"a\0b": 1.0}),
            lambda: self.attach(rank=1, socket=self.socket + "\0x"), lambda: h.wait(-1), lambda: h.wait(2**64 + 1),
            lambda: h.last(-1), lambda: h.restore(-1), lambda: h.tensors(-5), lambda: h.blob_read("b", -1),
        ):  # fmt: skip
            with self.assertRaisesRegex(errors.InvalidCall, "zero byte|no Unicode|must be 0 to"):
                call()
        with self.assertRaises(errors.NothingToRestore):
            h.restore(timeout=float("inf"))

    def test_a_second_attach_of_a_rank(self):
        self.attach(generation=3, rank=0, world=2)
        with self.assertRaises(errors.AlreadyAttached):
            self.attach(generation=3, rank=0, world=2)

    def test_a_world_that_differs(self):
        self.attach(rank=0, world=2, generation=1)
        with self.assertRaises(errors.InvalidCall) as e:
            self.attach(rank=1, world=3, generation=1)
        self.assertRegex(str(e.exception), "2.*3|3.*2")

    def test_a_newer_launch_takes_over(self):
        h, _ = self.job(generation=1)
        newer, _ = self.job(generation=2)
        with self.assertRaises(errors.Superseded):
            for n in range(1, 10000):
                h.guard()
                h.snapshot(n)

    def test_all_ranks_stop_after_the_step_that_nobody_was_told_to_go_on_from(self):
        ranks = self.two()
        self.assertEqual([h.last(1) for h in ranks], [False, False])
        self.assertFalse(ranks[0].last(2))  # rank 1 has not begun step 2 yet
        ranks[1].stop()
        self.assertEqual([(h.last(2), h.last(3)) for h in ranks[1:]], [(False, True)])
        self.assertTrue(ranks[0].last(3))
        with self.assertRaises(errors.InvalidCall):
            ranks[0].last(2**60)

    def test_an_attribute_is_in_the_step_and_its_rules_are_checked(self):
        h, _ = self.job()
        h.attr("git", "4f1c2ab")
        h.attr("ckpt.alias:model/head.weight", "model/w")
        self.assertEqual(h.seal(LIMIT), 0)
        step(h, 1, _lib.CKPT_FINAL)
        self.assertIn("4f1c2ab", self.show())
        with self.assertRaises(errors.InvalidCall):
            h.attr("ckpt.mine", "x")

    def test_a_peek_fills_the_sink_and_the_launch_goes_on(self):
        h, w = self.job()
        w.write([1.0] * 1000)
        h.average("fast", "constant decay=.5")
        seen = Memory(h.alloc(4000), 1000)
        h.tensor_add(entry("w", seen, component="ema.fast", cls=_lib.CKPT_SINK))
        self.assertEqual(h.seal(LIMIT), 0)
        step(h, 1)
        w.write([3.0] * 1000)
        step(h, 2, _lib.CKPT_FINAL)
        w.write([9.0] * 1000)
        self.assertEqual(h.restore(flags=_lib.CKPT_PEEK, only="ema.fast").step, 2)
        self.assertEqual((seen.read()[0], w.read()[0]), (2.0, 9.0))
        self.assertEqual(step(h, 3), 0)

    def test_what_is_more_than_copying_is_refused_where_it_was_asked(self):
        h, w = self.job()
        h.average("fast", "constant decay=.5")
        self.assertEqual(h.seal(LIMIT), 0)
        step(h, 1, _lib.CKPT_FINAL)
        h.detach()
        h, w = self.job()
        self.assertEqual(h.seal(LIMIT), 0)
        w.write([9.0] * 1000)
        with self.assertRaisesRegex(errors.NotFitting, "average fast: drop"):
            h.restore(flags=_lib.CKPT_EXPLICIT)
        self.assertEqual(w.read()[0], 9.0)
        self.assertEqual(h.restore(flags=_lib.CKPT_EXPLICIT | _lib.CKPT_ALLOW_DROP).step, 1)
        with self.assertRaises(errors.InvalidCall):
            h.restore(flags=_lib.CKPT_ALLOW_DROP)

    def test_averages_are_declared_and_mistakes_are_named(self):
        h, _ = self.job()
        with self.assertRaisesRegex(errors.InvalidCall, "decya"):
            h.average("fast", "constant decya=.9")
        h.average("fast", "constant decay=.5")
        self.assertEqual(h.seal(LIMIT), 0)
        step(h, 1, _lib.CKPT_FINAL)
        self.assertIn("ema.fast/w", {t.key for t in h.tensors()})


class Foreign(Case):
    """Memory that is not from alloc."""

    def test_memory_that_was_unmapped_is_a_torn_snapshot_with_the_tensors_name(self):
        self.daemon()
        done = self.script(
            """
import sys
from rig import Memory, Pages, Part, _lib, entry, errors
h = _lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], flags=_lib.CKPT_REQUIRE)
pages, others = Pages(1 << 20), Pages(1 << 20)
h.tensor_add(entry("layers.7.weight", Memory(pages.address, 1 << 18)))
assert h.seal(60) == 0
h.snapshot(1); h.wait(1, _lib.CKPT_COMMITTED, 60); h.guard()
pages.unmap()
h.snapshot(2)
try:
    h.wait(2, _lib.CKPT_COMMITTED, 60)
except errors.NotSaved as e:
    print("wait:", e)
print("guard:", h.guard(), "why:", h.why(), "torn:", h.stats().torn)
said = []
while not any("layers.7" in n.text for n in said):  # a thread of the library says it
    said += h.notices()
print("notices:", [n.text for n in said])
h.tensor_move(0, [Part(Memory(others.address, 1 << 18))])
assert h.seal(60) == 0
h.snapshot(3); h.wait(3, _lib.CKPT_COMMITTED, 60)
print("committed:", [s.step for s in h.steps()])
h.detach()
""",
            self.store, self.socket)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        for line in ("wait: ", "why: ", "notices: "):
            self.assertRegex(done.stdout, line + ".*layers.7.weight")
        self.assertRegex(done.stdout, "torn: 1\n")
        self.assertIn("committed: [3, 1]", done.stdout)

    def test_memory_of_the_program_is_saved_and_restored(self):
        self.daemon()
        h = self.attach()
        buffer = (ctypes.c_float * 1000)(*range(1000))
        h.tensor_add(entry("w", Memory(ctypes.addressof(buffer), 1000)))
        h.seal(LIMIT)
        step(h, 1, _lib.CKPT_FINAL)
        ctypes.memset(buffer, 0, 4000)
        self.assertEqual(h.restore().step, 1)
        self.assertEqual(list(buffer), list(range(1000)))


class Daemon(Case):
    """No daemon, and one that comes late."""

    def test_without_a_daemon_training_goes_on(self):
        h = self.attach(flags=_lib.CKPT_KEEP_MEMORY)
        h.tensor_add(entry("w", Memory(h.alloc(4000), 1000)))
        self.assertEqual(h.seal(0.1), _lib.CKPT_SKIPPED)
        self.assertIn("no daemon listens", h.reason())
        self.assertEqual(h.guard(), 0)
        self.assertEqual(h.snapshot(1), _lib.CKPT_DETACHED)
        self.assertTrue(any("without a daemon" in n.text for n in h.notices()))
        self.assertEqual(h.notices(), [])
        with self.assertRaises(errors.NoDaemon):
            h.steps()
        self.daemon()
        self.assertEqual(h.seal(LIMIT), 0)
        self.assertEqual(step(h, 2), 0)

    def test_without_a_daemon_attach_fails_if_it_must_not(self):
        with self.assertRaises(errors.NoDaemon) as e:
            self.attach(flags=_lib.CKPT_REQUIRE)
        self.assertIn(self.socket, str(e.exception))
        self.assertIsInstance(e.exception, OSError)

    def test_what_is_saved_while_the_daemon_dies(self):
        self.daemon()
        h, _ = self.job()
        step(h, 1)
        self.process.kill()
        self.process.wait()
        with self.assertRaises(errors.CkptdError):
            h.steps()
        self.daemon()
        self.assertEqual(h.seal(LIMIT), 0)
        for n in range(2, 1000):
            h.guard()
            if h.snapshot(n) == 0:
                break
        h.wait(n, _lib.CKPT_COMMITTED, LIMIT)
