// SPDX-License-Identifier: Apache-2.0
// land.c - a restore into memory that only its own process may write: through two windows per rank,
// which workers fill in turn and the library empties (wire/wire.h, LANDED). Called by restore;
// workers fill windows, all else belongs to the owner.
// Invariants: from LANDED of a window to its LAND ckptd does not write to it; each window is
// planned from the tensors that lie in it alone; the windows are the only memory that this takes.
#include "daemon/restore.h"
#include "ckpt/base/mutant.h"
#include "ckpt/plan/window.h"
#include "ckpt/spread/spread.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#define LANDING_BYTES (64 * MIB) /* of a window, its rows included */
#define ROWS_MAX (1u << 16)	 /* of one LANDED: 4 MiB */
#define ROWS_MIN 1024u

/* --- the windows of a rank: they last as long as its ckpt_restore --- */
void landing_free(struct landing *k)
{
	for (uint32_t i = 0; k && i < 2; i++) {
		if (k->map[i])
			munmap(k->map[i], k->bytes);
		if (k->fd[i] >= 0)
			(void)close(k->fd[i]);
	}
	free(k);
}

static struct landing *landing_new(void)
{
	struct landing *k = calloc(1, sizeof *k);

	if (k)
		k->fd[0] = k->fd[1] = -1;
	return k;
}

/* As large as what can be in it, for most memory of small processes fits into less than a
 * window. */
static int landing_open(struct landing *k, uint64_t own_bytes, uint32_t npiece, uint64_t most,
			struct ckpt_err *err)
{
	uint64_t data = own_bytes + own_bytes / 8 + 64 * KIB, rows, all;
	int rc = 0;

	if (k->bytes)
		return 0;
	npiece = MIN(npiece, ROWS_MAX);
	k->rows_max = MAX(ROWS_MIN, npiece);
	rows = k->rows_max * sizeof(struct wire_row);
	all = rows + MIN(data, most - rows);
	k->bytes = align_up(all, 4096);
	for (uint32_t i = 0; i < 2 && rc == 0; i++) {
		void *map = NULL;

		rc = wire_memfd_map("ckptd-landing", k->bytes, &k->fd[i], &map, err);
		k->map[i] = map;
	}
	return rc;
}

static uint64_t data_at(const struct landing *k)
{
	return k->rows_max * sizeof(struct wire_row);
}

/* --- what goes through them --- */
enum window_state {
	WINDOW_FREE,
	WINDOW_FILLING,
	WINDOW_FULL, /* to be sent */
	WINDOW_SENT,
	WINDOW_MORE, /* emptied, and there are rows that did not fit */
};

struct landing_window { /* a task's, while its state is FILLING */
	uint32_t nrow;
	struct window w;
	/* Rows, from where they are resumed: those of row-major pieces, then those of a plan */
	uint32_t cut;
	struct table at; /* the cuts in memory with strides */
	struct plan rows;
	uint64_t op;
	bool in_op, same, has_next, has_last; /* same: as the row before it, of one piece */
	struct plan_cursor cursor;
	struct wire_row next, last; /* next had no space; last may still grow */
};

struct landing_source {
	uint32_t rank;
	const struct decl *d;
	struct table own;	    /* of it what is restored, row-major, in one place */
	uint32_t *piece, piece_cap; /* [own.npiece] of d->table */
	const struct wire_restore *want;
	struct table missing; /* WIRE_MISSING: these parts alone */
	bool partial;	      /* pending reductions that stay what they are: layouts matter */
	uint64_t filled;      /* windows so far */
	bool running, end;    /* end: none is left to fill */
	struct windows *ws;
	struct landing_window window[2];
	enum window_state state[2]; /* the owner's */
	uint64_t number[2];	    /* the same: in the order in which they were filled */
};

static void window_clear(struct landing_window *w)
{
	plan_free(&w->rows);
	table_free(&w->at);
	window_free(&w->w);
	*w = (struct landing_window){ 0 };
}

void landing_source_free(struct landing_source *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < 2; i++)
		window_clear(&s->window[i]);
	windows_close(s->ws);
	table_free(&s->own);
	table_free(&s->missing);
	free(s->piece);
	free(s);
}

static bool has_own(const struct decl *d, uint32_t tensor)
{
	const struct table *t = &d->table;

	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++)
		if (t->piece[i].place == d->own)
			return true;
	return false;
}

