// SPDX-License-Identifier: Apache-2.0
// whole.c - the declarations of all ranks of a launch, together: do they agree, and do their pieces
// make complete tensors? Checked once per epoch, in workers; the part of the answer that every
// commit needs is kept. Called by launch and persist.
// Invariants: a rank is compared with one table of all that came before it, not with each of them;
// a struct whole is read only once it is made.
#include "ckpt/base/mutant.h"
#include "daemon/average.h"
#include "daemon/state.h"
#include <inttypes.h>
#include <stdio.h>

/* --- do they agree? --- */
struct agreed {
	uint32_t epoch, world;
	struct table table; /* every tensor that the ranks below declared */
	struct decl **decl; /* [world] references; NULL: it is not in the table */
};

void agreed_free(struct agreed *a)
{
	for (uint32_t r = 0; a && r < a->world; r++)
		decl_unref(a->decl[r]);
	if (!a)
		return;
	table_free(&a->table);
	free(a->decl);
	free(a);
}

static struct agreed *agreed_new(uint32_t epoch, uint32_t world)
{
	struct agreed *a = calloc(1, sizeof *a);

	if (!a || !(a->decl = calloc(world, sizeof(struct decl *)))) {
		free(a);
		return NULL;
	}
	a->epoch = epoch;
	a->world = world;
	return a;
}

/* Is it of these declarations and of none besides? */
static bool agreed_fits(const struct agreed *a, const struct decl *mine, struct decl *const *other)
{
	if (!a || a->epoch != mine->epoch)
		return false;
	for (uint32_t r = 0; r < a->world; r++)
		if (a->decl[r] && (r == mine->rank || a->decl[r] != other[r]))
			return false;
	return true;
}

/* *ret_agree: whatever was said of each tensor was the same. */
static int agreed_add(struct agreed *a, struct decl *d, bool *ret_agree, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	cleanup_free uint32_t *map = malloc(((size_t)d->table.ntensor + 1) * sizeof *map);
	int rc = map ? table_merge_tensors(&a->table, &d->table, map, &list, err)
		     : ckpt_error(err, -ENOMEM, "no memory for a declaration");

	*ret_agree = list.n == 0 || MUTANT(AGREED_UNCHECKED);
	ckpt_errlist_free(&list);
	if (rc == 0)
		a->decl[d->rank] = decl_ref(d);
	return rc;
}

/* All in which it contradicts the first rank that it contradicts. */
static int contradictions_find(const struct decl *mine, struct decl *const *other, uint32_t world,
			       struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	char mine_who[32], other_who[32];
	int rc;

	snprintf(mine_who, sizeof mine_who, "rank %u", mine->rank);
	for (uint32_t r = 0; r < world && list.n == 0; r++) {
		snprintf(other_who, sizeof other_who, "rank %u", r);
		if (other[r])
			averages_compare(mine, mine_who, other[r], other_who, &list);
		for (uint32_t i = 0; other[r] && i < mine->table.ntensor; i++) {
			const struct table_tensor *x = &mine->table.tensor[i];
			uint32_t k = table_find(&other[r]->table, x->component, x->name, x->rank);

			if (k != TABLE_NONE)
				table_tensor_compare(&mine->table, i, mine_who, &other[r]->table, k,
						     other_who, &list);
		}
	}
	rc = ckpt_errlist_end(&list, err,
			      "the ranks disagree about %" PRIu64
			      " properties of tensors or averages; nothing is sealed",
			      list.n);
	ckpt_errlist_free(&list);
	return rc;
}

/* Those that were accepted average alike: one of them is asked. */
static bool averages_alike(const struct decl *mine, struct decl *const *other, uint32_t world)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	uint32_t r = 0;
	bool alike;

	while (r < world && !other[r])
		r++;
	if (r < world)
		averages_compare(mine, "", other[r], "", &list);
	alike = list.n == 0 || MUTANT(AVERAGES_UNCOMPARED);
	ckpt_errlist_free(&list);
	return alike;
}

int agree(struct agreed **a, struct decl *mine, struct decl *const *other, uint32_t world,
	  struct ckpt_err *err)
{
	bool same = true;
	int rc = 0;

	if (!agreed_fits(*a, mine, other)) {
		agreed_free(*a);
		*a = agreed_new(mine->epoch, world);
		if (!*a)
			return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	}
	for (uint32_t r = 0; r < world && rc == 0; r++)
		if (other[r] && !(*a)->decl[r])
			rc = agreed_add(*a, other[r], &same, err);
	if (rc == 0)
		rc = agreed_add(*a, mine, &same, err);
	if (rc == 0 && same && averages_alike(mine, other, world))
		return 0;
	/* What was refused is in the table now: the next rank makes another one. */
	agreed_free(TAKE(*a));
	return rc < 0 ? rc : contradictions_find(mine, other, world, err);
}

/* --- are they whole? --- */
struct whole *whole_ref(struct whole *w)
{
	add_relaxed(&w->refs, 1);
	return w;
}

void whole_unref(struct whole *w)
{
	if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
		return;
	for (uint32_t i = 0; i < PART_KINDS * w->world; i++)
		if (w->own[i])
			free(w->map[i]);
	table_free(&w->table);
	names_unref(w->names);
	free(w->map);
	free(w->own);
	free(w->map_n);
	free(w);
}

/* Ranks that declare the same have one map. */
static void map_share(struct whole *w, uint32_t i, uint32_t before)
{
	if (w->map[before] && w->map_n[before] == w->map_n[i] &&
	    !memcmp(w->map[before], w->map[i], w->map_n[i] * sizeof *w->map[i])) {
		free(w->map[i]);
		w->map[i] = w->map[before];
		w->own[i] = false;
	}
}

