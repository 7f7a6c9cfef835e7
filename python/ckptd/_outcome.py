# SPDX-License-Identifier: Apache-2.0
"""What became of the snapshots of a run: counts, and one warning (`_told`) for each kind of trouble. `run` calls it.

Training never ends because a step could not be saved, unless attach was called with strict=True: then the exception of
the library propagates. A step that was skipped or torn is no trouble by itself, and is in the log alone: the next one
may be taken. `class Standstill` finds when that goes on.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from . import _told, errors

MARKS_MAX = 10  # marks in a row that come to nothing, until one is told
SLOTS_MAX = 4  # steps that may be on the way, of which it is not known yet
COMMIT_MAX = 300.0  # seconds that a step which is to be written is not committed, until one is told

_WARNED = {"outside": errors.UnguardedUpdate, "unattached": errors.UnattachedOptimizer}
_ALL_RANKS = ("detached", "refused", "failing")  # see it alike


class Outcomes:
    """Counters by kind, since attach. `strict`: what prevents a snapshot is an exception."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.count: Dict[str, int] = {
            "taken": 0,
            "skipped": 0,
            "torn": 0,
            "detached": 0,
            "failing": 0,
            "refused": 0,
            "unmarked": 0,
            "extra": 0,
            "outside": 0,
            "unattached": 0,
        }
        self.warned = False  # what became of the newest mark is a kind that was warned of
        self._unsaved_since: Optional[int] = None

    def taken(self, step: int) -> None:
        """The library took the snapshot."""
        self.count["taken"] += 1
        self.warned = False
        if self._unsaved_since is not None:
            text = "steps are saved again from step %d on; the last one before was due at step %d"
            _told.ended("saved again")
            _told.tell("saved again", text % (step, self._unsaved_since), None)
            self._unsaved_since = None
            _told.ended("detached", "refused")

    def passing(self, kind: str, step: int, why: str) -> None:
        """skipped, torn: this snapshot came to nothing, the next one may be taken. why: ckpt_why."""
        self.count[kind] += 1
        self.warned = False
        _told.tell(kind, "the snapshot of step %d was %s%s" % (step, kind, ": " + why if why else ""), None)

    def unsaved(self, kind: str, step: int, error: errors.CkptdError, committed: str = "") -> None:
        """detached, refused, failing, unmarked, extra, outside, unattached: steps are not saved until something changes.
        strict: raises error. committed: a sentence about the newest committed step."""
        self.count[kind] += 1
        self.warned = True
        if kind in ("detached", "refused") and self._unsaved_since is None:
            self._unsaved_since = step
        if self.strict:
            raise error
        text = "step %d is not saved, and training continues: %s%s" % (step, error, "\n" + committed if committed else "")
        _told.tell(kind, text, _WARNED.get(kind, errors.NotSaving), own=kind not in _ALL_RANKS)


class Standstill:
    """Do marks come to anything, on all ranks together? Rank 0 asks at each mark, before it counts it.

    persist_every: of attach. fate: of a step: False: it came to nothing; None: it is on the way. A step that was staged
    is nothing if a rank finds later that its state was changed: so the newest mark is never asked for.
    """

    def __init__(self, persist_every: int, fate: Callable[[int], Optional[bool]]) -> None:
        self._persist_every, self._fate = persist_every, fate
        self._steps: List[int] = []  # marked since one that came to something
        self._committed = -1  # as it was when asked before
        self._unwritten = 0  # marked since one was to be written
        self._owed_since: Optional[float] = None  # when a step was to be written that is not committed

    def asked(self, now: float, committed: int) -> Optional[str]:
        """committed: the newest committed step. "marks", "commits", or None: all is well."""
        if committed != self._committed:
            self._committed, self._owed_since = committed, None
            if committed in self._steps:
                del self._steps[: self._steps.index(committed) + 1]
        if self._owed_since is not None and now - self._owed_since > COMMIT_MAX:
            return "commits"
        if len(self._steps) >= MARKS_MAX // 2 and self._fate(self._steps[-2]):  # it is enough to know one of ten
            del self._steps[:-1]
        known = [self._fate(step) for step in self._steps[:-1]] if len(self._steps) > MARKS_MAX else []
        if True in known:
            del self._steps[: len(known) - known[::-1].index(True)]
        return "marks" if known.count(False) >= MARKS_MAX and True not in known else None

    def marked(self, now: float, step: int, persist: Optional[bool]) -> None:
        """persist: as run.step was given it."""
        self._steps = [*self._steps[-MARKS_MAX - SLOTS_MAX :], step]
        self._unwritten += persist is None
        if persist or (persist is None and self._unwritten >= self._persist_every):
            self._unwritten = 0
            if self._owed_since is None:
                self._owed_since = now

    def restored(self) -> None:
        """Steps count on from another one."""
        self._steps, self._owed_since = [], None
