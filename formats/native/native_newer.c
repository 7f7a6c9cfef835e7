/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_newer.c - what of a file only a newer version knows, however much else is wrong with it.
 * Called by the reader before it calls a file malformed: what looks like a contradiction may be
 * what the newer version means. Invariant: only sections whose hashes are right are looked at, and
 * each field by itself.
 */
#include "formats/native/native_impl.h"
#include "ckpt/base/dtype.h"

/* A field, and what this version knows of its values. */
struct rule {
	uint32_t kind, rec_bytes, at, bytes;
	const char *name;
	enum { AT_MOST, BITS, ZERO, ONES, DTYPE } how; /* ONES: ~0 */
	uint32_t value;
	/* Only where the other field has none of these bits, or (EQUAL) not this value. ALWAYS:
	 * wherever it is. */
	enum { ALWAYS, WITHOUT, EQUAL, UNEQUAL } where;
	uint32_t other_at, other_bytes, other;
};

#define OF(kind_, s, f)                                                              \
	.kind = (kind_), .rec_bytes = sizeof(struct s), .at = offsetof(struct s, f), \
	.bytes = sizeof(((struct s *)0)->f), .name = #f
#define WHERE(how_, s, f, value_)                           \
	.where = (how_), .other_at = offsetof(struct s, f), \
	.other_bytes = sizeof(((struct s *)0)->f), .other = (value_)

static const struct rule rules[] = {
	{ OF(CK_MESHES, ck_mesh, rank_is_iota), .how = AT_MOST, .value = 1 },
	{ OF(CK_LAYOUTS, ck_layout, mode), .how = AT_MOST, .value = CKPT_UNFLATTEN_PAD },
	{ OF(CK_PLACEMENTS, ck_placement, how), .how = AT_MOST, .value = CKPT_PARTIAL },
	{ OF(CK_PLACEMENTS, ck_placement, reduce), .how = AT_MOST, .value = CKPT_PRODUCT },
	{ OF(CK_PLACEMENTS, ck_placement, reduce), .how = ZERO,
	  WHERE(UNEQUAL, ck_placement, how, CKPT_PARTIAL) },
	{ OF(CK_PLACEMENTS, ck_placement, flags), .how = BITS, .value = CKPT_KEEP_PARTIAL },
	{ OF(CK_PLACEMENTS, ck_placement, flags), .how = ZERO,
	  WHERE(UNEQUAL, ck_placement, how, CKPT_PARTIAL) },
	{ OF(CK_TENSORS, ck_tensor, shape_at), .how = ZERO, WHERE(EQUAL, ck_tensor, ndim, 0) },
	{ OF(CK_TENSORS, ck_tensor, dtype), .how = DTYPE },
	{ OF(CK_TENSORS, ck_tensor, role), .how = AT_MOST, .value = CKPT_COUNTER },
	{ OF(CK_TENSORS, ck_tensor, cls), .how = AT_MOST, .value = CKPT_SINK },
	{ OF(CK_TENSORS, ck_tensor, flags), .how = BITS, .value = CK_TENSOR_BLOB | CK_TENSOR_FP },
	{ OF(CK_TENSORS, ck_tensor, fp), .how = ZERO,
	  WHERE(WITHOUT, ck_tensor, flags, CK_TENSOR_FP) },
	{ OF(CK_TENSORS, ck_tensor, rank), .how = ONES,
	  WHERE(WITHOUT, ck_tensor, flags, CK_TENSOR_BLOB) },
	{ OF(CK_TENSORS, ck_tensor, media), .how = AT_MOST, .value = CKPT_MEDIA_NPY },
	{ OF(CK_TENSORS, ck_tensor, media), .how = ZERO,
	  WHERE(WITHOUT, ck_tensor, flags, CK_TENSOR_BLOB) },
	{ OF(CK_TENSORS, ck_tensor, zero), .how = ZERO },
	{ OF(CK_PIECES, ck_piece, fp), .how = ZERO, WHERE(WITHOUT, ck_piece, flags, CK_PIECE_FP) },
	{ OF(CK_PIECES, ck_piece, flags), .how = BITS,
	  .value = CK_PIECE_FP | CK_PIECE_DERIVED | CK_PIECE_TRUSTED },
	{ OF(CK_PIECES, ck_piece, place), .how = ZERO },
	/* A hole that has any of these contradicts itself. */
	{ OF(CK_CHUNKS, ck_chunk, codec), .how = ZERO, WHERE(UNEQUAL, ck_chunk, raw_len, 0) },
	{ OF(CK_CHUNKS, ck_chunk, codec_ver), .how = ZERO, WHERE(UNEQUAL, ck_chunk, raw_len, 0) },
	{ OF(CK_CHUNKS, ck_chunk, flags), .how = ZERO, WHERE(UNEQUAL, ck_chunk, raw_len, 0) },
	{ OF(CK_CHUNKS, ck_chunk, source), .how = ONES },
	{ OF(CK_CHUNKS, ck_chunk, base), .how = ONES },
	{ OF(CK_CHUNKS, ck_chunk, stored_crc), .how = ZERO, WHERE(UNEQUAL, ck_chunk, raw_len, 0) },
	{ OF(CK_PARTS, ck_part, kind), .how = AT_MOST, .value = PART_AVERAGE },
	{ OF(CK_PARTS, ck_part, zero), .how = ZERO },
	{ OF(CK_SOURCES, ck_part, kind), .how = AT_MOST, .value = PART_AVERAGE },
	{ OF(CK_SOURCES, ck_part, zero), .how = ZERO },
	{ OF(CK_LINEAGE, ck_lineage, zero), .how = ZERO },
	{ OF(CK_AVERAGES, ck_average, flags), .how = BITS,
	  .value = AVERAGE_KAHAN | AVERAGE_MIXED | AVERAGE_SEEDED },
};

