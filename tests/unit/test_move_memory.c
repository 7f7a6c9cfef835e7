/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_memory.c - there is no memory. Each thing that ckpt/move does is done again and
 * again, its first, second, third, ... allocation failing, once or with all after it, until it is
 * done without a failure. Each time it either says -ENOMEM, in a sentence, or does what it was
 * asked to; under AddressSanitizer it also leaks nothing.
 */
#include "tests/lib/without_memory.h"
#include "tests/lib/each_arena.h"
#include "tests/lib/each_pages.h"
#include "daemon/part_file.h"
#include "tests/unit/test_move_partial.h"
#include "tests/unit/test_move_forged.h"
#include "tests/lib/memdir.h"
#include "tests/lib/memdir_io.h"

static struct memdir dir;
static struct io_ops ops;
static struct sample rank0;
static const struct memdir_opts opts = ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1,
					   .step = 12, .generation = 3, .seq = 7);

static int setup(void **state)
{
	(void)state;
	memdir_checkpoint(&dir, &opts);
	ops = memdir_io(&dir);
	return sample_make("fsdp=3", 0, opts.seed, opts.scale, &rank0);
}

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&dir);
	sample_free(&rank0);
	return 0;
}

/* --- writing a part --- */

struct writing {
	struct table t;
	void *raw;
	struct native_part part;
	struct native_info info;
};

static int act_write_part(void *arg, struct ckpt_err *err)
{
	struct writing *w = arg;
	const struct part_file_opts how = { .ops = &ops, .engine = IO_INLINE };

	return part_file_write(&how, memdir_io_open(&dir, 0, "out", 0, 0), w->raw, &w->t, &w->info,
			       0, &w->part, err);
}

TEST(a_part_is_written_or_there_is_no_memory)
{
	struct writing w = {
		.info = { .uuid = { 1 }, .job = "demo", .step = 3, .generation = 1, .world = 1 }
	};
	struct sample one;
	uint8_t *room;

	assert_int_equal(sample_make("fsdp=1", 0, opts.seed, opts.scale, &one), 0);
	assert_int_equal(native_part_table(&one.decl, 0, &w.t, NULL, NULL), 0);
	w.raw = aligned_alloc(4096, align_up(w.t.place[0].bytes, 4096));
	room = calloc(1, native_part_bytes_max(&w.t, 0));
	assert_true(w.raw && room);
	memset(w.raw, 0, align_up(w.t.place[0].bytes, 4096));
	(void)memdir_add(&dir, "out", room, native_part_bytes_max(&w.t, 0));
	without_memory(2, "write_part", act_write_part, &w);
	memdir_remove(&dir, "out");
	free(room);
	free(w.raw);
	table_free(&w.t);
	sample_free(&one);
}

/* --- moving --- */

struct moving {
	struct checkpoint *c;
	struct plan p;
	uint8_t *want;
};

static int act_read(void *arg, struct ckpt_err *err)
{
	struct moving *m = arg;
	struct move_files f;
	void *base = rank0.mem;
	int r;

	memset(rank0.mem, 0, rank0.mem_bytes);
	r = move_open(&ops, 0, m->c, false, IO_INLINE, &f, err);
	if (r < 0)
		return r;
	r = move_read(&m->p, &f, &base, NULL, NULL, err);
	move_close(&f);
	if (r == 0)
		assert_memory_equal(rank0.mem, m->want, rank0.mem_bytes);
	return r;
}

static int act_verify(void *arg, struct ckpt_err *err)
{
	struct moving *m = arg;
	struct move_files f;
	uint64_t bytes;
	int r = move_open(&ops, 0, m->c, false, IO_INLINE, &f, err);

	if (r < 0)
		return r;
	r = move_verify(&f, NULL, NULL, NULL, NULL, &bytes, err);
	move_close(&f);
	return r;
}

static int act_verify_gaps(void *arg, struct ckpt_err *err)
{
	struct move_verified v;
	int r = forged_verify(arg, NULL, NULL, NULL, &v, err);

	if (r == 0)
		assert_int_equal(v.bytes, v.all_bytes);
	return r;
}

static int window_look(void *arg, const struct window *w, const uint8_t *buf)
{
	(void)w;
	(void)buf;
	++*(uint64_t *)arg;
	return 0;
}

static int window_refuse(void *arg, const struct window *w, const uint8_t *buf)
{
	(void)arg;
	(void)w;
	(void)buf;
	return 77;
}

static int windows_run(void *arg, uint64_t skip, move_window_fn *fn, uint64_t *ret_n,
		       struct ckpt_err *err)
{
	struct moving *m = arg;
	struct move_files f;
	int r = move_open(&ops, 0, m->c, false, IO_INLINE, &f, err);

