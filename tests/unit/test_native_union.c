/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_union.c - what parts say together, in checkpoints that the sample does not make:
 * declarations that are the same to the byte, holes in a raw space, pending reductions, thousands
 * of tensors that nobody holds, a model without a mesh.
 */
#include "tests/lib/part_data.h"
#include "tests/unit/test_native_rig.h"

#define WORLD 2

static const struct native_info info = {
	.uuid = { 7 }, .job = "demo", .step = 12, .generation = 3, .world = WORLD
};
static const struct native_lineage line = { .seq = 1, .parent_step = UINT64_MAX, .tool = "test" };

struct made {
	struct table t[WORLD]; /* of the parts */
	struct native_part part[WORLD];
};

/* Two tensors of two components, laid out so, as a rank of fsdp=2 holds them. */
static void declare(struct table *t, uint32_t rank, const struct ckpt_placement *p)
{
	static const char *const component[2] = { "model", "optim" };
	struct layout l = { .nplace = 1, .place = p };
	struct table_place place = { .name = "memory", .rank = rank, .bytes = 1 << 20 };
	uint64_t shape[2] = { 8, 3 };
	struct arena a = { 0 };
	struct mesh m;

	*t = (struct table){ 0 };
	assert_int_equal(mesh_parse("fsdp=2", &a, &m, NULL), 0);
	assert_int_equal(table_add_place(t, &place, NULL, NULL), 0);
	assert_int_equal(table_add_mesh(t, &m, NULL, NULL), 0);
	assert_int_equal(table_add_layout(t, &l, NULL, NULL), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct table_tensor x =
			ROW(.component = component[i], .name = "w", .of = "", .dtype = CKPT_F32,
			    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
		struct table_piece q = { .tensor = i, .rank = rank, .off = (uint64_t)i << 12 };

		assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
		assert_int_equal(layout_share(&m, &l, 2, shape, &rank, &a, &q.set), 0);
		assert_int_equal(table_add_piece(t, &q, NULL), 0);
	}
	assert_int_equal(table_seal(t, NULL), 0);
	arena_free(&a);
}

static void tables_make(struct made *x, const struct ckpt_placement *p)
{
	for (uint32_t r = 0; r < WORLD; r++) {
		struct table decl;

		declare(&decl, r, p);
		assert_int_equal(native_part_table(&decl, r, &x->t[r], NULL, NULL), 0);
		for (uint32_t i = 0; i < x->t[r].npiece; i++) {
			x->t[r].piece[i].fp = 100 * r + i;
			x->t[r].piece[i].fp_known = true;
		}
		table_free(&decl);
	}
}

/* The files of these tables, to `bad`. */
static void files_make(struct made *x)
{
	struct ckpt_err err;
	uint8_t id[16];
	uint64_t len;
	void *bytes;

	memdir_clear(&bad);
	for (uint32_t r = 0; r < WORLD; r++)
		made_part(&bad, &info, r, &x->t[r], &x->part[r]);
	assert_ok_err(native_manifest(&info, x->part, WORLD, &line, &bytes, &len, id, &err), &err);
	(void)memdir_add(&bad, NATIVE_MANIFEST, bytes, len);
	free(bytes);
}

static void made_free(struct made *x)
{
	for (uint32_t r = 0; r < WORLD; r++)
		table_free(&x->t[r]);
}

static struct checkpoint *opened(void)
{
	struct source_dir dir = memdir_source(&bad);
	struct checkpoint *c;
	struct ckpt_err err;

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err), &err);
	return c;
}

/* Signed, it is refused in a sentence with these words. */
static void refused(struct memdir_file *f, const char *words)
{
	struct source_dir dir = memdir_source(&bad);
	struct checkpoint *c;
	struct ckpt_err err = { 0 };
	int r;

	memdir_sign(&bad, f);
	r = format_native.open(&(struct format_open){ .dir = &dir }, &c, &err);
	assert_null(c);
	if (r != -EPROTO || !strstr(err.msg, words))
		fail_msg("%d, should say \"%s\": %s", r, words, err.msg);
}

