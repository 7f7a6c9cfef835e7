/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_wait.c - ckptctl wait: until a step is staged, persisted or committed, or never will be.
 * Asks the daemon; what is in the store needs none.
 * Invariant: 0 only when the state is reached; a step that is in the store has reached all of them.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/subject.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/address.h"
#include "ckpt/store/store.h"
#include "formats/registry/registry.h"
#include <inttypes.h>
#include <limits.h>

#define LOOK_MIN_NS (20 * NS_PER_MS) /* between looks, at first */
#define LOOK_MAX_NS (250 * NS_PER_MS)
#define LATEST UINT64_MAX

struct waiting {
	struct cli *c;
	struct control k;
	const char *state;
	uint32_t want; /* enum wire_step_state: STAGED, PERSISTED, COMMITTED */
	uint64_t step, began_ns, until;
	const char *name;     /* of the job, or STORE/NAME; NULL: not said */
	char named[PATH_MAX]; /* the same, without an @ behind it */
	char in_store
		[PATH_MAX]; /* what only the store knows: a tag, latest~2; "": the step is known */
	/* 1 + step, as the daemon's last answer had them; 0: none, or no answer */
	uint64_t at, staged, committed;
	char job[CKPT_JOB_MAX + 8]; /* "": not known yet */
	char dir[PATH_MAX];	    /* the job's directory; "": not known yet */
	char known[PATH_MAX];	    /* the same from the daemon, for which it is the job's name */
	bool served;		    /* the daemon knows the job */
	bool latest;		    /* the step was the latest, which is to come to disk */
	struct ckpt_err missing;    /* nothing knows it, or the daemon is silent, so far */
};

/* --- what is asked --- */
/* A path to a step's directory: of a step that may still have to come. */
static int path_split(struct waiting *w, const char *path, struct address *a, struct ckpt_err *err)
{
	char dir[PATH_MAX];
	size_t n = strlen(path);
	const char *base;

	while (n && path[n - 1] == '/')
		n--;
	if (n >= sizeof dir)
		return ckpt_error(err, -ENAMETOOLONG, "the path %.60s... is too long", path);
	memcpy(dir, path, n);
	dir[n] = 0;
	base = strrchr(dir, '/');
	if (!base || strncmp(base + 1, "step-", 5) || address_parse(base + 1, a, NULL) ||
	    a->kind != ADDRESS_STEP)
		return ckpt_error(
			err, -EINVAL,
			"\"%.200s\" is not a step: give a number, latest, tag:NAME, one of "
			"these after JOB@, or a step's directory",
			path);
	snprintf(w->named, sizeof w->named, "%.*s", (int)MAX(base - dir, 1), dir);
	if (!strchr(w->named, '/'))
		snprintf(w->named, sizeof w->named, "%.*s/.", (int)(base - dir), dir);
	return 0;
}

static int take_address(struct waiting *w, const char *text, struct ckpt_err *err)
{
	const char *job = w->c->value[OPT_JOB];
	struct address a;
	bool apart; /* the job is --job's */
	int rc = address_parse(text, &a, err);

	if (rc)
		return rc;
	memcpy(w->named, a.job, sizeof w->named);
	if (a.kind == ADDRESS_PATH || a.kind == ADDRESS_ENTRY)
		rc = path_split(w, text, &a, err);
	if (rc)
		return rc;
	if (job && w->named[0])
		return ckpt_error(err, -EINVAL, "\"%.80s\" already names the job: omit --job %.80s",
				  text, job);
	apart = !w->named[0];
	if (apart)
		rc = daemon_ask_name(w->c, NULL, w->named, &w->name, err);
	else
		w->name = w->named;
	if (rc)
		return rc;
	w->step = a.kind == ADDRESS_STEP ? a.n : LATEST;
	if (w->step == LATEST && a.kind == ADDRESS_STEP)
		return ckpt_error(err, -EINVAL, "no step has the number %.60s", a.what);
	if (a.kind == ADDRESS_TAG || (a.kind == ADDRESS_LATEST && a.n))
		snprintf(w->in_store, sizeof w->in_store, "%s%s%s", apart && w->name ? w->name : "",
			 apart && w->name ? "@" : "", text);
	return 0;
}

