# SPDX-License-Identifier: Apache-2.0
"""ckptd.dcp with the real torch.distributed.checkpoint: dcp.load reads native steps, dcp.save writes them."""

from __future__ import annotations

import inspect
import os
import pickle
import unittest
from typing import Any, Dict, List, Optional

import gpt
import ranks
import torch
import torch.distributed.checkpoint
from torch_names import fsdp2_on_cpu, since, without_ranks

import ckptd
from ckptd.errors import NotFitting


def _state(trainer: gpt.Trainer) -> Dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = trainer.model.module if hasattr(trainer.model, "module") else trainer.model
    optim = get_optimizer_state_dict(model, trainer.optim)
    return {"model": model.state_dict(), "optim": optim, "epoch": trainer.sched.last_epoch}


def _digests(state: Dict[str, Any]) -> Dict[str, str]:
    found = {"model/" + k: gpt.digest(gpt.local(t)) for k, t in state["model"].items() if k != "head.weight"}
    for of, inner in state["optim"]["state"].items():
        found.update({f"optim/{of}.{k}": gpt.digest(gpt.local(t)) for k, t in inner.items()})
    return found


def _train(trainer: gpt.Trainer, first: int, last: int) -> None:
    for step in range(first, last):
        trainer.loss(step).backward()
        trainer.update()


# ---- what ranks do ----


def save(rank: Any, kind: str, how: str, steps: List[int], background: str = "") -> Dict[str, Any]:
    """Train, and dcp.save at each of the steps. What was there at the last one."""
    import torch.distributed.checkpoint as dcp

    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    at = 0
    for step in steps:
        _train(trainer, at, step)
        at = step
        if not background:
            dcp.save(
                _state(trainer), checkpoint_id=f"step-{step}", storage_writer=writer, **without_ranks(rank.world == 1)
            )
            continue
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        where = AsyncCheckpointerType.PROCESS if background == "process" else AsyncCheckpointerType.THREAD
        pending = dcp.async_save(
            _state(trainer), checkpoint_id=f"step-{step}", storage_writer=writer, async_checkpointer_type=where
        )
        pending.result()
    whole = gpt.gather(trainer, rank.dir)
    if whole is not None:
        with open(os.path.join(rank.dir, "expected"), "wb") as f:
            pickle.dump(gpt.everywhere(whole, tuple(gpt.MESHES)), f)
    state = _state(trainer)
    writer.close()
    return {"digests": _digests(state), "groups": state["optim"]["param_groups"], "epoch": state["epoch"]}


def load(rank: Any, kind: str, how: str, path: str, steps: int = 0) -> Dict[str, Any]:
    """dcp.load into a fresh trainer."""
    import torch.distributed.checkpoint as dcp

    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    _train(trainer, 0, 1)  # other values than those that are loaded
    state = _state(trainer)
    dcp.load(state, storage_reader=ckptd.dcp.Reader(path), **without_ranks(rank.world == 1))
    return {"digests": _digests(state), "groups": state["optim"]["param_groups"], "epoch": state["epoch"]}


def attached(rank: Any, kind: str, how: str, steps: int) -> Dict[str, Any]:
    """Train under ckptd.attach."""
    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    run = rank.attach(trainer.model, trainer.optim)
    run.restore()
    for step in range(steps):
        trainer.loss(step).backward()
        with run.step(step + 1):
            trainer.update()
    run.wait()
    whole = gpt.gather(trainer, rank.dir)
    if whole is not None:
        with open(os.path.join(rank.dir, "expected"), "wb") as f:
            pickle.dump(gpt.everywhere(whole, tuple(gpt.MESHES)), f)
    groups = _state(trainer)["optim"]["param_groups"]
    run.detach()
    return {"groups": groups}


def load_attached(rank: Any, kind: str, how: str, path: str) -> Dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    _train(trainer, 0, 1)
    state = {k: v for k, v in _state(trainer).items() if k != "epoch"}
    dcp.load(state, storage_reader=ckptd.dcp.Reader(path), **without_ranks(rank.world == 1))
    return {"digests": _digests(state), "groups": state["optim"]["param_groups"]}


