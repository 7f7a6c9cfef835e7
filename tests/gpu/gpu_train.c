// SPDX-License-Identifier: Apache-2.0
// gpu_train.c - see gpu_train.h. Called by the experiments.
#include "tests/gpu/gpu_train.h"
#include "ckpt/base/util.h"
#include "tests/gpu/gpubench.h"

#define SEED 7u
#define WORK_WORDS ((uint64_t)1 << 22) /* of 16 bytes: larger than any cache of a device */
#define KERNEL_NS 1.4e6		       /* that of 8192 x 8192 x 8192 in BF16 */
#define WARM_STEPS 2u		       /* of a block, not counted */
#define STEPS_MIN 5u

void train_make(struct train *t, uint64_t state_bytes, cuda_stream s)
{
	uint64_t words = gpu.fake ? 4096 : WORK_WORDS;
	void *p;

	*t = (struct train){ .stream = s, .n = state_bytes / 12, .words = words };
	t->p = gpu_alloc(t->n * 4);
	t->m = gpu_alloc(t->n * 4);
	t->v = gpu_alloc(t->n * 4);
	t->in = gpu_alloc(words * 16);
	t->out = gpu_alloc(64);
	GPU(gpu.cu->host_alloc(&p, 4096, CUDA_REGISTER_PORTABLE));
	t->read = p;
	t->read_done = gpu_event(false);
	t->guard_begin = gpu_event(true);
	t->guard_end = gpu_event(true);
	gpu_random(t->p, t->n, SEED, false, s);
	gpu_random(t->m, t->n, SEED + 1, false, s);
	gpu_random(t->v, t->n, SEED + 2, true, s);
	gpu_fill(t->in, words * 2, SEED + 3, 0, s);
	gpu_fill(t->out, 8, SEED + 4, 0, s);
	GPU(gpu.cu->stream_sync(s));
}

static double work_ns(struct train *t, uint32_t rounds)
{
	uint64_t begin = now_ns();

	for (int i = 0; i < 5; i++)
		gpu_work(t->in, t->words, t->out, rounds, t->stream);
	GPU(gpu.cu->stream_sync(t->stream));
	return (double)(now_ns() - begin) / 5;
}

void train_window(struct train *t, double ns)
{
	uint32_t rounds = 64;
	double took;

	(void)work_ns(t, rounds); /* clocks go up */
	while ((took = work_ns(t, rounds)) < KERNEL_NS / 2 && rounds < (1u << 24))
		rounds *= 2;
	t->kernels = (uint32_t)MAX(ns / KERNEL_NS, 1.);
	t->rounds = (uint32_t)MAX((double)rounds * (ns / t->kernels) / took, 1.);
}

static void forward_backward(struct train *t)
{
	for (uint32_t i = 0; i < t->kernels; i++)
		gpu_work(t->in, t->words, t->out, t->rounds, t->stream);
}

static void loss_read(struct train *t)
{
	GPU(gpu.cu->copy_out(t->read, t->out, 4, t->stream));
	GPU(gpu.cu->event_record(t->read_done, t->stream));
	gpu_wait(t->read_done);
}

double train_step(struct train *t, const struct train_hooks *hooks)
{
	uint64_t now, begin, before = t->last_ns;

	forward_backward(t);
	begin = now_ns();
	loss_read(t);
	now = now_ns();
	t->read_ns = (double)(now - begin);
	t->last_ns = now;
	t->stalled_ns = t->guard_timed ? gpu_elapsed_ns(t->guard_begin, t->guard_end) : -1;
	t->guard_timed = hooks && hooks->guard;
	if (t->guard_timed) {
		GPU(gpu.cu->event_record(t->guard_begin, t->stream));
		begin = now_ns();
		hooks->guard(hooks->ctx, t);
		t->guard_ns = (double)(now_ns() - begin);
		GPU(gpu.cu->event_record(t->guard_end, t->stream));
	}
	t->step++;
	gpu_adam(t->p, t->m, t->v, t->n, SEED, t->step, t->stream);
	if (hooks && hooks->mark) {
		begin = now_ns();
		hooks->mark(hooks->ctx, t);
		t->mark_ns = (double)(now_ns() - begin);
	}
	return before ? (double)(now - before) : 0;
}

static void block(struct train *t, const struct train_hooks *hooks, uint32_t steps,
		  struct stat_side *side, void (*each)(void *, const struct train *, double))
{
	stat_block(side);
	if (hooks && hooks->block)
		hooks->block(hooks->ctx, t, true);
	t->guard_timed = false;
	for (uint32_t i = 0; i < steps + WARM_STEPS; i++) {
		double ns = train_step(t, hooks);

		if (i < WARM_STEPS)
			continue;
		stat_add(side, ns);
		if (hooks && each)
			each(hooks->ctx, t, ns);
	}
	if (hooks && hooks->block)
		hooks->block(hooks->ctx, t, false);
	GPU(gpu.cu->stream_sync(t->stream));
}

void train_compare(struct train *t, const struct train_hooks *hooks, double seconds,
		   void (*each)(void *ctx, const struct train *t, double ns),
		   struct train_pair *ret)
{
	uint64_t begin;
	double step_ns;
	uint32_t steps;

	for (uint32_t i = 0; i < 3; i++)
		(void)train_step(t, NULL);
	begin = t->last_ns;
	for (uint32_t i = 0; i < 3; i++)
		(void)train_step(t, NULL);
	step_ns = (double)(t->last_ns - begin) / 3;
	steps = (uint32_t)MIN(seconds * 1e9 / step_ns / (2. * bench.blocks), (double)bench.steps);
	steps = MAX(steps, STEPS_MIN);
	*ret = (struct train_pair){ 0 };
	begin = now_ns();
	for (uint32_t i = 0; i < 2 * bench.blocks; i++)
		if (i % 4 == 1 || i % 4 == 2)
			block(t, hooks, steps, &ret->b, each);
		else
			block(t, NULL, steps, &ret->a, NULL);
	ret->ns = (double)(now_ns() - begin);
}
