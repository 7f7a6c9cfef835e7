/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - our own format, v0.2. docs/FORMAT.md is its specification to the byte.
 *
 * A step directory holds MANIFEST and parts; what else lies there is ignored. A main part is what
 * one rank owns and changes; what never changes lies in a part of its own (PART_CONST), which later
 * steps link. The raw space of a part is the memory of the rank's staged slot, so that raw chunks
 * go to disk straight from there. This room only translates: who writes the bytes is move, who
 * names and commits the files is store.
 *
 * Everything here is pure: no state, any thread, bytes only through a struct source.
 */
#ifndef FORMATS_NATIVE_H
#define FORMATS_NATIVE_H
#include "ckpt/base/container.h"
#include "ckpt/table/encode.h"
#include "formats/chunk_map.h"

#define NATIVE_ALIGN_LOG2 12
#define NATIVE_DATA_OFF CHUNK_ALIGN /* of a part: where its chunks begin, behind the header */
/* Pieces of this size and more start on a chunk, so that what is written of them are whole blocks;
 * smaller ones, packed, fill such blocks together. */
#define NATIVE_BIG (8u << 20)
#define NATIVE_PACK 64u /* smaller ones on a multiple of this */
#define NATIVE_MANIFEST "MANIFEST"

/* Limits; a file that exceeds one is malformed. */
#define NATIVE_PART_BYTES_MAX CHUNK_RAW_MAX
#define NATIVE_META_BYTES_MAX ((uint64_t)1 << 30) /* sections of one file, read into memory whole */
#define NATIVE_WORLD_MAX (1u << 20)
#define NATIVE_NOTES_MAX 16
#define NATIVE_TOOL_MAX 63
#define NATIVE_NAME_MAX 39 /* of a part */
#define NATIVE_PARTS_MAX (4u * NATIVE_WORLD_MAX)
#define NATIVE_SOURCES_MAX 1024u /* parts of one rank beside its main one */
#define NATIVE_ATTRS_MAX 65536u
#define NATIVE_ATTR_KEY_MAX 2060 /* ckpt.alias: and a key */
#define NATIVE_ATTR_VALUE_MAX 4096

/* Section records beside those of table/encode.h. */
struct ck_chunk {		  /* CHUNKS: dense array, i-th raw MiB. 48 bytes */
	le64 off;		  /* in the file; 0 for a hole */
	le32 stored_len, raw_len; /* raw_len 0: a hole; then all is zero but source and base */
	uint8_t codec, codec_ver; /* 0, 0: raw */
	uint8_t elem_bytes;	  /* of all pieces in it; 0 for a hole */
	uint8_t flags;		  /* 0 */
	le32 source, base;	  /* ~0 */
	le32 stored_crc;	  /* CRC-32C of the stored bytes of a coded one; else 0 */
	uint8_t raw_hash[16];	  /* hash128 of the raw bytes */
};
struct ck_part {		    /* PARTS, SOURCES: 96 bytes */
	uint8_t uuid[16], root[16]; /* its header's; hash128 of its trailer block */
	le64 file_bytes, raw_bytes;
	le64 step, generation; /* its header's */
	le32 name, writer;     /* string; its header's */
	le32 kind, group;      /* enum part_kind */
	uint8_t zero[16];
};
struct ck_lineage {			   /* LINEAGE: 96 bytes, one record */
	le64 seq, parent_step, generation; /* parent_step: ~0: none */
	uint8_t parent_id[16];		   /* MANIFEST trailer's self of the parent; zero: none */
	le32 world, tool, job;		   /* tool, job: strings */
	uint8_t zero[44];
};
struct ck_note {
	le32 key, zero;
	le64 value;
}; /* NOTES: string; IEEE double bits. Optional */
struct ck_attr {
	le32 key, value;
}; /* ATTRS: strings; by key. Optional */

struct native_part;
/* What a part is for. NULL in native_info: a main part without sources. */
struct native_role {
	uint32_t kind, group;		  /* enum part_kind */
	uint32_t nsource;		  /* of a main part: the other parts of its rank */
	const struct native_part *source; /* [nsource], complete */
};

struct native_info {
	uint8_t uuid[16]; /* of MANIFEST; each part's follows from it */
	const char *job;  /* at most CKPT_JOB_MAX bytes */
	uint64_t step, generation, wall_ns;
	uint32_t world;
	const struct native_role *role; /* of the part that is written; MANIFEST has none */
};

/*
 * The raw space of a rank: from its declaration (sealed; pieces are what the rank holds) to a
 * sealed table with one place and one piece per tensor of which the rank owns something
 * (layout_owned; per-rank blobs are owned by the rank itself; blobs that are not per rank by rank
 * 0). Of an EXPLICIT tensor (table_is_boxes) there is a piece for each box of which the rank owns
 * something, in the order of their first elements: without a layout all of the box, with one what
 * layout_owned_box gives it on that layout's mesh. In the result such tensors have no layout.
 * SINKs, and blobs that another rank owns, are left out. A per-rank
 * blob of a rank that the first mesh is too small for, as a checkpoint converted to fewer ranks has
 * them, belongs to that rank's number modulo the mesh's size.
 * A tensor that is derived is owned as its master is (table_owned_as).
 * Deterministic. Order: (component, dtype) groups, each from a chunk bound on, by declaration order
 * inside, those of class derived behind all others; big pieces on chunk bounds, small ones packed.
 * The place's name is "rank R" and its size the end of the last piece. Where the rank's pieces do
 * not cover its share, or its boxes overlap, or are on a mesh that does not have it: -EINVAL, every
 * tensor named in the list. -EFBIG beyond NATIVE_PART_BYTES_MAX.
 */
