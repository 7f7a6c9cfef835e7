/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_make.c - which tensors are matched, what is refused and how it is said, and that
 * planning counts instead of walking where the sets are large.
 */
#include "ckpt/plan/plan.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

/* From what, to what; the plan, and what is said of it. */
static struct table src, dst;
static struct plan p;
static struct ckpt_errlist list;
static struct ckpt_err e;

static int setup(void **state)
{
	src = dst = (struct table){ 0 };
	p = (struct plan){ 0 };
	list = (struct ckpt_errlist){ 0 };
	e = (struct ckpt_err){ 0 };
	return 0;
}

static int teardown(void **state)
{
	ckpt_errlist_free(&list);
	plan_free(&p);
	table_free(&src);
	table_free(&dst);
	return 0;
}

static uint32_t add(struct table *t, const char *component, const char *name, uint32_t dtype,
		    uint32_t ndim, const uint64_t *shape, uint32_t flags, uint32_t rank)
{
	struct table_tensor x =
		ROW(.component = component, .name = name, .dtype = dtype, .flags = flags,
		    .layout = TABLE_NONE, .rank = rank, .ndim = ndim, .shape = shape);
	uint32_t id;

	if (table_add_tensor(t, &x, &id, &e) < 0)
		fail_msg("%s", e.msg);
	return id;
}

static void place(struct table *t, const char *name)
{
	assert_int_equal(
		table_add_place(t,
				&(struct table_place){ .name = name, .bytes = UINT64_C(1) << 50 },
				NULL, &e),
		0);
}

static void piece(struct table *t, uint32_t tensor, uint32_t at, uint64_t off, uint32_t ndim,
		  const struct indices *dim)
{
	struct table_piece q = ROW(.tensor = tensor, .place = at, .off = off,
				   .set = { .ndim = ndim, .numel = 1, .dim = dim });

	for (uint32_t d = 0; d < ndim; d++)
		q.set.numel *= dim[d].total;
	if (table_add_piece(t, &q, &e) < 0)
		fail_msg("%s", e.msg);
}

static void box(struct table *t, uint32_t tensor, uint64_t off, uint64_t from, uint64_t to)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t start[CKPT_DIMS_MAX] = { from }, extent[CKPT_DIMS_MAX];
	struct indexset s;

	for (uint32_t d = 0; d < x->ndim; d++)
		extent[d] = d ? x->shape[d] : to - from;
	assert_int_equal(indexset_box(x->ndim, start, extent, &t->arena, &s), 0);
	piece(t, tensor, 0, off, x->ndim, s.dim);
}

static void seal(struct table *t)
{
	assert_int_equal(table_seal(t, &e), 0);
}

static const uint64_t s8x4[] = { 8, 4 }, s4x8[] = { 4, 8 }, s8[] = { 8 };

