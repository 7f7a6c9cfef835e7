# SPDX-License-Identifier: Apache-2.0
"""The random generators of a process: python, numpy, torch, CUDA, and what DTensor keeps beside them. `_extra` calls
this.
"""

from __future__ import annotations

import array
import hashlib
import logging
import random
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _codec, _cuda

log = logging.getLogger("ckptd")


def _pack(words: Sequence[int]) -> bytes:
    """32-bit words as bytes: 16 us for the 625 of a Mersenne Twister, against 60 as a list in JSON."""
    a = array.array("I", words)
    if sys.byteorder == "big":
        a.byteswap()
    return a.tobytes()


def _unpack(raw: bytes) -> Tuple[int, ...]:
    a = array.array("I", raw)
    if sys.byteorder == "big":
        a.byteswap()
    return tuple(a)


def _python_get() -> Any:
    version, words, gauss = random.getstate()
    return {"version": version, "words": _pack(words), "gauss": gauss}


def _python_put(saved: Any, at: Any = random) -> None:
    at.setstate((saved["version"], _unpack(saved["words"]), saved["gauss"]))


def _tracker_states() -> Optional[Dict[Any, Any]]:
    """The states that DTensor's tracker keeps: torch 2.4 to 2.8 had its own ("parallel-rng"); later ones use the
    device's.

    The tracker exists only on devices like CUDA, and after the first random operation or manual_seed on a DTensor.
    """
    module = sys.modules.get("torch.distributed.tensor._random") or sys.modules.get("torch.distributed._tensor.random")
    states = getattr(getattr(module, "_rng_tracker", None), "rng_states", None)
    return states if isinstance(states, dict) else None


