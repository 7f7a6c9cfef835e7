/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average_seed.c - averages that begin with those, or the weights, of a step of another
 * job (seeds), and averages that end because nobody declares them any more: what is begun with,
 * also under the next daemon, and which seeds are refused at ckpt_seal.
 */
#include "test_daemon_average_rig.h"

static const char *seed_path(uint64_t step)
{
	static char path[200];

	snprintf(path, sizeof path, "%s/" OTHER "/step-%012llu", H.store, (unsigned long long)step);
	return path;
}

static const char *seeded(const char *schedule, const char *path)
{
	static char spec[400];

	snprintf(spec, sizeof spec, "%s seed=%s", schedule, path);
	return spec;
}

/* With a step of OTHER, which is there. */
static char seed_id[40];
static bool seed_weights; /* it has no average of the name */

static const char *seeded_with(const char *schedule, uint64_t step, bool weights)
{
	struct checkpoint *k = host_open(&H, OTHER, step);

	memcpy(seed_id, k->id, sizeof seed_id);
	seed_weights = weights;
	checkpoint_free(k);
	return seeded(schedule, seed_path(step));
}

/* The first step's average is the seed of seeded_with; then it goes on. */
static void assert_seeded(const char *spec, uint64_t first, uint64_t last, const float *w,
			  const float *gain)
{
	struct chain c = { 0 };
	struct ema_spec *s = NULL;
	struct ckpt_err err;
	char canonical[EMA_SPEC_BYTES];
	struct expected x = { 0 };
	struct checkpoint *k = host_open(&H, JOB, last);

	MUST_OK(ema_spec_parse(spec, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	x.state = ema_state_seeded(canonical, first, seed_id, seed_weights);
	memcpy(x.w, w, sizeof x.w);
	memcpy(x.gain, gain, sizeof x.gain);
	chain_steps(&c, first + 1, last);
	x = expect_from(spec, &c, false, &x);
	assert_average(last, "fast", &x);
	assert_true(row_of(k, "fast", 0)->flags & AVERAGE_SEEDED);
	assert_string_equal(row_of(k, "fast", 0)->schedule, canonical);
	checkpoint_free(k);
}

static void seed_remove(void)
{
	char was[200], now[220];

	snprintf(was, sizeof was, "%s/" OTHER, H.store);
	snprintf(now, sizeof now, "%s-away", was);
	MUST(rename(was, now) == 0);
}

TEST(an_average_begins_with_the_average_of_its_name_in_the_seed)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .from = 1, .to = 4 });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 1, 4, x.w, x.gain);
	/* What has gone on does not begin again. Its seed may be gone by then, */
	host_restart(&H);
	seed_remove();
	run("fsdp=1",
	    &(struct flow){ .average = { { "fast", spec } }, .restore = true, .from = 5, .to = 6 });
	assert_seeded(spec, 1, 6, x.w, x.gain);
	/* and be left out: it is still the same average. */
	host_restart(&H);
	run("fsdp=1",
	    &(struct flow){ .average = { { "fast", FAST } }, .restore = true, .from = 7, .to = 8 });
	assert_seeded(spec, 1, 8, x.w, x.gain);
	assert_int_equal(said_times(&daemon_said, "cannot be opened"), 0);
}

static void says_what_ends(bool forgets)
{
	static const char ends[] = "average %s does not go on: step 3 has it, and this job does "
				   "not declare it";
	char slow[128], fast[128];
	struct flow f;

	snprintf(slow, sizeof slow, ends, "slow");
	snprintf(fast, sizeof fast, ends, "fast");
	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = { { "fast", FAST } }, .restore = true };
	run("fsdp=2", &f);
	assert_says(f.got_averages, "average fast goes on from step 3");
	assert_says(f.got_averages, slow);
	assert_soon(said_times(&daemon_said, slow) == 1);
	assert_int_equal(said_times(&daemon_said, fast), 0);
	f = (struct flow){ .restore = true };
	run("fsdp=2", &f);
	assert_string_equal(f.got_averages, "");
	assert_soon(said_times(&daemon_said, slow) == 2);
	assert_soon(said_times(&daemon_said, fast) == 1);
}

