/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm_check.c - does every committed step hold, bit for bit, what an undisturbed run has? Called
 * by storm.sh.
 *
 *	storm_check EDGES TRAINER-OPTION...
 *
 * It trains by itself to --steps: one rank, no ckptd, the arithmetic of tests/trainer. Then it
 * compares, with what step_files.c reads of the directory --root/--job, of each step there, also of
 * those that were set aside:
 *
 *	every element of every tensor, of the blobs, and the note loss; a tensor too few or too
 *	many is wrong, and so is base.weight of another class than that step gives it;
 *	every element of every --average, its carries too: along the chain of steps that the step's
 *	own record says, by schedules, rules and sums that are written down here a second time.
 *
 * --losses: a file that all runs have appended to; each line must be right, and no step missing.
 * EDGES: lines "STEP FROM", one for each time that a daemon made the averages of STEP from those of
 * FROM, the oldest first (STEP is FROM: they had to begin anew): a chain takes them in this order, which leaves few chains to try. Of
 * ckptd there is nothing in this program but hash128.
 *
 * Exit status: 0 all are equal; 1 with a line for each tensor that is not; 2 it cannot be said.
 * Invariant: what cannot be compared is wrong.
 */
#include "ckpt/base/hash.h"
#include "ckpt/ckpt.h"
#include "tests/storm/step_files.h"
#include "tests/trainer/corpus.h"
#include "tests/trainer/events.h"
#include "tests/trainer/train_args.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_STEP UINT64_MAX
#define TRIES_MAX 1000000 /* a bound of the search for one chain */
#define NAME_BYTES 128
#define RULES_MAX 8
#define WORD_BYTES 160

enum preset { CONSTANT, TIMM, DIFFUSERS, HALFLIFE, POWER, UNIFORM, ZERO };
struct schedule {
	enum preset preset;
	bool warmup;
	long double decay, fraction, gamma, power, min_decay;
};
enum act { AVERAGE, COPY, SKIP };
struct rule {
	char pattern[WORD_BYTES];
	enum act act;
	uint32_t row; /* of AVERAGES; 0: the average's own schedule */
};
struct spec {
	const char *name;
	struct schedule row[1 + RULES_MAX];
	struct rule rule[RULES_MAX];
	uint32_t nrow, nrule;
	bool of_param, kahan, has_gate;
	double gate;
	uint64_t unbegun; /* a step into which nothing had been taken so far; 0: there is none */
};

struct state { /* of an average: what a record of AVERAGES says */
	uint64_t updates, last, since;
	uint8_t history[16];
};
struct node { /* an average behind a step that is committed, or behind the one where it began */
	uint32_t spec, row;
	uint64_t at;
	struct state state;
	float *e, *c;
};
struct edge {
	uint64_t step, from;
};
struct found {
	char path[512];
	uint64_t step;
};

static struct check {
	struct train_args args;
	struct events events;
	struct corpus corpus;
	struct model_shape shape;
	struct spec spec[AVERAGES_MAX];
	struct found *found;
	struct edge *edge; /* as they were made; down: by step, the highest first */
	struct edge *down;
	struct node *node;
	size_t nfound, nedge, nnode;
	/* the run: the newest step, and of each step that averages may need the weights */
	struct model_part part[MODEL_TENSORS];
	uint16_t *gathered;
	struct model_batch batch;
	double *loss;
	bool *wanted;
	float **master, **param;
	uint8_t *base;
	uint64_t base_step;
	uint64_t wrong, tries, tensors, bytes, averages, derived, linked, aside, nan_steps,
		noteless;
} k;

static _Noreturn void die(const char *what, const char *why)
{
	fprintf(stderr, "storm_check: %s: %s\n", what, why);
	exit(2);
}

static void *grown(void *p, size_t n, size_t size)
{
	p = reallocarray(p, n + 1, size);
	if (!p)
		die("memory", strerror(ENOMEM));
	return p;
}

static void *zeroed(uint64_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (!p)
		die("memory", strerror(ENOMEM));
	return p;
}

