/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_stats.h - what the snapshots cost, measured at the call sites on one rank.
 *
 * A stall sample is the time inside ckpt_snapshot plus the time inside the ckpt_guard that
 * follows, of a snapshot that was copied (both returned 0). The FINAL snapshot, which waits by
 * intention, is no sample. The line that train_stats_write appends is the schema
 * "trainer.stats/1":
 *
 *	restore_ns                  what ckpt_restore took on the slowest rank; 0: nothing restored
 *	steps, snapshots_asked      steps run; snapshots asked for, the final one included
 *	state_bytes, memcpy_ns      this rank's state, and the best single-thread copy of it (of
 *	                            what lies on a GPU: the best copy to pinned memory, tensor by tensor)
 *	job_state_bytes             of all ranks together
 *	stall_ns                    [ns, one per sample]
 *	stall_preempted             samples during which the kernel gave the rank's core to another
 *	                            thread (getrusage's ru_nivcsw)
 *	staged_ns, persisted_ns,    [ns, one per step that got there, from its first mark; a step
 *	committed_ns                that was overtaken between two looks is left out]
 *	counts                      struct ckpt_stats
 */
#ifndef TRAINER_STATS_H
#define TRAINER_STATS_H
#include "ckpt/ckpt.h"

#include <stdbool.h>
#include <stdint.h>

struct samples {
	uint64_t *ns;
	uint32_t n, cap;
};

struct train_stats {
	bool on;
	bool copying;	      /* a snapshot returned 0 and its guard has not been called */
	uint64_t snapshot_ns; /* spent in that snapshot */
	bool preempted;	      /* in that snapshot */
	uint64_t asked, state_bytes, job_state_bytes, memcpy_ns, stall_preempted;
	struct samples stall, staged, persisted, committed;
	struct ckpt_stats last;
};

uint64_t now_ns(void);		/* CLOCK_MONOTONIC */
uint64_t preempted_times(void); /* how often the kernel took this thread's core away so far */

/* Time the copy of this rank's state, which lies in two blocks: the best of 5. */
void train_stats_memcpy(struct train_stats *s, void *const state[2], const uint64_t bytes[2]);

void train_stats_snapshot(struct train_stats *s, int result, uint64_t ns, uint64_t preempted);
void train_stats_guard(struct train_stats *s, int result, uint64_t ns, uint64_t preempted);

/* Look at the library's counters; called once per step, outside of what is timed. */
void train_stats_look(struct train_stats *s, ckpt *c);

/* Append the line; `head` is the beginning of the object, from "{" to a trailing comma. 0 or
 * -errno. */
int train_stats_write(const struct train_stats *s, const char *path, const char *head);
#endif
