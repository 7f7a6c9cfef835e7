// SPDX-License-Identifier: Apache-2.0
// queued.c - see queued.h. Called by copier.c and mark.c.
// Invariant: the devices of a run write to its slot until queued_ended says that they have come to
// its ends, and no longer.
#include "ckpt/client/queued.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"

#define BATCH 64u
#define POLL_NS (NS_PER_MS / 50)
#define POLL_MAX_NS (NS_PER_MS / 2)
#define SEEN_NS (4 * NS_PER_MS) /* what we see later than that has happened we cannot tell when */
#define AHEAD_NUM 5u		/* so much faster than the window needs: 5/4 */
#define AHEAD_DEN 4u

/* --- the trainer's thread --- */
void queued_begin(struct queued_news *news)
{
	atomic_store(&news->hurry, false);
	atomic_store(&news->began, 0);
	atomic_store(&news->left, UINT64_MAX);
}

void queued_stir(struct queued *x)
{
	(void)atomic_fetch_add(&x->stir, 1);
	shared_futex_wake(&x->stir);
}

void queued_hurry(struct queued *x, struct queued_news *news)
{
	if (!atomic_exchange(&news->hurry, true))
		queued_stir(x);
}

uint64_t queued_stall_ns(const struct queued *x, const struct queued_news *news, uint64_t now)
{
	uint64_t left = load_acquire(&news->left), rate = load_acquire(&x->rate),
		 began = load_acquire(&news->began), window = load_relaxed(&x->window),
		 guard_at = (began ? began : now) + window, copies;

	if (left == UINT64_MAX || !rate) /* it has not begun, or nothing is known */
		return UINT64_MAX;
	copies = (uint64_t)((double)left / (double)rate * 1e9);
	guard_at = MAX(guard_at, now); /* the device cannot be there yet */
	return now + copies > guard_at ? now + copies - guard_at : 0;
}

/* --- how far a device is --- */
static uint64_t taken_of(const struct queued_device *d, uint32_t flight)
{
	if (flight == UINT32_MAX) /* without words of its own it says only that it works */
		return d->taken;
	if (flight >= MIN(d->ncall, QUEUED_CALLS))
		return d->taken;
	return d->upto[(d->ncall - flight) % QUEUED_CALLS];
}

/* exact: the device was at it all that time; else it is at least as fast. */
static void rate_note(struct queued *x, uint64_t bytes, uint64_t ns, bool exact)
{
	uint64_t old = load_relaxed(&x->rate),
		 now = (uint64_t)((double)bytes * 1e9 / (double)MAX(ns, UINT64_C(1)));

	if (exact && old)
		store_release(&x->rate, old - old / 4 + now / 4);
	else if (now > old)
		store_release(&x->rate, now);
}

static uint32_t device_look(struct queued *x, struct queued_device *d, uint64_t now)
{
	uint32_t flight = d->device->ops->flight(d->device);
	uint64_t taken = taken_of(d, flight), after = now_ns();

	if (taken > d->taken) {
		if (d->taken)
			rate_note(x, taken - d->taken, after - d->moved_ns, d->full);
		else /* when we looked last it waited for the mark, or had just come there */
			rate_note(x, taken - d->first, after - d->looked_ns, false);
		d->taken = taken;
		d->moved_ns = now;
		if (!load_relaxed(&x->news->began))
			store_release(&x->news->began, now);
	} else if (!flight) {
		d->moved_ns = now;
	}
	d->looked_ns = now;
	d->full = flight > 1;
	return flight;
}

static void left_note(struct queued *x)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < x->n; i++)
		most = MAX(most, x->of[i].bytes - x->of[i].taken);
	store_release(&x->news->left, most);
}

/* --- pacing --- */
/* So many bytes of `all` may be given by now. */
static uint64_t may_give(const struct queued *x, uint64_t all, uint64_t now)
{
	uint64_t began = load_relaxed(&x->news->began), window = load_relaxed(&x->window),
		 first = QUEUED_DEPTH * DEVICE_CHUNK;
	double share, bound;

	if (atomic_load(&x->news->hurry) || x->limit == UINT64_MAX || all <= first)
		return all;
	if (!began) /* the device has not come to the mark */
		return first;
	share = window ? (double)all * AHEAD_NUM / AHEAD_DEN * (double)(now - began) /
				 (double)window
		       : (double)all;
	bound = x->limit ? (double)x->limit * (double)(now - began) / 1e9 : (double)all;
	share = (double)first + MIN(share, bound);
	return (uint64_t)MIN((double)all, share);
}

