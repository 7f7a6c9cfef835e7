/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_declaration.c - what a trainer sends with DECLARE: a container of kind DECLARATION that the
 * daemon decodes, plans, and then copies by, out of the trainer's memory into its own. Bits 2-3 of
 * the first byte (container_edits.h) say how much memory the rank had sent. What is accepted is
 * carried out between buffers of exactly the sizes that were said, so that a byte beyond is seen;
 * and the lengths of blobs, which the trainer may change at any time, are whatever the input says.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "daemon/state.h"
#include "tests/fuzz/container_edits.h"

static uint8_t *memory; /* exactly the rank's segment */
static uint64_t memory_bytes;

/* A tensor of 4 x 4 bytes in two boxes, alike on the first mesh or alone, at byte *at on. */
static int boxes_add(struct table *t, bool alone, uint64_t *at)
{
	static const uint64_t shape[] = { 4, 4 }, half[] = { 2, 4 };
	struct layout l = { .mode = CKPT_BOXES };
	struct table_tensor x = ROW(.component = "optim", .name = alone ? "alone" : "alike",
				    .of = "", .dtype = CKPT_U8, .layout = TABLE_NONE,
				    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct table_piece p = { .rank = 0 };
	struct arena a = { 0 };
	int r = alone ? 0 : table_add_layout(t, &l, &x.layout, NULL);

	r = r ? r : table_add_tensor(t, &x, &p.tensor, NULL);
	for (uint64_t row = 0; row < 4 && !r; row += 2, *at += 8) {
		p.off = *at;
		r = indexset_box(2, (const uint64_t[]){ row, 0 }, half, &a, &p.set);
		r = r ? r : table_add_piece(t, &p, NULL);
	}
	arena_free(&a);
	return r;
}

/* The sample's declaration and two tensors in boxes, its blobs with the room for their lengths that
 * the library gives them. */
static void declaration_make(const struct sample *s, struct table *t)
{
	uint64_t more = s->mem_bytes, zero = 0;
	uint32_t id;
	int r = 0;

	for (uint32_t i = 0; i < s->decl.nmesh && !r; i++)
		r = table_add_mesh(t, &s->decl.mesh[i], &id, NULL);
	for (uint32_t i = 0; i < s->decl.nlayout && !r; i++)
		r = table_add_layout(t, &s->decl.layout[i], &id, NULL);
	r = r ? r
	      : table_add_place(t,
				&(struct table_place){
					.name = "seg", .bytes = more + 4096, .rank = s->rank },
				&id, NULL);
	for (uint32_t i = 0; i < s->decl.ntensor && !r; i++) {
		struct table_tensor x = s->decl.tensor[i];
		bool blob = x.flags & TENSOR_BLOB;
		uint64_t cap = blob ? x.numel + 64 : 0;
		struct table_piece p;
		struct arena a = { 0 };

		if (blob)
			x.shape = &cap;
		r = table_add_tensor(t, &x, &id, NULL);
		for (uint32_t k = s->decl.first[i]; k < s->decl.first[i + 1] && !r; k++) {
			p = s->decl.piece[k];
			p.tensor = id;
			p.place = 0;
			if (blob) {
				p.off = more;
				more += cap;
				r = indexset_box(1, &zero, &cap, &a, &p.set);
			}
			r = r ? r : table_add_piece(t, &p, NULL);
		}
		arena_free(&a);
	}
	for (int alone = 0; alone < 2 && !r; alone++)
		r = boxes_add(t, alone, &more);
	r = r ? r : table_seal(t, NULL);
	assert(!r && more <= s->mem_bytes + 4096);
	memory_bytes = s->mem_bytes + 4096;
}

static void start(void)
{
	static const char attributes[] = "ckpt.alias:model/b\0model/a\0git\0cafe\0";
	struct container_info info = { .kind = CONTAINER_DECLARATION };
	struct table_section s[TABLE_SECTIONS_MAX];
	struct container_bytes sect[TABLE_SECTIONS_MAX + 1];
	struct arena a = { 0 };
	struct table t = { 0 };
	struct sample x;
	uint64_t len;
	uint32_t n;
	void *bytes;
	int r = sample_make("fsdp=2", 0, 1, 1, &x);

	assert(!r);
	declaration_make(&x, &t);
	r = table_encode(&t, true, &a, s, &n, NULL);
	assert(!r);
	for (uint32_t i = 0; i < n; i++)
		sect[i] = (struct container_bytes)ROW(.kind = s[i].kind,
						      .rec_bytes = s[i].rec_bytes, .p = s[i].bytes,
						      .len = s[i].len, .count = s[i].count);
	sect[n++] = (struct container_bytes)ROW(.kind = WIRE_ATTRIBUTES, .rec_bytes = 1,
						.p = attributes, .len = sizeof attributes - 1);
	r = container_encode(&info, sect, n, &bytes, &len, NULL);
	assert(!r);
	container_start(bytes, len);
	memory = calloc(1, memory_bytes);
	assert(memory);
	table_free(&t);
	arena_free(&a);
	sample_free(&x);
}

static uint64_t part_bytes(const struct decl *d)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < d->part.npiece; i++) {
		const struct table_piece *p = &d->part.piece[i];

		assert(p->off + p->len >= p->off && p->off + p->len <= d->raw_bytes);
		n = MAX(n, p->off + p->len);
	}
	return n;
}

