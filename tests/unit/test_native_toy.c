/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_toy.c - the format that docs/ADDING-A-FORMAT.md walks through is a format: what is
 * written as toy is read again, and as native it is what it was; it refuses what it cannot say and
 * what is malformed; every byte of its file is in one range.
 */
#include "tests/lib/memdir.h"
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/sheet_files.h"
#include "tests/lib/tiles.h"
#include "tests/lib/toy_format.h"
#include "tests/lib/unit.h"
#include "ckpt/table/target.h"

static struct ckpt_err err;

/* --- the page that walks through it --- */

static char *file_text(const char *path)
{
	char *text = calloc(1, 1 << 20);
	FILE *f = fopen(path, "r");

	assert_non_null(text);
	if (!f)
		fail_msg("%s cannot be opened", path);
	assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
	fclose(f);
	return text;
}

/* Runs in the root of the repository, as make does. */
TEST(what_the_page_quotes_is_what_the_files_say)
{
	char *page = file_text("docs/ADDING-A-FORMAT.md"), *at = page, *end;
	char *head = file_text("tests/lib/toy_format.h"),
	     *body = file_text("tests/lib/toy_format.c");
	uint32_t n = 0, lines = 0;

	for (; (at = strstr(at, "```c\n")); at = end + 3, n++) {
		at += 5;
		end = strstr(at, "```");
		assert_non_null(end);
		*end = 0;
		if (!strstr(head, at) && !strstr(body, at))
			fail_msg("the page quotes what is not there:\n%s", at);
	}
	assert_int_equal(n, 6);
	/* Of code: no comments, includes or empty lines. */
	for (at = strtok(body, "\n"); at; at = strtok(NULL, "\n"))
		lines += *at != '/' && *at != '#';
	assert_true(lines <= 150);
	free(page);
	free(head);
	free(body);
}

/* --- there and back --- */

/* What toy can hold of a sample, on one rank, and a checkpoint that has nothing to say. */
struct toying {
	struct memdir native, toy;
	struct checkpoint *c; /* native */
	struct table target;
	struct checkpoint facts;
	struct format_want want;
};

/* The sample knows its tensors by component, name and class, which toy has not. */
static bool sample_bytes(void *arg, const struct table *t, const struct table_piece *p,
			 uint8_t *ret)
{
	const struct toying *x = arg;
	struct table_tensor *y = &t->tensor[p->tensor], was = *y;
	char name[2 * CKPT_NAME_MAX + 2];

	for (uint32_t i = 0; i < x->target.ntensor; i++)
		if (!strcmp(format_flat_name(&x->target.tensor[i], NULL, name), was.name))
			*y = x->target.tensor[i];
	sample_piece(5, t, p, 12, ret);
	*y = was;
	return true;
}

static void toying_make(struct toying *x)
{
	const struct memdir_opts o =
		ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1, .step = 12);
	struct source_dir dir;
	struct table all;

	*x = (struct toying){ .c = NULL };
	memdir_checkpoint(&x->native, &o);
	dir = memdir_source(&x->native);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &x->c, &err), &err);
	assert_ok_err(target_make(&x->c->table, "fsdp=1", NULL, 0, &all, NULL, NULL, &err), &err);
	assert_ok_err(table_add_mesh(&x->target, &all.mesh[0], NULL, &err), &err);
	for (uint32_t i = 0; i < all.nlayout; i++)
		assert_ok_err(table_add_layout(&x->target, &all.layout[i], NULL, &err), &err);
	for (uint32_t i = 0; i < all.ntensor; i++) {
		char why[FORMAT_WHY];

		if (format_toy.holds(&all, i, why))
			assert_ok_err(table_add_tensor(&x->target, &all.tensor[i], NULL, &err),
				      &err);
		else
			assert_true(all.tensor[i].rank != TABLE_NONE && *why);
	}
	assert_true(x->target.ntensor < all.ntensor && x->target.ntensor > 15);
	assert_ok_err(table_seal(&x->target, &err), &err);
	table_free(&all);
	x->want.facts = &x->facts;
	x->want.tool = "test";
	x->facts.parent_step = UINT64_MAX;
}