static const struct ckpt_placement shard0 = { .how = CKPT_SHARD, .split_factor = 1 };

TEST(a_union_that_was_made_before_gives_the_same_manifest)
{
	cleanup_errlist struct ckpt_errlist list = { .code = -EINVAL };
	uint32_t map[WORLD][2];
	const uint32_t *const maps[WORLD] = { map[0], map[1] }, n[WORLD] = { 2, 2 };
	struct table all = { 0 };
	struct native_whole whole = { .all = &all, .map = maps, .map_n = n };
	struct made x = { 0 };
	struct ckpt_err err;
	uint8_t id[16], same_id[16];
	uint64_t len, same_len;
	void *bytes, *same;

	tables_make(&x, &shard0);
	files_make(&x);
	for (uint32_t r = 0; r < WORLD; r++)
		assert_int_equal(table_merge_tensors(&all, &x.t[r], map[r], &list, &err), 0);
	assert_int_equal(list.n + all.npiece + all.nplace, 0);
	assert_int_equal(all.ntensor, 2);
	assert_int_equal(table_seal(&all, &err), 0);
	assert_ok_err(native_manifest(&info, x.part, WORLD, &line, &bytes, &len, id, &err), &err);
	assert_ok_err(native_manifest_whole(&info, &whole, x.part, WORLD, &line, &same, &same_len,
					    same_id, &err),
		      &err);
	assert_int_equal(len, same_len);
	assert_memory_equal(bytes, same, len);
	assert_memory_equal(id, same_id, sizeof id);
	free(same);
	/* The declaration that it was made of keeps what it has: another step is another one. */
	assert_false(all.tensor[0].fp_known);
	x.t[1].piece[1].fp++;
	assert_ok_err(native_manifest_whole(&info, &whole, x.part, WORLD, &line, &same, &same_len,
					    same_id, &err),
		      &err);
	assert_int_equal(len, same_len);
	assert_memory_not_equal(bytes, same, len);
	free(same);
	free(bytes);
	/* A piece is lost, or all of another declaration's. */
	x.t[1].first[2] = 1;
	assert_int_equal(native_manifest_whole(&info, &whole, x.part, WORLD, &line, &same,
					       &same_len, same_id, &err),
			 -EINVAL);
	assert_non_null(strstr(err.msg, "optim/w: 12 elements in its pieces, and it has 24"));
	x.t[1].first[2] = 2;
	x.t[1].ntensor = 1;
	assert_int_equal(native_manifest_whole(&info, &whole, x.part, WORLD, &line, &same,
					       &same_len, same_id, &err),
			 -EINVAL);
	x.t[1].ntensor = 2;
	table_free(&all);
	made_free(&x);
}

TEST(parts_that_declare_the_same_each_bring_their_pieces)
{
	struct made x = { 0 };
	struct checkpoint *c;
	struct ck_tensor *t;

	tables_make(&x, &shard0);
	files_make(&x);
	/* The declarations are the same to the byte, for once. */
	for (uint32_t kind = CK_STRINGS; kind <= CK_TENSORS; kind++) {
		const struct ck_sect *a = row(part(0), kind), *b = row(part(1), kind);

		assert_memory_equal(a->hash, b->hash, sizeof a->hash);
	}
	c = opened();
	assert_int_equal(c->table.npiece, 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(c->table.piece[i].tensor, i / 2);
		assert_int_equal(c->table.piece[i].rank, i % 2);
		assert_int_equal(c->table.piece[i].fp, 100 * (i % 2) + i / 2);
	}
	checkpoint_free(c);
	/* Of which the second one is believed no more than the first. */
	t = memdir_section(part(1), CK_TENSORS);
	t[1].role = CKPT_MASTER;
	refused(part(1), "optim/w: role");
	made_free(&x);
}

