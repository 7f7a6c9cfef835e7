/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_part.c - the raw space of a rank, its chunks, and what may become a MANIFEST.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/unit.h"

static const char *const meshes[] = { "fsdp=1", "fsdp=3",	    "dp=2,fsdp=2",
				      "dp=5",	"pp=2,tp=2,fsdp=2", "tp=3" };

static uint32_t world_of(const char *mesh)
{
	struct sample s;
	uint32_t n;

	assert_int_equal(sample_make(mesh, 0, 1, 1, &s), 0);
	n = s.world;
	sample_free(&s);
	return n;
}

TEST(the_parts_of_all_ranks_hold_every_element_once)
{
	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		struct ckpt_errlist l = { .code = -EINVAL };
		struct table all = { 0 };
		uint32_t world = world_of(meshes[i]);

		for (uint32_t r = 0; r < world; r++) {
			struct sample s;
			struct table t;

			assert_int_equal(sample_make(meshes[i], r, 1, 3, &s), 0);
			assert_int_equal(native_part_table(&s.decl, r, &t, &l, NULL), 0);
			assert_int_equal(table_merge(&all, &t, NULL, &l, NULL), 0);
			table_free(&t);
			sample_free(&s);
		}
		assert_int_equal(table_seal(&all, NULL), 0);
		table_cover(&all, &l);
		if (l.n)
			fail_msg("%s: %s", meshes[i], l.text);
		assert_int_equal(all.ntensor,
				 ARRAY_LEN(sample_specs) + 1 + world); /* cursor, and an rng each */
		table_free(&all);
		ckpt_errlist_free(&l);
	}
}

/* Rules 1 to 3 of the raw space. */
static void check_raw_space(const struct table *t, uint32_t rank)
{
	uint64_t nchunk, data_end, end = 0, at = CONTAINER_BLOCK;
	struct chunk *chunk;

	assert_int_equal(t->nplace, 1);
	assert_int_equal(t->place[0].rank, rank);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct table_tensor *x = &t->tensor[p->tensor];

		assert_int_equal(p->rank, rank);
		assert_int_equal(p->off % (p->len >= NATIVE_BIG ? MIB : NATIVE_PACK), 0);
		assert_int_equal(p->len, p->set.numel * x->elem_bytes);
		assert_null(p->stride);
		assert_int_equal(p->fp, 0);
		assert_true(i == 0 ||
			    t->piece[i - 1].tensor != p->tensor); /* one piece per tensor */
		end = MAX(end, p->off + p->len);
		for (uint32_t k = 0; k < i; k++) {
			const struct table_piece *q = &t->piece[k];
			const struct table_tensor *y = &t->tensor[q->tensor];

			assert_true(p->off >= q->off + q->len || q->off >= p->off + p->len);
			if (x->dtype == y->dtype && !strcmp(x->component, y->component))
				continue;
			/* Not of one group: no chunk has both. */
			assert_true((p->off + p->len - 1) / MIB < q->off / MIB ||
				    (q->off + q->len - 1) / MIB < p->off / MIB);
		}
	}
	assert_int_equal(t->place[0].bytes, end);
	assert_int_equal(chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &nchunk, &data_end, NULL), 0);
	assert_int_equal(nchunk, div_up(end, MIB));
	for (uint64_t c = 0; c < nchunk; c++) {
		uint64_t last = c * MIB;

		for (uint32_t i = 0; i < t->npiece; i++) {
			const struct table_piece *p = &t->piece[i];

			if (p->off < (c + 1) * MIB && p->off + p->len > c * MIB) {
				uint64_t stop = MIN(p->off + p->len, (c + 1) * MIB);

				last = MAX(last, stop);
			}
		}
		assert_int_equal(chunk[c].raw_len, last - c * MIB);
		assert_int_equal(chunk[c].stored_len, chunk[c].raw_len);
		assert_int_equal(chunk[c].off, chunk[c].raw_len ? at : 0);
		at += align_up(chunk[c].raw_len, 4096);
	}
	assert_int_equal(data_end, at);
	free(chunk);
}

