/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asker.h - the daemon's protocol by hand, for tests: connect, ask, read the answer or the report.
 * What must hold and does not ends the program.
 */
#ifndef TESTS_ASKER_H
#define TESTS_ASKER_H
#include "ckpt/base/util.h"
#include "ckpt/wire/wire.h"
#include "tests/lib/rank.h"
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

struct asker {
	int sock;
	uint32_t seq, asked;	    /* asked: the newest request's type */
	struct wire_refuse refused; /* the newest refusal */
	void *map;
	uint64_t bytes, inode; /* of the report */
	struct wire_report r;
};

int ask_connect(const char *path);
void ask_send(struct asker *k, void *msg, uint32_t type, uint32_t bytes);
/* The answer: its type, 0 at the end of the connection. ret_fd: NULL, or gets what came with it. */
uint32_t ask_answer(struct asker *k, void *ret, uint32_t bytes, int ret_fd[WIRE_FDS_MAX]);
uint32_t ask(struct asker *k, void *msg, uint32_t type, uint32_t bytes, void *ret,
	     uint32_t ret_bytes);
/* The same with a descriptor, -1: none. 0 also where the daemon hears nothing any more. */
uint32_t ask_fd(struct asker *k, void *msg, uint32_t type, uint32_t bytes, int fd, void *ret,
		uint32_t ret_bytes, int ret_fd[WIRE_FDS_MAX]);
/* A refusal with that code: its sentence. */
const char *ask_refused(struct asker *k, void *msg, uint32_t type, uint32_t bytes, int code);

/* --- control connections --- */
void ask_open(struct asker *k, const char *path);
/* Where a crowd connects, who was slow to speak may be sent away, and comes again. */
void ask_open_in_a_crowd(struct asker *k, const char *path);
void ask_close(struct asker *k);
const struct wire_report *ask_status(struct asker *k);
/* The job of this name in a fresh report; NULL. */
const struct wire_report_job *ask_job(struct asker *k, const char *name);
/* In the newest report. */
const struct wire_report_step *ask_step(const struct asker *k, uint64_t step);
uint64_t ask_id(struct asker *k, const char *job);
uint32_t ask_trigger(struct asker *k, const char *job, uint32_t flags, struct wire_triggered *ret);
uint32_t ask_forget(struct asker *k, uint64_t job, uint32_t flags, struct wire_forgotten *ret);
/* job, to: NULL: all, their own stores */
uint32_t ask_drain(struct asker *k, const char *job, const char *to, uint32_t flags,
		   struct wire_drained *ret);
#define ask_until must_soon
#endif
