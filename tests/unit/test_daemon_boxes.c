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
	uint32_t group[BOXES_MAX]; /* of ranks, which holds the box */
	const char *layout;	   /* instead of boxes */
	uint32_t of[8], ngroup;	   /* of[rank]: its group; ngroup: it has none */
	bool meshed[8];		   /* group: of one rank, it has a mesh all the same */
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

static void declare_boxes(struct rank *k, const struct held *h, struct mine *m)
{
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = h->dtype, .cls = h->cls, .component = "model",
		    .name = h->name, .ndim = h->ndim, .shape = h->shape, .local = m->local,
		    .mode = CKPT_BOXES, .mesh = CKPT_ALONE);

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
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = h->dtype, .cls = h->cls, .component = "model",
		    .name = h->name, .ndim = h->ndim, .shape = h->shape, .local = m->local,
		    .mesh = k->mesh_id, .nlocal = m->share.numel > 0, .nplace = l.nplace,
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
			declare_boxes(k, &j->t[i], &m[i]);
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
	for (uint32_t round = 0; round < unit_scaled(12); round++) {
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

static void script_more(struct rank *k)
{
	const struct ckpt_want some = { .size = sizeof some,
					.flags = CKPT_FROM_DISK,
					.step = CKPT_LATEST,
					.only = "model" },
			       all = { .size = sizeof all,
				       .flags = CKPT_LENIENT,
				       .step = CKPT_LATEST };
	struct job_of_boxes *j = k->arg;
	struct mine *m = declare_all(k, j);
	static const uint64_t ten = 10, zero = 0;
	uint8_t kept[10] = { 42 };
	struct ckpt_local at = { .ptr = kept, .start = &zero, .extent = &ten };
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_U8, .component = "extra",
				   .name = "more", .ndim = 1, .shape = &ten, .mesh = CKPT_ALONE,
				   .nlocal = 1, .local = &at, .mode = CKPT_BOXES);

	rank_meet(k);
	if (k->rank == 0) /* the others seal again, but do not even declare it */
		MUST_OK(ckpt_tensor_add(k->c, &t, NULL, &k->err), &k->err);
	must_seal(k);
	MUST_BE(rank_want(k, &(struct ckpt_want){ .size = sizeof some, .step = CKPT_LATEST }),
		-EMEDIUMTYPE);
	MUST(strstr(k->err.msg, "extra/more: not in the checkpoint"));
	MUST_OF(k, rank_want(k, &all));
	MUST_BE(k->got.nmissing, 1);
	MUST_BE(k->got.ntensor, TENSORS);
	MUST_BE(kept[0], 42);
	all_of_mine(j, m, false);
	for (uint32_t i = 0; i < TENSORS; i++)
		for (uint32_t b = 0; b < m[i].n; b++)
			memset(m[i].local[b].ptr, 0,
			       box_numel(&j->t[i], &m[i].box[b]) * dtype_bytes(j->t[i].dtype));
	MUST_OF(k, rank_want(k, &some));
	MUST_BE(k->got.nmissing, 0);
	all_of_mine(j, m, false);
	rank_meet(k);
	rank_close(k, 0);
	mine_free(k, j, m);
}

TEST(what_a_step_lacks_stays_if_that_is_wanted_and_one_component_is_restored_alone)
{
	struct job_of_boxes j = { .step = 3 };
	uint64_t seed = draw_seed("more");

	host_start(&H, NULL);
	job_draw(&j, &seed);
	for (uint32_t i = 0; i < TENSORS; i++)
		boxes_draw(&j.t[i], 3, &seed);
	team_of(plan("more", "x=3"), script_save, &j);
	for (uint32_t i = 0; i < TENSORS; i++)
		boxes_draw(&j.t[i], 2, &seed);
	team_of(plan("more", "x=2"), script_more, &j);
}

/* --- declarations that are refused --- */

/* Of a job of n ranks, in one thread: they attach; each declares what the case says; they seal. */
static struct rank R[4];

static void ranks_attach(const char *job, uint32_t n)
{
	static const char *const mesh[] = { "", "x=1", "x=2", "x=3", "x=4" };

	if (!H.d)
		host_start(&H, NULL);
	for (uint32_t r = 0; r < n; r++) {
		struct plan_of_job p = plan(job, mesh[n]);

		must_attach(&R[r], &p, r);
	}
}

/* 0 once all of them have it; or the first refusal, whose sentence the last rank then has: of two
 * that contradict each other, the one is refused whose declaration came second. */
