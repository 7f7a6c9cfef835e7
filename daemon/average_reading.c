// SPDX-License-Identifier: Apache-2.0
// average_reading.c - see average_reading.h. Called by fill and average_base, in workers.
// Invariants: a base has averages of one step and of nothing else; an average is read completely
// and checked like weights, or not at all; if one cannot continue, it begins anew, and a line gives
// the reason.
#include "daemon/average_reading.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "daemon/passes.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* --- a base --- */
struct average_base *average_base_ref(struct average_base *b)
{
	atomic_fetch_add(&b->refs, 1u);
	return b;
}

void average_base_unref(struct average_base *b)
{
	if (!b || atomic_fetch_sub(&b->refs, 1u) > 1)
		return;
	for (uint32_t r = 0; r < b->world; r++) {
		if (b->mem)
			slotmem_unref(b->mem[r]);
		if (b->decl)
			decl_slot_unref(b->decl[r]);
	}
	free(b->mem);
	free(b->decl);
	free(b->row);
	free(b->flags);
	free(b->left_out);
	free(b);
}

uint64_t average_base_bytes(const struct average_base *b)
{
	uint64_t n = 0;

	for (uint32_t r = 0; b && r < b->world; r++)
		n += b->mem[r] ? b->mem[r]->bytes : 0;
	return n;
}

/* No row is there yet, and no memory. */
struct average_base *average_base_new(struct decl *const *dst, uint32_t world)
{
	const struct averages *a = dst[0]->averages;
	struct average_base *b = calloc(1, sizeof *b);

	if (!b)
		return NULL;
	b->refs = 1;
	b->epoch = dst[0]->epoch;
	b->world = world;
	b->nrow = a->nrow;
	b->mem = calloc(world, sizeof(struct slotmem *));
	b->decl = calloc(world, sizeof(struct decl *));
	b->row = calloc(MAX(a->nrow, 1u), sizeof *b->row);
	b->flags = calloc(MAX(a->nrow, 1u), sizeof *b->flags);
	b->left_out = calloc(MAX(a->nrow, 1u), sizeof *b->left_out);
	if (!b->mem || !b->decl || !b->row || !b->flags || !b->left_out) {
		average_base_unref(b);
		return NULL;
	}
	for (uint32_t r = 0; r < world; r++)
		b->decl[r] = decl_slot_ref(dst[r]);
	for (uint32_t i = 0; i < a->nrow; i++) {
		b->row[i] = ema_state_new(a->row[i].canonical);
		b->flags[i] = a->row[i].kahan ? AVERAGE_KAHAN : 0;
	}
	return b;
}

/* All of it, or -ENOMEM: a host that has promised too much kills some process. */
int average_base_memory(struct average_base *b, struct reaper *reaper, struct ckpt_err *err)
{
	uint64_t need = 0;
	int rc = 0;

	for (uint32_t r = 0; r < b->world; r++)
		need += b->mem[r] ? 0 : b->decl[r]->averages->bytes;
	if (need && pages_available() < need + 64 * MIB)
		rc = -ENOMEM;
	for (uint32_t r = 0; r < b->world && rc == 0; r++) {
		uint64_t bytes = b->decl[r]->averages->bytes;

		if (b->mem[r] || !bytes)
			continue;
		rc = slotmem_new(reaper, bytes, &b->mem[r], err);
		if (rc == 0)
			rc = slotmem_touch(b->mem[r]);
	}
	return rc < 0 ? ckpt_error(err, rc,
				   "no memory for the averages that the job goes on with: %" PRIu64
				   " MiB (%s)",
				   div_up(need, MIB), strerror(-rc))
		      : 0;
}

/* --- averages in memory --- */
void average_held_free(struct average_held *h)
{
	for (uint32_t r = 0; h && r < h->n; r++) {
		decl_slot_unref(h->rank[r].decl);
		slotmem_unref(h->rank[r].mem);
		slot_sums_unref(h->rank[r].sums);
	}
	if (!h)
		return;
	free(h->rank);
	free(h->row);
	free(h->base);
	table_free(&h->table);
	free(h);
}

