/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_status.c - ckptctl status: one screen about the daemon and its jobs, once or every second.
 * Invariant: a frame of -w is written at once, over the one before, so that nothing flickers.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/policy_show.h"
#include "ckpt/layout/human.h"
#include <stdarg.h>
#include <sys/ioctl.h>

#define FRAME_NS NS_PER_S
#define BAR 20

static const char *const launch_name[] = { [WIRE_NO_LAUNCH] = "none",
					   [WIRE_FORMING] = "forming",
					   [WIRE_READY] = "ready",
					   [WIRE_ENDED] = "ended" };
static const char *const rank_name[] = { [WIRE_ABSENT] = "absent",
					 [WIRE_ATTACHED] = "attached",
					 [WIRE_DIED] = "died",
					 [WIRE_DETACHED] = "detached" };
static const char *const step_name[] = {
	[WIRE_MARKED] = "copying",  [WIRE_STAGED] = "staged",	    [WIRE_QUEUED] = "queued",
	[WIRE_WRITING] = "writing", [WIRE_PERSISTED] = "persisted", [WIRE_COMMITTED] = "committed",
	[WIRE_TORN] = "torn",	    [WIRE_FAILED] = "failed",	    [WIRE_SKIPPED] = "skipped",
	[WIRE_THINNED] = "thinned",
};

struct stall {
	uint64_t last, max, sum, measured;
};

/* Of a job's ranks the one that was kept longest: the others wait for it. */
static struct stall job_stall(const struct wire_report *r, uint32_t job)
{
	struct stall s = { 0 };

	for (uint32_t i = 0; i < r->head->nrank; i++) {
		const struct wire_report_rank *k = &r->rank[i];

		if (k->job != job || !k->measured_ns)
			continue;
		s.last = MAX(s.last, k->stall_last_ns);
		s.max = MAX(s.max, k->stall_max_ns);
		s.max = MAX(s.max, k->stall_last_ns); /* which may have come later */
		s.sum = MAX(s.sum, k->stall_sum_ns);
		s.measured = MAX(s.measured, k->measured_ns);
	}
	return s;
}

static double stall_share(const struct stall *s)
{
	return s->measured ? MIN((double)s->sum / (double)s->measured, 1.0) : 0;
}

static double ns_seconds(uint64_t ns)
{
	return (double)ns / (double)NS_PER_S;
}

/* --- what is derived from the report --- */

static const char *const skip_name[WIRE_SKIPS] = {
	[WIRE_SKIP_FULL] = "full",	   [WIRE_SKIP_UNREADY] = "unready",
	[WIRE_SKIP_LATE] = "late",	   [WIRE_SKIP_COPYING] = "copying",
	[WIRE_SKIP_DRAINING] = "draining", [WIRE_SKIP_BLOB] = "blob",
	[WIRE_SKIP_DEVICE] = "gpu",
};
static const char *const skip_why[WIRE_SKIPS] = {
	[WIRE_SKIP_FULL] = "every slot was in use",
	[WIRE_SKIP_UNREADY] = "slots were not ready",
	[WIRE_SKIP_LATE] = "a rank came late",
	[WIRE_SKIP_COPYING] = "the copy before had not ended",
	[WIRE_SKIP_DRAINING] = "ckptd was stopping",
	[WIRE_SKIP_BLOB] = "a rank refused the step, or a blob was longer than its capacity",
	[WIRE_SKIP_DEVICE] = "a stream was being captured, or a device has failed",
};

/* Reasons that a newer ckptd knows, and those that an older one does not report. */
static uint64_t skipped_otherwise(const struct wire_report_job *j)
{
	uint64_t known = 0;

	for (uint32_t i = 0; i < WIRE_SKIPS; i++) {
		uint64_t left = j->skipped - known;

		known += skip_name[i] ? MIN(j->skipped_by[i], left) : 0;
	}
	return j->skipped - known;
}

/* Of the steps that were marked. */
static double skipped_share(const struct wire_report_job *j)
{
	double all = (double)j->taken + (double)j->skipped;

	return all > 0 ? (double)j->skipped / all : 0;
}

/* How fast the job is: its steps by the newest marks of its launch that the report has; its
 * snapshots by all marks since a rank attached, for steps that were only held in memory are not in
 * the report. */
struct pace_of_job {
	double steps, snapshots; /* per second; 0: not known */
	uint64_t mark_ns;	 /* of the newest; 0: not known */
};

static struct pace_of_job job_pace(const struct wire_report *r, uint32_t job)
{
	const struct wire_report_step *first = NULL, *last = NULL;
	struct pace_of_job p = { 0 };
	double s;

	for (uint32_t i = 0; i < r->head->nrank; i++) {
		const struct wire_report_rank *k = &r->rank[i];

		if (k->job == job && k->measured_ns && k->marks > 1)
			p.snapshots =
				MAX(p.snapshots, (double)k->marks / ns_seconds(k->measured_ns));
	}
	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *x = &r->step[i];

		if (x->job != job || x->generation != r->job[job].generation || !x->mark_ns)
			continue;
		last = !last || x->mark_ns > last->mark_ns ? x : last;
		first = !first || x->mark_ns < first->mark_ns ? x : first;
	}
	if (!last)
		return p;
	p.mark_ns = last->mark_ns;
	s = ns_seconds(last->mark_ns - first->mark_ns);
	if (s > 0 && last->step > first->step)
		p.steps = (double)(last->step - first->step) / s;
	return p;
}

/* Something that needs attention: the exit code is 3. */
static bool is_stuck(const struct wire_report_job *j)
{
	return j->stuck_ns > 0;
}

