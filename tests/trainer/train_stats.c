/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_stats.c - collects stall samples and writes them as a line of JSON. Called by train.c on
 * rank 0. Invariant: without --print-stats nothing here allocates or asks the library anything.
 */
#include "train_stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES_MAX (1u << 20) /* a demo takes dozens, a bench hundreds */
#define MEMCPY_ROUNDS 5

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t preempted_times(void)
{
	struct rusage u;

	return getrusage(RUSAGE_THREAD, &u) == 0 ? (uint64_t)u.ru_nivcsw : 0;
}

/* A sample that finds no room is left out. */
static void samples_add(struct samples *s, uint64_t ns)
{
	if (s->n == s->cap) {
		uint32_t cap = s->cap ? 2 * s->cap : 256;
		uint64_t *grown = cap > SAMPLES_MAX ? NULL : realloc(s->ns, cap * sizeof *s->ns);

		if (!grown)
			return;
		s->ns = grown;
		s->cap = cap;
	}
	s->ns[s->n++] = ns;
}

void train_stats_memcpy(struct train_stats *s, void *const state[2], const uint64_t bytes[2])
{
	char *copy = malloc(bytes[0] + bytes[1]);

	s->state_bytes = bytes[0] + bytes[1];
	if (!copy)
		return;
	for (int i = 0; i < MEMCPY_ROUNDS; i++) {
		uint64_t start = now_ns();

		for (int k = 0; k < 2; k++)
			memcpy(copy + (k ? bytes[0] : 0), state[k], bytes[k]);
		__asm__ volatile("" : : "r"(copy) : "memory"); /* the copy is not dead */
		uint64_t ns = now_ns() - start;

		if (i == 0 || ns < s->memcpy_ns)
			s->memcpy_ns = ns;
	}
	free(copy);
}

void train_stats_snapshot(struct train_stats *s, int result, uint64_t ns, uint64_t preempted)
{
	s->asked++;
	s->copying = result == 0 || result == CKPT_FAILING;
	s->snapshot_ns = ns;
	s->preempted = preempted > 0;
}

void train_stats_guard(struct train_stats *s, int result, uint64_t ns, uint64_t preempted)
{
	if (s->on && s->copying && result == 0) {
		samples_add(&s->stall, s->snapshot_ns + ns);
		s->stall_preempted += s->preempted || preempted > 0;
	}
	s->copying = false;
}

void train_stats_look(struct train_stats *s, ckpt *c)
{
	struct ckpt_stats now = { .size = sizeof now };

	if (!s->on || ckpt_stats(c, &now) < 0)
		return;
	if (now.staged > s->last.staged)
		samples_add(&s->staged, now.staged_ns);
	if (now.persisted > s->last.persisted)
		samples_add(&s->persisted, now.persisted_ns);
	if (now.committed > s->last.committed)
		samples_add(&s->committed, now.committed_ns);
	s->last = now;
}

static void write_samples(FILE *f, const char *key, const struct samples *s)
{
	fprintf(f, ",\"%s\":[", key);
	for (uint32_t i = 0; i < s->n; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", s->ns[i]);
	fputc(']', f);
}

static void write_object(FILE *f, const struct train_stats *s, const char *head)
{
	const struct ckpt_stats *k = &s->last;

	fprintf(f,
		"%s\"snapshots_asked\":%" PRIu64 ",\"state_bytes\":%" PRIu64
		",\"job_state_bytes\":%" PRIu64 ",\"memcpy_ns\":%" PRIu64,
		head, s->asked, s->state_bytes, s->job_state_bytes, s->memcpy_ns);
	fprintf(f,
		",\"taken\":%" PRIu64 ",\"skipped\":%" PRIu64 ",\"torn\":%" PRIu64
		",\"staged\":%" PRIu64 ",\"persisted\":%" PRIu64 ",\"committed\":%" PRIu64
		",\"failed\":%" PRIu64 ",\"last_committed_step\":%" PRIu64,
		k->taken, k->skipped, k->torn, k->staged, k->persisted, k->committed, k->failed,
		k->last_committed_step);
	fprintf(f,
		",\"stall_ns_sum\":%" PRIu64 ",\"stall_ns_max\":%" PRIu64 ",\"copy_bytes\":%" PRIu64
		",\"copy_ns\":%" PRIu64 ",\"unguarded\":%" PRIu64 ",\"reattached\":%" PRIu64,
		k->stall_ns_sum, k->stall_ns_max, k->copy_bytes, k->copy_ns, k->unguarded,
		k->reattached);
	fprintf(f, ",\"stall_preempted\":%" PRIu64, s->stall_preempted);
	write_samples(f, "stall_ns", &s->stall);
	write_samples(f, "staged_ns", &s->staged);
	write_samples(f, "persisted_ns", &s->persisted);
	write_samples(f, "committed_ns", &s->committed);
	fputs("}\n", f);
}

int train_stats_write(const struct train_stats *s, const char *path, const char *head)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);

	if (!f)
		return -errno;
	write_object(f, s, head);
	if (fclose(f) != 0) {
		free(text);
		return -ENOMEM;
	}
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	ssize_t n = fd < 0 ? -1 : write(fd, text, bytes);
	int r = n < 0 ? -errno : (size_t)n < bytes ? -ENOSPC : 0;

	if (fd >= 0)
		close(fd);
	free(text);
	return r;
}
