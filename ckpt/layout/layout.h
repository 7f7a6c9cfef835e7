/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - which elements of a tensor a rank holds.
 *
 * A layout is declared: a mesh (named dimensions and an explicit coordinate -> rank array) and placements in order of application. The answer is an *index
 * set*: the product of one list of indices per tensor dimension. Lists are progressions, so that a split factor of a million is one record.
 *
 * Source of the rules: torch 2.15 DTensor, literal reading (torch.chunk semantics; a list of n indices cut in k gives chunks of ceil(n/k), the last ones
 * shorter or empty). In one tensor dimension the placements apply in the order given, which is the shard order.
 */
#ifndef CKPT_LAYOUT_LAYOUT_H
#define CKPT_LAYOUT_LAYOUT_H
#include "ckpt/base/arena.h"
#include "ckpt/ckpt.h"
#include <stdbool.h>
#include <stdint.h>

#define LAYOUT_RUNS_MAX 65536           /* progressions per dimension; more is -E2BIG */
#define LAYOUT_RANKS_MAX (1u << 24)     /* places of a mesh */

/* The indices start + i*stride + [0, len) for i < count. len >= 1, count >= 1, stride >= len (count == 1: stride == len). */
struct run { uint64_t start, len, stride, count; };

/* Sorted: every index of a progression is below every index of the next, and neighbours do not touch where they could be one. n == 0: empty. */
struct indices {
	uint32_t n;
	uint64_t total;                 /* number of indices */
	const struct run *run;
};

/* A product of index lists, one per dimension; ndim 0 is the one element of a 0-d tensor. numel is the product of the totals. */
struct indexset {
	uint32_t ndim;
	uint64_t numel;
	const struct indices *dim;      /* [ndim] */
};

struct mesh {
	uint32_t ndim;
	const char *const *name;        /* [ndim] */
	const uint32_t *dim;            /* [ndim] sizes, each >= 1 */
	uint32_t nrank;                 /* product of the sizes */
	const uint32_t *rank;           /* [nrank] row-major over the coordinates */
};

struct layout {
	uint32_t mesh;                  /* index into the owner's meshes */
	uint32_t mode;                  /* 0: chunk */
	uint32_t nplace;
	const struct ckpt_placement *place; /* [nplace] */
};

/* Check a mesh (sizes, product, distinct ranks) and a layout of a tensor with ndim dimensions on it. -EINVAL with the reason. */
int mesh_check(const struct mesh *m, struct ckpt_err *err);
int layout_check(const struct mesh *m, const struct layout *l, uint32_t ndim, struct ckpt_err *err);

/* The coordinate of a rank, ret_coord[mesh.ndim]; false when the rank is not in the mesh. O(nrank). */
bool mesh_coord(const struct mesh *m, uint32_t rank, uint32_t *ret_coord);

/* "fsdp=4", "dp=2,fsdp=2": a mesh of ranks 0,1,2,... with sizes >= 1 and distinct names. Text form back in mesh_print (returns buf). */
int mesh_parse(const char *spec, struct arena *a, struct mesh *ret_mesh, struct ckpt_err *err);
char *mesh_print(const struct mesh *m, char *buf, size_t bytes);

/* The shares of the coordinate: what it holds of a tensor of this shape. All memory comes from the arena. -E2BIG, -ENOMEM. The share is empty (numel 0, all
 * dims n = 0) where an ONLY names another coordinate. layout_check must have passed. */
int layout_share(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape, const uint32_t *coord, struct arena *a,
		 struct indexset *ret_set);

/*
 * Ownership rule v1: which part of its share a rank writes. The replicas of a share are the coordinates that differ from it only in mesh dimensions that neither
 * SHARD nor ONLY names (in row-major order, replica number 0..R-1). A share below R x 1 MiB belongs to replica hash % R, hash = layout_hash(component, name)
 * mixed with the share's first global index; a larger one is cut along its first dimension with >= R indices into R near-equal slices of rows (first ones
 * larger); where no dimension has R indices it is given whole as a small one. Pure: every rank computes the same; exactly one replica owns each element.
 */
int layout_owned(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape, const uint32_t *coord, uint32_t elem_bytes,
		 const char *component, const char *name, struct arena *a, struct indexset *ret_set);

/* --- index lists and sets --- */
int indices_range(uint64_t start, uint64_t stop, struct arena *a, struct indices *ret);          /* [start, stop) */
int indices_slice(const struct indices *x, uint64_t from, uint64_t to, struct arena *a, struct indices *ret); /* elements number [from, to) of x */
int indices_cut(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor, struct arena *a, struct indices *ret); /* CHUNK / STRIDED */
int indices_intersect(const struct indices *x, const struct indices *y, struct arena *a, struct indices *ret);
bool indices_equal(const struct indices *x, const struct indices *y); /* as sets */
int indices_check(const struct indices *x, uint64_t extent, struct ckpt_err *err); /* an untrusted list: invariants above, below extent, total right */
int indexset_box(uint32_t ndim, const uint64_t *start, const uint64_t *extent, struct arena *a, struct indexset *ret);
int indexset_intersect(const struct indexset *x, const struct indexset *y, struct arena *a, struct indexset *ret);
bool indexset_equal(const struct indexset *x, const struct indexset *y);
int indexset_copy(const struct indexset *x, struct arena *a, struct indexset *ret);
int shape_numel(uint32_t ndim, const uint64_t *shape, uint64_t *ret_numel); /* -EOVERFLOW above 2^63-1; a zero anywhere is 0 */

/*
 * Common stretches of two lists, ascending: each is len indices that are consecutive in both, at position x_pos in x's and y_pos in y's own numbering.
 * Start with a zeroed cursor; next returns false at the end. No allocation. Cost O(stretches + runs).
 */
struct stretch { uint64_t index, x_pos, y_pos, len; };
struct indices_cursor {
	uint32_t x_run, y_run;          /* progression */
	uint64_t x_i, y_i;              /* repetition in it */
	uint64_t x_base, y_base;        /* positions before this progression */
	uint64_t at;                    /* next index to look at */
};
bool indices_next(const struct indices *x, const struct indices *y, struct indices_cursor *c, struct stretch *ret);
#endif
