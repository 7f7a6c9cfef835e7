/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_wire.c - arbitrary bytes, with any number of descriptors, as a message: what wire_recv lets
 * through has a whole head that tells the truth, or is a refusal, which may be of any version and
 * length; what wire_request_check lets through is safe to be read as its type; no descriptor is
 * lost.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
#include <fcntl.h>
#include <sys/socket.h>

static void request(const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_head *head = msg;

	if (wire_request_check(msg, bytes, nfd) < 0)
		return;
	assert(head->type >= WIRE_HELLO && head->type <= WIRE_KEEP);
	assert(nfd == (head->type <= WIRE_DECLARE ||
				       (head->type == WIRE_SEED &&
					!((const struct wire_seed *)msg)->error) ||
				       (head->type == WIRE_DRAIN &&
					((const struct wire_drain *)msg)->flags & WIRE_TO)
			       ? 1
			       : 0));
	if (head->type == WIRE_HELLO)
		assert(strlen(((const struct wire_hello *)msg)->job) < CKPT_JOB_MAX + 8);
	if (head->type == WIRE_RESTORE)
		assert(strlen(((const struct wire_restore *)msg)->only) < CKPT_NAME_MAX + 8);
	if (head->type == WIRE_KEEP)
		assert(strlen(((const struct wire_keep *)msg)->rules) < RETAIN_TEXT_MAX);
	if (head->type == WIRE_SEED)
		assert(strlen(((const struct wire_seed *)msg)->path) < WIRE_PATH_BYTES);
}

/* A row that passes names bytes inside of a segment and of the slot, whatever it says of lines. */
static void rows(const uint8_t *data, size_t size)
{
	const uint64_t segment[2] = { 4096, UINT64_C(1) << 40 };
	struct wire_row r;

	for (; size >= sizeof r; data += sizeof r, size -= sizeof r) {
		memcpy(&r, data, sizeof r);
		if (wire_row_check(&r, segment, 2, 1 << 20) < 0)
			continue;
		assert(WIRE_ROW_SEGMENT(r.src) < 2 && r.width && r.rows);
		assert(r.width <= 1 << 20 && r.dst <= (1 << 20) - r.width);
		assert(r.rows == 1 || r.dst_pitch <= ((1 << 20) - r.width - r.dst) / (r.rows - 1));
		assert(WIRE_ROW_OFF(r.src) + r.width <= segment[WIRE_ROW_SEGMENT(r.src)]);
	}
}

/* A row that a daemon lands: all its lines lie in one span, and in the window. */
static void landed(const uint8_t *data, size_t size)
{
	const struct source_span span[] = { { 4096, 8192, 0 }, { 1 << 20, 1 << 21, 0 } };
	struct wire_row r;

	for (; size >= sizeof r; data += sizeof r, size -= sizeof r) {
		uint64_t lines, room;

		memcpy(&r, data, sizeof r);
		r.flags = WIRE_ROW_CLIENT;
		r.turn = 0;
		if (landing_row_check(&r, span, 2, 1 << 20) < 0)
			continue;
		lines = r.rows - 1;
		assert(r.rows && r.width && r.width <= 1 << 20 && r.src <= (1 << 20) - r.width);
		assert(!lines || r.src_pitch <= ((1 << 20) - r.width - r.src) / lines);
		room = (r.dst < 8192 ? 8192 : 1 << 21) - r.dst;
		assert((r.dst >= 4096 && r.dst < 8192) || (r.dst >= 1 << 20 && r.dst < 1 << 21));
		assert(r.width <= room && (!lines || r.dst_pitch <= (room - r.width) / lines));
	}
}

static void send_raw(int sock, const void *bytes, size_t n, int nfd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * 16)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (nfd) {
		struct cmsghdr *c;

		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfd);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfd);
		for (int i = 0; i < nfd; i++) {
			int fd = 2;

			memcpy(CMSG_DATA(c) + (size_t)i * sizeof fd, &fd, sizeof fd);
		}
	}
	assert(sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)n);
}

static uint32_t next_fd(void)
{
	int fd = dup(0);

	assert(fd >= 0);
	(void)close(fd);
	return (uint32_t)fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX];
	uint32_t free_fd = next_fd();
	int sock[2], fd[WIRE_FDS_MAX], nfd, n, sent;

	rows(data, size);
	landed(data, size);
	if (size == 0 || size - 1 > WIRE_BYTES_MAX + 64)
		return 0;
	sent = data[0] % 17;
	assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) == 0);
	send_raw(sock[0], data + 1, size - 1, sent);
	n = wire_recv(sock[1], buf, sizeof buf, fd, &nfd);
	if (n > 0 && ((const struct wire_head *)buf)->type == WIRE_REFUSE) {
		struct ckpt_err err;
		int code = wire_refusal(buf, (uint32_t)n, &err);

		assert((size_t)n == MIN(size - 1, sizeof buf) && nfd == 0 && n >= 20);
		assert(code < 0 && code == err.code && strlen(err.msg) < sizeof err.msg);
	} else if (n > 0) {
		const struct wire_head *head = (const struct wire_head *)buf;

		assert((size_t)n == size - 1 && head->bytes == size - 1 && nfd == sent &&
		       sent <= WIRE_FDS_MAX);
		assert(head->magic == WIRE_MAGIC && head->abi == WIRE_ABI);
		request(buf, (uint32_t)n, nfd);
		wire_close_fds(fd, nfd);
	} else {
		assert(n == -EPROTO || size == 1 ||
		       (n == -EPROTONOSUPPORT && ((struct wire_head *)buf)->magic == WIRE_MAGIC &&
			((struct wire_head *)buf)->abi != WIRE_ABI));
		wire_close_fds(
			fd, nfd); /* an empty message may carry descriptors; else there are none */
	}
	(void)close(sock[0]);
	(void)close(sock[1]);
	assert(next_fd() == free_fd);
	/* The same bytes with the head put right, as a peer of ours would send them. */
	if (size - 1 >= sizeof(struct wire_head) && size - 1 <= sizeof buf) {
		struct wire_head *head = (struct wire_head *)buf;

		memcpy(buf, data + 1, size - 1);
		head->bytes = (uint32_t)(size - 1);
		request(buf, head->bytes, sent);
	}
	return 0;
}
