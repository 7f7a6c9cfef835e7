/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain.c - which steps a policy keeps: see retain.h. Called by store_prune.
 * Invariant: a row that says remove has no rule that keeps it; what is not understood is kept.
 */
#include "ckpt/store/retain.h"
#include "ckpt/base/text.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

/* --- deciding --- */

struct deciding {
	const struct retain_policy *p;
	const struct store_step *step;
	uint32_t n;
	const struct store_label *label;
	uint32_t nlabel;
	uint64_t now, ages_from;
	uint64_t
		young_from; /* seq of the oldest committed step that is young: what follows it is no older */
	uint32_t newest; /* committed; UINT32_MAX: none */
	uint32_t *order; /* [nlabel] of the labels by step */
	bool *bad; /* [n]: damaged or quarantined, also by a label that is newer than the scan */
	uint32_t (*rank)[RETAIN_BEST_MAX]; /* [n]: how many are better; UINT32_MAX: no such note */
	uint32_t nlast, nseen; /* committed steps so far; and those that were set aside */
};

static bool is_damaged(const struct store_step *st)
{
	return st->state == STORE_DAMAGED || st->state == STORE_QUARANTINED ||
	       st->state == STORE_MISPLACED || st->state == STORE_NEWER ||
	       st->state == STORE_OLDER ||
	       (st->state == STORE_SET_ASIDE && (st->code || !store_step_has_id(st)));
}

static bool note_value(const struct store_step *st, const char *key, double *ret)
{
	for (uint32_t i = 0; i < st->nnote; i++) {
		if (strcmp(st->note[i].key, key) == 0) {
			*ret = st->note[i].value;
			return !isnan(*ret);
		}
	}
	return false;
}

struct ranked {
	double value; /* smaller is better */
	uint32_t at;  /* of equal ones the newer, which comes first */
	bool aside;
};

static int by_value(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->value != y->value)
		return x->value < y->value ? -1 : 1;
	return (x->at > y->at) - (x->at < y->at);
}

/* Of those with a note of the key: how many are better. A committed step counts committed ones
 * only. */
static void rank_key(struct deciding *d, uint32_t k, struct ranked *room)
{
	uint32_t n = 0, ncommitted = 0;

	for (uint32_t i = 0; i < d->n; i++) {
		const struct store_step *st = &d->step[i];
		double value;

		d->rank[i][k] = UINT32_MAX;
		if ((st->state != STORE_COMMITTED && st->state != STORE_SET_ASIDE) || d->bad[i] ||
		    !note_value(st, d->p->best[k].key, &value))
			continue;
		room[n++] = (struct ranked){ .value = d->p->best[k].max ? -value : value,
					     .at = i,
					     .aside = st->state == STORE_SET_ASIDE };
	}
	qsort(room, n, sizeof *room, by_value);
	for (uint32_t i = 0; i < n; i++) {
		d->rank[room[i].at][k] = room[i].aside ? i : ncommitted;
		ncommitted += !room[i].aside;
	}
}

static int rank_all(struct deciding *d)
{
	struct ranked *room = calloc((size_t)d->n + 1, sizeof *room);

	d->rank = calloc((size_t)d->n + 1, sizeof *d->rank);
	for (uint32_t k = 0; room && d->rank && k < d->p->nbest; k++)
		rank_key(d, k, room);
	free(room);
	return room && d->rank ? 0 : -ENOMEM;
}

static int order_by_step(const void *a, const void *b, void *arg)
{
	const struct store_label *label = arg;
	uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;

	if (label[i].step != label[k].step)
		return label[i].step < label[k].step ? -1 : 1;
	return (i > k) - (i < k);
}

static int order_all(struct deciding *d)
{
	d->order = calloc((size_t)d->nlabel + 1, sizeof *d->order);
	if (!d->order)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->nlabel; i++)
		d->order[i] = i;
	qsort_r(d->order, d->nlabel, sizeof *d->order, order_by_step, (void *)(uintptr_t)d->label);
	return 0;
}

