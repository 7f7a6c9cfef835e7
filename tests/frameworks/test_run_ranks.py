# SPDX-License-Identifier: Apache-2.0
"""ckptd.attach and Run on several ranks: what the ranks must do alike, and what one of them may do alone.

The matrix of meshes is in test_matrix.py, preemption in test_preempt.py.
"""

import contextlib
import hashlib
import json
import os
import unittest
import warnings

import ranks
import torch
import torch.distributed as dist
from torch_names import fsdp2_on_cpu


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def digest(tensors):
    h = hashlib.sha256()
    for name, t in sorted(tensors):
        h.update(name.encode())
        h.update(local(t.detach()).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def state(model, optim):
    """The digest of this rank's share of everything."""
    names = {p: n for n, p in model.named_parameters()}
    found = list(model.state_dict().items())
    for p, values in optim.state.items():
        found += [(names[p] + "." + k, v) for k, v in values.items() if torch.is_tensor(v)]
    return digest(found)


def net(mesh=None, dropout=0.0, seed=3):
    """Layers of uneven widths; with fewer rows than ranks in the last one."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 33),
        torch.nn.LayerNorm(33),
        torch.nn.Dropout(dropout),
        torch.nn.ReLU(),
        torch.nn.Linear(33, 3),
    )
    if mesh is not None:
        from torch_names import fully_shard

        fully_shard(model, mesh=mesh)
    return model


def update(model, optim, step, rank=0):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    loss = model(torch.randn(6, 10, generator=generator)).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()


def mesh_of(rank, *sizes):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "fsdp")[-len(sizes) :])


# ---- what ranks do ----


def late_momentum(rank, last):
    """SGD makes its momentum in the first step: all ranks declare it before that step's snapshot."""
    model = net(mesh_of(rank, rank.world) if rank.world > 1 else None)
    optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.2)
    run = rank.attach(model, optim, guard="finish")
    start = run.restore()
    restored = state(model, optim)
    for step in range(start + 1, last + 1):
        with run.step(step):
            update(model, optim, step)
        run.wait()
    outcomes = run.stats()["outcomes"]
    run.detach()
    return int(start), restored, state(model, optim), outcomes


def averages(rank, last):
    """HSDP: the average is in every rank's shard, bit for bit, and the raw weights are back afterwards."""
    model = net(mesh_of(rank, 2, 2))
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim, averages={"fast": "constant decay=.75"}, slots=3, guard="finish")
    run.restore()
    mine = None
    for step in range(1, last + 1):
        with run.step(step):
            update(model, optim, step, rank.rank)
        run.wait()
        now = {n: local(p.detach()).clone() for n, p in model.named_parameters()}
        mine = now if mine is None else {n: torch.lerp(mine[n], w, 1 - 0.75) for n, w in now.items()}
    raw = state(model, optim)
    with run.averaged("fast") as step:
        same = all(torch.equal(local(p.detach()), mine[n]) for n, p in model.named_parameters())
        evaluated = model(torch.ones(2, 10)).detach()  # FSDP2 keeps what it gathers of the root module for this
    back = state(model, optim) == raw
    unlike = not torch.equal(model(torch.ones(2, 10)).detach(), evaluated)  # and must not use it now
    with run.step(last + 1):
        update(model, optim, last + 1, rank.rank)
    committed = run.wait()
    run.detach()
    return step, same, back and unlike, committed, evaluated.tolist()


