/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_drift.c - replicas that have drifted apart (daemon/drift.h): one bit of one replica
 * is flipped, and the tensor, the steps and the ranks are named within 128 steps; of healthy jobs
 * on all kinds of meshes nothing is said. CKPT_TEST_LOG=1 shows the logs.
 */
#include "tests/unit/test_daemon_drift_rig.h"
#include "ckpt/client/handle.h"

TEST(of_two_replicas_it_is_said_that_they_differ)
{
	found_after("dp=2", 1, "large", "ranks 0 | 1");
}

TEST(of_four_the_minority_is_named)
{
	found_after("dp=4", 2, "norm", "minority 2, against 0, 1, 3");
}

TEST(replicas_of_a_shard_are_told_from_other_shards)
{
	/* ranks 0, 2, 4, 6: dp 0 and 1 of fsdp 0 and 1; tp alternates */
	found_after("dp=2,fsdp=2,tp=2", 6, "cut", "ranks 2 | 6");
}

TEST(blocks_of_a_large_tensor_are_told_apart_in_every_shard)
{
	found_after("dp=2,fsdp=2,tp=2", 5, "wide", "ranks 1 | 5");
}

TEST(columns_with_gaps_and_boxes_of_three_dimensions_are_compared)
{
	found_after("dp=3,tp=2", 3, "columns", "minority 3, against 1, 5");
}

TEST(who_saves_the_elements_is_compared_like_the_others)
{
	found_after("dp=3", 0, "deep", "minority 0, against 1, 2");
}

TEST(what_never_changes_is_compared_too)
{
	/* a const tensor: the daemon may notice the change by itself as well */
	found_after("dp=3", 2, "scalar", "minority 2, against 0, 1");
	job_close(&J);
	J.world = 0;
}

/* --- healthy --- */
TEST(of_a_healthy_job_nothing_is_said_whatever_its_mesh)
{
	says_nothing("fsdp=4");
	says_nothing("dp=2,fsdp=2");
	says_nothing("dp=2,tp=2");
}

/* --- when --- */
TEST(what_differs_from_the_first_step_on_is_said_so)
{
	job_open(&J, "dp=2", 0);
	flip(&J, 1, "norm", 3);
	job_steps(&J, ALL + 2);
	assert_soon(findings() == 1);
	assert_non_null(strstr(finding(),
			       "model/norm: ranks 0 | 1; unequal when first compared, in "
			       "step "));
}

TEST(what_is_equal_again_is_forgotten_and_said)
{
	struct asker a = { .sock = -1 };
	const struct wire_report_job *j;

	job_open(&J, "dp=2", 0);
	job_steps(&J, ALL + 2);
	flip(&J, 1, "norm", 3);
	job_steps(&J, ALL + 2);
	assert_soon(findings() == 1);
	ask_open(&a, H.socket);
	j = ask_job(&a, JOB);
	assert_true(strncmp(j->drift, "model/norm: ranks 0 | 1; last equal in step ", 44) == 0);
	flip(&J, 1, "norm", 3);
	job_steps(&J, ALL + 2);
	assert_soon(said_times(&daemon_said, "equal again in step ") == 1);
	ask_until((j = ask_job(&a, JOB))->drift[0] == 0);
	ask_close(&a);
	assert_int_equal(findings(), 1);
}

/* Its blocks come in different turns. */
TEST(a_tensor_is_equal_again_when_all_of_it_is)
{
	job_open(&J, "dp=2", 0);
	flip(&J, 1, "large", 3);
	flip(&J, 1, "large", 700000);
	job_steps(&J, ALL + 2);
	assert_soon(findings() == 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(said_times(&daemon_said, "equal again in step "), 0);
		flip(&J, 1, "large", i ? 3 : 700000);
		job_steps(&J, ALL + 2);
		assert_int_equal(findings(), 1);
	}
	assert_soon(said_times(&daemon_said, "equal again in step ") == 1);
	/* and in the other order */
	flip(&J, 1, "large", 3);
	flip(&J, 1, "large", 700000);
	job_steps(&J, ALL + 2);
	assert_soon(findings() == 2);
	flip(&J, 1, "large", 3);
	job_steps(&J, ALL + 2);
	assert_soon(said_times(&daemon_said, "equal again in step ") == 1);
	assert_int_equal(findings(), 2);
}

