/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - see walk.h. Called by chunk_stream, by the daemon for steps that stay in memory, and
 * through chunk_stream by the converter. Invariant: chunks [0, passed) were seen by everything that
 * rides on the walk, once and in order; no other chunk was seen by anything.
 */
#include "ckpt/move/walk.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/util.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/round.h"
#include "formats/chunk_map.h"

/* So many chunks may be summed before the caller has taken the first of them. */
#define AHEAD 64u
#define HELPERS_MAX 8u

/* A piece that is perhaps the rounding of another one. */
struct derivative {
	uint32_t master, piece; /* of t */
	bool trusted;		/* it is not compared */
	uint64_t unequal, fp;
};

struct walk {
	struct table *t;
	uint32_t rank;
	const struct walk_pass *pass;
	uint32_t npass, nhelper;
	struct place_pieces pieces;
	struct chunk *chunk; /* [nchunk] */
	uint64_t nchunk, data_off, data_end;
	uint64_t passed;
	const uint8_t *raw; /* walk_raw's; else NULL */
	/* The tensors that are derived are compared before the walk comes to chunk derived_at. */
	uint64_t derived_at;
	struct derivative
		*derivative; /* [nderivative] sorted by master; NULL: not looked for yet */
	uint32_t nderivative;
	uint32_t ntrusted; /* pieces that are to be derived without being compared */
	bool decided;	   /* they were compared to the end */
	struct part_derived derived;
	struct ckpt_err fail; /* its code is 0 while nothing has failed */
};

/* --- what is derived --- */

static int by_master(const void *va, const void *vb)
{
	const struct derivative *a = va, *b = vb;

	if (a->master != b->master)
		return a->master < b->master ? -1 : 1;
	return (a->piece > b->piece) - (a->piece < b->piece);
}

/*
 * The pieces that may be derived: those behind all of whose masters' bytes the first of their own
 * chunks begins. In a raw space as a format lays it out that is all of them.
 */
static int derivatives_list(struct walk *w)
{
	const struct table *t = w->t;
	cleanup_free uint32_t *twin = calloc((size_t)t->npiece + 1, sizeof *twin);
	uint32_t trusted = 0;

	w->derived_at = w->nchunk;
	w->derivative = calloc((size_t)t->npiece + 1, sizeof *w->derivative);
	if (!w->derivative || !twin || table_twins(t, twin) < 0)
		return -ENOMEM;
	if (w->passed) /* sums were given: what came before them was compared with nothing */
		return w->ntrusted ? -EINVAL : 0;
	for (uint32_t i = 0; i < t->npiece; i++)
		if (twin[i] != TABLE_NONE)
			w->derived_at = MIN(w->derived_at, t->piece[i].off >> CHUNK_LOG2);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *m = twin[i] == TABLE_NONE ? NULL : &t->piece[twin[i]];

		if (m && m->off + m->len <= w->derived_at << CHUNK_LOG2)
			w->derivative[w->nderivative++] =
				(struct derivative){ .master = twin[i],
						     .piece = i,
						     .trusted = t->piece[i].flags & PIECE_TRUSTED };
	}
	for (uint32_t k = 0; k < w->nderivative; k++)
		trusted += w->derivative[k].trusted;
	if (trusted < w->ntrusted)
		return -EINVAL;
	qsort(w->derivative, w->nderivative, sizeof *w->derivative, by_master);
	return 0;
}

static int derivatives_find(struct walk *w, struct ckpt_err *err)
{
	int e = derivatives_list(w);

	if (e == 0)
		return 0;
	free(TAKE(w->derivative));
	w->nderivative = 0;
	return ckpt_error(err, e,
			  e == -ENOMEM ? "%s: out of memory for what is derived in it"
				       : "%s: a piece without bytes has no master before it",
			  w->t->place[0].name);
}

