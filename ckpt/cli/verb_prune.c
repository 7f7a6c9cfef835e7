/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_prune.c - ckptctl prune: remove the steps that a policy does not keep.
 * Invariant: nothing is removed without a rule that was given and a yes, said before or to the
 * question; what may never go is the store's to know (ckpt/store/prune.h), and every byte of the
 * newest that stays is read before.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/ask.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/full_check.h"
#include "ckpt/cli/leftovers.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/subject.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/policy_show.h"
#include "ckpt/store/prune.h"
#include "formats/registry/registry.h"
#include <fcntl.h>

struct row {
	char *job, *path;
	uint64_t step, bytes;
	enum store_state state;
	bool remove;
	char reason[sizeof((struct retain_row *)0)->reason];
};

struct prune {
	struct cli *c;
	struct retain_policy policy;
	uint64_t free_bytes;
	bool unfinished, steps; /* what is removed: leftovers of convert; steps */
	struct leftovers left;
	uint32_t left_removed;
	uint64_t left_bytes;
	bool bad, set_aside, dry, answered; /* answered: somebody was asked, and said no */

	/* of one run over all jobs */
	struct row *row;
	uint32_t nrow, cap, njob;
	struct prune_result sum;
	struct file_links links; /* files that steps share, of all jobs */
	const char *job, *path;	 /* the one that is looked at */
	struct ckpt_err damage;	 /* the first that was found */
	struct ckpt_err
		fault; /* the first newest step that is not whole, and no sum of it is wrong */
	char fault_path[4096 + STORE_DIR_MAX];
	int code;
};

enum { COL_JOB, COL_STEP, COL_STATE, COL_BYTES, COL_DECISION, COL_REASON, COL_PATH, COL_COUNT };
static const struct column columns[COL_COUNT] = {
	[COL_JOB] = { "job", "JOB", false, FIT_LAST },
	[COL_STEP] = { "step", "STEP", true, FIT_WHOLE },
	[COL_STATE] = { "state", NULL, false, FIT_WHOLE },
	[COL_BYTES] = { "bytes", "SIZE", true, FIT_WHOLE },
	[COL_DECISION] = { "decision", "DECISION", false, FIT_WHOLE },
	[COL_REASON] = { "reason", "REASON", false, FIT_WRAP },
	[COL_PATH] = { "path", NULL, false, FIT_WHOLE },
};

/* --- deciding and removing --- */

static void rows_free(struct prune *p)
{
	for (uint32_t i = 0; i < p->nrow; i++) {
		free(p->row[i].job);
		free(p->row[i].path);
	}
	free(TAKE(p->row));
	p->nrow = p->cap = p->njob = 0;
	file_links_free(&p->links);
	p->sum = (struct prune_result){ 0 };
}

static void on_row(void *arg, const struct store_step *st, const struct retain_row *row)
{
	struct prune *p = arg;
	char path[4096 + STORE_DIR_MAX];
	struct row *r;

	if (!ARRAY_GROW(p->row, p->nrow, p->cap)) {
		p->c->o->failed = true;
		return;
	}
	snprintf(path, sizeof path, "%s/%s", p->path, st->dir);
	r = &p->row[p->nrow];
	*r = (struct row){ .job = strdup(p->job),
			   .path = strdup(path),
			   .step = st->step,
			   .bytes = st->bytes,
			   .state = st->state,
			   .remove = row->remove };
	memcpy(r->reason, row->reason, sizeof r->reason);
	p->nrow++;
	p->c->o->failed |= !r->job || !r->path;
}

static int on_verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *err)
{
	struct prune *p = arg;
	char path[4096 + STORE_DIR_MAX];
	struct ckpt_err e = { 0 };
	int rc;

	snprintf(path, sizeof path, "%s/%s", p->path, st->dir);
	rc = full_check(p->c, step_fd, path, NULL, &e);
	if (rc == -EBADMSG && !p->damage.code)
		ckpt_error(&p->damage, rc, "step %llu of %s is damaged: %s",
			   (unsigned long long)st->step, p->job, e.msg);
	return rc ? ckpt_error(err, rc, "%s", e.msg) : 0;
}

