// SPDX-License-Identifier: Apache-2.0
// average.c - the averages of one step (average.h): the outcome of each, their update in the walk
// over the step's slots, the one decision about all of them, their health, and the slots' seals.
// Called by passes, persist and snap.
// Invariants: a walk reads the predecessor's slots and never writes them; a seal becomes complete
// only when every rank's averages of the step are final; during the walk ranks share nothing.
#include "daemon/average.h"
#include "ckpt/base/mutant.h"
#include "ckpt/engine/average_seen.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define SETTLE_ELEMENTS 65536u /* of one piece at a time: the daemon may have to stop */
#define CARRY_SLACK 1e-6f      /* a corrected sum may lie so far outside of what it averages */

static const struct averages *averages_of(const struct decl *d)
{
	return d && d->averages && d->averages->nrow ? d->averages : NULL;
}

static bool declared_same(const struct decl *x, const struct decl *y)
{
	const struct averages *a = averages_of(x), *b = averages_of(y);

	return a && b && (a == b || !memcmp(a->declared, b->declared, sizeof a->declared));
}

/* --- results --- */
struct average_result *average_result_ref(struct average_result *x)
{
	if (x)
		add_relaxed(&x->refs, 1);
	return x;
}

void average_result_unref(struct average_result *x)
{
	if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1)
		return;
	whole_unref(x->whole);
	free(x->row);
	free(x->flags);
	free(x->left_out);
	free(x->row_gate);
	free(x->health);
	free(x->running_max);
	free(x->line);
	free(x);
}

static struct average_result *result_new(const struct averages *a, const struct snap *of)
{
	struct average_result *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->refs = 1;
	x->step = of->step;
	x->marked = of->marked;
	x->nrow = a->nrow;
	x->row = calloc(a->nrow, sizeof *x->row);
	x->flags = calloc(a->nrow, sizeof *x->flags);
	x->row_gate = calloc(a->nrow, sizeof *x->row_gate);
	x->health = calloc(a->nrow, sizeof *x->health);
	x->left_out = calloc(a->nrow, sizeof *x->left_out);
	x->line = calloc((size_t)a->nspec + a->nrow + 1, sizeof *x->line);
	if (!x->row || !x->flags || !x->left_out || !x->row_gate || !x->health || !x->line) {
		average_result_unref(x);
		return NULL;
	}
	for (uint32_t i = 0; i < a->nrow; i++)
		x->health[i].worst = -1;
	return x;
}

/* --- lines for MANIFEST --- */
static const char *const gate_why[WIRE_GATES] = {
	[WIRE_GATE_NOT_WANTED] = "CKPT_NO_EMA",
	[WIRE_GATE_LOSS] = "its loss",
	[WIRE_GATE_NONFINITE] = "values that are not finite",
};

/* All rows of one average. */
static void line_make(struct average_result *x, const struct averages *a, uint32_t average)
{
	struct average_line *to = &x->line[average];
	struct average_row_health all = { .worst = -1 };
	uint64_t updates = UINT64_MAX, lag = 0;
	uint32_t gate = 0;
	int n;

	for (uint32_t i = 0; i < x->nrow; i++) {
		const struct average_row_health *h = &x->health[i];

		if (a->row[i].average != average)
			continue;
		updates = MIN(updates, x->row[i].updates);
		lag = MAX(lag, h->lag);
		gate = gate ? gate : x->row_gate[i];
		all.sum.nan += h->sum.nan + h->sum.inf;
		all.far += h->far;
		if (h->worst > all.worst) {
			all.worst = h->worst;
			memcpy(all.worst_name, h->worst_name, sizeof all.worst_name);
		}
		if (h->convex_broken && !all.convex_broken)
			memcpy(all.convex_name, h->convex_name, sizeof all.convex_name);
		all.convex_broken += h->convex_broken;
	}
	(void)snprintf(to->key, sizeof to->key, "ckpt.health:ema.%s", a->name[average]);
	n = snprintf(to->text, sizeof to->text, "updates %" PRIu64 ", lag %" PRIu64, updates, lag);
	if (all.worst < 0)
		n += snprintf(to->text + n, sizeof to->text - (size_t)n, ", |p-e|/|e| not known");
	else
		n += snprintf(to->text + n, sizeof to->text - (size_t)n,
			      ", |p-e|/|e| %.3g at most (%s), far %" PRIu64 ", NaN %" PRIu64,
			      all.worst, all.worst_name, all.far, all.sum.nan);
	if (all.convex_broken)
		n += snprintf(to->text + n, sizeof to->text - (size_t)n,
			      ", larger than its weights ever were in %" PRIu64 " (%s)",
			      all.convex_broken, all.convex_name);
	if (gate)
		(void)snprintf(to->text + n, sizeof to->text - (size_t)n,
			       ", this step kept out: %s", gate_why[gate]);
}

