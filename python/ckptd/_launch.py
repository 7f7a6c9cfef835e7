# SPDX-License-Identifier: Apache-2.0
"""Which rank of which launch this process is. `run.attach` calls this.

The daemon must know which ranks began together. `Launch.token` is a number that all ranks of one launch have alike,
and no other launch has: it is made of the process that started them, and of what the launcher says about restarts. So
a restart is never refused for a number that is too low, whatever the clock says, and no rank waits for another one to
find out.

* torchrun: the agent is the parent of all ranks, and the same for all its restarts: TORCHELASTIC_RESTART_COUNT is in
  the token.
* srun: slurmstepd is the parent of the tasks of one step.
* mpirun: orted, prted, hydra or mpirun itself.
* A shell or a profiler for each rank (srun bash -c, nsys) has the same rank in its own environment: it is passed
  over, and its parent is looked at.
* One process: it is a launch of its own.

`Launch.run` and `Launch.restart` say which launches one launcher makes, one after the other: so the daemon lets a
restart take over from ranks that still hang. `Launch.everywhere` is a token without anything that one host alone knows:
by it two daemons find out that ranks of one launch have come to both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

ANCESTORS_MAX = 32


class LaunchError(ValueError):
    """The environment contradicts itself, or says what this version cannot do."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """rank: 0 .. world - 1. local_rank: on this host. local_world: ranks of this host, 0 where nothing says how many.
    token: the same on all ranks of this launch on this host; everywhere: on all hosts. run: the same for all launches of
    one launcher; restart: higher for each of them. 0 where none was found.

    by: who said so: "torchrun", "srun", "mpirun", "torch.distributed", "arguments", or "" for a process alone.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    token: int
    by: str
    everywhere: int = 0
    run: int = 0
    restart: int = 0


class _Source(NamedTuple):
    """Variables of one launcher. `own` are those that only the processes of one rank have alike."""

    by: str
    rank: str
    world: str
    local_rank: str
    local_world: str
    own: Tuple[str, ...]
    also: Tuple[str, ...] = ()  # what tells two launches by one parent apart
    run: str = ""  # names all that one launcher starts, on every host
    restart: str = ""  # how often it has started the ranks again


_SOURCES = (
    _Source(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"),
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    ),
    _Source(
        "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "PMIX_NAMESPACE",
    ),
    _Source(
        "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        ("PMI_RANK", "PMI_SIZE"), ("PMI_JOBID", "PMIX_NAMESPACE"),
        "PMIX_NAMESPACE",
    ),
    _Source(
        "srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "",
        ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID"), ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        "SLURM_JOB_ID", "SLURM_RESTART_COUNT",
    ),
)  # fmt: skip


def _number(env: Mapping[str, str], name: str) -> Optional[int]:
    text = env.get(name, "") if name else ""
    if not text:
        return None
    if not text.isdigit() or len(text) > 9:
        raise LaunchError("the environment has %s=%s, which should be a number" % (name, text))
    return int(text)


