/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - which elements of a tensor a rank holds, and which of them it writes.
 *
 * A layout is declared: a mesh (named dimensions and an explicit coordinate -> rank array) and
 * placements in order of application. The answer is an *index set*: the product of one list of
 * indices per tensor dimension. Lists are progressions, so that a split factor of a million is one
 * record.
 *
 * Source of the rules: torch 2.15 DTensor, literal reading (torch.chunk semantics; a list of n
 * indices cut in k gives chunks of ceil(n/k), the last ones shorter or empty). In one tensor
 * dimension the placements apply in the order given, which is the shard order, unless the mode
 * (enum ckpt_mode) says that they cut at once. docs/LAYOUTS.md has every framework's layouts in
 * these terms, with examples.
 *
 * Everything here is pure arithmetic: no globals, any thread. Memory comes from the caller's arena;
 * a result may share records with its operands, and lives as long as the shorter of the two.
 */
#ifndef CKPT_LAYOUT_LAYOUT_H
#define CKPT_LAYOUT_LAYOUT_H
#include "ckpt/base/arena.h"
#include "ckpt/ckpt.h"
#include <stdbool.h>
#include <stdint.h>

#define LAYOUT_RUNS_MAX 65536	    /* progressions per dimension; more is -E2BIG */
#define LAYOUT_STEPS_MAX (1u << 24) /* runs that one list may take one by one; more is -E2BIG */
#define LAYOUT_RANKS_MAX (1u << 20) /* places of a mesh */
#define LAYOUT_NAME_MAX 64	    /* bytes of the name of a mesh dimension: [A-Za-z0-9._-] */

/*
 * The indices start + i*stride + [0, len) for i < count; len >= 1, count >= 1. With count == 1 the
 * stride is len; else it is above len, so that repetitions do not touch.
 */
struct run {
	uint64_t start, len, stride, count;
};

/*
 * Sorted: every index of a progression is below every index of the next, and the last run of one
 * does not touch the first of the next. So the runs of all repetitions are the maximal stretches of
 * the set. Which of them share a progression is not determined. n == 0: empty.
 */
struct indices {
	uint32_t n;
	uint64_t total; /* number of indices */
	const struct run *run;
};

/*
 * A product of index lists, one per dimension. numel is the product of the totals; with ndim 0 it
 * is 1 (the one element of a 0-d tensor), or 0 where an ONLY keeps that element elsewhere.
 */
struct indexset {
	uint32_t ndim;
	uint64_t numel;
	const struct indices *dim; /* [ndim] */
};

struct mesh {
	uint32_t ndim;
	const char *const *name; /* [ndim] distinct, see LAYOUT_NAME_MAX */
	const uint32_t *dim;	 /* [ndim] sizes, each >= 1 */
	uint32_t nrank;		 /* product of the sizes; 1 for ndim 0 */
	const uint32_t *rank;	 /* [nrank] row-major over the coordinates; distinct */
};

struct layout {
	uint32_t mesh; /* index into the owner's meshes */
	uint32_t mode; /* enum ckpt_mode */
	uint32_t nplace;
	const struct ckpt_placement *place; /* [nplace] */
};

/*
 * Check a mesh (names, sizes, product, distinct ranks) and a layout of a tensor with ndim
 * dimensions on it. -EINVAL with the reason; mesh_check also -ENOMEM; layout_check -EOPNOTSUPP for
 * a mode that this version does not know. Mode CKPT_BOXES is for declarations: its layout says on
 * which mesh boxes are held alike, and the boxes say the rest. No file has it.
 */
int mesh_check(const struct mesh *m, struct ckpt_err *err);
int layout_check(const struct mesh *m, const struct layout *l, uint32_t ndim, struct ckpt_err *err);

bool layout_is_partial(const struct layout *l); /* has a PARTIAL */
/* -EOPNOTSUPP with the reason: a PARTIAL without CKPT_KEEP_PARTIAL. Before a
 * save. */