uint32_t average_left_out_add(uint32_t was, uint64_t n)
{
	uint64_t now = (was & ~AVERAGE_AT_LEAST) + MIN(n, (uint64_t)AVERAGE_AT_LEAST);

	return (was & AVERAGE_AT_LEAST) | (uint32_t)MIN(now, (uint64_t)AVERAGE_AT_LEAST - 1);
}

static struct average_missed row_missed(const struct average_result *x, uint32_t i)
{
	uint32_t n = x->left_out[i] & ~AVERAGE_AT_LEAST;

	return (struct average_missed){ .known = x->row[i].last_step != EMA_NO_STEP,
					.least = x->left_out[i] & AVERAGE_AT_LEAST,
					.left_out = n,
					.of = x->row[i].updates + n };
}

static void lines_make(struct average_result *x, const struct averages *a)
{
	struct average_line *to;

	for (uint32_t i = 0; i < a->nspec; i++)
		line_make(x, a, i);
	x->nline = a->nspec;
	for (uint32_t i = 0; i < a->nrow; i++) {
		const struct average_missed m = row_missed(x, i);

		if (!m.known)
			continue;
		to = &x->line[x->nline++];
		averages_missed_key(a->name[a->row[i].average], a->row[i].rule, to->key,
				    sizeof to->key);
		(void)averages_missed_print(&m, to->text, sizeof to->text);
	}
	to = &x->line[x->nline++];
	(void)snprintf(to->key, sizeof to->key, AVERAGES_MARKED);
	(void)snprintf(to->text, sizeof to->text, "%" PRIu64, x->marked);
}

uint32_t average_attrs(const struct average_result *x, struct checkpoint_attr *ret, uint32_t max)
{
	uint32_t n = 0;

	for (; x && n < MIN(x->nline, max); n++)
		ret[n] = (struct checkpoint_attr){ x->line[n].key, x->line[n].text };
	return n;
}

/* --- the slot's seal --- */
static struct slot_seal *seal_of(const struct decl *d, const struct slotmem *m)
{
	return (struct slot_seal *)((uint8_t *)m->base + d->raw_bytes - SLOT_SEAL_BYTES);
}

static void seal_open(const struct snap *s, uint32_t r)
{
	atomic_store(&seal_of(s->rank[r].decl, s->rank[r].mem)->state, SLOT_SEAL_OPEN);
}

static struct slot_seal *seal_at(const struct snap *s, uint32_t r)
{
	return seal_of(s->rank[r].decl, s->rank[r].mem);
}

static struct hash128 seal_self(const struct slot_seal *x)
{
	struct slot_seal y;

	memcpy(&y, x, sizeof y);
	store_relaxed(&y.state, SLOT_SEAL_COMPLETE);
	return hash128(&y, offsetof(struct slot_seal, self));
}

static void seal_complete(const struct snap *s, uint32_t r, const struct average_result *x)
{
	const struct decl *d = s->rank[r].decl;
	struct slot_seal *to = seal_at(s, r);
	struct hash128 self;

	memset(to->row, 0, sizeof to->row);
	to->magic = SLOT_SEAL_MAGIC;
	to->step = s->step;
	to->epoch = s->epoch;
	to->rev = d->rev;
	to->nrow = x->nrow;
	to->flags = 0;
	memcpy(to->declared, d->averages->declared, sizeof to->declared);
	for (uint32_t i = 0; i < x->nrow; i++) {
		to->row[i].state = x->row[i];
		to->row[i].flags = x->flags[i];
		to->row[i].left_out = x->left_out[i];
	}
	self = seal_self(to);
	memcpy(to->self, &self, sizeof to->self);
	store_release(&to->state, SLOT_SEAL_COMPLETE);
}

static void seals_complete(const struct snap *s, const struct average_result *x)
{
	for (uint32_t r = 0; r < s->world; r++)
		seal_complete(s, r, x);
}

