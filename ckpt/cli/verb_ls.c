/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_ls.c - ckptctl ls: the checkpoints of a store, newest first. Reads one small file per step.
 * Invariant: the order inside a job is the store's (lineage), whatever the clocks said; jobs are
 * merged by the time of their newest step.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/human.h"
#include "ckpt/cli/marked.h"
#include "ckpt/cli/subject.h"

#define NOTE_NAME 18 /* characters of a name that a table of 80 columns has room for */

struct ls_job {
	char job[CKPT_JOB_MAX + 1];
	char *path;
	struct store_step *step;
	struct store_mark *mark;
	uint32_t n, nmark, at;
	uint32_t latest; /* "latest" among step[]; UINT32_MAX: there is none */
	/* what was set aside: how much, and which of it can be gone back to */
	uint32_t naside;
	uint64_t aside_bytes;
	struct store_step aside; /* dir "": none can */
	bool aside_alone;	 /* no other step has its number */
};

struct ls {
	struct cli *c;
	struct ls_job *job;
	uint32_t njob, cap;
	uint32_t listed, damaged, quarantined; /* listed: that are committed */
	uint64_t bytes, now_ns;
	int code;
};

enum {
	COL_JOB,
	COL_STEP,
	COL_STATE,
	COL_AGE,
	COL_BYTES,
	COL_MESH,
	COL_WORLD,
	COL_PARENT,
	COL_NOTE,
	COL_ASIDE_AT,
	COL_PATH,
	COL_SEQ,
	COL_CREATED_NS,
	COL_GENERATION,
	COL_ID,
	COL_FORMAT,
	COL_WHY,
	COL_COUNT,
};

static const struct column columns[COL_COUNT] = {
	[COL_JOB] = { "job", "JOB", false, FIT_LAST },
	[COL_STEP] = { "step", "STEP", true, FIT_WHOLE },
	[COL_STATE] = { "state", "STATE", false, FIT_WHOLE },
	[COL_AGE] = { "created", "AGE", true, FIT_WHOLE },
	[COL_BYTES] = { "bytes", "SIZE", true, FIT_WHOLE },
	[COL_MESH] = { "mesh", "MESH", false, FIT_LAST },
	[COL_WORLD] = { "world_size", "RANKS", true, FIT_WHOLE },
	[COL_PARENT] = { "parent", "PARENT", true, FIT_DROP },
	[COL_NOTE] = { NULL, "NOTE", false, FIT_WRAP },
	[COL_ASIDE_AT] = { "aside_at", NULL, false, FIT_WHOLE },
	[COL_PATH] = { "path", NULL, false, FIT_WHOLE },
	[COL_SEQ] = { "seq", NULL, false, FIT_WHOLE },
	[COL_CREATED_NS] = { "created_ns", NULL, false, FIT_WHOLE },
	[COL_GENERATION] = { "generation", NULL, false, FIT_WHOLE },
	[COL_ID] = { "id", NULL, false, FIT_WHOLE },
	[COL_FORMAT] = { "format", NULL, false, FIT_WHOLE },
	[COL_WHY] = { "why", NULL, false, FIT_WHOLE },
};

static enum cell_style state_style(enum store_state state)
{
	switch (state) {
	case STORE_COMMITTED:
		return STYLE_GOOD;
	case STORE_COLLECTING:
		return STYLE_WARN;
	case STORE_SET_ASIDE:
		return STYLE_DIM;
	case STORE_DAMAGED:
	case STORE_QUARANTINED:
		return STYLE_BAD;
	}
	return STYLE_PLAIN;
}

