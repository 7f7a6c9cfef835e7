/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_find.c - from the name of a step to its directory, and from a path to its jobs. Called by
 * ckptctl and by restore.
 * The path that was typed is opened as any program would, links included: it is the user's. What
 * lies beneath is reached through struct io_ops only.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt/base/container.h"
#include "ckpt/store/address.h"
#include "ckpt/store/store_impl.h"

#define NEAREST_MAX 4	/* steps that are offered instead of one that does not exist */
#define JOBS_MAX 65536u /* of a store */

static_assert(sizeof((struct store_ref *)0)->path >= PATH_MAX, "realpath fits");

static int path_open(const char *path, char ret_abs[PATH_MAX], int *ret_fd, struct ckpt_err *err)
{
	struct ckpt_err e;

	*ret_fd = -1;
	if (!path)
		path = ".";
	if (!realpath(path, ret_abs) ||
	    (*ret_fd = open(ret_abs, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		(void)store_fail(&e, -errno, "cannot open %.200s", path);
		if (e.code == -ENOTDIR)
			return ckpt_error(err, e.code, "%.200s is a file: give the directory",
					  path);
		return ckpt_error(err, e.code, "%s", e.msg);
	}
	return 0;
}

static int path_join(char *buf, size_t bytes, const char *dir, const char *entry,
		     struct ckpt_err *err)
{
	int n = snprintf(buf, bytes, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, entry);

	if ((size_t)n >= bytes)
		return ckpt_error(err, -ENAMETOOLONG, "the path of %.64s is too long", entry);
	return 0;
}

static const char *path_base(const char *abs)
{
	const char *slash = strrchr(abs, '/');

	assert(slash);
	return slash + 1;
}

/* --- jobs --- */

static int job_mark(void *arg, const char *name, unsigned char d_type)
{
	struct store_name x;

	(void)arg;
	if (d_type != DT_DIR && d_type != DT_UNKNOWN)
		return 0;
	if (strcmp(name, STORE_CLAIMS) == 0)
		return 1;
	store_name_parse(name, &x);
	return (x.kind & (STORE_STEP | STORE_OLD | STORE_TMP)) != 0;
}

int store_is_job(const struct io_ops *ops, int fd)
{
	return ops->list(ops->ctx, fd, job_mark, NULL);
}

typedef char job_name[CKPT_JOB_MAX + 1];

struct jobs {
	const struct io_ops *ops;
	int fd;
	uint32_t n, cap;
	job_name *name;
	uint32_t nclosed; /* that this user may not open: they may be jobs */
	job_name closed;  /* the first of them */
};

static int jobs_add(struct jobs *j, const char *name)
{
	if (j->n == JOBS_MAX)
		return -E2BIG;
	if (!ARRAY_GROW(j->name, j->n, j->cap))
		return -ENOMEM;
	memcpy(j->name[j->n++], name, strlen(name) + 1);
	return 0;
}

static void jobs_closed(struct jobs *j, const char *name)
{
	if (!j->nclosed || strcmp(name, j->closed) < 0)
		memcpy(j->closed, name, strlen(name) + 1);
	j->nclosed++;
}

static int jobs_entry(void *arg, const char *name, unsigned char d_type)
{
	struct jobs *j = arg;
	int fd, r;

	if ((d_type != DT_DIR && d_type != DT_UNKNOWN) || store_job_check(name, NULL))
		return 0;
	fd = j->ops->open(j->ops->ctx, j->fd, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd == -EACCES || fd == -EPERM)
		jobs_closed(j, name);
	if (fd == -EACCES || fd == -EPERM || fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return 0; /* not for this user, gone since, or a link */
	if (fd < 0)
		return fd; /* what cannot be seen must not look as if it were not there */
	r = store_is_job(j->ops, fd);
	(void)j->ops->close(j->ops->ctx, fd);
	return r > 0 ? jobs_add(j, name) : r;
}

static int jobs_by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static int jobs_find(const struct io_ops *ops, int fd, const char *abs, struct jobs *ret,
		     struct ckpt_err *err)
{
	int r;

	*ret = (struct jobs){ .ops = ops, .fd = fd };
	r = ops->list(ops->ctx, fd, jobs_entry, ret);
	if (r) {
		free(TAKE(ret->name));
		return store_fail(err, r, "cannot list the jobs in %.200s", abs);
	}
	if (ret->n)
		qsort(ret->name, ret->n, sizeof *ret->name, jobs_by_name);
	return 0;
}

int store_jobs(const struct io_ops *ops, const char *path,
	       int (*each)(void *arg, const char *job, int job_fd, const char *abs_path), void *arg,
	       struct ckpt_err *err)
{
	char abs[PATH_MAX], job_path[PATH_MAX];
	cleanup_close int fd = -1;
	struct jobs jobs;
	int r;

	r = path_open(path, abs, &fd, err);
	if (r)
		return r;
	r = store_is_job(ops, fd);
	if (r < 0)
		return store_fail(err, r, "cannot list %.200s", abs);
	if (r)
		return each(arg, path_base(abs), fd, abs);
	r = jobs_find(ops, fd, abs, &jobs, err);
	for (uint32_t i = 0; !r && i < jobs.n; i++) {
		int job_fd = ops->open(ops->ctx, fd, jobs.name[i], O_RDONLY | O_DIRECTORY, 0);

		if (job_fd == -ENOENT)
			continue; /* removed since */
		if (job_fd < 0) {
			r = store_fail(err, job_fd, "cannot open job %s", jobs.name[i]);
			break;
		}
		r = path_join(job_path, sizeof job_path, abs, jobs.name[i], err);
		if (!r)
			r = each(arg, jobs.name[i], job_fd, job_path);
		(void)ops->close(ops->ctx, job_fd);
	}
	free(jobs.name);
	return r;
}

/* 0: none. */
static int closed_say(const struct jobs *j, const char *abs, struct ckpt_err *err)
{
	char more[32] = "";

	if (!j->nclosed)
		return 0;
	if (j->nclosed > 1)
		(void)snprintf(more, sizeof more, " and %" PRIu32 " more", j->nclosed - 1);
	return ckpt_error(err, -EACCES,
			  "cannot open %s%s in %.300s: Permission denied; do they belong to "
			  "another user?",
			  j->closed, more, abs);
}

int store_jobs_closed(const struct io_ops *ops, const char *path, struct ckpt_err *err)
{
	char abs[PATH_MAX];
	cleanup_close int fd = -1;
	struct jobs jobs;
	int r = path_open(path, abs, &fd, err);

	if (r)
		return r;
	r = store_is_job(ops, fd);
	if (r < 0)
		return store_fail(err, r, "cannot list %.200s", abs);
	if (r)
		return 0;
	r = jobs_find(ops, fd, abs, &jobs, err);
	free(jobs.name);
	return r ? r : closed_say(&jobs, abs, err);
}

/* The one job of where; what: is wanted of it. abs becomes its path, *fd its descriptor. */
static int job_only(const struct io_ops *ops, int *fd, const char *what, char abs[PATH_MAX],
		    struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -ENOTUNIQ };
	char job_path[PATH_MAX];
	struct jobs jobs;
	int r = store_is_job(ops, *fd), job_fd;

	if (r < 0)
		return store_fail(err, r, "cannot list %.200s", abs);
	if (r)
		return 0;
	r = jobs_find(ops, *fd, abs, &jobs, err);
	if (r)
		return r;
	if (jobs.n == 1) {
		r = path_join(job_path, sizeof job_path, abs, jobs.name[0], err);
		job_fd = r ? r : ops->open(ops->ctx, *fd, jobs.name[0], O_RDONLY | O_DIRECTORY, 0);
		if (!r && job_fd < 0)
			r = store_fail(err, job_fd, "cannot open job %s", jobs.name[0]);
		if (!r) {
			(void)ops->close(ops->ctx, *fd);
			*fd = job_fd;
			memcpy(abs, job_path, sizeof job_path);
		}
	} else if (jobs.n == 0 && jobs.nclosed) {
		r = closed_say(&jobs, abs, err);
	} else if (jobs.n == 0) {
		r = ckpt_error(
			err, -ENOENT,
			"%.200s holds no job with checkpoints; give a store or a job directory "
			"with -C PATH",
			abs);
	} else {
		for (uint32_t i = 0; i < jobs.n; i++)
			ckpt_errlist_add(&list, "%s@%.80s, or -C %s/%s", jobs.name[i], what,
					 strcmp(abs, "/") == 0 ? "" : abs, jobs.name[i]);
		r = ckpt_errlist_end(&list, err, "%.100s holds %" PRIu32 " jobs; choose one", abs,
				     jobs.n);
		ckpt_errlist_free(&list);
	}
	free(jobs.name);
	return r;
}

#define JOBS_SAID 8u /* jobs that are offered instead of one that does not exist */

static int job_unknown(const struct io_ops *ops, const char *job, int fd, const char *abs,
		       struct ckpt_err *err)
{
	char list[JOBS_SAID * (sizeof(job_name) + 2)] = "";
	struct jobs jobs;
	int r = jobs_find(ops, fd, abs, &jobs, err), used = 0;

	if (r)
		return r;
	for (uint32_t i = 0; i < MIN(jobs.n, JOBS_SAID); i++)
		used += snprintf(list + used, sizeof list - (size_t)used, "%s%s", i ? ", " : "",
				 jobs.name[i]);
	r = ckpt_error(err, -ENOENT, "there is no job %s in %.200s; it has %s%s", job, abs,
		       jobs.n ? list : "none", jobs.n > JOBS_SAID ? ", ..." : "");
	free(jobs.name);
	return r;
}

/* The same for a job that was named: of a store, or the job's own directory. */
static int job_named(const struct io_ops *ops, const char *job, int *fd, char abs[PATH_MAX],
		     struct ckpt_err *err)
{
	char job_path[PATH_MAX];
	int r = store_is_job(ops, *fd), job_fd;

	if (r < 0)
		return store_fail(err, r, "cannot list %.200s", abs);
	if (r && strcmp(path_base(abs), job) == 0)
		return 0;
	if (r)
		return ckpt_error(err, -ENOENT,
				  "there is no job %s in %.200s: that is the directory of job %s; "
				  "give the store with -C PATH",
				  job, abs, path_base(abs));
	r = path_join(job_path, sizeof job_path, abs, job, err);
	if (r)
		return r;
	job_fd = ops->open(ops->ctx, *fd, job, O_RDONLY | O_DIRECTORY, 0);
	if (job_fd == -ENOENT || job_fd == -ENOTDIR || job_fd == -ELOOP)
		return job_unknown(ops, job, *fd, abs, err);
	if (job_fd < 0)
		return store_fail(err, job_fd, "cannot open job %s in %.200s", job, abs);
	r = store_is_job(ops, job_fd);
	if (r <= 0) {
		(void)ops->close(ops->ctx, job_fd);
		return r ? store_fail(err, r, "cannot list %.200s", job_path)
			 : job_unknown(ops, job, *fd, abs, err);
	}
	(void)ops->close(ops->ctx, *fd);
	*fd = job_fd;
	memcpy(abs, job_path, sizeof job_path);
	return 0;
}

/* --- steps of a job --- */

static bool is_listed(const struct store_step *st)
{
	return st->state != STORE_COLLECTING && st->state != STORE_SET_ASIDE;
}

static uint64_t words_distance(uint64_t a, uint64_t b)
{
	return a > b ? a - b : b - a;
}

/* "10, 20 and 30": the committed steps nearest to a number, ascending. */
static void nearest_print(const struct store_step *step, uint32_t n, uint64_t to, char *buf,
			  size_t bytes)
{
	uint64_t near[NEAREST_MAX];
	uint32_t have = 0;
	int used = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at;

		if (!is_listed(&step[i]))
			continue;
		for (at = have;
		     at > 0 && words_distance(step[i].step, to) < words_distance(near[at - 1], to);
		     at--)
			if (at < NEAREST_MAX)
				near[at] = near[at - 1];
		if (at < NEAREST_MAX) {
			near[at] = step[i].step;
			have = MIN(have + 1, (uint32_t)NEAREST_MAX);
		}
	}
	for (uint32_t i = 1; i < have; i++) {
		for (uint32_t k = i; k > 0 && near[k] < near[k - 1]; k--) {
			uint64_t swap = near[k];

			near[k] = near[k - 1];
			near[k - 1] = swap;
		}
	}
	buf[0] = 0;
	for (uint32_t i = 0; i < have; i++) {
		used += snprintf(buf + used, bytes - (size_t)used, "%s%" PRIu64,
				 i == 0		 ? ""
				 : i + 1 == have ? " and "
						 : ", ",
				 near[i]);
		assert((size_t)used < bytes);
	}
}

static int step_unknown(const struct store_step *step, uint32_t n, uint64_t want, const char *abs,
			struct ckpt_err *err)
{
	char near[NEAREST_MAX * 26];

	for (uint32_t i = 0; i < n; i++) { /* collecting ones come first */
		if (step[i].step != want)
			continue;
		assert(!is_listed(&step[i]));
		if (step[i].state == STORE_COLLECTING)
			return ckpt_error(
				err, -EUCLEAN,
				"step %" PRIu64 " in %.150s is not committed: %s is still "
				"being written, or its writer died; ckptctl ls -C %.100s lists "
				"what is committed",
				want, abs, step[i].dir, abs);
		return ckpt_error(err, -ENOENT,
				  "step %" PRIu64 " in %.150s was set aside when the job went "
				  "back to an older step; it can be read as %.150s/%s",
				  want, abs, abs, step[i].dir);
	}
	nearest_print(step, n, want, near, sizeof near);
	return ckpt_error(
		err, -ENOENT,
		"there is no step %" PRIu64 " in %.150s; %s%s (ckptctl ls -C %.150s lists all)",
		want, abs, near[0] ? "nearest: " : "nothing is committed there yet", near, abs);
}

/* Why nothing can be started from it, in a word. */
static const char *passed_word(enum store_state state)
{
	switch (state) {
	case STORE_MISPLACED:
		return "misplaced";
	case STORE_NEWER:
		return "written by a newer version";
	case STORE_OLDER:
		return "of " CONTAINER_OLDER_TEXT;
	case STORE_QUARANTINED:
		return "quarantined";
	case STORE_DAMAGED:
	case STORE_COMMITTED:
	case STORE_COLLECTING:
	case STORE_SET_ASIDE:
		break;
	}
	return "damaged";
}

/* Which listed steps before the one at `end` are nothing to start from. */
static void passed_print(const struct store_step *step, uint32_t end, char *buf, size_t bytes)
{
	uint32_t npassed = 0;
	int used = 0;

	buf[0] = 0;
	for (uint32_t i = 0; i < end; i++) {
		if (!is_listed(&step[i]) || step[i].state == STORE_COMMITTED)
			continue;
		if (npassed++ == 0) /* verify refuses a misplaced one, and says what can be done */
			used = snprintf(buf, bytes,
					"step %" PRIu64 " is passed over: %s: %.200s; ckptctl %s "
					"step:%" PRIu64,
					step[i].step, passed_word(step[i].state), step[i].why,
					step[i].state == STORE_MISPLACED ? "verify" : "repair",
					step[i].step);
	}
	assert((size_t)used < bytes);
	if (npassed > 1)
		(void)snprintf(buf + used, bytes - (size_t)used,
			       " (and %" PRIu32 " more; ckptctl ls --all)", npassed - 1);
}

static int latest_unknown(const struct store_step *step, uint32_t n, uint64_t back, const char *abs,
			  struct ckpt_err *err)
{
	uint32_t ncommitted = 0;
	char passed[512];

	for (uint32_t i = 0; i < n; i++)
		ncommitted += step[i].state == STORE_COMMITTED;
	passed_print(step, n, passed, sizeof passed);
	if (ncommitted == 0 && passed[0])
		return ckpt_error(err, -EUCLEAN, "no step in %.200s can be used: %s", abs, passed);
	if (ncommitted == 0)
		return ckpt_error(err, -ENOENT, "nothing is committed in %.200s yet", abs);
	return ckpt_error(err, -ENOENT,
			  "latest~%" PRIu64 " does not exist: %.200s has %" PRIu32
			  " committed steps, the oldest is latest~%" PRIu32 "%s%s",
			  back, abs, ncommitted, ncommitted - 1, passed[0] ? "; " : "", passed);
}

static int tag_unknown(const struct store_label *label, uint32_t n, const char *tag,
		       const char *abs, struct ckpt_err *err)
{
	char list[NEAREST_MAX * (STORE_LABEL_NAME_MAX + 2)] = "";
	uint32_t ntag = 0;
	int used = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (strcmp(label[i].name, tag) == 0)
			return ckpt_error(err, -ENOENT,
					  "tag %s in %.200s is that of step %" PRIu64
					  ", which has gone",
					  tag, abs, label[i].step);
		if (ntag++ < NEAREST_MAX)
			used += snprintf(list + used, sizeof list - (size_t)used, "%s%s",
					 used ? ", " : "", label[i].name);
	}
	return ckpt_error(err, -ENOENT, "there is no tag %s in %.200s; it has %s%s", tag, abs,
			  ntag ? list : "none (ckptctl tag sets one)",
			  ntag > NEAREST_MAX ? ", ..." : "");
}

