/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - see control.h. Called by ckptctl: status, wait, trigger, drain, forget, and verbs
 * that change steps. Invariant: nothing that the daemon sent is used before it was checked, and no
 * call outlives its deadline or an interrupt.
 */
#include "ckpt/wire/control.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#define LOOK_NS (200 * NS_PER_MS) /* how often a call looks whether it should stop */

static int socket_name(struct control *k, struct ckpt_err *err)
{
	if (!k->at.socket)
		return wire_socket_path(k->socket, 0, err);
	if (strlen(k->at.socket) >= sizeof k->socket)
		return ckpt_error(err, -EINVAL, "the socket path %s is longer than %zu bytes",
				  k->at.socket, sizeof k->socket - 1);
	snprintf(k->socket, sizeof k->socket, "%s", k->at.socket);
	return 0;
}

uint64_t control_soon(const struct control *k)
{
	uint64_t now = now_ns(), last = MAX(k->until, now + CONTROL_LAST_NS);

	return k->until ? MIN(last, now + CONTROL_ANSWER_NS) : now + CONTROL_ANSWER_NS;
}

static int not_connected(const struct control *k, int why, struct ckpt_err *err)
{
	struct stat st;

	switch (why) {
	case EINTR:
		return ckpt_error(err, -ECANCELED, "interrupted");
	case EAGAIN:
		return ckpt_error(err, -ETIMEDOUT, "ckptd on %s does not answer: is it stopped?",
				  k->socket);
	case EPROTOTYPE:
		return ckpt_error(err, -EINVAL, "%s is another program's socket, not a ckptd's",
				  k->socket);
	case ECONNREFUSED: /* of a file that is no socket too */
		if (stat(k->socket, &st) == 0 && !S_ISSOCK(st.st_mode))
			return ckpt_error(err, -EINVAL, "%s is not a socket", k->socket);
		/* fallthrough */
	case ENOENT:
	case ENOTDIR:
		return ckpt_error(err, -ECONNREFUSED, "no ckptd listens on %s", k->socket);
	default:
		return ckpt_error_errno(err, why, "cannot connect to %s", k->socket);
	}
}

