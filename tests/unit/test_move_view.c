/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_view.c - plans from views carried out: random tables under random views into the memory
 * of any mesh, with casts; operands that were turned and cut before they are reduced; and a
 * checkpoint's files, whose bytes are as checked through a view as without one.
 */
#include "tests/unit/test_move_disk.h"
#include "tests/unit/test_view_model.h"
#include "ckpt/move/cast.h"
#include "ckpt/table/target.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASES 2000
#else
#define CASES 20000
#endif

/* --- from memory to memory --- */

static uint32_t cast_of(uint32_t dtype)
{
	if (dtype == CKPT_BF16)
		return naive_below(2) ? CKPT_F32 : CKPT_F64;
	if (dtype == CKPT_F32)
		return naive_below(2) ? CKPT_BF16 : CKPT_F64;
	return dtype;
}

/* All ranks' shares of a target, of other types where `casts` says so. */
static void wanted(const struct table *view, bool casts, struct table *ret)
{
	static const char *const meshes[] = { "fsdp=1", "fsdp=2", "tp=2,fsdp=2", "dp=2,fsdp=3" };
	struct table target, t = { 0 };
	struct ckpt_err err = { 0 };

	assert_ok_err(target_make(view, meshes[naive_below(4)], NULL, 0, &target, NULL, NULL, &err),
		      &err);
	for (uint32_t i = 0; i < target.ntensor && casts; i++) {
		target.tensor[i].dtype = cast_of(target.tensor[i].dtype);
		target.tensor[i].elem_bytes = dtype_bytes(target.tensor[i].dtype);
	}
	assert_ok_err(target_ranks(&target, 0, target_world(&target), &t, &err), &err);
	*ret = t;
	table_free(&target);
}

static void check_cell(const struct world *w, const struct model *m, const struct walk *at,
		       uint32_t dtype, const uint8_t *mem)
{
	uint64_t want = 0, got = 0;

	memcpy(&got, mem + at->off, dtype_bytes(dtype));
	if (dtype == m->dtype)
		want = m->v[at->g];
	else
		cast(m->dtype, &m->v[at->g], dtype, &want, 1);
	if (got != want)
		fail_msg("%s\n%s, element %" PRIu64 ": %" PRIx64 ", should be %" PRIx64, w->text,
			 m->name, at->g, got, want);
}

static void check_moved(const struct world *w, const struct table *dst, uint8_t *const *mem)
{
	for (uint32_t i = 0; i < w->n; i++) {
		uint32_t id;

		if (w->m[i].gone)
			continue;
		id = tensor_of(dst, w->m[i].name);
		assert_int_not_equal(id, TABLE_NONE);
		for (uint32_t j = dst->first[id]; j < dst->first[id + 1]; j++) {
			struct walk at = { .t = dst, .p = &dst->piece[j] };

			while (walk_next(&at))
				check_cell(w, &w->m[i], &at, dst->tensor[id].dtype,
					   mem[at.p->place]);
		}
	}
}

TEST(whatever_the_view_any_mesh_gets_its_elements_also_of_other_types)
{
	naive_seed(__func__);
	for (uint32_t k = 0; k < unit_scaled(CASES); k++) {
		struct plan_opts opts = { .casts = k % 2 };
		struct world *w = world_make();
		const void *src[PLACES];
		uint8_t *mem[16] = { 0 };
		struct table view, dst;
		struct ckpt_err err = { 0 };
		struct plan p;

		for (uint32_t n = naive_below(3) + 1; n > 0; n--)
			apply_random(w);
		view_of(&w->t, w->text, &view);
		wanted(&view, opts.casts, &dst);
		for (uint32_t i = 0; i < PLACES; i++)
			src[i] = w->mem[i];
		for (uint32_t i = 0; i < dst.nplace; i++)
			assert_non_null(mem[i] = calloc(dst.place[i].bytes + 1, 1));
		if (plan_make(&view, &dst, &opts, &p, NULL, &err))
			fail_msg("%s\n%s", w->text, err.msg);
		assert_int_equal(move_copy(&p, src, (void *const *)mem, NULL, NULL), 0);
		check_moved(w, &dst, mem);
		for (uint32_t i = 0; i < dst.nplace; i++)
			free(mem[i]);
		plan_free(&p);
		table_free(&dst);
		table_free(&view);
		world_free(w);
	}
}

/* --- pending reductions --- */

