# SPDX-License-Identifier: Apache-2.0
"""The training state of this rank, as it is declared: model, optimizers, and the changes to them. `run` calls it.

begin() makes state that does not exist yet, moves all of it into memory that the daemon reads, and declares it. follow() is
called before each snapshot: it finds what the program has replaced or made since, and brings the declaration up to date.
"""

from __future__ import annotations

import errno
import logging
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from . import _arguments, _lib, _state, errors
from ._memory import Arena, materialise, tensors_of
from ._outcome import warn
from ._session import Session, aliases_of
from ._types import Entry
from ._watch import Change, Kind, Watch

log = logging.getLogger("ckptd")

_UNREADABLE = (Kind.FREED, Kind.RESIZED, Kind.ALIASED)


class Training:
    """Model and optimizers of one rank. model, optim, masters: as attach was given them."""

    def __init__(
        self, handle: _lib.Handle, model: Any, optim: Any, masters: Optional[Mapping[Any, Any]], memory: str
    ) -> None:
        self.session = Session(handle)
        self.modules = _arguments.modules_of(model)
        self.optims = _state.optimizers_of(optim)
        self.state = _state.State()
        self.materialised = False
        self._handle, self._model, self._optim, self._masters = handle, model, optim, masters
        self._arena = Arena(handle.alloc) if memory == "alloc" else None
        self._watch: Optional[Watch] = None
        self._aliased: List[str] = []
        self._said: Dict[Kind, bool] = {}

    def begin(self) -> None:
        """Make, move and declare everything. UnsupportedState lists what cannot be saved; nothing is declared then."""
        if any(p.is_meta for m in self.modules for p in list(m.parameters()) + list(m.buffers())):
            materialise(self.modules, self._arena)
            self.materialised = True
        for optim in self.optims:
            _state.create_state(optim)
        self._declare(0)

    def fit(self, step: Optional[int], flags: int) -> None:
        """Make the optimizer state that only the checkpoint knows, and declare it. NothingToRestore, NoDaemon, TimedOut."""
        if not self.optims:
            return
        saved = self._handle.tensors(step, flags)
        made = [_state.create_state_like(optim, saved, self.state) for optim in self.optims]
        if any(made):
            self._declare(0)

    def _collect(self) -> None:
        """The entries as they are now, with new state moved in. UnsupportedState."""
        handle = self._handle
        state = _state.collect(self._model, self._optim, rank=handle.rank, world=handle.world, masters=self._masters)
        state.check()
        self.state = state

    def _declare(self, step: int) -> None:
        self._collect()
        if self._arena is not None:
            self._arena.move_in(tensors_of(self.state.entries, self.modules))
            self._collect()  # without torch's exchange of storages, moved tensors have other views
        self._follow_entries(step)

    def _follow_entries(self, step: int) -> None:
        self.session.follow(self.state.entries)
        self.session.attributes(aliases_of(self.state.entries))
        if self._watch is None:
            self._watch = Watch(self.state.entries, modules=self.modules, optimizers=self.optims, step=step)
        else:
            self._watch.renew(self.state.entries, step)

    def restored(self, step: int) -> None:
        """A restore has filled the state: it is right as of this step."""
        if self._watch is not None:
            self._watch.renew(self.state.entries, step)

    # ---- before each snapshot ----

    def follow(self, step: int) -> Optional[str]:
        """Bring the declaration up to date. Returns why no snapshot may be taken of this step, or None."""
        assert self._watch is not None
        changes = self._watch.check(step)
        if not changes:
            return None
        problem = self._unreadable([c for c in changes if c.kind in _UNREADABLE], step)
        if problem:
            return problem
        new = any(c.kind is Kind.NEW for c in changes)
        try:
            self._collect()
        except _state.UnsupportedState as e:
            return "%s. The other ranks' part of this step is never committed without this one" % e
        if new and self._arena is not None:
            known = self.session.entries
            self._arena.move_in(tensors_of([e for e in self.state.entries if e.key not in known]))
            self._collect()
        self._follow_entries(step)
        self._say(changes)
        return None

    def _unreadable(self, changes: Sequence[Change], step: int) -> Optional[str]:
        """What to say of storages that were freed, resized or aliased. Aliased ones are declared anew at the second look."""
        aliased = sorted(c.name for c in changes if c.kind is Kind.ALIASED)
        if not changes or (aliased == self._aliased and len(aliased) == len(changes)):
            self._aliased = []
            return None
        self._aliased = aliased
        return (
            "%s. No snapshot is taken of step %d; the other ranks' part of it is never committed without this one"
            % ("; ".join(sentence(c) for c in changes[: _arguments.NAMED]), step)
        )

    def _say(self, changes: Sequence[Change]) -> None:
        by_kind: Dict[Kind, List[Change]] = {}
        for c in changes:
            by_kind.setdefault(c.kind, []).append(c)
        for kind, some in by_kind.items():
            names = _arguments.names(c.name for c in some)
            if kind is Kind.NEW:
                log.info("optimizer state that was made since is saved, too, from now on: %s", names)
                continue
            text = "%d tensors of the training state were %s since step %d: %s (%s). They are saved from where they are now" % (
                len(some), kind.value, min(c.since for c in some), names, some[0].detail)  # fmt: skip
            log.warning("%s", text)
            if not self._said.get(kind):
                self._said[kind] = True
                warn(errors.StateMoved, text)

    def close(self) -> None:
        """The handle is detached: the memory stays with the tensors in it."""
        if self._arena is not None:
            self._arena.close()


def sentence(change: Change) -> str:
    return "%s was %s (%s; it was right at step %d)" % (change.name, change.kind.value, change.detail, change.since)
