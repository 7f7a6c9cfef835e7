/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_args.h - what the user asked the trainer for. The long options of the first block of the
 * usage text are a fixed interface that users' scripts rely on; those of the second may change.
 *
 * Invariant: a struct train_args that train_args_parse accepted is complete and in range; nothing
 * after it checks an option again.
 */
#ifndef TRAINER_ARGS_H
#define TRAINER_ARGS_H
#include "gpu.h"

#include <stdbool.h>
#include <stdint.h>

#define MESH_DIMS_MAX 2
#define AVERAGES_MAX 8

/* SHARDS: rows of each tensor. BOXES: all tensors are one row of elements, as ZeRO has them, and
 * each rank of fsdp has an equal stretch of it. */
enum state_layout { LAYOUT_SHARDS, LAYOUT_BOXES };
/* Where the state lies: memory of ckpt_alloc, the trainer's own, or every second tensor there. */
enum state_memory { MEMORY_ALLOC, MEMORY_OWN, MEMORY_MIXED };
#define AHEAD_MAX 16

/* The mistakes that a trainer on a GPU can make; the tests see what comes of them. */
enum mistake {
	MISTAKE_NONE,
	MISTAKE_NO_GUARD,   /* ckpt_guard is not called */
	MISTAKE_LATE_GUARD, /* ckpt_guard is called behind the optimizer's kernels */
	MISTAKE_STREAM,	    /* the mark names another stream than that of the kernels */
};
enum resume { RESUME_NONE, RESUME_LATEST, RESUME_MEMORY, RESUME_DISK, RESUME_STEP };

struct train_args {
	const char *mesh; /* as written */
	uint32_t ndim;
	const char *dim_name[MESH_DIMS_MAX]; /* "dp" replicates, "fsdp" shards dimension 0 */
	uint32_t dim_size[MESH_DIMS_MAX];
	uint32_t world;

	uint64_t steps; /* the last step, not a count */
	uint64_t params, seed, snapshot_every;
	uint32_t persist_every;		 /* in snapshots */
	uint64_t restart_wait_ns;	 /* 0: the library's */
	const char *root, *job, *socket; /* socket NULL: the library's default */
	enum resume resume;
	uint64_t resume_step; /* RESUME_STEP */
	bool no_checkpoint;
	const char *losses; /* NULL: none */

	const char *text;
	enum state_layout layout;
	enum state_memory memory;
	/* The devices that the state lies on, from parameter to parameter, beginning with another
	 * one on each rank; ngpu 0: host memory. With MEMORY_MIXED every second parameter lies in
	 * host memory, too. */
	uint32_t gpu[GPUS_MAX], ngpu;
	bool fake_gpu, legacy_stream;
	bool nccl;	 /* restores go over NCCL */
	uint32_t attach; /* further ckpt_opts.flags */
	enum mistake mistake;
	uint32_t ahead;	    /* steps that the host may be ahead of its devices */
	uint64_t copy_rate; /* as ckpt_opts has it */
	bool counters;	    /* what forward counts is declared as CKPT_VOLATILE */
	bool derived;	    /* the BF16 parameters are declared as CKPT_DERIVED of their masters */
	uint64_t go_back_every;		/* in steps; 0: never */
	bool go_back_older;		/* not always to the newest one */
	uint64_t move_every;		/* in steps; 0: the state stays where it is */
	uint64_t nan_every, thaw_every; /* struct events */
	bool wrong;			/* a bit of each of the last steps */
	uint64_t step_ms;		/* a step takes at least so long */
	uint32_t guard;			/* enum ckpt_policy */
	bool wait_ready;
	uint32_t frozen;	 /* percent of the state that never changes */
	const char *print_stats; /* NULL: none */

	/* of the weights: name and spec, as ckpt_average takes them */
	struct {
		const char *name, *spec;
	} average[AVERAGES_MAX];
	uint32_t naverage;
	const char *masters;  /* NULL: none */
	const char *evaluate; /* NULL: train */
};

/* 0; 1 after --help was printed; or -EINVAL after a message about the first bad option was
 * printed. */
int train_args_parse(int argc, char **argv, struct train_args *ret_args);

/* Index of the mesh dimension with this name, or -1. */
int train_args_dim(const struct train_args *a, const char *name);
#endif
