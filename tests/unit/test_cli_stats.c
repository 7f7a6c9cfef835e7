/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_stats.c - stats: its sums against the tensors that show lists, equal and zero contents
 * in a checkpoint made for it, and the tree of modules on names that are made to confuse it.
 */
#include "tests/lib/cli_rig.h"
#include "ckpt/engine/module_tree.h"

static const char *alpha(void)
{
	return path_of("%s/alpha", work);
}

/* --- sums --- */

static uint64_t sum_of(const json_t *j, const char *list, const char *key)
{
	const json_t *a = member(j, list, JSON_ARRAY);
	uint64_t sum = 0;

	for (size_t i = 0; i < json_array_size(a); i++)
		sum += number(json_array_get(a, i), key);
	return sum;
}

TEST(every_sum_is_the_whole)
{
	static const char *const by[] = { "modules", "components", "roles", "dtypes" };
	uint64_t tensors, bytes, stored;
	json_t *j;

	RUN_IS(0, "show", "-C", alpha(), "--json");
	j = json_out("ckptd.show/1");
	tensors = number(j, "tensor_count");
	bytes = number(j, "tensor_bytes");
	stored = number(j, "bytes");
	json_decref(j);
	for (int depth = -1; depth < 5; depth++) {
		assert_int_equal(depth < 0 ? RUN("stats", "-C", alpha(), "--json")
					   : RUN("stats", "-C", alpha(), "--json",
						 path_of("--depth=%d", depth)),
				 0);
		j = json_out("ckptd.stats/1");
		if (depth >= 0)
			assert_int_equal(number(j, "depth"), depth);
		assert_int_equal(number(j, "tensor_count"), tensors);
		assert_int_equal(number(j, "tensor_bytes"), bytes);
		assert_int_equal(number(j, "bytes"), stored);
		for (size_t i = 0; i < ARRAY_LEN(by); i++) {
			assert_int_equal(sum_of(j, by[i], "bytes"), bytes);
			assert_int_equal(sum_of(j, by[i], "tensor_count"), tensors);
		}
		assert_int_equal(count(j, "ranks"), 4);
		assert_int_equal(sum_of(j, "ranks", "written_bytes"), bytes);
		assert_int_equal(sum_of(j, "ranks", "held_bytes"), number(j, "held_bytes"));
		/* All that is held is there once, and its copies. */
		assert_int_equal(number(j, "held_bytes") - number(j, "replicated_bytes"), bytes);
		assert_true(number(j, "padding_bytes") + number(j, "metadata_bytes") + bytes ==
			    stored);
		assert_json_has(j, "{'contents_known':true, 'equal_bytes':0}");
		json_decref(j);
	}
}

TEST(replicas_are_counted_by_the_layouts)
{
	uint64_t replicated, held;
	json_t *j;

	/* dp=2,fsdp=2: one copy more of all that fsdp cuts */
	RUN_IS(0, "stats", "-C", path_of("%s/beta", work), "--json", "--tensors=optim/embed*");
	j = json_out("ckptd.stats/1");
	replicated = number(j, "replicated_bytes");
	held = number(j, "held_bytes");
	assert_int_equal(number(j, "tensor_count"), 3);
	assert_int_equal(replicated, number(j, "tensor_bytes"));
	assert_int_equal(held, 2 * number(j, "tensor_bytes"));
	json_decref(j);
	/* fsdp=4: none of it */
	RUN("stats", "-C", alpha(), "--json", "--tensors=optim/embed*");
	assert_json(0, "ckptd.stats/1", "{'replicated_bytes':0}");
}

TEST(people_get_tables)
{
	SHOWN_IS(0, "stats", "-C", alpha());
	assert_string_equal(got.err, "");
}

TEST(bad_questions_are_told)
{
	RUN_IS(2, "stats", "-C", alpha(), "--depth=x");
	RUN_IS(2, "stats", "-C", alpha(), "--depth=-1");
	RUN_IS(2, "stats", "-C", alpha(), "--depth=17");
	RUN_IS(10, "stats", "-C", alpha(), "--tensors=nope*");
	RUN_IS(2, "stats", "-C", alpha(), "latest", "more");
	RUN_IS(10, "stats", "-C", alpha(), "step:11", "--json");
	assert_json_error(10);
}

/* --- contents --- */

#define VALUES 300u

