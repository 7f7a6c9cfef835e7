/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_source.c - see io_source.h. Called by everything that opens a checkpoint.
 * Invariant: a name is opened beneath the directory, by io_ops.open, which follows no link; only
 * the last component is opened again as a link, where that is asked for, and only when a look at it
 * has shown a regular file.
 */
#include "ckpt/io/io_source.h"
#include "ckpt/base/error.h"
#include "ckpt/base/strmap.h"
#include "ckpt/base/util.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>

/* --- one file --- */

struct file_source {
	const struct io_ops *ops;
	int fd;
};

static int file_source_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct file_source *f = ctx;

	return io_pread_all(f->ops, f->fd, buf, len, off);
}

static void file_source_close(void *ctx)
{
	struct file_source *f = ctx;

	(void)f->ops->close(f->ops->ctx, f->fd);
	free(f);
}

/* "a", "a/b": no component is empty, "." or "..". */
bool source_name_stays(const char *name)
{
	for (const char *p = name;; p++) {
		size_t n = strcspn(p, "/");

		if (n == 0 || (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.'))))
			return false;
		p += n;
		if (!*p)
			return true;
	}
}

static int regular_check(const struct io_ops *ops, int fd, uint64_t *ret_bytes)
{
	int rc = ops->size(ops->ctx, fd, ret_bytes);

	if (rc)
		(void)ops->close(ops->ctx, fd);
	return rc ? rc : fd;
}

/* A link to a device or a fifo is not opened: opening alone may do something to it. */
static int link_open(const struct io_ops *ops, int dirfd, const char *name, int how)
{
	const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
	char parent[PATH_MAX];
	uint64_t bytes;
	int at = dirfd, fd;

	if (slash) {
		if ((size_t)(slash - name) >= sizeof parent)
			return -ENAMETOOLONG;
		snprintf(parent, sizeof parent, "%.*s", (int)(slash - name), name);
		at = ops->open(ops->ctx, dirfd, parent, O_RDONLY | O_DIRECTORY, 0);
		if (at < 0)
			return at;
	}
	fd = io_open_path(ops, at, last, O_PATH);
	if (fd >= 0)
		fd = regular_check(ops, fd, &bytes);
	if (fd >= 0) {
		(void)ops->close(ops->ctx, fd);
		fd = io_open_path(ops, at, last, O_RDONLY | how);
	}
	if (slash)
		(void)ops->close(ops->ctx, at);
	return fd;
}

int source_fd(const struct io_ops *ops, int dirfd, const char *name, uint32_t flags, int how,
	      uint64_t *ret_bytes)
{
	int fd;

	if (!source_name_stays(name))
		return -EINVAL;
	fd = ops->open(ops->ctx, dirfd, name, O_RDONLY | how, 0);
	if (fd == -ELOOP && flags & SOURCE_LINKS)
		fd = link_open(ops, dirfd, name, how);
	if (fd >= 0)
		fd = regular_check(ops, fd, ret_bytes);
	if (fd >= 0 && flags & SOURCE_FRESH)
		io_forget(fd);
	return fd;
}

/* A fifo by that name must not make us wait. */
static int file_open(const struct io_ops *ops, int dirfd, const char *name, uint32_t flags,
		     uint64_t *ret_bytes)
{
	return source_fd(ops, dirfd, name, flags, O_NONBLOCK, ret_bytes);
}

int source_open(const struct io_ops *ops, int dirfd, const char *name, uint32_t flags,
		struct source *ret)
{
	struct file_source *f;
	uint64_t bytes = 0;
	int fd = file_open(ops, dirfd, name, flags, &bytes);

	if (fd < 0)
		return fd;
	f = malloc(sizeof *f);
	if (!f) {
		(void)ops->close(ops->ctx, fd);
		return -ENOMEM;
	}
	*f = (struct file_source){ .ops = ops, .fd = fd };
	*ret = (struct source){
		.ctx = f, .bytes = bytes, .read = file_source_read, .close = file_source_close
	};
	return 0;
}

/* --- a directory --- */

struct dir_source {
	const struct io_ops *ops;
	int fd;
	uint32_t flags;
	char entry[NAME_MAX + 1];
};

static int dir_source_open(void *ctx, const char *name, struct source *ret)
{
	const struct dir_source *d = ctx;

	return source_open(d->ops, d->fd, name, d->flags, ret);
}

struct dir_listing {
	const struct dir_source *dir;
	int fd; /* that is listed */
	source_entry_fn *each;
	void *arg;
};

/* What opening it shows. A directory behind a link is none. */
static enum source_kind entry_kind(const struct dir_listing *l, const char *name)
{
	const struct io_ops *ops = l->dir->ops;
	uint64_t bytes;
	int fd = file_open(ops, l->fd, name, 0, &bytes);

	if (fd == -EISDIR)
		return SOURCE_DIR;
	if (fd == -ELOOP && l->dir->flags & SOURCE_LINKS)
		fd = file_open(ops, l->fd, name, SOURCE_LINKS, &bytes);
	if (fd < 0)
		return SOURCE_OTHER;
	(void)ops->close(ops->ctx, fd);
	return SOURCE_FILE;
}

static int dir_source_entry(void *arg, const char *name, unsigned char d_type)
{
	const struct dir_listing *l = arg;
	bool asks = d_type == DT_UNKNOWN || (d_type == DT_LNK && l->dir->flags & SOURCE_LINKS);

	return l->each(l->arg, name,
		       asks		  ? entry_kind(l, name)
		       : d_type == DT_REG ? SOURCE_FILE
		       : d_type == DT_DIR ? SOURCE_DIR
					  : SOURCE_OTHER);
}

static int dir_source_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	const struct dir_source *d = ctx;
	const struct io_ops *ops = d->ops;
	struct dir_listing l = { .dir = d, .fd = d->fd, .each = each, .arg = arg };
	int rc;

	if (!*sub)
		return ops->list(ops->ctx, d->fd, dir_source_entry, &l);
	if (!source_name_stays(sub))
		return -EINVAL;
	l.fd = ops->open(ops->ctx, d->fd, sub, O_RDONLY | O_DIRECTORY, 0);
	if (l.fd < 0)
		return l.fd;
	rc = ops->list(ops->ctx, l.fd, dir_source_entry, &l);
	(void)ops->close(ops->ctx, l.fd);
	return rc;
}

int source_make(const struct io_ops *ops, int dirfd, const char *entry, uint32_t flags,
		struct source_dir *ret)
{
	struct dir_source *d;

	if (entry && strlen(entry) > NAME_MAX)
		return -ENAMETOOLONG;
	d = malloc(sizeof *d);
	if (!d)
		return -ENOMEM;
	*d = (struct dir_source){ .ops = ops, .fd = dirfd, .flags = flags };
	strcpy(d->entry, entry ? entry : "");
	*ret = (struct source_dir){ .ctx = d,
				    .entry = d->entry[0] ? d->entry : NULL,
				    .open = dir_source_open,
				    .list = dir_source_list };
	return 0;
}

static int path_fail(struct ckpt_err *err, int rc, const char *path)
{
	if (rc == -EINVAL)
		return ckpt_error(err, rc, "%.3000s is neither a directory nor a file", path);
	return ckpt_error_errno(err, -rc, "%.3000s cannot be opened", path);
}

int source_path(const struct io_ops *ops, const char *path, int *ret_fd,
		char ret_entry[NAME_MAX + 1], struct ckpt_err *err)
{
	const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
	int fd = io_open_path(ops, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	char parent[PATH_MAX];
	struct source src;
	int rc;

	ret_entry[0] = 0;
	*ret_fd = fd;
	if (fd >= 0)
		return 0;
	if (fd != -ENOTDIR || !*last || strlen(last) > NAME_MAX)
		return path_fail(err, fd, path);
	snprintf(parent, sizeof parent, "%.*s", slash ? (int)MAX(slash - path, 1) : 1,
		 slash ? path : ".");
	fd = io_open_path(ops, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return path_fail(err, fd, path);
	rc = source_open(ops, fd, last, SOURCE_LINKS, &src);
	if (rc) {
		(void)ops->close(ops->ctx, fd);
		return path_fail(err, rc, path);
	}
	src.close(src.ctx);
	strcpy(ret_entry, last);
	*ret_fd = fd;
	return 0;
}

/* --- what was read --- */

/* What tells one file from another that takes its name. */
struct file_stamp {
	uint64_t bytes, modified_ns, changed_ns, ino;
};

struct watch {
	const struct source_dir *under;
	_Atomic uint64_t sum[2], n; /* each hash is added: the order does not count */
	struct arena arena;
	struct strmap opened;	  /* names */
	struct file_stamp *stamp; /* [opened.map.n], when they were opened first */
	uint32_t cap;
};

struct watched_file {
	struct watch *watch;
	struct source src;
	char name[];
};

static void watch_count(struct watch *w, const char *what, const char *name, uint64_t off,
			uint64_t len, const void *bytes)
{
	uint64_t head[2] = { off, len }, half[2];
	struct hash128_state s;
	struct hash128 h;

	hash128_begin(&s);
	hash128_add(&s, what, strlen(what) + 1);
	hash128_add(&s, name, strlen(name) + 1);
	hash128_add(&s, head, sizeof head);
	hash128_add(&s, bytes, len);
	h = hash128_end(&s);
	memcpy(half, h.b, sizeof half);
	atomic_fetch_add(&w->sum[0], half[0]);
	atomic_fetch_add(&w->sum[1], half[1]);
	atomic_fetch_add(&w->n, 1u);
}

static int watched_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct watched_file *f = ctx;
	int rc = f->src.read(f->src.ctx, buf, len, off);

	if (!rc)
		watch_count(f->watch, "read", f->name, off, len, buf);
	return rc;
}

static void watched_close(void *ctx)
{
	struct watched_file *f = ctx;

	if (f->src.close)
		f->src.close(f->src.ctx);
	free(f);
}

static int stamp_take(const struct io_ops *ops, int fd, uint64_t bytes, struct file_stamp *ret)
{
	struct io_stat st = { 0 };
	int rc = io_stat(ops, fd, &st);

	/* Copying over a file may keep its length and its time (cp -p); when it was changed nobody
	 * can set. */
	*ret = (struct file_stamp){ bytes, st.modified_ns, st.changed_ns, st.ino };
	return rc == -EOPNOTSUPP ? 0 : rc;
}

static int watch_note(struct watch *w, const char *name, const struct source *src)
{
	const struct file_source *f = src->ctx;
	char *copy = arena_str(&w->arena, name);
	uint32_t n;
	int rc = copy ? strmap_add(&w->opened, &w->arena, copy, strlen(copy), &n) : -ENOMEM;

	if (rc <= 0)
		return rc;
	if (!ARRAY_GROW(w->stamp, n, w->cap))
		return -ENOMEM;
	return stamp_take(f->ops, f->fd, src->bytes, &w->stamp[n]);
}

static int watch_open(void *ctx, const char *name, struct source *ret)
{
	struct watch *w = ctx;
	struct watched_file *f = malloc(sizeof *f + strlen(name) + 1);
	int rc = f ? w->under->open(w->under->ctx, name, &f->src) : -ENOMEM;

	if (!rc) {
		rc = watch_note(w, name, &f->src);
		if (rc)
			f->src.close(f->src.ctx);
	}
	if (rc) {
		free(f);
		return rc;
	}
	f->watch = w;
	strcpy(f->name, name);
	*ret = (struct source){
		.ctx = f, .bytes = f->src.bytes, .read = watched_read, .close = watched_close
	};
	return 0;
}

static int watch_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	const struct watch *w = ctx;

	return w->under->list(w->under->ctx, sub, each, arg);
}

int source_watch(const struct source_dir *under, struct source_dir *ret)
{
	struct watch *w = calloc(1, sizeof *w);

	assert(under->open == dir_source_open);
	if (!w)
		return -ENOMEM;
	w->under = under;
	*ret = (struct source_dir){
		.ctx = w, .entry = under->entry, .open = watch_open, .list = watch_list
	};
	return 0;
}

int source_stamp(const struct source_dir *watch, const char *name)
{
	struct watch *w = watch->ctx;
	const struct dir_source *d = w->under->ctx;
	uint32_t n = strmap_find(&w->opened, name, strlen(name));
	struct file_stamp x;
	uint64_t bytes;
	int fd = file_open(d->ops, d->fd, name, d->flags & SOURCE_LINKS, &bytes), rc;

	if (fd < 0)
		return fd;
	rc = stamp_take(d->ops, fd, bytes, &x);
	(void)d->ops->close(d->ops->ctx, fd);
	if (rc)
		return rc;
	if (n != KEYMAP_NONE && memcmp(&x, &w->stamp[n], sizeof x))
		return -ESTALE;
	watch_count(w, "file", name, 0, sizeof x, &x);
	return 0;
}

struct hash128 source_watched(const struct source_dir *watch)
{
	struct watch *w = watch->ctx;
	uint64_t all[3] = { atomic_load(&w->sum[0]), atomic_load(&w->sum[1]), atomic_load(&w->n) };

	return hash128(all, sizeof all);
}

void source_end(struct source_dir *d)
{
	struct watch *w = d->open == watch_open ? d->ctx : NULL;

	if (w) {
		arena_free(&w->arena);
		free(w->stamp);
	}
	free(TAKE(d->ctx));
	d->entry = NULL;
}