int layout_check_saved(const struct mesh *m, const struct layout *l, struct ckpt_err *err);

/*
 * Shard order and torch's split factors say the same in two ways. From placements in the order of
 * the mesh, one per mesh dimension (place[m->ndim]), as torch prints them, whose split factors say
 * in which order the mesh dimensions cut, to plain ones in that order (and the others behind them,
 * in the mesh's). -EINVAL: they say no order. Where mesh dimensions of size 1 make several orders
 * equal: the first that torch finds.
 */
int layout_order_of(const struct mesh *m, const struct ckpt_placement *place,
		    struct ckpt_placement *ret_place, struct ckpt_err *err);
/*
 * What cuts inside a strided shard: ret_inside[l->nplace] has a bit for each placement of l whose
 * sizes multiply to the placement's split factor, found as torch decodes them: from the last
 * placement of a tensor dimension to the first, each goes to the first place whose product before
 * it is its factor. 0: it is not strided, or the factors of its tensor dimension say no order.
 */
void layout_inside(const struct mesh *m, const struct layout *l, uint32_t *ret_inside);
/*
 * CKPT_TORCH_ORDER: the placements that layout_check takes with CKPT_CHUNK, in the order of the
 * mesh. A mesh dimension that none of them names replicates. Out come placements for CKPT_CHUNK, at
 * most m->ndim of them, without REPLICATE: so a layout that is written here and one that torch
 * wrote compare equal. -EINVAL as layout_order_of.
 */
int layout_torch_order(const struct mesh *m, const struct ckpt_placement *place, uint32_t n,
		       struct ckpt_placement *ret_place, uint32_t *ret_n, struct ckpt_err *err);

/*
 * The coordinate of a rank, ret_coord[mesh.ndim]; false when the rank is not in the mesh.
 * O(nrank).
 */
bool mesh_coord(const struct mesh *m, uint32_t rank, uint32_t *ret_coord);
/* The coordinate of a place: the rank there is m->rank[place]. */
void mesh_place_coord(const struct mesh *m, uint32_t place, uint32_t *ret_coord);

/*
 * "fsdp=4", "dp=2,fsdp=2": a mesh of ranks 0,1,2,... with sizes >= 1 and distinct names. -EINVAL
 * names the character (from 1) and what to write there; -ENOMEM. Text form back in mesh_print:
 * names and sizes, cut where buf ends (returns buf; bytes >= 1).
 */
int mesh_parse(const char *spec, struct arena *a, struct mesh *ret_mesh, struct ckpt_err *err);
char *mesh_print(const struct mesh *m, char *buf, size_t bytes);

/*
 * One placement as text, in the house's and in PyTorch's spellings:
 *	Shard(0)  Shard(dim=0)  S(0)
 *	StridedShard(0, 2)  _StridedShard(dim=0, split_factor=2)  _StridedShard(0, sf=2)  _S(0, 2)
 *	Replicate  Replicate()  R
 *	Partial()  Partial(sum)  Partial("avg")  Partial(reduce_op='max')  P(min)  Partial(sum, keep)
 *	Only(1)
 */
struct placement_text {
	uint8_t how, reduce; /* of struct ckpt_placement */
	bool keep, strided;
	int64_t dim,
		factor; /* as written; what does not fit is as large as can be. ONLY: dim is the
			      * coordinate */
	const char *dim_at, *factor_at; /* where these stand */
};
/* *at moves behind it. NULL; else what must stand there, in words, and *at is at the character that
 * is wrong. */
const char *placement_read(const char **at, struct placement_text *ret);
const char *reduce_name(uint32_t reduce); /* "sum", ...: of enum ckpt_reduce */
/* "Shard(0)@fsdp", as layout_parse reads it. Returns buf. */
#define PLACEMENT_BYTES (LAYOUT_NAME_MAX + 48)
char *placement_print(const struct mesh *m, const struct ckpt_placement *p, char *buf,
		      size_t bytes);

