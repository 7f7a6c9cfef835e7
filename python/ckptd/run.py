# SPDX-License-Identifier: Apache-2.0
"""attach() and Run: what a training program calls. docs/PYTORCH.md is the manual.

A run is one rank. All ranks of the job call attach, restore, save, averaged and detach alike, as they call collectives;
no collective of torch is ever called. Messages go to logging.getLogger("ckptd"); warnings are those of `errors`, and
`_told` says who reads them.

Invariant: between the entry and the exit of a step, and nowhere else, the program changes the state; a snapshot is
taken of a state that the whole step has made, or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import logging
import os
import threading
import time
import types
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, Union

from . import _arguments, _averaged, _cuda, _lib, _state, _told, errors
from ._blobs import Blobs, extras_of
from ._extra import Decoded
from ._launch import launch
from ._outcome import COMMIT_MAX, MARKS_MAX, Outcomes, Standstill
from ._progress import Progress
from ._signals import Signals
from ._together import together
from ._training import Training, reshard

log = logging.getLogger("ckptd")

WAIT_MAX = 3600.0  # seconds: how long wait and save wait unless they are told otherwise
WITHIN = 25.0  # seconds from a signal to SIGKILL, unless on_signal is told otherwise: torchrun leaves 30
_PERSIST = {_lib.CKPT_PERSIST: True, _lib.CKPT_FINAL: True, _lib.CKPT_STAGE_ONLY: False}  # by the flags of a mark
_TODO = (  # if nothing is saved for this reason
    (" changed ", "Put all that changes the state into the block of run.step"),
    (" late", 'Let steps wait for the copy of the step before (guard="finish"), or mark fewer steps (every=)'),
    ("", "Mark fewer steps (every=), or write fewer (persist_every=)"),
)
SLOT_MAX = 60.0  # seconds that the last mark of a job waits for a slot
RETRY = 0.05  # seconds that a step waits for a seal which was not ready in `timeout` before

_attached: "weakref.WeakKeyDictionary[Any, Run]" = weakref.WeakKeyDictionary()  # modules and optimizers
_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()

_Names = Tuple[str, ...]


class Restored(int):
    """The step that Run.restore restored; 0 if there was nothing (then where is "nothing").

    missing: COMPONENT/NAME of tensors that the model has and the checkpoint lacks: they stay as they are. unused: those
    that the checkpoint has and the model lacks. Extras are blob/extra.NAME. passed: newer steps that were damaged, one
    a line. where: "memory", "disk" or "nothing".
    """

    missing: _Names = ()
    unused: _Names = ()
    passed: str = ""
    where: str = "nothing"

    @classmethod
    def of(cls, step: int, **about: Any) -> "Restored":
        self = cls(step)
        self.__dict__.update(about)
        return self


class _Step:
    """What Run.step returns."""

    __slots__ = ("_run", "_step", "_loss", "_notes", "_persist", "__weakref__")

    def __init__(
        self, run: "Run", step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]
    ) -> None:
        self._run, self._step, self._loss, self._notes, self._persist = run, step, loss, notes, persist

    def __enter__(self) -> "_Step":
        wanted = self._run._enter(self._step, self._persist)
        self._loss, self._notes = self._run._fetch(self._loss, self._notes)
        here = weakref.ref(self, self._run._dropped)
        self._run._progress.enter(self._step, wanted, here)  # the last thing: until then nothing changes
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self._run._leave(self._step, self._loss, self._notes, self._persist)
        else:
            self._run._give_up()

    def has_ended(self) -> bool:
        """Did an exception (Ctrl-C) end the block before __exit__ did anything? Then the frame of that call is left, in
        a traceback."""
        code = type(self).__exit__.__code__
        return any(isinstance(x, types.FrameType) and x.f_code is code for x in gc.get_referrers(self))


class Run:
    """One rank that is attached: made by attach(). A context manager, which detaches at its end.

    One thread at a time uses a run; wait and stats may be called beside, by other threads than that of the steps. After
    a fork it works in the parent only.
    """

    def __init__(
        self,
        handle: _lib.Handle,
        training: Training,
        outcomes: Outcomes,
        teller: _told.Teller,
        *,
        persist_every: int,
        every: int,
        timeout: float,
        averages: Mapping[str, str],
        agree: Optional[Callable[[int], int]],
    ) -> None:
        """For attach only."""
        self._handle, self._training, self._outcomes = handle, training, outcomes
        self._session = training.session
        self._standstill, self._teller = Standstill(persist_every, self._fate), teller
        self._every, self._timeout, self._specs = every, timeout, dict(averages)
        self._agree = agree  # where restores are over NCCL
        self._blobs: Optional[Blobs] = None  # until _begin
        self._progress = Progress()
        self._thread = threading.get_ident()  # of the newest step
        self._last = False  # it is the last one
        self._notes: Mapping[str, float] = {}  # of the newest step
        self._given: Optional[Tuple[Any, Any]] = None  # loss and notes, while nobody needs their values
        self._restored = False  # restore was called, and did not fail
        self._lost: Optional[errors.CkptdError] = None  # why a step came to nothing: the newest one that was asked for
        self._wait_said = False
        self._here: Tuple[Any, ...] = ()  # the store, the job, the rank and the launch that attach was given
        self._averaging = ""  # the average that is in the model
        self._lent: Optional[_averaged.Average] = None  # it has weights of the model, which must go back
        self._averages: Dict[str, _averaged.Average] = {}
        self._signals: Optional[Signals] = None

    def _begin(self, extra: Optional[Mapping[str, Any]]) -> None:
        """Declare everything, and seal. What fails here is an exception of attach."""
        self._training.heard.guard = self._guard
        self._training.heard.inside = lambda: self._progress.inside is not None
        self._training.averages = list(self._specs.values())
        self._training.saved = [at for at in (extra or {}).values() if hasattr(at, "param_groups")]
        self._training.begin()
        self._blobs = Blobs(self._session, extras_of(extra, self._training))
        self._blobs.declare(self._training.mesh())
        for name, spec in self._specs.items():
            self._handle.average(name, spec)
        if not self._seal(self._timeout):
            self._say_wait()

    rank = property(lambda self: self._handle.rank, doc="This rank, of the whole job.")
    world = property(lambda self: self._handle.world, doc="The number of ranks of the job.")

    # ---- restore ----

    def restore(
        self,
        step: Optional[int] = None,
        *,
        source: str = "any",
        strict: bool = True,
        exact: bool = False,
        explicit: bool = False,
        allow: Iterable[str] = (),
    ) -> Restored:
        """Fill model, optimizers and extras from a checkpoint, whatever mesh wrote it. All ranks call it alike.

        step: which one; None: the newest. If it is damaged, the next older one is restored; with exact=True never.
        source: "memory" (of the daemon), "disk" or "any". Returns the step, or 0 if there is nothing: then nothing has
        changed.

        strict=True: NotFitting lists tensors and extras that the checkpoint or the program lacks, before anything is
        written. strict=False: they are in .missing and .unused of the result. What both have in different shapes or
        types is NotFitting always.

        explicit=True: NotFitting also lists, before anything is written, what would be more than copying: "reshard" (a
        rank gets other elements than it had), "reduce" (of a Partial), "replicate" (more ranks hold an element), "drop"
        (the program lacks a tensor or an average). allow=["reshard"] permits these kinds.

        Extras are decoded before anything is written, and checked as far as their kind permits: ExtraError, and nothing
        has changed. Other ranks then wait `timeout` seconds for this one. If an object's load_state_dict raises all the
        same, ExtraError says what is restored and what is not; the state is unfinished (step), and the next step may be
        entered.

        NotRestorable, Damaged, NothingToRestore (a step that was asked for), NoDaemon,
        TimedOut.
        """
        self._outside("restore")
        flags = _arguments.one_of("source", source, _arguments.SOURCES) | (_lib.CKPT_EXACT if exact else 0)
        kinds = _arguments.explicit_flags(explicit, allow)
        if step is not None:
            step = _arguments.number("step", step, 0)
        self._averages_drop()
        if not self._ready(flags):
            return self._nothing()
        filled = self._fill(step, flags | kinds, strict)
        if filled is None:
            return self._nothing()
        extras, got, missing, unused = filled
        where = {1: "memory", 2: "disk"}.get(got.where, "")
        restored = Restored.of(got.step, missing=missing, unused=unused, passed=got.passed, where=where)
        self._progress.filled(got.step)
        self._standstill.restored()
        if got.passed:
            text = "step %d is restored, because newer steps are damaged, and were passed over:\n%s"
            _told.tell("passed", text % (got.step, got.passed), errors.StepsPassed)
        self._restored = True
        try:
            extras.load()
        except errors.ExtraError as e:
            raise _half_restored(e, restored) from e.__cause__
        finally:
            self._training.restored(got.step)
        self._progress.restored()
        extras.warn(got.step)
        self._say_notices()
        return restored

    @_state.uncollected()
    def _fill(
        self, step: Optional[int], flags: int, strict: bool
    ) -> Optional[Tuple[Decoded, _lib.Got, _Names, _Names]]:
        """Compare a step, decode its extras, and only then fill the tensors. None: there is nothing to restore.

        If the newest step proves damaged while it is read, the next older one is compared, decoded and filled. All
        ranks take the same turns: what the library finds of a step, it says on all of them.
        """
        assert self._blobs is not None
        tried: Dict[Tuple[int, int], errors.CkptdError] = {}  # by step and place
        while True:
            try:
                self._training.fit(step, flags)
                self._seal(self._timeout)
                dry, missing, unused = self._compare(step, flags, strict)
                extras = self._blobs.extras.decode(self._handle, dry)
            except (errors.NothingToRestore, errors.NotRestorable) as e:
                self._unfit()
                if tried:
                    raise _all_damaged(e, tried) from e
                if step is None and isinstance(e, errors.NothingToRestore):
                    return None
                raise
            except BaseException:
                self._unfit()
                raise
            try:
                got = self._fill_tensors(dry, flags, missing)
            except (errors.Damaged, errors.NothingToRestore) as e:
                self._unfit()
                if step is not None or flags & _lib.CKPT_EXACT or (dry.step, dry.where) in tried:
                    raise
                tried[dry.step, dry.where] = e
                text = "step %d cannot be restored, and the next older one is tried: %s" % (dry.step, e)
                _told.tell("step %d is damaged" % dry.step, text, None)
                continue
            except BaseException:
                self._unfit()
                raise
            if (got.where, got.id) != (dry.where, dry.id):  # another one took its place meanwhile
                extras = self._blobs.extras.decode(self._handle, got)
            passed = dry.passed or "\n".join("step %d: %s" % (step, e) for (step, _), e in tried.items())
            return extras, dataclasses.replace(got, passed=passed), missing, unused

    def _fill_tensors(self, dry: _lib.Got, flags: int, missing: _Names) -> _lib.Got:
        """Fill the tensors of the step that was compared, and of no other. Where no rank lacks anything, the restore
        need not be lenient, and so it may be over NCCL."""
        if self._agree is None or not self._agree(int(not missing)):
            flags |= _lib.CKPT_LENIENT
        self._progress.disturb(dry.step, "step %d is unfinished, because a restore of it has not ended" % dry.step)
        try:
            return self._handle.restore(dry.step, flags, timeout=self._timeout)
        except errors.NothingToRestore:
            self._progress.undo()  # then nothing has changed
            raise

    def _unfit(self) -> None:
        with contextlib.suppress(errors.CkptdError):
            self._training.unfit()

    def _nothing(self) -> Restored:
        self._restored = True
        if self._training.materialised:
            _told.tell(
                "nothing for meta",
                "there is nothing to restore, and the model was on the meta device: its memory is zero, initialise it before "
                "the first step",
            )
        return Restored.of(0)

    def _ready(self, flags: int) -> bool:
        """Is there a daemon, and has every rank sealed? False: there is no daemon, and nothing to restore either."""
        if self._seal(self._timeout):
            return True
        if not self._session.no_daemon:
            raise errors.error("restore", errno.ETIMEDOUT, self._session.why)
        if not self._training.store_may_have_steps():
            self._unsaved("detached", 0, errors.error("restore", errno.ECONNREFUSED, self._session.why))
            return False
        raise errors.error(
            "restore",
            errno.ECONNREFUSED,
            "%s\nThe store may have steps of this job: start ckptd, or training would begin anew at step 0"
            % self._session.why,
        )

    def _compare(self, step: Optional[int], flags: int, strict: bool) -> Tuple[_lib.Got, _Names, _Names]:
        """What checkpoint and program do not have both, by a restore that only checks. NotFitting, NothingToRestore."""
        dry = self._handle.restore(step, flags | _lib.CKPT_DRY_RUN | _lib.CKPT_LENIENT, timeout=self._timeout)
        missing, unused = self._unmatched(dry.step)
        self._judge(missing, unused, strict, "step %d: " % dry.step)
        return dry, missing, unused

    def _unmatched(self, step: int) -> Tuple[_Names, _Names]:
        assert self._blobs is not None
        found = [t for t in self._handle.unmatched() if not t.blob]
        missing = {t.key for t in found if t.what == _lib.CKPT_MISSING}
        unused = {t.key for t in found if t.what == _lib.CKPT_UNUSED and not t.component.startswith("ema.")}
        lack, over = self._blobs.extras.unmatched(self._handle, step)
        return tuple(sorted(missing) + lack), tuple(sorted(unused) + over)

    @staticmethod
    def _judge(missing: Sequence[str], unused: Sequence[str], strict: bool, before: str) -> None:
        lines = ["%s: the program has it, and the checkpoint lacks it" % key for key in missing]
        lines += ["%s: the checkpoint has it, and the program lacks it" % key for key in unused]
        if not lines:
            return
        if strict:
            head = before + "checkpoint and program differ in %d names (strict=False restores the others):" % len(lines)
            raise errors.error("restore", errno.EMEDIUMTYPE, "\n".join([head] + lines))
        text = "%scheckpoint and program differ in %d names, and the others are restored (strict=False): %s"
        _told.tell("names", text % (before, len(lines), _arguments.names(lines)), own=True)

    # ---- steps ----

    def step(
        self, step: int, *, loss: Any = None, notes: Optional[Mapping[str, Any]] = None, persist: Optional[bool] = None
    ) -> ContextManager[Any]:
        """The part of a training step that changes the state: `with run.step(n, loss=loss): optim.step()`.

        step: the number that the state has afterwards; it must grow. loss, notes: numbers, or tensors of one element,
        that `ckptctl show` prints; averages may use the loss. persist: True writes this step to the store, False keeps
        it in memory only, None leaves it to persist_every. On entry it waits for the copy of the step before, if that
        is late (guard=). On exit the snapshot is taken, in microseconds.

        An exception that ends the block leaves the state unfinished: nothing marks it until a block ends without one,
        or a restore succeeds. An exception of the exit itself (strict=True) comes after the state was finished.

        Preempted: the job was told to stop (on_signal); this step was its last one. Superseded: another run has the job;
        or this one attached beside another (attach, takeover), and has to restore again.
        """
        return _Step(self, _arguments.number("step", step, 0), loss, notes, persist)

    def _enter(self, step: int, persist: Optional[bool]) -> bool:
        """The block of this step is about to begin. Is a snapshot of it wanted?"""
        self._outside("step")
        if step <= self._progress.finished:
            raise ValueError(
                "step %d was entered after step %d: steps must grow (restore goes back)"
                % (step, self._progress.finished)
            )
        self._say_notices()
        self._guard()
        self._thread = threading.get_ident()
        self._training.heard.enter()
        self._last = bool(self._handle.last(step))
        return bool(self._last or persist or step % self._every == 0)

    def _guard(self) -> None:
        """The state is about to change, or to be marked anew."""
        taken = self._progress.taken
        if self._handle.guard() == _lib.CKPT_TORN:
            self._progress.came_to_nothing(taken)
            self._outcomes.passing("torn", taken, str(self._error(errno.ENOENT, "")))

    def _give_up(self) -> None:
        """An exception ended the block: the state may be half of the step, so no snapshot is taken of it."""
        step, wanted = self._progress.inside, self._progress.give_up()
        assert step is not None
        log.debug("step %d was ended by an exception: no snapshot is taken of it", step)
        if wanted and self.world > 1:
            text = "step %d was ended by an exception on rank %d: no rank saves it" % (step, self.rank)
            _told.tell("block", text, own=True)
            self._refuse(step)

    def _refuse(self, step: int) -> None:
        """This rank has no state for the step: the others, which may have marked it, give their copies of it up."""
        with contextlib.suppress(errors.CkptdError):
            self._handle.snapshot(step, _lib.CKPT_REFUSE)

    def _fetch(self, loss: Any, notes: Optional[Mapping[str, Any]]) -> Tuple[Any, Optional[Mapping[str, Any]]]:
        """Loss and notes; the copies of those that are on a device have begun."""
        if not self._training.devices or self._training.devices.capturing():
            return loss, notes
        return _cuda.fetch(loss), {key: _cuda.fetch(value) for key, value in (notes or {}).items()}

    def _leave(self, step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]) -> None:
        if self._training.devices.capturing():
            self._captured(step)
            return
        self._progress.leave()  # the first thing: whatever fails from here on, the state is whole
        self._training.heard.leave()
        self._notes = {}
        # The library keeps rank 0's only. In host memory those of another rank are not even looked at. On a device all
        # ranks wait for them: one that runs further ahead would mark steps before the copy of the last one has ended.
        self._given = (loss, notes) if self._handle.rank == 0 or self._training.devices else None
        if not self._training.devices:
            self._notes_now()
        if self._progress.due != step:
            return
        flags = _lib.CKPT_FINAL if self._last else 0
        if persist is not None and not self._last:
            flags = _lib.CKPT_PERSIST if persist else _lib.CKPT_STAGE_ONLY
        self._snapshot(step, flags, self._left() if self._last else None)
        if self._last:
            self._end(step)

    def _notes_now(self) -> Mapping[str, float]:
        """The notes of the newest step. What is on a device is waited for at a mark only."""
        given, self._given = self._given, None
        if given is not None:
            self._notes = _arguments.notes_of(*given)
        return self._notes

    def _captured(self, step: int) -> None:
        """The step was captured into a CUDA graph, and not made: all ranks skip it, and it can be entered again."""
        self._progress.undo()
        self._refuse(step)
        self._outcomes.passing("skipped", step, _cuda.CAPTURED)

    def _snapshot(self, step: int, flags: int, wait: Optional[float] = None) -> bool:
        """Mark the state as that of this step. False: nothing was taken, which has been counted and said. wait: seconds
        at most for other ranks' declarations, and as many for a slot (CKPT_FINAL); None: the defaults."""
        first = not any(self._outcomes.count.values())
        self._standstill_say()
        self._standstill.marked(time.monotonic(), step, _PERSIST.get(flags))
        notes = self._notes_now()
        assert self._blobs is not None
        try:
            problem = self._follow(step)
            if problem is not None:
                self._handle.snapshot(step, _lib.CKPT_REFUSE)
                kind, why = problem
                code = errno.EFAULT if kind == "unmarked" else errno.EINVAL
                self._unsaved(kind, step, errors.error("snapshot", code, why))
                return False
            failed = self._collect()
            if failed is not None:
                flags = _lib.CKPT_REFUSE
            if not self._session.ready:
                self._seal_again(self._timeout if wait is None else min(wait, self._timeout))
            if flags & _lib.CKPT_FINAL:
                self._training.devices.settle()  # the copy of the step before ends there, and makes room for this one
            self._progress.marking()
            rc = self._handle.snapshot(step, flags, notes, None if wait is None else min(wait, SLOT_MAX))
        except errors.NotRestorable as e:
            self._progress.came_to_nothing(step)
            if first and not self._restored:  # the program should hear of it at its first step, not after a week
                raise
            self._unsaved("refused", step, e)
            return False
        except errors.Superseded:  # no step of this run is ever saved again
            self._progress.came_to_nothing(step)
            raise
        except errors.CkptdError as e:
            self._progress.came_to_nothing(step)
            self._unsaved("refused", step, e)
            return False
        if failed is not None:
            self._progress.came_to_nothing(step)
            self._unsaved("extra", step, failed)
            return False
        return self._judge_mark(step, rc)

    def _follow(self, step: int) -> Optional[Tuple[str, str]]:
        """Why no snapshot may be taken of this step: its kind, and a sentence. What the program has made of its state must
        not end the training."""
        try:
            problem = self._training.follow(step)
            return ("unmarked", problem) if problem else self._training.heard.problem(step)
        except errors.CkptdError:
            raise
        except Exception as e:
            log.debug("the training state cannot be collected", exc_info=True)
            text = "the training state cannot be collected: %s: %s\nNo rank saves this step" % (type(e).__name__, e)
            return "unmarked", text

    def _collect(self) -> Optional[errors.ExtraError]:
        """The extras for this snapshot. If it returns something, the step is to be refused."""
        assert self._blobs is not None
        try:
            self._blobs.collect()
        except errors.ExtraError as e:
            return e
        return None

    def _seal_again(self, timeout: float) -> None:
        """Something was declared since. If the others did not come in time once, a step waits no longer for them."""
        if self._seal(min(timeout, RETRY) if self._wait_said else timeout):
            self._wait_said = False
            _told.ended("waits")
        else:
            self._say_wait()

    def _say_wait(self) -> None:
        """A seal was not ready in time: other ranks are missing."""
        if not self._session.no_daemon and not self._wait_said:
            self._wait_said = True
            text = "no step is saved until all ranks are there: %s" % self._session.why
            _told.tell("waits", text, errors.NotSaving, own=True)

    def _judge_mark(self, step: int, rc: int) -> bool:
        if rc in (0, _lib.CKPT_FAILING):
            self._progress.marked()
            self._outcomes.taken(step)
            if rc == _lib.CKPT_FAILING:
                self._unsaved("failing", step, self._error(errno.EIO, "steps cannot be written"))
            else:
                _told.ended("failing")
            return True
        self._progress.came_to_nothing(step)
        if rc == _lib.CKPT_DETACHED:
            self._unsaved("detached", step, self._error(errno.ECONNREFUSED, "no daemon is attached"))
        else:
            self._outcomes.passing("skipped", step, str(self._error(errno.ENOENT, "")))
        return False

    def _unsaved(self, kind: str, step: int, error: errors.CkptdError) -> None:
        self._outcomes.unsaved(kind, step, error, self._committed_said())

    def _committed_said(self) -> str:
        step = self._committed()
        return "The newest committed step is %d" % step if step else "No step is committed yet"

    def _standstill_say(self) -> None:
        """Rank 0 tells it if all ranks together have saved nothing for long."""
        if self.rank != 0 or self._progress.due < 0:
            return
        what = self._standstill.asked(time.monotonic(), self._handle.committed())
        if what is None or self._outcomes.warned:
            return
        why = str(self._handle.why() or self._lost or "ckptd still writes the steps before")
        text = "the last %d marked steps came to nothing, and training continues" % MARKS_MAX
        if what == "commits":
            text = "no step was committed for %.0f s, and training continues" % COMMIT_MAX
        todo = next(do for word, do in _TODO if word in why)
        _told.tell(
            "standstill: " + what,
            "%s: %s\n%s. `ckptctl status` prints what ckptd does and what it waits for. %s"
            % (text, why, self._committed_said(), todo),
            errors.NotSaving,
        )

    def _fate(self, step: int) -> Optional[bool]:
        """Was it staged? None: it is on the way."""
        try:
            self._handle.wait(step, _lib.CKPT_STAGED, 0.0)
            return True
        except errors.TimedOut:
            return None
        except errors.CkptdError as e:
            self._lost = e
            return False

    def _error(self, code: int, text: str) -> errors.CkptdError:
        """What ckpt_why says, or this."""
        return self._handle.why() or errors.error("wait", code, text)

    def _end(self, step: int) -> None:
        """The job was told to stop, and this step is its last one: wait until it is committed, and raise Preempted."""
        committed = False
        if self._progress.taken == step:
            try:
                self._handle.wait(step, _lib.CKPT_COMMITTED, self._left())
                committed = True
            except errors.CkptdError as e:
                text = "step %d is the last one, and is not committed: %s" % (step, e)
                _told.tell("last", text, errors.NotSaving)
        raise errors.Preempted(step, committed)

    def _left(self) -> float:
        """Seconds until a signal's grace ends."""
        return self._signals.left() if self._signals is not None else WITHIN

    def _seal(self, timeout: float) -> bool:
        return self._session.seal(timeout)

    def _say_notices(self) -> None:
        for notice in self._handle.notices():
            _told.tell_line(notice.text)

    def _dropped(self, _: Any) -> None:
        """The object of a step is no more. If its block had not ended, nothing will end it."""
        if self._progress.inside is not None and self._progress.block is None:
            text = "step %d was entered and never left, because its object was dropped: write `with run.step(n):`. The " \
                   "state is unfinished, and not saved until a block ends"  # fmt: skip
            _told.tell("dropped", text % self._progress.inside, errors.NotSaving, own=True)

    def _outside(self, call: str) -> None:
        """Raise if this call cannot be made now."""
        inside = self._progress.inside
        if inside is not None:
            block = self._progress.block
            if block is not None and not block.has_ended():
                raise RuntimeError("%s was called inside of step %d: leave the step first" % (call, inside))
            self._give_up()
        if self._averaging:
            raise RuntimeError("%s was called while the average %r is in the model" % (call, self._averaging))
        if self._lent is not None:
            self._take_back(self._lent)
        if not self._handle.attached:
            self._handle.guard()  # raises what is wrong: Detached, ForkedError
        self._disown()

    def _disown(self) -> None:
        """If an optimizer has changed the state and no guard could be called: what is marked is never written."""
        if self._training.heard.unguarded:
            self._refuse(self._progress.finished + 1)  # a mark without a guard before it
            self._training.heard.unguarded = False

    # ---- waiting ----

    def wait(self, state: str = "committed", timeout: float = WAIT_MAX) -> int:
        """Wait until the newest snapshot is "staged", "persisted" or "committed". Returns its step; 0 if there was
        none.

        All ranks call it, and change nothing until it returns. If that snapshot was skipped or torn, it is taken again,
        of the state as it is, if that is still of the same step; if the state is unfinished (step), it waits for the
        newest step that was taken. If another rank is unfinished, so that the step cannot be taken, it raises within
        about a minute after that rank has ended, or after `timeout`. If persist_every keeps it in memory, the newest
        committed step is returned: the daemon writes what is staged when the job ends. timeout: seconds. TimedOut,
        NotSaved, NoDaemon.
        """
        wanted = _arguments.one_of("state", state, _arguments.STATES)
        if threading.get_ident() != self._thread:
            return self._wait_beside(wanted, timeout)
        self._outside("wait")
        progress = self._progress
        if progress.due < 0:
            return max(progress.finished, 0)
        self._settle()
        until = time.monotonic() + timeout
        while True:
            if progress.taken != progress.due and not progress.unfinished:
                self._take_again(until - time.monotonic())
            step = progress.taken
            if step < 0:
                return self._committed()
            try:
                self._handle.wait(step, wanted, max(until - time.monotonic(), 0.0))
                return step
            except errors.NotSaved as e:
                if e.errno != errno.ENOENT or time.monotonic() > until:
                    raise
                if wanted != _lib.CKPT_STAGED and self._is_staged(step):
                    log.info("step %d stays in memory until the job ends (persist_every): %s", step, e)
                    return self._committed()
                progress.came_to_nothing(step)

    def _wait_beside(self, wanted: int, timeout: float) -> int:
        """wait in another thread than that of the steps, which may change the state at any time: nothing is marked
        here."""
        step = self._progress.taken
        if step < 0:
            return max(self._progress.finished, 0)
        self._handle.wait(step, wanted, timeout)
        return step

    def _settle(self) -> None:
        """Did the library take the newest step? An exception (Ctrl-C) may have come just before its call, or after."""
        step = self._progress.taken
        if not self._progress.doubtful:
            return
        try:
            self._handle.wait(step, _lib.CKPT_STAGED, 0.0)
        except errors.TimedOut:
            pass
        except errors.CkptdError:
            self._progress.came_to_nothing(step)
            return
        self._progress.marked()
        self._outcomes.taken(step)

    def _committed(self) -> int:
        """The newest committed step, as far as this launch knows; 0 if there is none."""
        restored, step = self._progress.restored_step, self._handle.stats().last_committed_step
        return step if restored < step <= self._progress.finished else max(restored, 0)

    def _take_again(self, wait: float) -> None:
        """The newest snapshot came to nothing: take it once more, if the state is still of its step. NotSaved,
        NoDaemon."""
        step = self._progress.due
        if self._progress.step != step:
            text = "step %d was not saved (%s), and the state is of step %d now" % (
                step,
                self._error(errno.ENOENT, ""),
                self._progress.finished,
            )
            raise errors.error("wait", errno.EIO, text)
        log.info("the snapshot of step %d came to nothing, and is taken again", step)
        self._take(step, wait)

    def _take(self, step: int, wait: float) -> None:
        """Mark the state, which is of this step, and wait so many seconds at most for memory to copy it to. NotSaved,
        NoDaemon."""
        self._progress.want()
        self._guard()
        if not self._snapshot(step, _lib.CKPT_FINAL, wait):
            why = self._error(errno.EIO, "the snapshot was not taken")
            raise why if why.errno != errno.ENOENT else errors.error("wait", errno.EIO, str(why))

    def _is_staged(self, step: int) -> bool:
        try:
            self._handle.wait(step, _lib.CKPT_STAGED, 0.0)
            return True
        except errors.CkptdError:
            return False

    def save(self, wait: bool = True, timeout: float = WAIT_MAX) -> int:
        """Save the state as it is now, whatever every= and persist_every= say; return its step. All ranks call it.

        wait: until it is committed. ValueError: no step was left yet. NotSaved: the state is unfinished (step); or it
        could not be taken; or it was taken before, and persist_every keeps it in memory. TimedOut, NoDaemon.
        """
        self._outside("save")
        if self._progress.unfinished:
            raise self._progress.refusal()
        step = self._progress.step
        if step is None:
            raise ValueError("save was called before the first step: there is no step number to save the state under")
        if step == self._progress.restored_step:
            return step
        until = time.monotonic() + timeout
        self._settle()
        if self._progress.taken != step:
            self._take(step, timeout)
        if wait and self.wait("committed", max(until - time.monotonic(), 0.0)) != step:
            text = "step %d is in memory only, because of persist_every: use run.step(..., persist=True)" % step
            raise errors.error("wait", errno.ENOENT, text)
        return step

    # ---- optimizers ----

    def replace_optimizer(self, old: Any, new: Any) -> None:
        """From now on the state of the optimizer `new` is saved and restored, and that of `old` no longer. All ranks call
        it alike, outside of a step.

        old: one that attach was given. new: another one, of parameters of the model; what it has not made of its state is
        made. An object of `extra` that has `old` in it, as a scheduler has, must be given `new` by the program.

        InvalidCall: old is not attached; or the state of other optimizers would get other names. TypeError: new is no
        optimizer, or has parameters that are not of the model (UnsupportedState lists them). AlreadyAttached: new is.
        Whatever fails, nothing has changed.
        """
        self._outside("replace_optimizer")
        if new in _attached:
            text = "this %s is attached already" % type(new).__name__
            raise errors.error("replace_optimizer", errno.EBUSY, text)
        self._training.replace_optimizer(old, new, self._progress.finished)
        assert self._blobs is not None
        self._blobs.extras.replace_optimizer(old, new)
        _attached.pop(old, None)
        _attached[new] = self
        self._seal(self._timeout)

    # ---- averages ----

    @contextlib.contextmanager
    def averaged(self, name: str) -> Iterator[int]:
        """Put an average of the weights (attach's averages=) into the model, and the raw weights back at the end.

        It is that of the newest step which has one; `with run.averaged("fast") as step:` gives the number. All ranks
        call it alike. In place and bit for bit: parameters stay the same objects. No step may be entered meanwhile.
        NothingToRestore: no step has this average yet. KeyError: attach was given no such average.
        """
        self._outside("averaged")
        if name not in self._specs:
            raise KeyError("no average %r: attach was given %s" % (name, _arguments.names(self._specs) or "none"))
        average = self._average(name)
        if self._progress.taken >= 0:  # its copy need not be given up
            with contextlib.suppress(errors.CkptdError):
                self._handle.wait(self._progress.taken, _lib.CKPT_STAGED, self._timeout)
        self._guard()
        got = self._handle.restore(None, _lib.CKPT_PEEK, average.component, timeout=self._timeout)
        reshard(self._training.modules)
        self._progress.disturb(self._progress.finished, "the average %r is in the place of some weights" % name)
        self._lent = average
        try:
            average.enter(self._training.state.entries)
            self._averaging = name
            yield got.step
        finally:
            self._averaging = ""
            self._take_back(average)

    def _take_back(self, average: _averaged.Average) -> None:
        """Put the weights back that an average has. If an exception (Ctrl-C) comes, the next call goes on with it."""
        reshard(self._training.modules)  # what was gathered are averages
        average.leave()
        self._lent = None
        self._progress.undo()

    def _average(self, name: str) -> _averaged.Average:
        """The average, declared and sealed on all ranks."""
        known = self._averages.get(name)
        entries = self._training.state.entries
        if known is not None and known.stale(entries):
            known.drop(self._session)
            known = None
        if known is None:
            known = self._averages[name] = _averaged.Average(name, self._specs[name], entries)
        known.declare(self._session)
        if not self._seal(self._timeout):
            raise errors.error("seal", errno.ETIMEDOUT, self._session.why)
        return known

    def _averages_drop(self) -> None:
        """A restore fills what is declared: averages are not a part of it."""
        for average in self._averages.values():
            average.drop(self._session)

    # ---- the end ----

    def on_signal(self, number: int, within: float = WITHIN) -> None:
        """Stop the job, on all ranks after the same step, when this signal arrives (SIGTERM, SIGUSR1). Main thread
        only.

        The handler sets a flag. The step that follows is saved as the last one, run.step waits until it is committed,
        at most as long as is left of `within` seconds after the signal, and raises Preempted. One rank that got the
        signal is enough. A forked child (a data loader's worker) does with the signal what it would have done without
        this call.
        """
        self._outside("on_signal")
        if self._signals is None:
            self._signals = Signals(self._handle.stop)
        self._signals.install(number, within)

    def fresh(self) -> None:
        """Start over although the job has steps: the first commit sets them aside, and removes none. One rank is
        enough."""
        self._outside("fresh")
        self._handle.fresh()
        self._restored = True

    def stats(self) -> Dict[str, Any]:
        """Counters since attach: those of the library (ckpt_stats), and "outcomes", which this rank's steps had."""
        return dict(dataclasses.asdict(self._handle.stats()), outcomes=dict(self._outcomes.count))

    def detach(self, drain: float = 0.0) -> None:
        """End the run. The state stays where it is and can be used. drain: seconds to wait until the newest step is
        committed.

        Without drain the daemon writes what is staged. TimedOut: the time ran out; the run is detached all the same.
        """
        if self._signals is not None:
            self._signals.remove()
        self._training.heard.close()
        self._disown()
        if self._handle.attached:
            self._say_notices()
            self._standstill_say()
        for what, run in list(_attached.items()):
            if run is self:
                del _attached[what]
        try:
            self._handle.detach(drain)
        finally:
            self._training.close()
            self._teller.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: Any) -> None:
        self.detach()


