/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.c - is every element of every tensor in exactly one piece? Asked before a checkpoint is
 * committed and after one is opened: any program may have made the pieces, so the work is bounded.
 * Invariant: exactly one <=> no two pieces meet, and their sizes add up to the tensor's. Of a
 * pending reduction this holds for the pieces of each operand, and there are all operands. Pairs
 * are found by a tree of bounds; if those are many, the declaration may say that the pieces are
 * disjoint.
 */
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/table/declared.h"
#include "ckpt/table/piece_tree.h"
#include <stdio.h>

/* Steps through index lists that one table may cost: a few seconds. A tensor in a grid of 4096 x 16
 * pieces takes a million. */
#define STEPS_MAX ((uint64_t)1 << 30)
/* Overlaps that are listed for each tensor, and steps that a table's gaps may cost to say where they
 * begin. */
#define OVERLAPS_SHOWN 4
#define OPERANDS_SHOWN 4
#define RANKS_SHOWN 8
#define TRIES_MAX ((uint64_t)1 << 28)
/* Pairs of one tensor: with so many, it is not worth the time to count the others. */
#define OVERLAPS_MAX 65536
#define LABEL_BYTES 160	  /* of a tensor in a message; longer names are cut */
#define ELEMENT_BYTES 400 /* of 16 dimensions with 20 digits each */

struct cover {
	const struct table *t;
	const struct table_tensor *x;
	const struct table_piece *piece; /* [n] of this tensor */
	uint32_t n;
	uint64_t steps, tries;	  /* of the table so far */
	uint64_t pairs, overlaps; /* of the tensor */
	bool some;		  /* of the pieces: what is in none of them may be in others */
	char label[320];
	struct ckpt_errlist *list;
	struct piece_tree tree; /* of `piece` */
	struct rank_map ranks;	/* opened when it is first needed */
};

/* What was not checked is no fault of the table: the list's code is -ENOMEM. */
static void not_checked(struct ckpt_errlist *l, const char *what)
{
	ckpt_errlist_add(l, "%s: out of memory: the pieces were not checked", what);
	l->code = -ENOMEM;
}

/* Do they meet? *ret_at: the first common index. */
static bool lists_meet(struct cover *c, const struct indices *x, const struct indices *y,
		       uint64_t *ret_at)
{
	if (indices_apart(x, y))
		return false;
	c->steps += x->n + y->n;
	return indices_meet(x, y, ret_at);
}

/* "0-4 x 3-6": its bounds. */
static char *set_print(const struct indexset *s, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	text_add(&t, "%s", s->ndim ? "" : "[]");
	for (uint32_t d = 0; d < s->ndim; d++)
		text_add(&t, "%s%llu-%llu", d ? " x " : "",
			 (unsigned long long)indices_lo(&s->dim[d]),
			 (unsigned long long)indices_hi(&s->dim[d]));
	return buf;
}

static void pair_test(struct cover *c, const struct table_piece *p, const struct table_piece *q)
{
	uint64_t at[CKPT_DIMS_MAX];
	char text[ELEMENT_BYTES], box[2][400];

	c->steps++;
	for (uint32_t d = 0; d < c->x->ndim; d++)
		if (!lists_meet(c, &p->set.dim[d], &q->set.dim[d], &at[d]))
			return;
	if (++c->overlaps > OVERLAPS_SHOWN)
		return;
	human_shape(c->x->ndim, at, text, sizeof text);
	if (table_is_boxes(c->t, c->x))
		ckpt_errlist_add(c->list,
				 "%s: element %s is in two pieces: in box %s of rank %u and in "
				 "box %s of rank %u",
				 c->label, text, set_print(&p->set, box[0], sizeof box[0]), p->rank,
				 set_print(&q->set, box[1], sizeof box[1]), q->rank);
	else
		ckpt_errlist_add(c->list,
				 "%s: element %s is in two pieces: in %s of rank %u and in %s of "
				 "rank %u",
				 c->label, text, c->t->place[p->place].name, p->rank,
				 c->t->place[q->place].name, q->rank);
}

static bool is_as_declared(struct cover *c)
{
	uint32_t tensor = (uint32_t)(c->x - c->t->tensor);

	c->steps += c->n;
	return pieces_as_declared(c->t, tensor, c->piece, c->n, &c->ranks);
}

static bool pair_check(void *arg, uint32_t i, uint32_t k)
{
	struct cover *c = arg;
	const struct table_piece *p = &c->piece[i], *q = &c->piece[k];

	if (++c->pairs == DECLARED_PAIRS * (uint64_t)c->n && is_as_declared(c))
		return false;
	if (indexset_order(&q->set, &p->set) < 0)
		pair_test(c, q, p);
	else
		pair_test(c, p, q);
	return c->steps <= STEPS_MAX && c->overlaps < OVERLAPS_MAX;
}

struct region {
	uint64_t lo, hi;
}; /* [lo, hi) of a dimension */

