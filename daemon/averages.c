// SPDX-License-Identifier: Apache-2.0
// averages.c - the averages of a declaration: which tensors are averaged, by which schedule, of
// which source, and where their averages lie in the slot. Called by memory (each rank's
// declaration) and by whole (all ranks' together), in workers.
// Invariant: whether a tensor is averaged, and the name of its average, follow from that tensor's
// own record alone, so that ranks which declare different tensors decide alike. A mistake that one
// rank cannot find alone (a master that another rank has) is refused when all ranks have declared.
//
// With source=master an FP32 master stands for the parameter that its `of` names: the average has
// the parameter's name, and rules are matched with that name. If its rank declares no such master,
// a parameter is its own source. If a rank declares a parameter and another rank declares its
// master, the first rank must declare the master, too, without pieces where it holds none
// (CKPT_BOXES, nlocal 0); otherwise it is refused.
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/table/operand.h"
#include "daemon/average.h"
#include "formats/native/native.h"
#include <stdio.h>

#define CHUNK_BYTES (UINT64_C(1) << CHUNK_LOG2)
#define EMA_CARRY ".carry"
#define COMPONENT_BYTES (CKPT_NAME_MAX + sizeof AVERAGES_COMPONENT + sizeof EMA_CARRY)

struct build {
	const struct table *t, *main;
	uint32_t rank;
	struct averages *a;
	/* [t->ntensor] MASTER: it speaks for what its `of` names; SPOKEN_FOR: a master does */
	uint8_t *speaks;
	struct item *item; /* [nitem] the sources that have pieces here, by average */
	uint32_t nitem;
	uint32_t *first; /* [main->ntensor] 1 + the first item of this source; 0: none */
	struct ckpt_err *err;
};
enum { NOBODY, MASTER, SPOKEN_FOR };

/* One average of one source that has pieces here. */
struct item {
	const struct average_source *source;
	uint32_t tensor;      /* of main */
	uint32_t made, carry; /* tensors of averages.made; carry: TABLE_NONE */
	uint64_t *off;	      /* of its pieces, and behind them those of their carries */
	uint32_t next;	      /* 1 + the next one of the same source; 0: none */
};

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "no memory for the averages of a declaration");
}

/* --- what was declared --- */

static int by_name(const void *va, const void *vb)
{
	const struct table_average *a = *(const struct table_average *const *)va;
	const struct table_average *b = *(const struct table_average *const *)vb;

	return strcmp(a->name, b->name);
}

static int spec_read(struct build *b, const struct table_average *x)
{
	struct averages *a = b->a;
	char canonical[EMA_SPEC_BYTES];
	int rc = x->rule ? -EINVAL : ema_spec_parse(x->schedule, &a->spec[a->nspec], NULL);

	if (rc == 0) {
		a->name[a->nspec] = x->name;
		rc = ema_spec_print(a->spec[a->nspec++], EMA_DECLARED, canonical);
	}
	if (rc == -ENOMEM)
		return no_memory(b->err);
	if (rc < 0 || strcmp(canonical, x->schedule) != 0)
		return ckpt_error(b->err, -EPROTO,
				  "rank %u declares average %s, which is not written as this "
				  "ckptd writes it: \"%s\"",
				  b->rank, x->name, x->schedule);
	ema_spec_check(a->spec[a->nspec - 1], x->name, &b->a->wrong);
	return 0;
}

static int specs_read(struct build *b)
{
	uint32_t n = b->t->naverage;
	cleanup_free const struct table_average **x = calloc(n, sizeof *x);
	int rc = 0;

	b->a->spec = calloc(n, sizeof(struct ema_spec *));
	b->a->name = calloc(n, sizeof(const char *));
	b->a->hit = calloc(n, sizeof *b->a->hit);
	if (!x || !b->a->spec || !b->a->name || !b->a->hit)
		return no_memory(b->err);
	for (uint32_t i = 0; i < n; i++)
		x[i] = &b->t->average[i];
	qsort(x, n, sizeof *x, by_name);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = spec_read(b, x[i]);
	return rc;
}

