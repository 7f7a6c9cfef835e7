// SPDX-License-Identifier: Apache-2.0
// spare.c - slots of a launch that has ended, for the next launch of the same job: they are in
// memory already. So a job that starts again needs as much memory as before: its state and its
// slots. Called by launch and snap.
// Invariants: a slot is given to the same rank of the same job, and to a process of the same user;
// no process that had it before can still write to it; a slot that holds a step is given to the
// gate only after that step is released.
#include "ckpt/base/mutant.h"
#include "daemon/state.h"

struct spare {
	uint32_t rank;
	uid_t uid;
	struct slotmem *mem; /* reference */
	struct decl *decl;   /* decl_slot_ref: what it was for */
	uint64_t since_ns;
	struct spare *next;
};

static void spare_unlink(struct spare **at)
{
	struct spare *x = *at;

	*at = x->next;
	slotmem_unref(x->mem);
	decl_slot_unref(x->decl);
	free(x);
}

/* A snap of another launch than l that has its bytes there: so it is held until that is released.
 * NULL: none. */
static const struct snap *held_by(const struct job *j, const struct launch *l,
				  const struct slotmem *mem)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		for (uint32_t r = 0; s->launch != l && r < s->world; r++)
			if (s->rank[r].mem && s->rank[r].mem->ino == mem->ino)
				return s;
	return NULL;
}

/* Will it be released when l has staged a step? Not so what was staged for another directory. */
static bool spare_follows(const struct launch *l, const struct snap *s)
{
	return place_same(s->launch->place, l->place) && !s->rescue;
}

bool spare_brought(const struct launch *l, uint32_t rank, struct slotmem *mem, const struct decl *d)
{
	const struct snap *s = held_by(l->job, l, mem);

	mem->dirty = !s; /* it may have held a step of other declarations: see slotmem_clean */
	return !s || (spare_follows(l, s) && rank < s->world && s->rank[rank].decl &&
		      s->rank[rank].decl->slot_sum == d->slot_sum);
}

void spares_keep(struct launch *l)
{
	struct job *j = l->job;

	if (l != j->launch || j->d->drain_until)
		return;
	for (uint32_t r = 0; r < l->world; r++) {
		struct member *m = &l->member[r];

		/* A process that lives and has not said that it is done may still write. */
		for (uint32_t i = 0; member_dead(m) && m->decl && i < l->nslot; i++) {
			struct spare *x =
				m->slot[i] && m->slot[i]->touched ? calloc(1, sizeof *x) : NULL;

			if (!x)
				continue;
			*x = (struct spare){ .rank = r,
					     .uid = m->uid,
					     .mem = slotmem_ref(m->slot[i]),
					     .decl = decl_slot_ref(m->decl),
					     .since_ns = now_ns(),
					     .next = j->spares };
			j->spares = x;
		}
	}
}

struct slotmem *spare_take(const struct launch *l, const struct member *m, const struct decl *d,
			   bool held)
{
	for (struct spare **at = &l->job->spares; *at; at = &(*at)->next) {
		struct spare *x = *at;
		const struct snap *s = held_by(l->job, l, x->mem);
		bool same = x->decl->slot_sum == d->slot_sum;
		struct slotmem *mem;

		if (x->rank != m->rank || x->uid != m->uid || x->mem->bytes != d->raw_bytes ||
		    (s != NULL) != held || (s && (!same || !spare_follows(l, s))))
			continue;
		mem = slotmem_ref(x->mem);
		mem->dirty |= !same;
		spare_unlink(at);
		return mem;
	}
	return NULL;
}

void spares_drop(struct job *j, uint32_t rank)
{
	for (struct spare **at = &j->spares; *at;)
		if (rank == TABLE_NONE || (*at)->rank == rank)
			spare_unlink(at);
		else
			at = &(*at)->next;
}

void spares_tick(struct job *j, uint64_t now)
{
	for (struct spare **at = &j->spares; *at;)
		if (elapsed_ns((*at)->since_ns, now) > SPARE_NS)
			spare_unlink(at);
		else
			at = &(*at)->next;
}

uint32_t slots_lent(const struct launch *l, struct slotmem *const *slot)
{
	uint32_t lent = 0;

	for (uint32_t i = 0; i < l->nslot; i++)
		if (slot[i] && held_by(l->job, l, slot[i]))
			lent |= 1u << i;
	return lent;
}

uint32_t spare_at(const struct launch *l, uint32_t lent, struct slotmem *const *slot)
{
	uint32_t best = TABLE_NONE, left = 0;

	for (uint32_t i = 0; i < l->nslot; i++) {
		if (slot[i])
			continue;
		if (lent >> i & 1)
			return i;
		best = i;
		left++;
	}
	return left > 1 ? best : TABLE_NONE;
}

void launch_lent(struct launch *l)
{
	uint32_t before = l->lent;

	l->lent = 0;
	for (uint32_t r = 0; r < l->world && !MUTANT(SLOT_TAKEN_WHILE_HELD); r++)
		l->lent |= slots_lent(l, l->member[r].slot);
	for (uint32_t i = 0; i < l->nslot; i++)
		if ((before & ~l->lent) >> i & 1 && !snap_in_slot(l, i))
			slot_give(l, i);
}
