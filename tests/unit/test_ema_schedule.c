/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ema_schedule.c - the decay of every step, against the answers of the real implementations
 * (tests/vectors/ema, made with torch 2.15.0, timm 1.0.31, diffusers 0.42.1, ema-pytorch 0.8.3);
 * the state of an average; and what went wrong for users of others, a test each.
 */
#include "ema/schedule.h"
#include "ckpt/base/hash.h"
#include "ema/spec.h"
#include "ema/wide.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <math.h>

#define NEAR 1e-14
#define NUMBERS_MAX 64
#define COLUMNS 5
#define STEPS 12

/* --- the files of the real implementations --- */

static char *vectors(const char *name)
{
	char here[] = __FILE__, path[512], *text;
	size_t room = 1 << 16, n;
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../vectors/ema/%s", here, name);
	f = fopen(path, "re");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	text = malloc(room);
	assert_non_null(text);
	n = fread(text, 1, room - 1, f);
	assert_true(n < room - 1 && feof(f));
	text[n] = 0;
	fclose(f);
	return text;
}

/* The numbers of the JSON array, of arrays too, that stands behind `key` and a colon, after
 * `from`. */
static uint32_t numbers(const char *from, const char *key, double *ret, uint32_t max)
{
	char head[160];
	const char *s;
	uint32_t n = 0, open = 0;

	snprintf(head, sizeof head, "%s:", key);
	for (s = strstr(from, head); s && s[strlen(head) + strspn(s + strlen(head), " ")] != '[';
	     s = strstr(s + 1, head))
		;
	if (!s)
		fail_msg("no array %s in the vectors", key);
	s += strlen(head) + strspn(s + strlen(head), " ");
	do {
		char *end;

		open += *s == '[';
		open -= *s == ']';
		if (strchr("[], \n", *s)) {
			s++;
			continue;
		}
		assert_true(n < max);
		ret[n++] = strtod(s, &end);
		assert_true(end > s);
		s = end;
	} while (open);
	return n;
}

/* The line that begins so. */
static const char *line_of(const char *text, const char *beginning)
{
	const char *s = strstr(text, beginning);

	if (!s)
		fail_msg("no line of the vectors begins with %s", beginning);
	return s;
}

/* --- an average of doubles, with the schedule under test --- */

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

static bool near(double a, double b, double tolerance)
{
	return fabs(a - b) <= tolerance * fabs(b);
}

