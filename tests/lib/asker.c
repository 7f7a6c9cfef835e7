/* SPDX-License-Identifier: Apache-2.0 */
/* asker.c - see asker.h. */
#include "tests/lib/asker.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

int ask_connect(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	MUST(sock >= 0 && connect(sock, (struct sockaddr *)&a, sizeof a) == 0);
	return sock;
}

void ask_send(struct asker *k, void *msg, uint32_t type, uint32_t bytes)
{
	k->asked = type;
	MUST(wire_send(k->sock, msg, type, bytes, ++k->seq, NULL, 0) == 0);
}

uint32_t ask_answer(struct asker *k, void *ret, uint32_t bytes, int ret_fd[WIRE_FDS_MAX])
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	struct pollfd p = { .fd = k->sock, .events = POLLIN };
	int fd[WIRE_FDS_MAX], nfd, n;

	MUST(poll(&p, 1, 20000) == 1);
	n = wire_recv(k->sock, in, sizeof in, fd, &nfd);
	if (n == 0 || n == -ECONNRESET)
		return 0;
	MUST(n > 0 && head->seq == k->seq);
	MUST(wire_answer_check(k->asked, in, (uint32_t)n, nfd) == 0);
	if (ret_fd)
		memcpy(ret_fd, fd, sizeof fd);
	else
		wire_close_fds(fd, nfd);
	if (head->type == WIRE_REFUSE)
		memcpy(&k->refused, in, sizeof k->refused);
	else if (ret)
		memcpy(ret, in, MIN(bytes, (uint32_t)n));
	return head->type;
}

uint32_t ask_fd(struct asker *k, void *msg, uint32_t type, uint32_t bytes, int fd, void *ret,
		uint32_t ret_bytes, int ret_fd[WIRE_FDS_MAX])
{
	k->asked = type;
	if (wire_send(k->sock, msg, type, bytes, ++k->seq, &fd, fd >= 0) < 0)
		return 0;
	return ask_answer(k, ret, ret_bytes, ret_fd);
}

uint32_t ask(struct asker *k, void *msg, uint32_t type, uint32_t bytes, void *ret,
	     uint32_t ret_bytes)
{
	ask_send(k, msg, type, bytes);
	return ask_answer(k, ret, ret_bytes, NULL);
}

const char *ask_refused(struct asker *k, void *msg, uint32_t type, uint32_t bytes, int code)
{
	MUST_BE(ask(k, msg, type, bytes, NULL, 0), WIRE_REFUSE);
	MUST_BE(k->refused.code, code);
	return k->refused.text;
}

void ask_open(struct asker *k, const char *path)
{
	struct wire_plain hello = { 0 };

	*k = (struct asker){ .sock = ask_connect(path), .asked = WIRE_CONTROL };
	MUST_BE(ask(k, &hello, WIRE_CONTROL, sizeof hello, NULL, 0), WIRE_OK);
}

void ask_open_in_a_crowd(struct asker *k, const char *path)
{
	struct wire_plain hello = { 0 };
	bool in = false;

	for (int i = 0; i < 1000 && !in; i++) {
		*k = (struct asker){ .sock = ask_connect(path), .asked = WIRE_CONTROL };
		in = wire_send(k->sock, &hello, WIRE_CONTROL, sizeof hello, ++k->seq, NULL, 0) ==
			     0 &&
		     ask_answer(k, NULL, 0, NULL) == WIRE_OK;
		if (!in)
			(void)close(TAKE_FD(k->sock));
	}
	MUST(in);
}

void ask_close(struct asker *k)
{
	if (k->map)
		munmap(TAKE(k->map), k->bytes);
	(void)close(TAKE_FD(k->sock));
}

const struct wire_report *ask_status(struct asker *k)
{
	struct wire_plain m = { 0 };
	struct wire_status_is is;
	struct ckpt_err err = { 0 };
	struct stat st;
	int fds[WIRE_FDS_MAX], fd;

	ask_send(k, &m, WIRE_STATUS, sizeof m);
	MUST_BE(ask_answer(k, &is, sizeof is, fds), WIRE_STATUS_IS);
	fd = fds[0];
	if (k->map)
		munmap(TAKE(k->map), k->bytes);
	k->bytes = is.bytes;
	MUST(fstat(fd, &st) == 0);
	k->inode = st.st_ino;
	MUST_OK(wire_map(fd, is.bytes, 1, &k->map, &err), &err);
	MUST_OK(wire_report_check(k->map, k->bytes, &k->r, &err), &err);
	(void)close(fd);
	return &k->r;
}

const struct wire_report_job *ask_job(struct asker *k, const char *name)
{
	const struct wire_report *r = ask_status(k);

	for (uint32_t i = 0; i < r->head->njob; i++)
		if (!strcmp(r->job[i].name, name))
			return &r->job[i];
	return NULL;
}

const struct wire_report_step *ask_step(const struct asker *k, uint64_t step)
{
	for (uint32_t i = 0; i < k->r.head->nstep; i++)
		if (k->r.step[i].step == step)
			return &k->r.step[i];
	return NULL;
}

uint64_t ask_id(struct asker *k, const char *job)
{
	const struct wire_report_job *j = ask_job(k, job);

	MUST(j);
	return j->id;
}

uint32_t ask_trigger(struct asker *k, const char *job, uint32_t flags, struct wire_triggered *ret)
{
	struct wire_trigger m = { .flags = flags, .job = ask_id(k, job) };

	return ask(k, &m, WIRE_TRIGGER, sizeof m, ret, sizeof *ret);
}

uint32_t ask_forget(struct asker *k, uint64_t job, uint32_t flags, struct wire_forgotten *ret)
{
	struct wire_forget m = { .flags = flags, .job = job };

	return ask(k, &m, WIRE_FORGET, sizeof m, ret, sizeof *ret);
}

uint32_t ask_drain(struct asker *k, const char *job, const char *to, uint32_t flags,
		   struct wire_drained *ret)
{
	struct wire_drain m = { .flags = flags, .job = job ? ask_id(k, job) : 0 };
	cleanup_close int fd = to ? open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	MUST(!to || fd >= 0);
	return ask_fd(k, &m, WIRE_DRAIN, sizeof m, fd, ret, sizeof *ret, NULL);
}