static int arguments_read(struct waiting *w, struct ckpt_err *err)
{
	static const struct {
		const char *name;
		uint32_t state;
	} states[] = { { "committed", WIRE_COMMITTED },
		       { "persisted", WIRE_PERSISTED },
		       { "staged", WIRE_STAGED } };
	const char *state = w->c->value[OPT_STATE];
	int rc = w->c->narg ? take_address(w, w->c->arg[0], err)
			    : ckpt_error(err, -EINVAL,
					 "ckptctl wait needs a step: a number, or latest");

	for (uint32_t i = 0; i < ARRAY_LEN(states); i++)
		if (!state || !strcmp(state, states[i].name)) {
			w->state = states[i].name;
			w->want = states[i].state;
			break;
		}
	return rc < 0 ? rc : daemon_ask_until(w->c, &w->until, err);
}

/* --- the store --- */
struct jobs {
	const char *name; /* NULL: any */
	uint32_t n, all;
	char job[CKPT_JOB_MAX + 8], dir[PATH_MAX], list[1024];
};

static int each_job(void *arg, const char *job, int job_fd, const char *path)
{
	struct jobs *j = arg;
	size_t len = strlen(j->list);

	(void)job_fd;
	snprintf(j->list + len, sizeof j->list - len, "%s%s", j->all++ ? ", " : "", job);
	if (j->name && strcmp(j->name, job) != 0)
		return 0;
	j->n++;
	snprintf(j->job, sizeof j->job, "%s", job);
	snprintf(j->dir, sizeof j->dir, "%s", path);
	return 0;
}

/* The job in the store where the command stands. */
static int store_job(struct waiting *w, struct ckpt_err *err)
{
	const char *name = w->name, *where = w->c->where;
	struct jobs j = { .name = name };
	int rc;

	if (name && strchr(name, '/')) { /* STORE/NAME */
		where = name;
		j.name = NULL;
	}
	rc = store_jobs(w->c->ops, where, each_job, &j, err);
	if (rc < 0)
		return rc;
	if (!j.all)
		return ckpt_error(err, -ENOENT, "no job has written to %s", where);
	if (!j.n)
		return ckpt_error(err, -ENOENT, "there is no job %s in %s; there is %s", j.name,
				  where, j.list);
	if (j.n > 1)
		return ckpt_error(err, -ENOTUNIQ, "%s has several jobs; give one with --job: %s",
				  where, j.list);
	memcpy(w->job, j.job, sizeof w->job);
	memcpy(w->dir, j.dir, sizeof w->dir);
	return 0;
}

/* 1: the step is in the store; 0: not. */
static int in_store(const struct waiting *w)
{
	struct store_ref ref = { .step_fd = -1 };
	struct ckpt_err err;
	char name[32];

	if (!w->dir[0] || w->step == LATEST)
		return 0;
	snprintf(name, sizeof name, "step:%" PRIu64, w->step);
	if (store_resolve(w->c->ops, formats[0], w->dir, name, &ref, &err) < 0)
		return 0;
	store_step_close(ref.step_fd);
	return 1;
}

/* The step and the job of what was found; the descriptor is closed. */
static int take_found(struct waiting *w, struct store_ref *ref, struct ckpt_err *err)
{
	struct address a;
	char *slash = strrchr(ref->path, '/'), *job;

	store_step_close(TAKE_FD(ref->step_fd));
	if (!w->c->passed)
		subject_note(w->c, ref);
	if (address_parse(slash + 1, &a, NULL) || a.kind != ADDRESS_STEP)
		return ckpt_error(err, -ENOENT, "%s is not a step of a job", ref->path);
	w->step = a.n;
	*slash = 0;
	job = strrchr(ref->path, '/');
	snprintf(w->job, sizeof w->job, "%.*s", CKPT_JOB_MAX, job ? job + 1 : "");
	return 0;
}

