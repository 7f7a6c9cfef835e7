/* SPDX-License-Identifier: Apache-2.0 */
/* bench_life.h - a job that is killed and starts again. Called by bench_main.c. */
#ifndef BENCH_LIFE_H
#define BENCH_LIFE_H
#include "bench_job.h"
#include <sys/types.h>

/*
 * A process with o->world ranks starts afresh, takes a step, and is killed once that is staged;
 * `restarts` times another one goes on from memory. rest_ns: between staged and SIGKILL. Prints
 *	bytes, copy_best       of the state; its best single-thread copy, to touched memory
 *	fresh                  from the start of the process to its first step taken, on all ranks
 *	restart                from SIGKILL to the first step of the next process
 *	restored               from the last rank's ckpt_restore to the last return
 *	memory, memory_restart greatest sum of what job and daemon hold, while the first one ran, and from a
 *	                       SIGKILL to the first step of the next; 0: it may not be read
 */
void bench_life(const struct job_opts *o, uint32_t restarts, uint64_t rest_ns, pid_t daemon);
#endif
