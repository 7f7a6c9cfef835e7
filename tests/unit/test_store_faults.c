/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_faults.c - the store where calls fail and memory runs out: each scene of tests/crash
 * (saving, going back, labels and pruning, sweeping, repair) with each of its system calls failing
 * in every way of tests/lib/io_faults.h, and each of its allocations failing once. What was
 * promised before is there, what was told done is done, nobody takes a failure for damage, and no
 * descriptor is left.
 *
 * FAULT_STEP=1 looks at every call (make torture); without it, at some.
 */
#include "tests/crash/crash_impl.h"
#include "tests/lib/libc.h"
#include "tests/lib/memfs.h"
#include "tests/lib/unit.h"
#include "formats/native/native.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEP 11
#else
#define STEP 4
#endif

/* --- scenes --- */

static uint64_t step_given(void)
{
	const char *text = getenv("FAULT_STEP");

	return text && *text ? strtoull(text, NULL, 0) : STEP * (1000 / unit_scaled(1000));
}

/* kind NULL: memory. */
static bool scene_fails(const struct scene *c, const struct io_fault_kind *kind, uint64_t nth)
{
	char why[CRASH_WHY] = "", inner[CRASH_WHY] = "";
	struct power w = { .why = why };
	struct io_faults f;
	uint32_t files;
	struct place p;
	bool hit;

	place_make(&p);
	io_faults_init(&f, &io_ops_posix);
	if (c->base(p.fd, &w))
		fail_msg("%s: its beginning cannot be made", c->name);
	power_promise(&f, &w);
	files = open_files();
	if (kind)
		io_faults_plan(&f, kind, nth);
	else
		no_memory_from(nth - 1, false);
	c->live(&f, p.fd, &w);
	hit = kind ? io_faults_hit(&f) : no_memory_end() > 0;
	if (files != open_files())
		(void)snprintf(inner, sizeof inner, "descriptors leak");
	else if (kind && kind->harmless && !c->saves && !w.done)
		(void)snprintf(inner, sizeof inner, "it should have gone on");
	else if (!c->check(&io_ops_posix, p.fd, &w.y, inner))
		inner[0] = 0;
	story_free(&w.y);
	place_remove(&p);
	if (inner[0])
		fail_msg("%s, %s at %s %llu: %s", c->name, kind ? kind->name : "no memory",
			 kind ? "call" : "allocation", (unsigned long long)nth, inner);
	return hit;
}

static void every_call_may_fail(void **state)
{
	const struct scene *c = *state;
	uint64_t by = step_given(), injections = 0, begun = now_ns();

	/* it brings a fault of its own, and would lose it to these */
	if (c->faulted) {
		print_message("skipped: this scene brings a fault of its own and would lose it\n");
		skip();
	}
	for (uint32_t k = 0; k < io_fault_kinds_n; k++)
		for (uint64_t nth = 1 + k % by; scene_fails(c, &io_fault_kinds[k], nth); nth += by)
			injections++;
	print_message("%s: %llu injections, %llu ms\n", c->name, (unsigned long long)injections,
		      (unsigned long long)((now_ns() - begun) / NS_PER_MS));
	assert_true(injections > unit_scaled(10));
}

/* Scenes whose own code allocates nothing, or looks at what it gets. */
TEST(every_allocation_of_keeping_house_may_fail)
{
	uint64_t injections = 0, by = 1000 / unit_scaled(1000);

	for (uint32_t i = 0; i < scenes_n; i++) {
		if (scenes[i].saves)
			continue;
		for (uint64_t nth = 1; scene_fails(&scenes[i], NULL, nth); nth += by)
			injections++;
	}
	print_message("%llu injections\n", (unsigned long long)injections);
	assert_true(injections > unit_scaled(50));
}

/* --- a look, an opened checkpoint, a commit --- */

static uint64_t look_sum(const struct store_step *st, uint32_t n)
{
	uint64_t h = n;

	for (uint32_t i = 0; i < n; i++) {
		h = memfs_mix(h, st[i].step);
		h = memfs_mix(h, st[i].seq);
		h = memfs_mix(h, (uint64_t)st[i].state);
	}
	return h;
}

