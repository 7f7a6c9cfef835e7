/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.c - see publish.h. Called by the engine and by the verbs that write a file.
 * Invariant: one rename, which replaces nothing, makes NAME, after every byte and every name below it
 * is synced. Beside NAME, only what this run or an earlier run made is removed, and under the lock if
 * there is one.
 */
#include "ckpt/io/publish.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/io/io_source.h"
#include "ckpt/io/tree.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

#define NAME_LONGEST (NAME_MAX - 32) /* the names beside NAME are longer, and must fit */
#define RACES_MAX 16 /* other runs that end between our open and our lock; names that are taken */

struct publish {
	const struct io_ops *ops;
	struct publish_path at;
	bool dir, resume, renamed;
	uint32_t mode;
	char over[PUBLISH_OVER_MAX];
	size_t over_len;
	int parent_fd, lock_fd, new_fd; /* -1: not open; new_fd: of a directory */
	bool made, new_made;		/* the lock, what becomes NAME: by this run */
	char lock_name[NAME_MAX + 1], new_name[NAME_MAX + 1];
	char *path, *new_path; /* for sentences */
	bool parent_dirty;     /* a name in the parent is not synced */
	char **dirty; /* directories beneath NAME ("": itself) with names that are not synced */
	uint32_t ndirty;
};

int publish_split(const char *path, struct publish_path *ret, struct ckpt_err *err)
{
	size_t n = strlen(path), base;

	while (n > 1 && path[n - 1] == '/')
		n--;
	if (!n)
		return ckpt_error(err, -EINVAL, "the destination needs a name");
	if (n >= sizeof ret->parent)
		return ckpt_error(err, -EINVAL, "the path of the destination is too long");
	for (base = n; base && path[base - 1] != '/';)
		base--;
	if (n - base > NAME_LONGEST)
		return ckpt_error(err, -EINVAL,
				  "the name of the destination is longer than %u bytes",
				  NAME_LONGEST);
	memcpy(ret->base, path + base, n - base);
	ret->base[n - base] = 0;
	if (base == n || !strcmp(ret->base, ".") || !strcmp(ret->base, ".."))
		return ckpt_error(err, -EINVAL, "%.200s is not a name that can be made", path);
	while (base > 1 && path[base - 1] == '/')
		base--;
	memcpy(ret->parent, path, base);
	ret->parent[base] = 0;
	if (!base)
		strcpy(ret->parent, ".");
	return 0;
}

static int path_fail(const struct publish *p, int rc, const char *what, struct ckpt_err *err)
{
	return ckpt_error_errno(err, -rc, "%.2000s cannot be %s", p->new_path, what);
}

/* --- the name --- */

static int name_taken(const struct publish *p, struct ckpt_err *err)
{
	return ckpt_error(
		err, -EEXIST,
		"%.3000s exists%s and was not changed: give another name, or move it away", p->path,
		p->over_len ? ", was not made by ckptctl," : "");
}

static int entry_found(void *arg, const char *name, unsigned char d_type)
{
	(void)arg;
	(void)name;
	(void)d_type;
	return 1;
}

/* 0: it begins with `over`; 1: it does not; -errno. */
static int begins_otherwise(const struct publish *p)
{
	const struct io_ops *ops = p->ops;
	int fd = ops->open(ops->ctx, p->parent_fd, p->at.base, O_RDONLY | O_NONBLOCK, 0), rc;
	char head[PUBLISH_OVER_MAX];

	if (fd < 0)
		return fd == -EACCES || fd == -EPERM ? 1 : fd;
	rc = io_pread_all(ops, fd, head, p->over_len, 0);
	(void)ops->close(ops->ctx, fd);
	if (rc)
		return rc == -ENODATA ? 1 : rc;
	return memcmp(head, p->over, p->over_len) != 0 && !MUTANT(PUBLISHED_OVER_OTHERS);
}

/* Is the directory another file system than that around it? It never gives way to a rename. */
static bool is_mounted(const struct publish *p, int fd)
{
	struct io_stat in, around;

	return !io_stat(p->ops, fd, &in) && !io_stat(p->ops, p->parent_fd, &around) &&
	       in.dev != around.dev;
}

