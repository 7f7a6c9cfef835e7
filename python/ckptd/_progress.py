# SPDX-License-Identifier: Apache-2.0
"""Of which step the training state is, and which snapshots were taken. `run` asks this before every mark.

    the state is  when memory holds                                    it may be marked
    NEW           what the program began with                          no: it has no number
    FINISHED n    what step n made, or what restore has filled         as step n
    INSIDE n      what the block of step n is changing                 no
    UNFINISHED n  half of step n, half of a restore of step n, or      no
                  an average in the place of weights

    from            call                                               to
    not INSIDE      enter(n)                                           INSIDE n
    INSIDE n        leave: the block ended without an exception        FINISHED n
    INSIDE n        give_up: an exception ended the block              UNFINISHED n
    INSIDE n        undo: the block has changed nothing                what was before enter
    not INSIDE      disturb(n): memory is about to be overwritten      UNFINISHED n
    UNFINISHED n    undo: memory is again as it was                    what was before disturb
    UNFINISHED n    filled(n): the tensors of step n are restored      UNFINISHED n; steps count on from n
    UNFINISHED n    restored: the extras of step n, too                FINISHED n

Invariant: each transition is one assignment, and a change is written down before it begins. So an exception that a
signal's handler raises (Ctrl-C), which can come between any two instructions, leaves nothing half-way here, and what
it leaves half-way in memory is UNFINISHED.
"""

from __future__ import annotations

import enum
import errno
from typing import Any, NamedTuple, Optional, Tuple

from . import errors

MARKS_MAX = 16  # steps that are remembered: the daemon holds 4 at most that are not committed


class Is(enum.Enum):
    NEW = "new"
    FINISHED = "finished"
    INSIDE = "inside"
    UNFINISHED = "unfinished"


class _Now(NamedTuple):
    state: Is = Is.NEW
    step: int = -1
    finished: int = -1  # the newest finished step
    due: int = -1  # the newest step that a snapshot was wanted of
    marks: Tuple[int, ...] = ()  # steps that the library took, oldest first, without those that came to nothing
    doubtful: bool = False  # an exception may have come before the library took the newest of them
    restored: int = -1  # the step of the newest restore
    wanted: bool = False  # INSIDE: a snapshot of the step
    block: Any = None  # INSIDE: a weak reference to what `run.step` returned
    why: str = ""  # UNFINISHED: a clause
    before: Optional["_Now"] = None  # for undo


class Progress:
    """The progress of one run. Numbers are -1 if there is no such step."""

    def __init__(self) -> None:
        self._now = _Now()

    @property
    def finished(self) -> int:
        """The newest finished step, or what restore has filled."""
        return self._now.finished

    @property
    def due(self) -> int:
        """The newest step that a snapshot was wanted of."""
        return self._now.due

    @property
    def restored_step(self) -> int:
        """The step of the newest restore."""
        return self._now.restored

    @property
    def doubtful(self) -> bool:
        """It is not known whether the library took `taken`."""
        return self._now.doubtful

    @property
    def unfinished(self) -> bool:
        """Nothing may be marked until a block ends well, or a restore succeeds."""
        return self._now.state is Is.UNFINISHED

    @property
    def step(self) -> Optional[int]:
        """The step as which the state may be marked."""
        return self._now.step if self._now.state is Is.FINISHED else None

    @property
    def inside(self) -> Optional[int]:
        """The step whose block changes the state."""
        return self._now.step if self._now.state is Is.INSIDE else None

    @property
    def block(self) -> Any:
        """What enter was given. None: it exists no more."""
        return self._now.block() if self._now.block is not None else None

    @property
    def taken(self) -> int:
        """The newest step that the library took, and that has not come to nothing."""
        return self._now.marks[-1] if self._now.marks else -1

    def refusal(self) -> errors.CkptdError:
        """NotSaved: why an unfinished state is not saved."""
        known = "no step is finished yet" if self.finished < 0 else "the newest finished step is %d" % self.finished
        text = "the state is not saved: %s; %s. Enter a step, or restore one; once its block has ended without an " \
               "exception, or restore has returned, the state can be saved"  # fmt: skip
        return errors.error("wait", errno.ENOENT, text % (self._now.why, known))

    # ---- the state ----

    def enter(self, step: int, wanted: bool, block: Any) -> None:
        """wanted: a snapshot of the step. block: a weak reference to the object of the `with` statement."""
        before = self._now._replace(before=None)
        self._now = self._now._replace(state=Is.INSIDE, step=step, wanted=wanted, block=block, before=before)

    def leave(self) -> None:
        now = self._now
        due = now.step if now.wanted else now.due
        self._now = now._replace(state=Is.FINISHED, finished=now.step, due=due, block=None, before=None)

    def give_up(self) -> bool:
        """Was a snapshot of the step wanted?"""
        why = "step %d is unfinished, because an exception ended its block" % self._now.step
        self._now = self._now._replace(state=Is.UNFINISHED, why=why, block=None, before=None)
        return self._now.wanted

    def undo(self) -> None:
        assert self._now.before is not None
        self._now = self._now.before

    def disturb(self, step: int, why: str) -> None:
        """why: a clause, which says what was left half-way if this is not undone."""
        self._now = self._now._replace(
            state=Is.UNFINISHED, step=step, why=why, before=self._now._replace(before=None)
        )

    def filled(self, step: int) -> None:
        why = "step %d is unfinished, because not all of its extras are restored" % step
        self._now = _Now(Is.UNFINISHED, step=step, finished=step, restored=step, why=why)

    def restored(self) -> None:
        self._now = self._now._replace(state=Is.FINISHED)

    # ---- its snapshots ----

    def want(self) -> None:
        """A snapshot of the state is wanted after all."""
        self._now = self._now._replace(due=self._now.step)

    def marking(self) -> None:
        """The library is about to take the state: it counts as taken, should an exception come before `marked`."""
        now = self._now
        marks = (*(m for m in now.marks if m != now.step), now.step)[-MARKS_MAX:]
        self._now = now._replace(marks=marks, doubtful=True)

    def marked(self) -> None:
        """The library took it."""
        self._now = self._now._replace(doubtful=False)

    def came_to_nothing(self, step: int) -> None:
        """The library did not take the step, or it was torn."""
        marks = tuple(m for m in self._now.marks if m != step)
        self._now = self._now._replace(marks=marks, doubtful=self._now.doubtful and step != self.taken)
