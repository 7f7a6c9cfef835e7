/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_table_build.c - tables: adding, finding, sealing, printing, comparing, uniting, and the
 * check that every element is in exactly one piece, which is held against counting elements one by
 * one.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "ckpt/base/dtype.h"
#include "tests/lib/unit.h"

static uint64_t seed;

static uint32_t below(uint32_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(sample_mix(seed) % n);
}

static struct table_tensor tensor(const char *name, uint32_t ndim, const uint64_t *shape)
{
	return (struct table_tensor)ROW(.component = "model", .name = name, .of = "",
					.dtype = CKPT_F32, .role = CKPT_PARAM, .layout = TABLE_NONE,
					.rank = TABLE_NONE, .ndim = ndim, .shape = shape);
}

static void add_place(struct table *t, const char *name, uint32_t rank, uint64_t bytes)
{
	struct table_place p = { .name = name, .rank = rank, .bytes = bytes };

	assert_int_equal(table_add_place(t, &p, NULL, NULL), 0);
}

static int add_box(struct table *t, uint32_t x, uint32_t rank, uint64_t off, const uint64_t *start,
		   const uint64_t *extent, struct ckpt_err *err)
{
	struct table_piece p = { .tensor = x, .rank = rank, .off = off };
	cleanup_arena struct arena a = { 0 };
	int r;

	assert_int_equal(indexset_box(t->tensor[x].ndim, start, extent, &a, &p.set), 0);
	r = table_add_piece(t, &p, err);
	return r;
}

TEST(a_tensor_is_found_by_its_key_before_and_after_sealing)
{
	struct table t = { 0 };
	uint64_t n = 4;
	char name[32];

	for (uint32_t i = 0; i < 5000; i++) {
		struct table_tensor x = tensor(name, 1, &n);
		uint32_t id;

		snprintf(name, sizeof name, "layers.%u.weight", i);
		assert_int_equal(table_find(&t, "model", name, TABLE_NONE), TABLE_NONE);
		assert_int_equal(table_add_tensor(&t, &x, &id, NULL), 0);
		assert_int_equal(id, i);
	}
	for (int sealed = 0; sealed < 2; sealed++) {
		for (uint32_t i = 0; i < 5000; i++) {
			snprintf(name, sizeof name, "layers.%u.weight", i);
			assert_int_equal(table_find(&t, "model", name, TABLE_NONE), i);
			assert_int_equal(table_find(&t, "model", name, 0), TABLE_NONE);
			assert_int_equal(table_find(&t, "optim", name, TABLE_NONE), TABLE_NONE);
		}
		if (!sealed)
			assert_int_equal(table_seal(&t, NULL), 0);
	}
	assert_int_equal(t.tensor[77].numel, 4);
	assert_int_equal(t.tensor[77].elem_bytes, 4);
	table_free(&t);
	assert_int_equal(table_find(&t, "model", "w", TABLE_NONE), TABLE_NONE);
}

TEST(the_key_is_component_name_and_rank_and_not_their_concatenation)
{
	cleanup_table struct table t = { 0 };
	struct ckpt_err err;
	uint64_t n = 4;
	struct table_tensor x = tensor("bc", 1, &n);

	x.component = "a";
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	x.component = "ab";
	x.name = "c";
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), -EALREADY);
	assert_non_null(strstr(err.msg, "ab/c"));
	x.dtype = CKPT_U8;
	x.flags = TENSOR_BLOB;
	x.rank = 3;
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	x.rank = 4;
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), -EALREADY);
	assert_non_null(strstr(err.msg, "ab/c of rank 4"));
	assert_int_equal(t.ntensor, 4);
}

