# SPDX-License-Identifier: Apache-2.0
"""ckptd.attach with state on CUDA devices, without a GPU: the memory, the streams and the order are those of the driver
of tests/fakecuda, and of torch.cuda only what ckptd._cuda asks for is played. test_cuda.py does it on a GPU."""

import bisect
import ctypes
import hashlib
import json
import logging
import os
import sys
import threading
import unittest
import unittest.mock
import warnings

import ranks
import torch

sys.path.insert(0, os.path.join(ranks.ROOT, "tests", "python"))
import fakecuda  # noqa: E402
from test_run import One  # noqa: E402

import ckptd  # noqa: E402
from ckptd import _arguments, _cuda, _memory, errors  # noqa: E402

SLOW = 0.05  # GB/s: the copy of a step takes 50 ms
WIDTH = 300

HERE = os.path.exists(fakecuda.LIBRARY)
driver = None
streams = []  # torch's current stream of each device
_ranges = []  # (first, end, device) of device memory, in order


def setUpModule():
    global driver
    if not HERE:
        return
    driver = fakecuda.Driver(2)
    streams[:] = [driver.stream(0), driver.stream(1)]
    for name, played in (
        ("current_stream", lambda index: streams[index]),
        ("capturing", lambda: driver.captures(streams[0])),
        ("synchronize", driver.synchronize),
    ):
        patch = unittest.mock.patch.object(_cuda, name, played)
        patch.start()
        unittest.addModuleCleanup(patch.stop)


class CudaTensor(torch.Tensor):
    """A tensor of torch's at an address of the fake device: this process cannot read it, nor can torch."""

    @property
    def device(self):
        at = bisect.bisect(_ranges, (self.data_ptr(), 1 << 64, 0)) - 1
        first, end, index = _ranges[at]
        assert first <= self.data_ptr() < end
        return torch.device("cuda", index)

    is_cuda = True


def on_device(shape, index=0, fill=0.0):
    """A tensor on fake device `index`."""
    numel = torch.Size(shape).numel()
    address = driver.alloc(numel * 4, index)
    bisect.insort(_ranges, (address, address + numel * 4, index))
    raw = (ctypes.c_ubyte * (numel * 4)).from_address(address)
    tensor = torch.frombuffer(raw, dtype=torch.float32).view(shape).as_subclass(CudaTensor)
    seen(tensor).fill_(fill)
    return tensor


def seen(tensor):
    """The same elements where the host may read and write them, in no order with any stream."""
    if not isinstance(tensor, CudaTensor):
        return tensor.detach()
    raw = (ctypes.c_ubyte * (tensor.numel() * 4)).from_address(driver.alias(tensor.data_ptr()))
    return torch.frombuffer(raw, dtype=torch.float32).view(tensor.shape)


def launch(index, work, seconds=0.0):
    """Let device `index` run work(), `seconds` after its current stream has come to that."""
    pause = threading.Event()

    def run():
        pause.wait(seconds)
        with torch.no_grad():
            work()

    driver.launch(streams[index], run, index)


class Net(torch.nn.Module):
    """Two parameters and a buffer on devices, one parameter in host memory. make: of a tensor on a device."""

    def __init__(self, make, second=0):
        super().__init__()
        self.w = torch.nn.Parameter(make((WIDTH, WIDTH), 0, 0.5))
        self.v = torch.nn.Parameter(make((WIDTH, WIDTH), second, 0.25))
        self.host = torch.nn.Parameter(torch.full((10,), 0.125))
        self.register_buffer("mean", make((WIDTH,), 0, 0.0))

    def pass_(self, step, run):
        """Forward and backward: it changes the buffer. run(index, work): on a device."""
        mean = seen(self.mean)
        run(0, lambda: mean.add_(step))


