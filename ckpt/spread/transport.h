/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.h - bytes from rank to rank, in rounds. Four calls, whatever carries the bytes: sockets
 * between the processes of a host (spread_socket.h), or NCCL between GPUs (ckpt/nccl). Who walks
 * over a schedule with them: spread.h.
 *
 * In a round, a rank notes what it sends and what it receives (send, recv), and round_end moves all
 * of it. Between two ranks, sends and receives match by their order: the n-th send of one is the
 * n-th receive of the other, has as many bytes, and belongs to the same round of both. Two ranks
 * that exchange nothing in a round do not wait for each other. A rank does not send to itself.
 *
 * Memory: addresses are those of the transport (host memory, or a device's). What is sent must not
 * change, and what is received is not defined, until round_end has returned 0. How many bytes a
 * round has is the caller's choice; a transport keeps no copy of them.
 *
 * After an error only abort and close are allowed. Then what was received in that round is not
 * defined, and other ranks fail too: at the latest at their deadline. One thread.
 */
#ifndef CKPT_SPREAD_TRANSPORT_H
#define CKPT_SPREAD_TRANSPORT_H
#include "ckpt/base/error.h"
#include <stdint.h>

struct spread_transport;

struct spread_calls {
	/* 0, -ENOMEM, or what the carrier reports. */
	int (*send)(struct spread_transport *t, uint32_t peer, uint64_t from, uint64_t bytes,
		    struct ckpt_err *err);
	int (*recv)(struct spread_transport *t, uint32_t peer, uint64_t to, uint64_t bytes,
		    struct ckpt_err *err);
	/* deadline_ns: of now_ns(). 0; -ETIMEDOUT; -ECONNRESET: a rank has ended or aborted;
	 * -EPROTO: a rank sends something else than is expected. The sentence names the rank, where
	 * the carrier knows it, and the round. */
	int (*round_end)(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err);
	/* Ends the transport for all ranks. Does not wait. */
	void (*abort)(struct spread_transport *t);
	void (*close)(struct spread_transport *t);
};

struct spread_transport {
	const struct spread_calls *calls;
	uint32_t rank, world;
	uint64_t round; /* its number, for sentences: a walk sets it; the end of a round adds 1 */
};
#endif