void average_seals_open(const struct launch *l, uint32_t slot)
{
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];

		/* Where other declarations are on their way, the slot may be as long as the last
		 * ones said. */
		if (averages_of(m->decl) && m->slot[slot] &&
		    m->slot[slot]->bytes >= m->decl->raw_bytes) {
			struct slot_seal *seal = seal_of(m->decl, m->slot[slot]);

			atomic_store(&seal->state, SLOT_SEAL_OPEN);
			if (l->averaged) /* for average_slot_used */
				seal->magic = SLOT_SEAL_MAGIC;
			else
				memset(seal, 0, SLOT_SEAL_BYTES);
		}
	}
}

bool average_slot_used(const struct slotmem *m)
{
	static const uint8_t zero[SLOT_SEAL_BYTES];

	return m->bytes < sizeof zero ||
	       memcmp((const uint8_t *)m->base + m->bytes - sizeof zero, zero, sizeof zero) != 0;
}

static bool row_is_right(const struct slot_seal_row *x, uint64_t step)
{
	const uint32_t flags = AVERAGE_KAHAN | AVERAGE_MIXED | AVERAGE_SEEDED;

	return !(x->flags & ~flags) && ema_state_possible(&x->state, step);
}

/* Rank r's seal, as it is now: the ranks have the page, too, and may write to it. False: it is not
 * complete for this step. */
static bool seal_read(const struct snap *s, uint32_t r, struct slot_seal *ret)
{
	const struct decl *d = s->rank[r].decl;
	const struct slot_seal *at = seal_at(s, r);
	struct hash128 self;

	if (load_acquire(&at->state) != SLOT_SEAL_COMPLETE)
		return false;
	memcpy(ret, at, sizeof *ret);
	/* Not its rev: the rank's memory may lie elsewhere since, the slot's bytes do not. */
	if (ret->magic != SLOT_SEAL_MAGIC || ret->step != s->step || ret->epoch != s->epoch ||
	    ret->nrow != d->averages->nrow || (MUTANT(SEAL_OF_REV) && ret->rev != d->rev))
		return false;
	if (memcmp(ret->declared, d->averages->declared, sizeof ret->declared) != 0 &&
	    !MUTANT(CHAIN_UNCHECKED))
		return false;
	for (uint32_t i = 0; i < ret->nrow; i++)
		if (!row_is_right(&ret->row[i], s->step))
			return false;
	self = seal_self(ret);
	return !memcmp(ret->self, &self, sizeof ret->self);
}

/* Are their updates the same ones? */
static bool rows_same(const struct slot_seal *x, const struct slot_seal *y)
{
	return x->nrow == y->nrow && !memcmp(x->row, y->row, x->nrow * sizeof *x->row);
}

/* For ckpt_stats: of the row that has left out the largest share. */
static void left_out_publish(const struct launch *l, const struct average_result *x)
{
	struct average_missed worst = { 0 };

	for (uint32_t i = 0; i < x->nrow; i++) {
		const struct average_missed m = row_missed(x, i);

		if (m.known && (!worst.of || (double)m.left_out * (double)worst.of >
						     (double)worst.left_out * (double)m.of))
			worst = m;
	}
	atomic_store(&l->page->average_taken, worst.of - worst.left_out);
	atomic_store(&l->page->average_left_out, worst.left_out);
}

void average_adopt(struct snap *s)
{
	const struct averages *a = averages_of(s->rank[0].decl);
	struct slot_seal first, seal;
	struct average_result *x;

	if (!a || !seal_read(s, 0, &first))
		return;
	for (uint32_t r = 1; r < s->world; r++)
		if (!averages_of(s->rank[r].decl) || !seal_read(s, r, &seal) ||
		    !rows_same(&seal, &first))
			return;
	x = result_new(a, s);
	if (!x)
		return;
	for (uint32_t i = 0; i < x->nrow; i++) {
		x->row[i] = first.row[i].state;
		x->flags[i] = first.row[i].flags;
		x->left_out[i] = first.row[i].left_out;
		x->health[i].lag =
			x->row[i].last_step < s->step ? s->step - x->row[i].last_step : 0;
	}
	lines_make(x, a);
	s->average = x;
	s->averaged = true;
	left_out_publish(s->launch, x);
}

