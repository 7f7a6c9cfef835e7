// SPDX-License-Identifier: Apache-2.0
// drift.c - see drift.h. The copier makes the sums, the work pool compares them; all else belongs
// to the owner. Invariant: only sums of one turn, one epoch and one step are compared, and only
// after every rank has guarded that step.
#include "daemon/drift.h"
#include "daemon/state.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/table/operand.h"
#include <inttypes.h>
#include <stdio.h>

/* Elements of a block: of a large tensor so many that there are 128 blocks or more. Fewer and
 * larger ones are read faster. */
#define BLOCK_LOG2_MIN 15
#define BLOCK_LOG2_MAX 18
#define STOP_BYTES MIB

/* --- what a rank can compare --- */
struct drift_tensor {
	uint64_t id, group; /* hash of the name; of the coordinates that its replicas share */
	uint32_t tensor;    /* of the declaration's table */
	uint32_t slot;	    /* the same of its part, which lives as long as sums do */
};
struct drift_decl {
	uint32_t n, nlarge;		 /* the first nlarge have more than one block */
	uint32_t first[DRIFT_TURNS + 1]; /* the others, by turn: [first[k], first[k + 1]) */
	bool mapped, brought;		 /* has pieces in segments; in the process's own memory */
	uint32_t nrow;			 /* of these, in all turns; */
	uint64_t bytes;			 /* and their bytes, at most in one turn */
	struct drift_tensor t[];
};

static uint64_t name_hash(const struct table_tensor *x)
{
	char buf[TABLE_KEY_BYTES], *key = table_key(x, buf);

	return hash_word(hash128(key, strlen(key)));
}

/* Which dimensions of the mesh have replicas: bit d. */
static uint32_t replica_dims(const struct mesh *m, const struct layout *l)
{
	uint32_t dims = 0;

	for (uint32_t d = 0; d < m->ndim; d++)
		if (m->dim[d] > 1)
			dims |= 1u << d;
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].how != CKPT_REPLICATE)
			dims &= ~(1u << l->place[i].mesh_dim);
	return dims;
}

/* False: it is not compared. */
static bool tensor_take(const struct decl *d, uint32_t i, struct drift_tensor *ret)
{
	const struct table *t = &d->table;
	const struct table_tensor *x = &t->tensor[i];
	uint32_t coord[CKPT_DIMS_MAX], dims, at[CKPT_DIMS_MAX] = { 0 };
	const struct layout *l;
	const struct mesh *m;

	if (x->flags & TENSOR_BLOB || x->layout == TABLE_NONE || x->cls == CKPT_VOLATILE ||
	    x->cls == CKPT_SINK || x->role == CKPT_BUFFER || operand_dims(t, x) || !x->numel ||
	    t->first[i] == t->first[i + 1])
		return false;
	l = &t->layout[x->layout];
	m = &t->mesh[l->mesh];
	dims = replica_dims(m, l);
	if (!dims || !mesh_coord(m, d->rank, coord))
		return false;
	for (uint32_t k = 0; k < m->ndim; k++)
		at[k] = dims >> k & 1 && !MUTANT(DRIFT_SELF) ? 0 : coord[k];
	*ret = (struct drift_tensor){ .id = name_hash(x),
				      .group = hash_word(hash128(at, sizeof at)),
				      .tensor = i,
				      .slot = table_find(&d->part, x->component, x->name,
							 TABLE_NONE) };
	return ret->slot != TABLE_NONE;
}

static uint32_t block_log2(const struct table_tensor *x)
{
	uint32_t n = BLOCK_LOG2_MIN;

	while (n < BLOCK_LOG2_MAX && x->numel >> (n + 1) >= DRIFT_TURNS)
		n++;
	return n;
}

static uint64_t blocks_of(const struct table_tensor *x)
{
	return div_up(x->numel, UINT64_C(1) << block_log2(x));
}

/* Of a tensor of one block. */
static uint32_t turn_of(const struct drift_tensor *x)
{
	return (uint32_t)(x->id % DRIFT_TURNS);
}

/* The first block of the turn; it may be behind the last one. */
static uint64_t block_first(const struct drift_tensor *t, uint32_t turn)
{
	return (turn + DRIFT_TURNS - t->id % DRIFT_TURNS) % DRIFT_TURNS;
}

