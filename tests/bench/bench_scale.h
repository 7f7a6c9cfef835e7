/* SPDX-License-Identifier: Apache-2.0 */
/* bench_scale.h - what a job of many small tensors and ranks costs. Called by bench_main.c. */
#ifndef BENCH_SCALE_H
#define BENCH_SCALE_H
#include <stdint.h>
#include <sys/types.h>

/*
 * A job of so many FP32 tensors, each cut over so many ranks (the threads of this process): 64
 * elements of each on every rank, with so many averages of all of them. It saves `rounds` steps,
 * one after the other. Prints
 *	declare          processor ns of one rank's thread for all its ckpt_tensor_add
 *	seal             from the last rank's ckpt_seal to the last return
 *	seal_cpu, seal_owner  processor ns of the daemon from the first one on; of its owner thread alone
 *	snapshot         of each ckpt_snapshot, all ranks
 *	parts, commit    of each step: staged to persisted, persisted to committed
 *	step_cpu         processor ns of the daemon for one of them
 *	heap             bytes of private memory that the daemon has after them and had not before the
 *	                 declarations, per tensor and rank
 */
void bench_scale(const char *socket, const char *store, uint32_t tensors, uint32_t ranks,
		 uint32_t rounds, pid_t daemon, uint32_t averages);
#endif