/* --- giving --- */
struct batch {
	struct device_row row[BATCH];
	uint32_t n;
	uint64_t bytes;
};

/* ret_bad: of an error: where in the slot. */
static int batch_give(ckpt *c, const struct queued_copy *q, struct queued_device *d,
		      struct batch *b, uint64_t *ret_bad)
{
	const struct device_target *slot = &q->sealed->slot[q->slot]->at;
	uint32_t bad = 0;
	int rc;

	if (!b->n)
		return 0;
	rc = d->device->ops->copy(d->device, slot, b->row, b->n, &bad);
	if (rc < 0) {
		*ret_bad = (uint64_t)(b->row[bad].dst - slot->base);
		return rc;
	}
	d->given += b->bytes;
	if (!d->ncall++) {
		d->first = d->given;
		if (d == c->copier.queued.of)
			q->course->first_at = d->device->ops->sent(d->device);
	}
	d->upto[d->ncall % QUEUED_CALLS] = d->given;
	return 0;
}

static struct sealed_some some_of(const struct queued_copy *q, const struct queued_device *d,
				  uint32_t replicas)
{
	return (struct sealed_some){ d->rows, q->slot, q->turn, replicas };
}

static void batch_fill(const struct queued_copy *q, const struct sealed_some *some, uint64_t most,
		       struct sealed_at *at, struct batch *b)
{
	while (b->n < BATCH && b->bytes < most &&
	       sealed_queue_next(q->sealed, some, at, most - b->bytes, &b->row[b->n])) {
		b->bytes += b->row[b->n].width * b->row[b->n].rows;
		b->n++;
	}
}

/* Those of the state are queued. A source that is not there is no fault of the snapshot. */
static int replicas_give(ckpt *c, const struct queued_copy *q, struct queued_device *d,
			 uint64_t most)
{
	const struct sealed_some some = some_of(q, d, q->replicas);
	struct batch b = { .n = 0 };
	uint64_t bad;
	int rc;

	batch_fill(q, &some, most, &d->replica, &b);
	rc = batch_give(c, q, d, &b, &bad);
	if (rc == -EFAULT) {
		*q->lost = true;
		d->given = d->bytes;
		return 1;
	}
	return rc < 0 ? rc : b.n > 0;
}

/* The next call's rows: 1: there were some. */
static int device_give(ckpt *c, const struct queued_copy *q, struct queued_device *d, uint64_t most)
{
	const struct sealed_some some = some_of(q, d, 0);
	struct batch b = { .n = 0 };
	uint64_t bad = 0;
	int rc;

	batch_fill(q, &some, most, &d->at, &b);
	if (!b.n && q->replicas)
		return replicas_give(c, q, d, most);
	rc = batch_give(c, q, d, &b, &bad);
	if (rc < 0)
		atomic_store(q->bad_at, bad);
	return rc < 0 ? rc : b.n > 0;
}

static bool device_empty(const struct queued_device *d)
{
	return d->given >= d->bytes;
}

/* One look at a device: 1: it was given something. */
static int device_turn(ckpt *c, const struct queued_copy *q, struct queued_device *d)
{
	struct queued *x = &c->copier.queued;
	bool hurry = atomic_load(&x->news->hurry);
	uint64_t now = now_ns();
	uint32_t flight = device_look(x, d, now);

	if (device_empty(d) ||
	    (!hurry && (flight >= QUEUED_DEPTH || d->given >= may_give(x, d->bytes, now))))
		return 0;
	return device_give(c, q, d, !d->ncall ? QUEUED_FIRST : hurry ? QUEUED_HURRY : DEVICE_CHUNK);
}

static bool goes_on(const ckpt *c, const struct queued_copy *q)
{
	return shared_snap_going(q->snap, q->seq) && !atomic_load(&c->stop);
}