static struct average_held *held_new(uint32_t world, const struct averages *a,
				     const struct ema_state *state, const uint32_t *flags,
				     const uint32_t *left_out)
{
	struct average_held *h = calloc(1, sizeof *h);

	if (!h)
		return NULL;
	h->rank = calloc(world, sizeof *h->rank);
	h->base = calloc(world, sizeof *h->base);
	h->row = calloc(MAX(a->nrow, 1u), sizeof *h->row);
	if (!h->rank || !h->base || !h->row) {
		average_held_free(h);
		return NULL;
	}
	h->n = world;
	h->nrow = a->nrow;
	for (uint32_t i = 0; i < a->nrow; i++) {
		h->row[i] = (struct table_average){ .name = a->row[i].name,
						    .schedule = a->row[i].canonical,
						    .rule = a->row[i].rule };
		average_row_set(&h->row[i], &state[i], flags[i]);
		h->left_out[i] = left_out[i];
	}
	return h;
}

struct average_held *average_held_of(const struct snap *s)
{
	const struct average_result *a = s->average;
	const struct averages *of = s->rank[0].decl->averages;
	struct average_held *h;

	assert(s->averaged && a && of && a->nrow == of->nrow);
	h = held_new(s->world, of, a->row, a->flags, a->left_out);
	for (uint32_t r = 0; h && r < s->world; r++) {
		h->rank[r].decl = decl_slot_ref(s->rank[r].decl);
		h->rank[r].mem = slotmem_ref(s->rank[r].mem);
		h->rank[r].sums = passes_sums(s, r);
		h->rank[r].at = s->rank[r].decl->average_at;
	}
	if (h) {
		h->step = s->step;
		h->marked = s->marked;
	}
	return h;
}

int average_held_newest(const struct snap *s, struct average_held **ret)
{
	const struct snap *best = s->averaged ? s : NULL;

	for (const struct snap *k = s->job->snaps; k && !s->averaged; k = k->next)
		if (k->launch == s->launch && k->averaged && !k->dropped && k->step <= s->step &&
		    (!best || k->staged_at > best->staged_at))
			best = k;
	*ret = best ? average_held_of(best) : NULL;
	return best && !*ret ? -ENOMEM : 0;
}

struct average_held *average_held_of_base(const struct average_base *b)
{
	struct average_held *h =
		held_new(b->world, b->decl[0]->averages, b->row, b->flags, b->left_out);

	for (uint32_t r = 0; h && r < b->world; r++) {
		h->rank[r].decl = decl_slot_ref(b->decl[r]);
		h->rank[r].mem = b->mem[r] ? slotmem_ref(b->mem[r]) : NULL;
	}
	if (h) {
		h->step = b->step;
		h->marked = b->marked;
	}
	return h;
}

int average_held_open(struct average_held *h, struct average_origin *ret, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EBADMSG };
	int rc = 0;

	for (uint32_t r = 0; r < h->n && rc == 0; r++) {
		rc = table_merge(&h->table, &h->rank[r].decl->averages->made, NULL, &list, err);
		h->base[r] =
			h->rank[r].mem ? (uint8_t *)h->rank[r].mem->base + h->rank[r].at : NULL;
	}
	if (rc == 0)
		rc = table_seal(&h->table, err);
	if (list.n)
		rc = ckpt_errlist_end(&list, err, "the averages in memory are inconsistent");
	ckpt_errlist_free(&list);
	*ret = (struct average_origin){ .table = &h->table,
					.nrow = h->nrow,
					.row = h->row,
					.step = h->step,
					.marked = h->marked,
					.memory = true };
	memcpy(ret->left_out, h->left_out, sizeof ret->left_out);
	return rc;
}

struct average_origin average_origin_of(const struct checkpoint *k)
{
	struct average_origin o = { .table = &k->table,
				    .nrow = k->table.naverage,
				    .row = k->table.average,
				    .step = k->step,
				    .marked = averages_marked(k) };
	struct average_missed m[TABLE_AVERAGES_MAX];

	averages_missed_all(k, m);
	for (uint32_t i = 0; i < MIN(o.nrow, TABLE_AVERAGES_MAX); i++)
		o.left_out[i] = average_left_out_add(
			m[i].known && !m[i].least ? 0 : AVERAGE_AT_LEAST, m[i].left_out);
	return o;
}

