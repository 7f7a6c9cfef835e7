/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_rewind.c - ckptctl rewind: make a step the newest of its job's line again.
 * Invariant: nothing moves below ranks that run, and nothing before a yes; what a daemon has in
 * memory of the job is given up before the first step moves, or it would be restored instead of
 * what was asked for.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/ask.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"
#include "ckpt/store/rewind.h"
#include "formats/registry/registry.h"
#include <sys/random.h>
#include <sys/stat.h>

#define FORGET_NS (10 * NS_PER_S) /* that a daemon may need to end the write that our claim fails */
#define FORGET_NAP_NS (50 * NS_PER_MS)

struct move {
	uint64_t step, bytes;
	char dir[STORE_DIR_MAX];
	bool back;
};

struct rewind {
	struct cli *c;
	struct store_home m;
	char path[4096];
	bool dry;

	struct move *move;
	uint32_t nmove, cap;
	struct rewind_result result;

	struct control control; /* sock -1: no daemon there */
	bool known;		/* it has the job */
	uint32_t job;		/* index in the report */
	uint64_t *staged;	/* in its memory, and not on disk */
	uint32_t nstaged;
	bool held; /* it has some step of the job in memory */
	uint64_t freed;
};

/* --- the daemon --- */

static bool is_job(const struct rewind *x, const struct wire_report_job *j)
{
	char path[sizeof j->store + sizeof j->name + 1];
	struct stat mine, its;

	snprintf(path, sizeof path, "%s/%s", j->store, j->name);
	return !fstat(x->m.s.job_fd, &mine) && !stat(path, &its) && mine.st_dev == its.st_dev &&
	       mine.st_ino == its.st_ino;
}

static int staged_find(struct rewind *x, struct ckpt_err *err)
{
	const struct wire_report *r = &x->control.report;

	free(TAKE(x->staged));
	x->nstaged = 0;
	x->held = false;
	x->staged = calloc((size_t)r->head->nstep + 1, sizeof *x->staged);
	if (!x->staged)
		return ckpt_error(err, -ENOMEM, "no memory for the daemon's report");
	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job != x->job || !(s->flags & WIRE_HELD))
			continue;
		x->held = true;
		if (s->state != WIRE_COMMITTED && s->state != WIRE_MARKED)
			x->staged[x->nstaged++] = s->step;
	}
	return 0;
}

/* What the daemon says of the job now. -EBUSY: its ranks run. */
static int daemon_ask(struct rewind *x, struct ckpt_err *err)
{
	const struct wire_report *r = &x->control.report;
	int rc = x->control.sock < 0 ? 0 : control_report(&x->control, err);

	x->known = false;
	if (rc || x->control.sock < 0)
		return rc;
	for (x->job = 0; !x->known && x->job < r->head->njob; x->job += !x->known)
		x->known = is_job(x, &r->job[x->job]);
	if (!x->known)
		return 0;
	if (r->job[x->job].attached)
		return ckpt_error(
			err, -EBUSY,
			"job %s runs: %u rank%s attached to ckptd on %s; a running job cannot "
			"be rewound",
			x->m.s.job, r->job[x->job].attached,
			r->job[x->job].attached == 1 ? " is" : "s are", x->control.socket);
	return staged_find(x, err);
}

/* No daemon is none to be asked; one that does not answer may have ranks. */
static int daemon_find(struct rewind *x, struct ckpt_err *err)
{
	int rc = daemon_ask_open(&x->control, x->c, 0, err);

	if (rc == -ECONNREFUSED)
		return 0;
	return rc ? rc : daemon_ask(x, err);
}