/* A checkpoint and a declaration that differ in every way. */
static void two_tables(void)
{
	place(&src, "file");
	box(&src, add(&src, "optim", "w.master", CKPT_BF16, 2, s8x4, 0, TABLE_NONE), 0, 0, 8);
	box(&src, add(&src, "model", "shape", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 64, 0, 8);
	box(&src, add(&src, "model", "half", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 192, 0, 3);
	box(&src, add(&src, "model", "good", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 320, 0, 8);
	box(&src, add(&src, "blob", "rng", CKPT_U8, 1, s8, TENSOR_BLOB, 0), 448, 0, 8);
	box(&src, add(&src, "model", "0d", CKPT_F64, 0, NULL, 0, TABLE_NONE), 456, 0, 0);
	seal(&src);
	place(&dst, "rank 0 memory");
	box(&dst, add(&dst, "optim", "w.master", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 0, 0, 8);
	box(&dst, add(&dst, "model", "shape", CKPT_F32, 2, s4x8, 0, TABLE_NONE), 128, 0, 4);
	box(&dst, add(&dst, "model", "half", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 256, 2, 6);
	box(&dst, add(&dst, "model", "good", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 384, 1, 7);
	box(&dst, add(&dst, "model", "head.weight", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 512, 0, 8);
	box(&dst, add(&dst, "blob", "rng", CKPT_U8, 1, s8, TENSOR_BLOB, 0), 1024, 0, 8);
	box(&dst, add(&dst, "model", "0d", CKPT_F64, 0, NULL, 0, TABLE_NONE), 2048, 0, 0);
	seal(&dst);
}

TEST(all_mismatches_are_listed_at_once)
{
	two_tables();
	memset(&p, 0x5a, sizeof p);
	assert_int_equal(plan_make(&src, &dst, NULL, &p, &list, &e), -EMEDIUMTYPE);
	assert_int_equal(p.nop, 0);
	assert_int_equal(list.n, 4);
	assert_string_equal(
		list.text,
		"optim/w.master: declared F32 [8, 4], the checkpoint has BF16 [8, 4]\n"
		"model/shape: declared F32 [4, 8], the checkpoint has F32 [8, 4]\n"
		"model/half: 12 of the 16 elements of rank 0 memory are in no piece of the checkpoint, the first is [3, 0]\n"
		"model/head.weight: not in the checkpoint");
	assert_int_equal(e.code, -EMEDIUMTYPE);
	assert_non_null(strstr(e.msg, "model/head.weight"));
	ckpt_errlist_free(&list);
	plan_free(&p);
	/* The list is not needed to be refused. */
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), -EMEDIUMTYPE);
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, NULL), -EMEDIUMTYPE);
}

TEST(lenient_leaves_out_what_is_missing_and_nothing_else)
{
	const struct plan_opts o = { .only = "model", .lenient = true };

	two_tables();
	assert_int_equal(plan_make(&src, &dst, &o, &p, &list, &e), -EMEDIUMTYPE);
	assert_int_equal(list.n, 2);
	assert_null(strstr(list.text, "head.weight"));
	assert_null(strstr(list.text, "w.master"));
}

TEST(blobs_move_only_when_asked_for_and_0d_tensors_always)
{
	struct plan_cursor c;
	struct plan_row r;

	place(&src, "a");
	box(&src, add(&src, "model", "0d", CKPT_F64, 0, NULL, 0, TABLE_NONE), 8, 0, 0);
	box(&src, add(&src, "blob", "rng", CKPT_U8, 1, s8, TENSOR_BLOB, 3), 100, 0, 8);
	box(&src, add(&src, "blob", "rng", CKPT_U8, 1, s8, TENSOR_BLOB, 4), 200, 0, 8);
	seal(&src);
	place(&dst, "b");
	box(&dst, add(&dst, "blob", "rng", CKPT_U8, 1, s8, TENSOR_BLOB, 4), 0, 0, 8);
	box(&dst, add(&dst, "model", "0d", CKPT_F64, 0, NULL, 0, TABLE_NONE), 16, 0, 0);
	seal(&dst);
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), 0);
	assert_int_equal(p.nop, 1);
	assert_int_equal(p.ntensor, 1);
	assert_int_equal(p.bytes, 8);
	plan_rows(&p, &p.op[0], &c);
	assert_true(plan_row_next(&c, &r));
	assert_int_equal(r.src_off, 8);
	assert_int_equal(r.dst_off, 16);
	assert_int_equal(r.len, 8);
	assert_false(plan_row_next(&c, &r));
	plan_free(&p);
	assert_int_equal(
		plan_make(&src, &dst, &(struct plan_opts){ .memory_blobs = true }, &p, NULL, &e),
		0);
	assert_int_equal(p.nop, 2);
	assert_int_equal(p.op[1].src_lo, 200);
	assert_int_equal(p.bytes, 16);
}

TEST(what_two_sides_hold_whole_is_one_row)
{
	const uint64_t shape[] = { 16, 6, 4 };
	const struct run comb = { 1, 2, 4, 4 };
	const struct indices dim[] = { { 1, 8, &comb },
				       { 1, 6, &(struct run){ 0, 6, 6, 1 } },
				       { 1, 4, &(struct run){ 0, 4, 4, 1 } } };
	struct plan_cursor c;
	struct plan_row r;

	place(&src, "a");
	piece(&src, add(&src, "m", "x", CKPT_F32, 3, shape, 0, TABLE_NONE), 0, 4096, 3, dim);
	seal(&src);
	place(&dst, "b");
	piece(&dst, add(&dst, "m", "x", CKPT_F32, 3, shape, 0, TABLE_NONE), 0, 0, 3, dim);
	seal(&dst);
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), 0);
	assert_int_equal(p.nop, 1);
	plan_rows(&p, &p.op[0], &c);
	assert_true(plan_row_next(&c, &r));
	assert_int_equal(r.len, 8 * 6 * 4 * 4);
	assert_false(plan_row_next(&c, &r));
}

/* Every rank of a data-parallel job holds the same: the first copy is used, and only that. */
TEST(of_equal_replicas_the_first_is_used)
{
	uint32_t x;

	place(&src, "a");
	x = add(&src, "m", "x", CKPT_F32, 2, s8x4, 0, TABLE_NONE);
	box(&src, x, 0, 0, 8);
	box(&src, x, 1000, 0, 8);
	box(&src, x, 2000, 2, 4);
	seal(&src);
	place(&dst, "b");
	box(&dst, add(&dst, "m", "x", CKPT_F32, 2, s8x4, 0, TABLE_NONE), 0, 1, 8);
	seal(&dst);
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), 0);
	assert_int_equal(p.nop, 1);
	assert_int_equal(p.op[0].src_piece, 0);
	assert_int_equal(p.bytes, 7 * 4 * 4);
}

/* A split factor of a million on 64 ranks, to 48: walked element by element this would take
 * minutes. */
