/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_sheet.c - a native checkpoint from its sheet. The files are compared with those that
 * ckptctl convert made of the same source before there were sheets: equal bytes, equal ids. They
 * open, and hold the source's tensors. What the format has no use for is refused.
 */
#include "tests/lib/handmade.h"
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/sheet_files.h"
#include "tests/lib/unit.h"
#include "ckpt/table/target.h"

#define T(...) (&(struct handmade_tensor)ROW(__VA_ARGS__))
#define BOX(...) ((const uint64_t[]){ __VA_ARGS__ })
#define TOOL "ckptctl 0.2.0"
#define MB (UINT64_C(1) << 20)

static const uint64_t origin[4];
static struct ckpt_err err;

/* --- sources --- */

struct source_of {
	struct memdir sample; /* of sample.h, with notes and a parent */
	struct handmade averaged;
	struct memdir *d;
	struct checkpoint *c;
};

static void source_open(struct source_of *s)
{
	struct source_dir dir = memdir_source(s->d);

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &s->c, &err), &err);
}

static void sample_source(struct source_of *s)
{
	static const struct ckpt_note note[2] = { { "loss", 1.5 }, { "lr", 0.1 } };
	struct memdir_opts o = ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1,
				   .step = 12, .generation = 3, .seq = 7, .note = note, .nnote = 2);

	memset(o.parent_id, 0xab, sizeof o.parent_id);
	memdir_checkpoint(&s->sample, &o);
	s->d = &s->sample;
	source_open(s);
}

static void add_averages(struct handmade *p, uint32_t rank)
{
	struct table_average a =
		ROW(.name = "fast", .schedule = "every=1", .product = 0.25, .updates = 7,
		    .last_step = 11, .since = 1, .history = { 1, 2, 3 }, .flags = AVERAGE_SEEDED);
	uint32_t cut, all, k;
	struct table t;

	handmade_table(&t, "fsdp=2");
	assert_int_equal(table_add_average(&t, &a, NULL, NULL), 0);
	a.name = "slow";
	a.flags = AVERAGE_KAHAN;
	assert_int_equal(table_add_average(&t, &a, NULL, NULL), 0);
	cut = handmade_layout(&t, "Shard(0)@fsdp");
	all = handmade_layout(&t, "Replicate@fsdp");
	for (uint32_t i = 0; i < 2; i++) {
		k = handmade_tensor(&t,
				    T(.component = i ? "ema.slow" : "ema.fast", .name = "w",
				      .of = "model/w", .dtype = CKPT_F32, .role = CKPT_AVERAGE,
				      .made = 1 + i, .layout = cut, .ndim = 2, .shape = { 8, 6 }));
		handmade_piece(&t, rank, k, i * 256, 0, BOX(4 * rank, 0), BOX(4, 6));
	}
	if (!rank) {
		k = handmade_tensor(&t, T(.component = "ema.fast", .name = "h", .of = "model/h",
					  .dtype = CKPT_BF16, .role = CKPT_AVERAGE, .made = 1,
					  .layout = all, .ndim = 1, .shape = { 6 }));
		handmade_piece(&t, rank, k, MB, 0, origin, BOX(6));
	}
	(void)handmade_add(p, rank, PART_AVERAGE, 0, &t, NULL, 0);
}

static void add_main(struct handmade *p, uint32_t rank)
{
	uint32_t cut, all, k, source = rank;
	struct table t;

	handmade_table(&t, "fsdp=2");
	cut = handmade_layout(&t, "Shard(0)@fsdp");
	all = handmade_layout(&t, "Replicate@fsdp");
	k = handmade_tensor(&t, T(.component = "model", .name = "w", .dtype = CKPT_F32,
				  .role = CKPT_PARAM, .layout = cut, .ndim = 2, .shape = { 8, 6 }));
	handmade_piece(&t, rank, k, 0, 0, BOX(4 * rank, 0), BOX(4, 6));
	k = handmade_tensor(&t, T(.component = "model", .name = "frozen", .dtype = CKPT_F32,
				  .role = CKPT_PARAM, .cls = CKPT_CONST, .layout = all, .ndim = 1,
				  .shape = { 4 }));
	if (rank)
		handmade_piece(&t, rank, k, 512, 0, origin, BOX(4));
	k = handmade_tensor(&t, T(.component = "model", .name = "h", .dtype = CKPT_BF16,
				  .role = CKPT_PARAM, .layout = all, .ndim = 1, .shape = { 6 }));
	if (!rank)
		handmade_piece(&t, rank, k, MB, 0, origin, BOX(6));
	k = handmade_tensor(&t, T(.component = "model", .name = "steps", .dtype = CKPT_I64,
				  .role = CKPT_BUFFER, .layout = all));
	if (rank)
		handmade_piece(&t, rank, k, 2 * MB, 0, origin, origin);
	(void)handmade_add(p, rank, PART_MAIN, 0, &t, &source, 1);
}