/* --- one step's update --- */
struct tensor_health {
	struct ema_health e;
	struct ema_source_health p;
};
struct averaging_rank {
	const struct averages *a;
	const uint8_t *main, *before; /* before: of averages; NULL: there is none */
	uint8_t *out;
	uint32_t next;		      /* no run before it ends behind what was walked */
	struct tensor_health *tensor; /* [a->made.ntensor] */
};
struct averaging {
	struct snap *snap;
	struct average_result *result;
	struct average_result *previous; /* reference: of the snap before; NULL: there is none */
	struct average_base *base;	 /* reference; NULL */
	uint64_t missed; /* steps that were marked since the predecessor, and are not averaged */
	uint32_t world, nrow;
	struct row_now {
		struct ema_update update;
		bool had;   /* the predecessor has it */
		bool hold;  /* its predecessor's value is kept */
		bool again; /* averaging_settle makes it once more */
	} row[TABLE_AVERAGES_MAX];
	struct averaging_rank *rank; /* [world] */
};

bool average_every(const struct snap *s)
{
	const struct averages *a = averages_of(s->rank[0].decl);

	for (uint32_t i = 0; a && i < a->nspec; i++)
		if (a->spec[i]->every)
			return elapsed_ns(s->staged_at, now_ns()) < EVERY_MAX_NS;
	return false;
}

bool average_wanted(const struct snap *s)
{
	return s->phase != PHASE_COLLECTING && !s->averaged && !s->average_late &&
	       averages_of(s->rank[0].decl);
}

bool average_follows(const struct snap *s, const struct snap *before)
{
	if (!before || before == s || !before->averaged || before->dropped ||
	    before->launch != s->launch || before->world != s->world || before->step >= s->step ||
	    atomic_load(&before->left))
		return false;
	for (uint32_t r = 0; r < s->world; r++)
		if (!declared_same(s->rank[r].decl, before->rank[r].decl))
			return false;
	return true;
}

static bool base_fits(const struct snap *s, const struct average_base *b)
{
	if (b->world != s->world || b->nrow != averages_of(s->rank[0].decl)->nrow)
		return false;
	for (uint32_t r = 0; r < s->world; r++)
		if (!declared_same(s->rank[r].decl, b->decl[r]))
			return false;
	return true;
}

/* The note `loss`: is the step to be left out? A step without that note is not. */
static bool loss_is_high(const struct snap *s, const struct ema_spec *spec)
{
	for (uint32_t i = 0; spec->has_gate && i < s->nnote; i++)
		if (!strcmp(s->note[i].key, "loss"))
			return !(s->note[i].value < spec->gate_loss);
	return false;
}

static uint32_t left_out_before(const struct averaging *x, uint32_t i)
{
	return x->previous ? x->previous->left_out[i] : x->base ? x->base->left_out[i] : 0;
}

static uint64_t missed_since(const struct averaging *x)
{
	const struct average_result *was = x->previous;
	uint64_t before = was ? was->marked : x->base ? x->base->marked : x->snap->marked;

	return x->snap->marked > before + 1 && !MUTANT(LEFT_OUT_UNCOUNTED)
		       ? x->snap->marked - before - 1
		       : 0;
}

/* What a row becomes that does not take the step in. Without a predecessor the copy stands for it,
 * and the next step begins anew. */
static void row_hold(struct averaging *x, uint32_t i, uint32_t gate)
{
	const struct average_row *row = &x->rank[0].a->row[i];
	struct average_result *to = x->result;
	struct row_now *now = &x->row[i];

	to->row_gate[i] = gate;
	to->gate = to->gate ? to->gate : gate;
	now->hold = now->had;
	to->left_out[i] = now->had ? average_left_out_add(left_out_before(x, i), x->missed) : 0;
	if (!now->had) {
		now->update = (struct ema_update){ .copy = true, .a = 1 };
		to->row[i] = ema_state_new(row->canonical);
		to->flags[i] = row->kahan ? AVERAGE_KAHAN : 0;
	}
}

