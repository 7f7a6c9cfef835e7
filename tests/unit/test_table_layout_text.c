/* SPDX-License-Identifier: Apache-2.0 */
/* test_table_layout_text.c - modes and reductions of a table's layouts: printed, read back, and on
 * another mesh. */
#include "tests/unit/test_layout_cases.h"
#include "ckpt/table/target.h"
#include "tests/lib/row.h"

TEST(modes_and_reductions_are_printed_as_they_are_read)
{
	static const struct {
		const char *read, *printed;
	} x[] = {
		{ "Shard(0)@a,  Partial( sum )@b", "Shard(0)@a, Partial(sum)@b" },
		{ "Partial(avg,keep)@b", "Partial(avg, keep)@b, Replicate@a" },
		{ "Partial(min)@a, Partial(min, keep)@b", "Partial(min)@a, Partial(min, keep)@b" },
		{ "Partial(max)@a", "Partial(max)@a, Replicate@b" },
		{ "Partial(product)@a", "Partial(product)@a, Replicate@b" },
		{ "flat:Shard(0)@b,Shard(0)@a", "flat: Shard(0)@b, Shard(0)@a" },
		{ " unflatten_pad: _StridedShard(1, 3)@b",
		  "unflatten_pad: StridedShard(1, 3)@b, Replicate@a" },
		{ "flat: Replicate", "flat: Replicate@a, Replicate@b" },
	};
	struct arena a = { 0 };
	struct mesh m;

	assert_int_equal(mesh_parse("a=2,b=3", &a, &m, NULL), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct table t = { 0 };
		struct ckpt_err err = { 0 };
		struct layout l;
		uint32_t id = 0;
		char text[128];

		if (layout_parse(x[i].read, &m, &a, &l, &err) < 0 ||
		    table_add_mesh(&t, &m, NULL, &err) < 0 ||
		    table_add_layout(&t, &l, &id, &err) < 0)
			fail_msg("%s", err.msg);
		assert_string_equal(table_layout_print(&t, id, text, sizeof text), x[i].printed);
		table_free(&t);
	}
	arena_free(&a);
}

/* Random layouts of every kind: printed, read, and the same again. */
static bool print_reads_back(const struct layout_case *c, char *why)
{
	struct mesh m = side_mesh(&c->side[0]);
	struct layout l = side_layout(&c->side[0]), back;
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct table t = { 0 };
	char text[512], again[512];
	uint32_t id = 0, other = 0;
	bool good = true;

	if (table_add_mesh(&t, &m, NULL, &err) < 0 || table_add_layout(&t, &l, &id, &err) < 0)
		good = BROKEN("%.200s", err.msg);
	if (good && m.ndim > 0) {
		table_layout_print(&t, id, text, sizeof text);
		if (layout_parse(text, &m, &a, &back, &err) < 0 ||
		    table_add_layout(&t, &back, &other, &err) < 0)
			good = BROKEN("%.200s", err.msg);
		else if (strcmp(text, table_layout_print(&t, other, again, sizeof again)) != 0)
			good = BROKEN("%.100s became %.100s", text, again);
		for (uint32_t i = 0; i < l.nplace && good; i++)
			if (l.place[i].how != back.place[i].how ||
			    l.place[i].reduce != back.place[i].reduce ||
			    l.place[i].flags != back.place[i].flags || l.mode != back.mode)
				good = BROKEN("%.100s: placement %u", text, i);
	}
	table_free(&t);
	arena_free(&a);
	return good;
}

TEST(every_layout_that_is_printed_is_read_back_as_the_same)
{
	cases_hold(__func__, print_reads_back, 1, 5000);
}

static void count_note(void *arg, uint32_t tensor, const char *text)
{
	(void)tensor;
	assert_true(strlen(text) > 5);
	++*(uint32_t *)arg;
}

/* The layout that the tensor has on the mesh; notes: how many are told. */
static void expect_target(const char *layout, const char *mesh, const char *rule, const char *want,
			  uint32_t notes)
{
	const uint64_t shape[] = { 24, 24 };
	const struct target_rule r = { "*", rule, "f:1" };
	struct table_tensor x = ROW(.component = "m", .name = "w", .of = "", .dtype = CKPT_F32,
				    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct table t = { 0 }, to = { 0 };
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh m;
	struct layout l;
	char text[128];
	uint32_t told = 0;

	assert_int_equal(mesh_parse("x=2,y=3", &a, &m, NULL), 0);
	if (layout_parse(layout, &m, &a, &l, &err) < 0 || table_add_mesh(&t, &m, NULL, &err) < 0 ||
	    table_add_layout(&t, &l, &x.layout, &err) < 0 ||
	    table_add_tensor(&t, &x, NULL, &err) < 0 || table_seal(&t, &err) < 0 ||
	    target_make(&t, mesh, &r, rule != NULL, &to, count_note, &told, &err) < 0)
		fail_msg("%s", err.msg);
	assert_string_equal(table_layout_print(&to, to.tensor[0].layout, text, sizeof text), want);
	assert_int_equal(told, notes);
	table_free(&to);
	table_free(&t);
	arena_free(&a);
}

TEST(what_is_cut_flat_or_padded_stays_so_on_another_mesh)
{
	static const char flat[] = "flat: Shard(0)@y, Shard(0)@x";

	expect_target(flat, "x=2,y=3", NULL, flat, 0);
	expect_target(flat, "x=4,y=2", NULL, flat, 0);
	expect_target(flat, "x=4", NULL, "flat: Shard(0)@x", 1);
	expect_target(flat, "z=4", NULL, "Replicate@z", 1);
	expect_target("flat: Only(0)@x", "x=2,y=3", NULL, "Only(0)@x, Replicate@y", 0);
	expect_target("unflatten_pad: StridedShard(1, 5)@x", "x=4", NULL,
		      "unflatten_pad: StridedShard(1, 5)@x", 0);
	expect_target("Shard(0)@y, Shard(0)@x", "x=2,y=3", flat, flat, 1);
	expect_target(flat, "x=2,y=3", "Shard(0)@y, Shard(0)@x", "Shard(0)@y, Shard(0)@x", 1);
	expect_target(flat, "x=2,y=3", flat, flat, 0);
}