enum name_is { NAME_FREE, NAME_GIVES_WAY };

/* Nothing is opened but what may give way: a device stays as it is. */
static int name_look(const struct publish *p, enum name_is *ret, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int fd = ops->open(ops->ctx, p->parent_fd, p->at.base, O_PATH, 0), rc;
	bool mounted = false;
	uint64_t bytes;

	*ret = NAME_FREE;
	if (fd == -ENOENT)
		return 0;
	if (fd == -ELOOP)
		return name_taken(p, err);
	if (fd < 0)
		return ckpt_error_errno(err, -fd, "%.3000s cannot be examined", p->path);
	*ret = NAME_GIVES_WAY;
	rc = ops->size(ops->ctx, fd, &bytes);
	if (rc == -EISDIR)
		rc = p->dir ? ops->list(ops->ctx, fd, entry_found, NULL) : 1;
	else if (rc == 0)
		rc = p->over_len ? begins_otherwise(p) : 1;
	else if (rc == -EINVAL)
		rc = 1;
	if (!rc && p->dir)
		mounted = is_mounted(p, fd);
	(void)ops->close(ops->ctx, fd);
	if (rc == 1)
		return name_taken(p, err);
	if (mounted)
		return ckpt_error(err, -EINVAL,
				  "%.2000s is where a file system is mounted, and nothing can be "
				  "renamed to it: give a name in it, as %.1000s/NAME",
				  p->path, p->path);
	return rc ? ckpt_error_errno(err, -rc, "%.3000s cannot be examined", p->path) : 0;
}

/* --- removing --- */

/* Closed as well: from now on the name may be another run's lock. */
static void lock_remove(struct publish *p)
{
	const struct io_ops *ops = p->ops;

	if (p->lock_fd < 0)
		return;
	if (!tree_empty(ops, p->lock_fd, true))
		(void)ops->unlink(ops->ctx, p->parent_fd, p->lock_name, true);
	(void)ops->close(ops->ctx, TAKE_FD(p->lock_fd));
}

/* The new one first, so that it never lies there without the lock, nor after a power loss. */
static void all_remove(struct publish *p)
{
	const struct io_ops *ops = p->ops;
	int rc = 0;

	if (!p->renamed && p->new_name[0]) {
		if (p->new_fd >= 0)
			rc = tree_empty(ops, p->new_fd, false);
		if (!rc)
			rc = ops->unlink(ops->ctx, p->parent_fd, p->new_name, p->dir);
		if (!rc && p->resume)
			(void)ops->sync(ops->ctx, p->parent_fd);
	}
	if (!rc || rc == -ENOENT)
		lock_remove(p);
}

static void publish_free(struct publish *p)
{
	const struct io_ops *ops = p->ops;

	if (p->new_fd >= 0)
		(void)ops->close(ops->ctx, p->new_fd);
	if (p->lock_fd >= 0)
		(void)ops->close(ops->ctx, p->lock_fd);
	if (p->parent_fd >= 0)
		(void)ops->close(ops->ctx, p->parent_fd);
	for (uint32_t i = 0; i < p->ndirty; i++)
		free(p->dirty[i]);
	free(p->dirty);
	free(p->path);
	free(p->new_path);
	free(p);
}

void publish_end(struct publish *p, bool keep)
{
	if (!p)
		return;
	if (!keep || !p->resume)
		all_remove(p);
	publish_free(p);
}

/* --- the lock --- */

void publish_journal_name(uint32_t which, char ret[16])
{
	snprintf(ret, 16, "journal-%u", which);
}

static int lock_entry_check(void *arg, const char *name, unsigned char d_type)
{
	char ours[16];

	for (uint32_t i = 0; i < PUBLISH_JOURNALS; i++) {
		publish_journal_name(i, ours);
		if ((!strcmp(name, ours) && d_type != DT_DIR) || MUTANT(PUBLISH_STRANGERS_REMOVED))
			return 0;
	}
	snprintf(arg, NAME_MAX + 1, "%s", name);
	return 1;
}

