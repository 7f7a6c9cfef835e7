/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_canary.c - a state that is changed between ckpt_snapshot and ckpt_guard, with all
 * kinds of memory: with opts.check = 1 each element of each tensor is looked at, and what is left
 * alone is never said to be changed. The library and the daemon are in one process.
 */
#include "tests/lib/rank.h"

#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

static uint64_t seed;

static int setup(void **state)
{
	seed = draw_seed("daemon_canary");
	return host_setup_started(state);
}

static uint64_t torn(const struct rank *k)
{
	return rank_stats(k).torn;
}

static void calm_script(struct rank *k)
{
	for (uint64_t step = 1; step <= 10; step++) {
		step_to(k, step, step % 4 ? CKPT_STAGE_ONLY : CKPT_PERSIST,
			step % 4 ? CKPT_STAGED : CKPT_COMMITTED);
		must_guard(k);
		rank_meet(k);
	}
	MUST_BE(torn(k), 0);
}

TEST(what_is_left_alone_is_never_said_to_be_changed)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=3", "fsdp=2,tp=2", "dp=2,fsdp=2" };
	static const uint32_t check[] = { 0, 1, UINT32_MAX };

	for (uint32_t i = 0; i < ARRAY_LEN(mesh); i++)
		for (uint32_t c = 0; c < ARRAY_LEN(check); c++) {
			char job[16];

			snprintf(job, sizeof job, "calm%u%u", i, c);
			launch_of(plan(job, mesh[i], .check = check[c]), calm_script, NULL);
		}
}

/* The address of an element of a tensor, drawn. */
struct drawn {
	uint64_t left;
	uint8_t *p;
};

static bool draw_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	struct drawn *d = arg;

	(void)t, (void)g;
	d->p = p;
	return d->left-- != 0;
}

static uint8_t *any_byte(const struct rank_tensor *t)
{
	uint64_t n = t->nlocal ? 1 : 0;
	struct drawn d = { 0 };

	for (uint32_t i = 0; i < t->ndim; i++)
		n *= t->n[i];
	if (n == 0)
		return NULL;
	d.left = draw_below(&seed, n);
	rank_each(t, draw_one, &d);
	return d.p + draw_below(&seed, t->elem);
}

/* Marked, and staged: so the copy has passed all of it. */
static int change(struct rank *k, uint64_t step, uint8_t *at)
{
	int rc;

	step_to(k, step, CKPT_STAGE_ONLY, CKPT_STAGED);
	*at ^= 0x10;
	rc = ckpt_guard(k->c, NULL);
	*at ^= 0x10;
	return rc;
}

TEST(any_element_of_any_tensor_is_missed_by_a_check_of_all)
{
	uint64_t step = 0, found = 0;
	char name[160];

	open_one(&K, "any", "fsdp=1", .check = 1);
	for (uint32_t i = 0; i < K.ntensor; i++) {
		const struct rank_spec *s = &rank_specs[K.t[i].spec];

		for (uint32_t n = 0; n < 6; n++) {
			uint8_t *at = any_byte(&K.t[i]);

			if (!at)
				continue;
			if (s->cls != CKPT_STABLE) {
				MUST_BE(change(&K, ++step, at), 0);
				continue;
			}
			MUST_BE(change(&K, ++step, at), CKPT_TORN);
			MUST_BE(torn(&K), ++found);
			while (ckpt_wait(K.c, step, CKPT_STAGED, SEC, &K.err) != -ENOENT)
				sched_yield();
			snprintf(name, sizeof name,
				 "rank 0 changed %s/%s after ckpt_snapshot and before ckpt_guard",
				 s->component, s->name);
			rank_must(strstr(K.err.msg, name) != NULL, name, __FILE__, __LINE__,
				  K.err.msg);
		}
	}
	MUST(found > 50);
	must_step(&K, ++step, CKPT_FINAL); /* and nothing stays behind */
	must_wait(&K, step, CKPT_COMMITTED);
	must_guard(&K);
	rank_close(&K, 0);
	MUST(host_has(&H, "any", step));
	MUST_BE(host_committed(&H, "any", NULL, 0), 1);
}