static int connect_to(struct control *k, struct ckpt_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	uint64_t left = control_soon(k) - now_ns(); /* a stopped daemon's backlog fills */
	const struct timeval slow = { .tv_sec = (time_t)(left / NS_PER_S),
				      .tv_usec = (suseconds_t)(left % NS_PER_S / 1000) };
	struct ucred who;
	socklen_t len = sizeof who;

	k->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (k->sock < 0)
		return ckpt_error_errno(err, errno, "cannot make a socket");
	memcpy(a.sun_path, k->socket, sizeof a.sun_path);
	setsockopt(k->sock, SOL_SOCKET, SO_SNDTIMEO, &slow, sizeof slow);
	if (connect(k->sock, (struct sockaddr *)&a, sizeof a) < 0)
		return not_connected(k, errno, err);
	if (getsockopt(k->sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 ||
	    (who.uid != geteuid() && geteuid() != 0))
		return ckpt_error(err, -EACCES, "the daemon on %s belongs to user %u, not to you",
				  k->socket, (unsigned)who.uid);
	return 0;
}

static void report_drop(struct control *k)
{
	if (k->map)
		munmap(TAKE(k->map), k->map_bytes);
	k->report = (struct wire_report){ 0 };
}

void control_close(struct control *k)
{
	report_drop(k);
	if (k->sock >= 0)
		(void)close(TAKE_FD(k->sock));
}

int control_open(struct control *k, const struct control_at *at, uint64_t until,
		 struct ckpt_err *err)
{
	struct wire_plain hello = { 0 };
	int rc;

	*k = (struct control){ .at = *at, .sock = -1, .until = until };
	rc = socket_name(k, err);
	if (rc == 0)
		rc = connect_to(k, err);
	if (rc == 0)
		rc = control_call(k, &hello, WIRE_CONTROL, -1, NULL, NULL, control_soon(k), err);
	if (rc < 0)
		control_close(k);
	return rc;
}

static int wait_answer(const struct control *k, uint64_t until, struct ckpt_err *err)
{
	struct pollfd p = { .fd = k->sock, .events = POLLIN };

	for (;;) {
		uint64_t now = now_ns(), left = until ? until - MIN(until, now) : LOOK_NS;
		int n;

		if (k->at.stopped && k->at.stopped())
			return ckpt_error(err, -ECANCELED, "interrupted");
		if (!left)
			return ckpt_error(err, -ETIMEDOUT, "ckptd on %s does not answer",
					  k->socket);
		n = poll(&p, 1, (int)(MIN(left, LOOK_NS) / NS_PER_MS + 1));
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return ckpt_error_errno(err, errno, "cannot wait for ckptd");
	}
}

static int connection_lost(const struct control *k, struct ckpt_err *err)
{
	return ckpt_error(err, -ECONNRESET, "ckptd on %s closed the connection", k->socket);
}

int control_call(struct control *k, void *msg, enum wire_type type, int fd, void *answer,
		 int *ret_fd, uint64_t until, struct ckpt_err *err)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	int got[WIRE_FDS_MAX], ngot = 0, rc;

	rc = wire_send(k->sock, msg, type, wire_kind(type)->bytes, ++k->seq, &fd, fd >= 0);
	if (rc < 0)
		return connection_lost(k, err);
	rc = wait_answer(k, until, err);
	if (rc < 0)
		return rc;
	rc = wire_recv(k->sock, in, sizeof in, got, &ngot);
	if (rc == 0 && type == WIRE_CONTROL)
		return ckpt_error(
			err, -ECONNRESET,
			"ckptd on %s closed the connection without an answer: it has just "
			"exited, or is of an older version than this ckptctl (protocol %u)",
			k->socket, WIRE_ABI);
	if (rc == 0)
		return connection_lost(k, err);
	if (rc == -EPROTONOSUPPORT)
		return ckpt_error(
			err, -ECONNRESET,
			"ckptd on %s speaks protocol %u, this ckptctl protocol %u: use the ckptctl of "
			"its version",
			k->socket, head->abi, WIRE_ABI);
	if (rc > 0 &&
	    (wire_answer_check(type, in, (uint32_t)rc, ngot) < 0 || head->seq != k->seq)) {
		wire_close_fds(got, ngot);
		rc = -EPROTO;
	}
	if (rc < 0)
		return ckpt_error(err, -ECONNRESET,
				  "ckptd on %s speaks another protocol: another version?",
				  k->socket);
	if (head->type == WIRE_REFUSE) {
		struct ckpt_err said;
		int code = wire_refusal(in, (uint32_t)rc, &said);

		return ckpt_error(err, code == -EPROTO ? -ECONNRESET : code, "%s", said.msg);
	}
	if (answer)
		memcpy(answer, in, (size_t)rc);
	if (ret_fd)
		*ret_fd = TAKE_FD(got[0]);
	wire_close_fds(got, ngot);
	return 0;
}

int control_report(struct control *k, struct ckpt_err *err)
{
	struct wire_plain ask = { 0 };
	struct wire_status_is is;
	cleanup_close int fd = -1;
	int rc = control_call(k, &ask, WIRE_STATUS, -1, &is, &fd, control_soon(k), err);

	report_drop(k);
	if (rc < 0)
		return rc;
	rc = wire_map(fd, is.bytes, 1, &k->map, err);
	if (rc == 0) {
		k->map_bytes = is.bytes;
		rc = wire_report_check(k->map, k->map_bytes, &k->report, err);
	}
	if (rc < 0) {
		report_drop(k);
		err->code = -ECONNRESET;
		return -ECONNRESET;
	}
	return 0;
}

/* --- jobs --- */
#define JOB_PATH \
	(sizeof((struct wire_report_job *)0)->store + sizeof((struct wire_report_job *)0)->name + 1)

/* The store is not known before it has answered the job's first rank. */
static void job_path(const struct wire_report_job *j, char *buf, size_t bytes)
{
	snprintf(buf, bytes, "%s%s%s", j->store, j->store[0] ? "/" : "", j->name);
}

/* Is the job in the store, or is it the job directory, that `where` names? */
static bool job_is_below(const char *where, const struct wire_report_job *j)
{
	char path[PATH_MAX], job[JOB_PATH];
	size_t len;

	if (!realpath(where, path)) { /* removed, or on another host: as it is written */
		snprintf(path, sizeof path, "%s", where);
		len = strlen(path);
		while (len > 1 && path[len - 1] == '/')
			path[--len] = 0;
	}
	job_path(j, job, sizeof job);
	return !strcmp(path, j->store) || !strcmp(path, job);
}