static int lock_fail(struct publish *p, int rc, struct ckpt_err *err)
{
	p->made = false; /* it is another run's, also where we made it */
	if (rc == -EAGAIN)
		return ckpt_error(
			err, -EBUSY,
			"another ckptctl writes to the same place now (%.2000s/%s is locked)",
			p->at.parent, p->lock_name);
	return ckpt_error_errno(err, -rc,
				"%.2000s/%s cannot be locked, so two runs could not exclude each "
				"other; give a place on another file system",
				p->at.parent, p->lock_name);
}

/* Beside NAME lies something else by one of our names. */
static int not_ours(const struct publish *p, const char *name, struct ckpt_err *err)
{
	return ckpt_error(err, -EINVAL,
			  "%.2000s/%s is not what ckptctl makes there: check it, then remove it",
			  p->at.parent, name);
}

/* What an earlier run left is ours only if nobody else can have put anything into it. */
static int owner_check(const struct publish *p, int fd, const char *name, struct ckpt_err *err)
{
	struct io_stat st;

	if (io_stat(p->ops, fd, &st) || MUTANT(PUBLISH_INTO_STRANGERS))
		return 0;
	if (st.uid != (uint32_t)geteuid())
		return ckpt_error(
			err, -EINVAL,
			"%.2000s/%s belongs to user %u, not to you: what is written there "
			"would be theirs; remove it, or give another name",
			p->at.parent, name, st.uid);
	if (st.mode & 0022 & ~p->mode)
		return ckpt_error(
			err, -EINVAL,
			"%.2000s/%s can be written by other users (mode %o): check it, then "
			"remove it",
			p->at.parent, name, st.mode);
	return 0;
}

static int dir_open(const struct publish *p, const char *name)
{
	return p->ops->open(p->ops->ctx, p->parent_fd, name, O_RDONLY | O_DIRECTORY, 0);
}

/* Is the directory that we hold still the one of that name? */
static bool lock_is_named(const struct publish *p)
{
	struct io_stat held, named;
	int fd = dir_open(p, p->lock_name);
	bool same = false;

	if (fd < 0)
		return false;
	same = io_stat(p->ops, p->lock_fd, &held) || io_stat(p->ops, fd, &named) ||
	       (held.dev == named.dev && held.ino == named.ino);
	(void)p->ops->close(p->ops->ctx, fd);
	return same;
}

/* Open and lock; 1: it was removed meanwhile, try again. */
static int lock_try(struct publish *p, bool make, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int rc = make ? ops->mkdir(ops->ctx, p->parent_fd, p->lock_name, 0700) : -EEXIST;

	if (rc && rc != -EEXIST)
		return ckpt_error_errno(err, -rc, "%.2000s/%s cannot be made", p->at.parent,
					p->lock_name);
	p->made = !rc;
	rc = dir_open(p, p->lock_name);
	if (rc == -ENOENT)
		return 1;
	if (rc < 0) {
		if (p->made)
			(void)ops->unlink(ops->ctx, p->parent_fd, p->lock_name, true);
		if (rc == -ELOOP || rc == -ENOTDIR)
			return not_ours(p, p->lock_name, err);
		return ckpt_error_errno(err, -rc, "%.2000s/%s cannot be opened", p->at.parent,
					p->lock_name);
	}
	p->lock_fd = rc;
	rc = p->made ? 0 : owner_check(p, p->lock_fd, p->lock_name, err);
	if (rc)
		return rc;
	rc = MUTANT(PUBLISH_UNLOCKED) ? 0 : ops->lock(ops->ctx, p->lock_fd, true);
	if (rc)
		return lock_fail(p, rc, err);
	if (lock_is_named(p) || MUTANT(PUBLISH_LOCK_UNNAMED))
		return 0;
	(void)ops->close(ops->ctx, TAKE_FD(p->lock_fd));
	return 1;
}

