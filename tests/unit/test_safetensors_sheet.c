/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_safetensors_sheet.c - what the writer of safetensors says that files hold, made into files
 * here, element by element: each is good to a strict reader, begins its data on a block, and all
 * are read back as what the sheet said.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/table/target.h"
#include "formats/safetensors/safetensors_format.h"
#include "tests/lib/bytedir.h"
#include "tests/lib/row.h"
#include "tests/lib/strict_safetensors.h"
#include "tests/lib/unit.h"

static struct bytedir dir;
static struct table src, target;
static struct checkpoint facts, *back;
static struct sheet *sheet;
static struct ckpt_err err;
static struct ckpt_errlist cannot;

static const struct {
	const char *component, *name, *placements;
	uint32_t dtype, ndim;
	uint64_t shape[3];
} tensors[] = {
	{ "model", "emb/w", "Shard(0)@fsdp", CKPT_BF16, 2, { 37, 4 } },
	{ "model", "qkv", "Shard(1)@tp, Shard(0)@fsdp", CKPT_F32, 2, { 3, 5 } },
	{ "model", "strided", "StridedShard(0, 2)@fsdp", CKPT_I64, 1, { 8 } },
	{ "model", "stage", "Only(1)@tp", CKPT_U8, 1, { 8 } },
	{ "optim", "step", "Replicate", CKPT_I64, 0, { 0 } },
	{ "optim", "empty", "Shard(0)@fsdp", CKPT_F64, 2, { 0, 3 } },
	{ "", "f4 \"x\"", "Shard(0)@fsdp", CKPT_F4, 2, { 4, 3 } },
	{ "", "bits", "Replicate", CKPT_BOOL, 1, { 5000 } },
};

static void source_make(void)
{
	uint64_t blob = 9, json = 21;
	struct arena a = { 0 };
	struct layout l;
	struct mesh m;

	assert_ok(mesh_parse("fsdp=2,tp=2", &a, &m, NULL));
	assert_ok(table_add_mesh(&src, &m, NULL, NULL));
	for (uint32_t i = 0; i < ARRAY_LEN(tensors); i++) {
		struct table_tensor x =
			ROW(.component = tensors[i].component, .name = tensors[i].name,
			    .dtype = tensors[i].dtype, .rank = TABLE_NONE, .ndim = tensors[i].ndim,
			    .shape = tensors[i].shape);

		assert_ok(layout_parse(tensors[i].placements, &m, &a, &l, NULL));
		assert_ok(table_add_layout(&src, &l, &x.layout, NULL));
		assert_ok_err(table_add_tensor(&src, &x, NULL, &err), &err);
	}
	for (uint32_t r = 0; r < 4; r++)
		assert_ok_err(
			table_add_tensor(
				&src,
				&(struct table_tensor)ROW(.component = "rng", .name = "state",
							  .dtype = CKPT_U8, .flags = TENSOR_BLOB,
							  .media = CKPT_MEDIA_PICKLE,
							  .layout = TABLE_NONE, .rank = r,
							  .ndim = 1, .shape = &blob),
				NULL, &err),
			&err);
	assert_ok_err(
		table_add_tensor(&src,
				 &(struct table_tensor)ROW(.component = "data", .name = "cursor",
							   .dtype = CKPT_U8, .flags = TENSOR_BLOB,
							   .media = CKPT_MEDIA_JSON,
							   .layout = TABLE_NONE, .rank = TABLE_NONE,
							   .ndim = 1, .shape = &json),
				 NULL, &err),
		&err);
	arena_free(&a);
}

static int setup(void **state)
{
	err = (struct ckpt_err){ 0 };
	source_make();
	return 0;
}

static int teardown(void **state)
{
	sheet_free(TAKE(sheet));
	checkpoint_free(TAKE(back));
	table_free(&target);
	table_free(&src);
	ckpt_errlist_free(&cannot);
	cannot = (struct ckpt_errlist){ 0 };
	facts = (struct checkpoint){ 0 };
	bytedir_clear(&dir);
	return 0;
}
UNIT(.setup = setup, .teardown = teardown);