TEST(steps_that_are_committed_meanwhile_say_so)
{
	struct checkpoint *k;
	bool found = false;

	job_open(&J, "dp=2", 0);
	job_mark(&J, CKPT_PERSIST);
	job_guard(&J);
	for (uint32_t r = 0; r < 2; r++)
		MUST_OF(&J.k[r], ckpt_wait(J.k[r].c, 1, CKPT_COMMITTED, PATIENCE, &J.k[r].err));
	flip(&J, 0, "norm", 3);
	job_steps(&J, ALL + 2);
	assert_soon(findings() == 1);
	job_mark(&J, CKPT_PERSIST);
	job_guard(&J);
	for (uint32_t r = 0; r < 2; r++)
		MUST_OF(&J.k[r],
			ckpt_wait(J.k[r].c, J.step, CKPT_COMMITTED, PATIENCE, &J.k[r].err));
	k = host_open(&H, JOB, J.step);
	for (uint32_t i = 0; i < k->nattr; i++)
		found |= !strcmp(k->attr[i].key, DRIFT_ATTR) &&
			 !strncmp(k->attr[i].value, "model/norm: ranks 0 | 1; ", 25);
	assert_true(found);
	checkpoint_free(k);
	k = host_open(&H, JOB, 1);
	assert_int_equal(k->nattr, 0);
	checkpoint_free(k);
}

/* Every replica of rank 1 becomes another one, or what it was. */
static void scribble(struct job *j)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		for (uint64_t b = 0; b < j->k[1].bytes[i] && specs[i].cls != CKPT_CONST; b++)
			j->k[1].at[i][b] ^= 1;
}

static void mark_by(struct one *k, uint64_t step)
{
	const struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_STAGE_ONLY };
	int rc;

	do
		rc = ckpt_snapshot(k->c, step, &mark);
	while (rc == CKPT_SKIPPED && usleep(1000) == 0);
	MUST_BE(rc, 0);
}

/* Of a step that rank 1 does not guard nobody knows whether its memory was held still while it was
 * summed. Here the replicas differ in that step alone: whoever compares it finds them, for a tensor
 * of 22 blocks has one in these turns. */
/* The gate gives the lowest slot that is free: two of them are enough here. */
TEST(slots_that_are_never_used_keep_no_turn_from_the_others)
{
	bool had[DRIFT_TURNS + 1] = { false };
	uint32_t n = 0;

	slots = WIRE_SLOTS_MAX;
	job_open(&J, "dp=2", FRESH);
	for (uint32_t i = 0; i < 2 * ALL; i++) {
		const struct link *l = J.k[0].c->link;
		uint32_t turn;

		job_steps(&J, 1);
		turn = shared_replicas_turn(l->job, shared_snap_newest(l->rank)->rec.slot);
		n += turn && !had[turn];
		had[turn] = true;
	}
	slots = 0;
	assert_int_equal(n, DRIFT_TURNS);
}

TEST(a_step_that_was_not_guarded_is_not_compared)
{
	for (uint32_t before = 0; before < 12; before += 4) {
		uint64_t copied;

		job_open(&J, "dp=2", FRESH);
		job_steps(&J, before);
		scribble(&J);
		job_mark(&J, CKPT_STAGE_ONLY);
		/* trusted this once, because guards have followed so far */
		assert_soon(stats_of(&J.k[0]).staged == before + 1);
		scribble(&J);
		MUST_BE(ckpt_guard(J.k[0].c, NULL), 0);
		copied = stats_of(&J.k[0]).copy_bytes;
		mark_by(&J.k[0], ++J.step);
		assert_soon(stats_of(&J.k[0]).copy_bytes > copied); /* the daemon has looked */
		mark_by(&J.k[1], J.step);
		for (uint32_t i = 0; i < 3; i++) {
			job_guard(&J);
			job_mark(&J, CKPT_STAGE_ONLY);
		}
		job_guard(&J);
		MUST_OF(&J.k[0], ckpt_wait(J.k[0].c, J.step, CKPT_STAGED, PATIENCE, &J.k[0].err));
		assert_int_equal(findings(), 0);
		assert_int_equal(stats_of(&J.k[1]).unguarded, 1);
		job_close(&J);
		J.world = 0;
	}
}

UNIT(.setup = setup, .teardown = teardown);
