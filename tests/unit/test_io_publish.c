/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_publish.c - what a person asked for by its path is there with every byte, or not at all:
 * after any failing call, any end of the process, any power loss; and the next run continues, or
 * begins anew.
 */
#include "ckpt/io/publish.h"
#include "ckpt/base/error.h"
#include "ckpt/base/hash.h"
#include "ckpt/io/io_source.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"
#include <sys/file.h>

#define FILES 4
#define LOST UINT32_MAX

static const char *const file_name[FILES] = { "a", "sub/b", "sub/c", "sub/deep/d" };
static char root[256];
static int at; /* it */

static int room_make(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	(void)snprintf(root, sizeof root, "%s/ckpt-publish-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(root))
		return -1;
	at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return at < 0;
}

static int room_remove(void **state)
{
	(void)state;
	(void)close(at);
	return io_tree_remove(AT_FDCWD, root);
}

static uint32_t descriptors(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static bool there(const char *name)
{
	return !faccessat(at, name, F_OK, AT_SYMLINK_NOFOLLOW);
}

static void file_put(const char *name, const char *text)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(close(fd), 0);
}

static bool file_is(const char *name, const char *text)
{
	char got[200] = { 0 };
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof got - 1);

	if (fd >= 0)
		(void)close(fd);
	return n >= 0 && !strcmp(got, text);
}

struct names {
	char text[400];
	uint32_t n;
};

static int name_add(void *arg, const char *name, unsigned char d_type)
{
	struct names *x = arg;
	size_t n = strlen(x->text);

	(void)d_type;
	(void)snprintf(x->text + n, sizeof x->text - n, "%s ", name);
	x->n++;
	return 0;
}

static void assert_alone(const char *name)
{
	struct names x = { 0 };

	assert_int_equal(io_ops_posix.list(NULL, at, name_add, &x), 0);
	if (x.n != (*name != 0) || (*name && !there(name)))
		fail_msg("\"%s\" is not alone: %s", name, x.text);
}

static struct publish_opts opts_of(const char *name)
{
	static char path[600];

	(void)snprintf(path, sizeof path, "%s/%s", root, name);
	return (struct publish_opts){ .ops = &io_ops_posix, .path = path, .mode = 0644 };
}

/* --- a run that another continues --- */

struct note {
	uint64_t seq, done;
	struct hash128 hash; /* of the above */
};

static void content_make(uint32_t i, uint8_t *buf, uint64_t *ret_len)
{
	*ret_len = 700 * (i + 1) + 13;
	for (uint64_t k = 0; k < *ret_len; k++)
		buf[k] = (uint8_t)(k * 31 + i * 7 + 1);
}

/* The newer journal that is complete. */
static int note_find(struct publish *p, struct note *ret, struct ckpt_err *err)
{
	*ret = (struct note){ 0 };
	for (uint32_t i = 0; i < PUBLISH_JOURNALS; i++) {
		cleanup_free void *bytes = NULL;
		struct note n;
		uint64_t len;
		int rc = publish_journal(p, i, 4096, &bytes, &len, err);
		struct hash128 h;

		if (rc == -ENOENT)
			continue;
		if (rc)
			return rc;
		if (len != sizeof n)
			continue;
		memcpy(&n, bytes, sizeof n);
		h = hash128(&n, 16);
		if (!memcmp(&h, &n.hash, sizeof h) && n.seq > ret->seq)
			*ret = n;
	}
	return 0;
}

static int file_write(const struct publish_opts *o, struct publish *p, uint32_t i,
		      struct ckpt_err *err)
{
	uint8_t buf[8192];
	bool direct = i % 2;
	uint64_t len;
	int fd, rc;

	content_make(i, buf, &len);
	/* more than there is: it is cut at the end */
	rc = publish_file(p, o->dir ? file_name[i] : "", 4096, &direct, &fd, err);
	if (rc)
		return rc;
	if (fcntl(fd, F_GETFL) >= 0 && direct)
		(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
	rc = io_pwrite_all(o->ops, fd, buf, len, 0);
	if (!rc)
		rc = io_pwrite_all(o->ops, fd, "behind", 6, len + 10);
	if (rc) {
		(void)o->ops->close(o->ops->ctx, fd);
		return ckpt_error(err, rc, "write");
	}
	return publish_file_end(p, o->dir ? file_name[i] : "", fd, len, err);
}

struct ran {
	uint32_t from; /* the file that it began with; LOST: nothing was begun */
	bool keep;
	struct io_record
		*record; /* NULL, or where what is noted is promised: files that are done */
};

static int run_with(const struct publish_opts *o, struct publish *p, struct ran *ran,
		    struct ckpt_err *err)
{
	struct note n = { 0 };
	uint32_t nfile = o->dir ? FILES : 1;
	int rc = o->resume ? note_find(p, &n, err) : 0;

