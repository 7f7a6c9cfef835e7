# SPDX-License-Identifier: Apache-2.0
"""Are the tensors of the checkpoint still where they were declared? `class Watch`, which `run` asks before each
snapshot.

Training programs replace tensors: `load_state_dict(assign=True)`, `.to()`, `p.data =`, an optimizer's
`load_state_dict`. A snapshot of the old memory would commit old values in silence. `run` does this:

    watch = Watch(entries, modules=[model], optimizers=[optim], step=start)
    for change in watch.check(step):        # before the snapshot of this step
        ...                                 # REPLACED: ckpt_tensor_move to change.value; others: drop and add
    watch.renew(entries, step)              # after `run` has dealt with them, and whenever it collected anew

A change that is not dealt with is returned by every check that looks at it.

**What is looked at, when.** Each check compares, for up to 2,000 entries, the object at `home.mapping[home.key]`, the
identity of a DTensor's local, and the address of the data. Of more entries, another 2,000 are compared each time, in
turn. In addition each check compares, for all of them: the optimizers' state dictionaries (the objects and their
lengths), the modules' children, and the address of one parameter of each module, which `.to()` moves. It also learns
of every parameter, buffer and module that is registered anew, as `load_state_dict(assign=True)` does. If any of these
has changed, all entries are compared. The lengths of the modules' dictionaries are compared in turn. Shapes, strides,
dtypes and sizes of storages are compared where an address has changed, in a full check, and otherwise for a sixteenth
of the entries each time. `Change.since` is the last step at which the tensor is known to have been right.

Time: about 0.2 us for each tensor of up to 2,000, and 0.1 us for each of 7,600 (tests/bench/watch_row.py prints it).

What cannot be seen: that somebody writes to memory at the wrong time (ckpt_guard looks for that), and parameters that
FSDP2 has gathered at the moment: what is watched then is the sharded parameter, which FSDP2 keeps."""

from __future__ import annotations

import enum
import functools
import operator
import weakref
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional
from typing import Sequence, Set, Tuple

from ckptd import _nested
from ckptd._memory import fsdp_params, storage_end

if TYPE_CHECKING:
    import torch

    from ckptd._types import Entry

TURN = 2000  # entries compared in one check
DEEP = 16  # one of so many is compared in full

_is = operator.is_
_local_of = operator.attrgetter("_local_tensor")


class Kind(enum.Enum):
    """What has happened to a tensor."""

    REPLACED = "replaced"  # another object, local or address; the same shape, strides, dtype and device
    RESHAPED = "reshaped"  # another shape, stride, dtype, device, or layout of a DTensor
    GONE = "gone"  # nothing is there any more
    NEW = "new"  # state that was not there
    FREED = "freed"  # the storage has no memory
    RESIZED = "resized"  # the storage is smaller than the tensor needs
    ALIASED = "aliased"  # two tensors that were apart share memory now


class Change(NamedTuple):
    """One difference between what was declared and what is there.

    entry: what was declared; None for NEW. name: of the tensor (component/name), for NEW the place. value: the tensor
    that is there now, if there is one. since: the last step at which it is known to have been right. detail: one
    sentence for the log."""

    kind: Kind
    entry: "Optional[Entry]"
    name: str
    value: "Optional[torch.Tensor]"
    since: int
    detail: str


