/* SPDX-License-Identifier: Apache-2.0 */
/* verb_hold.c - ckptctl hold: keep a step whatever the retention policy says, until it is released
 * or the time is over. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"

static void hold_print(struct cli *c, const struct store_home *m, const struct store_ref *ref,
		       const char *name, uint64_t until, const char *why, uint64_t now)
{
	char when[HUMAN_BYTES], left[HUMAN_BYTES], line[256] = "";

	output_begin(c->o, "ckptd.hold/1");
	output_key(c->o, "path", cell_text(ref->path));
	output_key(c->o, "job", cell_text(m->s.job));
	output_key(c->o, "step", cell_number(m->step.step));
	output_key(c->o, "name", cell_text(name));
	output_key(c->o, "until", cell_unless(CELL_TIME, until, 0));
	output_key(c->o, "why", cell_word(why));
	if (until)
		snprintf(line, sizeof line, " until %s (%s left)", human_time(until, when),
			 human_age(now, until, left));
	cli_say(c, STYLE_PLAIN, "step %llu of %s is held by %s%s", (unsigned long long)m->step.step,
		m->s.job, name, line);
	output_end(c->o);
	if (m->step.state == STORE_QUARANTINED)
		cli_hint(c, "it is quarantined: ckptctl repair %s checks it again", ref->path);
}

static int until_parse(const char *text, uint64_t now_ns, uint64_t *ret_ns, struct ckpt_err *err)
{
	int rc = human_parse_moment(text, now_ns, ret_ns);

	if (rc == -ERANGE)
		return ckpt_error(err, -EINVAL, "--until=%.60s is in the past", text);
	if (rc)
		return ckpt_error(
			err, -EINVAL,
			"--until=%.60s is not a time: give a duration from now (90m, 6h, 7d, 2w) or "
			"a date (2026-11-22T18:00:00Z)",
			text);
	return 0;
}

static int hold_run(struct cli *c)
{
	const char *by = c->value[OPT_BY], *why = c->value[OPT_WHY];
	struct store_ref ref = { .step_fd = -1 };
	struct store_home m;
	struct ckpt_err err = { 0 };
	uint64_t now = wall_ns(), until = 0;
	char own[65];
	int rc = 0, code;

	store_label_own_name(own);
	if (!by)
		by = own;
	if (!c->narg)
		rc = ckpt_error(&err, -EINVAL, "ckptctl hold needs the checkpoint: latest, step:N");
	if (!rc)
		rc = store_label_name_check(by, &err);
	if (!rc && c->value[OPT_UNTIL])
		rc = until_parse(c->value[OPT_UNTIL], now, &until, &err);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl hold -h");
	code = labels_get(c, c->arg[0], &ref, &m);
	if (code)
		return code;
	rc = store_home_sound(&m, &err);
	if (!rc)
		rc = store_home_owner(m.s.job_fd, m.dir, &err);
	if (!rc)
		rc = store_label_set(&m.s, &m.step, LABEL_HOLD, by, until, why, &err);
	if (rc)
		code = labels_tell(c, rc, &err);
	else
		hold_print(c, &m, &ref, by, until, why, now);
	store_home_close(&m);
	store_step_close(ref.step_fd);
	return code;
}

const struct cli_verb verb_hold = {
	.name = "hold",
	.help = "keep a checkpoint: a held step is not pruned",
	.synopsis = (const char *const[]){ "CKPT [--by=NAME] [--until=TIME] [--why=TEXT]", NULL },
	.about = "Neither ckptctl prune nor ckptd removes a held step, until it is released or "
		 "the time is over. A step may have several holds, each with its own name. If you "
		 "hold it again with the same name, the time changes. CKPT is latest, latest~1, "
		 "step:12000, tag:NAME, or the path of a step directory in a store.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl hold step:12000 --by=eval-17 --until=6h",
			  "an evaluation reads it" },
			{ "ckptctl hold latest --why='before the new data'",
			  "until it is released" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_BY,
			  "name of the hold (default: you, on this machine); letters, digits, "
			  "dots, dashes" },
			{ OPT_UNTIL, "how long: 90m, 6h, 7d, 2w, or 2026-11-22T18:00:00Z (default: "
				     "until it is released)" },
			{ OPT_WHY, "the reason, one line" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 it is held; 2 NAME or TIME is not valid, or the checkpoint is not in a store; "
		"4 it is damaged; 5 it is not committed; 10 there is no such store or checkpoint, or it is being "
		"removed; 12 the store cannot be written, or belongs to another user.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = hold_run,
};
