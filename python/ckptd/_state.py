# SPDX-License-Identifier: Apache-2.0
"""The list of everything that a checkpoint of a model and its optimizers holds: collect(). `run` calls it at attach,
and again when an optimizer has made state.

Names, classes and roles follow one rule each, said at the functions below. Everything that cannot be saved is listed in
State.problems, with its name; State.check() raises them as one exception. No collective is called, and no tensor is
copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from . import _abi, _flat, _layout, _mesh, _names, _nested
from ._optim import create_state, create_state_like
from ._types import Entry, Home, Layout, Mesh

if TYPE_CHECKING:
    import torch

__all__ = ["Loose", "Parameter", "State", "UnsupportedState", "collect", "create_state", "create_state_like"]

STABLE, VOLATILE, DERIVED = _abi.CKPT_STABLE, _abi.CKPT_VOLATILE, _abi.CKPT_DERIVED
OTHER, PARAM, MASTER, BUFFER = _abi.CKPT_OTHER, _abi.CKPT_PARAM, _abi.CKPT_MASTER, _abi.CKPT_BUFFER
MOMENT1, MOMENT2, COUNTER = _abi.CKPT_MOMENT1, _abi.CKPT_MOMENT2, _abi.CKPT_COUNTER
_F32, _HALF = _abi.CKPT_F32, (_abi.CKPT_F16, _abi.CKPT_BF16)

_ROLES = {
    "step": COUNTER,
    "exp_avg": MOMENT1,
    "momentum_buffer": MOMENT1,
    "exp_avg_sq": MOMENT2,
    "exp_inf": MOMENT2,
    "square_avg": MOMENT2,
    "sum": MOMENT2,
    "variance": MOMENT2,
}


class UnsupportedState(TypeError):
    """The training state has tensors that cannot be saved. .problems: one sentence each, with the tensor's name."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("%d of the tensors cannot be saved:\n%s" % (len(problems), "\n".join(problems)))


@dataclasses.dataclass(frozen=True)
class Loose:
    """A value of an optimizer's state that is no tensor, as an int `step`: mapping[key] at each step, for a blob."""

    component: str
    name: str
    mapping: MutableMapping[Any, Any]
    key: Any


@dataclasses.dataclass
class Parameter:
    """One parameter of the model, as its optimizer state is named and cut."""

    name: str  # its first name, without the component
    tensor: "torch.Tensor"
    layout: Optional[Layout]  # None: it cannot be saved
    pieces: Tuple[Tuple[str, _flat.Piece, int], ...] = ()  # of FSDP1: name, piece, and its offset in the tensor
    alias: str = ""  # another parameter has this memory: the name that this one has itself


@dataclasses.dataclass
class State:
    entries: List[Entry] = dataclasses.field(default_factory=list)
    aliases: Dict[str, str] = dataclasses.field(default_factory=dict)  # COMPONENT/ALIAS -> COMPONENT/NAME
    problems: List[str] = dataclasses.field(default_factory=list)
    loose: List[Loose] = dataclasses.field(default_factory=list)
    # modules with a get_extra_state() of their own: (name, module)
    extra_states: List[Tuple[str, Any]] = dataclasses.field(default_factory=list)
    parameters: Dict["torch.Tensor", Parameter] = dataclasses.field(default_factory=dict)
    # tensors that a buffer shares its memory with: COMPONENT/NAME
    aliased_buffers: List[str] = dataclasses.field(default_factory=list)
    plain_mesh: Optional[Mesh] = None  # of plain tensors

    def check(self) -> None:
        """Raise UnsupportedState if there are problems."""
        if self.problems:
            raise UnsupportedState(self.problems)


def collect(
    model: Any,
    optims: Any,
    *,
    rank: int,
    world: int,
    masters: Optional[Mapping[Any, Any]] = None,
    components: Optional[Sequence[str]] = None,
    ranks: Optional[Sequence[int]] = None,
) -> State:
    """Everything of this rank that is saved: one Entry for each tensor, in the same order on each rank.

    model: a module; a sequence of modules; a mapping of names to modules; None.
    optims: an optimizer; a sequence or a mapping of them; None.
    masters: the F32 master of BF16 or F16 parameters, where the optimizer updates masters: {parameter, or its name:
    master}.
    components: of the optimizers; None: "optim", and "optim1", ... for one that has a parameter of an earlier one.
    ranks: that hold this rank's plain tensors alike (a pipeline stage); None: those of the stage that the model's
    DTensors name, or the whole world.

    Parameters are STABLE, also frozen ones (those that _frozen names are made CONST afterwards). Persistent buffers are
    VOLATILE. Optimizer state is STABLE. A BF16 or F16 parameter with an F32 master of the same cut is DERIVED of it.
    """
    with uncollected():
        return _Collector(rank, world, masters or {}, ranks).run(model, optims, components)


