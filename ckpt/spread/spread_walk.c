// SPDX-License-Identifier: Apache-2.0
// spread_walk.c - carries an exchange out, round by round. Called by the library that ranks with
// GPUs load, and by tests. Invariant: each lane stands at the first byte of its stream that has not
// moved yet.
#include "ckpt/spread/spread_impl.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/plan.h"

/* An operation between the rank's memory and a stream, on its way. Its rows ascend in the
 * stream. */
struct moving {
	struct plan_cursor c;
	struct plan_row row;
	uint64_t done; /* of the row: bytes, or elements if it has gaps */
};

struct lane_op {
	uint64_t off; /* where its part begins in the stream */
	uint64_t op;  /* of the plan */
	struct moving *m;
	bool ended;
};

/* One end of a stream. */
struct lane {
	const struct stream *x;
	struct table table; /* the stream's parts */
	struct plan plan;   /* the rank's memory against them */
	struct lane_op *op; /* [plan.nop] by off */
	uint64_t first;	    /* those before it have ended */
	const uint64_t *base;
	uint64_t slot, window; /* its staging memory: where, and of one round */
	struct turn {	       /* of a round; the next one has the other */
		struct span span;
		uint64_t at; /* what is sent */
		bool staged; /* what is received lies in the slot */
	} turn[2];
};

struct walk {
	struct spread *s;
	struct spread_transport *t;
	const struct spread_memory *m;
	const struct spread_how *how;
	struct lane *out, *in, *self; /* [s->out.n], [s->in.n]; self: the other end of out's own */
	uint64_t ended_ns;	      /* when the last round ended, */
	uint64_t next;		      /* and which one comes behind it */
};

/* --- a lane --- */

static int lane_op_order(const void *va, const void *vb)
{
	const struct lane_op *a = va, *b = vb;
	int r = COMPARE(a->off, b->off);

	return r ? r : COMPARE(a->op, b->op);
}

/* t: the tensors of the stream's parts. Parts of one tensor lie side by side. */
static int lane_table(struct lane *l, const struct table *t, struct ckpt_err *err)
{
	struct table_place place = { .name = "stream", .rank = TABLE_NONE, .bytes = INT64_MAX };
	int rc = table_add_place(&l->table, &place, NULL, err);
	uint32_t id = TABLE_NONE;

	for (uint32_t i = 0; i < l->x->n && rc == 0; i++) {
		const struct part *part = &l->x->part[i];
		struct table_tensor tensor = t->tensor[part->tensor];
		struct table_piece p = { .rank = TABLE_NONE, .set = part->set, .off = part->off };

		tensor.layout = TABLE_NONE;
		tensor.made = 0;
		if (!i || part->tensor != part[-1].tensor)
			rc = table_add_tensor(&l->table, &tensor, &id, err);
		p.tensor = id;
		if (rc == 0)
			rc = table_put_piece(&l->table, &p, err);
	}
	return rc == 0 ? table_seal(&l->table, err) : rc;
}

static int lane_begin(struct lane *l, const struct stream *x, const struct table *t,
		      const struct table *own, const uint64_t *base, struct ckpt_err *err)
{
	int rc;

	l->x = x;
	l->base = base;
	rc = lane_table(l, t, err);
	if (rc == 0)
		rc = plan_make(own, &l->table, NULL, &l->plan, NULL, err);
	if (rc < 0)
		return rc;
	l->op = calloc(l->plan.nop + 1, sizeof *l->op);
	if (!l->op)
		return ckpt_error(err, -ENOMEM, "no memory for an exchange");
	for (uint64_t i = 0; i < l->plan.nop; i++)
		l->op[i] = (struct lane_op){ l->table.piece[l->plan.op[i].dst_piece].off, i, NULL,
					     false };
	qsort(l->op, l->plan.nop, sizeof *l->op, lane_op_order);
	return 0;
}

