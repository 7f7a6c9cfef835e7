// SPDX-License-Identifier: Apache-2.0
// skips.c - how many snapshots were skipped, and why: counted here, by each rank, for ckpt_stats,
// for the daemon's status, and for the two logs. Called by ckpt_snapshot and the helper.
// Invariant: what the page of a rank says is what ckpt_stats says.
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"

_Static_assert(WIRE_SKIPS == SHARED_SKIPS, "the page has a counter for each reason");

static uint64_t skipped_since_start(const ckpt *c, uint32_t why)
{
	return load_relaxed(&c->skipped[why]);
}

void skips_carry(ckpt *c, struct link *l)
{
	for (uint32_t i = 0; i < WIRE_SKIPS; i++)
		store_relaxed(&l->rank->skipped[i], skipped_since_start(c, i));
	store_relaxed(&l->rank->skipping, load_relaxed(&c->skips.now));
}

/* More than half of the window: skipping. At most a quarter: no more. */
static uint32_t skips_verdict(const struct skips *s, uint32_t was)
{
	uint32_t n[WIRE_SKIPS + 1] = { 0 }, most = 1, skipped;

	for (uint32_t i = 0; i < SKIPS_WINDOW; i++)
		n[s->why[i]]++;
	skipped = SKIPS_WINDOW - n[0];
	for (uint32_t i = 2; i <= WIRE_SKIPS; i++)
		if (n[i] > n[most])
			most = i;
	if (skipped <= SKIPS_WINDOW / 4)
		return 0;
	return was || skipped <= SKIPS_WINDOW / 2 ? was : most;
}

void skips_count(ckpt *c, struct link *l, int why)
{
	struct skips *s = &c->skips;
	uint8_t *at = &s->why[s->n++ % SKIPS_WINDOW], is = (uint8_t)(why + 1);
	uint32_t was = load_relaxed(&s->now), now = was;

	if (why >= 0)
		add_relaxed(&c->skipped[why], 1);
	if (*at != is) {
		*at = is;
		now = skips_verdict(s, was);
		store_relaxed(&s->now, now);
	}
	if (!l)
		return;
	/* A new daemon's page was filled in by the helper, while this thread went on counting. */
	if (l != s->link)
		skips_carry(c, l);
	s->link = l;
	if (why >= 0)
		store_relaxed(&l->rank->skipped[why], skipped_since_start(c, (uint32_t)why));
	if (now != was)
		store_relaxed(&l->rank->skipping, now);
}

void skips_log(ckpt *c)
{
	uint32_t now = load_relaxed(&c->skips.now);

	if (now == c->skips.said)
		return;
	c->skips.said = now;
	if (now)
		log_line(
			&c->log, LOG_WARNING,
			"client: rank %u of job %s: more than half of the newest %u snapshots were "
			"skipped: %s",
			c->rank, c->job, SKIPS_WINDOW, wire_skip_text(now - 1));
	else
		log_line(&c->log, LOG_NOTICE,
			 "client: rank %u of job %s: snapshots are taken again", c->rank, c->job);
}