def drifting(rank, seeds_differ, last):
    """Tensor parallel ranks must draw the same dropout in front of what they hold alike."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (rank.world,), mesh_dim_names=("tp",))
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(10), torch.nn.Dropout(0.3), torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    parallelize_module(model, mesh, {"2": ColwiseParallel(), "4": RowwiseParallel()})
    optim = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)
    run = rank.attach(model, optim, guard="finish", persist_every=1000, slots=4)
    run.restore()
    said = []
    for step in range(1, last + 1):
        torch.manual_seed(step + (rank.rank if seeds_differ else 0))
        x = torch.randn(6, 10, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with run.step(step):
                optim.step()
                optim.zero_grad()
        said += [(w.category.__name__, str(w.message)) for w in caught]
        run.wait("staged")
    run.detach()
    return said


def alone(rank, last):
    """Rank 1 replaces a tensor alone: it moves it, and no other rank seals. Rank 2 loses memory alone: that step is not
    saved."""
    from ckptd import errors

    model = net(mesh_of(rank, rank.world))
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim, guard="finish", strict=False, memory="foreign")
    run.restore()
    said = []
    for step in range(1, last + 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with run.step(step):
                update(model, optim, step)
                moments = optim.state[next(model.parameters())]
                if step == 2 and rank.rank == 1:
                    moments["exp_avg"] = moments["exp_avg"].clone()
                if step == 3 and rank.rank == 2:
                    lost = local(moments["exp_avg_sq"])
                    kept, storage = lost.clone(), lost.untyped_storage()
                    nbytes = storage.nbytes()
                    storage.resize_(0)
        if step == 3 and rank.rank == 2:
            storage.resize_(nbytes)
            lost.copy_(kept)
        said += [
            (w.category.__name__, str(w.message))
            for w in caught
            if issubclass(w.category, (errors.StateMoved, errors.NotSaving))
        ]
        if step != 3:
            run.wait()
    end = state(model, optim)
    run.detach()
    return said, end


def restored(rank):
    model = net(mesh_of(rank, rank.world))
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim)
    start = run.restore(source="disk")
    run.detach()
    return int(start), state(model, optim)


def one_raises(rank, bad, last):
    """Rank 1 leaves these steps by an exception; the others finish them. Nobody waits for the others in a step."""
    model = net()
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = rank.attach(model, optim, guard="finish", strict=False)
    run.restore()
    for step in range(1, last + 1):
        with contextlib.suppress(ArithmeticError), run.step(step):
            update(model, optim, step)
            if rank.rank == 1 and step in bad:
                raise ArithmeticError
        dist.barrier()
    committed = run.wait(timeout=ranks.LIMIT)
    run.detach()
    return committed


def stage(s):
    torch.manual_seed(s)
    return torch.nn.Linear(5 + s, 3)


def stages(rank, each, steps):
    """Each rank has its own parts of a pipeline, of plain modules: rank r has the stages `each`[r]."""
    model = {"stage%d" % s: stage(s) for s in each[rank.rank]}
    optim = torch.optim.AdamW([p for m in model.values() for p in m.parameters()])
    run = rank.attach(model, optim, ranks=[rank.rank], guard="finish")
    run.restore()
    for step in range(1, steps + 1):
        with run.step(step):
            for m in model.values():
                for p in m.parameters():
                    p.grad = torch.full_like(p, step)
            optim.step()
    if steps:
        run.wait()
    found = {name + "." + n: t.detach().clone() for name, m in model.items() for n, t in m.named_parameters()}
    run.detach()
    return {n: t.numpy().tobytes() for n, t in found.items()}


def stages_without_ranks(rank):
    try:
        rank.attach({"stage%d" % rank.rank: stage(rank.rank)})
    except Exception as e:
        return type(e).__name__ + ": " + str(e)
    return "attached"


def strided(rank):
    """A tensor that was cut as its split factors say literally. By its local shape only some ranks can see that."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = mesh_of(rank, 3, 2)
    a, b = mesh.get_coordinate()
    kept = torch.cat(
        [piece.chunk(3)[a] if len(piece.chunk(3)) > a else piece[:0] for piece in torch.arange(7.0).chunk(2)]
    )
    kept = (list(kept.chunk(2)) + [kept[:0]])[b]
    model = torch.nn.Module()
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    cut = DTensor.from_local(kept.clone(), mesh, placements, run_check=False, shape=(7,), stride=(1,))
    model.w = torch.nn.Parameter(cut, requires_grad=False)
    try:
        rank.attach(model)
    except Exception as e:
        return type(e).__name__ + ": " + str(e)
    return "attached"