def _slurm_local_world(env: Mapping[str, str]) -> Optional[int]:
    """Tasks of this node: SLURM_STEP_TASKS_PER_NODE is as "2(x3),1", the first one's first. 0: it cannot be known;
    -1: there are other nodes, and this one's share is not known."""
    nodes = _number(env, "SLURM_STEP_NUM_NODES") or _number(env, "SLURM_NNODES")
    if nodes == 1:
        return _number(env, "SLURM_NTASKS")
    if nodes is None:
        return 0
    counts: List[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "")).split(","):
        n, _, times = part.partition("(x")
        if not n.isdigit():
            return -1
        counts += [int(n)] * min(int(times.rstrip(")") or 1), 1 << 16)
    node = _number(env, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else -1


def _applies(source: _Source, env: Mapping[str, str]) -> bool:
    """Was this process started by it? An sbatch script has SLURM_PROCID=0 too, but no step of srun."""
    if source.by == "srun":
        return source.rank in env and env.get("SLURM_STEP_ID", "").isdigit() and "SLURM_NTASKS" in env
    if source.by == "mpirun":
        return source.rank in env
    return source.rank in env or (source.world in env and source.local_rank in env)


def _from_env(source: _Source, env: Mapping[str, str]) -> Tuple[int, int, int, int]:
    rank, world = _number(env, source.rank), _number(env, source.world)
    local_rank, local_world = _number(env, source.local_rank), _number(env, source.local_world)
    for name, have, other in ((source.world, world, source.rank), (source.rank, rank, source.world)):
        if have is None:
            raise LaunchError(
                "the environment has %s=%s and no %s: set both, or neither, or give attach rank= and world="
                % (other, env.get(other, ""), name)
            )
    assert rank is not None and world is not None
    if local_world is None and _applies(_SOURCES[-1], env):  # also below PMI-2: `srun --mpi=pmi2`
        local_world = _slurm_local_world(env)
    if rank >= world:
        raise LaunchError(
            "the environment has %s=%d and %s=%d: ranks are 0 to %d"
            % (source.rank, rank, source.world, world, world - 1)
        )
    if local_world is None:  # a PyTorchJob of Kubernetes, or set by hand: the daemons find out
        local_world = 1 if world == 1 else 0
    if local_rank is not None and 0 < local_world <= local_rank:
        raise LaunchError(
            "the environment has %s=%d, and %d ranks on this host" % (source.local_rank, local_rank, local_world)
        )
    return rank, world, local_rank if local_rank is not None else rank, local_world


def _one_host(world: int, local_world: int, by: str) -> None:
    if local_world not in (0, world):
        raise LaunchError(
            "%s started %d ranks, and %s of them on this host: this version of ckptd saves jobs of one host only"
            % (by, world, local_world if local_world > 0 else "only some")
        )


# --- the process that started the ranks ---
def _parent_of(pid: int) -> Tuple[int, int]:
    """(parent, start time in clock ticks) of a process. OSError, ValueError: it is not there to be seen."""
    with open("/proc/%d/stat" % pid, "rb") as f:
        fields = f.read().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _environ_of(pid: int) -> Optional[Dict[str, str]]:
    """The environment that a process was started with; None: it belongs to somebody else, as slurmstepd does."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            raw = f.read()
    except OSError:
        return None
    pairs = (p.partition(b"=") for p in raw.split(b"\0") if b"=" in p)
    return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}


def _starter(own: Sequence[str], env: Mapping[str, str]) -> Optional[Tuple[int, int]]:
    """(pid, start time) of the nearest ancestor that is not of this rank alone. None: there is none to be seen."""
    pid = os.getppid()
    try:
        for _ in range(ANCESTORS_MAX):
            if pid <= 0:
                return None
            parent, start = _parent_of(pid)
            theirs = _environ_of(pid) if pid > 1 and own and all(v in env for v in own) else None
            if theirs is None or any(theirs.get(v) != env[v] for v in own):
                return pid, start
            pid = parent
    except (OSError, ValueError, IndexError):
        pass
    return None


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def _token(*parts: object) -> int:
    """63 bits, and never 0, of these parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1 | 1


def _token_of(source: Optional[_Source], env: Mapping[str, str], world: int) -> int:
    if world == 1:
        _, start = _parent_of(os.getpid()) if os.path.exists("/proc/self/stat") else (0, 0)
        return _token("alone", os.getpid(), start, _boot_id())
    said = [env.get(v) for v in source.also] if source else []
    starter = _starter(source.own if source else (), env)
    if starter is None and not any(said):
        return 0
    return _token(source.by if source else "", starter, said, _boot_id())


def _run_of(source: Optional[_Source], env: Mapping[str, str]) -> Tuple[int, int]:
    """(run, restart). One torchrun, or one job of a queue: two of them that were given one name are two runs."""
    restart = (_number(env, source.restart) if source else None) or 0
    if source is None or not source.restart or source.restart not in env:
        return 0, 0
    if source.by == "srun":
        return _token("run", source.by, env.get(source.run)), restart
    starter = _starter(source.own, env)
    return (_token("run", source.by, starter, env.get(source.run), _boot_id()), restart) if starter else (0, 0)


def _everywhere(source: Optional[_Source], env: Mapping[str, str], world: int) -> int:
    """A token of what all hosts are told alike, and no other launch is; 0: there is nothing of the kind."""
    if source is None or world == 1:
        return 0
    name = env.get(source.run, "") if source.run else ""
    again = [env.get(v) for v in (source.restart, "SLURM_JOB_ID", "SLURM_RESTART_COUNT") if v]
    if source.by == "srun":
        again.append(env.get("SLURM_STEP_ID"))
    master = env.get("MASTER_ADDR", "")
    if name and name != "none":
        return _token("everywhere", source.by, name, again)
    if master and master not in ("localhost", "::1") and not master.startswith("127."):
        return _token("everywhere", source.by, master, env.get("MASTER_PORT"), world, again)
    return 0


# --- all of it ---
def _of_torch() -> Optional[Tuple[int, int]]:
    """(rank, world) of torch.distributed, if it is initialised. torch is not imported for it."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _check_given(rank: Optional[int], world: Optional[int]) -> bool:
    for name, value in (("rank", rank), ("world", world)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError("%s is %r and should be an int" % (name, value))
    if (rank is None) != (world is None):
        alone = "rank=" if world is None else "world="
        raise LaunchError("attach got %s alone: give it rank= and world=, or neither" % alone)
    if rank is not None and world is not None and not 0 <= rank < world:
        raise LaunchError("attach got rank=%d and world=%d: ranks are 0 to world - 1" % (rank, world))
    return rank is not None


def _launch_of(
    said: Tuple[int, int, int, int], source: Optional[_Source], env: Mapping[str, str], by: str
) -> Launch:
    world = said[1]
    run, restart = _run_of(source, env)
    return Launch(*said, _token_of(source, env, world), by, _everywhere(source, env, world), run, restart)


def launch(
    rank: Optional[int] = None, world: Optional[int] = None, *, env: Optional[Mapping[str, str]] = None
) -> Launch:
    """Which rank this process is. What was given is first, then torch.distributed if it is initialised, then
    torchrun's variables (RANK, WORLD_SIZE, ...), mpirun's (OMPI_*, PMI_*), srun's (SLURM_*); a process without any of
    them is alone.

    LaunchError: the environment contradicts itself, or torch.distributed, or the ranks are on several hosts.
    """
    env = os.environ if env is None else env
    source = next((s for s in _SOURCES if _applies(s, env)), None)
    if _check_given(rank, world):
        assert rank is not None and world is not None
        return _launch_of((rank, world, rank, 1 if world == 1 else 0), source, env, "arguments")
    found = _of_torch()
    if source is None and found is None:
        return _launch_of((0, 1, 0, 1), None, env, "")
    if source is not None:
        said = _from_env(source, env)
        if found is None or found == said[:2]:
            _one_host(said[1], said[3], source.by)
            return _launch_of(said, source, env, source.by)
    assert found is not None
    return _launch_of((found[0], found[1], found[0], 1 if found[1] == 1 else 0), source, env, "torch.distributed")
