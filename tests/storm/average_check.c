/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_check.c - are the averages of committed steps those of an undisturbed run that took in
 * the same steps? Called by storm.sh.
 *
 *	average_check MASTERS PARAMETERS SPEC EDGES < ROWS
 *
 * MASTERS: what trainer --masters wrote, of a model of about so many PARAMETERS. EDGES: lines "STEP
 * FROM", one for each time that a daemon made the averages of STEP from those of FROM, the oldest
 * first: a chain takes them in this order, which leaves few chains to try. ROWS: lines
 * "STEP SINCE UPDATES LAST HISTORY FILE", one for each committed step, ascending; FILE is a
 * safetensors file with its average in FP32. From where an average began the check goes along the
 * edges until the history is the one that the step says, and computes the average anew, with plain
 * arithmetic of its own. Exit status: 0 all are equal; 1 with a line for each that is not.
 *
 * Invariant: a step for which no chain is found counts as wrong.
 */
#include "ckpt/base/error.h"
#include "ema/spec.h"
#include "tests/lib/strict_safetensors.c" /* NOLINT(bugprone-suspicious-include): as its header says */
#include "tests/trainer/model.h"
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
	float *e, *c; /* the average, and its carry */
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
	struct model_shape shape;
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

static struct node copied(const struct ema_state *before, const struct ema_update *u, uint64_t step)
{
	struct node ret = { .state = ema_state_after(before, u, k.canonical, step),
			    .e = weights(step),
			    .c = calloc(k.n, sizeof *ret.c) };

	if (!ret.c)
		die("memory", strerror(ENOMEM));
	return ret;
}

static void node_free(struct node x)
{
	free(x.e);
	free(x.c);
}

/* The average of node x, with step taken in; x's values stay. */
static struct node after(const struct node *x, uint64_t step)
{
	struct ema_update u = ema_schedule_update(&k.spec->schedule, &x->state, step);
	struct node ret = copied(&x->state, &u, step);

	for (uint64_t i = 0; i < k.n && !u.copy; i++) {
		float p = ret.e[i], e = x->e[i], y = fmaf(u.a, p - e, -x->c[i]);

		if (k.spec->kahan) {
			ret.e[i] = e + y;
			ret.c[i] = (ret.e[i] - e) - y;
		} else {
			ret.e[i] = u.a < 0.5f ? fmaf(u.a, p - e, e) : fmaf(u.a - 1, p - e, p);
		}
	}
	return ret;
}

static int is_end(const struct ema_state *s, const struct row *r)
{
	return s->last_step == r->last && s->since == r->since &&
	       memcmp(s->history, r->history, sizeof s->history) == 0;
}

/* way[n * (last + 1) + step]: from this step, n edges lead to r->last. Without it, find would try
 * all ways that lead nowhere, and their number doubles with every step that was taken twice. */
static uint8_t *ways(const struct row *r)
{
	uint64_t row = r->last + 1;
	uint8_t *way = calloc(r->updates + 1, row);

	if (!way)
		die("memory", strerror(ENOMEM));
	way[r->last] = 1;
	for (uint64_t n = 1; n <= r->updates; n++)
		for (size_t i = 0; i < k.nedge; i++)
			if (k.edge[i].step <= r->last && k.edge[i].from <= r->last)
				way[n * row + k.edge[i].from] |=
					way[(n - 1) * row + k.edge[i].step];
	return way;
}

/* Along the edges from number first on, states alone: path[] gets the steps. Returns how many, or -1. */
static int find(struct ema_state s, const struct row *r, const uint8_t *way, uint64_t *path,
		int depth, size_t first)
{
	if (is_end(&s, r))
		return depth;
	if (s.updates >= r->updates || s.last_step > r->last || ++k.tries > TRIES_MAX)
		return -1;
	if (!way[(r->updates - s.updates) * (r->last + 1) + s.last_step])
		return -1;
	for (size_t i = first; i < k.nedge; i++) {
		struct ema_update u;
		int n;

		if (k.edge[i].from != s.last_step || k.edge[i].step > r->last)
			continue;
		u = ema_schedule_update(&k.spec->schedule, &s, k.edge[i].step);
		path[depth] = k.edge[i].step;
		n = find(ema_state_after(&s, &u, k.canonical, k.edge[i].step), r, way, path,
			 depth + 1, i + 1);
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
	node_add(copied(&none, &copy, since));
}

/* Sets *ret_why where they are not. */
static bool equal(const float *want, const char *path, const char **ret_why)
{
	static char why[200];
	struct strict_file f = { 0 };
	bool same = true;

	*ret_why = why;
	if (!strict_load(path, &f, why))
		return false;
	for (uint32_t t = 0; t < MODEL_TENSORS && same; t++) {
		const struct model_tensor *m = &k.shape.tensor[t];
		const struct strict_tensor *x = strict_find(&f, m->name);
		uint64_t bytes = m->dim[0] * m->dim[1] * sizeof *want;

		same = x && !strcmp(x->dtype, "F32") && x->end - x->begin == bytes &&
		       memcmp(want, f.bytes + f.data + x->begin, bytes) == 0;
		if (!same)
			snprintf(why, sizeof why, "%s is not that of the same chain", m->name);
		want += m->dim[0] * m->dim[1];
	}
	strict_free(&f);
	return same;
}

static int check(const struct row *r)
{
	uint64_t *path = calloc(r->updates + 1, sizeof *path);
	uint8_t *way;
	const char *why = "no chain of updates has the history that it says";
	struct node x = { 0 };
	size_t from;
	int n = -1;

	if (!path)
		die("memory", strerror(ENOMEM));
	begin_at(r->since);
	way = ways(r);
	/* The newest first: between that and this row there are few ways. */
	for (from = k.nnode; from > 0 && n < 0; from--) {
		k.tries = 0;
		if (k.node[from - 1].state.since != r->since)
			continue;
		n = find(k.node[from - 1].state, r, way, path, 0, 0);
		x = k.node[from - 1];
	}
	for (int i = 0; i < n; i++) {
		struct node y = after(&x, path[i]);

		if (i > 0)
			node_free(x);
		x = y;
	}
	if (n > 0)
		node_add(x); /* which keeps it */
	free(path);
	free(way);
	if (n >= 0 && equal(x.e, r->file, &why))
		return 0;
	printf("step %" PRIu64 ": %s\n", r->step, why);
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
	char history[33], *end;
	uint64_t params;
	int bad = 0, rows = 0;

	if (argc != 5)
		die("usage", "average_check MASTERS PARAMETERS SPEC EDGES < ROWS");
	k.masters = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (k.masters < 0)
		die(argv[1], strerror(errno));
	params = strtoull(argv[2], &end, 10);
	if (*end || params < MODEL_PARAMS_MIN || params > MODEL_PARAMS_MAX)
		die(argv[2], "not a number of parameters");
	model_shape_for(params, &k.shape);
	k.n = k.shape.params;
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
