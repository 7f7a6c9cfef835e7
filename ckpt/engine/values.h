/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.h - the elements of a tensor, or of a slice of it, wherever its pieces lie: row-major, in
 * bounded memory, each checked against its checksum if it has one. Called by cat.
 */
#ifndef CKPT_ENGINE_VALUES_H
#define CKPT_ENGINE_VALUES_H
#include "ckpt/engine/engine.h"
#include "ckpt/engine/slice.h"

/* What a slice asks for. People count values and files elements: one of F4 is two values. */
struct values {
	uint32_t tensor;
	const struct table_tensor *x;  /* in the checkpoint's table */
	uint64_t shape[CKPT_DIMS_MAX]; /* of x, in values */
	struct slice slice;	       /* in values */
	struct slice stored;	       /* the same in elements */
	uint64_t bytes;		       /* of the elements */
};
/* text NULL: all of it. -EINVAL as of slice_parse and slice_pack; -E2BIG: its bytes cannot be
 * counted. */
int values_choose(const struct table *t, uint32_t tensor, const char *text, struct values *ret,
		  struct ckpt_err *err);

/* len bytes of whole elements, which are those behind the `done` bytes that came before; they are
 * the callee's until it returns. != 0 ends the reading and is returned. */
typedef int values_fn(void *arg, const uint8_t *p, uint64_t len, uint64_t done);
/* The elements of `set`, front to back. e: ops, io, tick, mem_limit (0: what is fast). Errors as of
 * move_windows. */
int engine_values(const struct engine *e, const struct opened *o, const struct values *v,
		  const struct indexset *set, values_fn *fn, void *arg, struct ckpt_err *err);
/* All that was chosen. */
int engine_values_all(const struct engine *e, const struct opened *o, const struct values *v,
		      values_fn *fn, void *arg, struct ckpt_err *err);
/* The elements of `set` in memory: *ret is malloc'ed, one value a byte where an element holds
 * several. */
int engine_values_take(const struct engine *e, const struct opened *o, const struct values *v,
		       const struct indexset *set, uint8_t **ret, struct ckpt_err *err);
#endif