/* "latest" of the store as a number. */
static int latest_in_store(struct waiting *w, struct ckpt_err *err)
{
	struct store_ref ref = { .step_fd = -1 };
	int rc = store_resolve(w->c->ops, formats[0], w->dir, "latest", &ref, err);

	return rc < 0 ? rc : take_found(w, &ref, err);
}

/* What is tagged, and what stands before the newest, is in the store or nowhere. */
static int look_named(struct waiting *w, struct ckpt_err *err)
{
	struct store_ref ref = { .step_fd = -1 };
	int rc = store_resolve(w->c->ops, formats[0], w->c->where, w->in_store, &ref, err);

	if (rc == 0)
		rc = take_found(w, &ref, err);
	if (rc != -ENOENT || !w->until)
		return rc < 0 ? rc : 1;
	w->missing = *err;
	return 0;
}

/* --- the daemon --- */
static bool has_come(uint32_t state, uint32_t want)
{
	switch (state) {
	case WIRE_STAGED:
	case WIRE_QUEUED:
	case WIRE_WRITING:
	case WIRE_THINNED:
		return want == WIRE_STAGED;
	case WIRE_PERSISTED:
		return want != WIRE_COMMITTED;
	case WIRE_COMMITTED:
		return true;
	default:
		return false;
	}
}

static bool connection_lost(const struct wire_report_step *s)
{
	return s->state == WIRE_TORN || s->state == WIRE_SKIPPED || s->state == WIRE_FAILED;
}

/* May it be meant by "latest"? What is only held in memory never comes to disk. */
static bool may_come(const struct wire_report_step *s, uint32_t want)
{
	return !connection_lost(s) && s->state != WIRE_THINNED &&
	       (want == WIRE_STAGED || s->state >= WIRE_QUEUED || s->flags & WIRE_TO_WRITE);
}

/* The record that counts: of the newest generation, and what was taken rather than skipped. */
static const struct wire_report_step *step_find(const struct waiting *w, uint32_t job)
{
	const struct wire_report *r = &w->k.report;
	const struct wire_report_step *best = NULL;

	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job == job &&
		    (w->step == LATEST ? may_come(s, w->want) : s->step == w->step) &&
		    (!best || s->generation > best->generation ||
		     (s->generation == best->generation && best->state == WIRE_SKIPPED)))
			best = s;
	}
	return best;
}

/* 1: reached; 0: not yet; -EUCLEAN: never. */
static int step_judge(const struct waiting *w, uint32_t job, struct ckpt_err *err)
{
	const struct wire_report *r = &w->k.report;
	const struct wire_report_job *j = &r->job[job];
	const struct wire_report_step *s = step_find(w, job);

	if (s && has_come(s->state, w->want))
		return 1;
	if (in_store(w))
		return 1;
	if (s && s->state == WIRE_SKIPPED)
		return ckpt_error(err, -EUCLEAN,
				  "step %" PRIu64 " of %s was skipped: every slot was in use",
				  w->step, j->name);
	if (s && s->state == WIRE_TORN)
		return ckpt_error(err, -EUCLEAN, "step %" PRIu64 " of %s is torn: %s", w->step,
				  j->name, s->text);
	if (s && s->state == WIRE_FAILED)
		return ckpt_error(err, -EUCLEAN, "step %" PRIu64 " of %s could not be written: %s",
				  w->step, j->name, s->text);
	if (s && s->state == WIRE_THINNED)
		return ckpt_error(err, -EUCLEAN, "step %" PRIu64 " of %s will not be written: %s",
				  w->step, j->name, s->text);
	if (s && !(s->flags & WIRE_HELD))
		return ckpt_error(
			err, -EUCLEAN,
			"step %" PRIu64
			" of %s was only in memory, and a newer one has replaced it: persist_every does not select it",
			w->step, j->name);
	if (!s && j->newest > w->step + 1)
		return ckpt_error(err, -EUCLEAN,
				  "step %" PRIu64
				  " of %s was not kept: the job is at step %" PRIu64,
				  w->step, j->name, j->newest - 1);
	/* Another launch may come to it: --timeout waits for that. */
	if (!w->until && j->launch == WIRE_ENDED && !s)
		return ckpt_error(err, -EUCLEAN,
				  "no rank of %s is attached any more, and it did not reach step "
				  "%" PRIu64 " (with --timeout, ckptctl waits for its restart)",
				  j->name, w->step);
	return 0;
}

