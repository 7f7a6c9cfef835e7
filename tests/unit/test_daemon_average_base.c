/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average_base.c - averages go on, with the same bits, after every restart: of
 * trainers, of daemons, of both; from memory and from disk; on another mesh; after a new seal; back
 * to an older step.
 */
#include "test_daemon_average_rig.h"
#include <sys/mman.h>

/* --- restarts --- */
TEST(a_launch_that_is_not_disturbed_makes_the_averages_that_are_expected)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 5 });
	chain_steps(&c, 1, 5);
	assert_both(5, &c);
}

/* Saved and restored: on which mesh, and by whom is it remembered? */
static void goes_on(const char *before, const char *after, bool forgets)
{
	struct chain c = { 0 };
	struct flow f = { .average = BOTH, .from = 1, .to = 4 };

	host_start(&H, NULL);
	run(before, &f);
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 5, .to = 8 };
	run(after, &f);
	assert_int_equal(f.got_step, 4);
	assert_int_equal(f.got_where, forgets ? 2 : 1);
	assert_says(f.got_averages, "average fast goes on from step 4");
	assert_says(f.got_averages, "average slow goes on from step 4");
	chain_steps(&c, 1, 8);
	assert_both(5,
		    &(struct chain){ .n = 5,
				     .at = { { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 }, { 5, 0 } } });
	assert_both(8, &c);
}

TEST(a_launch_goes_on_from_memory)
{
	goes_on("fsdp=2", "fsdp=2", false);
}

TEST(a_launch_goes_on_from_disk)
{
	goes_on("fsdp=2", "fsdp=2", true);
}

TEST(more_ranks_go_on_from_disk)
{
	goes_on("fsdp=2", "fsdp=3", true);
}

TEST(fewer_ranks_go_on_from_memory)
{
	goes_on("fsdp=4", "fsdp=1", false);
}

TEST(ranks_with_replicas_go_on_from_memory_and_disk)
{
	goes_on("dp=2,fsdp=2", "fsdp=3", true);
}

TEST(replicas_go_on_from_ranks_without)
{
	goes_on("fsdp=3", "dp=2,fsdp=2", false);
}

/* The slot that the ranks bring along has its seal. */
TEST(a_new_daemon_goes_on_from_slots_that_are_sealed)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = daemon_dies });
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

/* On each rank alone, behind the steps that are sealed. */
static void moves_and_dies(struct rank *k)
{
	struct mine *m = &mine_of[k->rank];
	struct ckpt_local local = { 0 };

	must_mark(k, 3, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	MUST_OF(k, ckpt_alloc(k->c, 4ul * m->n[MASTER], &local.ptr, &k->err));
	m->mem[MASTER] = local.ptr;
	MUST_OF(k, ckpt_tensor_move(k->c, m->id[MASTER], &local, 1, &k->err));
	must_seal(k);
	daemon_dies(k);
}

TEST(a_new_daemon_goes_on_from_slots_that_were_sealed_before_memory_moved)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 2, .amid = moves_and_dies });
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
	assert_int_equal(said_times(&daemon_said, "are lost, and begin anew"), 0);
}

TEST(steps_that_were_never_written_count_for_a_new_daemon)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 2, .amid = staged_and_dies });
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

/* No slot has its seal: what is on disk is gone on from, at its true distance. staged: the step
 * that is not written and is averaged anew; 0: there is none. */
static void seals_break_with(struct rank *k, uint64_t staged)
{
	rank_meet(k);
	if (k->rank == 0) {
		host_kill(&H);
	}
	rank_meet(k);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		const uint32_t state = SLOT_SEAL_OPEN;
		uint64_t at = s->bytes - SLOT_SEAL_BYTES + offsetof(struct slot_seal, state);

		if (s->bytes)
			MUST_BE(pwrite(s->fd, &state, sizeof state, (off_t)at), sizeof state);
	}
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, NULL);
	must_reattach(k, 1);
	if (staged)
		must_soon(is_sealed(k, staged));
	rank_meet(k);
	for (uint64_t s = 7; s <= 8; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

static void seals_break(struct rank *k)
{
	const struct flow *f = k->arg;

	seals_break_with(k, f->flags & CKPT_STAGE_ONLY ? f->to : 0);
}

TEST(without_a_seal_a_new_daemon_goes_on_from_disk)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = seals_break });
	chain_steps(&c, 1, 4);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
}

