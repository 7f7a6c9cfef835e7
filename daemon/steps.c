// SPDX-License-Identifier: Apache-2.0
// steps.c - ckpt_steps: which steps can be restored, on disk and in memory. Called by session; a
// worker reads the disk. Invariant: a step that is not complete is not in the answer.
#include "daemon/state.h"

struct steps {
	struct task task;
	struct session *s;
	struct store *store;
	struct wire_steps_are are;
	int rc;
	struct ckpt_err err;
};

static void steps_run(struct task *t)
{
	struct steps *x = (struct steps *)t;
	struct store_step *step = NULL;
	uint32_t n = 0;

	x->rc = store_scan(x->store, false, &step, &n, &x->err);
	for (uint32_t i = 0; i < n && x->rc == 0; i++) {
		struct ckpt_step *to = NULL;

		if (step[i].state != STORE_COMMITTED)
			continue;
		for (uint32_t k = 0; k < x->are.n && !to; k++)
			if (x->are.step[k].step == step[i].step)
				to = &x->are.step[k];
		if (!to && x->are.n < WIRE_STEPS_MAX)
			to = &x->are.step[x->are.n++];
		if (to)
			*to = (struct ckpt_step){ step[i].step, step[i].bytes, to->where | 2, 1 };
	}
	free(step);
}

static void steps_done(struct task *t)
{
	struct steps *x = (struct steps *)t;

	if (x->rc < 0)
		session_refuse(x->s, x->rc, x->err.msg);
	else
		session_reply(x->s, &x->are, WIRE_STEPS_ARE, NULL, 0);
	session_unbusy(x->s);
	free(x);
}

void restore_steps(struct session *s)
{
	struct steps *x = calloc(1, sizeof *x);

	if (!x) {
		session_refuse(s, -ENOMEM, "no memory in the daemon");
		return;
	}
	x->s = s;
	x->store = s->launch->place->store;
	for (struct snap *k = s->launch->job->snaps; k && x->are.n < WIRE_STEPS_MAX; k = k->next) {
		uint64_t bytes = 0;

		if (!place_same(k->launch->place, s->launch->place) ||
		    k->phase == PHASE_COLLECTING || k->dropped)
			continue;
		for (uint32_t r = 0; r < k->world; r++)
			bytes += k->rank[r].decl->copy_bytes + k->rank[r].decl->own_bytes;
		x->are.step[x->are.n++] = (struct ckpt_step){ k->step, bytes, 1, 1 };
	}
	session_busy(s);
	device_task(s->launch->place->device, LANE_ASK, &x->task, steps_run, steps_done);
}