static void averaged_source(struct source_of *s)
{
	static const struct checkpoint_attr attr[] = { { "ckpt.average.fast", "good" },
						       { "author", "a test" } };

	handmade_begin(&s->averaged, "demo", 30, 2, 0);
	for (uint32_t r = 0; r < 2; r++)
		add_averages(&s->averaged, r);
	for (uint32_t r = 0; r < 2; r++)
		add_main(&s->averaged, r);
	s->averaged.line.attr = attr;
	s->averaged.line.nattr = ARRAY_LEN(attr);
	assert_ok_err(handmade_commit(&s->averaged, &err), &err);
	s->d = &s->averaged.d;
	source_open(s);
}

static void source_free(struct source_of *s)
{
	checkpoint_free(s->c);
	memdir_clear(&s->sample);
	if (s->averaged.n)
		handmade_free(&s->averaged);
}

static void handmade_bytes(const struct table *t, const struct table_piece *p, uint8_t *ret)
{
	const struct table_tensor *x = &t->tensor[p->tensor];
	uint64_t *list[4] = { 0 };

	for (uint32_t d = 0; d < x->ndim; d++)
		list[d] = sample_indices(&p->set.dim[d]);
	for (uint64_t i = 0; i < p->set.numel; i++) {
		uint64_t g = 0, at[4], rest = i;

		for (uint32_t d = x->ndim; d-- > 0;) {
			at[d] = list[d][rest % p->set.dim[d].total];
			rest /= p->set.dim[d].total;
		}
		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + at[d];
		handmade_element(t, x, g, ret + i * x->elem_bytes);
	}
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
}

static bool source_bytes(void *arg, const struct table *t, const struct table_piece *p,
			 uint8_t *ret)
{
	const struct source_of *s = arg;

	if (s->averaged.n)
		handmade_bytes(t, p, ret);
	else
		sample_piece(5, t, p, 12, ret);
	return true;
}

/* --- what convert wants --- */

struct wanted {
	struct table target;
	struct checkpoint facts;
	struct checkpoint_attr attr[8];
	char from[200];
	struct format_want want;
};

/* As of a conversion: from target, source and tool. */
static void uuid_make(struct wanted *w, const struct checkpoint *src)
{
	struct table_section section[TABLE_SECTIONS_MAX];
	struct hash128 hash[TABLE_SECTIONS_MAX + 2], all;
	struct arena a = { 0 };
	uint32_t n;

	assert_ok_err(table_encode(&w->target, false, &a, section, &n, &err), &err);
	for (uint32_t i = 0; i < n; i++)
		hash[i] = hash128(section[i].bytes, section[i].len);
	hash[n++] = hash128(src->id, strlen(src->id));
	hash[n++] = hash128(TOOL, sizeof TOOL);
	all = hash128(hash, n * sizeof *hash);
	memcpy(w->want.uuid, all.b, sizeof w->want.uuid);
	arena_free(&a);
}

static void want_make(struct wanted *w, const struct checkpoint *src, const char *mesh)
{
	*w = (struct wanted){ .facts = *src };
	assert_ok_err(target_make(&src->table, mesh, NULL, 0, &w->target, NULL, NULL, &err), &err);
	assert_true(src->nattr < ARRAY_LEN(w->attr));
	if (src->nattr)
		memcpy(w->attr, src->attr, src->nattr * sizeof *w->attr);
	snprintf(w->from, sizeof w->from, "native, job %s, step %llu, id %s", src->job,
		 (unsigned long long)src->step, src->id);
	w->attr[src->nattr] = (struct checkpoint_attr){ "ckpt.from", w->from };
	w->facts.attr = w->attr;
	w->facts.nattr = src->nattr + 1;
	w->want.facts = &w->facts;
	w->want.tool = TOOL;
	uuid_make(w, src);
}