static uint32_t row_find(const struct averages *a, uint32_t spec, uint32_t rule)
{
	for (uint32_t i = 0; i < a->nrow; i++)
		if (a->row[i].average == spec && a->row[i].rule == rule)
			return i;
	return TABLE_NONE;
}

/* (name, 0), and (name, n) for the n-th rule with a schedule of its own. */
static int row_add(struct build *b, uint32_t spec, uint32_t rule,
		   const struct ema_schedule *schedule)
{
	struct averages *a = b->a;
	char canonical[EMA_SPEC_BYTES];
	int rc = ema_spec_print(a->spec[spec],
				MUTANT(SEED_IN_HISTORY) && !rule ? EMA_DECLARED : rule, canonical);
	struct ema_state now;
	struct table_average x = { .name = a->name[spec], .schedule = canonical, .rule = rule };

	if (rc < 0)
		return rc == -ENOMEM ? no_memory(b->err)
				     : ckpt_error(b->err, -EPROTO,
						  "average %s: rule %u cannot be printed",
						  a->name[spec], rule);
	if (a->nrow == TABLE_AVERAGES_MAX) {
		ckpt_errlist_add(&b->a->wrong,
				 "average %s: all averages and their rules with schedules of their "
				 "own are more than %u",
				 a->name[spec], TABLE_AVERAGES_MAX);
		return 0;
	}
	now = ema_state_new(canonical);
	average_row_set(&x, &now, a->spec[spec]->kahan ? AVERAGE_KAHAN : 0);
	rc = table_add_average(&a->made, &x, NULL, b->err);
	if (rc == 0)
		a->row[a->nrow++] = (struct average_row){ .rule = rule,
							  .average = spec,
							  .schedule = schedule,
							  .kahan = a->spec[spec]->kahan };
	return rc;
}

static int rows_make_all(struct build *b)
{
	struct averages *a = b->a;
	int rc = 0;

	a->row = calloc(TABLE_AVERAGES_MAX, sizeof *a->row);
	if (!a->row)
		return no_memory(b->err);
	for (uint32_t i = 0; i < a->nspec && rc == 0; i++) {
		uint32_t own = 0;

		rc = row_add(b, i, 0, &a->spec[i]->schedule);
		for (uint32_t k = 0; k < a->spec[i]->nrule && rc == 0; k++)
			if (a->spec[i]->rule[k].own)
				rc = row_add(b, i, ++own, &a->spec[i]->rule[k].schedule);
	}
	return rc;
}

/* --- which tensors --- */

static int masters_find(struct build *b)
{
	b->speaks = calloc((size_t)b->t->ntensor + 1, sizeof *b->speaks);
	if (!b->speaks)
		return no_memory(b->err);
	for (uint32_t i = 0; i < b->t->ntensor; i++) {
		const struct table_tensor *x = &b->t->tensor[i];
		uint32_t of;

		if (!averages_is_master(x))
			continue;
		of = table_find_key(b->t, x->of);
		if (of == TABLE_NONE || of == i) {
			b->speaks[i] = MASTER;
		} else if (table_shape_same(x, &b->t->tensor[of])) {
			b->speaks[i] = MASTER;
			b->speaks[of] = SPOKEN_FOR;
		}
	}
	return 0;
}

/* Does a rule that has taken nothing yet at least match this? Only tensors that rules are asked
 * about count. */
static void rules_match(const struct ema_spec *s, const struct ema_subject *x, uint64_t *hit)
{
	if (x->blob || x->cls == CKPT_SINK || !strncmp(x->component, "ema.", 4) ||
	    (x->role != CKPT_PARAM && x->role != CKPT_BUFFER && x->role != CKPT_OTHER))
		return;
	for (uint32_t i = 0; i < s->nrule; i++)
		if (!(*hit >> i & 1) &&
		    ema_pattern_matches(s->rule[i].pattern, x->component, x->name))
			*hit |= UINT64_C(1) << i;
}

