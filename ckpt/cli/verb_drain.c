/* SPDX-License-Identifier: Apache-2.0 */
/* verb_drain.c - ckptctl drain: have the daemon write everything that is staged, and wait for it. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/control.h"

static const struct column col_written = { "written_count", "written", false, FIT_WHOLE };
static const struct column col_failed = { "failed_count", "failed", false, FIT_WHOLE };

/* The DRAIN's answer comes when all is over: a failure of the connection before that says nothing
 * about the steps. */
static int drain(struct control *k, uint64_t until, struct wire_drained *ret, struct ckpt_err *err)
{
	struct wire_drain ask = { 0 };
	int rc = control_call(k, &ask, WIRE_DRAIN, sizeof ask, WIRE_DRAINED, ret, sizeof *ret, NULL,
			      until, err);

	if (rc == -ETIMEDOUT)
		return ckpt_error(err, rc,
				  "not all that was staged is written yet: ckptd goes on with it");
	return rc;
}

static int run(struct cli *c)
{
	struct control k = { .c = c, .sock = -1 };
	struct ckpt_err err = { 0 };
	struct wire_drained got;
	uint64_t until;
	int rc = control_until(c, &until, &err), code;

	if (rc < 0)
		return cli_fail(c, rc, &err, "ckptctl drain --timeout 4m");
	rc = control_open(&k, c, until, &err);
	if (rc == 0)
		rc = drain(&k, until, &got, &err);
	if (rc < 0) {
		code = rc == -ETIMEDOUT ? cli_fail(c, rc, &err, "ckptctl status")
					: control_fail(&k, rc, &err);
		control_close(&k);
		return code;
	}
	control_close(&k);
	output_begin(c->o, "ckptd.drain/1");
	output_put(c->o, &col_written, cell_of(CELL_NUMBER, got.written));
	output_put(c->o, &col_failed, cell_of(CELL_NUMBER, got.failed));
	output_end(c->o);
	if (!got.failed)
		return CLI_OK;
	ckpt_error(&err, got.code, "%s", got.text);
	return cli_fail(c, got.code, &err, "ckptctl status; what failed stays in memory");
}

const struct cli_verb verb_drain = {
	.name = "drain",
	.help = "have everything that is staged written, and wait for it",
	.synopsis = (const char *const[]){ "[--timeout TIME]", NULL },
	.about =
		"The newest staged step of every job, and what was marked already, is written now, "
		"whatever persist_every says. The daemon goes on serving. For scripts that run "
		"before a machine is taken away. A step whose trainer has not called ckpt_guard yet "
		"is committed after it has.",
	.example = (const struct cli_example[]){ { "ckptctl drain --timeout 4m",
						   "in a preStop hook or an epilog" },
						 { NULL, NULL } },
	.option =
		(const struct cli_verb_option[]){
			{ OPT_TIMEOUT,
			  "give up waiting after this time (30s, 5m); default: never" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0 all is on disk; 1, 12, 13 or another by what failed; 14 no daemon, or it went "
		 "away; 15 timed out, the daemon goes on.",
	.narg_max = 0,
	.run = run,
};
