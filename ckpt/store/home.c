/* SPDX-License-Identifier: Apache-2.0 */
/*
 * home.c - see home.h. Called by every verb that sets labels, shows them, or removes a step.
 * Invariant: a step is found in its job's directory only if the directory of that name there is the
 * one that was opened.
 */
#include "ckpt/store/home.h"
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "ckpt/store/store_impl.h"

static bool same_file(int a, int b)
{
	struct stat x, y;

	return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* 1: yes, and what is called `dir` in it is the directory behind fd. */
static int is_home(const struct io_ops *ops, int job_fd, const char *dir, int step_fd)
{
	int fd = ops->open(ops->ctx, job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	bool same;

	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	(void)ops->close(ops->ctx, fd);
	fd = ops->open(ops->ctx, job_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	same = same_file(fd, step_fd);
	(void)ops->close(ops->ctx, fd);
	return same;
}

int store_home_open(const struct io_ops *ops, const struct format *format,
		    const struct store_ref *ref, struct store_home *ret, struct ckpt_err *err)
{
	const char *base = strrchr(ref->path, '/'), *job;
	int rc, fd;

	*ret = (struct store_home){
		.s = { .ops = ops, .format = format, .root_fd = -1, .job_fd = -1 }
	};
	if (!base || base == ref->path || strlen(base + 1) >= sizeof ret->step.dir)
		return 1;
	snprintf(ret->dir, sizeof ret->dir, "%.*s", (int)(base - ref->path), ref->path);
	snprintf(ret->step.dir, sizeof ret->step.dir, "%s", base + 1);
	job = strrchr(ret->dir, '/');
	if (!job || store_job_check(job + 1, NULL))
		return 1;
	snprintf(ret->s.job, sizeof ret->s.job, "%s", job + 1);
	fd = open(ret->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES
			       ? 1
			       : ckpt_error_errno(err, errno, "cannot open %.300s", ret->dir);
	ret->s.job_fd = fd;
	rc = is_home(ops, fd, ret->step.dir, ref->step_fd);
	if (rc < 0)
		rc = ckpt_error_errno(err, -rc, "cannot read %.300s", ret->dir);
	if (rc <= 0)
		store_home_close(ret);
	return rc < 0 ? rc : !rc;
}

int store_home_find(const struct io_ops *ops, const struct format *format,
		    const struct store_ref *ref, struct store_home *ret, struct ckpt_err *err)
{
	struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = store_home_open(ops, format, ref, ret, err);

	if (rc)
		return rc;
	rc = store_scan(&ret->s, true, &step, &n, err);
	ret->steps = step;
	for (uint32_t i = 0; !rc && i < n; i++)
		if (!strcmp(step[i].dir, ret->step.dir)) {
			ret->step = step[i];
			return 0;
		}
	store_home_close(ret);
	return rc ? rc : 1;
}

int store_home_sound(const struct store_home *m, struct ckpt_err *err)
{
	struct store_step now = { 0 };
	const struct store_step *st = &m->step;
	const char *why = st->why;
	int rc = 0;

	if (st->state == STORE_COMMITTED || st->state == STORE_SET_ASIDE) {
		rc = store_step_look_parts(&m->s, st->dir, &now);
		if (rc)
			return store_fail(err, rc, "job %s: cannot look at %s", m->s.job, st->dir);
		why = now.why;
		rc = now.code ? -EBADMSG : 0;
	}
	if (st->state == STORE_DAMAGED || st->state == STORE_QUARANTINED ||
	    st->state == STORE_MISPLACED)
		rc = -EBADMSG;
	return rc ? ckpt_error(
			    err, rc,
			    "step %llu of %s is %s and cannot be loaded: %.200s; nothing is kept "
			    "under a name that cannot be used",
			    (unsigned long long)st->step, m->s.job,
			    st->state == STORE_QUARANTINED ? "quarantined"
			    : st->state == STORE_MISPLACED ? "misplaced"
							   : "damaged",
			    why)
		  : 0;
}

void store_home_close(struct store_home *m)
{
	if (m->s.job_fd >= 0)
		close(m->s.job_fd);
	free(m->steps);
	*m = (struct store_home){ .s = { .root_fd = -1, .job_fd = -1 } };
}

int store_home_owner(int job_fd, const char *path, struct ckpt_err *err)
{
	struct passwd *pw;
	struct stat st;

	if (geteuid() != 0 || fstat(job_fd, &st) || st.st_uid == 0)
		return 0;
	pw = getpwuid(st.st_uid);
	return ckpt_error(
		err, -EPERM,
		"%.300s belongs to %s (user %u), and that user could not read files that root "
		"writes there",
		path, pw ? pw->pw_name : "another", (unsigned)st.st_uid);
}
