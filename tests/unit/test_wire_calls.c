/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_calls.c - the functions of shared.h one at a time: which ticket a rank gets, which ends
 * of a copy exclude which, what is read whole or not at all while somebody writes, and how numbers
 * wrap. What holds under every schedule of all of them: test_wire_shared.c.
 */
#include "test_wire_actors.h"

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
		uint32_t need, devices, done;
		bool finish;
		enum snap_state is;
	} row[] = {
		{ NEED_DAEMON, 0, 0, true, SNAP_COPYING },
		{ NEED_DAEMON, 0, 0, false, SNAP_TORN },
		{ NEED_CLIENT, 0, 7, true, SNAP_TORN },
		{ NEED_CLIENT | NEED_ORDERED, 4, 6, true, SNAP_TORN },
		{ NEED_CLIENT | NEED_ORDERED, 4, 7, false, SNAP_COPIED },
		{ NEED_CLIENT | NEED_ORDERED, 4, 8, true, SNAP_COPIED },
		{ NEED_CLIENT | NEED_ORDERED, 4, 7 + (1u << 31), true, SNAP_TORN },
		{ NEED_CLIENT | NEED_ORDERED, 5, 7, true, SNAP_TORN }, /* device 0 has not */
		{ NEED_CLIENT | NEED_ORDERED, 0, 7, true, SNAP_TORN }, /* it says of no device */
		{ NEED_DAEMON | NEED_CLIENT, 4, 7, true, SNAP_TORN },
		{ NEED_DAEMON | NEED_CLIENT | NEED_ORDERED, 4, 7, true, SNAP_COPYING },
		{ NEED_DAEMON | NEED_CLIENT | NEED_ORDERED, 4, 7, false, SNAP_TORN },
	};
	static const uint8_t slot[8];

	for (size_t i = 0; i < ARRAY_LEN(row); i++) {
		struct shared_rank *r = rank_new();
		const struct shared_record rec = { .step = 1,
						   .target = 7,
						   .devices = row[i].devices };
		struct shared_snap *s = shared_snap_next(r);

		shared_snap_write(s, &rec);
		shared_snap_publish(r, s, SNAP_COPYING, row[i].need & ~(uint32_t)NEED_ORDERED);
		if (row[i].need & NEED_ORDERED)
			assert_true(shared_snap_order(r, s, 1));
		atomic_store(&r->done[2], row[i].done);
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

/* The library's own copies go on when the daemon is gone. A guard may leave a copy to the device:
 * until that copy ends, no mark takes its record. */
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
	/* A rank that would have waited skips the step, too, once another one has skipped it. */
	assert_int_equal(shared_ticket(j, 4, NULL, TICKET_FINAL, true, &t), 0);
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

UNIT();