/* Of a place: one rank's averages, which begin at a whole MiB of its slot. */
static bool held_mib_is_right(void *arg, uint32_t place, uint64_t i, const void *p)
{
	const struct average_held_rank *r = &((const struct average_held *)arg)->rank[place];

	return !r->sums || slot_sums_match(r->sums, (r->at >> CHUNK_LOG2) + i, p);
}

int average_held_move(void *arg, const struct plan *p, void *const *base, struct ckpt_err *err)
{
	struct average_held *h = arg;
	const struct move_spread how = { .right = held_mib_is_right, .arg = h };

	return move_spread(p, (const void *const *)h->base, base, &how, err);
}

/* --- reading: which averages of the source go on, and where their bytes belong --- */
struct reading_row {
	bool lost, here; /* here: a tensor of it is averaged on this host */
	bool mixed, changed;
	uint32_t src; /* of the source's rows: whose state goes on; TABLE_NONE: none */
	char why[400];
};

struct average_reading {
	struct average_base *base;
	struct average_origin from;
	uint32_t world;
	struct reading_row *row; /* [base->nrow] */
	struct table all;	 /* every rank's MADE tensors, without pieces */
	uint32_t **map;		 /* [world] where a rank's are in it */
	bool *take;		 /* [all.ntensor] */
	struct table dst;	 /* of these, with pieces: place r is base->mem[r] */
	uint32_t *dst_all;	 /* [dst.ntensor] their numbers in all */
	struct plan plan;
};

void average_reading_free(struct average_reading *x)
{
	if (!x)
		return;
	plan_free(&x->plan);
	table_free(&x->dst);
	table_free(&x->all);
	for (uint32_t r = 0; x->map && r < x->world; r++)
		free(x->map[r]);
	free(x->map);
	free(x->take);
	free(x->dst_all);
	free(x->row);
	average_base_unref(x->base);
	free(x);
}

static const struct average_row *row_of(const struct average_reading *x, uint32_t i)
{
	return &x->base->decl[0]->averages->row[i];
}

__attribute__((format(printf, 3, 4))) static void row_lose(struct average_reading *x, uint32_t i,
							   const char *why, ...)
{
	struct reading_row *r = &x->row[i];
	va_list ap;

	if (r->lost)
		return;
	r->lost = true;
	va_start(ap, why);
	(void)vsnprintf(r->why, sizeof r->why, why, ap);
	va_end(ap);
}

static uint32_t source_row(const struct average_origin *s, const char *name, uint32_t rule)
{
	for (uint32_t i = 0; i < s->nrow; i++)
		if (s->row[i].rule == rule && strcmp(s->row[i].name, name) == 0)
			return i;
	return TABLE_NONE;
}

static bool source_has(const struct average_origin *s, const char *name)
{
	for (uint32_t i = 0; i < s->nrow; i++)
		if (strcmp(s->row[i].name, name) == 0)
			return true;
	return false;
}

static bool is_carry(const struct table_tensor *t)
{
	size_t n = strlen(t->component), m = strlen(".carry");

	return n > m && strcmp(t->component + n - m, ".carry") == 0;
}

/* Is tensor u of all there, and whose? */
static void tensor_judge(struct average_reading *x, uint32_t u)
{
	const struct table_tensor *t = &x->all.tensor[u], *s;
	uint32_t i = t->made - 1, at, of;
	struct reading_row *r = &x->row[i];
	char name[TABLE_KEY_BYTES + 32];

	r->here = true;
	at = table_find(x->from.table, t->component, t->name, TABLE_NONE);
	s = at == TABLE_NONE ? NULL : &x->from.table->tensor[at];
	table_tensor_print(t, name, sizeof name);
	if (!s || !s->made) {
		/* One without Kahan has no carries: they begin at zero. */
		if (is_carry(t) &&
		    (r->src == TABLE_NONE || !(x->from.row[r->src].flags & AVERAGE_KAHAN)))
			return;
		row_lose(x, i, "the step %s %.200s", s ? "declares itself" : "lacks", name);
		return;
	}
	if (t->dtype != s->dtype || !table_shape_same(t, s)) {
		row_lose(x, i, "%.200s has another shape there", name);
		return;
	}
	of = source_row(&x->from, x->from.table->average[s->made - 1].name,
			x->from.table->average[s->made - 1].rule);
	if (of == TABLE_NONE || strcmp(x->from.row[of].name, row_of(x, i)->name) != 0) {
		row_lose(x, i, "nothing is said of what made %.200s", name);
		return;
	}
	if (r->src == TABLE_NONE)
		r->src = of;
	r->mixed |= r->src != of;
	x->take[u] = true;
}