#define assert_near(a, b)                                                                  \
	do {                                                                               \
		double a_ = (a), b_ = (b);                                                 \
		if (!near(a_, b_, NEAR))                                                   \
			fail_msg("line %d: %s is %.17g, not %.17g", __LINE__, #a, a_, b_); \
	} while (0)

/* The decay at a step, for an average that was copied at the step `last`. */
static double decay_at(const char *text, uint64_t step, uint64_t last)
{
	struct ema_schedule x = schedule(text);
	struct ema_state s = ema_state_copied(text, last);

	return ema_schedule_update(&x, &s, step).decay;
}

struct average {
	struct ema_schedule schedule;
	struct ema_state state;
	double e;
};

static struct average average_new(const char *text)
{
	return (struct average){ schedule(text), ema_state_new(text), 0 };
}

static void average_step(struct average *a, uint64_t step, double p)
{
	struct ema_update u = ema_schedule_update(&a->schedule, &a->state, step);

	a->e = u.copy ? p : a->e + (1 - u.decay) * (p - a->e);
	a->state = ema_state_after(&a->state, &u, "", step);
}

/* --- the arithmetic under it --- */

TEST(wide_numbers_have_twice_the_digits_of_a_double)
{
	struct wide third = wide_div(wide_of(1), wide_of(3)), x;

	assert_true(third.hi == 1.0 / 3);
	/* 3 times it is 1, to 2^-104 at least */
	x = wide_sub(wide_mul(third, wide_of(3)), wide_of(1));
	assert_true(fabs(wide_double(x)) < 0x1p-104);
	/* the square root of 1/2, squared */
	x = wide_pow(wide_of(2), wide_of(-.5));
	x = wide_sub(wide_mul(x, x), wide_of(.5));
	assert_true(fabs(wide_double(x)) < 0x1p-95);
	x = wide_of_u64(UINT64_MAX);
	assert_true(x.hi == 0x1p64 && x.lo == -1);
}

TEST(powers_are_those_of_long_double_to_the_last_bits)
{
	uint64_t s = draw_seed("powers");

	for (uint64_t i = 0; i < unit_scaled(20000); i++) {
		double x = (double)(draw(&s) >> 11) * 0x1p-53, y = (double)(draw(&s) >> 40);
		long double z;

		y = ldexp(y, -(int)draw_below(&s, 40));
		if (x == 0)
			continue;
		z = powl((long double)x, (long double)y);
		if (z < 1e-300L)
			continue;
		if (fabsl((long double)wide_double(wide_pow(wide_of(x), wide_of(y))) - z) >
		    z * 1.2e-16L)
			fail_msg("%.17g to the power of %.17g", x, y);
	}
}

/* Some decays, which were computed with 70 digits (Python's decimal): if one differs on another
 * host, averages there do too. */
TEST(decays_have_the_same_bits_everywhere)
{
	assert_true(decay_at("constant decay=.999", 10, 0) == 0x1.fae7299c256e3p-1);
	assert_true(decay_at("timm decay=.9999 warmup=1", 1234, 1233) == 0x1.fb8cb685386a6p-1);
	assert_true(decay_at("halflife fraction=.05", 777, 776) == 0x1.f6f233541495ap-1);
	assert_true(decay_at("power sigma_rel=.1", 12345, 12300) == 0x1.f15f5659f33d1p-1);
}

/* --- schedules.jsonl --- */

/* shift: our step for their k is k + shift. */
static void assert_decays(const char *file, const char *beginning, const char *spec, uint64_t shift,
			  double tolerance)
{
	double k[NUMBERS_MAX], d[NUMBERS_MAX];
	uint32_t n = numbers(file, "\"k\"", k, NUMBERS_MAX);

	assert_int_equal(numbers(line_of(file, beginning), "\"decay\"", d, NUMBERS_MAX), n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t step = (uint64_t)k[i] + shift;
		double ours = decay_at(spec, step, step - 1);

		if (!near(ours, d[i], tolerance))
			fail_msg("%s at k = %.0f: %.17g, not %.17g", spec, k[i], ours, d[i]);
	}
}

TEST(timm_decays_as_ModelEmaV3)
{
	cleanup_free char *f = vectors("schedules.jsonl");
#define TIMM "{\"impl\":\"timm ModelEmaV3.get_decay(step=k)\",\"args\":{\"decay\":"

	assert_decays(f, TIMM "0.9999}", "timm decay=.9999", 0, NEAR);
	assert_decays(f, TIMM "0.9999,\"use_warmup\":true}", "timm decay=.9999 warmup=1", 0, NEAR);
	assert_decays(f, TIMM "0.9999,\"use_warmup\":true,\"warmup_gamma\":2.0",
		      "timm decay=.9999 warmup=1 gamma=2 power=.75", 0, NEAR);
	assert_decays(f, TIMM "0.99,\"use_warmup\":true,\"min_decay\":0.5",
		      "timm decay=.99 warmup=1 min_decay=.5 start=100", 0, NEAR);
}

TEST(diffusers_decays_as_EMAModel)
{
	cleanup_free char *f = vectors("schedules.jsonl");
#define DIFFUSERS "{\"impl\":\"diffusers EMAModel.get_decay(k)\",\"args\":{\"decay\":"

	assert_decays(f, DIFFUSERS "0.9999}", "diffusers decay=.9999", 0, NEAR);
	assert_decays(f, DIFFUSERS "0.99}", "diffusers decay=.99", 0, NEAR);
	assert_decays(f, DIFFUSERS "0.9999,\"use_ema_warmup\":true}",
		      "diffusers decay=.9999 warmup=1", 0, NEAR);
	assert_decays(f, DIFFUSERS "0.9999,\"use_ema_warmup\":true,\"inv_gamma\":2.0",
		      "diffusers decay=.9999 warmup=1 gamma=2 power=.75", 0, NEAR);
	assert_decays(f, DIFFUSERS "0.99,\"min_decay\":0.5",
		      "diffusers decay=.99 min_decay=.5 start=100", 0, NEAR);
}

/* Its arithmetic is float32; its rule is timm's. */
TEST(ema_pytorch_decays_as_timm_with_a_warm_up)
{
	cleanup_free char *f = vectors("schedules.jsonl");
#define LUCID                                                                             \
	"{\"impl\":\"ema-pytorch EMA.get_current_decay() with step counter = k (float32 " \
	"arithmetic)\",\"args\":{"

	assert_decays(f, LUCID "}", "timm decay=.9999 warmup=1 start=100", 0, 1e-6);
	assert_decays(f, LUCID "\"beta\":0.9999", "timm decay=.9999 warmup=1 power=.75", 0, 1e-6);
}

TEST(halflife_decays_as_torchtitan)
{
	cleanup_free char *f = vectors("schedules.jsonl");

	assert_decays(f, "{\"impl\":\"torchtitan half-life fraction f", "halflife fraction=.05", 0,
		      NEAR);
}

TEST(one_plus_k_over_ten_plus_k_is_diffusers_one_step_later)
{
	cleanup_free char *f = vectors("schedules.jsonl");

	assert_decays(f, "{\"impl\":\"(1+k)/(10+k) capped", "diffusers decay=.9999", 1, NEAR);
}

static const double sigmas[] = { .05, .1, .15, .2, .25 };

TEST(power_decays_as_the_paper_says_and_KarrasEMA_counts_one_step_late)
{
	cleanup_free char *f = vectors("schedules.jsonl");

	for (uint32_t i = 0; i < ARRAY_LEN(sigmas); i++) {
		char head[160], spec[64];

		snprintf(spec, sizeof spec, "power sigma_rel=%g", sigmas[i]);
		snprintf(head, sizeof head,
			 "{\"impl\":\"power function EMA (paper): (1-1/k)^(gamma+1)\","
			 "\"sigma_rel\":%g,",
			 sigmas[i]);
		assert_decays(f, head, spec, 0, NEAR);
		snprintf(head, sizeof head,
			 "{\"impl\":\"ema-pytorch KarrasEMA.beta with step counter = k: "
			 "(1-1/(k+1))^(1+gamma), one step late against the paper\","
			 "\"sigma_rel\":%g,",
			 sigmas[i]);
		assert_decays(f, head, spec, 1, NEAR);
	}
}

TEST(gamma_of_sigma_is_the_largest_root)
{
	static const double known[] = { 16.972199, 6.937204, 3.557869, 1.826214, .719824 };

	for (uint32_t i = 0; i < ARRAY_LEN(sigmas); i++) {
		double s = sigmas[i], g = ema_gamma_of_sigma(s);

		assert_true(fabs(g - known[i]) < 1e-6);
		assert_near((g + 1) / ((g + 2) * (g + 2) * (g + 3)), s * s);
	}
	/* g = 0 is the widest that there is */
	assert_true(ema_gamma_of_sigma(.2886) < .01);
	assert_true(isnan(ema_gamma_of_sigma(.2887)));
	assert_true(isnan(ema_gamma_of_sigma(1)));
	assert_true(isnan(ema_gamma_of_sigma(0)));
	assert_true(isnan(ema_gamma_of_sigma(-.1)));
	assert_true(isnan(ema_gamma_of_sigma(NAN)));
	assert_near(ema_gamma_of_sigma(1e-9), 1e9 - 3);
}

/* --- tracks_f64.jsonl, ema_vectors.json --- */

/* Every value of an average of the inputs is theirs, relative to the largest of the inputs so far:
 * what is left of their sum may be much smaller than its terms. */
static void assert_track(const char *file, const char *beginning, const char *spec)
{
	double p[STEPS * COLUMNS], e[STEPS * COLUMNS];

	assert_int_equal(numbers(file, "\"p\"", p, ARRAY_LEN(p)), ARRAY_LEN(p));
	assert_int_equal(numbers(line_of(file, beginning), "\"e\"", e, ARRAY_LEN(e)), ARRAY_LEN(e));
	for (uint32_t c = 0; c < COLUMNS; c++) {
		struct average a = average_new(spec);
		double most = 0;

		for (uint32_t i = 0; i < STEPS; i++) {
			average_step(&a, i + 1, p[i * COLUMNS + c]);
			most = MAX(most, fabs(p[i * COLUMNS + c]));
			if (fabs(a.e - e[i * COLUMNS + c]) > NEAR * most)
				fail_msg("%s, column %u, step %u: %.17g, not %.17g", spec, c, i + 1,
					 a.e, e[i * COLUMNS + c]);
		}
	}
}

TEST(every_step_of_every_real_track_is_reached)
{
	cleanup_free char *f = vectors("tracks_f64.jsonl");
#define TORCH "{\"impl\":\"torch AveragedModel get_ema_multi_avg_fn\",\"args\":{\"decay\":"
#define TIMM_TRACK "{\"impl\":\"timm ModelEmaV3, update(model, step=k)\",\"args\":{\"decay\":"
#define DIFFUSERS_TRACK "{\"impl\":\"diffusers EMAModel.step\",\"args\":{\"decay\":"
#define POWER_TRACK "{\"impl\":\"power function EMA (paper), delta 1\",\"args\":{\"sigma_rel\":"

	assert_track(f, TORCH "0.9}", "constant decay=.9");
	assert_track(f, TORCH "0.5}", "constant decay=.5");
	assert_track(f, "{\"impl\":\"torch AveragedModel SWA\"", "uniform");
	assert_track(f, TIMM_TRACK "0.9}", "timm decay=.9");
	assert_track(f, TIMM_TRACK "0.9999,\"use_warmup\":true}", "timm decay=.9999 warmup=1");
	assert_track(f, TIMM_TRACK "0.9999,\"use_warmup\":true,\"update_after_step\":2}",
		     "timm decay=.9999 warmup=1 start=2");
	assert_track(f, DIFFUSERS_TRACK "0.9}", "diffusers decay=.9");
	assert_track(f, DIFFUSERS_TRACK "0.9999}", "diffusers decay=.9999");
	assert_track(f, DIFFUSERS_TRACK "0.9999,\"use_ema_warmup\":true}",
		     "diffusers decay=.9999 warmup=1");
	assert_track(f, POWER_TRACK "0.05", "power sigma_rel=.05");
	assert_track(f, POWER_TRACK "0.1", "power sigma_rel=.1");
	assert_track(f, POWER_TRACK "0.2", "power sigma_rel=.2");
}

/* The last values of one. shift: our steps are 1 + shift, ...; at `shift` it was copied from P's
 * first row, if that is more than 0. */
static void assert_last(const char *file, const char *key, const char *spec, uint32_t shift)
{
	double p[STEPS * COLUMNS], e[COLUMNS];

	assert_int_equal(numbers(file, "\"P\"", p, ARRAY_LEN(p)), ARRAY_LEN(p));
	assert_int_equal(numbers(file, key, e, COLUMNS), COLUMNS);
	for (uint32_t c = 0; c < COLUMNS; c++) {
		struct average a = average_new(spec);

		if (shift)
			average_step(&a, shift, p[c]);
		for (uint32_t i = 0; i < STEPS; i++)
			average_step(&a, i + 1 + shift, p[i * COLUMNS + c]);
		assert_near(a.e, e[c]);
	}
}

TEST(the_last_values_of_every_rule_are_reached)
{
	cleanup_free char *f = vectors("ema_vectors.json");

	assert_last(f, "\"torch_ema_0.9 (first call copies)\"", "constant decay=.9", 0);
	assert_last(f, "\"torch_swa\"", "uniform", 0);
	assert_last(f,
		    "\"timm_v3/diffusers warmup inv_gamma=1 power=2/3 decay=.9999 (init=P0, step "
		    "k=1..T)\"",
		    "timm decay=.9999 warmup=1", 0);
	assert_last(f, "\"timm_v3 no-warmup decay .9 (update(model, step=k))\"", "timm decay=.9",
		    0);
	assert_last(f,
		    "\"diffusers no-warmup: min(d,(1+s)/(10+s)), s=k-1, d=.9 (first step "
		    "copies)\"",
		    "diffusers decay=.9", 0);
	assert_last(f, "\"tf/timm-v1 style min(d,(1+k)/(10+k)) d=.9999\"", "diffusers decay=.9999",
		    1);
	assert_last(f, "\"edm2 power sigma_rel=.05\"", "power sigma_rel=.05", 0);
	assert_last(f, "\"edm2 power sigma_rel=.10\"", "power sigma_rel=.10", 0);
	assert_last(f, "\"torchtitan half_life_fraction=.05\"", "halflife fraction=.05", 0);
	assert_last(f, "\"zero-init d=.9 bias-corrected /(1-d^T)\"", "zero decay=.9", 0);
}

/* --- what went wrong for users of others --- */

/* Weights that wander: one step of them. */
static double weight(uint64_t step)
{
	double t = (double)step;

	return 1 + t / 300 + .3 * sin(t / 17) + .1 * sin(t * 1.7);
}

/* Steps 1 to last, of which only each every-th is seen, from the first on. */
static double wandered(const char *spec, uint64_t every, uint64_t last)
{
	struct average a = average_new(spec);

	for (uint64_t k = every; k <= last; k += every)
		average_step(&a, k, weight(k));
	return a.e;
}

/* The same, by somebody who counts calls and not steps. */
static double miscounted(const char *spec, uint64_t every, uint64_t last)
{
	struct average a = average_new(spec);

	for (uint64_t k = every, call = 1; k <= last; k += every, call++)
		average_step(&a, call, weight(k));
	return a.e;
}

TEST(steps_that_were_missed_count_by_their_true_distance)
{
	assert_near(decay_at("constant decay=.999", 8, 7), .999);
	assert_near(decay_at("constant decay=.999", 17, 7), pow(.999, 10));
	assert_near(decay_at("power gamma=6", 100, 90), pow(.9, 7));
	assert_near(decay_at("halflife fraction=.05", 100, 90), exp2(-2));
	assert_near(decay_at("timm decay=.9999 warmup=1", 1000, 997),
		    pow(1 - pow(1000, -2.0 / 3), 3));
	assert_near(decay_at("diffusers decay=.9999", 11, 9), pow(11.0 / 20, 2));
	/* the part of the first step that is left: .9^6 of it is counted as one of six steps */
	assert_near(decay_at("zero decay=.9", 6, 1), 1 - (1 - pow(.9, 5)) / (1 - pow(.9, 6)));
}

TEST(an_average_of_every_tenth_step_that_was_not_missed_is_near_that_of_all)
{
	static const char *const specs[] = { "constant decay=.999", "power sigma_rel=.1",
					     "halflife fraction=.05", "zero decay=.999" };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++) {
		double all = wandered(specs[i], 1, 5000), some = wandered(specs[i], 10, 5000);

		if (!near(some, all, .02))
			fail_msg("%s: %g, not about %g", specs[i], some, all);
	}
}

