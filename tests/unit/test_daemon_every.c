/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_every.c - which steps averages leave out: they say how many, everywhere alike, also
 * after restarts; and with the word `every` they leave out none, under a load that makes them leave
 * out most without it.
 *
 * EVERY_PAIRS=N: so many pairs of runs (`make torture RIGS=pairs`: 20); 1 without it.
 */
#include "test_daemon_average_rig.h"
#include "ckpt/engine/average_seen.h"
#include "tests/lib/draw.h"

#define STEPS 48u
#define EVERY "constant decay=.9 every"
#define WARNING "averages of the weights have left out"

/* --- the load --- */
static struct load {
	uint32_t slots, guard, persist_every;
	bool own;
	/* what each span of a walk that makes averages, and each sync of a file, takes; at most */
	_Atomic uint64_t walk_ns, sync_ns;
	atomic_bool hold; /* a walk stands still meanwhile */
	uint32_t nbusy;	  /* threads that want a processor all the time */
	pthread_t busy[2];
	atomic_bool over;
	struct io_ops ops;
} L;

/* Not a wait for something: it is the time that slow hardware takes. */
static void takes(uint64_t ns)
{
	const struct timespec t = { .tv_nsec = (long)ns };

	if (ns)
		(void)nanosleep(&t, NULL);
}

static int slow_walk(uint64_t step, uint32_t rank, const struct walk_span *s)
{
	(void)rank;
	(void)s;
	takes(load_relaxed(&L.walk_ns) * (1 + step % 3) / 3);
	while (atomic_load(&L.hold))
		takes(NS_PER_MS);
	return 0;
}

static int slow_sync(void *ctx, int fd)
{
	takes(load_relaxed(&L.sync_ns));
	return host_ops.sync(ctx, fd);
}

static void *busy(void *arg)
{
	while (!load_relaxed(&L.over))
		;
	return arg;
}

static void load_begin(uint64_t *seed)
{
	L = (struct load){ .slots = 2 + (uint32_t)draw_below(seed, 3),
			   .guard = draw_below(seed, 2) ? CKPT_NEVER : CKPT_FINISH,
			   .persist_every = 1 + (uint32_t)draw_below(seed, 8),
			   .own = draw_below(seed, 2),
			   .nbusy = (uint32_t)draw_below(seed, 3),
			   .ops = host_ops };
	store_relaxed(&L.walk_ns, NS_PER_MS + draw_below(seed, 3 * NS_PER_MS));
	store_relaxed(&L.sync_ns, draw_below(seed, 3 * NS_PER_MS));
	L.ops.sync = slow_sync;
	for (uint32_t i = 0; i < L.nbusy; i++)
		MUST(pthread_create(&L.busy[i], NULL, busy, NULL) == 0);
	own_memory = L.own;
	printf("# %u slots, guard %u, one of %u steps written, %s memory, %u threads, walk %.1f ms, sync %.1f ms\n",
	       L.slots, L.guard, L.persist_every, L.own ? "own" : "shared", L.nbusy,
	       (double)load_relaxed(&L.walk_ns) / 1e6, (double)load_relaxed(&L.sync_ns) / 1e6);
}

static void load_end(void)
{
	store_relaxed(&L.over, true);
	while (L.nbusy)
		(void)pthread_join(L.busy[--L.nbusy], NULL);
	own_memory = false;
}

static void host_start_slow(void)
{
	H.opts.averages = slow_walk;
	host_start(&H, &L.ops);
}

static struct said ranks_said = SAID_NOTHING;

static int setup(void **state)
{
	int rc = host_setup(state);

	L = (struct load){ .ops = host_ops };
	said_forget(&ranks_said);
	return rc;
}

static int teardown(void **state)
{
	load_end();
	return host_teardown(state);
}

/* --- a launch that does not look back --- */
struct ran {
	const char *spec;
	bool all;     /* no step may be skipped or torn */
	bool await;   /* the warning is logged, before the rank closes */
	bool restore; /* first, the newest step */
	bool stalls;  /* no walk goes on during more steps than there are slots */
	uint64_t from, to;
	uint64_t kill_at, miss_at; /* behind which step the daemon dies; which one rank 1 misses */
	struct ckpt_stats stats;   /* of rank 0 */
};

static void memory_free(struct rank *k)
{
	for (uint32_t i = 0; i < TENSORS && own_memory; i++)
		free(mine_of[k->rank].mem[i]);
}

/* No rank marks anything meanwhile but the step behind, which is left out. */
static void daemon_ends(struct rank *k)
{
	if (k->rank == 0) {
		host_kill(&H);
		host_start_slow();
	}
	rank_meet(k);
	must_reattach(k, 1);
	rank_meet(k);
}