/* How many elements of the pieces live[0 .. n) lie in the region. */
static uint64_t region_count(struct cover *c, const struct region *in, const uint32_t *live,
			     uint32_t n)
{
	uint64_t have = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct indexset *s = &c->piece[live[i]].set;
		uint64_t numel = 1;

		for (uint32_t d = 0; d < s->ndim && numel; d++) {
			c->tries += s->dim[d].n;
			numel *= indices_below(&s->dim[d], in[d].hi) -
				 indices_below(&s->dim[d], in[d].lo);
		}
		have += numel;
	}
	return have;
}

/* Only the pieces that reach into dimension d of the region. Returns how many. */
static uint32_t region_keep(const struct cover *c, const struct region *in, uint32_t d,
			    uint32_t *live, uint32_t n)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct indices *x = &c->piece[live[i]].set.dim[d];

		if (indices_lo(x) < in[d].hi && indices_hi(x) > in[d].lo)
			live[kept++] = live[i];
	}
	return kept;
}

/*
 * The first element that no piece has, in row-major order: of a region with a gap, the lower half
 * has one, or else the upper. The pieces are disjoint. False: there is no memory, or they are too
 * interleaved.
 */
static bool gap_find(struct cover *c, uint64_t *at)
{
	cleanup_free uint32_t *live = calloc((size_t)c->n + 1, sizeof *live);
	struct region in[CKPT_DIMS_MAX];
	uint32_t n = c->n;

	for (uint32_t i = 0; live && i < n; i++)
		live[i] = i;
	for (uint32_t d = 0; d < c->x->ndim; d++)
		in[d] = (struct region){ 0, c->x->shape[d] };
	for (uint32_t d = 0; live && d < c->x->ndim; d++) {
		while (in[d].hi - in[d].lo > 1) {
			const struct region all = in[d];
			uint64_t want = 1;

			in[d].hi = all.lo + (all.hi - all.lo) / 2;
			for (uint32_t k = 0; k < c->x->ndim; k++)
				want *= in[k].hi - in[k].lo;
			if (region_count(c, in, live, n) == want)
				in[d] = (struct region){ in[d].hi, all.hi };
			if (c->tries > TRIES_MAX)
				return false;
			n = region_keep(c, in, d, live, n);
		}
		at[d] = in[d].lo;
	}
	return live != NULL;
}

/* "of rank 1", "of ranks 0, 2, 3, ..": of the pieces. */
static char *ranks_print(const struct cover *c, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);
	uint32_t shown = 0, last = TABLE_NONE;

	for (uint32_t i = 0; i < c->n && shown <= RANKS_SHOWN; i++) {
		if (c->piece[i].rank == last)
			continue;
		last = c->piece[i].rank;
		if (shown == RANKS_SHOWN)
			text_add(&t, ", ..");
		else
			text_add(&t, "%s%u", shown ? ", " : "", last);
		shown++;
	}
	return buf;
}

static void gap_report(struct cover *c, uint64_t have)
{
	uint64_t at[CKPT_DIMS_MAX];
	char text[ELEMENT_BYTES], ranks[128], of[160] = "";

	if (!gap_find(c, at)) {
		ckpt_errlist_add(c->list, "%s: its pieces hold %llu of %llu elements", c->label,
				 (unsigned long long)have, (unsigned long long)c->x->numel);
		return;
	}
	if (c->x->layout == TABLE_NONE && c->n)
		snprintf(of, sizeof of, ", of ranks %s,", ranks_print(c, ranks, sizeof ranks));
	ckpt_errlist_add(
		c->list,
		"%s: element %s is in no piece; its %u pieces%s hold %llu of %llu elements",
		c->label, human_shape(c->x->ndim, at, text, sizeof text), c->n, of,
		(unsigned long long)have, (unsigned long long)c->x->numel);
}

/* False: it is not known whether there are any. */
static bool overlaps_report(struct cover *c)
{
	if (c->n < 2)
		return true;
	if (piece_tree_make(&c->tree, c->piece, c->n, c->x->ndim) < 0) {
		not_checked(c->list, c->label);
		return false;
	}
	c->pairs = 0;
	piece_tree_pairs(&c->tree, pair_check, c);
	if (c->steps > STEPS_MAX) {
		ckpt_errlist_add(c->list, "%s: %u pieces are too interleaved to be checked",
				 c->label, c->n);
		return false;
	}
	if (c->overlaps > OVERLAPS_SHOWN)
		ckpt_errlist_add(c->list, "%s: %s%llu more pairs of pieces overlap", c->label,
				 c->overlaps < OVERLAPS_MAX ? "" : "at least ",
				 (unsigned long long)(c->overlaps - OVERLAPS_SHOWN));
	return true;
}

/* c->piece, as c->label calls it. */
static void pieces_cover(struct cover *c)
{
	uint64_t have = 0;
	bool many = false;

	c->overlaps = 0;
	for (uint32_t i = 0; i < c->n; i++)
		many |= ckpt_add(have, c->piece[i].set.numel, &have) < 0;
	if (overlaps_report(c) && !c->overlaps && !c->some && (many || have != c->x->numel))
		gap_report(c, have);
}

/* --- pending reductions --- */

