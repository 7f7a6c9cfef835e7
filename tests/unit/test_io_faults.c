/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_faults.c - the rig that crash tests stand on, tested with a toy store that commits as
 * ckptd does: what is right passes every state of the model, and each of the classical mistakes is
 * found.
 */
#include <fcntl.h>
#include "tests/lib/draw.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

#define PART_BYTES 3000 /* six sectors, the last one part */
#define TOY_STEPS 2

static char dir_path[256];
static int dir_fd = -1;

static int dir_open(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)snprintf(dir_path, sizeof(dir_path), "%s/ckpt-io-faults-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir_path))
		return -1;
	dir_fd = open(dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir_fd < 0 || mkdirat(dir_fd, "live", 0700);
}

static int dir_close(void **state)
{
	(void)close(dir_fd);
	return io_tree_remove(AT_FDCWD, dir_path);
}

/* What the toy store forgets. */
enum mistake {
	NO_MISTAKE,
	NO_FILE_SYNC,
	NO_DIR_SYNC, /* of the collecting directory */
	NO_PARENT_SYNC,
	RENAME_BEFORE_SYNC,
	PROMISE_BEFORE_PARENT_SYNC,
	SYNC_RETRIED, /* after the first failed, the same file is synced again */
	SYNC_BEFORE_LAST_WRITE,
	IN_PLACE, /* the step's directory has its final name from the start */
	MISTAKES,
};

struct toy {
	const struct io_ops *ops;
	enum mistake mistake;
	struct io_record *record; /* or NULL */
};

static void part_fill(uint8_t *p, int step)
{
	for (int i = 0; i < PART_BYTES; i++)
		p[i] = (uint8_t)(i * 7 + i / 512 + step * 101 + 1);
}

static int file_sync(const struct toy *t, int fd)
{
	int rc;

	if (t->mistake == NO_FILE_SYNC)
		return 0;
	rc = t->ops->sync(t->ops->ctx, fd);
	if (rc && t->mistake == SYNC_RETRIED)
		rc = t->ops->sync(t->ops->ctx, fd);
	return rc;
}

static int part_write(const struct toy *t, int dirfd, const char *name, int step)
{
	const struct io_ops *o = t->ops;
	uint8_t part[PART_BYTES];
	uint64_t half = t->mistake == SYNC_BEFORE_LAST_WRITE ? PART_BYTES / 2 : PART_BYTES;
	int fd = o->open(o->ctx, dirfd, name, O_WRONLY | O_CREAT | O_EXCL, 0600), rc, closed;

	if (fd < 0)
		return fd;
	part_fill(part, step);
	rc = o->fallocate(o->ctx, fd, 4096);
	if (rc == 0)
		rc = io_pwrite_all(o, fd, part, half, 0);
	if (rc == 0)
		rc = o->truncate(o->ctx, fd, PART_BYTES);
	if (rc == 0)
		rc = file_sync(t, fd);
	if (rc == 0)
		rc = io_pwrite_all(o, fd, part + half, PART_BYTES - half, half);
	closed = o->close(o->ctx, fd);
	return rc ? rc : closed;
}

static int parts_write(const struct toy *t, int root, const char *name, int step)
{
	const struct io_ops *o = t->ops;
	int fd, rc;

	rc = o->mkdir(o->ctx, root, name, 0700);
	if (rc)
		return rc;
	fd = o->open(o->ctx, root, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	rc = part_write(t, fd, "a.part", step);
	if (rc == 0)
		rc = part_write(t, fd, "b.part", step);
	if (rc == 0 && t->mistake != NO_DIR_SYNC)
		rc = o->sync(o->ctx, fd);
	(void)o->close(o->ctx, fd);
	return rc;
}

static int part_sync_late(const struct toy *t, int root, const char *dir, const char *part)
{
	const struct io_ops *o = t->ops;
	char path[64];
	int fd, rc;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, part);
	fd = o->open(o->ctx, root, path, O_RDONLY, 0);
	if (fd < 0)
		return fd;
	rc = o->sync(o->ctx, fd);
	(void)o->close(o->ctx, fd);
	return rc;
}

static int toy_commit(const struct toy *t, int root, int step)
{
	const struct io_ops *o = t->ops;
	char tmp[32], name[32];
	struct toy late = *t;
	int rc;

	(void)snprintf(tmp, sizeof(tmp), ".tmp-%d", step);
	(void)snprintf(name, sizeof(name), "step-%d", step);
	if (t->mistake == RENAME_BEFORE_SYNC)
		late.mistake = NO_FILE_SYNC;
	rc = parts_write(&late, root, t->mistake == IN_PLACE ? name : tmp, step);
	if (rc == 0 && t->mistake != IN_PLACE)
		rc = o->rename(o->ctx, root, tmp, name);
	if (rc == 0 && t->mistake == RENAME_BEFORE_SYNC)
		rc = part_sync_late(t, root, name, "a.part");
	if (rc == 0 && t->mistake == RENAME_BEFORE_SYNC)
		rc = part_sync_late(t, root, name, "b.part");
	if (rc == 0 && t->mistake == PROMISE_BEFORE_PARENT_SYNC && t->record)
		io_record_promise(t->record, (uint64_t)step);
	if (rc == 0 && t->mistake != NO_PARENT_SYNC)
		rc = o->sync(o->ctx, root);
	if (rc == 0 && t->record)
		io_record_promise(t->record, (uint64_t)step);
	return rc;
}

static bool part_good(int root, int step, const char *part)
{
	uint8_t want[PART_BYTES], got[PART_BYTES + 1];
	char path[64];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "step-%d/%s", step, part);
	fd = openat(root, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = pread(fd, got, sizeof(got), 0);
	(void)close(fd);
	part_fill(want, step);
	return n == PART_BYTES && memcmp(want, got, PART_BYTES) == 0;
}

static bool step_visible(int root, int step)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "step-%d", step);
	return faccessat(root, name, F_OK, 0) == 0;
}