static bool is_failing(const struct wire_report_job *j)
{
	return j->failing[0] || j->failing_wall_ns;
}

static bool has_drifted(const struct wire_report_job *j)
{
	return j->drift[0] != 0;
}

static bool is_unread(const struct wire_report_job *j)
{
	return j->policy_from == WIRE_POLICY_UNREAD;
}

static bool has_died(const struct wire_report_job *j)
{
	return j->lost > 0;
}

static bool any_trouble(const struct control *k, const char *job)
{
	const struct wire_report *r = &k->report;

	for (uint32_t i = 0; i < r->head->naverage; i++)
		if (wire_average_is_bad(&r->average[i]) &&
		    control_is_meant(k, job, r->average[i].job))
			return true;
	for (uint32_t i = 0; i < r->head->njob; i++)
		if ((is_stuck(&r->job[i]) || is_failing(&r->job[i]) || has_drifted(&r->job[i]) ||
		     is_unread(&r->job[i]) || has_died(&r->job[i])) &&
		    control_is_meant(k, job, i))
			return true;
	return false;
}

/* --- for programs --- */
static void put_step(struct output *o, const char *key, uint64_t one_more)
{
	output_key(o, key, one_more ? cell_number(one_more - 1) : cell_none());
}

static void put_span(struct output *o, const char *key, uint64_t ns, bool known)
{
	output_key(o, key, known ? cell_real(ns_seconds(ns)) : cell_none());
}

static void json_ranks(struct output *o, const struct wire_report *r, uint32_t job)
{
	output_list(o, "ranks", NULL, 0);
	for (uint32_t i = 0; i < r->head->nrank; i++) {
		const struct wire_report_rank *k = &r->rank[i];

		if (k->job != job)
			continue;
		output_row(o);
		output_key(o, "rank", cell_number(k->rank));
		output_key(o, "state", cell_text(rank_name[k->state]));
		output_key(o, "pid", k->pid ? cell_number(k->pid) : cell_none());
		put_step(o, "newest_step", k->newest);
		output_key(o, "copied_bytes", cell_number(k->copy_bytes));
		put_span(o, "copied_s", k->copy_ns, true);
		put_span(o, "stall_last_s", k->stall_last_ns, k->measured_ns);
		put_span(o, "stall_max_s", k->stall_max_ns, k->measured_ns);
		put_span(o, "stall_sum_s", k->stall_sum_ns, k->measured_ns);
		output_key(o, "average_waits", cell_number(k->every_waits));
		put_span(o, "average_wait_s", k->every_wait_ns, k->measured_ns);
		output_close(o);
	}
	output_close(o);
}

static void json_steps(struct output *o, const struct wire_report *r, uint32_t job)
{
	output_list(o, "steps", NULL, 0);
	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];
		bool writing = s->state == WIRE_WRITING || s->state == WIRE_PERSISTED;

		if (s->job != job)
			continue;
		output_row(o);
		output_key(o, "step", cell_number(s->step));
		output_key(o, "state", cell_text(step_name[s->state]));
		output_key(o, "generation", cell_number(s->generation));
		output_key(o, "in_memory", cell_flag((s->flags & WIRE_HELD) != 0));
		output_key(o, "to_write", cell_flag((s->flags & WIRE_TO_WRITE) != 0));
		output_key(o, "marked", cell_of(CELL_TIME, control_wall(r, s->mark_ns)));
		put_span(o, "staged_s", s->staged_ns, s->staged_ns);
		put_span(o, "persisted_s", s->persisted_ns, s->persisted_ns);
		put_span(o, "committed_s", s->committed_ns, s->committed_ns);
		output_key(o, "written_bytes", writing ? cell_number(s->written) : cell_none());
		output_key(o, "total_bytes", writing ? cell_number(s->total) : cell_none());
		put_span(o, "writing_s", s->writing_ns, writing);
		output_key(o, "why", s->text[0] ? cell_text(s->text) : cell_none());
		output_close(o);
	}
	output_close(o);
}

static bool fits_known(const struct wire_report_job *j)
{
	return j->free_mib && j->next_mib;
}

static bool next_fits(const struct wire_report_job *j)
{
	return j->free_mib - 1 >= j->next_mib;
}

/* What there is if the trainer, or the host, dies now. */
static void json_if_it_dies(struct output *o, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	const struct wire_report_step *s = control_staged(r, i);

	output_object(o, "if_it_dies");
	output_key(o, "memory_step", s ? cell_number(s->step) : cell_none());
	put_span(o, "memory_age_s", s ? elapsed_ns(s->mark_ns, r->head->now_ns) : 0, s);
	put_step(o, "disk_step", j->last_committed);
	put_span(o, "disk_age_s", elapsed_ns(j->last_committed_wall_ns, r->head->wall_ns),
		 j->last_committed);
	output_close(o);
}

static void json_trouble(struct output *o, const struct wire_report_job *j)
{
	output_object(o, "skipped");
	output_key(o, "share", cell_real(skipped_share(j)));
	for (uint32_t i = 0; i < WIRE_SKIPS; i++)
		if (skip_name[i])
			output_key(o, skip_name[i], cell_number(j->skipped_by[i]));
	output_key(o, "otherwise", cell_number(skipped_otherwise(j)));
	output_close(o);
	output_object(o, "failing");
	output_key(o, "text", cell_word(j->failing));
	output_key(o, "since", cell_of(CELL_TIME, j->failing_wall_ns));
	output_close(o);
	output_object(o, "replicas");
	output_key(o, "differ", cell_word(j->drift));
	output_close(o);
	output_object(o, "device");
	output_key(o, "name", cell_word(j->device));
	put_span(o, "stuck_s", j->stuck_ns, is_stuck(j));
	output_close(o);
}

