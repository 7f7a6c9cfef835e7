/* SPDX-License-Identifier: Apache-2.0 */
/* verb_forget.c - ckptctl forget: give back the memory that the daemon holds for a job that is
 * over. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/store/store.h"
#include "formats/registry/registry.h"

/* Of the steps that the daemon has seen on disk and holds: is one no longer there? The daemon looks
 * at no directory for an order. -EBUSY with the sentence. */
static int held_alone(struct cli *c, const struct control *k, uint32_t job, struct ckpt_err *err)
{
	const struct wire_report *r = &k->report;
	char where[sizeof r->job->store + sizeof r->job->name + 2], name[32];

	snprintf(where, sizeof where, "%s/%s", r->job[job].store, r->job[job].name);
	for (uint32_t i = 0; *r->job[job].store && i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];
		struct store_ref ref;
		struct ckpt_err why;
		int rc;

		if (s->job != job || !(s->flags & WIRE_HELD) || s->state != WIRE_COMMITTED)
			continue;
		snprintf(name, sizeof name, "step:%llu", (unsigned long long)s->step);
		rc = store_resolve(c->ops, formats[0], where, name, &ref, &why);
		store_step_close(TAKE_FD(ref.step_fd));
		if (rc)
			return ckpt_error(
				err, -EBUSY,
				"step %llu of job %s was committed, and ckptctl does not find "
				"it on disk now: memory may have its only copy (%.300s)",
				(unsigned long long)s->step, r->job[job].name, why.msg);
	}
	return 0;
}

static int job_forget(struct cli *c, struct control *k, const char *name, uint32_t *ret_job,
		      bool *ret_alone, struct wire_forgotten *ret, struct ckpt_err *err)
{
	struct wire_forget ask = { .flags = c->value[OPT_ALL] ? WIRE_ALL : 0 };
	int rc = control_report(k, err);

	if (rc == 0)
		rc = control_job(k, name, ret_job, err);
	if (rc == 0 && !c->value[OPT_ALL])
		rc = held_alone(c, k, *ret_job, err);
	*ret_alone = rc == -EBUSY;
	if (rc < 0)
		return rc;
	ask.job = k->report.job[*ret_job].id;
	return control_call(k, &ask, WIRE_FORGET, -1, ret, NULL, control_soon(k), err);
}

/* Is it for a step that would be lost that the daemon refused? */
static bool would_lose(struct cli *c, const struct control *k, uint32_t job)
{
	const struct wire_report *r = &k->report;

	for (uint32_t i = 0; i < r->head->nstep; i++)
		if (r->step[i].job == job && r->step[i].flags & WIRE_HELD &&
		    r->step[i].state != WIRE_COMMITTED && r->step[i].state != WIRE_MARKED)
			return !r->job[job].attached && !c->value[OPT_ALL];
	return false;
}

static int forget_run(struct cli *c)
{
	struct control k = { .sock = -1 };
	struct ckpt_err err = { 0 };
	struct wire_forgotten got;
	char word[PATH_MAX];
	const char *name;
	bool alone = false;
	uint32_t job = 0;
	int rc = daemon_ask_name(c, c->narg ? c->arg[0] : NULL, word, &name, &err), code = CLI_OK;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl forget -h");
	if (c->value[OPT_ALL] && !name) /* what is lost by it is not the only job's by chance */
		return cli_usage(c, "ckptctl status lists the jobs",
				 "ckptctl forget --all needs the job's name");
	rc = daemon_ask_open(&k, c, 0, &err);
	if (rc == 0)
		rc = job_forget(c, &k, name, &job, &alone, &got, &err);
	if (rc == -EBUSY && (alone || would_lose(c, &k, job))) {
		const char *its = name ? name : k.report.job[job].name;

		code = cli_fail(
			c, rc, &err,
			"ckptctl drain %s --to DIR writes it; ckptctl forget --all %s gives "
			"it up",
			its, its);
	} else if (rc == -EBUSY) {
		code = cli_fail(c, rc, &err, "ckptctl status -w shows when that is over");
	} else if (rc < 0) {
		code = daemon_ask_fail(c, &k, rc, &err);
	} else {
		output_begin(c->o, "ckptd.forget/1");
		output_field(c->o, "job", "forgotten", cell_text(k.report.job[job].name));
		output_field(c->o, "freed_bytes", "memory", cell_bytes(got.bytes));
		output_field(c->o, "step_count", "steps", cell_number(got.steps));
		output_field(c->o, "lost_step_count", "not on disk", cell_number(got.lost));
		output_end(c->o);
	}
	control_close(&k);
	return code;
}

const struct cli_verb verb_forget = {
	.name = "forget",
	.help = "free the memory of a job that has ended",
	.synopsis = (const char *const[]){ "[JOB]", "--all JOB", NULL },
	.about =
		"After a job has ended, the daemon keeps its newest step in memory so that a "
		"restart is quick: until a new launch has a newer one, or until ten minutes "
		"after the step was committed. forget frees this memory now. It changes nothing "
		"on disk. Before it asks the daemon, it looks whether the committed steps are still "
		"on disk. It discards a step that is not on disk only with --all.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl forget demo", "only committed steps" },
			{ "ckptctl forget --all demo", "also steps that are not on disk" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_ALL, "also a step that is not on disk: it is lost" },
			{ OPT_JOB, DAEMON_JOB_HELP },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0; 2 the command is wrong, or there are several jobs; 10 the daemon has no "
		 "such job; 11 ranks are attached, a step is being written, or one is not on "
		 "disk; 12 the daemon belongs to another user; 14 no daemon; 15 it does not "
		 "answer.",
	.args = (const enum cli_arg[]){ ARG_JOB, ARG_NONE },
	.narg_max = 1,
	.run = forget_run,
};
