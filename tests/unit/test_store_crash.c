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

/* Nothing acknowledged is lost and nothing torn is listed, whatever the rig does. */
static void rig_holds(void **state)
{
	const struct crash_rig *rig = *state;
	uint64_t runs = crash_runs(), begun = now_ns();
	char why[CRASH_WHY];
	int r;

	if (ONLY_THREADS && !rig->threads)
		skip();
	r = rig->run(why);
	print_message("%6llu runs and states, %5llu ms\n",
		      (unsigned long long)(crash_runs() - runs),
		      (unsigned long long)((now_ns() - begun) / NS_PER_MS));
	if (r)
		fail_msg("%s", why);
}

int main(void)
{
	const char *seed = getenv("SEED");
	struct CMUnitTest tests[16];

	crash_seed_set(seed ? strtoull(seed, NULL, 0) : wall_ns());
	print_message("seed %llu (SEED=... brings it back)\n", (unsigned long long)crash_seed);
	assert(crash_rigs_n <= ARRAY_LEN(tests));
	for (uint32_t i = 0; i < crash_rigs_n; i++)
		tests[i] = (struct CMUnitTest){ .name = crash_rigs[i].name,
						.test_func = rig_holds,
						.initial_state = (void *)&crash_rigs[i] };
	return _cmocka_run_group_tests("store_crash", tests, crash_rigs_n, NULL, NULL);
}
