/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stall.h - what a training loop waits for its snapshots. Called by bench_main.c. Lines "NAME
 * NUMBER" are printed as they come.
 */
#ifndef BENCH_STALL_H
#define BENCH_STALL_H
#include "bench_job.h"
#include <sys/types.h>

/*
 * So many snapshots that are staged only, one after the other, and a pause of six copies in
 * between.
 * load: what the trainer does meanwhile. "free": it computes, and holds one core. "busy": as many
 * threads compute as there are cores. "idle": it sleeps.
 *	copy_memcpy, copy_stream   one copy of the state, in turn with the snapshots (busy: before them)
 *	cpu_memcpy, cpu_stream     processor time of these
 *	stall_all                  of each snapshot, torn and skipped ones too
 *	stall, time_to_staged      of each one that was staged
 *	copy_cpu, copy_wait        of the daemon's copying threads for such a one: on a core; waiting for one
 *	memory, slots              at the end: of the trainer and the daemon; of two slots and the state
 */
void bench_stall(const struct job_opts *o, uint32_t snapshots, const char *load, pid_t daemon);

/*
 * A loop of fixed work, rounds times: eight steps without a snapshot, eight with one at each step.
 * how: "staged", or "persisted": each is written, and a step takes 1.5 times as long as a durable
 * save.
 *	plain, with                one step
 *	asked, reached             snapshots; those that were staged, or committed
 */
void bench_loop(const struct job_opts *o, const char *how, uint32_t rounds);

/*
 * Two jobs of the same state, one with three averages of its weights and one without, in turn, so
 * that the other one rests: eight steps of a loop as above, with a snapshot at each of them, that
 * is staged only.
 *	with, plain                one step
 *	stall_with, stall_plain    inside ckpt_snapshot and ckpt_guard, of each step
 *	reached_with, reached_plain  snapshots that were staged
 *	memory_plain, memory_with  of the trainer and the daemon; what the second job added
 */
void bench_averages(const struct job_opts *o, uint32_t rounds, pid_t daemon);

/*
 * Two ranks that hold the same state (o->replicated) or half each: what the daemon's copying
 * threads spend on one snapshot (copy_cpu), which copies the same bytes either way.
 */
void bench_drift(const struct job_opts *o, uint32_t snapshots, pid_t daemon);
#endif
