// SPDX-License-Identifier: Apache-2.0
// copier.c - see copier.h. Called by mark.c, and by the helper in attach.c.
// Invariant: nothing writes to a slot while shared_rank.copying is 0 or names another snapshot.
#include "ckpt/client/copier.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <inttypes.h>
#include <sched.h>

#define BATCH 64			    /* rows of one call */
enum { LEFT_NONE, LEFT_ASKED, LEFT_WORKS }; /* copier.left */
#define RANK_CORES 3
#define PREPARE_STEP (16 * MIB)
#define LOOK_NS (100 * NS_PER_MS)

/* --- how many --- */
uint32_t copier_threads(uint32_t cpus, uint32_t online, uint32_t ranks)
{
	uint32_t mine = cpus < online ? cpus : cpus / MAX(ranks, 1u);

	return mine >= RANK_CORES ? 2 : 1;
}

static uint32_t threads_here(const ckpt *c)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t may;

	/* A machine of more than 1024 cores refuses the set: it has enough. */
	if (online < 1 || sched_getaffinity(0, sizeof may, &may) < 0)
		return online > 1024 ? copier_threads((uint32_t)online, (uint32_t)online, c->world)
				     : 1;
	return copier_threads((uint32_t)CPU_COUNT(&may), (uint32_t)online, c->world);
}

/* --- copying --- */
struct batch {
	struct device_row row[BATCH];
	uint32_t n;
	uint64_t bytes;
};

static int batch_copy(struct copier *x, struct batch *b)
{
	const struct sealed_slot *slot = x->sealed->slot[x->slot];
	uint32_t n = TAKE(b->n), bad = 0;
	int none = 0, rc;

	b->bytes = 0;
	if (!n)
		return 0;
	rc = slot->ops->copy(slot->device, &slot->at, b->row, n, &bad);
	if (MUTANT(FAULT_IGNORED))
		rc = 0;
	if (rc < 0 && atomic_compare_exchange_strong(&x->rc, &none, rc))
		atomic_store(&x->at, (uint64_t)(b->row[bad].dst - slot->at.base));
	return rc;
}

static int unit_copy(struct copier *x, uint32_t unit)
{
	const struct sealed *s = x->sealed;
	struct sealed_at at = s->unit[unit];
	struct batch b = { .n = 0 };
	int rc = 0;

	while (rc == 0 && sealed_next(s, x->slot, &at, &s->unit[unit + 1], &b.row[b.n])) {
		b.bytes += b.row[b.n].width * b.row[b.n].rows;
		b.n++;
		if (b.n == BATCH || b.bytes >= SEALED_UNIT)
			rc = batch_copy(x, &b);
	}
	return rc == 0 ? batch_copy(x, &b) : rc;
}

static bool goes_on(const struct copier *x)
{
	return shared_snap_going(x->snap, x->seq) && !atomic_load(&x->rc);
}

static void units_copy(struct copier *x)
{
	uint32_t unit;

	while (goes_on(x) && (unit = atomic_fetch_add(&x->next, 1)) < x->sealed->nunit)
		if (unit_copy(x, unit) < 0)
			return;
}

static bool left_change(struct copier *x, uint32_t from, uint32_t to)
{
	return atomic_compare_exchange_strong(&x->left, &from, to);
}

static void *second_run(void *arg)
{
	struct copier *x = arg;
	uint32_t seen = 0;

	for (;;) {
		while (atomic_load(&x->go) == seen && !atomic_load(&x->stop))
			shared_futex_wait(&x->go, seen, NS_PER_S);
		if (atomic_load(&x->stop))
			return NULL;
		seen = atomic_load(&x->go);
		if (!left_change(x, LEFT_ASKED, LEFT_WORKS))
			continue; /* it came too late */
		units_copy(x);
		atomic_store(&x->left, LEFT_NONE);
		shared_futex_wake(&x->left);
	}
}

static void both_copy(struct copier *x)
{
	bool both = x->runs && x->sealed->nunit > 1;

	if (both) {
		atomic_store(&x->left, LEFT_ASKED);
		atomic_fetch_add(&x->go, 1);
		shared_futex_wake(&x->go);
	}
	units_copy(x);
	/* If it has had no core until now, the guard does not wait for it. */
	while (both && !left_change(x, LEFT_ASKED, LEFT_NONE) &&
	       atomic_load(&x->left) == LEFT_WORKS)
		shared_futex_wait(&x->left, LEFT_WORKS, LOOK_NS);
}

/* What was asked for, and how it went. From the end of the last write on the trainer may ask for
 * the next copy, so what is left to do is done by what is noted here. */
struct asked {
	struct link *link;
	struct shared_snap *snap;
	uint64_t seq, at;
	int rc; /* of the copy; -ECANCELED: given up */
};

