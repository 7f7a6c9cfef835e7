/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_own.c - the process's own memory: the library copies it straight into the slot,
 * nothing but what the rank owns, and nothing is held besides; memory that is gone tears the
 * snapshot, with the tensor's name, and training goes on; memory that moves between two steps costs
 * no step. The library and the daemon are in one process.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/deny_syscall.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define ELEMS (64u << 10)
#define BYTES (ELEMS * 4u)

/* A trainer with tensors "model/t0", "model/t1", ... of ELEMS, all of them on every rank. */
struct trainer {
	ckpt *c;
	struct ckpt_err err;
	uint32_t n, id[4];
	uint32_t *at[4];
	bool alloced[4];
};

static struct said said = SAID_NOTHING; /* of the trainers */
static uint64_t generation;
static const uint64_t shape = ELEMS;
static const struct ckpt_placement whole = { .how = CKPT_REPLICATE };

static uint32_t *mapped(void)
{
	void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(p != MAP_FAILED);
	return p;
}

static void attach(struct trainer *t, const char *job, uint32_t rank, uint32_t world)
{
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = job, .store = H.store,
		    .socket = H.socket, .rank = rank, .world = world, .generation = generation,
		    .guard = CKPT_FINISH, .log = said_line, .log_ctx = &said);

	*t = (struct trainer){ .n = 0 };
	MUST_OF(t, ckpt_attach(&o, &t->c, &t->err));
}

static void add(struct trainer *t, bool alloced)
{
	const char *dp = "dp";
	uint32_t world = t->c->world, mesh, i = t->n++;
	struct ckpt_local local = { 0 };
	char name[8];
	void *p;
	struct ckpt_tensor x = ROW(.size = sizeof x, .dtype = CKPT_F32, .component = "model",
				   .name = name, .ndim = 1, .shape = &shape, .nplace = 1,
				   .place = &whole, .nlocal = 1, .local = &local);

	if (alloced)
		MUST_OF(t, ckpt_alloc(t->c, BYTES, &p, &t->err));
	t->at[i] = alloced ? p : mapped();
	t->alloced[i] = alloced;
	local.ptr = t->at[i];
	snprintf(name, sizeof name, "t%u", i);
	MUST_OF(t, ckpt_mesh(t->c, 1, &dp, &world, NULL, &mesh, &t->err));
	x.mesh = mesh;
	MUST_OF(t, ckpt_tensor_add(t->c, &x, &t->id[i], &t->err));
}

static void fill(struct trainer *t, uint64_t step)
{
	for (uint32_t i = 0; i < t->n; i++)
		for (uint32_t k = 0; t->at[i] && k < ELEMS; k++)
			t->at[i][k] = (uint32_t)(step * 1000003 + i * 7919 + k);
}

static bool holds(const struct trainer *t, uint64_t step)
{
	for (uint32_t i = 0; i < t->n; i++)
		for (uint32_t k = 0; k < ELEMS; k++)
			if (t->at[i][k] != (uint32_t)(step * 1000003 + i * 7919 + k))
				return false;
	return true;
}

/* Of many steps in a row few are written: nobody waits for the disk. */
static int mark(struct trainer *t, uint64_t step)
{
	struct ckpt_mark m = ROW(.size = sizeof m,
				 .flags = step > 3 && step % 20 ? CKPT_STAGE_ONLY : CKPT_PERSIST);

	return ckpt_snapshot(t->c, step, &m);
}

static int restore(struct trainer *t, uint64_t step, uint32_t flags)
{
	struct ckpt_want w = ROW(.size = sizeof w, .step = step, .flags = flags | CKPT_EXACT);

	return ckpt_restore(t->c, &w, NULL, &t->err);
}

static void leave(struct trainer *t)
{
	MUST_BE(ckpt_detach(t->c, 0), 0);
	for (uint32_t i = 0; i < t->n; i++)
		if (t->at[i] && !t->alloced[i])
			munmap(t->at[i], BYTES);
}

/* One step of n ranks in this thread, and its end. */
static void step_all(struct trainer *t, uint32_t n, uint64_t step)
{
	for (uint32_t r = 0; r < n; r++)
		fill(&t[r], step);
	for (uint32_t r = 0; r < n; r++)
		if (mark(&t[r], step) != 0) {
			(void)ckpt_why(t[r].c, &t[r].err);
			fail_msg("rank %u, step %" PRIu64 ": %s", r, step, t[r].err.msg);
		}
	for (uint32_t r = 0; r < n; r++)
		assert_int_equal(ckpt_guard(t[r].c, NULL), 0);
}

static void committed(struct trainer *t, uint64_t step)
{
	int rc = ckpt_wait(t->c, step, CKPT_COMMITTED, PATIENCE, &t->err);

	if (rc < 0)
		fail_msg("step %" PRIu64 ": %s", step, t->err.msg);
}

