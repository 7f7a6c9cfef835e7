# SPDX-License-Identifier: Apache-2.0
"""The training state of this rank, as it is declared: model, optimizers, and the changes to them. `run` calls it.

begin() makes state that does not exist yet, moves all of it into memory that the daemon reads, and declares it.
follow() is called before each snapshot: it finds what the program has replaced or made since, and brings the
declaration up to date.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from typing import AbstractSet, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import _abi, _arguments, _averaged, _cuda, _frozen, _lib, _optim, _state, _told, errors
from ._heard import Heard
from ._memory import Arena, exchanges, materialise, tensors_of
from ._session import Session, aliases_of
from ._types import Entry, Mesh
from ._watch import Change, Kind, Watch

log = logging.getLogger("ckptd")

_UNREADABLE = (Kind.FREED, Kind.RESIZED, Kind.ALIASED)


class Training:
    """Model and optimizers of one rank. model, optim, masters: as attach was given them."""

    def __init__(
        self,
        handle: _lib.Handle,
        model: Any,
        optim: Any,
        masters: Optional[Mapping[Any, Any]],
        memory: str,
        where: Tuple[Any, Optional[str]],
        ranks: Optional[Sequence[int]],
        devices: _cuda.Devices,
    ) -> None:
        """where: the store and the job, to look for steps if there is no daemon. ranks: as attach was given them.
        devices: those that the handle was attached with."""
        self.session = Session(handle)
        self.modules = _arguments.modules_of(model)
        self.optims = _state.optimizers_of(optim)
        self.components = _state.components_of(self.optims)
        self.state = _state.State()
        self.names: Dict[Any, str] = {}  # of parameters, without the component
        self.saved: List[Any] = []  # optimizers whose state is an extra
        self.averages: Sequence[str] = ()  # their specs
        self._const: AbstractSet[str] = frozenset()  # keys of frozen parameters
        self._frozen: Optional[_frozen.Frozen] = None
        self.materialised = False
        self._handle, self._model, self._masters = handle, model, masters
        self._arena = Arena(handle.alloc) if memory == "alloc" else None
        self.store, self._job = where
        self._ranks = ranks
        self.devices = devices
        if devices:
            handle.devices = devices
        self.heard = Heard(devices.capturing)
        self._watch: Optional[Watch] = None
        self._following = False  # a change was found, and the declaration does not follow it yet
        self._aliased: List[str] = []
        self._before_fit: Optional[List[Dict[Any, Any]]] = None  # what the optimizers' states had

    @_state.uncollected()
    def begin(self) -> None:
        """Make, move and declare everything. UnsupportedState lists what cannot be saved; nothing is declared then."""
        if any(p.is_meta for m in self.modules for p in list(m.parameters()) + list(m.buffers())):
            materialise(self.modules, self._arena)
            self.materialised = True
        for optim in self.optims:
            _state.create_state(optim)
        self._freeze()
        self._declare(0)

    def _freeze(self) -> None:
        """Which parameters are constant from now on. All ranks do this alike."""
        self._collect()
        self._const = _frozen.names(self.state, self.optims, [_averaged.rules_of(spec) for spec in self.averages])

    @_state.uncollected()
    def replace_optimizer(self, old: Any, new: Any, step: int) -> None:
        """The state of `new` is declared in the place of that of `old`. After an exception nothing has changed."""
        was = self.optims
        at = next((i for i, optim in enumerate(was) if optim is old), None)
        if at is None:
            text = "this %s is not attached: attached are %s" % (
                type(old).__name__, _arguments.names(type(optim).__name__ for optim in was) or "no optimizers")  # fmt: skip
            raise errors.error("replace_optimizer", errno.EINVAL, text)
        (new,) = _state.optimizers_of([new])
        optims = [*was[:at], new, *was[at + 1 :]]
        if _state.components_of(optims) != self.components:
            text = "the state of other optimizers would have other names than it has now: detach, and attach them all anew"
            raise errors.error("replace_optimizer", errno.EINVAL, text)
        _state.create_state(new)
        const, self.optims = self._const, optims
        try:
            self._freeze()
            self._declare(step)
        except BaseException:
            self._const, self.optims = const, was
            self._declare(step)
            raise

    @_state.uncollected()
    def fit(self, step: Optional[int], flags: int) -> None:
        """Make the optimizer state that only the checkpoint knows, and declare it. NothingToRestore, NoDaemon,
        TimedOut."""
        self._before_fit = None
        if not self.optims:
            return
        saved = self._handle.tensors(step, flags)
        before = [_keys(optim) for optim in self.optims]
        for optim, component in zip(self.optims, self.components):
            for problem in _state.create_state_like(optim, saved, names=self.names, component=component):
                _told.tell("optimizer state", problem, own=True)
        if [_keys(optim) for optim in self.optims] != before:
            self._before_fit = before
            self._declare(0)

    @_state.uncollected()
    def unfit(self) -> None:
        """No restore followed fit(): remove what it made. An optimizer whose state is half made would not make the
        rest."""
        if self._before_fit is None:
            return
        for optim, before in zip(self.optims, self._before_fit):
            state = _state.local_optimizer(optim).state
            for of in [of for of in state if of not in before]:
                del state[of]
            for of, keys in before.items():
                for key in [key for key in state.get(of, ()) if keys is not None and key not in keys]:
                    del state[of][key]
        self._before_fit = None
        self._declare(0)

    def _collect(self) -> None:
        """The entries as they are now. UnsupportedState: something cannot be saved."""
        reshard(self.modules)
        rank, world = self._handle.rank, self._handle.world
        state = _state.collect(
            self._model,
            self.optims,
            rank=rank,
            world=world,
            masters=self._masters,
            components=self.components,
            ranks=self._ranks,
        )
        state.check()
        for entry in state.entries:
            if entry.key in self._const and entry.cls == _abi.CKPT_STABLE:
                entry.cls = _abi.CKPT_CONST
        self.state = state
        self.names.clear()
        self.names.update({p: about.name for p, about in state.parameters.items()})
        self._learn()

    def _learn(self) -> None:
        """What there is to hear. A master is a parameter of its optimizer, too."""
        names = {p: "model/" + name for p, name in self.names.items()}
        for entry in self.state.entries:
            if entry.role in (_abi.CKPT_PARAM, _abi.CKPT_MASTER):
                names.setdefault(entry.home.value, entry.key)
        inside = (of(optim) for optim in self.optims for of in (_state.local_optimizer, _optim.inner_optimizer))
        self.heard.learn([*self.optims, *inside], self.saved, names)

    def mesh(self) -> Optional[Mesh]:
        """The largest mesh that a tensor is on."""
        meshes = {e.layout.mesh for e in self.state.entries if e.layout.mesh is not None}
        return max(meshes, key=lambda m: (len(m.ranks), len(m.sizes), m.names)) if meshes else None

    def store_may_have_steps(self) -> bool:
        """Is there something in the directory of this job? True also if that cannot be seen."""
        if self.store is None or self._job is None:
            return True
        try:
            with os.scandir(os.path.join(os.fspath(self.store), self._job)) as found:
                return any(found)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _declare(self, step: int) -> None:
        self._collect()
        if self._arena is not None:
            self._arena.move_in(tensors_of(self.state.entries, self.modules))
            if not exchanges():
                self._collect()  # moved tensors have other views
        self._follow_entries(step)

    def _follow_entries(self, step: int) -> None:
        self._following = True
        indices = self._devices_now(self.state.entries)
        self._renew()
        self.session.follow(self.state.entries)
        self.devices.learn(indices)
        self.session.attributes(aliases_of(self.state.entries))
        self._frozen = _frozen.Frozen(self.state, self.optims)
        if self._watch is None:
            self._watch = Watch(self.state.entries, modules=self.modules, optimizers=self.optims, step=step)
        else:
            self._watch.renew(self.state.entries, step, self.optims)
        self._following = False

    def _renew(self) -> None:
        """If the program has changed constant parameters, this rank's are written anew: one move is enough for all."""
        changed = self._frozen.changed() if self._frozen is not None else None
        if changed is not None and self._frozen is not None:
            self.session.renew(changed)
            self._frozen.renewed()

    def _devices_now(self, entries: Iterable[Entry]) -> Iterable[int]:
        """The devices that these are on. InvalidCall: it has left host memory since attach opened no device."""
        found: Dict[int, str] = {}
        for entry in entries:
            for part in entry.layout.parts:
                index = _cuda.index_of(part.local)
                if index is not None:
                    found.setdefault(index, entry.key)
        if found and not self.devices:
            index, name = next(iter(found.items()))
            raise errors.error(
                "tensor_move",
                errno.EINVAL,
                "%s is on cuda:%d, and when this run was attached all of the state was in host memory: detach, and "
                "attach after the model was moved" % (name, index),
            )
        return found

    @_state.uncollected()
    def restored(self, step: int) -> None:
        """A restore has filled the state, and the extras are loaded: what the program holds now is right as of this
        step."""
        self._before_fit = None
        self.heard.restored()
        self._declare(step)

    # ---- before each snapshot ----

    def follow(self, step: int) -> Optional[str]:
        """Bring the declaration up to date. Returns why no snapshot may be taken of this step, or None."""
        assert self._watch is not None and self._frozen is not None
        self._renew()
        changes, thawed = self._watch.check(step), self._frozen.thawed()
        if not changes and not thawed and not self._following:
            return None
        problem = self._unreadable([c for c in changes if c.kind in _UNREADABLE], step)
        if problem:
            return problem
        with _state.uncollected():
            return self._follow_changes(changes, thawed, step)

    def _follow_changes(self, changes: Sequence[Change], thawed: Sequence[Entry], step: int) -> Optional[str]:
        if not self._following and not thawed and all(c.kind is Kind.NEW for c in changes) and self._grow(changes, step):
            self._say(changes, "")
            return None
        stale = self._stale(changes)
        again, self._following = self._following, True  # an exception (Ctrl-C) had come in between
        self._const -= {entry.key for entry in thawed}
        if not again and not thawed and all(c.kind is Kind.REPLACED and self._replace(c) for c in changes):
            self._learn()
        else:
            problem = self._collect_again(again or any(c.kind is Kind.NEW for c in changes))
            if problem:
                return problem
        self._follow_entries(step)
        self._say(changes, stale)
        return None

    def _grow(self, changes: Sequence[Change], step: int) -> bool:
        """Declare what the optimizers have made since, beside what is declared. False: all must be collected anew."""
        assert self._watch is not None
        if self.devices or self._masters or (self._arena is not None and not exchanges()):
            return False
        more = _state.grown(
            self.state, self.optims, self.components, rank=self._handle.rank, world=self._handle.world
        )
        if more is None or len(more.entries) != len(changes):
            return False
        if self._arena is not None:
            self._arena.move_in(tensors_of(more.entries))
        self._devices_now(more.entries)
        self._following = True
        self.session.add(more.entries)
        self.state.entries += more.entries
        self.state.loose = more.loose
        self._watch.grow(more.entries, step)
        self._following = False
        return True

    def _collect_again(self, new: bool) -> Optional[str]:
        """The entries as they are now, with state that the optimizer has made moved in. What is wrong, otherwise."""
        try:
            self._collect()
        except _state.UnsupportedState as e:
            return "%s\nNo rank saves this step" % e
        if new and self._arena is not None:
            known = self.session.entries
            self._arena.move_in(tensors_of([e for e in self.state.entries if e.key not in known]))
            if not exchanges():
                self._collect()
        return None

    def _replace(self, change: Change) -> bool:
        """Let the entry be where the tensor is that took its place. False: it has parts, which only collect knows."""
        entry, value = change.entry, change.value
        if entry is None or value is None or len(entry.layout.parts) != 1 or self._watch is None:
            return False
        mapping = self._watch.now(
            entry.home.mapping
        )  # another one, if a layer or an optimizer's state is another object
        if mapping is None or mapping.get(entry.home.key) is not value:
            return False
        part = entry.layout.parts[0]
        local = getattr(value, "_local_tensor", value).detach()
        if local.shape != part.local.shape or local.dtype != part.local.dtype:
            return False
        entry.layout = dataclasses.replace(entry.layout, parts=(dataclasses.replace(part, local=local),))
        entry.home = dataclasses.replace(entry.home, mapping=mapping, value=value)
        return True

    def _stale(self, changes: Sequence[Change]) -> str:
        """A sentence, if an optimizer still has the parameters that were replaced in the model."""
        held = {id(p) for optim in self.optims for group in optim.param_groups for p in group["params"]}
        old = [
            c.name
            for c in changes
            if c.entry is not None and c.value is not c.entry.home.value and id(c.entry.home.value) in held
        ]
        if not old:
            return ""
        return ". The optimizer still updates the old tensors of %s: make the optimizer anew, and call run.replace_optimizer" % (
            _arguments.names(old)
        )

    def _unreadable(self, changes: Sequence[Change], step: int) -> Optional[str]:
        """What to say of storages that were freed, resized or aliased. Aliased ones are declared anew at the second
        look."""
        aliased = sorted(c.name for c in changes if c.kind is Kind.ALIASED)
        if not changes or (aliased == self._aliased and len(aliased) == len(changes)):
            self._aliased = []
            return None
        self._aliased = aliased
        return "%s. No rank saves step %d" % ("; ".join(sentence(c) for c in changes[: _arguments.NAMED]), step)

    def _say(self, changes: Sequence[Change], stale: str) -> None:
        by_kind: Dict[Kind, List[Change]] = {}
        for c in changes:
            by_kind.setdefault(c.kind, []).append(c)
        for kind, some in by_kind.items():
            names = _arguments.names(c.name for c in some)
            if kind is Kind.NEW:
                log.info("optimizer state that was made since is saved, too, from now on: %s", names)
                continue
            text = "tensors of the training state were %s after step %d (%d of them): %s (%s). They are saved as they are now%s" % (
                kind.value, min(c.since for c in some), len(some), names, some[0].detail, stale)  # fmt: skip
            _told.tell("moved: " + kind.value, text, errors.StateMoved, own=True)

    def close(self) -> None:
        """The handle is detached: the memory stays with the tensors in it."""
        if self._watch is not None:
            self._watch.close()
        if self._arena is not None:
            self._arena.close()


def sentence(change: Change) -> str:
    return "%s was %s (%s; it was right at step %d)" % (change.name, change.kind.value, change.detail, change.since)


def reshard(modules: Iterable[Any]) -> None:
    """Let FSDP2 free what it has gathered: its modules have their shards as parameters again. Nothing is communicated.

    After a forward pass without a backward pass the root module keeps the gathered parameters, and its next forward
    pass uses them, whatever the shards hold by then.
    """
    for module in modules:
        for part in module.modules():
            if hasattr(part, "_get_fsdp_state") and hasattr(part, "reshard"):
                part.reshard()


def _keys(optim: Any) -> Dict[Any, Any]:
    """Which values the optimizer's state has of each parameter."""
    state = _state.local_optimizer(optim).state
    return {of: set(inner) if isinstance(inner, dict) else None for of, inner in state.items()}
