/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_slots.c - how many slots a launch has whose ranks leave that to ckptd (slots 0): two,
 * or with averages a third where there is memory for it; decided for all ranks alike, and said. The
 * library and the daemon in one process; nothing is written.
 */
#include "ckpt/client/handle.h"
#include "daemon/average.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"

static _Atomic uint64_t there; /* that the host can give; 0: as the kernel says */

static uint64_t available(void)
{
	uint64_t n = atomic_load(&there);

	return n ? n : UINT64_MAX;
}

static void start(void)
{
	H.opts.available = available;
	atomic_store(&there, 0);
	host_start(&H, NULL);
}

/* Attached, with an average; not sealed. */
static void open_averaged(struct rank *k, const struct plan_of_job *p, uint32_t rank)
{
	must_attach(k, p, rank);
	must_declare(k);
	MUST_OF(k, ckpt_average(k->c, "fast", "constant decay=.9", &k->err));
}

/* Staged and guarded, as soon as a slot is free: one may be held by the step's average. */
static void take(struct rank *k, uint64_t step, uint32_t flags)
{
	must_soon(rank_step(k, step, flags) == 0);
	must_wait(k, step, CKPT_STAGED);
	must_guard(k);
}

/* How many launches have become ready with so many slots in their first epoch. */
static uint32_t ready_with(uint32_t slots)
{
	char text[64];

	snprintf(text, sizeof text, "epoch 1, %u slots of", slots);
	return said_times(&daemon_said, text);
}

TEST(with_averages_there_are_three_slots_and_without_two)
{
	struct plan_of_job p = plan("plain", "fsdp=1"), q = plan("averaged", "fsdp=1"),
			   r = plan("asked", "fsdp=1", .slots = 2);

	start();
	rank_open(&K, &p, 0);
	assert_soon(ready_with(2) == 1);
	rank_close(&K, 0);
	open_averaged(&K, &q, 0);
	must_seal(&K);
	assert_soon(ready_with(3) == 1);
	assert_int_equal(said_times(&daemon_said, "every second step is averaged"), 0);
	assert_soon(said_times(&daemon_said, "averages (1) have ") == 1);
	rank_close(&K, 0);
	open_averaged(&K, &r, 0);
	must_seal(&K);
	assert_soon(ready_with(2) == 2);
	assert_soon(said_times(&daemon_said, "every second step is averaged") == 1);
	rank_close(&K, 0);
}

static uint64_t slot_bytes(const char *job)
{
	struct plan_of_job p = plan(job, "fsdp=1");
	uint64_t bytes;

	open_averaged(&K, &p, 0);
	must_seal(&K);
	bytes = K.c->slot[0].bytes;
	assert_int_equal(K.c->slot[2].bytes, bytes);
	rank_close(&K, 0);
	return bytes;
}

