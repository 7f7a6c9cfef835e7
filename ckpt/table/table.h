/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - the one idea of the house: a piece says that these elements of this tensor lie in these
 * bytes of this place.
 *
 * A job's memory is a table (places: memory segments of ranks). A staged snapshot is a table
 * (places: slots). A checkpoint in any format is a table (places: files). A target mesh is a table
 * whose places are still empty. Planner, mover and verbs work on tables and nothing else.
 *
 * Life: zero-initialise, add, then table_seal; a sealed table is immutable and may be shared
 * between threads. Everything lives in the table's arena and goes with table_free.
 */
#ifndef CKPT_TABLE_TABLE_H
#define CKPT_TABLE_TABLE_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"
#include "ckpt/base/strmap.h"
#include "ckpt/layout/layout.h"
#include <string.h>

#define TABLE_NONE UINT32_MAX
#define TABLE_TENSORS_MAX (1u << 20)
#define TABLE_PIECES_MAX (1u << 26)
#define TABLE_PLACES_MAX (1u << 20)
#define TABLE_RANKS_MAX (1u << 24) /* places of all its meshes, read from a file */
#define TABLE_MESHES_MAX 1024u	   /* these two are searched one by one */
#define TABLE_LAYOUTS_MAX 4096u

#define TABLE_AVERAGES_MAX 64u
#define TABLE_SCHEDULE_MAX 4095u /* bytes of table_average.schedule, without the final 0 */

enum { TENSOR_BLOB = 1 }; /* table_tensor.flags: bytes given by value; U8, 1-D */
enum {			  /* table_piece.flags */
       /* No bytes of its own: its elements are F32 ones from byte `from` of the place on, rounded
        * to the
	 * tensor's dtype, which is BF16 or F16 (in a file: those of its twin, a piece of the tensor
	 * `of` with the same set, row-major, in the same place). off and len keep its space in the
	 * raw space, which holds nothing; strides count elements, here as everywhere. */
       PIECE_DERIVED = 1,
       PIECE_TRUSTED = 2, /* with DERIVED: it was not compared in this step */
};
enum { AVERAGE_KAHAN = 1, AVERAGE_MIXED = 2, AVERAGE_SEEDED = 4 }; /* table_average.flags */

/* A row of AVERAGES (docs/FORMAT.md): what a MADE tensor averages, how, and which updates it has
 * had. */
struct table_average {
	const char *name, *schedule;
	double product;
	uint64_t updates, last_step, since; /* last_step: UINT64_MAX: none */
	uint8_t history[16];
	uint32_t flags, rule; /* (name, rule) is the key */
};

struct table_tensor {
	const char *component, *name; /* (component, name, rank) is the key */
	const char *of; /* "component/name" of the tensor that it belongs to; "" for none */
	uint32_t dtype, elem_bytes; /* enum ckpt_dtype */
	uint32_t role, cls, flags;
	uint32_t media; /* of a blob: enum ckpt_media; else 0 */
	/* As declared; TABLE_NONE. A hint, but for its PARTIALs: they say what the pieces are. */
	uint32_t layout;
	/* without a layout: EXPLICIT (or a blob): its pieces, of any ranks, say what each holds */
	uint32_t rank; /* owner of a per-rank blob; else TABLE_NONE */
	uint32_t
		made; /* 0: a rank declared it; n: record n - 1 of table.average says what made it */
	uint32_t ndim;
	const uint64_t *shape;
	uint64_t numel; /* computed by table_add_tensor */
	uint64_t fp;	/* fingerprint; 0 where it is not known */
	bool fp_known;
};

/* UINT64_MAX where they are more. */
static inline uint64_t table_tensor_bytes(const struct table_tensor *x)
{
	uint64_t bytes;

	return __builtin_mul_overflow(x->numel, x->elem_bytes, &bytes) ? UINT64_MAX : bytes;
}

struct table_piece {
	uint32_t tensor, rank, place;
	uint16_t flags;
	bool fp_known;
	struct indexset set;   /* which elements */
	uint64_t off, len;     /* bytes of the place that it spans */
	const int64_t *stride; /* [ndim], in elements, of consecutive positions of the set;
					 * NULL: row-major */
	uint64_t fp;	       /* 0 where it is not known */
	uint64_t
		from; /* DERIVED: the byte of the place where the elements that are rounded begin */
};

struct table_place {
	const char *name; /* file name, "rank 3 slot 1", ... for messages */
	uint32_t rank;	  /* of its owner; TABLE_NONE */
	uint64_t bytes;	  /* size of its raw space: pieces lie inside */
};

struct table {
	struct arena arena;
	uint32_t nmesh, nlayout, ntensor, npiece, nplace, naverage;
	struct mesh *mesh;
	struct layout *layout;
	struct table_tensor *tensor;
	struct table_piece *piece; /* after table_seal sorted by (tensor, rank, place, off) */
	struct table_place *place;
	struct table_average *average;
	uint32_t *first; /* [ntensor+1] after table_seal: pieces of tensor t are
					 * [first[t], first[t+1]) */
	bool sealed;
	bool borrows;	     /* private: its tensors are another table's */
	struct keymap index; /* private: tensors by their keys */
	uint32_t cap_[6];    /* private */
};