/* The writer was fenced before, so that what is being written ends soon. */
static int daemon_forget(struct rewind *x, struct ckpt_err *err)
{
	uint64_t until = now_ns() + FORGET_NS;
	struct wire_forgotten got = { 0 };
	int rc;

	for (;;) {
		struct wire_forget ask = { .flags = WIRE_ALL };

		rc = daemon_ask(x, err);
		if (rc || !x->known || !x->held)
			return rc;
		ask.job = x->control.report.job[x->job].id;
		rc = control_call(&x->control, &ask, WIRE_FORGET, -1, &got, NULL,
				  control_soon(&x->control), err);
		if (rc != -EBUSY || now_ns() > until || cli_stopped())
			break;
		daemon_ask_pause(FORGET_NAP_NS);
	}
	if (!rc)
		x->freed = got.bytes;
	return rc == -ENOENT ? 0 : rc; /* the daemon has let the job go meanwhile */
}

/* --- the plan --- */

static void on_row(void *arg, const struct store_step *st, bool back)
{
	struct rewind *x = arg;

	if (!ARRAY_GROW(x->move, x->nmove, x->cap)) {
		x->c->o->failed = true;
		return;
	}
	x->move[x->nmove] = (struct move){ .step = st->step, .bytes = st->bytes, .back = back };
	memcpy(x->move[x->nmove++].dir, st->dir, sizeof st->dir);
}

static int rewind_store(struct rewind *x, bool dry, struct ckpt_err *err)
{
	struct store *s = &x->m.s;
	struct rewind_opts o = { .dir = x->m.step.dir, .dry = dry, .row = on_row, .arg = x };
	uint64_t generation;
	int rc = 0;

	x->nmove = 0;
	if (!dry)
		rc = store_claim(s, 0, false, &generation, err);
	if (!rc && !dry)
		rc = daemon_forget(x, err);
	return rc ? rc : store_rewind(s, &o, &x->result, err);
}

static void table_print(struct rewind *x)
{
	static const struct column col[] = {
		{ "step", "STEP", true, FIT_WHOLE },
		{ "bytes", "SIZE", true, FIT_WHOLE },
		{ "action", "ACTION", false, FIT_WHOLE },
	};
	struct output *o = x->c->o;

	output_list(o, "moves", col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < x->nmove; i++) {
		OUTPUT_ROW(o, col, cell_styled(cell_number(x->move[i].step), STYLE_STRONG),
			   cell_bytes(x->move[i].bytes),
			   x->move[i].back ? cell_styled(cell_text("bring-back"), STYLE_GOOD)
					   : cell_styled(cell_text("set-aside"), STYLE_WARN));
	}
	output_close(o);
}

static void document_print(struct rewind *x, bool shown)
{
	unsigned long long n = x->result.step;
	struct output *o = x->c->o;
	char at[4200];

	snprintf(at, sizeof at, "%s/step-%012llu", x->m.dir, n);
	output_key(o, "dry_run", cell_flag(x->dry));
	output_key(o, "job", cell_text(x->m.s.job));
	output_key(o, "step", cell_number(x->result.step));
	output_key(o, "path", cell_text(at));
	if (shown || x->c->json)
		table_print(x);
	output_key(o, "lost_step_count", cell_number(x->nstaged));
	output_key(o, "freed_bytes", cell_bytes(x->freed));
	if (!x->nmove)
		cli_say(x->c, STYLE_DIM, "step %llu is the newest of job %s already", n,
			x->m.s.job);
	else if (x->dry)
		cli_say(x->c, STYLE_DIM,
			"step %llu would be the newest of job %s (dry run; nothing changed)", n,
			x->m.s.job);
	else
		cli_say(x->c, STYLE_DIM,
			"step %llu is the newest of job %s now: %u set aside, %u brought back", n,
			x->m.s.job, x->result.naside, x->result.nback);
	if (x->held)
		cli_say(x->c, STYLE_DIM,
			"ckptd %s its memory of the job, %u step%s of it not on disk",
			x->dry ? "would give up" : "gave up", x->nstaged,
			x->nstaged == 1 ? "" : "s");
	output_end(o);
	if (x->nmove && !x->dry)
		cli_hint(x->c, "ckptctl verify --data step:%llu reads every byte of it", n);
}

/* --- agreeing --- */