/* The one step with this number that was set aside; NULL: none, or with the error in *ret_r
 * several. */
static const struct store_step *aside_choose(const struct store_step *step, uint32_t n,
					     uint64_t want, int *ret_r, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -ENOTUNIQ };
	const struct store_step *st = NULL;
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (step[i].state != STORE_SET_ASIDE || step[i].step != want)
			continue;
		st = &step[i];
		found++;
		ckpt_errlist_add(&list, "%s", st->dir);
	}
	if (found > 1)
		*ret_r = ckpt_errlist_end(&list, err,
					  "%" PRIu32 " steps %" PRIu64
					  " were set aside; name one by its entry",
					  found, want);
	ckpt_errlist_free(&list);
	return found == 1 ? st : NULL;
}

/* Which steps will do besides those of the line that this program reads. */
enum {
	ALSO_ASIDE = 1, /* set aside, where no other has the number */
	ALSO_OLDER = 2, /* an older version wrote it; not as latest */
};

static const struct store_step *latest_choose(const struct store_step *step, uint32_t n,
					      uint64_t back, const char *abs, struct store_ref *ret,
					      int *ret_r, struct ckpt_err *err)
{
	const struct store_step *st = store_latest(step, n, back);

	if (!st)
		*ret_r = latest_unknown(step, n, back, abs, err);
	else if (st->state == STORE_COMMITTED) /* else it is refused */
		passed_print(step, (uint32_t)(st - step), ret->note, sizeof ret->note);
	ret->passed = ret->note[0];
	return st;
}

