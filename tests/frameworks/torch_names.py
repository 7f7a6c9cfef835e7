# SPDX-License-Identifier: Apache-2.0
"""What the tests use of torch, under the names of torch 2.4 and of later versions."""

import unittest

import torch

try:  # torch 2.5 and later
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:
    from torch.distributed._tensor import DTensor, Partial, Replicate, Shard

    _StridedShard = None

    def distribute_tensor(tensor, device_mesh, placements, *, src_data_rank=None):
        """This rank's part of a tensor that every rank has: no rank sends anything, as with src_data_rank=None."""
        local = tensor
        for d, placement in enumerate(placements):
            if placement.is_shard():
                chunks = local.chunk(device_mesh.size(d), placement.dim)
                at = device_mesh.get_coordinate()[d]
                local = chunks[at] if at < len(chunks) else local.narrow(placement.dim, 0, 0)
        return DTensor.from_local(
            local.contiguous(), device_mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )


try:  # torch 2.6 and later
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard

__all__ = [
    "CPUOffloadPolicy",
    "DTensor",
    "FSDPModule",
    "Partial",
    "Replicate",
    "Shard",
    "VERSION",
    "_StridedShard",
    "distribute_tensor",
    "fsdp2_on_cpu",
    "fully_shard",
    "since",
    "without_ranks",
]

VERSION = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])


def since(major, minor, why):
    """Skip this case, or all of a class, on an older torch."""
    return unittest.skipIf(VERSION < (major, minor), "torch %d.%d: %s" % (VERSION + (why,)))


fsdp2_on_cpu = since(2, 6, "FSDP2 computes on GPUs only")


def without_ranks(alone):
    """The argument of dcp.save and dcp.load that keeps them from asking other ranks. Older torch does so by itself,
    without a process group."""
    return {"no_dist": alone} if VERSION >= (2, 7) else {}
