/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_impl.h - what the parts of the crash matrix share: what a run knows (a story), how it is
 * judged, lives that are recorded, scenes. crash_rigs.c, crash_power.c, crash_scenes.c and the
 * tests that play scenes themselves.
 */
#ifndef CKPT_TESTS_CRASH_IMPL_H
#define CKPT_TESTS_CRASH_IMPL_H
#include "tests/crash/crash_rigs.h"
#include "ckpt/store/points.h"
#include "ckpt/store/repair.h"
#include "ckpt/store/rewind.h"

extern uint64_t crash_seed, crash_nrun;

/* Writes the sentence. Returns 1. */
__attribute__((format(printf, 2, 3))) int rig_fail(char why[CRASH_WHY], const char *fmt, ...);
#define FAIL(...) rig_fail(why, __VA_ARGS__)

/* --- what a run knows --- */

#define STORY_MAX 6

enum said { SAID_NO, SAID_MAYBE, SAID_YES };

/* What the job has done so far, and what it was doing. */
struct story {
	struct crash_step step[STORY_MAX];
	bool acked[STORY_MAX];
	bool failed[STORY_MAX]; /* and was begun again: it may be anywhere, or nowhere */
	enum said gone[STORY_MAX], repaired[STORY_MAX]; /* of the scenes */
	enum said labelled[STORY_MAX][3];		/* hold, tag, bad */
	uint32_t n;
	uint64_t rewind;     /* of the step being written */
	uint64_t generation; /* the highest acknowledged */
};

struct judgement {
	bool listed[STORY_MAX], aside[STORY_MAX];
};

void story_free(struct story *y);
/* The steps that are there before anything goes wrong: 10, or 10, 20, 30. */
int story_base(int root_fd, struct story *y, uint32_t n, char why[CRASH_WHY]);
/* A launch that writes one step: 20 after 10, or 15 after 10 where 20 and 30 exist. */
int story_save(const struct io_ops *ops, int root_fd, struct story *y, bool back,
	       struct ckpt_err *err);
/* Every entry is one of the story's steps, in the right order; *ret says which are where. */
int story_look(const struct store *s, const struct story *y, struct judgement *ret,
	       char why[CRASH_WHY]);
/* A restart: a reader, then a new launch, then the same again. torn: a crash or a fault that lasts
 * may have come between setting aside and committing. */
int story_restart(const struct io_ops *ops, int root_fd, const struct story *y, bool torn,
		  char why[CRASH_WHY]);
const struct store_step *scan_find(const struct store_step *st, uint32_t n, enum store_state state,
				   uint64_t step, uint64_t seq);
/* Of a listing: is this entry something that a claim should have swept? */
int crash_leftover(void *arg, const char *name, unsigned char d_type);

/* --- lives that are recorded, and what the power leaves of them --- */

#define PROMISES_MAX 24

struct power {
	struct story y;			    /* at the end */
	struct story promise[PROMISES_MAX]; /* the files are those of y */
	uint32_t npromise;
	bool done; /* a scene that was played to its end */
	char *why;
};

/* Steps and what each continues. */
struct power_life {
	uint32_t nbase; /* of the steps 10, 20, 30 are there before anything goes wrong */
	uint32_t n;
	uint64_t step[3][2];
	uint32_t nrandom, ntear;
};

/* While a run is recorded, fresh names and the time of day are the same in every recording, so that
 * equal states of two recordings are one. */
void crash_names_fixed(bool fixed);
void power_promise(struct io_faults *f, struct power *w);
/* One launch. A step that fails is begun once more, from the first byte. */
void power_live(struct io_faults *f, int root_fd, const struct power_life *l, struct power *w);
int power_walk_with(struct io_faults *f, struct io_crash_opts o,
		    int (*each)(void *arg, int dirfd, const struct io_crash *at), void *arg,
		    char why[CRASH_WHY]);
int rig_power(char why[CRASH_WHY]);
int rig_power_sync_failed(char why[CRASH_WHY]);
int rig_power_seen(char why[CRASH_WHY]);

/* --- scenes --- */

struct scene {
	const char *name;
	int (*base)(int root_fd, struct power *w);
	void (*live)(struct io_faults *f, int root_fd, struct power *w);
	int (*check)(const struct io_ops *ops, int dirfd, const struct story *y, char *why);
	uint32_t nrandom;
	bool saves;   /* it allocates and dies in the saving of a step: see crash_step.c */
	bool faulted; /* it brings a fault of its own, and would lose it to others */
};
extern const struct scene scenes[];
extern const uint32_t scenes_n;
int rig_points(char why[CRASH_WHY]);
int rig_power_scenes(char why[CRASH_WHY]);
#endif
