/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_copiers.c - what the daemon does about a rank that has a copier of its own. The rank
 * is made by hand (tests/lib/peer.h), so that its copier ends, tears, or does neither, at the very
 * moment that a test wants; schedules of both are test_wire_shared.c's.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/peer.h"

static struct peer P;

struct marked {
	struct shared_snap *snap;
	struct ticket t;
	uint64_t seq;
};

static void start(void)
{
	host_start(&H, NULL);
	peer_open(&P, "copiers");
	shared_update(P.rank, false); /* it is known to guard */
	memset(P.segment, 7, PEER_BYTES);
	memset(P.segment + 200000, 0, 8);
}

static void stop(void)
{
	peer_close(&P);
	host_stop(&H);
}

/* As ckpt_snapshot does it; without the bell. */
static struct marked mark(uint64_t step, uint32_t need, uint32_t rev)
{
	struct shared_record rec = { .step = step, .mark_ns = now_ns(), .epoch = 1, .rev = rev };
	struct marked m;

	shared_stable(P.rank);
	MUST(shared_ticket(P.job, step, NULL, TICKET_PERSIST, false, &m.t) == 0);
	MUST(m.t.slot < 2);
	rec.slot = m.t.slot;
	rec.flags = m.t.flags;
	rec.ticket_seq = m.t.seq;
	m.snap = shared_snap_next(P.rank);
	m.seq = shared_snap_seq(P.rank);
	shared_snap_write(m.snap, &rec);
	if (need & NEED_CLIENT) {
		shared_copying_set(P.rank, m.seq, m.t.slot);
		MUST(!shared_ticket_over(P.job, m.t));
	}
	shared_snap_publish(P.rank, m.snap, SNAP_COPYING, need);
	return m;
}

static enum copy_end own_copy_ends(const struct marked *m)
{
	uint64_t at;

	return shared_copy_end(P.rank, m->snap, m->seq, NEED_CLIENT, P.slot[m->t.slot],
			       P.slot_bytes, &at);
}

static enum outcome_state outcome(uint64_t step)
{
	struct shared_outcome o;

	return shared_outcome_get(P.job, step, &o) ? (enum outcome_state)o.state : OUTCOME_NONE;
}

static bool slot_free(uint32_t slot)
{
	return atomic_load(&P.job->gate) >> (4 + slot) & 1;
}

/* It has had time to do what it must not do. */
static void daemon_looks(void)
{
	for (int i = 0; i < 10; i++) {
		peer_ring(&P);
		usleep(10000);
	}
}

TEST(a_step_is_staged_when_both_copiers_have_ended)
{
	struct marked m;

	start();
	m = mark(1, NEED_DAEMON | NEED_CLIENT, 0);
	peer_ring(&P);
	ask_until(shared_snap_need(m.snap, m.seq) == NEED_CLIENT);
	daemon_looks();
	assert_int_equal(outcome(1), OUTCOME_COPYING);
	assert_int_equal(own_copy_ends(&m), COPY_END_COPIED);
	peer_ring(&P);
	ask_until(outcome(1) >= OUTCOME_STAGED);
	shared_update(P.rank, false);
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_COMMITTED);
	assert_true(atomic_load(&P.rank->copy_bytes) > 0);
	stop();
}

/* Nothing is left to the daemon but to look. */
TEST(a_step_that_its_rank_copies_alone_is_committed)
{
	uint64_t before;

	start();
	for (uint64_t step = 1; step <= 6; step++) {
		struct marked m = mark(step, NEED_CLIENT, 0);

		before = atomic_load(&P.rank->copy_bytes);
		if (step % 2) { /* or it is copied before the daemon has looked at all */
			peer_ring(&P);
			ask_until(outcome(step) == OUTCOME_COPYING);
		}
		memset(P.slot[m.t.slot], 0, P.slot_bytes);
		assert_int_equal(own_copy_ends(&m), COPY_END_COPIED);
		shared_update(P.rank, false);
		peer_ring(&P);
		ask_until(outcome(step) == OUTCOME_COMMITTED);
		assert_true(atomic_load(&P.rank->copy_bytes) == before);
	}
	stop();
}