class Optim(torch.optim.Optimizer):
    """Has moments on the device of the parameter, and a counter in host memory, as Adam has."""

    def __init__(self, params, make):
        super().__init__(params, {"lr": 0.01})
        for p in self.param_groups[0]["params"]:
            index = p.device.index if p.device.type == "cuda" else None
            moment = make(p.shape, index, 0.0) if index is not None else torch.zeros_like(p, requires_grad=False)
            self.state[p] = {"step": torch.zeros(()), "exp_avg": moment}

    def step(self, run, seconds=0.0):
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] += 1
            count = float(self.state[p]["step"])
            w, m = seen(p), seen(self.state[p]["exp_avg"])

            def update(w=w, m=m, count=count):
                m.lerp_(torch.cos(w * count), 0.1)
                w.sub_(m, alpha=0.01)

            if isinstance(p, CudaTensor):
                run(p.device.index, update, seconds)
            else:
                with torch.no_grad():
                    update()


def bits(model, optim):
    """A hash of each tensor of the state when the devices are idle, by name."""
    for index in range(2):
        driver.synchronize(index)
    found = dict(model.state_dict().items())
    for i, p in enumerate(model.parameters()):
        found.update({"%d.%s" % (i, k): v for k, v in optim.state[p].items()})
    return {k: hashlib.sha256(seen(v).numpy().tobytes()).hexdigest() for k, v in found.items()}


def expected(steps):
    """The bits after so many steps, computed on the host alone."""

    def at_once(_index, work, _seconds=0.0):
        with torch.no_grad():
            work()

    model = Net(lambda shape, _index, fill: torch.full(shape, fill))
    optim = Optim(model.parameters(), None)
    for step in range(1, steps + 1):
        model.pass_(step, at_once)
        optim.step(at_once)
    return bits(model, optim)


@unittest.skipUnless(HERE, "make build/fakecuda/libcuda.so.1 builds the driver")
class OnDevices(One):
    def setUp(self):
        super().setUp()
        for index in range(2):
            self.addCleanup(driver.synchronize, index)
        self.addCleanup(driver.tests.bandwidth, 0)

    def make(self, second=0, fill=None):
        """A model and its optimizer; fill: a value that all of the state has, for a restore to replace."""

        def tensor(shape, index, value):
            return on_device(shape, index, value if fill is None else fill)

        model = Net(tensor, second)
        return model, Optim(model.parameters(), tensor)

    def train(self, run, model, optim, first, last, seconds=0.0):
        for step in range(first, last + 1):
            model.pass_(step, launch)
            with run.step(step):
                optim.step(launch, seconds)

    def restored(self, job, step, second=0, **options):
        """The bits of a step, as another launch of the job gets them."""
        model, optim = self.make(second, fill=-1.0)
        run = self.attach(job, model, optim, **options)
        self.assertEqual(run.restore(step), step)
        found = bits(model, optim)
        run.detach()
        return found


