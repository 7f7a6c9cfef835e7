/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread_segment.h - memory that a process shares with its peers, and memory of a peer that was
 * mapped. For ckpt/spread only. Peers are not trusted: a mapping is read-only, its file cannot
 * become shorter (a seal), and every stretch of it is checked before it is read.
 */
#ifndef CKPT_SPREAD_SPREAD_SEGMENT_H
#define CKPT_SPREAD_SPREAD_SEGMENT_H
#include "ckpt/spread/spread_socket.h"
#include <stdbool.h>
#include <sys/types.h>

/* What a process shares, or has mapped of a peer (fd is -1 then). */
struct segments {
	uint32_t n;
	struct spread_segment at[SPREAD_SEGMENTS_MAX];
};

/* Does it lie in one of them? *ret_segment, and how far from its beginning. */
bool segments_find(const struct segments *s, uint64_t at, uint64_t bytes, uint32_t *ret_segment,
		   uint64_t *ret_off);
/* The address of it; 0: no segment has all of that. */
uint64_t segments_at(const struct segments *s, uint64_t segment, uint64_t off, uint64_t bytes);

/* As send(2) and recv(2) do it, without waiting, with descriptors beside the first byte. */
ssize_t segments_send(const struct segments *s, int fd, const void *p, size_t n);
/* Those that come are mapped into s if it is empty. -1 with errno; EBADMSG: what came cannot be
 * mapped. */
ssize_t segments_recv(struct segments *s, int fd, void *p, size_t n);
void segments_unmap(struct segments *s);
#endif