/* --- the elements of a turn --- */
struct walk {
	const struct table_tensor *x;
	const struct table_piece *p;
	uint64_t below[CKPT_DIMS_MAX];	/* elements of the tensor for an index of each dimension */
	uint64_t stride[CKPT_DIMS_MAX]; /* elements in memory for a position */
	uint32_t flat;			/* the last dimension that is walked */
	uint64_t lo, hi;		/* numbers of the block's elements */
	uint64_t bytes;			/* since `stop` was asked */

	/* n elements whose numbers follow upon each other from `number` on, and which do in memory,
	 * too: from byte `at` of their place on */
	void (*run)(struct walk *w, uint64_t number, uint64_t at, uint64_t n);
	bool brought; /* the pieces of the process's own memory are walked; else the others */
	const uint8_t *from; /* of the place; brought: what is next in the slot */
	uint64_t sum;
	struct row_list *rows;
};

static void walk_run(struct walk *w, uint64_t number, uint64_t off, uint64_t n)
{
	uint64_t skip = w->lo > number ? w->lo - number : 0;
	uint32_t elem = w->x->elem_bytes;

	n = MIN(n, w->hi - number);
	if (skip >= n)
		return;
	w->run(w, number + skip, w->p->off + (off + skip) * elem, n - skip);
	w->bytes += (n - skip) * elem;
}

/* How many of the indices from position pos on are consecutive; of `most` at least so many as are
 * told. */
static uint64_t stretch_at(const struct indices *x, uint64_t pos, uint64_t most)
{
	uint64_t index = indices_at(x, pos);

	while (most > 1 && indices_at(x, pos + most - 1) - index != most - 1)
		most /= 2;
	return most;
}

/* The piece's elements with numbers in [lo, hi), from those on whose first d indices make `first`,
 * which is below hi. off: in memory, in elements. */
static void block_walk(struct walk *w, uint32_t d, uint64_t first, uint64_t off)
{
	const struct indices *x = d < w->p->set.ndim ? &w->p->set.dim[d] : NULL;
	uint64_t unit, from, end, run;

	if (!x) {
		walk_run(w, first, off, 1);
		return;
	}
	unit = w->below[d];
	from = indices_below(x, w->lo > first ? (w->lo - first) / unit : 0);
	end = indices_below(x, div_up(w->hi - first, unit));
	for (uint64_t pos = from; pos < end; pos += run) {
		uint64_t number = first + indices_at(x, pos) * unit;

		run = 1;
		if (d < w->flat) {
			block_walk(w, d + 1, number, off + pos * w->stride[d]);
			continue;
		}
		if (w->stride[d] == unit)
			run = stretch_at(x, pos, end - pos);
		walk_run(w, number, off + pos * w->stride[d], run * unit);
	}
}

static bool is_whole(const struct indices *x, uint64_t n)
{
	return x->total == n;
}

static void piece_begin(struct walk *w, const struct table_piece *p)
{
	uint64_t below = 1, stride = 1;

	w->p = p;
	for (uint32_t d = p->set.ndim; d-- > 0;) {
		w->below[d] = below;
		w->stride[d] = p->stride ? (uint64_t)p->stride[d] : stride;
		below *= w->x->shape[d];
		stride *= p->set.dim[d].total;
	}
	/* Dimensions that are there whole, one behind the other in memory, are walked as one. */
	w->flat = p->set.ndim ? p->set.ndim - 1 : 0;
	while (w->flat && is_whole(&p->set.dim[w->flat], w->x->shape[w->flat]) &&
	       w->stride[w->flat] == w->below[w->flat])
		w->flat--;
}

/* Below and above all numbers of the piece's elements. */
static void piece_bounds(const struct walk *w, uint64_t *ret_lo, uint64_t *ret_hi)
{
	*ret_lo = 0;
	*ret_hi = 1;
	for (uint32_t d = 0; d < w->p->set.ndim; d++) {
		*ret_lo += indices_lo(&w->p->set.dim[d]) * w->below[d];
		*ret_hi += (indices_hi(&w->p->set.dim[d]) - 1) * w->below[d];
	}
}

