/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passing.h - the tensors of a conversion as they pass through windows (ckpt/plan/window.h): called
 * and typed as in the source, in the order in which they lie in the files that are written, so that
 * each file with chunks gets its bytes front to back. Called by convert.c.
 */
#ifndef CKPT_ENGINE_PASSING_H
#define CKPT_ENGINE_PASSING_H
#include "ckpt/base/error.h"
#include "formats/format.h"

/* Of a sheet, and for all of its batches. */
struct passage_map {
	uint32_t *piece; /* [npiece] the pieces by their places, in the table's order */
	uint32_t *first; /* [nfile + 1] where those of a place begin */
	uint32_t *order; /* [ntensor] the tensors as they lie in the files */
	uint32_t *from;	 /* [ntensor] their numbers in the source */
};
/*
 * src: the tensors as they are read; target: the sheet's, which names them as src does. -ENOMEM;
 * -EINVAL: a tensor is not in src, or of another shape there. passage_map_free in any case.
 */
int passage_map_make(const struct sheet *s, const struct table *src, const struct table *target,
		     struct passage_map *ret, struct ckpt_err *err);
void passage_map_free(struct passage_map *m);

struct passing {
	struct table table; /* sealed; place i is file first + i; offsets are those of the file,
			     * unless a tensor's elements change their type */
	uint32_t *piece;    /* [table.npiece] their numbers in the sheet's table */
};
/* Files [first, first + n). passing_free in any case. */
int passing_make(const struct sheet *s, const struct passage_map *m, const struct table *src,
		 uint32_t first, uint32_t n, struct passing *ret, struct ckpt_err *err);
void passing_free(struct passing *p);
/* Elements of another type than they are read as? */
bool passing_casts(const struct sheet *s, const struct passage_map *m, const struct table *src,
		   uint32_t tensor);
#endif
