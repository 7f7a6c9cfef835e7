/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_declare.c - declarations that live: memory that outlives its handle, blobs that grow
 * beyond their room and get another one, and what one rank says for all. The library and the daemon
 * in one process.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <sys/mman.h>
#include <sys/uio.h>

#define LOG_ROOM 16u

static struct rank R[2];
static struct said client_said = SAID_NOTHING;

/* --- memory --- */
static bool is_mapped(void *p)
{
	unsigned char resident;

	return mincore(p, 4096, &resident) == 0;
}

/* Not what another thread has mapped there since. */
static bool still_there(const void *p)
{
	static const uint8_t sevens[] = { 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7 };
	struct iovec to = { (uint8_t[sizeof sevens]){ 0 }, sizeof sevens },
		     from = { (void *)(uintptr_t)p, sizeof sevens };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof sevens &&
	       !memcmp(to.iov_base, sevens, sizeof sevens);
}

static void *left_behind(uint32_t flags, bool with_shadow)
{
	struct plan_of_job p = plan("kept", "fsdp=1", .flags = flags, .fresh = true);
	struct seg copies = { 0 };
	void *mine;

	must_attach(&K, &p, 0);
	MUST_OF(&K, ckpt_alloc(K.c, 10000, &mine, &K.err));
	if (with_shadow) {
		must_declare(&K);
		must_seal(&K);
		rank_fill(&K, 1);
		step_to(&K, 1, 0, CKPT_STAGED);
		copies = K.c->seg[K.c->shadow];
		must_guard(&K); /* nobody copies from it any more */
		memset(copies.base, 7, 16);
	}
	memset(mine, 7, 10000);
	rank_close(&K, 0);
	assert_true(!copies.base || !still_there(copies.base));
	return mine;
}

TEST(memory_outlives_its_handle_if_that_is_wanted_and_else_not)
{
	const uint32_t keep = CKPT_KEEP_MEMORY | CKPT_REQUIRE;
	uint8_t *p;

	host_start(&H, NULL);
	for (uint32_t with_shadow = 0; with_shadow < 2; with_shadow++) {
		assert_false(still_there(left_behind(CKPT_REQUIRE, with_shadow)));
		p = left_behind(keep, with_shadow);
		assert_true(is_mapped(p));
		for (uint32_t i = 0; i < 10000; i++)
			assert_int_equal(p[i]++, 7);
		assert_int_equal(p[9999], 8);
	}
	/* Also when the daemon is no longer there. */
	host_stop(&H);
	assert_int_equal(p[0], 8);
	p[0] = 1;
}

TEST(memory_is_kept_without_a_daemon_too)
{
	uint8_t *p = left_behind(CKPT_KEEP_MEMORY, false);

	assert_true(is_mapped(p) && p[1] == 7);
	assert_false(still_there(left_behind(CKPT_USE_ENV, false)));
}

/* --- what one rank says for all --- */
static void pair_open(const char *job, bool with_log, uint64_t cap);

/* Of a step in memory. */
static bool is_no_average(const char *job, uint64_t step)
{
	const struct wire_report_step *s = NULL;

	ask_until(ask_job(&A, job) && (s = ask_step(&A, step)) && s->flags & WIRE_HELD);
	return s->flags & WIRE_NO_AVERAGE;
}

static void staged_by_both(uint64_t step, uint32_t first, uint32_t second)
{
	must_step(&R[0], step, first);
	must_step(&R[1], step, second);
	for (uint32_t r = 0; r < 2; r++)
		must_wait(&R[r], step, CKPT_STAGED);
}

