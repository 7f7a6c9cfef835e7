/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drift.h - replicas that have drifted apart. The ranks that hold the same elements of a tensor
 * should hold the same bytes; of each only one is saved. Called by snap (which owns a step's sums),
 * memory (what can be compared), persist (what MANIFEST says of it), commands (what status says).
 *
 * What is compared. Of each rank all elements that it declares of a tensor which other ranks
 * declare too: a tensor with a layout, on a mesh of which a dimension of more than one rank neither
 * shards it nor places it on one coordinate (CKPT_ONLY). The ranks that differ in those dimensions
 * alone are its replicas; they have the same elements, wherever these lie in each one's memory.
 * Their bits must be equal, also of a NaN. Left out are
 *	VOLATILE	it may change at any time, and random states differ by nature
 *	PARTIAL		operands differ by nature
 *	blobs, SINK	each rank's own; never saved
 *	role BUFFER	frameworks let them differ: running statistics of a data parallel job are each rank's own,
 *			and a warning that is always there is no warning
 *	boxes		(CKPT_BOXES) a declaration says which ranks hold them, and the daemon forgets it
 *	short strides	tensors in memory which the daemon does not map, in so many stretches that their
 *			rows would be more than WIRE_ROWS_MAX: this rank is not compared in them
 * CONST and DERIVED tensors are compared like all others.
 *
 * When. Elements are numbered row-major in the whole tensor. Block b is 2^15 of them, and up to
 * 2^18 of a tensor that still has 128 blocks then. A step has a turn, 0 to 127, and of a tensor the
 * blocks are summed whose b + hash of the tensor's name is the turn, mod 128: every rank takes the
 * same ones, and in 128 turns each is taken once. So all of a tensor of one block is summed once in
 * 128 turns, as many such tensors in each turn. The sum is the fingerprint (ckpt/base/hash.h) of
 * the rank's elements in these blocks: additive, so it does not depend on the memory they lie in. A
 * slot gets the turn of its next step before the gate gets the slot: the turn that was compared
 * longest ago and that no other step under way has. The job page has it (shared.h, REPLICAS), so
 * every rank reads the same one. A step that fails gives its turn back, and a slot that is not used
 * keeps its turn from the others for 64 compared steps only. So 128 compared steps compare all
 * elements, but for one step more each time that such a slot is used after all.
 *
 * Which thread. What lies in segments the daemon's copier sums at its source, in the same task as
 * the copy and behind it: the sources are stable until the copy is COPIED, which comes afterwards.
 * A canary that does not match, or a guard that ends the copy, leaves no sums. The rank that saves
 * an element is summed at its source like the others.
 *
 * Memory which the daemon does not map, of the host or of a device, the library brings. SEALED has
 * rows (wire.h, REPLICA) of each turn's elements, also of those that the rank does not save. With
 * each copy the library copies the rows of the slot's turn to a place of their own in the slot, and
 * says so (shared.h, REPLICAS). They are part of the copy: they come before its end, in the order
 * of the device, and a guard waits for them. When the record is COPIED, a task of the daemon's
 * copier sums them in the slot, by the same walk. If the library could not bring all of them, the
 * step has no sums of this rank. It costs 1/128 of the rank's replicas, read once in each snapshot,
 * and memory for them in each slot, for a turn.
 *
 * What it proves. A step is compared when it is STAGED and every rank is seen to have GUARDED it,
 * so that no sum is of memory that was being changed; a torn or unguarded step proves nothing and
 * is not compared. A thread of the work pool compares, the owner keeps what it finds. One bit that
 * differs always changes the sum; ckpt/base/hash.h lists what else changes a fingerprint.
 *
 * The daemon reports a tensor once until its replicas are equal again: the newest step in which
 * those blocks were equal, the first in which they were not, the ranks by value, and, if one value
 * is that of more ranks than any other, the ranks that do not have it. The report is in the log, on
 * the job page (from which the ranks' libraries log it), in status, and in MANIFEST of the steps
 * that are committed meanwhile (attribute DRIFT_ATTR). A new epoch and a restore discard all of it,
 * because memory is another then.
 *
 * Bounds: a rank's sums of a step are 24 bytes for each tensor that is summed in it. DRIFT_NAMED
 * tensors are reported by name, further ones are counted.
 */
#ifndef DAEMON_DRIFT_H
#define DAEMON_DRIFT_H
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/wire/wire.h"

#define DRIFT_TURNS WIRE_REPLICA_TURNS
#define DRIFT_NO_TURN UINT32_MAX
#define DRIFT_NAMED 16u
#define DRIFT_ATTR "ckpt.health:replicas"
#define DRIFT_TEXT 4000u /* of that attribute */

struct ckpt_err;
struct decl;
struct snap;
struct launch;
struct shared_rank;
struct wire_row;
struct drift;	   /* of a launch */
struct drift_decl; /* of a declaration: what can be compared, and when; NULL: nothing */
struct drift_sums; /* of one rank in one step */

/* Of a declaration whose slot is laid out but for what the library brings. -ENOMEM. Worker. */
int drift_decl_make(struct decl *d, struct ckpt_err *err);
void drift_decl_free(struct drift_decl *x); /* NULL is fine */
/* What the library is to bring: so many rows, in all turns; of so many bytes, at most in one turn,
 * which lie in the slot from decl.replicas_at on. x may be NULL. */
uint32_t drift_nrow(const struct drift_decl *x);
uint64_t drift_bytes(const struct drift_decl *x);
void drift_rows(const struct decl *d, struct wire_row *ret);

/* Of what the rank holds in its segments now. stop: asked every MiB or so: != 0 ends it. NULL: it
 * was ended, or there is no memory for it. Copier. */
struct drift_sums *drift_sum(struct decl *d, uint32_t turn, int (*stop)(void *arg), void *arg);
/* Rank's snapshot `mark` is COPIED, and x are its sums so far (NULL: there are none). LOST: it is
 * not compared. TO_SUM: drift_sum_brought is to be called. */
enum drift_rest { DRIFT_COMPLETE, DRIFT_TO_SUM, DRIFT_LOST };
enum drift_rest drift_rest(const struct decl *d, const struct drift_sums *x,
			   const struct shared_rank *r, uint64_t mark, uint32_t turn);
/* Adds what the library has brought to the slot. Takes x. NULL: there is no memory. Copier. */
struct drift_sums *drift_sum_brought(struct decl *d, uint32_t turn, const void *slot,
				     struct drift_sums *x);
void drift_sums_free(struct drift_sums *x); /* NULL is fine */

/* --- owner --- */
/* The gate is about to get this slot: its next step has a turn, which the job page says. */
void drift_give(struct launch *l, uint32_t slot);
/* For a step that begins in it; DRIFT_NO_TURN: none (then nothing is summed). */
uint32_t drift_turn(struct launch *l, uint32_t slot);
/* Is it time to compare a step's sums? Takes them from it then. Called whenever a rank may have
 * guarded, and (last) before it is freed. */
void drift_look(struct snap *s, bool last);
void drift_free(struct drift *x); /* NULL is fine */

/* One line for each tensor whose replicas differ, at most `bytes`; "": none was found. Any
 * thread, as long as it has a reference of the launch. */
void drift_text(const struct launch *l, char *buf, uint32_t bytes);
#endif
