/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_derived.c - tensors that a live job declares as the rounding of others: what a
 * declaration must say; what is written of them, and what the log says where they are not that
 * rounding; and that they come back, from memory and from disk. The library and the daemon in one
 * process, one rank.
 */
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define ROWS 300
#define COLS 70
#define NUMEL (ROWS * COLS)

UNIT(.setup = host_setup_started, .teardown = host_teardown);

/* --- what is refused --- */

static const uint64_t shape[2] = { ROWS, COLS }, other_shape[2] = { COLS, ROWS };
static const struct ckpt_placement shard = { .how = CKPT_SHARD, .split_factor = 1 };

static int declare(struct rank *k, const char *component, const char *name, const char *of,
		   uint32_t dtype, uint32_t cls, const uint64_t *n, uint32_t nplace, void **ret)
{
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = dtype, .cls = cls, .component = component,
		    .name = name, .of = of, .ndim = 2, .shape = n, .local = &local, .nlocal = 1,
		    .mesh = k->mesh_id, .nplace = nplace, .place = &shard);
	uint32_t id;

	MUST(!ckpt_alloc(k->c, 16 * NUMEL, &local.ptr, NULL));
	if (ret)
		*ret = local.ptr;
	return ckpt_tensor_add(k->c, &t, &id, &k->err);
}

static void attached(struct rank *k)
{
	struct plan_of_job p = plan("job", "fsdp=1");

	must_attach(k, &p, 0);
}

TEST(a_declaration_that_makes_no_sense_alone_is_refused_at_once)
{
	attached(&K);
	assert_int_equal(declare(&K, "m", "w", NULL, CKPT_BF16, CKPT_DERIVED, shape, 0, NULL),
			 -EINVAL);
	assert_non_null(strstr(K.err.msg, "m/w: a derived tensor needs .of"));
	assert_int_equal(declare(&K, "m", "w", "w.master", CKPT_BF16, CKPT_DERIVED, shape, 0, NULL),
			 -EINVAL);
	assert_int_equal(declare(&K, "m", "w", "o/w", CKPT_F32, CKPT_DERIVED, shape, 0, NULL),
			 -EINVAL);
	assert_non_null(strstr(K.err.msg, "must be BF16 or F16, not F32"));
	assert_int_equal(declare(&K, "m", "w", "o/w", CKPT_F16, CKPT_DERIVED, shape, 0, NULL), 0);
}

TEST(seal_names_every_derived_tensor_that_has_no_master)
{
	static const char *const words[] = {
		"m/none: it is derived of \"o/none\", which is not declared",
		"m/narrow: it is derived of o/narrow, which must be F32",
		"m/chain: it is derived of m/none",
		"m/shape: it is derived of o/shape, which has another shape",
		"m/layout: it is derived of o/layout, which has another layout",
		"m/sink: it is derived of o/sink",
	};

	attached(&K);
	MUST(!declare(&K, "m", "none", "o/none", CKPT_BF16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "m", "narrow", "o/narrow", CKPT_BF16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "o", "narrow", NULL, CKPT_F16, CKPT_STABLE, shape, 0, NULL));
	MUST(!declare(&K, "m", "chain", "m/none", CKPT_BF16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "m", "shape", "o/shape", CKPT_BF16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "o", "shape", NULL, CKPT_F32, CKPT_STABLE, other_shape, 0, NULL));
	MUST(!declare(&K, "m", "layout", "o/layout", CKPT_F16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "o", "layout", NULL, CKPT_F32, CKPT_STABLE, shape, 1, NULL));
	MUST(!declare(&K, "m", "sink", "o/sink", CKPT_F16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "o", "sink", NULL, CKPT_F32, CKPT_SINK, shape, 0, NULL));
	MUST(!declare(&K, "m", "good", "o/good", CKPT_F16, CKPT_DERIVED, shape, 0, NULL));
	MUST(!declare(&K, "o", "good", NULL, CKPT_F32, CKPT_STABLE, shape, 0, NULL));
	assert_int_equal(rank_seal(&K, PATIENCE), -EINVAL);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (!strstr(K.err.msg, words[i]))
			fail_msg("\"%s\" is not in: %s", words[i], K.err.msg);
	assert_null(strstr(K.err.msg, "good"));
}