/* Why a snapshot is torn, for the daemon, which has the names: before the word says it. */
static void copy_failed(const ckpt *c, const struct asked *a)
{
	if (a->rc == -EFAULT)
		shared_why_set(a->snap, a->seq, a->at | SHARED_WHY_GONE);
	else if (a->rc != -ECANCELED)
		log_line(&c->log, LOG_ERROR,
			 "client: rank %u of job %s: the library cannot copy memory: %s", c->rank,
			 c->job, strerror(-a->rc));
	shared_snap_drop(a->link->rank, a->snap, a->seq);
}

static int copy_run(ckpt *c)
{
	struct copier *x = &c->copier;
	struct shared_rank *r = x->link->rank;
	uint64_t start = now_ns();

	x->sealed = c->sealed;
	/* The slots of another daemon, or of other declarations, are not touched. */
	if (!x->sealed || x->link != atomic_load(&c->link) || x->sealed->epoch != x->epoch ||
	    x->sealed->rev != x->rev || x->slot >= x->sealed->nslot)
		return -ECANCELED;
	atomic_store(&x->next, 0);
	atomic_store(&x->rc, 0);
	both_copy(x);
	if (atomic_load(&x->rc) < 0 || !goes_on(x))
		return atomic_load(&x->rc) ? atomic_load(&x->rc) : -ECANCELED;
	add_relaxed(&r->own_bytes, x->sealed->own_bytes);
	add_relaxed(&r->own_ns, now_ns() - start);
	return 0;
}

void copier_help(ckpt *c)
{
	struct copier *x = &c->copier;
	const uint64_t one = 1;
	const struct sealed_slot *slot;
	struct asked a;
	uint64_t at;

	if (!atomic_exchange(&x->asked, 0))
		return;
	a = (struct asked){ .link = x->link, .snap = x->snap, .seq = x->seq };
	a.rc = copy_run(c);
	a.at = atomic_load(&x->at);
	slot = a.rc == 0 ? c->sealed->slot[x->slot] : NULL;
	/* Before the word says COPIED: the guard may return with that, and the next step be
	 * marked. */
	shared_copying_clear(a.link->rank, a.seq);
	atomic_store(&x->busy, 0);
	shared_futex_wake(&x->busy);
	if (a.rc < 0)
		copy_failed(c, &a);
	else
		(void)shared_copy_end(a.link->rank, a.snap, a.seq, NEED_CLIENT, slot->at.base,
				      slot->at.bytes, &at);
	if (write(a.link->bell, &one, sizeof one) < 0 && errno != EAGAIN)
		log_line(&c->log, LOG_DEBUG,
			 "client: the daemon cannot be woken: its doorbell is closed");
}

void copier_prepare(ckpt *c)
{
	const struct link *l = atomic_load(&c->link);
	const struct sealed *s = c->sealed;
	uint32_t nslot;

	/* Not earlier: a touch would make small pages of them. */
	if (!s || !s->own_bytes || !l || atomic_load(&l->job->ready_epoch) != s->epoch)
		return;
	nslot = MIN(s->nslot, atomic_load(&l->job->nslot)); /* there is memory for these */
	for (uint32_t i = 0; i < nslot; i++) {
		struct sealed_slot *x = s->slot[i];

		/* Behind own_end lie averages, which this process neither reads nor writes. */
		while (x->prepared < s->own_end && !atomic_load(&c->copier.asked)) {
			uint64_t n = MIN(s->own_end - x->prepared, PREPARE_STEP);

			(void)pages_populate(x->at.base + x->prepared, n);
			x->prepared += n;
		}
	}
}

/* --- the trainer's thread --- */
bool copier_idle(const ckpt *c)
{
	return !atomic_load(&c->copier.busy);
}

void copier_ask(ckpt *c, struct link *l, struct shared_snap *s, uint64_t seq, uint32_t slot)
{
	struct copier *x = &c->copier;

	x->link = l;
	x->snap = s;
	x->seq = seq;
	x->slot = slot;
	x->epoch = atomic_load(&c->epoch);
	x->rev = atomic_load(&c->rev);
	atomic_store(&x->busy, 1);
	atomic_store(&x->asked, 1);
	helper_wake(c);
}

void copier_quiesce(ckpt *c)
{
	struct copier *x = &c->copier;

	if (copier_idle(c))
		return;
	shared_snap_drop(x->link->rank, x->snap, x->seq);
	while (!copier_idle(c) && c->helper_runs)
		shared_futex_wait(&x->busy, 1, LOOK_NS);
}

/* --- from attach to detach --- */
int copier_open(ckpt *c, struct ckpt_err *err)
{
	struct copier *x = &c->copier;
	int rc = device_host.open(0, &x->device, err);

	if (rc == 0 && threads_here(c) > 1) /* without it one thread copies */
		x->runs = thread_start(&x->second, "ckpt-copier", true, second_run, x) == 0;
	return rc;
}

void copier_close(ckpt *c)
{
	struct copier *x = &c->copier;

	if (x->runs) {
		atomic_store(&x->stop, 1);
		atomic_fetch_add(&x->go, 1);
		shared_futex_wake(&x->go);
		pthread_join(x->second, NULL);
	}
	x->runs = false;
	if (x->device)
		x->device->ops->close(TAKE(x->device));
}