class Training(OnDevices):
    def test_every_step_is_saved_bit_for_bit_while_the_next_ones_run_and_training_continues_from_it(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim)
        run.restore()
        self.assertEqual(run._training._arena.foreign, ())  # what stays on a device is no exception to be told
        driver.tests.bandwidth(SLOW)
        self.train(run, model, optim, 1, 5, seconds=0.03)
        self.assertEqual(run.wait(), 5)
        driver.tests.bandwidth(0)
        counts = run.stats()["outcomes"]
        run.detach()
        self.assertEqual(counts["torn"], 0, counts)
        steps = sorted(int(s["step"]) for s in self.listed(job))
        self.assertGreater(len(steps), 1)
        for step in steps:
            self.assertEqual(self.restored(job, step), expected(step), step)
        model, optim = self.make(fill=-1.0)
        run = self.attach(job, model, optim)
        self.assertEqual(run.restore(), 5)
        self.train(run, model, optim, 6, 8)
        run.wait()
        self.assertEqual(bits(model, optim), expected(8))

    def listed(self, job):
        return json.loads(job.ctl("ls", os.path.join(job.store, job.name), "--json"))["checkpoints"]

    def test_tensors_on_two_devices_are_each_in_the_order_of_their_stream(self):
        job = self.job()
        model, optim = self.make(second=1)
        run = self.attach(job, model, optim)
        driver.tests.bandwidth(SLOW)
        self.train(run, model, optim, 1, 1, seconds=0.05)
        with run.step(2):  # both devices wait for the copy before they do this
            launch(0, lambda: seen(model.w).fill_(9.0))
            launch(1, lambda: seen(model.v).fill_(9.0))
        run.wait()
        run.detach()
        self.assertEqual(self.restored(job, 1, second=1), expected(1))

    def test_the_stream_is_the_current_one_when_the_step_is_left_and_when_it_is_entered(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim)
        other = driver.stream()
        first = streams[0]
        self.addCleanup(streams.__setitem__, 0, first)
        streams[0] = other
        driver.tests.bandwidth(SLOW)
        self.train(run, model, optim, 1, 1, seconds=0.1)
        streams[0] = first  # the update of the next step runs here
        with run.step(2):
            launch(0, lambda: seen(model.w).fill_(9.0))
        run.wait()
        run.detach()
        self.assertEqual(self.restored(job, 1), expected(1))

    def test_a_restore_waits_for_what_the_program_has_given_the_device(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim)
        run.restore()
        self.train(run, model, optim, 1, 1)
        run.wait()
        run.detach()
        model, optim = self.make(fill=-1.0)
        run = self.attach(job, model, optim)
        launch(0, lambda: seen(model.w).fill_(0.5), seconds=0.3)  # as an initialisation
        self.assertEqual(run.restore(), 1)
        self.assertEqual(bits(model, optim), expected(1))


NCCL = os.path.join(ranks.BUILD, "fakenccl", "libnccl.so.2")


def libraries(directory):
    """A libckpt.so whose NCCL is the one of tests/fakenccl, for torch may have loaded its own under that name."""
    os.mkdir(directory)
    for path in (os.path.join(ranks.BUILD, "libckpt.so"), os.path.join(ranks.BUILD, "libckpt-nccl.so"), NCCL):
        with open(path, "rb") as file:
            raw = file.read()
        name = os.path.basename(path).replace(".so.2", ".so.9")
        with open(os.path.join(directory, name), "wb") as file:
            file.write(raw.replace(b"libnccl.so.2", b"libnccl.so.9"))
    return {"CKPTD_LIBRARY": os.path.join(directory, "libckpt.so")}


class Lines(logging.Handler):
    """What the library says."""

    def __init__(self):
        super().__init__()
        self.lines = []
        log = logging.getLogger("ckptd")
        log.setLevel(logging.DEBUG)
        log.addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


class Devices:
    """A rank's process with the driver of tests/fakecuda and NCCL of tests/fakenccl; torch.cuda is played until the end
    of the function."""

    def __enter__(self):
        setUpModule()
        ctypes.CDLL(os.path.join(os.path.dirname(os.environ["CKPTD_LIBRARY"]), "libnccl.so.9"), ctypes.RTLD_GLOBAL)
        return Lines().lines

    def __exit__(self, *_):
        unittest.doModuleCleanups()


def replica(fill=None):
    """The model, on device 0; fill: a value that all of its state has."""

    def tensor(shape, index, value):
        return on_device(shape, index, value if fill is None else fill)

    model = Net(tensor)
    return model, Optim(model.parameters(), tensor)


def replicas_train(rank, steps):
    with Devices():
        model, optim = replica()
        run = rank.attach(model, optim, nccl=True)
        run.restore()
        for step in range(1, steps + 1):
            model.pass_(step, launch)
            with run.step(step):
                optim.step(launch)
        run.wait()
        run.detach()


def replicas_restore(rank, step, nccl):
    """The bits, and what the log says of NCCL."""
    with Devices() as lines:
        model, optim = replica(fill=-1.0)
        run = rank.attach(model, optim, nccl=nccl)
        got = run.restore(source="disk")
        assert got == step, got
        found = bits(model, optim)
        run.detach()
        return found, [line for line in lines if "NCCL" in line]


def replica_without(rank):
    """attach where not every rank has state on a device."""
    with Devices() as lines:
        model = replica()[0] if rank.rank else Net(lambda shape, _index, fill: torch.full(shape, fill))
        run = rank.attach(model, nccl=True, strict=False)
        torch.distributed.barrier()
        run.detach()
        return lines


