/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_reshard.c - a rank's plan from declarations against plan_make on tables of all pieces,
 * with random meshes and layouts on both sides.
 */
#include "tests/unit/test_plan_kinds.h"
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

static uint32_t add_layout(struct table *t, struct random_kind *c, uint32_t mesh, uint32_t ndim)
{
	uint32_t order[4] = { 0, 1, 2, 3 }, id;
	struct ckpt_err err = { 0 };

	c->layout = (struct layout){ .mesh = mesh, .mode = naive_below(3), .place = c->place };
	shuffle(order, c->mesh.ndim);
	for (uint32_t i = 0; i < c->mesh.ndim; i++) {
		random_place(c, order[i], ndim);
		if (c->layout.nplace && c->place[c->layout.nplace - 1].how == CKPT_PARTIAL)
			c->layout.nplace--;
	}
	if (table_add_layout(t, &c->layout, &id, &err))
		fail_msg("%s", err.msg);
	return id;
}

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
	x.layout = add_layout(&j->src, &j->side[0], 0, ndim);
	assert_int_equal(table_add_tensor(&j->src, &x, NULL, NULL), 0);
	x.layout = naive_below(8) ? add_layout(&j->dst, &j->side[1], 0, ndim) : TABLE_NONE;
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
