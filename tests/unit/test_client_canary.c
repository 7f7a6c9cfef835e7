/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_canary.c - how often canary.c misses a change, in trials on memory without a daemon;
 * where it reads; what it makes of rows that lie. A trial draws places for one snapshot, changes
 * memory before or behind a copier, and looks whether the comparison of the daemon or that of the
 * guard finds it.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

/* What is counted here is not what sanitizers look for; and there is one thread. */
#if defined __SANITIZE_THREAD__
#define FEWER(n) ((n) / 10)
#define TRIALS 2000u /* of each way to change */
#define TENSOR_TRIALS 4000u
#elif defined __SANITIZE_ADDRESS__
#define FEWER(n) (n)
#define TRIALS 20000u
#define TENSOR_TRIALS 20000u
#else
#define FEWER(n) (n)
#define TRIALS 200000u
#define TENSOR_TRIALS 20000u
#endif
#define DRAWS 1000000u
#define TENSORS 100u	  /* each 1 % */
#define TENSOR_BYTES 512u /* 64 words */
#define STATE (TENSORS * TENSOR_BYTES)
#define WORDS (STATE / 8)

static uint64_t seed;
static struct canary X;
static struct canary_map *M;
static uint64_t *memory, *slot;
static struct wire_row row[TENSORS];

/* Tensors lie in memory and slot in other orders. */
static int setup(void **state)
{
	static struct sources none;
	uint8_t *base[1];
	const uint64_t bytes[1] = { STATE };
	struct canary_map parts =
		ROW(.epoch = 1, .nslot = 1, .nrow = TENSORS, .nsegment = 1, .slot_bytes = STATE,
		    .row = row, .segment = base, .sources = &none);

	(void)state;
	seed = draw_seed("client_canary");
	memory = calloc(1, STATE);
	slot = calloc(1, STATE);
	base[0] = (uint8_t *)memory;
	parts.slot[0] = (uint8_t *)slot;
	parts.rng = seed;
	for (uint32_t i = 0; i < TENSORS; i++)
		row[i] = (struct wire_row)ROW(.tensor = i, .src = (uint64_t)i * TENSOR_BYTES,
					      .dst = (uint64_t)(i * 37 % TENSORS) * TENSOR_BYTES,
					      .width = TENSOR_BYTES, .rows = 1);
	if (canary_init(&X, 0) < 0 || canary_map_make(&parts, bytes, &M) < 0)
		return -1;
	canary_replace(&X, M);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	canary_destroy(&X);
	free(memory);
	free(slot);
	return 0;
}

static void copy(void)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		memcpy((uint8_t *)slot + row[i].dst, (uint8_t *)memory + row[i].src, TENSOR_BYTES);
}

/* As the daemon's copier does. */
static bool copier_finds(uint32_t n)
{
	struct shared_canary x = { .n = n };

	memcpy(x.at, X.note, n * sizeof *X.note);
	return shared_canary_compare(&x, slot, STATE) != UINT64_MAX;
}

/* Changes that are cheap to make and to undo: each of these words is what it was, plus one. */
static bool in_change(uint32_t how, uint32_t word)
{
	switch (how) {
	case 0: /* the first half */
		return word < WORDS / 2;
	case 1: /* every other word */
		return word % 2;
	case 2: /* every other tensor */
		return word / (TENSOR_BYTES / 8) % 2;
	case 3: /* every other 512th of it, as layers repeat */
		return word * 512ull / WORDS % 2;
	default: /* half of each 32nd of it */
		return word * 64ull / WORDS % 2;
	}
}

static bool changes(uint32_t how, const struct canary_place *p)
{
	return in_change(how, (uint32_t)((uint64_t)(p->src - (uint8_t *)memory) / 8));
}

/* The words of a mark: are all of them outside of the change? They are compared with what was
 * changed, in the slot or in memory, by equality; so that is what it comes down to. */
TEST(a_change_of_half_the_state_is_missed_in_fewer_than_one_of_a_million)
{
	for (uint32_t how = 0; how < 5; how++) {
		uint32_t missed = 0, least = 32;

		for (uint32_t i = 0; i < TRIALS; i++) {
			uint32_t n, hits = 0;
			bool low;

			canary_draw(M, CANARY_WORDS, 0);
			n = canary_mark(&X, 1, 0, &low);
			assert_int_equal(n, CANARY_WORDS);
			for (uint32_t k = 0; k < n; k++)
				hits += changes(how, &X.word[k]);
			missed += hits == 0;
			least = MIN(least, hits);
		}
		print_message("change %u: missed %u of %u, %u of 32 words at least\n", how, missed,
			      TRIALS, least);
		assert_int_equal(missed, 0);
	}
}

