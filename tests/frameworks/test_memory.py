# SPDX-License-Identifier: Apache-2.0
"""Real torch: state that moves into shared memory stays the state of everything that uses it
(python/ckptd/_memory.py)."""

import copy
import gc
import logging
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from memory_ranks import MIB, Shared, in_process, on_ranks, peak_begins, state_of, status_kib, train

import torch
from torch import nn

from ckptd import _memory, _told
from ckptd._memory import Arena, fsdp_params, materialise, plain_tensors
from torch_names import fsdp2_on_cpu, since

logging.getLogger("ckptd").addHandler(logging.NullHandler())
logging.getLogger("ckptd").propagate = False


class Net(nn.Module):
    """Uneven sizes, a tied weight, buffers, a frozen layer."""

    def __init__(self, width=8):
        super().__init__()
        self.inner = nn.Linear(width, 5)
        self.norm = nn.BatchNorm1d(5)
        self.frozen = nn.Linear(5, 5, bias=False).requires_grad_(False)
        self.tied = nn.Linear(5, 5, bias=False)
        self.again = nn.Linear(5, 5, bias=False)
        self.again.weight = self.tied.weight
        self.register_buffer("scale", torch.full((), 0.5), persistent=False)

    def forward(self, x):
        return self.again(torch.relu(self.tied(self.frozen(self.norm(self.inner(x)))))) * self.scale


def twins(make_optim=lambda params: torch.optim.AdamW(params, lr=0.01)):
    """Two equal models with equal optimizers, after two steps."""
    torch.manual_seed(1)
    one = Net()
    two = copy.deepcopy(one)
    pairs = [(model, make_optim(model.parameters())) for model in (one, two)]
    for model, optim in pairs:
        train(model, optim, 2)
    return pairs


def equal(test, one, two):
    test.assertEqual(one.keys(), two.keys())
    for name in one:
        a, b = one[name].detach(), two[name].detach()
        test.assertTrue(torch.equal(a, b), name)