static int job_add(struct ls *l, const struct ls_job *add, const char *job, const char *path)
{
	struct ls_job *j;

	if (l->njob == l->cap) {
		uint32_t cap = l->cap ? 2 * l->cap : 16;
		struct ls_job *p = reallocarray(l->job, cap, sizeof *p);

		if (!p)
			return -ENOMEM;
		l->job = p;
		l->cap = cap;
	}
	j = &l->job[l->njob];
	*j = *add;
	j->path = strdup(path);
	if (!j->path)
		return -ENOMEM;
	snprintf(j->job, sizeof j->job, "%s", job);
	l->njob++;
	return 0;
}

static bool is_bad(const struct ls_job *j, const struct store_step *st)
{
	for (uint32_t i = 0; i < j->nmark; i++)
		if (j->mark[i].kind == MARK_BAD && store_mark_is(&j->mark[i], st))
			return true;
	return false;
}

/* The highest of those that were set aside and can be loaded, the newest of equal ones. */
static void aside_find(struct ls_job *j)
{
	uint32_t same = 0;

	for (uint32_t i = 0; i < j->n; i++) {
		const struct store_step *st = &j->step[i];

		if (st->state != STORE_SET_ASIDE)
			continue;
		j->naside++;
		j->aside_bytes += st->bytes;
		if (!st->code && !is_bad(j, st) && (!j->aside.dir[0] || st->step > j->aside.step))
			j->aside = *st;
	}
	for (uint32_t i = 0; i < j->n; i++)
		same += j->step[i].state != STORE_COLLECTING && j->step[i].step == j->aside.step;
	j->aside_alone = same == 1;
}

/* Without --all the line is kept: what is committed, and what is damaged or quarantined. */
static void keep(struct ls *l, struct ls_job *j)
{
	struct store_step *step = j->step;
	uint32_t kept = 0;

	aside_find(j);
	j->latest = UINT32_MAX;
	for (uint32_t i = 0; i < j->n; i++) {
		bool aside = step[i].state == STORE_SET_ASIDE || step[i].state == STORE_COLLECTING;

		if (step[i].state == STORE_COMMITTED && j->latest == UINT32_MAX)
			j->latest = kept;
		l->damaged += step[i].state == STORE_DAMAGED;
		l->quarantined += step[i].state == STORE_QUARANTINED;
		if (!aside || l->c->value[OPT_ALL])
			step[kept++] = step[i];
	}
	j->n = kept;
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct ls *l = arg;
	struct store s = { .ops = l->c->ops, .root_fd = -1, .job_fd = job_fd };
	struct ls_job j = { 0 };
	struct ckpt_err err = { 0 };
	int rc;

	snprintf(s.job, sizeof s.job, "%s", job);
	rc = store_scan_parts(&s, true, &j.step, &j.n, &err);
	if (rc) {
		/* The other jobs are still worth listing. */
		l->code = cli_worse(l->code, cli_fail(l->c, rc, &err, NULL));
		return 0;
	}
	/* And the steps, where what was said about them cannot be read. */
	rc = store_marks(&s, &j.mark, &j.nmark, &err);
	if (rc) {
		ckpt_error_prefix(&err, rc, "holds, tags and other marks of %s are not shown", job);
		l->code = cli_worse(l->code, cli_fail(l->c, rc, &err, NULL));
	}
	keep(l, &j);
	rc = job_add(l, &j, job, abs_path);
	if (rc) {
		free(j.step);
		free(j.mark);
	}
	return rc;
}

/* The job whose next step is the newest; what is being collected has no time yet, and is newer
 * than all. */
static struct ls_job *newest(struct ls *l)
{
	struct ls_job *best = NULL;
	uint64_t when = 0;

	for (uint32_t i = 0; i < l->njob; i++) {
		struct ls_job *j = &l->job[i];
		uint64_t w;

		if (j->at == j->n)
			continue;
		w = j->step[j->at].wall_ns ? j->step[j->at].wall_ns : UINT64_MAX;
		if (!best || w > when) {
			best = j;
			when = w;
		}
	}
	return best;
}

