/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_adopt.c - ckptctl adopt: a step of another job, or a job's directory that was renamed or
 * copied, is this job's on purpose.
 * Invariant: no byte of a step changes. A directory gets another job only after every step in it
 * that can be adopted was.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/ask.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <limits.h>

struct row {
	struct store_step step;
	bool adopt;
	char text[400]; /* why it is left */
};

struct adopt {
	struct cli *c;
	struct store s; /* by hand: the job's directory */
	char dir[PATH_MAX];
	char home[CKPT_JOB_MAX + 1]; /* the job that the directory belongs to */
	bool whole;		     /* the directory is adopted, with its steps */
	bool shown;		     /* the table, before the question */
	struct row *row;
	uint32_t nrow, cap, nadopt;
};

/* --- what there is to adopt --- */

static int row_add(struct adopt *a, const struct store_step *st, bool adopt, const char *why)
{
	struct row *p;

	if (!ARRAY_GROW(a->row, a->nrow, a->cap))
		return -ENOMEM;
	p = &a->row[a->nrow++];
	*p = (struct row){ .step = *st, .adopt = adopt };
	p->step.note = NULL;
	p->step.nnote = 0;
	snprintf(p->text, sizeof p->text, "%s", why);
	a->nadopt += adopt;
	return 0;
}

/* One step of a directory that is to belong to `job`. */
static int step_look(struct adopt *a, const struct store_step *st, const char *job)
{
	char why[400];

	if (st->state == STORE_COLLECTING)
		return 0;
	if (!st->said.job[0]) {
		snprintf(why, sizeof why, "it cannot be read: %s", st->why);
		return row_add(a, st, false, why);
	}
	if (st->said.step != st->step) {
		snprintf(why, sizeof why, "%s: rename it to step-%012llu", st->why,
			 (unsigned long long)st->said.step);
		return row_add(a, st, false, why);
	}
	if (st->adopted || (st->code != -EUCLEAN && !strcmp(st->said.job, job)))
		return 0;
	return row_add(a, st, true, "");
}

static int job_look(struct adopt *a, struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = store_scan(&a->s, true, &step, &n, err);

	for (uint32_t i = 0; !rc && i < n; i++)
		rc = step_look(a, &step[i], a->s.job);
	return rc;
}

static int one_look(struct adopt *a, const char *entry, struct ckpt_err *err)
{
	struct store_step st;
	int rc = store_step_judge(&a->s, entry, &st, err);

	if (!rc && (st.state == STORE_NEWER || st.state == STORE_OLDER))
		return store_step_refuse(&st, a->dir, err);
	if (!rc && !st.said.job[0])
		return ckpt_error(err, -EBADMSG, "%.300s/%s is damaged: %s", a->dir, entry, st.why);
	if (!rc && st.said.step != st.step)
		return store_step_refuse(&st, a->dir, err);
	return rc ? rc : step_look(a, &st, a->home);
}

/* --- doing it --- */

static int carry_out(struct adopt *a, struct ckpt_err *err)
{
	char why[160];
	int rc = store_home_owner(a->s.job_fd, a->dir, err);

	for (uint32_t i = 0; !rc && i < a->nrow; i++) {
		const struct store_step *st = &a->row[i].step;

		if (!a->row[i].adopt)
			continue;
		if (cli_stopped())
			return ckpt_error(err, -ECANCELED,
					  "interrupted: %u of %u are adopted; run it again", i,
					  a->nadopt);
		snprintf(why, sizeof why, "step %llu of job %s", (unsigned long long)st->step,
			 st->said.job);
		rc = store_label_set(&a->s, st, LABEL_ADOPTED, NULL, 0, why, err);
	}
	if (!rc && a->whole)
		rc = store_home_take(&a->s, err);
	return rc;
}

/* --- telling --- */

static void table_print(struct adopt *a)
{
	static const struct column col[] = {
		{ "path", NULL, false, FIT_WHOLE },	   { "step", "STEP", true, FIT_WHOLE },
		{ "from_job", "OF JOB", false, FIT_LAST }, { "bytes", "SIZE", true, FIT_WHOLE },
		{ "action", "ACTION", false, FIT_WHOLE },  { "text", "WHY NOT", false, FIT_WRAP },
	};
	struct output *o = a->c->o;
	char path[PATH_MAX + STORE_DIR_MAX];

	output_list(o, "items", a->shown ? NULL : col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < a->nrow; i++) {
		const struct row *r = &a->row[i];

		snprintf(path, sizeof path, "%s/%s", a->dir, r->step.dir);
		OUTPUT_ROW(o, col, cell_text(path), cell_number(r->step.step),
			   cell_word(r->step.said.job), cell_bytes(r->step.bytes),
			   cell_styled(cell_text(r->adopt ? "adopt" : "leave"),
				       r->adopt ? STYLE_GOOD : STYLE_WARN),
			   cell_word(r->text));
	}
	output_close(o);
}

static bool is_moved(const struct adopt *a)
{
	return a->whole && strcmp(a->home, a->s.job) != 0;
}

