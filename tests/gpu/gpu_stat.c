// SPDX-License-Identifier: Apache-2.0
// gpu_stat.c - see gpu_stat.h.
#include "tests/gpu/gpu_stat.h"
#include "ckpt/base/util.h"

#define RESAMPLES 1000u

void stat_block(struct stat_side *s)
{
	assert(s->nblock < STAT_BLOCKS_MAX);
	s->sample[s->nblock] = calloc(STAT_SAMPLES_MAX, sizeof(double));
	if (!s->sample[s->nblock])
		abort();
	s->n[s->nblock++] = 0;
}

void stat_add(struct stat_side *s, double sample)
{
	uint32_t block = s->nblock - 1;

	if (s->n[block] < STAT_SAMPLES_MAX)
		s->sample[block][s->n[block]++] = sample;
}

static int double_compare(const void *a, const void *b)
{
	return COMPARE(*(const double *)a, *(const double *)b);
}

double stat_quantile(double *v, uint64_t n, double q)
{
	uint64_t at = (uint64_t)(q * (double)n);

	qsort(v, n, sizeof *v, double_compare);
	return v[MIN(at, n - 1)];
}

/* The quantile of these blocks of the side; a block may be named several times. */
static double blocks_quantile(const struct stat_side *s, const uint32_t *block, uint32_t nblock,
			      double q, double *space)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < nblock; i++) {
		memcpy(space + n, s->sample[block[i]], s->n[block[i]] * sizeof *space);
		n += s->n[block[i]];
	}
	return n ? stat_quantile(space, n, q) : 0;
}

static uint64_t draw(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t samples(const struct stat_side *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->nblock; i++)
		n += s->n[i];
	return n;
}

static struct stat_value compare(const struct stat_side *a, const struct stat_side *b, double q,
				 double minus)
{
	uint32_t all[STAT_BLOCKS_MAX], drawn[STAT_BLOCKS_MAX], n = a->nblock;
	cleanup_free double *space = calloc(MAX(samples(a), samples(b)) * n + 1, sizeof *space);
	cleanup_free double *again = calloc(RESAMPLES, sizeof *again);
	struct stat_value r = { .n = MIN(samples(a), samples(b)) };
	uint64_t state = 1;

	assert(n && n == b->nblock);
	if (!space || !again)
		abort();
	for (uint32_t i = 0; i < n; i++)
		all[i] = i;
	r.of_a = blocks_quantile(a, all, n, q, space);
	r.of_b = blocks_quantile(b, all, n, q, space);
	r.value = r.of_b / r.of_a - minus;
	for (uint32_t k = 0; k < RESAMPLES; k++) {
		for (uint32_t i = 0; i < n; i++)
			drawn[i] = (uint32_t)(draw(&state) % n);
		again[k] = blocks_quantile(b, drawn, n, q, space) /
				   blocks_quantile(a, drawn, n, q, space) -
			   minus;
	}
	r.low = stat_quantile(again, RESAMPLES, .025);
	r.high = stat_quantile(again, RESAMPLES, .975);
	return r;
}

double stat_side_quantile(const struct stat_side *s, double q)
{
	uint32_t all[STAT_BLOCKS_MAX];
	cleanup_free double *space = calloc(samples(s) + 1, sizeof *space);

	if (!space)
		abort();
	for (uint32_t i = 0; i < s->nblock; i++)
		all[i] = i;
	return blocks_quantile(s, all, s->nblock, q, space);
}

struct stat_value stat_slowdown(const struct stat_side *a, const struct stat_side *b, double q)
{
	return compare(a, b, q, 1);
}

struct stat_value stat_ratio(const struct stat_side *a, const struct stat_side *b)
{
	return compare(a, b, .5, 0);
}