static void step_put(struct ls *l, const struct ls_job *j, const struct store_step *x,
		     const struct column *col)
{
	struct output *o = l->c->o;
	bool known = x->world != 0; /* its MANIFEST was read */
	char path[4096 + STORE_DIR_MAX], note[1024];

	snprintf(path, sizeof path, "%s/%s", j->path, x->dir);
	output_row(o);
	output_put(o, &col[COL_PATH], cell_text(path));
	output_put(o, &col[COL_JOB], cell_text(j->job));
	output_put(o, &col[COL_STEP], cell_styled(cell_of(CELL_NUMBER, x->step), STYLE_STRONG));
	output_put(o, &col[COL_STATE],
		   cell_styled(cell_text(marked_state(x->state)), state_style(x->state)));
	output_put(o, &col[COL_BYTES], cell_of(CELL_BYTES, x->bytes));
	output_put(o, &col[COL_SEQ], known ? cell_of(CELL_NUMBER, x->seq) : cell_none());
	output_put(o, &col[COL_PARENT],
		   known ? cell_unless(CELL_NUMBER, x->parent_step, UINT64_MAX) : cell_none());
	output_put(o, &col[COL_WORLD], known ? cell_of(CELL_COUNT, x->world) : cell_none());
	output_put(o, &col[COL_MESH], known ? cell_text(x->mesh) : cell_none());
	output_put(o, &col[COL_FORMAT], x->format ? cell_text(x->format) : cell_none());
	output_put(o, &col[COL_AGE], known ? cell_of(CELL_AGE, x->wall_ns) : cell_none());
	output_put(o, &col[COL_ASIDE_AT],
		   x->aside_ns ? cell_of(CELL_TIME, x->aside_ns) : cell_none());
	output_put(o, &col[COL_CREATED_NS], cell_unless(CELL_NUMBER, x->wall_ns, 0));
	output_put(o, &col[COL_GENERATION], cell_unless(CELL_NUMBER, x->generation, 0));
	output_put(o, &col[COL_ID], known ? cell_id(x->id) : cell_none());
	marked_print(x, j->mark, j->nmark, l->now_ns, j->latest < j->n && x == &j->step[j->latest],
		     NOTE_NAME, note, sizeof note);
	output_put(o, &col[COL_NOTE], cell_text(note));
	if (o->machine)
		marked_put(o, x, j->mark, j->nmark, l->now_ns);
	output_put(o, &col[COL_WHY], x->why[0] ? cell_text(x->why) : cell_none());
	output_close(o);
	if (x->state == STORE_COMMITTED) {
		l->listed++;
		l->bytes += x->bytes;
	}
}

static void list(struct ls *l)
{
	struct column col[COL_COUNT];
	struct ls_job *j;

	memcpy(col, columns, sizeof col);
	if (l->njob < 2)
		col[COL_JOB].head = NULL;
	if (!l->c->value[OPT_ALL] && !l->damaged && !l->quarantined)
		col[COL_STATE].head = NULL;
	output_list(l->c->o, "checkpoints", col, COL_COUNT);
	while ((j = newest(l))) {
		const struct store_step *x = &j->step[j->at++];

		step_put(l, j, x, col);
	}
	output_close(l->c->o);
}

/* What is wrong with the damaged steps that were listed. */
static void reasons(struct ls *l)
{
	char mark[64];

	for (uint32_t i = 0; i < l->njob; i++)
		for (uint32_t k = 0; k < l->job[i].n; k++) {
			const struct store_step *x = &l->job[i].step[k];

			if (!x->why[0])
				continue;
			snprintf(mark, sizeof mark, "step %llu", (unsigned long long)x->step);
			cli_mark(l->c, STYLE_BAD, mark, 2, " of %s: %s", l->job[i].job, x->why);
		}
}