/* All of a tensor that is in the turn. False: it was ended. */
static bool tensor_walk(const struct decl *d, const struct drift_tensor *t, uint32_t turn,
			int (*stop)(void *arg), void *arg, struct walk *w)
{
	const struct table *table = &d->table;
	uint64_t first, nblock;
	uint32_t log2;

	w->x = &table->tensor[t->tensor];
	first = block_first(t, turn);
	nblock = blocks_of(w->x);
	log2 = block_log2(w->x);
	if (first >= nblock)
		return true;
	for (uint32_t p = table->first[t->tensor]; p < table->first[t->tensor + 1]; p++) {
		const uint8_t *base = d->base[table->piece[p].place];
		uint64_t lo, hi, b;

		if (w->brought == (base != NULL))
			continue;
		if (!w->brought)
			w->from = base;
		piece_begin(w, &table->piece[p]);
		piece_bounds(w, &lo, &hi);
		b = lo >> log2;
		b += (first + DRIFT_TURNS - b % DRIFT_TURNS) % DRIFT_TURNS;
		for (; b < nblock && b << log2 < hi; b += DRIFT_TURNS) {
			w->lo = b << log2;
			w->hi = MIN(w->x->numel, (b + 1) << log2);
			block_walk(w, 0, 0, 0);
			if (stop && w->bytes >= STOP_BYTES && (w->bytes = 0, stop(arg)))
				return false;
		}
	}
	return true;
}

/* --- what the library is to bring: rows (wire.h, REPLICA) --- */
/* In the order in which drift_sum_brought reads them. */
struct row_list {
	struct wire_row *row; /* NULL: they are only counted */
	uint32_t n;
	uint64_t bytes; /* of the turn, so far */
	uint64_t at;	/* where the turn begins in the slot */
	bool open;	/* `last` may become longer */
	struct wire_row last;
};

static void row_close(struct row_list *l)
{
	if (!l->open)
		return;
	l->open = false;
	if (l->row)
		l->row[l->n] = l->last;
	l->n++;
}

/* What follows upon the last row in memory, or lies as far behind its last line as each line does
 * behind the one before it, belongs to it. */
static bool row_extend(struct wire_row *r, uint64_t at, uint64_t width)
{
	if (r->rows == 1 && at == r->src + r->width) {
		r->width += width;
		return true;
	}
	if (width != r->width || at <= r->src ||
	    (r->rows > 1 && at != r->src + r->rows * r->src_pitch))
		return false;
	if (r->rows == 1) {
		r->src_pitch = at - r->src;
		r->dst_pitch = width;
	}
	r->rows++;
	return true;
}

static void run_row(struct walk *w, uint64_t number, uint64_t at, uint64_t n)
{
	struct row_list *l = w->rows;
	uint64_t width = n * w->x->elem_bytes;

	(void)number;
	if (!l->open || !row_extend(&l->last, at, width)) {
		row_close(l);
		l->last.src = at;
		l->last.dst = l->at + l->bytes;
		l->last.width = width;
		l->last.rows = 1;
		l->last.src_pitch = l->last.dst_pitch = 0;
		l->open = true;
	}
	l->bytes += width;
}

/* One tensor's in one turn. */
static void tensor_rows(const struct decl *d, const struct drift_tensor *t, uint32_t turn,
			struct row_list *l)
{
	struct walk w = { .run = run_row, .brought = true, .rows = l };

	l->last = (struct wire_row){ .tensor = t->tensor,
				     .flags = WIRE_ROW_CLIENT | WIRE_ROW_REPLICA,
				     .turn = turn };
	(void)tensor_walk(d, t, turn, NULL, NULL, &w);
	row_close(l);
}

/* How many rows a tensor has in all turns; adds its bytes to those of each. */
static uint32_t tensor_count(const struct decl *d, const struct drift_tensor *t,
			     uint64_t bytes[DRIFT_TURNS])
{
	uint64_t nblock = MIN(blocks_of(&d->table.tensor[t->tensor]), (uint64_t)DRIFT_TURNS);
	struct row_list l = { 0 };

	for (uint64_t b = 0; b < nblock && l.n <= WIRE_ROWS_MAX; b++) {
		uint32_t turn = (uint32_t)((b + t->id) % DRIFT_TURNS);

		l.bytes = 0;
		tensor_rows(d, t, turn, &l);
		bytes[turn] += l.bytes;
	}
	return l.n;
}

/* Tensors in memory of so many short strides that their rows would be too many are left out. */
static void brought_count(const struct decl *d, struct drift_tensor *t, uint32_t *n,
			  struct drift_decl *ret)
{
	uint64_t bytes[DRIFT_TURNS] = { 0 }, before[DRIFT_TURNS];
	uint32_t k = 0;