static const struct table_piece *piece_of(const struct table *t, const struct table_tensor *x)
{
	uint32_t i = table_find(t, x->component, x->name, x->rank);

	return i == TABLE_NONE || t->first[i] == t->first[i + 1] ? NULL : &t->piece[t->first[i]];
}

TEST(a_const_part_has_the_const_tensors_of_a_rank_and_the_main_one_all_others)
{
	uint32_t nconst = 0, lists = 0;

	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		for (uint32_t r = 0; r < world_of(meshes[i]); r++) {
			struct table t[3];
			struct sample s;

			assert_int_equal(sample_make(meshes[i], r, 1, 3, &s), 0);
			for (uint32_t k = 0; k < 3; k++)
				assert_int_equal(
					native_part_table_of(&s.decl, r, k, &t[k], NULL, NULL), 0);
			check_raw_space(&t[NATIVE_MAIN], r);
			check_raw_space(&t[NATIVE_CONST], r);
			/* The main one lists them all, the const one what it has pieces of. */
			assert_int_equal(t[NATIVE_MAIN].ntensor, t[NATIVE_WHOLE].ntensor);
			assert_int_equal(t[NATIVE_CONST].ntensor, t[NATIVE_CONST].npiece);
			assert_int_equal(t[NATIVE_MAIN].npiece + t[NATIVE_CONST].npiece,
					 t[NATIVE_WHOLE].npiece);
			for (uint32_t k = 0; k < t[NATIVE_WHOLE].ntensor; k++) {
				const struct table_tensor *x = &t[NATIVE_WHOLE].tensor[k];
				const struct table_piece *p = piece_of(&t[NATIVE_WHOLE], x), *q,
							 *other;
				bool constant = x->cls == CKPT_CONST && !(x->flags & TENSOR_BLOB);

				q = piece_of(&t[constant ? NATIVE_CONST : NATIVE_MAIN], x);
				other = piece_of(&t[constant ? NATIVE_MAIN : NATIVE_CONST], x);
				assert_true(!p == !q && !other);
				assert_true(!p || indexset_equal(&p->set, &q->set));
				nconst += p && constant;
			}
			lists += t[NATIVE_CONST].ntensor > 0;
			for (uint32_t k = 0; k < 3; k++)
				table_free(&t[k]);
			sample_free(&s);
		}
	}
	assert_true(nconst > 0 && lists > 0);
}

TEST(the_raw_space_keeps_its_rules_and_is_the_same_every_time)
{
	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		for (uint32_t r = 0; r < world_of(meshes[i]); r++) {
			struct table t, u;
			struct sample s;

			assert_int_equal(sample_make(meshes[i], r, 1, 1 + 4 * (i % 2), &s), 0);
			assert_int_equal(native_part_table(&s.decl, r, &t, NULL, NULL), 0);
			assert_int_equal(native_part_table(&s.decl, r, &u, NULL, NULL), 0);
			check_raw_space(&t, r);
			assert_int_equal(t.npiece, u.npiece);
			for (uint32_t k = 0; k < t.npiece; k++)
				assert_int_equal(t.piece[k].off, u.piece[k].off);
			/* Of what it owns nothing it still says that it is there; other ranks'
			 * blobs are theirs to tell. */
			assert_int_equal(t.ntensor, ARRAY_LEN(sample_specs) + 1 + (r == 0));
			table_free(&t);
			table_free(&u);
			sample_free(&s);
		}
	}
}

static void add(struct table *t, const char *name, uint32_t cls, uint32_t layout,
		const uint64_t *shape)
{
	struct table_tensor x =
		ROW(.component = "m", .name = name, .of = "", .dtype = CKPT_F32, .cls = cls,
		    .layout = layout, .rank = TABLE_NONE, .ndim = 2, .shape = shape);

	assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
}

