/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ema_kernel.c - the update of averages, by every instruction set of this machine: against
 * what PyTorch, timm, diffusers and PaddleFormers answered (tests/vectors/ema/make.py), against the
 * formulas of kernel.h written once more, and against double precision.
 */
#include "ckpt/base/isa.h"
#include "ckpt/ckpt.h"
#include "ema/kernel.h"
#include "tests/lib/unit.h"
#include <float.h>
#include <math.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define SEED 20261123

static uint64_t rng_state = SEED;
static const char *const isas[] = { "scalar", "avx2", "avx512" };
static const uint32_t types[] = { CKPT_F32, CKPT_BF16, CKPT_F16 };

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static double uniform(void) /* [-1, 1) */
{
	return (double)(int64_t)rng() * 0x1p-63;
}

static double normal(void) /* near enough */
{
	double sum = 0;

	for (int i = 0; i < 12; i++)
		sum += uniform();
	return sum / 2;
}

static uint32_t bits_of(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return u;
}

static float of_bits(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof x);
	return x;
}

static bool nan_bits(uint32_t u)
{
	return (u & 0x7fffffff) > 0x7f800000;
}

static float share_of(double decay)
{
	return (float)(1 - decay);
}

static uint64_t bytes_of(uint32_t dtype)
{
	return dtype == CKPT_F32 ? 4 : 2;
}

/* One target and no health. */
static void update(uint32_t dtype, const void *p, uint64_t n, float a, const float *e, float *ret)
{
	struct ema_target t = { .a = a, .before = e, .out = ret };

	ema_update_targets(dtype, p, n, &t, 1, NULL);
}

#define EACH_ISA(name)                      \
	for (uint32_t k_ = 0; k_ < 3; k_++) \
		if ((name = isas[k_]), !isa_force(name))

static int best_isa(void **state)
{
	(void)state;
	return isa_force(NULL);
}

UNIT(.teardown = best_isa);

/* --- vectors --- */

#define LINE_BYTES 32768
#define WORDS_MAX 64

struct words {
	uint32_t n;
	char *w[WORDS_MAX];
};

static FILE *vectors_open(const char *name)
{
	char path[100];
	FILE *f;

	snprintf(path, sizeof path, "tests/vectors/ema/%s.txt", name);
	f = fopen(path, "r");
	if (!f)
		fail_msg("%s: %s; the tests run in the top folder", path, strerror(errno));
	return f;
}

/* The next line that is no comment. */
static bool words_read(FILE *f, struct words *ret)
{
	static char line[LINE_BYTES];
	char *next;

	do {
		if (!fgets(line, sizeof line, f))
			return false;
		assert_non_null(strchr(line, '\n'));
	} while (*line == '#');
	ret->n = 0;
	for (char *w = strtok_r(line, " \n", &next); w; w = strtok_r(NULL, " \n", &next)) {
		assert_true(ret->n < WORDS_MAX);
		ret->w[ret->n++] = w;
	}
	return true;
}

/* A row of elements in hex, first byte first; returns how many bytes. */
static uint32_t row_read(const char *hex, void *ret, uint32_t max)
{
	uint32_t n = 0;
	unsigned byte;
	int used;

	for (; *hex; hex += 2) {
		assert_true(n < max && sscanf(hex, "%2x%n", &byte, &used) == 1 && used == 2);
		((uint8_t *)ret)[n++] = (uint8_t)byte;
	}
	return n;
}

static float share_read(const char *hex)
{
	return of_bits((uint32_t)strtoul(hex, NULL, 16));
}

static void equal_rows(const char *what, const float *have, const float *want, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t h = bits_of(have[i]), w = bits_of(want[i]);

		if (h != w && !(nan_bits(h) && nan_bits(w)))
			fail_msg("%s: element %u is %08x, not %08x", what, i, h, w);
	}
}

#define PAIRS 677

TEST(one_update_has_the_bits_of_torch_lerp)
{
	static float e[PAIRS], p[PAIRS], want[PAIRS], want16[PAIRS], out[PAIRS];
	uint16_t p16[PAIRS];
	FILE *f = vectors_open("lerp");
	uint32_t lines = 0;
	const char *isa;
	struct words x;

	assert_true(words_read(f, &x) && row_read(x.w[1], e, sizeof e) == sizeof e);
	assert_true(words_read(f, &x) && row_read(x.w[1], p, sizeof p) == sizeof p);
	assert_true(words_read(f, &x) && row_read(x.w[1], p16, sizeof p16) == sizeof p16);
	for (; words_read(f, &x); lines++) {
		float a = share_read(x.w[1]);

		assert_string_equal(x.w[0], "lerp");
		row_read(x.w[2], want, sizeof want);
		row_read(x.w[3], want16, sizeof want16);
		EACH_ISA(isa)
		{
			update(CKPT_F32, p, PAIRS, a, e, out);
			equal_rows(x.w[1], out, want, PAIRS);
			update(CKPT_BF16, p16, PAIRS, a, e, out);
			equal_rows(x.w[1], out, want16, PAIRS);
		}
	}
	assert_int_equal(lines, 18);
	fclose(f);
}

