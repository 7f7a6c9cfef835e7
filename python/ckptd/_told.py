# SPDX-License-Identifier: Apache-2.0
"""What the package tells the people of a job: tell(), the one place that warns. Every module calls it.

A program that configured nothing reads a warning on stderr, at its own line: once of each kind, and from one rank of
the launch. The first of a kind is also in the log "ckptd" of every rank, where the program has configured logging;
further ones are there for debugging. Two runs of one process share this: the newest attach begins it anew.

Who tells: rank 0 what all ranks see (`own=False`); of what each rank sees for itself, the rank that comes first. It
takes a name in the abstract socket namespace of this host, which the kernel gives to one process only, and takes back
when that process ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import sys
import warnings
from typing import Any, Dict, Optional, Set, Type

from . import errors

log = logging.getLogger("ckptd")

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Phrases of the library's lines, and the warning of each. None: the package itself says that, at the call it concerns.
LIBRARY: Dict[str, Optional[Type[Warning]]] = {
    "have drifted apart": errors.ReplicasDrifted,
    "averages of the weights have left out": errors.AveragesLeftOut,
    " is torn: ": errors.UnguardedUpdate,
    "trains without a daemon; the library tries again": None,
    "the daemon has exited; training continues": None,
    "a newer launch has taken over; snapshots stop": None,
    "no daemon listens on": None,
    "cannot write checkpoints; training continues": None,
    "writes checkpoints again": None,
    "snapshots are skipped": None,
    "snapshots were skipped": None,
    "passed over": None,
    "has steps, and no rank has called": None,
    "until it succeeds": None,
}


class Teller:
    """Of one launch: what was told, and which kinds this process has the name of."""

    def __init__(self, rank: int, launch: str) -> None:
        self.rank = rank
        self.said: Set[str] = set()
        self._launch = hashlib.sha256(launch.encode()).hexdigest()[:24]
        self._names: Dict[str, int] = {}  # descriptors

    def is_first(self, kind: str) -> bool:
        """Has no other rank of this host told it?"""
        if kind in self._names:
            return True
        try:
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return True
        try:
            name.bind("\0ckptd-told-%d-%s-%s" % (os.getuid(), self._launch, hashlib.sha256(kind.encode()).hexdigest()[:16]))
        except OSError:
            name.close()
            return False
        self._names[kind] = name.detach()
        return True

    def close(self) -> None:
        """Give the names back: the next launch may have the same."""
        for descriptor in self._names.values():
            os.close(descriptor)
        self._names = {}


_teller = Teller(0, str(os.getpid()))


def begin(rank: int, *launch: Any) -> Teller:
    """This process is a rank of a launch, of which `launch` is the same on all ranks: nothing was told of it yet. The
    caller closes what is returned when this rank has ended."""
    global _teller
    _teller.close()
    _teller = Teller(rank, repr(launch))
    return _teller


def tell(
    kind: str, text: str, category: Optional[Type[Warning]] = errors.CkptdWarning, *, own: bool = False
) -> bool:
    """Tell it, unless something of this kind was told and has not `ended`; was it?

    category: of the warning; None: it is for the log alone. own: it may be that no other rank sees it.
    """
    if kind in _teller.said:
        log.debug("%s", text)
        return False
    _teller.said.add(kind)
    if log.hasHandlers():  # otherwise logging itself prints warnings, on each rank
        log.warning("%s", text)
    if category is not None and (_teller.is_first(kind) if own else _teller.rank == 0):
        _warn(category, text)
    return True


def tell_line(text: str) -> None:
    """A warning of the library, which has it in the log already."""
    phrase = next((p for p in LIBRARY if p in text), None)
    category = LIBRARY[phrase] if phrase is not None else errors.CkptdWarning
    kind = "library: " + (phrase or re.sub(r"\d+", "", text)[:60])
    if category is None or kind in _teller.said:
        return
    _teller.said.add(kind)
    if _teller.is_first(kind):
        _warn(category, re.sub(r"^client: ", "", text))


def ended(*kinds: str) -> None:
    """What these kinds say is no longer so: the next one is told again."""
    _teller.said.difference_update(kinds)


def _warn(category: Type[Warning], text: str) -> None:
    """At the line of the program that called into this package."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_HERE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)
