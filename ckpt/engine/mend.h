/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mend.h - a checkpoint of which tensors of class const are damaged, with these tensors from other
 * checkpoints of its job. Such tensors never change, so another checkpoint may have the same
 * elements in a file of its own: of an older launch, or written anew since. Called by the daemon
 * for a restore that found damage.
 *
 * A tensor is taken from another checkpoint if both say the same of it: name, dtype, shape and
 * fingerprint (which does not depend on layout and mesh). Before it is taken, every byte of it there
 * is read from the disk: its chunks must have their sums, its pieces their fingerprints, and these
 * must add up to the fingerprint that the damaged checkpoint's own metadata have. Whoever reads it
 * afterwards compares the sums of the chunks again. So a rank gets what the damaged checkpoint had.
 *
 * Not mended: tensors of other classes, tensors with a pending reduction or without a fingerprint.
 */
#ifndef CKPT_ENGINE_MEND_H
#define CKPT_ENGINE_MEND_H
#include "ckpt/engine/open.h"

/* The next checkpoint that may have them. 1: *ret, to be read until the next call; 0: there is
 * none; < 0: that ends it. */
typedef int mend_next_fn(void *arg, struct engine_subject *ret, struct ckpt_err *err);

struct mended {
	struct opened
		base; /* its table has pieces in files of the donors, as if they were its own */
	struct mend_donor {
		struct opened opened;
		int fd;		/* its directory: this struct's */
		uint32_t first; /* its file i is file first + i of base */
	} * donor;
	uint32_t ndonor, ntensor; /* ntensor: that were taken from them; 0: nothing is damaged */
	char said[400];		  /* "model/w and 3 more from step 12", ... */
};
/*
 * As engine_open, and every byte of the files with const tensors is read. 0: all metadata are
 * right, and so are all const tensors, as they are here. Errors as of engine_open and move_verify;
 * -EBADMSG: tensors are damaged that no other checkpoint has; err names the first one. s->how:
 * choose and fault do not count. After an error there is nothing to close.
 */
int mend_open(const struct engine *e, const struct engine_subject *s, mend_next_fn *next, void *arg,
	      struct mended *ret, struct ckpt_err *err);
/* Its files, for reading: as move_open. */
int mend_files(const struct engine *e, const struct mended *m, struct move_files *ret,
	       struct ckpt_err *err);
void mend_close(struct mended *m);
#endif
