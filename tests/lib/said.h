/* SPDX-License-Identifier: Apache-2.0 */
/* said.h - a log that keeps what was said, for tests to look for sentences. CKPT_TEST_LOG=1 shows
 * it. */
#ifndef TESTS_SAID_H
#define TESTS_SAID_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct said {
	pthread_mutex_t lock; /* protects the rest */
	int level;	      /* the most that is kept, as LOG_WARNING; 0: everything */
	size_t len;
	char text[1 << 20];
};
#define SAID_NOTHING                                        \
	{                                                   \
		.lock = PTHREAD_MUTEX_INITIALIZER, .len = 0 \
	}

void said_line(void *said, int level,
	       const char *line); /* a sink of struct log, and ckpt_opts.log */
uint32_t said_times(struct said *s, const char *what);
void said_await(struct said *s, const char *what); /* until it was said */
void said_forget(struct said *s);
#endif