static void hold(struct table *t, uint32_t tensor, uint64_t from, uint64_t rows)
{
	uint64_t start[2] = { from, 0 }, extent[2] = { rows, t->tensor[tensor].shape[1] };
	struct table_piece p = { .tensor = tensor, .rank = 1 };
	struct arena a = { 0 };

	assert_int_equal(indexset_box(2, start, extent, &a, &p.set), 0);
	assert_int_equal(table_add_piece(t, &p, NULL), 0);
	arena_free(&a);
}

/* Rank 1 of fsdp=2 with five tensors of 8 rows, its share being rows 4 to 7. */
static void declare(struct table *t, const struct mesh *m)
{
	struct ckpt_placement s0 = { .how = CKPT_SHARD, .split_factor = 1 };
	struct layout l = { .nplace = 1, .place = &s0 };
	struct table_place place = { .name = "memory of rank 1", .rank = 1, .bytes = 1 << 20 };
	uint64_t shape[2] = { 8, 3 };

	*t = (struct table){ 0 };
	assert_int_equal(table_add_place(t, &place, NULL, NULL), 0);
	assert_int_equal(table_add_mesh(t, m, NULL, NULL), 0);
	assert_int_equal(table_add_layout(t, &l, NULL, NULL), 0);
	add(t, "two.boxes", CKPT_STABLE, 0, shape);
	add(t, "sink", CKPT_SINK, 0, shape);
	add(t, "more", CKPT_STABLE, 0, shape);
	add(t, "short", CKPT_STABLE, 0, shape);
	add(t, "twice", CKPT_STABLE, 0, shape);
}

TEST(a_declaration_that_lacks_some_of_its_share_is_refused_by_every_name)
{
	struct ckpt_errlist l = { .code = -EINVAL };
	struct arena a = { 0 };
	struct ckpt_err err;
	struct table t, part;
	struct mesh m;

	assert_int_equal(mesh_parse("fsdp=2", &a, &m, NULL), 0);
	declare(&t, &m);
	hold(&t, 0, 4, 1); /* in two boxes: allowed */
	hold(&t, 0, 5, 3);
	hold(&t, 2, 0, 8); /* more than its share: allowed */
	hold(&t, 3, 4, 3);
	hold(&t, 4, 4, 4);
	hold(&t, 4, 6, 1);
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(native_part_table(&t, 1, &part, &l, &err), -EINVAL);
	assert_int_equal(l.n, 2);
	assert_non_null(strstr(l.text, "m/short: 3 of the 12 elements"));
	assert_non_null(strstr(l.text, "m/twice: element [6, 0] is in two pieces"));
	assert_non_null(strstr(err.msg, "m/short"));
	assert_int_equal(native_part_table(&t, 1, &part, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "m/twice"));
	assert_int_equal(native_part_table(&t, 1, &part, NULL, NULL), -EINVAL);
	table_free(&t);
	declare(&t, &m);
	for (uint32_t x = 0; x < 5; x++)
		if (x != 1)
			hold(&t, x, 4, 4);
	assert_int_equal(table_seal(&t, NULL), 0);
	assert_int_equal(native_part_table(&t, 1, &part, &l, &err), 0);
	assert_int_equal(part.ntensor, 4);
	assert_int_equal(table_find(&part, "m", "sink", TABLE_NONE), TABLE_NONE);
	table_free(&part);
	/* A rank outside the mesh owns nothing, and has a part all the same. */
	assert_int_equal(native_part_table(&t, 9, &part, &l, &err), 0);
	assert_int_equal(part.npiece, 0);
	assert_int_equal(part.place[0].bytes, 0);
	table_free(&part);
	table_free(&t);
	ckpt_errlist_free(&l);
	arena_free(&a);
}