/* "Same d every N". */
TEST(a_decay_that_is_not_raised_to_the_missed_steps_is_far_off)
{
	double all = wandered("constant decay=.999", 1, 5000);

	assert_true(near(wandered("constant decay=.999", 10, 5000), all, .01));
	assert_false(near(miscounted("constant decay=.999", 10, 5000), all, .2));
}

/* ema-pytorch's KarrasEMA applies the decay of one step to every N-th. */
TEST(update_every_of_KarrasEMA_is_far_off_and_the_missed_steps_are_not)
{
	struct ema_schedule x = schedule("power sigma_rel=.05");
	double late = 0, all = wandered("power sigma_rel=.05", 1, 5000);

	for (uint64_t k = 10; k <= 5000; k += 10) {
		struct ema_state s = ema_state_copied("", k - 1);
		struct ema_update u = ema_schedule_update(&x, &s, k);

		late += (1 - u.decay) * (weight(k) - late);
	}
	assert_true(near(wandered("power sigma_rel=.05", 10, 5000), all, .01));
	assert_false(near(late, all, .2));
}

/* Their state lacked the counter: a warm-up began again, and overwrote the average. */
TEST(a_warm_up_does_not_begin_again_after_a_resume)
{
	static const char *const specs[] = { "timm decay=.9999 warmup=1",
					     "diffusers decay=.9999",
					     "power sigma_rel=.1",
					     "halflife fraction=.05",
					     "uniform",
					     "zero decay=.999",
					     "constant decay=.999" };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct average a = average_new(specs[i]), b;
		struct ema_state kept;

		for (uint64_t k = 1; k <= 500; k++)
			average_step(&a, k, weight(k));
		/* what a file keeps, and nothing else */
		kept = (struct ema_state){ .product = a.state.product,
					   .updates = a.state.updates,
					   .last_step = a.state.last_step,
					   .since = a.state.since };
		memcpy(kept.history, a.state.history, 16);
		b = (struct average){ schedule(specs[i]), kept, a.e };
		for (uint64_t k = 501; k <= 1000; k++) {
			average_step(&a, k, weight(k));
			average_step(&b, k, weight(k));
			assert_true(a.e == b.e);
		}
		assert_memory_equal(a.state.history, b.state.history, 16);
		assert_true(a.state.product == b.state.product);
		assert_int_equal(a.state.since, 1);
	}
}