/* If the step that was the latest has given its turn to a newer one, that is meant: the oldest one
 * that may come. (The newest may give its turn away before the next look, and so on.) */
static void heir_follow(struct waiting *w, uint32_t job)
{
	const struct wire_report *r = &w->k.report;
	const struct wire_report_step *was = step_find(w, job), *heir = NULL;

	if (!was || !(was->state == WIRE_THINNED ||
		      (was->state == WIRE_STAGED && !(was->flags & WIRE_TO_WRITE))))
		return;
	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job == job && s->generation == was->generation && s->step > was->step &&
		    may_come(s, w->want) && (!heir || s->step < heir->step))
			heir = s;
	}
	if (heir)
		w->step = heir->step;
}

/* "latest" becomes the newest step that the daemon knows and that may come there. 0: there is none
 * yet; -ENOENT: and there is no time for one to come. */
static int daemon_latest(struct waiting *w, uint32_t job, struct ckpt_err *err)
{
	const struct wire_report_step *s = step_find(w, job);

	w->latest = s && w->want != WIRE_STAGED;
	if (s)
		w->step = s->step;
	if (s || (w->dir[0] && latest_in_store(w, err) == 0))
		return 1;
	return w->until ? 0
			: ckpt_error(err, -ENOENT, "job %s has no step yet that will be %s", w->job,
				     w->state);
}

/* How far the job is, for the error of a wait in vain. */
static void job_remember(struct waiting *w, uint32_t job)
{
	const struct wire_report *r = &w->k.report;
	const struct wire_report_step *s = control_staged(r, job);

	w->at = r->job[job].newest;
	w->staged = s ? s->step + 1 : 0;
	w->committed = r->job[job].last_committed;
}

/* A look through the daemon. 1, 0, -EUCLEAN as judge; -ENOENT: it does not know the job (or, if it
 * does, no step of it). The connection is for this look only: those are few. */
static int look_daemon(struct waiting *w, struct ckpt_err *err)
{
	const struct wire_report_job *j;
	uint32_t job;
	int rc = daemon_ask_open(&w->k, w->c, w->until, err);

	w->served = false;
	if (rc == 0)
		rc = control_report(&w->k, err);
	if (rc == 0)
		rc = control_job(&w->k, w->known[0] ? w->known : w->name, &job, err);
	if (rc < 0)
		return rc;
	w->served = true;
	j = &w->k.report.job[job];
	memcpy(w->job, j->name, sizeof w->job);
	job_remember(w, job);
	if (j->store[0]) {
		snprintf(w->known, sizeof w->known, "%s/%s", j->store, j->name);
		memcpy(w->dir, w->known, sizeof w->dir);
	}
	if (w->latest)
		heir_follow(w, job);
	rc = w->step == LATEST ? daemon_latest(w, job, err) : 1;
	return rc > 0 ? step_judge(w, job, err) : rc;
}

static int look_store(struct waiting *w, struct ckpt_err *err)
{
	int rc = w->known[0] ? 0 : store_job(w, err);

	if (rc == 0 && w->step == LATEST)
		rc = latest_in_store(w, err);
	return rc < 0 ? rc : in_store(w);
}