/* What all ranks know of the raw space without looking at what they hold. */
TEST(the_raw_order_is_that_of_the_pieces)
{
	for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
		uint32_t order[64], seen = 0;
		uint64_t end = 0;
		struct sample s;
		struct table t;

		assert_int_equal(sample_make(meshes[i], 0, 1, 1, &s), 0);
		assert_true(s.decl.ntensor <= ARRAY_LEN(order));
		assert_int_equal(native_raw_order(&s.decl, order), 0);
		assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, NULL), 0);
		for (uint32_t k = 0; k < s.decl.ntensor; k++) {
			const struct table_tensor *x = &s.decl.tensor[order[k]];
			uint32_t mine = table_find(&t, x->component, x->name, x->rank);

			for (uint32_t h = 0; h < k; h++)
				assert_int_not_equal(order[h], order[k]);
			for (uint32_t p = 0; p < t.npiece; p++) {
				if (t.piece[p].tensor != mine)
					continue;
				assert_true(t.piece[p].off >= end);
				end = t.piece[p].off + t.piece[p].len;
				seen++;
			}
		}
		assert_int_equal(seen, t.npiece);
		table_free(&t);
		sample_free(&s);
	}
}

static void add_blob(struct table *t, uint32_t owner)
{
	uint64_t bytes = 8, zero = 0;
	struct table_tensor x = ROW(.component = "blob", .name = "rng", .of = "", .dtype = CKPT_U8,
				    .flags = TENSOR_BLOB, .layout = TABLE_NONE, .rank = owner,
				    .ndim = 1, .shape = &bytes);
	struct table_piece p = { .off = (uint64_t)owner * 64 };
	struct arena a = { 0 };

	assert_int_equal(table_add_tensor(t, &x, &p.tensor, NULL), 0);
	assert_int_equal(indexset_box(1, &zero, &bytes, &a, &p.set), 0);
	assert_int_equal(table_add_piece(t, &p, NULL), 0);
	arena_free(&a);
}

/* Six ranks' blobs, converted to a mesh of two: none is lost, and none written twice. */
TEST(blobs_of_ranks_that_are_no_more_have_an_owner_each)
{
	struct table_place place = { .name = "memory", .bytes = 4096 };
	struct arena a = { 0 };
	struct mesh m;

	assert_int_equal(mesh_parse("fsdp=2", &a, &m, NULL), 0);
	for (int meshes_n = 0; meshes_n < 2; meshes_n++) {
		struct table t = { 0 }, part;

		assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
		if (meshes_n)
			assert_int_equal(table_add_mesh(&t, &m, NULL, NULL), 0);
		for (uint32_t r = 0; r < 6; r++)
			add_blob(&t, r);
		assert_int_equal(table_seal(&t, NULL), 0);
		for (uint32_t r = 0; r < 2; r++) {
			assert_int_equal(native_part_table(&t, r, &part, NULL, NULL), 0);
			for (uint32_t i = 0; i < 6; i++)
				assert_int_equal(table_find(&part, "blob", "rng", i) != TABLE_NONE,
						 meshes_n ? i % 2 == r : i == r);
			assert_int_equal(part.npiece, meshes_n ? 3 : 1);
			table_free(&part);
		}
		table_free(&t);
	}
	arena_free(&a);
}

/* A tensor of 6 x 4 in three boxes that lie in memory in another order, on a mesh or alone. */
static void add_boxes(struct table *t, const char *name, uint32_t layout, bool backwards)
{
	static const uint64_t shape[] = { 6, 4 }, start[][2] = { { 0, 0 }, { 2, 0 }, { 2, 2 } },
			      extent[][2] = { { 2, 4 }, { 4, 2 }, { 4, 2 } };
	struct table_tensor x =
		ROW(.component = "m", .name = name, .of = "", .dtype = CKPT_F32, .layout = layout,
		    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct arena a = { 0 };
	uint32_t id;

	assert_int_equal(table_add_tensor(t, &x, &id, NULL), 0);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t k = backwards ? 2 - i : i;
		struct table_piece p = { .tensor = id, .rank = 5, .off = 64 * (uint64_t)i };

		assert_int_equal(indexset_box(2, start[k], extent[k], &a, &p.set), 0);
		assert_int_equal(table_add_piece(t, &p, NULL), 0);
	}
	arena_free(&a);
}

