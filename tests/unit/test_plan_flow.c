/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_flow.c - the bytes between old and new ranks against a count element by element,
 * between random meshes with random layouts on both sides; and what grouping ranks does to a
 * matrix.
 */
#include "tests/unit/test_plan_kinds.h"
#include "ckpt/base/dtype.h"
#include "ckpt/plan/flow.h"
#include "ckpt/plan/plan.h"
#include "ckpt/plan/reshard.h"
#include "tests/lib/row.h"

#define CASES 400
#define TENSORS 4
#define OWNERS_MAX 16 /* operands of an element */
#define WORLD_MAX 1024

struct job {
	struct random_kind side[2];
	struct table src, dst, pieces; /* declarations; the pieces of the old ranks */
	uint32_t from_of[RANKS_MAX];   /* rank of each place of `pieces` */
	uint32_t nto;
	bool partial; /* something is reduced on the way */
};

/* --- random jobs --- */

static uint32_t add_layout(struct table *t, struct random_kind *c, uint32_t ndim, bool *partial)
{
	uint32_t order[4] = { 0, 1, 2, 3 }, id;
	struct ckpt_err err = { 0 };
	bool any = false;

	c->layout = (struct layout){ .mode = naive_below(3), .place = c->place };
	shuffle(order, c->mesh.ndim);
	for (uint32_t i = 0; i < c->mesh.ndim; i++) {
		uint32_t n = c->layout.nplace;

		random_place(c, order[i], ndim);
		if (c->layout.nplace == n || c->place[n].how != CKPT_PARTIAL)
			continue;
		if (any || !partial)
			c->layout.nplace--;
		else
			*partial = any = true;
	}
	if (table_add_layout(t, &c->layout, &id, &err))
		fail_msg("%s", err.msg);
	return id;
}

static void add_tensor(struct job *j, uint32_t i)
{
	uint32_t ndim = naive_below(6) ? 1 + naive_below(3) : 0;
	uint64_t shape[3];
	char name[16];
	struct table_tensor x =
		ROW(.component = i % 2 ? "model" : "optim", .name = name, .of = "",
		    .dtype = naive_below(2) ? CKPT_F32 : CKPT_F64, .cls = CKPT_STABLE,
		    .rank = TABLE_NONE, .ndim = ndim, .shape = shape);

	snprintf(name, sizeof name, "w%u", i);
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = naive_below(20) ? 1 + naive_below(12) : 0;
	x.layout = add_layout(&j->src, &j->side[0], ndim, &j->partial);
	assert_int_equal(table_add_tensor(&j->src, &x, NULL, NULL), 0);
	x.layout = add_layout(&j->dst, &j->side[1], ndim, NULL);
	assert_int_equal(table_add_tensor(&j->dst, &x, NULL, NULL), 0);
}

/* A rank's place in a table: what it owns (or holds) of every tensor. */
static void add_rank(const struct table *decl, struct table *t, uint32_t place, bool owned)
{
	const struct mesh *m = &decl->mesh[0];
	struct table_place at = { "rank", m->rank[place], UINT64_C(1) << 62 };
	uint32_t coord[4], id;

	coord_of(m, place, coord);
	assert_int_equal(table_add_place(t, &at, &id, NULL), 0);
	for (uint32_t i = 0; i < decl->ntensor; i++) {
		const struct table_tensor *x = &decl->tensor[i];
		const struct layout *l = &decl->layout[x->layout];
		struct table_piece p = { .tensor = i, .rank = m->rank[place], .place = id };
		int e = owned ? layout_owned(m, l, x->ndim, x->shape, coord, x->elem_bytes,
					     x->component, x->name, &t->arena, &p.set)
			      : layout_share(m, l, x->ndim, x->shape, coord, &t->arena, &p.set);

		assert_int_equal(e, 0);
		assert_int_equal(table_add_piece(t, &p, NULL), 0);
	}
}