static void open_ranks(struct trainer *t, uint32_t n, const char *job, uint32_t own,
		       uint32_t alloced)
{
	generation++;
	for (uint32_t r = 0; r < n; r++) {
		attach(&t[r], job, r, n);
		for (uint32_t i = 0; i < own + alloced; i++)
			add(&t[r], i >= own);
	}
	for (uint32_t r = 0; r < n; r++)
		(void)ckpt_seal(t[r].c, r + 1 < n ? 0 : PATIENCE, &t[r].err);
	for (uint32_t r = 0; r + 1 < n; r++)
		assert_ok_err(ckpt_seal(t[r].c, PATIENCE, &t[r].err), &t[r].err);
}

static void restored_everywhere(const char *job, uint32_t own, uint32_t alloced, uint64_t step)
{
	struct trainer t;

	generation++;
	attach(&t, job, 0, 1);
	for (uint32_t i = 0; i < own + alloced; i++)
		add(&t, i >= own);
	assert_ok_err(ckpt_seal(t.c, PATIENCE, &t.err), &t.err);
	for (uint32_t disk = 0; disk < 2; disk++) {
		fill(&t, 0);
		assert_ok_err(restore(&t, step, disk ? CKPT_FROM_DISK : 0), &t.err);
		assert_true(holds(&t, step));
	}
	leave(&t);
}

static int setup(void **state)
{
	said_forget(&said);
	generation = 0;
	return host_setup_started(state);
}

TEST(the_library_copies_its_own_memory_and_the_daemon_the_rest)
{
	struct trainer t;
	struct shared_rank *page;

	open_ranks(&t, 1, "mixed", 2, 2);
	assert_int_equal(t.c->shadow, UINT32_MAX); /* no copy is held besides */
	assert_int_equal(t.c->nseg, 2);
	for (uint64_t step = 1; step <= 3; step++) {
		step_all(&t, 1, step);
		committed(&t, step);
	}
	page = atomic_load(&t.c->link)->rank;
	assert_int_equal(atomic_load(&page->own_bytes), 3 * 2 * BYTES);
	assert_int_equal(atomic_load(&page->copy_bytes), 3 * 2 * BYTES);
	leave(&t);
	restored_everywhere("mixed", 2, 2, 3);
	open_ranks(&t, 1, "own", 1, 0); /* nothing is left for the daemon */
	step_all(&t, 1, 1);
	committed(&t, 1);
	assert_int_equal(atomic_load(&atomic_load(&t.c->link)->rank->copy_bytes), 0);
	leave(&t);
	restored_everywhere("own", 1, 0, 1);
}

/* What another rank owns could as well not be there. */
TEST(of_replicas_only_owned_elements_are_read)
{
	struct trainer t[2];
	uint32_t gone = 0;

	open_ranks(t, 2, "replicas", 4, 0);
	step_all(t, 2, 1);
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t i = 0; i < 4; i++) {
			uint64_t sum;

			assert_int_equal(ckpt_fingerprint(t[r].c, t[r].id[i], &sum), 0);
			if (sum)
				continue;
			munmap(t[r].at[i], BYTES);
			t[r].at[i] = NULL;
			gone++;
		}
	assert_int_equal(gone, 4);
	step_all(t, 2, 2);
	committed(&t[0], 2);
	leave(&t[0]);
	leave(&t[1]);
	restored_everywhere("replicas", 4, 0, 2);
}

