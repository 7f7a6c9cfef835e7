// SPDX-License-Identifier: Apache-2.0
// copier.c - see copier.h. Called by mark.c, and by the helper in attach.c.
// Invariant: nothing writes to a slot while its shared_rank.copying is 0 or another snapshot's.
#include "ckpt/client/copier.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "ckpt/wire/turns.h"
#include <inttypes.h>
#include <sched.h>
#include <sys/mman.h>

#define BATCH 64			    /* rows of one call */
enum { LEFT_NONE, LEFT_ASKED, LEFT_WORKS }; /* copier.left */
#define WITNESS_BYTES (COPIER_ASKED * sizeof(struct queued_witness))
#define RANK_CORES 3
#define PREPARE_STEP (16 * MIB)
#define LOOK_NS (100 * NS_PER_MS)
#define QUIESCE_NS (5 * NS_PER_S) /* a device that takes longer hangs */
#define LEAVE_NS QUIESCE_NS	  /* the same, at a detach */
#define POLL_NS (NS_PER_MS / 50)
#define POLL_MAX_NS (NS_PER_MS / 2)

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
	const struct sealed_slot *slot = x->now->sealed->slot[x->now->slot];
	uint32_t n = TAKE(b->n), bad = 0;
	int none = 0, rc;

	b->bytes = 0;
	if (!n)
		return 0;
	rc = x->host->ops->copy(x->host, &slot->at, b->row, n, &bad);
	if (MUTANT(FAULT_IGNORED))
		rc = 0;
	if (rc < 0 && atomic_compare_exchange_strong(&x->rc, &none, rc))
		atomic_store(&x->at, (uint64_t)(b->row[bad].dst - slot->at.base));
	return rc;
}

static int unit_copy(struct copier *x, uint32_t unit)
{
	const struct sealed *s = x->now->sealed;
	struct sealed_at at = s->unit[unit];
	struct batch b = { .n = 0 };
	int rc = 0;

	while (rc == 0 && sealed_next(s, x->now->slot, &at, &s->unit[unit + 1], &b.row[b.n])) {
		b.bytes += b.row[b.n].width * b.row[b.n].rows;
		b.n++;
		if (b.n == BATCH || b.bytes >= SEALED_UNIT)
			rc = batch_copy(x, &b);
	}
	return rc == 0 ? batch_copy(x, &b) : rc;
}

static bool goes_on(const struct copier *x)
{
	return shared_snap_going(x->now->snap, x->now->seq) && !atomic_load(&x->rc);
}

