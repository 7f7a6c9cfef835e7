/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_links.c - see file_links.h. Invariant: uses of a file is how often its index stands in
 * use[0..nuse).
 */
#include "ckpt/store/file_links.h"
#include <stdlib.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

static uint64_t link_key(const struct io_stat *st)
{
	return key_hash(st->dev, &st->ino, sizeof st->ino);
}

static uint32_t link_find(const struct file_links *l, const struct io_stat *st)
{
	uint64_t hash = link_key(st);

	for (uint32_t at = 0, i; (i = keymap_next(&l->found, hash, &at)) != KEYMAP_NONE;)
		if (l->file[i].dev == st->dev && l->file[i].ino == st->ino)
			return i;
	return KEYMAP_NONE;
}

int file_links_add(struct file_links *l, const struct io_stat *st)
{
	uint32_t at;

	if (!st->ino || MUTANT(LINKED_BYTES_TWICE))
		return 0;
	at = link_find(l, st);
	/* The last name of a file whose others were seen, and have gone since. */
	if (st->nlink < 2 && at == KEYMAP_NONE)
		return 0;
	if (!ARRAY_GROW(l->file, l->nfile, l->cap) || !ARRAY_GROW(l->use, l->nuse, l->use_cap) ||
	    keymap_reserve(&l->found, &l->arena, 1))
		return -ENOMEM;
	if (at == KEYMAP_NONE) {
		at = l->nfile++;
		l->file[at] = (struct link_file){
			.dev = st->dev, .ino = st->ino, .bytes = st->bytes, .nlink = st->nlink
		};
		keymap_put(&l->found, link_key(st), at);
	}
	l->use[l->nuse++] = at;
	l->file[at].uses++;
	return 0;
}

void file_links_cut(struct file_links *l, uint32_t first)
{
	while (l->nuse > first)
		l->file[l->use[--l->nuse]].uses--;
}

uint64_t file_links_shared(const struct file_links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++)
		bytes += l->file[l->use[i]].uses > 1 ? l->file[l->use[i]].bytes : 0;
	return bytes;
}

static uint64_t bytes_kept(const struct link_file *f)
{
	return f->uses && f->uses < f->nlink ? f->bytes : 0;
}

uint64_t file_links_kept(const struct file_links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++)
		bytes += bytes_kept(&l->file[l->use[i]]);
	return bytes;
}

uint64_t file_links_kept_once(const struct file_links *l)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < l->nfile; i++)
		bytes += bytes_kept(&l->file[i]);
	return bytes;
}

uint64_t file_links_repeated(struct file_links *l, uint32_t first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = first; i < first + n; i++) {
		struct link_file *f = &l->file[l->use[i]];

		bytes += f->counted ? f->bytes : 0;
		f->counted = true;
	}
	return bytes;
}

void file_links_free(struct file_links *l)
{
	free(TAKE(l->file));
	arena_free(&l->arena);
	free(TAKE(l->use));
	*l = (struct file_links){ 0 };
}