TEST(a_third_slot_that_the_host_has_no_memory_for_is_left_out)
{
	struct plan_of_job p = plan("short", "fsdp=1");
	uint64_t bytes;

	start();
	bytes = slot_bytes("how-large");
	atomic_store(&there, bytes + 64 * MIB - 1);
	open_averaged(&K, &p, 0);
	must_seal(&K);
	assert_soon(ready_with(2) == 1);
	assert_int_equal(
		said_times(&daemon_said, "two slots instead of three: a third one of each"), 1);
	assert_soon(said_times(&daemon_said, "every second step is averaged") == 1);
	/* It trains in the two, whatever the library has mapped. */
	for (uint64_t step = 1; step < 6; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	rank_close(&K, 0);
	atomic_store(&there, bytes + 64 * MIB);
	(void)slot_bytes("enough");
	assert_soon(ready_with(3) == 2);
}

struct small {
	uint64_t max, slot; /* of rank 0; slot: how large its slots are */
};

static void one_is_small_script(struct rank *k)
{
	struct plan_of_job p = *k->plan;
	struct small *x = k->arg;

	p.memory_max = k->rank ? 0 : x->max;
	open_averaged(k, &p, k->rank);
	must_seal(k);
	rank_meet(k);
	if (k->rank == 0)
		x->slot = k->c->slot[0].bytes;
	for (uint64_t step = 1; step < 4; step++)
		take(k, step, CKPT_STAGE_ONLY);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(memory_max_of_one_rank_decides_for_all)
{
	struct small x = { 0, 0 };

	start();
	team_of(plan("any", "dp=2"), one_is_small_script, &x);
	assert_soon(ready_with(3) == 1);
	x.max = 3 * x.slot - 1;
	team_of(plan("two", "dp=2"), one_is_small_script, &x);
	assert_soon(said_times(&daemon_said, "memory_max of rank 0 allows no third one") == 1);
	assert_soon(ready_with(2) == 1);
	x.max = 3 * x.slot;
	team_of(plan("three", "dp=2"), one_is_small_script, &x);
	assert_soon(ready_with(3) == 2);
}

TEST(averages_count_against_memory_max)
{
	struct plan_of_job p = plan("max", "fsdp=1"), plain = plan("plain", "fsdp=1");
	uint64_t bytes;

	start();
	bytes = slot_bytes("how-large");
	p.memory_max = plain.memory_max = 2 * bytes - 1;
	rank_open(&K, &plain, 0); /* without averages it fits */
	rank_close(&K, 0);
	open_averaged(&K, &p, 0);
	assert_int_equal(rank_seal(&K, PATIENCE), -ENOMEM);
	assert_non_null(strstr(K.err.msg, "2 slots of rank 0 need"));
	assert_non_null(strstr(K.err.msg, "of them for averages"));
	rank_close(&K, 0);
}

TEST(each_epoch_has_the_slots_that_its_averages_want)
{
	struct plan_of_job p = plan("epochs", "fsdp=1");

	start();
	open_averaged(&K, &p, 0);
	must_seal(&K);
	for (uint64_t step = 1; step < 4; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	MUST_OF(&K, ckpt_average(K.c, "fast", NULL, &K.err));
	must_seal(&K);
	assert_soon(said_times(&daemon_said, "epoch 2, 2 slots of") == 1);
	for (uint64_t step = 4; step < 8; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	MUST_OF(&K, ckpt_average(K.c, "slow", "uniform", &K.err));
	must_seal(&K);
	assert_soon(said_times(&daemon_said, "epoch 3, 3 slots of") == 1);
	for (uint64_t step = 8; step < 12; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	rank_close(&K, 0);
}

static void refused_script(struct rank *k)
{
	must_attach(k, k->plan, k->rank);
	must_declare(k);
	MUST_OF(k,
		ckpt_average(k->c, "a", "constant decay=.9 no.such=copy twice=average", &k->err));
	MUST_OF(k, ckpt_average(k->c, "b", "uniform *=skip", &k->err));
	MUST_BE(rank_seal(k, PATIENCE), -EINVAL);
	MUST(strstr(k->err.msg, "average a: ") && strstr(k->err.msg, "no.such") &&
	     strstr(k->err.msg, "model/twice (C64)") &&
	     strstr(k->err.msg, "average b: no tensor of any rank"));
	rank_meet(k);
	MUST_OF(k, ckpt_average(k->c, "b", NULL, &k->err));
	MUST_OF(k, ckpt_average(k->c, "a", NULL, &k->err));
	MUST_OF(k, ckpt_average(k->c, "a", "constant decay=.5", &k->err));
	rank_meet(k);
	must_seal(k);
	rank_meet(k);
	take(k, 1, CKPT_STAGE_ONLY);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(what_is_wrong_with_averages_is_told_to_all_ranks_alike)
{
	start();
	team_of(plan("refused", "fsdp=3"), refused_script, NULL);
}

TEST(another_daemon_takes_over_a_step_in_the_third_slot_though_it_would_not_begin_one)
{
	struct plan_of_job p = plan("adopted", "fsdp=1", .guard = CKPT_FINISH);
	pthread_t opens;

	H.opts.available = available;
	host_start_gated();
	open_averaged(&K, &p, 0);
	must_seal(&K);
	gate_set(&G, true);
	/* Two wait for the disk. */
	take(&K, 1, CKPT_PERSIST);
	take(&K, 2, CKPT_PERSIST);
	take(&K, 3, CKPT_STAGE_ONLY);
	opens = gate_open_soon(&G);
	host_kill(&H);
	pthread_join(opens, NULL);
	atomic_store(&there, 1);
	host_start(&H, NULL);
	must_reattach(&K, 1);
	assert_soon(in_memory(&K, 3));
	assert_soon(ready_with(3) == 2); /* the first daemon, and this one */
	rank_close(&K, 0);
}

/* Each step is marked when the one before it is committed: writing takes all of the time. */
static void write_slowly(struct rank *k, uint64_t from, uint64_t to)
{
	for (uint64_t step = from; step <= to; step++) {
		must_soon(rank_step(k, step, 0) == 0);
		must_wait(k, step, CKPT_COMMITTED);
		must_guard(k);
	}
}

#define GROWN "a third slot, for writing takes more than"

TEST(a_third_slot_comes_as_soon_as_writing_is_slow)
{
	struct plan_of_job p = plan("slow", "fsdp=1");

	H.opts.available = available;
	atomic_store(&there, 0);
	host_start_gated();
	rank_open(&K, &p, 0);
	assert_soon(ready_with(2) == 1);
	write_slowly(&K, 1, 6);
	assert_soon(said_times(&daemon_said, GROWN) == 1);
	/* one is written, one waits, and the next mark finds the third one, again and again */
	gate_set(&G, true);
	for (uint64_t step = 7; step <= 12; step++) {
		must_step(&K, step, 0);
		must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
		if (step == 7)
			gate_await(&G);
	}
	gate_set(&G, false);
	must_wait(&K, 12, CKPT_COMMITTED);
	/* a daemon that comes after it takes over what lies in the third one */
	host_restart(&H);
	must_reattach(&K, 1);
	write_slowly(&K, 13, 14);
	rank_close(&K, 0);
	/* and so has the next launch of the job, if the daemon knows */
	rank_open(&K, &p, 0);
	assert_int_equal(rank_stats(&K).failed, 0);
	rank_close(&K, 0);
}

TEST(no_third_slot_comes_where_there_is_no_memory_or_slots_are_given)
{
	struct plan_of_job p = plan("short", "fsdp=1"), q = plan("given", "fsdp=1", .slots = 2);

	start();
	atomic_store(&there, 64 * MIB);
	rank_open(&K, &p, 0);
	write_slowly(&K, 1, 6);
	said_await(&daemon_said, "writing is slow, and there is no third slot");
	write_slowly(&K, 7, 9);
	rank_close(&K, 0);
	atomic_store(&there, 0);
	rank_open(&K, &q, 0);
	write_slowly(&K, 1, 6);
	rank_close(&K, 0);
	assert_int_equal(said_times(&daemon_said, GROWN), 0);
}

/* Pages of it that are in memory. */
static int64_t third_blocks(const struct rank *k)
{
	struct stat st;

	assert_int_equal(fstat(k->c->slot[2].fd, &st), 0);
	return st.st_blocks;
}

TEST(a_third_slot_that_nobody_has_yet_takes_no_memory)
{
	struct plan_of_job p = plan("later", "fsdp=1", .check = 1);

	start();
	atomic_store(&there, 64 * MIB);
	rank_open(&K, &p, 0);
	for (uint64_t step = 1; step <= 40; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	assert_int_equal(third_blocks(&K), 0);
	write_slowly(&K, 41, 46); /* it is refused */
	said_await(&daemon_said, "writing is slow, and there is no third slot");
	for (uint64_t step = 47; step <= 80; step++)
		take(&K, step, CKPT_STAGE_ONLY);
	assert_int_equal(third_blocks(&K), 0);
	rank_close(&K, 0);
}

static void grown_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 8; step++) {
		must_soon(rank_step(k, step, 0) == 0);
		must_wait(k, step, CKPT_COMMITTED);
		must_guard(k);
		rank_meet(k);
	}
	said_await(&daemon_said, GROWN); /* while its ranks are there */
}

TEST(all_ranks_get_it_or_none)
{
	start();
	launch_of(plan("two", "fsdp=2"), grown_script, NULL);
	assert_soon(said_times(&daemon_said, GROWN) == 1);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