	/* As a caller does: before the first byte. */
	if (!rc && !n.seq && o->resume) {
		rc = publish_clear(p, err);
		n.seq = 1;
		n.hash = hash128(&n, 16);
		rc = rc ? rc : publish_note(p, n.seq % PUBLISH_JOURNALS, &n, sizeof n, err);
	}
	ran->from = (uint32_t)n.done;
	for (uint32_t i = (uint32_t)n.done; i < nfile && !rc; i++) {
		rc = file_write(o, p, i, err);
		if (rc || !o->resume)
			continue;
		n.seq++;
		n.done = i + 1;
		n.hash = hash128(&n, 16);
		rc = publish_note(p, n.seq % PUBLISH_JOURNALS, &n, sizeof n, err);
		if (!rc && ran->record)
			io_record_promise(ran->record, n.done);
	}
	return rc ? rc : publish_commit(p, err);
}

static int run(const struct publish_opts *o, struct ran *ran, struct ckpt_err *err)
{
	struct publish *p;
	int rc = publish_begin(o, 1000, &p, err);

	ran->from = LOST;
	if (rc) {
		assert_null(p);
		return rc;
	}
	rc = run_with(o, p, ran, err);
	publish_end(p, rc && ran->keep);
	return rc;
}

/* 0: absent; 1: complete; -1: anything else. */
static int state_of(const struct io_ops *ops, int dirfd, const char *name, bool dir)
{
	uint32_t nfile = dir ? FILES : 1;
	uint8_t want[8192], got[8192];
	uint64_t len, bytes;
	int fd = ops->open(ops->ctx, dirfd, name, O_RDONLY, 0), rc = 0;

	if (fd < 0)
		return fd == -ENOENT ? 0 : -1;
	(void)ops->close(ops->ctx, fd);
	for (uint32_t i = 0; i < nfile && !rc; i++) {
		char path[100];

		(void)snprintf(path, sizeof path, "%s%s%s", name, dir ? "/" : "",
			       dir ? file_name[i] : "");
		content_make(i, want, &len);
		fd = ops->open(ops->ctx, dirfd, path, O_RDONLY, 0);
		rc = fd < 0 ? fd : ops->size(ops->ctx, fd, &bytes);
		if (!rc && bytes != len)
			rc = -1;
		if (!rc)
			rc = io_pread_all(ops, fd, got, len, 0);
		if (!rc)
			rc = memcmp(want, got, len) != 0;
		if (fd >= 0)
			(void)ops->close(ops->ctx, fd);
	}
	return rc ? -1 : 1;
}

/* --- power loss --- */

struct loss {
	struct publish_opts o;
	uint64_t there, continued, anew;
	uint64_t finished, leftover; /* only the rename was left; only the lock was to be removed */
};

/* Promised when publish_commit has returned; before: the number of files that a journal has. */
#define COMMITTED (FILES + 1)

static int names_left(void *arg, const char *name, unsigned char d_type)
{
	(void)d_type;
	return strcmp(name, arg) != 0;
}

/* A state of the disk: complete, or a second run makes it so; and then nothing else is there. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *crash)
{
	struct loss *x = arg;
	struct publish_opts o = x->o;
	struct ckpt_err err = { 0 };
	struct ran ran = { 0 };
	int was = state_of(crash->ops, dirfd, "dst", o.dir), rc;
	int lock = crash->ops->open(crash->ops->ctx, dirfd, ".dst.ckptctl", O_RDONLY, 0);

	if (lock >= 0)
		(void)crash->ops->close(crash->ops->ctx, lock);
	if (was < 0 || (crash->promise == COMMITTED && !was))
		return 1;
	o.ops = crash->ops;
	o.path = "/dst";
	rc = run(&o, &ran, &err);
	if (was ? rc != -EEXIST : rc != 0) {
		print_error("%d: %s\n", rc, err.msg);
		return 2;
	}
	if (!was && ran.from < crash->promise)
		return 5;
	x->there += was == 1;
	x->leftover += was == 1 && lock >= 0;
	x->continued += !was && ran.from != 0 && ran.from != LOST;
	x->finished += !was && ran.from == (o.dir ? FILES : 1);
	x->anew += !was && !ran.from;
	if (state_of(crash->ops, dirfd, "dst", o.dir) != 1)
		return 3;
	/* What a run leaves that nothing continues has a name of its own. */
	return o.resume && crash->ops->list(crash->ops->ctx, dirfd, names_left, "dst") ? 4 : 0;
}

