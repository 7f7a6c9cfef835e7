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
	char job[CKPT_JOB_MAX + 8]; /* "": all */
	struct wire_drained got;
};

/* The job that is meant, and the directory, which is made where it is missing. */
static int drain_order(struct drain *d, struct wire_drain *ask, int *ret_fd, struct ckpt_err *err)
{
	const char *to = d->c->value[OPT_TO], *job = d->c->narg ? d->c->arg[0] : NULL;
	uint32_t i;
	int rc = 0;

	if (job || to) {
		rc = control_report(&d->k, err);
		if (rc == 0)
			rc = control_job(&d->k, job, &i, err);
		if (rc < 0)
			return rc;
		ask->job = d->k.report.job[i].id;
		snprintf(d->job, sizeof d->job, "%s", d->k.report.job[i].name);
	}
	if (!to)
		return 0;
	ask->flags = WIRE_TO;
	if (mkdir(to, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make %s", to);
	*ret_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret_fd < 0 ? ckpt_error_errno(err, errno, "cannot open %s", to) : 0;
}

/* The DRAIN's answer comes when all is over: a failure of the connection before that says nothing
 * about the steps. */
static int jobs_drain(struct drain *d, struct ckpt_err *err)
{
	struct wire_drain ask = { 0 };
	cleanup_close int fd = -1;
	int rc = drain_order(d, &ask, &fd, err);

	if (rc < 0)
		return rc;
	rc = control_call(&d->k, &ask, WIRE_DRAIN, fd, &d->got, NULL, d->until, err);
	if (rc == -ETIMEDOUT)
		return ckpt_error(
			err, rc,
			"not every staged step is written yet: ckptd continues to write them");
	return rc;
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
	int rc = daemon_ask_until(c, &d.until, &err), code;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl drain --timeout 4m");
	rc = daemon_ask_open(&d.k, c, d.until, &err);
	if (rc == 0)
		rc = jobs_drain(&d, &err);
	if (rc < 0) {
		if (rc == -ETIMEDOUT)
			code = cli_fail(c, rc, &err, "ckptctl status");
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
	.synopsis = (const char *const[]){ "[JOB] [--timeout TIME]", "[JOB] --to DIR", NULL },
	.about =
		"The daemon writes the newest staged step of JOB, or of every job if JOB is not given, "
		"and the steps that were already marked, whatever persist_every is. It tries again to "
		"write a step that it could not write before. The daemon does not stop. Use this in "
		"scripts that run before a machine is taken away. If the trainer has not called "
		"ckpt_guard yet for a step, the step is committed after it has. "
		"With --to the daemon writes the steps to the directory JOB in DIR and not to the "
		"job's own directory. This rescues the staged steps if the job's directory was moved "
		"or removed, or if its disk is full or does not answer. In DIR the daemon sets no step "
		"aside and removes none: if DIR has the step, or a newer one, the drain fails.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl drain --timeout 4m", "in a preStop hook or an epilog" },
			{ "ckptctl drain demo --to /mnt/spare", "to /mnt/spare/demo" },
			{ NULL, NULL } },
	.option =
		(const struct cli_verb_option[]){
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