int native_part_table(const struct table *decl, uint32_t rank, struct table *ret_table,
		      struct ckpt_errlist *ret_list, struct ckpt_err *err);

/*
 * The same for one of several parts of the rank. MAIN lists every tensor, and has no pieces of
 * tensors of class const, which are in CONST: a part of kind PART_CONST, that lists only what it
 * has pieces of (none: the rank needs no such part). Each has a raw space of its own from byte 0
 * on. A blob is never in CONST, because its length may change. WHOLE is everything in one main
 * part. What a rank does not hold of its share is found in WHOLE and MAIN.
 */
enum native_share { NATIVE_WHOLE, NATIVE_MAIN, NATIVE_CONST };
int native_part_table_of(const struct table *decl, uint32_t rank, enum native_share share,
			 struct table *ret_table, struct ckpt_errlist *ret_list,
			 struct ckpt_err *err);

/* The numbers of all tensors in that order, which is the same for all ranks that declare the same:
 * ret_tensor[decl->ntensor]. -ENOMEM. */
int native_raw_order(const struct table *decl, uint32_t *ret_tensor);

/* Upper bound of a part's file, for fallocate: as if nothing were derived. t: its table; nsource:
 * other parts that it names. */
uint64_t native_part_bytes_max(const struct table *t, uint32_t nsource);

/* --- writing: pure functions from facts to bytes --- */

/* A part's uuid: hash128 of MANIFEST's, and of writer, kind and group as le32. */
void native_part_uuid(const struct native_info *info, uint32_t writer, uint8_t ret_uuid[16]);
void native_part_head(const struct native_info *info, uint32_t rank, struct ck_head *ret_head);
/*
 * Everything after the data: zero padding up to 4 KiB, sections, trailer; to be written at
 * data_end. t: the part's table with piece fingerprints. chunk: with sums; what its pieces do not
 * allow is
 * -EINVAL. data_end: the end of the last chunk's bytes, or of its pages.
 * *ret_bytes is malloc'ed. ret_root: hash128 of the trailer.
 */
int native_part_tail(const struct native_info *info, uint32_t rank, const struct table *t,
		     const struct chunk *chunk, uint64_t nchunk, uint64_t data_end,
		     void **ret_bytes, uint64_t *ret_len, struct hash128 *ret_root,
		     struct ckpt_err *err);

struct native_part {
	char name[40]; /* "w%04u-%08x-%03u.part": writer, nonce, number; any
					 * name of [A-Za-z0-9._-] without a dot in front will do */
	uint32_t rank; /* the writer */
	uint32_t kind, group;
	uint8_t uuid[16];
	uint64_t step, generation; /* of the checkpoint, or of an older one whose file is linked */
	uint64_t file_bytes, raw_bytes;
	struct hash128 root;
	const struct table *table; /* what native_part_tail was given */
};
struct native_lineage {
	uint64_t seq, parent_step; /* UINT64_MAX: none */
	uint8_t parent_id[16];
	const char *tool; /* "ckptd 0.2.0" */
	uint32_t nnote;
	const struct ckpt_note *note;
	uint32_t nattr; /* in any order; keys are distinct */
	const struct checkpoint_attr *attr;
};
/*
 * The whole MANIFEST file. Checks the union first: every rank 0..world-1 has exactly one main part
 * (ranks that own nothing still write one), every tensor covered exactly once, declarations equal:
 * -EINVAL with all that is wrong. ret_id: 16 bytes, the checkpoint's id = the trailer's self.
 * *ret_bytes is malloc'ed. The order of part[] does not matter.
 */
int native_manifest(const struct native_info *info, const struct native_part *part, uint32_t npart,
		    const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
		    uint8_t *ret_id, struct ckpt_err *err);
/*
 * The same where the union has been made and checked before, or follows from the layouts
 * (plan/reshard.h) and would be too large to be made: declared is sealed and has every tensor of
 * every part, with its fingerprint. The tables of the parts are not looked at.
 */
int native_manifest_declared(const struct native_info *info, const struct table *declared,
			     const struct native_part *part, uint32_t npart,
			     const struct native_lineage *lineage, void **ret_bytes,
			     uint64_t *ret_len, uint8_t *ret_id, struct ckpt_err *err);

/*
 * The same where the tensors of all parts are one table already, and its pieces were found to cover
 * it: then a step brings the fingerprints and the lengths of blobs. all: sealed, has every tensor
 * of every part. map[i][k]: which of them tensor k of part[i].table is, that has [map_n[i]]
 * tensors; the pieces in part[i].table have fingerprints. Where the elements of the pieces do not
 * add up to a tensor: -EINVAL.
 */
struct native_whole {
	const struct table *all;
	const uint32_t *const *map; /* [npart], in the order of part[] */
	const uint32_t *map_n;
};
int native_manifest_whole(const struct native_info *info, const struct native_whole *whole,
			  const struct native_part *part, uint32_t npart,
			  const struct native_lineage *lineage, void **ret_bytes, uint64_t *ret_len,
			  uint8_t *ret_id, struct ckpt_err *err);

/* --- reading --- */

/*
 * Its open gives file i = part i = place i of the table: the main parts in the order of ranks, then
 * the others; tensor fingerprints are those of MANIFEST and have been compared with the sums of the
 * pieces' (open_some compares nothing, and does not list the directory). On failure *ret is NULL;
 * the error's sentence lists what was found, as the faults do one by one.
 *
 * Its root is MANIFEST. The summary decodes no tensors: the table has meshes alone. rebuild reads
 * every part, but for its data, and checks it. Each main part says how many there were, and which
 * other parts its rank had: all must be there. What looks like a part, and none names it, may be
 * anything. A part with features in ro_compat is not described anew. Whoever makes the new MANIFEST
 * visible opens the directory with it first.
 */
extern const struct format format_native;
#endif
