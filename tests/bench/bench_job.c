/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_job.c - declares the measured job and makes its contents. Called by bench_main.c.
 * Invariant: contents depend on nothing but tensor, position and step.
 */
#include "bench_job.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define COLS 1024u
#define PARAM_BYTES 14u			       /* BF16 parameter, FP32 master, two FP32 moments */
#define SMALL_MEDIAN 65536.0		       /* bytes */
#define STEP_EVERY 512u			       /* words: one page */
#define FINITE (~UINT64_C(0x4000000040000000)) /* exponents of two FP32 numbers below 128 */
#define SEAL_WAIT (120 * NS_PER_S)

static const struct kind {
	uint32_t role, dtype, elem_bytes;
	const char *component, *suffix;
} kinds[4] = {
	{ CKPT_PARAM, CKPT_BF16, 2, "model", "" },
	{ CKPT_MASTER, CKPT_F32, 4, "optim", ".master" },
	{ CKPT_MOMENT1, CKPT_F32, 4, "optim", ".exp_avg" },
	{ CKPT_MOMENT2, CKPT_F32, 4, "optim", ".exp_avg_sq" },
};

void die(const char *fmt, ...)
{
	va_list ap;

	fputs("ckptbench: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	_exit(1);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t word_at(const struct job_tensor *t, uint64_t i, uint64_t step)
{
	uint64_t g = t->first + i;

	return mix(t->seed + (g + 1) * UINT64_C(0x9e3779b97f4a7c15) +
		   (g % STEP_EVERY ? 0 : step << 40)) &
	       (t->finite ? FINITE : UINT64_MAX);
}

static uint64_t rows_for(uint64_t bytes)
{
	return MAX(div_up(bytes, (uint64_t)PARAM_BYTES * COLS * JOB_LAYERS), UINT64_C(1));
}

/* Rows of this rank as torch.chunk cuts them. */
static void share(uint64_t rows, uint32_t rank, uint32_t world, uint64_t *ret_first,
		  uint64_t *ret_n)
{
	uint64_t chunk = div_up(rows, world);

	*ret_first = MIN(rank * chunk, rows);
	*ret_n = MIN(chunk, rows - *ret_first);
}

struct placed {
	struct job_rank *r;
	uint64_t at; /* bytes laid out so far */
	uint32_t mesh;
};

static void place(struct placed *p, uint32_t i, uint64_t first, uint64_t rows, uint32_t elem_bytes)
{
	struct job_tensor *t = &p->r->tensor[i];
	uint64_t row_words = COLS * elem_bytes / 8;

	t->seed = mix(i + 1);
	t->first = first * row_words;
	t->words = rows * row_words;
	t->word = p->r->mem && rows ? (uint64_t *)(void *)((char *)p->r->mem + p->at) : NULL;
	p->at += align_up(t->words * 8, 4096);
}

/* Of tensor i: a log-normal size; the sum of twelve even numbers is a normal one, nearly. */
static uint64_t small_words(const struct job_opts *o, uint32_t i)
{
	double mean = (double)o->bytes / o->tensors / SMALL_MEDIAN, z = -6;
	double width = sqrt(2 * log(mean > 1 ? mean : 1));

	for (uint64_t k = 0; k < 12; k++)
		z += (double)(mix(i * 12 + k + 1) >> 11) / (double)(UINT64_C(1) << 53);
	return MAX((uint64_t)(SMALL_MEDIAN * exp(width * z)) / 8, UINT64_C(1));
}

static void small_lay_out(struct placed *p, const struct job_opts *o)
{
	uint64_t all = 0, words = 0;

	for (uint32_t i = 0; i < o->tensors; i++)
		all += small_words(o, i);
	for (uint32_t i = 0; i < o->tensors; i++) {
		struct job_tensor *t = &p->r->tensor[i];

		t->seed = mix(i + 1);
		t->finite = o->finite;
		t->words = small_words(o, i);
		t->frozen = words * 100 < all * o->frozen;
		words += t->words;
		t->word = p->r->mem ? (uint64_t *)(void *)((char *)p->r->mem + p->at) : NULL;
		p->at += align_up(t->words * 8, 64);
	}
}

static void small_declare(struct placed *p, uint32_t i)
{
	struct ckpt_local local = { .ptr = p->r->tensor[i].word };
	uint64_t shape = p->r->tensor[i].words * 2;
	struct ckpt_err e = { 0 };
	char name[64];
	uint32_t id;

	snprintf(name, sizeof name, "experts.%u.weight", i);
	struct ckpt_tensor t = {
		.size = sizeof t,
		.cls = p->r->tensor[i].frozen ? CKPT_CONST : CKPT_STABLE,
		.role = CKPT_PARAM,
		.dtype = CKPT_F32,
		.component = "model",
		.name = name,
		.ndim = 1,
		.mesh = p->mesh,
		.nlocal = 1,
		.shape = &shape,
		.local = &local,
	};
	if (ckpt_tensor_add(p->r->c, &t, &id, &e) < 0)
		die("%s", e.msg);
}

/* Tensor 8l+k is kind k of layer l's weight, 8l+4+k of its bias. */
static void lay_out(struct placed *p, const struct job_opts *o, uint32_t rank)
{
	uint64_t first, rows;

	p->at = 0;
	if (o->tensors) {
		small_lay_out(p, o);
		return;
	}
	share(rows_for(o->bytes), o->replicated ? 0 : rank, o->replicated ? 1 : o->world, &first,
	      &rows);
	for (uint32_t i = 0; i < JOB_LARGE; i++) {
		bool bias = i % 8 >= 4;

		p->r->tensor[i].finite = o->finite && kinds[i % 4].role == CKPT_MASTER;
		place(p, i, bias ? 0 : first, bias ? 1 : rows, kinds[i % 4].elem_bytes);
	}
}

static void declare(struct placed *p, const struct job_opts *o, uint32_t i)
{
	const struct kind *k = &kinds[i % 4];
	bool bias = i % 8 >= 4;
	struct ckpt_placement shard = { .how = CKPT_SHARD, .split_factor = 1 };
	struct ckpt_local local = { .ptr = p->r->tensor[i].word };
	uint64_t shape[2] = { rows_for(o->bytes), COLS };
	struct ckpt_err e = { 0 };
	char name[64], of[48];
	uint32_t id;

	snprintf(of, sizeof of, "model/layers.%u.%s", i / 8, bias ? "bias" : "weight");
	snprintf(name, sizeof name, "%s%s", of + strlen("model/"), k->suffix);
	struct ckpt_tensor t = {
		.size = sizeof t,
		.role = k->role,
		.dtype = k->dtype,
		.component = k->component,
		.name = name,
		.of = k->role == CKPT_PARAM ? NULL : of,
		.ndim = bias ? 1 : 2,
		.mesh = p->mesh,
		.nplace = !bias && !o->replicated,
		.nlocal = p->r->tensor[i].words > 0,
		.shape = bias ? shape + 1 : shape,
		.place = &shard,
		.local = &local,
	};
	if (ckpt_tensor_add(p->r->c, &t, &id, &e) < 0)
		die("%s", e.msg);
}

void job_averages(ckpt *c, uint32_t n)
{
	struct ckpt_err e = { 0 };
	char name[16];

	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof name, "a%u", i);
		if (ckpt_average(c, name, i % 2 ? "power sigma_rel=.10" : "constant decay=.999",
				 &e) < 0)
			die("%s", e.msg);
	}
}

