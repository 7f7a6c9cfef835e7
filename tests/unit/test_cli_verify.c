/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_verify.c - ckptctl verify: some of the data, damage beside what cannot be read, lines
 * for programs; and what ls says of a step that was set aside damaged. */
#include "tests/lib/cli_rig.h"
#include <unistd.h>

/* A copy of beta's step, which has four parts, to be spoilt. */
static const char *copy_made(const char *name)
{
	const char *to = path_of("%s/%s", top, name);

	copy_step(path_of("%s/beta/step-000000000025", work), to);
	return to;
}

static const json_t *first(const json_t *j)
{
	return item(j, "checkpoints", 0);
}

static bool has_fault(const json_t *j, const char *kind, const char *path)
{
	const json_t *faults = member(j, "faults", JSON_ARRAY);
	const char *file = strrchr(path, '/') + 1;

	for (size_t i = 0; i < json_array_size(faults); i++)
		if (!strcmp(string(json_array_get(faults, i), "kind"), kind) &&
		    !strcmp(string(json_array_get(faults, i), "file"), file))
			return true;
	return false;
}

TEST(some_of_the_data_is_never_called_all_of_it)
{
	json_t *j;

	RUN_IS(10, "verify", "-C", work, "--data-subset=5%@7",
	       "beta/step-000000000025"); /* no path */
	SHOWN_IS(0, "verify", "--data-subset=5%@7", path_of("%s/beta/step-000000000025", work));
	RUN_IS(0, "verify", "--json", "--data-subset=5%@7",
	       path_of("%s/beta/step-000000000025", work));
	j = json_out("ckptd.verify/1");
	assert_string_equal(string(j, "type"), "summary");
	assert_string_equal(string(j, "data_subset"), "5%@7");
	assert_true(json_is_false(json_object_get(j, "data")));
	assert_string_equal(string(first(j), "data_read"), "some");
	assert_true(number(first(j), "checked_data_bytes") < number(first(j), "data_bytes"));
	assert_true(number(first(j), "checked_chunk_count") < number(first(j), "chunk_count"));
	assert_true(number(first(j), "checked_chunk_count") >= 4); /* of each part one */
	assert_true(number(first(j), "checked_piece_count") < number(first(j), "piece_count"));
	json_decref(j);
	RUN_IS(0, "verify", "--json", path_of("%s/beta/step-000000000025", work));
	j = json_out("ckptd.verify/1");
	assert_string_equal(string(first(j), "data_read"), "none");
	assert_true(json_is_null(json_object_get(j, "data_subset")));
	json_decref(j);
	RUN_IS(0, "verify", "--json", "--data", path_of("%s/beta/step-000000000025", work));
	j = json_out("ckptd.verify/1");
	assert_string_equal(string(first(j), "data_read"), "all");
	assert_int_equal(number(first(j), "checked_data_bytes"), number(first(j), "data_bytes"));
	json_decref(j);
}

TEST(a_sample_without_a_number_prints_one_that_picks_it_again)
{
	char sample[64];
	uint64_t bytes;
	json_t *j;

	RUN_IS(0, "verify", "--json", "--data-subset=1M",
	       path_of("%s/beta/step-000000000025", work));
	j = json_out("ckptd.verify/1");
	snprintf(sample, sizeof sample, "--data-subset=%s", string(j, "data_subset"));
	assert_non_null(strchr(sample, '@'));
	bytes = number(first(j), "checked_data_bytes");
	json_decref(j);
	RUN_IS(0, "verify", "--json", sample, path_of("%s/beta/step-000000000025", work));
	j = json_out("ckptd.verify/1");
	assert_string_equal(string(j, "data_subset"), sample + strlen("--data-subset="));
	assert_int_equal(number(first(j), "checked_data_bytes"), bytes);
	json_decref(j);
}

TEST(one_of_the_sevenths_finds_a_flipped_byte)
{
	const char *dir = copy_made("sevenths");
	uint32_t found = 0;
	uint64_t bytes = 0, all = 0;

	flip(part(dir, 2), 5000);
	for (uint32_t k = 1; k <= 7; k++) {
		const char *part = path_of("--data-subset=%u/7", k);
		int code = RUN("verify", "--json", part, dir);
		json_t *j = json_out("ckptd.verify/1");

		assert_true(code == 0 || code == 4);
		assert_int_equal(code ? 1 : 0, count(j, "faults"));
		found += code == 4;
		bytes += number(first(j), "checked_data_bytes");
		all = number(first(j), "data_bytes");
		json_decref(j);
	}
	assert_int_equal(found, 1);
	assert_int_equal(bytes, all);
}

TEST(parts_that_are_none_are_usage_errors)
{
	static const char *const bad[] = { "0%",    "101%", "%",	"5%@",	"5%@x",	 "0/7",
					   "8/7",   "1/0",  "1/",	"/7",	"1/7@3", "x",
					   "0",	    "-5%",  "5%%",	"1e1%", "5 %",	 "nan%",
					   "1/7/7", "@5",   "1/2000000" };
	static const char *const good[] = {
		"5%", "0.5%", "100%", "1/1", "7/7", "1K", "200G", "2G@9"
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (RUN("verify", "-C", path_of("%s/beta", work),
			path_of("--data-subset=%s", bad[i])) != 2)
			fail_msg("--data-subset=%s: %d", bad[i], got.code);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(good); i++)
		if (RUN("verify", "-C", path_of("%s/beta", work),
			path_of("--data-subset=%s", good[i])) != 0)
			fail_msg("--data-subset=%s: %d %s", good[i], got.code, got.err);
	RUN_IS(2, "verify", "");
	RUN_IS(2, "verify", "--data", "");
	RUN_IS(2, "verify", "--all", "");
	RUN_IS(2, "ls", "");
}

