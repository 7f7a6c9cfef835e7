/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_parts.c - see conversion_parts.h. Called by conversion.c. Invariant: piece k of a part's
 * own table and its piece in `all` are of the same tensor and rank, of which there is one.
 */
#include "ckpt/cli/conversion_parts.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/move/move.h"
#include "formats/format.h"
#include "ckpt/table/target.h"
#include "formats/native/native.h"
#include <stdio.h>

#define MEMO 1024u /* sets that are remembered; a power of two */

/* A model has few shapes: one set serves all pieces that are cut alike. */
struct memo {
	struct indexset set[MEMO];
};

static int set_share(struct memo *m, const struct indexset *x, struct arena *a,
		     struct indexset *ret)
{
	uint64_t key = x->numel;
	struct indexset *s;
	int rc = 0;

	for (uint32_t d = 0; d < x->ndim; d++)
		key = (key ^ x->dim[d].run[0].start ^ x->dim[d].total << 32) *
		      UINT64_C(0xff51afd7ed558ccd);
	s = &m->set[(key ^ key >> 33) & (MEMO - 1)];
	if (!s->numel || s->ndim != x->ndim || !indexset_equal(s, x))
		rc = indexset_copy(x, a, s);
	*ret = *s;
	return rc;
}

static int main_table(const struct parts *p, uint32_t rank, struct table *ret, struct ckpt_err *err)
{
	struct table holds;
	int rc = target_rank(p->nmade ? &p->plain : p->target, rank, &holds, err);

	if (rc)
		return rc;
	rc = native_part_table(&holds, rank, ret, NULL, err);
	table_free(&holds);
	return rc;
}

/* --- averages --- */

#define CHUNK_BYTES (UINT64_C(1) << CHUNK_LOG2)

/* What the rank owns of a MADE tensor: as of the one that it averages. */
static int made_owned(const struct parts *p, uint32_t tensor, const uint32_t *coord,
		      struct arena *a, struct indexset *ret)
{
	static const struct layout whole;
	const struct table *t = p->target;
	const struct table_tensor *x = &t->tensor[tensor], *as = table_owned_as(t, x);

	return layout_owned(&t->mesh[0], x->layout == TABLE_NONE ? &whole : &t->layout[x->layout],
			    x->ndim, x->shape, coord, as->elem_bytes, as->component, as->name, a,
			    ret);
}

/* The piece behind those before, where docs/FORMAT.md has it. */
static int made_add(const struct parts *p, uint32_t rank, uint32_t tensor,
		    const struct indexset *set, bool group, struct table *ret, struct ckpt_err *err)
{
	const struct table_tensor *x = &p->target->tensor[tensor];
	struct table_piece piece = { .rank = rank, .set = *set };
	uint64_t bytes = set->numel * x->elem_bytes, end = ret->place[0].bytes;
	struct table_tensor y = *x;
	int rc;

	y.fp = 0;
	y.fp_known = false;
	rc = table_add_tensor(ret, &y, &piece.tensor, err);
	if (rc)
		return rc;
	end = group ? align_up(end, CHUNK_BYTES) : end;
	piece.off = align_up(end, bytes >= NATIVE_BIG ? CHUNK_BYTES : NATIVE_PACK);
	if (bytes > NATIVE_PART_BYTES_MAX || piece.off + bytes > NATIVE_PART_BYTES_MAX)
		return ckpt_error(err, -EFBIG,
				  "rank %u owns more than %llu bytes of averages: use more ranks",
				  rank, (unsigned long long)NATIVE_PART_BYTES_MAX);
	ret->place[0].bytes = piece.off + bytes;
	return table_add_piece(ret, &piece, err);
}

static int made_begin(const struct parts *p, uint32_t rank, struct table *ret, struct ckpt_err *err)
{
	const struct table *t = p->target;
	char name[32];
	int rc = table_add_mesh(ret, &t->mesh[0], NULL, err);

	for (uint32_t i = 0; i < t->nlayout && !rc; i++)
		rc = table_add_layout(ret, &t->layout[i], NULL, err);
	for (uint32_t i = 0; i < t->naverage && !rc; i++) {
		struct table_average x = t->average[i];

		rc = table_add_average(ret, &x, NULL, err);
	}
	snprintf(name, sizeof name, "rank %u", rank);
	return rc ? rc : table_add_place(ret, &(struct table_place){ name, rank, 0 }, NULL, err);
}