@unittest.skipUnless(HERE and os.path.exists(NCCL), "make build/fakecuda/libcuda.so.1 build/fakenccl/libnccl.so.2")
class OverNccl(ranks.Case):
    def setUp(self):
        self.at = self.job()
        self.env = libraries(os.path.join(self.at.dir, "libraries"))

    def run_two(self, function, *args, **env):
        return self.at.run(2, function, *args, fresh=True, env={**self.env, **env})

    def test_what_replicas_hold_is_read_once_and_comes_to_all_of_them(self):
        self.run_two(replicas_train, 3)
        for found, lines in self.run_two(replicas_restore, 3, True):
            self.assertEqual(found, expected(3))
            self.assertIn("MiB from other ranks over NCCL", "".join(lines))
        for found, lines in self.run_two(replicas_restore, 3, False):
            self.assertEqual((found, lines), (expected(3), []))

    def test_nccl_that_does_not_work_is_said_and_each_rank_reads_all(self):
        self.run_two(replicas_train, 1)
        for found, lines in self.run_two(replicas_restore, 1, True, FAKENCCL_VERSION="21003"):
            self.assertEqual(found, expected(1))
            self.assertRegex("".join(lines), "restores without NCCL(.|\n)*NCCL 2.10.3")

    def test_all_ranks_do_without_if_one_has_no_state_on_a_device(self):
        for lines in self.run_two(replica_without):
            self.assertRegex("".join(lines), "nccl=True: (rank 0|another rank) has no state on a CUDA device")


class Changes(OnDevices):
    def test_a_parameter_that_was_replaced_is_saved_from_where_it_is_now(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim)
        self.train(run, model, optim, 1, 1)
        run.wait()
        with self.assertWarns(errors.StateMoved), run.step(2):
            driver.synchronize()
            for index, p in ((1, model.w), (0, model.v)):  # the first one on another device
                new = on_device(p.shape, index)
                seen(new).copy_(seen(p))
                p.data = new
            model.pass_(2, launch)
            optim.step(launch, 0.1)
        driver.tests.bandwidth(SLOW)
        with run.step(3):
            launch(1, lambda: seen(model.w).fill_(9.0))
        run.wait()
        run.detach()
        self.assertEqual(self.restored(job, 2), expected(2))

    def test_memory_that_was_left_is_kept_until_no_copy_reads_it(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim)
        held = run._handle._memory
        driver.tests.bandwidth(SLOW)
        self.train(run, model, optim, 1, 1)
        address = model.w.data_ptr()
        new = on_device(model.w.shape)
        seen(new).copy_(seen(model.w))
        model.w.data = new
        self.assertIn(address, [t.data_ptr() for parts in held.values() for t in parts])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with run.step(2):
                pass
        left = [t.data_ptr() for parts in run._handle._left for t in parts or ()]
        self.assertEqual(left, [address])
        with run.step(3):
            self.assertEqual(run._handle._left, [])
            self.assertEqual(driver.tests.queued(), 0)

    def test_a_model_that_goes_to_a_device_after_attach_is_refused_with_a_sentence_and_trains_on(self):
        job = self.job()
        model = torch.nn.Linear(3, 3)
        run = self.attach(job, model, strict=False)
        with run.step(1):
            pass
        run.wait()
        model.weight = torch.nn.Parameter(on_device((3, 3)))
        with self.assertWarnsRegex(errors.NotSaving, "model/weight is on cuda:0(.|\n)*detach, and attach"), run.step(2):
            pass
        self.assertEqual(run.stats()["outcomes"]["refused"], 1)
        with run.step(3):
            pass
        self.assertEqual(run.stats()["outcomes"]["refused"], 2)