static void toying_free(struct toying *x)
{
	checkpoint_free(x->c);
	table_free(&x->target);
	memdir_clear(&x->native);
	memdir_clear(&x->toy);
}

static struct checkpoint *toy_made(struct toying *x)
{
	struct checkpoint *c;
	struct source_dir dir;
	struct sheet *s;

	assert_ok_err(format_toy.sheet(&x->target, &x->want, &s, NULL, &err), &err);
	assert_ok_err(sheet_files_write(s, sample_bytes, x, &x->toy, NULL, &err), &err);
	sheet_free(s);
	dir = memdir_source(&x->toy);
	assert_ok_err(format_toy.open(&(struct format_open){ .dir = &dir }, &c, &err), &err);
	return c;
}

TEST(what_was_native_is_toy_and_native_again)
{
	struct checkpoint *toy, *again;
	struct memdir out = { .n = 0 };
	char name[2 * CKPT_NAME_MAX + 2];
	struct table target;
	struct source_dir dir;
	struct toying x;
	struct sheet *s;

	toying_make(&x);
	toy = toy_made(&x);
	assert_int_equal(toy->has, 0);
	assert_int_equal(toy->table.ntensor, x.target.ntensor);
	assert_ok_err(target_make(&toy->table, "dp=1,fsdp=2", NULL, 0, &target, NULL, NULL, &err),
		      &err);
	assert_ok_err(format_native.sheet(&target, &x.want, &s, NULL, &err), &err);
	assert_ok_err(sheet_files_write(s, sample_bytes, &x, &out, NULL, &err), &err);
	dir = memdir_source(&out);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &again, &err), &err);
	assert_int_equal(again->table.ntensor, x.target.ntensor);
	for (uint32_t i = 0; i < x.target.ntensor; i++) {
		const struct table_tensor *is, *was = &x.target.tensor[i];
		uint32_t at = table_find(&again->table, "", format_flat_name(was, NULL, name),
					 TABLE_NONE);

		assert_int_not_equal(at, TABLE_NONE);
		is = &again->table.tensor[at];
		assert_int_equal(is->dtype, was->dtype);
		assert_int_equal(is->ndim, was->ndim);
		assert_memory_equal(is->shape, was->shape, was->ndim * sizeof *was->shape);
		assert_true(is->fp_known && is->fp == was->fp);
	}
	sheet_free(s);
	table_free(&target);
	checkpoint_free(toy);
	checkpoint_free(again);
	memdir_clear(&out);
	toying_free(&x);
}

TEST(every_byte_is_in_a_range_and_the_sums_are_those_of_the_bytes)
{
	const struct memdir_file *f;
	struct checkpoint *c;
	uint64_t sums = 0;
	struct toying x;

	toying_make(&x);
	c = toy_made(&x);
	f = memdir_find(&x.toy, TOY_FILE);
	assert_null(tiles_all_wrong(c));
	assert_int_equal(c->file[0].file_bytes, f->len);
	for (uint64_t i = 0; i < c->file[0].nrange; i++) {
		const struct format_range *r = &c->file[0].range[i];

		assert_true((r->kind == RANGE_META) == (i == 0));
		if (r->sum == SUM_CRC32)
			assert_int_equal(r->crc, sheet_crc32(f->bytes + r->off, r->len));
		sums += r->sum == SUM_CRC32;
	}
	assert_int_equal(sums, c->table.npiece);
	checkpoint_free(c);
	toying_free(&x);
}