#define TRACK_STEPS 24
#define TRACK_N 37
#define ZCC_STEPS 12

/* How far an average of another rounding is from ours: greatest difference as a part of the
 * greatest source so far. docs/AVERAGES.md states these limits. */
#define FAR_PRODUCTS 5e-7 /* get_ema_avg_fn: fl(d e) + fl(a p); 24 updates */
#define FAR_SUB 1e-7	  /* diffusers without foreach: s - fl(a fl(s - p)) */
#define FAR_DIVISION 1e-7 /* SWA on a CPU: e + fl(fl(p - e) / k) */
#define FAR_FOREACH 1e-7  /* diffusers with foreach; equal where a < 0.5 */
#define FAR_ZCC 1e-7	  /* PaddleFormers, of the uncorrected average */

/* 0: the same bits. */
static double far_of(const float *have, const float *want, uint32_t n, double scale)
{
	double far = 0;

	for (uint32_t i = 0; i < n; i++)
		far = fmax(far, fabs((double)have[i] - (double)want[i]) / scale);
	return memcmp(have, want, sizeof *have * n) ? fmax(far, DBL_MIN) : 0;
}

static double greatest(const float *p, uint32_t n, double so_far)
{
	for (uint32_t i = 0; i < n; i++)
		so_far = fmax(so_far, fabs((double)p[i]));
	return so_far;
}

static double far_allowed(const char *rule)
{
	if (!strcmp(rule, "lerp") || !strcmp(rule, "bf16"))
		return 0;
	if (!strcmp(rule, "foreach"))
		return FAR_FOREACH;
	if (!strcmp(rule, "sub"))
		return FAR_SUB;
	if (!strcmp(rule, "products"))
		return FAR_PRODUCTS;
	assert_string_equal(rule, "division");
	return FAR_DIVISION;
}

