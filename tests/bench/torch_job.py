# SPDX-License-Identifier: Apache-2.0
"""A training job under ckptd and under torch.distributed.checkpoint, in turn, on the same state. rows_torch.sh calls it.

usage: torch_job.py serve DIR SOCKET BYTES WORLD     measurements on standard input, as below
       torch_job.py memory DIR SOCKET BYTES WORLD HOW    peak memory of a job that saves three times
       torch_job.py restart DIR SOCKET BYTES WORLD HOW   from SIGKILL of all ranks to the end of their next step
       HOW: ckptd, thread or process (dcp.async_save of that kind); restart: ckptd or dcp

The state is FSDP2 on WORLD ranks: a model and AdamW's two moments, all FP32 and random, BYTES on all ranks together. Both
sides save the same tensors. `serve` prints "ready 0" and then takes lines:

    ckptd                one save: what the training loop is blocked (blocked), until it is committed (committed)
    thread, process      the same by dcp.async_save into DIR/dcp: until its future is done (committed)
    load_ckptd           Run.restore from the disk, bytes checked; load_dcp: dcp.load of DIR/dcp into the same tensors
    loop_none N, loop_ckptd N, loop_thread N   N steps of real work: nanoseconds a step; a save in each step or none

Each prints lines "NAME NANOSECONDS", then "end 0". Times are the longest of all ranks. Files are dropped from the page cache
before loads.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

WIDTH = 1024
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
sys.path.insert(0, PACKAGE)


def cold(path):
    """Drop the files below a directory from the page cache."""
    for directory, _, names in os.walk(path):
        for name in names:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Job:
    def __init__(self, directory, socket, size, attach=True):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.torch, self.dist, self.dir = torch, dist, directory
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="file://" + os.environ["BENCH_MEET"], rank=self.rank, world_size=self.world)
        torch.manual_seed(1)
        layers = max(1, size // (12 * WIDTH * 4 * WIDTH))
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(layers)))
        mesh = init_device_mesh("cpu", (self.world,), mesh_dim_names=("fsdp",))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        for p in self.model.parameters():
            p.grad = torch.randn_like(p)
        self.optim.step()
        for s in self.optim.state.values():
            s["exp_avg"].to_local().normal_()
            s["exp_avg_sq"].to_local().uniform_()
        self.work = torch.randn(1024, 1024)
        self.run, self.step = None, 0
        if attach:
            import ckptd

            self.run = ckptd.attach(
                self.model, self.optim, store=directory + "/store", job="bench", socket=socket, rank=self.rank, world=self.world,
                strict=True, guard="finish",
            )
            self.step = int(self.run.restore()) if os.environ.get("BENCH_RESTORE", "1") == "1" else 0

    def state(self):
        names = {p: n for n, p in self.model.named_parameters()}
        state = {"model/" + n: p.detach() for p, n in names.items()}
        for p, s in self.optim.state.items():
            state.update({f"optim/{names[p]}.{k}": v for k, v in s.items()})
        return state

    def bytes(self):
        return sum(t.to_local().nbytes if hasattr(t, "to_local") else t.nbytes for t in self.state().values())

    def longest(self, ns):
        t = self.torch.tensor([ns], dtype=self.torch.int64)
        self.dist.all_reduce(t, op=self.dist.ReduceOp.MAX)
        return int(t.item())

    def say(self, name, ns):
        ns = self.longest(ns)
        if self.rank == 0:
            print(name, ns, flush=True)

    def async_save(self, how):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        kind = AsyncCheckpointerType.PROCESS if how == "process" else AsyncCheckpointerType.THREAD
        return dcp.async_save(self.state(), checkpoint_id=self.dir + "/dcp", async_checkpointer_type=kind)

    def save(self, how):
        """One save. What the loop is blocked, and until it is done."""
        if self.rank == 0 and how != "ckptd":
            shutil.rmtree(self.dir + "/dcp", ignore_errors=True)
        self.dist.barrier()
        begin = time.monotonic_ns()
        if how == "ckptd":
            self.step += 1
            with self.run.step(self.step):
                pass
            blocked = time.monotonic_ns() - begin
            self.run.wait("committed")
        else:
            done = self.async_save(how)
            blocked = time.monotonic_ns() - begin
            done.result()
        self.say(how + "_blocked", blocked)
        self.say(how + "_committed", time.monotonic_ns() - begin)

    def load(self, how):
        if self.rank == 0:
            cold(self.dir)
        self.dist.barrier()
        begin = time.monotonic_ns()
        if how == "ckptd":
            self.step = int(self.run.restore(source="disk"))
        else:
            import torch.distributed.checkpoint as dcp

            dcp.load(self.state(), checkpoint_id=self.dir + "/dcp")
        self.say("load_" + how, time.monotonic_ns() - begin)

    def update(self):
        """A step's work: a second's worth of one core or so, then the optimizer."""
        for _ in range(24):
            self.work @ self.work

    def loop(self, how, n):
        import contextlib

        done = None
        with contextlib.suppress(InterruptedError), self.run.step(self.step + 1):
            raise InterruptedError  # the guard: from here on the state may change, snapshot or not
        self.dist.barrier()
        begin = time.monotonic_ns()
        for _ in range(n):
            self.update()
            if how == "thread" and done is not None:
                done.result()
            self.step += 1
            with self.run.step(self.step, persist=False) if how == "ckptd" else contextlib.nullcontext():
                self.optim.step()
            if how == "thread":
                done = self.async_save("thread")
        self.say("loop_" + how, (time.monotonic_ns() - begin) // n)
        if done is not None:
            done.result()
        if how == "ckptd":
            self.run.wait("staged")
            outcomes = self.run.stats()["outcomes"]
            self.say("loop_lost", sum(v for k, v in outcomes.items() if k in ("skipped", "torn")))


def rank_main(what, directory, socket, size, how):
    import torch.distributed as dist

    job = Job(directory, socket, size, attach=what == "serve" or how == "ckptd")
    if what == "serve":
        job.say("state", job.bytes())
        job.say("ready", 0)
        while True:
            line = [sys.stdin.readline().split() if job.rank == 0 else None]
            dist.broadcast_object_list(line)
            if not line[0]:
                break
            word = line[0][0]
            if word.startswith("loop_"):
                job.loop(word[5:], int(line[0][1]))
            elif word.startswith("load_"):
                job.load(word[5:])
            else:
                job.save(word)
            job.say("end", 0)
    elif what == "memory":
        for _ in range(3):
            job.optim.step()
            job.save(how)
        job.say("ready", 0)
    else:  # restart
        if how == "dcp" and os.path.exists(directory + "/dcp/.metadata"):
            import torch.distributed.checkpoint as dcp

            dcp.load(job.state(), checkpoint_id=directory + "/dcp")
        job.update()
        if how == "ckptd":
            job.step += 1
            with job.run.step(job.step):
                job.optim.step()
        else:
            job.optim.step()
        dist.barrier()
        job.say("ready", time.monotonic_ns())
        if how == "ckptd":
            job.run.wait("staged")
        elif not os.path.exists(directory + "/dcp/.metadata"):
            job.async_save("thread").result()
        job.say("saved", 0)
        signal.pause()
    if job.run is not None:
        job.run.detach()
    dist.destroy_process_group()


# ---- the process that starts the ranks ----

launches = 0


def start(what, args, world, restore="1"):
    global launches
    launches += 1
    meet = f"{args[0]}/meet-{os.getpid()}-{launches}"
    ranks = []
    for r in range(world):
        env = dict(os.environ, RANK=str(r), WORLD_SIZE=str(world), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(world), BENCH_MEET=meet)
        env.update(OMP_NUM_THREADS="1", BENCH_RESTORE=restore)
        env.setdefault("MASTER_ADDR", "127.0.0.1")  # dcp.async_save's process looks for it
        command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "rank", what, *args]
        stdin = None if r == 0 and what == "serve" else subprocess.DEVNULL
        stdout = None if what == "serve" else subprocess.PIPE if r == 0 else subprocess.DEVNULL
        ranks.append(subprocess.Popen(command, env=env, stdin=stdin, stdout=stdout, text=True))
    return ranks


def until(process, word):
    for line in process.stdout:
        if line.split()[0] == word:
            return int(line.split()[1])
    sys.exit(f"torch_job.py: the ranks ended before they said {word}")


def tree(pids):
    """These processes and all below them."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    children.setdefault(int(f.read().rpartition(") ")[2].split()[1]), []).append(int(name))
            except OSError:
                pass
    found, todo = [], list(pids)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def memory(pids):
    """Bytes of memory of these processes, what they share counted once. Files in the page cache are not theirs."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                fields = {line.split(":")[0]: int(line.split()[1]) for line in f if line.endswith("kB\n")}
            total += (fields["Pss_Anon"] + fields["Pss_Shmem"]) << 10
        except (OSError, KeyError):
            pass
    return total


def main():
    if sys.argv[1] == "rank":
        what, directory, socket, size, how = sys.argv[2:]
        return rank_main(what, directory, socket, int(size), how)
    what, directory, socket, size, world = sys.argv[1:6]
    how = sys.argv[6] if len(sys.argv) > 6 else "ckptd"
    args = [directory, socket, size, how]
    os.makedirs(directory, exist_ok=True)
    ranks = start(what, args, int(world))
    try:
        if what == "serve":
            if any([r.wait() for r in ranks]):
                sys.exit("torch_job.py: a rank failed")
        elif what == "memory":
            import threading

            end = threading.Event()
            threading.Thread(target=lambda: (until(ranks[0], "ready"), end.set()), daemon=True).start()
            most, daemon = 0, [int(os.environ["BENCH_DAEMON"])] if how == "ckptd" else []
            while not end.wait(0.02):
                most = max(most, memory(tree([r.pid for r in ranks]) + daemon))
                if all(r.poll() is not None for r in ranks):
                    break
            print("peak", most)
        else:
            until(ranks[0], "saved")
            begin = time.monotonic_ns()
            for r in ranks:
                r.kill()
            for r in ranks:
                r.wait()
            if how == "dcp":
                cold(directory + "/dcp")
                begin = time.monotonic_ns()  # what makes the cache cold is not the job's
            ranks = start(what, args, int(world))
            print("restart", until(ranks[0], "ready") - begin)
    finally:
        for r in ranks:
            r.kill()
            r.wait()


if __name__ == "__main__":  # dcp.async_save's process imports this file
    main()