TEST(its_probe_reads_magic_and_no_other_format_takes_it)
{
	char looked[FORMAT_LOOKED];
	struct source_dir dir;
	struct toying x;

	toying_make(&x);
	checkpoint_free(toy_made(&x));
	dir = memdir_source(&x.toy);
	assert_int_equal(format_toy.probe(&dir, looked), 75);
	assert_int_equal(format_native.probe(&dir, looked), 0);
	dir.entry = TOY_FILE;
	assert_int_equal(format_toy.probe(&dir, looked), 75);
	memdir_find(&x.toy, TOY_FILE)->bytes[0]++;
	assert_int_equal(format_toy.probe(&dir, looked), 0);
	memdir_find(&x.toy, TOY_FILE)->len = 4;
	assert_int_equal(format_toy.probe(&dir, looked), 0);
	dir = memdir_source(&x.native);
	assert_int_equal(format_toy.probe(&dir, looked), 0);
	assert_string_equal(looked, "no " TOY_FILE);
	toying_free(&x);
}

TEST(two_tensors_of_one_name_are_refused_and_a_component_can_be_left_out)
{
	const struct table_tensor of[] = {
		ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_F32, .elem_bytes = 4,
		    .layout = TABLE_NONE, .rank = TABLE_NONE),
		ROW(.component = "", .name = "model.w", .of = "", .dtype = CKPT_F32,
		    .elem_bytes = 4, .layout = TABLE_NONE, .rank = TABLE_NONE),
	};
	struct format_want want = { .strip = NULL };
	struct ckpt_errlist list = { .n = 0 };
	struct table t = { 0 };
	struct sheet *s;

	for (size_t i = 0; i < ARRAY_LEN(of); i++)
		assert_ok_err(table_add_tensor(&t, &of[i], NULL, &err), &err);
	assert_ok_err(table_seal(&t, &err), &err);
	assert_int_equal(format_toy.sheet(&t, &want, &s, &list, &err), -EMEDIUMTYPE);
	assert_null(s);
	assert_string_equal(list.text, "model.w: two tensors have this name");
	ckpt_errlist_free(&list);
	want.strip = "model";
	want.stem = "small.toy";
	assert_ok_err(format_toy.sheet(&t, &want, &s, &list, &err), &err);
	assert_string_equal(s->table.tensor[0].name, "w");
	assert_string_equal(s->table.tensor[1].name, "model.w");
	assert_string_equal(s->file[0].name, "small.toy");
	sheet_free(s);
	table_free(&t);
}

/* No byte of the head can be changed so that something else comes out than an error or a table. */
TEST(a_changed_head_is_refused_or_holds_together)
{
	uint32_t refused = 0, read = 0;
	struct memdir_file *f;
	struct source_dir dir;
	struct checkpoint *c;
	struct toying x;
	uint64_t head;

	toying_make(&x);
	checkpoint_free(toy_made(&x));
	f = memdir_find(&x.toy, TOY_FILE);
	dir = memdir_source(&x.toy);
	head = sizeof(struct toy_head) + x.target.ntensor * sizeof(struct toy_tensor);
	for (uint64_t i = 0; i < head; i++)
		for (int k = 0; k < 2; k++) {
			uint8_t was = f->bytes[i];
			int r;

			f->bytes[i] ^= k ? 0x80 : 1;
			r = format_toy.open(&(struct format_open){ .dir = &dir }, &c, &err);
			assert_true(r == 0 || r == -EPROTO || r == -EPROTONOSUPPORT);
			assert_true((r == 0) == (c != NULL));
			if (c)
				assert_null(tiles_all_wrong(c));
			refused += r != 0;
			read += r == 0;
			checkpoint_free(c);
			f->bytes[i] = was;
		}
	assert_true(refused > 100 && read > 100);
	memset(f->bytes + sizeof(struct toy_head), 'x', sizeof((struct toy_tensor *)0)->name);
	assert_int_equal(format_toy.open(&(struct format_open){ .dir = &dir }, &c, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "a bad name"));
	for (uint64_t len = 0; len < head + 5; len += 7) {
		uint64_t was = f->len;

		f->len = len;
		assert_int_equal(format_toy.open(&(struct format_open){ .dir = &dir }, &c, &err),
				 -EPROTO);
		f->len = was;
	}
	toying_free(&x);
}
