# SPDX-License-Identifier: Apache-2.0
"""Libraries that this package was not written for, and where the library is looked for."""

import os
import shutil
import subprocess
import sys
import unittest

from rig import BUILD, PACKAGE, Case, _lib, daemons_end, daemons_of, errors

from ckptd import _find

FAKE = """
#include <stdint.h>
#include <string.h>
const char *ckpt_version(void); uint32_t ckpt_sizeof(const char *s);
const char *ckpt_version(void) { return "%s"; }
uint32_t ckpt_sizeof(const char *s) { return %s 0; }
"""


class Versions(Case):
    def fake(self, version, **others):
        """A library of this version, whose structures have our sizes but for `others`."""
        sizes = {s.__name__: _lib.ctypes.sizeof(s) for s in _lib.STRUCTURES}
        sizes.update(others)
        sizes = "".join('strcmp(s, "%s") == 0 ? %d : ' % item for item in sizes.items())
        path = os.path.join(self.dir, "libckpt.so")
        command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-x", "c", "-o", path, "-"]
        subprocess.run(command, input=(FAKE % (version, sizes)).encode(), check=True)
        return path

    @unittest.skipUnless(shutil.which(os.environ.get("CC", "gcc")), "there is no compiler")
    def test_another_version_is_named_with_ours_and_the_file(self):
        path = self.fake("9.8.7")
        with self.assertRaises(errors.VersionMismatch) as e:
            _lib.load(path)
        for word in (path, "9.8.7", _lib.CKPT_VERSION):
            self.assertIn(word, str(e.exception))

    @unittest.skipUnless(shutil.which(os.environ.get("CC", "gcc")), "there is no compiler")
    def test_a_structure_of_another_size_is_named(self):
        path = self.fake(_lib.CKPT_VERSION, ckpt_got=1100)
        with self.assertRaises(errors.VersionMismatch) as e:
            _lib.load(path)
        for word in (path, "ckpt_got", "1100", str(_lib.ctypes.sizeof(_lib.ckpt_got)), _lib.CKPT_VERSION):
            self.assertIn(word, str(e.exception))

    def test_a_file_that_is_no_library_of_ours(self):
        with self.assertRaisesRegex(errors.VersionMismatch, "libc.so.6 is no libckpt.so"):
            _lib.load("libc.so.6")
        with self.assertRaisesRegex(errors.LibraryMissing, "rig.py cannot be loaded"):
            _lib.load(sys.modules["rig"].__file__)

    def test_a_variable_that_names_no_file_is_an_error_and_not_a_fallback(self):
        done = self.script(
            "from ckptd import _lib\ntry: _lib.library()\nexcept _lib.errors.LibraryMissing as e: print(e)",
            env={"CKPTD_LIBRARY": "/nowhere/libckpt.so"},
        )
        self.assertEqual(done.stdout, "CKPTD_LIBRARY is /nowhere/libckpt.so, which is not a file\n", done.stderr)

    def test_a_package_without_its_programs_says_where_it_looked(self):
        shutil.copytree(os.path.join(PACKAGE, "ckptd"), os.path.join(self.dir, "ckptd"),
                        ignore=shutil.ignore_patterns("_programs", "__pycache__"))  # fmt: skip
        text = "from ckptd import _lib\ntry: print(_lib.library())\nexcept _lib.errors.LibraryMissing as e: print(e)"
        done = self.script(text, env={"PYTHONPATH": self.dir})
        if "CDLL" not in done.stdout:  # no libckpt.so is installed in the system
            self.assertIn(os.path.join(self.dir, "ckptd", "_programs"), done.stdout)
            self.assertIn("CKPTD_LIBRARY", done.stdout)

    def test_a_clone_uses_what_it_has_built(self):
        for name in ("ckptd", "ckptctl"):
            self.assertEqual(_find.program(name), os.path.join(BUILD, name))
        self.assertEqual(_find.library(), os.path.join(BUILD, "libckpt.so"))

    def test_python_m_ckptd_is_ckptctl_and_ckptd(self):
        def run(*words):
            done = subprocess.run([sys.executable, "-m", "ckptd", *words], env=dict(os.environ, PYTHONPATH=PACKAGE),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
            return done.returncode, done.stdout

        code, out = run("version")
        self.assertEqual((code, _lib.CKPT_VERSION in out), (0, True))
        self.assertEqual(run("ls", self.dir)[0], subprocess.run([os.path.join(BUILD, "ckptctl"), "ls", self.dir],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode)  # fmt: skip
        self.assertIn("--socket", run("daemon", "--help")[1])

    def test_the_daemon_that_is_started_lies_beside_the_library_and_not_beside_python(self):
        path = os.path.join(self.dir, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", path], check=True)
        with open(path + "/bin/ckptd", "w") as f:
            f.write("#!/bin/sh\nexit 9\n")
        os.chmod(path + "/bin/ckptd", 0o755)
        self.addCleanup(daemons_end, self.socket)
        text = """
import sys
from ckptd import _lib
_lib.Handle.attach(store=sys.argv[1], job="a", socket=sys.argv[2], flags=_lib.CKPT_AUTOSTART |
_lib.CKPT_REQUIRE).detach()
"""
        done = self.script(text, self.store, self.socket, python=path + "/bin/python")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            [exe for _pid, exe in daemons_of(self.socket)], [os.path.realpath(os.path.join(BUILD, "ckptd"))]
        )
