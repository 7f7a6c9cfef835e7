/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_body.h - what the instruction sets of kernel.c share: what one of them is asked to do, and
 * the update of one element, which heads and tails of a run need. For kernel*.c only.
 * Invariant: ema_step_* are the definition. What is done with vectors gives the same bits.
 */
#ifndef EMA_KERNEL_BODY_H
#define EMA_KERNEL_BODY_H
#include "ckpt/base/mutant.h"
#include "ckpt/ckpt.h"
#include "ema/kernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What becomes of a run of elements of one target. */
enum ema_mode {
	EMA_TAKE,	/* a = 1 */
	EMA_HOLD,	/* e' = e */
	EMA_NEAR,	/* a < 0.5 */
	EMA_FAR,	/* a >= 0.5 */
	EMA_CARRY,	/* Kahan */
	EMA_CARRY_ZERO, /* Kahan, with a carry that is 0 */
	EMA_MODES
};

#define EMA_RUN_MAX 16384u /* elements of a run */
#define EMA_LINE 64u	   /* bytes of a line of the cache */
#define EMA_WORD 4u	   /* bytes of an F32 */

/* One target's part in a run. */
struct ema_run {
	enum ema_mode mode;
	bool aligned; /* out and carry_out begin with a line: they are stored past the caches */
	float a;
	const uint8_t *e, *c;
	uint8_t *out, *carry_out;
};

/*
 * What a target's run made. The maximum is of the bits of absolute values, so that infinity, and
 * above it NaN, are the greatest. The sums are those of struct ema_health where the maxima of
 * source and results are within reach (kernel.c): in any other run they may be anything.
 */
struct ema_seen {
	uint32_t e_max;
	double diff2, norm2;
};

struct ema_isa {
	/* n <= EMA_RUN_MAX elements of the source, for all targets; there is one at least. Returns
	 * the maximum of the source, of bits as in struct ema_seen. */
	uint32_t (*update)(uint32_t dtype, const uint8_t *p, uint64_t n, const struct ema_run *r,
			   uint32_t ntarget, struct ema_seen *ret);
};
extern const struct ema_isa ema_isa_scalar;
#ifdef __x86_64__
extern const struct ema_isa ema_isa_avx2, ema_isa_avx512;
#endif

#define EMA_INFINITY 0x7f800000u
#define EMA_QUIET 0x7fc00000u /* every NaN that an update makes */

static inline uint32_t ema_bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	return u;
}

static inline float ema_of_bits(uint32_t u)
{
	float x;

	memcpy(&x, &u, sizeof x);
	return x;
}

static inline uint32_t ema_load(const uint8_t *from, uint64_t i)
{
	uint32_t u;

	memcpy(&u, from + EMA_WORD * i, sizeof u);
	return u;
}

static inline void ema_store(uint8_t *to, uint64_t i, uint32_t u)
{
	memcpy(to + EMA_WORD * i, &u, sizeof u);
}

static inline uint32_t ema_abs(uint32_t u)
{
	return u & 0x7fffffff;
}

/* A NaN becomes a quiet one, as the processor's own conversion does it. */
static inline uint32_t ema_widen_f16(uint32_t h)
{
	uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;

	if (exponent == 31)
		return sign | EMA_INFINITY | fraction << 13 | (fraction ? 0x400000 : 0);
	if (!exponent)
		return sign | ema_bits((float)fraction * 0x1p-24f);
	return sign | (exponent + 112) << 23 | fraction << 13;
}

/* Element i of a source, as the bits of an F32. */
static inline uint32_t ema_widen(uint32_t dtype, const uint8_t *p, uint64_t i)
{
	uint16_t h;

	if (dtype == CKPT_F32)
		return ema_load(p, i);
	memcpy(&h, p + sizeof h * i, sizeof h);
	return dtype == CKPT_BF16 ? (uint32_t)h << 16 : ema_widen_f16(h);
}

static inline uint32_t ema_result(float x)
{
	return x != x ? EMA_QUIET : ema_bits(x);
}

/* e' without a carry. */
static inline uint32_t ema_step_plain(enum ema_mode mode, float a, uint32_t p_bits, uint32_t e_bits)
{
	float p = ema_of_bits(p_bits), e = ema_of_bits(e_bits);

	if (mode == EMA_TAKE)
		return p_bits;
	if (mode == EMA_HOLD)
		return e_bits;
	if (MUTANT(EMA_TWO_PRODUCTS))
		return ema_result((1 - a) * e + a * p);
	if (mode == EMA_NEAR)
		return ema_result(__builtin_fmaf(a, p - e, e));
	return ema_result(__builtin_fmaf(a - 1, p - e, p));
}

/* e', and *c becomes c'. */
static inline uint32_t ema_step_carry(float a, uint32_t p, uint32_t e_bits, uint32_t *c)
{
	float e = ema_of_bits(e_bits);
	float y = __builtin_fmaf(a, ema_of_bits(p) - e, -ema_of_bits(*c));
	float sum = e + y;

	*c = ema_result((sum - e) - y);
	return ema_result(sum);
}

/* Elements from..to of a target's run, one by one. The sums are added in double precision. */
static inline void ema_update_singly(uint32_t dtype, const uint8_t *p, uint64_t from, uint64_t to,
				     const struct ema_run *r, struct ema_seen *seen)
{
	for (uint64_t i = from; i < to; i++) {
		uint32_t x = ema_widen(dtype, p, i), c = 0, out;
		uint32_t e = r->mode == EMA_TAKE ? 0 : ema_load(r->e, i);
		double diff, norm;

		if (r->mode == EMA_CARRY || r->mode == EMA_CARRY_ZERO) {
			if (r->mode == EMA_CARRY)
				c = ema_load(r->c, i);
			out = ema_step_carry(r->a, x, e, &c);
			ema_store(r->carry_out, i, c);
		} else {
			out = ema_step_plain(r->mode, r->a, x, e);
		}
		ema_store(r->out, i, out);
		seen->e_max = ema_abs(out) > seen->e_max ? ema_abs(out) : seen->e_max;
		norm = (double)ema_of_bits(out);
		diff = (double)ema_of_bits(x) - norm;
		seen->diff2 += diff * diff;
		seen->norm2 += norm * norm;
	}
}

/* The greatest of max and of elements from..to of a source. */
static inline uint32_t ema_max_singly(uint32_t dtype, const uint8_t *p, uint64_t from, uint64_t to,
				      uint32_t max)
{
	for (uint64_t i = from; i < to; i++) {
		uint32_t x = ema_abs(ema_widen(dtype, p, i));

		max = x > max ? x : max;
	}
	return max;
}
#endif