static void lane_end(struct lane *l)
{
	for (uint64_t i = 0; l->op && i < l->plan.nop; i++)
		free(l->op[i].m);
	free(l->op);
	plan_free(&l->plan);
	table_free(&l->table);
}

static bool moving_next(struct moving *m)
{
	m->done = 0;
	return plan_row_next(&m->c, &m->row);
}

/* Its next row in o->m; o->ended: it has none. */
static int op_begin(const struct lane *l, struct lane_op *o, struct ckpt_err *err)
{
	if (o->m)
		return 0;
	o->m = malloc(sizeof *o->m);
	if (!o->m)
		return ckpt_error(err, -ENOMEM, "no memory for an exchange");
	plan_rows(&l->plan, &l->plan.op[o->op], &o->m->c);
	o->ended = !moving_next(o->m);
	return 0;
}

static void op_step(struct lane *l, struct lane_op *o, bool row_done)
{
	if (row_done)
		o->ended = !moving_next(o->m);
	if (o->ended)
		free(TAKE(o->m));
	while (l->first < l->plan.nop && l->op[l->first].ended)
		l->first++;
}

static int lines_copy(void *arg, const struct spread_lines *l, struct ckpt_err *err)
{
	(void)arg;
	(void)err;
	copy_lines((void *)(uintptr_t)l->to, l->to_pitch, (const void *)(uintptr_t)l->from,
		   l->from_pitch, l->width, l->rows);
	return 0;
}

/* Lines of one width at one distance are carried at once. All of one operation: they lie in one
 * piece's memory. */
static bool lines_grow(struct spread_lines *l, const struct spread_lines *next)
{
	if (!l->rows || next->rows != 1 || next->width != l->width || next->to <= l->to ||
	    next->from <= l->from)
		return false;
	if (l->rows == 1) {
		l->to_pitch = next->to - l->to;
		l->from_pitch = next->from - l->from;
	} else if (next->to != l->to + l->rows * l->to_pitch ||
		   next->from != l->from + l->rows * l->from_pitch) {
		return false;
	}
	l->rows++;
	return true;
}

/* Of the row on its way what lies before byte `to` of the stream; rows 0: nothing. *ret_end: the
 * row ends with it. Addresses: the row's memory begins at `mine`, byte `from` of the stream lies at
 * `at`. */
static struct spread_lines row_take(struct moving *m, uint64_t mine, uint64_t at, uint64_t from,
				    uint64_t to, bool out, bool *ret_end)
{
	const struct plan_row *r = &m->row;
	uint64_t step = r->elem ? r->dst_stride : 1, pos = r->dst_off + m->done * step;
	uint64_t all = r->elem ? r->n : r->len;
	uint64_t n = pos < to ? MIN(div_up(to - pos, step), all - m->done) : 0;
	uint64_t own = mine + r->src_off + m->done * (r->elem ? r->src_stride : 1);
	uint64_t stream = at + (pos - from);
	struct spread_lines l = { .to = out ? stream : own,
				  .from = out ? own : stream,
				  .width = r->elem ? r->elem : n,
				  .rows = r->elem ? n : n > 0 };

	if (r->elem) {
		l.to_pitch = out ? r->dst_stride : r->src_stride;
		l.from_pitch = out ? r->src_stride : r->dst_stride;
	}
	m->done += n;
	*ret_end = m->done == all;
	return l;
}

typedef int carry_fn(void *arg, const struct spread_lines *lines, struct ckpt_err *err);

static int op_carry(struct lane *l, struct lane_op *o, const struct spread_memory *m,
		    const struct span *span, uint64_t at, bool out, struct ckpt_err *err)
{
	uint64_t mine = l->base[l->plan.op[o->op].src_place];
	carry_fn *carry = m->carry ? m->carry : lines_copy;
	struct spread_lines last = { .rows = 0 };
	int rc = op_begin(l, o, err);

	while (rc == 0 && !o->ended) {
		bool end;
		struct spread_lines next =
			row_take(o->m, mine, at, span->from, span->to, out, &end);

		if (!next.rows)
			break;
		if (!lines_grow(&last, &next)) {
			rc = last.rows ? carry(m->arg, &last, err) : 0;
			last = next;
		}
		o->ended = end && !moving_next(o->m);
		if (!end)
			break;
	}
	if (rc == 0 && last.rows)
		rc = carry(m->arg, &last, err);
	return rc;
}