static void staged_and_seals_break(struct rank *k)
{
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	seals_break_with(k, 4);
}

/* The line of a launch begins with the step that it has restored, whoever wrote it. */
TEST(without_a_seal_a_new_daemon_goes_on_from_the_restored_step)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=3", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = BOTH,
				      .restore = true,
				      .want_flags = CKPT_FROM_DISK,
				      .amid = staged_and_seals_break });
	chain_steps(&c, 1, 4);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
	assert_int_equal(said_times(&daemon_said, "are lost, and begin anew"), 0);
}

TEST(a_new_daemon_that_finds_nothing_begins_anew_and_says_so)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH,
				      .from = 1,
				      .to = 2,
				      .flags = CKPT_STAGE_ONLY,
				      .amid = seals_break });
	assert_soon(said_times(&daemon_said, "are lost, and begin anew") == 1);
	/* The slots have both steps still, and they are averaged again. */
	chain_steps(&c, 1, 2);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
}

static void all_die(struct rank *k)
{
	rank_meet(k);
	if (k->rank == 0)
		host_kill(&H);
	rank_meet(k);
}

TEST(trainers_and_daemon_die_and_the_next_ones_go_on_from_disk)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = all_die });
	host_start(&H, NULL);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 6 };
	run("fsdp=3", &f);
	assert_int_equal(f.got_where, 2);
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

/* Whenever it stops, and whatever it goes on from. */
TEST(a_launch_may_stop_at_any_step)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=2", "fsdp=4" };
	struct chain c = { 0 };

	host_start(&H, NULL);
	for (uint64_t s = 1; s <= 9; s++) {
		struct flow f = { .average = BOTH, .restore = s > 1, .from = s, .to = s };

		if (s % 3 == 0)
			host_restart(&H);
		run(mesh[s % 3], &f);
		chain_add(&c, s, 0);
	}
	assert_both(9, &c);
}

/* --- going back --- */
static void goes_back_on_disk(struct rank *k)
{
	struct flow f = { .restore = true, .want = 2 };

	rank_meet(k);
	flow_restore(k, &f);
	MUST(model_holds(k, 2, 0));
	rank_meet(k);
	for (uint64_t s = 3; s <= 5; s++) {
		must_mark(k, s, 1, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

TEST(a_launch_that_goes_back_goes_on_from_the_averages_of_then)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = goes_back_on_disk });
	chain_steps(&c, 1, 2);
	chain_add(&c, 3, 1);
	chain_add(&c, 4, 1);
	chain_add(&c, 5, 1);
	assert_both(5, &c);
}

static void goes_back_in_memory(struct rank *k)
{
	struct flow f = { .restore = true };

	must_mark(k, 5, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	flow_restore(k, &f);
	MUST_BE(k->got.where, 1);
	MUST_BE(k->got.step, 5);
	rank_meet(k);
	must_mark(k, 6, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(the_newest_step_in_memory_is_gone_back_to_with_its_averages)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = goes_back_in_memory });
	chain_steps(&c, 1, 5);
	chain_add(&c, 6, 1);
	assert_both(6, &c);
}

TEST(an_older_step_is_restored_by_another_launch)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 5 });
	f = (struct flow){
		.average = BOTH, .restore = true, .want = 3, .from = 4, .to = 5, .line = 2
	};
	run("fsdp=3", &f);
	assert_int_equal(f.got_step, 3);
	chain_steps(&c, 1, 3);
	chain_add(&c, 4, 2);
	chain_add(&c, 5, 2);
	assert_both(5, &c);
}

