/* SPDX-License-Identifier: Apache-2.0 */
/*
 * range_sums.h - the sums that a container holds of what lies in it: the CRC-32 of a range, and
 * that of a made place (formats/format.h), compared while the bytes pass by. For ckpt/move only.
 *
 * Bytes may come in any order, and more than once: each MiB of a range is summed once. A range is
 * judged when all of it has come, and only then; one of which some never comes is not judged.
 *
 * Threads: any, but for range_sums_want, which comes before the bytes.
 */
#ifndef CKPT_MOVE_RANGE_SUMS_H
#define CKPT_MOVE_RANGE_SUMS_H
#include "formats/format.h"

struct range_sums;
/* *ret NULL: the checkpoint has no such sums. all: every range is wanted. -ENOMEM. */
int range_sums_make(const struct checkpoint *c, bool all, struct range_sums **ret);
void range_sums_free(struct range_sums *s); /* NULL is fine, here and below */

/* What lies in bytes [from, to) of a place is read: the ranges with some of them are wanted, and so
 * are the places of which it is made. */
void range_sums_want(struct range_sums *s, uint32_t place, uint64_t from, uint64_t to);
/* Bytes [off, off + len) of a file without chunks lie at p. fn: of each range that is complete with
 * them, is its sum right? */
typedef void range_sum_fn(void *arg, const struct format_range *r, bool right);
void range_sums_add(struct range_sums *s, uint32_t file, uint64_t off, uint64_t len,
		    const uint8_t *p, range_sum_fn *fn, void *arg);
/* A range_sum_fn; arg: the const struct format_range * that becomes the one that is wrong. */
void range_wrong_keep(void *arg, const struct format_range *r, bool right);
/* -EBADMSG: bytes r of a file, which are the bytes from lo on of the place. */
#define RANGE_CRC_WRONG "their CRC-32 is wrong"
int range_damaged(const struct table *t, const struct format_file *f, uint32_t place,
		  const struct format_range *r, uint64_t lo, const char *why, struct ckpt_err *err);
/* A made place was decoded to its end. */
void range_sums_ended(struct range_sums *s, uint32_t place);

/* What has not come of the wanted ranges of a file: the first such bytes from *at on, of one MiB.
 * *at is then behind them. */
bool range_sums_missing(const struct range_sums *s, uint32_t file, uint64_t *at, uint64_t *ret_off,
			uint64_t *ret_len);
/* Is it wanted, has it a sum, and was it not decoded to its end? */
bool range_sums_unended(const struct range_sums *s, uint32_t place);
#endif
