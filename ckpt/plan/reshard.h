/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.h - one rank's plan from declarations alone. plan_make needs the tables of all pieces;
 * here nothing is needed but what MANIFEST and a target say: meshes, layouts, tensors. For each
 * tensor that the rank holds something of, the ranks that own it are computed (holders.h) and the
 * operations handed out one by one. Its uses: which parts of a checkpoint of thousands have to be
 * opened at all (reshard_ranks), what ranks of two meshes send each other (reshard_rank says what
 * one receives, reshard_sends what one sends), what a move costs.
 *
 * What a rank's plan costs depends on what the rank holds, not on the world and not on the tensors
 * of the model: tensors that live elsewhere are passed by with their layout, and tensors with equal
 * layouts and shapes are planned once. On disk the index sets of the parts are the truth and
 * layouts a hint: a reader opens the parts found here, and plan_make reports whether anything is
 * missing.
 *
 * One thread at a time: answers are remembered, in at most RESHARD_MEMORY_MAX bytes.
 */
#ifndef CKPT_PLAN_RESHARD_H
#define CKPT_PLAN_RESHARD_H
#include "ckpt/plan/holders.h"
#include "ckpt/table/table.h"

#define RESHARD_MEMORY_MAX ((uint64_t)16 << 20)

struct reshard_opts {
	const char *only; /* this component only; NULL: all */
	bool sinks;	  /* CKPT_SINKs of dst only */
	bool lenient;	  /* tensors that the source lacks are left out */
	bool blobs;	  /* also bytes given by value: a rank's own, and those of all ranks */
	/* Tensors of src without a layout come from its pieces, each of which its rank has, and
	 * which have each element once: what a view leaves of tensors that it cut or joined where
	 * ranks cut them. */
	bool pieces;
	enum holders_who who; /* HOLDERS_ONE: as sender.h says */
	uint32_t per_host;    /* HOLDERS_ONE: ranks n * per_host .. share a host; 0: not known */
};

struct reshard;

/*
 * src, dst: sealed; only their declarations are read; both must outlive the result. Pending
 * reductions of dst are taken as shares. opts NULL: the defaults. -ENOMEM.
 */
int reshard_open(const struct table *src, const struct table *dst, const struct reshard_opts *opts,
		 struct reshard **ret, struct ckpt_err *err);
void reshard_close(struct reshard *r); /* NULL is fine */

struct reshard_op {
	uint32_t src_tensor, dst_tensor;
	/* Who has it; TABLE_NONE: the layout does not say (a tensor without one), any rank may. */
	uint32_t src_rank;
	uint32_t dst_rank; /* who needs it */
	uint32_t operand;  /* of a pending reduction: all of them are handed out */
	uint64_t bytes;
	struct indexset share; /* what dst_rank holds of the tensor */
	struct indexset owned; /* what src_rank has of it, and what goes from one to the other; */
	struct indexset part;  /* with src_rank TABLE_NONE both are the share */
};
/* The op's sets are valid during the call. != 0 ends the stream with that result. */
typedef int reshard_fn(void *arg, const struct reshard_op *op);

/* All operations of one rank of the destination, layout by layout. What fn returned; -EMEDIUMTYPE:
 * the tensors that the rank holds and that are missing or have another shape, all of them in err,
 * after the operations of the others (whether element types fit, plan_make checks); -ENOMEM, -E2BIG
 * with the tensor. */
int reshard_rank(struct reshard *r, uint32_t rank, reshard_fn *fn, void *arg, struct ckpt_err *err);
/*
 * The other side: all operations whose src_rank is this rank of the source, by dst tensor in
 * reshard_rank's order. Both sides agree on every operation, and on the order of those between two
 * ranks. Operations that any rank may serve (src_rank TABLE_NONE) are nobody's; the ranks of a dst
 * tensor without a layout are those of dst's first mesh, or rank 0 if dst has no mesh.
 *
 * The cost depends on what the rank owns and sends, as that of reshard_rank on what the rank holds;
 * only HOLDERS_ONE looks at every rank that needs some of the share, and `pieces` at all pieces of
 * tensors without a layout. Results as reshard_rank's, but
 * for tensors that the source does not have: their receivers report them.
 */
int reshard_sends(struct reshard *r, uint32_t rank, reshard_fn *fn, void *arg,
		  struct ckpt_err *err);
/* The same two of these tensors of dst alone. */
int reshard_rank_some(struct reshard *r, uint32_t rank, const uint32_t *dst_tensor, uint32_t n,
		      reshard_fn *fn, void *arg, struct ckpt_err *err);
int reshard_sends_some(struct reshard *r, uint32_t rank, const uint32_t *dst_tensor, uint32_t n,
		       reshard_fn *fn, void *arg, struct ckpt_err *err);
/* The tensor of src that this one of dst is taken from; TABLE_NONE: none is asked for, or it does
 * not fit, which is a line in the list. */
uint32_t reshard_source(struct reshard *r, uint32_t dst_tensor, struct ckpt_errlist *list);
/* The ranks of the source that this one needs something of: true in needed[world], which is not
 * cleared. *ret_all: some operation may need any of them. As reshard_rank. */
int reshard_ranks(struct reshard *r, uint32_t rank, uint32_t world, bool *needed, bool *ret_all,
		  struct ckpt_err *err);

/* How many answers were computed so far: each one serves all tensors that are alike. */
uint64_t reshard_answers(const struct reshard *r);

/*
 * Who owns what of every tensor of a table that has a layout, tensor after tensor: a checkpoint's
 * pieces without a table of them. Memory: RESHARD_MEMORY_MAX and one kind's answer. Results as
 * reshard_rank's.
 */
typedef int reshard_owner_fn(void *arg, uint32_t tensor, const struct holder *h);
int reshard_owners(const struct table *t, enum holders_who who, reshard_owner_fn *fn, void *arg,
		   struct ckpt_err *err);
#endif