/* A schedule that this version cannot read may have made something else of the values. */
static bool schedule_is_known(const char *text, struct ckpt_err *err)
{
	struct ema_spec *s = NULL;
	int rc = ema_spec_parse(text, &s, err);

	ema_spec_free(s);
	return rc == 0;
}

/* Its state, as far as the source says it. */
static void row_judge(struct average_reading *x, uint32_t i)
{
	struct reading_row *r = &x->row[i];
	const struct average_row *now = row_of(x, i);
	const struct table_average *was;
	struct ema_state state;
	struct ckpt_err err = { 0 };

	if (r->lost)
		return;
	if (r->src == TABLE_NONE) {
		row_lose(x, i, "the step has no average of that name%s",
			 source_has(&x->from, now->name) ? " and rule" : "");
		return;
	}
	was = &x->from.row[r->src];
	state = average_row_state(was);
	r->changed = strcmp(was->schedule, now->canonical) != 0;
	if (was->last_step == EMA_NO_STEP)
		row_lose(x, i, "no step was taken into it");
	else if (!ema_state_possible(&state, x->from.step))
		row_lose(x, i,
			 "what the step says of it cannot be (updated at step %" PRIu64
			 ", begun at step %" PRIu64 ", product %g)",
			 was->last_step, was->since, was->product);
	else if (r->changed && !schedule_is_known(was->schedule, &err))
		row_lose(x, i,
			 "a version newer than this one made it, which cannot go on with it "
			 "(%.250s)",
			 err.msg);
}

static void row_take(struct average_reading *x, uint32_t i)
{
	const struct reading_row *r = &x->row[i];
	const struct table_average *was = &x->from.row[r->src];
	const char *now = row_of(x, i)->canonical;
	struct ema_state *s = &x->base->row[i];
	struct hash128_state h;
	struct hash128 sum;

	if (MUTANT(STATE_NOT_RESTORED)) {
		*s = ema_state_copied(now, x->from.step);
		return;
	}
	*s = average_row_state(was);
	x->base->left_out[i] = MUTANT(LEFT_OUT_NOT_RESTORED) ? 0 : x->from.left_out[r->src];
	if (r->changed) {
		hash128_begin(&h);
		hash128_add(&h, was->history, sizeof was->history);
		hash128_add(&h, now, strlen(now));
		sum = hash128_end(&h);
		memcpy(s->history, sum.b, sizeof s->history);
	}
	x->base->flags[i] |=
		(was->flags & (AVERAGE_MIXED | AVERAGE_SEEDED)) | (r->mixed ? AVERAGE_MIXED : 0);
}

/* --- the plan --- */
static int all_make(struct average_reading *x, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int rc = 0;

	for (uint32_t r = 0; r < x->world && rc == 0; r++) {
		const struct table *made = &x->base->decl[r]->averages->made;

		x->map[r] = malloc(MAX(made->ntensor, 1u) * sizeof **x->map);
		rc = !x->map[r] ? -ENOMEM
				: table_merge_tensors(&x->all, made, x->map[r], &list, err);
	}
	if (list.n)
		rc = ckpt_errlist_end(&list, err, "the ranks' averages do not agree");
	ckpt_errlist_free(&list);
	if (rc == 0 && !(x->take = calloc(MAX(x->all.ntensor, 1u), sizeof *x->take)))
		rc = -ENOMEM;
	return rc;
}

/* Nothing partial is averaged, so that no layout is needed. */
static int tensor_add(struct table *to, const struct table *from, uint32_t i, uint32_t *ret,
		      struct ckpt_err *err)
{
	struct table_tensor t = from->tensor[i];

