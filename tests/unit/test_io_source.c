/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_source.c - names out of metadata stay beneath their directory, links are followed where a
 * person's directory has them and nowhere else, nothing waits; and what was read is one number.
 */
#include "ckpt/io/io_source.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/libc.h"
#include "tests/lib/unit.h"
#include <sys/socket.h>
#include <sys/un.h>

static char path[256];
static int at; /* the directory of a test */
static uint32_t forgotten;

static int forget(int fd, off_t off, off_t bytes, int advice)
{
	assert_true(fcntl(fd, F_GETFD) >= 0);
	forgotten += advice == POSIX_FADV_DONTNEED;
	return 0;
}

static void file_put(const char *name, const char *text)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(close(fd), 0);
}

static void socket_put(const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/%s", at, name);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(close(fd), 0);
}

/* snap/model is a link into blobs, as in Hugging Face's cache. */
static int tree_make(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	forgotten = 0;
	libc_instead.posix_fadvise = forget;
	(void)snprintf(path, sizeof path, "%s/ckpt-source-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(path))
		return -1;
	at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0 || mkdirat(at, "blobs", 0700) || mkdirat(at, "snap", 0700) ||
	    mkdirat(at, "snap/sub", 0700))
		return -1;
	file_put("blobs/1", "one");
	file_put("blobs/2", "two!");
	file_put("snap/plain", "plain");
	file_put("snap/sub/deep", "deep");
	socket_put("snap/socket");
	return mkfifoat(at, "snap/fifo", 0600) || symlinkat("../blobs/1", at, "snap/model") ||
	       symlinkat("../../blobs/2", at, "snap/sub/model") ||
	       symlinkat("sub", at, "snap/way") || symlinkat("fifo", at, "snap/tofifo") ||
	       symlinkat("/dev/null", at, "snap/todev") || symlinkat("loop", at, "snap/loop") ||
	       symlinkat("away", at, "snap/dangling") || symlinkat("model", at, "snap/twice");
}

static int tree_remove(void **state)
{
	(void)state;
	(void)close(at);
	libc_instead.posix_fadvise = NULL;
	return io_tree_remove(AT_FDCWD, path);
}

