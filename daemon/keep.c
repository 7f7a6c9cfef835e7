// SPDX-License-Identifier: Apache-2.0
// keep.c - the store that a job is written to: what it is like, and what room it has. Called by
// launch, persist, commands and loop.
// Invariant: nothing here writes what a checkpoint is made of, or holds up the owner.
#include "daemon/state.h"
#include "ckpt/base/error.h"
#include <inttypes.h>
#include <stdio.h>

#define LOOK_NS (10 * NS_PER_S) /* from one look at the free space to the next */

/* "149 GiB": 32 bytes */
static const char *human(uint64_t bytes, char *buf)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double x = (double)bytes;
	uint32_t i = 0;

	for (; x >= 1024 && i + 1 < ARRAY_LEN(unit); i++)
		x /= 1024;
	snprintf(buf, 32, i && x < 10 ? "%.1f %s" : "%.0f %s", x, unit[i]);
	return buf;
}

/* --- what it is like --- */
void keep_describe(struct daemon *d, const struct store *s)
{
	const struct io_ops *ops = d->opts.ops;
	const struct log *log = &d->opts.log;
	struct io_queue *q = NULL;
	struct io_space space;
	struct io_probe probe;
	struct ckpt_err err = { 0 };
	char engine[256], how[96], room[64] = "", buf[32];

	if (io_queue_open(ops, d->opts.engine, MOVE_DEPTH, &q, &err) < 0)
		snprintf(engine, sizeof engine, "%.250s", err.msg);
	else
		snprintf(engine, sizeof engine, "%.250s", io_queue_why(q));
	io_queue_close(q);
	if (io_probe(ops, s->job_fd, &probe, &err) < 0) {
		log_line(log, LOG_WARNING, "store: job %s: %s; %s", s->job, engine, err.msg);
		return;
	}
	if (probe.direct)
		snprintf(how, sizeof how, "O_DIRECT in multiples of %u", probe.align);
	else
		snprintf(how, sizeof how, "through the page cache (O_DIRECT is refused)");
	if (ops->space(ops->ctx, s->job_fd, &space) == 0 && space.total_bytes)
		snprintf(room, sizeof room, ", %s free", human(space.free_bytes, buf));
	log_line(log, LOG_NOTICE, "store: job %s: %s; %s; %s%s", s->job, engine, how, probe.fs_type,
		 room);
	if (probe.volatile_fs)
		log_line(log, LOG_WARNING,
			 "store: job %s is written to memory (%s): nothing survives power loss",
			 s->job, probe.fs_type);
}

/* --- room --- */
struct look {
	struct task task;
	struct job *job; /* looking: not freed */
	struct io_space space;
	int rc;
};

static void look_run(struct task *t)
{
	struct look *x = (struct look *)t;
	const struct io_ops *ops = x->job->d->opts.ops;

	x->rc = ops->space(ops->ctx, x->job->store->job_fd, &x->space);
}

static void look_done(struct daemon *d, struct task *t)
{
	struct look *x = (struct look *)t;
	bool known = x->rc == 0 && x->space.total_bytes;

	(void)d;
	x->job->keeping--;
	x->job->room.known = known;
	x->job->room.free_bytes = known ? x->space.free_bytes : 0;
	free(x);
}

static void look_start(struct job *j, uint64_t now)
{
	struct look *x = calloc(1, sizeof *x);

	j->room.looked_ns = now;
	if (!x)
		return;
	*x = (struct look){ .task = { look_run, look_done, NULL }, .job = j };
	j->keeping++;
	daemon_task(j->d, &j->d->keep, &x->task);
}

void keep_tick(struct job *j, uint64_t now)
{
	if (j->store && !j->keeping && !j->d->drain_until && j->launch &&
	    j->launch->state != LAUNCH_ENDED &&
	    (!j->room.looked_ns || elapsed_ns(j->room.looked_ns, now) > LOOK_NS))
		look_start(j, now);
}