class Graphs(OnDevices):
    def test_a_step_that_is_captured_is_skipped_with_a_reason_and_can_be_made_afterwards(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim, extra={"rng": ckptd.rng()})
        with self.assertLogs("ckptd", "WARNING") as log:
            driver.capture_begin(streams[0])
            try:
                with run.step(1, loss=on_device(())):
                    pass
            finally:
                driver.capture_end(streams[0])
        self.assertIn("step 1 was skipped: a CUDA graph is being captured", "\n".join(log.output))
        self.assertEqual(run.stats()["outcomes"]["skipped"], 1)
        self.train(run, model, optim, 1, 1)
        self.assertEqual(run.wait(), 1)
        run.detach()
        self.assertEqual(self.restored(job, 1, extra={"rng": ckptd.rng()}), expected(1))


class Fetched:
    """What ckptd._cuda.Fetched is, on the fake device."""

    events = []

    def __init__(self, tensor):
        self.events.append("fetch")
        self.value, self.here = None, threading.Event()
        launch(0, lambda: self._arrive(seen(tensor)))

    def _arrive(self, tensor):
        self.value = tensor.item()
        self.here.set()

    def item(self):
        self.events.append("item")
        assert self.here.wait(60)
        return self.value


class Notes(OnDevices):
    def setUp(self):
        super().setUp()
        Fetched.events.clear()
        patch = unittest.mock.patch.object(_cuda, "Fetched", Fetched)
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_loss_on_the_device_is_fetched_before_the_update_and_read_after_it_at_a_mark(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim, every=2)
        for step in (1, 2):
            with run.step(step, loss=on_device((), fill=2.5), notes={"x": on_device(())}):
                Fetched.events.append("update")
        run.wait()
        wanted = ["fetch", "fetch", "update", "fetch", "fetch", "update", "item", "item"]
        self.assertEqual(Fetched.events, wanted)
        self.assertIn("2.5", str(self.shown(job, 2)))
        with run.step(3, loss=on_device((), fill=3.5)):
            pass
        run.save()
        self.assertIn("3.5", str(self.shown(job, 3)))

    def test_with_a_loss_the_program_runs_no_further_ahead_than_the_copies(self):
        job = self.job()
        model, optim = self.make()
        run = self.attach(job, model, optim, slots=4)
        for step in range(1, 6):
            model.pass_(step, launch)
            launch(0, lambda: None, seconds=0.1)  # a long backward pass
            with run.step(step, loss=on_device((), fill=step), persist=False):
                optim.step(launch)
        outcomes = run.stats()["outcomes"]
        self.assertEqual((outcomes["taken"], outcomes["skipped"], outcomes["torn"]), (5, 0, 0))


class BadInput(OnDevices):
    def test_amd_gpus_are_refused_although_torch_calls_them_cuda(self):
        model, optim = self.make()
        with unittest.mock.patch.object(torch.version, "hip", "6.2"):
            with self.assertRaisesRegex(errors.NotSupported, "AMD(.|\n)*w, v"):
                self.attach(self.job(), model, optim)

    def test_managed_memory_is_refused_and_nothing_is_attached(self):
        address = driver.alloc(4096, managed=True)
        bisect.insort(_ranges, (address, address + 4096, 0))
        raw = (ctypes.c_ubyte * 4096).from_address(address)
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.frombuffer(raw, dtype=torch.float32).as_subclass(CudaTensor))
        job = self.job()
        with self.assertRaisesRegex(errors.CkptdError, "managed"):
            self.attach(job, model)
        model.w = torch.nn.Parameter(on_device((4,)))
        self.attach(job, model)


class Meta(OnDevices):
    def test_a_model_on_the_meta_device_belongs_where_its_other_tensors_are(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta"), torch.nn.Linear(2, 2))
        self.assertIsNone(_memory.meta_device(model))
        self.assertFalse(_arguments.devices_of([model], []))
        model[1].weight = torch.nn.Parameter(on_device((2, 2), 1))
        self.assertEqual(_memory.meta_device(model), 1)
        self.assertEqual(_arguments.devices_of([model], []).option, 2)
        model[0] = torch.nn.Linear(2, 2)
        self.assertIsNone(_memory.meta_device(model))


if __name__ == "__main__":
    unittest.main()
