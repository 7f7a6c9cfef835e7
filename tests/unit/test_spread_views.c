/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spread_views.c - ranks of one mesh send those of another one what a view makes of their
 * tensors, by a schedule: what is split, joined, stacked, turned and reshaped arrives element by
 * element.
 */
#include "tests/unit/test_spread_job.h"
#include "ckpt/plan/plan.h"
#include "ckpt/spread/spread_socket.h"
#include "tests/unit/test_viewed.h"
#include <pthread.h>
#include <stdarg.h>
#include <sys/socket.h>

/* Declarations as one array of each tensor, and what a view makes of them: element n of the first
 * tensors, counted through all of them, is the number n. */
struct truth {
	const struct table *declared, *dst;
	uint64_t *first, *at; /* of each tensor of `declared`, and of dst: where its array begins */
	uint16_t *number;     /* those of dst */
};

/* In a thread. */
static void must(int rc, const struct ckpt_err *err)
{
	if (!rc)
		return;
	fprintf(stderr, "%s\n", err->msg);
	abort();
}

/* As one place, in which each tensor is an array; *ret_at: where they begin, and behind them the
 * number of all elements. */
static void arrays_make(const struct table *t, struct table *ret, uint64_t **ret_at)
{
	const struct table_place place = { "arrays", TABLE_NONE, INT64_MAX };
	static const struct layout whole;
	uint64_t n = 0;

	*ret = (struct table){ 0 };
	*ret_at = calloc(t->ntensor + 1, sizeof **ret_at);
	assert_non_null(*ret_at);
	assert_ok(table_add_place(ret, &place, NULL, NULL));
	for (uint32_t i = 0; i < t->ntensor; i++) {
		struct table_tensor x = t->tensor[i];
		struct table_piece p = { .rank = TABLE_NONE, .off = n * 2 };

		x.layout = TABLE_NONE;
		assert_ok(table_add_tensor(ret, &x, &p.tensor, NULL));
		assert_ok(layout_share(NULL, &whole, x.ndim, x.shape, NULL, &ret->arena, &p.set));
		assert_ok(table_add_piece(ret, &p, NULL));
		(*ret_at)[i] = n;
		n += x.numel;
	}
	(*ret_at)[t->ntensor] = n;
	assert_ok(table_seal(ret, NULL));
}

static void rows_copy(const struct plan *plan, const void *from, void *to)
{
	for (uint64_t i = 0; i < plan->nop; i++) {
		struct plan_cursor c;
		struct plan_row r;

		plan_rows(plan, &plan->op[i], &c);
		while (plan_row_next(&c, &r))
			for (uint64_t k = 0; k < (r.elem ? r.n : 1); k++)
				memcpy((char *)to + r.dst_off + k * r.dst_stride,
				       (const char *)from + r.src_off + k * r.src_stride,
				       r.elem ? r.elem : r.len);
	}
}

static void truth_make(const struct table *declared, const char *rules, const struct table *dst,
		       struct truth *ret)
{
	cleanup_arena struct arena a = { 0 };
	const struct view_cast *cast;
	struct table from, to, seen;
	struct ckpt_err err;
	struct plan plan;
	struct view v;
	uint16_t *old;

	*ret = (struct truth){ .declared = declared, .dst = dst };
	arrays_make(declared, &from, &ret->first);
	arrays_make(dst, &to, &ret->at);
	old = calloc(ret->first[declared->ntensor] + 1, sizeof *old);
	ret->number = calloc(ret->at[dst->ntensor] + 1, sizeof *ret->number);
	assert_true(old && ret->number && ret->first[declared->ntensor] <= UINT16_MAX);
	for (uint16_t i = 0; i < ret->first[declared->ntensor]; i++)
		old[i] = i;
	assert_ok_err(view_parse(rules, "rules", &a, &v, &err), &err);
	assert_ok_err(view_make(&from, &v, &seen, &cast, &err), &err);
	assert_ok_err(plan_make(&seen, &to, NULL, &plan, NULL, &err), &err);
	rows_copy(&plan, old, ret->number);
	plan_free(&plan);
	free(old);
	table_free(&seen);
	table_free(&from);
	table_free(&to);
}

static void truth_free(struct truth *t)
{
	free(t->first);
	free(t->at);
	free(t->number);
}

