# SPDX-License-Identifier: Apache-2.0
"""What README says PyTorch's DCP does in three situations (its second table of faults), measured. The cells of ckptd
there name the tests that show them."""

import os
import shutil
import unittest

import ranks  # first: it sets the path

import torch
import torch.nn as nn
from torch_names import fsdp2_on_cpu, without_ranks

SHAPE = (8, 4)


def values(step):
    return torch.arange(32.0).view(SHAPE) + 1000.0 * step


def model(rank, mesh, value):
    from torch.distributed.device_mesh import DeviceMesh
    from torch_names import fully_shard

    net = nn.Module()
    net.register_parameter("w", nn.Parameter(value.clone()))
    return fully_shard(net, mesh=DeviceMesh("cpu", mesh, mesh_dim_names=("fsdp",)))


def save(rank, mesh, steps):
    """dcp.save of a model of FSDP2 to step-N for each of the steps; full_tensor() at the last one."""
    import torch.distributed.checkpoint as dcp

    for step in steps:
        net = model(rank, mesh, values(step))
        dcp.save({"model": net.state_dict()}, checkpoint_id=os.path.join(rank.dir, "step-%d" % step))
    return net.w.full_tensor().detach()


def plain(directory):
    """dcp.load into a plain tensor."""
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.zeros(SHAPE)}}
    dcp.load(state, checkpoint_id=directory, **without_ranks(True))
    return state["model"]["w"]


def resume(rank, mesh, step):
    """dcp.load into a model of FSDP2; full_tensor() of it."""
    import torch.distributed.checkpoint as dcp

    net = model(rank, mesh, torch.zeros(SHAPE))
    dcp.load({"model": net.state_dict()}, checkpoint_id=os.path.join(rank.dir, "step-%d" % step))
    return net.w.full_tensor().detach()


@fsdp2_on_cpu
class Faults(ranks.Case):
    def said(self, fault, text):
        """README says this of DCP."""
        with open(os.path.join(ranks.ROOT, "README.md")) as f:
            row = next(line for line in f if line.startswith("| %s |" % fault))
        self.assertEqual(row.rstrip().split(" | ")[-1].rstrip(" |"), text)

    def test_dcp_joins_files_of_two_steps(self):
        self.said("rank files of two steps", "joined without an error: rows of both")
        job = self.job(daemon=False)
        job.run(2, save, [0, 1], (1, 2))
        first, second = (os.path.join(job.dir, "step-%d" % step) for step in (1, 2))
        self.assertTrue(torch.equal(plain(second), values(2)))
        shutil.copy(os.path.join(first, "__1_0.distcp"), second)
        got = plain(second)
        self.assertTrue(torch.equal(got[:4], values(2)[:4]))
        self.assertTrue(torch.equal(got[4:], values(1)[4:]))

    def test_dcp_loads_frozen_weights_that_have_rotten(self):
        self.said("a byte rots in frozen weights", "not found: the step loads wrong (each step has a copy of its own)")
        import torch.distributed.checkpoint as dcp

        job = self.job(daemon=False)
        frozen = nn.Parameter(values(0), requires_grad=False)
        steps = [os.path.join(job.dir, "step-%d" % step) for step in (1, 2)]
        for directory in steps:
            dcp.save({"model": {"w": frozen}}, checkpoint_id=directory, **without_ranks(True))
        (name,) = (n for n in os.listdir(steps[1]) if n.endswith(".distcp"))
        path = os.path.join(steps[1], name)
        with open(path, "rb") as f:
            data = bytearray(f.read())
        at = bytes(data).index(values(0).numpy().tobytes())
        data[at + 4 * 7 + 2] ^= 0x40
        with open(path, "wb") as f:
            f.write(data)
        got = plain(steps[1])
        self.assertEqual((got != values(0)).nonzero().tolist(), [[1, 3]])
        self.assertTrue(torch.equal(plain(steps[0]), values(0)))

    def test_dcp_permutes_the_rows_of_a_mesh_with_ranks_in_another_order(self):
        self.said("a mesh with ranks in another order", "stored permuted, without an error")
        mesh = [3, 1, 0, 2]
        job = self.job(daemon=False)
        for full in job.run(4, save, mesh, (1,)):
            self.assertTrue(torch.equal(full, values(1)))
        want = torch.cat([values(1)[2 * rank : 2 * rank + 2] for rank in mesh])
        self.assertTrue(torch.equal(plain(os.path.join(job.dir, "step-1")), want))
        # It undoes what it did on the same mesh, and on no other one.
        for full in job.run(4, resume, mesh, 1):
            self.assertTrue(torch.equal(full, values(1)))
        for full in job.run(2, resume, [0, 1], 1):
            self.assertTrue(torch.equal(full, want))


if __name__ == "__main__":
    unittest.main()
