/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - see events.h. Pure functions of seed and step. */
#include "events.h"

#include <string.h>

#define NAN_ELEMENTS 5 /* of a parameter */
#define SALT_NAN UINT64_C(0x4e614e)
#define SALT_BASE UINT64_C(0xf0)

void event_cursor(const struct events *e, const struct corpus *c, uint64_t step,
		  struct train_cursor *ret)
{
	*ret = (struct train_cursor){
		.step = step,
		.seed = e->seed,
		.micro = MODEL_MICRO,
		.positions = MODEL_POSITIONS,
		.text_bytes = c->bytes,
		.text_hash = c->hash,
	};
}

void event_rng(const struct events *e, uint32_t rank, uint64_t step, uint64_t ret_words[RNG_WORDS])
{
	for (uint64_t i = 0; i < RNG_WORDS; i++)
		ret_words[i] = mix64(mix64(mix64(e->seed) ^ step) ^ (rank * RNG_WORDS + i));
}

/* ---- the base ---- */

uint64_t base_rows(const struct model_shape *s, uint64_t percent)
{
	uint64_t row = BASE_WORDS * sizeof(uint64_t); /* 14 bytes a parameter beside them */

	return (s->params * 14 / (100 - percent) * percent + row - 1) / row;
}

bool base_is_trained(const struct events *e, uint64_t step)
{
	return e->thaw_every && step / e->thaw_every % 2;
}

bool base_row_changes(const struct events *e, uint64_t row, uint64_t step)
{
	return base_is_trained(e, step) && row % BASE_TURNS == step % BASE_TURNS;
}

void base_row(const struct events *e, uint64_t row, uint64_t step, uint64_t ret_words[BASE_WORDS])
{
	uint64_t newest = e->thaw_every ? step : 0, stream;

	while (newest > 0 && !base_row_changes(e, row, newest))
		newest--;
	stream = mix64(e->seed ^ SALT_BASE ^ newest << 8);
	for (uint64_t i = 0; i < BASE_WORDS; i++)
		ret_words[i] = mix64(stream ^ (row * BASE_WORDS + i));
}

/* ---- steps of NaNs ---- */

bool nan_step(const struct events *e, uint64_t step)
{
	return e->nan_every && step && step % e->nan_every == 0;
}

enum nan_kind { NAN_NONE, NAN_MOMENTS, NAN_ALL };

/* The first parameter takes turns, so that of two such steps one has finite weights. */
static enum nan_kind kind_of(const struct events *e, uint32_t tensor, uint64_t step)
{
	bool weights = step / e->nan_every % 2;

	if (tensor == 0)
		return weights ? NAN_ALL : NAN_MOMENTS;
	switch (mix64(mix64(e->seed ^ SALT_NAN ^ step << 8) ^ tensor) % 3) {
	case 0:
		return NAN_NONE;
	case 1:
		return NAN_MOMENTS;
	default:
		return weights ? NAN_ALL : NAN_MOMENTS;
	}
}

bool nan_in_weights(const struct events *e, uint64_t step)
{
	return nan_step(e, step) && kind_of(e, 0, step) == NAN_ALL;
}

/* The i-th of the elements that the step hits: where it lies, and 64 bits for what it gets. No two
 * of a parameter are the same element. */
static uint64_t hit(const struct model_tensor *t, uint32_t tensor, const struct events *e,
		    uint64_t step, uint64_t i, uint64_t *ret_bits)
{
	uint64_t n = t->dim[0] * t->dim[1], share = n / NAN_ELEMENTS;
	uint64_t draw = mix64(mix64(e->seed ^ SALT_NAN ^ step << 8) ^ (tensor * 64 + i));

	*ret_bits = mix64(draw);
	return i * share + draw % share;
}

/* NaN or infinite: the mantissa decides. */
static float bad_float(uint64_t bits)
{
	uint32_t u = (uint32_t)bits | 0x7f800000u;
	float f;

	if (bits >> 40 & 1)
		u &= 0xff800000u; /* infinite */
	memcpy(&f, &u, sizeof f);
	return f;
}

/* As ckptd rounds NaNs, so that a parameter that is declared as derived of its master is. */
static uint16_t rounded(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return (uint16_t)(u >> 16 | (u & 0x7fffff ? 0x40 : 0));
}