TEST(a_malformed_tensor_is_refused_by_name)
{
	char longest[CKPT_NAME_MAX + 2];
	uint64_t shape[CKPT_DIMS_MAX + 1], huge[2] = { UINT64_C(1) << 40, UINT64_C(1) << 22 };
	const uint64_t many[2] = { UINT64_C(1) << 40, UINT64_C(1) << 22 },
		       none[2] = { 0, UINT64_C(1) << 62 };
	struct table_tensor bad[16];
	cleanup_table struct table t = { 0 };
	struct ckpt_err err;

	for (size_t i = 0; i < ARRAY_LEN(shape); i++)
		shape[i] = 1;
	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	for (int i = 0; i < 16; i++)
		bad[i] = tensor("w", 2, shape);
	bad[0].dtype = 0;
	bad[1].dtype = 99;
	bad[2].role = CKPT_COUNTER + 1;
	bad[3].cls = CKPT_SINK + 1;
	bad[4].flags = 2;
	bad[5].ndim = CKPT_DIMS_MAX + 1;
	bad[6].flags = TENSOR_BLOB;
	bad[7].rank = 1;
	bad[8].layout = 0;
	bad[9].name = longest;
	bad[10].shape = huge;
	bad[11].dtype = CKPT_F4;
	bad[11].ndim = 0;
	/* Two values a byte: their number must fit as well. */
	bad[12].dtype = CKPT_F4;
	bad[12].shape = many;
	bad[13].dtype = CKPT_F4;
	bad[13].shape = none;
	bad[14].media = CKPT_MEDIA_TEXT;
	bad[15] = tensor("w", 1, shape);
	bad[15].dtype = CKPT_U8;
	bad[15].flags = TENSOR_BLOB;
	bad[15].layout = TABLE_NONE;
	bad[15].media = CKPT_MEDIA_NPY + 1;
	for (int i = 0; i < 16; i++) {
		int want = i == 9			   ? -ENAMETOOLONG
			   : i == 10 || i == 12 || i == 13 ? -EOVERFLOW
							   : -EINVAL;

		assert_int_equal(table_add_tensor(&t, &bad[i], NULL, &err), want);
		assert_non_null(strstr(err.msg, i == 9 ? "xxx" : "model/w"));
		assert_int_equal(err.code, want);
	}
	assert_int_equal(t.ntensor, 0);
	longest[CKPT_NAME_MAX] = 0;
	struct table_tensor x = tensor(longest, 1, shape);

	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	x.name = "";
	x.component = "";
	x.ndim = 0;
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	assert_int_equal(t.tensor[1].numel, 1);
}

TEST(a_piece_lies_inside_its_tensor_and_its_place)
{
	uint64_t shape[2] = { 6, 4 }, start[2] = { 2, 0 }, extent[2] = { 3, 4 };
	struct table_tensor x = tensor("w", 2, shape);
	cleanup_table struct table t = { 0 };
	struct ckpt_err err;
	cleanup_arena struct arena a = { 0 };
	int64_t stride[2] = { 100, 1 };
	struct table_piece p = { .off = 0, .stride = stride };

	assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
	add_place(&t, "rank 0", 0, 48);
	assert_int_equal(add_box(&t, 0, 0, 0, start, extent, &err), 0);
	assert_int_equal(t.piece[0].len, 48);
	assert_int_equal(add_box(&t, 0, 0, 1, start, extent, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "rank 0"));
	assert_int_equal(add_box(&t, 0, 0, UINT64_MAX, start, extent, &err), -EINVAL);
	start[0] = 4;
	assert_int_equal(add_box(&t, 0, 0, 0, start, extent, &err), -EINVAL);
	extent[0] = 0;
	assert_int_equal(add_box(&t, 0, 0, 0, start, extent, &err), 0);
	assert_int_equal(t.npiece, 1); /* an empty share is no piece */

	/* Strided: rows 100 elements apart need room for the last one only. */
	start[0] = 0;
	extent[0] = 3;
	assert_int_equal(indexset_box(2, start, extent, &a, &p.set), 0);
	add_place(&t, "strided", 0, 4 * (2 * 100 + 3 + 1));
	p.place = 1;
	assert_int_equal(table_add_piece(&t, &p, &err), 0);
	assert_int_equal(t.piece[1].len, 4 * 204);
	stride[0] = 101;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	stride[0] = INT64_MAX;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	stride[0] = -1;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "negative stride"));
	p.stride = NULL;
	p.set.numel++;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	p.set.numel--;
	p.place = 2;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	p.place = 0;
	p.tensor = 1;
	assert_int_equal(table_add_piece(&t, &p, &err), -EINVAL);
	assert_int_equal(t.npiece, 2);
}