/* A sealed table; without tensors where the rank owns nothing of an average. */
static int average_table(const struct parts *p, uint32_t rank, struct table *ret,
			 struct ckpt_err *err)
{
	const struct table_tensor *last = NULL;
	uint32_t coord[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	int rc;

	*ret = (struct table){ 0 };
	rc = made_begin(p, rank, ret, err);
	if (!rc && !mesh_coord(&p->target->mesh[0], rank, coord))
		rc = ckpt_error(err, -EINVAL, "the mesh has no rank %u", rank);
	for (uint32_t i = 0; i < p->nmade && !rc; i++) {
		const struct table_tensor *x = &p->target->tensor[p->made[i]];
		struct indexset set;

		rc = made_owned(p, p->made[i], coord, &a, &set);
		if (rc) {
			rc = ckpt_error(err, rc, "%s/%s: its share cannot be computed",
					x->component, x->name);
		} else if (set.numel) {
			/* The first of a group goes to 0 as it is. */
			bool group = last && (last->dtype != x->dtype ||
					      strcmp(last->component, x->component) != 0);

			rc = made_add(p, rank, p->made[i], &set, group, ret, err);
			last = x;
		}
	}
	arena_free(&a);
	if (!rc)
		rc = table_seal(ret, err);
	if (rc)
		table_free(ret);
	return rc;
}

static int own_table(const struct parts *p, uint32_t i, struct table *ret, struct ckpt_err *err)
{
	const struct part_of *of = &p->of[i];

	return of->kind == PART_AVERAGE ? average_table(p, of->rank, ret, err)
					: main_table(p, of->rank, ret, err);
}

/* The MADE tensors, and the target without them. */
static int made_find(struct parts *p, struct ckpt_err *err)
{
	const struct table *t = p->target;
	cleanup_free uint32_t *order = calloc((size_t)t->ntensor + 1, sizeof *order);

	p->made = calloc((size_t)t->ntensor + 1, sizeof *p->made);
	if (!order || !p->made || native_raw_order(t, order))
		return ckpt_error(err, -ENOMEM, "out of memory for %u tensors", t->ntensor);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[order[i]].made)
			p->made[p->nmade++] = order[i];
	if (p->nmade && table_twin(t, &p->plain))
		return ckpt_error(err, -ENOMEM, "out of memory for %u tensors", t->ntensor);
	for (uint32_t i = 0; i < p->nmade; i++)
		p->plain.tensor[p->made[i]].cls = CKPT_SINK;
	return 0;
}

/* Which parts there are: whoever owns something of an average has one of averages. */
static int parts_list(struct parts *p, struct ckpt_err *err)
{
	p->of = calloc(2 * (size_t)p->world, sizeof *p->of);
	if (!p->of)
		return ckpt_error(err, -ENOMEM, "out of memory for %u parts", p->world);
	for (uint32_t r = 0; r < p->world && p->nmade; r++) {
		struct table t;
		int rc = average_table(p, r, &t, err);

		if (rc)
			return rc;
		if (t.ntensor)
			p->of[p->npart++] = (struct part_of){ .rank = r, .kind = PART_AVERAGE };
		table_free(&t);
	}
	for (uint32_t r = 0, a = 0, n = p->npart; r < p->world; r++) {
		bool has = a < n && p->of[a].rank == r;

		p->of[p->npart++] = (struct part_of){ .rank = r,
						      .kind = PART_MAIN,
						      .source = has ? a : TABLE_NONE };
		a += has;
	}
	return 0;
}

