# SPDX-License-Identifier: Apache-2.0
"""What the tests of the binding share: a directory with a store and a daemon of its own, and tensors without torch."""

import ctypes
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "python")
BUILD = os.path.join(ROOT, "build")
LIMIT = 60.0  # seconds: only what hangs takes that long
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)

from ckptd import _lib, errors  # noqa: E402
from ckptd._types import Entry, Home, Layout, Mesh, Part, Placement  # noqa: E402


class Memory:
    """`n` F32 elements at an address: what the binding asks of a tensor."""

    def __init__(self, address, n, stride=(1,)):
        self.address, self.n, self.strides = address, n, stride

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def numel(self):
        return self.n

    def write(self, values):
        (ctypes.c_float * self.n).from_address(self.address)[:] = values

    def read(self):
        return list((ctypes.c_float * self.n).from_address(self.address))


class Pages:
    """Anonymous pages that are unmapped on demand, as no Python object would let them be."""

    def __init__(self, size):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.libc, self.size = libc, size
        self.address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)

    def unmap(self):
        assert self.libc.munmap(self.address, self.size) == 0


def entry(name, memory, shape=None, mesh=None, placements=(), dtype=_lib.CKPT_F32, component="model",
          cls=_lib.CKPT_STABLE):  # fmt: skip
    """A tensor of one dimension that this rank holds at `memory`: replicated on `mesh`, or as placements say."""
    mesh = mesh or Mesh(("rank",), (1,), (0,))
    layout = Layout(shape or (memory.n,), _lib.CKPT_CHUNK, mesh, placements, (Part(memory),))
    return Entry(component, name, _lib.CKPT_PARAM, cls, dtype, layout, Home({}, 0, memory))


def until(what, true, limit=LIMIT):
    """Poll for what cannot be waited for: it is true at last."""
    end = time.monotonic() + limit
    while not true():
        if time.monotonic() > end:
            raise AssertionError("not so after %d s: %s" % (limit, what))
        time.sleep(0.01)


def daemons_of(path):
    """Process ids of the ckptd that serve a socket."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().split(b"\0")
            exe = os.readlink("/proc/%s/exe" % pid)
        except OSError:
            continue
        if os.fsencode(path) in words and os.path.basename(exe) == "ckptd":
            out.append((int(pid), exe))
    return out


def daemons_end(path):
    """End them; none is left when it returns."""
    for pid, _exe in daemons_of(path):
        os.kill(pid, signal.SIGTERM)
    until("the daemon ends", lambda: not daemons_of(path))


class Case(unittest.TestCase):
    """A test with a directory (.dir), a store, a socket and, once daemon() was called, a daemon of its own."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="p")
        self.addCleanup(shutil.rmtree, self.dir)
        self.store, self.socket = os.path.join(self.dir, "store"), os.path.join(self.dir, "s")
        self.process = None

    def daemon(self):
        """Start a ckptd, and wait until it listens."""
        log = open(os.path.join(self.dir, "log"), "ab")
        self.process = subprocess.Popen([os.path.join(BUILD, "ckptd"), "--socket", self.socket], stderr=log)
        log.close()
        self.addCleanup(self.daemon_end, self.process)

        def listens():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                return s.connect_ex(self.socket) == 0

        until("ckptd listens", lambda: os.path.exists(self.socket) and listens())

    def daemon_end(self, process):
        if process.poll() is None:
            process.terminate()
        process.wait(LIMIT)

    def attach(self, rank=0, world=1, **options):
        """A handle of job "a", which the end of the test detaches."""
        options.setdefault("flags", _lib.CKPT_KEEP_MEMORY | _lib.CKPT_REQUIRE)
        options.setdefault("socket", self.socket)
        h = _lib.Handle.attach(store=self.store, job="a", rank=rank, world=world, **options)
        self.addCleanup(h.detach)
        return h

    def job(self, n=1000, **options):
        """A handle with one tensor of n elements in memory of the daemon, sealed: (handle, Memory)."""
        h = self.attach(**options)
        memory = Memory(h.alloc(n * 4), n)
        h.tensor_add(entry("w", memory))
        self.assertEqual(h.seal(LIMIT), 0)
        return h, memory

    def script(self, text, *args, **options):
        """Run Python code in a process of its own; its result, with output as text."""
        env = dict(os.environ, PYTHONPATH=PACKAGE + os.pathsep + os.path.dirname(os.path.abspath(__file__)))
        env.update(options.pop("env", {}))
        command = [options.pop("python", sys.executable), "-c", text] + list(args)
        return subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT, text=True, **options
        )