static int part_add(struct whole *w, const struct decl *d, uint32_t kind, uint32_t i,
		    struct ckpt_errlist *ret_list, struct ckpt_err *err)
{
	const struct table *t = decl_part(d, kind);
	int rc;

	if (!t)
		return 0;
	w->map[i] = malloc(((size_t)t->ntensor + 1) * sizeof *w->map[i]);
	if (!w->map[i])
		return ckpt_error(err, -ENOMEM, "no memory for what all ranks declare");
	w->own[i] = true;
	w->map_n[i] = t->ntensor;
	rc = table_merge_tensors(&w->table, t, w->map[i], ret_list, err);
	if (rc == 0 && !w->table.nplace) /* its name is that of the first rank */
		rc = table_add_place(&w->table, &t->place[0], NULL, err);
	if (rc == 0 && i % w->world)
		map_share(w, i, i - 1);
	return rc;
}

static int slot_add(struct table *all, uint32_t r, const struct table *t, const uint32_t *map,
		    uint64_t at, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; k < t->npiece && rc == 0; k++) {
		struct table_piece p = t->piece[k];

		p.tensor = map[p.tensor];
		p.place = r;
		p.off += at;
		rc = table_put_piece(all, &p, err);
	}
	return rc;
}

/* Of every slot what lies in it; the sets are those of the declarations. */
static int pieces_add(const struct whole *w, struct decl *const *decl, struct table *all,
		      struct ckpt_err *err)
{
	uint64_t n = 0;
	int rc;

	for (uint32_t r = 0; r < w->world; r++)
		n += decl[r]->part.npiece +
		     (decl[r]->averages ? decl[r]->averages->made.npiece : 0);
	rc = table_reserve(all, 0, n);
	if (rc < 0)
		return ckpt_error(err, rc, "no memory for what all ranks declare");
	for (uint32_t r = 0; r < w->world && rc == 0; r++) {
		const struct table *made = decl_part(decl[r], PART_AVERAGE);

		struct table_place place = decl[r]->part.place[0];

		place.bytes = decl[r]->raw_bytes;
		rc = table_add_place(all, &place, NULL, err);
		/* A slot's tensors are the main part's, and those of its averages. */
		if (rc == 0)
			rc = slot_add(all, r, &decl[r]->part, w->map[r], 0, err);
		if (rc == 0 && made)
			rc = slot_add(all, r, made, w->map[part_number(PART_AVERAGE, r, w->world)],
				      decl[r]->average_at, err);
	}
	return rc < 0 ? rc : table_seal(all, err);
}

/* Why comes before what follows from it. */
static void cover_check(struct decl *const *decl, uint32_t n, const struct table *all,
			struct ckpt_errlist *ret_list)
{
	struct ckpt_errlist why = { .code = -EINVAL };

	table_cover(all, ret_list);
	if (ret_list->n)
		boxes_compare(decl, n, all, &why);
	if (why.n) {
		ckpt_errlist_free(ret_list);
		*ret_list = why;
		table_cover(all, ret_list);
	}
}

static int whole_fill(struct whole *w, struct decl *const *decl, struct ckpt_errlist *ret_list,
		      struct ckpt_err *err)
{
	struct table all = { 0 };
	int rc = 0;

	averages_judge(decl, w->world, ret_list);
	if (ret_list->code == -ENOMEM)
		return -ENOMEM;
	for (uint32_t i = 0; i < PART_KINDS * w->world && rc == 0; i++)
		rc = part_add(w, decl[part_rank(i, w->world)], part_kind(i, w->world), i, ret_list,
			      err);
	if (rc == 0)
		rc = table_seal(&w->table, err);
	if (rc < 0 || ret_list->n)
		return rc;
	all = table_borrow(&w->table);
	rc = pieces_add(w, decl, &all, err);
	if (rc == 0)
		cover_check(decl, w->world, &all, ret_list);
	table_free(&all);
	w->table.nplace = 0;
	if (rc == 0 && ret_list->n == 0 && (rc = table_pack(&w->table, w->names, &all)) == 0) {
		table_free(&w->table);
		w->table = all;
		names_settle(w->names); /* all have come */
	}
	return rc;
}

/* Is that what it begins with? */
static bool averages_wrong(const struct ckpt_errlist *list)
{
	return list->text && !strncmp(list->text, "average ", 8);
}

int whole_make(struct decl *const *decl, uint32_t world, struct whole **ret, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct whole *w = calloc(1, sizeof *w);
	int rc = -ENOMEM;

	if (w) {
		w->refs = 1;
		w->epoch = decl[0]->epoch;
		w->names = names_ref(decl[0]->names);
		w->map = calloc(PART_KINDS * (size_t)world, sizeof(uint32_t *));
		w->map_n = calloc(PART_KINDS * (size_t)world, sizeof *w->map_n);
		w->own = calloc(PART_KINDS * (size_t)world, sizeof *w->own);
		w->world = w->map && w->map_n && w->own ? world : 0;
		rc = w->world ? whole_fill(w, decl, &list, err) : -ENOMEM;
	}
	if (rc == -ENOMEM)
		(void)ckpt_error(err, rc, "no memory for what all ranks declare");
	if (list.n)
		rc = ckpt_errlist_end(&list, err,
				      averages_wrong(&list)
					      ? "averages cannot be made as they are declared"
					      : "the ranks do not declare complete tensors");
	ckpt_errlist_free(&list);
	if (rc < 0) {
		whole_unref(w);
		return rc;
	}
	*ret = w;
	return 0;
}