TEST(no_average_takes_a_step_of_which_any_rank_says_so)
{
	host_start(&H, NULL);
	ask_open(&A, H.socket);
	pair_open("average", false, 0);
	staged_by_both(1, CKPT_STAGE_ONLY, CKPT_STAGE_ONLY);
	assert_false(is_no_average("average", 1));
	staged_by_both(2, CKPT_STAGE_ONLY | CKPT_NO_EMA, CKPT_STAGE_ONLY);
	assert_true(is_no_average("average", 2));
	staged_by_both(3, CKPT_STAGE_ONLY, CKPT_STAGE_ONLY);
	assert_false(is_no_average("average", 3));
	staged_by_both(4, CKPT_STAGE_ONLY, CKPT_STAGE_ONLY | CKPT_NO_EMA);
	assert_true(is_no_average("average", 4));
	/* The next daemon hears so too, and still does not write what is only to be staged. */
	ranks_guard(R, 2);
	ask_close(&A);
	host_kill(&H);
	host_start(&H, NULL);
	must_reattach(&R[0], 1);
	must_reattach(&R[1], 1);
	ask_open(&A, H.socket);
	ask_until(in_memory(&R[0], 4));
	assert_true(is_no_average("average", 4));
	assert_false(ask_step(&A, 4)->flags & WIRE_TO_WRITE);
	ranks_close(R, 2);
}

/* --- blobs --- */
static char journal[2][4096];
static uint64_t journal_len[2];

static void pair_seal(void)
{
	int rc = 0;

	for (uint32_t r = 0; r < 2; r++)
		MUST((rc = rank_seal(&R[r], 0)) >= 0);
	/* Whom the last answer found ready would declare anew, and wait for all the others. */
	for (uint32_t r = 0; r < 2 - (rc == 0); r++)
		must_seal(&R[r]);
}

static void pair_open(const char *job, bool with_log, uint64_t cap)
{
	struct plan_of_job p = plan(job, "fsdp=2", .log = said_line, .log_ctx = &client_said,
				    .guard = CKPT_FINISH);

	said_forget(&client_said);
	for (uint32_t r = 0; r < 2; r++) {
		must_attach(&R[r], &p, r);
		must_declare(&R[r]);
		if (with_log)
			MUST_OF(&R[r], ckpt_blob_add(R[r].c, "journal", CKPT_PER_RANK, journal[r],
						     &journal_len[r], cap, &R[r].err));
	}
	pair_seal();
}

static void journal_is(uint32_t r, uint64_t bytes)
{
	journal_len[r] = bytes;
	for (uint64_t i = 0; i < bytes; i++)
		journal[r][i] = (char)('a' + (i * 7 + r + bytes) % 26);
}

/* The blob as a later launch reads it. */
static void must_have(const char *job, uint64_t step, uint32_t r, uint64_t bytes)
{
	char got[sizeof journal[0]];
	uint64_t len;

	open_one(&K, job, "fsdp=1");
	must_restore(&K, step, 0);
	MUST_BE(ckpt_blob_read(K.c, "journal", r, got, sizeof got, &len), 0);
	MUST_BE(len, bytes);
	journal_is(r, bytes);
	MUST(!memcmp(got, journal[r], bytes));
	rank_close(&K, 0);
}

static void journals_are(uint64_t first, uint64_t second)
{
	journal_is(0, first);
	journal_is(1, second);
}

/* FINAL: it waits for the slot of a step that came to nothing. */
static void saved_by_both(uint64_t step)
{
	must_step(&R[0], step, CKPT_FINAL);
	must_step(&R[1], step, CKPT_FINAL);
	ranks_guard(R, 2);
	must_wait(&R[0], step, CKPT_COMMITTED);
}

static void must_say_why(struct rank *k, const char *what)
{
	MUST_BE(rank_why(k), -ENOENT);
	if (!strstr(k->err.msg, what))
		fail_msg("ckpt_why says: %s", k->err.msg);
}

