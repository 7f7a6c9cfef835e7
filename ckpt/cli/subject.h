/* SPDX-License-Identifier: Apache-2.0 */
/* subject.h - the checkpoint that a verb is about: found by its name, recognised by its format,
 * opened as a table. */
#ifndef CKPT_CLI_SUBJECT_H
#define CKPT_CLI_SUBJECT_H
#include "ckpt/cli/cli.h"
#include "ckpt/engine/named.h"
#include "ckpt/engine/verify.h"
#include "ckpt/store/store.h"
#include "formats/format.h"
#include <limits.h>

/* Which step it is by its own metadata, where it cannot be opened. */
struct subject_brief {
	char job[CKPT_JOB_MAX + 1];
	uint64_t step, stored_bytes;
};

struct subject {
	const struct io_ops *ops;
	struct store_ref ref;	    /* step_fd -1: not found */
	bool is_step;		    /* a store found it: its format is the one of stores */
	const struct format *force; /* of a path: --from; NULL */
	char entry[NAME_MAX + 1];   /* a file in the directory step_fd; "": the directory */
	uint32_t flags;		    /* set before subject_open: of source_make */
	struct opened o;
	const struct format *format; /* NULL: not known yet */
	bool partial;		  /* set before subject_open: as open_partial of formats/format.h */
	format_choose_fn *choose; /* the same: as open_some; NULL: all */
	void *choose_arg;
	struct checkpoint *ckpt; /* of o; NULL: its metadata cannot be read */
};

/* Find what name means: a step ("latest", "step:12") below `where`, or a path, where the formats
 * are asked, or none but force (NULL: --from was not given). 0, or what store_resolve or
 * engine_find returned. */
int subject_find(struct subject *s, const struct io_ops *ops, const char *where, const char *name,
		 const struct format *force, struct ckpt_err *err);
#define FROM_HELP "the format of a CKPT that is a path, if ckptctl takes it for another"
/* The format that --from forces; NULL: none. -EINVAL: there is no such format. */
int subject_from(struct cli *c, const struct format **ret, struct ckpt_err *err);
/* The same with a step's directory that is open already; takes step_fd. */
void subject_take(struct subject *s, const struct io_ops *ops, int step_fd, const char *path);
/*
 * Read its metadata; faults as format.h says. -EBADMSG for whatever is wrong with the checkpoint;
 * other errors are the reader's: -EACCES, -ENOMEM, -EPROTONOSUPPORT, ... -ESTALE: what was found by
 * a step's name is another checkpoint by now.
 */
int subject_open(struct subject *s, format_fault_fn *fault, void *arg, struct ckpt_err *err);
/* Read all that v asks for (engine/verify.h), with the same faults. Errors as of engine_verify. */
int subject_verify(struct subject *s, const struct engine *e, const struct engine_verify *v,
		   format_fault_fn *fault, void *arg, struct engine_verified *ret,
		   struct ckpt_err *err);
/* After subject_open failed: what is still known. false: nothing. */
bool subject_brief(const struct subject *s, struct subject_brief *ret);
/* The next command where a store is not for this user to read. */
#define CLI_HINT_UNSEEN \
	"some files could not be read: it is not known how many bytes other steps share"
#define CLI_NEXT_USER "run ckptctl as the user that wrote it: ls -ld shows its name"

/* What a name passed over on its way ("latest" and steps that are damaged, quarantined or
 * misplaced), on stderr, if anything; the command ends with 3 then, where it would with 0. With
 * --json it is an error with this code; a remark has the code 0. */
void subject_note(struct cli *c, const struct store_ref *ref);
/* Print that one of these failed for `name`, and what to do next. Returns the exit code. */
int subject_tell(struct cli *c, int rc, const struct ckpt_err *err, const char *name);
/* The same of one that was found, and then could not be read. */
int subject_tell_read(const struct subject *s, struct cli *c, int rc, const struct ckpt_err *err,
		      const char *name);
/* subject_find and subject_open for verbs that want a whole checkpoint: prints the failure,
 * returns an exit code. */
int subject_get(struct cli *c, const char *name, struct subject *s);
/* The same for verbs that need some of the data, as open_some of formats/format.h (all of it where
 * the format cannot). choose prints why itself when it refuses, with -ECANCELED: then -1. */
int subject_get_some(struct cli *c, const char *name, format_choose_fn *choose, void *arg,
		     struct subject *s);
void subject_close(struct subject *s);
/* The directory of a job that is open, as a store: for callbacks of store_jobs. */
struct store subject_store(const struct io_ops *ops, const char *job, int job_fd);
/* Is it a step directory that was given where a store belongs? */
bool subject_is_checkpoint(struct cli *c, const char *path);

/* "step 12 of demo", or the last part of its path where a checkpoint has no step: in titles and
 * messages. Returns buf. */
#define SUBJECT_TITLE (NAME_MAX + 1)
char *subject_title(const struct checkpoint *k, const char *path, char *buf);
/* The same in short, for messages and progress lines: "step 12". */
char *subject_short(const struct checkpoint *k, const char *path, char *buf);
/* Its step, world, job: nothing where the format knows none (HAS_STEP). */
struct cell subject_step(const struct checkpoint *k);
struct cell subject_world(const struct checkpoint *k);
struct cell subject_job(const struct checkpoint *k);
/* For programs: the members path, job and step of the open object. */
void subject_put(struct output *o, const char *path, const struct checkpoint *k);

#endif