/* Through all of it, a few thousand times: mark, change before, behind or amid the copy,
 * compare. */
TEST(it_is_found_wherever_the_copier_was)
{
	for (uint32_t i = 0; i < FEWER(3000u); i++) {
		uint32_t how = i % 5, n;
		bool found, low;

		for (uint32_t k = 0; k < WORDS; k++)
			memory[k] = draw(&seed);
		canary_draw(M, CANARY_WORDS, CANARY_PAGES);
		n = canary_mark(&X, 1, 0, &low);
		if (i % 3)
			copy();
		for (uint32_t k = 0; k < WORDS; k++)
			memory[k] += in_change(how, k);
		if (i % 3 == 0)
			copy();
		found = copier_finds(n);
		assert_int_equal(found, i % 3 == 0);
		if (i % 3 == 2) /* half of it was copied after all */
			for (uint32_t k = 0; k < TENSORS / 2; k++)
				memcpy((uint8_t *)slot + row[k].dst, (uint8_t *)memory + row[k].src,
				       TENSOR_BYTES);
		assert_true(canary_guard(&X) != CANARY_SAME);
		assert_true(canary_guard(&X) == CANARY_SAME); /* told once */
	}
}

/* One tensor of 1 %, each in turn. found[0]: by the words at the mark, [1]: by the guard too. */
static void tensors(uint32_t trials, double ret_found[2])
{
	uint32_t found[2] = { 0 };

	for (uint32_t i = 0; i < trials; i++) {
		uint32_t t = i % TENSORS, n;
		bool low, seen;

		canary_draw(M, CANARY_WORDS_ALL, CANARY_PAGES);
		copy();
		n = canary_mark(&X, 1, 0, &low);
		for (uint32_t k = 0; k < TENSOR_BYTES / 8; k++)
			memory[t * (TENSOR_BYTES / 8) + k]++;
		/* behind the copier, then before it */
		found[1] += canary_guard(&X) != CANARY_SAME;
		memcpy((uint8_t *)slot + row[t].dst, (uint8_t *)memory + row[t].src, TENSOR_BYTES);
		seen = copier_finds(n);
		found[0] += seen;
	}
	ret_found[0] = (double)found[0] / trials;
	ret_found[1] = (double)found[1] / trials;
	print_message("of 1 %%: %.4f before the copier passed, %.4f behind it\n", ret_found[0],
		      ret_found[1]);
}

TEST(a_change_of_one_tensor_of_one_percent_is_found_in_a_quarter)
{
	double found[2];

	tensors(TENSOR_TRIALS,
		found); /* 0.28 +- 0.0032: 0.25 is nine of these away, of 4000 four */
	assert_true(found[0] >= 0.25 && found[0] < 0.4);
	assert_true(found[1] >= 0.25);
}

TEST(and_in_99_of_100_where_all_is_compared)
{
	double found[2];

	X.check = 1;
	tensors(TENSOR_TRIALS, found);
	X.check = 0;
	assert_true(found[0] >= 0.99);
	assert_true(found[1] == 1.0);
}

TEST(every_nth_mark_notes_more)
{
	uint32_t many = 0;

	X.check = 3;
	X.taken = 0;
	for (uint32_t i = 1; i <= 12; i++) {
		bool low;

		canary_draw(M, CANARY_WORDS_ALL, CANARY_PAGES);
		many += canary_mark(&X, 1, 0, &low) == CANARY_WORDS_ALL;
		assert_int_equal(many, i / 3);
	}
	X.check = UINT32_MAX;
	for (uint32_t i = 0; i < 3; i++) {
		bool low;

		assert_int_equal(canary_mark(&X, 1, 0, &low), 0);
		memory[0]++;
		assert_true(canary_guard(&X) == CANARY_SAME);
	}
	X.check = 0;
}

/* Every word of the state with the same probability: of 156 expected hits no word is six standard
 * deviations away. */
