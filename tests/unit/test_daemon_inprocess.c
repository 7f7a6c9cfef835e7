/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_inprocess.c - the library and the daemon in one process, ranks as threads: what
 * ckpt.h promises, from attach to a restore on another mesh, and what happens when something is
 * full, damaged, late or gone. CKPT_TEST_LOG=1 shows the daemon's log.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include "ckpt/store/points.h"
#include <sched.h>
#include <stdatomic.h>

/* The last one FINAL and committed. */
static void train_to_nine(struct rank *k)
{
	rank_fill(k, 0);
	for (uint64_t step = 1; step < 9; step++) {
		int rc = rank_step(k, step, 0);

		MUST(rc == 0 || rc == CKPT_SKIPPED);
		rank_meet(k);
	}
	step_to(k, 9, CKPT_FINAL, CKPT_COMMITTED);
}

static void resume_from(struct rank *k, uint64_t step, uint32_t flags)
{
	rank_clear(k);
	must_restore(k, CKPT_LATEST, flags);
	MUST_BE(k->got.step, step);
	MUST_BE(k->got.where, flags == CKPT_FROM_DISK ? 2 : 1);
	MUST_BE(k->got.nmissing, 0);
	MUST(k->got.ntensor >= 12);
	MUST(rank_check(k, step));
	MUST(rank_check_blobs(k, step, k->got.world_saved));
}

static void resume_from_nine(struct rank *k)
{
	resume_from(k, 9, *(const uint32_t *)k->arg);
}

TEST(what_one_mesh_saved_every_mesh_restores_from_memory_and_from_disk)
{
	static const char *const meshes[] = { "fsdp=4", "fsdp=3", "dp=2,fsdp=2", "fsdp=1",
					      "fsdp=2,tp=2" };
	static const enum io_engine engines[] = { IO_THREADS, IO_AUTO };
	static const uint32_t flags[] = { CKPT_FROM_MEMORY, CKPT_FROM_DISK };
	uint64_t steps[16];

	for (uint32_t e = 0; e < 2; e++) {
		H.opts.engine = engines[e];
		host_start(&H, NULL);
		for (uint32_t i = 0; i < ARRAY_LEN(meshes); i += 1 + e) {
			char job[16];

			snprintf(job, sizeof job, "job%u%u", e, i);
			launch_of(plan(job, meshes[i]), train_to_nine, NULL);
			MUST(host_committed(&H, job, steps, 16) >= 1);
			MUST_BE(steps[0], 9);
			for (uint32_t f = 0; f < 2; f++) {
				uint32_t how = flags[f];
				struct plan_of_job q =
					plan(job, meshes[(i + f + 1) % ARRAY_LEN(meshes)]);

				launch(&q, resume_from_nine, &how);
			}
		}
		host_stop(&H);
	}
}

/* --- the life of a snapshot --- */
static void policy_script(struct rank *k)
{
	static const struct {
		uint32_t flags;
		bool written;
	} mark[] = {
		{ 0, false },	      { 0, false }, { 0, true }, { CKPT_PERSIST, true },
		{ 0, false },	      { 0, false }, { 0, true }, { CKPT_STAGE_ONLY, false },
		{ CKPT_FINAL, true },
	};
	struct ckpt_stats st;
	uint64_t wrote = 0;

	for (uint64_t step = 1; step <= ARRAY_LEN(mark); step++) {
		step_to(k, step, mark[step - 1].flags,
			mark[step - 1].written ? CKPT_COMMITTED : CKPT_STAGED);
		wrote += mark[step - 1].written;
		rank_meet(k);
	}
	st = rank_stats(k);
	MUST_BE(st.taken, ARRAY_LEN(mark));
	MUST_BE(st.staged, ARRAY_LEN(mark));
	MUST_BE(st.persisted, wrote);
	MUST_BE(st.committed, wrote);
	MUST_BE(st.last_committed_step, ARRAY_LEN(mark));
	MUST(st.skipped == 0 && st.torn == 0 && st.failed == 0 && st.unguarded == 0);
	MUST(st.copy_bytes >= ARRAY_LEN(mark) && st.copy_ns > 0 && st.stall_ns_max > 0 &&
	     st.stall_ns_max <= st.stall_ns_sum);
	MUST(0 < st.staged_ns && st.staged_ns <= st.persisted_ns &&
	     st.persisted_ns <= st.committed_ns);
	for (uint64_t step = 1; k->rank == 0 && step <= ARRAY_LEN(mark); step++)
		MUST_BE(host_has(&H, "policy", step), mark[step - 1].written);
}

TEST(every_third_is_written_and_a_mark_can_say_otherwise)
{
	struct checkpoint *c;

	host_start(&H, NULL);
	launch_of(plan("policy", "fsdp=2", .persist_every = 3), policy_script, NULL);
	c = host_open(&H, "policy", 9);
	assert_int_equal(c->nnote, 2);
	assert_string_equal(c->note[0].key, "loss");
	assert_true(c->note[0].value == 0.1);
	assert_int_equal(c->parent_step, 7);
	assert_int_equal(c->world, 2);
	checkpoint_free(c);
}

TEST(full_slots_skip_and_a_final_mark_waits)
{
	struct ckpt_stats st;
	uint64_t step[8];
	pthread_t t;

	H.opts.engine = IO_AUTO;
	host_start_gated();
	open_one(&K, "slots", "fsdp=1");
	gate_set(&G, true);
	step_to(&K, 1, 0, CKPT_STAGED);
	gate_await(&G);
	step_to(&K, 2, 0, CKPT_STAGED);
	assert_int_equal(rank_step(&K, 3, 0), CKPT_SKIPPED);
	assert_int_equal(ckpt_wait(K.c, 3, CKPT_STAGED, PATIENCE, &K.err), -ENOENT);
	assert_int_equal(ckpt_wait(K.c, 2, CKPT_COMMITTED, SEC / 20, &K.err), -ETIMEDOUT);
	t = gate_open_soon(&G);
	step_to(&K, 4, CKPT_FINAL, CKPT_COMMITTED);
	pthread_join(t, NULL);
	st = rank_stats(&K);
	assert_true(st.taken == 3 && st.skipped == 1 && st.committed == 3);
	rank_close(&K, 0);
	assert_int_equal(host_committed(&H, "slots", step, 8), 3);
	assert_true(step[0] == 4 && step[1] == 2 && step[2] == 1);
}

