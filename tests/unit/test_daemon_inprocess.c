/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_inprocess.c - the library and the daemon in one process, ranks as threads: what ckpt.h
 * promises, from attach to a restore on another mesh, and what happens when something is full,
 * damaged, late or gone. CKPT_TEST_LOG=1 shows the daemon's log.
 */
#include "tests/lib/rank.h"

#include "tests/lib/host.h"
#include "tests/lib/io_faults.h"
#include "ckpt/client/wire.h"
#include "tests/lib/unit.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct host H;

static struct plan_of_job plan(const char *job, const char *mesh)
{
	return (struct plan_of_job){
		.socket = H.socket, .store = H.store, .job = job, .mesh = mesh, .guard = CKPT_FINISH
	};
}

static int setup(void **state)
{
	(void)state;
	host_make(&H);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (H.d)
		host_stop(&H);
	host_free(&H);
	return 0;
}

static void must_wait(struct rank *k, uint64_t step, int state)
{
	struct ckpt_err err = { 0 };

	MUST_OK(ckpt_wait(k->c, step, state, 30 * SEC, &err), &err);
}

/* Mark until it is taken: the slots come back when the daemon has written what is in them. */
static void must_step(struct rank *k, uint64_t step, uint32_t flags)
{
	MUST_BE(rank_step(k, step, flags), 0);
}

/* Steps from, from + 1, .. last; the last one FINAL and committed. */
static void train_some(struct rank *k, uint64_t from, uint64_t last)
{
	for (uint64_t step = from; step < last; step++) {
		int rc = rank_step(k, step, 0);

		MUST(rc == 0 || rc == CKPT_SKIPPED);
		rank_meet(k);
	}
	must_step(k, last, CKPT_FINAL);
	must_wait(k, last, CKPT_COMMITTED);
}

static void train_to_nine(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	rank_fill(k, 0);
	train_some(k, 1, 9);
	rank_meet(k);
	rank_close(k, 0);
}