/* As somebody for whom modes hold, also where the tests run as root. */
static int verify_as_user(const char *dir, const char *closed, bool data)
{
	int code;

	open_to_all(dir);
	assert_int_equal(chmod(closed, 0), 0);
	become_nobody(true);
	code = data ? RUN("verify", "--json", "--data", dir) : RUN("verify", "--json", dir);
	become_nobody(false);
	return code;
}

TEST(damage_in_one_part_is_told_beside_another_that_cannot_be_read)
{
	const char *dir = copy_made("hidden"), *closed = part(dir, 0), *spoilt = part(dir, 1);
	json_t *j;

	assert_int_equal(verify_as_user(dir, closed, false), 12);
	assert_int_equal(verify_as_user(dir, closed, true), 12);
	/* In its data: only reading them finds it. */
	flip(spoilt, 4096);
	assert_int_equal(verify_as_user(dir, closed, false), 12);
	assert_int_equal(verify_as_user(dir, closed, true), 4);
	j = json_out("ckptd.verify/1");
	assert_true(has_fault(j, "unreadable", closed));
	assert_true(has_fault(j, "checksum", spoilt));
	json_decref(j);
	/* In what opening reads. */
	flip(spoilt, 4096);
	flip(spoilt, -1);
	assert_int_equal(verify_as_user(dir, closed, false), 4);
	j = json_out("ckptd.verify/1");
	assert_true(has_fault(j, "unreadable", closed));
	assert_true(has_fault(j, "checksum", spoilt));
	json_decref(j);
}

TEST(the_data_of_the_other_parts_are_read_where_one_is_damaged)
{
	const char *dir = copy_made("others"), *broken = part(dir, 0), *other = part(dir, 3);
	json_t *j;

	flip(broken, -1);
	flip(other, 4096);
	RUN_IS(4, "verify", "--json", "--data", dir);
	j = json_out("ckptd.verify/1");
	assert_true(has_fault(j, "checksum", broken));
	assert_true(has_fault(j, "checksum", other));
	assert_int_equal(count(j, "faults"), 2);
	assert_int_equal(number(first(j), "fault_count"), 2);
	assert_true(number(first(j), "checked_data_bytes") > 0);
	json_decref(j);
	SHOWN_IS(4, "verify", "--data", dir);
	/* All other verbs have nothing to do with such a checkpoint. */
	RUN_IS(4, "show", dir);
	assert_int_equal(unlink(broken), 0);
	RUN_IS(4, "verify", "--json", "--data", dir);
	j = json_out("ckptd.verify/1");
	assert_true(has_fault(j, "missing", broken));
	assert_true(has_fault(j, "checksum", other));
	json_decref(j);
}

TEST(lines_are_progress_and_then_one_summary)
{
	uint32_t lines = 0;

	RUN_IS(0, "verify", "--json", "--data", "--all", work);
	for (const char *s = got.out, *end; *s; s = end + 1, lines++) {
		json_t *j = json_loads(s, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL);
		bool last;

		end = strchr(s, '\n');
		assert_non_null(end);
		last = !end[1];
		assert_non_null(j);
		assert_string_equal(string(j, "schema"), "ckptd.verify/1");
		assert_string_equal(string(j, "type"), last ? "summary" : "progress");
		if (!last)
			assert_memory_equal(string(j, "what"), "step ", 5);
		json_decref(j);
	}
	assert_true(lines >= 5); /* at least 100 % of each */
	RUN_IS(0, "verify", "--json", "--data", "--quiet", "--all", work);
	assert_ptr_equal(strchr(got.out, '\n') + 1, got.out + got.out_len);
}

TEST(an_interrupted_verify_says_so_and_calls_nothing_good)
{
	cli_stops = 1;
	cli_stop_signal = SIGINT;
	SHOWN_IS(130, "verify", "--data", path_of("%s/beta/step-000000000025", work));
	RUN_IS(130, "verify", "--json", "--data", path_of("%s/beta/step-000000000025", work));
	assert_silent(got.out, "summary");
	assert_json_error(130);
	cli_stops = cli_stop_signal = 0;
}

TEST(a_step_set_aside_damaged_is_not_shown_as_known)
{
	const char *store = path_of("%s/aside", top), *job = path_of("%s/alpha", store);
	static const struct how steps[] = {
		{ "alpha", "fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false },
		{ "alpha", "fsdp=2", 20, 2, 10, 10, false },
		{ "alpha", "fsdp=2", 15, 3, 10, 10, false }, /* 20 is set aside */
	};
	const json_t *list;
	const char *aside = NULL;
	uint32_t seen = 0;
	DIR *d;
	json_t *j;

	assert_int_equal(mkdir(store, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		make_step(store, &steps[i]);
	d = opendir(job);
	for (struct dirent *e; (e = readdir(d));)
		if (strstr(e->d_name, "20") && strncmp(e->d_name, "step-", 5))
			aside = path_of("%s/%s/MANIFEST", job, e->d_name);
	closedir(d);
	assert_non_null(aside);
	flip(aside, -1);
	RUN_IS(0, "ls", "--json", "--all", store);
	j = json_out("ckptd.ls/1");
	list = member(j, "checkpoints", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *x = json_array_get(list, i);

		if (number(x, "step") != 20)
			continue;
		seen++;
		assert_string_equal(string(x, "state"), "set-aside");
		assert_true(json_is_string(json_object_get(x, "why")));
		assert_json_has(x, "{'seq':null, 'mesh':null, 'id':null, 'world_size':null}");
	}
	assert_int_equal(seen, 1);
	json_decref(j);
	SHOWN_IS(0, "ls", "--all", store);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