/* Why it cannot be averaged although it was to be; NULL: it can. */
static const char *average_obstacle(const struct table *t, const struct table_tensor *x)
{
	if (!ema_can_average(x->dtype))
		return "only F32, BF16 and F16 can be averaged";
	if (x->cls == CKPT_CONST)
		return "it is of class const, and its average is itself";
	if (operand_dims(t, x))
		return "it is partial: its pieces are operands of a reduction that is still to be made";
	return NULL;
}

/* What its average is called. */
static const char *source_name(const struct table *t, const struct average_source *s)
{
	const struct table_tensor *x = &t->tensor[s->tensor];
	const char *slash = s->master ? strchr(x->of, '/') : NULL;

	return slash && slash[1] && slash - x->of <= CKPT_NAME_MAX ? slash + 1 : x->name;
}

static int source_add(struct averages *a, const struct average_source *x, uint32_t *cap,
		      struct ckpt_err *err)
{
	if (!ARRAY_GROW(a->source, a->nsource, *cap))
		return no_memory(err);
	a->source[a->nsource++] = *x;
	return 0;
}

static int tensor_judge(struct build *b, uint32_t spec, uint32_t i, uint32_t *cap)
{
	const struct table_tensor *x = &b->t->tensor[i];
	const struct ema_spec *s = b->a->spec[spec];
	bool master = s->source == EMA_MASTER && b->speaks[i] == MASTER;
	char component[CKPT_NAME_MAX + 1], label[160];
	struct ema_subject subject;
	struct ema_verdict v;
	struct average_source to = { .tensor = i, .master = master };
	const char *why;

	if (s->source == EMA_MASTER && b->speaks[i] == SPOKEN_FOR)
		return 0; /* rules judge its master instead */
	subject = averages_subject(x, master, component);
	v = ema_spec_judge(s, &subject);
	rules_match(s, &subject, &b->a->hit[spec]);
	if (v.act != EMA_AVERAGE)
		return 0;
	why = average_obstacle(b->t, x);
	if (why) {
		ckpt_errlist_add(&b->a->wrong,
				 "average %s: %s (%s): %s: give it a rule, copy or skip",
				 b->a->name[spec], table_tensor_print(x, label, sizeof label),
				 dtype_name(x->dtype), why);
		return 0;
	}
	to.row = row_find(b->a, spec, v.own);
	return to.row == TABLE_NONE ? 0 : source_add(b->a, &to, cap, b->err);
}

/* A component of its own: what a rank declares there would pass for an average. */
static void component_check(struct build *b, const struct table_tensor *x)
{
	const char *name = x->component + strlen(AVERAGES_COMPONENT);
	size_t n = strlen(name), carry = strlen(EMA_CARRY);
	char label[160];

	if (x->cls == CKPT_SINK ||
	    strncmp(x->component, AVERAGES_COMPONENT, strlen(AVERAGES_COMPONENT)) != 0)
		return;
	if (n > carry && !strcmp(name + n - carry, EMA_CARRY))
		n -= carry;
	for (uint32_t i = 0; i < b->a->nspec; i++)
		if (strlen(b->a->name[i]) == n && !strncmp(b->a->name[i], name, n))
			ckpt_errlist_add(
				&b->a->wrong,
				"average %s: %s: this component is the average's: only tensors of "
				"class sink can be declared in it",
				b->a->name[i], table_tensor_print(x, label, sizeof label));
}

static int sources_find(struct build *b)
{
	uint32_t cap = 0;
	int rc = masters_find(b);

	for (uint32_t i = 0; i < b->t->ntensor && rc == 0; i++)
		component_check(b, &b->t->tensor[i]);
	for (uint32_t s = 0; s < b->a->nspec && rc == 0; s++)
		for (uint32_t i = 0; i < b->t->ntensor && rc == 0; i++)
			rc = tensor_judge(b, s, i, &cap);
	return rc;
}

/* --- names --- */

/* Which source has a name: of the first rank that has one. */
struct seen {
	struct table key; /* (ema.NAME, name) */
	struct seen_source {
		const struct table *t;
		uint32_t rank, tensor;
		bool master, said;
	} * by; /* [key.ntensor] */
	uint32_t cap;
};

static void seen_free(struct seen *x)
{
	table_free(&x->key);
	free(x->by);
}