static int snap_open(void)
{
	int fd = openat(at, "snap", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static int opened(const struct source_dir *d, const char *name, const char *text)
{
	char got[32] = { 0 };
	struct source src;
	int rc = d->open(d->ctx, name, &src);

	if (rc)
		return rc;
	assert_int_equal(src.bytes, strlen(text));
	assert_int_equal(src.read(src.ctx, got, src.bytes, 0), 0);
	assert_string_equal(got, text);
	assert_int_equal(src.read(src.ctx, got, src.bytes, 1), -ENODATA);
	src.close(src.ctx);
	return 0;
}

TEST(names_that_climb_or_are_empty_in_the_middle_are_refused)
{
	static const char *const bad[] = {
		"",	     "..",    "../blobs/1", "sub/../plain", ".",
		"./plain",   "sub/.", "sub/..",	    "/etc/passwd",  "/",
		"sub//deep", "sub/",  "//plain",    "sub/./deep",   "..//x"
	};
	cleanup_close int fd = snap_open();
	struct source_dir d;

	for (uint32_t flags = 0; flags < 4; flags++) {
		assert_int_equal(source_make(&io_ops_posix, fd, NULL, flags, &d), 0);
		for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
			assert_int_equal(opened(&d, bad[i], ""), -EINVAL);
			if (*bad[i])
				assert_int_equal(d.list(d.ctx, bad[i], NULL, NULL), -EINVAL);
		}
		assert_int_equal(opened(&d, "..plain", ""), -ENOENT);
		assert_int_equal(opened(&d, "sub/...", ""), -ENOENT);
		source_end(&d);
	}
}

TEST(a_directory_of_a_store_gives_regular_files_and_no_links)
{
	cleanup_close int fd = snap_open();
	struct source_dir d;

	assert_int_equal(source_make(&io_ops_posix, fd, "", 0, &d), 0);
	assert_null(d.entry);
	assert_int_equal(opened(&d, "plain", "plain"), 0);
	assert_int_equal(opened(&d, "sub/deep", "deep"), 0);
	assert_int_equal(opened(&d, "none", ""), -ENOENT);
	assert_int_equal(opened(&d, "sub", ""), -EISDIR);
	assert_int_equal(opened(&d, "plain/x", ""), -ENOTDIR);
	assert_int_equal(opened(&d, "fifo", ""), -EINVAL);
	assert_int_equal(opened(&d, "socket", ""), -ENXIO);
	assert_int_equal(opened(&d, "model", ""), -ELOOP);
	assert_int_equal(opened(&d, "sub/model", ""), -ELOOP);
	assert_int_equal(opened(&d, "way/deep", ""), -ELOOP);
	assert_int_equal(opened(&d, "loop", ""), -ELOOP);
	source_end(&d);
}

TEST(with_links_the_last_component_leads_to_a_regular_file_and_to_nothing_else)
{
	cleanup_close int fd = snap_open();
	struct source_dir d;

	assert_int_equal(source_make(&io_ops_posix, fd, "model", SOURCE_LINKS, &d), 0);
	assert_string_equal(d.entry, "model");
	assert_int_equal(opened(&d, "plain", "plain"), 0);
	assert_int_equal(opened(&d, "model", "one"), 0);
	assert_int_equal(opened(&d, "twice", "one"), 0);
	assert_int_equal(opened(&d, "sub/model", "two!"), 0);
	assert_int_equal(opened(&d, "way/deep", ""), -ELOOP); /* in the middle */
	assert_int_equal(opened(&d, "way/model", ""), -ELOOP);
	assert_int_equal(opened(&d, "way", ""), -EISDIR);
	assert_int_equal(opened(&d, "tofifo", ""), -EINVAL);
	assert_int_equal(opened(&d, "todev", ""), -EINVAL);
	assert_int_equal(opened(&d, "loop", ""), -ELOOP);
	assert_int_equal(opened(&d, "dangling", ""), -ENOENT);
	source_end(&d);
}

/* A device is not opened to find out what it is: only looked at. */
static uint32_t really_opened;

static int open_path_counted(void *ctx, int dirfd, const char *name, int flags)
{
	really_opened += !(flags & O_PATH);
	return io_ops_posix.open_path(ctx, dirfd, name, flags);
}

TEST(a_link_to_what_is_no_file_is_not_opened)
{
	cleanup_close int fd = snap_open();
	struct io_ops ops = io_ops_posix;
	struct source_dir d;

	ops.open_path = open_path_counted;
	assert_int_equal(source_make(&ops, fd, NULL, SOURCE_LINKS, &d), 0);
	assert_int_equal(opened(&d, "todev", ""), -EINVAL);
	assert_int_equal(really_opened, 0);
	assert_int_equal(opened(&d, "model", "one"), 0);
	assert_int_equal(really_opened, 1);
	source_end(&d);
	ops.open_path = NULL;
	assert_int_equal(source_make(&ops, fd, NULL, SOURCE_LINKS, &d), 0);
	assert_int_equal(opened(&d, "model", ""), -ELOOP);
	source_end(&d);
}

struct listing {
	char text[300];
};

static int listed(void *arg, const char *name, enum source_kind kind)
{
	struct listing *l = arg;
	size_t n = strlen(l->text);

	(void)snprintf(l->text + n, sizeof l->text - n, "%s=%c ", name,
		       kind == SOURCE_FILE  ? 'f'
		       : kind == SOURCE_DIR ? 'd'
					    : 'o');
	return 0;
}

static int listed_stop(void *arg, const char *name, enum source_kind kind)
{
	(void)arg;
	(void)name;
	return 40 + (int)kind;
}

static void assert_listed(const struct source_dir *d, const char *sub, const char *const *all)
{
	struct listing l = { 0 };
	uint32_t n = 0;

	assert_int_equal(d->list(d->ctx, sub, listed, &l), 0);
	for (; all[n]; n++)
		if (!strstr(l.text, all[n]))
			fail_msg("no %s in %s", all[n], l.text);
	for (const char *p = l.text; (p = strchr(p, '=')); p++)
		n--;
	assert_int_equal(n, 0);
}

static int unknown_entry(void *arg, const char *name, unsigned char d_type)
{
	void **a = arg;

	(void)d_type;
	return ((int (*)(void *, const char *, unsigned char))a[0])(a[1], name, DT_UNKNOWN);
}

static int unknown_list(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	void *a[2] = { (void *)each, arg };

	return io_ops_posix.list(ctx, dirfd, unknown_entry, a);
}

TEST(a_listing_says_what_can_be_opened)
{
	static const char *const store[] = { "plain=f", "sub=d",   "socket=o",	 "fifo=o",
					     "model=o", "way=o",   "tofifo=o",	 "todev=o",
					     "loop=o",	"twice=o", "dangling=o", NULL };
	static const char *const typed[] = { "plain=f", "sub=d",   "socket=o",	 "fifo=o",
					     "model=f", "way=o",   "tofifo=o",	 "todev=o",
					     "loop=o",	"twice=f", "dangling=o", NULL };
	static const char *const sub[] = { "deep=f", "model=f", NULL };
	cleanup_close int fd = snap_open();
	struct io_ops ops = io_ops_posix;
	struct source_dir d;

	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(source_make(&ops, fd, NULL, 0, &d), 0);
		assert_listed(&d, "", store);
		assert_int_equal(d.list(d.ctx, "sub", listed_stop, NULL) >= 40, 1);
		assert_int_equal(d.list(d.ctx, "way", listed, NULL), -ELOOP);
		assert_int_equal(d.list(d.ctx, "plain", listed, NULL), -ENOTDIR);
		assert_int_equal(d.list(d.ctx, "none", listed, NULL), -ENOENT);
		source_end(&d);
		assert_int_equal(source_make(&ops, fd, NULL, SOURCE_LINKS, &d), 0);
		assert_listed(&d, "", typed);
		assert_listed(&d, "sub", sub);
		source_end(&d);
		ops.list = unknown_list;
	}
}