static void row_decide(struct averaging *x, uint32_t i)
{
	const struct snap *s = x->snap;
	const struct averages *a = x->rank[0].a;
	const struct average_row *row = &a->row[i];
	struct average_result *to = x->result;
	struct row_now *now = &x->row[i];
	struct ema_state was = ema_state_new(row->canonical);
	bool seeded;

	if (x->previous) {
		was = x->previous->row[i];
		to->flags[i] = x->previous->flags[i];
	} else if (x->base) {
		was = x->base->row[i];
		to->flags[i] = x->base->flags[i];
	}
	/* A seed that stands for the first step's copy is that step's already. */
	seeded = x->base && was.last_step == s->step;
	now->had = was.last_step != EMA_NO_STEP && (was.last_step < s->step || seeded);
	to->flags[i] = (now->had ? to->flags[i] & ~(uint32_t)AVERAGE_KAHAN : 0) |
		       (row->kahan ? AVERAGE_KAHAN : 0);
	to->row[i] = was;
	if (seeded) {
		now->hold = true;
		return;
	}
	if (s->no_average) {
		row_hold(x, i, WIRE_GATE_NOT_WANTED);
		return;
	}
	if (loss_is_high(s, a->spec[row->average])) {
		row_hold(x, i, WIRE_GATE_LOSS);
		return;
	}
	if (!now->had)
		was = ema_state_new(row->canonical);
	now->update = ema_schedule_update(row->schedule, &was, s->step);
	to->row[i] = ema_state_after(&was, &now->update, row->canonical, s->step);
	if (now->update.copy)
		to->flags[i] &= AVERAGE_KAHAN;
	else
		to->left_out[i] = average_left_out_add(left_out_before(x, i), x->missed);
}

static const uint8_t *rank_before(const struct averaging *x, const struct snap *before, uint32_t r)
{
	const struct snap_rank *k;

	if (x->base)
		return x->base->mem[r] ? x->base->mem[r]->base : NULL;
	if (!before)
		return NULL;
	k = &before->rank[r];
	return (const uint8_t *)k->mem->base + k->decl->average_at;
}

static bool rank_begin(struct averaging *x, const struct snap *before, uint32_t r)
{
	const struct snap_rank *from = &x->snap->rank[r];
	struct averaging_rank *k = &x->rank[r];

	k->a = averages_of(from->decl);
	if (!k->a)
		return false;
	k->main = decl_part_raw(from->decl, PART_MAIN, from->mem->base);
	k->out = (uint8_t *)from->mem->base + from->decl->average_at;
	k->before = rank_before(x, before, r);
	k->tensor = calloc((size_t)k->a->made.ntensor + 1, sizeof *k->tensor);
	return k->tensor != NULL;
}

static void averaging_free(struct averaging *x)
{
	for (uint32_t r = 0; x->rank && r < x->world; r++)
		free(x->rank[r].tensor);
	average_result_unref(x->result);
	average_result_unref(x->previous);
	average_base_unref(x->base);
	free(x->rank);
	free(x);
}

/* tests/storm goes along these lines, from an average to the one before it. */
static void from_say(const struct averaging *x)
{
	const struct snap *s = x->snap;
	char from[sizeof x->base->from + 64] = "begins anew";

	if (x->previous)
		snprintf(from, sizeof from, "goes on from step %" PRIu64, x->previous->step);
	else if (x->base)
		snprintf(from, sizeof from, "goes on from %s", x->base->from);
	snap_log(s, LOG_INFO, "average", " %s", from);
}

struct averaging *averaging_new(struct snap *s, struct snap *before, struct average_base *base)
{
	struct averaging *x = calloc(1, sizeof *x);
	bool made;

	if (!x)
		return NULL;
	x->snap = s;
	x->world = s->world;
	if (before)
		x->previous = average_result_ref(before->average);
	else if (base && base_fits(s, base))
		x->base = average_base_ref(base);
	x->rank = calloc(s->world, sizeof *x->rank);
	made = x->rank != NULL;
	for (uint32_t r = 0; r < s->world && made; r++)
		made = rank_begin(x, before, r);
	if (made)
		made = (x->result = result_new(x->rank[0].a, s)) != NULL;
	if (!made) {
		averaging_free(x);
		return NULL;
	}
	x->nrow = x->result->nrow;
	x->missed = missed_since(x);
	for (uint32_t i = 0; i < x->nrow; i++)
		row_decide(x, i);
	for (uint32_t r = 0; r < s->world; r++)
		seal_open(s, r);
	from_say(x);
	if (MUTANT(SEAL_EARLY))
		seals_complete(s, x->result);
	return x;
}