/* Does m speak for x? */
static bool speaks_for(const struct seen_source *m, const struct seen_source *x)
{
	char key[TABLE_KEY_BYTES];

	return m->master && !x->master &&
	       !strcmp(m->t->tensor[m->tensor].of, table_key(&x->t->tensor[x->tensor], key));
}

static void clash_say(const char *average, const char *name, const struct seen_source *a,
		      const struct seen_source *b, struct ckpt_errlist *list)
{
	const struct seen_source *master = speaks_for(a, b) ? a : b;
	const struct seen_source *x = master == a ? b : a;
	char p[160], q[160];

	(void)table_tensor_print(&x->t->tensor[x->tensor], p, sizeof p);
	(void)table_tensor_print(&master->t->tensor[master->tensor], q, sizeof q);
	if (speaks_for(master, x))
		ckpt_errlist_add(
			list,
			"average %s: %s: rank %u declares it without its FP32 master %s, which "
			"rank %u declares: rank %u is to declare that, too (CKPT_BOXES, nlocal "
			"0, where it has none of it), or all ranks say source=param",
			average, p, x->rank, q, master->rank, x->rank);
	else
		ckpt_errlist_add(
			list,
			"average %s: %s of rank %u and %s of rank %u would both be " AVERAGES_COMPONENT
			"%s/%s: skip one of them by a rule",
			average, p, x->rank, q, master->rank, average, name);
}

static int seen_put(struct seen *x, const struct table_tensor *key, const struct seen_source *by,
		    struct ckpt_err *err)
{
	if (!ARRAY_GROW(x->by, x->key.ntensor, x->cap))
		return no_memory(err);
	x->by[x->key.ntensor] = *by;
	return table_add_tensor(&x->key, key, NULL, err);
}

/* Two sources of one name: a line for each name; without a list the later ones are marked.
 * -ENOMEM. */
static int names_check(struct seen *seen, struct averages *a, const struct table *t, uint32_t rank,
		       struct ckpt_errlist *list, struct ckpt_err *err)
{
	char component[COMPONENT_BYTES];
	int rc = 0;

	for (uint32_t i = 0; i < a->nsource && rc == 0; i++) {
		struct average_source *s = &a->source[i];
		const char *average = a->name[a->row[s->row].average];
		const struct seen_source me = { t, rank, s->tensor, s->master, false };
		const struct table_tensor key = { .component = component,
						  .name = source_name(t, s),
						  .dtype = CKPT_U8,
						  .layout = TABLE_NONE,
						  .rank = TABLE_NONE };
		const struct table_tensor *x = &t->tensor[s->tensor], *y;
		uint32_t k;

		snprintf(component, sizeof component, AVERAGES_COMPONENT "%s", average);
		k = table_find(&seen->key, component, key.name, TABLE_NONE);
		if (k == TABLE_NONE) {
			rc = seen_put(seen, &key, &me, err);
			continue;
		}
		s->twice |= !list;
		if (!list)
			continue;
		y = &seen->by[k].t->tensor[seen->by[k].tensor];
		if (seen->by[k].said ||
		    (!strcmp(x->component, y->component) && !strcmp(x->name, y->name)))
			continue;
		seen->by[k].said = true;
		clash_say(average, key.name, &seen->by[k], &me, list);
	}
	return rc;
}

/* --- what lies in the slot --- */

static uint32_t pieces_of(const struct table *main, uint32_t tensor)
{
	return main->first[tensor + 1] - main->first[tensor];
}

/* Has it a place in the slot? What is refused later has none. */
static bool is_placed(const struct build *b, const struct average_source *s)
{
	const struct average_row *row = &b->a->row[s->row];
	const char *name = source_name(b->t, s);
	char component[COMPONENT_BYTES];

	for (uint32_t carry = 0; carry < 2; carry++) {
		snprintf(component, sizeof component, AVERAGES_COMPONENT "%s%s",
			 b->a->name[row->average], carry ? EMA_CARRY : "");
		if (table_find(b->main, component, name, TABLE_NONE) != TABLE_NONE)
			return false;
	}
	return !s->twice;
}

