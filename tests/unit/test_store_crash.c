/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_crash.c - the store passes the whole crash matrix (tests/crash/crash_rigs.h).
 *
 * CRASH_STATES=N (10000): go on with other seeds until so many different states of the disk were
 * looked at, in CRASH_JOBS (1) processes. With AddressSanitizer: a tenth of the states, at all
 * moments. SCALE: as many times fewer states, failing calls and deaths. With ThreadSanitizer: what
 * has threads.
 */
#include <sys/wait.h>
#include "tests/crash/crash_rigs.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

/* ThreadSanitizer has nothing to say about one thread, and takes minutes for it. */
#if defined(__SANITIZE_THREAD__)
#define ONLY_THREADS true
#else
#define ONLY_THREADS false
#endif
#if defined(__SANITIZE_ADDRESS__)
#define EVERY 10u
#else
#define EVERY 1u
#endif
#define STATES (10000 / EVERY)
#define ROUNDS_MAX 100000

static uint64_t first_seed;

static uint64_t crash_scale(void)
{
	return 1000 / unit_scaled(1000);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

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

/* The rigs that walk through states, with other seeds, until enough were counted. */
static int walk_on(uint64_t seed, uint64_t states, char why[CRASH_WHY])
{
	uint32_t nrandom = crash_walks.nrandom;

	/* the more are wanted, the fewer of them should be those that every round looks at */
	if (states > STATES)
		crash_walks.nrandom = 16 * nrandom;
	for (uint64_t i = 0; i < ROUNDS_MAX && io_crash_set_states(crash_walks.distinct) < states;
	     i++) {
		crash_seed_set(seed + i);
		for (uint32_t k = 0; k < crash_rigs_n; k++)
			if (crash_rigs[k].walks && crash_rigs[k].run(why))
				return 1;
	}
	crash_walks.nrandom = nrandom;
	return 0;
}

static bool walk_in_children(uint64_t jobs, uint64_t states)
{
	bool good = true;

	for (uint64_t j = 0; j < jobs; j++) {
		char why[CRASH_WHY] = "";
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid)
			continue;
		if (walk_on(first_seed + (j + 1) * ROUNDS_MAX, states, why)) {
			(void)fprintf(stderr, "%s\n", why);
			_exit(1);
		}
		_exit(0);
	}
	for (uint64_t j = 0; j < jobs; j++) {
		int status;

		good &= wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
	}
	return good;
}

static void enough_different_states_of_the_disk_were_looked_at(void **state)
{
	uint64_t states = number_from("CRASH_STATES", unit_scaled(STATES)),
		 jobs = number_from("CRASH_JOBS", 1);
	uint64_t seed = first_seed;
	char why[CRASH_WHY] = "";

	(void)state;
	if (ONLY_THREADS)
		skip();
	if (jobs > 1)
		assert_true(walk_in_children(jobs, states));
	else if (walk_on(seed + 1, states, why))
		fail_msg("%s", why);
	print_message("%llu distinct states of the disk, seed %llu\n",
		      (unsigned long long)io_crash_set_states(crash_walks.distinct),
		      (unsigned long long)seed);
	assert_true(io_crash_set_states(crash_walks.distinct) >= states);

	/* what is counted is states, not names, times or runs: some of the same walk again add
	 * none */
	crash_walks.every = 10 * EVERY * (uint32_t)crash_scale();
	states = io_crash_set_states(crash_walks.distinct);
	crash_seed_set(seed);
	for (uint32_t k = 0; k < crash_rigs_n; k++)
		if (crash_rigs[k].walks && crash_rigs[k].run(why))
			fail_msg("%s", why);
	assert_int_equal(io_crash_set_states(crash_walks.distinct), states);
}

static int walks_begin(void **state)
{
	(void)state;
	first_seed = draw_seed("crash states");
	crash_seed_set(first_seed);
	crash_walks.quiet = true;
	crash_walks.nrandom = 5;
	crash_walks.every_run = (uint32_t)crash_scale();
	crash_walks.every = EVERY * crash_walks.every_run;
	crash_walks.distinct =
		io_crash_set_new(MAX(4 * number_from("CRASH_STATES", STATES), UINT64_C(1) << 17));
	return 0;
}

static int walks_end(void **state)
{
	(void)state;
	io_crash_set_free(crash_walks.distinct);
	return 0;
}

static const struct CMUnitTest *cases(void)
{
	static struct CMUnitTest tests[16];
	uint32_t n = 0;

	assert(crash_rigs_n + 1 < ARRAY_LEN(tests));
	for (; n < crash_rigs_n; n++)
		tests[n] = (struct CMUnitTest){ .name = crash_rigs[n].name,
						.test_func = rig_holds,
						.initial_state = (void *)&crash_rigs[n] };
	tests[n] = (struct CMUnitTest)cmocka_unit_test(
		enough_different_states_of_the_disk_were_looked_at);
	return tests;
}
UNIT(.cases = cases, .group_setup = walks_begin, .group_teardown = walks_end);