/*
 * Each copies what it is given. ret_id may be NULL. Meshes and layouts that exist already are
 * found, not added again; a tensor whose key exists is -EALREADY. Errors name the tensor.
 */
int table_add_mesh(struct table *t, const struct mesh *m, uint32_t *ret_id, struct ckpt_err *err);
int table_add_layout(struct table *t, const struct layout *l, uint32_t *ret_id,
		     struct ckpt_err *err);
/* One with the same name and rule is found; where the two differ in anything else it is
 * AVERAGE_MIXED. */
int table_add_average(struct table *t, const struct table_average *x, uint32_t *ret_id,
		      struct ckpt_err *err);
static inline bool table_shape_same(const struct table_tensor *x, const struct table_tensor *y)
{
	return x->ndim == y->ndim &&
	       (!x->ndim || !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape));
}
/* Do two rows of one (name, rule) say the same? MIXED apart. */
bool table_averages_equal(const struct table_average *x, const struct table_average *y);
int table_add_tensor(struct table *t, const struct table_tensor *x, uint32_t *ret_id,
		     struct ckpt_err *err);
int table_add_place(struct table *t, const struct table_place *p, uint32_t *ret_id,
		    struct ckpt_err *err);
/* Room for so many more, where their number is known: nothing is copied while they come.
 * -ENOMEM. */
int table_reserve(struct table *t, uint64_t ntensor, uint64_t npiece);
/* Sets numel. -EOVERFLOW: the shape has more than 2^63 - 1 bytes, or values (dtype_values). */
int table_shape_count(struct table_tensor *x);
/* For readers of files, where many tensors have one name's bytes: component, name and of are not
 * copied but must live in t->arena. */
int table_put_tensor(struct table *t, const struct table_tensor *x, uint32_t *ret_id,
		     struct ckpt_err *err);
/*
 * Checks: set inside the shape, span (by strides or numel x elem_bytes) inside the place, strides
 * >= 0. len is computed. A piece without elements (an empty share) is not added, and no error.
 */
int table_add_piece(struct table *t, const struct table_piece *p, struct ckpt_err *err);
/*
 * For readers of files, where many pieces have one set: set and stride are not copied but must live
 * in t->arena; the lists have passed indices_check and none is empty.
 */
int table_put_piece(struct table *t, const struct table_piece *p, struct ckpt_err *err);
int table_seal(struct table *t, struct ckpt_err *err);
/* As a sealed table has them: by tensor, rank, place and off. As qsort's comparisons return it. */
int table_piece_order(const struct table_piece *a, const struct table_piece *b);
/* An open table with the meshes, layouts and tensors of x, which is sealed, outlives it and keeps
 * them: places and pieces can be added, nothing else. */
struct table table_borrow(const struct table *x);
/*
 * A sealed table like x, with records of its own of tensors, pieces, places and averages, which may
 * be changed where that leaves their order as it is. All that they point to is x's, which outlives
 * it.
 * -ENOMEM.
 */
int table_twin(const struct table *x, struct table *ret);
/* A sealed table without pieces is open again for some: MANIFEST's, which the parts bring. */
void table_reopen(struct table *t);
/* A sealed table is open again, without the pieces of these tensors ([ntensor]): others may be added
 * for them. */
void table_reopen_without(struct table *t, const bool *tensor);
void table_free(struct table *t);

/*
 * TABLE_NONE when there is none. rank: TABLE_NONE for all but per-rank blobs. Works before and
 * after table_seal.
 */
uint32_t table_find(const struct table *t, const char *component, const char *name, uint32_t rank);
bool table_key_equal(const struct table_tensor *x, const struct table_tensor *y);
/* A hint, where many are to be found or put: fetch from memory what that will need. */
void table_find_soon(const struct table *t, const char *component, const char *name, uint32_t rank);
/* "component/name", or "component/name of rank 3": what messages call a tensor. Returns buf. */
char *table_tensor_print(const struct table_tensor *x, char *buf, size_t bytes);
/* "Shard(0)@fsdp, Replicate@dp": the declared layout; "-" without one. Returns buf. */
char *table_layout_print(const struct table *t, uint32_t layout, char *buf, size_t bytes);

/* The tensor of this key ("component/name"; a component has no '/'); TABLE_NONE. */
uint32_t table_find_key(const struct table *t, const char *key);
/* "component/name" of a tensor, as `of` has it. Returns buf, which is long enough. */
#define TABLE_KEY_BYTES (2 * CKPT_NAME_MAX + 2)
char *table_key(const struct table_tensor *x, char buf[TABLE_KEY_BYTES]);

/*
 * The tensor of which a tensor of class derived is the rounding: that of the key `of`, if it is
 * F32, of the same shape, and neither derived nor a SINK, and if x is BF16 or F16 and neither has a
 * pending reduction. TABLE_NONE: there is none, or x is of another class. x is one of t's tensors.
 */