	t.made = 0;
	t.layout = TABLE_NONE;
	return table_add_tensor(to, &t, ret, err);
}

/* Of the rows that are not lost. */
static int dst_make(struct average_reading *x, struct ckpt_err *err)
{
	cleanup_free uint32_t *id = malloc(MAX(x->all.ntensor, 1u) * sizeof *id);
	int rc = 0;

	table_free(&x->dst);
	free(TAKE(x->dst_all));
	x->dst = (struct table){ 0 };
	x->dst_all = malloc(MAX(x->all.ntensor, 1u) * sizeof *x->dst_all);
	if (!id || !x->dst_all)
		return -ENOMEM;
	for (uint32_t u = 0; u < x->all.ntensor && rc == 0; u++) {
		id[u] = TABLE_NONE;
		if (!x->take[u] || x->row[x->all.tensor[u].made - 1].lost)
			continue;
		rc = tensor_add(&x->dst, &x->all, u, &id[u], err);
		if (rc == 0)
			x->dst_all[id[u]] = u;
	}
	for (uint32_t r = 0; r < x->world && rc == 0; r++) {
		const struct table *made = &x->base->decl[r]->averages->made;
		struct table_place place = { .name = "averages",
					     .rank = r,
					     .bytes = x->base->decl[r]->averages->bytes };

		rc = table_add_place(&x->dst, &place, NULL, err);
		for (uint32_t i = 0; i < made->npiece && rc == 0; i++) {
			struct table_piece p = made->piece[i];

			p.tensor = id[x->map[r][p.tensor]];
			p.place = r;
			if (p.tensor != TABLE_NONE) /* sets are the declaration's, held by base */
				rc = table_put_piece(&x->dst, &p, err);
		}
	}
	return rc == 0 ? table_seal(&x->dst, err) : rc;
}

/* plan_opts.differs: the source has the tensor, but not all of its elements. */
static void dst_differs(void *arg, uint32_t tensor, const char *text)
{
	struct average_reading *x = arg;
	uint32_t i = x->all.tensor[x->dst_all[tensor]].made - 1;

	row_lose(x, i, "%.300s", text ? text : "a tensor is not there");
}

/* Each try loses a row, or is the last. */
static int reading_plan(struct average_reading *x, struct ckpt_err *err)
{
	int rc;

	for (;;) {
		struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
		struct plan_opts opts = { .lenient = true,
					  .differs = dst_differs,
					  .differs_arg = x };

		rc = dst_make(x, err);
		if (rc == 0)
			rc = plan_make(x->from.table, &x->dst, &opts, &x->plan, &list, err);
		ckpt_errlist_free(&list);
		if (rc != -EMEDIUMTYPE || x->from.some)
			return rc;
		plan_free(&x->plan);
		*err = (struct ckpt_err){ 0 };
	}
}

static bool all_lost(const struct average_reading *x)
{
	for (uint32_t i = 0; i < x->base->nrow; i++)
		if (!x->row[i].lost)
			return false;
	return true;
}

int average_reading_plan(struct decl *const *dst, uint32_t world, const struct average_origin *from,
			 struct average_reading **ret, struct ckpt_err *err)
{
	struct average_reading *x = calloc(1, sizeof *x);
	int rc = -ENOMEM;

	*ret = NULL;
	if (x) {
		x->from = *from;
		x->world = world;
		x->base = average_base_new(dst, world);
		x->map = calloc(world, sizeof *x->map);
		x->row = x->base ? calloc(MAX(x->base->nrow, 1u), sizeof *x->row) : NULL;
	}
	if (x && x->base && x->map && x->row)
		rc = all_make(x, err);
	if (rc == 0) {
		x->base->step = from->step;
		x->base->marked = from->marked;
		snprintf(x->base->from, sizeof x->base->from, "step %" PRIu64 " %s", from->step,
			 from->memory ? "in memory" : "on disk");
		for (uint32_t i = 0; i < x->base->nrow; i++)
			x->row[i].src = source_row(from, row_of(x, i)->name, row_of(x, i)->rule);
		for (uint32_t i = 0; i < x->base->nrow; i++)
			if (!source_has(from, row_of(x, i)->name))
				row_lose(x, i, "the step has no average of that name");
		for (uint32_t u = 0; u < x->all.ntensor; u++)
			tensor_judge(x, u);
		for (uint32_t i = 0; i < x->base->nrow; i++)
			row_judge(x, i);
		rc = reading_plan(x, err);
	}
	if (rc == 0)
		rc = move_check(&x->plan, err);
	if (rc < 0) {
		average_reading_free(x);
		return err && err->code == rc ? rc
					      : ckpt_error(err, rc, "no memory to read averages");
	}
	*ret = x;
	return 0;
}

