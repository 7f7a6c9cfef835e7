/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_repair.c - ckptctl repair: put a job's directory in order, as far as that is safe.
 * Invariant: nothing that was committed is removed; what is called good again was read in full.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/ask.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/full_check.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/subject.h"
#include "ckpt/cli/labels.h"
#include "ckpt/store/repair.h"
#include "formats/registry/registry.h"
#include <sys/random.h>
#include <sys/stat.h>

struct row {
	char *job, *path;
	struct repair_row r;
};

struct repair {
	struct cli *c;
	const char *dir; /* of this step only; NULL: of the job */
	bool dry;

	struct row *row;
	uint32_t nrow, cap, njob;
	struct repair_result sum;
	const char *job, *path; /* the one that is in work */
	int code;
};

/* --- finding and doing --- */

static void rows_free(struct repair *p)
{
	for (uint32_t i = 0; i < p->nrow; i++) {
		free(p->row[i].job);
		free(p->row[i].path);
	}
	free(TAKE(p->row));
	p->nrow = p->cap = p->njob = 0;
	p->sum = (struct repair_result){ 0 };
}

static void on_row(void *arg, const struct repair_row *r)
{
	struct repair *p = arg;
	char path[4096 + STORE_DIR_MAX];
	struct row *x;

	if (!ARRAY_GROW(p->row, p->nrow, p->cap)) {
		p->c->o->failed = true;
		return;
	}
	snprintf(path, sizeof path, "%s/%s", p->path, r->dir);
	x = &p->row[p->nrow++];
	*x = (struct row){ .job = strdup(p->job), .path = strdup(path), .r = *r };
	p->c->o->failed |= !x->job || !x->path;
}

static int on_verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *err)
{
	struct repair *p = arg;
	char path[4096 + STORE_DIR_MAX];

	snprintf(path, sizeof path, "%s/%s", p->path, st->dir);
	return full_check(p->c, step_fd, path, NULL, err);
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct repair *p = arg;
	struct store s = subject_store(p->c->ops, job, job_fd);
	struct repair_opts o = { .dry = p->dry,
				 .abandoned = p->c->value[OPT_ABANDONED] != NULL,
				 .dir = p->dir,
				 .verify = on_verify,
				 .row = on_row,
				 .arg = p };
	struct repair_result r = { 0 };
	struct ckpt_err err = { 0 };
	int rc = 0;

	if (cli_stopped())
		rc = ckpt_error(&err, -ECANCELED, "interrupted before job %s", job);
	else if (getrandom(&s.nonce, sizeof s.nonce, 0) != sizeof s.nonce)
		s.nonce = (uint32_t)now_ns();
	p->job = job;
	p->path = abs_path;
	p->njob++;
	if (!rc && !p->c->value[OPT_DRY_RUN])
		rc = store_home_owner(job_fd, abs_path, &err);
	if (!rc)
		rc = store_repair(&s, &o, &r, &err);
	p->sum.removed += r.removed;
	p->sum.released += r.released;
	p->sum.rebuilt += r.rebuilt;
	p->sum.left += r.left;
	p->sum.freed += r.freed;
	p->sum.shared += r.shared;
	if (r.removed && r.unseen && !p->sum.unseen) {
		p->sum.unseen = true;
		p->code = cli_worse(p->code, CLI_WARNINGS);
	}
	if (rc)
		p->code = cli_worse(p->code, cli_fail(p->c, rc, &err,
						      rc == -EPERM    ? LABELS_NEXT_OWNER
						      : rc == -EACCES ? CLI_NEXT_USER
								      : NULL));
	return rc == -ECANCELED ? rc : 0;
}

/* What the argument means: a step in its store, or the jobs below a path. */
struct place {
	const char *path;
	bool step;
	struct store_ref ref;
	struct store_home m;
};

static int place_look(struct repair *p, const struct place *at, struct ckpt_err *err)
{
	int rc;

	rows_free(p);
	if (at->step) {
		p->dir = at->m.step.dir;
		return each_job(p, at->m.s.job, at->m.s.job_fd, at->m.dir);
	}
	rc = store_jobs(p->c->ops, at->path, each_job, p, err);
	if (!rc)
		rc = store_jobs_closed(p->c->ops, at->path, err);
	return rc || p->njob ? rc : store_none(p->c->ops, at->path, err);
}

/* --- telling --- */

static const char *action_word(enum repair_act act)
{
	switch (act) {
	case REPAIR_REMOVED:
		return "remove";
	case REPAIR_RELEASED:
		return "release";
	case REPAIR_REBUILT:
		return "rebuild";
	case REPAIR_LEFT:
		return "leave";
	}
	return "?";
}

static enum cell_style action_style(const struct repair_row *r)
{
	switch (r->act) {
	case REPAIR_REMOVED:
		return STYLE_WARN;
	case REPAIR_RELEASED:
	case REPAIR_REBUILT:
		return STYLE_GOOD;
	case REPAIR_LEFT:
		return r->rc ? STYLE_BAD : STYLE_DIM;
	}
	return STYLE_PLAIN;
}