/* What it says is the truth, or that it has no memory. */
static int looks(struct store *s, const char *dir, uint64_t *ret_sum)
{
	struct ckpt_err err = { 0 };
	struct store_step *st = NULL;
	struct store_label *m = NULL;
	struct checkpoint *c = NULL;
	struct source_dir source;
	uint32_t n = 0, nm = 0;
	int fd = -1, r = store_scan(s, true, &st, &n, &err);

	*ret_sum = r ? 0 : look_sum(st, n);
	if (!r)
		r = store_labels(s, &m, &nm, &err);
	if (!r)
		r = store_step_open(s, dir, &fd, &err);
	if (!r)
		r = source_make(s->ops, fd, NULL, 0, &source);
	if (!r) {
		r = format_native.open(&(struct format_open){ .dir = &source }, &c, &err);
		source_end(&source);
	}
	if (!r) {
		*ret_sum = memfs_mix(*ret_sum, c->step);
		*ret_sum = memfs_mix(*ret_sum, nm);
		checkpoint_free(c);
	}
	if (fd >= 0)
		(void)s->ops->close(s->ops->ctx, fd);
	free(st);
	free(m);
	return r;
}

TEST(a_look_without_memory_says_so_and_nothing_else)
{
	const char *dir = "step-000000000020";
	char why[CRASH_WHY];
	struct ckpt_err err = { 0 };
	uint64_t good, sum, n = 0;
	struct store_step *st;
	struct store *s;
	struct place p;
	struct story y;
	uint32_t files, nst;
	bool hit = true;

	place_make(&p);
	assert_int_equal(story_base(p.fd, &y, 3, why), 0);
	assert_int_equal(
		store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, false, &s, &err), 0);
	assert_int_equal(store_scan(s, false, &st, &nst, &err), 0);
	assert_int_equal(store_label_set(s, &st[1], LABEL_HOLD, "me", 0, NULL, &err), 0);
	free(st);
	assert_int_equal(looks(s, dir, &good), 0);
	files = open_files();
	while (hit) {
		int r;

		no_memory_from(n++, false);
		r = looks(s, dir, &sum);
		hit = no_memory_end() > 0;
		if (r && r != -ENOMEM)
			fail_msg("allocation %llu: %d", (unsigned long long)n, r);
		if (!r && sum != good)
			fail_msg("allocation %llu: another answer", (unsigned long long)n);
		assert_int_equal(open_files(), files);
	}
	print_message("%llu injections\n", (unsigned long long)n - 1);
	assert_true(n > 20);
	store_close(s);
	story_free(&y);
	place_remove(&p);
}

/* 15 after 10 where 20 and 30 are: it happens, or nothing does. */
TEST(a_commit_without_memory_happens_or_not)
{
	bool hit = true;
	uint64_t n = 0;

	while (hit) {
		char why[CRASH_WHY] = "";
		struct ckpt_err err = { 0 };
		struct store_txn *x;
		struct store *s;
		struct place p;
		struct story y;
		uint64_t generation;
		int r;

		place_make(&p);
		assert_int_equal(story_base(p.fd, &y, 3, why), 0);
		assert_int_equal(
			store_open(&io_ops_posix, &format_native, p.fd, CRASH_JOB, true, &s, &err),
			0);
		assert_int_equal(store_claim(s, 0, false, &generation, &err), 0);
		y.generation = generation;
		y.rewind = 10;
		assert_int_equal(crash_begin(s, 15, 4, &x, &y.step[3], &err), 0);
		no_memory_from(n++, false);
		r = crash_commit(x, &y.step[3], 10, &err);
		hit = no_memory_end() > 0;
		if (r && r != -ENOMEM)
			fail_msg("allocation %llu: %s", (unsigned long long)n, err.msg);
		if (r)
			assert_true(err.msg[0]);
		y.acked[3] = !r;
		y.n = 4;
		store_close(s);
		if (story_restart(&io_ops_posix, p.fd, &y, false, why))
			fail_msg("allocation %llu: %s", (unsigned long long)n, why);
		story_free(&y);
		place_remove(&p);
	}
	print_message("%llu injections\n", (unsigned long long)n - 1);
	assert_true(n > 5);
}

static const struct CMUnitTest *cases(void)
{
	static struct CMUnitTest tests[16];

	assert(scenes_n < ARRAY_LEN(tests));
	for (uint32_t i = 0; i < scenes_n; i++)
		tests[i] = (struct CMUnitTest){ .name = scenes[i].name,
						.test_func = every_call_may_fail,
						.initial_state = (void *)&scenes[i] };
	return tests;
}
UNIT(.cases = cases);
