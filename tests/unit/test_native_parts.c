/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_parts.c - what a checkpoint of format v0.2 is made of beside main parts: parts that
 * an older step wrote on another mesh, constants, averages, derived pieces, boxes that no layout
 * describes, attributes, fingerprints that nobody knows, chunks with room between them. Each is
 * read as it was meant, made again from the parts alone, and refused where it does not hold
 * together.
 */
#include "tests/lib/row.h"
#include "tests/lib/handmade.h"
#include "tests/lib/sample.h"
#include "tests/lib/tiles.h"
#include "tests/lib/unit.h"
#include <time.h>

static const uint64_t origin[4];
static struct ckpt_err err; /* of the call that failed last */

#define T(...) (&(struct handmade_tensor)ROW(__VA_ARGS__))
#define BOX(...) ((const uint64_t[]){ __VA_ARGS__ })

/* --- opened, and held against what its elements are --- */

struct told {
	uint32_t n;
	char kind[16], file[64], text[600]; /* of the first */
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *x = arg;

	if (x->n++)
		return;
	snprintf(x->kind, sizeof x->kind, "%s", f->kind);
	snprintf(x->file, sizeof x->file, "%s", f->file);
	snprintf(x->text, sizeof x->text, "%s", f->text);
}

static struct told told; /* by the last opening */

static int open_it(struct handmade *p, struct checkpoint **ret)
{
	struct source_dir dir = memdir_source(&p->d);

	told = (struct told){ .n = 0 };
	err = (struct ckpt_err){ 0 };
	return format_native.open(
		&(struct format_open){ .dir = &dir, .fault = on_fault, .fault_arg = &told }, ret,
		&err);
}

static void stored(struct handmade *p, const struct format_file *f, uint64_t raw, uint8_t *to,
		   uint32_t n)
{
	const uint8_t *file = memdir_find(&p->d, f->name)->bytes;

	for (uint32_t i = 0; i < n; i++, raw++) {
		const struct chunk *c = &f->chunk[raw >> f->chunk_log2];
		uint64_t in = raw & ((1u << f->chunk_log2) - 1);

		assert_true(in < c->raw_len);
		to[i] = file[c->off + in];
	}
}

static void piece_check(struct handmade *p, const struct checkpoint *c, const struct table_piece *q)
{
	const struct table_tensor *x = &c->table.tensor[q->tensor];
	uint64_t *list[4] = { 0 };

	for (uint32_t d = 0; d < x->ndim; d++)
		list[d] = sample_indices(&q->set.dim[d]);
	for (uint64_t i = 0; i < q->set.numel; i++) {
		const struct format_file *f = &c->file[q->place];
		struct piece_bytes at = table_piece_bytes(&c->table, q);
		uint64_t g = 0, place[4], rest = i;
		uint8_t want[16], have[16];
		uint32_t bits;

		for (uint32_t d = x->ndim; d-- > 0;) {
			place[d] = list[d][rest % q->set.dim[d].total];
			rest /= q->set.dim[d].total;
		}
		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + place[d];
		handmade_element(&c->table, x, g, want);
		stored(p, f, at.off + i * at.elem, have, at.elem);
		if (q->flags & PIECE_DERIVED) {
			memcpy(&bits, have, sizeof bits);
			bits = x->dtype == CKPT_F16 ? handmade_f16(bits) : handmade_bf16(bits);
			memcpy(have, &bits, 2);
		}
		assert_memory_equal(have, want, x->elem_bytes);
	}
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
}

/* It opens, has the elements that it should, and what is made again of its parts is its
 * MANIFEST. */
static struct checkpoint *sound(struct handmade *p)
{
	struct source_dir dir = memdir_source(&p->d);
	const struct memdir_file *m = memdir_find(&p->d, NATIVE_MANIFEST);
	struct checkpoint *c;
	uint8_t id[16];
	uint64_t len;
	void *bytes;

	assert_ok_err(open_it(p, &c), &err);
	assert_int_equal(told.n, 0);
	assert_null(tiles_all_wrong(c));
	for (uint32_t i = 0; i < c->table.npiece; i++)
		if (!c->table.piece[i].stride)
			piece_check(p, c, &c->table.piece[i]);
	assert_ok_err(format_native.root->rebuild(&dir, c, c->tool, &bytes, &len, id, &err), &err);
	/* But for when it was made, which parts of one step may differ in. */
	assert_int_equal(len, m->len);
	assert_memory_equal(bytes, m->bytes, len);
	free(bytes);
	return c;
}

static void refused(struct handmade *p, int code, const char *words)
{
	struct checkpoint *c;
	int r = open_it(p, &c);

	checkpoint_free(c);
	if (r != code || !strstr(err.msg, words))
		fail_msg("%d: %s; should be %d with \"%s\"", r, err.msg, code, words);
}

/* --- parts of older steps --- */

/* A constant and a variable of fsdp=N, as rank r holds them: rows of the first to *ret_const, the
 * rest to *ret. */
static void tables(uint32_t world, uint32_t rank, struct table *ret, struct table *ret_const)
{
	char mesh[16];
	uint64_t from = 12 / world * rank;
	uint32_t k;

	snprintf(mesh, sizeof mesh, "fsdp=%u", world);
	handmade_table(ret, mesh);
	k = handmade_layout(ret, "Shard(0)@fsdp");
	(void)handmade_tensor(ret,
			      T(.component = "model", .name = "rope", .dtype = CKPT_F32,
				.cls = CKPT_CONST, .layout = k, .ndim = 2, .shape = { 12, 5 }));
	k = handmade_tensor(ret, T(.component = "model", .name = "w", .dtype = CKPT_F32,
				   .layout = k, .ndim = 2, .shape = { 12, 2 }));
	handmade_piece(ret, rank, k, 0, 0, BOX(from, 0), BOX(12 / world, 2));
	if (!ret_const)
		return;
	handmade_table(ret_const, mesh);
	k = handmade_layout(ret_const, "Shard(0)@fsdp");
	k = handmade_tensor(ret_const,
			    T(.component = "model", .name = "rope", .dtype = CKPT_F32,
			      .cls = CKPT_CONST, .layout = k, .ndim = 2, .shape = { 12, 5 }));
	handmade_piece(ret_const, rank, k, 64, 0, BOX(from, 0), BOX(12 / world, 5));
}