/* Our updates behind the first `begun` ones, beside those of a line; how far the two are. */
static double track_far(const struct words *x, float p[TRACK_STEPS][TRACK_N], uint32_t begun)
{
	static float e[2][TRACK_N], want[TRACK_N];
	bool bf16 = !strcmp(x->w[2], "bf16");
	double far = 0, scale = 0;
	uint32_t next = 3 + TRACK_STEPS;
	uint16_t p16[TRACK_N];

	memcpy(e[0], p[0], sizeof e[0]);
	for (; begun && next < x->n && strtoul(x->w[next], NULL, 10) <= begun; next++)
		row_read(strchr(x->w[next], ':') + 1, e[begun % 2], sizeof e[0]);
	for (uint32_t k = begun + 1; k <= TRACK_STEPS; k++) {
		const float *source = p[k - 1];
		char *row;

		for (uint32_t i = 0; bf16 && i < TRACK_N; i++) {
			uint32_t u = bits_of(source[i]);

			p16[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
		}
		update(bf16 ? CKPT_BF16 : CKPT_F32, bf16 ? (const void *)p16 : source, TRACK_N,
		       share_read(x->w[2 + k]), e[(k - 1) % 2], e[k % 2]);
		scale = greatest(source, TRACK_N, scale);
		if (next >= x->n || strtoul(x->w[next], &row, 10) != k)
			continue;
		assert_int_equal(row_read(row + 1, want, sizeof want), sizeof want);
		far = fmax(far, far_of(e[k % 2], want, TRACK_N, scale));
		next++;
	}
	assert_int_equal(next, x->n);
	return far;
}

TEST(a_run_of_24_updates_has_the_bits_of_the_real_classes_or_is_as_near_as_is_stated)
{
	static float p[TRACK_STEPS][TRACK_N];
	FILE *f = vectors_open("track");
	uint32_t lines = 0, equal = 0;
	const char *isa;
	struct words x;

	for (uint32_t k = 0; k < TRACK_STEPS; k++)
		assert_true(words_read(f, &x) &&
			    row_read(x.w[1], p[k], sizeof p[k]) == sizeof p[k]);
	for (; words_read(f, &x); lines++) {
		double allowed = far_allowed(x.w[2]), far;

		equal += allowed == 0;
		EACH_ISA(isa)
		{
			far = track_far(&x, p, 0);
			/* Of foreach the last twelve shares are below 0.5. */
			if (!strcmp(x.w[2], "foreach"))
				assert_true(track_far(&x, p, TRACK_STEPS / 2) == 0);
			if (far > allowed)
				fail_msg("%s %s, %s: %g off, %g are allowed", x.w[1], x.w[2], isa,
					 far, allowed);
		}
	}
	assert_int_equal(lines, 27);
	assert_int_equal(equal, 12);
	fclose(f);
}

/* PaddleFormers begins at zero and corrects nothing: e_k = (1 - q) x our average from zero, with q
 * the product of all decays. A step whose loss is not below the threshold is held. */
static double zcc_far(const struct words *x, float p[ZCC_STEPS][2 * TRACK_N], uint32_t n)
{
	static float e[2][2 * TRACK_N], want[2 * TRACK_N], have[2 * TRACK_N];
	double decay = strtod(x->w[1], NULL), q = 1, far = 0, scale = 0;
	uint32_t next = 3 + ZCC_STEPS;

	memset(e, 0, sizeof e);
	for (uint32_t k = 1; k <= ZCC_STEPS; k++) {
		double loss = strtod(x->w[2 + k], NULL);
		struct ema_target t = { .before = e[(k - 1) % 2], .out = e[k % 2] };
		char *row;

		if (strcmp(x->w[2], "none") && !(loss < strtod(x->w[2], NULL))) {
			t.hold = true;
		} else {
			q *= decay;
			t.a = (float)((1 - decay) / (1 - q));
			scale = greatest(p[k - 1] + 4, n - 4, scale);
		}
		ema_update_targets(CKPT_F32, p[k - 1], n, &t, 1, NULL);
		if (next >= x->n || strtoul(x->w[next], &row, 10) != k)
			continue;
		row_read(row + 1, want, sizeof want);
		for (uint32_t i = 0; i < n; i++)
			have[i] = (float)((double)e[k % 2][i] * (1 - q));
		/* The first four are zeros, a denormal and 3e38. */
		far = fmax(far, far_of(have + 4, want + 4, n - 4, scale * (1 - q)));
		next++;
	}
	assert_int_equal(next, x->n);
	return far;
}

TEST(an_average_from_zero_is_that_of_paddle_corrected)
{
	static float p[ZCC_STEPS][2 * TRACK_N];
	uint32_t lines = 0, bytes = 0;
	FILE *f = vectors_open("zcc");
	const char *isa;
	struct words x;

	for (uint32_t k = 0; k < ZCC_STEPS; k++) {
		assert_true(words_read(f, &x));
		bytes = row_read(x.w[1], p[k], sizeof p[k]);
	}
	for (; words_read(f, &x); lines++)
		EACH_ISA(isa)
		{
			double far = zcc_far(&x, p, bytes / 4);

			if (far > FAR_ZCC)
				fail_msg("decay %s, %s: %g off, %g are allowed", x.w[1], isa, far,
					 FAR_ZCC);
		}
	assert_int_equal(lines, 10);
	fclose(f);
}

/* --- the formulas once more --- */

enum form { COPY, HOLD, NEAR, FAR, KAHAN, KAHAN_FROM_ZERO, COPY_KAHAN, HOLD_KAHAN, FORMS };

static double f16_value(uint32_t h)
{
	int exponent = (int)(h >> 10 & 31), fraction = (int)h & 0x3ff;
	double x = exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);

	return h & 0x8000 ? -x : x;
}

static uint32_t source_bits(uint32_t dtype, const uint8_t *p, uint64_t i)
{
	uint32_t u;
	uint16_t h;

	if (dtype == CKPT_F32) {
		memcpy(&u, p + 4 * i, 4);
		return u;
	}
	memcpy(&h, p + 2 * i, 2);
	if (dtype == CKPT_BF16)
		return (uint32_t)h << 16;
	if ((h & 0x7c00) == 0x7c00)
		return (h & 0x8000u) << 16 | 0x7f800000 | (h & 0x3ffu) << 13 |
		       (h & 0x3ff ? 0x400000 : 0);
	return bits_of((float)f16_value(h));
}

static uint32_t number_bits(float x)
{
	return isnan(x) ? 0x7fc00000 : bits_of(x);
}

/* One element; *c: its carry, before and behind. */
static uint32_t expected(enum form form, float a, uint32_t p, uint32_t e, uint32_t *c)
{
	float x = of_bits(p), y = of_bits(e), step, sum;

	if (form == HOLD || form == HOLD_KAHAN)
		return e;
	if (form == KAHAN_FROM_ZERO || form == COPY_KAHAN)
		*c = 0;
	if (form == COPY || form == COPY_KAHAN)
		return p;
	if (form == NEAR)
		return number_bits(fmaf(a, x - y, y));
	if (form == FAR)
		return number_bits(fmaf(a - 1, x - y, x));
	step = fmaf(a, x - y, -of_bits(*c));
	sum = y + step;
	*c = number_bits((sum - y) - step);
	return number_bits(sum);
}