class MovedState(unittest.TestCase):
    def setUp(self):
        _told.begin(0)
        self.arena = Arena(Shared())

    def inside(self, tensors):
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                if plain.untyped_storage().nbytes():
                    self.assertTrue(self.arena.holds(plain.untyped_storage().data_ptr()))

    def test_training_goes_on_bit_for_bit_after_the_move(self):
        for make in (
            lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
            lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
        ):
            (one, optim_one), (two, optim_two) = twins(make)
            objects = {name: id(tensor) for name, tensor in state_of(one, optim_one).items()}
            self.assertEqual(self.arena.move_in(state_of(one, optim_one).values()), [])
            self.inside(state_of(one, optim_one).values())
            self.assertEqual(train(one, optim_one, 3, seed=9), train(two, optim_two, 3, seed=9))
            equal(self, state_of(one, optim_one), state_of(two, optim_two))
            self.assertEqual({name: id(tensor) for name, tensor in state_of(one, optim_one).items()}, objects)
            self.inside(state_of(one, optim_one).values())

    def test_a_move_between_forward_and_backward_changes_no_gradient(self):
        (one, optim_one), (two, optim_two) = twins()
        x = torch.randn(6, 8)
        losses = [model(x).square().mean() for model in (one, two)]
        self.arena.move_in(state_of(one, optim_one).values())
        for loss in losses:
            loss.backward()
        for p, q in zip(one.parameters(), two.parameters()):
            self.assertEqual(p.grad is None, q.grad is None)
            if p.grad is not None:
                self.assertTrue(torch.equal(p.grad, q.grad))
                self.assertFalse(self.arena.holds(p.grad.data_ptr()))

    @unittest.skipUnless(_memory._swap_of(torch), "this torch cannot exchange the memory of a storage")
    def test_views_and_aliases_that_nobody_has_named_follow(self):
        base = torch.arange(100.0)
        view, alias, column = base[10:20], base.view(10, 10), base.view(10, 10)[:, 3]
        parameter = nn.Parameter(base[40:50])
        self.arena.move_in([parameter])
        self.inside([base, view, alias, column, parameter])
        base.mul_(2)
        self.assertEqual(view.tolist(), [2.0 * i for i in range(10, 20)])
        self.assertEqual(column.tolist(), [2.0 * i for i in range(3, 100, 10)])
        self.assertEqual(parameter.detach().tolist(), [2.0 * i for i in range(40, 50)])

    def test_tied_weights_and_repeated_calls_take_memory_once(self):
        tensor = torch.randn(1000)
        self.arena.move_in([tensor, tensor.view(10, 100), nn.Parameter(tensor)])
        used = self.arena.used
        self.assertEqual(used, 4032)
        at = tensor.data_ptr()
        self.arena.move_in([tensor])
        self.assertEqual((self.arena.used, tensor.data_ptr()), (used, at))
        later = torch.ones(3, dtype=torch.bfloat16)
        self.arena.move_in([later, torch.empty(0), torch.tensor(True)])
        self.assertEqual(len(self.arena._mine), 1)
        self.assertEqual(later.tolist(), [1.0, 1.0, 1.0])

    @since(2, 5, "float8 tensors cannot be filled")
    def test_every_storage_is_64_byte_aligned_and_none_overlap(self):
        dtypes = (torch.bool, torch.float16, torch.complex128, torch.float8_e4m3fn, torch.int64)
        tensors = [torch.ones(n).to(d) for n in (1, 3, 64, 65) for d in dtypes]
        self.arena.move_in(tensors)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors)
        for (start, end), (following, _) in zip(spans, spans[1:]):
            self.assertEqual(start % 64, 0)
            self.assertLessEqual(end, following)
        for tensor in tensors:
            self.assertTrue(torch.equal(tensor, torch.ones_like(tensor)))

    def test_a_moved_storage_refuses_to_be_resized(self):
        tensor = torch.randn(10)
        self.arena.move_in([tensor])
        with self.assertRaises(RuntimeError):
            tensor.untyped_storage().resize_(0)

    def test_state_that_is_copied_or_pickled_later_is_the_copys_own(self):
        import io

        (one, optim), _ = twins()
        self.arena.move_in(state_of(one, optim).values())
        copied = copy.deepcopy(one)
        file = io.BytesIO()
        torch.save(one, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (copied, loaded):
            equal(self, state_of(one), state_of(other))
            for tensor in other.state_dict().values():
                self.assertFalse(self.arena.holds(tensor.data_ptr()))

    def test_the_state_outlives_the_arena(self):
        (one, optim_one), (two, optim_two) = twins()
        self.arena.move_in(state_of(one, optim_one).values())
        self.arena.close()
        self.arena = None
        gc.collect()
        self.assertEqual(train(one, optim_one, 3), train(two, optim_two, 3))

    def test_a_second_run_moves_the_state_of_a_closed_arena_and_returns_its_pages(self):
        tensor = torch.arange(4.0 * MIB)
        self.arena.move_in([tensor])
        other = Arena(Shared())
        left = other.move_in([tensor])
        self.assertIn("another run that is still attached", left[0].reason)
        self.assertTrue(self.arena.holds(tensor.data_ptr()))
        self.arena.close()
        before = status_kib("RssShmem")
        self.assertEqual(other.move_in([tensor]), [])
        self.assertTrue(other.holds(tensor.data_ptr()))
        self.assertTrue(torch.equal(tensor, torch.arange(4.0 * MIB)))
        self.assertLess(abs(status_kib("RssShmem") - before), 4 * 1024)  # 16 MiB came, 16 MiB went


class WhatStays(unittest.TestCase):
    def setUp(self):
        _told.begin(0)
        self.arena = Arena(Shared())

    def stays(self, tensor, reason):
        before, at = tensor.clone(), tensor.data_ptr()
        _told.begin(0)  # whatever was told before
        with self.assertLogs("ckptd", "WARNING") as logs:
            left = self.arena.move_in([("model/it", tensor), torch.ones(3)])
        self.assertEqual(len(left), 1)
        self.assertEqual(left[0].names, ("model/it",))
        self.assertRegex(left[0].reason, reason)
        self.assertRegex(logs.output[0], reason + ".*: model/it$")
        self.assertEqual(tensor.data_ptr(), at)
        self.assertTrue(torch.equal(tensor, before))
        self.assertEqual(self.arena.foreign, tuple(left))

    def test_memory_that_numpy_has_too(self):
        tensor = torch.randn(10)
        array = tensor.numpy()
        self.stays(tensor, "another owner")
        array[0] = 7
        self.assertEqual(tensor[0], 7)

    @unittest.skipUnless(_memory._swap_of(torch), "this torch cannot exchange the memory of a storage")
    def test_memory_of_safetensors_and_of_torch_load_with_mmap(self):
        import safetensors.torch

        with tempfile.TemporaryDirectory() as where:
            safetensors.torch.save_file({"w": torch.randn(10)}, where + "/w.safetensors")
            self.stays(safetensors.torch.load_file(where + "/w.safetensors")["w"], "another owner")
            torch.save(torch.randn(10), where + "/w.pt")
            self.stays(torch.load(where + "/w.pt", mmap=True), "another owner")

    @since(2, 5, "a storage does not say that a file is behind it")
    def test_memory_that_is_mapped_from_a_file(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(400))
            file.flush()
            self.stays(torch.from_file(file.name, shared=True, size=100), "mapped from a file")
            self.stays(torch.from_file(file.name, shared=False, size=100), "mapped from a file")

    @unittest.skipUnless(_memory._swap_of(torch), "this torch cannot exchange the memory of a storage")
    def test_memory_that_is_shared_with_other_processes(self):
        self.stays(torch.randn(10).share_memory_(), "shared with other processes")

    def test_a_sparse_tensor_is_named_and_left(self):
        with self.assertLogs("ckptd", "WARNING") as logs:
            self.arena.move_in([("model/sparse", torch.eye(3).to_sparse())])
        self.assertIn("model/sparse", logs.output[0])

    def test_the_log_names_each_reason_once_however_often_it_is_asked(self):
        tensors = [torch.randn(10).share_memory_() for _ in range(20)]
        with self.assertLogs("ckptd", "WARNING") as logs:
            self.arena.move_in((f"t{i}", t) for i, t in enumerate(tensors))
            self.arena.move_in((f"t{i}", t) for i, t in enumerate(tensors))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("t7 and 12 more", logs.output[0])

    def test_where_there_is_no_more_memory_the_rest_stays_and_training_goes_on(self):
        (one, optim_one), (two, optim_two) = twins()
        with unittest.mock.patch.object(_memory, "PIECE_MIN", 1), unittest.mock.patch.object(_memory, "PAGES", 64):
            arena = Arena(Shared(fail_after=3))
            with self.assertLogs("ckptd", "WARNING") as logs:
                left = arena.move_in(state_of(one, optim_one).items())
        self.assertIn("the host cannot give so much", logs.output[0])
        inside = [t for t in state_of(one, optim_one).values() if arena.holds(t.data_ptr())]
        self.assertTrue(left and inside)
        self.assertEqual(train(one, optim_one, 3), train(two, optim_two, 3))
        equal(self, state_of(one, optim_one), state_of(two, optim_two))


def peak_of_a_move():
    arena = Arena(Shared())
    arena.move_in([torch.ones(10)])  # torch loads what it needs for that
    tensors = [torch.ones(n * MIB // 4) for n in (8, 32, 16) for _ in range(8)]  # 448 MiB
    tensors += [torch.ones(16000) for _ in range(500)]  # 31 MiB of the C library's heap
    total = sum(t.numel() * 4 for t in tensors) / 1024
    before = peak_begins()
    arena.move_in(tensors)
    peak, after = status_kib("VmHWM") - before, status_kib("VmRSS") - before
    assert all(arena.holds(t.data_ptr()) for t in tensors)
    print(f"a move of {total / 1024:.0f} MiB: peak {peak / 1024:+.0f} MiB, afterwards {after / 1024:+.0f} MiB")
    assert peak < (64 + 16) * 1024, f"{peak} KiB more than the state at the peak"
    assert after < 16 * 1024, f"{after} KiB more than the state afterwards"


def peak_of_meta():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1024, 4096) for _ in range(24)])  # 384 MiB
    materialise(nn.Linear(2, 2, device="meta"), Arena(Shared()))  # torch loads what it needs for that
    alloc = Shared()
    arena = Arena(alloc)
    before = peak_begins()
    done = materialise(model, arena)
    peak = status_kib("VmHWM") - before
    print(f"{done.nbytes / MIB:.0f} MiB from the meta device: peak {peak / 1024:.0f} MiB")
    assert len(alloc.asked) == 1
    assert all(arena.holds(p.data_ptr()) for p in model.parameters())
    assert 1.0 <= peak * 1024 / done.nbytes < 1.03, peak