static const char *const gate_name[WIRE_GATES] = {
	[WIRE_GATE_NOT_WANTED] = "not_wanted",
	[WIRE_GATE_LOSS] = "loss",
	[WIRE_GATE_NONFINITE] = "nonfinite",
};

/* Numbers of what was never made are null. */
static void put_made(struct output *o, const struct wire_report_average *a, const char *key,
		     uint64_t n)
{
	output_key(o, key, a->flags & WIRE_AVERAGE_MADE ? cell_number(n) : cell_none());
}

static void json_averages(struct output *o, const struct wire_report *r, uint32_t job)
{
	const struct wire_report_job *j = &r->job[job];

	output_object(o, "averaging");
	output_key(o, "bytes", cell_number(j->average_bytes));
	output_key(o, "averaged", cell_number(j->averaged));
	output_key(o, "given_up", cell_number(j->average_given_up));
	output_key(o, "left_out_count", cell_number(j->average_left_out));
	output_key(o, "gated_not_wanted", cell_number(j->average_gated[WIRE_GATE_NOT_WANTED]));
	output_key(o, "gated_loss", cell_number(j->average_gated[WIRE_GATE_LOSS]));
	output_key(o, "gated_nonfinite", cell_number(j->average_gated[WIRE_GATE_NONFINITE]));
	output_close(o);
	output_list(o, "averages", NULL, 0);
	for (uint32_t i = 0; i < r->head->naverage; i++) {
		const struct wire_report_average *a = &r->average[i];
		bool made = a->flags & WIRE_AVERAGE_MADE;

		if (a->job != job)
			continue;
		output_row(o);
		output_key(o, "name", cell_text(a->name));
		output_key(o, "rule", cell_number(a->rule));
		output_key(o, "schedule", cell_text(a->schedule));
		put_step(o, "step", a->step);
		put_made(o, a, "updates", a->updates);
		put_made(o, a, "left_out_count", a->left_out);
		output_key(o, "left_out_complete",
			   made ? cell_flag(!(a->flags & WIRE_AVERAGE_AT_LEAST)) : cell_none());
		put_step(o, "last_step", a->last_step);
		put_step(o, "since_step", a->since);
		put_made(o, a, "lag_steps", a->lag);
		output_key(o, "product", made ? cell_real(a->product) : cell_none());
		output_key(o, "gate",
			   made && a->gate ? cell_text(gate_name[a->gate]) : cell_none());
		output_key(o, "kahan", cell_flag((a->flags & WIRE_AVERAGE_KAHAN) != 0));
		output_key(o, "mixed", cell_flag((a->flags & WIRE_AVERAGE_MIXED) != 0));
		output_key(o, "seeded", cell_flag((a->flags & WIRE_AVERAGE_SEEDED) != 0));
		output_key(o, "worst", made && a->worst >= 0 ? cell_real(a->worst) : cell_none());
		output_key(o, "worst_tensor", cell_word(a->worst_name));
		put_made(o, a, "far_count", a->far);
		put_made(o, a, "nan_count", a->nan);
		put_made(o, a, "inf_count", a->inf);
		put_made(o, a, "nan_source_count", a->nan_sources);
		put_made(o, a, "inf_source_count", a->inf_sources);
		put_made(o, a, "convex_broken_count", a->convex_broken);
		output_key(o, "convex_broken_tensor", cell_word(a->convex_name));
		output_key(o, "ill", made ? cell_flag(wire_average_is_bad(a)) : cell_none());
		output_close(o);
	}
	output_close(o);
}

static void json_job(struct output *o, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	struct stall stall = job_stall(r, i);
	struct pace_of_job pace = job_pace(r, i);
	struct policy_shown policy;

	output_row(o);
	output_key(o, "job", cell_text(j->name));
	output_key(o, "store", j->store[0] ? cell_text(j->store) : cell_none());
	output_key(o, "launch", cell_text(launch_name[j->launch]));
	output_key(o, "generation", cell_number(j->generation));
	output_key(o, "world_size", cell_number(j->world));
	output_key(o, "attached_count", cell_number(j->attached));
	output_key(o, "died_count", cell_number(j->lost));
	output_key(o, "died_at", cell_of(CELL_TIME, j->lost_wall_ns));
	output_key(o, "slot_count", cell_number(j->nslot));
	put_step(o, "newest_step", j->newest);
	put_span(o, "newest_age_s", elapsed_ns(pace.mark_ns, r->head->now_ns), pace.mark_ns);
	output_key(o, "trigger_waits", cell_flag(j->trigger_waits));
	json_if_it_dies(o, r, i);
	output_object(o, "rate");
	output_key(o, "steps_per_s", pace.steps > 0 ? cell_real(pace.steps) : cell_none());
	output_key(o, "snapshots_per_s",
		   pace.snapshots > 0 ? cell_real(pace.snapshots) : cell_none());
	output_close(o);
	output_object(o, "counts");
	output_key(o, "taken", cell_number(j->taken));
	output_key(o, "skipped", cell_number(j->skipped));
	output_key(o, "torn", cell_number(j->torn));
	output_key(o, "staged", cell_number(j->staged));
	output_key(o, "persisted", cell_number(j->persisted));
	output_key(o, "committed", cell_number(j->committed));
	output_key(o, "failed", cell_number(j->failed));
	output_key(o, "thinned", cell_number(j->thinned));
	output_close(o);
	json_trouble(o, j);
	output_object(o, "last_committed");
	put_step(o, "step", j->last_committed);
	output_key(o, "at", cell_of(CELL_TIME, j->last_committed_wall_ns));
	put_span(o, "took_s", j->last_commit_ns, j->last_committed);
	output_close(o);
	output_object(o, "memory");
	output_key(o, "used_bytes", cell_number(j->used));
	output_key(o, "resident_bytes", cell_number(j->held));
	output_key(o, "mapped_bytes", cell_number(j->mapped));
	output_close(o);
	output_object(o, "disk");
	output_key(o, "free_bytes",
		   j->free_mib ? cell_number((uint64_t)(j->free_mib - 1) * MIB) : cell_none());
	output_key(o, "next_step_bytes",
		   j->next_mib ? cell_number((uint64_t)j->next_mib * MIB) : cell_none());
	output_key(o, "fits", fits_known(j) ? cell_flag(next_fits(j)) : cell_none());
	output_close(o);
	output_object(o, "stall");
	put_span(o, "last_s", stall.last, stall.measured);
	put_span(o, "max_s", stall.max, stall.measured);
	put_span(o, "sum_s", stall.sum, stall.measured);
	output_key(o, "share", stall.measured ? cell_real(stall_share(&stall)) : cell_none());
	output_close(o);
	output_object(o, "error");
	output_key(o, "text", j->error[0] ? cell_text(j->error) : cell_none());
	output_key(o, "at", cell_of(CELL_TIME, j->error_wall_ns));
	put_step(o, "step", j->error_step);
	output_close(o);
	output_object(o, "keeps");
	policy_shown_report(j, &policy);
	policy_put(o, &policy);
	output_close(o);
	json_averages(o, r, i);
	json_ranks(o, r, i);
	json_steps(o, r, i);
	output_close(o);
}

