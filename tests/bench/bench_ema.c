/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ema.c - see bench_ema.h. Called by bench_main.c.
 * Invariant: all ways of one round move the same pages, which were touched before.
 */
#include "bench_ema.h"
#include "bench_job.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/ckpt.h"
#include "ema/kernel.h"
#include <inttypes.h>
#include <stdio.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define AVERAGES 3u
#define AHEAD 2048u

struct pages { /* of one measurement */
	uint64_t n;
	uint16_t *p16;
	float *p, *e[AVERAGES], *out[AVERAGES];
};

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* --- the bound --- */

#ifdef __x86_64__
#define ALWAYS static inline __attribute__((always_inline))

ALWAYS void line_ask(const uint8_t *at, int how)
{
	if (how == 1)
		_mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
	if (how == 2)
		_mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
}

/* A line of e becomes one of out. */
ALWAYS __attribute__((target("avx512f"))) void line_512(const uint8_t *p, const uint8_t *e,
							uint8_t *out)
{
	_mm512_stream_si512((__m512i *)(void *)out,
			    _mm512_xor_si512(_mm512_load_si512(p), _mm512_load_si512(e)));
}

ALWAYS __attribute__((target("avx2"))) void line_256(const uint8_t *p, const uint8_t *e,
						     uint8_t *out)
{
	for (uint32_t i = 0; i < 64; i += 32)
		_mm256_stream_si256((__m256i *)(void *)(out + i),
				    _mm256_xor_si256(_mm256_load_si256((const void *)(p + i)),
						     _mm256_load_si256((const void *)(e + i))));
}

/* Two lines of each average for two lines of the source, or one where it has 16 bits. */
#define BOUND(name, isa, line)                                                             \
	__attribute__((target(isa))) static void name(const struct pages *x, bool half,    \
						      uint32_t averages, int how)          \
	{                                                                                  \
		const uint8_t *p = half ? (const uint8_t *)x->p16 : (const uint8_t *)x->p; \
		uint64_t second = half ? 0 : 64;                                           \
                                                                                           \
		for (uint64_t i = 0; i < 4 * x->n; i += 128, p += 64 + second) {           \
			line_ask(p, how);                                                  \
			if (second)                                                        \
				line_ask(p + second, how);                                 \
			for (uint32_t k = 0; k < averages; k++) {                          \
				const uint8_t *e = (const uint8_t *)x->e[k] + i;           \
				uint8_t *out = (uint8_t *)x->out[k] + i;                   \
                                                                                           \
				line_ask(e, how);                                          \
				line_ask(e + 64, how);                                     \
				line(p, e, out);                                           \
				line(p + second, e + 64, out + 64);                        \
			}                                                                  \
		}                                                                          \
		_mm_sfence();                                                              \
	}
BOUND(bound_512, "avx512f", line_512)
BOUND(bound_256, "avx2", line_256)

ALWAYS void bound_case(const struct pages *x, bool half, uint32_t averages, int how)
{
	if (__builtin_cpu_supports("avx512f"))
		bound_512(x, half, averages, how);
	else if (__builtin_cpu_supports("avx2"))
		bound_256(x, half, averages, how);
	else
		die("the bound needs a processor with AVX2");
}
#else
static void bound_case(const struct pages *x, bool half, uint32_t averages, int how)
{
	(void)x, (void)half, (void)averages, (void)how;
	die("the bound needs a processor with AVX2");
}
#endif

/* --- the kernel, and plain C --- */

static void kernel(const struct pages *x, bool half, uint32_t averages)
{
	struct ema_health health[AVERAGES] = { { 0 } };
	struct ema_source_health source = { 0 };
	struct ema_target t[AVERAGES];

	for (uint32_t k = 0; k < averages; k++)
		t[k] = (struct ema_target){ .a = 1e-3f / (float)(k + 1),
					    .before = x->e[k],
					    .out = x->out[k],
					    .health = &health[k] };
	ema_update_targets(half ? CKPT_BF16 : CKPT_F32, half ? (const void *)x->p16 : x->p, x->n, t,
			   averages, &source);
	if (source.nan || source.inf || health[0].nan)
		die("the source is not what was written");
}

