/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_reshard.c - a rank's plan from declarations against plan_make on tables of all pieces,
 * with random meshes and layouts on both sides.
 */
#include "tests/unit/test_plan_kinds.h"
#include "tests/unit/test_layout_lines.h"
#include "ckpt/base/dtype.h"
#include "ckpt/plan/plan.h"
#include "ckpt/plan/reshard.h"
#include "tests/lib/row.h"

#define CASES 3000
#define TENSORS 5

struct job {
	struct random_kind side[2]; /* meshes of source and destination */
	struct table src, dst;	    /* declarations */
	struct table pieces;	    /* of all ranks of the source */
	uint32_t world[2];
};

static bool partials; /* layouts with pending reductions are drawn, too */

static void add_tensor(struct job *j, uint32_t i)
{
	static const uint32_t dtype[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64 };
	uint32_t ndim = naive_below(6) ? 1 + naive_below(3) : 0;
	uint64_t shape[3];
	char name[16];
	struct table_tensor x = ROW(.component = i % 2 ? "model" : "optim", .name = name, .of = "",
				    .dtype = dtype[naive_below(4)], .cls = CKPT_STABLE,
				    .rank = TABLE_NONE, .ndim = ndim, .shape = shape);
	bool large = ndim > 0 &&
		     !naive_below(3); /* what replicas divide: so many bytes, never touched */

	snprintf(name, sizeof name, "w%u", i);
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = naive_below(20) ? 1 + naive_below(20) : 0;
	if (large)
		shape[ndim - 1] *= 1 << 22;
	if (i > 0 && naive_below(2)) { /* a second tensor of a shape, cut alike or otherwise */
		const struct table_tensor *last = &j->src.tensor[i - 1];

		x.ndim = ndim = last->ndim;
		x.dtype = last->dtype;
		memcpy(shape, last->shape, ndim * sizeof *shape);
	}
	x.layout = random_layout(&j->src, &j->side[0], ndim, partials);
	assert_int_equal(table_add_tensor(&j->src, &x, NULL, NULL), 0);
	x.layout =
		naive_below(8) ? random_layout(&j->dst, &j->side[1], ndim, partials) : TABLE_NONE;
	assert_int_equal(table_add_tensor(&j->dst, &x, NULL, NULL), 0);
}

static void add_pieces(struct job *j)
{
	const struct mesh *m = &j->src.mesh[0];

	j->pieces = table_borrow(&j->src);
	for (uint32_t r = 0; r < m->nrank; r++) {
		struct table_place p = { "rank", m->rank[r], UINT64_C(1) << 62 };

		assert_int_equal(table_add_place(&j->pieces, &p, NULL, NULL), 0);
		for (uint32_t i = 0; i < j->src.ntensor; i++) {
			const struct table_tensor *x = &j->src.tensor[i];
			struct table_piece piece = { .tensor = i, .rank = m->rank[r], .place = r };
			uint32_t coord[4];

			coord_of(m, r, coord);
			assert_int_equal(layout_owned(m, &j->src.layout[x->layout], x->ndim,
						      x->shape, coord, x->elem_bytes, x->component,
						      x->name, &j->pieces.arena, &piece.set),
					 0);
			assert_int_equal(table_add_piece(&j->pieces, &piece, NULL), 0);
		}
	}
	assert_int_equal(table_seal(&j->pieces, NULL), 0);
}

/* Bytes of a rank and of all ranks, and a tensor without a layout. */
static void add_loose(struct table *t)
{
	uint64_t shape[] = { 24 };
	struct table_tensor x =
		ROW(.component = "", .of = "", .dtype = CKPT_U8, .flags = TENSOR_BLOB,
		    .layout = TABLE_NONE, .ndim = 1, .shape = shape);

	x.name = "rng";
	for (x.rank = 0; x.rank < 3; x.rank++)
		assert_ok(table_add_tensor(t, &x, NULL, NULL));
	x.rank = TABLE_NONE;
	x.name = "cursor";
	assert_ok(table_add_tensor(t, &x, NULL, NULL));
	x.flags = 0;
	x.name = "loose";
	assert_ok(table_add_tensor(t, &x, NULL, NULL));
}