static bool job_is_called(const struct wire_report_job *j, const char *name)
{
	char path[JOB_PATH];

	job_path(j, path, sizeof path);
	return !name || !strcmp(name, j->name) || !strcmp(name, path) ||
	       (name[0] == '/' && !strcmp(name, j->store));
}

/* The directory that other jobs do not count outside of; NULL: they count wherever they are. */
static const char *bound_of(const struct control *k, const char *name)
{
	bool binds = k->at.bound == CONTROL_ALWAYS || (k->at.bound == CONTROL_ALONE && !name);

	return binds && !(name && strchr(name, '/')) ? k->at.where : NULL;
}

/* A path as the daemon says it. */
static const char *name_real(const char *name, char buf[PATH_MAX])
{
	return name && strchr(name, '/') && realpath(name, buf) ? buf : name;
}

bool control_is_selected(const struct control *k, const char *name)
{
	return name || bound_of(k, name);
}

bool control_is_meant(const struct control *k, const char *name, uint32_t index)
{
	const struct wire_report_job *j = &k->report.job[index];
	const char *where = bound_of(k, name);
	char real[PATH_MAX];

	return (!where || job_is_below(where, j)) && job_is_called(j, name_real(name, real));
}

/* Of several that are meant the only one below the directory. */
static bool job_beside(const struct control *k, const char *name, uint32_t *ret_index)
{
	uint32_t n = 0;

	for (uint32_t i = 0; k->at.where && i < k->report.head->njob; i++)
		if (control_is_meant(k, name, i) && job_is_below(k->at.where, &k->report.job[i])) {
			*ret_index = i;
			n++;
		}
	return n == 1;
}

int control_job(const struct control *k, const char *name, uint32_t *ret_index,
		struct ckpt_err *err)
{
	const struct wire_report *r = &k->report;
	const char *where = bound_of(k, name);
	char all[2048] = "", path[JOB_PATH];
	uint32_t n = 0, known = 0;

	for (uint32_t i = 0; i < r->head->njob; i++)
		if (control_is_meant(k, name, i)) {
			*ret_index = i;
			n++;
		}
	if (n == 1 || (n && job_beside(k, name, ret_index)))
		return 0;
	for (uint32_t i = 0; i < r->head->njob; i++) {
		size_t len = strlen(all);

		if (n && !control_is_meant(k, name, i))
			continue;
		job_path(&r->job[i], path, sizeof path);
		snprintf(all + len, sizeof all - len, "%s%s", known++ ? ", " : "", path);
	}
	if (n)
		return ckpt_error(err, -ENOTUNIQ, "%s; give one with --job: %s",
				  name ? "several stores have a job of this name"
				       : "ckptd has several jobs",
				  all);
	return ckpt_error(err, -ENOENT, "ckptd on %s has no job%s%s%s%s%s%s", k->socket,
			  name ? " " : "", name ? name : "", where ? " in " : "",
			  where ? where : "", known ? "; it has " : "", all);
}

uint64_t control_wall(const struct wire_report *r, uint64_t ns)
{
	uint64_t ago = elapsed_ns(ns, r->head->now_ns);

	return ns && ago < r->head->wall_ns ? r->head->wall_ns - ago : 0;
}

bool control_is_staged(const struct wire_report_step *s)
{
	return (s->flags & WIRE_HELD) &&
	       (s->state == WIRE_STAGED || s->state == WIRE_QUEUED || s->state == WIRE_WRITING ||
		s->state == WIRE_PERSISTED || s->state == WIRE_COMMITTED ||
		s->state == WIRE_FAILED || s->state == WIRE_THINNED);
}

const struct wire_report_step *control_staged(const struct wire_report *r, uint32_t job)
{
	const struct wire_report_step *best = NULL;

	for (uint32_t i = 0; i < r->head->nstep; i++) {
		const struct wire_report_step *s = &r->step[i];

		if (s->job == job && control_is_staged(s) && (!best || s->mark_ns > best->mark_ns))
			best = s;
	}
	return best;
}