static void power_lose(bool dir, bool resume)
{
	const struct io_crash_opts how = { .seed = 7, .nrandom = 40, .ntear = 9, .memory = true };
	struct loss x = { .o = opts_of("dst") };
	struct ran ran = { 0 };
	struct ckpt_err err;
	struct io_faults f;
	uint64_t states;

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(at);
	x.o.ops = &f.ops;
	x.o.dir = dir;
	x.o.resume = resume;
	ran.record = f.record;
	assert_ok_err(run(&x.o, &ran, &err), &err);
	io_record_promise(f.record, COMMITTED);
	assert_int_equal(io_crash_states(f.record, &how, after_power_loss, &x, &states), 0);
	print_message("%" PRIu64 " states: %" PRIu64 " there (%" PRIu64 " with the lock), %" PRIu64
		      " continued (%" PRIu64 " finished), %" PRIu64 " begun anew\n",
		      states, x.there, x.leftover, x.continued, x.finished, x.anew);
	assert_true(x.there > 1 && x.anew > 10);
	assert_int_equal(x.continued > x.finished, resume && dir);
	assert_int_equal(x.finished > 0, resume);
	assert_int_equal(x.leftover > 0, resume);
	io_record_free(f.record);
	assert_alone("dst");
}

TEST(a_directory_is_complete_or_continued_after_a_power_loss)
{
	power_lose(true, true);
}

TEST(a_file_is_complete_or_continued_after_a_power_loss)
{
	power_lose(false, true);
}

TEST(a_directory_that_nothing_continues_is_complete_or_absent_after_a_power_loss)
{
	power_lose(true, false);
}

TEST(a_file_that_nothing_continues_is_complete_or_absent_after_a_power_loss)
{
	power_lose(false, false);
}

static int put_is_there(void *arg, int dirfd, const struct io_crash *crash)
{
	char got[4];
	int fd = crash->ops->open(crash->ops->ctx, dirfd, "small", O_RDONLY, 0), rc;

	(void)arg;
	if (fd < 0)
		return crash->promise != 0;
	rc = io_pread_all(crash->ops, fd, got, 4, 0);
	(void)crash->ops->close(crash->ops->ctx, fd);
	return crash->promise && (rc || memcmp(got, "text", 4) != 0);
}

TEST(a_small_file_is_new_and_survives_a_power_loss)
{
	const struct io_crash_opts how = { .seed = 7, .nrandom = 2, .memory = true };
	struct io_faults f;
	uint64_t states;

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(at);
	assert_int_equal(publish_put(&f.ops, at, "small", "text", 4), 0);
	assert_int_equal(io_ops_posix.sync(NULL, at), 0);
	assert_int_equal(f.ops.sync(f.ops.ctx, at), 0);
	io_record_promise(f.record, 1);
	assert_int_equal(publish_put(&f.ops, at, "small", "other", 5), -EEXIST);
	assert_true(file_is("small", "text"));
	assert_int_equal(io_crash_states(f.record, &how, put_is_there, NULL, &states), 0);
	assert_true(states > 5);
	io_record_free(f.record);
}

/* --- calls that fail, processes that end --- */

/* Whatever fails: complete or absent, no descriptor is left, and the next run makes it complete. */
static void calls_fail(bool dir, bool resume, bool keep)
{
	struct publish_opts o = opts_of("dst"), good;
	struct io_faults f;
	uint64_t n, total = 0;

	o.dir = dir;
	o.resume = resume;
	good = o;
	io_faults_init(&f, &io_ops_posix);
	o.ops = &f.ops;
	for (uint32_t k = 0; k < io_fault_kinds_n; k++)
		for (n = 1;; n++, total++) {
			uint32_t before = descriptors();
			struct ran ran = { .keep = keep };
			struct ckpt_err err = { 0 };
			int rc, is;

			io_faults_plan(&f, &io_fault_kinds[k], n);
			rc = run(&o, &ran, &err);
			assert_int_equal(descriptors(), before);
			is = state_of(&io_ops_posix, at, "dst", dir);
			assert_true(is >= 0);
			if (io_fault_kinds[k].harmless)
				assert_int_equal(rc, 0);
			assert_true(rc ? err.msg[0] != 0 : is == 1);
			if (rc && !is && !keep && !io_fault_kinds[k].sticky &&
			    !(io_fault_kinds[k].on & IO_ON_UNLINK))
				assert_alone("");
			if (!is) {
				ran.keep = false;
				assert_ok_err(run(&good, &ran, &err), &err);
				assert_int_equal(state_of(&io_ops_posix, at, "dst", dir), 1);
			} else if (resume) {
				assert_int_equal(run(&good, &ran, &err), -EEXIST);
			}
			if (resume)
				assert_alone("dst");
			assert_int_equal(io_tree_remove(at, "dst"), 0);
			if (!resume)
				for (;;) {
					struct names x = { 0 };

					assert_int_equal(io_ops_posix.list(NULL, at, name_add, &x),
							 0);
					if (!x.n)
						break;
					*strchr(x.text, ' ') = 0;
					assert_non_null(strstr(x.text, ".ckptctl-new"));
					assert_int_equal(io_tree_remove(at, x.text), 0);
				}
			if (!io_faults_hit(&f))
				break;
		}
	print_message("%" PRIu64 " faults\n", total);
	assert_true(total > 100);
}

TEST(any_failing_call_leaves_a_directory_absent_or_complete_and_it_can_be_continued)
{
	calls_fail(true, true, true);
}

