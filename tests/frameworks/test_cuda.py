# SPDX-License-Identifier: Apache-2.0
"""ckptd.attach on a real CUDA device: training is the same bit for bit with and without it, and every step that it saved
is that of the training. Without a GPU all of it is skipped; test_cuda_fake.py shows the order without one."""

import contextlib
import hashlib
import os
import unittest

import ranks
import torch
from test_run import One
from torch_names import since

import ckptd
from ckptd import errors

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits in every run

DEVICE = "cuda"
STEPS = 8


def synchronize():
    torch.cuda.synchronize()


class Net(torch.nn.Module):
    """Some 25 MB of parameters, dropout, running statistics."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 2048)
        self.second = torch.nn.Linear(2048, 2048)
        self.norm = torch.nn.BatchNorm1d(2048)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Linear(2048, 8)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.second(self.first(x).relu()))))


OPTIMIZERS = {
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "capturable": lambda p: torch.optim.AdamW(p, lr=1e-3, capturable=DEVICE == "cuda"),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
}


def make(optimizer="fused", seed=1, shard=lambda model: model):
    torch.manual_seed(seed)
    model = shard(Net().to(DEVICE))
    return model, OPTIMIZERS[optimizer](model.parameters())


def loss_of(model, step):
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(step)).to(DEVICE)
    return model(x).square().mean()


def train(model, optim, first, last, run=None):
    """The losses of these steps, which are read at the end only: the program runs ahead of the device."""
    losses = []
    for step in range(first, last + 1):
        loss = loss_of(model, step)
        loss.backward()
        with run.step(step, loss=loss) if run is not None else contextlib.nullcontext():
            optim.step()
            optim.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def bits(model, optim):
    """A hash of each tensor of the state, by name."""
    synchronize()
    found = {}

    def take(name, value):
        local = getattr(value, "_local_tensor", value).detach().cpu().contiguous()
        found[name] = hashlib.sha256(local.view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()

    for name, value in model.state_dict().items():
        take(name, value)
    for i, p in enumerate(p for g in optim.param_groups for p in g["params"]):
        for key, value in optim.state[p].items():
            if torch.is_tensor(value):
                take("%d.%s" % (i, key), value)
    return found


@unittest.skipUnless(torch.cuda.is_available(), "PyTorch %s finds no CUDA device" % torch.__version__)
class OnCuda(One):
    def compare(self, make_both):
        """Train with ckptd and without it; then resume, in the middle and at the end."""
        model, optim = make_both(seed=1)
        losses = train(model, optim, 1, STEPS)
        end = bits(model, optim)
        job = self.job()
        model, optim = make_both(seed=1)
        run = self.attach(job, model, optim, extra={"rng": ckptd.rng()})
        self.assertEqual(run.restore(), 0)
        self.assertEqual(train(model, optim, 1, STEPS // 2, run), losses[: STEPS // 2])
        middle = bits(model, optim)
        run.wait()
        self.assertEqual(run.stats()["outcomes"]["torn"], 0)
        self.assertEqual(train(model, optim, STEPS // 2 + 1, STEPS, run), losses[STEPS // 2 :])
        run.wait()
        self.assertEqual(bits(model, optim), end)
        run.detach()
        model, optim = make_both(seed=2)
        run = self.attach(job, model, optim, extra={"rng": ckptd.rng()})
        self.assertEqual(run.restore(STEPS // 2), STEPS // 2)
        self.assertEqual(bits(model, optim), middle)
        self.assertEqual(train(model, optim, STEPS // 2 + 1, STEPS, run), losses[STEPS // 2 :])
        self.assertEqual(bits(model, optim), end)
        run.detach()

    def setUp(self):
        super().setUp()
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)


class Same(OnCuda):
    def test_losses_and_state_are_the_same_bit_for_bit_with_each_kind_of_optimizer(self):
        for optimizer in OPTIMIZERS:
            with self.subTest(optimizer):
                self.compare(lambda seed, kind=optimizer: make(kind, seed))

    def test_so_they_are_with_an_optimizer_that_is_compiled(self):
        def make_both(seed):
            model, optim = make("capturable", seed)
            optim.step = torch.compile(optim.step)
            return model, optim

        if DEVICE != "cuda":
            self.skipTest("for CUDA")
        self.compare(make_both)

    @since(2, 6, "FSDP2 is elsewhere")
    def test_so_they_are_with_fsdp2_of_one_rank(self):
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        job = self.job(daemon=False)
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        dist.init_process_group(
            backend, init_method="file://" + os.path.join(job.dir, "meet"), rank=0, world_size=1
        )
        self.addCleanup(dist.destroy_process_group)
        mesh = init_device_mesh(DEVICE, (1,), mesh_dim_names=("fsdp",))

        def shard(model):
            for layer in (model.first, model.second, model.last):
                fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        self.compare(lambda seed: make("fused", seed, shard))

    def test_so_they_are_with_expandable_segments(self):
        if DEVICE != "cuda":
            self.skipTest("for CUDA")
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        self.addCleanup(torch.cuda.memory._set_allocator_settings, "expandable_segments:False")
        self.compare(lambda seed: make("fused", seed))


class Streams(OnCuda):
    def test_the_optimizer_may_run_on_a_stream_of_its_own(self):
        if DEVICE != "cuda":
            self.skipTest("for CUDA")
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim)
        side = torch.cuda.Stream()
        for step in range(1, STEPS + 1):
            loss_of(model, step).backward()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), run.step(step):
                torch.cuda._sleep(20_000_000)
                optim.step()
            torch.cuda.current_stream().wait_stream(side)
            optim.zero_grad()
        run.wait()
        end = bits(model, optim)
        run.detach()
        model, optim = make(seed=2)
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), STEPS)
        self.assertEqual(bits(model, optim), end)

    def test_an_optimizer_that_is_captured_into_a_graph_is_saved_at_each_replay(self):
        if DEVICE != "cuda":
            self.skipTest("for CUDA")
        job = self.job()
        model, optim = make("capturable")
        run = self.attach(job, model, optim, extra={"rng": ckptd.rng()})
        train(model, optim, 1, 3, run)  # warms up
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        graph = torch.cuda.CUDAGraph()
        with self.assertLogs("ckptd", "WARNING") as log, torch.cuda.graph(graph), run.step(4):
            optim.step()
        self.assertIn("step 4 was skipped: a CUDA graph is being captured", "\n".join(log.output))
        for step in range(4, STEPS + 1):
            loss_of(model, step).backward()  # into the gradients that the graph has
            with run.step(step):
                graph.replay()
                for p in model.parameters():
                    p.grad.zero_()
        run.wait()
        end = bits(model, optim)
        run.detach()
        model, optim = make("capturable", seed=2)
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), STEPS)
        self.assertEqual(bits(model, optim), end)


class Changes(OnCuda):
    def test_parameters_that_were_replaced_are_saved_from_where_they_are(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim)
        train(model, optim, 1, 2, run)
        with self.assertWarns(errors.StateMoved):
            for p in model.parameters():
                p.data = p.data.clone()
            train(model, optim, 3, 4, run)
        junk = [torch.full_like(p, float("nan")) for p in model.parameters()]  # takes the memory that was freed
        run.wait()
        del junk
        end = bits(model, optim)
        run.detach()
        model, optim = make(seed=2)
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), 4)
        self.assertEqual(bits(model, optim), end)

    def test_a_model_on_the_meta_device_gets_its_memory_on_the_device(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim)
        train(model, optim, 1, 2, run)
        run.wait()
        end = bits(model, optim)
        run.detach()
        with torch.device("meta"):
            model = Net()
        model.norm = torch.nn.BatchNorm1d(2048).to(DEVICE)
        optim = OPTIMIZERS["fused"](model.parameters())
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), 2)
        self.assertEqual({p.device.type for p in model.parameters()}, {DEVICE})
        self.assertEqual(bits(model, optim), end)

    def test_an_average_is_put_into_the_model_and_the_weights_come_back_bit_for_bit(self):
        job = self.job()
        model, optim = make()
        run = self.attach(job, model, optim, averages={"fast": "constant decay=.5"})
        train(model, optim, 1, 4, run)
        run.wait()
        raw = bits(model, optim)
        with run.averaged("fast"):
            self.assertNotEqual(bits(model, optim), raw)
        self.assertEqual(bits(model, optim), raw)


if __name__ == "__main__":
    unittest.main()
