/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_waiting.c - which of the steps that wait for a slow disk are written
 * (daemon/waiting.h). The first step that is written waits at a gate; what is marked meanwhile is a
 * row of a table. The library and the daemon are in one process.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"

/*
 * A character for each step that is marked while the disk is busy, all of them guarded:
 *	.	as persist_every says	P	CKPT_PERSIST		S	CKPT_STAGE_ONLY
 *	F	CKPT_FINAL		T	an operator triggers it
 *	D	an operator drains what is there first
 * What becomes of it, when the disk has caught up:
 *	c	committed	k	skipped
 *	s	it stayed in memory: persist_every, or its mark, does not select it
 *	t	thinned: ckpt_wait names the step in its place, status counts it
 *	h	it was in the place of another one, and gave its turn away itself
 */
static const struct row {
	const char *what;
	uint32_t slots, every;
	const char *marks, *become;
} rows[] = {
	{ "with three slots the newest waits, and every mark is taken", 3, 1, "......", "cttttc" },
	{ "with four as well", 4, 1, "......", "cttttc" },
	{ "with two slots there is none to spare", 2, 1, "....", "cckk" },
	{ "with three, steps that persist_every leaves out wait in the place of the others", 3, 3,
	  "..........", "sscssthhtc" },
	{ "with four, what persist_every selects is written", 4, 3, "..........", "sscsstsscs" },
	{ "what is marked with CKPT_PERSIST is written", 4, 1, ".P....", "cctttc" },
	{ "so is the final step", 4, 1, ".F...", "ccttc" },
	{ "and what an operator wants", 4, 1, ".T...", "ccttc" },
	{ "or drains", 4, 1, "..D...", "cctttc" },
	{ "steps that keep their turn take the slots", 3, 1, ".PP.", "ccck" },
	{ "CKPT_STAGE_ONLY takes no turn", 3, 1, "..S..", "ccskk" },
	{ "and is passed by", 4, 1, "..S.", "ctsc" },
};

static struct asker drainer; /* of the case that runs: its answer comes when all is written */

static void ordered(char c)
{
	struct wire_triggered t;
	struct wire_refuse no;
	struct wire_plain q = { 0 };
	struct wire_drain m;

	if (c == 'T')
		assert_int_equal(ask_trigger(&A, "job", 0, &t), WIRE_TRIGGERED);
	if (c != 'D')
		return;
	m = (struct wire_drain){ .job = ask_id(&A, "job") };
	ask_open(&drainer, H.socket);
	ask_send(&drainer, &m, WIRE_DRAIN, sizeof m);
	/* It has come: until its answer has, no other question is answered. */
	assert_int_equal(ask(&drainer, &q, WIRE_STATUS, sizeof q, &no, sizeof no), WIRE_REFUSE);
}

static uint32_t flags_of(char c)
{
	return c == 'P' ? CKPT_PERSIST : c == 'S' ? CKPT_STAGE_ONLY : c == 'F' ? CKPT_FINAL : 0;
}

/* What became of the step, as the library says it. */
static char fate(uint64_t step)
{
	int rc = rank_wait(&K, step, CKPT_COMMITTED);

	if (rc == 0)
		return 'c';
	assert_int_equal(rc, -ENOENT);
	if (strstr(K.err.msg, "which is written in its place"))
		return 't';
	return strstr(K.err.msg, "is staged and will not be written") ? 's' : 'k';
}

/* The first step that is to be written waits at the gate; the others are marked, copied, guarded. */
static void marks_made(const struct row *x)
{
	for (uint64_t step = 1; x->marks[step - 1]; step++) {
		bool skipped = x->become[step - 1] == 'k';
		int rc;

		ordered(x->marks[step - 1]);
		rc = rank_step(&K, step, flags_of(x->marks[step - 1]));
		if (rc != (skipped ? CKPT_SKIPPED : 0))
			fail_msg("%s: the mark of step %" PRIu64 " returned %d", x->what, step, rc);
		if (!skipped)
			must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
		if (step == x->every)
			gate_await(&G);
	}
}

