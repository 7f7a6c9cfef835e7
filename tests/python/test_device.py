# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of CUDA devices through the binding, with the driver of tests/fakecuda: two devices, one stream
of the program on each."""

import array
import ctypes
import errno
import os
import re
import threading
import unittest

import fakecuda
from rig import LIMIT, Case, Memory, Pages, Part, _lib, entry, errors, until

N = 300_000  # elements of a tensor: more than one chunk of a copy
SLOW = 0.02  # GB/s: a copy of a tensor takes 60 ms


@unittest.skipUnless(os.path.exists(fakecuda.LIBRARY), "make build/fakecuda/libcuda.so.1 builds the driver")
class DeviceCase(Case):
    driver = None

    @classmethod
    def setUpClass(cls):
        if DeviceCase.driver is None:
            DeviceCase.driver = fakecuda.Driver(2)
            DeviceCase.now = [cls.driver.stream(0), cls.driver.stream(1)]

    def setUp(self):
        super().setUp()
        self.daemon()
        self.addCleanup(self.driver.synchronize, 1)
        self.addCleanup(self.driver.synchronize, 0)
        self.addCleanup(self.driver.tests.bandwidth, 0)

    def memory(self, device=0, n=N, stride=(1,)):
        return DeviceMemory(self.driver, device, n, stride)

    def handle(self, first=0, more=(), **options):
        """Attached with device `first`; the streams of `more` devices change its tensors, too."""
        options.setdefault("guard", _lib.CKPT_FINISH)
        h = self.attach(device=1 + first, **options)
        h.devices = Streams(self.driver, [(d, self.now[d]) for d in (first, *more)])
        return h

    def sealed(self, *tensors, **options):
        """A handle with these tensors, named a, b, ..."""
        h = self.handle(**options)
        for name, memory in zip("abcdefgh", tensors):
            h.tensor_add(entry(name, memory))
        self.assertEqual(h.seal(LIMIT), 0)
        return h

    def update(self, memory, value, seconds=0.0):
        """Let the memory's device set it to this value, when its stream comes to that, `seconds` later."""
        pause = threading.Event()

        def work():
            pause.wait(seconds)
            memory.fill(value)

        self.driver.launch(self.now[memory.device], work, memory.device)

    def restored(self, step, *memories, first=0, more=()):
        """What a later launch finds in these tensors of the step: it reads them into device memory that has -1 now."""
        for memory in memories:
            memory.fill(-1)
        h = self.sealed(*memories, first=first, more=more)
        h.restore(step)
        found = [set(memory.read()) for memory in memories]
        h.detach()
        return found


class DeviceMemory(Memory):
    """F32 elements in the memory of a fake device."""

    def __init__(self, driver, device, n, stride=(1,)):
        super().__init__(driver.alloc(n * stride[0] * 4, device), n, stride)
        self.device, self.at = device, driver.alias(self.address)

    def write(self, values):
        (ctypes.c_float * (self.n * self.strides[0])).from_address(self.at)[:: self.strides[0]] = values

    def read(self):
        raw = ctypes.string_at(self.at, self.n * self.strides[0] * 4)
        return array.array("f", raw)[:: self.strides[0]].tolist()

    def fill(self, value):
        raw = array.array("f", [value]).tobytes() * (self.n * self.strides[0])
        ctypes.memmove(self.at, raw, len(raw))


class Streams:
    """What ckptd._cuda.Devices is to a handle."""

    def __init__(self, driver, streams):
        self.driver, self.now = driver, streams

    def streams(self):
        return self.now

    def capturing(self):
        return any(self.driver.captures(stream) for _, stream in self.now)

    def settle(self):
        for device, _ in self.now:
            self.driver.synchronize(device)


