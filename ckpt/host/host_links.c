/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_links.c - see host_links.h. Called by ckptctl doctor.
 * Invariant: a figure was measured here, or is 0 and says why.
 */
#include "ckpt/host/host_links.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define BLOCK ((size_t)256 << 10) /* of large messages and writes */
#define SMALL 4096u		  /* bytes of a small write */
#define ROUNDS 5u		  /* of each measure */
/* Of the memory that is copied: short enough that a busy machine lets one be copied at a
 * stretch. */
#define PIECE ((size_t)4 << 20)
#define PIECES (HOST_LINKS_BYTES / PIECE)
#define COPIES 4096u		    /* small ones that are timed together */
#define ECHOES 500u		    /* messages that are timed together */
#define WAIT_S 10		    /* for a message of the other process */
#define WRITE_NS_MAX (2 * NS_PER_S) /* then a slow disk has been written to for long enough */

static double us_of(uint64_t ns)
{
	return (double)MAX(ns, UINT64_C(1)) / 1e3;
}

static void not_measured(struct host_link *x, const char *what, int rc)
{
	*x = (struct host_link){ 0 };
	snprintf(x->why, sizeof x->why, "%s: %s", what, strerror(-rc));
}

/* The median of n times, which it sorts. */
static uint64_t median(uint64_t *ns, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && ns[k] < ns[k - 1]; k--) {
			uint64_t x = ns[k];

			ns[k] = ns[k - 1];
			ns[k - 1] = x;
		}
	return ns[n / 2];
}

/* --- memory --- */

/* Pieces are copied in turn, so that none is in a cache when its turn comes. */
static uint64_t piece_copy(char *to, const char *from)
{
	uint64_t ns[PIECES];

	for (uint32_t i = 0; i < PIECES; i++) {
		uint64_t since = now_ns();

		memcpy(to + i * PIECE, from + i * PIECE, PIECE);
		__asm__ volatile("" : : "r"(to) : "memory");
		ns[i] = elapsed_ns(since, now_ns());
	}
	return median(ns, PIECES);
}

static void memory_measure(struct host_link *ret)
{
	char small[2][64] = { { 0 } };
	cleanup_free char *from = malloc(HOST_LINKS_BYTES), *to = malloc(HOST_LINKS_BYTES);
	uint64_t piece = UINT64_MAX, each = UINT64_MAX;

	if (!from || !to) {
		not_measured(ret, "memory", -ENOMEM);
		return;
	}
	memset(from, 1, HOST_LINKS_BYTES);
	memset(to, 2, HOST_LINKS_BYTES);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t copied = piece_copy(to, from), since = now_ns();

		piece = MIN(piece, copied);
		for (uint32_t k = 0; k < COPIES; k++) {
			memcpy(small[1], small[0], sizeof small[0]);
			__asm__ volatile("" : : "r"(small) : "memory");
		}
		each = MIN(each, elapsed_ns(since, now_ns()));
	}
	*ret = (struct host_link){ us_of(each) / COPIES, (double)PIECE / us_of(piece), "" };
}

/* --- a socket --- */

/* The other process: each byte comes back, until a block begins with 'b'; of what follows, only the
 * end is answered. */
static int echo_run(int fd, char *block)
{
	ssize_t n;

	while ((n = recv(fd, block, 1, 0)) == 1 && *block != 'b')
		if (send(fd, block, 1, MSG_NOSIGNAL) != 1)
			return 1;
	while (n > 0)
		n = recv(fd, block, BLOCK, 0);
	return n < 0 || send(fd, block, 1, MSG_NOSIGNAL) != 1;
}

static int byte_exchange(int fd, char *block)
{
	if (send(fd, block, 1, MSG_NOSIGNAL) != 1 || recv(fd, block, 1, 0) != 1)
		return -(errno ? errno : EPIPE);
	return 0;
}

static int echoes_time(int fd, char *block, double *ret_us)
{
	uint64_t least = UINT64_MAX;
	int rc = 0;

	*block = 'e';
	for (uint32_t i = 0; i < ROUNDS && !rc; i++) {
		uint64_t since = now_ns();

		for (uint32_t k = 0; k < ECHOES && !rc; k++)
			rc = byte_exchange(fd, block);
		least = MIN(least, elapsed_ns(since, now_ns()));
	}
	*ret_us = us_of(least) / (2.0 * ECHOES); /* there and back */
	return rc;
}

