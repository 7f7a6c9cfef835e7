/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.h - a checkpoint written again, in another format or on another mesh, in bounded memory.
 * Windows of the source (ckpt/move/move.h) go into the files that a format's sheet describes, all
 * of them at once where their buffers fit, else in batches.
 *
 * The result depends on the source, the target and `want` alone: the same conversion gives the same
 * bytes. Each tensor's fingerprint is made on the way, and must equal the one that the source has.
 * Before the result appears, its own format opens it, and its tensors must be those of the sheet.
 * It appears by one rename (io/publish.h).
 *
 * A journal contains only what was synced before. Another run with the same arguments continues
 * from there, whatever ended the first run: Ctrl-C, SIGKILL, a full disk, a power loss. It refuses
 * the journal of another source, or of a source that has changed.
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
	/* Its checkpoint may be a view, or have some of the tensors only. */
	const struct opened *src;
	/* Of target_make, with the tensors of src->ckpt. A tensor with another dtype here is cast. */
	const struct table *target;
	const struct format *to;
	/* engine_convert adds attributes to facts, and makes uuid. */
	struct format_want want;
	const char *dst;
	bool file;	     /* dst is one file; else a directory */
	const char *source;  /* the source, for messages: "id 0123..", "/models/a" */
	const char *options; /* the other options of the command that change the result; "" */
	uint64_t journal_ns; /* the least time between two journals; 0: one after every window */
	bool dry;	     /* write nothing; only fill *ret */
	bool drop;	     /* leave out what the format cannot hold */
	bool check;	     /* read every byte of the result again */
	bool once;	     /* without a journal: no other run can continue */
	uint64_t *overflow;  /* [target->ntensor], zero: elements that became infinite; NULL: no */
	/* Called with the sheet before anything is written, also if nothing will be. A result < 0
	 * ends it, and err has the reason. May be NULL. */
	int (*planned)(void *arg, const struct sheet *s, struct ckpt_err *err);
	/* Called when all files are complete, right before they appear. As planned. */
	int (*ready)(void *arg, struct ckpt_err *err);
	/* Called once, when *ret has what an earlier run has done. May be NULL. */
	void (*begun)(void *arg);
	void *begun_arg;
};

struct converted {
	uint64_t bytes;	       /* of all tensors' elements and blobs that are read */
	uint64_t before;       /* of them, converted by an earlier run */
	uint64_t made_bytes;   /* of the same elements and blobs as they are written: after casts */
	uint64_t stored_bytes; /* of the files; of a dry run at most */
	uint32_t nfile, batch; /* batch: files that are written at once */
	uint32_t ntensor;
	uint32_t nprint; /* tensors whose fingerprints were compared with the source's */
	uint32_t
		nmade; /* tensors with a new fingerprint: cast, reduced, cut, or without one in src */
	uint32_t ndropped;  /* tensors that the format cannot hold */
	uint32_t nunsaid;   /* attributes that the format cannot hold */
	uint64_t noverflow; /* elements that became infinite in a cast */
	bool resumed;	    /* this run continues an earlier one */
	bool restarted;	    /* there was an earlier run, and nothing of it can be used */
	bool kept;	    /* after an error: another run can continue */
	bool source_failed; /* after an error: reading failed, not writing */
	char id[40];	    /* of the result; "": the format has none */
	char unfinished[PATH_MAX + NAME_MAX + 36]; /* the path before the rename; "": none */
};

/*
 * cannot: one line for each tensor or attribute that the format cannot hold, with the reason.
 * -EMEDIUMTYPE: there are such lines, and `drop` is not set. -EEXIST: dst exists; -EBUSY: another
 * run writes to it; -EINVAL: dst is impossible, or in a checkpoint, or an earlier run to dst was
 * another conversion (err has all differences); -ENOMEM: also if mem_limit has no room for the
 * decoders of the source, with the least that has; -ENOSPC; -ESTALE: the source has changed
 * meanwhile, and nothing is kept; -EBADMSG: damage in the source, or a fingerprint that differs;
 * -ECANCELED: tick returned != 0; what planned and ready return. After an error there is nothing at dst.
 */
int engine_convert(const struct engine *e, const struct engine_convert *c, struct converted *ret,
		   struct ckpt_errlist *cannot, struct ckpt_err *err);
#endif
