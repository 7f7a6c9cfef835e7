/* SPDX-License-Identifier: Apache-2.0 */
/* bench_canary.h - what it costs a mark and a guard to look whether the state is changed in between
 * (client/canary.h), without a daemon. Prints "mark NS" and "guard NS", one of each a round. */
#ifndef BENCH_CANARY_H
#define BENCH_CANARY_H
#include <stdint.h>

/* A state of so many bytes in memory of ckpt_alloc's kind, and its copy, both beyond any cache.
 * own: the state is in memory of the trainer's own, which the guard reads by a system call. */
void bench_canary(uint64_t bytes, uint32_t rounds, int own);
#endif