/* timm's, without `step`, averages with what the model happened to hold. */
TEST(the_first_step_that_is_seen_is_copied_whatever_its_number)
{
	static const char *const specs[] = { "timm decay=.9999",
					     "diffusers decay=.9999",
					     "power sigma_rel=.1",
					     "halflife fraction=.05",
					     "uniform",
					     "zero decay=.999",
					     "constant decay=.999" };
	static const uint64_t first[] = { 0, 1, 2, 777, UINT64_MAX - 2 };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++)
		for (uint32_t j = 0; j < ARRAY_LEN(first); j++) {
			struct average a = average_new(specs[i]);
			struct ema_update u = ema_schedule_update(&a.schedule, &a.state, first[j]);

			assert_true(u.copy && u.a == 1 && u.decay == 0);
			a.state = ema_state_after(&a.state, &u, specs[i], first[j]);
			assert_int_equal(a.state.since, first[j]);
			assert_int_equal(a.state.last_step, first[j]);
			assert_int_equal(a.state.updates, 0);
			assert_true(a.state.product == 1);
		}
}

TEST(diffusers_without_a_warm_up_is_not_constant_and_timm_is)
{
	assert_near(decay_at("timm decay=.9999", 50, 49), .9999);
	assert_near(decay_at("diffusers decay=.9999", 50, 49), 50.0 / 59);
}

