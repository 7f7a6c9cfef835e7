/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_replicas.c - replicas that have drifted apart (daemon/drift.h) in memory that the
 * daemon cannot read: the process's own, and that of devices. The library brings it to the daemon
 * (REPLICAS in ckpt/wire/shared.h). What is equal gets no report, whatever memory the ranks have
 * and whatever becomes of their steps.
 */
#include "tests/unit/test_daemon_drift_rig.h"
#include "ckpt/client/handle.h"
#include "tests/lib/draw.h"
#include <sys/mman.h>

#define STORM 240

static int setup_kinds(void **state)
{
	kinds = "s";
	driver = FAKECUDA;
	return setup(state);
}

static void found_in(const char *memory, const char *mesh, uint32_t rank, const char *name,
		     const char *who)
{
	kinds = memory;
	found_after(mesh, rank, name, who);
}

/* --- found --- */
TEST(replicas_in_the_processes_own_memory_are_compared)
{
	found_in("o", "dp=2", 1, "large", "ranks 0 | 1");
}

TEST(columns_with_gaps_of_own_memory_are_compared)
{
	found_in("o", "dp=3,tp=2", 3, "columns", "minority 3, against 1, 5");
}

TEST(replicas_of_shards_in_own_memory_are_compared)
{
	found_in("o", "dp=2,fsdp=2,tp=2", 6, "cut", "ranks 2 | 6");
}

TEST(replicas_on_devices_are_compared)
{
	found_in("d", "dp=2", 1, "large", "ranks 0 | 1");
}

TEST(boxes_of_three_dimensions_on_devices_are_compared)
{
	found_in("d", "dp=3,tp=2", 4, "deep", "minority 4, against 0, 2");
}

TEST(blocks_of_a_large_tensor_on_devices_are_told_apart_in_every_shard)
{
	found_in("d", "dp=2,fsdp=2,tp=2", 5, "wide", "ranks 1 | 5");
}

TEST(a_replica_in_own_memory_is_compared_with_others_of_the_library)
{
	found_in("so", "dp=3", 1, "scalar", "minority 1, against 0, 2");
}

TEST(a_replica_on_a_device_is_compared_with_those_of_the_host)
{
	found_in("sod", "dp=3", 2, "norm", "minority 2, against 0, 1");
}

TEST(a_replica_in_a_segment_is_compared_with_those_of_devices)
{
	found_in("sdd", "dp=3", 0, "strided", "minority 0, against 1, 2");
}

/* --- not found --- */
TEST(equal_replicas_in_different_memories_get_no_report)
{
	static const char *const memory[] = { "sod", "d", "o", "ds" };

	for (size_t i = 0; i < unit_scaled(ARRAY_LEN(memory)); i++) {
		kinds = memory[i];
		says_nothing(i % 2 ? "dp=2,fsdp=2" : "dp=2,tp=2");
	}
}

/* All replicas change alike: what the next steps compare are other bytes. */
static void train(uint64_t by)
{
	for (uint32_t r = 0; r < J.world; r++) {
		struct one *k = &J.k[r];

		if (k->stream)
			MUST_BE(cu->stream_sync(k->stream), 0);
		for (uint32_t t = 0; t < TENSORS; t++)
			for (uint64_t b = by % 97; specs[t].cls != CKPT_CONST && b < k->bytes[t];
			     b += 97)
				k->at[t][b]++;
	}
}

/* A tensor of this rank goes to other memory, of the same kind or of another one. */
static void move(uint32_t rank, uint32_t i, enum kind kind)
{
	struct one *k = &J.k[rank];
	struct ckpt_local local = { 0 };
	enum kind made = k->made[i];
	void *ptr = k->ptr[i];
	uint8_t *at = k->at[i];

	if (specs[i].gap || specs[i].cls == CKPT_CONST || !k->numel[i])
		return;
	memory_make(k, kind == ON_DEVICE && !k->stream ? IN_PROCESS : kind, i);
	memcpy(k->at[i], at, k->bytes[i]);
	local.ptr = k->ptr[i];
	MUST_OF(k, ckpt_tensor_move(k->c, k->id[i], &local, 1, &k->err));
	MUST_OF(k, ckpt_seal(k->c, PATIENCE, &k->err));
	memory_free(made, ptr);
}

/* Every rank marks, if it can; which of them torn: its copy is given up. */
static void storm_mark(uint32_t flags, uint32_t torn)
{
	J.step++;
	for (uint32_t r = 0; r < J.world; r++) {
		int rc = one_mark(&J.k[r], J.step, flags);

		MUST(rc == 0 || rc == CKPT_SKIPPED || rc == CKPT_DETACHED); /* by a late daemon */
		if (r == torn)
			(void)shared_tear(atomic_load(&J.k[r].c->link)->rank);
	}
}

/* Replicas change after each guard, which ends with what has come of the copies by then. */
static void storm_step(uint64_t *seed, uint32_t i)
{
	uint32_t what = (uint32_t)draw_below(seed, 12);
	bool held = fake && draw_below(seed, 2);

	if (held)
		fake->hold();
	storm_mark(what == 0 ? CKPT_PERSIST : CKPT_STAGE_ONLY,
		   what == 1 ? (uint32_t)draw_below(seed, J.world) : UINT32_MAX);
	J.k[1].c->guard = what == 2 ? CKPT_NEVER : CKPT_FINISH;
	if (held && what % 2)
		fake->release(draw_below(seed, 2));
	for (uint32_t r = 0; r < J.world; r++) /* what == 3: not of all of them */
		if (what != 3 || r)
			MUST(ckpt_guard(J.k[r].c, NULL) >= 0);
	if (held)
		fake->release(draw_below(seed, 2));
	if (what != 3)
		train(i);
	if (what == 4)
		move((uint32_t)draw_below(seed, J.world), (uint32_t)draw_below(seed, TENSORS),
		     (enum kind)draw_below(seed, 3));
}