/* "step 230 and 2 more" */
static int staged_refuse(const struct rewind *x, struct ckpt_err *err)
{
	uint64_t newest = 0;
	char more[32] = "";

	for (uint32_t i = 0; i < x->nstaged; i++)
		newest = MAX(newest, x->staged[i]);
	if (x->nstaged > 1)
		snprintf(more, sizeof more, " and %u more", x->nstaged - 1);
	return ckpt_error(
		err, -EBUSY,
		"step %llu%s of job %s %s in ckptd's memory and not on disk: a rewind gives %s up",
		(unsigned long long)newest, more, x->m.s.job, x->nstaged > 1 ? "are" : "is",
		x->nstaged > 1 ? "them" : "it");
}

/* 0: go on; 1: it is not wanted; -errno. */
static int rewind_agree(struct rewind *x, struct ckpt_err *err)
{
	struct cli *c = x->c;

	if (c->value[OPT_YES])
		return 0;
	if (x->nstaged)
		return staged_refuse(x, err);
	if (!ask_can(c))
		return ckpt_error(err, -EINVAL,
				  "%u step%s would be set aside and %u brought back, and ckptctl "
				  "cannot ask here: nothing was changed",
				  x->result.naside, x->result.naside == 1 ? "" : "s",
				  x->result.nback);
	table_print(x);
	return ask(c, "changed", err, "Make step %llu the newest of job %s?",
		   (unsigned long long)x->result.step, x->m.s.job);
}

static int rewind_fail(struct rewind *x, int rc, const struct ckpt_err *err)
{
	struct cli *c = x->c;
	const char *name = c->arg[0];

	switch (rc) {
	case -EINVAL:
		return cli_fail(c, rc, err, "ckptctl rewind -n %s shows it, --yes does it", name);
	case -EBUSY:
		if (x->nstaged)
			return cli_fail(c, rc, err, "ckptctl drain writes it; --yes gives it up");
		return cli_fail(c, rc, err, "end the job first; ckptctl status shows it");
	case -EBADMSG:
		return cli_fail(c, rc, err,
				"ckptctl repair -n shows what can be repaired; ckptctl ls --all, "
				"which steps there are");
	case -EACCES:
	case -EPERM:
	case -EROFS:
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	default:
		return cli_fail(c, rc, err, NULL);
	}
}

static int step_rewind(struct rewind *x)
{
	struct cli *c = x->c;
	struct ckpt_err err = { 0 };
	int rc = x->dry ? 0 : store_home_owner(x->m.s.job_fd, x->m.dir, &err);

	if (rc)
		return cli_fail(c, rc, &err, LABELS_NEXT_OWNER);
	output_begin(c->o, "ckptd.rewind/1");
	rc = daemon_find(x, &err);
	if (rc && rc != -EBUSY && rc != -ENOMEM)
		return daemon_ask_fail(c, &x->control, rc, &err);
	if (!rc && x->control.sock < 0) /* and another socket's daemon may serve it */
		cli_hint(
			c,
			"no ckptd listens on %s, so ckptctl cannot know whether job %s runs: a job "
			"that runs commits nothing after a rewind",
			x->control.socket, x->m.s.job);
	if (!rc)
		rc = rewind_store(x, true, &err);
	if (!rc && !x->dry && (x->nmove || x->held)) {
		rc = rewind_agree(x, &err);
		if (rc > 0)
			return CLI_OK;
		if (!rc)
			rc = rewind_store(x, false, &err);
	}
	if (rc)
		return rewind_fail(x, rc, &err);
	document_print(x, x->dry || c->value[OPT_YES]);
	return CLI_OK;
}

/* --- the verb --- */

