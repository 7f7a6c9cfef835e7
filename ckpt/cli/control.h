/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - ckptctl's end of a control connection (wire/wire.h): ask the daemon, check what it
 * answers, find the job that is meant.
 */
#ifndef CKPT_CLI_CONTROL_H
#define CKPT_CLI_CONTROL_H
#include "ckpt/cli/cli.h"
#include "ckpt/wire/wire.h"

#define CONTROL_ANSWER_NS (5 * NS_PER_S) /* what a daemon that lives may take to answer at once */
#define CONTROL_LAST_NS NS_PER_S /* and one who has no time left waits no longer than this */
#define CONTROL_SOCKET_HELP "the daemon's socket (default: $CKPTD_SOCKET, or this user's)"

struct control {
	struct cli *c;
	char socket[108];
	int sock; /* -1: not connected */
	uint32_t seq;
	uint64_t until; /* when the command wants to be over, CLOCK_MONOTONIC; 0: whenever */
	void *map;	/* of the report */
	uint64_t map_bytes;
	struct wire_report report; /* head NULL before control_report */
};

/* Connect to -S, $CKPTD_SOCKET, or the user's own daemon. -ECONNREFUSED (exit 14): nobody listens
 * there; -EACCES: another user's; -EINVAL: that cannot be a daemon's socket. k->socket is set in
 * any case. After an error k is closed. until: the daemon has CONTROL_ANSWER_NS for each answer,
 * but after that moment, where it is not 0, only CONTROL_LAST_NS. */
int control_open(struct control *k, struct cli *c, uint64_t until, struct ckpt_err *err);
void control_close(struct control *k);
/* When an answer that takes no work must be there. */
uint64_t control_soon(const struct control *k);
/* One request, one answer of type `want` into ret. until: CLOCK_MONOTONIC; 0: for ever.
 * -ECANCELED: the process was asked to stop. -ETIMEDOUT, -ECONNRESET: the connection is of no use
 * any more. Other errors are the daemon's own words. */
int control_call(struct control *k, void *msg, uint32_t type, uint32_t bytes, uint32_t want,
		 void *ret, uint32_t ret_bytes, int *ret_fd, uint64_t until, struct ckpt_err *err);
/* The same with a descriptor that goes along; -1: none does. */
int control_give(struct control *k, void *msg, uint32_t type, uint32_t bytes, int fd, uint32_t want,
		 void *ret, uint32_t ret_bytes, int *ret_fd, uint64_t until, struct ckpt_err *err);
/* What the daemon knows now, checked, in k->report until the next call or control_close. */
int control_report(struct control *k, struct ckpt_err *err);
/* Tell a failure of control_open or control_call, and how to start a daemon. Returns the exit
 * code. */
int control_fail(const struct control *k, int rc, const struct ckpt_err *err);

/* The job in the report that name means (NULL: the only one; else NAME, a path STORE/NAME, or the
 * path of a store), below -C where
 * that was given. Where several are meant: the one below CKPTD_STORE or the current directory.
 * -ENOENT (10), -ENOTUNIQ (2): the sentence lists what there is. */
int control_job(const struct control *k, const char *name, uint32_t *ret_index,
		struct ckpt_err *err);
/* A moment of CLOCK_MONOTONIC of the report as time of day; 0: never. */
uint64_t control_wall(const struct wire_report *r, uint64_t ns);
/* Would the step be there if the trainer died now? */
bool control_is_staged(const struct wire_report_step *s);
/* Of a job of the report the step that stays in memory if its trainer dies now, the newest mark of
 * those that are staged; NULL: none. */
const struct wire_report_step *control_staged(const struct wire_report *r, uint32_t job);
/* The argument of --timeout as a moment of CLOCK_MONOTONIC; 0: not given. -EINVAL. */
int control_until(struct cli *c, uint64_t *ret_until, struct ckpt_err *err);
/* Wait a moment, or until the process is asked to stop. */
void control_pause(uint64_t ns);
#endif