static float share_for(enum form form)
{
	static const float near[] = { 0, 1e-7f, 1e-4f, .1f, 0x1.fffffep-2f };
	static const float far[] = { .5f, 0x1.000002p-1f, .75f, .999f, 0x1.fffffep-1f };

	if (form == COPY || form == COPY_KAHAN)
		return 1;
	if (form == FAR)
		return far[rng() % ARRAY_LEN(far)];
	return near[rng() % ARRAY_LEN(near)];
}

/* Any bits; every third time close to each other, and every third time denormal or nearly so. */
static void fill(uint8_t *p, uint64_t bytes, uint32_t kind)
{
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)rng();
	for (uint64_t i = 3; i < bytes && kind % 3; i += 4)
		p[i] = (uint8_t)(kind % 3 == 1 ? 0x3f : rng() % 2 ? 0x80 : 0);
}

#define RUN_N 200u
#define ROOM (RUN_N + 32)
#define MARK 0xa7
#define TARGETS EMA_TARGETS_MAX

/* Where one target has its rows: each at a place of its own within a line. */
struct rows {
	enum form form;
	float a;
	uint8_t e[4 * ROOM], c[4 * ROOM], out[4 * ROOM] __attribute__((aligned(64))),
		carry[4 * ROOM] __attribute__((aligned(64)));
	uint32_t e_at, c_at, out_at, carry_at; /* bytes */
};

static bool has_carry(enum form form)
{
	return form >= KAHAN;
}

static struct ema_target target_of(struct rows *r, uint64_t at)
{
	struct ema_target t = { .a = r->a, .hold = r->form == HOLD || r->form == HOLD_KAHAN };

	if (r->form != COPY && r->form != COPY_KAHAN)
		t.before = (const float *)(const void *)(r->e + r->e_at + 4 * at);
	t.out = (float *)(void *)(r->out + r->out_at + 4 * at);
	if (has_carry(r->form))
		t.carry_out = (float *)(void *)(r->carry + r->carry_at + 4 * at);
	if (r->form == KAHAN || r->form == HOLD_KAHAN)
		t.carry_before = (const float *)(const void *)(r->c + r->c_at + 4 * at);
	return t;
}

static void equal_element(const char *what, const struct rows *r, uint64_t i, const uint8_t *have,
			  uint32_t want)
{
	uint32_t h;

	memcpy(&h, have + 4 * i, 4);
	if (h != want)
		fail_msg("%s: form %u, a = %a, element %" PRIu64 " is %08x, not %08x", what,
			 r->form, (double)r->a, i, h, want);
}

static void check_rows(const char *isa, uint32_t dtype, const uint8_t *p, uint64_t n,
		       const struct rows *r)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t e, c;

		memcpy(&e, r->e + r->e_at + 4 * i, 4);
		memcpy(&c, r->c + r->c_at + 4 * i, 4);
		e = expected(r->form, r->a, source_bits(dtype, p, i), e, &c);
		equal_element(isa, r, i, r->out + r->out_at, e);
		if (has_carry(r->form))
			equal_element("carry", r, i, r->carry + r->carry_at, c);
	}
	for (uint64_t i = 0; i < sizeof r->out; i++) {
		bool own = i >= r->out_at && i < r->out_at + 4 * n;
		bool own_carry = has_carry(r->form) && i >= r->carry_at && i < r->carry_at + 4 * n;

		if ((!own && r->out[i] != MARK) || (!own_carry && r->carry[i] != MARK))
			fail_msg("%s: byte %" PRIu64 " of %" PRIu64 " elements' rows was written",
				 isa, i, n);
	}
}

/* ntarget targets with n elements in calls of at most `step` elements. */
static void try_all(uint32_t dtype, const uint8_t *p, uint64_t n, struct rows *r, uint32_t ntarget,
		    uint64_t step)
{
	const char *isa;

	EACH_ISA(isa)
	{
		for (uint32_t k = 0; k < ntarget; k++) {
			memset(r[k].out, MARK, sizeof r[k].out);
			memset(r[k].carry, MARK, sizeof r[k].carry);
		}
		for (uint64_t at = 0, len; at < n; at += len) {
			struct ema_target t[TARGETS];

			len = MIN(n - at, step);
			for (uint32_t k = 0; k < ntarget; k++)
				t[k] = target_of(&r[k], at);
			ema_update_targets(dtype, p + bytes_of(dtype) * at, len, t, ntarget, NULL);
		}
		for (uint32_t k = 0; k < ntarget; k++)
			check_rows(isa, dtype, p, n, &r[k]);
	}
}

