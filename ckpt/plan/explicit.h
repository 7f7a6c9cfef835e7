/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit.h - what a load does besides copying: every change of every tensor, what it costs,
 * and whether it was asked for. Nothing is carried out here. ckptctl (--explicit, --explain) and
 * the daemon (CKPT_EXPLICIT) ask before the first byte is written.
 *
 *	kind       a tensor has it if
 *	reshard    a rank holds other elements than it did, or none any more; or a rank that held
 *	           nothing holds a share that no rank held; or another rank carries a rank's blob
 *	cast       its dtype is another one
 *	reduce     it was a pending reduction (Partial), and is none, or another one
 *	replicate  more ranks hold an element than did
 *	drop       it is not in the result
 *	cut        it had no placements, and has some by default
 *
 * A tensor can have several kinds. One that has none of them is on every rank, bit for bit, what it
 * was there.
 *
 * Who held what is what the layouts of the source say; if a piece lies with a rank whose share does
 * not have it, the layout is wrong, and that is a reshard. A tensor without a layout was held by
 * the ranks that wrote its pieces; a checkpoint does not say which others had copies, so ranks that
 * hold elements which they did not write are a replicate. A piece of no rank was held by none.
 *
 * Bytes are counted by intersecting what ranks hold. Tensors that are alike (layouts, shape,
 * dtypes, and what was asked) are counted once; of each other one only the pieces are compared with
 * the ranks' shares. The cost of a kind of tensors is that of the shares of all ranks of both
 * meshes.
 */
#ifndef CKPT_PLAN_EXPLICIT_H
#define CKPT_PLAN_EXPLICIT_H
#include "ckpt/table/table.h"

enum explicit_kind {
	EXPLICIT_RESHARD,
	EXPLICIT_CAST,
	EXPLICIT_REDUCE,
	EXPLICIT_REPLICATE,
	EXPLICIT_DROP,
	EXPLICIT_CUT,
	EXPLICIT_KINDS,
};
#define EXPLICIT_BIT(kind) (UINT32_C(1) << EXPLICIT_##kind)
#define EXPLICIT_ALL ((UINT32_C(1) << EXPLICIT_KINDS) - 1)
/* What placements that a rule gives a tensor ask for. */
#define EXPLICIT_PLACED \
	(EXPLICIT_BIT(RESHARD) | EXPLICIT_BIT(REDUCE) | EXPLICIT_BIT(REPLICATE) | EXPLICIT_BIT(CUT))

struct explicit_words {
	const char *name;  /* "reshard" */
	const char *what;  /* what it does to a tensor: a few words */
	const char *asked; /* the options of ckptctl that ask for it */
	const char *price; /* of so many bytes: "that their rank did not hold" */
};
const struct explicit_words *explicit_words(enum explicit_kind kind);

/* Adds the kinds of "reshard,cast" to *ret. option: what errors call it, "--allow". -EINVAL: a word
 * is no kind; all such words, and the kinds that there are. */
int explicit_parse(const char *words, const char *option, uint32_t *ret, struct ckpt_err *err);

struct explicit_opts {
	/* dst is of target_make: a tensor without a layout is complete on every rank of its mesh,
	 * and a SINK that was none in src is dropped. */
	bool target;
	/* Tensors of src that dst lacks are dropped. */
	bool drops;
	/* Tensors, of either table, that are looked at; NULL: all. */
	bool (*wanted)(void *arg, const struct table_tensor *x);
	void *arg;
	/* What was asked for, bit per kind: of each tensor of dst, [dst->ntensor] (NULL: nothing);
	 * and of every tensor. */
	const uint8_t *asked;
	uint32_t asked_all;
	/* Bit per dimension of dst's first mesh: copies over it were asked for. */
	uint32_t replicate;
};

/* Tensors that are alike. Bytes are of one of them. */
struct explicit_group {
	uint32_t src, dst; /* the first of them; dst TABLE_NONE: dropped, dst does not have it */
	uint32_t ntensor;
	uint32_t found, asked; /* bit per kind; asked: of those that were found */
	bool stray;	       /* a piece is not where its layout says */
	uint64_t bytes;	       /* of its elements, as they are in src */
	uint64_t held;	       /* what the ranks hold of it in dst together */
	uint64_t read;	       /* what they take for it, as it is stored: operands of reductions,
				* too, and what derived elements are the rounding of */
	uint64_t moved;	       /* of what they take, what the rank that takes it did not hold */
	uint64_t price[EXPLICIT_KINDS];
};

struct explicit_found {
	const struct table *src, *dst;
	uint32_t ngroup, cap;
	struct explicit_group *group; /* in the order of their first tensors; dropped ones last */
	uint32_t *of_dst, *of_src;    /* the group of each tensor; TABLE_NONE: it is in none.
				       * of_src: of those that dst does not have */
};

/* src, dst: sealed; they outlive ret. opts NULL: the defaults. explicit_free in any case. -ENOMEM;
 * -E2BIG, -EOVERFLOW with the tensor: its shares cannot be counted. */
int explicit_find(const struct table *src, const struct table *dst,
		  const struct explicit_opts *opts, struct explicit_found *ret,
		  struct ckpt_err *err);
void explicit_free(struct explicit_found *f);

/* What nobody asked for in a group, and is not allowed. */
static inline uint32_t explicit_unasked(const struct explicit_group *g, uint32_t allow)
{
	return g->found & ~g->asked & ~allow;
}
/* How many changes nobody asked for, and of how many tensors. */
uint64_t explicit_count(const struct explicit_found *f, uint32_t allow, uint32_t *ret_ntensor);

/* Calls fn for each change that explicit_count counts, tensor by tensor; x is its record in dst,
 * or in src if dst does not have it. */
typedef void explicit_fn(void *arg, const struct explicit_group *g, enum explicit_kind kind,
			 const struct table_tensor *x);
void explicit_each(const struct explicit_found *f, uint32_t allow, explicit_fn *fn, void *arg);

/* What became of a group's tensors: "Shard(0)@fsdp on fsdp=4 -> Shard(0)@fsdp on fsdp=3, F32 ->
 * BF16". Returns buf. */
char *explicit_change_print(const struct explicit_found *f, const struct explicit_group *g,
			    char *buf, size_t bytes);
/* The line of a change in an error: "model/w: reshard, Shard(0)@fsdp on ..: 1.2 MiB move". */
char *explicit_line_print(const struct explicit_found *f, const struct explicit_group *g,
			  enum explicit_kind kind, const struct table_tensor *x, char *buf,
			  size_t bytes);
#endif
