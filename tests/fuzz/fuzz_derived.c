/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_derived.c - a changed part with tensors that are derived, with wrong and with right
 * checksums: it is refused with faults; or every derived piece has its twin, and a plan that reads
 * it stays inside the file. */
#include "ckpt/plan/plan.h"
#include "tests/fuzz/native_edits.h"
#include "tests/lib/handmade.h"
#include <stdio.h>

static const uint64_t origin[2] = { 0, 0 };

/* A master in two pieces, and what is derived of it: one has no bytes, one has some. */
static void derived_make(void)
{
	static struct handmade p;
	const uint64_t first[2] = { 2, 4 }, second[2] = { 4, 4 }, at[2] = { 2, 0 };
	struct ckpt_err err;
	struct table t;
	uint32_t m, h, f, other;

	handmade_begin(&p, "fuzz", 5, 1, 0);
	handmade_table(&t, NULL);
	m = handmade_tensor(&t, &(struct handmade_tensor){ .component = "o",
							   .name = "w",
							   .of = "",
							   .dtype = CKPT_F32,
							   .layout = TABLE_NONE,
							   .ndim = 2,
							   .shape = { 6, 4 } });
	h = handmade_tensor(&t, &(struct handmade_tensor){ .component = "m",
							   .name = "h",
							   .of = "o/w",
							   .dtype = CKPT_BF16,
							   .cls = CKPT_DERIVED,
							   .layout = TABLE_NONE,
							   .ndim = 2,
							   .shape = { 6, 4 } });
	f = handmade_tensor(&t, &(struct handmade_tensor){ .component = "m",
							   .name = "f",
							   .of = "o/w",
							   .dtype = CKPT_F16,
							   .cls = CKPT_DERIVED,
							   .layout = TABLE_NONE,
							   .ndim = 2,
							   .shape = { 6, 4 } });
	other = handmade_tensor(&t, &(struct handmade_tensor){ .component = "m",
							       .name = "u",
							       .of = "",
							       .dtype = CKPT_U16,
							       .layout = TABLE_NONE,
							       .ndim = 2,
							       .shape = { 2, 4 } });
	handmade_piece(&t, 0, m, 0, 0, origin, first);
	handmade_piece(&t, 0, m, 1024, 0, at, second);
	handmade_piece(&t, 0, h, 2 << 20, PIECE_DERIVED, origin, first);
	handmade_piece(&t, 0, h, (2 << 20) + 64, PIECE_DERIVED, at, second);
	handmade_piece(&t, 0, f, 3 << 20, PIECE_DERIVED, origin, first);
	handmade_piece(&t, 0, f, (3 << 20) + 64, 0, at, second);
	handmade_piece(&t, 0, other, (3 << 20) + 512, 0, origin, first);
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
	assert(handmade_commit(&p, &err) == 0);
	dir = p.d;
}

static void nothing_make(void)
{
}

/* A plan for all that the file has touches no byte that it has not. */
static void derived_plan(void)
{
	struct source_dir d = memdir_source(&dir);
	struct table_place place = { .name = "memory", .bytes = INT64_MAX };
	struct table dst = { 0 };
	struct checkpoint *c;
	struct ckpt_err err;
	struct plan p;
	uint64_t at = 0;

	if (format_native.open(&(struct format_open){ .dir = &d }, &c, &err) < 0)
		return;
	assert(table_add_place(&dst, &place, NULL, NULL) == 0);
	for (uint32_t i = 0; i < c->table.ntensor; i++) {
		struct table_tensor x = c->table.tensor[i];
		struct table_piece y = { .off = at };
		struct arena a = { 0 };

		x.layout = TABLE_NONE;
		x.made = 0;
		assert(x.numel < UINT64_C(1) << 40);
		assert(indexset_box(x.ndim, (const uint64_t[16]){ 0 }, x.shape, &a, &y.set) == 0);
		assert(table_add_tensor(&dst, &x, &y.tensor, NULL) == 0);
		assert(table_add_piece(&dst, &y, NULL) == 0);
		at += x.numel * x.elem_bytes;
		arena_free(&a);
	}
	assert(table_seal(&dst, NULL) == 0);
	if (plan_make(&c->table, &dst, &(struct plan_opts){ .memory_blobs = true }, &p, NULL,
		      &err) == 0) {
		for (uint64_t i = 0; i < p.nop; i++) {
			const struct format_file *f = &c->file[p.op[i].src_place];
			struct plan_cursor at_row;
			struct plan_row r;

			plan_rows(&p, &p.op[i], &at_row);
			while (plan_row_next(&at_row, &r)) {
				assert(r.src_off + plan_row_src_bytes(&r) <= f->raw_bytes);
				assert(r.src_off >= p.op[i].src_lo &&
				       r.src_off + plan_row_src_bytes(&r) <= p.op[i].src_hi);
				assert(r.dst_off + r.len <= at);
			}
		}
		plan_free(&p);
	}
	table_free(&dst);
	checkpoint_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char name[40];

	if (!target) {
		derived_make();
		native_make = nothing_make;
		for (uint32_t i = 0; i < dir.n; i++)
			if (strcmp(dir.file[i].name, NATIVE_MANIFEST) != 0)
				snprintf(name, sizeof name, "%s", dir.file[i].name);
	}
	native_one(name, data, size);
	edits_apply(&edits, data, size);
	memdir_sign(&dir, target);
	derived_plan();
	return native_one(name, data, 0);
}
