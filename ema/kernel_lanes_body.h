/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_lanes_body.h - a run of elements with vectors of LANES floats. kernel_avx2.c and
 * kernel_avx512.c include it behind their own words for them: the types floats and words, and what
 * is called floats_* and words_* below.
 *
 * A turn is 32 elements: whole lines of every stream. The sums of a run are added in float lanes,
 * which is exact enough for at most EMA_RUN_MAX elements, and far from overflow as long as the
 * maxima are within the reach that kernel.c demands.
 */
#define TURN 32u

struct lanes {
	words p_max, e_max;
	floats diff2, norm2;
};

/* LANES elements, from i on. */
static inline __attribute__((always_inline)) void lanes_update(uint32_t dtype, enum ema_mode mode,
							       bool aligned,
							       const struct ema_run *r, uint64_t i,
							       floats a, struct lanes *s)
{
	floats p = floats_widen(dtype, r->p, i), e, c, y, diff, out;

	switch (mode) {
	case EMA_TAKE:
		out = p;
		break;
	case EMA_HOLD:
		out = floats_load(r->e + EMA_WORD * i);
		break;
	case EMA_NEAR:
		e = floats_load(r->e + EMA_WORD * i);
		out = floats_result(floats_fma(a, floats_sub(p, e), e));
		break;
	case EMA_FAR: /* a is a - 1 */
		e = floats_load(r->e + EMA_WORD * i);
		out = floats_result(floats_fma(a, floats_sub(p, e), p));
		break;
	case EMA_CARRY:
	case EMA_CARRY_ZERO:
	case EMA_MODES:
		e = floats_load(r->e + EMA_WORD * i);
		c = mode == EMA_CARRY ? floats_load(r->c + EMA_WORD * i) : floats_zero();
		y = floats_fmsub(a, floats_sub(p, e), c);
		out = floats_add(e, y);
		c = floats_result(floats_sub(floats_sub(out, e), y));
		out = floats_result(out);
		floats_store(aligned, r->carry_out + EMA_WORD * i, c);
		break;
	}
	floats_store(aligned, r->out + EMA_WORD * i, out);
	diff = floats_sub(p, out);
	s->diff2 = floats_fma(diff, diff, s->diff2);
	s->norm2 = floats_fma(out, out, s->norm2);
	s->p_max = words_max(s->p_max, words_abs(p));
	s->e_max = words_max(s->e_max, words_abs(out));
}

/* What is AHEAD bytes behind the turn's own elements of each stream that is read. It may lie behind
 * the stream's end: asking for memory that is not there does nothing. */
static inline __attribute__((always_inline)) void lanes_ask(uint32_t dtype, enum ema_mode mode,
							    const struct ema_run *r, uint64_t i)
{
	uint64_t at = EMA_WORD * i + AHEAD;

	if (dtype == CKPT_F32) {
		_mm_prefetch((const char *)r->p + at, _MM_HINT_T0);
		_mm_prefetch((const char *)r->p + at + EMA_LINE, _MM_HINT_T0);
	} else {
		_mm_prefetch((const char *)r->p + 2 * i + AHEAD, _MM_HINT_T0);
	}
	if (mode != EMA_TAKE) {
		_mm_prefetch((const char *)r->e + at, _MM_HINT_T0);
		_mm_prefetch((const char *)r->e + at + EMA_LINE, _MM_HINT_T0);
	}
	if (mode == EMA_CARRY) {
		_mm_prefetch((const char *)r->c + at, _MM_HINT_T0);
		_mm_prefetch((const char *)r->c + at + EMA_LINE, _MM_HINT_T0);
	}
}

static inline __attribute__((always_inline)) void lanes_run(uint32_t dtype, enum ema_mode mode,
							    bool aligned, const struct ema_run *r,
							    struct ema_seen *seen)
{
	floats a = floats_all(mode == EMA_FAR ? r->a - 1 : r->a);
	struct lanes s = { words_zero(), words_zero(), floats_zero(), floats_zero() };
	uint64_t i = 0;

	for (; r->n - i >= TURN; i += TURN) {
		lanes_ask(dtype, mode, r, i);
		lanes_update(dtype, mode, aligned, r, i, a, &s);
		lanes_update(dtype, mode, aligned, r, i + LANES, a, &s);
		if (2 * LANES < TURN) {
			lanes_update(dtype, mode, aligned, r, i + 2 * LANES, a, &s);
			lanes_update(dtype, mode, aligned, r, i + 3 * LANES, a, &s);
		}
	}
	for (; r->n - i >= LANES; i += LANES)
		lanes_update(dtype, mode, aligned, r, i, a, &s);
	seen->p_max = words_greatest(s.p_max);
	seen->e_max = words_greatest(s.e_max);
	seen->diff2 = floats_sum(s.diff2);
	seen->norm2 = floats_sum(s.norm2);
	ema_update_singly(r, i, r->n, seen);
}

static inline __attribute__((always_inline)) void
lanes_mode(enum ema_mode mode, const struct ema_run *r, struct ema_seen *seen)
{
	if (!r->aligned && r->dtype == CKPT_F32)
		lanes_run(CKPT_F32, mode, false, r, seen);
	else if (!r->aligned && r->dtype == CKPT_BF16)
		lanes_run(CKPT_BF16, mode, false, r, seen);
	else if (!r->aligned)
		lanes_run(CKPT_F16, mode, false, r, seen);
	else if (r->dtype == CKPT_F32)
		lanes_run(CKPT_F32, mode, true, r, seen);
	else if (r->dtype == CKPT_BF16)
		lanes_run(CKPT_BF16, mode, true, r, seen);
	else
		lanes_run(CKPT_F16, mode, true, r, seen);
}

static void update(const struct ema_run *r, struct ema_seen *seen)
{
	switch (r->mode) {
	case EMA_TAKE:
		lanes_mode(EMA_TAKE, r, seen);
		break;
	case EMA_HOLD:
		lanes_mode(EMA_HOLD, r, seen);
		break;
	case EMA_NEAR:
		lanes_mode(EMA_NEAR, r, seen);
		break;
	case EMA_FAR:
		lanes_mode(EMA_FAR, r, seen);
		break;
	case EMA_CARRY:
		lanes_mode(EMA_CARRY, r, seen);
		break;
	case EMA_CARRY_ZERO:
	case EMA_MODES:
		lanes_mode(EMA_CARRY_ZERO, r, seen);
		break;
	}
}