/* --- changes --- */
TEST(an_average_that_is_new_begins_anew_and_another_one_is_left_alone)
{
	struct chain c = { 0 }, fresh = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	f = (struct flow){ .average = { { "fast", FAST }, { "new", SLOW } },
			   .restore = true,
			   .from = 4,
			   .to = 6 };
	run("fsdp=2", &f);
	assert_says(f.got_averages, "average fast goes on from step 3");
	assert_says(f.got_averages, "average new begins anew: ");
	assert_says(f.got_averages, "no average of that name");
	chain_steps(&c, 1, 6);
	chain_steps(&fresh, 4, 6);
	assert_spec(6, "fast", FAST, &c);
	assert_spec(6, "new", SLOW, &fresh);
}

TEST(a_job_that_had_no_averages_begins_them)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .from = 1, .to = 3 });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5 };
	run("fsdp=2", &f);
	assert_says(f.got_averages, "average fast begins anew");
	chain_steps(&c, 4, 5);
	assert_both(5, &c);
}

/* Values and product go on; the history says that the schedule is another one. */
static void another_schedule(bool forgets)
{
	const char *other = "constant decay=.5";
	struct chain c = { 0 }, more = { 0 };
	struct ema_spec *s = NULL;
	struct ckpt_err err;
	char canonical[EMA_SPEC_BYTES];
	struct hash128_state h;
	struct hash128 sum;
	struct expected x;
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = { { "fast", other }, { "slow", SLOW } },
			   .restore = true,
			   .from = 4,
			   .to = 5 };
	run("fsdp=2", &f);
	assert_says(f.got_averages, "with another schedule");
	chain_steps(&c, 1, 3);
	chain_steps(&more, 4, 5);
	x = expect(FAST, &c);
	MUST_OK(ema_spec_parse(other, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	hash128_begin(&h);
	hash128_add(&h, x.state.history, sizeof x.state.history);
	hash128_add(&h, canonical, strlen(canonical));
	sum = hash128_end(&h);
	memcpy(x.state.history, sum.b, sizeof x.state.history);
	x = expect_from(other, &more, false, &x);
	assert_average(5, "fast", &x);
	chain_steps(&c, 4, 5);
	assert_spec(5, "slow", SLOW, &c);
}

TEST(another_schedule_goes_on_from_memory_with_the_values)
{
	another_schedule(false);
}

TEST(another_schedule_goes_on_from_disk_with_the_values)
{
	another_schedule(true);
}

static void seals_again(struct rank *k)
{
	rank_meet(k);
	MUST_OF(k, ckpt_average(k->c, "fast", NULL, &k->err));
	MUST_OF(k, ckpt_average(k->c, "more", FAST, &k->err));
	must_seal(k);
	rank_meet(k);
	for (uint64_t s = 4; s <= 6; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

TEST(a_new_seal_goes_on_from_the_averages_of_the_one_before)
{
	struct chain c = { 0 }, fresh = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = seals_again });
	chain_steps(&c, 1, 6);
	chain_steps(&fresh, 4, 6);
	assert_spec(6, "slow", SLOW, &c);
	assert_spec(6, "more", FAST, &fresh);
}

TEST(a_new_seal_behind_a_restore_goes_on_from_the_newest_step)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 2 });
	run("fsdp=2",
	    &(struct flow){
		    .average = BOTH, .restore = true, .from = 3, .to = 3, .amid = seals_again });
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
}

TEST(a_new_seal_before_the_first_step_goes_on_from_what_was_restored)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	run("fsdp=3", &(struct flow){ .average = BOTH, .restore = true, .amid = seals_again });
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
}

/* Steps 4 and 5 are staged, and 6 for other declarations, before the walk over 4 has ended: they are
 * averaged when the launch is further already. */