TEST(combs_of_a_million_teeth_are_planned_at_once)
{
	const uint64_t teeth = 1u << 20, shape[] = { teeth * 64 };
	uint64_t want = 0;
	uint32_t x;

	place(&src, "a");
	x = add(&src, "m", "x", CKPT_F32, 1, shape, 0, TABLE_NONE);
	for (uint64_t i = 0; i < 64; i++) {
		const struct run r = { i, 1, 64, teeth };

		piece(&src, x, 0, i * teeth * 4, 1, &(struct indices){ 1, teeth, &r });
	}
	seal(&src);
	place(&dst, "b");
	x = add(&dst, "m", "x", CKPT_F32, 1, shape, 0, TABLE_NONE);
	for (uint64_t i = 0; i < 48; i++)
		box(&dst, x, i * shape[0] * 4, shape[0] * i / 48, shape[0] * (i + 1) / 48);
	seal(&dst);
	alarm(60); /* milliseconds; the product of all would take minutes */
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), 0);
	assert_int_equal(p.nop, 64 * 48);
	assert_int_equal(p.bytes, shape[0] * 4);
	for (uint64_t i = 0; i < p.nop; i++)
		want += p.op[i].bytes;
	assert_int_equal(want, p.bytes);
	/* Seeking to the middle of a comb finds the row there without walking up to it. */
	for (uint64_t i = 0; i < p.nop; i++) {
		uint64_t from = p.op[i].src_lo + (p.op[i].src_hi - p.op[i].src_lo) / 8 * 4;
		struct plan_cursor c;
		struct plan_row r;

		plan_rows_from(&p, &p.op[i], from, &c);
		assert_true(plan_row_next(&c, &r));
		assert_int_equal(r.src_off, from);
	}
	alarm(0);
}

#define WOVEN 8192u /* ranks */

/* A tensor whose pieces all reach over most of it, as declared but for the last rank's: it has what
 * rank `last` should have. */
static void woven(struct table *t, const uint64_t *shape, uint32_t ranks, uint32_t last)
{
	const struct ckpt_placement cut = { .how = CKPT_SHARD, .split_factor = 100 };
	const char *const name[] = { "fsdp" };
	cleanup_free uint32_t *rank = calloc(ranks, sizeof *rank);
	const struct mesh m = { 1, name, &ranks, ranks, rank };
	const struct layout l = { .nplace = 1, .place = &cut };
	struct table_tensor x = ROW(.component = "m", .name = "x", .dtype = CKPT_F32,
				    .rank = TABLE_NONE, .ndim = 1, .shape = shape);

	for (uint32_t r = 0; r < ranks; r++)
		rank[r] = r;
	place(t, "a");
	assert_int_equal(table_add_mesh(t, &m, NULL, &e), 0);
	assert_int_equal(table_add_layout(t, &l, &x.layout, &e), 0);
	assert_int_equal(table_add_tensor(t, &x, NULL, &e), 0);
	for (uint32_t r = 0; r < ranks; r++) {
		struct table_piece q = { .rank = r, .off = r * shape[0] };
		uint32_t coord = r == ranks - 1 ? last : r;

		assert_int_equal(layout_share(&m, &l, 1, shape, &coord, &t->arena, &q.set), 0);
		assert_int_equal(table_add_piece(t, &q, &e), 0);
	}
	seal(t);
}

/* Every pair of 8,192 interleaved pieces would take seconds for each tensor. */
TEST(interleaved_pieces_are_told_apart_by_their_declaration)
{
	const uint64_t shape[] = { WOVEN * 2000 };

	woven(&src, shape, WOVEN, WOVEN - 1);
	place(&dst, "b");
	box(&dst, add(&dst, "m", "x", CKPT_F32, 1, shape, 0, TABLE_NONE), 0, 0, shape[0]);
	seal(&dst);
	alarm(60); /* milliseconds; the product of all would take minutes */
	assert_int_equal(plan_make(&src, &dst, NULL, &p, NULL, &e), 0);
	alarm(0);
	assert_int_equal(p.nop, WOVEN);
	assert_int_equal(p.bytes, shape[0] * 4);
}

/* One rank has what another has: its own elements are missing, and the others come once. */
TEST(a_declaration_that_a_piece_contradicts_is_not_believed)
{
	const uint64_t shape[] = { 64 * 2000 };

	for (uint32_t last = 0; last < 64; last += last < 60 ? 20 : 1) {
		int rc;

		(void)teardown(NULL);
		(void)setup(NULL);
		woven(&src, shape, 64, last);
		place(&dst, "b");
		box(&dst, add(&dst, "m", "x", CKPT_F32, 1, shape, 0, TABLE_NONE), 0, 0, shape[0]);
		seal(&dst);
		rc = plan_make(&src, &dst, NULL, &p, &list, &e);
		assert_int_equal(rc, last < 63 ? -EMEDIUMTYPE : 0);
		if (last < 63)
			assert_non_null(strstr(list.text, "2000 of the 128000 elements"));
	}
}

UNIT(.setup = setup, .teardown = teardown);