static int sheeted(const char *mesh, struct format_want want)
{
	static struct format_want w;

	w = want;
	w.facts = &facts;
	w.tool = "ckptctl 9.9";
	if (!src.sealed)
		assert_ok(table_seal(&src, NULL));
	assert_ok_err(target_make(&src, mesh, NULL, 0, &target, NULL, NULL, &err), &err);
	for (uint32_t i = 0; i < target.ntensor; i++) {
		char why[FORMAT_WHY];

		assert_true(format_safetensors.holds(&target, i, why));
	}
	return format_safetensors.sheet(&target, &w, &sheet, &cannot, &err);
}

/* An element says what it is: tensor, global index, byte. */
static uint8_t byte_of(uint32_t tensor, uint64_t global, uint32_t k)
{
	return (uint8_t)(tensor * 31 + global * 7 + k * 3 + (global >> 8));
}

static void piece_write(const struct table_piece *p, uint8_t *file)
{
	const struct table_tensor *x = &sheet->table.tensor[p->tensor];
	uint32_t origin = sheet->origin[p->tensor];

	for (uint64_t i = 0; i < p->set.numel; i++) {
		uint64_t rest = i, g = 0, weight = 1;

		for (uint32_t d = x->ndim; d-- > 0;) {
			uint64_t n = p->set.dim[d].total, at = rest % n;
			const struct run *r = p->set.dim[d].run;

			for (; at >= r->len * r->count; r++)
				at -= r->len * r->count;
			g += (r->start + at / r->len * r->stride + at % r->len) * weight;
			weight *= x->shape[d];
			rest /= n;
		}
		for (uint32_t k = 0; k < x->elem_bytes; k++)
			file[p->off + i * x->elem_bytes + k] = byte_of(origin, g, k);
	}
}

/* Every byte of a file is in one piece or one run. */
static void files_write(void)
{
	struct sheet_state state = { 0 };
	struct arena a = { 0 };

	for (uint32_t f = 0; f < sheet->nfile; f++) {
		uint64_t len = sheet->file[f].bytes, bytes = 0;
		uint8_t *file = calloc(1, len + 1);

		assert_int_equal(sheet->file[f].chunk_log2, 0);
		for (uint32_t i = 0; i < sheet->table.npiece; i++)
			if (sheet->table.piece[i].place == f) {
				piece_write(&sheet->table.piece[i], file);
				bytes += sheet->table.piece[i].len;
			}
		for (uint32_t i = 0; i < sheet->nrun; i++) {
			struct hash128 seal;
			const void *p;
			uint64_t n;

			if (sheet->run[i].file != f)
				continue;
			assert_ok_err(
				format_safetensors.fill(sheet, i, &state, &a, &p, &n, &seal, &err),
				&err);
			assert_int_equal(n, sheet->run[i].len);
			assert_int_equal(sheet->run[i].off, 0);
			memcpy(file, p, n);
			bytes += n;
		}
		assert_int_equal(bytes, len);
		bytedir_add(&dir, sheet->file[f].name, file, len);
		free(file);
	}
	arena_free(&a);
}

static void headers_are_strict(void)
{
	for (uint32_t i = 0; i < dir.n; i++) {
		struct strict_file f;
		char why[200];

		if (strstr(dir.file[i].name, ".json"))
			continue;
		if (!strict_parse(dir.file[i].bytes, dir.file[i].len, &f, why))
			fail_msg("%s: %s", dir.file[i].name, why);
		assert_int_equal(f.data % 4096, 0);
		assert_string_equal(strict_meta(&f, "format"), "pt");
		strict_free(&f);
	}
}

static void piece_is(const struct table_piece *p, const struct table_tensor *x, uint32_t origin)
{
	const struct bytedir_file *f = dir.file;
	uint8_t *same;
	struct table_piece q = *p;

	while (strcmp(f->name, back->file[p->place].name) != 0)
		f++;
	same = malloc(f->len);
	memcpy(same, f->bytes, f->len);
	for (uint32_t i = 0; i < sheet->table.ntensor; i++)
		if (sheet->origin[i] == origin)
			q.tensor = i; /* or another name of it */
	piece_write(&q, same);
	assert_memory_equal(same, f->bytes, f->len);
	assert_int_equal(p->len, p->set.numel * x->elem_bytes);
	free(same);
}