static void make_job(struct job *j)
{
	*j = (struct job){ 0 };
	for (int s = 0; s < 2; s++) {
		random_mesh(&j->side[s]);
		assert_int_equal(
			table_add_mesh(s ? &j->dst : &j->src, &j->side[s].mesh, NULL, NULL), 0);
	}
	for (uint32_t i = 0; i < TENSORS; i++)
		add_tensor(j, i);
	assert_int_equal(table_seal(&j->src, NULL), 0);
	assert_int_equal(table_seal(&j->dst, NULL), 0);
	j->pieces = table_borrow(&j->src);
	for (uint32_t r = 0; r < j->src.mesh[0].nrank; r++) {
		add_rank(&j->src, &j->pieces, r, true);
		j->from_of[r] = j->src.mesh[0].rank[r];
		assert_true(j->from_of[r] < WORLD_MAX);
	}
	assert_int_equal(table_seal(&j->pieces, NULL), 0);
	j->nto = j->dst.mesh[0].nrank;
}

static void free_job(struct job *j)
{
	table_free(&j->pieces);
	table_free(&j->src);
	table_free(&j->dst);
}

/* --- counted in another way --- */

typedef void element_fn(void *arg, uint64_t element);

/* Row-major numbers of a set's elements. */
static void each_element(const struct indexset *s, const uint64_t *shape, uint32_t d, uint64_t at,
			 element_fn *fn, void *arg)
{
	if (!s->numel)
		return;
	if (d == s->ndim) {
		fn(arg, at);
		return;
	}
	for (uint32_t k = 0; k < s->dim[d].n; k++)
		for (uint64_t j = 0; j < s->dim[d].run[k].count; j++)
			for (uint64_t e = 0; e < s->dim[d].run[k].len; e++)
				each_element(s, shape, d + 1,
					     at * shape[d] + s->dim[d].run[k].start +
						     j * s->dim[d].run[k].stride + e,
					     fn, arg);
}

struct owners {
	uint32_t n, rank[OWNERS_MAX];
};

struct counting {
	struct owners *owner; /* of each element */
	uint32_t rank, elem_bytes, nto;
	uint64_t *bytes; /* [WORLD_MAX][nto] */
};

static void is_owned(void *arg, uint64_t element)
{
	struct counting *c = arg;
	struct owners *o = &c->owner[element];

	assert_true(o->n < OWNERS_MAX);
	o->rank[o->n++] = c->rank;
}

static void is_held(void *arg, uint64_t element)
{
	struct counting *c = arg;
	const struct owners *o = &c->owner[element];

	assert_true(o->n > 0);
	for (uint32_t i = 0; i < o->n; i++)
		c->bytes[o->rank[i] * c->nto + c->rank] += c->elem_bytes;
}

/* news: the new ranks' table; place = number of the new rank. */
static uint64_t *count_elements(const struct job *j, const struct table *news)
{
	struct counting c = { .nto = j->nto };

	c.bytes = calloc((size_t)WORLD_MAX * j->nto, sizeof *c.bytes);
	for (uint32_t t = 0; t < j->src.ntensor; t++) {
		const struct table_tensor *x = &j->src.tensor[t];

		c.elem_bytes = x->elem_bytes;
		c.owner = calloc(x->numel + 1, sizeof *c.owner);
		assert_non_null(c.owner);
		for (uint32_t i = j->pieces.first[t]; i < j->pieces.first[t + 1]; i++) {
			c.rank = j->pieces.piece[i].rank;
			each_element(&j->pieces.piece[i].set, x->shape, 0, 0, is_owned, &c);
		}
		for (uint32_t i = news->first[t]; i < news->first[t + 1]; i++) {
			c.rank = news->piece[i].place;
			each_element(&news->piece[i].set, x->shape, 0, 0, is_held, &c);
		}
		free(c.owner);
	}
	return c.bytes;
}

/* --- the matrix --- */

