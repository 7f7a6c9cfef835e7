/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_shared.c - the state machine of shared.h under random schedules: ranks that train and
 * mark, the daemon's copiers, each rank's own copier, which dies with its rank, devices, and a
 * daemon in miniature that obeys the rules of daemon/snap.c.
 *
 * The first half of a rank's state is copied by the daemon, the second half by its own copier, word
 * by word or by its device; a rank may have one half only. A device does what is queued in its
 * order, copies as well as the trainer's updates of the second half, and what it has written to a
 * slot is seen when it has written `done` behind it.
 *
 * Every trainer writes its step number into every word of its buffer, so a staged image that holds
 * two numbers was torn. Most runs are coroutines on one thread: a seed is a schedule, and a failure
 * prints it. Some runs are threads, for ThreadSanitizer to say whether the protocol orders the
 * plain accesses.
 *
 * Negative controls: each rule of the daemon is taken out in turn (enum rule below), and the same
 * runs must then find something wrong; those of shared.c are mistakes of ckpt/base/mutants.h, for
 * which seeds begin at 1.
 */
#include <pthread.h>
#include <sched.h>
#include <ucontext.h>
#define SHARED_POINTS
#include "ckpt/wire/shared.c"
#include "tests/lib/unit.h"

#ifdef __SANITIZE_THREAD__
#define COROUTINES 0
#else
#define COROUTINES 1
#endif

#define WORLD_MAX 4
#define SLOTS_MAX 4
#define HALF 16
#define WORDS (2 * HALF) /* the daemon's half, the rank's own */
#define QUEUE 4096
#define STEPS_MAX 400
#define EXPIRE_ROUNDS 2000 /* as EXPIRE_NS: a final mark may wait for this very slot */
#define TICKETS 4096	   /* of a run; fewer than that */
#define COPIERS 2
#define ACTORS_MAX (3 * WORLD_MAX + COPIERS + 1)
#define STACK_BYTES (64 * KIB)
#define POINTS_MAX 2000000

/* What the daemon in miniature may do wrong. */
enum rule {
	RULES_KEPT,
	STAGE_BEFORE_ALL,
	COMMIT_UNGUARDED,
	RELEASE_BEFORE_STAGED,
	GIVE_WHILE_COPYING,
	STAGE_OPEN,
	VOID_NOT_GIVEN,
	COPY_ONCE_TORN,
	GIVE_TO_LATE,
	LOOK_BEFORE_OVER,
	DIE_BY_SOCKET,
	ORDER_EARLY,
	DONE_UNFENCED,
	DONE_BEHIND_NOTHING,
	CLEAR_EARLY,
	RULES_END
};

struct snap {
	bool used, dropped, known;
	uint16_t seq;
	uint32_t slot, flags, tasks, write_left;
	uint64_t step;
	bool committed;
	enum { COLLECTING, STAGED, WRITING } phase;
	uint64_t staged_at;
	uint32_t rounds; /* since it was taken */
	struct {
		enum { NONE, COPYING, DONE, TORN } copy;
		bool task, tasked;
		uint64_t mark;
		struct shared_record rec;
	} rank[WORLD_MAX];
};

/* What is queued on a device. */
struct op {
	enum { OP_COPY, OP_DONE, OP_UPDATE } what;
	uint64_t step, mark;
	uint32_t slot, target;
	uint16_t seq;
};

struct task {
	struct snap *snap;
	uint32_t rank, slot;
	uint16_t seq;
	uint64_t mark;
	bool done;
	int rc;
};

static struct world {
	/* the plan of the run */
	uint32_t world, nslot, nstep, persist_percent, unguarded_percent, changed_percent, deaths;
	int policy; /* 0 never, 1 bounded, 2 finish, 3 mixed */
	bool in_step, plain, threads;
	bool again; /* each rank marks a step that has come to nothing as often as it likes */
	bool copier_first; /* a dying rank's copier ends with its socket; its device goes on */
	enum rule broken;
	/* shared by all */
	struct shared_job *job;
	struct shared_rank *rank[WORLD_MAX];
	uint32_t has[WORLD_MAX]; /* NEED_DAEMON, NEED_CLIENT: which half */
	bool device[WORLD_MAX];
	/* what its own copier is to copy: mark, 0 none */
	_Atomic uint64_t asked[WORLD_MAX];
	struct op ask[WORLD_MAX];
	/* the device's queue: the rank's two actors put in, the device takes out */
	struct op queue[WORLD_MAX][QUEUE];
	_Atomic uint32_t put[WORLD_MAX], got[WORLD_MAX];
	uint32_t target[WORLD_MAX];
	_Atomic bool socket_ended[WORLD_MAX];
	_Atomic bool let_go[WORLD_MAX][TICKETS], dropped[WORLD_MAX][TICKETS], torn[TICKETS];
	_Atomic uint16_t
		given_seq[SLOTS_MAX]; /* the newest ticket that has had the slot taken away */
	uint64_t buf[WORLD_MAX][WORDS], slot[WORLD_MAX][SLOTS_MAX][WORDS];
	_Atomic uint64_t ticket[STEPS_MAX + 2]; /* seq, slot, flags of the step + 1; 0 none */
	_Atomic uint64_t decided[TICKETS];	/* the same of the ticket, and its step */
	struct ticket spent[WORLD_MAX];
	uint64_t spent_step[WORLD_MAX];
	_Atomic uint8_t told_torn[WORLD_MAX][TICKETS], told_changed[WORLD_MAX][TICKETS];
	_Atomic uint16_t staged[STEPS_MAX + 2], committed[STEPS_MAX + 2]; /* the ticket's number */
	_Atomic uint64_t at_step[WORLD_MAX];
	_Atomic bool dead[WORLD_MAX], over[WORLD_MAX], daemon_over;
	pthread_mutex_t lock; /* protects the queue */
	struct task *todo[64], *finished[64];
	uint32_t ntodo, nfinished;
	_Atomic(const char *) wrong;
	/* the daemon's */
	struct snap snap[64];
	uint64_t marks_seen[WORLD_MAX], clock;
	uint16_t ticket_seen;
	bool ever_staged, death_seen[WORLD_MAX];
	uint32_t nstaged, ntorn, nvoid, nchanged, norphan;
	_Atomic uint32_t nordered, nboth, nlate, nbusy, nagain;
} W;

static void wrong(const char *what)
{
	const char *none = NULL;

	atomic_compare_exchange_strong(&W.wrong, &none, what);
}

/* --- chance and schedules --- */
static uint64_t rng_state;
static _Thread_local uint64_t rng_own;

static uint32_t chance(uint32_t n)
{
	uint64_t *s = W.threads ? &rng_own : &rng_state, z = *s += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) % n);
}

static struct {
	ucontext_t context;
	bool over;
	uint32_t weight;
	uint8_t *stack;
} actor[ACTORS_MAX];
static ucontext_t scheduler;
static uint32_t nactor, running;
static uint64_t npoint;

static void point(void)
{
	if (W.threads) {
		if (chance(8) == 0)
			sched_yield();
	} else {
		swapcontext(&actor[running].context, &scheduler);
	}
}

static void schedule(void)
{
	uint32_t alive = nactor;

	for (npoint = 0; alive && !atomic_load(&W.wrong); npoint++) {
		uint32_t sum = 0, pick;

		if (npoint > POINTS_MAX) {
			wrong("somebody waits for ever");
			return;
		}
		if (npoint % 256 ==
		    0) /* now and then somebody is fast, slow, or stopped for a while */
			for (uint32_t i = 0; i < nactor; i++)
				actor[i].weight = chance(4) ? 1 + chance(8) : chance(2) * 100;
		for (uint32_t i = 0; i < nactor; i++)
			sum += actor[i].over ? 0 : actor[i].weight;
		if (sum == 0) {
			npoint += 255 - npoint % 256;
			continue;
		}
		pick = chance(sum);
		for (running = 0; actor[running].over || pick >= actor[running].weight; running++)
			pick -= actor[running].over ? 0 : actor[running].weight;
		swapcontext(&scheduler, &actor[running].context);
		alive = 0;
		for (uint32_t i = 0; i < nactor; i++)
			alive += !actor[i].over;
	}
}

static void put(uint64_t *p, uint64_t x)
{
	if (W.plain)
		*p = x;
	else
		__atomic_store_n(p, x, __ATOMIC_RELAXED);
}

static uint64_t get(const uint64_t *p)
{
	return W.plain ? *p : __atomic_load_n(p, __ATOMIC_RELAXED);
}

/* --- a rank --- */
static bool may_order(uint32_t policy)
{
	return policy != 0;
}

static bool unfinished(const struct shared_snap *s, uint32_t policy)
{
	return shared_snap_state(s, NULL) == SNAP_COPYING &&
	       !(may_order(policy) && shared_snap_ordered(s));
}

/* As in client/mark.c. early: this rank has changed its state already, and the guard finds it. */
static void guard(uint32_t r, bool early)
{
	struct shared_rank *me = W.rank[r];
	struct shared_snap *s = shared_snap_newest(me);
	uint32_t policy = W.policy == 3 ? chance(3) : (uint32_t)W.policy,
		 budget = policy == 2 ? UINT32_MAX : policy * chance(60);
	uint64_t seq;

	/* what is changed behind its guard concerns nobody */
	early &= s && atomic_load(&me->guarded_mark) != atomic_load(&me->marks);
	while (s && unfinished(s, policy) && budget-- && !atomic_load(&W.wrong)) {
		uint32_t seen;

		atomic_store(&me->waiting, 1);
		seen = atomic_load(&me->wake);
		if (!unfinished(s, policy))
			break;
		if (W.threads) {
			shared_futex_wait(&me->wake, seen, NS_PER_S);
			continue;
		}
		for (uint32_t n = 0;
		     atomic_load(&me->wake) == seen && budget && !atomic_load(&W.wrong);
		     n++, budget--) {
			if (n > 60000 && !unfinished(s, policy))
				wrong("a guard sleeps though its copy has ended");
			point();
		}
	}
	atomic_store(&me->waiting, 0);
	point();
	if (s && may_order(policy) && shared_snap_ordered(s)) {
		atomic_store(&W.let_go[r][s->rec.ticket_seq % TICKETS], true);
		atomic_fetch_add(&W.nordered, 1);
	} else {
		shared_tear(me);
	}
	if (s && shared_snap_state(s, &seq) == SNAP_TORN)
		atomic_store(&W.told_torn[r][s->rec.ticket_seq % TICKETS], 1);
	else if (early)
		atomic_store(&W.told_changed[r][s->rec.ticket_seq % TICKETS], 1);
	shared_update(me, early && shared_snap_state(s, &seq) == SNAP_COPIED);
	if (!atomic_load(&me->updating))
		wrong("a trainer may change its state while the page says that it does not");
}

