// SPDX-License-Identifier: Apache-2.0
// turns.c - see turns.h. Called by the library at each mark, and by the daemon's owner.
// Invariant: `turns` is stored (release) after the entries of whole[] that it counts.
#include "ckpt/wire/turns.h"

/* 24 bits of the epoch, 24 of the rev, and 1 + n. */
#define COUNT_BITS 16
_Static_assert(SHARED_WHOLE < (1u << COUNT_BITS), "n fits");

static uint64_t word_of(uint32_t epoch, uint32_t rev, uint32_t nwhole)
{
	return (uint64_t)(epoch & 0xffffff) << 40 | (uint64_t)(rev & 0xffffff) << COUNT_BITS |
	       (nwhole + 1);
}

bool turns_allowed(const struct shared_rank *r, uint32_t epoch, uint32_t rev, uint32_t *ret_nwhole)
{
	uint64_t word = load_acquire(&r->turns);
	uint32_t n = (uint32_t)(word & ((1u << COUNT_BITS) - 1));

	if (!n || n - 1 > SHARED_WHOLE || word != word_of(epoch, rev, n - 1))
		return false;
	*ret_nwhole = n - 1;
	return true;
}

uint32_t turns_next(const struct shared_rank *r, const uint32_t recent[2])
{
	uint64_t order = load_relaxed(&r->turn_order);

	for (uint32_t i = 0; i < TURNS; i++, order >>= 4) {
		uint32_t turn = order & (TURNS - 1);

		if (turn + 1 != recent[0] && turn + 1 != recent[1])
			return turn;
	}
	return 0; /* nonsense in the page: any turn is right */
}

bool turn_compared(const struct shared_rank *r, uint64_t n, uint32_t turn)
{
	return turn == TURN_WHOLE || load_acquire(&r->compared[n % SHARED_SNAPS]) == n;
}

void turn_equal(struct shared_rank *r, uint64_t n)
{
	store_release(&r->compared[n % SHARED_SNAPS], n);
}

void turn_unequal(struct shared_rank *r, uint64_t n)
{
	if (load_relaxed(&r->compared[n % SHARED_SNAPS]) == n)
		store_release(&r->compared[n % SHARED_SNAPS], 0);
}

void turns_allow(struct shared_rank *r, uint32_t epoch, uint32_t rev, uint32_t nwhole)
{
	store_release(&r->turns, word_of(epoch, rev, nwhole));
}

void turns_forbid(struct shared_rank *r)
{
	store_release(&r->turns, 0);
}

uint64_t turns_order_after(uint64_t order, uint32_t turn)
{
	uint64_t ret = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < TURNS; i++)
		if ((order >> 4 * i & (TURNS - 1)) != turn)
			ret |= (order >> 4 * i & (TURNS - 1)) << 4 * n++;
	return ret | (uint64_t)turn << 4 * (TURNS - 1);
}
