# SPDX-License-Identifier: Apache-2.0
"""What one rank has declared to the library: meshes, tensors, attributes, and when all of it must be sealed again.

`run` makes a Session of a handle and gives it lists of entries (`_state`). The session compares a new list with what is
declared, and makes the fewest calls: a tensor that lies elsewhere is moved, which concerns this rank alone; one that is
new, gone, or cut in another way is added or dropped, which all ranks must do alike. Invariant: `entries` is what the
library has. That a seal is due is noted before a call, not after it: an exception (Ctrl-C) may come in between.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import _lib
from ._types import Entry

log = logging.getLogger("ckptd")

_SLICE = 0.2  # seconds between two looks whether there is a daemon

Place = Tuple[Any, ...]


@dataclasses.dataclass
class Changes:
    """Keys (COMPONENT/NAME) that Session.follow has moved, added, dropped, or dropped and added."""

    moved: List[str] = dataclasses.field(default_factory=list)
    added: List[str] = dataclasses.field(default_factory=list)
    dropped: List[str] = dataclasses.field(default_factory=list)
    recut: List[str] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.moved or self.added or self.dropped or self.recut)


def place_of(entry: Entry) -> Place:
    """What ckpt_tensor_move may change: addresses and strides."""
    return tuple((p.local.data_ptr(), p.local.stride()) for p in entry.layout.parts if p.local.numel())


def cut_of(entry: Entry) -> Place:
    """What ckpt_tensor_move cannot change. Two entries of one key and one cut differ in place alone."""
    layout = entry.layout
    return (
        entry.role,
        entry.cls,
        entry.dtype,
        entry.of,
        tuple(layout.shape),
        layout.mode,
        layout.mesh,
        tuple(layout.placements),
        tuple((p.start, p.extent, tuple(p.local.shape)) for p in layout.parts if p.local.numel()),
    )


class Session:
    """The declarations of one handle. One thread at a time."""

    def __init__(self, handle: _lib.Handle) -> None:
        self.handle = handle
        self.entries: Dict[str, Entry] = {}
        self.ready = False  # the newest ckpt_seal returned 0, and nothing was declared since
        self._attributes: Dict[str, str] = {}
        self._places: Dict[str, Place] = {}
        self._cuts: Dict[str, Place] = {}

    # ---- declarations ----

    def add(self, entries: Iterable[Entry]) -> None:
        """Declare tensors. The library's exception names the first that it refuses."""
        for entry in entries:
            self.changed()
            self.handle.tensor_add(entry)
            self.entries[entry.key] = entry
            self._places[entry.key] = place_of(entry)
            self._cuts[entry.key] = cut_of(entry)

    def drop(self, keys: Iterable[str]) -> None:
        """The tensors are no longer saved or restored."""
        for key in list(keys):
            self.changed()
            self.handle.tensor_drop(self.entries[key].id)
            del self.entries[key], self._places[key], self._cuts[key]

    def follow(self, entries: Sequence[Entry], within: Optional[Sequence[str]] = None) -> Changes:
        """Make `entries` what is declared. within: only these components are compared; None: all.

        Entries that stay keep their id. The caller seals afterwards, if `ready` is False then.
        """
        changes = Changes()
        new = {e.key: e for e in entries}
        for key, old in list(self.entries.items()):
            if (within is None or old.component in within) and key not in new:
                changes.dropped.append(key)
        self.drop(changes.dropped)
        late: List[Entry] = []
        for key, entry in new.items():
            known = self.entries.get(key)
            if known is None:
                changes.added.append(key)
                late.append(entry)
            elif self._cuts[key] != cut_of(entry):
                changes.recut.append(key)
                self.drop([key])
                late.append(entry)
            else:
                entry.id = known.id
                self.entries[key] = entry
                if self._moved(key, entry):
                    changes.moved.append(key)
        self.add(late)
        return changes

    def move(self, entry: Entry) -> bool:
        """The entry, which is declared, lies elsewhere now. False: it lies where it did."""
        self.entries[entry.key] = entry
        return self._moved(entry.key, entry)

    def renew(self, entry: Entry) -> None:
        """The entry lies where it did, and is declared anew there, by this rank alone: so a constant one is written."""
        self.ready = False
        self.handle.tensor_move(entry.id, entry.layout.parts)

    def _moved(self, key: str, entry: Entry) -> bool:
        place = place_of(entry)
        if place == self._places[key]:
            return False
        self.changed()
        self.handle.tensor_move(entry.id, entry.layout.parts)
        self._places[key] = place
        return True

    def attributes(self, wanted: Mapping[str, str]) -> None:
        """Make these the attributes that are declared."""
        for key in [k for k in self._attributes if k not in wanted]:
            self.changed()
            self.handle.attr(key, None)
            del self._attributes[key]
        for key, value in wanted.items():
            if self._attributes.get(key) != value:
                self.changed()
                self.handle.attr(key, value)
                self._attributes[key] = value

    def changed(self) -> None:
        """Something is about to be declared: seal again."""
        self.ready = False

    # ---- sealing ----

    def seal(self, timeout: float) -> bool:
        """Send what was declared, and wait up to `timeout` seconds until snapshots can be taken. False: not yet; see
        why.

        Without a daemon it does not wait: the library seals as soon as one is there. A seal that was not ready in time
        goes on waiting when this is called again. InvalidCall has all contradictions between ranks; NoRoom, NoDaemon (a
        rank has ended), Superseded.
        """
        until = time.monotonic() + timeout
        while not self.ready:
            left = until - time.monotonic()
            self.ready = self.handle.seal(min(max(left, 0.0), _SLICE)) == 0
            if left <= _SLICE or self.no_daemon:
                break
        return self.ready

    @property
    def why(self) -> str:
        """What the newest seal waits for."""
        return self.handle.reason()

    @property
    def no_daemon(self) -> bool:
        """The newest seal was not ready because no daemon listens."""
        return not self.ready and "no daemon listens on" in self.why


def aliases_of(entries: Iterable[Entry]) -> Dict[str, str]:
    """The attributes that say under which further names the program knows a tensor (docs/FORMAT.md)."""
    found = {}
    for entry in entries:
        for alias in entry.aliases:
            found["ckpt.alias:%s/%s" % (entry.component, alias)] = entry.key
    return found