def _all_damaged(last: errors.CkptdError, tried: Mapping[Tuple[int, int], errors.CkptdError]) -> errors.CkptdError:
    lines = ["step %d: %s" % (step, e) for (step, _), e in tried.items()]
    text = "%s\nmemory is undefined, because steps were tried that cannot be restored:\n%s" % (last, "\n".join(lines))
    return errors.error("restore", errno.EBADMSG, text)


def _half_restored(e: errors.ExtraError, restored: Restored) -> errors.ExtraError:
    """What is restored, and what is not, as one who has to go on needs it."""
    said = errors.ExtraError(
        errno.EINVAL,
        "%s\nThe tensors of step %d are restored. Of the extras, %s; %s may have taken half of its state; %s. Restore "
        "again, or put right what is not restored and enter step %d or a later one: until then nothing is saved"
        % (
            e,
            restored,
            "restored: " + ", ".join(e.loaded) if e.loaded else "none is restored",
            e.name,
            "as before: " + ", ".join(e.untried) if e.untried else "there are no others",
            restored + 1,
        ),
    )
    said.name, said.restored, said.loaded, said.untried = e.name, restored, e.loaded, e.untried
    return said


def _make_way(objects: Sequence[Any], here: Tuple[Any, ...], replace: bool) -> None:
    """Runs of this process that have one of these objects, or are this rank of the job, are detached. Without replace:
    AlreadyAttached names the first."""
    for run in [run for run in _runs if run._handle.attached]:
        shared = [what for what in objects if _attached.get(what) is run]
        if not shared and run._here != here:
            continue
        if not replace:
            text = "%s is attached already in this process, as rank %d of job %s in %s, %s: give attach replace=True to detach " \
                   "that run first, or call its detach()"  # fmt: skip
            what = "this %s" % type(shared[0]).__name__ if shared else "rank %d of job %s" % (run.rank, run._handle.job)
            now = "at step %d" % run._progress.finished if run._progress.finished >= 0 else "before its first step"
            raise errors.error("attach", errno.EBUSY, text % (what, run.rank, run._handle.job, run._training.store, now))
        run.detach()