/* The first label, in that order, of a step with this number or a higher one. */
static uint32_t order_find(const struct deciding *d, uint64_t step)
{
	uint32_t from = 0, to = d->nlabel;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (d->label[d->order[mid]].step < step)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

/* "5h", "3d": down to a minute. */
static void left_print(uint64_t ns, char ret[32])
{
	uint64_t s = ns / NS_PER_S;

	if (s >= 2 * 86400)
		(void)snprintf(ret, 32, "%" PRIu64 "d", s / 86400);
	else if (s >= 2 * 3600)
		(void)snprintf(ret, 32, "%" PRIu64 "h", s / 3600);
	else
		(void)snprintf(ret, 32, "%" PRIu64 "m", s / 60);
}

static bool is_bad(const struct deciding *d, const struct store_step *st)
{
	bool bad = is_damaged(st);

	for (uint32_t i = order_find(d, st->step); !bad && i < d->nlabel; i++) {
		const struct store_label *m = &d->label[d->order[i]];

		if (m->step != st->step)
			break;
		bad = m->kind == LABEL_BAD && store_label_is(m, st);
	}
	return bad;
}

static void labels_tell(const struct deciding *d, const struct store_step *st, struct text *t)
{
	char left[32];

	for (uint32_t i = order_find(d, st->step); i < d->nlabel; i++) {
		const struct store_label *m = &d->label[d->order[i]];

		if (m->step != st->step)
			break;
		if (!store_label_is(m, st) || !store_label_counts(m, d->now))
			continue;
		if (m->kind == LABEL_TAG)
			text_add(t, ", tagged %s", m->name);
		if (m->kind != LABEL_HOLD || MUTANT(HELD_PRUNED))
			continue;
		text_add(t, ", held by %s", m->name);
		if (m->until_ns) {
			left_print(m->until_ns - d->now, left);
			text_add(t, " (%s left)", left);
		}
	}
}

static bool is_young(const struct deciding *d, const struct store_step *st)
{
	return st->wall_ns >= d->ages_from || d->ages_from - st->wall_ns < d->p->keep_within_ns;
}

/* Whatever the policy is: somebody may want to go back to it. */
static void aside_tell(const struct deciding *d, const struct store_step *st, struct text *t)
{
	uint64_t stays = d->p->set_aside_for_ns ? d->p->set_aside_for_ns : RETAIN_SET_ASIDE_NS;
	uint64_t age = st->aside_ns ? elapsed_ns(st->aside_ns, d->ages_from) : 0;
	char how_long[32], left[32];

	if (st->state != STORE_SET_ASIDE || !retain_is_policy(d->p) || age >= stays || st->older ||
	    MUTANT(SET_ASIDE_EARLY))
		return;
	retain_time_print(stays, how_long);
	left_print(stays - age, left);
	text_add(t, ", set aside: stays for %s (%s left)", how_long, left);
}

static void rules_tell(struct deciding *d, uint32_t i, struct text *t)
{
	const struct store_step *st = &d->step[i];
	const struct retain_policy *p = d->p;
	bool committed = st->state == STORE_COMMITTED;
	uint32_t newer = committed ? d->nlast : d->nseen;
	char within[32];

	d->nlast += committed;
	d->nseen++;
	if (newer < p->keep_last)
		text_add(t, ", last %" PRIu32 "/%" PRIu32, newer + 1, p->keep_last);
	if (i == d->newest && !MUTANT(PRUNED_NEWEST))
		text_add(t, ", newest committed");
	if (committed && p->keep_every && st->step % p->keep_every == 0)
		text_add(t, ", every %" PRIu64, p->keep_every);
	if (p->keep_within_ns && (is_young(d, st) || (committed && st->seq >= d->young_from))) {
		retain_time_print(p->keep_within_ns, within);
		text_add(t, ", within %s", within);
	}
	for (uint32_t k = 0; k < p->nbest; k++)
		if (d->rank[i][k] < p->best[k].n)
			text_add(t, ", best %s %" PRIu32 "/%" PRIu32, p->best[k].key,
				 d->rank[i][k] + 1, p->best[k].n);
}

static void row_decide(struct deciding *d, uint32_t i, struct retain_row *row)
{
	const struct store_step *st = &d->step[i];
	char reason[sizeof row->reason + 2];
	struct text t = text_in(reason, sizeof reason);

	*row = (struct retain_row){ .step = i };
	if (st->state == STORE_COLLECTING) {
		(void)snprintf(row->reason, sizeof row->reason,
			       "being written, or its writer died");
		return;
	}
	labels_tell(d, st, &t);
	aside_tell(d, st, &t);
	if (!d->bad[i])
		rules_tell(d, i, &t);
	if (d->bad[i] && st->code == -EUCLEAN)
		text_add(&t, ", misplaced: %s", st->why);
	else if (store_step_older(st))
		text_add(&t, ", of another version (rm removes it): %s", st->why);
	else if (d->bad[i] && st->code == -EPROTONOSUPPORT)
		text_add(&t, ", written by a newer version");
	else if (d->bad[i] && store_step_has_id(st) && (st->lacks || st->code))
		text_add(&t, ", %s: %s", store_step_fault(st), st->why);
	else if (d->bad[i])
		text_add(&t, st->state == STORE_DAMAGED || !store_step_has_id(st)
				     ? ", damaged: see ckptctl repair"
				     : ", quarantined: see ckptctl repair");
	else if (!t.len && !retain_is_policy(d->p))
		text_add(&t, ", no policy");
	row->remove = !t.len;
	if (row->remove)
		(void)snprintf(row->reason, sizeof row->reason, "%sno rule matches",
			       st->state == STORE_SET_ASIDE ? "set aside, " : "");
	else
		(void)snprintf(row->reason, sizeof row->reason, "%s", reason + 2);
}

int retain_decide(const struct retain_policy *p, const struct store_step *step, uint32_t n,
		  const struct store_label *label, uint32_t nlabel, uint64_t now,
		  struct retain_row *ret)
{
	static const struct retain_policy none;
	struct deciding d = { .p = p ? p : &none,
			      .step = step,
			      .n = n,
			      .label = label,
			      .nlabel = nlabel,
			      .now = now,
			      .ages_from = now,
			      .young_from = UINT64_MAX,
			      .newest = UINT32_MAX };
	int r;

	r = order_all(&d);
	d.bad = calloc((size_t)n + 1, sizeof *d.bad);
	r = d.bad ? r : -ENOMEM;
	for (uint32_t i = 0; !r && i < n; i++) {
		d.bad[i] = is_bad(&d, &step[i]);
		if (d.newest == UINT32_MAX && step[i].state == STORE_COMMITTED && !d.bad[i]) {
			d.newest = i;
			d.ages_from = MIN(now, step[i].wall_ns);
		}
	}
	for (uint32_t i = 0; !r && i < n; i++)
		if (step[i].state == STORE_COMMITTED && is_young(&d, &step[i]))
			d.young_from = MIN(d.young_from, step[i].seq);
	if (!r)
		r = rank_all(&d);
	for (uint32_t i = 0; !r && i < n; i++)
		row_decide(&d, i, &ret[i]);
	free(d.rank);
	free(d.order);
	free(d.bad);
	return r;
}
