/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_step.c - see memory_step.h. Called by export --from-memory.
 * Invariant: of the temporary directory nothing is left, whatever happened; only a command that is
 * killed leaves it, as .ckptd-memory-XXXXXX.
 */
#include "ckpt/host/memory_step.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/store/store.h"
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>

#define DROPS_MAX 50		 /* times what the daemon still writes is removed */
#define DROP_NS (20 * NS_PER_MS) /* between them */
#define TRIES_MAX 10		 /* steps that are asked for until one is written */
#define TRY_NS (50 * NS_PER_MS)	 /* between them */
#define STAGED_SAID 4u		 /* steps that are offered instead of one that is not there */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	(void)remove(path);
	return 0;
}

/* After Ctrl-C the daemon may still write to it: what it makes is removed until it has noticed. */
void memory_step_drop(struct memory_step *m)
{
	for (uint32_t i = 0; i < DROPS_MAX && m->dir[0]; i++) {
		const struct timespec t = { .tv_nsec = (long)DROP_NS };

		(void)nftw(m->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
		if (access(m->dir, F_OK) < 0 && errno == ENOENT)
			break;
		(void)nanosleep(&t, NULL);
	}
	m->dir[0] = 0;
}

static int make_dir(const char *beside, struct memory_step *m, int *ret_fd, struct ckpt_err *err)
{
	int n = snprintf(m->dir, sizeof m->dir, "%s/.ckptd-memory-XXXXXX", beside), e;

	if (n < 0 || (size_t)n >= sizeof m->dir) {
		m->dir[0] = 0;
		return ckpt_error(err, -ENAMETOOLONG, "the path %.60s... is too long", beside);
	}
	if (!mkdtemp(m->dir)) {
		e = errno;
		m->dir[0] = 0;
		return ckpt_error_errno(err, e, "no temporary directory can be made in %s", beside);
	}
	*ret_fd = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret_fd < 0 ? ckpt_error_errno(err, errno, "cannot open %s", m->dir) : 0;
}

/* Is the step in memory? The sentence says which are. */
static int check_staged(const struct wire_report *r, uint32_t job, const struct address *a,
			struct ckpt_err *err)
{
	const char *name = r->job[job].name;
	char list[STAGED_SAID * 24] = "";
	uint32_t n = 0;
	size_t used = 0;

	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job != job || !control_is_staged(s))
			continue;
		if (a->kind == ADDRESS_LATEST || s->step == a->n)
			return 0;
		if (n++ < STAGED_SAID)
			used += (size_t)snprintf(list + used, sizeof list - used, "%s%" PRIu64,
						 used ? ", " : "", s->step);
	}
	if (!n)
		return ckpt_error(err, -ENOENT, "ckptd holds no staged step of job %s", name);
	return ckpt_error(err, -ENOENT,
			  "step %" PRIu64 " of job %s is not in memory; ckptd holds %s", a->n, name,
			  list);
}

/* Did the step come to nothing, as any may before the trainer's guard? Then there is a newer one
 * soon. */
static bool is_passing(const struct wire_drained *got)
{
	return !got->failed || got->code == -ENOENT || got->code == -ECANCELED;
}

/* The job's newest staged step to the directory; returns when it is there. */
static int step_order(const struct memory_ask *q, uint64_t job, int fd, struct ckpt_err *err)
{
	struct wire_drained got;
	int rc = 0;

	for (uint32_t i = 0; i < TRIES_MAX; i++) {
		struct wire_drain ask = { .flags = WIRE_TO | WIRE_COPY, .job = job };

		rc = control_call(q->k, &ask, WIRE_DRAIN, fd, &got, NULL, 0, err);
		if (rc || got.written)
			return rc;
		if (!is_passing(&got))
			break;
		q->pause(TRY_NS);
	}
	return got.failed ? ckpt_error(err, got.code, "%s", got.text) : 0; /* find says it */
}

/* A step may have been staged, or given up, meanwhile. */
static int step_find(const struct memory_ask *q, const char *job, struct memory_step *m,
		     struct ckpt_err *err)
{
	struct store_ref ref = { .step_fd = -1 };
	const struct address *a = &q->step;
	char dir[PATH_MAX], name[32] = "latest";
	int rc;

	if (snprintf(dir, sizeof dir, "%s/%s", m->dir, job) >= (int)sizeof dir)
		return ckpt_error(err, -ENAMETOOLONG, "the path %.60s... is too long", m->dir);
	if (a->kind == ADDRESS_STEP)
		snprintf(name, sizeof name, "%" PRIu64, a->n);
	if (access(dir, F_OK) < 0)
		return ckpt_error(err, -ENOENT, "ckptd holds no staged step of job %s any more",
				  job);
	rc = store_resolve(q->ops, q->format, dir, name, &ref, err);
	if (rc == -ENOENT && a->kind == ADDRESS_STEP)
		return ckpt_error(err, rc,
				  "step %" PRIu64 " of job %s is in memory, but not the newest "
				  "there: only that one can be read",
				  a->n, job);
	if (rc)
		return rc;
	store_step_close(ref.step_fd);
	memcpy(m->path, ref.path, sizeof m->path);
	return 0;
}

int memory_step_write(const struct memory_ask *q, struct memory_step *ret, struct ckpt_err *err)
{
	const struct wire_report *r = &q->k->report;
	char name[sizeof r->job->name];
	cleanup_close int fd = -1;
	uint32_t job;
	int rc = control_report(q->k, err);

	*ret = (struct memory_step){ 0 };
	if (rc == 0)
		rc = control_job(q->k, q->step.job[0] ? q->step.job : NULL, &job, err);
	if (rc == 0)
		rc = check_staged(r, job, &q->step, err);
	if (rc == 0)
		rc = make_dir(q->beside, ret, &fd, err);
	if (rc)
		return rc;
	memcpy(name, r->job[job].name, sizeof name);
	rc = step_order(q, r->job[job].id, fd, err);
	return rc ? rc : step_find(q, name, ret, err);
}