def attach(
    model: Any,
    optim: Any = None,
    *,
    store: Optional[Union[str, "os.PathLike[str]"]],
    job: Optional[str],
    extra: Optional[Mapping[str, Any]] = None,
    averages: Optional[Mapping[str, str]] = None,
    masters: Optional[Mapping[Any, Any]] = None,
    every: int = 1,
    persist_every: int = 1,
    slots: int = 0,
    memory: str = "alloc",
    strict: bool = False,
    guard: str = "bounded",
    rank: Optional[int] = None,
    world: Optional[int] = None,
    ranks: Optional[Sequence[int]] = None,
    generation: Optional[int] = None,
    takeover: bool = False,
    foreign_owner: bool = False,
    socket: Optional[str] = None,
    memory_max: int = 0,
    check: int = 0,
    copy_rate: int = 0,
    nccl: bool = False,
    keep_last: int = 0,
    keep_every: int = 0,
    keep_within: Optional[str] = None,
    keep_best: Optional[Union[str, Sequence[str]]] = None,
    replace: bool = False,
    timeout: float = 60.0,
) -> Run:
    """Attach this rank's training state to the daemon. All ranks call it, after the model is sharded, before the first
    step.

    model: a module, or a sequence of them (the parts of a pipeline). optim: an optimizer, or several. Parameters on the
    meta device get memory, filled with zeros. Optimizer state that the first step would make is made.
    store, job: the directory of checkpoints, which is made if it is missing, and the job's name in it. extra: other
    objects to save, by name (_extra).
    averages: name -> spec of averages of the weights (ckpt_average). masters: parameter or name -> its FP32 master.
    every: a snapshot of each n-th step. persist_every: each n-th snapshot is written to the store, the others stay in
    memory. slots: host copies per rank, 2 to 4; 0 chooses. memory: "alloc" moves the state, in place, into memory that
    the daemon reads; "foreign" leaves it, and a thread copies it. strict: what prevents saving is an exception, not a
    warning. guard: how long a step may wait for the copy of the step before: "bounded" (2 ms, or 0.5 % of a step),
    "never", "finish". rank, world, generation: None: from the launcher's environment. ranks: those that hold the plain
    tensors of this rank, all alike, itself among them: the ranks of its pipeline stage. None: the stage that the mesh
    of DTensors has, or all ranks. memory_max: bytes that the copies may take; 0: no limit. check: ckpt_opts.check.
    copy_rate: bytes per second that are copied out of a GPU; 0 spreads the copies over the time of a step, 2**64 - 1
    is as fast as they go. nccl: restore reads once what several ranks hold on CUDA devices, and spreads it over NCCL;
    the ranks are those of torch.distributed, and all of them say so. replace: detach the run of this process that has
    one of these objects, or is this rank of the job: so a cell of a notebook can run again.
    takeover: if another run of the job lives, and marks steps, attach beside it; the first step that this run marks ends
    it. foreign_owner: attach also if the job's directory belongs to another user.
    keep_last, keep_every, keep_within, keep_best: which steps stay on disk: the newest n; those that are multiples of n;
    those younger than "36h"; the one with the lowest "loss", or the highest "accuracy:max", or several of these. Any of
    them makes it the policy of the job, as `ckptctl keep` does, and ckptd removes the other steps. None: the policy
    stays as it is, and a job without one keeps all.
    timeout: seconds to wait for the other ranks.

    Attaching and restoring do not disturb a run of the job that lives: beside one that has marked steps it is
    AlreadyAttached, which names its process, its newest step and the age of that, unless takeover is set, or this is a
    restart by the same launcher. The first step of a run that attached beside another one (takeover) is Superseded if
    that has committed a step since this run restored: restore again.

    TypeError, ValueError: an argument, the store too, or state that cannot be saved (UnsupportedState lists it).
    NotSupported: state that is neither in host memory nor on a CUDA device. AlreadyAttached, Superseded, NotPermitted.
    Whatever fails, the model stays usable, and nothing is attached.
    """
    if not isinstance(averages or {}, Mapping):
        raise TypeError("averages is a %s: it must be a dict, name -> spec" % type(averages).__name__)
    how = _arguments.one_of("guard", guard, _arguments.GUARDS)
    _arguments.one_of("memory", memory, {"alloc": 0, "foreign": 1})
    every, persist_every = _arguments.number("every", every, 1), _arguments.number("persist_every", persist_every, 1)
    modules, optims = _arguments.modules_of(model), _state.optimizers_of(optim)
    devices = _arguments.devices_of(modules, optims)
    place = launch(rank, world)
    store = _arguments.store_of(store)
    here = (store, job or os.environ.get("CKPTD_JOB", ""), place.rank, generation)
    _make_way([*modules, *optims], here, replace)
    ranks = _arguments.ranks_of(ranks, place.rank, place.world)
    teller = _told.begin(place.rank, place.token, store, job, generation)
    flags = _lib.CKPT_AUTOSTART | _lib.CKPT_USE_ENV | _lib.CKPT_KEEP_MEMORY | (_lib.CKPT_REQUIRE if strict else 0)
    agree = together(place.rank, place.world, bool(devices), timeout) if nccl else None
    flags |= _lib.CKPT_NCCL if agree else 0
    flags |= (_lib.CKPT_TAKEOVER if takeover else 0) | (_lib.CKPT_FOREIGN_OWNER if foreign_owner else 0)
    handle = _lib.Handle.attach(
        store=store, job=job, rank=place.rank, world=place.world, socket=socket, generation=generation or 0,
        launch=place.token, token=place.everywhere, run=place.run, restart=place.restart, slots=slots,
        persist_every=persist_every, guard=how, memory_max=memory_max, check=check, timeout=min(timeout, 20.0), flags=flags,
        device=devices.option, copy_rate=copy_rate, agree=agree,
        keep_last=keep_last, keep_every=keep_every, keep_within=keep_within, keep_best=_arguments.joined(keep_best),
    )  # fmt: skip
    try:
        training = Training(handle, model, optim, masters, memory, (store, job), ranks, devices)
        run = Run(handle, training, Outcomes(strict), teller, persist_every=persist_every, every=every, timeout=timeout,
                  averages=averages or {}, agree=agree)  # fmt: skip
        run._begin(extra)
    except BaseException:
        with contextlib.suppress(errors.CkptdError):
            handle.detach()
        raise
    for what in (*modules, *optims):
        _attached[what] = run
    run._here = here
    _runs.add(run)
    return run