static void table_print(struct repair *p)
{
	const struct column col[] = {
		{ "path", NULL, false, FIT_WHOLE },
		{ "job", p->njob < 2 ? NULL : "JOB", false, FIT_LAST },
		{ "step", "STEP", true, FIT_WHOLE },
		{ "bytes", "SIZE", true, FIT_WHOLE },
		{ "action", "ACTION", false, FIT_WHOLE },
		{ "text", "WHAT", false, FIT_WRAP },
	};
	struct output *o = p->c->o;

	output_list(o, "items", col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < p->nrow; i++) {
		const struct row *x = &p->row[i];

		OUTPUT_ROW(o, col, cell_text(x->path), cell_text(x->job),
			   cell_unless(CELL_NUMBER, x->r.step, UINT64_MAX), cell_bytes(x->r.bytes),
			   cell_styled(cell_text(action_word(x->r.act)), action_style(&x->r)),
			   cell_text(x->r.text));
	}
	output_close(o);
}

static void sums_print(struct repair *p)
{
	const struct repair_result *r = &p->sum;
	struct output *o = p->c->o;
	const char *to_be = p->dry ? "to be " : "", *whole = p->dry ? " if whole" : "";
	char line[4 * 128] = "";

	output_key(o, "removed_count", cell_count(r->removed));
	output_key(o, "released_count", cell_count(r->released));
	output_key(o, "rebuilt_count", cell_count(r->rebuilt));
	output_key(o, "left_count", cell_count(r->left));
	output_key(o, "freed_bytes", cell_bytes(r->freed));
	output_key(o, "shared_bytes", cell_bytes(r->shared));
	if (!p->nrow && !p->code)
		cli_say(p->c, STYLE_DIM, "nothing to repair");
	if (!p->nrow)
		return;
	if (r->removed)
		human_add(line, sizeof line, ", ", "%u %sremoved, which free%s %s", r->removed,
			  to_be, p->dry ? "s" : "d", BYTES_TEXT(r->freed));
	if (r->released)
		human_add(line, sizeof line, ", ", "%u %sreleased%s", r->released, to_be, whole);
	if (r->rebuilt)
		human_add(line, sizeof line, ", ", "%u %srebuilt%s", r->rebuilt, to_be, whole);
	if (r->left)
		human_add(line, sizeof line, ", ", "%u left as %s", r->left,
			  r->left == 1 ? "it is" : "they are");
	cli_say(p->c, STYLE_DIM, p->dry ? "%s (dry run; nothing changed)" : "%s", line);
	if (r->removed && r->shared)
		cli_say(p->c, STYLE_DIM, "%s stay, because steps share them",
			BYTES_TEXT(r->shared));
	if (r->unseen)
		cli_hint(p->c, CLI_HINT_UNSEEN);
}

static int document_print(struct repair *p)
{
	struct output *o = p->c->o;
	int code = p->code;

	output_key(o, "dry_run", cell_flag(p->dry));
	table_print(p);
	sums_print(p);
	output_end(o);
	for (uint32_t i = 0; i < p->nrow; i++)
		switch (p->row[i].r.act == REPAIR_LEFT ? p->row[i].r.rc : 0) {
		case 0:
			break;
		case -EAGAIN:
		case -EBUSY:
			code = cli_worse(code, CLI_LOCKED);
			break;
		case -EACCES:
		case -EPERM:
		case -EROFS:
			code = cli_worse(code, CLI_PERMISSION);
			break;
		case -EPROTONOSUPPORT:
			code = cli_worse(code, CLI_NEWER);
			break;
		case -ENOTEMPTY: /* what others have put there */
			code = cli_worse(code, CLI_WARNINGS);
			break;
		default:
			code = cli_worse(code, CLI_CORRUPT);
			break;
		}
	return code;
}

/* --- the verb --- */

static int place_find(struct cli *c, struct place *ret, int *ret_code)
{
	struct ckpt_err err = { 0 };
	const char *word = c->narg ? c->arg[0] : NULL;
	struct stat st;
	int rc;

	*ret = (struct place){ .path = word ? word : c->where, .ref.step_fd = -1 };
	if (!word)
		return 0;
	if (!*word) {
		ckpt_error(&err, -EINVAL, "PATH is empty: a variable that is not set?");
		*ret_code = cli_fail(c, -EINVAL, &err, "ckptctl repair -h");
		return -EINVAL;
	}
	rc = store_resolve(c->ops, formats[0], c->where, word, &ret->ref, &err);
	if (rc && !stat(word, &st) && S_ISDIR(st.st_mode) && rc != -EACCES && rc != -EPERM &&
	    (rc < 0 || !subject_is_checkpoint(c, word)))
		return 0;
	if (rc < 0) {
		*ret_code = subject_tell(c, rc, &err, word);
		return rc;
	}
	subject_note(c, &ret->ref);
	rc = rc ? rc : store_home_find(c->ops, formats[0], &ret->ref, &ret->m, &err);
	if (rc > 0) {
		ckpt_error(&err, -EINVAL, "%.300s lies in no store: repair works on a store's jobs",
			   ret->ref.path);
		*ret_code = cli_fail(c, -EINVAL, &err, "ckptctl verify --data %s", word);
	} else if (rc) {
		*ret_code = subject_tell(c, rc, &err, word);
	}
	ret->step = !rc;
	return rc;
}