TEST(sealing_sorts_pieces_by_tensor_rank_place_and_offset)
{
	uint64_t shape[1] = { 1000 }, one = 1;
	cleanup_table struct table t = { 0 };

	seed = 11;
	for (uint32_t i = 0; i < 7; i++) {
		char name[8];
		struct table_tensor x = tensor(name, 1, shape);

		snprintf(name, sizeof name, "%u", i);
		assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
		add_place(&t, "p", i, 4096);
	}
	for (uint32_t i = 0; i < 500; i++) {
		struct table_piece p = ROW(.tensor = 2 * below(3) + 1, .rank = below(4),
					   .place = below(7), .off = 4 * below(1000));
		uint64_t start = below(1000);
		cleanup_arena struct arena a = { 0 };

		assert_int_equal(indexset_box(1, &start, &one, &a, &p.set), 0);
		assert_int_equal(table_add_piece(&t, &p, NULL), 0);
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(t.first[0], 0);
	assert_int_equal(t.first[7], 500);
	for (uint32_t x = 0; x < 7; x++) {
		assert_true(x % 2 || t.first[x] == t.first[x + 1]);
		for (uint32_t i = t.first[x]; i < t.first[x + 1]; i++) {
			const struct table_piece *p = &t.piece[i], *q = p - 1;

			assert_int_equal(p->tensor, x);
			if (i == t.first[x])
				continue;
			assert_true(q->rank < p->rank ||
				    (q->rank == p->rank &&
				     (q->place < p->place ||
				      (q->place == p->place && q->off <= p->off))));
		}
	}
}

TEST(equal_meshes_and_layouts_are_one)
{
	cleanup_table struct table t = { 0 };
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	struct ckpt_placement s0 = { .how = CKPT_SHARD, .mesh_dim = 1, .split_factor = 1 };
	uint32_t id;
	char buf[200];
	struct layout l = { .mesh = 0, .nplace = 1, .place = &s0 };

	assert_int_equal(mesh_parse("dp=2,fsdp=3", &a, &m, NULL), 0);
	assert_int_equal(table_add_mesh(&t, &m, &id, NULL), 0);
	assert_int_equal(id, 0);
	uint32_t swapped[6] = { 1, 0, 2, 3, 4, 5 };

	m.rank = swapped;
	assert_int_equal(table_add_mesh(&t, &m, &id, NULL), 0);
	assert_int_equal(id, 1);
	assert_int_equal(table_add_mesh(&t, &m, &id, NULL), 0);
	assert_int_equal(id, 1);
	swapped[0] = 0; /* rank 0 twice */
	assert_int_equal(table_add_mesh(&t, &m, &id, NULL), -EINVAL);
	assert_int_equal(table_add_layout(&t, &l, &id, NULL), 0);
	s0.split_factor = 4;
	assert_int_equal(table_add_layout(&t, &l, &id, NULL), 0);
	assert_int_equal(id, 1);
	assert_int_equal(table_add_layout(&t, &l, &id, NULL), 0);
	assert_int_equal(id, 1);
	l.mesh = 2;
	assert_int_equal(table_add_layout(&t, &l, &id, NULL), -EINVAL);
	l.mesh = 1;
	s0 = (struct ckpt_placement){ .how = CKPT_ONLY, .mesh_dim = 0, .split_factor = 1 };
	assert_int_equal(table_add_layout(&t, &l, &id, NULL), 0);
	assert_int_equal(t.nlayout, 3);
	assert_string_equal(table_layout_print(&t, 0, buf, sizeof buf),
			    "Shard(0)@fsdp, Replicate@dp");
	assert_string_equal(table_layout_print(&t, 1, buf, sizeof buf),
			    "StridedShard(0, 4)@fsdp, Replicate@dp");
	assert_string_equal(table_layout_print(&t, 2, buf, sizeof buf),
			    "Only(1)@dp, Replicate@fsdp");
	assert_string_equal(table_layout_print(&t, TABLE_NONE, buf, sizeof buf), "-");
	assert_string_equal(table_layout_print(&t, 0, buf, 9), "Shard(..");
	assert_true(table_layout_equal(&t, 1, &t, 1));
	assert_false(table_layout_equal(&t, 0, &t, 1));
	assert_false(table_layout_equal(&t, 0, &t, TABLE_NONE));
}

TEST(names_are_printed_without_control_characters)
{
	uint64_t n = 1;
	struct table_tensor x = tensor("new\nline\x1b[31m", 1, &n);
	char buf[64];

	assert_string_equal(table_tensor_print(&x, buf, sizeof buf), "model/new\\x0aline\\x1b[31m");
	assert_string_equal(table_tensor_print(&x, buf, 8), "model..");
	x.name = "rng";
	x.rank = 12;
	assert_string_equal(table_tensor_print(&x, buf, sizeof buf), "model/rng of rank 12");
	x.component = "";
	x.rank = TABLE_NONE;
	assert_string_equal(table_tensor_print(&x, buf, sizeof buf), "rng");
}

/* --- compare and merge --- */

TEST(every_difference_of_two_declarations_is_told)
{
	uint64_t a[2] = { 4, 3 }, b[2] = { 4, 4 };
	cleanup_table struct table x = { 0 }, y = { 0 };
	struct table_tensor p = tensor("w", 2, a), q = tensor("w", 2, b);
	cleanup_errlist struct ckpt_errlist l = { .code = -EMEDIUMTYPE };
	cleanup_sample struct sample s = { 0 };

	assert_int_equal(sample_make("fsdp=2", 0, 1, 1, &s), 0);
	assert_int_equal(table_add_tensor(&x, &p, NULL, NULL), 0);
	q.dtype = CKPT_BF16;
	q.role = CKPT_MASTER;
	q.cls = CKPT_CONST;
	q.of = "v";
	assert_int_equal(table_add_mesh(&y, &s.decl.mesh[0], NULL, NULL), 0);
	assert_int_equal(table_add_layout(&y, &s.decl.layout[0], &q.layout, NULL), 0);
	assert_int_equal(table_add_tensor(&y, &q, NULL, NULL), 0);
	table_tensor_compare(&x, 0, "rank 0", &x, 0, "rank 0", &l);
	assert_int_equal(l.n, 0);
	table_tensor_compare(&x, 0, "rank 0", &y, 0, "rank 1", &l);
	assert_int_equal(l.n, 6);
	assert_non_null(strstr(l.text, "model/w: dtype F32 on rank 0, BF16 on rank 1"));
	assert_non_null(strstr(l.text, "model/w: shape [4, 3] on rank 0, [4, 4] on rank 1"));
	assert_non_null(strstr(l.text, "model/w: role param on rank 0, master on rank 1"));
	assert_non_null(strstr(l.text, "model/w: class stable on rank 0, const on rank 1"));
	assert_non_null(strstr(l.text, "model/w: of '' on rank 0, of 'v' on rank 1"));
	assert_non_null(strstr(
		l.text, "model/w: layout boxes on rank 0, Shard(0)@fsdp (mesh fsdp=2) on rank 1"));
	/* What a blob's bytes are, too. */
	p = tensor("b", 1, a);
	p.dtype = CKPT_U8;
	p.flags = TENSOR_BLOB;
	p.layout = TABLE_NONE;
	p.media = CKPT_MEDIA_JSON;
	q = p;
	q.media = CKPT_RAW;
	assert_int_equal(table_add_tensor(&x, &p, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&y, &q, NULL, NULL), 0);
	table_tensor_compare(&x, 1, "rank 0", &x, 1, "rank 0", &l);
	assert_int_equal(l.n, 6);
	table_tensor_compare(&x, 1, "rank 0", &y, 1, "rank 1", &l);
	assert_int_equal(l.n, 7);
	assert_non_null(strstr(l.text, "model/b: content json on rank 0, raw on rank 1"));
}

/* The sentence about two declarations on meshes of n ranks, the second with two of them
 * exchanged. */
static void meshes_differ(uint32_t n, uint32_t at, const char *words)
{
	static const struct ckpt_placement s0 = { .how = CKPT_SHARD, .split_factor = 1 };
	cleanup_table struct table t = { 0 };
	cleanup_errlist struct ckpt_errlist l = { .code = -EINVAL };
	uint32_t rank[64];
	const char *const name[] = { "dp" };
	struct mesh m = { .ndim = 1, .name = name, .dim = &n, .nrank = n, .rank = rank };
	struct layout layout = { .nplace = 1, .place = &s0 };
	uint64_t shape[] = { 4, 3 };
	struct table_tensor p = tensor("w", 2, shape), q;

	for (uint32_t i = 0; i < n; i++)
		rank[i] = i;
	assert_int_equal(table_add_mesh(&t, &m, &layout.mesh, NULL), 0);
	assert_int_equal(table_add_layout(&t, &layout, &p.layout, NULL), 0);
	rank[at] = at + 1;
	rank[at + 1] = at;
	assert_int_equal(table_add_mesh(&t, &m, &layout.mesh, NULL), 0);
	q = p;
	q.name = "v";
	assert_int_equal(table_add_layout(&t, &layout, &q.layout, NULL), 0);
	assert_int_equal(table_add_tensor(&t, &p, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&t, &q, NULL, NULL), 0);
	table_tensor_compare(&t, 0, "rank 0", &t, 1, "rank 1", &l);
	if (l.n != 1 || !strstr(l.text, words))
		fail_msg("should say \"%s\": %s", words, l.text);
}

TEST(meshes_that_differ_in_their_ranks_alone_are_told_apart)
{
	meshes_differ(
		2, 0,
		"layout Shard(0)@dp (mesh dp=2, ranks 0, 1) on rank 0, Shard(0)@dp (mesh dp=2, "
		"ranks 1, 0) on rank 1");
	meshes_differ(
		64, 0,
		"(mesh dp=64, ranks 0, 1, 2, 3, 4, 5, 6, 7, ...) on rank 0, Shard(0)@dp (mesh "
		"dp=64, ranks 1, 0, 2, 3, 4, 5, 6, 7, ...)");
	meshes_differ(
		64, 62,
		"(mesh dp=64, ranks ..., 58, 59, 60, 61, 62, 63) on rank 0, Shard(0)@dp (mesh "
		"dp=64, ranks ..., 58, 59, 60, 61, 63, 62)");
}

TEST(uniting_the_tables_of_all_ranks_keeps_every_piece_and_finds_every_contradiction)
{
	struct ckpt_errlist l = { .code = -EINVAL };
	struct table t = { 0 };
	struct sample s[4];
	uint32_t npiece = 0;

	for (uint32_t r = 0; r < 4; r++) {
		uint32_t place;

		assert_int_equal(sample_make("dp=2,fsdp=2", r, 5, 1, &s[r]), 0);
		assert_int_equal(table_merge(&t, &s[r].decl, &place, &l, NULL), 0);
		assert_int_equal(place, r);
		npiece += s[r].decl.npiece;
	}
	assert_int_equal(l.n, 0);
	assert_int_equal(t.npiece, npiece);
	assert_int_equal(t.nplace, 4);
	assert_int_equal(t.nmesh, 1);
	assert_int_equal(t.nlayout, s[0].decl.nlayout);
	assert_int_equal(t.ntensor, s[0].decl.ntensor + 3); /* a blob per rank */
	for (uint32_t i = 0; i < t.npiece; i++)
		assert_int_equal(t.piece[i].rank, t.piece[i].place);

	/* The same model on another mesh: every tensor with a layout is declared otherwise. */
	struct sample other;

	assert_int_equal(sample_make("fsdp=4", 1, 5, 1, &other), 0);
	assert_int_equal(table_merge(&t, &other.decl, NULL, &l, NULL), 0);
	assert_int_equal(l.n, ARRAY_LEN(sample_specs));
	assert_non_null(strstr(l.text, "optim/step: layout"));
	assert_non_null(strstr(l.text, "on memory of rank 0"));
	assert_non_null(strstr(l.text, "on memory of rank 1"));
	assert_int_equal(t.npiece, npiece + 2); /* the blobs only */
	ckpt_errlist_free(&l);
	table_free(&t);
	sample_free(&other);
	for (uint32_t r = 0; r < 4; r++)
		sample_free(&s[r]);
}

/* --- cover --- */

#define CELLS 2048

/* How often each element of tensor x is in a piece. */
static void count_cells(const struct table *t, uint32_t x, uint8_t *count)
{
	memset(count, 0, CELLS);
	for (uint32_t i = t->first[x]; i < t->first[x + 1]; i++) {
		const struct table_piece *p = &t->piece[i];
		uint64_t *list[CKPT_DIMS_MAX], at[CKPT_DIMS_MAX] = { 0 };

		for (uint32_t d = 0; d < p->set.ndim; d++)
			list[d] = sample_indices(&p->set.dim[d]);
		for (uint64_t k = 0; k < p->set.numel; k++) {
			uint64_t g = 0;

			for (uint32_t d = 0; d < p->set.ndim; d++)
				g = g * t->tensor[x].shape[d] + list[d][at[d]];
			count[g]++;
			for (uint32_t d = p->set.ndim; d-- > 0;) {
				if (++at[d] < p->set.dim[d].total)
					break;
				at[d] = 0;
			}
		}
		for (uint32_t d = 0; d < p->set.ndim; d++)
			free(list[d]);
	}
}

/* A list of the cut of n indices in k chunks of a random kind. */
static void random_cut(uint64_t n, uint32_t k, uint32_t i, uint32_t factor, struct arena *a,
		       struct indices *ret)
{
	struct indices all;

	assert_int_equal(indices_range(0, n, a, &all), 0);
	assert_int_equal(indices_cut(&all, k, i, factor, a, ret), 0);
}

/* A random grid of pieces, some of them then dropped, doubled, or shifted. */
static void random_pieces(struct table *t, uint32_t ndim, const uint64_t *shape)
{
	uint32_t k[4] = { 1, 1, 1, 1 }, factor[4] = { 1, 1, 1, 1 }, cells = 1,
		 spoil = below(3) ? 0 : 1 + below(12);
	cleanup_arena struct arena a = { 0 };

	for (uint32_t d = 0; d < ndim; d++) {
		k[d] = 1 + below(4);
		factor[d] = below(2) ? 1 : 1 + below(6);
		cells *= k[d];
	}
	for (uint32_t c = 0; c < cells; c++) {
		struct indices dim[4];
		struct table_piece p = { .rank = c,
					 .set = { .ndim = ndim, .numel = 1, .dim = dim } };
		uint32_t rest = c, times = 1;

		for (uint32_t d = 0; d < ndim; d++) {
			random_cut(shape[d], k[d], rest % k[d], factor[d], &a, &dim[d]);
			rest /= k[d];
		}
		if (spoil && !below(spoil + 1)) {
			times = below(3);
			if (ndim && times && dim[0].total > 1)
				assert_int_equal(indices_slice(&dim[0], below(2),
							       dim[0].total - below(2), &a,
							       &dim[0]),
						 0);
		}
		for (uint32_t d = 0; d < ndim; d++)
			p.set.numel *= dim[d].total;
		for (; times; times--)
			assert_int_equal(table_add_piece(t, &p, NULL), 0);
	}
}

TEST(cover_agrees_with_counting_every_element)
{
	static uint8_t count[CELLS];
	uint32_t good = 0, bad = 0;

	seed = 20240607;
	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < 4000; i++) {
		uint64_t shape[4], numel = 1;
		uint32_t ndim = below(5);
		cleanup_errlist struct ckpt_errlist l = { .code = -EINVAL };
		cleanup_table struct table t = { 0 };
		struct table_tensor x = tensor("w", ndim, shape);
		bool once = true, twice = false;

		for (uint32_t d = 0; d < ndim; d++)
			numel *= shape[d] = 1 + below(ndim < 3 ? 40 : 6);
		assert_true(numel <= CELLS);
		assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
		add_place(&t, "p", 0, 4 * CELLS);
		random_pieces(&t, ndim, shape);
		assert_int_equal(table_seal(&t, NULL), 0);
		count_cells(&t, 0, count);
		for (uint64_t k = 0; k < numel; k++) {
			once &= count[k] == 1;
			twice |= count[k] > 1;
		}
		table_cover(&t, &l);
		assert_int_equal(l.n == 0, once);
		if (twice)
			assert_non_null(strstr(l.text, "is in two pieces"));
		if (!once && !twice) { /* the message names the first element that is missing */
			uint64_t first = 0, rest;
			char want[200] = "]", one[32];

			while (count[first])
				first++;
			rest = first;
			for (uint32_t d = ndim; d-- > 0; rest /= shape[d]) {
				char before[200];

				memcpy(before, want, sizeof before);
				snprintf(one, sizeof one, "%s%llu", d ? ", " : "",
					 (unsigned long long)(rest % shape[d]));
				snprintf(want, sizeof want, "%s%.150s", one, before);
			}
			snprintf(one, sizeof one, "element [%.20s", want);
			if (!strstr(l.text, one))
				fail_msg("%s, but it says: %s", one, l.text);
		}
		good += once;
		bad += !once;
	}
	assert_true(good > 500 && bad > 300); /* both answers were asked for */
}