/* P1 and P2: what is visible is complete, what was promised is visible. 1: broken. */
static int toy_check(void *arg, int root, const struct io_crash *at)
{
	for (int step = 1; step <= TOY_STEPS; step++) {
		bool visible = step_visible(root, step);

		if (at->promise >= (uint64_t)step && !visible)
			return 1;
		if (visible &&
		    !(part_good(root, step, "a.part") && part_good(root, step, "b.part")))
			return 1;
	}
	return 0;
}

static int live_fresh(void)
{
	int fd;

	assert_int_equal(io_tree_remove(dir_fd, "live"), 0);
	assert_int_equal(mkdirat(dir_fd, "live", 0700), 0);
	fd = openat(dir_fd, "live", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/*
 * Step 1 is written before the recording begins or within it; fail_sync: the nth sync fails once,
 * and the step may then fail.
 */
static int crash_run(enum mistake mistake, bool base, uint64_t fail_sync, uint64_t *ret_states)
{
	struct io_faults f;
	struct toy t = { .ops = &f.ops, .mistake = NO_MISTAKE };
	struct io_crash_opts o = { .seed = draw_seed(__func__), .nrandom = 8, .ntear = 3 };
	int root = live_fresh(), rc;

	io_faults_init(&f, &io_ops_posix);
	if (base)
		assert_int_equal(toy_commit(&t, root, 1), 0);
	t.record = f.record = io_record_new(root);
	if (base)
		io_record_promise(f.record, 1);
	if (fail_sync)
		io_faults_fail(&f, IO_ON_SYNC, fail_sync, -EIO, false);
	t.mistake = mistake;
	for (int step = base ? 2 : 1; step <= TOY_STEPS; step++) {
		if (toy_commit(&t, root, step))
			break;
	}
	rc = io_crash_states(f.record, &o, toy_check, NULL, ret_states);
	io_record_free(f.record);
	(void)close(root);
	return rc;
}

TEST(the_right_protocol_survives_every_crash_state)
{
	uint64_t states;

	assert_int_equal(crash_run(NO_MISTAKE, false, 0, &states), 0);
	assert_true(states > 150);
	assert_int_equal(crash_run(NO_MISTAKE, true, 0, &states), 0);
	assert_true(states > 80);
}

TEST(the_right_protocol_survives_a_failed_sync_anywhere)
{
	for (uint64_t n = 1; n <= 4; n++)
		assert_int_equal(crash_run(NO_MISTAKE, true, n, NULL), 0);
}

TEST(each_classical_mistake_is_found)
{
	for (enum mistake m = NO_MISTAKE + 1; m < MISTAKES; m++) {
		print_message("mistake %d\n", (int)m);
		assert_int_equal(crash_run(m, false, m == SYNC_RETRIED ? 1 : 0, NULL), 1);
	}
}

/* Every call fails once, and once for ever: the commit says so, and what was there before stays. */
TEST(a_failing_call_fails_the_commit_and_harms_nothing_older)
{
	const uint32_t on[] = { IO_ON_OPEN,  IO_ON_WRITE, IO_ON_SYNC,	  IO_ON_RENAME,
				IO_ON_MKDIR, IO_ON_CLOSE, IO_ON_TRUNCATE, IO_ON_FALLOCATE };
	uint64_t hits = 0;

	for (size_t i = 0; i < 2 * ARRAY_LEN(on); i++) {
		for (uint64_t n = 1;; n++) {
			struct io_faults f;
			struct toy t = { .ops = &f.ops };
			struct io_crash promised = { .promise = 1 };
			int root = live_fresh(), rc;

			io_faults_init(&f, &io_ops_posix);
			assert_int_equal(toy_commit(&t, root, 1), 0);
			io_faults_fail(&f, on[i / 2], n, -ENOSPC, i % 2);
			rc = toy_commit(&t, root, 2);
			assert_int_equal(toy_check(NULL, root, &promised), 0);
			(void)close(root);
			if (!io_faults_hit(&f)) {
				assert_int_equal(rc, 0);
				break;
			}
			hits++;
			/* the toy does not look at the close of a directory it has synced */
			if (on[i / 2] != IO_ON_CLOSE)
				assert_int_equal(rc, -ENOSPC);
		}
	}
	assert_true(hits > 20);
}

TEST(dead_at_any_call_nothing_torn_is_visible)
{
	uint64_t n;

	for (n = 1;; n++) {
		struct io_faults f;
		struct toy t = { .ops = &f.ops };
		struct io_crash promised = { .promise = 1 };
		int root = live_fresh(), rc;

		io_faults_init(&f, &io_ops_posix);
		assert_int_equal(toy_commit(&t, root, 1), 0);
		io_faults_kill(&f, n);
		rc = toy_commit(&t, root, 2);
		assert_int_equal(toy_check(NULL, root, &promised), 0);
		if (!io_faults_hit(&f)) {
			assert_int_equal(rc, 0);
			assert_true(step_visible(root, 2));
			(void)close(root);
			break;
		}
		assert_int_equal(rc, -EIO);
		assert_int_equal(f.ops.mkdir(f.ops.ctx, root, "after", 0700), -EIO);
		assert_int_equal(faccessat(root, "after", F_OK, 0), -1);
		assert_int_equal(f.ops.size(f.ops.ctx, root, &(uint64_t){ 0 }), -EIO);
		(void)close(root);
	}
	/* mkdir, twice (create, fallocate, write, truncate, sync), sync, rename, sync: 14 deaths */
	assert_int_equal(n, 15);
}

TEST(a_short_write_is_really_short)
{
	struct io_faults f;
	uint8_t buf[10000] = { 1 };
	int root = live_fresh(), fd;

	io_faults_init(&f, &io_ops_posix);
	fd = f.ops.open(f.ops.ctx, root, "f", O_RDWR | O_CREAT, 0600);
	io_faults_short(&f, 2);
	assert_int_equal(f.ops.pwrite(f.ops.ctx, fd, buf, 10000, 0), 10000);
	assert_int_equal(f.ops.pwrite(f.ops.ctx, fd, buf, 10000, 10000), 4096);
	assert_int_equal(f.ops.pwrite(f.ops.ctx, fd, buf, 10000, 14096), 10000);
	io_faults_short(&f, 1);
	assert_int_equal(f.ops.pwrite(f.ops.ctx, fd, buf, 1, 0), 0);
	io_faults_short(&f, 1);
	assert_int_equal(f.ops.pwrite(f.ops.ctx, fd, buf, 5, 0), 2);
	assert_int_equal(f.ops.close(f.ops.ctx, fd), 0);
	(void)close(root);
}

/* The model itself, on a run that is small enough to list all its states. */
struct listing {
	uint32_t n;
	char line[64][64];
};

static int listing_each(void *arg, int root, const struct io_crash *at)
{
	struct listing *l = arg;
	char text[64] = "";
	struct stat st;

	for (int i = 0; i < 2; i++) {
		const char *name = i ? "new" : "old";
		uint8_t got[1024] = { 0 };
		cleanup_close int fd = openat(root, name, O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		if (fstat(fd, &st) || pread(fd, got, sizeof(got), 0) < 0)
			return -EIO;
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s=%d:%d%d ",
			       name, (int)st.st_size, got[0], got[512]);
	}
	for (uint32_t i = 0; i < l->n; i++) {
		if (strcmp(l->line[i], text) == 0)
			return 0;
	}
	(void)snprintf(l->line[l->n++], sizeof(text), "%s", text);
	return l->n == ARRAY_LEN(l->line);
}

static bool listed(const struct listing *l, const char *text)
{
	for (uint32_t i = 0; i < l->n; i++) {
		if (strcmp(l->line[i], text) == 0)
			return true;
	}
	return false;
}

/* Create old; write 1024 bytes; rename it to new; no sync at all. */
static struct listing listing_run(void)
{
	struct io_faults f;
	struct io_crash_opts o = { .seed = 1 };
	struct listing l = { .n = 0 };
	uint8_t buf[1024];
	int root = live_fresh(), fd;

	memset(buf, 1, sizeof(buf));
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(root);
	fd = f.ops.open(&f, root, "old", O_RDWR | O_CREAT, 0600);
	assert_int_equal(f.ops.pwrite(&f, fd, buf, 1024, 0), 1024);
	assert_int_equal(f.ops.rename(&f, root, "old", "new"), 0);
	assert_int_equal(f.ops.close(&f, fd), 0);
	assert_int_equal(io_crash_states(f.record, &o, listing_each, &l, NULL), 0);
	io_record_free(f.record);
	(void)close(root);
	return l;
}

TEST(a_rename_may_come_before_the_data_and_a_name_not_at_all)
{
	struct listing l = listing_run();

	assert_true(listed(&l, ""));		 /* nothing */
	assert_true(listed(&l, "old=0:00 "));	 /* the first name, no data */
	assert_true(listed(&l, "old=1024:11 ")); /* as if all had been in order */
	assert_true(listed(&l, "new=0:00 "));	 /* the rename before the data */
	assert_true(listed(&l, "new=1024:00 ")); /* the size before the bytes */
	assert_true(listed(&l, "new=512:10 "));	 /* torn */
	assert_true(listed(&l, "new=1024:10 ")); /* torn, grown */
	assert_true(listed(&l, "new=1024:11 "));
	for (uint32_t i = 0; i < l.n; i++) /* a rename is atomic */
		assert_false(strstr(l.line[i], "old") && strstr(l.line[i], "new"));
}

static int last_mark_each(void *arg, int root, const struct io_crash *at)
{
	return at->promise == 7 ? listing_each(arg, root, at) : 0;
}

TEST(what_is_synced_stays)
{
	struct io_faults f;
	struct io_crash_opts o = { .seed = 2, .nrandom = 50 };
	struct listing l = { .n = 0 };
	uint8_t buf[1024];
	int root = live_fresh(), fd;

	memset(buf, 1, sizeof(buf));
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(root);
	fd = f.ops.open(&f, root, "old", O_RDWR | O_CREAT, 0600);
	assert_int_equal(f.ops.pwrite(&f, fd, buf, 1024, 0), 1024);
	assert_int_equal(f.ops.sync(&f, fd), 0);
	assert_int_equal(f.ops.rename(&f, root, "old", "new"), 0);
	assert_int_equal(f.ops.sync(&f, root), 0);
	io_record_promise(f.record, 7);
	assert_int_equal(io_crash_states(f.record, &o, last_mark_each, &l, NULL), 0);
	assert_int_equal(l.n, 1);
	assert_string_equal(l.line[0], "new=1024:11 ");
	assert_int_equal(f.ops.close(&f, fd), 0);
	io_record_free(f.record);
	(void)close(root);
}

/*
 * Two writes and a sync at once: the sync does not cover a write that has not ended when it begins.
 */
struct slow {
	struct io_faults *f;
	int fd;
	bool synced;
};

static int64_t slow_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct slow *s = ctx;

	if (!s->synced) {
		s->synced = true;
		if (s->f->ops.sync(s->f, s->fd))
			return -EIO;
	}
	return io_ops_posix.pwrite(NULL, fd, buf, len, off);
}

static int lost_each(void *arg, int root, const struct io_crash *at)
{
	uint8_t got = 0;
	int fd = openat(root, "f", O_RDONLY | O_CLOEXEC);

	if (at->promise && fd >= 0 && pread(fd, &got, 1, 0) != 1)
		*(bool *)arg = true;
	if (fd >= 0)
		(void)close(fd);
	return 0;
}

TEST(a_sync_does_not_cover_a_write_in_flight)
{
	struct io_ops under = io_ops_posix;
	struct io_faults f;
	struct slow s = { .f = &f };
	struct io_crash_opts o = { .seed = 3 };
	bool lost = false;
	cleanup_close int root = live_fresh();

	under.ctx = &s;
	under.pwrite = slow_pwrite;
	io_faults_init(&f, &under);
	f.record = io_record_new(root);
	s.fd = f.ops.open(&f, root, "f", O_RDWR | O_CREAT, 0600);
	assert_int_equal(f.ops.sync(&f, root), 0);
	assert_int_equal(f.ops.pwrite(&f, s.fd, "x", 1, 0),
			 1); /* a sync begins and ends inside it */
	io_record_promise(f.record, 1);
	assert_int_equal(io_crash_states(f.record, &o, lost_each, &lost, NULL), 0);
	assert_true(lost);
	assert_int_equal(f.ops.close(&f, s.fd), 0);
	io_record_free(f.record);
}

/* Hard links, unlinked names and what was there before the recording come out as they were. */
static int links_each(void *arg, int root, const struct io_crash *at)
{
	struct stat a, b;

	if (at->promise != 1)
		return 0;
	++*(uint32_t *)arg;
	if (fstatat(root, "sub/one", &a, 0) || fstatat(root, "two", &b, 0))
		return 1;
	if (a.st_ino != b.st_ino || a.st_size != 5 || faccessat(root, "base", F_OK, 0) == 0)
		return 2;
	return 0;
}

TEST(links_and_what_was_there_before_are_in_the_model)
{
	struct io_faults f;
	struct io_crash_opts o = { .seed = 4, .nrandom = 4 };
	uint32_t checked = 0;
	int root = live_fresh(), fd;

	assert_int_equal(mkdirat(root, "sub", 0700), 0);
	fd = openat(root, "sub/one", O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "hello", 5), 5);
	(void)close(fd);
	(void)close(openat(root, "base", O_WRONLY | O_CREAT, 0600));
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(root);
	assert_int_equal(f.ops.link(&f, root, "sub/one", root, "two"), 0);
	assert_int_equal(f.ops.unlink(&f, root, "base", false), 0);
	assert_int_equal(f.ops.sync(&f, root), 0);
	io_record_promise(f.record, 1);
	assert_int_equal(io_crash_states(f.record, &o, links_each, &checked, NULL), 0);
	assert_true(checked > 0);
	io_record_free(f.record);
	(void)close(root);
}

