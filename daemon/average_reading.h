/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_reading.h - reads a struct average_base (average.h): the averages of a step in memory or
 * on disk, or what a seed has, onto the places that the ranks declare now. Called by fill.c, in the
 * same fill that restores the weights, and by average_base.c. All of it runs in workers, but where
 * `Owner` stands.
 */
#ifndef DAEMON_AVERAGE_READING_H
#define DAEMON_AVERAGE_READING_H
#include "ckpt/plan/reshard.h"
#include "daemon/average.h"

/* With no row yet, and no memory. dst: the declarations of all ranks. NULL: no memory. */
struct average_base *average_base_new(struct decl *const *dst, uint32_t world);
/* Memory for all values, zero where it is new. -ENOMEM: the host does not have so much. */
int average_base_memory(struct average_base *b, struct reaper *reaper, struct ckpt_err *err);
uint64_t average_base_bytes(const struct average_base *b); /* of that; b may be NULL */

/* Where the averages of one step are. Rows are by (name, rule). */
struct average_origin {
	const struct table *table; /* sealed; the MADE tensors with their pieces among others */
	uint32_t nrow;
	const struct table_average *row;       /* [nrow] the states behind the step */
	uint32_t left_out[TABLE_AVERAGES_MAX]; /* [nrow] as average_result */
	uint64_t step, marked;		       /* marked: as snap.marked */
	bool memory;			       /* for messages */
	bool some; /* parts were not opened: elements that are not found may be in them */
};
/* Of a step on disk: its rows, and what its attributes say of them. */
struct average_origin average_origin_of(const struct checkpoint *k);
/* Averages in memory, those of a snap's slots or of a base: references to all that they need. */
struct average_held {
	uint32_t n, nrow, left_out[TABLE_AVERAGES_MAX];
	uint64_t step, marked;
	struct average_held_rank {
		struct decl *decl; /* decl_slot_ref */
		struct slotmem *mem;
		uint64_t at;		/* of the averages' raw space in mem */
		struct slot_sums *sums; /* of mem; NULL: it was not summed */
	} * rank;			/* [n] */
	struct table_average *row;	/* [nrow] names and texts are the declarations' */
	void **base;			/* [n] by place of table */
	struct table table;
};
struct average_held *average_held_of(const struct snap *s); /* averaged. Owner. NULL: no memory */
/* Of the step itself if it is averaged, else of the newest one before it in its launch that is.
 * *ret NULL: there is none in memory. -ENOMEM. Owner. */
int average_held_newest(const struct snap *s, struct average_held **ret);
struct average_held *
average_held_of_base(const struct average_base *b); /* Owner. NULL: no memory */
void average_held_free(struct average_held *h);	    /* NULL is fine */
/* Worker. *ret points into h. */
int average_held_open(struct average_held *h, struct average_origin *ret, struct ckpt_err *err);

/* Carries the plan out: base[r] is the memory of rank r. */
typedef int average_move_fn(void *arg, const struct plan *p, void *const *base,
			    struct ckpt_err *err);
int average_held_move(void *held, const struct plan *p, void *const *base, struct ckpt_err *err);
/* files: a struct move_files. */
int average_files_move(void *files, const struct plan *p, void *const *base, struct ckpt_err *err);

/*
 * Which averages of dst, the declarations of all ranks, go on from the source. Nothing is written
 * and no memory for values is taken yet. If anything of an average is missing there, all of
 * that average begins anew, and no other one. -EMEDIUMTYPE: from->some, and elements are missing:
 * open all parts.
 */
struct average_reading;
int average_reading_plan(struct decl *const *dst, uint32_t world, const struct average_origin *from,
			 struct average_reading **ret, struct ckpt_err *err);
/* Moves them into memory of their own, checked. -ENOMEM; -EBADMSG and others: damage. */
int average_reading_move(struct average_reading *x, struct reaper *reaper, average_move_fn *move,
			 void *arg, struct ckpt_err *err);
/* After that: a reference; NULL: every average begins anew. */
struct average_base *average_reading_base(const struct average_reading *x);
/* Of each average from what it goes on, or why it begins anew: a line each. */
void average_reading_say(const struct average_reading *x, char *ret, size_t bytes);
void average_reading_free(struct average_reading *x); /* NULL is fine */
/* Adds to needed[k->world] the ranks whose parts have what this table of one rank wants. *ret_all:
 * layouts do not say it. */
int parts_choose(const struct checkpoint *k, const struct table *want, uint32_t rank,
		 const struct reshard_opts *opts, bool *needed, bool *ret_all,
		 struct ckpt_err *err);
/* As format_choose_fn: the ranks whose parts have what the declarations average, as far as layouts
 * say it; others stay as they are. */
int average_parts_choose(struct decl *const *dst, uint32_t world, const struct checkpoint *k,
			 bool *needed, struct ckpt_err *err);

/* --- seeds --- */
/* A directory that a rank has opened for `seed=` of one average. */
struct average_seed {
	uint32_t epoch, spec;	    /* spec: of averages.spec */
	int fd, error;		    /* fd -1: no rank could open it: errno */
	char path[WIRE_PATH_BYTES]; /* for messages */
	struct average_seed *next;
};
void average_seeds_free(struct average_seed *s); /* all that follow, too; NULL is fine */
/*
 * The rows of that average which have nothing to go on from begin with the seed's average of the
 * same name, or else with its weights, and go on at `step`. move false: only look whether that
 * could be done; b needs no memory then. The error is a sentence for the user.
 */
int average_seed_read(const struct daemon *d, const struct average_seed *s, struct average_base *b,
		      uint64_t step, bool move, struct ckpt_err *err);
#endif
