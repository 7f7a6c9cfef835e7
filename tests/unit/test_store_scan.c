/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_scan.c - what a scan lists, in which order, what it calls damaged, and how fast it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "ckpt/store/store_impl.h"
#include "tests/crash/crash_step.c"

static struct place place;
static struct store *s;
static struct ckpt_err err;
static struct store_step *step;
static uint32_t n;

static int setup(void **state)
{
	uint64_t generation;

	(void)state;
	memset(&err, 0, sizeof err);
	place_make(&place);
	return store_open(&io_ops_posix, place.fd, CRASH_JOB, true, &s, &err) ||
	       store_claim(s, 0, false, &generation, &err);
}

static int teardown(void **state)
{
	(void)state;
	free(TAKE(step));
	store_close(s);
	place_remove(&place);
	return 0;
}

static void save(uint64_t number, uint64_t seq, uint64_t rewind)
{
	struct crash_step c = { 0 };

	if (crash_save(s, number, seq, rewind, &c, &err))
		fail_msg("%s", err.msg);
	crash_step_free(&c);
}

static void scan(bool all)
{
	free(TAKE(step));
	if (store_scan(s, all, &step, &n, &err))
		fail_msg("%s", err.msg);
}

/* The numbers in the order of the scan, as "30 20 10". */
static void assert_order(const char *want)
{
	char have[200] = "";
	int used = 0;

	for (uint32_t i = 0; i < n; i++)
		used += snprintf(have + used, sizeof have - (size_t)used, "%s%" PRIu64,
				 i ? " " : "", step[i].step);
	assert_string_equal(have, want);
}

static void a_job_without_steps_has_none(void **state)
{
	(void)state;
	scan(true);
	assert_int_equal(n, 0);
}

static void steps_come_newest_first_and_others_only_when_asked_for(void **state)
{
	struct crash_step c = { 0 };
	struct store_txn *x;

	(void)state;
	save(10, 1, UINT64_MAX);
	save(20, 2, 10);
	save(30, 3, 20);
	save(15, 4, 10);
	assert_int_equal(crash_begin(s, 40, 5, &x, &c, &err), 0);
	scan(false);
	assert_order("15 10");
	scan(true);
	assert_order("40 15 30 20 10");
	assert_int_equal(step[0].state, STORE_COLLECTING);
	assert_int_equal(step[0].generation, 1);
	assert_true(step[0].bytes >= c.file[0].len + c.file[1].len);
	assert_int_equal(step[1].state, STORE_COMMITTED);
	assert_int_equal(step[2].state, STORE_SET_ASIDE);
	assert_int_equal(step[2].seq, 3);
	assert_string_equal(step[2].dir, ".old-000000000030-s3");
	store_abort(x);
	crash_step_free(&c);
}

static void a_scan_knows_what_manifest_says(void **state)
{
	static const uint8_t zero[16];
	struct stat st;
	uint64_t bytes = 0;
	struct crash_step c = { 0 };
	int fd;

	(void)state;
	assert_int_equal(crash_save(s, 10, 1, UINT64_MAX, &c, &err), 0);
	scan(false);
	assert_int_equal(n, 1);
	assert_int_equal(step[0].seq, 1);
	assert_int_equal(step[0].generation, 1);
	assert_int_equal(step[0].world, CRASH_WORLD);
	assert_int_equal(step[0].parent_step, UINT64_MAX);
	assert_int_equal(step[0].wall_ns, 1700000000 * NS_PER_S + 1);
	assert_string_equal(step[0].dir, "step-000000000010");
	assert_string_equal(step[0].mesh, "fsdp=2");
	assert_string_equal(step[0].format, "native");
	assert_memory_not_equal(step[0].id, zero, 16);
	assert_int_equal(store_step_open(s, step[0].dir, &fd, &err), 0);
	for (size_t i = 0; i < ARRAY_LEN(c.file); i++) {
		assert_int_equal(fstatat(fd, c.file[i].name, &st, 0), 0);
		bytes += (uint64_t)st.st_size;
	}
	assert_int_equal(step[0].bytes, bytes);
	(void)close(fd);
	crash_step_free(&c);
}