/* What a restore takes of a tensor: parts of it, or with n = ALL_OF_IT all pieces of the rank. */
struct share {
	uint32_t n;
	struct indexset owned;
	const struct table_piece *piece; /* [n]; NULL: `owned` alone */
};
#define ALL_OF_IT UINT32_MAX

/* What the rank reads of a tensor for all that hold it. */
static int share_owned(const struct landing_source *s, uint32_t tensor, struct arena *a,
		       struct share *ret)
{
	const struct table *t = &s->d->table;
	const struct table_tensor *x = &t->tensor[tensor], *as = table_owned_as(t, x);
	const struct layout *l;
	uint32_t coord[CKPT_DIMS_MAX];

	if (!spread_divides(t, x))
		return 0;
	l = &t->layout[x->layout];
	if (!mesh_coord(&t->mesh[l->mesh], s->rank, coord))
		return 0;
	ret->n = 1;
	return layout_owned(&t->mesh[l->mesh], l, x->ndim, x->shape, coord, as->elem_bytes,
			    as->component, as->name, a, &ret->owned);
}

static int share_make(const struct landing_source *s, uint32_t tensor, struct arena *a,
		      struct share *ret)
{
	const struct table_tensor *x = &s->d->table.tensor[tensor];
	uint32_t i;

	*ret = (struct share){ .n = ALL_OF_IT };
	if (s->want->flags & WIRE_DIVIDED)
		return share_owned(s, tensor, a, ret);
	if (!(s->want->flags & WIRE_MISSING) || MUTANT(MISSING_IS_ALL))
		return 0;
	i = table_find(&s->missing, x->component, x->name, x->rank);
	ret->n = i == TABLE_NONE ? 0 : s->missing.first[i + 1] - s->missing.first[i];
	ret->piece = i == TABLE_NONE ? NULL : &s->missing.piece[s->missing.first[i]];
	return 0;
}

static const struct indexset *share_part(const struct share *x, uint32_t i)
{
	return x->piece ? &x->piece[i].set : &x->owned;
}

/* Of a piece of the declaration what the share has. */
static int own_piece(struct landing_source *s, const struct share *share, uint32_t piece,
		     uint32_t tensor, uint64_t *at, struct ckpt_err *err)
{
	const struct table_piece *of = &s->d->table.piece[piece];
	int rc = 0;

	for (uint32_t i = 0; i < (share->n == ALL_OF_IT ? 1 : share->n) && rc == 0; i++) {
		struct table_piece p = *of;

		if (share->n != ALL_OF_IT)
			rc = indexset_intersect(&of->set, share_part(share, i), &s->own.arena,
						&p.set);
		if (rc == 0 && !ARRAY_GROW(s->piece, s->own.npiece, s->piece_cap))
			rc = -ENOMEM;
		if (rc < 0 || !p.set.numel)
			continue;
		s->piece[s->own.npiece] = piece;
		p.tensor = tensor;
		p.place = 0;
		p.off = *at;
		p.stride = NULL;
		*at = align_up(*at + p.set.numel * s->own.tensor[tensor].elem_bytes, 16);
		rc = table_add_piece(&s->own, &p, err);
	}
	return rc;
}

static int own_tensor(struct landing_source *s, uint32_t tensor, uint64_t *at, struct ckpt_err *err)
{
	const struct table *t = &s->d->table;
	struct table_tensor x = t->tensor[tensor];
	const struct layout *l = x.layout == TABLE_NONE ? NULL : &t->layout[x.layout];
	struct share share;
	uint32_t id, mesh;
	int rc = share_make(s, tensor, &s->own.arena, &share);

	x.layout = TABLE_NONE;
	if (rc < 0)
		return ckpt_error(err, rc, "%s/%s: its share cannot be divided", x.component,
				  x.name);
	if (l && layout_is_partial(l)) {
		struct layout mine = *l;

		s->partial = true;
		rc = table_add_mesh(&s->own, &t->mesh[l->mesh], &mesh, err);
		mine.mesh = mesh;
		if (rc == 0)
			rc = table_add_layout(&s->own, &mine, &x.layout, err);
	}
	if (rc == 0)
		rc = table_add_tensor(&s->own, &x, &id, err);
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1] && rc == 0; i++)
		if (t->piece[i].place == s->d->own)
			rc = own_piece(s, &share, i, id, at, err);
	return rc;
}

/* --- what an exchange has not brought --- */

