# SPDX-License-Identifier: Apache-2.0
"""_launch: what each launcher says, and which ranks are one launch: real torchrun, shells between the ranks and what
started them, and environments as srun and mpirun make them. Every rank of a job attaches to a daemon with its token.
"""

import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import rig  # noqa: E402
from ckptd import _launch  # noqa: E402
from ckptd._launch import LaunchError, launch  # noqa: E402

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
            "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
OMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-1"}  # fmt: skip
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1",
        "SLURM_NNODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}  # fmt: skip


class Environments(unittest.TestCase):
    def said(self, env, **given):
        x = launch(env=env, **given)
        return x.rank, x.world, x.local_rank, x.local_world, x.by

    def test_each_launcher_says_rank_and_world(self):
        self.assertEqual(self.said(TORCHRUN), (1, 3, 1, 3, "torchrun"))
        self.assertEqual(self.said(OMPI), (2, 4, 2, 4, "mpirun"))
        self.assertEqual(self.said(HYDRA), (0, 2, 0, 2, "mpirun"))
        self.assertEqual(self.said(SRUN), (1, 2, 1, 2, "srun"))
        self.assertEqual(self.said({**HYDRA, "PMI_RANK": "1"})[:2], (1, 2))
        self.assertEqual(self.said({}), (0, 1, 0, 1, ""))

    def test_a_local_size_that_nothing_says_is_not_taken_for_the_whole(self):
        pytorchjob = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
        self.assertEqual(self.said(pytorchjob), (1, 2, 1, 0, "torchrun"))
        self.assertEqual(self.said({"RANK": "0", "WORLD_SIZE": "2"}), (0, 2, 0, 0, "torchrun"))
        self.assertEqual(self.said({"RANK": "0", "WORLD_SIZE": "1"}), (0, 1, 0, 1, "torchrun"))
        self.assertEqual(self.said({"PMI_RANK": "1", "PMI_SIZE": "2"}), (1, 2, 1, 0, "mpirun"))
        self.assertEqual(self.said({}, rank=0, world=2), (0, 2, 0, 0, "arguments"))
        pmi2 = {**SRUN, "PMI_RANK": "1", "PMI_SIZE": "4", "SLURM_NTASKS": "4"}
        self.assertEqual(self.said(pmi2), (1, 4, 1, 4, "mpirun"))
        with self.assertRaisesRegex(LaunchError, "4 ranks, and 2 of them on this host"):
            launch(env={**pmi2, "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})

    def test_all_hosts_have_one_token_and_each_launch_its_own(self):
        def everywhere(env, **more):
            with mock.patch.object(_launch, "_boot_id", lambda: "another host"):
                elsewhere = launch(env={**env, **more}).everywhere
            self.assertEqual(launch(env={**env, **more}).everywhere, elsewhere)
            return elsewhere

        elastic = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "nightly"}
        pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
        said = [
            everywhere(elastic),
            everywhere(elastic, TORCHELASTIC_RESTART_COUNT="1"),
            everywhere(elastic, SLURM_JOB_ID="7"),
            everywhere(elastic, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1"),
            everywhere(SRUN),
            everywhere(SRUN, SLURM_STEP_ID="1"),
            everywhere(SRUN, SLURM_RESTART_COUNT="1"),
            everywhere(OMPI),
            everywhere(pod),
        ]
        self.assertEqual(len(set(said)), len(said))
        self.assertNotIn(0, said)
        self.assertEqual(everywhere(elastic, RANK="0", LOCAL_RANK="0"), said[0])
        for nothing in (
            {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"},
            {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            {"RANK": "0", "WORLD_SIZE": "2"},
            {},
        ):
            self.assertEqual(everywhere(nothing), 0)

    def test_a_restart_is_of_the_same_run_and_two_launchers_with_one_name_are_two_runs(self):
        elastic = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
        one, two = launch(env=elastic), launch(env={**elastic, "TORCHELASTIC_RESTART_COUNT": "1"})
        self.assertNotEqual(one.run, 0)
        self.assertEqual((two.run, one.restart, two.restart), (one.run, 0, 1))
        with mock.patch.object(_launch, "_starter", lambda own, env: (4, 5)):
            self.assertNotEqual(launch(env=elastic).run, one.run)
        queue = [launch(env={**SRUN, "SLURM_RESTART_COUNT": str(n)}) for n in range(2)]
        self.assertEqual((queue[0].run, queue[0].restart, queue[1].restart), (queue[1].run, 0, 1))
        self.assertEqual(launch(env=OMPI).run, 0)
        self.assertEqual(launch(env={}).run, 0)

    def test_the_nearest_launcher_counts(self):
        batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "4"}
        self.assertEqual(self.said(batch), (0, 1, 0, 1, ""), "an sbatch script is no task of srun")
        self.assertEqual(self.said({**batch, **TORCHRUN})[4], "torchrun")
        self.assertEqual(self.said({**SRUN, **TORCHRUN})[:2], (1, 3))
        self.assertEqual(self.said({**SRUN, **OMPI})[:2], (2, 4), "mpirun starts its daemons with srun")
        self.assertEqual(self.said(TORCHRUN, rank=0, world=9)[:2], (0, 9))

    def test_contradictions_are_named(self):
        for env, why in (
            ({"RANK": "0"}, "RANK=0 and no WORLD_SIZE"),
            ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "WORLD_SIZE=2 and no RANK"),
            ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2: ranks are 0 to 1"),
            ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1, which should be a number"),
            ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x"),
            ({**TORCHRUN, "LOCAL_RANK": "3"}, "LOCAL_RANK=3, and 3 ranks"),
            ({"OMPI_COMM_WORLD_RANK": "0"}, "no OMPI_COMM_WORLD_SIZE"),
            ({"PMI_RANK": "0"}, "no PMI_SIZE"),
        ):
            with self.assertRaisesRegex(LaunchError, why):
                launch(env=env)
        with self.assertRaisesRegex(LaunchError, "rank= alone"):
            launch(rank=0)
        with self.assertRaisesRegex(LaunchError, "rank=2 and world=2"):
            launch(rank=2, world=2)
        with self.assertRaises(TypeError):
            launch(rank="0", world=2)

    def test_several_hosts_are_refused(self):
        for env in (
            {**TORCHRUN, "WORLD_SIZE": "6"},
            {**OMPI, "OMPI_COMM_WORLD_SIZE": "8"},
            {**HYDRA, "PMI_SIZE": "4"},
            {**SRUN, "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
            {**SRUN, "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": ""},
        ):
            with self.assertRaisesRegex(LaunchError, "one host only"):
                launch(env=env)

    def test_what_torch_distributed_says_is_right_when_it_contradicts_the_environment(self):
        with mock.patch.object(_launch, "_of_torch", lambda: (1, 2)):
            self.assertEqual(self.said({}), (1, 2, 1, 0, "torch.distributed"))
            self.assertEqual(self.said({"RANK": "0", "WORLD_SIZE": "8"}), (1, 2, 1, 0, "torch.distributed"))
            self.assertEqual(self.said({**TORCHRUN, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})[4], "torchrun")

    def test_the_token_is_the_same_for_all_ranks_and_another_one_after_a_restart(self):
        def token(**more):
            return launch(env={**TORCHRUN, **more}).token

        same = {token(RANK=str(r), LOCAL_RANK=str(r)) for r in range(3)}
        self.assertEqual(len(same), 1)
        self.assertNotIn(token(TORCHELASTIC_RESTART_COUNT="1"), same)
        self.assertNotIn(token(TORCHELASTIC_RUN_ID="x"), same)
        self.assertNotEqual(launch(env=SRUN).token, launch(env={**SRUN, "SLURM_STEP_ID": "1"}).token)
        self.assertTrue(0 < launch(env={}).token < 1 << 63)

    def test_each_single_process_of_one_shell_is_a_launch_of_its_own(self):
        code = "import sys\nsys.path.insert(0, sys.argv[1])\n"
        code += "from ckptd._launch import launch\nprint(launch(env={}).token)"
        said = [subprocess.check_output([sys.executable, "-c", code, rig.PACKAGE], timeout=rig.LIMIT) for _ in range(2)]
        self.assertNotEqual(said[0], said[1])


ATTACH = """
import os, time
from ckptd import _lib
from ckptd._launch import launch
x = launch()
h = _lib.Handle.attach(store=os.environ["STORE"], job="a", socket=os.environ["SOCK"], rank=x.rank, world=x.world,
                       launch=x.token, flags=_lib.CKPT_KEEP_MEMORY | _lib.CKPT_REQUIRE)
if h.seal(60.0):
    raise SystemExit("not ready: " + h.reason())
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
here = ["%s.%d.%d" % (attempt, r, x.world) for r in range(x.world)]
open(os.path.join(os.environ["OUT"], here[x.rank]), "w").close()
while int(os.environ.get("MEET", "1")) and not set(here) <= set(os.listdir(os.environ["OUT"])):
    time.sleep(0.01)
"""
DIE = """
dying = os.environ["DIE"].split(",")[int(attempt)] if int(attempt) < len(os.environ["DIE"].split(",")) else ""
if str(x.rank) in dying:
    os.kill(os.getpid(), 9)
if dying:
    import signal
    signal.pause()
"""
END = """
os.write(1, b"here\\n")
h.detach()
"""


class Launchers(rig.Case):
    def setUp(self):
        super().setUp()
        self.daemon()
        self.out = os.path.join(self.dir, "out")
        os.mkdir(self.out)
        tests = os.path.dirname(os.path.abspath(rig.__file__))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI", "TORCHELASTIC"))}
        self.env.update(STORE=self.store, SOCK=self.socket, OUT=self.out, OMP_NUM_THREADS="1")
        self.env["PYTHONPATH"] = rig.PACKAGE + os.pathsep + tests

    def script_of(self, text):
        path = os.path.join(self.dir, "train.py")
        with open(path, "w") as f:
            f.write(text)
        return path

    def attempts(self):
        return sorted(os.listdir(self.out))

    def start(self, command, **env):
        p = subprocess.Popen(command, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def end(self, p, rc=0):
        text = p.communicate(timeout=rig.LIMIT)[0].decode()
        self.assertEqual(p.returncode, rc, text)

    def torchrun(self, n, restarts, script, *wrap, die=""):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=%d" % n]
        command += ["--max-restarts=%d" % restarts, "--monitor-interval=0.1"]
        command += (["--no-python"] + list(wrap) if wrap else []) + [script]
        self.end(self.start(command, DIE=die))

    def test_torchrun_restarts_when_a_rank_dies_and_when_several_die_at_once(self):
        self.torchrun(3, 3, self.script_of(ATTACH + DIE + END), die="1,02,012")
        self.assertEqual(self.attempts(), ["%d.%d.3" % (a, r) for a in range(4) for r in range(3)])

    def test_torchrun_with_a_shell_for_each_rank(self):
        wrap = os.path.join(self.dir, "wrap.sh")
        with open(wrap, "w") as f:
            f.write('#!/bin/bash\n%s "$@"\nrc=$?\nexit $rc\n' % sys.executable)
        os.chmod(wrap, 0o755)
        self.torchrun(2, 1, self.script_of(ATTACH + DIE + END), wrap, die="0")
        self.assertEqual(self.attempts(), ["0.0.2", "0.1.2", "1.0.2", "1.1.2"])

    def ranks(self, n, env_of, shell=False):
        """n processes that one parent starts, this test."""
        script = self.script_of(ATTACH + "os.read(0, 1)\n" + END)
        out = []
        for r in range(n):
            command = [sys.executable, script]
            if shell:
                command = ["bash", "-c", '"$0" "$1"; exit $?'] + command
            env = {**self.env, "MEET": "0", **env_of(r)}
            pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            p = subprocess.Popen(command, env=env, **pipe)
            self.addCleanup(p.stdout.close)
            self.addCleanup(p.wait)
            self.addCleanup(p.kill)
            out.append(p)
        return out

    def all_are_one_launch(self, env_of, n=2, shell=False):
        for attempt in range(2):  # and so it is again when it is started again at once
            ranks = self.ranks(n, env_of, shell)
            names = ["0.%d.%d" % (r, n) for r in range(n)]
            rig.until("all are sealed", lambda: self.attempts() == names or any(p.poll() is not None for p in ranks))
            for name in self.attempts():
                os.unlink(os.path.join(self.out, name))
            for p in ranks:
                self.end_rank(p, attempt == 0)

    def end_rank(self, p, kill):
        if kill and p.args[0] != "bash":
            p.kill()
            p.communicate()
            return
        text = p.communicate(b"x", timeout=rig.LIMIT)[0].decode()
        self.assertEqual((p.returncode, text), (0, "here\n"))

    def srun(self, r):
        return {**SRUN, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)}

    def mpirun(self, r):
        return {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "p1"}

    def plain(self, r):
        return {"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r)}

    def test_tasks_of_srun(self):
        self.all_are_one_launch(self.srun)

    def test_tasks_of_srun_with_a_shell_for_each(self):
        self.all_are_one_launch(self.srun, shell=True)

    def test_ranks_of_mpirun_with_a_shell_for_each(self):
        self.all_are_one_launch(self.mpirun, shell=True)

    def test_ranks_that_a_script_starts_with_a_shell_for_each(self):
        self.all_are_one_launch(self.plain, shell=True)

    def test_one_process_is_started_again_at_once_by_the_same_shell(self):
        self.all_are_one_launch(lambda r: {}, n=1)
        self.all_are_one_launch(lambda r: {}, n=1)


if __name__ == "__main__":
    unittest.main()