static void steps_run(struct rank *k, const struct ran *x)
{
	for (uint64_t s = x->from; s <= x->to; s++) {
		const struct ckpt_mark final = { .size = sizeof final, .flags = CKPT_FINAL };
		int torn = ckpt_guard(k->c, NULL), rc;

		/* what the guard has waited for */
		MUST(!x->all || !shared_gate_full(k->c->link->job, s - 1));
		if (x->stalls && s == x->from + 1) { /* what is left out is so behind a first one */
			must_soon(is_sealed(k, x->from));
			rank_meet(k);
		}
		if (x->stalls && k->rank == 0)
			atomic_store(&L.hold, s > x->from && s < x->from + 2 * WIRE_SLOTS_MAX);
		model_fill(k, s, 0);
		rc = k->rank && s == x->miss_at
			     ? CKPT_SKIPPED
			     : ckpt_snapshot(k->c, s, s == x->to ? &final : NULL);
		if (x->all && (torn || rc))
			fprintf(stderr, "# step %" PRIu64 ": guard %d, snapshot %d\n", s, torn, rc);
		MUST(x->all ? !torn && !rc : torn >= 0 && rc >= 0);
		rank_meet(k); /* as a collective does */
		if (s == x->kill_at)
			daemon_ends(k);
	}
	must_wait(k, x->to, CKPT_COMMITTED);
}

static void ran_run(struct rank *k)
{
	struct ran *x = k->arg;
	struct flow f = { .average = { { "fast", x->spec }, { "slow", SLOW } } };

	flow_open(k, &f);
	MUST_OF(k, rank_seal(k, PATIENCE));
	if (x->restore)
		flow_restore(k, &f);
	steps_run(k, x);
	if (k->rank == 0)
		x->stats = rank_stats(k);
	if (x->await)
		said_await(&ranks_said, WARNING);
	rank_meet(k);
	rank_close(k, 0);
	memory_free(k);
}

static struct ran ran(const char *job, struct ran x)
{
	team_of(plan(job, "fsdp=2", .slots = L.slots, .guard = L.guard,
		     .persist_every = L.persist_every, .log = said_line, .log_ctx = &ranks_said),
		ran_run, &x);
	return x;
}

/* --- what its last step says --- */
struct says {
	struct table_average a;
	struct average_missed missed;
	uint64_t marked;
	float w[ROWS * COLS], gain[BIAS];
};

static struct says says_of(const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(&H, job, step);
	struct average_missed all[TABLE_AVERAGES_MAX];
	int fd = host_step_fd(&H, job, step);
	struct says s = { .marked = averages_marked(c) };

	averages_missed_all(c, all);
	for (uint32_t i = 0; i < c->table.naverage; i++)
		if (!strcmp(c->table.average[i].name, "fast")) {
			s.a = c->table.average[i];
			s.missed = all[i];
		}
	s.a.name = s.a.schedule = NULL; /* they end with c */
	read_tensor(c, fd, "ema.fast", "w", s.w);
	read_tensor(c, fd, "ema.fast", "gain", s.gain);
	(void)close(fd);
	checkpoint_free(c);
	return s;
}

/* The attribute, ckpt_stats and the log count alike, and what they count is all that was marked. */
static void assert_counts(const struct says *s, const struct ckpt_stats *stats, uint64_t marked)
{
	assert_true(s->missed.known);
	assert_false(s->missed.least);
	assert_int_equal(s->missed.of, s->a.updates + s->missed.left_out);
	assert_int_equal(s->missed.of, s->a.last_step - s->a.since);
	assert_int_equal(s->marked, marked);
	if (!stats)
		return;
	assert_int_equal(stats->average_taken, s->a.updates);
	assert_int_equal(stats->average_left_out, s->missed.left_out);
}

static void pair_is_equal(uint64_t *seed)
{
	struct chain c = { 0 };
	struct expected want;
	struct says x, y;
	struct ran r, q;

	load_begin(seed);
	host_start_slow();
	r = ran(JOB, (struct ran){ .spec = EVERY, .all = true, .from = 1, .to = STEPS });
	q = ran(OTHER, (struct ran){ .spec = EVERY, .all = true, .from = 1, .to = STEPS });
	x = says_of(JOB, STEPS);
	y = says_of(OTHER, STEPS);
	chain_steps(&c, 1, STEPS);
	want = expect(FAST, &c);
	assert_memory_equal(x.a.history, y.a.history, sizeof x.a.history);
	assert_memory_equal(x.w, y.w, sizeof x.w);
	assert_memory_equal(x.gain, y.gain, sizeof x.gain);
	assert_state(&x.a, &want.state);
	assert_memory_equal(x.w, want.w, sizeof x.w);
	assert_counts(&x, &r.stats, STEPS);
	assert_counts(&y, &q.stats, STEPS);
	assert_int_equal(x.missed.left_out, 0);
	assert_true(r.stats.average_waits > 0); /* else nothing was shown */
	assert_true(r.stats.average_wait_ns > 0);
	load_end();
	host_stop(&H);
}