static int missing_take(void *arg, const struct table_tensor *x, const struct indexset *part)
{
	struct table *t = arg;
	struct table_tensor plain = *x;
	struct table_piece p = { .rank = TABLE_NONE, .set = *part };
	int rc = 0;

	plain.layout = TABLE_NONE;
	p.tensor = table_find(t, x->component, x->name, x->rank);
	if (p.tensor == TABLE_NONE)
		rc = table_add_tensor(t, &plain, &p.tensor, NULL);
	return rc == 0 ? table_add_piece(t, &p, NULL) : rc;
}

/* As the rank itself has computed what others send it. */
static int missing_make(struct landing_source *s, struct ckpt_err *err)
{
	const struct wire_restore *w = s->want;
	const struct reshard_opts opts = { .only = w->only[0] ? w->only : NULL,
					   .who = HOLDERS_OWNERS };
	struct table_place place = { .name = "missing", .rank = TABLE_NONE, .bytes = INT64_MAX };
	struct table divided;
	struct spread *spread = NULL;
	int rc = spread_divided(&s->d->table, &divided, err);

	if (rc == 0)
		rc = spread_open(&divided, &divided, &opts, s->rank, &spread, err);
	if (rc == 0)
		rc = table_add_place(&s->missing, &place, NULL, err);
	if (rc == 0)
		rc = spread_missing(spread, w->chunk_bytes, w->rounds, missing_take, &s->missing,
				    err);
	if (rc == 0)
		rc = table_seal(&s->missing, err);
	if (rc == -ENOMEM)
		ckpt_error(err, rc, "no memory to restore");
	spread_close(spread);
	table_free(&divided);
	return rc;
}

int landing_make(struct restore *x, uint32_t r, struct landing_source **ret, struct ckpt_err *err)
{
	const struct decl *d = x->dst[r];
	const struct table *t = &d->table;
	struct table_place place = { .name = "landing", .rank = TABLE_NONE, .bytes = INT64_MAX };
	struct landing_source *s;
	uint64_t at = 0;
	int rc;

	if (d->own == TABLE_NONE)
		return 0;
	s = calloc(1, sizeof *s);
	if (!s)
		return ckpt_error(err, -ENOMEM, "no memory to restore");
	s->rank = r;
	s->d = d;
	s->want = &x->asked[r];
	rc = s->want->flags & WIRE_MISSING ? missing_make(s, err) : 0;
	if (rc == 0)
		rc = table_add_place(&s->own, &place, NULL, err);
	for (uint32_t i = 0; i < t->ntensor && rc == 0; i++) {
		const struct table_tensor *y = &t->tensor[i];

		if (fill_asks(x, y) && has_own(d, i) &&
		    table_find(x->f.src, y->component, y->name, y->rank) != TABLE_NONE)
			rc = own_tensor(s, i, &at, err);
	}
	if (rc == 0)
		s->own.place[0].bytes = at;
	if (rc == 0)
		rc = table_seal(&s->own, err);
	if (rc < 0 || !s->own.npiece) {
		landing_source_free(s);
		return rc;
	}
	x->landing_bytes += at;
	*ret = s;
	return 0;
}

/* --- filling a window: worker --- */

static const struct table_piece *cut_piece(const struct landing_source *s, uint32_t cut_of_own)
{
	return &s->d->table.piece[s->piece[cut_of_own]];
}

/* Is what a cut has row-major in memory, without gaps? Not with strides, nor if it is of a part. */
static bool is_dense(const struct landing_source *s, uint32_t cut_of_own)
{
	const struct table_piece *p = cut_piece(s, cut_of_own);

	return !p->stride &&
	       (s->own.piece[cut_of_own].set.numel == p->set.numel || MUTANT(PART_AS_WHOLE));
}

/* In elements, of the whole piece. [ndim] */
static void piece_strides(const struct table_piece *p, int64_t *ret)
{
	int64_t step = 1;

	for (uint32_t d = p->set.ndim; d-- > 0; step *= (int64_t)p->set.dim[d].total)
		ret[d] = p->stride ? p->stride[d] : step;
}

/* Where the elements of a cut that is not dense lie in the process: the address of the first of
 * them. */
static uint64_t cut_address(const struct table_piece *p, const struct window_cut *c, uint32_t elem,
			    const int64_t *stride)
{
	uint64_t at = p->off;

	for (uint32_t d = 0; d < p->set.ndim; d++)
		at += indices_below(&p->set.dim[d], indices_lo(&c->set.dim[d])) *
		      (uint64_t)stride[d] * elem;
	return at;
}