static int ranks_seal(uint32_t n)
{
	uint64_t until = now_ns() + PATIENCE;
	bool done[4] = { false }; /* another call would declare anew */
	uint32_t sealed = 0;

	for (uint32_t r = 0; sealed < n && now_ns() < until; r = (r + 1) % n) {
		int rc = done[r] ? 0 : ckpt_seal(R[r].c, SEC / 100, &R[r].err);

		if (rc < 0) {
			R[n - 1].err = R[r].err;
			return rc;
		}
		sealed += rc == 0 && !done[r];
		done[r] |= rc == 0;
	}
	return sealed == n ? 0 : -ETIMEDOUT;
}

static uint8_t scratch[1 << 16];

#define BOX(lo0, n0, lo1, n1)                                                \
	{                                                                    \
		.ptr = scratch, .start = (const uint64_t[]){ (lo0), (lo1) }, \
		.extent = (const uint64_t[])                                 \
		{                                                            \
			(n0), (n1)                                           \
		}                                                            \
	}
static const uint64_t ten_by_six[] = { 10, 6 };

/* model/w of 10 x 6 */
#define ADD(k, mesh_, ...)                                          \
	({                                                          \
		const struct ckpt_local local_[] = { __VA_ARGS__ }; \
		tensor_add(k, mesh_, local_, ARRAY_LEN(local_));    \
	})

static int tensor_add(struct rank *k, uint32_t mesh, const struct ckpt_local *local, uint32_t n)
{
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model",
				   .name = "w", .ndim = 2, .shape = ten_by_six, .mesh = mesh,
				   .nlocal = n, .local = local, .mode = CKPT_BOXES);

	return ckpt_tensor_add(k->c, &t, NULL, &k->err);
}

#define refused(k, rc, code, text)                                            \
	do {                                                                  \
		assert_int_equal(rc, code);                                   \
		if (!strstr((k)->err.msg, text))                              \
			fail_msg("\"%s\" is not in: %s", text, (k)->err.msg); \
	} while (0)

TEST(boxes_of_one_rank_that_overlap_are_refused_with_both)
{
	ranks_attach("one", 1);
	assert_ok(ADD(&R[0], CKPT_ALONE, BOX(0, 7, 0, 6), BOX(7, 3, 0, 6), BOX(5, 3, 2, 2)));
	refused(&R[0], ranks_seal(1), -EINVAL,
		"model/w: element [5, 2] is in two pieces: in box 0-7 x 0-6 of rank 0 and in box "
		"5-8 x 2-4 of rank 0");
	assert_non_null(strstr(R[0].err.msg, "element [7, 2] is in two pieces"));
	ranks_close(R, 1);
}

TEST(boxes_that_are_only_restored_into_do_not_overlap_either)
{
	const struct ckpt_local twice[] = { BOX(0, 2, 0, 6), BOX(1, 2, 0, 6) };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = CKPT_F32, .cls = CKPT_SINK, .component = "model",
		    .name = "w", .ndim = 2, .shape = ten_by_six, .mesh = CKPT_ALONE, .nlocal = 2,
		    .local = twice, .mode = CKPT_BOXES);

	ranks_attach("sink", 1);
	assert_ok(ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err));
	refused(&R[0], ranks_seal(1), -EINVAL, "element [1, 0] is in two pieces");
	ranks_close(R, 1);
}

TEST(boxes_of_two_ranks_that_overlap_are_refused)
{
	ranks_attach("two", 3);
	assert_ok(ADD(&R[0], CKPT_ALONE, BOX(0, 4, 0, 6)));
	assert_ok(ADD(&R[1], CKPT_ALONE, BOX(4, 6, 0, 6)));
	assert_ok(ADD(&R[2], CKPT_ALONE, BOX(9, 1, 5, 1)));
	refused(&R[2], ranks_seal(3), -EINVAL,
		"model/w: element [9, 5] is in two pieces: in box 4-10 x 0-6 of rank 1 and in box "
		"9-10 x 5-6 of rank 2");
	ranks_close(R, 3);
}

