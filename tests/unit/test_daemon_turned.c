/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_turned.c - derived tensors of devices, of which each snapshot copies and compares
 * another 1/16 (ckpt/wire/turns.h), through the library and the daemon in one process, over a
 * driver without a GPU (tests/fakecuda): how much is copied; that what comes back, from memory,
 * from disk and from a daemon that took over, is the state; and what becomes of a tensor that is
 * not the rounding of its master after all.
 */
#include "ckpt/client/handle.h"
#include "ckpt/device/cuda_driver.h"
#include "ckpt/move/round.h"
#include "ckpt/wire/turns.h"
#include "tests/fakecuda/fakecuda_test.h"
#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define WORDS (2 * CANARY_FAR * sizeof(uint64_t)) /* what the canary reads of each snapshot */
#define HOST 2					  /* in place of the number of a device */
#define NONE UINT64_MAX
#define NTENSOR 5u

static const struct fakecuda *fake;
static const struct cuda_calls *cu;
static cuda_ctx ctx[2];
static struct said said = SAID_NOTHING;
static uint64_t generation;

/* A derived tensor and its master; pitch: elements of a row of the derived one in memory. */
struct pair {
	const char *name;
	uint32_t dtype;
	uint64_t rows, cols, pitch;
	uint32_t at, master_at; /* number of the device, or HOST */
};
static const struct pair pair[NTENSOR] = {
	{ "flat", CKPT_BF16, 1, 700003, 700003, 0, 0 },
	{ "wide", CKPT_BF16, 40, 5000, 6001, 1, 0 },
	{ "small", CKPT_F16, 1, 999, 999, 0, HOST },
	{ "host", CKPT_BF16, 1, 150000, 150000, HOST, 0 },
	{ "none", CKPT_BF16, 0, 8, 8, 0, 0 },
};

struct trainer {
	ckpt *c;
	struct ckpt_err err;
	void *p[NTENSOR], *m[NTENSOR]; /* as the trainer has them */
	uint64_t bad[NTENSOR];	       /* this element is not the rounding; NONE */
	uint64_t step;		       /* whose state it has */
	uint32_t id[NTENSOR];	       /* of the derived ones */
};

static int library_open(void **unused)
{
	(void)unused;
	cu = fakecuda_open(FAKECUDA, "2", &fake);
	MUST(cu);
	for (int d = 1; d >= 0; d--) {
		MUST_BE(cu->primary_retain(&ctx[d], d), 0);
		MUST_BE(cu->ctx_set(ctx[d]), 0);
	}
	return 0;
}

/* --- memory --- */
static void *memory_get(uint32_t at, uint64_t bytes)
{
	cuda_ptr p = 0;

	bytes = MAX(bytes, UINT64_C(64));
	if (at == HOST)
		return calloc(1, bytes);
	MUST_BE(cu->ctx_set(ctx[at]), 0);
	MUST_BE(cu->mem_alloc(&p, bytes), 0);
	MUST_BE(cu->ctx_set(ctx[0]), 0);
	return (void *)(uintptr_t)p;
}

static void memory_give(uint32_t at, void *p)
{
	if (at == HOST) {
		free(p);
		return;
	}
	MUST_BE(cu->ctx_set(ctx[at]), 0);
	MUST_BE(cu->mem_free((cuda_ptr)(uintptr_t)p), 0);
	MUST_BE(cu->ctx_set(ctx[0]), 0);
}

/* Where the test may touch it. */
static void *touch(uint32_t at, void *p)
{
	return at == HOST ? p : fake->alias((cuda_ptr)(uintptr_t)p);
}

static void trainer_make(struct trainer *t)
{
	*t = (struct trainer){ 0 };
	for (uint32_t i = 0; i < NTENSOR; i++) {
		const struct pair *x = &pair[i];

		t->p[i] = memory_get(x->at, 2 * x->rows * x->pitch);
		t->m[i] = memory_get(x->master_at, 4 * x->rows * x->cols);
		t->bad[i] = NONE;
	}
}

static void trainer_free(struct trainer *t)
{
	for (uint32_t i = 0; i < NTENSOR; i++) {
		memory_give(pair[i].at, t->p[i]);
		memory_give(pair[i].master_at, t->m[i]);
	}
}

