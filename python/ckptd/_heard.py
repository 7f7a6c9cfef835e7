# SPDX-License-Identifier: Apache-2.0
"""Which optimizers step, and when: `class Heard`, which hears each step of each torch.optim.Optimizer of the process.

PyTorch calls its global hooks before and after each step of an optimizer. So two things are known with certainty that
would make a saved step wrong, and `problem` says them:

* An optimizer updated the state outside of `with run.step`. Before such an update the guard is called, so the copy of
  the step before is right or is given up. Nobody can know to which step the update belongs. So the step that is left
  next is not saved, and the state between is of no step.
* An optimizer that was never attached updates parameters that are saved. What it knows of them, as its moments, would
  be lost. So no step is saved as long as the optimizer exists, until it is attached or `restored` is called. An
  optimizer whose `state` is the very object of an attached one, as the one inside of a wrapper, is attached. If attach
  was given no optimizer, the job saves weights alone, and this is not looked at.

Not heard are optimizers of classes that are not derived from torch.optim.Optimizer, and replays of CUDA graphs.

The hooks are called by any thread that steps an optimizer, also by autograd's. A forked child hears nothing.
"""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, cast

from . import _arguments, errors

log = logging.getLogger("ckptd")

OUTSIDE, UNATTACHED = "outside", "unattached"  # kinds of problems, as `Outcomes` counts them


class _Known(NamedTuple):
    """An optimizer that was heard, which lives as long as the program keeps it."""

    ref: "weakref.ReferenceType[Any]"
    name: str  # of its class
    block: int  # the newest block in which, or before which, it has stepped
    updates: bool  # it had parameters that are saved then