static void rows_draw(struct rows *r, enum form form, uint32_t kind)
{
	r->form = form;
	r->a = share_for(form);
	r->e_at = 4 * (uint32_t)(rng() % 16);
	r->c_at = 4 * (uint32_t)(rng() % 16);
	r->carry_at = 4 * (uint32_t)(rng() % 16);
	fill(r->e, sizeof r->e, kind);
	fill(r->c, sizeof r->c, kind);
}

TEST(all_lengths_and_places_give_the_bits_of_the_formulas)
{
	static struct rows r;
	static uint8_t p[4 * ROOM];

	for (uint64_t n = 0; n <= RUN_N; n++)
		for (uint32_t out = 0; out < 16; out++)
			for (uint32_t form = 0; form < FORMS; form++) {
				uint32_t dtype = types[rng() % 3], p_at = (uint32_t)rng() % 17;

				rows_draw(&r, form, (uint32_t)rng());
				r.out_at = 4 * out;
				if (rng() % 2)
					r.carry_at = r.out_at;
				fill(p, sizeof p, (uint32_t)rng());
				try_all(dtype, p + p_at, n, &r, 1, RUN_N);
			}
}

TEST(rows_that_begin_within_an_element_are_right)
{
	static struct rows r;
	static uint8_t p[4 * ROOM];

	for (uint32_t round = 0; round < 300; round++) {
		rows_draw(&r, round % FORMS, round);
		r.e_at += round % 4;
		r.c_at += round / 4 % 4;
		r.out_at = (uint32_t)rng() % 64;
		r.carry_at = (uint32_t)rng() % 64;
		fill(p, sizeof p, round);
		try_all(types[round % 3], p + round % 7, rng() % RUN_N, &r, 1, RUN_N);
	}
}

TEST(any_split_into_calls_and_any_number_of_targets_give_the_same_bits)
{
	static struct rows r[TARGETS];
	static uint8_t p[4 * ROOM];

	for (uint32_t round = 0; round < 600; round++) {
		uint32_t ntarget = 1 + round % TARGETS;

		for (uint32_t k = 0; k < ntarget; k++) {
			rows_draw(&r[k], (enum form)(rng() % FORMS), round);
			r[k].out_at = round % 2 ? 4 * (uint32_t)(rng() % 16) : 0;
		}
		fill(p, sizeof p, round);
		try_all(types[round % 3], p, rng() % (RUN_N + 1), r, ntarget, 1 + rng() % RUN_N);
	}
}

/* More elements than a run has, whose last line is not full. */
#define LONG_N 9001u

TEST(a_long_row_in_one_call_has_the_bits_of_short_calls)
{
	static float p[LONG_N], e[LONG_N], c[LONG_N], out[2][LONG_N + 16], carry[2][LONG_N + 16];
	const char *isa;

	fill((uint8_t *)p, sizeof p, 1);
	fill((uint8_t *)e, sizeof e, 1);
	fill((uint8_t *)c, sizeof c, 2);
	EACH_ISA(isa)
	for (uint32_t skip = 0; skip < 4; skip++) {
		struct ema_target t = { .a = .01f,
					.before = e,
					.out = out[0] + skip,
					.carry_before = c,
					.carry_out = carry[0] + skip };

		ema_update_targets(CKPT_F32, p, LONG_N, &t, 1, NULL);
		for (uint32_t at = 0, n; at < LONG_N; at += n) {
			n = MIN(1 + (uint32_t)(rng() % 999), LONG_N - at);
			t = (struct ema_target){ .a = .01f,
						 .before = e + at,
						 .out = out[1] + at,
						 .carry_before = c + at,
						 .carry_out = carry[1] + at };
			ema_update_targets(CKPT_F32, p + at, n, &t, 1, NULL);
		}
		equal_rows(isa, out[0] + skip, out[1], LONG_N);
		equal_rows(isa, carry[0] + skip, carry[1], LONG_N);
	}
}

TEST(every_number_of_16_bits_is_widened_exactly)
{
	static uint16_t p[65536];
	static float out[65536];
	const char *isa;

	for (uint32_t h = 0; h < 65536; h++)
		p[h] = (uint16_t)h;
	EACH_ISA(isa)
	for (uint32_t t = 1; t < 3; t++) {
		update(types[t], p, 65536, 1, NULL, out);
		for (uint32_t h = 0; h < 65536; h++)
			assert_int_equal(bits_of(out[h]),
					 source_bits(types[t], (const uint8_t *)p, h));
	}
}

