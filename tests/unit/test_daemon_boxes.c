/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_boxes.c - EXPLICIT tensors from live jobs (CKPT_BOXES): any boxes on any ranks, alone
 * or alike on a mesh, are saved, and come back in any other boxes and layouts; declarations that do
 * not contain each element once are refused with what is wrong.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/table/table.h"
#include "formats/native/native.h"
#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define DIMS 3
#define BOXES_MAX 64

struct box {
	uint64_t start[DIMS], extent[DIMS];
};

/* One tensor of a job, as all its ranks hold it. */
struct held {
	char name[16];
	uint32_t dtype, cls, ndim, nbox;
	uint64_t shape[DIMS];
	struct box box[BOXES_MAX];
	uint32_t group[BOXES_MAX];     /* of ranks, which holds the box */
	const char *layout;	       /* instead of boxes */
	uint32_t of[8], ngroup;	       /* of[rank]: its group; ngroup: it has none */
	bool meshed[8];		       /* group: of one rank, it has a mesh all the same */
};

/* Of a rank: where its boxes of a tensor lie. */
struct mine {
	uint32_t id, n;
	struct ckpt_local local[BOXES_MAX];
	struct box box[BOXES_MAX];
	struct indexset share; /* with a layout */
};

#define TENSORS 6
struct job_of_boxes {
	struct held t[TENSORS];
	uint64_t step;
	uint32_t flags; /* of the restore */
};

static uint64_t value(uint32_t tensor, uint64_t step, uint64_t g)
{
	uint64_t z = (g + 1) * UINT64_C(0x9e3779b97f4a7c15) + step * UINT64_C(0xd1b54a32d192ed03) +
		     tensor;

	return (z ^ z >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* --- a random job --- */

/* The box is cut, or it is one of the tensor's. */
static void divide(struct held *h, struct box b, uint32_t depth, uint64_t *seed)
{
	uint32_t d = h->ndim ? (uint32_t)draw_below(seed, h->ndim) : 0;
	struct box c = b;
	uint64_t at;

	if (!h->ndim || !depth || b.extent[d] < 2 || h->nbox + 2 > BOXES_MAX / 2 ||
	    !draw_below(seed, 6)) {
		h->box[h->nbox++] = b;
		return;
	}
	at = 1 + draw_below(seed, b.extent[d] - 1);
	b.extent[d] = at;
	c.start[d] += at;
	c.extent[d] -= at;
	divide(h, b, depth - 1, seed);
	divide(h, c, depth - 1, seed);
}

static void groups_draw(struct held *h, uint32_t world, uint64_t *seed)
{
	uint32_t first[8] = { 0 };

	h->ngroup = 1 + (uint32_t)draw_below(seed, world);
	/* Each group has a rank; the others are in one, or in none. */
	for (uint32_t r = 0; r < world; r++)
		h->of[r] = r < h->ngroup ? r : (uint32_t)draw_below(seed, h->ngroup + 1);
	for (uint32_t r = world; r-- > 1;) {
		uint32_t k = (uint32_t)draw_below(seed, r + 1), x = h->of[r];

		h->of[r] = h->of[k];
		h->of[k] = x;
	}
	for (uint32_t g = 0; g < h->ngroup; g++)
		h->meshed[g] = draw_below(seed, 2);
	(void)first;
}

static void boxes_draw(struct held *h, uint32_t world, uint64_t *seed)
{
	struct box all = { 0 };

	h->layout = NULL;
	h->nbox = 0;
	memcpy(all.extent, h->shape, sizeof all.extent);
	divide(h, all, 6, seed);
	groups_draw(h, world, seed);
	for (uint32_t i = 0; i < h->nbox; i++)
		h->group[i] = (uint32_t)draw_below(seed, h->ngroup);
	for (uint32_t i = h->nbox; i-- > 1;) { /* in any order */
		uint32_t k = (uint32_t)draw_below(seed, i + 1);
		struct box b = h->box[i];

		h->box[i] = h->box[k];
		h->box[k] = b;
	}
}

static void job_draw(struct job_of_boxes *j, uint64_t *seed)
{
	static const uint32_t dtypes[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_I64, CKPT_C128 };

	for (uint32_t i = 0; i < TENSORS; i++) {
		struct held *h = &j->t[i];

		snprintf(h->name, sizeof h->name, "w%u", i);
		h->dtype = dtypes[draw_below(seed, ARRAY_LEN(dtypes))];
		h->cls = CKPT_STABLE;
		h->ndim = 1 + (uint32_t)draw_below(seed, DIMS);
		for (uint32_t d = 0; d < h->ndim; d++)
			h->shape[d] = 1 + draw_below(seed, 40);
		if (i == 0)
			h->ndim = 0;
		if (i == 1)
			h->shape[0] = 0; /* empty */
		if (i == 2) {		 /* boxes whose replicas each write a part */
			h->ndim = 2;
			h->dtype = CKPT_F32;
			h->shape[0] = 1 + draw_below(seed, 3000);
			h->shape[1] = 700;
		}
		if (i == 3)
			h->cls = CKPT_VOLATILE;
	}
}

/* --- a rank of it --- */

static void mesh_of_group(struct rank *k, const struct held *h, uint32_t group, uint32_t *ret)
{
	uint32_t rank[8], n = 0;

	for (uint32_t r = 0; r < k->world; r++)
		if (h->of[r] == group)
			rank[n++] = r;
	*ret = CKPT_ALONE;
	if (n > 1 || h->meshed[group])
		MUST_OK(ckpt_mesh(k->c, 1, (const char *const[]){ "replica" }, &n, rank, ret,
				  &k->err),
			&k->err);
}

static uint64_t box_numel(const struct held *h, const struct box *b)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < h->ndim; d++)
		n *= b->extent[d];
	return n;
}