/* May the state still come without a word from the daemon? why: what it, or its absence, said. */
static int look_without(struct waiting *w, int why, struct ckpt_err *err)
{
	struct ckpt_err said = *err, here = { 0 };
	int rc = look_store(w, &here);

	if (rc > 0)
		return rc;
	if (rc < 0 && rc != -ENOENT) {
		*err = here;
		return rc;
	}
	if (why == -ENOENT ||
	    (rc == -ENOENT && why != -ETIMEDOUT)) { /* it may attach, or write, yet */
		if (why != -ENOENT)
			w->missing = here;
		else if (rc)
			ckpt_error(&w->missing, why, "%s; %s", said.msg, here.msg);
		else
			w->missing = said;
		why = -ENOENT;
		*err = w->missing;
	} else {
		if (why == -ETIMEDOUT)
			w->missing = said;
		*err = said;
	}
	/* The writer of the store may be on another host; what is not in the store only a daemon
	 * knows: one that is silent or does not know the job now, or the one after the one that
	 * did. */
	if (w->until && (w->want == WIRE_COMMITTED || w->known[0] || said.code == -ENOENT ||
			 said.code == -ETIMEDOUT))
		return 0;
	return why;
}

static int report_read(struct waiting *w, struct ckpt_err *err)
{
	int rc;

	w->missing.code = 0;
	if (w->in_store[0])
		return look_named(w, err);
	rc = look_daemon(w, err);
	control_close(&w->k);
	if (rc == -EAGAIN) { /* too many commands are connected: come again */
		w->missing = *err;
		return 0;
	}
	if ((rc == -ENOENT && !w->served) || rc == -ECONNREFUSED || rc == -ECONNRESET ||
	    rc == -ETIMEDOUT)
		return look_without(w, rc, err);
	return rc;
}

/* "; the job is at step 210, its newest staged step is 210, its newest committed 200" */
static void say_position(struct waiting *w, char *buf, size_t bytes)
{
	uint64_t step = w->step;
	struct ckpt_err err;

	if (!w->committed && w->dir[0] && latest_in_store(w, &err) == 0)
		w->committed = w->step + 1;
	w->step = step;
	*buf = 0;
	if (w->at)
		human_add(buf, bytes, "", "; the job is at step %" PRIu64, w->at - 1);
	if (w->staged)
		human_add(buf, bytes, "", ", its newest staged step is %" PRIu64, w->staged - 1);
	if (w->committed)
		human_add(buf, bytes, "", "%s newest committed %s%" PRIu64,
			  w->at || w->staged ? ", its" : "; the", w->staged ? "" : "step is ",
			  w->committed - 1);
}

static int time_over(struct waiting *w, struct ckpt_err *err)
{
	uint64_t ns = w->until - w->began_ns;
	char span[HUMAN_BYTES], position[256];

	if (w->missing.code) {
		*err = w->missing;
		return w->missing.code;
	}
	if (ns < 120 * NS_PER_S && ns >= NS_PER_S && ns % NS_PER_S < NS_PER_MS)
		snprintf(span, sizeof span, "%" PRIu64 " s", ns / NS_PER_S);
	else
		human_span(ns, span);
	say_position(w, position, sizeof position);
	if (w->step == LATEST)
		return ckpt_error(err, -ETIMEDOUT,
				  "timed out after %s%s; job %s has no step yet that will be %s",
				  span, position, w->job, w->state);
	return ckpt_error(err, -ETIMEDOUT,
			  "timed out after %s%s; step %" PRIu64 " of %s is not %s yet", span,
			  position, w->step, w->job, w->state);
}

