/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coding_decoder.c - decoders give what was coded, whatever cuts it comes and goes in; and
 * refuse what is cut short, goes on behind its end, is larger or smaller than announced, or
 * damaged.
 */
#include "ckpt/coding/crc.h"
#include "ckpt/coding/decoder.h"
#include "tests/lib/draw.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <zlib.h>
#include <zstd.h>

#define MANY 300000u

static struct ckpt_err err; /* of the call that failed last */

struct coded {
	struct decoder_opts o;
	uint8_t *plain, *bytes;
	uint64_t len; /* of bytes */
};

/* Text-like: it can be compressed. */
static uint8_t *plain_make(uint64_t n, uint64_t *seed)
{
	uint8_t *p = malloc(n + 1);

	assert_non_null(p);
	for (uint64_t i = 0; i < n; i++)
		p[i] = (uint8_t)(draw(seed) % 5 ? i / 7 : draw(seed));
	return p;
}

static void deflate_to(struct coded *c)
{
	z_stream z = { .next_in = c->plain, .avail_in = (uInt)c->o.bytes };

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_out = c->bytes;
	z.avail_out = (uInt)(c->o.bytes + 1000);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	c->len = z.total_out;
	deflateEnd(&z);
}

/* Two frames and one that is skipped. */
static void zstd_to(struct coded *c)
{
	static const uint8_t skip[] = { 0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3 };
	uint64_t half = c->o.bytes / 2, room = c->o.bytes + 1000;
	size_t n = ZSTD_compress(c->bytes, room, c->plain, half, 3), m;

	assert_false(ZSTD_isError(n));
	memcpy(c->bytes + n, skip, sizeof skip);
	n += sizeof skip;
	m = ZSTD_compress(c->bytes + n, room - n, c->plain + half, c->o.bytes - half, 1);
	assert_false(ZSTD_isError(m));
	c->len = n + m;
}

static void swap_to(struct coded *c)
{
	uint64_t e = c->o.elem;

	for (uint64_t i = 0; i < c->o.bytes; i++)
		c->bytes[i] = c->plain[i / e * e + (e - 1 - i % e)];
	c->len = c->o.bytes;
}

static void coded_make(struct coded *c, enum decode_how how, uint8_t elem, uint64_t n,
		       uint64_t *seed)
{
	*c = (struct coded)ROW(.o = ROW(.how = how, .elem = elem, .bytes = n, .has_crc = true),
			       .plain = plain_make(n, seed), .bytes = malloc(n + 1000));
	assert_non_null(c->bytes);
	c->o.crc = crc_add(0, c->plain, n);
	switch (how) {
	case DECODE_SWAPPED:
		swap_to(c);
		return;
	case DECODE_DEFLATE:
		deflate_to(c);
		return;
	case DECODE_ZSTD:
		zstd_to(c);
		return;
	}
}

static void coded_free(struct coded *c)
{
	free(c->plain);
	free(c->bytes);
}

/* The whole of it in random cuts of at most `most` bytes on both sides; into to. */
static int coded_take(const struct coded *c, uint64_t most, uint64_t *seed, uint8_t *to)
{
	struct decoding x = { .out = to };
	uint64_t room = c->o.bytes, in = c->len;
	const uint8_t *from = c->bytes;
	struct decoder *d;
	int e = 0;

	assert_ok_err(decoder_open(&c->o, &d, &err), &err);
	for (uint32_t idle = 0; !e && (in || x.in_len || room || x.out_len) && idle < 30; idle++) {
		uint64_t a = MIN(draw(seed) % (most + 1), in),
			 b = MIN(draw(seed) % (most + 1), room);
		uint64_t had = x.in_len + x.out_len;

		if (!x.in_len) {
			x.in = from;
			x.in_len = a;
			from += a;
			in -= a;
			had += a;
		}
		if (!x.out_len) {
			x.out_len = b;
			room -= b;
			had += b;
		}
		e = decoder_take(d, &x, &err);
		if (x.in_len + x.out_len < had)
			idle = 0;
	}
	if (!e)
		e = decoder_end(d, &err);
	decoder_close(d);
	return e;
}