static void row_holds(const struct row *x)
{
	uint64_t thinned = 0;

	open_one(&K, "job", "fsdp=1", .slots = x->slots, .persist_every = x->every);
	gate_set(&G, true);
	marks_made(x);
	gate_set(&G, false);
	for (uint64_t step = 1; x->become[step - 1]; step++) {
		char is = x->become[step - 1], by_library = is == 'h' ? 't' : is;
		char was = fate(step);

		if (was != by_library)
			fail_msg("%s: step %" PRIu64 " became %c: %s", x->what, step, was,
				 K.err.msg);
		assert_int_equal(host_has(&H, "job", step), is == 'c');
		assert_int_equal(rank_wait(&K, step, CKPT_STAGED), is == 'k' ? -ENOENT : 0);
		thinned += is == 't';
		ask_until(ask_status(&A));
		if (is == 't' || is == 'h')
			assert_int_equal(ask_step(&A, step)->state,
					 is == 't' ? WIRE_THINNED : WIRE_STAGED);
	}
	assert_int_equal(ask_job(&A, "job")->thinned, thinned);
	assert_int_equal(rank_stats(&K).thinned, thinned);
	assert_int_equal(ask_job(&A, "job")->failed, 0);
	rank_close(&K, 0);
}

TEST(which_steps_wait_and_which_give_their_turn_away)
{
	for (uint32_t i = 0; i < ARRAY_LEN(rows); i++) {
		host_start_gated();
		ask_open(&A, H.socket);
		row_holds(&rows[i]);
		ask_close(&A);
		if (strchr(rows[i].marks, 'D'))
			ask_close(&drainer);
		host_stop(&H);
		host_free(&H);
		host_make(&H);
	}
}

/* Three slots, one of three steps is written: 3 is being written, and 7 waits in the place of 6. */
static void heir_made(void)
{
	open_one(&K, "job", "fsdp=1", .slots = 3, .persist_every = 3, .check = 1);
	gate_set(&G, true);
	for (uint64_t step = 1; step <= 7; step++) {
		must_step(&K, step, 0);
		must_wait(&K, step, CKPT_STAGED);
		if (step == 3)
			gate_await(&G);
	}
	assert_int_equal(fate(6), 't');
	assert_non_null(strstr(K.err.msg, "step 7"));
}

static int look(uint64_t step)
{
	return ckpt_wait(K.c, step, CKPT_COMMITTED, 0, &K.err);
}

TEST(an_heir_whose_guard_finds_a_change_leaves_the_next_step_due)
{
	host_start_gated();
	heir_made();
	rank_fill(&K, 1007);
	assert_int_equal(ckpt_guard(K.c, NULL), CKPT_TORN);
	must_soon(rank_step(&K, 8, 0) == 0);
	must_guard(&K);
	gate_set(&G, false);
	assert_int_equal(fate(8), 'c');
	assert_int_equal(fate(7), 'k');
	assert_string_equal(host_steps(&H, "job"), "3 8");
}

TEST(an_heir_that_could_not_be_written_is_made_up_for)
{
	host_start_gated();
	heir_made();
	must_guard(&K);
	assert_int_equal(look(7), -ETIMEDOUT); /* it is to come */
	gate_set(&G, false);
	assert_int_equal(fate(7), 'c');
	/* what was due at 6 is paid by 7, and the count goes on from 6 */
	for (uint64_t step = 8; step <= 9; step++) {
		must_soon(rank_step(&K, step, 0) == 0);
		must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
	}
	assert_int_equal(fate(8), 's');
	assert_int_equal(fate(9), 'c');
	assert_string_equal(host_steps(&H, "job"), "3 7 9");
}

