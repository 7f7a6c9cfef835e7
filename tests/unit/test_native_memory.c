/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_memory.c - there is no memory. Each thing that formats/native does is done again and
 * again, its first, second, third, ... allocation failing, once or with all after it, until it is
 * done without a failure. Each time it either says -ENOMEM, in a sentence, or does what it was
 * asked to; under AddressSanitizer it also leaks nothing.
 */
#include "tests/lib/part_data.h"
#include "tests/lib/row.h"
#include "tests/lib/without_memory.h"
#include "tests/lib/each_arena.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/handmade.h"
#include "tests/lib/sheet_files.h"
#include "tests/lib/unit.h"
#include "ckpt/table/target.h"

#define WORLD 3

static struct memdir dir;
static struct sample rank0;
static const struct ckpt_note note[2] = { { "loss", 1.5 }, { "lr", 0.1 } };
static const struct memdir_opts opts =
	ROW(.mesh = "fsdp=3", .job = "demo", .seed = 5, .scale = 1, .step = 12, .generation = 3,
	    .seq = 7, .note = note, .nnote = 2);

static int setup(void **state)
{
	(void)state;
	memdir_checkpoint(&dir, &opts);
	return sample_make(opts.mesh, 0, opts.seed, opts.scale, &rank0);
}

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&dir);
	sample_free(&rank0);
	return 0;
}

/* --- reading --- */

static int act_open(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&dir);
	struct checkpoint *c;
	int r = format_native.open(&(struct format_open){ .dir = &d, .fault_arg = arg }, &c, err);

	assert_int_equal(r < 0, c == NULL);
	if (c)
		assert_int_equal(c->nfile, WORLD);
	checkpoint_free(c);
	return r;
}

/* What is not known for want of memory is nothing to look for damage in. */
static int act_open_partial(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&dir);
	struct checkpoint *c;
	int r = format_native.open(
		&(struct format_open){ .dir = &d, .partial = true, .fault_arg = arg }, &c, err);

	assert_int_equal(r < 0, c == NULL);
	checkpoint_free(c);
	return r;
}

static void count_fault(void *arg, const struct format_fault *f)
{
	assert_true(*f->text);
	++*(uint32_t *)arg;
}

/* A part is missing: also without memory that is not forgotten, unless all is given up. */
static int act_open_torn(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(arg);
	struct checkpoint *c;
	uint32_t n = 0;
	int r = format_native.open(
		&(struct format_open){
			.dir = &d, .partial = true, .fault = count_fault, .fault_arg = &n },
		&c, err);

	assert_int_equal(r == -ENOMEM, c == NULL);
	assert_true(r < 0);
	if (c) {
		assert_true(n > 0);
		assert_true(c->partial && c->table.sealed);
		assert_int_equal(c->nfile, WORLD);
		assert_int_equal(c->table.nplace, WORLD);
		assert_true(c->file[1].lost);
	}
	checkpoint_free(c);
	return r == -ENOMEM ? r : 0;
}

static int choose_one(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)arg;
	(void)k;
	(void)err;
	needed[1] = true;
	return 0;
}

static int act_open_some(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&dir);
	struct checkpoint *c;
	int r = format_native.open(
		&(struct format_open){ .dir = &d, .choose = choose_one, .choose_arg = arg }, &c,
		err);

	assert_int_equal(r < 0, c == NULL);
	if (c)
		assert_true(c->some && c->file[0].unread && !c->file[1].unread);
	checkpoint_free(c);
	return r;
}

static int act_summary(void *arg, struct ckpt_err *err)
{
	struct source s = memdir_open(&dir, NATIVE_MANIFEST);
	struct checkpoint *c;
	int r = format_native.root->summary(&s, &c, err);

	(void)arg;
	assert_int_equal(r < 0, c == NULL);
	if (c)
		assert_int_equal(c->nnote, 2);
	checkpoint_free(c);
	return r;
}

TEST(a_checkpoint_is_opened_or_there_is_no_memory)
{
	without_memory(3, "open", act_open, NULL);
	without_memory(3, "open_partial", act_open_partial, NULL);
	without_memory(3, "open_some", act_open_some, NULL);
	without_memory(3, "summary", act_summary, NULL);
}

TEST(what_is_missing_is_told_or_there_is_no_memory)
{
	struct memdir torn = { .n = 0 };

	for (uint32_t i = 0; i < dir.n; i++)
		if (strncmp(dir.file[i].name, "w0001", 5) != 0)
			(void)memdir_add(&torn, dir.file[i].name, dir.file[i].bytes,
					 dir.file[i].len);
	without_memory(3, "open_torn", act_open_torn, &torn);
	memdir_clear(&torn);
}