class Peak(unittest.TestCase):
    def test_a_move_never_has_more_than_one_piece_twice(self):
        in_process(peak_of_a_move)

    def test_a_model_from_the_meta_device_takes_its_own_size_once(self):
        in_process(peak_of_meta)


class WithoutExchange(unittest.TestCase):
    """torch before _swap_data_ptr_: `set_` on each alias that is known."""

    def setUp(self):
        patch = unittest.mock.patch.object(_memory, "_swap_of", lambda _: None)
        patch.start()
        self.addCleanup(patch.stop)
        self.arena = Arena(Shared())

    def test_training_goes_on_bit_for_bit(self):
        (one, optim_one), (two, optim_two) = twins()
        self.assertEqual(self.arena.move_in(state_of(one, optim_one).values()), [])
        for tensor in state_of(one, optim_one).values():
            self.assertTrue(self.arena.holds(tensor.data_ptr()))
        self.assertEqual(train(one, optim_one, 3), train(two, optim_two, 3))
        equal(self, state_of(one, optim_one), state_of(two, optim_two))

    def test_aliases_that_are_given_together_move_together(self):
        base = torch.arange(10.0)
        view, parameter = base[2:4], nn.Parameter(base)
        self.assertEqual(self.arena.move_in([base, view, parameter]), [])
        base.add_(1)
        self.assertEqual(view.tolist(), [3, 4])
        self.assertEqual(parameter[9].item(), 10)
        self.assertTrue(all(self.arena.holds(t.data_ptr()) for t in (base, view, parameter)))

    def test_a_storage_with_an_alias_that_nobody_named_stays_and_the_alias_is_named(self):
        base = torch.arange(12.0)
        unknown = base.view(3, 4)
        at = base.data_ptr()
        left = self.arena.move_in([("model/base", base)])
        self.assertRegex(left[0].reason, r"1 more tensors share it .*\[3, 4\]")
        self.assertEqual((base.data_ptr(), unknown.data_ptr()), (at, at))

    def test_a_tensor_saved_for_backward_keeps_its_storage_in_place(self):
        weight = nn.Parameter(torch.randn(4))
        loss = (weight.detach().requires_grad_().view(2, 2) ** 2).sum()  # the graph has a view of it
        left = self.arena.move_in([weight])
        self.assertEqual(len(left), 1)
        loss.backward()