/*
 * "Shard(0)@fsdp, StridedShard(1, 2)@dp, Only(1)@pp, Replicate@tp" of this mesh (mesh id 0), in the
 * order of application; "Replicate" alone is all of it. A pending reduction is "Partial(sum)@tp"
 * (avg, min, max, product), with CKPT_KEEP_PARTIAL "Partial(sum, keep)@tp"; a mode other than
 * CKPT_CHUNK stands before all: "flat: Shard(0)@x, Shard(0)@y", "unflatten_pad: ..".
 * As PyTorch prints them, without @ and in any of its spellings, there is one for each mesh
 * dimension, in the order of the mesh, which is then the order of application: "(Shard(dim=0),
 * Replicate())", "[_StridedShard(0, sf=2), Shard(0)]". -EINVAL names the character (from 1) and
 * what to write there;
 * -ENOMEM.
 */
int layout_parse(const char *text, const struct mesh *m, struct arena *a, struct layout *ret_layout,
		 struct ckpt_err *err);
/* The first notation, with a Replicate for each mesh dimension that has no placement; "boxes" for
 * mode CKPT_BOXES, which layout_parse does not read. Returns buf. */
char *placements_print(const struct mesh *m, const struct layout *l, char *buf, size_t bytes);

/*
 * The share of the coordinate: what it holds of a tensor of this shape. -E2BIG, -ENOMEM, -EOVERFLOW
 * (shape_numel). Where an ONLY names another coordinate it is empty (numel 0, all dims n = 0);
 * where a cut leaves a dimension empty the other dimensions still say what they keep. mesh_check
 * and layout_check must have passed. -EINVAL: mode CKPT_BOXES, in which the share is declared.
 */
int layout_share(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		 const uint32_t *coord, struct arena *a, struct indexset *ret_set);

/*
 * Ownership rule v1: which part of its share a rank writes. It depends on nothing but the tensor's
 * own declaration, so every rank computes the same alone; of the replicas of an element exactly one
 * owns it. (This paragraph is the rule; docs/FORMAT.md repeats it. Unsigned 64-bit arithmetic
 * modulo 2^64, / rounds down.)
 *
 *   Replicas.  Take the mesh dimensions that no SHARD, ONLY or PARTIAL placement names, in the order of
 *	the mesh, with sizes s1 .. sq and this rank's coordinates c1 .. cq in them. A share has
 *	R = s1 * .. * sq replicas (1 if q = 0), and this rank's is number
 *	i = (..((c1 * s2) + c2) * s3 + ..) + cq.
 *   Small.  A share of fewer than R * 2^20 bytes (numel * elem_bytes, exact), or one in which no
 *	dimension has at least R indices, belongs whole to replica h mod R.
 *   Large.  Any other share is cut along the first dimension that has n >= R indices: replica i
 *	owns its indices number [i*w + min(i, x), (i+1)*w + min(i+1, x)), counted in ascending
 *	order from 0, where w = n / R and x = n mod R, and all indices of the other dimensions.
 *   h.  FNV-1a over the bytes of component, one 0 byte, the bytes of name, one 0 byte, and f as 8
 *	bytes, lowest first, where f is the row-major global index of the share's first element
 *	(the sum over d of first_index[d] * shape[d+1] * .. * shape[ndim-1]; 0 for a 0-d tensor):
 *	    h = 0xcbf29ce484222325; for each byte b: h = (h xor b) * 0x00000100000001b3
 *	and then the finalizer of MurmurHash3:
 *	    h = (h xor (h >> 33)) * 0xff51afd7ed558ccd
 *	    h = (h xor (h >> 33)) * 0xc4ceb9fe1a85ec53
 *	    h = h xor (h >> 33)
 *	A NULL component is the empty one.
 *
 * Results as layout_share's; a replica that owns nothing gets numel 0 and all dims n = 0.
 */
