/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_last.c - LAST of shared.h: whoever asks a launch to stop, and whenever, all ranks stop
 * after the same step, also if a restore takes them back meanwhile. Under random schedules, with
 * threads, and one call at a time.
 */
#include "test_wire_actors.h"

#define WORLD_MAX 4
#define LAST_STEPS 4096
/* Ranks that ask at the beginning of each step, in all orders that the scheduler finds, while
 * others stop the launch, and a restore in between that takes them back. */
static struct {
	_Atomic uint64_t word;
	uint32_t world, stops, meetings;
	_Atomic uint32_t here; /* ranks that wait in the restore */
	_Atomic bool told[2][WORLD_MAX]
			 [LAST_STEPS]; /* by line: ckpt_last said "not the last" to this rank */
	uint64_t stopped[WORLD_MAX];   /* 1 + the last step of each */
} L;

static void last_rank(uint32_t me)
{
	uint64_t step = 7;
	uint32_t line = 0;

	for (;;) {
		bool last;

		if (L.meetings && line == 0 && step == 20) { /* all of them go back to 9 */
			uint32_t noted = shared_last_line(&L.word);

			atomic_fetch_add(&L.here, 1);
			while (atomic_load(&L.here) < L.world)
				point();
			for (uint32_t k = chance(20); k; k--)
				point();
			shared_last_anew(&L.word, noted);
			step = 9;
			line = 1;
		}
		last = shared_last_ask(&L.word, ++step);
		if (last) {
			L.stopped[me] = step + 1;
			break;
		}
		if (step < LAST_STEPS)
			atomic_store(&L.told[line][me][step], true);
		point();
	}
}

static void last_stopper(void)
{
	for (uint32_t n = chance(30); n; n--)
		point();
	shared_last_stop(&L.word);
}

static void last_main(void)
{
	if (running < L.world)
		last_rank(running);
	else
		last_stopper();
	actor[running].over = true;
	actor_leave();
}

/* What is wrong; NULL. */
static const char *last_run(uint64_t seed)
{
	memset(&L, 0, sizeof L);
	play = (struct play){ 0 };
	rng_state = seed;
	L.world = 2 + chance(3);
	L.stops = 1 + chance(3);
	L.meetings = chance(2);
	nactor = L.world + L.stops;
	shared_point = point;
	for (uint32_t i = 0; i < nactor; i++)
		actor_make(i, last_main);
	schedule();
	shared_point = NULL;
	if (atomic_load(&play.wrong))
		return atomic_load(&play.wrong);
	for (uint32_t r = 0; r < L.world; r++) {
		uint32_t line = L.meetings && atomic_load(&L.here) == L.world;

		if (L.stopped[r] != L.stopped[0])
			return "ranks stop after different steps";
		for (uint32_t k = 0; k < L.world; k++)
			if (L.stopped[r] <= LAST_STEPS &&
			    atomic_load(&L.told[line][k][L.stopped[r] - 1]))
				return "a rank goes on from the last step of another";
	}
	return NULL;
}

TEST(no_schedule_makes_ranks_stop_after_different_steps)
{
	const uint64_t n = unit_scaled(20000);

	if (!COROUTINES) {
		print_message("skipped: ThreadSanitizer does not follow coroutines\n");
		skip();
	}
	for (uint64_t seed = 1; seed <= n; seed++) {
		const char *wrong = last_run(seed);

		if (wrong)
			fail_msg("seed %" PRIu64 ": %s", seed, wrong);
	}
}

static pthread_barrier_t last_start;

static void *last_thread(void *arg)
{
	const uint32_t me = (uint32_t)(uintptr_t)arg;

	pthread_barrier_wait(&last_start);
	for (uint64_t step = 1; !L.stopped[me]; step++) {
		if (me == 0 && step == 100)
			shared_last_stop(&L.word);
		if (shared_last_ask(&L.word, step))
			L.stopped[me] = step;
	}
	return NULL;
}

/* Their steps have nothing to do with each other: who is far ahead stops first, and the others at
 * the same step. */
TEST(threads_that_are_told_to_stop_stop_after_the_same_step)
{
	for (uint32_t n = 0; n < 50; n++) {
		pthread_t t[WORLD_MAX];

		memset(&L, 0, sizeof L);
		assert_int_equal(pthread_barrier_init(&last_start, NULL, WORLD_MAX), 0);
		for (uintptr_t i = 0; i < WORLD_MAX; i++)
			assert_int_equal(pthread_create(&t[i], NULL, last_thread, (void *)i), 0);
		for (uint32_t i = 0; i < WORLD_MAX; i++)
			pthread_join(t[i], NULL);
		assert_int_equal(pthread_barrier_destroy(&last_start), 0);
		for (uint32_t i = 1; i < WORLD_MAX; i++)
			assert_int_equal(L.stopped[i], L.stopped[0]);
	}
}

TEST(what_a_rank_was_told_before_all_met_counts_where_they_meet)
{
	_Atomic uint64_t word = 0, mine = 0;

	assert_false(shared_last_ask(&word, 5));
	assert_false(shared_last_ask(&word, 5)); /* the same again, or an older one */
	assert_false(shared_last_ask(&word, 3));
	assert_false(shared_last_ask(&mine, 9));
	shared_last_bring(&word, mine);
	shared_last_stop(&word);
	assert_false(shared_last_ask(&word, 9));
	assert_true(shared_last_ask(&word, 10) && shared_last_ask(&word, 11));
	shared_last_stop(&word); /* nothing changes */
	assert_false(shared_last_ask(&word, 9));
	shared_last_anew(&word, 1); /* another rank has done it */
	assert_false(shared_last_ask(&word, 9));
	shared_last_anew(&word, 0);
	assert_true(shared_last_ask(&word, 0) && shared_last_line(&word) == 1);
	/* A stop that was asked for before there was a daemon. */
	word = 0;
	mine = 0;
	shared_last_stop(&mine);
	assert_false(shared_last_ask(&word, 30));
	shared_last_bring(&word, mine);
	assert_false(shared_last_ask(&word, 30));
	assert_true(shared_last_ask(&word, 31));
	word = 0;
	assert_false(shared_last_ask(&word, SHARED_LAST_STEP_MAX));
	shared_last_stop(&word);
	assert_true(shared_last_ask(&word, SHARED_LAST_STEP_MAX + 1));
	assert_int_equal(shared_last_line(&word), 0);
}

UNIT(.teardown = stacks_free);