/* Is all there that the step needs to be loaded? An exit code. */
static int structure_check(struct cli *c, const struct store_ref *ref)
{
	struct subject s = { .ref.step_fd = -1 };
	struct ckpt_err err = { 0 };
	int code = CLI_OK, fd = dup(ref->step_fd), rc;

	if (fd < 0)
		return cli_fail(c, -errno, NULL, NULL);
	subject_take(&s, c->ops, fd, ref->path);
	rc = subject_open(&s, NULL, NULL, &err);
	if (rc == -EBADMSG)
		code = cli_fail(c, rc, &err,
				"ckptctl verify %s lists every fault; ckptctl ls --all, the other "
				"steps",
				ref->path);
	else if (rc)
		code = subject_tell(c, rc, &err, ref->path);
	subject_close(&s);
	return code;
}

static int rewind_run(struct cli *c)
{
	struct rewind x = { .c = c, .dry = c->value[OPT_DRY_RUN], .control = { .sock = -1 } };
	const char *name = c->narg ? c->arg[0] : "";
	struct ckpt_err err = { 0 };
	struct store_ref ref;
	int rc, code;

	if (!*name)
		return cli_usage(c, "ckptctl ls --all lists them", "ckptctl rewind needs a step");
	if (x.dry && c->value[OPT_YES])
		return cli_usage(c, NULL, "--dry-run changes nothing, --yes does: give one");
	rc = store_resolve_aside(c->ops, formats[0], c->where, name, &ref, &err);
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	subject_note(c, &ref);
	code = rc ? 0 : structure_check(c, &ref);
	if (!rc)
		rc = code ? 0 : store_home_find(c->ops, formats[0], &ref, &x.m, &err);
	store_step_close(TAKE_FD(ref.step_fd));
	if (code)
		return code;
	if (rc > 0) {
		ckpt_error(&err, -EINVAL, "%.300s lies in no store, so no job can go back to it",
			   ref.path);
		return cli_fail(c, -EINVAL, &err, "ckptctl rewind -C STORE step:N");
	}
	if (rc)
		return subject_tell(c, rc, &err, name);
	(void)pthread_mutex_init(&x.m.s.lock, NULL);
	if (getrandom(&x.m.s.nonce, sizeof x.m.s.nonce, 0) != sizeof x.m.s.nonce)
		x.m.s.nonce = (uint32_t)now_ns();
	code = step_rewind(&x);
	control_close(&x.control);
	free(x.staged);
	free(x.move);
	(void)pthread_mutex_destroy(&x.m.s.lock);
	store_home_close(&x.m);
	return code;
}

const struct cli_verb verb_rewind = {
	.name = "rewind",
	.help = "go back to a step that was set aside, or to an older one",
	.synopsis = (const char *const[]){ "[-n | --yes] STEP", NULL },
	.about =
		"When a job continues an older step and commits, its newer steps are set aside (ckptctl ls says "
		"so). This makes one of them the newest step again: the steps of the present line that it does "
		"not descend from are set aside, and it comes back with the steps that it descends from. STEP is "
		"step:12000 or its path; a step of the present line can be given too. Nothing is removed, and "
		"after a crash the same command continues. End the job first: if ranks of it are attached to the "
		"ckptd on the socket, rewind refuses; without a ckptd there it cannot know. rewind does not read "
		"the step's data: ckptctl verify --data does. The command "
		"takes a launch number, so that no older launch of the job can commit any more, and makes ckptd "
		"give up what it has in memory of the job; if a step of that is not on disk, it needs --yes. On a "
		"terminal it shows what it will do and asks; elsewhere it needs --yes.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl rewind -n step:200", "what would move" },
			{ "ckptctl rewind --yes step:200 -C runs/demo", "do it" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DRY_RUN, "show what would move; change nothing" },
			{ OPT_YES, "do it without a question" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 done, or nothing to do; 2 ckptctl cannot ask and --yes is missing, or several steps of "
		"that number were set aside; 4 the step's metadata is damaged, or it is quarantined or misplaced; 5 it is still being written; "
		"8 a newer version wrote it, or one that it may continue; 10 there is no such store or step; 11 ranks of the job are attached, a step in memory is not on "
		"disk, or the line is being changed; 12 the store cannot be written, or the daemon is another "
		"user's; 15 the daemon does not answer; 130 interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = rewind_run,
};