TEST(any_failing_call_leaves_nothing_of_a_directory_that_is_given_up)
{
	calls_fail(true, true, false);
}

TEST(any_failing_call_leaves_a_file_absent_or_complete)
{
	calls_fail(false, true, true);
	calls_fail(false, false, false);
}

TEST(a_process_that_ends_at_any_call_is_continued_by_the_next_one)
{
	struct publish_opts o = opts_of("dst"), good;
	uint64_t continued = 0;
	struct io_faults f;

	o.dir = o.resume = true;
	good = o;
	io_faults_init(&f, &io_ops_posix);
	o.ops = &f.ops;
	for (uint64_t n = 1;; n++) {
		struct ckpt_err err = { 0 };
		struct ran ran = { 0 };
		int is;

		io_faults_kill(&f, n);
		(void)run(&o, &ran, &err);
		is = state_of(&io_ops_posix, at, "dst", true);
		assert_true(is >= 0);
		if (!io_faults_hit(&f))
			break;
		assert_int_equal(run(&good, &ran, &err), is ? -EEXIST : 0);
		continued += ran.from != 0 && ran.from != LOST;
		assert_alone("dst");
		assert_int_equal(state_of(&io_ops_posix, at, "dst", true), 1);
		assert_int_equal(io_tree_remove(at, "dst"), 0);
	}
	assert_true(continued > 10);
}

/* --- names --- */

static int begun(const struct publish_opts *o, struct publish **ret, struct ckpt_err *err)
{
	uint32_t before = descriptors();
	int rc = publish_begin(o, 0, ret, err);

	if (rc)
		assert_int_equal(descriptors(), before);
	return rc;
}