/* No writer of ours leaves one, but a raw space may have it. */
TEST(a_hole_has_no_bytes_and_no_checksums)
{
	struct made x = { 0 };
	struct checkpoint *c;
	struct ck_chunk *k;
	struct source_dir dir = memdir_source(&bad);
	struct ckpt_err err;
	uint8_t id[16];
	uint64_t len;
	void *bytes;

	tables_make(&x, &shard0);
	assert_int_equal(x.t[1].piece[1].off, MIB); /* a component starts on a chunk */
	x.t[1].piece[1].off += MIB;
	x.t[1].place[0].bytes += MIB;
	files_make(&x);
	c = opened();
	assert_int_equal(c->file[1].nchunk, 3);
	assert_int_equal(c->file[1].chunk[1].raw_len, 0);
	assert_int_equal(c->file[1].chunk[1].off, 0);
	assert_int_equal(c->file[1].chunk[2].off, 2 * CONTAINER_BLOCK);
	assert_int_equal(data_to(&c->file[1]), 3 * CONTAINER_BLOCK);
	checkpoint_free(c);
	assert_int_equal(memdir_rebuild(&dir, "demo", 12, &line, &bytes, &len, id, &err), 0);
	assert_memory_equal(bytes, manifest()->bytes, len);
	free(bytes);
	k = memdir_section(part(1), CK_CHUNKS);
	k[1].stored_crc = le32_of(1);
	refused(part(1), "chunk 1: a hole has bytes or checksums");
	k[1].stored_crc = le32_of(0);
	k[1].raw_hash[15] = 1;
	refused(part(1), "chunk 1: a hole has bytes or checksums");
	k[1].raw_hash[15] = 0;
	k[1].elem_bytes = 4;
	refused(part(1), "chunk 1: a hole has bytes or checksums");
	k[1].elem_bytes = 0;
	memdir_sign(&bad, part(1));
	checkpoint_free(opened());
	made_free(&x);
}

static int choose(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)k;
	(void)err;
	for (uint32_t r = 0; r < WORLD; r++)
		needed[r] = *(uint32_t *)arg >> r & 1;
	return 0;
}

/* Each operand is as large as the tensor: with one of two it is not all there. */
TEST(a_pending_reduction_is_all_there_with_all_its_operands)
{
	static const struct ckpt_placement partial = { .how = CKPT_PARTIAL,
						       .flags = CKPT_KEEP_PARTIAL };
	struct source_dir dir = memdir_source(&bad);
	struct made x = { 0 };
	struct checkpoint *c;
	struct ck_tensor *t;
	struct ckpt_err err;

	tables_make(&x, &partial);
	files_make(&x);
	c = opened();
	assert_int_equal(c->table.npiece, 4);
	assert_int_equal(c->table.piece[0].set.numel, 24);
	assert_int_equal(c->table.tensor[0].fp, 100);
	checkpoint_free(c);
	for (uint32_t bits = 0; bits < 4; bits++) {
		assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir,
									   .choose = choose,
									   .choose_arg = &bits },
						    &c, &err),
				 0);
		checkpoint_free(c);
	}
	/* MANIFEST says another sum, which two operands show and one cannot. */
	t = memdir_section(manifest(), CK_TENSORS);
	t[0].fp = le64_of(99);
	memdir_sign(&bad, manifest());
	for (uint32_t bits = 0; bits < 4; bits++) {
		int want = bits == 3 ? -EPROTO : 0;

		assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir,
									   .choose = choose,
									   .choose_arg = &bits },
						    &c, &err),
				 want);
		checkpoint_free(c);
	}
	assert_non_null(strstr(err.msg, "model/w: the fingerprints of its pieces add up to"));
	made_free(&x);
}

/* --- more than fits into an error --- */