/* r NULL: no daemon. job: the one that was named; NULL: none. */
static void report_put(struct output *o, const struct control *k, const char *job,
		       const struct wire_report *r, const char *host)
{
	output_key(o, "running", cell_flag(r != NULL));
	output_key(o, "socket", cell_text(k->socket));
	output_key(o, "host", cell_text(host));
	output_key(o, "version", r ? cell_text(r->head->version) : cell_none());
	output_key(o, "pid", r ? cell_number(r->head->pid) : cell_none());
	put_span(o, "up_s", r ? r->head->now_ns - MIN(r->head->began_ns, r->head->now_ns) : 0, r);
	output_key(o, "stopping", r ? cell_flag(r->head->draining) : cell_none());
	output_key(o, "cut", r ? cell_flag(r->head->cut) : cell_none());
	output_list(o, "jobs", NULL, 0);
	for (uint32_t i = 0; r && i < r->head->njob; i++)
		if (control_is_meant(k, job, i))
			json_job(o, r, i);
	output_close(o);
}

/* --- for people --- */
static void text_label(struct cli *c, const char *head, enum cell_style style, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void text_label(struct cli *c, const char *head, enum cell_style style, const char *fmt, ...)
{
	const struct column col = { NULL, head, false, FIT_WHOLE };
	char line[1536];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	output_put(c->o, &col, cell_styled(cell_text(line), style));
}

static void bar_print(const struct cli *c, double part, char *buf)
{
	uint32_t full = (uint32_t)(part * BAR);

	*buf = 0;
	for (uint32_t i = 0; i < BAR; i++)
		strcat(buf, i < full ? (c->out_screen.unicode ? "\u2588" : "#")
				     : (c->out_screen.unicode ? "\u2591" : "."));
}

static void text_writing(struct cli *c, const struct wire_report_step *s, const char *head)
{
	double part = s->total ? (double)s->written / (double)s->total : 0;
	double rate = s->writing_ns ? (double)s->written / ns_seconds(s->writing_ns) : 0;
	char meter[4 * BAR + 1], done[HUMAN_BYTES], all[HUMAN_BYTES], speed[HUMAN_BYTES],
		left[HUMAN_BYTES] = "";

	bar_print(c, part, meter);
	text_label(c, head, STYLE_PLAIN, "step %llu writing %s %.0f %%",
		   (unsigned long long)s->step, meter, 100 * part);
	human_bytes(s->written, done);
	human_bytes(s->total, all);
	human_bytes((uint64_t)MIN(rate, 1e18), speed);
	if (rate > 0)
		human_span((uint64_t)MIN((double)(s->total - s->written) / rate * 1e9, 1e18), left);
	text_label(c, "", STYLE_PLAIN, "%s of %s, %s/s%s%s%s", done, all, speed, *left ? ", " : "",
		   left, *left ? " left" : "");
}

/* What is on its way to the disk, oldest last; what is only held is no news. */
static void text_flight(struct cli *c, const struct wire_report *r, uint32_t job)
{
	const char *head = "in flight";

	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];
		unsigned long long step = s->step;

		if (s->job != job || !(s->flags & WIRE_HELD))
			continue;
		if (s->state == WIRE_WRITING)
			text_writing(c, s, head);
		else if (s->state == WIRE_PERSISTED)
			text_label(c, head, STYLE_PLAIN, "step %llu written, to be committed",
				   step);
		else if (s->state == WIRE_QUEUED)
			text_label(c, head, STYLE_PLAIN, "step %llu waits to be written", step);
		else if (s->state == WIRE_MARKED)
			text_label(c, head, STYLE_PLAIN, "step %llu is being copied", step);
		else if (s->state == WIRE_FAILED)
			text_label(c, head, STYLE_BAD,
				   "step %llu could not be written, kept in memory", step);
		else
			continue;
		head = "";
	}
}

