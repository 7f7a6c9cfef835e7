// SPDX-License-Identifier: Apache-2.0
// fill.c - from a staged step or its files to the memory of all ranks. Called by restore; runs in
// workers. Invariants: all declarations are checked before the first byte is written; only the
// parts are opened that have something of what is wanted.
#include "daemon/restore.h"
#include "daemon/mending.h"
#include "ckpt/base/mutant.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/plan/explicit.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static int merge_memory(struct restore *x)
{
	struct ckpt_errlist list = { .code = -EBADMSG };
	int rc = 0;

	for (uint32_t r = 0; r < x->nsrc && rc == 0; r++) {
		struct table one;

		rc = decl_slot_now(x->src[r].decl, x->src[r].mem->base, x->averaged, &one, &x->err);
		if (rc < 0)
			break;
		turned_mark(x->src[r].turned, x->src[r].decl, &one);
		rc = table_merge(&x->f.memory, &one, NULL, &list, &x->err);
		x->f.slot[r] = x->src[r].mem->base;
		table_free(&one);
	}
	if (rc == 0)
		rc = table_seal(&x->f.memory, &x->err);
	if (list.n)
		rc = ckpt_errlist_end(&list, &x->err, "the staged step is inconsistent");
	ckpt_errlist_free(&list);
	return rc;
}

/* A rank's table without what lies in its own memory. */
static int leave_own(const struct decl *d, struct table *ret, struct ckpt_err *err)
{
	const struct table *t = &d->table;
	int rc = 0;

	*ret = table_borrow(t);
	for (uint32_t i = 0; i < t->nplace && rc == 0; i++)
		rc = table_add_place(ret, &t->place[i], NULL, err);
	for (uint32_t i = 0; i < t->npiece && rc == 0; i++)
		if (t->piece[i].place != d->own)
			rc = table_put_piece(ret, &t->piece[i], err);
	return rc == 0 ? table_seal(ret, err) : rc;
}

struct wanted {
	struct table all, here; /* of all ranks; here: what lies in segments, if that is not all */
	void **base;		/* of both, by place; NULL: the process's own memory */
	bool own;
};

static void wanted_free(struct wanted *w)
{
	table_free(&w->all);
	table_free(&w->here);
	free(w->base);
}

static int wanted_add(struct wanted *w, const struct decl *d, struct ckpt_errlist *list,
		      struct ckpt_err *err)
{
	struct table some = { 0 };
	int rc = table_merge(&w->all, &d->table, NULL, list, err);

	if (rc < 0 || !w->own)
		return rc;
	rc = leave_own(d, &some, err);
	if (rc == 0)
		rc = table_merge(&w->here, &some, NULL, list, err);
	table_free(&some);
	return rc;
}

static int wanted_make(struct restore *x, struct wanted *ret)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	uint32_t nplace = 0, at = 0;
	int rc = 0;

	*ret = (struct wanted){ 0 };
	for (uint32_t r = 0; r < x->ndst; r++) {
		nplace += x->dst[r]->table.nplace;
		ret->own |= x->dst[r]->own != TABLE_NONE;
	}
	ret->base = calloc(nplace ? nplace : 1, sizeof *ret->base);
	if (!ret->base)
		return ckpt_error(&x->err, -ENOMEM, "no memory to plan the restore");
	for (uint32_t r = 0; r < x->ndst && rc == 0; r++) {
		for (uint32_t i = 0; i < x->dst[r]->table.nplace; i++)
			ret->base[at++] = i < x->dst[r]->nseg ? x->dst[r]->seg[i]->base : NULL;
		rc = wanted_add(ret, x->dst[r], &list, &x->err);
	}
	if (rc == 0)
		rc = table_seal(&ret->all, &x->err);
	if (rc == 0 && ret->own)
		rc = table_seal(&ret->here, &x->err);
	if (list.n)
		rc = ckpt_errlist_end(&list, &x->err, "the ranks' declarations do not agree");
	ckpt_errlist_free(&list);
	return rc;
}