static void gone(uint8_t *from, uint64_t bytes)
{
	static const char why[] = "tensor model/t1: its memory is no longer mapped";
	static uint32_t n;
	struct trainer t;
	char job[16];
	uint8_t *all;
	uint64_t at;

	snprintf(job, sizeof job, "gone%u", n++);
	open_ranks(&t, 1, job, 2, 1);
	step_all(&t, 1, 1);
	committed(&t, 1);
	fill(&t, 2);
	all = (uint8_t *)t.at[1];
	at = (uintptr_t)from;
	munmap(all + at, bytes);
	said_forget(&said);
	said_forget(&daemon_said);
	assert_int_equal(mark(&t, 2), 0);
	assert_int_equal(ckpt_wait(t.c, 2, CKPT_COMMITTED, PATIENCE, &t.err), -ENOENT);
	assert_soon(ckpt_why(t.c, &t.err) == -ENOENT && strstr(t.err.msg, why));
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	said_await(&said, why);
	said_await(&daemon_said, why);
	assert_true(mmap(all + at, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all + at);
	step_all(&t, 1, 3);
	committed(&t, 3);
	leave(&t);
	restored_everywhere(job, 2, 1, 3);
}

TEST(memory_that_is_gone_tears_the_step_with_the_tensors_name)
{
	gone((uint8_t *)(BYTES / 2), 4096); /* in the middle */
	gone((uint8_t *)0, 4096);
	gone((uint8_t *)(BYTES - 4096), 4096);
	gone((uint8_t *)0, BYTES);
}

/* Memory of another kind, or another place, for this tensor. */
static void move(struct trainer *t, uint32_t i, bool alloced)
{
	struct ckpt_local local = { 0 };
	uint32_t *old = t->at[i];
	void *p;

	if (alloced)
		MUST_OF(t, ckpt_alloc(t->c, BYTES, &p, &t->err));
	t->at[i] = alloced ? p : mapped();
	local.ptr = t->at[i];
	MUST_OF(t, ckpt_tensor_move(t->c, t->id[i], &local, 1, &t->err));
	if (!t->alloced[i])
		munmap(old, BYTES);
	t->alloced[i] = alloced;
}

TEST(memory_that_moves_between_steps_costs_no_step)
{
	enum { STEPS = 100 };
	struct trainer t[2];
	uint32_t epoch;

	open_ranks(t, 2, "moves", 2, 1);
	epoch = atomic_load(&t[0].c->epoch);
	for (uint64_t step = 1; step <= STEPS; step++) {
		uint32_t r = (uint32_t)(step % 2), i = (uint32_t)(step % 3);

		step_all(t, 2, step);
		assert_int_equal(ckpt_wait(t[0].c, step,
					   step > 3 && step % 20 ? CKPT_STAGED : CKPT_COMMITTED,
					   PATIENCE, &t[0].err),
				 0);
		move(&t[r], i, step % 10 == 0);
		assert_ok_err(ckpt_seal(t[r].c, PATIENCE, &t[r].err), &t[r].err);
	}
	for (uint32_t r = 0; r < 2; r++) {
		struct ckpt_stats s = { .size = sizeof s };

		assert_int_equal(ckpt_stats(t[r].c, &s), 0);
		assert_int_equal(s.taken, STEPS);
		assert_int_equal(s.skipped + s.torn, 0);
		assert_int_equal(atomic_load(&t[r].c->epoch), epoch);
		assert_true(atomic_load(&t[r].c->rev) == STEPS / 2);
	}
	leave(&t[0]);
	leave(&t[1]);
	restored_everywhere("moves", 2, 1, STEPS);
	restored_everywhere("moves", 2, 1, STEPS - 20);
}

TEST(what_was_moved_is_declared_to_the_next_daemon)
{
	struct trainer t;

	open_ranks(&t, 1, "moved", 2, 1);
	step_all(&t, 1, 1);
	committed(&t, 1);
	move(&t, 0, true);
	assert_ok_err(ckpt_seal(t.c, PATIENCE, &t.err), &t.err);
	host_restart(&H);
	assert_soon(atomic_load(&t.c->reattached) == 1);
	assert_soon(ckpt_seal(t.c, 0, &t.err) == 0 || atomic_load(&t.c->rev) == 1);
	fill(&t, 2);
	assert_soon(mark(&t, 2) == 0);
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	committed(&t, 2);
	leave(&t);
	restored_everywhere("moved", 2, 1, 2);
}

TEST(a_rev_that_changes_more_than_places_is_refused_with_the_tensor)
{
	struct trainer t;

	open_ranks(&t, 1, "more", 2, 0);
	step_all(&t, 1, 1);
	t.c->tensor[1].t.role = CKPT_MASTER;
	t.c->moved = true;
	assert_int_equal(ckpt_seal(t.c, PATIENCE, &t.err), -EINVAL);
	assert_non_null(strstr(t.err.msg, "model/t1"));
	assert_int_equal(mark(&t, 2), CKPT_SKIPPED);
	t.c->tensor[1].t.role = 0;
	assert_ok_err(ckpt_seal(t.c, PATIENCE, &t.err), &t.err);
	step_all(&t, 1, 3);
	committed(&t, 3);
	leave(&t);
}

TEST(while_its_own_copier_is_busy_a_step_is_skipped_for_that_reason)
{
	struct trainer t;

	open_ranks(&t, 1, "busy", 1, 0);
	step_all(&t, 1, 1);
	committed(&t, 1);
	atomic_store(&t.c->copier.busy, COPIER_ASKED);
	assert_int_equal(mark(&t, 2), CKPT_SKIPPED);
	assert_int_equal(ckpt_why(t.c, &t.err), -ENOENT);
	assert_non_null(strstr(t.err.msg, wire_skip_text(WIRE_SKIP_COPYING)));
	atomic_store(&t.c->copier.busy, 0);
	fill(&t, 3);
	assert_soon(mark(&t, 3) == 0); /* its slot has come back */
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	committed(&t, 3);
	leave(&t);
}

static int in_a_sandbox(void *arg)
{
	struct trainer t;

	(void)arg;
	if (setup(NULL) != 0)
		return 1;
	open_ranks(&t, 1, "sandbox", 2, 1);
	step_all(&t, 1, 1);
	committed(&t, 1);
	leave(&t);
	restored_everywhere("sandbox", 2, 1, 1);
	gone((uint8_t *)(BYTES / 2), 4096);
	host_teardown(NULL);
	return 0;
}

TEST(where_a_sandbox_refuses_process_vm_readv_it_is_the_same)
{
#ifdef __SANITIZE_THREAD__
	const bool possible = false; /* it allows no threads behind a fork */
#else
	const bool possible = true;
#endif
	int rc = possible ? deny_run(SYS_process_vm_readv, EPERM, in_a_sandbox, NULL)
			  : DENY_NOT_POSSIBLE;

	if (rc == DENY_NOT_POSSIBLE)
		skip();
	assert_int_equal(rc, 0);
}
UNIT(.setup = setup, .teardown = host_teardown);