def grown(state: State, optims: Sequence[Any], components: Sequence[str], *, rank: int, world: int) -> Optional[State]:
    """What the optimizers have made since `state` was collected, without masters=: its new entries, and all that is loose.
    None: only collect() knows."""
    if any(about.pieces for about in state.parameters.values()):
        return None
    with uncollected():
        collector = _Collector(rank, world, {}, None)
        more = collector.more(state, optims, components)
    return None if more.problems or any(e.role == MASTER for e in more.entries) else more


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of cycles would walk over all objects again and again while the entries become more: half of
    the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def optimizers_of(optims: Any) -> List[Any]:
    """The optimizers as a list, each once."""
    if optims is None:
        return []
    if hasattr(optims, "param_groups"):
        return [optims]
    found: List[Any] = []
    for optim in optims.values() if isinstance(optims, Mapping) else optims:
        if not hasattr(optim, "param_groups") or not hasattr(optim, "state"):
            raise TypeError("%s is no optimizer: it lacks param_groups or state" % type(optim).__name__)
        if not any(optim is other for other in found):
            found.append(optim)
    return found


def components_of(optims: Sequence[Any]) -> List[str]:
    """ "optim" for all, but "optim1", ... for one that has a parameter of an earlier optimizer of its component."""
    taken: List[set[Any]] = []
    found = []
    for optim in optims:
        params = {p for group in optim.param_groups for p in group["params"]}
        for i, others in enumerate(taken):
            if not others & params:
                break
        else:
            i = len(taken)
            taken.append(set())
        taken[i] |= params
        found.append("optim%d" % i if i else "optim")
    return found