/* Blobs of every old rank into one memfd (wire.h). */
static int blob_table(const struct table *src, struct table *ret, uint64_t first,
		      uint64_t *ret_bytes, struct ckpt_err *err)
{
	uint64_t at = first;
	int rc = 0;

	*ret = (struct table){ 0 };
	for (uint32_t i = 0; i < src->ntensor; i++)
		if (src->tensor[i].flags & TENSOR_BLOB)
			at += align_up(src->tensor[i].numel, 16);
	*ret_bytes = at;
	rc = table_add_place(
		ret, &(struct table_place){ .name = "blobs", .rank = TABLE_NONE, .bytes = at },
		NULL, err);
	at = first;
	for (uint32_t i = 0; i < src->ntensor && rc == 0; i++) {
		struct table_tensor x = src->tensor[i];
		uint64_t zero = 0;
		struct arena a = { 0 };
		struct table_piece p = { .rank = TABLE_NONE, .off = at };

		if (!(x.flags & TENSOR_BLOB))
			continue;
		x.layout = TABLE_NONE;
		rc = table_add_tensor(ret, &x, &p.tensor, err);
		if (rc == 0)
			rc = indexset_box(1, &zero, x.shape, &a, &p.set);
		if (rc == 0)
			rc = table_add_piece(ret, &p, err);
		arena_free(&a);
		at += align_up(x.numel, 16);
	}
	return rc == 0 ? table_seal(ret, err) : rc;
}

static int blobs_get(struct restore *x)
{
	const struct table *src = x->f.src, none = { 0 };
	struct table t = { 0 };
	struct plan plan = { 0 };
	struct ckpt_errlist list = { .code = -EBADMSG };
	struct plan_opts opts = { .memory_blobs = true };
	uint64_t n = 0, names = 0, head, bytes = 0;
	void *map = NULL;
	int rc;

	if (x->want.flags & (CKPT_PEEK | WIRE_MISSING))
		src = &none;
	for (uint32_t i = 0; i < src->ntensor; i++)
		if (src->tensor[i].flags & TENSOR_BLOB) {
			n++;
			names += strlen(src->tensor[i].name) + 1;
		}
	head = align_up(8 + n * sizeof(struct wire_blob) + names, 64);
	rc = blob_table(src, &t, head, &bytes, &x->err);
	if (rc == 0)
		rc = wire_memfd_map("ckptd-blobs", bytes, &x->blob_fd, &map, &x->err);
	if (rc == 0 && n)
		rc = plan_make(src, &t, &opts, &plan, &list, &x->err);
	if (rc == 0 && n)
		rc = fill_move(x, &plan, &map, &x->damaged, &x->err);
	if (rc == 0) {
		struct wire_blob *b = (struct wire_blob *)((uint8_t *)map + 8);
		uint64_t name_at = 8 + n * sizeof *b;

		memcpy(map, &n, sizeof n);
		for (uint32_t i = 0; i < t.ntensor; i++, b++) {
			size_t len = strlen(t.tensor[i].name) + 1;

			*b = (struct wire_blob){ .name_at = name_at,
						 .at = t.first[i] < t.first[i + 1]
							       ? t.piece[t.first[i]].off
							       : head,
						 .len = t.tensor[i].numel,
						 .rank = t.tensor[i].rank };
			memcpy((uint8_t *)map + name_at, t.tensor[i].name, len);
			name_at += len;
		}
		x->got.blob_bytes = bytes;
	}
	if (map)
		munmap(map, bytes);
	ckpt_errlist_free(&list);
	plan_free(&plan);
	table_free(&t);
	return rc;
}

/* A sum that is wrong stays wrong, for every reader. What contradicts itself, is missing or cannot
 * be read is passed over by this launch, and not quarantined: it may be right for another
 * version, or be there again. */
static bool stays_damaged(int rc)
{
	return rc == -EBADMSG;
}

/* Of a place of the staged step: one rank's slot. */
static bool mib_is_right(void *arg, uint32_t place, uint64_t i, const void *p)
{
	const struct restore *x = arg;

	return !x->sums[place] || slot_sums_match(x->sums[place], i, p);
}

int fill_move(const struct restore *x, const struct plan *p, void *const *base, bool *damaged,
	      struct ckpt_err *err)
{
	int rc;

