/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_passes.c - which steps are walked, when, and what a pass sees (daemon/passes.h): each
 * byte of a guarded step once, the steps in their order, with the step before where it wants that.
 */
#include "tests/lib/host.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"
#include "daemon/passes.h"
#include <stdatomic.h>

#define STEPS 64

/* A pass that notes what it sees, and can be made to wait or to fail. */
struct watch {
	enum pass_wants how;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t moved;
	bool closed;		    /* spans wait */
	bool fails;		    /* the next span does */
	uint32_t waits;		    /* spans that do */
	uint64_t next[2], bytes[2]; /* by rank, of the walk that is under way */
	uint64_t ends, failed;
	uint64_t seen[STEPS]; /* steps whose walk ended well, in that order */
	uint64_t before[STEPS], size[STEPS];
	uint64_t torn;	       /* spans that were not what followed */
	uint64_t other_before; /* walks whose step before did not hold still */
	uint64_t guarded;      /* the newest step whose guard has been called */
	uint64_t unguarded;    /* spans of later ones */
	struct hash128 was[2]; /* by rank: of the first span of the step that was seen before */
	struct hash128 is[2];
};
static struct watch W;

static enum pass_wants watch_wants(void *ctx, uint64_t step, bool written)
{
	const struct watch *w = ctx;

	(void)step;
	(void)written;
	return w->how;
}

static int watch_span(void *ctx, const struct pass_at *at, const struct walk_span *s)
{
	struct watch *w = ctx;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	w->waits++;
	pthread_cond_broadcast(&w->moved);
	while (w->closed)
		pthread_cond_wait(&w->moved, &w->lock);
	w->waits--;
	w->unguarded += at->step > w->guarded;
	w->torn += s->off < w->next[at->rank] || s->p != at->raw + s->off ||
		   s->off >> CHUNK_LOG2 != (s->off + s->len - 1) >> CHUNK_LOG2;
	if (s->off == 0) {
		struct hash128 h = at->before ? hash128(at->before, s->len) : (struct hash128){ 0 };

		w->other_before += at->before && memcmp(&h, &w->was[at->rank], sizeof h) != 0;
		w->is[at->rank] = hash128(s->p, s->len);
		w->before[w->ends % STEPS] = at->before ? at->before_step : 0;
	}
	w->next[at->rank] = s->off + s->len;
	w->bytes[at->rank] += s->len;
	if (TAKE(w->fails))
		rc = -EDOM;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static void watch_end(void *ctx, uint64_t step, int rc)
{
	struct watch *w = ctx;

	pthread_mutex_lock(&w->lock);
	if (rc == 0) {
		w->size[w->ends % STEPS] = w->bytes[0] + w->bytes[1];
		w->seen[w->ends++ % STEPS] = step;
		memcpy(w->was, w->is, sizeof w->was);
	} else {
		w->failed++;
	}
	memset(w->next, 0, sizeof w->next);
	memset(w->bytes, 0, sizeof w->bytes);
	pthread_cond_broadcast(&w->moved);
	pthread_mutex_unlock(&w->lock);
}

static const struct pass watching = { watch_wants, watch_span, watch_end, &W };

#define W_IS(cond)                             \
	({                                     \
		bool is_;                      \
		pthread_mutex_lock(&W.lock);   \
		is_ = (cond);                  \
		pthread_mutex_unlock(&W.lock); \
		is_;                           \
	})
#define W_DO(what)                                \
	do {                                      \
		pthread_mutex_lock(&W.lock);      \
		what;                             \
		pthread_cond_broadcast(&W.moved); \
		pthread_mutex_unlock(&W.lock);    \
	} while (0)

static void watched(enum pass_wants how)
{
	memset(&W, 0, sizeof W);
	pthread_mutex_init(&W.lock, NULL);
	pthread_cond_init(&W.moved, NULL);
	W.how = how;
	H.opts.pass = &watching;
	H.opts.npass = 1;
}

/* What it has seen by now. Of the case's thread. */
static const struct watch *look(void)
{
	static struct watch w;

	pthread_mutex_lock(&W.lock);
	w = W;
	pthread_mutex_unlock(&W.lock);
	return &w;
}

/* A mark, and the guard after it. */
static int step_guarded(uint64_t step, uint32_t flags)
{
	int rc = rank_step(&K, step, flags);

	if (!rank_took(rc))
		return rc;
	W_DO(W.guarded = step);
	assert_int_equal(ckpt_guard(K.c, NULL), 0);
	return 0; /* also where the step before could not be written */
}

/* As many bytes as the first step had: blobs of the job grow by a few. */
static bool size_is(uint64_t i)
{
	return look()->size[i] >= look()->size[0] &&
	       look()->size[i] < look()->size[0] + RANK_BLOB_MAX;
}

TEST(a_pass_sees_every_byte_of_every_step_once_written_or_not)
{
	watched(PASS_ALONE);
	host_start(&H, NULL);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 3000);
	for (uint64_t step = 1; step <= 6; step++) {
		assert_int_equal(step_guarded(step, step % 2 ? CKPT_STAGE_ONLY : CKPT_PERSIST), 0);
		assert_soon(W_IS(W.ends == step));
		if (step % 2 == 0)
			must_wait(&K, step, CKPT_COMMITTED);
	}
	for (uint64_t i = 0; i < 6; i++) {
		assert_int_equal(look()->seen[i], i + 1);
		assert_int_equal(look()->before[i], 0);
		assert_true(look()->size[i] > MIB && size_is(i));
	}
	assert_int_equal(look()->torn + look()->failed + look()->unguarded, 0);
	assert_string_equal(host_steps(&H, "watch"), "2 4 6");
}

