# SPDX-License-Identifier: Apache-2.0
"""Forks, threads, signals and the end of the interpreter: what may be called by whom, and what is left running."""

import inspect
import logging
import os
import signal
import sys
import threading

from rig import LIMIT, Case, Memory, _lib, entry, errors, until


class Forks(Case):
    def test_every_method_refuses_in_a_forked_child_and_the_parent_goes_on(self):
        self.daemon()
        h, w = self.job()
        b = h.blob_add("b", 8, _lib.CKPT_PER_RANK)
        b.write(b"1")
        self.assertEqual(h.seal(LIMIT), 0)
        h.guard()
        h.snapshot(1)
        calls = {
            "mesh": (_lib.Mesh(("x",), (1,), (0,)),), "alloc": (4096,), "tensor_add": (entry("x", w),), "tensor_move": (0, ()),
            "tensor_drop": (0,), "blob_add": ("c", 8), "blob_resize": ("b", 16), "average": ("f", "uniform"), "seal": (1.0,),
            "snapshot": (2,), "guard": (), "wait": (1,), "steps": (), "tensors": (), "unmatched": (), "restore": (),
            "blob_read": ("b",), "fingerprint": (0,), "fresh": (), "stats": (), "committed": (), "why": (), "detach": (), "last": (1,),
            "stop": (), "attr": ("k", "v"),
        }  # fmt: skip
        public = {n for n, f in inspect.getmembers(_lib.Handle, inspect.isfunction) if not n.startswith("_")}
        self.assertEqual(public - set(calls), {"notices", "reason"})
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            wrong = []
            for name in sorted(public & set(calls)):
                try:
                    getattr(h, name)(*calls[name])
                    wrong.append(name)
                except errors.ForkedError:
                    pass
                except BaseException as e:
                    wrong.append("%s: %r" % (name, e))
            h.__del__()
            os.write(write, ",".join(wrong).encode() or b"none")
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(os.read(read, 65536), b"none")
        os.close(read)
        os.close(write)
        h.guard()
        for n in range(2, 5):
            self.assertIn(h.snapshot(n), (0, _lib.CKPT_SKIPPED))
            h.guard()
        self.assertEqual(h.snapshot(9, _lib.CKPT_FINAL), 0)
        h.wait(9, _lib.CKPT_COMMITTED, LIMIT)

    def test_a_child_that_ends_like_a_program_leaves_the_parents_handle_alone(self):
        self.daemon()
        done = self.script(
            """
import multiprocessing, sys
from rig import Memory, _lib, entry
def child(): pass
h = _lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], flags=_lib.CKPT_REQUIRE)
h.tensor_add(entry("w", Memory(h.alloc(4000), 1000)))
assert h.seal(60) == 0
for n in range(1, 4):
    p = multiprocessing.get_context("fork").Process(target=child)
    p.start(); p.join()
    assert p.exitcode == 0, p.exitcode
    h.guard(); h.snapshot(n, _lib.CKPT_FINAL); h.wait(n, _lib.CKPT_COMMITTED, 60)
print(h.steps()[0].step)
""",
            self.store, self.socket)  # fmt: skip
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "3\n", ""))