/* What the sheet said is what is read, and the bytes are the elements'. */
static void is_read_back(void)
{
	struct source_dir d = bytedir_source(&dir, NULL);
	const struct table *s = &sheet->table, *t;

	assert_ok_err(format_safetensors.open(&(struct format_open){ .dir = &d }, &back, &err),
		      &err);
	t = &back->table;
	assert_int_equal(t->ntensor, s->ntensor);
	for (uint32_t i = 0; i < s->ntensor; i++) {
		const struct table_tensor *x = &s->tensor[i], *y;
		uint32_t id = table_find(t, x->component, x->name, x->rank);
		uint64_t numel = 0;

		if (id == TABLE_NONE)
			fail_msg("there is no %s/%s", x->component, x->name);
		y = &t->tensor[id];
		assert_int_equal(y->dtype, x->dtype);
		assert_int_equal(y->media, x->media);
		assert_int_equal(y->flags, x->flags);
		assert_int_equal(x->media, target.tensor[sheet->origin[i]].media);
		assert_int_equal(x->rank, target.tensor[sheet->origin[i]].rank);
		assert_int_equal(y->ndim, x->ndim);
		assert_memory_equal(y->shape, x->shape, x->ndim * sizeof *x->shape);
		for (uint32_t k = t->first[id]; k < t->first[id + 1]; k++) {
			numel += t->piece[k].set.numel;
			piece_is(&t->piece[k], y, sheet->origin[i]);
		}
		assert_int_equal(numel, x->numel);
	}
}

static void round_trip(const char *mesh, struct format_want want)
{
	assert_ok_err(sheeted(mesh, want), &err);
	files_write();
	headers_are_strict();
	is_read_back();
}

TEST(complete_tensors_are_one_file)
{
	round_trip("all=1", (struct format_want){ 0 });
	assert_int_equal(sheet->nfile, 1);
	assert_string_equal(sheet->file[0].name, "model.safetensors");
	assert_int_not_equal(table_find(&back->table, "", "model.emb/w", TABLE_NONE), TABLE_NONE);
	assert_int_not_equal(table_find(&back->table, "", "rng.state", 0), TABLE_NONE);
	assert_int_not_equal(table_find(&back->table, "", "rng.state", 3), TABLE_NONE);
	assert_int_not_equal(table_find(&back->table, "", "data.cursor", TABLE_NONE), TABLE_NONE);
}

TEST(shards_have_an_index_and_no_more_bytes_than_allowed)
{
	/* A tensor that is larger has a file of its own. */
	static const uint64_t bytes[] = { 37 * 4 * 2, 60 + 64 + 8 + 8 + 12, 5000, 4 * 9 + 21 };

	round_trip("all=1", (struct format_want){ .shard_bytes = 200 });
	assert_int_equal(sheet->nfile, 5);
	assert_string_equal(sheet->file[0].name, "model-00001-of-00004.safetensors");
	assert_string_equal(sheet->file[4].name, "model.safetensors.index.json");
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(sheet->file[i].bytes - sheet->run[i].len, bytes[i]);
	assert_int_equal(back->nfile, 5);
}

TEST(files_of_ranks_say_which_part_they_have)
{
	facts = (struct checkpoint){ .has = HAS_STEP, .step = 120, .job = "demo", .id = "abc" };
	round_trip("fsdp=2,tp=2", (struct format_want){ .by_rank = true });
	assert_int_equal(sheet->nfile, 4);
	assert_string_equal(sheet->file[3].name, "rank-00003.safetensors");
	assert_int_equal(back->step, 120);
	assert_string_equal(back->job, "demo");
	assert_int_equal(back->has, HAS_STEP);
	assert_string_equal(back->tool, "ckptctl 9.9");
	assert_int_equal(back->world, 4);
}

TEST(blobs_of_ranks_that_the_mesh_lacks_are_read_back_as_theirs)
{
	round_trip("fsdp=3", (struct format_want){ .by_rank = true });
	assert_int_not_equal(table_find(&back->table, "rng", "state", 3), TABLE_NONE);
}

