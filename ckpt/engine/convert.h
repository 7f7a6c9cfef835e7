/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.h - a checkpoint written again, in another format or on another mesh, in bounded memory.
 * Windows of the source (ckpt/move/move.h) go into the files that a format's sheet describes, all
 * of them at once where their buffers fit, else in batches.
 *
 * What is made depends on the source, the target and what is wanted of the format: the same
 * conversion gives the same bytes. It appears by one rename (io/publish.h), after the format itself
 * has opened it: then its tensors are those of the sheet, and fingerprints are equal wherever both
 * sides know them. Each tensor's fingerprint is made on the way.
 *
 * A journal is written after what it says was synced. Another run with the same arguments continues
 * from there, whatever ended the first: Ctrl-C, SIGKILL, a full disk, a power loss. One of another
 * source, or of a source that has changed, is refused.
 *
 * Memory: a buffer of 1 MiB for each file with chunks that is open, and eight more, or sixteen for
 * other files; the rest of mem_limit is for windows and for the decoders of what is compressed.
 */
#ifndef CKPT_ENGINE_CONVERT_H
#define CKPT_ENGINE_CONVERT_H
#include "ckpt/engine/engine.h"
#include <limits.h>

#define CONVERT_MEM_MIN (40u << 20) /* and move_decoder_bytes of the source */

struct engine_convert {
	/* Its checkpoint may be one that is seen through a view, or some of its tensors. */
	const struct opened *src;
	/* Of target_make, with the tensors of src->ckpt; one whose dtype differs there is cast. */
	const struct table *target;
	const struct format *to;
	/* Of facts all but attributes is taken as it is; uuid is made here. */
	struct format_want want;
	const char *dst;
	bool file;	     /* dst is one file; else a directory */
	const char *source;  /* what sentences call the source: "id 0123..", "/models/a" */
	const char *options; /* what else decides what is made, in the words of the command; "" */
	uint64_t journal_ns; /* at least so long between two journals; 0: after every window */
	bool dry;	     /* only find out what would be made */
	bool drop;	     /* leave out what the format cannot hold */
	bool check;	     /* read every byte of the result again */
	bool once;	     /* without a journal: nothing is left for another run to continue */
	uint64_t *overflow;  /* [target->ntensor], zero: elements that became infinite; NULL: no */
	/* What will be made, before anything is. May be NULL. */
	void (*planned)(void *arg, const struct sheet *s);
	/* Asked once, when it is known what an earlier run has done: `ret` of engine_convert as it
	 * is then. May be NULL. */
	void (*begun)(void *arg);
	void *begun_arg;
};

struct converted {
	uint64_t bytes;	       /* of all tensors' elements and blobs that are read */
	uint64_t before;       /* of them, done by an earlier run */
	uint64_t made_bytes;   /* of the same elements and blobs as they are written: after casts */
	uint64_t stored_bytes; /* of the files; of a dry run at most */
	uint32_t nfile, batch; /* batch: files that are written at once */
	uint32_t ntensor;
	uint32_t nprint;    /* tensors whose fingerprints were compared with the source's */
	uint32_t nmade;	    /* tensors of which the source has none: they were made on the way */
	uint32_t ndropped;  /* tensors that the format cannot hold */
	uint32_t nunsaid;   /* attributes that it cannot say */
	uint64_t noverflow; /* elements that became infinite in a cast */
	bool resumed;	    /* something of an earlier run is used */
	bool restarted;	    /* an earlier run had left nothing that can be used */
	bool kept;	    /* after an error: what is done stays, and can be continued */
	bool source_failed; /* after an error: reading did, not writing */
	char id[40];	    /* of what was made; "": the format has none */
	char partial[PATH_MAX + NAME_MAX + 36]; /* where it is collected; "": nowhere */
};

/*
 * cannot: a line for each tensor or attribute that the format cannot hold, and why. -EMEDIUMTYPE: there are
 * such, and not drop. -EEXIST: dst is taken; -EBUSY: another run is at it; -EINVAL: dst is
 * impossible, or in a checkpoint, too little memory, or an earlier run to dst is of another
 * conversion (all differences in err); -ENOSPC;
 * -ESTALE: the source has changed meanwhile, and nothing is kept; -EBADMSG: damage in the source,
 * or a fingerprint that differs; -ECANCELED: tick said so. Nothing of it is at dst after an error.
 */
int engine_convert(const struct engine *e, const struct engine_convert *c, struct converted *ret,
		   struct ckpt_errlist *cannot, struct ckpt_err *err);
#endif
