/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.c - see pairs.h. Called by compare.c.
 * Invariant: a window of the first and its image in the second hold the same elements in the same
 * order.
 */
#include "ckpt/engine/pairs.h"
#include "ckpt/base/util.h"

#define WINDOW (32 * MIB) /* of the larger of the two */

struct sides {
	const struct engine *e;
	const struct opened *a, *b;
	struct move_files files_a, files_b;
	struct pair *pair;
	uint32_t n;
	struct table dst;  /* the tensors as a has them */
	uint32_t *pair_of; /* [tensor of dst] */
	struct ckpt_err *err;
};

uint64_t pairs_bytes(const struct table *a, const struct table *b, const struct pair *pair,
		     uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += a->tensor[pair[i].a].numel *
			 (a->tensor[pair[i].a].elem_bytes + b->tensor[pair[i].b].elem_bytes);
	return bytes;
}

static int set_whole(const struct table_tensor *x, struct arena *a, struct indexset *ret)
{
	uint64_t start[CKPT_DIMS_MAX] = { 0 };

	return indexset_box(x->ndim, start, x->shape, a, ret);
}

/* Destination: every tensor whole, one behind the other. */
static int destination_make(struct sides *s)
{
	const struct table *t = &s->a->ckpt->table;
	struct table_place place = { .name = "what diff reads", .rank = TABLE_NONE };
	uint64_t at = 0;
	int rc;

	for (uint32_t i = 0; i < s->n; i++)
		place.bytes += t->tensor[s->pair[i].a].numel * t->tensor[s->pair[i].a].elem_bytes;
	s->pair_of = calloc((size_t)s->n + 1, sizeof *s->pair_of);
	rc = s->pair_of ? table_add_place(&s->dst, &place, NULL, s->err) : -ENOMEM;
	for (uint32_t i = 0; !rc && i < s->n; i++) {
		struct table_tensor x = t->tensor[s->pair[i].a];
		struct table_piece piece = { .off = at };

		x.layout = TABLE_NONE;
		x.made = 0;
		rc = table_add_tensor(&s->dst, &x, &piece.tensor, s->err);
		if (!rc)
			rc = set_whole(&x, &s->dst.arena, &piece.set);
		if (rc)
			break;
		s->pair_of[piece.tensor] = i;
		rc = table_add_piece(&s->dst, &piece, s->err);
		at += x.numel * x.elem_bytes;
	}
	return rc ? rc : table_seal(&s->dst, s->err);
}

/* As many bytes that the window of the other side stays below WINDOW too. */
static uint64_t window_bytes(const struct sides *s)
{
	uint64_t most = 1;

	for (uint32_t i = 0; i < s->n; i++) {
		const struct table_tensor *x = &s->a->ckpt->table.tensor[s->pair[i].a],
					  *y = &s->b->ckpt->table.tensor[s->pair[i].b];

		most = MAX(most, (uint64_t)div_up(y->elem_bytes, x->elem_bytes));
	}
	return WINDOW / most;
}

static struct pair *pair_of(const struct sides *s, const struct window_cut *cut)
{
	return &s->pair[s->pair_of[s->dst.piece[cut->piece].tensor]];
}

static uint64_t elem_bytes_b(const struct sides *s, const struct window_cut *cut)
{
	return s->b->ckpt->table.tensor[pair_of(s, cut)->b].elem_bytes;
}

/* Tensor i of a window's image, unless it was added for the cut before. */
static int image_tensor(const struct sides *s, const struct window *w, uint32_t i,
			struct table *ret, uint32_t *ret_id)
{
	struct table_tensor y = s->b->ckpt->table.tensor[pair_of(s, &w->cut[i])->b];

	if (i && pair_of(s, &w->cut[i]) == pair_of(s, &w->cut[i - 1]))
		return 0;
	y.layout = TABLE_NONE;
	y.made = 0;
	return table_add_tensor(ret, &y, ret_id, s->err);
}

/* The window's elements as the second has them: the same sets in the same order, one behind the
 * other. */
