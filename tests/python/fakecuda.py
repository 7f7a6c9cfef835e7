# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver of tests/fakecuda, from Python: streams, device memory, and work on a stream that is a Python
function.

A process that has made a Driver has loaded libcuda.so.1: libckpt.so finds it under that name. Device memory is at
addresses where this process may read nothing; `Driver.alias` says where it may look at the same bytes.
"""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_double, c_int, c_size_t
from ctypes import c_uint, c_uint32, c_uint64, c_void_p

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARY = os.path.join(ROOT, "build", "fakecuda", "libcuda.so.1")
LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
WORK = CFUNCTYPE(None, c_void_p)  # of cuLaunchHostFunc

# name: version, arguments
CALLS = {
    "cuDevicePrimaryCtxRetain": (7000, (POINTER(c_void_p), c_int)),
    "cuCtxSetCurrent": (4000, (c_void_p,)),
    "cuCtxSynchronize": (2000, ()),
    "cuMemAlloc": (3020, (POINTER(c_uint64), c_size_t)),
    "cuMemAllocManaged": (6000, (POINTER(c_uint64), c_size_t, c_uint)),
    "cuMemFree": (3020, (c_uint64,)),
    "cuStreamCreateWithPriority": (5050, (POINTER(c_void_p), c_uint, c_int)),
    "cuStreamDestroy": (4000, (c_void_p,)),
    "cuStreamSynchronize": (2000, (c_void_p,)),
    "cuStreamIsCapturing": (10000, (c_void_p, POINTER(c_uint))),
    "cuStreamBeginCapture": (10010, (c_void_p, c_uint)),
    "cuStreamEndCapture": (10000, (c_void_p, POINTER(c_void_p))),
    "cuGraphDestroy": (10000, (c_void_p,)),
    "cuLaunchHostFunc": (10000, (c_void_p, WORK, c_void_p)),
}


class Tests(ctypes.Structure):
    """struct fakecuda: the members up to the last one that is used here."""

    _fields_ = [
        ("bandwidth", CFUNCTYPE(None, c_double)),
        ("seed", CFUNCTYPE(None, c_uint64)),
        ("hold", CFUNCTYPE(None)),
        ("release", CFUNCTYPE(None, c_bool)),
        ("fault", CFUNCTYPE(None, c_char_p, c_uint, c_uint)),
        ("unhang", CFUNCTYPE(None)),
        ("fault_none", CFUNCTYPE(None)),
        ("sticky", CFUNCTYPE(None, c_int, c_uint)),
        ("register_limit", CFUNCTYPE(None, c_size_t)),
        ("calls", CFUNCTYPE(c_uint64, c_char_p)),
        ("calls_here", CFUNCTYPE(c_uint64)),
        ("violations", CFUNCTYPE(c_uint64)),
        ("registered", CFUNCTYPE(c_uint64)),
        ("queued", CFUNCTYPE(c_uint64)),
        ("copied", CFUNCTYPE(c_uint64)),
        ("alias", CFUNCTYPE(c_void_p, c_uint64)),
    ]


class Driver:
    """The driver, with its first device's context current. devices: how many there are; one Driver for each
    process."""

    def __init__(self, devices=1):
        os.environ["FAKECUDA_DEVICES"] = str(devices)  # cuInit reads it
        self.lib = ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
        self.tests = Tests.in_dll(self.lib, "fakecuda")
        self.kept = []  # work that is under way
        self.calls = {}
        self.check("cuInit", self.lib.cuInit(0))
        for name, (version, arguments) in CALLS.items():
            at = c_void_p()
            found = self.lib.cuGetProcAddress_v2(name.encode(), byref(at), version, c_uint64(LEGACY_STREAM), None)
            self.check(name, found)
            assert at.value, name
            self.calls[name] = CFUNCTYPE(c_uint32, *arguments)(at.value)
        self.contexts = []
        for device in range(devices):
            context = c_void_p()
            self("cuDevicePrimaryCtxRetain", byref(context), device)
            self.contexts.append(context)
        self.use(0)

    def check(self, name, rc):
        if rc:
            raise OSError("%s: %d" % (name, rc))

    def __call__(self, name, *arguments):
        self.check(name, self.calls[name](*arguments))

    def use(self, device):
        """This device's context is current in this thread."""
        self("cuCtxSetCurrent", self.contexts[device])

    def alloc(self, size, device=0, managed=False):
        """The address of device memory."""
        at = c_uint64()
        self.use(device)
        if managed:
            self("cuMemAllocManaged", byref(at), size, 1)
        else:
            self("cuMemAlloc", byref(at), size)
        self.use(0)
        return at.value

    def alias(self, address):
        """Where the host may read and write the device memory of this address, in no order with any stream."""
        return self.tests.alias(address)

    def stream(self, device=0):
        """A stream that does not wait for the legacy one, as torch.cuda.Stream()."""
        stream = c_void_p()
        self.use(device)
        self("cuStreamCreateWithPriority", byref(stream), NON_BLOCKING, 0)
        self.use(0)
        return stream.value

    def launch(self, stream, work, device=0):
        """Let the device run work() when the stream comes to it."""
        function = WORK(lambda _: work())
        self.kept.append(function)
        self.use(device)
        self("cuLaunchHostFunc", stream, function, None)
        self.use(0)

    def synchronize(self, device=0):
        """Wait until all streams of the device are empty."""
        self.use(device)
        self("cuCtxSynchronize")
        self.use(0)
        if not self.tests.queued():
            self.kept.clear()

    def captures(self, stream):
        """Is this stream being captured?"""
        state = c_uint()
        self("cuStreamIsCapturing", stream, byref(state))
        return state.value != 0

    def capture_begin(self, stream):
        self("cuStreamBeginCapture", stream, RELAXED)

    def capture_end(self, stream):
        graph = c_void_p()
        self("cuStreamEndCapture", stream, byref(graph))
        if graph:
            self("cuGraphDestroy", graph)