static void text_ranks(struct cli *c, const struct wire_report *r, uint32_t job)
{
	const struct wire_report_job *j = &r->job[job];
	enum cell_style style = j->launch == WIRE_READY && j->attached == j->world ? STYLE_GOOD
				: j->launch == WIRE_ENDED			   ? STYLE_DIM
										   : STYLE_WARN;

	char when[HUMAN_BYTES];

	if (!j->world) {
		text_label(
			c, "ranks", STYLE_WARN, "%s",
			j->launch == WIRE_FORMING
				? "attaching; ckptd reads the launch's number from the store"
			: j->error[0]
				? "none: the launch could not begin"
				: "none: the launch could not begin; the trainer's log says why");
		return;
	}
	text_label(c, "ranks", style, "%u of %u attached, %s, generation %llu", j->attached,
		   j->world, launch_name[j->launch], (unsigned long long)j->generation);
	if (has_died(j))
		text_label(c, "", STYLE_BAD,
			   "%u of %u died (ended, and had not detached), the last one %s", j->lost,
			   j->world, human_ago(j->lost_wall_ns, r->head->wall_ns, when));
	for (uint32_t i = 0, listed = 0; i < r->head->nrank && j->launch != WIRE_ENDED; i++) {
		const struct wire_report_rank *k = &r->rank[i];

		if (k->job != job || k->state == WIRE_ATTACHED || listed == 4)
			continue;
		if (++listed == 4)
			text_label(c, "", STYLE_WARN, "and more: ckptctl status --json");
		else
			text_label(c, "", STYLE_WARN, "rank %u: %s", k->rank, rank_name[k->state]);
	}
}

static void text_error(struct cli *c, const struct wire_report *r, const struct wire_report_job *j)
{
	char when[HUMAN_BYTES], step[HUMAN_BYTES] = "";

	if (!j->error[0])
		return;
	if (j->error_step && !strstr(j->error, "step ")) /* most say it themselves */
		snprintf(step, sizeof step, ", step %llu", (unsigned long long)j->error_step - 1);
	cli_mark(c, STYLE_BAD, "  last error      ", 18, "%s%s: %s",
		 human_ago(j->error_wall_ns, r->head->wall_ns, when), step, j->error);
}

/* "step 212, 0.4 s ago, 2.1 steps/s" */
static void text_now(struct cli *c, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	struct pace_of_job p = job_pace(r, i);
	char when[HUMAN_BYTES] = "", rate[96] = "";

	if (!j->newest)
		return;
	if (p.mark_ns) {
		strcpy(when, ", ");
		human_ago(control_wall(r, p.mark_ns), r->head->wall_ns, when + 2);
	}
	if (j->attached && p.steps > 0)
		human_add(rate, sizeof rate, "", "%.3g steps/s", p.steps);
	if (j->attached && p.snapshots > 0)
		human_add(rate, sizeof rate, ", ", "a snapshot every %s",
			  SPAN_TEXT((uint64_t)MIN(1e9 / p.snapshots, 1e18)));
	text_label(c, j->attached ? "now" : "last step", STYLE_PLAIN, "step %llu%s%s%s",
		   (unsigned long long)j->newest - 1, when, *rate ? "; " : "", rate);
}

/* The question that everything here is for. */
static void text_if_it_dies(struct cli *c, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	const struct wire_report_step *s = control_staged(r, i);
	char a[HUMAN_BYTES], b[HUMAN_BYTES], memory[96], disk[96];

	if (s)
		snprintf(memory, sizeof memory, "memory holds step %llu (%s)",
			 (unsigned long long)s->step,
			 human_ago(control_wall(r, s->mark_ns), r->head->wall_ns, a));
	else
		snprintf(memory, sizeof memory, "memory holds no step");
	if (j->last_committed)
		snprintf(disk, sizeof disk, "disk step %llu (%s)",
			 (unsigned long long)j->last_committed - 1,
			 human_ago(j->last_committed_wall_ns, r->head->wall_ns, b));
	else
		snprintf(disk, sizeof disk, "disk none since ckptd began");
	text_label(c, j->attached ? "if it dies now" : "what is left",
		   s || j->last_committed ? STYLE_STRONG : STYLE_WARN, "%s, %s", memory, disk);
}

#define SKIPS_MANY 0.1 /* of the snapshots: worth a second look */

static void text_skipped(struct cli *c, const struct wire_report_job *j)
{
	enum cell_style style = skipped_share(j) >= SKIPS_MANY ? STYLE_WARN : STYLE_PLAIN;
	const char *head = "skipped";
	uint64_t otherwise = skipped_otherwise(j);

	if (!j->skipped)
		return;
	text_label(c, head, style, "%s of %s snapshots, %.2g %%", COUNT_TEXT(j->skipped),
		   COUNT_TEXT(j->taken + j->skipped), 100 * skipped_share(j));
	for (uint32_t i = 0; i < WIRE_SKIPS; i++)
		if (skip_why[i] && j->skipped_by[i])
			text_label(c, "", style, "%s: %s", COUNT_TEXT(j->skipped_by[i]),
				   skip_why[i]);
	if (otherwise && otherwise < j->skipped)
		text_label(c, "", style, "%s: for another reason", COUNT_TEXT(otherwise));
}