	if (!x->f.disk) {
		const struct move_spread how = { .right = mib_is_right,
						 .arg = (void *)(uintptr_t)x };

		return move_spread(p, (const void *const *)x->f.slot, base, &how, err);
	}
	rc = average_files_move((void *)(uintptr_t)&x->f.files, p, base, err);
	*damaged |= stays_damaged(rc);
	return rc;
}

bool fill_asks(const struct restore *x, const struct table_tensor *t)
{
	return list_asked(t, x->want.only[0] ? x->want.only : NULL) &&
	       (!(x->want.flags & CKPT_PEEK) || t->cls == CKPT_SINK);
}

static bool table_has(const struct table *t, const struct table_tensor *x)
{
	return table_find(t, x->component, x->name, x->rank) != TABLE_NONE;
}

static uint32_t count_unused(const struct restore *x, const struct table *src,
			     const struct table *dst)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < src->ntensor; i++) /* what the daemon made no rank declares */
		n += fill_asks(x, &src->tensor[i]) && !src->tensor[i].made &&
		     !table_has(dst, &src->tensor[i]);
	return n;
}

/* LENIENT leaves alone what a step lacks; but what a damaged one may have been written into is not
 * as it was. The ranks wait, so dst is the same table at every try. */
static int check_left_alone(struct restore *x, const struct table *src, const struct table *dst)
{
	struct ckpt_errlist list = { .code = -EBADMSG };
	char name[160];
	int rc;

	for (uint32_t i = 0; i < x->retreat.nbegun && i < dst->ntensor; i++)
		if (x->retreat.begun[i] && !table_has(src, &dst->tensor[i]))
			ckpt_errlist_add(&list, "%s",
					 table_tensor_print(&dst->tensor[i], name, sizeof name));
	x->overwritten = list.n > 0;
	rc = ckpt_errlist_end(&list, &x->err,
			      "step %" PRIu64
			      " lacks tensors that may now hold data of a newer, damaged "
			      "step, so they cannot stay as they are: set their values again, and "
			      "restore step %" PRIu64,
			      x->pin.step, x->pin.step);
	ckpt_errlist_free(&list);
	return rc;
}

/* From here on they may be written. */
static int note_begun(struct restore *x, const struct table *src, const struct table *dst)
{
	struct retreat *r = &x->retreat;

	if (!r->begun && !(r->begun = calloc(dst->ntensor + 1, sizeof *r->begun)))
		return ckpt_error(&x->err, -ENOMEM, "no memory to restore");
	r->nbegun = dst->ntensor;
	for (uint32_t i = 0; i < dst->ntensor; i++)
		r->begun[i] |= fill_asks(x, &dst->tensor[i]) && table_has(src, &dst->tensor[i]);
	return 0;
}

/* What the windows need of each rank that has memory of its own. */
static int landings_make(struct restore *x)
{
	int rc = 0;

	for (uint32_t r = 0; r < x->ndst && rc == 0; r++) {
		rc = landing_make(x, r, &x->landing[r], &x->err);
		x->nlanding += x->landing[r] != NULL;
	}
	return rc;
}

/* Into segments. */
static int fill_here(struct restore *x, const struct wanted *w, const struct plan *all)
{
	struct plan_opts opts = { .only = x->want.only[0] ? x->want.only : NULL,
				  .sinks = x->want.flags & CKPT_PEEK && !MUTANT(PEEK_FILLS_ALL),
				  .lenient = x->want.flags & CKPT_LENIENT };
	struct plan here = { 0 };
	int rc;

	if (!w->own)
		return fill_move(x, all, w->base, &x->damaged, &x->err);
	rc = plan_make(x->f.src, &w->here, &opts, &here, NULL, &x->err);
	if (rc == 0)
		rc = fill_move(x, &here, w->base, &x->damaged, &x->err);
	plan_free(&here);
	return rc;
}

/* --- averages --- */

/* Does the restore take weights that are averaged, or what they are the rounding of? Then the
 * averages go on from that step, too. */