__attribute__((format(printf, 2, 3))) static void wrong(const struct found *f, const char *fmt, ...)
{
	bool aside = strstr(f->path, "/.old-") != NULL;
	va_list ap;

	k.wrong++;
	printf("step %" PRIu64 "%s: ", f->step, aside ? ", set aside" : "");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

/* ---- the specs ---- */

static long double value(const char *word)
{
	return strtold(strchr(word, '=') + 1, NULL);
}

static struct schedule schedule_new(const char *name)
{
	static const char *const known[] = { "constant", "timm",    "diffusers", "halflife",
					     "power",	 "uniform", "zero" };
	struct schedule ret = { .gamma = 1, .power = 2 / 3.0 };

	for (uint32_t i = 0; i <= ZERO; i++) {
		ret.preset = i;
		if (!strcmp(name, known[i]))
			return ret;
	}
	die(name, "no schedule that this program can do");
}

static bool begins(const char *word, const char *with)
{
	return strncmp(word, with, strlen(with)) == 0;
}

/* false: it is none of a schedule. */
static bool schedule_word(struct schedule *s, const char *word)
{
	if (begins(word, "decay="))
		s->decay = strtod(word + 6, NULL); /* a double, as everywhere */
	else if (begins(word, "fraction="))
		s->fraction = strtod(word + 9, NULL);
	else if (begins(word, "gamma="))
		s->gamma = strtod(word + 6, NULL);
	else if (begins(word, "power="))
		s->power = strtod(word + 6, NULL);
	else if (begins(word, "min_decay="))
		s->min_decay = strtod(word + 10, NULL);
	else if (!strcmp(word, "warmup=1"))
		s->warmup = true;
	else
		return false;
	return true;
}

/* The next word, up to a blank outside of parentheses; false: there is none. */
static bool word_next(const char **at, char ret[WORD_BYTES])
{
	size_t n = 0;
	int depth = 0;

	while (**at == ' ')
		++*at;
	for (; **at && (depth || **at != ' ') && n < WORD_BYTES - 1; ++*at) {
		depth += (**at == '(') - (**at == ')');
		ret[n++] = **at;
	}
	ret[n] = 0;
	return n > 0;
}

static void rule_add(struct spec *s, const char *word)
{
	struct rule *r = &s->rule[s->nrule++];
	const char *act = strchr(word, '=');
	char inner[WORD_BYTES], part[WORD_BYTES];
	const char *at = inner;

	if (!act || s->nrule > RULES_MAX)
		die(word, "no word that this program can do");
	snprintf(r->pattern, sizeof r->pattern, "%.*s", (int)(act - word), word);
	act++;
	r->act = !strcmp(act, "copy") ? COPY : !strcmp(act, "skip") ? SKIP : AVERAGE;
	if (*act != '(')
		return;
	snprintf(inner, sizeof inner, "%.*s", (int)strlen(act) - 2, act + 1);
	r->row = s->nrow++;
	word_next(&at, part);
	s->row[r->row] = schedule_new(part);
	while (word_next(&at, part))
		if (!schedule_word(&s->row[r->row], part))
			die(part, "no word that this program can do");
}

static void spec_read(struct spec *s, const char *name, const char *text)
{
	char word[WORD_BYTES];

	*s = (struct spec){ .name = name, .nrow = 1 };
	word_next(&text, word);
	s->row[0] = schedule_new(word);
	while (word_next(&text, word)) {
		if (!strcmp(word, "kahan")) {
			s->kahan = true;
		} else if (!strcmp(word, "source=param")) {
			s->of_param = true;
		} else if (begins(word, "gate_loss=")) {
			s->has_gate = true;
			s->gate = (double)value(word);
		} else if (!schedule_word(&s->row[0], word)) {
			rule_add(s, word);
		}
	}
}

/* What becomes of a parameter: the first rule that matches counts. */
static enum act judged(const struct spec *s, const char *name, uint32_t *ret_row)
{
	char full[NAME_BYTES];

	snprintf(full, sizeof full, "model/%s", name);
	*ret_row = 0;
	for (uint32_t i = 0; i < s->nrule; i++) {
		const struct rule *r = &s->rule[i];

		if (fnmatch(r->pattern, strchr(r->pattern, '/') ? full : name, FNM_NOESCAPE))
			continue;
		*ret_row = r->row;
		return r->act;
	}
	return AVERAGE;
}

/* ---- schedules and sums: docs/AVERAGES.md ---- */

static long double clipped(long double x, const struct schedule *s)
{
	x = x < s->decay ? x : s->decay;
	return (double)(x > s->min_decay ? x : s->min_decay);
}

/* How much of the step comes in. 1: it is copied. */
static float share(const struct schedule *s, const struct state *before, uint64_t step)
{
	long double d = 0, steps = (long double)step, past = (long double)(step - before->last);

	switch (s->preset) {
	case CONSTANT:
		d = powl(s->decay, past);
		break;
	case TIMM:
	case DIFFUSERS:
		d = s->preset == TIMM ? s->decay : clipped(steps / (steps + 9), s);
		if (s->warmup)
			d = clipped(1 - powl(1 + (steps - 1) / s->gamma, -s->power), s);
		d = step == 1 ? 0 : powl(d, past);
		break;
	case HALFLIFE:
		d = exp2l(-past / (s->fraction * steps));
		break;
	case POWER:
		d = past < steps ? powl(1 - past / steps, s->gamma + 1) : 0;
		break;
	case UNIFORM:
		return (float)(1 / ((double)before->updates + 2));
	case ZERO:
		return (float)(double)((1 - powl(s->decay, past)) /
				       (1 -
					powl(s->decay, steps - (long double)before->since + 1)));
	}
	return (float)(1 - (double)d);
}

static void chain(uint8_t history[16], uint64_t step, uint64_t last)
{
	uint8_t link[32];
	struct hash128 h;

	memcpy(link, history, 16);
	for (int i = 0; i < 8; i++) {
		link[16 + i] = (uint8_t)(step >> 8 * i);
		link[24 + i] = (uint8_t)(last >> 8 * i);
	}
	h = hash128(link, sizeof link);
	memcpy(history, h.b, 16);
}

static struct state state_copied(const char *canonical, uint64_t step)
{
	struct hash128 h = hash128(canonical, strlen(canonical));
	struct state ret = { .last = step, .since = step };

	memcpy(ret.history, h.b, 16);
	chain(ret.history, step, NO_STEP);
	return ret;
}

static struct state state_after(const struct schedule *s, const char *canonical, struct state x,
				uint64_t step)
{
	if (share(s, &x, step) >= 1)
		return state_copied(canonical, step);
	chain(x.history, step, x.last);
	x.updates++;
	x.last = step;
	return x;
}

static bool states_equal(const struct state *a, const struct state *b)
{
	return a->updates == b->updates && a->last == b->last && a->since == b->since &&
	       memcmp(a->history, b->history, sizeof a->history) == 0;
}

static const float *weights(const struct spec *s, uint64_t step)
{
	const float *w = (s->of_param ? k.param : k.master)[step];

	if (!w)
		die("a chain", "goes over a step that is in no edge");
	return w;
}

/* x's values, with the step taken in: they are the caller's, who replaces x's by them. */
static void take_in(const struct spec *s, const struct schedule *row, struct node *x, uint64_t step)
{
	const float *p = weights(s, step);
	float a = share(row, &x->state, step), *e = x->e, *c = x->c;

	for (uint64_t i = 0; i < k.shape.params; i++) {
		float was = e[i], y = fmaf(a, p[i] - was, -c[i]);

		if (a >= 1) {
			e[i] = p[i];
			c[i] = 0;
		} else if (s->kahan) {
			e[i] = was + y;
			c[i] = (e[i] - was) - y;
		} else {
			e[i] = a < 0.5f ? fmaf(a, p[i] - was, was) : fmaf(a - 1, p[i] - was, p[i]);
		}
	}
}

static struct node node_copied(uint32_t spec, uint32_t row, const char *canonical, uint64_t step)
{
	struct node ret = { .spec = spec, .row = row, .at = step };

	ret.state = state_copied(canonical, step);
	ret.e = zeroed(k.shape.params, sizeof *ret.e);
	ret.c = zeroed(k.shape.params, sizeof *ret.c);
	memcpy(ret.e, weights(&k.spec[spec], step), k.shape.params * sizeof *ret.e);
	return ret;
}

/* ---- chains ---- */

/* A step whose weights are not finite is in no average. One with too high a loss is in none that
 * has a gate, but for a daemon that found it staged, without its notes. */
static bool may_take(uint64_t step)
{
	return !nan_in_weights(&k.events, step);
}

static bool may_hold(const struct spec *s, uint64_t step)
{
	return !may_take(step) ||
	       (s->has_gate && (nan_step(&k.events, step) || k.loss[step] >= s->gate));
}

/* way[n * (to + 1) + step]: from this step edges lead to `to`, with n steps taken in on the way.
 * Without it, find would try all ways that lead nowhere, and their number doubles with every step
 * that was taken twice. */
static uint8_t *ways(const struct spec *s, uint64_t to, uint64_t updates)
{
	uint64_t row = to + 1;
	uint8_t *way = zeroed(updates + 1, row);

	way[to] = 1;
	for (uint64_t n = 0; n <= updates; n++)
		for (size_t i = 0; i < k.nedge; i++) {
			const struct edge *e = &k.down[i];
			uint8_t *from = &way[n * row + e->from];

			if (e->step > to || e->step == e->from)
				continue;
			if (may_hold(s, e->step))
				*from |= way[n * row + e->step];
			if (n && may_take(e->step))
				*from |= way[(n - 1) * row + e->step];
		}
	return way;
}

struct goal {
	const struct spec *spec;
	const struct schedule *row;
	const char *canonical;
	uint64_t to;
	struct state state;
	const uint8_t *way;
	uint64_t *path; /* the steps that are taken in */
};

/* From that step on, along the edges from number first on. Returns how many are taken in, or -1. */
static int find(const struct goal *g, uint64_t at, struct state s, int depth, size_t first)
{
	uint64_t row = g->to + 1, left = g->state.updates - s.updates;
	int n = -1;

	if (at == g->to && states_equal(&s, &g->state))
		return depth;
	if (s.since != g->state.since || s.updates > g->state.updates || ++k.tries > TRIES_MAX ||
	    !g->way[left * row + at])
		return -1;
	for (size_t i = first; i < k.nedge && n < 0; i++) {
		uint64_t step = k.edge[i].step;

		if (k.edge[i].from != at || step > g->to || step == at)
			continue;
		if (left && may_take(step)) {
			g->path[depth] = step;
			n = find(g, step, state_after(g->row, g->canonical, s, step), depth + 1,
				 i + 1);
		}
		if (n < 0 && may_hold(g->spec, step))
			n = find(g, step, s, depth, i + 1);
	}
	return n;
}

/* The average that a record of that step says; e NULL: no chain leads there. Its values are
 * k.node's. */
static struct node average_at(const struct found *f, uint32_t spec, const struct step_average *a)
{
	struct goal g = { .spec = &k.spec[spec],
			  .row = &k.spec[spec].row[a->rule],
			  .canonical = a->schedule,
			  .to = f->step,
			  .state = { a->updates, a->last_step, a->since, { 0 } } };
	struct node x = { 0 };
	bool begun = false;
	int n = -1;

	memcpy(g.state.history, a->history, 16);
	for (size_t i = 0; i < k.nnode; i++)
		begun |= k.node[i].spec == spec && k.node[i].row == a->rule &&
			 k.node[i].state.since == a->since && k.node[i].at == a->since;
	if (!begun) {
		k.node = grown(k.node, k.nnode, sizeof *k.node);
		k.node[k.nnode++] = node_copied(spec, a->rule, a->schedule, a->since);
	}
	g.path = zeroed(a->updates + 1, sizeof *g.path);
	g.way = ways(g.spec, f->step, a->updates);
	/* The newest first: between that and this step there are few ways. */
	for (size_t i = k.nnode; i > 0 && n < 0; i--) {
		x = k.node[i - 1];
		k.tries = 0;
		if (x.spec == spec && x.row == a->rule && x.at <= f->step &&
		    x.state.updates <= a->updates)
			n = find(&g, x.at, x.state, 0, 0);
	}
	if (n >= 0) {
		struct node y = x;

		y.e = zeroed(k.shape.params, sizeof *y.e);
		y.c = zeroed(k.shape.params, sizeof *y.c);
		memcpy(y.e, x.e, k.shape.params * sizeof *y.e);
		memcpy(y.c, x.c, k.shape.params * sizeof *y.c);
		for (int i = 0; i < n; i++) {
			take_in(g.spec, g.row, &y, g.path[i]);
			y.state = state_after(g.row, g.canonical, y.state, g.path[i]);
		}
		y.at = f->step;
		k.node = grown(k.node, k.nnode, sizeof *k.node);
		k.node[k.nnode++] = x = y;
	}
	free(g.path);
	free((void *)(uintptr_t)g.way);
	return n < 0 ? (struct node){ 0 } : x;
}

/* ---- what a step holds ---- */

static const struct step_tensor *tensor_named(const struct step_files *s, const char *component,
					      const char *name)
{
	for (uint32_t i = 0; i < s->ntensor; i++)
		if (!strcmp(s->tensor[i].component, component) && !strcmp(s->tensor[i].name, name))
			return &s->tensor[i];
	return NULL;
}

/* want: all elements, packed row-major. */
static void compare(const struct found *f, struct step_files *s, const struct step_tensor *t,
		    const void *want, uint64_t numel, uint32_t dtype)
{
	char why[200];
	const uint8_t *w = want;
	uint64_t at = 0, bytes = numel * t->elem_bytes;
	uint8_t *have;

	k.tensors++;
	k.bytes += bytes;
	if (t->dtype != dtype || t->numel != numel) {
		wrong(f, "%s/%s is of another shape or dtype", t->component, t->name);
		return;
	}
	have = step_read(s, t, why);
	if (!have) {
		wrong(f, "%s/%s: %s", t->component, t->name, why);
		return;
	}
	while (at < bytes && have[at] == w[at])
		at++;
	if (at < bytes)
		wrong(f,
		      "%s/%s: element %" PRIu64 " of %" PRIu64 ", byte %" PRIu64
		      ", is %02x and should be %02x",
		      t->component, t->name, at / t->elem_bytes, numel, at % t->elem_bytes,
		      have[at], w[at]);
	free(have);
}

static const uint8_t *base_at(uint64_t step)
{
	uint64_t rows = base_rows(&k.shape, k.args.frozen), row = BASE_WORDS * sizeof(uint64_t);

	if (k.base && (k.base_step == step || !k.events.thaw_every))
		return k.base;
	if (!k.base)
		k.base = zeroed(rows, row);
	for (uint64_t i = 0; i < rows; i++)
		base_row(&k.events, i, step, (uint64_t *)(void *)(k.base + i * row));
	k.base_step = step;
	return k.base;
}

/* Compares a tensor that a rank has declared. false: no rank declares such a one. */
static bool declared_is_right(const struct found *f, struct step_files *s,
			      const struct step_tensor *t)
{
	uint64_t n[COUNTS_MAX];
	union {
		struct train_cursor cursor;
		uint64_t rng[RNG_WORDS];
	} blob;

	if (t->blob && !strcmp(t->name, "cursor")) {
		event_cursor(&k.events, &k.corpus, f->step, &blob.cursor);
		compare(f, s, t, &blob, sizeof blob.cursor, CKPT_U8);
		return true;
	}
	if (t->blob && !strcmp(t->name, "rng")) {
		event_rng(&k.events, t->rank, f->step, blob.rng);
		compare(f, s, t, &blob, sizeof blob.rng, CKPT_U8);
		return true;
	}
	if (!strcmp(t->component, "base") && !strcmp(t->name, "base.weight") && k.args.frozen) {
		uint64_t rows = base_rows(&k.shape, k.args.frozen);
		uint32_t cls = base_is_trained(&k.events, f->step) ? CKPT_STABLE : CKPT_CONST;

		if (t->cls != cls)
			wrong(f, "base/base.weight: class %u, and %u was declared", t->cls, cls);
		compare(f, s, t, base_at(f->step), rows * BASE_COLS, CKPT_BF16);
		return true;
	}
	for (uint32_t i = 0; i < MODEL_TENSORS; i++) {
		const struct model_part *p = &k.part[i];
		const struct {
			const char *component, *suffix;
			const void *values;
			uint32_t dtype;
		} kind[] = {
			{ "model", "", p->param, CKPT_BF16 },
			{ "optim", ".master", p->master, CKPT_F32 },
			{ "optim", ".exp_avg", p->moment1, CKPT_F32 },
			{ "optim", ".exp_avg_sq", p->moment2, CKPT_F32 },
			{ "forward", ".count", n, CKPT_U64 },
		};

		for (uint32_t j = 0; j < (k.args.counters ? 5 : 4); j++) {
			char name[NAME_BYTES];

			snprintf(name, sizeof name, "%s%s", k.shape.tensor[i].name, kind[j].suffix);
			if (strcmp(t->component, kind[j].component) || strcmp(t->name, name))
				continue;
			for (uint64_t c = 0; c < event_counts(i); c++)
				n[c] = f->step * (2 * c + 1);
			compare(f, s, t, kind[j].values,
				j < 4 ? p->rows * p->cols : event_counts(i), kind[j].dtype);
			return true;
		}
	}
	return false;
}

/* A daemon that takes over from one that was killed finds a staged step, and no notes. */
static void note_is_right(const struct found *f, const struct step_files *s)
{
	double want = nan_step(&k.events, f->step) ? __builtin_nan("") : k.loss[f->step];
	const uint8_t *have = step_note(s, "loss");

	k.noteless += !have;
	if (have && memcmp(have, &want, sizeof want) != 0)
		wrong(f, "the note loss is not that of the step");
}

/* Behind the run's newest step. */
static void step_is_right(const struct found *f)
{
	uint32_t n = 0, expected;
	struct step_files s;

	if (!step_open(f->path, &s))
		die(f->path, "it was there");
	expected = (uint32_t)MODEL_TENSORS * (k.args.counters ? 5u : 4u) +
		   (k.args.frozen ? 1u : 0u) + 1 + s.world;
	for (uint32_t i = 0; i < s.ntensor; i++) {
		const struct step_tensor *t = &s.tensor[i];

		if (t->average)
			continue;
		n++;
		if (!declared_is_right(f, &s, t))
			wrong(f, "%s/%s was never declared", t->component, t->name);
	}
	if (n != expected)
		wrong(f, "it has %u tensors and blobs, and %u were declared", n, expected);
	note_is_right(f, &s);
	k.derived += s.nderived;
	k.linked += s.nlinked;
	k.aside += strstr(f->path, "/.old-") != NULL;
	k.nan_steps += nan_step(&k.events, f->step);
	step_close(&s);
}

/* The tensor of an average, or its carry. */
static void averaged_is_right(const struct found *f, struct step_files *s, const char *name,
			      const char *kind, uint32_t tensor, uint32_t row, const float *want)
{
	const struct model_tensor *m = &k.shape.tensor[tensor];
	char component[NAME_BYTES];
	const struct step_tensor *t;

	snprintf(component, sizeof component, "ema.%s%s", name, kind);
	t = tensor_named(s, component, m->name);
	if (!t)
		wrong(f, "%s/%s is missing", component, m->name);
	else if (!t->average || strcmp(t->average->name, name) || t->average->rule != row)
		wrong(f, "%s/%s is of another average", component, m->name);
	else if (want)
		compare(f, s, t, want, m->dim[0] * m->dim[1], CKPT_F32);
	k.averages++;
}

/* Those tensors of an average that have one schedule; returns how many there are, with carries. */
static uint32_t row_is_right(const struct found *f, struct step_files *s, uint32_t spec,
			     uint32_t row)
{
	const struct spec *x = &k.spec[spec];
	const struct step_average *a = NULL;
	const float *none = NULL;
	struct node node = { 0 };
	uint32_t n = 0, its;
	uint64_t at = 0;

	for (uint32_t i = 0; i < s->naverage; i++)
		if (!strcmp(s->average[i].name, x->name) && s->average[i].rule == row)
			a = &s->average[i];
	if (a &&
	    a->since ==
		    NO_STEP) /* a step of NaNs was its first: it stands there until another one is taken in */
		none = weights(x, k.spec[spec].unbegun = f->step);
	else if (a)
		node = average_at(f, spec, a);
	if (a && !node.e && !none)
		wrong(f, "ema.%s: no chain of updates has the history that it says", x->name);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		const struct model_tensor *m = &k.shape.tensor[t];

		if (judged(x, m->name, &its) == AVERAGE && its == row) {
			averaged_is_right(f, s, x->name, "", t, row,
					  none	   ? none + at
					  : node.e ? node.e + at
						   : NULL);
			if (x->kahan)
				averaged_is_right(f, s, x->name, ".carry", t, row,
						  node.c ? node.c + at : NULL);
			n += 1 + x->kahan;
		}
		at += m->dim[0] * m->dim[1];
	}
	return n;
}