TEST(a_path_has_a_directory_and_a_name)
{
	static const struct {
		const char *path, *parent, *base;
	} good[] = { { "a", ".", "a" },	  { "a//", ".", "a" },	   { "/a", "/", "a" },
		     { "//a", "/", "a" }, { "x/y/a", "x/y", "a" }, { "../a/", "..", "a" },
		     { "x//a", "x", "a" } };
	static const char *const bad[] = { "", "/", "//", ".", "..", "x/..", "x/./", "../" };
	struct publish_path at_path;
	struct ckpt_err err;
	char longest[PATH_MAX + 2];

	for (uint32_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(publish_split(good[i].path, &at_path, &err), 0);
		assert_string_equal(at_path.parent, good[i].parent);
		assert_string_equal(at_path.base, good[i].base);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(publish_split(bad[i], &at_path, &err), -EINVAL);
	memset(longest, 'x', sizeof longest);
	longest[sizeof longest - 1] = 0;
	assert_int_equal(publish_split(longest, &at_path, &err), -EINVAL);
	longest[NAME_MAX - 31] = 0;
	assert_int_equal(publish_split(longest, &at_path, &err), -EINVAL);
	longest[NAME_MAX - 32] = 0;
	assert_int_equal(publish_split(longest, &at_path, &err), 0);
}

TEST(the_longest_name_can_be_written)
{
	char name[NAME_MAX];
	struct publish_opts o;
	struct ran ran = { 0 };
	struct ckpt_err err;

	memset(name, 'n', sizeof name);
	name[NAME_MAX - 32] = 0;
	for (uint32_t i = 0; i < 4; i++) {
		o = opts_of(name);
		o.dir = i & 1;
		o.resume = i & 2;
		assert_ok_err(run(&o, &ran, &err), &err);
		assert_alone(name);
		assert_int_equal(io_tree_remove(at, name), 0);
	}
}

TEST(what_exists_is_never_replaced)
{
	static const char *const taken[] = { "file", "full", "link", "fifo" };
	struct publish *p;
	struct ckpt_err err;

	file_put("file", "mine");
	assert_int_equal(mkdirat(at, "full", 0700) | mkdirat(at, "empty", 0700), 0);
	file_put("full/x", "mine");
	assert_int_equal(symlinkat("file", at, "link") | mkfifoat(at, "fifo", 0600), 0);
	for (uint32_t k = 0; k < 4; k++) {
		struct publish_opts o;

		for (uint32_t i = 0; i < ARRAY_LEN(taken); i++) {
			o = opts_of(taken[i]);
			o.dir = k & 1;
			o.resume = k & 2;
			assert_int_equal(begun(&o, &p, &err), -EEXIST);
			assert_non_null(strstr(err.msg, taken[i]));
		}
		o = opts_of("empty");
		o.resume = k & 2;
		assert_int_equal(begun(&o, &p, &err), -EEXIST); /* by a file */
	}
	assert_true(file_is("file", "mine") && file_is("full/x", "mine"));
}

TEST(an_empty_directory_gives_way_to_a_directory)
{
	struct publish_opts o = opts_of("dst");
	struct ran ran = { 0 };
	struct ckpt_err err;

	o.dir = true;
	assert_int_equal(mkdirat(at, "dst", 0700), 0);
	assert_ok_err(run(&o, &ran, &err), &err);
	assert_alone("dst");
	assert_int_equal(state_of(&io_ops_posix, at, "dst", true), 1);
}

static ino_t mount_ino;

static int stat_mounted(void *ctx, int fd, struct io_stat *ret)
{
	int rc = io_ops_posix.stat(ctx, fd, ret);

	ret->dev += ret->ino == mount_ino;
	return rc;
}

TEST(a_mount_point_is_refused_before_anything_is_made)
{
	struct publish_opts o = opts_of("dst");
	struct io_ops ops = io_ops_posix;
	struct publish *p;
	struct ckpt_err err;
	struct stat st;

	assert_int_equal(mkdirat(at, "dst", 0700) | fstatat(at, "dst", &st, 0), 0);
	mount_ino = st.st_ino;
	ops.stat = stat_mounted;
	o.ops = &ops;
	o.dir = true;
	for (uint32_t i = 0; i < 2; i++) {
		o.resume = i;
		assert_int_equal(begun(&o, &p, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "mounted"));
		assert_alone("dst");
	}
}

static int text_publish(const char *name, const char *over, const char *text, const char *meanwhile,
			struct ckpt_err *err)
{
	struct publish_opts o = opts_of(name);
	struct publish *p;
	int fd, rc;

	o.over = over;
	rc = begun(&o, &p, err);
	if (rc)
		return rc;
	rc = publish_file(p, "", 0, NULL, &fd, err);
	if (!rc) {
		assert_int_equal(io_pwrite_all(o.ops, fd, text, strlen(text), 0), 0);
		rc = publish_file_end(p, "", fd, strlen(text), err);
	}
	if (meanwhile)
		file_put(name, meanwhile);
	if (!rc)
		rc = publish_commit(p, err);
	publish_end(p, false);
	return rc;
}

TEST(a_file_that_begins_as_asked_gives_way_and_no_other_does)
{
	struct ckpt_err err;

	assert_ok_err(text_publish("f", "<svg", "<svg 1", NULL, &err), &err);
	assert_alone("f");
	assert_ok_err(text_publish("f", "<svg", "<svg 2", NULL, &err), &err);
	assert_alone("f");
	assert_true(file_is("f", "<svg 2"));
	assert_int_equal(text_publish("f", NULL, "x", NULL, &err), -EEXIST);
	file_put("f", "<sv");
	assert_int_equal(text_publish("f", "<svg", "x", NULL, &err), -EEXIST);
	file_put("f", "");
	assert_int_equal(text_publish("f", "<svg", "x", NULL, &err), -EEXIST);
	file_put("f", "<svg 3");
	assert_int_equal(text_publish("f", "<svg", "<svg 4", "other", &err), -EEXIST);
	assert_non_null(strstr(err.msg, "was not made by ckptctl"));
	assert_true(file_is("f", "other"));
	assert_alone("f");
}

static uint32_t nrename;

static int second_rename_fails(void *ctx, int dirfd, const char *from, const char *to)
{
	return ++nrename == 2 ? -EIO : io_ops_posix.rename(ctx, dirfd, from, to);
}

TEST(a_file_that_gave_way_is_back_if_the_new_one_cannot_have_its_name)
{
	struct publish_opts o = opts_of("f");
	struct io_ops ops = io_ops_posix;
	struct publish *p;
	struct ckpt_err err;
	int fd;

	file_put("f", "<svg 1");
	ops.rename = second_rename_fails;
	o.ops = &ops;
	o.over = "<svg";
	nrename = 0;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_ok_err(publish_file(p, "", 0, NULL, &fd, &err), &err);
	assert_ok_err(publish_file_end(p, "", fd, 0, &err), &err);
	assert_int_equal(publish_commit(p, &err), -EIO);
	publish_end(p, false);
	assert_int_equal(nrename, 3);
	assert_true(file_is("f", "<svg 1"));
	assert_alone("f");
}

TEST(a_name_that_is_taken_meanwhile_stays_and_so_does_what_was_written)
{
	struct ran ran = { 0 };
	struct publish_opts o;
	struct ckpt_err err;
	struct publish *p;

	assert_int_equal(text_publish("f", NULL, "x", "other", &err), -EEXIST);
	assert_alone("f");
	assert_int_equal(unlinkat(at, "f", 0), 0);

	o = opts_of("dst");
	o.dir = o.resume = true;
	assert_ok_err(begun(&o, &p, &err), &err);
	for (uint32_t i = 0; i < FILES; i++)
		assert_ok_err(file_write(&o, p, i, &err), &err);
	assert_ok_err(publish_note(p, 0, "x", 1, &err), &err);
	file_put("dst", "other");
	assert_int_equal(publish_commit(p, &err), -EEXIST);
	assert_non_null(strstr(err.msg, ".dst.ckptctl-new"));
	publish_end(p, true);
	assert_true(file_is("dst", "other"));
	assert_int_equal(state_of(&io_ops_posix, at, ".dst.ckptctl-new", true), 1);
	assert_int_equal(begun(&o, &p, &err), -EEXIST);
	assert_true(there(".dst.ckptctl") && there(".dst.ckptctl-new")); /* that is no leftover */
	assert_int_equal(unlinkat(at, "dst", 0), 0);
	assert_ok_err(run(&o, &ran, &err), &err);
	assert_alone("dst");
}

TEST(two_runs_exclude_each_other)
{
	struct publish_opts o = opts_of("dst");
	struct publish *p, *second;
	struct ckpt_err err;

	o.dir = o.resume = true;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_int_equal(begun(&o, &second, &err), -EBUSY);
	assert_non_null(strstr(err.msg, ".dst.ckptctl is locked"));
	assert_true(there(".dst.ckptctl") && there(".dst.ckptctl-new"));
	publish_end(p, false);
	assert_alone("");
	assert_ok_err(begun(&o, &p, &err), &err);
	publish_end(p, false);
	publish_end(NULL, true);
	assert_alone("");
}

static uint32_t nlock;

/* The run that had the lock ends just before, and removes the directory. */
static int removed_then_locked(void *ctx, int fd, bool exclusive)
{
	if (!nlock++)
		assert_int_equal(unlinkat(at, ".dst.ckptctl", AT_REMOVEDIR), 0);
	return io_ops_posix.lock(ctx, fd, exclusive);
}

TEST(a_lock_on_a_directory_that_was_removed_meanwhile_is_none)
{
	struct publish_opts o = opts_of("dst");
	struct io_ops ops = io_ops_posix;
	struct publish *p, *second;
	struct ckpt_err err;

	ops.lock = removed_then_locked;
	o.ops = &ops;
	o.dir = o.resume = true;
	nlock = 0;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_int_equal(nlock, 2);
	assert_true(there(".dst.ckptctl"));
	assert_int_equal(begun(&o, &second, &err), -EBUSY);
	publish_end(p, false);
	assert_alone("");
}

static int lock_refused(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)fd;
	(void)exclusive;
	return -EOPNOTSUPP;
}

