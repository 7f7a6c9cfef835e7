/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_find.c - the names that people type, and the jobs of a path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "ckpt/store/store_impl.h"
#include "tests/crash/crash_step.c"

/* ROOT/demo has 10, 20, 30 set aside and 25; collecting 40. */
static struct place place;
static char root[4096];
static struct ckpt_err err;
static struct store *s;
static struct store_txn *collecting;
static struct crash_step fortieth;

static int setup(void **state)
{
	static const uint64_t made[][3] = {
		{ 10, 1, UINT64_MAX }, { 20, 2, 10 }, { 30, 3, 20 }, { 25, 4, 20 }
	};
	uint64_t generation;

	(void)state;
	place_make(&place);
	if (!realpath(place.path, root) ||
	    store_open(&io_ops_posix, place.fd, CRASH_JOB, true, &s, &err) ||
	    store_claim(s, 0, false, &generation, &err))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(made); i++) {
		struct crash_step c = { 0 };

		if (crash_save(s, made[i][0], made[i][1], made[i][2], &c, &err))
			return -1;
		crash_step_free(&c);
	}
	return crash_begin(s, 40, 5, &collecting, &fortieth, &err);
}

static int teardown(void **state)
{
	(void)state;
	store_abort(collecting);
	crash_step_free(&fortieth);
	store_close(s);
	place_remove(&place);
	return 0;
}

static const char *at(const char *below)
{
	static char path[2][8192];
	static uint32_t turn;

	turn ^= 1;
	(void)snprintf(path[turn], sizeof path[turn], "%s/%s", root, below);
	return path[turn];
}

static int resolve(const char *where, const char *name, struct store_ref *ret)
{
	int r;

	memset(&err, 0, sizeof err);
	r = store_resolve(&io_ops_posix, where, name, ret, &err);
	if (r) {
		assert_int_equal(ret->step_fd, -1);
		assert_true(err.msg[0]);
		assert_int_equal(err.code, r);
	}
	return r;
}

static void assert_found(const char *where, const char *name, const char *below)
{
	struct store_ref ref;

	if (resolve(where, name, &ref))
		fail_msg("%s: %s", name, err.msg);
	assert_string_equal(ref.path, at(below));
	assert_true(ref.step_fd >= 0);
	(void)close(ref.step_fd);
}

/* Fails with this code, and the sentence has these words. */
static void assert_refused(int code, const char *where, const char *name, const char *words)
{
	struct store_ref ref;

	assert_int_equal(resolve(where, name, &ref), code);
	if (!strstr(err.msg, words))
		fail_msg("\"%s\" is not in: %s", words, err.msg);
	print_message("%s\n", err.msg);
}

static void short_names_are_found_below_a_store_and_below_a_job(void **state)
{
	char job[8192];

	(void)state;
	(void)snprintf(job, sizeof job, "%s/demo", root);
	for (uint32_t i = 0; i < 2; i++) {
		const char *where = i ? job : root;

		assert_found(where, "latest", "demo/step-000000000025");
		assert_found(where, "latest~0", "demo/step-000000000025");
		assert_found(where, "latest~2", "demo/step-000000000010");
		assert_found(where, "step:20", "demo/step-000000000020");
		assert_found(where, "step:00020", "demo/step-000000000020");
		assert_found(where, "step-000000000020", "demo/step-000000000020");
	}
}

static void an_unknown_step_is_refused_with_its_neighbours(void **state)
{
	(void)state;
	assert_refused(-ENOENT, root, "step:21", "10, 20 and 25");
	assert_refused(-ENOENT, root, "step:30", ".old-000000000030-s3");
	assert_refused(-ENOENT, root, "latest~3", "latest~2");
	assert_refused(-EUCLEAN, root, "step:40", "not committed");
}

static void the_nearest_steps_are_offered_in_order(void **state)
{
	static const uint64_t more[] = { 100, 110, 120, 130, 140 };
	uint64_t before = 25;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(more); i++) {
		struct crash_step c = { 0 };

		assert_int_equal(crash_save(s, more[i], 6 + i, before, &c, &err), 0);
		crash_step_free(&c);
		before = more[i];
	}
	assert_refused(-ENOENT, root, "step:119", "100, 110, 120 and 130");
	assert_refused(-ENOENT, root, "step:0", "10, 20, 25 and 100");
	assert_refused(-ENOENT, root, "step:999", "110, 120, 130 and 140");
}

static void a_malformed_name_is_refused(void **state)
{
	(void)state;
	assert_refused(-EINVAL, root, "latest~", "number");
	assert_refused(-EINVAL, root, "latest~x", "number");
	assert_refused(-EINVAL, root, "step:", "number");
	assert_refused(-EINVAL, root, "step:-1", "number");
	assert_refused(-EINVAL, root, "step:99999999999999999999999", "number");
	assert_refused(-ENOENT, root, "newest", "step:N");
}

static void a_damaged_step_is_found_so_that_its_reader_can_say_so(void **state)
{
	(void)state;
	assert_int_equal(unlinkat(s->job_fd, "step-000000000025/MANIFEST", 0), 0);
	assert_found(root, "step:25", "demo/step-000000000025");
	assert_found(root, at("demo/step-000000000025"), "demo/step-000000000025");
}

static void of_several_jobs_all_are_listed(void **state)
{
	struct store *other;
	uint64_t generation;

	(void)state;
	assert_int_equal(store_open(&io_ops_posix, place.fd, "other", true, &other, &err), 0);
	assert_int_equal(store_claim(other, 0, false, &generation, &err), 0);
	store_close(other);
	assert_refused(-ENOTUNIQ, root, "latest", at("demo"));
	assert_refused(-ENOTUNIQ, root, "latest", at("other"));
	assert_found(at("demo"), "latest", "demo/step-000000000025");
	assert_refused(-ENOENT, at("other"), "latest", "nothing is committed");
}

