/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handmade.h - checkpoints of format v0.2 in memory, part by part, of tables that a test makes up:
 * several parts of one rank, parts that an older step wrote, derived pieces, averages. Their data
 * are real: every element is a function of its tensor's key and its global index, and every
 * fingerprint is that of the elements. Written as slowly and plainly as possible, by hand where it
 * is possible, so that it is a second hand against the product.
 */
#ifndef TESTS_HANDMADE_H
#define TESTS_HANDMADE_H
#include "tests/lib/memdir.h"

#define HANDMADE_PARTS_MAX 24

struct handmade {
	struct memdir d;
	struct native_info info;
	struct native_lineage line;
	struct native_part part[HANDMADE_PARTS_MAX];
	struct table table[HANDMADE_PARTS_MAX]; /* of those that were made here */
	uint32_t n;
	/* The layout of the data of the next part: bytes of zeros before each chunk, and bytes that
	 * it has beyond its pieces (as far as the raw space goes). */
	uint64_t gap, longer;
};

/* A step of a job; its uuid follows from both and from try. */
void handmade_begin(struct handmade *p, const char *job, uint64_t step, uint32_t world,
		    uint32_t try);
/* The next part, with its data: its number. t: not sealed, with one place, whose size becomes the
 * end of the last piece; taken. Fingerprints are filled in, unless pieces say `fp` 1 and not known:
 * these stay unknown. source: numbers of parts that were added before. The name follows from rank,
 * uuid and n. */
uint32_t handmade_add(struct handmade *p, uint32_t rank, uint32_t kind, uint32_t group,
		      struct table *t, const uint32_t *source, uint32_t nsource);
/* Part i of an older step, as a hard link would bring it; its table stays there. */
uint32_t handmade_link(struct handmade *p, const struct handmade *from, uint32_t i);
/* MANIFEST. 0, or what native_manifest says. */
int handmade_commit(struct handmade *p, struct ckpt_err *err);
void handmade_free(struct handmade *p);
struct memdir_file *handmade_file(struct handmade *p, uint32_t i);
/* All files into a directory, which is made: a step that a program can be given. */
void handmade_spill(const struct handmade *p, const char *dir);

/* A table to add to: one place, one mesh like "fsdp=2", no more. */
void handmade_table(struct table *t, const char *mesh);
/* A layout on that mesh, as layout_parse reads it: "Shard(0)@fsdp". */
uint32_t handmade_layout(struct table *t, const char *placements);
struct handmade_tensor {
	const char *component, *name, *of;
	uint32_t dtype, cls, role, layout, flags, media, made, rank_; /* rank_: of a blob, + 1 */
	uint32_t ndim;
	uint64_t shape[4];
};
uint32_t handmade_tensor(struct table *t, const struct handmade_tensor *x);
/* A piece that is a box, row-major. off: in the raw space. */
void handmade_piece(struct table *t, uint32_t rank, uint32_t tensor, uint64_t off, uint32_t flags,
		    const uint64_t *start, const uint64_t *extent);
/* The bytes of an element; of a derived tensor those of its master's, rounded. */
void handmade_element(const struct table *t, const struct table_tensor *x, uint64_t g,
		      uint8_t *ret);
/* F32 to nearest even; not for NaN. */
uint16_t handmade_bf16(uint32_t bits);
uint16_t handmade_f16(uint32_t bits);
#endif
