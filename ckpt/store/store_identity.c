/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_identity.c - is a checkpoint the one that was asked for, and which job does a directory
 * belong to: see store.h. Called by scans, by what finds a step by its name or path, and by the
 * daemon before it moves a byte.
 * Invariant: nothing here writes to a step; a directory changes its job only when it is asked to.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

#define NAMED "job-"
#define NAMED_PATH (sizeof STORE_CLAIMS + sizeof NAMED + CKPT_JOB_MAX + 1)

/* --- a step --- */

/* Enough of an id to tell two apart. */
static void id_print(const uint8_t id[16], char ret[17])
{
	for (uint32_t i = 0; i < 8; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", id[i]);
}

static bool is_other_parent(const struct store_step *st, const struct store_step *parent)
{
	static const uint8_t none[sizeof st->said.parent_id];

	return parent && parent->step == st->parent_step && parent->step < st->step &&
	       parent->state == STORE_COMMITTED && !parent->adopted && !parent->said.rebuilt &&
	       memcmp(st->said.parent_id, none, sizeof none) != 0 &&
	       memcmp(st->said.parent_id, parent->id, sizeof parent->id) != 0 &&
	       !MUTANT(OTHER_PARENT_ACCEPTED);
}

int store_identity(const struct store_step *st, const char *home, const struct store_step *parent,
		   char why[200])
{
	char was[17], is[17];

	if (st->said.step != st->step && !MUTANT(OTHER_STEP_ACCEPTED)) {
		(void)snprintf(why, 200,
			       "its MANIFEST is that of step %" PRIu64
			       ": the directory was renamed, or another one was copied into its "
			       "place",
			       st->said.step);
		return -EUCLEAN;
	}
	if (st->adopted)
		return 0;
	if (strcmp(st->said.job, home) != 0 && !MUTANT(FOREIGN_JOB_ACCEPTED)) {
		(void)snprintf(why, 200, "its MANIFEST says that it is a step of job %s",
			       st->said.job);
		return -EUCLEAN;
	}
	if (!is_other_parent(st, parent))
		return 0;
	id_print(st->said.parent_id, was);
	id_print(parent->id, is);
	(void)snprintf(why, 200,
		       "it continues another step %" PRIu64
		       " (id %s) than the one that is here (id "
		       "%s): one of the two comes from somewhere else",
		       parent->step, was, is);
	return -EUCLEAN;
}

bool store_step_misplaced(const struct store_step *st)
{
	return st->state == STORE_MISPLACED ||
	       (st->state == STORE_SET_ASIDE && st->code == -EUCLEAN && store_step_has_id(st));
}

bool store_step_newer(const struct store_step *st)
{
	return st->state == STORE_NEWER ||
	       (st->state == STORE_SET_ASIDE && st->code == -EPROTONOSUPPORT && !st->older);
}

bool store_step_older(const struct store_step *st)
{
	return st->state == STORE_OLDER || (st->state == STORE_SET_ASIDE && st->older);
}

int store_step_refuse(const struct store_step *st, const char *where, struct ckpt_err *err)
{
	char home[STORE_DIR_MAX];

	if (store_step_newer(st))
		return ckpt_error(err, -EPROTONOSUPPORT,
				  "%.300s/%s was written by a newer version: use that version, or "
				  "name an older step: %.200s",
				  where, st->dir, st->why);
	if (store_step_older(st))
		return ckpt_error(err, -EPROTONOSUPPORT,
				  "%.300s/%s has %.200s: use ckptd 0.1 to read it%s", where,
				  st->dir, st->why,
				  st->state == STORE_SET_ASIDE
					  ? ""
					  : ", or begin anew (ckpt_fresh sets it aside)");
	if (!store_step_misplaced(st))
		return 0;
	store_name_step(st->said.step, home);
	if (st->said.step != st->step)
		return ckpt_error(err, -EBADMSG,
				  "%.300s/%s is not step %" PRIu64
				  ": %.200s; call it %s in the directory of job %s",
				  where, st->dir, st->step, st->why, home, st->said.job);
	return ckpt_error(
		err, -EBADMSG,
		"%.300s/%s is not the step %" PRIu64
		" of this job: %.200s; move it back where it belongs, or, if it is here on "
		"purpose: ckptctl adopt %.300s/%s",
		where, st->dir, st->step, st->why, where, st->dir);
}

int store_step_refuse_in(const struct store *s, const struct store_step *st, struct ckpt_err *err)
{
	char where[PATH_MAX];

	if (io_path(s->ops, s->job_fd, where, sizeof where))
		(void)snprintf(where, sizeof where, "%s", s->job);
	return store_step_refuse(st, where, err);
}

/* --- a job's directory --- */

struct names {
	const char *want;
	bool has_want;
	char first[CKPT_JOB_MAX + 1]; /* by name; "": none */
};

static int names_add(void *arg, const char *entry, unsigned char d_type)
{
	struct names *x = arg;
	const char *p = entry;

	(void)d_type;
	if (!store_take_text(&p, NAMED) || store_job_check(p, NULL))
		return 0;
	x->has_want |= strcmp(p, x->want) == 0;
	if (!x->first[0] || strcmp(p, x->first) < 0)
		(void)snprintf(x->first, sizeof x->first, "%s", p);
	return 0;
}

/* .ckptd, open, or -1 where there is none. */
static int names_read(const struct store *s, struct names *ret, int *ret_fd, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);

	*ret = (struct names){ .want = s->job };
	*ret_fd = -1;
	if (fd == -ENOENT)
		return 0;
	r = fd < 0 ? fd : ops->list(ops->ctx, fd, names_add, ret);
	if (!r) {
		*ret_fd = fd;
		return 0;
	}
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	return store_fail(err, r, "job %s: cannot read in " STORE_CLAIMS " which job it belongs to",
			  s->job);
}

