/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_scale.c - models and meshes that no one host has: Llama 3.1 405B on 16,384 ranks and on
 * 8,192, a mixture of experts with 187,000 tensors on 2,048 and on 1,024. What is computed is
 * right, and answers are computed as often as there are kinds of tensors. (make bench has the
 * times.)
 */
#include "tests/unit/test_layout_naive.h"
#include "tests/lib/models.h"
#include "ckpt/plan/reshard.h"

static void get(enum model which, bool loaded, struct table *ret)
{
	struct ckpt_err err;

	if (model_make(which, loaded, ret, &err))
		fail_msg("%s", err.msg);
}

/* What it owns, or what it holds. */
static uint64_t rank_bytes(const struct table *t, uint32_t rank, bool owned)
{
	cleanup_arena struct arena a = { 0 };
	uint64_t sum = 0;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];
		const struct layout *l = &t->layout[x->layout];
		const struct mesh *m = &t->mesh[l->mesh];
		uint32_t coord[CKPT_DIMS_MAX];
		struct indexset set;
		int r;

		assert_true(mesh_coord(m, rank, coord));
		if (owned)
			r = layout_owned(m, l, x->ndim, x->shape, coord, x->elem_bytes,
					 x->component, x->name, &a, &set);
		else
			r = layout_share(m, l, x->ndim, x->shape, coord, &a, &set);
		assert_int_equal(r, 0);
		sum += set.numel * x->elem_bytes;
	}
	return sum;
}

struct owned {
	const struct table *t;
	uint64_t *bytes, npiece;
};

static int count_owned(void *arg, uint32_t tensor, const struct holder *h)
{
	struct owned *o = arg;

	o->bytes[h->rank] += h->set.numel * o->t->tensor[tensor].elem_bytes;
	o->npiece++;
	return 0;
}

static void check_owners(enum model which, uint32_t ranks, uint32_t tensors, uint64_t npiece)
{
	struct owned o = { .npiece = 0 };
	uint64_t all = 0, sum = 0;
	cleanup_table struct table t = { 0 };

	get(which, false, &t);
	assert_int_equal(model_world(&t), ranks);
	assert_int_equal(t.ntensor, tensors);
	o.t = &t;
	o.bytes = calloc(ranks, sizeof *o.bytes);
	assert_non_null(o.bytes);
	assert_int_equal(reshard_owners(&t, HOLDERS_OWNERS, count_owned, &o, NULL), 0);
	assert_int_equal(o.npiece, npiece);
	for (uint32_t i = 0; i < t.ntensor; i++)
		all += t.tensor[i].numel * t.tensor[i].elem_bytes;
	for (uint32_t i = 0; i < ranks; i++)
		sum += o.bytes[i];
	assert_int_equal(sum, all);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t rank = naive_below(ranks);

		assert_int_equal(o.bytes[rank], rank_bytes(&t, rank, true));
	}
	free(o.bytes);
}

TEST(all_owners_of_405b_on_16384_ranks_are_right)
{
	uint64_t numel = 0;
	struct table t;

	naive_seed(__func__);
	get(MODEL_LLAMA405B, false, &t);
	for (uint32_t i = 0; i < t.ntensor; i++)
		if (t.tensor[i].dtype == CKPT_BF16)
			numel += t.tensor[i].numel;
	assert_int_equal(numel, UINT64_C(405853388800));
	table_free(&t);
	check_owners(MODEL_LLAMA405B, 16384, 4548, 3750400);
}

TEST(all_owners_of_187000_tensors_on_2048_ranks_are_right)
{
	naive_seed(__func__);
	check_owners(MODEL_MOE, 2048, 186972, 705216);
}

struct moved {
	uint64_t nop, bytes;
};

static int count_moved(void *arg, const struct reshard_op *op)
{
	struct moved *m = arg;

	m->nop++;
	m->bytes += op->bytes;
	return 0;
}