class Ranks(ranks.Case):
    def test_ranks_that_read_a_strided_shard_in_two_ways_are_refused(self):
        said = self.job().run(6, strided)
        self.assertNotIn("attached", said)
        self.assertTrue(any("model/w" in text for text in said), said)

    def test_stages_of_plain_modules_are_saved_by_the_ranks_that_have_them_and_restored_by_others(self):
        job = self.job()
        first, second = job.run(2, stages, [[0, 2], [1]], 4)
        whole = {**first, **second}
        self.assertEqual(len(whole), 6)
        self.assertEqual(job.run(1, stages, [[0, 1, 2]], 0), [whole])
        parts = job.run(3, stages, [[2], [0], [1]], 0)
        self.assertEqual({n: t for part in parts for n, t in part.items()}, whole)

    def test_ranks_with_other_plain_modules_are_told_so(self):
        for said in self.job().run(2, stages_without_ranks):
            self.assertIn("model/stage", said)
            self.assertIn("InvalidCall", said)

    def test_a_step_that_an_exception_has_ended_on_one_rank_is_saved_by_none_and_later_ones_are(self):
        job = self.job()
        self.assertEqual(job.run(2, one_raises, [2, 3, 5], 6), [6, 6])
        listed = json.loads(job.ctl("ls", "--json", os.path.join(job.store, job.name)))["checkpoints"]
        self.assertFalse({c["step"] for c in listed} & {2, 3, 5})

    @fsdp2_on_cpu
    def test_momentum_that_the_first_step_makes_is_saved_with_it_and_found_again_on_other_meshes(self):
        job = self.job()
        first = job.run(4, late_momentum, 3)
        self.assertEqual([r[3]["skipped"] for r in first], [0] * 4)
        self.assertEqual([r[3]["taken"] for r in first], [3] * 4)
        again = job.run(4, late_momentum, 3)
        self.assertEqual([(r[0], r[1]) for r in again], [(3, r[2]) for r in first])
        plain = job.run(1, late_momentum, 5)
        self.assertEqual(plain[0][0], 3)
        two = job.run(2, late_momentum, 6)
        self.assertEqual([r[0] for r in two], [5, 5])
        self.assertEqual(job.run(1, late_momentum, 6)[0][0], 6)

    @fsdp2_on_cpu
    def test_an_average_is_in_every_shard_and_the_weights_are_back(self):
        results = self.job().run(4, averages, 4)
        self.assertEqual([r[:4] for r in results], [(4, True, True, 5)] * 4)
        self.assertTrue(all(r[4] == results[0][4] for r in results))

    @fsdp2_on_cpu
    def test_a_dropout_seed_per_tensor_parallel_rank_is_a_warning_with_tensor_ranks_and_steps(self):
        said = self.job().run(2, drifting, True, 140)
        drifted = [text for kind, text in said[0] if kind == "ReplicasDrifted"]
        self.assertTrue(any("model/0." in text for text in drifted), said[0][:3])
        self.assertRegex(drifted[0], r"0(.|\n)*1(.|\n)*step \d+")
        self.assertEqual(self.job().run(2, drifting, False, 140), [[], []])

    @fsdp2_on_cpu
    def test_what_one_rank_replaces_alone_is_moved_and_what_it_loses_costs_a_step(self):
        job = self.job()
        results = job.run(3, alone, 5)
        self.assertEqual(results[0][0], [])
        self.assertEqual([kind for kind, _ in results[1][0]], ["StateMoved"])
        kind, text = results[2][0][0]
        self.assertEqual(kind, "NotSaving")
        self.assertRegex(text, "optim/0.weight.exp_avg_sq was freed(.|\n)*No rank saves step 3")
        listed = json.loads(job.ctl("ls", "--json", os.path.join(job.store, job.name)))["checkpoints"]
        self.assertEqual(sorted(c["step"] for c in listed), [1, 2, 4, 5])
        self.assertEqual(job.run(3, restored), [(5, r[1]) for r in results])


if __name__ == "__main__":
    unittest.main()