/* --- writing --- */

static int act_part_table(void *arg, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct table t = { 0 };
	int r = native_part_table(&rank0.decl, 0, &t, arg ? &list : NULL, err);

	if (r == 0)
		assert_true(t.npiece > 5 && !list.n);
	ckpt_errlist_free(&list);
	table_free(&t);
	return r;
}

static int act_raw_order(void *arg, struct ckpt_err *err)
{
	int r = native_raw_order(&rank0.decl, arg);

	return r ? ckpt_error(err, r, "out of memory") : 0;
}

struct writing {
	struct native_info info;
	struct native_lineage line;
	struct table t[WORLD];
	struct native_part part[WORLD];
	struct table all;
	struct chunk *chunk; /* of rank 0 */
	uint64_t nchunk, data_end;
	void *want; /* the MANIFEST */
	uint64_t want_len;
};

static int act_part_chunks(void *arg, struct ckpt_err *err)
{
	struct writing *w = arg;
	struct chunk *chunk = NULL;
	uint64_t n, end;
	int r = chunk_map_make(&w->t[0], NATIVE_DATA_OFF, &chunk, &n, &end, err);

	if (r == 0) {
		assert_int_equal(n, w->nchunk);
		assert_int_equal(end, w->data_end);
	} else {
		assert_null(chunk);
	}
	free(chunk);
	return r;
}

static int act_part_tail(void *arg, struct ckpt_err *err)
{
	struct writing *w = arg;
	struct hash128 root;
	void *bytes = NULL;
	uint64_t len;
	int r = native_part_tail(&w->info, 0, &w->t[0], w->chunk, w->nchunk, w->data_end, &bytes,
				 &len, &root, err);

	assert_int_equal(r < 0, bytes == NULL);
	free(bytes);
	return r;
}

static int manifest_is(const struct writing *w, int r, void *bytes, uint64_t len)
{
	assert_int_equal(r < 0, bytes == NULL);
	if (r == 0) {
		assert_int_equal(len, w->want_len);
		assert_memory_equal(bytes, w->want, len);
	}
	free(bytes);
	return r;
}

static int act_manifest(void *arg, struct ckpt_err *err)
{
	struct writing *w = arg;
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;
	int r = native_manifest(&w->info, w->part, WORLD, &w->line, &bytes, &len, id, err);

	return manifest_is(w, r, bytes, len);
}

static int act_manifest_declared(void *arg, struct ckpt_err *err)
{
	struct writing *w = arg;
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;
	int r = native_manifest_declared(&w->info, &w->all, w->part, WORLD, &w->line, &bytes, &len,
					 id, err);

	return manifest_is(w, r, bytes, len);
}

static int act_rebuild(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&dir);
	struct writing *w = arg;
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;
	int r = memdir_rebuild(&d, "demo", opts.step, &w->line, &bytes, &len, id, err);

	if (r == 0) {
		const struct memdir_file *f = memdir_find(&dir, NATIVE_MANIFEST);

		assert_int_equal(len, f->len);
		assert_memory_equal(bytes, f->bytes, len);
	}
	free(bytes);
	return r;
}

TEST(a_part_and_a_manifest_are_made_or_there_is_no_memory)
{
	struct native_info info = {
		.job = "demo", .step = 12, .generation = 3, .world = WORLD, .wall_ns = 1
	};
	struct writing w =
		ROW(.info = info, .line = ROW(.seq = 7, .parent_step = 11, .tool = "memdir 1",
					      .nnote = 2, .note = note));
	uint32_t *order = malloc((rank0.decl.ntensor + 1) * sizeof *order);
	uint8_t id[16];

	assert_non_null(order);
	without_memory(3, "part_table", act_part_table, NULL);
	without_memory(3, "part_table with a list", act_part_table, order);
	without_memory(3, "raw_order", act_raw_order, order);
	free(order);
	for (uint32_t r = 0; r < WORLD; r++) {
		uint8_t *file;

		memdir_part(&opts, &info, r, &w.part[r], &w.t[r], &file);
		free(file);
		assert_ok(table_merge(&w.all, &w.t[r], NULL, &(struct ckpt_errlist){ 0 }, NULL));
	}
	assert_int_equal(table_seal(&w.all, NULL), 0);
	for (uint32_t i = 0; i < w.all.ntensor; i++) {
		w.all.tensor[i].fp_known = true;
		for (uint32_t k = w.all.first[i]; k < w.all.first[i + 1]; k++)
			w.all.tensor[i].fp += w.all.piece[k].fp;
	}
	assert_int_equal(
		chunk_map_make(&w.t[0], NATIVE_DATA_OFF, &w.chunk, &w.nchunk, &w.data_end, NULL),
		0);
	without_memory(3, "part_chunks", act_part_chunks, &w);
	without_memory(3, "part_tail", act_part_tail, &w);
	assert_ok(native_manifest(&w.info, w.part, WORLD, &w.line, &w.want, &w.want_len, id, NULL));
	without_memory(3, "manifest", act_manifest, &w);
	without_memory(3, "manifest_declared", act_manifest_declared, &w);
	without_memory(3, "rebuild", act_rebuild, &w);
	free(w.want);
	free(w.chunk);
	table_free(&w.all);
	for (uint32_t r = 0; r < WORLD; r++)
		table_free(&w.t[r]);
}

