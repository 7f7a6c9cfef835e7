/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_ask.c - see daemon_ask.h. Invariant: a failure is printed with the command that helps. */
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"

int daemon_ask_open(struct control *k, struct cli *c, uint64_t until, struct ckpt_err *err)
{
	const char *env = getenv("CKPTD_SOCKET");
	const struct control_at at = { .socket = c->value[OPT_SOCKET] ? c->value[OPT_SOCKET]
						 : env && *env	      ? env
								      : NULL,
				       .only = c->value[OPT_STORE],
				       .where = c->where,
				       .stopped = cli_stopped };

	return control_open(k, &at, until, err);
}

int daemon_ask_fail(struct cli *c, const struct control *k, int rc, const struct ckpt_err *err)
{
	bool given = c->value[OPT_SOCKET] || getenv("CKPTD_SOCKET");
	const char *verb = c->verb ? c->verb->name : "status";

	switch (rc) {
	case -ECONNREFUSED:
		return cli_fail(c, rc, err, "ckptd --background%s%s", given ? " --socket " : "",
				given ? k->socket : "");
	case -ECONNRESET:
	case -ETIMEDOUT:
		return cli_fail(c, rc, err, "ckptctl doctor");
	case -ENOENT:
	case -ENOTUNIQ:
		return cli_fail(c, rc, err, "ckptctl status lists the jobs");
	case -EINVAL:
	case -EACCES:
		return cli_fail(c, rc, err, "ckptctl %s -S PATH, with the socket of your own ckptd",
				verb);
	case -EAGAIN:
		return cli_fail(c, rc, err, "ckptctl %s again, in a moment", verb);
	default:
		return cli_fail(c, rc, err, NULL);
	}
}

int daemon_ask_until(struct cli *c, uint64_t *ret_until, struct ckpt_err *err)
{
	const char *s = c->value[OPT_TIMEOUT];
	uint64_t ns, now = now_ns();

	*ret_until = 0;
	if (!s)
		return 0;
	if (human_parse_time(s, &ns) < 0)
		return ckpt_error(err, -EINVAL,
				  "--timeout %.60s is not a time; write 30s, 5m, or 2h", s);
	*ret_until = now > UINT64_MAX - ns ? UINT64_MAX : now + ns;
	return 0;
}

void daemon_ask_pause(uint64_t ns)
{
	const struct timespec t = { .tv_sec = (time_t)(ns / NS_PER_S),
				    .tv_nsec = (long)(ns % NS_PER_S) };

	if (!cli_stopped())
		(void)nanosleep(&t, NULL);
}