TEST(elements_in_no_box_are_refused_with_the_first_and_whose_boxes_there_are)
{
	ranks_attach("gap", 3);
	assert_ok(ADD(&R[0], CKPT_ALONE, BOX(0, 4, 0, 6)));
	assert_ok(tensor_add(&R[1], CKPT_ALONE, NULL, 0));
	assert_ok(ADD(&R[2], CKPT_ALONE, BOX(4, 3, 0, 6), BOX(7, 3, 1, 5)));
	refused(&R[2], ranks_seal(3), -EINVAL,
		"model/w: element [7, 0] is in no piece; its 3 pieces, of ranks 0, 2, hold 57 of 60 "
		"elements");
	ranks_close(R, 3);
}

TEST(a_rank_of_the_mesh_that_does_not_declare_its_boxes_leaves_a_gap_or_saves_them_not_twice)
{
	uint32_t two = 2, mesh, refusals = 0;

	/* Which of the two owns a small box is for the rule to say. */
	for (uint32_t lacks = 0; lacks < 2; lacks++) {
		ranks_attach(lacks ? "second" : "first", 2);
		for (uint32_t r = 0; r < 2; r++) {
			assert_ok(ckpt_mesh(R[r].c, 1, (const char *const[]){ "dp" }, &two, NULL,
					    &mesh, NULL));
			assert_ok(r == lacks ? tensor_add(&R[r], mesh, NULL, 0)
					     : ADD(&R[r], mesh, BOX(0, 10, 0, 6)));
		}
		if (ranks_seal(2) != 0) {
			refused(&R[1], -EINVAL, -EINVAL, "model/w: element [0, 0] is in no piece");
			refusals++;
		}
		ranks_close(R, 2);
	}
	assert_int_equal(refusals, 1);
}

TEST(ranks_of_one_mesh_that_declare_different_boxes_are_named)
{
	const uint32_t two = 2;
	const char *why = "model/w: ranks 0 and 1 hold their boxes alike (mesh dp=2), but declare "
			  "different ones\nmodel/w: element [";
	uint32_t mesh;

	ranks_attach("alike", 2);
	for (uint32_t r = 0; r < 2; r++)
		assert_ok(ckpt_mesh(R[r].c, 1, (const char *const[]){ "dp" }, &two, NULL, &mesh,
				    NULL));
	/* By the rule each of the two boxes is saved by the rank that does not have it. */
	assert_ok(ADD(&R[0], mesh, BOX(5, 5, 0, 6)));
	assert_ok(ADD(&R[1], mesh, BOX(0, 5, 0, 6)));
	refused(&R[1], ranks_seal(2), -EINVAL, why);
	ranks_close(R, 2);
}

TEST(ranks_of_different_meshes_need_not_hold_the_same_boxes)
{
	const uint32_t one = 1;
	uint32_t mesh;

	ranks_attach("meshes", 2);
	for (uint32_t r = 0; r < 2; r++)
		assert_ok(
			ckpt_mesh(R[r].c, 1, (const char *const[]){ "dp" }, &one, &r, &mesh, NULL));
	assert_ok(ADD(&R[0], mesh, BOX(0, 5, 0, 6)));
	assert_ok(ADD(&R[1], mesh, BOX(6, 4, 0, 6)));
	refused(&R[1], ranks_seal(2), -EINVAL, "model/w: element [5, 0] is in no piece");
	assert_null(strstr(R[1].err.msg, "alike"));
	ranks_close(R, 2);
}

TEST(what_makes_no_sense_is_refused_where_it_is_declared)
{
	const struct ckpt_local good = BOX(0, 10, 0, 6), far = BOX(0, 11, 0, 6),
				late = BOX(10, 1, 0, 6), bare = { .ptr = scratch },
				half = { .ptr = scratch, .start = ten_by_six },
				none = { .start = good.start, .extent = good.extent };
	const struct ckpt_placement s0 = { .how = CKPT_SHARD };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model", .name = "v",
		    .ndim = 2, .shape = ten_by_six, .mesh = CKPT_ALONE, .nlocal = 1, .local = &good,
		    .nplace = 1, .place = &s0, .mode = CKPT_BOXES);
	uint32_t one = 1, mesh;

	ranks_attach("senseless", 2);
	refused(&R[0], tensor_add(&R[0], CKPT_ALONE, &far, 1), -EINVAL,
		"outside the tensor in dimension 0");
	refused(&R[0], tensor_add(&R[0], CKPT_ALONE, &late, 1), -EINVAL,
		"outside the tensor in dimension 0");
	refused(&R[0], tensor_add(&R[0], CKPT_ALONE, &bare, 1), -EINVAL,
		"each ckpt_local needs start and extent");
	refused(&R[0], tensor_add(&R[0], CKPT_ALONE, &half, 1), -EINVAL,
		"needs both start and extent");
	refused(&R[0], tensor_add(&R[0], CKPT_ALONE, &none, 1), -EINVAL, "no memory");
	refused(&R[0], tensor_add(&R[0], 7, &good, 1), -EINVAL, "mesh 7 was not declared");
	refused(&R[0], ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), -EINVAL, "nplace must be 0");
	t.nplace = 0;
	t.mode = CKPT_CHUNK;
	refused(&R[0], ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), -EINVAL,
		"mesh CKPT_ALONE needs mode CKPT_BOXES");
	t.mesh = R[0].mesh_id;
	t.mode = 5;
	refused(&R[0], ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), -EOPNOTSUPP, "layout mode 5");
	assert_ok(ckpt_mesh(R[1].c, 1, (const char *const[]){ "dp" }, &one, NULL, &mesh, NULL));
	refused(&R[1], tensor_add(&R[1], mesh, &good, 1), -EINVAL,
		"this rank, 1, has boxes on a mesh in which it is not");
	ranks_close(R, 2);
}

