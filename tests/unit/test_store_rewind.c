/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_rewind.c - a step becomes the newest of its line again: what moves, what stays, and
 * when nothing does. Deaths, faults and power losses in between: "rewinding" in
 * tests/crash/crash_scenes.c. */
#include "ckpt/store/rewind.h"
#include "tests/crash/job.h"
#include "tests/lib/libc.h"

static char moved[400];

/* 10, 20 and 30; back to 10; 15 and 25. */
static int setup(void **state)
{
	libc_instead.nanosleep = libc_no_nap;
	(void)job_make_three(state);
	save(15, 10);
	save(25, 15);
	return 0;
}

/* "25 15 10 | a30 a20": the line, the newest first, and what is aside. */
static void assert_line(const char *want)
{
	static const char letter[] = { 0, 'c', 'a', 'd', 'q' };
	cleanup_free struct store_step *st = NULL;
	char text[200] = "", aside[100] = "";
	size_t used = 0, nused = 0;
	uint32_t n;

	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		if (st[i].state == STORE_SET_ASIDE)
			nused += (size_t)snprintf(aside + nused, sizeof aside - nused, " %" PRIu64,
						  st[i].step);
		else
			used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s%" PRIu64,
						 used ? " " : "", letter[st[i].state] != 0,
						 &letter[st[i].state], st[i].step);
	if (nused)
		(void)snprintf(text + used, sizeof text - used, " |%s", aside);
	assert_string_equal(text, want);
}

static void row(void *arg, const struct store_step *st, bool back)
{
	size_t used = strlen(moved);

	(void)snprintf(moved + used, sizeof moved - used, "%s%c%" PRIu64, used ? " " : "",
		       back ? '+' : '-', st->step);
}

static int rewind_with(const struct io_ops *by, const char *dir, bool dry)
{
	struct rewind_opts o = { .dir = dir, .dry = dry, .row = row };
	struct rewind_result ret;
	const struct io_ops *was = s->ops;
	int r;

	moved[0] = err.msg[0] = 0;
	s->ops = by;
	r = store_rewind(s, &o, &ret, &err);
	s->ops = was;
	if (r)
		assert_true(err.msg[0]);
	return r;
}

static int rewind_to(const char *dir)
{
	return rewind_with(&io_ops_posix, dir, false);
}

static const char *aside(uint64_t step, uint64_t seq)
{
	return crash_aside(s, step, seq);
}

TEST(a_step_that_was_set_aside_is_the_newest_of_its_line_again)
{
	assert_line("25 15 10 | 30 20");
	assert_int_equal(rewind_with(&io_ops_posix, aside(30, 3), true), 0);
	assert_string_equal(moved, "-25 -15 +20 +30");
	assert_line("25 15 10 | 30 20");
	assert_int_equal(rewind_to(aside(30, 3)), 0);
	assert_string_equal(moved, "-25 -15 +20 +30");
	assert_line("30 20 10 | 25 15");
	assert_int_equal(rewind_to("step-000000000030"), 0);
	assert_string_equal(moved, "");
	/* and there, and back */
	assert_int_equal(rewind_to(aside(15, 4)), 0);
	assert_string_equal(moved, "-30 -20 +15");
	assert_line("15 10 | 25 30 20");
	assert_int_equal(rewind_to(aside(20, 2)), 0);
	assert_line("20 10 | 25 15 30");
}

TEST(an_older_step_of_the_line_is_its_newest_when_it_is_asked_for)
{
	assert_int_equal(rewind_to("step-000000000010"), 0);
	assert_string_equal(moved, "-25 -15");
	assert_line("10 | 25 15 30 20");
}

TEST(a_commit_goes_on_from_there)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	assert_int_equal(rewind_to(aside(30, 3)), 0);
	save(40, 30);
	assert_line("40 30 20 10 | 25 15");
	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	assert_int_equal(st[0].seq, 6);
	assert_int_equal(st[0].parent_step, 30);
	assert_memory_equal(st[0].said.parent_id, st[3].id, sizeof st[3].id);
	assert_int_equal(st[3].step, 30);
}

TEST(what_the_line_has_in_common_stays)
{
	save(35, 25);
	save(32, 25);
	assert_line("32 25 15 10 | 35 30 20");
	assert_int_equal(rewind_to(aside(35, 6)), 0);
	assert_string_equal(moved, "-32 +35");
	assert_line("35 25 15 10 | 32 30 20");
}

TEST(another_run_has_nothing_in_common)
{
	save(5, UINT64_MAX);
	assert_line("5 | 25 15 30 20 10");
	assert_int_equal(rewind_to(aside(25, 5)), 0);
	assert_string_equal(moved, "-5 +10 +15 +25");
	assert_line("25 15 10 | 5 30 20");
}

/* It was set aside when it was written, as its name says: steps here are of another year. */
static void aside_early(uint64_t step, uint64_t seq)
{
	char to[STORE_DIR_MAX];

	store_name_old(step, seq, 1, to);
	move(aside(step, seq), to);
}

