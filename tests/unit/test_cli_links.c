/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_links.c - --links: presets, files, and all that is wrong with a file at once. */
#include "tests/lib/cli_rig.h"

#define REST "host 1us 1000MB/s\nswitch 1us 1GB/s\nnetwork 1us 1GB/s\ndisk 1us 1GB/s\n"

static const char *links_file(const char *name, const char *text)
{
	const char *path = place(name);
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
	return path;
}

static int run_plan(const char *links)
{
	return RUN("plan", "--steps", "S(0) -> R", "--mesh", "2", "--shape", "2000", "--dtype",
		   "F32", "--links", links, "--json");
}

TEST(a_file_or_a_preset_says_what_messages_cost)
{
	json_t *j;

	/* Half of 8,000 bytes goes to each other rank: 1 us, and 4 us at 1000 bytes a us. */
	assert_int_equal(run_plan(links_file("costs.txt", "per_host 8\nmemory 0s 1TB/s\n" REST)),
			 0);
	j = json_out("ckptd.redistribution/1");
	assert_string_equal(string(j, "links"), place("costs.txt"));
	json_decref(j);
	assert_says(got.out, "\"us\":5.0,\"pytorch\"");
	assert_int_equal(run_plan("cpu"), 0);
	j = json_out("ckptd.redistribution/1");
	assert_string_equal(string(j, "links"), "cpu");
	json_decref(j);
}

TEST(all_that_is_wrong_with_a_cost_file_is_printed)
{
	assert_int_equal(run_plan(links_file("costs.txt", "per_host 0\nmemory 1us nanGB/s\n" REST
							  "disk 1us 1GB/s\ntape 1us 1GB/s\n")),
			 2);
	assert_says(got.err, "line 1: expected");
	assert_says(got.err, "line 2: ");
	assert_says(got.err, "line 7: disk is in line 6 already");
	assert_says(got.err, "line 8: ");
	assert_int_equal(run_plan(links_file("costs.txt", "")), 2);
	assert_says(got.err, "per_host is missing");
	assert_says(got.err, "network is missing");
	assert_int_equal(run_plan(place("no such file")), 2);
	assert_says(got.err, "a cost file, or a preset: h100, torch, cpu");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