void job_open(const struct job_opts *o, uint32_t rank, struct job_rank *ret)
{
	static const char *const name[] = { "fsdp" };
	struct ckpt_err e = { 0 };
	struct ckpt_opts opts = {
		.size = sizeof opts,
		.flags = CKPT_REQUIRE,
		.job = o->name,
		.store = o->store,
		.socket = o->socket,
		.rank = rank,
		.world = o->world,
	};
	struct placed p = { .r = ret };

	if (o->tensors > JOB_TENSORS_MAX || (o->tensors && o->world != 1))
		die("at most %u tensors, on one rank", JOB_TENSORS_MAX);
	*ret = (struct job_rank){ .ntensor = o->tensors ? o->tensors : JOB_LARGE };
	ret->tensor = calloc(ret->ntensor, sizeof *ret->tensor);
	if (!ret->tensor)
		die("no memory for %u tensors", ret->ntensor);
	ret->private = o->private;
	if (ckpt_attach(&opts, &ret->c, &e) < 0 || (!o->resume && ckpt_fresh(ret->c) < 0) ||
	    ckpt_mesh(ret->c, 1, name, &o->world, NULL, &p.mesh, &e) < 0)
		die("%s", e.msg);
	lay_out(&p, o, rank);
	ret->bytes = p.at;
	if (o->private)
		ret->mem = pages_new(ret->bytes);
	else if (ckpt_alloc(ret->c, ret->bytes, &ret->mem, &e) < 0)
		die("%s", e.msg);
	if (!ret->mem)
		die("no memory for %" PRIu64 " bytes", ret->bytes);
	if (!o->resume)
		memset(ret->mem, 0x5a, ret->bytes);
	lay_out(&p, o, rank);
	for (uint32_t i = 0; i < ret->ntensor; i++)
		o->tensors ? small_declare(&p, i) : declare(&p, o, i);
	job_averages(ret->c, o->averages);
}

