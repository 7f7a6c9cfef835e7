/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_lanes_body.h - a run of elements with vectors of LANES floats. kernel_avx2.c and
 * kernel_avx512.c include it behind their own words for them: the types floats and words, and what
 * is called floats_* and words_* below.
 *
 * One target takes the whole run. Several take a strip of it in turn, so that the later ones find
 * the source in the first cache; the first one looks for the source's maximum. A turn is 32
 * elements: whole lines of every stream. The sums of a run are added in float lanes, which is exact
 * enough for at most EMA_RUN_MAX elements, and far from overflow as long as the maxima are within
 * the reach that kernel.c demands.
 */
#define TURN 32u
#define STRIP 128u
/*
 * Bytes from what is computed to what is asked for: into the second cache, which can wait for more
 * lines at once than the first one, and from there into the first one, whose places the lines that
 * are stored keep for long. Measured: without them the speed is 4 to 8 % lower.
 */
#define ASK_FAR 8192u
#define ASK_NEAR 1024u

struct lanes {
	floats diff2, norm2;
	words p_max, e_max;
};

/* n elements of one target from `at` on; n is a multiple of TURN. */
struct strip {
	const struct ema_run *run;
	const uint8_t *p; /* of the run's first element */
	uint64_t at, n;
	bool first; /* of its targets: it asks for the source and looks for its maximum */
};

/* LANES elements of a turn, from its i-th on. */
static inline __attribute__((always_inline)) void
turn_part(uint32_t dtype, enum ema_mode mode, bool aligned, bool first, const uint8_t *from,
	  const uint8_t *e_from, const uint8_t *c_from, uint8_t *to, uint8_t *c_to, uint64_t i,
	  floats a, struct lanes *s)
{
	floats p = floats_widen(dtype, from + (dtype == CKPT_F32 ? 4 : 2) * i), e, c, y, diff,
	       out = p;

	if (mode != EMA_TAKE)
		out = e = floats_load(e_from + EMA_WORD * i);
	if (mode == EMA_NEAR)
		out = floats_result(floats_fma(a, floats_sub(p, e), e));
	if (mode == EMA_FAR) /* a is a - 1 */
		out = floats_result(floats_fma(a, floats_sub(p, e), p));
	if (mode == EMA_CARRY || mode == EMA_CARRY_ZERO) {
		c = mode == EMA_CARRY ? floats_load(c_from + EMA_WORD * i) : floats_zero();
		y = floats_fmsub(a, floats_sub(p, e), c);
		out = floats_add(e, y);
		c = floats_result(floats_sub(floats_sub(out, e), y));
		out = floats_result(out);
		floats_store(aligned, c_to + EMA_WORD * i, c);
	}
	floats_store(aligned, to + EMA_WORD * i, out);
	diff = floats_sub(p, out);
	s->diff2 = floats_fma(diff, diff, s->diff2);
	s->norm2 = floats_fma(out, out, s->norm2);
	s->e_max = words_max(s->e_max, words_abs(out));
	if (first)
		s->p_max = words_max(s->p_max, words_abs(p));
}

/* The lines of later turns. They may lie behind the row's end: asking for memory that is not there
 * does nothing. */
static inline __attribute__((always_inline)) void lines_ask(const uint8_t *at, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += EMA_LINE) {
		_mm_prefetch((const char *)at + ASK_FAR + i, _MM_HINT_T1);
		_mm_prefetch((const char *)at + ASK_NEAR + i, _MM_HINT_T0);
	}
}

static inline __attribute__((always_inline)) void strip_update(uint32_t dtype, enum ema_mode mode,
							       bool aligned, bool first,
							       const struct strip *x,
							       struct lanes *ret)
{
	const uint64_t size = dtype == CKPT_F32 ? 4 : 2, word = EMA_WORD;
	const bool carry = mode == EMA_CARRY || mode == EMA_CARRY_ZERO;
	const struct ema_run *r = x->run;
	const uint8_t *p = x->p + size * x->at;
	uint8_t *to = r->out + word * x->at, *c_to = carry ? r->carry_out + word * x->at : to;
	/* Those that the update does not have go along with another row, and are not read. */
	const uint8_t *e = mode == EMA_TAKE ? to : r->e + word * x->at;
	const uint8_t *c = mode == EMA_CARRY ? r->c + word * x->at : e;
	floats a = floats_all(mode == EMA_FAR ? r->a - 1 : r->a);
	struct lanes s = *ret;