static void declare_boxes(struct rank *k, const struct held *h, uint32_t i, struct mine *m)
{
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = h->dtype, .cls = h->cls,
				   .component = "model", .name = h->name, .ndim = h->ndim,
				   .shape = h->shape, .local = m->local, .mode = CKPT_BOXES,
				   .mesh = CKPT_ALONE);

	*m = (struct mine){ 0 };
	for (uint32_t b = 0; b < h->nbox; b++) {
		struct ckpt_local *l = &m->local[m->n];

		if (h->of[k->rank] != h->group[b])
			continue;
		m->box[m->n] = h->box[b];
		l->start = m->box[m->n].start;
		l->extent = m->box[m->n].extent;
		if (b % 3) /* the others lie in private memory */
			MUST(!ckpt_alloc(k->c,
					 MAX(box_numel(h, &h->box[b]), UINT64_C(1)) *
						 dtype_bytes(h->dtype),
					 &l->ptr, NULL));
		else
			l->ptr = calloc(box_numel(h, &h->box[b]) + 1, dtype_bytes(h->dtype));
		m->n++;
	}
	t.nlocal = m->n;
	if (h->of[k->rank] < h->ngroup)
		mesh_of_group(k, h, h->of[k->rank], &t.mesh);
	MUST_OK(ckpt_tensor_add(k->c, &t, &m->id, &k->err), &k->err);
	(void)i;
}

static void declare_layout(struct rank *k, const struct held *h, struct mine *m)
{
	uint32_t coord[CKPT_DIMS_MAX];
	struct layout l;

	*m = (struct mine){ 0 };
	MUST_OK(layout_parse(h->layout, &k->mesh, &k->a, &l, &k->err), &k->err);
	MUST(mesh_coord(&k->mesh, k->rank, coord));
	MUST(!layout_share(&k->mesh, &l, h->ndim, h->shape, coord, &k->a, &m->share));
	MUST(!ckpt_alloc(k->c, MAX(m->share.numel, UINT64_C(1)) * dtype_bytes(h->dtype),
			 &m->local[0].ptr, NULL));
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = h->dtype, .cls = h->cls,
				   .component = "model", .name = h->name, .ndim = h->ndim,
				   .shape = h->shape, .local = m->local, .mesh = k->mesh_id,
				   .nlocal = m->share.numel > 0, .nplace = l.nplace,
				   .place = l.place, .mode = l.mode);
	MUST_OK(ckpt_tensor_add(k->c, &t, &m->id, &k->err), &k->err);
}

/* Every element of a set, row-major: to be these, or are they? */
static void each(const struct held *h, uint32_t i, const struct indexset *s, uint8_t *p,
		 uint64_t step, bool fill)
{
	uint32_t elem = dtype_bytes(h->dtype);

	for (uint64_t e = 0; e < s->numel; e++, p += elem) {
		uint64_t g = 0, rest = e, at[DIMS];
		uint8_t want[16] = { 0 };
		uint64_t v;

		for (uint32_t d = h->ndim; d-- > 0; rest /= s->dim[d].total) {
			uint64_t n = rest % s->dim[d].total;
			const struct run *r = s->dim[d].run;

			for (; n >= r->len * r->count; r++)
				n -= r->len * r->count;
			at[d] = r->start + n / r->len * r->stride + n % r->len;
		}
		for (uint32_t d = 0; d < h->ndim; d++)
			g = g * h->shape[d] + at[d];
		v = value(i, step, g);
		memcpy(want, &v, sizeof v);
		if (fill)
			memcpy(p, want, elem);
		else if (memcmp(p, want, elem))
			rank_must(0, "an element is another", __FILE__, __LINE__, h->name);
	}
}