TEST(an_heir_whose_daemon_dies_is_made_up_for_by_the_next_step)
{
	pthread_t opens;

	host_start_gated();
	heir_made();
	must_guard(&K);
	must_step(&K, 8, 0); /* the library has seen who the heir is */
	must_wait(&K, 8, CKPT_STAGED);
	must_guard(&K);
	opens = gate_open_soon(&G);
	host_kill(&H);
	pthread_join(opens, NULL);
	host_start(&H, NULL);
	must_reattach(&K, 1);
	for (uint64_t step = 9; step <= 10; step++) {
		must_soon(rank_step(&K, step, 0) == 0);
		must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
	}
	assert_true(fate(9) == 'c' || fate(10) == 'c');
}

/* A disk that fails while one waits: the first step fails, the one that waits is written. */
static atomic_bool no_space;

static int64_t failing_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	gate_pass(ctx);
	return atomic_load(&no_space) ? -ENOSPC
				      : io_ops_posix.pwrite(io_ops_posix.ctx, fd, buf, len, off);
}

TEST(a_step_that_waits_is_written_though_the_one_before_it_failed)
{
	gate_make(&G);
	G.ops.pwrite = failing_pwrite;
	atomic_store(&no_space, true);
	host_start(&H, &G.ops);
	open_one(&K, "job", "fsdp=1", .slots = 3);
	gate_set(&G, true);
	for (uint64_t step = 1; step <= 3; step++) {
		must_step(&K, step, 0);
		must_wait(&K, step, CKPT_STAGED);
		if (step == 1)
			gate_await(&G);
	}
	must_guard(&K);
	assert_int_equal(fate(2), 't');
	gate_set(&G, false);
	assert_int_equal(rank_wait(&K, 1, CKPT_COMMITTED), -ENOSPC);
	(void)rank_wait(&K, 3, CKPT_COMMITTED);
	atomic_store(&no_space, false);
	must_soon(rank_took(rank_step(&K, 4, 0)));
	must_guard(&K);
	assert_int_equal(fate(4), 'c');
}

/* --- averages --- */
static atomic_bool hold;

static int held_walk(uint64_t step, uint32_t rank, const struct walk_span *s)
{
	(void)step;
	(void)rank;
	(void)s;
	while (atomic_load(&hold))
		(void)usleep(1000);
	return 0;
}

TEST(averages_take_a_step_in_before_it_is_thinned)
{
	struct plan_of_job p = plan("job", "fsdp=1", .slots = 3);

	H.opts.averages = held_walk;
	atomic_store(&hold, true);
	host_start_gated();
	ask_open(&A, H.socket);
	must_attach(&K, &p, 0);
	must_declare(&K);
	MUST_OF(&K, ckpt_average(K.c, "fast", "constant decay=.9", &K.err));
	must_seal(&K);
	gate_set(&G, true);
	for (uint64_t step = 1; step <= 3; step++)
		stage(&K, step, 0);
	/* 1 is walked, and the two others wait for their walks: none of them goes */
	assert_int_equal(rank_step(&K, 4, 0), CKPT_SKIPPED);
	assert_int_equal(ask_job(&A, "job")->thinned, 0);
	atomic_store(&hold, false);
	for (uint64_t step = 4; step <= 6; step++) {
		must_soon(rank_step(&K, step, 0) == 0);
		must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
	}
	gate_set(&G, false);
	must_wait(&K, 6, CKPT_COMMITTED);
	assert_true(ask_job(&A, "job")->thinned > 0);
	assert_int_equal(ask_job(&A, "job")->averaged, 6);
	assert_int_equal(ask_job(&A, "job")->average_given_up, 0);
	assert_int_equal(rank_stats(&K).average_left_out, 0);
}

/* A case that fails leaves nobody at the gate. */
static int teardown(void **state)
{
	atomic_store(&hold, false);
	gate_set(&G, false);
	return host_teardown(state);
}

UNIT(.setup = host_setup, .teardown = teardown);