static void what_is_not_ours_is_not_listed(void **state)
{
	static const char *const dirs[] = { "step-12",
					    "step-0000000000012",
					    "step-00000000001x",
					    "step-99999999999999999999999",
					    "other",
					    ".old-1-s1",
					    "lost+found" };
	int fd;

	(void)state;
	save(10, 1, UINT64_MAX);
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		assert_int_equal(mkdirat(s->job_fd, dirs[i], 0700), 0);
	fd = openat(s->job_fd, "step-000000000011", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	(void)close(fd);
	assert_int_equal(symlinkat("step-000000000010", s->job_fd, "step-000000000012"), 0);
	scan(true);
	assert_order("10");
}

static void a_step_is_opened_by_its_own_name_only(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(store_step_open(s, "..", &fd, &err), -EINVAL);
	assert_int_equal(store_step_open(s, ".ckptd", &fd, &err), -EINVAL);
	assert_int_equal(store_step_open(s, "../demo/step-000000000010", &fd, &err), -EINVAL);
	assert_int_equal(store_step_open(s, "step-000000000010", &fd, &err), -ENOENT);
	assert_int_equal(fd, -1);
}

static void damage_make(uint32_t kind)
{
	static const char path[] = "step-000000000020/MANIFEST";
	uint8_t byte = 0xff;
	int fd = openat(s->job_fd, path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	switch (kind) {
	case 0:
		assert_int_equal(ftruncate(fd, 5000), 0);
		break;
	case 1:
		assert_int_equal(ftruncate(fd, 0), 0);
		break;
	case 2:
		assert_int_equal(pwrite(fd, &byte, 1, 100), 1);
		break;
	case 3:
		assert_int_equal(unlinkat(s->job_fd, path, 0), 0);
		break;
	case 4:
		assert_int_equal(unlinkat(s->job_fd, path, 0), 0);
		assert_int_equal(mkfifoat(s->job_fd, path, 0600), 0);
		break;
	case 5:
		assert_int_equal(unlinkat(s->job_fd, path, 0), 0);
		assert_int_equal(symlinkat("../step-000000000010/MANIFEST", s->job_fd, path), 0);
		break;
	case 6: /* another step's */
		assert_int_equal(unlinkat(s->job_fd, path, 0), 0);
		assert_int_equal(
			linkat(s->job_fd, "step-000000000010/MANIFEST", s->job_fd, path, 0), 0);
		break;
	default:
		fail();
	}
	(void)close(fd);
}

static void a_step_whose_manifest_is_not_its_own_is_damaged_and_stays_in_its_place(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < 7; kind++) {
		save(10, 1, UINT64_MAX);
		save(20, 2, 10);
		save(30, 3, 20);
		damage_make(kind);
		scan(false);
		assert_order("30 20 10");
		assert_int_equal(step[1].state, STORE_DAMAGED);
		assert_true(step[1].why[0] && !strchr(step[1].why, '\n'));
		assert_true(step[1].bytes > 0);
		print_message("%s\n", step[1].why);
		assert_int_equal(renameat(s->job_fd, "step-000000000030", place.fd, "away"), 0);
		scan(false);
		assert_order("20 10");
		(void)io_tree_remove(place.fd, "away");
		(void)io_tree_remove(s->job_fd, "step-000000000020");
		(void)io_tree_remove(s->job_fd, "step-000000000010");
	}
}

static void a_shortage_of_this_process_is_not_called_damage(void **state)
{
	struct io_faults f;

	(void)state;
	save(10, 1, UINT64_MAX);
	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_OPEN, 1, -EMFILE, false);
	assert_int_equal(store_scan(s, true, &step, &n, &err), -EMFILE);
	assert_non_null(strstr(err.msg, "ulimit"));
	io_faults_fail(&f, IO_ON_READ, 1, -EIO, false);
	scan(true);
	assert_int_equal(step[0].state, STORE_DAMAGED);
	s->ops = &io_ops_posix;
}