static void text_trouble(struct cli *c, const struct wire_report *r,
			 const struct wire_report_job *j)
{
	char since[HUMAN_BYTES] = "";

	if (is_stuck(j))
		cli_mark(c, STYLE_BAD, "  disk hangs      ", 18,
			 "%s has not answered for %s; the steps that are being written wait for it",
			 j->device[0] ? j->device : "the device below the store",
			 SPAN_TEXT(j->stuck_ns));
	for (const char *p = j->drift; *p; p += strcspn(p, "\n"), p += *p == '\n')
		cli_mark(c, STYLE_BAD, p == j->drift ? "  replicas differ " : "                  ",
			 18, "%.*s", (int)strcspn(p, "\n"), p);
	if (!is_failing(j))
		return;
	if (j->failing_wall_ns)
		snprintf(since, sizeof since,
			 "since %s: ", SPAN_TEXT(elapsed_ns(j->failing_wall_ns, r->head->wall_ns)));
	cli_mark(c, STYLE_BAD, "  failing         ", 18, "%s%s", since,
		 j->failing[0] ? j->failing : "steps cannot be written");
}

static const char *const gate_why[WIRE_GATES] = {
	[WIRE_GATE_NONE] = "",
	[WIRE_GATE_NOT_WANTED] = ", kept out: CKPT_NO_EMA",
	[WIRE_GATE_LOSS] = ", kept out: its loss",
	[WIRE_GATE_NONFINITE] = ", kept out: NaN or infinite weights",
};

/* What is wrong with it, for people; "": nothing that is known. */
static void average_ill(const struct wire_report_average *a, char *buf, size_t bytes)
{
	*buf = 0;
	if (a->nan || a->inf)
		human_add(buf, bytes, "", "; it has %llu NaN and %llu infinite values",
			  (unsigned long long)a->nan, (unsigned long long)a->inf);
	if (a->far)
		human_add(buf, bytes, "", "; %llu tensor%s too far from the weights",
			  (unsigned long long)a->far, a->far == 1 ? " is" : "s are");
	if (a->convex_broken)
		human_add(buf, bytes, "",
			  "; larger than the weights ever were in %llu tensor%s (%.150s)",
			  (unsigned long long)a->convex_broken, a->convex_broken == 1 ? "" : "s",
			  a->convex_name);
	if (a->flags & WIRE_AVERAGE_MIXED)
		human_add(buf, bytes, "", "; its parts have different chains of updates");
}

static bool left_out_many(const struct wire_report_average *a)
{
	return a->left_out > (a->left_out + a->updates) / 100;
}

/* `every`: of the rank that has waited for the longest time. */
static void text_every(struct cli *c, const struct wire_report *r, uint32_t job)
{
	const struct wire_report_rank *most = NULL;

	for (uint32_t i = 0; i < r->head->nrank; i++)
		if (r->rank[i].job == job &&
		    (!most || r->rank[i].every_wait_ns > most->every_wait_ns))
			most = &r->rank[i];
	if (most && most->every_waits)
		text_label(c, "", STYLE_PLAIN,
			   "the trainer has waited for them %s time%s, %s in all",
			   COUNT_TEXT(most->every_waits), most->every_waits == 1 ? "" : "s",
			   SPAN_TEXT(most->every_wait_ns));
}

static void text_averages(struct cli *c, const struct wire_report *r, uint32_t job)
{
	const struct wire_report_job *j = &r->job[job];
	const char *head = "averages";
	char ill[1024], worst[240], left[64];

	for (uint32_t i = 0; i < r->head->naverage; i++) {
		const struct wire_report_average *a = &r->average[i];

		/* A rule's own schedule has a line only if its health is bad. */
		if (a->job != job || (a->rule && !wire_average_is_bad(a)))
			continue;
		average_ill(a, ill, sizeof ill);
		*worst = *left = 0;
		if (a->left_out)
			snprintf(left, sizeof left, ", %s%llu left out",
				 a->flags & WIRE_AVERAGE_AT_LEAST ? "at least " : "",
				 (unsigned long long)a->left_out);
		if (a->worst >= 0)
			snprintf(worst, sizeof worst, ", %.2g from the weights at most (%.150s)",
				 a->worst, a->worst_name);
		if (!(a->flags & WIRE_AVERAGE_MADE))
			text_label(c, head, STYLE_PLAIN, "%s: no step in memory has it", a->name);
		else
			text_label(c, head,
				   *ill		      ? STYLE_BAD
				   : left_out_many(a) ? STYLE_WARN
						      : STYLE_PLAIN,
				   "%s%s: step %llu, %llu update%s%s, %llu step%s behind%s%s%s",
				   a->name, a->rule ? ", a rule" : "",
				   (unsigned long long)a->step - 1, (unsigned long long)a->updates,
				   a->updates == 1 ? "" : "s", left, (unsigned long long)a->lag,
				   a->lag == 1 ? "" : "s", gate_why[a->gate], worst, ill);
		head = "";
	}
	if (!j->average_bytes && !j->averaged)
		return;
	if (j->average_bytes)
		text_label(c, head, STYLE_PLAIN, "%s of the slots; %s step%s averaged",
			   BYTES_TEXT(j->average_bytes), COUNT_TEXT(j->averaged),
			   j->averaged == 1 ? "" : "s");
	else /* the job has ended, and its slots are only what keeps its newest step */
		text_label(c, head, STYLE_PLAIN, "%s step%s averaged", COUNT_TEXT(j->averaged),
			   j->averaged == 1 ? "" : "s");
	if (j->average_given_up)
		text_label(c, "", STYLE_WARN, "%s step%s none: the next ones needed their slots",
			   COUNT_TEXT(j->average_given_up),
			   j->average_given_up == 1 ? " has" : "s have");
	text_every(c, r, job);
}