class MetaDevice(unittest.TestCase):
    def setUp(self):
        _told.begin(0)
        self.arena = Arena(Shared())

    def test_parameters_stay_the_same_objects_with_their_ties_attributes_and_optimizer(self):
        with torch.device("meta"):
            model = Net()
        objects = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
        model.inner.weight.mark = "kept"
        optim = torch.optim.AdamW(model.parameters(), lr=0.01)
        with self.assertLogs("ckptd", "WARNING") as logs:
            done = materialise(model, self.arena)
        self.assertIn("scale", logs.output[0])
        self.assertEqual(done.not_saved, ("scale",))
        self.assertEqual({name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}, objects)
        self.assertEqual(model.inner.weight.mark, "kept")
        self.assertIs(model.again.weight, model.tied.weight)
        self.assertFalse(model.frozen.weight.requires_grad)
        for tensor in [*model.parameters(), *model.buffers()]:
            self.assertTrue(self.arena.holds(tensor.data_ptr()))
            self.assertEqual(int(tensor.count_nonzero()), 0)
        torch.manual_seed(1)
        source = Net()
        model.load_state_dict(source.state_dict())
        model.scale.fill_(0.5)
        other = torch.optim.AdamW(source.parameters(), lr=0.01)
        self.assertEqual(train(model, optim, 3), train(source, other, 3))
        self.assertTrue(all(self.arena.holds(p.data_ptr()) for p in model.parameters()))

    def test_what_is_not_on_the_meta_device_is_left_alone(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
        at = model[0].weight.data_ptr()
        materialise(model, self.arena)
        self.assertEqual(model[0].weight.data_ptr(), at)
        self.assertTrue(self.arena.holds(model[1].weight.data_ptr()))

    def test_without_an_arena_the_memory_is_torchs(self):
        model = nn.Linear(3, 3, device="meta")
        materialise(model)
        self.assertEqual(model(torch.ones(3)).tolist(), [0, 0, 0])

    def test_views_of_one_storage_share_one_again(self):
        model = nn.Module()
        base = torch.empty(10, device="meta")
        model.register_buffer("base", base)
        model.register_buffer("part", base[4:6])
        model.register_buffer("turned", torch.empty(4, 6, device="meta").t())
        materialise(model, self.arena)
        model.base.copy_(torch.arange(10.0))
        self.assertEqual(model.part.tolist(), [4, 5])
        self.assertEqual(model.turned.stride(), (1, 6))

    def test_a_parameter_whose_insides_are_held_is_replaced_in_every_place(self):
        import weakref

        with torch.device("meta"):
            model = Net()
        held = weakref.ref(model.tied.weight)
        materialise(model, self.arena)
        self.assertFalse(model.tied.weight.is_meta)
        self.assertIs(model.again.weight, model.tied.weight)
        del held

    def test_hooks_and_gradient_accumulators_are_kept(self):
        model = nn.Linear(3, 1, device="meta")
        seen = []
        model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))
        model.weight.register_hook(lambda g: g * 2)
        materialise(model, self.arena)
        model(torch.ones(3)).sum().backward()
        self.assertEqual(len(seen), 1)
        self.assertIs(seen[0], model.weight)
        self.assertEqual(model.weight.grad.tolist(), [[2, 2, 2]])

    def test_a_lazy_module_is_an_error_with_its_name(self):
        with self.assertRaisesRegex(TypeError, "0.weight has no shape yet"):
            materialise(nn.Sequential(nn.LazyLinear(3, device="meta")), self.arena)


