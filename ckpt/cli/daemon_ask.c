/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_ask.c - see daemon_ask.h. Invariant: a failure is printed with the command that helps. */
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/store.h"
#include <fcntl.h>

int daemon_ask_name(struct cli *c, const char *arg, char buf[PATH_MAX], const char **ret,
		    struct ckpt_err *err)
{
	const char *job = c->value[OPT_JOB], *name = arg ? arg : job;
	size_t n = name ? strlen(name) : 0;

	*ret = NULL;
	if (arg && job)
		return ckpt_error(err, -EINVAL, "\"%.80s\" already names the job: omit --job %.80s",
				  arg, job);
	if (!name)
		return 0;
	n -= n && name[n - 1] == '@';
	if (!n || n >= PATH_MAX)
		return ckpt_error(err, -EINVAL, "\"%.80s\" is no name of a job", name);
	memcpy(buf, name, n);
	buf[n] = 0;
	*ret = buf;
	return 0;
}

static int job_seen(void *arg, const char *job, int job_fd, const char *abs_path)
{
	(void)arg;
	(void)job;
	(void)job_fd;
	(void)abs_path;
	return 1;
}

static enum control_bound where_binds(const struct cli *c)
{
	const char *env = getenv("CKPTD_STORE");
	cleanup_close int fd = -1;

	if (c->value[OPT_STORE])
		return CONTROL_ALWAYS;
	fd = open(c->where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && store_is_job(c->ops, fd) > 0)
		return CONTROL_ALONE;
	if (env && *env)
		return CONTROL_ALWAYS;
	return store_jobs(c->ops, c->where, job_seen, NULL, NULL) > 0 ? CONTROL_ALONE
								      : CONTROL_HINT;
}

int daemon_ask_open(struct control *k, struct cli *c, uint64_t until, struct ckpt_err *err)
{
	const char *env = getenv("CKPTD_SOCKET");
	const struct control_at at = { .socket = c->value[OPT_SOCKET] ? c->value[OPT_SOCKET]
						 : env && *env	      ? env
								      : NULL,
				       .where = c->where,
				       .bound = where_binds(c),
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

uint32_t daemon_ask_serves(const struct control *k, const char *job_path)
{
	const struct wire_report *r = &k->report;
	char path[sizeof r->job->store + sizeof r->job->name + 1];

	for (uint32_t i = 0; r->head && i < r->head->njob; i++) {
		snprintf(path, sizeof path, "%s/%s", r->job[i].store, r->job[i].name);
		if (r->job[i].store[0] && !strcmp(path, job_path))
			return i;
	}
	return UINT32_MAX;
}
