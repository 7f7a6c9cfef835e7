/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_frames.c - arbitrary bytes, with any descriptors, from a rank that exchanges over a socket:
 * the round ends, with what was expected or with a sentence; nothing is written beside what was to
 * be received, and no descriptor is lost.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/spread/spread_socket.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SHARED_BYTES 8192u
#define SECRET 0x5a

static const uint32_t expected[] = { 8, 0, 5000 };

static int memory(int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert(fd >= 0 && ftruncate(fd, SHARED_BYTES) == 0);
	assert(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static uint32_t descriptors(void)
{
	uint32_t n = 0;

	for (int fd = 0; fd < 128; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* how: how many descriptors, and which of them can become shorter. true: one of them can. */
static bool peer_sends(int fd, uint8_t how, const uint8_t *data, size_t size)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(7 * sizeof(int))];
	} room = { .bytes = "" };
	struct iovec v = { (void *)(uintptr_t)data, size };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	uint32_t n = how % 8, open = how >> 3 & 1 ? how >> 4 : n;
	int fds[7];

	for (uint32_t i = 0; i < n; i++)
		fds[i] = memory(i == open ? 0 : F_SEAL_SHRINK);
	if (n) {
		m.msg_control = room.bytes;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		room.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
					      .cmsg_type = SCM_RIGHTS,
					      .cmsg_len = CMSG_LEN(n * sizeof(int)) };
		memcpy(CMSG_DATA(&room.head), fds, n * sizeof(int));
	}
	(void)!sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	for (uint32_t i = 0; i < n; i++)
		close(fds[i]);
	(void)shutdown(fd, SHUT_WR);
	return size > 0 && open < MIN(n, SPREAD_SEGMENTS_MAX);
}

static void round_run(struct spread_transport *t, uint8_t *to, uint64_t from, bool bad)
{
	struct ckpt_err err = { 0 };
	uint64_t at = 64;
	int rc = t->calls->send(t, 1, from, SHARED_BYTES, &err);

	for (uint32_t i = 0; i < ARRAY_LEN(expected) && rc == 0; i++) {
		rc = t->calls->recv(t, 1, (uintptr_t)to + at, expected[i], &err);
		at += expected[i];
	}
	assert(rc == 0);
	rc = t->calls->round_end(t, now_ns() + 10 * NS_PER_S, &err);
	assert(rc == 0 || (rc < 0 && rc != -ETIMEDOUT && err.code == rc && strlen(err.msg) > 20));
	assert(rc < 0 || !bad);
	for (uint64_t i = 0; i < 64; i++)
		assert(to[i] == SECRET && to[at + i] == SECRET);
	if (rc < 0)
		t->calls->abort(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t to[8192];
	struct spread_segment own = { memory(F_SEAL_SHRINK), 0, SHARED_BYTES };
	struct spread_transport *t;
	int pair[2], fd[2] = { -1, -1 };
	uint32_t before = descriptors();
	bool bad;

	memset(to, SECRET, sizeof to);
	size = MIN(size, (size_t)65536); /* what a socket has room for */
	own.base =
		(uintptr_t)mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, own.fd, 0);
	assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	fd[1] = pair[0];
	assert(spread_socket_open(0, 2, fd, &t, NULL) == 0);
	spread_socket_share(t, &own, 1);
	bad = peer_sends(pair[1], size ? data[0] : 0, size ? data + 1 : data, size ? size - 1 : 0);
	round_run(t, to, own.base, bad);
	t->calls->close(t);
	close(pair[1]);
	munmap((void *)(uintptr_t)own.base, SHARED_BYTES);
	assert(descriptors() == before);
	close(own.fd);
	return 0;
}