/* "4 steps up to 200 were set aside at 2026-11-21 12:37; to go back: ckptctl rewind step:200" */
static void aside_say(struct ls *l, const struct ls_job *j)
{
	const struct store_step *st = &j->aside;
	const char *where = l->c->narg ? l->c->arg[0] : l->c->value[OPT_STORE];
	char of[CKPT_JOB_MAX + 8] = "", at[HUMAN_BYTES] = "", name[STORE_DIR_MAX + 8],
			       in[4200] = "";

	if (!j->naside)
		return;
	if (l->njob > 1)
		snprintf(of, sizeof of, " of %s", j->job);
	if (!st->dir[0]) {
		cli_say(l->c, STYLE_PLAIN,
			"%u step%s%s %s set aside, and none of them can be loaded; ckptctl ls --all "
			"lists them",
			j->naside, j->naside == 1 ? "" : "s", of, j->naside == 1 ? "was" : "were");
		return;
	}
	if (l->njob > 1 || where)
		snprintf(in, sizeof in, " -C %s", l->njob > 1 ? j->path : where);
	if (j->aside_alone)
		snprintf(name, sizeof name, "step:%llu", (unsigned long long)st->step);
	else
		snprintf(name, sizeof name, "%s", st->dir);
	if (st->aside_ns)
		human_time(st->aside_ns, at);
	cli_say(l->c, STYLE_PLAIN,
		"%u step%s up to %llu%s %s set aside%s%s; to go back: ckptctl rewind %s%s",
		j->naside, j->naside == 1 ? "" : "s", (unsigned long long)st->step, of,
		j->naside == 1 ? "was" : "were", *at ? " at " : "", at, name, in);
}

/* The same for programs. */
static void asides(struct ls *l)
{
	static const struct column job = { "job", NULL, false, FIT_WHOLE },
				   count = { "step_count", NULL, false, FIT_WHOLE },
				   bytes = { "bytes", NULL, false, FIT_WHOLE },
				   up_to = { "up_to", NULL, false, FIT_WHOLE },
				   path = { "path", NULL, false, FIT_WHOLE };
	struct output *o = l->c->o;

	output_list(o, "set_aside", NULL, 0);
	for (uint32_t i = 0; i < l->njob; i++) {
		const struct ls_job *j = &l->job[i];
		char at[4096 + STORE_DIR_MAX];

		if (!j->naside)
			continue;
		snprintf(at, sizeof at, "%s/%s", j->path, j->aside.dir);
		output_row(o);
		output_put(o, &job, cell_text(j->job));
		output_put(o, &count, cell_of(CELL_NUMBER, j->naside));
		output_put(o, &bytes, cell_of(CELL_BYTES, j->aside_bytes));
		output_put(o, &up_to,
			   j->aside.dir[0] ? cell_of(CELL_NUMBER, j->aside.step) : cell_none());
		output_put(o, &path, j->aside.dir[0] ? cell_text(at) : cell_none());
		output_put(o, &columns[COL_ASIDE_AT],
			   j->aside.aside_ns ? cell_of(CELL_TIME, j->aside.aside_ns) : cell_none());
		output_close(o);
	}
	output_close(o);
}

static void summary(struct ls *l, const char *where)
{
	char bytes[HUMAN_BYTES];

	if (!l->njob)
		cli_say(l->c, STYLE_PLAIN, "No job has written to %s yet.", where);
	else if (!l->listed && l->damaged + l->quarantined)
		cli_say(l->c, STYLE_PLAIN, "No checkpoint in %s can be used.", where);
	else if (!l->listed)
		cli_say(l->c, STYLE_PLAIN, "No committed checkpoint in %s yet.", where);
	else if (l->njob == 1)
		cli_say(l->c, STYLE_DIM, "%u checkpoint%s of %s, %s", l->listed,
			l->listed == 1 ? "" : "s", l->job[0].job, human_bytes(l->bytes, bytes));
	else
		cli_say(l->c, STYLE_DIM, "%u checkpoint%s of %u jobs, %s", l->listed,
			l->listed == 1 ? "" : "s", l->njob, human_bytes(l->bytes, bytes));
	for (uint32_t i = 0; i < l->njob; i++)
		aside_say(l, &l->job[i]);
	if (l->quarantined)
		cli_hint(l->c,
			 "latest passes over %u quarantined step%s; ckptctl repair checks %s again",
			 l->quarantined, l->quarantined == 1 ? "" : "s",
			 l->quarantined == 1 ? "it" : "them");
	if (l->damaged)
		cli_hint(l->c,
			 "%u damaged step%s cannot be loaded; ckptctl repair -n says what can be "
			 "mended",
			 l->damaged, l->damaged == 1 ? "" : "s");
}