/* A table of a window's cuts: where they lie in the window, with layouts; or, of those with
 * strides, where they lie in memory. */
static int cuts_table(const struct landing_source *s, const struct window *w, bool memory,
		      struct table *ret, struct ckpt_err *err)
{
	struct table_place place = { .name = memory ? "memory" : "window",
				     .rank = TABLE_NONE,
				     .bytes = memory ? WIRE_OWN_BYTES : w->bytes };
	uint32_t last = TABLE_NONE, id = 0;
	int64_t stride[CKPT_DIMS_MAX];
	int rc = table_add_place(ret, &place, NULL, err);

	for (uint32_t i = 0; i < w->ncut && rc == 0; i++) {
		const struct window_cut *c = &w->cut[i];
		const struct table_piece *own = &s->own.piece[c->piece],
					 *p = cut_piece(s, c->piece);
		struct table_tensor x = s->own.tensor[own->tensor];
		struct table_piece n = { .rank = own->rank, .set = c->set, .off = c->buf_off };

		if (memory && is_dense(s, c->piece))
			continue;
		if (memory) {
			piece_strides(p, stride);
			n.off = cut_address(p, c, x.elem_bytes, stride);
			n.stride = stride;
		}
		if (own->tensor != last && (memory || x.layout == TABLE_NONE)) {
			x.layout = TABLE_NONE;
		} else if (own->tensor != last) {
			struct layout l = s->own.layout[x.layout];

			rc = table_add_mesh(ret, &s->own.mesh[l.mesh], &l.mesh, err);
			if (rc == 0)
				rc = table_add_layout(ret, &l, &x.layout, err);
		}
		if (rc == 0 && own->tensor != last)
			rc = table_add_tensor(ret, &x, &id, err);
		last = own->tensor;
		n.tensor = id;
		if (rc == 0)
			rc = table_add_piece(ret, &n, err);
	}
	return rc == 0 ? table_seal(ret, err) : rc;
}

static int window_fill(const struct restore *x, const struct landing_source *s,
		       const struct window *w, void *to, bool *damaged, struct ckpt_err *err)
{
	const struct table *dst = &w->table;
	struct table whole = { 0 };
	struct plan plan = { 0 };
	int rc = 0;

	if (s->partial) {
		rc = cuts_table(s, w, false, &whole, err);
		dst = &whole;
	}
	if (rc == 0)
		rc = plan_make(x->f.src, dst, NULL, &plan, NULL, err);
	if (rc == 0)
		rc = fill_move(x, &plan, &to, damaged, err);
	plan_free(&plan);
	table_free(&whole);
	return rc;
}

static int rows_begin(const struct landing_source *s, struct landing_window *w,
		      struct ckpt_err *err)
{
	struct plan_opts opts = { .memory_blobs = true };
	int rc = cuts_table(s, &w->w, true, &w->at, err);

	return rc == 0 && w->at.npiece ? plan_make(&w->w.table, &w->at, &opts, &w->rows, NULL, err)
				       : rc;
}

static bool row_next_planned(struct landing_window *w, struct wire_row *ret)
{
	struct plan_row r;

	w->same = w->in_op;
	for (;;) {
		if (!w->in_op && w->op == w->rows.nop)
			return false;
		if (!w->in_op)
			plan_rows(&w->rows, &w->rows.op[w->op], &w->cursor);
		w->in_op = plan_row_next(&w->cursor, &r);
		if (w->in_op)
			break;
		w->op++;
		w->same = false;
	}
	*ret = (struct wire_row){ .src = r.src_off,
				  .dst = r.dst_off,
				  .width = r.elem ? r.elem : r.len,
				  .rows = r.elem ? r.n : 1,
				  .src_pitch = r.elem ? r.src_stride : 0,
				  .dst_pitch = r.elem ? r.dst_stride : 0 };
	return true;
}

/* Offsets from the window's data on. */
static bool row_next(const struct landing_source *s, struct landing_window *w, struct wire_row *ret)
{
	while (w->cut < w->w.ncut) {
		const struct window_cut *c = &w->w.cut[w->cut++];
		const struct table_piece *p = cut_piece(s, c->piece);

		if (!is_dense(s, c->piece))
			continue;
		w->same = false;
		*ret = (struct wire_row){ .src = c->buf_off,
					  .dst = p->off + (c->dst_off - s->own.piece[c->piece].off),
					  .width = c->len,
					  .rows = 1 };
		return true;
	}
	return row_next_planned(w, ret);
}