/* A span between the rank's memory and staging memory at `at`: out of the rank's, or into it. */
static int lane_carry(struct lane *l, const struct spread_memory *m, const struct span *span,
		      uint64_t at, bool out, struct ckpt_err *err)
{
	int rc = 0;

	for (uint64_t i = l->first; i < l->plan.nop && l->op[i].off < span->to && rc == 0; i++) {
		struct lane_op *o = &l->op[i];

		if (o->ended)
			continue;
		rc = op_carry(l, o, m, span, at, out, err);
		if (rc == 0)
			op_step(l, o, false);
	}
	return rc;
}

/*
 * If the rank's memory has the span in one stretch, and the transport carries from there or to
 * there: its address, and the lane moves on. 0: it does not.
 */
static int lane_direct(struct lane *l, const struct spread_memory *m, const struct span *span,
		       bool out, uint64_t *ret, struct ckpt_err *err)
{
	struct lane_op *o = &l->op[l->first];
	uint64_t n = span->to - span->from, at;
	int rc;

	*ret = 0;
	if (!(m->direct || (out && m->sends)) || l->first == l->plan.nop)
		return 0;
	rc = op_begin(l, o, err);
	if (rc < 0 || o->ended || o->m->row.elem || o->m->row.len - o->m->done < n ||
	    o->m->row.dst_off + o->m->done != span->from)
		return rc;
	at = l->base[l->plan.op[o->op].src_place] + o->m->row.src_off + o->m->done;
	if (!m->direct && !m->sends(m->arg, at, n))
		return 0;
	*ret = at;
	o->m->done += n;
	op_step(l, o, o->m->done == o->m->row.len);
	return 0;
}

/* --- a round --- */

static struct turn *turn_of(struct lane *l, uint64_t round)
{
	return &l->turn[round % 2];
}

static bool turn_moves(const struct turn *t)
{
	return t->span.from < t->span.to;
}

/* Its staging memory of the round. */
static uint64_t lane_window(const struct walk *k, const struct lane *l, uint64_t staging,
			    uint64_t round)
{
	bool second = k->how->ahead && round % 2 && !MUTANT(SPREAD_ONE_WINDOW);

	return staging + l->slot + (second ? l->window : 0);
}

/* What is sent in the round lies at turn.at: in its window, or in the rank's memory. */
static int lane_out(struct walk *k, struct lane *l, uint64_t round, struct ckpt_err *err)
{
	struct turn *t = turn_of(l, round);
	int rc = lane_direct(l, k->m, &t->span, true, &t->at, err);

	if (rc < 0 || t->at)
		return rc;
	t->at = lane_window(k, l, k->m->out, round);
	return lane_carry(l, k->m, &t->span, t->at, true, err);
}

/* What stays with the rank: by one copy, if it is one stretch where it is or where it goes. */
static int self_carry(struct walk *k, struct lane *out, uint64_t round, struct ckpt_err *err)
{
	struct turn *t = turn_of(out, round);
	int rc = lane_direct(k->self, k->m, &t->span, false, &t->at, err);

	if (rc < 0 || t->at)
		return rc < 0 ? rc : lane_carry(out, k->m, &t->span, t->at, true, err);
	rc = lane_out(k, out, round, err);
	return rc == 0 ? lane_carry(k->self, k->m, &t->span, t->at, false, err) : rc;
}