static void make_tables(struct job *j)
{
	*j = (struct job){ 0 };
	for (int s = 0; s < 2; s++) {
		random_mesh(&j->side[s]);
		assert_int_equal(
			table_add_mesh(s ? &j->dst : &j->src, &j->side[s].mesh, NULL, NULL), 0);
	}
	for (uint32_t i = 0; i < TENSORS; i++)
		add_tensor(j, i);
}

static void make_job(struct job *j)
{
	make_tables(j);
	assert_int_equal(table_seal(&j->src, NULL), 0);
	assert_int_equal(table_seal(&j->dst, NULL), 0);
	add_pieces(j);
}

static void free_job(struct job *j)
{
	table_free(&j->pieces);
	table_free(&j->src);
	table_free(&j->dst);
}

/* What one rank holds, as a table: the destination of plan_make. */
static void rank_table(const struct job *j, uint32_t place, struct table *ret)
{
	static const struct layout whole;
	const struct mesh *m = &j->dst.mesh[0];
	struct table_place p = { "memory", m->rank[place], UINT64_C(1) << 62 };
	uint32_t coord[4];

	coord_of(m, place, coord);
	*ret = table_borrow(&j->dst);
	assert_int_equal(table_add_place(ret, &p, NULL, NULL), 0);
	for (uint32_t i = 0; i < j->dst.ntensor; i++) {
		const struct table_tensor *x = &j->dst.tensor[i];
		struct table_piece piece = { .tensor = i, .rank = m->rank[place] };
		const struct layout *l =
			x->layout == TABLE_NONE ? &whole : &j->dst.layout[x->layout];

		assert_int_equal(
			layout_share(m, l, x->ndim, x->shape, coord, &ret->arena, &piece.set), 0);
		assert_int_equal(table_add_piece(ret, &piece, NULL), 0);
	}
	assert_int_equal(table_seal(ret, NULL), 0);
}

/* The operations of plan_make, found again one by one. */
struct compare {
	const struct job *j;
	const struct plan *plan;
	bool *seen;
	uint64_t n;
};

static int compare_op(void *arg, const struct reshard_op *op)
{
	struct compare *c = arg;
	const struct table *src = &c->j->pieces;

	for (uint64_t i = 0; i < c->plan->nop; i++) {
		const struct plan_op *p = &c->plan->op[i];
		const struct table_piece *from = &src->piece[p->src_piece];
		const struct table_piece *to = &c->plan->dst->piece[p->dst_piece];
		cleanup_arena struct arena a = { 0 };
		struct indexset both;

		if (from->tensor != op->src_tensor || from->rank != op->src_rank || c->seen[i])
			continue;
		c->seen[i] = true;
		c->n++;
		assert_int_equal(p->bytes, op->bytes);
		assert_int_equal(to->tensor, op->dst_tensor);
		assert_true(indexset_equal(&from->set, &op->owned));
		assert_true(indexset_equal(&to->set, &op->share));
		assert_int_equal(indexset_intersect(&from->set, &to->set, &a, &both), 0);
		assert_true(indexset_equal(&both, &op->part));
		return 0;
	}
	fail_msg("an operation that plan_make does not know");
	return 0;
}

static void compare_rank(const struct job *j, struct reshard *r, uint32_t place)
{
	struct compare c = { .j = j };
	bool needed[600] = { 0 }, all;
	struct ckpt_err err = { 0 };
	cleanup_plan struct plan plan = { 0 };
	cleanup_table struct table t = { 0 };

	rank_table(j, place, &t);
	if (plan_make(&j->pieces, &t, NULL, &plan, NULL, &err))
		fail_msg("%s", err.msg);
	c.plan = &plan;
	c.seen = calloc(plan.nop + 1, sizeof *c.seen);
	assert_non_null(c.seen);
	assert_int_equal(reshard_rank(r, j->dst.mesh[0].rank[place], compare_op, &c, &err), 0);
	assert_int_equal(c.n, plan.nop);
	assert_int_equal(reshard_ranks(r, j->dst.mesh[0].rank[place], 600, needed, &all, &err), 0);
	assert_false(all);
	for (uint64_t i = 0; i < plan.nop; i++) {
		uint32_t rank = j->pieces.piece[plan.op[i].src_piece].rank;

		assert_true(rank < 600 && needed[rank]);
	}
	free(c.seen);
}

