# SPDX-License-Identifier: Apache-2.0
"""An average of the weights, put into the model for evaluation: Run.averaged calls it.

The daemon computes averages, and writes them beside the weights. Here a tensor of class SINK is declared for each
averaged one; ckpt_restore with CKPT_PEEK fills these from the newest step that has all of them, and the launch goes on
where it is. Invariant: after leave(), the model has the bits that it had before enter().
"""

from __future__ import annotations

import dataclasses
import fnmatch
import mmap
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from . import _lib
from ._session import Session
from ._types import Entry, Home, Part

if TYPE_CHECKING:
    import torch

_RULE = re.compile(r"(?:^|(?<=\s))([^\s=]+)=(average|copy|skip|\([^)]*\))(?=\s|$)")
_FLOATS = (_lib.CKPT_F32, _lib.CKPT_BF16, _lib.CKPT_F16)


def rules_of(spec: str) -> List[Tuple[str, str]]:
    """The rules in the spec of an average (ckpt_average): pattern, and average, copy, skip or (SCHEDULE)."""
    return [(m.group(1), m.group(2)) for m in _RULE.finditer(spec)]


def is_averaged(entry: Entry, rules: Sequence[Tuple[str, str]]) -> bool:
    """Does the daemon average this tensor? As ckpt_average says it: the first rule that matches, else parameters."""
    if entry.dtype not in _FLOATS or entry.role not in (_lib.CKPT_PARAM, _lib.CKPT_BUFFER, _lib.CKPT_OTHER):
        return False
    what = rule_of(entry, rules)
    if what is not None:
        return what == "average" or what.startswith("(")
    return entry.role == _lib.CKPT_PARAM and entry.cls != _lib.CKPT_CONST


def rule_of(entry: Entry, rules: Sequence[Tuple[str, str]]) -> Optional[str]:
    """What the first rule says that matches this tensor; None: none does."""
    for pattern, what in rules:
        literal = pattern.replace("[", "[[]")
        if fnmatch.fnmatchcase(entry.key if "/" in pattern else entry.name, literal):
            return what
    return None


class Average:
    """The tensors of one average, and memory for them, of which none is used until enter() and after leave()."""

    def __init__(self, name: str, spec: str, entries: Sequence[Entry]) -> None:
        self.name, self.spec, self.component = name, spec, "ema." + name
        rules = rules_of(spec)
        self._of = [e for e in entries if is_averaged(e, rules)]
        self._memory: Optional[mmap.mmap] = None
        self._raw: List[Tuple["torch.Tensor", "torch.Tensor"]] = []
        self.entries = self._sinks()

    def _sinks(self) -> List[Entry]:
        import torch

        def room(part: Part) -> int:
            return -(-part.local.numel() * 4 // 64) * 64

        size = sum(room(p) for e in self._of for p in e.layout.parts)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._memory = mmap.mmap(-1, max(size, 1), flags=flags)
        at, found = 0, []
        for e in self._of:
            parts = []
            for p in e.layout.parts:
                shape = tuple(p.local.shape)
                if p.local.numel():
                    local = torch.frombuffer(self._memory, dtype=torch.float32, count=p.local.numel(), offset=at).view(
                        shape
                    )
                else:
                    local = torch.empty(shape)
                parts.append(dataclasses.replace(p, local=local))
                at += room(p)
            layout = dataclasses.replace(e.layout, parts=tuple(parts))
            home = Home({}, e.name, parts[0].local if parts else torch.empty(0))
            found.append(Entry(self.component, e.name, _lib.CKPT_AVERAGE, _lib.CKPT_SINK, _lib.CKPT_F32, layout, home))
        return found

    def declare(self, session: Session) -> None:
        """Declare the sinks; the caller seals, on all ranks."""
        if self.entries and self.entries[0].key not in session.entries:
            session.add(self.entries)

    def drop(self, session: Session) -> None:
        session.drop([e.key for e in self.entries if e.key in session.entries])

    def stale(self, entries: Sequence[Entry]) -> bool:
        """Has the model other tensors than when this was made, or is something averaged that was not?"""
        now = {e.key: e for e in entries}
        averaged = {e.key for e in entries if is_averaged(e, rules_of(self.spec))}
        return averaged != {e.key for e in self._of} or any(
            (
                [p.local.shape for p in now[e.key].layout.parts] != [p.local.shape for p in e.layout.parts]
                if e.key in now
                else True
            )
            for e in self._of
        )

    def enter(self, entries: Sequence[Entry]) -> None:
        """Keep the weights, and put the averages, which the sinks have, in their place, cast to the parameters'
        type."""
        import torch

        now: Dict[str, Entry] = {e.key: e for e in entries}
        with torch.no_grad():
            for e, sink in zip(self._of, self.entries):
                for at, average in zip(now[e.key].layout.parts, sink.layout.parts):
                    self._raw.append((at.local, at.local.to("cpu", copy=True)))
                    at.local.copy_(average.local)
        self._give_back()

    def leave(self) -> None:
        """Put the weights back, bit for bit. If an exception ends it, another call goes on with the rest."""
        import torch

        with torch.no_grad():
            while self._raw:
                at, raw = self._raw[-1]
                at.copy_(raw)
                self._raw.pop()

    def _give_back(self) -> None:
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)
