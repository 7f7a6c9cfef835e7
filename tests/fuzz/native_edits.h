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
#include "tests/lib/memdir.h"
#include "tests/fuzz/edits.h"

static struct memdir dir;
static struct memdir_file *target;
static struct edits edits;
static uint8_t
	*kept; /* all but the target's own edits that signing changes is put back from here */
static struct memdir_file *manifest;
static uint8_t *kept_manifest;

static void native_sample(void)
{
	struct ckpt_note note = { "loss", 1.5 };
	struct memdir_opts o = ROW(.mesh = "tp=2,fsdp=1", .job = "fuzz", .seed = 1, .scale = 1,
				   .step = 4, .generation = 1, .seq = 2, .note = &note, .nnote = 1);

	memdir_checkpoint(&dir, &o);
}

static void (*native_make)(void) = native_sample; /* makes dir */

static void native_start(const char *name)
{
	struct ck_tail *t;

	native_make();
	target = memdir_find(&dir, name);
	manifest = memdir_find(&dir, NATIVE_MANIFEST);
	assert(target && manifest);
	kept = malloc(target->len);
	kept_manifest = malloc(manifest->len);
	assert(kept && kept_manifest);
	memcpy(kept, target->bytes, target->len);
	memcpy(kept_manifest, manifest->bytes, manifest->len);
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
	assert(c->table.sealed && c->nfile == c->table.nplace && c->world == c->nfile);
	for (uint32_t i = 0; i < c->nfile; i++) {
		const struct format_file *f = &c->file[i];

		assert(f->nchunk == div_up(f->raw_bytes, 1u << f->chunk_log2));
		for (uint64_t k = 0; k < f->nchunk; k++)
			assert(f->chunk[k].off + f->chunk[k].stored_len <= f->data_end &&
			       f->data_end <= f->file_bytes);
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
		int r = format_native.open_some(&d, native_choose, &bits, &c, &err);

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
	int r = format_native.open(&d, &c, native_fault, &faults, &err);

	assert((r < 0) == (faults > 0) && (r < 0) == !c);
	assert(r == 0 || (err.code == r && *err.msg));
	if (c)
		native_use(c);
	checkpoint_free(c);
	native_try_some(!r);
	r = native_summary(&m, &c, &err);
	assert((r < 0) == !c);
	checkpoint_free(c);
}

static int native_one(const char *name, const uint8_t *data, size_t size)
{
	uint64_t data_end;

	if (!target)
		native_start(name);
	edits_apply(&edits, data, size);
	native_try();
	memdir_sign(&dir, target);
	native_try();
	edits_undo(&edits);
	/* Signing wrote checksums only; the data area, which is most of a part, is as it was. */
	data_end = le64_get(((struct ck_tail *)(kept + target->len - CONTAINER_BLOCK))->data_end);
	memcpy(target->bytes, kept, CONTAINER_BLOCK);
	memcpy(target->bytes + data_end, kept + data_end, target->len - data_end);
	memcpy(manifest->bytes, kept_manifest, manifest->len);
	return 0;
}
#endif