/* Step 10: parts 0 and 1 const, 2 and 3 main. */
static void older_step(struct handmade *p, uint32_t try)
{
	struct table t[2], k[2];

	handmade_begin(p, "demo", 10, 2, try);
	for (uint32_t r = 0; r < 2; r++) {
		tables(2, r, &t[r], &k[r]);
		(void)handmade_add(p, r, PART_CONST, 0, &k[r], NULL, 0);
	}
	for (uint32_t r = 0; r < 2; r++)
		(void)handmade_add(p, r, PART_MAIN, 0, &t[r], &r, 1);
	assert_ok_err(handmade_commit(p, &err), &err);
}

/* Step 12 on n ranks, with the constants of that. The main parts come behind. */
static void newer_step(struct handmade *p, const struct handmade *older, uint32_t world)
{
	const uint32_t both[2] = { 0, 1 };

	handmade_begin(p, "demo", 12, world, 0);
	(void)handmade_link(p, older, 0);
	(void)handmade_link(p, older, 1);
	for (uint32_t r = 0; r < world; r++) {
		struct table t;

		tables(world, r, &t, NULL);
		(void)handmade_add(p, r, PART_MAIN, 0, &t, both, 2);
	}
}

/* A summary's files are the checkpoint's. */
static void files_compare(const struct checkpoint *s, const struct checkpoint *c)
{
	assert_int_equal(s->nfile, c->nfile);
	for (uint32_t i = 0; i < c->nfile; i++) {
		const struct format_file *x = &s->file[i], *y = &c->file[i];

		assert_string_equal(x->name, y->name);
		assert_int_equal(x->file_bytes, y->file_bytes);
		assert_int_equal(x->rank, y->rank);
		assert_int_equal(x->kind, y->kind);
		assert_int_equal(x->group, y->group);
		assert_int_equal(x->step, y->step);
		assert_int_equal(x->generation, y->generation);
		assert_memory_equal(x->uuid, y->uuid, sizeof x->uuid);
		assert_true(x->unread);
	}
}

TEST(a_step_has_the_parts_that_an_older_one_wrote_on_another_mesh)
{
	static const uint32_t worlds[] = { 1, 2, 3, 4 };
	struct handmade older, p;

	older_step(&older, 0);
	checkpoint_free(sound(&older));
	for (size_t i = 0; i < ARRAY_LEN(worlds); i++) {
		uint32_t world = worlds[i];
		struct checkpoint *c, *s;
		struct source m;

		newer_step(&p, &older, world);
		assert_ok_err(handmade_commit(&p, &err), &err);
		c = sound(&p);
		m = memdir_open(&p.d, NATIVE_MANIFEST);
		assert_int_equal(format_native.root->summary(&m, &s, &err), 0);
		assert_int_equal(c->nfile, world + 2);
		files_compare(s, c);
		assert_int_equal(c->linked_bytes,
				 older.part[0].file_bytes + older.part[1].file_bytes);
		assert_int_equal(s->linked_bytes, c->linked_bytes);
		for (uint32_t k = 0; k < c->nfile; k++) {
			const struct format_file *f = &c->file[k];
			bool linked = k >= world;

			assert_int_equal(f->kind, linked ? PART_CONST : PART_MAIN);
			assert_int_equal(f->step, linked ? 10 : 12);
			assert_int_equal(f->rank, linked ? k - world : k);
			assert_memory_equal(f->uuid, p.part[linked ? k - world : k + 2].uuid, 16);
		}
		/* Three pieces of w are not of the ranks that wrote those of the constant. */
		assert_int_equal(c->table.npiece, world + 2);
		checkpoint_free(c);
		checkpoint_free(s);
		handmade_free(&p);
	}
	handmade_free(&older);
}

TEST(a_linked_part_is_whole_and_what_it_says)
{
	struct handmade older, p;
	struct memdir_file *f;

	older_step(&older, 0);
	newer_step(&p, &older, 1);
	assert_ok_err(handmade_commit(&p, &err), &err);
	f = handmade_file(&p, 1);
	/* Another dtype is no hint. */
	((struct ck_tensor *)memdir_section(f, CK_TENSORS))->role = CKPT_BUFFER;
	memdir_sign(&p.d, f);
	refused(&p, -EPROTO, "role other on MANIFEST, buffer on");
	((struct ck_tensor *)memdir_section(f, CK_TENSORS))->role = 0;
	memdir_sign(&p.d, f);
	checkpoint_free(sound(&p));
	f->bytes[f->len - 1] ^= 1;
	refused(&p, -EBADMSG, p.part[1].name);
	f->bytes[f->len - 1] ^= 1;
	memdir_remove(&p.d, p.part[1].name);
	refused(&p, -EUCLEAN, p.part[1].name);
	handmade_free(&p);
	handmade_free(&older);
}

