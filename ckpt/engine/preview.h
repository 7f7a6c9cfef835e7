/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preview.h - a few of an array's values, in brackets, as numpy prints them: all of a small one, of
 * a big one the first and the last three indices of each dimension.
 */
#ifndef CKPT_ENGINE_PREVIEW_H
#define CKPT_ENGINE_PREVIEW_H
#include "ckpt/layout/layout.h"

#define PREVIEW_ALL 200	 /* elements that are all shown */
#define PREVIEW_MAX 1000 /* elements that are ever shown */

/* Which indices of each dimension are shown: the first `head`, the last `tail`. Of the last
 * dimension both are multiples of `grain`, as its extent is. */
struct preview {
	uint32_t ndim, grain;
	uint64_t shape[CKPT_DIMS_MAX], head[CKPT_DIMS_MAX], tail[CKPT_DIMS_MAX];
	uint64_t numel; /* that are shown */
};
void preview_choose(uint32_t ndim, const uint64_t *shape, uint32_t grain, struct preview *ret);
/* The indices `base` + those of dimension d. */
int preview_indices(const struct preview *p, uint32_t d, uint64_t base, struct arena *a,
		    struct indices *ret);
/* Each line of the text, of at most `width` columns where a value fits them. values: those that are
 * shown, row-major, of F4 one a byte. -ENOMEM. */
int preview_print(const struct preview *p, uint32_t dtype, const uint8_t *values, uint32_t width,
		  void (*line)(void *arg, const char *text), void *arg);
#endif
