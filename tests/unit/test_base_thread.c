/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_thread.c - starting threads, and the queue between them. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include "ckpt/base/thread.h"
#include "tests/lib/unit.h"

struct seen {
	char name[16];
	int policy;
	sigset_t blocked;
};

static void *look_around(void *arg)
{
	struct seen *s = arg;

	pthread_getname_np(pthread_self(), s->name, sizeof s->name);
	s->policy = sched_getscheduler(0);
	pthread_sigmask(SIG_SETMASK, NULL, &s->blocked);
	return s;
}

TEST(a_thread_has_its_name_its_policy_and_no_signals)
{
	sigset_t before, after;
	struct seen s[2];
	void *ret;
	pthread_t t;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	for (int batch = 0; batch < 2; batch++) {
		assert_int_equal(thread_start(&t, "fifteen-letters", batch, look_around, &s[batch]),
				 0);
		pthread_join(t, &ret);
		assert_ptr_equal(ret, &s[batch]);
		assert_string_equal(s[batch].name, "fifteen-letters");
		assert_int_equal(s[batch].policy, batch ? SCHED_BATCH : SCHED_OTHER);
		assert_true(sigismember(&s[batch].blocked, SIGTERM));
		assert_true(sigismember(&s[batch].blocked, SIGUSR1));
	}
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
	assert_int_equal(sigismember(&after, SIGUSR1), 0);
}

TEST(a_queue_is_bounded_and_keeps_its_order)
{
	int item[10];
	struct queue q;

	assert_int_equal(queue_init(&q, 3), 0);
	assert_null(queue_try_pop(&q));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 3; i++)
			assert_true(i ? queue_try_push(&q, &item[i]) : queue_push(&q, &item[i]));
		assert_false(queue_try_push(&q, &item[3]));
		assert_ptr_equal(queue_pop(&q), &item[0]);
		assert_true(queue_try_push(&q, &item[3]));
		for (int i = 1; i <= 3; i++)
			assert_ptr_equal(i == 2 ? queue_try_pop(&q) : queue_pop(&q), &item[i]);
	}
	queue_destroy(&q);
}

TEST(a_closed_queue_gives_out_what_it_holds_and_takes_nothing)
{
	int item;
	struct queue q;

	assert_int_equal(queue_init(&q, 2), 0);
	assert_true(queue_push(&q, &item));
	queue_close(&q);
	assert_false(queue_push(&q, &item));
	assert_false(queue_try_push(&q, &item));
	assert_ptr_equal(queue_pop(&q), &item);
	assert_null(queue_pop(&q));
	assert_null(queue_try_pop(&q));
	queue_close(&q);
	queue_destroy(&q);
}

enum { PER_PRODUCER = 20000, PRODUCERS = 3, CONSUMERS = 3 };

struct traffic {
	struct queue q;
	atomic_uint seen[PER_PRODUCER * PRODUCERS];
};

struct producer {
	struct traffic *t;
	size_t first;
};

static void *produce(void *arg)
{
	struct producer *p = arg;

	for (size_t i = 0; i < PER_PRODUCER; i++)
		if (!queue_push(&p->t->q, &p->t->seen[p->first + i]))
			return p;
	return NULL;
}

static void *consume(void *arg)
{
	struct traffic *t = arg;
	atomic_uint *word;

	while ((word = queue_pop(&t->q)))
		atomic_fetch_add_explicit(word, 1, memory_order_relaxed);
	return NULL;
}

TEST(every_item_arrives_once_among_many_threads)
{
	static struct traffic t;
	struct producer p[PRODUCERS];
	pthread_t prod[PRODUCERS], cons[CONSUMERS];
	void *ret;

	assert_int_equal(queue_init(&t.q, 7), 0);
	for (size_t i = 0; i < CONSUMERS; i++)
		assert_int_equal(thread_start(&cons[i], "consumer", false, consume, &t), 0);
	for (size_t i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){ &t, i * PER_PRODUCER };
		assert_int_equal(thread_start(&prod[i], "producer", true, produce, &p[i]), 0);
	}
	for (size_t i = 0; i < PRODUCERS; i++) {
		pthread_join(prod[i], &ret);
		assert_null(ret);
	}
	queue_close(&t.q);
	for (size_t i = 0; i < CONSUMERS; i++)
		pthread_join(cons[i], NULL);
	for (size_t i = 0; i < ARRAY_LEN(t.seen); i++)
		assert_int_equal(atomic_load(&t.seen[i]), 1);
	queue_destroy(&t.q);
}

static void *pop_one(void *arg)
{
	return queue_pop(arg);
}

static void *push_one(void *arg)
{
	return queue_push(arg, arg) ? arg : NULL;
}

/* Close must let a thread go that waits already, and one that comes later: both orders occur. */
TEST(close_lets_waiting_threads_go)
{
	void *a, *b;

	for (int i = 0; i < 200; i++) {
		struct queue empty, full;
		pthread_t t[2];

		assert_int_equal(queue_init(&empty, 1), 0);
		assert_int_equal(queue_init(&full, 1), 0);
		assert_true(queue_push(&full, &full));
		assert_int_equal(thread_start(&t[0], "pop", false, pop_one, &empty), 0);
		assert_int_equal(thread_start(&t[1], "push", false, push_one, &full), 0);
		if (i % 2)
			sched_yield();
		queue_close(&empty);
		queue_close(&full);
		pthread_join(t[0], &a);
		pthread_join(t[1], &b);
		assert_null(a);
		assert_null(b);
		queue_destroy(&empty);
		queue_destroy(&full);
	}
}