static void seals_ahead_of_the_walks(struct rank *k)
{
	rank_meet(k);
	if (k->rank == 0)
		gate_set(&G, true);
	rank_meet(k);
	must_mark(k, 4, 0, CKPT_PERSIST, CKPT_STAGED);
	rank_meet(k);
	must_mark(k, 5, 0, CKPT_PERSIST, CKPT_STAGED);
	rank_meet(k);
	MUST_OF(k, ckpt_attr(k->c, "declared", "anew", &k->err));
	must_seal(k);
	rank_meet(k);
	must_mark(k, 6, 0, CKPT_PERSIST, CKPT_STAGED);
	rank_meet(k);
}

static void assert_unbroken(uint64_t to)
{
	struct chain c = { 0 };

	assert_soon(host_has(&H, JOB, to));
	chain_steps(&c, 1, to);
	assert_both(to, &c);
}

TEST(a_launch_that_has_ended_before_its_new_seal_was_averaged_has_lost_no_average)
{
	host_start_gated();
	run("fsdp=2",
	    &(struct flow){
		    .average = BOTH, .from = 1, .to = 3, .amid = seals_ahead_of_the_walks });
	gate_set(&G, false);
	assert_unbroken(6);
}

static void seals_ahead_and_again(struct rank *k)
{
	seals_ahead_of_the_walks(k);
	if (k->rank == 0) { /* the others have not sealed yet */
		MUST_OF(k, ckpt_attr(k->c, "declared", "once more", &k->err));
		MUST_BE(rank_seal(k, 0), CKPT_SKIPPED);
		gate_set(&G, false);
		MUST_OF(k, ckpt_wait(k->c, 6, CKPT_COMMITTED, PATIENCE, &k->err));
	}
	rank_meet(k);
	must_seal(k);
	rank_meet(k);
	must_mark(k, 7, 0, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_launch_that_seals_while_the_steps_before_are_averaged_loses_no_average)
{
	host_start_gated();
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = seals_ahead_and_again });
	assert_unbroken(6);
	assert_unbroken(7);
}

/* --- for evaluation --- */
static void averages_are_restored(bool forgets)
{
	struct chain c = { 0 };
	struct expected x;
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	chain_steps(&c, 1, 3);
	x = expect(FAST, &c);
	f = (struct flow){ .average = BOTH, .sink_is = &x, .restore = true, .from = 4, .to = 4 };
	run("fsdp=3", &f);
	assert_int_equal(f.got_where, forgets ? 2 : 1);
	chain_steps(&c, 4, 4);
	assert_both(4, &c);
	x = expect(FAST, &c); /* without averages of its own, too */
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .sink_is = &x, .restore = true };
	run("fsdp=2", &f);
	assert_string_equal(f.got_averages, "");
}

TEST(averages_are_restored_into_sinks_from_memory)
{
	averages_are_restored(false);
}

TEST(averages_are_restored_into_sinks_from_disk)
{
	averages_are_restored(true);
}

/* --- what is missing or damaged --- */
TEST(an_average_of_which_a_tensor_is_missing_begins_anew_whole)
{
	struct chain c = { 0 }, fresh = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = { { "fast", FAST " gain=skip" }, { "slow", SLOW } },
			    .from = 1,
			    .to = 3 });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5 };
	run("fsdp=2", &f);
	assert_says(f.got_averages, "average fast begins anew");
	assert_says(f.got_averages, "lacks ema.fast/gain");
	assert_says(f.got_averages, "average slow goes on from step 3");
	chain_steps(&fresh, 4, 5);
	chain_steps(&c, 1, 5);
	assert_spec(5, "fast", FAST, &fresh);
	assert_spec(5, "slow", SLOW, &c);
}