/* --- memory and disk are the same --- */

struct tree {
	const struct io_ops *ops;
	uint64_t sum, path;
	int dirfd;
	uint32_t depth;
	int rc;
};

static uint64_t tree_hash(const struct io_ops *ops, int dirfd, uint64_t path, uint32_t depth);

static int tree_each(void *arg, const char *name, unsigned char d_type)
{
	struct tree *t = arg;
	uint64_t h = memfs_mix(t->path, memfs_hash_bytes(name, strlen(name))), bytes;
	uint8_t buf[16384];
	int fd = t->ops->open(t->ops->ctx, t->dirfd, name, O_RDONLY, 0);

	if (fd < 0)
		return fd;
	if (d_type == DT_DIR) {
		t->sum += memfs_mix(h, 7) + tree_hash(t->ops, fd, h, t->depth + 1);
	} else {
		t->rc = t->ops->size(t->ops->ctx, fd, &bytes);
		if (t->rc == 0 && bytes > sizeof(buf))
			t->rc = -EFBIG;
		if (t->rc == 0)
			t->rc = io_pread_all(t->ops, fd, buf, bytes, 0);
		t->sum += memfs_mix(h, t->rc ? 0 : memfs_hash_bytes(buf, bytes));
	}
	(void)t->ops->close(t->ops->ctx, fd);
	return t->rc;
}