TEST(a_part_whose_disk_fails_is_written_anew_and_seen_once)
{
	static struct io_faults faults;

	watched(PASS_BEHIND);
	io_faults_init(&faults, &io_ops_posix);
	host_start(&H, &faults.ops);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 6000);
	assert_int_equal(step_guarded(1, CKPT_PERSIST), 0);
	must_wait(&K, 1, CKPT_COMMITTED);
	for (uint64_t nth = 1; nth <= 3; nth++) {
		io_faults_fail(&faults, IO_ON_WRITE, nth, -EIO, false);
		assert_int_equal(step_guarded(1 + nth, CKPT_PERSIST), 0);
		must_wait(&K, 1 + nth, CKPT_COMMITTED);
		assert_int_equal(look()->ends, 1 + nth);
		assert_true(size_is(nth));
		assert_int_equal(look()->before[nth], nth);
	}
	/* No try succeeds: what averages would make of the step is made all the same, once. */
	io_faults_fail(&faults, IO_ON_WRITE, 1, -ENOSPC, true);
	assert_int_equal(step_guarded(5, CKPT_PERSIST), 0);
	assert_int_equal(rank_wait(&K, 5, CKPT_COMMITTED), -ENOSPC);
	io_faults_fail(&faults, IO_ON_WRITE, UINT64_MAX, -EIO, false);
	assert_int_equal(look()->ends, 5);
	assert_true(size_is(4));
	assert_int_equal(step_guarded(6, CKPT_PERSIST), 0);
	must_wait(&K, 6, CKPT_COMMITTED);
	assert_int_equal(look()->ends, 6);
	assert_int_equal(look()->torn + look()->failed + look()->unguarded + look()->other_before,
			 0);
}

