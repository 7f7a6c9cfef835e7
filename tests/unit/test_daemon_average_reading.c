/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average_reading.c - daemon/average_reading.h by hand: from the rows of one
 * declaration to those of the next, what is read, what begins anew, and what is made up.
 */
#include "ckpt/table/names.h"
#include "daemon/average_reading.h"
#include "ema/spec.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"
#include <math.h>

#define FAST "constant decay=.9"
#define HAND 4u /* rows of each tensor, and columns */

/* The declaration of one rank: it has these averages, and no other tensors. */
static struct decl *hand(const char *spec, bool gain, uint64_t columns)
{
	const uint64_t zero[] = { 0, 0 }, shape[] = { HAND, columns };
	struct table_place place = ROW(.name = "memory", .rank = 0, .bytes = 1 << 20);
	struct decl *d = calloc(1, sizeof *d);
	struct table t = { 0 }, main = { 0 };
	struct ckpt_errlist list = { .code = -EINVAL };
	struct ema_spec *s = NULL;
	char canonical[EMA_SPEC_BYTES];
	struct table_average average = ROW(.name = "fast", .schedule = canonical);
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;

	MUST_OK(ema_spec_parse(spec, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	MUST_OK(mesh_parse("fsdp=1", &a, &mesh, &err), &err);
	MUST_OK(table_add_mesh(&t, &mesh, NULL, &err), &err);
	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	MUST_OK(table_add_average(&t, &average, NULL, &err), &err);
	for (uint32_t i = 0; i < (gain ? 2u : 1u); i++) {
		struct layout l = { 0 };
		struct table_tensor x = ROW(.component = "model", .name = i ? "gain" : "w",
					    .of = "", .dtype = CKPT_F32, .role = CKPT_PARAM,
					    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
		struct table_piece p = { .rank = 0, .off = 4096ul * i };

		MUST_OK(table_add_layout(&t, &l, &x.layout, &err), &err);
		MUST_OK(table_add_tensor(&t, &x, &p.tensor, &err), &err);
		MUST(indexset_box(2, zero, shape, &a, &p.set) == 0);
		MUST_OK(table_add_piece(&t, &p, &err), &err);
	}
	MUST_OK(table_seal(&t, &err), &err);
	MUST_OK(native_part_table_of(&t, 0, NATIVE_MAIN, &main, &list, &err), &err);
	d->refs = d->slots = 2; /* it is freed by hand_free */
	d->names = names_new();
	d->epoch = 1;
	d->rows_fd = -1;
	MUST_OK(averages_make(&t, &main, 0, d->names, &d->averages, &err), &err);
	d->main = main;
	d->part = t; /* both live as long as the pieces' sets are used */
	ckpt_errlist_free(&list);
	arena_free(&a);
	return d;
}

static void hand_free(struct decl *d)
{
	averages_free(d->averages);
	table_free(&d->main);
	table_free(&d->part);
	names_unref(d->names);
	free(d);
}

static int hand_move(void *bytes, const struct plan *p, void *const *base, struct ckpt_err *err)
{
	const void *src[] = { bytes };

	(void)err;
	return move_copy(p, src, base, NULL, NULL);
}

/* What is made of `old`, whose rows the caller has changed. */
static struct average_base *hand_read(struct decl *old, struct decl *now,
				      const struct table_average *row, char said[1000])
{
	const struct average_origin from = {
		.table = &old->averages->made, .nrow = old->averages->nrow, .row = row, .step = 10
	};
	float *bytes = calloc(1, old->averages->bytes + 4096);
	struct average_reading *x = NULL;
	struct average_base *b;
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < old->averages->bytes / 4; i++)
		bytes[i] = (float)i + 1;
	MUST_OK(average_reading_plan(&now, 1, &from, &x, &err), &err);
	MUST_OK(average_reading_move(x, NULL, hand_move, bytes, &err), &err);
	b = average_reading_base(x);
	average_reading_say(x, said, 1000);
	average_reading_free(x);
	free(bytes);
	return b;
}

static void rows_of(const struct decl *d, struct table_average row[4])
{
	MUST(d->averages->nrow <= 4);
	for (uint32_t i = 0; i < d->averages->nrow; i++) {
		row[i] = d->averages->made.average[i];
		row[i].product = .25 / (i + 1);
		row[i].updates = 7 + i;
		row[i].last_step = 10 - i;
		row[i].since = 1;
		memset(row[i].history, 0x40 + (int)i, 16);
	}
}

/* Element 0 of a tensor of the base; NAN: it has none. */
static float hand_first(const struct average_base *b, const char *component, const char *name)
{
	const struct table *t = &b->decl[0]->averages->made;
	uint32_t i = table_find(t, component, name, TABLE_NONE);
	float f = NAN;

	if (i != TABLE_NONE)
		memcpy(&f, (uint8_t *)b->mem[0]->base + t->piece[t->first[i]].off, sizeof f);
	return f;
}

static float hand_of(const struct decl *d, const char *name)
{
	const struct table *t = &d->averages->made;
	uint32_t i = table_find(t, "ema.fast", name, TABLE_NONE);

	return (float)(t->piece[t->first[i]].off / 4) + 1;
}

/* What a row says that cannot be, or cannot be understood, is not gone on from. */
TEST(rows_that_make_no_sense_begin_anew)
{
	struct decl *d = hand(FAST, true, HAND);
	struct table_average good[4], bad;
	struct average_base *b;
	char said[1000];

	rows_of(d, good);
	b = hand_read(d, d, good, said);
	assert_string_equal(said, "average fast goes on from step 10 on disk");
	assert_int_equal(b->row[0].updates, 7);
	assert_true(b->row[0].product == .25);
	assert_int_equal(b->row[0].last_step, 10);
	assert_int_equal(b->row[0].since, 1);
	assert_memory_equal(b->row[0].history, good[0].history, 16);
	assert_true(hand_first(b, "ema.fast", "gain") == hand_of(d, "gain"));
	average_base_unref(b);
	for (uint32_t i = 0; i < 7; i++) {
		const struct table_average *row = &bad;

		bad = good[0];
		if (i == 0)
			bad.last_step = 11;
		else if (i == 1)
			bad.since = 11;
		else if (i == 2)
			bad.product = NAN;
		else if (i == 3)
			bad.product = 1.5;
		else if (i == 4)
			bad.last_step = EMA_NO_STEP;
		else if (i == 5)
			bad.schedule = "constant decay=.9 later=3";
		else
			bad.name = "other";
		b = hand_read(d, d, row, said);
		assert_null(b);
		assert_says(said, "average fast begins anew: step 10 on disk has it not: ");
		if (i == 5)
			assert_says(said, "a version newer than this one");
	}
	hand_free(d);
}

TEST(flags_go_on_and_another_shape_does_not)
{
	struct decl *d = hand(FAST, true, HAND), *other = hand(FAST, true, HAND + 1);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	rows_of(d, row);
	row[0].flags = AVERAGE_MIXED | AVERAGE_SEEDED | AVERAGE_KAHAN;
	b = hand_read(d, d, row, said);
	assert_int_equal(b->flags[0], AVERAGE_MIXED | AVERAGE_SEEDED);
	average_base_unref(b);
	assert_null(hand_read(d, other, row, said));
	assert_says(said, "has another shape there");
	hand_free(d);
	hand_free(other);
}

TEST(a_correction_that_is_new_begins_at_zero)
{
	struct decl *old = hand(FAST, true, HAND), *now = hand(FAST " kahan", true, HAND);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	rows_of(old, row);
	b = hand_read(old, now, row, said);
	assert_says(said, "with another schedule");
	assert_int_equal(b->flags[0], AVERAGE_KAHAN);
	assert_true(hand_first(b, "ema.fast", "w") == hand_of(old, "w"));
	assert_true(hand_first(b, "ema.fast.carry", "w") == 0);
	average_base_unref(b);
	row[0].flags = AVERAGE_KAHAN; /* then it should be there */
	assert_null(hand_read(old, now, row, said));
	assert_says(said, "lacks ema.fast.carry/");
	hand_free(old);
	hand_free(now);
}

/* Rules come and go: each tensor's values go on, and a history that is of several is MIXED. */
TEST(tensors_that_another_rule_has_averaged_go_on)
{
	struct decl *one = hand(FAST, true, HAND), *two = hand(FAST " gain=(uniform)", true, HAND);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	assert_int_equal(two->averages->nrow, 2);
	rows_of(one, row);
	b = hand_read(one, two, row, said);
	assert_says(said,
		    "average fast (rule 1) goes on from step 10 on disk, with another schedule");
	assert_int_equal(b->row[1].updates, 7);
	assert_int_equal(b->flags[0] | b->flags[1], 0);
	assert_true(hand_first(b, "ema.fast", "gain") == hand_of(one, "gain"));
	average_base_unref(b);
	rows_of(two, row);
	b = hand_read(two, one, row, said);
	assert_says(said, "MIXED");
	assert_int_equal(b->flags[0], AVERAGE_MIXED);
	assert_int_equal(b->row[0].updates, 7);
	average_base_unref(b);
	hand_free(one);
	hand_free(two);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