/* In whatever order: damage, what is missing, what is newer, what makes no sense. */
TEST(of_several_parts_the_worst_is_told_first)
{
	static const struct {
		int what[2], code;
	} is[] = {
		{ { 'N', 'M' }, -EUCLEAN },	    { { 'M', 'N' }, -EUCLEAN },
		{ { 'N', 'D' }, -EBADMSG },	    { { 'M', 'D' }, -EBADMSG },
		{ { 'B', 'N' }, -EPROTONOSUPPORT }, { { 'N', 'B' }, -EPROTONOSUPPORT },
		{ { 'B', 'M' }, -EUCLEAN },
	};
	struct handmade older, p;

	older_step(&older, 0);
	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		newer_step(&p, &older, 1);
		assert_ok_err(handmade_commit(&p, &err), &err);
		for (uint32_t k = 0; k < 2; k++) {
			struct memdir_file *f = handmade_file(&p, k);

			switch (is[i].what[k]) {
			case 'N':
				((struct ck_head *)f->bytes)->pad = 1;
				memdir_sign(&p.d, f);
				break;
			case 'B':
				((struct ck_mesh *)memdir_section(f, CK_MESHES))->ndim = le32_of(9);
				memdir_sign(&p.d, f);
				break;
			case 'D':
				f->bytes[f->len - 1] ^= 1;
				break;
			default:
				memdir_remove(&p.d, p.part[k].name);
			}
		}
		refused(&p, is[i].code, "");
		handmade_free(&p);
	}
	handmade_free(&older);
}

/* Its layout says what its pieces are, wherever they come from: of another step's layout they would
 * be operands, or none. And a rank that there is not holds none. */
TEST(the_layout_of_a_linked_tensor_that_is_pending_is_no_hint)
{
	static const struct {
		const char *was, *is;
		const char *words; /* NULL: it opens */
	} of[] = {
		{ "Partial(sum, keep)@dp", "Partial(sum, keep)@dp", NULL },
		{ "Partial(sum, keep)@dp", "Partial(max, keep)@dp", "layout Partial(max, keep)" },
		{ "Partial(sum, keep)@dp", "Replicate", "layout Replicate" },
		{ "Replicate", "Partial(sum, keep)@dp", "layout Partial(sum, keep)" },
		{ "Replicate", "Shard(0)@dp", NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct handmade older, p;
		struct table t;
		uint32_t k;

		handmade_begin(&older, "demo", 10, 1, 0);
		handmade_table(&t, "dp=1");
		k = handmade_layout(&t, of[i].was);
		k = handmade_tensor(&t,
				    T(.component = "m", .name = "g", .dtype = CKPT_F32,
				      .cls = CKPT_CONST, .layout = k, .ndim = 1, .shape = { 4 }));
		handmade_piece(&t, 0, k, 0, 0, origin, BOX(4));
		(void)handmade_add(&older, 0, PART_CONST, 0, &t, NULL, 0);
		handmade_begin(&p, "demo", 12, 1, 0);
		(void)handmade_link(&p, &older, 0);
		handmade_table(&t, "dp=1");
		k = handmade_layout(&t, of[i].is);
		(void)handmade_tensor(&t,
				      T(.component = "m", .name = "g", .dtype = CKPT_F32,
					.cls = CKPT_CONST, .layout = k, .ndim = 1, .shape = { 4 }));
		(void)handmade_add(&p, 0, PART_MAIN, 0, &t, (uint32_t[]){ 0 }, 1);
		if (of[i].words) {
			assert_int_equal(handmade_commit(&p, &err), -EINVAL);
			assert_non_null(strstr(err.msg, of[i].words));
		} else {
			assert_ok_err(handmade_commit(&p, &err), &err);
			checkpoint_free(sound(&p));
		}
		handmade_free(&p);
		handmade_free(&older);
	}
}

/* --- made again of the parts --- */

static int rebuild(struct handmade *p)
{
	struct source_dir dir = memdir_source(&p->d);
	uint8_t id[16];
	uint64_t len;
	void *bytes = NULL;
	int r;

	err = (struct ckpt_err){ 0 };
	r = memdir_rebuild(&dir, "demo", p->info.step, &p->line, &bytes, &len, id, &err);
	free(bytes);
	return r;
}

static void not_rebuilt(struct handmade *p, int code, const char *words)
{
	int r = rebuild(p);

	if (r != code || !strstr(err.msg, words))
		fail_msg("%d: %s; should be %d with \"%s\"", r, err.msg, code, words);
}

TEST(a_manifest_is_made_again_only_of_all_parts_that_main_parts_name)
{
	struct handmade older, again, p;
	struct memdir_file *f;

	older_step(&older, 0);
	older_step(&again, 1); /* the same step, tried again */
	newer_step(&p, &older, 2);
	assert_ok_err(handmade_commit(&p, &err), &err);
	memdir_remove(&p.d, NATIVE_MANIFEST);
	assert_int_equal(rebuild(&p), 0);
	/* Constants of an attempt that nobody names: left over. Whole or not. */
	f = memdir_add(&p.d, again.part[0].name, again.d.file[0].bytes, again.d.file[0].len);
	assert_int_equal(rebuild(&p), 0);
	f->bytes[7] ^= 1;
	assert_int_equal(rebuild(&p), 0);
	f->len = 100;
	assert_int_equal(rebuild(&p), 0);
	f->folder = true;
	assert_int_equal(rebuild(&p), 0);
	memdir_remove(&p.d, again.part[0].name);
	/* Those that are named are missing, another file, or damaged. */
	memdir_remove(&p.d, p.part[1].name);
	not_rebuilt(&p, -EUCLEAN, p.part[1].name);
	f = memdir_add(&p.d, p.part[1].name, again.d.file[1].bytes, again.d.file[1].len);
	not_rebuilt(&p, -EBADMSG, "is not the part that rank 1's names");
	f->bytes[7] ^= 1;
	not_rebuilt(&p, -EBADMSG, p.part[1].name);
	memdir_remove(&p.d, p.part[1].name);
	(void)memdir_add(&p.d, p.part[1].name, older.d.file[1].bytes, older.d.file[1].len);
	assert_int_equal(rebuild(&p), 0);
	/* A rank's own part is not what its constants can stand for. */
	memdir_remove(&p.d, p.part[3].name);
	not_rebuilt(&p, -EUCLEAN, "1 of 2 parts are missing");
	handmade_free(&p);
	/* Main parts of two attempts at one step. */
	f = memdir_find(&older.d, older.part[3].name);
	f->len = 0;
	memdir_remove(&older.d, older.part[3].name);
	(void)memdir_add(&older.d, again.part[3].name,
			 memdir_find(&again.d, again.part[3].name)->bytes,
			 memdir_find(&again.d, again.part[3].name)->len);
	not_rebuilt(&older, -EBADMSG, "its checkpoint is not that of the other parts");
	handmade_free(&older);
	handmade_free(&again);
}

TEST(a_part_that_may_not_be_rewritten_is_not_described_anew)
{
	struct handmade p;

	older_step(&p, 0);
	((struct ck_head *)handmade_file(&p, 3)->bytes)->ro_compat = le64_of(4);
	((struct ck_head *)memdir_find(&p.d, NATIVE_MANIFEST)->bytes)->ro_compat = le64_of(4);
	memdir_sign(&p.d, handmade_file(&p, 3));
	{
		struct checkpoint *c;

		assert_ok_err(open_it(&p, &c), &err); /* but read */
		checkpoint_free(c);
	}
	not_rebuilt(&p, -EPROTONOSUPPORT, "written by a newer version");
	handmade_free(&p);
}

/* SOURCES and PARTS say the same. */
TEST(a_part_that_only_manifest_or_only_a_main_part_names_is_refused)
{
	struct handmade older, p;
	struct table t;

	older_step(&older, 0);
	handmade_begin(&p, "demo", 12, 1, 0);
	(void)handmade_link(&p, &older, 0);
	(void)handmade_link(&p, &older, 1);
	tables(1, 0, &t, NULL);
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, (uint32_t[]){ 0 }, 1);
	assert_ok_err(handmade_commit(&p, &err), &err);
	refused(&p, -EPROTO, "which no main part names");
	memdir_clear(&p.d);
	handmade_free(&p);
	handmade_begin(&p, "demo", 12, 1, 0);
	(void)handmade_link(&p, &older, 0);
	(void)handmade_link(&p, &older, 1);
	handmade_table(&t, "fsdp=1");
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, (uint32_t[]){ 1, 0 },
			   2); /* sorted by the writer */
	{
		const struct ck_part *s = memdir_section(handmade_file(&p, 2), CK_SOURCES);

		assert_int_equal(le32_get(s[0].writer), 0);
		assert_int_equal(le32_get(s[1].writer), 1);
	}
	handmade_free(&p);
	handmade_free(&older);
}