static int run(struct cli *c)
{
	const char *where = c->narg ? c->arg[0] : c->where;
	struct ls l = { .c = c, .now_ns = wall_ns() };
	struct ckpt_err err = { 0 };
	int rc, closed = 0, none = 0;

	if (!*where)
		return cli_fail(
			c, ckpt_error(&err, -EINVAL, "PATH is empty: a variable that is not set?"),
			&err, "ckptctl ls -h");
	rc = store_jobs(c->ops, where, each_job, &l, &err);

	if (!rc && !l.njob && subject_is_checkpoint(c, where))
		rc = ckpt_error(&err, -EINVAL, "%s is a checkpoint, not a store", where);
	if (!rc)
		closed = store_jobs_closed(c->ops, where, &err);
	if (closed && !l.njob)
		rc = closed;
	else if (!rc && !l.njob)
		rc = none = store_none(c->ops, where, &err);
	if (rc == -EINVAL)
		l.code = cli_fail(c, rc, &err, "ckptctl show %s", where);
	else if (rc)
		l.code = cli_fail(
			c, rc, &err,
			none ? "ckptctl ls STORE"
			: rc == -ENOENT
				? "check the path; a job makes its store with its first checkpoint"
			: rc == -ENOTDIR		? "ckptctl ls DIRECTORY"
			: rc == -EACCES || rc == -EPERM ? CLI_NEXT_USER
							: NULL);
	if (!rc) {
		output_begin(c->o, "ckptd.ls/1");
		list(&l);
		asides(&l);
		reasons(&l);
		summary(&l, where);
		output_end(c->o);
		if (closed)
			cli_hint(c, "not listed: %s", err.msg);
	}
	for (uint32_t i = 0; i < l.njob; i++) {
		free(l.job[i].path);
		free(l.job[i].step);
		free(l.job[i].mark);
	}
	free(l.job);
	return l.code;
}

const struct cli_verb verb_ls = {
	.name = "ls",
	.help = "the checkpoints of a store or job, newest first",
	.synopsis = (const char *const[]){ "[PATH]", "--all [PATH]", NULL },
	.about =
		"PATH is a store (the directory that jobs write to) or the directory of one job "
		"in it. The steps of the job's line are listed. STATE, where it stands, says which of them "
		"cannot be loaded: a damaged one lacks a part, has one of another length, or its MANIFEST "
		"is damaged; in a quarantined one somebody has found damage; all others are committed. "
		"The data are not read: ckptctl verify --data does that. PARENT is the step that the job had resumed from "
		"or committed before. NOTE says which one latest is, who holds it and for how "
		"long, its tags, and whether every byte of it was checked since it was written.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl ls runs/", "all jobs of the store runs/" },
			{ "ckptctl ls runs/demo --all", "also unfinished and set aside" },
			{ "ckptctl show --json | jq .step", "the newest step, for a script" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_ALL, "also steps that are being collected or were set aside" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 also when there is none yet, or some cannot be loaded; 2 PATH is a checkpoint; 10 PATH "
		"does not exist, or is no store; "
		"12 it cannot be read, or none of the jobs in it can.",
	.args = (const enum cli_arg[]){ ARG_DIR, ARG_NONE },
	.narg_max = 1,
	.run = run,
};