/* What memfs_hash says of such a tree. */
static uint64_t tree_hash(const struct io_ops *ops, int dirfd, uint64_t path, uint32_t depth)
{
	struct tree t = { .ops = ops, .path = path, .dirfd = dirfd, .depth = depth };

	if (depth < 200 && ops->list(ops->ctx, dirfd, tree_each, &t) == 0)
		return t.sum;
	abort();
}

struct trees {
	struct crash_set of;
	uint64_t sum, wrong;
};

static int trees_each(void *arg, int root, const struct io_crash *at)
{
	struct trees *t = arg;
	uint64_t h = memfs_mix(tree_hash(at->ops, root, 1, 0), at->promise);
	struct memfs *fs = at->ops->ctx;

	if (!at->path && memfs_mix(memfs_hash(fs), at->promise) != h)
		t->wrong++;
	if (crash_set_add(&t->of, h))
		t->sum += h;
	return 0;
}

TEST(states_in_memory_are_those_on_the_disk)
{
	struct io_crash_opts o = { .seed = draw_seed(__func__), .nrandom = 8, .ntear = 3 };
	struct trees t[2] = { { .sum = 0 } };
	struct io_faults f;
	struct toy toy = { .ops = &f.ops };
	uint64_t walked;
	cleanup_close int root = live_fresh();

	io_faults_init(&f, &io_ops_posix);
	assert_int_equal(toy_commit(&toy, root, 1), 0);
	toy.record = f.record = io_record_new(root);
	io_faults_fail(&f, IO_ON_SYNC, 2, -EIO, false);
	(void)toy_commit(&toy, root, 2);
	assert_int_equal(toy_commit(&toy, root, 3), 0);
	o.distinct = io_crash_set_new(10000);
	for (int i = 0; i < 2; i++) {
		o.memory = i;
		assert_int_equal(io_crash_states(f.record, &o, trees_each, &t[i], &walked), 0);
	}
	assert_int_equal(walked, t[1].of.n); /* each tree once */
	assert_int_equal(io_crash_set_states(o.distinct), walked);
	assert_int_equal(t[1].wrong, 0);
	assert_true(t[0].of.n > 100);
	assert_int_equal(t[0].of.n, t[1].of.n);
	assert_int_equal(t[0].sum, t[1].sum);
	for (int i = 0; i < 2; i++)
		free(t[i].of.slot);
	io_crash_set_free(o.distinct);
	io_record_free(f.record);
}