TEST(equal_contents_are_found_and_zeros_told_apart)
{
	/* 0: zeros; else a seed of contents */
	static const struct {
		const char *name;
		uint32_t what, ndim;
	} x[] = { { "embed", 1, 1 }, { "head", 1, 1 },	   { "again", 1, 1 },
		  { "other", 2, 1 }, { "reshaped", 1, 2 }, { "bias", 0, 1 },
		  { "zero", 0, 2 },  { "pair.a", 3, 2 },   { "pair.b", 3, 2 } };
	static uint32_t value[4][VALUES];
	struct made made[ARRAY_LEN(x)];
	const char *root = path_of("%s/made", top);
	const json_t *equal, *names;
	json_t *j;

	for (uint32_t k = 1; k < 4; k++)
		for (uint32_t e = 0; e < VALUES; e++)
			value[k][e] = k * 1000 + e;
	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		bool flat = x[i].ndim == 1;

		made[i] = (struct made){ .component = "model",
					 .name = x[i].name,
					 .dtype = CKPT_F32,
					 .ndim = x[i].ndim,
					 .shape = { flat ? VALUES : VALUES / 10, 10 },
					 .bytes = value[x[i].what],
					 .role = CKPT_PARAM };
	}
	make_made(root, "made", 1, made, ARRAY_LEN(made));
	RUN_IS(0, "stats", "-C", root, "--json");
	j = json_out("ckptd.stats/1");
	equal = member(j, "equal_groups", JSON_ARRAY);
	assert_int_equal(json_array_size(equal), 2);
	assert_int_equal(number(json_array_get(equal, 0), "tensor_count"), 3);
	assert_int_equal(number(json_array_get(equal, 0), "bytes"), VALUES * 4);
	assert_int_equal(number(json_array_get(equal, 0), "extra_bytes"), 2 * VALUES * 4);
	names = member(json_array_get(equal, 0), "tensors", JSON_ARRAY);
	assert_int_equal(json_array_size(names), 3);
	assert_string_equal(string(json_array_get(names, 0), "component"), "model");
	assert_string_equal(string(json_array_get(names, 0), "name"), "embed");
	assert_int_equal(number(json_array_get(equal, 1), "tensor_count"), 2);
	assert_int_equal(number(j, "equal_bytes"), 3 * VALUES * 4);
	assert_int_equal(number(j, "zero_tensor_count"), 2);
	assert_int_equal(number(j, "zero_bytes"), 2 * VALUES * 4);
	json_decref(j);
	SHOWN_IS(0, "stats", "-C", root);
}

/* --- the tree of modules --- */

static void tree_table(struct table *t, const char *const *name, uint32_t n)
{
	const uint64_t shape[] = { 2 };
	struct ckpt_err err;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(table_add_tensor(t,
						  &(struct table_tensor){ .component = "model",
									  .name = name[i],
									  .of = "",
									  .dtype = CKPT_F32,
									  .elem_bytes = 4,
									  .layout = TABLE_NONE,
									  .rank = TABLE_NONE,
									  .ndim = 1,
									  .shape = shape },
						  NULL, &err),
				 0);
	assert_int_equal(table_seal(t, &err), 0);
}

static void expect_tree(const char *const *name, uint32_t n, uint32_t depth, const char *want)
{
	struct table t = { 0 };
	struct arena a = { 0 };
	struct module_row *row;
	uint32_t id[64], nrow, at;
	char got_rows[2000] = "";

	tree_table(&t, name, n);
	for (uint32_t i = 0; i < n; i++)
		id[i] = i;
	assert_int_equal(module_rows(&t, id, n, depth, 6, &a, &row, &nrow, &at), 0);
	for (uint32_t i = 0; i < nrow; i++)
		snprintf(got_rows + strlen(got_rows), 400, "%s %d\n", row[i].path,
			 (int)row[i].tensors);
	assert_string_equal(got_rows, want);
	arena_free(&a);
	table_free(&t);
}

TEST(modules_that_differ_in_numbers_alone_are_one_row)
{
	static const char *const name[] = { "embed.weight",	 "layers.0.q.weight",
					    "layers.1.q.weight", "layers.2.q.weight",
					    "layers.0.k.weight", "layers.2.k.weight",
					    "layers.7.k.weight" };

	expect_tree(name, ARRAY_LEN(name), 0, "model 7\n");
	expect_tree(name, ARRAY_LEN(name), 1, "model/layers 6\nmodel/embed 1\n");
	expect_tree(name, ARRAY_LEN(name), 2, "model/layers.{0..7: 4} 6\nmodel/embed.weight 1\n");
	expect_tree(name, ARRAY_LEN(name), 3,
		    "model/layers.{0..2}.q 3\nmodel/layers.{0..7: 3}.k 3\nmodel/embed.weight 1\n");
	expect_tree(name, ARRAY_LEN(name), MODULE_AUTO,
		    "model/layers.{0..2}.q.weight 3\nmodel/layers.{0..7: 3}.k.weight 3\n"
		    "model/embed.weight 1\n");
	expect_tree(name, 2, 2, "model/embed.weight 1\nmodel/layers.0 1\n");
}

TEST(strange_names_stay_names)
{
	static const char *const name[] = { "a..b",   "a.",	"a.007.x",
					    "a.08.x", "a.\1.x", "a.12345678901.x",
					    "\1",     "1",	"2" };

	expect_tree(name, ARRAY_LEN(name), 3,
		    "model/{1..2} 2\nmodel/? 1\nmodel/a 1\nmodel/a..b 1\nmodel/a.007.x 1\n"
		    "model/a.08.x 1\nmodel/a.12345678901.x 1\nmodel/a.?.x 1\n");
	expect_tree((const char *const[]){ "1.2.3.4.5.6.7.8", "1.2.3.4.5.6.7.9" }, 2, 16,
		    "model/1.2.3.4.5.6.7.8 1\nmodel/1.2.3.4.5.6.7.9 1\n");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