static int wait_for(struct waiting *w, struct ckpt_err *err)
{
	uint64_t pause = LOOK_MIN_NS;
	int rc;

	while ((rc = report_read(w, err)) == 0) {
		uint64_t now = now_ns();

		if (cli_stopped())
			return ckpt_error(err, -ECANCELED, "interrupted");
		if (w->until && now >= w->until)
			return time_over(w, err);
		daemon_ask_pause(w->until ? MIN(pause, w->until - now) : pause);
		pause = MIN(pause + pause / 8, LOOK_MAX_NS);
	}
	return rc;
}

static void outcome_print(const struct waiting *w)
{
	struct cli *c = w->c;
	uint64_t ns = now_ns() - w->began_ns;

	output_begin(c->o, "ckptd.wait/1");
	output_key(c->o, "job", cell_text(w->job));
	output_key(c->o, "step", cell_number(w->step));
	output_key(c->o, "state", cell_text(w->state));
	output_key(c->o, "waited_s", cell_real((double)ns / (double)NS_PER_S));
	if (ns < NS_PER_S)
		cli_say(c, STYLE_PLAIN, "Step %" PRIu64 " of %s is %s.", w->step, w->job, w->state);
	else
		cli_say(c, STYLE_PLAIN, "Step %" PRIu64 " of %s is %s, after %s.", w->step, w->job,
			w->state, SPAN_TEXT(ns));
	output_end(c->o);
}

static int wait_run(struct cli *c)
{
	struct waiting w = { .c = c, .k = { .sock = -1 }, .began_ns = now_ns() };
	struct ckpt_err err = { 0 };
	int rc = arguments_read(&w, &err), code = CLI_OK;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl wait latest --timeout 5m");
	rc = wait_for(&w, &err);
	if (rc > 0)
		outcome_print(&w);
	else if (rc == -EUCLEAN || rc == -ENOENT)
		code = cli_fail(c, rc, &err, "ckptctl ls --all lists all steps");
	else if (rc == -ETIMEDOUT)
		code = cli_fail(c, rc, &err, "ckptctl status");
	else
		code = daemon_ask_fail(c, &w.k, rc, &err);
	control_close(&w.k);
	return code;
}

const struct cli_verb verb_wait = {
	.name = "wait",
	.help = "wait until a step is staged, persisted or committed",
	.synopsis = (const char *const[]){ "CKPT [--state STATE] [--timeout TIME]", NULL },
	.about =
		"wait returns when the step has reached the state: staged (ckptd has a copy in memory), "
		"persisted (its parts are durable) or committed (it can be restored; this is the "
		"default). CKPT is a step's number, latest, tag:NAME, one of these after JOB@, or a "
		"step's directory. latest is the newest step that has reached the state, or can still "
		"reach it, when the command begins.\n"
		"If the step cannot reach the state any more, wait ends at once with 5: the step was "
		"skipped, torn or could not be written, a newer one replaced it in memory, or (without "
		"--timeout) the job did not reach it before its last rank ended.\n"
		"If there is no daemon, wait checks the store (-C) for a committed step, until "
		"--timeout. With --timeout it also waits for a job that has not attached yet, and for "
		"its first step. If the time is over, it reports the job's current step.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl wait latest --timeout 5m", "before you give a node back" },
			{ "ckptctl wait 12000 --state staged",
			  "from then on the trainer may continue" },
			{ "ckptctl wait demo@latest --timeout 10m",
			  "right after the start of the job" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_STATE, "staged, persisted or committed (the default)" },
			{ OPT_TIMEOUT,
			  "stop waiting after this time (30s, 5m, 2h); default: never" },
			{ OPT_JOB, DAEMON_JOB_HELP },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 the step has reached the state; 2 the command is wrong, or there are several jobs; 5 "
		"it can never reach it; 10 there is no such job or store, or there was none until the "
		"time was over; 12 the daemon belongs to another user; 14 there is no daemon, and the "
		"store does not have the step; 15 timed out, or the daemon does not answer.",
	.args = (const enum cli_arg[]){ ARG_STEP, ARG_NONE },
	.narg_max = 1,
	.run = wait_run,
};
