// SPDX-License-Identifier: Apache-2.0
// turned.c - see turned.h. Tasks compare, all that is known of a declaration belongs to the owner.
// Invariant: entries of whole[] are only added, so the first n of them mean the same to the
// library, to a snapshot under way, and here.
#include "daemon/turned.h"
#include "ckpt/base/mutant.h"
#include "ckpt/move/round.h"
#include "ckpt/wire/turns.h"
#include "daemon/average.h"
#include "daemon/state.h"
#include <inttypes.h>
#include <stdio.h>

#define SIGN_BYTES (16 * MIB) /* compared between two signs of life */

/* --- of a declaration --- */
struct turns {
	uint32_t npiece;
	struct turns_piece {
		uint64_t off, len, from; /* in the main part; from: of its master */
		uint32_t tensor, dtype;	 /* tensor: of the declaration */
	} * piece;			 /* [npiece] ascending by off */
	bool *goes;			 /* [of the declaration's tensors] */

	/* The owner's. allowed: turns[] of the page says so; never: too many tensors are unequal */
	bool allowed, never;
	uint32_t nwhole, whole[SHARED_WHOLE];
	uint64_t order;	       /* as shared_rank.turn_order */
	uint64_t equal[TURNS]; /* 1 + the newest step whose blocks of this turn were equal */
};

static int by_off(const void *va, const void *vb)
{
	const struct turns_piece *a = va, *b = vb;

	return COMPARE(a->off, b->off);
}

/* Averaged itself (source=param): the update reads the piece's own bytes. */
static bool is_averaged(const struct decl *d, const struct table_piece *p)
{
	const struct averages *a = d->averages;

	for (uint32_t i = 0; a && i < a->nrun; i++)
		if (a->run[i].src >= p->off && a->run[i].src - p->off < p->len)
			return true;
	return false;
}

/* The pieces of the main part whose tensors go in turns. */
static void pieces_take(const struct decl *d, const uint32_t *twin, struct turns *x)
{
	const struct table *t = decl_part(d, PART_MAIN);

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct table_tensor *of = &t->tensor[p->tensor];
		uint32_t n;

		if (twin[i] == TABLE_NONE)
			continue;
		n = table_find(&d->table, of->component, of->name, of->rank);
		if (n == TABLE_NONE || !x->goes[n])
			continue;
		x->piece[x->npiece++] =
			(struct turns_piece){ p->off, p->len, t->piece[twin[i]].off, n, of->dtype };
	}
	qsort(x->piece, x->npiece, sizeof *x->piece, by_off);
}

/* Which tensors may, and how many pieces they have at most. */
static uint32_t tensors_judge(const struct decl *d, const uint32_t *twin, const uint8_t *on,
			      uint64_t non, bool *good)
{
	const struct table *t = decl_part(d, PART_MAIN);
	uint64_t first = UINT64_MAX; /* chunk of a derived piece: masters lie before it (walk.c) */
	uint32_t n = 0;

	for (uint32_t i = 0; i < non; i++)
		good[i] = on[i] && d->table.tensor[i].cls == CKPT_DERIVED;
	for (uint32_t i = 0; i < t->npiece; i++)
		if (twin[i] != TABLE_NONE)
			first = MIN(first, t->piece[i].off >> CHUNK_LOG2);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_tensor *of = &t->tensor[t->piece[i].tensor];
		const struct table_piece *m = twin[i] == TABLE_NONE ? NULL : &t->piece[twin[i]];
		uint32_t k = of->cls == CKPT_DERIVED
				     ? table_find(&d->table, of->component, of->name, of->rank)
				     : TABLE_NONE;

		if (k == TABLE_NONE)
			continue;
		good[k] &= m && m->off + m->len <= first << CHUNK_LOG2 &&
			   !is_averaged(d, &t->piece[i]);
		n++;
	}
	return n;
}