/* One of the rank's two actors at a time: a queue has one lock in life, here it has W.lock. */
static void enqueue(uint32_t r, struct op op)
{
	uint32_t n;

	pthread_mutex_lock(&W.lock);
	n = atomic_load(&W.put[r]);
	W.queue[r][n % QUEUE] = op;
	if (n - atomic_load(&W.got[r]) >= QUEUE)
		wrong("a device's queue is full");
	atomic_store(&W.put[r], n + 1);
	pthread_mutex_unlock(&W.lock);
}

static void train(uint32_t r, uint64_t step, uint32_t words)
{
	if (W.device[r] && words == WORDS)
		enqueue(r, (struct op){ .what = OP_UPDATE, .step = step });
	for (uint32_t i = 0; i < (W.device[r] ? MIN(words, (uint32_t)HALF) : words); i++) {
		put(&W.buf[r][i], step);
		for (uint32_t n = i % 4 == 3 ? 1 + chance(4) : 0; n; n--)
			point();
	}
}

/* All ranks that are given a ticket are given the same one; and if no step is marked again, it is
 * the only one of its step. */
static void decided(uint64_t step, struct ticket t)
{
	uint64_t mine = UINT64_C(1) << 32 | (uint64_t)t.seq << 16 | (uint64_t)t.slot << 8 | t.flags,
		 other = 0;

	if (!W.again && !atomic_compare_exchange_strong(&W.ticket[step], &other, mine) &&
	    other != mine)
		wrong("one step has two tickets");
	mine |= step << 40;
	other = 0;
	if (!atomic_compare_exchange_strong(&W.decided[t.seq % TICKETS], &other, mine) &&
	    other != mine)
		wrong("one ticket has two slots, or two steps");
}

static void spend(uint32_t r, uint64_t step, struct ticket t)
{
	W.spent[r] = t;
	W.spent_step[r] = step;
}

static int take(uint32_t r, uint64_t step, struct ticket *t)
{
	uint32_t want = chance(100) < W.persist_percent ? TICKET_PERSIST : 0;
	const struct ticket *spent = W.spent_step[r] == step ? &W.spent[r] : NULL;
	bool final = step == W.nstep;
	int rc;

	while ((rc = shared_ticket(W.job, step, spent, final ? TICKET_PERSIST | TICKET_FINAL : want,
				   final && W.in_step, t)) == -EAGAIN &&
	       !atomic_load(&W.wrong))
		point();
	if (rc < 0)
		return rc;
	decided(step, *t);
	if (t->slot != SHARED_SKIP)
		return 0;
	spend(r, step, *t);
	return -EBUSY;
}

/* 2, or 3: then false. */
static bool publish(uint32_t r, struct shared_snap *s, const struct shared_record *rec,
		    struct ticket t)
{
	struct shared_rank *me = W.rank[r];
	uint64_t seq = shared_snap_seq(me);
	bool over = false, busy = atomic_load(&me->copying) || atomic_load(&W.asked[r]);

	for (uint32_t n = chance(6) ? 0 : chance(2000); n; n--)
		point(); /* late */
	if (W.has[r] & NEED_CLIENT && !busy) {
		if (W.broken == GIVE_TO_LATE) {
			over = shared_ticket_over(W.job, t);
			point();
		}
		shared_copying_set(me, seq, t.slot);
		if (W.broken != GIVE_TO_LATE)
			over = shared_ticket_over(W.job, t);
		if (over)
			shared_copying_clear(me, seq);
	}
	atomic_fetch_add(&W.nlate, over);
	atomic_fetch_add(&W.nbusy, busy);
	if (W.has[r] & NEED_CLIENT && (busy || over)) {
		shared_snap_publish(me, s, SNAP_TORN, 0);
		return false;
	}
	atomic_fetch_add(&W.nboth, W.has[r] == 3);
	point();
	shared_snap_publish(me, s, SNAP_COPYING, W.has[r]);
	if (!(W.has[r] & NEED_CLIENT))
		return true;
	W.target[r] = rec->target;
	W.ask[r] = (struct op){
		.mark = seq, .slot = t.slot, .target = rec->target, .step = rec->step, .seq = t.seq
	};
	atomic_store(&W.asked[r], seq);
	return true;
}

/* False: it is skipped. */
static bool mark(uint32_t r, uint64_t step)
{
	struct shared_rank *me = W.rank[r];
	struct shared_record rec = {
		.step = step, .mark_ns = step, .nnote = 1, .note = { { "step", (double)step } }
	};
	struct shared_snap *s;
	struct ticket t;

	s = shared_snap_newest(me);
	shared_stable(me);
	if (s && atomic_load(&W.let_go[r][s->rec.ticket_seq % TICKETS]) &&
	    shared_snap_state(s, NULL) == SNAP_TORN &&
	    !atomic_load(&W.dropped[r][s->rec.ticket_seq % TICKETS]))
		wrong("what a guard had let go was torn by the next mark");
	if (atomic_load(&me->updating))
		wrong("a snapshot does not say that the state is stable");
	if (take(r, step, &t) < 0)
		return false;
	rec.slot = t.slot;
	rec.flags = t.flags;
	rec.ticket_seq = t.seq;
	rec.unguarded = atomic_load(&me->unguarded);
	s = shared_snap_next(me);
	if (!s) { /* let go, and not copied yet */
		atomic_fetch_add(&W.nbusy, 1);
		return false;
	}
	spend(r, step, t);
	rec.target = W.target[r] + 1;
	point();
	shared_snap_write(s, &rec);
	point();
	return publish(r, s, &rec, t);
}

/* A trainer that does not do without this step, for a while. */
static void mark_again(uint32_t r, uint64_t step, bool taken)
{
	for (uint32_t n = chance(3) ? 0 : chance(20); n && !atomic_load(&W.wrong); n--) {
		const struct shared_snap *s = shared_snap_newest(W.rank[r]);

		for (uint32_t k = chance(40); k; k--)
			point();
		guard(r, false);
		if (taken && shared_snap_state(s, NULL) != SNAP_TORN &&
		    !atomic_load(&W.torn[s->rec.ticket_seq % TICKETS]))
			continue;
		taken = mark(r, step);
		atomic_fetch_add(&W.nagain, taken);
	}
}

/* The collective operations of a training step: nobody is more than one step ahead. */
static void meet(uint32_t r, uint64_t step)
{
	atomic_store(&W.at_step[r], step);
	for (uint32_t k = 0; k < W.world; k++)
		while (!atomic_load(&W.dead[k]) && atomic_load(&W.at_step[k]) < step &&
		       !atomic_load(&W.wrong))
			point();
}

static void trainer(uint32_t r)
{
	uint64_t dies_at = !COROUTINES || r >= W.deaths ? UINT64_MAX : chance(W.nstep * 40);

	for (uint64_t step = 1; step <= W.nstep && !atomic_load(&W.wrong); step++) {
		bool early = W.changed_percent && chance(100) < W.changed_percent, taken;

		if (early)
			train(r, step, 1 + chance(WORDS));
		if (chance(100) >= W.unguarded_percent)
			guard(r, early);
		train(r, step, WORDS);
		if (dies_at <
		    step * 40) { /* somewhere in here: before its mark, after it, or while training on */
			uint32_t where = (uint32_t)(dies_at % 40);

			if (where > 10)
				mark(r, step);
			for (uint32_t i = chance(2) ? where : where * 20; i; i--)
				point();
			if (where > 30) {
				guard(r, false);
				put(&W.buf[r][0], step + 1);
			}
			/* its socket ends; its other threads and its device go on for a while */
			atomic_store(&W.socket_ended[r], true);
			for (uint32_t i = chance(600); i; i--)
				point();
			atomic_store(&W.dead[r], true);
			break;
		}
		taken = mark(r, step);
		if (W.again)
			mark_again(r, step, taken);
		if (W.in_step)
			meet(r, step);
		else
			for (uint32_t n = chance(20) ? 0 : chance(300); n; n--)
				point();
		for (uint32_t n = chance(W.unguarded_percent ? 8 : 30); n; n--)
			point();
	}
	while (!atomic_load(&W.dead[r]) && !atomic_load(&W.wrong) &&
	       (atomic_load(&W.asked[r]) || atomic_load(&W.put[r]) != atomic_load(&W.got[r])))
		point();
	if (!atomic_load(&W.dead[r]))
		atomic_store(&W.rank[r]->waited_step, W.nstep + 1);
	atomic_store(&W.over[r], true);
}

/* --- a rank's own copier, and its device --- */
/* A slot may be written by whoever has a snapshot in it, and by nobody else. */
static void slot_write(uint32_t r, uint32_t slot, uint16_t seq, uint32_t i, uint64_t x)
{
	uint16_t over = atomic_load(&W.given_seq[slot]);

	if (over && shared_seq_cmp(over, seq) >= 0)
		wrong("somebody writes to a slot that is another step's by now");
	if (!atomic_load(&W.wrong))
		W.slot[r][slot][i] = x;
}

static bool copier_dead(uint32_t r)
{
	return atomic_load(&W.dead[r]) || (W.copier_first && atomic_load(&W.socket_ended[r]));
}

static void own_copy(uint32_t r, const struct op *op)
{
	struct shared_rank *me = W.rank[r];
	struct shared_snap *s = &me->snap[op->mark % SHARED_SNAPS];
	bool stop = false;
	uint64_t at;

	if (W.broken == CLEAR_EARLY)
		shared_copying_clear(me, op->mark);
	if (W.device[r]) {
		if (W.broken == ORDER_EARLY)
			shared_snap_order(me, s, op->mark);
		for (uint32_t i = 0; i < HALF / 4; i++) {
			struct op part = *op;

			part.what = OP_COPY;
			part.step = i;
			enqueue(r, part);
			point();
		}
		enqueue(r, (struct op){ .what = OP_DONE, .target = op->target });
		point();
		shared_snap_order(me, s, op->mark);
		while ((int32_t)(atomic_load_explicit(&me->done, memory_order_acquire) -
				 op->target) < 0 &&
		       !copier_dead(r) && !atomic_load(&W.wrong) && W.broken != DONE_BEHIND_NOTHING)
			point();
	}
	for (uint32_t i = HALF; i < WORDS && !W.device[r] && !stop; i++) {
		if (i % 4 == 0) {
			point();
			stop = !shared_snap_going(s, op->mark);
		}
		if (copier_dead(r))
			return;
		if (!stop)
			slot_write(r, op->slot, op->seq, i, get(&W.buf[r][i]));
	}
	if (copier_dead(r) || atomic_load(&W.wrong))
		return;
	if (!stop)
		shared_copy_end(me, s, op->mark, NEED_CLIENT, W.slot[r][op->slot],
				sizeof W.slot[r][op->slot], &at);
	point();
	if (!copier_dead(r))
		shared_copying_clear(me, op->mark);
}