/* --- in the walk --- */
static struct ema_target target_now(const struct averaging *x, const struct averaging_rank *k,
				    const struct average_target *t, uint64_t from,
				    struct ema_health *health)
{
	const struct row_now *row = &x->row[t->row];
	uint64_t at = t->off + from * sizeof(float);
	struct ema_target to = { .a = row->update.copy ? 1.0f : row->update.a,
				 .hold = row->hold,
				 .out = (float *)(k->out + at),
				 .health = health };

	if (row->had && k->before)
		to.before = (const float *)(k->before + at);
	if (t->carry == AVERAGE_NO_CARRY)
		return to;
	at = t->carry + from * sizeof(float);
	to.carry_out = (float *)(k->out + at);
	if (row->had && k->before)
		to.carry_before = (const float *)(k->before + at);
	return to;
}

static void in_place(const struct ema_target *t, uint32_t n, uint64_t elements)
{
	for (uint32_t i = 0; i < n && MUTANT(AVERAGE_IN_PLACE); i++)
		if (t[i].before)
			memcpy((void *)(uintptr_t)t[i].before, t[i].out, elements * sizeof(float));
}

/* Elements [from, to) of a run. again: only the rows that averaging_settle makes once more. */
static void run_update(struct averaging *x, struct averaging_rank *k, const struct average_run *run,
		       uint64_t from, uint64_t to, bool again)
{
	const struct average_target *target = &k->a->target[run->target];
	const uint8_t *p = k->main + run->src + from * (run->dtype == CKPT_F32 ? 4 : 2);
	struct ema_target t[EMA_TARGETS_MAX];
	struct ema_health health[EMA_TARGETS_MAX];
	uint32_t which[EMA_TARGETS_MAX], i = 0;

	while (i < run->ntarget) {
		struct ema_source_health source = { 0 };
		uint32_t n = 0;

		for (; i < run->ntarget && n < EMA_TARGETS_MAX; i++) {
			if (again && !x->row[target[i].row].again)
				continue;
			health[n] = (struct ema_health){ 0 };
			which[n] = target[i].tensor;
			t[n] = target_now(x, k, &target[i], from, &health[n]);
			n++;
		}
		if (n == 0)
			break;
		ema_update_targets(run->dtype, p, to - from, t, n, &source);
		in_place(t, n, to - from);
		for (uint32_t j = 0; j < n; j++) {
			ema_health_add(&k->tensor[which[j]].e, &health[j]);
			if (!again)
				ema_source_health_add(&k->tensor[which[j]].p, &source);
		}
	}
}

int averaging_span(struct averaging *x, uint32_t r, const struct walk_span *s)
{
	struct averaging_rank *k = &x->rank[r];
	const struct daemon_opts *o = &x->snap->job->d->opts;
	uint64_t end = s->off + s->len;
	int rc = o->averages ? o->averages(x->snap->step, r, s) : 0;

	if (rc < 0)
		return rc;
	for (; k->next < k->a->nrun; k->next++) {
		const struct average_run *run = &k->a->run[k->next];

		if (run->at + run->n * run->at_bytes > s->off)
			break;
	}
	for (uint32_t i = k->next; i < k->a->nrun && k->a->run[i].at < end; i++) {
		const struct average_run *run = &k->a->run[i];
		uint64_t lo = MAX(run->at, s->off) - run->at;
		uint64_t hi = MIN(run->at + run->n * run->at_bytes, end) - run->at;

		if (lo < hi)
			run_update(x, k, run, lo / run->at_bytes, hi / run->at_bytes, false);
	}
	return 0;
}

/* --- behind it --- */
static bool is_finite(const struct averaging_rank *k)
{
	for (uint32_t i = 0; i < k->a->made.ntensor; i++)
		if (k->tensor[i].p.nan || k->tensor[i].p.inf)
			return false;
	return true;
}

static int rank_again(struct averaging *x, struct averaging_rank *k, struct ckpt_err *err)
{
	const struct daemon *d = x->snap->job->d;

	for (uint32_t i = 0; i < k->a->made.ntensor; i++)
		if (x->row[k->a->made.tensor[i].made - 1].again)
			k->tensor[i].e = (struct ema_health){ 0 };
	for (uint32_t i = 0; i < k->a->nrun; i++)
		for (uint64_t at = 0, to; at < k->a->run[i].n; at = to) {
			to = MIN(at + SETTLE_ELEMENTS, k->a->run[i].n);
			if (load_relaxed(&d->stops) > 1)
				return ckpt_error(err, -ECANCELED,
						  "the averages of the step were given up");
			run_update(x, k, &k->a->run[i], at, to, true);
		}
	return 0;
}