TEST(a_tensor_in_boxes_on_one_rank_and_with_a_layout_on_another_is_refused)
{
	const struct ckpt_placement s0 = { .how = CKPT_SHARD };
	const struct ckpt_local at = { .ptr = scratch };
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model",
				   .name = "w", .ndim = 2, .shape = ten_by_six, .nlocal = 1,
				   .local = &at, .nplace = 1, .place = &s0);

	ranks_attach("both", 2);
	t.mesh = R[1].mesh_id;
	assert_ok(ADD(&R[0], CKPT_ALONE, BOX(0, 5, 0, 6)));
	assert_ok(ckpt_tensor_add(R[1].c, &t, NULL, &R[1].err));
	refused(&R[1], ranks_seal(2), -EINVAL, "boxes on rank 0");
	assert_non_null(strstr(R[1].err.msg, "Shard(0)@x (mesh x=2) on rank 1"));
	ranks_close(R, 2);
}

TEST(one_element_of_no_dimension_is_one_box)
{
	const struct ckpt_local at[] = { { .ptr = scratch }, { .ptr = scratch } };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model", .name = "scalar",
		    .mesh = CKPT_ALONE, .nlocal = 2, .local = at, .mode = CKPT_BOXES);

	ranks_attach("scalar", 1);
	assert_ok(ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err));
	refused(&R[0], ranks_seal(1), -EINVAL,
		"model/scalar: element [] is in two pieces: in box [] of rank 0 and in box [] of "
		"rank 0");
	ranks_close(R, 1);
}

/* --- many --- */

/* Under a sanitizer, which costs ten times as much, 5,000. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SIDE 17
#else
#define SIDE 47
#endif
#define CEILING (120 * SEC) /* pairs of boxes would take hours; a busy machine takes a while */
#define MANY (SIDE * SIDE * SIDE)

struct many {
	uint64_t start[MANY][3], extent[MANY][3];
	struct ckpt_local local[MANY];
	uint8_t *mem;
};

/* A grid of boxes of 2 x 2 x 2, in random order; those from number `from` on, every `of`-th. */
static struct ckpt_tensor many_boxes(struct rank *k, struct many *m, uint32_t from, uint32_t of)
{
	static const uint64_t shape[] = { 2 * SIDE, 2 * SIDE, 2 * SIDE };
	uint64_t seed = draw_seed("many"), x = draw_below(&seed, MANY);
	uint32_t n = 0;
	void *mem;

	MUST(!ckpt_alloc(k->c, MANY * 8, &mem, NULL));
	m->mem = mem;
	for (uint32_t i = 0; i < MANY; i++) {
		uint32_t at = (uint32_t)((x + i * UINT64_C(7919)) % MANY);
		const uint64_t c[] = { at / SIDE / SIDE, at / SIDE % SIDE, at % SIDE };

		if (at % of != from)
			continue;
		for (uint32_t d = 0; d < 3; d++) {
			m->start[n][d] = 2 * c[d];
			m->extent[n][d] = 2;
		}
		m->local[n] = (struct ckpt_local){ .ptr = m->mem + (size_t)n * 8,
						   .start = m->start[n],
						   .extent = m->extent[n] };
		n++;
	}
	return (struct ckpt_tensor)ROW(.size = sizeof(struct ckpt_tensor), .dtype = CKPT_U8,
				       .component = "model", .name = "many", .ndim = 3,
				       .shape = shape, .mesh = CKPT_ALONE, .nlocal = n,
				       .local = m->local, .mode = CKPT_BOXES);
}