static void wait_where_it_is_visible(void *gate, const char *name)
{
	if (strcmp(name, POINT_COMMIT_RENAMED) == 0)
		gate_pass(gate);
}

TEST(a_step_is_told_committed_after_its_last_sync)
{
	static struct io_faults f;
	uint64_t told;
	int rc;

	gate_make(&G);
	io_faults_init(&f, &host_ops);
	f.on_point = wait_where_it_is_visible;
	f.on_point_arg = &G;
	host_start(&H, &f.ops);
	open_one(&K, "told", "fsdp=1");
	gate_set(&G, true);
	step_to(&K, 1, 0, CKPT_PERSISTED);
	gate_await(&G);
	rc = ckpt_wait(K.c, 1, CKPT_COMMITTED, SEC / 20, &K.err);
	told = rank_stats(&K).committed;
	gate_set(&G, false);
	assert_int_equal(rc, -ETIMEDOUT);
	assert_int_equal(told, 0);
	must_wait(&K, 1, CKPT_COMMITTED);
	rank_close(&K, 0);
}

/* A guard can tear what is only marked: so what was confirmed as staged is not given up for it. */
TEST(a_staged_step_stays_until_a_newer_one_is_staged)
{
	uint64_t step[8];

	host_start_gated();
	open_one(&K, "stays", "fsdp=1");
	gate_set(&G, true);
	step_to(&K, 1, 0, CKPT_STAGED);
	gate_await(&G);
	step_to(&K, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	assert_int_equal(rank_step(&K, 3, CKPT_STAGE_ONLY), CKPT_SKIPPED);
	assert_int_equal(rank_step(&K, 4, CKPT_PERSIST), CKPT_SKIPPED);
	assert_true(in_memory(&K, 2));
	gate_set(&G, false);
	must_wait(&K, 1, CKPT_COMMITTED);
	must_step(&K, 5, CKPT_FINAL); /* waits for the slot of step 1 */
	assert_true(in_memory(&K, 2) || in_memory(&K, 5));
	must_wait(&K, 5, CKPT_COMMITTED);
	assert_false(in_memory(&K, 2));
	rank_close(&K, 0);
	assert_int_equal(host_committed(&H, "stays", step, 8), 2);
	assert_true(step[0] == 5 && step[1] == 1);
}

/* A mark that may wait, but not for ever: of a caller whose own time is short. */
TEST(a_final_mark_waits_for_a_slot_no_longer_than_its_wait_ns)
{
	const struct ckpt_mark soon = { .size = sizeof soon,
					.flags = CKPT_FINAL,
					.wait_ns = SEC / 100 };
	uint64_t began, took;
	int rc;

	host_start_gated();
	open_one(&K, "soon", "fsdp=1", .slots = 2);
	gate_set(&G, true);
	step_to(&K, 1, CKPT_PERSIST, CKPT_STAGED); /* which no newer one thins */
	gate_await(&G);
	step_to(&K, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	began = now_ns();
	rc = ckpt_snapshot(K.c, 3, &soon);
	took = now_ns() - began;
	gate_set(&G, false); /* before anything fails: who ends waits for the write */
	assert_int_equal(rc, CKPT_SKIPPED); /* there was no slot */
	assert_true(took < 60 * SEC);
	assert_int_equal(ckpt_guard(K.c, NULL), 0);
	step_to(&K, 3, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(&K, 0);
}

#define TORN_TRIES 100000

/* Until a guard of rank 1 has torn a copy: on a busy machine the copy may end before the guard. No
 * rank begins a step before both have seen whether there is another one. */
static void torn_script(struct rank *k)
{
	_Atomic uint32_t *torn = k->arg;
	uint64_t step = 0, taken = 0;

	rank_fill(k, 1);
	for (bool more = true; more; rank_meet(k)) {
		int rc = ckpt_snapshot(k->c, ++step, NULL);

		MUST(rc == 0 || rc == CKPT_SKIPPED);
		MUST(step < TORN_TRIES);
		if (rc == 0)
			taken = step;
		if (ckpt_guard(k->c, NULL) == CKPT_TORN && k->rank == 1) {
			rank_fill(k, step + 1);
			MUST(ckpt_wait(k->c, step, CKPT_STAGED, PATIENCE, &k->err) == -ENOENT);
			MUST(strstr(k->err.msg, "torn") || strstr(k->err.msg, "skipped"));
			(*torn)++;
		}
		rank_fill(k, step + 1);
		if (rc == CKPT_SKIPPED && taken) /* there is a slot again */
			(void)ckpt_wait(k->c, taken, CKPT_COMMITTED, 10 * SEC, &k->err);
		rank_meet(k);
		more = *torn == 0;
	}
	MUST(rank_stats(k).torn >= (k->rank == 1 ? *torn : 0));
	step_to(k, TORN_TRIES, CKPT_FINAL, CKPT_COMMITTED);
}

static void resume_from_torn(struct rank *k)
{
	resume_from(k, TORN_TRIES, CKPT_FROM_DISK);
}

TEST(a_copy_that_a_guard_gave_up_is_never_written)
{
	struct plan_of_job p = plan("torn", "fsdp=2", .rows = 20000);

	p.guard = CKPT_NEVER;
	host_start(&H, NULL);
	for (int shared = 0; shared < 2;
	     shared++) { /* what is given up is the library's copy, or the daemon's */
		_Atomic uint32_t torn = 0;

		p.job = shared ? "torn" : "torn-private";
		p.shared_only = shared;
		launch(&p, torn_script, &torn);
		launch(&p, resume_from_torn, NULL);
		host_committed(&H, p.job, NULL, 0);
	}
}

TEST(who_does_not_guard_is_not_written)
{
	struct plan_of_job p = plan("unguarded", "fsdp=1");
	struct ckpt_stats st;

	host_start(&H, NULL);
	rank_open(&K, &p, 0);
	for (uint64_t step = 1; step <= 5; step++) { /* never a guard */
		int rc;

		rank_fill(&K, step);
		rc = ckpt_snapshot(K.c, step, NULL);
		assert_true(rc == 0 || rc == CKPT_SKIPPED);
	}
	assert_int_equal(ckpt_wait(K.c, 1, CKPT_STAGED, PATIENCE, &K.err), -ENOENT);
	rank_fill(&K, 6);
	assert_ok(ckpt_snapshot(
		K.c, 6,
		&(struct ckpt_mark){ .size = sizeof(struct ckpt_mark), .flags = CKPT_FINAL }));
	must_wait(&K, 6, CKPT_COMMITTED);
	st = rank_stats(&K);
	assert_true(st.unguarded >= 1);
	/* Trusted by now, were it not for the past; and one that is trusted and forgets it once: */
	rank_close(&K, 0);
	for (uint64_t step = 1; step <= 6; step++)
		assert_int_equal(host_has(&H, "unguarded", step), step == 6);
	p.fresh = true;
	rank_open(&K, &p, 0);
	for (uint64_t step = 10; step <= 12; step++) {
		step_to(&K, step, CKPT_PERSIST, CKPT_COMMITTED);
	}
	must_step(&K, 13, CKPT_PERSIST);
	rank_fill(&K, 14);
	(void)ckpt_snapshot(K.c, 14, NULL);
	step_to(&K, 15, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(&K, 0);
	for (uint64_t step = 10; step <= 15; step++)
		assert_true(step == 14 || host_has(&H, "unguarded", step) == (step != 13));
	host_committed(&H, "unguarded", NULL, 0);
}

TEST(steps_grow_and_flags_are_known)
{
	struct ckpt_mark m = { .size = sizeof m };
	struct ckpt_note note[17] = { { "x", 1 } };

	host_start(&H, NULL);
	open_one(&K, "marks", "fsdp=1");
	assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -ENOENT);
	assert_int_equal(rank_restore(&K, 17, 0), -ENOENT);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK | CKPT_FROM_MEMORY), -EINVAL);
	assert_int_equal(rank_step(&K, 5, CKPT_STAGE_ONLY), -EUCLEAN);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -ENOENT);
	step_to(&K, 5, CKPT_STAGE_ONLY, CKPT_STAGED);
	assert_int_equal(rank_step(&K, 5, 0), -EINVAL);
	assert_int_equal(rank_step(&K, 4, 0), -EINVAL);
	assert_int_equal(rank_step(&K, CKPT_LATEST, 0), -EINVAL);
	assert_int_equal(rank_step(&K, 6, 1 << 9), -EOPNOTSUPP);
	assert_int_equal(rank_step(&K, 6, CKPT_STAGE_ONLY | CKPT_FINAL), -EINVAL);
	m.note = note;
	m.nnote = 17;
	assert_int_equal(ckpt_snapshot(K.c, 6, &m), -EINVAL);
	assert_int_equal(ckpt_wait(K.c, 99, CKPT_STAGED, PATIENCE, &K.err), -ENOENT);
	assert_int_equal(ckpt_wait(K.c, 5, 7, SEC, &K.err), -EINVAL);
	assert_int_equal(ckpt_average(K.c, "fast", "x", &K.err), -EINVAL);
	must_step(&K, 6, CKPT_PERSIST);
	/* Leaving in time to write it. */
	assert_int_equal(ckpt_detach(TAKE(K.c), 30 * SEC), 0);
	rank_free(&K);
	assert_true(host_has(&H, "marks", 6));
}

