/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_direct.c - the direct exchange as a plan of one step; the cheapest of all plans, and why
 * the others lost. Called by redistribute.c, by verbs and by answers.
 * Invariant: no plan that has an answer is cheaper than the one that wins.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/redist/redist_own.h"
#include "ckpt/redist/redist_state.h"

int redist_direct(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err)
{
	const struct ckpt_placement *place;
	struct redist_state src, dst;
	struct redist_step *step;
	int rc;

	redist_state_of(p->mesh, p->src, &src);
	redist_state_of(p->mesh, p->dst, &dst);
	if (redist_state_equal(p->mesh, &src, &dst))
		return 0;
	step = arena_array(a, 1, sizeof *step);
	place = arena_dup(a, dst.place, p->mesh->ndim * sizeof *place);
	if (!step || !place)
		return ckpt_error(err, -ENOMEM, "out of memory for an exchange");
	*step = (struct redist_step){ .op = REDIST_EXCHANGE,
				      .before = ret->src,
				      .after = { .nplace = p->mesh->ndim, .place = place } };
	rc = m->price(m, p, step, err);
	if (rc)
		return rc;
	ret->step = step;
	ret->n = 1;
	ret->us = step->us;
	ret->peak_bytes = step->peak_bytes;
	return 0;
}

/* --- the cheapest --- */

/* Two prices that differ by less are added up in another order, and equal. */
#define ROUNDING 1e-12

static bool is_cheaper(double us, double than)
{
	return us < than * (1 - ROUNDING);
}

static const enum redist_planner order[] = { REDIST_GRAPH, REDIST_GREEDY, REDIST_DIRECT };

/* Of the plans that have an answer; NULL: none has. */
static const struct redist_steps *cheapest_of(const struct redist_steps all[3])
{
	const struct redist_steps *best = NULL;

	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		const struct redist_steps *s = &all[order[i]];

		if (s->n != REDIST_NO_ANSWER && (!best || is_cheaper(s->us, best->us)))
			best = s;
		if (MUTANT(DIRECT_LEFT_OUT) && best && i == 1)
			break;
	}
	return best;
}

/* -EINVAL, -ENOSPC, -E2BIG: that planner has no answer; the first of them. */
static int all_plan(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		    struct redist_steps all[3], int *ret_first, struct ckpt_err *err)
{
	*ret_first = 0;
	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		int rc = redist_plan_by(p, order[i], m, a, &all[order[i]], *ret_first ? NULL : err);

		if (rc && rc != -EINVAL && rc != -ENOSPC && rc != -E2BIG)
			return rc;
		if (rc)
			all[order[i]].n = REDIST_NO_ANSWER;
		all[order[i]].too_large = rc == -E2BIG;
		*ret_first = *ret_first ? *ret_first : rc;
	}
	return 0;
}

static int no_room(const struct redist_problem *p, const struct redist_steps all[3],
		   struct ckpt_err *err)
{
	bool unknown = false;

	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		unknown |= all[order[i]].too_large;
	return ckpt_error(
		err, -ENOSPC,
		"no plan%s fits into the %s of memory that a rank may use: raise the limit",
		unknown ? " that could be counted" : "", BYTES_TEXT(p->mem_limit));
}

int redist_cheapest(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		    struct redist_steps *ret, struct redist_steps ret_all[3], struct ckpt_err *err)
{
	struct redist_memo memo = { 0 };
	struct redist_model with = *m;
	const struct redist_steps *best;
	struct redist_steps all[3];
	int rc = redist_check(p, err), first;

	with.memo = &memo;
	if (!rc)
		rc = all_plan(p, &with, a, all, &first, err);
	redist_memo_free(&memo);
	if (rc)
		return rc;
	if (ret_all)
		memcpy(ret_all, all, sizeof all);
	best = cheapest_of(all);
	if (!best && first == -ENOSPC)
		return no_room(p, all, err);
	if (!best)
		return first;
	*ret = *best;
	return 0;
}

/* --- why --- */

const char *redist_planner_name(enum redist_planner planner)
{
	static const char *const name[] = { "greedy", "graph", "direct" };

	return name[planner];
}

static bool steps_equal(const struct mesh *m, const struct redist_steps *x,
			const struct redist_steps *y)
{
	if (x->n != y->n)
		return false;
	for (uint32_t i = 0; i < x->n; i++) {
		struct redist_state a, b;

		redist_state_of(m, &x->step[i].after, &a);
		redist_state_of(m, &y->step[i].after, &b);
		if (x->step[i].op != y->step[i].op || !redist_state_equal(m, &a, &b))
			return false;
	}
	return true;
}

static void steps_text(struct text *t, const struct mesh *m, const struct redist_steps *s)
{
	char state[REDIST_STATE_BYTES];

	text_add(t, "%s", redist_state_print(m, &s->src, state, sizeof state));
	for (uint32_t i = 0; i < s->n; i++)
		text_add(t, "->%s", redist_state_print(m, &s->step[i].after, state, sizeof state));
}

/* The step that takes the most. */
static void dearest_text(struct text *t, const struct mesh *m, const struct redist_steps *s)
{
	const struct redist_step *x = s->step;

	for (uint32_t i = 1; i < s->n; i++)
		x = s->step[i].us > x->us ? &s->step[i] : x;
	if (!s->n || !(x->us > 0))
		return;
	text_add(t, "; %s", redist_op_name(x->op));
	if (x->op != REDIST_EXCHANGE)
		text_add(t, " over %s", m->name[x->mesh_dim]);
	text_add(t, " takes %s of it, %s", US_TEXT(x->us),
		 x->tier == LINKS_MEMORY ? "writing to memory" : "on the link ");
	if (x->tier != LINKS_MEMORY)
		text_add(t, "\"%s\"", links_tier_name(x->tier));
}

static void verdict_text(struct text *t, const struct mesh *m, const struct redist_steps *s,
			 const struct redist_steps *best)
{
	if (s == best)
		text_add(t, "; the cheapest");
	else if (steps_equal(m, s, best))
		text_add(t, "; the same as %s", redist_planner_name(best->planner));
	else if (is_cheaper(best->us, s->us) && best->us > 0)
		text_add(t, "; %s more, %.3g times the cheapest", US_TEXT(s->us - best->us),
			 s->us / best->us);
	else if (is_cheaper(best->us, s->us))
		text_add(t, "; %s more", US_TEXT(s->us - best->us));
	else
		text_add(t, "; as cheap as %s, which comes first",
			 redist_planner_name(best->planner));
}

char *redist_explain(const struct redist_problem *p, const struct redist_model *m,
		     const struct redist_steps all[3], char *buf, size_t bytes)
{
	const struct redist_steps *best = cheapest_of(all);
	struct text t = text_in(buf, bytes);

	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		const struct redist_steps *s = &all[order[i]];
		struct redist_steps again;
		struct ckpt_err err = { 0 };
		struct arena a = { 0 };

		text_add(&t, "%s%s: ", i ? "\n" : "", redist_planner_name(order[i]));
		if (s->n == REDIST_NO_ANSWER) {
			redist_plan(p, order[i], m, &a, &again, &err);
			text_add(&t, "no answer: %s", err.msg);
			arena_free(&a);
			continue;
		}
		steps_text(&t, p->mesh, s);
		text_add(&t, ", %s, at most %s on a rank", US_TEXT(s->us),
			 BYTES_TEXT(s->peak_bytes));
		verdict_text(&t, p->mesh, s, best);
		dearest_text(&t, p->mesh, s);
	}
	return buf;
}