static int lock_take(struct publish *p, struct ckpt_err *err)
{
	char foreign[NAME_MAX + 1];
	int rc = 1;

	for (uint32_t i = 0; rc == 1 && i < RACES_MAX; i++)
		rc = lock_try(p, true, err);
	if (rc == 1)
		return ckpt_error(err, -EBUSY, "%.2000s/%s appears and disappears again and again",
				  p->at.parent, p->lock_name);
	if (rc)
		return rc;
	rc = p->ops->list(p->ops->ctx, p->lock_fd, lock_entry_check, foreign);
	if (rc == 1)
		return ckpt_error(
			err, -EINVAL,
			"%.2000s/%s holds %s, which ckptctl did not make: check it, then remove "
			"%.1000s/%s",
			p->at.parent, p->lock_name, foreign, p->at.parent, p->lock_name);
	return rc ? ckpt_error_errno(err, -rc, "%.2000s/%s cannot be listed", p->at.parent,
				     p->lock_name)
		  : 0;
}

/* NAME is there. A lock directory without anything to rename is what a run left that was killed
 * behind its rename. */
static void lock_leftover_remove(struct publish *p)
{
	const struct io_ops *ops = p->ops;
	char foreign[NAME_MAX + 1];
	int fd = ops->open(ops->ctx, p->parent_fd, p->new_name, O_PATH, 0);

	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (fd == -ENOENT && !lock_try(p, false, NULL) &&
	    !ops->list(ops->ctx, p->lock_fd, lock_entry_check, foreign))
		lock_remove(p);
}

/* --- beginning --- */

static uint32_t dir_mode(const struct publish *p)
{
	return p->mode | (p->mode & 0444u) >> 2;
}

static int new_make(struct publish *p, const char *name)
{
	const struct io_ops *ops = p->ops;
	int fd;

	if (p->dir)
		return ops->mkdir(ops->ctx, p->parent_fd, name, dir_mode(p));
	fd = ops->open(ops->ctx, p->parent_fd, name, O_RDWR | O_CREAT | O_EXCL, p->mode);
	return fd < 0 ? fd : ops->close(ops->ctx, fd);
}

/* A directory, which is kept open; or the file that an earlier run left. An earlier run has written
 * to it only beside its lock: if there was none, and it is not empty, it is somebody else's. */
static int new_look(struct publish *p, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int fd = p->dir ? dir_open(p, p->new_name)
			: ops->open(ops->ctx, p->parent_fd, p->new_name, O_RDWR | O_NONBLOCK, 0);
	uint64_t bytes = 0;
	int rc = fd < 0 ? fd : 0;

	if (!rc && p->dir) {
		p->new_fd = fd;
		if (!p->new_made && (rc = owner_check(p, fd, p->new_name, err)))
			return rc;
		rc = p->made && !p->new_made ? ops->list(ops->ctx, fd, entry_found, NULL) : 0;
	} else if (!rc) {
		if ((rc = owner_check(p, fd, p->new_name, err))) {
			(void)ops->close(ops->ctx, fd);
			return rc;
		}
		rc = ops->size(ops->ctx, fd, &bytes);
		(void)ops->close(ops->ctx, fd);
		rc = rc ? rc : p->made && bytes;
	}
	if (rc == -ELOOP || rc == -ENOTDIR || rc == -EISDIR || rc == -EINVAL || rc == -ENXIO ||
	    rc == 1)
		return not_ours(p, p->new_name, err);
	return rc ? path_fail(p, rc, "opened", err) : 0;
}

