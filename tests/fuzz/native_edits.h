/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_edits.h - what fuzz_native_part.c and fuzz_manifest.c share: a small committed checkpoint
 * in memory, one file of which is changed (edits.h), opened as it is, and opened again with all its
 * checksums put right.
 */
#ifndef TESTS_NATIVE_EDITS_H
#define TESTS_NATIVE_EDITS_H
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/handmade.h"
#include "tests/lib/tiles.h"
#include "tests/fuzz/edits.h"
#include <stdio.h>

static struct memdir dir;
static struct memdir_file *target;
static struct edits edits;
static uint8_t *kept[MEMDIR_FILES_MAX]; /* what signing changes in any file is put back from here */

static uint32_t native_tensor(struct table *t, const char *component, const char *of,
			      uint32_t dtype, uint32_t cls, uint32_t layout, uint32_t made,
			      uint32_t role)
{
	const struct handmade_tensor x =
		ROW(.component = component, .name = "w", .of = of, .dtype = dtype, .cls = cls,
		    .role = role, .layout = layout, .made = made, .ndim = 2, .shape = { 8, 3 });

	return handmade_tensor(t, &x);
}

/* Two ranks with parts of each kind: w0000-*-000 is rank 0's const part, -001 its averages, and
 * after those of rank 1 the main ones, -004 and -005. */
static void native_checkpoint(void)
{
	static struct handmade k;
	static const struct ckpt_note note = { "loss", 1.5 };
	static const struct checkpoint_attr attr[2] = { { "git", "cafe" }, { "a", "" } };
	static const uint64_t shape[2] = { 4, 3 }, origin[2];
	struct table_average average =
		ROW(.name = "fast", .schedule = "every=1", .product = 0.5, .last_step = UINT64_MAX);
	struct ckpt_err err;
	struct table t;
	uint32_t x;

	handmade_begin(&k, "fuzz", 4, 2, 0);
	for (uint32_t r = 0; r < 2; r++) {
		const uint64_t at[2] = { 4 * r, 0 };

		handmade_table(&t, "fsdp=2");
		x = native_tensor(&t, "const", "", CKPT_F32, CKPT_CONST,
				  handmade_layout(&t, "Shard(0)@fsdp"), 0, 0);
		handmade_piece(&t, r, x, 0, 0, at, shape);
		(void)handmade_add(&k, r, PART_CONST, 0, &t, NULL, 0);
		handmade_table(&t, "fsdp=2");
		x = table_add_average(&t, &average, NULL, NULL) ? 1 : 0;
		assert(!x);
		x = native_tensor(&t, "ema.fast", "model/w", CKPT_F32, CKPT_STABLE,
				  handmade_layout(&t, "Shard(0)@fsdp"), 1, CKPT_AVERAGE);
		handmade_piece(&t, r, x, 0, 0, at, shape);
		(void)handmade_add(&k, r, PART_AVERAGE, 0, &t, NULL, 0);
	}
	for (uint32_t r = 0; r < 2; r++) {
		const uint64_t at[2] = { 4 * r, 0 };
		const uint32_t source[2] = { 2 * r, 2 * r + 1 };
		const struct handmade_tensor blob =
			ROW(.component = "blob", .name = "rng", .dtype = CKPT_U8,
			    .flags = TENSOR_BLOB, .media = CKPT_MEDIA_JSON, .layout = TABLE_NONE,
			    .rank_ = r + 1, .ndim = 1, .shape = { 4 });
		uint32_t l;

		handmade_table(&t, "fsdp=2");
		l = handmade_layout(&t, "Shard(0)@fsdp");
		x = native_tensor(&t, "model", "", CKPT_F32, CKPT_STABLE, l, 0, 0);
		handmade_piece(&t, r, x, 0, 0, at, shape);
		x = native_tensor(&t, "half", "model/w", CKPT_BF16, CKPT_DERIVED, l, 0, 0);
		handmade_piece(&t, r, x, 2 << 20, PIECE_DERIVED, at, shape);
		(void)native_tensor(&t, "const", "", CKPT_F32, CKPT_CONST, l, 0, 0);
		x = native_tensor(&t, "box", "", CKPT_F32, CKPT_STABLE, TABLE_NONE, 0, 0);
		handmade_piece(&t, r, x, 128, 0, at, shape);
		l = handmade_layout(&t, "Partial(sum, keep)@fsdp");
		x = native_tensor(&t, "grad", "", CKPT_F32, CKPT_STABLE, l, 0, 0);
		handmade_piece(&t, r, x, 256, 0, origin, (const uint64_t[]){ 8, 3 });
		x = handmade_tensor(&t, &blob);
		handmade_piece(&t, r, x, 1 << 20, 0, origin, &blob.shape[0]);
		(void)handmade_add(&k, r, PART_MAIN, 0, &t, source, 2);
	}
	k.line.note = &note;
	k.line.nnote = 1;
	k.line.attr = attr;
	k.line.nattr = 2;
	if (handmade_commit(&k, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	dir = k.d;
	k.d.n = 0;
	handmade_free(&k);
}

static void (*native_make)(void) = native_checkpoint; /* makes dir */

/* name: MANIFEST, or what the name of a part ends in. */
static void native_start(const char *name)
{
	struct ck_tail *t;

	native_make();
	for (uint32_t i = 0; i < dir.n; i++)
		if (strstr(dir.file[i].name, name))
			target = &dir.file[i];
	assert(target);
	for (uint32_t i = 0; i < dir.n; i++) {
		kept[i] = malloc(dir.file[i].len);
		assert(kept[i]);
		memcpy(kept[i], dir.file[i].bytes, dir.file[i].len);
	}
	t = (struct ck_tail *)(target->bytes + target->len - CONTAINER_BLOCK);
	edits_region(&edits, target->bytes, offsetof(struct ck_head, zero) + 8);
	for (uint32_t i = 0; i < le32_get(t->nsect); i++)
		edits_region(&edits, target->bytes + le64_get(t->sect[i].off),
			     le64_get(t->sect[i].len) + 1);
	edits_region(&edits, (uint8_t *)t,
		     offsetof(struct ck_tail, sect) + (le32_get(t->nsect) + 1) * sizeof *t->sect);
}

static void native_fault(void *arg, const struct format_fault *f)
{
	assert(f->kind && f->file && f->tensor && f->text && *f->text);
	*(uint64_t *)arg += strcmp(f->kind, "padding") != 0; /* which fails no open */
}

static void native_use(const struct checkpoint *c)
{
	const char *wrong = tiles_all_wrong(c);

	if (wrong)
		fprintf(stderr, "%s\n", wrong);
	assert(!wrong && c->has & HAS_SUMS);
	assert(c->table.sealed && c->nfile == c->table.nplace && c->world <= c->nfile);
	for (uint32_t i = 0; i < c->nfile; i++) {
		const struct format_file *f = &c->file[i];

		uint64_t at = 0;

		assert(f->nchunk == div_up(f->raw_bytes, 1u << f->chunk_log2));
		for (uint64_t k = 0; k < f->nchunk; k++) {
			const struct chunk *x = &f->chunk[k];

			if (!x->raw_len)
				continue;
			assert(x->off >= at && !x->codec && x->raw_len == x->stored_len);
			at = x->off + x->stored_len;
		}
		for (uint64_t k = 0; k < f->nchunk; k++)
			assert(f->chunk[k].off + f->chunk[k].stored_len <= f->file_bytes);
	}
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];

		struct piece_bytes b = table_piece_bytes(&c->table, p);

		assert(p->len && p->off + p->len <= c->file[p->place].raw_bytes);
		assert(b.len >= p->len && b.off + b.len <= c->file[p->place].raw_bytes);
		if (p->flags & PIECE_DERIVED)
			assert(!p->stride && b.off % 4 == 0 && b.elem == 4);
		assert(p->rank == c->file[p->place].rank);
	}
}