TEST(cover_leaves_out_sinks_and_asks_for_all_else)
{
	uint64_t shape[2] = { 3, 2 }, none[2] = { 0, 5 };
	cleanup_errlist struct ckpt_errlist l = { .code = -EINVAL };
	cleanup_table struct table t = { 0 };
	struct table_tensor sink = tensor("sink", 2, shape), empty = tensor("empty", 2, none),
			    scalar = tensor("scalar", 0, NULL);

	sink.cls = CKPT_SINK;
	assert_int_equal(table_add_tensor(&t, &sink, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&t, &empty, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&t, &scalar, NULL, NULL), 0);
	assert_int_equal(table_seal(&t, NULL), 0);
	table_cover(&t, &l);
	assert_int_equal(l.n, 1);
	assert_string_equal(
		l.text,
		"model/scalar: element [] is in no piece; its 0 pieces hold 0 of 1 elements");
}

TEST(cover_of_a_large_grid_costs_little)
{
	uint64_t shape[2] = { UINT64_C(1) << 24, UINT64_C(1) << 10 };
	cleanup_errlist struct ckpt_errlist l = { .code = -EINVAL };
	cleanup_table struct table t = { 0 };
	struct table_tensor x = tensor("w", 2, shape);
	uint64_t began;

	assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
	add_place(&t, "p", 0, INT64_MAX);
	for (uint32_t i = 0; i < 8192;
	     i++) /* pair by pair would be 2^31 steps, which is over the limit */
		for (uint32_t k = 0; k < 8; k++) {
			cleanup_arena struct arena a = { 0 };
			struct indices dim[2];
			struct table_piece p = { .rank = 8 * i + k,
						 .set = { .ndim = 2, .dim = dim } };

			random_cut(shape[0], 8192, i, 1, &a, &dim[0]);
			random_cut(shape[1], 8, k, 1024 / 16, &a, &dim[1]); /* combs */
			p.set.numel = dim[0].total * dim[1].total;
			assert_int_equal(table_add_piece(&t, &p, NULL), 0);
		}
	assert_int_equal(table_seal(&t, NULL), 0);
	began = now_ns();
	table_cover(&t, &l);
	assert_int_equal(l.n, 0);
	assert_true(now_ns() - began <
		    20 * NS_PER_S); /* some ms; the limit is for sanitizers on a busy machine */
}