/* The sources of which this rank owns something, and how many pieces all averages have. */
static int items_find(struct build *b, uint64_t *ret_npiece)
{
	const struct averages *a = b->a;

	*ret_npiece = 0;
	b->item = calloc((size_t)a->nsource + 1, sizeof *b->item);
	b->first = calloc((size_t)b->main->ntensor + 1, sizeof *b->first);
	if (!b->item || !b->first)
		return no_memory(b->err);
	for (uint32_t i = 0; i < a->nsource; i++) {
		const struct table_tensor *x = &b->t->tensor[a->source[i].tensor];
		uint32_t k = table_find(b->main, x->component, x->name, x->rank);

		if (k == TABLE_NONE || !pieces_of(b->main, k) || !is_placed(b, &a->source[i]))
			continue;
		b->item[b->nitem++] =
			(struct item){ .source = &a->source[i], .tensor = k, .carry = TABLE_NONE };
		*ret_npiece +=
			(uint64_t)pieces_of(b->main, k) * (a->row[a->source[i].row].kahan ? 2 : 1);
	}
	/* From the last on, so that each list ascends. */
	for (uint32_t i = b->nitem; i-- > 0;) {
		b->item[i].next = b->first[b->item[i].tensor];
		b->first[b->item[i].tensor] = i + 1;
	}
	return *ret_npiece > TABLE_PIECES_MAX
		       ? ckpt_error(b->err, -E2BIG, "averages of more than %u pieces in one rank",
				    TABLE_PIECES_MAX)
		       : 0;
}

static int made_begin(struct build *b, uint64_t ntensor, uint64_t npiece)
{
	struct table *made = &b->a->made;
	struct table_place place = b->main->place[0];
	int rc = table_reserve(made, ntensor, npiece);

	if (rc < 0)
		return no_memory(b->err);
	place.bytes = NATIVE_PART_BYTES_MAX;
	for (uint32_t i = 0; i < b->main->nmesh && rc == 0; i++)
		rc = table_add_mesh(made, &b->main->mesh[i], NULL, b->err);
	for (uint32_t i = 0; i < b->main->nlayout && rc == 0; i++)
		rc = table_add_layout(made, &b->main->layout[i], NULL, b->err);
	return rc == 0 ? table_add_place(made, &place, NULL, b->err) : rc;
}

static int made_tensor(struct build *b, struct item *x, bool carry)
{
	const struct table_tensor *source = &b->main->tensor[x->tensor];
	const struct average_row *row = &b->a->row[x->source->row];
	char component[COMPONENT_BYTES], of[TABLE_KEY_BYTES];
	struct table_tensor y = { .component = component,
				  .name = source_name(b->t, x->source),
				  .of = table_key(source, of),
				  .dtype = CKPT_F32,
				  .role = carry ? CKPT_OTHER : CKPT_AVERAGE,
				  .cls = CKPT_STABLE,
				  .layout = source->layout,
				  .rank = TABLE_NONE,
				  .made = x->source->row + 1,
				  .ndim = source->ndim,
				  .shape = source->shape };

	snprintf(component, sizeof component, AVERAGES_COMPONENT "%s%s", b->a->name[row->average],
		 carry ? EMA_CARRY : "");
	return table_add_tensor(&b->a->made, &y, carry ? &x->carry : &x->made, b->err);
}

/* The pieces of the source that have an average in this slot: those that the rank owns. */
static const struct indexset *averaged_set(const struct build *b, const struct item *x, uint32_t k)
{
	uint32_t declared = x->source->tensor;

	if (MUTANT(AVERAGES_OF_REPLICAS) && k == 0 &&
	    b->t->first[declared] != b->t->first[declared + 1])
		return &b->t->piece[b->t->first[declared]].set;
	return &b->main->piece[b->main->first[x->tensor] + k].set;
}