/* --- declarations --- */
static void epochs_script(struct rank *k)
{
	uint64_t bytes;
	void *moved;
	int i;

	step_to(k, 1, 0, CKPT_COMMITTED);
	/* One more. */
	MUST_OF(k, rank_tensor_declare(k, RANK_SPECS - 1));
	MUST_BE(rank_step(k, 2, 0), CKPT_SKIPPED);
	must_seal(k);
	step_to(k, 3, 0, CKPT_COMMITTED);
	/* One elsewhere. */
	i = rank_tensor_find(k, "w");
	bytes = k->t[i].n[0] * k->t[i].n[1] * k->t[i].elem;
	MUST_OF(k, ckpt_alloc(k->c, MAX(bytes, UINT64_C(1)), &moved, &k->err));
	memset(k->t[i].ptr[0], 0x77, bytes);
	k->t[i].ptr[0] = moved;
	MUST_OF(k, ckpt_tensor_move(k->c, k->t[i].id, &(struct ckpt_local){ .ptr = moved }, 1,
				    &k->err));
	must_seal(k);
	step_to(k, 4, 0, CKPT_COMMITTED);
	/* One less. */
	i = rank_tensor_find(k, "uneven");
	MUST(ckpt_tensor_drop(k->c, k->t[i].id) == 0);
	MUST(ckpt_tensor_drop(k->c, k->t[i].id) == -EINVAL);
	must_seal(k);
	step_to(k, 5, CKPT_FINAL, CKPT_COMMITTED);
}

static void epoch_script(struct rank *k)
{
	uint64_t step = *(const uint64_t *)k->arg;
	int i = rank_tensor_find(k, "uneven");

	rank_clear(k);
	if (step == 5) {
		MUST_BE(rank_restore(k, step, CKPT_FROM_DISK), -EMEDIUMTYPE);
		MUST(strstr(k->err.msg, "uneven") && rank_check_clear(k));
	}
	must_restore(k, step, CKPT_FROM_DISK | (step == 5 ? CKPT_LENIENT : 0));
	MUST_BE(k->got.step, step);
	MUST_BE(k->got.nmissing, step == 5);
	if (step == 5) /* left as it was; all others must be right */
		rank_each(&k->t[i], rank_fill_one, &step);
	MUST(rank_check(k, step));
}

TEST(declarations_change_between_snapshots)
{
	struct plan_of_job p = plan("epochs", "fsdp=2");

	host_start(&H, NULL);
	launch(&p, epochs_script, NULL);
	p.extra = true;
	for (uint64_t step = 3; step <= 5; step++)
		launch(&p, epoch_script, &step);
	host_committed(&H, "epochs", NULL, 0);
}

