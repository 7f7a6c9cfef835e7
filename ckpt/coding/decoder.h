/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.h - decoders as streams: bytes go in front to back, and come out front to back, in
 * bounded memory whatever the input says. How many bytes come out is known before, and is exact:
 * more or fewer are damage, and so is input behind the end of the stream.
 *
 * Threads: a decoder belongs to one thread at a time.
 */
#ifndef CKPT_CODING_DECODER_H
#define CKPT_CODING_DECODER_H
#include "ckpt/base/error.h"
#include <stdbool.h>
#include <stdint.h>

/*
 * SWAPPED  the bytes of each element in reverse order
 * DEFLATE  one raw deflate stream (RFC 1951)
 * ZSTD     one or more zstd frames, without a dictionary
 */
enum decode_how { DECODE_SWAPPED, DECODE_DEFLATE, DECODE_ZSTD };
#define DECODE_ELEM_MAX 16u
#define DECODE_WINDOW_LOG2 23		  /* a zstd frame that wants a larger window is refused */
#define DECODER_BYTES ((uint64_t)9 << 20) /* of memory, at most */

struct decoder_opts {
	enum decode_how how;
	uint8_t elem;	/* SWAPPED: bytes of an element, 1 to DECODE_ELEM_MAX */
	uint64_t bytes; /* that come out */
	bool has_crc;
	uint32_t crc; /* CRC-32 of these */
};
struct decoder;
int decoder_open(const struct decoder_opts *opts, struct decoder **ret, struct ckpt_err *err);
void decoder_close(struct decoder *d); /* NULL is fine */

/* What is left of the input at hand, and of the room for output. */
struct decoding {
	const uint8_t *in;
	uint64_t in_len;
	uint8_t *out;
	uint64_t out_len;
};
/*
 * Moves on until the input is used up, or the room is. When all bytes have come out it goes on to
 * look for the end of the stream. -EBADMSG: damaged, or not as many bytes as there should be;
 * -EPROTONOSUPPORT: a feature that this program does not know, by its name; -ENOMEM. After an error
 * only decoder_close may be called.
 */
int decoder_take(struct decoder *d, struct decoding *x, struct ckpt_err *err);
/* After the last byte of input. -EBADMSG: the stream has not ended, or the CRC-32 is another. */
int decoder_end(struct decoder *d, struct ckpt_err *err);
#endif
