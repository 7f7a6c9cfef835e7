/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_doctor.c - ckptctl doctor: its screen, its JSON and its exit code. */
#include "ckpt/host/host_facts.h"
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
	RUN_IS(2, "doctor", dir, dir);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