TEST(a_blob_that_is_too_long_skips_the_step_and_the_next_one_works)
{
	struct ckpt_stats st;

	host_start(&H, NULL);
	ask_open(&A, H.socket);
	pair_open("long", true, LOG_ROOM);
	journals_are(LOG_ROOM, LOG_ROOM);
	saved_by_both(1);
	/* This rank is the first to mark the step: for the others there is nothing to copy. */
	journal_is(1, LOG_ROOM + 1);
	assert_int_equal(rank_step(&R[1], 2, CKPT_PERSIST), CKPT_SKIPPED);
	must_say_why(&R[1], "step 2: blob journal is 17 bytes long, and has space for 16: make it");
	assert_int_equal(rank_step(&R[0], 2, CKPT_PERSIST), CKPT_SKIPPED);
	must_say_why(&R[0], "a rank had no state of the step, or could not copy it: the log");
	assert_int_equal(ckpt_wait(R[0].c, 2, CKPT_STAGED, PATIENCE, &R[0].err), -ENOENT);
	/* Shorter, it is taken: the same step, and the next one. */
	journal_is(1, 3);
	saved_by_both(2);
	assert_int_equal(rank_why(&R[1]), 0);
	saved_by_both(3);
	/* The other one was first: its copy is of no use, which it hears at once. */
	journal_is(1, 4000);
	must_step(&R[0], 4, CKPT_PERSIST);
	assert_int_equal(rank_step(&R[1], 4, CKPT_PERSIST), CKPT_SKIPPED);
	must_say_why(&R[1], "step 4: blob journal is 4000 bytes long, and has space for 16");
	assert_int_equal(rank_wait(&R[0], 4, CKPT_STAGED), -ENOENT);
	assert_non_null(strstr(R[0].err.msg, "rank 1 had no state of it, or could not copy it"));
	assert_int_equal(ckpt_guard(R[1].c, NULL), 0); /* it was skipped here, and not torn */
	(void)ckpt_guard(R[0].c, NULL);
	journals_are(5, 6);
	saved_by_both(4);
	/* Nothing is waited for, though the mark is the last one. */
	journal_is(0, 17);
	assert_int_equal(rank_step(&R[0], 5, CKPT_FINAL), CKPT_SKIPPED);
	assert_int_equal(rank_step(&R[1], 5, CKPT_FINAL), CKPT_SKIPPED);
	journal_is(0, 16);
	saved_by_both(5);
	st = rank_stats(&R[1]);
	assert_int_equal(st.skipped, 3);
	assert_int_equal(st.torn, 0);
	assert_int_equal(ask_job(&A, "long")->skipped_by[WIRE_SKIP_BLOB], 3);
	assert_true(said_times(&client_said, "snapshots are skipped: step 2: blob journal is 17") ==
		    1);
	assert_int_equal(host_committed(&H, "long", NULL, 0), 5);
	ask_close(&A);
	ranks_close(R, 2);
	must_have("long", 5, 0, 16);
	must_have("long", 4, 1, 6);
	must_have("long", 2, 1, 3);
}

/* A rank whose program has no state of the step: nothing is waited for, whichever rank is first. */
TEST(a_step_that_a_rank_refuses_is_skipped_on_all_ranks_and_the_next_one_works)
{
	host_start(&H, NULL);
	ask_open(&A, H.socket);
	pair_open("refused", true, LOG_ROOM);
	saved_by_both(1);
	assert_int_equal(rank_step(&R[1], 2, CKPT_REFUSE), CKPT_SKIPPED);
	must_say_why(&R[1], "step 2: rank 1 has no state of it, so no rank saves it");
	assert_int_equal(rank_step(&R[0], 2, CKPT_FINAL), CKPT_SKIPPED);
	must_say_why(&R[0], "a rank had no state of the step");
	saved_by_both(2); /* it has one now */
	assert_int_equal(rank_why(&R[1]), 0);
	must_step(&R[0], 3, CKPT_PERSIST);
	assert_int_equal(rank_step(&R[1], 3, CKPT_REFUSE | CKPT_FINAL), CKPT_SKIPPED);
	must_say_why(&R[1], "step 3: rank 1 has no state of it");
	assert_int_equal(rank_wait(&R[0], 3, CKPT_STAGED), -ENOENT);
	assert_non_null(strstr(R[0].err.msg, "rank 1 had no state of it, or could not copy it"));
	assert_int_equal(ckpt_guard(R[1].c, NULL), 0); /* it was skipped here, and not torn */
	(void)ckpt_guard(R[0].c, NULL);
	saved_by_both(4);
	assert_int_equal(ask_job(&A, "refused")->skipped_by[WIRE_SKIP_BLOB], 2);
	ask_close(&A);
	ranks_close(R, 2);
	assert_int_equal(host_committed(&H, "refused", NULL, 0), 3);
}