TEST(boxes_are_pieces_each_in_the_order_of_their_elements_and_without_a_layout)
{
	static const char *const name[] = { "dp" };
	static const uint32_t five[] = { 5 }, both[] = { 3, 5 }, one = 1, two = 2;
	const struct mesh mesh[] = { { 1, name, &two, 2, both }, { 1, name, &one, 1, five } };
	struct table part[2];

	for (uint32_t backwards = 0; backwards < 2; backwards++) {
		struct table_place place = { .name = "memory", .bytes = 4096 };
		struct layout shared = { .mesh = 0, .mode = CKPT_BOXES },
			      mine = { .mesh = 1, .mode = CKPT_BOXES }, other = { .mesh = 0 };
		uint32_t id[3];
		struct ckpt_err err;
		struct table t = { 0 };

		assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(table_add_mesh(&t, &mesh[i], NULL, NULL), 0);
		assert_int_equal(table_add_layout(&t, &shared, &id[0], NULL), 0);
		assert_int_equal(table_add_layout(&t, &mine, &id[1], NULL), 0);
		assert_int_equal(table_add_layout(&t, &other, &id[2], NULL), 0);
		add_boxes(&t, "alone", TABLE_NONE, backwards);
		add_boxes(&t, "mine", id[1], backwards);
		add_boxes(&t, "both", id[0], backwards);
		assert_int_equal(table_seal(&t, NULL), 0);
		assert_ok_err(native_part_table(&t, 5, &part[backwards], NULL, &err), &err);
		assert_int_equal(part[backwards].nmesh, 1); /* that of the layout which is one */
		assert_int_equal(part[backwards].mesh[0].nrank, 2);
		assert_int_equal(part[backwards].nlayout, 1);
		/* What the daemon makes of the declaration itself. */
		assert_int_equal(table_boxes_forget(&t), 0);
		assert_int_equal(t.nmesh, 1);
		assert_int_equal(t.nlayout, 1);
		for (uint32_t i = 0; i < t.ntensor; i++) {
			assert_int_equal(t.tensor[i].layout, TABLE_NONE);
			assert_int_equal(part[backwards].tensor[i].layout, TABLE_NONE);
		}
		table_free(&t);
	}
	assert_int_equal(part[0].npiece, part[1].npiece);
	assert_in_range(part[0].npiece, 7, 8); /* of the shared ones rank 3 has some */
	for (uint32_t i = 0; i < part[0].npiece; i++) {
		const struct table_piece *p = &part[0].piece[i], *q = &part[1].piece[i];

		assert_int_equal(p->tensor, q->tensor);
		assert_int_equal(p->off, q->off);
		assert_true(indexset_equal(&p->set, &q->set));
		if (i && p[-1].tensor == p->tensor)
			assert_true(p->off >= p[-1].off + p[-1].len);
	}
	assert_int_equal(part[0].piece[0].set.dim[0].run[0].start, 0);
	assert_int_equal(part[0].piece[2].set.dim[1].run[0].start, 2);
	table_free(&part[0]);
	table_free(&part[1]);
}

/* One tensor after the other of so many bytes, in the memory of rank 0 of one. */
static int part_of_sizes(const uint64_t *size, uint32_t n, struct table *ret, struct ckpt_err *err)
{
	struct table_place place = { .name = "memory", .bytes = INT64_MAX };
	struct table t = { 0 };
	uint64_t zero = 0, at = 0;
	struct arena a = { 0 };
	int r;

	assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		char name[16];
		struct table_tensor x =
			ROW(.component = "m", .name = name, .of = "", .dtype = CKPT_U8,
			    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1, .shape = &size[i]);
		struct table_piece p = { .tensor = i, .off = at };

		snprintf(name, sizeof name, "t%u", i);
		at += size[i];
		assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
		assert_int_equal(indexset_box(1, &zero, &size[i], &a, &p.set), 0);
		assert_int_equal(table_add_piece(&t, &p, NULL), 0);
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	r = native_part_table(&t, 0, ret, NULL, err);
	table_free(&t);
	arena_free(&a);
	return r;
}