class _Collector:
    """One call of collect()."""

    def __init__(self, rank: int, world: int, masters: Mapping[Any, Any], ranks: Optional[Sequence[int]]) -> None:
        self.rank = rank
        self.world = world
        self.masters = masters
        self.ranks = ranks
        self.state = State()
        self.by_key: Dict[str, Entry] = {}
        self.by_memory: Dict[Tuple[Any, ...], Entry] = {}
        self.entry_of: Dict["torch.Tensor", str] = {}
        self.flats: Dict[Any, Tuple[_flat.Flat, Optional[int]]] = {}
        self.flat_names: Dict[int, List[str]] = {}
        self.dtensor: Any = _layout.dtensor_class()
        self.updating: Any = None  # the optimizer whose state is collected
        self.growing = False  # what is there already is right

    def run(self, model: Any, optims: Any, components: Optional[Sequence[str]]) -> State:
        modules = _names.modules_of(model)
        if self.ranks is None:
            self.ranks = self._stage(modules)
        self.plain_mesh = _mesh.world_mesh(self.ranks if self.ranks is not None else range(self.world))
        self.state.plain_mesh = self.plain_mesh
        self._flats(modules)
        for prefix, module in modules:
            self._module(prefix, module)
        self._flat_aliases(modules)
        each = optimizers_of(optims)
        names = list(components) if components is not None else components_of(each)
        if len(names) != len(each):
            raise ValueError("%d components for %d optimizers" % (len(names), len(each)))
        owners = self._masters_named()
        for optim, component in zip(each, names):
            self._optimizer(optim, component, owners)
        self._derive()
        return self.state

    def more(self, known: State, optims: Sequence[Any], components: Sequence[str]) -> State:
        """Of the optimizers, what is not known."""
        assert known.plain_mesh is not None
        self.state.parameters, self.plain_mesh = known.parameters, known.plain_mesh
        self.by_key = {entry.key: entry for entry in known.entries}
        self.growing = True
        for optim, component in zip(optims, components):
            self._optimizer(optim, component, {})
        return self.state

    # --- the model ---

    def _stage(self, modules: Iterable[Tuple[str, Any]]) -> Optional[Sequence[int]]:
        """The ranks of this rank's pipeline stage, if the root mesh of the first DTensor says that there are stages."""
        if self.dtensor is None:
            return None
        for _, module in modules:
            for p in module._parameters.values():
                if isinstance(p, self.dtensor):
                    try:
                        mesh = _mesh.lift(p._spec.mesh).mesh
                        root = _mesh.root_of(p._spec.mesh)
                    except ValueError:
                        return None
                    stages = any(str(n).lower() in _mesh.STAGES for n in getattr(root, "mesh_dim_names", None) or ())
                    return mesh.ranks if stages and self.rank in mesh.ranks else None
        return None

    def _flats(self, modules: Sequence[Tuple[str, Any]]) -> None:
        """FSDP1: which parameters are flat, or are pieces of a flat one, and the names of their pieces."""
        flats: List[_flat.Flat] = []
        seen = set()
        for prefix, module in modules:
            if "_handle" not in module.__dict__ or id(module) in seen:
                continue
            seen.add(id(module))
            try:
                flats += _flat.flat_parameters(iter((module,)), self.rank)
            except _layout.Unsupported as e:
                self._problem("model", prefix + "(FSDP)", str(e))
        if not flats:
            return
        self.flats = _flat.pieces_by_parameter(flats)
        where = {id(module): prefix for prefix, module in reversed(modules)}
        for flat in flats:
            prefix = where.get(id(flat.module), "")
            self.flat_names[id(flat)] = [prefix + _names.strip(p.name) for p in flat.pieces]

    def _module(self, prefix: str, module: Any) -> None:
        kind = type(module)
        for name, p in module._parameters.items():
            if p is not None:
                self._parameter(prefix + name, p, Home(module._parameters, name, p))
        skipped = module._non_persistent_buffers_set
        for name, b in module._buffers.items():
            if b is not None and name not in skipped:
                self._tensor("model", prefix + name, b, BUFFER, VOLATILE, Home(module._buffers, name, b))
                if "model/" + prefix + name in self.state.aliases:
                    self.state.aliased_buffers.append(self.state.aliases["model/" + prefix + name])
        if getattr(kind, "get_extra_state", None) is not _module_extra_state():
            self.state.extra_states.append((prefix[:-1], module))

    def _parameter(self, name: str, p: Any, home: Home) -> None:
        flat = self.flats.get(p) if self.flats else None
        if flat is not None:
            self._flat_parameter(name, p, home, *flat)
            return
        layout = self._tensor("model", name, p, PARAM, STABLE, home)
        if p not in self.state.parameters:
            first = self.state.aliases.get("model/" + name, "model/" + name)[len("model/") :]
            self.state.parameters[p] = Parameter(first, p, layout, alias=name)

    def _flat_parameter(self, name: str, p: Any, home: Home, flat: _flat.Flat, which: Optional[int]) -> None:
        if p in self.state.parameters:
            key = self.entry_of[p]
            self.state.aliases["model/" + name] = key
            self.by_key[key].aliases += (name,)
            return
        if which is not None:
            pieces = [(name, flat.pieces[which], 0)]
            self.flat_names[id(flat)][which] = name
        else:
            pieces = [(n, piece, piece.offset) for n, piece in zip(self.flat_names[id(flat)], flat.pieces)]
        dtype = self._dtype("model", name, p)
        self.state.parameters[p] = Parameter(name, p, None, tuple(pieces))
        for n, piece, offset in pieces:
            if dtype is not None:
                self._add(Entry("model", n, PARAM, STABLE, dtype, piece.layout(p, offset), home))
                self.entry_of.setdefault(p, "model/" + n)

    def _flat_aliases(self, modules: Sequence[Tuple[str, Any]]) -> None:
        """FSDP1 registers a tied parameter once (without use_orig_params): the other names are in its notes."""
        where = {id(module): prefix for prefix, module in reversed(modules)}
        for flat in {id(f): f for f, _ in self.flats.values()}.values():
            for module, name, piece in flat.shared:
                alias, key = where.get(id(module), "") + name, "model/" + self.flat_names[id(flat)][piece]
                if "model/" + alias != key and "model/" + alias not in self.state.aliases and key in self.by_key:
                    self.state.aliases["model/" + alias] = key
                    self.by_key[key].aliases += (alias,)

    # --- one tensor ---

    def _problem(self, component: str, name: str, why: str) -> None:
        self.state.problems.append("%s/%s: %s" % (component, name, why))

    def _dtype(self, component: str, name: str, tensor: Any) -> Optional[int]:
        try:
            return _layout.dtype_of(tensor.dtype)
        except _layout.Unsupported as e:
            self._problem(component, name, str(e))
            return None

    def _tensor(
        self,
        component: str,
        name: str,
        tensor: Any,
        role: int,
        cls: int,
        home: Home,
        of: Optional[str] = None,
        owner: Optional[Parameter] = None,
    ) -> Optional[Layout]:
        """Add a tensor, the tensors inside a wrapper subclass, or another name of a tensor. Returns its layout."""
        memory = self._memory(tensor) if component == "model" else None
        if memory is not None:
            known = self.by_memory.get(memory)
            if known is not None:
                if known.key != component + "/" + name:
                    self.state.aliases[component + "/" + name] = known.key
                    known.aliases += (name,)
                return known.layout
        try:
            inner = _inner_tensors(tensor)
            if inner is not None:
                for attr, t in inner:
                    where = Home(_names.Attributes(tensor, (attr,)), attr, t)
                    self._tensor(component, name + "." + attr, t, role, cls, where, of)
                return None
            layout = self._layout(tensor, owner)
            entry = Entry(component, name, role, cls, _layout.dtype_of(tensor.dtype), layout, home, of)
        except (_layout.Unsupported, ValueError) as e:
            self._problem(component, name, str(e))
            return None
        self._add(entry)
        if memory is not None:
            self.by_memory[memory] = entry
        return layout

    def _memory(self, tensor: Any) -> Tuple[Any, ...]:
        """Equal of two tensors that are one: the same object, or the same elements of the same storage."""
        local = tensor._local_tensor if self.dtensor is not None and isinstance(tensor, self.dtensor) else tensor
        try:
            if tensor.numel() == 0:
                return (id(tensor),)
            storage = local.untyped_storage()
            return (storage._cdata, local.storage_offset(), tensor.shape, local.stride(), local.dtype)
        except (AttributeError, NotImplementedError, RuntimeError):
            return (id(tensor),)  # sparse tensors and wrapper subclasses have no storage

    def _layout(self, tensor: Any, owner: Optional[Parameter]) -> Layout:
        if owner is not None:
            return self._state_layout(tensor, owner)
        if type(tensor) in _PLAIN() and not hasattr(tensor, "global_offsets"):
            _layout.plain_check(tensor)
            return _layout.replicated(tensor, self.plain_mesh)
        return _layout.describe(tensor, rank=self.rank, world=self.world, ranks=self.ranks)

    def _add(self, entry: Entry) -> None:
        why = _names.name_problem(entry.name)
        if why is not None:
            self._problem(entry.component, entry.name[:80], why)
            return
        other = self.by_key.get(entry.key)
        if other is not None:
            self._problem(entry.component, entry.name, "two tensors have this name: rename one of the modules")
            return
        self.by_key[entry.key] = entry
        self.state.entries.append(entry)

    # --- optimizers ---

    def _masters_named(self) -> Dict["torch.Tensor", Tuple[Parameter, Any]]:
        """Of each master in `masters`: the parameter it is the master of, and its key in `masters`."""
        by_name = {p.name: p for p in self.state.parameters.values()}
        by_name.update({a: by_name[k[6:]] for a, k in self.state.aliases.items() if k[6:] in by_name})
        found: Dict["torch.Tensor", Tuple[Parameter, Any]] = {}
        for key, master in self.masters.items():
            name = key if isinstance(key, str) else None
            owner = by_name.get(_names.strip(name)) if name is not None else self.state.parameters.get(key)
            if owner is None:
                self._problem("model", name or "(masters)", "masters= names it, but it is no parameter of the model")
            else:
                found[master] = (owner, key)
        return found

    def _optimizer(self, optim: Any, component: str, owners: Dict["torch.Tensor", Tuple[Parameter, Any]]) -> None:
        inner = local_optimizer(optim)
        alone = inner is not optim
        state = inner.state
        self.updating = inner
        updated: Dict[str, Any] = {}
        for g, group in enumerate(optim.param_groups):
            for i, p in enumerate(group["params"]):
                owner = self.state.parameters.get(p)
                if owner is None and p in owners:
                    owner = self._master(p, owners[p][0], component, Home(_names.Items(group["params"]), i, p))
                if owner is None:
                    self._problem(
                        component,
                        "param_groups.%d.%d" % (g, i),
                        "the optimizer updates a tensor of shape %s that is no parameter of the model: make the "
                        "optimizer after the model was wrapped, or say in masters= whose master it is"
                        % (tuple(p.shape),),
                    )
                    continue
                if self._updated_twice(p, owner, updated):
                    continue
                values = state.get(p)
                if values:
                    self._values(component, owner, p, values, alone)
        for key, value in list(state.items()):
            if isinstance(key, str) and isinstance(value, dict):
                self._values(component, None, key, value, alone)
            elif isinstance(key, str):
                self._value(component, None, key, False, Home(state, key, value), ["state", key])

    def _updated_twice(self, p: Any, owner: Parameter, updated: Dict[str, Any]) -> bool:
        """Two parameters that share their memory are one tensor: an optimizer that has both would update it twice."""
        other = updated.setdefault(owner.name, p)
        if other is p:
            return False
        why = "the optimizer updates it and model/%s, which are the same memory: tie them (a.weight = b.weight)"
        self._problem("model", owner.alias or owner.name, why % owner.name)
        return True

    def _master(self, p: Any, owner: Parameter, component: str, home: Home) -> Parameter:
        """An F32 master that the optimizer updates in place of the parameter."""
        of = "model/" + owner.name
        self._tensor(component, owner.name + ".master", p, MASTER, STABLE, home, of, owner)
        entry = self.by_key.get(component + "/" + owner.name + ".master")
        return Parameter(owner.name, p, entry.layout if entry is not None else owner.layout, owner.pieces)

    def _values(self, component: str, owner: Optional[Parameter], of: Any, values: Any, alone: bool) -> None:
        """What optim.state[of] has. of: a parameter; a string, if the optimizer keeps state of all parameters there."""
        path = [] if owner is not None else ["state", str(of)]
        for key in list(values):
            self._value(component, owner, of, alone, Home(values, key, values[key]), path + [str(key)])

    def _value(
        self, component: str, owner: Optional[Parameter], of: Any, alone: bool, home: Home, path: List[str]
    ) -> None:
        """One value of an optimizer's state: a tensor, a container of values, or something for a blob."""
        import torch

        value: Any = home.value
        name = ".".join(([owner.name] if owner is not None else []) + path)
        if isinstance(value, torch.Tensor):
            self._state_tensor(component, name, owner, alone, home, path)
        elif _nested.is_container(value):
            outer: Any = home.mapping
            where: Tuple[Any, ...] = (home.key,) if outer is not self.updating.state else ()
            inside = _nested.Inside(
                self.updating, of, (outer.path if isinstance(outer, _nested.Inside) else ()) + where
            )
            for key, child in _nested.children(value):
                self._value(component, owner, of, alone, Home(inside, key, child), path + [str(key)])
        elif value is not None:
            self.state.loose.append(Loose(component, name, home.mapping, home.key))

    def _state_tensor(
        self, component: str, name: str, owner: Optional[Parameter], alone: bool, home: Home, path: List[str]
    ) -> None:
        tensor: Any = home.value
        if self.growing and component + "/" + name in self.by_key:
            return
        if owner is None:
            self._tensor(component, name, tensor, OTHER, STABLE, home)
            return
        if owner.pieces:
            self._flat_state(component, owner, home, path)
            return
        role = _role(path[-1], tensor)
        self._tensor(component, name, tensor, role, STABLE, home, "model/" + owner.name, owner)
        if alone:
            self._alone(self.by_key.get(component + "/" + name))

    def _alone(self, entry: Optional[Entry]) -> None:
        """ZeroRedundancyOptimizer: this rank alone has the state of this parameter, which is all in one box."""
        if entry is None:
            return
        shape = entry.layout.shape
        parts = [dataclasses.replace(p, start=(0,) * len(shape), extent=shape) for p in entry.layout.parts]
        entry.layout = _layout.boxes(shape, None, parts)

    def _flat_state(self, component: str, owner: Parameter, home: Home, path: List[str]) -> None:
        """State of FSDP1: what has the shard's shape is cut like it; one number is the same for each piece."""
        tensor: Any = home.value
        whole = tensor.dim() > 0 and tuple(tensor.shape) == tuple(owner.tensor.shape)
        for n, piece, offset in owner.pieces:
            name = n + "." + ".".join(path)
            if tensor.numel() != 1 and not whole:
                self._problem(component, name, "its shape %s is not that of FSDP's shard" % (tuple(tensor.shape),))
                continue
            if not whole and self.rank not in piece.holders.ranks:
                continue
            try:
                _layout.plain_check(tensor)
                dtype = _layout.dtype_of(tensor.dtype)
            except _layout.Unsupported as e:
                self._problem(component, name, str(e))
                continue
            layout = piece.layout(tensor, offset) if whole else _layout.replicated(tensor, piece.holders)
            self._add(Entry(component, name, _role(path[-1], tensor), STABLE, dtype, layout, home, "model/" + n))

    def _state_layout(self, tensor: Any, owner: Parameter) -> Layout:
        """Optimizer state is cut like its parameter if it has its shape, and is replicated on its mesh otherwise."""
        if self.dtensor is not None and isinstance(tensor, self.dtensor):
            return _layout.describe(tensor, rank=self.rank, world=self.world)
        _layout.plain_check(tensor)
        cut = owner.layout
        mesh: Mesh = cut.mesh if cut is not None and cut.mesh is not None else self.plain_mesh
        if cut is None or tensor.numel() == 1 and tensor.dim() == 0:
            return _layout.replicated(tensor, mesh)
        if not cut.placements and cut.mode != _layout.BOXES:
            return _layout.replicated(tensor, mesh)
        return _like_parameter(tensor, owner, cut, mesh)

    # --- masters ---

    def _derive(self) -> None:
        for entry in self.state.entries:
            if entry.role != MASTER or entry.of is None:
                continue
            param = self.by_key.get(entry.of)
            if param is None or param.cls != STABLE or param.dtype not in _HALF or entry.dtype != _F32:
                continue
            if _layout.same_cut(param.layout, entry.layout):
                param.cls, param.of = DERIVED, entry.key