static void both_resize(uint64_t first, uint64_t second)
{
	uint64_t cap[2] = { first, second };

	ranks_guard(R, 2);
	for (uint32_t r = 0; r < 2; r++) {
		MUST_OF(&R[r], ckpt_blob_resize(R[r].c, "journal", cap[r], &R[r].err));
		if (R[r].c->moved)
			must_seal(&R[r]);
	}
	assert_int_equal(atomic_load(&R[0].c->epoch), 1);
}

TEST(a_blob_grows_with_its_room)
{
	host_start(&H, NULL);
	pair_open("grows", true, LOG_ROOM);
	journals_are(1, 2);
	saved_by_both(1);
	journals_are(3000, 1);
	assert_int_equal(rank_step(&R[0], 2, CKPT_PERSIST), CKPT_SKIPPED);
	assert_int_equal(rank_step(&R[1], 2, CKPT_PERSIST), CKPT_SKIPPED);
	both_resize(3000, LOG_ROOM);
	saved_by_both(2);
	both_resize(4096, 4096);
	journals_are(4096, 4096);
	saved_by_both(3);
	both_resize(1, 2);
	assert_int_equal(rank_step(&R[0], 4, CKPT_PERSIST), CKPT_SKIPPED);
	assert_int_equal(rank_step(&R[1], 4, CKPT_PERSIST), CKPT_SKIPPED);
	journals_are(1, 0);
	saved_by_both(5);
	/* The same room is no change. */
	assert_int_equal(ckpt_blob_resize(R[0].c, "journal", 1, NULL), 0);
	assert_int_equal(rank_step(&R[0], 6, 0), 0);
	/* Another one waits for ckpt_seal. */
	assert_int_equal(ckpt_blob_resize(R[0].c, "journal", 2, NULL), 0);
	assert_int_equal(rank_step(&R[0], 7, 0), CKPT_SKIPPED);
	ranks_close(R, 2);
	must_have("grows", 1, 1, 2);
	must_have("grows", 2, 0, 3000);
	must_have("grows", 3, 0, 4096);
	must_have("grows", 3, 1, 4096);
	must_have("grows", 5, 1, 0);
}

/* The other rank seals nothing, and marks the next step as if nothing had been. */
TEST(a_room_of_one_rank_costs_no_step)
{
	struct ckpt_stats st;
	uint64_t cap[2] = { 100, 100 };

	host_start(&H, NULL);
	pair_open("alone", true, 100);
	for (uint64_t step = 1; step <= 20; step++) {
		uint32_t r = step % 2;

		if (step > 1) {
			cap[r] += 100;
			MUST_OF(&R[r], ckpt_blob_resize(R[r].c, "journal", cap[r], &R[r].err));
			must_seal(&R[r]);
		}
		journals_are(cap[0], cap[1]);
		saved_by_both(step);
	}
	for (uint32_t r = 0; r < 2; r++) {
		st = rank_stats(&R[r]);
		assert_int_equal(st.taken, 20);
		assert_int_equal(st.skipped + st.torn, 0);
		assert_int_equal(atomic_load(&R[r].c->epoch), 1);
	}
	ranks_close(R, 2);
	must_have("alone", 20, 0, cap[0]);
	must_have("alone", 19, 1, cap[1]);
	journals_are(1, 1); /* what the next test begins with */
}