/*
 * --bad removes what is damaged. A MANIFEST that this user may not read, that the device did not
 * give this time, that a newer version wrote, or that is right but another step's, is none of that:
 * the checkpoint may be whole.
 */
static int only_damage(const struct store *s, struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = store_scan(s, true, &step, &n, err);

	for (uint32_t i = 0; !rc && i < n; i++) {
		int r = step[i].code == -EUCLEAN ? -ENOTEMPTY : step[i].code;

		if (step[i].state != STORE_DAMAGED &&
		    (step[i].state != STORE_SET_ASIDE || !step[i].why[0]))
			continue;
		if (r == -EBADMSG || r == -EPROTO || r == -ENOENT || r == -ENODATA ||
		    r == -EISDIR || r == -ENOTDIR || r == -ELOOP || r == -EINVAL)
			continue;
		rc = ckpt_error(
			err, r,
			"step %llu of %s may be whole, so --bad removes nothing of this job: %s",
			(unsigned long long)step[i].step, s->job, step[i].why);
	}
	return rc;
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct prune *p = arg;
	struct store s = subject_store(p->c->ops, job, job_fd);
	struct prune_opts o = { .policy = retain_is_policy(&p->policy) ? &p->policy : NULL,
				.bad = p->bad,
				.set_aside = p->set_aside,
				.dry = p->dry,
				.now_ns = wall_ns(),
				.links = &p->links,
				.verify = on_verify,
				.row = on_row,
				.arg = p };
	struct prune_result r = { 0 };
	struct ckpt_err err = { 0 };
	int rc;

	if (cli_stopped()) {
		rc = ckpt_error(&err, -ECANCELED, "interrupted before job %s", job);
		p->code = cli_worse(p->code, cli_fail(p->c, rc, &err, NULL));
		return rc;
	}
	/* The jobs share what shall be freed; a job is not looked at when that was enough. */
	if (p->free_bytes && p->sum.freed >= p->free_bytes)
		return 0;
	o.free_bytes = p->free_bytes ? p->free_bytes - p->sum.freed : 0;
	p->job = job;
	p->path = abs_path;
	p->njob++;
	rc = p->bad ? only_damage(&s, &err) : 0;
	if (!rc)
		rc = store_prune(&s, &o, &r, &err);
	p->sum.removed += r.removed;
	p->sum.kept += r.kept;
	p->sum.busy += r.busy;
	p->sum.failed += r.failed;
	if (!p->sum.why.code)
		p->sum.why = r.why;
	p->sum.quarantined += r.quarantined;
	p->sum.faulty += r.faulty;
	if (r.faulty && !p->fault.code) {
		ckpt_error(&p->fault, -EBADMSG, "job %s, %s", p->job, r.fault.msg);
		snprintf(p->fault_path, sizeof p->fault_path, "%s/%s", abs_path, r.fault_dir);
	}
	p->sum.freed += r.freed;
	p->sum.shared = file_links_kept_once(&p->links);
	p->sum.unseen |= r.unseen;
	p->sum.unverified |= r.unverified;
	if (rc == -ECANCELED)
		p->code = cli_worse(p->code, cli_fail(p->c, rc, &err, NULL));
	else if (rc)
		p->code = cli_worse(p->code,
				    cli_fail(p->c, rc, &err,
					     rc == -EACCES || rc == -EPERM ? CLI_NEXT_USER : NULL));
	return rc == -ECANCELED ? rc : 0;
}

/* All jobs once. Returns what store_jobs does; jobs that may not be opened are an error at the
 * end. */
static int all_jobs(struct prune *p, const char *where, struct ckpt_err *err)
{
	int rc;

	rows_free(p);
	if (!p->steps)
		return p->left.fd < 0 ? ckpt_error_errno(err, -p->left.fd,
							 "%.300s cannot be opened", where)
				      : 0;
	rc = store_jobs(p->c->ops, where, each_job, p, err);
	if (!rc)
		rc = store_jobs_closed(p->c->ops, where, err);
	return rc || p->njob ? rc : store_none(p->c->ops, where, err);
}

