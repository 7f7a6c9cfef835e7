/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - is every byte of a checkpoint as it was written? Bytes with a sum are compared with it;
 * bytes without one are only read.
 */
#ifndef CKPT_ENGINE_VERIFY_H
#define CKPT_ENGINE_VERIFY_H
#include "ckpt/engine/open.h"

/* A fault of a checkpoint as one error: -EBADMSG, but errors that prove no damage stay as they are
 * (-EACCES, -ENOMEM, -EPROTONOSUPPORT, -ECANCELED, ...). */
int engine_damage(int rc);

/* Files that several checkpoints of one run share are read once: one for all of them,
 * zero-initialised. */
struct engine_shared;
void engine_shared_free(struct engine_shared *s);

struct engine_verify {
	bool data;		      /* read them, too; else what engine_open checks is all */
	struct move_subset subset;    /* of the data; skip is engine_verify's */
	double percent;		      /* > 0: subset.bytes becomes so much of the data */
	uint64_t buffer_bytes;	      /* of move_verify; 0: what is fast */
	struct engine_shared *shared; /* NULL: every file is read */
	/* Called once, after the metadata are read and before `bytes` of data are; may be NULL. */
	void (*begin)(void *arg, const struct checkpoint *k, uint64_t bytes);
	void *arg;
};
struct engine_verified {
	struct move_verified data; /* of the files before, too */
	uint64_t bytes;		   /* that were read, metadata included */
	uint64_t
		before_bytes; /* of the data: read with an earlier checkpoint that shares the file */
	/* Bytes of all files that are not lost. summed: compared with a sum, or with zero where
	 * they must be zero. unsummed: no sum covers them. Padding that means nothing is neither.
	 * Where no data were read: what would be. */
	uint64_t summed, unsummed;
	uint64_t nfault, nunread,
		nodd; /* faults; nunread: of them, what could not be read; and bytes that
					 * should be zero and harm nothing */
	bool damaged; /* a sum was wrong */
};
/*
 * Opens a checkpoint and reads its data, from the disk. Every fault goes to s->how.fault, and none
 * ends it: with s->how.partial the data of files that could be opened are read whatever is wrong
 * with others. 0; -EBADMSG: there are faults, or the error's code says what else is wrong;
 * -ECANCELED: e->tick returned != 0; errors that engine_damage does not count as damage; -ESTALE as of engine_open. o is to be closed in any case. ret is what was done,
 * also after an error.
 */
int engine_verify(const struct engine *e, const struct engine_subject *s,
		  const struct engine_verify *v, struct opened *o, struct engine_verified *ret,
		  struct ckpt_err *err);

struct engine_check {
	int fd;			     /* a step's directory; the caller's */
	const char *path;	     /* for sentences */
	const struct format *format; /* of it */
	uint64_t buffer_bytes;	     /* of move_verify; 0: what is fast */
	/* Called once, after its metadata are read and before the data are; may be NULL. */
	void (*begin)(void *arg, const struct checkpoint *k, uint64_t bytes);
	void *arg;
};
struct engine_checked {
	uint64_t bytes;	 /* that were read */
	uint64_t nfault; /* faults found; err describes the first one */
};
/*
 * Every byte of a step, from the disk, compared with every checksum there is, with one answer: for
 * what is deleted, released or built anew because of it. 0: all bytes of all files were read and
 * are right; -EBADMSG,
 * -EPROTO, -EUCLEAN: it is damaged, err names the first fault; -EIO: no fault was found, but
 * something could not be read, so there is no answer; -ECANCELED: e->tick returned != 0; others.
 * ret may be NULL.
 */
int engine_check(const struct engine *e, const struct engine_check *x, struct engine_checked *ret,
		 struct ckpt_err *err);
#endif
