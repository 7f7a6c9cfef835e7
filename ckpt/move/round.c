/* SPDX-License-Identifier: Apache-2.0 */
/*
 * round.c - see round.h. Called where a derived tensor is written (walk.c), read (row_copy.c)
 * and verified (place_pieces.c). Invariant: the chosen instruction set changes speed only, never a
 * bit.
 */
#include "ckpt/move/round.h"
#include "ckpt/base/isa.h"
#include "ckpt/base/util.h"
#include "ckpt/move/round_body.h"
#include <errno.h>

#define COUNT_BLOCK 64u /* elements that are counted one by one where one is unequal */

static uint64_t none_round(const uint8_t *x, uint8_t *ret, uint64_t n)
{
	(void)x, (void)ret, (void)n;
	return 0;
}

static uint64_t none_equal(const uint8_t *x, const uint8_t *y, uint64_t n)
{
	(void)x, (void)y, (void)n;
	return 0;
}

const struct round_isa round_isa_scalar = { none_round, none_round, none_equal, none_equal };
static const struct round_isa *const isas[ISAS] = { [ISA_SCALAR] = &round_isa_scalar,
#ifdef __x86_64__
						    [ISA_AVX2] = &round_isa_avx2,
						    [ISA_AVX512] = &round_isa_avx512
#endif
};

bool round_known(uint32_t dtype)
{
	return dtype == CKPT_BF16 || dtype == CKPT_F16;
}

static uint16_t round_one(uint32_t dtype, uint32_t v)
{
	return dtype == CKPT_BF16 ? round_bf16(v) : round_f16(v);
}

void round_f32(uint32_t dtype, const void *x, void *ret, uint64_t n)
{
	const uint8_t *from = x;
	uint8_t *to = ret;
	uint64_t i = MUTANT(DERIVED_FLUSHES) ? 0
		     : dtype == CKPT_BF16    ? isas[isa_now()]->bf16(from, to, n)
					     : isas[isa_now()]->f16(from, to, n);

	assert(round_known(dtype));
	for (; i < n; i++) {
		uint16_t h = round_one(dtype, round_load(from + ROUND_FROM_BYTES * i));

		memcpy(to + ROUND_TO_BYTES * i, &h, sizeof h);
	}
}

/* One by one. */
static uint64_t count_unequal(uint32_t dtype, const uint8_t *x, const uint8_t *y, uint64_t from,
			      uint64_t to, uint64_t *ret_first)
{
	uint64_t n = 0;

	for (uint64_t i = from; i < to; i++) {
		uint32_t v = round_load(x + ROUND_FROM_BYTES * i);
		uint16_t have;

		memcpy(&have, y + ROUND_TO_BYTES * i, sizeof have);
		/* Of a number that is none, no rounding is a NaN. */
		if (have == round_one(dtype, v) && !round_is_nan(v))
			continue;
		if (!n++)
			*ret_first = i;
	}
	return n;
}

uint64_t round_unequal(uint32_t dtype, const void *x, const void *y, uint64_t n,
		       uint64_t *ret_first)
{
	uint64_t (*equal)(const uint8_t *, const uint8_t *, uint64_t) =
		dtype == CKPT_BF16 ? isas[isa_now()]->bf16_equal : isas[isa_now()]->f16_equal;
	const uint8_t *from = x, *have = y;
	uint64_t sum = 0;

	assert(round_known(dtype));
	for (uint64_t i = 0, end, first = 0, found; i < n; i = end) {
		if (!MUTANT(DERIVED_FLUSHES))
			i += equal(from + ROUND_FROM_BYTES * i, have + ROUND_TO_BYTES * i, n - i);
		end = MIN(i + COUNT_BLOCK, n);
		found = count_unequal(dtype, from, have, i, end, &first);
		if (found && !sum)
			*ret_first = first;
		sum += found;
	}
	return sum;
}
