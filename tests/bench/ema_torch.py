#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ema_torch.py ELEMENTS ROUNDS - updates of an FP32 average by PyTorch, one thread, for frameworks.sh.

Prints "NAME NUMBER" for each round: nanoseconds of the thread's processor time. The forms in turn, then
backwards, and so on; memory is touched before.
"""
import sys
import time

import torch

DECAY = 0.999


def foreach_lerp(e, p):  # AveragedModel with get_ema_multi_avg_fn; timm's ModelEmaV3 calls the same
    torch._foreach_lerp_([e], [p], 1 - DECAY)


def mul_add(e, p):
    e.mul_(DECAY).add_(p, alpha=1 - DECAY)


def temporaries(e, p):  # the formula of get_ema_avg_fn and of PaddleFormers' ZCC
    e.copy_(DECAY * e + (1 - DECAY) * p)


def diffusers(e, p):  # EMAModel.step without foreach
    e.sub_((1 - DECAY) * (e - p))


def main():
    n, rounds = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    e, p = torch.randn(n), torch.randn(n)
    forms = [foreach_lerp, mul_add, temporaries, diffusers]
    for i in range(rounds):
        for form in reversed(forms) if i % 2 else forms:
            begin = time.thread_time_ns()
            form(e, p)
            print(form.__name__, time.thread_time_ns() - begin)


main()
