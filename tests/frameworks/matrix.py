# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the matrix do, and what each cell of it must show: used by test_matrix.py and test_matrix_large.py.

A cell is a mesh and an optimizer. A reference trains without interruption and without ckptd, and notes after each step
what each rank of every mesh must hold. The job trains under ckptd, everything is killed, and

* on the mesh that was killed, the resumed run has the losses and the end of the reference, bit for bit;
* on every other mesh, each rank holds what the reference says, and what `dcp.load` gives where DCP can save and load
it.
"""

from __future__ import annotations

import os
import pickle
import time
from typing import Any, Dict, List, Optional, Sequence

import gpt
import ranks
from torch_names import VERSION, without_ranks

# FSDP2 of older torch computes on GPUs only
KINDS = tuple(k for k in gpt.MESHES if VERSION >= (2, 6) or "fsdp" not in gpt.MESHES[k])


# ---- what ranks do ----


def reference(rank: Any, kind: str, how: str, size: str, steps: int, with_dcp: bool) -> Dict[str, Any]:
    """Train without ckptd. Rank 0 writes DIR/expected: digests by step, kind and rank."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    trainer = gpt.Trainer(kind, how, size, rank.rank)
    losses, expected, refused = [], {}, ""
    for step in range(steps):
        loss = trainer.loss(step)
        loss.backward()
        trainer.update()
        losses.append(loss.item())
        whole = gpt.gather(trainer, rank.dir)
        if whole is not None:
            expected[step + 1] = gpt.everywhere(whole, KINDS)
        if with_dcp and not refused:
            try:
                path = os.path.join(rank.dir, f"dcp-{step + 1}")
                dcp.save(trainer.state(), checkpoint_id=path, **without_ranks(rank.world == 1))
            except CheckpointException as error:  # uneven FSDP2 x TP: known
                refused = str(error)
    if rank.rank == 0:
        with open(os.path.join(rank.dir, "expected"), "wb") as f:
            pickle.dump(expected, f)
    return {"losses": losses, "end": trainer.digests(), "lr": trainer.sched.get_last_lr(), "dcp": refused}


