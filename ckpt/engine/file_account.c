/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_account.c - see file_account.h. Pure: from chunk maps and pieces, no file is opened.
 * Invariant: the three sums of a file are exactly its size, whatever its chunk map says.
 */
#include "ckpt/engine/file_account.h"
#include "ckpt/base/util.h"

static int count_pieces(const struct checkpoint *k, struct file_account *a)
{
	const struct table *t = &k->table;
	cleanup_free uint32_t *last = calloc((size_t)k->nfile + 1, sizeof *last); /* tensor + 1 */

	if (!last)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];

		if (p->place >= k->nfile)
			continue;
		a[p->place].pieces++;
		if (!(p->flags & PIECE_DERIVED))
			a[p->place].piece_bytes += p->set.numel * t->tensor[p->tensor].elem_bytes;
		/* Pieces stand in the order of their tensors. */
		a[p->place].tensors += last[p->place] != p->tensor + 1;
		last[p->place] = p->tensor + 1;
	}
	return 0;
}

/* Raw chunks store what lies between pieces too: that is padding. Of a coded chunk all counts as
 * data. */
static void count_chunks(const struct format_file *f, struct file_account *a)
{
	uint64_t stored = 0, raw = 0, area = 0;
	bool coded = false;

	for (uint64_t i = 0; i < f->nchunk; i++) {
		const struct chunk *c = &f->chunk[i];
		uint64_t from = i << f->chunk_log2;

		if (!c->raw_len && from < f->raw_bytes)
			a->hole_bytes += MIN((uint64_t)1 << f->chunk_log2, f->raw_bytes - from);
		stored += c->stored_len;
		raw += c->raw_len;
		coded |= c->codec != CODEC_RAW;
	}
	if (!f->chunk)
		stored = raw = f->raw_bytes;
	if (!coded && raw > a->piece_bytes)
		stored -= MIN(stored, raw - a->piece_bytes);
	for (uint64_t i = 0; i < f->nrange; i++)
		if (f->range[i].kind == RANGE_DATA ||
		    (f->range[i].kind == RANGE_ZERO && f->range[i].sum != SUM_OPEN))
			area += f->range[i].len;
	if (!f->chunk && !area) /* a format that does not say where its data begin */
		area = MIN(a->piece_bytes, f->file_bytes);
	a->data = MIN(stored, area);
	a->padding = area - a->data;
	a->metadata = f->file_bytes - a->data - a->padding;
}

int file_account_make(const struct checkpoint *k, struct file_account **ret, uint64_t *ret_other)
{
	struct file_account *a = calloc((size_t)k->nfile + 1, sizeof *a);
	uint64_t sum = 0;

	if (!a || count_pieces(k, a)) {
		free(a);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < k->nfile; i++) {
		count_chunks(&k->file[i], &a[i]);
		sum += k->file[i].file_bytes;
	}
	*ret = a;
	*ret_other = k->stored_bytes > sum ? k->stored_bytes - sum : 0;
	return 0;
}