TEST(big_pieces_start_on_chunks_and_a_part_has_at_most_a_tebibyte)
{
	static const uint64_t some[] = { 100, NATIVE_BIG, NATIVE_BIG - 1, NATIVE_BIG + 1 };
	uint64_t most[2] = { NATIVE_PART_BYTES_MAX - 2 * MIB, 2 * MIB };
	struct ckpt_err err;
	struct table t;

	assert_int_equal(part_of_sizes(some, 4, &t, &err), 0);
	assert_int_equal(t.piece[1].off, MIB);
	assert_int_equal(t.piece[2].off, 9 * MIB);
	assert_int_equal(t.piece[3].off, 17 * MIB);
	table_free(&t);
	assert_int_equal(part_of_sizes(most, 2, &t, &err), 0);
	assert_int_equal(t.place[0].bytes, NATIVE_PART_BYTES_MAX);
	table_free(&t);
	most[1]++;
	assert_int_equal(part_of_sizes(most, 2, &t, &err), -EFBIG);
	assert_non_null(strstr(err.msg, "rank 0 owns more than 1099511627776 bytes"));
	most[0] = NATIVE_PART_BYTES_MAX + 1;
	assert_int_equal(part_of_sizes(most, 1, &t, &err), -EFBIG);
	most[0] = INT64_MAX; /* and no sum overflows */
	assert_int_equal(part_of_sizes(most, 1, &t, &err), -EFBIG);
}

/* Of a share that no index list can say: the tensor is named, and that it is not memory. */
TEST(a_share_in_too_many_runs_is_refused)
{
	static const uint32_t factor[4] = { 1064, 28392957, 18, 12629421 };
	struct ckpt_placement p[4] = { 0 };
	struct layout l = { .nplace = 4, .place = p };
	struct table_place place = { .name = "memory", .bytes = INT64_MAX };
	uint64_t n = UINT64_C(35571474423275738);
	struct table_tensor x = ROW(.component = "m", .name = "comb", .of = "", .dtype = CKPT_U8,
				    .rank = TABLE_NONE, .ndim = 1, .shape = &n);
	struct table t = { 0 }, part;
	struct arena a = { 0 };
	struct ckpt_err err;
	struct mesh m;

	assert_int_equal(mesh_parse("a=4,b=9,c=8,d=2", &a, &m, NULL), 0);
	for (uint16_t d = 0; d < 4; d++)
		p[d] = (struct ckpt_placement)ROW(.how = CKPT_SHARD, .mesh_dim = d,
						  .split_factor = factor[d]);
	assert_int_equal(table_add_place(&t, &place, NULL, NULL), 0);
	assert_int_equal(table_add_mesh(&t, &m, NULL, NULL), 0);
	assert_int_equal(table_add_layout(&t, &l, NULL, NULL), 0);
	assert_int_equal(table_add_tensor(&t, &x, NULL, NULL), 0);
	assert_int_equal(table_seal(&t, NULL), 0);
	/* coordinate 2, 6, 5, 0 */
	assert_int_equal(native_part_table(&t, ((2 * 9 + 6) * 8 + 5) * 2, &part, NULL, &err),
			 -E2BIG);
	assert_string_equal(err.msg,
			    "m/comb: its share cannot be computed: it falls into too many runs");
	table_free(&t);
	arena_free(&a);
}