static int tensors_add(struct parts *p, struct ckpt_err *err)
{
	const struct table *from = p->target;
	int rc = table_add_mesh(&p->all, &from->mesh[0], NULL, err);

	if (!rc && table_reserve(&p->all, from->ntensor, 0))
		rc = ckpt_error(err, -ENOMEM, "out of memory for %u tensors", from->ntensor);
	for (uint32_t i = 0; i < from->nlayout && !rc; i++)
		rc = table_add_layout(&p->all, &from->layout[i], NULL, err);
	for (uint32_t i = 0; i < from->naverage && !rc; i++) {
		struct table_average x = from->average[i];

		rc = table_add_average(&p->all, &x, NULL, err);
	}
	for (uint32_t i = 0; i < from->ntensor && !rc; i++)
		if (from->tensor[i].cls != CKPT_SINK)
			rc = table_add_tensor(&p->all, &from->tensor[i], NULL, err);
	return rc;
}

static int part_add(struct parts *p, uint32_t i, struct memo *memo, struct ckpt_err *err)
{
	struct table_place place;
	struct table t;
	int rc = own_table(p, i, &t, err);

	if (rc)
		return rc;
	place = t.place[0];
	rc = table_add_place(&p->all, &place, NULL, err);
	for (uint32_t k = 0; k < t.npiece && !rc; k++) {
		const struct table_tensor *x = &t.tensor[t.piece[k].tensor];
		struct table_piece y = t.piece[k];

		y.tensor = table_find(&p->all, x->component, x->name, x->rank);
		y.place = i;
		rc = set_share(memo, &t.piece[k].set, &p->all.arena, &y.set);
		rc = rc ? ckpt_error(err, rc, "out of memory for the pieces of rank %u",
				     p->of[i].rank)
			: table_put_piece(&p->all, &y, err);
		p->bytes += y.len;
	}
	p->of[i].room = native_part_bytes_max(&t, p->nmade ? 1 : 0);
	table_free(&t);
	return rc;
}

int parts_make(const struct table *target, struct parts *ret, struct ckpt_err *err)
{
	cleanup_free struct memo *memo = calloc(1, sizeof *memo);
	struct parts *p = ret;
	int rc;

	*p = (struct parts){ .target = target, .world = target_world(target) };
	if (p->world > NATIVE_WORLD_MAX)
		return ckpt_error(err, -EINVAL, "a mesh of %u ranks; a checkpoint has at most %u",
				  p->world, NATIVE_WORLD_MAX);
	if (!memo)
		return ckpt_error(err, -ENOMEM, "out of memory for %u parts", p->world);
	rc = made_find(p, err);
	if (!rc)
		rc = parts_list(p, err);
	if (!rc)
		rc = tensors_add(p, err);
	for (uint32_t i = 0; i < p->npart && !rc; i++)
		rc = cli_stopped() ? ckpt_error(err, -ECANCELED, "interrupted")
				   : part_add(p, i, memo, err);
	return rc ? rc : table_seal(&p->all, err);
}

/* The piece of all that part i has of a tensor of its own table t. */
static struct table_piece *piece_of(const struct parts *p, uint32_t i, const struct table *t,
				    uint32_t tensor)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint32_t at = table_find(&p->all, x->component, x->name, x->rank);
	uint32_t low = p->all.first[at], high = p->all.first[at + 1];

	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (p->all.piece[mid].rank > p->of[i].rank)
			high = mid;
		else
			low = mid;
	}
	assert(p->all.piece[low].rank == p->of[i].rank);
	return &p->all.piece[low];
}

int conversion_part_table(const struct parts *p, uint32_t i, struct table *ret,
			  struct ckpt_err *err)
{
	int rc = own_table(p, i, ret, err);

	for (uint32_t k = 0; !rc && k < ret->npiece; k++) {
		const struct table_piece *had = piece_of(p, i, ret, ret->piece[k].tensor);

		ret->piece[k].fp = had->fp;
		ret->piece[k].fp_known = had->fp_known;
	}
	return rc;
}

void parts_keep(struct parts *p, uint32_t i, const struct table *t)
{
	for (uint32_t k = 0; k < t->npiece; k++) {
		struct table_piece *had = piece_of(p, i, t, t->piece[k].tensor);

		had->fp = t->piece[k].fp;
		had->fp_known = t->piece[k].fp_known;
	}
}

void conversion_parts_free(struct parts *p)
{
	table_free(&p->all);
	table_free(&p->plain);
	free(p->of);
	free(p->made);
	*p = (struct parts){ 0 };
}
