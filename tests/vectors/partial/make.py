#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write partial.txt for tests/unit/test_move_partial.c: python3 make.py partial.jsonl

The .jsonl was answered by PyTorch 2.15.0 (DTensor.redistribute), one case a line:
    {"shape":[3,4],"mesh":[4],"dtype":"int32","src":["P(sum)"],"dst":["S(1)"],
     "locals":[[..],..],"result":[[..],..],"result_shapes":[[3,1],..]}   or "error":true
It becomes one case a line, numbers and letters between spaces:
    LINE dtype ndim shape.. mesh_ndim sizes.. src placements.. dst placements..
    E, or per rank what it holds: n values.., and per rank what it holds then: n values..
A placement is R, P reduce (of enum ckpt_reduce) or S tensor_dim split_factor; one a mesh dimension.
"""
import json, os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPE = {"int32": "I32", "int64": "I64", "float32": "F32", "float64": "F64"}


def placement(text, ndim):
    if text == "R":
        return ["R"]
    if text.startswith("P"):
        return ["P", ["sum", "avg", "min", "max", "product"].index(text[2:-1])]
    m = re.fullmatch(r"S\((-?\d+)\)|_S\((-?\d+), ?(\d+)\)", text)
    d = int(m[1] if m[1] is not None else m[2])
    return ["S", d + ndim if d < 0 else d, 1 if m[3] is None else int(m[3])]


def main():
    out = []
    for number, line in enumerate(open(sys.argv[1]), 1):
        c = json.loads(line)
        ndim = len(c["shape"])
        f = [number, DTYPE[c["dtype"]], ndim, *c["shape"], len(c["mesh"]), *c["mesh"]]
        for p in c["src"] + c["dst"]:
            f += placement(p, ndim)
        for x in ["E"] if "error" in c else c["locals"] + c["result"]:
            assert x == "E" or all(v == int(v) for v in x)
            f += x if x == "E" else [len(x), *map(int, x)]
        out.append(" ".join(map(str, f)))
    with open(os.path.join(HERE, "partial.txt"), "w") as o:
        o.write("# written by make.py\n" + "\n".join(out) + "\n")


main()