	for (uint32_t i = 0; i < *n; i++) {
		uint32_t rows;

		memcpy(before, bytes, sizeof bytes);
		rows = d->own == TABLE_NONE ? 0 : tensor_count(d, &t[i], bytes);
		if (ret->nrow + rows > WIRE_ROWS_MAX) {
			memcpy(bytes, before, sizeof bytes);
			continue;
		}
		ret->nrow += rows;
		t[k++] = t[i];
	}
	*n = k;
	for (uint32_t i = 0; i < DRIFT_TURNS; i++)
		ret->bytes = MAX(ret->bytes, bytes[i]);
}

/* --- of a declaration --- */
/* The large ones in front, the others by turns. */
static void decl_sort(const struct decl *d, const struct drift_tensor *from, struct drift_decl *to)
{
	uint32_t at[DRIFT_TURNS] = { 0 };

	for (uint32_t i = 0; i < to->n; i++) {
		if (blocks_of(&d->table.tensor[from[i].tensor]) > 1)
			to->t[to->nlarge++] = from[i];
		else
			at[turn_of(&from[i])]++;
	}
	to->first[0] = to->nlarge;
	for (uint32_t k = 0; k < DRIFT_TURNS; k++) {
		to->first[k + 1] = to->first[k] + at[k];
		at[k] = to->first[k];
	}
	for (uint32_t i = 0; i < to->n; i++)
		if (blocks_of(&d->table.tensor[from[i].tensor]) == 1)
			to->t[at[turn_of(&from[i])]++] = from[i];
}

/* Which of the two kinds of memory have its tensors? */
static void kinds_look(const struct decl *d, struct drift_decl *x)
{
	const struct table *t = &d->table;

	for (uint32_t i = 0; i < x->n; i++)
		for (uint32_t p = t->first[x->t[i].tensor]; p < t->first[x->t[i].tensor + 1]; p++)
			*(d->base[t->piece[p].place] ? &x->mapped : &x->brought) = true;
}

int drift_decl_make(struct decl *d, struct ckpt_err *err)
{
	cleanup_free struct drift_tensor *t = calloc((size_t)d->table.ntensor + 1, sizeof *t);
	struct drift_decl count = { 0 };
	uint32_t n = 0;

	for (uint32_t i = 0; t && i < d->table.ntensor; i++)
		n += tensor_take(d, i, &t[n]);
	if (t)
		brought_count(d, t, &n, &count);
	if (t && n)
		d->drift = calloc(1, sizeof *d->drift + n * sizeof *t);
	if (!t || (n && !d->drift))
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	if (!n)
		return 0;
	*d->drift = count;
	d->drift->n = n;
	decl_sort(d, t, d->drift);
	kinds_look(d, d->drift);
	return 0;
}

void drift_decl_free(struct drift_decl *x)
{
	free(x);
}

/* The tensors that have blocks in a turn, and some that may have none. */
static uint32_t turn_tensors(const struct drift_decl *x, uint32_t turn)
{
	return x ? x->nlarge + x->first[turn + 1] - x->first[turn] : 0;
}

static const struct drift_tensor *turn_tensor(const struct drift_decl *x, uint32_t turn, uint32_t i)
{
	return &x->t[i < x->nlarge ? i : x->first[turn] + i - x->nlarge];
}

uint32_t drift_nrow(const struct drift_decl *x)
{
	return x ? x->nrow : 0;
}

uint64_t drift_bytes(const struct drift_decl *x)
{
	return x ? x->bytes : 0;
}

void drift_rows(const struct decl *d, struct wire_row *ret)
{
	const struct drift_decl *x = d->drift;
	struct row_list l = { .row = ret, .at = d->replicas_at };

	for (uint32_t turn = 0; turn < DRIFT_TURNS; turn++) {
		l.bytes = 0;
		for (uint32_t i = 0; i < turn_tensors(x, turn); i++)
			tensor_rows(d, turn_tensor(x, turn, i), turn, &l);
	}
	assert(l.n == x->nrow);
}

/* --- sums --- */
struct drift_sum_of {
	uint64_t id, group, sum;
	uint32_t slot, rank;
};
struct drift_sums {
	struct decl *decl; /* decl_slot_ref */
	uint32_t turn, n;
	struct drift_sum_of of[];
};