int store_home(const struct store *s, char ret[CKPT_JOB_MAX + 1], struct ckpt_err *err)
{
	struct names x;
	int fd, r = names_read(s, &x, &fd, err);

	if (fd >= 0)
		(void)s->ops->close(s->ops->ctx, fd);
	(void)snprintf(ret, CKPT_JOB_MAX + 1, "%s", x.has_want || !x.first[0] ? s->job : x.first);
	return r;
}

int store_home_check(const struct store *s, struct ckpt_err *err)
{
	char home[CKPT_JOB_MAX + 1];
	int r = store_home(s, home, err);

	if (r || strcmp(home, s->job) == 0 || MUTANT(FOREIGN_HOME_CLAIMED))
		return r;
	return ckpt_error(
		err, -EINVAL,
		"the directory %s in the store belongs to job %s: it was renamed or copied; "
		"ckptctl adopt STORE/%s makes it job %s's, or give job %s another name",
		s->job, home, s->job, s->job, s->job);
}

int store_home_take(const struct store *s, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	char from[NAMED_PATH], to[NAMED_PATH];
	struct names x;
	int made, fd, r = names_read(s, &x, &fd, err);

	if (r)
		return r;
	if (fd < 0) { /* a directory that was made by hand, or copied without it */
		r = ops->mkdir(ops->ctx, s->job_fd, STORE_CLAIMS, 0700);
		r = r && r != -EEXIST ? r : store_sync(ops, s->job_fd);
		if (!r)
			fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY,
				       0);
		r = r ? r : MIN(fd, 0);
	}
	(void)snprintf(to, sizeof to, STORE_CLAIMS "/" NAMED "%s", s->job);
	(void)snprintf(from, sizeof from, STORE_CLAIMS "/" NAMED "%s", x.first);
	if (!r && !x.has_want && x.first[0]) {
		r = ops->rename(ops->ctx, s->job_fd, from, to);
		r = r == -EEXIST ? 0 : r;
	} else if (!r && !x.has_want) {
		made = ops->open(ops->ctx, s->job_fd, to, O_WRONLY | O_CREAT | O_EXCL, 0600);
		r = made == -EEXIST ? 0 : MIN(made, 0);
		if (made >= 0)
			(void)ops->close(ops->ctx, made);
	}
	if (!r)
		r = store_sync(ops, fd);
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	return r ? store_fail(err, r, "job %s: cannot write whose directory it is", s->job) : 0;
}
