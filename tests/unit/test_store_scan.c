/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_scan.c - what a scan lists, in which order, what it calls damaged, and how fast it
 * is. */
#include "formats/native/native.h"
#include "tests/crash/job.h"
#include "tests/lib/row.h"
#include "tests/lib/libc.h"

static struct store_step *step;
static uint32_t n;

static int setup(void **state)
{
	return job_make(state);
}

static int teardown(void **state)
{
	free(TAKE(step));
	return job_remove(state);
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

TEST(a_job_without_steps_has_none)
{
	scan(true);
	assert_int_equal(n, 0);
}

TEST(steps_come_newest_first_and_others_only_when_asked_for)
{
	cleanup_txn struct store_txn *x = NULL;

	save(10, UINT64_MAX);
	save(20, 10);
	save(30, 20);
	save(15, 10);
	x = begun(s, 40, 5);
	scan(false);
	assert_order("15 10");
	scan(true);
	assert_order("40 15 30 20 10");
	assert_int_equal(step[0].state, STORE_COLLECTING);
	assert_int_equal(step[0].generation, 1);
	assert_true(step[0].bytes >= saved[4].file[0].len + saved[4].file[1].len);
	assert_int_equal(step[1].state, STORE_COMMITTED);
	assert_int_equal(step[2].state, STORE_SET_ASIDE);
	assert_int_equal(step[2].seq, 3);
	assert_string_equal(step[2].dir, crash_aside(s, 30, 3));
}

/* As a crash leaves them that lets a number of the line be given twice. */
TEST(of_equal_places_in_the_line_the_higher_number_comes_first)
{
	static const uint64_t number[] = { 30, 10, 40, 20 };
	char dir[STORE_DIR_MAX];

	for (uint32_t i = 0; i < ARRAY_LEN(number); i++) {
		store_name_old(number[i], 7, STORE_ASIDE_UNKNOWN, dir);
		put_dir(s->job_fd, dir);
	}
	scan(true);
	assert_order("40 30 20 10");
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(step[i].state, STORE_SET_ASIDE);
		assert_int_equal(step[i].code, -ENOENT);
	}
}

TEST(a_scan_knows_what_manifest_says)
{
	static const uint8_t zero[16];
	struct stat st;
	uint64_t bytes = 0;
	cleanup_step struct crash_step c = { 0 };
	cleanup_close int fd = -1;

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
}

/* A step of two ranks that own nothing, by the MANIFEST of t: a scan looks at no part. */
static void save_as(uint64_t number, uint64_t seq, uint64_t rewind, struct table *t, uint32_t nnote,
		    const struct ckpt_note *note)
{
	struct native_info info = {
		.job = CRASH_JOB, .step = number, .generation = s->generation, .world = 2
	};
	struct native_part part[] = { { .name = "w0000-00000000-000.part",
					.rank = 0,
					.step = number,
					.generation = s->generation,
					.table = t },
				      { .name = "w0001-00000000-001.part",
					.rank = 1,
					.step = number,
					.generation = s->generation,
					.table = t } };
	struct native_lineage line = {
		.seq = seq, .parent_step = UINT64_MAX, .tool = "test", .nnote = nnote, .note = note
	};
	cleanup_free void *bytes = NULL;
	struct store_txn *x;
	uint64_t len;
	uint8_t id[16];

	for (uint32_t i = 0; i < 2; i++)
		native_part_uuid(&info, i, part[i].uuid);
	if (table_seal(t, &err) || native_manifest(&info, part, 2, &line, &bytes, &len, id, &err) ||
	    store_begin(s, number, &x, &err) || store_commit(x, bytes, len, rewind, &err))
		fail_msg("%s", err.msg);
	table_free(t);
}

