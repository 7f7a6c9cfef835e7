/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spread_job.h - random meshes and layouts on two sides, and the memory of a rank, with and
 * without gaps between elements: for tests of exchanges between ranks. Every element is a function
 * of its tensor and its global index.
 */
#ifndef CKPT_TEST_SPREAD_JOB_H
#define CKPT_TEST_SPREAD_JOB_H
#include "tests/unit/test_plan_kinds.h"
#include "ckpt/base/dtype.h"
#include "ckpt/spread/spread.h"
#include "tests/lib/row.h"

#define WORLD_MAX 16
#define TENSORS 4
#define SECRET 0xa5 /* what memory holds that nobody has written */

struct job {
	struct random_kind side[2];
	struct table table[2]; /* declarations: of source and destination */
	uint32_t world;
	bool in_place; /* the ranks of one mesh load together: table[0] is both */
	uint64_t chunk_bytes;
	bool shared;	/* what goes through staging memory is read from there by the others */
	bool scheduled; /* by rounds */
	struct schedule_rounds rounds;
};

/* --- declarations --- */

static inline void small_mesh(struct random_kind *c)
{
	do
		random_mesh(c);
	while (c->mesh.nrank > 6);
}

static inline void draw_tensor(struct job *j, uint32_t i)
{
	static const uint32_t dtype[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64 };
	uint32_t ndim = naive_below(6) ? 1 + naive_below(3) : 0;
	uint64_t shape[3];
	char name[16];
	struct table_tensor x = ROW(.component = i % 2 ? "model" : "optim", .name = name, .of = "",
				    .dtype = dtype[naive_below(4)], .cls = CKPT_STABLE,
				    .rank = TABLE_NONE, .ndim = ndim, .shape = shape);

	snprintf(name, sizeof name, "w%u", i);
	for (uint32_t d = 0; d < ndim; d++)
		shape[d] = naive_below(20) ? 1 + naive_below(20) : 0;
	if (ndim > 0 && ndim < 3 && !naive_below(3))
		shape[naive_below(ndim)] *= 1 + naive_below(3000);
	for (int s = 0; s < 2; s++) {
		x.layout = random_layout(&j->table[s], &j->side[s], ndim, false);
		assert_ok(table_add_tensor(&j->table[s], &x, NULL, NULL));
	}
}

static inline void draw_job(struct job *j)
{
	*j = (struct job){ .chunk_bytes = SPREAD_CHUNK_MIN << naive_below(3),
			   .in_place = naive_below(2) };
	for (int s = 0; s < 2; s++) {
		const struct mesh *m = &j->side[s].mesh;

		small_mesh(&j->side[s]);
		assert_ok(table_add_mesh(&j->table[s], m, NULL, NULL));
		for (uint32_t i = 0; i < m->nrank; i++)
			j->world = MAX(j->world, m->rank[i] + 1);
	}
	j->shared = naive_below(2);
	j->scheduled = naive_below(2);
	j->rounds = (struct schedule_rounds){ 1 + naive_below(9), UINT64_C(64) << naive_below(9) };
	for (uint32_t i = 0; i < TENSORS; i++)
		draw_tensor(j, i);
	assert_ok(table_seal(&j->table[0], NULL));
	assert_ok(table_seal(&j->table[1], NULL));
}

static inline void job_free(struct job *j)
{
	table_free(&j->table[0]);
	table_free(&j->table[1]);
}

/* --- the memory of a rank --- */

static inline uint64_t host_alloc(uint64_t bytes)
{
	return (uintptr_t)malloc(bytes);
}

static inline void host_memory_free(uint64_t at)
{
	free((void *)(uintptr_t)at);
}

static inline uint8_t *host_at(uint64_t at)
{
	return (uint8_t *)(uintptr_t)at;
}

/* Where memory comes from, and where the test may touch it. */
static struct {
	uint64_t (*alloc)(uint64_t bytes);
	void (*free)(uint64_t at);
	uint8_t *(*host)(uint64_t at);
} memory_kind = { host_alloc, host_memory_free, host_at };

struct memory {
	struct table t;
	uint64_t base; /* of its only place */
	uint64_t bytes;
};

/* owned: pieces are what the rank owns; else its share, which is all of a tensor without a layout.
 * Some have gaps between their elements. */
static inline void memory_make(const struct table *declared, uint32_t rank, bool owned,
			       struct memory *ret)
{
	struct table_place place = { "memory", rank, INT64_MAX };
	uint64_t at = 0;

	*ret = (struct memory){ .t = table_borrow(declared) };
	assert_ok(table_add_place(&ret->t, &place, NULL, NULL));
	for (uint32_t i = 0; i < declared->ntensor; i++) {
		const struct table_tensor *x = &declared->tensor[i];
		const struct layout whole = { 0 };
		const struct layout *l =
			x->layout == TABLE_NONE ? &whole : &declared->layout[x->layout];
		const struct mesh *m = &declared->mesh[l->mesh];
		struct table_piece p = { .tensor = i, .rank = rank, .off = at };
		int64_t *stride = arena_array(&ret->t.arena, x->ndim + 1, sizeof *stride);
		uint32_t coord[CKPT_DIMS_MAX];
		int64_t step = 1 + i % 3; /* elements */

		if (!mesh_coord(m, rank, coord))
			continue;
		if (owned)
			assert_ok(layout_owned(m, l, x->ndim, x->shape, coord, x->elem_bytes,
					       x->component, x->name, &ret->t.arena, &p.set));
		else
			assert_ok(layout_share(m, l, x->ndim, x->shape, coord, &ret->t.arena,
					       &p.set));
		for (uint32_t d = x->ndim; d-- > 0; step *= (int64_t)p.set.dim[d].total)
			stride[d] = step;
		if (i % 3)
			p.stride = stride;
		at = align_up(at + (uint64_t)MAX(step, 1) * x->elem_bytes, 16);
		assert_ok(table_add_piece(&ret->t, &p, NULL));
	}
	assert_ok(table_seal(&ret->t, NULL));
	ret->bytes = at + 16;
	ret->base = memory_kind.alloc(ret->bytes);
	assert_true(ret->base);
	memset(memory_kind.host(ret->base), SECRET, ret->bytes);
}

