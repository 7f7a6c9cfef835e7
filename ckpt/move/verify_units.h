/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify_units.h - what there is to verify in the files of a checkpoint, in units, and which units
 * a subset asks for. For ckpt/move only.
 *
 * A unit of a file with chunks is a chunk; of another file it is a MiB of it, cut to the bytes that
 * are to be read: those of DATA and ZERO ranges that `open` has not read, and of all ranges with a
 * CRC-32. A file without ranges is read from end to end, and has no sum.
 */
#ifndef CKPT_MOVE_VERIFY_UNITS_H
#define CKPT_MOVE_VERIFY_UNITS_H
#include "ckpt/move/move.h"

/* The ranges of a file, in order. one: room for a range of which a file without ranges is made. */
const struct format_range *file_ranges(const struct format_file *f, struct format_range *one,
				       uint64_t *ret_n);
/* The first of them that ends behind byte `at`. O(log n). */
uint64_t ranges_from(const struct format_range *range, uint64_t n, uint64_t at);
/* How many of the bytes [from, to) are to be read; ret_zero: how many of these must be zero. */
uint64_t file_read_bytes(const struct format_file *f, uint64_t from, uint64_t to,
			 uint64_t *ret_zero);
/* From the first byte that is to be read to the end of the last; 0, 0: there is none. */
void file_span(const struct format_file *f, uint64_t *ret_off, uint64_t *ret_end);

struct units {
	const struct format_file *f;
	struct format_range one;
	const struct format_range *range;
	uint64_t nrange, at;
	uint64_t i, n; /* of the next chunk or MiB */
};
struct unit {
	uint64_t i;	   /* number of the chunk, or of the MiB */
	uint64_t off, len; /* in the file */
};
void units_begin(struct units *u, const struct format_file *f);
bool units_next(struct units *u, struct unit *ret); /* false: there is none */

/* The units of a checkpoint, asked one after the other, file by file. */
struct picking {
	const struct move_subset *s;
	bool skip;	      /* the file */
	uint64_t number;      /* of the next unit, in all files */
	uint64_t left, want;  /* RANDOM: of the file's: those to come, those to be taken of them */
	uint64_t random, all; /* all: bytes of all files */
};
void picking_begin(struct picking *x, const struct checkpoint *c, const struct move_subset *s);
void picking_file(struct picking *x, const struct format_file *f, uint32_t file);
/* Is the next unit wanted? Of those to come each is as likely as the others. */
bool picking_next(struct picking *x);
#endif
