/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_lock.c - who may take a step away. Used by the whole room.
 * Two locks, both advisory:
 *	of a step	shared: I read it, or label it; exclusive: I remove it
 *	of the line	shared: I remove a step of it; exclusive: I set steps aside
 * Each is the lock of an open directory, the step's or the job's, which only processes of this host
 * see; and a range of the bytes of .ckptd/lock-steps, which all hosts see. That file is made where a
 * file system may be shared with other hosts, stays empty, and is never replaced or removed: so
 * whoever finds it locks the same one. Byte 0 is the line. A step of number N has the bytes 2+2N
 * and 3+2N: who reads step-N locks both, because it may be set aside meanwhile; who reads an
 * .old-N the second; who keeps step-N, while others go, the first; who removes one locks that of
 * its name.
 * A reader leaves a file besides, where other hosts may not see its lock (store_reading.c).
 * Order: the step first, and a directory before its bytes. Only who sets aside and who has claimed
 * wait, and hold no other lock then.
 * Invariant: who has a step locked under a name has looked, after locking, that the name leads to
 * it.
 */
#include <fcntl.h>
#include <unistd.h>
#include "ckpt/store/store_impl.h"

#define LOCK_FILE STORE_CLAIMS "/" STORE_LOCK_FILE
/* Who may read a store but not write to it locks its steps for reading; who may write, as well. The
 * umask and the directory above narrow it. */
#define LOCK_MODE 0664
/* A removal holds it for two calls and a sync. A try on a network takes time, too. */
#define LINE_WAIT_NS (10 * NS_PER_S)
#define LINE_NAP_NS (2 * NS_PER_MS)
#define LINE_NAPS_MAX (LINE_WAIT_NS / LINE_NAP_NS)
#define STEPS_APART (UINT64_C(1) << 60) /* above it numbers share bytes, which excludes too much */

/* --- what belongs to a directory's descriptor --- */

struct held {
	struct held *next;
	const struct io_ops *ops;
	int fd, file; /* file: .ckptd/lock-steps, locked; -1: none */
	struct store_reading *reading;
};

static struct {
	pthread_mutex_t lock; /* protects all below */
	struct held *first;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct held *held_take(int fd)
{
	struct held **p = &all.first, *h;

	(void)pthread_mutex_lock(&all.lock);
	while (*p && (*p)->fd != fd)
		p = &(*p)->next;
	h = *p;
	if (h)
		*p = h->next;
	(void)pthread_mutex_unlock(&all.lock);
	return h;
}

static void held_end(struct held *h)
{
	if (!h)
		return;
	store_reading_end(h->reading);
	if (h->file >= 0)
		(void)h->ops->close(h->ops->ctx, h->file);
	free(h);
}

/* Takes the file and the reading. */
static int held_add(const struct io_ops *ops, int fd, int file, struct store_reading *reading)
{
	struct held *h = NULL;

	if (file < 0 && !reading)
		return 0;
	held_end(held_take(fd)); /* of a descriptor that was closed without us */
	h = malloc(sizeof *h);
	if (!h) {
		store_reading_end(reading);
		if (file >= 0)
			(void)ops->close(ops->ctx, file);
		return -ENOMEM;
	}
	*h = (struct held){ .ops = ops, .fd = fd, .file = file, .reading = reading };
	(void)pthread_mutex_lock(&all.lock);
	h->next = all.first;
	all.first = h;
	(void)pthread_mutex_unlock(&all.lock);
	return 0;
}

void store_unlock(const struct io_ops *ops, int fd)
{
	if (fd < 0)
		return;
	held_end(held_take(fd));
	(void)ops->close(ops->ctx, fd);
}

void store_step_close(int fd)
{
	if (fd < 0)
		return;
	held_end(held_take(fd));
	(void)close(fd);
}

static void held_end_later(void *h)
{
	held_end(h);
}

void store_step_leave(int fd)
{
	struct held *h;

	if (fd < 0)
		return;
	h = held_take(fd);
	(void)close(fd);
	if (h)
		store_later(held_end_later, h);
}

void store_unlock_name(int fd)
{
	held_end(held_take(fd));
}

/* --- the file --- */

/* What keeps a reader from its lock for as long as the store is as it is; no shortage. */
static bool is_refused(int r)
{
	return r == -ENOENT || r == -EACCES || r == -EPERM || r == -EROFS || r == -ELOOP ||
	       r == -EISDIR || r == -EINVAL || r == -ENXIO;
}

static int file_make(const struct store *s, bool must)
{
	const struct io_ops *ops = s->ops;
	const int flags = O_RDWR | O_CREAT | O_NONBLOCK;
	int r, fd = ops->open(ops->ctx, s->job_fd, LOCK_FILE, flags, LOCK_MODE);

	if (fd != -ENOENT || !must)
		return fd;
	r = store_claims_make(s);
	return r ? r : ops->open(ops->ctx, s->job_fd, LOCK_FILE, flags, LOCK_MODE);
}

/* -ENOENT: there is none, and none is needed, or nobody can make one. write: an exclusive lock
 * needs that. O_NONBLOCK: what lies there may be a FIFO. */
static int file_open(const struct store *s, bool write)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, LOCK_FILE, O_RDWR | O_NONBLOCK, 0);
	uint64_t bytes;

	if (fd == -ENOENT && io_shared(ops, s->job_fd))
		fd = file_make(s, write);
	if (!write && (fd == -EACCES || fd == -EPERM || fd == -EROFS))
		fd = ops->open(ops->ctx, s->job_fd, LOCK_FILE, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	r = ops->size(ops->ctx, fd, &bytes);
	if (!r)
		return fd;
	(void)ops->close(ops->ctx, fd);
	return r;
}

