/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toy_format.h - a checkpoint format as small as one can be, read and written.
 * docs/ADDING-A-FORMAT.md walks through it, and tests of the engine convert to it and back. One
 * file, model.toy: a toy_head, a toy_tensor for each tensor, and the tensors' bytes, row-major, in
 * that order, without a gap. A tensor's bytes may be a raw deflate stream; what is written here is
 * not.
 *
 * It has no components, ranks, layouts, fingerprints, steps or averages; no names of more than 63
 * bytes, and no tensors of more than 4 dimensions.
 */
#ifndef TESTS_LIB_TOY_FORMAT_H
#define TESTS_LIB_TOY_FORMAT_H
#include "ckpt/base/util.h"
#include "formats/format.h"

#define TOY_FILE "model.toy"
#define TOY_MAGIC "TOY\n1\r\n"
struct toy_head {
	char magic[8];
	le64 n;
};
struct toy_tensor {
	char name[64];
	le32 dtype, ndim;   /* enum ckpt_dtype */
	le64 shape[4], off; /* in the file */
	le64 coded, bytes;  /* of a raw deflate stream there, and what comes out; 0: it is none */
	le32 crc, zero;	    /* CRC-32 of the tensor's bytes */
};
#define TOY_HEAD_BYTES(n) (sizeof(struct toy_head) + (n) * sizeof(struct toy_tensor))

extern const struct format format_toy;
#endif