# --- several ranks ---


def sharded(world, seed, device=None, policy=None, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import fully_shard

    torch.manual_seed(seed)
    mesh = mesh or init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    with torch.device(device or "cpu"):
        model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1), nn.LayerNorm(1))
    extra = {} if policy is None else {"offload_policy": policy}
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, **extra)
    return fully_shard(model, mesh=mesh, **extra)


def padded_inside(arena, model):
    count = 0
    for param in fsdp_params(model):
        count += 1
        data, local = param._sharded_param_data, param.sharded_param._local_tensor
        assert arena.holds(data.data_ptr()), param
        assert local.numel() == 0 or local.data_ptr() == data.data_ptr(), param
    assert count == 6, count


def fsdp_moves(rank, world):
    one, two = sharded(world, 3), sharded(world, 3)
    optims = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (one, two)]
    arena = Arena(Shared())
    params = [id(p) for p in one.parameters()]
    arena.move_in(one.parameters())  # before lazy_init
    padded_inside(arena, one)
    assert train(one, optims[0], 2) == train(two, optims[1], 2)
    padded_inside(arena, one)
    left = arena.move_in(state_of(one, optims[0]).values())
    assert left == [], left
    assert train(one, optims[0], 3) == train(two, optims[1], 3)
    padded_inside(arena, one)
    assert [id(p) for p in one.parameters()] == params
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a._local_tensor, b._local_tensor)
    for inner in optims[0].state.values():
        assert all(arena.holds(t.untyped_storage().data_ptr()) for t in (inner["exp_avg"]._local_tensor,) if t.numel())


def fsdp_moves_by_set(rank, world):
    from ckptd._memory import tensors_of

    _memory._swap_of = lambda _: None
    one, two = sharded(world, 3), sharded(world, 3)
    optims = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (one, two)]
    assert train(one, optims[0], 2) == train(two, optims[1], 2)
    arena = Arena(Shared())
    left = arena.move_in([*tensors_of([], [one]), *state_of(one, optims[0]).items()])
    assert left == [], left
    padded_inside(arena, one)
    assert train(one, optims[0], 3) == train(two, optims[1], 3)
    padded_inside(arena, one)


