# SPDX-License-Identifier: Apache-2.0
"""What a training program has besides tensors, as one blob per rank each: schedulers, loaders, scalers, random
numbers, param_groups.

`run` calls `declare` before the first seal, `collect` before each snapshot, `unmatched` and `decode` before tensors are
filled, `Decoded.load` after that. The bytes are those of `_codec`. Nothing of an object is called before the first
`collect`: a data loader's state_dict starts its workers.

On another number of ranks: rank r gets what old rank r saved, or, if there were fewer, what old rank r % old_world
saved. Random numbers are the exception, see `Rng`.
"""

from __future__ import annotations

import dataclasses
import errno
import sys
from typing import Any, Callable, Dict, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from . import _codec, _lib, _nested, _told, errors
from ._lib import Blob, Got, Handle
from ._rng import Rng, generator_item
from .errors import ExtraError

CAP_MIN = 16 << 10  # bytes: a scheduler has 300, the random generators 10,000
READ_NOT = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")

Read = Callable[[str, int], Optional[bytes]]


def fill(blob: Blob, e: _codec.Encoded) -> bool:
    """Make e the bytes of the next step. True: they are more than the blob has room for."""
    nbytes = e.nbytes
    if nbytes > blob.room:
        raise ValueError("its state is %d bytes long, and a blob has at most %d" % (nbytes, blob.room))
    e.write(blob.address)
    blob.length.value = nbytes
    return not blob.fits


def room_for(nbytes: int, most: int) -> int:
    """The room that ckpt_blob_resize gives to a blob that has grown to nbytes."""
    head_room = nbytes * 2 if nbytes < 16 << 20 else nbytes * 5 // 4
    return min((head_room + 0xFFFF) & ~0xFFFF, most)