/* By its number or its entry. NULL with the error in *ret_r. */
static const struct store_step *step_choose(const struct store_step *step, uint32_t n,
					    const struct address *want, uint32_t also,
					    const char *abs, int *ret_r, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < n; i++)
		if (want->kind == ADDRESS_STEP ? is_listed(&step[i]) && step[i].step == want->n
					       : strcmp(step[i].dir, want->what) == 0)
			return &step[i];
	if (want->kind == ADDRESS_STEP && also & ALSO_ASIDE) {
		const struct store_step *st = aside_choose(step, n, want->n, ret_r, err);

		if (st || *ret_r)
			return st;
	}
	*ret_r = want->kind == ADDRESS_STEP
			 ? step_unknown(step, n, want->n, abs, err)
			 : ckpt_error(err, -ENOENT, "there is no %.80s in %.200s", want->what, abs);
	return NULL;
}

static const struct store_step *tag_choose(const struct store *s, const struct store_step *step,
					   uint32_t n, const char *tag, const char *abs, int *ret_r,
					   struct ckpt_err *err)
{
	cleanup_free struct store_label *label = NULL;
	uint32_t nlabel;

	*ret_r = store_labels_of(s, 1u << LABEL_TAG, &label, &nlabel, err);
	if (*ret_r)
		return NULL;
	for (uint32_t k = 0; k < nlabel; k++)
		for (uint32_t i = 0; strcmp(label[k].name, tag) == 0 && i < n; i++)
			if (store_label_is(&label[k], &step[i]))
				return &step[i];
	*ret_r = tag_unknown(label, nlabel, tag, abs, err);
	return NULL;
}