/* --- the state of a step --- */
static uint32_t master_of(uint32_t i, uint64_t step, uint64_t n)
{
	uint64_t z = (n + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (step * 31 + i) * 0xbf58476d1ce4e5b9;
	uint32_t v = (uint32_t)(z >> 29);

	return (v & 0x7f800000) == 0x7f800000 ? v & ~UINT32_C(0x40000000) : v; /* no NaN */
}

static uint16_t rounded(uint32_t i, uint64_t step, uint64_t n)
{
	uint32_t v = master_of(i, step, n);
	uint16_t r;

	round_f32(pair[i].dtype, &v, &r, 1);
	return r;
}

static void state_make(struct trainer *t, uint64_t step)
{
	for (uint32_t i = 0; i < NTENSOR; i++) {
		const struct pair *x = &pair[i];
		uint16_t *p = touch(x->at, t->p[i]);
		uint32_t *m = touch(x->master_at, t->m[i]);

		for (uint64_t n = 0; n < x->rows * x->cols; n++)
			m[n] = master_of(i, step, n);
		for (uint64_t row = 0; row < x->rows; row++)
			round_f32(x->dtype, m + row * x->cols, p + row * x->pitch, x->cols);
		if (t->bad[i] != NONE)
			p[t->bad[i] / x->cols * x->pitch + t->bad[i] % x->cols] ^= 1;
	}
	t->step = step;
}

static void state_forget(struct trainer *t)
{
	for (uint32_t i = 0; i < NTENSOR; i++) {
		memset(touch(pair[i].at, t->p[i]), 0xee, 2 * pair[i].rows * pair[i].pitch);
		memset(touch(pair[i].master_at, t->m[i]), 0xee, 4 * pair[i].rows * pair[i].cols);
	}
}

/* Elements that are not those of the step; exact: of which tensors the bad element must be there;
 * of others it may be the rounding, too. NULL: of all. */
static uint64_t state_wrong(struct trainer *t, uint64_t step, const uint64_t bad[NTENSOR],
			    const bool exact[NTENSOR])
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < NTENSOR; i++) {
		const struct pair *x = &pair[i];
		const uint16_t *p = touch(x->at, t->p[i]);
		const uint32_t *m = touch(x->master_at, t->m[i]);

		for (uint64_t n = 0; n < x->rows * x->cols; n++) {
			uint16_t is = p[n / x->cols * x->pitch + n % x->cols],
				 want = rounded(i, step, n);

			wrong += m[n] != master_of(i, step, n);
			wrong += n == bad[i]
					 ? is != (want ^ 1) && (!exact || exact[i] || is != want)
					 : is != want;
		}
	}
	return wrong;
}

/* --- a trainer's life --- */
static void attach_as(struct trainer *t, uint32_t rank, uint32_t world)
{
	struct ckpt_opts o = ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = "turns",
				 .store = H.store, .socket = H.socket, .rank = rank, .world = world,
				 .generation = rank ? generation : ++generation,
				 .guard = CKPT_FINISH, .slots = 3, .device = 1,
				 .copy_rate = UINT64_MAX, .log = said_line, .log_ctx = &said);

	MUST_OF(t, ckpt_attach(&o, &t->c, &t->err));
}

static void attach(struct trainer *t)
{
	attach_as(t, 0, 1);
}

static uint32_t add(struct trainer *t, const char *component, const char *name, const char *of,
		    uint32_t dtype, uint32_t cls, const struct pair *x, void *p, uint64_t pitch)
{
	const uint64_t start[2] = { 0, 0 }, shape[2] = { MAX(x->rows, UINT64_C(1)), x->cols },
		       extent[2] = { x->rows, x->cols };
	const int64_t stride[2] = { (int64_t)pitch, 1 };
	const struct ckpt_local local = {
		.ptr = p, .start = start, .extent = extent, .stride = stride
	};
	struct ckpt_tensor d =
		ROW(.size = sizeof d, .dtype = dtype, .component = component, .name = name,
		    .of = of, .role = cls == CKPT_DERIVED ? CKPT_PARAM : CKPT_MASTER, .ndim = 2,
		    .shape = x->rows ? shape : extent, .mesh = CKPT_ALONE, .mode = CKPT_BOXES,
		    .cls = cls, .nlocal = 1, .local = &local);
	uint32_t id;

	MUST_OF(t, ckpt_tensor_add(t->c, &d, &id, &t->err));
	return id;
}

