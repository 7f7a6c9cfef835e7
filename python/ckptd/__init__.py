# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training job at every step, through the daemon ckptd.

    run = ckptd.attach(model, optim, store="ckpts/", job="gpt", extra={"sched": sched, "rng": ckptd.rng()})
    start = run.restore()                             # 0 if there is nothing
    for step in range(start, steps):
        loss = ...; loss.backward()
        with run.step(step + 1, loss=loss):           # a guard on entry, a snapshot on exit
            optim.step(); sched.step(); optim.zero_grad()
    run.wait()

docs/PYTORCH.md is the manual. `import ckptd` imports neither torch nor the library: each name below is imported when it
is used for the first time, so `ckptd.open` and `python -m ckptd ls` work where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Dict, List

from ._abi import CKPT_VERSION as __version__

if TYPE_CHECKING:
    from . import dcp as dcp
    from ._rng import rng as rng
    from ._fill import load as load
    from ._reader import open as open
    from ._view import view as view
    from .errors import AlreadyAttached as AlreadyAttached
    from .errors import AveragesLeftOut as AveragesLeftOut
    from .errors import CkptdError as CkptdError
    from .errors import CkptdWarning as CkptdWarning
    from .errors import Damaged as Damaged
    from .errors import ExtraError as ExtraError
    from .errors import ForkedError as ForkedError
    from .errors import NoDaemon as NoDaemon
    from .errors import NotFitting as NotFitting
    from .errors import NothingToRestore as NothingToRestore
    from .errors import NotRestorable as NotRestorable
    from .errors import NotSaved as NotSaved
    from .errors import NotSaving as NotSaving
    from .errors import NotSupported as NotSupported
    from .errors import Preempted as Preempted
    from .errors import ReplicasDrifted as ReplicasDrifted
    from .errors import StateMoved as StateMoved
    from .errors import StepsPassed as StepsPassed
    from .errors import Superseded as Superseded
    from .errors import UnattachedOptimizer as UnattachedOptimizer
    from .errors import UnguardedUpdate as UnguardedUpdate
    from .errors import VersionMismatch as VersionMismatch
    from .run import Restored as Restored
    from .run import Run as Run
    from .run import attach as attach

_WHERE: Dict[str, str] = {
    "attach": "run",
    "Run": "run",
    "Restored": "run",
    "rng": "_rng",
    "open": "_reader",
    "load": "_fill",
    "view": "_view",
    "CkptdError": "errors",
    "CkptdWarning": "errors",
    "AlreadyAttached": "errors",
    "AveragesLeftOut": "errors",
    "Damaged": "errors",
    "ExtraError": "errors",
    "ForkedError": "errors",
    "NoDaemon": "errors",
    "NotFitting": "errors",
    "NotRestorable": "errors",
    "NotSaved": "errors",
    "NotSaving": "errors",
    "NotSupported": "errors",
    "NothingToRestore": "errors",
    "Preempted": "errors",
    "ReplicasDrifted": "errors",
    "StateMoved": "errors",
    "StepsPassed": "errors",
    "Superseded": "errors",
    "UnattachedOptimizer": "errors",
    "UnguardedUpdate": "errors",
    "VersionMismatch": "errors",
}

__all__ = sorted([*_WHERE, "__version__", "dcp", "errors"])


def __getattr__(name: str) -> Any:
    if name in ("dcp", "errors"):
        return importlib.import_module("." + name, __name__)
    if name not in _WHERE:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = getattr(importlib.import_module("." + _WHERE[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted([*globals(), *__all__])