/* -ESTALE: what was chosen has gone since, or is being removed: look again. */
static int resolve_once(const struct store *s, const struct address *want, uint32_t also,
			const char *abs, struct store_ref *ret, struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	const struct store_step *st;
	uint32_t n;
	int r;

	ret->note[0] = 0;
	ret->passed = false;
	r = want->kind == ADDRESS_LATEST ? store_scan_latest(s, true, want->n, &step, &n, err)
					 : store_scan(s, true, &step, &n, err);
	if (r)
		return r;
	st = want->kind == ADDRESS_TAG	    ? tag_choose(s, step, n, want->tag, abs, &r, err)
	     : want->kind == ADDRESS_LATEST ? latest_choose(step, n, want->n, abs, ret, &r, err)
					    : step_choose(step, n, want, also, abs, &r, err);
	if (!st)
		return r;
	if (want->kind == ADDRESS_LATEST || !(also & ALSO_OLDER) || !store_step_older(st))
		r = store_step_refuse(st, abs, err);
	if (!r)
		r = path_join(ret->path, sizeof ret->path, abs, st->dir, err);
	if (r)
		return r;
	memcpy(ret->dir, st->dir, sizeof ret->dir);
	memcpy(ret->id, st->id, sizeof ret->id);
	r = store_step_open(s, st->dir, &ret->step_fd, err);
	return r == -ENOENT ? -ESTALE : r;
}