static int lane_recv(struct walk *k, struct lane *l, uint64_t round, struct ckpt_err *err)
{
	struct turn *t = turn_of(l, round);
	uint64_t at;
	int rc = lane_direct(l, k->m, &t->span, false, &at, err);

	t->staged = !at;
	if (rc == 0 && !at)
		at = lane_window(k, l, k->m->in, round);
	return rc == 0 ? k->t->calls->recv(k->t, l->x->peer, at, t->span.to - t->span.from, err)
		       : rc;
}

/* The spans of a round; what is sent is where it is sent from, and what stays is in its place. */
static int round_prepare(struct walk *k, uint64_t round, struct ckpt_err *err)
{
	struct spread *s = k->s;
	int rc = 0;

	for (uint32_t i = 0; i < s->in.n; i++) {
		struct lane *l = &k->in[i];

		turn_of(l, round)->span =
			spread_span(k->how, s->dst, l->x, l->x->peer, s->rank, round);
	}
	for (uint32_t i = 0; i < s->out.n && rc == 0; i++) {
		struct lane *l = &k->out[i];

		if (!l->x)
			continue;
		turn_of(l, round)->span =
			spread_span(k->how, s->src, l->x, s->rank, l->x->peer, round);
		if (turn_moves(turn_of(l, round)))
			rc = l->x->peer == s->rank ? self_carry(k, l, round, err)
						   : lane_out(k, l, round, err);
	}
	return rc;
}

/* Rounds in which the rank has nothing to do take their time, too. */
static uint64_t round_deadline(const struct walk *k, uint64_t round)
{
	uint64_t ns, at;

	if (ckpt_mul(round - k->next + 1, k->how->round_ns, &ns) < 0 ||
	    ckpt_add(MAX(k->ended_ns, round == k->next ? now_ns() : 0), ns, &at) < 0)
		return UINT64_MAX;
	return at;
}

/* *ret_some: does the rank send or receive anything? */
static int round_note(struct walk *k, uint64_t round, bool *ret_some, struct ckpt_err *err)
{
	struct spread *s = k->s;
	int rc = 0;

	*ret_some = false;
	k->t->round = round;
	for (uint32_t i = 0; i < s->in.n && rc == 0; i++)
		if (turn_moves(turn_of(&k->in[i], round))) {
			*ret_some = true;
			rc = lane_recv(k, &k->in[i], round, err);
		}
	for (uint32_t i = 0; i < s->out.n && rc == 0; i++) {
		struct lane *l = &k->out[i];
		const struct turn *t = turn_of(l, round);

		if (!l->x || !turn_moves(t) || l->x->peer == s->rank)
			continue;
		*ret_some = true;
		rc = k->t->calls->send(k->t, l->x->peer, t->at, t->span.to - t->span.from, err);
	}
	return rc;
}

static int round_move(struct walk *k, uint64_t round, struct ckpt_err *err)
{
	int rc = k->t->calls->round_end(k->t, round_deadline(k, round), err);

	k->ended_ns = now_ns();
	k->next = round + 1;
	return rc;
}

/* What was received is carried to its place. */
static int round_land(struct walk *k, uint64_t round, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < k->s->in.n && rc == 0; i++) {
		struct lane *l = &k->in[i];
		const struct turn *t = turn_of(l, round);

		if (turn_moves(t) && t->staged)
			rc = lane_carry(l, k->m, &t->span, lane_window(k, l, k->m->in, round),
					false, err);
	}
	if (rc == 0)
		k->s->rounds = round + 1;
	return rc;
}

static uint64_t rounds_of(const struct walk *k)
{
	uint64_t most = 0;

	if (k->how->rounds)
		return k->how->rounds->n;
	for (uint32_t i = 0; i < k->s->in.n; i++)
		most = MAX(most, k->in[i].x->bytes);
	for (uint32_t i = 0; i < k->s->out.n; i++)
		most = MAX(most, k->out[i].x ? k->out[i].x->bytes : 0);
	return div_up(most, k->how->chunk_bytes);
}