int average_reading_move(struct average_reading *x, struct reaper *reaper, average_move_fn *move,
			 void *arg, struct ckpt_err *err)
{
	cleanup_free void **base = calloc(x->world, sizeof *base);
	int rc = 0;

	if (all_lost(x))
		return 0;
	if (!base)
		return ckpt_error(err, -ENOMEM, "no memory to read averages");
	rc = average_base_memory(x->base, reaper, err);
	for (uint32_t r = 0; r < x->world; r++)
		base[r] = x->base->mem[r] ? x->base->mem[r]->base : NULL;
	if (rc == 0 && x->plan.bytes)
		rc = move(arg, &x->plan, base, err);
	for (uint32_t i = 0; i < x->base->nrow && rc == 0; i++)
		if (!x->row[i].lost)
			row_take(x, i);
	return rc;
}

struct average_base *average_reading_base(const struct average_reading *x)
{
	return all_lost(x) ? NULL : average_base_ref(x->base);
}

/* --- what is said --- */
static void row_say(const struct average_reading *x, uint32_t i, char *ret, size_t bytes)
{
	const struct average_row *r = row_of(x, i);
	const struct reading_row *is = &x->row[i];
	char rule[32] = "";

	if (r->rule)
		snprintf(rule, sizeof rule, " (rule %u)", r->rule);
	if (is->lost)
		snprintf(ret, bytes, "average %s%s %s: %s has it not: %s", r->name, rule,
			 x->base->decl[0]->averages->spec[r->average]->seed
				 ? "is to begin with its seed"
				 : "begins anew",
			 x->base->from, is->why);
	else
		snprintf(ret, bytes, "average %s%s goes on from %s%s%s", r->name, rule,
			 x->base->from,
			 is->changed ? ", with another schedule, which its history says" : "",
			 is->mixed ? ", with tensors that other rules had averaged (MIXED)" : "");
}

void average_reading_say(const struct average_reading *x, char *ret, size_t bytes)
{
	char line[640];

	*ret = 0;
	for (uint32_t i = 0; i < x->base->nrow; i++) {
		const struct reading_row *is = &x->row[i];
		size_t n = strlen(ret);

		if (row_of(x, i)->rule && !is->lost && !is->changed && !is->mixed)
			continue; /* as its average */
		row_say(x, i, line, sizeof line);
		if (n + 2 < bytes)
			snprintf(ret + n, bytes - n, "%s%s", n ? "\n" : "", line);
	}
}

/* --- which parts --- */
int parts_choose(const struct checkpoint *k, const struct table *want, uint32_t rank,
		 const struct reshard_opts *opts, bool *needed, bool *ret_all, struct ckpt_err *err)
{
	struct reshard *plan = NULL;
	int rc = reshard_open(&k->table, want, opts, &plan, err);

	if (rc == 0)
		rc = reshard_ranks(plan, rank, k->world, needed, ret_all, err);
	reshard_close(plan);
	return rc;
}

int average_parts_choose(struct decl *const *dst, uint32_t world, const struct checkpoint *k,
			 bool *needed, struct ckpt_err *err)
{
	const struct reshard_opts opts = { .lenient = true };
	bool all = false;
	int rc = 0;

	for (uint32_t r = 0; r < world && rc == 0 && !all; r++)
		if (dst[r]->averages && dst[r]->averages->made.ntensor)
			rc = parts_choose(k, &dst[r]->averages->made, r, &opts, needed, &all, err);
	if (rc || all)
		memset(needed, true, k->world);
	return rc == -ENOMEM ? rc : 0;
}