/* Paddle's begins at zero and stays too small: by the part (1 - d)^k that it never saw. */
TEST(an_average_from_zero_is_corrected_from_its_first_step_on)
{
	struct average a = average_new("zero decay=.999");
	double raw = 0;

	for (uint64_t k = 1; k <= 1000; k++) {
		average_step(&a, k, weight(k));
		raw = .999 * raw + (1 - .999) * weight(k);
		assert_true(near(a.e, raw / (1 - pow(.999, (double)k)), 1e-12));
	}
	assert_true(raw < .64 * a.e);	    /* 1 - 1/e, as measured of Paddle */
	for (uint64_t k = 1; k <= 3; k++) { /* of equal weights it is that weight at once */
		a = average_new("zero decay=.999999");
		average_step(&a, k, 3);
		average_step(&a, k + 1, 3);
		assert_true(a.e == 3);
	}
}

TEST(an_average_from_zero_that_missed_steps_stays_corrected)
{
	struct average a = average_new("zero decay=.9");
	double raw = 0, seen = 0;
	static const uint64_t steps[] = { 4, 5, 9, 10, 30 };

	for (uint32_t i = 0; i < ARRAY_LEN(steps); i++) {
		/* the first is one step from zero, later ones stand for all since the one before */
		double d = i ? pow(.9, (double)(steps[i] - steps[i - 1])) : .9;

		average_step(&a, steps[i], weight(steps[i]));
		raw = d * raw + (1 - d) * weight(steps[i]);
		seen = d * seen + (1 - d);
		assert_true(near(a.e, raw / seen, 1e-13));
	}
}