void job_seal(struct job_rank *r)
{
	struct ckpt_err e = { 0 };
	int rc = ckpt_seal(r->c, SEAL_WAIT, &e);

	if (rc)
		die("seal: %s", rc < 0 ? e.msg : "the slots are not in memory after 120 s");
}

void job_fill(struct job_rank *r, uint64_t step)
{
	for (uint32_t i = 0; i < r->ntensor; i++) {
		struct job_tensor *t = &r->tensor[i];

		for (uint64_t w = 0; t->word && w < t->words; w++)
			t->word[w] = word_at(t, w, step);
	}
}

void job_update(struct job_rank *r, uint64_t step)
{
	for (uint32_t i = 0; i < r->ntensor; i++) {
		struct job_tensor *t = &r->tensor[i];
		uint64_t w = (STEP_EVERY - t->first % STEP_EVERY) % STEP_EVERY;

		for (; t->word && !t->frozen && w < t->words; w += STEP_EVERY)
			t->word[w] = word_at(t, w, step);
	}
}

void job_check(const struct job_rank *r, uint64_t step)
{
	for (uint32_t i = 0; i < r->ntensor; i++) {
		const struct job_tensor *t = &r->tensor[i];

		for (uint64_t w = 0; t->word && w < t->words; w++)
			if (t->word[w] != word_at(t, w, t->frozen ? 0 : step))
				die("tensor %u: 8 bytes at %" PRIu64
				    " are not those of step %" PRIu64,
				    i, (t->first + w) * 8, step);
	}
}

void job_check_update(const struct job_rank *r, uint64_t step)
{
	for (uint32_t i = 0; i < r->ntensor; i++) {
		const struct job_tensor *t = &r->tensor[i];
		uint64_t w = (STEP_EVERY - t->first % STEP_EVERY) % STEP_EVERY;

		for (; t->word && w < t->words; w += STEP_EVERY)
			if (t->word[w] != word_at(t, w, step))
				die("tensor %u: 8 bytes at %" PRIu64
				    " are not those of step %" PRIu64,
				    i, (t->first + w) * 8, step);
	}
}

void job_close(struct job_rank *r)
{
	ckpt_detach(r->c, 0);
	if (r->private)
		pages_free(r->mem, r->bytes);
	free(r->tensor);
}
