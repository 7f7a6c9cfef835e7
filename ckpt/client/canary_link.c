// SPDX-License-Identifier: Apache-2.0
// canary_link.c - a handle's canary: what the daemon sends of the copy becomes a map, the helper
// draws and logs. Called by attach.c at each seal, by mark.c and the helper.
// Invariant: without memory for it nothing is looked for, and nothing else changes.
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

void canary_undeclare(struct ckpt *c)
{
	canary_off(&c->canary);
	canary_replace(&c->canary, NULL);
}

static int scratch_make(struct canary *x, struct ckpt_err *err)
{
	return x->scratch_fd >= 0 ? 0
				  : wire_memfd("ckpt-scratch", CANARY_SCRATCH, &x->scratch_fd, err);
}

static int map_of(struct ckpt *c, struct sealed *s, struct canary_map **ret, struct ckpt_err *err)
{
	struct canary_map parts = { .epoch = s->epoch,
				    .nslot = s->nslot,
				    .nrow = s->nrow,
				    .nsegment = c->nseg,
				    .slot_bytes = s->slot_bytes,
				    .row = s->row,
				    .on = s->on,
				    .sources = s->sources };
	cleanup_free uint8_t **base = calloc(c->nseg + 1, sizeof(uint8_t *));
	cleanup_free uint64_t *bytes = calloc(c->nseg + 1, sizeof *bytes);
	int rc = base && bytes ? 0 : -ENOMEM;

	if (getrandom(&parts.rng, sizeof parts.rng, GRND_NONBLOCK) < 0)
		parts.rng = now_ns();
	for (uint32_t i = 0; i < s->nslot; i++)
		parts.slot[i] = s->slot[i]->at.base;
	for (uint32_t i = 0; i < c->nseg && rc == 0; i++) {
		base[i] = c->seg[i].base;
		bytes[i] = c->seg[i].bytes;
	}
	parts.segment = base;
	if (rc == 0 && s->own_bytes)
		rc = scratch_make(&c->canary, err);
	if (rc == 0)
		rc = canary_map_make(&parts, bytes, ret);
	if (rc == 0)
		(*ret)->sealed = sealed_ref(s);
	return rc;
}

int canary_sealed(struct ckpt *c, struct sealed *s, struct ckpt_err *err)
{
	struct canary_map *map = NULL;
	int rc = 0;

	if (s && s->nrow && c->canary.check != UINT32_MAX)
		rc = map_of(c, s, &map, err);
	canary_replace(&c->canary, map);
	return rc < 0 && !err->msg[0] ? ckpt_error_errno(err, -rc, "no map of the slots") : rc;
}

static void places_draw(struct ckpt *c, uint32_t words, uint32_t pages)
{
	struct canary *x = &c->canary;
	const struct link *l = atomic_load(&c->link);
	struct canary_map *m;

	if (!l)
		return;
	pthread_mutex_lock(&x->draw);
	m = atomic_load(&x->map);
	/* Not before the daemon has the slots in memory: a touch would make small pages of them. */
	if (m && atomic_load(&l->job->ready_epoch) == m->epoch) {
		m->nthere = MIN(m->nslot, atomic_load(&l->job->nslot));
		canary_draw(m, words, pages);
	}
	pthread_mutex_unlock(&x->draw);
}

void canary_seal(struct ckpt *c)
{
	bool some = c->canary.check && c->canary.check != UINT32_MAX;

	places_draw(c, some ? CANARY_WORDS_ALL : 2 * CANARY_WORDS, 2 * CANARY_PAGES);
	helper_wake(c);
}

void canary_found(struct ckpt *c, uint64_t step, uint64_t at)
{
	store_relaxed(&c->canary.found_at, at);
	store_release(&c->canary.found_step, step + 1);
	helper_wake(c);
}

char *canary_why(struct ckpt *c, uint64_t at, char *ret, size_t bytes)
{
	struct canary *x = &c->canary;
	const struct source_name *name;
	char what[256] = "its state";

	pthread_mutex_lock(&x->draw);
	name = canary_name_at(atomic_load(&x->map), at & ~SHARED_WHY_GONE);
	if (name)
		snprintf(what, sizeof what, "%.100s/%.150s", name->component, name->name);
	pthread_mutex_unlock(&x->draw);
	snprintf(ret, bytes,
		 at & SHARED_WHY_GONE ? "rank %u: tensor %s: its memory is no longer mapped: call "
					"ckpt_guard before it is freed"
				      : "rank %u changed %s after ckpt_snapshot and before "
					"ckpt_guard: call ckpt_guard before you modify the state",
		 c->rank, what);
	return ret;
}

void canary_log(struct ckpt *c)
{
	struct canary *x = &c->canary;
	uint64_t step = atomic_exchange_explicit(&x->found_step, 0, memory_order_acquire),
		 at = load_relaxed(&x->found_at);
	char why[CANARY_WHY];

	/* The log is the trainer's code: no lock is held around it. */
	if (step)
		log_line(&c->log, LOG_WARNING, "client: job %s: step %" PRIu64 " is torn: %s",
			 c->job, step - 1, canary_why(c, at, why, sizeof why));
}

void canary_help(struct ckpt *c)
{
	places_draw(c, CANARY_AHEAD, CANARY_AHEAD);
	atomic_store(&c->canary.wanted, 0);
	canary_log(c);
}
