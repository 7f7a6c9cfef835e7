/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads and the bounded queue between them. */
#ifndef CKPT_BASE_THREAD_H
#define CKPT_BASE_THREAD_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Start a joinable thread with all signals blocked, a name (at most 15 bytes) and, with batch,
 * SCHED_BATCH: a waking batch thread does not preempt the thread that woke it, which is the
 * training thread. Naming and SCHED_BATCH are best effort. 0 or a negative errno. */
int thread_start(pthread_t *ret_thread, const char *name, bool batch, void *(*run)(void *),
		 void *arg);

/* A bounded multi-producer multi-consumer queue of pointers. */
struct queue {
	pthread_mutex_t lock; /* protects all below */
	pthread_cond_t filled, drained;
	void **item;
	uint32_t cap, head, n;
	bool closed;
};
int queue_init(struct queue *q, uint32_t cap);
void queue_destroy(struct queue *q);
bool queue_push(struct queue *q, void *item);	  /* waits for space; false when closed */
bool queue_try_push(struct queue *q, void *item); /* false when full or closed */
void *queue_pop(struct queue *q);		  /* waits; NULL when closed and empty */
void *queue_try_pop(struct queue *q);		  /* NULL when empty */
void queue_close(struct queue *q);
#endif