TEST(uniform_is_the_mean_of_the_steps_that_were_taken_in)
{
	struct average a = average_new("uniform start=4");
	double sum = 0;
	uint32_t n = 0;

	for (uint64_t k = 1; k <= 100; k += k % 3 ? 1 : 5) {
		average_step(&a, k, weight(k));
		sum = k <= 4 ? weight(k) : sum + weight(k);
		n = k <= 4 ? 1 : n + 1;
		assert_true(near(a.e, sum / n, 1e-13));
	}
	assert_int_equal(a.state.updates, n - 1);
}

/* 1 / n as a float, where 1 - (n - 1) / n has lost digits. */
TEST(what_comes_into_a_uniform_average_is_exact)
{
	struct ema_schedule x = schedule("uniform");
	struct ema_state s = ema_state_copied("", 5);

	for (uint64_t n = 0; n < UINT64_C(1) << 50; n = n * 3 + 1) {
		struct ema_update u;

		s.updates = n;
		u = ema_schedule_update(&x, &s, 6);
		assert_true(u.a == (float)(1 / ((double)n + 2)));
	}
}

/* --- what is known of the rules --- */

TEST(a_warm_up_of_power_1_is_the_mean_of_all_steps)
{
	struct average mean = average_new("uniform"),
		       ramp = average_new("timm decay=.9999999 warmup=1 gamma=1 power=1");

	for (uint64_t k = 1; k <= 2000; k++) {
		average_step(&mean, k, weight(k));
		average_step(&ramp, k, weight(k));
		assert_true(near(mean.e, ramp.e, 1e-12));
	}
}

/* The half-life of torchtitan's rule is that of a power function with gamma + 1 = ln 2 /
 * fraction. */
TEST(halflife_is_about_a_power_function)
{
	char text[64];
	double a, b;

	snprintf(text, sizeof text, "power gamma=%.17g", log(2) / .05 - 1);
	a = wandered("halflife fraction=.05", 1, 5000);
	b = wandered(text, 1, 5000);
	assert_true(near(a, b, 1e-4));
	assert_false(near(a, wandered("power gamma=3", 1, 5000), 1e-2));
}

/* d reaches .999 at 31.6 thousand steps with power 2/3, at 10 thousand with 3/4. */
TEST(warm_ups_reach_their_decay_when_their_author_says)
{
	assert_true(near(decay_at("timm decay=.9999 warmup=1", 31623, 31622), .999, 1e-6));
	assert_true(near(decay_at("timm decay=.9999 warmup=1 power=.75", 10000, 9999), .999, 1e-6));
}

/* --- start, the ends of the numbers --- */

TEST(every_step_up_to_start_is_copied)
{
	static const char *const specs[] = { "constant decay=.9 start=100", "uniform start=100",
					     "zero decay=.9 start=100",
					     "halflife fraction=.5 start=100" };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct average a = average_new(specs[i]);

		for (uint64_t k = 10; k <= 100; k += 10) {
			average_step(&a, k, weight(k));
			assert_true(a.e == weight(k));
			assert_int_equal(a.state.since, k);
		}
		average_step(&a, 101, weight(101));
		assert_true(a.e != weight(101));
		assert_int_equal(a.state.since, 100);
		assert_int_equal(a.state.updates, 1);
	}
}

TEST(schedules_count_from_start)
{
	assert_near(decay_at("power gamma=6 start=1000", 1100, 1099), pow(.99, 7));
	assert_near(decay_at("power gamma=6 start=1000", 1100, 1090), pow(.9, 7));
	assert_near(decay_at("halflife fraction=.05 start=1000", 1100, 1099), exp2(-.2));
	assert_near(decay_at("diffusers decay=.9999 start=1000", 1011, 1010), 11.0 / 20);
	/* a step that lies before start leaves nothing to a power function */
	assert_true(decay_at("power gamma=6 start=1000", 1100, 900) == 0);
}

TEST(steps_beyond_the_whole_numbers_of_doubles_are_told_apart)
{
	const uint64_t far = (UINT64_C(1) << 60) + 1;

	assert_near(decay_at("constant decay=.999", far + 3, far), pow(.999, 3));
	assert_near(decay_at("power gamma=6", far + 3, far), 1);
	assert_near(decay_at("diffusers decay=.9999", far, far - 1), .9999);
	assert_near(decay_at("constant decay=.999 start=1152921504606846000", far, far - 1), .999);
	assert_near(decay_at("diffusers decay=.9999 start=1152921504606846967", far, far - 1),
		    10.0 / 19);
	assert_near(decay_at("power gamma=0 start=1", UINT64_MAX - 1, 1 + (UINT64_MAX - 2) / 4),
		    .25);
}

