/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slice.h - "0:4,:,-1": some elements of a tensor, as in numpy.
 *
 * One item per dimension, separated by commas, blanks allowed: "a:b" is the indices [a, b) with
 * either end left out for the tensor's own, "i" is one index: the result does not have its
 * dimension. A negative number counts from the end. Ends beyond the tensor are cut to it, an
 * index beyond it is an error. Dimensions without an item are taken in full. The step is 1.
 */
#ifndef CKPT_ENGINE_SLICE_H
#define CKPT_ENGINE_SLICE_H
#include "ckpt/layout/layout.h"

struct slice {
	uint32_t ndim; /* of the tensor */
	uint64_t start[CKPT_DIMS_MAX], count[CKPT_DIMS_MAX];
	bool single[CKPT_DIMS_MAX]; /* one index: the result has no such dimension */
	uint32_t nshape;	    /* of the result */
	uint64_t shape[CKPT_DIMS_MAX];
	uint64_t numel;
};

/* text NULL: all of it. -EINVAL says which character (from 1), what the tensor's shape is and what
 * to write there. The shape is one that shape_numel takes. */
int slice_parse(const char *text, uint32_t ndim, const uint64_t *shape, struct slice *ret,
		struct ckpt_err *err);
/*
 * If an element has several values of the last dimension (dtype_values), slices count values, and
 * files count elements: s, which was parsed by the shape of the values, as elements. -EINVAL: it
 * begins or ends inside of one; text is what s was parsed from.
 */
int slice_pack(const char *text, const struct slice *s, uint32_t values, struct slice *ret,
	       struct ckpt_err *err);
/* "[0:4, :, 3]" of that shape. Returns buf. */
char *slice_print(const struct slice *s, const uint64_t *shape, char *buf, size_t bytes);
#endif