#define PAIR_FDS 6

/* A file system in memory, a directory, and what is open in both. */
struct pair {
	const struct io_ops *ops[2];
	int fd[PAIR_FDS][2]; /* 0: the roots */
};

static int64_t pair_call(struct pair *p, int i, uint64_t dice, const char *a, const char *b)
{
	const struct io_ops *o = p->ops[i];
	uint32_t at = (uint32_t)(dice >> 8) % PAIR_FDS;
	int fd = p->fd[at][i];
	uint8_t buf[900] = { 0 };
	uint64_t len = dice >> 60 ? (dice >> 20) % sizeof(buf) : 0, off = (dice >> 32) % 3000;
	int64_t n;
	static const int flags[] = { O_RDWR | O_CREAT | O_EXCL, O_RDWR | O_CREAT, O_RDWR,
				     O_RDONLY | O_DIRECTORY, O_RDWR | O_TRUNC };

	switch (dice % 14) {
	case 0:
	case 1:
		if (at == 0)
			return 0;
		(void)o->close(o->ctx, fd);
		p->fd[at][i] = o->open(o->ctx, p->fd[0][i], a, flags[(dice >> 40) % 5], 0600);
		return MIN(p->fd[at][i], 0);
	case 2:
		memset(buf, (int)(dice >> 50), sizeof(buf));
		return o->pwrite(o->ctx, fd, buf, len, off);
	case 3:
		n = o->pread(o->ctx, fd, buf, len, off);
		return n <= 0 ? n : (int64_t)(memfs_hash_bytes(buf, (uint64_t)n) >> 1);
	case 4:
		return o->truncate(o->ctx, fd, off);
	case 5:
		return off ? o->fallocate(o->ctx, fd, off) : 0;
	case 6:
		return o->mkdir(o->ctx, p->fd[0][i], a, 0700);
	case 7:
	case 8:
		return strcmp(a, b) == 0 ? 0 : o->rename(o->ctx, p->fd[0][i], a, b);
	case 9:
		return o->link(o->ctx, p->fd[0][i], a, p->fd[0][i], b);
	case 10:
	case 11:
		return o->unlink(o->ctx, p->fd[0][i], a, dice >> 50 & 1);
	case 12:
		return o->lock(o->ctx, fd, dice >> 50 & 1);
	default:
		n = o->size(o->ctx, fd, &off);
		return n ? n : (int64_t)off;
	}
}

