/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links.c - see links.h. Invariant: uses of a file is how often its index stands in use[0..nuse), and at
 * least half of the slots are free.
 */
#include "ckpt/store/links.h"
#include <stdlib.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

static uint32_t slot_of(const struct links *l, uint64_t dev, uint64_t ino)
{
	uint64_t h = (dev * UINT64_C(0x9e3779b97f4a7c15)) ^ ino;
	uint32_t i;

	h = (h ^ h >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
	for (i = (uint32_t)(h >> 32) & (l->nslot - 1); l->slot[i]; i = (i + 1) & (l->nslot - 1)) {
		const struct link_file *f = &l->file[l->slot[i] - 1];

		if (f->dev == dev && f->ino == ino)
			break;
	}
	return i;
}

/* Room for one file more. */
static int slots_grow(struct links *l)
{
	uint32_t n = l->nslot ? 2 * l->nslot : 64;
	struct link_file *file;
	uint32_t *slot;

	if (2 * (l->nfile + 1) <= l->nslot)
		return 0;
	file = reallocarray(l->file, n / 2, sizeof *file);
	if (!file)
		return -ENOMEM;
	l->file = file;
	slot = calloc(n, sizeof *slot);
	if (!slot)
		return -ENOMEM;
	free(l->slot);
	l->slot = slot;
	l->nslot = n;
	for (uint32_t i = 0; i < l->nfile; i++)
		slot[slot_of(l, l->file[i].dev, l->file[i].ino)] = i + 1;
	return 0;
}

/* At powers of two there is no room for another one. */
static int use_grow(struct links *l)
{
	uint32_t *use;

	if (l->nuse & (l->nuse - 1))
		return 0;
	use = reallocarray(l->use, l->nuse ? 2 * (size_t)l->nuse : 1, sizeof *use);
	if (!use)
		return -ENOMEM;
	l->use = use;
	return 0;
}

int links_add(struct links *l, const struct io_stat *st)
{
	uint32_t at;

	if (!st->ino || MUTANT(LINKED_BYTES_TWICE))
		return 0;
	/* The last name of a file whose others were seen, and have gone since. */
	if (st->nlink < 2 && !(l->nfile && l->slot[slot_of(l, st->dev, st->ino)]))
		return 0;
	if (slots_grow(l) || use_grow(l))
		return -ENOMEM;
	at = slot_of(l, st->dev, st->ino);
	if (!l->slot[at]) {
		l->file[l->nfile++] = (struct link_file){
			.dev = st->dev, .ino = st->ino, .bytes = st->bytes, .nlink = st->nlink
		};
		l->slot[at] = l->nfile;
	}
	l->use[l->nuse++] = l->slot[at] - 1;
	l->file[l->slot[at] - 1].uses++;
	return 0;
}

void links_cut(struct links *l, uint32_t first)
{
	while (l->nuse > first)
		l->file[l->use[--l->nuse]].uses--;
}

uint64_t links_shared(const struct links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++)
		bytes += l->file[l->use[i]].uses > 1 ? l->file[l->use[i]].bytes : 0;
	return bytes;
}

static uint64_t kept(const struct link_file *f)
{
	return f->uses && f->uses < f->nlink ? f->bytes : 0;
}

uint64_t links_kept(const struct links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++)
		bytes += kept(&l->file[l->use[i]]);
	return bytes;
}

uint64_t links_kept_once(const struct links *l)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < l->nfile; i++)
		bytes += kept(&l->file[i]);
	return bytes;
}

uint64_t links_repeated(struct links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++) {
		struct link_file *f = &l->file[l->use[i]];

		bytes += f->counted ? f->bytes : 0;
		f->counted = true;
	}
	return bytes;
}

void links_free(struct links *l)
{
	free(TAKE(l->file));
	free(TAKE(l->slot));
	free(TAKE(l->use));
	*l = (struct links){ 0 };
}
