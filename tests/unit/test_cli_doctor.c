/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_doctor.c - ckptctl doctor: its screen, its JSON and its exit code. */
#include "ckpt/host/host_facts.h"
#include "ckpt/plan/links.h"
#include "formats/registry/registry.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/listener.h"

TEST(the_newest_step_tells_the_size_of_the_job)
{
	struct host_facts f;
	struct host_ask ask = { .ops = &io_ops_posix, .path = work, .format = formats[0] };

	host_examine(&ask, &f);
	assert_true(f.job_guessed);
	assert_true(f.job_bytes > MIB);
	ask.job_bytes = 5;
	host_examine(&ask, &f);
	assert_false(f.job_guessed);
	assert_int_equal(f.job_bytes, 5);
}

TEST(the_verb_says_the_same_in_text_and_json_and_its_exit_code)
{
	char dir[PATH_MAX], *s;
	const char *sock = place("sock");
	struct listener l;
	int code;
	uint64_t warnings = 0, failures = 0;
	json_t *j, *x;
	size_t i;

	listener_start(&l, sock);
	snprintf(dir, sizeof dir, "%s/verb", top);
	assert_int_equal(mkdir(dir, 0700), 0);
	code = RUN("doctor", dir, "--json", "-S", sock, "--job-size=1K");
	j = json_out("ckptd.doctor/1");
	assert_string_equal(string(j, "path"), dir);
	assert_int_equal(number(j, "job_bytes"), 1024);
	s = strdup(got.out);
	json_array_foreach(json_object_get(j, "checks"), i, x)
	{
		const char *result = string(x, "result");

		warnings += !strcmp(result, "warn");
		failures += !strcmp(result, "fail");
		assert_true(strlen(string(x, "found")) > 0);
		if (strcmp(result, "ok"))
			assert_true(strlen(string(x, "next")) > 0);
		if (!strcmp(string(x, "check"), "daemon"))
			assert_string_equal(result, "ok");
	}
	assert_true(i > 14);
	assert_int_equal(number(j, "warning_count"), warnings);
	assert_int_equal(number(j, "failure_count"), failures);
	assert_int_equal(code, failures ? 1 : warnings ? 3 : 0);
	json_decref(j);
	free(s);
	RUN_IS(code, "doctor", dir, "-S", sock, "--job-size=1K");
	assert_says(got.out, "ok    directory");
	assert_says(got.out, "ok    daemon");
	assert_int_equal(entries(dir), 0);
	/* a daemon that is stopped is a failure, one that is not there a warning; a job that
	 * nothing could hold, a failure */
	listener_stop(&l);
	RUN_IS(1, "doctor", dir, "-S", sock);
	assert_says(got.out, "FAIL  daemon");
	assert_says(got.out, "does not answer");
	close(l.fd);
	assert_int_equal(RUN("doctor", dir, "-S", sock), failures ? 1 : 3);
	assert_says(got.out, "warn  daemon");
	RUN_IS(1, "doctor", dir, "--job-size=1E");
	assert_says(got.out, "FAIL  space");
	assert_says(got.out, "FAIL  memory");
	RUN_IS(1, "doctor", path_of("%s/no/such/place", top));
	assert_says(got.out, "FAIL  directory");
	RUN_IS(2, "doctor", dir, "--job-size=many");
	RUN_IS(2, "doctor", "--job-size", "10", "GB"); /* not ten bytes in the directory GB */
	assert_says(got.err, "write --job-size=10GB");
	RUN_IS(1, "doctor", "/proc");
	assert_says(got.out, "/proc takes no files");
	assert_silent(got.out, "does not exist");
	RUN_IS(2, "doctor", dir, dir);
}

static int parse_file(const char *path, const char *more, struct links *ret, struct ckpt_err *err)
{
	char text[8192];
	size_t n;
	FILE *f = fopen(path, "r");

	assert_non_null(f);
	n = fread(text, 1, sizeof text / 2, f);
	fclose(f);
	strcpy(text + n, more);
	return links_parse(path, text, strlen(text), ret, err);
}

/* What one host cannot measure is no line of the file, and everything else is. */
TEST(what_messages_cost_here_is_measured_and_nothing_is_invented)
{
	static const char *const measured[] = { "memory", "host", "disk" };
	const char *file = place("links.txt");
	struct ckpt_err err = { 0 };
	struct links l;
	cleanup_free char *text = NULL;
	json_t *j, *x, *tiers;
	uint32_t n = 0;
	size_t i, bytes;

	RUN("doctor", top, "--json", "--links", file);
	j = json_out("ckptd.doctor/1");
	assert_string_equal(string(json_object_get(j, "link_costs"), "file"), file);
	tiers = json_object_get(json_object_get(j, "link_costs"), "tiers");
	assert_int_equal(json_array_size(tiers), LINKS_TIERS);
	json_array_foreach(tiers, i, x)
	{
		bool known = json_is_null(json_object_get(x, "missing"));

		assert_string_equal(string(x, "tier"), links_tier_name((enum links_tier)i));
		assert_int_equal(json_is_null(json_object_get(x, "latency_s")), !known);
		assert_int_equal(json_is_null(json_object_get(x, "bytes_per_second")), !known);
		if (known)
			assert_string_equal(string(x, "tier"), measured[n++]);
	}
	assert_int_equal(n, ARRAY_LEN(measured));
	json_decref(j);
	text = file_bytes(file, &bytes);
	assert_null(strstr(text, "e+0"));   /* 4.03e+03us, which is 4.03ms, */
	assert_null(strstr(text, " 0.00")); /* and 0.000569us, 0.569ns */
	assert_int_equal(parse_file(file, "", &l, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "per_host is missing"));
	assert_non_null(strstr(err.msg, "switch is missing"));
	assert_non_null(strstr(err.msg, "network is missing"));
	assert_null(strstr(err.msg, "line "));
	assert_null(strstr(err.msg, "disk is missing"));
	assert_int_equal(parse_file(file, "per_host 8\nswitch as cpu\nnetwork as cpu\n", &l, &err),
			 0);
	/* It replaces its own file, and no other one. */
	RUN("doctor", top, "--links", file);
	assert_says(got.out, "one host cannot measure links to others");
	assert_int_not_equal(got.code, 11);
	assert_int_equal(unlink(file), 0);
	copy_file("tests/cli/layout_refused.jsonl", file);
	RUN_IS(11, "doctor", top, "--links", file);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