static int native_choose(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)err;
	for (uint32_t i = 0; i < k->world; i++)
		needed[i] = *(uint32_t *)arg >> i & 1;
	return 0;
}

/* Of a checkpoint that is whole any parts can be opened. */
static void native_try_some(bool whole)
{
	struct source_dir d = memdir_source(&dir);
	struct checkpoint *c;
	struct ckpt_err err;

	for (uint32_t bits = 0; bits < 4; bits++) {
		int r = format_native.open(&(struct format_open){ .dir = &d,
								  .choose = native_choose,
								  .choose_arg = &bits },
					   &c, &err);

		assert((r < 0) == !c && (!whole || !r));
		assert(r == 0 || (err.code == r && *err.msg));
		checkpoint_free(c);
	}
}

static void native_try(void)
{
	struct source_dir d = memdir_source(&dir);
	struct source m = memdir_open(&dir, NATIVE_MANIFEST);
	struct checkpoint *c;
	struct ckpt_err err;
	uint64_t faults = 0;
	int r = format_native.open(
		&(struct format_open){ .dir = &d, .fault = native_fault, .fault_arg = &faults }, &c,
		&err);

	assert((r < 0) == (faults > 0) && (r < 0) == !c);
	assert(r == 0 || (err.code == r && *err.msg));
	if (c)
		native_use(c);
	checkpoint_free(c);
	native_try_some(!r);
	r = format_native.root->summary(&m, &c, &err);
	assert((r < 0) == !c);
	checkpoint_free(c);
}

static int native_one(const char *name, const uint8_t *data, size_t size)
{
	if (!target)
		native_start(name);
	edits_apply(&edits, data, size);
	native_try();
	memdir_sign(&dir, target);
	native_try();
	edits_undo(&edits);
	for (uint32_t i = 0; i < dir.n; i++) /* small: the data are a few bytes */
		memcpy(dir.file[i].bytes, kept[i], dir.file[i].len);
	return 0;
}
#endif