static int new_open(struct publish *p, struct ckpt_err *err)
{
	char name[NAME_MAX + 1];
	int rc = -EEXIST;

	for (uint32_t i = 0; rc == -EEXIST && i < RACES_MAX; i++) {
		if (p->resume)
			snprintf(name, sizeof name, ".%.*s" PUBLISH_SUFFIX "-new", NAME_LONGEST,
				 p->at.base);
		else
			snprintf(name, sizeof name, ".%.*s.%08x" PUBLISH_SUFFIX "-new",
				 NAME_LONGEST, p->at.base,
				 ((uint32_t)(now_ns() >> 4) ^ (uint32_t)getpid() << 16) + i);
		rc = new_make(p, name);
		p->new_made = !rc;
		if (p->resume && rc == -EEXIST)
			rc = 0;
	}
	if (rc)
		return ckpt_error_errno(err, -rc, "%.3000s cannot be created", p->path);
	strcpy(p->new_name, name);
	p->parent_dirty = true;
	if (asprintf(&p->new_path, "%s%s%s", strcmp(p->at.parent, ".") ? p->at.parent : "",
		     !strcmp(p->at.parent, ".") || !strcmp(p->at.parent, "/") ? "" : "/",
		     name) < 0) {
		p->new_path = NULL;
		return ckpt_error(err, -ENOMEM, "no memory for a path");
	}
	return p->dir || !p->new_made ? new_look(p, err) : 0;
}

/* Where it cannot be known, writing finds out. */
static int need_check(struct publish *p, uint64_t need, struct ckpt_err *err)
{
	struct io_space space;

	if (!need || p->ops->space(p->ops->ctx, p->parent_fd, &space))
		return 0;
	need -= MIN(need, tree_entry_bytes(p->ops, p->parent_fd, p->new_name, NULL));
	if (need <= space.free_bytes)
		return 0;
	return ckpt_error(
		err, -ENOSPC,
		"%.3000s takes %llu MiB more, and %llu MiB are free there: give a place on "
		"another file system, or remove something",
		p->path, (unsigned long long)(need >> 20),
		(unsigned long long)(space.free_bytes >> 20));
}

static int parent_open(struct publish *p, struct ckpt_err *err)
{
	int fd = io_open_path(p->ops, AT_FDCWD, p->at.parent, O_RDONLY | O_DIRECTORY);

	p->parent_fd = fd;
	if (fd == -ENOENT || fd == -ENOTDIR)
		return ckpt_error(err, -ENOENT, "there is no directory %.3000s to write into",
				  p->at.parent);
	return fd < 0 ? ckpt_error_errno(err, -fd, "%.3000s cannot be written into", p->at.parent)
		      : 0;
}

static int publish_open(struct publish *p, const struct publish_opts *o, uint64_t need,
			struct ckpt_err *err)
{
	enum name_is is;
	int rc = parent_open(p, err);

	if (!rc && o->allow)
		rc = o->allow(o->arg, p->parent_fd, p->new_name, err);
	if (!rc)
		rc = name_look(p, &is, err);
	if (rc == -EEXIST && p->resume)
		lock_leftover_remove(p);
	if (!rc && p->resume) {
		rc = lock_take(p, err);
		/* The run that had the lock before may have finished. */
		rc = rc ? rc : name_look(p, &is, err);
	}
	if (!rc)
		rc = new_open(p, err);
	return rc ? rc : need_check(p, need, err);
}

int publish_begin(const struct publish_opts *o, uint64_t need, struct publish **ret,
		  struct ckpt_err *err)
{
	struct publish *p = calloc(1, sizeof *p);
	int rc;

	*ret = NULL;
	if (!p)
		return ckpt_error(err, -ENOMEM, "no memory to write %.3000s", o->path);
	p->ops = o->ops;
	p->dir = o->dir;
	p->resume = o->resume;
	p->mode = o->mode;
	p->parent_fd = p->lock_fd = p->new_fd = -1;
	p->over_len = o->over ? strlen(o->over) : 0;
	assert(p->over_len <= PUBLISH_OVER_MAX);
	memcpy(p->over, o->over ? o->over : "", p->over_len);
	rc = publish_split(o->path, &p->at, err);
	if (!rc && !p->dir && o->path[strlen(o->path) - 1] == '/')
		rc = ckpt_error(err, -EINVAL, "%.200s is not the name of a file", o->path);
	p->path = rc ? NULL : strdup(o->path);
	if (!rc && !p->path)
		rc = ckpt_error(err, -ENOMEM, "no memory to write %.3000s", o->path);
	if (!rc) {
		snprintf(p->lock_name, sizeof p->lock_name, ".%.*s" PUBLISH_SUFFIX, NAME_LONGEST,
			 p->at.base);
		if (p->resume)
			snprintf(p->new_name, sizeof p->new_name, "%.*s-new", NAME_MAX - 4,
				 p->lock_name);
		rc = publish_open(p, o, need, err);
	}
	if (!rc) {
		*ret = p;
		return 0;
	}
	/* What was there stays: an earlier run left it for a later one. */
	if (!p->new_made && !MUTANT(PUBLISH_REMOVES_EARLIER))
		p->new_name[0] = 0;
	if (p->resume ? p->made && p->lock_fd >= 0 : p->parent_fd >= 0)
		all_remove(p);
	publish_free(p);
	return rc;
}

