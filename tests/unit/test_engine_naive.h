/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_naive.h - what elements add up to, counted one by one: for the tests of the engine's
 * values and of ckptctl cat. */
#ifndef TESTS_UNIT_ENGINE_NAIVE_H
#define TESTS_UNIT_ENGINE_NAIVE_H
#include "ckpt/base/dtype.h"
#include "ckpt/engine/element.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static uint64_t random_state;

static inline uint64_t rnd(uint64_t below)
{
	random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return below ? (random_state >> 33) % below : 0;
}

struct naive {
	uint64_t count, finite, zeros, nan, inf, neg_inf;
	long double sum, sq, mean, std;
	double min, max;
};

static inline struct naive naive_of(uint32_t dtype, const uint8_t *p, uint64_t n)
{
	struct naive t = { .count = n, .min = INFINITY, .max = -INFINITY };

	for (int pass = 0; pass < 2; pass++)
		for (uint64_t i = 0; i < n; i++) {
			double z[2] = { 0, 0 }, x;

			element_reals(dtype, p + i * dtype_bytes(dtype), 1, z);
			x = element_parts(dtype) == 2 ? hypot(z[0], z[1]) : z[0];
			if (pass) {
				if (isfinite(x))
					t.sq += (x - t.mean) * (x - t.mean);
				continue;
			}
			t.zeros += x == 0;
			t.nan += isnan(x) != 0;
			t.inf += x == INFINITY;
			t.neg_inf += x == -INFINITY;
			if (isfinite(x)) {
				t.finite++;
				t.sum += x;
				t.min = fmin(t.min, x);
				t.max = fmax(t.max, x);
			}
			if (i + 1 == n && t.finite)
				t.mean = t.sum / (long double)t.finite;
		}
	if (t.finite)
		t.std = sqrtl(t.sq / (long double)t.finite);
	return t;
}

static inline bool near_to(double x, long double want)
{
	return fabsl(x - want) <= 1e-12L * (fabsl(want) + 1e-300L) || x == (double)want;
}
#endif