def train(
    rank: Any,
    kind: str,
    how: str,
    size: str,
    steps: int,
    source: str = "any",
    wait_at: int = 0,
    pause_at: int = 0,
    options: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Restore and train on under ckptd. Says "restored", then "step N" after each step; pauses half way in update
    pause_at."""
    import ckptd

    trainer = gpt.Trainer(kind, how, size, rank.rank)
    extra = {"sched": trainer.sched, "rng": ckptd.rng()}
    run = rank.attach(trainer.model, trainer.optim, extra=extra, **{"guard": "finish", **(options or {})})
    start = int(run.restore(source=source))
    restored = trainer.digests() if start else {}
    rank.say("restored")
    losses, passed, taken = [], [run.stats()["outcomes"]], -1
    for step in range(start, steps):
        loss = trainer.loss(step)
        loss.backward()
        with run.step(step + 1, loss=loss.item()):
            if taken == step and run.stats()["outcomes"] == passed[-1]:
                rank.say(f"safe {step}")  # its copy was complete before this step began
            if step + 1 == pause_at:
                trainer.half_update()
                rank.pause("in the update")
            trainer.update()
        losses.append(loss.item())
        passed.append(run.stats()["outcomes"])
        taken = step + 1 if passed[-1] == passed[-2] else -1  # not skipped, for example because no slot was free
        rank.say(f"step {step + 1}")
        if step + 1 == wait_at:
            run.wait()
            rank.say(f"safe {step + 1}")
    run.wait()
    result = {"start": start, "restored": restored, "losses": losses, "end": trainer.digests(), "stats": run.stats()}
    run.detach()
    return {**result, "lr": trainer.sched.get_last_lr()}


def restored(rank: Any, kind: str, how: str, size: str, source: str, dcp_dir: str = "") -> Dict[str, Any]:
    """Restore on this mesh and end. dcp_dir: DIR/dcp-N of the reference, loaded into a second model."""
    import ckptd
    import torch

    trainer = gpt.Trainer(kind, how, size, rank.rank)
    run = rank.attach(trainer.model, trainer.optim, extra={"sched": trainer.sched, "rng": ckptd.rng()})
    step = int(run.restore(source=source))
    result = {"step": step, "have": trainer.digests(), "epoch": trainer.sched.last_epoch, "dcp": None, "refused": ""}
    path = f"{dcp_dir}/dcp-{step}" if dcp_dir else ""
    if path and os.path.exists(path + "/.metadata"):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        like = {key: torch.zeros_like(t) for key, t in trainer.state().items()}
        try:
            dcp.load(like, checkpoint_id=path, **without_ranks(rank.world == 1))
            result["dcp"] = {key: gpt.digest(gpt.local(t)) for key, t in like.items()}
        except CheckpointException as error:  # uneven FSDP2 x TP: known
            result["refused"] = str(error)
    run.detach()
    return result


# ---- what must hold ----


class Cell(ranks.Case):
    """One cell of the matrix; the files beside this one say which."""

    steps = 7
    size = "tiny"
    pace = 0.3  # seconds within which everything is killed after a step

    def refer(self, kind: str, how: str, with_dcp: bool = True) -> None:
        self.kind, self.how = kind, how
        self.reference_job = self.job(daemon=False)
        self.reference = self.reference_job.run(gpt.WORLD[kind], reference, kind, how, self.size, self.steps, with_dcp)
        with open(os.path.join(self.reference_job.dir, "expected"), "rb") as f:
            self.expected = pickle.load(f)

    def kill_somewhere(self, job: Any, draw: Any, source: str = "any") -> int:
        """Train, and kill everything at a random instant. Returns the newest step that was staged on all ranks
        before."""
        last = draw.randrange(3, self.steps)
        in_update = draw.random() < 0.5
        started = job.start(
            gpt.WORLD[self.kind],
            train,
            self.kind,
            self.how,
            self.size,
            self.steps,
            source=source,
            wait_at=2,
            pause_at=last + 1 if in_update else 0,
        )
        if in_update:
            started.until("in the update")
        else:
            started.until(f"step {last}")
            time.sleep(draw.random() * self.pace)  # the instant is random: nothing waits for anything here
        started.kill()
        self.say(f"killed {'in the update of' if in_update else 'some time after'} step {last + in_update}")
        safe = [max(int(word.split()[1]) for word in said if word.startswith("safe ")) for said in started.heard()]
        return min(safe)

    def say(self, text: str) -> None:
        print(f"# {self.kind}, {self.how}: {text}", flush=True)

    def same(self, have: Dict[str, str], want: Dict[str, str], what: str) -> None:
        """Both have the same tensors with the same bits; otherwise their names."""
        self.assertEqual(sorted(have), sorted(want), what + ": other tensors")
        self.assertEqual([k for k in want if have[k] != want[k]], [], what + ": these differ")

    def resumed(self, results: Sequence[Dict[str, Any]], least: int) -> None:
        """Of the same mesh: the rest of the run is the reference's, bit for bit."""
        for r, (got, want) in enumerate(zip(results, self.reference)):
            start = got["start"]
            self.assertGreaterEqual(start, least, "steps were lost that had been reached")
            if start:
                self.same(got["restored"], self.expected[start][self.kind][r], f"rank {r} restored step {start}")
            self.assertEqual(got["losses"], want["losses"][start:], f"losses of rank {r} after step {start}")
            self.same(got["end"], want["end"], f"rank {r} at the end")
            self.assertEqual(got["lr"], want["lr"])

    def other_mesh(self, job: Any, kind: str, source: str, least: int) -> None:
        """Of another mesh: each rank holds its share of the reference, and what DCP gives."""
        where = f"{self.kind} -> {kind}, {self.how}, from {source}"
        results = job.run(gpt.WORLD[kind], restored, kind, self.how, self.size, source, self.reference_job.dir)
        for r, got in enumerate(results):
            self.assertGreaterEqual(got["step"], least, where)
            self.same(got["have"], self.expected[got["step"]][kind][r], f"{where}: rank {r}")
            self.assertEqual(got["epoch"], got["step"], where + ": the learning rate's schedule")
            if got["dcp"] is not None and "tp" not in gpt.MESHES[kind]:
                self.same(got["have"], got["dcp"], f"{where}: rank {r} beside dcp.load")
        if "tp" not in gpt.MESHES[self.kind] and "tp" not in gpt.MESHES[kind]:
            self.assertEqual([got["refused"] for got in results], [""] * len(results))
            self.assertIsNotNone(results[0]["dcp"], "DCP can do this: it is to be compared")

    def cell(self, kind: str, how: str, targets: Optional[Sequence[str]] = None) -> None:
        draw = self.draw(kind, how)
        self.refer(kind, how)
        job = self.job()
        least = self.kill_somewhere(job, draw)
        others = [k for k in (targets or KINDS) if k != kind and k in KINDS]
        for other in others:
            self.other_mesh(job, other, "memory", least)
        if draw.random() < 0.5:
            self.say("resumed from memory")
            self.resumed(job.run(gpt.WORLD[kind], train, kind, how, self.size, self.steps, source="memory"), least)
            return
        job.daemon_kill()
        job.daemon_start()
        for other in others:
            self.other_mesh(job, other, "disk", 2)
        self.say("resumed from disk")
        self.resumed(job.run(gpt.WORLD[kind], train, kind, how, self.size, self.steps, source="disk"), 2)