TEST(places_are_drawn_evenly_and_used_once)
{
	static uint32_t hit[WORDS], used[2];
	const double mean = (double)DRAWS / WORDS;
	uint64_t last = UINT64_MAX;
	bool low;

	for (uint32_t i = 0; i < DRAWS / CANARY_WORDS; i++) {
		canary_draw(M, CANARY_WORDS, 0);
		used[0] = atomic_load(&M->word.used);
		canary_mark(&X, 1, 0, &low);
		used[1] = atomic_load(&M->word.used);
		assert_int_equal(used[1] - used[0], CANARY_WORDS);
		for (uint32_t k = 0; k < CANARY_WORDS; k++) {
			uint64_t at = (uint64_t)(X.word[k].src - (uint8_t *)memory);

			assert_true(at < STATE && X.word[k].len == 8 && at % 8 == 0);
			hit[at / 8]++;
			assert_true(k == 0 || at != last); /* each in its own part */
			last = at;
		}
	}
	for (uint32_t k = 0; k < WORDS; k++)
		assert_true(hit[k] > mean / 2 && hit[k] < mean * 2);
	/* The helper has not come by: the newest are used again, and it is asked for. */
	assert_int_equal(canary_mark(&X, 1, 0, &low), CANARY_WORDS);
	assert_true(low);
	assert_int_equal(canary_mark(&X, 2, 0, &low), 0); /* of another epoch */
	assert_int_equal(canary_mark(&X, 1, 1, &low), 0); /* of no slot */
}

/* --- where it reads --- */
/* A local of the process's own memory, of 3 x 5 x 7 elements of 2 bytes with gaps everywhere: what
 * lies in the gaps is not there for ASan, and differs all the time. */
TEST(own_memory_is_read_inside_of_its_box_alone)
{
	enum { A = 3, B = 5, C = 7 };
	static struct sources sources;
	uint8_t *part[2];
	struct wire_row rows[2 * A * B];
	uint32_t nrow = 0;
	struct canary x;
	struct canary_map *m;
	uint8_t *image = calloc(1, 4096), *base[1] = { image };
	const uint64_t bytes[1] = { 4096 };
	struct canary_map parts = ROW(.epoch = 1, .nslot = 1, .nsegment = 1, .slot_bytes = 4096,
				      .row = rows, .segment = base, .sources = &sources, .rng = 5);
	static int64_t strides[2][3] = { { 200, 30, 3 }, { 80, 10, 1 } };
	bool low;

	parts.slot[0] = image;
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t span = (uint64_t)((A - 1) * strides[i][0] + (B - 1) * strides[i][1] +
					   (C - 1) * strides[i][2] + 1) *
				2;

		part[i] = calloc(1, span);
		for (uint64_t e = 0; e < span; e++)
			part[i][e] = (uint8_t)draw(&seed);
		for (uint64_t a = 0; a < A; a++)
			for (uint64_t b = 0; b < B; b++) {
				uint8_t *from = part[i] + (a * (uint64_t)strides[i][0] +
							   b * (uint64_t)strides[i][1]) *
								  2;
				uint64_t dst = i * 2048 + (a * B + b) * C * 2, pitch;

				pitch = (uint64_t)strides[i][2] * 2;
				rows[nrow++] =
					(struct wire_row)ROW(.flags = WIRE_ROW_CLIENT,
							     .src = (uintptr_t)from, .dst = dst,
							     .width = i ? C * 2 : 2,
							     .rows = i ? 1 : C, .src_pitch = pitch,
							     .dst_pitch = 2);
				for (uint64_t k = 0; k < C; k++)
					memcpy(image + dst + k * 2, from + k * pitch, 2);
			}
	}
	parts.nrow = nrow;
	assert_int_equal(canary_init(&x, 1), 0);
	assert_int_equal(wire_memfd("scratch", CANARY_SCRATCH, &x.scratch_fd, NULL), 0);
	assert_int_equal(canary_map_make(&parts, bytes, &m), 0);
	canary_replace(&x, m);
	for (uint32_t i = 0; i < FEWER(2000u); i++) {
		uint32_t which = i % 2, n;
		uint64_t e[3] = { draw_below(&seed, A), draw_below(&seed, B),
				  draw_below(&seed, C) };
		uint8_t *at = part[which] + (e[0] * (uint64_t)strides[which][0] +
					     e[1] * (uint64_t)strides[which][1] +
					     e[2] * (uint64_t)strides[which][2]) *
						    2;
		struct shared_canary noted;

		canary_draw(m, CANARY_WORDS_ALL, CANARY_PAGES);
		n = canary_mark(&x, 1, 0, &low);
		assert_int_equal(n, CANARY_WORDS_ALL);
		for (uint32_t k = 0; k < n; k++)
			assert_true(x.word[k].own && x.word[k].len >= 1 && x.word[k].len <= 8);
		noted.n = n;
		memcpy(noted.at, x.note, sizeof x.note);
		assert_true(shared_canary_compare(&noted, image, 4096) == UINT64_MAX);
		if (i % 3) { /* an element, and never what lies between */
			at[1] ^= 4;
			assert_true(canary_guard(&x) != CANARY_SAME);
			at[1] ^= 4;
		} else {
			part[which][strides[which][0] * 2 - 2] ^= 4;
			assert_true(canary_guard(&x) == CANARY_SAME);
		}
	}
	canary_destroy(&x);
	for (uint32_t i = 0; i < 2; i++)
		free(part[i]);
	free(image);
}

