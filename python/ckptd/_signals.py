# SPDX-License-Identifier: Apache-2.0
"""Signals that end a job after a whole step. Run.on_signal makes a Signals; nothing here happens without that call.

The handler calls ckpt_stop, which only stores a word; the next run.step learns of it. Python runs handlers in the
main thread, between two bytecodes: `left` counts from then, so an operation that holds the main thread for ten
seconds takes ten seconds of the grace period.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Callable, Dict, Optional


class Signals:
    """The handlers of one run. stop: called in the handler, once for each signal; it must not raise.

    A handler that the program had installed before is called afterwards; the default action, and the
    KeyboardInterrupt of SIGINT, do not happen. The same signal again changes nothing: launchers repeat SIGTERM. Only
    SIGINT does: Ctrl-C twice interrupts the program as if there were no run.
    """

    def __init__(self, stop: Callable[[], Any]) -> None:
        self._stop = stop
        self._pid = os.getpid()
        self._before: Dict[int, Any] = {}
        self._within: Dict[int, float] = {}
        self._until: Optional[float] = None
        self.received: Optional[int] = None  # the first signal that came

    def install(self, number: int, within: float) -> None:
        """Handle this signal. within: seconds from the signal to the end that the launcher makes of the process.

        RuntimeError: this is not the main thread. ValueError: the signal cannot be handled, or within is no time.
        """
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError("on_signal: %r is no signal: give signal.SIGTERM, for example" % (number,))
        if not isinstance(within, (int, float)) or not 0 <= within < float("inf"):
            raise ValueError("on_signal: within is %r and should be seconds, 0 or more" % (within,))
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "on_signal was called from thread %s: Python installs signal handlers from the main thread only; "
                "call it there" % threading.current_thread().name
            )
        self._within[number] = float(within)
        if number in self._before:
            return
        try:
            before = signal.signal(number, self._handle)
        except (OSError, ValueError) as e:
            del self._within[number]
            raise ValueError("on_signal: signal %d cannot be handled: %s" % (number, e)) from e
        self._before[number] = before

    def left(self) -> float:
        """Seconds until the launcher ends the process, 0 at least. Without a signal here (another rank got it): the
        longest `within` that was given.
        """
        if self._until is None:
            return max(self._within.values(), default=0.0)
        return max(self._until - time.monotonic(), 0.0)

    def remove(self) -> None:
        """Put the handlers back that were there before, where nobody has replaced ours since. In a thread other than
        the main one Python cannot: then they stay, and pass signals on.
        """
        self._stop = _nothing
        if os.getpid() != self._pid:
            return
        for number, before in list(self._before.items()):
            try:
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, signal.SIG_DFL if before is None else before)
            except ValueError:
                continue
            del self._before[number]

    def _handle(self, number: int, frame: Any) -> None:
        before = self._before.get(number)
        if os.getpid() != self._pid or self._stop is _nothing:
            _as_before(number, frame, before)
            return
        again = self._until is not None
        until = time.monotonic() + self._within.get(number, 0.0)
        self._until = until if self._until is None else min(self._until, until)
        if self.received is None:
            self.received = number
        if not again:
            self._stop()
        if callable(before) and (before is not signal.default_int_handler or again):
            before(number, frame)


def _nothing() -> None:
    """In the place of `stop` when the handlers are removed."""


def _as_before(number: int, frame: Any, before: Any) -> None:
    """What the signal would do without us: in a forked child, or after remove() from a thread."""
    if callable(before):
        before(number, frame)
    elif before is not signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
