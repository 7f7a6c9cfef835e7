// SPDX-License-Identifier: Apache-2.0
// waits.c - for which ranks of a launch the others wait, as a sentence: on the job page at once,
// where ckpt_seal reads it, and after some seconds in the logs of daemon and libraries. Called by
// launch.
// Invariant: a tick visits the ranks only while one of them waits.
#include "daemon/state.h"
#include <stdio.h>

#define SAY_NS \
	(5 * NS_PER_S) /* that ranks wait before it is logged; from one such line to the next */
#define NAMED_MAX 8u   /* ranks that are named in a list */

enum rank_waits { RANK_WAITS, TO_ATTACH, TO_CALL, WITHOUT_SLOTS, RANK_WAITS_N };

struct waits {
	const char *call;
	uint64_t since;
	uint32_t n[RANK_WAITS_N], named[RANK_WAITS_N][NAMED_MAX];
};

static void waits_count(struct waits *w, enum rank_waits what, uint32_t rank)
{
	if (w->n[what] < NAMED_MAX)
		w->named[what][w->n[what]] = rank;
	w->n[what]++;
}

static enum rank_waits of_seal(const struct launch *l, const struct member *m, uint32_t epoch)
{
	if (!m->attached)
		return TO_ATTACH;
	if (!m->decl || m->decl->epoch != epoch)
		return TO_CALL;
	return m->touched || l->covering ? RANK_WAITS : WITHOUT_SLOTS;
}

/* False: no rank waits for another one. */
static bool waits_find(const struct launch *l, struct waits *w)
{
	uint32_t epoch = 0;
	bool asked = false;

	*w = (struct waits){ .call = "ckpt_restore", .since = UINT64_MAX };
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];

		if (m->asked) {
			asked = true;
			w->since = MIN(w->since, m->asked_ns);
		}
		if (m->decl)
			epoch = MAX(epoch, m->decl->epoch);
	}
	/* a rank has left: the others do not wait for it, and get an error */
	if (l->nlost || (asked && l->restoring) || (!asked && !l->forming_ns))
		return false;
	if (!asked) {
		w->call = "ckpt_seal";
		w->since = l->forming_ns;
	}
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];
		enum rank_waits what = of_seal(l, m, epoch);

		if (asked && m->asked)
			what = RANK_WAITS;
		else if (asked && (what == RANK_WAITS || what == WITHOUT_SLOTS))
			what = TO_CALL;
		waits_count(w, what, r);
	}
	return w->n[RANK_WAITS] < l->world || (asked && l->job->writing);
}

/* "rank 3", "ranks 1, 2 and 9 more" */
static int ranks_print(const struct waits *w, enum rank_waits what, char *buf, size_t bytes)
{
	uint32_t n = w->n[what], shown = MIN(n, NAMED_MAX);
	int len = snprintf(buf, bytes, n == 1 ? "rank" : "ranks");

	for (uint32_t i = 0; i < shown; i++)
		len += snprintf(buf + len, bytes - (size_t)len, "%s %u", i ? "," : "",
				w->named[what][i]);
	if (n > shown)
		len += snprintf(buf + len, bytes - (size_t)len, " and %u more", n - shown);
	return len;
}

static void waits_print(const struct waits *w, char *buf, size_t bytes)
{
	static const char *const what[] = { [TO_ATTACH] = " to attach",
					    [TO_CALL] = " to call ",
					    [WITHOUT_SLOTS] = " to get memory for the slots" };
	const char *sep = " for ";
	int len = 0;

	if (w->n[RANK_WAITS])
		len = ranks_print(w, RANK_WAITS, buf, bytes);
	else
		len = snprintf(buf, bytes, "the job");
	len += snprintf(buf + len, bytes - (size_t)len, " wait%s in %s",
			w->n[RANK_WAITS] > 1 ? "" : "s", w->call);
	if (!w->n[TO_ATTACH] && !w->n[TO_CALL] && !w->n[WITHOUT_SLOTS])
		snprintf(buf + len, bytes - (size_t)len,
			 " until the step that is being written is on disk");
	for (enum rank_waits k = TO_ATTACH; k < RANK_WAITS_N; k++) {
		if (!w->n[k])
			continue;
		len += snprintf(buf + len, bytes - (size_t)len, "%s", sep);
		len += ranks_print(w, k, buf + len, bytes - (size_t)len);
		len += snprintf(buf + len, bytes - (size_t)len, "%s%s", what[k],
				k == TO_CALL ? w->call : "");
		sep = ", for ";
	}
}

void waits_tick(struct launch *l, uint64_t now)
{
	char text[SHARED_TEXT] = "", old[SHARED_TEXT];
	int code = shared_text_get(&l->page->waits, old);
	struct waits w;
	bool waits, due;

	waits = waits_find(l, &w);
	if (waits)
		waits_print(&w, text, sizeof text);
	else
		l->waits_ns = 0;
	due = waits && elapsed_ns(w.since, now) > SAY_NS &&
	      (l->waits_ns == 0 ||
	       (strcmp(text, l->waits_said) != 0 && elapsed_ns(l->waits_ns, now) > SAY_NS));
	if (due) {
		l->waits_ns = now;
		memcpy(l->waits_said, text, sizeof l->waits_said);
		job_log(l->job, LOG_WARNING, "launch", ": %s", text);
	}
	if (due || (waits ? strcmp(text, old) != 0 : code != 0))
		shared_text_set(&l->page->waits, waits ? -ETIMEDOUT : 0, text, due);
}
