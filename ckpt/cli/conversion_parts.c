/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_parts.c - see conversion_parts.h. Called by conversion.c. Invariant: piece k of a part's
 * own table and its piece in `all` are of the same tensor and rank, of which there is one.
 */
#include "ckpt/cli/conversion_parts.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/move/move.h"
#include "ckpt/table/target.h"
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

static int own_table(const struct table *target, uint32_t rank, struct table *ret,
		     struct ckpt_err *err)
{
	struct table holds;
	int rc = target_rank(target, rank, &holds, err);

	if (rc)
		return rc;
	rc = native_part_table(&holds, rank, ret, NULL, err);
	table_free(&holds);
	return rc;
}

static int tensors_add(struct parts *p, struct ckpt_err *err)
{
	const struct table *from = p->target;
	int rc = table_add_mesh(&p->all, &from->mesh[0], NULL, err);

	if (!rc && table_reserve(&p->all, from->ntensor, 0))
		rc = ckpt_error(err, -ENOMEM, "out of memory for %u tensors", from->ntensor);
	for (uint32_t i = 0; i < from->nlayout && !rc; i++)
		rc = table_add_layout(&p->all, &from->layout[i], NULL, err);
	for (uint32_t i = 0; i < from->ntensor && !rc; i++)
		if (from->tensor[i].cls != CKPT_SINK)
			rc = table_add_tensor(&p->all, &from->tensor[i], NULL, err);
	return rc;
}

static int part_add(struct parts *p, uint32_t i, struct memo *memo, struct ckpt_err *err)
{
	struct table_place place;
	struct table t;
	int rc = own_table(p->target, i, &t, err);

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
		rc = rc ? ckpt_error(err, rc, "out of memory for the pieces of rank %u", i)
			: table_put_piece(&p->all, &y, err);
		p->bytes += y.len;
	}
	p->room[i] = move_part_bytes_max(&t, 0);
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
	p->room = calloc(p->world, sizeof *p->room);
	if (!memo || !p->room)
		return ckpt_error(err, -ENOMEM, "out of memory for %u parts", p->world);
	rc = tensors_add(p, err);
	for (uint32_t i = 0; i < p->world && !rc; i++)
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

		if (p->all.piece[mid].rank > i)
			high = mid;
		else
			low = mid;
	}
	assert(p->all.piece[low].rank == i);
	return &p->all.piece[low];
}

int conversion_part_table(const struct parts *p, uint32_t i, struct table *ret,
			  struct ckpt_err *err)
{
	int rc = own_table(p->target, i, ret, err);

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
	free(p->room);
	*p = (struct parts){ 0 };
}
