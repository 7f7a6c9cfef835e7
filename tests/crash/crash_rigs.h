/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_rigs.h - the crash matrix of the store: what may go wrong, when, and what must hold
 * afterwards. tests/unit/test_store_crash.c shows that the store passes all; tests/mutants that
 * each classical mistake is found by one.
 *
 * What must hold after anything: a step that was acknowledged is there to the byte, as step-N, or
 * as .old-N when the job has gone back behind it; nothing else is listed but the step that was
 * being written, whole; a claim then leaves nothing but steps; and looking or claiming again
 * changes nothing.
 */
#ifndef CKPT_TESTS_CRASH_RIGS_H
#define CKPT_TESTS_CRASH_RIGS_H
#include "tests/crash/crash_step.h"

struct crash_rig {
	const char *name;
	bool threads; /* more than one of them */
	bool walks;   /* through the states of a recording: another seed, other states */
	int (*run)(char why[CRASH_WHY]); /* 0 it holds; 1 it does not: why */
};
extern const struct crash_rig crash_rigs[];
extern const uint32_t crash_rigs_n;

/* How many states and runs, and where different states are counted. */
extern struct crash_walks {
	uint32_t nrandom;   /* per moment, times what a rig asks for */
	uint32_t every;	    /* of the states one in so many; 0: all */
	uint32_t every_run; /* of the calls that fail or at which somebody dies, the same */
	bool quiet;
	struct io_crash_set *distinct;
} crash_walks;

void crash_seed_set(uint64_t seed); /* of what is drawn; printed by those who draw */
uint64_t crash_runs(void);	    /* runs and states checked since the start of the program */
#endif