TEST(a_plan_from_declarations_is_the_one_from_tables_of_all_pieces)
{
	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		struct ckpt_err err = { 0 };
		struct reshard *r;
		struct job j;

		make_job(&j);
		if (reshard_open(&j.src, &j.dst, NULL, &r, &err))
			fail_msg("%s", err.msg);
		for (int k = 0; k < 3; k++)
			compare_rank(&j, r, naive_below(j.dst.mesh[0].nrank));
		reshard_close(r);
		free_job(&j);
	}
}

struct owners {
	const struct job *j;
	uint64_t n;
};

static int check_owner(void *arg, uint32_t tensor, const struct holder *h)
{
	struct owners *o = arg;
	const struct table *t = &o->j->pieces;

	o->n++;
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++)
		if (t->piece[i].rank == h->rank) {
			assert_true(indexset_equal(&t->piece[i].set, &h->set));
			return 0;
		}
	fail_msg("rank %u owns nothing of tensor %u", h->rank, tensor);
	return 0;
}

TEST(all_owners_of_a_table_are_its_pieces)
{
	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		struct owners o = { 0 };
		struct job j;

		make_job(&j);
		o.j = &j;
		assert_int_equal(reshard_owners(&j.src, HOLDERS_OWNERS, check_owner, &o, NULL), 0);
		assert_int_equal(o.n, j.pieces.npiece);
		free_job(&j);
	}
}

static int stop(void *arg, const struct reshard_op *op)
{
	return ++*(int *)arg == 3 ? 77 : 0;
}