/* Of tables that native_part_table never makes, but a file may have. */
TEST(a_raw_space_in_which_chunks_make_no_sense_has_none)
{
	uint64_t n, data_end;
	struct chunk *chunk;
	struct ckpt_err err;
	struct sample s;
	struct table t;

	assert_int_equal(sample_make("fsdp=1", 0, 1, 1, &s), 0);
	assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, NULL), 0);
	t.place[0].bytes = NATIVE_PART_BYTES_MAX + 1;
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &data_end, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "a raw space of 1099511627777 bytes"));
	t.place[0].bytes = UINT64_MAX;
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &data_end, &err), -EPROTO);
	table_free(&t);
	assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, NULL), 0);
	t.piece[1].off = t.piece[0].off + 1;
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &data_end, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "overlap at byte"));
	/* The first piece of the next dtype, which starts a chunk, in the last chunk of the one
	 * before. */
	table_free(&t);
	assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, NULL), 0);
	for (uint32_t i = 0; i < t.npiece; i++)
		if (t.tensor[t.piece[i].tensor].elem_bytes !=
			    t.tensor[t.piece[0].tensor].elem_bytes &&
		    t.piece[i].off % MIB == 0) {
			t.piece[i].off -= 64;
			break;
		}
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &data_end, &err), -EPROTO);
	assert_non_null(strstr(err.msg, " has elements of "));
	table_free(&t);
	sample_free(&s);
}

TEST(a_part_is_not_written_with_chunks_that_lie_elsewhere)
{
	struct native_info info = { .job = "j", .world = 1 };
	uint64_t n, data_end, len;
	struct chunk *chunk;
	struct hash128 root;
	struct ckpt_err err;
	struct sample s;
	struct table t;
	void *bytes;

	assert_int_equal(sample_make("fsdp=1", 0, 1, 1, &s), 0);
	assert_int_equal(native_part_table(&s.decl, 0, &t, NULL, NULL), 0);
	assert_int_equal(chunk_map_make(&t, NATIVE_DATA_OFF, &chunk, &n, &data_end, NULL), 0);
	assert_true(n > 3);
	assert_int_equal(
		native_part_tail(&info, 0, &t, chunk, n - 1, data_end, &bytes, &len, &root, &err),
		-EINVAL);
	assert_int_equal(native_part_tail(&info, 0, &t, chunk, n, data_end + 4096, &bytes, &len,
					  &root, &err),
			 -EINVAL);
	chunk[2].off += 512;
	assert_int_equal(
		native_part_tail(&info, 0, &t, chunk, n, data_end, &bytes, &len, &root, &err),
		-EINVAL);
	assert_non_null(strstr(err.msg, "chunk 2"));
	chunk[2].off -= 512;
	chunk[1].raw_len--;
	assert_int_equal(
		native_part_tail(&info, 0, &t, chunk, n, data_end, &bytes, &len, &root, &err),
		-EINVAL);
	chunk[1].raw_len++;
	assert_ok(native_part_tail(&info, 0, &t, chunk, n, data_end, &bytes, &len, &root, &err));
	assert_int_equal((data_end + len) % 4096, 0);

	/* From the end of the last chunk's bytes on: the same, with the padding in front. */
	uint64_t last = chunk[n - 1].off + chunk[n - 1].stored_len, more;
	struct hash128 again;
	void *longer;

	assert_true(last % 4096);
	assert_ok(native_part_tail(&info, 0, &t, chunk, n, last, &longer, &more, &again, &err));
	assert_int_equal(last + more, data_end + len);
	assert_memory_equal(root.b, again.b, sizeof root.b);
	assert_memory_equal((uint8_t *)longer + (data_end - last), bytes, len);
	free(longer);
	free(bytes);
	free(chunk);
	table_free(&t);
	sample_free(&s);
}

/* --- MANIFEST --- */

struct job {
	struct native_info info;
	struct native_part part[4];
	struct table table[4];
	struct native_lineage line;
	uint32_t n;
};