/* 0: go on; 1: there is nothing to do, and p->row says so, or it is not wanted; -errno. */
static int repair_agree(struct repair *p, const struct place *at, bool *ret_answered,
			struct ckpt_err *err)
{
	const struct repair_result *r = &p->sum;
	int rc;

	p->dry = true;
	rc = place_look(p, at, err);
	if ((rc && !p->njob) || r->removed + r->released + r->rebuilt == 0) {
		p->dry = false;
		return rc ? rc : 1;
	}
	if (!ask_can(p->c))
		return ckpt_error(
			err, -EINVAL,
			"%u director%s would be removed, %u steps released, %u rebuilt, and "
			"ckptctl cannot ask here: nothing was changed",
			r->removed, r->removed == 1 ? "y" : "ies", r->released, r->rebuilt);
	table_print(p);
	rc = ask(p->c, "changed", err, "Do that?");
	p->dry = rc != 0;
	*ret_answered = rc != 0;
	return rc;
}

static int repair_fail(struct cli *c, int rc, const struct ckpt_err *err)
{
	if (rc == -ENOENT || rc == -ENOTDIR)
		return cli_fail(c, rc, err, "check the path; ckptctl ls STORE");
	if (rc == -EACCES || rc == -EPERM)
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	if (rc == -EINVAL)
		return cli_fail(c, rc, err, "ckptctl repair -n shows it, --yes does it");
	return cli_fail(c, rc, err, NULL);
}

static int repair_run(struct cli *c)
{
	struct repair p = { .c = c, .dry = c->value[OPT_DRY_RUN] };
	struct ckpt_err err = { 0 };
	struct place at;
	bool answered = false;
	int rc, code = CLI_OK;

	if (p.dry && c->value[OPT_YES])
		return cli_usage(c, NULL, "--dry-run changes nothing, --yes does: give one");
	if (!place_find(c, &at, &code)) {
		output_line(c->o, "ckptd.repair/1", "summary");
		if (p.dry || c->value[OPT_YES]) {
			rc = place_look(&p, &at, &err);
		} else {
			rc = repair_agree(&p, &at, &answered, &err);
			if (!rc)
				rc = place_look(&p, &at, &err);
			rc = MIN(rc, 0);
		}
		if (!answered && (!rc || (p.njob && rc != -EINVAL)))
			code = document_print(&p);
		else
			code = p.code;
		if (rc && (rc != -ECANCELED || answered))
			code = cli_worse(code, repair_fail(c, rc, &err));
		rows_free(&p);
	}
	if (at.step)
		store_home_close(&at.m);
	store_step_close(at.ref.step_fd);
	return code;
}

const struct cli_verb verb_repair = {
	.name = "repair",
	.help = "put a store in order: what is left over, quarantined, damaged",
	.synopsis = (const char *const[]){ "[-n | --yes] [--abandoned] [PATH]", "[-n | --yes] CKPT",
					   NULL },
	.about =
		"PATH is a store or the directory of one job in it (default: -C). What older "
		"launches left unfinished is removed, but for files that ckptd did not make: they stay, "
		"and the .trash-... directory around them is listed. A quarantined step is read in full: if "
		"it is complete, it counts again. A step whose MANIFEST is lost or damaged, but whose parts "
		"are all there, gets a new one, and is read in full before that counts; its notes "
		"are lost, and a damaged one stays beside it. Nothing that was committed is removed: what cannot be "
		"repaired stays as it is (ckptctl prune --bad removes it), and so does what is misplaced (ckptctl adopt) or written by another version. On a terminal it shows "
		"what it will do and asks; elsewhere it needs --yes.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl repair -n runs/", "what is there to repair" },
			{ "ckptctl repair --yes runs/demo", "do it" },
			{ "ckptctl repair step:12000", "look again at a quarantined step" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DRY_RUN, "show what would be done; change nothing" },
			{ OPT_YES, "do it without a question" },
			{ OPT_ABANDONED,
			  "also what the newest launch left unfinished: its writers are "
			  "dead, and could not commit any more if they were not" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 nothing is left to repair; 2 ckptctl cannot ask and --yes is missing, or the "
		"checkpoint lies in no store; 3 files that ckptd did not make are left in trash; 4 something "
		"cannot be repaired; 8 another version wrote it; 10 there is no such "
		"store or checkpoint; 11 a step is in use; 12 the store cannot be written; 130 "
		"interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = repair_run,
};