class Rng:
    """The global random generators of this process. `ckptd.rng()` makes one; give it as an extra.

    Restored on as many ranks as saved it, every rank continues its own streams bit for bit. On another number of
    ranks rank r continues what old rank r left; fewer ranks drop the rest. A rank that did not exist continues, of
    each generator, the same stream as all others if all old ranks had the same state (and there were at least two):
    tensor parallel dropout needs that. Otherwise it begins a new stream, whose seed is a hash of the state of old
    rank r % old_world and of r // old_world: new ranks differ as far as the old ranks differed, and two restores of
    one step give the same streams.
    """

    def state_dict(self) -> Dict[str, Any]:
        """The states now, about 10 kB. numpy, torch and CUDA are in it if the program has imported or used them."""
        out: Dict[str, Any] = {"python": _python_get()}
        numpy, torch, cuda = sys.modules.get("numpy"), sys.modules.get("torch"), _cuda.used()
        if numpy is not None and hasattr(numpy, "random"):
            out["numpy"] = numpy.random.get_state()
        if torch is not None and hasattr(torch, "default_generator"):
            out["torch"] = torch.default_generator.get_state()
        if cuda is not None:
            out["cuda"] = {"device": cuda.current_device(), "states": cuda.get_rng_state_all()}
        tracker = _tracker_states()
        if tracker:
            out["dtensor"] = dict(tracker)
        return out

    def load_state_dict(self, saved: Dict[str, Any]) -> Optional[str]:
        """Put the states back. Returns a sentence about generators that this process does not have, or None."""
        left, said = [], []
        for name, state in saved.items():
            put = _PUT.get(name)
            done = put(state) if put is not None else False
            if isinstance(done, str):
                said.append(done)
            elif not done:
                left.append(name)
        if left:
            text = "the random state of %s was saved, and is not in use here: it was not restored"
            said.append(text % ", ".join(left))
        return "; ".join(said) or None

    def check(self, saved: Dict[str, Any]) -> None:
        """Raise what load_state_dict would raise, as far as it can be known without the generators themselves."""
        for name, state in saved.items():
            if name in _TRIALS and _seed(state) is None:
                _TRIALS[name](state)

    def derive(self, old: Sequence[Dict[str, Any]], rank: int) -> Dict[str, Any]:
        """The state of a rank that the old job did not have. old: the states of its ranks, in order."""
        mine = dict(old[rank % len(old)])
        for name in mine:
            seen = {_codec.encode(o.get(name)) for o in old}
            if len(old) > 1 and len(seen) == 1:
                continue
            seed = hashlib.sha256(_codec.encode([mine[name], rank // len(old)])).digest()
            mine[name] = {"$seed": int.from_bytes(seed, "little")}
        return mine


def _seed(state: Any) -> Optional[int]:
    """The seed of a derived stream. A saved state never has this key."""
    seed = state.get("$seed") if isinstance(state, dict) else None
    return seed if isinstance(seed, int) else None


def _put_python(state: Any) -> bool:
    seed = _seed(state)
    if seed is None:
        _python_put(state)
    else:
        random.seed(seed)
    return True


def _put_numpy(state: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return False
    seed = _seed(state)
    if seed is None:
        numpy.random.set_state(state)
    else:
        numpy.random.seed([seed >> 32 * i & 0xFFFFFFFF for i in range(8)])
    return True


def _put_torch(state: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "default_generator"):
        return False
    seed = _seed(state)
    if seed is None:
        torch.default_generator.set_state(state)
    else:
        torch.default_generator.manual_seed(seed & 0xFFFFFFFFFFFFFFFF)
    return True


def _put_cuda(state: Any) -> Union[bool, str]:
    """What was the state of the current device is that of the current device again: local ranks may have been
    exchanged. If there are more or fewer devices now, this alone is restored, and the sentence says so.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return False
    seed = _seed(state)
    if seed is not None:
        for device in range(cuda.device_count()):
            cuda.default_generators[device].manual_seed((seed + device) & 0xFFFFFFFFFFFFFFFF)
        return True
    before, now = len(state["states"]), cuda.device_count()
    if before == now:
        for device, one in enumerate(state["states"]):
            cuda.set_rng_state(one, device)
    cuda.set_rng_state(state["states"][state["device"]], cuda.current_device())
    if before == now:
        return True
    return (
        "the random states of %d CUDA devices were saved, and this process has %d: that of the current device was "
        "restored, and no other" % (before, now)
    )


def _put_dtensor(state: Any) -> bool:
    tracker = _tracker_states()
    if tracker is None or _seed(state) is not None:
        return False
    tracker.update(state)
    return True


_PUT: Dict[str, Callable[[Any], Union[bool, str]]] = {
    "python": _put_python,
    "numpy": _put_numpy,
    "torch": _put_torch,
    "cuda": _put_cuda,
    "dtensor": _put_dtensor,
}


def _try_numpy(state: Any) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.RandomState().set_state(state)


def _try_torch(state: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Generator"):
        torch.Generator().set_state(state)


# The same with generators that nobody uses.
_TRIALS: Dict[str, Callable[[Any], None]] = {
    "python": lambda state: _python_put(state, random.Random()),
    "numpy": _try_numpy,
    "torch": _try_torch,
}


def rng() -> Rng:
    """The random generators of this process, for `attach(..., extra={"rng": ckptd.rng()})`. See Rng."""
    return Rng()


_Put = Callable[[Any], None]


def generator_item(at: Any) -> Optional[Tuple[Callable[[], Any], _Put, _Put]]:
    """(get, put, check) of a random generator object that the user made: random.Random, numpy's, torch.Generator; else
    None. check: raises what put would raise; it puts the state into another generator of the kind."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(at, random.Random):
        return at.getstate, at.setstate, lambda state: random.Random().setstate(state)
    if torch is not None and isinstance(at, torch.Generator):
        return at.get_state, at.set_state, lambda state: torch.Generator(at.device).set_state(state) and None
    if numpy is not None and isinstance(at, numpy.random.RandomState):
        return at.get_state, at.set_state, lambda state: numpy.random.RandomState().set_state(state)
    if numpy is not None and isinstance(at, numpy.random.Generator):

        def put(state: Any) -> None:
            at.bit_generator.state = state

        def check(state: Any) -> None:
            type(at.bit_generator)().state = state

        return lambda: at.bit_generator.state, put, check
    return None