TEST(the_mesh_that_is_told_is_the_first_of_the_largest)
{
	static const struct {
		const char *mesh[4];
		const char *told;
	} want[] = { { { "a=1", "b=2", "c=2" }, "b=2" },
		     { { "a=2", "b=1" }, "a=2" },
		     { { NULL }, "" } };

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
		struct table t = { 0 };
		struct arena a = { 0 };
		struct mesh m;
		uint32_t at;

		for (uint32_t k = 0; want[i].mesh[k]; k++)
			if (mesh_parse(want[i].mesh[k], &a, &m, &err) ||
			    table_add_mesh(&t, &m, &at, &err))
				fail_msg("%s", err.msg);
		save_as(i, i + 1, i ? i - 1 : UINT64_MAX, &t, 0, NULL);
		arena_free(&a);
		scan(false);
		assert_string_equal(step[0].mesh, want[i].told);
	}
}

TEST(the_notes_of_each_step_come_with_it)
{
	static const struct ckpt_note note[] = { { "loss", 0.5 }, { "lr", 0.125 } };

	for (uint32_t i = 0; i < 3; i++) {
		struct table t = { 0 };

		save_as(i, i + 1, i ? i - 1 : UINT64_MAX, &t, i, note);
	}
	scan(false);
	assert_int_equal(n, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(step[2 - i].nnote, i);
		for (uint32_t k = 0; k < i; k++) {
			assert_string_equal(step[2 - i].note[k].key, note[k].key);
			assert_true(step[2 - i].note[k].value == note[k].value);
		}
	}
	assert_null(step[2].note);
}

TEST(without_memory_for_its_notes_a_step_has_none)
{
	static const struct ckpt_note note[] = { { "loss", 0.5 } };
	struct table t = { 0 };
	uint32_t with = 0, without = 0, failed = 1;
	uint64_t nth = 0;

	save_as(1, 1, UINT64_MAX, &t, 1, note);
	for (; failed; nth++) {
		int r;

		no_memory_from(nth, false);
		r = store_scan(s, true, &step, &n, &err);
		failed = (uint32_t)no_memory_end();
		if (r) {
			assert_int_equal(r, -ENOMEM);
			assert_null(step);
			continue;
		}
		assert_int_equal(n, 1);
		assert_int_equal(step[0].state, STORE_COMMITTED);
		with += step[0].nnote == 1;
		without += step[0].nnote == 0;
		free(TAKE(step));
	}
	assert_int_equal(with, 1);
	assert_int_equal(without, 1);
}

TEST(what_is_not_ours_is_not_listed)
{
	static const char *const dirs[] =
		ROW("step-12", "step-0000000000012", "step-00000000001x",
		    "step-99999999999999999999999", "other", ".old-1-s1", "lost+found");

	save(10, UINT64_MAX);
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		put_dir(s->job_fd, dirs[i]);
	put_file(s->job_fd, "step-000000000011");
	assert_int_equal(symlinkat("step-000000000010", s->job_fd, "step-000000000012"), 0);
	scan(true);
	assert_order("10");
}