static void sheet_write(const struct wanted *w, struct source_of *src, struct memdir *ret,
			struct hash128 *ret_seal)
{
	struct sheet *s;

	assert_ok_err(format_native.sheet(&w->target, &w->want, &s, NULL, &err), &err);
	assert_ok_err(sheet_files_write(s, source_bytes, src, ret, ret_seal, &err), &err);
	sheet_free(s);
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct memdir_file *const *)a)->name,
		      (*(const struct memdir_file *const *)b)->name);
}

/* Of names and bytes of all files. */
static void files_print(const struct memdir *d, char ret[33])
{
	const struct memdir_file *f[MEMDIR_FILES_MAX];
	struct hash128 h[2 * MEMDIR_FILES_MAX], all;

	for (uint32_t i = 0; i < d->n; i++)
		f[i] = &d->file[i];
	qsort(f, d->n, sizeof *f, by_name);
	for (uint32_t i = 0; i < d->n; i++) {
		h[2 * i] = hash128(f[i]->name, strlen(f[i]->name));
		h[2 * i + 1] = hash128(f[i]->bytes, f[i]->len);
	}
	all = hash128(h, 2 * d->n * sizeof *h);
	for (int i = 0; i < 16; i++)
		snprintf(ret + (size_t)2 * (size_t)i, 3, "%02x", all.b[i]);
}

/* --- tests --- */

static const struct {
	void (*make)(struct source_of *s);
	const char *mesh;
	uint32_t nfile;
	const char *id, *files; /* as ckptctl 0.2.0 made them */
} made[] = {
	{ sample_source, "fsdp=1", 1, "297ffdb67c25004339564f31bda2b005",
	  "54071a29f3b7877b4f8827d82003f85a" },
	{ sample_source, "fsdp=3", 3, "e3fa6963ba580d4607e1542ab998c286",
	  "4d9fefca375c23683e0808f307da1fe3" },
	{ sample_source, "dp=2,fsdp=2", 4, "f5fec4be4396324149f4e360b96302de",
	  "569a8078f61babab231ff8a6056b6f97" },
	{ averaged_source, "fsdp=1", 2, "6ce6b124f755f2ea7538c2295734f4a2",
	  "5623a4b9b0bb198cd6616f5120e98775" },
	{ averaged_source, "fsdp=3", 6, "ed581f4e4fe29ff8fccc912faee8164b",
	  "a6c182cec845c4bab08853213acd0637" },
};

static void hold_the_same(const struct checkpoint *x, const struct checkpoint *y)
{
	assert_int_equal(x->table.ntensor, y->table.ntensor);
	assert_int_equal(x->table.naverage, y->table.naverage);
	for (uint32_t i = 0; i < x->table.ntensor; i++) {
		const struct table_tensor *a = &x->table.tensor[i];
		uint32_t at = table_find(&y->table, a->component, a->name, a->rank);

		assert_int_not_equal(at, TABLE_NONE);
		assert_true(y->table.tensor[at].fp_known);
		assert_true(y->table.tensor[at].fp == a->fp);
		assert_int_equal(y->table.tensor[at].made, a->made);
	}
}

TEST(the_files_are_those_that_convert_made_before_there_were_sheets)
{
	for (size_t i = 0; i < ARRAY_LEN(made); i++) {
		struct source_of src = { .d = NULL };
		struct memdir out = { .n = 0 };
		struct checkpoint *c;
		struct source_dir dir;
		struct hash128 seal;
		struct wanted w;
		char files[33];

		made[i].make(&src);
		want_make(&w, src.c, made[i].mesh);
		sheet_write(&w, &src, &out, &seal);
		dir = memdir_source(&out);
		assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err),
			      &err);
		files_print(&out, files);
		assert_int_equal(c->nfile, made[i].nfile);
		assert_string_equal(c->id, made[i].id);
		assert_string_equal(files, made[i].files);
		assert_int_equal(c->linked_bytes, 0);
		hold_the_same(src.c, c);
		for (int k = 0; k < 16; k++)
			snprintf(files + (size_t)2 * (size_t)k, 3, "%02x", seal.b[k]);
		assert_string_equal(files, c->id);
		checkpoint_free(c);
		table_free(&w.target);
		memdir_clear(&out);
		source_free(&src);
	}
}

