// SPDX-License-Identifier: Apache-2.0
// rescue.c - DRAIN to another directory: the staged step of a job is committed in DIR/JOB, also if
// the job's own directory was moved or removed, or hangs. Called by commands and snap.
// Invariants: a rescue reads the slots and changes nothing else, and the step itself continues
// beside it; a step that wants averages is rescued with them, or not at all.
#include "daemon/average.h"
#include "formats/native/native.h"
#include <inttypes.h>
#include <stdio.h>

struct rescue {
	struct task task;
	struct job *job; /* keeping, while the directory is claimed */
	uint64_t number; /* of the DRAIN */
	bool copy;	 /* WIRE_COPY: what is written there is not kept */
	struct device *device;
	int dir_fd;
	struct io_stat *held; /* [nheld] directories that launches write to: not this one */
	uint32_t nheld;
	struct store *store;
	struct place *place; /* once it is claimed */
	bool claiming;
	struct snap *writing;
	int rc;
	struct ckpt_err err;
};

bool rescue_has(const struct job *j, uint64_t number)
{
	return j->rescue && j->rescue->number == number;
}

void rescue_free(struct job *j)
{
	struct rescue *x = TAKE(j->rescue);

	if (!x)
		return;
	if (x->dir_fd >= 0)
		(void)close(x->dir_fd);
	store_close(x->store);
	place_unref(x->place);
	device_unref(x->device);
	free(x->held);
	free(x);
}

static void rescue_over(struct snap *s, int rc, const char *text)
{
	s->rescue = false;
	control_rescued(s, s->job->rescue->number, rc, text);
}

void rescue_lost(struct snap *s, int rc, const char *text)
{
	if (s->rescue && s->job->rescue && s->job->rescue->writing != s)
		rescue_over(s, rc, text);
}

/* --- claiming --- */
static int rescue_claim(struct rescue *x)
{
	const struct io_ops *ops = x->job->d->opts.ops;
	struct io_stat at = { 0 };
	uint64_t generation;
	int rc = store_open(ops, &format_native, x->dir_fd, x->job->name, true, &x->store, &x->err);

	if (rc == 0 && io_stat(ops, x->store->job_fd, &at) == 0)
		for (uint32_t i = 0; i < x->nheld && rc == 0; i++)
			if (x->held[i].dev == at.dev && x->held[i].ino == at.ino)
				rc = ckpt_error(
					&x->err, -EINVAL,
					"a launch of this ckptd writes to the directory %s below it: "
					"give another directory, or omit --to",
					x->job->name);
	if (rc == 0)
		rc = store_claim(x->store, 0, false, &generation, &x->err);
	if (rc == 0)
		rc = store_claim_wait(x->store, &x->err);
	return rc;
}

static void claim_run(struct task *t)
{
	struct rescue *x = (struct rescue *)t;

	x->rc = rescue_claim(x);
}

static void claim_done(struct task *t)
{
	struct rescue *x = (struct rescue *)t;
	struct job *j = x->job;

	x->claiming = false;
	j->keeping--;
	if (x->rc == 0 && !(x->place = place_new(j->d, TAKE(x->store))))
		x->rc = ckpt_error(&x->err, -ENOMEM, "no memory for another directory");
	/* Not before: as long as the other directory hangs, it holds no slot of the trainer's. */
	(void)job_rescue(j, x->copy, true);
	for (struct snap *s = j->snaps; s && x->rc < 0; s = s->next)
		if (s->rescue)
			rescue_over(s, x->rc, x->err.msg);
	job_settle(j);
}

/* Those of all jobs, for another store's directory of this name may be meant. */
static int held_list(struct rescue *x)
{
	const struct daemon *d = x->job->d;
	uint32_t most = 0;

	for (const struct job *j = d->jobs; j; j = j->next) {
		most++;
		for (const struct snap *s = j->snaps; s; s = s->next)
			most++;
	}
	x->held = calloc(most, sizeof *x->held);
	if (!x->held)
		return -ENOMEM;
	for (const struct job *j = d->jobs; j; j = j->next) {
		const struct place *p = j->place;

		if (p)
			x->held[x->nheld++] = (struct io_stat){ .dev = p->dev, .ino = p->ino };
		for (const struct snap *s = j->snaps; s; s = s->next) {
			p = s->launch->place;
			x->held[x->nheld++] = (struct io_stat){ .dev = p->dev, .ino = p->ino };
		}
	}
	return 0;
}

int rescue_start(struct job *j, int dir_fd, uint64_t number, bool copy, struct ckpt_err *err)
{
	uint64_t dev, ino;
	struct rescue *x;

	if (j->rescue || dir_look(dir_fd, &dev, &ino) < 0) {
		(void)close(dir_fd);
		return j->rescue
			       ? ckpt_error(
					 err, -EBUSY,
					 "another drain of job %s to a directory has not ended yet",
					 j->name)
			       : ckpt_error(err, -ENOTDIR, "the request has no directory");
	}
	x = calloc(1, sizeof *x);
	if (!x) {
		(void)close(dir_fd);
		return ckpt_error(err, -ENOMEM, "no memory for a drain");
	}
	x->job = j;
	x->number = number;
	x->copy = copy;
	x->dir_fd = dir_fd;
	j->rescue = x;
	if (!(x->device = device_get(j->d, dir_fd)) || held_list(x) < 0) {
		rescue_free(j);
		return ckpt_error(err, -ENOMEM, "no memory for a drain");
	}
	if (!job_rescue(j, copy, false)) {
		rescue_free(j); /* nothing is staged: no directory is made either */
		return 0;
	}
	x->claiming = true;
	j->keeping++;
	device_task(x->device, LANE_ASK, &x->task, claim_run, claim_done);
	return 0;
}

/* --- writing, the oldest first --- */
static bool averages_lost(struct snap *s)
{
	if (!average_wanted(s) || !s->pass_failed)
		return false;
	rescue_lost(s, -EAGAIN,
		    "its averages could not be made, and a step is not written without those that "
		    "its job declares");
	return true;
}

void rescue_next(struct job *j)
{
	struct rescue *x = j->rescue;
	struct snap *due = NULL;
	bool waits = false;

	if (!x || x->claiming || x->writing)
		return;
	for (struct snap *s = j->snaps; s; s = s->next) {
		if (!s->rescue || averages_lost(s))
			continue;
		waits = true;
		if (s->phase != PHASE_COLLECTING && snap_guarded(s) > 0 && !average_wanted(s) &&
		    (!due || s->staged_at < due->staged_at))
			due = s;
	}
	if (!waits) {
		rescue_free(j);
	} else if (due) {
		x->writing = due;
		due->tasks++;
		persist_rescue(due, x->place);
	}
}

void rescue_written(struct snap *s, int rc, const char *text)
{
	struct job *j = s->job;

	j->rescue->writing = NULL;
	s->tasks--;
	if (rc == 0) {
		if (!j->rescue->copy) {
			s->rescued = true;
			s->committed_at = now_ns();
		}
		/* A copy is no rescue: nothing is kept there. */
		log_line(&j->d->opts.log, j->rescue->copy ? LOG_DEBUG : LOG_NOTICE,
			 "%s: step %" PRIu64 " of job %s is in another directory now",
			 j->rescue->copy ? "copy" : "rescue", s->step, j->name);
	} else {
		log_line(&j->d->opts.log, LOG_ERROR,
			 "%s: step %" PRIu64
			 " of job %s could not be written to another directory: %s",
			 j->rescue->copy ? "copy" : "rescue", s->step, j->name, text);
	}
	rescue_over(s, rc, text);
	job_settle(j);
}