TEST(with_every_two_runs_under_load_have_the_same_averages)
{
	const char *given = getenv("EVERY_PAIRS");
	uint32_t n = given ? (uint32_t)strtoul(given, NULL, 10) : 1;
	uint64_t seed = draw_seed("pairs of runs");

	for (uint32_t i = 0; i < n; i++) {
		if (i)
			host_teardown(state), host_setup(state);
		pair_is_equal(&seed);
	}
}

/* The same load, and it bites. */
TEST(without_it_steps_are_left_out_and_counted_alike_everywhere)
{
	uint64_t seed = draw_seed("left out");
	struct says s;
	struct ran r;

	load_begin(&seed);
	store_relaxed(&L.walk_ns, 5 * NS_PER_MS);
	host_start_slow();
	r = ran(JOB, (struct ran){ .spec = FAST, .stalls = true, .from = 1, .to = STEPS });
	s = says_of(JOB, STEPS);
	assert_true(s.missed.left_out > 0);
	assert_counts(&s, &r.stats, STEPS);
	assert_int_equal(r.stats.average_waits, 0);
}

/* Both runs leave steps out, and the second one counts on. */
static void counts_go_on(bool from_disk)
{
	uint64_t seed = draw_seed("left out, and restored");
	struct says first, s;
	struct ran r;

	load_begin(&seed);
	store_relaxed(&L.walk_ns, 5 * NS_PER_MS);
	host_start_slow();
	(void)ran(JOB, (struct ran){ .spec = FAST, .stalls = true, .from = 1, .to = STEPS / 2 });
	first = says_of(JOB, STEPS / 2);
	if (from_disk) {
		host_stop(&H);
		host_start_slow();
	}
	r = ran(JOB, (struct ran){ .spec = FAST,
				   .restore = true,
				   .stalls = true,
				   .from = STEPS / 2 + 1,
				   .to = STEPS });
	s = says_of(JOB, STEPS);
	assert_true(first.missed.left_out > 0);
	assert_true(s.missed.left_out > first.missed.left_out);
	assert_int_equal(s.a.since, first.a.since);
	assert_counts(&s, &r.stats, STEPS);
}

TEST(the_count_goes_on_after_a_restore_from_memory)
{
	counts_go_on(false);
}

TEST(the_count_goes_on_after_a_restore_from_disk)
{
	counts_go_on(true);
}

TEST(what_a_dead_daemon_has_not_averaged_is_counted_by_the_next_one)
{
	uint64_t seed = draw_seed("left out by a death");
	struct says s;
	struct ran r;

	load_begin(&seed);
	host_start_slow();
	r = ran(JOB, (struct ran){ .spec = FAST, .from = 1, .to = STEPS, .kill_at = STEPS / 2 });
	s = says_of(JOB, STEPS);
	assert_counts(&s, &r.stats, STEPS);
}

/* Of two ranks one says so. */
TEST(more_than_one_of_a_hundred_is_a_warning_once)
{
	uint64_t seed = draw_seed("a warning");

	load_begin(&seed);
	store_relaxed(&L.walk_ns, 5 * NS_PER_MS);
	host_start_slow();
	(void)ran(JOB,
		  (struct ran){
			  .spec = FAST, .stalls = true, .from = 1, .to = STEPS, .await = true });
	assert_int_equal(said_times(&ranks_said, WARNING), 1);
}

TEST(less_than_one_of_a_hundred_is_none)
{
	struct says s;
	struct ran r;

	L.slots = 4;
	L.persist_every = 1000;
	L.guard = CKPT_FINISH;
	host_start_slow();
	r = ran(JOB, (struct ran){ .spec = EVERY, .from = 1, .to = 130, .miss_at = 115 });
	s = says_of(JOB, 130);
	assert_int_equal(s.missed.left_out, 1);
	assert_counts(&s, &r.stats, 130);
	assert_int_equal(said_times(&ranks_said, WARNING), 0);
}