static void job_make(struct job *j)
{
	struct memdir_opts o = { .mesh = "fsdp=3", .job = "j", .seed = 2, .scale = 1, .step = 5 };

	*j = (struct job){ .info = { .job = "j", .step = 5, .world = 3 },
			   .line = { .parent_step = UINT64_MAX, .tool = "t" },
			   .n = 3 };
	for (uint32_t r = 0; r < 3; r++) {
		uint8_t *file;

		memdir_part(&o, &j->info, r, &j->part[r], &j->table[r], &file);
		free(file);
	}
}

static void job_free(struct job *j)
{
	for (uint32_t r = 0; r < 4; r++)
		table_free(&j->table[r]);
}

static void refused(const struct job *j, const char *why)
{
	struct ckpt_err err = { 0 };
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;

	assert_int_equal(native_manifest(&j->info, j->part, j->n, &j->line, &bytes, &len, id, &err),
			 -EINVAL);
	assert_null(bytes);
	if (!strstr(err.msg, why))
		fail_msg("said \"%s\", should say \"%s\"", err.msg, why);
}

TEST(a_manifest_is_made_only_of_all_ranks_that_agree_and_hold_everything)
{
	struct job j;

	job_make(&j);
	j.n = 2;
	refused(&j, "no part holds what rank 2 owns");
	j.n = 3;
	j.part[2].rank = 1;
	refused(&j, "rank 1 is in two parts");
	refused(&j, "rank 2");
	j.part[2].rank = 3;
	refused(&j, "is of rank 3, but there are 3 ranks");
	j.part[2].rank = 2;
	j.info.world = 4;
	refused(&j, "no part holds what rank 3 owns");
	j.info.world = 0;
	refused(&j, "world of 0");
	j.info.world = 3;
	snprintf(j.part[1].name, sizeof j.part[1].name, "../x");
	refused(&j, "impossible name");
	snprintf(j.part[1].name, sizeof j.part[1].name, "MANIFEST");
	refused(&j, "impossible name");
	snprintf(j.part[1].name, sizeof j.part[1].name, "%s", j.part[0].name);
	refused(&j, "parts of one name");
	snprintf(j.part[1].name, sizeof j.part[1].name, "w0001-0-0.part");
	j.table[1].piece[3].rank = 2;
	refused(&j, "has a piece of rank 2");
	j.table[1].piece[3].rank = 1;
	j.table[1].tensor[2].role = CKPT_BUFFER;
	refused(&j, "role moment1 on rank 0, buffer on rank 1");
	j.table[1].tensor[2].role = CKPT_MOMENT1;
	j.table[1].npiece--;
	refused(&j, "step 5 of job j is not complete and was not committed");
	refused(&j, "is in no piece");
	j.table[1].npiece++;
	struct ckpt_note note[NATIVE_NOTES_MAX + 1] = { { "k", 1 } };

	j.line.note = note;
	j.line.nnote = NATIVE_NOTES_MAX + 1;
	refused(&j, "17 notes");
	j.line.nnote = 2;
	refused(&j, "key of note 1");
	job_free(&j);
}

TEST(a_manifest_does_not_depend_on_the_order_of_its_parts)
{
	struct ckpt_err err;
	uint8_t id[16], again_id[16];
	void *bytes, *again;
	uint64_t len, again_len;
	struct job j;

	job_make(&j);
	assert_int_equal(native_manifest(&j.info, j.part, j.n, &j.line, &bytes, &len, id, &err), 0);
	assert_memory_equal((uint8_t *)bytes + len - 16, id, 16);
	struct native_part first = j.part[0];

	j.part[0] = j.part[2];
	j.part[2] = first;
	assert_ok(
		native_manifest(&j.info, j.part, j.n, &j.line, &again, &again_len, again_id, &err));
	assert_int_equal(len, again_len);
	assert_memory_equal(bytes, again, len);
	free(again);
	free(bytes);
	job_free(&j);
}