TEST(after_a_very_long_time_nothing_of_before_remains)
{
	static const char *const specs[] = { "constant decay=.9",	 "timm decay=.9",
					     "diffusers decay=.9",	 "zero decay=.9",
					     "power gamma=1e300",	 "power gamma=1e9",
					     "halflife fraction=1e-300", "halflife fraction=1e-9" };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct ema_schedule x = schedule(specs[i]);
		struct ema_state s = ema_state_copied(specs[i], 1);
		struct ema_update u = ema_schedule_update(&x, &s, UINT64_MAX - 1);

		assert_true(u.copy && u.a == 1);
		s = ema_state_after(&s, &u, specs[i], UINT64_MAX - 1);
		assert_int_equal(s.since, UINT64_MAX - 1);
	}
}

TEST(a_decay_of_zero_is_a_copy_of_each_step)
{
	struct average a = average_new("constant decay=0");

	for (uint64_t k = 1; k < 9; k++) {
		average_step(&a, k, weight(k));
		assert_true(a.e == weight(k));
		assert_int_equal(a.state.since, k);
	}
	assert_true(decay_at("zero decay=0", 9, 8) == 0);
	assert_true(decay_at("diffusers decay=0", 9, 8) == 0);
}

/* Whatever stands in a spec that ema_spec_check has nothing to say about. */
TEST(decays_and_weights_stay_between_0_and_1)
{
	static const char *const specs[] = {
		"constant decay=.99999999999999988",
		"zero decay=.99999999999999988",
		"timm decay=.9 warmup=1 gamma=1e-308",
		"timm decay=.9 warmup=1 gamma=1e308",
		"timm decay=.9 warmup=1 power=1e308",
		"timm decay=.9 warmup=1 power=1e-308",
		"halflife fraction=1e308",
		"halflife fraction=5e-324",
		"power gamma=0",
		"power gamma=1.7e308",
		"power sigma_rel=1e-12",
		"constant decay=5e-324",
		"zero decay=5e-324",
		"timm decay=5e-324 warmup=1",
	};
	uint64_t seed = draw_seed("ends");

	for (uint64_t i = 0; i < unit_scaled(20000); i++) {
		struct ema_schedule x = schedule(specs[i % ARRAY_LEN(specs)]);
		uint64_t last = draw(&seed) >> draw_below(&seed, 64),
			 step = draw(&seed) >> draw_below(&seed, 64);
		struct ema_state s = ema_state_copied("", MIN(last, step) / 2);
		struct ema_update u;

		if (step <= s.last_step || step == EMA_NO_STEP)
			continue;
		x.start = draw(&seed) >> draw_below(&seed, 64);
		u = ema_schedule_update(&x, &s, step);
		if (!(u.decay >= 0 && u.decay <= 1 && u.a >= 0 && u.a <= 1 && u.copy == (u.a == 1)))
			fail_msg("%s at %" PRIu64 " after %" PRIu64 ": %g, %g",
				 specs[i % ARRAY_LEN(specs)], step, s.last_step, u.decay,
				 (double)u.a);
	}
}

TEST(what_comes_in_is_one_minus_the_decay_rounded_once)
{
	struct ema_schedule x = schedule("constant decay=.9999");
	struct ema_state s = ema_state_copied("", 1);

	assert_true(ema_schedule_update(&x, &s, 2).a == (float)(1 - .9999));
	/* not 1 - (float)decay, which is 1.0001659e-4 */
	assert_true(ema_schedule_update(&x, &s, 2).a != 1 - .9999F);
}

/* --- the state --- */

TEST(the_history_is_what_the_format_says)
{
	static const char canonical[] = "constant decay=0.9 start=0";
	static const uint8_t behind_3_4_9[16] = { 0x88, 0xb3, 0xd3, 0xa7, 0x51, 0xa5, 0x85, 0xd4,
						  0xa7, 0x12, 0x59, 0xa6, 0x89, 0xc4, 0xc7, 0xe5 };
	static const uint64_t steps[] = { 3, 4, 9 };
	struct ema_schedule x = schedule(canonical);
	struct ema_state s = ema_state_new(canonical);
	struct hash128 h = hash128(canonical, strlen(canonical));
	uint64_t last = UINT64_MAX;
	uint8_t link[32];

	assert_memory_equal(s.history, h.b, 16);
	for (uint32_t i = 0; i < ARRAY_LEN(steps); i++) {
		struct ema_update u = ema_schedule_update(&x, &s, steps[i]);

		s = ema_state_after(&s, &u, canonical, steps[i]);
		memcpy(link, h.b, 16);
		for (uint32_t b = 0; b < 8; b++) {
			link[16 + b] = (uint8_t)(steps[i] >> 8 * b);
			link[24 + b] = (uint8_t)(last >> 8 * b);
		}
		h = hash128(link, sizeof link);
		assert_memory_equal(s.history, h.b, 16);
		last = steps[i];
	}
	assert_memory_equal(s.history, behind_3_4_9, 16);
	assert_int_equal(s.updates, 2);
	assert_int_equal(s.since, 3);
	assert_int_equal(s.last_step, 9);
	assert_near(s.product, .9 * pow(.9, 5));
}