static int stream_time(int fd, char *block, double *ret_rate)
{
	uint64_t since = now_ns(), sent = 0;

	memset(block, 'b', BLOCK);
	while (sent < HOST_LINKS_BYTES) {
		ssize_t n = send(fd, block, BLOCK, MSG_NOSIGNAL);

		if (n <= 0)
			return -(n < 0 ? errno : EPIPE);
		sent += (uint64_t)n;
	}
	if (shutdown(fd, SHUT_WR) || recv(fd, block, 1, 0) != 1)
		return -(errno ? errno : EPIPE);
	*ret_rate = (double)sent / us_of(elapsed_ns(since, now_ns()));
	return 0;
}

static void child_end(pid_t child)
{
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

static void socket_measure(struct host_link *ret)
{
	const struct timeval wait = { .tv_sec = WAIT_S };
	cleanup_free char *block = malloc(BLOCK);
	int fd[2], rc = 0;
	pid_t child;

	*ret = (struct host_link){ 0 };
	if (!block || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd)) {
		not_measured(ret, "a socket", block ? -errno : -ENOMEM);
		return;
	}
	for (uint32_t i = 0; i < 2; i++) {
		(void)setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
		(void)setsockopt(fd[i], SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
	}
	child = fork();
	if (!child) {
		(void)close(fd[0]);
		_exit(echo_run(fd[1], block));
	}
	(void)close(fd[1]);
	if (child < 0)
		rc = -errno;
	if (!rc)
		rc = echoes_time(fd[0], block, &ret->latency_us);
	if (!rc)
		rc = stream_time(fd[0], block, &ret->bytes_per_us);
	(void)close(fd[0]);
	if (child > 0)
		child_end(child);
	if (rc)
		not_measured(ret, "messages to another process", rc);
}

/* --- a disk --- */

static int scratch_open(const struct io_ops *ops, const char *dir, int *ret_fd)
{
	int at = io_open_path(ops, AT_FDCWD, dir, O_RDONLY | O_DIRECTORY), rc = 0;
	char name[64];

	if (at < 0)
		return at;
	snprintf(name, sizeof name, ".ckpt-links-%d-%llx", (int)getpid(),
		 (unsigned long long)wall_ns());
	*ret_fd = ops->open(ops->ctx, at, name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (*ret_fd < 0)
		rc = *ret_fd;
	else
		rc = ops->unlink(ops->ctx, at, name, false);
	if (rc && *ret_fd >= 0)
		(void)ops->close(ops->ctx, *ret_fd);
	(void)ops->close(ops->ctx, at);
	return rc;
}

static int small_writes(const struct io_ops *ops, int fd, const char *block, double *ret_us)
{
	uint64_t ns[ROUNDS];

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t since = now_ns();
		int rc = io_pwrite_all(ops, fd, block, SMALL, 0);

		if (!rc)
			rc = ops->sync(ops->ctx, fd);
		if (rc)
			return rc;
		ns[i] = elapsed_ns(since, now_ns());
	}
	*ret_us = us_of(median(ns, ROUNDS));
	return 0;
}

static int large_write(const struct io_ops *ops, int fd, const char *block, double *ret_rate)
{
	uint64_t since = now_ns(), at = 0;
	int rc = 0;

	while (at < HOST_LINKS_BYTES && !rc && elapsed_ns(since, now_ns()) < WRITE_NS_MAX) {
		rc = io_pwrite_all(ops, fd, block, BLOCK, at);
		at += BLOCK;
	}
	if (!rc)
		rc = ops->sync(ops->ctx, fd);
	*ret_rate = (double)at / us_of(elapsed_ns(since, now_ns()));
	return rc;
}

static void disk_measure(const struct io_ops *ops, const char *dir, struct host_link *ret)
{
	cleanup_free char *block = calloc(1, BLOCK);
	int fd = -1, rc = block ? scratch_open(ops, dir, &fd) : -ENOMEM;
	bool opened = !rc;

	*ret = (struct host_link){ 0 };
	if (!rc)
		rc = small_writes(ops, fd, block, &ret->latency_us);
	if (!rc)
		rc = large_write(ops, fd, block, &ret->bytes_per_us);
	if (opened)
		(void)ops->close(ops->ctx, fd);
	if (rc)
		not_measured(ret, "a file in the directory", rc);
}

void host_links_measure(const struct io_ops *ops, const char *dir, struct host_links *ret)
{
	memory_measure(&ret->memory);
	socket_measure(&ret->socket);
	disk_measure(ops, dir, &ret->disk);
}