int turns_make(struct decl *d, const uint8_t *on, uint64_t n, struct ckpt_err *err)
{
	const struct table *t = decl_part(d, PART_MAIN);
	cleanup_free uint32_t *twin = calloc((size_t)t->npiece + 1, sizeof *twin);
	cleanup_free bool *good = calloc((size_t)d->table.ntensor + 1, sizeof *good);
	uint32_t most;

	if (n > d->table.ntensor)
		return ckpt_error(err, -EPROTO,
				  "rank %u says of %" PRIu64 " tensors whether they lie on "
				  "devices, and declares %u",
				  d->rank, n, d->table.ntensor);
	if (!twin || !good || table_twins(t, twin) < 0)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	most = tensors_judge(d, twin, on, n, good);
	d->turns = calloc(1, sizeof *d->turns);
	if (d->turns)
		d->turns->piece = calloc((size_t)most + 1, sizeof *d->turns->piece);
	if (!d->turns || !d->turns->piece)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	d->turns->order = TURNS_ORDER;
	d->turns->goes = TAKE(good);
	pieces_take(d, twin, d->turns);
	if (!d->turns->npiece)
		turns_free(TAKE(d->turns));
	return 0;
}

void turns_free(struct turns *x)
{
	if (!x)
		return;
	free(x->piece);
	free(x->goes);
	free(x);
}

bool turns_has(const struct turns *x, uint32_t tensor)
{
	return x && x->goes[tensor];
}

/* --- of a copy --- */
struct turned {
	_Atomic uint32_t refs;
	uint32_t turn; /* 0 to TURNS - 1 */
	uint32_t nwhole, whole[];
};

int turned_make(uint32_t turn, const uint32_t *whole, uint32_t n, struct turned **ret)
{
	struct turned *x = NULL;

	*ret = NULL;
	if (turn == TURN_WHOLE)
		return 0;
	x = calloc(1, sizeof *x + n * sizeof *x->whole);
	if (!x)
		return -ENOMEM;
	x->refs = 1;
	x->turn = (turn - 1) % TURNS;
	x->nwhole = n;
	memcpy(x->whole, whole, n * sizeof *whole);
	*ret = x;
	return 0;
}

struct turned *turned_ref(struct turned *x)
{
	if (x)
		atomic_fetch_add(&x->refs, 1u);
	return x;
}

void turned_unref(struct turned *x)
{
	if (x && atomic_fetch_sub(&x->refs, 1u) == 1)
		free(x);
}

static bool is_whole(const struct turned *x, uint32_t tensor)
{
	for (uint32_t i = 0; i < x->nwhole; i++)
		if (x->whole[i] == tensor)
			return true;
	return false;
}

void turned_mark(const struct turned *x, const struct decl *d, struct table *t)
{
	if (!x || !d->turns || MUTANT(TURN_READ_AS_WHOLE))
		return;
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece *p = &t->piece[i];
		const struct turns_piece key = { .off = p->off }, *k;

		if (t->tensor[p->tensor].cls != CKPT_DERIVED)
			continue;
		k = bsearch(&key, d->turns->piece, d->turns->npiece, sizeof *k, by_off);
		if (!k || is_whole(x, k->tensor))
			continue;
		p->flags = PIECE_DERIVED | PIECE_TRUSTED;
		p->from = k->from;
	}
}

bool turned_fits(uint32_t turn, uint32_t rev, const struct decl *d)
{
	return turn == TURN_WHOLE || (d->turns && d->rev == rev);
}

int turned_take(struct snap *s, uint32_t r, const struct shared_record *rec)
{
	const struct turns *x = s->rank[r].decl->turns;

	if (!x)
		return 0;
	/* What the library has used is what was published: n never shrinks. */
	return turned_make(rec->turn, x->whole, MIN(rec->nwhole, x->nwhole), &s->rank[r].turned);
}

/* --- comparing --- */
struct comparing {
	struct task task;
	struct snap *snap;
	uint32_t r;
	struct decl *decl; /* decl_slot_ref */
	struct slotmem *mem;
	struct turned *turned; /* NULL: all of it is compared */
	/* found: tensors in the order of pieces, the first SHARED_WHOLE of them */
	uint32_t nfound, found[SHARED_WHOLE];
	uint64_t at, element; /* the first: its piece's offset, and the number in the piece */
	bool ended;	      /* ckptd stops: not all was compared */
};

