/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_reduce.c - see move_reduce.h. Called by move_copy and move_read behind what is only copied.
 * Invariant: an element's operands are taken in the order of their numbers, and nothing is written
 * to a destination that is not the result of all of them.
 */
#include "ckpt/move/move_reduce.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/move/cast.h"
#include "ckpt/move/move.h"
#include "ckpt/move/reduce.h"
#include "ckpt/plan/window.h"

#define BYTES_FAST (64u << 20)
#define WINDOW_MIN (64u << 10)
#define ALIGN 64

struct buffer {
	uint8_t *p;
	uint64_t bytes;
};

struct reducer {
	const struct plan *p;
	void *const *dst_base;
	reduce_move_fn *move;
	void *arg;
	struct buffer stage, made; /* an operand; accumulators and then results */
	uint64_t *off;		   /* [ncut of the window]: where a cut's are in made */
	uint64_t made_bytes;
	struct ckpt_err *err;
};

static struct reduction reduction_of(const struct plan_sum *s)
{
	return (struct reduction){ .op = s->op, .dtype = s->dtype, .divisor = s->divisor };
}

/* Bytes of an element on its way, besides those of the operand. */
static uint32_t made_bytes(const struct plan_sum *s)
{
	const struct reduction r = reduction_of(s);

	return MAX(s->n > 1 ? reduction_acc_bytes(&r) : 0, dtype_bytes(s->to));
}

static const char *sum_label(const struct plan *p, const struct plan_sum *s, char *buf,
			     size_t bytes)
{
	return table_tensor_print(&p->dst->tensor[s->dst_tensor], buf, bytes);
}

static int sum_check(const struct plan *p, const struct plan_sum *s, struct ckpt_err *err)
{
	const struct reduction r = reduction_of(s);
	char name[160];
	int e = s->n > 1 ? reduction_check(&r, err) : 0;

	if (e < 0)
		return ckpt_error_prefix(err, e, "%s", sum_label(p, s, name, sizeof name));
	if (s->dtype != s->to && !cast_known(s->dtype, s->to))
		return ckpt_error(err, -EOPNOTSUPP, "%s: %s does not become %s",
				  sum_label(p, s, name, sizeof name), dtype_name(s->dtype),
				  dtype_name(s->to));
	return 0;
}

int move_check(const struct plan *p, struct ckpt_err *err)
{
	int e = 0;

	for (uint32_t i = 0; p->reduced && i < p->reduced->nsum && !e; i++)
		e = sum_check(p, &p->reduced->sum[i], err);
	return e;
}

static int bases_check(const struct plan *p, const struct plan_sum *s, void *const *dst_base,
		       struct ckpt_err *err)
{
	for (uint32_t i = 0; i < s->npiece; i++) {
		uint32_t place = p->dst->piece[s->piece[i]].place;

		if (!dst_base[place])
			return ckpt_error(err, -EINVAL, "%s is wanted, but has no memory",
					  p->dst->place[place].name);
	}
	return 0;
}

int reduce_check(const struct plan *p, void *const *dst_base, struct ckpt_err *err)
{
	int e = move_check(p, err);

	for (uint32_t i = 0; p->reduced && i < p->reduced->nsum && !e; i++)
		e = bases_check(p, &p->reduced->sum[i], dst_base, err);
	return e;
}

static int buffer_fit(struct buffer *b, uint64_t bytes)
{
	if (bytes <= b->bytes)
		return 0;
	free(b->p);
	b->bytes = 0;
	b->p = aligned_alloc(4096, align_up(bytes, 4096));
	if (!b->p)
		return -ENOMEM;
	b->bytes = bytes;
	return 0;
}

static int window_begin(struct reducer *r, const struct window *w)
{
	free(r->off);
	r->made_bytes = 0;
	r->off = calloc((size_t)w->ncut + 1, sizeof *r->off);
	if (!r->off)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->ncut; i++) {
		r->off[i] = r->made_bytes;
		r->made_bytes += align_up(
			w->cut[i].set.numel * made_bytes(plan_sum_of(r->p, &w->cut[i])), ALIGN);
	}
	if (buffer_fit(&r->stage, w->bytes) < 0)
		return -ENOMEM;
	return buffer_fit(&r->made, r->made_bytes);
}