class Threads(Case):
    def setUp(self):
        super().setUp()
        self.daemon()

    def waiting_seal(self, slice_seconds):
        """A rank of two whose seal waits for the other one in a thread: (handle, thread, what the seal returned)."""
        self.addCleanup(setattr, _lib, "WAIT_SLICE", _lib.WAIT_SLICE)
        _lib.WAIT_SLICE = slice_seconds
        h = self.attach(rank=0, world=2)
        h.tensor_add(entry("w", Memory(h.alloc(4000), 1000), mesh=_lib.Mesh(("r",), (2,), (0, 1))))
        out, begun = [], threading.Event()

        def seal():
            begun.set()
            out.append(h.seal(LIMIT))

        thread = threading.Thread(target=seal)
        thread.start()
        self.addCleanup(thread.join)
        begun.wait()
        until("the thread is inside", lambda: repr(h._one).startswith("<locked"))  # taking it would disturb
        return h, thread, out

    def other_rank(self):
        h = self.attach(rank=1, world=2)
        h.tensor_add(entry("w", Memory(h.alloc(4000), 1000), mesh=_lib.Mesh(("r",), (2,), (0, 1))))
        self.assertEqual(h.seal(LIMIT), 0)

    def test_a_call_that_waits_lets_other_threads_run(self):
        _, thread, out = self.waiting_seal(LIMIT)  # one call into C, which would keep the GIL for LIMIT
        self.other_rank()
        thread.join()
        self.assertEqual(out, [0])

    def test_a_second_thread_is_refused_while_the_first_is_inside(self):
        h, thread, out = self.waiting_seal(LIMIT)
        for call in (
            h.guard,
            h.steps,
            h.detach,
            lambda: h.snapshot(1),
            lambda: h.restore(timeout=0.1),
            lambda: h.alloc(1),
        ):
            with self.assertRaisesRegex(errors.WrongThread, "one thread at a time"):
                call()
        h.stats()  # any thread may
        h.why()
        h.notices()
        self.other_rank()
        thread.join()
        self.assertEqual(out, [0])
        self.assertEqual(h.guard(), 0)

    def test_threads_that_take_turns_are_welcome(self):
        h, _ = self.job()
        for n in range(1, 9):
            thread = threading.Thread(target=lambda: (h.guard(), h.snapshot(n)))
            thread.start()
            thread.join()
        self.assertEqual(h.stats().taken + h.stats().skipped, 8)

    def test_a_wait_of_another_thread_ends_when_the_handle_is_detached(self):
        h, _ = self.job()
        h.guard()
        os.kill(self.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.process.pid, signal.SIGCONT)
        h.snapshot(1)
        out = []

        def wait():
            try:
                h.wait(1, _lib.CKPT_COMMITTED, LIMIT * 10)
            except errors.CkptdError as e:
                out.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        until("the thread is inside", lambda: h._inside)
        h.detach()
        thread.join()
        self.assertIsInstance(out[0], errors.Detached)
        for call in (h.guard, h.stats, h.steps):
            with self.assertRaises(errors.Detached):
                call()
        h.detach()  # a second one does nothing

    def test_a_signals_handler_interrupts_a_wait(self):
        h, _ = self.job()
        os.kill(self.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.process.pid, signal.SIGCONT)
        h.snapshot(1)

        class Interrupted(Exception):
            pass

        def handler(*_):
            raise Interrupted

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handler))

        def send():
            until("the wait has begun", lambda: h._inside)
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=send)
        thread.start()
        with self.assertRaises(Interrupted):
            h.wait(1, _lib.CKPT_COMMITTED, LIMIT * 10)
        thread.join()
        self.assertEqual(h._inside, [])

    def test_a_signals_handler_that_detaches_inside_a_wait_is_refused_and_does_not_wait_for_itself(self):
        h, _ = self.job()
        os.kill(self.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.process.pid, signal.SIGCONT)
        h.snapshot(1)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, lambda *_: h.detach()))

        def send():
            until("the wait has begun", lambda: h._inside)
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=send)
        thread.start()
        with self.assertRaisesRegex(errors.WrongThread, "inside a call: raise, and detach then"):
            h.wait(1, _lib.CKPT_COMMITTED, LIMIT * 10)
        thread.join()
        h.detach()
        self.assertFalse(h.attached)


class Ends(Case):
    def test_a_program_that_forgets_to_wait_has_its_last_step_saved(self):
        self.daemon()
        done = self.script(
            """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG)
from rig import Memory, _lib, entry
h = _lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], flags=_lib.CKPT_REQUIRE)
h.tensor_add(entry("w", Memory(h.alloc(64 << 20), 16 << 20)))
assert h.seal(60) == 0
h.guard(); assert h.snapshot(3) == 0
""",
            self.store, self.socket)  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        h = self.attach()
        memory = Memory(h.alloc(64 << 20), 16 << 20)
        h.tensor_add(entry("w", memory))
        h.seal(LIMIT)
        self.assertEqual(h.restore().step, 3)

    def test_nothing_is_printed_and_nothing_crashes_when_programs_end_with_a_daemon_that_comes_and_goes(self):
        """The library's thread logs while the interpreter ends."""
        for end in ("", "raise SystemExit(0)", "import os, signal; signal.raise_signal(signal.SIGINT)"):
            done = self.script(
                """
import logging, sys
from rig import Memory, _lib, entry
logging.getLogger("ckptd").addHandler(logging.StreamHandler(sys.stdout))
handles = [_lib.Handle.attach(store=sys.argv[1], job="j%d" % i, socket=sys.argv[2], flags=0) for i in range(20)]
del handles[:5]
""" + end,
                self.store, self.socket)  # fmt: skip
            self.assertEqual(done.returncode, -signal.SIGINT if "SIGINT" in end else 0, done.stderr)
            if "SIGINT" not in end:
                self.assertEqual(done.stderr, "")
            self.assertEqual(done.stdout.count("trains without a daemon"), 20)

    def test_a_handle_that_nobody_holds_is_detached(self):
        self.daemon()
        before = len(os.listdir("/proc/self/task"))
        h = _lib.Handle.attach(store=self.store, job="a", socket=self.socket, flags=_lib.CKPT_REQUIRE)
        self.assertGreater(len(os.listdir("/proc/self/task")), before)  # the library's threads
        del h
        self.assertEqual(len(os.listdir("/proc/self/task")), before)

    def test_lines_of_the_library_go_to_logging_with_their_levels(self):
        with self.assertLogs("ckptd", logging.WARNING) as logs:
            self.attach(flags=0)
        self.assertEqual(logs.records[0].levelno, logging.WARNING)
        self.assertIn("without a daemon", logs.records[0].getMessage())

    def test_a_handler_of_the_log_that_fails_reaches_nobody(self):
        class Bad(logging.Handler):
            def emit(self, record):
                raise RuntimeError("a bad handler")

        printed = []
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = printed.append
        bad = Bad()
        logging.getLogger("ckptd").addHandler(bad)
        self.addCleanup(logging.getLogger("ckptd").removeHandler, bad)
        self.assertEqual(self.attach(flags=0).guard(), 0)
        self.assertEqual(printed, [])
