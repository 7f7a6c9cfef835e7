/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h - a table seen otherwise: its tensors renamed, cut, joined and turned, while its pieces
 * stay the same bytes of the same places. So a plan from a view is a plan like any other, and files
 * stay as checkable as they are. A cast changes none of them: it says which type the destination is to
 * have, and elements change on the way to it.
 *
 * A view is text, one rule a line. Each rule sees what the rules before it made of the table.
 *
 *	rename    NAME -> NEW
 *	copy      NAME -> NEW				the same tensor under one more name
 *	drop      NAME					the view does not have it
 *	transpose NAME dims 1,0 [-> NEW]		new dimension i is old dimension dims[i]
 *	reshape   NAME 32,-1,128			in row-major order; one size may be -1; "scalar"
 *	cast      NAME BF16				what is written has this dtype
 *	split     NAME dim D [sizes N,N,..] -> NEW NEW ..	in order; no sizes: equal parts
 *	concat    NAME NAME .. dim D -> NEW		the parts one behind the other along D
 *	stack     NAME NAME .. dim D -> NEW		D is a new dimension; part i is its index i
 *	unstack   NAME dim D -> NEW NEW ..		the reverse: index i is part i; D goes away
 *
 * D counts from 0, -1 is the last dimension (of stack's result: the new one is last). Blank lines,
 * and what follows a '#' at a line's beginning or behind a blank, are left out.
 *
 * Names are "component/name", or the name alone where there is no component ("/name" if that name
 * has a '/' in it). The first NAME is a pattern; the rule applies to every tensor that it matches,
 * and that is at least one:
 *	*	any characters, as few as possible; {1} is what the first '*' took, {2} the second
 *	?	any one character
 *	#	a whole decimal number, once in a pattern. concat and stack then take this pattern
 *		alone: the parts are the tensors that it matches, number 0, 1, 2, .. without gaps,
 *		and those that make the same NEW belong together
 * The other names say {1}, {2}, .. A '#' in the only NEW of split (with sizes) and unstack is the
 * number of the part. A backslash makes the next character mean itself, also a blank. As in
 *
 *	rename  model/layers.*.wq -> model/blk.{1}.q
 *	split   model/l.*.qkv dim 0 sizes 4096,512,512 -> model/l.{1}.q model/l.{1}.k model/l.{1}.v
 *	concat  model/l.*.gate model/l.{1}.up dim 0 -> model/l.{1}.gate_up
 *	stack   model/l.*.experts.#.up dim 0 -> model/l.{1}.experts.up
 *
 * NEW begins with the component of the tensor that the pattern matched, or its component ends at
 * the first '/'. Refused are two tensors of one name, a part that is used twice, and parts of other
 * types, roles, classes or shapes. Blobs are only renamed and dropped: no other pattern matches
 * them.
 *
 * An element of F4 is a byte of two values, side by side in the last dimension. Rules count values:
 * sizes along the last dimension are even, and no rule makes another dimension the last.
 *
 * A reshape's pieces are products of indices in the new shape, with strides: a piece may become
 * several, and a tensor of which one would become more than 65,536 is refused. Empty tensors have
 * any shape without elements.
 *
 * A cast is of F16, BF16, F32 and F64 to one another. Of the tensors that the pattern matches all
 * that are no floats stay; F8 and F4 are refused, unless the cast is to the type that they have. The
 * last cast of a tensor counts, from the elements of the checkpoint: none is rounded twice. It
 * follows the tensor through the rules behind it; parts are joined if they are cast alike. A cast to
 * the type that the tensor has keeps it, whatever the command's --dtype says.
 *
 * What stays of a tensor: dtype, role, class. Its layout, where it still says what the pieces are:
 * renamed, copied, turned (tensor dimensions permuted), cut or joined along a dimension that
 * nothing shards (parts of one layout), reshaped (where the sharded dimensions stay, or are the first
 * of those that become one or several, and are cut in equal blocks); else none, but for PARTIALs, without which pieces mean
 * something else (parts that differ in them are refused). Its fingerprint and its pieces', where
 * every element keeps its row-major index (renamed, copied, reshaped, a single part, only dimensions
 * of size 1 turned); else it is not known. `of`: renamed, copied, reshaped and turned; it follows the tensor that it
 * names where that is renamed.
 */
#ifndef CKPT_TABLE_VIEW_H
#define CKPT_TABLE_VIEW_H
#include "ckpt/table/table.h"

#define VIEW_RULES_MAX 65536u
#define VIEW_WORDS_MAX 65536u /* of a rule */
#define VIEW_PARTS_MAX 65536u /* that one tensor is cut into, or joined of */

struct view_rule; /* view_parse.h */
struct view {
	uint32_t nrule;
	const struct view_rule *rule;
};

/* where: what messages call the text, "views.txt". The view lives in the arena. -EINVAL: every line
 * that cannot be read, with the character (from 1) and what to write there; -ENOMEM, -E2BIG. */
int view_parse(const char *text, const char *where, struct arena *a, struct view *ret,
	       struct ckpt_err *err);

/* What becomes of a tensor's elements. */
struct view_cast {
	uint32_t dtype;	   /* 0: no rule says anything */
	const char *where; /* the rule that does, "views.txt:3" */
};

/*
 * src is sealed and must outlive *ret, which borrows its index lists and names. ret is sealed: the
 * meshes and places of src with their numbers, its layouts and perhaps more, its tensors in their
 * order and new ones behind them. *ret_cast: [ntensor], in ret. -EINVAL: a rule cannot be followed; all that is wrong with it is
 * in the error, and nothing of the rules behind it. -ENOMEM, -E2BIG. ret is empty then.
 */
int view_make(const struct table *src, const struct view *v, struct table *ret,
	      const struct view_cast **ret_cast, struct ckpt_err *err);
#endif