/* --- what is written --- */

static float *master;
static uint16_t *param;

/* Numbers whose lower half is not zero, but no tie: the rounding is an addition. */
static void fill(uint64_t step)
{
	for (uint32_t i = 0; i < NUMEL; i++) {
		uint32_t v =
			0x3f800000 + (uint32_t)((i * UINT64_C(2654435761) + step * 977) % 0x400000);

		v = (v & 0xffff0000) | 0x7000;
		memcpy(&master[i], &v, 4);
		param[i] = (uint16_t)(v >> 16);
	}
}

static void opened(struct rank *k)
{
	attached(k);
	MUST(!declare(k, "model", "w", "optim/w.master", CKPT_BF16, CKPT_DERIVED, shape, 0,
		      (void **)&param));
	MUST(!declare(k, "optim", "w.master", "model/w", CKPT_F32, CKPT_STABLE, shape, 0,
		      (void **)&master));
	must_seal(k);
}

static void saved(struct rank *k, uint64_t step)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_PERSIST };

	must_soon(rank_took(ckpt_snapshot(k->c, step, &m)));
	must_wait(k, step, CKPT_COMMITTED);
	must_guard(k);
}

/* Has the step bytes of the parameter? All of it is right in any case. */
static bool stored(uint64_t step)
{
	struct checkpoint *c = host_open(&H, "job", step);
	uint32_t w = table_find(&c->table, "model", "w", TABLE_NONE), flags;

	assert_true(w != TABLE_NONE && c->table.first[w + 1] - c->table.first[w] == 1);
	flags = c->table.piece[c->table.first[w]].flags;
	assert_true(flags == 0 || flags == PIECE_DERIVED);
	checkpoint_free(c);
	return !flags;
}

static void is_back(uint64_t step, uint32_t flags)
{
	uint16_t *want = malloc(2 * NUMEL);

	assert_non_null(want);
	fill(step);
	memcpy(want, param, 2 * NUMEL);
	memset(param, 0xa5, 2 * NUMEL);
	memset(master, 0xa5, 4 * NUMEL);
	must_restore(&K, step, flags);
	assert_memory_equal(param, want, 2 * NUMEL);
	free(want);
}

TEST(the_rounding_of_a_master_is_not_written_and_comes_back)
{
	opened(&K);
	fill(1);
	saved(&K, 1);
	assert_false(stored(1));
	assert_int_equal(said_times(&daemon_said, "rounding of their masters"), 0);
	rank_close(&K, 0);
	K = (struct rank){ 0 };
	opened(&K);
	is_back(1, CKPT_FROM_MEMORY);
	rank_close(&K, 0);
	host_restart(&H);
	K = (struct rank){ 0 };
	opened(&K);
	is_back(1, CKPT_FROM_DISK);
}

TEST(what_is_not_the_rounding_is_written_and_said_once_an_epoch)
{
	void *p;

	opened(&K);
	for (uint64_t step = 1; step <= 3; step++) {
		fill(step);
		param[17] ^= 1;
		param[4000] ^= 0x8000;
		saved(&K, step);
		assert_true(stored(step));
	}
	assert_soon(said_times(&daemon_said,
			       "job job step 1: derived tensors are not the rounding of their "
			       "masters, or NaN, in 2 elements; so they are written as they "
			       "are, in 1 piece") == 1);
	assert_soon(said_times(&daemon_said, "model/w first, element 17 of rank 0") == 1);
	assert_soon(said_times(&daemon_said, "rounding of their masters") == 1);
	/* From the next step on it is the rounding again. */
	fill(4);
	saved(&K, 4);
	assert_false(stored(4));
	/* Another declaration: it is said anew. */
	MUST(!declare(&K, "model", "more", NULL, CKPT_F32, CKPT_STABLE, shape, 0, &p));
	must_seal(&K);
	fill(5);
	param[NUMEL - 1] ^= 1;
	saved(&K, 5);
	assert_true(stored(5));
	assert_soon(said_times(&daemon_said, "step 5: derived tensors") == 1);
	assert_soon(said_times(&daemon_said, "rounding of their masters") == 2);
}