static void text_policy(struct cli *c, const struct wire_report *r, const struct wire_report_job *j)
{
	struct policy_shown p;
	char words[POLICY_WORDS];

	policy_shown_report(j, &p);
	text_label(c, "keeps", is_unread(j) ? STYLE_BAD : STYLE_PLAIN, "%s",
		   policy_words(&p, r->head->wall_ns, words));
}

static void text_job(struct cli *c, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	struct stall stall = job_stall(r, i);
	char a[HUMAN_BYTES], took[96] = "";

	cli_say(c, STYLE_PLAIN, "%s", "");
	cli_mark(c, STYLE_STRONG, j->name, 2, "%s%s", j->store[0] ? " in " : "", j->store);
	text_ranks(c, r, i);
	if (!j->world && !j->taken && !j->skipped) {
		text_error(c, r, j);
		return; /* nothing was done yet */
	}
	text_now(c, r, i);
	text_if_it_dies(c, r, i);
	text_trouble(c, r, j);
	text_flight(c, r, i);
	if (j->trigger_waits)
		text_label(c, "ordered", STYLE_WARN,
			   "the daemon will write the next step that is marked");
	if (stall.measured && j->attached)
		text_label(c, "trainer stall", STYLE_PLAIN,
			   "%s last, %s at most, %.2g %% of the time", human_span(stall.last, a),
			   SPAN_TEXT(stall.max), 100 * stall_share(&stall));
	if (j->held)
		text_label(c, "staging memory", STYLE_PLAIN, "%s of %s in use, %u slots a rank",
			   human_bytes(j->used, a), BYTES_TEXT(j->held), j->nslot);
	if (fits_known(j))
		text_label(c, "disk", next_fits(j) ? STYLE_PLAIN : STYLE_BAD,
			   "%s free, the next step %s %s",
			   human_bytes((uint64_t)(j->free_mib - 1) * MIB, a),
			   next_fits(j) ? "takes" : "needs",
			   BYTES_TEXT((uint64_t)j->next_mib * MIB));
	text_policy(c, r, j);
	text_label(c, "snapshots", STYLE_PLAIN, "%s taken, %s skipped, %s torn",
		   human_count(j->taken, a), COUNT_TEXT(j->skipped), COUNT_TEXT(j->torn));
	if (j->last_committed)
		snprintf(took, sizeof took, ", the last in %s", SPAN_TEXT(j->last_commit_ns));
	text_label(c, "", STYLE_PLAIN, "%s staged, %s failed, %s committed%s",
		   human_count(j->staged, a), COUNT_TEXT(j->failed), COUNT_TEXT(j->committed),
		   took);
	text_skipped(c, j);
	if (j->thinned)
		text_label(
			c, "thinned", STYLE_WARN,
			"%s steps: the disk was busy, and a newer step was written in their place",
			human_count(j->thinned, a));
	text_averages(c, r, i);
	text_error(c, r, j);
}

static void report_say(struct cli *c, const struct control *k, const char *job, const char *host,
		       const char *why)
{
	const struct wire_report *r = k->report.head ? &k->report : NULL;
	const char *dot = c->out_screen.unicode ? "\u25cf" : "*";
	char up[HUMAN_BYTES];
	uint32_t shown = 0;

	if (!r) {
		cli_mark(c, STYLE_BAD, dot, 2, " %s", why);
		return;
	}
	human_span(r->head->now_ns - MIN(r->head->began_ns, r->head->now_ns), up);
	cli_mark(c, r->head->draining ? STYLE_WARN : STYLE_GOOD, dot, 2,
		 " %s on %s, pid %u, up %s%s", r->head->version, host, r->head->pid, up,
		 r->head->draining ? ", stopping: it writes the staged steps" : "");
	for (uint32_t i = 0; i < r->head->njob; i++)
		if (control_is_meant(k, job, i)) {
			text_job(c, r, i);
			shown++;
		}
	if (!shown)
		cli_say(c, STYLE_DIM,
			r->head->njob ? "  The job has not attached yet."
				      : "  No job has attached yet.");
	if (r->head->cut)
		cli_say(c, STYLE_WARN,
			"The report is cut: ckptd has more jobs, ranks or steps than fit into it.");
}

/* why: there is no report. */
static void frame_print(struct cli *c, const struct control *k, const char *job, const char *why)
{
	const struct wire_report *r = k->report.head ? &k->report : NULL;
	char host[256] = "";

	if (gethostname(host, sizeof host - 1) < 0)
		host[0] = 0;
	if (c->value[OPT_WATCH])
		output_line(c->o, "ckptd.status/1", "status");
	else
		output_begin(c->o, "ckptd.status/1");
	report_put(c->o, k, job, r, host);
	if (!c->json)
		report_say(c, k, job, host, why);
	output_end(c->o);
}

/* --- again and again --- */
/* Over the frame before: each line is cleared behind its end, and what is below the last. What does
 * not fit would push the top away. */
static void screen_paint(struct cli *c, const char *text)
{
	struct winsize size = { 0 };
	uint32_t rows = 0, row = 0;

	for (const char *p = text; *p; p++)
		rows += *p == '\n';
	if (ioctl(fileno(c->out), TIOCGWINSZ, &size) < 0 || size.ws_row < 3)
		size.ws_row = UINT16_MAX;
	fputs("\033[H", c->out);
	for (const char *p = text; *p; p++) {
		if (row + 2 == size.ws_row && rows > row + 1) {
			fprintf(c->out, "... %u more lines: ckptctl status\033[K\n", rows - row);
			break;
		}
		if (*p == '\n') {
			fputs("\033[K", c->out);
			row++;
		}
		fputc(*p, c->out);
	}
	fputs("\033[J", c->out);
	fflush(c->out);
}