TEST(a_fresh_source_reads_from_the_disk_and_outlives_its_directory)
{
	int fd = snap_open();
	struct source_dir d;
	struct source src;
	char got[8] = { 0 };

	assert_int_equal(source_make(&io_ops_posix, fd, NULL, 0, &d), 0);
	assert_int_equal(opened(&d, "plain", "plain"), 0);
	assert_int_equal(forgotten, 0);
	source_end(&d);
	assert_int_equal(source_make(&io_ops_posix, fd, NULL, SOURCE_FRESH, &d), 0);
	assert_int_equal(opened(&d, "none", ""), -ENOENT);
	assert_int_equal(forgotten, 0);
	assert_int_equal(d.open(d.ctx, "plain", &src), 0);
	assert_int_equal(forgotten, 1);
	source_end(&d);
	(void)close(fd);
	assert_int_equal(src.read(src.ctx, got, 5, 0), 0);
	assert_string_equal(got, "plain");
	src.close(src.ctx);
}

static int found(const char *name, const char *entry)
{
	char typed[400], got[NAME_MAX + 1];
	struct ckpt_err err = { 0 };
	struct stat st, want;
	int fd, rc;

	(void)snprintf(typed, sizeof typed, "%s/%s", path, name);
	rc = source_path(&io_ops_posix, typed, &fd, got, &err);
	if (rc) {
		assert_true(fd < 0);
		assert_non_null(strstr(err.msg, typed));
		return rc;
	}
	assert_string_equal(got, entry);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(close(fd), 0);
	if (!*entry) {
		assert_int_equal(stat(typed, &want), 0);
		assert_int_equal(st.st_ino, want.st_ino);
	}
	return 0;
}

TEST(a_typed_path_is_a_directory_or_a_file_in_one)
{
	char here[PATH_MAX], got[NAME_MAX + 1], longest[NAME_MAX + 30];
	struct ckpt_err err;
	int fd;

	assert_int_equal(found("snap", ""), 0);
	assert_int_equal(found("snap/", ""), 0);
	assert_int_equal(found("snap/way", ""), 0);
	assert_int_equal(found("snap/plain", "plain"), 0);
	assert_int_equal(found("snap/model", "model"), 0);
	assert_int_equal(found("snap/way/deep", "deep"), 0);
	assert_int_equal(found("blobs/../snap/plain", "plain"), 0);
	assert_int_equal(found("snap/plain/", ""), -ENOTDIR);
	assert_int_equal(found("snap/plain/x", ""), -ENOTDIR);
	assert_int_equal(found("none", ""), -ENOENT);
	assert_int_equal(found("snap/fifo", ""), -EINVAL);
	assert_int_equal(found("snap/todev", ""), -EINVAL);
	assert_int_equal(found("snap/loop", ""), -ELOOP);
	memset(longest, 'x', sizeof longest);
	longest[sizeof longest - 1] = 0;
	assert_int_equal(found(longest, ""), -ENAMETOOLONG);
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(chdir(path), 0);
	assert_int_equal(chdir("blobs"), 0);
	assert_int_equal(source_path(&io_ops_posix, "1", &fd, got, &err), 0);
	assert_string_equal(got, "1");
	assert_int_equal(close(fd), 0);
	assert_int_equal(chdir(here), 0);
}

