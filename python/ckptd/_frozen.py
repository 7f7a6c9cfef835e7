# SPDX-License-Identifier: Apache-2.0
"""Parameters that no optimizer may change are CKPT_CONST: written once, and linked by the later steps.

`names` decides which, where all ranks do so alike: in attach and replace_optimizer. From then on a parameter can only
leave them. `class Frozen` is asked before each snapshot:

* `thawed`: parameters that need gradients now, or that an optimizer has. They become CKPT_STABLE before this snapshot, on
  all ranks alike, and stay it until the next attach.
* `changed`: those that the program has changed by hand, as load_state_dict does: torch counts what is done in place. The
  rank declares them again where they are, it alone, and so the daemon writes them anew in this step. What is done to
  `p.data` torch does not count: the daemon finds that by the words that it compares (CKPT_CONST in ckpt.h).
"""

from __future__ import annotations

import operator
from typing import Any, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from . import _abi
from ._averaged import rule_of
from ._state import State
from ._types import Entry

_version = operator.attrgetter("_version")
_requires_grad = operator.attrgetter("requires_grad")


def names(state: State, optims: Sequence[Any], rules: Sequence[Sequence[Tuple[str, str]]]) -> FrozenSet[str]:
    """The keys (COMPONENT/NAME) of parameters that no optimizer may change. rules: those of each average; what one of them
    averages by name stays CKPT_STABLE."""
    updated = _updated(optims)
    live: Set[str] = set(state.aliased_buffers)
    for p, about in state.parameters.items():
        if p.requires_grad or id(p) in updated or about.layout is None:
            live.add("model/" + about.name)
    return frozenset(
        e.key for e in state.entries
        if e.role == _abi.CKPT_PARAM and e.cls in (_abi.CKPT_STABLE, _abi.CKPT_CONST) and e.key not in live
        and e.home.value in state.parameters and not any(rule_of(e, some) not in (None, "copy", "skip") for some in rules)
    )  # fmt: skip


def _updated(optims: Iterable[Any]) -> Set[int]:
    return {id(p) for optim in optims for group in optim.param_groups for p in group["params"]}


class Frozen:
    """The constant parameters of one rank, as they are now."""

    def __init__(self, state: State, optims: Sequence[Any]) -> None:
        self.entries = [e for e in state.entries if e.cls == _abi.CKPT_CONST]
        const = {e.key: i for i, e in enumerate(self.entries)}
        # Of one entry several, if parameters share their memory: each has a count of its own.
        of = [(p, const[key]) for p, about in state.parameters.items() if (key := "model/" + about.name) in const]
        self._optims = list(optims) if of else []
        self._params = [p for p, _ in of] + [e.home.value for e in self.entries]
        self._of = [i for _, i in of] + list(range(len(self.entries)))
        inner = [(p._local_tensor, i) for p, i in zip(self._params, self._of) if hasattr(p, "_local_tensor")]
        self._tensors = self._params + [local for local, _ in inner]
        self._tensors_of = self._of + [i for _, i in inner]
        self._versions = self._seen = list(map(_version, self._tensors))
        self._lengths = self._lengths_now()

    def thawed(self) -> List[Entry]:
        """Parameters that may change from now on."""
        lengths = self._lengths_now()
        if lengths == self._lengths and not any(map(_requires_grad, self._params)):
            return []
        updated = _updated(self._optims)
        found = {i for p, i in zip(self._params, self._of) if p.requires_grad or id(p) in updated}
        if not found:
            self._lengths = lengths
        return [self.entries[i] for i in sorted(found)]

    def changed(self) -> Optional[Entry]:
        """One of the parameters that were changed before the newest call, and after the newest one that `renewed`
        followed."""
        self._seen = list(map(_version, self._tensors))
        if self._seen == self._versions:
            return None
        at = next(i for i, (was, now) in enumerate(zip(self._versions, self._seen)) if was != now)
        return self.entries[self._tensors_of[at]]

    def renewed(self) -> None:
        """What `changed` has returned is declared anew."""
        self._versions = self._seen

    def _lengths_now(self) -> List[int]:
        return [len(group["params"]) for optim in self._optims for group in optim.param_groups]