/* A directory answers some calls with one error here and another there, and nothing depends on
 * it. */
static int64_t pair_blur(int64_t r)
{
	return r < 0 && r != -EEXIST && r != -ENOENT && r != -EAGAIN && r != -ENOTEMPTY ? -EINVAL
											: r;
}

/* A fresh one each time: names that move into each other would make a tree deeper than any of
 * ours. */
static void pair_round(uint64_t seed)
{
	static const char *const name[] = { "a", "b", "c", "a/x", "b/x", "a/y" };
	uint64_t random = seed;
	struct pair p = { .ops = { NULL } };
	struct memfs fs;
	cleanup_close int root = live_fresh();

	memfs_init(&fs);
	p.ops[0] = &fs.ops;
	p.ops[1] = &io_ops_posix;
	for (uint32_t i = 1; i < PAIR_FDS; i++)
		p.fd[i][0] = p.fd[i][1] = -1;
	p.fd[0][0] = memfs_open_root(&fs);
	p.fd[0][1] = root;
	for (uint32_t n = 0; n < 500; n++) {
		uint64_t dice = crash_random(&random), names = crash_random(&random);
		const char *a = name[names % ARRAY_LEN(name)];
		const char *b = name[(names >> 8) % ARRAY_LEN(name)];
		int64_t r[2] = { pair_call(&p, 0, dice, a, b), pair_call(&p, 1, dice, a, b) };

		if (pair_blur(r[0]) != pair_blur(r[1]))
			fail_msg("call %u (%u %s %s, seed %llu): %lld in memory, %lld on the disk",
				 n, (unsigned)(dice % 14), a, b, (unsigned long long)seed,
				 (long long)r[0], (long long)r[1]);
		if (n % 20 == 0 && memfs_hash(&fs) != tree_hash(&io_ops_posix, root, 1, 0))
			fail_msg("before call %u (seed %llu) the trees differ", n + 1,
				 (unsigned long long)seed);
	}
	for (uint32_t i = 1; i < PAIR_FDS; i++)
		if (p.fd[i][1] >= 0)
			(void)close(p.fd[i][1]);
	memfs_free(&fs);
}

TEST(a_file_system_in_memory_answers_as_a_real_one)
{
	uint64_t seed = draw_seed(__func__);

	for (uint64_t i = 0; i < 40; i++)
		pair_round(seed + i);
}

UNIT(.group_setup = dir_open, .group_teardown = dir_close);