static int add_simple(struct rank *k, const char *name, uint32_t dtype, uint64_t rows)
{
	const struct ckpt_placement place = { .how = CKPT_SHARD, .split_factor = 1 };
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = dtype, .component = "model",
				   .name = name, .ndim = 1, .mesh = k->mesh_id, .nplace = 1,
				   .nlocal = 1, .shape = &rows, .place = &place, .local = &local);
	int rc = ckpt_alloc(k->c, rows * 16, &local.ptr, &k->err);

	return rc ? rc : ckpt_tensor_add(k->c, &t, NULL, &k->err);
}

static void disagree_script(struct rank *k)
{
	bool odd = k->rank == 1;

	must_attach(k, k->plan, k->rank);
	MUST_BE(rank_seal(k, 0) < 0 ? -1 : 0, 0); /* nothing declared: allowed */
	MUST_OF(k, add_simple(k, "same", CKPT_F32, 8));
	MUST_OF(k, add_simple(k, "one", odd ? CKPT_F16 : CKPT_F32, 8));
	MUST_OF(k, add_simple(k, "two", CKPT_F32, odd ? 10 : 8));
	MUST_BE(add_simple(k, "same", CKPT_F32, 8), -EALREADY);
	MUST(strstr(k->err.msg, "model/same"));
	rank_meet(k);
	if (!odd)
		MUST_BE(rank_seal(k, SEC / 2), CKPT_SKIPPED);
	rank_meet(k);
	if (odd) {
		MUST_BE(rank_seal(k, PATIENCE), -EINVAL);
		MUST(strstr(k->err.msg, "one") && strstr(k->err.msg, "two") &&
		     !strstr(k->err.msg, "same"));
		MUST(strstr(k->err.msg, "F16") && strstr(k->err.msg, "F32") &&
		     strstr(k->err.msg, "rank 0") && strstr(k->err.msg, "rank 1"));
		/* Put right. */
		MUST(ckpt_tensor_drop(k->c, 1) == 0 && ckpt_tensor_drop(k->c, 2) == 0);
		MUST_OF(k, add_simple(k, "one", CKPT_F32, 8));
		MUST_OF(k, add_simple(k, "two", CKPT_F32, 8));
	}
	rank_meet(k);
	must_seal(k);
	step_to(k, 1, CKPT_FINAL, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(ranks_that_disagree_hear_everything_at_once)
{
	host_start(&H, NULL);
	team_of(plan("disagree", "fsdp=2"), disagree_script, NULL);
}

static void uncovered_script(struct rank *k)
{
	must_attach(k, k->plan, k->rank);
	MUST_OF(k, add_simple(k, "sound", CKPT_F32, 8));
	if (k->rank != 2)
		MUST_OF(k, add_simple(k, "gap", CKPT_F32, 9));
	MUST_BE(rank_seal(k, PATIENCE), -EINVAL);
	MUST(strstr(k->err.msg, "gap") && !strstr(k->err.msg, "sound"));
	MUST_BE(ckpt_snapshot(k->c, 1, NULL), CKPT_SKIPPED);
	rank_meet(k);
	if (k->rank == 2)
		MUST_OF(k, add_simple(k, "gap", CKPT_F32, 9));
	must_seal(k);
	step_to(k, 2, CKPT_FINAL, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(elements_that_nobody_declares_are_told_to_all)
{
	host_start(&H, NULL);
	team_of(plan("gap", "fsdp=3"), uncovered_script, NULL);
}

TEST(what_does_not_fit_into_memory_max_is_not_sealed)
{
	struct plan_of_job p = plan("max", "fsdp=1", .memory_max = 4096);

	host_start(&H, NULL);
	must_attach(&K, &p, 0);
	must_declare(&K);
	assert_int_equal(rank_seal(&K, PATIENCE), -ENOMEM);
	assert_non_null(strstr(K.err.msg, "memory_max"));
	assert_int_equal(rank_step(&K, 1, 0), CKPT_SKIPPED);
}

/* --- restoring --- */
static void misfit_script(struct rank *k)
{
	rank_clear(k);
	MUST_BE(rank_restore(k, CKPT_LATEST, 0), -EMEDIUMTYPE);
	MUST(strstr(k->err.msg, "optim/w.master") && strstr(k->err.msg, "model/w:") &&
	     strstr(k->err.msg, "optim/w.exp_avg") && !strstr(k->err.msg, "tiny"));
	MUST(rank_check_clear(k));
}

static void only_script(struct rank *k)
{
	rank_clear(k);
	must_restore(k, CKPT_LATEST, CKPT_DRY_RUN);
	MUST(k->got.step == 9 && k->got.nmissing == 0 && rank_check_clear(k));
	rank_fill(k, 77);
	MUST_OF(k, rank_want(k, &(struct ckpt_want){ sizeof(struct ckpt_want), .step = CKPT_LATEST,
						     .only = "optim" }));
	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t step = strcmp(rank_specs[k->t[i].spec].component, "optim") == 0 ? 9 : 77;

		MUST(rank_each(&k->t[i], rank_check_one, &step));
	}
}

TEST(everything_is_checked_before_the_first_byte_is_written)
{
	struct plan_of_job p = plan("misfit", "fsdp=2"), other = p;

	other.rows = 65;
	host_start(&H, NULL);
	launch(&p, train_to_nine, NULL);
	launch(&other, misfit_script, NULL);
	launch(&p, only_script, NULL);
}

static void tardy_script(struct rank *k)
{
	struct ckpt_want w = { .size = sizeof w, .step = CKPT_LATEST, .deadline_ns = SEC / 2 };

	must_attach(k, k->plan, k->rank);
	rank_meet(k);
	if (k->rank != 1) {
		must_declare(k);
		MUST_BE(rank_seal(k, SEC / 20), CKPT_SKIPPED);
	}
	rank_meet(k);
	if (k->rank != 1) {
		MUST_BE(rank_step(k, 20, 0), -EUCLEAN); /* nobody has asked for step 9 */
		must_soon(rank_want(k, &w) ==
				  -ETIMEDOUT && /* has the daemon heard of the others? */
			  strstr(k->err.msg, "rank 1 (never sealed)") &&
			  !strstr(k->err.msg, "rank 0"));
	}
	rank_meet(k);
	if (k->rank == 1)
		must_declare(k);
	must_seal(k);
	rank_meet(k);
	rank_clear(k);
	must_restore(k, CKPT_LATEST, 0);
	MUST(k->got.step == 9 && rank_check(k, 9));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(a_rank_that_never_seals_is_named_to_the_others)
{
	struct plan_of_job p = plan("tardy", "fsdp=3");

	host_start(&H, NULL);
	launch(&p, train_to_nine, NULL);
	team(&p, tardy_script, NULL);
}

/* The job's own agreement. */
static _Atomic uint64_t lowest[2];
static _Atomic uint32_t agreements;

static int team_min(void *ctx, uint64_t mine, uint64_t *ret_min)
{
	struct rank *k = ctx;
	uint64_t now;

	rank_meet(k);
	if (k->rank == 0) {
		atomic_store(&lowest[0], UINT64_MAX);
		atomic_fetch_add(&agreements, 1);
	}
	rank_meet(k);
	now = atomic_load(&lowest[0]);
	while (mine < now && !atomic_compare_exchange_weak(&lowest[0], &now, mine))
		;
	rank_meet(k);
	*ret_min = atomic_load(&lowest[0]);
	return 0;
}

static void damaged_script(struct rank *k)
{
	rank_clear(k);
	must_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
	MUST_BE(k->got.step, 1);
	MUST_BE(k->got.npassed, 1);
	MUST(strncmp(k->got.passed, "step 2: ", 8) == 0 && !strchr(k->got.passed, '\n'));
	MUST(rank_check(k, 1) && rank_check_blobs(k, 1, k->got.world_saved));
}

TEST(an_older_step_is_given_to_all_ranks_instead_of_a_damaged_one)
{
	struct plan_of_job p = plan("damaged", "fsdp=3");

	H.opts.engine = IO_AUTO;
	host_start(&H, NULL);
	saves(&p, 1, 2);
	host_damage(&H, "damaged", 2);
	p.mesh = "fsdp=2";
	launch(&p, damaged_script, NULL);
	p.job = "damaged-agreed"; /* the first one's is remembered */
	saves(&p, 1, 2);
	host_damage(&H, "damaged-agreed", 2);
	p.agree = team_min;
	p.generation = 9; /* they need not agree on a launch */
	atomic_store(&agreements, 0);
	launch(&p, damaged_script, NULL);
	assert_int_equal(atomic_load(&agreements), 1);
}

/* --- pinned, whatever is committed meanwhile --- */
static struct {
	struct io_ops ops;
	_Atomic uint32_t lists;
} listed;

static int counting_list(void *ctx, int dirfd,
			 int (*each)(void *arg, const char *name, unsigned char type), void *arg)
{
	int rc = io_ops_posix.list(ctx, dirfd, each, arg);

	atomic_fetch_add(&listed.lists, 1);
	return rc;
}

static void pinned_script(struct rank *k)
{
	char away[256], there[256];
	uint32_t seen;

	snprintf(there, sizeof there, "%s/pinned/step-%012u", H.store, 2);
	snprintf(away, sizeof away, "%s/away", H.dir);
	rank_clear(k);
	if (k->rank == 0)
		MUST(rename(there, away) == 0);
	seen = atomic_load(&listed.lists);
	rank_meet(k);
	if (k->rank == 1) { /* asks when the first one's choice is made and a newer step has come */
		uint64_t until = now_ns() + 20 * SEC;

		while (atomic_load(&listed.lists) == seen && now_ns() < until)
			sched_yield();
		MUST(rename(away, there) == 0);
	}
	must_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
	MUST_BE(k->got.step, 1);
	MUST(rank_check(k, 1));
}

TEST(the_first_callers_choice_holds_for_all)
{
	struct plan_of_job p = plan("pinned", "fsdp=2");

	listed.ops = host_ops;
	listed.ops.list = counting_list;
	host_start(&H, &listed.ops);
	saves(&p, 1, 2);
	launch(&p, pinned_script, NULL);
}

static void rewind_script(struct rank *k)
{
	must_restore(k, 2, 0);
	MUST(k->got.step == 2 && rank_check(k, 2));
	MUST_BE(rank_step(k, 2, 0), -EINVAL);
	step_to(k, 3, CKPT_FINAL, CKPT_COMMITTED);
}

TEST(who_goes_back_and_commits_sets_the_abandoned_steps_aside)
{
	struct plan_of_job p = plan("rewind", "fsdp=2");
	struct checkpoint *c;
	uint64_t step[8];

	host_start(&H, NULL);
	saves(&p, 1, 4);
	launch(&p, rewind_script, NULL);
	assert_int_equal(host_committed(&H, "rewind", step, 8), 3);
	assert_true(step[0] == 3 && step[1] == 2 && step[2] == 1);
	assert_int_equal(host_count(&H, "rewind", STORE_SET_ASIDE), 2);
	c = host_open(&H, "rewind", 3);
	assert_int_equal(c->parent_step, 2);
	assert_true(c->seq > 4);
	checkpoint_free(c);
}

static void steps_script(struct rank *k)
{
	struct ckpt_step s[8];

	for (uint64_t step = 1; step <= 3; step++) {
		step_to(k, step, step < 3 ? CKPT_PERSIST : CKPT_STAGE_ONLY,
			step < 3 ? CKPT_COMMITTED : CKPT_STAGED);
		rank_meet(k);
	}
	MUST_BE(ckpt_steps(k->c, s, 8), 3);
	for (uint64_t i = 0; i < 3; i++) {
		MUST_BE(s[i].step, 3 - i);
		MUST(s[i].complete && s[i].bytes > 0);
		MUST_BE(s[i].where & 2, i ? 2 : 0);
	}
	MUST_BE(s[0].where, 1);
	MUST_BE(ckpt_steps(k->c, s, 1), 1);
	MUST_BE(s[0].step, 3);
}

TEST(the_restorable_steps_are_told_newest_first)
{
	host_start(&H, NULL);
	launch_of(plan("steps", "fsdp=2"), steps_script, NULL);
}

static _Atomic uint64_t fp_sum[RANK_TENSORS];

static void fingerprint_script(struct rank *k)
{
	step_to(k, 9, CKPT_FINAL, CKPT_COMMITTED);
	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t fp;

		MUST(ckpt_fingerprint(k->c, k->t[i].id, &fp) == 0);
		atomic_fetch_add(&fp_sum[k->t[i].spec], fp);
	}
	MUST(ckpt_fingerprint(k->c, 99, &(uint64_t){ 0 }) == -EINVAL);
}

/* A blob is stored with what its bytes were declared to be. */
static void media_is(const struct checkpoint *c, const char *name, uint32_t rank, uint32_t how)
{
	uint32_t id = table_find(&c->table, "blob", name, rank);

	assert_int_not_equal(id, TABLE_NONE);
	assert_int_equal(c->table.tensor[id].media << 8, how);
}

TEST(fingerprints_of_the_ranks_add_up_to_the_stored_ones)
{
	static const char *const meshes[] = { "fsdp=3", "dp=2,fsdp=2", "fsdp=2,tp=2", "dp=3" };
	uint64_t first[RANK_TENSORS];

	host_start(&H, NULL);
	for (uint32_t m = 0; m < ARRAY_LEN(meshes); m++) {
		char job[8];
		struct checkpoint *c;

		snprintf(job, sizeof job, "fp%u", m);
		memset(fp_sum, 0, sizeof fp_sum);
		launch_of(plan(job, meshes[m]), fingerprint_script, NULL);
		c = host_open(&H, job, 9);
		for (uint32_t i = 0; i < ARRAY_LEN(rank_specs) - 1; i++) {
			uint32_t id = table_find(&c->table, rank_specs[i].component,
						 rank_specs[i].name, TABLE_NONE);

			assert_int_not_equal(id, TABLE_NONE);
			assert_int_equal(c->table.tensor[id].fp, atomic_load(&fp_sum[i]));
			if (m == 0)
				first[i] = c->table.tensor[id].fp;
			assert_int_equal(first[i], c->table.tensor[id].fp); /* whatever the mesh */
		}
		media_is(c, "cursor", TABLE_NONE, CKPT_TEXT);
		media_is(c, "rng", 0, CKPT_PICKLE);
		media_is(c, "rng", 1, CKPT_PICKLE);
		checkpoint_free(c);
	}
}

/* --- when the disk fails --- */
TEST(a_full_disk_fails_the_step_and_training_goes_on)
{
	struct ckpt_stats st;
	static struct io_faults f;
	uint64_t step[8];

	io_faults_init(&f, &host_ops);
	host_start(&H, &f.ops);
	open_one(&K, "full", "fsdp=1");
	step_to(&K, 1, 0, CKPT_COMMITTED);
	io_faults_fail(&f, IO_ON_FALLOCATE | IO_ON_WRITE, 1, -ENOSPC, true);
	for (uint64_t s = 2; s <= 4; s++) {
		assert_int_equal(rank_step(&K, s, 0), s == 3 ? CKPT_FAILING : 0); /* once */
		must_wait(&K, s, CKPT_STAGED);
		assert_int_equal(rank_wait(&K, s, CKPT_COMMITTED), -ENOSPC);
		assert_non_null(strstr(K.err.msg, "space"));
		assert_int_equal(rank_why(&K), -ENOSPC);
		assert_non_null(strstr(K.err.msg, "space"));
	}
	assert_int_equal(host_count(&H, "full", STORE_COLLECTING), 0);
	io_faults_count(&f, IO_ON_ANY);
	step_to(&K, 5, 0, CKPT_COMMITTED);
	assert_int_equal(rank_why(&K), 0);
	st = rank_stats(&K);
	assert_true(st.failed == 3 && st.committed == 2 && st.last_committed_step == 5);
	rank_close(&K, 0);
	host_stop(&H);
	assert_int_equal(host_committed(&H, "full", step, 8), 2);
	assert_true(step[0] == 5 && step[1] == 1);
}

TEST(every_sync_may_fail_once_and_nothing_is_lost)
{
	struct plan_of_job p = plan("sync", "dp=2");
	struct rank k[2] = { { 0 } };
	static struct io_faults f;
	uint32_t failed = 0, n;
	uint64_t step = 1;

	io_faults_init(&f, &host_ops);
	host_start(&H, &f.ops);
	ranks_open(k, 2, &p);
	for (n = 1;; n++, step += 2) {
		int rc;

		io_faults_fail(&f, IO_ON_SYNC, n, -EIO, false);
		for (uint32_t r = 0; r < 2; r++)
			must_step(&k[r], step, CKPT_PERSIST);
		ranks_guard(k, 2);
		rc = rank_wait(&k[0], step, CKPT_COMMITTED);
		assert_true(rc == 0 || rc == -EIO);
		failed += rc != 0;
		if (!io_faults_hit(&f))
			break;
		assert_true(n > 2 || rc == 0); /* the parts: written anew */
		for (uint32_t r = 0; r < 2; r++)
			MUST_BE(rank_step(&k[r], step + 1, CKPT_PERSIST), rc ? CKPT_FAILING : 0);
		ranks_guard(k, 2);
		must_wait(&k[1], step + 1, CKPT_COMMITTED);
		assert_true(rc != 0 || host_has(&H, "sync", step));
		assert_true(host_has(&H, "sync", step + 1));
	}
	print_message("%u syncs, %u of them failed the step\n", n - 1, failed);
	assert_true(n > 4);
	ranks_close(k, 2);
	host_stop(&H);
	host_committed(&H, "sync", NULL, 0);
	assert_int_equal(host_count(&H, "sync", STORE_COLLECTING), 0);
}

/* --- launches --- */
TEST(a_newer_launch_fences_the_older)
{
	struct plan_of_job p = plan("fence", "fsdp=1", .generation = 5);
	struct rank old = { 0 }, new = { 0 }, late = { 0 };

	host_start(&H, NULL);
	rank_open(&old, &p, 0);
	step_to(&old, 1, CKPT_PERSIST, CKPT_COMMITTED);
	step_to(&old, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	p.generation = 7;
	rank_open(&new, &p, 0);
	assert_int_equal(rank_step(&old, 3, 0), -ESTALE);
	must_guard(&old);
	assert_int_equal(rank_seal(&old, PATIENCE), -ESTALE);
	p.generation = 6;
	assert_int_equal(rank_attach(&late, &p, 0), -ESTALE);
	assert_null(late.c);
	rank_free(&late);
	must_restore(&new, CKPT_LATEST, 0);
	assert_int_equal(new.got.step,
			 2); /* what the fenced launch had staged is still the newest */
	assert_true(rank_check(&new, 2));
	step_to(&new, 3, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(&old, 0);
	rank_close(&new, 0);
	host_committed(&H, "fence", NULL, 0);
	assert_true(host_has(&H, "fence", 3) && host_has(&H, "fence", 1));
}

static void *team_of_nine(void *arg)
{
	const struct plan_of_job *p = arg;
	uint32_t memory = CKPT_FROM_MEMORY;

	launch(p, train_to_nine, NULL);
	launch(p, resume_from_nine, &memory);
	return NULL;
}

TEST(jobs_do_not_meet)
{
	struct plan_of_job p[3] = { plan("one", "fsdp=2"), plan("two", "fsdp=3"),
				    plan("three", "dp=2") };
	pthread_t t[3];

	host_start(&H, NULL);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, team_of_nine, &p[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 3; i++)
		assert_true(host_has(&H, p[i].job, 9));
}

/* --- nonsense on the socket --- */
/* With a sentence, or one that has these words. code 0: any. */
static void refused(struct asker *k, void *msg, uint32_t type, uint32_t bytes, int fd, int code,
		    const char *why)
{
	assert_int_equal(ask_fd(k, msg, type, bytes, fd, NULL, 0, NULL), WIRE_REFUSE);
	if (code)
		assert_int_equal(k->refused.code, code);
	assert_true(k->refused.code < 0 && strlen(k->refused.text) > 10);
	assert_non_null(strstr(k->refused.text, why));
}

static int memfd_of(const void *bytes, size_t n, int seals)
{
	int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n &&
		    fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static struct asker raw(void)
{
	return (struct asker){ .sock = ask_connect(H.socket) };
}

TEST(nonsense_is_refused_with_a_reason_and_hurts_nobody)
{
	static const struct wire_hello bad[] = {
		{ .rank = 0, .world = 0, .nslot = 2, .job = "raw" },
		{ .rank = 2, .world = 2, .nslot = 2, .job = "raw" },
		{ .rank = 0, .world = UINT32_MAX, .nslot = 2, .job = "raw" },
		{ .rank = 0, .world = 1, .nslot = 1, .job = "raw" },
		{ .rank = 0, .world = 1, .nslot = 5, .job = "raw" },
		{ .rank = 0, .world = 1, .nslot = 2, .job = "../raw" },
		{ .rank = 0, .world = 1, .nslot = 2, .job = "" },
		{ .rank = 0, .world = 1, .nslot = 2, .job = ".ckptd" },
	};
	const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
	struct wire_hello good = {
		.rank = 0, .world = 1, .nslot = 2, .job = "raw", .generation = 3
	};
	struct wire_segment seg = { .id = 0, .bytes = 4096 };
	struct wire_declare decl = { .epoch = 1, .bytes = 4096 };
	struct wire_adopt adopt = { .slot = 7, .bytes = 4096 };
	struct wire_restore want = { .step = CKPT_LATEST };
	struct wire_steps steps;
	struct wire_plain bye = { 0 };
	uint8_t junk[8192] = { 1, 2, 3 };
	struct asker a, other;
	int store, file, fd;

	host_start(&H, NULL);
	open_one(&K, "sane", "fsdp=1");
	store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	file = memfd_of(junk, 4096, all);
#define REFUSED(k_, msg, type, fd_, code, why) \
	refused(k_, &(msg), type, sizeof(msg), fd_, code, why)
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct wire_hello h = bad[i];

		a = raw();
		REFUSED(&a, h, WIRE_HELLO, store, -EINVAL, "");
		ask_close(&a);
	}
	/* No protocol at all, a wrong number of descriptors, a type of the other side, requests
	 * before HELLO. */
	a = raw();
	assert_int_equal(send(a.sock, junk, sizeof junk, 0), sizeof junk);
	assert_int_equal(recv(a.sock, junk, sizeof junk, 0), 0);
	ask_close(&a);
	a = raw();
	assert_int_equal(ask(&a, &good, WIRE_HELLO, sizeof good, NULL, 0), 0);
	ask_close(&a);
	a = raw();
	assert_int_equal(ask(&a, &bye, WIRE_OK, sizeof bye.head, NULL, 0), 0);
	ask_close(&a);
	a = raw();
	REFUSED(&a, want, WIRE_RESTORE, -1, -EPROTO, "");
	REFUSED(&a, good, WIRE_HELLO, file, -ENOTDIR, "");
	/* Attached, and then nonsense. */
	assert_int_equal(ask_fd(&a, &good, WIRE_HELLO, sizeof good, store, NULL, 0, NULL),
			 WIRE_WELCOME);
	REFUSED(&a, good, WIRE_HELLO, store, -EPROTO, "");
	other = raw();
	REFUSED(&other, good, WIRE_HELLO, store, -EBUSY, "");
	ask_close(&other);
	REFUSED(&a, want, WIRE_RESTORE, -1, -EPROTO, "");
	assert_int_equal(ask(&a, &steps, WIRE_STEPS, sizeof steps, NULL, 0), WIRE_STEPS_ARE);
	fd = memfd_of(junk, 4096, 0);
	REFUSED(&a, seg, WIRE_SEGMENT, fd, 0, "seals");
	(void)close(fd);
	/* a slot of an earlier daemon that could still shrink */
	fd = memfd_of(junk, 4096, F_SEAL_GROW);
	adopt.slot = 0;
	REFUSED(&a, adopt, WIRE_ADOPT, fd, 0, "seals");
	adopt.slot = 7;
	(void)close(fd);
	fd = memfd_of(junk, 4096, F_SEAL_SHRINK | F_SEAL_GROW);
	seg.bytes = 8192;
	REFUSED(&a, seg, WIRE_SEGMENT, fd, 0, "");
	seg.bytes = 4096;
	seg.id = WIRE_SEGMENTS_MAX;
	REFUSED(&a, seg, WIRE_SEGMENT, fd, -E2BIG, "");
	seg.id = 5;
	assert_int_equal(ask_fd(&a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL), WIRE_OK);
	REFUSED(&a, seg, WIRE_SEGMENT, fd, -EALREADY, "");
	REFUSED(&a, adopt, WIRE_ADOPT, fd, 0, "");
	REFUSED(&a, decl, WIRE_DECLARE, fd, 0, ""); /* may still be written */
	(void)close(fd);
	REFUSED(&a, decl, WIRE_DECLARE, file, 0, "");
	assert_int_equal(ask(&a, &bye, WIRE_BYE, sizeof bye, NULL, 0), WIRE_OK);
	ask_close(&a);
	(void)close(store);
	(void)close(file);
	step_to(&K, 1, CKPT_FINAL, CKPT_COMMITTED);
}

/* --- the daemon goes --- */
static void *stop_host(void *arg)
{
	host_stop(arg);
	return NULL;
}

TEST(a_stopped_daemon_writes_what_is_staged_first)
{
	pthread_t t;
	int rc;

	host_start_gated();
	open_one(&K, "drain", "fsdp=1");
	gate_set(&G, true);
	step_to(&K, 1, CKPT_PERSIST, CKPT_STAGED);
	gate_await(&G);
	step_to(&K, 2, CKPT_STAGE_ONLY, CKPT_STAGED);
	assert_int_equal(pthread_create(&t, NULL, stop_host, &H), 0);
	while ((rc = rank_step(&K, 3, CKPT_STAGE_ONLY)) == 0) /* no further ones */
		;
	assert_true(rc == CKPT_SKIPPED || rc == CKPT_DETACHED);
	gate_set(&G, false);
	pthread_join(t, NULL);
	assert_true(host_has(&H, "drain", 1) && host_has(&H, "drain", 2));
	host_committed(&H, "drain", NULL, 0);
	while ((rc = rank_step(&K, 9, 0)) == CKPT_SKIPPED)
		;
	assert_int_equal(rc, CKPT_DETACHED);
}

static _Atomic bool back;

static void adopt_script(struct rank *k)
{
	struct io_faults *f = k->arg;
	uint64_t worst = 0, step = 3, until;
	uint32_t detached = 0;
	int rc;

	rank_open(k, k->plan, k->rank);
	step_to(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
	if (k->rank == 0)
		io_faults_fail(f, IO_ON_CREATE | IO_ON_WRITE, 1, -EIO, true);
	rank_meet(k);
	must_step(k, 2, CKPT_PERSIST);
	MUST_BE(rank_wait(k, 2, CKPT_COMMITTED), -EIO);
	must_wait(k, 2, CKPT_STAGED);
	atomic_store(&back, false);
	rank_meet(k);
	if (k->rank == 0) {
		host_kill(&H);
		atomic_store(&back, true);
	}
	/* Training goes on without a daemon: no call blocks. */
	until = now_ns() + 20 * SEC;
	do {
		uint64_t before = now_ns();

		rc = ckpt_guard(k->c, NULL);
		MUST(rc == 0 || rc == CKPT_TORN);
		rc = ckpt_snapshot(k->c, step, NULL);
		rc = rank_took(rc) ? 0 : rc; /* step 2 could not be written */
		MUST(rc == CKPT_DETACHED || rc == CKPT_SKIPPED || rc == 0);
		detached += rc == CKPT_DETACHED;
		worst = MAX(worst, now_ns() - before);
		if (rc == 0)
			step++;
		MUST(now_ns() < until);
	} while (!atomic_load(&back) || rc != CKPT_DETACHED);
	MUST(detached > 0 && worst < 10 * SEC);
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, NULL);
	rank_meet(k);
	must_reattach(k, 1); /* until then the old daemon's failure is what is known */
	must_wait(k, 2, CKPT_COMMITTED);
	MUST_BE(rank_stats(k).reattached, 1);
	rank_meet(k);
	must_step(k, 1000000, CKPT_FINAL); /* the ranks may have come to different steps */
	must_wait(k, 1000000, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(the_next_daemon_takes_over_what_was_staged)
{
	static struct io_faults f;
	uint64_t step[8];

	io_faults_init(&f, &host_ops);
	host_start(&H, &f.ops);
	team_of(plan("adopt", "fsdp=3"), adopt_script, &f);
	assert_int_equal(host_committed(&H, "adopt", step, 8), 3);
	assert_int_equal(step[1], 2);
	assert_int_equal(step[2], 1);
}

TEST(who_attaches_without_a_daemon_is_found_by_it_later)
{
	struct plan_of_job p = plan("later", "fsdp=1");
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	assert_int_equal(rank_attach(&k, &p, 0), -ECONNREFUSED);
	assert_null(k.c);
	rank_free(&k);
	p.flags = CKPT_USE_ENV; /* not REQUIRE */
	must_attach(&k, &p, 0);
	must_declare(&k);
	assert_int_equal(ckpt_seal(k.c, 0, &err), CKPT_SKIPPED);
	assert_int_equal(rank_step(&k, 1, 0), CKPT_DETACHED);
	host_start(&H, NULL);
	MUST_OK(ckpt_seal(k.c, 30 * SEC, &err), &err);
	must_step(&k, 2, CKPT_FINAL);
	must_wait(&k, 2, CKPT_COMMITTED);
	rank_close(&k, 0);
	assert_true(host_has(&H, "later", 2));
}

TEST(one_socket_has_one_daemon)
{
	struct daemon_opts o = { .socket = H.socket };
	struct ckpt_err err;
	struct daemon *d;

	host_start(&H, NULL);
	o.socket = H.socket;
	assert_int_equal(daemon_open(&o, &d, &err), -EADDRINUSE);
	assert_non_null(strstr(err.msg, H.socket));
	assert_null(d);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