TEST(a_component_that_is_stripped_is_not_in_the_names)
{
	round_trip("all=1", (struct format_want){ .strip = "model" });
	assert_int_not_equal(table_find(&back->table, "", "qkv", TABLE_NONE), TABLE_NONE);
	assert_int_not_equal(table_find(&back->table, "", "optim.step", TABLE_NONE), TABLE_NONE);
}

TEST(two_tensors_of_one_name_are_refused_by_it)
{
	assert_ok(table_add_tensor(&src,
				   &(struct table_tensor)ROW(.component = "", .name = "model.qkv",
							     .dtype = CKPT_U8, .rank = TABLE_NONE,
							     .layout = TABLE_NONE, .ndim = 0),
				   NULL, &err));
	assert_int_equal(sheeted("all=1", (struct format_want){ 0 }), -EMEDIUMTYPE);
	assert_null(sheet);
	assert_non_null(strstr(cannot.text, "tensor model.qkv: two or more"));
}

TEST(attributes_are_metadata_and_come_back)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:model/head", "model/absent" },
					  { "lr", "0.1 \"high\"" } };

	facts = (struct checkpoint){ .attr = attr, .nattr = 2 };
	round_trip("all=1", (struct format_want){ 0 });
	assert_int_equal(back->nattr, 1);
	assert_string_equal(back->attr[0].key, "lr");
	assert_string_equal(back->attr[0].value, "0.1 \"high\"");
	assert_int_equal(back->has, 0);
}

TEST(a_tensor_with_two_names_is_there_under_both)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:model/head", "model/qkv" },
					  { "ckpt.alias:model/stage", "model/qkv" },
					  { "ckpt.alias:model/x", "model/absent" } };

	facts = (struct checkpoint){ .attr = attr, .nattr = 3 };
	round_trip("all=1", (struct format_want){ .strip = "model", .shard_bytes = 100 });
	assert_int_not_equal(table_find(&back->table, "", "head", TABLE_NONE), TABLE_NONE);
	assert_int_equal(back->table.ntensor, target.ntensor + 1);
}

/* --- ties: stored once --- */

static const char *attr_of(const char *key)
{
	for (uint32_t i = 0; i < back->nattr; i++)
		if (!strcmp(back->attr[i].key, key))
			return back->attr[i].value;
	return NULL;
}

static const char *meta_of(uint32_t file, const char *key)
{
	static char text[300];
	struct strict_file f;
	const char *value;
	char why[200];

	if (!strict_parse(dir.file[file].bytes, dir.file[file].len, &f, why))
		fail_msg("%s: %s", dir.file[file].name, why);
	value = strict_meta(&f, key);
	snprintf(text, sizeof text, "%s", value ? value : "");
	strict_free(&f);
	return value ? text : NULL;
}

TEST(what_a_file_stored_once_stays_once_and_what_a_job_declared_is_a_copy)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:/twin/x", "/bits" },
					  { "ckpt.alias:model/head", "model/qkv" } };
	static const struct {
		enum format_tied tied;
		bool foreign, declared; /* is it a copy? */
	} how[] = { { TIED_AS_SAID, false, true },
		    { TIED_ONCE, false, false },
		    { TIED_COPY, true, true } };

	for (uint32_t i = 0; i < ARRAY_LEN(how); i++) {
		if (i) {
			teardown(NULL);
			setup(NULL);
		}
		facts = (struct checkpoint){ .attr = attr, .nattr = 2 };
		round_trip("all=1", (struct format_want){ .tied = how[i].tied });
		assert_int_equal(back->table.ntensor,
				 target.ntensor + how[i].foreign + how[i].declared);
		assert_int_equal(table_find(&back->table, "", "twin/x", TABLE_NONE) != TABLE_NONE,
				 how[i].foreign);
		assert_int_equal(table_find(&back->table, "", "model.head", TABLE_NONE) !=
					 TABLE_NONE,
				 how[i].declared);
		assert_int_equal(attr_of("ckpt.alias:/twin/x") != NULL, !how[i].foreign);
		if (!how[i].foreign)
			assert_string_equal(meta_of(0, "twin/x"), "bits");
		if (!how[i].declared)
			assert_string_equal(attr_of("ckpt.alias:/model.head"), "/model.qkv");
	}
}