/* Planned a few ranks at a time, as many as come. */
static void add_plans(const struct job *j, struct flow *f)
{
	for (uint32_t first = 0, n; first < j->nto; first += n) {
		struct table t = table_borrow(&j->dst);
		struct ckpt_err err = { 0 };
		cleanup_plan struct plan p = { 0 };

		n = MIN(1 + naive_below(7), j->nto - first);
		for (uint32_t i = 0; i < n; i++)
			add_rank(&j->dst, &t, first + i, false);
		assert_int_equal(table_seal(&t, NULL), 0);
		if (plan_make(&j->pieces, &t, NULL, &p, NULL, &err))
			fail_msg("%s", err.msg);
		flow_add_plan(f, &p, j->from_of, first);
		table_free(&t);
	}
}

struct declared {
	uint64_t *bytes;
	uint32_t nto, to;
};

static int add_declared(void *arg, const struct reshard_op *op)
{
	struct declared *d = arg;

	d->bytes[op->src_rank * d->nto + d->to] += op->bytes;
	return 0;
}

/* The same from declarations alone: a third way. */
static void check_declared(const struct job *j, const uint64_t *want)
{
	struct declared d = { .nto = j->nto };
	struct ckpt_err err = { 0 };
	struct reshard *r;

	d.bytes = calloc((size_t)WORLD_MAX * j->nto, sizeof *d.bytes);
	if (reshard_open(&j->src, &j->dst, NULL, &r, &err))
		fail_msg("%s", err.msg);
	for (d.to = 0; d.to < j->nto; d.to++)
		assert_int_equal(reshard_rank(r, j->dst.mesh[0].rank[d.to], add_declared, &d, &err),
				 0);
	assert_memory_equal(d.bytes, want, (size_t)WORLD_MAX * j->nto * sizeof *want);
	reshard_close(r);
	free(d.bytes);
}

static void check_cells(const struct flow *f, const uint64_t *want)
{
	uint64_t all = 0;

	for (uint32_t from = 0; from < f->nfrom; from++)
		for (uint32_t to = 0; to < f->nto; to++) {
			uint64_t is = flow_at(f, from, to), is_to = want[from * f->nto + to];

			if (is != is_to)
				fail_msg("rank %u takes %" PRIu64 " bytes of what rank %u wrote; "
					 "counted %" PRIu64,
					 to, is, from, is_to);
			all += is_to;
		}
	assert_int_equal(flow_all(f), all);
}

TEST(the_matrix_is_what_counting_every_element_gives)
{
	uint32_t reduced = 0;

	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		struct table news;
		struct flow f;
		struct job j;
		uint64_t *want;

		make_job(&j);
		news = table_borrow(&j.dst);
		for (uint32_t r = 0; r < j.nto; r++)
			add_rank(&j.dst, &news, r, false);
		assert_int_equal(table_seal(&news, NULL), 0);
		want = count_elements(&j, &news);
		/* More old ranks than cells allow would be put together: that is another test's. */
		if (j.nto <= FLOW_CELLS_MAX / WORLD_MAX) {
			assert_int_equal(flow_begin(&f, WORLD_MAX, j.nto), 0);
			assert_int_equal(f.from_block, 1);
			assert_int_equal(f.to_block, 1);
			add_plans(&j, &f);
			check_cells(&f, want);
			flow_free(&f);
			reduced += j.partial;
		}
		check_declared(&j, want);
		free(want);
		table_free(&news);
		free_job(&j);
	}
	assert_true(reduced > 0);
}

/* --- grouping --- */

static void check_blocks(const struct flow *f, const uint64_t *want)
{
	uint64_t *sum = calloc((size_t)f->nrow * f->ncol, sizeof *sum), most = 0, all = 0;

	assert_int_equal(f->nrow, div_up(f->nfrom, f->from_block));
	assert_int_equal(f->ncol, div_up(f->nto, f->to_block));
	for (uint32_t i = 0; i < f->nfrom; i++)
		for (uint32_t j = 0; j < f->nto; j++)
			sum[(i / f->from_block) * f->ncol + j / f->to_block] +=
				want[(size_t)i * f->nto + j];
	for (uint32_t i = 0; i < f->nrow; i++) {
		uint64_t row = 0;

		for (uint32_t j = 0; j < f->ncol; j++) {
			assert_int_equal(flow_at(f, i, j), sum[i * f->ncol + j]);
			row += sum[i * f->ncol + j];
			most = MAX(most, sum[i * f->ncol + j]);
		}
		assert_int_equal(flow_row(f, i), row);
		all += row;
	}
	for (uint32_t j = 0; j < f->ncol; j++) {
		uint64_t col = 0;

		for (uint32_t i = 0; i < f->nrow; i++)
			col += sum[i * f->ncol + j];
		assert_int_equal(flow_col(f, j), col);
	}
	assert_int_equal(flow_all(f), all);
	assert_int_equal(flow_most(f), most);
	free(sum);
}

