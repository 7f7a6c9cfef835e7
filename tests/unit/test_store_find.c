/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_find.c - the names that people type, and the jobs of a path. */
#include <dirent.h>
#include <limits.h>
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

/* ROOT/demo has 10, 20, 30 set aside and 25; collecting 40. */
static char root[4096];
static struct store_txn *collecting;

static int setup(void **state)
{
	(void)job_make_three(state);
	s->ops = &io_ops_posix;
	assert_non_null(realpath(place.path, root));
	save(25, 20);
	collecting = begun(s, 40, 5);
	return 0;
}

static int teardown(void **state)
{
	store_abort(collecting);
	return job_remove(state);
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
	r = store_resolve(&ops, &format_native, where, name, ret, &err);
	if (r) {
		assert_int_equal(ret->step_fd, -1);
		assert_true(r > 0 || err.msg[0]);
		assert_int_equal(err.code, MIN(r, 0));
	} else {
		assert_true(ret->step_fd >= 0);
		(void)close(ret->step_fd);
	}
	return r;
}

static void assert_found(const char *where, const char *name, const char *below)
{
	struct store_ref ref;

	if (resolve(where, name, &ref))
		fail_msg("%s: %s", name, err.msg);
	assert_string_equal(ref.path, at(below));
}

/* It is no step of a store, and leads there. */
static void assert_path(const char *name, const char *below)
{
	struct store_ref ref;

	assert_int_equal(resolve(NULL, name, &ref), 1);
	assert_string_equal(ref.path, at(below));
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

TEST(short_names_are_found_below_a_store_and_below_a_job)
{
	char job[8192];

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

TEST(one_address_names_a_step_from_everywhere)
{
	char job[8192];

	(void)snprintf(job, sizeof job, "%s@20", at("demo"));
	assert_found(root, "20", "demo/step-000000000020");
	assert_found(root, "demo@20", "demo/step-000000000020");
	assert_found(root, "demo@step:20", "demo/step-000000000020");
	assert_found(root, "demo@step-000000000020", "demo/step-000000000020");
	assert_found(root, "demo@latest~1", "demo/step-000000000020");
	assert_found(at("demo"), "demo@latest", "demo/step-000000000025");
	assert_found("/", job, "demo/step-000000000020");
	(void)snprintf(job, sizeof job, "%s@latest", root); /* a store with one job */
	assert_found("/", job, "demo/step-000000000025");
	assert_refused(-ENOENT, root, "21", "10, 20 and 25");
	assert_refused(-EINVAL, root, "99999999999999999999999", "number");
	assert_refused(-ENOENT, root, "none@20", "no job none in");
	assert_refused(-ENOENT, root, "none@20", "it has demo");
	assert_refused(-ENOENT, at("demo"), "none@20", "the directory of job demo");
	assert_refused(-ENOENT, root, "demo", "the newest of job demo is demo@latest");
	assert_refused(-ENOENT, root, "demo@newest", "it is none of latest, latest~N, N or step:N");
	assert_refused(-EINVAL, root, "@20", "no job in front of its @");
	assert_refused(-EINVAL, root, "b\303\274d@20", "is not allowed");
	assert_refused(-EINVAL, root, "demo@step:x", "number");
	assert_refused(-EINVAL, root, "demo@tag:.x", ".x");
	(void)snprintf(job, sizeof job, "%s@20", at("missing"));
	assert_refused(-ENOENT, root, job, "missing");
	/* what has a '/' behind its '@' is a path */
	assert_refused(-ENOENT, root, "demo@20/.", "cannot open demo@20/.");
}

TEST(a_number_is_a_step_and_a_directory_of_this_name_is_said_to_be_there)
{
	char cwd[PATH_MAX];
	struct store_ref ref;

	assert_non_null(getcwd(cwd, sizeof cwd));
	assert_int_equal(chdir(root), 0);
	put_dir(place.fd, "20");
	put_dir(place.fd, "21");
	assert_int_equal(resolve("demo", "20", &ref), 0);
	assert_string_equal(ref.path, at("demo/step-000000000020"));
	assert_non_null(strstr(ref.note, "20 is step 20; the directory of this name here is ./20"));
	assert_found("demo", "step:20", "demo/step-000000000020");
	assert_refused(-ENOENT, "demo", "21", "the directory of this name here is ./21");
	assert_path("./20", "20");
	assert_int_equal(chdir(cwd), 0);
}

TEST(an_unknown_step_is_refused_with_its_neighbours)
{
	assert_refused(-ENOENT, root, "step:21", "10, 20 and 25");
	assert_refused(-ENOENT, root, "step:30", ".old-000000000030-s3");
	assert_refused(-ENOENT, root, "latest~3", "latest~2");
	assert_refused(-EUCLEAN, root, "step:40", "not committed");
}

TEST(the_nearest_steps_are_offered_in_order)
{
	static const uint64_t more[] = { 100, 110, 120, 130, 140 };
	uint64_t before = 25;

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

TEST(a_malformed_name_is_refused)
{
	assert_refused(-EINVAL, root, "latest~", "number");
	assert_refused(-EINVAL, root, "latest~x", "number");
	assert_refused(-EINVAL, root, "step:", "number");
	assert_refused(-EINVAL, root, "step:-1", "number");
	assert_refused(-EINVAL, root, "step:99999999999999999999999", "number");
	assert_refused(-ENOENT, root, "newest", "step:N");
}

TEST(a_damaged_step_is_found_so_that_its_reader_can_say_so)
{
	unlinked("step-000000000025/MANIFEST");
	assert_found(root, "step:25", "demo/step-000000000025");
	assert_found(root, at("demo/step-000000000025"), "demo/step-000000000025");
}

TEST(of_several_jobs_all_are_listed)
{
	struct store *other;

	assert_int_equal(
		store_open(&io_ops_posix, &format_native, place.fd, "other", true, &other, &err),
		0);
	(void)claimed(other, 0, false);
	store_close(other);
	assert_refused(-ENOTUNIQ, root, "latest", at("demo"));
	assert_refused(-ENOTUNIQ, root, "latest", at("other"));
	assert_found(at("demo"), "latest", "demo/step-000000000025");
	assert_refused(-ENOENT, at("other"), "latest", "nothing is committed");
}

TEST(a_place_without_jobs_says_so)
{
	put_dir(place.fd, "empty");
	assert_refused(-ENOENT, at("empty"), "latest", "-C PATH");
	assert_refused(-ENOENT, at("none"), "latest", "none");
}

TEST(a_path_to_the_name_of_a_step_is_a_step_and_all_else_is_for_the_formats)
{
	char aside[STORE_DIR_MAX + 8];

	assert_found("/nonexistent", at("demo/step-000000000010"), "demo/step-000000000010");
	(void)snprintf(aside, sizeof aside, "demo/%s", crash_aside(s, 30, 3));
	assert_found(NULL, at(aside), aside);
	assert_int_equal(renameat(s->job_fd, "step-000000000010", place.fd, "best model"), 0);
	assert_path(at("best model"), "best model");
	assert_path(at("best model/"), "best model");
	assert_path(at("best model/MANIFEST"), "best model/MANIFEST");
	assert_int_equal(symlinkat("best model", place.fd, "link"), 0);
	assert_path(at("link"), "best model");
	assert_path(at("demo"), "demo");
	put_file(place.fd, "step-000000000010");
	assert_path(at("step-000000000010"), "step-000000000010");
	assert_int_equal(symlinkat("demo/step-000000000020", place.fd, "to a step"), 0);
	assert_found(NULL, at("to a step"), "demo/step-000000000020");
	assert_int_equal(chdir(root), 0);
	assert_path("best model", "best model");
	assert_path("./best model", "best model");
	put_file(place.fd, "model.safetensors");
	assert_path("model.safetensors", "model.safetensors");
	assert_int_equal(chdir("/"), 0);
}

TEST(a_path_to_a_step_that_is_not_committed_is_refused)
{
	char path[8192];

	(void)snprintf(path, sizeof path, "%s/demo/%s", root, collecting->dir);
	assert_refused(-EUCLEAN, NULL, path, "not committed");
	assert_refused(-ENOENT, NULL, at("demo/step-000000000099"), "step-000000000099");
	assert_refused(-ENOTDIR, NULL, at("demo/step-000000000010/MANIFEST/x"), "cannot open");
	assert_int_equal(unlinkat(place.fd, "demo/step-000000000010/MANIFEST", 0), 0);
	assert_found(NULL, at("demo/step-000000000010"), "demo/step-000000000010");
}

TEST(a_path_to_a_jobs_directory_gets_a_sentence_of_its_own)
{
	struct ckpt_err why = { 0 };

	put_dir(place.fd, "empty");
	assert_int_equal(store_path_job(&ops, at("demo"), &why), -ENOENT);
	assert_non_null(strstr(why.msg, "job's directory"));
	assert_int_equal(store_path_job(&ops, at("demo/step-000000000010"), &why), 0);
	assert_int_equal(store_path_job(&ops, at("empty"), &why), 0);
	assert_int_equal(store_path_job(&ops, at("none"), &why), 0);
	assert_int_equal(store_path_job(&ops, root, &why), 0);
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

/* These, and then this code. */
static void assert_jobs(const char *where, int code, const char *want)
{
	char list[100] = "";

	memset(&err, 0, sizeof err);
	assert_int_equal(store_jobs(&ops, where, job_note, list, &err), code);
	assert_string_equal(list, want);
}

TEST(the_jobs_of_a_path_come_by_name)
{
	static const char *const more[] = { "zeta", "alpha", "file-dir" };
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		put_dir(place.fd, more[i]);
	put_dir(place.fd, "zeta/.ckptd");
	put_dir(place.fd, "alpha/step-000000000001");
	put_dir(place.fd, "not a job");
	put_dir(place.fd, "not a job/.ckptd");
	assert_int_equal(symlinkat("demo", place.fd, "link"), 0);
	put_file(place.fd, "file-dir/step-000000000001");
	assert_jobs(root, 0, "alpha demo zeta ");
	assert_jobs(at("demo"), 0, "demo ");
	put_dir(place.fd, "stop");
	put_dir(place.fd, "stop/.ckptd");
	assert_jobs(root, 7, "alpha demo stop ");
}

TEST(a_path_without_jobs_has_none_and_a_missing_one_is_an_error)
{
	put_dir(place.fd, "empty");
	assert_jobs(at("empty"), 0, "");
	assert_jobs(at("none"), -ENOENT, "");
	assert_non_null(strstr(err.msg, "none"));
}

/* --- file systems and users of other kinds --- */

struct listing_typed {
	unsigned char d_type;
	int (*each)(void *arg, const char *name, unsigned char d_type);
	void *arg;
};

static int entry_untyped(void *arg, const char *name, unsigned char d_type)
{
	const struct listing_typed *l = arg;

	return l->each(l->arg, name, l->d_type);
}

static int list_untyped(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	struct listing_typed l = { .d_type = DT_UNKNOWN, .each = each, .arg = arg };

	return io_ops_posix.list(ctx, dirfd, entry_untyped, &l);
}

TEST(jobs_and_steps_are_found_where_entries_have_no_type)
{
	ops.list = list_untyped;
	put_dir(place.fd, "alpha");
	put_dir(place.fd, "alpha/.old-000000000001-s1");
	put_dir(place.fd, "beta");
	put_dir(place.fd, "beta/.tmp-000000000001-g00000001-00000001");
	put_dir(place.fd, "empty");
	assert_int_equal(symlinkat("demo", place.fd, "link"), 0);
	put_file(place.fd, "file");
	assert_jobs(root, 0, "alpha beta demo ");
	assert_found(at("demo"), "latest", "demo/step-000000000025");
}

/* "/" is the store of this test, for who looks beneath it. */
static int beneath(int dirfd)
{
	struct stat of_root, st;

	assert_int_equal(stat("/", &of_root), 0);
	assert_int_equal(fstat(dirfd, &st), 0);
	return st.st_ino == of_root.st_ino && st.st_dev == of_root.st_dev ? place.fd : dirfd;
}

static int list_beneath(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	return io_ops_posix.list(ctx, beneath(dirfd), each, arg);
}

static int open_beneath(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	return io_ops_posix.open(ctx, beneath(dirfd), name, flags, mode);
}

static int path_note(void *arg, const char *job, int job_fd, const char *abs_path)
{
	(void)snprintf(arg, 100, "%s", abs_path);
	return 0;
}

TEST(a_store_may_be_the_root_of_all_directories)
{
	struct store_ref ref;
	char path[100];

	ops.list = list_beneath;
	ops.open = open_beneath;
	assert_int_equal(store_jobs(&ops, "/", path_note, path, &err), 0);
	assert_string_equal(path, "/demo");
	assert_int_equal(resolve("/", "latest", &ref), 0);
	assert_string_equal(ref.path, "/demo/step-000000000025");
	put_dir(place.fd, "other");
	put_dir(place.fd, "other/.ckptd");
	assert_refused(-ENOTUNIQ, "/", "latest", "-C /demo\n");
}

TEST(the_store_is_the_working_directory_where_none_is_given)
{
	assert_int_equal(chdir(root), 0);
	assert_found(NULL, "latest", "demo/step-000000000025");
	put_file(place.fd, "file");
	assert_path("file", "file");
	assert_refused(-ENOENT, NULL, "fil", "there is no checkpoint \"fil\"");
	assert_int_equal(chdir("/"), 0);
}

/* What opening a directory of this name gives, from the nth time on or then only. */
static struct {
	const char *name, *more;
	uint32_t nth, n;
	int error;
	bool once;
} opening;

static int open_made_up(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	bool is_it = opening.name && (strcmp(name, opening.name) == 0 ||
				      (opening.more && strcmp(name, opening.more) == 0));

	opening.n += is_it;
	if (is_it && (opening.once ? opening.n == opening.nth : opening.n >= opening.nth))
		return opening.error;
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

static void opens(const char *name, uint32_t nth, int error, bool once)
{
	memset(&opening, 0, sizeof opening);
	opening.name = name;
	opening.nth = nth;
	opening.error = error;
	opening.once = once;
	ops.open = open_made_up;
}

/* A directory gives its entries in any order: here in that of their names, or the other way
 * round. */
struct entries {
	uint32_t n;
	char name[16][NAME_MAX + 1];
};
static bool backwards;

static int entry_keep(void *arg, const char *name, unsigned char d_type)
{
	struct entries *e = arg;

	assert_true(e->n < ARRAY_LEN(e->name));
	(void)snprintf(e->name[e->n++], sizeof e->name[0], "%s", name);
	return 0;
}

static int entries_compare(const void *a, const void *b)
{
	return backwards ? strcmp(b, a) : strcmp(a, b);
}

static int list_in_order(void *ctx, int dirfd,
			 int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	struct entries e = { 0 };
	int r = io_ops_posix.list(ctx, dirfd, entry_keep, &e);

	qsort(e.name, e.n, sizeof e.name[0], entries_compare);
	for (uint32_t i = 0; !r && i < e.n; i++)
		r = each(arg, e.name[i], DT_UNKNOWN);
	return r;
}

TEST(jobs_that_this_user_may_not_open_are_passed_over_and_named)
{
	static const int error[] = { -EACCES, -EPERM };

	put_dir(place.fd, "alpha");
	put_dir(place.fd, "alpha/.ckptd");
	assert_int_equal(store_jobs_closed(&ops, root, &err), 0);
	for (uint32_t i = 0; i < 2 * ARRAY_LEN(error); i++) {
		backwards = i % 2;
		ops.list = list_in_order;
		opens("demo", 1, error[i / 2], false);
		assert_jobs(root, 0, "alpha ");
		memset(&err, 0, sizeof err);
		assert_int_equal(store_jobs_closed(&ops, root, &err), -EACCES);
		assert_non_null(strstr(err.msg, "cannot open demo in"));
		assert_refused(-ENOENT, root, "latest", "nothing is committed"); /* alpha's */
		opening.more = "alpha";
		assert_int_equal(store_jobs_closed(&ops, root, &err), -EACCES);
		assert_non_null(strstr(err.msg, "cannot open alpha and 1 more in"));
		assert_non_null(strstr(err.msg, root));
		assert_refused(-EACCES, root, "latest", "cannot open alpha and 1 more in");
	}
	assert_int_equal(store_jobs_closed(&ops, at("demo"), &err), 0);
	assert_int_equal(store_jobs_closed(&ops, at("none"), &err), -ENOENT);
}

TEST(a_store_whose_job_opens_a_moment_later_is_not_taken_for_a_job)
{
	opens("demo", 1, -EACCES, true);
	assert_refused(-EACCES, root, "latest", "cannot open demo in");
}

TEST(a_job_that_goes_while_they_are_listed_is_none)
{
	static const int gone[] = { -ENOENT, -ENOTDIR, -ELOOP };

	put_dir(place.fd, "zeta");
	put_dir(place.fd, "zeta/.ckptd");
	for (uint32_t i = 0; i < ARRAY_LEN(gone); i++) {
		opens("demo", 1, gone[i], false);
		assert_jobs(root, 0, "zeta ");
		assert_int_equal(store_jobs_closed(&ops, root, &err), 0);
	}
	opens("demo", 2, -ENOENT, true); /* between the look and its turn */
	assert_jobs(root, 0, "zeta ");
	for (uint32_t nth = 1; nth <= 2; nth++) { /* what cannot be seen is not said to be absent */
		opens("demo", nth, -EMFILE, true);
		assert_jobs(root, -EMFILE, "");
		assert_non_null(strstr(err.msg, nth == 1 ? "cannot list the jobs in" : "job demo"));
		assert_non_null(strstr(err.msg, "ulimit"));
	}
}

#define OTHER_FD 1000000 /* of a job; the kernel's are lower */
static uint32_t many;

static int open_of_many(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	return OTHER_FD;
}

static int close_of_many(void *ctx, int fd)
{
	assert_int_equal(fd, OTHER_FD);
	return 0;
}

static int list_of_many(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	char name[20];
	int r = 0;

	if (dirfd == OTHER_FD)
		return each(arg, STORE_CLAIMS, DT_DIR);
	for (uint32_t i = 0; !r && i < many; i++) {
		(void)snprintf(name, sizeof name, "job-%u", i);
		r = each(arg, name, DT_DIR);
	}
	return r;
}

static int job_count(void *arg, const char *job, int job_fd, const char *abs_path)
{
	++*(uint32_t *)arg;
	return 0;
}

TEST(more_jobs_than_a_store_may_have_are_refused)
{
	uint32_t seen = 0;

	ops.open = open_of_many;
	ops.close = close_of_many;
	ops.list = list_of_many;
	many = 65536;
	assert_int_equal(store_jobs(&ops, root, job_count, &seen, &err), 0);
	assert_int_equal(seen, many);
	many++;
	seen = 0;
	assert_int_equal(store_jobs(&ops, root, job_count, &seen, &err), -E2BIG);
	assert_non_null(strstr(err.msg, "cannot list the jobs in"));
	assert_int_equal(seen, 0);
}

/* --- paths that are long --- */

/* Directories below root so that the path of the last one has so many bytes. */
static void deep_make(char path[PATH_MAX], size_t bytes)
{
	size_t have = strlen(root);
	int fd = dir_open(place.fd, ".");

	memcpy(path, root, have + 1);
	while (have < bytes) {
		size_t left = bytes - have - 1, n = left > 250 + 2 ? 250 : left;
		char name[256];
		int next;

		memset(name, 'd', n);
		name[n] = 0;
		assert_true(!mkdirat(fd, name, 0700) || errno == EEXIST);
		next = dir_open(fd, name);
		assert_true(next >= 0);
		(void)close(fd);
		fd = next;
		path[have] = '/';
		memcpy(path + have + 1, name, n + 1);
		have += n + 1;
	}
	assert_int_equal(strlen(path), bytes);
	(void)close(fd);
}

TEST(a_path_that_is_too_long_is_refused_and_not_cut)
{
	char deep[PATH_MAX], job[PATH_MAX];
	struct store_ref ref;
	int fd;

	/* the longest path of a store whose job's is still one */
	deep_make(deep, PATH_MAX - 1 - sizeof "/demo" + 1);
	fd = open(deep, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(renameat(place.fd, "demo", fd, "demo"), 0);
	assert_jobs(deep, 0, "demo ");
	assert_refused(-ENAMETOOLONG, deep, "latest", "step-000000000025");
	(void)stpcpy(stpcpy(job, deep), "/demo");
	assert_refused(-ENAMETOOLONG, job, "step:20", "step-000000000020");
	assert_int_equal(renameat(fd, "demo", fd, "demo2"), 0);
	assert_jobs(deep, -ENAMETOOLONG, "");
	assert_non_null(strstr(err.msg, "the path of demo2 is too long"));
	assert_refused(-ENAMETOOLONG, deep, "latest", "the path of demo2 is too long");
	assert_int_equal(renameat(fd, "demo2", place.fd, "demo"), 0);
	(void)close(fd);
	/* the longest of a job whose step's is still one */
	deep_make(deep, PATH_MAX - 1 - sizeof "/jobs/step-000000000025" + 1);
	fd = open(deep, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(renameat(place.fd, "demo", fd, "jobs"), 0);
	assert_int_equal(resolve(deep, "latest", &ref), 0);
	assert_int_equal(strlen(ref.path), PATH_MAX - 1);
	assert_int_equal(renameat(fd, "jobs", place.fd, "demo"), 0);
	(void)close(fd);
}

/* --- what people are told --- */

TEST(a_job_without_steps_says_so_whatever_is_asked_for)
{
	put_dir(place.fd, "new");
	put_dir(place.fd, "new/.ckptd");
	assert_refused(-ENOENT, at("new"), "step:7", "nothing is committed there yet");
	assert_refused(-ENOENT, at("new"), "latest", "nothing is committed in");
	assert_refused(-ENOENT, at("new"), "latest~1", "nothing is committed in");
	assert_refused(-ENOENT, at("new"), "tag:best", "it has none (ckptctl tag sets one)");
}

TEST(a_step_is_being_collected_rather_than_set_aside_where_it_is_both)
{
	char aside[STORE_DIR_MAX];

	store_name_old(40, UINT64_MAX, STORE_ASIDE_UNKNOWN, aside);
	put_dir(s->job_fd, aside);
	assert_refused(-EUCLEAN, root, "step:40", collecting->dir);
}

TEST(numbers_of_65_bits_are_refused)
{
	assert_refused(-EINVAL, root, "step:18446744073709551616", "at most 64 bits");
	assert_refused(-EINVAL, root, "latest~18446744073709551616", "at most 64 bits");
	assert_refused(-EINVAL, root, "latest~1x", "number");
	assert_refused(-ENOENT, root, "step:18446744073709551615", "10, 20 and 25");
}

TEST(damaged_steps_that_are_passed_over_are_told_with_what_is_there)
{
	struct store_ref ref;

	unlinked("step-000000000025/MANIFEST");
	assert_int_equal(resolve(root, "latest", &ref), 0);
	assert_string_equal(ref.path, at("demo/step-000000000020"));
	assert_non_null(strstr(ref.note, "step 25 is passed over: damaged: its MANIFEST is "
					 "missing; ckptctl repair step:25"));
	assert_null(strstr(ref.note, "more"));
	assert_refused(-ENOENT, root, "latest~2",
		       "the oldest is latest~1; step 25 is passed over: damaged");
	unlinked("step-000000000020/MANIFEST");
	assert_int_equal(resolve(root, "latest", &ref), 0);
	assert_string_equal(ref.path, at("demo/step-000000000010"));
	assert_non_null(strstr(ref.note, "step 25 is passed over"));
	assert_non_null(strstr(ref.note, "(and 1 more; ckptctl ls --all)"));
}

TEST(of_many_tags_some_are_offered)
{
	static const char *const name[] = { "a", "b", "c", "d", "e" };
	struct store_step *step;
	char words[40] = "it has ";
	uint32_t n;

	assert_int_equal(store_scan(s, false, &step, &n, &err), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(name); i++) {
		assert_int_equal(store_label_set(s, &step[0], LABEL_TAG, name[i], 0, NULL, &err),
				 0);
		if (i < 4)
			(void)snprintf(words + strlen(words), 10, "%s%s", i ? ", " : "", name[i]);
		assert_refused(-ENOENT, root, "tag:none", words);
		assert_int_equal(
			strcmp(strstr(err.msg, words) + strlen(words), i < 4 ? "" : ", ..."), 0);
	}
	free(step);
	assert_found(root, "tag:e", "demo/step-000000000025");
}

TEST(a_path_to_what_is_being_deleted_is_refused)
{
	move("step-000000000010", ".trash-00000001");
	assert_refused(-EUCLEAN, NULL, at("demo/.trash-00000001"), "it is being deleted");
}

/* --- locks --- */

static struct {
	int error;
	uint32_t n, nth; /* how often it was asked; the first that is given */
	void (*meanwhile)(void);
} locking;

static int lock_made_up(void *ctx, int fd, bool exclusive)
{
	if (++locking.n < locking.nth)
		return locking.error;
	if (locking.meanwhile)
		locking.meanwhile();
	return io_ops_posix.lock(ctx, fd, exclusive);
}

static void locks(int error, uint32_t nth, void (*meanwhile)(void))
{
	locking.error = error;
	locking.n = 0;
	locking.nth = nth;
	locking.meanwhile = meanwhile;
	ops.lock = lock_made_up;
}

TEST(what_latest_leads_to_is_looked_for_again_while_it_is_being_removed)
{
	struct store_ref ref;

	locks(-EAGAIN, 3, NULL);
	assert_found(root, "latest", "demo/step-000000000025");
	assert_int_equal(locking.n, 3);
	locks(-EAGAIN, UINT32_MAX, NULL);
	assert_refused(-ENOENT, root, "latest", "is being removed");
	assert_int_equal(locking.n, STORE_TRIES_MAX);
	assert_int_equal(store_resolve(&ops, &format_native, root, "latest", &ref, NULL), -ENOENT);
	assert_int_equal(ref.step_fd, -1);
	locks(-EIO, UINT32_MAX, NULL);
	assert_refused(-EIO, root, "latest", "cannot open step-000000000025");
	assert_int_equal(locking.n, 1);
}

static void it_goes(void)
{
	assert_int_equal(renameat(s->job_fd, "step-000000000010", place.fd, "away"), 0);
}

static void it_is_swapped(void)
{
	if (locking.n > 1)
		return;
	it_goes();
	put_dir(place.fd, "demo/step-000000000010");
}

static int stat_refused(void *ctx, int fd, struct io_stat *ret)
{
	return -EIO;
}

TEST(a_path_is_read_only_if_it_still_leads_to_what_was_locked)
{
	struct store_ref ref;
	cleanup_close int fd = -1;

	locks(-EOPNOTSUPP, UINT32_MAX, NULL); /* no locks there: it is read all the same */
	assert_int_equal(resolve(NULL, at("demo/step-000000000010"), &ref), 0);
	locks(-EAGAIN, UINT32_MAX, NULL);
	assert_refused(-ENOENT, NULL, at("demo/step-000000000010"),
		       "demo/step-000000000010 has gone or is being removed");
	locks(-EIO, UINT32_MAX, NULL);
	assert_refused(-EIO, NULL, at("demo/step-000000000010"),
		       "demo/step-000000000010 for reading");
	locks(0, 0, it_goes);
	assert_refused(-ENOENT, NULL, at("demo/step-000000000010"),
		       "demo/step-000000000010 has gone or is being removed");
	assert_int_equal(renameat(place.fd, "away", place.fd, "demo/step-000000000010"), 0);
	locks(0, 0, it_is_swapped);
	assert_int_equal(resolve(NULL, at("demo/step-000000000010"), &ref), 0);
	assert_int_equal(locking.n, 2);
	assert_int_equal(unlinkat(place.fd, "demo/step-000000000010", AT_REMOVEDIR), 0);
	assert_int_equal(renameat(place.fd, "away", place.fd, "demo/step-000000000010"), 0);
	ops = io_ops_posix;
	ops.stat = stat_refused;
	assert_refused(-EIO, NULL, at("demo/step-000000000010"), "cannot lock");
	fd = dir_open(place.fd, "demo/step-000000000010");
	assert_int_equal(io_ops_posix.lock(NULL, fd, true), 0); /* no lock was left behind */
}

/* --- any call, any allocation fails --- */

struct answer {
	int r;
	char text[8192];
};

struct asked {
	const char *where, *name; /* below root; name NULL: the jobs there */
	bool is_path;
};

static int names_add(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct answer *a = arg;

	(void)snprintf(a->text + strlen(a->text), sizeof a->text - strlen(a->text), "%s ",
		       abs_path);
	return 0;
}

static void ask(const struct io_ops *by, const struct asked *q, struct answer *ret)
{
	struct store_ref ref;

	*ret = (struct answer){ 0 };
	memset(&err, 0, sizeof err);
	if (!q->name) {
		ret->r = store_jobs(by, at(q->where), names_add, ret, &err);
		if (!ret->r)
			ret->r = store_jobs_closed(by, at(q->where), &err);
		return;
	}
	ret->r = store_resolve(by, &format_native, at(q->where), q->is_path ? at(q->name) : q->name,
			       &ref, &err);
	if (ret->r) {
		assert_int_equal(ref.step_fd, -1);
		(void)snprintf(ret->text, sizeof ret->text, "%s", ret->r > 0 ? ref.path : "");
		return;
	}
	(void)snprintf(ret->text, sizeof ret->text, "%s %s", ref.path, ref.note);
	assert_true(ref.step_fd >= 0);
	(void)by->close(by->ctx, ref.step_fd);
}

static const struct asked asked[] = {
	{ "", NULL, false },	       { "demo", NULL, false },
	{ "", "latest", false },       { "demo", "latest~1", false },
	{ "demo", "latest~9", false }, { "demo", "step:20", false },
	{ "demo", "step:21", false },  { "demo", "tag:best", false },
	{ "demo", "tag:none", false }, { "two", "latest", false },
	{ "empty", "latest", false },  { "", "demo/step-000000000010", true },
	{ "", "model", true },	       { "", "torn", true },
	{ "", "empty", true },	       { "", "demo", true },
	{ "", "demo@20", false },      { "", "none@20", false },
	{ "demo", "20", false },       { "", "demo@latest", true },
};

static void places_make(void)
{
	static const char *const dir[] = { "two",	   "two/a", "two/a/.ckptd", "two/b",
					   "two/b/.ckptd", "empty", "model",	    "torn" };
	static const char *const file[] = { "model/MANIFEST", "torn/w0000.part" };
	cleanup_free struct store_step *step = NULL;
	uint32_t n;

	for (size_t i = 0; i < ARRAY_LEN(dir); i++)
		put_dir(place.fd, dir[i]);
	for (size_t i = 0; i < ARRAY_LEN(file); i++)
		put_file(place.fd, file[i]);
	assert_int_equal(store_scan(s, false, &step, &n, &err), 0);
	assert_int_equal(store_label_set(s, &step[1], LABEL_TAG, "best", 0, NULL, &err), 0);
}

/* The same answer as without the failure, or that failure, with a sentence and nothing given. */
TEST(any_call_may_fail_and_no_answer_is_a_wrong_one)
{
	static const int code[] = { -EIO, -EMFILE };
	uint64_t runs = 0;
	uint32_t files;

	places_make();
	files = open_files();
	for (uint32_t i = 0; i < 4 * ARRAY_LEN(asked); i++) {
		const struct asked *q = &asked[i / 4];
		int error = code[i % 2];
		struct answer good, a;
		struct io_faults f;

		ask(&io_ops_posix, q, &good);
		for (uint64_t nth = 1;; nth++, runs++) {
			bool hit;

			io_faults_init(&f, &io_ops_posix);
			io_faults_fail(&f, IO_ON_ANY, nth, error, i & 2);
			ask(&f.ops, q, &a);
			hit = io_faults_hit(&f);
			assert_int_equal(open_files(), files);
			if (a.r < 0) {
				assert_true(err.msg[0]);
				assert_int_equal(err.code, a.r);
			}
			/* who finds a MANIFEST that cannot be read passes it over, and says so;
			 * what is in a directory by its path is for its reader to judge */
			if (a.r != error && !strstr(a.text, "passed over") &&
			    !strstr(err.msg, "passed over") && !(q->is_path && !a.r) &&
			    (a.r != good.r || strcmp(a.text, good.text) != 0))
				fail_msg("%s in %s, call %" PRIu64
					 " gives %d: %d instead of %d: %s",
					 q->name, q->where, nth, error, a.r, good.r, err.msg);
			if (!hit)
				break;
		}
	}
	print_message("%" PRIu64 " runs\n", runs);
	assert_true(runs > 200);
}

TEST(without_memory_no_answer_is_a_wrong_one)
{
	uint64_t runs = 0;
	uint32_t files;

	places_make();
	for (uint32_t i = 0; i < 20; i++) { /* more than one piece of memory */
		char dir[20];

		(void)snprintf(dir, sizeof dir, "two/c%02u", i);
		put_dir(place.fd, dir);
		(void)snprintf(dir, sizeof dir, "two/c%02u/.ckptd", i);
		put_dir(place.fd, dir);
	}
	files = open_files();
	for (uint32_t i = 0; i < ARRAY_LEN(asked); i++) {
		struct answer good, a;
		uint64_t failed, nth = 0;

		ask(&io_ops_posix, &asked[i], &good);
		do {
			no_memory_from(nth++, false);
			ask(&io_ops_posix, &asked[i], &a);
			failed = no_memory_end();
			assert_int_equal(open_files(), files);
			if (a.r < 0) {
				assert_true(err.msg[0]);
				assert_int_equal(err.code, a.r);
			}
			if (a.r != -ENOMEM && !(asked[i].is_path && !a.r) &&
			    (a.r != good.r || strcmp(a.text, good.text) != 0))
				fail_msg("%s in %s, allocation %" PRIu64 ": %d instead of %d: %s",
					 asked[i].name, asked[i].where, nth, a.r, good.r, err.msg);
			runs++;
		} while (failed);
	}
	print_message("%" PRIu64 " runs\n", runs);
	assert_true(runs > 100);
}

UNIT(.setup = setup, .teardown = teardown);