/* By a policy, before the job went back. */
TEST(where_an_ancestor_is_no_longer_there_the_one_before_it_takes_its_place)
{
	save(35, 25);
	save(45, 35);
	save(12, 10);
	assert_line("12 10 | 45 35 25 15 30 20");
	assert_int_equal(io_tree_remove(s->job_fd, aside(35, 6)), 0);
	assert_int_equal(rewind_to(aside(45, 7)), 0);
	assert_string_equal(moved, "-12 +15 +25 +45");
	assert_line("45 25 15 10 | 12 30 20");
	/* of the line alone: 20 and 30 were set aside before 45 was written */
	aside_early(20, 2);
	aside_early(30, 3);
	assert_int_equal(rewind_to("step-000000000010"), 0);
	assert_int_equal(io_tree_remove(s->job_fd, aside(25, 5)), 0);
	assert_int_equal(io_tree_remove(s->job_fd, aside(15, 4)), 0);
	assert_int_equal(rewind_to(aside(45, 7)), 0);
	assert_string_equal(moved, "+45");
	assert_line("45 10 | 12 30 20");
}

/* Nor what a step went back behind since, whatever the clock says. */
TEST(a_step_of_another_line_takes_no_place)
{
	save(40, 10);
	save(26, 10);
	save(36, 26);
	save(11, 10);
	assert_line("11 10 | 36 26 40 25 15 30 20");
	assert_int_equal(io_tree_remove(s->job_fd, aside(26, 7)), 0);
	assert_int_equal(rewind_to(aside(36, 8)), 0);
	assert_string_equal(moved, "-11 +36");
}

TEST(a_step_of_the_line_that_cannot_be_read_goes_by_its_number)
{
	/* newer than what is in common: set aside like the others */
	unlinked("step-000000000015/MANIFEST");
	assert_line("25 d15 10 | 30 20");
	assert_int_equal(rewind_to(aside(30, 3)), 0);
	assert_string_equal(moved, "-25 -15 +20 +30");
	/* the parent itself: it is what the line goes on from */
	assert_int_equal(rewind_to("step-000000000020"), 0);
	unlinked("step-000000000020/MANIFEST");
	assert_int_equal(rewind_to(aside(30, 3)), 0);
	assert_string_equal(moved, "+30");
	assert_line("30 d20 10 | 25 15");
}

TEST(a_damaged_or_unfinished_step_is_refused_and_nothing_moves)
{
	cleanup_free struct store_step *st = NULL;
	char path[STORE_DIR_MAX + 10];
	struct store_txn *x;
	uint32_t n;

	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		if (st[i].step == 30 || st[i].step == 15)
			assert_int_equal(
				store_label_set(s, &st[i], LABEL_BAD, NULL, 0, "a bit", &err), 0);
	(void)snprintf(path, sizeof path, "%s/MANIFEST", aside(20, 2));
	unlinked(path);
	assert_int_equal(rewind_to(aside(30, 3)), -EBADMSG);
	assert_non_null(strstr(err.msg, "step 30 is quarantined: a bit"));
	assert_int_equal(rewind_to("step-000000000015"), -EBADMSG);
	assert_non_null(strstr(err.msg, "quarantined: a bit"));
	assert_true(rewind_to(".old-000000000020-s2") == -ENOENT);
	assert_true(rewind_to(aside(20, 2)) < 0);
	assert_non_null(strstr(err.msg, "MANIFEST is missing"));
	x = begun(s, 40, 6);
	assert_int_equal(rewind_to(x->dir), -EUCLEAN);
	store_abort(x);
	assert_line("25 q15 10 | 30 20");
}

static const char *fails_below;

static int open_fails(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	size_t n = strlen(fails_below);

	return strncmp(name, fails_below, n) == 0 && name[n] == '/'
		       ? -EIO
		       : io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

/* What may be the parent must not be passed over because the disk did not answer. */
TEST(what_cannot_be_read_now_is_not_passed_over)
{
	struct io_ops failing = io_ops_posix;
	char dir[STORE_DIR_MAX];

	failing.open = open_fails;
	(void)snprintf(dir, sizeof dir, "%s", aside(20, 2));
	fails_below = dir;
	assert_int_equal(rewind_with(&failing, aside(30, 3), false), -EIO);
	assert_non_null(strstr(err.msg, "may be what step 30 continues"));
	assert_line("25 15 10 | 30 20");
	assert_int_equal(rewind_with(&failing, dir, false), -EIO);
	assert_line("25 15 10 | 30 20");
}

TEST(another_launch_or_a_removal_ends_it)
{
	int line;

	assert_int_equal(store_line_lock(s, false, false, &line), 0);
	assert_int_equal(rewind_to(aside(30, 3)), -EBUSY);
	(void)close(line);
	another_claims();
	assert_int_equal(rewind_to(aside(30, 3)), -ESTALE);
	assert_line("25 15 10 | 30 20");
}

UNIT(.setup = setup, .teardown = job_remove);