TEST(blocks_of_ranks_have_the_bytes_of_their_ranks)
{
	naive_seed(__func__);
	for (int i = 0; i < 200; i++) {
		uint32_t nfrom = 1 + naive_below(i % 4 ? 40 : 700);
		uint32_t nto = 1 + naive_below(i % 3 ? 40 : 700);
		uint32_t rows = 1 + naive_below(20), cols = 1 + naive_below(20);
		cleanup_free uint64_t *want = calloc((size_t)nfrom * nto, sizeof *want);
		struct flow f, g;

		assert_int_equal(flow_begin(&f, nfrom, nto), 0);
		for (uint32_t k = naive_below(2000); k > 0; k--) {
			uint32_t from = naive_below(nfrom), to = naive_below(nto);
			uint64_t bytes = (uint64_t)naive_below(1000) << naive_below(40);

			want[(size_t)from * nto + to] += bytes;
			flow_add(&f, from, to, bytes);
		}
		assert_true(f.nrow * f.ncol <= FLOW_CELLS_MAX);
		assert_true((uint64_t)nfrom * nto > FLOW_CELLS_MAX ||
			    (f.from_block == 1 && f.to_block == 1));
		check_blocks(&f, want);
		assert_int_equal(flow_group(&f, rows, cols, &g), 0);
		assert_true(g.nrow <= rows && g.ncol <= cols);
		check_blocks(&g, want);
		flow_free(&g);
		flow_free(&f);
	}
}

TEST(the_cells_are_bounded_and_used)
{
	static const uint32_t n[] = { 1, 2, 16, 255, 256, 257, 1000, 8192, 16384, 1 << 20 };

	for (size_t i = 0; i < ARRAY_LEN(n); i++)
		for (size_t k = 0; k < ARRAY_LEN(n); k++) {
			struct flow f;

			assert_int_equal(flow_begin(&f, n[i], n[k]), 0);
			assert_true((uint64_t)f.nrow * f.ncol <= FLOW_CELLS_MAX);
			/* A quarter of the cells there could be, at least. */
			assert_true((uint64_t)f.nrow * f.ncol * 4 >=
				    MIN((uint64_t)n[i] * n[k], (uint64_t)FLOW_CELLS_MAX));
			flow_add(&f, n[i] - 1, n[k] - 1, 7);
			assert_int_equal(flow_at(&f, f.nrow - 1, f.ncol - 1), 7);
			flow_free(&f);
		}
}

TEST(blocks_come_out_equal_where_that_is_near)
{
	struct flow f, g;

	assert_int_equal(flow_begin(&f, 40, 17), 0);
	assert_int_equal(flow_group(&f, 16, 16, &g), 0);
	assert_int_equal(g.from_block, 4); /* and not 3, which would leave a single one */
	assert_int_equal(g.nrow, 10);
	assert_int_equal(g.to_block, 2); /* 17 is prime: the last block has one */
	assert_int_equal(g.ncol, 9);
	flow_free(&g);
	flow_free(&f);
	assert_int_equal(flow_begin(&f, 16384, 8192), 0);
	assert_int_equal(f.from_block, 64);
	assert_int_equal(f.to_block, 32);
	assert_int_equal(flow_group(&f, 16, 16, &g), 0);
	assert_int_equal(g.from_block, 1024);
	assert_int_equal(g.to_block, 512);
	flow_free(&g);
	flow_free(&f);
}