/* --- telling --- */

static void plan_table(struct prune *p, bool shown)
{
	struct output *o = p->c->o;
	struct column col[COL_COUNT];

	memcpy(col, columns, sizeof col);
	if (p->njob < 2)
		col[COL_JOB].head = NULL;
	output_list(o, "checkpoints", shown ? col : NULL, COL_COUNT);
	for (uint32_t i = 0; i < p->nrow; i++) {
		const struct row *r = &p->row[i];
		const char *gone = p->c->json || p->dry ? "remove" : "removed";

		output_row(o);
		output_put(o, &col[COL_PATH], cell_text(r->path));
		output_put(o, &col[COL_JOB], cell_text(r->job));
		output_put(o, &col[COL_STEP], cell_styled(cell_number(r->step), STYLE_STRONG));
		output_put(o, &col[COL_STATE], cell_text(store_state_word(r->state)));
		output_put(o, &col[COL_BYTES], cell_bytes(r->bytes));
		output_put(o, &col[COL_DECISION],
			   cell_styled(cell_text(r->remove ? gone : "keep"),
				       r->remove ? STYLE_WARN : STYLE_GOOD));
		output_put(o, &col[COL_REASON], cell_text(r->reason));
		output_close(o);
	}
	output_close(o);
}

static void plan_sums(struct prune *p)
{
	const struct prune_result *r = &p->sum;
	struct output *o = p->c->o;
	char size[HUMAN_BYTES], stay[HUMAN_BYTES];

	output_key(o, "removed_count", cell_count(r->removed));
	output_key(o, "kept_count", cell_count(r->kept));
	output_key(o, "reading_count", cell_count(r->busy));
	output_key(o, "failed_count", cell_count(r->failed));
	output_key(o, "quarantined_count", cell_count(r->quarantined));
	output_key(o, "freed_bytes", cell_bytes(r->freed));
	output_key(o, "shared_bytes", cell_bytes(r->shared));
	human_bytes(r->freed, size);
	if (!p->steps || (!p->nrow && p->code))
		return;
	if (!p->njob)
		cli_say(p->c, STYLE_PLAIN, "There is no job yet: nothing to remove.");
	else if (p->dry && r->removed)
		cli_say(p->c, STYLE_DIM, "would free %s (dry run; nothing removed)", size);
	else if (p->dry || (!r->removed && !r->busy && !r->failed && !p->code))
		cli_say(p->c, STYLE_DIM, "nothing to remove");
	else
		cli_say(p->c, STYLE_DIM, "freed %s: %u step%s removed, %u kept", size, r->removed,
			r->removed == 1 ? "" : "s", r->kept);
	if (r->removed && r->shared)
		cli_say(p->c, STYLE_DIM, "%s stay, because other steps share them",
			human_bytes(r->shared, stay));
	if (r->removed && r->unseen)
		cli_hint(p->c, CLI_HINT_UNSEEN);
	if (p->dry && r->removed && r->unverified)
		cli_hint(p->c,
			 "before that, every byte of the newest step is read and checked: it must "
			 "be good");
	if (r->busy)
		cli_hint(p->c, "%u step%s being read and kept: run it again later", r->busy,
			 r->busy == 1 ? " is" : "s are");
}

/* What was found on the way and what it means for the exit code. */
static int row_verdict(struct prune *p)
{
	const struct prune_result *r = &p->sum;
	struct cli *c = p->c;
	struct ckpt_err err;
	int code = p->code;

	if (r->quarantined)
		code = cli_worse(
			code,
			cli_fail(c, -EBADMSG, &p->damage,
				 "it is quarantined, and latest passes it over; ckptctl verify "
				 "--data lists every fault, ckptctl repair looks again"));
	if (r->faulty)
		code = cli_worse(code, cli_fail(c, -EBADMSG, &p->fault, "ckptctl verify --data %s",
						p->fault_path));
	if (!code && r->removed && r->unseen)
		code = CLI_WARNINGS;
	if (code || p->dry)
		return code;
	if (!r->removed && r->failed) {
		ckpt_error(&err, r->why.code, "%u step%s could not be removed: %s", r->failed,
			   r->failed == 1 ? "" : "s", r->why.msg);
		return cli_fail(c, r->why.code, &err, NULL);
	}
	if (!r->removed && r->busy)
		return CLI_LOCKED;
	return r->busy || r->failed ? CLI_WARNINGS : CLI_OK;
}