TEST(the_sample_is_the_same_model_on_every_mesh)
{
	static const char *const mesh[] = { "fsdp=1",		"fsdp=3", "dp=2,fsdp=2",
					    "pp=2,tp=2,fsdp=2", "tp=3",	  "fsdp=5,dp=1" };
	char why[300] = "";

	for (size_t i = 0; i < ARRAY_LEN(mesh); i++) {
		cleanup_sample struct sample s = { 0 }, first = { 0 };

		assert_int_equal(sample_make("fsdp=2", 0, 9, 1, &first), 0);
		assert_int_equal(sample_make(mesh[i], 0, 9, 1, &s), 0);
		for (uint32_t x = 0; x < s.decl.ntensor; x++) {
			const struct table_tensor *p = &s.decl.tensor[x],
						  *q = &first.decl.tensor[x];

			assert_string_equal(p->name, q->name);
			assert_int_equal(p->ndim, q->ndim);
			assert_memory_equal(p->shape, q->shape, p->ndim * sizeof *p->shape);
			assert_int_equal(p->dtype, q->dtype);
		}
		sample_fill(&s, 4);
		assert_true(sample_check(&s, 4, why, sizeof why));
		assert_true(sample_check_blobs(&s, 4, why, sizeof why));
		assert_false(sample_check(&s, 5, why, sizeof why));
		assert_false(sample_check_blobs(&s, 5, why, sizeof why));
		((uint8_t *)s.mem)[s.mem_bytes - 1] ^= 1;
		assert_false(sample_check(&s, 4, why, sizeof why));
	}
}

