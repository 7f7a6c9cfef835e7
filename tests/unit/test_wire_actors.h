/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_actors.h - actors that take turns at the points of shared.c (SHARED_POINTS): coroutines
 * on one thread, in an order that a seed gives, so that a failure comes again with its seed; or
 * threads, which ThreadSanitizer can follow. With what the tests of the room wire share of it.
 * A file that includes this has shared.c in it, and is a program of its own.
 */
#ifndef TESTS_UNIT_TEST_WIRE_ACTORS_H
#define TESTS_UNIT_TEST_WIRE_ACTORS_H
#include <pthread.h>
#include <sched.h>
#include <ucontext.h>
#define SHARED_POINTS
#include "ckpt/wire/shared.c"
#include "tests/lib/unit.h"

#ifdef __SANITIZE_THREAD__
#define COROUTINES 0
#else
#define COROUTINES 1
#endif

#define ACTORS_MAX 16
#define STACK_BYTES (64 * KIB)
#define POINTS_MAX 2000000

/* Of a run; all 0 when it begins. */
static struct play {
	bool threads;
	_Atomic(const char *) wrong; /* what was found first */
} play;

static inline void wrong(const char *what)
{
	const char *none = NULL;

	atomic_compare_exchange_strong(&play.wrong, &none, what);
}

static uint64_t rng_state;
static _Thread_local uint64_t rng_own;

static inline uint32_t chance(uint32_t n)
{
	uint64_t *s = play.threads ? &rng_own : &rng_state, z = *s += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) % n);
}

static struct {
	ucontext_t context; /* where it begins */
	void *at[5];	    /* where it goes on: of __builtin_setjmp */
	bool begun, over;
	uint32_t weight;
	uint8_t *stack;
} actor[ACTORS_MAX];
static uint32_t nactor, running;
static uint64_t npoint;

/*
 * swapcontext asks the kernel for the signal mask, at each of millions of points; AddressSanitizer
 * follows nothing else from stack to stack. GCC forbids a jump in the function that it returns to.
 * The pointers hide from it what the functions do: a call that it sees through keeps values in
 * registers that other stacks change.
 */
#ifdef __SANITIZE_ADDRESS__
static ucontext_t scheduler;

static void stack_enter(void)
{
	swapcontext(&scheduler, &actor[running].context);
}

static void stack_leave(void)
{
	swapcontext(&actor[running].context, &scheduler);
}
#else
static void *scheduler_at[5];

static __attribute__((noinline, noreturn)) void resume(void **at)
{
	__builtin_longjmp(at, 1);
}

static __attribute__((noinline)) void stack_enter(void)
{
	if (__builtin_setjmp(scheduler_at))
		return;
	if (actor[running].begun)
		resume(actor[running].at);
	actor[running].begun = true;
	setcontext(&actor[running].context);
}

static __attribute__((noinline)) void stack_leave(void)
{
	if (!__builtin_setjmp(actor[running].at))
		resume(scheduler_at);
}
#endif
static void (*volatile actor_enter)(void) = stack_enter,
		       (*volatile actor_leave)(void) = stack_leave;

static inline void actor_make(uint32_t i, void (*body)(void))
{
	actor[i].begun = actor[i].over = false;
	if (!actor[i].stack)
		actor[i].stack = calloc(1, STACK_BYTES);
	getcontext(&actor[i].context);
	actor[i].context.uc_stack = (stack_t){ .ss_sp = actor[i].stack, .ss_size = STACK_BYTES };
	actor[i].context.uc_link = NULL;
	makecontext(&actor[i].context, body, 0);
}

static inline void point(void)
{
	if (play.threads) {
		if (chance(8) == 0)
			sched_yield();
	} else {
		actor_leave();
	}
}

static inline void schedule(void)
{
	uint32_t alive = nactor;

	for (npoint = 0; alive && !atomic_load(&play.wrong); npoint++) {
		uint32_t sum = 0, pick;

		if (npoint > POINTS_MAX) {
			wrong("somebody waits for ever");
			return;
		}
		if (npoint % 256 ==
		    0) /* now and then somebody is fast, slow, or stopped for a while */
			for (uint32_t i = 0; i < nactor; i++)
				actor[i].weight = chance(4) ? 1 + chance(8) : chance(2) * 100;
		for (uint32_t i = 0; i < nactor; i++)
			sum += actor[i].over ? 0 : actor[i].weight;
		if (sum == 0) {
			npoint += 255 - npoint % 256;
			continue;
		}
		pick = chance(sum);
		for (running = 0; actor[running].over || pick >= actor[running].weight; running++)
			pick -= actor[running].over ? 0 : actor[running].weight;
		actor_enter();
		alive = 0;
		for (uint32_t i = 0; i < nactor; i++)
			alive += !actor[i].over;
	}
}

static inline struct shared_rank *rank_new(void)
{
	struct shared_rank *r = aligned_alloc(_Alignof(struct shared_rank), sizeof *r);

	memset(r, 0, sizeof *r);
	return r;
}

/* For the teardown. */
static inline int stacks_free(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < ACTORS_MAX; i++)
		free(TAKE(actor[i].stack));
	return 0;
}
#endif
