/* SPDX-License-Identifier: Apache-2.0 */
/* named.h - the tensors that a name or a glob means, in any checkpoint. Any thread. */
#ifndef CKPT_ENGINE_NAMED_H
#define CKPT_ENGINE_NAMED_H
#include "ckpt/base/error.h"
#include "formats/format.h"

/* What the checkpoint's own format calls a tensor; NULL: the format is the one of stores. */
const char *named_foreign(const struct checkpoint *k, uint32_t tensor);

/* The tensor that word means: "component/name", a name, or what a foreign format calls it;
 * ids of all that it means (per-rank blobs share one), *ret_id malloc'ed. */
int named_tensors(const struct checkpoint *k, const char *word, uint32_t **ret_id, uint32_t *ret_n,
		  struct ckpt_err *err);
/* The same for a glob over these, where '*' matches any characters. */
int named_glob(const struct checkpoint *k, const char *glob, uint32_t **ret_id, uint32_t *ret_n,
	       struct ckpt_err *err);
#endif
