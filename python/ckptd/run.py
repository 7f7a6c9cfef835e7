# SPDX-License-Identifier: Apache-2.0
"""attach() and Run: what a training program calls. docs/PYTORCH.md is the manual.

A run is one rank. All ranks of the job call attach, restore, save, averaged and detach alike, as they call collectives;
no collective of torch is ever called. Nothing is printed: messages go to logging.getLogger("ckptd"), and warnings are
those of `errors`.

Invariant: between the entry and the exit of a step, and nowhere else, the program changes the state; a snapshot is
taken of a state that the whole step has made, or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import threading
import time
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, Union

from . import _arguments, _averaged, _cuda, _lib, _state, errors
from ._blobs import Blobs, extras_of
from ._extra import ExtraError
from ._launch import launch
from ._outcome import Outcomes, warn
from ._signals import Signals
from ._together import together
from ._training import Training, reshard

log = logging.getLogger("ckptd")

WAIT_MAX = 3600.0  # seconds: how long wait and save wait unless they are told otherwise
WITHIN = 25.0  # seconds from a signal to SIGKILL, unless on_signal is told otherwise: torchrun leaves 30
DRIFTED = "have drifted apart"  # in the library's line about replicas that are not equal
RETRY = 0.05  # seconds that a step waits for a seal which was not ready in `timeout` before

_attached: "weakref.WeakKeyDictionary[Any, Run]" = weakref.WeakKeyDictionary()  # modules and optimizers


class Restored(int):
    """The step that Run.restore restored; 0 if there was nothing (then where is "nothing").

    missing: COMPONENT/NAME of tensors that the model has and the checkpoint lacks: they stay as they are. unused: those
    that the checkpoint has and the model lacks. Extras are blob/extra.NAME. passed: newer steps that were damaged, one
    a line. where: "memory", "disk" or "nothing".
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

    __slots__ = ("_run", "_step", "_loss", "_notes", "_persist", "__weakref__")

    def __init__(
        self, run: "Run", step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]
    ) -> None:
        self._run, self._step, self._loss, self._notes, self._persist = run, step, loss, notes, persist

    def __enter__(self) -> "_Step":
        self._run._enter(self._step, self)
        self._loss, self._notes = self._run._fetch(self._loss, self._notes)
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self._run._leave(self._step, self._loss, self._notes, self._persist)
        else:
            self._run._abandon(self._step)


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
        *,
        every: int,
        timeout: float,
        averages: Mapping[str, str],
        agree: Optional[Callable[[int], int]],
    ) -> None:
        """For attach only."""
        self._handle, self._training, self._outcomes = handle, training, outcomes
        self._session = training.session
        self._every, self._timeout, self._specs = every, timeout, dict(averages)
        self._agree = agree  # where restores are over NCCL
        self._blobs: Optional[Blobs] = None  # until _begin
        self._inside: Optional[int] = None  # the step that the program is in
        self._entered: Any = None  # a weak reference to what step() returned for it
        self._thread = threading.get_ident()  # of the newest step
        self._last = False  # it is the last one
        self._newest = -1  # the step that the state is of: left without an exception, or restored
        self._due = -1  # the newest step that a snapshot was wanted of
        self._notes: Mapping[str, float] = {}  # of the newest step
        self._given: Optional[Tuple[Any, Any]] = None  # loss and notes, while nobody needs their values
        self._taken = -1  # the newest step that the library took
        self._restored = False  # restore was called, and did not fail
        self._restored_step = -1
        self._wait_said = False
        self._averaging = ""  # the average that is in the model
        self._averages: Dict[str, _averaged.Average] = {}
        self._signals: Optional[Signals] = None

    def _begin(self, extra: Optional[Mapping[str, Any]]) -> None:
        """Declare everything, and seal. What fails here is an exception of attach."""
        self._training.begin()
        self._blobs = Blobs(self._session, extras_of(extra, self._training))
        self._blobs.declare(self._training.mesh())
        for name, spec in self._specs.items():
            self._handle.average(name, spec)
        self._seal(self._timeout)

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
        try:
            self._training.fit(step, flags)
            self._seal(self._timeout)
            missing, unused = self._compare(step, flags | kinds, strict)
            got = self._fill(step, flags | kinds, missing)
        except BaseException as e:
            with contextlib.suppress(errors.CkptdError):
                self._training.unfit()
            if step is None and isinstance(e, errors.NothingToRestore):
                return self._nothing()
            raise
        if got.npassed:  # another step than the one that was compared
            missing, unused = self._unmatched(got.step)
            self._judge(missing, unused, strict, "step %d is restored, because newer ones are damaged, and " % got.step)
        assert self._blobs is not None
        self._blobs.extras.load(self._handle, got)
        self._training.restored(got.step)
        self._newest = self._restored_step = got.step
        self._due = self._taken = -1
        self._restored = True
        where = {1: "memory", 2: "disk"}.get(got.where, "")
        return Restored.of(got.step, missing=missing, unused=unused, passed=got.passed, where=where)

    def _fill(self, step: Optional[int], flags: int, missing: Sequence[str]) -> _lib.Got:
        """Where no rank lacks anything, the restore need not be lenient, and so it may be over NCCL."""
        if self._agree is None or not self._agree(int(not missing)):
            flags |= _lib.CKPT_LENIENT
        return self._handle.restore(step, flags, timeout=self._timeout)

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
            "%s\nThe store may have steps of this job: start ckptd, or training would begin anew at step 0"
            % self._session.why,
        )

    def _compare(self, step: Optional[int], flags: int, strict: bool) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
        """What checkpoint and program do not have both, by a restore that only checks. NotFitting, NothingToRestore."""
        dry = self._handle.restore(step, flags | _lib.CKPT_DRY_RUN | _lib.CKPT_LENIENT, timeout=self._timeout)
        missing, unused = self._unmatched(dry.step)
        self._judge(missing, unused, strict, "step %d: " % dry.step)
        return missing, unused

    def _unmatched(self, step: int) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
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
        log.warning("%scheckpoint and program differ: %s", before, _arguments.names(lines))

    # ---- steps ----

    def step(
        self, step: int, *, loss: Any = None, notes: Optional[Mapping[str, Any]] = None, persist: Optional[bool] = None
    ) -> ContextManager[Any]:
        """The part of a training step that changes the state: `with run.step(n, loss=loss): optim.step()`.

        step: the number that the state has afterwards; it must grow. loss, notes: numbers, or tensors of one element,
        that `ckptctl show` prints; averages may use the loss. persist: True writes this step to the store, False keeps
        it in memory only, None leaves it to persist_every. On entry it waits for the copy of the step before, if that
        is late (guard=). On exit the snapshot is taken, in microseconds; after an exception it is not.

        Preempted: the job was told to stop (on_signal); this step was its last one.
        """
        return _Step(self, _arguments.number("step", step, 0), loss, notes, persist)

    def _enter(self, step: int, entered: _Step) -> None:
        self._outside("step")
        if step <= self._newest:
            raise ValueError(
                "step %d was entered after step %d: steps must grow (restore goes back)" % (step, self._newest)
            )
        self._say_notices()
        if self._handle.guard() == _lib.CKPT_TORN:
            self._outcomes.passing("torn", self._due, str(self._error(errno.ENOENT, "")))
        self._thread = threading.get_ident()
        self._last = bool(self._handle.last(step))
        self._inside, self._entered = step, weakref.ref(entered)

    def _abandon(self, step: int) -> None:
        """An exception ended the step: the state may be half of it, so no snapshot is taken."""
        self._inside = None
        log.debug("step %d was ended by an exception: no snapshot is taken of it", step)

    def _fetch(self, loss: Any, notes: Optional[Mapping[str, Any]]) -> Tuple[Any, Optional[Mapping[str, Any]]]:
        """Loss and notes; the copies of those that are on a device have begun."""
        if not self._training.devices or self._training.devices.capturing():
            return loss, notes
        return _cuda.fetch(loss), {key: _cuda.fetch(value) for key, value in (notes or {}).items()}

    def _leave(self, step: int, loss: Any, notes: Optional[Mapping[str, Any]], persist: Optional[bool]) -> None:
        self._inside = None
        if self._training.devices.capturing():
            self._captured(step)
            return
        self._newest, self._notes = step, {}
        # The library keeps rank 0's only. In host memory those of another rank are not even looked at. On a device all
        # ranks wait for them: one that runs further ahead would mark steps before the copy of the last one has ended.
        self._given = (loss, notes) if self._handle.rank == 0 or self._training.devices else None
        if not self._training.devices:
            self._notes_now()
        if not (self._last or persist or step % self._every == 0):
            return
        flags = _lib.CKPT_FINAL if self._last else 0
        if persist is not None and not self._last:
            flags = _lib.CKPT_PERSIST if persist else _lib.CKPT_STAGE_ONLY
        self._snapshot(step, flags)
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
        assert self._blobs is not None
        with contextlib.suppress(errors.CkptdError), self._blobs.refused():
            self._handle.snapshot(step)
        self._outcomes.passing("skipped", step, _cuda.CAPTURED)

    def _snapshot(self, step: int, flags: int) -> bool:
        """Mark the state as that of this step. False: nothing was taken, which has been counted and said."""
        first = self._due < 0
        self._due = step
        notes = self._notes_now()
        assert self._blobs is not None
        try:
            problem = self._follow(step)
            if problem:
                with self._blobs.refused():
                    self._handle.snapshot(step, flags)
                self._outcomes.unsaved("unmarked", step, errors.error("snapshot", errno.EFAULT, problem))
                return False
            self._collect(step)
            if not self._session.ready:
                self._seal_again()
            if flags & _lib.CKPT_FINAL:
                self._training.devices.settle()  # the copy of the step before ends there, and makes room for this one
            rc = self._handle.snapshot(step, flags, notes)
        except errors.NotRestorable as e:
            if first and not self._restored:  # the program should hear of it at its first step, not after a week
                raise
            self._outcomes.unsaved("refused", step, e)
            return False
        except errors.CkptdError as e:
            self._outcomes.unsaved("refused", step, e)
            return False
        return self._judge_mark(step, rc)

    def _follow(self, step: int) -> Optional[str]:
        """Why no snapshot may be taken of this step. What the program has made of its state must not end the
        training."""
        try:
            return self._training.follow(step)
        except errors.CkptdError:
            raise
        except Exception as e:
            log.debug("the training state cannot be collected", exc_info=True)
            return "the training state cannot be collected: %s: %s\nNo rank saves this step" % (type(e).__name__, e)

    def _collect(self, step: int) -> None:
        """The extras for this snapshot. One that fails makes the library skip the step on all ranks alike."""
        assert self._blobs is not None
        try:
            self._blobs.collect()
        except ExtraError as e:
            if self._outcomes.strict:
                raise
            self._outcomes.unsaved("extra", step, errors.error("snapshot", errno.EINVAL, str(e)))

    def _seal_again(self) -> None:
        """Something was declared since. If the others did not come in time once, a step waits no longer for them."""
        if self._seal(RETRY if self._wait_said else self._timeout):
            self._wait_said = False
        elif not self._session.no_daemon and not self._wait_said:
            self._wait_said = True
            log.warning("snapshots are skipped until all ranks have sealed: %s", self._session.why)

    def _judge_mark(self, step: int, rc: int) -> bool:
        if rc in (0, _lib.CKPT_FAILING):
            self._taken = step
            self._outcomes.taken(step)
            if rc == _lib.CKPT_FAILING:
                self._outcomes.unsaved("failing", step, self._error(errno.EIO, "steps cannot be written"))
            return True
        if rc == _lib.CKPT_DETACHED:
            self._outcomes.unsaved("detached", step, self._error(errno.ECONNREFUSED, "no daemon is attached"))
        else:
            self._outcomes.passing("skipped", step, str(self._error(errno.ENOENT, "")))
        return False

    def _error(self, code: int, text: str) -> errors.CkptdError:
        """What ckpt_why says, or this."""
        return self._handle.why() or errors.error("wait", code, text)

    def _end(self, step: int) -> None:
        """The job was told to stop, and this step is its last one: wait until it is committed, and raise Preempted."""
        left = self._signals.left() if self._signals is not None else WITHIN
        committed = False
        if self._taken == step:
            try:
                self._handle.wait(step, _lib.CKPT_COMMITTED, left)
                committed = True
            except errors.CkptdError as e:
                log.warning("step %d is the last one, and is not committed: %s", step, e)
        raise errors.Preempted(step, committed)

    def _seal(self, timeout: float) -> bool:
        return self._session.seal(timeout)

    def _say_notices(self) -> None:
        for notice in self._handle.notices():
            if DRIFTED in notice.text:
                warn(errors.ReplicasDrifted, notice.text)

    def _outside(self, call: str) -> None:
        """Raise if this call cannot be made now."""
        if self._inside is not None and self._entered() is None:  # Ctrl-C came between our entry and the block
            self._abandon(self._inside)
        if self._inside is not None:
            raise RuntimeError("%s was called inside of step %d: leave the step first" % (call, self._inside))
        if self._averaging:
            raise RuntimeError("%s was called while the average %r is in the model" % (call, self._averaging))
        if not self._handle.attached:
            self._handle.guard()  # raises what is wrong: Detached, ForkedError

    # ---- waiting ----

    def wait(self, state: str = "committed", timeout: float = WAIT_MAX) -> int:
        """Wait until the newest snapshot is "staged", "persisted" or "committed". Returns its step; 0 if there was
        none.

        All ranks call it, and change nothing until it returns. If that snapshot was skipped or torn, it is taken again,
        of the state as it is, if that is still of the same step. If persist_every keeps it in memory, the newest
        committed step is returned: the daemon writes what is staged when the job ends. timeout: seconds. TimedOut,
        NotSaved, NoDaemon.
        """
        wanted = _arguments.one_of("state", state, _arguments.STATES)
        if threading.get_ident() != self._thread:
            return self._wait_beside(wanted, timeout)
        self._outside("wait")
        if self._due < 0:
            return max(self._newest, 0)
        until = time.monotonic() + timeout
        while True:
            try:
                if self._taken != self._due:
                    self._take_again()
                self._handle.wait(self._due, wanted, max(until - time.monotonic(), 0.0))
                return self._due
            except errors.NotSaved as e:
                if e.errno != errno.ENOENT or time.monotonic() > until:
                    raise
                if wanted != _lib.CKPT_STAGED and self._is_staged():
                    log.info("step %d stays in memory until the job ends (persist_every): %s", self._due, e)
                    return self._handle.stats().last_committed_step
                self._taken = -1

    def _wait_beside(self, wanted: int, timeout: float) -> int:
        """wait in another thread than that of the steps, which may change the state at any time: nothing is marked
        here."""
        step = self._taken
        if step < 0:
            return max(self._newest, 0)
        self._handle.wait(step, wanted, timeout)
        return step

    def _take_again(self) -> None:
        """The newest snapshot came to nothing: take it once more, if the state is still of its step. NotSaved,
        NoDaemon."""
        step = self._due
        if self._newest != step:
            text = "step %d was not saved (%s), and the state is of step %d now" % (
                step,
                self._error(errno.ENOENT, ""),
                self._newest,
            )
            raise errors.error("wait", errno.EIO, text)
        self._handle.guard()
        log.info("the snapshot of step %d came to nothing, and is taken again", step)
        if not self._snapshot(step, _lib.CKPT_FINAL):
            why = self._error(errno.EIO, "the snapshot was not taken")
            raise why if why.errno != errno.ENOENT else errors.error("wait", errno.EIO, str(why))

    def _is_staged(self) -> bool:
        try:
            self._handle.wait(self._due, _lib.CKPT_STAGED, 0.0)
            return True
        except errors.CkptdError:
            return False

    def save(self, wait: bool = True, timeout: float = WAIT_MAX) -> int:
        """Save the state as it is now, whatever every= and persist_every= say; return its step. All ranks call it.

        wait: until it is committed. ValueError: no step was left yet. NotSaved: its snapshot was taken before, and
        persist_every keeps it in memory. TimedOut, NoDaemon.
        """
        self._outside("save")
        step = self._newest
        if step < 0:
            raise ValueError("save was called before the first step: there is no step number to save the state under")
        if step == self._restored_step:
            return step
        if self._taken != step:
            self._handle.guard()
            self._snapshot(step, _lib.CKPT_FINAL)
        if wait and self.wait("committed", timeout) != step:
            text = "step %d is in memory only, because of persist_every: use run.step(..., persist=True)" % step
            raise errors.error("wait", errno.ENOENT, text)
        return step

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
        if self._taken >= 0:  # its copy need not be given up
            with contextlib.suppress(errors.CkptdError):
                self._handle.wait(self._taken, _lib.CKPT_STAGED, self._timeout)
        self._handle.guard()
        got = self._handle.restore(None, _lib.CKPT_PEEK, average.component, timeout=self._timeout)
        reshard(self._training.modules)
        try:
            average.enter(self._training.state.entries)
            self._averaging = name
            yield got.step
        finally:
            self._averaging = ""
            reshard(self._training.modules)  # what was gathered are averages
            average.leave()

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
        for what, run in list(_attached.items()):
            if run is self:
                del _attached[what]
        try:
            self._handle.detach(drain)
        finally:
            self._training.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: Any) -> None:
        self.detach()


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
    socket: Optional[str] = None,
    memory_max: int = 0,
    check: int = 0,
    copy_rate: int = 0,
    nccl: bool = False,
    timeout: float = 60.0,
) -> Run:
    """Attach this rank's training state to the daemon. All ranks call it, after the model is sharded, before the first
    step.

    model: a module, or a sequence of them (the parts of a pipeline). optim: an optimizer, or several. Parameters on the
    meta device get memory, filled with zeros. Optimizer state that the first step would make is made.
    store, job: the directory of checkpoints, and the job's name in it. extra: other objects to save, by name (_extra).
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
    the ranks are those of torch.distributed, and all of them say so.
    timeout: seconds to wait for the other ranks.

    TypeError, ValueError: an argument, or state that cannot be saved (UnsupportedState lists it). NotSupported: state
    that is neither in host memory nor on a CUDA device. AlreadyAttached, Superseded. Whatever fails, the model stays
    usable, and nothing is attached.
    """
    if not isinstance(averages or {}, Mapping):
        raise TypeError("averages is a %s: it must be a dict, name -> spec" % type(averages).__name__)
    how = _arguments.one_of("guard", guard, _arguments.GUARDS)
    _arguments.one_of("memory", memory, {"alloc": 0, "foreign": 1})
    every, persist_every = _arguments.number("every", every, 1), _arguments.number("persist_every", persist_every, 1)
    modules, optims = _arguments.modules_of(model), _state.optimizers_of(optim)
    devices = _arguments.devices_of(modules, optims)
    for what in (*modules, *optims):
        if what in _attached:
            text = "this %s is attached already, as rank %d of job %s: detach that run first" % (
                type(what).__name__, _attached[what].rank, _attached[what]._handle.job)  # fmt: skip
            raise errors.error("attach", errno.EBUSY, text)
    place = launch(rank, world)
    ranks = _arguments.ranks_of(ranks, place.rank, place.world)
    flags = _lib.CKPT_AUTOSTART | _lib.CKPT_USE_ENV | _lib.CKPT_KEEP_MEMORY | (_lib.CKPT_REQUIRE if strict else 0)
    agree = together(place.rank, place.world, bool(devices), timeout) if nccl else None
    flags |= _lib.CKPT_NCCL if agree else 0
    handle = _lib.Handle.attach(
        store=store, job=job, rank=place.rank, world=place.world, socket=socket, generation=generation or 0,
        launch=place.token, slots=slots,
        persist_every=persist_every, guard=how, memory_max=memory_max, check=check, timeout=min(timeout, 20.0), flags=flags,
        device=devices.option, copy_rate=copy_rate, agree=agree,
    )  # fmt: skip
    try:
        training = Training(handle, model, optim, masters, memory, (store, job), ranks, devices)
        run = Run(handle, training, Outcomes(strict), every=every, timeout=timeout, averages=averages or {}, agree=agree)
        run._begin(extra)
    except BaseException:
        with contextlib.suppress(errors.CkptdError):
            handle.detach()
        raise
    for what in (*modules, *optims):
        _attached[what] = run
    return run