static void own_copier(uint32_t r)
{
	while (!copier_dead(r) && !atomic_load(&W.wrong) && !atomic_load(&W.daemon_over)) {
		point();
		if (!atomic_load(&W.asked[r]))
			continue;
		own_copy(r, &W.ask[r]);
		atomic_store(&W.asked[r], 0);
	}
}

/* What it has written to slots stays with it until it writes it back. */
static void device(uint32_t r)
{
	struct op late = { 0 };
	uint64_t word[4];
	uint32_t nlate = 0;

	while (!atomic_load(&W.dead[r]) && !atomic_load(&W.wrong) && !atomic_load(&W.daemon_over)) {
		uint32_t n = atomic_load(&W.got[r]);
		struct op op;

		point();
		if (atomic_load(&W.dead[r]))
			return;
		if (nlate && (W.broken != DONE_UNFENCED || chance(40) == 0)) {
			for (uint32_t i = 0; i < 4; i++)
				slot_write(r, late.slot, late.seq,
					   HALF + (uint32_t)late.step * 4 + i, word[i]);
			nlate = 0;
		}
		if (n == atomic_load(&W.put[r]))
			continue;
		op = W.queue[r][n % QUEUE];
		if (op.what == OP_COPY && nlate)
			continue;
		if (op.what == OP_UPDATE)
			for (uint32_t i = HALF; i < WORDS; i++)
				put(&W.buf[r][i], op.step);
		if (op.what == OP_DONE)
			atomic_store_explicit(&W.rank[r]->done, op.target, memory_order_release);
		if (op.what == OP_COPY) {
			for (uint32_t i = 0; i < 4; i++)
				word[i] = get(&W.buf[r][HALF + op.step * 4 + i]);
			late = op;
			nlate = 1;
		}
		atomic_store(&W.got[r], n + 1);
	}
}

/* --- copiers --- */
static struct task *pop(struct task **list, uint32_t *n)
{
	struct task *t = NULL;

	pthread_mutex_lock(&W.lock);
	if (*n) {
		uint32_t i = chance(*n);

		t = list[i];
		list[i] = list[--*n];
	}
	pthread_mutex_unlock(&W.lock);
	return t;
}

static void push(struct task **list, uint32_t *n, struct task *t)
{
	pthread_mutex_lock(&W.lock);
	if (*n < 64)
		list[(*n)++] = t;
	else
		wrong("too many tasks");
	pthread_mutex_unlock(&W.lock);
}

static void copier(void)
{
	while (!atomic_load(&W.daemon_over) && !atomic_load(&W.wrong)) {
		struct task *t = pop(W.todo, &W.ntodo);
		struct shared_snap *s;
		uint64_t at;

		point();
		if (!t)
			continue;
		s = &W.rank[t->rank]->snap[t->mark % SHARED_SNAPS];
		for (uint32_t i = 0; i < HALF && t->rc == 0; i++) {
			if (i % 4 == 0) {
				point();
				if (!shared_snap_going(s, t->mark) && W.broken != COPY_ONCE_TORN)
					t->rc = -ECANCELED;
			}
			slot_write(t->rank, t->slot, t->seq, i, get(&W.buf[t->rank][i]));
		}
		if (t->rc == 0)
			shared_copy_end(W.rank[t->rank], s, t->mark, NEED_DAEMON,
					W.slot[t->rank][t->slot], sizeof W.slot[0][0], &at);
		push(W.finished, &W.nfinished, t);
	}
}

/* --- the daemon in miniature --- */
static void image_check(const struct snap *s, const char *what)
{
	for (uint32_t r = 0; r < W.world; r++)
		for (uint32_t i = 0; i < WORDS; i++)
			if (W.has[r] & (i < HALF ? NEED_DAEMON : NEED_CLIENT) &&
			    W.slot[r][s->slot][i] != s->step)
				wrong(what);
}

/* Nobody forgets a guard or changes anything before it. */
static bool careful(void)
{
	return !W.unguarded_percent && !W.changed_percent;
}

static struct snap *in_slot(uint32_t slot)
{
	for (struct snap *s = W.snap; s < W.snap + 64; s++)
		if (s->used && s->slot == slot)
			return s;
	return NULL;
}

static uint32_t intact(const struct snap *but)
{
	uint32_t n = 0;

	for (const struct snap *s = W.snap; s < W.snap + 64; s++)
		n += s->used && s != but && s->phase != COLLECTING;
	return n;
}

static bool is_dead(uint32_t r)
{
	return W.broken == DIE_BY_SOCKET ? atomic_load(&W.socket_ended[r]) : W.death_seen[r];
}

static bool slot_written(uint32_t slot)
{
	for (uint32_t r = 0; r < W.world; r++)
		if (shared_copying_has(W.rank[r], slot) && !is_dead(r))
			return true;
	return false;
}

/* As slot_give of daemon/snap.c. */
static bool give(uint32_t slot)
{
	bool written = W.broken == LOOK_BEFORE_OVER && slot_written(slot);

	if (W.broken == LOOK_BEFORE_OVER)
		point();
	shared_gate_over(W.job, slot);
	point();
	if (written || (W.broken != LOOK_BEFORE_OVER && slot_written(slot)))
		return false;
	atomic_store(&W.given_seq[slot], W.ticket_seen);
	shared_gate_give(W.job, slot);
	return true;
}

static void release(struct snap *s)
{
	if (s->phase != COLLECTING && careful())
		image_check(s, "a staged image was written over");
	s->used = false;
	give(s->slot);
}

static void drop(struct snap *s)
{
	if (!s->dropped)
		W.ntorn++;
	s->dropped = true;
	atomic_store(&W.torn[s->seq % TICKETS], true);
	for (uint32_t r = 0; r < W.world; r++)
		if (s->rank[r].copy == COPYING) {
			atomic_store(&W.dropped[r][s->seq % TICKETS], true);
			shared_snap_drop(W.rank[r],
					 &W.rank[r]->snap[s->rank[r].mark % SHARED_SNAPS],
					 s->rank[r].mark);
		}
}

static void tickets_look(void)
{
	struct ticket t[SHARED_PAST + 1];
	uint32_t free_mask, n = shared_gate_look(W.job, &W.ticket_seen, t, &free_mask);

	for (uint32_t i = 0; i < n; i++) {
		struct snap *s;

		if (t[i].slot >= W.nslot)
			continue;
		if (in_slot(t[i].slot)) {
			wrong("a slot is in two undecided tickets");
			return;
		}
		for (s = W.snap; s->used; s++)
			;
		*s = (struct snap){
			.used = true, .seq = t[i].seq, .slot = t[i].slot, .flags = t[i].flags
		};
		if (W.broken == RELEASE_BEFORE_STAGED)
			for (struct snap *o = W.snap; o < W.snap + 64; o++)
				if (o->used && o->phase == STAGED)
					release(o);
	}
	for (uint32_t i = 0; i < W.nslot && W.broken != VOID_NOT_GIVEN; i++)
		if (!(free_mask >> i & 1) && !in_slot(i))
			W.nvoid += give(i) && n;
}

static void task_new(struct snap *s, uint32_t r)
{
	struct task *t = calloc(1, sizeof *t);

	*t = (struct task){
		.snap = s, .rank = r, .slot = s->slot, .seq = s->seq, .mark = s->rank[r].mark
	};
	s->rank[r].task = true;
	s->tasks++;
	push(W.todo, &W.ntodo, t);
}

/* As copy_look of daemon/snap.c. */
static void copy_look(struct snap *s, uint32_t r)
{
	const struct shared_snap *at = &W.rank[r]->snap[s->rank[r].mark % SHARED_SNAPS];
	enum snap_state state;
	uint64_t seq;

	if (s->rank[r].copy != COPYING || s->rank[r].task)
		return;
	state = shared_snap_state(at, &seq);
	if (seq == s->rank[r].mark && state == SNAP_COPYING) {
		if (!s->dropped && !s->rank[r].tasked && shared_snap_need(at, seq) & NEED_DAEMON) {
			s->rank[r].tasked = true;
			task_new(s, r);
		}
	} else if ((seq == s->rank[r].mark && state == SNAP_COPIED) || W.broken == COPY_ONCE_TORN) {
		s->rank[r].copy = DONE;
	} else {
		s->rank[r].copy = TORN;
		drop(s);
	}
}

/* False: look again. */
static bool mark_look(uint32_t r, uint64_t mark)
{
	struct shared_snap *at = &W.rank[r]->snap[mark % SHARED_SNAPS];
	struct shared_record rec;
	enum snap_state state;
	struct snap *s;
	uint64_t seq;

	if (shared_snap_read(at, &seq, &state, &rec) < 0 || seq != mark)
		return true;
	if (rec.nnote != 1 || rec.note[0].value != (double)rec.step || rec.mark_ns != rec.step)
		wrong("a record was read while it was written");
	for (s = W.snap; s < W.snap + 64 && !(s->used && s->seq == rec.ticket_seq); s++)
		;
	if (s == W.snap + 64 && shared_seq_cmp(rec.ticket_seq, W.ticket_seen) > 0)
		return false;
	if (s == W.snap + 64 || s->dropped || s->phase != COLLECTING || s->rank[r].copy != NONE) {
		atomic_store(&W.dropped[r][rec.ticket_seq % TICKETS], true);
		shared_snap_drop(W.rank[r], at, mark);
		return true;
	}
	s->step = rec.step;
	s->rank[r].mark = mark;
	s->rank[r].rec = rec;
	s->rank[r].copy = COPYING;
	copy_look(s, r);
	return true;
}

/* 1, 0 not yet, -1 never */
static int guarded(const struct snap *s)
{
	int all = 1;

	for (uint32_t r = 0; r < W.world; r++) {
		int one = shared_snap_guarded(W.rank[r], s->rank[r].mark, &s->rank[r].rec);

		if (one == 0 && !W.death_seen[r])
			all = 0;
		if (one < 0)
			return -1;
	}
	return all;
}