/* --- what was read --- */

/* 0: the file system's; else each file was changed then. */
static uint64_t changed_ns;

static int stat_pinned(void *ctx, int fd, struct io_stat *ret)
{
	int rc = io_ops_posix.stat(ctx, fd, ret);

	if (changed_ns)
		ret->changed_ns = changed_ns;
	return rc;
}

static struct hash128 watched(const char *order)
{
	struct io_ops ops = io_ops_posix;
	cleanup_close int fd = snap_open();
	struct source_dir d, w;
	struct hash128 h;
	struct source src;
	char buf[8];

	ops.stat = stat_pinned;
	assert_int_equal(source_make(&ops, fd, "plain", SOURCE_LINKS, &d), 0);
	assert_int_equal(source_watch(&d, &w), 0);
	assert_string_equal(w.entry, "plain");
	assert_int_equal(opened(&w, "none", ""), -ENOENT);
	for (; *order; order++)
		switch (*order) {
		case 'p':
		case 'q':
			assert_int_equal(w.open(w.ctx, "plain", &src), 0);
			assert_int_equal(src.read(src.ctx, buf, 2, *order == 'p' ? 0 : 2), 0);
			src.close(src.ctx);
			break;
		case 'm':
			assert_int_equal(w.open(w.ctx, "model", &src), 0);
			assert_int_equal(src.read(src.ctx, buf, 3, 0), 0);
			assert_int_equal(src.read(src.ctx, buf, 3, 1), -ENODATA);
			src.close(src.ctx);
			break;
		case 's':
			assert_int_equal(source_stamp(&w, "plain"), 0);
			break;
		case 't':
			assert_int_equal(source_stamp(&w, "model"), 0);
			break;
		case 'x':
			assert_int_equal(source_stamp(&w, "none"), -ENOENT);
			assert_int_equal(source_stamp(&w, "../blobs/1"), -EINVAL);
			assert_int_equal(source_stamp(&w, "fifo"), -EINVAL);
			break;
		default:
			fail();
		}
	h = source_watched(&w);
	source_end(&w);
	source_end(&d);
	return h;
}

static void assert_same(struct hash128 x, struct hash128 y)
{
	assert_memory_equal(x.b, y.b, 16);
}

static void assert_other(struct hash128 x, struct hash128 y)
{
	assert_memory_not_equal(x.b, y.b, 16);
}

TEST(the_order_of_reads_does_not_count_and_what_was_read_does)
{
	struct hash128 all = watched("pqmst");

	assert_same(all, watched("pqmst"));
	assert_same(all, watched("tmxqsp"));
	assert_other(all, watched("pqms"));
	assert_other(all, watched("pmst"));
	assert_other(all, watched("qqmst"));
	assert_other(watched("pq"), watched("s"));
	assert_other(watched("st"), watched("ss"));
	file_put("snap/plain", "Plain");
	assert_other(watched("p"), watched("q"));
}

static void times_set(const char *name, long ns)
{
	const struct timespec t[2] = { { .tv_sec = 1000, .tv_nsec = 5 },
				       { .tv_sec = 1000, .tv_nsec = ns } };

	assert_int_equal(utimensat(at, name, t, 0), 0);
}

