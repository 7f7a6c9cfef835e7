/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - the safetensors file format (Hugging Face), written strictly: what its reference
 * reader, version 0.8, loads, byte by byte as its reference writer lays it out.
 *
 *	8 bytes			N, the header's length, little-endian; at most 100,000,000
 *	N bytes			JSON in UTF-8, an object: "__metadata__" first (strings only), then per
 *				tensor, in the order of the data:
 *				"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}
 *				no white space in it; blanks behind it, so that the data begin at a
 *				multiple of `align`: 8 as the reference, or 4096 for direct I/O
 *	data			the tensors row-major, one directly behind the other; data_offsets
 *				count from here. The file ends where the last one ends.
 *
 * Order: dtype descending as the reference counts them (U64, I64, F64, C64, F32, U32, I32, BF16,
 * F16, U16, I16, F8_E5M2FNUZ, F8_E4M3FNUZ, F8_E8M0, F8_E4M3, F8_E5M2, I8, U8, F4, BOOL), so that
 * each element is aligned to its size, then name ascending by its bytes. In the header the shape of
 * F4 counts values of 4 bits, so its last dimension is twice ours. Names are unique UTF-8, and none
 * is "__metadata__".
 *
 * Pure functions, any thread.
 */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"
#include <stdbool.h>

#define SAFETENSORS_HEADER_MAX 100000000u /* of N: the reference refuses more */
#define SAFETENSORS_METADATA "__metadata__"

struct safetensors_tensor {
	const char *name;
	uint32_t dtype; /* enum ckpt_dtype */
	uint32_t ndim;
	const uint64_t *shape; /* in elements: of F4 bytes */
	uint64_t off, bytes;   /* safetensors_make: where it lies in the file */
};

struct safetensors_meta {
	const char *key, *value;
};

struct safetensors_head {
	const void *bytes; /* [len] all before the data; in the arena */
	uint64_t len, file_bytes;
};

/* Can the format say it? (It has no C32 and no C128.) */
bool safetensors_dtype(uint32_t dtype);

/*
 * The header of a file with these tensors. align: a power of two, at least 8. They may come in any
 * order and stay in it; off and bytes of each are set. meta in the order given; none: no
 * "__metadata__". -EMEDIUMTYPE when the format cannot hold it: every reason is a line of the list
 * (may be NULL; its code is -EMEDIUMTYPE), and err has as many as fit. -ENOMEM.
 */
int safetensors_make(struct safetensors_tensor *x, uint32_t n, const struct safetensors_meta *meta,
		     uint32_t nmeta, uint32_t align, struct arena *a,
		     struct safetensors_head *ret_head, struct ckpt_errlist *ret_list,
		     struct ckpt_err *err);
#endif