#ifdef __x86_64__
TEST(what_the_thread_has_set_for_its_own_floating_point_changes_nothing)
{
	static const unsigned modes[] = { 0x1f80, 0x9fc0 /* flushes */, 0x3f80 /* rounds down */,
					  0x7f80 /* to zero */ };
	static struct rows r;
	static uint8_t p[4 * ROOM];
	unsigned before = _mm_getcsr();

	for (uint32_t round = 0; round < 400; round++) {
		const char *isa;

		rows_draw(&r, (enum form)(round % FORMS), round % 2 ? 2 : 1);
		fill(p, sizeof p, round % 2 ? 2 : 1);
		EACH_ISA(isa)
		{
			struct ema_target t = target_of(&r, 0);

			memset(r.out, MARK, sizeof r.out);
			memset(r.carry, MARK, sizeof r.carry);
			_mm_setcsr(modes[round / 2 % 4]);
			ema_update_targets(CKPT_F32, p, RUN_N, &t, 1, NULL);
			assert_int_equal(_mm_getcsr(), modes[round / 2 % 4]);
			_mm_setcsr(before);
			check_rows(isa, CKPT_F32, p, RUN_N, &r);
		}
	}
}
#endif

TEST(an_instruction_set_that_is_unknown_is_refused)
{
	assert_int_equal(isa_force("sse9"), -EOPNOTSUPP);
}

/* --- health --- */

#define HEALTH_N 50000u

static void loop_health(uint32_t dtype, const uint8_t *p, const float *e, uint64_t n,
			struct ema_health *h, struct ema_source_health *s)
{
	for (uint64_t i = 0; i < n; i++) {
		float x = of_bits(source_bits(dtype, p, i));
		double diff = (double)x - (double)e[i];

		s->nan += isnan(x) != 0;
		s->inf += isinf(x) != 0;
		h->nan += isnan(e[i]) != 0;
		h->inf += isinf(e[i]) != 0;
		if (isfinite(x))
			s->max_abs = fmaxf(s->max_abs, fabsf(x));
		if (isfinite(e[i]))
			h->max_abs = fmaxf(h->max_abs, fabsf(e[i]));
		if (!isfinite(x) || !isfinite(e[i]))
			continue;
		h->diff2 += diff * diff;
		h->norm2 += (double)e[i] * (double)e[i];
	}
}

static void near_sum(const char *what, double have, double want)
{
	if (!(fabs(have - want) <= 1e-5 * want))
		fail_msg("%s: %.9g, not %.9g", what, have, want);
}

static void equal_health(const struct ema_health *have, const struct ema_health *want)
{
	assert_int_equal(have->nan, want->nan);
	assert_int_equal(have->inf, want->inf);
	assert_int_equal(bits_of(have->max_abs), bits_of(want->max_abs));
	near_sum("sum of (p - e)^2", have->diff2, want->diff2);
	near_sum("sum of e^2", have->norm2, want->norm2);
}

/* Weights of the size `scale`, and where `odd` is not 0 one number in so many that is not
 * finite. */
static void weights(uint32_t dtype, void *ret, uint64_t n, double scale, uint32_t odd)
{
	static const uint32_t odds[] = { 0x7fc00000, 0x7f800000, 0xff800000, 0xffc12345 };

	for (uint64_t i = 0; i < n; i++) {
		double x = fmin(fmax(scale * normal(), -FLT_MAX), FLT_MAX);
		uint32_t u = bits_of((float)x);

		if (odd && rng() % odd == 0)
			u = odds[rng() % 4];
		if (dtype == CKPT_F32)
			((uint32_t *)ret)[i] = u;
		else if (dtype == CKPT_BF16)
			((uint16_t *)ret)[i] = (uint16_t)(u >> 16);
		else
			((uint16_t *)ret)[i] = (uint16_t)(rng() & 0xb7ff); /* finite */
	}
}