/* --- parts of each kind --- */

static struct handmade several; /* and its MANIFEST, as it should be */

static int act_several_open(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&several.d);
	struct checkpoint *c;
	int r = format_native.open(&(struct format_open){ .dir = &d, .fault_arg = arg }, &c, err);

	assert_int_equal(r < 0, c == NULL);
	if (c)
		assert_true(c->nfile == 3 && c->nattr == 1 && c->table.naverage == 1);
	checkpoint_free(c);
	return r;
}

static int act_several_rebuild(void *arg, struct ckpt_err *err)
{
	struct source_dir d = memdir_source(&several.d);
	const struct memdir_file *m = memdir_find(&several.d, NATIVE_MANIFEST);
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;
	int r = memdir_rebuild(&d, "demo", 12, &several.line, &bytes, &len, id, err);

	(void)arg;
	assert_int_equal(r < 0, bytes == NULL);
	if (r == 0) {
		assert_int_equal(len, m->len);
		assert_memory_equal(bytes, m->bytes, len);
	}
	free(bytes);
	return r;
}

static int act_several_tail(void *arg, struct ckpt_err *err)
{
	const struct native_role role = { .nsource = 2, .source = several.part };
	struct native_info info = several.info;
	struct hash128 root;
	struct chunk *chunk;
	uint64_t n, end, len;
	void *bytes = NULL;
	int r = chunk_map_make(&several.table[2], NATIVE_DATA_OFF, &chunk, &n, &end, err);

	(void)arg;
	if (r)
		return r;
	info.role = &role;
	r = native_part_tail(&info, 0, &several.table[2], chunk, n, end, &bytes, &len, &root, err);
	assert_int_equal(r < 0, bytes == NULL);
	free(bytes);
	free(chunk);
	return r;
}

static int act_several_manifest(void *arg, struct ckpt_err *err)
{
	const struct memdir_file *m = memdir_find(&several.d, NATIVE_MANIFEST);
	uint8_t id[16];
	void *bytes = NULL;
	uint64_t len;
	int r = native_manifest(&several.info, several.part, 3, &several.line, &bytes, &len, id,
				err);

	(void)arg;
	assert_int_equal(r < 0, bytes == NULL);
	if (r == 0)
		assert_memory_equal(bytes, m->bytes, m->len);
	free(bytes);
	return r;
}