TEST(a_step_is_opened_by_its_own_name_only)
{
	int fd;

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
	cleanup_close int fd = openat(s->job_fd, path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	if (kind > 2)
		unlinked(path);
	if (kind == 0)
		assert_int_equal(ftruncate(fd, 5000), 0);
	if (kind == 1)
		assert_int_equal(ftruncate(fd, 0), 0);
	if (kind == 2)
		assert_int_equal(pwrite(fd, &byte, 1, 100), 1);
	if (kind == 4)
		assert_int_equal(mkfifoat(s->job_fd, path, 0600), 0);
	if (kind == 5)
		assert_int_equal(symlinkat("../step-000000000010/MANIFEST", s->job_fd, path), 0);
	if (kind == 6) /* another step's */
		assert_int_equal(
			linkat(s->job_fd, "step-000000000010/MANIFEST", s->job_fd, path, 0), 0);
	if (kind == 7)
		put_dir(s->job_fd, path);
}

TEST(a_step_whose_manifest_is_not_its_own_is_no_checkpoint_and_stays_in_its_place)
{
	for (uint32_t kind = 0; kind < 8; kind++) {
		save(10, UINT64_MAX);
		save(20, 10);
		save(30, 20);
		damage_make(kind);
		scan(false);
		assert_order("30 20 10");
		assert_int_equal(step[1].state, kind == 6 ? STORE_MISPLACED : STORE_DAMAGED);
		assert_true(step[1].why[0] && !strchr(step[1].why, '\n'));
		assert_false(store_step_unread(&step[1])); /* it is known what it is */
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

TEST(a_shortage_of_this_process_is_not_called_damage)
{
	struct io_faults f;

	save(10, UINT64_MAX);
	io_faults_init(&f, &io_ops_posix);
	s->ops = &f.ops;
	io_faults_fail(&f, IO_ON_OPEN, 1, -EMFILE, false);
	assert_int_equal(store_scan(s, true, &step, &n, &err), -EMFILE);
	assert_non_null(strstr(err.msg, "ulimit"));
	io_faults_fail(&f, IO_ON_READ, 1, -EIO, false);
	scan(true);
	assert_int_equal(step[0].state, STORE_DAMAGED);
}

/* One path cannot be opened, for a reason that changes. */
static struct {
	const char *path;
	int r;
} closed;

static int closed_open(void *ctx, int dirfd, const char *path, int flags, uint32_t mode)
{
	return strncmp(path, closed.path, strlen(closed.path)) == 0
		       ? closed.r
		       : io_ops_posix.open(ctx, dirfd, path, flags, mode);
}

TEST(what_cannot_be_looked_at_is_a_shortage_or_stands_there_unsized)
{
	static const int shortage[] = { -ENOMEM, -EMFILE, -ENFILE };
	static const char *const path[] = { "step-000000000010/MANIFEST", ".tmp-" };
	cleanup_txn struct store_txn *x = NULL;

	save(10, UINT64_MAX);
	x = begun(s, 20, 2);
	ops.open = closed_open;
	for (uint32_t i = 0; i < ARRAY_LEN(path); i++) {
		closed.path = path[i];
		for (uint32_t k = 0; k < ARRAY_LEN(shortage); k++) {
			closed.r = shortage[k];
			assert_int_equal(store_scan(s, true, &step, &n, &err), shortage[k]);
			assert_non_null(strstr(err.msg, "cannot read "));
			assert_null(step);
		}
	}
	closed.r = -EACCES;
	scan(true);
	assert_order("20 10");
	assert_int_equal(step[0].bytes, 0);
	closed.r = -ENOENT; /* committed or trashed since it was listed */
	scan(true);
	assert_order("10");
	ops = io_ops_posix;
}

TEST(who_may_not_read_what_is_said_of_the_steps_may_read_the_steps)
{
	save(10, UINT64_MAX);
	ops.open = closed_open;
	closed.path = STORE_CLAIMS;
	closed.r = -EACCES;
	scan(true);
	assert_int_equal(step[0].state, STORE_COMMITTED);
	closed.r = -EPERM;
	scan(true);
	assert_int_equal(step[0].state, STORE_COMMITTED);
	closed.r = -EIO;
	free(TAKE(step));
	assert_int_equal(store_scan(s, true, &step, &n, &err), -EIO);
}

TEST(what_is_known_of_a_manifest_is_not_unread)
{
	static const int known[] = { 0,	      -ENOENT, -EBADMSG, -EPROTO, -EUCLEAN,
				     -EINVAL, -EISDIR, -ELOOP,	 -ENODATA };
	static const int unread[] = { -EIO, -EACCES, -ESTALE, -EPROTONOSUPPORT };

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		assert_false(store_step_unread(&(struct store_step){ .code = known[i] }));
	for (size_t i = 0; i < ARRAY_LEN(unread); i++)
		assert_true(store_step_unread(&(struct store_step){ .code = unread[i] }));
}

static int huge_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	int r = io_ops_posix.size(ctx, fd, ret_bytes);

	*ret_bytes = UINT64_MAX - 1;
	return r;
}

TEST(sizes_that_no_disk_has_are_not_added_up_to_less)
{
	cleanup_txn struct store_txn *x = NULL;

	x = begun(s, 20, 2);
	ops.size = huge_size;
	scan(true);
	assert_int_equal(step[0].bytes, UINT64_MAX - 1);
	ops = io_ops_posix;
}

static int another_each_time(void *ctx, int fd, struct io_stat *ret)
{
	static uint64_t ino;
	int r = io_ops_posix.stat(ctx, fd, ret);

	ret->ino = ++ino;
	return r;
}

TEST(a_step_that_is_another_one_at_every_look_is_not_opened)
{
	int fd;

	save(10, UINT64_MAX);
	ops.stat = another_each_time;
	assert_int_equal(store_step_open(s, "step-000000000010", &fd, &err), -ENOENT);
	assert_int_equal(fd, -1);
	assert_non_null(strstr(err.msg, "is being removed"));
}

TEST(only_a_step_is_looked_at_as_one)
{
	struct store_step st;

	put_dir(s->job_fd, "other");
	assert_int_equal(store_step_look(s, "other", &st), -EINVAL);
	assert_int_equal(store_step_look(s, ".tmp-000000000010-g00000001-0000000b", &st), -EINVAL);
	assert_int_equal(store_step_look(s, "step-000000000010", &st), -ENOENT);
}

/* A file system that does not say what its entries are; and one of them has gone when it is
 * asked. */
struct unknown_listing {
	int (*each)(void *arg, const char *name, unsigned char d_type);
	void *arg;
};

static int unknown_entry(void *arg, const char *name, unsigned char d_type)
{
	const struct unknown_listing *l = arg;

	return l->each(l->arg, name, DT_UNKNOWN);
}

static int unknown_list(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	struct unknown_listing l = { .each = each, .arg = arg };
	int r = io_ops_posix.list(ctx, dirfd, unknown_entry, &l);

	return r ? r : each(arg, "gone", DT_UNKNOWN);
}

static int count_files(void *arg, const char *name, enum source_kind kind)
{
	uint32_t *count = arg;

	count[kind == SOURCE_FILE ? 0 : 1]++;
	assert_int_equal(kind == SOURCE_FILE, strcmp(name, "gone") != 0 &&
						      strcmp(name, "sub") != 0 &&
						      strcmp(name, "link") != 0);
	return 0;
}

TEST(where_the_kind_of_an_entry_is_not_told_it_is_found_out)
{
	uint32_t count[2] = { 0 };
	struct source_dir d;
	cleanup_txn struct store_txn *x = NULL;
	uint64_t bytes;
	int fd;

	save(10, UINT64_MAX);
	put_dir(s->job_fd, "step-000000000010/sub");
	assert_int_equal(symlinkat("MANIFEST", s->job_fd, "step-000000000010/link"), 0);
	x = begun(s, 40, 5);
	scan(true);
	bytes = step[0].bytes;
	ops.list = unknown_list;
	scan(true);
	assert_order("40 10");
	assert_int_equal(step[0].bytes, bytes);
	assert_int_equal(store_step_open(s, "step-000000000010", &fd, &err), 0);
	assert_int_equal(source_make(&ops, fd, NULL, 0, &d), 0);
	assert_int_equal(d.list(d.ctx, "", count_files, count), 0);
	assert_int_equal(count[0], CRASH_WORLD + 1);
	assert_int_equal(count[1], 3);
	source_end(&d);
	(void)close(fd);
}

#define MANY 1000

TEST(a_thousand_steps_are_listed_fast)
{
	uint64_t best = UINT64_MAX;

	for (uint32_t i = 0; i < MANY; i++) {
		cleanup_step struct crash_step c = { 0 };
		struct store_txn *x;

		/* Only MANIFEST is looked at: the parts need not stay. */
		assert_int_equal(crash_begin(s, i + 1, i + 1, &x, &c, &err), 0);
		for (uint32_t k = 0; k < CRASH_WORLD; k++)
			assert_int_equal(unlinkat(x->fd, c.file[k].name, 0), 0);
		assert_int_equal(crash_commit(x, &c, i, &err), 0);
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

UNIT(.setup = setup, .teardown = teardown);