static void run_sum(struct walk *w, uint64_t number, uint64_t at, uint64_t n)
{
	w->sum += fingerprint(w->from + at, n, w->x->elem_bytes, number);
}

static void run_sum_brought(struct walk *w, uint64_t number, uint64_t at, uint64_t n)
{
	(void)at;
	w->sum += fingerprint(w->from, n, w->x->elem_bytes, number);
	w->from += n * w->x->elem_bytes;
}

/* A sum of each tensor that has blocks in the turn: 0 so far. */
static struct drift_sums *sums_new(struct decl *d, uint32_t turn)
{
	const struct drift_decl *x = d->drift;
	uint32_t n = turn_tensors(x, turn);
	struct drift_sums *s = calloc(1, sizeof *s + n * sizeof *s->of);

	if (!s)
		return NULL;
	s->decl = decl_slot_ref(d);
	s->turn = turn;
	for (uint32_t i = 0; i < n; i++) {
		const struct drift_tensor *t = turn_tensor(x, turn, i);

		if (block_first(t, turn) < blocks_of(&d->table.tensor[t->tensor]))
			s->of[s->n++] = (struct drift_sum_of){
				.id = t->id, .group = t->group, .slot = t->slot, .rank = d->rank
			};
	}
	return s;
}

/* To the sums of s what w walks. False: it was ended. */
static bool sums_add(struct decl *d, struct drift_sums *s, int (*stop)(void *arg), void *arg,
		     struct walk *w)
{
	const struct drift_decl *x = d->drift;
	uint32_t k = 0;

	for (uint32_t i = 0; i < turn_tensors(x, s->turn); i++) {
		const struct drift_tensor *t = turn_tensor(x, s->turn, i);

		if (block_first(t, s->turn) >= blocks_of(&d->table.tensor[t->tensor]))
			continue;
		w->sum = 0;
		if (!tensor_walk(d, t, s->turn, stop, arg, w))
			return false;
		s->of[k++].sum += w->sum;
	}
	return true;
}

struct drift_sums *drift_sum(struct decl *d, uint32_t turn, int (*stop)(void *arg), void *arg)
{
	struct drift_sums *s = sums_new(d, turn);
	struct walk w = { .run = run_sum };

	if (s && !sums_add(d, s, stop, arg, &w))
		drift_sums_free(TAKE(s));
	return s;
}

enum drift_rest drift_rest(const struct decl *d, const struct drift_sums *x,
			   const struct shared_rank *r, uint64_t mark, uint32_t turn)
{
	const struct drift_decl *of = d->drift;

	if (of && of->mapped && !x)
		return DRIFT_LOST;
	if (!of || !of->brought)
		return x ? DRIFT_COMPLETE : DRIFT_TO_SUM;
	return MUTANT(DRIFT_NOT_BROUGHT) || shared_replicas_of(r, mark) == 1 + turn ? DRIFT_TO_SUM
										    : DRIFT_LOST;
}

struct drift_sums *drift_sum_brought(struct decl *d, uint32_t turn, const void *slot,
				     struct drift_sums *x)
{
	struct drift_sums *s = x ? x : sums_new(d, turn);
	struct walk w = { .run = run_sum_brought,
			  .brought = true,
			  .from = (const uint8_t *)slot + d->replicas_at };

	if (s)
		(void)sums_add(d, s, NULL, NULL, &w);
	return s;
}

void drift_sums_free(struct drift_sums *x)
{
	if (!x)
		return;
	decl_slot_unref(x->decl);
	free(x);
}

/* --- a launch --- */
#define FOUND_STEPS 100 /* bytes of text for the steps */
struct found {
	uint64_t id, group;
	uint64_t turns[DRIFT_TURNS / 64]; /* in which it was unequal when last compared */
	char text[320];
};
struct drift {
	uint32_t epoch, rev;	    /* of the memory that all this is about */
	uint64_t given;		    /* turns so far */
	uint64_t last[DRIFT_TURNS]; /* given when it was given last and compared; 0: never */
	bool busy[DRIFT_TURNS];	    /* a step under way has it */
	/* 1 + that of the next step in each slot; 0: it has none. since: `given` of then */
	uint32_t next[WIRE_SLOTS_MAX];
	uint64_t since[WIRE_SLOTS_MAX];
	uint64_t equal[DRIFT_TURNS]; /* 1 + the newest step that it was equal in, but for `found` */
	pthread_mutex_t lock;	     /* protects what is below against drift_text */
	uint32_t nfound;
	struct found found[DRIFT_NAMED];
	uint64_t more; /* findings beyond these */
};