/* What the daemon does with one that it has taken. */
static void carry_out(const struct decl *d, const uint8_t *data, size_t size)
{
	struct table now;
	uint64_t bytes = part_bytes(d);
	uint8_t *slot;
	void *to;

	assert(d->raw_bytes >= d->part.place[0].bytes);
	if (bytes > 64 * MIB)
		return;
	/* That what lies behind the last piece is never written is more than it promises, but
	 * so. */
	slot = malloc(bytes + 1);
	assert(slot);
	to = slot;
	assert(move_copy(&d->copy, d->base, &to, NULL, NULL) <= 0);
	for (uint32_t i = 0; i < d->part.npiece && size; i++) /* the trainer scribbles */
		memcpy(slot + d->part.piece[i].off, data, MIN(d->part.piece[i].len, size));
	if (decl_slot_now(d, slot, false, &now, NULL) == 0) {
		for (uint32_t i = 0; i < now.npiece; i++)
			assert(now.piece[i].off + now.piece[i].len <= d->part.place[0].bytes);
		table_free(&now);
	}
	for (uint32_t kind = PART_MAIN; kind <= PART_CONST; kind++) {
		uint64_t at = kind == PART_CONST ? d->const_at : 0;

		if (!decl_part(d, kind))
			continue;
		assert(at + decl_part(d, kind)->place[0].bytes <= d->raw_bytes);
		assert((const uint8_t *)decl_part_raw(d, kind, slot) == slot + at);
		if (decl_part_now(d, kind, slot, &now, NULL) < 0)
			continue;
		for (uint32_t i = 0; i < now.npiece; i++)
			assert(kind == PART_MAIN ||
			       now.tensor[now.piece[i].tensor].cls == CKPT_CONST);
		table_free(&now);
	}
	free(slot);
}

struct input {
	const uint8_t *data;
	size_t size;
};

static void take(void *arg, const void *bytes, uint64_t len)
{
	const struct input *in = arg;
	uint64_t sent = memory_bytes >> (in->data[0] >> 2 & 3);
	struct segment *seg = calloc(1, sizeof *seg);
	struct names *names = names_new();
	struct ckpt_err err = { 0 };
	struct decl *d;

	assert(seg && names);
	*seg = (struct segment){ .refs = 1, .base = memory, .bytes = sent };
	seg->refs = 2; /* ours stays: the memory is not to be unmapped */
	if (decl_make(bytes, len, 1, 0, 0, &seg, 1, names, &d, &err) == 0) {
		carry_out(d, in->data, in->size);
		decl_unref(d);
	} else {
		assert(err.code < 0 && err.msg[0]);
	}
	names_unref(names);
	assert(seg->refs == 2);
	free(seg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!kept)
		start();
	if (size > 0)
		container_one(data, size, take, &(struct input){ data, size });
	return 0;
}