TEST(another_content_length_time_or_inode_is_another_source)
{
	struct hash128 was;

	changed_ns = 1;
	times_set("snap/plain", 7);
	was = watched("pqst");
	assert_same(was, watched("pqst"));

	file_put("snap/plain", "pLain");
	times_set("snap/plain", 7);
	assert_other(was, watched("pqst")); /* bytes that were read */
	file_put("snap/plain", "plain");
	times_set("snap/plain", 7);
	assert_same(was, watched("pqst"));

	file_put("snap/plain", "plain.");
	times_set("snap/plain", 7);
	assert_other(was, watched("pqst")); /* a byte more, which nothing read */
	file_put("snap/plain", "plain");
	times_set("snap/plain", 8);
	assert_other(was, watched("pqst"));
	times_set("snap/plain", 7);
	assert_same(was, watched("pqst"));

	file_put("snap/again", "plain");
	times_set("snap/again", 7);
	assert_int_equal(renameat(at, "snap/again", at, "snap/plain"), 0);
	assert_other(was, watched("pqst"));

	/* Written in place, and everything that can be set is as it was. */
	was = watched("pqst");
	changed_ns = 2;
	assert_other(was, watched("pqst"));
	changed_ns = 0;
}

TEST(a_file_that_changed_since_it_was_opened_is_not_stamped)
{
	cleanup_close int fd = snap_open();
	struct source_dir d, w;
	struct source src;

	assert_int_equal(source_make(&io_ops_posix, fd, NULL, SOURCE_LINKS, &d), 0);
	for (uint32_t replaced = 0; replaced < 2; replaced++) {
		assert_int_equal(source_watch(&d, &w), 0);
		assert_int_equal(w.open(w.ctx, "plain", &src), 0);
		src.close(src.ctx);
		assert_int_equal(source_stamp(&w, "plain"), 0);
		if (replaced) {
			file_put("snap/other", "plain");
			assert_int_equal(renameat(at, "snap/other", at, "snap/plain"), 0);
		} else {
			times_set("snap/plain", 9);
		}
		/* Also if what has the name now is opened again. */
		assert_int_equal(w.open(w.ctx, "plain", &src), 0);
		src.close(src.ctx);
		assert_int_equal(source_stamp(&w, "plain"), -ESTALE);
		source_end(&w);
	}
	source_end(&d);
}

TEST(a_stamp_is_of_the_file_behind_a_link)
{
	struct hash128 was = watched("t");

	assert_int_equal(unlinkat(at, "snap/model", 0), 0);
	assert_int_equal(symlinkat("../blobs/2", at, "snap/model"), 0);
	assert_other(was, watched("t"));
}

/* --- faults --- */

static uint32_t descriptors(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST(any_call_that_fails_is_an_error_and_leaves_nothing_open)
{
	struct io_faults f;
	struct ckpt_err err;

	io_faults_init(&f, &io_ops_posix);
	for (uint64_t n = 1;; n++) {
		char typed[300], entry[NAME_MAX + 1];
		uint32_t before = descriptors();
		int fd = -1, rc;
		struct source_dir d = { 0 }, w = { 0 };
		struct source src = { 0 };
		bool hit;

		(void)snprintf(typed, sizeof typed, "%s/snap/model", path);
		io_faults_fail(&f, IO_ON_ANY & ~IO_ON_CLOSE, n, -EIO, false);
		rc = source_path(&f.ops, typed, &fd, entry, &err);
		if (!rc)
			rc = source_make(&f.ops, fd, entry, SOURCE_LINKS | SOURCE_FRESH, &d);
		if (!rc)
			rc = source_watch(&d, &w);
		if (!rc)
			rc = w.open(w.ctx, "sub/model", &src);
		if (!rc)
			rc = source_stamp(&w, "sub/model");
		if (!rc)
			rc = src.read(src.ctx, typed, 3, 0);
		if (!rc)
			rc = w.list(w.ctx, "sub", listed_stop, NULL);
		hit = io_faults_hit(&f);
		io_faults_count(&f, IO_ON_ANY);
		if (src.close)
			src.close(src.ctx);
		source_end(&w);
		source_end(&d);
		if (fd >= 0)
			(void)close(fd);
		assert_int_equal(descriptors(), before);
		if (!hit) {
			assert_true(rc >= 40);
			assert_true(n > 12);
			break;
		}
		assert_true(rc == -EIO || rc >= 40); /* a listing names what it cannot open */
	}
}

UNIT(.setup = tree_make, .teardown = tree_remove);
