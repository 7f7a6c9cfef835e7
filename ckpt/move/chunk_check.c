/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_check.c - see chunk_check.h. Called by move_read and move_verify, from any thread.
 * Invariant: bytes that chunk_fault lets pass are those that the writer hashed.
 */
#include "ckpt/move/chunk_check.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

uint32_t file_chunk_log2(const struct format_file *f)
{
	return f->chunk ? f->chunk_log2 : CHUNK_PLAIN_LOG2;
}

uint64_t file_nchunk(const struct format_file *f)
{
	return f->chunk ? f->nchunk : div_up(f->raw_bytes, (uint64_t)1 << CHUNK_PLAIN_LOG2);
}

struct chunk file_chunk(const struct format_file *f, uint64_t i)
{
	uint64_t off = i << CHUNK_PLAIN_LOG2, len;

	if (f->chunk)
		return f->chunk[i];
	len = MIN(f->raw_bytes - off, (uint64_t)1 << CHUNK_PLAIN_LOG2);
	return (struct chunk){ .off = off,
			       .stored_len = (uint32_t)len,
			       .raw_len = (uint32_t)len,
			       .codec = CODEC_RAW };
}

/* The mistake of sums that do not say where a chunk belongs: any chunk of the file with this
 * sum. */
static const struct chunk *chunk_like(const struct format_file *f, const struct chunk *c,
				      const void *stored)
{
	struct hash128 h = hash128(stored, c->raw_len);

	for (uint64_t i = 0; i < f->nchunk; i++)
		if (f->chunk[i].raw_len == c->raw_len &&
		    !memcmp(h.b, f->chunk[i].raw_hash.b, sizeof h.b))
			return &f->chunk[i];
	return c;
}

const char *chunk_fault(const struct format_file *f, const struct chunk *c, const void *stored)
{
	struct hash128_state sum;
	struct hash128 h;

	if (!f->chunk)
		return NULL;
	if (MUTANT(CHUNK_SUM_ANYWHERE))
		c = chunk_like(f, c, stored);
	hash128_begin(&sum);
	hash128_add(&sum, stored, c->raw_len); /* stored raw: chunk_known */
	h = hash128_end(&sum);
	if (!MUTANT(CHUNK_HASH_IGNORED) && memcmp(h.b, c->raw_hash.b, sizeof h.b) != 0)
		return "the hash of its bytes is wrong";
	return NULL;
}

int chunk_known(const struct format_file *f, uint64_t i, struct ckpt_err *err)
{
	const struct chunk c = file_chunk(f, i);

	if (c.codec != CODEC_RAW)
		return ckpt_newer(err, "%s: chunk %llu has codec %u", f->name,
				  (unsigned long long)i, c.codec);
	if (c.stored_len != c.raw_len || c.raw_len > (uint64_t)1 << file_chunk_log2(f) ||
	    c.off > (uint64_t)INT64_MAX - c.stored_len)
		return ckpt_error(err, -EPROTO,
				  "%s: chunk %llu says %u stored and %u raw bytes at offset %llu",
				  f->name, (unsigned long long)i, c.stored_len, c.raw_len,
				  (unsigned long long)c.off);
	return 0;
}