TEST(of_shards_the_one_with_the_tensor_says_its_other_name)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:/a", "/bits" },
					  { "ckpt.alias:/b", "/bits" } };
	uint32_t said = 0;

	facts = (struct checkpoint){ .attr = attr, .nattr = 2 };
	round_trip("all=1", (struct format_want){ .shard_bytes = 200 });
	assert_int_equal(back->table.ntensor, target.ntensor);
	assert_string_equal(attr_of("ckpt.alias:/a"), "/bits");
	assert_string_equal(attr_of("ckpt.alias:/b"), "/bits");
	for (uint32_t i = 0; i < dir.n - 1; i++) {
		struct source_dir d = bytedir_source(&dir, dir.file[i].name);
		struct checkpoint *k;

		assert_ok(format_safetensors.open(&(struct format_open){ .dir = &d }, &k, NULL));
		assert_int_equal(meta_of(i, "a") != NULL,
				 table_find(&k->table, "", "bits", TABLE_NONE) != TABLE_NONE);
		said += meta_of(i, "a") != NULL;
		checkpoint_free(k);
	}
	assert_int_equal(said, 1);
}

TEST(files_of_ranks_hold_each_tensor_once_and_say_its_names_as_they_were)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:/twin", "/bits" },
					  { "ckpt.alias:model/head", "model/qkv" } };

	facts = (struct checkpoint){ .attr = attr, .nattr = 2 };
	round_trip("fsdp=2,tp=2", (struct format_want){ .by_rank = true });
	assert_int_equal(back->table.ntensor, target.ntensor);
	assert_string_equal(attr_of("ckpt.alias:/twin"), "/bits");
	assert_string_equal(attr_of("ckpt.alias:model/head"), "model/qkv");
	for (uint32_t i = 0; i < 4; i++)
		assert_string_equal(meta_of(i, "model/head"), "model/qkv");
}

/* Its name reads as if it had a component. */
TEST(a_second_name_with_a_slash_and_no_component_comes_back_from_files_of_ranks)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:/twin/x", "/bits" } };

	facts = (struct checkpoint){ .attr = attr, .nattr = 1 };
	assert_ok_err(sheeted("fsdp=2,tp=2", (struct format_want){ .by_rank = true }), &err);
	files_write();
	headers_are_strict();
	is_read_back();
	assert_string_equal(meta_of(0, "keys"), "name");
	assert_string_equal(attr_of("ckpt.alias:/twin/x"), "/bits");
}

TEST(ties_that_are_none_are_left_as_what_they_are)
{
	struct checkpoint_attr attr[] = {
		{ "best", "bits" },		     /* a program's own */
		{ "ckpt.alias:/bits", "/f4 \"x\"" }, /* a tensor is called so */
		{ "ckpt.alias:/gone", "/dropped" },  /* no such tensor: --only, a view */
		{ "ckpt.alias:/loop", "/pool" },     /* a cycle of names */
		{ "ckpt.alias:/pool", "/loop" },
		{ "ckpt.alias:/step", "/bits" }, /* one of our words: a copy */
		{ "ckpt.alias:/tied", "/bits" },
		{ "ckpt.attr:best", "worst" }, /* as another program's file has it */
		{ "tied", "strongly" },	       /* and an attribute of that name */
	};

	facts = (struct checkpoint){
		.attr = attr, .nattr = ARRAY_LEN(attr), .has = HAS_STEP, .step = 3, .job = "j"
	};
	round_trip("all=1", (struct format_want){ 0 });
	assert_int_equal(back->step, 3);
	assert_string_equal(attr_of("best"), "bits");
	assert_null(attr_of("ckpt.alias:/best"));
	assert_string_equal(attr_of("tied"), "strongly");
	assert_string_equal(attr_of("ckpt.attr:best"), "worst");
	assert_string_equal(attr_of("ckpt.alias:/tied"), "/bits");
	assert_int_not_equal(table_find(&back->table, "", "step", TABLE_NONE), TABLE_NONE);
	assert_int_equal(back->table.ntensor, target.ntensor + 1);
	assert_int_equal(back->nattr, 4);
}

