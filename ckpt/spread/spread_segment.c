// SPDX-License-Identifier: Apache-2.0
// spread_segment.c - see spread_segment.h. Called by spread_socket.c.
#include "ckpt/spread/spread_segment.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

bool segments_find(const struct segments *s, uint64_t at, uint64_t bytes, uint32_t *ret_segment,
		   uint64_t *ret_off)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct spread_segment *x = &s->at[i];

		if (at < x->base || at - x->base > x->bytes || bytes > x->bytes - (at - x->base))
			continue;
		*ret_segment = i;
		*ret_off = at - x->base;
		return true;
	}
	return false;
}

uint64_t segments_at(const struct segments *s, uint64_t segment, uint64_t off, uint64_t bytes)
{
	const struct spread_segment *x = segment < s->n ? &s->at[segment] : NULL;

	return x && off <= x->bytes && bytes <= x->bytes - off ? x->base + off : 0;
}

union room {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(SPREAD_SEGMENTS_MAX * sizeof(int))];
};

ssize_t segments_send(const struct segments *s, int fd, const void *p, size_t n)
{
	struct iovec v = { (void *)(uintptr_t)p, n };
	union room room = { .bytes = "" };
	struct msghdr m = { .msg_iov = &v,
			    .msg_iovlen = 1,
			    .msg_control = room.bytes,
			    .msg_controllen = CMSG_SPACE(s->n * sizeof(int)) };

	room.head.cmsg_level = SOL_SOCKET;
	room.head.cmsg_type = SCM_RIGHTS;
	room.head.cmsg_len = CMSG_LEN(s->n * sizeof(int));
	for (uint32_t i = 0; i < s->n; i++)
		memcpy(CMSG_DATA(&room.head) + i * sizeof(int), &s->at[i].fd, sizeof(int));
	return sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int segment_map(struct segments *s, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *p;

	if (s->n == SPREAD_SEGMENTS_MAX || seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    fstat(fd, &st) < 0 || st.st_size <= 0)
		return -EBADMSG;
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -EBADMSG;
	s->at[s->n++] = (struct spread_segment){ -1, (uintptr_t)p, (uint64_t)st.st_size };
	return 0;
}

ssize_t segments_recv(struct segments *s, int fd, void *p, size_t n)
{
	struct iovec v = { p, n };
	union room room;
	struct msghdr m = { .msg_iov = &v,
			    .msg_iovlen = 1,
			    .msg_control = room.bytes,
			    .msg_controllen = sizeof room.bytes };
	bool mapped = s->n > 0;
	ssize_t got = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	size_t fds = c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS
			     ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int)
			     : 0;
	int rc = fds && mapped ? -EBADMSG : 0;

	for (size_t i = 0; i < fds; i++) {
		int x;

		memcpy(&x, CMSG_DATA(c) + i * sizeof x, sizeof x);
		rc = rc == 0 ? segment_map(s, x) : rc;
		(void)close(x);
	}
	if (got <= 0 || rc == 0)
		return got;
	errno = -rc;
	return -1;
}

void segments_unmap(struct segments *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		(void)munmap((void *)(uintptr_t)s->at[i].base, s->at[i].bytes);
	s->n = 0;
}
