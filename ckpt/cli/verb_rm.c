/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_rm.c - ckptctl rm: remove one checkpoint of a store.
 * Invariant: it goes the way of all that is removed (ckpt/store/prune.h), after a yes that was
 * given before or to the question; the last complete step of a job never does.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/ask.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"
#include "ckpt/store/prune.h"
#include "formats/registry/registry.h"

/* Where files of others stay: all of the path, or "". */
static void left_print(const struct store_home *m, const char *left, char *buf, size_t bytes)
{
	snprintf(buf, bytes, "%s%s%s", *left ? m->dir : "", *left ? "/" : "", left);
}

static void removal_document(struct cli *c, const struct store_home *m, const char *path, bool dry,
			     const char *left)
{
	const struct store_step *st = &m->step;
	char size[HUMAN_BYTES], stay[HUMAN_BYTES], trash[4200];

	left_print(m, left, trash, sizeof trash);
	output_begin(c->o, "ckptd.rm/1");
	output_key(c->o, "dry_run", cell_flag(dry));
	output_key(c->o, "job", cell_text(m->s.job));
	output_key(c->o, "step", cell_number(st->step));
	output_field(c->o, "state", "state", cell_text(store_state_word(st->state)));
	output_field(c->o, "path", "path", cell_text(path));
	output_field(c->o, "bytes", "size", cell_bytes(st->bytes));
	output_key(c->o, "freed_bytes", cell_bytes(st->bytes - st->shared));
	output_key(c->o, "shared_bytes", cell_bytes(st->shared));
	output_key(c->o, "trash", cell_word(trash));
	cli_say(c, STYLE_DIM,
		dry ? "step %llu would be removed: %s (dry run; nothing removed)"
		    : "step %llu is removed: %s are free",
		(unsigned long long)st->step, human_bytes(st->bytes - st->shared, size));
	if (st->shared)
		cli_say(c, STYLE_DIM, "%s stay, because other steps share them",
			human_bytes(st->shared, stay));
	output_end(c->o);
	if (*trash)
		cli_hint(c, "files that ckptd did not make stay in %s", trash);
}

/* Of a step that this program cannot read. */
static void older_say(struct cli *c, const struct store_step *st)
{
	cli_hint(c,
		 "step %llu has %s: it is not known here whether it is complete, and ckptd 0.1 "
		 "could still read it",
		 (unsigned long long)st->step, st->why);
}

/* 0: go on; 1: it is not wanted; -errno. */
static int removal_agree(struct cli *c, const struct store_step *st, struct ckpt_err *err)
{
	char size[HUMAN_BYTES];

	human_bytes(st->bytes, size);
	if (c->value[OPT_YES])
		return 0;
	if (!ask_can(c))
		return ckpt_error(
			err, -EINVAL,
			"step %llu (%s, %s) would be removed, and ckptctl cannot ask here: "
			"nothing was removed",
			(unsigned long long)st->step, store_state_word(st->state), size);
	if (st->older)
		return ask(c, "removed", err,
			   "Step %llu has %s. ckptd 0.1 could still read it. Remove it (%s)?",
			   (unsigned long long)st->step, st->why, size);
	return ask(c, "removed", err, "Remove step %llu (%s, %s)?", (unsigned long long)st->step,
		   store_state_word(st->state), size);
}

static int removal_print(struct cli *c, int rc, const struct ckpt_err *err, const char *name)
{
	switch (rc) {
	case -EINVAL:
		return cli_fail(c, rc, err, "ckptctl rm -n %s shows it, --yes removes it", name);
	case -EBUSY:
		return cli_fail(
			c, rc, err,
			"ckptctl ls shows what is held and tagged; ckptctl release, ckptctl "
			"tag --delete");
	case -EAGAIN:
		return cli_fail(c, -EBUSY, err, "run it again when the reader has finished");
	case -EACCES:
	case -EPERM:
	case -EROFS:
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	default:
		return cli_fail(c, rc, err, NULL);
	}
}

/* A restart takes the newest step from the memory of ckptd: what was removed would come back. */
static void memory_say(struct cli *c, const struct store_home *m)
{
	struct control k = { .sock = -1 };
	struct ckpt_err err;
	bool held = false;

	if (daemon_ask_open(&k, c, 0, &err) == 0 && control_report(&k, &err) == 0)
		for (uint32_t i = 0; i < k.report.head->nstep; i++) {
			const struct wire_report_step *s = &k.report.step[i];

			held |= s->flags & WIRE_HELD && s->step == m->step.step &&
				strcmp(k.report.job[s->job].name, m->s.job) == 0;
		}
	control_close(&k);
	if (held)
		cli_hint(
			c,
			"ckptd on %s still holds step %llu of a job %s in memory, and a restart "
			"takes it from there: ckptctl forget --all %s gives it up, once the job has "
			"ended",
			k.socket, (unsigned long long)m->step.step, m->s.job, m->s.job);
}

