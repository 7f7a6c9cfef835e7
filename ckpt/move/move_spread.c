/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move_spread.c - memory to memory by several threads: a restore from a staged step. Invariants:
 * each byte of a source that is wanted is read once, however many destinations it has, but for what
 * is made of operands; where it has a sum, the sum is compared before a byte of that MiB reaches
 * any destination.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include "ckpt/move/move.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/row_copy.h"
#include "ckpt/plan/plan_reduce.h"
#include <sched.h>
#include <stdatomic.h>

#define STRETCH (4u << 20)	/* that a thread takes at a time */
#define SUM_LOG2 20u		/* of what has one sum */
#define ALONE_BYTES (16u << 20) /* so few are copied before another thread has begun */
#define THREADS_MAX 16u

struct stretch_of {
	uint32_t place;
	uint64_t lo, hi;
};

struct spread {
	const struct plan *p;
	const struct plan_op *op; /* [nop] of the plan, or what it reduces */
	uint64_t nop;
	bool looks; /* the sums are compared, and nothing is copied */
	const struct move_spread *x;
	const void *const *src_base;
	void *const *dst_base;
	uint64_t *op_first; /* [nplace + 1] */
	uint64_t *hi_max; /* [nop] the highest src_hi of this and all ops before it in its place */
	struct stretch_of *stretch;
	uint64_t n, cap;
	_Atomic uint64_t next, moved;
	_Atomic int failed;
	struct stretch_of wrong; /* of the first that failed */
};

static uint32_t processor_count(void)
{
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : CPU_COUNT(&cpus);

	return n < 1 ? 1 : MIN((uint32_t)n, THREADS_MAX);
}

static int stretches_add(struct spread *s, uint32_t place, uint64_t lo, uint64_t hi)
{
	for (lo = lo >> SUM_LOG2 << SUM_LOG2; lo < hi; lo += STRETCH) {
		if (!ARRAY_GROW(s->stretch, s->n, s->cap))
			return -ENOMEM;
		s->stretch[s->n++] = (struct stretch_of){ place, lo, MIN(lo + STRETCH, hi) };
	}
	return 0;
}

/* Operations of one place come by src_lo: what no operation touches is in no stretch, but for what
 * lies in one MiB with something that is. */
static int place_cut(struct spread *s, uint32_t place)
{
	uint64_t lo = 0, hi = 0;
	int e = 0;

	for (uint64_t i = s->op_first[place]; i < s->op_first[place + 1] && !e; i++) {
		const struct plan_op *op = &s->op[i];

		s->hi_max[i] = MAX(op->src_hi, i > s->op_first[place] ? s->hi_max[i - 1] : 0);
		if (op->src_lo >> SUM_LOG2 > (hi ? (hi - 1) >> SUM_LOG2 : 0) && hi) {
			e = stretches_add(s, place, lo, hi);
			hi = 0;
		}
		if (!hi)
			lo = op->src_lo;
		hi = MAX(hi, op->src_hi);
	}
	return e || !hi ? e : stretches_add(s, place, lo, hi);
}

static int spread_cut(struct spread *s)
{
	uint32_t nplace = s->p->src->nplace;
	uint64_t at = 0;
	int e = 0;

	s->op_first = calloc((size_t)nplace + 1, sizeof *s->op_first);
	s->hi_max = calloc(s->nop + 1, sizeof *s->hi_max);
	if (!s->op_first || !s->hi_max)
		return -ENOMEM;
	for (uint32_t i = 0; i < nplace && !e; i++) {
		s->op_first[i] = at;
		while (at < s->nop && s->op[at].src_place == i)
			at++;
		s->op_first[i + 1] = at;
		e = place_cut(s, i);
	}
	return e;
}

/* Rows whose source bytes lie in [lo, hi) of the place. */
static uint64_t rows_scatter(const struct spread *s, uint32_t place, uint64_t lo, uint64_t hi)
{
	const uint8_t *src = (const uint8_t *)s->src_base[place] + lo;
	uint64_t from = s->op_first[place], to = s->op_first[place + 1], end = to, moved = 0;

	while (from < to) {
		uint64_t mid = from + (to - from) / 2;

		if (s->hi_max[mid] <= lo)
			from = mid + 1;
		else
			to = mid;
	}
	for (uint64_t i = from; i < end && s->op[i].src_lo < hi; i++) {
		const struct plan_op *op = &s->op[i];
		bool ascend = plan_rows_ascend(s->p, op);
		struct plan_cursor c;
		struct plan_row r;

		if (op->src_hi <= lo)
			continue;
		plan_rows_from(s->p, op, lo, &c);
		while (plan_row_next(&c, &r) && !(ascend && r.src_off >= hi))
			moved += row_copy_window(&r, src, lo, hi, s->dst_base[op->dst_place]);
	}
	return moved;
}

