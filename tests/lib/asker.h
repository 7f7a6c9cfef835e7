/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asker.h - a control connection for tests of the daemon: connect, ask, read the report. Include it
 * after rank.c and host.c. What must hold and does not ends the program.
 */
#ifndef TESTS_ASKER_H
#define TESTS_ASKER_H
#include "ckpt/base/util.h"
#include "ckpt/client/wire.h"
#include "tests/lib/rank.h"
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct asker {
	int sock;
	uint32_t seq;
	struct wire_refuse refused; /* the newest refusal */
	void *map;
	uint64_t bytes, inode; /* of the report */
	struct wire_report r;
};

static inline int ask_connect(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	MUST(sock >= 0 && connect(sock, (struct sockaddr *)&a, sizeof a) == 0);
	return sock;
}

static inline void ask_send(struct asker *k, void *msg, uint32_t type, uint32_t bytes)
{
	MUST(wire_send(k->sock, msg, type, bytes, ++k->seq, NULL, 0) == 0);
}

/* The answer: its type, 0 at the end of the connection. */
static inline uint32_t ask_answer(struct asker *k, void *ret, uint32_t bytes, int *ret_fd)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	struct pollfd p = { .fd = k->sock, .events = POLLIN };
	int fd[WIRE_FDS_MAX], nfd, n;

	MUST(poll(&p, 1, 20000) == 1);
	n = wire_recv(k->sock, in, sizeof in, fd, &nfd);
	if (n == 0)
		return 0;
	MUST(n > 0 && wire_answer_check(in, (uint32_t)n, nfd) == 0 && head->seq == k->seq);
	if (ret_fd)
		*ret_fd = fd[0];
	if (head->type == WIRE_REFUSE)
		memcpy(&k->refused, in, sizeof k->refused);
	else if (ret)
		memcpy(ret, in, MIN(bytes, (uint32_t)n));
	return head->type;
}

static inline uint32_t ask(struct asker *k, void *msg, uint32_t type, uint32_t bytes, void *ret,
			   uint32_t ret_bytes)
{
	ask_send(k, msg, type, bytes);
	return ask_answer(k, ret, ret_bytes, NULL);
}

static inline void ask_open(struct asker *k, const char *path)
{
	struct wire_control hello = { 0 };

	*k = (struct asker){ .sock = ask_connect(path) };
	MUST_BE(ask(k, &hello, WIRE_CONTROL, sizeof hello, NULL, 0), WIRE_OK);
}

/* Where a crowd connects, who was slow to speak may be sent away, and comes again. */
static inline void ask_open_in_a_crowd(struct asker *k, const char *path)
{
	struct wire_control hello = { 0 };
	bool in = false;

	for (int i = 0; i < 1000 && !in; i++) {
		*k = (struct asker){ .sock = ask_connect(path) };
		in = wire_send(k->sock, &hello, WIRE_CONTROL, sizeof hello, ++k->seq, NULL, 0) ==
			     0 &&
		     ask_answer(k, NULL, 0, NULL) == WIRE_OK;
		if (!in)
			(void)close(TAKE_FD(k->sock));
	}
	MUST(in);
}

static inline void ask_close(struct asker *k)
{
	if (k->map)
		munmap(TAKE(k->map), k->bytes);
	(void)close(TAKE_FD(k->sock));
}

static inline const struct wire_report *ask_status(struct asker *k)
{
	struct wire_status m = { 0 };
	struct wire_status_is is;
	struct ckpt_err err = { 0 };
	struct stat st;
	int fd = -1;

	ask_send(k, &m, WIRE_STATUS, sizeof m);
	MUST_BE(ask_answer(k, &is, sizeof is, &fd), WIRE_STATUS_IS);
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

/* The job of this name in a fresh report; NULL. */
static inline const struct wire_report_job *ask_job(struct asker *k, const char *name)
{
	const struct wire_report *r = ask_status(k);

	for (uint32_t i = 0; i < r->head->njob; i++)
		if (!strcmp(r->job[i].name, name))
			return &r->job[i];
	return NULL;
}

/* In the newest report. */
static inline const struct wire_report_step *ask_step(const struct asker *k, uint64_t step)
{
	for (uint32_t i = 0; i < k->r.head->nstep; i++)
		if (k->r.step[i].step == step)
			return &k->r.step[i];
	return NULL;
}

/* Ask until it holds. */
#define ask_until(cond)                                                            \
	do {                                                                       \
		uint64_t end_ = now_ns() + 20 * NS_PER_S;                          \
		while (!(cond)) {                                                  \
			rank_must(now_ns() < end_, #cond, __FILE__, __LINE__, ""); \
			usleep(2000);                                              \
		}                                                                  \
	} while (0)
#endif
