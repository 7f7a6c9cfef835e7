/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_step.c - see memory_step.h. Called by verb_export.c.
 * Invariant: of the temporary directory nothing is left, whatever happened; only a command that is
 * killed leaves it, as .ckptd-memory-XXXXXX.
 */
#include "ckpt/cli/memory_step.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/store/address.h"
#include "ckpt/store/store.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>

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
static int step_order(struct control *k, uint64_t job, int fd, struct ckpt_err *err)
{
	struct wire_drained got;
	int rc = 0;

	for (uint32_t i = 0; i < TRIES_MAX; i++) {
		struct wire_drain ask = { .flags = WIRE_TO | WIRE_COPY, .job = job };

		rc = control_call(k, &ask, WIRE_DRAIN, fd, &got, NULL, 0, err);
		if (rc || got.written)
			return rc;
		if (!is_passing(&got))
			break;
		daemon_ask_pause(TRY_NS);
	}
	return got.failed ? ckpt_error(err, got.code, "%s", got.text) : 0; /* find says it */
}

/* A step may have been staged, or given up, meanwhile. */
static int step_find(struct cli *c, const char *job, const struct address *a, struct memory_step *m,
		     struct ckpt_err *err)
{
	struct store_ref ref = { .step_fd = -1 };
	char dir[PATH_MAX], name[32] = "latest";
	int rc;

	if (snprintf(dir, sizeof dir, "%s/%s", m->dir, job) >= (int)sizeof dir)
		return ckpt_error(err, -ENAMETOOLONG, "the path %.60s... is too long", m->dir);
	if (a->kind == ADDRESS_STEP)
		snprintf(name, sizeof name, "%" PRIu64, a->n);
	if (access(dir, F_OK) < 0)
		return ckpt_error(err, -ENOENT, "ckptd holds no staged step of job %s any more",
				  job);
	rc = store_resolve(c->ops, formats[0], dir, name, &ref, err);
	if (rc == -ENOENT && a->kind == ADDRESS_STEP)
		return ckpt_error(err, rc,
				  "step %" PRIu64 " of job %s is in memory, but not the newest "
				  "there: only that one can be read",
				  a->n, job);
	if (rc)
		return rc;
	(void)close(ref.step_fd);
	memcpy(m->path, ref.path, sizeof m->path);
	return 0;
}

static int step_write(struct cli *c, struct control *k, const struct address *a, const char *beside,
		      struct memory_step *ret, struct ckpt_err *err)
{
	cleanup_close int fd = -1;
	uint32_t job;
	int rc = control_report(k, err);

	if (rc == 0)
		rc = control_job(k, a->job[0] ? a->job : NULL, &job, err);
	if (rc == 0)
		rc = check_staged(&k->report, job, a, err);
	if (rc == 0)
		rc = make_dir(beside, ret, &fd, err);
	if (rc == 0) {
		char name[sizeof k->report.job->name];

		memcpy(name, k->report.job[job].name, sizeof name);
		rc = step_order(k, k->report.job[job].id, fd, err);
		if (rc == 0)
			rc = step_find(c, name, a, ret, err);
	}
	return rc;
}

int memory_step_get(struct cli *c, const char *name, const char *beside, struct memory_step *ret)
{
	struct control k = { .sock = -1 };
	struct ckpt_err err = { 0 };
	struct address a;
	int rc = address_parse(name, &a, &err), code;

	*ret = (struct memory_step){ 0 };
	if (!rc && a.kind != ADDRESS_STEP && (a.kind != ADDRESS_LATEST || a.n))
		rc = ckpt_error(&err, -EINVAL,
				"\"%.80s\" names no step in memory: give latest, a step's number, "
				"or one of these behind JOB@",
				name);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl export latest DIR --from-memory --mesh SPEC");
	rc = daemon_ask_open(&k, c, 0, &err);
	if (rc == 0)
		rc = step_write(c, &k, &a, beside, ret, &err);
	if (rc == -ENOENT)
		code = cli_fail(c, rc, &err, "ckptctl status; what is on disk: ckptctl ls");
	else if (rc == -EBUSY)
		code = cli_fail(c, rc, &err, "this again, when that one is over");
	else
		code = rc ? daemon_ask_fail(c, &k, rc, &err) : CLI_OK;
	control_close(&k);
	return code;
}
