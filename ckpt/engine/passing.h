/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passing.h - the tensors of a conversion as they go through windows (ckpt/plan/window.h). They have
 * the names and dtypes of the source, and the order in which they lie in the new files: so each file
 * with chunks gets its bytes front to back. Called by convert.c.
 */
#ifndef CKPT_ENGINE_PASSING_H
#define CKPT_ENGINE_PASSING_H
#include "ckpt/base/error.h"
#include "formats/format.h"

/* One for each sheet, used for all batches of files. */
struct passage_map {
	uint32_t *piece; /* [npiece] the pieces by their places, in the table's order */
	uint32_t *first; /* [nfile + 1] of a place's pieces, the first index in `piece` */
	uint32_t *order; /* [ntensor] the tensors as they lie in the files */
	uint32_t *from;	 /* [ntensor] their numbers in the source */
};
/*
 * src: the tensors of the source; target: those of the sheet, under the names of src. -ENOMEM;
 * -EINVAL: src lacks a tensor, or has it in another shape. passage_map_free also after an error.
 */
int passage_map_make(const struct sheet *s, const struct table *src, const struct table *target,
		     struct passage_map *ret, struct ckpt_err *err);
void passage_map_free(struct passage_map *m);

struct passing {
	struct table table; /* sealed; place i is file first + i. Offsets are those in the file,
			     * except in tensors that are cast */
	uint32_t *piece;    /* [table.npiece] their numbers in the sheet's table */
};
/* For files [first, first + n). passing_free also after an error. */
int passing_make(const struct sheet *s, const struct passage_map *m, const struct table *src,
		 uint32_t first, uint32_t n, struct passing *ret, struct ckpt_err *err);
void passing_free(struct passing *p);
/* Does the tensor have another dtype in the source? */
bool passing_casts(const struct sheet *s, const struct passage_map *m, const struct table *src,
		   uint32_t tensor);
#endif