const char *publish_path(const struct publish *p)
{
	return p->new_path;
}

/* --- names and journals --- */

/* Directory `name` (its first `len` bytes; 0: NAME itself) has a new entry. */
static int dirty_add(struct publish *p, const char *name, size_t len)
{
	char **list, *copy;

	for (uint32_t i = 0; i < p->ndirty; i++)
		if (!strncmp(p->dirty[i], name, len) && !p->dirty[i][len])
			return 0;
	copy = strndup(name, len);
	list = copy ? realloc(p->dirty, (p->ndirty + 1) * sizeof *list) : NULL;
	if (!list) {
		free(copy);
		return -ENOMEM;
	}
	p->dirty = list;
	p->dirty[p->ndirty++] = copy;
	return 0;
}

static int dirty_sync(struct publish *p, const char *name)
{
	const struct io_ops *ops = p->ops;
	int fd, rc;

	if (!*name)
		return ops->sync(ops->ctx, p->new_fd);
	fd = ops->open(ops->ctx, p->new_fd, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	rc = ops->sync(ops->ctx, fd);
	(void)ops->close(ops->ctx, fd);
	return rc;
}

static int names_sync(struct publish *p, struct ckpt_err *err)
{
	int rc = 0;

	while (!rc && p->ndirty) {
		rc = MUTANT(PUBLISHED_NAMES_NOT_SYNCED) ? 0
							: dirty_sync(p, p->dirty[p->ndirty - 1]);
		if (!rc)
			free(p->dirty[--p->ndirty]);
	}
	return rc ? path_fail(p, rc, "synced to the disk", err) : 0;
}

int publish_put(const struct io_ops *ops, int dirfd, const char *name, const void *bytes,
		uint64_t len)
{
	int fd = ops->open(ops->ctx, dirfd, name, O_WRONLY | O_CREAT | O_EXCL, 0600), rc, closed;

	if (fd < 0)
		return fd;
	rc = io_pwrite_all(ops, fd, bytes, len, 0);
	if (!rc && !MUTANT(PUT_NOT_SYNCED))
		rc = ops->sync(ops->ctx, fd);
	closed = ops->close(ops->ctx, fd);
	return rc ? rc : closed;
}

int publish_note(struct publish *p, uint32_t which, const void *bytes, uint64_t len,
		 struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	char name[16];
	int rc = names_sync(p, err);

	assert(p->resume && which < PUBLISH_JOURNALS);
	if (rc)
		return rc;
	if (p->parent_dirty && !MUTANT(PUBLISH_HOME_NOT_SYNCED))
		rc = ops->sync(ops->ctx, p->parent_fd);
	p->parent_dirty = rc != 0;
	publish_journal_name(MUTANT(PUBLISH_NOTE_IN_PLACE) ? 0 : which, name);
	if (!rc)
		rc = ops->unlink(ops->ctx, p->lock_fd, name, false);
	if (!rc || rc == -ENOENT)
		rc = publish_put(ops, p->lock_fd, name, bytes, len);
	if (!rc && !MUTANT(PUBLISH_NOTE_NOT_SYNCED))
		rc = ops->sync(ops->ctx, p->lock_fd);
	return rc ? ckpt_error_errno(err, -rc, "%.2000s/%s/%s cannot be written", p->at.parent,
				     p->lock_name, name)
		  : 0;
}

int publish_journal(struct publish *p, uint32_t which, uint64_t max, void **ret, uint64_t *ret_len,
		    struct ckpt_err *err)
{
	cleanup_free void *bytes = NULL;
	struct source src;
	char name[16];
	int rc;

	assert(p->resume && which < PUBLISH_JOURNALS);
	publish_journal_name(which, name);
	rc = source_open(p->ops, p->lock_fd, name, 0, &src);
	if (rc == -ENOENT)
		return rc;
	if (!rc) {
		bytes = src.bytes <= max ? malloc(src.bytes + 1) : NULL;
		rc = src.bytes > max ? -EFBIG
		     : bytes	     ? src.read(src.ctx, bytes, src.bytes, 0)
				     : -ENOMEM;
		src.close(src.ctx);
	}
	if (rc)
		return ckpt_error_errno(err, -rc, "%.2000s/%s/%s cannot be read", p->at.parent,
					p->lock_name, name);
	*ret = TAKE(bytes);
	*ret_len = src.bytes;
	return 0;
}

/* --- files --- */

/* The directories around a name, and that they have something new. */
static int around_make(struct publish *p, const char *name)
{
	const struct io_ops *ops = p->ops;
	int rc = dirty_add(p, "", 0);
	uint32_t depth = 0;

	for (const char *slash = name; !rc && (slash = strchr(slash, '/')); slash++) {
		char sub[PATH_MAX];

		if (++depth >= PUBLISH_DEPTH_MAX || (size_t)(slash - name) >= sizeof sub)
			return -ENAMETOOLONG;
		snprintf(sub, sizeof sub, "%.*s", (int)(slash - name), name);
		rc = ops->mkdir(ops->ctx, p->new_fd, sub, dir_mode(p));
		if (!rc || rc == -EEXIST)
			rc = dirty_add(p, name, (size_t)(slash - name));
	}
	return rc;
}

static int file_fail(const struct publish *p, int rc, const char *name, const char *what,
		     struct ckpt_err *err)
{
	return ckpt_error_errno(err, -rc, "%.2000s%s%.1000s cannot be %s", p->new_path,
				*name ? "/" : "", name, what);
}

int publish_file(struct publish *p, const char *name, uint64_t reserve, bool *direct, int *ret_fd,
		 struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int at = p->dir ? p->new_fd : p->parent_fd, fd = -EINVAL, rc = 0;
	const char *entry = p->dir ? name : p->new_name;

	*ret_fd = -1;
	if (p->dir ? !source_name_stays(name) : *name)
		return ckpt_error(err, -EINVAL, "\"%.300s\" is no name of a file", name);
	if (p->dir)
		rc = around_make(p, name);
	if (rc)
		return file_fail(p, rc, name, "made", err);
	if (direct && *direct)
		fd = ops->open(ops->ctx, at, entry, O_RDWR | O_CREAT | O_DIRECT, p->mode);
	if (fd == -EINVAL || fd == -EOPNOTSUPP) {
		fd = ops->open(ops->ctx, at, entry, O_RDWR | O_CREAT, p->mode);
		if (direct)
			*direct = false;
	}
	if (fd < 0)
		return file_fail(p, fd, name, "opened", err);
	rc = reserve ? ops->fallocate(ops->ctx, fd, reserve) : 0;
	if (rc && rc != -EOPNOTSUPP) {
		(void)ops->close(ops->ctx, fd);
		return file_fail(p, rc, name, "reserved", err);
	}
	*ret_fd = fd;
	return 0;
}

int publish_file_end(struct publish *p, const char *name, int fd, uint64_t bytes,
		     struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int rc = ops->truncate(ops->ctx, fd, bytes), closed;

	if (!rc && !MUTANT(PUBLISHED_NOT_SYNCED))
		rc = ops->sync(ops->ctx, fd);
	closed = ops->close(ops->ctx, fd);
	rc = rc ? rc : closed;
	return rc ? file_fail(p, rc, name, "written", err) : 0;
}

/* The journals first: without one, nothing is continued. */
int publish_clear(struct publish *p, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int rc = 0, fd;

	if (p->lock_fd >= 0)
		rc = tree_empty(ops, p->lock_fd, true);
	if (!rc && p->lock_fd >= 0)
		rc = ops->sync(ops->ctx, p->lock_fd);
	if (!rc && p->dir) {
		rc = tree_empty(ops, p->new_fd, false);
	} else if (!rc) {
		fd = ops->open(ops->ctx, p->parent_fd, p->new_name, O_RDWR | O_TRUNC, 0);
		rc = fd < 0 ? fd : ops->close(ops->ctx, fd);
	}
	while (p->ndirty)
		free(p->dirty[--p->ndirty]);
	return rc ? path_fail(p, rc, "emptied", err) : 0;
}

int publish_source(struct publish *p, struct source_dir *ret)
{
	return source_make(p->ops, publish_fd(p), publish_entry(p), 0, ret);
}

int publish_fd(const struct publish *p)
{
	return p->dir ? p->new_fd : p->parent_fd;
}

const char *publish_entry(const struct publish *p)
{
	return p->dir ? "" : p->new_name;
}

/* --- the rename --- */

/* What gives way goes aside first, for a rename never replaces; and back if that was for nothing.
 * An empty directory is removed, and made again. */
static int way_make(struct publish *p, char aside[NAME_MAX + 1])
{
	const struct io_ops *ops = p->ops;

	if (p->dir)
		return ops->unlink(ops->ctx, p->parent_fd, p->at.base, true);
	snprintf(aside, NAME_MAX + 1, "%.*s.old", NAME_MAX - 4, p->new_name);
	return ops->rename(ops->ctx, p->parent_fd, p->at.base, aside);
}

static int name_give(struct publish *p, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	char aside[NAME_MAX + 1] = "";
	enum name_is is;
	int rc = name_look(p, &is, err);

	if (rc && rc != -EEXIST)
		return rc;
	if (!rc && is == NAME_GIVES_WAY)
		rc = way_make(p, aside);
	if (!rc) {
		rc = ops->rename(ops->ctx, p->parent_fd, p->new_name, p->at.base);
		p->renamed = !rc;
		if (rc && aside[0] && !MUTANT(PUBLISHED_OVER_LOST))
			(void)ops->rename(ops->ctx, p->parent_fd, aside, p->at.base);
		else if (aside[0])
			(void)ops->unlink(ops->ctx, p->parent_fd, aside, false);
		else if (rc && is == NAME_GIVES_WAY)
			(void)ops->mkdir(ops->ctx, p->parent_fd, p->at.base, dir_mode(p));
	}
	if ((rc == -EEXIST || rc == -ENOTEMPTY) && p->resume)
		return ckpt_error(err, -EEXIST,
				  "another program made %.2000s meanwhile; what was written is "
				  "complete and stays in %.2000s",
				  p->path, p->new_path);
	if (rc == -EEXIST || rc == -ENOTEMPTY)
		return name_taken(p, err);
	return rc ? ckpt_error_errno(err, -rc, "%.2000s cannot be renamed to %s", p->new_path,
				     p->at.base)
		  : 0;
}

int publish_commit(struct publish *p, struct ckpt_err *err)
{
	int rc = names_sync(p, err);

	if (!rc)
		rc = name_give(p, err);
	if (rc)
		return rc;
	if (MUTANT(PUBLISH_UNLOCKED_EARLY))
		lock_remove(p);
	rc = MUTANT(PUBLISHED_NAME_NOT_SYNCED) ? 0 : p->ops->sync(p->ops->ctx, p->parent_fd);
	if (rc)
		return ckpt_error_errno(
			err, -rc,
			"%.3000s is complete, but the directory around it cannot be "
			"synced: after a power loss it may be missing",
			p->path);
	lock_remove(p);
	return 0;
}
