/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holders.h - which ranks own the elements of an index set. The inverse of layout_share and
 * layout_owned: of all coordinates of a mesh just those are enumerated whose part meets the set, by
 * inverting the cuts of each tensor dimension. What an answer costs depends on how many coordinates
 * there are in it, and not on how many ranks there are. For reshard.c, and to find
 * all owners of a tensor without a table of them.
 *
 * An answer is a product like the index sets themselves: a list of shares per tensor dimension. It
 * is a value: it depends on (mesh, placements, shape, element size) and not on the tensor's name,
 * nor on the coordinate of an ONLY, so it is asked for once and serves all tensors of the same
 * kind.
 */
#ifndef CKPT_PLAN_HOLDERS_H
#define CKPT_PLAN_HOLDERS_H
#include "ckpt/layout/layout.h"

/* Runs and coordinates that one answer may cost, about: a second or two. More is -E2BIG. Layouts
 * come from files; those in use take thousands. */
#define HOLDERS_STEPS_MAX (UINT64_C(1) << 28)

/* A tensor as far as its holders depend on it. mesh_check and layout_check have passed. */
struct holders_kind {
	const struct mesh *mesh;
	const struct layout *layout;
	uint32_t ndim, elem_bytes;
	const uint64_t *shape;
};
/* Have tensors with these layouts, on one mesh, the same holders but for the coordinates of
 * ONLYs? */
bool holders_layout_alike(const struct layout *x, const struct layout *y);

/* Of a share that the replicas divide among them: what one of them owns. */
struct holders_slice {
	uint32_t replica;
	struct indices set, part;
};

/* Along one tensor dimension. */
struct holders_share {
	struct indices set, part; /* its indices, and those of them that were asked for */
	uint64_t at;		  /* what its coordinates add to the place in the mesh */
	uint32_t nslice;
	const struct holders_slice *slice; /* NULL: never cut along this dimension */
};

/* A mesh dimension whose coordinates hold the same, or operands of the same. */
struct holders_axis {
	uint32_t size, stride; /* of places in the mesh */
};

struct holders {
	struct holders_kind kind;
	uint32_t nshare[CKPT_DIMS_MAX];
	const struct holders_share *share[CKPT_DIMS_MAX]; /* in no order */
	uint32_t nreplica, noperand;			  /* products of the sizes of the axes */
	uint32_t nreplica_axis, noperand_axis;
	struct holders_axis replica_axis[CKPT_DIMS_MAX], operand_axis[CKPT_DIMS_MAX];
};

/*
 * want: what is asked for; NULL: the whole tensor. What it and kind point to must live as long as
 * the answer, whose own memory is the arena's. -ENOMEM, -E2BIG, -EOVERFLOW as layout_share.
 */
int holders_find(const struct holders_kind *kind, const struct indexset *want, struct arena *a,
		 struct holders *ret);

/*
 * Along one tensor dimension alone: how many indices of `want` the coordinate's share has
 * (*ret_part), and how many those have that come before it in the order of an answer. Some share of
 * the coordinate must meet `want`. -ENOMEM, -E2BIG.
 */
int holders_along(const struct holders_kind *kind, uint32_t tensor_dim, const struct indices *want,
		  const uint32_t *coord, uint64_t *ret_before, uint64_t *ret_part);

/* Who of the replicas of a share. */
enum holders_who {
	HOLDERS_OWNERS, /* each element once, where layout_owned says: what lies in files */
	HOLDERS_EACH,	/* all of them: what lies in the memory of ranks */
	HOLDERS_ONE, /* of each share the replica `turn` mod R: spreads reads of memory over them */
};

struct holder {
	uint32_t rank, place; /* of the holder; row-major number of the coordinate */
	uint32_t operand;     /* number of the coordinate on the PARTIAL mesh dimensions; 0 */
	struct indexset set;  /* what it owns, or holds (EACH, ONE) */
	struct indexset part; /* of that, what was asked for: never empty */
};

/* Plain data, but for the pointers into itself that holders_next hands out: not to be copied. */
struct holders_cursor {
	const struct holders *h;
	const char *component, *name;
	enum holders_who who;
	uint32_t turn, cut; /* cut: the dimension that the replicas divide; ndim: none */
	uint32_t replica, replica_end, slice;
	uint32_t operand;
	uint64_t base, at;	   /* places by ONLYs, and by the shares */
	bool more, given;	   /* given: the one that it stands on */
	uint32_t i[CKPT_DIMS_MAX]; /* share of each dimension */
	struct indices set[CKPT_DIMS_MAX], part[CKPT_DIMS_MAX];
};

/*
 * Enumerate an answer for one tensor. layout: the tensor's own, of the answer's kind. component and
 * name decide who owns what is small. turn: HOLDERS_ONE. No allocation; what `ret` points to is
 * valid until the next call.
 */
void holders_begin(const struct holders *h, const struct layout *layout, const char *component,
		   const char *name, enum holders_who who, uint32_t turn,
		   struct holders_cursor *ret_cursor);
bool holders_next(struct holders_cursor *c, struct holder *ret);
#endif