static void units_copy(struct copier *x)
{
	uint32_t unit;

	while (goes_on(x) && (unit = atomic_fetch_add(&x->next, 1)) < x->now->sealed->nunit)
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
	bool both = x->runs && x->now->sealed->nunit > 1;

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

/* Why a snapshot is torn, for the daemon, which has the names: before the word says it. */
static void copy_failed(const ckpt *c, const struct copier_request *a)
{
	if (a->rc == -EFAULT)
		shared_why_set(a->snap, a->seq, a->at | SHARED_WHY_GONE);
	else if (a->rc != -ECANCELED)
		log_line(&c->log, LOG_ERROR,
			 "client: rank %u of job %s: the library cannot copy memory: %s", c->rank,
			 c->job, strerror(-a->rc));
	shared_snap_drop(a->link->rank, a->snap, a->seq);
}

/* Pinned, so that devices write to it themselves: the page of `done`, and a slot. */
static int devices_register(ckpt *c, struct link *l, struct sealed_slot *slot, struct ckpt_err *err)
{
	struct device_handle *d = devices_handle(c, c->sealed->queue[0].device);
	int rc = 0;

	if (!l->done_device) {
		l->done = (struct device_target){ .base = (uint8_t *)(void *)l->rank->done,
						  .bytes = 4096,
						  .fd = -1 };
		rc = d->ops->target(d, &l->done, err);
		if (rc == 0)
			l->done_device = d;
	}
	return rc == 0 ? sealed_slot_register(slot, d, err) : rc;
}

/* Without memory that is pinned, every word would be waited for: then there are none. */
static uint32_t words_register(ckpt *c, const struct copier_request *a)
{
	struct copier *x = &c->copier;
	struct device_handle *d = devices_handle(c, a->sealed->queue[0].device);
	struct ckpt_err none;

	if (x->witness && !x->words_device && d->ops->target(d, &x->words, &none) == 0)
		x->words_device = d;
	return x->words_device && x->words.direct ? a->nword : 0;
}

static void indirect_say(ckpt *c, const struct sealed_slot *slot)
{
	if (slot->at.direct || c->copier.indirect_said)
		return;
	c->copier.indirect_said = true;
	log_line(&c->log, LOG_WARNING,
		 "client: rank %u of job %s: the memory of the slots cannot be pinned for the "
		 "devices (the limit of locked memory, ulimit -l, or of the cgroup?): copies "
		 "go by way of a buffer, and take longer",
		 c->rank, c->job);
}

static struct queued_witness *witness_of(const struct copier *x, const struct copier_request *a)
{
	return x->witness ? &x->witness[a - x->of] : NULL;
}

static int devices_run(ckpt *c, struct copier_request *a)
{
	struct copier *x = &c->copier;
	struct ckpt_err err;
	int rc = devices_register(c, a->link, a->sealed->slot[a->slot], &err);

	a->nword = rc == 0 ? words_register(c, a) : 0;
	if (rc < 0) {
		log_line(&c->log, LOG_ERROR, "client: rank %u of job %s: %s", c->rank, c->job,
			 err.msg);
		return rc;
	}
	return queued_run(c, &(struct queued_copy){ .sealed = a->sealed,
						    .slot = a->slot,
						    .turn = a->turn,
						    .replicas = a->lost ? 0 : a->replicas,
						    .lost = &a->lost,
						    .word = a->word,
						    .nword = a->nword,
						    .target = &x->words,
						    .witness = witness_of(x, a),
						    .rank = a->link->rank,
						    .snap = a->snap,
						    .seq = a->seq,
						    .done = &a->link->done,
						    .news = &a->news,
						    .bad_at = &x->at,
						    .end = a->end,
						    .nend = &a->nend,
						    .number = c->copier.begun + 1,
						    .course = &a->course });
}

/* Of host memory. What is not there is no fault of the snapshot, but is not compared. */
static int replicas_copy(struct copier *x, struct copier_request *a)
{
	const struct sealed *s = a->sealed;
	const struct sealed_some some = { &s->replicas, a->slot, TURN_WHOLE, a->replicas };
	struct sealed_at at = { 0 };
	struct device_row row;
	uint32_t bad;

	while (a->replicas && !a->lost && sealed_queue_next(s, &some, &at, SEALED_UNIT, &row)) {
		if (!goes_on(x))
			return -ECANCELED;
		a->lost = x->host->ops->copy(x->host, &s->slot[a->slot]->at, &row, 1, &bad) < 0;
		a->bytes += row.width * row.rows;
	}
	return 0;
}

static int copy_run(ckpt *c, struct copier_request *a)
{
	struct copier *x = &c->copier;
	struct shared_rank *r = a->link->rank;
	struct sealed *s = c->sealed;
	int rc;

	/* The slots of another daemon, or of other declarations, are not touched. */
	if (!s || a->link != atomic_load(&c->link) || s->epoch != a->epoch || s->rev != a->rev ||
	    a->slot >= s->nslot)
		return -ECANCELED;
	a->sealed = sealed_ref(s);
	x->now = a;
	atomic_store(&x->next, 0);
	atomic_store(&x->rc, 0);
	both_copy(x);
	if (atomic_load(&x->rc) < 0 || !goes_on(x))
		return atomic_load(&x->rc) ? atomic_load(&x->rc) : -ECANCELED;
	a->bytes = s->own_bytes;
	rc = replicas_copy(x, a);
	if (rc < 0 || !s->nqueue)
		return rc;
	sealed_whole(s, r->whole, a->nwhole);
	rc = devices_run(c, a);
	for (uint32_t i = 0; i < s->nqueue; i++)
		a->bytes -= s->queue[i].bytes;
	a->bytes += x->queued.bytes;
	return rc;
}

static void request_begin(ckpt *c, struct copier_request *a)
{
	a->begun_ns = now_ns();
	a->sealed = NULL;
	a->nend = 0;
	a->lost = !a->replicas;
	a->course = (struct queued_course){ .looked_ns = a->begun_ns };
	a->rc = copy_run(c, a);
	a->at = atomic_load(&c->copier.at);
}

/* Does the slot hold what devices had before the copies and behind them? If not, a kernel changed
 * the state meanwhile; unless the snapshot was torn before, for then the trainer might do so. */
static bool words_changed(const struct copier *x, struct copier_request *a)
{
	const struct queued_witness *w = witness_of(x, a);

	for (uint32_t i = 0; i < a->nword && !MUTANT(CANARY_FAR_IGNORED); i++) {
		const uint8_t *copy = a->sealed->slot[a->slot]->at.base + a->word[i].dst;
		uint32_t len = a->word[i].len;

		if ((memcmp(&w->before[i], copy, len) == 0 || MUTANT(CANARY_FAR_UNREAD)) &&
		    (memcmp(&w->behind[i], copy, len) == 0 || MUTANT(CANARY_FAR_ONCE)))
			continue;
		a->at = a->word[i].dst;
		return shared_snap_going(a->snap, a->seq);
	}
	return false;
}

static void request_end(ckpt *c, struct copier_request *a)
{
	struct copier *x = &c->copier;
	struct shared_rank *r = a->link->rank;
	const uint64_t one = 1;
	uint64_t now = now_ns(), at;

	if (x->queued.news == &a->news)
		x->queued.news = NULL;
	if (a->rc == 0 && words_changed(x, a)) {
		shared_why_set(a->snap, a->seq, a->at);
		shared_snap_drop(r, a->snap, a->seq);
	} else if (a->rc == 0) {
		const struct sealed_slot *slot = a->sealed->slot[a->slot];

		if (!a->lost)
			shared_replicas_brought(r, a->seq, a->replicas);
		add_relaxed(&r->own_bytes, a->bytes);
		add_relaxed(&r->own_ns, now - MAX(a->begun_ns, x->ended_ns));
		(void)shared_copy_end(r, a->snap, a->seq, NEED_CLIENT, slot->at.base,
				      slot->at.bytes, &at);
	} else {
		copy_failed(c, a);
	}
	torn_behind(c, a->link, a->snap, a->seq);
	shared_copying_clear(r, a->seq);
	x->ended_ns = now;
	sealed_unref(TAKE(a->sealed));
	if (write(a->link->bell, &one, sizeof one) < 0 && errno != EAGAIN)
		log_line(&c->log, LOG_DEBUG,
			 "client: the daemon cannot be woken: its doorbell is closed");
	(void)atomic_fetch_sub(&x->busy, 1); /* from here on the request is the trainer's */
	shared_futex_wake(&x->busy);
	canary_log(c); /* before the next request has found something */
}

bool copier_ends(ckpt *c)
{
	struct copier *x = &c->copier;
	struct copier_request *a = &x->of[x->ended % COPIER_ASKED];
	int rc;

	if (x->ended == x->begun || atomic_load(&x->queued.stuck))
		return false;
	queued_watch(&x->queued, &a->course, &a->news);
	rc = a->sealed ? queued_ended(c, a->sealed, a->end, a->nend) : 0;
	if (rc == -EAGAIN)
		return false;
	queued_note(&x->queued, &a->course, &a->news);
	if (a->rc == 0)
		a->rc = rc;
	x->ended++;
	request_end(c, a);
	return true;
}

bool copier_works(const ckpt *c)
{
	return c->copier.ended != atomic_load(&c->copier.asked) &&
	       !atomic_load(&c->copier.queued.stuck);
}

bool copier_looks(ckpt *c)
{
	bool coming = queued_coming(&c->copier.queued);

	return copier_works(c) || (coming && !atomic_load(&c->stop));
}

/* A device does not end though the handle does: it may still write to its slots; and the log may be
 * gone, with the handle. */
static void stuck_drop(ckpt *c)
{
	struct copier *x = &c->copier;

	for (uint32_t n = x->ended; n != x->begun; n++) {
		struct copier_request *a = &x->of[n % COPIER_ASKED];

		shared_snap_drop(a->link->rank, a->snap, a->seq);
		torn_behind(c, a->link, a->snap, a->seq);
	}
}

/* Has the handle waited long enough for its devices? */
static bool leaves(ckpt *c)
{
	struct copier *x = &c->copier;

	if (atomic_load(&c->stop) && !x->leave)
		x->leave = client_until(LEAVE_NS);
	return x->leave && now_ns() >= x->leave;
}

void copier_help(ckpt *c)
{
	struct copier *x = &c->copier;
	uint64_t pause = POLL_NS;
	bool ended = false;

	while (!ended && copier_looks(c)) {
		uint32_t seen = atomic_load(&x->queued.stir);

		if (x->begun != atomic_load(&x->asked)) {
			request_begin(c, &x->of[x->begun % COPIER_ASKED]);
			x->begun++;
			pause = POLL_NS;
		}
		queued_look(c);
		ended = copier_ends(c);
		if (!ended && leaves(c))
			atomic_store(&x->queued.stuck, true);
		else if (!ended)
			(void)shared_futex_wait(&x->queued.stir, seen, pause);
		pause = MIN(pause + POLL_NS, POLL_MAX_NS);
	}
	if (atomic_load(&x->queued.stuck))
		stuck_drop(c);
}

void copier_finish(ckpt *c)
{
	while (copier_works(c))
		copier_help(c);
}

/* Seconds for many GiB, in which the helper does nothing else; ckpt_seal waits for it. */
static void slots_register(ckpt *c, struct link *l, uint32_t from, uint32_t nslot)
{
	const struct sealed *s = c->sealed;
	struct ckpt_err err;

	for (uint32_t i = from; i < nslot && s->nqueue; i++) {
		if (devices_register(c, l, s->slot[i], &err) < 0)
			log_line(&c->log, LOG_ERROR, "client: rank %u of job %s: %s", c->rank,
				 c->job, err.msg);
		else
			indirect_say(c, s->slot[i]);
	}
	store_release(&c->copier.registered, (uint64_t)s->epoch + 1);
	(void)atomic_fetch_add(&c->changed, 1);
	shared_futex_wake(&c->changed);
}

bool copier_ready(ckpt *c)
{
	if (!load_acquire(&c->devices.open) ||
	    load_acquire(&c->copier.registered) == (uint64_t)load_relaxed(&c->epoch) + 1)
		return true;
	helper_wake(c);
	return false;
}

void copier_prepare(ckpt *c)
{
	struct link *l = atomic_load(&c->link);
	const struct sealed *s = c->sealed;
	uint64_t prepared;
	uint32_t nslot;

	/* Not earlier: a touch would make small pages of them. */
	if (!s || !l || atomic_load(&l->job->ready_epoch) != s->epoch)
		return;
	nslot = MIN(s->nslot, atomic_load(&l->job->nslot)); /* there is memory for these */
	prepared = load_relaxed(&l->rank->prepared);
	prepared = prepared >> 8 == s->epoch ? prepared & 0xff : 0;
	for (uint32_t i = 0; i < nslot; i++) {
		struct sealed_slot *x = s->slot[i];

		/* Behind own_end lie averages, which this process neither reads nor writes. */
		while (x->prepared < s->own_end && !copier_works(c)) {
			uint64_t n = MIN(s->own_end - x->prepared, PREPARE_STEP);

			(void)pages_populate(x->at.base + x->prepared, n);
			x->prepared += n;
		}
	}
	if (prepared == nslot || copier_works(c))
		return;
	if (load_relaxed(&c->copier.registered) != (uint64_t)s->epoch + 1)
		slots_register(c, l, 0, nslot);
	else
		slots_register(c, l, (uint32_t)prepared, nslot); /* one that came later */
	store_release(&l->rank->prepared, (uint64_t)s->epoch << 8 | nslot);
}

/* --- the trainer's thread --- */
bool copier_idle(const ckpt *c)
{
	return !atomic_load(&c->copier.busy);
}

bool copier_full(const ckpt *c)
{
	return atomic_load(&c->copier.busy) >= COPIER_ASKED;
}

/* What other declarations had may be freed, and lies elsewhere in the slot. */
static void words_take(struct copier_request *a, const struct canary *x)
{
	a->nword = x->far_epoch == a->epoch && x->far_rev == a->rev ? x->nfar : 0;
	memcpy(a->word, x->far, a->nword * sizeof a->word[0]);
}

void copier_ask(ckpt *c, struct link *l, struct shared_snap *s, uint64_t seq, uint32_t slot,
		uint32_t replicas)
{
	struct copier *x = &c->copier;
	struct copier_request *a = &x->of[load_relaxed(&x->asked) % COPIER_ASKED];

	a->link = l;
	a->snap = s;
	a->seq = seq;
	a->slot = slot;
	a->epoch = atomic_load(&c->epoch);
	a->rev = atomic_load(&c->rev);
	a->turn = s->rec.turn;
	a->nwhole = s->rec.nwhole;
	words_take(a, &c->canary);
	a->replicas = replicas <= WIRE_REPLICA_TURNS ? replicas : 0;
	queued_begin(&a->news);
	(void)atomic_fetch_add(&x->busy, 1);
	(void)atomic_fetch_add(&x->asked, 1);
	queued_stir(&x->queued);
	helper_wake(c);
}

struct queued_news *copier_news(ckpt *c)
{
	return &c->copier.of[(load_relaxed(&c->copier.asked) - 1) % COPIER_ASKED].news;
}

bool copier_guarded(ckpt *c, const struct ckpt_mark *m, uint32_t devices)
{
	struct copier *x = &c->copier;
	uint32_t number = load_relaxed(&x->asked);

	if (devices_come(c, m, devices, number) < 0)
		return false;
	store_release(&x->queued.coming, number);
	queued_stir(&x->queued);
	return true;
}

void copier_quiesce(ckpt *c)
{
	struct copier *x = &c->copier;
	uint64_t until = client_until(QUIESCE_NS);
	uint32_t asked = load_relaxed(&x->asked), busy;
	const struct copier_request *a = &x->of[(asked - 1) % COPIER_ASKED];

	if (!asked || copier_idle(c))
		return;
	if (!shared_snap_ordered(a->snap))
		shared_snap_drop(a->link->rank, a->snap, a->seq);
	while ((busy = atomic_load(&x->busy)) && c->helper_runs && now_ns() < until)
		shared_futex_wait(&x->busy, busy, LOOK_NS);
	for (uint32_t i = 0; i < MIN(busy, asked); i++) {
		a = &x->of[(asked - 1 - i) % COPIER_ASKED];
		shared_snap_drop(a->link->rank, a->snap, a->seq);
		torn_behind(c, a->link, a->snap, a->seq);
	}
}

/* --- from attach to detach --- */
int copier_open(ckpt *c, struct ckpt_err *err)
{
	struct copier *x = &c->copier;
	int rc = device_host.open(0, &x->host, err);
	/* Shared: devices write to it, so a fork must not give the parent another page. */
	void *p = mmap(NULL, WITNESS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);

	x->witness = p == MAP_FAILED ? NULL : p;
	x->words = (struct device_target){ .base = (uint8_t *)x->witness,
					   .bytes = WITNESS_BYTES,
					   .fd = -1 };
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
	free(TAKE(x->queued.of));
	if (x->words_device)
		x->words_device->ops->forget(x->words_device, &x->words);
	x->words_device = NULL;
	if (x->witness)
		(void)munmap(TAKE(x->witness), WITNESS_BYTES);
	if (x->host)
		x->host->ops->close(TAKE(x->host));
}