TEST(a_rank_whose_own_copy_fails_has_a_torn_step_and_the_next_one_works)
{
	struct marked m;

	start();
	for (uint64_t step = 1; step <= 5; step++) {
		m = mark(step, NEED_CLIENT | (step % 2 ? NEED_DAEMON : 0), 0);
		peer_ring(&P);
		shared_snap_drop(P.rank, m.snap, m.seq);
		shared_copying_clear(P.rank, m.seq);
		shared_update(P.rank, false);
		peer_ring(&P);
		ask_until(outcome(step) == OUTCOME_TORN && slot_free(m.t.slot));
	}
	m = mark(6, NEED_CLIENT, 0);
	assert_int_equal(own_copy_ends(&m), COPY_END_COPIED);
	shared_update(P.rank, false);
	peer_ring(&P);
	ask_until(outcome(6) == OUTCOME_COMMITTED);
	stop();
}

TEST(a_slot_is_not_given_while_a_copier_of_its_rank_writes_to_it)
{
	struct marked m;
	struct ticket again;

	start();
	m = mark(1, NEED_CLIENT, 0);
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_COPYING);
	assert_true(shared_tear(P.rank));
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_TORN);
	daemon_looks();
	assert_false(slot_free(m.t.slot));
	/* a rank that comes late to that ticket would be too late */
	assert_true(shared_ticket_over(P.job, m.t));
	shared_copying_clear(P.rank, m.seq);
	peer_ring(&P);
	ask_until(slot_free(m.t.slot));
	assert_int_equal(shared_ticket(P.job, 2, NULL, 0, false, &again), 0);
	assert_int_equal(again.slot, m.t.slot);
	assert_false(shared_ticket_over(P.job, again));
	stop();
}

/* The kernel ends sockets before the last thread, and a device, have stopped. */
TEST(a_process_whose_socket_has_ended_may_still_write)
{
	struct marked m;
	uint8_t byte;

	start();
	m = mark(1, NEED_CLIENT, 0);
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_COPYING);
	MUST(shutdown(P.a.sock, SHUT_RDWR) == 0);
	ask_until(recv(P.a.sock, &byte, 1, MSG_DONTWAIT) == 0);
	assert_true(shared_tear(P.rank));
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_TORN);
	for (int i = 0; i < 150; i++) {
		peer_ring(&P);
		assert_false(slot_free(m.t.slot));
		usleep(10000);
	}
	stop();
}

/* The declaration of before once more, as ckpt_tensor_move has it sent. */
static void declare_again(uint32_t rev)
{
	struct wire_declare d = { .epoch = 1, .rev = rev };
	struct wire_sealed sealed;
	struct ckpt_err err = { 0 };
	int fd, got[WIRE_FDS_MAX];
	void *bytes;

	peer_declaration(&bytes, &d.bytes);
	MUST_OK(wire_memfd_of("decl", bytes, d.bytes, &fd, &err), &err);
	free(bytes);
	MUST_BE(ask_fd(&P.a, &d, WIRE_DECLARE, sizeof d, fd, &sealed, sizeof sealed, got),
		WIRE_SEALED);
	(void)close(fd);
	assert_int_equal(sealed.rev, rev);
	for (uint32_t i = 0; i < 2 + !!sealed.nrow; i++)
		(void)close(got[i]);
}

TEST(a_snapshot_is_copied_by_the_rows_of_its_own_declaration)
{
	struct marked m;

	start();
	m = mark(1, NEED_DAEMON, 1); /* of a declaration that the daemon does not have */
	peer_ring(&P);
	ask_until(outcome(1) == OUTCOME_TORN);
	assert_int_equal(shared_snap_state(m.snap, NULL), SNAP_TORN);
	shared_update(P.rank, false);
	m = mark(2, NEED_DAEMON, 0);
	declare_again(1); /* no bell: the daemon looks before it takes this one */
	ask_until(shared_snap_state(m.snap, NULL) != SNAP_COPYING);
	assert_int_equal(shared_snap_state(m.snap, NULL), SNAP_COPIED);
	shared_update(P.rank, false);
	peer_ring(&P);
	ask_until(outcome(2) == OUTCOME_COMMITTED);
	ask_until(atomic_load(&P.job->ready_epoch) == 1);
	m = mark(3, NEED_DAEMON, 0); /* of the one before */
	peer_ring(&P);
	ask_until(outcome(3) == OUTCOME_TORN);
	stop();
}

UNIT(.setup = host_setup, .teardown = host_teardown);