/* As native_part_table_of places a part's: see there. */
static int made_pieces(struct build *b, struct item *x, bool carry, uint64_t *end)
{
	uint32_t n = pieces_of(b->main, x->tensor);
	int rc = 0;

	for (uint32_t k = 0; k < n && rc == 0; k++) {
		struct table_piece p = { .tensor = carry ? x->carry : x->made,
					 .rank = b->rank,
					 .set = *averaged_set(b, x, k) };
		uint64_t bytes = p.set.numel * sizeof(float);

		p.off = align_up(*end, bytes >= NATIVE_BIG ? CHUNK_BYTES : NATIVE_PACK);
		if (bytes > NATIVE_PART_BYTES_MAX || p.off + bytes > NATIVE_PART_BYTES_MAX)
			return ckpt_error(
				b->err, -EFBIG,
				"rank %u owns averages of more than %llu bytes: use more ranks",
				b->rank, (unsigned long long)NATIVE_PART_BYTES_MAX);
		*end = p.off + bytes;
		x->off[(carry ? n : 0) + k] = p.off;
		rc = table_put_piece(&b->a->made, &p, b->err);
	}
	return rc;
}

/* A group of the raw space: the averages, or the carries, of one average. */
static int made_group(struct build *b, uint32_t from, uint32_t to, bool carry, uint64_t *end)
{
	int rc = 0;

	*end = align_up(*end, CHUNK_BYTES);
	for (uint32_t i = from; i < to && rc == 0; i++)
		rc = made_tensor(b, &b->item[i], carry);
	for (uint32_t i = from; i < to && rc == 0; i++)
		rc = made_pieces(b, &b->item[i], carry, end);
	return rc;
}

static int made_fill(struct build *b, uint64_t *off)
{
	struct averages *a = b->a;
	uint64_t end = 0;
	int rc = 0;

	for (uint32_t from = 0, to; from < b->nitem && rc == 0; from = to) {
		const struct average_row *row = &a->row[b->item[from].source->row];

		for (to = from;
		     to < b->nitem && a->row[b->item[to].source->row].average == row->average;
		     to++) {
			b->item[to].off = off;
			off += (uint64_t)pieces_of(b->main, b->item[to].tensor) *
			       (row->kahan ? 2 : 1);
		}
		rc = made_group(b, from, to, false, &end);
		if (rc == 0 && row->kahan)
			rc = made_group(b, from, to, true, &end);
	}
	a->made.place[0].bytes = end;
	a->bytes = align_up(end, 4096);
	return rc == 0 ? table_seal(&a->made, b->err) : rc;
}

/* --- what the walk does --- */

static int by_at(const void *va, const void *vb)
{
	const struct average_run *a = va, *b = vb;

	return a->at != b->at ? COMPARE(a->at, b->at) : COMPARE(a->src, b->src);
}

/* All averages of piece k of a source. */
static void run_add(struct build *b, uint32_t tensor, uint32_t k, const uint32_t *twin)
{
	struct averages *a = b->a;
	const struct table_piece *p = &b->main->piece[b->main->first[tensor] + k];
	const struct table_piece *at = p;
	struct average_run *run = &a->run[a->nrun++];
	uint32_t n = pieces_of(b->main, tensor);

	if (twin && twin[b->main->first[tensor] + k] != TABLE_NONE)
		at = &b->main->piece[twin[b->main->first[tensor] + k]];
	*run = (struct average_run){ .at = at->off,
				     .at_bytes = b->main->tensor[at->tensor].elem_bytes,
				     .src = p->off,
				     .n = p->set.numel,
				     .dtype = b->main->tensor[tensor].dtype,
				     .target = a->ntarget };
	for (uint32_t i = b->first[tensor]; i; i = b->item[i - 1].next) {
		const struct item *x = &b->item[i - 1];

		a->target[a->ntarget++] = (struct average_target){
			.row = x->source->row,
			.tensor = x->made,
			.off = x->off[k],
			.carry = x->carry == TABLE_NONE ? AVERAGE_NO_CARRY : x->off[n + k],
		};
	}
	run->ntarget = a->ntarget - run->target;
}