# --- kinds of objects ---
@dataclasses.dataclass
class Item:
    """How the state of an object is read and written."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Optional[str]]  # returns a sentence for the user, or None
    rng: Optional[Rng] = None
    check: Callable[[Any], None] = lambda saved: None  # raises what put would, as far as can be known; changes nothing


def _restore_in_place(at: Any, saved: Any) -> Any:
    """What `at` should be replaced by: `at` itself where its content can be changed instead."""
    torch = sys.modules.get("torch")
    if at is saved:
        return at
    if type(at) is type(saved) and isinstance(at, dict):
        for k in [k for k in at if k not in saved]:
            del at[k]
        for k, v in saved.items():
            at[k] = _restore_in_place(at[k], v) if k in at else v
        return at
    if type(at) is type(saved) and type(at) is list:
        at[:] = [_restore_in_place(a, v) for a, v in zip(at, saved)] + saved[len(at) :]
        return at
    if torch is not None and isinstance(at, torch.Tensor) and isinstance(saved, torch.Tensor):
        if at.shape == saved.shape and at.dtype == saved.dtype:
            with torch.no_grad():
                at.copy_(saved)
            return at
    return saved


def _dict_item(name: str, at: Any) -> Item:
    def check(saved: Any) -> None:
        if not isinstance(saved, type(at)):
            raise TypeError("the step has a %s for it" % type(saved).__name__)

    def put(saved: Any) -> Optional[str]:
        if _restore_in_place(at, saved) is not at:
            raise TypeError("a %s cannot be restored in place" % type(at).__name__)
        return None

    return Item(name, lambda: at, put, check=check)


def _stateful_item(name: str, at: Any) -> Item:
    def put(saved: Any) -> Optional[str]:
        if saved == {} and type(at).__name__ == "GradScaler" and at.is_enabled():
            return "%s was disabled when the step was taken: it begins with its own scale" % name
        said = at.load_state_dict(saved)
        if any(c.__name__ == "StatefulDataLoader" for c in type(at).__mro__):
            # It makes the iterator that the program's loop will take. That draws random numbers, and the uninterrupted
            # run did so at the beginning of the epoch: it must happen before the random generators are restored.
            at.state_dict()
        return "%s: %s" % (name, said) if isinstance(at, OptimGroups) and said else None

    return Item(name, at.state_dict, put, check=at.check if isinstance(at, OptimGroups) else lambda saved: None)


def make_item(name: str, at: Any) -> Item:
    """How to read and write an object that the user gave. TypeError: it is of no kind that is known."""
    if isinstance(at, Rng):
        return Item(name, at.state_dict, lambda saved: at.load_state_dict(saved), at, at.check)
    if callable(getattr(at, "state_dict", None)) and callable(getattr(at, "load_state_dict", None)):
        return _stateful_item(name, at)
    if isinstance(at, (dict, list)):
        return _dict_item(name, at)
    if isinstance(at, tuple) and len(at) == 2 and callable(at[0]) and callable(at[1]):

        def put(saved: Any) -> Optional[str]:
            at[1](saved)
            return None

        return Item(name, at[0], put)
    of_generator = generator_item(at)
    if of_generator:
        get, set_state, check = of_generator
        return Item(name, get, set_state, check=check)
    raise TypeError(
        "%s is a %s: it must have state_dict() and load_state_dict(), or be a dict or list (restored in place), a "
        "random generator, or a pair of functions: one that returns the state, one that takes it"
        % (name, _codec.class_name(type(at)))
    )


# --- optimizers: what is no tensor of the state ---
SCANNED = 16  # parameters a step whose state is looked through for values that are no tensors


class OptimGroups:
    """param_groups, and state that is no tensor, of one optimizer.

    names: parameter -> its fully qualified name, for the state; without a name it is the parameter's number. What
    says how the optimizer computes and not what (foreach, fused, capturable, differentiable) stays as the program set
    it.
    """

    def __init__(self, optim: Any, names: Optional[Mapping[Any, str]] = None) -> None:
        self.names = {} if names is None else names
        self.take(optim)

    def take(self, optim: Any) -> None:
        """From now on it is this one."""
        self.optim = optim
        self.known = -1  # len(optim.state) when `loose` was made
        self.loose: List[Tuple[str, MutableMapping[Any, Any], Any]] = []
        self.next = 0
        self.numbered: List[Tuple[int, Any]] = []  # the parameters, as the lists in `groups` had them
        self.groups: List[Tuple[Any, int]] = []

    def _name(self, p: Any, number: int) -> str:
        return self.names.get(p, "#%d" % number)

    def _params(self) -> List[Tuple[int, Any]]:
        """All parameters, numbered. The list is made anew when a group's list is another, or has another length."""
        groups = [(g["params"], len(g["params"])) for g in self.optim.param_groups]
        same = len(groups) == len(self.groups) and all(a is b and n == m for (a, n), (b, m) in zip(groups, self.groups))
        if not same:
            self.groups = groups
            self.numbered = list(enumerate(p for params, _ in groups for p in params))
        return self.numbered

    def _scan(self, params: Sequence[Tuple[int, Any]], torch: Any) -> None:
        have = {(id(at), k) for _, at, k in self.loose}
        for number, p in params:
            at = self.optim.state.get(p)
            for k, v in at.items() if isinstance(at, dict) else ():
                if not isinstance(v, torch.Tensor) and (id(at), k) not in have:
                    self.loose.append((self._name(p, number), at, k))

    def state_dict(self) -> Dict[str, Any]:
        """The values now. Of the state only what is known not to be tensors is read. All of it is looked through when
        len(state) changed, otherwise that of SCANNED parameters a step in turn."""
        import torch

        params = self._params()
        if len(self.optim.state) != self.known:
            self.known, self.loose = len(self.optim.state), []
            self._scan(params, torch)
        elif params:
            at = self.next % len(params)
            self._scan(params[at : at + SCANNED], torch)
            self.next = at + SCANNED if at + SCANNED < len(params) else 0
        state: Dict[str, Dict[Any, Any]] = {}
        for name, inner, k in self.loose:
            if k in inner and not isinstance(inner[k], torch.Tensor):
                state.setdefault(name, {})[k] = _nested.outline(inner[k])
        shared = {k: _nested.outline(v) for k, v in self.optim.state.items() if isinstance(k, str)}
        shared = {k: v for k, v in shared.items() if v != _nested.MARK}
        groups = [
            {**{k: v for k, v in g.items() if k not in READ_NOT}, "params": len(g["params"])}
            for g in self.optim.param_groups
        ]
        return {"groups": groups, **({"state": state} if state else {}), **({"shared": shared} if shared else {})}

    def check(self, saved: Any) -> None:
        """ValueError: the optimizer has other groups than the step."""
        have, groups = len(self.optim.param_groups), len(saved["groups"])
        if groups != have:
            raise ValueError("the step has %d param_groups, and the optimizer %d" % (groups, have))

    def load_state_dict(self, saved: Any) -> Optional[str]:
        """Returns a sentence about state of parameters that this optimizer does not have, or None."""
        groups = saved["groups"]
        for at, was in zip(self.optim.param_groups, groups):
            for k, v in was.items():
                if k not in READ_NOT:
                    at[k] = _like(at.get(k), v)
        of = {self._name(p, n): p for n, p in self._params()}
        lost = [name for name in saved.get("state", {}) if name not in of]
        for name, inner in saved.get("state", {}).items():
            if name in of and not _take_values(self.optim.state, of[name], inner):
                lost.append(name + " in the form that was saved, and keeps what it has,")
        shared = saved.get("shared", {})
        found = dict(_nested.tensors_in({k: v for k, v in self.optim.state.items() if isinstance(k, str)}))
        for key, value in shared.items():
            try:
                self.optim.state[key] = _nested.rebuild(value, found, key)
            except KeyError:
                lost.append("state.%s in the form that was saved, and keeps what it has," % key)
        for key in [k for k, v in self.optim.state.items() if isinstance(v, _nested.Made) and k not in shared]:
            del self.optim.state[key]
        self.known = -1
        if not lost:
            return None
        some = ", ".join(lost[:5] + ["..."] * (len(lost) > 5))
        return "the optimizer has no parameter %s of which state was saved" % some