/* "2 steps", "the directory of job j and 2 steps" */
static void what_print(const struct adopt *a, char *buf, size_t bytes)
{
	char dir[CKPT_JOB_MAX + 32] = "";

	if (is_moved(a))
		snprintf(dir, sizeof dir, "the directory of job %s%s", a->home,
			 a->nadopt ? " and " : "");
	if (a->nadopt)
		snprintf(buf, bytes, "%s%u step%s", dir, a->nadopt, a->nadopt == 1 ? "" : "s");
	else
		snprintf(buf, bytes, "%s", dir);
}

static int document_print(struct adopt *a, bool dry)
{
	const char *job = a->whole ? a->s.job : a->home;
	struct output *o = a->c->o;
	uint32_t nleft = a->nrow - a->nadopt;
	char what[CKPT_JOB_MAX + 64];

	if (!a->shown)
		output_begin(o, "ckptd.adopt/1");
	output_key(o, "dry_run", cell_flag(dry));
	output_key(o, "path", cell_text(a->dir));
	output_key(o, "job", cell_text(job));
	output_key(o, "directory_from", cell_if(is_moved(a), cell_text(a->home)));
	table_print(a);
	output_key(o, "adopted_count", cell_count(a->nadopt));
	output_key(o, "left_count", cell_count(nleft));
	what_print(a, what, sizeof what);
	if (!a->nadopt && !is_moved(a))
		cli_say(a->c, STYLE_DIM,
			"nothing to adopt: every step that can be read already belongs to job %s",
			job);
	else if (dry)
		cli_say(a->c, STYLE_DIM, "%s would belong to job %s (dry run; nothing changed)",
			what, job);
	else
		cli_say(a->c, STYLE_PLAIN, "job %s adopted %s", job, what);
	output_end(o);
	return nleft ? CLI_WARNINGS : CLI_OK;
}

static int adopt_fail(struct cli *c, int rc, const struct ckpt_err *err)
{
	if (rc == -ENOENT || rc == -ENOTDIR)
		return cli_fail(c, rc, err, "check the path; ckptctl ls STORE");
	if (rc == -EBADMSG)
		return cli_fail(c, rc, err, "ckptctl repair -n shows what can be repaired");
	if (rc == -EPROTONOSUPPORT)
		return cli_fail(c, rc, err, "run the ckptctl of the version that wrote it");
	return labels_tell(c, rc, err);
}

/* --- where it is --- */

struct jobs {
	char first[PATH_MAX];
	uint32_t n;
};

static int job_note(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct jobs *j = arg;

	(void)job;
	(void)job_fd;
	if (!j->n++)
		snprintf(j->first, sizeof j->first, "%s", abs_path);
	return 0;
}

/* A checkpoint that lies in no job's directory. */
static int outside_fail(struct cli *c, const char *abs, struct ckpt_err *err)
{
	struct subject s = { .ref.step_fd = -1 };
	struct subject_brief brief;
	char name[64] = "step-N";
	int fd = open(abs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0) {
		subject_take(&s, c->ops, fd, abs);
		s.format = formats[0];
		if (subject_brief(&s, &brief))
			snprintf(name, sizeof name, "step-%012llu", (unsigned long long)brief.step);
	}
	subject_close(&s);
	ckpt_error(
		err, -EINVAL,
		"%.300s is a checkpoint, but not a step in the directory of a job: copy it there "
		"first",
		abs);
	return cli_fail(c, -EINVAL, err, "cp -a %s STORE/JOB/%s && ckptctl adopt STORE/JOB/%s", abs,
			name, name);
}

/* The job's directory, opened; its name becomes the job that is meant. -EINVAL: no job is called
 * so. */
