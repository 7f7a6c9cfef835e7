/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.c - see kernel.h. It cuts the elements into runs, gives each run with all targets to the
 * instruction set, and adds up what the runs saw.
 * Invariant: the chosen instruction set changes speed only, never a bit of an average.
 */
#include "ema/kernel.h"
#include "ckpt/base/isa.h"
#include "ckpt/base/util.h"
#include "ema/kernel_body.h"
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

/* Within these a run's sums of squares, in float lanes, neither overflow nor vanish. Weights
 * are. */
#define REACH_LOW 0x2b800000u  /* 2^-40 */
#define REACH_HIGH 0x58800000u /* 2^50 */

static uint32_t update_scalar(uint32_t dtype, const uint8_t *p, uint64_t n, const struct ema_run *r,
			      uint32_t ntarget, struct ema_seen *ret)
{
	for (uint32_t k = 0; k < ntarget; k++) {
		ret[k] = (struct ema_seen){ 0 };
		ema_update_singly(dtype, p, 0, n, &r[k], &ret[k]);
	}
	return ema_max_singly(dtype, p, 0, n, 0);
}

const struct ema_isa ema_isa_scalar = { update_scalar };
static const struct ema_isa *const isas[ISAS] = { [ISA_SCALAR] = &ema_isa_scalar,
#ifdef __x86_64__
						  [ISA_AVX2] = &ema_isa_avx2,
						  [ISA_AVX512] = &ema_isa_avx512
#endif
};

void ema_source_health_add(struct ema_source_health *to, const struct ema_source_health *x)
{
	to->nan += x->nan;
	to->inf += x->inf;
	to->max_abs = MAX(to->max_abs, x->max_abs);
}

void ema_health_add(struct ema_health *to, const struct ema_health *x)
{
	to->diff2 += x->diff2;
	to->norm2 += x->norm2;
	to->nan += x->nan;
	to->inf += x->inf;
	to->max_abs = MAX(to->max_abs, x->max_abs);
}

/* --- health --- */

static bool in_reach(uint32_t max)
{
	return max <= REACH_HIGH && (!max || max >= REACH_LOW);
}

/* Counts one element, and says whether it is finite. */
static bool count_one(uint32_t u, uint64_t *nan, uint64_t *inf, float *max_abs)
{
	*nan += ema_abs(u) > EMA_INFINITY;
	*inf += ema_abs(u) == EMA_INFINITY;
	if (ema_abs(u) >= EMA_INFINITY)
		return false;
	*max_abs = MAX(*max_abs, ema_of_bits(ema_abs(u)));
	return true;
}

static void source_counted(uint32_t dtype, const uint8_t *p, uint64_t n,
			   struct ema_source_health *ret)
{
	for (uint64_t i = 0; i < n; i++)
		count_one(ema_widen(dtype, p, i), &ret->nan, &ret->inf, &ret->max_abs);
}

/* Of elements that were stored. */
static void result_counted(uint32_t dtype, const uint8_t *p, const uint8_t *out, uint64_t n,
			   struct ema_health *ret)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t x = ema_widen(dtype, p, i), e = ema_load(out, i);
		double norm = (double)ema_of_bits(e), diff = (double)ema_of_bits(x) - norm;

		if (!count_one(e, &ret->nan, &ret->inf, &ret->max_abs) ||
		    ema_abs(x) >= EMA_INFINITY)
			continue;
		ret->diff2 += diff * diff;
		ret->norm2 += norm * norm;
	}
}

/* --- runs --- */

static enum ema_mode mode_of(const struct ema_target *t)
{
	if (t->hold && !MUTANT(EMA_HELD_UPDATED))
		return EMA_HOLD;
	if (t->a == 1 && !MUTANT(EMA_COPY_COMPUTED))
		return EMA_TAKE;
	if (t->carry_out)
		return t->carry_before && !MUTANT(EMA_CARRY_LOST) ? EMA_CARRY : EMA_CARRY_ZERO;
	return t->a < 0.5f || MUTANT(EMA_ONE_BRANCH) ? EMA_NEAR : EMA_FAR;
}