	for (uint64_t n = x->n; n; n -= TURN) {
		if (first)
			lines_ask(p, size * TURN);
		if (mode != EMA_TAKE)
			lines_ask(e, word * TURN);
		if (mode == EMA_CARRY)
			lines_ask(c, word * TURN);
		turn_part(dtype, mode, aligned, first, p, e, c, to, c_to, 0, a, &s);
		turn_part(dtype, mode, aligned, first, p, e, c, to, c_to, LANES, a, &s);
		if (2 * LANES < TURN) {
			turn_part(dtype, mode, aligned, first, p, e, c, to, c_to, 2 * LANES, a, &s);
			turn_part(dtype, mode, aligned, first, p, e, c, to, c_to, 3 * LANES, a, &s);
		}
		p += size * TURN;
		e += word * TURN;
		c += word * TURN;
		to += word * TURN;
		c_to += word * TURN;
	}
	*ret = s;
}

/* A function for each form of the source and of the update, with loops of its own. */
#define STRIP_UPDATE(name, dtype, mode)                                 \
	static void name(const struct strip *x, struct lanes *ret)      \
	{                                                               \
		if (x->run->aligned && x->first)                        \
			strip_update(dtype, mode, true, true, x, ret);  \
		else if (x->run->aligned)                               \
			strip_update(dtype, mode, true, false, x, ret); \
		else                                                    \
			strip_update(dtype, mode, false, true, x, ret); \
	}
#define STRIP_UPDATES(name, dtype)                                                                 \
	STRIP_UPDATE(name##_take, dtype, EMA_TAKE)                                                 \
	STRIP_UPDATE(name##_hold, dtype, EMA_HOLD)                                                 \
	STRIP_UPDATE(name##_near, dtype, EMA_NEAR)                                                 \
	STRIP_UPDATE(name##_far, dtype, EMA_FAR)                                                   \
	STRIP_UPDATE(name##_carry, dtype, EMA_CARRY)                                               \
	STRIP_UPDATE(name##_carry_zero, dtype, EMA_CARRY_ZERO)                                     \
	static const strip_function name[EMA_MODES] = {                                            \
		name##_take, name##_hold, name##_near, name##_far, name##_carry, name##_carry_zero \
	}
typedef void (*strip_function)(const struct strip *x, struct lanes *ret);
STRIP_UPDATES(f32, CKPT_F32);
STRIP_UPDATES(bf16, CKPT_BF16);
STRIP_UPDATES(f16, CKPT_F16);

static uint32_t update(uint32_t dtype, const uint8_t *p, uint64_t n, const struct ema_run *r,
		       uint32_t ntarget, struct ema_seen *ret)
{
	const strip_function *f = dtype == CKPT_F32 ? f32 : dtype == CKPT_BF16 ? bf16 : f16;
	uint64_t whole = n - n % TURN, strip = ntarget > 1 ? STRIP : whole;
	struct strip x = { .p = p };
	struct lanes s[EMA_TARGETS_MAX];

	for (uint32_t k = 0; k < ntarget; k++)
		s[k] = (struct lanes){ floats_zero(), floats_zero(), words_zero(), words_zero() };
	for (; x.at < whole; x.at += x.n) {
		x.n = whole - x.at < strip ? whole - x.at : strip;
		for (uint32_t k = 0; k < ntarget; k++) {
			x.run = &r[k];
			x.first = k == 0;
			f[r[k].mode](&x, &s[k]);
		}
	}
	for (uint32_t k = 0; k < ntarget; k++) {
		ret[k] = (struct ema_seen){ words_greatest(s[k].e_max), floats_sum(s[k].diff2),
					    floats_sum(s[k].norm2) };
		ema_update_singly(dtype, p, whole, n, &r[k], &ret[k]);
	}
	return ema_max_singly(dtype, p, whole, n, words_greatest(s[0].p_max));
}
