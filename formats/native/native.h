/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - our own format, v0. docs/FORMAT.md is its specification to the byte.
 *
 * A step directory holds MANIFEST and parts, nothing else. A part is what one rank owns; its raw space is
 * the memory of the rank's staged slot, so that raw chunks go to disk straight from there. This room only
 * translates: who writes the bytes is move, who names and commits the files is store.
 */
#ifndef FORMATS_NATIVE_H
#define FORMATS_NATIVE_H
#include "ckpt/base/container.h"
#include "ckpt/table/codec.h"
#include "ckpt/table/format.h"

#define NATIVE_CHUNK_LOG2 20
#define NATIVE_ALIGN 4096u
#define NATIVE_BIG (256u << 10)         /* pieces of this size and more start on a chunk */
#define NATIVE_PACK 64u                 /* smaller ones on a multiple of this */
#define NATIVE_PART_BYTES_MAX ((uint64_t)1 << 40)
#define NATIVE_NOTES_MAX 16

/* Section records beside those of table/codec.h. */
struct ck_chunk {                       /* CHUNKS: dense array, i-th raw MiB. 48 bytes */
	le64 off;
	le32 stored_len, raw_len;
	uint8_t codec, codec_ver, elem_bytes, flags;
	le32 source, base, stored_crc;
	uint8_t raw_hash[16];
};
struct ck_part {                        /* PARTS: 64 bytes */
	uint8_t uuid[16], root[16];     /* root = hash128 of the part's trailer block */
	le64 file_bytes, raw_bytes;
	le32 name, writer, kind, group;
};
struct ck_lineage {                     /* LINEAGE: 96 bytes, one record */
	le64 seq, parent_step, generation;
	uint8_t parent_id[16];          /* MANIFEST trailer's self of the parent; zero: none */
	le32 world, tool;
	uint8_t zero[48];
};
struct ck_note { le32 key, zero; le64 value; };         /* NOTES: IEEE double bits */
struct ck_rank { le32 part, zero; };                    /* RANKS: [world]: which part holds what rank r owns; ~0: nothing */

struct native_info {
	uint8_t uuid[16];               /* of this checkpoint: the same in every file of the step */
	const char *job;
	uint64_t step, generation, wall_ns;
	uint32_t world;
};

/*
 * The raw space of a rank: from its declaration (sealed; pieces are what the rank holds) to a sealed table with one place and one piece per tensor of
 * which the rank owns something (layout_owned; per-rank blobs and tensors without a layout are owned by the rank itself; blobs that are not per rank by
 * rank 0). SINKs are left out. Deterministic. Order: (component, dtype) groups, by declaration order inside; big pieces on chunk bounds, small ones packed.
 * Where the rank's pieces do not cover what it owns: -EINVAL, every tensor named in the list.
 */
int native_part_table(const struct table *decl, uint32_t rank, struct table *ret_table, struct ckpt_errlist *ret_list, struct ckpt_err *err);

/* --- writing: pure functions from facts to bytes --- */
void native_part_head(const struct native_info *info, uint32_t rank, struct ck_head *ret_head);
/* Everything after the data: zero padding up to 4 KiB, sections, trailer; to be written at data_end. t: the part's table with piece fingerprints.
 * *ret_bytes is malloc'ed. ret_root: hash128 of the trailer. */
int native_part_tail(const struct native_info *info, uint32_t rank, const struct table *t, const struct chunk *chunk, uint64_t nchunk,
		     uint64_t data_end, void **ret_bytes, uint64_t *ret_len, struct hash128 *ret_root, struct ckpt_err *err);

struct native_part {
	char name[40];                  /* "w%04u-%08x-%03u.part": writer, nonce, number */
	uint32_t rank;
	uint64_t file_bytes, raw_bytes;
	struct hash128 root;
	const struct table *table;      /* what native_part_tail was given */
};
struct native_lineage {
	uint64_t seq, parent_step;      /* UINT64_MAX: none */
	uint8_t parent_id[16];
	const char *tool;               /* "ckptd 0.1.0" */
	uint32_t nnote;
	const struct ckpt_note *note;
};
/* The whole MANIFEST file. Checks the union first: every rank 0..world-1 in exactly one part (ranks that own nothing still write a part), every tensor
 * covered exactly once, declarations equal. ret_id: 16 bytes, the checkpoint's id = the trailer's self. */
int native_manifest(const struct native_info *info, const struct native_part *part, uint32_t npart, const struct native_lineage *lineage,
		    void **ret_bytes, uint64_t *ret_len, uint8_t *ret_id, struct ckpt_err *err);

/* --- reading --- */
extern const struct format format_native;

/* What `ls` needs, from MANIFEST alone (header, trailer, LINEAGE, MESHES): no tensors are decoded. table is empty but for meshes. */
int native_summary(const struct source *manifest, struct checkpoint **ret, struct ckpt_err *err);
#endif