class Copies(DeviceCase):
    def test_what_was_saved_from_a_device_is_restored_into_other_memory_of_it(self):
        a, b = self.memory(), self.memory(n=1000, stride=(3,))
        a.write(range(N))
        b.write(range(1000))
        h = self.sealed(a, b)
        h.guard()
        self.assertEqual(h.snapshot(1), 0)
        h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
        h.detach()
        a, b = self.memory(), self.memory(n=1000)
        h = self.sealed(a, b)
        self.assertEqual(h.restore().step, 1)
        self.assertEqual(a.read(), list(map(float, range(N))))
        self.assertEqual(b.read(), list(map(float, range(1000))))

    def test_a_snapshot_is_of_what_the_stream_was_given_before_it(self):
        a = self.memory()
        h = self.sealed(a)
        for n in (1, 2, 3):
            h.guard()
            self.update(a, n, seconds=0.1)
            self.assertEqual(h.snapshot(n), 0)
            h.wait(n, _lib.CKPT_COMMITTED, LIMIT)
        h.detach()
        self.assertEqual(self.restored(2, a), [{2.0}])
        self.assertEqual(self.restored(3, a), [{3.0}])

    def test_after_guard_the_stream_waits_for_the_copy(self):
        a = self.memory()
        h = self.sealed(a)
        a.fill(1)
        h.guard()
        self.driver.tests.bandwidth(SLOW)
        self.assertEqual(h.snapshot(1), 0)
        self.assertEqual(h.guard(), 0)
        self.update(a, 2)
        h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
        h.detach()
        self.driver.synchronize()
        self.assertEqual(set(a.read()), {2.0})
        self.assertEqual(self.restored(1, a), [{1.0}])

    def test_each_device_has_its_own_order(self):
        a, b = self.memory(1), self.memory(0)
        h = self.sealed(a, b, first=1, more=(0,))
        for n in (1, 2):
            h.guard()
            self.update(a, n, seconds=0.05)
            self.update(b, 10 * n, seconds=0.1)
            self.assertEqual(h.snapshot(n), 0)
            self.driver.tests.bandwidth(SLOW)
            self.assertEqual(h.guard(), 0)
            self.update(a, 100)
            self.update(b, 100)
            h.wait(n, _lib.CKPT_COMMITTED, LIMIT)
            self.driver.tests.bandwidth(0)
        h.detach()
        self.driver.synchronize(0)
        self.driver.synchronize(1)
        self.assertEqual(self.restored(1, a, b, first=1, more=(0,)), [{1.0}, {10.0}])
        self.assertEqual(self.restored(2, a, b, first=1, more=(0,)), [{2.0}, {20.0}])

    def test_a_tensor_moves_from_the_host_to_a_device_and_to_another(self):
        pages = Pages(N * 4)
        self.addCleanup(pages.unmap)
        a = Memory(pages.address, N)
        a.write([1.0] * N)
        e = entry("a", a)
        h = self.handle()
        h.tensor_add(e)
        self.assertEqual(h.seal(LIMIT), 0)
        for n, memory in ((2, self.memory(0)), (3, self.memory(1))):
            h.guard()
            self.assertEqual(h.snapshot(n - 1), 0)
            h.guard()
            memory.fill(n)
            h.tensor_move(e.id, (Part(memory),))
            h.devices.now = [(d, self.now[d]) for d in range(n - 1)]
            self.assertEqual(h.seal(LIMIT), 0)
            h.wait(n - 1, _lib.CKPT_COMMITTED, LIMIT)
        h.guard()
        self.assertEqual(h.snapshot(3), 0)
        h.wait(3, _lib.CKPT_COMMITTED, LIMIT)
        h.detach()
        self.assertEqual([self.restored(n, self.memory(1), more=(1,)) for n in (1, 2, 3)], [[{1.0}], [{2.0}], [{3.0}]])


class Layout(DeviceCase):
    def test_the_functions_of_the_driver_for_tests_are_those_of_its_header_in_their_order(self):
        header = open(os.path.join(fakecuda.ROOT, "tests", "fakecuda", "fakecuda.h"), encoding="utf-8")
        with header:
            body = re.search(r"^struct fakecuda {(.*?)^};", header.read(), re.M | re.S)[1]
        here = [name for name, _ in fakecuda.Tests._fields_]
        self.assertEqual(re.findall(r"\(\*(\w+)\)\(", body)[: len(here)], here)


class BadInput(DeviceCase):
    def test_memory_of_a_device_without_a_device_is_refused(self):
        h = self.attach()
        with self.assertRaisesRegex(errors.InvalidCall, "device") as e:
            h.tensor_add(entry("a", self.memory()))
        self.assertEqual(e.exception.errno, errno.EINVAL)

    def test_managed_memory_is_refused(self):
        h = self.handle()
        managed = Memory(self.driver.alloc(4096, managed=True), 1024)
        with self.assertRaisesRegex(errors.CkptdError, "managed"):
            h.tensor_add(entry("a", managed))

    def test_a_mark_on_a_stream_that_is_captured_is_skipped_and_says_why(self):
        a = self.memory()
        h = self.sealed(a)
        self.driver.capture_begin(self.now[0])
        try:
            h.guard()
            self.assertEqual(h.snapshot(1), _lib.CKPT_SKIPPED)
            self.assertRegex(str(h.why()), "captur")
        finally:
            self.driver.capture_end(self.now[0])
        h.guard()
        self.assertEqual(h.snapshot(1), 0)
        h.wait(1, _lib.CKPT_COMMITTED, LIMIT)

    def test_without_a_driver_host_tensors_are_saved_and_one_warning_says_so(self):
        text = """if 1:
            import sys
            from rig import LIMIT, Memory, _lib, entry
            h = _lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], device=1)
            w = Memory(h.alloc(4000), 1000)
            w.write([7.0] * 1000)
            h.tensor_add(entry("w", w))
            assert h.seal(LIMIT) == 0
            h.guard()
            assert h.snapshot(1) == 0
            h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
            warned = [n.text for n in h.notices() if n.level == 4]
            assert len(warned) == 1 and "libcuda" in warned[0], warned
            h.detach()
            """
        done = self.script(text, self.store, self.socket)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
