/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - tensors of class CKPT_DERIVED that lie on devices are copied in turns. This header is
 * the specification of what library and daemon say to each other about it.
 *
 * A derived tensor is the rounding of its master, so a snapshot needs the master alone. The bytes
 * of a derived tensor are copied only to be compared, and each snapshot compares another 1/16 of
 * them. A slot consists of blocks of TURN_BYTES; block b is in turn b mod TURNS. Of a row with
 * WIRE_ROW_TURNS, a snapshot with a turn copies what lies in the blocks of this turn. What lies in
 * other blocks is left from older steps, and nobody may read it: readers round the master, which
 * lies in the same slot.
 *
 * Which rows: the daemon sets WIRE_ROW_TURNS for all rows of a tensor if it is derived, lies on
 * devices alone (section WIRE_DEVICES of the declaration), is not averaged itself, and every piece
 * of it has its master's piece in the same slot. This rule is part of WIRE_ABI, because a daemon
 * takes over slots that another one has filled (ADOPT).
 *
 * Which snapshots (rank page). `turns` belongs to the daemon. It is 0, or it names an epoch and
 * rev, and a number n of tensors: then a snapshot under this epoch and rev may have a turn, and
 * copies whole[0..n), which are numbers of tensors in the declaration, whole. The daemon stores it
 * when it has compared all of a snapshot that was copied whole; the tensors that were unequal are
 * in whole[]. It stores 0 before a restore changes the ranks' memory. Entries are only ever added
 * while epoch and rev stay, and each is written before the n that counts it. The record says which
 * turn and which n the library has used, so both sides mean the same tensors, whatever the daemon
 * adds meanwhile.
 *
 * `turn_order` has the 16 turns, four bits each, the one that was compared longest ago in the
 * lowest bits. It is a hint. The library takes the first one that its last two snapshots did not
 * have, for these may not be compared yet. A snapshot that is FINAL is copied whole: it cannot be
 * marked again.
 *
 * The daemon compares a snapshot's turn before the step is staged. If an element differs from the
 * rounded one, or is a NaN, the step is torn, the tensor is added to whole[], and so is torn every
 * step under way that has the tensor in turns. If all are equal, the daemon stores `compared`
 * before it says that the step is staged; a snapshot with a turn that was not compared is offered
 * to no other daemon (ADOPT), because it would be staged there. Of a step that was equal, and is
 * still under way when another one shows that a tensor is not, the daemon takes `compared` back.
 */
#ifndef CKPT_WIRE_TURNS_H
#define CKPT_WIRE_TURNS_H
#include "ckpt/wire/shared.h"

#define TURNS 16u
#define TURN_BYTES ((uint64_t)256 << 10) /* a copy of this size keeps a link busy */
#define TURN_WHOLE 0u			 /* shared_record.turn: no turn; else 1 + the turn */

/* The first byte of a slot at or behind `off` that is in the turn. */
static inline uint64_t turn_from(uint64_t off, uint32_t turn)
{
	uint64_t block = off / TURN_BYTES, skip = (turn + TURNS - block % TURNS) % TURNS;

	return skip ? (block + skip) * TURN_BYTES : off;
}

/* The end of the block that has this byte. */
static inline uint64_t turn_until(uint64_t off)
{
	return (off / TURN_BYTES + 1) * TURN_BYTES;
}

/* --- client --- */
/* May a snapshot under this epoch and rev have a turn? *ret_nwhole: it copies so many tensors of
 * whole[] whole. */
bool turns_allowed(const struct shared_rank *r, uint32_t epoch, uint32_t rev, uint32_t *ret_nwhole);
/* The next turn, which is neither of recent[2] (1 + turn; 0: none). */
uint32_t turns_next(const struct shared_rank *r, const uint32_t recent[2]);

/* Was the turn of snapshot n, if it has one, compared and found equal? */
bool turn_compared(const struct shared_rank *r, uint64_t n, uint32_t turn);

/* --- daemon --- */
void turn_equal(struct shared_rank *r, uint64_t n);
void turn_unequal(struct shared_rank *r, uint64_t n); /* after all: see above */
void turns_allow(struct shared_rank *r, uint32_t epoch, uint32_t rev, uint32_t nwhole);
void turns_forbid(struct shared_rank *r);
/* The turns, oldest first, after this one was compared. */
uint64_t turns_order_after(uint64_t order, uint32_t turn);
#define TURNS_ORDER UINT64_C(0xfedcba9876543210) /* the first one */
#endif
