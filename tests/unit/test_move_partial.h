/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_partial.h - for the tests of pending reductions: a few tensors of any layouts on any
 * mesh, held by all its ranks, staged and written as a checkpoint.
 */
#ifndef CKPT_TEST_MOVE_PARTIAL_H
#define CKPT_TEST_MOVE_PARTIAL_H
#include "ckpt/base/dtype.h"
#include "ckpt/table/operand.h"
#include "tests/unit/test_move_disk.h"
#include "tests/lib/row.h"

#define TENSORS_MAX 6
#define MESH_DIMS_MAX 4

struct held {
	char name[16];
	uint32_t dtype, ndim, nplace;
	uint64_t shape[4];
	struct ckpt_placement place[MESH_DIMS_MAX];
};

struct model {
	struct mesh mesh;
	uint32_t dim[MESH_DIMS_MAX], rank[DISK_RANKS_MAX], n;
	const char *name[MESH_DIMS_MAX];
	struct held tensor[TENSORS_MAX];
};

static inline void model_mesh(struct model *m, uint32_t ndim, const char *const *name,
			      const uint32_t *dim)
{
	*m = (struct model){ .mesh = { .ndim = ndim, .nrank = 1 } };
	for (uint32_t d = 0; d < ndim; d++) {
		m->name[d] = name[d];
		m->dim[d] = dim[d];
		m->mesh.nrank *= dim[d];
	}
	assert_true(m->mesh.nrank <= DISK_RANKS_MAX);
	for (uint32_t r = 0; r < m->mesh.nrank; r++)
		m->rank[r] = r;
}

/* A model is moved about: its mesh points into itself. */
static inline const struct mesh *model_ready(struct model *m)
{
	m->mesh.name = m->name;
	m->mesh.dim = m->dim;
	m->mesh.rank = m->rank;
	return &m->mesh;
}

static inline struct layout held_layout(const struct held *h)
{
	return (struct layout){ .nplace = h->nplace, .place = h->place };
}

static inline void rank_make(struct model *m, uint32_t rank, struct sample *s)
{
	struct ckpt_err err = { 0 };
	struct table *t = &s->decl;
	struct table_place place = { .rank = rank, .bytes = INT64_MAX };
	uint32_t coord[CKPT_DIMS_MAX];
	char name[32];
	uint64_t end = 0;

	*s = (struct sample){ .rank = rank, .world = m->mesh.nrank };
	snprintf(name, sizeof name, "rank %u", rank);
	place.name = name;
	assert_int_equal(table_add_mesh(t, model_ready(m), NULL, &err), 0);
	assert_int_equal(table_add_place(t, &place, NULL, &err), 0);
	assert_true(mesh_coord(&m->mesh, rank, coord));
	for (uint32_t i = 0; i < m->n; i++) {
		const struct held *h = &m->tensor[i];
		struct layout l = held_layout(h);
		struct table_tensor x = ROW(.component = "model", .name = h->name,
					    .dtype = h->dtype, .elem_bytes = dtype_bytes(h->dtype),
					    .rank = TABLE_NONE, .ndim = h->ndim, .shape = h->shape);
		struct table_piece p = { .rank = rank, .off = align_up(end, 64) };
		struct arena a = { 0 };

		assert_ok_err(table_add_layout(t, &l, &x.layout, &err), &err);
		assert_ok_err(table_add_tensor(t, &x, &p.tensor, &err), &err);
		assert_ok(layout_share(&m->mesh, &l, h->ndim, h->shape, coord, &a, &p.set));
		assert_ok_err(table_add_piece(t, &p, &err), &err);
		end = p.off + p.set.numel * x.elem_bytes;
		arena_free(&a);
	}
	s->mem_bytes = t->place[0].bytes = align_up(end + 1, 4096);
	assert_int_equal(table_seal(t, &err), 0);
	s->mem = aligned_alloc(4096, s->mem_bytes);
	assert_non_null(s->mem);
	memset(s->mem, 0xee, s->mem_bytes);
}

