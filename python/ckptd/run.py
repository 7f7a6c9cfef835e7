# SPDX-License-Identifier: Apache-2.0
"""attach() and Run: what a training program calls. docs/PYTORCH.md is the manual.

A run is one rank. All ranks of the job call attach, restore, save, averaged and detach alike, as they call collectives; no
collective of torch is ever called. Nothing is printed: messages go to logging.getLogger("ckptd"), and warnings are those of
`errors`.

Invariant: between the entry and the exit of a step, and nowhere else, the program changes the state; a snapshot is taken of
a state that the whole step has made, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal as _signal
import threading
import time
import weakref
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _arguments, _averaged, _lib, _state, errors
from ._extra import Extras
from ._launch import launch
from ._memory import Arena
from ._outcome import Outcomes, warn
from ._session import Session, aliases_of
from ._types import Entry
from ._watch import Watch

log = logging.getLogger("ckptd")

WAIT_MAX = 3600.0  # seconds: how long wait and save wait unless they are told otherwise
RETRY = 0.05  # seconds that a step waits for a seal which was not ready in `timeout` before

_attached: "weakref.WeakKeyDictionary[Any, Run]" = weakref.WeakKeyDictionary()  # modules and optimizers


class Restored(int):
    """The step that Run.restore restored; 0 if there was nothing (then where is "nothing").

    missing: COMPONENT/NAME of tensors that the model has and the checkpoint lacks: they stay as they are. unused: those that
    the checkpoint has and the model lacks. Extras are blob/extra.NAME. passed: newer steps that were damaged, one a line.
    where: "memory", "disk" or "nothing".
    """

    missing: Tuple[str, ...] = ()
    unused: Tuple[str, ...] = ()
    passed: str = ""
    where: str = "nothing"

    @classmethod
    def of(cls, step: int, **about: Any) -> "Restored":
        self = cls(step)
        self.__dict__.update(about)
        return self


class _Step:
    """What Run.step returns."""

    __slots__ = ("_run", "_step", "_loss", "_notes", "_persist")

    def __init__(self, run: "Run", step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]) -> None:
        self._run, self._step, self._loss, self._notes, self._persist = run, step, loss, notes, persist

    def __enter__(self) -> "_Step":
        self._run._enter(self._step)
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self._run._leave(self._step, self._loss, self._notes, self._persist)
        else:
            self._run._abandon(self._step)


class Run:
    """One rank that is attached: made by attach(). A context manager, which detaches at its end.

    One thread at a time uses a run; wait and stats may be called beside. After a fork it works in the parent only.
    """

    def __init__(
        self, handle: _lib.Handle, training: Training, extras: Extras, outcomes: Outcomes, *, every: int, timeout: float
    ) -> None:
        """For attach only."""
        self._handle, self._training, self._extras, self._outcomes = handle, training, extras, outcomes
        self._session = training.session
        self._every, self._timeout = every, timeout
        self._inside: Optional[int] = None  # the step that the program is in
        self._last = False  # it is the last one
        self._newest = -1  # the newest step that was left without an exception, or restored
        self._marked: Optional[int] = None  # the newest step of which a snapshot was taken
        self._unready_said = False
        self._averaging = ""  # the average that is in the model
        self._restored = False
        self._signals: Dict[int, Any] = {}  # handlers that were there before
        self._told: Optional[float] = None  # time.monotonic() of the signal
        self._within = 25.0
        self._averages: Dict[str, _averaged.Average] = {}

    rank = property(lambda self: self._handle.rank, doc="This rank, of the whole job.")
    world = property(lambda self: self._handle.world, doc="The number of ranks of the job.")

    # ---- restore ----

    def restore(
        self, step: Optional[int] = None, *, source: str = "any", strict: bool = True, exact: bool = False
    ) -> Restored:
        """Fill model, optimizers and extras from a checkpoint, whatever mesh wrote it. All ranks call it alike.

        step: which one; None: the newest. If it is damaged, the next older one is restored; with exact=True never. source:
        "memory" (of the daemon), "disk" or "any". Returns the step, or 0 if there is nothing: then nothing has changed.

        strict=True: NotFitting lists tensors and extras that the checkpoint or the program lacks, before anything is
        written. strict=False: they are in .missing and .unused of the result. What both have in different shapes or types is
        NotFitting always. NotRestorable, Damaged, NothingToRestore (a step that was asked for), NoDaemon, TimedOut.
        """
        self._outside("restore")
        flags = _arguments.one_of("source", source, _arguments.SOURCES) | (_lib.CKPT_EXACT if exact else 0)
        if step is not None:
            step = _arguments.number("step", step, 0)
        self._averages_drop()
        if not self._ready(flags):
            return self._nothing()
        try:
            self._training.fit(step, flags)
            self._seal(self._timeout)
            missing, unused = self._compare(step, flags, strict)
            got = self._handle.restore(step, flags | _lib.CKPT_LENIENT, timeout=self._timeout)
        except errors.NothingToRestore:
            if step is not None:
                raise
            return self._nothing()
        if got.npassed:  # another step than the one that was compared
            missing, unused = self._unmatched(got.step)
            self._judge(missing, unused, strict, "step %d is restored, because newer ones are damaged, and " % got.step)
        self._extras.load(self._handle, got)
        self._training.restored()
        self._newest, self._marked, self._restored = got.step, None, True
        where = {1: "memory", 2: "disk"}.get(got.where, "nothing")
        return Restored.of(got.step, missing=missing, unused=unused, passed=got.passed, where=where)

    def _nothing(self) -> Restored:
        self._restored = True
        if self._training.materialised:
            log.warning(
                "there is nothing to restore, and the model was on the meta device: its memory is zero, initialise it before "
                "the first step"
            )
        return Restored.of(0)

    def _ready(self, flags: int) -> bool:
        """Is there a daemon, and has every rank sealed? False: there is no daemon, and nothing to restore either."""
        if self._seal(self._timeout):
            return True
        if not self._session.no_daemon:
            raise errors.error("restore", errno.ETIMEDOUT, self._session.why)
        if not self._training.store_may_have_steps():
            self._outcomes.unsaved("detached", 0, errors.error("restore", errno.ECONNREFUSED, self._session.why))
            return False
        raise errors.error(
            "restore",
            errno.ECONNREFUSED,
            "%s\nThe store may have steps of this job: start ckptd, or training would begin anew at step 0" % self._session.why,
        )

    def _compare(self, step: Optional[int], flags: int, strict: bool) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
        """What checkpoint and program do not have both, by a restore that only checks. NotFitting, NothingToRestore."""
        dry = self._handle.restore(step, flags | _lib.CKPT_DRY_RUN | _lib.CKPT_LENIENT, timeout=self._timeout)
        missing, unused = self._unmatched(dry.step)
        self._judge(missing, unused, strict, "")
        return missing, unused

    def _unmatched(self, step: int) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
        found = [t for t in self._handle.unmatched() if not t.blob]
        missing = {t.key for t in found if t.what == _lib.CKPT_MISSING}
        unused = {t.key for t in found if t.what == _lib.CKPT_UNUSED and not t.component.startswith("ema.")}
        lack, over = self._extras.unmatched(self._handle, step)
        return tuple(sorted(missing) + list(lack)), tuple(sorted(unused) + list(over))

    @staticmethod
    def _judge(missing: Sequence[str], unused: Sequence[str], strict: bool, before: str) -> None:
        lines = ["%s: the program has it, and the checkpoint lacks it" % key for key in missing]
        lines += ["%s: the checkpoint has it, and the program lacks it" % key for key in unused]
        if not lines:
            return
        if strict:
            head = before + "checkpoint and program differ in %d names (strict=False restores the others):" % len(lines)
            raise errors.error("restore", errno.EMEDIUMTYPE, "\n".join([head] + lines))
        log.warning("%scheckpoint and program differ: %s", before, _arguments.names(lines))

    # ---- steps ----

    def step(
        self, step: int, *, loss: Any = None, notes: Optional[Mapping[str, Any]] = None, persist: Optional[bool] = None
    ) -> ContextManager[Any]:
        """The part of a training step that changes the state: `with run.step(n, loss=loss): optim.step()`.

        step: the number that the state has afterwards; it must grow. loss, notes: numbers, or tensors of one element, that
        `ckptctl show` prints; averages may use the loss. persist: True writes this step to the store, False keeps it in
        memory only, None leaves it to persist_every. On entry it waits for the copy of the step before, if that is late
        (guard=). On exit the snapshot is taken, in microseconds; after an exception it is not.

        Preempted: the job was told to stop (on_signal); this step was its last one.
        """
        return _Step(self, _arguments.number("step", step, 0), loss, notes, persist)

    def _enter(self, step: int) -> None:
        self._outside("step")
        if step <= self._newest:
            raise ValueError("step %d was entered after step %d: steps must grow (restore goes back)" % (step, self._newest))
        self._say_notices()
        if self._handle.guard() == _lib.CKPT_TORN:
            self._outcomes.passing("torn", self._newest, self._why())
        self._last = bool(self._handle.last(step))
        self._inside = step

    def _abandon(self, step: int) -> None:
        """An exception ended the step: the state may be half of it, so no snapshot is taken."""
        self._inside = None
        log.debug("step %d was ended by an exception: no snapshot is taken of it", step)

    def _leave(self, step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]) -> None:
        self._inside, self._newest = None, step
        due = self._last or persist or step % self._every == 0
        if not due:
            return
        flags = _lib.CKPT_FINAL if self._last else 0
        if persist is not None and not self._last:
            flags = _lib.CKPT_PERSIST if persist else _lib.CKPT_STAGE_ONLY
        # The library keeps those of rank 0 only; a loss on another rank is not even waited for.
        given = _arguments.notes_of(loss, notes) if self._handle.rank == 0 else {}
        self._snapshot(step, flags, given)
        if self._last:
            self._end(step)

    def _snapshot(self, step: int, flags: int, notes: Mapping[str, float]) -> bool:
        """Mark the state as that of this step. False: nothing was taken, which has been counted and said."""
        try:
            problem = self._training.follow(step)
            if problem:
                self._outcomes.unsaved("unmarked", step, errors.error("snapshot", errno.EFAULT, problem))
                return False
            if self._extras.collect():
                self._session.changed_here()
            if not self._seal(RETRY if self._unready_said else self._timeout) and not self._session.no_daemon:
                if not self._unready_said:
                    log.warning("snapshots wait for the other ranks: %s", self._session.why)
                self._unready_said = True
            rc = self._handle.snapshot(step, flags, notes)
        except errors.NotRestorable as e:
            if not self._restored:  # the program forgot it: it should hear of it now, not after a week
                raise
            self._outcomes.unsaved("refused", step, e)
            return False
        except errors.CkptdError as e:
            self._outcomes.unsaved("refused", step, e)
            return False
        return self._judge_mark(step, rc)

    def _judge_mark(self, step: int, rc: int) -> bool:
        if rc in (0, _lib.CKPT_FAILING):
            self._marked, self._unready_said = step, False
            self._outcomes.taken(step)
            if rc == _lib.CKPT_FAILING:
                self._outcomes.unsaved("failing", step, self._handle.why() or errors.error("wait", errno.EIO, "steps cannot be written"))
            return True
        if rc == _lib.CKPT_DETACHED:
            why = self._handle.why() or errors.error("wait", errno.ECONNREFUSED, "no daemon is attached")
            self._outcomes.unsaved("detached", step, why)
        else:
            self._outcomes.passing("skipped", step, self._why())
        return False

    def _end(self, step: int) -> None:
        """The job was told to stop, and this step is its last one: wait for it, and raise Preempted."""
        left = self._within if self._told is None else self._within - (time.monotonic() - self._told)
        committed = False
        if self._marked == step:
            try:
                self._handle.wait(step, _lib.CKPT_COMMITTED, max(left, 0.0))
                committed = True
            except errors.CkptdError as e:
                log.warning("step %d is the last one, and is not committed: %s", step, e)
        raise errors.Preempted(step, committed)

    def _seal(self, timeout: float) -> bool:
        return self._session.seal(timeout)

    def _why(self) -> str:
        why = self._handle.why()
        return str(why) if why else ""

    def _say_notices(self) -> None:
        for notice in self._handle.notices():
            if DRIFTED in notice.text:
                warn(errors.ReplicasDrifted, notice.text)

    # ---- waiting ----

    def wait(self, state: str = "committed", timeout: float = WAIT_MAX) -> int:
        """Wait until the newest step is "staged", "persisted" or "committed" ; return its number, or 0 if there is none.

        If its snapshot was skipped or torn, it is taken again, of the state as it is now: call wait before the state changes.
        With every= or persist_every= the newest step may be one that is not to be written: then it waits for the newest
        one that is, and returns that. timeout: seconds. TimedOut, NotSaved (it could not be written), NoDaemon.
        """
        number = _arguments.one_of("state", state, _arguments.STATES)
        if self._marked is None and (self._newest < 0 or self._outcomes.count["taken"] == 0):
            return max(self._newest, 0)
        ...