static bool averages_concern(const struct restore *x)
{
	const char *only = x->want.only;
	size_t n = strlen(only);
	bool has = false;

	for (uint32_t r = 0; r < x->ndst; r++)
		if (!x->dst[r]->averages)
			return false;
	for (uint32_t r = 0; r < x->ndst && !has; r++) {
		const struct table *t = &x->dst[r]->table, *made = &x->dst[r]->averages->made;

		has = !*only;
		for (uint32_t i = 0; i < made->ntensor && !has; i++) {
			const char *of = made->tensor[i].of;
			uint32_t k = table_find_key(t, of);
			const char *also = k == TABLE_NONE ? "" : t->tensor[k].of;

			has = (strncmp(of, only, n) == 0 && of[n] == '/') ||
			      (strncmp(also, only, n) == 0 && also[n] == '/');
		}
	}
	return has;
}

static bool lacks_parts(const struct checkpoint *c);

/* What the step's averages are planned onto: before the first byte of weights is written. */
static int averages_plan(struct restore *x, struct average_reading **ret)
{
	struct average_origin s = { .table = x->f.src, .step = x->pin.step, .memory = true };
	int rc = 0;

	*ret = NULL;
	if (x->want.flags & (CKPT_DRY_RUN | CKPT_PEEK | WIRE_MISSING) || !averages_concern(x))
		return 0;
	if (x->f.disk) {
		s = average_origin_of(x->f.disk);
		s.some = lacks_parts(x->f.disk);
	} else if (x->held) {
		rc = average_held_open(x->held, &s, &x->err);
	}
	x->base_taken = true;
	return rc == 0 ? average_reading_plan(x->dst, x->ndst, &s, ret, &x->err) : rc;
}

static int averages_move(struct restore *x, struct average_reading *r)
{
	int rc = average_reading_move(r, &x->d->reaper,
				      x->f.disk ? average_files_move : average_held_move,
				      x->f.disk ? (void *)&x->f.files : (void *)x->held, &x->err);

	if (x->f.disk)
		x->damaged |= stays_damaged(rc);
	if (rc == 0) {
		x->base = average_reading_base(r);
		average_reading_say(r, x->averages, sizeof x->averages);
	}
	return rc;
}

static bool average_is_declared(const struct restore *x, const char *name)
{
	const struct averages *a = x->dst[0]->averages;

	for (uint32_t i = 0; a && i < a->nspec; i++)
		if (!strcmp(a->name[i], name))
			return true;
	return false;
}

/* Averages of the step that no rank declares any more. */
static void averages_ending(struct restore *x, void (*fn)(void *arg, const char *name), void *arg)
{
	const struct table *saved = x->f.disk ? &x->f.disk->table : NULL;
	const struct averages *held = !saved && x->nsrc ? x->src[0].decl->averages : NULL;

	for (uint32_t i = 0; saved && i < saved->naverage; i++)
		if (!saved->average[i].rule && !average_is_declared(x, saved->average[i].name))
			fn(arg, saved->average[i].name);
	for (uint32_t i = 0; held && i < held->nspec; i++)
		if (!average_is_declared(x, held->name[i]))
			fn(arg, held->name[i]);
}

/* They may have been forgotten. */
static void average_ends_say(void *arg, const char *name)
{
	struct restore *x = arg;
	size_t n = strlen(x->averages);

	if (n + 2 < sizeof x->averages)
		snprintf(x->averages + n, sizeof x->averages - n,
			 "%saverage %s does not go on: step %" PRIu64
			 " has it, and this job does not declare it",
			 n ? "\n" : "", name, x->pin.step);
}

static bool notes_missing(const struct list_notes *n)
{
	for (uint32_t i = 0; i < n->n; i++)
		if (!n->note[i].text)
			return true;
	return false;
}

/* CKPT_PEEK: was anything asked for, and does this step have it? */
static int peek_judge(struct restore *x, int rc, const struct plan *plan,
		      const struct list_notes *notes)
{
	const char *only = x->want.only;

	x->lacks = rc == -EMEDIUMTYPE && notes_missing(notes);
	if (rc == 0 && !plan->ntensor)
		return ckpt_error(&x->err, -EINVAL,
				  "CKPT_PEEK fills tensors of class CKPT_SINK, and no rank has "
				  "declared one%s%s",
				  *only ? " of component " : "", only);
	return rc;
}

/* --- CKPT_EXPLICIT --- */

