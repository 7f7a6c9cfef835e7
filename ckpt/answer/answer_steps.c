/* SPDX-License-Identifier: Apache-2.0 */
/* answer_steps.c - the steps of a redistribution as JSON. Called by answer.c. */
#include "ckpt/answer/answer_steps.h"
#include "ckpt/base/util.h"

#define REAL_BYTES 32 /* of a double, with as many digits as read back to the same need */

static void put_real(struct answer *a, double x)
{
	char buf[REAL_BYTES];

	for (int digits = 15; digits <= 17; digits++) {
		snprintf(buf, sizeof buf, "%.*g", digits, x);
		if (strtod(buf, NULL) == x)
			break;
	}
	answer_text(a, buf);
}

/* To a thousandth: shares by division are no whole bytes. */
static void put_bytes(struct answer *a, double x)
{
	char buf[REAL_BYTES * 16];
	int n = snprintf(buf, sizeof buf, "%.3f", x);

	while (buf[n - 1] == '0')
		n--;
	buf[buf[n - 1] == '.' ? n - 1 : n] = 0;
	answer_text(a, buf);
}

/* An exchange changes all mesh dimensions at once: from and to are whole states. */
static void put_change(struct answer *a, const struct mesh *m, const struct redist_step *s)
{
	char from[REDIST_STATE_BYTES], to[REDIST_STATE_BYTES];

	if (s->op == REDIST_EXCHANGE) {
		answer_text(a, "null");
		redist_state_print(m, &s->before, from, sizeof from);
		redist_state_print(m, &s->after, to, sizeof to);
	} else {
		answer_number(a, s->mesh_dim);
		redist_placement_print(&s->from, from, sizeof from);
		redist_placement_print(&s->to, to, sizeof to);
	}
	answer_text(a, ",\"from\":\"");
	answer_text(a, from);
	answer_text(a, "\",\"to\":\"");
	answer_text(a, to);
}

static void put_step(struct answer *a, const struct mesh *m, const struct redist_step *s)
{
	answer_text(a, "{\"op\":\"");
	answer_text(a, redist_op_name(s->op));
	answer_text(a, "\",\"mesh_dim\":");
	put_change(a, m, s);
	answer_text(a, "\",\"bytes\":");
	put_bytes(a, s->bytes);
	answer_text(a, ",\"us\":");
	put_real(a, s->us);
	answer_text(a, "}");
}

/* Does each step undo the last cut of a tensor dimension? PyTorch's greedy pass does not, where
 * mesh dimensions have size 1, and PyTorch prints no trace then. */
static bool has_trace(const struct redist_steps *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct redist_step *step = &s->step[i];
		const struct layout *l = &step->before;
		uint32_t last = step->mesh_dim;

		for (uint32_t k = 0; k < l->nplace && step->from.how == CKPT_SHARD; k++)
			if (l->place[k].how == CKPT_SHARD &&
			    l->place[k].tensor_dim == step->from.tensor_dim)
				last = l->place[k].mesh_dim;
		if (last != step->mesh_dim)
			return false;
	}
	return true;
}

static void put_trace(struct answer *a, const struct mesh *m, const struct redist_steps *s)
{
	char state[REDIST_STATE_BYTES];

	if (!has_trace(s)) {
		answer_text(a, "null");
		return;
	}
	answer_text(a, "\"");
	answer_text(a, redist_state_print(m, &s->src, state, sizeof state));
	for (uint32_t i = 0; i < s->n; i++) {
		answer_text(a, "->");
		answer_text(a, redist_state_print(m, &s->step[i].after, state, sizeof state));
	}
	answer_text(a, "\"");
}

/* Without the closing brace. */
static void put_steps(struct answer *a, const struct mesh *m, const struct redist_steps *s)
{
	answer_text(a, "{\"us\":");
	put_real(a, s->us);
	answer_text(a, ",\"trace\":");
	put_trace(a, m, s);
	answer_text(a, ",\"steps\":[");
	for (uint32_t i = 0; i < s->n; i++) {
		if (i)
			answer_text(a, ",");
		put_step(a, m, &s->step[i]);
	}
	answer_text(a, "]");
}

/* The cheapest way by our own model, on hosts of the size that the question says. *ret_known: false
 * where that would take minutes, or some plan has no price: it may be the cheapest. */
static int own_steps(const struct question *q, struct arena *arena, bool *ret_known,
		     struct redist_steps *ret, struct ckpt_err *err)
{
	struct links links = *links_preset(LINKS_DEFAULT);
	struct redist_model own = redist_links(&links);
	struct redist_steps all[3];
	int rc = -E2BIG;

	links.per_host = MIN(q->devices_per_host, LINKS_RANKS_MAX);
	if (q->mesh.nrank <= ANSWER_OWN_RANKS_MAX)
		rc = redist_cheapest(&q->problem, &own, arena, ret, all, err);
	*ret_known = !rc;
	for (size_t i = 0; i < ARRAY_LEN(all) && !rc; i++)
		*ret_known &= !all[i].too_large;
	return rc == -E2BIG || rc == -EOVERFLOW ? 0 : rc;
}

int answer_steps(struct answer *a, const struct question *q, struct arena *arena,
		 struct ckpt_err *err)
{
	struct redist_model torch = redist_torch(q->devices_per_host);
	struct redist_steps steps, own;
	bool known = false;
	int rc = redist_plan(&q->problem, q->planner, &torch, arena, &steps, err);

	if (!rc)
		rc = own_steps(q, arena, &known, &own, err);
	if (rc)
		return rc;
	put_steps(a, &q->mesh, &steps);
	answer_text(a, ",\"own\":");
	if (known)
		put_steps(a, &q->mesh, &own);
	answer_text(a, known ? "}}\n" : "null}\n");
	return 0;
}