struct element {
	float master, moment1, moment2;
	uint16_t param;
};

static struct element planted(uint64_t bits)
{
	float master = bad_float(bits);

	return (struct element){
		.master = master,
		.moment1 = bad_float(mix64(bits ^ 1)),
		.moment2 = bad_float(mix64(bits ^ 2)),
		.param = rounded(master),
	};
}

/* The i-th hit, in this part; false: another rank has it. */
static bool hit_here(const struct model_shape *s, uint32_t tensor, const struct events *e,
		     uint64_t step, const struct model_part *p, uint64_t i, uint64_t *ret_at,
		     uint64_t *ret_bits)
{
	uint64_t first = p->first * p->cols,
		 at = hit(&s->tensor[tensor], tensor, e, step, i, ret_bits);

	*ret_at = at - first;
	return at >= first && *ret_at < p->rows * p->cols;
}

void nan_plant(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
	       struct model_part *p)
{
	enum nan_kind kind = nan_step(e, step) ? kind_of(e, tensor, step) : NAN_NONE;
	uint64_t at, bits;

	for (uint64_t i = 0; kind != NAN_NONE && i < NAN_ELEMENTS; i++) {
		struct element x;

		if (!hit_here(s, tensor, e, step, p, i, &at, &bits))
			continue;
		x = planted(bits);
		/* memcpy: a float in a register may become another NaN */
		memcpy(&p->moment1[at], &x.moment1, sizeof x.moment1);
		memcpy(&p->moment2[at], &x.moment2, sizeof x.moment2);
		if (kind == NAN_ALL) {
			memcpy(&p->master[at], &x.master, sizeof x.master);
			p->param[at] = x.param;
		}
	}
}

uint64_t nan_wrong(const struct model_shape *s, uint32_t tensor, const struct events *e,
		   uint64_t step, const struct model_part *p)
{
	enum nan_kind kind = nan_step(e, step) ? kind_of(e, tensor, step) : NAN_NONE;
	uint64_t at, bits, wrong = 0;

	for (uint64_t i = 0; kind != NAN_NONE && i < NAN_ELEMENTS; i++) {
		struct element x;
		int differs;

		if (!hit_here(s, tensor, e, step, p, i, &at, &bits))
			continue;
		x = planted(bits);
		differs = memcmp(&p->moment1[at], &x.moment1, sizeof x.moment1) |
			  memcmp(&p->moment2[at], &x.moment2, sizeof x.moment2);
		if (kind == NAN_ALL)
			differs |= memcmp(&p->master[at], &x.master, sizeof x.master) |
				   (p->param[at] != x.param);
		wrong += differs != 0;
	}
	return wrong;
}

/* One element, as it is at step 0. */
static struct element first_value(const struct model_shape *s, uint32_t tensor, uint64_t seed,
				  uint64_t at)
{
	struct element x;
	struct model_part p = {
		.first = at,
		.rows = 1,
		.cols = 1,
		.master = &x.master,
		.moment1 = &x.moment1,
		.moment2 = &x.moment2,
		.param = &x.param,
	};

	model_init(s, tensor, seed, &p);
	return x;
}

void nan_mend(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
	      struct model_part *p)
{
	uint64_t at, bits;

	for (uint64_t i = 0; nan_step(e, step) && i < NAN_ELEMENTS; i++) {
		struct element x;

		if (kind_of(e, tensor, step) == NAN_NONE ||
		    !hit_here(s, tensor, e, step, p, i, &at, &bits))
			continue;
		x = first_value(s, tensor, e->seed, p->first * p->cols + at);
		p->master[at] = x.master;
		p->moment1[at] = x.moment1;
		p->moment2[at] = x.moment2;
		p->param[at] = x.param;
	}
}

void nan_forget(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
		const struct model_part *p, uint16_t *gathered)
{
	uint64_t at, bits, first = p->first * p->cols;

	for (uint64_t i = 0; nan_step(e, step) && i < NAN_ELEMENTS; i++)
		if (kind_of(e, tensor, step) != NAN_NONE &&
		    hit_here(s, tensor, e, step, p, i, &at, &bits))
			gathered[s->tensor[tensor].at + first + at] =
				first_value(s, tensor, e->seed, first + at).param;
}