TEST(an_average_has_a_name_and_two_of_one_that_differ_are_mixed)
{
	static const char *const wrong[] = { "", "a/b", ".carry", "fast.carry" };
	struct table_average x =
		ROW(.name = "fast", .schedule = "every=1", .updates = 3, .last_step = 9);
	cleanup_table struct table t = { 0 }, u = { 0 };
	struct ckpt_errlist l = { .code = -EPROTO };
	static char schedule[TABLE_SCHEDULE_MAX + 2];
	struct ckpt_err err;
	uint32_t id;

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		x.name = wrong[i];
		assert_int_equal(table_add_average(&t, &x, NULL, &err), -EINVAL);
	}
	x.name = "fast";
	x.flags = 8;
	assert_int_equal(table_add_average(&t, &x, NULL, &err), -EINVAL);
	x.flags = 0;
	memset(schedule, 'x', sizeof schedule - 1);
	x.schedule = schedule;
	assert_int_equal(table_add_average(&t, &x, NULL, &err), -EINVAL);
	schedule[TABLE_SCHEDULE_MAX] = 0;
	assert_ok(table_add_average(&u, &x, NULL, &err));
	x.schedule = "every=1";
	table_free(&u);
	assert_ok(table_add_average(&t, &x, &id, &err));
	assert_ok(table_add_average(&t, &x, &id, &err)); /* found */
	assert_int_equal(id, 0);
	assert_int_equal(t.average[0].flags, 0);
	x.rule = 1; /* another */
	assert_ok(table_add_average(&t, &x, &id, &err));
	assert_int_equal(id, 1);
	x.updates++;
	assert_ok(table_add_average(&t, &x, &id, &err));
	assert_int_equal(id, 1);
	assert_int_equal(t.average[1].flags, AVERAGE_MIXED);
	assert_int_equal(t.average[1].updates, 3); /* the first one's */
	x.rule = 0;
	x.updates--;
	x.flags = AVERAGE_MIXED; /* somebody else's were */
	assert_ok(table_add_average(&t, &x, &id, &err));
	assert_int_equal(t.average[0].flags, AVERAGE_MIXED);
	/* One that the other does not have. */
	x.name = "slow";
	assert_ok(table_add_average(&u, &x, NULL, &err));
	assert_int_equal(table_seal(&u, NULL), 0);
	assert_ok(table_join(&t, &u, "MANIFEST", "a part", false, &l, &err));
	assert_int_equal(l.n, 1);
	assert_non_null(strstr(l.text, "average slow, rule 0: it is not in MANIFEST"));
	ckpt_errlist_free(&l);
}

/* The longest component, '/', the longest name. */
TEST(a_key_of_any_tensor_can_be_named)
{
	static char component[CKPT_NAME_MAX + 1], key[TABLE_KEY_BYTES + 1];
	struct table_tensor x = ROW(.component = component, .name = component, .of = "",
				    .dtype = CKPT_F32, .layout = TABLE_NONE, .rank = TABLE_NONE);
	cleanup_table struct table t = { 0 };
	uint32_t id;

	memset(component, 'c', CKPT_NAME_MAX);
	assert_ok(table_add_tensor(&t, &x, &id, NULL));
	x.of = table_key(&t.tensor[id], key);
	assert_int_equal(strlen(x.of), TABLE_KEY_BYTES - 1);
	x.name = "w";
	assert_ok(table_add_tensor(&t, &x, NULL, NULL));
	assert_int_equal(table_find_key(&t, t.tensor[1].of), id);
	memset(key, 'x', TABLE_KEY_BYTES);
	x.name = "v";
	assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), -ENAMETOOLONG);
}
