/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_older.c - a store that ckptd 0.1 wrote, as ckptctl shows it: what each verb says of it,
 * and what it does not do. */
#include "tests/lib/cli_rig.h"
#include "tests/lib/older.h"

static const char *older_of(const char *name)
{
	const char *store = place(name);

	assert_int_equal(mkdir(store, 0700), 0);
	assert_true(older_store(store));
	return store;
}

static const char *step_at(const char *store, uint64_t step)
{
	return step_path(path_of("%s/demo", store), step);
}

TEST(steps_of_an_older_version_are_listed_as_what_they_are)
{
	const char *store = older_of("list");
	json_t *j, *all;

	SHOWN_IS(0, "ls", store);
	j = json_run("ckptd.ls/1", "ls", "--json", store);
	all = json_object_get(j, "checkpoints");
	assert_int_equal(json_array_size(all), 3);
	for (size_t i = 0; i < 3; i++) {
		const json_t *x = json_array_get(all, i);

		assert_int_equal(number(x, "step"), 30 - 10 * i);
		assert_string_equal(string(x, "state"), "format 0.0");
		assert_true(json_is_null(json_object_get(x, "seq")));
		assert_true(json_is_null(json_object_get(x, "mesh")));
		assert_true(number(x, "bytes") > 100000);
	}
}

TEST(each_verb_names_the_version_that_reads_them)
{
	static const char *const verbs[] = { "verify", "show", "stats", "export", "diff",
					     "hold",   "tag",  "cat",	"rewind", "adopt" };
	const char *store = older_of("verbs"), *out = path_of("%s/never", top);

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		const char *v = verbs[i];

		if (!strcmp(v, "export"))
			RUN_IS(8, v, "-C", store, "latest", out, "--mesh=fsdp=1");
		else if (!strcmp(v, "cat"))
			RUN_IS(8, v, "-C", store, "step:20", "w");
		else if (!strcmp(v, "diff"))
			RUN_IS(8, v, "-C", store, "step:20", "step:10");
		else if (!strcmp(v, "tag"))
			RUN_IS(8, v, "-C", store, "step:10", "new");
		else if (!strcmp(v, "hold"))
			RUN_IS(8, v, "-C", store, "--by=me", "step:10");
		else if (!strcmp(v, "adopt"))
			RUN_IS(8, v, "--yes", step_at(store, 20));
		else
			RUN_IS(8, v, "-C", store, "step:20");
		assert_says(got.err, "format 0.0 of ckptd 0.1; this program reads 0.2");
	}
	RUN_IS(8, "verify", "--all", "-C", store);
	assert_says(got.err, "step 20 of demo: ");
	SHOWN_IS(8, "show", "-C", store, "latest");
	SHOWN_IS(8, "repair", "--yes", store);
}

TEST(only_rm_with_a_name_removes_one)
{
	const char *store = older_of("remove");

	remove_tree(path_of("%s/demo", store));
	line(store, "demo", 5);
	for (uint64_t step = 10; step <= 30; step += 10)
		remove_tree(step_at(store, step));
	assert_true(older_store(store));
	RUN_IS(0, "prune", "--yes", "--bad", "--set-aside", "--keep-last=1", store);
	SHOWN_IS(0, "prune", "-n", "--keep-last=1", store);
	RUN_IS(0, "show", "-C", store, "latest"); /* 50 */
	SHOWN_IS(0, "rm", "-n", "-C", store, "step:30");
	assert_int_equal(access(step_at(store, 30), F_OK), 0);
	RUN_IS(11, "rm", "--yes", "-C", store, "tag:best");
	SHOWN_IS(0, "rm", "--yes", "-C", store, "step:30");
	assert_int_equal(access(step_at(store, 30), F_OK), -1);
	assert_int_equal(
		rename(step_at(store, 20), path_of("%s/demo/.old-000000000020-s0-t1", store)), 0);
	RUN_IS(0, "prune", "-n", "--set-aside", "--keep-last=1", store);
	assert_says(got.out, "of another version (rm removes it)");
	assert_null(strstr(got.out, "stays for"));
	RUN_IS(8, "rewind", "--yes", "-C", store, "step:20");
	assert_says(got.err, "use ckptd 0.1");
	assert_null(strstr(got.err, "ckpt_fresh"));
	RUN_IS(11, "rm", "--yes", path_of("%s/demo/.old-000000000020-s0-t1", store)); /* tagged */
	RUN_IS(0, "tag", "-C", store, "--delete", "best");
	RUN_IS(0, "rm", "--yes", path_of("%s/demo/.old-000000000020-s0-t1", store));
	assert_says(got.err, "ckptd 0.1");
	assert_int_equal(access(step_at(store, 10), F_OK), 0);
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
