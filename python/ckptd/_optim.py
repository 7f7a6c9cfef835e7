# SPDX-License-Identifier: Apache-2.0
"""Optimizer state before the first step: create_state() and create_state_like(). `run` calls them before it restores.

A checkpoint can be restored only into tensors that exist, and most optimizers make their state in the first step. The
state is made here as the optimizer's own code makes it, or as a checkpoint says that it was. No step is taken:
parameters, gradients, `step` and random numbers stay as they are. No collective is called.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from . import _layout, _nested
from ._names import strip

if TYPE_CHECKING:
    import torch


class Saved(Protocol):
    """A tensor of a checkpoint, as ckpt_tensors lists it (struct ckpt_tensor_info)."""

    @property
    def component(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def of(self) -> Any: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> Sequence[int]: ...


def create_state(optim: Any) -> int:
    """Make the state that the optimizer's _init_group makes in the first step, for all parameters that need gradients.

    Returns the number of parameters that got state. What exists stays as it is. 0 if the optimizer has no _init_group,
    or if it has a step() that is not of the class of its _init_group: only create_state_like() knows what such an
    optimizer needs. State that _init_group leaves to the step itself (SGD's momentum) is not made. Raises what
    _init_group raises (a fused optimizer with parameters of a type that it cannot update, for example).
    """
    inner = inner_optimizer(optim)
    init = _init_group_of(inner)
    if init is None:
        return 0
    made = 0
    for group in inner.param_groups:
        made += _group_state(inner, init, group)
    return made


def inner_optimizer(optim: Any) -> Any:
    """The optimizer that has the state: inside ZeroRedundancyOptimizer, or inside a wrapper such as accelerate's."""
    name = type(optim).__name__
    for wrapper, attribute in (("ZeroRedundancyOptimizer", "optim"), ("AcceleratedOptimizer", "optimizer")):
        if name == wrapper:
            return getattr(optim, attribute)
    return optim


def _init_group_of(optim: Any) -> Optional[Any]:
    """The optimizer's bound _init_group, if its step() is of the same class, so that the two are known to agree."""
    init = getattr(optim, "_init_group", None)
    if init is None:
        return None
    step = inspect.unwrap(type(optim).step)  # torch wraps step() in hooks, and sets the wrapper in the class

    def made_by(function: Any) -> Tuple[str, str]:
        return function.__module__, function.__qualname__.rpartition(".")[0]

    return init if made_by(step) == made_by(inspect.unwrap(type(optim)._init_group)) else None


def _group_state(optim: Any, init: Any, group: Dict[str, Any]) -> int:
    import torch

    params = [p for p in group["params"] if p.requires_grad and not optim.state.get(p)]
    if not params:
        return 0
    had = {id(p): p.grad for p in group["params"]}
    names = list(inspect.signature(init).parameters)[1:]
    # AdamW of torch 2.4 takes a setting of the group among the lists that it fills.
    lists: List[Any] = [group["amsgrad"] if name == "amsgrad" else [] for name in names]
    alone = dict(group)
    alone["params"] = params  # others may have state that _init_group would look into
    try:
        for p in params:
            p.grad = _no_gradient(p)
        with torch.no_grad():
            init(alone, *lists)
    finally:
        for p in params:
            p.grad = had[id(p)]
            _own_memory(optim.state.get(p))
        empty = [p for p in params if p in optim.state and not optim.state[p]]
        for p in empty:
            del optim.state[p]
    return sum(1 for p in params if p in optim.state)


def _own_memory(values: Optional[Dict[Any, Any]]) -> None:
    """If an optimizer has taken the strides of its gradient over, or the gradient itself: memory for each element."""
    import torch

    for key, value in (values or {}).items():
        if isinstance(value, torch.Tensor) and not _layout.is_dtensor(value) and value.layout is torch.strided:
            if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape)):
                values[key] = value.contiguous()  # type: ignore[index]


def _no_gradient(p: Any) -> Any:
    """Something with the shape, type and layout of a gradient, and the memory of one element: zeros, expanded."""
    import torch

    local = p._local_tensor if _layout.is_dtensor(p) else p
    if local.numel() == 0:
        zeros = torch.zeros(local.shape, dtype=local.dtype, device=local.device)
    else:
        zeros = torch.zeros((), dtype=local.dtype, device=local.device).expand(local.shape)
    return _layout.dtensor_like(p, zeros) if local is not p else zeros


