/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread_socket.h - the four calls of transport.h over stream sockets between processes of a host.
 * Each message has a header, so that ranks whose schedules differ end with an error instead of
 * taking bytes for others. What a peer sends that is no message is found when its next message is
 * expected, and by a round in which this rank neither sends nor receives.
 *
 * Bytes pass through the socket, which copies them twice and takes pages for them; or the sender
 * shares the memory in which they lie and sends where they are, and the receiver copies them from
 * there once and reports that it has.
 */
#ifndef CKPT_SPREAD_SPREAD_SOCKET_H
#define CKPT_SPREAD_SPREAD_SOCKET_H
#include "ckpt/spread/transport.h"

/*
 * fd: [world] connected stream sockets, fd[i] to rank i; -1 where there is none (this rank's own, a
 * rank with which nothing is exchanged). They belong to the transport if this succeeds: close
 * closes them. -ENOMEM.
 */
int spread_socket_open(uint32_t rank, uint32_t world, const int *fd, struct spread_transport **ret,
		       struct ckpt_err *err);
/*
 * Memory of this process that its peers may map and read: memfds with F_SEAL_SHRINK, mapped here
 * from their beginnings. What is sent out of it, and is no less than SPREAD_SHARED_MIN, is not
 * copied into the socket. To be called before the first send; the memory stays until close. The
 * descriptors are borrowed until then.
 */
#define SPREAD_SEGMENTS_MAX 4u
#define SPREAD_SHARED_MIN 4096u /* less costs more to announce than to copy */
struct spread_segment {
	int fd;
	uint64_t base, bytes;
};
void spread_socket_share(struct spread_transport *t, const struct spread_segment *segment,
			 uint32_t n);
#endif