static void averages_are_right(const struct found *f)
{
	uint32_t n = 0, made = 0;
	struct step_files s;

	if (!step_open(f->path, &s))
		die(f->path, "it was there");
	for (uint32_t i = 0; i < k.args.naverage; i++)
		for (uint32_t row = 0; row < k.spec[i].nrow; row++)
			n += row_is_right(f, &s, i, row);
	for (uint32_t i = 0; i < s.ntensor; i++)
		made += s.tensor[i].average != NULL;
	if (made != n)
		wrong(f, "it has %u tensors of averages, and %u were declared", made, n);
	step_close(&s);
}

/* May that average begin anew at that step? If EDGES says that it had to; if its decay leaves nothing
 * of what was before; or if it had not begun before the job went back: each step so far was one of NaNs, or had too high a loss. */
static bool may_begin(uint32_t spec, uint32_t row, uint64_t step)
{
	for (size_t i = 0; i < k.nedge; i++) {
		struct state before = { .last = k.edge[i].from, .since = k.edge[i].from };

		if (k.edge[i].step == step && k.edge[i].from == step)
			return true;
		if (k.edge[i].step == step && step > before.last &&
		    share(&k.spec[spec].row[row], &before, step) >= 1)
			return true;
	}
	return k.spec[spec].unbegun && k.spec[spec].unbegun < step;
}

