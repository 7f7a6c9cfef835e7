/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.c - see decoder.h. Called by move, which makes places. Invariant: a decoder never gives more
 * bytes than were announced. decoder_end refuses a stream that gave fewer, and one that ended
 * before its input.
 */
#include "ckpt/coding/decoder.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/coding/crc.h"
#include <limits.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

struct decoder {
	struct decoder_opts o;
	uint64_t made; /* bytes that came out */
	uint32_t crc;
	bool ended;
	bool drained; /* of ZSTD: without more input nothing comes out */
	z_stream z;
	ZSTD_DStream *zstd;
	uint8_t elem[DECODE_ELEM_MAX]; /* of SWAPPED: a part of an element, on its way in or out */
	uint32_t in, out;
};

int decoder_open(const struct decoder_opts *opts, struct decoder **ret, struct ckpt_err *err)
{
	struct decoder *d = calloc(1, sizeof *d);
	bool ok = d;

	*ret = NULL;
	if (!d)
		return ckpt_error(err, -ENOMEM, "out of memory for a decoder");
	d->o = *opts;
	switch (opts->how) {
	case DECODE_SWAPPED:
		assert(opts->elem && opts->elem <= DECODE_ELEM_MAX);
		d->ended = !opts->bytes;
		break;
	case DECODE_DEFLATE:
		ok = inflateInit2(&d->z, -MAX_WBITS) == Z_OK;
		break;
	case DECODE_ZSTD:
		d->zstd = ZSTD_createDStream();
		ok = d->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax,
								     DECODE_WINDOW_LOG2));
		break;
	}
	if (!ok) {
		decoder_close(d);
		return ckpt_error(err, -ENOMEM, "out of memory for a decoder");
	}
	*ret = d;
	return 0;
}

void decoder_close(struct decoder *d)
{
	if (!d)
		return;
	if (d->o.how == DECODE_DEFLATE)
		(void)inflateEnd(&d->z);
	ZSTD_freeDStream(d->zstd);
	free(d);
}

/* --- one step: some input to some output --- */

static int swapped_step(struct decoder *d, struct decoding *x)
{
	uint32_t n = d->o.elem;

	while (!d->in && !d->out && x->in_len >= n && x->out_len >= n) {
		for (uint32_t i = 0; i < n; i++)
			x->out[i] = x->in[n - 1 - i];
		x->in += n;
		x->in_len -= n;
		x->out += n;
		x->out_len -= n;
	}
	for (; !d->out && d->in < n && x->in_len; x->in_len--)
		d->elem[d->in++] = *x->in++;
	if (d->in == n) {
		d->out = n;
		d->in = 0;
	}
	for (; d->out && x->out_len; x->out_len--)
		*x->out++ = d->elem[--d->out];
	return 0;
}

static int deflate_step(struct decoder *d, struct decoding *x, struct ckpt_err *err)
{
	uint32_t in = (uint32_t)MIN(x->in_len, (uint64_t)UINT_MAX),
		 out = (uint32_t)MIN(x->out_len, (uint64_t)UINT_MAX);
	int e;

	d->z.next_in = (uint8_t *)x->in;
	d->z.avail_in = in;
	d->z.next_out = x->out;
	d->z.avail_out = out;
	e = inflate(&d->z, Z_NO_FLUSH);
	x->in += in - d->z.avail_in;
	x->in_len -= in - d->z.avail_in;
	x->out += out - d->z.avail_out;
	x->out_len -= out - d->z.avail_out;
	d->ended = e == Z_STREAM_END;
	if (e == Z_OK || e == Z_STREAM_END || e == Z_BUF_ERROR)
		return 0;
	return e == Z_MEM_ERROR ? ckpt_error(err, -ENOMEM, "out of memory for a decoder")
				: ckpt_error(err, -EBADMSG, "its deflate stream is damaged: %s",
					     d->z.msg ? d->z.msg : "unknown error");
}

