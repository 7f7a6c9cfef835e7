# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is in it, what its programs need, and that it works where it was installed, in every Python that is
here."""

import contextlib
import filecmp
import glob
import io
import os
import re
import shutil
import subprocess
import sys
import unittest
import zipfile

from rig import BUILD, LIMIT, PACKAGE, Case, _lib, daemons_end, daemons_of

TRAIN = """
import ctypes, sys
import ckptd
from ckptd import _lib
from ckptd._types import Entry, Home, Layout, Mesh, Part
assert "torch" not in sys.modules and "site-packages" in (_lib.__file__ if sys.argv[3] == "wheel" else "site-packages")
class Memory:
    def __init__(self, at): self.at = at
    def data_ptr(self): return self.at
    def stride(self): return (1,)
    def numel(self): return 1000
h = _lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], flags=_lib.CKPT_REQUIRE | _lib.CKPT_AUTOSTART)
at = h.alloc(4000)
values = (ctypes.c_float * 1000).from_address(at)
layout = Layout((1000,), _lib.CKPT_CHUNK, Mesh(("rank",), (1,), (0,)), (), (Part(Memory(at)),))
h.tensor_add(Entry("model", "w", _lib.CKPT_PARAM, _lib.CKPT_STABLE, _lib.CKPT_F32, layout, Home({}, 0, None)))
assert h.seal(60) == 0
try:
    print("restored", h.restore().step, values[7])
    start = h.steps()[0].step
except ckptd._lib.errors.NothingToRestore:
    start = 0