static void tensors_add(struct trainer *t)
{
	static const uint64_t len8 = 8;
	char key[64], name[32];

	for (uint32_t i = 0; i < NTENSOR; i++) {
		snprintf(name, sizeof name, "%s.master", pair[i].name);
		snprintf(key, sizeof key, "optim/%s", name);
		t->id[i] = add(t, "model", pair[i].name, key, pair[i].dtype, CKPT_DERIVED, &pair[i],
			       t->p[i], pair[i].pitch);
		add(t, "optim", name, NULL, CKPT_F32, CKPT_STABLE, &pair[i], t->m[i], pair[i].cols);
	}
	MUST_OF(t, ckpt_blob_add(t->c, "cursor", 0, &t->step, &len8, 8, &t->err));
}

static void declare(struct trainer *t)
{
	tensors_add(t);
	MUST_OF(t, ckpt_seal(t->c, PATIENCE, &t->err));
}

static void begin(struct trainer *t)
{
	fake->bandwidth(0);
	said_forget(&said);
	trainer_make(t);
	attach(t);
	declare(t);
}

static void end(struct trainer *t)
{
	MUST_BE(ckpt_detach(t->c, 0), 0);
	trainer_free(t);
	assert_int_equal(fake->violations(), 0);
}

static void step_mark(struct trainer *t, uint64_t step, uint32_t flags)
{
	struct ckpt_mark m = ROW(.size = sizeof m, .flags = flags);

	must_soon(rank_took(ckpt_snapshot(t->c, step, &m)));
	assert_int_equal(ckpt_guard(t->c, NULL), 0);
}

/* The state of a step, marked, copied, and its outcome: what ckpt_wait says of staged. */
static int step_taken(struct trainer *t, uint64_t step, uint32_t flags)
{
	state_make(t, step);
	step_mark(t, step, flags);
	return ckpt_wait(t->c, step, CKPT_STAGED, PATIENCE, &t->err);
}

static void good_step(struct trainer *t, uint64_t step, uint32_t flags)
{
	if (step_taken(t, step, flags) < 0)
		fail_msg("step %llu: %s", (unsigned long long)step, t->err.msg);
	if (!(flags & CKPT_STAGE_ONLY))
		MUST_OF(t, ckpt_wait(t->c, step, CKPT_COMMITTED, PATIENCE, &t->err));
}

static void restore(struct trainer *t, uint64_t step, uint32_t flags)
{
	struct ckpt_want w = ROW(.size = sizeof w, .step = step, .flags = flags | CKPT_EXACT);

	state_forget(t);
	MUST_OF(t, ckpt_restore(t->c, &w, NULL, &t->err));
}

/* Bytes on devices: of derived tensors, or of their masters. */
static uint64_t device_bytes(bool derived)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < NTENSOR; i++)
		if ((derived ? pair[i].at : pair[i].master_at) != HOST)
			bytes += (derived ? 2 : 4) * pair[i].rows * pair[i].cols;
	return bytes;
}

/* Of derived tensors alone, by a step. */
static uint64_t copied_by(struct trainer *t, uint64_t step)
{
	uint64_t before = fake->copied();

	good_step(t, step, CKPT_STAGE_ONLY);
	return fake->copied() - before - device_bytes(false) - WORDS;
}

static void daemon_again(struct trainer *t, uint64_t times)
{
	struct ckpt_stats s = ROW(.size = sizeof s);

	host_kill(&H);
	host_start(&H, NULL);
	must_soon(ckpt_stats(t->c, &s) == 0 && s.reattached >= times);
}

/* --- what is copied --- */
TEST(sixteen_steps_copy_all_of_the_derived_tensors_once)
{
	struct trainer t;
	uint64_t sum = 0;

	begin(&t);
	assert_int_equal(copied_by(&t, 1), device_bytes(true)); /* nothing is known yet */
	for (uint64_t step = 2; step < 2 + 2 * TURNS; step++) {
		uint64_t bytes = copied_by(&t, step);

		assert_true(bytes <= TURN_BYTES); /* all of them are seven blocks */
		sum += bytes;
		if (step == 1 + TURNS)
			assert_int_equal(sum, device_bytes(true));
	}
	assert_int_equal(sum, 2 * device_bytes(true));
	end(&t);
}