static const struct {
	enum decode_how how;
	uint8_t elem;
} kinds[] = { { DECODE_SWAPPED, 1 }, { DECODE_SWAPPED, 2 },  { DECODE_SWAPPED, 4 },
	      { DECODE_SWAPPED, 8 }, { DECODE_SWAPPED, 16 }, { DECODE_DEFLATE, 0 },
	      { DECODE_ZSTD, 0 } };

TEST(what_was_coded_comes_out_whatever_the_cuts)
{
	static const uint64_t most[] = { 3, 50, 5000, MANY * 2 };
	uint64_t seed = draw_seed(__func__);
	uint8_t *to = malloc(MANY + 16);

	assert_non_null(to);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		for (size_t k = 0; k < ARRAY_LEN(most); k++) {
			uint64_t n = most[k] < 100 ? 4000 : MANY;
			struct coded c;

			coded_make(&c, kinds[i].how, kinds[i].elem, n / 16 * 16, &seed);
			memset(to, 0, MANY);
			assert_ok_err(coded_take(&c, most[k], &seed, to), &err);
			assert_memory_equal(to, c.plain, c.o.bytes);
			c.o.crc ^= 1;
			assert_int_equal(coded_take(&c, most[k], &seed, to), -EBADMSG);
			assert_non_null(strstr(err.msg, "CRC-32"));
			coded_free(&c);
		}
	free(to);
}

TEST(what_is_cut_short_or_goes_on_is_refused)
{
	uint64_t seed = draw_seed(__func__);
	uint8_t *to = malloc(MANY + 16);

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct coded c;
		uint64_t len;

		coded_make(&c, kinds[i].how, kinds[i].elem, 4096, &seed);
		len = c.len;
		for (c.len = 0; c.len < len; c.len += 1 + draw(&seed) % 40)
			assert_int_equal(coded_take(&c, 5000, &seed, to), -EBADMSG);
		c.len = len - 1;
		assert_int_equal(coded_take(&c, 5000, &seed, to), -EBADMSG);
		assert_non_null(strstr(err.msg, "its stream ends after"));
		c.len = len + 1;
		c.bytes[len] = 0;
		assert_int_equal(coded_take(&c, 5000, &seed, to), -EBADMSG);
		coded_free(&c);
	}
	free(to);
}

TEST(a_bomb_is_stopped_at_its_announced_size)
{
	uint64_t seed = draw_seed(__func__);
	uint8_t *to = malloc(MANY + 16);

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct coded c;
		uint64_t n;

		coded_make(&c, kinds[i].how, kinds[i].elem, 65536, &seed);
		n = c.o.bytes;
		memset(to, 0x5a, MANY);
		c.o.has_crc = false;
		c.o.bytes = 1000 / 16 * 16;
		assert_int_equal(coded_take(&c, MANY, &seed, to), -EBADMSG);
		assert_non_null(strstr(err.msg, "more than the 992 bytes"));
		for (uint64_t k = c.o.bytes; k < MANY; k++)
			assert_int_equal(to[k], 0x5a);
		c.o.bytes = n + 16;
		assert_int_equal(coded_take(&c, MANY, &seed, to), -EBADMSG);
		assert_non_null(strstr(err.msg, "its stream ends after 65536 bytes"));
		coded_free(&c);
	}
	free(to);
}

/* A frame that wants 128 MiB to look back into, and one whose dictionary nobody has. */
TEST(what_zstd_frames_need_and_is_not_there_is_refused_by_name)
{
	static uint8_t wide[] = { 0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0, 0 };
	static uint8_t dict[] = {
		0x28, 0xb5, 0x2f, 0xfd, 0x21, 0x2a, 0x04, 0x21, 0, 0, 1, 2, 3, 4
	};
	struct coded c = { .o = { .how = DECODE_ZSTD, .bytes = 4 },
			   .bytes = wide,
			   .len = sizeof wide };
	uint64_t seed = draw_seed(__func__);
	uint8_t to[16];

	assert_int_equal(coded_take(&c, 100, &seed, to), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.msg, "window of more than 8 MiB"));
	c.bytes = dict;
	c.len = sizeof dict;
	assert_int_equal(coded_take(&c, 100, &seed, to), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.msg, "dictionary"));
}

UNIT();
