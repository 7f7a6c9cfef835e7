# SPDX-License-Identifier: Apache-2.0
"""A directory of safetensors files as Hugging Face has them, without torch. rows_convert.sh and rows_hub.sh call it.

usage: hub_write.py DIR TENSORS FILES BYTES [hole]

TENSORS tensors in FILES files and their index (one file has none), BYTES of data in all. The data look random to the last byte;
with "hole" nothing is written where they lie. Two thirds of the tensors are matrices of BF16 with 1,024 columns, one third of FP32;
of small tensors the matrices have one column. Headers are padded to 8 bytes, as the safetensors package does it, so the data
begin anywhere on a page.
"""

import json
import os
import random
import struct
import sys

BLOCK = 1 << 24  # bytes that are made at once


def tensors(count, files, total):
    """For each file: (name, dtype, shape, bytes) of its tensors."""
    each = total // count
    columns = 1024 if each >= 4096 else 1
    for f in range(files):
        rows = []
        for i in range(count * f // files, count * (f + 1) // files):
            dtype, width = ("F32", 4) if i % 3 == 2 else ("BF16", 2)
            height = max(each // (columns * width), 1)
            name = f"model.layers.{i // 96}.mlp.experts.{i % 96 // 3}.w{i % 3 + 1}.weight"
            rows.append((name, dtype, [height, columns], height * columns * width))
        yield rows


def main():
    directory, count, files, total = sys.argv[1], *map(int, sys.argv[2:5])
    hole = sys.argv[5:] == ["hole"]
    draw = random.Random(1)
    where, end = {}, 0
    os.makedirs(directory)
    for number, rows in enumerate(tensors(count, files, total), 1):
        name = "model.safetensors" if files == 1 else f"model-{number:05}-of-{files:05}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for key, dtype, shape, size in rows:
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            where[key] = name
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(directory, name), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for begin in range(0, 0 if hole else at, BLOCK):
                f.write(draw.randbytes(min(BLOCK, at - begin)))
            f.truncate(8 + len(text) + at)
            f.flush()
            os.fsync(f.fileno())
        end += at
    if files > 1:
        with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": end}, "weight_map": where}, f)


main()