TEST(a_second_name_that_is_stored_once_and_a_tensor_has_is_refused)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:model/stage.x", "model/qkv" } };
	uint64_t shape = 1;

	facts = (struct checkpoint){ .attr = attr, .nattr = 1 };
	assert_ok(table_add_tensor(
		&src,
		&(struct table_tensor)ROW(.component = "model.stage", .name = "x", .dtype = CKPT_U8,
					  .rank = TABLE_NONE, .layout = TABLE_NONE, .ndim = 1,
					  .shape = &shape),
		NULL, &err));
	assert_int_equal(sheeted("all=1", (struct format_want){ .tied = TIED_ONCE }), -EMEDIUMTYPE);
	assert_non_null(strstr(cannot.text, "tensor model.stage.x: two or more"));
}

TEST(a_second_name_that_a_tensor_has_is_refused_also_in_another_file)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:model/stage.x", "model/qkv" } };
	uint64_t shape = 1;

	facts = (struct checkpoint){ .attr = attr, .nattr = 1 };
	assert_ok(table_add_tensor(
		&src,
		&(struct table_tensor)ROW(.component = "model.stage", .name = "x", .dtype = CKPT_U8,
					  .rank = TABLE_NONE, .layout = TABLE_NONE, .ndim = 1,
					  .shape = &shape),
		NULL, &err));
	assert_int_equal(sheeted("all=1", (struct format_want){ .shard_bytes = 100 }),
			 -EMEDIUMTYPE);
	assert_non_null(strstr(cannot.text, "tensor model.stage.x: two or more"));
}

/* A blob that is called as another rank's would be in the files. */
TEST(a_blob_of_a_rank_that_is_named_like_one_of_another_is_read_back_as_it_is)
{
	uint64_t blob = 3;

	for (uint32_t r = 0; r < 2; r++)
		assert_ok(table_add_tensor(
			&src,
			&(struct table_tensor)ROW(.component = "rng", .name = "x/rank-00001",
						  .dtype = CKPT_U8, .flags = TENSOR_BLOB,
						  .layout = TABLE_NONE, .rank = r, .ndim = 1,
						  .shape = &blob),
			NULL, &err));
	round_trip("fsdp=2,tp=2", (struct format_want){ .by_rank = true });
	assert_int_not_equal(table_find(&back->table, "rng", "x/rank-00001", 1), TABLE_NONE);
}

TEST(names_and_attributes_that_are_no_utf8_are_what_the_format_cannot_say)
{
	char why[FORMAT_WHY];

	assert_ok(table_add_tensor(&src,
				   &(struct table_tensor)ROW(.component = "", .name = "a\xff",
							     .dtype = CKPT_U8, .rank = TABLE_NONE,
							     .layout = TABLE_NONE, .ndim = 0),
				   NULL, &err));
	assert_ok(table_seal(&src, NULL));
	assert_false(
		format_safetensors.holds(&src, table_find(&src, "", "a\xff", TABLE_NONE), why));
	assert_string_equal(why, "its name is no UTF-8");
	assert_true(format_safetensors.says(&(struct checkpoint_attr){ "a", "\xc3\xa9" }, why));
	assert_false(format_safetensors.says(&(struct checkpoint_attr){ "a", "\xe9" }, why));
	assert_false(format_safetensors.says(&(struct checkpoint_attr){ "\xe9", "a" }, why));
}

TEST(what_the_format_has_no_word_for_is_said)
{
	char why[FORMAT_WHY];
	uint64_t shape = 3;

	assert_ok(table_add_tensor(&src,
				   &(struct table_tensor)ROW(.component = "m", .name = "c",
							     .dtype = CKPT_C128, .rank = TABLE_NONE,
							     .layout = TABLE_NONE, .ndim = 1,
							     .shape = &shape),
				   NULL, &err));
	assert_ok(table_seal(&src, NULL));
	assert_false(format_safetensors.holds(&src, table_find(&src, "m", "c", TABLE_NONE), why));
	assert_string_equal(why, "the format has no dtype C128");
	assert_true(format_safetensors.holds(&src, 0, why));
}

TEST(ranks_are_no_single_file)
{
	assert_int_equal(sheeted("fsdp=2", (struct format_want){ .by_rank = true, .stem = "x" }),
			 -EINVAL);
}