static void average_part_damage(uint64_t step)
{
	struct checkpoint *c = host_open(&H, JOB, step);
	int dir = host_step_fd(&H, JOB, step), fd = -1;
	uint8_t b;

	for (uint32_t i = 0; i < c->nfile && fd < 0; i++)
		if (c->file[i].kind == PART_AVERAGE) {
			fd = openat(dir, c->file[i].name, O_RDWR | O_CLOEXEC);
			MUST_BE(pread(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
			b ^= 1;
			MUST_BE(pwrite(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		}
	MUST(fd >= 0);
	(void)close(fd);
	(void)close(dir);
	checkpoint_free(c);
}

TEST(a_step_whose_averages_are_damaged_is_passed_over)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4 });
	host_stop(&H);
	average_part_damage(4);
	host_start(&H, NULL);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5, .line = 1 };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 3);
	chain_steps(&c, 1, 3);
	chain_add(&c, 4, 1);
	chain_add(&c, 5, 1);
	assert_both(5, &c);
}

static void average_parts_remove(uint64_t step)
{
	struct checkpoint *c = host_open(&H, JOB, step);
	int dir = host_step_fd(&H, JOB, step);

	for (uint32_t i = 0; i < c->nfile; i++)
		if (c->file[i].kind == PART_AVERAGE)
			MUST_BE(unlinkat(dir, c->file[i].name, 0), 0);
	(void)close(dir);
	checkpoint_free(c);
}

/* Averages that the next launch finds in memory; each rank spoils its own of step 4. */
static void averages_spoil(struct rank *k)
{
	struct chain c = { 0 };
	const struct mine *m = &mine_of[k->rank];
	struct expected x;
	uint32_t found = 0;

	chain_steps(&c, 1, 4);
	x = expect(FAST, &c);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		uint8_t *p, *at;

		if (!s->bytes)
			continue;
		p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
		MUST(p != MAP_FAILED);
		at = memmem(p, s->bytes, x.w + m->first[MASTER], COLS * sizeof(float));
		if (at)
			*at ^= 1;
		found += at != NULL;
		(void)munmap(p, s->bytes);
	}
	MUST_BE(found, 1);
}

TEST(averages_that_are_damaged_in_memory_are_taken_from_disk)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = averages_spoil });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 5, .to = 5 };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 4);
	assert_int_equal(f.got_where, 2);
	chain_steps(&c, 1, 5);
	assert_both(5, &c);
}

/* Nobody who wants no averages opens their parts. */
TEST(a_job_without_averages_restores_a_step_whose_averages_are_gone)
{
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4 });
	host_stop(&H);
	average_parts_remove(4);
	host_start(&H, NULL);
	f = (struct flow){ .restore = true };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 4);
}

/* --- other words of a spec --- */
TEST(corrections_go_on_with_what_they_correct)
{
	const char *kahan = FAST " kahan";
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "fast", kahan } }, .from = 1, .to = 3 });
	host_restart(&H);
	f = (struct flow){ .average = { { "fast", kahan } }, .restore = true, .from = 4, .to = 6 };
	run("fsdp=3", &f);
	assert_says(f.got_averages, "average fast goes on from step 3 on disk");
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", kahan } }, .from = 1, .to = 6 });
	same_tensor(6, "ema.fast", "w");
	same_tensor(6, "ema.fast.carry", "w");
	same_tensor(6, "ema.fast", "gain");
}

TEST(an_average_of_the_parameter_goes_on)
{
	const char *param = FAST " source=param";
	struct chain c = { 0 };
	struct expected x;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "fast", param } }, .from = 1, .to = 3 });
	host_restart(&H);
	run("fsdp=1",
	    &(struct flow){
		    .average = { { "fast", param } }, .restore = true, .from = 4, .to = 6 });
	chain_steps(&c, 1, 6);
	x = expect_from(param, &c, true, NULL);
	assert_average(6, "fast", &x);
}

/* --- parts of a restore --- */
static void takes_some(struct rank *k)
{
	struct flow f = { .restore = true, .want = 2, .only = "optim" };

	rank_meet(k);
	flow_restore(k, &f); /* the master is what is averaged */
	MUST(k->rank || strstr(f.got_averages, "average fast goes on from step 2"));
	rank_meet(k);
	must_mark(k, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_restore_of_weights_alone_takes_their_averages)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = takes_some });
	chain_steps(&c, 1, 2);
	chain_add(&c, 3, 1);
	assert_both(3, &c);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