static void temporaries(const struct pages *x)
{
	float d = .999f, *kept = malloc(4 * x->n), *taken = malloc(4 * x->n);

	if (!kept || !taken)
		die("no memory for temporaries");
	for (uint64_t i = 0; i < x->n; i++)
		kept[i] = d * x->e[0][i];
	for (uint64_t i = 0; i < x->n; i++)
		taken[i] = (1 - d) * x->p[i];
	for (uint64_t i = 0; i < x->n; i++)
		x->e[0][i] = kept[i] + taken[i];
	free(kept);
	free(taken);
}

static void lerp(const struct pages *x)
{
	float *e = x->e[0];

	for (uint64_t i = 0; i < x->n; i++)
		e[i] += 1e-3f * (x->p[i] - e[i]);
}

/* --- in turn --- */

static const struct source {
	const char *name;
	bool half;
	uint32_t averages;
} sources[] = { { "bf16", true, 1 },
		{ "f32", false, 1 },
		{ "three", true, AVERAGES },
		{ "three_f32", false, AVERAGES } };

#define BOUNDS 3u
#define OF_SOURCES (ARRAY_LEN(sources) * (1 + BOUNDS))

static void way(const struct pages *x, uint32_t i)
{
	const struct source *s = &sources[i / (1 + BOUNDS) % ARRAY_LEN(sources)];
	uint32_t how = i % (1 + BOUNDS);
	uint64_t begin = cpu_ns();
	char name[40];

	if (i == OF_SOURCES) {
		temporaries(x);
		say("temporaries", cpu_ns() - begin);
	} else if (i > OF_SOURCES) {
		lerp(x);
		say("lerp", cpu_ns() - begin);
	} else if (!how) {
		kernel(x, s->half, s->averages);
		say(s->name, cpu_ns() - begin);
	} else {
		bound_case(x, s->half, s->averages, (int)how - 1);
		snprintf(name, sizeof name, "bound_%s_%u", s->name, how - 1);
		say(name, cpu_ns() - begin);
	}
}

/* Numbers as weights are: of either sign, from 2^-7 to 1, every other bit at random. */
static uint32_t *weights_new(uint64_t n, uint32_t mask, uint32_t bits)
{
	uint32_t *p = pages_new(4 * n);
	static uint64_t seed;

	if (!p)
		die("no memory for %" PRIu64 " elements", n);
	for (uint64_t i = 0; i < n; i++) {
		seed += UINT64_C(0x9e3779b97f4a7c15);
		p[i] = ((uint32_t)((seed * (seed >> 32 | 1)) >> 32) & mask) | bits;
	}
	return p;
}

void bench_ema(uint64_t elements, uint32_t rounds)
{
	struct pages x = { .n = elements - elements % 1024 };

	if (!x.n)
		die("1024 elements at least");
	x.p = (float *)(void *)weights_new(x.n, 0x83ffffff, 0x3c000000);
	x.p16 = (uint16_t *)(void *)weights_new(x.n / 2, 0x83ff83ff, 0x3c003c00);
	for (uint32_t k = 0; k < AVERAGES; k++) {
		x.e[k] = (float *)(void *)weights_new(x.n, 0x83ffffff, 0x3c000000);
		x.out[k] = (float *)(void *)weights_new(x.n, 0x83ffffff, 0x3c000000);
	}
	for (uint32_t r = 0; r < rounds; r++)
		for (uint32_t i = 0; i < OF_SOURCES + 2; i++)
			way(&x, r % 2 ? (uint32_t)OF_SOURCES + 1 - i : i);
	pages_free(x.p, 4 * x.n);
	pages_free(x.p16, 2 * x.n);
	for (uint32_t k = 0; k < AVERAGES; k++) {
		pages_free(x.e[k], 4 * x.n);
		pages_free(x.out[k], 4 * x.n);
	}
}