static inline void memory_free(struct memory *m)
{
	memory_kind.free(m->base);
	table_free(&m->t);
}

static inline uint8_t value_of(const struct table_tensor *x, uint64_t index, uint32_t byte)
{
	uint64_t h = (index * 8 + byte + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint8_t)x->name[1];

	return (uint8_t)(h >> 40);
}

/* Writes every element of a set into memory (or looks at it): how many bytes are wrong. set: all of
 * a piece, or of it what is to be written. */
static inline uint64_t elements(const struct memory *m, const struct table_piece *p,
				const struct indexset *set, bool write)
{
	const struct table_tensor *x = &m->t.tensor[p->tensor];
	uint64_t pos[CKPT_DIMS_MAX] = { 0 }, wrong = 0;

	for (uint64_t n = 0; n < set->numel; n++) {
		uint64_t index = 0, at = 0, unit = 1;
		uint8_t *e;

		for (uint32_t d = 0; d < x->ndim; d++)
			index = index * x->shape[d] + indices_at(&set->dim[d], pos[d]);
		for (uint32_t d = x->ndim; d-- > 0; unit *= p->set.dim[d].total)
			at += indices_below(&p->set.dim[d], indices_at(&set->dim[d], pos[d])) *
			      (p->stride ? (uint64_t)p->stride[d] : unit);
		e = memory_kind.host(m->base) + p->off + at * x->elem_bytes;
		for (uint32_t b = 0; b < x->elem_bytes; b++) {
			if (write)
				e[b] = value_of(x, index, b);
			else
				wrong += e[b] != value_of(x, index, b);
		}
		for (uint32_t d = x->ndim; d-- > 0 && ++pos[d] == set->dim[d].total;)
			pos[d] = 0;
	}
	return wrong;
}

/* In place: only what the rank owns of its share has been read. */
static inline void memory_fill(const struct memory *m, uint32_t rank, bool owned)
{
	for (uint32_t i = 0; i < m->t.npiece; i++) {
		const struct table_piece *p = &m->t.piece[i];
		const struct table_tensor *x = &m->t.tensor[p->tensor];
		const struct layout *l = &m->t.layout[x->layout];
		const struct mesh *mesh = &m->t.mesh[l->mesh];
		cleanup_arena struct arena a = { 0 };
		uint32_t coord[CKPT_DIMS_MAX];
		struct indexset set = p->set;

		assert_true(mesh_coord(mesh, rank, coord));
		if (owned)
			assert_ok(layout_owned(mesh, l, x->ndim, x->shape, coord, x->elem_bytes,
					       x->component, x->name, &a, &set));
		(void)elements(m, p, &set, true);
	}
}

static inline uint64_t memory_wrong(const struct memory *m)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < m->t.npiece; i++)
		wrong += elements(m, &m->t.piece[i], &m->t.piece[i].set, false);
	return wrong;
}

/* --- what has not arrived --- */

struct missing {
	const struct memory *m;
	uint64_t bytes;
	bool write; /* as a rank that reads it */
};

static inline int missing_add(void *arg, const struct table_tensor *x, const struct indexset *part)
{
	struct missing *k = arg;
	uint32_t i = table_find(&k->m->t, x->component, x->name, TABLE_NONE);

	assert_true(i != TABLE_NONE && k->m->t.first[i] + 1 == k->m->t.first[i + 1]);
	if (k->write)
		(void)elements(k->m, &k->m->t.piece[k->m->t.first[i]], part, true);
	k->bytes += part->numel * x->elem_bytes;
	return 0;
}

/* What is missing behind so many rounds. write: it is written, as by a rank that reads it. */
static inline uint64_t missing_bytes(const struct job *j, struct spread *s, const struct memory *m,
				     uint64_t rounds, bool write)
{
	struct missing k = { .m = m, .write = write };

	assert_ok(spread_missing(s, j->chunk_bytes, rounds, missing_add, &k, NULL));
	return k.bytes;
}

/* --- jobs that are not drawn --- */

/* A tensor of 4 MiB that four ranks hold and divide: 16 rounds of a chunk from each to each. */
static inline void plain_job(struct job *j)
{
	static uint32_t dim[] = { 4 }, rank[] = { 0, 1, 2, 3 };
	static const char *const name[] = { "dp" };
	struct mesh mesh = { 1, name, dim, 4, rank };
	uint64_t shape[] = { 16, 4096, 16 };
	struct layout l = { 0 };
	struct table_tensor x =
		ROW(.component = "model", .name = "w0", .of = "", .dtype = CKPT_F32,
		    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = 3, .shape = shape);

	*j = (struct job){ .world = 4, .in_place = true, .chunk_bytes = SPREAD_CHUNK_MIN };
	assert_ok(table_add_mesh(&j->table[0], &mesh, NULL, NULL));
	assert_ok(table_add_layout(&j->table[0], &l, &x.layout, NULL));
	assert_ok(table_add_tensor(&j->table[0], &x, NULL, NULL));
	assert_ok(table_seal(&j->table[0], NULL));
}
#endif