/* One round behind the other. */
static int rounds_run(struct walk *k, uint64_t n, struct ckpt_err *err)
{
	int rc = 0;

	for (uint64_t i = 0; i < n && rc == 0; i++) {
		bool some = false;

		rc = round_prepare(k, i, err);
		if (rc == 0)
			rc = round_note(k, i, &some, err);
		if (rc == 0 && some)
			rc = round_move(k, i, err);
		if (rc == 0)
			rc = round_land(k, i, err);
	}
	return rc;
}

/* While the transport moves a round, the copies of the two beside it run. */
static int rounds_run_ahead(struct walk *k, uint64_t n, struct ckpt_err *err)
{
	int rc = n ? round_prepare(k, 0, err) : 0;

	for (uint64_t i = 0; i < n && rc == 0; i++) {
		bool some;

		rc = round_note(k, i, &some, err);
		if (rc == 0 && i)
			rc = round_land(k, i - 1, err);
		if (rc == 0 && i + 1 < n)
			rc = round_prepare(k, i + 1, err);
		if (rc == 0 && some)
			rc = round_move(k, i, err);
	}
	return rc == 0 && n ? round_land(k, n - 1, err) : rc;
}

/* --- all of it --- */

static int walk_begin(struct walk *k, struct ckpt_err *err)
{
	const struct spread *s = k->s;
	const struct spread_memory *m = k->m;
	uint64_t out = 0, in = 0;
	int rc = 0;

	k->out = calloc((size_t)s->out.n + 1, sizeof *k->out);
	k->in = calloc((size_t)s->in.n + 1, sizeof *k->in);
	k->self = calloc(1, sizeof *k->self);
	if (!k->out || !k->in || !k->self)
		return ckpt_error(err, -ENOMEM, "no memory for an exchange");
	for (uint32_t i = 0; i < s->out.n && rc == 0; i++) {
		const struct stream *x = &s->out.stream[i];

		k->out[i].slot = out;
		k->out[i].window = spread_slot(k->how, x);
		out += k->out[i].window << k->how->ahead;
		if (x->peer == s->rank && m->from == m->to)
			continue;
		rc = lane_begin(&k->out[i], x, s->src, m->from, m->from_base, err);
		if (rc == 0 && x->peer == s->rank)
			rc = lane_begin(k->self, x, s->src, m->to, m->to_base, err);
	}
	for (uint32_t i = 0; i < s->in.n && rc == 0; i++) {
		k->in[i].slot = in;
		k->in[i].window = spread_slot(k->how, &s->in.stream[i]);
		in += k->in[i].window << k->how->ahead;
		rc = lane_begin(&k->in[i], &s->in.stream[i], s->dst, m->to, m->to_base, err);
	}
	return rc;
}

static void walk_end(struct walk *k)
{
	for (uint32_t i = 0; k->out && i < k->s->out.n; i++)
		lane_end(&k->out[i]);
	for (uint32_t i = 0; k->in && i < k->s->in.n; i++)
		lane_end(&k->in[i]);
	if (k->self)
		lane_end(k->self);
	free(k->out);
	free(k->in);
	free(k->self);
}

int spread_run(struct spread *s, struct spread_transport *t, const struct spread_memory *m,
	       const struct spread_how *how, struct ckpt_err *err)
{
	struct walk k = { .s = s, .t = t, .m = m, .how = how };
	int rc;

	assert(how->rounds || how->chunk_bytes >= SPREAD_CHUNK_MIN);
	assert(!(how->ahead && m->direct));
	s->rounds = 0;
	rc = walk_begin(&k, err);
	k.ended_ns = now_ns();
	if (rc == 0)
		rc = (how->ahead ? rounds_run_ahead : rounds_run)(&k, rounds_of(&k), err);
	walk_end(&k);
	if (rc < 0 && !MUTANT(SPREAD_NOT_ABORTED))
		t->calls->abort(t);
	return rc;
}