int layout_owned(const struct mesh *m, const struct layout *l, uint32_t ndim, const uint64_t *shape,
		 const uint32_t *coord, uint32_t elem_bytes, const char *component,
		 const char *name, struct arena *a, struct indexset *ret_set);
/*
 * The same of a box, or any other set that is not empty, which every rank of the mesh holds: the
 * rule where no placement names a mesh dimension, with the set as the share.
 */
int layout_owned_box(const struct mesh *m, const struct indexset *box, const uint64_t *shape,
		     const uint32_t *coord, uint32_t elem_bytes, const char *component,
		     const char *name, struct arena *a, struct indexset *ret_set);
/*
 * The rule in two steps, for many tensors that differ by their names only: ret_set is what the
 * coordinate owns if it owns anything, and *ret whether the name decides that.
 */
struct layout_replica {
	uint32_t n, i; /* of n replicas of the share the coordinate is number i */
	bool named;    /* the share belongs whole to one of them, which the name chooses */
};
int layout_owned_unnamed(const struct mesh *m, const struct layout *l, uint32_t ndim,
			 const uint64_t *shape, const uint32_t *coord, uint32_t elem_bytes,
			 struct arena *a, struct indexset *ret_set, struct layout_replica *ret);
/* set: ret_set; not empty. */
bool layout_replica_owns(const struct layout_replica *r, const struct indexset *set,
			 const uint64_t *shape, const char *component, const char *name);
/* The rule's h, of a share whose first element has this row-major index. */
uint64_t layout_owner_hash(const char *component, const char *name, uint64_t first);

/* --- index lists and sets: -ENOMEM, -E2BIG --- */

/* [start, stop); empty when stop <= start. */
int indices_range(uint64_t start, uint64_t stop, struct arena *a, struct indices *ret);

/* The first index, and one above the last; 0 of an empty list. */
static inline uint64_t indices_lo(const struct indices *x)
{
	return x->n ? x->run[0].start : 0;
}
static inline uint64_t indices_hi(const struct indices *x)
{
	const struct run *r = x->n ? &x->run[x->n - 1] : NULL;

	return r ? r->start + (r->count - 1) * r->stride + r->len : 0;
}
/* Is it one run, [indices_lo, indices_hi)? */
static inline bool indices_is_range(const struct indices *x)
{
	return x->n == 1 && x->run->count == 1;
}
/* How many indices are below `index`: its position, if the list has it. O(records). */
uint64_t indices_below(const struct indices *x, uint64_t index);
/* The index at a position, which is below x->total. O(records). */
uint64_t indices_at(const struct indices *x, uint64_t position);
/* The maximal stretches of the list. O(records). */
uint64_t indices_runs(const struct indices *x);

/* Elements number [from, to) of x; a `to` above the total means the total. */
int indices_slice(const struct indices *x, uint64_t from, uint64_t to, struct arena *a,
		  struct indices *ret);

/*
 * The r-th of k chunks (SHARD). split_factor > 1: x is cut in that many pieces first and the r-th
 * chunks of all pieces are joined. Of one run this takes O(1) whatever the factor; of lists it
 * takes at most LAYOUT_STEPS_MAX steps. x.total < 2^63, r < k.
 */
int indices_cut(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor,
		struct arena *a, struct indices *ret);
/* CKPT_UNFLATTEN_PAD's strided one: x as rows of w = ceil(total / split_factor), the last ones
 * shorter or empty; the r-th of k chunks of the columns. The same costs. */
int indices_cut_columns(const struct indices *x, uint32_t k, uint32_t r, uint32_t split_factor,
			struct arena *a, struct indices *ret);

/* Progression with run, and progressions whose common part is one progression: O(1); else steps. */
int indices_intersect(const struct indices *x, const struct indices *y, struct arena *a,
		      struct indices *ret);