TEST(parts_of_each_kind_are_read_and_made_or_there_is_no_memory)
{
	static const uint64_t origin[1], four[1] = { 4 };
	static const struct checkpoint_attr attr = { "git", "cafe" };
	const struct table_average average = { .name = "fast", .schedule = "every=1" };
	const struct handmade_tensor constant =
		ROW(.component = "m", .name = "c", .dtype = CKPT_F32, .cls = CKPT_CONST,
		    .layout = TABLE_NONE, .ndim = 1, .shape = { 4 });
	struct ckpt_err err;
	struct table t;

	handmade_begin(&several, "demo", 12, 1, 0);
	handmade_table(&t, NULL);
	handmade_piece(&t, 0, handmade_tensor(&t, &constant), 0, 0, origin, four);
	(void)handmade_add(&several, 0, PART_CONST, 0, &t, NULL, 0);
	handmade_table(&t, NULL);
	assert_int_equal(table_add_average(&t, &average, NULL, NULL), 0);
	handmade_piece(
		&t, 0,
		handmade_tensor(&t,
				&(struct handmade_tensor)ROW(.component = "ema.fast", .name = "w",
							     .of = "m/w", .dtype = CKPT_F32,
							     .made = 1, .layout = TABLE_NONE,
							     .ndim = 1, .shape = { 4 })),
		0, 0, origin, four);
	(void)handmade_add(&several, 0, PART_AVERAGE, 0, &t, NULL, 0);
	handmade_table(&t, NULL);
	(void)handmade_tensor(&t, &constant);
	handmade_piece(
		&t, 0,
		handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "m", .name = "w",
								 .dtype = CKPT_F32,
								 .layout = TABLE_NONE, .ndim = 1,
								 .shape = { 4 })),
		0, 0, origin, four);
	handmade_piece(
		&t, 0,
		handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "m", .name = "h",
								 .of = "m/w", .dtype = CKPT_BF16,
								 .cls = CKPT_DERIVED,
								 .layout = TABLE_NONE, .ndim = 1,
								 .shape = { 4 })),
		1 << 20, PIECE_DERIVED, origin, four);
	(void)handmade_add(&several, 0, PART_MAIN, 0, &t, (uint32_t[]){ 0, 1 }, 2);
	several.line.attr = &attr;
	several.line.nattr = 1;
	assert_ok_err(handmade_commit(&several, &err), &err);
	without_memory(3, "open parts of each kind", act_several_open, NULL);
	without_memory(3, "rebuild of parts of each kind", act_several_rebuild, NULL);
	without_memory(3, "part_tail with sources", act_several_tail, NULL);
	without_memory(3, "manifest of parts of each kind", act_several_manifest, NULL);
	handmade_free(&several);
}

UNIT(.group_setup = setup, .group_teardown = teardown);

/* --- sheets --- */

struct sheeting {
	struct table target;
	struct format_want want;
	struct sheet *s;
	struct sheet_done done[WORLD + 1];
	uint32_t run;
};

static int act_sheet(void *arg, struct ckpt_err *err)
{
	struct sheeting *x = arg;
	struct sheet *s;
	int r = format_native.sheet(&x->target, &x->want, &s, NULL, err);

	assert_int_equal(r < 0, s == NULL);
	sheet_free(s);
	return r;
}

static int act_fill(void *arg, struct ckpt_err *err)
{
	struct sheeting *x = arg;
	const struct sheet_state written = { .file = x->done };
	struct arena a = { 0 };
	struct hash128 seal;
	const void *p;
	uint64_t len;
	int r = format_native.fill(x->s, x->run, &written, &a, &p, &len, &seal, err);

	arena_free(&a);
	return r;
}

static bool sheet_bytes(void *arg, const struct table *t, const struct table_piece *p, uint8_t *ret)
{
	(void)arg;
	sample_piece(opts.seed, t, p, opts.step, ret);
	return true;
}

TEST(a_sheet_and_its_runs_are_made_or_there_is_no_memory)
{
	struct sheeting x = ROW(.want = ROW(.tool = "test"));
	struct source_dir d = memdir_source(&dir);
	struct checkpoint *c, *is;
	struct memdir out = { .n = 0 };
	struct ckpt_err err;

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &d }, &c, &err), &err);
	assert_ok_err(target_make(&c->table, "fsdp=3", NULL, 0, &x.target, NULL, NULL, &err), &err);
	x.want.facts = c;
	without_memory(3, "sheet", act_sheet, &x);
	assert_ok_err(format_native.sheet(&x.target, &x.want, &x.s, NULL, &err), &err);
	assert_ok_err(sheet_files_write(x.s, sheet_bytes, NULL, &out, NULL, &err), &err);
	d = memdir_source(&out);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &d }, &is, &err), &err);
	for (uint32_t i = 0; i < WORLD; i++)
		x.done[i] = (struct sheet_done)ROW(.bytes = is->file[i].file_bytes,
						   .data_end = data_to(&is->file[i]),
						   .nchunk = is->file[i].nchunk,
						   .chunk = is->file[i].chunk);
	without_memory(3, "head of a part", act_fill, &x);
	x.run = 1;
	without_memory(3, "end of a part", act_fill, &x);
	x.run = 2 * WORLD;
	without_memory(3, "MANIFEST of a sheet", act_fill, &x);
	sheet_free(x.s);
	table_free(&x.target);
	memdir_clear(&out);
	checkpoint_free(is);
	checkpoint_free(c);
}