/* The step has values that are not finite: no row takes it in, whatever rank they are of. */
static int step_drop(struct averaging *x, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < x->nrow; i++) {
		struct row_now *now = &x->row[i];

		if (x->result->row_gate[i])
			continue;
		if (now->had) {
			x->result->row[i] = x->previous ? x->previous->row[i] : x->base->row[i];
			x->result->flags[i] =
				(x->previous ? x->previous->flags[i] : x->base->flags[i]) &
				~(uint32_t)AVERAGE_KAHAN;
			x->result->flags[i] |= x->rank[0].a->row[i].kahan ? AVERAGE_KAHAN : 0;
		}
		now->again = now->had;
		row_hold(x, i, WIRE_GATE_NONFINITE);
	}
	for (uint32_t r = 0; r < x->world && rc == 0; r++)
		if (!MUTANT(GATE_PER_RANK) || !is_finite(&x->rank[r]))
			rc = rank_again(x, &x->rank[r], err);
	return rc;
}

/* --- health: per tensor, the ranks' together --- */
struct joint {
	struct tensor_health sum;
	const struct table_tensor *tensor;
	uint32_t row;
};

/* Which tensor of all ranks' one of a rank's is; without a struct whole each rank's is its own. */
static uint32_t joint_at(const struct averaging *x, uint32_t r, uint32_t tensor, uint32_t first)
{
	const struct whole *w = x->snap->whole;

	return w ? w->map[part_number(PART_AVERAGE, r, x->world)][tensor] : first + tensor;
}

static struct joint *joint_make(const struct averaging *x, uint32_t *ret_n)
{
	const struct whole *w = x->snap->whole;
	uint32_t n = w ? w->table.ntensor : 0, first = 0;
	struct joint *all;

	for (uint32_t r = 0; r < x->world && !w; r++)
		n += x->rank[r].a->made.ntensor;
	all = calloc((size_t)n + 1, sizeof *all);
	*ret_n = n;
	for (uint32_t r = 0; r < x->world && all; r++) {
		const struct averaging_rank *k = &x->rank[r];

		for (uint32_t i = 0; i < k->a->made.ntensor; i++) {
			const struct table_tensor *t = &k->a->made.tensor[i];
			struct joint *to = &all[joint_at(x, r, i, first)];

			if (t->role != CKPT_AVERAGE)
				continue; /* a carry */
			to->tensor = t;
			to->row = t->made - 1;
			ema_health_add(&to->sum.e, &k->tensor[i].e);
			ema_source_health_add(&to->sum.p, &k->tensor[i].p);
		}
		first += k->a->made.ntensor;
	}
	return all;
}

/* The largest |p| that the average of this tensor may have seen, this step's among them. */
static float running_now(const struct averaging *x, uint32_t i, const struct joint *j)
{
	const struct average_result *was = x->previous;
	const struct row_now *row = &x->row[j->row];
	float max = -1;

	if (was && was->whole && was->whole == x->snap->whole && i < was->nrunning)
		max = was->running_max[i];
	if (!row->hold && row->update.copy)
		return j->sum.p.max_abs;
	if (max < 0) /* its weights before this step are not known */
		return MAX(j->sum.e.max_abs, row->hold ? 0 : j->sum.p.max_abs);
	return row->hold ? max : MAX(max, j->sum.p.max_abs);
}

/* Where an average began, so little of it is left when it should be near its weights. A tensor that
 * begins at zero and grows, as a bias does, is farther from its average than that is large for a
 * while: with a constant decay until the product is .2 if it grows evenly, .08 if it grows with the
 * square of the steps. */
#define FORGOTTEN (1. / 64)

static void tensor_judge(struct averaging *x, const struct joint *j, float running)
{
	struct average_row_health *h = &x->result->health[j->row];
	const struct ema_state *state = &x->result->row[j->row];
	float slack = x->rank[0].a->row[j->row].kahan ? CARRY_SLACK : 0;
	double norm = sqrt(j->sum.e.norm2), diff = sqrt(j->sum.e.diff2);
	double ratio = norm > 0 ? diff / norm : diff > 0 ? INFINITY : 0;
	char name[sizeof h->worst_name];

	ema_health_add(&h->sum, &j->sum.e);
	h->nan_sources += j->sum.p.nan;
	h->inf_sources += j->sum.p.inf;
	(void)snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, j->tensor->of);
	if (ratio > h->worst) {
		h->worst = ratio;
		memcpy(h->worst_name, name, sizeof name);
	}
	h->far += ratio > 1 && state->product < FORGOTTEN && state->last_step != EMA_NO_STEP;
	if (j->sum.e.max_abs > running * (1 + slack)) {
		if (!h->convex_broken++)
			memcpy(h->convex_name, name, sizeof name);
	}
}