TEST(health_is_that_of_a_plain_loop_in_double_precision)
{
	static const double scales[] = { .02, 1, 1e-30, 1e-42, 1e18, 1e25, 3e38 };
	static float p[HEALTH_N], e[HEALTH_N], out[2][HEALTH_N] __attribute__((aligned(64)));

	for (uint32_t round = 0; round < 210; round++) {
		uint32_t dtype = types[round % 3], odd = round % 5 ? 0 : 1 + (uint32_t)rng() % 3000;
		double scale = scales[round % ARRAY_LEN(scales)];
		uint64_t n = rng() % HEALTH_N;
		const char *isa;

		weights(dtype, p, n, scale, odd);
		weights(CKPT_F32, e, n, scale, round % 7 ? 0 : odd);
		EACH_ISA(isa)
		{
			struct ema_health h[2] = { { 0 } }, want[2] = { { 0 } };
			struct ema_source_health s = { 0 }, want_s = { 0 }, no = { 0 };
			uint64_t cut = n ? rng() % n : 0;

			for (uint32_t part = 0; part < 2; part++) {
				uint64_t at = part ? cut : 0;
				const uint8_t *x = (const uint8_t *)p + bytes_of(dtype) * at;
				struct ema_target t[2] = {
					{ .a = .1f, .before = e + at, .out = out[0] + at },
					{ .hold = true, .before = e + at, .out = out[1] + at },
				};

				t[0].health = &h[0];
				t[1].health = &h[1];
				ema_update_targets(dtype, x, part ? n - cut : cut, t, 2, &s);
			}
			loop_health(dtype, (uint8_t *)p, out[0], n, &want[0], &want_s);
			loop_health(dtype, (uint8_t *)p, out[1], n, &want[1], &no);
			equal_health(&h[0], &want[0]);
			equal_health(&h[1], &want[1]);
			assert_int_equal(s.nan, want_s.nan);
			assert_int_equal(s.inf, want_s.inf);
			assert_int_equal(bits_of(s.max_abs), bits_of(want_s.max_abs));
			memset(&s, 0, sizeof s);
			ema_update_targets(dtype, p, n, NULL, 0, &s);
			assert_int_equal(s.nan, want_s.nan);
			assert_int_equal(s.inf, want_s.inf);
			assert_int_equal(bits_of(s.max_abs), bits_of(want_s.max_abs));
		}
	}
}

TEST(health_of_parts_is_added_up)
{
	struct ema_health h = { 1, 2, 3, 4, 5 }, x = { 10, 20, 30, 40, 4 };
	struct ema_source_health s = { 1, 2, 3 }, y = { 10, 20, 30 };

	ema_health_add(&h, &x);
	ema_source_health_add(&s, &y);
	assert_true(h.diff2 == 11 && h.norm2 == 22 && h.nan == 33 && h.inf == 44 && h.max_abs == 5);
	assert_true(s.nan == 11 && s.inf == 22 && s.max_abs == 30);
}

/* --- how exact it is --- */

#define WALK_N 256u

static float two_products(float d, float a, float p, float e)
{
	float x = d * e, y = a * p;

	return x + y;
}

TEST(an_average_that_has_reached_its_source_stays_there_and_two_products_do_not)
{
	static const struct {
		double decay, gain; /* where two products end: a / (1 - fl(d)) */
	} known[] = { { .9999, .999834 }, { .99999, .998644 }, { .999999, .986895 } };

	for (uint32_t i = 0; i < ARRAY_LEN(known); i++) {
		float a = share_of(known[i].decay), d = (float)known[i].decay, p[WALK_N], e[WALK_N];
		double gain = (double)a / (1 - (double)d);
		uint32_t moved = 0;

		assert_true(fabs(gain - known[i].gain) < 1e-6);
		for (uint32_t k = 0; k < WALK_N; k++)
			p[k] = (float)normal();
		update(CKPT_F32, p, WALK_N, a, p, e);
		equal_rows("reached", e, p, WALK_N);
		for (uint32_t k = 0; k < WALK_N; k++) {
			for (uint32_t step = 0; step < 1000; step++)
				e[k] = two_products(d, a, p[k], e[k]);
			moved += e[k] != p[k];
		}
		assert_true(moved > WALK_N / 8);
	}
}

TEST(updates_below_the_known_threshold_are_lost_and_kahan_takes_them)
{
	static const double decays[] = { .9999, .99999, .999999 };

	for (uint32_t i = 0; i < 3; i++) {
		double low = 0x1p-25 / (1 - decays[i]), high = 0x1p-24 / (1 - decays[i]);
		float a = share_of(decays[i]);

		for (uint32_t k = 0; k < 400; k++) {
			float e = (float)(1 + fabs(uniform()) * .999), p, y;

			/* Both of them next to 1.0 x 2^n and next to 2.0 x 2^n: half an ulp of
			 * e. */
			p = (float)((double)e * (1 + low * .98));
			update(CKPT_F32, &p, 1, a, &e, &y);
			assert_true(y == e);
			p = (float)((double)e * (1 + high * 1.02));
			update(CKPT_F32, &p, 1, a, &e, &y);
			assert_true(y > e);
		}
		{
			float e[2] = { 1, 0 }, c[2] = { 0, 0 };
			float p = (float)(1 + low * .9);
			uint32_t steps = (uint32_t)(1 / (1 - decays[i]));
			double want = 1 + ((double)p - 1) * (1 - pow(decays[i], steps));

			for (uint32_t k = 0; k < steps; k++) {
				struct ema_target t = { .a = a,
							.before = &e[k % 2],
							.out = &e[(k + 1) % 2],
							.carry_before = &c[k % 2],
							.carry_out = &c[(k + 1) % 2] };

				ema_update_targets(CKPT_F32, &p, 1, &t, 1, NULL);
			}
			assert_true(fabs((double)e[steps % 2] - want) < 1.5e-7);
		}
	}
}