/* Writes the number of each element of a piece, or returns how many are another one. */
static uint32_t numbers(const struct truth *truth, const struct memory *m,
			const struct table_piece *p, bool write)
{
	const struct table_tensor *x = &m->t.tensor[p->tensor];
	uint64_t pos[CKPT_DIMS_MAX] = { 0 };
	uint32_t wrong = 0;

	for (uint64_t n = 0; n < p->set.numel; n++) {
		uint64_t index = 0, at = 0, unit = 1;
		uint16_t *e;

		for (uint32_t d = 0; d < x->ndim; d++)
			index = index * x->shape[d] + indices_at(&p->set.dim[d], pos[d]);
		for (uint32_t d = x->ndim; d-- > 0; unit *= p->set.dim[d].total)
			at += pos[d] * (p->stride ? (uint64_t)p->stride[d] : unit);
		e = (uint16_t *)(uintptr_t)(m->base + p->off + at * 2);
		if (write)
			*e = (uint16_t)(truth->first[p->tensor] + index);
		else
			wrong += *e != truth->number[truth->at[p->tensor] + index];
		for (uint32_t d = x->ndim; d-- > 0 && ++pos[d] == p->set.dim[d].total;)
			pos[d] = 0;
	}
	return wrong;
}

struct exchanging {
	const struct truth *truth;
	const struct table *src;
	const char *rules;
	struct schedule_rounds rounds;
	enum holders_who who;
	bool ahead;
	uint32_t rank, world;
	int fd[WORLD_MAX];
	uint64_t bytes;
	uint32_t held, wrong;
	int rc;
	struct ckpt_err err;
};

static void exchange(struct exchanging *x, struct spread *s, const struct memory *from,
		     const struct memory *to)
{
	struct spread_how how = { .round_ns = 15 * NS_PER_S,
				  .rounds = &x->rounds,
				  .ahead = x->ahead };
	struct spread_memory m = { .from_base = &from->base, .to_base = &to->base, .to = &to->t };
	struct spread_transport *t;
	const struct view_cast *cast;
	uint64_t out_bytes, in_bytes;
	struct arena a = { 0 };
	struct table viewed;
	struct view v;

	must(view_parse(x->rules, "rules", &a, &v, &x->err), &x->err);
	must(view_make(&from->t, &v, &viewed, &cast, &x->err), &x->err);
	must(spread_socket_open(x->rank, x->world, x->fd, &t, &x->err), &x->err);
	spread_staging(s, &how, &out_bytes, &in_bytes);
	m.from = &viewed;
	m.out = (uintptr_t)aligned_alloc(4096, out_bytes);
	m.in = (uintptr_t)aligned_alloc(4096, in_bytes);
	assert(m.out && m.in);
	x->rc = spread_run(s, t, &m, &how, &x->err);
	x->bytes = spread_cost(s).out_bytes;
	t->calls->close(t);
	free((void *)(uintptr_t)m.out);
	free((void *)(uintptr_t)m.in);
	table_free(&viewed);
	arena_free(&a);
}

static void *rank_run(void *arg)
{
	struct exchanging *x = arg;
	const struct reshard_opts opts = { .who = x->who, .pieces = true };
	struct memory from, to;
	struct spread *s;

	memory_make(x->truth->declared, x->rank, false, &from);
	memory_make(x->truth->dst, x->rank, false, &to);
	for (uint32_t i = 0; i < from.t.npiece; i++)
		(void)numbers(x->truth, &from, &from.t.piece[i], true);
	must(spread_open(x->src, x->truth->dst, &opts, x->rank, &s, &x->err), &x->err);
	exchange(x, s, &from, &to);
	for (uint32_t i = 0; i < to.t.npiece; i++) {
		x->wrong += numbers(x->truth, &to, &to.t.piece[i], false);
		x->held += (uint32_t)to.t.piece[i].set.numel;
	}
	spread_close(s);
	memory_free(&from);
	memory_free(&to);
	return NULL;
}

static void ranks_run(struct exchanging *rank, uint32_t world)
{
	pthread_t thread[WORLD_MAX];

	for (uint32_t i = 0; i < world; i++)
		for (uint32_t k = 0; k <= i; k++) {
			int pair[2] = { -1, -1 };

			if (k < i)
				assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
			rank[i].fd[k] = pair[0];
			rank[k].fd[i] = pair[1];
		}
	for (uint32_t i = 0; i < world; i++)
		assert_ok(pthread_create(&thread[i], NULL, rank_run, &rank[i]));
	for (uint32_t i = 0; i < world; i++)
		pthread_join(thread[i], NULL);
}