static void all_of_mine(const struct job_of_boxes *j, struct mine *m, bool fill)
{
	for (uint32_t i = 0; i < TENSORS; i++) {
		const struct held *h = &j->t[i];

		if (h->layout && m[i].share.numel)
			each(h, i, &m[i].share, m[i].local[0].ptr, j->step, fill);
		for (uint32_t b = 0; !h->layout && b < m[i].n; b++) {
			struct arena a = { 0 };
			struct indexset s;

			MUST(!indexset_box(h->ndim, m[i].box[b].start, m[i].box[b].extent, &a, &s));
			each(h, i, &s, m[i].local[b].ptr, j->step, fill);
			arena_free(&a);
		}
	}
}

static void mine_free(const struct rank *k, const struct job_of_boxes *j, struct mine *m)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		for (uint32_t b = 0, n = 0; !j->t[i].layout && b < j->t[i].nbox; b++)
			if (j->t[i].of[k->rank] == j->t[i].group[b]) {
				if (b % 3 == 0)
					free(m[i].local[n].ptr);
				n++;
			}
	free(m);
}

static struct mine *declare_all(struct rank *k, const struct job_of_boxes *j)
{
	struct mine *m = calloc(TENSORS, sizeof *m);

	MUST(m);
	must_attach(k, k->plan, k->rank);
	for (uint32_t i = 0; i < TENSORS; i++)
		if (j->t[i].layout)
			declare_layout(k, &j->t[i], &m[i]);
		else
			declare_boxes(k, &j->t[i], i, &m[i]);
	must_seal(k);
	return m;
}

static _Atomic uint64_t sums[TENSORS];

static void script_save(struct rank *k)
{
	struct job_of_boxes *j = k->arg;
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_FINAL };
	struct mine *m = declare_all(k, j);

	all_of_mine(j, m, true);
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint64_t sum;

		MUST_BE(ckpt_fingerprint(k->c, m[i].id, &sum), 0);
		sums[i] += sum;
	}
	MUST_BE(ckpt_snapshot(k->c, j->step, &mark), 0);
	must_wait(k, j->step, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
	mine_free(k, j, m);
}

static void script_load(struct rank *k)
{
	struct job_of_boxes *j = k->arg;
	struct mine *m = declare_all(k, j);

	must_restore(k, CKPT_LATEST, j->flags | CKPT_DRY_RUN);
	must_restore(k, CKPT_LATEST, j->flags);
	MUST_BE(k->got.ntensor, TENSORS);
	MUST_BE(k->got.step, j->step);
	all_of_mine(j, m, false);
	rank_meet(k);
	rank_close(k, 0);
	mine_free(k, j, m);
}

static void assert_sums(const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(&H, job, step);

	for (uint32_t i = 0; i < TENSORS; i++) {
		char name[16];
		uint32_t id;

		snprintf(name, sizeof name, "w%u", i);
		id = table_find(&c->table, "model", name, TABLE_NONE);
		assert_int_not_equal(id, TABLE_NONE);
		assert_int_equal(c->table.tensor[id].fp, sums[i]);
	}
	checkpoint_free(c);
}

static const char *const meshes[] = { "x=1", "x=2", "x=3", "x=2,y=2" };

TEST(random_boxes_come_back_in_other_random_boxes_and_in_layouts)
{
	static const char *const layouts[] = { "Shard(0)@x", "StridedShard(0, 3)@x", "Replicate" };
	uint64_t seed = draw_seed("boxes");

	host_start(&H, NULL);
	for (uint32_t round = 0; round < 12; round++) {
		struct job_of_boxes j = { .step = round + 1 };
		char job[16];
		uint32_t from = (uint32_t)draw_below(&seed, 4), to = (uint32_t)draw_below(&seed, 4);

		snprintf(job, sizeof job, "j%u", round);
		job_draw(&j, &seed);
		for (uint32_t i = 0; i < TENSORS; i++)
			if (round % 3 == 2 && i % 2 && j.t[i].ndim)
				j.t[i].layout = layouts[draw_below(&seed, 3)];
			else
				boxes_draw(&j.t[i], rank_world(meshes[from]), &seed);
		memset(sums, 0, sizeof sums);
		team_of(plan(job, meshes[from]), script_save, &j);
		assert_true(host_has(&H, job, j.step)); /* and every byte of it verified */
		assert_sums(job, j.step);
		for (uint32_t i = 0; i < TENSORS; i++)
			if (round % 3 == 1 && j.t[i].ndim)
				j.t[i].layout = layouts[draw_below(&seed, 3)];
			else
				boxes_draw(&j.t[i], rank_world(meshes[to]), &seed);
		j.flags = round % 2 ? CKPT_FROM_MEMORY : CKPT_FROM_DISK;
		team_of(plan(job, meshes[to]), script_load, &j);
		j.flags ^= CKPT_FROM_MEMORY ^ CKPT_FROM_DISK;
		team_of(plan(job, meshes[to]), script_load, &j);
	}
}

UNIT(.setup = host_setup, .teardown = host_teardown);