TEST(a_step_is_walked_when_it_is_guarded)
{
	static const uint32_t flags[] = { CKPT_STAGE_ONLY, CKPT_PERSIST };

	watched(PASS_ALONE);
	host_start(&H, NULL);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 100);
	assert_int_equal(step_guarded(1, CKPT_STAGE_ONLY), 0);
	assert_soon(W_IS(W.ends == 1));
	for (uint64_t step = 2; step <= 3; step++) {
		assert_int_equal(rank_step(&K, step, flags[step - 2]), 0);
		assert_soon(rank_stats(&K).staged == step);
		usleep(100000); /* whoever does not wait for a guard has begun by now */
		assert_true(W_IS(W.ends == step - 1 && W.waits == 0));
		W_DO(W.guarded = step);
		assert_int_equal(ckpt_guard(K.c, NULL), 0);
		assert_soon(W_IS(W.ends == step));
	}
	assert_int_equal(look()->unguarded, 0);
}

static void change_all(struct rank *k)
{
	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t bytes = k->t[i].elem;

		for (uint32_t d = 0; d < k->t[i].ndim; d++)
			bytes *= k->t[i].n[d];
		for (uint64_t b = 0; b < bytes && k->t[i].nlocal == 1; b++)
			k->t[i].ptr[0][b] ^= 0x5a;
	}
}

/* Who stops a daemon does not wait for guards: a pass may see a step of which a late guard then
 * says that it was changed. What an average made of it must not be kept. */
TEST(what_was_made_of_a_step_goes_if_its_guard_finds_a_change)
{
	static const uint32_t flags[] = { CKPT_PERSIST, CKPT_STAGE_ONLY };

	for (uint32_t i = 0; i < 2; i++) {
		watched(PASS_ALONE);
		host_start(&H, NULL);
		open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 3000, .fresh = true,
			 .shared_only = true);
		assert_int_equal(step_guarded(1, CKPT_STAGE_ONLY), 0);
		assert_soon(W_IS(W.ends == 1));
		assert_int_equal(rank_step(&K, 2, flags[i]), 0);
		assert_soon(rank_stats(&K).staged == 2);
		W_DO(W.closed = true);
		daemon_stop(H.d);
		assert_soon(W_IS(W.waits == 1));
		change_all(&K);
		assert_int_equal(ckpt_guard(K.c, NULL), CKPT_TORN);
		W_DO(W.closed = false);
		assert_soon(W_IS(W.failed + W.ends == 2));
		assert_int_equal(look()->failed, 1);
		host_stop(&H);
		rank_close(&K, 0);
	}
}

TEST(a_pass_that_fails_fails_the_step)
{
	watched(PASS_BEHIND);
	host_start(&H, NULL);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 100);
	assert_int_equal(step_guarded(1, CKPT_PERSIST), 0);
	must_wait(&K, 1, CKPT_COMMITTED);
	W_DO(W.fails = true);
	assert_int_equal(step_guarded(2, CKPT_PERSIST), 0);
	assert_int_equal(rank_wait(&K, 2, CKPT_COMMITTED), -EDOM);
	assert_non_null(strstr(K.err.msg, "on the way failed"));
	assert_int_equal(look()->failed, 1); /* it was no disk: there is no other try */
	W_DO(W.fails = true);
	assert_soon(step_guarded(3, CKPT_STAGE_ONLY) == 0);
	assert_soon(W_IS(W.failed == 2));
	assert_soon(step_guarded(4, CKPT_PERSIST) == 0);
	must_wait(&K, 4, CKPT_COMMITTED);
	assert_int_equal(look()->ends, 2);
	assert_int_equal(look()->seen[1], 4);
	assert_int_equal(look()->before[1], 1);
	assert_string_equal(host_steps(&H, "watch"), "1 4");
}

