/* SPDX-License-Identifier: Apache-2.0 */
/*
 * made.h - the bytes of made places (formats/format.h), front to back, in bounded memory. For
 * ckpt/move only.
 *
 * Of each made place a reader remembers how far it is, until its last byte was asked for: whoever
 * asks for bytes in their order has them decoded once, whoever goes back pays for another decoding.
 * It belongs to one thread.
 */
#ifndef CKPT_MOVE_MADE_H
#define CKPT_MOVE_MADE_H
#include "ckpt/move/move.h"

#define MADE_CELL ((uint64_t)1 << 20) /* at most so many bytes are handed out at once */
#define MADE_OPEN_MAX 64u	      /* decoders that are kept */
#define MADE_DEPTH_MAX 4u	      /* places made of made places */

struct made_reader;
int made_open(const struct move_files *f, struct made_reader **ret, struct ckpt_err *err);
void made_close(struct made_reader *m); /* NULL is fine */

/* Bytes [lo, hi) of the place lie at p. != 0 ends it. */
typedef int made_fn(void *arg, uint64_t lo, uint64_t hi, const uint8_t *p);
/*
 * Cells of the place that cover [from, to), in their order. -EBADMSG: it is damaged, or its sum is
 * wrong (which its last cell alone shows); -EPROTO: it is made of what is not there;
 * -EPROTONOSUPPORT; what reading said.
 */
int made_run(struct made_reader *m, uint32_t place, uint64_t from, uint64_t to, made_fn *fn,
	     void *arg, struct ckpt_err *err);
/*
 * How many decoders of a checkpoint are kept open in so much memory, and what they take
 * (*ret_bytes): an eighth of it, or one; MADE_OPEN_MAX or all at most. 0: nothing of it is decoded.
 */
uint32_t made_fit(const struct checkpoint *c, uint64_t mem_limit, uint64_t *ret_bytes);
#endif
