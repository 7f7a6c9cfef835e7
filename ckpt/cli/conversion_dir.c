/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_dir.c - see conversion_dir.h. Called by conversion.c. Invariant: only names of our own
 * kinds are ever removed, and only under the lock.
 */
#include "ckpt/cli/conversion_dir.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/destination.h"
#include "ckpt/io/publish.h"
#include "formats/native/native.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#define SUFFIX ".ckptctl-partial"
#define RACES_MAX 16 /* other runs that finish between our open and our lock */

void partial_journal_name(uint64_t seq, char ret[16])
{
	snprintf(ret, 16, "journal-%u", (unsigned)(seq % PARTIAL_JOURNALS));
}

static bool is_ours(const char *name)
{
	size_t n = strlen(name);
	char journal[16];

	for (uint32_t i = 0; i < PARTIAL_JOURNALS; i++) {
		partial_journal_name(i, journal);
		if (!strcmp(name, journal))
			return true;
	}
	return !strcmp(name, NATIVE_MANIFEST) ||
	       (name[0] == 'w' && n > 5 && !strcmp(name + n - 5, ".part"));
}

/* --- finding and locking it --- */

static bool same_inode(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int path_split(struct partial *p, const char *dst, struct publish_place *d,
		      struct ckpt_err *err)
{
	size_t max = NAME_MAX - sizeof SUFFIX;
	int rc = publish_split(dst, d, err);

	if (rc)
		return rc;
	if (strlen(d->base) > max)
		return ckpt_error(err, -EINVAL, "%s: its name may have at most %zu bytes", dst,
				  max);
	strcpy(p->base, d->base);
	snprintf(p->name, sizeof p->name, ".%s" SUFFIX, p->base);
	if (!strchr(dst, '/'))
		snprintf(p->path, sizeof p->path, "%s", p->name);
	else
		snprintf(p->path, sizeof p->path, "%s%s%s", d->parent,
			 strcmp(d->parent, "/") ? "/" : "", p->name);
	return 0;
}

/* Stores call a step's directory so. */
static bool names_step(const char *base, uint64_t *ret_step)
{
	char again[NAME_MAX + 1];
	char *end;

	if (strncmp(base, "step-", 5) != 0 || base[5] < '0' || base[5] > '9')
		return false;
	*ret_step = strtoull(base + 5, &end, 10);
	snprintf(again, sizeof again, "step-%012" PRIu64, *ret_step);
	return !*end && !strcmp(again, base);
}

static int dst_check(const struct partial *p, const char *dst, const struct stat *src,
		     struct ckpt_err *err)
{
	struct stat st;

	if (fstatat(p->parent_fd, p->base, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0
				       : ckpt_error_errno(err, errno, "%s cannot be examined", dst);
	if (same_inode(&st, src))
		return ckpt_error(
			err, -EINVAL,
			"%s is the checkpoint itself: give a path that does not exist yet", dst);
	return ckpt_error(
		err, -EINVAL,
		"%s exists already and was not changed: give a path that does not exist yet", dst);
}

static int lock_failed(struct partial *p, int error, struct ckpt_err *err)
{
	if (error != EWOULDBLOCK)
		return ckpt_error_errno(
			err, error,
			"%s cannot be locked, so two runs could not exclude each other; give a "
			"place on another file system",
			p->path);
	/* Whoever was quicker has it now, also where we made it. */
	p->made = false;
	return ckpt_error(err, -EBUSY,
			  "another ckptctl writes to the same place now (%s is locked)", p->path);
}

/* Open and lock; 1: it was another directory by then, try again. */
static int lock_try(struct partial *p, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	struct stat held, named;
	int rc = ops->mkdir(ops->ctx, p->parent_fd, p->name, 0700);

	if (rc && rc != -EEXIST)
		return ckpt_error_errno(err, -rc, "%s cannot be made", p->path);
	p->made = !rc;
	rc = ops->open(ops->ctx, p->parent_fd, p->name, O_RDONLY | O_DIRECTORY, 0);
	if (rc == -ENOENT)
		return 1;
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "%s cannot be opened", p->path);
	p->fd = rc;
	if (flock(p->fd, LOCK_EX | LOCK_NB))
		return lock_failed(p, errno, err);
	if (!fstat(p->fd, &held) && !fstatat(p->parent_fd, p->name, &named, AT_SYMLINK_NOFOLLOW) &&
	    same_inode(&held, &named))
		return 0;
	(void)ops->close(ops->ctx, TAKE_FD(p->fd));
	return 1;
}

static int check_entry(void *arg, const char *name, unsigned char d_type)
{
	(void)d_type;
	if (is_ours(name))
		return 0;
	snprintf(arg, NAME_MAX + 1, "%s", name);
	return 1;
}

int partial_open(const struct io_ops *ops, const char *dst, int src_fd, uint64_t step,
		 struct partial *p, struct ckpt_err *err)
{
	char foreign[NAME_MAX + 1];
	struct publish_place d;
	struct stat src;
	uint64_t named;
	int rc;

	*p = (struct partial){ .ops = ops, .parent_fd = -1, .fd = -1 };
	rc = path_split(p, dst, &d, err);
	if (rc)
		return rc;
	p->parent_fd = open(d.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->parent_fd < 0)
		return ckpt_error_errno(err, errno, "%s cannot be made in %s", dst, d.parent);
	if (fstat(src_fd, &src))
		return ckpt_error_errno(err, errno, "the source cannot be examined");
	rc = destination_check(ops, dst, p->parent_fd, src_fd, err);
	if (rc)
		return rc;
	if (names_step(p->base, &named) && named != step)
		return ckpt_error(err, -EINVAL,
				  "%s is what a store calls its step %" PRIu64 ", and this is step "
				  "%" PRIu64 ": give another name",
				  dst, named, step);
	rc = dst_check(p, dst, &src, err);
	for (uint32_t i = 0; !rc && p->fd < 0; i++) {
		rc = lock_try(p, err);
		if (rc == 1)
			rc = i < RACES_MAX ? 0
					   : ckpt_error(err, -EBUSY,
							"%s appears and disappears again and again",
							p->path);
	}
	/* Whoever had the lock before may have finished. */
	if (!rc)
		rc = dst_check(p, dst, &src, err);
	if (rc < 0)
		return rc;
	rc = ops->list(ops->ctx, p->fd, check_entry, foreign);
	if (rc > 0)
		return ckpt_error(err, -EINVAL,
				  "%s holds %s, which no conversion made: check it, then remove %s",
				  p->path, foreign, p->path);
	return rc ? ckpt_error_errno(err, -rc, "%s cannot be listed", p->path) : 0;
}

void partial_close(struct partial *p)
{
	if (p->fd >= 0)
		(void)p->ops->close(p->ops->ctx, TAKE_FD(p->fd));
	if (p->parent_fd >= 0)
		(void)close(TAKE_FD(p->parent_fd));
}

/* --- files in it --- */

static int remove_entry(void *arg, const char *name, unsigned char d_type)
{
	struct partial *p = arg;
	int rc = is_ours(name) ? p->ops->unlink(p->ops->ctx, p->fd, name, false) : 0;

	(void)d_type;
	return rc == -ENOENT ? 0 : rc;
}

int partial_clear(struct partial *p, struct ckpt_err *err)
{
	int rc = p->ops->list(p->ops->ctx, p->fd, remove_entry, p);

	return rc ? ckpt_error_errno(err, -rc, "%s cannot be emptied", p->path) : 0;
}

void partial_remove(struct partial *p)
{
	if (p->fd < 0 || partial_clear(p, NULL))
		return;
	(void)p->ops->unlink(p->ops->ctx, p->parent_fd, p->name, true);
}

int partial_part_open(struct partial *p, const char *name, bool create, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int flags = O_RDWR | (create ? O_CREAT : 0);
	int fd = ops->open(ops->ctx, p->fd, name, flags | O_DIRECT, 0600);

	if (fd == -EINVAL)
		fd = ops->open(ops->ctx, p->fd, name, flags, 0600);
	return fd < 0 ? ckpt_error_errno(err, -fd, "%s/%s cannot be opened", p->path, name) : fd;
}

int partial_put(struct partial *p, const char *name, const void *bytes, uint64_t len,
		struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int rc = ops->unlink(ops->ctx, p->fd, name, false), fd = -1, closed;

	if (!rc || rc == -ENOENT)
		rc = fd = ops->open(ops->ctx, p->fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd >= 0) {
		rc = io_pwrite_all(ops, fd, bytes, len, 0);
		if (!rc && !MUTANT(JOURNAL_NOT_SYNCED))
			rc = ops->sync(ops->ctx, fd);
		closed = ops->close(ops->ctx, fd);
		rc = rc ? rc : closed;
	}
	if (!rc)
		rc = ops->sync(ops->ctx, p->fd);
	return rc < 0 ? ckpt_error_errno(err, -rc, "%s/%s cannot be written", p->path, name) : 0;
}

int partial_get(struct partial *p, const char *name, uint64_t max, void **ret, uint64_t *ret_len,
		struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int fd = ops->open(ops->ctx, p->fd, name, O_RDONLY, 0), rc;
	cleanup_free void *bytes = NULL;
	uint64_t len = 0;

	if (fd == -ENOENT)
		return fd;
	rc = fd < 0 ? fd : ops->size(ops->ctx, fd, &len);
	if (!rc && len > max)
		rc = -EFBIG;
	if (!rc) {
		bytes = malloc(len + 1);
		rc = bytes ? io_pread_all(ops, fd, bytes, len, 0) : -ENOMEM;
	}
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "%s/%s cannot be read", p->path, name);
	*ret = TAKE(bytes);
	*ret_len = len;
	return 0;
}

int partial_drop(struct partial *p, const char *name, struct ckpt_err *err)
{
	int rc = p->ops->unlink(p->ops->ctx, p->fd, name, false);

	return !rc || rc == -ENOENT
		       ? 0
		       : ckpt_error_errno(err, -rc, "%s/%s cannot be removed", p->path, name);
}

int partial_sync(struct partial *p, struct ckpt_err *err)
{
	int rc = p->ops->sync(p->ops->ctx, p->fd);

	return rc ? ckpt_error_errno(err, -rc, "%s cannot be synced to the disk", p->path) : 0;
}

int partial_publish(struct partial *p, struct ckpt_err *err)
{
	const struct io_ops *ops = p->ops;
	int rc = ops->rename(ops->ctx, p->parent_fd, p->name, p->base);

	if (rc == -EEXIST)
		return ckpt_error(
			err, -EINVAL,
			"another program made %s meanwhile; the converted checkpoint is complete "
			"and stays in %s",
			p->base, p->path);
	if (rc)
		return ckpt_error_errno(err, -rc, "%s cannot be renamed to %s", p->path, p->base);
	rc = MUTANT(CONVERTED_NAME_NOT_SYNCED) ? 0 : ops->sync(ops->ctx, p->parent_fd);
	if (rc)
		return ckpt_error_errno(err, -rc,
					"%s is complete, but the directory around it cannot be "
					"synced: after a power loss it may be missing",
					p->base);
	return 0;
}
