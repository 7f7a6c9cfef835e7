/* SPDX-License-Identifier: Apache-2.0 */
/* native_impl.h - what the files of formats/native share and nobody else sees. */
#ifndef FORMATS_NATIVE_IMPL_H
#define FORMATS_NATIVE_IMPL_H
#include "formats/native/native.h"

_Static_assert(sizeof(struct ck_chunk) == 48, "ck_chunk");
_Static_assert(sizeof(struct ck_part) == 64, "ck_part");
_Static_assert(sizeof(struct ck_lineage) == 96, "ck_lineage");
_Static_assert(sizeof(struct ck_note) == 16, "ck_note");
_Static_assert(sizeof(struct ck_rank) == 8, "ck_rank");

/* native_part_chunks, and the element size of each chunk (0 for holes), malloc'ed. */
int native_chunks(const struct table *t, struct chunk **ret_chunk, uint8_t **ret_elem,
		  uint64_t *ret_nchunk, uint64_t *ret_data_end, struct ckpt_err *err);

/* May a part be called so? A single component that needs no quoting anywhere, and not MANIFEST. */
bool native_name_ok(const char *name);
#endif