static int refuse_entry(void *arg, const char *name, int is_file)
{
	(void)arg;
	return strcmp(name, "MANIFEST") == 0 ? 40 + is_file : 0;
}

static void a_source_directory_gives_files_and_nothing_else(void **state)
{
	struct source_dir d;
	struct source src;
	uint8_t head[4096];
	int fd;

	(void)state;
	save(10, 1, UINT64_MAX);
	assert_int_equal(mkdirat(s->job_fd, "step-000000000010/sub", 0700), 0);
	assert_int_equal(symlinkat("MANIFEST", s->job_fd, "step-000000000010/link"), 0);
	assert_int_equal(store_step_open(s, "step-000000000010", &fd, &err), 0);
	assert_int_equal(store_source_dir(&io_ops_posix, fd, &d), 0);
	assert_int_equal(d.open(d.ctx, "sub", &src), -EISDIR);
	assert_int_equal(d.open(d.ctx, "link", &src), -ELOOP);
	assert_int_equal(d.open(d.ctx, "none", &src), -ENOENT);
	assert_int_equal(d.open(d.ctx, "../step-000000000010/MANIFEST", &src), -EINVAL);
	assert_int_equal(d.open(d.ctx, "..", &src), -EINVAL);
	assert_int_equal(d.open(d.ctx, "", &src), -EINVAL);
	assert_int_equal(d.list(d.ctx, refuse_entry, NULL), 41);
	assert_int_equal(d.open(d.ctx, "MANIFEST", &src), 0);
	store_source_dir_close(&d);
	(void)close(fd);
	assert_int_equal(src.read(src.ctx, head, sizeof head, 0), 0); /* it outlives both */
	assert_int_equal(src.read(src.ctx, head, sizeof head, src.bytes - 1), -ENODATA);
	src.close(src.ctx);
}

#define MANY 1000

static void a_thousand_steps_are_listed_fast(void **state)
{
	uint64_t best = UINT64_MAX;

	(void)state;
	for (uint32_t i = 0; i < MANY; i++) {
		struct crash_step c = { 0 };
		struct store_txn *x;

		/* Only MANIFEST is looked at: the parts need not stay. */
		assert_int_equal(crash_begin(s, i + 1, i + 1, &x, &c, &err), 0);
		for (uint32_t k = 0; k < CRASH_WORLD; k++)
			assert_int_equal(unlinkat(x->fd, c.file[k].name, 0), 0);
		assert_int_equal(crash_commit(x, &c, i, &err), 0);
		crash_step_free(&c);
	}
	for (uint32_t i = 0; i < 5; i++) {
		uint64_t begun = now_ns();

		scan(false);
		best = MIN(best, now_ns() - begun);
		assert_int_equal(n, MANY);
		assert_int_equal(step[0].step, MANY);
	}
	print_message("%u steps in %.1f ms\n", MANY, (double)best / 1e6);
	assert_true(best <
		    500 * NS_PER_MS); /* 50 is the aim; sanitizers and busy machines are slow */
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_job_without_steps_has_none),
		T(steps_come_newest_first_and_others_only_when_asked_for),
		T(a_scan_knows_what_manifest_says),
		T(what_is_not_ours_is_not_listed),
		T(a_step_is_opened_by_its_own_name_only),
		T(a_step_whose_manifest_is_not_its_own_is_damaged_and_stays_in_its_place),
		T(a_shortage_of_this_process_is_not_called_damage),
		T(a_source_directory_gives_files_and_nothing_else),
		T(a_thousand_steps_are_listed_fast),
	};

	return cmocka_run_group_tests_name("store_scan", tests, NULL, NULL);
}
