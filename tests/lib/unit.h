/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.h - how a unit test is written: one TEST for each sentence that must hold, in
 * tests/unit/test_ROOM_SUBJECT.c. All files of a room are one program, whose main is unit.c.
 *
 *	TEST(an_empty_name_is_refused)
 *	{
 *		assert_int_equal(name_check(""), -EINVAL);
 *	}
 *	UNIT(.setup = dir_make, .teardown = dir_remove);
 *
 * This header also brings what nearly every test needs of libc, and ckpt/base/util.h.
 * The cases of a file run in its order. UNIT, at most once in a file, says what is done before and
 * after each of them, or once for all.
 */
#ifndef TESTS_LIB_UNIT_H
#define TESTS_LIB_UNIT_H
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "ckpt/base/util.h"

/* A call that must give 0; where it explains itself in *err, that is printed. */
#define assert_ok(call) assert_int_equal(call, 0)
#define assert_ok_err(call, err)                               \
	do {                                                   \
		if ((call) != 0)                               \
			fail_msg("%s: %s", #call, (err)->msg); \
	} while (0)

struct unit_file {
	/* around each case */
	CMFixtureFunction setup, teardown;
	/* around all cases of the file, which then run in one process, one after the other */
	CMFixtureFunction group_setup, group_teardown;
	/* further cases, known at run time only. They end with one whose test_func is NULL */
	const struct CMUnitTest *(*cases)(void);
};

struct unit_case { /* without a test_func: a file that may have no TEST */
	struct CMUnitTest test;
	bool own_fixtures; /* not those of the file */
	int line;
	const char *path;
	const struct unit_file *file;
};

/* Without any UNIT: all zero. */
static const struct unit_file unit_file_ __attribute__((unused));
#define UNIT(...)                                                   \
	static const struct unit_file unit_file_ = { __VA_ARGS__ }; \
	UNIT_AT_(file, .path = __FILE__, .file = &unit_file_)

/* Where unit.c finds it. */
#define UNIT_AT_(name_, ...)                                               \
	static const struct unit_case unit_case_##name_ = { __VA_ARGS__ }; \
	static const struct unit_case *const unit_at_##name_               \
		__attribute__((section("unit_cases"), used)) = &unit_case_##name_
#define UNIT_CASE_(name_, own_, setup_, teardown_)                                                \
	static void name_(void **state);                                                          \
	UNIT_AT_(name_, .test = { #name_, name_, setup_, teardown_, NULL }, .own_fixtures = own_, \
		 .line = __LINE__, .path = __FILE__, .file = &unit_file_);                        \
	static void name_(void **state __attribute__((unused)))
#define TEST(name_) UNIT_CASE_(name_, false, NULL, NULL)
/* With fixtures of its own, or NULL for none, whatever UNIT says. */
#define TEST_WITH(name_, setup_, teardown_) UNIT_CASE_(name_, true, setup_, teardown_)

/* Beside cleanup_free and cleanup_close of util.h: freed where its block ends. Each begins as { 0
 * }. */
#define cleanup_arena __attribute__((cleanup(arena_free)))
#define cleanup_errlist __attribute__((cleanup(ckpt_errlist_free)))
#define cleanup_plan __attribute__((cleanup(plan_free)))
#define cleanup_sample __attribute__((cleanup(sample_free)))
#define cleanup_step __attribute__((cleanup(crash_step_free)))
#define cleanup_table __attribute__((cleanup(table_free)))

/* What stands in for a function has its parameters, also those that it does not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* 1, or what SCALE says: `make check` looks at 1/SCALE of the draws and states that a test may
 * leave away. At least one is left. */
uint64_t unit_scaled(uint64_t n);

/* A program that plays another one (a daemon that the library starts): it gets the command line
 * first, and ends the process if that was for it. */
extern void (*unit_played)(int argc, char **argv);

#endif
