/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - see job.h. */
#include "tests/crash/job.h"
#include "formats/native/native.h"
#include <dirent.h>
#include <fcntl.h>

struct place place;
struct store *s;
struct ckpt_err err;
struct io_ops ops;
struct crash_step saved[JOB_STEPS_MAX];
uint32_t nsaved;

int job_place(void **state)
{
	memset(&err, 0, sizeof err);
	memset(saved, 0, sizeof saved);
	nsaved = 0;
	s = NULL;
	ops = io_ops_posix;
	place_make(&place);
	return 0;
}

int job_make(void **state)
{
	(void)job_place(state);
	s = opened(&ops);
	(void)claimed(s, 0, false);
	return 0;
}

int job_make_three(void **state)
{
	(void)job_make(state);
	for (uint64_t step = 10; step <= 30; step += 10)
		save(step, step == 10 ? UINT64_MAX : step - 10);
	return 0;
}

int job_remove(void **state)
{
	if (s)
		s->ops = &io_ops_posix; /* also of a test that failed */
	store_close(TAKE(s));
	for (uint32_t i = 0; i < nsaved; i++)
		crash_step_free(&saved[i]);
	place_remove(&place);
	return 0;
}

struct store *opened(const struct io_ops *by)
{
	struct store *ret;

	if (store_open(by, &format_native, place.fd, CRASH_JOB, true, &ret, &err))
		fail_msg("%s", err.msg);
	return ret;
}

uint64_t claimed(struct store *by, uint64_t want, bool again)
{
	uint64_t generation = 0;

	if (store_claim(by, want, again, &generation, &err))
		fail_msg("%s", err.msg);
	return generation;
}

void another_claims(void)
{
	struct store *other = opened(&io_ops_posix);

	(void)claimed(other, 0, false);
	store_close(other);
}

void store_drop(struct store **by)
{
	store_close(*by);
}

void txn_drop(struct store_txn **x)
{
	store_abort(*x);
}

struct store job_by(const struct io_ops *by)
{
	return (struct store){ .ops = by,
			       .format = &format_native,
			       .root_fd = -1,
			       .job_fd = s->job_fd,
			       .job = CRASH_JOB };
}

int try_save(struct store *by, uint64_t step, uint64_t seq, uint64_t rewind)
{
	assert_true(nsaved < JOB_STEPS_MAX);
	return crash_save(by, step, seq, rewind, &saved[nsaved++], &err);
}

void save(uint64_t step, uint64_t rewind)
{
	if (try_save(s, step, nsaved + 1, rewind))
		fail_msg("%s", err.msg);
}

struct store_txn *begun(struct store *by, uint64_t step, uint64_t seq)
{
	struct store_txn *x;

	assert_true(nsaved < JOB_STEPS_MAX);
	if (crash_begin(by, step, seq, &x, &saved[nsaved++], &err))
		fail_msg("%s", err.msg);
	return x;
}

/* --- its entries --- */

bool exists(const char *name)
{
	return faccessat(s->job_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void put_file(int dirfd, const char *name)
{
	cleanup_close int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
}

void put_dir(int dirfd, const char *name)
{
	assert_int_equal(mkdirat(dirfd, name, 0700), 0);
}

void unlinked(const char *name)
{
	assert_int_equal(unlinkat(s->job_fd, name, 0), 0);
}

void move(const char *from, const char *to)
{
	assert_int_equal(renameat(s->job_fd, from, s->job_fd, to), 0);
}

int dir_open(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

uint32_t entries_of(int dirfd, const char *name)
{
	cleanup_close int fd = dir_open(dirfd, name);
	uint32_t n = 0;

	assert_int_equal(io_ops_posix.list(NULL, fd, entry_count, &n), 0);
	return n;
}

/* --- its steps --- */

void label(uint64_t step, enum store_label_kind kind, const char *name)
{
	struct store at = job_by(&io_ops_posix);
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	assert_int_equal(store_scan(&at, true, &st, &n, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		if (st[i].step == step &&
		    store_label_set(&at, &st[i], kind, name, 0, "why", &err) == 0)
			return;
	fail_msg("%s", err.msg);
}

void listed(const struct store *by, bool seq, char text[200])
{
	static const char letter[] = { 0, 'c', 'a', 'd', 'q', 'm', 'n', 'o' };
	cleanup_free struct store_step *st = NULL;
	char why[CRASH_WHY];
	size_t used = 0;
	uint32_t n;

	struct store at = job_by(&io_ops_posix);

	by = by == s ? &at : by;
	text[0] = 0;
	if (store_scan(by, true, &st, &n, &err))
		fail_msg("%s", err.msg);
	for (uint32_t i = 0; i < n; i++) {
		used += (size_t)snprintf(text + used, 200 - used, "%s%.*s%" PRIu64, i ? " " : "",
					 letter[st[i].state] != 0, &letter[st[i].state],
					 st[i].step);
		if (seq)
			used += (size_t)snprintf(text + used, 200 - used, "-%" PRIu64, st[i].seq);
	}
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; st[i].state == STORE_COMMITTED && k < nsaved; k++)
			if (saved[k].step == st[i].step && saved[k].seq == st[i].seq &&
			    (!seq || saved[k].generation == st[i].generation) &&
			    !(seq ? crash_parts_same : crash_step_same)(by, st[i].dir, &saved[k],
									why))
				fail_msg("%s: %s", st[i].dir, why);
}
