// SPDX-License-Identifier: Apache-2.0
// constant.c - does the slot still hold the bytes of the const part that was written? Of each step
// that would link the part, some bytes are compared: words from all of it, and one MiB after the
// other. Called by persist, in the thread that writes the job's steps.
// Invariant: a part whose bytes could not be remembered is not linked; a step reads one MiB of each
// rank, and more only if something has changed.
#include "ckpt/base/mutant.h"
#include "daemon/state.h"
#include <stdio.h>
#include <sys/random.h>

#define WORDS_SPREAD 512u /* anywhere in the part's pieces, each byte as likely as any other */
#define WORDS_PIECES 512u /* one of each piece; of more pieces, of so many of them */

static uint64_t random_draw(uint64_t *rng)
{
	uint64_t z = *rng += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static uint64_t word_at(const struct const_word *w, const uint8_t *raw)
{
	uint64_t v = 0;

	memcpy(&v, raw + w->off, w->len);
	return v;
}

/* The word at this byte of the piece, or its last one. */
static struct const_word word_of(const struct table *t, uint32_t piece, uint64_t at,
				 const uint8_t *raw)
{
	const struct table_piece *p = &t->piece[piece];
	struct const_word w = { .piece = piece, .len = (uint32_t)MIN(p->len, UINT64_C(8)) };

	w.off = p->off + MIN(at, p->len - w.len);
	w.was = word_at(&w, raw);
	return w;
}

/* The words are at random places, so a change with a regular pattern is found as likely as any
 * other. */
static void words_take(struct const_part *c, const uint8_t *raw)
{
	const struct table *t = &c->table;
	uint32_t npiece = MIN(t->npiece, WORDS_PIECES), n = 0;
	uint64_t rng = 0, all = 0, before = 0, at;

	(void)!getrandom(&rng, sizeof rng, 0);
	for (uint32_t i = 0; i < t->npiece; i++)
		all += t->piece[i].len;
	for (uint32_t i = 0; i < npiece; i++) {
		uint32_t piece = (uint32_t)((uint64_t)i * t->npiece / npiece);

		c->word[n++] = word_of(t, piece, random_draw(&rng) % t->piece[piece].len, raw);
	}
	/* One of each of as many equal shares of the bytes: so they come in the pieces' order. */
	for (uint32_t i = 0, piece = 0; i < WORDS_SPREAD && all; i++) {
		uint64_t from = all / WORDS_SPREAD * i, share = all / WORDS_SPREAD;

		at = from +
		     random_draw(&rng) % (i + 1 < WORDS_SPREAD ? MAX(share, 1u) : all - from);
		for (; at - before >= t->piece[piece].len; piece++)
			before += t->piece[piece].len;
		c->word[n++] = word_of(t, piece, at - before, raw);
	}
	c->nword = n;
}

void const_part_free(struct const_part *c)
{
	table_free(&c->table);
	const_file_free(&c->file);
	decl_slot_unref(TAKE(c->decl));
	free(TAKE(c->chunk));
	free(TAKE(c->word));
	c->nchunk = c->nword = 0;
	c->set = false;
}

int const_part_take(struct const_part *c, const void *raw, uint64_t step)
{
	c->next = 0;
	c->words_right = step;
	for (uint64_t i = 0; i < c->nchunk; i++)
		c->chunk[i].right = step;
	free(c->word);
	c->nword = 0;
	c->word = malloc((WORDS_SPREAD + WORDS_PIECES) * sizeof *c->word);
	if (!c->word || !c->chunk)
		return -ENOMEM;
	words_take(c, raw);
	return 0;
}

/* The first piece of the chunk that is another one now; TABLE_NONE: only bytes of no piece are. */
static uint32_t changed_in(const struct const_part *c, uint64_t chunk, const uint8_t *raw)
{
	uint64_t from = chunk << CHUNK_LOG2, to = from + c->chunk[chunk].raw_len;

	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];

		if (p->off < to && p->off + p->len > from &&
		    move_fingerprint(&c->table, p, raw + p->off) != p->fp)
			return i;
	}
	return TABLE_NONE;
}

static uint32_t words_compare(struct const_part *c, const uint8_t *raw, uint64_t step,
			      uint64_t *ret_right)
{
	for (uint32_t i = 0; i < c->nword; i++)
		if (word_at(&c->word[i], raw) != c->word[i].was) {
			*ret_right = c->words_right;
			return c->word[i].piece;
		}
	c->words_right = step;
	return TABLE_NONE;
}

static uint32_t chunk_compare(struct const_part *c, const uint8_t *raw, uint64_t step,
			      uint64_t *ret_right)
{
	struct const_chunk *k;
	struct hash128 h;
	uint64_t i = c->next;
	uint32_t piece = TABLE_NONE;

	if (!c->nchunk)
		return TABLE_NONE;
	k = &c->chunk[i];
	c->next = (i + 1) % c->nchunk;
	h = hash128(raw + (i << CHUNK_LOG2), k->raw_len);
	if (k->raw_len && memcmp(&h, &k->sum, sizeof h) != 0)
		piece = changed_in(c, i, raw);
	*ret_right = k->right;
	if (piece == TABLE_NONE)
		k->right = step;
	return piece;
}

uint32_t const_part_changed(struct const_part *c, const void *raw, uint64_t step,
			    uint64_t *ret_right)
{
	uint32_t piece = words_compare(c, raw, step, ret_right);

	if (piece == TABLE_NONE)
		piece = chunk_compare(c, raw, step, ret_right);
	return piece == TABLE_NONE || MUTANT(CONST_CHANGE_UNSEEN) ? TABLE_NONE
								  : c->table.piece[piece].tensor;
}

/* What a refusal says without the names of the step and the part. */
bool const_refusal_new(struct launch *l, const char *part, const struct ckpt_err *err)
{
	const char *at = strstr(err->msg, part);
	uint64_t key;

	at = at ? at + strlen(part) : strerror(-err->code);
	key = hash_word(hash128(at, strlen(at)));
	for (uint32_t i = 0; i < MIN(l->nrefusal, REFUSALS_MAX); i++)
		if (l->refusal[i] == key)
			return false;
	l->refusal[l->nrefusal++ % REFUSALS_MAX] = key;
	return true;
}