TEST(without_locks_nothing_is_continued)
{
	struct publish_opts o = opts_of("dst");
	struct io_ops ops = io_ops_posix;
	struct publish *p;
	struct ckpt_err err;

	ops.lock = lock_refused;
	o.ops = &ops;
	o.dir = o.resume = true;
	assert_int_equal(begun(&o, &p, &err), -EOPNOTSUPP);
	assert_non_null(strstr(err.msg, "another file system"));
	o.resume = false;
	assert_ok_err(begun(&o, &p, &err), &err);
	publish_end(p, false);
}

TEST(what_is_not_ours_is_not_removed)
{
	struct publish_opts o = opts_of("dst");
	struct publish *p;
	struct ckpt_err err;

	o.dir = o.resume = true;
	assert_int_equal(mkdirat(at, ".dst.ckptctl", 0700), 0);
	file_put(".dst.ckptctl/thesis", "mine");
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "thesis"));
	file_put("dst", "mine");
	assert_int_equal(begun(&o, &p, &err), -EEXIST);
	assert_true(file_is(".dst.ckptctl/thesis", "mine"));
	assert_int_equal(unlinkat(at, ".dst.ckptctl/thesis", 0) | unlinkat(at, "dst", 0), 0);
	file_put(".dst.ckptctl-new", "mine"); /* a file where a directory goes */
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_true(file_is(".dst.ckptctl-new", "mine"));
	assert_int_equal(unlinkat(at, ".dst.ckptctl-new", 0), 0);
	assert_int_equal(unlinkat(at, ".dst.ckptctl", AT_REMOVEDIR), 0);
	assert_int_equal(symlinkat("/tmp", at, ".dst.ckptctl-new"), 0);
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_alone(".dst.ckptctl-new");
	assert_int_equal(unlinkat(at, ".dst.ckptctl-new", 0), 0);
	assert_int_equal(symlinkat("/tmp", at, ".dst.ckptctl"), 0);
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "is not what ckptctl makes"));
	assert_alone(".dst.ckptctl");
	assert_int_equal(unlinkat(at, ".dst.ckptctl", 0), 0);
	o.dir = false; /* what is no file where a file goes */
	assert_int_equal(mkdirat(at, ".dst.ckptctl-new", 0700), 0);
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_alone(".dst.ckptctl-new");
	assert_int_equal(unlinkat(at, ".dst.ckptctl-new", AT_REMOVEDIR), 0);
	assert_int_equal(mkfifoat(at, ".dst.ckptctl-new", 0600), 0);
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_alone(".dst.ckptctl-new");
}