static void found_add(struct comparing *c, const struct turns_piece *p, uint64_t element)
{
	if (c->nfound && c->found[MIN(c->nfound, SHARED_WHOLE) - 1] == p->tensor)
		return;
	if (!c->nfound) {
		c->at = p->off;
		c->element = element;
	}
	if (c->nfound < SHARED_WHOLE)
		c->found[c->nfound] = p->tensor;
	c->nfound++;
}

/* Bytes [from, to) of the slot, all in one piece. */
static void stretch_compare(struct comparing *c, const struct turns_piece *p, uint64_t from,
			    uint64_t to)
{
	const uint8_t *raw = c->mem->base;
	uint64_t element = (from - p->off) / ROUND_TO_BYTES, first = 0;

	if (round_unequal(p->dtype, raw + p->from + element * ROUND_FROM_BYTES, raw + from,
			  (to - from) / ROUND_TO_BYTES, &first))
		found_add(c, p, element + first);
}

static void piece_compare(struct comparing *c, const struct turns_piece *p)
{
	const struct turned *x = c->turned;
	uint64_t end = p->off + p->len, to;

	for (uint64_t at = x ? turn_from(p->off, x->turn) : p->off; at < end && !c->ended;
	     at = x ? turn_from(to, x->turn) : to) {
		to = MIN(end, x ? turn_until(at) : at + SIGN_BYTES);
		stretch_compare(c, p, at, to);
		worker_sign(worker_me());
		c->ended |= load_relaxed(&c->snap->job->d->stops) > 1;
	}
}

static void compare_run(struct task *t)
{
	struct comparing *c = (struct comparing *)t;
	const struct turns *x = c->decl->turns;

	for (uint32_t i = 0; i < x->npiece && !c->ended && !MUTANT(TURN_UNCOMPARED); i++)
		if (!c->turned || !is_whole(c->turned, x->piece[i].tensor))
			piece_compare(c, &x->piece[i]);
}

/* --- what follows from it (owner) --- */
static bool whole_has(const struct turns *x, uint32_t tensor)
{
	for (uint32_t i = 0; i < x->nwhole; i++)
		if (x->whole[i] == tensor)
			return true;
	return false;
}

static void whole_add(struct turns *x, const struct comparing *c)
{
	x->never |= c->nfound > SHARED_WHOLE;
	for (uint32_t i = 0; i < MIN(c->nfound, SHARED_WHOLE); i++) {
		if (whole_has(x, c->found[i]))
			continue;
		if (x->nwhole < SHARED_WHOLE)
			x->whole[x->nwhole++] = c->found[i];
		else
			x->never = true;
	}
}

/* Is this declaration the one of the rank's memory as it is now? */
static bool is_current(const struct comparing *c)
{
	const struct snap *s = c->snap;

	return s->const_rev == s->launch->const_rev && s->launch->member[c->r].decl == c->decl;
}

static void turns_publish(struct turns *x, const struct comparing *c)
{
	struct shared_rank *page = c->snap->launch->member[c->r].page;

	if (x->never) {
		x->allowed = false;
		turns_forbid(page);
		return;
	}
	for (uint32_t i = 0; i < x->nwhole; i++)
		store_relaxed(&page->whole[i], x->whole[i]);
	store_relaxed(&page->turn_order, x->order);
	turns_allow(page, c->decl->epoch, c->decl->rev, x->nwhole);
}

static void equal_note(struct turns *x, const struct comparing *c)
{
	uint64_t step = c->snap->step + 1;

	for (uint32_t k = 0; k < TURNS && !c->turned; k++)
		x->equal[k] = step;
	if (!c->turned)
		return;
	x->equal[c->turned->turn] = step;
	turn_equal(c->snap->launch->member[c->r].page, c->snap->rank[c->r].mark);
	x->order = turns_order_after(x->order, c->turned->turn);
}