static uint32_t derivatives_of(const struct walk *w, uint32_t master)
{
	uint32_t from = 0, to = w->nderivative;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (w->derivative[mid].master < master)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

#define COMPARE_STEP \
	1024u /* elements: both sides stay in the nearest cache until they are summed */

/* Elements number [from, to) of a master, which lie at p, are in the cache. */
static void derivative_compare(struct walk *w, struct derivative *d, uint64_t from, uint64_t to,
			       const uint8_t *p)
{
	const struct table_piece *x = &w->t->piece[d->piece];
	const uint8_t *have = w->raw + x->off + from * ROUND_TO_BYTES;

	for (uint64_t n; from < to;
	     from += n, p += n * ROUND_FROM_BYTES, have += n * ROUND_TO_BYTES) {
		uint64_t first = 0, unequal = 0;

		n = MIN(to - from, COMPARE_STEP);
		if (d->trusted) {
			d->fp += piece_fingerprint_rounded(w->t, x, from, from + n, p);
			continue;
		}
		for (uint32_t i = 0; i < n * ROUND_TO_BYTES; i += 64) /* of the step to come */
			__builtin_prefetch((const void *)((uintptr_t)have + n * ROUND_TO_BYTES + i),
					   0, 2);
		if (!MUTANT(DERIVED_UNCHECKED))
			unequal = round_unequal(w->t->tensor[x->tensor].dtype, p, have, n, &first);
		if (unequal && w->derived.tensor == TABLE_NONE) {
			w->derived.tensor = x->tensor;
			w->derived.element = from + first;
		}
		d->unequal += unequal;
		if (!d->unequal)
			d->fp += piece_fingerprint(w->t, x, from, from + n, have);
	}
}

static void span_compare(struct walk *w, uint32_t master, const struct walk_span *s)
{
	const struct table_piece *m = &w->t->piece[master];
	uint64_t lo = MAX(s->off, m->off), hi = MIN(s->off + s->len, m->off + m->len);

	for (uint32_t k = derivatives_of(w, master);
	     k < w->nderivative && w->derivative[k].master == master && lo < hi; k++)
		derivative_compare(w, &w->derivative[k], (lo - m->off) / ROUND_FROM_BYTES,
				   (hi - m->off) / ROUND_FROM_BYTES, s->p + (lo - s->off));
}

/* All masters have been seen: from here on the chunks are those of what is left. */
static int derived_decide(struct walk *w, struct ckpt_err *err)
{
	struct chunk *chunk;
	uint64_t n;
	int e;

	for (uint32_t k = 0; k < w->nderivative; k++) {
		const struct derivative *d = &w->derivative[k];
		struct table_piece *x = &w->t->piece[d->piece];

		if (d->unequal) {
			w->derived.unequal++;
			w->derived.elements += d->unequal;
			continue;
		}
		x->flags = PIECE_DERIVED | (d->trusted ? PIECE_TRUSTED : 0);
		x->from = w->t->piece[d->master].off;
		x->fp = d->fp;
		w->derived.pieces++;
		w->derived.bytes += x->len;
	}
	e = chunk_map_make(w->t, w->data_off, &chunk, &n, &w->data_end, err);
	if (e < 0)
		return e;
	for (uint64_t i = 0; i < w->derived_at; i++) {
		assert(chunk[i].off == w->chunk[i].off && chunk[i].raw_len == w->chunk[i].raw_len);
		chunk[i].raw_hash = w->chunk[i].raw_hash;
	}
	free(w->chunk);
	w->chunk = chunk;
	w->decided = true;
	return 0;
}

/* --- sums --- */

/* The masters in a span, which is in the cache, with what is derived of them. */
static void span_derived(struct walk *w, const struct walk_span *s)
{
	uint64_t end = MIN(s->off + s->len, w->derived_at << CHUNK_LOG2);

	for (uint32_t k = place_pieces_from(&w->pieces, 0, s->off); k < w->t->npiece; k++) {
		uint32_t i = w->pieces.piece[k];

		if (w->t->piece[i].off >= end)
			break;
		if (!(w->t->piece[i].flags & PIECE_DERIVED))
			span_compare(w, i, s);
	}
}

/* All that is made of a chunk, in one pass. fp: as place_pieces_sums has it. */
static int chunk_pass(struct walk *w, uint64_t i, const uint8_t *p, uint64_t *fp)
{
	struct chunk *c = &w->chunk[i];
	struct walk_span s = { .t = w->t, .rank = w->rank };
	struct hash128_state sum;
	int e = 0;

	hash128_begin(&sum);
	for (uint64_t at = 0; at < c->raw_len && e >= 0; at += s.len) {
		s.p = p + at;
		s.off = (i << CHUNK_LOG2) + at;
		s.len = (uint32_t)MIN(c->raw_len - at, WALK_SPAN_BYTES);
		s.last = at + s.len == c->raw_len;
		place_pieces_sums(&w->pieces, w->t, s.p, s.off, s.off + s.len, &sum, fp);
		if (w->nderivative && !w->decided)
			span_derived(w, &s);
		for (uint32_t k = 0; k < w->npass && e >= 0; k++)
			e = w->pass[k].span(w->pass[k].ctx, &s);
	}
	c->raw_hash = hash128_end(&sum);
	return e;
}

static int walk_result(const struct walk *w, struct ckpt_err *err)
{
	if (err && w->fail.code)
		*err = w->fail;
	return w->fail.code;
}

/* The first chunk at or behind i that is no hole; nchunk: there is none. */
static uint64_t chunk_from(const struct walk *w, uint64_t i)
{
	while (i < w->nchunk && !w->chunk[i].raw_len)
		i++;
	return i;
}

static int walk_next(struct walk *w, uint64_t i, const uint8_t *p)
{
	int e;

	if (w->fail.code || (i < w->passed && !MUTANT(PASSED_AGAIN)))
		return w->fail.code;
	e = chunk_pass(w, i, p, NULL);
	if (e < 0)
		return ckpt_error(&w->fail, e,
				  "%s: what is made of its bytes on the way failed: %s",
				  w->t->place[0].name, strerror(-e));
	w->passed = i + 1;
	return 0;
}

int walk_chunk(struct walk *w, uint64_t i, const uint8_t *p, struct ckpt_err *err)
{
	if (!w->fail.code && i >= w->passed && i != chunk_from(w, w->passed))
		return ckpt_error(err, -EINVAL, "%s: its chunk %llu is not what follows",
				  w->t->place[0].name, (unsigned long long)i);
	if (w->ntrusted && !w->decided)
		return ckpt_error(err, -EINVAL, "%s: its pieces without bytes are not found yet",
				  w->t->place[0].name);
	(void)walk_next(w, i, p);
	return walk_result(w, err);
}

/* --- with helpers --- */
struct team {
	struct walk *w;
	const uint8_t *raw;
	pthread_mutex_t lock; /* protects all below */
	pthread_cond_t moved;
	uint64_t
		claim; /* the next chunk that nobody has; those before it are done, or in somebody's hands */
	uint64_t told; /* chunks before it were told */
	bool *done;    /* [nchunk] */
	bool stop;
};
struct helper {
	struct team *team;
	pthread_t thread;
	uint64_t *fp; /* [npiece] */
};

/* Under the lock. UINT64_MAX: none now. */
static uint64_t team_claim(struct team *m)
{
	uint64_t i = m->claim;

	if (m->stop || i >= m->w->nchunk || i > m->told + AHEAD)
		return UINT64_MAX;
	m->claim = chunk_from(m->w, i + 1);
	return i;
}

/* Under the lock, which it leaves meanwhile. */
static void team_pass(struct team *m, uint64_t i, uint64_t *fp)
{
	(void)pthread_mutex_unlock(&m->lock);
	(void)chunk_pass(m->w, i, m->raw + (i << CHUNK_LOG2), fp);
	(void)pthread_mutex_lock(&m->lock);
	m->done[i] = true;
	(void)pthread_cond_broadcast(&m->moved);
}

static void *helper_run(void *arg)
{
	struct helper *h = arg;
	struct team *m = h->team;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop && m->claim < m->w->nchunk) {
		uint64_t i = team_claim(m);

		if (i == UINT64_MAX)
			(void)pthread_cond_wait(&m->moved, &m->lock);
		else
			team_pass(m, i, h->fp);
	}
	(void)pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* Chunk i is the next to be told: it is passed here, unless a helper has it. */
static void team_reach(struct team *m, uint64_t i)
{
	(void)pthread_mutex_lock(&m->lock);
	m->told = i;
	(void)pthread_cond_broadcast(&m->moved);
	while (!m->done[i]) {
		uint64_t k = team_claim(m);

		if (k == UINT64_MAX)
			(void)pthread_cond_wait(&m->moved, &m->lock);
		else
			team_pass(m, k, NULL);
	}
	(void)pthread_mutex_unlock(&m->lock);
}

/* What was claimed was passed: the walk stands behind it. */
static void team_end(struct team *m, struct helper *helper, uint32_t n)
{
	struct walk *w = m->w;

	(void)pthread_mutex_lock(&m->lock);
	m->stop = true;
	(void)pthread_cond_broadcast(&m->moved);
	(void)pthread_mutex_unlock(&m->lock);
	for (uint32_t i = 0; i < n; i++) {
		(void)pthread_join(helper[i].thread, NULL);
		for (uint32_t k = 0; k < w->t->npiece; k++)
			w->t->piece[k].fp += helper[i].fp[k];
		free(helper[i].fp);
	}
	w->passed = MAX(w->passed, m->claim);
	free(m->done);
	(void)pthread_cond_destroy(&m->moved);
	(void)pthread_mutex_destroy(&m->lock);
}

/* How many are there; 0: the walk goes on alone. */
static uint32_t team_begin(struct team *m, struct walk *w, const uint8_t *raw,
			   struct helper *helper)
{
	uint32_t n = 0;

	*m = (struct team){ .w = w,
			    .raw = raw,
			    .claim = chunk_from(w, w->passed),
			    .done = calloc(w->nchunk + 1, sizeof *m->done) };
	for (uint64_t i = 0; m->done && i < m->claim; i++)
		m->done[i] = true;
	(void)pthread_mutex_init(&m->lock, NULL);
	(void)pthread_cond_init(&m->moved, NULL);
	while (m->done && n < MIN(w->nhelper, HELPERS_MAX)) {
		struct helper *h = &helper[n];

		h->team = m;
		h->fp = calloc((size_t)w->t->npiece + 1, sizeof *h->fp);
		if (!h->fp || thread_start(&h->thread, "ckptd-sums", true, helper_run, h) < 0) {
			free(h->fp);
			break;
		}
		n++;
	}
	if (n == 0)
		team_end(m, helper, 0);
	return n;
}

/* --- all of it --- */

/* Chunk by chunk up to `end`. */
static int chunks_walk(struct walk *w, const uint8_t *raw, uint64_t from, uint64_t end,
		       struct team *team, walk_passed_fn *passed, void *arg)
{
	int e = 0;

	for (uint64_t i = chunk_from(w, from); i < end && e == 0; i = chunk_from(w, i + 1)) {
		const uint8_t *p = raw + (i << CHUNK_LOG2);

		if (team)
			team_reach(team, i);
		else
			e = walk_next(w, i, p);
		if (e == 0 && passed)
			e = passed(arg, i, p);
	}
	return e;
}

int walk_raw(struct walk *w, const void *raw, walk_passed_fn *passed, void *arg,
	     struct ckpt_err *err)
{
	struct helper helper[HELPERS_MAX];
	struct team team;
	uint32_t n = 0;
	int e;

	if (w->fail.code)
		return walk_result(w, err);
	w->raw = raw;
	if (!w->derivative && (e = derivatives_find(w, err)) < 0)
		return e;
	if (w->nhelper && !w->npass && !w->nderivative && w->passed < w->nchunk)
		n = team_begin(&team, w, raw, helper);
	if (n) {
		e = chunks_walk(w, raw, 0, w->nchunk, &team, passed, arg);
		team_end(&team, helper, n);
	} else {
		uint64_t at = MIN(w->derived_at, w->nchunk);

		e = chunks_walk(w, raw, 0, at, NULL, passed, arg);
		if (e == 0 && w->nderivative && !w->decided)
			e = derived_decide(w, err);
		if (e == 0)
			e = chunks_walk(w, raw, at, w->nchunk, NULL, passed, arg);
	}
	if (e == 0)
		w->passed = w->nchunk;
	return w->fail.code ? walk_result(w, err) : e;
}

bool walk_failed(const struct walk *w)
{
	return w->fail.code;
}

bool walk_ended(const struct walk *w)
{
	return !w->fail.code && chunk_from(w, w->passed) >= w->nchunk;
}

const struct chunk *walk_chunks(const struct walk *w, uint64_t *ret_n, uint64_t *ret_data_end)
{
	if (ret_n)
		*ret_n = w->nchunk;
	if (ret_data_end)
		*ret_data_end = w->data_end;
	return w->chunk;
}

const struct part_derived *walk_derived(const struct walk *w)
{
	return &w->derived;
}

uint64_t walk_fixed(const struct table *t)
{
	uint64_t n = div_up(t->place[0].bytes, UINT64_C(1) << CHUNK_LOG2);

	for (uint32_t i = 0; i < t->npiece; i++)
		if (t->tensor[t->piece[i].tensor].cls == CKPT_DERIVED)
			n = MIN(n, t->piece[i].off >> CHUNK_LOG2);
	return n;
}

bool walk_derives(const struct table *t)
{
	for (uint32_t i = 0; i < t->npiece; i++)
		if (t->tensor[t->piece[i].tensor].cls == CKPT_DERIVED)
			return true;
	return false;
}

static int walk_begin(struct walk *w, const struct walk_opts *o, struct ckpt_err *err)
{
	int e;

	for (uint32_t i = 0; i < w->t->npiece; i++) /* an earlier walk may have set them */
		w->t->piece[i].flags &= PIECE_TRUSTED;
	for (uint32_t i = 0; i < w->t->npiece; i++)
		w->ntrusted += w->t->piece[i].flags != 0;
	e = chunk_map_make(w->t, w->data_off, &w->chunk, &w->nchunk, &w->data_end, err);
	if (e < 0)
		return e;
	if (o->nsum > w->nchunk)
		return ckpt_error(err, -EBADMSG, "%s: what was saved of it is of another part",
				  w->t->place[0].name);
	for (uint64_t i = 0; i < o->nsum; i++)
		w->chunk[i].raw_hash = o->sum[i].raw_hash;
	w->passed = o->nsum;
	for (uint32_t i = 0; i < w->t->npiece; i++) {
		if (!piece_splits(w->t, &w->t->piece[i]))
			return ckpt_error(
				err, -EINVAL,
				"piece %u of %s is not row-major on a bound of its elements", i,
				w->t->place[0].name);
		if (!o->resumed)
			w->t->piece[i].fp = 0;
		w->t->piece[i].fp_known = true;
	}
	if (place_pieces_make(w->t, &w->pieces) < 0)
		return ckpt_error(err, -ENOMEM, "out of memory for the sums of a part");
	return 0;
}

int walk_open(const struct walk_opts *opts, struct table *t, uint32_t rank, struct walk **ret,
	      struct ckpt_err *err)
{
	struct walk *w = calloc(1, sizeof *w);
	int e;

	*ret = NULL;
	assert(t->sealed && t->nplace == 1);
	if (!w)
		return ckpt_error(err, -ENOMEM, "out of memory for a part");
	w->t = t;
	w->rank = rank;
	w->pass = opts->pass;
	w->npass = opts->npass;
	w->nhelper = opts->nhelper;
	w->data_off = opts->data_off;
	w->derived.tensor = TABLE_NONE;
	e = walk_begin(w, opts, err);
	if (e < 0) {
		walk_close(w);
		return e;
	}
	*ret = w;
	return 0;
}

void walk_close(struct walk *w)
{
	if (!w)
		return;
	place_pieces_free(&w->pieces);
	free(w->derivative);
	free(w->chunk);
	free(w);
}
