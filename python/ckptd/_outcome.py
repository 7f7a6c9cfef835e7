# SPDX-License-Identifier: Apache-2.0
"""What became of the snapshots of a run: counts, and one warning for each kind of trouble. `run` calls it.

Training never ends because a step could not be saved, unless attach was called with strict=True: then the exception of
the library propagates. Everything is also logged ("ckptd"): the first of a kind as a warning, the further ones for
debugging.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Dict, Optional, Set, Type

from . import errors

log = logging.getLogger("ckptd")

_WARNED = {"outside": errors.UnguardedUpdate, "unattached": errors.UnattachedOptimizer}
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(category: Type[Warning], text: str) -> None:
    """A warning at the line of the program that called into this package."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_HERE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)


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
        self._said: Set[str] = set()
        self._unsaved_since: Optional[int] = None

    def taken(self, step: int) -> None:
        """The library took the snapshot."""
        self.count["taken"] += 1
        if self._unsaved_since is not None:
            log.warning(
                "steps are saved again from step %d on; the last one before was due at step %d",
                step,
                self._unsaved_since,
            )
            self._unsaved_since = None
            self._said -= {"detached", "refused"}

    def passing(self, kind: str, step: int, why: str) -> None:
        """skipped, torn: this snapshot came to nothing, the next one may be taken. why: ckpt_why."""
        self.count[kind] += 1
        first = kind not in self._said
        self._said.add(kind)
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "the snapshot of step %d was %s%s%s",
            step,
            kind,
            ": " + why if why else "",
            " (further ones are counted, and logged for debugging)" if first else "",
        )

    def unsaved(self, kind: str, step: int, error: errors.CkptdError) -> None:
        """detached, refused, failing, unmarked, extra, outside, unattached: steps are not saved until something changes.
        strict: raises error."""
        self.count[kind] += 1
        if kind in ("detached", "refused") and self._unsaved_since is None:
            self._unsaved_since = step
        if self.strict:
            raise error
        text = "step %d is not saved, and training continues: %s" % (step, error)
        if kind in self._said and kind != "failing":
            log.debug("%s", text)
            return
        self._said.add(kind)
        log.warning("%s", text)
        warn(_WARNED.get(kind, errors.NotSaving), text)