/* Lines of one width at one distance are one row, if they are of one piece: between two pieces lies
 * memory of others, and the library takes no row that spans it. */
static bool row_grow(struct wire_row *last, const struct wire_row *r)
{
	if (r->rows != 1 || r->width != last->width || r->src <= last->src || r->dst <= last->dst)
		return false;
	if (last->rows == 1) {
		last->src_pitch = r->src - last->src;
		last->dst_pitch = r->dst - last->dst;
	} else if (r->src != last->src + last->rows * last->src_pitch ||
		   r->dst != last->dst + last->rows * last->dst_pitch) {
		return false;
	}
	last->rows++;
	return true;
}

/* As many rows as there is space for. */
static void rows_put(const struct landing_source *s, const struct landing *k,
		     struct landing_window *w, struct wire_row *to)
{
	w->nrow = 0;
	for (;;) {
		struct wire_row r = w->next;

		if (!w->has_next && !row_next(s, w, &r))
			break;
		w->has_next = false;
		if (w->has_last && w->same && row_grow(&w->last, &r))
			continue;
		if (w->has_last && w->nrow == k->rows_max) {
			w->next = r;
			w->has_next = true;
			break;
		}
		if (w->has_last)
			to[w->nrow++] = w->last;
		w->last = r;
		w->has_last = true;
	}
	if (w->has_last && w->nrow < k->rows_max) {
		to[w->nrow++] = w->last;
		w->has_last = false;
	}
	for (uint32_t i = 0; i < w->nrow; i++) {
		to[i].flags = WIRE_ROW_CLIENT;
		to[i].src += data_at(k);
	}
}

struct landing_task {
	struct task task;
	struct restore *x; /* not freed while its tasks run */
	struct landing_source *s;
	struct landing *k;
	uint32_t window;
	bool damaged;
	int rc;
	struct ckpt_err err;
};

static int window_run(struct landing_task *t)
{
	struct landing_source *s = t->s;
	struct landing_window *w = &s->window[t->window];
	uint8_t *map;
	uint64_t most = t->x->d->opts.landing_bytes;
	int rc = landing_open(t->k, s->own.place[0].bytes, s->own.npiece,
			      most ? most : LANDING_BYTES, &t->err);

	if (rc < 0)
		return rc;
	map = t->k->map[t->window];
	if (!s->ws)
		rc = windows_open(&s->own, t->k->bytes - data_at(t->k), &s->ws, &t->err);
	if (rc == 0 && !w->has_last) {
		window_clear(w);
		rc = windows_next(s->ws, &w->w, &t->err);
		if (rc == 0)
			s->end = true;
		if (rc <= 0)
			return rc;
		rc = window_fill(t->x, s, &w->w, map + data_at(t->k), &t->damaged, &t->err);
		if (rc == 0)
			rc = rows_begin(s, w, &t->err);
	}
	if (rc == 0)
		rows_put(s, t->k, w, (struct wire_row *)map);
	return rc;
}

static void landing_run(struct task *task)
{
	struct landing_task *t = (struct landing_task *)task;

	t->rc = window_run(t);
	if (t->damaged)
		fill_damaged(t->x, t->err.msg);
}

static void landing_done(struct task *task)
{
	struct landing_task *t = (struct landing_task *)task;
	struct restore *x = t->x;
	struct landing_source *s = t->s;

	x->tasks--;
	s->running = false;
	if (t->rc < 0 && x->rc == 0) {
		x->rc = t->rc;
		x->err = t->err;
	}
	x->damaged |= t->damaged;
	s->state[t->window] = t->rc == 0 && s->window[t->window].nrow ? WINDOW_FULL : WINDOW_FREE;
	s->number[t->window] = s->filled++;
	free(t);
	restore_landed(x);
}

/* --- the owner --- */

static void window_start(struct restore *x, struct landing_source *s, struct landing *k,
			 uint32_t window)
{
	struct landing_task *t = calloc(1, sizeof *t);

	if (!t) {
		x->rc = ckpt_error(&x->err, -ENOMEM, "no memory in the daemon");
		return;
	}
	*t = (struct landing_task){ .x = x, .s = s, .k = k, .window = window };
	s->state[window] = WINDOW_FILLING;
	s->running = true;
	x->tasks++;
	if (x->f.disk)
		device_task(x->l->place->device, LANE_ASK, &t->task, landing_run, landing_done);
	else
		daemon_task(&x->d->work, &t->task, landing_run, landing_done);
}