/* --- files --- */
static int files_tick(void *arg, uint64_t done)
{
	(void)arg;
	(void)done;
	worker_sign(worker_me());
	return 0;
}

int average_files_move(void *arg, const struct plan *p, void *const *base, struct ckpt_err *err)
{
	return move_read(p, arg, base, files_tick, NULL, err);
}

/* --- seeds: a checkpoint of which an average begins --- */
struct seeding {
	const struct checkpoint *saved;
	struct average_base *base;
	uint32_t spec, world;
	bool *weights; /* [nrow] not its averages: it lacks some */
	struct table dst;
	struct plan plan;
};

static const struct averages *of_base(const struct average_base *b)
{
	return b->decl[0]->averages;
}

/* Does row i begin with this seed? What has something to go on from does not. */
static bool row_is_seeded(const struct average_base *b, uint32_t i, uint32_t spec)
{
	return of_base(b)->row[i].average == spec && b->row[i].last_step == EMA_NO_STEP;
}

static const struct table_tensor *seed_find(const struct table *t, const char *key)
{
	uint32_t i = *key ? table_find_key(t, key) : TABLE_NONE;

	return i == TABLE_NONE ? NULL : &t->tensor[i];
}

/* The seed's tensor that an average's begins as: its average of the same name; or the weights, by
 * the name of what is averaged, or of the parameter that this is the master of. NULL: none. */
static const struct table_tensor *seed_tensor(const struct seeding *x, const struct decl *d,
					      const struct table_tensor *made, bool weights)
{
	const struct table *from = &x->saved->table, *main = decl_part(d, PART_MAIN);
	const struct table_tensor *s, *own = seed_find(main, made->of);
	uint32_t k;

	if (!weights) {
		k = table_find(from, made->component, made->name, TABLE_NONE);
		s = k == TABLE_NONE ? NULL : &from->tensor[k];
		return s && s->made && s->dtype == CKPT_F32 ? s : NULL;
	}
	s = seed_find(from, made->of);
	if (!s && own && own->role == CKPT_MASTER)
		s = seed_find(from, own->of);
	return s && !s->made && ema_can_average(s->dtype) ? s : NULL;
}

/* Does the tensor's row begin with the seed? A carry has no counterpart in it. */
static bool seed_begins(const struct seeding *x, const struct table_tensor *made)
{
	return !is_carry(made) && row_is_seeded(x->base, made->made - 1, x->spec);
}

/* Which rows begin as the seed's averages, and which as its weights? First each is looked for among
 * the averages; then those rows of which one is missing, among the weights. */
static int seed_judge(struct seeding *x, bool weights, struct ckpt_err *err)
{
	char name[TABLE_KEY_BYTES + 32];

	for (uint32_t r = 0; r < x->world; r++) {
		const struct table *made = &x->base->decl[r]->averages->made;

		for (uint32_t i = 0; i < made->ntensor; i++) {
			const struct table_tensor *t = &made->tensor[i], *s;

			if (!seed_begins(x, t) || (weights && !x->weights[t->made - 1]))
				continue;
			s = seed_tensor(x, x->base->decl[r], t, weights);
			if (s && table_shape_same(s, t))
				continue;
			if (weights)
				return ckpt_error(err, -EINVAL,
						  s ? "its %.300s has another shape"
						    : "it has neither %.300s nor an average of it, "
						      "in F32, BF16 or F16",
						  s ? table_tensor_print(s, name, sizeof name)
						    : t->of);
			x->weights[t->made - 1] = true;
		}
	}
	return 0;
}