TEST(a_restore_from_memory_and_from_disk_has_the_state)
{
	struct trainer t;

	begin(&t);
	for (uint64_t step = 1; step <= 5; step++)
		good_step(&t, step, step == 4 ? CKPT_PERSIST : CKPT_STAGE_ONLY);
	restore(&t, 5, CKPT_FROM_MEMORY);
	assert_int_equal(state_wrong(&t, 5, t.bad, NULL), 0);
	restore(&t, 4, CKPT_FROM_DISK);
	assert_int_equal(state_wrong(&t, 4, t.bad, NULL), 0);
	/* Memory may be another one now: the next step copies all, the one behind it does not. */
	assert_int_equal(copied_by(&t, 5), device_bytes(true));
	assert_true(copied_by(&t, 6) <= TURN_BYTES);
	/* So it is under other declarations. */
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	assert_int_equal(copied_by(&t, 7), device_bytes(true));
	assert_true(copied_by(&t, 8) <= TURN_BYTES);
	end(&t);
}

static uint32_t flags_of(uint64_t step, const char *name)
{
	struct checkpoint *c = host_open(&H, "turns", step);
	uint32_t w = table_find(&c->table, "model", name, TABLE_NONE), flags;

	assert_true(w != TABLE_NONE && c->table.first[w + 1] - c->table.first[w] == 1);
	flags = c->table.piece[c->table.first[w]].flags;
	checkpoint_free(c);
	return flags;
}

TEST(a_file_says_which_pieces_were_not_compared)
{
	struct trainer t;

	begin(&t);
	good_step(&t, 1, CKPT_PERSIST);
	good_step(&t, 2, CKPT_PERSIST);
	for (uint32_t i = 0; i + 1 < NTENSOR; i++) {
		assert_int_equal(flags_of(1, pair[i].name), PIECE_DERIVED);
		assert_int_equal(flags_of(2, pair[i].name),
				 pair[i].at == HOST ? PIECE_DERIVED
						    : PIECE_DERIVED | PIECE_TRUSTED);
	}
	end(&t);
}

/* What is averaged is read where it lies. */
TEST(a_tensor_that_is_averaged_itself_is_copied_whole)
{
	struct trainer t;

	fake->bandwidth(0);
	trainer_make(&t);
	attach(&t);
	MUST_OF(&t, ckpt_average(t.c, "slow", "constant decay=.5 source=param", &t.err));
	declare(&t);
	for (uint64_t step = 1; step <= 3; step++)
		assert_int_equal(copied_by(&t, step), device_bytes(true));
	end(&t);
}

/* --- what is not the rounding --- */

TEST(a_tensor_that_is_unequal_is_found_within_sixteen_steps_and_copied_whole_from_then_on)
{
	struct trainer t;
	uint64_t step = 2;

	begin(&t);
	good_step(&t, 1, CKPT_STAGE_ONLY);
	t.bad[0] = 699999;
	while (step_taken(&t, step, CKPT_STAGE_ONLY) == 0)
		assert_true(++step < 2 + TURNS);
	assert_non_null(strstr(t.err.msg,
			       "rank 0: tensor model/flat is not the rounding of its "
			       "master, or NaN, at element 699999 of its piece; in step 1 it was"));
	assert_soon(said_times(&daemon_said, "tensor model/flat is not the rounding") == 1);
	/* The same step again: all of that tensor, and turns of the others. */
	assert_true(copied_by(&t, step) >= 2 * 700003);
	assert_true(copied_by(&t, step + 1) <= 2 * 700003 + TURN_BYTES);
	restore(&t, step + 1, CKPT_FROM_MEMORY);
	assert_int_equal(state_wrong(&t, step + 1, t.bad, NULL), 0);
	good_step(&t, step + 2, CKPT_PERSIST);
	good_step(&t, step + 3, CKPT_PERSIST);
	assert_int_equal(flags_of(step + 3, "flat"), 0);
	assert_int_equal(flags_of(step + 3, "wide"), PIECE_DERIVED | PIECE_TRUSTED);
	restore(&t, step + 3, CKPT_FROM_DISK);
	assert_int_equal(state_wrong(&t, step + 3, t.bad, NULL), 0);
	end(&t);
}

