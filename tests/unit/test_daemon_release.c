/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_release.c - large memory is given back by a thread of its own: undoing tens of GiB
 * takes seconds, in which the daemon's heart must beat. The daemon's memory.c is included here with
 * a low limit and an munmap that can be held.
 */
#include "tests/lib/unit.h"
#include <pthread.h>
#include <sys/mman.h>

#define LARGE (2u << 20)
#define RELEASE_BYTES LARGE

/* Every munmap of memory.c: by which thread, and held while the gate is closed. */
static struct {
	pthread_mutex_t lock; /* protects all below */
	pthread_cond_t changed;
	pthread_t watched;
	uint32_t by_watched, by_others, held;
	uint64_t bytes;
	int closed;
} seen = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static int seen_munmap(void *p, size_t bytes)
{
	pthread_mutex_lock(&seen.lock);
	seen.by_watched += pthread_equal(pthread_self(), seen.watched) != 0;
	seen.by_others += !pthread_equal(pthread_self(), seen.watched);
	seen.bytes += bytes;
	seen.held++;
	pthread_cond_broadcast(&seen.changed);
	while (seen.closed && bytes >= LARGE)
		pthread_cond_wait(&seen.changed, &seen.lock);
	seen.held--;
	pthread_mutex_unlock(&seen.lock);
	return munmap(p, bytes);
}

#define munmap seen_munmap
#include "daemon/memory.c"
#undef munmap

#include "tests/lib/host.h"

static void seen_begin(pthread_t watched)
{
	pthread_mutex_lock(&seen.lock);
	seen.watched = watched;
	seen.by_watched = seen.by_others = 0;
	seen.bytes = 0;
	pthread_mutex_unlock(&seen.lock);
}

static void seen_gate(int closed)
{
	pthread_mutex_lock(&seen.lock);
	seen.closed = closed;
	pthread_cond_broadcast(&seen.changed);
	pthread_mutex_unlock(&seen.lock);
}

static void seen_await_held(void)
{
	pthread_mutex_lock(&seen.lock);
	while (!seen.held)
		pthread_cond_wait(&seen.changed, &seen.lock);
	pthread_mutex_unlock(&seen.lock);
}

static struct slotmem *slot(struct reaper *r, uint64_t bytes)
{
	struct slotmem *s;
	struct ckpt_err err;

	MUST_OK(slotmem_new(r, bytes, &s, &err), &err);
	return s;
}

TEST(large_memory_is_given_back_by_another_thread_small_by_its_owner)
{
	struct reaper r = { 0 };

	assert_int_equal(reaper_start(&r), 0);
	seen_begin(pthread_self());
	slotmem_unref(slot(&r, LARGE / 2));
	assert_true(seen.by_watched == 1 && seen.by_others == 0);
	seen_gate(1);
	slotmem_unref(slot(&r, LARGE)); /* returns although nobody can give it back now */
	slotmem_unref(slot(&r, 3 * LARGE));
	seen_await_held();
	seen_gate(0);
	reaper_stop(&r);
	assert_int_equal(seen.by_watched, 1);
	assert_int_equal(seen.by_others, 2);
}

static void *gate_open(void *arg)
{
	(void)arg;
	seen_await_held();
	seen_gate(0);
	return NULL;
}

TEST(what_is_left_at_the_end_is_given_back_too)
{
	struct reaper r = { 0 };
	pthread_t thread;

	assert_int_equal(reaper_start(&r), 0);
	seen_begin(pthread_self());
	seen_gate(1);
	for (uint32_t i = 0; i < 20; i++)
		slotmem_unref(slot(&r, LARGE));
	assert_int_equal(pthread_create(&thread, NULL, gate_open, NULL), 0);
	reaper_stop(&r);
	pthread_join(thread, NULL);
	assert_int_equal(seen.by_others, 20);
	assert_int_equal(seen.bytes, 20u * LARGE);
}

TEST(without_a_thread_the_owner_does_it)
{
	struct reaper never = { 0 };

	seen_begin(pthread_self());
	slotmem_unref(slot(&never, LARGE));
	slotmem_unref(slot(NULL, LARGE));
	assert_int_equal(seen.by_watched, 2);
}

TEST(more_than_one_stretch_is_given_back_whole)
{
	void *p = mmap(NULL, 2 * RELEASE_STEP + LARGE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct segment *s = calloc(1, sizeof *s);

	assert_true(p != MAP_FAILED && s);
	*s = (struct segment){ .refs = 1, .base = p, .bytes = 2 * RELEASE_STEP + LARGE };
	seen_begin(pthread_self());
	segment_unref(s);
	assert_int_equal(seen.by_watched, 3);
	assert_int_equal(seen.bytes, 2 * RELEASE_STEP + LARGE);
	assert_int_equal(msync(p, 4096, MS_ASYNC), -1);
	assert_int_equal(msync((uint8_t *)p + 2 * RELEASE_STEP + LARGE - 4096, 4096, MS_ASYNC), -1);
}

/* Also if the case has failed: nothing is held any more. */
static int gate_teardown(void **state)
{
	seen_gate(0);
	return host_teardown(state);
}

TEST_WITH(a_daemon_that_gives_back_much_still_answers, host_setup, gate_teardown)
{
	struct wire_forget m = { 0 };
	struct wire_forgotten f = { 0 };
	struct asker a;

	host_start(&H, NULL);
	open_one(&K, "large", "fsdp=1");
	must_step(&K, 1, 0);
	must_guard(&K);
	must_wait(&K, 1, CKPT_COMMITTED);
	seen_begin(H.thread);
	seen_gate(1);
	/* the slot that holds nothing goes now, the other one when it is forgotten */
	rank_close(&K, 0);
	seen_await_held();
	ask_open(&a, H.socket);
	ask_until(ask_job(&a, "large")->launch == WIRE_ENDED);
	m.job = a.r.job[0].id;
	assert_int_equal(ask(&a, &m, WIRE_FORGET, sizeof m, &f, sizeof f), WIRE_FORGOTTEN);
	assert_true(f.bytes >= LARGE);
	assert_null(ask_job(&a, "large"));
	seen_gate(0);
	ask_close(&a);
	host_stop(&H);
	assert_true(seen.by_others >= 2);
	assert_true(seen.bytes >= 2u * LARGE);
}