static uint32_t explicit_allowed(const struct restore *x)
{
	static const struct {
		uint32_t flag, kind;
	} allow[] = { { CKPT_ALLOW_RESHARD, EXPLICIT_BIT(RESHARD) },
		      { CKPT_ALLOW_REDUCE, EXPLICIT_BIT(REDUCE) },
		      { CKPT_ALLOW_REPLICATE, EXPLICIT_BIT(REPLICATE) },
		      { CKPT_ALLOW_DROP, EXPLICIT_BIT(DROP) } };
	uint32_t kinds = 0;

	for (uint32_t i = 0; i < ARRAY_LEN(allow); i++)
		kinds |= x->want.flags & allow[i].flag ? allow[i].kind : 0;
	return kinds;
}

/* What the daemon made, averages, no rank declares: the specs say whether they go on. */
static bool explicit_wants(void *arg, const struct table_tensor *t)
{
	return fill_asks(arg, t) && !t->made;
}

struct explicit_list {
	const struct explicit_found *found;
	struct list_notes *notes;
	struct ckpt_errlist *list;
};

static void explicit_add(void *arg, const struct explicit_group *g, enum explicit_kind kind,
			 const struct table_tensor *t)
{
	struct explicit_list *x = arg;
	const struct table *dst = x->found->dst;
	char line[2048];

	explicit_line_print(x->found, g, kind, t, line, sizeof line);
	ckpt_errlist_add(x->list, "%s", line);
	if (g->dst != TABLE_NONE) /* others are unused, which ckpt_unmatched lists anyway */
		list_differs(x->notes, (uint32_t)(t - dst->tensor), line);
}

static void explicit_add_average(void *arg, const char *name)
{
	ckpt_errlist_add(arg, "average %s: drop, this job does not declare it", name);
}

/* What is done besides copying, and is not allowed, becomes lines of the list. */
static int explicit_check(struct restore *x, const struct table *dst, struct list_notes *notes,
			  struct ckpt_errlist *list)
{
	const bool peek = x->want.flags & CKPT_PEEK;
	const uint32_t allow = explicit_allowed(x);
	const struct explicit_opts opts = { .drops = !peek, .wanted = explicit_wants, .arg = x };
	struct explicit_found found;
	int rc;

	if (!(x->want.flags & CKPT_EXPLICIT))
		return 0;
	rc = explicit_find(x->f.src, dst, &opts, &found, &x->err);
	if (rc == 0)
		explicit_each(&found, allow, explicit_add,
			      &(struct explicit_list){ &found, notes, list });
	if (rc == 0 && !peek && !x->want.only[0] && !(allow & EXPLICIT_BIT(DROP)) &&
	    !MUTANT(EXPLICIT_AVERAGE_ENDS))
		averages_ending(x, explicit_add_average, list);
	explicit_free(&found);
	return rc;
}

/* Plan what all ranks want. What does not fit is in the error, and named for ckpt_unmatched. */
static int plan_all(struct restore *x, const struct wanted *w, const struct plan_opts *opts,
		    struct list_notes *notes, struct plan *ret)
{
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
	int rc = plan_make(x->f.src, &w->all, opts, ret, &list, &x->err);

	if (rc == 0 || list.n) {
		int bad = explicit_check(x, &w->all, notes, &list);

		rc = bad < 0 ? bad : rc;
		list_unmatched(notes, x->f.src, &w->all, opts->only, &x->listed);
	}
	if (list.n)
		rc = ckpt_errlist_end(&list, &x->err,
				      "step %" PRIu64 " does not fit the declarations",
				      x->pin.step);
	ckpt_errlist_free(&list);
	return rc;
}