	*ret_n = 0;
	if (r < 0)
		return r;
	r = move_windows(&f, &rank0.decl, 40 << 20, skip, fn, ret_n, NULL, NULL, err);
	move_close(&f);
	return r;
}

static int act_windows(void *arg, struct ckpt_err *err)
{
	uint64_t n;
	int r = windows_run(arg, 0, window_look, &n, err);

	assert_true(r < 0 || n > 0);
	return r;
}

static int act_windows_skipped(void *arg, struct ckpt_err *err)
{
	uint64_t n;
	int r = windows_run(arg, 1000, window_look, &n, err);

	assert_int_equal(n, 0);
	return r;
}

/* Also without memory for a second thread. */
static int act_windows_refused(void *arg, struct ckpt_err *err)
{
	uint64_t n;
	int r = windows_run(arg, 0, window_refuse, &n, err);

	assert_int_not_equal(r, 0);
	return r == 77 ? 0 : r;
}

TEST(bytes_are_moved_or_there_is_no_memory)
{
	struct source_dir d = memdir_source(&dir);
	struct moving m = { 0 };
	struct ckpt_err err;

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &d }, &m.c, &err), &err);
	assert_ok_err(plan_make(&m.c->table, &rank0.decl, NULL, &m.p, NULL, &err), &err);
	m.want = malloc(rank0.mem_bytes);
	assert_non_null(m.want);
	{
		struct move_files f;
		void *base = rank0.mem;

		memset(rank0.mem, 0, rank0.mem_bytes);
		assert_int_equal(move_open(&ops, 0, m.c, false, IO_INLINE, &f, &err), 0);
		assert_int_equal(move_read(&m.p, &f, &base, NULL, NULL, &err), 0);
		move_close(&f);
		memcpy(m.want, rank0.mem, rank0.mem_bytes);
	}
	without_memory(2, "read", act_read, &m);
	without_memory(2, "verify", act_verify, &m);
	without_memory(2, "windows", act_windows, &m);
	without_memory(2, "windows that are passed by", act_windows_skipped, &m);
	without_memory(2, "windows that are refused", act_windows_refused, &m);
	free(m.want);
	plan_free(&m.p);
	checkpoint_free(m.c);
}

/* A byte that is wrong in each chunk: there is memory for what is to be said of it, or there is
 * not. */
static int act_read_damaged(void *arg, struct ckpt_err *err)
{
	int r = act_read(arg, err);

	assert_true(r < 0);
	if (r == -EBADMSG)
		assert_true(strstr(err->msg, "is damaged") ||
			    strstr(err->msg, ".part cannot be read"));
	return r == -EBADMSG ? 0 : r;
}

static int act_verify_damaged(void *arg, struct ckpt_err *err)
{
	int r = act_verify(arg, err);

	assert_true(r < 0);
	if (r == -EBADMSG)
		assert_non_null(strstr(err->msg, "faults in the data"));
	return r == -EBADMSG ? 0 : r;
}

static int act_windows_damaged(void *arg, struct ckpt_err *err)
{
	uint64_t n;
	int r = windows_run(arg, 0, window_look, &n, err);

	assert_true(r < 0);
	assert_int_equal(n, 0);
	return r == -EBADMSG ? 0 : r;
}

TEST(damage_is_told_or_there_is_no_memory)
{
	struct source_dir d = memdir_source(&dir);
	struct moving m = { 0 };
	struct ckpt_err err;

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &d }, &m.c, &err), &err);
	assert_ok_err(plan_make(&m.c->table, &rank0.decl, NULL, &m.p, NULL, &err), &err);
	for (uint32_t i = 0; i < m.c->nfile; i++)
		for (uint64_t k = 0; k < m.c->file[i].nchunk; k++)
			memdir_find(&dir, m.c->file[i].name)->bytes[m.c->file[i].chunk[k].off] ^= 1;
	without_memory(2, "read what is damaged", act_read_damaged, &m);
	without_memory(2, "verify what is damaged", act_verify_damaged, &m);
	without_memory(2, "windows of what is damaged", act_windows_damaged, &m);
	for (uint32_t i = 0; i < m.c->nfile; i++)
		for (uint64_t k = 0; k < m.c->file[i].nchunk; k++)
			memdir_find(&dir, m.c->file[i].name)->bytes[m.c->file[i].chunk[k].off] ^= 1;
	plan_free(&m.p);
	checkpoint_free(m.c);
}

/* Bytes that no chunk has are read as well, wherever they are. */
TEST(gaps_are_looked_at_or_there_is_no_memory)
{
	static const uint64_t off[3] = { 20 * MIB, 50 * MIB, 50 * MIB + FORGED_BYTES };
	static struct forged x;

	forged_begin(&x, 3, off);
	forged_hold(&x, "w", CKPT_U8, 1, 3 * FORGED_BYTES, 0);
	assert_int_equal(table_seal(&x.c.table, NULL), 0);
	without_memory(2, "verify with gaps", act_verify_gaps, &x);
	forged_free(&x);
}