class Heard:
    """What the optimizers do to the state of one run.

    guard: ckpt_guard, which is called before an update outside of a block. capturing: does a CUDA graph record the update,
    so that nothing is computed?"""

    def __init__(self, capturing: Callable[[], bool]) -> None:
        self.guard: Callable[[], Any] = lambda: None
        self.inside: Callable[[], bool] = lambda: False  # of a block
        self.unguarded = False  # the guard could not be called: the copy of the newest mark may be torn
        self._capturing = capturing
        self._pid = os.getpid()
        self._block = 0  # how many were entered
        self._attached: Sequence[Any] = ()
        self._ids: Dict[int, Any] = {}  # the same by id
        self._saved: Dict[int, Any] = {}  # optimizers whose state is saved in another way, by id
        self._names: Dict[int, str] = {}  # of the parameters that are saved, by id
        self._params: Any = ()  # these parameters, so that their ids stay theirs
        self._guarded = False  # since the newest block
        self._running: Dict[int, _Known] = {}  # began to step inside of the block, and have not ended
        self._after: Dict[int, _Known] = {}  # stepped outside since the newest block that ended well
        self._before: Dict[int, _Known] = {}  # stepped outside before that block, or beyond its end
        self._others: Dict[int, _Known] = {}  # were heard, and their state is not saved
        self._hooks = _hooks(self)

    def learn(self, attached: Sequence[Any], saved: Iterable[Any], names: Mapping[Any, str]) -> None:
        """attached: the optimizers whose state is saved as tensors, and those inside of them. saved: those that are saved
        in another way. names: of all parameters that are saved."""
        self._attached = attached
        self._ids = {id(optim): optim for optim in attached}
        self._saved = {id(optim): optim for optim in saved}
        self._params = list(names)
        self._names = {id(p): name for p, name in names.items()}

    # ---- what the run does ----

    def enter(self) -> None:
        """A block begins, and the guard was called."""
        self._block += 1
        self._running, self.unguarded = {}, False

    def leave(self) -> None:
        """The block has ended well: the state is of its step."""
        self._guarded = False
        self._before, self._after = {**self._after, **self._running}, {}
        self._running = {}

    def restored(self) -> None:
        """The state is that of a checkpoint: what was done to it before does not matter any more."""
        self._before, self._after, self._running, self._others = {}, {}, {}, {}

    def problem(self, step: int) -> Optional[Tuple[str, str]]:
        """Why the state must not be saved as that of this step, which was left last: its kind, and a sentence."""
        outside = list({**self._before, **self._after}.values())
        if outside:
            when = "before step %d, or did not end in it" if self._before else "after step %d"
            return OUTSIDE, (
                "%s stepped outside of `with run.step`, %s: nobody can know to which step this update belongs\n"
                "No rank saves this step: put the optimizer's step into the block (of optimizers that step in the backward "
                "pass: loss.backward())" % (" and ".join(self._said(known) for known in outside), when % step)
            )
        others = self._unattached()
        if others:
            return UNATTACHED, (
                "%s was never attached: its state would not be saved\n"
                "No rank saves a step until run.replace_optimizer(old, new) is called, or until all optimizers are attached "
                "anew: detach, and attach" % " and ".join(self._said(known) for known in others)
            )
        return None

    def close(self) -> None:
        """Remove the hooks from torch."""
        for handle in self._hooks:
            handle.remove()
        self._hooks = []

    # ---- what torch calls ----

    def _begins(self, optim: Any) -> None:
        known = self._hear(optim)
        if known is None:
            return
        if self.inside():
            self._running[id(optim)] = known
            return
        self._after[id(optim)] = known
        if self._guarded:
            return
        try:
            self.guard()
            self._guarded = True
        except errors.CkptdError as e:  # another thread is inside a call, for example
            log.debug("no guard could be called before %s stepped: %s", known.name, e)
            self.unguarded = True

    def _ends(self, optim: Any) -> None:
        if self._running.pop(id(optim), None) is None and not self.inside():
            known = self._hear(optim)
            if known is not None:
                self._after[id(optim)] = known

    def _hear(self, optim: Any) -> Optional[_Known]:
        """None: what it does does not concern the state. One that is not attached is remembered all the same: its
        parameters may be saved from the next mark on, if they have taken the place of others."""
        if os.getpid() != self._pid:
            return None
        attached = id(optim) in self._ids
        updates = attached or any(True for _ in self._updates(optim))
        known = _Known(weakref.ref(optim), type(optim).__name__, self._block + (not self.inside()), updates)
        if self._capturing():
            return None
        if not attached and not self._is_saved(optim):
            self._others[id(optim)] = known
        return known if updates else None

    # ---- what is known of an optimizer ----

    def _is_saved(self, optim: Any) -> bool:
        if id(optim) in self._ids or id(optim) in self._saved:
            return True
        state = getattr(optim, "state", None)
        return state is not None and any(getattr(mine, "state", None) is state for mine in self._attached)

    def _updates(self, optim: Any) -> "Iterable[str]":
        """The names of the saved parameters that it has."""
        return (
            self._names[id(p)]
            for group in getattr(optim, "param_groups", ())
            for p in group["params"]
            if id(p) in self._names
        )

    def _unattached(self) -> List[_Known]:
        """Those that update the state, and whose own state is not saved. Nothing is lost of one that does not exist any
        more, if it has done nothing in the newest block."""
        found = []
        for number, known in list(self._others.items()):
            optim = known.ref()
            if known.block < self._block if optim is None else self._is_saved(optim):
                del self._others[number]
            elif self._attached and (known.updates if optim is None else any(True for _ in self._updates(optim))):
                found.append(known)
        return found

    def _said(self, known: _Known) -> str:
        optim = known.ref()
        names = list(itertools.islice(self._updates(optim), _arguments.NAMED)) if optim is not None else []
        return known.name + (" (of %s)" % ", ".join(names) if names else "")


def _hooks(heard: Heard) -> List[Any]:
    """torch's hooks for the steps of all optimizers. They are not on the optimizers, which can still be copied and pickled.
    A graph of torch.compile breaks off for them, as it does at each step of an optimizer: so compiled ones are heard."""
    import torch
    from torch.optim import optimizer as torch_optimizer

    ref, disable = weakref.ref(heard), cast(Any, torch.compiler.disable)

    def hook(call: Callable[[Heard, Any], None]) -> Any:
        def heard_by(optim: Any, _args: Any, _kwargs: Any) -> None:
            mine = ref()
            if mine is not None:
                call(mine, optim)

        return disable(heard_by)

    handles = [
        torch_optimizer.register_optimizer_step_pre_hook(hook(Heard._begins)),
        torch_optimizer.register_optimizer_step_post_hook(hook(Heard._ends)),
    ]
    for handle in handles:
        weakref.finalize(heard, handle.remove)
    return handles