static void check_rank(enum model which, uint64_t nop_max, uint64_t nfound_max)
{
	cleanup_table struct table src = { 0 }, dst = { 0 };

	get(which, false, &src);
	get(which, true, &dst);
	for (int i = 0; i < 5; i++) {
		uint32_t rank = naive_below(model_world(&dst));
		struct moved m = { 0 };
		struct reshard *r;

		assert_int_equal(reshard_open(&src, &dst, NULL, &r, NULL), 0);
		assert_int_equal(reshard_rank(r, rank, count_moved, &m, NULL), 0);
		assert_int_equal(m.bytes, rank_bytes(&dst, rank, false));
		if (!m.nop || m.nop > nop_max)
			fail_msg("rank %u: %llu operations", rank, (unsigned long long)m.nop);
		assert_true(reshard_answers(r) <= nfound_max);
		reshard_close(r);
	}
}

TEST(one_ranks_plan_of_405b_costs_what_the_rank_holds)
{
	naive_seed(__func__);
	check_rank(MODEL_LLAMA405B, 2 * 4548, 20); /* shards of rows may fall into two */
}

TEST(one_ranks_plan_of_187000_tensors_costs_what_the_rank_holds)
{
	naive_seed(__func__);
	check_rank(MODEL_MOE, 9000, 40);
}

/* What goes from one rank to another: the same on both sides. */
struct between {
	uint32_t src_rank, dst_rank; /* TABLE_NONE: the first one, but for the rank itself */
	struct moved moved, all;
	uint64_t hash;
};

static int count_between(void *arg, const struct reshard_op *op)
{
	struct between *b = arg;

	count_moved(&b->all, op);
	if (b->dst_rank == TABLE_NONE && op->dst_rank != op->src_rank)
		b->dst_rank = op->dst_rank;
	if (op->src_rank == b->src_rank && op->dst_rank == b->dst_rank) {
		count_moved(&b->moved, op);
		b->hash = b->hash * 31 + op->dst_tensor * 7 + op->bytes;
	}
	return 0;
}

static void check_sender(enum model which, uint64_t nop_max, uint64_t nfound_max)
{
	cleanup_table struct table src = { 0 }, dst = { 0 };

	get(which, false, &src);
	get(which, true, &dst);
	for (int i = 0; i < 5; i++) {
		struct between out = { .src_rank = naive_below(model_world(&src)),
				       .dst_rank = TABLE_NONE },
			       in;
		unsigned long long answers;
		struct reshard *r;

		assert_ok(reshard_open(&src, &dst, NULL, &r, NULL));
		assert_ok(reshard_sends(r, out.src_rank, count_between, &out, NULL));
		if (!out.all.nop || out.all.nop > nop_max)
			fail_msg("rank %u: %llu operations", out.src_rank,
				 (unsigned long long)out.all.nop);
		answers = reshard_answers(r);
		if (answers > nfound_max)
			fail_msg("%llu answers", answers);
		assert_true(out.all.bytes >= rank_bytes(&src, out.src_rank, true));
		in = (struct between){ .src_rank = out.src_rank, .dst_rank = out.dst_rank };
		assert_ok(reshard_rank(r, out.dst_rank, count_between, &in, NULL));
		assert_true(in.moved.nop > 0 && in.moved.nop == out.moved.nop);
		assert_int_equal(in.moved.bytes, out.moved.bytes);
		assert_int_equal(in.hash, out.hash);
		printf("rank %u: %llu operations, %llu answers\n", out.src_rank,
		       (unsigned long long)out.all.nop, answers);
		reshard_close(r);
	}
}

TEST(what_one_rank_of_405b_sends_costs_what_the_rank_owns)
{
	naive_seed(__func__);
	check_sender(MODEL_LLAMA405B, 2 * 4548, 20);
}

TEST(what_one_rank_of_187000_tensors_sends_costs_what_the_rank_owns)
{
	naive_seed(__func__);
	check_sender(MODEL_MOE, 20000, 40);
}