static int health_make(struct averaging *x, struct ckpt_err *err)
{
	struct average_result *to = x->result;
	uint32_t n;
	cleanup_free struct joint *all = joint_make(x, &n);

	to->running_max = malloc(((size_t)n + 1) * sizeof *to->running_max);
	if (!all || !to->running_max)
		return ckpt_error(err, -ENOMEM, "no memory for what is known of averages");
	for (uint32_t i = 0; i < n; i++) {
		to->running_max[i] = -1;
		if (!all[i].tensor)
			continue;
		to->running_max[i] = running_now(x, i, &all[i]);
		tensor_judge(x, &all[i], to->running_max[i]);
	}
	to->nrunning = n;
	to->whole = x->snap->whole ? whole_ref(x->snap->whole) : NULL;
	for (uint32_t i = 0; i < to->nrow; i++)
		to->health[i].lag =
			to->row[i].last_step < to->step ? to->step - to->row[i].last_step : 0;
	return 0;
}

int averaging_settle(struct averaging *x, struct ckpt_err *err)
{
	bool finite = true;
	int rc = 0;

	for (uint32_t r = 0; r < x->world; r++)
		finite &= is_finite(&x->rank[r]);
	if (!finite)
		rc = step_drop(x, err);
	if (rc == 0)
		rc = health_make(x, err);
	if (rc < 0)
		return rc;
	lines_make(x->result, x->rank[0].a);
	seals_complete(x->snap, x->result);
	return 0;
}

void averaging_end(struct averaging *x, int rc)
{
	struct snap *s = x->snap;
	struct average_tally *tally = &s->job->average;

	if (rc == 0) {
		s->launch->averaged = true;
		tally->averaged++;
		tally->gated[x->result->gate] += x->result->gate != WIRE_GATE_NONE;
		tally->left_out += x->missed;
		left_out_publish(s->launch, x->result);
		snap_log(s, LOG_DEBUG, "passes", " has its averages%s%s",
			 x->result->gate ? "; kept out: " : "",
			 x->result->gate ? gate_why[x->result->gate] : "");
		s->average = TAKE(x->result);
		s->averaged = true;
	} else {
		for (uint32_t r = 0; r < x->world && !MUTANT(SEAL_EARLY); r++)
			seal_open(s, r);
	}
	averaging_free(x);
}

/* --- rows of tables --- */
void average_row_set(struct table_average *to, const struct ema_state *state, uint32_t flags)
{
	to->product = state->product;
	to->updates = state->updates;
	to->last_step = state->last_step;
	to->since = state->since;
	to->flags = flags;
	memcpy(to->history, state->history, sizeof to->history);
}

struct ema_state average_row_state(const struct table_average *x)
{
	struct ema_state s = { .product = x->product,
			       .updates = x->updates,
			       .last_step = x->last_step,
			       .since = x->since };

	memcpy(s.history, x->history, sizeof s.history);
	return s;
}

void average_rows_now(const struct average_result *of, const struct decl *d, uint32_t n,
		      struct table_average *row)
{
	const struct averages *a = averages_of(d);

	for (uint32_t i = 0; of && a && i < n; i++)
		for (uint32_t k = 0; k < of->nrow; k++)
			if (row[i].rule == a->row[k].rule && !strcmp(row[i].name, a->row[k].name))
				average_row_set(&row[i], &of->row[k], of->flags[k]);
}

int average_part_now(const struct average_result *of, const struct decl *d, const void *raw,
		     struct table *ret, struct ckpt_err *err)
{
	int rc;

	*ret = (struct table){ 0 };
	if (!of || !averages_of(d))
		return ckpt_error(err, -EINVAL, "the averages of the step are not made");
	rc = decl_part_now(d, PART_AVERAGE, raw, ret, err);
	if (rc == 0)
		average_rows_now(of, d, ret->naverage, ret->average);
	return rc;
}