bool indices_equal(const struct indices *x, const struct indices *y); /* as sets; O(records) */
/* Both have indices, and the bounds of the one end before those of the other begin. O(1). */
static inline bool indices_apart(const struct indices *x, const struct indices *y)
{
	return indices_lo(x) >= indices_hi(y) || indices_lo(y) >= indices_hi(x);
}
/* Have they an index in common? *ret_first: the first one. Costs as indices_next. */
bool indices_meet(const struct indices *x, const struct indices *y, uint64_t *ret_first);
/* What two lists have in common: how many indices, the first and the last of them. O(records) if
 * one is a range or both are equal; else as indices_next for each stretch. */
struct indices_common {
	uint64_t n, first, last;
};
struct indices_common indices_common(const struct indices *x, const struct indices *y);
/* x without y, which is a part of x. Steps: the runs of both. */
int indices_minus(const struct indices *x, const struct indices *y, struct arena *a,
		  struct indices *ret);
/* The indices i + by; by may be negative, modulo 2^64, as long as no index is. */
int indices_move(const struct indices *x, uint64_t by, struct arena *a, struct indices *ret);

/*
 * A tensor in another shape, row-major. merge: two dimensions as one: the indices i * extent + j, i
 * of outer, j of inner, whose dimension has that extent; by i, then by j.
 *
 * fold: one dimension as two: x in rows of so many indices, as parts, each of which has the indices
 * i * row + j, i of outer, j of inner: its (p, q)-th is number first + p * step + q of x. -E2BIG
 * above `max` parts.
 */
struct indices_rows {
	struct indices outer, inner;
	uint64_t first, step;
};
int indices_merge(const struct indices *outer, const struct indices *inner, uint64_t extent,
		  struct arena *a, struct indices *ret);
int indices_fold(const struct indices *x, uint64_t row, uint32_t max, struct arena *a,
		 const struct indices_rows **ret, uint32_t *ret_n);

/* An untrusted list: the invariants of struct indices, all below extent, total right. -EINVAL. */
int indices_check(const struct indices *x, uint64_t extent, struct ckpt_err *err);

/* -EOVERFLOW when a box ends above 2^63-1 or has more elements than that. */
int indexset_box(uint32_t ndim, const uint64_t *start, const uint64_t *extent, struct arena *a,
		 struct indexset *ret);
int indexset_intersect(const struct indexset *x, const struct indexset *y, struct arena *a,
		       struct indexset *ret);				 /* of the same ndim */
bool indexset_equal(const struct indexset *x, const struct indexset *y); /* all empty ones are */
/* Have they an element in common? Neither is empty, and they have the same ndim. Costs as
 * indices_meet. */
bool indexset_meet(const struct indexset *x, const struct indexset *y);
/* Which one's first element comes first, row-major: as qsort's comparisons return it. Neither is
 * empty, and they have the same ndim. */
int indexset_order(const struct indexset *x, const struct indexset *y);
int indexset_copy(const struct indexset *x, struct arena *a, struct indexset *ret); /* deep */

/* -EOVERFLOW above 2^63-1, also of one dimension alone; else a zero anywhere is 0. */
int shape_numel(uint32_t ndim, const uint64_t *shape, uint64_t *ret_numel);

/*
 * Common stretches of two lists, ascending and maximal: each is len indices that are consecutive in
 * both, at position x_pos in x's and y_pos in y's own numbering. Start with a zeroed cursor (or
 * with .at: indices below it are left out); next returns false at the end. No allocation. Costs
 * O(stretches + runs) steps, each a few divisions, at worst (progressions that keep missing each
 * other) a logarithm of them.
 */
struct stretch {
	uint64_t index, x_pos, y_pos, len;
};
struct indices_cursor {
	uint32_t x_run, y_run;	 /* progression */
	uint64_t x_i, y_i;	 /* repetition in it */
	uint64_t x_base, y_base; /* positions before this progression */
	uint64_t at;		 /* next index to look at */
};
bool indices_next(const struct indices *x, const struct indices *y, struct indices_cursor *c,
		  struct stretch *ret);
#endif
