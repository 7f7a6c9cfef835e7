/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marked.h - a step in its store, and what was said about it there: held, tagged, verified,
 * quarantined. For hold, release, tag, verify, show and ls.
 */
#ifndef CKPT_CLI_MARKED_H
#define CKPT_CLI_MARKED_H
#include "ckpt/cli/cli.h"
#include "ckpt/store/mark.h"
#include "ckpt/store/store.h"

/* A step that was named, where it is at home. */
struct marked {
	struct store s; /* by hand, for marks */
	struct store_step step;
	void *steps;	/* what the scan gave: step's notes lie behind it */
	char dir[4096]; /* of the job, absolute */
};

/*
 * The step of its job's directory that ref leads to. 0; 1: it is in no store (a copy, a converted
 * one), so that nothing can be said about it; -errno. marked_close after 0.
 */
int marked_find(const struct io_ops *ops, const struct store_ref *ref, struct marked *ret,
		struct ckpt_err *err);
/* The same without looking at the step: of it only the entry's name is known. 1: nothing is open, and
 * no mark is this step's. */
int marked_home(const struct io_ops *ops, const struct store_ref *ref, struct marked *ret,
		struct ckpt_err *err);
void marked_close(struct marked *m);
/* 32 hexadecimal digits; what is none counts as 0. */
void marked_id(const char *hex, uint8_t ret[16]);
/* store_resolve and marked_find for verbs that say something about a step: tells what fails, and
 * prints the note of a "latest" that passed over others. Returns an exit code; CLI_OK: ref's
 * step_fd is the caller's to close. */
int marked_get(struct cli *c, const char *name, struct store_ref *ref, struct marked *ret);

/* Tell that a mark could not be changed. Returns the exit code. */
int marked_tell(struct cli *c, int rc, const struct ckpt_err *err);

/* Root may write everywhere, but what it writes into another user's job (files are 0600) they could not
 * read: -EPERM says who they are. */
int marked_owner(int job_fd, const char *path, struct ckpt_err *err);
/* The next command then. */
#define MARKED_NEXT_OWNER "run ckptctl as that user: sudo -u USER ckptctl ..."

/* The name that holds are made by where none is given: user-host, as far as a name can say it. */
void marked_name(char ret[STORE_MARK_NAME_MAX + 1]);
/* "6h", "7d", "2w" from now on, or RFC 3339: "2026-11-22T18:00:00Z". -EINVAL says what it can be;
 * so does a time that is over. */
int marked_until(const char *text, uint64_t now_ns, uint64_t *ret_ns, struct ckpt_err *err);
/* "committed", "set-aside", ...: the word that all verbs have for it. */
const char *marked_state(enum store_state state);
/* "latest, tag best, held by eval-17 (5h left), verified": what stands about a step, for people. Of
 * longer names name_max characters are printed; 0: all, and why it is quarantined. */
void marked_print(const struct store_step *st, const struct store_mark *mark, uint32_t n,
		  uint64_t now_ns, bool latest, uint32_t name_max, char *buf, size_t bytes);
/* The same for programs: the members holds, tags, verified, bad and adopted of the open object. */
void marked_put(struct output *o, const struct store_step *st, const struct store_mark *mark,
		uint32_t n, uint64_t now_ns);
#endif
