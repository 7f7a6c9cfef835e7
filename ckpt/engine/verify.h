/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - is every byte of a checkpoint what was written? As far as anybody can know: bytes with a sum
 * are compared with it; of bytes without one is known that they can be read.
 */
#ifndef CKPT_ENGINE_VERIFY_H
#define CKPT_ENGINE_VERIFY_H
#include "ckpt/engine/engine.h"

/* Bytes of all files that were not lost, by what verify can say of them. summed: a sum covers them, or they
 * must be zero. unsummed: none does. Padding that means nothing is neither. */
struct engine_sums {
	uint64_t summed, unsummed;
};
struct engine_sums engine_sums(const struct checkpoint *k);

/* What is wrong with a checkpoint, as one error: -EBADMSG, but for what says nothing of it (-EACCES, -ENOMEM,
 * -EPROTONOSUPPORT, -ECANCELED, ...). */
int engine_damage(int rc);

struct engine_check {
	int fd;			     /* a step's directory; the caller's */
	const char *path;	     /* for sentences */
	const struct format *format; /* of it */
	uint64_t buffer_bytes;	     /* of move_verify; 0: what is fast */
	/* Asked once its metadata are read, before the data are; may be NULL. */
	void (*begin)(void *arg, const struct checkpoint *k, uint64_t bytes);
	void *arg;
};
struct engine_checked {
	uint64_t bytes;	 /* that were read */
	uint64_t nfault; /* that were found; the first one is told in err */
};
/*
 * Every byte of a step, from the disk, compared with every checksum there is, with one answer: for what is
 * deleted, released or built anew because of it. 0: all bytes of all files were read and are right; -EBADMSG,
 * -EPROTO, -EUCLEAN: it is damaged, err names the first fault; -EIO: nothing was found to be wrong, but
 * something could not be read, so that nobody knows; -ECANCELED: e->tick said so; others. ret may be NULL.
 */
int engine_check(const struct engine *e, const struct engine_check *x, struct engine_checked *ret,
		 struct ckpt_err *err);
#endif
