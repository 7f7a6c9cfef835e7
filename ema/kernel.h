/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - one step's update of several averages of the same elements, each element of the source
 * read once. Pure functions of their arguments; any thread, any alignment (64-byte aligned memory
 * is faster), any split into calls: every result depends on its own element alone, so the bits are
 * the same for every instruction set, thread count, chunking and mesh.
 *
 * The update of element e by p in FP32, with a = ema_update.a, no fast-math, no flush to zero:
 *	a = 1       e' = p
 *	a < 0.5     e' = fma(a, p - e, e)
 *	a >= 0.5    e' = fma(a - 1, p - e, p)
 * This is torch.lerp of PyTorch on a CPU with AVX2 or AVX-512, bit for bit (vectors:
 * tests/vectors/ema), NaN apart: every NaN that an update computes is 7fc00000, and a copy keeps
 * the bits. A BF16 or FP16 source is widened first, which is exact; a signalling NaN of FP16
 * becomes quiet. The rounding modes that the calling thread has set do not matter.
 *
 * With a carry c (Kahan), which begins as 0:
 *	y = fma(a, p - e, -c);  e' = e + y;  c' = (e' - e) - y;     a = 1: e' = p, c' = 0
 *
 * Out of place always: no output overlaps any input. Outputs are stored past the caches, and are
 * visible to other threads as any store is when the call returns.
 */
#ifndef EMA_KERNEL_H
#define EMA_KERNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EMA_TARGETS_MAX 8u /* averages in one call */

/* Of the elements that were seen, added up: zero-initialised by the caller, which may add more to
 * it over many calls, and add several up. Sums are approximate: their order is not the same for all
 * instruction sets. Counts and maxima are exact. */
struct ema_source_health {
	uint64_t nan, inf;
	float max_abs; /* of the finite ones */
};
struct ema_health {
	double diff2, norm2; /* sums of (p - e')^2 and e'^2, over elements where both are finite */
	uint64_t nan, inf;   /* of e' */
	float max_abs;	     /* of the finite e' */
};
void ema_source_health_add(struct ema_source_health *to, const struct ema_source_health *x);
void ema_health_add(struct ema_health *to, const struct ema_health *x);

struct ema_target {
	float a;	     /* ignored with hold */
	bool hold;	     /* e' = e, c' = c: the step is not taken in */
	const float *before; /* e [n]; NULL where a = 1 and not hold */
	float *out;	     /* e' [n] */
	const float *
		carry_before; /* c [n]; NULL: no Kahan; behind a copy it may be NULL with carry_out set */
	float *carry_out;	   /* c' [n]; NULL: no Kahan */
	struct ema_health *health; /* NULL: not wanted */
};

/* p: n elements of dtype CKPT_F32, CKPT_BF16 or CKPT_F16. ntarget <= EMA_TARGETS_MAX. */
void ema_update_targets(uint32_t dtype, const void *p, uint64_t n, const struct ema_target *t,
			uint32_t ntarget, struct ema_source_health *health);
#endif