static int image_make(const struct sides *s, const struct window *w, struct window *ret)
{
	struct table_place place = { .name = "what diff reads", .rank = TABLE_NONE };
	struct table_piece piece = { 0 };
	int rc;

	*ret = (struct window){ .number = w->number };
	for (uint32_t i = 0; i < w->ncut; i++)
		place.bytes += w->cut[i].set.numel * elem_bytes_b(s, &w->cut[i]);
	ret->bytes = place.bytes;
	rc = table_add_place(&ret->table, &place, NULL, s->err);
	for (uint32_t i = 0; !rc && i < w->ncut; i++) {
		rc = image_tensor(s, w, i, &ret->table, &piece.tensor);
		piece.set = w->cut[i].set;
		if (!rc)
			rc = table_add_piece(&ret->table, &piece, s->err);
		piece.off += piece.set.numel * elem_bytes_b(s, &w->cut[i]);
	}
	return rc ? rc : table_seal(&ret->table, s->err);
}

static void window_compare(struct sides *s, const struct window *w, const uint8_t *a,
			   const uint8_t *b)
{
	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct window_cut *cut = &w->cut[i];

		struct pair *pair = pair_of(s, cut);
		uint64_t bytes = cut->set.numel * elem_bytes_b(s, cut);

		/* What has the same bytes need not be taken apart where only that is asked. */
		if (!pair->bits || bytes != cut->len || memcmp(a + cut->buf_off, b, bytes) != 0)
			apart_add(&pair->apart, &cut->set, a + cut->buf_off, b);
		b += bytes;
	}
}

static int window_read(struct sides *s, const struct window *w)
{
	cleanup_free uint8_t *a = malloc(w->bytes + 1), *b = NULL;
	struct window other;
	int rc = image_make(s, w, &other);

	if (!rc)
		b = malloc(other.bytes + 1);
	if (!a || (!rc && !b))
		rc = -ENOMEM;
	if (!rc) {
		rc = move_window(&s->files_a, w, a, s->e->tick, s->e->arg, s->err);
		if (rc && rc != -ECANCELED)
			rc = ckpt_error_prefix(s->err, rc, "%.1000s", s->a->path);
	}
	if (!rc) {
		rc = move_window(&s->files_b, &other, b, s->e->tick, s->e->arg, s->err);
		if (rc && rc != -ECANCELED)
			rc = ckpt_error_prefix(s->err, rc, "%.1000s", s->b->path);
	}
	if (!rc)
		window_compare(s, w, a, b);
	table_free(&other.table);
	return rc;
}

static int windows_read(struct sides *s)
{
	struct windows *windows = NULL;
	struct window w;
	int rc = windows_open(&s->dst, window_bytes(s), &windows, s->err), more;

	while (!rc && (more = windows_next(windows, &w, s->err)) != 0) {
		if (more < 0) {
			rc = more;
			break;
		}
		rc = window_read(s, &w);
		window_free(&w);
	}
	windows_close(windows);
	return rc;
}

int pairs_compare(const struct engine *e, const struct opened *a, const struct opened *b,
		  struct pair *pair, uint32_t n, struct ckpt_err *err)
{
	struct sides s = { .e = e, .a = a, .b = b, .pair = pair, .n = n, .err = err };
	int rc = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct table_tensor *x = &a->ckpt->table.tensor[pair[i].a];

		apart_begin(&pair[i].apart, x->dtype, b->ckpt->table.tensor[pair[i].b].dtype,
			    x->ndim, x->shape);
	}
	if (!n)
		return 0;
	rc = destination_make(&s);
	if (!rc)
		rc = move_open(e->ops, a->fd, a->ckpt, true, e->io, &s.files_a, err);
	if (!rc) {
		rc = move_open(e->ops, b->fd, b->ckpt, true, e->io, &s.files_b, err);
		if (!rc) {
			rc = windows_read(&s);
			move_close(&s.files_b);
		}
		move_close(&s.files_a);
	}
	free(s.pair_of);
	table_free(&s.dst);
	return rc;
}
