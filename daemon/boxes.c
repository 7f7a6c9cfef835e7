// SPDX-License-Identifier: Apache-2.0
// boxes.c - tensors in boxes on a mesh: all ranks of the mesh must hold the same boxes. If the
// declarations do not cover a tensor, this finds whether the ranks disagree, for the error. Called
// by memory and launch, in workers.
// Invariant: a declaration leaves a few bytes for each tensor; ranks are compared by sorting.
#include "daemon/state.h"
#include <inttypes.h>

struct noted {
	const struct decl *decl;
	const struct decl_boxes *boxes;
	uint32_t tensor; /* the same of all ranks */
};

static void sum_add(struct hash128_state *s, const void *p, size_t bytes)
{
	hash128_add(s, &bytes, sizeof bytes);
	if (bytes)
		hash128_add(s, p, bytes);
}

static uint64_t mesh_sum(const struct mesh *m)
{
	struct hash128_state s;

	hash128_begin(&s);
	for (uint32_t d = 0; d < m->ndim; d++)
		sum_add(&s, m->name[d], strlen(m->name[d]));
	sum_add(&s, m->dim, m->ndim * sizeof *m->dim);
	sum_add(&s, m->rank, m->nrank * sizeof *m->rank);
	return hash_word(hash128_end(&s));
}

/* In whatever order they were declared, and wherever they lie. */
uint64_t boxes_sum(const struct table *t, uint32_t tensor)
{
	uint64_t sum = 0;

	for (uint32_t p = t->first[tensor]; p < t->first[tensor + 1]; p++) {
		const struct indexset *set = &t->piece[p].set;
		struct hash128_state s;

		hash128_begin(&s);
		for (uint32_t d = 0; d < set->ndim; d++)
			sum_add(&s, set->dim[d].run, set->dim[d].n * sizeof *set->dim[d].run);
		sum += hash_word(hash128_end(&s));
	}
	return sum;
}

int boxes_note(struct decl *d)
{
	const struct table *t = &d->table;
	uint32_t coord[CKPT_DIMS_MAX], n = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		n += t->tensor[i].layout != TABLE_NONE && table_is_boxes(t, &t->tensor[i]);
	if (!n)
		return 0;
	d->boxes = calloc(n, sizeof *d->boxes);
	d->boxes_mesh = calloc(t->nmesh, sizeof *d->boxes_mesh);
	if (!d->boxes || !d->boxes_mesh)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->nmesh; i++) {
		struct decl_mesh *m = &d->boxes_mesh[i];

		m->has_rank = mesh_coord(&t->mesh[i], d->rank, coord);
		m->sum = mesh_sum(&t->mesh[i]);
		(void)mesh_print(&t->mesh[i], m->text, sizeof m->text);
	}
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];
		uint32_t mesh;

		if (x->layout == TABLE_NONE || !table_is_boxes(t, x))
			continue;
		mesh = t->layout[x->layout].mesh;
		if (d->boxes_mesh[mesh].has_rank)
			d->boxes[d->nboxes++] = (struct decl_boxes){ .tensor = i,
								     .mesh = mesh,
								     .sum = boxes_sum(t, i) };
	}
	return 0;
}

static const struct decl_mesh *mesh_of(const struct noted *x)
{
	return &x->decl->boxes_mesh[x->boxes->mesh];
}

static int by_tensor_mesh_rank(const void *a, const void *b)
{
	const struct noted *x = a, *y = b;
	uint64_t p = mesh_of(x)->sum, q = mesh_of(y)->sum;

	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	if (p != q)
		return p < q ? -1 : 1;
	return x->decl->rank < y->decl->rank ? -1 : x->decl->rank > y->decl->rank;
}

void boxes_compare(struct decl *const *decl, uint32_t n, const struct table *all,
		   struct ckpt_errlist *ret_list)
{
	cleanup_free struct noted *noted = NULL;
	uint64_t total = 0, at = 0;

	for (uint32_t r = 0; r < n; r++)
		total += decl[r]->nboxes;
	noted = malloc(MAX(total, 1u) * sizeof *noted);
	if (!noted)
		return; /* the caller reports the pieces themselves */
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = 0; i < decl[r]->nboxes; i++) {
			const struct decl_boxes *b = &decl[r]->boxes[i];
			const struct table_tensor *x = &decl[r]->table.tensor[b->tensor];

			noted[at++] =
				(struct noted){ decl[r], b,
						table_find(all, x->component, x->name, x->rank) };
		}
	qsort(noted, total, sizeof *noted, by_tensor_mesh_rank);
	for (uint64_t i = 0, k; i < total; i = k) {
		const struct noted *x = &noted[i], *other = NULL;
		char name[160];

		for (k = i + 1; k < total && noted[k].tensor == x->tensor &&
				mesh_of(&noted[k])->sum == mesh_of(x)->sum;
		     k++)
			if (!other && noted[k].boxes->sum != x->boxes->sum)
				other = &noted[k];
		if (other)
			ckpt_errlist_add(
				ret_list,
				"%s: ranks %" PRIu32 " and %" PRIu32
				" hold their boxes alike (mesh %s), but declare different ones",
				table_tensor_print(&x->decl->table.tensor[x->boxes->tensor], name,
						   sizeof name),
				x->decl->rank, other->decl->rank, mesh_of(x)->text);
	}
}