/* A table with one mesh and tensors "w0" .. of [64, 8] in rows on it. */
static void plain(struct table *t, const char *mesh, uint32_t n, uint64_t rows)
{
	struct ckpt_placement rows_of = { .how = CKPT_SHARD };
	struct layout l = { .nplace = 1, .place = &rows_of };
	uint64_t shape[] = { rows, 8 };
	struct table_tensor x =
		ROW(.component = "model", .of = "", .dtype = CKPT_F32, .cls = CKPT_STABLE,
		    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	char name[16];

	*t = (struct table){ 0 };
	assert_int_equal(mesh_parse(mesh, &a, &m, NULL), 0);
	assert_int_equal(table_add_mesh(t, &m, NULL, NULL), 0);
	assert_int_equal(table_add_layout(t, &l, &x.layout, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof name, "w%u", i);
		x.name = name;
		assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
	}
}

/* Rows [16, 20) of all 8 columns, from rank 4. */
static int first_op(void *arg, const struct reshard_op *op)
{
	(void)arg;
	assert_int_equal(op->src_tensor, 0);
	assert_int_equal(op->src_rank, 4);
	assert_int_equal(op->bytes, 128);
	assert_int_equal(op->part.ndim, 2);
	assert_int_equal(indices_lo(&op->part.dim[0]), 16);
	assert_int_equal(indices_hi(&op->part.dim[0]), 20);
	assert_int_equal(op->part.dim[1].total, 8);
	return 1;
}

TEST(equal_layouts_and_shapes_are_planned_once)
{
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct reshard *r;
	int n = 0;

	plain(&src, "fsdp=16", 100, 64);
	plain(&dst, "fsdp=4", 100, 64);
	assert_int_equal(table_seal(&src, NULL), 0);
	assert_int_equal(table_seal(&dst, NULL), 0);
	assert_int_equal(reshard_open(&src, &dst, NULL, &r, NULL), 0);
	assert_int_equal(reshard_rank(r, 1, stop, &n, NULL), 77);
	assert_int_equal(reshard_rank(r, 1, first_op, NULL, NULL), 1);
	n = 3;
	assert_int_equal(reshard_rank(r, 1, stop, &n, NULL), 0);
	assert_int_equal(n, 3 + 100 * 4);
	assert_int_equal(reshard_answers(r), 1);
	assert_int_equal(reshard_rank(r, 99, stop, &n, NULL), 0); /* no such rank holds nothing */
	assert_int_equal(n, 3 + 100 * 4);
	reshard_close(r);
}

TEST(all_that_does_not_fit_is_said_at_once)
{
	struct reshard_opts lenient = { .lenient = true }, other = { .only = "optim" };
	struct ckpt_err err = { 0 };
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct reshard *r;
	int n = 10;

	plain(&src, "fsdp=2", 3, 64);
	plain(&dst, "fsdp=4", 5, 64);
	assert_int_equal(table_seal(&src, NULL), 0);
	assert_int_equal(table_seal(&dst, NULL), 0);
	assert_int_equal(reshard_open(&src, &dst, NULL, &r, &err), 0);
	for (int i = 0; i < 4; i++) { /* each rank hears of it, also of what another has heard of */
		err.msg[0] = 0;
		assert_int_equal(reshard_rank(r, (uint32_t)i, stop, &n, &err), -EMEDIUMTYPE);
		assert_non_null(strstr(err.msg, "model/w3: not in the checkpoint"));
		assert_non_null(strstr(err.msg, "model/w4: not in the checkpoint"));
	}
	reshard_close(r);
	n = 10;
	assert_int_equal(reshard_open(&src, &dst, &lenient, &r, &err), 0);
	assert_int_equal(reshard_rank(r, 0, stop, &n, NULL), 0);
	assert_int_equal(n, 13);
	reshard_close(r);
	assert_int_equal(reshard_open(&src, &dst, &other, &r, &err), 0);
	assert_int_equal(reshard_rank(r, 0, stop, &n, NULL), 0);
	assert_int_equal(n, 13);
	reshard_close(r);
	table_free(&dst);
	plain(&dst, "fsdp=4", 3, 65);
	assert_int_equal(table_seal(&dst, NULL), 0);
	assert_int_equal(reshard_open(&src, &dst, NULL, &r, &err), 0);
	assert_int_equal(reshard_rank(r, 0, stop, &n, &err), -EMEDIUMTYPE);
	reshard_close(r);
	assert_non_null(strstr(err.msg, "model/w2: declared [65, 8], the checkpoint has [64, 8]"));
}

static int note_op(void *arg, const struct reshard_op *op)
{
	uint32_t *from = arg; /* by tensor; + 1 */

	from[op->dst_tensor] = op->src_rank + 1;
	return 0;
}

TEST(blobs_and_tensors_without_a_layout_come_from_who_has_them)
{
	uint64_t len[] = { 24 };
	struct table_tensor x =
		ROW(.component = "", .name = "rng", .of = "", .dtype = CKPT_U8,
		    .flags = TENSOR_BLOB, .layout = TABLE_NONE, .ndim = 1, .shape = len);
	struct reshard_opts blobs = { .blobs = true };
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct reshard *r;
	uint32_t from[8] = { 0 };
	bool needed[4] = { 0 }, all = false;

	plain(&src, "fsdp=4", 0, 64);
	plain(&dst, "fsdp=2", 0, 64);
	for (int s = 0; s < 2; s++) {
		struct table *t = s ? &dst : &src;

		x.name = "rng";
		x.flags = TENSOR_BLOB;
		for (x.rank = 0; x.rank < 4; x.rank++) /* 0 .. 3 */
			assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
		x.name = "cursor"; /* 4 */
		x.rank = TABLE_NONE;
		assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
		x.name = "loose"; /* 5 */
		x.flags = 0;
		assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
		assert_int_equal(table_seal(t, NULL), 0);
	}
	assert_int_equal(reshard_open(&src, &dst, &blobs, &r, NULL), 0);
	assert_int_equal(reshard_rank(r, 1, note_op, from, NULL), 0);
	assert_memory_equal(from, ((uint32_t[]){ 0, 2, 0, 4, 1, 0, 0, 0 }), sizeof from);
	assert_int_equal(reshard_ranks(r, 1, 4, needed, &all, NULL), 0);
	assert_true(all && needed[0] && needed[1] && !needed[2] && needed[3]);
	reshard_close(r);
	assert_int_equal(reshard_open(&src, &dst, NULL, &r, NULL), 0);
	memset(from, 0, sizeof from);
	assert_int_equal(reshard_rank(r, 1, note_op, from, NULL), 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(from[i], 0);
	reshard_close(r);
}

/* --- both sides --- */

/* All operations between two tables, as one side has them: of each pair of ranks in its order. */
struct both {
	struct arena arena;
	struct reshard_op *op;
	uint32_t n, cap, nowhere;
};

static struct indexset set_keep(struct arena *a, const struct indexset *x)
{
	struct indices *dim = arena_array(a, x->ndim + 1, sizeof *dim);
	struct indexset ret = *x;

	assert_non_null(dim);
	for (uint32_t d = 0; d < x->ndim; d++) {
		struct run *run = arena_array(a, x->dim[d].n + 1, sizeof *run);

		assert_non_null(run);
		for (uint32_t i = 0; i < x->dim[d].n; i++)
			run[i] = x->dim[d].run[i];
		dim[d] = x->dim[d];
		dim[d].run = run;
	}
	ret.dim = dim;
	return ret;
}

static int op_keep(void *arg, const struct reshard_op *op)
{
	struct both *b = arg;
	struct reshard_op *x;

	if (op->src_rank == TABLE_NONE) {
		b->nowhere++;
		return 0;
	}
	assert_true(ARRAY_GROW(b->op, b->n, b->cap));
	x = &b->op[b->n++];
	*x = *op;
	x->share = set_keep(&b->arena, &op->share);
	x->owned = set_keep(&b->arena, &op->owned);
	x->part = set_keep(&b->arena, &op->part);
	return 0;
}

static void both_free(struct both *b)
{
	arena_free(&b->arena);
	free(b->op);
}

/* qsort is no stable sort: by pair, and then by where it stood. */
struct stood {
	uint64_t pair;
	uint32_t at;
};

static int by_pair(const void *x, const void *y)
{
	const struct stood *a = x, *b = y;

	return a->pair != b->pair ? COMPARE(a->pair, b->pair) : COMPARE(a->at, b->at);
}

static struct stood *pairs_sort(const struct both *b)
{
	struct stood *s = calloc(b->n + 1, sizeof *s);

	assert_non_null(s);
	for (uint32_t i = 0; i < b->n; i++)
		s[i] = (struct stood){ (uint64_t)b->op[i].src_rank << 32 | b->op[i].dst_rank, i };
	qsort(s, b->n, sizeof *s, by_pair);
	return s;
}

static void both_equal(const char *id, const struct both *sent, const struct both *got)
{
	cleanup_free struct stood *s = pairs_sort(sent), *g = pairs_sort(got);

	if (sent->n != got->n)
		fail_msg("%s: %u sent, %u expected", id, sent->n, got->n);
	for (uint32_t i = 0; i < sent->n; i++) {
		const struct reshard_op *x = &sent->op[s[i].at], *y = &got->op[g[i].at];

		if (s[i].pair != g[i].pair || x->dst_tensor != y->dst_tensor ||
		    x->src_tensor != y->src_tensor || x->operand != y->operand ||
		    x->bytes != y->bytes || !indexset_equal(&x->share, &y->share) ||
		    !indexset_equal(&x->owned, &y->owned) || !indexset_equal(&x->part, &y->part))
			fail_msg("%s: from rank %u to rank %u: tensor %u of %llu bytes is sent, "
				 "rank %u expects tensor %u of %llu bytes from rank %u",
				 id, x->src_rank, x->dst_rank, x->dst_tensor,
				 (unsigned long long)x->bytes, y->dst_rank, y->dst_tensor,
				 (unsigned long long)y->bytes, y->src_rank);
	}
}

static uint32_t both_sides(const char *id, const struct table *src, const struct table *dst,
			   const struct reshard_opts *opts)
{
	struct both sent = { 0 }, got = { 0 };
	const struct mesh *from = &src->mesh[0], *to = &dst->mesh[0];
	struct ckpt_err err = { 0 };
	struct reshard *r;
	uint32_t n;

	assert_ok_err(reshard_open(src, dst, opts, &r, &err), &err);
	for (uint32_t i = 0; i < from->nrank; i++)
		assert_ok_err(reshard_sends(r, from->rank[i], op_keep, &sent, &err), &err);
	for (uint32_t i = 0; i < to->nrank; i++)
		assert_ok_err(reshard_rank(r, to->rank[i], op_keep, &got, &err), &err);
	assert_int_equal(sent.nowhere, 0);
	/* A blob's keeper is a number below the ranks of the mesh, which need not be in it. */
	n = 0;
	for (uint32_t i = 0; i < got.n; i++) {
		uint32_t coord[CKPT_DIMS_MAX];

		if (mesh_coord(from, got.op[i].src_rank, coord))
			got.op[n++] = got.op[i];
		else
			assert_true(opts->blobs);
	}
	got.n = n;
	both_equal(id, &sent, &got);
	n = sent.n;
	both_free(&sent);
	both_free(&got);
	reshard_close(r);
	return n;
}

TEST(what_ranks_send_is_what_ranks_expect)
{
	uint32_t n = 0;

	naive_seed(__func__);
	partials = true;
	for (uint64_t i = 0; i < unit_scaled(600); i++) {
		struct reshard_opts opts = { .who = i % 3,
					     .lenient = true,
					     .per_host = naive_below(2) ? naive_below(5) : 0,
					     .only = naive_below(6) ? NULL : "optim" };
		struct job j;

		make_tables(&j);
		opts.blobs = !opts.only && naive_below(2);
		add_loose(&j.src);
		add_loose(&j.dst);
		assert_ok(table_seal(&j.src, NULL));
		assert_ok(table_seal(&j.dst, NULL));
		n += both_sides("random", &j.src, &j.dst, &opts);
		table_free(&j.src);
		table_free(&j.dst);
	}
	partials = false;
	printf("%u operations\n", n);
	assert_true(n > unit_scaled(600) * 16); /* of each pair */
}

/* --- which replica sends --- */

/* Does the rank hold all of this set of the tensor? */
static bool holds(const struct table *t, uint32_t tensor, uint32_t rank, const struct indexset *set)
{
	const struct table_tensor *x = &t->tensor[tensor];
	const struct layout *l = &t->layout[x->layout];
	cleanup_arena struct arena a = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset has;

	if (!mesh_coord(&t->mesh[l->mesh], rank, coord))
		return false;
	assert_ok(layout_share(&t->mesh[l->mesh], l, x->ndim, x->shape, coord, &a, &has));
	return indexset_equal(&has, set);
}

/* How many ranks hold the set; of what the operations take of it: all, the most from one rank, the
 * largest part. */
struct share_loads {
	uint32_t replicas;
	uint64_t all, most, part;
};

static struct share_loads share_loads(const struct table *src, const struct both *b, uint32_t at)
{
	const struct reshard_op *x = &b->op[at];
	const struct mesh *m = &src->mesh[0];
	struct share_loads l = { 0 };
	uint64_t of[600] = { 0 };

	for (uint32_t i = 0; i < m->nrank; i++)
		l.replicas += holds(src, x->src_tensor, m->rank[i], &x->owned);
	for (uint32_t i = 0; i < b->n; i++) {
		const struct reshard_op *y = &b->op[i];

		if (y->dst_tensor != x->dst_tensor || !indexset_equal(&y->owned, &x->owned))
			continue;
		l.all += y->part.numel;
		l.part = MAX(l.part, y->part.numel);
		if (y->src_rank != y->dst_rank)
			of[y->src_rank] += y->part.numel;
		l.most = MAX(l.most, of[y->src_rank]);
	}
	return l;
}

TEST(a_rank_takes_from_itself_what_it_has_and_replicas_share_the_rest)
{
	struct reshard_opts opts = { .who = HOLDERS_ONE };
	uint64_t shared = 0, itself = 0;

	naive_seed(__func__);
	for (uint64_t i = 0; i < unit_scaled(200); i++) {
		struct both got = { 0 };
		struct reshard *r;
		struct job j;

		make_tables(&j);
		assert_ok(table_seal(&j.src, NULL));
		assert_ok(table_seal(&j.dst, NULL));
		assert_ok(reshard_open(&j.src, &j.dst, &opts, &r, NULL));
		for (uint32_t k = 0; k < j.dst.mesh[0].nrank; k++)
			assert_ok(reshard_rank(r, j.dst.mesh[0].rank[k], op_keep, &got, NULL));
		for (uint32_t k = 0; k < got.n; k += 1 + naive_below(20)) {
			const struct reshard_op *x = &got.op[k];
			bool own = holds(&j.src, x->src_tensor, x->dst_rank, &x->owned);
			struct share_loads l = share_loads(&j.src, &got, k);

			if (own)
				assert_int_equal(x->src_rank, x->dst_rank);
			if (l.most > l.all / l.replicas + 1 + l.part)
				fail_msg(
					"%llu of %llu elements, in parts of %llu, come from one of "
					"%u replicas",
					(unsigned long long)l.most, (unsigned long long)l.all,
					(unsigned long long)l.part, l.replicas);
			itself += own;
			shared += l.replicas > 1 && l.all > 2 * l.part;
		}
		both_free(&got);
		reshard_close(r);
		free_job(&j);
	}
	printf("%llu takes from the rank itself, %llu of shares that replicas divide\n",
	       (unsigned long long)itself, (unsigned long long)shared);
	assert_true(itself > unit_scaled(200) / 8 && shared > unit_scaled(200) / 4);
}

/* A tensor, its layout taken from one line and its shape perhaps from another. */
static bool line_table(const struct vector *v, uint32_t mode, uint32_t ndim, const uint64_t *shape,
		       struct table *ret)
{
	struct layout l = v->layout;
	struct table_tensor x =
		ROW(.component = "model", .name = "layers.3.w", .of = "", .dtype = CKPT_F32,
		    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = ndim, .shape = shape);

	*ret = (struct table){ 0 };
	l.mode = mode;
	if (mesh_check(&v->mesh, NULL) || layout_check(&v->mesh, &l, ndim, NULL))
		return false;
	if (table_add_mesh(ret, &v->mesh, &l.mesh, NULL) ||
	    table_add_layout(ret, &l, &x.layout, NULL))
		return false;
	assert_ok(table_add_tensor(ret, &x, NULL, NULL));
	x.component = "optim";
	x.name = "layers.3.w.moment";
	assert_ok(table_add_tensor(ret, &x, NULL, NULL));
	assert_ok(table_seal(ret, NULL));
	return true;
}

static struct vector line[2];

/* From each line to the one before it and back, with the shape of the first. */
static uint32_t lines_both(const char *name, uint32_t mode, uint32_t *ret_n)
{
	cleanup_free char *text = NULL;
	struct reshard_opts opts = { .who = HOLDERS_OWNERS };
	FILE *f = open_vectors(name);
	uint32_t n = 0, nop = 0;
	size_t cap = 0;

	for (bool first = true; getline(&text, &cap, f) > 0; n++) {
		struct vector *v = &line[n % 2], *w = &line[(n + 1) % 2];
		char id[64];

		if (*text == '#') {
			n--;
			continue;
		}
		read_vector(v, text);
		snprintf(id, sizeof id, "%s", v->id);
		for (int k = 0; k < 2 && !first; k++) {
			cleanup_table struct table src = { 0 }, dst = { 0 };

			if (line_table(k ? w : v, mode, v->ndim, v->shape, &src) &&
			    line_table(k ? v : w, mode, v->ndim, v->shape, &dst)) {
				nop += both_sides(id, &src, &dst, &opts);
				++*ret_n;
				opts.who = (opts.who + 1) % 3;
			}
		}
		first = false;
	}
	fclose(f);
	return nop;
}

TEST(both_sides_agree_on_every_layout_that_was_asked_of_torch)
{
	for (uint32_t i = 0; i < ARRAY_LEN(vector_files); i++) {
		uint32_t pairs = 0,
			 nop = lines_both(vector_files[i].name, vector_files[i].mode, &pairs);

		printf("%s: %u pairs of layouts, %u operations\n", vector_files[i].name, pairs,
		       nop);
		assert_true(pairs > 20 && nop > pairs);
	}
}

TEST(what_a_rank_sends_ends_where_the_callback_ends_it)
{
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct ckpt_err err = { 0 };
	struct reshard *r;
	int n = 0;

	plain(&src, "fsdp=4", 100, 64);
	plain(&dst, "fsdp=16", 101, 64);
	assert_ok(table_seal(&src, NULL));
	assert_ok(table_seal(&dst, NULL));
	assert_ok(reshard_open(&src, &dst, NULL, &r, NULL));
	assert_int_equal(reshard_sends(r, 1, stop, &n, NULL), 77);
	assert_ok(reshard_sends(r, 1, stop, &n, NULL)); /* w100 is not its to report */
	assert_int_equal(n, 3 + 100 * 4);
	assert_int_equal(reshard_answers(r), 1);
	assert_ok(reshard_sends(r, 99, stop, &n, NULL)); /* no such rank owns nothing */
	assert_int_equal(n, 3 + 100 * 4);
	reshard_close(r);
	table_free(&dst);
	plain(&dst, "fsdp=4", 3, 65);
	assert_ok(table_seal(&dst, NULL));
	assert_ok(reshard_open(&src, &dst, NULL, &r, NULL));
	assert_int_equal(reshard_sends(r, 0, stop, &n, &err), -EMEDIUMTYPE);
	reshard_close(r);
	assert_non_null(strstr(err.msg, "model/w2: declared [65, 8], the checkpoint has [64, 8]"));
}