/* Whether the library knew of it when it marked that one, or not. */
TEST(a_step_that_is_marked_before_a_tensor_is_found_unequal_has_all_of_it_or_is_torn)
{
	struct trainer t;
	uint64_t step = 1;

	begin(&t);
	for (uint32_t round = 0; round < 8; round++) {
		int first = 0, second = 0;

		t.bad[0] = NONE;
		good_step(&t, step++, CKPT_STAGE_ONLY);
		t.bad[0] = 80000 * round;
		for (; first == 0 && second == 0; step += 2) {
			state_make(&t, step);
			step_mark(&t, step, CKPT_STAGE_ONLY);
			while (!copier_idle(t.c))
				;
			step_mark(&t, step + 1, CKPT_STAGE_ONLY); /* of the same state */
			first = ckpt_wait(t.c, step, CKPT_STAGED, PATIENCE, &t.err);
			second = ckpt_wait(t.c, step + 1, CKPT_STAGED, PATIENCE, &t.err);
		}
		if (first < 0 && second == 0) {
			assert_non_null(strstr(t.err.msg, "is not the rounding of its master"));
			restore(&t, step - 1, CKPT_FROM_MEMORY);
			assert_int_equal(state_wrong(&t, step - 2, t.bad, NULL), 0);
		}
		MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	}
	end(&t);
}

/* Has the daemon compared the newest snapshot's turn? */
static bool compared(const struct trainer *t)
{
	const struct shared_rank *page = atomic_load(&t->c->link)->rank;
	uint64_t mark = atomic_load(&page->marks);

	return turn_compared(page, mark, 1) ||
	       said_times(&daemon_said, "tensor model/flat is not the rounding");
}

/* The first rank is two steps ahead. The turn of the first one is equal, the second one shows that
 * the tensor is not, and only then the other rank comes to the first one. */
TEST(a_step_that_waits_for_a_rank_is_not_staged_with_what_a_later_one_has_shown)
{
	static const struct pair own = { "own", CKPT_F32, 1, 8, 8, HOST, HOST };
	float words[8] = { 0 };
	struct trainer t, u = { 0 };
	uint64_t step = 1;
	char text[64];
	int rc = 0;

	fake->bandwidth(0);
	said_forget(&daemon_said);
	trainer_make(&t);
	attach_as(&t, 0, 2);
	attach_as(&u, 1, 2);
	tensors_add(&t);
	add(&u, "other", own.name, NULL, own.dtype, CKPT_STABLE, &own, words, own.pitch);
	(void)ckpt_seal(t.c, 0, &t.err);
	MUST_OF(&u, ckpt_seal(u.c, PATIENCE, &u.err));
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	state_make(&t, step);
	step_mark(&t, step, CKPT_STAGE_ONLY);
	step_mark(&u, step, CKPT_STAGE_ONLY);
	MUST_OF(&t, ckpt_wait(t.c, step, CKPT_STAGED, PATIENCE, &t.err));
	while (rc == 0) {
		bool unequal;

		assert_true(++step < 2 + 2 * TURNS);
		step_mark(&t, step, CKPT_STAGE_ONLY);
		must_soon(compared(&t));
		memset(touch(0, t.p[0]), 0xff, 2 * pair[0].cols); /* no state has that */
		step_mark(&t, ++step, CKPT_STAGE_ONLY);
		must_soon(compared(&t));
		unequal = said_times(&daemon_said, "tensor model/flat is not the rounding") > 0;
		step_mark(&u, step - 1, CKPT_STAGE_ONLY);
		rc = ckpt_wait(t.c, step - 1, CKPT_STAGED, PATIENCE, &t.err);
		if (unequal != (rc < 0))
			fail_msg("step %llu is staged", (unsigned long long)step - 1);
		if (rc == 0) {
			step_mark(&u, step, CKPT_STAGE_ONLY);
			MUST_OF(&t, ckpt_wait(t.c, step, CKPT_STAGED, PATIENCE, &t.err));
			state_make(&t, 1);
		}
	}
	assert_non_null(strstr(t.err.msg, "another step has shown"));
	/* Nor does the next daemon stage it. */
	snprintf(text, sizeof text, "step %" PRIu64 " taken over", step - 1);
	said_forget(&daemon_said);
	daemon_again(&t, 1);
	state_make(&t, ++step);
	step_mark(&t, step, CKPT_STAGE_ONLY);
	step_mark(&u, step, CKPT_STAGE_ONLY);
	MUST_OF(&t, ckpt_wait(t.c, step, CKPT_STAGED, PATIENCE, &t.err));
	assert_int_equal(said_times(&daemon_said, text), 0);
	MUST_BE(ckpt_detach(u.c, 0), 0);
	end(&t);
}