/* What the canary looks at on this device, as it is when the device comes here. */
static int words_give(const struct queued_copy *q, struct queued_device *d, uint64_t *to)
{
	bool behind = to == q->witness->behind;
	uint32_t n = 0, bad = 0, of[CANARY_FAR];
	struct device_row row[CANARY_FAR];
	int rc;

	for (uint32_t i = 0; i < q->nword; i++) {
		const struct canary_place *p = &q->word[i];

		if (p->device != d->rows->device + 1)
			continue;
		of[n] = i;
		row[n++] = (struct device_row){ .src = (uintptr_t)p->src,
						.dst = (uint8_t *)&to[i],
						.width = p->len,
						.rows = 1 };
	}
	if (!n)
		return 0;
	rc = d->device->ops->copy(d->device, q->target, row, n, &bad);
	if (rc < 0) {
		atomic_store(q->bad_at, q->word[of[bad]].dst);
		return rc;
	}
	/* Calls are counted from the newest one: those before the copies are none of them. */
	if (behind)
		d->upto[++d->ncall % QUEUED_CALLS] = d->given;
	return 0;
}

static int all_words(ckpt *c, const struct queued_copy *q, bool behind)
{
	struct queued *x = &c->copier.queued;
	int rc = 0;

	for (uint32_t i = 0; i < x->n && rc == 0 && q->nword; i++)
		rc = words_give(q, &x->of[i], behind ? q->witness->behind : q->witness->before);
	return rc;
}

/* Meanwhile copies that were queued before come to their ends. */
static int all_give(ckpt *c, const struct queued_copy *q)
{
	struct queued *x = &c->copier.queued;
	uint64_t pause = POLL_NS;

	for (;;) {
		uint32_t seen = atomic_load(&x->stir);
		bool empty = true, moved = false;

		if (!goes_on(c, q))
			return -ECANCELED;
		for (uint32_t i = 0; i < x->n; i++) {
			int rc = device_turn(c, q, &x->of[i]);

			if (rc < 0)
				return rc;
			moved |= rc > 0;
			empty &= device_empty(&x->of[i]);
		}
		left_note(x);
		if (empty)
			return 0;
		moved |= copier_ends(c);
		pause = moved ? POLL_NS : MIN(pause * 2, POLL_MAX_NS);
		if (!moved)
			(void)shared_futex_wait(&x->stir, seen, pause);
	}
}

/* --- ending --- */
void queued_look(ckpt *c)
{
	struct queued *x = &c->copier.queued;
	uint64_t now = now_ns();

	for (uint32_t i = 0; x->news && i < x->n; i++)
		(void)device_look(x, &x->of[i], now);
	if (x->news)
		left_note(x);
}

void queued_watch(struct queued *x, struct queued_course *k, struct queued_news *news)
{
	uint64_t now = now_ns(), began = load_relaxed(&news->began);

	if (!k->device || k->watched)
		return;
	if (!began && k->device->ops->poll(k->device, k->first_at) != -EAGAIN) {
		began = now;
		k->before_ns = k->looked_ns;
		store_release(&news->began, began);
	}
	k->looked_ns = now;
	if (!began)
		return;
	k->watched = true;
	x->way = *k;
	x->way_ns = began;
}

void queued_note(struct queued *x, const struct queued_course *k, const struct queued_news *news)
{
	uint64_t now = now_ns(), began = load_relaxed(&news->began);

	if (!k->device || !k->before_ns || k->queued_ns > began)
		return; /* it was looked at while it was given */
	if (now - began > SEEN_NS)
		rate_note(x, k->given - k->first, now - began, true);
	else
		rate_note(x, k->given - k->first, now - k->before_ns, false);
}

void queued_window(struct queued *x, uint64_t ns)
{
	uint64_t old = load_relaxed(&x->window);

	store_relaxed(&x->window, old ? old - old / 4 + ns / 4 : ns);
}

bool queued_coming(struct queued *x)
{
	struct queued_course *k = &x->way;
	uint64_t now = now_ns();
	uint32_t came;

	if (!k->device)
		return false;
	came = k->device->ops->came(k->device);
	if (came == k->number && now - k->looked_ns < SEEN_NS)
		queued_window(x, now - x->way_ns);
	if (device_reached(came, k->number))
		k->device = NULL;
	k->looked_ns = now;
	return k->device && load_acquire(&x->coming) == k->number;
}

int queued_ended(const ckpt *c, const struct sealed *s, const uint32_t *end, uint32_t nend)
{
	int first = 0;

	for (uint32_t i = 0; i < nend; i++) {
		struct device_handle *d = devices_handle(c, s->queue[i].device);
		int rc = MUTANT(END_TOO_SOON) ? 0 : d->ops->poll(d, end[i]);

		if (rc == -EAGAIN)
			return rc;
		if (first == 0)
			first = rc;
	}
	return first;
}

