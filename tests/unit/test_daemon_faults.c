/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_faults.c - the daemon on a disk that fails: each of its calls fails once in every way
 * that tests/lib/io_faults.h knows, while a trainer attaches, has two steps written, comes back and
 * restores. The trainer never waits in vain and goes on; whatever failed is told with a sentence;
 * no step that was acknowledged is lost or wrong; the daemon serves on as if nothing had been, and
 * keeps no descriptor.
 *
 * FAULT_STEP=1 looks at every call (make torture); without it, at some.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <dirent.h>

#if defined(__SANITIZE_THREAD__)
#define STEP 131
#elif defined(__SANITIZE_ADDRESS__)
#define STEP 67
#else
#define STEP 29
#endif
#define STEPS 2
#define LAST 9
#define BOUND (30 * SEC) /* until a test gives up; not a time that anything may take */

static struct io_faults faults;
static uint64_t runs, injections, refused;

/* What a life under faults has shown. */
struct life {
	const char *job;
	const struct io_fault_kind *kind;
	uint64_t nth;
	uint64_t newest; /* acknowledged; 0: none */
	bool acked[STEPS + 1], hit;
};

#define LIFE_FAIL(l, ...)                                                                        \
	do {                                                                                     \
		print_message("%s, call %llu: ", (l)->kind->name, (unsigned long long)(l)->nth); \
		fail_msg(__VA_ARGS__);                                                           \
	} while (0)

/* An error must have come with a sentence, and at once rather than by running out of time. */
static bool told(struct life *l, const char *what, int rc, const struct ckpt_err *err)
{
	if (rc == 0)
		return true;
	refused++;
	if (l->kind->harmless)
		LIFE_FAIL(l, "%s should have gone on: %d, %s", what, rc, err->msg);
	if (rc == -ETIMEDOUT || rc == CKPT_SKIPPED)
		LIFE_FAIL(l, "%s waits in vain (%d): %s", what, rc, err->msg);
	if (rc < 0 && !err->msg[0])
		LIFE_FAIL(l, "%s failed (%d) without a sentence", what, rc);
	return false;
}

static bool life_open(struct life *l, struct rank *k)
{
	struct plan_of_job p = ROW(.socket = H.socket, .store = H.store, .job = l->job,
				   .mesh = "fsdp=1", .rows = 8, .guard = CKPT_FINISH);

	*k = (struct rank){ 0 };
	if (!told(l, "attach", rank_attach(k, &p, 0), &k->err)) {
		rank_free(k);
		return false;
	}
	if (told(l, "declare", rank_declare(k), &k->err) &&
	    told(l, "seal", rank_seal(k, BOUND), &k->err))
		return true;
	rank_close(k, 0);
	return false;
}

static void life_save(struct life *l, struct rank *k, uint64_t step)
{
	uint64_t until = now_ns() + BOUND;
	int rc;

	do
		rc = rank_step(k, step, CKPT_PERSIST);
	while (rc == CKPT_SKIPPED && now_ns() < until && usleep(1000) == 0);
	rc = rank_took(rc) ? 0 : rc; /* also if the step before could not be written */
	if (!told(l, "snapshot", rc, &(struct ckpt_err){ .msg = "a step is refused" }))
		return;
	if (!told(l, "a save", rank_wait(k, step, CKPT_COMMITTED), &k->err))
		return;
	if (step <= STEPS)
		l->acked[step] = true;
	l->newest = step;
}

/* A launch that comes back. must: nothing fails any more. */
static void life_restore(struct life *l, struct rank *k, bool must)
{
	int rc;

	rank_clear(k);
	rc = rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
	if (rc == -ENOENT && !l->newest) { /* nothing on disk; what was only staged is given up */
		MUST(ckpt_fresh(k->c) == 0);
		return;
	}
	if (rc && must)
		LIFE_FAIL(l, "step %" PRIu64 " was acknowledged and cannot be restored: %d, %s",
			  l->newest, rc, k->err.msg);
	if (!told(l, "restore", rc, &k->err))
		return;
	if (k->got.step < l->newest && must)
		LIFE_FAIL(l, "step %" PRIu64 " was acknowledged, %" PRIu64 " is restored",
			  l->newest, k->got.step);
	if (!rank_check(k, k->got.step))
		LIFE_FAIL(l, "what is restored is not step %" PRIu64, k->got.step);
}