static void snap_look(struct snap *s)
{
	bool whole = true, any = false;

	s->rounds++;
	for (uint32_t r = 0; r < W.world && !s->dropped; r++) {
		bool gone = W.death_seen[r], marked = s->rank[r].mark;

		copy_look(s, r);
		any |= s->rank[r].copy == DONE;
		if (s->rank[r].copy == NONE && (shared_seq_cmp(W.ticket_seen, s->seq) >= 2 ||
						gone || s->rounds > EXPIRE_ROUNDS)) {
			drop(s);
		} else if (marked &&
			   shared_snap_guarded(W.rank[r], s->rank[r].mark, &s->rank[r].rec) < 0) {
			drop(s);
		} else if (s->rank[r].copy != DONE) {
			whole = false;
		} else if (!shared_snap_closed(W.rank[r], s->rank[r].mark, &s->rank[r].rec) &&
			   W.broken != STAGE_OPEN) {
			whole = false;
			if (gone)
				drop(s);
		}
	}
	if (W.broken == STAGE_BEFORE_ALL && any)
		whole = true;
	if (s->dropped) {
		if (s->tasks == 0 || W.broken == GIVE_WHILE_COPYING)
			release(s);
		return;
	}
	if (!whole)
		return;
	if (careful())
		image_check(s, "a staged image holds more than one step");
	for (uint32_t r = 0; r < W.world; r++)
		if (W.world && atomic_load(&W.rank[r]->guards) == 0 &&
		    !atomic_load(&W.rank[r]->waited_step) && !(s->flags & TICKET_FINAL))
			wrong("a snapshot of a rank that was never seen to guard was staged");
	if (atomic_load(&W.staged[s->step]))
		wrong("a step was staged twice");
	atomic_store(&W.staged[s->step], s->seq);
	W.ever_staged = true;
	W.nstaged++;
	s->staged_at = ++W.clock;
	s->phase = s->flags ? WRITING : STAGED;
	s->write_left = chance(400);
}

static struct snap *newest_staged(void)
{
	struct snap *best = NULL;

	for (struct snap *s = W.snap; s < W.snap + 64; s++)
		if (s->used && s->phase != COLLECTING && (!best || s->staged_at > best->staged_at))
			best = s;
	return best;
}

static void write_look(struct snap *s)
{
	int ok = W.broken == COMMIT_UNGUARDED ? 1 : guarded(s);

	if (s->write_left) {
		s->write_left--;
	} else if (ok > 0) {
		image_check(s, "a committed image holds more than one step");
		s->phase = STAGED;
		s->committed = true;
		atomic_store(&W.committed[s->step], s->seq);
	} else if (ok < 0) {
		drop(s);
		release(s);
	}
}

static void settle(void)
{
	struct snap *newest = newest_staged();

	for (struct snap *s = W.snap; s < W.snap + 64; s++)
		if (s->used && s != newest && s->phase == STAGED)
			release(s);
	if (W.ever_staged && intact(NULL) == 0 && careful())
		wrong("no staged image is left");
}

static void deaths_look(void)
{
	for (uint32_t r = 0; r < W.world; r++) {
		struct shared_rank *m = W.rank[r];
		bool finish;

		if (!atomic_load(&W.dead[r]) || W.death_seen[r])
			continue;
		W.death_seen[r] = true;
		finish = atomic_load(&m->updating) == 0 && atomic_load(&m->guards) > 0 &&
			 atomic_load(&m->unguarded) == 0;
		for (uint32_t i = 0; i < SHARED_SNAPS; i++) {
			uint64_t seq;

			if (shared_snap_state(&m->snap[i], &seq) != SNAP_COPYING)
				continue;
			atomic_store(&W.dropped[r][m->snap[i].rec.ticket_seq % TICKETS], true);
			shared_snap_orphan(m, &m->snap[i], seq, finish,
					   W.slot[r][m->snap[i].rec.slot % SLOTS_MAX],
					   sizeof W.slot[0][0]);
			W.norphan += shared_snap_state(&m->snap[i], NULL) == SNAP_COPIED;
		}
	}
}

static bool daemon_round(void)
{
	uint64_t marks[WORLD_MAX];
	struct task *t;
	bool idle = true;

	for (uint32_t r = 0; r < W.world; r++)
		idle &= atomic_load(&W.over[r]);
	deaths_look();
	while ((t = pop(W.finished, &W.nfinished))) {
		t->snap->tasks--;
		t->snap->rank[t->rank].task = false;
		copy_look(t->snap, t->rank);
		free(t);
	}
	for (uint32_t r = 0; r < W.world; r++)
		marks[r] = atomic_load(&W.rank[r]->marks);
	point();
	tickets_look();
	for (uint32_t r = 0; r < W.world; r++) {
		if (marks[r] > SHARED_SNAPS && W.marks_seen[r] < marks[r] - SHARED_SNAPS)
			W.marks_seen[r] = marks[r] - SHARED_SNAPS;
		while (W.marks_seen[r] < marks[r] && mark_look(r, W.marks_seen[r] + 1))
			W.marks_seen[r]++;
		idle &= W.marks_seen[r] == atomic_load(&W.rank[r]->marks);
	}
	for (struct snap *s = W.snap; s < W.snap + 64; s++)
		if (s->used && s->phase == COLLECTING)
			snap_look(s);
	for (struct snap *s = W.snap; s < W.snap + 64; s++) {
		if (s->used && s->phase == STAGED && !s->committed && guarded(s) < 0) {
			drop(s);
			release(s);
		} else if (s->used && s->phase == WRITING) {
			write_look(s);
		}
	}
	settle();
	for (struct snap *s = W.snap; s < W.snap + 64; s++)
		idle &= !s->used || s->phase == STAGED || (s->phase == COLLECTING && s->tasks == 0);
	return !idle;
}

static void daemon_thread(void)
{
	uint32_t calm = 0;

	while (!atomic_load(&W.wrong) && calm < 3) {
		calm = daemon_round() ? 0 : calm + 1;
		point();
	}
	atomic_store(&W.daemon_over, true);
}

/* --- a run --- */
static void act(uint32_t i)
{
	if (i < W.world)
		trainer(i);
	else if (i == W.world)
		daemon_thread();
	else if (i <= W.world + COPIERS)
		copier();
	else if (i <= 2 * W.world + COPIERS)
		own_copier(i - W.world - COPIERS - 1);
	else
		device(i - 2 * W.world - COPIERS - 1);
}

static void coroutine(int i)
{
	act((uint32_t)i);
	actor[i].over = true;
	swapcontext(&actor[i].context, &scheduler);
}

static void *thread(void *arg)
{
	uint32_t i = (uint32_t)(uintptr_t)arg;

	rng_own = rng_state + i * 7919;
	act(i);
	return NULL;
}

static void run_end_check(void)
{
	uint32_t free_mask;
	struct ticket t[SHARED_PAST + 1];
	uint16_t seen = 0;
	bool all_live = true;

	if (atomic_load(&W.wrong))
		return;
	for (uint32_t r = 0; r < W.world; r++)
		all_live &= !atomic_load(&W.dead[r]);
	for (uint64_t step = 1; step <= W.nstep; step++)
		for (uint32_t r = 0; r < W.world; r++)
			if (atomic_load(&W.staged[step]) &&
			    atomic_load(&W.told_torn[r][W.staged[step] % TICKETS]))
				wrong("a guard said torn, and the step was staged");
	for (uint32_t r = 0; r < W.world; r++)
		for (uint32_t i = 0; i < TICKETS; i++)
			W.nchanged += atomic_load(&W.told_changed[r][i]);
	for (uint64_t step = 1; step <= W.nstep; step++)
		for (uint32_t r = 0; r < W.world; r++)
			if (atomic_load(&W.committed[step]) &&
			    atomic_load(&W.told_changed[r][W.committed[step] % TICKETS]))
				wrong("a guard said changed, and the step was committed");
	shared_gate_look(W.job, &seen, t, &free_mask);
	for (uint32_t i = 0; i < W.nslot; i++)
		if (!in_slot(i) && !(free_mask >> i & 1))
			wrong("a slot is lost");
	if (all_live && W.in_step && W.policy == 2 && W.unguarded_percent == 0 &&
	    !atomic_load(&W.nlate) && !atomic_load(&W.nbusy) && !atomic_load(&W.staged[W.nstep]))
		wrong("the final step was not staged though everybody waited for it");
}

static struct shared_rank *rank_new(void)
{
	struct shared_rank *r = aligned_alloc(_Alignof(struct shared_rank), sizeof *r);

	memset(r, 0, sizeof *r);
	return r;
}

static void run_start(void)
{
	W.job = calloc(1, sizeof *W.job);
	for (uint32_t r = 0; r < W.world; r++)
		W.rank[r] = rank_new();
	pthread_mutex_init(&W.lock, NULL);
	for (uint32_t i = 0; i < W.nslot; i++)
		shared_gate_give(W.job, i);
	nactor = 3 * W.world + 1 + COPIERS;
	shared_point = point;
}

static void run_end(void)
{
	struct task *t;

	run_end_check();
	while ((t = pop(W.todo, &W.ntodo)) || (t = pop(W.finished, &W.nfinished)))
		free(t);
	pthread_mutex_destroy(&W.lock);
	shared_point = NULL;
	free(W.job);
	for (uint32_t r = 0; r < W.world; r++)
		free(W.rank[r]);
}

/* The run of a seed: NULL, or what went wrong. */
static const char *run_seed(uint64_t seed, enum rule broken)
{
	W = (struct world){ .broken = broken };
	rng_state = seed;
	W.world = 1 + chance(WORLD_MAX);
	W.nslot = 2 + chance(SLOTS_MAX - 1);
	W.nstep = 4 + chance(24);
	W.persist_percent = chance(3) * 50;
	W.unguarded_percent = chance(3) == 0 ? 1 + chance(40) : 0;
	/* A rank that omits the guard for the first time and dies in that very update cannot be
	 * told from one that guards: nothing of it is ever seen. */
	W.deaths = chance(4) == 0 && !W.unguarded_percent ? chance(W.world + 1) : 0;
	W.changed_percent = !W.unguarded_percent && chance(4) == 0 ? 1 + chance(40) : 0;
	W.deaths = W.changed_percent ? 0 : W.deaths;
	for (uint32_t r = 0; r < W.world; r++) {
		W.has[r] = 1 + chance(3);
		/* what is changed early is changed by the host */
		W.device[r] = W.has[r] & NEED_CLIENT && !W.changed_percent && chance(2);
	}
	W.copier_first = chance(2);
	W.policy = (int)chance(4);
	W.in_step = chance(4) != 0;
	/* not drawn, so that the other seeds remain what they are */
	W.again = seed % 8 == 3 && !W.changed_percent;
	run_start();
	for (uint32_t i = 0; i < nactor; i++) {
		actor[i].over = false;
		if (!actor[i].stack)
			actor[i].stack = malloc(STACK_BYTES);
		getcontext(&actor[i].context);
		actor[i].context.uc_stack =
			(stack_t){ .ss_sp = actor[i].stack, .ss_size = STACK_BYTES };
		actor[i].context.uc_link = NULL;
		makecontext(&actor[i].context, (void (*)(void))(void *)coroutine, 1, (int)i);
	}
	schedule();
	run_end();
	return atomic_load(&W.wrong);
}