def attach_after(rank: Any, kind: str, how: str) -> Dict[str, Any]:
    """attach restores what dcp.save stored; only what DCP does not know is missing."""
    trainer = gpt.Trainer(kind, how, "tiny", rank.rank)
    run = rank.attach(trainer.model, trainer.optim)
    restored = run.restore(strict=False)
    digests = trainer.digests()
    run.detach()
    missing, unused = list(restored.missing), list(restored.unused)
    return {"step": int(restored), "missing": missing, "unused": unused, "digests": digests}


def refusals(rank: Any) -> List[str]:
    """What each wrong save says, by rank."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    def attempt(writer: Any, checkpoint_id: Optional[str], **options: Any) -> str:
        try:
            dcp.save({"w": torch.arange(3.0)}, checkpoint_id=checkpoint_id, storage_writer=writer, **options)
            return "saved"
        except CheckpointException as e:
            return "; ".join(sorted({f"{type(x).__name__}: {x}" for x, _ in e.failures.values()}))
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    said = []
    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    said.append(attempt(writer, "step-5"))
    said.append(attempt(writer, "step-5"))
    said.append(attempt(writer, "step-4"))
    said.append(attempt(writer, "final"))
    said.append(attempt(writer, None))
    said.append(attempt(writer, "step-6", use_collectives=False))
    said.append(attempt(writer, "step-6"))
    writer.close()
    # A launch that follows, and does not know of the steps that are there; then one that goes back.
    again = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    said.append(attempt(again, "step-6"))
    said.append(attempt(again, "step-7"))
    again.close()
    back = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, resume=5, timeout=60)
    said.append(attempt(back, "step-6"))
    back.close()
    return said


def no_daemon(rank: Any) -> str:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    os.environ["CKPTD_DISABLE"] = "1"
    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.dir + "/nobody", timeout=5)
    try:
        dcp.save({"w": torch.arange(3.0)}, checkpoint_id="1", storage_writer=writer, **without_ranks(True))
        return "saved"
    except CheckpointException as e:
        return "; ".join(f"{type(x).__name__}: {x}" for x, _ in e.failures.values())


def changing(rank: Any) -> List[Dict[str, Any]]:
    """Saves whose plans differ: other tensors, other shapes, other dtypes, larger objects."""
    import torch
    import torch.distributed.checkpoint as dcp

    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    scalar, turned = torch.tensor(2.5, dtype=torch.float64), torch.arange(6).view(2, 3).t()
    states: List[Dict[str, Any]] = [
        {"w": torch.arange(6.0), "empty": torch.empty(0, 4), "scalar": scalar, "n": 1},
        {"w": torch.arange(6.0) + 1, "empty": torch.empty(0, 4), "scalar": scalar + 1, "n": 2},
        {"w": torch.arange(70000).to(torch.bfloat16), "n": "x" * 100000},
        {"v": torch.tensor([True, False]), "c": torch.view_as_complex(torch.ones(3, 2)), "t": turned},
    ]
    same = []
    for i, state in enumerate(states):
        dcp.save(state, checkpoint_id=f"at-{i + 1}", storage_writer=writer, **without_ranks(rank.world == 1))
        like = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for k, v in state.items()}
        dcp.load(like, storage_reader=ckptd.dcp.Reader(rank.store), **without_ranks(rank.world == 1))
        tensors = {k for k, v in state.items() if isinstance(v, torch.Tensor)}
        same.append({k: torch.equal(v, like[k]) if k in tensors else v == like[k] for k, v in state.items()})
    writer.close()
    return same


def attempt(writer: Any, step: int, state: Dict[str, Any], **options: Any) -> str:
    """What dcp.save says: "saved", or the exceptions by rank."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, **options)
        return "saved"
    except CheckpointException as e:
        return "; ".join(f"{rank}: {type(why).__name__}" for rank, (why, _) in sorted(e.failures.items()))


def own(rank: Any, value: int) -> Dict[str, Any]:
    """A state of which each rank has a tensor of its own."""
    import torch

    return {"model": {f"w{rank.rank}": torch.full((5,), float(value))}}


