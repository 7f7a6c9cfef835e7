/* SPDX-License-Identifier: Apache-2.0 */
/* said.h - a log that keeps what was said, for tests to look for sentences. */
#ifndef TESTS_SAID_H
#define TESTS_SAID_H
#include "ckpt/base/util.h"
#include "tests/lib/rank.h"
#include <stdatomic.h>
#include <stdio.h>

struct said {		       /* zeros: nothing yet */
	_Atomic uint32_t lock; /* protects the rest */
	char text[1 << 16];
	size_t len;
};

static inline void said_lock(struct said *s)
{
	while (atomic_exchange(&s->lock, 1))
		usleep(100);
}

/* A sink of struct log, and ckpt_opts.log. */
static inline void said_line(void *ctx, int level, const char *line)
{
	struct said *s = ctx;

	(void)level;
	said_lock(s);
	s->len += (size_t)snprintf(s->text + s->len, sizeof s->text - s->len, "%s\n", line);
	s->len = MIN(s->len, sizeof s->text - 1);
	atomic_store(&s->lock, 0);
}

static inline uint32_t said_times(struct said *s, const char *what)
{
	uint32_t n = 0;

	said_lock(s);
	for (const char *p = s->text; (p = strstr(p, what)); p++)
		n++;
	atomic_store(&s->lock, 0);
	return n;
}

static inline void said_await(struct said *s, const char *what)
{
	for (uint64_t end = now_ns() + 20 * NS_PER_S; said_times(s, what) == 0; usleep(2000))
		rank_must(now_ns() < end, what, __FILE__, __LINE__, s->text);
}
#endif
