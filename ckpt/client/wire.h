/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the messages between libckpt and ckptd on a SOCK_SEQPACKET socket of one user on one
 * host. This header is the specification. Integers are the host's own; both ends are on it.
 *
 * The client asks, the daemon answers once; the daemon never speaks unasked. Anything long is a
 * sealed memfd that travels as a descriptor. An unknown type or flag, a message that is too short
 * or too long, or a wrong number of descriptors ends the session (EPROTO).
 *
 *   HELLO + store directory            -> WELCOME + rank page, job page, doorbell   | REFUSE
 *   SEGMENT + memfd                    -> OK                                        | REFUSE
 *   ADOPT + memfd                      -> OK                                        | REFUSE
 *   DECLARE + memfd                    -> SEALED + one memfd per slot               | REFUSE
 *   RESTORE                            -> RESTORED + memfd of blobs                 | REFUSE
 *   STEPS                              -> STEPS_ARE                                 | REFUSE
 *   BYE                                -> OK
 *
 * Segments are created by the client (so that memory exists without a daemon and outlives it),
 * slots by the daemon; both ends keep the descriptors of both, so that either may die. A memfd is
 * accepted only with F_SEAL_SHRINK|F_SEAL_GROW set, a declaration with F_SEAL_WRITE too.
 *
 * After a daemon's death the client attaches to the next one with WIRE_REATTACH and the generation
 * that it had, offers its segments again, offers (ADOPT) each slot of which it knows what it holds,
 * and declares. A step that every rank offers as copied, in the same slot, with the same epoch, is
 * staged again.
 */
#ifndef CKPT_CLIENT_WIRE_H
#define CKPT_CLIENT_WIRE_H
#include "ckpt/ckpt.h"

#define WIRE_MAGIC 0x64706b63u
#define WIRE_ABI 1
#define WIRE_BYTES_MAX 8192u
#define WIRE_FDS_MAX 4
#define WIRE_TEXT_MAX 4092
#define WIRE_SLOTS_MAX 4
#define WIRE_SEGMENTS_MAX 4096 /* per rank: one mapping each */
#define WIRE_STEPS_MAX 128
#define WIRE_WORLD_MAX 4096 /* local ranks of one job */

enum wire_type {
	WIRE_HELLO = 1,
	WIRE_SEGMENT,
	WIRE_ADOPT,
	WIRE_DECLARE,
	WIRE_RESTORE,
	WIRE_STEPS,
	WIRE_BYE,
	WIRE_WELCOME = 32,
	WIRE_REFUSE,
	WIRE_OK,
	WIRE_SEALED,
	WIRE_RESTORED,
	WIRE_STEPS_ARE,
};

/* bytes: of the whole message */
struct wire_head {
	uint32_t magic;
	uint16_t abi, type;
	uint32_t bytes, seq;
};

enum { WIRE_REATTACH = 1 }; /* hello.flags */
struct wire_hello {
	struct wire_head head;
	uint32_t flags, rank, world, nslot;
	uint64_t generation; /* 0: the daemon counts */
	/* the same for all ranks of one launch: parent process and its start time; 0 unknown */
	uint64_t launch;
	uint64_t memory_max;
	uint64_t base; /* 1 + the step that this launch restored; 0: none (yet) */
	char job[CKPT_JOB_MAX + 8];
};
struct wire_welcome {
	struct wire_head head;
	uint64_t generation;
	uint32_t nslot, pad;
};
/* code: negative errno */
struct wire_refuse {
	struct wire_head head;
	int32_t code;
	char text[WIRE_TEXT_MAX];
};
struct wire_ok {
	struct wire_head head;
};

/* id: the place number in declarations */
struct wire_segment {
	struct wire_head head;
	uint32_t id, pad;
	uint64_t bytes;
};

/* Slot `slot` holds this rank's part of `step`, copied whole under `epoch`, marked with `flags`; or
 * (step UINT64_MAX) nothing of use. */
struct wire_adopt {
	struct wire_head head;
	uint32_t slot, epoch, flags, pad;
	uint64_t bytes, step, mark_ns;
};

/* The memfd: a container (kind DECLARATION) with the sections of table/codec.h; place i is segment
 * i. */
struct wire_declare {
	struct wire_head head;
	uint32_t epoch, pad;
	uint64_t bytes;
};
struct wire_sealed {
	struct wire_head head;
	uint32_t epoch, nslot;
	uint64_t slot_bytes;
};

struct wire_restore {
	struct wire_head head;
	uint32_t flags, epoch;
	uint64_t step, deadline_ns;
	char only[CKPT_NAME_MAX + 8];
};
struct wire_restored {
	struct wire_head head;
	uint64_t step, blob_bytes;
	uint32_t where, world_saved, ntensor, nmissing;
	char id[40];
};
/* The blob memfd: uint64_t n, then n x wire_blob, then names (zero-terminated) and bytes, at
 * offsets from the start. */
struct wire_blob {
	uint64_t name_at, at, len;
	uint32_t rank, pad;
};

struct wire_steps {
	struct wire_head head;
};
struct wire_steps_are {
	struct wire_head head;
	uint32_t n, pad;
	struct ckpt_step step[WIRE_STEPS_MAX];
};
struct wire_bye {
	struct wire_head head;
	uint64_t pad;
};

/* Send one message with nfd descriptors. 0, -EPIPE/-ECONNRESET when the peer is gone, -EAGAIN.
 * Never raises SIGPIPE. */
int wire_send(int sock, void *msg, uint32_t type, uint32_t bytes, uint32_t seq, const int *fd,
	      int nfd);

/*
 * Receive one message of at most `bytes` into buf (a union of what may come). Descriptors are
 * CLOEXEC, in ret_fd[WIRE_FDS_MAX], unused ones -1. Returns its length after checking magic, abi
 * and head.bytes; 0 at end of file; -EAGAIN; -EPROTO with everything closed.
 */
int wire_recv(int sock, void *buf, uint32_t bytes, int *ret_fd, int *ret_nfd);
void wire_close_fds(int *fd, int nfd);

/* Does a request have exactly the size and number of descriptors of its type? 0 or -EPROTO. Pure:
 * fuzzed. */
int wire_request_check(const void *msg, uint32_t bytes, int nfd);

/* Map a peer's memfd after checking that it is a regular memfd with SHRINK|GROW (and, for
 * read_only, WRITE) sealed and exactly `bytes` long. */
int wire_map(int fd, uint64_t bytes, int read_only, void **ret_ptr, struct ckpt_err *err);
/* A new memfd of `bytes`, fallocated (not touched), sealed SHRINK|GROW|SEAL. */
int wire_memfd(const char *name, uint64_t bytes, int *ret_fd, struct ckpt_err *err);

/* The default socket of this user; buf of 108 bytes. make: create its directory 0700. -EACCES when
 * the directory belongs to another user. */
int wire_socket_path(char *buf, int make, struct ckpt_err *err);
#endif