/* -ENOENT: what readers leave is all that other hosts have. */
static int file_lock(const struct store *s, uint64_t at, uint64_t n, enum io_lock how, int *ret)
{
	const struct io_ops *ops = s->ops;
	int r, fd = file_open(s, how == IO_LOCK_EXCLUSIVE);

	*ret = -1;
	if (fd < 0)
		return fd;
	r = MUTANT(LOCKS_OF_ONE_HOST) ? 0 : io_lock_bytes(ops, fd, at, n, how);
	if (!r)
		*ret = fd;
	else
		(void)ops->close(ops->ctx, fd);
	return r == -EOPNOTSUPP ? -ENOENT : r;
}

/* --- a step --- */

enum hold { HOLD_READ, HOLD_KEEP, HOLD_REMOVE };

int store_same_check(const struct io_ops *ops, int a, int b)
{
	struct io_stat x, y;
	int r = io_stat(ops, a, &x);

	if (!r)
		r = io_stat(ops, b, &y);
	if (r)
		return r == -EOPNOTSUPP ? 0 : r;
	return x.dev == y.dev && x.ino == y.ino ? 0 : -ESTALE;
}

int store_hold_check(const struct store *s, const char *dir, int fd)
{
	const struct io_ops *ops = s->ops;
	int r, now = ops->open(ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);

	if (now < 0)
		return now;
	r = store_same_check(ops, now, fd);
	(void)ops->close(ops->ctx, now);
	return r;
}

/* Trash has no readers, and what is being collected none but its launch. */
static int step_bytes_lock(const struct store *s, const struct store_name *name, enum hold how,
			   int *ret)
{
	uint64_t at = 2 + 2 * (name->step % STEPS_APART);
	enum io_lock type = how == HOLD_REMOVE ? IO_LOCK_EXCLUSIVE : IO_LOCK_SHARED;
	int r;

	*ret = -1;
	if (!(name->kind & (STORE_STEP | STORE_OLD)))
		return 0;
	if (name->kind == STORE_OLD)
		r = file_lock(s, at + 1, 1, type, ret);
	else
		r = file_lock(s, at, how == HOLD_READ ? 2 : 1, type, ret);
	/* An .old-N of its number is going at this moment: who reads step-N holds that name. */
	if (r == -EAGAIN && name->kind == STORE_STEP && how == HOLD_READ)
		r = file_lock(s, at, 1, type, ret);
	if (r == -ENOENT || (how != HOLD_REMOVE && is_refused(r)))
		return 0;
	return r;
}

