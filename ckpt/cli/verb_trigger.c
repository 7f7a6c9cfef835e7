/* SPDX-License-Identifier: Apache-2.0 */
/* verb_trigger.c - ckptctl trigger: have the next step that a job marks written to the store, and
 * with
 * --wait wait until it is. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/layout/human.h"
#include <inttypes.h>

#define LOOK_NS (100 * NS_PER_MS)

struct trigger {
	struct cli *c;
	struct control k;
	uint64_t job, number, after, began_ns, until;
	const char *named; /* on the command line; NULL: not */
	char name[CKPT_JOB_MAX + 8];
	uint64_t step; /* that fulfilled the order; UINT64_MAX: not known */
};

static int trigger_order(struct trigger *t, struct ckpt_err *err)
{
	struct wire_trigger ask = { .flags = t->c->value[OPT_FINAL] ? WIRE_FINAL : 0 };
	struct wire_triggered got;
	uint32_t i;
	int rc = control_report(&t->k, err);

	if (rc == 0)
		rc = control_job(&t->k, t->named, &i, err);
	if (rc < 0)
		return rc;
	ask.job = t->job = t->k.report.job[i].id;
	snprintf(t->name, sizeof t->name, "%s", t->k.report.job[i].name);
	rc = control_call(&t->k, &ask, WIRE_TRIGGER, -1, &got, NULL, control_soon(&t->k), err);
	if (rc < 0)
		return rc;
	t->number = got.number;
	t->after = got.after;
	return 0;
}

static const struct wire_report_job *job_now(const struct trigger *t, uint32_t *ret_index)
{
	const struct wire_report *r = &t->k.report;

	for (*ret_index = 0; *ret_index < r->head->njob; (*ret_index)++)
		if (r->job[*ret_index].id == t->job)
			return &r->job[*ret_index];
	return NULL;
}

/* 1: committed; 0: not yet; -EUCLEAN: it will not be. A torn step's order goes to the next one. */
static int report_look(struct trigger *t, struct ckpt_err *err)
{
	const struct wire_report *r = &t->k.report;
	const struct wire_report_step *failed = NULL;
	const struct wire_report_job *j;
	bool waits = false;
	uint32_t job;
	int rc = control_report(&t->k, err);

	if (rc < 0)
		return rc;
	j = job_now(t, &job);
	for (uint32_t i = 0; j && i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job != job || s->trigger < t->number)
			continue;
		t->step = s->step;
		if (s->state == WIRE_COMMITTED)
			return 1;
		if (s->state == WIRE_FAILED)
			failed = s;
		waits |= s->flags & WIRE_HELD && s->state != WIRE_FAILED;
	}
	if (failed)
		return ckpt_error(err, -EUCLEAN, "step %" PRIu64 " of %s could not be written: %s",
				  failed->step, t->name, failed->text);
	if (!j || (!waits && !j->trigger_waits))
		return ckpt_error(err, -EUCLEAN,
				  "the ranks of %s left before all of them marked another step",
				  t->name);
	return 0;
}

static int wait_for(struct trigger *t, struct ckpt_err *err)
{
	int rc;

	while ((rc = report_look(t, err)) == 0) {
		if (cli_stopped())
			return ckpt_error(err, -ECANCELED,
					  "interrupted; ckptd will still write the next step");
		if (t->until && now_ns() >= t->until)
			return ckpt_error(
				err, -ETIMEDOUT,
				"the next step of %s is not committed yet; ckptd will still "
				"write it",
				t->name);
		daemon_ask_pause(LOOK_NS);
	}
	return rc;
}

static void trigger_print(struct trigger *t, bool committed)
{
	struct cli *c = t->c;
	double waited = (double)(now_ns() - t->began_ns) / (double)NS_PER_S;

	output_begin(c->o, "ckptd.trigger/1");
	output_key(c->o, "job", cell_text(t->name));
	output_key(c->o, "after_step", cell_if(t->after, cell_number(t->after - 1)));
	output_key(c->o, "step", cell_unless(CELL_NUMBER, t->step, UINT64_MAX));
	output_key(c->o, "state", cell_text(committed ? "committed" : "ordered"));
	output_key(c->o, "waited_s", cell_if(committed, cell_real(waited)));
	if (committed)
		cli_say(c, STYLE_PLAIN, "Step %" PRIu64 " of %s is committed, after %s.", t->step,
			t->name, SPAN_TEXT(now_ns() - t->began_ns));
	else if (t->after)
		cli_say(c, STYLE_PLAIN,
			"The next step that %s marks, after step %" PRIu64 ", will be written.",
			t->name, t->after - 1);
	else
		cli_say(c, STYLE_PLAIN, "The next step that %s marks will be written.", t->name);
	output_end(c->o);
}

static int trigger_run(struct cli *c)
{
	struct trigger t = {
		.c = c, .k = { .sock = -1 }, .began_ns = now_ns(), .step = UINT64_MAX
	};
	struct ckpt_err err = { 0 };
	char word[PATH_MAX];
	int rc = daemon_ask_until(c, &t.until, &err), code = CLI_OK;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl trigger --wait --timeout 10m");
	rc = daemon_ask_name(c, c->narg ? c->arg[0] : NULL, word, &t.named, &err);
	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl trigger -h");
	rc = daemon_ask_open(&t.k, c, t.until, &err);
	if (rc == 0)
		rc = trigger_order(&t, &err);
	if (rc == 0 && (c->value[OPT_WAIT] || c->value[OPT_TIMEOUT]))
		rc = wait_for(&t, &err);
	if (rc == -ENOENT)
		code = cli_fail(c, rc, &err, "ckptctl status");
	else if (rc == -EUCLEAN || rc == -ETIMEDOUT)
		code = cli_fail(c, rc, &err, "ckptctl status");
	else if (rc < 0)
		code = daemon_ask_fail(c, &t.k, rc, &err);
	else
		trigger_print(&t, rc > 0);
	control_close(&t.k);
	return code;
}

const struct cli_verb verb_trigger = {
	.name = "trigger",
	.help = "write the next step that a job marks to the store",
	.synopsis =
		(const char *const[]){ "[JOB] [--final]", "[JOB] --wait [--timeout TIME]", NULL },
	.about = "ckptd writes the next step that the job marks, even if persist_every would skip "
		 "it. The trainer is not interrupted: it marks steps when it is ready. With "
		 "--final the trainer waits for a free slot instead of skipping that step. If the "
		 "step is torn because a rank continued too early, ckptd writes the one after it.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl trigger", "the only job: its next step" },
			{ "ckptctl trigger demo --wait --timeout 10m",
			  "and wait until it is committed" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_JOB, DAEMON_JOB_HELP },
			{ OPT_FINAL, "the trainer waits for a slot instead of skipping the step" },
			{ OPT_WAIT, "wait until the step is committed" },
			{ OPT_TIMEOUT, "wait no longer than this (30s, 5m); implies --wait" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0 requested, or with --wait committed; 2 the command is wrong, or there are "
		 "several jobs; 5 the step was not written; 10 no such job, or no rank of it is "
		 "attached; 12 the daemon belongs to another user; 14 no daemon; 15 timed out, or "
		 "the daemon does not answer.",
	.args = (const enum cli_arg[]){ ARG_JOB, ARG_NONE },
	.narg_max = 1,
	.run = trigger_run,
};