values[7] = start + 1.5
h.guard(); assert h.snapshot(start + 1, _lib.CKPT_FINAL) == 0
h.wait(start + 1, _lib.CKPT_COMMITTED, 60)
h.detach()
"""


def pythons():
    """Python >= 3.9 of this machine that can make virtual environments, one for each version."""
    found = {}
    home = os.path.expanduser("~/.pyenv/versions/*/bin/python")
    names = [sys.executable] + sorted(glob.glob(home)) + [shutil.which("python3.%d" % n) or "" for n in range(9, 20)]
    for path in filter(None, names):
        text = "import ensurepip, sys; print(sys.version_info >= (3, 9), '%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        new_enough, _, version = done.stdout.strip().partition(" ")
        if done.returncode == 0 and new_enough == "True":
            found.setdefault(version, path)
    return sorted(found.items())


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CKPTD_", "MAKE", "MFLAGS"))}


PYTHONS = pythons()


class Wheel(Case):
    wheel = None  # one for all cases

    @classmethod
    def setUpClass(cls):
        cls.made = os.path.join(os.environ.get("TMPDIR", "/tmp"), "wheel-%d" % os.getpid())
        cls.wheel = cls.make(cls.made)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.made)

    @staticmethod
    def make(directory):
        command = [sys.executable, os.path.join(PACKAGE, "backend.py"), directory]
        done = subprocess.run(
            command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()[-1]

    def run_quietly(self, *command):
        env = dict(clean_environment(), TMPDIR=self.dir)  # a pip in a zip file leaves its certificates there
        done = subprocess.run(command, cwd=self.dir, env=env, timeout=LIMIT * 2,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self.assertEqual(done.returncode, 0, "%s: %s" % (" ".join(command), done.stdout))
        return done.stdout

    def venv(self, python, *install):
        """A fresh environment with what pip installs there: by the pip that this Python would put into it."""
        path = os.path.join(self.dir, "venv")
        where = (
            "import ensurepip, glob, os; print(*glob.glob(os.path.dirname(ensurepip.__file__) + '/_bundled/pip-*.whl'))"
        )
        pip = self.run_quietly(python, "-c", where).split()
        self.run_quietly(python, "-m", "venv", path, *(["--without-pip"] if pip else []))
        command = [path + "/bin/python"] + ([pip[0] + "/pip"] if pip else ["-m", "pip"])
        self.run_quietly(*command, "install", "--quiet", "--disable-pip-version-check", "--no-index", *install)
        return path

    def unpacked(self):
        at = os.path.join(self.dir, "unpacked")
        with zipfile.ZipFile(self.wheel) as z:
            z.extractall(at)
        return at

    def test_it_has_the_package_and_the_programs_and_the_licence(self):
        with zipfile.ZipFile(self.wheel) as z:
            names = set(z.namelist())
            modes = {x.filename: x.external_attr >> 16 & 0o777 for x in z.infolist()}
        package = {"ckptd/" + n for n in os.listdir(os.path.join(PACKAGE, "ckptd")) if n.endswith(".py")}
        info = "ckptd-%s.dist-info/" % _lib.CKPT_VERSION
        self.assertTrue(package | {"ckptd/py.typed", info + "LICENSE", info + "METADATA"} <= names, names)
        for name in ("libckpt.so", "libckpt-nccl.so", "ckptd", "ckptctl"):
            self.assertEqual(modes["ckptd/_programs/" + name], 0o755)
        self.assertFalse([n for n in names if n.startswith("/") or ".." in n or "pycache" in n])

    @unittest.skipUnless(shutil.which("ldd"), "there is no ldd")
    def test_its_programs_need_libc_and_libm_and_nothing_else(self):
        at = self.unpacked()
        for name in ("libckpt.so", "libckpt-nccl.so", "ckptd", "ckptctl"):
            path = os.path.join(at, "ckptd", "_programs", name)
            os.chmod(path, 0o755)
            lines = self.run_quietly("ldd", path).split("\n")
            needs = {line.split()[0] for line in lines if line.strip()}
            self.assertIn("libc.so.6", needs)
            self.assertFalse(
                {n for n in needs if not re.match(r"(libc|libm|linux-vdso|linux-gate)\.so|/.*/ld-linux", n)}, name
            )

    @unittest.skipUnless(shutil.which("readelf"), "there is no readelf")
    def test_its_tag_has_the_glibc_that_its_programs_need(self):
        at = self.unpacked()
        newest = (0, 0)
        for name in ("libckpt.so", "libckpt-nccl.so", "ckptd", "ckptctl"):
            table = self.run_quietly(
                "readelf", "--version-info", "--wide", os.path.join(at, "ckptd", "_programs", name)
            )
            newest = max(
                [newest] + [tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", table)]
            )
        machine = os.uname().machine
        self.assertIn("-py3-none-manylinux_%d_%d_%s.whl" % (newest[:2] + (machine,)), self.wheel)

    def test_it_has_the_same_bytes_each_time(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        again = self.make(os.path.join(self.dir, "again"))
        with zipfile.ZipFile(again) as z:  # whatever the clock says
            self.assertEqual({x.date_time for x in z.infolist()}, {(1980, 1, 1, 0, 0, 0)})
        self.assertEqual(os.path.basename(again), os.path.basename(self.wheel))
        self.assertTrue(filecmp.cmp(self.wheel, again, shallow=False))

    def works(self, bin_, kind, programs):
        """Two launches with a daemon that the first one starts; then the command in both its forms."""
        self.addCleanup(daemons_end, self.socket)
        self.run_quietly(bin_ + "/python", "-c", TRAIN, self.store, self.socket, kind)
        started = [os.path.realpath(exe) for _pid, exe in daemons_of(self.socket)]
        self.assertEqual(started, [os.path.realpath(os.path.join(programs, "ckptd"))])
        self.assertEqual(
            self.run_quietly(bin_ + "/python", "-c", TRAIN, self.store, self.socket, kind), "restored 1 1.5\n"
        )
        self.assertIn(_lib.CKPT_VERSION, self.run_quietly(bin_ + "/python", "-m", "ckptd", "version"))
        job = os.path.join(self.store, "a")
        listed = self.run_quietly(bin_ + "/python", "-m", "ckptd", "ls", "-C", job, "--json")
        self.assertIn('"step":2', listed.replace(" ", ""))
        self.assertEqual(
            self.run_quietly(bin_ + "/ckptctl", "ls", "-C", job, "--json").count('"step"'), listed.count('"step"')
        )
        self.assertIn("--socket", self.run_quietly(bin_ + "/ckptd", "--help"))

    def test_what_cannot_run_elsewhere_is_not_made(self):
        """A program that needs another library than glibc: `make wheel` refuses, pip makes a wheel for this machine."""
        sys.path.insert(0, PACKAGE)
        self.addCleanup(sys.path.remove, PACKAGE)
        import backend

        python = os.path.realpath("/proc/self/exe")
        if all(backend.GLIBC.match(name) for name in backend.Elf(python).needed):
            extension = glob.glob(os.path.join(os.path.dirname(os.__file__), "lib-dynload", "*.so"))
            odd = [p for p in extension if not all(backend.GLIBC.match(n) for n in backend.Elf(p).needed)]
            if not odd:
                self.skipTest("this Python needs no library but glibc")
            python = odd[0]
        with self.assertRaisesRegex(SystemExit, "would not run on other machines: .* needs lib"):
            backend.platform_tag([python], True)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(backend.platform_tag([python], False).startswith("linux_"))

    @unittest.skipUnless(PYTHONS, "no Python here can make virtual environments: python3-venv")
    def test_pip_installs_this_tree_and_a_tree_that_is_edited(self):
        for kind, words in (("wheel", [PACKAGE]), ("editable", ["-e", PACKAGE])):
            with self.subTest(kind):
                path = self.venv(PYTHONS[-1][1], *words)
                site = glob.glob(path + "/lib/python3*/site-packages")[0]
                self.works(path + "/bin", kind, BUILD if kind == "editable" else site + "/ckptd/_programs")
                daemons_end(self.socket)
                for tree in (path, self.store):
                    shutil.rmtree(tree)


def installs(version, python):
    def test(self):
        path = self.venv(python, self.wheel)
        import_of = (
            "import ckptd; assert ckptd.__version__ == %r; ckptd.attach(None, store='s', job='j')" % _lib.CKPT_VERSION
        )
        done = subprocess.run(
            [path + "/bin/python", "-c", import_of], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.assertIn("ImportError: ckptd.attach needs PyTorch 2.4 or later", done.stdout)
        self.works(path + "/bin", "wheel", glob.glob(path + "/lib/python3*/site-packages")[0] + "/ckptd/_programs")

    return test


for _version, _python in PYTHONS:
    setattr(
        Wheel,
        "test_it_works_in_a_fresh_environment_of_python_" + _version.replace(".", "_"),
        installs(_version, _python),
    )