/* All ranks exchange what the rules make of their tensors: how many bytes go between them. */
static uint64_t exchange_all(const struct exchanging *how, const struct table *declared,
			     const struct table *dst, struct exchanging *rank)
{
	const struct schedule_opts opts = { .who = how->who, .round_bytes = 128 };
	struct truth truth;
	struct schedule *s;
	struct ckpt_err err;
	uint64_t sent = 0;

	truth_make(declared, how->rules, dst, &truth);
	assert_ok_err(schedule_open(how->src, dst, &opts, &s, &err), &err);
	for (uint32_t i = 0; i < how->world; i++) {
		rank[i] = *how;
		rank[i].truth = &truth;
		rank[i].rounds = *schedule_rounds(s);
		rank[i].rank = i;
	}
	ranks_run(rank, how->world);
	for (uint32_t i = 0; i < how->world; i++) {
		struct schedule_part p;

		assert_ok_err(rank[i].rc, &rank[i].err);
		if (rank[i].wrong)
			fail_msg("rank %u: %u of %u elements are wrong\n%s", i, rank[i].wrong,
				 rank[i].held, how->rules);
		assert_ok(schedule_part(s, i, &p, NULL));
		assert_int_equal(rank[i].bytes, p.out_bytes);
		sent += p.out_bytes;
		schedule_part_free(&p);
	}
	schedule_close(s);
	truth_free(&truth);
	return sent;
}

UNIT();

TEST(what_a_view_cuts_and_joins_arrives_by_the_schedule_of_all_ranks)
{
	static const uint32_t held[] = { 107, 107, 75, 72 };
	struct table declared = { 0 }, pieces, src, dst = { 0 };
	struct exchanging rank[WORLD_MAX];
	const struct exchanging how = { .src = &src, .rules = viewed_rules, .world = 6 };

	assert_ok(onto_make(&viewed_from, false, &declared, NULL));
	assert_ok(onto_make(&viewed_to, true, &dst, NULL));
	viewed(&declared, viewed_rules, &pieces, &src);
	assert_true(exchange_all(&how, &declared, &dst, rank) > 300);
	assert_true(rank[0].rounds.n > 1);
	for (uint32_t i = 0; i < how.world; i++)
		assert_int_equal(rank[i].held, i < ARRAY_LEN(held) ? held[i] : 0);
	table_free(&src);
	table_free(&pieces);
	table_free(&declared);
	table_free(&dst);
}

/* --- any layouts, any rules --- */

#define NAMES 12

struct drawn {
	uint32_t n, made; /* tensors that there are, and names that were given */
	struct name {
		uint32_t number, ndim;
		uint64_t shape[3];
	} name[NAMES];
	char rules[2000];
};

static void rule_add(struct drawn *d, const char *fmt, ...)
{
	size_t n = strlen(d->rules);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(d->rules + n, sizeof d->rules - n, fmt, ap);
	va_end(ap);
}

static void name_drop(struct drawn *d, uint32_t i)
{
	d->name[i] = d->name[--d->n];
}

static void draw_split(struct drawn *d, uint32_t i)
{
	struct name x = d->name[i], y = x;
	uint32_t dim = naive_below(x.ndim);

	if (x.shape[dim] < 2)
		return;
	x.shape[dim] = 1 + naive_below((uint32_t)x.shape[dim] - 1);
	y.shape[dim] -= x.shape[dim];
	rule_add(d, "split model/w%u dim %u sizes %u,%u -> model/w%u model/w%u\n", x.number, dim,
		 (unsigned)x.shape[dim], (unsigned)y.shape[dim], d->made, d->made + 1);
	x.number = d->made++;
	y.number = d->made++;
	d->name[i] = x;
	d->name[d->n++] = y;
}

static void draw_join(struct drawn *d, uint32_t i, uint32_t k)
{
	struct name *x = &d->name[i], *y = &d->name[k];
	uint32_t dim = naive_below(x->ndim);
	bool stack = x->ndim < 3 && naive_below(2);

	for (uint32_t n = 0; n < 3; n++)
		if (x->ndim != y->ndim ||
		    (n < x->ndim && x->shape[n] != y->shape[n] && (stack || n != dim)))
			return;
	rule_add(d, "%s model/w%u model/w%u dim %u -> model/w%u\n", stack ? "stack" : "concat",
		 x->number, y->number, dim, d->made);
	x->number = d->made++;
	x->shape[dim] += y->shape[dim];
	if (stack) {
		x->shape[dim] -= y->shape[dim];
		memmove(&x->shape[dim + 1], &x->shape[dim], (x->ndim++ - dim) * sizeof *x->shape);
		x->shape[dim] = 2;
	}
	name_drop(d, k);
}