static int runs_make(struct build *b)
{
	struct averages *a = b->a;
	cleanup_free uint32_t *twin = NULL;
	uint64_t nrun = 0, ntarget = 0;
	bool derived = false;

	for (uint32_t i = 0; i < b->main->ntensor; i++)
		if (b->first[i]) {
			nrun += pieces_of(b->main, i);
			derived |= b->main->tensor[i].cls == CKPT_DERIVED;
		}
	for (uint32_t i = 0; i < b->nitem; i++)
		ntarget += pieces_of(b->main, b->item[i].tensor);
	a->run = calloc(nrun + 1, sizeof *a->run);
	a->target = calloc(ntarget + 1, sizeof *a->target);
	if (derived)
		twin = calloc((size_t)b->main->npiece + 1, sizeof *twin);
	if (!a->run || !a->target || (derived && (!twin || table_twins(b->main, twin) < 0)))
		return no_memory(b->err);
	for (uint32_t i = 0; i < b->main->ntensor; i++)
		for (uint32_t k = 0; b->first[i] && k < pieces_of(b->main, i); k++)
			run_add(b, i, k, twin);
	qsort(a->run, a->nrun, sizeof *a->run, by_at);
	return 0;
}

/* Rows and places: slots with equal sums are laid out alike. */
static void declared_sum(struct averages *a)
{
	const struct table *t = &a->made;
	struct hash128_state s;
	struct hash128 h;

	hash128_begin(&s);
	for (uint32_t i = 0; i < a->nrow; i++) {
		const le32 rule = le32_of(a->row[i].rule);

		hash128_add(&s, a->row[i].name, strlen(a->row[i].name) + 1);
		hash128_add(&s, &rule, sizeof rule);
		hash128_add(&s, a->row[i].canonical, strlen(a->row[i].canonical) + 1);
	}
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_tensor *x = &t->tensor[t->piece[i].tensor];
		const le64 at[] = { le64_of(t->piece[i].off), le64_of(t->piece[i].len) };

		if (i == t->first[t->piece[i].tensor]) {
			hash128_add(&s, x->component, strlen(x->component) + 1);
			hash128_add(&s, x->name, strlen(x->name) + 1);
		}
		hash128_add(&s, at, sizeof at);
	}
	h = hash128_end(&s);
	memcpy(a->declared, h.b, sizeof a->declared);
}

/* What the rows point to lives as long as the names do. */
static int made_pack(struct build *b, struct names *names)
{
	struct averages *a = b->a;
	struct table packed;

	if (table_pack(&a->made, names, &packed) < 0)
		return no_memory(b->err);
	table_free(&a->made);
	a->made = packed;
	for (uint32_t i = 0; i < a->nrow; i++) {
		a->row[i].name = a->name[a->row[i].average] = a->made.average[i].name;
		a->row[i].canonical = a->made.average[i].schedule;
	}
	declared_sum(a);
	return 0;
}

static int slot_fill(struct build *b, struct names *names)
{
	cleanup_free uint64_t *off = NULL;
	uint64_t npiece;
	int rc = items_find(b, &npiece);

	if (rc < 0)
		return rc;
	off = calloc(npiece + 1, sizeof *off);
	rc = off ? made_begin(b, 2 * (uint64_t)b->nitem, npiece) : no_memory(b->err);
	if (rc == 0)
		rc = made_fill(b, off);
	if (rc == 0)
		rc = runs_make(b);
	return rc == 0 ? made_pack(b, names) : rc;
}

int averages_make(const struct table *t, const struct table *main, uint32_t rank,
		  struct names *names, struct averages **ret, struct ckpt_err *err)
{
	struct build b = { .t = t, .main = main, .rank = rank, .err = err };
	struct seen seen = { 0 };
	int rc = 0;

	*ret = NULL;
	if (!t->naverage)
		return 0;
	b.a = calloc(1, sizeof *b.a);
	if (!b.a)
		return no_memory(err);
	rc = specs_read(&b);
	if (rc == 0)
		rc = rows_make_all(&b);
	if (rc == 0)
		rc = sources_find(&b);
	if (rc == 0)
		rc = names_check(&seen, b.a, t, rank, NULL, err);
	if (rc == 0)
		rc = slot_fill(&b, names);
	seen_free(&seen);
	free(b.speaks);
	free(b.item);
	free(b.first);
	if (rc < 0)
		averages_free(b.a);
	else
		*ret = b.a;
	return rc;
}