/* Rows of few bytes, of many lines, of what cannot change. */
TEST(words_end_where_their_row_does)
{
	static struct sources none;
	uint8_t *from = calloc(1, 64), *to = calloc(1, 64), *base[1] = { from };
	const uint64_t bytes[1] = { 64 };
	struct wire_row rows[] = {
		{ .src = 1, .dst = 3, .width = 1, .rows = 5, .src_pitch = 3, .dst_pitch = 1 },
		{ .src = 59, .dst = 51, .width = 5, .rows = 1 },
		{ .src = 20, .dst = 20, .width = 13, .rows = 2, .src_pitch = 19, .dst_pitch = 14 },
		{ .src = 16, .dst = 10, .width = 4, .rows = 1, .flags = WIRE_ROW_CONST },
		{ .src = 16, .dst = 14, .width = 4, .rows = 1, .flags = WIRE_ROW_VALUE },
	};
	struct canary_map parts =
		ROW(.epoch = 1, .nslot = 1, .nrow = ARRAY_LEN(rows), .nsegment = 1,
		    .slot_bytes = 64, .row = rows, .segment = base, .sources = &none, .rng = 7);
	struct canary x;
	struct canary_map *m;
	bool low;

	parts.slot[0] = to;
	for (uint32_t i = 0; i < 64; i++)
		from[i] = (uint8_t)(i * 5);
	for (uint32_t r = 0; r < 3; r++)
		for (uint64_t line = 0; line < rows[r].rows; line++)
			memcpy(to + rows[r].dst + line * rows[r].dst_pitch,
			       from + rows[r].src + line * rows[r].src_pitch, rows[r].width);
	assert_int_equal(canary_init(&x, 1), 0);
	assert_int_equal(canary_map_make(&parts, bytes, &m), 0);
	assert_int_equal(m->near.n, 3);
	assert_int_equal(m->near.upto[2], 5 + 5 + 26);
	canary_replace(&x, m);
	for (uint32_t i = 0; i < 64; i++) {
		bool live = false;

		for (uint32_t r = 0; r < 3; r++)
			for (uint64_t line = 0; line < rows[r].rows; line++)
				live |= i - (rows[r].src + line * rows[r].src_pitch) <
					rows[r].width;
		canary_draw(m, CANARY_WORDS_ALL, CANARY_PAGES);
		canary_mark(&x, 1, 0, &low);
		from[i] ^= 1;
		assert_int_equal(canary_guard(&x) != CANARY_SAME, live);
		from[i] ^= 1;
		canary_mark(&x, 1, 0, &low);
		assert_true(canary_guard(&x) == CANARY_SAME);
		canary_mark(&x, 1, 0, &low);
		canary_off(&x);
		from[i] ^= 1;
		assert_true(canary_guard(&x) == CANARY_SAME);
		from[i] ^= 1;
	}
	canary_destroy(&x);
	free(from);
	free(to);
}

TEST(rows_that_leave_their_memory_are_refused)
{
	const struct wire_row good = ROW(.src = UINT64_C(1) << 48 | 100, .dst = 60, .width = 10,
					 .rows = 5, .src_pitch = 10, .dst_pitch = 20);
	const uint64_t bytes[2] = { 10, 150 };

	assert_int_equal(wire_row_check(&good, bytes, 2, 150), 0);
	for (uint32_t i = 0; i < 12; i++) {
		struct wire_row r = good;
		uint64_t *const word[] = { &r.src, &r.dst,	 &r.width,     &r.rows,
					   &r.src, &r.src_pitch, &r.dst_pitch, &r.turn };
		static const uint64_t by[] = { 1, 1, 1, 1, UINT64_C(1) << 48, 1, 1, 1 };

		if (i < 8)
			*word[i] += by[i];
		else if (i < 10)
			*word[i - 6] = 0;
		else
			*word[i - 5] = UINT64_MAX / 2;
		assert_int_equal(wire_row_check(&r, bytes, 2, 150), -EPROTO);
	}
	assert_int_equal(wire_row_check(&good, bytes, 2, 149), -EPROTO);
}

UNIT(.group_setup = setup, .group_teardown = teardown);