/* Step 1 is seen; of step 2 a span waits. Then each next mark finds a slot or not. */
static void slots_with_a_pass(uint32_t slots, enum pass_wants how, uint32_t want_taken)
{
	uint64_t step, taken = 0;
	bool early;

	watched(how);
	host_start(&H, NULL);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 100, .slots = slots,
		 .fresh = true);
	assert_int_equal(step_guarded(1, CKPT_STAGE_ONLY), 0);
	assert_soon(W_IS(W.ends == 1));
	W_DO(W.closed = true);
	assert_int_equal(step_guarded(2, CKPT_STAGE_ONLY), 0);
	assert_soon(W_IS(W.waits == 1));
	for (step = 3; step <= 5; step++) {
		int rc = step_guarded(step, CKPT_STAGE_ONLY);

		if (rc != 0 || !soon(rank_stats(&K).staged == step))
			break;
		taken++;
	}
	early = W_IS(W.ends > 1);
	W_DO(W.closed =
		     false); /* before anything is judged: the daemon waits for it when it is stopped */
	assert_int_equal(taken, want_taken);
	assert_false(early);
	assert_soon(W_IS(W.ends == 2 + taken));
	assert_soon(step_guarded(step + 1, CKPT_STAGE_ONLY) == 0);
	assert_soon(W_IS(W.ends == 3 + taken));
	for (uint64_t i = 1; i < 3 + taken && how == PASS_BEHIND; i++)
		assert_int_equal(look()->before[i], look()->seen[i - 1]);
	assert_int_equal(look()->torn + look()->failed + look()->unguarded + look()->other_before,
			 0);
	rank_close(&K, 0);
	host_stop(&H);
}

TEST(the_step_before_stays_until_the_pass_that_reads_it_has_ended)
{
	/* k - 1 is pinned by the pass of k: with two slots there is none for k + 1 */
	slots_with_a_pass(2, PASS_BEHIND, 0);
	slots_with_a_pass(3, PASS_BEHIND, 1);
	slots_with_a_pass(4, PASS_BEHIND, 2);
	/* Without the step before one more. What a pass waits for is not given up. */
	slots_with_a_pass(2, PASS_ALONE, 1);
	slots_with_a_pass(3, PASS_ALONE, 2);
}

TEST(a_step_whose_daemon_is_killed_amid_a_walk_is_walked_anew_by_the_next_one)
{
	watched(PASS_ALONE);
	host_start(&H, NULL);
	open_one(&K, "watch", "fsdp=1", .guard = CKPT_FINISH, .rows = 3000);
	for (uint64_t times = 1; times <= 2; times++) {
		uint64_t ends;

		W_DO(W.closed = true);
		assert_int_equal(step_guarded(times, times == 1 ? CKPT_STAGE_ONLY : CKPT_PERSIST),
				 0);
		assert_soon(W_IS(W.waits == 1));
		atomic_fetch_add(&H.d->stops, 1000u);
		W_DO(W.closed = false);
		host_kill(&H);
		ends = look()->ends;
		host_start(&H, NULL);
		must_reattach(&K, times);
		assert_soon(W_IS(W.ends > ends));
		assert_int_equal(look()->seen[look()->ends - 1], times);
	}
	must_wait(&K, 2, CKPT_COMMITTED);
	assert_int_equal(look()->torn + look()->unguarded, 0);
	assert_string_equal(host_steps(&H, "watch"), "2");
}

TEST(a_step_that_is_never_written_has_sums_when_the_daemon_is_idle)
{
	said_forget(&daemon_said);
	host_start(&H, NULL);
	open_one(&K, "sums", "fsdp=1", .guard = CKPT_FINISH, .rows = 3000);
	assert_int_equal(step_guarded(1, CKPT_STAGE_ONLY), 0);
	assert_int_equal(step_guarded(2, CKPT_STAGE_ONLY), 0);
	said_await(&daemon_said, "job sums step 2 has sums in memory");
	assert_int_equal(said_times(&daemon_said, "has sums in memory"), 1);
	/* Written later, with the same sums: every byte of it is verified. */
	rank_close(&K, 0);
	assert_soon(host_has(&H, "sums", 2));
	assert_string_equal(host_steps(&H, "sums"), "2");
}

UNIT(.setup = host_setup, .teardown = host_teardown);