TEST(no_schedule_breaks_a_promise)
{
	uint32_t staged = 0, torn = 0, lost = 0, changed = 0, ordered = 0, both = 0, late = 0,
		 orphan = 0, again = 0;
	uint64_t first = now_ns();
#ifdef __SANITIZE_ADDRESS__
	const uint64_t n = unit_scaled(150); /* it sees memory, and schedules are the same */
#else
	const uint64_t n = unit_scaled(600);
#endif

#ifdef CKPT_MUTANTS
	first = 1;
#endif
	if (!COROUTINES) {
		print_message("skipped: ThreadSanitizer does not follow coroutines\n");
		skip();
	}
	for (uint64_t seed = first; seed < first + n; seed++) {
		const char *what = run_seed(seed, RULES_KEPT);

		if (what)
			fail_msg("seed %llu: %s", (unsigned long long)seed, what);
		staged += W.nstaged;
		torn += W.ntorn;
		lost += W.nvoid;
		changed += W.nchanged;
		ordered += atomic_load(&W.nordered);
		both += atomic_load(&W.nboth);
		late += atomic_load(&W.nlate);
		orphan += W.norphan;
		again += atomic_load(&W.nagain);
	}
	print_message(
		"seeds from %llu: %u staged, %u torn, %u void, %u changed, %u of two copiers, %u "
		"let go, %u late, %u ended by the daemon for the dead, %u taken again\n",
		(unsigned long long)first, staged, torn, lost, changed, both, ordered, late, orphan,
		again);
	assert_true(staged > n && torn > n / 3 && (lost > 0 || n < 600) && changed > n / 30);
	assert_true(both > n && ordered > n / 10 && (late > 0 || n < 600) && again > n / 10);
}

/* from: a seed not far below one that shows it: rare ones would cost minutes. */
static void seen(enum rule broken, const char *name, uint64_t from)
{
	for (uint64_t seed = from; seed < from + 2000; seed++) {
		const char *what = run_seed(seed, broken);

		if (!what)
			continue;
		print_message("%-22s seen by seed %llu: %s\n", name, (unsigned long long)seed,
			      what);
		return;
	}
	fail_msg("nothing was wrong without %s", name);
}

TEST(every_rule_of_the_daemon_is_missed_when_it_is_gone)
{
	if (!COROUTINES) {
		print_message("skipped: ThreadSanitizer does not follow coroutines\n");
		skip();
	}
#define SEEN(x) SEEN_FROM(x, 1)
#define SEEN_FROM(x, seed) seen(x, #x, seed)
	SEEN(STAGE_BEFORE_ALL);
	SEEN(COMMIT_UNGUARDED);
	SEEN(RELEASE_BEFORE_STAGED);
	SEEN(GIVE_WHILE_COPYING);
	SEEN_FROM(STAGE_OPEN, 75);
	SEEN(VOID_NOT_GIVEN);
	SEEN(COPY_ONCE_TORN);
	SEEN_FROM(GIVE_TO_LATE, 45);
	SEEN_FROM(LOOK_BEFORE_OVER, 118);
	SEEN_FROM(DIE_BY_SOCKET, 708);
	SEEN(ORDER_EARLY);
	SEEN(DONE_UNFENCED);
	SEEN(DONE_BEHIND_NOTHING);
	SEEN(CLEAR_EARLY);
#undef SEEN_FROM
#undef SEEN
}

static void threads_run(uint32_t world, uint32_t nstep, int policy, bool plain, bool in_step,
			bool again)
{
	pthread_t t[ACTORS_MAX];

	W = (struct world){ .world = world,
			    .nslot = 2,
			    .nstep = nstep,
			    .policy = policy,
			    .persist_percent = 30,
			    .plain = plain,
			    .threads = true,
			    .in_step = in_step,
			    .again = again };
	rng_own = rng_state = now_ns();
	for (uint32_t r = 0; r < W.world; r++) {
		W.has[r] = 1 + (r + 2) % 3;
		W.device[r] = W.has[r] & NEED_CLIENT && chance(2);
	}
	print_message("seed %llu\n", (unsigned long long)rng_state);
	run_start();
	for (uint32_t i = 0; i < nactor; i++)
		assert_int_equal(pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)i), 0);
	for (uint32_t i = 0; i < nactor; i++)
		pthread_join(t[i], NULL);
	run_end();
	if (atomic_load(&W.wrong))
		fail_msg("%s", atomic_load(&W.wrong));
	print_message("%u staged, %u torn, %u void\n", W.nstaged, W.ntorn, W.nvoid);
	if (W.nstaged == 0)
		print_message("nothing staged: the machine was busy elsewhere\n");
}

/* Trainers that wait for their copies touch their memory with plain loads and stores, as the
 * copiers do. */
TEST(threads_that_wait_are_ordered_by_the_protocol_alone)
{
	threads_run(3, 300, 2, true, true, false);
}

/* Copies that are given up are read while the trainer writes: their bytes are thrown away. */
TEST(threads_that_do_not_wait_stage_only_whole_images)
{
	threads_run(4, STEPS_MAX, 3, false, true, false);
	threads_run(2, STEPS_MAX, 3, false, false, false);
	threads_run(3, 40, 3, false, true, true);
	threads_run(2, 40, 1, false, false, true);
}

/* --- one thing at a time --- */
static struct shared_job *job_new(uint32_t nslot)
{
	struct shared_job *j = calloc(1, sizeof *j);

	for (uint32_t i = 0; i < nslot; i++)
		shared_gate_give(j, i);
	return j;
}

static bool same(struct ticket a, struct ticket b)
{
	return a.step == b.step && a.seq == b.seq && a.slot == b.slot && a.flags == b.flags;
}

TEST(a_late_rank_finds_its_ticket_among_the_last_nine)
{
	struct shared_job *j = job_new(4);
	struct ticket first[32], t;
	uint32_t found = 0;

	for (uint64_t step = 1; step <= 20; step++) {
		assert_int_equal(shared_ticket(j, step, NULL, 0, false, &first[step]), 0);
		assert_int_equal(first[step].slot, step <= 4 ? step - 1 : SHARED_SKIP);
	}
	for (uint64_t step = 1; step <= 20; step++) {
		int rc = shared_ticket(j, step, NULL, 0, false, &t);

		if (rc == 0) {
			found++;
			assert_true(same(t, first[step]));
		} else {
			assert_int_equal(rc, -ESTALE);
		}
		assert_true((rc == 0) == (step >= 20 - SHARED_PAST));
	}
	assert_int_equal(found, SHARED_PAST + 1);
	free(j);
}

TEST(a_step_below_the_newest_that_has_no_ticket_is_stale)
{
	struct shared_job *j = job_new(2);
	struct ticket t;

	assert_int_equal(shared_ticket(j, 10, NULL, 0, false, &t), 0);
	assert_int_equal(shared_ticket(j, 9, NULL, 0, false, &t), -ESTALE);
	free(j);
}

/* --- a step is marked again --- */
/* The trainer's loop, of a rank. */
struct asker {
	struct ticket t;
	bool asked;
};

static int ask(struct shared_job *j, struct asker *a, uint64_t step, uint32_t want, bool may_wait)
{
	struct ticket t;
	int rc = shared_ticket(j, step, a->asked ? &a->t : NULL, want, may_wait, &t);

	if (rc == 0) {
		a->t = t;
		a->asked = true;
	}
	return rc;
}

TEST(a_step_that_finds_no_slot_a_thousand_times_gets_the_next_that_is_free)
{
	struct shared_job *j = job_new(1), was;
	struct asker a[4] = { 0 };
	struct ticket first, t[SHARED_PAST + 1];
	uint32_t free_mask;
	uint16_t seen = 0;

	for (uint64_t step = 1; step <= 3; step++)
		assert_int_equal(shared_ticket(j, step, NULL, 0, false, &first), 0);
	assert_int_equal(shared_ticket(j, 4, NULL, 0, false, &first), 0);
	was = *j;
	(void)shared_gate_look(j, &seen, t, &free_mask);
	for (uint32_t n = 0; n < 1000; n++)
		for (uint32_t r = 0; r < 3; r++) { /* each began at another time */
			uint32_t want = n % 7 == r ? TICKET_REFUSE : 0;

			if (n < r * 300)
				continue;
			assert_int_equal(ask(j, &a[r], 4, want, false), 0);
			assert_true(a[r].t.slot == SHARED_SKIP && a[r].t.seq == first.seq);
		}
	/* nobody who is late has lost a ticket, and the daemon has nothing to look at */
	assert_memory_equal(j->past, was.past, sizeof was.past);
	assert_int_equal(shared_gate_look(j, &seen, t, &free_mask), 0);
	assert_int_equal(ask(j, &a[0], 4, TICKET_FINAL, true), -EAGAIN);
	/* A slot is free when one of them has been refused once more: the others are as well. */
	assert_int_equal(ask(j, &a[1], 4, 0, false), 0);
	shared_gate_give(j, 0);
	for (uint32_t r = 0; r < 4; r++) {
		if (r != 1)
			assert_int_equal(ask(j, &a[r], 4, 0, false), 0);
		assert_true(a[r].t.slot == SHARED_SKIP && a[r].t.seq == first.seq);
	}
	for (uint32_t r = 0; r < 4; r++) {
		assert_int_equal(ask(j, &a[r], 4, 0, false), 0);
		assert_true(a[r].t.slot == 0 && a[r].t.seq == first.seq + 1 &&
			    same(a[r].t, a[0].t));
	}
	free(j);
}

/* The daemon gives the newest ticket up. */
static void slot_back(struct shared_job *j, struct ticket t)
{
	shared_gate_over(j, t.slot);
	shared_gate_give(j, t.slot);
}

/* More often than there are numbers. One rank retries each time, one obeys, and one comes now and
 * then. */
TEST(a_step_that_is_torn_again_and_again_gets_a_ticket_each_time)
{
	struct shared_job *j = job_new(2);
	struct asker a[3] = { 0 };
	struct ticket late, t;

	for (uint32_t n = 0; n < 3u << SEQ_BITS; n++) {
		struct ticket before = a[0].t;

		for (uint32_t r = 0; r < 3; r++) {
			if (r == 2 && n % 5)
				continue;
			assert_int_equal(ask(j, &a[r], 7, r, false), 0);
			assert_true(a[r].t.slot == n % 2 && same(a[r].t, a[0].t));
			assert_false(shared_ticket_over(j, a[r].t));
		}
		if (n) {
			assert_true(shared_seq_cmp(a[0].t.seq, before.seq) > 0);
			shared_gate_give(j, before.slot);
			/* whoever is late with the one before finds the slot given away */
			assert_true(shared_ticket_over(j, before));
		}
		shared_gate_over(j, a[0].t.slot);
	}
	late = a[0].t;
	slot_back(j, late);
	/* the other ranks are at the next step: of this one what the rank has not seen */
	assert_int_equal(ask(j, &a[0], 7, 0, false), 0);
	assert_int_equal(shared_ticket(j, 8, NULL, 0, false, &t), 0);
	assert_int_equal(ask(j, &a[1], 7, 0, false), 0);
	assert_true(same(a[1].t, a[0].t) && !same(a[1].t, late));
	assert_int_equal(ask(j, &a[1], 7, 0, false), -ESTALE);
	assert_int_equal(shared_ticket(j, 7, NULL, 0, false, &t), 0);
	assert_true(same(t, a[0].t)); /* the newest of three that are remembered */
	free(j);
}