static void life_judge_store(struct life *l)
{
	uint64_t step[STEPS + 4];
	uint32_t n = host_committed(&H, l->job, step, ARRAY_LEN(step));

	assert_true(n <= ARRAY_LEN(step));
	for (uint64_t s = 1; s <= STEPS; s++) {
		bool there = false;

		for (uint32_t i = 0; i < n; i++)
			there |= step[i] == s;
		if (l->acked[s] && !there)
			(void)printf("# %s: %u committed, %u damaged, %u set aside\n", l->job, n,
				     host_count(&H, l->job, STORE_DAMAGED),
				     host_count(&H, l->job, STORE_SET_ASIDE));
		if (l->acked[s] && !there)
			LIFE_FAIL(l, "step %" PRIu64 " was acknowledged and is gone", s);
	}
	if (n == 0 || step[0] != LAST)
		LIFE_FAIL(l, "the last step is not the newest");
}

static void life_run(struct life *l)
{
	struct rank k;

	runs++;
	io_faults_plan(&faults, l->kind, l->nth);
	if (life_open(l, &k)) {
		for (uint64_t s = 1; s <= STEPS; s++)
			life_save(l, &k, s);
		rank_close(&k, 0);
	}
	if (life_open(l, &k)) {
		life_restore(l, &k, false);
		rank_close(&k, 0);
	}
	l->hit = io_faults_hit(&faults);
	injections += l->hit;
	io_faults_count(&faults, IO_ON_ANY); /* the disk is good again */
	if (!life_open(l, &k))
		LIFE_FAIL(l, "the daemon does not serve any more");
	life_restore(l, &k, true);
	life_save(l, &k, LAST);
	if (l->newest != LAST)
		LIFE_FAIL(l, "nothing is written any more");
	rank_close(&k, 0);
	life_judge_store(l);
}

static void every_call_of_the_daemon_may_fail(void **state)
{
	const struct io_fault_kind *kind = *state;
	const char *given = getenv("FAULT_STEP");
	uint64_t by = given ? strtoull(given, NULL, 0) : STEP, begun = now_ns();
	uint32_t files = open_files();
	bool hit = true;

	runs = injections = refused = 0;
	if (by > 1 && kind == &io_fault_kinds[0])
		by = (by + 3) / 4;
	io_faults_init(&faults, &host_ops);
	host_start(&H, &faults.ops);
	for (uint64_t nth = 1 + (uint64_t)(kind - io_fault_kinds) % by; hit; nth += by) {
		char job[32];
		struct life l = { .job = job, .kind = kind, .nth = nth };

		(void)snprintf(job, sizeof job, "k%d-%llu", (int)(kind - io_fault_kinds),
			       (unsigned long long)nth);
		life_run(&l);
		hit = l.hit;
	}
	host_stop(&H);
	assert_int_equal(open_files(), files);
	print_message("%llu lives, %llu injections, %llu answers that something failed, %llu ms\n",
		      (unsigned long long)runs, (unsigned long long)injections,
		      (unsigned long long)refused,
		      (unsigned long long)((now_ns() - begun) / NS_PER_MS));
}

static int teardown(void **state)
{
	(void)state;
	if (H.d) {
		io_faults_count(&faults, IO_ON_ANY);
		host_kill(&H);
	}
	host_free(&H);
	return 0;
}

static const struct CMUnitTest *cases(void)
{
	static struct CMUnitTest tests[32];

	assert(io_fault_kinds_n < ARRAY_LEN(tests));
	for (uint32_t i = 0; i < io_fault_kinds_n; i++)
		tests[i] = (struct CMUnitTest){ .name = io_fault_kinds[i].name,
						.test_func = every_call_of_the_daemon_may_fail,
						.setup_func = host_setup,
						.teardown_func = teardown,
						.initial_state = (void *)&io_fault_kinds[i] };
	return tests;
}
UNIT(.cases = cases);
