/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.c - see leftover.h. Invariant: what another process has locked is never removed.
 */
#include "ckpt/io/leftover.h"
#include "ckpt/base/util.h"
#include "ckpt/io/publish.h"
#include "ckpt/io/tree.h"
#include <fcntl.h>
#include <stdio.h>

#define NEW PUBLISH_SUFFIX "-new"
#define DRAWN 9 /* bytes of ".1a2b3c4d", the random part of a name without a lock */

struct finding {
	const struct io_ops *ops;
	int fd;
	uint64_t now_ns;
	leftover_fn *fn;
	void *arg;
};

/* Length of a name without its ending; 0: it has another one. */
static size_t without(const char *name, const char *ending)
{
	size_t n = strlen(name), e = strlen(ending);

	return n > e && !strcmp(name + n - e, ending) ? n - e : 0;
}

static bool exists(const struct finding *f, const char *name)
{
	int fd = f->ops->open(f->ops->ctx, f->fd, name, O_PATH, 0);

	if (fd >= 0)
		(void)f->ops->close(f->ops->ctx, fd);
	return fd != -ENOENT;
}

static bool has_journal(const struct io_ops *ops, int lock)
{
	struct io_stat st;
	char name[16];

	for (uint32_t i = 0; i < PUBLISH_JOURNALS; i++) {
		publish_journal_name(i, name);
		if (!io_stat_at(ops, lock, name, &st) && st.bytes)
			return true;
	}
	return false;
}

static enum leftover_is locked_is(const struct finding *f, const struct leftover *x)
{
	const struct io_ops *ops = f->ops;
	int fd = ops->open(ops->ctx, f->fd, x->lock, O_RDONLY | O_DIRECTORY, 0);
	enum leftover_is is = LEFTOVER_UNKNOWN;
	int rc;

	if (fd < 0)
		return is;
	rc = ops->lock(ops->ctx, fd, true);
	if (rc == -EAGAIN)
		is = LEFTOVER_WRITTEN;
	else if (!rc)
		is = has_journal(ops, fd) ? LEFTOVER_UNFINISHED : LEFTOVER_DEAD;
	(void)ops->close(ops->ctx, fd);
	return is;
}

static bool is_drawn(const char *s)
{
	return *s == '.' && strspn(s + 1, "0123456789abcdef") == DRAWN - 1 && !s[DRAWN];
}

/* io_ops.list */
static int entry_judge(void *arg, const char *name, unsigned char d_type)
{
	const struct finding *f = arg;
	struct leftover x = { .is = LEFTOVER_DEAD };
	uint64_t modified_ns;
	size_t n = without(name, NEW), lock = n ? 0 : without(name, PUBLISH_SUFFIX);

	(void)d_type;
	if (name[0] != '.' || n + lock < 2)
		return 0;
	snprintf(x.at, sizeof x.at, "%s", name);
	snprintf(x.becomes, sizeof x.becomes, "%.*s", (int)(n + lock - 1), name + 1);
	snprintf(x.lock, sizeof x.lock, "%.*s" PUBLISH_SUFFIX, (int)(n + lock), name);
	if (lock) {
		char new[NAME_MAX + 1];

		snprintf(new, sizeof new, "%.*s" NEW, (int)lock, name);
		if (exists(f, new)) /* that one has them both */
			return 0;
		x.is = locked_is(f, &x);
		if (x.is == LEFTOVER_UNFINISHED) /* there is nothing to continue */
			x.is = LEFTOVER_DEAD;
	} else if (exists(f, x.lock)) {
		x.is = locked_is(f, &x);
		x.bytes = tree_entry_bytes(f->ops, f->fd, x.lock, NULL);
	} else if (n - 1 > DRAWN && is_drawn(x.becomes + n - 1 - DRAWN)) {
		x.becomes[n - 1 - DRAWN] = x.lock[0] = 0;
	} else {
		x.lock[0] = 0;
	}
	x.bytes += tree_entry_bytes(f->ops, f->fd, x.at, &modified_ns);
	if (!x.lock[0] && modified_ns + LEFTOVER_QUIET_NS > f->now_ns)
		x.is = LEFTOVER_WRITTEN;
	return f->fn(f->arg, &x);
}

int leftovers_find(const struct io_ops *ops, int dirfd, uint64_t now_ns, leftover_fn *fn, void *arg)
{
	struct finding f = { .ops = ops, .fd = dirfd, .now_ns = now_ns, .fn = fn, .arg = arg };

	return ops->list(ops->ctx, dirfd, entry_judge, &f);
}

static int entry_remove(const struct io_ops *ops, int dirfd, const char *name)
{
	int fd = ops->open(ops->ctx, dirfd, name, O_RDONLY | O_DIRECTORY, 0), rc;

	if (fd == -ENOTDIR)
		return ops->unlink(ops->ctx, dirfd, name, false);
	if (fd < 0)
		return fd;
	rc = tree_empty(ops, fd, false);
	(void)ops->close(ops->ctx, fd);
	return rc ? rc : ops->unlink(ops->ctx, dirfd, name, true);
}

/* The lock goes last: another run waits for it, and takes what lies without it for somebody
 * else's; after a power loss, too. */
int leftover_remove(const struct io_ops *ops, int dirfd, const struct leftover *x)
{
	int lock = -1, rc = 0;

	if (x->lock[0]) {
		lock = ops->open(ops->ctx, dirfd, x->lock, O_RDONLY | O_DIRECTORY, 0);
		rc = lock < 0 ? lock : ops->lock(ops->ctx, lock, true);
		rc = rc == -EAGAIN ? -EBUSY : rc;
	}
	if (!rc && strcmp(x->at, x->lock) != 0)
		rc = entry_remove(ops, dirfd, x->at);
	if (!rc && x->lock[0]) {
		(void)ops->sync(ops->ctx, dirfd);
		rc = entry_remove(ops, dirfd, x->lock);
	}
	if (lock >= 0)
		(void)ops->close(ops->ctx, lock);
	return rc;
}