/* The text of a frame, malloc'ed; NULL: out of memory. */
static char *frame_text(struct cli *c, const struct control *k, const char *job, const char *why)
{
	struct cli to = *c;
	char *buf = NULL;
	size_t len;

	to.out = open_memstream(&buf, &len);
	if (!to.out)
		return NULL;
	to.o = output_text_new(to.out, &c->out_screen, c->err, &c->err_screen);
	if (to.o) {
		frame_print(&to, k, job, why);
		to.o->ops->free(to.o);
	}
	fclose(to.out);
	return buf;
}

struct watch {
	const char *job; /* that was named; NULL: none */
	bool screen, first;
	char *last; /* frame */
};

static void watch_frame(struct cli *c, const struct control *k, const char *why, struct watch *w)
{
	char *text;

	if (c->json) {
		frame_print(c, k, w->job, why);
		fflush(c->out);
		return;
	}
	screen_probe(c->out, c->value[OPT_COLOR], c->value[OPT_ASCII],
		     &c->out_screen); /* resized? */
	text = frame_text(c, k, w->job, why);
	if (!text)
		return;
	free(w->last);
	w->last = text;
	if (w->screen)
		screen_paint(c, text);
	else
		fprintf(c->out, "%s%s", w->first ? "" : "\n", text);
	fflush(c->out);
}

/* Until the process is asked to stop: that is how it ends, and no failure. */
static int watch_run(struct cli *c, struct control *k, const char *job)
{
	struct watch w = { .job = job,
			   .screen = c->out_screen.terminal && !c->out_screen.dumb && !c->json,
			   .first = true };
	struct ckpt_err err = { 0 };

	if (w.screen)
		fputs("\033[?1049h\033[?25l\033[2J", c->out); /* another page, no cursor */
	for (; !cli_stopped() && !ferror(c->out); w.first = false) {
		if (k->sock < 0 && daemon_ask_open(k, c, 0, &err) < 0)
			k->report.head = NULL;
		if (k->sock >= 0 && control_report(k, &err) < 0)
			control_close(k);
		if (!cli_stopped())
			watch_frame(c, k, err.msg, &w);
		daemon_ask_pause(FRAME_NS);
	}
	if (w.screen) {
		fputs("\033[?25h\033[?1049l", c->out);
		fputs(w.last ? w.last : "", c->out); /* the newest stays to be read */
	}
	free(w.last);
	return CLI_OK;
}

/* What was chosen must be there; where nothing was, every job is shown. */
static int jobs_check(const struct control *k, const char *job, struct ckpt_err *err)
{
	uint32_t any;

	for (uint32_t i = 0; i < k->report.head->njob; i++)
		if (control_is_meant(k, job, i))
			return 0;
	return control_is_selected(k, job) ? control_job(k, job, &any, err) : 0;
}

static int status_run(struct cli *c)
{
	struct control k = { .sock = -1 };
	struct ckpt_err err = { 0 };
	char word[PATH_MAX];
	const char *job;
	int rc = daemon_ask_name(c, c->narg ? c->arg[0] : NULL, word, &job, &err), code = CLI_OK;

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl status -h");
	rc = daemon_ask_open(&k, c, 0, &err);
	if (rc == 0)
		rc = control_report(&k, &err);
	if (rc == 0 && !c->value[OPT_WATCH])
		rc = jobs_check(&k, job, &err);
	if (rc)
		code = daemon_ask_fail(c, &k, rc, &err);
	else if (c->value[OPT_WATCH])
		code = watch_run(c, &k, job);
	else
		frame_print(c, &k, job, NULL);
	if (!code && !c->value[OPT_WATCH] && any_trouble(&k, job))
		code = CLI_WARNINGS;
	control_close(&k);
	return code;
}

const struct cli_verb verb_status = {
	.name = "status",
	.synonyms = (const char *const[]){ "jobs", NULL },
	.help = "show what survives if a job dies now, and what the daemon does",
	.synopsis = (const char *const[]){ "[JOB] [-w]", NULL },
	.about =
		"For every job of this user's daemon on this host, or for JOB or those of a store that "
		"is chosen with -C, CKPTD_STORE or as the current directory, status shows the job's current step, "
		"the newest step in memory, which survives the trainer, and the newest step on disk, "
		"which survives the host, with their ages: this is what you have if the job dies now. "
		"It also shows the job's ranks, its speed, the step that is being written, how long "
		"ckptd held the trainer, how many snapshots were skipped and why, averages of the "
		"weights and their health, errors, replicas that differ, a disk that hangs, which steps "
		"the job keeps and who said so, and how many of its ranks have died. -w shows it every second until Ctrl-C. --json also has every rank and "
		"the newest 64 steps.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl status", "show it now" },
			{ "ckptctl status -w", "every second, until Ctrl-C" },
			{ "ckptctl status --json -w | jq .jobs[0].steps[0]",
			  "a line of JSON a second" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_WATCH, "show it every second, until Ctrl-C" },
			{ OPT_JOB, "only this job, as NAME or STORE/NAME" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 (also if Ctrl-C ends -w); 2 the command is wrong; 3 the daemon cannot write the steps of a job, ranks of it have "
		"died, its policy cannot be read, its replicas differ, an average has NaN or cannot be right, or a disk hangs; 10 the daemon does not have what was chosen; 12 the daemon belongs to another user; 14 no daemon listens on the socket; 15 "
		"it does not answer.",
	.args = (const enum cli_arg[]){ ARG_JOB, ARG_NONE },
	.narg_max = 1,
	.run = status_run,
};