static void draw_turn(struct drawn *d, uint32_t i)
{
	struct name *x = &d->name[i];
	uint64_t first = x->shape[0];

	if (x->ndim < 2)
		return;
	rule_add(d,
		 x->ndim == 2 ? "transpose model/w%u dims 1,0 -> model/w%u\n"
			      : "transpose model/w%u dims 1,2,0 -> model/w%u\n",
		 x->number, d->made);
	memmove(x->shape, x->shape + 1, (x->ndim - 1) * sizeof *x->shape);
	x->shape[x->ndim - 1] = first;
	x->number = d->made++;
}

static void draw_flat(struct drawn *d, uint32_t i)
{
	struct name *x = &d->name[i];

	rule_add(d, "reshape model/w%u -1\n", x->number);
	for (; x->ndim > 1; x->ndim--)
		x->shape[x->ndim - 2] *= x->shape[x->ndim - 1];
}

static void draw_rules(struct drawn *d)
{
	for (uint32_t n = 1 + naive_below(6); n > 0; n--) {
		uint32_t i = naive_below(d->n), k = naive_below(d->n);

		if (naive_below(3) == 0 && d->n < NAMES)
			draw_split(d, i);
		else if (i != k)
			draw_join(d, i, k);
		else if (naive_below(3))
			draw_turn(d, i);
		else
			draw_flat(d, i);
	}
}

static struct table_tensor draw_named(const struct name *x, char *name)
{
	sprintf(name, "w%u", x->number);
	return (struct table_tensor)ROW(.component = "model", .name = name, .of = "",
					.dtype = CKPT_BF16, .cls = CKPT_STABLE, .rank = TABLE_NONE,
					.ndim = x->ndim, .shape = x->shape);
}

/* to: every rank of its mesh may have a tensor without a layout. */
static void side_make(struct random_kind *k, const struct drawn *d, bool to, struct table *ret)
{
	small_mesh(k);
	*ret = (struct table){ 0 };
	assert_ok(table_add_mesh(ret, &k->mesh, NULL, NULL));
	for (uint32_t i = 0; i < d->n; i++) {
		char name[16];
		struct table_tensor x = draw_named(&d->name[i], name);

		x.layout =
			to && !naive_below(6) ? TABLE_NONE : random_layout(ret, k, x.ndim, false);
		assert_ok(table_add_tensor(ret, &x, NULL, NULL));
	}
	assert_ok(table_seal(ret, NULL));
}

TEST(whatever_rules_make_of_tensors_in_whatever_layouts_arrives)
{
	uint64_t sent = 0;

	naive_seed(__func__);
	for (uint32_t n = 0; n < unit_scaled(400); n++) {
		static const uint64_t size[] = { 4, 6, 6, 12 };
		struct table declared, pieces, src, dst;
		struct drawn d = { .n = 4, .made = 4 };
		struct exchanging rank[WORLD_MAX];
		struct random_kind from, to;
		struct exchanging how = { .src = &src,
					  .rules = d.rules,
					  .ahead = naive_below(2),
					  .who = naive_below(2) ? HOLDERS_ONE : HOLDERS_OWNERS,
					  .world = 1 };

		for (uint32_t i = 0; i < d.n; i++)
			d.name[i] = (struct name){ i, 2, { size[naive_below(4)], 6 } };
		side_make(&from, &d, false, &declared);
		draw_rules(&d);
		side_make(&to, &d, true, &dst);
		for (uint32_t i = 0; i < from.mesh.nrank; i++)
			how.world = MAX(how.world, from.mesh.rank[i] + 1);
		for (uint32_t i = 0; i < to.mesh.nrank; i++)
			how.world = MAX(how.world, to.mesh.rank[i] + 1);
		viewed(&declared, d.rules, &pieces, &src);
		sent += exchange_all(&how, &declared, &dst, rank);
		table_free(&src);
		table_free(&pieces);
		table_free(&declared);
		table_free(&dst);
	}
	assert_true(sent > 0);
}