/* Steps are skipped, torn, given up, left without a guard, committed; copies of devices come
 * before the guard or behind it; tensors move to other memory. */
TEST(a_stormy_run_of_equal_replicas_gets_no_report)
{
	static const char *const memory[] = { "sod", "do", "d" };
	uint64_t seed = draw_seed("replicas");

	for (size_t m = 0; m < ARRAY_LEN(memory); m++) {
		kinds = memory[m];
		job_open(&J, "dp=3", FRESH);
		for (uint32_t i = 0; i < unit_scaled(STORM); i++)
			storm_step(&seed, i);
		J.k[1].c->guard = CKPT_FINISH;
		job_guard(&J);
		assert_int_equal(findings(), 0);
		flip(&J, 1, "norm", 3); /* and it bites */
		for (uint32_t i = 0; i < 2 * ALL && !findings(); i++)
			job_steps(&J, 1);
		assert_soon(findings() == 1);
		said_forget(&daemon_said);
		job_close(&J);
		J.world = 0;
	}
}

/* Does this rank save elements of the tensor? */
static bool saves_some(const struct one *k, uint32_t i)
{
	const struct sealed *x = k->c->sealed;

	for (uint32_t r = 0; r < x->nrow; r++)
		if (!sealed_replica(x, r) && x->row[r].tensor == k->id[i])
			return true;
	return false;
}

/* To a page of its own. */
static void move_to_page(struct one *k, uint32_t i)
{
	struct ckpt_local local = { 0 };

	memory_free(k->made[i], TAKE(k->ptr[i]));
	memory_make(k, k->made[i], i);
	if (k->made[i] == IN_PROCESS) {
		free(k->ptr[i]);
		k->made[i] = IN_SEGMENT; /* of which nothing is freed */
		k->ptr[i] = k->at[i] = mmap(NULL, CANARY_PAGE, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(k->ptr[i] != MAP_FAILED);
	}
	memset(k->at[i], 0x55, k->bytes[i]);
	local.ptr = k->ptr[i];
	MUST_OF(k, ckpt_tensor_move(k->c, k->id[i], &local, 1, &k->err));
	MUST_OF(k, ckpt_seal(k->c, PATIENCE, &k->err));
}

/* The daemon does not compare memory that was unmapped. No step is lost, because this rank saves
 * nothing of that memory. */
static void gone_in(const char *memory)
{
	uint32_t i = spec_of("norm");
	struct one *k;

	kinds = memory;
	job_open(&J, "dp=2", FRESH);
	k = &J.k[saves_some(&J.k[0], i)];
	assert_false(saves_some(k, i));
	move_to_page(k, i);
	memset(J.k[!k->rank].at[i], 0x55, k->bytes[i]);
	job_steps(&J, ALL + 2);
	if (k->made[i] == ON_DEVICE)
		memory_free(ON_DEVICE, TAKE(k->ptr[i]));
	else
		MUST_BE(munmap(TAKE(k->ptr[i]), CANARY_PAGE), 0);
	job_steps(&J, 2 * ALL);
	assert_int_equal(findings(), 0);
	assert_int_equal(stats_of(k).torn, 0);
	job_close(&J);
	J.world = 0;
}

TEST(a_replica_whose_memory_is_gone_is_not_compared_and_costs_no_step)
{
	gone_in("o");
	gone_in("d");
}

/* It dies with copies under way, whose results still come in. */
TEST(a_daemon_that_ends_begins_no_sum)
{
	kinds = "so";
	job_open(&J, "dp=4", FRESH);
	for (uint32_t i = 1; i <= unit_scaled(40); i++) {
		job_mark(&J, CKPT_STAGE_ONLY);
		host_kill(&H);
		host_start(&H, NULL);
		for (uint32_t r = 0; r < J.world; r++) {
			assert_soon(stats_of(&J.k[r]).reattached >= i);
			MUST(ckpt_guard(J.k[r].c, NULL) >= 0);
		}
	}
}

/* What a snapshot reads besides what it saves. */
TEST(a_snapshot_brings_a_turn_of_the_replicas_and_no_more)
{
	uint64_t all = 0, most = 0, brought = 0;
	const struct sealed *x;

	kinds = "o";
	job_open(&J, "dp=4", FRESH);
	x = J.k[1].c->sealed;
	for (uint32_t i = 0; i < TENSORS; i++)
		if (specs[i].operand == 0 && J.k[1].ptr[i])
			all += J.k[1].numel[i] * dtype_bytes(specs[i].dtype);
	for (uint32_t turn = 1; turn <= DRIFT_TURNS; turn++) {
		const struct sealed_some some = { &x->replicas, 0, 0, turn };
		uint64_t n = sealed_queue_bytes(x, &some);

		brought += n;
		most = MAX(most, n);
	}
	assert_int_equal(brought, all); /* each element in one turn */
	printf("# %" PRIu64 " bytes of replicas, at most %" PRIu64 " with a snapshot\n", all, most);
	assert_true(most <= all / DRIFT_TURNS + (UINT64_C(2) << 17));
}

UNIT(.setup = setup_kinds, .teardown = teardown);
