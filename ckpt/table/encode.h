/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.h - a table as sections of a container (ckpt/base/container.h): one encoding for
 * declarations on the wire, for parts and for MANIFEST. The records below are the specification;
 * docs/FORMAT.md describes the same. All integers little-endian.
 *
 * The section's rec_bytes is the size of its record: 1 for STRINGS, 8 for SHAPES and INDEXSETS, 4
 * for MESHDATA. A missing section is an empty one; STRINGS is never missing.
 *
 * STRINGS   concatenated zero-terminated strings; referred to by byte offset; offset 0 is "".
 * SHAPES    le64[]: shapes and strides; referred to by element index.
 * MESHES    ck_mesh records; names, sizes and ranks follow in MESHDATA (le32[]): ndim string
 *           offsets, ndim sizes, nrank ranks (nothing when rank_is_iota, which is 0 or 1, and 1
 *           wherever it can be). No two are equal. data_at follow upon each other without gaps, and
 *           so do place_at.
 * LAYOUTS   ck_layout records; placements follow in PLACEMENTS (ck_placement[]). No two are equal.
 * TENSORS   ck_tensor[]. Order is free; keys are distinct.
 * INDEXSETS le64[]: per set: ndim, then per dimension: n, then n x {start, len, stride, count}.
 *           Referred to by element index of ndim; equal sets are stored once. n >= 1: a piece
 *           without elements is not stored.
 * PIECES    ck_piece[], sorted by (tensor, rank, place, raw_off). indexset is the element index of
 *           a set's ndim.
 * PLACES    ck_place[] (declarations only; a part is its own place 0).
 * AVERAGES  ck_average[], at most TABLE_AVERAGES_MAX; (name, rule) are distinct. Missing where there are none.
 */
#ifndef CKPT_TABLE_ENCODE_H
#define CKPT_TABLE_ENCODE_H
#include "ckpt/base/util.h"
#include "ckpt/table/table.h"

enum ck_section {
	CK_STRINGS = 1,
	CK_SHAPES,
	CK_MESHES,
	CK_MESHDATA,
	CK_LAYOUTS,
	CK_PLACEMENTS,
	CK_TENSORS,
	CK_INDEXSETS,
	CK_PIECES,
	CK_PLACES,
	CK_CHUNKS = 16,
	CK_NOTES,
	CK_PARTS,
	CK_LINEAGE = 20, /* 19 was RANKS of format 0.0 */
	CK_ATTRS,
	CK_SOURCES = 33,
	CK_AVERAGES,
	/* reserved numbers: GRAINS 32, DIRECTORY 35, GROUPS 36 */
};
/* ck_sect.flags: a reader that does not know the kind ignores the section; else it refuses. */
#define CK_SECTION_OPTIONAL 1

struct ck_mesh {
	le32 ndim, nrank, data_at, rank_is_iota;
}; /* 16 bytes */
struct ck_layout {
	le32 mesh, mode, nplace, place_at;
};		      /* 16 */
struct ck_placement { /* 12 */
	uint8_t how, reduce;
	le16 mesh_dim, tensor_dim, flags;
	le32 split_factor;
};
struct ck_tensor {			/* 56 */
	le32 component, name, of;	/* strings; of: a key, "component/name" */
	le32 layout;			/* ~0: none */
	le32 shape_at;			/* ndim elements of SHAPES; 0 for a 0-d tensor */
	le32 avg;			/* record of AVERAGES; ~0: none */
	le16 dtype, elem_bits;		/* enum ckpt_dtype; 8, 16, 32, 64, 128 */
	uint8_t ndim, role, cls, flags; /* CK_TENSOR_* */
	le64 numel, fp;
	le32 rank;
	uint8_t media, zero[3]; /* of a blob: enum ckpt_media; else 0 */
};
enum { CK_TENSOR_BLOB = 1, CK_TENSOR_FP = 2 };
struct ck_piece {				/* 48 */
	le32 tensor, indexset, rank, stride_at; /* stride_at: ~0 for row-major */
	le64 raw_off, raw_len, fp;
	le32 flags, place; /* CK_PIECE_* */
};
enum { CK_PIECE_FP = 1, CK_PIECE_DERIVED = 2, CK_PIECE_TRUSTED = 4 };
struct ck_average {			/* 64 */
	le32 name, schedule;		/* strings */
	le64 product;			/* IEEE double */
	le64 updates, last_step, since; /* last_step: ~0: none */
	uint8_t history[16];
	le32 flags, rule; /* AVERAGE_* */
};
struct ck_place {
	le32 name, rank;
	le64 bytes;
}; /* 16 */

/* One encoded section: kind, bytes, record size. Memory is the arena's. */
struct table_section {
	uint32_t kind, rec_bytes;
	uint64_t len, count;
	const void *bytes;
};

#define TABLE_SECTIONS_MAX 11
/*
 * Encode a sealed table into at most TABLE_SECTIONS_MAX sections. with_pieces false: MANIFEST: no
 * INDEXSETS, PIECES, PLACES. A table without places gets no PLACES. The sections come in the order
 * of their kinds; equal tables give equal bytes. -ENOMEM.
 */
int table_encode(const struct table *t, bool with_pieces, struct arena *a,
		 struct table_section *ret_section, uint32_t *ret_n, struct ckpt_err *err);

/*
 * The reverse, from untrusted bytes: every offset, count, string, shape, set, piece and order is
 * checked; the result is sealed. section[] may hold further kinds, which are ignored. place: the
 * table's places when there is no PLACES section (parts); NULL for a declaration, whose layouts may
 * have mode CKPT_BOXES, which no file has. -EPROTO with record and reason; -EPROTONOSUPPORT: a
 * value, flag, or record size that only a newer version knows; -ENOMEM.
 * ret_table is untouched on failure and points to nothing of the sections on success.
 */
int table_decode(const struct table_section *section, uint32_t n, const struct table_place *place,
		 uint32_t nplace, struct table *ret_table, struct ckpt_err *err);
/*
 * The same in two steps, for many sections whose declarations (STRINGS to TENSORS) are the same
 * bytes: these once, to a sealed table without pieces, and then each one's pieces and places, to
 * one that borrows the tensors of the first (table_borrow).
 */
int table_decode_tensors(const struct table_section *section, uint32_t n, struct table *ret_table,
			 struct ckpt_err *err);
int table_decode_pieces(const struct table_section *section, uint32_t n,
			const struct table *tensors, const struct table_place *place,
			uint32_t nplace, struct table *ret_table, struct ckpt_err *err);
#endif