/* Locks what belongs to fd, the directory, besides. */
static int hold_more(const struct store *s, const char *dir, enum hold how, int fd)
{
	const struct io_ops *ops = s->ops;
	struct store_reading *reading = NULL;
	struct store_name name;
	int file, r;

	store_name_parse(dir, &name);
	r = step_bytes_lock(s, &name, how, &file);
	if (r)
		return r;
	if (how != HOLD_REMOVE && name.kind & (STORE_STEP | STORE_OLD))
		reading = store_reading_begin(s, name.step);
	return held_add(ops, fd, file, reading);
}

static int hold(const struct store *s, const char *dir, enum hold how, int *ret_fd)
{
	const struct io_ops *ops = s->ops;
	bool exclusive = how == HOLD_REMOVE;
	int r = -ESTALE;

	*ret_fd = -1;
	for (uint32_t i = 0; r == -ESTALE && i < STORE_TRIES_MAX; i++) {
		int fd = ops->open(ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);

		if (fd < 0)
			return fd;
		r = MUTANT(READERS_NOT_LOCKED) ? 0 : ops->lock(ops->ctx, fd, exclusive);
		if (r == -EOPNOTSUPP && !exclusive)
			r = 0;
		if (!r)
			r = hold_more(s, dir, how, fd);
		if (!r && !MUTANT(LOCKED_NAME_UNCHECKED))
			r = store_hold_check(s, dir, fd);
		if (!r)
			*ret_fd = fd;
		else
			store_unlock(ops, fd);
	}
	return r;
}

int store_hold(const struct store *s, const char *dir, bool exclusive, int *ret_fd)
{
	return hold(s, dir, exclusive ? HOLD_REMOVE : HOLD_READ, ret_fd);
}

int store_hold_keep(const struct store *s, const char *dir, int *ret_fd)
{
	return hold(s, dir, HOLD_KEEP, ret_fd);
}

/* --- the line --- */

static int line_try(const struct store *s, bool exclusive, int *ret_fd)
{
	const struct io_ops *ops = s->ops;
	int file, r, fd = ops->open(ops->ctx, s->job_fd, ".", O_RDONLY | O_DIRECTORY, 0);

	*ret_fd = -1;
	if (fd < 0)
		return fd;
	r = MUTANT(LINE_NOT_LOCKED) ? 0 : ops->lock(ops->ctx, fd, exclusive);
	if (!r) {
		r = file_lock(s, 0, 1, exclusive ? IO_LOCK_EXCLUSIVE : IO_LOCK_SHARED, &file);
		r = r == -ENOENT ? 0 : r;
		if (!r)
			r = held_add(ops, fd, file, NULL);
	}
	if (!r)
		*ret_fd = fd;
	else
		store_unlock(ops, fd);
	return r;
}

int store_line_lock(const struct store *s, bool exclusive, bool wait, int *ret_fd)
{
	uint64_t begin = now_ns();
	int r = line_try(s, exclusive, ret_fd);

	for (uint32_t i = 0; r == -EAGAIN && wait && i < LINE_NAPS_MAX &&
			     elapsed_ns(begin, now_ns()) < LINE_WAIT_NS;
	     i++) {
		struct timespec nap = { .tv_nsec = LINE_NAP_NS };

		(void)nanosleep(&nap, NULL);
		r = line_try(s, exclusive, ret_fd);
	}
	return r == -EOPNOTSUPP && exclusive ? 0 : r;
}

bool store_line_busy(const struct store *s)
{
	int fd, r = file_lock(s, 0, 1, IO_LOCK_ASK, &fd);

	if (fd >= 0)
		(void)s->ops->close(s->ops->ctx, fd);
	return r == -EAGAIN;
}

int store_claim_wait(const struct store *s, struct ckpt_err *err)
{
	int fd, r = store_line_lock(s, false, true, &fd);

	if (!r)
		store_unlock(s->ops, fd);
	if (r == -EAGAIN)
		return ckpt_error(err, -EBUSY,
				  "job %s: a launch before this one sets steps aside and does not "
				  "end; is it stopped? end it",
				  s->job);
	return r && r != -EOPNOTSUPP
		       ? store_fail(err, r, "job %s: cannot lock its directory", s->job)
		       : 0;
}
