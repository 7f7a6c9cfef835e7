/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_path.c - what a path is to a store. Called by store_resolve, and by ckptctl.
 * The entry name alone says whether a path leads to a step: step-N and .old-... do, wherever they
 * lie. Whatever else lies at a path is not looked into: the formats find out what it is.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include "ckpt/base/mutant.h"
#include "ckpt/io/io_above.h"
#include "ckpt/io/publish.h"
#include "ckpt/store/store_impl.h"

static const char *path_base(const char *abs)
{
	return strrchr(abs, '/') + 1;
}

/* As store_step_open does it, of a path: below its job's directory, or alone where that may not be
 * read. Takes *fd for another one. */
static int path_lock(const struct store *s, const char *abs, int *fd, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r;

	if (s->job_fd >= 0) {
		(void)close(*fd);
		r = store_hold(s, path_base(abs), false, fd);
	} else {
		r = ops->lock(ops->ctx, *fd, false);
		r = r == -EOPNOTSUPP ? 0 : r;
		if (!r) {
			cleanup_close int now = open(abs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

			r = now < 0 ? -errno : store_same_check(ops, now, *fd);
		}
	}
	if (r == -EAGAIN || r == -ENOENT || r == -ESTALE)
		return ckpt_error(err, -ENOENT, "%.300s has gone or is being removed", abs);
	return r ? store_fail(err, r, "cannot lock %.300s for reading", abs) : 0;
}

/* The directory around it, whether it is a job's or not; job_fd -1: it may not be read. */
static void path_home(const char *abs, struct store *s)
{
	char job[PATH_MAX];

	(void)snprintf(job, sizeof job, "%.*s/.", (int)(path_base(abs) - abs) - 1, abs);
	s->job_fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	job[strlen(job) - 2] = 0;
	(void)snprintf(s->job, sizeof s->job, "%.*s", CKPT_JOB_MAX, path_base(job[0] ? job : "/"));
}

/* What lies at a path is what was asked for; but is it what its place says? The name of a step says
 * its number; a directory that ckptd or ckptctl has written to says the rest. */
static void path_judge(const struct store *s, const char *abs, struct store_ref *ret)
{
	const struct io_ops *ops = s->ops;
	struct store_step st;
	int claims, r;

	if (s->job_fd < 0)
		return;
	claims = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	if (claims >= 0) {
		(void)ops->close(ops->ctx, claims);
		r = store_step_judge(s, path_base(abs), &st, NULL);
		r = r ? 0 : st.code;
	} else {
		r = store_step_look(s, path_base(abs), &st);
		r = r || !store_step_has_id(&st) ? 0
						 : store_identity(&st, st.said.job, NULL, st.why);
	}
	if (r == -EUCLEAN)
		(void)snprintf(
			ret->note, sizeof ret->note,
			"%.250s: it is read all the same, and stays without a name in its job",
			st.why);
}

int store_path_find(const struct io_ops *ops, const struct format *format, const char *path,
		    struct store_ref *ret, struct ckpt_err *err)
{
	struct store s = { .ops = ops, .format = format, .root_fd = -1, .job_fd = -1 };
	cleanup_step_close int fd = -1;
	struct store_name x;
	int r;

	if (!realpath(path, ret->path))
		return store_fail(err, -errno, "cannot open %.200s", path);
	store_name_parse(path_base(ret->path), &x);
	if (x.kind == STORE_FOREIGN)
		return 1;
	fd = open(ret->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOTDIR ? 1 : store_fail(err, -errno, "cannot open %.200s", path);
	if (x.kind == STORE_TMP || x.kind == STORE_TRASH)
		return ckpt_error(err, -EUCLEAN,
				  "%.300s is not committed: it is %s; ckptctl ls lists what is",
				  ret->path,
				  x.kind == STORE_TMP ? "still being written, or its writer died"
						      : "being deleted");
	path_home(ret->path, &s);
	r = path_lock(&s, ret->path, &fd, err);
	if (!r) {
		path_judge(&s, ret->path, ret);
		ret->step_fd = TAKE_FD(fd);
	}
	if (s.job_fd >= 0)
		(void)close(s.job_fd);
	return r;
}

int store_path_job(const struct io_ops *ops, const char *path, struct ckpt_err *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || store_is_job(ops, fd) <= 0)
		return 0;
	return ckpt_error(
		err, -ENOENT,
		"%.200s is a job's directory, not a checkpoint: give one of its steps, or "
		"\"latest -C %.200s\"",
		path, path);
}

/* --- where nothing else is made --- */

static int name_outside(const char *path, const char *base, uint64_t own_step, struct ckpt_err *err)
{
	struct store_name x;

	store_name_parse(base, &x);
	if (x.kind == STORE_FOREIGN || (x.kind == STORE_STEP && x.step == own_step))
		return 0;
	if (x.kind != STORE_STEP)
		return ckpt_error(
			err, -EINVAL,
			"%.1000s is what a store calls a step that is %s: give another name", path,
			x.kind == STORE_OLD   ? "set aside"
			: x.kind == STORE_TMP ? "being written"
					      : "being deleted");
	if (own_step == UINT64_MAX)
		return ckpt_error(err, -EINVAL,
				  "%.1000s is what a store calls its step %" PRIu64
				  ", and what is to be made is none: give another name",
				  path, x.step);
	return ckpt_error(err, -EINVAL,
			  "%.1000s is what a store calls its step %" PRIu64
			  ", and this is step %" PRIu64 ": give another name",
			  path, x.step, own_step);
}

struct above {
	const struct io_ops *ops;
	char job[PATH_MAX];
};

/* Every launch of a job has its claim there. */
static int job_above(void *arg, int fd)
{
	struct above *a = arg;
	int claims = a->ops->open(a->ops->ctx, fd, STORE_CLAIMS, O_PATH | O_DIRECTORY, 0);

	char real[PATH_MAX];

	if (claims < 0)
		return 0;
	(void)a->ops->close(a->ops->ctx, claims);
	if (io_path(a->ops, fd, real, sizeof real) || !realpath(real, a->job))
		a->job[0] = 0;
	return 1;
}

int store_outside(const struct io_ops *ops, const char *path, uint64_t own_step,
		  struct ckpt_err *err)
{
	struct publish_path d;
	struct above a = { .ops = ops };
	char real[PATH_MAX];
	int rc = publish_split(path, &d, err), fd;

	if (!rc)
		rc = name_outside(path, d.base, own_step, err);
	if (rc || MUTANT(OUTSIDE_BY_NAME))
		return rc;
	fd = io_open_path(ops, AT_FDCWD, path, O_PATH | O_DIRECTORY);
	if (fd >= 0 && !io_path(ops, fd, real, sizeof real))
		rc = name_outside(path, path_base(real), own_step, err);
	if (fd < 0)
		fd = io_open_path(ops, AT_FDCWD, d.parent, O_PATH | O_DIRECTORY);
	if (fd < 0)
		return rc;
	if (!rc && io_above(ops, fd, job_above, &a))
		rc = ckpt_error(
			err, -EINVAL,
			"%.1000s is in the directory of a job%s%.1000s: ckptd keeps its steps "
			"there, and nothing else belongs there: give a path outside of it",
			path, a.job[0] ? ", " : "", a.job);
	(void)ops->close(ops->ctx, fd);
	return rc;
}