TEST(both_logs_name_what_was_changed)
{
	static struct said library = SAID_NOTHING;
	uint8_t *at;

	open_one(&K, "logs", "fsdp=1", .check = 1, .log = said_line, .log_ctx = &library);
	at = any_byte(&K.t[rank_tensor_find(&K, "uneven")]);
	MUST_BE(change(&K, 1, at), CKPT_TORN);
	said_await(&library, "changed model/uneven after ckpt_snapshot and before ckpt_guard");
	said_await(&daemon_said, "rank 0 changed model/uneven after ckpt_snapshot");
	must_guard(&K); /* told once */
	rank_close(&K, 0);
	MUST_BE(said_times(&library, "changed model"), 1);
	assert_soon(said_times(&daemon_said, "changed model") == 1);
}

/* A log like that of a binding: its line needs a lock that the training thread may hold. */
struct locked_log {
	pthread_mutex_t lock;
	_Atomic bool called;
};

static void locked_line(void *ctx, int level, const char *line)
{
	struct locked_log *l = ctx;

	(void)level;
	if (!strstr(line, "changed model"))
		return;
	atomic_store(&l->called, true);
	pthread_mutex_lock(&l->lock);
	pthread_mutex_unlock(&l->lock);
}

TEST(a_log_that_waits_for_the_trainer_does_not_keep_it)
{
	static struct locked_log l = { .lock = PTHREAD_MUTEX_INITIALIZER };

	open_one(&K, "locked", "fsdp=1", .check = 1, .log = locked_line, .log_ctx = &l);
	pthread_mutex_lock(&l.lock);
	MUST_BE(change(&K, 1, any_byte(&K.t[rank_tensor_find(&K, "uneven")])), CKPT_TORN);
	while (!atomic_load(&l.called))
		sched_yield();
	alarm(60); /* what hangs ends this program */
	/* The helper, which declares, is in the log. */
	MUST_BE(rank_seal(&K, SEC / 4), CKPT_SKIPPED);
	pthread_mutex_unlock(&l.lock);
	must_seal(&K);
	alarm(0);
	step_to(&K, 2, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_step_that_was_changed_can_be_marked_again_at_once)
{
	uint64_t got[4];

	open_one(&K, "again", "fsdp=1", .check = 1);
	for (uint64_t step = 1; step <= 8; step++) {
		MUST_BE(change(&K, step, any_byte(&K.t[rank_tensor_find(&K, "w.master")])),
			CKPT_TORN);
		save(&K, step);
	}
	rank_close(&K, 0);
	MUST_BE(host_committed(&H, "again", got, 4), 8);
}

/* --- memory that is not there any more --- */
TEST(private_memory_may_be_unmapped_before_the_guard)
{
	struct plan_of_job p = plan("unmapped", "fsdp=1");
	const uint64_t words = 1 << 16;
	const struct ckpt_placement shard = { .how = CKPT_SHARD };
	uint8_t *mem[2];

	for (int state_of = CKPT_STAGED; state_of <= CKPT_COMMITTED;
	     state_of += CKPT_COMMITTED - CKPT_STAGED) {

		must_attach(&K, &p, 0);
		for (uint32_t i = 0; i < 2; i++) {
			struct ckpt_local at = { 0 };
			struct ckpt_tensor t =
				ROW(.size = sizeof t, .dtype = CKPT_U64, .component = "model",
				    .name = i ? "b" : "a", .ndim = 1, .mesh = K.mesh_id,
				    .nplace = 1, .nlocal = 1, .shape = &words, .place = &shard,
				    .local = &at);

			mem[i] = mmap(NULL, words * 8, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			MUST(mem[i] != MAP_FAILED);
			memset(mem[i], (int)i + 1, words * 8);
			at.ptr = mem[i];
			MUST_OK(ckpt_tensor_add(K.c, &t, NULL, &K.err), &K.err);
		}
		must_seal(&K);
		MUST_BE(ckpt_snapshot(K.c, 1, NULL), 0);
		must_wait(&K, 1, state_of);
		MUST_BE(munmap(mem[1], words * 8), 0);
		/* what is on disk needs no memory any more */
		MUST_BE(ckpt_guard(K.c, NULL), state_of == CKPT_STAGED ? CKPT_TORN : 0);
		MUST_BE(munmap(mem[0], words * 8), 0);
		rank_close(&K, 0);
		p.job = "unmapped2";
	}
	MUST_BE(host_committed(&H, "unmapped2", NULL, 0), 1);
}

UNIT(.setup = setup, .teardown = host_teardown);