static struct drift *drift_of(struct launch *l)
{
	struct drift *x = l->drift;

	if (!x) {
		x = l->drift = calloc(1, sizeof *x);
		if (!x)
			return NULL;
		pthread_mutex_init(&x->lock, NULL);
		x->epoch = l->epoch;
		x->rev = l->const_rev;
	}
	if (x->epoch != l->epoch || x->rev != l->const_rev) {
		x->epoch = l->epoch;
		x->rev = l->const_rev;
		memset(x->equal, 0, sizeof x->equal);
		pthread_mutex_lock(&x->lock);
		x->nfound = 0;
		x->more = 0;
		pthread_mutex_unlock(&x->lock);
	}
	return x;
}

void drift_free(struct drift *x)
{
	if (!x)
		return;
	pthread_mutex_destroy(&x->lock);
	free(x);
}

/* Is it the next one of a slot? The gate gives the lowest slot that is free, so another one may wait
 * for ever: what has waited for long is for all slots. */
static bool turn_waits(const struct drift *x, uint32_t turn)
{
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		if (x->next[i] == 1 + turn && x->given - x->since[i] < DRIFT_TURNS / 2)
			return true;
	return false;
}

void drift_give(struct launch *l, uint32_t slot)
{
	struct drift *x = l->world > 1 ? drift_of(l) : NULL;
	uint32_t best = DRIFT_NO_TURN;

	if (!x || x->next[slot])
		return;
	for (uint32_t k = 0; k < DRIFT_TURNS; k++)
		if (!x->busy[k] && !turn_waits(x, k) &&
		    (best == DRIFT_NO_TURN || x->last[k] < x->last[best]))
			best = k;
	x->since[slot] = x->given;
	x->next[slot] = best == DRIFT_NO_TURN ? 0 : 1 + best;
	shared_replicas_set(l->page, slot, x->next[slot]);
}

uint32_t drift_turn(struct launch *l, uint32_t slot)
{
	struct drift *x = l->world > 1 ? drift_of(l) : NULL;
	uint32_t turn;

	if (!x || !x->next[slot])
		return DRIFT_NO_TURN;
	turn = TAKE(x->next[slot]) - 1;
	x->busy[turn] = true;
	return turn;
}

void drift_text(const struct launch *l, char *buf, uint32_t bytes)
{
	struct drift *x = l->drift;
	size_t n = 0;

	buf[0] = 0;
	if (!x)
		return;
	pthread_mutex_lock(&x->lock);
	for (uint32_t i = 0; i < x->nfound && n + sizeof x->found[i].text < bytes; i++)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%s", i ? "\n" : "", x->found[i].text);
	if (x->more && n + 64 < bytes)
		snprintf(buf + n, bytes - n, "%sand more tensors", n ? "\n" : "");
	pthread_mutex_unlock(&x->lock);
}

/* --- comparing --- */
struct comparing {
	struct task task;
	struct launch *l; /* reference */
	uint64_t step;
	uint32_t turn, epoch, rev, world;
	struct drift_sums **sums; /* [world] */
	uint32_t nfound;
	uint64_t more;
	struct found found[DRIFT_NAMED];
	int rc;
};

static int by_value(const void *va, const void *vb)
{
	const struct drift_sum_of *a = va, *b = vb;

	if (a->id != b->id)
		return COMPARE(a->id, b->id);
	if (a->group != b->group)
		return COMPARE(a->group, b->group);
	return a->sum != b->sum ? COMPARE(a->sum, b->sum) : COMPARE(a->rank, b->rank);
}

/* What one tensor's replicas have: ranks with one value follow upon each other, in their order. */
struct value {
	const struct drift_sum_of *x;
	uint32_t n;
};

static struct value value_at(const struct drift_sum_of *x, uint32_t n)
{
	struct value v = { x, 0 };

	while (v.n < n && x[v.n].sum == x->sum)
		v.n++;
	return v;
}

/* That of the lowest rank above those before; n 0: there is none. first: 1 + that rank; 0: the
 * lowest. */
static struct value value_next(const struct drift_sum_of *x, uint32_t n, uint32_t first)
{
	struct value best = { NULL, 0 };