/* Every pair of 100,000 boxes is 5,000,000,000: minutes for each of many comparisons. */
TEST(a_hundred_thousand_boxes_of_a_tensor_are_no_matter_of_pairs)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_FINAL };
	struct many *m = calloc(2, sizeof *m);
	uint64_t began = now_ns();
	uint32_t id[2];

	MUST(m);
	ranks_attach("many", 2);
	for (uint32_t r = 0; r < 2; r++) {
		struct ckpt_tensor t = many_boxes(&R[r], &m[r], r, 2);

		assert_ok_err(ckpt_tensor_add(R[r].c, &t, &id[r], &R[r].err), &R[r].err);
		for (uint32_t i = 0; i < t.nlocal; i++)
			memset(m[r].local[i].ptr, (int)(m[r].start[i][0] ^ m[r].start[i][2]), 8);
	}
	assert_ok_err(ranks_seal(2), &R[1].err);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(ckpt_snapshot(R[r].c, 1, &mark), 0);
	for (uint32_t r = 0; r < 2; r++)
		must_wait(&R[r], 1, CKPT_COMMITTED);
	ranks_close(R, 2);
	/* Back, all to one rank. */
	ranks_attach("many", 1);
	struct ckpt_tensor t = many_boxes(&R[0], &m[0], 0, 1);

	assert_ok_err(ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), &R[0].err);
	must_seal(&R[0]);
	must_restore(&R[0], CKPT_LATEST, CKPT_FROM_DISK);
	for (uint32_t i = 0; i < t.nlocal; i++)
		for (uint32_t b = 0; b < 8; b++)
			assert_int_equal(((uint8_t *)m->local[i].ptr)[b],
					 (uint8_t)(m->start[i][0] ^ m->start[i][2]));
	ranks_close(R, 1);
	free(m);
	printf("# %u boxes: %.1f s\n", MANY, (double)(now_ns() - began) / 1e9);
	assert_true(now_ns() - began < CEILING);
}

TEST(among_a_hundred_thousand_boxes_the_one_that_lacks_and_the_one_too_many_are_found)
{
	struct many *m = calloc(1, sizeof *m);
	uint64_t began = now_ns();
	struct ckpt_tensor t;

	MUST(m);
	for (uint32_t over = 0; over < 2; over++) {
		char want[64];

		ranks_attach(over ? "over" : "lacks", 1);
		t = many_boxes(&R[0], m, 0, 1);
		snprintf(want, sizeof want, "element [%u, %u, %u] is in %s",
			 (uint32_t)m->start[500][0] + over, (uint32_t)m->start[500][1],
			 (uint32_t)m->start[500][2], over ? "two pieces" : "no piece");
		if (over) { /* moved by one, it is in its neighbour too, and leaves a gap */
			t.local = m->local;
			m->extent[500][0] = m->start[500][0] + 4 > 2 * SIDE ? 2 : 3;
			snprintf(want, sizeof want, "is in two pieces");
		} else {
			m->extent[500][2] = 0;
		}
		assert_ok_err(ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), &R[0].err);
		refused(&R[0], ranks_seal(1), -EINVAL, want);
		ranks_close(R, 1);
	}
	free(m);
	printf("# found after %.1f s\n", (double)(now_ns() - began) / 1e9);
	assert_true(now_ns() - began < CEILING);
}

/* As many boxes of one and the same element: all pairs overlap, and not all are counted. */
TEST(a_hundred_thousand_boxes_of_the_same_elements_are_refused_soon)
{
	struct many *m = calloc(1, sizeof *m);
	uint64_t began = now_ns();
	struct ckpt_tensor t;

	MUST(m);
	ranks_attach("same", 1);
	t = many_boxes(&R[0], m, 0, 1);
	for (uint32_t i = 0; i < MANY; i++)
		m->local[i].start = m->start[0];
	assert_ok_err(ckpt_tensor_add(R[0].c, &t, NULL, &R[0].err), &R[0].err);
	refused(&R[0], ranks_seal(1), -EINVAL, "more pairs of pieces overlap");
	ranks_close(R, 1);
	free(m);
	printf("# refused after %.1f s\n", (double)(now_ns() - began) / 1e9);
	assert_true(now_ns() - began < CEILING);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