/* What the daemon had staged lies otherwise than what it would be told. */
TEST(a_room_that_needs_larger_slots_has_them_all)
{
	host_start(&H, NULL);
	pair_open("larger", true, 100);
	journals_are(100, 100);
	for (uint64_t step = 1; step <= 3; step++)
		saved_by_both(step);
	MUST_OF(&R[0], ckpt_blob_resize(R[0].c, "journal", 9 * MIB, &R[0].err));
	must_seal(&R[0]);
	for (uint32_t i = 0; i < 2; i++) {
		struct stat st;

		assert_ok(fstat(R[0].c->slot[i].fd, &st));
		assert_true((uint64_t)st.st_size >= 9 * MIB);
	}
	for (uint64_t step = 4; step <= 7; step++)
		saved_by_both(step);
	/* Slots of two sizes would have made the rank declare anew. */
	assert_soon(said_times(&daemon_said, "job larger ready, epoch 1") == 1);
	ranks_close(R, 2);
	must_have("larger", 7, 0, 100);
	journals_are(1, 1);
}
TEST(a_room_that_changed_brings_no_old_slot_to_the_next_daemon)
{
	host_start(&H, NULL);
	pair_open("old", true, 100);
	journals_are(50, 60);
	saved_by_both(1);
	assert_int_equal(rank_step(&R[0], 2, CKPT_STAGE_ONLY), 0);
	assert_int_equal(rank_step(&R[1], 2, CKPT_STAGE_ONLY), 0);
	ranks_guard(R, 2);
	assert_int_equal(ckpt_wait(R[0].c, 2, CKPT_STAGED, PATIENCE, NULL), 0);
	MUST_OF(&R[0], ckpt_blob_resize(R[0].c, "journal", 400, &R[0].err));
	must_seal(&R[0]);
	host_kill(&H);
	host_start(&H, NULL);
	assert_soon(atomic_load(&R[0].c->reattached) == 1 && atomic_load(&R[1].c->reattached) == 1);
	journals_are(400, 60);
	assert_soon(atomic_load(&atomic_load(&R[0].c->link)->job->ready_epoch) == 1);
	assert_int_equal(ckpt_wait(R[0].c, 2, CKPT_STAGED, 0, NULL), -ENOENT);
	saved_by_both(3);
	ranks_close(R, 2);
	must_have("old", 3, 0, 400);
	must_have("old", 1, 1, 60);
	journals_are(1, 1);
}

/* --- of two ranks that mark a step at once --- */
#define STEPS 80u
static uint64_t drawn[2][STEPS + 1]; /* how long each blob was at each step */

static void journal_of(uint32_t r, uint64_t step, char *to)
{
	for (uint64_t i = 0; i < drawn[r][step]; i++)
		to[i] = (char)('a' + (i * 5 + r * 3 + step) % 26);
}

static void free_script(struct rank *k)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_FINAL };

	must_attach(k, k->plan, k->rank);
	must_declare(k);
	MUST_OF(k, ckpt_blob_add(k->c, "journal", CKPT_PER_RANK, journal[k->rank],
				 &journal_len[k->rank], LOG_ROOM, &k->err));
	must_seal(k);
	for (uint64_t step = 1; step <= STEPS; step++) {
		bool is_long = drawn[k->rank][step] > LOG_ROOM;
		int rc = ckpt_guard(k->c, NULL);

		MUST(rc == 0 || rc == CKPT_TORN);
		journal_of(k->rank, step, journal[k->rank]);
		journal_len[k->rank] = drawn[k->rank][step];
		rank_meet(k); /* either of them may be the first */
		rc = ckpt_snapshot(k->c, step, &m);
		/* FINAL waits for a slot, so only a blob that is too long is a reason. */
		MUST(rc == CKPT_SKIPPED || (rc == 0 && !is_long));
		if (is_long)
			MUST(rank_why(k) == -ENOENT && strstr(k->err.msg, "has space for 16"));
		rc = rank_wait(k, step, CKPT_COMMITTED);
		MUST(rc == 0 || rc == -ENOENT);
		MUST(rc < 0 || !is_long);
	}
	rank_meet(k);
	rank_close(k, 0);
}

TEST(no_blob_is_ever_cut_however_the_ranks_come)
{
	uint64_t seed = draw_seed("free"), step[STEPS];
	char want[sizeof journal[0]], got[sizeof journal[0]];
	uint32_t n, fit = 0;

	host_start(&H, NULL);
	for (uint64_t i = 1; i <= STEPS; i++) {
		for (uint32_t r = 0; r < 2; r++)
			drawn[r][i] = draw_below(&seed, LOG_ROOM + 1) +
				      (draw_below(&seed, 4) ? 0 : LOG_ROOM);
		fit += drawn[0][i] <= LOG_ROOM && drawn[1][i] <= LOG_ROOM;
	}
	team_of(plan("free", "fsdp=2"), free_script, NULL);
	n = host_committed(&H, "free", step, STEPS);
	printf("# %u steps, %u could be saved, %u were\n", STEPS, fit, n);
	assert_true(fit > 10);
	assert_int_equal(n, fit);
	open_one(&K, "free", "fsdp=1");
	for (uint32_t i = 0; i < n; i++) {
		must_restore(&K, step[i], CKPT_FROM_DISK);
		for (uint32_t r = 0; r < 2; r++) {
			uint64_t len;

			assert_int_equal(ckpt_blob_read(K.c, "journal", r, got, sizeof got, &len),
					 0);
			assert_int_equal(len, drawn[r][step[i]]);
			assert_true(len <= LOG_ROOM);
			journal_of(r, step[i], want);
			assert_memory_equal(got, want, len);
		}
	}
	rank_close(&K, 0);
}