/* The tensors lie in every part in the order of the sheet's. */
TEST(tensors_are_numbered_as_their_bytes_lie)
{
	struct source_of src = { .d = NULL };
	struct wanted w;
	struct sheet *s;

	sample_source(&src);
	want_make(&w, src.c, "fsdp=3");
	assert_ok_err(format_native.sheet(&w.target, &w.want, &s, NULL, &err), &err);
	for (uint32_t i = 0; i < s->table.ntensor; i++) {
		const struct table_tensor *x = &s->table.tensor[i],
					  *y = &w.target.tensor[s->origin[i]];

		assert_string_equal(x->name, y->name);
		assert_string_equal(x->component, y->component);
		assert_int_equal(x->rank, y->rank);
	}
	for (uint32_t f = 0; f < s->nfile; f++) {
		uint64_t end = 0;

		for (uint32_t i = 0; i < s->table.npiece; i++) {
			const struct table_piece *p = &s->table.piece[i];

			if (p->place != f)
				continue;
			assert_true(p->off >= end);
			end = p->off + p->len;
		}
		assert_int_equal(end, s->table.place[f].bytes);
	}
	sheet_free(s);
	table_free(&w.target);
	source_free(&src);
}

static bool bytes_without_print(void *arg, const struct table *t, const struct table_piece *p,
				uint8_t *ret)
{
	const struct table_tensor *x = &t->tensor[p->tensor];

	(void)source_bytes(arg, t, p, ret);
	return p->rank || strcmp(x->name, "w") != 0;
}

TEST(a_tensor_of_which_one_piece_has_no_fingerprint_has_none)
{
	struct source_of src = { .d = NULL };
	struct memdir out = { .n = 0 };
	struct source_dir dir;
	struct checkpoint *c;
	struct wanted w;
	struct sheet *s;

	averaged_source(&src);
	want_make(&w, src.c, "fsdp=2");
	assert_ok_err(format_native.sheet(&w.target, &w.want, &s, NULL, &err), &err);
	assert_ok_err(sheet_files_write(s, bytes_without_print, &src, &out, NULL, &err), &err);
	dir = memdir_source(&out);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err), &err);
	for (uint32_t i = 0; i < c->table.ntensor; i++) {
		const struct table_tensor *x = &c->table.tensor[i];

		assert_int_equal(x->fp_known, strcmp(x->name, "w") != 0);
	}
	checkpoint_free(c);
	sheet_free(s);
	table_free(&w.target);
	memdir_clear(&out);
	source_free(&src);
}

TEST(many_parts_have_their_tensors_once)
{
	struct source_of src = { .d = NULL };
	struct wanted w;
	struct sheet *s;

	sample_source(&src);
	want_make(&w, src.c, "fsdp=3000");
	assert_ok_err(format_native.sheet(&w.target, &w.want, &s, NULL, &err), &err);
	assert_int_equal(s->nfile, 3001);
	assert_int_equal(s->table.ntensor, w.target.ntensor);
	/* A part's own table has all tensors and the mesh of 3,000 ranks. */
	assert_true(s->table.arena.total_bytes < 3000 * 4096);
	assert_string_equal(s->file[3000].name, NATIVE_MANIFEST);
	assert_int_equal(s->table.place[3000].bytes, 0);
	sheet_free(s);
	table_free(&w.target);
	source_free(&src);
}

TEST(what_a_native_checkpoint_has_no_use_for_is_refused)
{
	struct source_of src = { .d = NULL };
	struct wanted w;
	struct sheet *s;

	averaged_source(&src);
	want_make(&w, src.c, "fsdp=2");
	w.want.stem = "model.native";
	assert_int_equal(format_native.sheet(&w.target, &w.want, &s, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "model.native"));
	assert_null(s);
	w.want.stem = NULL;
	w.want.strip = "ema.fast";
	assert_int_equal(format_native.sheet(&w.target, &w.want, &s, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "ema.fast"));
	w.want.strip = NULL;
	w.want.shard_bytes = 1;
	assert_int_equal(format_native.sheet(&w.target, &w.want, &s, NULL, &err), -EINVAL);
	w.want.shard_bytes = 0;
	assert_ok_err(format_native.sheet(&w.target, &w.want, &s, NULL, &err), &err);
	for (uint32_t i = 0; i < w.target.ntensor; i++) {
		char why[FORMAT_WHY];

		assert_true(format_native.holds(&w.target, i, why));
	}
	sheet_free(s);
	table_free(&w.target);
	source_free(&src);
}
