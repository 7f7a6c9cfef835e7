/* SPDX-License-Identifier: Apache-2.0 */
/* verb_drain.c - ckptctl drain: have the daemon write everything that is staged, and wait for
 * it. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include <fcntl.h>
#include <sys/stat.h>

struct drain {
	struct cli *c;
	struct control k;
	uint64_t until;
	const char *named;	    /* on the command line; NULL: not */
	char job[CKPT_JOB_MAX + 8]; /* "": several */
	struct wire_drained got;
};

/* --to's directory, which is made where it is missing. */
static int directory_open(const char *to, int *ret_fd, struct ckpt_err *err)
{
	if (mkdir(to, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make %s", to);
	*ret_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret_fd < 0 ? ckpt_error_errno(err, errno, "cannot open %s", to) : 0;
}

/* The DRAIN's answer comes when all is over: a failure of the connection before that says nothing
 * about the steps. job 0: all. */
static int job_drain(struct drain *d, uint64_t job, int fd, struct ckpt_err *err)
{
	struct wire_drain ask = { .job = job, .flags = fd < 0 ? 0 : WIRE_TO };
	struct wire_drained got;
	int rc = control_call(&d->k, &ask, WIRE_DRAIN, fd, &got, NULL, d->until, err);

	if (rc == -ETIMEDOUT)
		return ckpt_error(
			err, rc,
			"not every staged step is written yet: ckptd continues to write them");
	if (rc < 0)
		return rc;
	if (!d->got.failed && got.failed) {
		d->got.code = got.code;
		memcpy(d->got.text, got.text, sizeof d->got.text);
	}
	d->got.written += got.written;
	d->got.failed += got.failed;
	return 0;
}

/* Those that are meant: in one request where that is all, for then no job waits for another. */
static int all_drain(struct drain *d, int fd, struct ckpt_err *err)
{
	const struct wire_report *r = &d->k.report;
	uint32_t n = 0, last = 0;
	int rc = 0;

	for (uint32_t i = 0; i < r->head->njob; i++)
		if (control_is_meant(&d->k, d->named, i)) {
			last = i;
			n++;
		}
	if (!n && control_is_selected(&d->k, d->named))
		return control_job(&d->k, d->named, &last, err); /* which says that */
	if (n == r->head->njob && fd < 0)
		return job_drain(d, 0, fd, err);
	for (uint32_t i = 0; i < r->head->njob && !rc; i++)
		if (control_is_meant(&d->k, d->named, i))
			rc = job_drain(d, r->job[i].id, fd, err);
	return rc;
}

static int jobs_drain(struct drain *d, struct ckpt_err *err)
{
	const struct wire_report *r = &d->k.report;
	const char *to = d->c->value[OPT_TO];
	bool all = d->c->value[OPT_ALL];
	cleanup_close int fd = -1;
	uint32_t i;
	int rc = control_report(&d->k, err);

	/* A daemon without jobs has nothing to write. */
	all |= rc == 0 && !r->head->njob && !control_is_selected(&d->k, d->named);
	if (rc == 0 && !all)
		rc = control_job(&d->k, d->named, &i, err);
	if (rc == 0 && to)
		rc = directory_open(to, &fd, err);
	if (rc < 0)
		return rc;
	if (all)
		return all_drain(d, fd, err);
	snprintf(d->job, sizeof d->job, "%s", r->job[i].name);
	return job_drain(d, r->job[i].id, fd, err);
}

static void drained_print(const struct drain *d)
{
	const char *to = d->c->value[OPT_TO];
	bool json = d->c->value[OPT_JSON]; /* where objects of one kind have the same keys */

	output_begin(d->c->o, "ckptd.drain/1");
	if (json || d->job[0])
		output_field(d->c->o, "job", "job", cell_word(d->job));
	if (json || to)
		output_field(d->c->o, "directory", "to", cell_word(to));
	output_field(d->c->o, "written_count", "written", cell_number(d->got.written));
	output_field(d->c->o, "failed_count", "failed", cell_number(d->got.failed));
	output_end(d->c->o);
}

static int drain_run(struct cli *c)
{
	struct drain d = { .c = c, .k = { .sock = -1 } };
	struct ckpt_err err = { 0 };
	char word[PATH_MAX];
	int rc = daemon_ask_until(c, &d.until, &err), code;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl drain --timeout 4m");
	rc = daemon_ask_name(c, c->narg ? c->arg[0] : NULL, word, &d.named, &err);
	if (rc == 0 && d.named && c->value[OPT_ALL])
		rc = ckpt_error(&err, -EINVAL, "--all means every job: omit %.80s", d.named);
	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl drain -h");
	rc = daemon_ask_open(&d.k, c, d.until, &err);
	if (rc == 0)
		rc = jobs_drain(&d, &err);
	if (rc < 0) {
		if (rc == -ETIMEDOUT)
			code = cli_fail(c, rc, &err, "ckptctl status");
		else if (rc == -ENOTUNIQ)
			code = cli_fail(c, rc, &err, "ckptctl drain --all writes all of them");
		else if (rc == -EBUSY)
			code = cli_fail(c, rc, &err,
					"ckptctl drain again, when the other drain has ended");
		else
			code = daemon_ask_fail(c, &d.k, rc, &err);
		control_close(&d.k);
		return code;
	}
	control_close(&d.k);
	drained_print(&d);
	if (!d.got.failed)
		return CLI_OK;
	ckpt_error(&err, d.got.code, "%s", d.got.text);
	return cli_fail(c, d.got.code, &err,
			"ckptctl status; the steps that could not be written stay in memory");
}

const struct cli_verb verb_drain = {
	.name = "drain",
	.help = "make the daemon write all staged steps, and wait until it has",
	.synopsis = (const char *const[]){ "[JOB] [--timeout TIME]", "--all [--timeout TIME]",
					   "[JOB] --to DIR", NULL },
	.about =
		"The daemon writes the newest staged step of JOB, or with --all of every job, and "
		"the steps that were already marked, whatever persist_every is. JOB can be omitted "
		"if ckptd has one job, or if -C, CKPTD_STORE or the current directory is that of "
		"the job or of its store. It tries again to "
		"write a step that it could not write before. The daemon does not stop. Use this in "
		"scripts that run before a machine is taken away. If the trainer has not called "
		"ckpt_guard yet for a step, the step is committed after it has. "
		"With --to the daemon writes the steps to the directory JOB in DIR and not to the "
		"job's own directory. This rescues the staged steps if the job's directory was moved "
		"or removed, or if its disk is full or does not answer. In DIR the daemon sets no step "
		"aside and removes none: if DIR has the step, or a newer one, the drain fails.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl drain --all --timeout 4m", "in a preStop hook or an epilog" },
			{ "ckptctl drain demo --to /mnt/spare", "to /mnt/spare/demo" },
			{ NULL, NULL } },
	.option =
		(const struct cli_verb_option[]){
			{ OPT_ALL, "every job; with -C every job of that store" },
			{ OPT_JOB, DAEMON_JOB_HELP },
			{ OPT_TO, "write to DIR/JOB instead; DIR is made if it is missing" },
			{ OPT_TIMEOUT, "stop waiting after this time (30s, 5m); default: never" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 all steps are on disk; 1, 12, 13 or another code: a step could not be written; 2 "
		"the command is wrong, or there are several jobs; 10 there is no such job; 14 there is "
		"no daemon, or it exited; 15 timed out, and the daemon continues to write.",
	.args = (const enum cli_arg[]){ ARG_JOB, ARG_NONE },
	.narg_max = 1,
	.run = drain_run,
};
