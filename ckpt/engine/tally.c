/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.c - see tally.h. Called by cat, for every window that it reads.
 * Invariant: finite + nan + inf + neg_inf == count.
 */
#include "ckpt/engine/tally.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/element.h"
#include <math.h>

#define BLOCK 1024 /* doubles */
#define LANES 8

void tally_begin(struct tally *t, uint32_t dtype)
{
	*t = (struct tally){ .dtype = dtype };
}

bool tally_magnitude(const struct tally *t)
{
	return element_parts(t->dtype) == 2;
}

/* Of n finite values. Where doubles overflow long doubles do not. */
static void moments_of(const double *x, uint32_t n, long double *ret_mean, long double *ret_m2)
{
	double sum[LANES] = { 0 }, sq[LANES] = { 0 }, mean, m2;
	long double lmean = 0, lm2 = 0;

	for (uint32_t i = 0; i < n; i++)
		sum[i % LANES] += x[i];
	mean = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
	mean /= n;
	for (uint32_t i = 0; i < n; i++)
		sq[i % LANES] += (x[i] - mean) * (x[i] - mean);
	m2 = ((sq[0] + sq[1]) + (sq[2] + sq[3])) + ((sq[4] + sq[5]) + (sq[6] + sq[7]));
	*ret_mean = mean;
	*ret_m2 = m2;
	if (isfinite(mean) && isfinite(m2))
		return;
	for (uint32_t i = 0; i < n; i++)
		lmean += x[i];
	lmean /= n;
	for (uint32_t i = 0; i < n; i++)
		lm2 += (x[i] - lmean) * (x[i] - lmean);
	*ret_mean = lmean;
	*ret_m2 = lm2;
}

static void moments_merge(struct tally *t, const double *x, uint32_t n)
{
	long double mean, m2, apart, all = (long double)(t->finite + n);
	double min = x[0], max = x[0];

	for (uint32_t i = 1; i < n; i++) {
		min = x[i] < min ? x[i] : min;
		max = x[i] > max ? x[i] : max;
	}
	t->min = t->finite && t->min < min ? t->min : min;
	t->max = t->finite && t->max > max ? t->max : max;
	moments_of(x, n, &mean, &m2);
	apart = mean - t->mean;
	t->m2 += m2 + apart * apart * ((long double)t->finite * n / all);
	t->mean += apart * n / all;
	t->finite += n;
}

static void integers_add(struct tally *t, const uint8_t *p, uint64_t n)
{
	uint32_t bytes = dtype_bytes(t->dtype);
	/* With the sign's bit turned round signed numbers are in the order of unsigned ones. */
	uint64_t turn = element_is_signed(t->dtype) ? UINT64_C(1) << 63 : 0;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t v = element_integer(t->dtype, p + i * bytes);

		if ((v ^ turn) < (t->whole_min ^ turn) || (!t->finite && !i))
			t->whole_min = v;
		if ((v ^ turn) > (t->whole_max ^ turn) || (!t->finite && !i))
			t->whole_max = v;
	}
}

static void add_block(struct tally *t, const uint8_t *p, uint32_t n)
{
	double x[BLOCK], some[BLOCK];
	uint32_t k = 0;

	element_reals(t->dtype, p, n, x);
	for (uint32_t i = 0; tally_magnitude(t) && i < n; i++)
		x[i] = hypot(x[2 * i], x[2 * i + 1]);
	if (element_is_integer(t->dtype))
		integers_add(t, p, n);
	for (uint32_t i = 0; i < n; i++) {
		if (isfinite(x[i])) {
			t->zeros += x[i] == 0;
			some[k++] = x[i];
		} else if (isnan(x[i])) {
			t->nan++;
		} else if (x[i] > 0) {
			t->inf++;
		} else {
			t->neg_inf++;
		}
	}
	t->count += n;
	if (k)
		moments_merge(t, some, k);
}

static void add_packed(struct tally *t, const uint8_t *p, uint64_t n)
{
	uint8_t value[BLOCK];

	for (uint64_t i = 0; i < n; i += BLOCK / 2) {
		uint64_t m = MIN((uint64_t)BLOCK / 2, n - i);

		element_unpack(p + i, m, value);
		add_block(t, value, (uint32_t)(2 * m));
	}
}

void tally_add(struct tally *t, const uint8_t *p, uint64_t n)
{
	uint32_t most = BLOCK / element_parts(t->dtype), bytes = dtype_bytes(t->dtype);

	if (dtype_values(t->dtype) > 1) {
		add_packed(t, p, n);
		return;
	}
	for (uint64_t i = 0; i < n; i += most)
		add_block(t, p + i * bytes, (uint32_t)MIN((uint64_t)most, n - i));
}

double tally_std(const struct tally *t)
{
	return t->finite ? (double)sqrtl(t->m2 / (long double)t->finite) : NAN;
}