static void plan_leftovers(struct prune *p)
{
	uint64_t bytes;
	uint32_t n = leftovers_removable(&p->left, &bytes);
	char size[HUMAN_BYTES];

	output_key(p->c->o, "unfinished_removed_count",
		   cell_of(CELL_COUNT, p->dry && p->unfinished ? n : p->left_removed));
	leftovers_print(&p->left, !p->unfinished	 ? NULL
				  : p->dry		 ? "would be removed"
				  : p->left_removed == n ? "removed"
							 : NULL);
	if (p->left_removed)
		cli_say(p->c, STYLE_DIM, "freed %s of what was unfinished",
			human_bytes(p->left_bytes, size));
	else if (p->unfinished && !n && !p->steps)
		cli_say(p->c, STYLE_DIM, "nothing to remove");
}

static void plan_document(struct prune *p, bool shown)
{
	struct output *o = p->c->o;
	char words[600];

	retain_print(&p->policy, words, sizeof words);
	output_key(o, "dry_run", cell_flag(p->dry));
	output_key(o, "policy", cell_word(words));
	plan_table(p, shown);
	plan_sums(p);
	plan_leftovers(p);
}

/* --- the verb --- */

static int options_read(struct cli *c, struct prune *p, struct ckpt_err *err)
{
	int rc = policy_options(c, &p->policy, err);

	if (!rc && c->value[OPT_FREE] &&
	    (human_parse_bytes(c->value[OPT_FREE], &p->free_bytes) || !p->free_bytes))
		rc = ckpt_error(err, -EINVAL, "--free=%.60s: it can be 500G, 2T",
				c->value[OPT_FREE]);
	if (!rc && c->value[OPT_DRY_RUN] && c->value[OPT_YES])
		rc = ckpt_error(err, -EINVAL, "--dry-run removes nothing, --yes does: give one");
	p->bad = c->value[OPT_BAD] != NULL;
	p->set_aside = c->value[OPT_SET_ASIDE] != NULL;
	p->unfinished = c->value[OPT_UNFINISHED] != NULL;
	p->steps = retain_is_policy(&p->policy) || p->free_bytes || p->bad || p->set_aside;
	if (!rc && !p->steps && !p->unfinished)
		rc = ckpt_error(
			err, -EINVAL,
			"what shall be kept? give --keep-last, --keep-every, --keep-within or "
			"--keep-best, or --free (the oldest go), --set-aside, --bad or "
			"--unfinished");
	if (!rc && p->set_aside && c->value[OPT_SET_ASIDE_FOR])
		rc = ckpt_error(
			err, -EINVAL,
			"--set-aside removes all that was set aside, --set-aside-for keeps it "
			"for a time: give one");
	if (!rc && c->narg && !*c->arg[0])
		rc = ckpt_error(err, -EINVAL, "PATH is empty: a variable that is not set?");
	/* So much, the oldest first: then all but the newest may go. */
	if (!rc && p->free_bytes && !retain_is_policy(&p->policy) && !p->set_aside)
		p->policy.keep_last = 1;
	return rc;
}

