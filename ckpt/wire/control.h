/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the asking end of a control connection (wire.h): connect to a daemon, ask it, check
 * its answers, find the job that a name means. A struct control belongs to one thread.
 */
#ifndef CKPT_WIRE_CONTROL_H
#define CKPT_WIRE_CONTROL_H
#include "ckpt/wire/wire.h"

#define CONTROL_ANSWER_NS \
	(5 * NS_PER_S)		 /* a daemon that works answers a question within this time */
#define CONTROL_LAST_NS NS_PER_S /* after control_open's `until` a call waits no longer than this */

/* What a store or a job directory says about the job that is meant. */
enum control_bound {
	CONTROL_HINT,	/* of several jobs that are meant, the one below it is */
	CONTROL_ALONE,	/* if no job is named, only those below it; else as HINT */
	CONTROL_ALWAYS, /* only those below it. A name that is a path says where by itself */
};

/* What a caller has been given. Strings are borrowed for as long as the connection is used. */
struct control_at {
	const char *socket; /* NULL: this user's own daemon */
	const char *where;  /* a store or a job directory; NULL: none */
	enum control_bound bound;
	bool (*stopped)(void); /* has the process been asked to stop? NULL: never */
};

struct control {
	struct control_at at;
	char socket[108];
	int sock; /* -1: not connected */
	uint32_t seq;
	uint64_t until; /* when the caller wants to end, CLOCK_MONOTONIC; 0: no limit */
	void *map;	/* of the report */
	uint64_t map_bytes;
	struct wire_report report; /* head NULL before control_report */
};

/* Connects. -ECONNREFUSED: no daemon listens there; -EACCES: it belongs to another user; -EINVAL:
 * the path cannot be a daemon's socket. k->socket is set in any case. After an error k is closed.
 * The daemon has CONTROL_ANSWER_NS for each answer; after `until`, if it is not 0, it has
 * CONTROL_LAST_NS. */
int control_open(struct control *k, const struct control_at *at, uint64_t until,
		 struct ckpt_err *err);
void control_close(struct control *k);
/* The deadline of an answer that takes the daemon no work. */
uint64_t control_soon(const struct control *k);
/* Sends one request, with this descriptor (-1: none), and copies its answer to *answer, the
 * descriptor that comes with it to *ret_fd; both may be NULL. until: CLOCK_MONOTONIC; 0: no limit.
 * -ECANCELED: the process was asked to stop. After -ETIMEDOUT and -ECONNRESET the connection cannot
 * be used any more. Other errors are the daemon's own sentences. */
int control_call(struct control *k, void *msg, enum wire_type type, int fd, void *answer,
		 int *ret_fd, uint64_t until, struct ckpt_err *err);
/* The daemon's report of its present state, checked, in k->report until the next call or
 * control_close. */
int control_report(struct control *k, struct ckpt_err *err);

/*
 * Which jobs of the report are meant. name: NULL, NAME, a path STORE/NAME, or the path of a store.
 * is_selected: does the name, or the directory, choose among the jobs? Then a job that ckptd does
 * not have is an error; else every job is meant.
 */
bool control_is_selected(const struct control *k, const char *name);
bool control_is_meant(const struct control *k, const char *name, uint32_t index);
/* The one that is meant. -ENOENT, -ENOTUNIQ: the sentence lists the jobs. */
int control_job(const struct control *k, const char *name, uint32_t *ret_index,
		struct ckpt_err *err);
/* A moment of CLOCK_MONOTONIC in the report as time of day; 0: never. */
uint64_t control_wall(const struct wire_report *r, uint64_t ns);
/* Would the step stay in memory if the trainer died now? */
bool control_is_staged(const struct wire_report_step *s);
/* Of a job of the report, the staged step with the newest mark; NULL: none. */
const struct wire_report_step *control_staged(const struct wire_report *r, uint32_t job);
#endif
