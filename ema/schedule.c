/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - the decay of each step, and the state of an average behind it. Called by the daemon
 * once per row of AVERAGES and step, and by ckptctl. Invariant: every result is a pure function of
 * the arguments, with the same bits on every host.
 */
#include "ema/schedule.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ema/wide.h"
#include <math.h>

/* How much of the average remains, and how much of the step comes in: 1 - decay, where it is known
 * better than that difference says. */
struct share {
	double decay, step;
};

static struct share share_of(double decay)
{
	return (struct share){ decay, 1 - decay };
}

/* decay^distance */
static struct wide decay_over(double decay, uint64_t distance)
{
	if (decay <= 0)
		return wide_of(0);
	if (distance == 1)
		return wide_of(decay);
	return wide_pow(wide_of(decay), wide_of_u64(distance));
}

/* 1 - (1 + s/gamma)^-power */
static double warmup_decay(const struct ema_schedule *x, uint64_t s)
{
	double gamma = x->param[EMA_GAMMA], power = MIN(x->param[EMA_EXPONENT], 0x1p200);
	double times = (double)s / gamma;
	struct wide base;

	if (times > 0x1p300)
		return 1;
	if (times < 0x1p-300)
		return 0;
	base = wide_add(wide_of(1), wide_div(wide_of_u64(s), wide_of(gamma)));
	return wide_double(wide_sub(wide_of(1), wide_pow(base, wide_of(-power))));
}

/* Of one step, without its distance. */
static double ramp_decay(const struct ema_schedule *x, uint64_t s)
{
	double most = x->param[EMA_DECAY], least = x->param[EMA_MIN_DECAY], d;

	if (!s)
		return 0;
	if (x->warmup)
		d = warmup_decay(x, s);
	else if (x->preset == EMA_DIFFUSERS)
		d = (1 + (double)s) / (10 + (double)s);
	else
		return most;
	d = MIN(d, most);
	return MAX(d, least);
}

/* 2^-(distance / (fraction k)) */
static double halflife_decay(double fraction, uint64_t k, uint64_t distance)
{
	double halvings = (double)distance / (double)k / fraction;

	if (halvings > 2000)
		return 0;
	if (halvings < 0x1p-60)
		return 1;
	return wide_double(wide_pow(
		wide_of(2),
		wide_sub(wide_of(0), wide_div(wide_of_u64(distance),
					      wide_mul(wide_of_u64(k), wide_of(fraction))))));
}

/* ((k - distance) / k)^(gamma + 1) */
static double power_decay(double gamma, uint64_t k, uint64_t distance)
{
	struct wide base;

	if (distance >= k)
		return 0;
	base = wide_div(wide_of_u64(k - distance), wide_of_u64(k));
	return wide_double(wide_pow(base, wide_add(wide_of(MIN(gamma, 0x1p200)), wide_of(1))));
}

/* The mean of n values becomes that of n + 1. */
static struct share uniform_share(uint64_t n)
{
	return (struct share){ (double)n / ((double)n + 1), 1 / ((double)n + 1) };
}

/* (1 - decay^distance) / (1 - decay^steps) comes in: an average from zero that has seen `steps`
 * steps is divided by that, so that the weights of all steps together are 1. */
static struct share zero_share(double decay, uint64_t distance, uint64_t steps)
{
	struct wide one = wide_of(1), in;

	in = wide_div(wide_sub(one, decay_over(decay, distance)),
		      wide_sub(one, decay_over(decay, steps)));
	return (struct share){ wide_double(wide_sub(one, in)), wide_double(in) };
}

static struct share schedule_share(const struct ema_schedule *x, const struct ema_state *s,
				   uint64_t step)
{
	uint64_t k = step - x->start, distance = MUTANT(EMA_DISTANCE_ONE) ? 1 : step - s->last_step;
	const double *param = x->param;

	switch (x->preset) {
	case EMA_CONSTANT:
		return share_of(wide_double(decay_over(param[EMA_DECAY], distance)));
	case EMA_TIMM:
	case EMA_DIFFUSERS:
		return share_of(wide_double(decay_over(ramp_decay(x, k - 1), distance)));
	case EMA_HALFLIFE:
		return share_of(halflife_decay(param[EMA_FRACTION], k, distance));
	case EMA_POWER:
		return share_of(power_decay(param[EMA_GAMMA], k, distance));
	case EMA_UNIFORM:
		return uniform_share(s->updates + 1);
	case EMA_ZERO:
		return zero_share(param[EMA_DECAY], distance, step - s->since + 1);
	}
	return share_of(0);
}

struct ema_update ema_schedule_update(const struct ema_schedule *x, const struct ema_state *s,
				      uint64_t step)
{
	struct share share = { 0, 1 };

	assert(s->last_step == EMA_NO_STEP || step > s->last_step);
	if (s->last_step != EMA_NO_STEP && (step > x->start || MUTANT(EMA_START_IGNORED)))
		share = schedule_share(x, s, step);
	if ((float)share.step >= 1)
		return (struct ema_update){ .copy = true, .decay = 0, .a = 1 };
	return (struct ema_update){ .decay = share.decay, .a = (float)share.step };
}

static void history_begin(const char *canonical, uint8_t ret[16])
{
	struct hash128 h = hash128(canonical, strlen(canonical));

	memcpy(ret, h.b, 16);
}

static void history_add(uint8_t history[16], uint64_t step, uint64_t last_step)
{
	struct {
		uint8_t history[16];
		le64 step, last_step;
	} link = { .step = le64_of(step), .last_step = le64_of(last_step) };
	struct hash128 h;

	_Static_assert(sizeof link == 32, "no padding");
	memcpy(link.history, history, 16);
	h = hash128(&link, sizeof link);
	memcpy(history, h.b, 16);
}

struct ema_state ema_state_new(const char *canonical)
{
	struct ema_state s = { .product = 1, .last_step = EMA_NO_STEP, .since = EMA_NO_STEP };

	history_begin(canonical, s.history);
	return s;
}

struct ema_state ema_state_copied(const char *canonical, uint64_t step)
{
	struct ema_state s = ema_state_new(canonical);

	history_add(s.history, step, EMA_NO_STEP);
	s.last_step = s.since = step;
	return s;
}

struct ema_state ema_state_seeded(const char *canonical, uint64_t step, const char *id,
				  bool weights)
{
	struct ema_state s = ema_state_copied(canonical, step);
	const uint8_t what = weights;
	struct hash128_state x;
	struct hash128 h;

	hash128_begin(&x);
	hash128_add(&x, s.history, sizeof s.history);
	hash128_add(&x, id, strlen(id) + 1);
	hash128_add(&x, &what, sizeof what);
	h = hash128_end(&x);
	memcpy(s.history, h.b, sizeof s.history);
	return s;
}

bool ema_state_possible(const struct ema_state *s, uint64_t step)
{
	if (s->last_step == EMA_NO_STEP)
		return s->product == 1;
	return s->last_step <= step && s->since <= s->last_step && s->product >= 0 &&
	       s->product <= 1;
}

struct ema_state ema_state_after(const struct ema_state *s, const struct ema_update *u,
				 const char *canonical, uint64_t step)
{
	struct ema_state after = *s;

	if (u->copy)
		return ema_state_copied(canonical, step);
	if (MUTANT(EMA_HISTORY_UNCHAINED))
		history_begin(canonical, after.history);
	history_add(after.history, step, s->last_step);
	after.product *= u->decay;
	after.updates++;
	after.last_step = step;
	return after;
}