/* --- what is made of operands --- */

struct summing {
	struct job from, to;
	struct table staged;
	struct plan copy, read;
	struct disk d;
	struct checkpoint *c;
};

/* Each of two ranks has held 1, 2, 3, ... of the sum. */
static void sums_check(struct summing *x)
{
	for (uint32_t t = 0; t < 2; t++) {
		uint64_t n;
		const uint8_t *p = rank_elements(&x->to.rank[0], t, &n);
		uint32_t dtype = x->to.rank[0].decl.tensor[t].dtype;

		assert_int_equal(n, 100);
		for (uint64_t i = 0; i < n; i++)
			assert_int_equal(number_get(dtype, p + i * dtype_bytes(dtype)),
					 2 * (i + 1));
	}
}

static int act_sum_copy(void *arg, struct ckpt_err *err)
{
	struct summing *x = arg;
	int r;

	model_clear(&x->to);
	r = move_copy(&x->copy, (const void *const *)x->from.raw, x->to.base, NULL, NULL);
	if (!r)
		sums_check(x);
	return r ? ckpt_error(err, r, "out of memory") : 0;
}

static int act_sum_read(void *arg, struct ckpt_err *err)
{
	struct summing *x = arg;
	struct move_files f;
	int r = move_open(&io_ops_posix, x->d.fd, x->c, false, IO_INLINE, &f, err);

	if (r < 0)
		return r;
	model_clear(&x->to);
	r = move_read(&x->read, &f, x->to.base, NULL, NULL, err);
	move_close(&f);
	if (!r)
		sums_check(x);
	return r;
}

static int act_sum_windows(void *arg, struct ckpt_err *err)
{
	struct summing *x = arg;
	struct move_files f;
	uint64_t n = 0;
	int r = move_open(&io_ops_posix, x->d.fd, x->c, false, IO_INLINE, &f, err);

	if (r < 0)
		return r;
	r = move_windows(&f, &x->to.all, 40 << 20, 0, window_look, &n, NULL, NULL, err);
	move_close(&f);
	if (!r)
		assert_true(n > 0);
	return r;
}

static void sums_model(struct model *m, bool pending, bool cast)
{
	model_mesh(m, 1, (const char *const[]){ "dp" }, (uint32_t[]){ pending ? 2 : 1 });
	for (m->n = 0; m->n < 2; m->n++) {
		struct held *h = &m->tensor[m->n];

		*h = (struct held)ROW(.dtype = cast && m->n ? CKPT_F32 : CKPT_BF16, .ndim = 1,
				      .shape = { 100 });
		snprintf(h->name, sizeof h->name, "t%u", m->n);
		if (pending)
			h->place[h->nplace++] = (struct ckpt_placement){
				.how = CKPT_PARTIAL, .reduce = CKPT_SUM, .flags = CKPT_KEEP_PARTIAL
			};
	}
}

TEST(sums_are_made_or_there_is_no_memory)
{
	const struct disk_how how = { .ops = &io_ops_posix, .engine = IO_INLINE };
	const struct plan_opts casts = { .casts = true };
	struct summing x = { .c = NULL };
	struct model src, dst;
	struct ckpt_err err;

	for (int cast = 0; cast < 2; cast++) {
		disk_make(&x.d);
		sums_model(&src, true, false);
		sums_model(&dst, false, cast);
		model_job(&src, &x.from);
		model_job(&dst, &x.to);
		for (uint32_t r = 0; r < 2; r++)
			for (uint32_t t = 0; t < 2; t++) {
				uint64_t n;
				uint8_t *p = rank_elements(&x.from.rank[r], t, &n);

				for (uint64_t i = 0; i < n; i++)
					number_put(CKPT_BF16, p + 2 * i, (int64_t)i + 1);
			}
		model_stage(&x.from);
		model_staged(&x.from, &x.staged);
		job_write(&x.from, &x.d, &how);
		x.c = disk_open(&x.d);
		assert_ok_err(plan_make(&x.staged, &x.to.all, &casts, &x.copy, NULL, &err), &err);
		assert_ok_err(plan_make(&x.c->table, &x.to.all, &casts, &x.read, NULL, &err), &err);
		assert_true(x.copy.reduced && x.read.reduced);
		without_memory(2, "sum and copy", act_sum_copy, &x);
		without_memory(2, "sum and read", act_sum_read, &x);
		if (!cast)
			without_memory(2, "sum in windows", act_sum_windows, &x);
		plan_free(&x.copy);
		plan_free(&x.read);
		table_free(&x.staged);
		checkpoint_free(x.c);
		model_job_free(&x.from);
		model_job_free(&x.to);
		disk_free(&x.d);
	}
}

UNIT(.group_setup = setup, .group_teardown = teardown);