static int result_print(struct prune *p, int rc, const struct ckpt_err *err)
{
	struct cli *c = p->c;
	uint64_t bytes;
	uint32_t n = leftovers_removable(&p->left, &bytes);
	char size[HUMAN_BYTES];

	if ((rc == -ENOENT || rc == -ENOTDIR) && n)
		return cli_fail(c, rc, err,
				"convert and export left %u unfinished, %s, in it: ckptctl prune "
				"--unfinished %s",
				n, human_bytes(bytes, size), p->left.where);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return cli_fail(c, rc, err, "check the path; ckptctl ls STORE");
	if (rc == -EACCES || rc == -EPERM)
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	if (rc == -EINVAL)
		return cli_fail(c, rc, err, "ckptctl prune -n shows them, --yes removes them");
	return cli_fail(c, rc, err, NULL);
}

/*
 * Look first, and ask. 0: remove; 1: there is nothing to do, or it is not wanted, and all is said;
 * -errno. What would have been done is in p->row.
 */
/* "3 steps, 4.00 GiB, and 1 unfinished, 47 MiB"; returns how many. */
static uint32_t removal_print(const struct prune *p, char *buf, size_t bytes)
{
	uint64_t left_bytes;
	uint32_t left = p->unfinished ? leftovers_removable(&p->left, &left_bytes) : 0;
	char size[HUMAN_BYTES];
	size_t n = 0;

	*buf = 0;
	if (p->sum.removed)
		n = (size_t)snprintf(buf, bytes, "%u step%s, %s%s", p->sum.removed,
				     p->sum.removed == 1 ? "" : "s",
				     human_bytes(p->sum.freed, size), left ? ", and " : "");
	if (left)
		snprintf(buf + n, bytes - n, "%u unfinished, %s", left,
			 human_bytes(left_bytes, size));
	return p->sum.removed + left;
}

static int removal_agree(struct prune *p, const char *where, struct ckpt_err *err)
{
	char what[200];
	int rc;

	p->dry = true;
	rc = all_jobs(p, where, err);
	p->dry = false;
	if ((rc && !p->njob) || !removal_print(p, what, sizeof what))
		return rc ? rc : 1;
	if (!ask_can(p->c))
		return ckpt_error(err, -EINVAL,
				  "%s, would be removed, and ckptctl cannot ask here: "
				  "nothing was removed",
				  what);
	p->dry = true;
	plan_table(p, true);
	if (p->unfinished)
		plan_leftovers(p);
	p->dry = false;
	rc = ask(p->c, "removed", err, "Remove %s?", what);
	p->answered = rc != 0;
	return rc;
}

/* What was agreed to. */
static int removal_run(struct prune *p, const char *where, struct ckpt_err *err)
{
	struct ckpt_err left = { 0 };
	int rc = all_jobs(p, where, err);

	if (!rc && !p->dry && p->unfinished &&
	    leftovers_remove(&p->left, &p->left_removed, &p->left_bytes, &left))
		p->code = cli_worse(p->code, cli_fail(p->c, left.code, &left, NULL));
	return rc;
}

static int prune_run(struct cli *c)
{
	const char *where = c->narg ? c->arg[0] : c->where;
	struct prune p = { .c = c, .dry = c->value[OPT_DRY_RUN] };
	struct ckpt_err err = { 0 };
	int rc = options_read(c, &p, &err), code = CLI_OK;
	bool shown = true;

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl prune -h");
	leftovers_open(c, where, &p.left);
	if (!(p.unfinished && p.left.n) && subject_is_checkpoint(c, where)) {
		leftovers_close(&p.left);
		return cli_usage(c, "ckptctl prune PATH, the directory of a job",
				 "%s is a checkpoint, not a store", where);
	}
	output_line(c->o, "ckptd.prune/1", "summary");
	if (p.dry || c->value[OPT_YES]) {
		rc = removal_run(&p, where, &err);
	} else {
		rc = removal_agree(&p, where, &err);
		if (!rc) {
			rc = removal_run(&p, where, &err);
			/* They were shown: once more only what went otherwise. */
			shown = p.sum.busy || p.sum.failed || p.sum.quarantined || p.sum.faulty;
		}
		rc = MIN(rc, 0);
	}
	/* What could be looked at is told, whatever could not. */
	if (!p.answered && (!rc || (p.njob && rc != -EINVAL))) {
		plan_document(&p, shown);
		output_end(c->o);
		code = row_verdict(&p);
	} else {
		code = p.code;
	}
	if (rc && (rc != -ECANCELED || p.answered))
		code = cli_worse(code, result_print(&p, rc, &err));
	leftovers_close(&p.left);
	rows_free(&p);
	return code;
}