/* Operand k of each cut has come. */
static void operand_take(struct reducer *r, const struct window *w, uint32_t k)
{
	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct window_cut *cut = &w->cut[i];
		const struct plan_sum *s = plan_sum_of(r->p, cut);
		const struct reduction red = reduction_of(s);
		uint8_t *x = r->stage.p + cut->buf_off, *made = r->made.p + r->off[i];

		if (s->n == 1 && k == 0)
			cast(s->dtype, x, s->to, made, cut->set.numel);
		else if (k == 0)
			reduction_begin(&red, made, x, cut->set.numel);
		else if (k < s->n)
			reduction_add(&red, made, x, cut->set.numel);
	}
}

/* From accumulators to what the destinations hold; the operands' buffer is free again. */
static void operands_end(struct reducer *r, const struct window *w)
{
	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct window_cut *cut = &w->cut[i];
		const struct plan_sum *s = plan_sum_of(r->p, cut);
		const struct reduction red = reduction_of(s);
		uint8_t *x = r->stage.p + cut->buf_off, *made = r->made.p + r->off[i];

		if (s->n == 1)
			continue;
		if (s->dtype == s->to) {
			reduction_end(&red, made, made, cut->set.numel);
			continue;
		}
		reduction_end(&red, made, x, cut->set.numel);
		cast(s->dtype, x, s->to, made, cut->set.numel);
	}
}

static int window_fetch(struct reducer *r, const struct window *w, uint32_t k)
{
	void *base = r->stage.p;
	struct plan p;
	int e = plan_operand(r->p, w, k, &p, r->err);

	if (e < 0)
		return e;
	for (uint32_t i = 0; i < w->ncut; i++)
		if (plan_sum_of(r->p, &w->cut[i])->zeros)
			memset(r->stage.p + w->cut[i].buf_off, 0, w->cut[i].len);
	e = r->move(r->arg, &p, &base, r->err);
	plan_free(&p);
	return e;
}

static int window_give(struct reducer *r, const struct window *w)
{
	const void *base = r->made.p;
	struct table made;
	struct plan p;
	int e = plan_result(r->p, w, r->off, r->made_bytes, &made, &p, r->err);

	if (e < 0)
		return e;
	e = move_copy(&p, &base, r->dst_base, NULL, NULL);
	plan_free(&p);
	table_free(&made);
	return e;
}

static int window_do(struct reducer *r, const struct window *w)
{
	uint32_t most = 0;
	int e = window_begin(r, w);

	if (e < 0)
		return ckpt_error(r->err, e, "out of memory to reduce %llu bytes",
				  (unsigned long long)w->bytes);
	for (uint32_t i = 0; i < w->ncut; i++)
		most = MAX(most, plan_sum_of(r->p, &w->cut[i])->n);
	for (uint32_t k = 0; k < most && !e; k++) {
		e = window_fetch(r, w, k);
		if (!e)
			operand_take(r, w, k);
	}
	if (e < 0)
		return e;
	operands_end(r, w);
	return window_give(r, w);
}

/* Windows so large that they and what is made of them stay within the bytes. */
static uint64_t window_bytes(const struct plan *p, uint64_t bytes_max)
{
	uint64_t most = 1;

	for (uint32_t i = 0; i < p->reduced->nsum; i++) {
		const struct plan_sum *s = &p->reduced->sum[i];

		most = MAX(most, (uint64_t)div_up(made_bytes(s), dtype_bytes(s->dtype)));
	}
	return MAX((bytes_max ? bytes_max : BYTES_FAST) / (1 + most), (uint64_t)WINDOW_MIN);
}

int reduce_run(const struct plan *p, uint64_t bytes_max, void *const *dst_base,
	       reduce_move_fn *move, void *arg, struct ckpt_err *err)
{
	struct reducer r = { .p = p, .dst_base = dst_base, .move = move, .arg = arg, .err = err };
	struct windows *all;
	struct window w;
	int e = windows_open(&p->reduced->want, window_bytes(p, bytes_max), &all, err);

	while (!e) {
		e = windows_next(all, &w, err);
		if (e <= 0)
			break;
		e = window_do(&r, &w);
		window_free(&w);
	}
	windows_close(all);
	free(r.stage.p);
	free(r.made.p);
	free(r.off);
	return e;
}