TEST(operands_are_turned_and_cut_before_they_are_reduced)
{
	const uint64_t shape[] = { 3, 4 };
	float operand[2][12], got[2][6];
	const void *src[] = { operand[0], operand[1] };
	void *dst[] = { got };
	struct table t = { 0 }, view, target, rank;
	struct table_tensor x = ROW(.component = "m", .name = "w", .of = "", .dtype = CKPT_F32,
				    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct layout l;
	struct mesh m;
	struct plan p;

	assert_int_equal(mesh_parse("tp=2", &a, &m, &err), 0);
	assert_int_equal(table_add_mesh(&t, &m, NULL, &err), 0);
	assert_int_equal(layout_parse("Partial(sum, keep)@tp", &m, &a, &l, &err), 0);
	assert_int_equal(table_add_layout(&t, &l, &x.layout, &err), 0);
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	for (uint32_t r = 0; r < 2; r++) {
		struct table_piece y = { .rank = r, .place = r };

		assert_ok(
			table_add_place(&t, &(struct table_place){ "memory", r, 48 }, NULL, &err));
		assert_int_equal(indexset_box(2, (const uint64_t[]){ 0, 0 }, shape, &a, &y.set), 0);
		assert_int_equal(table_add_piece(&t, &y, &err), 0);
		for (uint32_t i = 0; i < 12; i++)
			operand[r][i] = (float)(r ? 100 * i : i);
	}
	assert_int_equal(table_seal(&t, &err), 0);
	view_of(&t, "transpose m/w dims 1,0\nsplit m/w dim 0 -> m/a m/b\n", &view);
	assert_int_equal(target_make(&view, "x=1", NULL, 0, &target, NULL, NULL, &err), 0);
	assert_int_equal(target_rank(&target, 0, &rank, &err), 0);
	assert_ok_err(plan_make(&view, &rank, NULL, &p, NULL, &err), &err);
	/* Each tensor lies on a multiple of 64 bytes. */
	dst[0] = calloc(1, rank.place[0].bytes);
	assert_int_equal(move_copy(&p, src, dst, NULL, NULL), 0);
	memcpy(got[0], dst[0], 24);
	memcpy(got[1], (uint8_t *)dst[0] + 64, 24);
	for (uint32_t i = 0; i < 4; i++)
		for (uint32_t j = 0; j < 3; j++)
			assert_true(got[i / 2][i % 2 * 3 + j] == (float)(101 * (4 * j + i)));
	free(dst[0]);
	plan_free(&p);
	table_free(&rank);
	table_free(&target);
	table_free(&view);
	table_free(&t);
	arena_free(&a);
}

/* --- from files --- */

#define STEP 5

/* All of the tensor of the table is element number `of` of a tensor of the sample. */
typedef uint64_t number_fn(const uint64_t *shape, uint64_t g);

static uint64_t turned(const uint64_t *shape, uint64_t g) /* shape: of the view */
{
	return g % shape[1] * shape[0] + g / shape[1];
}

static uint64_t second_columns(const uint64_t *shape, uint64_t g) /* behind one column */
{
	return g / shape[1] * (shape[1] + 1) + g % shape[1] + 1;
}

static void check_tensor(uint64_t seed, const struct table *sample, const char *was,
			 const struct table *dst, const char *name, number_fn *number,
			 const uint8_t *mem)
{
	uint32_t old = tensor_of(sample, was), id = tensor_of(dst, name);
	const struct table_tensor *x = &dst->tensor[id];
	const struct table_piece *p = &dst->piece[dst->first[id]];

	assert_int_not_equal(old, TABLE_NONE);
	assert_int_not_equal(id, TABLE_NONE);
	assert_int_equal(p->set.numel, x->numel);
	for (uint64_t g = 0; g < x->numel; g++) {
		uint8_t want[16];

		sample_truth(seed, &sample->tensor[old], number ? number(x->shape, g) : g, STEP,
			     want);
		if (memcmp(mem + p->off + g * x->elem_bytes, want, x->elem_bytes) != 0)
			fail_msg("%s: element %" PRIu64, name, g);
	}
}

static int read_all(struct disk *d, struct checkpoint *c, const struct table *dst, void *mem,
		    struct ckpt_err *err)
{
	struct move_files f;
	struct plan p;
	int rc;

	assert_int_equal(plan_make(&c->table, dst, NULL, &p, NULL, err), 0);
	assert_int_equal(move_open(&io_ops_posix, d->fd, c, false, IO_AUTO, &f, err), 0);
	rc = move_read(&p, &f, &mem, NULL, NULL, err);
	move_close(&f);
	plan_free(&p);
	return rc;
}

/* Flip a byte in the middle of a part. */
static void damage(struct disk *d, const char *name)
{
	int fd = openat(d->fd, name, O_RDWR | O_CLOEXEC);
	struct stat st;
	uint8_t b;

	assert_true(fd >= 0 && !fstat(fd, &st));
	assert_int_equal(pread(fd, &b, 1, st.st_size / 2), 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, st.st_size / 2), 1);
	close(fd);
}

TEST(files_are_read_through_a_view_and_damage_is_found)
{
	const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_AUTO };
	uint64_t rng = draw_seed(__func__), seed = draw(&rng);
	struct table view, target, dst;
	struct checkpoint *c, seen;
	struct ckpt_err err = { 0 };
	struct disk d;
	struct job job;
	uint8_t *mem;
	char first[64];

	disk_make(&d);
	job_make(&job, "fsdp=2,tp=2", seed, 1);
	job_stage(&job, STEP, 0);
	job_write(&job, &d, &how);
	c = disk_open(&d);
	view_of(&c->table,
		"transpose model/layers.*.wq dims 1,0 -> net/{1}.q\n"
		"rename optim/embed.weight.* -> net/embed.{1}\n"
		"split model/embed.weight dim 1 sizes 1,191 -> net/c0 net/rest\n",
		&view);
	seen = *c;
	seen.table = view;
	assert_int_equal(target_make(&view, "x=1", NULL, 0, &target, NULL, NULL, &err), 0);
	assert_int_equal(target_rank(&target, 0, &dst, &err), 0);
	mem = calloc(1, dst.place[0].bytes);
	assert_non_null(mem);
	assert_ok_err(read_all(&d, &seen, &dst, mem, &err), &err);
	check_tensor(seed, &c->table, "model/layers.0.wq", &dst, "net/0.q", turned, mem);
	check_tensor(seed, &c->table, "model/layers.1.wq", &dst, "net/1.q", turned, mem);
	check_tensor(seed, &c->table, "model/embed.weight", &dst, "net/rest", second_columns, mem);
	check_tensor(seed, &c->table, "optim/embed.weight.exp_avg", &dst, "net/embed.exp_avg", NULL,
		     mem);
	snprintf(first, sizeof first, "%s", c->file[0].name);
	damage(&d, first);
	assert_int_equal(read_all(&d, &seen, &dst, mem, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, first));
	free(mem);
	table_free(&dst);
	table_free(&target);
	table_free(&view);
	checkpoint_free(c);
	job_free(&job);
	disk_free(&d);
}