/* A job that always went on has averages that began once. */
static void averages_began_once(void)
{
	for (size_t i = 0; i < k.nnode; i++) {
		const struct node *x = &k.node[i];

		for (size_t j = 0; j < i; j++) {
			const struct node *y = &k.node[j];
			uint64_t a = x->state.since, b = y->state.since, later = a > b ? a : b;

			if (x->spec != y->spec || x->row != y->row || a == b ||
			    may_begin(x->spec, x->row, later))
				continue;
			printf("ema.%s began anew: at step %" PRIu64 " and at step %" PRIu64 "\n",
			       k.spec[x->spec].name, b, a);
			k.wrong++;
			return;
		}
	}
}

/* ---- the undisturbed run ---- */

static void run_begin(void)
{
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct model_part *p = &k.part[t];
		uint64_t n = k.shape.tensor[t].dim[0] * k.shape.tensor[t].dim[1];

		p->rows = k.shape.tensor[t].dim[0];
		p->cols = k.shape.tensor[t].dim[1];
		p->param = zeroed(n, sizeof *p->param);
		p->master = zeroed(n, sizeof *p->master);
		p->moment1 = zeroed(n, sizeof *p->moment1);
		p->moment2 = zeroed(n, sizeof *p->moment2);
		p->grad = zeroed(n, sizeof *p->grad);
		model_init(&k.shape, t, k.args.seed, p);
	}
	k.gathered = zeroed(k.shape.gathered, sizeof *k.gathered);
	model_batch_at(&k.shape,
		       aligned_alloc(64, (model_batch_bytes(&k.shape) + 63) & ~(size_t)63),
		       &k.batch);
	k.loss = zeroed(k.args.steps + 1, sizeof *k.loss);
	k.wanted = zeroed(k.args.steps + 1, sizeof *k.wanted);
	k.master = zeroed(k.args.steps + 1, sizeof *k.master);
	k.param = zeroed(k.args.steps + 1, sizeof *k.param);
}