	for (struct value v; n; x += v.n, n -= v.n) {
		v = value_at(x, n);
		if (v.x->rank >= first && (!best.n || v.x->rank < best.x->rank))
			best = v;
	}
	return best;
}

/* That which more ranks have than any other; n 0: there is none. */
static struct value value_of_most(const struct drift_sum_of *x, uint32_t n)
{
	struct value best = { NULL, 0 };
	bool alone = false;

	for (struct value v; n; x += v.n, n -= v.n) {
		v = value_at(x, n);
		alone = v.n != best.n && (v.n > best.n || alone);
		if (v.n > best.n)
			best = v;
	}
	return alone ? best : (struct value){ NULL, 0 };
}

#define RANKS_NAMED 6u

/* "0, 2, 3" */
static void ranks_add(struct text *l, struct value v)
{
	uint32_t named = v.n > RANKS_NAMED + 1 ? RANKS_NAMED : v.n;

	for (uint32_t i = 0; i < named; i++)
		text_add(l, "%s%u", i ? ", " : "", v.x[i].rank);
	if (named < v.n)
		text_add(l, " and %u more", v.n - named);
}

/* x: [n] one tensor on its replicas, by value; not all are equal. */
static void found_print(struct comparing *c, const struct drift_sum_of *x, uint32_t n,
			struct found *ret)
{
	struct text l;
	const struct value most = value_of_most(x, n);
	const char *between = most.n ? "minority " : "ranks ";
	char name[100];

	*ret = (struct found){ .id = x->id, .group = x->group };
	l = text_in(ret->text, sizeof ret->text - FOUND_STEPS);
	ret->turns[c->turn / 64] = UINT64_C(1) << c->turn % 64;
	text_add(&l, "%s: ",
		 table_tensor_print(&c->sums[x->rank]->decl->part.tensor[x->slot], name,
				    sizeof name));
	for (struct value v = value_next(x, n, 0); v.n; v = value_next(x, n, v.x->rank + 1)) {
		if (v.x == most.x)
			continue;
		text_add(&l, "%s", between);
		ranks_add(&l, v);
		between = " | ";
	}
	if (most.n) {
		text_add(&l, ", against ");
		ranks_add(&l, most);
	}
}

static void compare_run(struct task *t)
{
	struct comparing *c = (struct comparing *)t;
	struct drift_sum_of *all;
	uint64_t n = 0;

	for (uint32_t r = 0; r < c->world; r++)
		n += c->sums[r]->n;
	all = malloc((n + 1) * sizeof *all);
	if (!all) {
		c->rc = -ENOMEM;
		return;
	}
	n = 0;
	for (uint32_t r = 0; r < c->world; r++) {
		memcpy(all + n, c->sums[r]->of, c->sums[r]->n * sizeof *all);
		n += c->sums[r]->n;
	}
	qsort(all, n, sizeof *all, by_value);
	for (uint64_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && all[end].id == all[i].id &&
				  (all[end].group == all[i].group || MUTANT(DRIFT_GROUPS_MIXED));)
			end++;
		if (all[i].sum == all[end - 1].sum || MUTANT(DRIFT_UNCOMPARED))
			continue;
		if (c->nfound < DRIFT_NAMED)
			found_print(c, all + i, (uint32_t)(end - i), &c->found[c->nfound++]);
		else
			c->more++;
	}
	free(all);
}

static bool same_found(const struct found *a, const struct found *b)
{
	return a->id == b->id && a->group == b->group;
}

static bool is_unequal(const struct found *f)
{
	uint64_t any = 0;

	for (uint32_t i = 0; i < DRIFT_TURNS / 64; i++)
		any |= f->turns[i];
	return any;
}

/* What is equal in every turn in which it was not is equal again. */
static void found_drop(struct comparing *c, struct drift *x)
{
	for (uint32_t i = 0; i < x->nfound;) {
		struct found *f = &x->found[i];
		bool now = c->more; /* not all of them have names */

		for (uint32_t k = 0; k < c->nfound && !now; k++)
			now = same_found(f, &c->found[k]);
		if (!now)
			f->turns[c->turn / 64] &= ~(UINT64_C(1) << c->turn % 64);
		if (is_unequal(f)) {
			i++;
			continue;
		}
		job_log(c->l->job, LOG_NOTICE, "drift", ": equal again in step %" PRIu64 ": %s",
			c->step, x->found[i].text);
		x->found[i] = x->found[--x->nfound];
	}
	if (!x->nfound) /* those without a name get one now */
		x->more = 0;
}