TEST(a_restore_out_of_memory_names_averages_that_nobody_declares_any_more)
{
	says_what_ends(false);
}

TEST(a_restore_from_disk_names_averages_that_nobody_declares_any_more)
{
	says_what_ends(true);
}

TEST(a_seed_that_is_gone_is_refused_at_seal_by_a_job_that_has_no_step)
{
	struct flow f = { .average = { { "fast", FAST " seed=/nowhere/step-1" },
				       { "slow", SLOW " seed=/nowhere/else" } },
			  .rc = -EINVAL };

	host_start(&H, NULL);
	run("fsdp=2", &f);
	assert_says(f.said, "average fast: its seed /nowhere/step-1 cannot be used: it cannot be "
			    "opened: No such file or directory");
	assert_says(f.said, "average slow: its seed /nowhere/else cannot");
}

TEST(an_average_that_the_restored_step_lacks_begins_anew_where_its_seed_is_gone)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	f = (struct flow){ .average = { { "fast", FAST " seed=/nowhere/step-1" },
					{ "slow", SLOW } },
			   .restore = true,
			   .from = 5,
			   .to = 6 };
	run("fsdp=2", &f);
	chain_steps(&c, 5, 6);
	assert_spec(6, "fast", FAST, &c);
	memset(&c, 0, sizeof c);
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
	assert_soon(said_times(&daemon_said,
			       "average fast begins anew: average fast: its seed "
			       "/nowhere/step-1 cannot be used: it cannot be opened") == 1);
}

static void begins_with_weights(bool narrow)
{
	float w[ROWS * COLS], gain[BIAS];
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3", &(struct flow){ .no_master = narrow, .from = 7, .to = 7 });
	spec = seeded_with(FAST, 7, true);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .from = 1, .to = 3 });
	for (uint32_t i = 0; i < ROWS * COLS; i++) {
		w[i] = value(MASTER, i, 7, 0);
		w[i] = narrow ? of_bf16(bf16_of(w[i])) : w[i];
	}
	for (uint32_t i = 0; i < BIAS; i++)
		gain[i] = value(GAIN, i, 7, 0);
	assert_seeded(spec, 1, 3, w, gain);
}

TEST(an_average_begins_with_the_masters_of_the_seed)
{
	begins_with_weights(false);
}

TEST(an_average_begins_with_the_parameters_of_the_seed_widened)
{
	begins_with_weights(true);
}

TEST(a_seed_is_for_the_average_that_the_restored_step_lacks)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;
	struct flow f;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	spec = seeded_with(FAST, 3, false);
	f = (struct flow){ .average = { { "fast", spec }, { "slow", SLOW } },
			   .restore = true,
			   .from = 5,
			   .to = 6 };
	run("fsdp=2", &f);
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 4, 6, x.w, x.gain);
	chain_steps(&c, 4, 6);
	assert_spec(6, "slow", SLOW, &c);
}

static void daemon_dies_first(struct rank *k)
{
	daemon_dies(k);
	must_mark(k, 7, 0, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
}

/* The first step is copied, and its averages are not made: no seal was ever complete. */
static void daemon_dies_in_the_first_step(struct rank *k)
{
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	if (k->rank == 0)
		host_kill(&H);
	rank_meet(k);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		const uint8_t zero[SLOT_SEAL_BYTES] = { 0 };

		if (s->bytes)
			MUST_BE(pwrite(s->fd, zero, sizeof zero, (off_t)(s->bytes - sizeof zero)),
				sizeof zero);
	}
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, NULL);
	must_reattach(k, 1);
	rank_meet(k);
	for (uint64_t s = 5; s <= 7; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

/* Before anything was averaged, nothing is lost with a daemon: the launch begins as it would
 * have. */
static void begins_with_the_seed_under_the_next_daemon(void (*amid)(struct rank *k), uint64_t first)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .amid = amid });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, first, 7, x.w, x.gain);
	assert_int_equal(said_times(&daemon_said, "are lost, and begin anew"), 0);
}