uint32_t table_master(const struct table *t, const struct table_tensor *x);
/*
 * The pieces of derived tensors and those of their masters: ret_twin[t->npiece] is, of a piece of a
 * tensor that is derived, the piece of the tensor `of` with the same elements in the same place;
 * TABLE_NONE where there is none, and of every other piece. Of a tensor that is BF16 or F16, with a
 * master that is F32, of the same shape, not derived itself, neither with a pending reduction
 * (table_master); both pieces row-major, the master's on a multiple of 4 bytes. t is sealed.
 * -ENOMEM.
 */
int table_twins(const struct table *t, uint32_t *ret_twin);
/*
 * Which tensor's component, name and element size the ownership rule takes for x: a derived one's
 * master, the tensor that a MADE one averages; else x itself. x is one of t's tensors.
 */
const struct table_tensor *table_owned_as(const struct table *t, const struct table_tensor *x);
/*
 * Of what a rank declares: every tensor of class derived has a master, with the same layout. All
 * that do not are lines in the list.
 */
void table_check_derived(const struct table *t, struct ckpt_errlist *ret_list);

/*
 * Where a piece's elements are read: a DERIVED one's as F32 from `from` on; every other one's at
 * its own bytes. off and len are bytes of the place; elem are those of an element there.
 */
struct piece_bytes {
	uint64_t off, len;
	uint32_t elem;
};
struct piece_bytes table_piece_bytes(const struct table *t, const struct table_piece *p);

/*
 * Is it EXPLICIT: in pieces of any ranks, which no layout describes? That is so without a layout,
 * unless it is a blob, and in a declaration also if its layout has mode CKPT_BOXES.
 */
bool table_is_boxes(const struct table *t, const struct table_tensor *x);
/*
 * Of a declaration whose boxes have become pieces of a part: its tensors have no layouts of mode
 * CKPT_BOXES any more, and the table has neither those nor meshes that only they named. So ranks
 * that hold boxes on different meshes agree about the tensor.
 */
int table_boxes_forget(struct table *t); /* -ENOMEM */
/* The numbers that meshes and layouts have then, ret_mesh[nmesh], ret_layout[nlayout]; TABLE_NONE:
 * gone. */
void table_boxes_numbers(const struct table *t, uint32_t *ret_mesh, uint32_t *ret_layout);

/* Same mesh, placements: compared by content across tables. */
bool table_layout_equal(const struct table *x, uint32_t x_layout, const struct table *y,
			uint32_t y_layout);

/*
 * Do two declarations of one tensor agree (dtype, shape, role, class, of, media, layout)? Every
 * difference is a line in the list.
 */
void table_tensor_compare(const struct table *x, uint32_t x_tensor, const char *x_who,
			  const struct table *y, uint32_t y_tensor, const char *y_who,
			  struct ckpt_errlist *ret_list);

/*
 * Is every tensor (other than SINKs) covered exactly once by its pieces? Of a pending reduction:
 * once by the pieces of each of its operands (operand.h). Gaps and overlaps are lines in the list.
 * Sealed tables. A tensor in pieces so many and so interleaved that the answer would take minutes
 * is a line as well. Without memory the list's code becomes -ENOMEM: what was not checked is not
 * wrong.
 */
void table_cover(const struct table *t, struct ckpt_errlist *ret_list);
/* The same where not all pieces are known: overlaps alone are lines. */
void table_disjoint(const struct table *t, struct ckpt_errlist *ret_list);
/*
 * Does no element of a tensor lie in two of its pieces, and every element of the set in one? (A
 * rank's declaration against its share.)
 */
void table_covers(const struct table *t, uint32_t tensor, const struct indexset *set,
		  struct ckpt_errlist *ret_list);

/*
 * Add the meshes, layouts and tensors of y that x lacks (where both have one they must compare
 * equal: differences go to the list, and the pieces of such tensors are left out), and all places
 * and pieces of y. x is not sealed. ret_place0: the new id of y's place 0. 0 also when the list has
 * grown: ask it. Fingerprints of tensors that x has are left alone. Averages as table_add_average.
 * In messages a table is called by the name of its place 0.
 */
int table_merge(struct table *x, const struct table *y, uint32_t *ret_place0,
		struct ckpt_errlist *ret_list, struct ckpt_err *err);
/*
 * Of that the meshes, layouts, averages and tensors alone. ret_map[y->ntensor]: where y's tensors
 * are in x; TABLE_NONE: the two contradict each other.
 */
int table_merge_tensors(struct table *x, const struct table *y, uint32_t *ret_map,
			struct ckpt_errlist *ret_list, struct ckpt_err *err);
/*
 * The same where x has all of y's tensors: one that it lacks is a line in the list as well, and
 * when there are lines none of y's pieces is added (its places are). In messages the tables are
 * called x_who and y_who. any_layout: layouts are not compared (a part that another step's launch
 * wrote).
 */
int table_join(struct table *x, const struct table *y, const char *x_who, const char *y_who,
	       bool any_layout, struct ckpt_errlist *ret_list, struct ckpt_err *err);
#endif