/* Without a slot a ticket that was torn is followed by one skip, and no second one. */
TEST(skips_of_one_step_do_not_follow_each_other)
{
	struct shared_job *j = job_new(1);
	struct asker a[2] = { 0 };
	struct ticket had;

	assert_int_equal(ask(j, &a[0], 1, 0, false), 0);
	had = a[0].t;
	assert_int_equal(ask(j, &a[1], 1, TICKET_REFUSE, false), 0);
	assert_true(same(a[1].t, had)); /* too late to refuse */
	assert_int_equal(ask(j, &a[0], 1, 0, true), -EAGAIN);
	for (uint32_t n = 0; n < 50; n++)
		for (uint32_t r = 0; r < 2; r++) {
			assert_int_equal(ask(j, &a[r], 1, 0, false), 0);
			assert_true(a[r].t.slot == SHARED_SKIP && a[r].t.seq == had.seq + 1);
		}
	slot_back(j, had);
	assert_int_equal(ask(j, &a[1], 1, TICKET_PERSIST, false), 0);
	assert_int_equal(ask(j, &a[0], 1, TICKET_REFUSE, false), 0);
	assert_true(a[1].t.slot == 0 && same(a[0].t, a[1].t));
	assert_int_equal(ask(j, &a[0], 1, TICKET_REFUSE, false), 0);
	assert_true(a[0].t.slot == SHARED_SKIP && a[0].t.flags == TICKET_REFUSED);
	free(j);
}

/* Of a ticket's step 36 bits are in the gate; which step they mean is known all the same. */
TEST(steps_may_jump_by_less_than_2_to_the_35)
{
	static const uint64_t first[] = { 0,
					  1,
					  SHARED_JUMP_MAX,
					  UINT64_C(1) << 40,
					  INT64_MAX,
					  UINT64_MAX - 7 * SHARED_JUMP_MAX };

	for (size_t i = 0; i < ARRAY_LEN(first); i++) {
		struct shared_job *j = job_new(2);
		uint64_t step = first[i], mine = first[i];
		struct ticket t, again;

		assert_int_equal(shared_ticket(j, step, NULL, 0, false, &t), 0);
		for (uint32_t n = 0; n < 100 && step < UINT64_MAX - 2 * SHARED_JUMP_MAX; n++) {
			uint64_t jump = n % 3 == 0   ? SHARED_JUMP_MAX - 1
					: n % 3 == 1 ? 1
						     : 1 + chance(UINT32_MAX) * UINT64_C(7);
			uint64_t was = atomic_load(&j->gate);

			assert_int_equal(
				shared_ticket(j, step + SHARED_JUMP_MAX, NULL, 0, false, &t),
				-ERANGE);
			assert_int_equal(shared_ticket(j, UINT64_MAX - 2, NULL, 0, false, &t),
					 -ERANGE);
			/* a rank that is behind, however far */
			if (step - mine >= SHARED_JUMP_MAX)
				assert_int_equal(shared_ticket(j, mine, NULL, 0, false, &t),
						 -ESTALE);
			if (step >= 3 * SHARED_JUMP_MAX)
				assert_int_equal(shared_ticket(j, step - 2 * SHARED_JUMP_MAX, NULL,
							       0, false, &t),
						 -ESTALE); /* the same bits, another step */
			assert_true(atomic_load(&j->gate) == was);
			step += jump;
			assert_int_equal(shared_ticket(j, step, NULL, 0, false, &t), 0);
			assert_true(t.step == (step & ((UINT64_C(1) << 36) - 1)));
			assert_int_equal(shared_ticket(j, step, NULL, 0, false, &again), 0);
			assert_true(same(t, again));
		}
		free(j);
	}
}

#define JUMPERS 3
static struct jumper {
	struct shared_job *job;
	pthread_t thread;
	uint64_t seed, step[200];
	uint16_t seq[200];
	uint32_t n;
} jumper[JUMPERS];

static void *jump(void *arg)
{
	struct jumper *k = arg;
	uint64_t step = 1;

	for (uint32_t i = 0; i < ARRAY_LEN(k->step); i++) {
		struct ticket t;
		int rc = shared_ticket(k->job, step, NULL, 0, false, &t);

		if (rc == 0) {
			k->step[k->n] = step;
			k->seq[k->n++] = t.seq;
		}
		k->seed = k->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		/* refused for its jump: the others are not so far yet */
		step = rc == -ERANGE ? step - SHARED_JUMP_MAX / 2
				     : step + 1 + (k->seed >> 20) % (SHARED_JUMP_MAX / 2);
	}
	return NULL;
}

TEST(ranks_that_jump_past_each_other_get_tickets_whose_steps_grow)
{
	for (uint64_t round = 0; round < 50; round++) {
		struct shared_job *j = job_new(2);
		uint64_t at[1024] = { 0 }, newest = 0;

		for (uint32_t i = 0; i < JUMPERS; i++) {
			jumper[i] = (struct jumper){ .job = j, .seed = round * 97 + i };
			assert_int_equal(pthread_create(&jumper[i].thread, NULL, jump, &jumper[i]),
					 0);
		}
		for (uint32_t i = 0; i < JUMPERS; i++)
			pthread_join(jumper[i].thread, NULL);
		for (uint32_t i = 0; i < JUMPERS; i++)
			for (uint32_t n = 0; n < jumper[i].n; n++) {
				uint64_t *a = &at[jumper[i].seq[n]];

				assert_true(*a == 0 || *a == jumper[i].step[n]);
				*a = jumper[i].step[n];
			}
		for (uint32_t seq = 0; seq < ARRAY_LEN(at); seq++)
			if (at[seq]) {
				assert_true(at[seq] > newest);
				newest = at[seq];
			}
		assert_true(newest > 4 * SHARED_JUMP_MAX);
		free(j);
	}
}

static enum copy_end copied(struct shared_rank *r, struct shared_snap *s, uint64_t seq)
{
	static const uint8_t slot[8];
	uint64_t at;

	return shared_copy_end(r, s, seq, NEED_DAEMON, slot, sizeof slot, &at);
}

TEST(a_late_copier_does_not_decide_for_a_newer_snapshot)
{
	struct shared_rank *r = rank_new();
	struct shared_record rec = { .step = 1 }, got;
	enum snap_state is;
	uint64_t seq;

	for (uint64_t n = 1; n <= 5; n++) {
		shared_stable(r); /* tears the copy of the one before */
		rec.step = n;
		shared_snap_write(shared_snap_next(r), &rec);
		if (n == 5) /* neither the fifth's record, half written, nor the first's */
			assert_int_equal(shared_snap_read(&r->snap[1], &seq, &is, &got), -EAGAIN);
		shared_snap_publish(r, &r->snap[n % SHARED_SNAPS], SNAP_COPYING, NEED_DAEMON);
	}
	assert_int_equal(copied(r, &r->snap[1], 1), COPY_END_TORN);
	assert_int_equal(shared_snap_state(&r->snap[1], &seq), SNAP_COPYING);
	assert_int_equal(seq, 5);
	assert_int_equal(shared_snap_read(&r->snap[1], &seq, &is, &got), 0);
	assert_int_equal(got.step, 5);
	free(r);
}

static struct shared_rank *overtaken;

/* The trainer marks four times while somebody is in the middle of reading. */
static void overtake(void)
{
	shared_point = NULL;
	for (uint64_t n = 2; n <= 5; n++) {
		const struct shared_record rec = { .step = n, .mark_ns = n };

		shared_stable(overtaken);
		shared_snap_write(shared_snap_next(overtaken), &rec);
		shared_snap_publish(overtaken, &overtaken->snap[n % SHARED_SNAPS], SNAP_COPYING,
				    NEED_DAEMON);
	}
}

TEST(a_record_is_read_whole_or_not_at_all)
{
	struct shared_record rec = { .step = 1, .mark_ns = 1 };
	enum snap_state is;
	uint64_t seq;

	overtaken = rank_new();
	shared_snap_write(shared_snap_next(overtaken), &rec);
	shared_snap_publish(overtaken, &overtaken->snap[1], SNAP_COPYING, NEED_DAEMON);
	assert_int_equal(shared_snap_read(&overtaken->snap[1], &seq, &is, &rec), 0);
	assert_true(seq == 1 && rec.step == 1 && is == SNAP_COPYING);
	shared_point = overtake;
	assert_int_equal(shared_snap_read(&overtaken->snap[1], &seq, &is, &rec), -EAGAIN);
	free(overtaken);
}

/* Each way to end of a snapshot that a rank has left behind: its word says who had still to copy,
 * the device how far it is, and the daemon whether somebody may have changed what it still
 * copies. */
TEST(what_a_dead_rank_leaves_is_ended_by_what_is_known_of_it)
{
	static const struct {
		uint32_t need, done;
		bool finish;
		enum snap_state is;
	} row[] = {
		{ NEED_DAEMON, 0, true, SNAP_COPYING },
		{ NEED_DAEMON, 0, false, SNAP_TORN },
		{ NEED_CLIENT, 7, true, SNAP_TORN },
		{ NEED_CLIENT | NEED_ORDERED, 6, true, SNAP_TORN },
		{ NEED_CLIENT | NEED_ORDERED, 7, false, SNAP_COPIED },
		{ NEED_CLIENT | NEED_ORDERED, 8, true, SNAP_COPIED },
		{ NEED_CLIENT | NEED_ORDERED, 7 + (1u << 31), true, SNAP_TORN },
		{ NEED_DAEMON | NEED_CLIENT, 7, true, SNAP_TORN },
		{ NEED_DAEMON | NEED_CLIENT | NEED_ORDERED, 7, true, SNAP_COPYING },
		{ NEED_DAEMON | NEED_CLIENT | NEED_ORDERED, 7, false, SNAP_TORN },
	};
	static const uint8_t slot[8];

	for (size_t i = 0; i < ARRAY_LEN(row); i++) {
		struct shared_rank *r = rank_new();
		const struct shared_record rec = { .step = 1, .target = 7 };
		struct shared_snap *s = shared_snap_next(r);

		shared_snap_write(s, &rec);
		shared_snap_publish(r, s, SNAP_COPYING, row[i].need & ~(uint32_t)NEED_ORDERED);
		if (row[i].need & NEED_ORDERED)
			assert_true(shared_snap_order(r, s, 1));
		atomic_store(&r->done, row[i].done);
		shared_snap_orphan(r, s, 1, row[i].finish, slot, sizeof slot);
		if (shared_snap_state(s, NULL) != row[i].is)
			fail_msg("row %zu", i);
		if (row[i].is == SNAP_COPYING) { /* what is left is the daemon's */
			assert_int_equal(shared_snap_need(s, 1), NEED_DAEMON);
			assert_int_equal(copied(r, s, 1), COPY_END_COPIED);
		}
		shared_snap_orphan(r, s, 1, false, slot, sizeof slot); /* nothing is taken back */
		assert_int_not_equal(shared_snap_state(s, NULL), SNAP_COPYING);
		free(r);
	}
}