def _like_parameter(tensor: Any, owner: Parameter, cut: Layout, mesh: Mesh) -> Layout:
    """A plain tensor of the state of a parameter that is cut."""
    local = getattr(owner.tensor, "_local_tensor", owner.tensor)
    shape = tuple(tensor.shape)
    if shape == tuple(local.shape) and cut.mode != _layout.BOXES:
        parts = tuple(dataclasses.replace(p, local=tensor) for p in cut.parts)
        return dataclasses.replace(cut, parts=parts)
    if shape == tuple(local.shape) and getattr(owner.tensor, "global_offsets", None) is not None:
        return _layout.checkpointable(tensor, owner.tensor)
    if tensor.numel() == 1 or shape == cut.shape:
        return _layout.replicated(tensor, mesh)
    raise _layout.Unsupported(
        "its shape %s is neither that of the parameter, %s, nor that of the rank's share of it, %s: ckptd cannot know "
        "which elements of the state it has; make it a DTensor" % (shape, cut.shape, tuple(local.shape))
    )


def _role(key: str, tensor: Any) -> int:
    if tensor.dim() > 0 and tensor.dtype.is_floating_point and tensor.dtype.itemsize == 4:
        if "master" in key or "fp32" in key:
            return MASTER
    role = _ROLES.get(key, OTHER)
    return OTHER if role == COUNTER and tensor.dim() > 0 else role


def local_optimizer(optim: Any) -> Any:
    """The optimizer that has the state: of ZeroRedundancyOptimizer the one inside, of this rank's parameters alone."""
    inner = getattr(optim, "optim", None)
    if inner is not None and type(optim).__name__ == "ZeroRedundancyOptimizer":
        return inner
    return optim


def _inner_tensors(tensor: Any) -> Optional[List[Tuple[str, Any]]]:
    """The tensors inside a wrapper subclass with __tensor_flatten__ (torchao); None: it is no such class."""
    if type(tensor) in _PLAIN() or _layout.is_dtensor(tensor) or not hasattr(tensor, "__tensor_flatten__"):
        return None
    found = []
    for attr in tensor.__tensor_flatten__()[0]:
        found.append((str(attr), getattr(tensor, attr)))
    return found


_plain_types: Tuple[type, ...] = ()


def _PLAIN() -> Tuple[type, ...]:
    global _plain_types
    if not _plain_types:
        import torch

        _plain_types = (torch.Tensor, torch.nn.Parameter)
    return _plain_types


def _module_extra_state() -> Any:
    import torch

    return torch.nn.Module.get_extra_state
