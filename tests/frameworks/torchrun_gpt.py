# SPDX-License-Identifier: Apache-2.0
"""The training script that test_torchrun.py gives to torchrun. Nothing here says which rank it is: ckptd.attach finds
out.

usage: torchrun ... torchrun_gpt.py DIR SOCKET KIND HOW STEPS DEATHS

DEATHS: "RANK:STEP,..." for each launch in turn: that rank kills itself in the update of that step.
"""

import os
import pickle
import signal
import sys

import torch
import torch.distributed as dist

import ckptd
import gpt


def main():
    directory, socket, kind, how, steps, deaths = sys.argv[1:]
    launch, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dead = [d.split(":") for d in deaths.split(",")][launch:][:1]
    trainer = gpt.Trainer(kind, how, "tiny", rank)
    extra = {"sched": trainer.sched, "rng": ckptd.rng()}
    run = ckptd.attach(trainer.model, trainer.optim, store=directory + "/store", job="gpt", socket=socket, extra=extra)
    start = run.restore()
    losses = []
    for step in range(start, int(steps)):
        loss = trainer.loss(step)
        loss.backward()
        with run.step(step + 1, loss=loss):
            if dead and (rank, step + 1) == tuple(map(int, dead[0])):
                trainer.half_update()
                os.kill(os.getpid(), signal.SIGKILL)
            trainer.update()
        losses.append(loss.item())
    run.wait()
    with open(f"{directory}/end-{rank}", "wb") as f:
        pickle.dump({"launch": launch, "start": int(start), "losses": losses, "end": trainer.digests()}, f)
    run.detach()
    dist.destroy_process_group()


main()
