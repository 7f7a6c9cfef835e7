/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - how much of a step's weights goes into an average: the update is
 *	e' = e + (1 - d) (p - e)
 * and d, the decay, is a pure function of the schedule, the step, and the state of the average: the
 * step of its newest update, where it began, and how many updates it has had. Nothing counts calls:
 * a step that was missed, skipped or held up is made up for by the true distance. d has the same
 * bits on every host (wide.h).
 *
 * With k = step - start, s = k - 1, and D = step - last_step (k and D are at least 1):
 *
 *	constant   d = decay^D
 *	timm       d = decay^D; with warmup=1
 *		   d = clip(1 - (1 + s/gamma)^-power, min_decay, decay)^D; always 0 for s = 0.
 *		   timm 1.0.31 ModelEmaV3, called with `step`
 *	diffusers  d = clip((1 + s)/(10 + s), min_decay, decay)^D; with warmup=1 as timm; 0 if s = 0.
 *		   diffusers 0.42.1 EMAModel
 *	halflife   d = 2^(-D / (fraction k)): the half-life is a fraction of the steps so far.
 *		   torchtitan, arXiv 2602.03702
 *	power      d = (1 - D/k)^(gamma + 1), 0 for D >= k; sigma_rel is another way to say gamma.
 *		   EDM2, arXiv 2312.02696
 *	uniform    d = (updates + 1) / (updates + 2): the mean of the steps that were taken in,
 *		   the one that was copied among them. torch AveragedModel (SWA)
 *	zero       the average from zero, divided by 1 - (product of its decays), that of the step
 *		   that was copied among them: d = 1 - (1 - decay^D) / (1 - decay^(step - since + 1)).
 *		   Adam's correction
 *
 * The first step that an average sees, and every step up to `start`, is copied (d = 0). So is one
 * that comes in with so great a weight that 1 - d is 1 as a float: nothing of what was before
 * remains.
 */
#ifndef EMA_SCHEDULE_H
#define EMA_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>

enum ema_preset {
	EMA_CONSTANT,
	EMA_TIMM,
	EMA_DIFFUSERS,
	EMA_HALFLIFE,
	EMA_POWER,
	EMA_UNIFORM,
	EMA_ZERO
};
enum ema_param {
	EMA_DECAY,     /* constant, timm, diffusers, zero: [0, 1) */
	EMA_SIGMA_REL, /* power: (0, 0.28...): the canonical form has gamma instead */
	EMA_GAMMA,     /* power: >= 0; timm, diffusers: of the warm-up, > 0 */
	EMA_EXPONENT,  /* timm, diffusers: `power=`, of the warm-up, > 0 */
	EMA_MIN_DECAY, /* timm, diffusers: [0, decay] */
	EMA_FRACTION,  /* halflife: > 0 */
	EMA_PARAMS
};
struct ema_schedule {
	enum ema_preset preset;
	bool warmup;
	uint64_t start;
	double param[EMA_PARAMS]; /* those that the preset does not have are 0 */
};

/* Of one average with one schedule, behind a step. Kept in slots and in files. */
struct ema_state {
	/* of all d since `since`, that of the copy left out; 1 behind it. It is how much of the
	 * step that was copied the average still has */
	double product;
	uint64_t updates;   /* since then; the copy is none */
	uint64_t last_step; /* of the newest update or copy; EMA_NO_STEP: there was none */
	uint64_t since;	    /* the step from which it was copied or seeded; EMA_NO_STEP: none */
	uint8_t history[16];
};
#define EMA_NO_STEP UINT64_MAX

/* What it is before it has seen a step: history is that of the canonical text of the schedule. */
struct ema_state ema_state_new(const char *canonical);

struct ema_update {
	bool copy; /* e' = p, whatever e was */
	double decay;
	/* what the kernel takes: 1 - decay, computed in double, rounded to float; 1: copy. For
	 * uniform and zero it is the double nearest to what comes in that is rounded, which is
	 * known better than the difference says: 1 / (updates + 2), for example */
	float a;
};
/* step > s->last_step, unless that is EMA_NO_STEP. */
struct ema_update ema_schedule_update(const struct ema_schedule *x, const struct ema_state *s,
				      uint64_t step);
/* The state behind that update: history is hash128(history | le64 step | le64 last_step). A copy
 * begins anew: since = step, product 1, updates 0, last_step = step, and so does its history: it is
 * hash128(hash128(canonical) | le64 step | le64 EMA_NO_STEP). */
struct ema_state ema_state_after(const struct ema_state *s, const struct ema_update *u,
				 const char *canonical, uint64_t step);
/* The state behind a copy of that step. */
struct ema_state ema_state_copied(const char *canonical, uint64_t step);
/* The state of values that came from a checkpoint's weights or averages (`seed=`), which go on at
 * `step`: as a copy made there, but the history is hash128(that of the copy | id | 0 | 1 for the
 * weights, 0 for the average). So two averages of one history began with the same values. id: the
 * checkpoint's. */
struct ema_state ema_state_seeded(const char *canonical, uint64_t step, const char *id,
				  bool weights);
/* Can it be the state of an average behind that step? For what others may have written. */
bool ema_state_possible(const struct ema_state *s, uint64_t step);

/* The nearest double to the gamma of a sigma_rel s: the largest real root g of
 * g^3 + 7 g^2 + (16 - s^-2) g + (12 - s^-2), which says s^2 = (g + 1) / ((g + 2)^2 (g + 3)).
 * NaN: there is none >= 0 (s > .2886...), or s < EMA_SIGMA_MIN. */
#define EMA_SIGMA_MIN 1e-12
double ema_gamma_of_sigma(double sigma_rel);
#endif
