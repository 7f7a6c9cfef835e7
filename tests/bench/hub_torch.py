# SPDX-License-Identifier: Apache-2.0
"""What one writes in Python, with torch and the safetensors package, to load or reshard a Hugging Face directory. Run by rows_hub.sh.

usage: hub_torch.py reshard SRC DST RANKS    load_file of every file, torch.chunk along dimension 0, save_file for each rank, fsync
       hub_torch.py load SRC                 load_file of every file, and a copy of every tensor: load_file alone only maps the files

Prints "NAME NANOSECONDS" without the time of the imports.
"""

import os
import sys
import time

import torch
from safetensors.torch import load_file, save_file


def loaded(directory):
    state = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            state.update(load_file(os.path.join(directory, name)))
    return state


def synced(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def reshard(source, target, ranks):
    os.mkdir(target)
    state = loaded(source)
    for rank in range(ranks):
        shard = {k: torch.chunk(v, ranks)[rank].contiguous() for k, v in state.items()}
        path = os.path.join(target, f"rank-{rank:05}.safetensors")
        save_file(shard, path)
        synced(path)
    synced(target)


def main():
    begin = time.monotonic_ns()
    if sys.argv[1] == "reshard":
        reshard(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        kept = {k: v.clone() for k, v in loaded(sys.argv[2]).items()}
        assert kept
    print(sys.argv[1], time.monotonic_ns() - begin)


main()