def ddp_by_set(rank, world):
    """DDP has hooks on the gradient accumulators of parameters: they stay when the parameters are moved."""
    _memory._swap_of = lambda _: None
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    arena = Arena(Shared())
    assert arena.move_in(model.parameters()) == []
    model(torch.full((2, 8), float(rank + 1))).sum().backward()
    for p in model.parameters():
        of_each = [torch.zeros_like(p.grad) for _ in range(world)]
        torch.distributed.all_gather(of_each, p.grad)
        assert torch.equal(of_each[0], of_each[1]), "each rank has its own gradient"


def fsdp_from_meta(rank, world):
    source = sharded(world, 3)
    model = sharded(world, 3, device="meta")
    alloc = Shared()
    arena = Arena(alloc)
    objects = [id(p) for p in model.parameters()]
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = materialise(model, arena)
    assert [id(p) for p in model.parameters()] == objects
    assert len(alloc.asked) == 1
    shard = sum(p._sharded_param_data.numel() * 4 for p in fsdp_params(source))
    assert done.nbytes == shard, (done.nbytes, shard)
    padded_inside(arena, model)
    with torch.no_grad():
        for p, q in zip(model.parameters(), source.parameters()):
            p._local_tensor.copy_(q._local_tensor)  # as a restore does
    other = torch.optim.AdamW(source.parameters(), lr=0.01)
    assert train(model, optim, 3) == train(source, other, 3)  # lazy_init is in the first step
    padded_inside(arena, model)


def tensor_parallel_from_meta(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch_names import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))

    def cut(device):
        torch.manual_seed(2)
        with torch.device(device):
            model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    source, model = cut("cpu"), cut("meta")
    arena = Arena(Shared())
    done = materialise(model, arena)
    locals_ = sum(p._local_tensor.numel() * 4 for p in source.parameters())
    assert done.nbytes == locals_, (done.nbytes, locals_)
    for p, q in zip(model.parameters(), source.parameters()):
        assert isinstance(p, DTensor) and p.placements == q.placements and p.device.type == "cpu", p
        assert arena.holds(p._local_tensor.data_ptr())
        p.data._local_tensor.copy_(q.data._local_tensor)
    optims = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, source)]
    assert train(model, optims[0], 3) == train(source, optims[1], 3)
    one = Arena(Shared())
    assert one.move_in(state_of(source, optims[1]).values()) == []
    assert train(model, optims[0], 3, seed=5) == train(source, optims[1], 3, seed=5)


def offloaded(rank, world):
    """There is no GPU here: a fake page lock says which memory is pinned, and torch's pin_memory is counted."""
    from torch_names import CPUOffloadPolicy

    locked, pinned_anew = [], []

    def is_pinned(tensor, *_):
        at = tensor.untyped_storage().data_ptr()
        return any(first <= at < first + n for first, n in locked)

    def pin_memory(tensor, *_):
        new = tensor.clone()
        locked.append((new.untyped_storage().data_ptr(), new.untyped_storage().nbytes()))
        pinned_anew.append(new)
        return new

    def register(address, nbytes):
        locked.append((address, nbytes))
        return True

    torch.Tensor.is_pinned, torch.Tensor.pin_memory = is_pinned, pin_memory
    _memory._is_pinned = lambda storage: any(a <= storage.data_ptr() < a + n for a, n in locked)
    for device in ("cpu", "meta"):
        model = sharded(world, 3, device=device, policy=CPUOffloadPolicy(pin_memory=True))
        arena = Arena(Shared(), register)
        if device == "meta":
            materialise(model, arena)
        else:
            assert arena.move_in(model.parameters()) == []
        assert all(piece.pinned for piece in arena._mine)
        before = len(pinned_anew)
        for param in fsdp_params(model):
            param.reset_sharded_param()  # what lazy_init does
        assert len(pinned_anew) == before, "FSDP2 has made pinned memory of its own"
        padded_inside(arena, model)
    model = sharded(world, 3, policy=CPUOffloadPolicy(pin_memory=True))
    arena = Arena(Shared(), lambda address, nbytes: False)
    left = arena.move_in(model.parameters())
    assert len(left) == 6 and "page-locked" in left[0].reason, left