class _Wanted(NamedTuple):
    """A tensor of the checkpoint that the state lacks."""

    key: str
    saved: Saved


def create_state_like(
    optim: Any, saved: Iterable[Saved], *, names: Mapping["torch.Tensor", str], component: str = "optim"
) -> List[str]:
    """Make the state tensors that a checkpoint has of this optimizer's parameters, and that the optimizer lacks: zeros.

    saved: what the checkpoint has. names: of the parameters, without the component (State.parameters). component: of
    the optimizer. A saved tensor COMPONENT/NAME.KEY whose `of` is model/NAME becomes optim.state[parameter][KEY]: with
    the parameter's shape like the parameter; 0-d as a plain tensor in host memory; with another shape only if the
    parameter is a plain tensor. State of FSDP1's flat parameters is flat, too. Returns one sentence for each tensor
    that cannot be made, with its name.
    """
    inner = inner_optimizer(optim)
    wanted: Dict[str, List[_Wanted]] = {}
    problems: List[str] = []
    for t in saved:
        if t.component == component and not t.of and t.name.startswith("state."):
            why = _make_shared(inner, t)
            if why:
                problems.append("%s/%s: %s" % (component, t.name, why))
        elif t.component == component and t.of and t.of.startswith("model/"):
            name = t.of[len("model/") :]
            if t.name.startswith(name + "."):
                wanted.setdefault(name, []).append(_Wanted(t.name[len(name) + 1 :], t))
    for group in inner.param_groups:
        for p in group["params"]:
            for want in (want for name in _names_of(p, names) for want in wanted.get(name, ())):
                if want.key in inner.state.get(p, ()):
                    continue
                why = _make(inner, p, want)
                if why:
                    problems.append("%s/%s: %s" % (component, want.saved.name, why))
    return problems


def _make_shared(optim: Any, saved: Saved) -> Optional[str]:
    """Set one tensor of state that belongs to no parameter, optim.state["global"]["norm"]; what is wrong, otherwise."""
    import torch

    path = saved.name.split(".")[1:]
    here = optim.state.get(path[0]) if path[0] in optim.state else None
    if here is not None and not isinstance(here, _nested.Made):
        return None  # the optimizer has made it: what it lacks is listed
    try:
        dtype = _layout.dtype_to_torch(saved.dtype)
    except _layout.Unsupported as e:
        return str(e)
    value = torch.zeros(tuple(int(n) for n in saved.shape), dtype=dtype)
    return None if _nested.put(optim.state, path, value) else "something else is in its place"


def _names_of(p: Any, names: Mapping["torch.Tensor", str]) -> List[str]:
    """The name of a parameter; of FSDP1's flat one those of the parameters in it, which begin where its own does."""
    name = names.get(p)
    if name is None:
        return []
    if not getattr(p, "_is_flat_param", False):
        return [name]
    prefix = name.rpartition(".")[0]
    return [(prefix + "." if prefix else "") + strip(fqn) for fqn in p._fqns]


def _make(optim: Any, p: Any, want: _Wanted) -> Optional[str]:
    """Set one state tensor; what is wrong, otherwise."""
    import torch

    shape = tuple(int(n) for n in want.saved.shape)
    path = want.key.split(".")
    if len(path) > 1 and path[0] in optim.state.get(p, ()) and not isinstance(optim.state[p][path[0]], _nested.Made):
        return None  # a container, whose own code has made it
    try:
        dtype = _layout.dtype_to_torch(want.saved.dtype)
    except _layout.Unsupported as e:
        return str(e)
    with torch.no_grad():
        flat = getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False)
        if shape and (flat or shape == tuple(p.shape)):
            value = torch.zeros_like(p, dtype=dtype, requires_grad=False)
        elif not shape:
            value = torch.zeros((), dtype=dtype)
        elif _layout.is_dtensor(p) or getattr(p, "global_offsets", None) is not None:
            return (
                "it has shape %s in the checkpoint, its parameter %s, which is cut over ranks: let the optimizer make "
                "its state first, as by a step with gradients of zero" % (shape, tuple(p.shape))
            )
        else:
            value = torch.zeros(shape, dtype=dtype, device=p.device)
    return None if _nested.put(optim.state[p], path, value) else "something else is in its place"