static int all_follow(ckpt *c)
{
	struct queued *x = &c->copier.queued;
	uint32_t open = load_acquire(&c->devices.open);
	int rc = 0;

	for (uint32_t i = 0; i < x->n; i++)
		for (uint32_t left = MUTANT(FOLLOWS_ITSELF) ? 1u << x->of[i].rows->device : open;
		     left && rc == 0; left &= left - 1)
			rc = x->of[i].device->ops->follow(
				x->of[i].device, devices_handle(c, (uint32_t)__builtin_ctz(left)));
	return rc;
}

static int all_end(ckpt *c, const struct queued_copy *q, bool ordered)
{
	struct queued *x = &c->copier.queued;
	int first = 0;

	for (uint32_t i = 0; i < x->n; i++) {
		struct queued_device *d = &x->of[i];
		int rc = d->device->ops->end(d->device,
					     ordered ? &q->rank->done[d->rows->device] : NULL,
					     (uint32_t)q->seq, &q->end[i]);

		if (rc < 0 && first == 0)
			first = rc;
	}
	return first;
}

static uint64_t device_bytes(const struct queued_copy *q, const struct queued_device *d)
{
	const struct sealed_some some = some_of(q, d, 0), replicas = some_of(q, d, q->replicas);

	return sealed_queue_bytes(q->sealed, &some) +
	       (q->replicas ? sealed_queue_bytes(q->sealed, &replicas) : 0);
}

static int all_take(ckpt *c, const struct queued_copy *q)
{
	struct queued *x = &c->copier.queued;
	const struct sealed *s = q->sealed;
	uint64_t now = now_ns();

	x->news = NULL;
	if (s->nqueue > x->cap) {
		free(x->of);
		x->cap = 0;
		x->of = calloc(s->nqueue, sizeof *x->of);
		if (!x->of)
			return -ENOMEM;
		x->cap = s->nqueue;
	}
	x->news = q->news;
	x->n = s->nqueue;
	x->bytes = 0;
	for (uint32_t i = 0; i < x->n; i++) {
		x->of[i].device = devices_handle(c, s->queue[i].device);
		x->of[i].rows = &s->queue[i];
		x->of[i].at = x->of[i].replica = (struct sealed_at){ 0 };
		x->of[i].bytes = device_bytes(q, &x->of[i]);
		x->bytes += x->of[i].bytes;
		x->of[i].given = x->of[i].taken = 0;
		x->of[i].ncall = 0;
		x->of[i].upto[0] = 0;
		x->of[i].moved_ns = x->of[i].looked_ns = now;
		x->of[i].full = false;
	}
	return 0;
}

bool queued_ordered(const ckpt *c, const struct sealed *s, uint32_t slot,
		    const struct device_target *done)
{
	bool all = s->nqueue && done->direct && s->slot[slot]->at.direct;

	for (uint32_t i = 0; i < s->nqueue; i++)
		all &= devices_handle(c, s->queue[i].device)->caps & DEVICE_ORDERED;
	return all;
}

static void course_note(const struct queued *x, const struct queued_copy *q)
{
	const struct queued_device *d = &x->of[0];
	struct queued_course *k = q->course;

	if (!d->ncall)
		return;
	k->device = d->device;
	k->number = q->number;
	k->first = d->first;
	k->given = d->given;
	k->queued_ns = now_ns();
}

int queued_run(ckpt *c, const struct queued_copy *q)
{
	bool ordered = queued_ordered(c, q->sealed, q->slot, q->done);
	int rc = all_take(c, q), ended;

	if (rc < 0)
		return rc;
	rc = all_follow(c);
	if (MUTANT(ORDERED_BEFORE_QUEUED)) {
		(void)shared_snap_order(q->rank, q->snap, q->seq);
		(void)usleep(20000);
	}
	if (rc == 0)
		rc = all_words(c, q, false);
	if (rc == 0)
		rc = all_give(c, q);
	if (rc == 0)
		rc = all_words(c, q, true);
	ended = all_end(c, q, ordered && rc == 0);
	*q->nend = c->copier.queued.n;
	course_note(&c->copier.queued, q);
	if (rc == 0)
		rc = ended;
	if (rc == 0 && ordered)
		(void)shared_snap_order(q->rank, q->snap, q->seq);
	return rc;
}