TEST(a_tensor_that_is_unequal_from_the_beginning_never_goes_in_turns)
{
	struct trainer t;

	begin(&t);
	t.bad[1] = 4321;
	for (uint64_t step = 1; step <= TURNS + 2; step++)
		assert_true(copied_by(&t, step) >= 2 * 40 * 5000);
	restore(&t, TURNS + 2, CKPT_FROM_MEMORY);
	assert_int_equal(state_wrong(&t, TURNS + 2, t.bad, NULL), 0);
	end(&t);
}

/* More than ckptd can list: small ones, all in one block of memory. */
#define MANY (SHARED_WHOLE + 44)
static const struct pair many_pair = { "many", CKPT_BF16, 1, 8, 8, 0, 0 };
struct many {
	uint8_t *p, *m;
};

static void many_state(const struct many *x, uint64_t step, bool equal)
{
	uint16_t *p = touch(0, x->p);
	uint32_t *m = touch(0, x->m);

	for (uint64_t n = 0; n < MANY * 8; n++)
		m[n] = master_of(NTENSOR, step, n);
	round_f32(CKPT_BF16, m, p, MANY * 8);
	for (uint64_t n = 0; n < MANY && !equal; n++)
		p[n * 8] ^= 1;
}

static uint64_t many_wrong(const struct many *x, uint64_t step)
{
	const struct many is = { malloc(MANY * 16), malloc(MANY * 32) };
	uint64_t wrong;

	memcpy(is.p, touch(0, x->p), MANY * 16);
	memcpy(is.m, touch(0, x->m), MANY * 32);
	many_state(x, step, false);
	wrong = memcmp(is.p, touch(0, x->p), MANY * 16) != 0;
	wrong += memcmp(is.m, touch(0, x->m), MANY * 32) != 0;
	free(is.p);
	free(is.m);
	return wrong;
}

static void many_begin(struct trainer *t, struct many *x)
{
	char key[64], name[32];

	begin(t);
	*x = (struct many){ memory_get(0, MANY * 16), memory_get(0, MANY * 32) };
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "many.%u.master", i);
		snprintf(key, sizeof key, "optim/%s", name);
		add(t, "optim", name, NULL, CKPT_F32, CKPT_STABLE, &many_pair, x->m + i * 32, 8);
		snprintf(name, sizeof name, "many.%u", i);
		add(t, "model", name, key, CKPT_BF16, CKPT_DERIVED, &many_pair, x->p + i * 16, 8);
	}
	MUST_OF(t, ckpt_seal(t->c, PATIENCE, &t->err));
}

TEST(of_more_unequal_tensors_than_can_be_listed_all_are_copied_whole)
{
	const uint64_t all = device_bytes(true) + MANY * (16 + 32);
	uint64_t step = 1, copied = 0;
	struct trainer t;
	struct many x;

	many_begin(&t, &x);
	many_state(&x, step, true);
	good_step(&t, step, CKPT_STAGE_ONLY);
	many_state(&x, ++step, true);
	assert_true(copied_by(&t, step) < all);
	do /* until their turn comes */
		many_state(&x, ++step, false);
	while (step_taken(&t, step, CKPT_STAGE_ONLY) == 0 && step < 3 + TURNS);
	assert_non_null(strstr(t.err.msg, "is not the rounding of its master"));
	for (uint32_t i = 0; i < TURNS; i++, step++) { /* those found in turns tear a step each */
		many_state(&x, step, false);
		copied = fake->copied();
		if (step_taken(&t, step, CKPT_STAGE_ONLY) == 0)
			break;
	}
	assert_int_equal(fake->copied() - copied - device_bytes(false) - WORDS, all);
	for (uint32_t i = 0; i < 3; i++) {
		many_state(&x, ++step, false);
		assert_int_equal(copied_by(&t, step), all);
	}
	state_forget(&t);
	many_state(&x, 99, true);
	restore(&t, step, CKPT_FROM_MEMORY);
	assert_int_equal(many_wrong(&x, step), 0);
	many_state(&x, ++step, false);
	good_step(&t, step, CKPT_PERSIST);
	many_state(&x, 99, true);
	restore(&t, step, CKPT_FROM_DISK);
	assert_int_equal(many_wrong(&x, step), 0);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	memory_give(0, x.p);
	memory_give(0, x.m);
	trainer_free(&t);
}