TEST(the_history_has_every_step_that_was_applied_and_every_schedule)
{
	static const uint64_t steps[][3] = { { 1, 2, 4 }, { 1, 3, 4 }, { 2, 3, 4 }, { 0, 1, 4 } };
	static const char *const canonical[] = { "constant decay=0.9 start=0",
						 "constant decay=0.99 start=0" };
	uint8_t seen[ARRAY_LEN(steps) * 2][16];
	uint32_t n = 0;

	for (uint32_t c = 0; c < 2; c++)
		for (uint32_t i = 0; i < ARRAY_LEN(steps); i++, n++) {
			struct ema_schedule x = schedule(canonical[c]);
			struct ema_state s = ema_state_new(canonical[c]);

			for (uint32_t j = 0; j < 3; j++) {
				struct ema_update u = ema_schedule_update(&x, &s, steps[i][j]);

				s = ema_state_after(&s, &u, canonical[c], steps[i][j]);
			}
			for (uint32_t j = 0; j < n; j++)
				assert_memory_not_equal(seen[j], s.history, 16);
			memcpy(seen[n], s.history, 16);
		}
}

/* docs/AVERAGES.md says so. */
TEST(a_trainer_that_counts_from_0_has_the_same_average_or_one_that_is_a_step_late)
{
	static const struct {
		const char *spec;
		bool late, twice; /* twice: step 1 is copied too */
	} x[] = {
		{ "constant decay=.9", false, false },	  { "uniform", false, false },
		{ "zero decay=.9", false, false },	  { "timm decay=.99 warmup=1", true, true },
		{ "diffusers decay=.99", true, true },	  { "power gamma=6.94", true, true },
		{ "halflife fraction=.05", true, false },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct average from0 = average_new(x[i].spec), from1 = average_new(x[i].spec);

		average_step(&from0, 0, 1);
		average_step(&from1, 1, 1);
		for (uint64_t n = 1; n < 30; n++) { /* updates before this one */
			double before = from1.state.product;

			average_step(&from0, n, 0);
			average_step(&from1, n + 1, 0);
			if (!x[i].late)
				assert_true(from0.state.product == from1.state.product);
			else
				assert_true(from0.state.product != from1.state.product ||
					    before == 0);
			assert_int_equal(from0.state.since, x[i].twice);
		}
	}
}

/* The same history is the same values, so it says with which ones an average began. */
TEST(histories_say_from_what_an_average_was_seeded)
{
	struct ema_state s[] = { ema_state_copied("uniform", 7),
				 ema_state_seeded("uniform", 7, "0a", false),
				 ema_state_seeded("uniform", 7, "0a", true),
				 ema_state_seeded("uniform", 7, "0b", false),
				 ema_state_seeded("uniform", 8, "0a", false),
				 ema_state_seeded("zero", 7, "0a", false) };

	for (uint32_t i = 0; i < ARRAY_LEN(s); i++)
		for (uint32_t k = 0; k < i; k++)
			assert_memory_not_equal(s[i].history, s[k].history, 16);
	assert_int_equal(s[1].since, 7);
	assert_int_equal(s[1].last_step, 7);
	assert_int_equal(s[1].updates, 0);
	assert_true(s[1].product == 1);
	s[0] = ema_state_seeded("uniform", 7, "0a", false);
	assert_memory_equal(s[0].history, s[1].history, 16);
}

TEST(a_copy_begins_anew)
{
	static const char canonical[] = "constant decay=0.9 start=0";
	struct ema_state copied = ema_state_copied(canonical, 7),
			 s = ema_state_copied(canonical, 3);
	struct ema_update copy = { .copy = true, .a = 1 };

	s.updates = 5;
	s.product = .5;
	s = ema_state_after(&s, &copy, canonical, 7);
	assert_memory_equal(s.history, copied.history, 16);
	assert_int_equal(s.updates, 0);
	assert_int_equal(s.since, 7);
	assert_int_equal(s.last_step, 7);
	assert_true(s.product == 1);
}

/* product: how much of the step that was copied is still in the average. */
TEST(the_product_is_what_is_left_of_the_first_step)
{
	static const char *const specs[] = { "constant decay=.9",    "timm decay=.99 warmup=1",
					     "diffusers decay=.99",  "power gamma=2",
					     "halflife fraction=.9", "uniform",
					     "zero decay=.9" };

	for (uint32_t i = 0; i < ARRAY_LEN(specs); i++) {
		struct average a = average_new(specs[i]);

		average_step(&a, 5, 1);
		for (uint64_t k = 6; k < 40; k += 1 + k % 3)
			average_step(&a, k, 0);
		assert_true(near(a.e, a.state.product, 1e-12));
		assert_int_equal(a.state.since, 5);
	}
}
