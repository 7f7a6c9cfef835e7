/* SPDX-License-Identifier: Apache-2.0 */
/* from_memory.c - see from_memory.h. Called by verb_export.c. */
#include "ckpt/cli/from_memory.h"
#include "ckpt/base/error.h"
#include "ckpt/cli/daemon_ask.h"
#include "formats/registry/registry.h"

int from_memory(struct cli *c, const char *name, const char *beside, struct memory_step *ret)
{
	struct control k = { .sock = -1 };
	struct memory_ask q = { .ops = c->ops,
				.format = formats[0],
				.k = &k,
				.beside = beside,
				.pause = daemon_ask_pause };
	struct ckpt_err err = { 0 };
	int rc = address_parse(name, &q.step, &err), code;

	*ret = (struct memory_step){ 0 };
	if (!rc && q.step.kind != ADDRESS_STEP && (q.step.kind != ADDRESS_LATEST || q.step.n))
		rc = ckpt_error(&err, -EINVAL,
				"\"%.80s\" names no step in memory: give latest, a step's number, "
				"or one of these behind JOB@",
				name);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl export latest DIR --from-memory --mesh SPEC");
	rc = daemon_ask_open(&k, c, 0, &err);
	if (rc == 0)
		rc = memory_step_write(&q, ret, &err);
	if (rc == -ENOENT)
		code = cli_fail(c, rc, &err, "ckptctl status; what is on disk: ckptctl ls");
	else if (rc == -EBUSY)
		code = cli_fail(c, rc, &err, "this again, when that one is over");
	else
		code = rc ? daemon_ask_fail(c, &k, rc, &err) : CLI_OK;
	control_close(&k);
	return code;
}
