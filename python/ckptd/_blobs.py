# SPDX-License-Identifier: Apache-2.0
"""The blobs of a run: those of `_extra`, and two that say who wrote the step. `run` calls it.

The room of a blob follows what is written to it; what is not sealed then, the session knows.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any, Dict, Mapping, Optional

from . import _lib
from ._extra import Extras
from ._session import Session
from ._training import Training
from ._types import Mesh

ABOUT_ROOM = 16 << 10  # bytes of the blob "ckptd", which is the same on all ranks
MINE_ROOM = 512  # bytes of the blob "ckptd.rank"


def extras_of(extra: Optional[Mapping[str, Any]], training: Training) -> Extras:
    """Extras of what attach was given, of the optimizers, and of modules with a get_extra_state of their own."""
    named: Dict[str, Any] = {}
    for component, optim in zip(training.components, training.optims):
        name, i = component, 0
        while name in named:
            i += 1
            name = "%s.%d" % (component, i)
        named[name] = optim
    objects = dict(extra or {})
    for name, module in training.state.extra_states:
        objects.setdefault("state:" + (name or "model"), (module.get_extra_state, module.set_extra_state))
    return Extras(objects, optims=named, names=training.names)


class Blobs:
    """What one rank saves beside tensors."""

    def __init__(self, session: Session, extras: Extras) -> None:
        self.session, self.extras = session, extras
        self._handle = session.handle

    def declare(self, mesh: Optional[Mesh]) -> None:
        """Declare all, and read every object once, so that each blob has the room that it needs. ExtraError."""
        self.extras.declare(self._handle)
        self.extras.collect(self.session.changed)
        about = self._handle.blob_add("ckptd", ABOUT_ROOM, _lib.CKPT_JSON)
        about.write(json.dumps(self._about(mesh), sort_keys=True).encode()[:ABOUT_ROOM])
        mine = self._handle.blob_add("ckptd.rank", MINE_ROOM, _lib.CKPT_PER_RANK | _lib.CKPT_JSON)
        mine.write(
            json.dumps({"rank": self._handle.rank, "pid": os.getpid(), "host": platform.node()}).encode()[:MINE_ROOM]
        )
        self.session.changed()

    def _about(self, mesh: Optional[Mesh]) -> Dict[str, Any]:
        import torch

        return {
            "ckptd": _lib.CKPT_VERSION,
            "framework": "torch " + str(torch.__version__),
            "python": platform.python_version(),
            "world": self._handle.world,
            "mesh": None if mesh is None else {"names": mesh.names, "sizes": mesh.sizes},
            "extras": [i.name for i in self.extras.items][:256],
        }

    def collect(self) -> None:
        """The state of every object for the next snapshot; the session is not ready then if a blob needed more room.

        ExtraError: one cannot be read; the next snapshot must be refused, for its blob is of an earlier step.
        """
        self.extras.collect(self.session.changed)