TEST(a_room_that_cannot_be_is_refused)
{
	host_start(&H, NULL);
	pair_open("room", true, LOG_ROOM);
	assert_int_equal(ckpt_blob_resize(R[0].c, "diary", 8, &R[0].err), -EINVAL);
	assert_non_null(strstr(R[0].err.msg, "there is no blob diary"));
	assert_int_equal(ckpt_blob_resize(R[0].c, "journal", 0, &R[0].err), -EINVAL);
	assert_int_equal(ckpt_blob_resize(R[0].c, "journal", (UINT64_C(1) << 30) + 1, &R[0].err),
			 -EINVAL);
	assert_non_null(strstr(R[0].err.msg, "cap must be 1 byte to 1 GiB"));
	staged_by_both(1, 0, 0);
	ranks_close(R, 2);
}

TEST(a_blob_of_all_ranks_has_one_room)
{
	host_start(&H, NULL);
	pair_open("rooms", false, 0);
	MUST_OF(&R[1], ckpt_blob_resize(R[1].c, "cursor", 400, &R[1].err));
	MUST_OF(&R[0], ckpt_blob_resize(R[0].c, "cursor", 401, &R[0].err));
	assert_int_equal(rank_seal(&R[0], 0), CKPT_SKIPPED);
	/* The daemon has this one: so it is the other one that is refused. */
	assert_soon(atomic_load(&R[0].c->declared) == atomic_load(&R[0].c->epoch));
	assert_int_equal(rank_seal(&R[1], PATIENCE), -EINVAL);
	assert_non_null(strstr(R[1].err.msg, "blob/cursor: "));
	MUST_OF(&R[1], ckpt_blob_resize(R[1].c, "cursor", 401, &R[1].err));
	pair_seal();
	staged_by_both(1, 0, 0);
	ranks_close(R, 2);
}

/* --- the ticket of a rank that refuses --- */
TEST(who_refuses_takes_no_slot_and_the_first_one_decides_for_all)
{
	static struct shared_job job;
	struct ticket t, u;

	shared_gate_give(&job, 0);
	shared_gate_give(&job, 1);
	/* first: nobody has a slot */
	assert_int_equal(shared_ticket(&job, 1, NULL, TICKET_REFUSE, false, &t), 0);
	assert_true(t.slot == SHARED_SKIP && t.flags == TICKET_REFUSED);
	assert_int_equal(shared_ticket(&job, 1, NULL, TICKET_PERSIST | TICKET_FINAL, true, &u), 0);
	assert_true(u.slot == SHARED_SKIP && u.seq == t.seq && u.flags == TICKET_REFUSED);
	/* both slots are still free */
	assert_int_equal(shared_ticket(&job, 2, NULL, TICKET_PERSIST, false, &t), 0);
	assert_true(t.slot == 0 && t.flags == TICKET_PERSIST);
	assert_int_equal(shared_ticket(&job, 2, NULL, TICKET_REFUSE, false, &u), 0);
	assert_true(u.slot == 0 && u.seq == t.seq && u.flags == TICKET_PERSIST);
	assert_int_equal(shared_ticket(&job, 3, NULL, 0, false, &t), 0);
	assert_int_equal(t.slot, 1);
	/* without a free slot: refused all the same */
	assert_int_equal(shared_ticket(&job, 4, NULL, TICKET_REFUSE, false, &t), 0);
	assert_int_equal(t.flags, TICKET_REFUSED);
	assert_int_equal(shared_ticket(&job, 5, NULL, TICKET_PERSIST, false, &t), 0);
	assert_true(t.slot == SHARED_SKIP && t.flags == 0);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
