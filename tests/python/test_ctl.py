# SPDX-License-Identifier: Apache-2.0
"""ckptd.open and `python -m ckptd view` without torch: a ckptctl that prints rubbish or dies, odd names, closed
pipes."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from rig import BUILD, LIMIT, PACKAGE, Case, _lib, errors

import ckptd

RUBBISH = (
    "echo rubbish",
    ":",
    "echo '[1]'",
    "echo '{}'",
    'echo \'{"tensors": [{}], "format": "native"}\'',
    "head -c 200000 /dev/zero | tr '\\0' '['",
    'printf \'{"schema": "ckptd.show/1", \'',
)


class Program(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        os.symlink(os.path.join(BUILD, "libckpt.so"), self.dir + "/libckpt.so")
        env = unittest.mock.patch.dict(os.environ, CKPTD_LIBRARY=self.dir + "/libckpt.so")
        env.start()
        self.addCleanup(env.stop)

    def fake(self, body):
        with open(self.dir + "/ckptctl", "w") as f:
            f.write("#!/bin/bash\n" + body + "\n")
        os.chmod(self.dir + "/ckptctl", 0o755)

    def test_rubbish_is_an_error_that_names_the_program(self):
        for body in RUBBISH:
            self.fake(body)
            with self.assertRaisesRegex(errors.VersionMismatch, "/ckptctl show .* no answer of ckptctl", msg=body):
                ckptd.open(self.dir)

    def test_a_program_that_dies_is_an_error_that_says_how(self):
        for body, said in (
            ("kill -9 $$", "died of signal 9"), ("exit 6", "ended with code 6"), ("echo x >&2; exit 6", "x"),
        ):  # fmt: skip
            self.fake(body)
            with self.assertRaisesRegex(errors.CkptdError, said):
                ckptd.open(self.dir)
        self.fake('echo \'{"message": "no such step", "code": 10}\' >&2; exit 10')
        with self.assertRaisesRegex(errors.NothingToRestore, "no such step"):
            ckptd.open(self.dir)


class Names(Case):
    def test_a_name_is_no_option_of_the_program(self):
        for name in ("--help", "-x", b"--help", "--version"):
            with self.assertRaisesRegex(errors.NothingToRestore, "there is no|No such file", msg=name):
                ckptd.open(name)
            with self.assertRaises(errors.NothingToRestore, msg=name):
                ckptd.open("latest", store=name)
        with self.assertRaisesRegex(errors.InvalidCall, "step -1 must be 0 or more"):
            ckptd.open(-1, store=self.dir)


class View(Case):
    def view(self, **options):
        command = [sys.executable, "-m", "ckptd", "view", "-C", self.store]
        env = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONUTF8="0", PYTHONIOENCODING="ascii", LC_ALL="C")
        return subprocess.run(command, env=env, stderr=subprocess.PIPE, timeout=LIMIT, **options)

    def test_into_a_file_a_pipe_that_nobody_reads_and_a_full_disk(self):
        self.daemon()
        h, _ = self.job()
        h.attr("ckpt.alias:model/\u00fc", "model/w")
        h.seal(LIMIT)
        h.snapshot(1)
        h.wait(1, _lib.CKPT_COMMITTED, LIMIT)
        done = self.view(stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn("copy model/w -> model/\u00fc\n", done.stdout.decode("utf-8"))
        read, write = os.pipe()
        os.close(read)
        done = self.view(stdout=write)
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (1, b""))
        with open("/dev/full", "wb") as full:
            done = self.view(stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"could not be written: No space left on device", done.stderr)

    def test_what_has_no_model(self):
        done = self.view(stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertRegex(done.stderr, b"^python -m ckptd view: .*No such file")


if __name__ == "__main__":
    unittest.main()
