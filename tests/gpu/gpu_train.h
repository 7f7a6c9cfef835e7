/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_train.h - the training loop that is measured, and A/B blocks of it. A step: kernels that keep
 * the tensor cores and the memory busy (forward, backward); the host reads four bytes of the result
 * and waits for them, as loss.item() does; the guard; Adam in place; the mark. The time of a step
 * is that from one such read to the next. State: p, m, v of n FP32 elements.
 */
#ifndef TESTS_GPU_TRAIN_H
#define TESTS_GPU_TRAIN_H
#include "tests/gpu/gpu_device.h"
#include "tests/gpu/gpu_stat.h"

struct train {
	cuda_stream stream;
	cuda_ptr p, m, v, in, out;
	uint64_t n, words, step;
	uint32_t rounds, kernels; /* of a step; 0 kernels: train_window was not called */
	float *read;		  /* pinned */
	cuda_event read_done, guard_begin, guard_end;
	bool guard_timed; /* the events around the guard were recorded */
	uint64_t last_ns; /* of the last read */
	/* of the last step: what the two calls took of the host, how long the stream waited in the
	 * guard (< 0: not known), and how long the read took */
	double guard_ns, mark_ns, stalled_ns, read_ns;
};
struct train_hooks { /* any may be NULL */
	void (*guard)(void *ctx, struct train *t);
	void (*mark)(void *ctx, struct train *t);
	void (*block)(void *ctx, struct train *t, bool begins); /* of the steps that have hooks */
	void *ctx;
};

/* Memory for so many bytes of state, random. */
void train_make(struct train *t, uint64_t state_bytes, cuda_stream s);
/* How long forward and backward take from now on. */
void train_window(struct train *t, double ns);
/* One step; returns its time, or 0 for the first one. hooks NULL: none. */
double train_step(struct train *t, const struct train_hooks *hooks);

/* Blocks A B B A ..., A without hooks. `each` gets each step of B, if it is not NULL. seconds: for
 * all of it; the blocks are shortened to that, to not less than five steps. */
struct train_pair {
	struct stat_side a, b;
	double ns; /* of the whole comparison */
};
void train_compare(struct train *t, const struct train_hooks *hooks, double seconds,
		   void (*each)(void *ctx, const struct train *t, double ns),
		   struct train_pair *ret);
#endif