/* How far averages of a random walk are from those in double precision: root mean square,
 * relative. */
struct walk_errors {
	double plain, kahan, products, bf16;
};

static struct walk_errors walk(double decay, uint32_t steps)
{
	static double truth[WALK_N], x[WALK_N];
	static float p[WALK_N], plain[2][WALK_N], kahan[2][WALK_N], carry[2][WALK_N],
		products[WALK_N], bf16[2][WALK_N];
	float a = share_of(decay), d = (float)decay;
	double sum = 0, off[4] = { 0 };
	uint16_t p16[WALK_N];

	for (uint32_t i = 0; i < WALK_N; i++) {
		x[i] = truth[i] = (double)(float)normal();
		p[i] = plain[0][i] = kahan[0][i] = products[i] = bf16[0][i] = (float)x[i];
		carry[0][i] = 0;
	}
	for (uint32_t k = 0; k < steps; k++) {
		uint32_t from = k % 2, to = 1 - from;
		struct ema_target t[2] = { { .a = a, .before = plain[from], .out = plain[to] },
					   { .a = a,
					     .before = kahan[from],
					     .out = kahan[to],
					     .carry_before = carry[from],
					     .carry_out = carry[to] } };

		for (uint32_t i = 0; i < WALK_N; i++) {
			uint32_t u;

			x[i] += 1e-3 * uniform();
			p[i] = (float)x[i];
			u = bits_of(p[i]);
			p16[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
			truth[i] += (1 - decay) * ((double)p[i] - truth[i]);
			products[i] = two_products(d, a, p[i], products[i]);
		}
		ema_update_targets(CKPT_F32, p, WALK_N, t, 2, NULL);
		update(CKPT_BF16, p16, WALK_N, a, bf16[from], bf16[to]);
	}
	for (uint32_t i = 0; i < WALK_N; i++) {
		const float have[4] = { plain[steps % 2][i], kahan[steps % 2][i], products[i],
					bf16[steps % 2][i] };

		sum += truth[i] * truth[i];
		for (uint32_t j = 0; j < 4; j++)
			off[j] += ((double)have[j] - truth[i]) * ((double)have[j] - truth[i]);
	}
	return (struct walk_errors){ sqrt(off[0] / sum), sqrt(off[1] / sum), sqrt(off[2] / sum),
				     sqrt(off[3] / sum) };
}

TEST(the_canonical_form_is_nearer_to_the_truth_than_two_products_and_kahan_is_nearest)
{
	static const struct {
		double decay;
		uint32_t steps;
	} runs[] = { { .999, 5000 }, { .9999, 30000 }, { .99999, 60000 } };

	for (uint32_t i = 0; i < ARRAY_LEN(runs); i++) {
		struct walk_errors e = walk(runs[i].decay, runs[i].steps);

		assert_true(e.kahan < 1e-7);
		assert_true(e.kahan * 5 < e.plain);
		assert_true(e.plain * 8 < e.products);
		assert_true(e.bf16 < 5e-4);
	}
}

TEST(a_carry_holds_what_rounding_took_away)
{
	static float p[WALK_N], e[WALK_N], c[WALK_N], out[WALK_N], carry[WALK_N];

	for (uint32_t round = 0; round < 200; round++) {
		const float a = share_for(NEAR);
		struct ema_target t = {
			.a = a, .before = e, .out = out, .carry_before = c, .carry_out = carry
		};

		for (uint32_t i = 0; i < WALK_N; i++) {
			p[i] = (float)normal();
			e[i] = (float)normal();
			c[i] = (float)(uniform() * 1e-8);
		}
		ema_update_targets(CKPT_F32, p, WALK_N, &t, 1, NULL);
		/* e' - c' is e - c + a (p - e), but for the rounding of p - e and of y. */
		for (uint32_t i = 0; i < WALK_N; i++) {
			double want = (double)e[i] - (double)c[i] +
				      (double)a * ((double)p[i] - (double)e[i]);
			double have = (double)out[i] - (double)carry[i];
			double step = fabs((double)a * ((double)p[i] - (double)e[i]));

			assert_true(fabs(have - want) <= 0x1p-22 * (step + 1e-8));
		}
	}
}
