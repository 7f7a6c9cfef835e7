# SPDX-License-Identifier: Apache-2.0
"""docs/PYTORCH.md and the quick start of README.md do what they say: every script and every command of theirs is run,
in order.

A Python block whose first line is "# NAME.py" is a file of that name; the lines of the shell block behind it are
commands in the same directory. A line that fails, fails the page. What a page promises about the output is in EXPECTED.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from torch_names import fsdp2_on_cpu

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# command: what its output has, as regular expressions
EXPECTED = {
    "docs/PYTORCH.md": {
        "python plain.py": [["started at 0 and committed 20"], ["started at 20 and committed 40"]],
        "ckptctl ls ckpts/plain": [[r"\b40\b.*latest"]],
        "torchrun --standalone --nproc-per-node 4 fsdp2.py": [["started at 0 and committed 10"]],
        "torchrun --standalone --nproc-per-node 3 fsdp2.py": [["started at 10 and committed 20"]],
        "ckptctl show latest -C ckpts/fsdp2": [["fsdp=3", "model/0.weight|model"]],
        "python gpu.py": [["started at 0 and committed 20 on (cpu|cuda)"], ["started at 20 and committed 40 on (cpu|cuda)"]],
        "python larger.py": [["head.weight", r"step 40 without \['model/head.bias', 'model/head.weight'"]],
        "python stop.py": [[r"\b[56]\b"], [r"\b(10|11|12)\b"]],
        "python average.py": [["the average of step 30 differs by 0?[.1-9]"]],
        "ckptctl ema -C ckpts/average": [["fast"]],
        "python look.py": [[r"40 \d+ tensors", "tensor"]],
        "python -c 'import safetensors.torch as st; print(sorted(st.load_file(\"out/rank-00000.safetensors\")))'": [
            [r"\['0.bias', '0.weight', '2.bias', '2.weight'\]"]
        ],
    },
    "README.md": {
        "torchrun --standalone --nproc-per-node 4 train.py": [["starts at step 0", "ends at step 100"]],
        "torchrun --standalone --nproc-per-node 2 train.py": [["starts at step 100", "ends at step 200"]],
        "ckptctl ls -n 1 ckpts/gpt": [[r"\b200\b"]],
    },
}


def blocks(text):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)


def scripts_and_commands(text):
    """What a page lets its reader do: ("file", name, text) and ("run", line, ""), in order.

    Shell blocks count in sections that have a script, behind it.
    """
    for section in re.split(r"^## ", text, flags=re.M):
        begun = False
        for language, body in blocks(section):
            name = re.match(r"# (\w+\.py)\n", body)
            if language == "python" and name:
                yield "file", name.group(1), body
                begun = True
            elif language == "sh" and begun:
                for line in body.splitlines():
                    line = line.split("  #")[0].strip()
                    if line:
                        yield "run", line, ""


class Page(unittest.TestCase):
    @fsdp2_on_cpu
    def run_page(self, page):
        expected = {command: list(outputs) for command, outputs in EXPECTED[page].items()}
        with open(os.path.join(ROOT, page), encoding="utf-8") as f:
            todo = list(scripts_and_commands(f.read()))
        self.assertTrue(todo, page + " has no script")
        work = tempfile.mkdtemp(prefix="page.")
        self.addCleanup(shutil.rmtree, work, ignore_errors=True)
        env = dict(os.environ)
        env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.path.join(ROOT, "build"), env["PATH"]])
        env["PYTHONPATH"] = os.path.join(ROOT, "python")
        env["CKPTD_SOCKET"] = os.path.join(work, "socket")
        env["OMP_NUM_THREADS"] = "1"
        env.pop("CKPTD_STORE", None)
        self.addCleanup(self.stop_daemon, env["CKPTD_SOCKET"])
        for kind, what, body in todo:
            if kind == "file":
                with open(os.path.join(work, what), "w", encoding="utf-8") as f:
                    f.write(body)
                continue
            with self.subTest(command=what):
                # a hang is the only thing that this limit stops
                done = subprocess.run(
                    ["bash", "-c", what],
                    cwd=work,
                    env=env,
                    timeout=240,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                self.assertEqual(done.returncode, 0, what + "\n" + done.stdout)
                self.assertNotIn("Traceback", done.stdout, what)
                if expected.get(what):
                    for pattern in expected[what].pop(0):
                        self.assertRegex(done.stdout, pattern)
        left = [command for command, outputs in expected.items() if outputs]
        self.assertEqual(left, [], "commands that the page no longer has")

    def stop_daemon(self, socket):
        """The daemon that the page's jobs started: it names itself in its lock."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(os.path.join("/proc", pid, "cmdline"), "rb") as f:
                    words = f.read().split(b"\0")
                if words and os.path.basename(words[0]) == b"ckptd" and socket.encode() in words:
                    os.kill(int(pid), 15)
            except OSError:
                pass

    def test_pytorch_md(self):
        self.run_page("docs/PYTORCH.md")

    def test_readme(self):
        self.run_page("README.md")


if __name__ == "__main__":
    unittest.main()