static void resume_from_nine(struct rank *k)
{
	const uint32_t flags = *(const uint32_t *)k->arg;
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, k->plan, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, flags, &got, &err), &err);
	MUST_BE(got.step, 9);
	MUST_BE(got.where, flags == CKPT_FROM_DISK ? 2 : 1);
	MUST_BE(got.nmissing, 0);
	MUST(got.ntensor >= 12);
	MUST(rank_check(k, 9));
	MUST(rank_check_blobs(k, 9, got.world_saved));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(what_one_mesh_saved_every_mesh_restores_from_memory_and_from_disk)
{
	static const char *const meshes[] = { "fsdp=4", "fsdp=3", "dp=2,fsdp=2", "fsdp=1",
					      "fsdp=2,tp=2" };
	static const enum io_engine engines[] = { IO_THREADS, IO_AUTO };
	static const uint32_t flags[] = { CKPT_FROM_MEMORY, CKPT_FROM_DISK };
	uint64_t steps[16];

	for (uint32_t e = 0; e < 2; e++) {
		host_start(&H, engines[e], NULL);
		for (uint32_t i = 0; i < ARRAY_LEN(meshes); i += 1 + e) {
			char job[16];
			struct plan_of_job p = plan(job, meshes[i]);

			snprintf(job, sizeof job, "job%u%u", e, i);
			team(&p, train_to_nine, NULL);
			MUST(host_committed(&H, job, steps, 16) >= 1);
			MUST_BE(steps[0], 9);
			for (uint32_t f = 0; f < 2; f++) {
				uint32_t how = flags[f];
				struct plan_of_job q =
					plan(job, meshes[(i + f + 1) % ARRAY_LEN(meshes)]);

				team(&q, resume_from_nine, &how);
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
	struct ckpt_stats st = { .size = sizeof st };
	uint64_t wrote = 0;

	rank_open(k, k->plan, k->rank);
	for (uint64_t step = 1; step <= ARRAY_LEN(mark); step++) {
		must_step(k, step, mark[step - 1].flags);
		must_wait(k, step, mark[step - 1].written ? CKPT_COMMITTED : CKPT_STAGED);
		wrote += mark[step - 1].written;
		rank_meet(k);
	}
	MUST(ckpt_stats(k->c, &st) == 0);
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
	rank_close(k, 0);
}

TEST(every_third_is_written_and_a_mark_can_say_otherwise)
{
	struct plan_of_job p = plan("policy", "fsdp=2");
	struct checkpoint *c;

	p.persist_every = 3;
	host_start(&H, IO_THREADS, NULL);
	team(&p, policy_script, NULL);
	c = host_open(&H, "policy", 9);
	assert_int_equal(c->nnote, 2);
	assert_string_equal(c->note[0].key, "loss");
	assert_true(c->note[0].value == 0.1);
	assert_int_equal(c->parent_step, 7);
	assert_int_equal(c->world, 2);
	checkpoint_free(c);
}

static void *open_soon(void *arg)
{
	const struct timespec wait = {
		.tv_nsec = 30000000
	}; /* so that the other one is likely to be waiting by then */

	nanosleep(&wait, NULL);
	gate_set(arg, false);
	return NULL;
}

TEST(full_slots_skip_and_a_final_mark_waits)
{
	struct plan_of_job p = plan("slots", "fsdp=1");
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err;
	uint64_t step[8];
	struct rank k = { 0 };
	struct gate g;
	pthread_t t;

	gate_make(&g);
	host_start(&H, IO_AUTO, &g.ops);
	rank_open(&k, &p, 0);
	gate_set(&g, true);
	must_step(&k, 1, 0);
	must_wait(&k, 1, CKPT_STAGED);
	gate_await(&g);
	must_step(&k, 2, 0);
	must_wait(&k, 2, CKPT_STAGED);
	assert_int_equal(rank_step(&k, 3, 0), CKPT_SKIPPED);
	assert_int_equal(ckpt_wait(k.c, 3, CKPT_STAGED, SEC, &err), -ENOENT);
	assert_int_equal(ckpt_wait(k.c, 2, CKPT_COMMITTED, SEC / 20, &err), -ETIMEDOUT);
	assert_int_equal(pthread_create(&t, NULL, open_soon, &g), 0);
	must_step(&k, 4, CKPT_FINAL);
	must_wait(&k, 4, CKPT_COMMITTED);
	pthread_join(t, NULL);
	assert_int_equal(ckpt_stats(k.c, &st), 0);
	assert_true(st.taken == 3 && st.skipped == 1 && st.committed == 3);
	rank_close(&k, 0);
	assert_int_equal(host_committed(&H, "slots", step, 8), 3);
	assert_true(step[0] == 4 && step[1] == 2 && step[2] == 1);
}

static bool in_memory(struct rank *k, uint64_t step)
{
	struct ckpt_step s[16];
	int n = ckpt_steps(k->c, s, 16);

	for (int i = 0; i < n; i++)
		if (s[i].step == step && s[i].where & 1)
			return true;
	return false;
}

/* A guard can tear what is only marked: so what was confirmed as staged is not given up for it. */
TEST(a_staged_step_stays_until_a_newer_one_is_staged)
{
	struct plan_of_job p = plan("stays", "fsdp=1");
	uint64_t step[8];
	struct rank k = { 0 };
	struct gate g;

	gate_make(&g);
	host_start(&H, IO_THREADS, &g.ops);
	rank_open(&k, &p, 0);
	gate_set(&g, true);
	must_step(&k, 1, 0);
	must_wait(&k, 1, CKPT_STAGED);
	gate_await(&g);
	must_step(&k, 2, CKPT_STAGE_ONLY);
	must_wait(&k, 2, CKPT_STAGED);
	assert_int_equal(rank_step(&k, 3, CKPT_STAGE_ONLY), CKPT_SKIPPED);
	assert_int_equal(rank_step(&k, 4, CKPT_PERSIST), CKPT_SKIPPED);
	assert_true(in_memory(&k, 2));
	gate_set(&g, false);
	must_wait(&k, 1, CKPT_COMMITTED);
	must_step(&k, 5, CKPT_FINAL); /* waits for the slot of step 1 */
	assert_true(in_memory(&k, 2) || in_memory(&k, 5));
	must_wait(&k, 5, CKPT_COMMITTED);
	assert_false(in_memory(&k, 2));
	rank_close(&k, 0);
	assert_int_equal(host_committed(&H, "stays", step, 8), 2);
	assert_true(step[0] == 5 && step[1] == 1);
}

static void torn_script(struct rank *k)
{
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err = { 0 };
	struct ckpt_got got;
	uint32_t torn = 0;

	rank_open(k, k->plan, k->rank);
	rank_fill(k, 1);
	for (uint64_t step = 1; step <= 6; step++) {
		int rc = ckpt_snapshot(k->c, step, NULL);

		MUST(rc == 0 || rc == CKPT_SKIPPED);
		if (rc == 0 && k->rank == 1 &&
		    ckpt_guard(k->c, NULL) == CKPT_TORN) { /* at once: the copy cannot have ended */
			torn++;
			rank_fill(k, step + 1);
			MUST(ckpt_wait(k->c, step, CKPT_STAGED, 10 * SEC, &err) == -ENOENT);
			MUST(strstr(err.msg, "torn") || strstr(err.msg, "skipped"));
		} else {
			(void)ckpt_guard(k->c, NULL);
			rank_fill(k, step + 1);
		}
		rank_meet(k);
	}
	MUST(torn > 0 || k->rank == 0);
	MUST(ckpt_stats(k->c, &st) == 0 && st.torn >= torn);
	must_step(k, 9, CKPT_FINAL);
	must_wait(k, 9, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
	rank_meet(k);

	rank_open(k, k->plan, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	MUST(got.step == 9 && rank_check(k, 9));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(a_copy_that_a_guard_gave_up_is_never_written)
{
	struct plan_of_job p = plan("torn", "fsdp=2");

	p.guard = CKPT_NEVER;
	p.rows = 20000;
	host_start(&H, IO_THREADS, NULL);
	for (int shared = 0; shared < 2;
	     shared++) { /* what is given up is the library's copy, or the daemon's */
		p.job = shared ? "torn" : "torn-private";
		p.shared_only = shared;
		team(&p, torn_script, NULL);
		host_committed(&H, p.job, NULL, 0);
	}
}

TEST(who_does_not_guard_is_not_written)
{
	struct plan_of_job p = plan("unguarded", "fsdp=1");
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err;
	struct rank k = { 0 };

	host_start(&H, IO_THREADS, NULL);
	rank_open(&k, &p, 0);
	for (uint64_t step = 1; step <= 5; step++) { /* never a guard */
		int rc;

		rank_fill(&k, step);
		rc = ckpt_snapshot(k.c, step, NULL);
		assert_true(rc == 0 || rc == CKPT_SKIPPED);
	}
	assert_int_equal(ckpt_wait(k.c, 1, CKPT_STAGED, 5 * SEC, &err), -ENOENT);
	rank_fill(&k, 6);
	assert_int_equal(ckpt_snapshot(k.c, 6,
				       &(struct ckpt_mark){ .size = sizeof(struct ckpt_mark),
							    .flags = CKPT_FINAL }),
			 0);
	must_wait(&k, 6, CKPT_COMMITTED);
	assert_int_equal(ckpt_stats(k.c, &st), 0);
	assert_true(st.unguarded >= 1);
	/* Trusted by now, were it not for the past; and one that is trusted and forgets it once: */
	rank_close(&k, 0);
	for (uint64_t step = 1; step <= 6; step++)
		assert_int_equal(host_has(&H, "unguarded", step), step == 6);
	p.fresh = true;
	rank_open(&k, &p, 0);
	for (uint64_t step = 10; step <= 12; step++) {
		must_step(&k, step, CKPT_PERSIST);
		must_wait(&k, step, CKPT_COMMITTED);
	}
	must_step(&k, 13, CKPT_PERSIST);
	rank_fill(&k, 14);
	(void)ckpt_snapshot(k.c, 14, NULL);
	must_step(&k, 15, CKPT_FINAL);
	must_wait(&k, 15, CKPT_COMMITTED);
	rank_close(&k, 0);
	for (uint64_t step = 10; step <= 15; step++)
		assert_true(step == 14 || host_has(&H, "unguarded", step) == (step != 13));
	host_committed(&H, "unguarded", NULL, 0);
}

TEST(steps_grow_and_flags_are_known)
{
	struct plan_of_job p = plan("marks", "fsdp=1");
	struct ckpt_mark m = { .size = sizeof m };
	struct ckpt_note note[17] = { { "x", 1 } };
	struct ckpt_got got;
	struct ckpt_err err;
	struct rank k = { 0 };

	host_start(&H, IO_THREADS, NULL);
	rank_open(&k, &p, 0);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err), -ENOENT);
	assert_int_equal(rank_restore(&k, 17, 0, &got, &err), -ENOENT);
	assert_int_equal(
		rank_restore(&k, CKPT_LATEST, CKPT_FROM_DISK | CKPT_FROM_MEMORY, &got, &err),
		-EINVAL);
	assert_int_equal(rank_step(&k, 5, CKPT_STAGE_ONLY), -EUCLEAN);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err), -ENOENT);
	must_step(&k, 5, CKPT_STAGE_ONLY);
	must_wait(&k, 5, CKPT_STAGED);
	assert_int_equal(rank_step(&k, 5, 0), -EINVAL);
	assert_int_equal(rank_step(&k, 4, 0), -EINVAL);
	assert_int_equal(rank_step(&k, CKPT_LATEST, 0), -EINVAL);
	assert_int_equal(rank_step(&k, 6, 1 << 9), -EOPNOTSUPP);
	assert_int_equal(rank_step(&k, 6, CKPT_STAGE_ONLY | CKPT_FINAL), -EINVAL);
	m.note = note;
	m.nnote = 17;
	assert_int_equal(ckpt_snapshot(k.c, 6, &m), -EINVAL);
	assert_int_equal(rank_restore(&k, CKPT_LATEST, 0, &got, &err), -EALREADY);
	assert_int_equal(ckpt_wait(k.c, 99, CKPT_STAGED, SEC, &err), -ENOENT);
	assert_int_equal(ckpt_wait(k.c, 5, 7, SEC, &err), -EINVAL);
	assert_int_equal(ckpt_average(k.c, "fast", "x", &err), -EOPNOTSUPP);
	must_step(&k, 6, CKPT_PERSIST);
	/* Leaving in time to write it. */
	assert_int_equal(ckpt_detach(TAKE(k.c), 30 * SEC), 0);
	rank_free(&k);
	assert_true(host_has(&H, "marks", 6));
}

/* --- declarations --- */
static void epochs_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;
	uint64_t bytes;
	void *moved;
	int i;

	rank_open(k, k->plan, k->rank);
	must_step(k, 1, 0);
	must_wait(k, 1, CKPT_COMMITTED);
	/* One more. */
	MUST_OK(rank_tensor_declare(k, (uint32_t)ARRAY_LEN(rank_specs) - 1, &err), &err);
	MUST_BE(rank_step(k, 2, 0), CKPT_SKIPPED);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	must_step(k, 3, 0);
	must_wait(k, 3, CKPT_COMMITTED);
	/* One elsewhere. */
	i = rank_tensor_find(k, "w");
	bytes = k->t[i].n[0] * k->t[i].n[1] * k->t[i].elem;
	MUST_OK(ckpt_alloc(k->c, MAX(bytes, UINT64_C(1)), &moved, &err), &err);
	memset(k->t[i].ptr[0], 0x77, bytes);
	k->t[i].ptr[0] = moved;
	MUST_OK(ckpt_tensor_move(k->c, k->t[i].id, &(struct ckpt_local){ .ptr = moved }, 1, &err),
		&err);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	must_step(k, 4, 0);
	must_wait(k, 4, CKPT_COMMITTED);
	/* One less. */
	i = rank_tensor_find(k, "uneven");
	MUST(ckpt_tensor_drop(k->c, k->t[i].id) == 0);
	MUST(ckpt_tensor_drop(k->c, k->t[i].id) == -EINVAL);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	must_step(k, 5, CKPT_FINAL);
	must_wait(k, 5, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
	rank_meet(k);

	for (uint64_t step = 3; step <= 5; step++) {
		struct plan_of_job p = *k->plan;

		p.extra = true;
		rank_open(k, &p, k->rank);
		rank_clear(k);
		if (step == 5) {
			MUST_BE(rank_restore(k, step, CKPT_FROM_DISK, &got, &err), -EMEDIUMTYPE);
			MUST(strstr(err.msg, "uneven") && rank_check_clear(k));
			i = rank_tensor_find(k, "uneven");
		}
		MUST_OK(rank_restore(k, step, CKPT_FROM_DISK | (step == 5 ? CKPT_LENIENT : 0), &got,
				     &err),
			&err);
		MUST_BE(got.step, step);
		MUST_BE(got.nmissing, step == 5);
		if (step == 5)
			rank_each(&k->t[i], rank_fill_one,
				  &step); /* left as it was; all others must be right */
		MUST(rank_check(k, step));
		rank_meet(k);
		rank_close(k, 0);
		rank_meet(k);
	}
}

TEST(declarations_change_between_snapshots)
{
	struct plan_of_job p = plan("epochs", "fsdp=2");

	host_start(&H, IO_THREADS, NULL);
	team(&p, epochs_script, NULL);
	host_committed(&H, "epochs", NULL, 0);
}

static int add_simple(struct rank *k, const char *name, uint32_t dtype, uint64_t rows, bool twice,
		      struct ckpt_err *err)
{
	const struct ckpt_placement place = { .how = CKPT_SHARD, .split_factor = 1 };
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t = { .size = sizeof t,
				 .dtype = dtype,
				 .component = "model",
				 .name = name,
				 .ndim = 1,
				 .mesh = k->mesh_id,
				 .nplace = 1,
				 .nlocal = 1,
				 .shape = &rows,
				 .place = &place,
				 .local = &local };
	int rc = ckpt_alloc(k->c, rows * 16, &local.ptr, err);

	if (rc == 0)
		rc = ckpt_tensor_add(k->c, &t, NULL, err);
	return rc == 0 && twice ? ckpt_tensor_add(k->c, &t, NULL, err) : rc;
}

static void disagree_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	bool odd = k->rank == 1;

	MUST_OK(rank_attach(k, k->plan, k->rank, &err), &err);
	MUST_BE(ckpt_seal(k->c, 0, &err) < 0 ? -1 : 0, 0); /* nothing declared: allowed */
	MUST_OK(add_simple(k, "same", CKPT_F32, 8, false, &err), &err);
	MUST_OK(add_simple(k, "one", odd ? CKPT_F16 : CKPT_F32, 8, false, &err), &err);
	MUST_OK(add_simple(k, "two", CKPT_F32, odd ? 10 : 8, false, &err), &err);
	MUST_BE(add_simple(k, "same", CKPT_F32, 8, false, &err), -EALREADY);
	MUST(strstr(err.msg, "model/same"));
	rank_meet(k);
	if (!odd) {
		MUST_BE(ckpt_seal(k->c, SEC / 2, &err), CKPT_SKIPPED);
		rank_meet(k);
	} else {
		rank_meet(k);
		MUST_BE(ckpt_seal(k->c, 30 * SEC, &err), -EINVAL);
		MUST(strstr(err.msg, "one") && strstr(err.msg, "two") && !strstr(err.msg, "same"));
		MUST(strstr(err.msg, "F16") && strstr(err.msg, "F32") &&
		     strstr(err.msg, "rank 0") && strstr(err.msg, "rank 1"));
		/* Put right. */
		MUST(ckpt_tensor_drop(k->c, 1) == 0 && ckpt_tensor_drop(k->c, 2) == 0);
		MUST_OK(add_simple(k, "one", CKPT_F32, 8, false, &err), &err);
		MUST_OK(add_simple(k, "two", CKPT_F32, 8, false, &err), &err);
	}
	rank_meet(k);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	must_step(k, 1, CKPT_FINAL);
	must_wait(k, 1, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(ranks_that_disagree_hear_everything_at_once)
{
	struct plan_of_job p = plan("disagree", "fsdp=2");

	host_start(&H, IO_THREADS, NULL);
	team(&p, disagree_script, NULL);
}

static void uncovered_script(struct rank *k)
{
	struct ckpt_err err = { 0 };

	MUST_OK(rank_attach(k, k->plan, k->rank, &err), &err);
	MUST_OK(add_simple(k, "sound", CKPT_F32, 8, false, &err), &err);
	if (k->rank != 2)
		MUST_OK(add_simple(k, "gap", CKPT_F32, 9, false, &err), &err);
	MUST_BE(ckpt_seal(k->c, 30 * SEC, &err), -EINVAL);
	MUST(strstr(err.msg, "gap") && !strstr(err.msg, "sound"));
	MUST_BE(ckpt_snapshot(k->c, 1, NULL), CKPT_SKIPPED);
	rank_meet(k);
	if (k->rank == 2)
		MUST_OK(add_simple(k, "gap", CKPT_F32, 9, false, &err), &err);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	must_step(k, 2, CKPT_FINAL);
	must_wait(k, 2, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(elements_that_nobody_declares_are_told_to_all)
{
	struct plan_of_job p = plan("gap", "fsdp=3");

	host_start(&H, IO_THREADS, NULL);
	team(&p, uncovered_script, NULL);
}

TEST(what_does_not_fit_into_memory_max_is_not_sealed)
{
	struct plan_of_job p = plan("max", "fsdp=1");
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	p.memory_max = 4096;
	host_start(&H, IO_THREADS, NULL);
	MUST_OK(rank_attach(&k, &p, 0, &err), &err);
	MUST_OK(rank_declare(&k, &err), &err);
	assert_int_equal(ckpt_seal(k.c, SEC, &err), -ENOMEM);
	assert_non_null(strstr(err.msg, "memory_max"));
	assert_int_equal(rank_step(&k, 1, 0), CKPT_SKIPPED);
	rank_close(&k, 0);
}

/* --- restoring --- */
static void misfit_script(struct rank *k)
{
	struct ckpt_want w = { .size = sizeof w, .step = CKPT_LATEST, .only = "optim" };
	struct ckpt_err err = { 0 };
	const struct plan_of_job *fits = k->plan;
	struct plan_of_job p = *fits;
	struct ckpt_got got;

	train_to_nine(k);
	rank_meet(k);
	p.rows = 65;
	rank_open(k, &p, k->rank);
	rank_clear(k);
	MUST_BE(rank_restore(k, CKPT_LATEST, 0, &got, &err), -EMEDIUMTYPE);
	MUST(strstr(err.msg, "optim/w.master") && strstr(err.msg, "model/w:") &&
	     strstr(err.msg, "optim/w.exp_avg") && !strstr(err.msg, "tiny"));
	MUST(rank_check_clear(k));
	rank_meet(k);
	rank_close(k, 0);
	rank_meet(k);

	rank_open(k, fits, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_DRY_RUN, &got, &err), &err);
	MUST(got.step == 9 && got.nmissing == 0 && rank_check_clear(k));
	rank_fill(k, 77);
	got.size = sizeof got;
	MUST_OK(ckpt_restore(k->c, &w, &got, &err), &err);
	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t step = strcmp(rank_specs[k->t[i].spec].component, "optim") == 0 ? 9 : 77;

		MUST(rank_each(&k->t[i], rank_check_one, &step));
	}
	rank_meet(k);
	rank_close(k, 0);
}

TEST(everything_is_checked_before_the_first_byte_is_written)
{
	struct plan_of_job p = plan("misfit", "fsdp=2");

	host_start(&H, IO_THREADS, NULL);
	team(&p, misfit_script, NULL);
}

static void tardy_script(struct rank *k)
{
	struct ckpt_want w = { .size = sizeof w, .step = CKPT_LATEST, .deadline_ns = SEC / 4 };
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	MUST_OK(rank_attach(k, k->plan, k->rank, &err), &err);
	rank_meet(k);
	if (k->rank != 1) {
		MUST_OK(rank_declare(k, &err), &err);
		MUST_BE(ckpt_seal(k->c, SEC / 20, &err), CKPT_SKIPPED);
		MUST_BE(rank_step(k, 20, 0), -EUCLEAN); /* nobody has asked for step 9 */
		got.size = sizeof got;
		MUST_BE(ckpt_restore(k->c, &w, &got, &err), -ETIMEDOUT);
		MUST(strstr(err.msg, "rank 1 (never sealed)") && !strstr(err.msg, "rank 0"));
	}
	rank_meet(k);
	if (k->rank == 1)
		MUST_OK(rank_declare(k, &err), &err);
	MUST_OK(ckpt_seal(k->c, 30 * SEC, &err), &err);
	rank_meet(k);
	rank_clear(k);
	w.deadline_ns = 0;
	got.size = sizeof got;
	MUST_OK(ckpt_restore(k->c, &w, &got, &err), &err);
	MUST(got.step == 9 && rank_check(k, 9));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(a_rank_that_never_seals_is_named_to_the_others)
{
	struct plan_of_job p = plan("tardy", "fsdp=3");

	host_start(&H, IO_THREADS, NULL);
	team(&p, train_to_nine, NULL);
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

static void two_steps(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	for (uint64_t step = 1; step <= 2; step++) {
		must_step(k, step, 0);
		must_wait(k, step, CKPT_COMMITTED);
	}
	rank_meet(k);
	rank_close(k, 0);
}

static void damaged_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, k->plan, k->rank);
	rank_clear(k);
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	MUST_BE(got.step, 1);
	MUST_BE(got.npassed, 1);
	MUST(strncmp(got.passed, "step 2: ", 8) == 0 && !strchr(got.passed, '\n'));
	MUST(rank_check(k, 1) && rank_check_blobs(k, 1, got.world_saved));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(an_older_step_is_given_to_all_ranks_instead_of_a_damaged_one)
{
	struct plan_of_job p = plan("damaged", "fsdp=3");

	host_start(&H, IO_AUTO, NULL);
	team(&p, two_steps, NULL);
	host_damage(&H, "damaged", 2);
	p.mesh = "fsdp=2";
	team(&p, damaged_script, NULL);
	p.job = "damaged-agreed"; /* the first one's is remembered */
	team(&p, two_steps, NULL);
	host_damage(&H, "damaged-agreed", 2);
	p.agree = team_min;
	atomic_store(&agreements, 0);
	team(&p, damaged_script, NULL);
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
	struct ckpt_err err = { 0 };
	struct ckpt_got got;
	uint32_t seen;

	snprintf(there, sizeof there, "%s/pinned/step-%012u", H.store, 2);
	snprintf(away, sizeof away, "%s/away", H.dir);
	rank_open(k, k->plan, k->rank);
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
	MUST_OK(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK, &got, &err), &err);
	MUST_BE(got.step, 1);
	MUST(rank_check(k, 1));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(the_first_callers_choice_holds_for_all)
{
	struct plan_of_job p = plan("pinned", "fsdp=2");

	listed.ops = io_ops_posix;
	listed.ops.list = counting_list;
	host_start(&H, IO_THREADS, &listed.ops);
	team(&p, two_steps, NULL);
	team(&p, pinned_script, NULL);
}

static void rewind_script(struct rank *k)
{
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	rank_open(k, k->plan, k->rank);
	MUST_OK(rank_restore(k, 2, 0, &got, &err), &err);
	MUST(got.step == 2 && rank_check(k, 2));
	MUST_BE(rank_step(k, 2, 0), -EINVAL);
	must_step(k, 3, CKPT_FINAL);
	must_wait(k, 3, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

static void four_steps(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	for (uint64_t step = 1; step <= 4; step++) {
		must_step(k, step, 0);
		must_wait(k, step, CKPT_COMMITTED);
	}
	rank_meet(k);
	rank_close(k, 0);
}

TEST(who_goes_back_and_commits_sets_the_abandoned_steps_aside)
{
	struct plan_of_job p = plan("rewind", "fsdp=2");
	struct checkpoint *c;
	uint64_t step[8];

	host_start(&H, IO_THREADS, NULL);
	team(&p, four_steps, NULL);
	team(&p, rewind_script, NULL);
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

	rank_open(k, k->plan, k->rank);
	for (uint64_t step = 1; step <= 3; step++) {
		must_step(k, step, step < 3 ? CKPT_PERSIST : CKPT_STAGE_ONLY);
		must_wait(k, step, step < 3 ? CKPT_COMMITTED : CKPT_STAGED);
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
	rank_meet(k);
	rank_close(k, 0);
}

TEST(the_restorable_steps_are_told_newest_first)
{
	struct plan_of_job p = plan("steps", "fsdp=2");

	host_start(&H, IO_THREADS, NULL);
	team(&p, steps_script, NULL);
}

static _Atomic uint64_t fp_sum[RANK_TENSORS];

static void fingerprint_script(struct rank *k)
{
	rank_open(k, k->plan, k->rank);
	must_step(k, 9, CKPT_FINAL);
	must_wait(k, 9, CKPT_COMMITTED);
	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t fp;

		MUST(ckpt_fingerprint(k->c, k->t[i].id, &fp) == 0);
		atomic_fetch_add(&fp_sum[k->t[i].spec], fp);
	}
	MUST(ckpt_fingerprint(k->c, 99, &(uint64_t){ 0 }) == -EINVAL);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(fingerprints_of_the_ranks_add_up_to_the_stored_ones)
{
	static const char *const meshes[] = { "fsdp=3", "dp=2,fsdp=2", "fsdp=2,tp=2", "dp=3" };
	uint64_t first[RANK_TENSORS];

	host_start(&H, IO_THREADS, NULL);
	for (uint32_t m = 0; m < ARRAY_LEN(meshes); m++) {
		char job[8];
		struct plan_of_job p = plan(job, meshes[m]);
		struct checkpoint *c;

		snprintf(job, sizeof job, "fp%u", m);
		memset(fp_sum, 0, sizeof fp_sum);
		team(&p, fingerprint_script, NULL);
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
		checkpoint_free(c);
	}
}

/* --- when the disk fails --- */
TEST(a_full_disk_fails_the_step_and_training_goes_on)
{
	struct plan_of_job p = plan("full", "fsdp=1");
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };
	struct io_faults f;
	uint64_t step[8];

	io_faults_init(&f, &io_ops_posix);
	host_start(&H, IO_THREADS, &f.ops);
	rank_open(&k, &p, 0);
	must_step(&k, 1, 0);
	must_wait(&k, 1, CKPT_COMMITTED);
	io_faults_fail(&f, IO_ON_FALLOCATE | IO_ON_WRITE, 1, -ENOSPC, true);
	for (uint64_t s = 2; s <= 4; s++) {
		assert_int_equal(rank_step(&k, s, 0), s == 3 ? CKPT_FAILING : 0); /* once */
		must_wait(&k, s, CKPT_STAGED);
		assert_int_equal(ckpt_wait(k.c, s, CKPT_COMMITTED, 30 * SEC, &err), -ENOSPC);
		assert_non_null(strstr(err.msg, "space"));
		assert_int_equal(ckpt_why(k.c, &err), -ENOSPC);
		assert_non_null(strstr(err.msg, "space"));
	}
	assert_int_equal(host_count(&H, "full", STORE_COLLECTING), 0);
	io_faults_count(&f, IO_ON_ANY);
	must_step(&k, 5, 0);
	must_wait(&k, 5, CKPT_COMMITTED);
	assert_int_equal(ckpt_why(k.c, &err), 0);
	assert_int_equal(ckpt_stats(k.c, &st), 0);
	assert_true(st.failed == 3 && st.committed == 2 && st.last_committed_step == 5);
	rank_close(&k, 0);
	host_stop(&H);
	assert_int_equal(host_committed(&H, "full", step, 8), 2);
	assert_true(step[0] == 5 && step[1] == 1);
}

TEST(every_sync_may_fail_once_and_nothing_is_lost)
{
	struct plan_of_job p = plan("sync", "fsdp=2");
	struct ckpt_err err = { 0 };
	struct rank k[2] = { { 0 } };
	struct io_faults f;
	uint32_t failed = 0, n;
	uint64_t step = 1;

	p.mesh = "dp=2";
	io_faults_init(&f, &io_ops_posix);
	host_start(&H, IO_THREADS, &f.ops);
	ranks_open(k, 2, &p);
	for (n = 1;; n++, step += 2) {
		int rc;

		io_faults_fail(&f, IO_ON_SYNC, n, -EIO, false);
		for (uint32_t r = 0; r < 2; r++)
			must_step(&k[r], step, CKPT_PERSIST);
		for (uint32_t r = 0; r < 2; r++)
			MUST_BE(ckpt_guard(k[r].c, NULL), 0);
		rc = ckpt_wait(k[0].c, step, CKPT_COMMITTED, 30 * SEC, &err);
		assert_true(rc == 0 || rc == -EIO);
		failed += rc != 0;
		if (!io_faults_hit(&f))
			break;
		assert_true(n > 2 || rc == 0); /* the parts: written anew */
		for (uint32_t r = 0; r < 2; r++)
			MUST_BE(rank_step(&k[r], step + 1, CKPT_PERSIST), rc ? CKPT_FAILING : 0);
		for (uint32_t r = 0; r < 2; r++)
			MUST_BE(ckpt_guard(k[r].c, NULL), 0);
		must_wait(&k[1], step + 1, CKPT_COMMITTED);
		assert_true(rc != 0 || host_has(&H, "sync", step));
		assert_true(host_has(&H, "sync", step + 1));
	}
	print_message("%u syncs, %u of them failed the step\n", n - 1, failed);
	assert_true(n > 4);
	for (uint32_t r = 0; r < 2; r++)
		rank_close(&k[r], 0);
	host_stop(&H);
	host_committed(&H, "sync", NULL, 0);
	assert_int_equal(host_count(&H, "sync", STORE_COLLECTING), 0);
}

/* --- launches --- */
TEST(a_newer_launch_fences_the_older)
{
	struct plan_of_job p = plan("fence", "fsdp=1");
	struct rank old = { 0 }, new = { 0 }, late = { 0 };
	struct ckpt_err err = { 0 };
	struct ckpt_got got;

	host_start(&H, IO_THREADS, NULL);
	p.generation = 5;
	rank_open(&old, &p, 0);
	must_step(&old, 1, CKPT_PERSIST);
	must_wait(&old, 1, CKPT_COMMITTED);
	must_step(&old, 2, CKPT_STAGE_ONLY);
	must_wait(&old, 2, CKPT_STAGED);
	p.generation = 7;
	rank_open(&new, &p, 0);
	assert_int_equal(rank_step(&old, 3, 0), -ESTALE);
	assert_int_equal(ckpt_guard(old.c, NULL), 0);
	assert_int_equal(ckpt_seal(old.c, SEC, &err), -ESTALE);
	p.generation = 6;
	assert_int_equal(rank_attach(&late, &p, 0, &err), -ESTALE);
	assert_null(late.c);
	rank_free(&late);
	MUST_OK(rank_restore(&new, CKPT_LATEST, 0, &got, &err), &err);
	assert_int_equal(got.step, 2); /* what the fenced launch had staged is still the newest */
	assert_true(rank_check(&new, 2));
	must_step(&new, 3, CKPT_FINAL);
	must_wait(&new, 3, CKPT_COMMITTED);
	rank_close(&old, 0);
	rank_close(&new, 0);
	host_committed(&H, "fence", NULL, 0);
	assert_true(host_has(&H, "fence", 3) && host_has(&H, "fence", 1));
}

static void *team_of_nine(void *arg)
{
	const struct plan_of_job *p = arg;
	uint32_t memory = CKPT_FROM_MEMORY;

	team(p, train_to_nine, NULL);
	team(p, resume_from_nine, &memory);
	return NULL;
}

TEST(jobs_do_not_meet)
{
	struct plan_of_job p[3] = { plan("one", "fsdp=2"), plan("two", "fsdp=3"),
				    plan("three", "dp=2") };
	pthread_t t[3];

	host_start(&H, IO_THREADS, NULL);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, team_of_nine, &p[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 3; i++)
		assert_true(host_has(&H, p[i].job, 9));
}

TEST(a_handle_is_dead_in_a_child)
{
	struct plan_of_job p = plan("child", "fsdp=1");
	struct rank k = { 0 };
	int status;
	pid_t pid;

	host_start(&H, IO_THREADS, NULL);
	rank_open(&k, &p, 0);
	must_step(&k, 1, CKPT_STAGE_ONLY);
	pid = fork();
	if (pid == 0) {
		struct ckpt_got got;
		struct ckpt_err err;
		void *ptr;
		int bad = 0;

		bad += ckpt_snapshot(k.c, 2, NULL) != -ECHILD;
		bad += ckpt_guard(k.c, NULL) != -ECHILD;
		bad += ckpt_wait(k.c, 1, CKPT_STAGED, 0, &err) != -ECHILD;
		bad += ckpt_seal(k.c, 0, &err) != -ECHILD;
		bad += ckpt_alloc(k.c, 1, &ptr, &err) != -ECHILD;
		bad += rank_restore(&k, 1, 0, &got, &err) != -ECHILD;
		bad += ckpt_steps(k.c, NULL, 0) != -ECHILD;
		bad += ckpt_detach(k.c, 0) != -ECHILD;
		_exit(bad);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	must_step(&k, 2, CKPT_FINAL);
	must_wait(&k, 2, CKPT_COMMITTED);
	rank_close(&k, 0);
}

/* --- nonsense on the socket --- */
static int raw_connect(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval wait = { .tv_sec = 20 };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof a.sun_path, "%s", H.socket);
	assert_int_equal(connect(sock, (struct sockaddr *)&a, sizeof a), 0);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	return sock;
}

/* The type of the answer, 0 when the connection ended; *ret_code of a refusal. */
static uint32_t raw_ask(int sock, void *msg, uint32_t type, uint32_t bytes, int fd,
			int32_t *ret_code, char *ret_text)
{
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX];
	int got[WIRE_FDS_MAX], nfd, n;

	assert_int_equal(wire_send(sock, msg, type, bytes, 1, &fd, fd >= 0), 0);
	n = wire_recv(sock, buf, sizeof buf, got, &nfd);
	assert_true(n >= 0);
	wire_close_fds(got, nfd);
	if (n == 0)
		return 0;
	if (((struct wire_head *)buf)->type == WIRE_REFUSE) {
		if (ret_code)
			*ret_code = ((struct wire_refuse *)buf)->code;
		if (ret_text)
			memcpy(ret_text, ((struct wire_refuse *)buf)->text, WIRE_TEXT_MAX);
	}
	return ((struct wire_head *)buf)->type;
}

static int memfd_of(const void *bytes, size_t n, int seals)
{
	int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n &&
		    fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

TEST(nonsense_is_refused_with_a_reason_and_hurts_nobody)
{
	static const struct {
		struct wire_hello h;
		int32_t code;
	} bad[] = {
		{ { .rank = 0, .world = 0, .nslot = 2, .job = "raw" }, -EINVAL },
		{ { .rank = 2, .world = 2, .nslot = 2, .job = "raw" }, -EINVAL },
		{ { .rank = 0, .world = UINT32_MAX, .nslot = 2, .job = "raw" }, -EINVAL },
		{ { .rank = 0, .world = 1, .nslot = 1, .job = "raw" }, -EINVAL },
		{ { .rank = 0, .world = 1, .nslot = 5, .job = "raw" }, -EINVAL },
		{ { .rank = 0, .world = 1, .nslot = 2, .job = "../raw" }, -EINVAL },
		{ { .rank = 0, .world = 1, .nslot = 2, .job = "" }, -EINVAL },
		{ { .rank = 0, .world = 1, .nslot = 2, .job = ".ckptd" }, -EINVAL },
	};
	const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
	struct plan_of_job p = plan("sane", "fsdp=1");
	struct wire_hello good = {
		.rank = 0, .world = 1, .nslot = 2, .job = "raw", .generation = 3
	};
	struct wire_segment seg = { .id = 0, .bytes = 4096 };
	struct wire_declare decl = { .epoch = 1, .bytes = 4096 };
	struct wire_adopt adopt = { .slot = 7, .bytes = 4096 };
	struct wire_restore want = { .step = CKPT_LATEST };
	struct wire_steps steps;
	struct wire_bye bye = { 0 };
	uint8_t junk[8192] = { 1, 2, 3 };
	int store, file, fd, sock, other;
	struct rank k = { 0 };
	char text[WIRE_TEXT_MAX] = "";
	int32_t code = 0;

	host_start(&H, IO_THREADS, NULL);
	rank_open(&k, &p, 0);
	store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	file = memfd_of(junk, 4096, all);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct wire_hello h = bad[i].h;

		sock = raw_connect();
		assert_int_equal(raw_ask(sock, &h, WIRE_HELLO, sizeof h, store, &code, text),
				 WIRE_REFUSE);
		assert_int_equal(code, bad[i].code);
		assert_true(strlen(text) > 10);
		(void)close(sock);
	}
	/* No protocol at all, a wrong number of descriptors, a type of the other side, requests before HELLO. */
	sock = raw_connect();
	assert_int_equal(send(sock, junk, sizeof junk, 0), sizeof junk);
	assert_int_equal(recv(sock, junk, sizeof junk, 0), 0);
	(void)close(sock);
	sock = raw_connect();
	assert_int_equal(raw_ask(sock, &good, WIRE_HELLO, sizeof good, -1, NULL, NULL), 0);
	(void)close(sock);
	sock = raw_connect();
	assert_int_equal(raw_ask(sock, &bye, WIRE_OK, sizeof bye.head, -1, NULL, NULL), 0);
	(void)close(sock);
	sock = raw_connect();
	assert_int_equal(raw_ask(sock, &want, WIRE_RESTORE, sizeof want, -1, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -EPROTO);
	assert_int_equal(raw_ask(sock, &good, WIRE_HELLO, sizeof good, file, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -ENOTDIR);
	/* Attached, and then nonsense. */
	assert_int_equal(raw_ask(sock, &good, WIRE_HELLO, sizeof good, store, &code, text),
			 WIRE_WELCOME);
	assert_int_equal(raw_ask(sock, &good, WIRE_HELLO, sizeof good, store, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -EPROTO);
	other = raw_connect();
	assert_int_equal(raw_ask(other, &good, WIRE_HELLO, sizeof good, store, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -EBUSY);
	(void)close(other);
	assert_int_equal(raw_ask(sock, &want, WIRE_RESTORE, sizeof want, -1, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -EPROTO);
	assert_int_equal(raw_ask(sock, &steps, WIRE_STEPS, sizeof steps, -1, &code, text),
			 WIRE_STEPS_ARE);
	fd = memfd_of(junk, 4096, 0);
	assert_int_equal(raw_ask(sock, &seg, WIRE_SEGMENT, sizeof seg, fd, &code, text),
			 WIRE_REFUSE);
	assert_non_null(strstr(text, "seals"));
	(void)close(fd);
	fd = memfd_of(junk, 4096,
		      F_SEAL_GROW); /* a slot of an earlier daemon that could still shrink */
	adopt.slot = 0;
	assert_int_equal(raw_ask(sock, &adopt, WIRE_ADOPT, sizeof adopt, fd, &code, text),
			 WIRE_REFUSE);
	assert_non_null(strstr(text, "seals"));
	adopt.slot = 7;
	(void)close(fd);
	fd = memfd_of(junk, 4096, F_SEAL_SHRINK | F_SEAL_GROW);
	seg.bytes = 8192;
	assert_int_equal(raw_ask(sock, &seg, WIRE_SEGMENT, sizeof seg, fd, &code, text),
			 WIRE_REFUSE);
	seg.bytes = 4096;
	seg.id = WIRE_SEGMENTS_MAX;
	assert_int_equal(raw_ask(sock, &seg, WIRE_SEGMENT, sizeof seg, fd, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -E2BIG);
	seg.id = 5;
	assert_int_equal(raw_ask(sock, &seg, WIRE_SEGMENT, sizeof seg, fd, &code, text), WIRE_OK);
	assert_int_equal(raw_ask(sock, &seg, WIRE_SEGMENT, sizeof seg, fd, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(code, -EALREADY);
	assert_int_equal(raw_ask(sock, &adopt, WIRE_ADOPT, sizeof adopt, fd, &code, text),
			 WIRE_REFUSE);
	assert_int_equal(raw_ask(sock, &decl, WIRE_DECLARE, sizeof decl, fd, &code, text),
			 WIRE_REFUSE); /* may still be written */
	(void)close(fd);
	assert_int_equal(raw_ask(sock, &decl, WIRE_DECLARE, sizeof decl, file, &code, text),
			 WIRE_REFUSE);
	assert_true(code < 0 && strlen(text) > 10);
	assert_int_equal(raw_ask(sock, &bye, WIRE_BYE, sizeof bye, -1, &code, text), WIRE_OK);
	(void)close(sock);
	(void)close(store);
	(void)close(file);
	must_step(&k, 1, CKPT_FINAL);
	must_wait(&k, 1, CKPT_COMMITTED);
	rank_close(&k, 0);
}

/* --- the daemon goes --- */
static void *stop_host(void *arg)
{
	host_stop(arg);
	return NULL;
}

TEST(a_stopped_daemon_writes_what_is_staged_first)
{
	struct plan_of_job p = plan("drain", "fsdp=1");
	struct rank k = { 0 };
	struct gate g;
	pthread_t t;
	int rc;

	gate_make(&g);
	host_start(&H, IO_THREADS, &g.ops);
	rank_open(&k, &p, 0);
	gate_set(&g, true);
	must_step(&k, 1, CKPT_PERSIST);
	must_wait(&k, 1, CKPT_STAGED);
	gate_await(&g);
	must_step(&k, 2, CKPT_STAGE_ONLY);
	must_wait(&k, 2, CKPT_STAGED);
	assert_int_equal(pthread_create(&t, NULL, stop_host, &H), 0);
	while ((rc = rank_step(&k, 3, CKPT_STAGE_ONLY)) == 0) /* no further ones */
		;
	assert_true(rc == CKPT_SKIPPED || rc == CKPT_DETACHED);
	gate_set(&g, false);
	pthread_join(t, NULL);
	assert_true(host_has(&H, "drain", 1) && host_has(&H, "drain", 2));
	host_committed(&H, "drain", NULL, 0);
	while ((rc = rank_step(&k, 9, 0)) == CKPT_SKIPPED)
		;
	assert_int_equal(rc, CKPT_DETACHED);
	rank_close(&k, 0);
}

static _Atomic bool back;

static void adopt_script(struct rank *k)
{
	struct io_faults *f = k->arg;
	struct ckpt_stats st = { .size = sizeof st };
	struct ckpt_err err = { 0 };
	uint64_t worst = 0, step = 3, until;
	uint32_t detached = 0;
	int rc;

	rank_open(k, k->plan, k->rank);
	must_step(k, 1, CKPT_PERSIST);
	must_wait(k, 1, CKPT_COMMITTED);
	rank_meet(k);
	if (k->rank == 0)
		io_faults_fail(f, IO_ON_CREATE | IO_ON_WRITE, 1, -EIO, true);
	rank_meet(k);
	must_step(k, 2, CKPT_PERSIST);
	MUST_BE(ckpt_wait(k->c, 2, CKPT_COMMITTED, 30 * SEC, &err), -EIO);
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
	MUST(detached > 0 && worst < 2 * SEC);
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, IO_THREADS, NULL);
	rank_meet(k);
	for (until = now_ns() + 30 * SEC; st.reattached == 0;
	     sched_yield()) { /* until then the old daemon's failure is what is known */
		MUST(ckpt_stats(k->c, &st) == 0);
		MUST(now_ns() < until);
	}
	must_wait(k, 2, CKPT_COMMITTED);
	MUST_BE(st.reattached, 1);
	rank_meet(k);
	must_step(k, 1000000, CKPT_FINAL); /* the ranks may have come to different steps */
	must_wait(k, 1000000, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(the_next_daemon_takes_over_what_was_staged)
{
	struct plan_of_job p = plan("adopt", "fsdp=3");
	struct io_faults f;
	uint64_t step[8];

	io_faults_init(&f, &io_ops_posix);
	host_start(&H, IO_THREADS, &f.ops);
	team(&p, adopt_script, &f);
	assert_int_equal(host_committed(&H, "adopt", step, 8), 3);
	assert_int_equal(step[1], 2);
	assert_int_equal(step[2], 1);
}

TEST(who_attaches_without_a_daemon_is_found_by_it_later)
{
	struct plan_of_job p = plan("later", "fsdp=1");
	struct ckpt_err err = { 0 };
	struct rank k = { 0 };

	assert_int_equal(rank_attach(&k, &p, 0, &err), -ECONNREFUSED);
	assert_null(k.c);
	rank_free(&k);
	p.flags = CKPT_USE_ENV; /* not REQUIRE */
	MUST_OK(rank_attach(&k, &p, 0, &err), &err);
	MUST_OK(rank_declare(&k, &err), &err);
	assert_int_equal(ckpt_seal(k.c, 0, &err), CKPT_SKIPPED);
	assert_int_equal(rank_step(&k, 1, 0), CKPT_DETACHED);
	host_start(&H, IO_THREADS, NULL);
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

	host_start(&H, IO_THREADS, NULL);
	o.socket = H.socket;
	assert_int_equal(daemon_open(&o, &d, &err), -EADDRINUSE);
	assert_non_null(strstr(err.msg, H.socket));
	assert_null(d);
}

UNIT(.setup = setup, .teardown = teardown);
