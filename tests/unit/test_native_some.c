/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_some.c - a checkpoint of which some parts are opened: what is chosen is as in the
 * whole, and nothing else is touched.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/unit.h"

static const struct memdir_opts plain = ROW(.mesh = "dp=2,fsdp=3", .job = "demo", .seed = 5,
					    .scale = 1, .step = 12, .generation = 3, .seq = 7);

/* Of the case that runs. */
static struct memdir d;
static struct source_dir dir;
static struct checkpoint *c;
static struct ckpt_err err;

static int setup(void **state)
{
	(void)state;
	dir = memdir_source(&d);
	err = (struct ckpt_err){ 0 };
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&d);
	return 0;
}

static int choose(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *why)
{
	uint32_t bits = *(uint32_t *)arg;

	assert_true(k->table.sealed && k->table.ntensor > 0 && !k->table.npiece);
	assert_int_equal(k->world, 6);
	if (bits == 99)
		return ckpt_error(why, -EXDEV, "not these");
	for (uint32_t i = 0; i < k->world; i++) {
		assert_false(needed[i]);
		needed[i] = bits >> i & 1;
	}
	return 0;
}

TEST(what_is_chosen_is_as_in_the_whole_and_nothing_else_is_touched)
{
	struct checkpoint *all, *some;

	memdir_checkpoint(&d, &plain);
	assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir }, &all, &err), 0);
	assert_false(all->some);
	for (uint32_t bits = 0; bits < 64; bits++) {
		struct memdir gone = { .n = 0 };
		struct source_dir left = memdir_source(&gone);
		uint32_t n = 0;

		for (uint32_t i = 0; i < d.n; i++) {
			bool wanted = !strcmp(d.file[i].name, NATIVE_MANIFEST);

			for (uint32_t r = 0; r < all->nfile; r++)
				wanted |= (bits >> r & 1) &&
					  !strcmp(d.file[i].name, all->file[r].name);
			if (wanted)
				memdir_add(&gone, d.file[i].name, d.file[i].bytes, d.file[i].len);
		}
		assert_ok_err(format_native.open(&(struct format_open){ .dir = &left,
									.choose = choose,
									.choose_arg = &bits },
						 &some, &err),
			      &err);
		assert_true(some->some && !some->partial && some->table.sealed);
		assert_int_equal(some->nfile, 6);
		assert_int_equal(some->table.nplace, 6);
		assert_int_equal(some->table.ntensor, all->table.ntensor);
		assert_string_equal(some->id, all->id);
		for (uint32_t r = 0; r < 6; r++) {
			const struct format_file *x = &some->file[r], *y = &all->file[r];

			assert_string_equal(x->name, y->name);
			assert_int_equal(x->file_bytes, y->file_bytes);
			assert_int_equal(x->unread, !(bits >> r & 1));
			assert_int_equal(x->nchunk, x->unread ? 0 : y->nchunk);
			assert_int_equal(some->table.place[r].bytes, all->table.place[r].bytes);
		}
		for (uint32_t i = 0; i < all->table.npiece; i++) {
			const struct table_piece *p = &all->table.piece[i];

			if (!(bits >> p->rank & 1))
				continue;
			assert_true(n < some->table.npiece);
			assert_int_equal(some->table.piece[n].tensor, p->tensor);
			assert_int_equal(some->table.piece[n].off, p->off);
			assert_int_equal(some->table.piece[n].fp, p->fp);
			assert_true(indexset_equal(&some->table.piece[n].set, &p->set));
			n++;
		}
		assert_int_equal(n, some->table.npiece);
		checkpoint_free(some);
		memdir_clear(&gone);
	}
	checkpoint_free(all);
}

TEST(a_chosen_part_that_is_missing_or_damaged_is_an_error)
{
	uint32_t bits = 0;
	char name[64];

	memdir_checkpoint(&d, &plain);
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		0);
	snprintf(name, sizeof name, "%s", c->file[2].name);
	checkpoint_free(c);
	*(uint8_t *)memdir_section(memdir_find(&d, name), CK_CHUNKS) ^= 1;
	bits = 1 << 2;
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		-EBADMSG);
	assert_null(c);
	memdir_remove(&d, name);
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		-EUCLEAN);
	assert_null(c);
	bits = 1 << 1;
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		0);
	checkpoint_free(c);
}

/* What the whole is refused for, some of it is, too: else it would depend on the rank that loads
 * which of two pieces it gets. */
TEST(pieces_that_overlap_are_refused_where_both_are_opened)
{
	uint32_t bits = 1 << 1;
	le64 *set;

	memdir_checkpoint(&d, &(struct memdir_opts)ROW(.mesh = "fsdp=6", .job = "demo", .seed = 5,
						       .scale = 1, .step = 12, .generation = 3,
						       .seq = 7));
	/* Rank 1 claims a row of rank 0 in its first tensor instead of its own last one. */
	set = memdir_section(&d.file[1], CK_INDEXSETS);
	set[2] = le64_of(le64_get(set[2]) - 1);
	memdir_sign(&d, &d.file[1]);
	assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err),
			 -EPROTO);
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		0);
	checkpoint_free(c);
	bits = 3;
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		-EPROTO);
	assert_null(c);
	assert_non_null(strstr(err.msg, "is in two pieces"));
}