struct told {
	uint64_t n, more;
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *x = arg;

	assert_string_equal(f->kind, "coverage");
	if (sscanf(f->text, "and %lu more", &x->more) == 1)
		return;
	assert_int_equal(strncmp(f->text, f->tensor, strlen(f->tensor)), 0);
	assert_int_equal(strlen(f->tensor), strlen("model/t0000"));
	x->n++;
}

TEST(of_thousands_of_faults_those_that_are_not_told_are_counted)
{
	enum { N = 3000 };
	struct native_info one = info;
	struct table_place place = { .name = "rank 0" };
	struct table all = { 0 }, none = { 0 };
	struct native_part p;
	struct source_dir dir = memdir_source(&bad);
	struct checkpoint *c;
	struct told told = { 0 };
	struct ckpt_err err;
	uint64_t four = 4, len;
	uint8_t id[16];
	void *bytes;

	for (uint32_t i = 0; i < N; i++) {
		char name[16];
		struct table_tensor x =
			ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_F32,
			    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1, .shape = &four,
			    .fp_known = true);

		snprintf(name, sizeof name, "t%04u", i);
		assert_int_equal(table_add_tensor(&all, &x, NULL, NULL), 0);
	}
	assert_int_equal(table_seal(&all, NULL), 0);
	assert_int_equal(table_add_place(&none, &place, NULL, NULL), 0);
	assert_int_equal(table_seal(&none, NULL), 0);
	one.world = 1;
	memdir_clear(&bad);
	made_part(&bad, &one, 0, &none, &p);
	assert_ok(native_manifest_declared(&one, &all, &p, 1, &line, &bytes, &len, id, &err));
	(void)memdir_add(&bad, NATIVE_MANIFEST, bytes, len);
	free(bytes);
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .fault = on_fault, .fault_arg = &told },
			&c, &err),
		-EPROTO);
	assert_null(c);
	assert_true(told.n > 100 && told.more > 100);
	assert_int_equal(told.n + told.more, N);
	table_free(&all);
	table_free(&none);
}

/* A model without a mesh, and MANIFEST with nothing but it: its empty sections are read as such. */
TEST(a_summary_of_what_has_no_mesh_and_no_notes_is_given)
{
	struct native_info one = info;
	struct table_place place = { .name = "rank 0" };
	struct table none = { 0 };
	struct source_dir dir = memdir_source(&bad);
	struct native_part p;
	struct checkpoint *c;
	struct source m;
	struct ckpt_err err;
	uint8_t id[16];
	uint64_t len;
	void *bytes;

	assert_int_equal(table_add_place(&none, &place, NULL, NULL), 0);
	assert_int_equal(table_seal(&none, NULL), 0);
	one.world = 1;
	memdir_clear(&bad);
	made_part(&bad, &one, 0, &none, &p);
	assert_int_equal(native_manifest(&one, &p, 1, &line, &bytes, &len, id, &err), 0);
	(void)memdir_add(&bad, NATIVE_MANIFEST, bytes, len);
	free(bytes);
	assert_int_equal(memdir_rebuild(&dir, "demo", 12, &line, &bytes, &len, id, &err), 0);
	assert_memory_equal(bytes, manifest()->bytes, len);
	free(bytes);
	m = memdir_open(&bad, NATIVE_MANIFEST);
	assert_int_equal(format_native.root->summary(&m, &c, &err), 0);
	assert_int_equal(c->table.nmesh, 0);
	assert_int_equal(c->nnote, 0);
	assert_int_equal(c->step, 12);
	checkpoint_free(c);
	c = opened();
	assert_int_equal(c->table.ntensor, 0);
	assert_int_equal(c->file[0].nchunk, 0);
	checkpoint_free(c);
	table_free(&none);
}

static int teardown_bad(void **state)
{
	(void)state;
	memdir_clear(&bad);
	return 0;
}

UNIT(.group_teardown = teardown_bad);
