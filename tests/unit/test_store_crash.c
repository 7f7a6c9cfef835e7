/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_crash.c - the store passes the whole crash matrix (tests/crash/crash_rigs.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/crash/crash_rigs.c"

/* ThreadSanitizer has nothing to say about one thread, and takes minutes for it. */
#if defined(__SANITIZE_THREAD__)
#define ONLY_THREADS true
#else
#define ONLY_THREADS false
#endif

static void nothing_acknowledged_is_lost_and_nothing_torn_is_listed(void **state)
{
	const char *seed = getenv("SEED");
	uint32_t failed = 0;

	(void)state;
	crash_seed_set(seed ? strtoull(seed, NULL, 0) : wall_ns());
	print_message("seed %llu (SEED=... brings it back)\n", (unsigned long long)crash_seed);
	for (uint32_t i = 0; i < crash_rigs_n; i++) {
		uint64_t runs = crash_runs(), begun = now_ns();
		char why[CRASH_WHY];
		int r;

		if (ONLY_THREADS && !crash_rigs[i].threads)
			continue;
		r = crash_rigs[i].run(why);
		print_message("%-34s %6llu runs and states, %5llu ms: %s\n", crash_rigs[i].name,
			      (unsigned long long)(crash_runs() - runs),
			      (unsigned long long)((now_ns() - begun) / NS_PER_MS),
			      r ? why : "holds");
		failed += r != 0;
	}
	assert_int_equal(failed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_acknowledged_is_lost_and_nothing_torn_is_listed),
	};

	return cmocka_run_group_tests_name("store_crash", tests, NULL, NULL);
}
