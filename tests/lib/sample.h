/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - a small made-up model, declared and held by one rank of any mesh, whose every element
 * has a value that is a pure function of (seed, tensor, global index, step). So a test can fill
 * live memory on one mesh, carry it through whatever it tests, and check it element by element on
 * another. Include sample.c into the test. Not thread-safe per sample; different samples are
 * independent.
 *
 * It has sharded tensors that are even, uneven, smaller than the mesh, empty, 0-d and strided, of
 * elements of 1, 2, 4, 8 and 16 bytes; small and big replicated ones; big (>= 256 KiB) and small
 * pieces; a CONST; a blob per rank ("blob/rng", sizes differ) and one global blob ("blob/cursor").
 *
 * mesh_spec: as mesh_parse takes it, "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2", "pp=2,fsdp=2".
 * Dimensions are understood by name: fsdp shards dimension 0, tp shards dimension 1 of the matrices
 * (dimension 0 of one, applied before fsdp), pp gives layer i to coordinate i % size, all others
 * replicate. The same seed and scale give the same global tensors on every mesh. scale multiplies
 * sizes: 1 is about 5 MB in total, 64 about 320 MB.
 */
#ifndef TESTS_SAMPLE_H
#define TESTS_SAMPLE_H
#include "ckpt/table/table.h"

struct sample {
	struct table
		decl; /* sealed; one place, mem; pieces: the whole share of the rank, row-major */
	void *mem;    /* page-aligned */
	uint64_t mem_bytes; /* a multiple of 4096 */
	uint64_t seed;
	uint32_t rank, world; /* world: ranks of the mesh */
};

/* 0, -EINVAL (mesh, rank, scale), -ENOMEM. mem is cleared as sample_clear does. */
int sample_make(const char *mesh_spec, uint32_t rank, uint64_t seed, uint64_t scale,
		struct sample *ret);
void sample_free(struct sample *s);

/* The true bytes (elem_bytes of them) of the element with row-major global index g of a tensor of
 * s->decl. CONST tensors do not depend on the step. */
void sample_element(const struct sample *s, uint32_t tensor, uint64_t g, uint64_t step,
		    void *ret_bytes);
/* The same for a tensor of another table (a checkpoint's, a part's) that descends from samples of
 * this seed. */
void sample_truth(uint64_t seed, const struct table_tensor *x, uint64_t g, uint64_t step,
		  void *ret_bytes);
/* The true bytes of a piece, row-major over its set: numel * elem_bytes of them. */
void sample_piece(uint64_t seed, const struct table *t, const struct table_piece *p, uint64_t step,
		  void *ret_bytes);

void sample_fill(struct sample *s,
		 uint64_t step);     /* all of mem's tensors and blobs become those of that step */
void sample_clear(struct sample *s); /* mem becomes a byte pattern that is no step's */
/* Are all tensors (blobs left out, for a restore does not write them) those of that step, and the
 * bytes between pieces still clear? why: the first difference. */
bool sample_check(const struct sample *s, uint64_t step, char *why, size_t why_bytes);
bool sample_check_blobs(const struct sample *s, uint64_t step, char *why, size_t why_bytes);
#define SAMPLE_CLEAR 0xa5
#define SAMPLE_SCALE_MAX 4096

enum sample_cut {
	CUT_NONE,   /* replicated everywhere */
	CUT_ROWS,   /* fsdp: dimension 0 */
	CUT_MATRIX, /* fsdp: dimension 0; tp: dimension 1 */
	CUT_TWICE,  /* tp, then fsdp: dimension 0 */
	CUT_COMB,   /* fsdp: dimension 0, split factor 3 */
};

struct sample_spec {
	const char *component, *name, *of;
	uint32_t role, cls, dtype;
	enum sample_cut cut;
	int layer; /* the pipeline stage that has it; -1: all */
	uint32_t ndim;
	uint64_t shape[3];
	uint64_t grow; /* shape[0] += grow * scale */
};

#define SAMPLE_TENSORS 18
extern const struct sample_spec sample_specs[SAMPLE_TENSORS];

uint64_t sample_mix(uint64_t z);
/* Every index of a list, spelled out; to be freed. */
uint64_t *sample_indices(const struct indices *d);
#endif