void averages_free(struct averages *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->nspec; i++)
		ema_spec_free(a->spec[i]);
	table_free(&a->made);
	ckpt_errlist_free(&a->wrong);
	free(a->spec);
	free(a->name);
	free(a->hit);
	free(a->source);
	free(a->row);
	free(a->run);
	free(a->target);
	free(a);
}

/* --- of all ranks --- */

/* Ranks mostly have the same wrong: each line comes once. */
static void wrong_join(const struct averages *a, const struct averages *before,
		       struct ckpt_errlist *list)
{
	const char *at = a->wrong.text ? a->wrong.text : "";

	if (before && before->wrong.text && !strcmp(at, before->wrong.text))
		return;
	for (size_t n; *at; at += n + (at[n] == '\n')) {
		const char *had = list->text;

		n = strcspn(at, "\n");
		while (had && (strncmp(had, at, n) != 0 || (had[n] && had[n] != '\n')))
			had = (had = strchr(had, '\n')) ? had + 1 : NULL;
		if (!had)
			ckpt_errlist_add(list, "%.*s", (int)n, at);
	}
}

void averages_judge(struct decl *const *decl, uint32_t world, struct ckpt_errlist *list)
{
	const struct averages *a = decl[0]->averages;
	uint64_t hit[TABLE_AVERAGES_MAX] = { 0 };
	bool some[TABLE_AVERAGES_MAX] = { false };
	struct seen seen = { 0 };

	for (uint32_t r = 0; a && r < world; r++) {
		struct averages *x = decl[r]->averages;

		wrong_join(x, r ? decl[r - 1]->averages : NULL, list);
		for (uint32_t s = 0; s < a->nspec; s++)
			hit[s] |= x->hit[s];
		for (uint32_t i = 0; i < x->nsource; i++)
			some[x->row[x->source[i].row].average] = true;
		/* Ranks that declare the same have one list of tensors. */
		if (r && decl[r]->table.tensor == decl[r - 1]->table.tensor)
			continue;
		if (names_check(&seen, x, &decl[r]->table, r, list, NULL) < 0)
			list->code = -ENOMEM;
	}
	for (uint32_t s = 0; a && s < a->nspec; s++) {
		for (uint32_t k = 0; k < a->spec[s]->nrule; k++)
			if (!(hit[s] >> k & 1))
				ckpt_errlist_add(
					list,
					"average %s: no tensor of any rank matches its rule %s",
					a->name[s], a->spec[s]->rule[k].pattern);
		if (!some[s])
			ckpt_errlist_add(list, "average %s: no tensor of any rank is averaged",
					 a->name[s]);
	}
	seen_free(&seen);
}

static const struct table_average *average_of(const struct table *t, const char *name)
{
	for (uint32_t i = 0; i < t->naverage; i++)
		if (!strcmp(t->average[i].name, name))
			return &t->average[i];
	return NULL;
}

void averages_compare(const struct decl *x, const char *x_who, const struct decl *y,
		      const char *y_who, struct ckpt_errlist *list)
{
	const struct table *p = &x->table, *q = &y->table;

	for (uint32_t i = 0; i < p->naverage; i++) {
		const struct table_average *a = &p->average[i], *b = average_of(q, a->name);

		if (!b)
			ckpt_errlist_add(list, "average %s: declared on %s and not on %s", a->name,
					 x_who, y_who);
		else if (strcmp(a->schedule, b->schedule) != 0)
			ckpt_errlist_add(list, "average %s: \"%s\" on %s, \"%s\" on %s", a->name,
					 a->schedule, x_who, b->schedule, y_who);
	}
	for (uint32_t i = 0; i < q->naverage; i++)
		if (!average_of(p, q->average[i].name))
			ckpt_errlist_add(list, "average %s: declared on %s and not on %s",
					 q->average[i].name, y_who, x_who);
}

uint64_t averages_slot_bytes(const struct decl *d)
{
	return d->averages ? d->raw_bytes - d->average_at : 0;
}
