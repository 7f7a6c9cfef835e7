/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round_body.h - what the instruction sets of round.c share: one element, and the end of a row that
 * fills no vector. For round*.c only.
 */
#ifndef CKPT_MOVE_ROUND_BODY_H
#define CKPT_MOVE_ROUND_BODY_H
#include "ckpt/base/mutant.h"
#include "ckpt/ckpt.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Of as many elements as fill whole vectors, from the first on; returns how many those were. equal:
 * ends early, before a vector that has an unequal element. */
struct round_isa {
	uint64_t (*bf16)(const uint8_t *x, uint8_t *ret, uint64_t n);
	uint64_t (*f16)(const uint8_t *x, uint8_t *ret, uint64_t n);
	uint64_t (*bf16_equal)(const uint8_t *x, const uint8_t *y, uint64_t n);
	uint64_t (*f16_equal)(const uint8_t *x, const uint8_t *y, uint64_t n);
};
extern const struct round_isa round_isa_scalar;
#ifdef __x86_64__
extern const struct round_isa round_isa_avx2, round_isa_avx512;
#endif

static inline uint32_t round_load(const uint8_t *x)
{
	uint32_t v;

	memcpy(&v, x, sizeof v);
	return v;
}

static inline bool round_is_nan(uint32_t v)
{
	return (v & 0x7fffffff) > 0x7f800000;
}

static inline uint16_t round_bf16(uint32_t v)
{
	if (round_is_nan(v))
		return (uint16_t)(v >> 16 | 0x40);
	if (MUTANT(DERIVED_FLUSHES) && !(v & 0x7f800000))
		return (uint16_t)(v >> 16 & 0x8000);
	return (uint16_t)((v + 0x7fff + (v >> 16 & 1)) >> 16);
}

/* By integers alone: whatever mode the processor is in for floating point, subnormals stay. */
static inline uint16_t round_f16(uint32_t v)
{
	uint32_t sign = v >> 16 & 0x8000, a = v & 0x7fffffff, shift, h, rest, half;

	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (v >> 13 & 0x3ff));
	if (a >= 0x477ff000) /* 65520: half a step above the largest */
		return (uint16_t)(sign | 0x7c00);
	if (a >= 0x38800000) /* 2^-14: the least that is normal */
		return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
	if (a < 0x33000000 || MUTANT(DERIVED_FLUSHES)) /* below 2^-25: nearer to 0 */
		return (uint16_t)sign;
	shift = 126 - (a >> 23); /* 14 to 24 */
	a = (a & 0x7fffff) | 0x800000;
	h = a >> shift;
	rest = a & ((1u << shift) - 1);
	half = 1u << (shift - 1);
	h += rest > half || (rest == half && (h & 1));
	return (uint16_t)(sign | h);
}
#endif