class _Seen(NamedTuple):
    """What a plain tensor was at the time of the declaration."""

    address: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: Any
    device: str

    @classmethod
    def of(cls, tensor: "torch.Tensor") -> "_Seen":
        return cls(_address(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device.type)


class _Calls(NamedTuple):
    """torch's accessors as C functions, which map calls without a frame of Python."""

    address: Callable[[Any], int]
    shape: Callable[[Any], Any]
    dtype: Callable[[Any], Any]
    stride: Callable[[Any], Any]


@functools.lru_cache(maxsize=None)
def _calls() -> _Calls:
    import torch

    base = torch.Tensor
    return _Calls(base.data_ptr, base.shape.__get__, base.dtype.__get__, base.stride)  # type: ignore[attr-defined]


class _Turn:
    """Entries that are compared in the same check, as lists that C functions walk."""

    def __init__(self, entries: "Sequence[Entry]", step: int) -> None:
        self.entries = entries
        self.calls = _calls()
        self.step = step  # at which every object, local and address was right
        self.deep_step = [step] * DEEP  # the same of shapes and dtypes, for each part of the entries
        self.deep_next = 0
        self.values = [entry.home.value for entry in entries]
        self.mappings: List[Any] = [entry.home.mapping for entry in entries]
        self.homes = self.mappings  # where they were when the structure was taken
        self.keys = [entry.home.key for entry in entries]
        self.dicts = all(isinstance(mapping, dict) for mapping in self.mappings)
        self.wrapped = [value for value in self.values if hasattr(value, "_local_tensor")]
        self.locals = [_local_of(value) for value in self.wrapped]
        self.plain = [_plain(value) for value in self.values]
        self.seen = [_Seen.of(plain) for plain in self.plain]
        self.addresses = [seen.address for seen in self.seen]
        self.shapes = [seen.shape for seen in self.seen]
        self.strides = [seen.stride for seen in self.seen]
        self.dtypes = [seen.dtype for seen in self.seen]
        self.specs = [getattr(value, "_spec", None) for value in self.values]

    def there(self) -> Iterator[Any]:
        """What the mappings hold now."""
        if self.dicts:
            get: Callable[[Any, Any], Any] = dict.get
            return map(get, self.mappings, self.keys)
        return (mapping.get(key) for mapping, key in zip(self.mappings, self.keys))

    def right(self) -> bool:
        """Is every object, local and address what it was? Tensors are compared by identity, never by ==."""
        return all(map(_is, self.there(), self.values)) and self.right_places()

    def right_places(self) -> bool:
        """Is every local and address of the known objects what it was?"""
        return (
            all(map(_is, map(_local_of, self.wrapped), self.locals))
            and list(map(self.calls.address, self.plain)) == self.addresses
        )

    def right_deep(self, first: int, end: int) -> bool:
        """Have these entries the shapes, dtypes and strides that they had?"""
        some = self.plain[first:end]
        return (
            list(map(self.calls.shape, some)) == self.shapes[first:end]
            and list(map(self.calls.dtype, some)) == self.dtypes[first:end]
            and list(map(self.calls.stride, some)) == self.strides[first:end]
        )

    def parts(self) -> List[Tuple[int, int]]:
        """The parts of the entries that are compared in full in turn."""
        n = len(self.entries)
        return [(n * i // DEEP, n * (i + 1) // DEEP) for i in range(DEEP)]

    def suspects(self) -> List[int]:
        """The entries whose object or address is not what it was."""
        wrong = [
            i for i, (there, value, plain, address)
            in enumerate(zip(self.there(), self.values, self.plain, self.addresses))
            if there is not value or plain.data_ptr() != address
        ]  # fmt: skip
        for value, local in zip(self.wrapped, self.locals):
            if value._local_tensor is not local:
                wrong += [i for i, other in enumerate(self.values) if other is value]
        return sorted(set(wrong))


class _Structure:
    """The dictionaries that hold the state: those of modules, and those of optimizers for each parameter."""

    def __init__(self, modules: "Sequence[torch.nn.Module]", optimizers: Sequence[Any]) -> None:
        # where a dictionary of a module was found: the root, the path to the module, the name of the dictionary
        self.place: Dict[int, Tuple[Any, str, str]] = {}
        self.module_of: Dict[int, Any] = {}  # which has this dictionary
        self.grown = True  # the tree of modules may be another one than it was
        self.dicts: List[Dict[str, Any]] = []
        self.modules: List[Any] = []
        for root in modules:
            for path, module in root.named_modules():
                self.modules.append(module)
                for name in ("_parameters", "_buffers"):
                    mapping = getattr(module, name)
                    self.place.setdefault(id(mapping), (root, path, name))
                    self.module_of.setdefault(id(mapping), module)
                    self.dicts.append(mapping)
        self.children = [module._modules for module in self.modules if module._modules]
        self.child_lengths = list(map(len, self.children))
        self.lengths = list(map(len, self.dicts))
        self.child_objects = list(chain.from_iterable(map(dict.values, self.children)))
        self.known_modules = {id(mapping): _tensor_keys(mapping) for mapping in self.dicts}
        self.take(optimizers)

    def take(self, optimizers: Sequence[Any]) -> None:
        """The dictionaries of the optimizers, as they are now."""
        # of each optimizer: its state, and the inner dictionaries with their lengths
        self.optimizers = [(optim, optim.state, _inner(optim.state)) for optim in optimizers]
        self.inner = [(list(map(len, inner)), len(state)) for _, state, inner in self.optimizers]
        # values of theirs that are no tensors: a tensor may take the place of one, or be in it
        others = [(at, key) for _, _, some in self.optimizers for at in some for key in set(at) - _tensor_keys(at)]
        self.other_dicts, self.other_keys = [at for at, _ in others], [key for _, key in others]
        self.other_types = self._types()
        self.boxes = [i for i, (at, key) in enumerate(others) if _nested.is_container(at[key])]
        self.forms = self._forms()
        self.owner: Dict[int, Tuple[Any, Any]] = {}  # of an inner dictionary: optimizer and parameter
        for optim, state, _ in self.optimizers:
            for param, inner in state.items():
                if isinstance(inner, dict):
                    self.owner[id(inner)] = (optim, param)
        self.known = dict(self.known_modules)
        for _, _, some in self.optimizers:
            self.known.update({id(inner): frozenset(path for path, _ in _nested.tensors_in(inner)) for inner in some})

    def right(self, turn: int, turns: int) -> bool:
        """Are the dictionaries the same objects, of the same lengths? Lengths of modules' dictionaries are compared
        in turns: what is registered in them calls a hook."""
        for (optim, state, inner), (lengths, length) in zip(self.optimizers, self.inner):
            if optim.state is not state or len(state) != length:
                return False
            now = list(state.values()) if len(inner) == length else _inner(state)
            if len(now) != len(inner) or not all(map(_is, now, inner)) or list(map(len, now)) != lengths:
                return False
        if self._types() != self.other_types or self._forms() != self.forms:
            return False
        first, end = len(self.dicts) * turn // turns, len(self.dicts) * (turn + 1) // turns
        return list(map(len, self.dicts[first:end])) == self.lengths[first:end] and self.has_tree()

    def has_tree(self) -> bool:
        """Are the modules the same, at the same places?"""
        return list(map(len, self.children)) == self.child_lengths and all(
            map(_is, chain.from_iterable(map(dict.values, self.children)), self.child_objects)
        )

    def _types(self) -> List[type]:
        get: Callable[[Any, Any], Any] = dict.get
        return list(map(type, map(get, self.other_dicts, self.other_keys)))

    def _forms(self) -> List[Any]:
        return [_nested.form(self.other_dicts[i].get(self.other_keys[i])) for i in self.boxes]

    def now(self, mapping: Any) -> Optional[Any]:
        """The dictionary that stands today where this one stood. None: there is none."""
        owner = self.owner.get(id(mapping))
        if owner is not None:
            return owner[0].state.get(owner[1])
        place = self.place.get(id(mapping))
        if place is None:
            return mapping
        root, path, name = place
        if not self.grown:
            return getattr(self.module_of[id(mapping)], name)
        try:
            return getattr(root.get_submodule(path), name)
        except AttributeError:
            return None

    def new(self) -> "Iterator[Tuple[str, torch.Tensor]]":
        """Tensors in places that had none, with a name for the place."""
        import torch

        at_place = {(id(root), path, name): key for key, (root, path, name) in self.place.items()}
        for root in {id(root): root for root, _, _ in self.place.values()}.values():
            for path, module in root.named_modules():
                for name in ("_parameters", "_buffers"):
                    known = self.known.get(at_place.get((id(root), path, name), -1), frozenset())
                    for key, value in getattr(module, name).items():
                        transient = name == "_buffers" and key in module._non_persistent_buffers_set
                        if isinstance(value, torch.Tensor) and key not in known and not transient:
                            yield (f"{path}.{key}" if path else key), value
        was = {(id(optim), id(param)): self.known[key] for key, (optim, param) in self.owner.items()}
        for optim, _, _ in self.optimizers:
            for param, inner in optim.state.items():
                known = was.get((id(optim), id(param)), frozenset())
                if isinstance(inner, dict) and inner.keys() == known:  # tensors under these keys, or others in their place
                    continue
                for key, value in _nested.tensors_in(inner) if isinstance(inner, dict) else ():
                    if key not in known:
                        yield f"{key} of a parameter of shape {list(getattr(param, 'shape', []))}", value


class Watch:
    """Compares the tensors of the checkpoint with what was declared.

    entries: as `_state.collect` made them. modules, optimizers: those that hold them; without them, a replaced
    dictionary of state is not noticed. step: the last one at which the entries are known to be right."""

    def __init__(
        self,
        entries: "Sequence[Entry]",
        modules: "Iterable[torch.nn.Module]" = (),
        optimizers: Iterable[Any] = (),
        step: int = 0,
    ) -> None:
        self._modules = list(modules)
        self._optimizers = list(optimizers)
        self._registered = False  # a module has registered something, or a change is not dealt with
        self._gathered: Optional[Dict[int, Any]] = None  # FSDP2's gathered parameters, by the id of the sharded one
        self._ids: Set[int] = set()
        self._hooks = _hooks(self) if self._modules else []
        self.renew(entries, step)

    def renew(self, entries: "Sequence[Entry]", step: int, optimizers: Optional[Iterable[Any]] = None) -> None:
        """From now on these entries, as they are now, are right. optimizers: those that hold them now; None: the same."""
        if optimizers is not None:
            self._optimizers = list(optimizers)
        count = max(1, -(-len(entries) // TURN))
        size = -(-len(entries) // count)
        self._turns = [_Turn(entries[i * size : (i + 1) * size], step) for i in range(count)]
        self._next = 0
        self._checked = step  # the last check that found nothing
        self._structure = _Structure(self._modules, self._optimizers)
        self._ids = set(map(id, self._structure.modules))
        # one floating-point parameter of each module: .to() and its kin move all of them
        first: Dict[int, "Entry"] = {}
        for entry in entries if count > 1 else ():
            if id(entry.home.mapping) in self._structure.place and _floating(entry.home.value):
                first.setdefault(id(entry.home.mapping), entry)
        self._sentinels = _Turn(list(first.values()), step)
        self._registered = False

    def grow(self, entries: "Sequence[Entry]", step: int) -> None:
        """These are right too from now on, which an optimizer has made: the newest check found them, and nothing else."""
        for turn in self._turns:
            turn.homes = turn.mappings
        self._turns += [_Turn(entries[i : i + TURN], step) for i in range(0, len(entries), TURN)]
        self._structure.take(self._optimizers)
        self._checked = step
        self._registered = False

    def check(self, step: int, full: bool = False) -> List[Change]:
        """What has changed, in the order of the entries; NEW at the end. full: compare all entries, in every
        respect."""
        self._gathered = None  # made again when it is needed
        whole = full or self._registered
        moved = not self._structure.right(0 if whole else self._next, 1 if whole else len(self._turns))
        everything = whole or moved or not self._sentinels.right_places()
        self._registered = False
        turns = self._turns if everything else [self._turns[self._next]]
        self._next = (self._next + 1) % len(self._turns)
        found: List[Change] = []
        if moved:
            self._structure.grown = not self._structure.has_tree()
        for turn in turns:
            if moved:
                self._follow(turn)
            found += self._check_turn(turn, step, full)
        if found:
            found = _aliased(found, self._turns)
            self._registered = True  # look at everything again until `run` has dealt with it
        if moved:
            new = list(self._structure.new())
            found += [
                Change(Kind.NEW, None, name, value, self._checked, f"{name} was not there when the state was declared")
                for name, value in new
            ]
            if not found:  # other dictionaries, the same tensors
                self._structure = _Structure(self._modules, self._optimizers)
                self._ids = set(map(id, self._structure.modules))
                for turn in self._turns:
                    turn.homes = turn.mappings
        if not found:
            self._checked = step
        return found

    def now(self, mapping: Any) -> Optional[Any]:
        """The mapping that stands today where the one of a Home stood. None: there is none."""
        return self._structure.now(mapping)

    def close(self) -> None:
        """Remove the hooks from torch."""
        for handle in self._hooks:
            handle.remove()
        self._hooks = []

    def _follow(self, turn: _Turn) -> None:
        """Look where the dictionaries are now."""
        now = [self._structure.now(mapping) for mapping in turn.homes]
        turn.mappings = [mapping if mapping is not None else {} for mapping in now]
        turn.dicts = all(isinstance(mapping, dict) for mapping in turn.mappings)

    def _check_turn(self, turn: _Turn, step: int, full: bool) -> List[Change]:
        parts = turn.parts()
        deep = range(DEEP) if full else range(turn.deep_next, turn.deep_next + 1)
        turn.deep_next = (turn.deep_next + 1) % DEEP
        suspects = [] if turn.right() else turn.suspects()
        wrong_parts = {part for part in deep if not turn.right_deep(*parts[part])}
        more = {i for part in wrong_parts for i in range(*parts[part])}
        found = []
        for i in sorted(more.union(suspects)):
            change = self._compare(turn, i)
            if change is not None:
                found.append(change)
        if not found:
            turn.step = step
            for part in deep:
                turn.deep_step[part] = step
        return found

    def _compare(self, turn: _Turn, i: int) -> Optional[Change]:
        """What has happened to one entry, in every respect. None: nothing."""
        import torch

        entry, value, seen = turn.entries[i], turn.values[i], turn.seen[i]
        there = turn.mappings[i].get(turn.keys[i])
        if there is not value and self._is_gathered(there, value):
            there = value
        since = turn.step

        def change(kind: Kind, now: Any, detail: str) -> Change:
            return Change(kind, entry, entry.key, now, since, f"{entry.key} {detail}")

        if there is None:
            return change(Kind.GONE, None, "is no longer there")
        if not isinstance(there, torch.Tensor):
            return change(Kind.GONE, None, f"is a {type(there).__name__} now, no tensor")
        plain = _plain(there)
        now = _Seen.of(plain)
        if plain.numel() and plain.device.type in ("cpu", "cuda"):
            nbytes = plain.untyped_storage().nbytes()
            if nbytes == 0 or plain.untyped_storage().data_ptr() == 0:
                return change(Kind.FREED, there, "has no memory: its storage was freed")
            if nbytes < storage_end(plain):
                need = storage_end(plain)
                return change(Kind.RESIZED, there, f"needs {need} bytes of its storage, which has {nbytes}")
        same_object = there is value and plain is turn.plain[i] and now.address == seen.address
        if same_object:  # then only a look at shapes can have found it
            since = turn.deep_step[next(k for k, (first, end) in enumerate(turn.parts()) if first <= i < end)]
        for what in ("shape", "dtype", "device"):
            old, new = getattr(seen, what), getattr(now, what)
            if old != new:
                return change(Kind.RESHAPED, there, f"has {what} {_text(new)}, and {_text(old)} was declared")
        spec = getattr(there, "_spec", None)
        if spec is not turn.specs[i] and spec != turn.specs[i]:
            return change(Kind.RESHAPED, there, "is another DTensor: its mesh, placements or global shape differ")
        if there is not value:
            return change(Kind.REPLACED, there, "is another object than the one that was declared")
        if not same_object:
            return change(Kind.REPLACED, there, "has other memory than the one that was declared")
        if now.stride != seen.stride:
            return change(Kind.REPLACED, there, f"has strides {now.stride}, and {seen.stride} were declared")
        return None

    def _is_gathered(self, there: Any, value: "torch.Tensor") -> bool:
        """Is `value` FSDP2's sharded parameter, while the gathered one stands in the module?"""
        if self._gathered is None:
            params = [param for module in self._modules for param in fsdp_params(module)]
            self._gathered = {id(param.sharded_param): getattr(param, "_unsharded_param", None) for param in params}
        return there is not None and self._gathered.get(id(value)) is there


def _hooks(watch: Watch) -> List[Any]:
    """Hooks of torch for every parameter, buffer and child that any module registers: torch 2.0 to 2.15. They are not
    on the user's modules, which can still be copied and pickled."""
    from torch.nn.modules import module as torch_module

    ref = weakref.ref(watch)

    def registered(module: Any, name: str, value: Any) -> None:
        mine = ref()
        if mine is not None and id(module) in mine._ids:
            mine._registered = True

    handles = [
        torch_module.register_module_parameter_registration_hook(registered),
        torch_module.register_module_buffer_registration_hook(registered),
        torch_module.register_module_module_registration_hook(registered),
    ]
    for handle in handles:
        weakref.finalize(watch, handle.remove)
    return handles


def _aliased(found: List[Change], turns: Sequence[_Turn]) -> List[Change]:
    """Name those whose new memory is another tensor's. Memory that had two names from the start is not named, nor are
    ranges with gaps, for two of them can overlap and share no element."""
    moved = {id(change.entry): change for change in found}
    spans: List[Tuple[int, int, int, "Entry"]] = []  # start, end, start at the declaration
    for turn in turns:
        for entry, plain, seen in zip(turn.entries, turn.plain, turn.seen):
            change = moved.get(id(entry))
            if change is not None:
                if change.value is None or change.kind in (Kind.FREED, Kind.GONE):
                    continue
                plain = _plain(change.value)
            if plain.numel() and plain.is_contiguous():
                start = plain.data_ptr()
                spans.append((start, start + plain.numel() * plain.element_size(), seen.address, entry))
    spans.sort(key=lambda span: span[:2])
    other: Dict[int, "Entry"] = {}
    widest = None
    for span in spans:
        if widest is not None and span[0] < widest[1] and span[2] != widest[2]:
            for one, two in ((span[3], widest[3]), (widest[3], span[3])):
                if id(one) in moved:
                    other.setdefault(id(one), two)
        if widest is None or span[1] > widest[1]:
            widest = span
    return [
        change if id(change.entry) not in other else change._replace(
            kind=Kind.ALIASED, detail=f"{change.name} shares the memory of {other[id(change.entry)].key} now"
        )
        for change in found
    ]  # fmt: skip


def _plain(tensor: "torch.Tensor") -> "torch.Tensor":
    """The plain tensor under a DTensor; another tensor as it is."""
    local: "torch.Tensor" = getattr(tensor, "_local_tensor", tensor)
    return local


def _address(plain: "torch.Tensor") -> int:
    return _calls().address(plain)


def _floating(tensor: "torch.Tensor") -> bool:
    return bool(tensor.is_floating_point())


def _inner(state: Any) -> List[Dict[Any, Any]]:
    return [inner for inner in state.values() if isinstance(inner, dict)]


def _tensor_keys(mapping: Dict[Any, Any]) -> FrozenSet[Any]:
    import torch

    return frozenset(key for key, value in mapping.items() if isinstance(value, torch.Tensor))


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value).replace("torch.", "")
