/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - a thread that listens on a socket and answers as a daemon does, until it is over:
 * first OK, then a report of two ranks that are attached and one that is not, of processes 4242,
 * 4243 and 4244.
 */
#ifndef TESTS_LIB_LISTENER_H
#define TESTS_LIB_LISTENER_H
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "ckpt/wire/wire.h"
#include "tests/lib/unit.h"

struct listener {
	int fd;
	_Atomic bool over;
	pthread_t thread;
};

static inline void listener_report(int sock)
{
	static struct {
		struct wire_report_head head;
		struct wire_report_job job;
		struct wire_report_rank rank[3];
	} r;
	struct wire_status_is is = { .bytes = sizeof r };
	int fd;

	r.head = (struct wire_report_head){ .magic = WIRE_MAGIC, .njob = 1, .nrank = 3 };
	r.job = (struct wire_report_job){ .id = 1, .world = 3, .attached = 2 };
	for (uint32_t i = 0; i < 3; i++)
		r.rank[i] = (struct wire_report_rank){ .rank = i,
						       .pid = 4242 + i,
						       .state = i < 2 ? WIRE_ATTACHED : WIRE_DIED };
	assert_int_equal(wire_memfd_of("report", &r, sizeof r, &fd, NULL), 0);
	(void)wire_send(sock, &is, WIRE_STATUS_IS, sizeof is, 2, &fd, 1);
	(void)close(fd);
}

static inline void *listener_run(void *arg)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	struct listener *l = arg;
	int fd[WIRE_FDS_MAX], nfd;

	while (!l->over) {
		struct pollfd p = { .fd = l->fd, .events = POLLIN };
		struct wire_ok ok = { 0 };
		int sock;

		if (poll(&p, 1, 20) <= 0)
			continue;
		sock = accept(l->fd, NULL, NULL);
		if (wire_recv(sock, in, sizeof in, fd, &nfd) > 0)
			(void)wire_send(sock, &ok, WIRE_OK, sizeof ok, 1, NULL, 0);
		if (wire_recv(sock, in, sizeof in, fd, &nfd) > 0)
			listener_report(sock);
		(void)close(sock);
	}
	return NULL;
}

static inline void listener_start(struct listener *l, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	*l = (struct listener){ .fd = socket(AF_UNIX, SOCK_SEQPACKET, 0) };
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	assert_int_equal(bind(l->fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(l->fd, 5), 0);
	assert_int_equal(pthread_create(&l->thread, NULL, listener_run, l), 0);
}

/* It still listens, and answers no more: close(l->fd) ends that too. */
static inline void listener_stop(struct listener *l)
{
	l->over = true;
	pthread_join(l->thread, NULL);
}
#endif