/* Elements before the first one of out that begins a line; 0 where none ever does. */
static uint64_t head_of(const void *out)
{
	uintptr_t at = (uintptr_t)out;

	return at % EMA_WORD ? 0 : -at % EMA_LINE / EMA_WORD;
}

/* Target t from element `at` on. */
static struct ema_run run_of(const struct ema_target *t, uint64_t at)
{
	struct ema_run r = { .mode = mode_of(t), .a = t->a };

	r.out = (uint8_t *)t->out + EMA_WORD * at;
	r.aligned = (uintptr_t)r.out % EMA_LINE == 0;
	if (t->before)
		r.e = (const uint8_t *)t->before + EMA_WORD * at;
	if (t->carry_before)
		r.c = (const uint8_t *)t->carry_before + EMA_WORD * at;
	if (t->carry_out) {
		r.carry_out = (uint8_t *)t->carry_out + EMA_WORD * at;
		r.aligned = r.aligned && (uintptr_t)r.carry_out % EMA_LINE == 0;
	}
	return r;
}

/* The carry of a target that computes nothing. */
static void carry_put(const struct ema_run *r, uint64_t n)
{
	if (!r->carry_out || r->mode == EMA_CARRY || r->mode == EMA_CARRY_ZERO)
		return;
	if (r->mode == EMA_HOLD && r->c)
		memcpy(r->carry_out, r->c, EMA_WORD * n);
	else
		memset(r->carry_out, 0, EMA_WORD * n);
}

static void run_update(uint32_t dtype, const uint8_t *p, uint64_t at, uint64_t n,
		       const struct ema_target *t, uint32_t ntarget,
		       struct ema_source_health *health)
{
	struct ema_run r[EMA_TARGETS_MAX];
	struct ema_seen seen[EMA_TARGETS_MAX];
	uint32_t p_max;

	for (uint32_t k = 0; k < ntarget; k++)
		r[k] = run_of(&t[k], at);
	p_max = isas[isa_now()]->update(dtype, p, n, r, ntarget, seen);
	if (health && p_max >= EMA_INFINITY)
		source_counted(dtype, p, n, health);
	else if (health)
		health->max_abs = MAX(health->max_abs, ema_of_bits(p_max));
	for (uint32_t k = 0; k < ntarget; k++) {
		struct ema_health *h = t[k].health;

		carry_put(&r[k], n);
		if (!h)
			continue;
		if (!MUTANT(EMA_SUMS_OVERFLOW) && (!in_reach(p_max) || !in_reach(seen[k].e_max))) {
			result_counted(dtype, p, r[k].out, n, h);
			continue;
		}
		h->max_abs = MAX(h->max_abs, ema_of_bits(seen[k].e_max));
		h->diff2 += seen[k].diff2;
		h->norm2 += seen[k].norm2;
	}
}

static void update_all(uint32_t dtype, const uint8_t *p, uint64_t n, const struct ema_target *t,
		       uint32_t ntarget, struct ema_source_health *health)
{
	uint32_t size = dtype == CKPT_F32 ? 4 : 2;
	uint64_t head = head_of(t[0].out);

	for (uint64_t at = 0, len; at < n; at += len, head = 0) {
		len = MIN(n - at, head ? head : EMA_RUN_MAX);
		run_update(dtype, p + size * at, at, len, t, ntarget, health);
	}
}

void ema_update_targets(uint32_t dtype, const void *p, uint64_t n, const struct ema_target *t,
			uint32_t ntarget, struct ema_source_health *health)
{
#ifdef __x86_64__
	unsigned mode = _mm_getcsr();
#endif

	assert(dtype == CKPT_F32 || dtype == CKPT_BF16 || dtype == CKPT_F16);
	assert(ntarget <= EMA_TARGETS_MAX);
	if (!ntarget) {
		if (health)
			source_counted(dtype, p, n, health);
		return;
	}
#ifdef __x86_64__
	/* To nearest, nothing flushed to zero, whatever the thread has set for its own. */
	_mm_setcsr(MUTANT(EMA_FLUSHES) ? 0x9fc0 : 0x1f80);
	update_all(dtype, p, n, t, ntarget, health);
	_mm_sfence();
	_mm_setcsr(mode);
#else
	update_all(dtype, p, n, t, ntarget, health);
#endif
}