/* The operands [from, to) have no piece. *shown: lines so far. */
static void operands_missing(const struct cover *c, uint32_t dims, uint32_t from, uint32_t to,
			     uint32_t *shown)
{
	const struct mesh *m = &c->t->mesh[c->t->layout[c->x->layout].mesh];
	char label[LABEL_BYTES], at[128];

	table_tensor_print(c->x, label, sizeof label);
	for (; !c->some && from < to && *shown <= OPERANDS_SHOWN; from++, ++*shown)
		if (*shown < OPERANDS_SHOWN)
			ckpt_errlist_add(c->list,
					 "%s: the operand of %s, one of the %u of its pending "
					 "reduction, is in no piece",
					 label, operand_print(m, dims, from, at, sizeof at),
					 operand_count(m, dims));
		else
			ckpt_errlist_add(c->list, "%s: more operands are in no piece", label);
}

static void operands_cover(struct cover *c, uint32_t dims, const struct operand_pieces *by)
{
	const struct mesh *m = &c->t->mesh[c->t->layout[c->x->layout].mesh];
	uint32_t all = c->n, next = 0, shown = 0;
	char at[128];

	if (!c->x->numel && !all)
		return;
	for (uint32_t i = 0; i < all; i += c->n) {
		uint32_t k = by->operand[i];
		size_t len;

		operands_missing(c, dims, next, k, &shown);
		next = k + 1;
		for (c->n = 1; i + c->n < all && by->operand[i + c->n] == k;)
			c->n++;
		c->piece = by->piece + i;
		len = strlen(table_tensor_print(c->x, c->label, LABEL_BYTES));
		snprintf(c->label + len, sizeof c->label - len, ", operand of %s",
			 operand_print(m, dims, k, at, sizeof at));
		pieces_cover(c);
	}
	operands_missing(c, dims, next, operand_count(m, dims), &shown);
}

static void reduction_cover(struct cover *c, uint32_t dims)
{
	struct operand_pieces by = { 0 };
	int r = c->ranks.mesh ? 0 : rank_map_open(c->t, &c->ranks);

	if (!r)
		r = operand_pieces_make(&c->ranks, c->x, c->piece, c->n, &by);
	if (r == -ENOMEM)
		not_checked(c->list, c->label);
	else if (r < 0)
		ckpt_errlist_add(c->list,
				 "%s: the piece in %s is of rank %u, which the mesh of its pending "
				 "reduction does not have",
				 c->label, c->t->place[c->piece[by.lost].place].name,
				 c->piece[by.lost].rank);
	else
		operands_cover(c, dims, &by);
	operand_pieces_free(&by);
}

static void tensor_cover(struct cover *c)
{
	uint32_t dims = operand_dims(c->t, c->x);

	table_tensor_print(c->x, c->label, LABEL_BYTES);
	if (dims)
		reduction_cover(c, dims);
	else
		pieces_cover(c);
}

/* Closes what the check has opened. */
static void cover_end(struct cover *c)
{
	piece_tree_free(&c->tree);
	rank_map_close(&c->ranks);
}

void table_covers(const struct table *t, uint32_t tensor, const struct indexset *set,
		  struct ckpt_errlist *ret_list)
{
	uint32_t n = t->first[tensor + 1] - t->first[tensor];
	struct cover c = {
		.t = t,
		.x = &t->tensor[tensor],
		.piece = n ? t->piece + t->first[tensor] : NULL,
		.n = n,
		.list = ret_list,
	};
	uint64_t have = 0;
	struct arena a = { 0 };
	bool known;

	table_tensor_print(c.x, c.label, sizeof c.label);
	known = overlaps_report(&c);
	cover_end(&c);
	if (!known)
		return;
	for (uint32_t i = 0; set->numel && !c.overlaps && i < n; i++) {
		struct indexset both;
		int r = indexset_intersect(&c.piece[i].set, set, &a, &both);

		if (r < 0) {
			if (r == -ENOMEM)
				not_checked(ret_list, c.label);
			else
				ckpt_errlist_add(ret_list,
						 "%s: its pieces are too interleaved to be checked",
						 c.label);
			have = set->numel;
			break;
		}
		have += both.numel;
		arena_free(&a);
	}
	arena_free(&a);
	if (!c.overlaps && have < set->numel)
		ckpt_errlist_add(ret_list,
				 "%s: %llu of the %llu elements that belong here are not declared",
				 c.label, (unsigned long long)(set->numel - have),
				 (unsigned long long)set->numel);
}

static void cover_all(const struct table *t, bool some, struct ckpt_errlist *ret_list)
{
	struct cover c = { .t = t, .some = some, .list = ret_list };

	assert(t->sealed);
	for (uint32_t i = 0; i < t->ntensor; i++) {
		c.x = &t->tensor[i];
		c.n = t->first[i + 1] - t->first[i];
		c.piece = c.n ? t->piece + t->first[i] : NULL;
		if (c.x->cls != CKPT_SINK)
			tensor_cover(&c);
	}
	cover_end(&c);
}

void table_cover(const struct table *t, struct ckpt_errlist *ret_list)
{
	cover_all(t, false, ret_list);
}

void table_disjoint(const struct table *t, struct ckpt_errlist *ret_list)
{
	cover_all(t, true, ret_list);
}