const struct cli_verb verb_prune = {
	.name = "prune",
	.help = "remove the checkpoints that a policy does not keep",
	.synopsis = (const char *const[]){ "[-n | --yes] --keep-last=N... [PATH]",
					   "[-n | --yes] --free=BYTES [PATH]",
					   "[-n | --yes] --set-aside [PATH]",
					   "[-n | --yes] --bad [PATH]",
					   "[-n | --yes] --unfinished [PATH]", NULL },
	.about =
		"PATH is a store or the directory of one job in it; of a store every job is pruned "
		"for itself. A step is kept by any of the rules given. Whatever they say, the "
		"newest committed step stays, and so does what is held (ckptctl hold), tagged, or "
		"being read; what is damaged or quarantined stays without --bad. Steps that were set "
		"aside, because the job went back to an older one, stay for --set-aside-for whatever the "
		"rules say, so that ckptctl rewind can bring them back; the time counts up to the newest "
		"committed step at most. --set-aside removes them now. Of a step that is removed, "
		"prune removes the files that ckptd made; other files in it stay, in a "
		".trash-... directory that ckptctl repair lists. Before prune removes anything, it reads "
		"and checks every byte of the newest step, unless that was done before; if that step is "
		"damaged, it is quarantined and the next older step is checked. With --free prune removes "
		"the oldest of the steps that no rule keeps (without rules: of all but the newest), until "
		"it has freed so much. On a terminal prune shows what it will do and asks; elsewhere it "
		"needs --yes. ckptd does the same by itself, given the same rules.\n"
		"If convert or export was killed in PATH, prune lists what they left there. Only "
		"--unfinished removes that, also what the same command could continue, but never what "
		"is being written.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl prune -n --keep-last=3 --keep-every=5000 runs/",
			  "what would be removed, and why" },
			{ "ckptctl prune --yes --keep-within=7d --keep-best=loss:min:3 runs/demo",
			  "from cron" },
			{ "ckptctl prune --free=2T", "the oldest, as many as it takes" },
			{ "ckptctl prune --set-aside runs/demo",
			  "what was left behind when the job went back" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DRY_RUN,
			  "show what would be removed, and why the others stay; remove "
			  "nothing" },
			{ OPT_YES, "remove without a question" },
			{ OPT_KEEP_LAST, "keep the N newest" },
			{ OPT_KEEP_EVERY, "keep those whose step is a multiple of N" },
			{ OPT_KEEP_WITHIN, "keep those that are younger: 90m, 36h, 7d, 2w" },
			{ OPT_KEEP_BEST, "keep the one with the best note: loss (the lowest), "
					 "accuracy:max, loss:min:3 (three); of up to four notes" },
			{ OPT_FREE, "stop when so much was freed: 500G, 2T" },
			{ OPT_BAD, "remove damaged and quarantined steps too" },
			{ OPT_SET_ASIDE, "remove the steps that were set aside, at once" },
			{ OPT_UNFINISHED,
			  "remove what convert and export left when they were killed" },
			{ OPT_SET_ASIDE_FOR,
			  "keep what was set aside for so long, whatever the rules "
			  "say (default 7d): 90m, 36h, 7d, 2w" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 done, or nothing to do; 1 nothing that should go could be removed (the file system "
		"has no locks); 2 no rule was "
		"given, or ckptctl cannot ask and --yes is missing; 3 some of it was kept because "
		"it is being read or could not be removed; 4 the newest was found damaged, and is "
		"quarantined; 10 PATH does not exist, or is no store; 11 all that should go is being read; 12 the "
		"store cannot be written; 130 interrupted.",
	.args = (const enum cli_arg[]){ ARG_DIR, ARG_NONE },
	.narg_max = 1,
	.run = prune_run,
};