static int resolve_short(const struct io_ops *ops, const struct format *format, const char *where,
			 const struct address *want, uint32_t also, struct store_ref *ret,
			 struct ckpt_err *err)
{
	cleanup_close int fd = -1;
	char abs[PATH_MAX];
	struct store s = { .ops = ops, .format = format, .root_fd = -1 };
	int r;

	r = path_open(strchr(want->job, '/') ? want->job : where, abs, &fd, err);
	if (!r)
		r = want->job[0] && !strchr(want->job, '/')
			    ? job_named(ops, want->job, &fd, abs, err)
			    : job_only(ops, &fd, want->what, abs, err);
	if (r)
		return r;
	s.job_fd = fd;
	(void)snprintf(s.job, sizeof s.job, "%.*s", CKPT_JOB_MAX, path_base(abs));
	r = -ESTALE;
	for (uint32_t i = 0; r == -ESTALE && i < STORE_TRIES_MAX; i++)
		r = resolve_once(&s, want, also, abs, ret, err);
	if (r == -ESTALE && err)
		err->code = -ENOENT;
	return r == -ESTALE ? -ENOENT : r;
}

/* --- words --- */

static bool is_directory(const char *name)
{
	struct stat st;

	return stat(name, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A number is a step, and the directory of this name is not what was asked for: that is said. */
static int beside_directory(const char *name, int r, struct store_ref *ret, struct ckpt_err *err)
{
	struct ckpt_err why;

	if (r == 0 && !ret->note[0])
		(void)snprintf(ret->note, sizeof ret->note,
			       "%.40s is step %.40s; the directory of this name here is ./%.40s",
			       name, name, name);
	if (r != -ENOENT || !err)
		return r;
	why = *err;
	return ckpt_error(err, r, "%s; the directory of this name here is ./%.40s", why.msg, name);
}

/* A word that is no step's name, and nothing here is called so. */
static int word_unknown(const struct io_ops *ops, const char *where, const char *word,
			struct ckpt_err *err)
{
	cleanup_close int fd = -1;
	char abs[PATH_MAX], hint[CKPT_JOB_MAX + 64] = "";
	int job = -1;

	if (store_job_check(word, NULL) == 0 && path_open(where, abs, &fd, NULL) == 0)
		job = ops->open(ops->ctx, fd, word, O_RDONLY | O_DIRECTORY, 0);
	if (job >= 0) {
		if (store_is_job(ops, job) > 0)
			(void)snprintf(hint, sizeof hint, "; the newest of job %s is %s@latest",
				       word, word);
		(void)ops->close(ops->ctx, job);
	}
	return ckpt_error(
		err, -ENOENT,
		"there is no checkpoint \"%.200s\": it is none of latest, latest~N, N or "
		"step:N, tag:NAME, or one of these behind JOB@, and there is no file or directory "
		"./%.200s%s",
		word, word, hint);
}

static int name_resolve(const struct io_ops *ops, const struct format *format, const char *where,
			const char *name, uint32_t also, struct store_ref *ret,
			struct ckpt_err *err)
{
	struct address want;
	int r;

	*ret = (struct store_ref){ .step_fd = -1 };
	r = address_parse(name, &want, err);
	if (r)
		return r;
	if (want.kind == ADDRESS_PATH)
		return strchr(name, '/') || access(name, F_OK) == 0
			       ? store_path_find(ops, format, name, ret, err)
			       : word_unknown(ops, where, name, err);
	r = resolve_short(ops, format, where, &want, also, ret, err);
	return want.bare && is_directory(name) ? beside_directory(name, r, ret, err) : r;
}

int store_resolve(const struct io_ops *ops, const struct format *format, const char *where,
		  const char *name, struct store_ref *ret, struct ckpt_err *err)
{
	return name_resolve(ops, format, where, name, 0, ret, err);
}

int store_resolve_aside(const struct io_ops *ops, const struct format *format, const char *where,
			const char *name, struct store_ref *ret, struct ckpt_err *err)
{
	return name_resolve(ops, format, where, name, ALSO_ASIDE, ret, err);
}

int store_resolve_any(const struct io_ops *ops, const struct format *format, const char *where,
		      const char *name, struct store_ref *ret, struct ckpt_err *err)
{
	return name_resolve(ops, format, where, name, ALSO_ASIDE | ALSO_OLDER, ret, err);
}