/* --- derived --- */

enum {
	TWIN,
	NO_MASTER,
	MASTER_IS_CUT_OTHERWISE,
	MASTER_HAS_STRIDES,
	MASTER_IS_DERIVED,
	NO_TWIN,
	MASTER_OF_ANOTHER_SHAPE,
	MASTER_OF_ANOTHER_DTYPE,
	OTHER_PLACES
};

/* A tensor h of one rank, in two pieces with no bytes, of what `how` says. */
static void derived_make(struct handmade *p, int how, uint32_t dtype, uint32_t trusted)
{
	uint32_t flags = PIECE_DERIVED | trusted, m, h;
	struct table t;

	handmade_begin(p, "demo", 5, 1, 0);
	handmade_table(&t, NULL);
	m = handmade_tensor(&t, T(.component = "optim", .name = "w",
				  .of = how == MASTER_IS_DERIVED ? "x/y" : "",
				  .dtype = how == MASTER_OF_ANOTHER_DTYPE ? CKPT_I32 : CKPT_F32,
				  .cls = how == MASTER_IS_DERIVED ? CKPT_DERIVED : CKPT_STABLE,
				  .layout = TABLE_NONE, .ndim = 2,
				  .shape = { 6, how == MASTER_OF_ANOTHER_SHAPE ? 8 : 4 }));
	h = handmade_tensor(&t, T(.component = "model", .name = "w",
				  .of = how == NO_MASTER ? "optim/z" : "optim/w", .dtype = dtype,
				  .cls = CKPT_DERIVED, .layout = TABLE_NONE, .ndim = 2,
				  .shape = { 6, 4 }));
	if (how == MASTER_IS_CUT_OTHERWISE) {
		handmade_piece(&t, 0, m, 0, 0, origin, BOX(3, 4));
		handmade_piece(&t, 0, m, 1024, 0, BOX(3, 0), BOX(3, 4));
	} else if (how == MASTER_HAS_STRIDES) {
		struct table_piece q = { .tensor = m, .stride = (int64_t[]){ 8, 1 } };
		struct arena a = { 0 };

		assert_int_equal(indexset_box(2, origin, BOX(2, 4), &a, &q.set), 0);
		assert_ok(table_add_piece(&t, &q, NULL));
		handmade_piece(&t, 0, m, 1024, 0, BOX(2, 0), BOX(4, 4));
		arena_free(&a);
	} else {
		handmade_piece(&t, 0, m, 0, 0, origin, BOX(2, t.tensor[m].shape[1]));
		if (how != NO_TWIN)
			handmade_piece(&t, 0, m, 1024, 0, BOX(2, 0), BOX(4, t.tensor[m].shape[1]));
	}
	handmade_piece(&t, 0, h, 2 << 20, flags, origin, BOX(2, 4));
	handmade_piece(&t, 0, h, (2 << 20) + 64, flags, BOX(2, 0), BOX(4, 4));
	(void)handmade_add(p, 0, PART_MAIN, 0, &t, NULL, 0);
}