TEST(a_daemon_that_dies_before_the_first_step_does_not_lose_the_seed)
{
	begins_with_the_seed_under_the_next_daemon(daemon_dies_first, 5);
}

TEST(a_daemon_that_dies_in_the_first_step_does_not_lose_the_seed)
{
	begins_with_the_seed_under_the_next_daemon(daemon_dies_in_the_first_step, 4);
}

TEST(a_daemon_that_dies_behind_a_restore_does_not_lose_the_seed_of_what_that_step_lacks)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec }, { "slow", SLOW } },
				      .restore = true,
				      .want_flags = CKPT_FROM_DISK,
				      .amid = daemon_dies_first });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 4, 7, x.w, x.gain);
	chain_steps(&c, 4, 7);
	assert_spec(7, "slow", SLOW, &c);
}

static void assert_refused(const char *path, const char *why)
{
	struct flow f = { .average = { { "fast", seeded(FAST, path) } }, .rc = -EINVAL };

	run("fsdp=2", &f);
	assert_says(f.said, "average fast: its seed ");
	assert_says(f.said, why);
}

TEST(a_seed_that_is_no_step_is_refused_at_seal)
{
	host_start(&H, NULL);
	MUST(mkdir(H.store, 0700) == 0 || errno == EEXIST);
	assert_refused(H.store, "cannot be used");
}

TEST(a_seed_that_lacks_a_tensor_is_refused_at_seal)
{
	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "other", "uniform" } },
			       .from = 1,
			       .to = 1,
			       .no_gain = true });
	assert_refused(seed_path(1), "model/gain");
}

/* A seed may be anybody's: what lies in the place of its files is not waited for, and no link is
 * followed. */
TEST(a_seed_with_other_things_in_the_place_of_its_files_is_refused)
{
	char step[300], part[600] = "", manifest[400];
	struct checkpoint *c;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1", &(struct flow){ .from = 1, .to = 2 });
	for (uint64_t i = 1; i <= 2; i++) {
		c = host_open(&H, OTHER, i);
		snprintf(step, sizeof step, "%s", seed_path(i));
		snprintf(manifest, sizeof manifest, "%s/MANIFEST", step);
		snprintf(part, sizeof part, "%s/%s", step, c->file[0].name);
		checkpoint_free(c);
		MUST_BE(unlink(i == 1 ? manifest : part), 0);
		MUST_BE(mkfifo(i == 1 ? manifest : part, 0600), 0);
		assert_refused(step,
			       i == 1 ? "MANIFEST: it cannot be opened" : "not a regular file");
		MUST_BE(unlink(i == 1 ? manifest : part), 0);
		MUST_BE(symlink("/dev/zero", i == 1 ? manifest : part), 0);
		assert_refused(step, "Too many levels of symbolic links");
	}
}

/* A seed is somebody else's: whatever its bytes are, it is a seed or a sentence. */
TEST(a_seed_whose_bytes_are_damaged_is_refused_or_not_begun_with)
{
	struct flow f = { .average = BOTH, .from = 1, .to = 2 };
	struct checkpoint *c;
	int dir, fd;
	struct chain chain = { 0 };

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=2", &f);
	c = host_open(&H, OTHER, 2);
	dir = host_step_fd(&H, OTHER, 2);
	for (uint32_t i = 0; i < c->nfile; i++) {
		uint8_t b;

		if (c->file[i].kind != PART_AVERAGE)
			continue;
		fd = openat(dir, c->file[i].name, O_RDWR | O_CLOEXEC);
		MUST_BE(pread(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		b ^= 1;
		MUST_BE(pwrite(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		(void)close(fd);
	}
	checkpoint_free(c);
	f = (struct flow){ .average = { { "fast", seeded(FAST, seed_path(2)) } },
			   .from = 1,
			   .to = 2 };
	run("fsdp=2", &f);
	assert_int_equal(
		said_times(&daemon_said, "average fast begins anew: average fast: its seed"), 1);
	chain_steps(&chain, 1, 2);
	assert_spec(2, "fast", f.average[0].spec, &chain);
	(void)close(dir);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