/* --- what hangs --- */
static void hold_run(struct rank *k)
{
	struct ran *x = k->arg;
	struct flow f = { .average = { { "fast", x->spec } } };
	const struct ckpt_mark final = { .size = sizeof final, .flags = CKPT_FINAL };
	uint64_t s = 1, waits;
	int rc;

	flow_open(k, &f);
	MUST_OF(k, rank_seal(k, PATIENCE));
	k->c->every.max_ns = 200 * NS_PER_MS;
	must_mark(k, s++, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_soon(is_sealed(k, 1));
	atomic_store(&L.hold, true);
	do { /* until all slots wait for the walk */
		must_guard(k);
		model_fill(k, s, 0);
		rc = ckpt_snapshot(k->c, s++, NULL);
		MUST(rc == 0 || rc == CKPT_SKIPPED);
	} while (rc == 0);
	waits = rank_stats(k).average_waits;
	for (uint32_t i = 0; i < 10; i++) {
		must_guard(k);
		model_fill(k, s, 0);
		MUST_BE(ckpt_snapshot(k->c, s++, NULL), CKPT_SKIPPED);
	}
	/* the guard has waited once only */
	MUST_BE(rank_stats(k).average_waits, waits);
	MUST(rank_stats(k).average_wait_ns >= 200 * NS_PER_MS);
	k->c->every.max_ns = FINISH_MAX_NS; /* what does not hang is not to be in vain */
	atomic_store(&L.hold, false);
	must_soon(!shared_gate_full(k->c->link->job, s - 1));
	for (uint64_t end = s + 20; s <= end; s++) {
		must_guard(k);
		model_fill(k, s, 0);
		MUST_BE(ckpt_snapshot(k->c, s, s == end ? &final : NULL), 0);
	}
	must_wait(k, s - 1, CKPT_COMMITTED);
	x->to = s - 1;
	x->stats = rank_stats(k);
	rank_close(k, 0);
}

TEST(a_walk_that_hangs_costs_one_wait_and_the_steps_are_counted)
{
	struct ran x = { .spec = EVERY };
	struct says s;

	host_start_slow();
	team_of(plan(JOB, "fsdp=1", .slots = 3, .persist_every = 1000), hold_run, &x);
	s = says_of(JOB, x.to);
	assert_int_equal(s.missed.left_out, 11);
	assert_counts(&s, &x.stats, x.to);
}

/* Its guard would end every copy, if it did not wait. */
static void taken_over_run(struct rank *k)
{
	struct ran *x = k->arg;
	struct flow f = { .average = { { "fast", x->spec } } };
	uint64_t s = 1, end;
	int rc;

	flow_open(k, &f);
	MUST_OF(k, rank_seal(k, PATIENCE));
	k->c->every.max_ns = 200 * NS_PER_MS;
	must_mark(k, s++, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_soon(is_sealed(k, 1));
	atomic_store(&L.hold, true);
	do { /* until a wait was in vain */
		must_guard(k);
		model_fill(k, s, 0);
		rc = ckpt_snapshot(k->c, s++, NULL);
		MUST(rc == 0 || rc == CKPT_SKIPPED);
	} while (rc == 0);
	atomic_store(&L.hold, false);
	host_kill(&H);
	host_start_slow();
	must_reattach(k, 1);
	k->c->every.max_ns = FINISH_MAX_NS;
	must_guard(k);
	must_soon(!shared_gate_full(k->c->link->job, s - 1));
	for (end = s + 20; s <= end; s++) {
		model_fill(k, s, 0);
		MUST_BE(ckpt_snapshot(k->c, s, NULL), 0);
		must_guard(k);
	}
	must_soon(is_sealed(k, s - 1));
	rank_close(k, 0);
}

TEST(a_daemon_that_takes_over_is_waited_for_though_the_one_before_hung)
{
	struct ran x = { .spec = EVERY };

	host_start_slow();
	team_of(plan(JOB, "fsdp=1", .slots = 3, .guard = CKPT_NEVER, .persist_every = 1000),
		taken_over_run, &x);
}

/* Steps 3, which is not to be written, and 4, which is, are staged while 2 is walked. */
static void outrun_run(struct rank *k)
{
	struct ran *x = k->arg;
	struct flow f = { .average = { { "fast", x->spec } } };

	flow_open(k, &f);
	MUST_OF(k, rank_seal(k, PATIENCE));
	k->c->every.max_ns = 20 * NS_PER_MS; /* it cannot have what it waits for */
	must_mark(k, 1, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_soon(is_sealed(k, 1));
	atomic_store(&L.hold, true);
	for (uint64_t s = 2; s <= 4; s++) {
		const struct ckpt_mark m = { .size = sizeof m,
					     .flags = s == 4 ? CKPT_PERSIST : CKPT_STAGE_ONLY };

		model_fill(k, s, 0);
		MUST_BE(ckpt_snapshot(k->c, s, &m), 0);
		must_wait(k, s, CKPT_STAGED);
		must_guard(k);
	}
	atomic_store(&L.hold, false);
	must_wait(k, 4, CKPT_COMMITTED);
	rank_close(k, 0);
}

TEST(with_every_a_step_that_is_written_waits_for_the_averages_of_the_older_ones)
{
	struct ran x = { .spec = EVERY };
	struct says s;

	host_start_slow();
	team_of(plan(JOB, "fsdp=1", .slots = 4), outrun_run, &x);
	s = says_of(JOB, 4);
	assert_int_equal(s.a.updates, 3);
	assert_counts(&s, NULL, 4);
}
UNIT(.setup = setup, .teardown = teardown);