TEST(a_derived_piece_is_its_twins_elements_rounded)
{
	static const uint32_t dtype[] = { CKPT_BF16, CKPT_F16 };
	struct checkpoint *c;
	struct handmade p;

	for (uint32_t i = 0; i < 4; i++) {
		derived_make(&p, TWIN, dtype[i % 2], i / 2 ? PIECE_TRUSTED : 0);
		assert_ok_err(handmade_commit(&p, &err), &err);
		c = sound(&p);
		assert_int_equal(c->table.npiece, 4);
		for (uint32_t k = 0; k < 2; k++) {
			const struct table_piece *q = &c->table.piece[2 + k];

			assert_int_equal(q->flags, PIECE_DERIVED | (i / 2 ? PIECE_TRUSTED : 0));
			assert_int_equal(q->from, k ? 1024 : 0);
			assert_int_equal(q->off, (2 << 20) + 64 * k);
		}
		/* What has no bytes is a hole of the raw space. */
		assert_int_equal(c->file[0].nchunk, 3);
		assert_int_equal(c->file[0].chunk[2].raw_len, 0);
		checkpoint_free(c);
		handmade_free(&p);
	}
}

TEST(a_derived_piece_without_its_twin_is_refused)
{
	struct handmade p;

	for (int how = NO_MASTER; how < OTHER_PLACES; how++) {
		derived_make(&p, how, CKPT_BF16, 0);
		if (how == NO_TWIN) /* not complete, besides: by hand */
			assert_int_equal(handmade_commit(&p, &err), -EINVAL);
		else
			assert_ok_err(handmade_commit(&p, &err), &err);
		if (how != NO_TWIN)
			refused(&p, -EPROTO, "model/w: a piece that is derived from nothing");
		handmade_free(&p);
	}
}

/* The master is const, in another file: then the derived tensor has bytes, or nothing to be made
 * of. */
