# SPDX-License-Identifier: Apache-2.0
"""Restores over NCCL, `attach(nccl=True)`: all ranks use it or none, and they agree about numbers in a gloo group of their
own, which needs no device."""

from __future__ import annotations

import datetime
from typing import Any, Callable, Optional

from . import _told

# torch has no unsigned 64-bit minimum: the same order, from -2**63 on.
_HALF = 1 << 63


def together(rank: int, world: int, has_device: bool, timeout: float) -> Optional[Callable[[int], int]]:
    """The minimum over all ranks of a number of 64 bits, as ckpt_opts.agree; None: the ranks restore each for itself.

    All ranks call it. has_device: this rank has state on a CUDA device. timeout: seconds to wait for the other ranks.
    ValueError: torch.distributed does not have these ranks.
    """
    if world == 1:
        return None
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("nccl=True needs torch.distributed: call torch.distributed.init_process_group before attach")
    if (dist.get_rank(), dist.get_world_size()) != (rank, world):
        text = "nccl=True needs the ranks of torch.distributed: this is rank %d of %d there, and %d of %d for attach"
        raise ValueError(text % (dist.get_rank(), dist.get_world_size(), rank, world))
    group: Any = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    def least(mine: int) -> int:
        number = torch.tensor([mine - _HALF], dtype=torch.int64)
        dist.all_reduce(number, dist.ReduceOp.MIN, group=group)
        return int(number.item()) + _HALF

    if least(int(has_device)):
        return least
    text = "nccl=True: %s has no state on a CUDA device: each rank reads all of its memory when it restores"
    _told.tell("nccl", text % ("another rank" if has_device else "rank %d" % rank))
    return None