/* On the job page, for the ranks. */
static void page_say(struct launch *l, const char *text)
{
	uint32_t n = atomic_load(&l->page->drifts);

	shared_text_set(&l->page->drift[n % SHARED_DRIFTS], -EUCLEAN, text, true);
	store_release(&l->page->drifts, n + 1);
}

static void found_add(struct comparing *c, struct drift *x, struct found *f)
{
	size_t used = strlen(f->text);

	for (uint32_t i = 0; i < x->nfound; i++)
		if (same_found(&x->found[i], f)) {
			x->found[i].turns[c->turn / 64] |= UINT64_C(1) << c->turn % 64;
			return;
		}
	if (x->equal[c->turn])
		snprintf(f->text + used, sizeof f->text - used,
			 "; last equal in step %" PRIu64 ", first unequal in step %" PRIu64,
			 x->equal[c->turn] - 1, c->step);
	else
		snprintf(f->text + used, sizeof f->text - used,
			 "; unequal when first compared, in step %" PRIu64, c->step);
	if (x->nfound == DRIFT_NAMED) {
		x->more++;
		return;
	}
	x->found[x->nfound++] = *f;
	job_log(c->l->job, LOG_WARNING, "drift",
		": replicas of a tensor are not equal: %s; a checkpoint has one of "
		"the values",
		f->text);
	page_say(c->l, f->text);
}

static void comparing_free(struct comparing *c)
{
	for (uint32_t r = 0; r < c->world; r++)
		drift_sums_free(c->sums[r]);
	free(c->sums);
	launch_unref(c->l);
	free(c);
}

static void turn_back(struct launch *l, uint32_t turn)
{
	if (l->drift && turn != DRIFT_NO_TURN)
		l->drift->busy[turn] = false;
}

static void compare_done(struct task *t)
{
	struct comparing *c = (struct comparing *)t;
	struct drift *x = drift_of(c->l);
	bool unnamed;

	turn_back(c->l, c->turn);
	if (x && c->rc == 0 && c->epoch == x->epoch && c->rev == x->rev) {
		x->last[c->turn] = ++x->given;
		pthread_mutex_lock(&x->lock);
		found_drop(c, x);
		unnamed = x->more;
		for (uint32_t i = 0; i < c->nfound; i++)
			found_add(c, x, &c->found[i]);
		x->more += c->more;
		if (x->more && !unnamed)
			page_say(c->l, "more tensors than those that were named");
		pthread_mutex_unlock(&x->lock);
		x->equal[c->turn] = c->step + 1;
	}
	comparing_free(c);
}

/* Their turn goes back with them. */
static void sums_drop(struct snap *s)
{
	for (uint32_t r = 0; r < s->world; r++)
		drift_sums_free(TAKE(s->rank[r].drift));
	turn_back(s->launch, s->drift_turn);
	s->drift_turn = DRIFT_NO_TURN;
}

static void compare_start(struct snap *s)
{
	struct comparing *c = calloc(1, sizeof *c);

	if (c)
		c->sums = calloc(s->world, sizeof(struct drift_sums *));
	if (!c || !c->sums) {
		free(c);
		sums_drop(s);
		return;
	}
	c->l = s->launch;
	c->l->refs++;
	c->step = s->step;
	c->turn = s->drift_turn;
	c->epoch = s->epoch;
	c->rev = s->const_rev;
	c->world = s->world;
	for (uint32_t r = 0; r < s->world; r++)
		c->sums[r] = TAKE(s->rank[r].drift);
	s->drift_turn = DRIFT_NO_TURN;
	daemon_task(&s->job->d->work, &c->task, compare_run, compare_done);
}

void drift_look(struct snap *s, bool last)
{
	bool all = s->drift_turn != DRIFT_NO_TURN && !s->dropped && !s->job->d->drain_until &&
		   atomic_load(&s->job->d->stops) == 0 && s->phase != PHASE_COLLECTING;

	if (s->drift_turn == DRIFT_NO_TURN)
		return;
	for (uint32_t r = 0; r < s->world && all; r++)
		all = s->rank[r].drift != NULL;
	if (all && (snap_guarded(s) > 0 || MUTANT(DRIFT_UNGUARDED)))
		compare_start(s);
	else if (last || (!all && s->phase != PHASE_COLLECTING))
		sums_drop(s);
}