static uint64_t field_number(const uint8_t *rec, uint32_t at, uint32_t bytes)
{
	uint64_t v = 0;

	for (uint32_t i = bytes; i-- > 0;)
		v = v << 8 | rec[at + i];
	return v;
}

static bool rule_applies(const struct rule *r, const uint8_t *rec)
{
	uint64_t v = field_number(rec, r->other_at, r->other_bytes);

	switch (r->where) {
	case ALWAYS:
		return true;
	case WITHOUT:
		return !(v & r->other);
	case EQUAL:
		return v == r->other;
	case UNEQUAL:
		return v != r->other;
	}
	return true;
}

static bool bytes_are(const uint8_t *p, uint32_t n, uint8_t byte)
{
	for (uint32_t i = 0; i < n; i++)
		if (p[i] != byte)
			return false;
	return true;
}

static bool is_known(const struct rule *r, const uint8_t *rec)
{
	const uint8_t *p = rec + r->at;

	switch (r->how) {
	case AT_MOST:
		return field_number(rec, r->at, r->bytes) <= r->value;
	case BITS:
		return !(field_number(rec, r->at, r->bytes) & ~(uint64_t)r->value);
	case ZERO:
		return bytes_are(p, r->bytes, 0);
	case ONES:
		return bytes_are(p, r->bytes, 0xff);
	case DTYPE:
		return dtype_bytes((uint32_t)field_number(rec, r->at, r->bytes)) != 0;
	}
	return true;
}

int native_newer(const struct table_section *section, uint32_t n, struct ckpt_err *err)
{
	for (size_t k = 0; k < ARRAY_LEN(rules); k++) {
		const struct rule *r = &rules[k];

		for (uint32_t i = 0; i < n; i++) {
			const struct table_section *s = &section[i];
			uint64_t count = s->len / r->rec_bytes;

			if (s->kind != r->kind)
				continue;
			if (s->rec_bytes != r->rec_bytes)
				return ckpt_newer(
					err,
					"section of kind %u: records of %u bytes; this program knows "
					"them with %u",
					s->kind, s->rec_bytes, r->rec_bytes);
			for (uint64_t j = 0; j < count; j++) {
				const uint8_t *rec = (const uint8_t *)s->bytes + j * r->rec_bytes;

				if (rule_applies(r, rec) && !is_known(r, rec))
					return ckpt_newer(
						err,
						"section of kind %u, record %llu: a value of '%s' "
						"that this program does not know",
						s->kind, (unsigned long long)j, r->name);
			}
		}
	}
	return 0;
}
