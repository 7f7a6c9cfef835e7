# SPDX-License-Identifier: Apache-2.0
"""Meshes whose ranks are in any order. What ckptd stores is what full_tensor() gives on real ranks (gloo), and it comes
back on other such meshes; a mesh on which full_tensor() itself is wrong is refused.

compute_local_shape_and_global_offset is no oracle here: it goes by the place in the mesh, as DCP does, and collectives
go by the number in the process group.

Meshes are drawn (SEED=), in batches of one launch each: 20 of them, and 200 with FULL=1.
"""

import contextlib
import os
import random
import unittest

import ranks  # first: it sets the path

import torch
import torch.nn as nn
from torch_names import VERSION, fsdp2_on_cpu, since

BATCH = 10  # meshes of one launch
LR = 0.25  # of SGD with momentum; gradients are the values: 1 - LR of each value is left, in float32 exactly


# ---- in a rank's process ----


def drawn(rnd, world):
    """A kind of parallelism, a mesh of this many ranks for it, and a shape for its parameters."""
    grids = [(a, world // a) for a in range(1, world + 1) if world % a == 0]
    kinds = ["fsdp", "hsdp", "tp", "fsdp tp", "fsdp tp", "flattened", "part", "twice"] + ["hsdp tp"] * (world == 8)
    kind = rnd.choice(kinds)
    order = list(range(world))
    rnd.shuffle(order)
    if kind in ("fsdp tp", "hsdp tp", "twice") and rnd.random() < 0.5:  # regular: each row is reordered alike
        grid = (2, 2, 2) if kind == "hsdp tp" else rnd.choice(grids)
        array = torch.arange(world).view(grid)
        for d, n in enumerate(grid):
            array = array.index_select(d, torch.tensor(rnd.sample(range(n), n)))
    elif kind == "fsdp":
        array = torch.tensor(order)
    elif kind == "part":
        array = torch.tensor(order[: rnd.randint(2, world)])
    else:
        array = torch.tensor(order).view((2, 2, 2) if kind == "hsdp tp" else rnd.choice(grids))
    even = rnd.random() < 0.5
    shape = (world * 4, world) if even else (rnd.randint(1, 3 * world), rnd.randint(1, 9))
    preserve = VERSION >= (2, 15) and rnd.random() < 0.2
    return {"kind": kind, "mesh": array.tolist(), "shape": shape, "preserve": preserve, "joined": rnd.random() < 0.5}


def values(shape, i):
    """Of tensor i: no two elements are equal, and a quarter of each is exact."""
    return (torch.arange(torch.Size(shape).numel()).view(shape) * 8.0) + 4.0 + i * 4096


def device_mesh(draw):
    from torch.distributed.device_mesh import DeviceMesh

    array = torch.tensor(draw["mesh"])
    names = {1: ("x",), 2: ("a", "b"), 3: ("r", "a", "b")}[array.dim()]
    more = {"preserve_rank_order": True} if draw["preserve"] else {}
    return DeviceMesh("cpu", array, mesh_dim_names=names, **more)


def some_have_none(n, ranks):
    """Does a rank get none of n columns? full_tensor() hangs there if FSDP2 cuts the shard again, with ranks in any
    order: FSDP2 makes the rows of an empty shard 0, so ranks gather tensors of different sizes. empty() has the case."""
    return ranks * -(-n // ranks) - n >= -(-n // ranks)


class Holder(nn.Module):
    def __init__(self, values):
        super().__init__()
        for i, value in enumerate(values):
            self.register_parameter("p%d" % i, nn.Parameter(value.clone()))


def made(draw, mesh, whole, i):
    """A module of three parameters with these values, cut over a drawn mesh as its kind says."""
    from torch_names import distribute_tensor, fully_shard, Replicate, Shard

    kind = draw["kind"]
    if kind in ("fsdp", "hsdp", "flattened"):
        if kind == "flattened":
            mesh = mesh["a", "b"]._flatten("all%d" % i)
        return fully_shard(Holder([whole] * 3), mesh=mesh)
    if kind == "twice":
        if draw["joined"] and draw["shape"][0] % mesh.size() == 0:
            mesh._flatten("all%d" % i)  # full_tensor() gathers by it, in torch that can; wrongly if rows are uneven
        return Holder([distribute_tensor(whole, mesh, [Shard(a), Shard(b)]) for a, b in ((0, 0), (0, 1), (1, 0))])
    tp = mesh if kind == "part" else mesh["b"]
    dims = (0, 0) if kind.endswith(" tp") and some_have_none(whole.shape[1], tp.size()) else (0, 1)
    cut = [distribute_tensor(whole, tp, [Shard(d)]) for d in dims]
    if kind in ("tp", "part"):
        return Holder([*cut, distribute_tensor(whole, tp, [Replicate()])])
    return fully_shard(Holder([*cut, whole]), mesh=mesh["r", "a"] if kind == "hsdp tp" else mesh["a"])


def agreed(rank, value):
    """The values of all ranks."""
    import torch.distributed as dist

    everywhere = [None] * rank.world
    dist.all_gather_object(everywhere, value)
    return everywhere


def refusal(module, rank):
    """Why a parameter of it cannot be saved, or ""."""
    from ckptd import _layout

    for p in module.parameters():
        try:
            _layout.describe(p.detach(), rank=rank.rank, world=rank.world)
        except _layout.Unsupported as e:
            return str(e)
    return ""


def torch_can(module, rank, whole):
    """Does full_tensor() give what was distributed, on all ranks?"""
    got = [p.full_tensor().detach() for p in module.parameters() if member(p)]  # all of them, on each rank: collectives
    return all(agreed(rank, all(torch.equal(value, whole) for value in got)))


def member(p):
    return p.device_mesh.get_coordinate() is not None


def lost(module, rank, whole):
    """Are there elements that no rank of a replica has?"""
    held = agreed(rank, [(replica(p), set(p.to_local().flatten().tolist())) for p in module.parameters() if member(p)])
    found = {}
    for each in held:
        for i, (of, have) in enumerate(each):
            found.setdefault((i, of), set()).update(have)
    return any(set(whole.flatten().tolist()) - have for have in found.values())


def replica(p):
    """Which replica of it this rank has a shard of: the mesh, and where the rank is along what it does not cut."""
    at = zip(p.device_mesh.get_coordinate(), p.placements)
    return tuple(p.device_mesh.mesh.flatten().tolist()), tuple(-1 if how.is_shard() else c for c, how in at)


def model_of(rank, draws):
    """What can be saved of the drawn meshes, as one model, and the refusals: {number: what each rank said}.

    ckptd must refuse what torch itself cannot hold, and nothing else. ("twice" may be refused more often: full_tensor()
    is one of the ways to gather, and others may fail.) Uneven shards come second, because gloo hangs or ends the process if a mesh mixes
    shards of different sizes. If these are refused, distribute_tensor has lost some of them.
    """
    model, refused = nn.Module(), {}
    for i, draw in draws.items():
        mesh = device_mesh(draw)
        n = mesh.size()
        for shape in ((n * 2, n), draw["shape"]):
            rank.say("shape %s on mesh %d of the batch: %s" % (shape, i, draw))  # so a failure names it
            whole = values(shape, i)
            module = made(draw, mesh, whole, i)
            said = agreed(rank, refusal(module, rank))
            if any(said) and shape == draw["shape"]:
                assert lost(module, rank, whole), "ckptd says %r: %s" % (said, draw)
            else:
                good = torch_can(module, rank, whole)
                fine = any(said) or good if draw["kind"] == "twice" else any(said) != good
                assert fine, "full_tensor() is right: %s, and ckptd says %r: %s" % (good, said, draw)
            if any(said):
                refused[i] = said
                break
        else:
            model.add_module("m%d" % i, module)
    return model, refused


def wholes(rank, model, optim):
    """{key: full_tensor()}, which must be equal on all ranks that have it."""
    found = {}
    for name, p in model.named_parameters():
        state = [("optim/%s.%s" % (name, k), t) for k, t in optim.state[p].items()]
        for key, t in [("model/" + name, p.detach()), *state]:
            found[key] = t.full_tensor().clone() if member(p) else None
    for other in agreed(rank, dict(found)):
        for key, value in other.items():
            found[key] = value if found[key] is None else found[key]
            assert value is None or torch.equal(found[key], value), "%s differs between ranks" % key
    return found


@contextlib.contextmanager
def planted(mistake):
    """The package with a mistake, or as it is."""
    from ckptd import _mesh

    right, rows = _mesh.in_group_order, _mesh.rows
    groups = _mesh._groups
    if mistake == "place":  # a rank has the shard of its place in the mesh, as DCP has it
        _mesh.in_group_order = lambda device_mesh, placed, cutting: placed
    if mistake == "sorted":  # all process groups sort their ranks
        _mesh._groups = lambda device_mesh, d, mesh, m: [sorted(row) for row in rows(mesh, m)]
    try:
        yield
    finally:
        _mesh.in_group_order, _mesh._groups = right, groups


def save(rank, draws, mistake=""):
    """Store a step of a model on the drawn meshes. Returns full_tensor() of all of it, and what was refused."""
    with planted(mistake):
        model, refused = model_of(rank, draws)
        optim = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        run = rank.attach(model, optim)
        run.restore()
        for p in model.parameters():
            p.grad = p.detach().clone()
        with run.step(1):
            optim.step()
        run.wait()
        run.detach()
    return wholes(rank, model, optim), refused


def resume(rank, draws):
    """Restore it on other drawn meshes. Returns full_tensor() of all of it, and what was refused."""
    model, refused = model_of(rank, draws)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optim = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    run = rank.attach(model, optim)
    got = run.restore(strict=False)
    assert got == 1 and not got.missing, got
    run.detach()
    return wholes(rank, model, optim), refused


def unlike(rank):
    """Two of four ranks see groups in the order of the mesh, and two see nothing of it. What attach says."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch_names import DTensor, Replicate, Shard

    array = [[0, 1], [3, 2]]
    groups = [[dist.new_group(g, sort_ranks=False) for g in each] for each in (list(zip(*array)), array)]
    mine = [next(g for g in each if dist.get_rank(g) >= 0) for each in groups]
    mesh = DeviceMesh.from_group(mine, "cpu", mesh=torch.tensor(array), mesh_dim_names=("a", "b"))
    t = DTensor.from_local(torch.full((1, 2), float(rank.rank)), mesh, [Replicate(), Shard(0)], run_check=False)
    try:
        rank.attach(Holder([t]), timeout=20)
    except Exception as e:
        return "%s: %s" % (type(e).__name__, e)
    return "attached"


def gradient(rank, array):
    """Of a sum whose gradients are known and alike on all ranks: is the one that HSDP reduces right, on all ranks?"""
    from torch.distributed.device_mesh import DeviceMesh
    from torch_names import fully_shard

    class Sum(Holder):
        def forward(self, factors):
            return (self.p0 * factors).sum()

    whole = values((8, 4), 0)
    net = fully_shard(Sum([whole]), mesh=DeviceMesh("cpu", array, mesh_dim_names=("r", "s")))
    net(whole).backward()
    return torch_can(net, rank, whole), torch.equal(net.p0.grad.full_tensor(), whole)


def empty(rank, array, step):
    """Store one column that TP and FSDP2 cut, or restore it: the shards of this rank, before and after.

    full_tensor() hangs here: see some_have_none."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch_names import DTensor, fully_shard, Shard

    mesh = DeviceMesh("cpu", torch.tensor(array), mesh_dim_names=("a", "b"))
    whole = values((6, 1), 0)
    local = whole if mesh.get_group("b").rank() == 0 else whole[:, :0]
    cut = DTensor.from_local(local, mesh["b"], [Shard(1)], run_check=False, shape=whole.shape, stride=(1, 1))
    model = fully_shard(Holder([cut]), mesh=mesh["a"])
    before = model.p0.to_local().detach().clone()
    with torch.no_grad():
        model.p0.to_local().mul_(step == 1)
    run = rank.attach(model)
    assert run.restore() == step - 1
    with run.step(step):
        pass
    run.wait()
    run.detach()
    return before.tolist(), model.p0.to_local().tolist()


def with_dcp(rank):
    """Save a model on a permuted mesh with ckptd.dcp.Writer, and load what attach has stored into one."""
    import ckptd.dcp
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch_names import fully_shard

    def module(value):
        return fully_shard(Holder([value]), mesh=DeviceMesh("cpu", [3, 1, 0, 2], mesh_dim_names=("x",)))

    whole = values((7, 3), 1)
    writer = ckptd.dcp.Writer(rank.store, "dcp", socket=rank.socket, timeout=20)
    try:
        dcp.save({"model": module(whole).state_dict()}, checkpoint_id="1", storage_writer=writer)
        said = "saved"
    except BaseException as e:  # CheckpointException is one
        said = "; ".join(str(x) for x, _ in e.failures.values())
    writer.close()
    run = rank.attach(module(whole))
    run.restore()
    with run.step(1):
        pass
    run.wait()
    run.detach()
    other = module(torch.zeros_like(whole))
    dcp.load({"model": other.state_dict()}, storage_reader=ckptd.dcp.Reader(os.path.join(rank.store, rank.job)))
    return said, torch.equal(other.p0.full_tensor().detach(), whole)


# ---- in the test's process ----


@fsdp2_on_cpu
class MeshOrder(ranks.Case):
    def stored(self, job):
        import ckptd

        with ckptd.open(os.path.join(job.store, job.name)) as step:
            return {key: step[key][...].clone() for key in step}

    def test_what_is_stored_is_full_tensor_and_comes_back_on_another_mesh(self):
        kept = dropped = resumed = 0
        full = bool(os.environ.get("FULL"))  # fresh processes: gloo's threads stay when their group is destroyed
        for batch in range(20 if full else 2):
            rnd = self.draw(batch)
            first, second = rnd.randint(2, 8), rnd.randint(2, 8)
            draws = {i: drawn(rnd, first) for i in range(BATCH)}
            others = {i: {**drawn(rnd, second), "shape": draws[i]["shape"]} for i in range(BATCH)}
            with self.subTest(batch=batch, ranks=(first, second)):
                job = self.job()
                whole, refused = job.run(first, save, draws, fresh=full)[0]
                for i in draws.keys() - refused.keys():
                    for d in range(3):
                        before, name = values(draws[i]["shape"], i), "m%d.p%d" % (i, d)
                        self.assertTrue(torch.equal(whole["model/" + name], before * (1 - LR)), (name, draws[i]))
                        self.assertTrue(torch.equal(whole["optim/%s.momentum_buffer" % name], before), (name, draws[i]))
                self.assertEqual(differing(self.stored(job), whole), [], draws)
                others = {i: others[i] for i in draws.keys() - refused.keys()}
                got, again = job.run(second, resume, others, fresh=full)[0]
                self.assertEqual(differing(whole, got), [], (draws, others))
                kept, dropped = kept + len(others), dropped + len(refused)
                resumed += len(others) - len(again)
            print("# %d meshes stored, %d refused, %d resumed on another" % (kept, dropped, resumed), flush=True)
        self.assertGreater(kept, dropped)
        self.assertGreater(resumed, 0)

    def test_what_tp_leaves_a_rank_nothing_of_is_saved_under_fsdp2(self):
        job, whole = self.job(), values((6, 1), 0)
        for step, array in ((1, [[0, 1], [2, 3]]), (2, [[3, 1], [2, 0]])):
            for before, after in job.run(4, empty, array, step):
                self.assertEqual(before, after)
            self.assertTrue(torch.equal(self.stored(job)["model/p0"], whole), array)

    def test_a_planted_wrong_rule_is_found(self):
        one, two = {"mesh": [3, 1, 0, 2], "shape": (8, 4)}, {"mesh": [[3, 1], [0, 2]], "shape": (8, 4)}
        draws = {
            0: {"kind": "fsdp", "preserve": False, **one},
            1: {"kind": "hsdp", "preserve": False, **two},
            2: {"kind": "tp", "preserve": False, **two},
            3: {"kind": "fsdp tp", "preserve": False, **two, "mesh": [[3, 1], [2, 0]]},
        }
        kept = {i: {**draw, "preserve": True} for i, draw in draws.items()}
        for mistake, meshes in (("place", draws), ("sorted", kept)):
            if mistake == "sorted" and VERSION < (2, 15):
                continue
            for wrong in (mistake, ""):
                job = self.job()
                whole, refused = job.run(4, save, meshes, wrong)[0]
                self.assertEqual(refused, {})
                found = {int(key.partition("/m")[2][0]) for key in differing(self.stored(job), whole)}
                self.assertEqual(found, set(meshes) if wrong else set(), mistake)

    def test_hsdp_reduces_other_rows_where_replicas_have_orders_of_their_own(self):
        """So says docs/PYTORCH.md. Each rank's parameters are what full_tensor() gives, so ckptd saves them."""
        for array, right in (([[3, 1], [0, 2]], False), ([[0, 1], [3, 2]], False), ([[3, 1], [2, 0]], True)):
            for parameters, gradients in self.job(daemon=False).run(4, gradient, array):
                self.assertEqual((parameters, gradients), (True, right), array)

    @since(2, 15, "new_group sorts ranks")
    def test_ranks_that_assume_different_orders_do_not_attach(self):
        for said in self.job().run(4, unlike):
            self.assertNotEqual(said, "attached")
            print("# " + said, flush=True)

    def test_dcp_loads_through_ckptd_and_is_refused_where_it_would_permute(self):
        for said, same in self.job().run(4, with_dcp):
            self.assertIn("model.p0: the ranks of the mesh are not in the order of its process groups", said)
            self.assertTrue(same)


def differing(got, want):
    """The keys of `want` whose values are others."""
    return [key for key in want if key not in got or not torch.equal(got[key], want[key])]


if __name__ == "__main__":
    unittest.main()