static inline void model_job(struct model *m, struct job *j)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };

	*j = (struct job){ .world = m->mesh.nrank };
	for (uint32_t i = 0; i < j->world; i++) {
		rank_make(m, i, &j->rank[i]);
		if (table_merge(&j->all, &j->rank[i].decl, NULL, &list, &err) < 0 || list.n)
			fail_msg("%s %s", err.msg, list.text ? list.text : "");
		j->base[i] = j->rank[i].mem;
	}
	assert_int_equal(table_seal(&j->all, &err), 0);
}

static inline void model_job_free(struct job *j)
{
	for (uint32_t i = 0; i < j->world; i++) {
		free(TAKE(j->rank[i].mem));
		table_free(&j->rank[i].decl);
		table_free(&j->part[i]);
		free(j->raw[i]);
	}
	table_free(&j->all);
}

/* Where a rank's elements of a tensor lie, and how many; NULL, 0: it has none. */
static inline void *rank_elements(const struct sample *s, uint32_t tensor, uint64_t *ret_n)
{
	const struct table *t = &s->decl;
	const struct table_piece *p = &t->piece[t->first[tensor]];

	*ret_n = 0;
	if (t->first[tensor] == t->first[tensor + 1])
		return NULL;
	*ret_n = p->set.numel;
	return (uint8_t *)s->mem + p->off;
}

/* Whole numbers below 2^8 in any type. */
static inline void number_put(uint32_t dtype, void *at, int64_t v)
{
	float f = (float)v;
	double d = (double)v;
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	switch (dtype) {
	case CKPT_BF16:
		u >>= 16;
		memcpy(at, &u, 2);
		break;
	case CKPT_F32:
		memcpy(at, &f, 4);
		break;
	case CKPT_F64:
		memcpy(at, &d, 8);
		break;
	default:
		memcpy(at, &v, dtype_bytes(dtype));
	}
}

static inline int64_t number_get(uint32_t dtype, const void *at)
{
	uint32_t u = 0;
	int32_t i;
	int64_t v;
	float f;
	double d;

	switch (dtype) {
	case CKPT_BF16:
		memcpy((uint8_t *)&u + 2, at, 2);
		memcpy(&f, &u, sizeof f);
		return (int64_t)f;
	case CKPT_F32:
		memcpy(&f, at, 4);
		return (int64_t)f;
	case CKPT_F64:
		memcpy(&d, at, 8);
		return (int64_t)d;
	case CKPT_I32:
		memcpy(&i, at, 4);
		return i;
	default:
		assert_int_equal(dtype, CKPT_I64);
		memcpy(&v, at, 8);
		return v;
	}
}

/* Snapshot every rank as the daemon does. */
static inline void model_stage(struct job *j)
{
	for (uint32_t i = 0; i < j->world; i++) {
		struct ckpt_errlist list = { 0 };
		struct ckpt_err err = { 0 };
		const void *src = j->rank[i].mem;
		uint64_t bytes;
		struct plan p;
		void *dst;

		assert_ok_err(native_part_table(&j->rank[i].decl, i, &j->part[i], &list, &err),
			      &err);
		bytes = align_up(j->part[i].place[0].bytes + 1, 4096);
		dst = j->raw[i] = aligned_alloc(4096, bytes);
		assert_non_null(dst);
		memset(dst, 0, bytes);
		assert_ok_err(plan_make(&j->rank[i].decl, &j->part[i],
					&(struct plan_opts){ .memory_blobs = true }, &p, NULL,
					&err),
			      &err);
		/* A snapshot may not allocate: nothing is made of operands. */
		assert_null(p.reduced);
		assert_int_equal(move_copy(&p, &src, &dst, NULL, NULL), 0);
		plan_free(&p);
	}
}

/* All parts as one table, whose places are j->raw. */
static inline void model_staged(const struct job *j, struct table *ret)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };

	*ret = (struct table){ 0 };
	for (uint32_t r = 0; r < j->world; r++)
		assert_ok_err(table_merge(ret, &j->part[r], NULL, &list, &err), &err);
	assert_int_equal(table_seal(ret, &err), 0);
	table_cover(ret, &list);
	if (list.n)
		fail_msg("%s", list.text);
}

static inline void model_clear(struct job *j)
{
	for (uint32_t i = 0; i < j->world; i++)
		memset(j->rank[i].mem, 0xee, j->rank[i].mem_bytes);
}
#endif