static void window_send(struct member *m, struct landing_source *s, uint32_t window)
{
	struct landing *k = m->landing;
	struct wire_landed msg = { .round = ++k->round,
				   .window = window,
				   .nrow = s->window[window].nrow,
				   .bytes = k->bytes };

	s->state[window] = WINDOW_SENT;
	k->out = true;
	k->out_window = window;
	k->out_ns = now_ns();
	session_reply(m->session, &msg, WIRE_LANDED, k->fd, k->sent ? 0 : 2);
	k->sent = true;
}

/* True: this rank has all. */
static bool rank_go(struct restore *x, struct landing_source *s)
{
	struct member *m = &x->l->member[s->rank];
	struct landing *k = m->landing;
	const enum window_state *state = s->state;
	uint32_t first =
		state[1] == WINDOW_FULL && (state[0] != WINDOW_FULL || s->number[1] < s->number[0]);

	if (state[first] == WINDOW_FULL && !k->out && m->session && !m->session->closed)
		window_send(m, s, first);
	for (uint32_t i = 0; i < 2 && !s->running && x->rc == 0; i++) {
		bool ours = state[i] == WINDOW_FREE && !(k->out && k->out_window == i);

		if (MUTANT(LANDING_WRITTEN_EARLY))
			ours |= state[i] == WINDOW_SENT;
		if (state[i] == WINDOW_MORE || (ours && !s->end))
			window_start(x, s, k, i);
	}
	return !s->running && s->end && !k->out && state[0] == WINDOW_FREE &&
	       state[1] == WINDOW_FREE;
}

bool landing_go(struct restore *x)
{
	struct launch *l = x->l;
	bool all = true;

	if (l->nlost && x->rc == 0)
		x->rc = ckpt_error(&x->err, -ECONNRESET,
				   "a rank of this launch has ended amid ckpt_restore: memory is "
				   "undefined; start all ranks again");
	for (uint32_t r = 0; r < x->ndst && x->rc == 0; r++) {
		struct member *m = &l->member[r];

		if (!x->landing[r])
			continue;
		if (!m->landing && !(m->landing = landing_new()))
			x->rc = ckpt_error(&x->err, -ENOMEM, "no memory in the daemon");
		else if (m->landing->code) /* no damage of the step, whatever it is */
			x->rc = ckpt_error(
				&x->err, m->landing->code == -ENOMEM ? -ENOMEM : -EFAULT,
				"rank %u could not write the memory that it has declared "
				"(%s): memory is undefined; declare memory that is mapped "
				"and writable, and restore again",
				r, strerror(-m->landing->code));
		else
			all &= rank_go(x, x->landing[r]);
	}
	return x->tasks == 0 && (x->rc < 0 || all);
}

void landing_late(struct restore *x, uint64_t now)
{
	for (uint32_t r = 0; r < x->ndst && x->rc == 0; r++) {
		const struct member *m = &x->l->member[r];
		uint64_t wait = m->want.deadline_ns ? m->want.deadline_ns : RESTORE_NS;

		if (m->landing && m->landing->out && elapsed_ns(m->landing->out_ns, now) > wait)
			x->rc = ckpt_error(
				&x->err, -ETIMEDOUT,
				"rank %u has not taken what was restored for %.1f s: memory is "
				"undefined; is it stopped?",
				r, (double)wait / 1e9);
	}
}

void restore_land(struct session *s, const struct wire_land *msg)
{
	struct member *m = s->member;
	struct launch *l = s->launch;
	struct landing *k = m->landing;
	struct landing_source *from;

	if (m->owed) { /* the restore came to an end while this rank was at work */
		session_refuse(s, m->owed->code, m->owed->msg);
		free(TAKE(m->owed));
		return;
	}
	if (!k || !k->out || msg->round != k->round) {
		session_refuse(s, -EPROTO, "nothing was landed in this round");
		return;
	}
	k->out = false;
	if (msg->code < 0 && !MUTANT(LANDING_FAULT_IGNORED))
		k->code = msg->code;
	if (!l->filling)
		return; /* it is being chosen anew */
	from = l->filling->landing[m->rank];
	if (from && from->state[k->out_window] == WINDOW_SENT)
		from->state[k->out_window] =
			from->window[k->out_window].has_last ? WINDOW_MORE : WINDOW_FREE;
	restore_landed(l->filling);
}
