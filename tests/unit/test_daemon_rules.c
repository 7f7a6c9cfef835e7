/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_rules.c - the rules of daemon/snap.c in one scenario of two ranks, which names the
 * rule that was not kept. Each is a mistake of ckpt/base/mutants.h, and is then missed here.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <sched.h>

static struct rank two[2];

static int wait_staged(uint32_t r, uint64_t step, uint64_t ns)
{
	return ckpt_wait(two[r].c, step, CKPT_STAGED, ns, &two[r].err);
}

/* Both ranks mark a step, waiting for a slot if need be; false when there is none for seconds. */
static bool both_mark(uint64_t *step, uint32_t flags)
{
	for (uint64_t until = now_ns() + 10 * SEC; now_ns() < until; sched_yield()) {
		int a = rank_step(&two[0], ++*step, flags), b = rank_step(&two[1], *step, flags);

		if (a == 0 && b == 0)
			return true;
	}
	return false;
}

static void both_guard(void)
{
	(void)ckpt_guard(two[0].c, NULL);
	(void)ckpt_guard(two[1].c, NULL);
}

static uint64_t copied(uint32_t r)
{
	return rank_stats(&two[r]).copy_bytes;
}

/* What the daemon does at the end of a copy it has done when it hears the next one who asks: what
 * it has copied it counts first. */
static bool has_ended(bool counted)
{
	if (counted)
		(void)ask_status(&A);
	return counted;
}

static bool on_disk_within(uint64_t step, uint64_t ns)
{
	for (uint64_t until = now_ns() + ns; now_ns() < until; sched_yield())
		if (host_has(&H, "rules", step))
			return true;
	return false;
}

static const char *scenario(void)
{
	const struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_STAGE_ONLY };
	uint64_t step = 0, held, before, until;
	bool torn = false;

	step++; /* with no guard before it, either */
	for (uint32_t r = 0; r < 2; r++) {
		rank_fill(&two[r], step);
		if (ckpt_snapshot(two[r].c, step, &m) != 0)
			return "the first mark was not taken";
	}
	if (!has_ended(soon(copied(0) && copied(1))))
		return "the first step is not copied";
	if (in_memory(&two[1], step))
		return "a step was staged of ranks that were never seen to guard";
	both_guard();
	if (!both_mark(&step, CKPT_STAGE_ONLY))
		return "there is no slot after the first step";
	if (wait_staged(0, step, PATIENCE) != 0)
		return "a step that all ranks marked and guarded is not staged";
	both_guard();
	/* One rank is late. */
	held = step++;
	before = copied(0);
	if (rank_step(&two[0], step, CKPT_STAGE_ONLY) != 0)
		return "a slot was not given back";
	if (!has_ended(soon(copied(0) > before)))
		return "a rank's step is not copied before the others mark it";
	if (wait_staged(0, step, SEC / 20) != -ETIMEDOUT)
		return "a step was staged that one rank had not marked";
	if (!in_memory(&two[1], held))
		return "the staged step was given up before there was a newer one";
	if (rank_step(&two[1], step, CKPT_STAGE_ONLY) != 0)
		return "the late rank did not find its ticket";
	/* One rank gives up. */
	for (until = now_ns() + PATIENCE; now_ns() < until && !torn;) {
		if (!both_mark(&step, CKPT_STAGE_ONLY))
			return "there is no slot";
		torn = ckpt_guard(two[1].c, NULL) == CKPT_TORN;
		if (torn && wait_staged(0, step, PATIENCE) != -ENOENT)
			return "a step was staged that one rank gave up";
	}
	if (!torn)
		return "no guard gave up";
	/* Both forget a guard. */
	if (!both_mark(&step, CKPT_PERSIST))
		return "there is no slot after a torn step";
	held = step;
	if (wait_staged(0, held, PATIENCE) != 0) /* who does not wait for guards writes it by now */
		return "a step that all ranks marked is not staged";
	if (on_disk_within(held, SEC / 20)) /* or at the end */
		return "a step was committed before its ranks were seen to guard";
	for (uint32_t r = 0; r < 2; r++) {
		rank_fill(&two[r], held + 1);
		(void)ckpt_snapshot(two[r].c, held + 1, NULL);
	}
	step++;
	if (!both_mark(&step, CKPT_FINAL))
		return "there is no slot for the final step";
	if (!on_disk_within(step, PATIENCE))
		return "the final step is not committed";
	return host_has(&H, "rules", held) ? "an unguarded step was committed" : NULL;
}

TEST(every_rule_of_a_snapshot_is_kept)
{
	struct plan_of_job p =
		plan("rules", "fsdp=2", .guard = CKPT_NEVER, .rows = 10000, .shared_only = true);
	const char *what;

	host_start(&H, NULL);
	ranks_open(two, 2, &p);
	ask_open(&A, H.socket);
	what = scenario();
	if (what)
		print_message("%s\n", what);
	ranks_close(two, 2);
	assert_null(what);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