static void run_step(uint64_t step)
{
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		memcpy(k.gathered + k.shape.tensor[t].at, k.part[t].param,
		       k.part[t].rows * k.part[t].cols * sizeof *k.part[t].param);
		nan_forget(&k.shape, t, &k.events, step - 1, &k.part[t], k.gathered);
	}
	for (uint32_t i = 0; i < MODEL_MICRO; i++)
		model_micro(&k.shape, k.gathered, &k.corpus, k.args.seed, step, i, &k.batch);
	k.loss[step] = model_loss(&k.batch);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		model_grad(&k.shape, t, &k.batch, &k.part[t]);
		nan_mend(&k.shape, t, &k.events, step - 1, &k.part[t]);
		model_update(&k.shape, t, step, &k.part[t]);
		nan_plant(&k.shape, t, &k.events, step, &k.part[t]);
	}
}

static void run_keep(uint64_t step)
{
	uint64_t at = 0;

	if (!k.wanted[step])
		return;
	k.master[step] = zeroed(k.shape.params, sizeof(float));
	k.param[step] = zeroed(k.shape.params, sizeof(float));
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		const struct model_part *p = &k.part[t];
		uint64_t n = p->rows * p->cols;

		memcpy(k.master[step] + at, p->master, n * sizeof *p->master);
		for (uint64_t i = 0; i < n; i++) {
			uint32_t u = (uint32_t)p->param[i] << 16;

			memcpy(k.param[step] + at + i, &u, sizeof u);
		}
		at += n;
	}
}

