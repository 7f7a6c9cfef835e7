# SPDX-License-Identifier: Apache-2.0
"""CUDA as this package sees it: where a tensor lies, which stream updates it, and what cannot be saved. Everything that
is asked of torch about devices is asked here.

The library copies device memory from where it lies: nothing is moved. `run` gives it, at each mark and each guard, the
streams that are torch's current ones on the devices of the state (`Devices.streams`). So the copies come after what the
program gave these streams before the end of the step, and the next update waits for the copies.

Device numbers are torch's, which are those of the driver in this process, after CUDA_VISIBLE_DEVICES. No function here
initialises CUDA in a process that does not use it. tests/frameworks/test_cuda_fake.py puts a driver without a GPU in
the place of `index_of`, `current_stream`, `capturing` and `synchronize`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Sequence, Tuple

if TYPE_CHECKING:
    import torch

CAPTURED = (
    "a CUDA graph is being captured, so nothing was computed. Capture outside of run.step, and replay inside: "
    "with run.step(n): graph.replay()"
)


def used() -> Any:
    """torch.cuda, if this process uses it; else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def index_of(tensor: "torch.Tensor") -> Optional[int]:
    """The CUDA device that has this tensor; None: it is elsewhere."""
    device = tensor.device
    return device.index if device.type == "cuda" else None


def refused(tensor: "torch.Tensor") -> Optional[str]:
    """Why the library cannot read the memory of this tensor's kind of device; None: it can."""
    kind = tensor.device.type
    if kind in ("cpu", "meta"):
        return None
    if kind == "cuda":
        import torch

        return "this PyTorch is for AMD GPUs (ROCm)" if getattr(torch.version, "hip", None) else None
    return "a device of type %s" % kind


def current_stream(index: int) -> int:
    """The address of torch's current stream on a device; 0 is the legacy default stream."""
    import torch

    return int(torch.cuda.current_stream(index).cuda_stream)


def capturing() -> bool:
    """Is the current stream being captured into a CUDA graph?"""
    import torch

    return torch.cuda.is_current_stream_capturing()


def synchronize(index: int) -> None:
    """Wait until a device has done everything that it was given."""
    import torch

    torch.cuda.synchronize(index)


class Devices:
    """The CUDA devices that the library has opened for a run. The first one is ckpt_opts.device, which attach opens;
    it opens others when a tensor is declared there."""

    def __init__(self, first: Optional[int]) -> None:
        self._indices: List[int] = [] if first is None else [first]

    @property
    def option(self) -> int:
        """ckpt_opts.device."""
        return 1 + self._indices[0] if self._indices else 0

    def __bool__(self) -> bool:
        return bool(self._indices)

    def learn(self, indices: Iterable[int]) -> None:
        """Tensors on these devices were declared."""
        self._indices += [i for i in dict.fromkeys(indices) if i not in self._indices]

    def streams(self) -> Sequence[Tuple[int, int]]:
        """Device and stream, of each device."""
        return [(index, current_stream(index)) for index in self._indices]

    def capturing(self) -> bool:
        return bool(self._indices) and capturing()

    def settle(self) -> None:
        """Wait until the devices have done everything that they were given."""
        for index in self._indices:
            synchronize(index)


class Fetched:
    """A number on its way from a device: the copy began when this was made, and item() waits for it.

    A loss that is read only at the end of the step would make the program wait for the update as well.
    """

    def __init__(self, tensor: "torch.Tensor") -> None:
        import torch

        cuda: Any = torch.cuda  # its Event has no types
        with cuda.device(tensor.device):
            self._host = tensor.detach().to("cpu", non_blocking=True)
            self._copied = cuda.Event()
            self._copied.record()

    def item(self) -> Any:
        self._copied.synchronize()
        return self._host.item()


def fetch(value: Any) -> Any:
    """Begin to copy a note (loss=, notes=) of one element that is on a device; anything else as it is."""
    if not getattr(value, "is_cuda", False):
        return value
    if hasattr(value, "placements") or value.numel() != 1:
        return value.detach()
    return Fetched(value)
