/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remesh.h - the tensors of a checkpoint on another mesh (ckpt/table/target.h) by the rules that
 * people write, what had to change on the way, and what copies that would make.
 *
 * A rule is "GLOB=PLACEMENTS". A layout file has one rule a line, "GLOB  PLACEMENTS", as in
 *	# the embedding is cut by columns
 *	model/embed.*	Shard(1)@fsdp, Replicate@dp
 * Blank lines and what follows a '#' at a line's beginning or behind a blank are left out. The
 * first rule that matches a tensor's component/name, or its name, counts.
 *
 * A mesh dimension that the checkpoint does not have and that would cut little makes copies, and so
 * does one that leaves tensors complete on every rank that were cut and that no rule names: they
 * must be allowed by name.
 */
#ifndef CKPT_ENGINE_REMESH_H
#define CKPT_ENGINE_REMESH_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"
#include "ckpt/table/target.h"
#include "formats/format.h"

struct remesh_text {
	const char *path; /* of a layout file; NULL: the text is one rule */
	const char *text;
};

struct remesh_ask {
	const char *mesh; /* "dp=2,fsdp=4" */
	uint32_t ntext, nreplicate;
	const struct remesh_text *text;
	const char *const *replicate; /* dimensions that may hold copies: "dp,tp" */
	bool placed;		      /* make remesh.placed */
};

struct remesh_note {
	uint32_t tensor; /* in the checkpoint's table, and in target */
	const char *text;
};

struct remesh {
	const struct table *from; /* the checkpoint's */
	struct table target;	  /* as target_make made it */
	struct target_settled settled;
	uint32_t copies;    /* bit per dimension that would hold copies and is not allowed to */
	uint32_t replicate; /* those that ask.replicate names */
	uint8_t *placed;    /* of each tensor enum target_placed; NULL: nobody asked */
	bool mesh_wrong;    /* after an error: it is the mesh that cannot be read */
	uint32_t nnote;
	struct remesh_note *note; /* in the order of the tensors */
	struct arena arena;
};

/* k outlives ret. -EINVAL: a mesh or rules that cannot be read or followed: all of them in the
 * error; -ENOMEM. remesh_free in any case. */
int remesh_make(const struct checkpoint *k, const struct remesh_ask *q, struct remesh *ret,
		struct ckpt_err *err);
void remesh_free(struct remesh *m);
/* copies is not 0: the sentence with what they would cost, and in next what to write instead. */
void remesh_refuse(const struct remesh *m, const char *spec, struct ckpt_err *err, char *next,
		   size_t bytes);
#endif