static int zstd_failed(ZSTD_ErrorCode code, struct ckpt_err *err)
{
	switch ((int)code) {
	case ZSTD_error_frameParameter_windowTooLarge:
		return ckpt_error(err, -EPROTONOSUPPORT,
				  "its zstd frame needs a window of more than %u MiB; this program "
				  "reads no larger ones",
				  1u << (DECODE_WINDOW_LOG2 - 20));
	case ZSTD_error_dictionary_wrong:
	case ZSTD_error_dictionary_corrupted:
		return ckpt_error(err, -EPROTONOSUPPORT,
				  "its zstd frame needs a dictionary, which this program has not");
	case ZSTD_error_version_unsupported:
	case ZSTD_error_frameParameter_unsupported:
		return ckpt_error(err, -EPROTONOSUPPORT, "its zstd frame is of an unknown kind");
	case ZSTD_error_memory_allocation:
		return ckpt_error(err, -ENOMEM, "out of memory for a decoder");
	default:
		return ckpt_error(err, -EBADMSG, "its zstd stream is damaged: %s",
				  ZSTD_getErrorString(code));
	}
}

static int zstd_step(struct decoder *d, struct decoding *x, struct ckpt_err *err)
{
	ZSTD_inBuffer in = { .src = x->in, .size = x->in_len };
	ZSTD_outBuffer out = { .dst = x->out, .size = x->out_len };
	size_t e;

	/* It takes many calls without progress for damage. */
	if (!out.size || (!in.size && d->drained))
		return 0;
	e = ZSTD_decompressStream(d->zstd, &out, &in);
	x->in += in.pos;
	x->in_len -= in.pos;
	x->out += out.pos;
	x->out_len -= out.pos;
	if (ZSTD_isError(e))
		return zstd_failed(ZSTD_getErrorCode(e), err);
	d->ended = !e; /* until another frame begins */
	d->drained = in.pos == in.size && out.pos < out.size;
	return 0;
}

static int decoder_step(struct decoder *d, struct decoding *x, struct ckpt_err *err)
{
	switch (d->o.how) {
	case DECODE_SWAPPED:
		return swapped_step(d, x);
	case DECODE_DEFLATE:
		return deflate_step(d, x, err);
	case DECODE_ZSTD:
		return zstd_step(d, x, err);
	}
	return -EINVAL;
}

/* Into the room that is left, but for bytes that must not come. */
static int decoder_fill(struct decoder *d, struct decoding *x, struct ckpt_err *err)
{
	uint64_t room = MIN(x->out_len, d->o.bytes - d->made);
	struct decoding y = { x->in, x->in_len, x->out, room };
	uint8_t more;
	bool last = !room && d->made == d->o.bytes;
	int e;

	if (last) {
		y.out = &more;
		y.out_len = 1;
	}
	e = decoder_step(d, &y, err);
	if (last && !y.out_len && !e && !MUTANT(DECODED_MORE))
		return ckpt_error(err, -EBADMSG, "it holds more than the %llu bytes that it should",
				  (unsigned long long)d->o.bytes);
	x->in = y.in;
	x->in_len = y.in_len;
	if (last || e)
		return e;
	room -= y.out_len;
	if (d->o.has_crc)
		d->crc = crc_add(d->crc, x->out, room);
	d->made += room;
	x->out += room;
	x->out_len -= room;
	if (d->o.how == DECODE_SWAPPED)
		d->ended = d->made == d->o.bytes && !d->in && !d->out;
	return 0;
}

int decoder_take(struct decoder *d, struct decoding *x, struct ckpt_err *err)
{
	for (;;) {
		uint64_t in = x->in_len, out = x->out_len;
		int e;

		if (d->ended && in && d->o.how != DECODE_ZSTD)
			return ckpt_error(err, -EBADMSG,
					  "it goes on for %llu bytes behind the end of its stream",
					  (unsigned long long)in);
		if (d->ended && !in)
			return 0;
		e = decoder_fill(d, x, err);
		if (e)
			return e;
		if (in == x->in_len && out == x->out_len)
			return 0;
	}
}

int decoder_end(struct decoder *d, struct ckpt_err *err)
{
	if (d->made < d->o.bytes || !d->ended)
		return ckpt_error(err, -EBADMSG,
				  "its stream ends after %llu bytes; there should be %llu%s",
				  (unsigned long long)d->made, (unsigned long long)d->o.bytes,
				  d->made < d->o.bytes ? "" : " and an end");
	if (d->o.has_crc && d->crc != d->o.crc && !MUTANT(DECODED_CRC_IGNORED))
		return ckpt_error(err, -EBADMSG, "the CRC-32 of its bytes is wrong");
	return 0;
}