/* It cannot be marked again. */
TEST(a_final_step_is_copied_whole)
{
	struct trainer t;

	begin(&t);
	good_step(&t, 1, CKPT_STAGE_ONLY);
	good_step(&t, 2, CKPT_STAGE_ONLY);
	t.bad[0] = 12;
	t.bad[2] = 998;
	good_step(&t, 3, CKPT_FINAL);
	assert_int_equal(flags_of(3, "flat"), 0);
	assert_int_equal(flags_of(3, "wide"), PIECE_DERIVED);
	restore(&t, 3, CKPT_FROM_DISK);
	assert_int_equal(state_wrong(&t, 3, t.bad, NULL), 0);
	end(&t);
}

/* --- another daemon --- */
TEST(a_daemon_that_takes_over_has_the_state)
{
	struct trainer t;
	uint64_t copied;

	begin(&t);
	t.bad[2] = 77; /* whole from the beginning: whole[] comes along */
	good_step(&t, 1, CKPT_STAGE_ONLY);
	good_step(&t, 2, CKPT_STAGE_ONLY);
	daemon_again(&t, 1);
	must_soon(said_times(&daemon_said, "step 2 taken over"));
	restore(&t, 2, CKPT_FROM_MEMORY);
	assert_int_equal(state_wrong(&t, 2, t.bad, NULL), 0);
	copied = copied_by(&t, 3) - device_bytes(true);
	assert_true(copied == 0 || copied == -WORDS); /* the canary has drawn none yet */
	end(&t);
}

TEST(a_daemon_that_takes_over_does_not_stage_what_another_one_has_refused)
{
	struct trainer t;
	uint64_t step = 3;

	begin(&t);
	good_step(&t, 1, CKPT_STAGE_ONLY);
	good_step(&t, 2, CKPT_STAGE_ONLY);
	t.bad[0] = 3;
	while (step_taken(&t, step, CKPT_STAGE_ONLY) == 0)
		step++;
	said_forget(&daemon_said);
	daemon_again(&t, 1);
	must_soon(said_times(&daemon_said, "taken over from an earlier daemon"));
	assert_soon(said_times(&daemon_said, "taken over from an earlier daemon") == 1);
	t.bad[0] = NONE;
	restore(&t, step - 1, CKPT_FROM_MEMORY);
	assert_int_equal(state_wrong(&t, step - 1, t.bad, NULL), 0); /* its master's rounding */
	end(&t);
}

/* Under its rows another tensor went in turns. */
TEST(a_daemon_that_takes_over_does_not_stage_what_an_older_declaration_has_copied)
{
	const uint64_t start[2] = { 0, 0 }, extent[2] = { 1, pair[0].cols };
	const struct ckpt_want w =
		ROW(.size = sizeof w, .step = 2, .flags = CKPT_FROM_MEMORY | CKPT_EXACT);
	struct ckpt_local local = { .ptr = calloc(2, pair[0].cols),
				    .start = start,
				    .extent = extent };
	struct trainer t;

	begin(&t);
	good_step(&t, 1, CKPT_STAGE_ONLY);
	good_step(&t, 2, CKPT_STAGE_ONLY);
	MUST_OF(&t, ckpt_tensor_move(t.c, t.id[0], &local, 1, &t.err)); /* to the host */
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	said_forget(&daemon_said);
	daemon_again(&t, 1);
	must_soon(said_times(&daemon_said, "step 1 taken over")); /* it was copied whole */
	assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -ENOENT);
	assert_int_equal(said_times(&daemon_said, "step 2 taken over"), 0);
	end(&t);
	free(local.ptr);
}

