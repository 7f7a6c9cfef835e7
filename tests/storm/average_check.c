/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_check.c - are the averages of committed steps those of an undisturbed run that took in the
 * same steps? Called by storm.sh.
 *
 *	average_check MASTERS PARAMETERS SPEC EDGES < ROWS
 *
 * MASTERS: what trainer --masters wrote. EDGES: lines "STEP FROM", one for each update that a daemon
 * has made, of the step FROM. ROWS: lines "STEP SINCE UPDATES LAST HISTORY FILE", one for each
 * committed step, ascending; FILE has its average, in the masters' order. From where an average began it goes
 * along the edges until its history is the one that the step says, and computes the average anew, with plain
 * arithmetic of its own. Exit status: 0 all are equal; 1 with a line for each that is not.
 *
 * Invariant: a step for which no chain is found counts as wrong.
 */
#include "ckpt/base/error.h"
#include "ema/spec.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
	struct ema_state state;
	float *e;
};
struct edge {
	uint64_t step, from;
};
struct row {
	uint64_t step, since, updates, last;
	uint8_t history[16];
	char file[512];
};

static struct check {
	int masters;
	uint64_t n; /* parameters */
	const struct ema_spec *spec;
	char canonical[EMA_SPEC_BYTES];
	struct edge *edge;
	size_t nedge;
	struct node *node; /* where averages began, and those of the rows so far */
	size_t nnode;
	uint64_t tries;
} k;

#define TRIES_MAX 1000000 /* a bound of the search between two nodes */

static void die(const char *what, const char *why)
{
	fprintf(stderr, "average_check: %s: %s\n", what, why);
	exit(2);
}

static void *grown(void *p, size_t n, size_t size)
{
	p = reallocarray(p, n + 1, size);
	if (!p)
		die("memory", strerror(ENOMEM));
	return p;
}

static float *weights(uint64_t step)
{
	size_t bytes = k.n * sizeof(float);
	float *p = malloc(bytes);

	if (!p || pread(k.masters, p, bytes, (off_t)(step * bytes)) != (ssize_t)bytes)
		die("masters", "a step is not there");
	return p;
}

/* The average of node x, with step taken in; x's values stay. */
static struct node after(const struct node *x, uint64_t step)
{
	struct ema_update u = ema_schedule_update(&k.spec->schedule, &x->state, step);
	struct node ret = { .state = ema_state_after(&x->state, &u, k.canonical, step),
			    .e = weights(step) };

	for (uint64_t i = 0; i < k.n && !u.copy; i++) {
		float p = ret.e[i], e = x->e[i];

		ret.e[i] = u.a < 0.5f ? fmaf(u.a, p - e, e) : fmaf(u.a - 1, p - e, p);
	}
	return ret;
}

static int is_end(const struct ema_state *s, const struct row *r)
{
	return s->last_step == r->last && s->since == r->since &&
	       memcmp(s->history, r->history, sizeof s->history) == 0;
}

/* Along the edges, states alone: path[] gets the steps. Returns how many, or -1. */
static int find(struct ema_state s, const struct row *r, uint64_t *path, int depth)
{
	if (is_end(&s, r))
		return depth;
	if (s.updates >= r->updates || ++k.tries > TRIES_MAX)
		return -1;
	for (size_t i = 0; i < k.nedge; i++) {
		struct ema_update u;
		int n;

		if (k.edge[i].from != s.last_step || k.edge[i].step > r->last)
			continue;
		u = ema_schedule_update(&k.spec->schedule, &s, k.edge[i].step);
		path[depth] = k.edge[i].step;
		n = find(ema_state_after(&s, &u, k.canonical, k.edge[i].step), r, path, depth + 1);
		if (n >= 0)
			return n;
	}
	return -1;
}

static void node_add(struct node x)
{
	k.node = grown(k.node, k.nnode, sizeof *k.node);
	k.node[k.nnode++] = x;
}

static void begin_at(uint64_t since)
{
	struct ema_state none = ema_state_new(k.canonical);
	const struct ema_update copy = { .copy = true, .a = 1 };

	for (size_t i = 0; i < k.nnode; i++)
		if (k.node[i].state.since == since && k.node[i].state.updates == 0)
			return;
	node_add((struct node){ .state = ema_state_after(&none, &copy, k.canonical, since),
				.e = weights(since) });
}

static int equal(const float *want, const char *path)
{
	size_t bytes = k.n * sizeof *want;
	float *have = malloc(bytes + 1);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int same = have && fd >= 0 && read(fd, have, bytes + 1) == (ssize_t)bytes &&
		   memcmp(want, have, bytes) == 0;

	if (fd >= 0)
		(void)close(fd);
	free(have);
	return same;
}

static int check(const struct row *r)
{
	uint64_t *path = calloc(r->updates + 1, sizeof *path);
	struct node x = { 0 };
	int n = -1;
	size_t from;

	begin_at(r->since);
	/* The newest first: between that and this row there are few ways. */
	for (from = k.nnode; from-- > 0 && n < 0 && path;) {
		k.tries = 0;
		n = find(k.node[from].state, r, path, 0);
		if (n >= 0)
			x = k.node[from];
	}
	for (int i = 0; i < n; i++) {
		struct node y = after(&x, path[i]);

		node_add(y); /* which keeps it */
		x = y;
	}
	free(path);
	if (n < 0)
		printf("step %" PRIu64 ": no chain of updates has the history that it says\n",
		       r->step);
	else if (!equal(x.e, r->file))
		printf("step %" PRIu64 ": its average is not that of the same chain\n", r->step);
	else
		return 0;
	return 1;
}

static int hex(const char *text, uint8_t ret[16])
{
	for (int i = 0; i < 16; i++)
		if (sscanf(text + 2 * i, "%2hhx", &ret[i]) != 1)
			return -1;
	return 0;
}

static void edges_read(const char *path)
{
	FILE *f = fopen(path, "re");
	struct edge e;

	if (!f)
		die(path, strerror(errno));
	while (fscanf(f, "%" SCNu64 " %" SCNu64, &e.step, &e.from) == 2) {
		k.edge = grown(k.edge, k.nedge, sizeof *k.edge);
		k.edge[k.nedge++] = e;
	}
	fclose(f);
}

int main(int argc, char **argv)
{
	struct ema_spec *spec = NULL;
	struct ckpt_err err = { 0 };
	struct row r;
	char history[33];
	int bad = 0, rows = 0;

	if (argc != 5)
		die("usage", "average_check MASTERS PARAMETERS SPEC EDGES < ROWS");
	k.masters = open(argv[1], O_RDONLY | O_CLOEXEC);
	k.n = strtoull(argv[2], NULL, 10);
	if (k.masters < 0 || !k.n)
		die(argv[1], "no masters, or no number of parameters");
	if (ema_spec_parse(argv[3], &spec, &err) < 0 || ema_spec_print(spec, 0, k.canonical) < 0)
		die(argv[3], err.msg);
	k.spec = spec;
	edges_read(argv[4]);
	while (scanf("%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %32s %511s", &r.step,
		     &r.since, &r.updates, &r.last, history, r.file) == 6) {
		rows++;
		if (hex(history, r.history) < 0)
			die(history, "not a history");
		bad += check(&r);
	}
	if (!rows)
		die("rows", "there is no committed step with an average");
	printf("%d steps, %d wrong\n", rows, bad);
	return bad > 0;
}