/* The last one compares, whoever it is; the first one does not hear of it. */
TEST(the_copier_that_ends_last_compares_what_was_noted)
{
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t first = i & 1 ? NEED_CLIENT : NEED_DAEMON;
		const struct shared_canary_word at = { UINT64_C(8) << 56, i & 2 ? 1 : 0 };
		static const uint8_t slot[8];
		struct shared_rank *r = rank_new();
		struct shared_snap *s = shared_snap_next(r);
		uint64_t off, why;

		shared_canary_write(s, &at, 1);
		shared_copying_set(r, 1, 2);
		shared_snap_publish(r, s, SNAP_COPYING, NEED_DAEMON | NEED_CLIENT);
		assert_int_equal(shared_copy_end(r, s, 1, first, slot, sizeof slot, &off),
				 COPY_END_WAITS);
		assert_true(off == UINT64_MAX && !shared_why_get(s, 1, &why));
		assert_true(shared_copying_has(r, 2) == (first == NEED_DAEMON));
		assert_int_equal(shared_copy_end(r, s, 1, 3 & ~first, slot, sizeof slot, &off),
				 i & 2 ? COPY_END_CHANGED : COPY_END_COPIED);
		assert_true(off == (i & 2 ? 0 : UINT64_MAX));
		assert_true(shared_why_get(s, 1, &why) == !!(i & 2));
		assert_false(shared_copying_has(r, 2));
		assert_int_equal(shared_snap_state(s, NULL), i & 2 ? SNAP_TORN : SNAP_COPIED);
		free(r);
	}
}

/* The library's copier lets the trainer mark the next step before it ends this one. */
TEST(who_ends_an_earlier_copy_leaves_the_next_ones_copying_alone)
{
	static const uint8_t slot[8];
	struct shared_rank *r = rank_new();
	struct shared_snap *s = shared_snap_next(r);
	uint64_t off;

	shared_copying_set(r, 1, 2);
	shared_snap_publish(r, s, SNAP_COPYING, NEED_CLIENT);
	shared_copying_clear(r, 1);
	assert_false(shared_copying_has(r, 2));
	shared_copying_set(r, 2, 3);
	/* its last look at the word was before the trainer tore it */
	assert_int_equal(shared_copy_end(r, s, 1, NEED_CLIENT, slot, sizeof slot, &off),
			 COPY_END_COPIED);
	assert_true(shared_copying_has(r, 3));
	shared_copying_clear(r, 1);
	assert_true(shared_copying_has(r, 3));
	shared_copying_clear(r, 2);
	assert_false(shared_copying_has(r, 3));
	free(r);
}

/* The daemon is gone: what it has not to copy goes on. And what a guard has let go no mark
 * takes. */
TEST(a_copy_is_torn_by_nobody_whom_it_does_not_need)
{
	struct shared_rank *r = rank_new();
	struct shared_snap *s = shared_snap_next(r);
	uint64_t off;

	shared_snap_publish(r, s, SNAP_COPYING, NEED_CLIENT);
	shared_tear_lost(r);
	assert_true(shared_snap_going(s, 1) && !shared_snap_ordered(s));
	assert_true(shared_snap_order(r, s, 1) && shared_snap_ordered(s));
	shared_update(r, false); /* (c) */
	assert_false(shared_tear(r));
	for (uint64_t n = 2; n <= SHARED_SNAPS; n++) {
		shared_stable(r);
		shared_snap_publish(r, shared_snap_next(r), SNAP_TORN, 0);
		assert_true(shared_snap_going(s, 1));
	}
	assert_null(shared_snap_next(r)); /* its record is not taken either */
	assert_int_equal(shared_copy_end(r, s, 1, NEED_CLIENT, s, 0, &off), COPY_END_COPIED);
	assert_ptr_equal(shared_snap_next(r), s);
	shared_snap_publish(r, s, SNAP_COPYING, NEED_DAEMON | NEED_CLIENT);
	shared_tear_lost(r);
	assert_int_equal(shared_snap_state(s, NULL), SNAP_TORN);
	free(r);
}

TEST(numbers_wrap_without_a_seam)
{
	struct shared_job *j = job_new(2);
	struct ticket t[SHARED_PAST + 1], mine, again;
	uint32_t free_mask;
	uint16_t looked = 0, last = 0;

	for (uint64_t step = (UINT64_C(1) << 36) - 3000; step < (UINT64_C(1) << 36) + 70000;
	     step++) {
		uint32_t n;

		assert_int_equal(shared_ticket(j, step, NULL, 0, false, &mine), 0);
		assert_int_not_equal(mine.seq, 0);
		assert_true(last == 0 || shared_seq_cmp(mine.seq, last) > 0);
		last = mine.seq;
		assert_int_equal(shared_ticket(j, step, NULL, TICKET_FINAL, true, &again), 0);
		assert_true(same(mine, again));
		if (step % 3)
			continue;
		n = shared_gate_look(j, &looked, t, &free_mask);
		assert_true(n >= 1 && n <= 9 && t[n - 1].seq == mine.seq);
		for (uint32_t i = 1; i < n; i++)
			assert_true(shared_seq_cmp(t[i].seq, t[i - 1].seq) > 0);
		assert_true(n == 3 || step < (UINT64_C(1) << 36) - 2990);
		for (uint32_t i = 0; i < n; i++)
			if (t[i].slot < 2)
				shared_gate_give(j, t[i].slot);
		assert_int_equal(shared_gate_look(j, &looked, t, &free_mask), 0);
	}
	free(j);
}

TEST(a_final_mark_waits_for_a_slot_and_others_skip)
{
	struct shared_job *j = job_new(2);
	struct ticket t;

	assert_int_equal(shared_ticket(j, 1, NULL, 0, false, &t), 0);
	assert_int_equal(shared_ticket(j, 2, NULL, 0, false, &t), 0);
	assert_int_equal(shared_ticket(j, 3, NULL, TICKET_PERSIST | TICKET_FINAL, true, &t),
			 -EAGAIN);
	shared_gate_give(j, 1);
	assert_int_equal(shared_ticket(j, 3, NULL, TICKET_PERSIST | TICKET_FINAL, true, &t), 0);
	assert_int_equal(t.slot, 1);
	assert_int_equal(t.flags, TICKET_PERSIST | TICKET_FINAL);
	assert_int_equal(shared_ticket(j, 4, NULL, TICKET_FINAL, false, &t), 0);
	assert_int_equal(t.slot, SHARED_SKIP);
	assert_int_equal(shared_ticket(j, 4, NULL, TICKET_FINAL, true, &t),
			 0); /* skipped is skipped, also for who would have waited */
	assert_int_equal(t.slot, SHARED_SKIP);
	free(j);
}

TEST(a_snapshot_counts_when_its_rank_is_known_to_guard)
{
	struct shared_rank *r = rank_new();
	struct shared_record rec[5] = { { 0 } };

	for (uint64_t n = 1; n <= 4; n++) {
		struct shared_snap *s;
		struct shared_record final;

		assert_int_equal(shared_stable(r), n == 4); /* no guard after the third */
		assert_false(shared_stable(r));		    /* counted once */
		rec[n] = final = (struct shared_record){ .step = n, .unguarded = r->unguarded };
		final.flags = TICKET_FINAL;
		s = shared_snap_next(r);
		shared_snap_write(s, &rec[n]);
		shared_snap_publish(r, s, SNAP_COPYING, NEED_DAEMON);
		assert_int_equal(copied(r, s, n), COPY_END_COPIED);
		assert_int_equal(
			shared_snap_closed(r, n, &rec[n]),
			n == 2 ||
				n == 3); /* not before it was seen to guard; never again after it did not */
		assert_int_equal(shared_snap_guarded(r, n, &rec[n]), 0);
		assert_true(shared_snap_closed(r, n, &final));
		assert_int_equal(shared_snap_guarded(r, n, &final), 1);
		if (n == 3)
			continue;
		shared_update(r, false);
		assert_int_equal(shared_snap_closed(r, n, &rec[n]), true);
		assert_int_equal(shared_snap_guarded(r, n, &rec[n]), 1);
	}
	assert_int_equal(shared_snap_guarded(r, 3, &rec[3]), -1);
	assert_false(shared_snap_closed(r, 3, &rec[3]));
	assert_int_equal(r->unguarded, 1);
	rec[0] = (struct shared_record){ .step = 5, .unguarded = 1 };
	assert_int_equal(shared_snap_guarded(r, 5, &rec[0]), 0);
	atomic_store(&r->waited_step, 6);
	assert_int_equal(shared_snap_guarded(r, 5, &rec[0]), 1);
	free(r);
}

static const struct shared_record *guarding; /* what the guard is about */

/* The daemon looks while the guard is amid its stores. */
static void look_at_guard(void)
{
	const uint64_t n = guarding->step;

	shared_point = NULL;
	if (shared_snap_guarded(overtaken, n, guarding) == 1)
		assert_true(n % 3);
	shared_point = look_at_guard;
}

TEST(a_snapshot_that_its_guard_finds_changed_is_dropped_and_no_other)
{
	struct shared_rank *r = rank_new();
	struct shared_record rec = { 0 };
	uint64_t off;

	overtaken = r;
	guarding = &rec;
	for (uint64_t n = 1; n <= SHARED_CHANGED; n++) {
		struct shared_snap *s;

		shared_stable(r);
		rec.step = n;
		s = shared_snap_next(r);
		shared_snap_write(s, &rec);
		shared_snap_publish(r, s, SNAP_COPYING, NEED_DAEMON);
		assert_int_equal(copied(r, s, n), COPY_END_COPIED);
		if (n % 3 == 0)
			shared_why_set(s, n, n);
		assert_int_equal(shared_why_get(s, n, &off), n % 3 == 0);
		assert_false(shared_why_get(s, n + 1, &off));
		shared_point = look_at_guard;
		shared_update(r, n % 3 == 0);
		shared_point = NULL;
		shared_update(r, false); /* a second guard takes nothing back */
	}
	for (uint64_t n = 1; n <= SHARED_CHANGED; n++) {
		rec.step = n;
		assert_int_equal(shared_snap_guarded(r, n, &rec), n % 3 ? 1 : -1);
		assert_int_equal(shared_snap_closed(r, n, &rec), n % 3 != 0);
		rec.flags = TICKET_FINAL;
		assert_int_equal(shared_snap_guarded(r, n, &rec), n % 3 ? 1 : -1);
		rec.flags = 0;
	}
	free(r);
}