def _take_values(state: Any, p: Any, saved: Mapping[Any, Any]) -> bool:
    """Set the values of a parameter's state that are no tensors. False: they hold tensors that the state lacks."""
    found = dict(_nested.tensors_in(state.get(p, {})))
    try:
        values = {k: _nested.rebuild(v, found, str(k)) for k, v in saved.items()}
    except KeyError:
        return False
    state[p].update(values)
    return True


def _like(at: Any, saved: Any) -> Any:
    """A saved hyperparameter as the program has it: a tensor stays the same tensor, a number a number."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(at, torch.Tensor):
        is_number = isinstance(at, (int, float)) and torch is not None and isinstance(saved, torch.Tensor)
        return saved.item() if is_number else saved
    with torch.no_grad():
        return at.copy_(saved) if isinstance(saved, torch.Tensor) else at.fill_(saved)


# --- all of them ---
def _error(item: Item, text: str) -> ExtraError:
    error = ExtraError(errno.EINVAL, "%s: %s" % (item.name, text))
    error.name = item.name
    return error


def _failure(item: Item, what: str, e: Exception) -> ExtraError:
    return _error(item, "its state cannot be %s: %s: %s" % (what, type(e).__name__, e))


class Decoded:
    """What each object will get of one step. No object was touched yet.

    missing: extras that the step does not have; they stay as they are. notes: sentences for one warning.
    """

    def __init__(self) -> None:
        self.missing: List[str] = []
        self.notes: List[str] = []
        self.todo: List[Tuple[Item, Any]] = []

    def load(self) -> None:
        """Give every object its state. ExtraError: an object raised; the objects after it were not touched."""
        for i, (item, saved) in enumerate(self.todo):
            try:
                note = item.put(saved)
            except Exception as e:
                failed = _failure(item, "restored", e)
                failed.loaded = tuple(done.name for done, _ in self.todo[:i])
                failed.untried = tuple(rest.name for rest, _ in self.todo[i + 1 :])
                raise failed from e
            if note:
                self.notes.append(note)
        self.todo = []

    def warn(self, step: int) -> None:
        """One warning says what is not as it was."""
        notes = ["%s was not saved, and stays as it is" % name for name in self.missing] + self.notes
        if notes:
            _told.tell("extras", "step %d: %s" % (step, "; ".join(notes)), own=True)


class Extras:
    """All blobs of one rank.

    objects: name -> object; the blob is "extra.NAME". optims: component -> optimizer; the blob is "COMPONENT.groups".
    names: parameter -> its fully qualified name. allow_pickle False: an object that only pickle can say is an error.
    """

    def __init__(
        self,
        objects: Optional[Mapping[str, Any]] = None,
        *,
        optims: Optional[Mapping[str, Any]] = None,
        names: Optional[Mapping[Any, str]] = None,
        allow_pickle: bool = True,
    ) -> None:
        self.allow_pickle = allow_pickle
        self.optims = {c: OptimGroups(o, names) for c, o in (optims or {}).items()}
        self.items = [_stateful_item(c + ".groups", groups) for c, groups in self.optims.items()]
        for name, at in (objects or {}).items():
            if not isinstance(name, str) or not name:
                raise TypeError("extra: a name is %r and should be a string" % (name,))
            self.items.append(make_item("extra." + name, at))
        self.blobs: List[Blob] = []
        self._handle: Optional[Handle] = None

    def replace_optimizer(self, old: Any, new: Any) -> None:
        """From now on the blob of `old` has the settings of `new`."""
        for groups in self.optims.values():
            if groups.optim is old:
                groups.take(new)

    def declare(self, handle: Handle) -> None:
        """Declare a blob for each object. No object is called. Then seal."""
        self._handle = handle
        self.blobs = [handle.blob_add(i.name, CAP_MIN, _lib.CKPT_PER_RANK | _lib.CKPT_JSON) for i in self.items]

    def collect(self, grows: Callable[[], None] = lambda: None) -> None:
        """Read the state of every object into its blob. grows: called before a blob gets more room: then seal, on this
        rank alone.

        ExtraError: an object's state_dict failed, or its state has no encoding; the other objects were read. The blob
        has its state of an earlier step then: mark this one with CKPT_REFUSE.
        """
        assert self._handle is not None
        failed: Optional[ExtraError] = None
        for item, blob in zip(self.items, self.blobs):
            try:
                if fill(blob, _codec.encode_parts(item.get(), allow_pickle=self.allow_pickle)):
                    grows()
                    self._handle.blob_resize(item.name, room_for(blob.length.value, blob.room))
            except Exception as e:
                if failed is None:
                    failed = _failure(item, "saved", e)
                    failed.__cause__ = e
        if failed:
            raise failed

    def unmatched(self, handle: Handle, step: int) -> Tuple[List[str], List[str]]:
        """(blobs that the step lacks, blobs of extras that the program lacks), as "blob/extra.NAME"."""
        have = {t.name for t in handle.tensors(step) if t.blob}
        mine = [i.name for i in self.items]
        return (
            ["blob/" + n for n in mine if n not in have],
            ["blob/" + n for n in sorted(have - set(mine)) if n.startswith("extra.") or n.endswith(".groups")],
        )

    def decode(self, handle: Handle, got: Got) -> Decoded:
        """The extras of the step that was restored, or only compared (CKPT_DRY_RUN). ExtraError, as decode_from."""

        def read(name: str, old_rank: int) -> Optional[bytes]:
            try:
                return handle.blob_read(name, old_rank)
            except errors.NothingToRestore:
                return None

        return self.decode_from(read, got.world_saved, handle.rank, handle.world)

    def decode_from(self, read: Read, old_world: int, rank: int, world: int) -> Decoded:
        """read(name, old_rank): the blob's bytes, or None if the step has no such blob.

        ExtraError: a blob is damaged or needs pickle, or it is known that the object will not take what it says.
        """
        out = Decoded()
        moved: List[str] = []
        for item in self.items:
            whose = rank if rank < old_world else rank % old_world
            raw = read(item.name, whose)
            if raw is None:
                out.missing.append(item.name)
                continue
            saved = self._decode(item, raw, out)
            if item.rng is not None and rank >= old_world:
                all_old = [self._decode(item, read(item.name, r) or raw, out) for r in range(old_world)]
                saved = item.rng.derive(all_old, rank)
            elif item.rng is None and old_world != world and self._differs(read, item, raw, whose, old_world):
                moved.append(item.name)
            try:
                item.check(saved)
            except Exception as e:
                raise _failure(item, "restored", e) from e
            out.todo.append((item, saved))
        out.todo.sort(key=lambda t: t[0].rng is not None)  # the others may draw random numbers
        if moved:
            out.notes.append(
                "%d ranks saved the step and %d restore it: of %s, which the ranks did not have alike, rank %d got "
                "what old rank %d saved; a data loader then repeats or omits samples"
                % (old_world, world, ", ".join(moved), rank, whose)
            )
        return out

    def _decode(self, item: Item, raw: bytes, out: Decoded) -> Any:
        def warn(text: str) -> None:
            note = "%s: %s: the value stays as it was written" % (item.name, text)
            if note not in out.notes:
                out.notes.append(note)

        try:
            return _codec.decode(raw, allow_pickle=self.allow_pickle, warn=warn)
        except Exception as e:  # unpickling may raise any
            raise _error(item, "its bytes cannot be read: %s" % e) from e

    @staticmethod
    def _differs(read: Read, item: Item, mine: bytes, whose: int, old_world: int) -> bool:
        return any(read(item.name, r) not in (mine, None) for r in range(old_world) if r != whose)