bool turned_outdated(const struct snap *s, uint32_t r, char *text, size_t bytes)
{
	const struct turned *is = s->rank[r].turned;
	const struct turns *x = s->rank[r].decl ? s->rank[r].decl->turns : NULL;

	if (!is || !x || (x->nwhole <= is->nwhole && !x->never))
		return false;
	snprintf(text, bytes,
		 "rank %u: another step has shown that a derived tensor is not the rounding of its "
		 "master, and this step has not copied all of it; the next steps do",
		 r);
	return true;
}

/* Why the step is not to be staged: a tensor that it has in turns is not the rounding. "": it
 * is. */
static void compare_judge(const struct turns *x, const struct comparing *c, char *text,
			  size_t bytes)
{
	uint64_t before = c->turned ? x->equal[c->turned->turn] : 0;
	char name[TABLE_KEY_BYTES + 32], since[64] = "";

	*text = 0;
	if (!c->turned)
		return;
	if (before)
		snprintf(since, sizeof since, "; in step %" PRIu64 " it was", before - 1);
	if (c->nfound)
		snprintf(text, bytes,
			 "rank %u: tensor %s is not the rounding of its master, or NaN, at element "
			 "%" PRIu64 " of its piece%s; the next steps copy all of it",
			 c->r, decl_name_at(c->decl, c->at, name, sizeof name), c->element, since);
	else if (c->ended)
		snprintf(text, bytes, "ckptd ends, and has not compared all of rank %u's copy",
			 c->r);
	else
		(void)turned_outdated(c->snap, c->r, text, bytes);
}

/* Of steps under way: staged ones were so before it was known. */
static void others_withdraw(const struct comparing *c)
{
	struct launch *l = c->snap->launch;
	char text[256];

	for (const struct snap *s = l->job->snaps; s; s = s->next)
		if (s->launch == l && s->phase == PHASE_COLLECTING &&
		    s->rank[c->r].decl == c->decl && turned_outdated(s, c->r, text, sizeof text) &&
		    !MUTANT(TURN_OUTDATED_STAGED))
			turn_unequal(l->member[c->r].page, s->rank[c->r].mark);
}

static void compare_done(struct task *t)
{
	struct comparing *c = (struct comparing *)t;
	struct snap *s = c->snap;
	struct turns *x = c->decl->turns;
	char text[1400];

	compare_judge(x, c, text, sizeof text);
	if (c->nfound) {
		whole_add(x, c);
		others_withdraw(c);
	}
	if (!c->turned && is_current(c) && !s->dropped && !c->ended)
		x->allowed = true;
	if (!*text && !c->ended)
		equal_note(x, c);
	if (x->allowed && is_current(c))
		turns_publish(x, c);
	snap_compared(s, c->r, text);
	turned_unref(c->turned);
	decl_slot_unref(c->decl);
	slotmem_unref(c->mem);
	free(c);
}

bool turned_compare(struct snap *s, uint32_t r)
{
	struct snap_rank *k = &s->rank[r];
	const struct turns *x = k->decl->turns;
	struct comparing *c;

	if (!x || (!k->turned && (x->allowed || x->never)))
		return false;
	c = calloc(1, sizeof *c);
	if (!c) {
		snap_fail(s, OUTCOME_TORN, -ENOENT, "ckptd has no memory to compare a copy");
		return false;
	}
	*c = (struct comparing){ .snap = s,
				 .r = r,
				 .decl = decl_slot_ref(k->decl),
				 .mem = slotmem_ref(k->mem),
				 .turned = turned_ref(k->turned) };
	k->task = true;
	s->tasks++;
	daemon_task(&s->job->d->copy, &c->task, compare_run, compare_done);
	return true;
}

void turns_restart(struct launch *l)
{
	for (uint32_t r = 0; r < l->world && !MUTANT(TURNS_OVER_RESTORE); r++) {
		struct member *m = &l->member[r];

		if (!m->decl || !m->decl->turns)
			continue;
		m->decl->turns->allowed = false;
		turns_forbid(m->page);
	}
}
