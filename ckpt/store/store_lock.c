/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_lock.c - who may take a step away. Used by the whole room.
 * Two locks, both advisory, of an open directory, gone with the process that holds them:
 *	a step's directory	shared: I read it, or label it; exclusive: I remove it
 *	the job's directory	shared: I remove a step of it; exclusive: I set steps aside
 * Order: the step first. Only who sets aside and who has claimed wait, and hold no other lock then.
 * Invariant: who has a step locked under a name has looked, after locking, that the name leads to
 * it.
 */
#include <fcntl.h>
#include "ckpt/store/store_impl.h"

#define LINE_NAPS_MAX 5000 /* ten seconds: a removal holds it for two calls and a sync */
#define LINE_NAP_NS (2 * NS_PER_MS)

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

int store_hold(const struct store *s, const char *dir, bool exclusive, int *ret_fd)
{
	const struct io_ops *ops = s->ops;
	int r = -ESTALE;

	*ret_fd = -1;
	for (uint32_t i = 0; r == -ESTALE && i < STORE_TRIES_MAX; i++) {
		int fd = ops->open(ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);

		if (fd < 0)
			return fd;
		r = MUTANT(READERS_NOT_LOCKED) ? 0 : ops->lock(ops->ctx, fd, exclusive);
		if (r == -EOPNOTSUPP && !exclusive)
			r = 0;
		if (!r && !MUTANT(LOCKED_NAME_UNCHECKED))
			r = store_hold_check(s, dir, fd);
		if (!r)
			*ret_fd = fd;
		else
			(void)ops->close(ops->ctx, fd);
	}
	return r;
}

int store_line_lock(const struct store *s, bool exclusive, bool wait, int *ret_fd)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, ".", O_RDONLY | O_DIRECTORY, 0);

	*ret_fd = -1;
	if (fd < 0)
		return fd;
	r = MUTANT(LINE_NOT_LOCKED) ? 0 : ops->lock(ops->ctx, fd, exclusive);
	for (uint32_t i = 0; r == -EAGAIN && wait && i < LINE_NAPS_MAX; i++) {
		struct timespec nap = { .tv_nsec = LINE_NAP_NS };

		(void)nanosleep(&nap, NULL);
		r = ops->lock(ops->ctx, fd, exclusive);
	}
	if (!r) {
		*ret_fd = fd;
		return 0;
	}
	(void)ops->close(ops->ctx, fd);
	return r == -EOPNOTSUPP && exclusive ? 0 : r;
}

int store_claim_wait(const struct store *s, struct ckpt_err *err)
{
	int fd, r = store_line_lock(s, false, true, &fd);

	if (!r)
		(void)s->ops->close(s->ops->ctx, fd);
	if (r == -EAGAIN)
		return ckpt_error(err, -EBUSY,
				  "job %s: a launch before this one sets steps aside and does not "
				  "end; is it stopped? end it",
				  s->job);
	return r && r != -EOPNOTSUPP
		       ? store_fail(err, r, "job %s: cannot lock its directory", s->job)
		       : 0;
}