TEST(a_twin_is_in_the_same_file)
{
	for (int flags = 0; flags < 2; flags++) {
		struct handmade p;
		struct table t, k;
		uint32_t m;

		handmade_begin(&p, "demo", 5, 1, 0);
		handmade_table(&k, NULL);
		m = handmade_tensor(&k, T(.component = "o", .name = "w", .dtype = CKPT_F32,
					  .cls = CKPT_CONST, .layout = TABLE_NONE, .ndim = 1,
					  .shape = { 6 }));
		handmade_piece(&k, 0, m, 0, 0, origin, BOX(6));
		(void)handmade_add(&p, 0, PART_CONST, 0, &k, NULL, 0);
		handmade_table(&t, NULL);
		(void)handmade_tensor(&t, T(.component = "o", .name = "w", .dtype = CKPT_F32,
					    .cls = CKPT_CONST, .layout = TABLE_NONE, .ndim = 1,
					    .shape = { 6 }));
		m = handmade_tensor(&t, T(.component = "m", .name = "w", .of = "o/w",
					  .dtype = CKPT_BF16, .cls = CKPT_DERIVED,
					  .layout = TABLE_NONE, .ndim = 1, .shape = { 6 }));
		handmade_piece(&t, 0, m, 0, flags ? PIECE_DERIVED : 0, origin, BOX(6));
		(void)handmade_add(&p, 0, PART_MAIN, 0, &t, (uint32_t[]){ 0 }, 1);
		assert_ok_err(handmade_commit(&p, &err), &err);
		if (flags)
			refused(&p, -EPROTO, "derived from nothing in this file");
		else
			checkpoint_free(sound(&p));
		handmade_free(&p);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A hundred thousand boxes of each: compared one with all others they would take minutes. */
TEST(twins_of_many_boxes_are_found_at_once)
{
	enum { N = 100000 };
	uint32_t m, h, *twin = malloc(2 * N * sizeof *twin);
	struct table t;
	double begin;

	assert_non_null(twin);
	handmade_table(&t, NULL);
	m = handmade_tensor(&t, T(.component = "o", .name = "w", .dtype = CKPT_F32,
				  .layout = TABLE_NONE, .ndim = 2, .shape = { N, 4 }));
	h = handmade_tensor(&t, T(.component = "m", .name = "w", .of = "o/w", .dtype = CKPT_BF16,
				  .cls = CKPT_DERIVED, .layout = TABLE_NONE, .ndim = 2,
				  .shape = { N, 4 }));
	for (uint64_t i = 0; i < N; i++) {
		uint64_t row = i * 7919 % N; /* in no order */

		handmade_piece(&t, 0, m, i * 64, 0, BOX(row, 0), BOX(1, 4));
		handmade_piece(&t, 0, h, (UINT64_C(1) << 30) + (N - i) * 64, PIECE_DERIVED,
			       BOX(row, 0), BOX(1, 4));
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	begin = seconds();
	assert_int_equal(table_twins(&t, twin), 0);
	if (seconds() - begin > 5)
		fail_msg("%.1f s", seconds() - begin);
	for (uint32_t i = 0; i < 2 * N; i++) {
		const struct table_piece *p = &t.piece[i];

		assert_int_equal(twin[i] == TABLE_NONE, p->tensor == m);
		if (p->tensor == h)
			assert_true(indexset_equal(&t.piece[twin[i]].set, &p->set));
	}
	free(twin);
	table_free(&t);
}

/* --- averages --- */

static void averaged(struct table *t, uint32_t rank, const struct table_average *x)
{
	uint32_t k;

	handmade_table(t, "fsdp=2");
	assert_int_equal(table_add_average(t, x, NULL, NULL), 0);
	k = handmade_layout(t, "Shard(0)@fsdp");
	k = handmade_tensor(t, T(.component = "ema.fast", .name = "w", .of = "model/w",
				 .dtype = CKPT_F32, .role = CKPT_AVERAGE, .made = 1, .layout = k,
				 .ndim = 2, .shape = { 12, 2 }));
	handmade_piece(t, rank, k, 0, 0, BOX(6 * rank, 0), BOX(6, 2));
}

TEST(averages_of_ranks_are_united_and_mixed_where_they_differ)
{
	for (int differ = 0; differ < 2; differ++) {
		struct table_average x = ROW(.name = "fast", .schedule = "every=1", .product = 0.25,
					     .updates = 7, .last_step = 11, .since = 1,
					     .history = { 1, 2, 3 }, .flags = AVERAGE_SEEDED);
		struct checkpoint *c;
		struct handmade p;
		struct table t;

		handmade_begin(&p, "demo", 12, 2, 0);
		for (uint32_t r = 0; r < 2; r++) {
			x.updates = differ ? 7 - r : 7;
			averaged(&t, r, &x);
			(void)handmade_add(&p, r, PART_AVERAGE, 0, &t, NULL, 0);
		}
		for (uint32_t r = 0; r < 2; r++) {
			uint32_t k;

			handmade_table(&t, "fsdp=2");
			k = handmade_layout(&t, "Shard(0)@fsdp");
			k = handmade_tensor(&t,
					    T(.component = "model", .name = "w", .dtype = CKPT_F32,
					      .layout = k, .ndim = 2, .shape = { 12, 2 }));
			handmade_piece(&t, r, k, 0, 0, BOX(6 * r, 0), BOX(6, 2));
			(void)handmade_add(&p, r, PART_MAIN, 0, &t, &r, 1);
		}
		assert_ok_err(handmade_commit(&p, &err), &err);
		c = sound(&p);
		assert_int_equal(c->table.naverage, 1);
		assert_string_equal(c->table.average[0].name, "fast");
		assert_int_equal(c->table.average[0].updates, 7); /* the lowest writer's */
		assert_int_equal(c->table.average[0].flags,
				 AVERAGE_SEEDED | (differ ? AVERAGE_MIXED : 0));
		assert_int_equal(c->table.tensor[1].made, 1);
		assert_int_equal(c->table.tensor[0].made, 0);
		checkpoint_free(c);
		handmade_free(&p);
	}
}

/* What nobody declared has parts of its own, and what is declared has none there; constants are
 * constant. */
TEST(a_tensor_in_a_part_that_is_not_for_it_is_refused)
{
	static const struct {
		uint32_t kind, cls;
		bool made, piece;
		const char *words;
	} is[] = {
		{ PART_CONST, CKPT_STABLE, false, true, "it is not constant" },
		{ PART_CONST, CKPT_CONST, true, true, "what averages made is in parts of its own" },
		{ PART_AVERAGE, CKPT_STABLE, false, true, "what averages made is in parts of its" },
		{ PART_CONST, CKPT_CONST, false, false, "it is listed, but has no piece here" },
		{ PART_CONST, CKPT_CONST, false, true, NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		struct table_average x = { .name = "fast", .schedule = "" };
		struct handmade p;
		struct table t;
		uint32_t k;

		handmade_begin(&p, "demo", 12, 1, 0);
		handmade_table(&t, NULL);
		if (is[i].made)
			assert_int_equal(table_add_average(&t, &x, NULL, NULL), 0);
		k = handmade_tensor(&t,
				    T(.component = "m", .name = "w", .dtype = CKPT_F32,
				      .cls = is[i].cls, .made = is[i].made, .layout = TABLE_NONE,
				      .ndim = 1, .shape = { is[i].piece ? 4 : 0 }));
		handmade_piece(&t, 0, k, 0, 0, origin, BOX(is[i].piece ? 4 : 0));
		(void)handmade_add(&p, 0, is[i].kind, 0, &t, NULL, 0);
		handmade_table(&t, NULL);
		if (is[i].kind == PART_CONST && !is[i].made)
			(void)handmade_tensor(&t,
					      T(.component = "m", .name = "w", .dtype = CKPT_F32,
						.cls = is[i].cls, .layout = TABLE_NONE, .ndim = 1,
						.shape = { is[i].piece ? 4 : 0 }));
		(void)handmade_add(&p, 0, PART_MAIN, 0, &t, (uint32_t[]){ 0 }, 1);
		assert_ok_err(handmade_commit(&p, &err), &err);
		if (!is[i].words)
			checkpoint_free(sound(&p));
		else if (is[i].made)
			refused(&p, -EPROTONOSUPPORT, "a section of kind 34"); /* AVERAGES */
		else
			refused(&p, -EPROTO, is[i].words);
		handmade_free(&p);
	}
}

/* --- boxes, media, attributes, fingerprints --- */

/* Two ranks hold boxes of a tensor without a layout: rank 1 from this column on, so many. */
static int boxes(struct handmade *p, uint64_t from, uint64_t columns)
{
	for (uint32_t r = 0; r < 2; r++) {
		struct table t;
		uint32_t k;

		if (!r)
			handmade_begin(p, "demo", 12, 2, 0);
		handmade_table(&t, "dp=2");
		k = handmade_tensor(&t, T(.component = "m", .name = "w", .dtype = CKPT_BF16,
					  .layout = TABLE_NONE, .ndim = 2, .shape = { 4, 10 }));
		if (r == 0) {
			handmade_piece(&t, 0, k, 0, 0, origin, BOX(4, 3));
			handmade_piece(&t, 0, k, 64, 0, BOX(0, 3), BOX(1, 2));
		} else {
			handmade_piece(&t, 1, k, 0, 0, BOX(1, 3), BOX(3, 2));
			handmade_piece(&t, 1, k, 64, 0, BOX(0, from), BOX(4, columns));
		}
		(void)handmade_add(p, r, PART_MAIN, 0, &t, NULL, 0);
	}
	return handmade_commit(p, &err);
}

TEST(boxes_that_no_layout_describes_hold_every_element_once)
{
	struct handmade p;

	assert_ok_err(boxes(&p, 5, 5), &err);
	checkpoint_free(sound(&p));
	/* A box that is not there, and one that is there twice; by the reader as by the writer. */
	((struct ck_piece *)memdir_section(handmade_file(&p, 0), CK_PIECES))[1].indexset =
		((struct ck_piece *)memdir_section(handmade_file(&p, 0), CK_PIECES))[0].indexset;
	((struct ck_piece *)memdir_section(handmade_file(&p, 0), CK_PIECES))[1].raw_len =
		le64_of(24);
	memdir_sign(&p.d, handmade_file(&p, 0));
	refused(&p, -EPROTO, "m/w");
	handmade_free(&p);
	assert_int_equal(boxes(&p, 6, 4), -EINVAL);
	assert_non_null(strstr(err.msg, "m/w: "));
	handmade_free(&p);
	assert_int_equal(boxes(&p, 4, 6), -EINVAL);
	assert_non_null(strstr(err.msg, "is in two pieces"));
	handmade_free(&p);
}

static void one_blob(struct handmade *p, uint32_t media)
{
	struct table t;
	uint32_t k;

	handmade_begin(p, "demo", 12, 1, 0);
	handmade_table(&t, NULL);
	k = handmade_tensor(&t, T(.component = "blob", .name = "rng", .dtype = CKPT_U8,
				  .flags = TENSOR_BLOB, .media = media, .layout = TABLE_NONE,
				  .ndim = 1, .shape = { 70 }));
	handmade_piece(&t, 0, k, 0, 0, origin, BOX(70));
	(void)handmade_add(p, 0, PART_MAIN, 0, &t, NULL, 0);
}

TEST(the_content_type_of_a_blob_is_kept)
{
	for (uint32_t media = 0; media <= CKPT_MEDIA_NPY; media++) {
		struct checkpoint *c;
		struct handmade p;

		one_blob(&p, media);
		assert_ok_err(handmade_commit(&p, &err), &err);
		c = sound(&p);
		assert_int_equal(c->table.tensor[0].media, media);
		checkpoint_free(c);
		handmade_free(&p);
	}
}

TEST(attributes_are_kept_sorted_and_within_limits)
{
	static struct checkpoint_attr many[NATIVE_ATTRS_MAX + 1];
	static char key[NATIVE_ATTRS_MAX + 1][16], longest[NATIVE_ATTR_VALUE_MAX + 2];
	struct checkpoint_attr some[] = { { "torch", "2.6" }, { "git", "cafe" }, { "note", "" } };
	struct checkpoint *c;
	struct handmade p;

	one_blob(&p, 0);
	p.line.attr = some;
	p.line.nattr = ARRAY_LEN(some);
	assert_ok_err(handmade_commit(&p, &err), &err);
	c = sound(&p);
	assert_int_equal(c->nattr, 3);
	assert_string_equal(c->attr[0].key, "git");
	assert_string_equal(c->attr[0].value, "cafe");
	assert_string_equal(c->attr[1].key, "note");
	assert_string_equal(c->attr[1].value, "");
	assert_string_equal(c->attr[2].key, "torch");
	assert_false(c->newer);
	checkpoint_free(c);
	/* In another order they make no sense; that keeps nobody from restoring. */
	{
		struct ck_attr *a = memdir_section(memdir_find(&p.d, NATIVE_MANIFEST), CK_ATTRS);
		struct ck_attr was = a[0];

		a[0] = a[1];
		a[1] = was;
		memdir_sign(&p.d, memdir_find(&p.d, NATIVE_MANIFEST));
	}
	assert_ok_err(open_it(&p, &c), &err);
	assert_int_equal(c->nattr, 0);
	assert_true(c->newer);
	checkpoint_free(c);
	memdir_remove(&p.d, NATIVE_MANIFEST);
	some[1].key = "torch";
	assert_int_equal(handmade_commit(&p, &err), -EALREADY);
	some[1].key = "";
	assert_int_equal(handmade_commit(&p, &err), -EINVAL);
	memset(longest, 'x', sizeof longest - 1);
	some[1].key = longest + sizeof longest - 1 - NATIVE_ATTR_KEY_MAX - 1;
	assert_int_equal(handmade_commit(&p, &err), -EINVAL);
	some[1].key++;
	some[0].value = longest;
	assert_int_equal(handmade_commit(&p, &err), -EINVAL);
	some[0].value++;
	assert_ok_err(handmade_commit(&p, &err), &err);
	checkpoint_free(sound(&p));
	memdir_remove(&p.d, NATIVE_MANIFEST);
	for (uint32_t i = 0; i <= NATIVE_ATTRS_MAX; i++) {
		snprintf(key[i], sizeof key[i], "k%u", i);
		many[i] = (struct checkpoint_attr){ key[i], "v" };
	}
	p.line.attr = many;
	p.line.nattr = NATIVE_ATTRS_MAX + 1;
	assert_int_equal(handmade_commit(&p, &err), -EINVAL);
	p.line.nattr--;
	assert_ok_err(handmade_commit(&p, &err), &err);
	c = sound(&p);
	assert_int_equal(c->nattr, NATIVE_ATTRS_MAX);
	checkpoint_free(c);
	handmade_free(&p);
}

/* 0 is a fingerprint; one that nobody knows is not compared, and not written as if somebody did. */
TEST(a_fingerprint_that_is_not_known_is_compared_with_nothing)
{
	struct checkpoint *c;
	struct memdir_file *m;
	struct ck_tensor *x;
	struct handmade p;
	struct table t;
	uint32_t k;

	handmade_begin(&p, "demo", 12, 1, 0);
	handmade_table(&t, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		k = handmade_tensor(&t, T(.component = "m", .name = i ? "known" : "half",
					  .dtype = CKPT_F32, .layout = TABLE_NONE, .ndim = 1,
					  .shape = { 8 }));
		handmade_piece(&t, 0, k, 256 * i, 0, origin, BOX(4));
		handmade_piece(&t, 0, k, 256 * i + 64, 0, BOX(4), BOX(4));
	}
	for (uint32_t i = 0; i < t.npiece; i++)
		if (t.piece[i].tensor == 0 && t.piece[i].off == 64) {
			t.piece[i].fp_known = true;
			t.piece[i].fp = 1; /* handmade_add: leave it out */
		}
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
	assert_ok_err(handmade_commit(&p, &err), &err);
	m = memdir_find(&p.d, NATIVE_MANIFEST);
	x = memdir_section(m, CK_TENSORS);
	assert_int_equal(x[0].flags, 0);
	assert_int_equal(le64_get(x[0].fp), 0);
	assert_int_equal(x[1].flags, CK_TENSOR_FP);
	c = sound(&p);
	assert_false(c->table.tensor[0].fp_known);
	assert_true(c->table.tensor[1].fp_known && c->table.tensor[1].fp != 0);
	assert_true(c->table.piece[0].fp_known && !c->table.piece[1].fp_known);
	assert_int_equal(c->table.piece[1].fp, 0);
	checkpoint_free(c);
	/* MANIFEST knows exactly what the pieces do. */
	x[0].flags = CK_TENSOR_FP;
	memdir_sign(&p.d, m);
	refused(&p, -EPROTO, "m/half: its fingerprint is known, or those of all its pieces are");
	x[0].flags = 0;
	x[1].flags = 0;
	x[1].fp = le64_of(0);
	memdir_sign(&p.d, m);
	refused(&p, -EPROTO, "m/known: its fingerprint is known, or");
	handmade_free(&p);
}

/* --- where chunks lie --- */

TEST(chunks_lie_anywhere_in_their_order_and_may_be_longer_than_their_pieces)
{
	static const uint64_t gap[] = { 0, 1, 4096, 3 << 20 }, longer[] = { 0, 1, 4096, 1 << 20 };

	for (size_t i = 0; i < ARRAY_LEN(gap); i++)
		for (size_t l = 0; l < ARRAY_LEN(longer); l++) {
			struct checkpoint *c;
			struct ck_chunk *k;
			struct handmade p;
			struct table t;
			uint32_t x;

			handmade_begin(&p, "demo", 12, 1, 0);
			p.gap = gap[i];
			p.longer = longer[l];
			handmade_table(&t, NULL);
			x = handmade_tensor(&t,
					    T(.component = "m", .name = "w", .dtype = CKPT_F32,
					      .layout = TABLE_NONE, .ndim = 1, .shape = { 3000 }));
			for (uint64_t b = 0; b < 3; b++)
				handmade_piece(&t, 0, x, b << 20, 0, BOX(1000 * b), BOX(1000));
			(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
			assert_ok_err(handmade_commit(&p, &err), &err);
			c = sound(&p);
			assert_int_equal(c->file[0].chunk[0].raw_len,
					 MIN(4000 + longer[l], UINT64_C(1) << 20));
			assert_int_equal(c->file[0].chunk[2].raw_len,
					 4000); /* the raw space ends */
			assert_int_equal(c->file[0].chunk[0].off, align_up(4096 + gap[i], 4096));
			checkpoint_free(c);
			/* Backwards, over each other, beyond the data, beyond the raw space: none
			 * of these. */
			k = memdir_section(handmade_file(&p, 0), CK_CHUNKS);
			le64 was = k[1].off;
			const uint64_t wrong[] = { 0, le64_get(k[0].off), le64_get(k[2].off),
						   le64_get(was) + 512, UINT64_C(1) << 62 };

			for (size_t w = 0; w < ARRAY_LEN(wrong); w++) {
				k[1].off = le64_of(wrong[w]);
				memdir_sign(&p.d, handmade_file(&p, 0));
				refused(&p, -EPROTO, "chunk ");
			}
			k[1].off = was;
			k[2].raw_len = k[2].stored_len = le32_of(4001);
			memdir_sign(&p.d, handmade_file(&p, 0));
			refused(&p, -EPROTO, "chunk 2");
			handmade_free(&p);
		}
}

TEST(padding_that_is_not_zero_is_told_and_is_no_obstacle)
{
	struct checkpoint *c;
	struct memdir_file *f;
	struct handmade p;
	struct ck_tail *t;

	one_blob(&p, 0);
	assert_ok_err(handmade_commit(&p, &err), &err);
	f = handmade_file(&p, 0);
	t = (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);
	f->bytes[le64_get(t->sect[0].off) + le64_get(t->sect[0].len) + 1] = 1;
	assert_ok_err(open_it(&p, &c), &err);
	assert_int_equal(told.n, 1);
	assert_string_equal(told.kind, "padding");
	assert_string_equal(told.file, f->name);
	checkpoint_free(c);
	handmade_free(&p);
}

/* --- identities --- */

TEST(parts_of_one_uuid_or_name_are_not_two)
{
	struct handmade p;
	struct ck_part *rec;

	older_step(&p, 0);
	rec = memdir_section(memdir_find(&p.d, NATIVE_MANIFEST), CK_PARTS);
	memcpy(rec[1].uuid, rec[0].uuid, sizeof rec[1].uuid);
	memdir_sign(&p.d, memdir_find(&p.d, NATIVE_MANIFEST));
	refused(&p, -EPROTO, "two parts have one uuid");
	memcpy(p.part[1].uuid, p.part[0].uuid, sizeof p.part[1].uuid);
	assert_int_equal(handmade_commit(&p, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "are one file"));
	handmade_free(&p);
}

UNIT();