static int dir_open(struct adopt *a, const char *abs, size_t len, struct ckpt_err *err)
{
	const char *base;
	int rc;

	snprintf(a->dir, sizeof a->dir, "%.*s", (int)len, abs);
	base = strrchr(a->dir, '/');
	rc = base ? store_job_check(base + 1, err) : -EINVAL;
	if (rc)
		return rc;
	snprintf(a->s.job, sizeof a->s.job, "%s", base + 1);
	a->s.job_fd = open(a->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (a->s.job_fd < 0)
		return ckpt_error_errno(err, errno, "cannot open %.300s", a->dir);
	return store_home(&a->s, a->home, err);
}

/* Fills a. Returns an exit code; what fails, it has printed. */
static int directory_find(struct adopt *a, struct ckpt_err *err)
{
	struct cli *c = a->c;
	struct jobs jobs = { .n = 0 };
	char abs[PATH_MAX];
	const char *base;
	struct store_step st;
	struct store probe = { .ops = c->ops, .format = formats[0], .root_fd = -1, .job_fd = -1 };
	bool is_step;
	int rc;

	if (!realpath(c->arg[0], abs))
		return adopt_fail(c, ckpt_error_errno(err, errno, "cannot open %.300s", c->arg[0]),
				  err);
	base = strrchr(abs, '/') + 1;
	is_step = store_step_judge(&probe, base, &st, NULL) != -EINVAL;
	if (is_step || subject_is_checkpoint(c, abs)) {
		if (!is_step ||
		    dir_open(a, abs, (size_t)(base - abs) - (base - abs > 1), err) == -EINVAL)
			return outside_fail(c, abs, err);
		rc = a->s.job_fd < 0 ? err->code : one_look(a, base, err);
		return rc ? adopt_fail(c, rc, err) : CLI_OK;
	}
	a->whole = true;
	rc = store_jobs(c->ops, abs, job_note, &jobs, err);
	if (!rc && !jobs.n)
		rc = ckpt_error(err, -ENOENT, "%.300s holds neither a step nor the steps of a job",
				abs);
	else if (!rc && strcmp(jobs.first, abs))
		rc = ckpt_error(
			err, -EINVAL,
			"%.200s is a store with %u jobs: give the directory of one, such as %.200s",
			abs, jobs.n, jobs.first);
	if (!rc)
		rc = dir_open(a, abs, strlen(abs), err);
	if (!rc)
		rc = job_look(a, err);
	return rc ? adopt_fail(c, rc, err) : CLI_OK;
}

/* --- the verb --- */

/* 0: go on; 1: it is not wanted, and that is said; -errno. */
static int adopt_agree(struct adopt *a, struct ckpt_err *err)
{
	const char *job = a->whole ? a->s.job : a->home;
	char what[CKPT_JOB_MAX + 64];

	what_print(a, what, sizeof what);
	if (!ask_can(a->c))
		return ckpt_error(
			err, -EINVAL,
			"%s would belong to job %s, but ckptctl cannot ask here: nothing was "
			"changed; --yes does it, -n shows it",
			what, job);
	output_begin(a->c->o, "ckptd.adopt/1"); /* of text: there is no JSON here */
	table_print(a);
	a->shown = true;
	return ask(a->c, "changed", err, "Make %s belong to job %s?", what, job);
}

static int adopt_steps(struct adopt *a)
{
	struct ckpt_err err = { 0 };
	bool dry = a->c->value[OPT_DRY_RUN];
	int rc = 0, code = directory_find(a, &err);

	if (code)
		return code;
	if ((a->nadopt || is_moved(a)) && !dry) {
		if (!a->c->value[OPT_YES])
			rc = adopt_agree(a, &err);
		if (rc > 0)
			return CLI_OK;
		if (!rc)
			rc = carry_out(a, &err);
	}
	return rc ? adopt_fail(a->c, rc, &err) : document_print(a, dry);
}

static int adopt_run(struct cli *c)
{
	struct adopt a = {
		.c = c, .s = { .ops = c->ops, .format = formats[0], .root_fd = -1, .job_fd = -1 }
	};
	int code;

	if (!c->narg || !*c->arg[0])
		return cli_usage(c, NULL,
				 "ckptctl adopt needs the path of a step or of a job's "
				 "directory");
	if (c->value[OPT_DRY_RUN] && c->value[OPT_YES])
		return cli_usage(c, NULL, "--dry-run and --yes exclude each other: give one");
	code = adopt_steps(&a);
	if (a.s.job_fd >= 0)
		close(a.s.job_fd);
	free(a.row);
	return code;
}

const struct cli_verb verb_adopt = {
	.name = "adopt",
	.help = "make a step or a directory of another job belong to this job",
	.synopsis = (const char *const[]){ "[-n | --yes] PATH", NULL },
	.about =
		"Each step records its job, its number and the step that it continues. If it is in "
		"another job's directory, or has another number, the step is misplaced: it may have "
		"been copied there by mistake, so latest skips it and verbs refuse its name. adopt "
		"records that it is there on purpose.\n"
		"If PATH is a step in the directory of a job, adopt makes it a step of that job. "
		"Copy it there first, under its own number: that never changes.\n"
		"If PATH is the directory of a job that was renamed or copied, adopt makes it, and "
		"every step in it, belong to the job with the new name. Before that, ckptctl reads it "
		"as the old job's directory, and ckptd does not write to it.\n"
		"The steps themselves do not change; adopt writes a label beside each of them. "
		"On a terminal adopt shows what it will do and asks; elsewhere it needs --yes.",
	.example =
		(const struct cli_example[]){
			{ "cp -a runs/base/step-000000005000 runs/tune/", "copy a step, then" },
			{ "ckptctl adopt runs/tune/step-000000005000", "start job tune from it" },
			{ "mv runs/demo runs/demo2; ckptctl adopt --yes runs/demo2",
			  "rename a job" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DRY_RUN, "show what would be adopted; change nothing" },
			{ OPT_YES, "do it without a question" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 it is adopted, or was already; 2 PATH is not in the directory of a job, or --yes is "
		"missing and ckptctl cannot ask; 3 some steps in the directory could not be "
		"adopted; 4 the step is damaged, or its name has another number; 8 a newer "
		"version wrote it; 10 there is no such step or directory; 12 the store cannot be "
		"written, or belongs to another user; 130 interrupted.",
	.args = (const enum cli_arg[]){ ARG_DIR, ARG_NONE },
	.narg_max = 1,
	.run = adopt_run,
};
