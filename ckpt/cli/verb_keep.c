/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_keep.c - ckptctl keep: the policy of a job, which every ckptd that serves it obeys. It prints
 * the policy, or sets one.
 * Invariant: it removes no step.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/policy_show.h"
#include "ckpt/cli/subject.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

/* The one job of a path. */
struct found {
	uint32_t n;
	char job[CKPT_JOB_MAX + 1], path[PATH_MAX];
	char others[512]; /* names, where there are several */
};

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct found *f = arg;
	size_t used = strlen(f->others);

	(void)job_fd;
	snprintf(f->others + used, sizeof f->others - used, "%s%s", f->n ? ", " : "", job);
	snprintf(f->job, sizeof f->job, "%s", job);
	snprintf(f->path, sizeof f->path, "%s", abs_path);
	f->n++;
	return 0;
}

/* JOB is a path, or the name of a job of the store. */
static int job_find(struct cli *c, struct found *f, struct ckpt_err *err)
{
	const char *name = c->narg ? c->arg[0] : NULL;
	char path[PATH_MAX];
	struct stat st;
	int rc;

	*f = (struct found){ .n = 0 };
	if (name && !*name)
		return ckpt_error(err, -EINVAL, "JOB is empty: a variable that is not set?");
	snprintf(path, sizeof path, "%s%s%s", c->where, name ? "/" : "", name ? name : "");
	if (name && (strchr(name, '/') || stat(path, &st) < 0))
		snprintf(path, sizeof path, "%s", name);
	rc = store_jobs(c->ops, path, each_job, f, err);
	if (!rc && f->n > 1)
		rc = ckpt_error(err, -ENOTUNIQ, "%.300s has several jobs, give one: %s", path,
				f->others);
	if (!rc && !f->n)
		rc = ckpt_error(err, -ENOENT, "%.300s is no job, and has none", path);
	return rc;
}

/* What the ckptd that serves it obeys; NULL: none answers, or it does not serve the job. */
static const struct wire_report_job *served_by(struct control *k, struct cli *c, const char *path)
{
	uint32_t job = UINT32_MAX;

	if (!daemon_ask_open(k, c, 1, NULL) && !control_report(k, NULL))
		job = daemon_ask_serves(k, path);
	return job == UINT32_MAX ? NULL : &k->report.job[job];
}

static void keep_print(struct cli *c, const struct found *f, const struct store_policy *p,
		       bool changed)
{
	struct control k = { .sock = -1 };
	struct policy_shown shown;
	char words[POLICY_WORDS];

	policy_shown_of(p, served_by(&k, c, f->path), &shown);
	output_begin(c->o, "ckptd.keep/1");
	output_key(c->o, "path", cell_text(f->path));
	output_key(c->o, "job", cell_text(f->job));
	output_key(c->o, "changed", cell_flag(changed));
	output_object(c->o, "keeps");
	policy_put(c->o, &shown);
	output_close(c->o);
	cli_say(c, STYLE_PLAIN, "%s keeps %s", f->job, policy_words(&shown, wall_ns(), words));
	output_end(c->o);
	if (changed && shown.rules[0])
		cli_hint(c, "ckptd removes the other steps after the next commit at the latest; "
			    "ckptctl prune -n shows which ones");
	control_close(&k);
}

static int keep_run(struct cli *c)
{
	struct retain_policy rules = { 0 };
	struct store_policy was, now;
	struct ckpt_err err = { 0 };
	struct found f;
	struct store s;
	bool all = c->value[OPT_ALL] != NULL, set;
	int rc = policy_options(c, &rules, &err), fd;

	set = all || retain_is_policy(&rules);
	if (!rc && all && retain_is_policy(&rules))
		rc = ckpt_error(&err, -EINVAL,
				"--all keeps every step: give no other rule with it");
	if (!rc && !set && rules.set_aside_for_ns)
		rc = ckpt_error(&err, -EINVAL,
				"--set-aside-for is no policy by itself: give --last, --every, "
				"--within or --best with it");
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl keep -h");
	rc = job_find(c, &f, &err);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl ls STORE lists the jobs");
	fd = open(f.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return labels_tell(c, ckpt_error_errno(&err, errno, "cannot open %.300s", f.path),
				   &err);
	s = subject_store(c->ops, f.job, fd);
	store_policy_read(&s, &was);
	now = was;
	if (set) {
		rc = store_home_owner(fd, f.path, &err);
		if (!rc)
			rc = store_policy_set(&s, &rules, "ckptctl keep", &now, &err);
	}
	close(fd);
	if (rc)
		return labels_tell(c, rc, &err);
	keep_print(c, &f, &now, now.number != was.number);
	return now.state == STORE_POLICY_UNREAD ? CLI_WARNINGS : CLI_OK;
}

const struct cli_verb verb_keep = {
	.name = "keep",
	.help = "show or set which steps of a job stay",
	.synopsis = (const char *const[]){ "[JOB]", "--last=N... [JOB]", "--all [JOB]", NULL },
	.about =
		"The policy belongs to the job: it is a small file in the job's directory, and every "
		"ckptd that serves the job obeys it, whatever its own --keep options are. After each "
		"commit ckptd removes the steps that no rule keeps. It never removes the newest step, "
		"the newest one that it has read back and verified, nor a step that is held, tagged, "
		"damaged or being read. The options that are given are the whole policy: they replace "
		"the one before, also one that the trainer has set. A trainer that asks for a policy "
		"when it attaches (attach(keep_last=3), ckpt_opts.keep_last) replaces this one. Without "
		"an option, keep prints the policy in force and where it comes from. If a policy cannot "
		"be read, for example because a newer version wrote it, every step stays.\n"
		"JOB is the job's directory, or its name in the store (-C). Without JOB, the store must "
		"have one job.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl keep demo --last=3 --every=1000",
			  "the three newest, and each thousandth" },
			{ "ckptctl keep demo --within=36h --best=loss",
			  "by age, and the best one" },
			{ "ckptctl keep --all runs/demo", "from now on every step stays" },
			{ "ckptctl keep", "what is in force" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_LAST, "keep the N newest" },
			{ OPT_EVERY, "keep those whose step is a multiple of N" },
			{ OPT_WITHIN, "keep those that are younger: 90m, 36h, 7d, 2w" },
			{ OPT_BEST, "keep the one with the best note: loss (the lowest), "
				    "accuracy:max, loss:min:3 (three); of up to four notes" },
			{ OPT_SET_ASIDE_FOR,
			  "keep what was set aside for so long, whatever the rules "
			  "say (default 7d): 90m, 36h, 7d, 2w" },
			{ OPT_ALL, "keep every step" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0; 2 a rule is malformed, or the store has several jobs; 3 the policy in force "
		"cannot be read, so every step stays; 10 there is no such job; 12 the store cannot be "
		"written, or belongs to another user.",
	.args = (const enum cli_arg[]){ ARG_JOB, ARG_NONE },
	.narg_max = 1,
	.run = keep_run,
};