/* A tensor all of whose pieces were opened is held against MANIFEST's fingerprint. */
TEST(fingerprints_must_add_up_where_all_pieces_are_there)
{
	uint32_t bits = 63;
	struct ck_tensor *x;

	memdir_checkpoint(&d, &plain);
	x = memdir_section(memdir_find(&d, NATIVE_MANIFEST), CK_TENSORS);
	x->fp = le64_of(le64_get(x->fp) + 1);
	memdir_sign(&d, memdir_find(&d, NATIVE_MANIFEST));
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		-EPROTO);
	assert_null(c);
	assert_non_null(strstr(err.msg, "fingerprints"));
	bits = 0;
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		0);
	checkpoint_free(c);
}

TEST(who_chooses_may_refuse)
{
	uint32_t bits = 99;

	memdir_checkpoint(&d, &plain);
	assert_int_equal(
		format_native.open(
			&(struct format_open){ .dir = &dir, .choose = choose, .choose_arg = &bits },
			&c, &err),
		-EXDEV);
	assert_null(c);
	assert_string_equal(err.msg, "not these");
}

TEST(a_manifest_of_a_union_that_is_known_is_the_same_to_the_byte)
{
	struct native_info info = { .job = "demo", .step = 12, .generation = 3, .world = 6 };
	struct native_lineage lineage = { .seq = 7, .parent_step = UINT64_MAX, .tool = "test" };
	struct native_part part[6];
	struct table t[6], sum = { 0 };
	uint8_t *bytes[6], id[2][16];
	void *file[2];
	uint64_t len[2];

	for (uint32_t r = 0; r < 6; r++) {
		memdir_part(&plain, &info, r, &part[r], &t[r], &bytes[r]);
		part[r].table = &t[r];
		assert_ok(table_merge(&sum, &t[r], NULL, &(struct ckpt_errlist){ 0 }, NULL));
	}
	assert_int_equal(table_seal(&sum, NULL), 0);
	for (uint32_t i = 0; i < sum.ntensor; i++) {
		sum.tensor[i].fp = 0;
		sum.tensor[i].fp_known = true;
	}
	for (uint32_t i = 0; i < sum.npiece; i++)
		sum.tensor[sum.piece[i].tensor].fp += sum.piece[i].fp;
	assert_ok_err(native_manifest(&info, part, 6, &lineage, &file[0], &len[0], id[0], &err),
		      &err);
	for (uint32_t r = 0; r < 6; r++)
		part[r].table = NULL;
	assert_ok_err(native_manifest_declared(&info, &sum, part, 6, &lineage, &file[1], &len[1],
					       id[1], &err),
		      &err);
	assert_int_equal(len[0], len[1]);
	assert_memory_equal(file[0], file[1], len[0]);
	assert_memory_equal(id[0], id[1], 16);
	part[5].rank = 4;
	assert_int_equal(native_manifest_declared(&info, &sum, part, 6, &lineage, &file[1], &len[1],
						  id[1], &err),
			 -EINVAL);
	for (uint32_t r = 0; r < 6; r++) {
		table_free(&t[r]);
		free(bytes[r]);
	}
	table_free(&sum);
	free(file[0]);
	free(file[1]);
}

UNIT(.setup = setup, .teardown = teardown);

/* The names of everything are in MANIFEST. */
TEST(at_depth_names_manifest_alone_is_read)
{
	struct checkpoint *all;

	memdir_checkpoint(&d, &plain);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &all, &err), &err);
	assert_int_equal(all->depth, FORMAT_EXTENTS);
	assert_int_equal(all->has, HAS_PRINTS | HAS_SUMS | HAS_LAYOUTS | HAS_STEP);
	for (uint32_t i = d.n; i-- > 0;)
		if (strcmp(d.file[i].name, NATIVE_MANIFEST) != 0)
			memdir_remove(&d, d.file[i].name);
	assert_int_equal(d.n, 1);
	assert_ok_err(
		format_native.open(&(struct format_open){ .dir = &dir, .depth = FORMAT_NAMES }, &c,
				   &err),
		&err);
	assert_int_equal(c->depth, FORMAT_NAMES);
	assert_true(c->some && !c->partial && c->table.sealed);
	assert_int_equal(c->has, all->has);
	assert_int_equal(c->table.npiece, 0);
	assert_int_equal(c->table.ntensor, all->table.ntensor);
	assert_int_equal(c->nfile, all->nfile);
	assert_string_equal(c->id, all->id);
	for (uint32_t i = 0; i < c->nfile; i++) {
		assert_true(c->file[i].unread);
		assert_null(c->file[i].range);
		assert_string_equal(c->file[i].name, all->file[i].name);
		assert_string_equal(c->table.place[i].name, all->file[i].name);
		assert_int_equal(c->file[i].file_bytes, all->file[i].file_bytes);
	}
	for (uint32_t i = 0; i < c->table.ntensor; i++)
		assert_string_equal(c->table.tensor[i].name, all->table.tensor[i].name);
	checkpoint_free(c);
	checkpoint_free(all);
}
