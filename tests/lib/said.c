/* SPDX-License-Identifier: Apache-2.0 */
/* said.c - see said.h. */
#include "tests/lib/said.h"
#include "ckpt/base/log.h"
#include "ckpt/base/util.h"
#include "tests/lib/rank.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void said_line(void *ctx, int level, const char *line)
{
	struct said *s = ctx;

	if (getenv("CKPT_TEST_LOG"))
		log_to_stderr(NULL, level, line);
	if (s->level && level > s->level)
		return;
	pthread_mutex_lock(&s->lock);
	s->len += (size_t)snprintf(s->text + s->len, sizeof s->text - s->len, "%s\n", line);
	s->len = MIN(s->len, sizeof s->text - 1);
	pthread_mutex_unlock(&s->lock);
}

uint32_t said_times(struct said *s, const char *what)
{
	uint32_t n = 0;

	pthread_mutex_lock(&s->lock);
	for (const char *p = s->text; (p = strstr(p, what)); p++)
		n++;
	pthread_mutex_unlock(&s->lock);
	return n;
}

void said_await(struct said *s, const char *what)
{
	rank_must(soon(said_times(s, what)), what, __FILE__, __LINE__, s->text);
}

void said_forget(struct said *s)
{
	pthread_mutex_lock(&s->lock);
	s->len = 0;
	s->text[0] = 0;
	pthread_mutex_unlock(&s->lock);
}