/* --- anything, in any order --- */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STORM 25u
#else
#define STORM 80u
#endif

/* What must hold, whatever the daemon does: see storm_check. */
struct storm {
	struct trainer t;
	uint64_t rng, step, staged; /* staged: the newest such step; NONE */
	uint64_t bad[NTENSOR];	    /* of that step */
	bool exact[NTENSOR];
	bool whole;	     /* the next step is copied whole */
	bool known[NTENSOR]; /* to be unequal: copied whole */
	bool perhaps[NTENSOR];
	uint32_t unseen[NTENSOR]; /* steps that were staged since it became unequal */
	uint32_t restored;
	uint64_t reattached;
};

static void storm_step(struct storm *s)
{
	struct trainer *t = &s->t;
	uint32_t named = NTENSOR, flags = draw(&s->rng) % 4 ? CKPT_STAGE_ONLY : CKPT_PERSIST;
	int rc = step_taken(t, ++s->step, flags);

	if (rc < 0) {
		for (uint32_t i = 0; i < NTENSOR; i++) {
			char name[48];

			snprintf(name, sizeof name, "tensor model/%s is not the rounding",
				 pair[i].name);
			if (strstr(t->err.msg, name))
				named = i;
		}
		if (named == NTENSOR || t->bad[named] == NONE || s->known[named] || s->whole)
			fail_msg("step %llu: %s", (unsigned long long)s->step, t->err.msg);
		for (uint32_t i = 0; i < NTENSOR; i++)
			s->perhaps[i] |= t->bad[i] != NONE;
		s->known[named] = true;
		return;
	}
	if (flags == CKPT_PERSIST)
		MUST_OF(t, ckpt_wait(t->c, s->step, CKPT_COMMITTED, PATIENCE, &t->err));
	s->staged = s->step;
	for (uint32_t i = 0; i < NTENSOR; i++) {
		s->known[i] |= s->whole && t->bad[i] != NONE && pair[i].at != HOST;
		s->bad[i] = t->bad[i];
		s->exact[i] = s->known[i] || s->whole || pair[i].at == HOST;
		s->unseen[i] =
			s->exact[i] || s->perhaps[i] || t->bad[i] == NONE ? 0 : s->unseen[i] + 1;
		assert_true(s->unseen[i] < TURNS);
	}
	s->whole = false;
}

/* What comes back is the state; of an element that is not the rounding, though nobody has seen that
 * yet, the rounding may come back. */
static void storm_check(struct storm *s, uint32_t flags)
{
	restore(&s->t, s->staged, flags);
	assert_int_equal(state_wrong(&s->t, s->staged, s->bad, s->exact), 0);
	s->step = s->staged;
	s->staged = NONE;
	s->whole = true;
	s->restored++;
}

static void storm_again(struct storm *s, bool seal)
{
	if (seal)
		MUST_OF(&s->t, ckpt_seal(s->t.c, PATIENCE, &s->t.err));
	else
		daemon_again(&s->t, ++s->reattached);
	memset(s->known, 0, sizeof s->known);
	memset(s->perhaps, 0, sizeof s->perhaps);
	s->whole = true;
}

TEST(whatever_happens_no_stale_byte_comes_back)
{
	struct storm s = { .rng = draw_seed("daemon_turned"), .staged = NONE, .whole = true };

	begin(&s.t);
	for (uint32_t n = 0; n < unit_scaled(STORM); n++) {
		uint32_t i = (uint32_t)(draw(&s.rng) % (NTENSOR - 1)),
			 what = (uint32_t)(draw(&s.rng) % 48);

		if (what < 3) {
			s.t.bad[i] = draw(&s.rng) % (pair[i].rows * pair[i].cols);
			s.unseen[i] = 0;
		}
		if (what >= 3 && what < 5)
			s.t.bad[i] = NONE;
		else if (what >= 5 && what < 7 && s.staged != NONE)
			storm_check(&s, CKPT_FROM_MEMORY);
		else if (what == 8)
			storm_again(&s, n % 3);
		storm_step(&s);
	}
	if (s.staged != NONE)
		storm_check(&s, CKPT_FROM_MEMORY);
	assert_true(s.restored > 0);
	end(&s.t);
}

UNIT(.setup = host_setup_started, .teardown = host_teardown, .group_setup = library_open);