static void a_place_without_jobs_says_so(void **state)
{
	(void)state;
	assert_int_equal(mkdirat(place.fd, "empty", 0700), 0);
	assert_refused(-ENOENT, at("empty"), "latest", "-C PATH");
	assert_refused(-ENOENT, at("none"), "latest", "none");
}

static void a_path_leads_to_any_directory_that_holds_manifest(void **state)
{
	(void)state;
	assert_found("/nonexistent", at("demo/step-000000000010"), "demo/step-000000000010");
	assert_found(NULL, at("demo/.old-000000000030-s3"), "demo/.old-000000000030-s3");
	assert_int_equal(renameat(s->job_fd, "step-000000000010", place.fd, "best model"), 0);
	assert_found(NULL, at("best model"), "best model");
	assert_found(NULL, at("best model/"), "best model");
	assert_int_equal(symlinkat("best model", place.fd, "link"), 0);
	assert_found(NULL, at("link"), "best model");
	assert_int_equal(chdir(root), 0);
	assert_found(NULL, "best model", "best model");
	assert_found(NULL, "./best model", "best model");
	assert_int_equal(chdir("/"), 0);
}

static void a_path_to_what_is_no_checkpoint_is_refused(void **state)
{
	char path[8192];

	(void)state;
	(void)snprintf(path, sizeof path, "%s/demo/%s", root, collecting->dir);
	assert_refused(-EUCLEAN, NULL, path, "not committed");
	assert_refused(-ENOENT, NULL, at("demo"), "job's directory");
	assert_refused(-ENOTDIR, NULL, at("demo/step-000000000010/MANIFEST"), "give the directory");
	assert_refused(-ENOENT, NULL, at("demo/step-000000000099"), "step-000000000099");
	assert_int_equal(mkdirat(place.fd, "empty", 0700), 0);
	assert_refused(-ENOENT, NULL, at("empty"), "MANIFEST");
	assert_int_equal(renameat(s->job_fd, "step-000000000010", place.fd, "torn"), 0);
	assert_int_equal(unlinkat(place.fd, "torn/MANIFEST", 0), 0);
	assert_refused(-EUCLEAN, NULL, at("torn"), "MANIFEST");
}

static int job_note(void *arg, const char *job, int job_fd, const char *abs_path)
{
	char *list = arg;

	assert_true(fcntl(job_fd, F_GETFD) >= 0);
	assert_string_equal(strrchr(abs_path, '/') + 1, job);
	assert_memory_equal(abs_path, root, strlen(root));
	(void)snprintf(list + strlen(list), 100 - strlen(list), "%s ", job);
	return strcmp(job, "stop") == 0 ? 7 : 0;
}

static void the_jobs_of_a_path_come_by_name(void **state)
{
	static const char *const more[] = { "zeta", "alpha", "file-dir" };
	char list[100] = "";
	int fd;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		assert_int_equal(mkdirat(place.fd, more[i], 0700), 0);
	assert_int_equal(mkdirat(place.fd, "zeta/.ckptd", 0700), 0);
	assert_int_equal(mkdirat(place.fd, "alpha/step-000000000001", 0700), 0);
	assert_int_equal(mkdirat(place.fd, "not a job", 0700), 0);
	assert_int_equal(mkdirat(place.fd, "not a job/.ckptd", 0700), 0);
	assert_int_equal(symlinkat("demo", place.fd, "link"), 0);
	fd = openat(place.fd, "file-dir/step-000000000001", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	(void)close(fd);
	assert_int_equal(store_jobs(&io_ops_posix, root, job_note, list, &err), 0);
	assert_string_equal(list, "alpha demo zeta ");
	list[0] = 0;
	assert_int_equal(store_jobs(&io_ops_posix, at("demo"), job_note, list, &err), 0);
	assert_string_equal(list, "demo ");
	list[0] = 0;
	assert_int_equal(mkdirat(place.fd, "stop", 0700), 0);
	assert_int_equal(mkdirat(place.fd, "stop/.ckptd", 0700), 0);
	assert_int_equal(store_jobs(&io_ops_posix, root, job_note, list, &err), 7);
	assert_string_equal(list, "alpha demo stop ");
}

static void a_path_without_jobs_has_none_and_a_missing_one_is_an_error(void **state)
{
	char list[100] = "";

	(void)state;
	assert_int_equal(mkdirat(place.fd, "empty", 0700), 0);
	assert_int_equal(store_jobs(&io_ops_posix, at("empty"), job_note, list, &err), 0);
	assert_string_equal(list, "");
	assert_int_equal(store_jobs(&io_ops_posix, at("none"), job_note, list, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "none"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(short_names_are_found_below_a_store_and_below_a_job),
		T(an_unknown_step_is_refused_with_its_neighbours),
		T(the_nearest_steps_are_offered_in_order),
		T(a_malformed_name_is_refused),
		T(a_damaged_step_is_found_so_that_its_reader_can_say_so),
		T(of_several_jobs_all_are_listed),
		T(a_place_without_jobs_says_so),
		T(a_path_leads_to_any_directory_that_holds_manifest),
		T(a_path_to_what_is_no_checkpoint_is_refused),
		T(the_jobs_of_a_path_come_by_name),
		T(a_path_without_jobs_has_none_and_a_missing_one_is_an_error),
	};

	return cmocka_run_group_tests_name("store_find", tests, NULL, NULL);
}
