# SPDX-License-Identifier: Apache-2.0
"""What describe() says of a tensor is what its local tensor holds, and what libckpt makes of it (ckptctl layout)."""

import contextlib
import itertools
import re
import unittest
from unittest import mock

from one_process import ROOT, as_rank, ckptctl_says, numel_of, torch  # first: it sets the path

import torch.nn as nn
from ckptd import _flat, _layout, _mesh
from ckptd._types import Mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch_names import (
    VERSION,
    _StridedShard,
    distribute_tensor,
    DTensor,
    fully_shard,
    Partial,
    Replicate,
    Shard,
    since,
)


def arange(shape):
    return torch.arange(numel_of(shape), dtype=torch.float64).view(shape)


class Held(unittest.TestCase):
    """Each case makes the DTensors of one job on each rank; values are the indices of the elements."""

    def check_job(self, world, make, replicas=None):
        """make(rank) gives the DTensors of this rank. Every rank's layouts are equal, and say what the rank holds."""
        first, locals_of = None, []
        for rank in range(world):
            with as_rank(rank, world):
                tensors = make(rank)
                layouts = [_layout.describe(t, rank=rank, world=world) for t in tensors]
                locals_of.append([[p.local.clone() for p in one.parts] for one in layouts])
            stripped = [(one.shape, one.mode, one.mesh, one.placements) for one in layouts]
            first = first or (layouts, stripped)
            self.assertEqual(stripped, first[1], "rank %d declares another layout than rank 0" % rank)
        for i, held in enumerate(ckptctl_says(first[0])):
            for rank in range(world):
                parts = locals_of[rank][i]
                said = held.get(rank)
                what = "tensor %d %s of rank %d" % (i, first[1][i], rank)
                if said is None or said.numel() == 0:
                    self.assertEqual(parts, [], what)
                    continue
                self.assertEqual(len(parts), 1, what)
                self.assertEqual(parts[0].long().tolist(), said.tolist(), what)
        return first[0]

    # --- FSDP2, TP, HSDP, EP ---

    def test_fsdp2_with_uneven_rows_and_fewer_rows_than_ranks(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
            shapes = [(10, 4), (2, 3), (1,), (7, 2, 3)]
            return sharded(shapes + [(4, 0)] if VERSION >= (2, 5) else shapes, mesh)

        self.check_job(4, make)

    def test_hsdp(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "fsdp"))
            return sharded([(5,), (2, 2), (8, 3)], mesh)

        self.check_job(6, make)

    def test_fsdp2_over_tp_is_read_as_an_order(self):
        for dp, tp in ((2, 2), (3, 2), (2, 3), (4, 2)):
            for dim in (0, 1):

                def make(rank):
                    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("fsdp", "tp"))
                    sizes = (
                        ((1, 2, 5, 7, 8, 13), (2, 5)) if VERSION >= (2, 5) else ((5, 7, 8, 13), (5,))
                    )  # none is empty
                    shapes = [(n, m) for n in sizes[0] for m in sizes[1]]
                    return sharded(shapes, mesh["fsdp"], mesh["tp"], Shard(dim))

                layouts = self.check_job(dp * tp, make)
                self.assertEqual({one.mesh.names for one in layouts}, {("fsdp", "tp")})
                self.assertEqual({one.mode for one in layouts}, {_layout.CHUNK if dim else _layout.TORCH_ORDER})

    @since(2, 5, "FSDP2 refuses HSDP over TP")
    def test_hsdp_over_tp(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("dp", "fsdp", "tp"))
            return sharded([(7,), (13, 2), (1, 3)], mesh["dp", "fsdp"], mesh["tp"], Shard(0))

        self.check_job(12, make)

    def test_a_norm_on_the_fsdp_submesh_is_replicated_over_tp(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("fsdp", "tp"))
            return sharded([(7,), (2, 2)], mesh["fsdp"])

        layouts = self.check_job(6, make)
        self.assertEqual(layouts[0].mesh, Mesh(("fsdp", "tp"), (3, 2), tuple(range(6))))

    def test_a_tensor_on_the_tp_submesh_is_replicated_over_fsdp(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("fsdp", "tp"))
            return [distribute_tensor(arange((5, 3)), mesh["tp"], [Shard(1)], src_data_rank=None)]

        self.check_job(6, make)

    def test_experts_have_sibling_meshes(self):
        def make(rank):
            dense = init_device_mesh("cpu", (4, 2), mesh_dim_names=("fsdp", "tp"))
            sparse = init_device_mesh("cpu", (2, 4), mesh_dim_names=("efsdp", "ep"))
            experts = sharded([(8, 3), (4, 2)], sparse["efsdp"], sparse["ep"], Shard(0))
            return sharded([(5, 3)], dense["fsdp"], dense["tp"], Shard(0)) + experts

        layouts = self.check_job(8, make)
        self.assertEqual([one.mesh.names for one in layouts], [("fsdp", "tp")] + [("efsdp", "ep")] * 2)

    def test_unflattened_meshes_of_one_world(self):
        def make(rank):
            world = init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
            if not hasattr(world, "_unflatten"):
                self.skipTest("this torch has no DeviceMesh._unflatten")
            sparse = world._unflatten(0, (2, 2, 2), ("dp", "efsdp", "ep"))
            return [
                distribute_tensor(arange((5, 3)), sparse["ep"], [Shard(0)], src_data_rank=None),
                distribute_tensor(arange((5, 3)), sparse["efsdp", "ep"], [Shard(0), Shard(1)], src_data_rank=None),
                distribute_tensor(arange((5, 3)), sparse["efsdp"], [Shard(0)], src_data_rank=None),
            ]

        self.check_job(8, make)

    @since(2, 5, "no DeviceMesh._flatten")
    def test_flattened_dimensions_cut_once(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
            flat = mesh["dp", "cp"]._flatten("dp_cp")
            outer = mesh["dp", "tp"]._flatten("dp_tp")
            return sharded([(5, 2), (4,), (9,)], flat) + sharded([(5, 2)], outer)

        self.check_job(8, make)

    def test_a_shard_is_the_number_in_the_process_group_on_permuted_meshes(self):
        """fully_shard cuts by that number. Real ranks: test_mesh_order.py."""

        def make(rank):
            one = DeviceMesh("cpu", [3, 1, 0, 2], mesh_dim_names=("fsdp",))
            two = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("dp", "fsdp"))
            return sharded([(5, 3), (4,)], one) + sharded([(5, 3), (4,)], two)

        layouts = self.check_job(4, make)
        self.assertEqual(layouts[0].mesh.ranks, (0, 1, 2, 3))
        self.assertEqual(layouts[2].mesh.ranks, (1, 3, 0, 2))

    def test_a_mesh_of_some_ranks(self):
        def make(rank):
            some = DeviceMesh("cpu", [1, 2, 4], mesh_dim_names=("some",))
            return [distribute_tensor(arange((5, 3)), some, [Shard(0)], src_data_rank=None)]

        self.assertEqual(self.check_job(5, make)[0].mesh.ranks, (1, 2, 4))

    @since(2, 5, "FSDP2 refuses HSDP over TP")
    def test_mesh_dimensions_of_size_one(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (1, 3, 1), mesh_dim_names=("dp", "fsdp", "tp"))
            return (
                sharded([(7, 2)], mesh["dp", "fsdp"], mesh["tp"], Shard(0))
                + sharded([(7, 2)], mesh["fsdp"])
                + sharded([(7, 2)], mesh["dp"])
            )

        layouts = self.check_job(3, make)
        self.assertEqual({one.mesh.sizes for one in layouts}, {(1, 3, 1)})

    def test_a_mesh_without_names(self):
        def make(rank):
            mesh = init_device_mesh("cpu", (2, 2))
            return [distribute_tensor(arange((5, 3)), mesh, [Shard(1), Replicate()], src_data_rank=None)]

        self.assertEqual(self.check_job(4, make)[0].mesh.names, ("dim0", "dim1"))

    @since(2, 5, "two cuts of one dimension are taken for those of FSDP2")
    def test_every_placement_on_three_mesh_dimensions(self):
        """distribute_tensor cuts one placement after the other; split factors of 1 only."""
        choices = list(itertools.product((Replicate(), Shard(0), Shard(1)), repeat=3))

        def make(rank):
            mesh = init_device_mesh("cpu", (2, 3, 2), mesh_dim_names=("x", "y", "z"))
            return [distribute_tensor(arange((7, 5)), mesh, list(p), src_data_rank=None) for p in choices]

        self.check_job(12, make)

    @since(2, 5, "no _StridedShard")
    def test_literal_strided_shards(self):
        """A fused QKV. Here the factors say no order, or the local shape says that they are literal."""

        def make(rank):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            return [
                distribute_tensor(arange(shape), mesh, [_StridedShard(0, split_factor=f)], src_data_rank=None)
                for shape, f in (((8,), 2), ((12, 2), 3), ((5,), 2), ((5, 3), 7), ((1, 2), 3))
            ]

        self.check_job(2, make)

    def test_shards_in_an_order_of_their_own(self):
        """Newer torch can keep the order beside plain placements: DTensorSpec.shard_order."""
        try:
            from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
        except ImportError:
            self.skipTest("this torch has no shard order")

        def make(rank):
            mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("a", "b"))
            whole, coord = arange((7, 2)), mesh.get_coordinate()
            local = Shard(0)._split_tensor(whole, 3, with_padding=False)[0][coord[1]]
            local = Shard(0)._split_tensor(local, 2, with_padding=False)[0][coord[0]]
            meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
            order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
            spec = DTensorSpec(mesh, (Shard(0), Shard(0)), tensor_meta=meta, shard_order=order)
            return [DTensor(local.contiguous(), spec, requires_grad=False)]

        layouts = self.check_job(6, make)
        self.assertEqual([p.mesh_dim for p in layouts[0].placements], [1, 0])

    def test_stages_of_a_pipeline_hold_other_tensors(self):
        for rank in range(8):
            with as_rank(rank, 8):
                mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
                tensors = sharded([(5, 2)], mesh["fsdp"]) + sharded([(5, 2)], mesh["fsdp"], mesh["tp"], Shard(0))
                for t in tensors:
                    got = _layout.describe(t, rank=rank, world=8).mesh
                    self.assertEqual(got, Mesh(("fsdp", "tp"), (2, 2), tuple(range(rank // 4 * 4, rank // 4 * 4 + 4))))

    # --- memory ---

    def test_locals_keep_their_strides(self):
        with as_rank(0, 2):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            local = arange((3, 4)).t()
            t = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(8, 3), stride=(3, 1))
            part = _layout.describe(t, rank=0, world=2).parts[0]
            self.assertEqual(part.local.stride(), (1, 4))
            self.assertEqual(part.local.data_ptr(), local.data_ptr())

    def test_the_part_is_the_memory_itself(self):
        p = nn.Parameter(torch.zeros(3, 2))
        layout = _layout.describe(p, rank=1, world=3)
        self.assertEqual(layout.parts[0].local.data_ptr(), p.data_ptr())
        self.assertEqual((layout.mesh, layout.placements), (Mesh(("rank",), (3,), (0, 1, 2)), ()))
        self.assertEqual(_layout.describe(torch.zeros(()), rank=0, world=1).shape, ())
        self.assertEqual(_layout.describe(torch.zeros(3, 0), rank=0, world=1).parts, ())

    # --- refusals ---

    def refused(self, tensor, text, rank=0, world=2):
        with self.assertRaises(_layout.Unsupported) as caught:
            _layout.describe(tensor, rank=rank, world=world)
        self.assertIn(text, str(caught.exception))

    @since(2, 8, "types are missing")
    def test_what_cannot_be_saved_is_refused_with_its_reason(self):
        self.refused(torch.zeros(3).expand(2, 3), "same memory")
        self.refused(torch.zeros(6).as_strided((2, 3), (1, 1)), "same memory")
        self.refused(torch.zeros(3, dtype=torch.complex64).conj(), "conjugate")
        self.refused(torch.zeros(3, dtype=torch.complex64).conj().imag, "negatives")
        self.refused(torch.eye(3).to_sparse(), "sparse")
        self.refused(torch.zeros(3, device="meta"), "meta device")
        self.refused(torch.zeros((1,) * 17), "17 dimensions")
        self.refused(nn.parameter.UninitializedParameter(), "no shape yet")
        self.refused(torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "the shape [1]")
        self.refused(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized")
        self.refused(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested")

    def test_what_looks_like_it_and_can_be_saved(self):
        for fine in (
            torch.zeros(4, 3).t(),
            torch.zeros(8)[::2],
            torch.zeros(3).expand(1, 3),
            torch.zeros(0, 3).expand(0, 3),
            torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        ):
            self.assertEqual(_layout.describe(fine, rank=0, world=1).shape, tuple(fine.shape))

    @since(2, 5, "no _StridedShard")
    def test_dtensors_that_cannot_be_declared(self):
        with as_rank(0, 2):
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            partial = DTensor.from_local(torch.zeros(3), mesh, [Partial()], run_check=False)
            self.refused(partial, "pending reduction")
            short = DTensor.from_local(torch.zeros(3), mesh, [Shard(0)], run_check=False, shape=(7,), stride=(1,))
            self.refused(short, "(4,)")
            neither = DTensor.from_local(
                torch.zeros(9), mesh, [_StridedShard(0, split_factor=2)], run_check=False, shape=(8,), stride=(1,)
            )
            self.refused(neither, "(9,)")
            mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
            large = distribute_tensor(torch.zeros(4), mesh["a"], [Shard(0)], src_data_rank=None)
            self.refused(large, "the job has 1", world=1)

    def test_orders_of_ranks_that_are_no_permutation_or_that_nothing_says(self):
        with as_rank(0, 4):
            mesh = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("a", "b"))
            both = DTensor.from_local(torch.zeros(1, 2), mesh, [Shard(0), Shard(1)], run_check=False)
            self.refused(both, "a has [0, 3], [1, 2]; b has [1, 3], [0, 2]", world=4)
            self.refused(both, "ranks [3, 1, 0, 2]", world=4)
            for ranks, fine in (([[0, 1], [2, 3]], True), ([[0, 1], [3, 2]], False)):
                alone = DeviceMesh("cpu", ranks, mesh_dim_names=("a", "b"), _init_backend=False)
                t = DTensor.from_local(torch.zeros(1, 2), alone, [Replicate(), Shard(1)], run_check=False)
                if fine:
                    self.assertEqual(_layout.describe(t, rank=0, world=4).mesh.ranks, (0, 1, 2, 3))
                else:
                    self.refused(t, "this process has no process group of it", world=4)

    @since(2, 15, "full_tensor() does not gather by flattened meshes")
    def test_a_flattened_mesh_that_numbers_ranks_otherwise(self):
        for array, fine in (([[0, 2], [1, 3]], False), ([[3, 1], [2, 0]], False), ([[3, 2], [1, 0]], True)):
            for joined in (False, True):
                with as_rank(0, 4):
                    mesh = DeviceMesh("cpu", array, mesh_dim_names=("a", "b"))
                    if joined:
                        mesh._flatten("both")
                    t, other = (
                        DTensor.from_local(torch.zeros(1, 2), mesh, [Shard(0), Shard(d)], run_check=False)
                        for d in (0, 1)
                    )
                    _layout.describe(other, rank=0, world=4)
                    if fine or not joined:
                        _layout.describe(t, rank=0, world=4)
                    else:
                        self.refused(t, "both has the ranks [0, 1, 2, 3]", world=4)

    def test_groups_that_the_mesh_does_not_have_are_refused(self):
        with as_rank(0, 4):
            mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("a", "b"))
            t = DTensor.from_local(torch.zeros(1, 2), mesh, [Replicate(), Shard(1)], run_check=False)
            for group in ([0, 2], [0, 1, 2]):
                _mesh._lifted.clear()
                with mock.patch.object(_mesh, "group_of", lambda mesh, d: group):
                    self.refused(t, "its process group has the ranks %s" % group, world=4)

    def test_a_subclass_that_says_nothing_is_refused_and_one_without_dispatch_is_a_tensor(self):
        class Wrapped(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        class Named(torch.Tensor):
            pass

        self.refused(torch.zeros(3).as_subclass(Wrapped), "Wrapped")
        self.assertEqual(_layout.describe(torch.zeros(3).as_subclass(Named), rank=0, world=1).shape, (3,))

    # --- types ---

    @since(2, 8, "types are missing")
    def test_every_type_has_the_number_of_its_name_in_ckpt_h(self):
        with open(ROOT + "/ckpt/ckpt.h") as f:
            text = f.read()
        body = text[text.index("enum ckpt_dtype {") : text.index("enum ckpt_media")]
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        names = [n.split("=")[0].strip() for n in body[body.index("{") + 1 : body.index("}")].split(",") if n.strip()]
        numbers = {n[5:]: i + 1 for i, n in enumerate(names)}
        spelled = {"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "BF16": "bfloat16"}
        spelled.update({"C64": "complex64", "C128": "complex128", "C32": "complex32", "F4": "float4_e2m1fn_x2"})
        for name, number in numbers.items():
            long = spelled.get(name) or name.lower().replace("f8_", "float8_")
            long = {"u": "uint", "i": "int", "f": "float"}[long[0]] + long[1:] if long[1:].isdigit() else long
            self.assertEqual(_layout.dtype_of(getattr(torch, long)), number, name)
            self.assertEqual(_layout.dtype_to_torch(number), getattr(torch, long))
        self.assertEqual(len(numbers), len(_layout._DTYPES))
        with self.assertRaises(_layout.Unsupported):
            _layout.dtype_of(torch.bits8)

    def test_the_modes_are_those_of_ckpt_h(self):
        with open(ROOT + "/ckpt/ckpt.h") as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.DOTALL)

        def enum(name):
            body = text[text.index("enum %s {" % name) :]
            return [n.split("=")[0].strip() for n in body[body.index("{") + 1 : body.index("}")].split(",")]

        modes = enum("ckpt_mode")
        used = [modes[_layout.CHUNK], modes[_layout.TORCH_ORDER], modes[_layout.BOXES]]
        self.assertEqual(used, ["CKPT_CHUNK", "CKPT_TORCH_ORDER", "CKPT_BOXES"])
        self.assertEqual(enum("ckpt_how")[_layout.SHARD], "CKPT_SHARD")


class Boxes(unittest.TestCase):
    def test_an_interval_is_few_boxes_in_order(self):
        for shape in ((), (1,), (7,), (4, 5), (3, 2, 4), (2, 3, 1, 2), (0, 3), (1, 1, 3)):
            whole = torch.arange(numel_of(shape)).view(shape)
            for start in range(numel_of(shape) + 1):
                for stop in range(start, numel_of(shape) + 1):
                    boxes = _flat.boxes_of_interval(shape, start, stop)
                    got = []
                    for origin, extent in boxes:
                        cut = whole[tuple(slice(o, o + e) for o, e in zip(origin, extent))]
                        self.assertEqual(tuple(cut.shape), extent)
                        got += cut.flatten().tolist()
                    self.assertEqual(got, list(range(start, stop)), (shape, start, stop))
                    self.assertLessEqual(len(boxes), max(1, 2 * len(shape) - 1))
        with self.assertRaises(ValueError):
            _flat.boxes_of_interval((2, 3), 4, 7)

    def test_checkpointable_tensors(self):
        t = torch.arange(12.0).view(4, 3)
        t.global_shape, t.global_offsets = (8, 3), ((0, 0), (6, 0))
        t.local_offsets, t.local_sizes = ((0, 0), (2, 0)), ((2, 3), (2, 3))
        layout = _layout.describe(t, rank=0, world=2)
        self.assertEqual((layout.shape, layout.mode, layout.mesh, layout.placements), ((8, 3), _layout.BOXES, None, ()))
        self.assertEqual([(p.start, p.extent) for p in layout.parts], [((0, 0), (2, 3)), ((6, 0), (2, 3))])
        self.assertEqual(layout.parts[1].local.data_ptr(), t[2].data_ptr())
        t.global_offsets = ((0, 0), (7, 0))
        with self.assertRaises(_layout.Unsupported):
            _layout.describe(t, rank=0, world=2)

    def test_local_shards(self):
        try:
            from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
        except ImportError:
            self.skipTest("this torch has no LocalShardsWrapper")
        with as_rank(1, 4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))
            shards = [torch.zeros(3, 2), torch.ones(3, 2)]
            wrapper = LocalShardsWrapper(shards, [(0, 0), (0, 6)])
            t = DTensor.from_local(wrapper, mesh, [Replicate(), Shard(1)], run_check=False, shape=(3, 8), stride=(8, 1))
            layout = _layout.describe(t, rank=1, world=4)
            self.assertEqual((layout.shape, layout.mode), ((3, 8), _layout.BOXES))
            self.assertEqual(layout.mesh.ranks, (1, 3))
            self.assertEqual([(p.start, p.extent) for p in layout.parts], [((0, 0), (3, 2)), ((0, 6), (3, 2))])
            self.assertEqual(layout.parts[1].local.data_ptr(), shards[1].data_ptr())


class Groups(unittest.TestCase):
    """Of groups that this rank is not in: what it assumes, by arrays alone."""

    def ordered(self, own, kept=None, bound=False, ranks=(0, 1, 3, 2), member=True):
        mesh = Mesh(("a", "b"), (2, 2), ranks)
        torch_mesh = mock.Mock(get_coordinate=lambda: (0, 0) if member else None, spec=["get_coordinate"])
        if kept is not None:
            torch_mesh._preserve_rank_order = kept
        default = mock.Mock(bound_device_id=torch.device("cpu") if bound else None)
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(_mesh, "group_of", lambda mesh, d: own))
            c10d = "torch.distributed.distributed_c10d._get_default_group"
            patches.enter_context(mock.patch(c10d, lambda: default))
            patches.enter_context(mock.patch("torch.accelerator.is_available", lambda: bound, create=True))
            return _mesh.in_group_order(torch_mesh, _mesh._identity(mesh), (1,)).mesh.ranks

    def test_the_own_group_says_it(self):
        self.assertEqual(self.ordered([2, 3]), (0, 1, 2, 3))
        self.assertEqual(self.ordered([3, 2]), (0, 1, 3, 2))
        self.assertEqual(self.ordered([2, 3], kept=True), (0, 1, 2, 3))

    def test_where_it_does_not_the_mesh_and_its_torch_do(self):
        for own, member in (([0, 1], True), (None, False)):
            self.assertEqual(self.ordered(own, member=member), (0, 1, 2, 3))
            self.assertEqual(self.ordered(own, member=member, kept=False), (0, 1, 2, 3))
            self.assertEqual(self.ordered(own, member=member, kept=True), (0, 1, 3, 2))
            self.assertEqual(self.ordered(own, member=member, kept=False, bound=True), (0, 1, 3, 2))
            self.assertEqual(self.ordered(own, member=member, bound=True), (0, 1, 2, 3))


class Lifting(unittest.TestCase):
    """Meshes as arrays of ranks alone."""

    def test_slices_keep_the_root_mesh(self):
        root = Mesh(("a", "b", "c"), (2, 3, 2), tuple(range(12)))
        got = _mesh.lift_ranks(Mesh(("a", "c"), (2, 2), (2, 3, 8, 9)), root)
        self.assertEqual((got.mesh, got.dims), (root, (0, 2)))

    def test_what_is_no_regular_part_is_refused(self):
        root = Mesh(("a",), (6,), tuple(range(6)))
        with self.assertRaises(ValueError):
            _mesh.lift_ranks(Mesh(("x",), (4,), (0, 1, 2, 3)), root)
        with self.assertRaises(ValueError):
            _mesh.lift_ranks(Mesh(("x",), (3,), (0, 1, 3)), root)

    def test_ranks_outside_the_root_keep_their_own_mesh(self):
        sub = Mesh(("x",), (2,), (7, 9))
        self.assertEqual(_mesh.lift_ranks(sub, Mesh(("a",), (6,), tuple(range(6)))).mesh, sub)


def sharded(shapes, fsdp, tp=None, tp_placement=None):
    """Parameters that fully_shard cut, over tensor parallelism if there is a tp mesh. Values are indices."""
    module = nn.Module()
    for i, shape in enumerate(shapes):
        value = arange(shape)
        if tp is not None:
            value = distribute_tensor(value, tp, [tp_placement], src_data_rank=None)
        module.register_parameter("p%d" % i, nn.Parameter(value))
    fully_shard(module, mesh=fsdp)
    return [p.detach() for p in module.parameters()]


if __name__ == "__main__":
    unittest.main()
