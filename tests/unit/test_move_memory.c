/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_memory.c - there is no memory. Each thing that ckpt/move does is done again and
 * again, its first, second, third, ... allocation failing, once or with all after it, until it is done
 * without a failure. Each time it either says -ENOMEM, in a sentence, or does what it was asked to;
 * under AddressSanitizer it also leaks nothing.
 */
#include "tests/lib/no_memory.h"
#include "tests/lib/each_arena.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "ckpt/move/move.h"
#include "tests/lib/sample.c"
#include "tests/lib/memdir.c"
#include "tests/lib/memdir_io.h"

#define TRIES_MAX 20000

static struct memdir dir;
static struct io_ops ops;
static struct sample rank0;
static const struct memdir_opts opts = { .mesh = "fsdp=2",
					 .job = "demo",
					 .seed = 5,
					 .scale = 1,
					 .step = 12,
					 .generation = 3,
					 .seq = 7 };

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

/* Do it with failing allocations until none fails. */
static void without_memory(const char *what, int (*act)(void *arg, struct ckpt_err *err), void *arg)
{
	for (int sticky = 0; sticky < 2; sticky++) {
		uint32_t n = 0, refused = 0;

		for (;; n++) {
			struct ckpt_err err = { 0 };
			uint64_t failed;
			int r;

			assert_true(n < TRIES_MAX);
			no_memory_from(n, sticky);
			r = act(arg, &err);
			failed = no_memory_end();
			if (r != 0 && (!failed || r != -ENOMEM))
				fail_msg("%s, allocation %u fails: %d, %s", what, n, r, err.msg);
			if (r != 0 && (err.code != r || !strstr(err.msg, "memory")))
				fail_msg("%s, allocation %u fails: %d, but it says %d: %s", what, n,
					 r, err.code, err.msg);
			refused += r != 0;
			if (!failed)
				break;
		}
		printf("# %s: %u allocations, refused %u times\n", what, n, refused);
		assert_true(refused > 0);
	}
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
	const struct move_write how = { .ops = &ops, .engine = IO_INLINE };

	return move_write_part(&how, memdir_io_open(&dir, 0, "out", 0, 0), w->raw, &w->t, &w->info,
			       0, &w->part, err);
}

static void a_part_is_written_or_there_is_no_memory(void **state)
{
	struct writing w = {
		.info = { .uuid = { 1 }, .job = "demo", .step = 3, .generation = 1, .world = 1 }
	};
	struct sample one;
	uint8_t *room;

	(void)state;
	assert_int_equal(sample_make("fsdp=1", 0, opts.seed, opts.scale, &one), 0);
	assert_int_equal(native_part_table(&one.decl, 0, &w.t, NULL, NULL), 0);
	w.raw = aligned_alloc(4096, align_up(w.t.place[0].bytes, 4096));
	room = calloc(1, move_part_bytes_max(&w.t));
	assert_true(w.raw && room);
	memset(w.raw, 0, align_up(w.t.place[0].bytes, 4096));
	(void)memdir_add(&dir, "out", room, move_part_bytes_max(&w.t));
	without_memory("write_part", act_write_part, &w);
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
	char why[200];
	int r;

	memset(rank0.mem, 0, rank0.mem_bytes);
	r = move_open(&ops, 0, m->c, false, IO_INLINE, &f, err);
	if (r < 0)
		return r;
	r = move_read(&m->p, &f, &base, NULL, NULL, err);
	move_close(&f);
	(void)why;
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

static int window_look(void *arg, const struct window *w, const uint8_t *buf)
{
	(void)w;
	(void)buf;
	++*(uint64_t *)arg;
	return 0;
}

static int act_windows(void *arg, struct ckpt_err *err)
{
	struct moving *m = arg;
	struct move_files f;
	uint64_t n = 0;
	int r = move_open(&ops, 0, m->c, false, IO_INLINE, &f, err);

	if (r < 0)
		return r;
	r = move_windows(&f, &rank0.decl, 40 << 20, 0, window_look, &n, NULL, NULL, err);
	move_close(&f);
	if (r == 0)
		assert_true(n > 0);
	return r;
}

static void bytes_are_moved_or_there_is_no_memory(void **state)
{
	struct source_dir d = memdir_source(&dir);
	struct moving m = { 0 };
	struct ckpt_err err;

	(void)state;
	if (format_native.open(&d, &m.c, NULL, NULL, &err) < 0 ||
	    plan_make(&m.c->table, &rank0.decl, NULL, &m.p, NULL, &err) < 0)
		fail_msg("%s", err.msg);
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
	without_memory("read", act_read, &m);
	without_memory("verify", act_verify, &m);
	without_memory("windows", act_windows, &m);
	free(m.want);
	plan_free(&m.p);
	checkpoint_free(m.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_part_is_written_or_there_is_no_memory),
		cmocka_unit_test(bytes_are_moved_or_there_is_no_memory),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
