# SPDX-License-Identifier: Apache-2.0
"""_signals: a handler that stops once, calls what was there before, and is taken away again. No torch, no daemon."""

import os
import pathlib
import signal
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

from ckptd._signals import Signals  # noqa: E402

USR = signal.SIGUSR1


def send(number):
    """To this process. Python has run the handler when it returns."""
    os.kill(os.getpid(), number)
    signal.getsignal(number)


class Handlers(unittest.TestCase):
    def setUp(self):
        for number in (USR, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.stops = []
        self.signals = Signals(lambda: self.stops.append(1))

    def test_it_stops_once_and_time_counts_from_the_first_signal(self):
        self.signals.install(signal.SIGTERM, 25.0)
        self.assertEqual(self.signals.left(), 25.0)
        send(signal.SIGTERM)
        first = self.signals.left()
        self.assertTrue(0 < first < 25.0)
        send(signal.SIGTERM)
        self.assertLess(self.signals.left(), first)
        self.assertEqual((self.stops, self.signals.received), ([1], signal.SIGTERM))

    def test_of_several_signals_the_one_that_ends_the_process_first_counts(self):
        self.signals.install(signal.SIGTERM, 25.0)
        self.signals.install(USR, 5.0)
        send(signal.SIGTERM)
        send(USR)
        self.assertLessEqual(self.signals.left(), 5.0)
        self.assertEqual(self.stops, [1])

    def test_time_that_is_over_is_0(self):
        self.signals.install(USR, 0)
        send(USR)
        self.assertEqual(self.signals.left(), 0.0)

    def test_the_handler_that_was_there_is_called_too_and_comes_back(self):
        heard = []

        def mine(number, frame):
            heard.append(number)

        signal.signal(USR, mine)
        self.signals.install(USR, 1.0)
        self.signals.install(USR, 2.0)
        send(USR)
        self.assertEqual((heard, self.stops), ([USR], [1]))
        self.signals.remove()
        self.assertIs(signal.getsignal(USR), mine)
        send(USR)
        self.assertEqual((heard, self.stops), ([USR, USR], [1]))

    def test_a_handler_that_the_program_has_put_in_its_place_stays(self):
        self.signals.install(USR, 1.0)
        signal.signal(USR, signal.SIG_IGN)
        self.signals.remove()
        self.assertEqual(signal.getsignal(USR), signal.SIG_IGN)

    def test_the_second_interrupt_of_the_keyboard_interrupts(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.signals.install(signal.SIGINT, 1.0)
        send(signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            send(signal.SIGINT)
        self.assertEqual(self.stops, [1])

    def test_a_forked_child_dies_of_it_as_it_would_have(self):
        self.signals.install(signal.SIGTERM, 25.0)
        signal.signal(signal.SIGTERM, self.signals._handle)
        self.signals._before[signal.SIGTERM] = signal.SIG_DFL
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        status = os.waitpid(pid, 0)[1]
        self.assertTrue(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status)
        self.assertEqual(self.stops, [])

    def test_another_thread_cannot_install_one_and_learns_why(self):
        caught = []

        def install():
            try:
                self.signals.install(USR, 1.0)
            except RuntimeError as e:
                caught.append(str(e))

        t = threading.Thread(target=install, name="other")
        t.start()
        t.join()
        self.assertRegex(caught[0], "thread other: .*main thread")

    def test_after_a_removal_in_another_thread_signals_pass_through(self):
        heard = []
        signal.signal(USR, lambda n, f: heard.append(n))
        self.signals.install(USR, 1.0)
        t = threading.Thread(target=self.signals.remove)
        t.start()
        t.join()
        send(USR)
        self.assertEqual((heard, self.stops), ([USR], []))

    def test_bad_arguments_are_named(self):
        for number, within, kind, why in (
            ("TERM", 1.0, TypeError, "no signal"),
            (True, 1.0, TypeError, "no signal"),
            (USR, -1.0, ValueError, "within"),
            (USR, float("nan"), ValueError, "within"),
            (signal.SIGKILL, 1.0, ValueError, "cannot be handled"),
            (4000, 1.0, ValueError, "cannot be handled"),
        ):
            with self.assertRaisesRegex(kind, why):
                self.signals.install(number, within)
        self.assertEqual(self.signals.left(), 0.0)


if __name__ == "__main__":
    unittest.main()