/* Whoever owns the directory, or may write to it, owns the checkpoint that is published from it. */
TEST(what_others_own_or_may_write_is_not_continued)
{
	static const char *const name[] = { ".dst.ckptctl", ".dst.ckptctl-new" };
	struct publish_opts o = opts_of("dst");
	struct publish *p;
	struct ckpt_err err;

	o.resume = true;
	for (uint32_t i = 0; i < 8; i++) {
		const char *at_name = name[i & 1];
		bool owned = i & 2;

		o.dir = i & 4;
		if (owned && geteuid() != 0)
			continue; /* only root gives files away */
		if (o.dir || !(i & 1))
			assert_int_equal(mkdirat(at, at_name, 0700), 0);
		else
			file_put(at_name, "");
		assert_int_equal(owned ? fchownat(at, at_name, 65534, 65534, 0)
				       : fchmodat(at, at_name, 0777, 0),
				 0);
		assert_int_equal(begun(&o, &p, &err), -EINVAL);
		assert_non_null(strstr(err.msg, owned ? "belongs to user 65534"
						      : "can be written by other users"));
		assert_alone(at_name);
		assert_int_equal(unlinkat(at, at_name, o.dir || !(i & 1) ? AT_REMOVEDIR : 0), 0);
		assert_ok_err(begun(&o, &p, &err), &err);
		publish_end(p, false);
	}
}

TEST(without_a_lock_beside_it_what_is_not_empty_is_not_ours)
{
	struct publish_opts o = opts_of("dst");
	struct publish *p;
	struct ckpt_err err;

	o.resume = true;
	file_put(".dst.ckptctl-new", "mine");
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_non_null(strstr(err.msg, ".dst.ckptctl-new is not what ckptctl makes there"));
	assert_true(file_is(".dst.ckptctl-new", "mine"));
	assert_alone(".dst.ckptctl-new");
	file_put(".dst.ckptctl-new", ""); /* killed, or without power, before the first journal */
	assert_ok_err(begun(&o, &p, &err), &err);
	publish_end(p, false);
	o.dir = true;
	assert_int_equal(mkdirat(at, ".dst.ckptctl-new", 0700), 0);
	file_put(".dst.ckptctl-new/thesis", "mine");
	assert_int_equal(begun(&o, &p, &err), -EINVAL);
	assert_true(file_is(".dst.ckptctl-new/thesis", "mine"));
	assert_alone(".dst.ckptctl-new");
	assert_int_equal(unlinkat(at, ".dst.ckptctl-new/thesis", 0), 0);
	assert_ok_err(begun(&o, &p, &err), &err);
	publish_end(p, false);
}

TEST(what_was_there_before_stays_if_it_cannot_begin)
{
	struct publish_opts o = opts_of("dst");
	struct publish *p;
	struct ckpt_err err;

	o.dir = o.resume = true;
	assert_int_equal(mkdirat(at, ".dst.ckptctl", 0700), 0);
	assert_int_equal(mkdirat(at, ".dst.ckptctl-new", 0700), 0);
	file_put(".dst.ckptctl-new/begun", "ours");
	assert_int_equal(publish_begin(&o, UINT64_MAX, &p, &err), -ENOSPC);
	assert_true(file_is(".dst.ckptctl-new/begun", "ours"));
	assert_true(there(".dst.ckptctl"));
	o = opts_of("dst2");
	o.resume = true;
	assert_int_equal(mkdirat(at, ".dst2.ckptctl", 0700), 0);
	file_put(".dst2.ckptctl-new", "ours");
	assert_int_equal(publish_begin(&o, UINT64_MAX, &p, &err), -ENOSPC);
	assert_true(file_is(".dst2.ckptctl-new", "ours"));
	assert_true(there(".dst2.ckptctl"));
	o = opts_of("dst3");
	o.resume = true;
	file_put(".dst3.ckptctl-new", "");
	assert_int_equal(publish_begin(&o, UINT64_MAX, &p, &err), -ENOSPC);
	assert_true(there(".dst3.ckptctl-new"));
	assert_false(there(".dst3.ckptctl"));
}

TEST(a_directory_that_is_missing_is_said_and_where_nothing_may_be_made_nothing_is)
{
	struct publish_opts o = opts_of("no/dst");
	struct publish *p;
	struct ckpt_err err;

	assert_int_equal(begun(&o, &p, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "no directory"));
	file_put("file", "");
	o = opts_of("file/dst");
	assert_int_equal(begun(&o, &p, &err), -ENOENT);
	assert_alone("file");
}

TEST(a_slash_at_the_end_is_of_a_directory)
{
	struct publish_opts o = opts_of("dst/");
	struct publish *p;
	struct ckpt_err err;

	for (uint32_t i = 0; i < 2; i++) {
		o.resume = i;
		assert_int_equal(begun(&o, &p, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "dst/ is not the name of a file"));
		assert_alone("");
	}
	o.dir = true;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_int_equal(publish_commit(p, &err), 0);
	publish_end(p, false);
	assert_alone("dst");
}