TEST(words_are_read_whole_compared_and_kept_inside_of_the_slot)
{
	struct shared_rank *r = rank_new();
	static struct shared_canary got;
	static const uint8_t slot[32] = { [8] = 1, 2, 3, [30] = 9, 9 };
	struct shared_canary_word at[SHARED_CANARY_MAX] = {
		{ 8 | UINT64_C(3) << 56, 0x030201 },
		{ 30 | UINT64_C(2) << 56, 0x0909 },
		{ 31 | UINT64_C(2) << 56, 1 }, /* behind the end: nonsense is passed by */
		{ UINT64_C(1) << 55 | UINT64_C(8) << 56, 1 },
		{ UINT64_C(9) << 56, 1 },
	};
	struct shared_snap *s = shared_snap_next(r);

	shared_canary_write(s, at, 5);
	shared_snap_publish(r, s, SNAP_COPYING, NEED_DAEMON);
	assert_int_equal(shared_canary_read(s, 1, &got), 0);
	assert_true(got.n == 5 && shared_canary_compare(&got, slot, 32) == UINT64_MAX);
	assert_int_equal(shared_canary_read(s, 2, &got), -EAGAIN);
	at[1].word++;
	shared_canary_write(s, at, SHARED_CANARY_MAX);
	assert_int_equal(shared_canary_read(s, 1, &got), 0);
	assert_true(got.n == SHARED_CANARY_MAX && shared_canary_compare(&got, slot, 32) == 30);
	free(r);
}

TEST(outcomes_are_kept_for_the_last_64_steps)
{
	struct shared_job *j = calloc(1, sizeof *j);
	const uint64_t phase[3] = { 1, 2, 3 };
	struct shared_outcome o;

	for (uint64_t step = 0; step < 100; step++) {
		shared_outcome_set(j, step, 7, OUTCOME_COPYING, 0, NULL, NULL);
		shared_outcome_set(j, step, 7, step % 2 ? OUTCOME_COMMITTED : OUTCOME_TORN,
				   step % 2 ? 0 : -ENOENT, phase, "because");
	}
	for (uint64_t step = 0; step < 101; step++) {
		assert_int_equal(shared_outcome_get(j, step, &o), step >= 36 && step < 100);
		if (step < 36 || step == 100)
			continue;
		assert_int_equal(o.step, step);
		assert_int_equal(o.state, step % 2 ? OUTCOME_COMMITTED : OUTCOME_TORN);
		assert_int_equal(o.code, step % 2 ? 0 : -ENOENT);
		assert_int_equal(o.committed_ns, 3);
		assert_string_equal(o.text, "because");
	}
	assert_int_equal(j->newest[CKPT_COMMITTED], 100);
	assert_int_equal(j->newest[CKPT_STAGED], 100);
	assert_int_equal(j->count[OUTCOME_TORN], 50);
	free(j);
}

static void *outcomes_write(void *arg)
{
	struct shared_job *j = arg;

	for (uint64_t step = 1; step <= 20000; step++) {
		const uint64_t phase[3] = { step, step, step };

		shared_outcome_set(j, step / 2, 0, OUTCOME_STAGED, (int)step, phase,
				   step % 2 ? "odd" : "even");
	}
	return NULL;
}

TEST(an_outcome_is_read_whole_or_not_at_all)
{
	struct shared_job *j = calloc(1, sizeof *j);
	struct shared_outcome o;
	uint32_t found = 0;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, outcomes_write, j), 0);
	for (uint64_t newest = 0; newest < 10000;) {
		uint64_t now = atomic_load(&j->newest[CKPT_STAGED]);

		newest = now ? now - 1 : 0;
		if (!shared_outcome_get(j, newest, &o))
			continue;
		found++;
		assert_int_equal(o.step, newest);
		assert_true((uint64_t)o.code / 2 == newest && o.staged_ns == (uint64_t)o.code &&
			    o.committed_ns == (uint64_t)o.code);
		assert_string_equal(o.text, o.code % 2 ? "odd" : "even");
	}
	pthread_join(t, NULL);
	assert_true(found > 0);
	free(j);
}

/* --- LAST --- */
#define LAST_STEPS 4096
/* Ranks that ask at the beginning of each step, in all orders that the scheduler finds, while
 * others stop the launch, and a restore in between that takes them back. */
static struct {
	_Atomic uint64_t word;
	uint32_t world, stops, meetings;
	_Atomic uint32_t here; /* ranks that wait in the restore */
	_Atomic bool told[2][WORLD_MAX]
			 [LAST_STEPS]; /* by line: ckpt_last said "not the last" to this rank */
	uint64_t stopped[WORLD_MAX];   /* 1 + the last step of each */
} L;

static void last_rank(uint32_t me)
{
	uint64_t step = 7;
	uint32_t line = 0;

	for (;;) {
		bool last;

		if (L.meetings && line == 0 && step == 20) { /* all of them go back to 9 */
			uint32_t noted = shared_last_line(&L.word);

			atomic_fetch_add(&L.here, 1);
			while (atomic_load(&L.here) < L.world)
				point();
			for (uint32_t k = chance(20); k; k--)
				point();
			shared_last_anew(&L.word, noted);
			step = 9;
			line = 1;
		}
		last = shared_last_ask(&L.word, ++step);
		if (last) {
			L.stopped[me] = step + 1;
			break;
		}
		if (step < LAST_STEPS)
			atomic_store(&L.told[line][me][step], true);
		point();
	}
}

static void last_stopper(void)
{
	for (uint32_t n = chance(30); n; n--)
		point();
	shared_last_stop(&L.word);
}

static void last_main(void)
{
	if (running < L.world)
		last_rank(running);
	else
		last_stopper();
	actor[running].over = true;
	swapcontext(&actor[running].context, &scheduler);
}

/* What is wrong; NULL. */
static const char *last_run(uint64_t seed)
{
	memset(&L, 0, sizeof L);
	memset(&W, 0, sizeof W);
	rng_state = seed;
	L.world = 2 + chance(3);
	L.stops = 1 + chance(3);
	L.meetings = chance(2);
	nactor = L.world + L.stops;
	shared_point = point;
	for (uint32_t i = 0; i < nactor; i++) {
		if (!actor[i].stack)
			actor[i].stack = calloc(1, STACK_BYTES);
		actor[i].over = false;
		getcontext(&actor[i].context);
		actor[i].context.uc_stack.ss_sp = actor[i].stack;
		actor[i].context.uc_stack.ss_size = STACK_BYTES;
		makecontext(&actor[i].context, last_main, 0);
	}
	schedule();
	shared_point = NULL;
	if (atomic_load(&W.wrong))
		return atomic_load(&W.wrong);
	for (uint32_t r = 0; r < L.world; r++) {
		uint32_t line = L.meetings && atomic_load(&L.here) == L.world;

		if (L.stopped[r] != L.stopped[0])
			return "ranks stop after different steps";
		for (uint32_t k = 0; k < L.world; k++)
			if (L.stopped[r] <= LAST_STEPS &&
			    atomic_load(&L.told[line][k][L.stopped[r] - 1]))
				return "a rank goes on from the last step of another";
	}
	return NULL;
}

TEST(no_schedule_makes_ranks_stop_after_different_steps)
{
	const uint64_t n = unit_scaled(20000);

	if (!COROUTINES) {
		print_message("skipped: ThreadSanitizer does not follow coroutines\n");
		skip();
	}
	for (uint64_t seed = 1; seed <= n; seed++) {
		const char *wrong = last_run(seed);

		if (wrong)
			fail_msg("seed %" PRIu64 ": %s", seed, wrong);
	}
}

static pthread_barrier_t last_start;

static void *last_thread(void *arg)
{
	const uint32_t me = (uint32_t)(uintptr_t)arg;

	pthread_barrier_wait(&last_start);
	for (uint64_t step = 1; !L.stopped[me]; step++) {
		if (me == 0 && step == 100)
			shared_last_stop(&L.word);
		if (shared_last_ask(&L.word, step))
			L.stopped[me] = step;
	}
	return NULL;
}

/* Their steps have nothing to do with each other: who is far ahead stops first, and the others at
 * the same step. */
TEST(threads_that_are_told_to_stop_stop_after_the_same_step)
{
	for (uint32_t n = 0; n < 50; n++) {
		pthread_t t[WORLD_MAX];

		memset(&L, 0, sizeof L);
		assert_int_equal(pthread_barrier_init(&last_start, NULL, WORLD_MAX), 0);
		for (uintptr_t i = 0; i < WORLD_MAX; i++)
			assert_int_equal(pthread_create(&t[i], NULL, last_thread, (void *)i), 0);
		for (uint32_t i = 0; i < WORLD_MAX; i++)
			pthread_join(t[i], NULL);
		assert_int_equal(pthread_barrier_destroy(&last_start), 0);
		for (uint32_t i = 1; i < WORLD_MAX; i++)
			assert_int_equal(L.stopped[i], L.stopped[0]);
	}
}

TEST(what_a_rank_was_told_before_all_met_counts_where_they_meet)
{
	_Atomic uint64_t word = 0, mine = 0;

	assert_false(shared_last_ask(&word, 5));
	assert_false(shared_last_ask(&word, 5)); /* the same again, or an older one */
	assert_false(shared_last_ask(&word, 3));
	assert_false(shared_last_ask(&mine, 9));
	shared_last_bring(&word, mine);
	shared_last_stop(&word);
	assert_false(shared_last_ask(&word, 9));
	assert_true(shared_last_ask(&word, 10) && shared_last_ask(&word, 11));
	shared_last_stop(&word); /* nothing changes */
	assert_false(shared_last_ask(&word, 9));
	shared_last_anew(&word, 1); /* another rank has done it */
	assert_false(shared_last_ask(&word, 9));
	shared_last_anew(&word, 0);
	assert_true(shared_last_ask(&word, 0) && shared_last_line(&word) == 1);
	/* A stop that was asked for before there was a daemon. */
	word = 0;
	mine = 0;
	shared_last_stop(&mine);
	assert_false(shared_last_ask(&word, 30));
	shared_last_bring(&word, mine);
	assert_false(shared_last_ask(&word, 30));
	assert_true(shared_last_ask(&word, 31));
	word = 0;
	assert_false(shared_last_ask(&word, SHARED_LAST_STEP_MAX));
	shared_last_stop(&word);
	assert_true(shared_last_ask(&word, SHARED_LAST_STEP_MAX + 1));
	assert_int_equal(shared_last_line(&word), 0);
}

static int stacks_free(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < ACTORS_MAX; i++)
		free(TAKE(actor[i].stack));
	return 0;
}
UNIT(.teardown = stacks_free);
