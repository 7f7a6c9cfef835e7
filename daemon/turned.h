/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turned.h - derived tensors of devices, of which a snapshot copies and compares another 1/16 each
 * time (ckpt/wire/turns.h). Called by memory and rows (which tensors), snap (what a copy holds, and
 * whether it may be staged), passes and fill (how it is read), restore.
 *
 * Invariants: bytes of a slot that were not copied for its step are read by nobody: every table of
 * the slot says that the piece is the rounding of its master (PIECE_DERIVED, PIECE_TRUSTED). A step
 * is staged only after its turn was compared and found equal, and only if every tensor that it has
 * in turns is not known to be unequal. Turns are allowed only after all was compared in one
 * snapshot of the same memory: of the same epoch and rev, with no restore since.
 */
#ifndef DAEMON_TURNED_H
#define DAEMON_TURNED_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct decl;
struct launch;
struct shared_record;
struct snap;
struct table;
struct turns; /* of a declaration: what goes in turns, and what is known of it; NULL: nothing does */
struct turned; /* of one rank's copy: its turn, and what is whole in spite of it; NULL: all is */

/* Of a declaration whose parts and averages are made. on[n]: its section WIRE_DEVICES. -ENOMEM;
 * -EPROTO: it has fewer tensors. Worker. */
int turns_make(struct decl *d, const uint8_t *on, uint64_t n, struct ckpt_err *err);
void turns_free(struct turns *x); /* NULL is fine */
/* Does this tensor of the declaration go in turns? */
bool turns_has(const struct turns *x, uint32_t tensor);

/* whole[n]: tensors of the declaration. *ret NULL: the record has no turn. -ENOMEM. */
int turned_make(uint32_t turn, const uint32_t *whole, uint32_t n, struct turned **ret);
/* Does what an earlier daemon has filled under this rev mean the same under this declaration? */
bool turned_fits(uint32_t turn, uint32_t rev, const struct decl *d);
struct turned *turned_ref(struct turned *x); /* NULL is fine */
void turned_unref(struct turned *x);	     /* NULL is fine */
/* t: of the slot, or of its main part. Marks the pieces whose bytes are not all of this step. Any
 * thread. */
void turned_mark(const struct turned *x, const struct decl *d, struct table *t);

/* --- owner --- */
/* What this record says of rank r's copy: snap_rank.turned. -ENOMEM. */
int turned_take(struct snap *s, uint32_t r, const struct shared_record *rec);
/* Rank r's copy is complete. True: a task compares it, and ends in snap_compared. */
bool turned_compare(struct snap *s, uint32_t r);
/* Does rank r's copy have a tensor in turns that another step has shown to be unequal? text: the
 * sentence. */
bool turned_outdated(const struct snap *s, uint32_t r, char *text, size_t bytes);
/* The ranks' memory is about to be changed by a restore: the next snapshots are copied whole. */
void turns_restart(struct launch *l);
#endif