/* ---- what is there ---- */

static int by_step(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return x->step < y->step ? -1 : x->step > y->step ? 1 : strcmp(x->path, y->path);
}

static int from_the_highest(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;

	return x->step > y->step ? -1 : x->step < y->step;
}

static void look_around(void)
{
	char path[400];
	struct dirent *d;
	struct step_files s;
	DIR *dir;

	snprintf(path, sizeof path, "%s/%s", k.args.root, k.args.job);
	dir = opendir(path);
	if (!dir)
		die(path, strerror(errno));
	while ((d = readdir(dir)) != NULL) {
		struct found f;

		if (!begins(d->d_name, "step-") && !begins(d->d_name, ".old-"))
			continue;
		snprintf(f.path, sizeof f.path, "%s/%.100s", path, d->d_name);
		if (!step_open(f.path, &s))
			continue;
		f.step = s.step;
		step_close(&s);
		if (f.step == 0 || f.step > k.args.steps)
			die(f.path, "is of a step that was never trained");
		k.found = grown(k.found, k.nfound, sizeof f);
		k.found[k.nfound++] = f;
		k.wanted[f.step] = true;
	}
	closedir(dir);
	qsort(k.found, k.nfound, sizeof *k.found, by_step);
}

static void edges_read(const char *path)
{
	FILE *f = fopen(path, "re");
	struct edge e;

	if (!f)
		die(path, strerror(errno));
	while (fscanf(f, "%" SCNu64 " %" SCNu64, &e.step, &e.from) == 2) {
		if (e.step > k.args.steps || e.from > e.step)
			continue;
		k.edge = grown(k.edge, k.nedge, sizeof e);
		k.edge[k.nedge++] = e;
		k.wanted[e.step] = k.wanted[e.from] = true;
	}
	fclose(f);
	k.down = zeroed(k.nedge, sizeof *k.down);
	memcpy(k.down, k.edge, k.nedge * sizeof *k.down);
	qsort(k.down, k.nedge, sizeof *k.down, from_the_highest);
}