/* Check everything, then move everything. */
static int memory_fill(struct restore *x)
{
	const struct table *src = x->f.src;
	struct wanted w;
	struct plan plan = { 0 };
	struct list_notes notes = { 0 };
	struct average_reading *averages = NULL;
	struct plan_opts opts = { .only = x->want.only[0] ? x->want.only : NULL,
				  .sinks = x->want.flags & CKPT_PEEK && !MUTANT(PEEK_FILLS_ALL),
				  .lenient = x->want.flags & CKPT_LENIENT,
				  .differs = list_differs,
				  .differs_arg = &notes };
	bool writes = !(x->want.flags & CKPT_DRY_RUN), peek = x->want.flags & CKPT_PEEK;
	int rc = wanted_make(x, &w);

	x->averages[0] = 0;
	if (rc == 0)
		rc = plan_all(x, &w, &opts, &notes, &plan);
	if (rc == 0)
		rc = move_check(&plan, &x->err);
	x->got.ntensor = plan.ntensor;
	x->got.nmissing = plan.nmissing;
	if (peek)
		rc = peek_judge(x, rc, &plan, &notes);
	x->got.nunused = rc == 0 && !peek ? count_unused(x, src, &w.all) : 0;
	if (rc == 0 && opts.lenient && writes)
		rc = check_left_alone(x, src, &w.all);
	if (rc == 0)
		rc = averages_plan(x, &averages);
	if (rc == 0 && writes && w.own)
		rc = landings_make(x);
	if (rc == 0 && opts.lenient && writes)
		rc = note_begun(x, src, &w.all);
	if (rc == 0 &&
	    averages) /* into memory of our own: nothing is undefined if they are damaged */
		rc = averages_move(x, averages);
	if (rc == 0 && writes) {
		/* a library whose daemon ends amid the writing must know that it had begun */
		atomic_fetch_add(&x->l->page->fills, !peek && !MUTANT(FILL_UNTOLD));
		atomic_thread_fence(memory_order_seq_cst);
		if (!(x->want.flags & WIRE_MISSING)) /* which is not in segments */
			rc = fill_here(x, &w, &plan);
	}
	if (rc == 0)
		rc = blobs_get(x);
	if (rc == 0 && writes && !peek && !opts.only)
		averages_ending(x, average_ends_say, x);
	average_reading_free(averages);
	list_notes_free(&notes);
	plan_free(&plan);
	wanted_free(&w);
	return rc;
}

static int fill_from_memory(struct restore *x)
{
	int rc;

	x->f.slot = calloc(x->nsrc, sizeof *x->f.slot);
	rc = x->f.slot ? merge_memory(x) : ckpt_error(&x->err, -ENOMEM, "no memory to restore");
	x->f.src = &x->f.memory;
	x->got.world_saved = x->nsrc;
	return rc == 0 ? memory_fill(x) : rc;
}

/* --- which parts are needed --- */

/* Of blobs every rank may read those of all. */
static void choose_blobs(const struct checkpoint *k, bool *needed)
{
	for (uint32_t i = 0; i < k->table.ntensor; i++) {
		const struct table_tensor *t = &k->table.tensor[i];

		if (t->flags & TENSOR_BLOB)
			needed[t->rank < k->world ? t->rank : 0] = true;
	}
}

static bool all_of(const bool *needed, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!needed[i])
			return false;
	return true;
}

/* Of what an average may be restored into. */
static bool wants_averages(const struct restore *x)
{
	for (uint32_t r = 0; r < x->ndst; r++) {
		const struct table *t = &x->dst[r]->table;

		if (x->dst[r]->averages)
			return true;
		for (uint32_t i = 0; i < t->ntensor; i++)
			if (strncmp(t->tensor[i].component, "ema.", 4) == 0)
				return true;
	}
	return false;
}

/* Layouts are a hint: where they do not help, all parts are needed. */
static int fill_choose(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	const struct restore *x = arg;
	const bool peek = x->want.flags & CKPT_PEEK;
	const struct reshard_opts opts = { .only = x->want.only[0] ? x->want.only : NULL,
					   .sinks = peek,
					   .lenient = true };
	bool all = false;
	int rc = 0;

	if (!peek)
		choose_blobs(k, needed);
	for (uint32_t r = 0; r < x->ndst && rc == 0 && !all && !all_of(needed, k->world); r++)
		rc = parts_choose(k, &x->dst[r]->table, r, &opts, needed, &all, err);
	if (rc || all)
		memset(needed, true, k->world);
	else if (!peek)
		rc = average_parts_choose(x->dst, x->ndst, k, needed, err);
	if (rc == -ENOMEM)
		return rc;
	return wants_averages(x) ? 0 : FORMAT_NO_AVERAGES;
}

