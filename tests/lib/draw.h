/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.h - random numbers of the tests. A test draws the same every time, so that a change is
 * judged by what it did and not by luck; SEED=N draws others, and `make torture RIGS=seeds` does so
 * by the hundred.
 */
#ifndef TESTS_LIB_DRAW_H
#define TESTS_LIB_DRAW_H
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAW_SEED 1

/* What the state begins with; said with the name of who draws. */
static inline uint64_t draw_seed(const char *who)
{
	const char *given = getenv("SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : DRAW_SEED;

	printf("# %s: SEED=%" PRIu64 "\n", who, seed);
	return seed * UINT64_C(0x9e3779b97f4a7c15) | 1; /* a small seed is not a poor state */
}

/* 64 bits: xorshift64*. */
static inline uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static inline uint64_t draw_below(uint64_t *state, uint64_t n) /* 0 .. n-1 */
{
	return (draw(state) >> 16) % n;
}

#endif