static uint64_t losses_are_right(void)
{
	bool *seen = zeroed(k.args.steps + 1, sizeof *seen);
	FILE *f = fopen(k.args.losses, "re");
	uint64_t step, bits, want, n = 0;

	if (!f)
		die(k.args.losses, strerror(errno));
	for (; fscanf(f, "%" SCNu64 " %" SCNx64 " %*s", &step, &bits) == 2; n++) {
		if (step == 0 || step > k.args.steps)
			die(k.args.losses, "a step that is beyond --steps");
		memcpy(&want, &k.loss[step], sizeof want);
		seen[step] = true;
		if (bits != want) {
			printf("step %" PRIu64 ": loss %016" PRIx64 ", undisturbed %016" PRIx64
			       "\n",
			       step, bits, want);
			k.wrong++;
		}
	}
	for (step = 1; step <= k.args.steps; step++)
		if (!seen[step]) {
			printf("step %" PRIu64 " has no loss\n", step);
			k.wrong++;
		}
	fclose(f);
	free(seen);
	return n;
}

int main(int argc, char **argv)
{
	const char *edges = argv[1];
	uint64_t losses = 0;
	size_t next = 0;

	if (argc < 3)
		die("usage", "storm_check EDGES TRAINER-OPTION...");
	if (train_args_parse(argc - 1, argv + 1, &k.args) != 0 || k.args.no_checkpoint)
		return 2;
	if (corpus_load(k.args.text, &k.corpus) < 0)
		return 2;
	model_shape_for(k.args.params, &k.shape);
	k.events = (struct events){ k.args.seed, k.args.nan_every, k.args.thaw_every };
	for (uint32_t i = 0; i < k.args.naverage; i++)
		spec_read(&k.spec[i], k.args.average[i].name, k.args.average[i].spec);
	run_begin();
	edges_read(edges);
	look_around();
	for (uint64_t step = 1; step <= k.args.steps; step++) {
		run_step(step);
		run_keep(step);
		for (; next < k.nfound && k.found[next].step == step; next++)
			step_is_right(&k.found[next]);
	}
	for (size_t i = 0; i < k.nfound; i++)
		averages_are_right(&k.found[i]);
	averages_began_once();
	if (k.args.losses)
		losses = losses_are_right();
	printf("%zu steps (%" PRIu64 " set aside, %" PRIu64 " of NaNs, %" PRIu64
	       " without notes), %" PRIu64 " tensors of %" PRIu64 " KiB (%" PRIu64
	       " of averages, %" PRIu64 " pieces derived, %" PRIu64 " parts linked), %" PRIu64
	       " losses: %" PRIu64 " wrong\n",
	       k.nfound, k.aside, k.nan_steps, k.noteless, k.tensors, k.bytes >> 10, k.averages,
	       k.derived, k.linked, losses, k.wrong);
	return k.wrong > 0;
}
