# SPDX-License-Identifier: Apache-2.0
"""The blobs of a run: those of `_extra`, and "ckptd", which says who wrote the step. `run` calls it.

Invariant: each Extras blob is declared once, with room that follows its .cap.
"""

from __future__ import annotations

import json
import logging
import platform
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import _lib
from ._extra import Extras
from ._session import Session

log = logging.getLogger("ckptd")

ABOUT_ROOM = 16 << 10  # bytes of the blob "ckptd"


def extras_of(extra: Optional[Mapping[str, Any]], optims: List[Any], components: List[str], state: Any) -> Extras:
    """Extras of what attach was given, of the optimizers, and of modules with a get_extra_state of their own."""
    named: Dict[str, Any] = {}
    for component, optim in zip(components, optims):
        name, i = component, 0
        while name in named:
            i += 1
            name = "%s.%d" % (component, i)
        named[name] = optim
    objects = dict(extra or {})
    for name, module in state.extra_states:
        objects.setdefault("state:" + (name or "model"), (module.get_extra_state, module.set_extra_state))
    return Extras(objects, optims=named, names=ParameterNames(state))


class ParameterNames(Dict[Any, str]):
    """Parameter -> its name, without the component. renew() after each collect."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.renew(state)

    def renew(self, state: Any) -> None:
        self.clear()
        self.update({p: about.name for p, about in state.parameters.items()})


class Blobs:
    """What one rank saves beside tensors."""

    def __init__(self, session: Session, extras: Extras) -> None:
        self.session, self.extras = session, extras
        self._handle = session.handle

    def declare(self, mesh: Optional[Any]) -> None:
        """Read every object once, so that a blob's first room fits, and declare all. ExtraError: one cannot be read."""
        self.extras.collect()
        for blob in self.extras.blobs:
            how = _lib.CKPT_PER_RANK | _lib.CKPT_JSON
            self._handle.blob_at(blob.name, how, blob.address, blob.length, blob.cap)
        about = self._handle.blob_add("ckptd", ABOUT_ROOM, _lib.CKPT_JSON)
        about.write(json.dumps(self._about(mesh), sort_keys=True).encode()[:ABOUT_ROOM])
        self.session.changed_for_all()

    def _about(self, mesh: Optional[Any]) -> Dict[str, Any]:
        import torch

        return {
            "ckptd": _lib.CKPT_VERSION,
            "framework": "torch " + str(torch.__version__),
            "python": platform.python_version(),
            "world": self._handle.world,
            "mesh": None if mesh is None else {"names": mesh.names, "sizes": mesh.sizes},
            "extras": [b.name for b in self.extras.blobs][:256],
        }

    def collect(self) -> None:
        """The state of every object for the next snapshot. The session must be sealed then, if a blob needed more room.

        ExtraError: one cannot be read; its blob makes the library skip the next snapshot on all ranks alike.
        """
        for blob in self.extras.collect():
            self._handle.blob_resize(blob.name, blob.cap)
            self.session.changed_here()

    def unmatched(self, saved: List[_lib.TensorInfo]) -> Tuple[List[str], List[str]]:
        """Names (blob/NAME) that the program has and a step lacks, and the other way round. saved: what the step holds."""
        mine = {b.name for b in self.extras.blobs}
        theirs = {t.name for t in saved if t.blob and t.name != "ckptd"}
        ours = {n for n in theirs if n.startswith("extra.") or n.endswith(".groups")}
        return ["blob/" + n for n in sorted(mine - theirs)], ["blob/" + n for n in sorted(ours - mine)]

    def load(self, got: _lib.Got) -> None:
        """Give every object its state of the restored step. ExtraError."""
        from .errors import NothingToRestore

        def read(name: str, old_rank: int) -> Optional[bytes]:
            try:
                return self._handle.blob_read(name, old_rank)
            except NothingToRestore:
                return None

        done = self.extras.load(read, got.world_saved, self._handle.rank, self._handle.world)
        for note in done.notes:
            log.warning("%s", note)