static int allow_none(void *arg, int dirfd, const char *left, struct ckpt_err *err)
{
	struct stat st, want;

	assert_int_equal(fstat(dirfd, &st) | fstat(at, &want), 0);
	assert_int_equal(st.st_ino, want.st_ino);
	assert_true(!*left || !strcmp(left, ".dst.ckptctl-new"));
	return ckpt_error(err, -EINVAL, "not %s", (const char *)arg);
}

TEST(the_caller_decides_where_nothing_may_be_made)
{
	struct publish_opts o = opts_of("dst");
	char here[] = "here";
	struct publish *p;
	struct ckpt_err err;

	o.allow = allow_none;
	o.arg = here;
	for (uint32_t i = 0; i < 4; i++) {
		o.dir = i & 1;
		o.resume = i & 2;
		assert_int_equal(begun(&o, &p, &err), -EINVAL);
		assert_string_equal(err.msg, "not here");
	}
	assert_alone("");
}

TEST(too_little_room_is_said_before_a_byte_is_written_and_what_is_there_counts)
{
	struct publish_opts o = opts_of("dst");
	struct io_space space;
	struct publish *p;
	struct ckpt_err err;
	bool direct = true;
	int fd;

	assert_int_equal(io_ops_posix.space(NULL, at, &space), 0);
	for (uint32_t i = 0; i < 4; i++) {
		o.dir = i & 1;
		o.resume = i & 2;
		assert_int_equal(publish_begin(&o, space.free_bytes + (1ull << 40), &p, &err),
				 -ENOSPC);
		assert_alone("");
	}
	/* A sparse file takes none, but it counts as what was written. */
	o.dir = o.resume = true;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_ok_err(publish_file(p, "sub/x", 0, &direct, &fd, &err), &err);
	assert_ok_err(publish_file_end(p, "sub/x", fd, 1ull << 41, &err), &err);
	publish_end(p, true);
	assert_ok_err(publish_begin(&o, space.free_bytes + (1ull << 40), &p, &err), &err);
	publish_end(p, false);
	assert_alone("");
}

TEST(names_of_files_stay_in_the_directory)
{
	static const char *const bad[] = { "",	   "..", "../x", "a/../b",	     "/x",
					   "a//b", "a/", ".",	 "1/2/3/4/5/6/7/8/9" };
	struct publish_opts o = opts_of("dst");
	struct publish *p;
	struct ckpt_err err;
	int fd;

	o.dir = true;
	assert_ok_err(begun(&o, &p, &err), &err);
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_true(publish_file(p, bad[i], 0, NULL, &fd, &err) < 0);
		assert_int_equal(fd, -1);
	}
	publish_end(p, false);
	o.dir = false;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_int_equal(publish_file(p, "x", 0, NULL, &fd, &err), -EINVAL);
	publish_end(p, false);
	assert_alone("");
}

static int open_buffered(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	return flags & O_DIRECT ? -EINVAL : io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(where_direct_writes_are_refused_the_file_is_opened_without)
{
	struct publish_opts o = opts_of("dst");
	struct io_ops ops = io_ops_posix;
	bool direct = true;
	struct publish *p;
	struct ckpt_err err;
	int fd;

	ops.open = open_buffered;
	o.ops = &ops;
	assert_ok_err(begun(&o, &p, &err), &err);
	assert_ok_err(publish_file(p, "", 0, &direct, &fd, &err), &err);
	assert_false(direct);
	assert_ok_err(publish_file_end(p, "", fd, 5, &err), &err);
	publish_end(p, false);
}

TEST(what_is_written_so_far_can_be_read)
{
	struct publish_opts o = opts_of("dst");
	struct source_dir d;
	struct publish *p;
	struct source src;
	struct ckpt_err err;

	for (uint32_t i = 0; i < 2; i++) {
		o.dir = i;
		assert_ok_err(begun(&o, &p, &err), &err);
		assert_ok_err(file_write(&o, p, 0, &err), &err);
		assert_int_equal(publish_source(p, &d), 0);
		assert_int_equal(d.entry != NULL, !o.dir);
		assert_int_equal(d.open(d.ctx, o.dir ? "a" : d.entry, &src), 0);
		assert_int_equal(src.bytes, 713);
		src.close(src.ctx);
		source_end(&d);
		publish_end(p, false);
	}
}

TEST(modes_are_as_asked)
{
	struct publish_opts o = opts_of("dst");
	struct ran ran = { 0 };
	struct ckpt_err err;
	struct stat st;
	mode_t was = umask(022);

	o.dir = o.resume = true;
	o.mode = 0666;
	assert_ok_err(run(&o, &ran, &err), &err);
	(void)umask(was);
	assert_int_equal(fstatat(at, "dst/sub", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(fstatat(at, "dst", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(fstatat(at, "dst/sub/b", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	assert_int_equal(io_tree_remove(at, "dst"), 0);
	o.mode = 0600;
	assert_ok_err(run(&o, &ran, &err), &err);
	assert_int_equal(fstatat(at, "dst", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
}

UNIT(.setup = room_make, .teardown = room_remove);
