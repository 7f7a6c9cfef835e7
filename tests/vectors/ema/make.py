#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make.py DIR - lerp.txt, track.txt and zcc.txt of this folder from what real implementations answered
(DIR/lerp_bits.jsonl, track_bits.jsonl, paddle_zcc_bits.jsonl): torch 2.15.0 on a CPU with AVX-512, timm
1.0.31, diffusers 0.42.1, PaddleFormers 1.2.0 on PaddlePaddle 3.3.1. `#` begins a comment. Read by
tests/unit/test_ema_kernel.c.

F32 and BF16 are rows of little-endian bytes in hex. A share is a = the nearest float to 1 - decay, with
1 - decay in double, as the bits of an F32 (3f800000: the update copies).

lerp.txt   e|p|p16 ROW             the inputs: averages, sources in F32, sources in BF16
           lerp SHARE ROW ROW      torch.lerp(e, p, share), and of p16 widened
track.txt  p ROW                   the source of the next update, 24 lines
           track WHO RULE SHARE*24 COUNT:ROW...
                                   the average after COUNT updates, which begins as the first source
                                   lerp      torch.lerp
                                   bf16      torch.lerp from the source rounded to BF16 and widened
                                   foreach   s - a (s - p), the product unrounded
                                   sub       s - fl(a fl(s - p))
                                   products  fl(d e) + fl(a p)
                                   division  e + fl((p - e) / k)
zcc.txt    p ROW                   the FP32 masters, and behind them FP32 parameters, 12 lines
           zcc DECAY THRESHOLD|none LOSS*12 COUNT:ROW...
                                   fl(d e) + fl(a p) from +0; a loss that is not below THRESHOLD: unchanged
"""
import json
import struct
import sys


def bits(x):
    return struct.pack(">f", x).hex()


def share(decay):
    return bits(1.0 - decay)


def timm(k, decay, use_warmup=False, min_decay=0.0, update_after_step=0, warmup_gamma=1.0, warmup_power=2 / 3):
    s = max(0, k - update_after_step - 1)
    if s <= 0:
        return 0.0
    if not use_warmup:
        return decay
    return max(min(1 - (1 + s / warmup_gamma) ** -warmup_power, decay), min_decay)


def diffusers(k, decay, use_ema_warmup=False, min_decay=0.0, update_after_step=0, inv_gamma=1.0, power=2 / 3):
    s = max(0, k - update_after_step - 1)
    if s <= 0:
        return 0.0
    d = 1 - (1 + s / inv_gamma) ** -power if use_ema_warmup else (1 + s) / (10 + s)
    return max(min(d, decay), min_decay)


def lines(name):
    with open(f"{sys.argv[1]}/{name}.jsonl", encoding="ascii") as f:
        return [json.loads(line) for line in f]


def write(name, rows):
    with open(f"{sys.path[0]}/{name}.txt", "w", encoding="ascii") as f:
        f.write("# made by make.py, which says what it is\n")
        f.writelines(" ".join(r) + "\n" for r in rows)


def lerp():
    first, *rest = lines("lerp_bits")
    yield ["e", first["e_f32"]]
    yield ["p", first["p_f32"]]
    yield ["p16", first["p_bf16"]]
    for x in rest:
        yield ["lerp", x["weight_f32_bits"], x["out_f32src"], x["out_bf16src"]]


def track():
    first, *rest = lines("track_bits")
    steps = range(1, first["steps"] + 1)
    for p in first["p_f32"]:
        yield ["p", p]
    for x in rest:
        impl, args = x["impl"], x.get("args", {})
        if impl == "timm ModelEmaV3":
            no_step = "without step" in x["call"]
            who, rule = "timm", "lerp"
            decays = [args["decay"] if no_step else timm(k, **args) for k in steps]
        elif impl.startswith("diffusers"):
            who, rule = "diffusers", "foreach" if impl.endswith("foreach") else "sub"
            decays = [diffusers(k, **args) for k in steps]
        elif "SWA" in impl:
            who, rule, decays = "swa", "division", [1 - 1 / k for k in steps]
        else:
            assert x["first_call"] == "copies"
            who = "torch"
            rule = "bf16" if "bf16" in impl else "products" if "get_ema_avg_fn" in impl else "lerp"
            decays = [0.0] + [x["decay"]] * (len(steps) - 1)
        shares = [bits(1 / k) for k in steps] if rule == "division" else [share(d) for d in decays]
        yield ["track", who, rule, *shares, *(f"{k}:{o}" for k, o in zip(x["after_updates"], x["out_f32"]))]


def zcc():
    first, *rest = lines("paddle_zcc_bits")
    for m, p in zip(first["master_f32"], first["fp32_param"]):
        yield ["p", m + p]
    for x in rest:
        out = [m + p for m, p in zip(x["ema_f32"], x["ema_fp32_param"])]
        threshold = x["loss_threshold"]
        yield [
            "zcc",
            repr(x["coef"]),
            "none" if threshold is None else repr(threshold),
            *(str(loss) for loss in x["losses"]),
            *(f"{k}:{o}" for k, o in zip(x["after_updates"], out)),
        ]


write("lerp", lerp())
write("track", track())
write("zcc", zcc())