static void files_close(struct filling *f)
{
	if (f->files_open)
		move_close(&f->files);
	f->files_open = false;
	f->disk = NULL;
	mend_close(&f->mended);
}

/* What stands in the place of a file and is none (a directory, a link, a pipe): the file is
 * missing. */
static int no_file(int rc)
{
	bool none =
		rc == -EISDIR || rc == -ELOOP || rc == -ENOTDIR || rc == -EINVAL || rc == -ENXIO;

	return none ? -EUCLEAN : rc;
}

static bool has_const(const struct table *t)
{
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].cls == CKPT_CONST)
			return true;
	return false;
}

static int files_open(struct restore *x, bool some)
{
	struct filling *f = &x->f;
	const struct engine e = daemon_engine(x->d);
	const struct engine_subject step = { .fd = f->step_fd,
					     .path = x->pin.dir,
					     .force = &format_native,
					     .id = x->pin.id,
					     .how.choose = some ? fill_choose : NULL,
					     .how.choose_arg = x };
	int rc = x->retreat.mend ? mending_open(x->store, &e, &step, &f->mended, &x->err)
				 : engine_open(&e, &step, &f->mended.base, &x->err);

	rc = no_file(rc);
	x->damaged = stays_damaged(rc);
	if (rc == 0)
		rc = mend_files(&e, &f->mended, &f->files, &x->err);
	f->files_open = rc == 0;
	if (rc == 0) {
		f->disk = f->mended.base.ckpt;
		f->src = &f->disk->table;
		f->lacks_const = !has_const(f->src);
		x->got.world_saved = f->disk->world;
		x->got.marked = averages_marked(f->disk);
		snprintf(x->got.id, sizeof x->got.id, "%s", f->disk->id);
	}
	return rc;
}

static bool lacks_parts(const struct checkpoint *c)
{
	for (uint32_t i = 0; c && i < c->nfile; i++)
		if (c->file[i].unread)
			return true;
	return false;
}

static int fill_from_disk(struct restore *x)
{
	struct filling *f = &x->f;
	int rc = store_step_open(x->store, x->pin.dir, &f->step_fd, &x->err);

	if (rc < 0)
		return rc;
	rc = files_open(x, true);
	if (rc == 0)
		rc = memory_fill(x);
	if (rc == -EMEDIUMTYPE &&
	    lacks_parts(f->disk)) { /* the hint was wrong, or it does not fit */
		files_close(f);
		listed_free(&x->listed);
		x->err = (struct ckpt_err){ 0 };
		rc = files_open(x, false);
		if (rc == 0)
			rc = memory_fill(x);
	}
	if (x->damaged)
		fill_damaged(x, x->err.msg);
	return rc;
}

void fill_damaged(struct restore *x, const char *why)
{
	atomic_fetch_add(&x->d->damages, 1);
	if (!mends_next(x))
		keep_quarantine(x->store, x->pin.dir, why, x->labelled, sizeof x->labelled);
}

void fill_end(struct restore *x)
{
	struct filling *f = &x->f;

	for (uint32_t r = 0; x->landing && r < x->ndst; r++)
		landing_source_free(x->landing[r]);
	free(TAKE(x->landing));
	files_close(f);
	store_step_leave(TAKE_FD(f->step_fd));
	table_free(&f->memory);
	free(TAKE(f->slot));
}

void fill_gone(struct restore *x)
{
	char why[400];

	if (x->rc != -ENOENT && x->rc != -ESTALE && x->rc != -EAGAIN)
		return;
	snprintf(why, sizeof why, "%.390s", x->err.msg);
	x->rc = ckpt_error(&x->err, -EBADMSG,
			   "the step to restore was removed: %s; call ckpt_restore again", why);
}

void fill_run(struct task *t)
{
	struct restore *x = (struct restore *)t;

	x->got.step = x->pin.step;
	x->got.where = x->pin.where;
	if (!MUTANT(PASSED_UNSAID)) {
		x->got.npassed = x->pin.npassed;
		memcpy(x->got.passed, x->pin.passed, sizeof x->got.passed);
	}
	x->rc = x->pin.where == 1 ? fill_from_memory(x) : fill_from_disk(x);
	x->gone = x->rc == -ENOENT || x->rc == -ESTALE;
	fill_gone(x);
}
