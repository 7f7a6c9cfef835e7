/* SPDX-License-Identifier: Apache-2.0 */
/* verb_release.c - ckptctl release: a step need not be kept any more. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"

/* The names of its holds, as a sentence's end; false: it has none. */
static bool holds_print(const struct store_home *m, char *buf, size_t bytes)
{
	cleanup_free struct store_label *label = NULL;
	uint64_t now = wall_ns();
	uint32_t n = 0;

	buf[0] = 0;
	if (store_labels(&m->s, &label, &n, NULL))
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (label[i].kind == LABEL_HOLD && store_label_is(&label[i], &m->step) &&
		    store_label_counts(&label[i], now))
			human_add(buf, bytes, ", ", "%s", label[i].name);
	return *buf;
}

static int no_hold_fail(struct cli *c, const struct store_home *m, const struct store_ref *ref,
			const char *by)
{
	unsigned long long step = m->step.step;
	struct ckpt_err err;
	char names[600];

	if (!holds_print(m, names, sizeof names))
		return cli_fail(
			c, ckpt_error(&err, -ENOENT, "step %llu of %s has no hold", step, m->s.job),
			&err, "ckptctl ls %s shows the holds", m->dir);
	ckpt_error(&err, -ENOENT, "step %llu of %s has no hold %.64s; it is held by %s", step,
		   m->s.job, by, names);
	return cli_fail(c, -ENOENT, &err, "ckptctl release %s --by=NAME, or --all", ref->path);
}

static void release_print(struct cli *c, const struct store_home *m, const struct store_ref *ref,
			  uint32_t n)
{
	unsigned long long step = m->step.step;
	char names[600];

	output_begin(c->o, "ckptd.release/1");
	output_key(c->o, "path", cell_text(ref->path));
	output_key(c->o, "job", cell_text(m->s.job));
	output_key(c->o, "step", cell_number(step));
	output_key(c->o, "released_count", cell_number(n));
	if (holds_print(m, names, sizeof names))
		cli_say(c, STYLE_PLAIN, "step %llu of %s is released; still held by %s", step,
			m->s.job, names);
	else
		cli_say(c, STYLE_PLAIN, "step %llu of %s is released", step, m->s.job);
	output_end(c->o);
}

static int release_run(struct cli *c)
{
	const char *by = c->value[OPT_BY];
	struct store_ref ref = { .step_fd = -1 };
	struct store_home m;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	char own[65];
	int rc = 0, code;

	store_label_own_name(own);
	if (!c->narg)
		rc = ckpt_error(&err, -EINVAL,
				"ckptctl release needs the checkpoint: latest, step:N");
	else if (by && c->value[OPT_ALL])
		rc = ckpt_error(
			&err, -EINVAL,
			"--by releases one hold, --all releases all holds: give one of them");
	if (!by)
		by = own;
	if (!rc)
		rc = store_label_name_check(by, &err);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl release -h");
	code = labels_get(c, c->arg[0], &ref, &m);
	if (code)
		return code;
	rc = store_label_clear(&m.s, &m.step, LABEL_HOLD, c->value[OPT_ALL] ? NULL : by, &n, &err);
	if (rc)
		code = labels_tell(c, rc, &err);
	else if (!n)
		code = no_hold_fail(c, &m, &ref, by);
	else
		release_print(c, &m, &ref, n);
	store_home_close(&m);
	store_step_close(ref.step_fd);
	return code;
}

const struct cli_verb verb_release = {
	.name = "release",
	.help = "release a hold: the checkpoint may be pruned again",
	.synopsis = (const char *const[]){ "CKPT [--by=NAME | --all]", NULL },
	.about = "The opposite of ckptctl hold. release removes no step: the next prune treats "
		 "the step like any other.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl release step:12000 --by=eval-17", "one hold" },
			{ "ckptctl release step:12000 --all", "all its holds" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_BY, "name of the hold (default: you, on this machine)" },
			{ OPT_ALL, "all holds of the step" },
			{ OPT_NONE, NULL },
		},
	.exits = "0 it is released; 2 NAME is not valid, or the checkpoint is not in a store; 10 "
		 "there is no such store, checkpoint or hold; 12 the store cannot be written.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = release_run,
};