static int step_remove(struct cli *c, struct store_home *m, const char *path, const char *name)
{
	struct store_step was = { .shared = 0 };
	bool dry = c->value[OPT_DRY_RUN];
	char left[STORE_DIR_MAX] = "";
	struct ckpt_err err = { 0 };
	int rc = dry ? 0 : store_home_owner(m->s.job_fd, m->dir, &err);

	if (rc)
		return cli_fail(c, rc, &err, LABELS_NEXT_OWNER);
	/* A refusal comes before the question. */
	rc = store_remove(&m->s, m->step.dir, true, wall_ns(), &was, left, &err);
	if (!rc && m->step.older)
		older_say(c, &m->step);
	if (!rc && !dry) {
		rc = removal_agree(c, &m->step, &err);
		if (rc > 0)
			return CLI_OK;
		if (!rc)
			rc = store_remove(&m->s, m->step.dir, false, wall_ns(), &was, left, &err);
	}
	if (rc)
		return removal_print(c, rc, &err, name);
	m->step.shared = was.shared;
	removal_document(c, m, path, dry, left);
	if (m->step.state != STORE_SET_ASIDE)
		memory_say(c, m);
	if (!was.shared_unseen)
		return CLI_OK;
	cli_hint(c, CLI_HINT_UNSEEN);
	return CLI_WARNINGS;
}

static int rm_run(struct cli *c)
{
	const char *name = c->narg ? c->arg[0] : "";
	struct ckpt_err err = { 0 };
	struct store_ref ref;
	struct store_home m;
	int rc, code;

	if (!*name)
		return cli_usage(c, "ckptctl ls lists them",
				 "ckptctl rm needs a checkpoint's name");
	if (c->value[OPT_DRY_RUN] && c->value[OPT_YES])
		return cli_usage(c, NULL, "--dry-run removes nothing, --yes does: give one");
	rc = store_resolve_any(c->ops, formats[0], c->where, name, &ref, &err);
	if (rc > 0 && store_path_job(c->ops, ref.path, &err))
		rc = err.code;
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	subject_note(c, &ref);
	rc = rc ? rc : store_home_find(c->ops, formats[0], &ref, &m, &err);
	store_step_close(TAKE_FD(ref.step_fd)); /* it was locked for reading */
	if (rc > 0) {
		ckpt_error(
			&err, -EINVAL,
			"%.300s lies in no store: it is a copy that no job knows, so rm -r removes it",
			ref.path);
		return cli_fail(c, -EINVAL, &err, "ckptctl rm -C STORE step:N");
	}
	if (rc)
		return subject_tell(c, rc, &err, name);
	code = step_remove(c, &m, ref.path, name);
	store_home_close(&m);
	return code;
}

const struct cli_verb verb_rm = {
	.name = "rm",
	.synonyms = (const char *const[]){ "remove", "delete", NULL },
	.help = "remove one checkpoint",
	.synopsis = (const char *const[]){ "[-n | --yes] CKPT", NULL },
	.about =
		"CKPT is a step of the job's line, also a damaged or quarantined one, one of format 0.0 (which "
		"only ckptd 0.1 reads), or one that was set "
		"aside: step:12000, tag:best, its path. The last complete step of a job is not removed, "
		"nor is one that is held (ckptctl hold), tagged, or being read. The files that ckptd made "
		"are removed; if other files are in the step's directory, they stay in a .trash-... directory. "
		"On a terminal it asks; elsewhere it needs --yes.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl rm -n step:12000", "may it be removed, and how much is it?" },
			{ "ckptctl rm --yes runs/demo/step-000000012000", "by its path" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DRY_RUN, "say what would be removed; remove nothing" },
			{ OPT_YES, "remove without a question" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 removed, or the answer was no; 2 ckptctl cannot ask and --yes is missing, or CKPT lies in "
		"no store; 4 it is misplaced; 5 it is still being written; 8 a newer version wrote it; 10 there is no such store or checkpoint; 11 it is the "
		"last complete step, held, tagged, or being read; 12 the store cannot be written; 130 "
		"interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = rm_run,
};