class Ranks(unittest.TestCase):
    @unittest.skipUnless(_memory._swap_of(torch), "this torch cannot exchange the memory of a storage")
    def test_fsdp2_uneven_and_empty_shards_follow(self):
        on_ranks(2, fsdp_moves)

    def test_ddp_adds_gradients_after_a_move_without_exchange(self):
        on_ranks(2, ddp_by_set)

    @fsdp2_on_cpu
    def test_fsdp2_without_exchange(self):
        on_ranks(2, fsdp_moves_by_set)

    @fsdp2_on_cpu
    def test_fsdp2_from_the_meta_device_is_padded_once_and_in_the_arena(self):
        on_ranks(2, fsdp_from_meta)

    def test_tensor_parallel_from_the_meta_device_takes_its_shard_only(self):
        on_ranks(2, tensor_parallel_from_meta)

    @fsdp2_on_cpu
    def test_offloaded_shards_are_locked_and_fsdp2_does_not_pin_them_anew(self):
        on_ranks(2, offloaded)


class PageLock(unittest.TestCase):
    def test_cuda_locks_the_pages_of_a_piece(self):
        calls = []

        class Runtime:
            def cudaHostRegister(self, address, nbytes, flags):
                calls.append((address, nbytes, flags))
                return 0 if len(calls) == 1 else 2

        with (
            unittest.mock.patch.object(torch.cuda, "is_available", lambda: True),
            unittest.mock.patch.object(torch.cuda, "cudart", Runtime),
        ):
            self.assertTrue(_memory.cuda_register(4096, 10))
            self.assertFalse(_memory.cuda_register(8192, 10))
        self.assertEqual(calls[0], (4096, 10, 1))

    def test_without_a_gpu_nothing_is_locked(self):
        with unittest.mock.patch.object(torch.cuda, "is_available", lambda: False):
            self.assertFalse(_memory.cuda_register(4096, 10))


# --- fork ---


class Reading(torch.utils.data.Dataset):
    """A data set that reads the model, and in one item writes to it."""

    def __init__(self, model, writes=False):
        self.model = model
        self.writes = writes

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if self.writes and i == 0:
            with torch.no_grad():
                self.model.inner.bias.fill_(7)
        return torch.full((8,), float(self.model.inner.weight.detach().sum())), os.getpid()


class Fork(unittest.TestCase):
    def setUp(self):
        (self.model, self.optim), (self.twin, self.twin_optim) = twins()
        self.arena = Arena(Shared())
        self.arena.move_in(state_of(self.model, self.optim).values())

    def load(self, data):
        return list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"))

    def test_workers_read_the_present_state_and_their_exit_changes_nothing(self):
        expect = float(self.model.inner.weight.detach().sum())
        batches = self.load(Reading(self.model))
        self.assertTrue(all(float(x[0, 0]) == expect and int(pid[0]) != os.getpid() for x, pid in batches))
        self.assertEqual(train(self.model, self.optim, 3), train(self.twin, self.twin_optim, 3))
        equal(self, state_of(self.model, self.optim), state_of(self.twin, self.twin_optim))
        self.assertTrue(all(self.arena.holds(p.data_ptr()) for p in self.model.parameters()))

    def test_a_worker_that_writes_writes_to_the_trainers_memory_as_documented(self):
        self.load(Reading(self.model, writes=True))
        self.assertEqual(self.model.inner.bias.tolist(), [7] * 5)

    def test_a_child_that_attaches_gets_memory_of_its_own(self):
        weight = torch.arange(1.0 * MIB)  # of many pages
        self.arena.move_in([weight])
        pid = os.fork()
        if pid == 0:
            good = False
            try:
                own = Arena(Shared())
                left = own.move_in([weight])
                with torch.no_grad():
                    weight.zero_()
                good = left == [] and own.holds(weight.data_ptr())
            finally:
                os._exit(0 if good else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertTrue(torch.equal(weight, torch.arange(1.0 * MIB)))


if __name__ == "__main__":
    unittest.main()