def one_fails(rank: Any) -> List[str]:
    """One rank of three raises in write_data, then in its plan."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Data(DefaultSavePlanner):
        def resolve_data(self, item: Any) -> Any:
            return super().resolve_data(item) if rank.rank != 1 else 1 // 0

    class Plan(DefaultSavePlanner):
        def create_local_plan(self) -> Any:
            return super().create_local_plan() if rank.rank != 1 else 1 // 0

    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=3)
    said = [attempt(writer, 1, own(rank, 1), planner=Data())]  # while they begin
    said.append(attempt(writer, 1, own(rank, 2)))
    said.append(attempt(writer, 2, own(rank, 3), planner=Data()))
    said.append(attempt(writer, 3, own(rank, 4), planner=Plan()))
    said.append(attempt(writer, 2, own(rank, 5)))  # the same step again
    writer.close()
    return said


def other_worlds(rank: Any) -> List[str]:
    """Rank 0 alone, all, rank 0 alone, all: with one Writer."""
    import torch.distributed as dist

    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    said = []
    for step in (1, 2, 3, 4):
        if step % 2 == 0 or rank.rank == 0:
            said.append(attempt(writer, step, own(rank, step), no_dist=step % 2 == 1))
        dist.barrier()
    writer.close()
    return said


def load_while_saving(rank: Any) -> Any:
    """A step is committed after rank 0 has opened the newest one, and before rank 1 does."""
    import torch
    import torch.distributed.checkpoint as dcp

    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)

    def save(step: int) -> None:
        state = {"w": torch.full((5,), float(step)), "n": step}
        dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer)

    class Late(ckptd.dcp.Reader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            if rank.rank == 0:
                self.checkpoint
            save(2)
            return super().read_metadata(*args, **kwargs)

    save(1)
    state = {"w": torch.zeros(5), "n": 0}
    dcp.load(state, storage_reader=Late(rank.store))
    writer.close()
    return state["w"].tolist(), state["n"]


def load_verified(rank: Any, path: str) -> Any:
    """dcp.load of a damaged step: which ranks failed, and whether anything was written."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    state = {"model": {f"w{rank.rank}": torch.zeros(5)}}
    try:
        dcp.load(state, storage_reader=ckptd.dcp.Reader(path, verify=True))
        said = "loaded"
    except CheckpointException as e:
        said = "; ".join(f"{who}: {type(why).__name__}" for who, (why, _) in sorted(e.failures.items()))
    return said, bool(state["model"][f"w{rank.rank}"].any())


