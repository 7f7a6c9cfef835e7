/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.h - one step for all ranks of a launch, between the files that give it back:
 *
 *	restore.c  rounds and choosing: which step, whose answer
 *	fill.c     filling: tables, plan, checks, what goes straight into segments, blobs; in workers
 *	land.c     what goes through windows, into the processes' own memory
 *	steps.c    ckpt_steps
 *
 * A struct restore is the owner's, but for the time in which a task of it runs: then it is that
 * task's. Window tasks, of which several run at once, only read it.
 */
#ifndef DAEMON_RESTORE_H
#define DAEMON_RESTORE_H
#include "ckpt/engine/mend.h"
#include "daemon/average_reading.h"
#include "daemon/passes.h"
#include "daemon/state.h"

/* how long to wait for the other ranks when the caller does not say */
#define RESTORE_NS (60 * NS_PER_S)

/* Where the bytes come from, and where they go: made by the first task. */
struct filling {
	struct store *store;
	int step_fd;
	struct mended mended;
	const struct checkpoint *disk; /* NULL: from memory */
	bool lacks_const; /* it was opened, and has no const tensors: nothing can be mended */
	struct move_files files;
	bool files_open;
	struct table memory; /* of the staged slots */
	void **slot;	     /* [nsrc] their bytes */
	const struct table *src;
};

struct restore {
	struct task task;
	struct launch *l; /* reference */
	struct daemon *d;
	struct wire_restore want;
	uint32_t round;
	/* choosing */
	struct store *store;
	bool mem_known;
	uint64_t mem_step, mem_generation;
	uint64_t mem_back; /* as snap.back, of that step */
	bool seq_unknown;  /* how far its numbers go on disk */
	struct bad *bad;   /* [nbad] */
	uint32_t nbad;
	struct pin pin;
	int pin_fd;		/* of the step's directory: it is not removed meanwhile; -1: none */
	struct retreat retreat; /* the launch's, while it is chosen or moved */
	/* moving */
	uint32_t nsrc, ndst;
	struct snap_rank *src;	    /* [nsrc] references: the staged slots */
	struct slot_sums **sums;    /* [nsrc] references; NULL: that slot was not summed */
	struct decl **dst;	    /* [ndst] references */
	struct wire_restore *asked; /* [ndst] what differs by rank is what each has got already */
	struct filling f;
	struct landing_source **landing; /* [ndst] NULL: the rank has no memory of its own */
	uint32_t nlanding, tasks;	 /* tasks: of windows, that run */
	uint64_t landing_bytes;		 /* that go through them */
	struct wire_restored got;
	int blob_fd;
	bool averaged; /* the step in memory: its slots have its averages */
	/* Averages of the step in memory, or of one before it; NULL: none, or it is on disk */
	struct average_held *held;
	/* What the launch's averages go on from. taken: they do, from this step, or begin anew */
	struct average_base *base;
	bool base_taken;
	char averages[4096];  /* average_reading_say, and those that are not declared any more */
	bool gone;	      /* the chosen step is not damaged, but was removed */
	bool lacks;	      /* CKPT_PEEK: it is good, and has not all that is asked for */
	bool damaged;	      /* files of a step on disk, and so for the next reader too */
	struct listed listed; /* what did not match */
	bool overwritten;     /* LENIENT would leave alone what a damaged step was written into */
	char labelled[256];   /* what became of the label that says so */
	int rc;
	struct ckpt_err err;
};

/* A step that does not read: is it its own fault, so that an older one is to be tried? */
static inline bool is_damage(int rc)
{
	return rc == -EBADMSG || rc == -EPROTO || rc == -EUCLEAN || rc == -EIO || rc == -ENODATA;
}

/* Damage was found. Is the same step to be tried again, with its const tensors from others? */
static inline bool mends_next(const struct restore *x)
{
	return x->pin.where == 2 && !x->retreat.mend && !x->f.lacks_const;
}

/* --- filling --- */
/* Check all, then write what lies in segments, and make what the windows need. Worker. */
void fill_run(struct task *t);
/* Bytes of this plan, from the step to [dst place]. damaged: set where files are wrong. Any
 * thread. */
int fill_move(const struct restore *x, const struct plan *p, void *const *base, bool *damaged,
	      struct ckpt_err *err);
/* The files of the step are damaged: a label records it for later readers, unless the step is to be
 * mended. Worker. */
void fill_damaged(struct restore *x, const char *why);
void fill_end(struct restore *x);
/* A trainer that gets -ENOENT starts at step 0. So if a step was found and was set aside or
 * removed since, this makes another error of it. */
void fill_gone(struct restore *x);
bool fill_asks(const struct restore *x, const struct table_tensor *t);

/* --- landing --- */
/* What rank r wants in its own memory. NULL: nothing. Worker. */
int landing_make(struct restore *x, uint32_t r, struct landing_source **ret, struct ckpt_err *err);
void landing_source_free(struct landing_source *s);
/* Fill windows that are free, send what is filled. True: all of it has landed, or it has failed
 * (x->rc) and no task runs any more: then x is the caller's again. Owner. */
bool landing_go(struct restore *x);
/* A library that has not answered for too long fails it. */
void landing_late(struct restore *x, uint64_t now);
/* A window task has ended: as landing_go, then restore_landed. */
void restore_landed(struct restore *x);
#endif