/* With sums MiB by MiB, so that a MiB is copied while the cache still has it. */
static uint64_t stretch_do(struct spread *s, const struct stretch_of *t)
{
	uint64_t moved = 0, step = UINT64_C(1) << SUM_LOG2;

	if (!s->x || !s->x->right)
		return rows_scatter(s, t->place, t->lo, t->hi);
	for (uint64_t lo = t->lo; lo < t->hi; lo += step) {
		const uint8_t *p = (const uint8_t *)s->src_base[t->place] + lo;
		int none = 0;

		if (!s->x->right(s->x->arg, t->place, lo >> SUM_LOG2, p) &&
		    !MUTANT(SLOT_SUM_IGNORED)) {
			if (atomic_compare_exchange_strong(&s->failed, &none, -EBADMSG))
				s->wrong =
					(struct stretch_of){ t->place, lo, MIN(lo + step, t->hi) };
			return moved;
		}
		if (!s->looks)
			moved += rows_scatter(s, t->place, lo, MIN(lo + step, t->hi));
	}
	return moved;
}

static void *spread_work(void *arg)
{
	struct spread *s = arg;
	uint64_t i, moved = 0;

	while (!atomic_load(&s->failed) && (i = atomic_fetch_add(&s->next, 1)) < s->n)
		moved += stretch_do(s, &s->stretch[i]);
	atomic_fetch_add(&s->moved, moved);
	return NULL;
}

static void spread_run(struct spread *s)
{
	uint32_t want = s->x && s->x->nthread ? MIN(s->x->nthread, THREADS_MAX) : processor_count(),
		 n = 0;
	pthread_t thread[THREADS_MAX];

	if (s->p->bytes < ALONE_BYTES)
		want = 1;
	while (n + 1 < want && n + 1 < s->n &&
	       thread_start(&thread[n], "ckpt-spread", false, spread_work, s) == 0)
		n++;
	(void)spread_work(s);
	while (n > 0)
		(void)pthread_join(thread[--n], NULL);
}

static int spread_verdict(const struct spread *s, uint64_t want, struct ckpt_err *err)
{
	char label[160];

	if (s->failed) {
		place_pieces_label(s->p->src, s->wrong.place, s->wrong.lo, s->wrong.hi, label,
				   sizeof label);
		return ckpt_error(
			err, s->failed,
			"%s: memory has changed since the step was staged: the MiB at byte "
			"%llu, which holds %s, is not what its sum says; restore it from "
			"disk, or an older step, and test this host's memory",
			s->p->src->place[s->wrong.place].name, (unsigned long long)s->wrong.lo,
			label);
	}
	if (s->moved != want)
		return ckpt_error(err, -EPROTO, "%llu bytes of the staged step were found of %llu",
				  (unsigned long long)s->moved, (unsigned long long)want);
	return 0;
}

static int spread_all(struct spread *s, uint64_t want, struct ckpt_err *err)
{
	int e = spread_cut(s);

	if (e == 0) {
		spread_run(s);
		e = spread_verdict(s, want, err);
	} else {
		e = ckpt_error(err, e, "no memory to copy from the staged step");
	}
	free(s->op_first);
	free(s->hi_max);
	free(s->stretch);
	return e;
}

/* What is made of operands goes through buffers, in their order: its sums are compared before. */
static int reduce_all(const struct plan *p, const void *const *src_base, void *const *dst_base,
		      const struct move_spread *x, struct ckpt_err *err)
{
	const struct spread all = { .p = p, .looks = true, .x = x, .src_base = src_base };
	struct spread copied = all, made = all;
	int e = 0;

	copied.op = p->op;
	copied.nop = p->nop;
	made.op = p->reduced->op;
	made.nop = p->reduced->nop;
	if (x && x->right && (e = spread_all(&copied, 0, err)) == 0)
		e = spread_all(&made, 0, err);
	if (e < 0)
		return e;
	e = move_copy(p, src_base, dst_base, NULL, NULL);
	return e < 0 ? ckpt_error(err, e, "cannot copy from the staged step") : 0;
}

int move_spread(const struct plan *p, const void *const *src_base, void *const *dst_base,
		const struct move_spread *x, struct ckpt_err *err)
{
	struct spread s = { .p = p,
			    .op = p->op,
			    .nop = p->nop,
			    .x = x,
			    .src_base = src_base,
			    .dst_base = dst_base };

	for (uint64_t i = 0; i < p->nop; i++)
		if (!src_base[p->op[i].src_place] || !dst_base[p->op[i].dst_place])
			return ckpt_error(err, -EINVAL, "a place of the staged step has no memory");
	for (uint64_t i = 0; p->reduced && i < p->reduced->nop; i++)
		if (!src_base[p->reduced->op[i].src_place])
			return ckpt_error(err, -EINVAL, "a place of the staged step has no memory");
	if (p->reduced)
		return reduce_all(p, src_base, dst_base, x, err);
	return spread_all(&s, p->bytes, err);
}