/* As the seed calls them, in F32: what is narrower is widened, which is exact. */
static int seed_dst(struct seeding *x, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t r = 0; r < x->world && rc == 0; r++) {
		const struct table *made = &x->base->decl[r]->averages->made;
		struct table_place place = { .name = "averages",
					     .rank = r,
					     .bytes = x->base->decl[r]->averages->bytes };

		rc = table_add_place(&x->dst, &place, NULL, err);
		for (uint32_t i = 0; i < made->ntensor && rc == 0; i++) {
			const struct table_tensor *t = &made->tensor[i], *s;
			struct table_tensor y = *t;
			uint32_t id;

			if (!seed_begins(x, t))
				continue;
			s = seed_tensor(x, x->base->decl[r], t, x->weights[t->made - 1]);
			y.component = s->component;
			y.name = s->name;
			y.made = 0;
			y.layout = TABLE_NONE;
			id = table_find(&x->dst, s->component, s->name, TABLE_NONE);
			if (id == TABLE_NONE)
				rc = table_add_tensor(&x->dst, &y, &id, err);
			for (uint32_t k = made->first[i]; k < made->first[i + 1] && rc == 0; k++) {
				struct table_piece p = made->piece[k];

				p.tensor = id;
				p.place = r;
				rc = table_put_piece(&x->dst, &p, err);
			}
		}
	}
	return rc == 0 ? table_seal(&x->dst, err) : rc;
}

static int seed_plan(struct seeding *x, struct ckpt_err *err)
{
	const struct plan_opts opts = { .casts = true };
	int rc;

	x->weights = calloc(MAX(x->base->nrow, 1u), sizeof *x->weights);
	rc = x->weights ? seed_judge(x, false, err)
			: ckpt_error(err, -ENOMEM, "no memory for a seed");
	if (rc == 0)
		rc = seed_judge(x, true, err);
	if (rc == 0)
		rc = seed_dst(x, err);
	if (rc == 0)
		rc = plan_make(&x->saved->table, &x->dst, &opts, &x->plan, NULL, err);
	return rc == 0 ? move_check(&x->plan, err) : rc;
}

static void seed_done(struct seeding *x)
{
	plan_free(&x->plan);
	table_free(&x->dst);
	free(x->weights);
}

void average_seeds_free(struct average_seed *s)
{
	for (struct average_seed *next; s; s = next) {
		next = s->next;
		if (s->fd >= 0)
			(void)close(s->fd);
		free(s);
	}
}

/* The user's process has opened the directory: nothing here is opened by a path. */
static int seed_open(const struct daemon *d, const struct average_seed *s, struct opened *ret,
		     struct ckpt_err *err)
{
	const struct engine e = daemon_engine(d);

	if (s->fd < 0)
		return ckpt_error(err, -EINVAL, "it cannot be opened: %s", strerror(s->error));
	return engine_open(
		&e,
		&(struct engine_subject){ .fd = s->fd, .path = s->path, .force = &format_native },
		ret, err);
}

/* Into the rows of base that have nothing; move false: could it be done? */
int average_seed_read(const struct daemon *d, const struct average_seed *s, struct average_base *b,
		      uint64_t step, bool move, struct ckpt_err *err)
{
	struct seeding x = { .base = b, .spec = s->spec, .world = b->world };
	struct opened o = { .ckpt = NULL };
	struct move_files files;
	struct ckpt_err why = { 0 };
	cleanup_free void **base = calloc(b->world, sizeof *base);
	int rc = base ? seed_open(d, s, &o, &why) : -ENOMEM;

	x.saved = o.ckpt;
	if (rc == 0) {
		rc = seed_plan(&x, &why);
		if (rc == 0 && move)
			rc = move_open(d->opts.ops, s->fd, o.ckpt, true, d->opts.engine, &files,
				       &why);
		if (rc == 0 && move) {
			for (uint32_t r = 0; r < b->world; r++)
				base[r] = b->mem[r] ? b->mem[r]->base : NULL;
			rc = average_files_move(&files, &x.plan, base, &why);
			move_close(&files);
		}
	}
	for (uint32_t i = 0; i < b->nrow && rc == 0 && move; i++)
		if (row_is_seeded(b, i, s->spec)) {
			b->row[i] = ema_state_seeded(of_base(b)->row[i].canonical, step, o.ckpt->id,
						     x.weights[i]);
			b->flags[i] |= AVERAGE_SEEDED;
		}
	seed_done(&x);
	engine_close(&o);
	return rc < 0 ? ckpt_error(err, rc,
				   "average %s: its seed %.300s cannot be used: %.1500s: give the "
				   "directory of a whole step, or leave out seed=",
				   of_base(b)->name[s->spec], s->path,
				   why.msg[0] ? why.msg : strerror(-rc))
		      : 0;
}