def misfits(rank: Any) -> List[Any]:
    """dcp.load into states that differ from the step: what it says, and what is in "a" and "b" afterwards."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    writer = ckptd.dcp.Writer(rank.store, rank.job, socket=rank.socket, timeout=60)
    dcp.save({"a": torch.ones(4), "b": torch.ones(4)}, checkpoint_id="1", storage_writer=writer, no_dist=True)
    writer.close()
    half, zeros = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4)
    said = []
    for state, cast in (
        ({"a": zeros.clone(), "b": half.clone()}, False), ({"a": zeros.clone(), "b": half.clone()}, True),
        ({"a": zeros.clone(), "c": zeros.clone()}, False), ({"a": zeros.clone()}, False), ({"a": torch.zeros(3)}, False),
    ):  # fmt: skip
        text = ""
        try:
            dcp.load(state, storage_reader=ckptd.dcp.Reader(rank.store, cast=cast), no_dist=True)
        except CheckpointException as e:
            text = "; ".join(str(why) for why, _ in e.failures.values())
        said.append((text, {k: v.tolist() for k, v in state.items()}))
    return said


# ---- what must hold ----


class Dcp(ranks.Case):
    def _expected(self, job: ranks.Job) -> Dict[str, List[Dict[str, str]]]:
        with open(os.path.join(job.dir, "expected"), "rb") as f:
            found: Dict[str, List[Dict[str, str]]] = pickle.load(f)
        return found

    def _same(self, got: Dict[str, str], want: Dict[str, str], what: str) -> None:
        self.assertTrue(got)
        self.assertEqual([k for k in want if got.get(k) != want[k]], [], what)

    @fsdp2_on_cpu
    def test_what_dcp_saved_on_one_mesh_loads_on_every_other_bit_for_bit(self) -> None:
        for kind, how, others in (
            ("fsdp4", "foreach", ("plain", "tp32", "ddp2")),
            ("plain", "fused", ("fsdp4", "tp22")),
            ("hsdp22", "bf16", ("fsdp4", "tp32")),
        ):
            job = self.job()
            saved = job.run(gpt.WORLD[kind], save, kind, how, [1, 2, 3])
            job.ctl("verify", "--data", "latest", "-C", job.store)
            expected = self._expected(job)
            for other in others:
                loaded = job.run(gpt.WORLD[other], load, other, how, job.store)
                for r, got in enumerate(loaded):
                    self._same(got["digests"], expected[other][r], f"{kind} to {other}, rank {r}")
                    self.assertEqual(got["epoch"], saved[0]["epoch"])
                    self.assertEqual([g["lr"] for g in got["groups"]], [g["lr"] for g in saved[0]["groups"]])
            job.daemon_stop()

    @since(2, 7, "no AsyncCheckpointerType")
    def test_async_save_in_a_thread_and_in_a_process(self) -> None:
        for background in ("thread", "process"):
            job = self.job()
            job.run(2, save, "ddp2", "foreach", [1, 2], background, fresh=True)
            job.ctl("verify", "--data", "latest", "-C", job.store)
            got = job.run(1, load, "plain", "foreach", job.store)[0]
            self._same(got["digests"], self._expected(job)["plain"][0], background)

    @fsdp2_on_cpu
    def test_what_attach_saved_loads_by_dcp_with_its_param_groups(self) -> None:
        for kind in ("fsdp4", "tp32"):
            job = self.job()
            saved = job.run(gpt.WORLD[kind], attached, kind, "foreach", 3)
            expected = self._expected(job)
            for other in ("plain", "tp22"):
                loaded = job.run(gpt.WORLD[other], load_attached, other, "foreach", job.store)
                for r, got in enumerate(loaded):
                    self._same(got["digests"], expected[other][r], f"{kind} to {other}, rank {r}")
                    for mine, theirs in zip(got["groups"], saved[0]["groups"]):
                        self.assertEqual(set(mine), set(theirs))
                        self.assertEqual([k for k in theirs if k != "params" and mine[k] != theirs[k]], [])
            job.daemon_stop()

    @fsdp2_on_cpu
    def test_attach_goes_on_from_what_dcp_saved(self) -> None:
        job = self.job()
        job.run(4, save, "fsdp4", "foreach", [1, 2])
        expected = self._expected(job)
        model = gpt.build("plain")
        self.assertEqual(ckptd.load(job.store, model).unexpected, ())
        wrong = [k for k, v in model.state_dict().items() if gpt.digest(v) != expected["plain"][0].get("model/" + k)]
        self.assertEqual(wrong, ["head.weight"])  # which `expected` knows by its first name
        optim = torch.optim.AdamW(model.parameters(), lr=5.0)
        with self.assertRaisesRegex(NotFitting, "the step lacks blob/optim.groups"):
            ckptd.load(job.store, optim=optim, like=model)
        loaded = ckptd.load(job.store, model, optim, strict=False)
        self.assertIn("blob/optim.groups", loaded.missing)
        self.assertEqual(optim.param_groups[0]["lr"], 5.0)
        for r, got in enumerate(job.run(2, attach_after, "ddp2", "foreach")):
            self.assertEqual(got["step"], 2)
            # DCP saves a tied weight twice.
            self.assertEqual((got["missing"], got["unused"]), (["blob/optim.groups"], ["model/head.weight"]))
            self._same(got["digests"], expected["ddp2"][r], f"rank {r}")

    @unittest.skipUnless(
        "use_collectives" in inspect.signature(torch.distributed.checkpoint.save).parameters,
        "dcp.save has no use_collectives",
    )
    def test_a_save_that_stores_nothing_is_an_exception_on_every_rank(self) -> None:
        job = self.job()
        for said in job.run(2, refusals):
            first, same, older, no_number, nothing, alone, next_one, known, newer, back = said
            self.assertEqual((first, next_one, newer, back), ("saved",) * 4, said)
            self.assertIn("InvalidCall: step 5 is not newer than step 5", same)
            self.assertIn("InvalidCall: step 4 is not newer than step 5", older)
            self.assertIn("does not end in a step's number", no_number)
            self.assertIn("which step?", nothing)
            self.assertIn("use_collectives=True", alone)
            self.assertIn("already has step 6", known)
        self.assertIn("step-000000000006", job.ctl("show", "latest", "--json", "-C", job.store))
        self.assertIn("7", job.ctl("ls", "-C", job.store))

    def test_without_a_daemon_dcp_save_does_not_pretend(self) -> None:
        job = self.job(daemon=False)
        said = job.run(1, no_daemon, group=False)[0]
        self.assertIn("NoDaemon", said)
        self.assertFalse(os.path.exists(job.store + "/gpt/step-000000000001"))

    def _holds(self, job: ranks.Job, step: int, world: int, value: int) -> None:
        with ckptd.open(step, store=job.store, verify=True) as checkpoint:
            self.assertEqual(sorted(checkpoint), [f"model/w{r}" for r in range(world)])
            for tensor in checkpoint.values():
                self.assertEqual(tensor[...].tolist(), [float(value)] * 5, (step, tensor.key))

    def test_a_rank_that_fails_fails_the_save_on_all_ranks_and_the_next_save_is_whole(self) -> None:
        job = self.job()
        for said in job.run(3, one_fails):
            failed = "0: TimedOut; 1: ZeroDivisionError; 2: TimedOut"
            self.assertEqual(said, [failed, "saved", failed, "1: ZeroDivisionError", "saved"])
        self._holds(job, 1, 3, 2)
        self._holds(job, 2, 3, 5)

    def test_a_writer_that_saves_on_another_number_of_ranks_saves_all_of_them(self) -> None:
        """Rank 0 kept its handle of a job of one rank, and committed its part as the whole step."""
        job = self.job()
        self.assertEqual(job.run(3, other_worlds), [["saved"] * 4, ["saved"] * 2, ["saved"] * 2])
        for step in (1, 2, 3, 4):
            self._holds(job, step, 3 if step % 2 == 0 else 1, step)

    def test_states_that_differ_from_the_step(self) -> None:
        no, yes = [0.0] * 4, [1.0] * 4
        dtype, cast, more, fewer, shape = self.job().run(1, misfits)[0]
        self.assertRegex(dtype[0], r"b is torch.bfloat16, and torch.float32 in the checkpoint")
        self.assertRegex(dtype[0], r"Reader\(cast=True\)")
        self.assertEqual(dtype[1], {"a": no, "b": no})
        self.assertEqual(cast, ("", {"a": yes, "b": yes}))
        self.assertRegex(more[0], "Missing key.* c")
        self.assertEqual(more[1], {"a": no, "c": no})
        self.assertEqual(fewer, ("", {"a": yes}))
        self.assertRegex(shape[0], "(?i)size mismatch|DCP asks for")
        self.assertEqual(shape[1], {"a": no[:3]})

    def test_all_ranks_load_one_step_while_the_job_saves_the_next(self) -> None:
        self.assertEqual(self.job().run(2, load_while_saving), [([1.0] * 5, 1)] * 2)

    def test_a_damaged_byte_that_verify_finds_fails_the_load_on_all_ranks(self) -> None:
        job = self.job()
        job.run(2, other_worlds)
        with ckptd.open(job.store) as checkpoint:
            piece = checkpoint["model/w1"].pieces[0]
            with open(os.path.join(checkpoint.path, piece.file), "r+b") as f:
                f.seek(piece._record["offset"])
                f.write(b"\x00\x01")
        self.assertEqual(job.run(2, load_verified, checkpoint.path), [("0: Damaged", False)] * 2)

    def test_plans_that_change_from_save_to_save(self) -> None:
        for world in (1, 2):
            job = self.job()
            for said in job.run(world, changing):
                for state in said:
                    self.assertEqual(set(state.values()), {True}, said)
            job.daemon_stop()


if __name__ == "__main__":
    unittest.main()
