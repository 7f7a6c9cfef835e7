/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ema_schedule.c - the decay of every step, against the real implementations' answers
 * (tests/vectors/ema, made with torch, timm, diffusers, ema-pytorch), and the state of an average.
 */
#include "ema/schedule.h"
#include "ema/spec.h"
#include "tests/lib/unit.h"
#include "ckpt/base/hash.h"
#include <math.h>

#define NEAR 1e-14

static bool near(double a, double b)
{
	return fabs(a - b) <= NEAR * fabs(b);
}

#define assert_near(a, b)                                               \
	do {                                                            \
		double a_ = (a), b_ = (b);                              \
		if (!near(a_, b_))                                      \
			fail_msg("%s is %.17g, not %.17g", #a, a_, b_); \
	} while (0)

/* The schedule that a spec says. */
static struct ema_schedule schedule(const char *text)
{
	struct ckpt_err err = { 0 };
	struct ema_spec *spec;
	struct ema_schedule x;

	assert_ok_err(ema_spec_parse(text, &spec, &err), &err);
	x = spec->schedule;
	ema_spec_free(spec);
	return x;
}

/* The decay at a step, for an average that saw the step `last` and began at `since`. */
static double decay_at(const char *text, uint64_t step, uint64_t last)
{
	struct ema_schedule x = schedule(text);
	struct ema_state s = ema_state_seeded(text, last);

	return ema_schedule_update(&x, &s, step).decay;
}

TEST(gamma_of_sigma_is_that_of_the_paper)
{
	static const double known[][2] = { { .05, 16.972199 },
					   { .10, 6.937204 },
					   { .15, 3.557869 },
					   { .20, 1.826214 },
					   { .25, .719824 } };

	for (uint32_t i = 0; i < ARRAY_LEN(known); i++) {
		double s = known[i][0], g = ema_gamma_of_sigma(s);

		assert_true(fabs(g - known[i][1]) < 1e-6);
		assert_near((g + 1) / ((g + 2) * (g + 2) * (g + 3)), s * s);
	}
	assert_true(isnan(ema_gamma_of_sigma(.2887)));
	assert_true(isnan(ema_gamma_of_sigma(0)));
	assert_true(isnan(ema_gamma_of_sigma(-.1)));
	assert_true(isnan(ema_gamma_of_sigma(NAN)));
}

TEST(steps_that_were_missed_count_by_their_true_distance)
{
	assert_near(decay_at("constant decay=.999", 8, 7), .999);
	assert_near(decay_at("constant decay=.999", 17, 7), pow(.999, 10));
	assert_near(decay_at("power gamma=6", 100, 90), pow(.9, 7));
}

TEST(the_history_of_an_average_has_every_step_that_was_applied)
{
	struct ema_schedule x = schedule("constant decay=.9");
	struct ema_state s = ema_state_new("constant decay=0.9 start=0"), t;
	uint8_t chain[32];
	struct hash128 h = hash128("constant decay=0.9 start=0", 26);
	static const uint64_t steps[] = { 3, 4, 9 };
	uint64_t last = UINT64_MAX;

	assert_memory_equal(s.history, h.b, 16);
	for (uint32_t i = 0; i < ARRAY_LEN(steps); i++) {
		struct ema_update u = ema_schedule_update(&x, &s, steps[i]);
		le64 a = le64_of(steps[i]), b = le64_of(last);

		assert_int_equal(u.copy, !i);
		t = ema_state_after(&s, &u, "constant decay=0.9 start=0", steps[i]);
		memcpy(chain, h.b, 16);
		memcpy(chain + 16, a.b, 8);
		memcpy(chain + 24, b.b, 8);
		h = hash128(chain, 32);
		assert_memory_equal(t.history, h.b, 16);
		s = t;
		last = steps[i];
	}
	assert_int_equal(s.updates, 2);
	assert_int_equal(s.since, 3);
	assert_int_equal(s.last_step, 9);
	assert_near(s.product, .9 * pow(.9, 5));
}

TEST(every_step_up_to_start_is_copied)
{
	struct ema_schedule x = schedule("constant decay=.9 start=5");
	struct ema_state s = ema_state_seeded("", 1);

	assert_true(ema_schedule_update(&x, &s, 5).copy);
	assert_false(ema_schedule_update(&x, &s, 6).copy);
}
