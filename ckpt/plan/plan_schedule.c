/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_schedule.c - see plan_schedule.h. Called by spread.c, and by what draws and prices
 * exchanges. Invariant: what is computed here depends on the two declarations and the options
 * alone, so all ranks agree; the messages of a stream cover it, each byte once, in rounds that
 * ascend.
 */
#include "ckpt/plan/plan_schedule.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/schedule_bound.h"
#include "ckpt/plan/sender.h"

#define LABEL_BYTES 160
#define TALLY_SORTED 16u /* one rank in so many is few */

/* --- how a stream is cut --- */

uint64_t schedule_messages(const struct schedule_rounds *r, uint64_t bytes)
{
	return MIN(r->n, div_up(bytes, r->message_bytes));
}

/* How far the stream's messages are shifted, of [0, K). */
static uint64_t phase_of(const struct schedule_rounds *r, uint32_t from, uint32_t to)
{
	uint64_t at = (uint64_t)(to - from) * UINT64_C(0x9e3779b97f4a7c15);

	return MUTANT(SCHEDULE_NO_PHASE) ? 0 : (uint64_t)((unsigned __int128)r->n * at >> 64);
}

uint64_t schedule_round_of(const struct schedule_rounds *r, uint32_t from, uint32_t to,
			   uint64_t bytes, uint64_t message)
{
	return (message * r->n + phase_of(r, from, to)) / schedule_messages(r, bytes);
}

static uint64_t cut_at(uint64_t bytes, uint64_t message, uint64_t n)
{
	uint64_t at = (uint64_t)((unsigned __int128)bytes * message / n);

	return message == n ? bytes : at - at % SCHEDULE_ALIGN;
}

void schedule_span(const struct schedule_rounds *r, uint32_t from, uint32_t to, uint64_t bytes,
		   uint64_t round, uint64_t *ret_from, uint64_t *ret_to)
{
	uint64_t n = schedule_messages(r, bytes), phase, begin, message;

	*ret_from = *ret_to = 0;
	if (n == 0 || round >= r->n)
		return;
	/* The first message that is not before the round. */
	phase = phase_of(r, from, to);
	begin = round * n;
	message = begin <= phase ? 0 : div_up(begin - phase, r->n);
	*ret_from = *ret_to = cut_at(bytes, MIN(message, n), n);
	if (message < n && schedule_round_of(r, from, to, bytes, message) == round)
		*ret_to = cut_at(bytes, message + 1, n);
}

/* --- kinds of tensors --- */

struct kind {
	uint32_t tensor, src; /* of dst, and where it comes from: one for all that are alike */
	uint32_t bucket;      /* of sender.h, where a replica has to be chosen */
	uint64_t count;
};

/* What one rank exchanges with each other one, in one direction. All 0 but those of the peers. */
struct tally {
	uint64_t *bytes; /* [ranks] */
	uint32_t *peer;	 /* [n] places in bytes */
	uint32_t n;
};

struct schedule {
	const struct table *src, *dst;
	struct schedule_opts opts;
	struct schedule_rounds rounds;
	struct reshard *reshard;
	struct ranks ranks;
	struct tally tally;
	struct arena arena;
	struct kind *kind;
	uint32_t nkind, cap, left_out;
	struct keymap seen;
};

bool schedule_takes(const struct table *t, const struct table_tensor *x, bool is_src)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];
	uint32_t i = (uint32_t)(x - t->tensor);

	if (x->flags & TENSOR_BLOB || x->made || (is_src && x->cls == CKPT_SINK))
		return false;
	if (l)
		return l->mode != CKPT_BOXES && !layout_is_partial(l);
	if (!is_src)
		return true;
	for (uint32_t p = t->first[i]; p < t->first[i + 1]; p++)
		if (t->piece[p].rank == TABLE_NONE)
			return false;
	return t->first[i] < t->first[i + 1];
}

static bool kind_is(const struct schedule *s, const struct kind *k, const struct kind *other)
{
	const struct table_tensor *x = &s->dst->tensor[k->tensor];
	const struct table_tensor *y = &s->dst->tensor[other->tensor];

	return k->bucket == other->bucket && x->layout == y->layout &&
	       s->src->tensor[k->src].layout == s->src->tensor[other->src].layout &&
	       x->dtype == y->dtype && table_shape_same(x, y);
}

static uint64_t kind_hash(const struct schedule *s, const struct kind *k)
{
	const struct table_tensor *x = &s->dst->tensor[k->tensor];
	uint32_t key[] = { s->src->tensor[k->src].layout, x->layout, x->dtype, k->bucket };

	return key_hash(key_hash(0, key, sizeof key), x->shape, x->ndim * sizeof *x->shape);
}

/* Are all tensors with the layouts and the shape of this one alike in what a schedule depends
 * on? */
static bool is_alone(const struct schedule *s, const struct kind *k)
{
	return s->opts.who == HOLDERS_OWNERS || s->src->tensor[k->src].layout == TABLE_NONE;
}

static int kind_count(struct schedule *s, const struct kind *k)
{
	uint64_t hash = kind_hash(s, k);
	uint32_t at = 0, i = KEYMAP_NONE;
	bool alone = is_alone(s, k);

	if (!alone)
		while ((i = keymap_next(&s->seen, hash, &at)) != KEYMAP_NONE)
			if (kind_is(s, &s->kind[i], k))
				break;
	if (i != KEYMAP_NONE) {
		s->kind[i].count += !MUTANT(SCHEDULE_KIND_ONCE);
		return 0;
	}
	if (!ARRAY_GROW(s->kind, s->nkind, s->cap) ||
	    (!alone && keymap_reserve(&s->seen, &s->arena, 1) < 0))
		return -ENOMEM;
	if (!alone) /* else all with this hash would be in one row, and each walk past them */
		keymap_put(&s->seen, hash, s->nkind);
	s->kind[s->nkind++] = *k;
	return 0;
}

/* Does any rank that needs some of a tensor of this layout have replicas to choose from? */
static bool has_replicas(const struct table *t, uint32_t layout)
{
	const struct layout *l = &t->layout[layout];

	return sender_replicas_of(&t->mesh[l->mesh], true, l, 0).n > 1;
}

static int kinds_find(struct schedule *s, struct ckpt_errlist *list)
{
	cleanup_free bool *choose = calloc((size_t)s->src->nlayout + 1, sizeof *choose);
	char label[LABEL_BYTES];
	int e = choose ? 0 : -ENOMEM;

	for (uint32_t l = 0; l < s->src->nlayout && !e; l++)
		choose[l] = s->opts.who == HOLDERS_ONE && has_replicas(s->src, l);
	for (uint32_t i = 0; i < s->dst->ntensor && !e; i++) {
		struct kind k = { .tensor = i, .count = 1 };
		const struct table_tensor *x = &s->dst->tensor[i], *y;

		if (!schedule_takes(s->dst, x, false) ||
		    (s->opts.wanted && !s->opts.wanted(s->opts.wanted_arg, i)))
			continue;
		k.src = reshard_source(s->reshard, i, list);
		if (k.src == TABLE_NONE)
			continue;
		y = &s->src->tensor[k.src];
		if (!schedule_takes(s->src, y, true)) {
			s->left_out += x->numel > 0;
		} else if (x->dtype != y->dtype) {
			ckpt_errlist_add(list, "%s: declared %s, the source has %s",
					 table_tensor_print(x, label, sizeof label),
					 dtype_name(x->dtype), dtype_name(y->dtype));
		} else {
			if (y->layout != TABLE_NONE && choose[y->layout]) {
				const struct table_tensor *as = table_owned_as(s->src, y);

				k.bucket = sender_bucket(as->component, as->name);
			}
			e = kind_count(s, &k);
		}
	}
	return e;
}

/* --- rounds --- */

/* What a rank sends and receives at most, kind by kind; *ret_at: the tensor at which that fails. */
static int bounds_add(struct schedule *s, struct rank_bounds *b, uint32_t *ret_at)
{
	int e = 0;

	for (uint32_t i = 0; i < s->nkind && !e; i++) {
		const struct kind *k = &s->kind[i];
		struct bound_kind x = { .src_tensor = k->src,
					.dst_tensor = k->tensor,
					.count = k->count,
					.who = s->opts.who,
					.per_host = s->opts.links ? s->opts.links->per_host : 0 };

		*ret_at = k->tensor;
		e = rank_bounds_add(b, &x);
	}
	return e;
}

/* By bounds. */
static int most_bound(struct schedule *s, uint64_t *ret, struct ckpt_err *err)
{
	struct rank_bounds b;
	uint32_t at = 0;
	char label[LABEL_BYTES];
	int e = rank_bounds_open(s->src, s->dst, &s->ranks, &b);

	if (!e)
		e = bounds_add(s, &b, &at);
	if (!e)
		e = rank_bounds_most(&b, ret);
	rank_bounds_close(&b);
	if (e == -ENOMEM)
		return ckpt_error(err, e, "out of memory for the schedule of %u ranks", s->ranks.n);
	if (e)
		return ckpt_error(err, e,
				  e == -EOVERFLOW
					  ? "%s: with this tensor, the bytes of a rank can no "
					    "longer be counted in 64 bits"
					  : "%s: its shares are too interleaved to plan",
				  table_tensor_print(&s->dst->tensor[at], label, sizeof label));
	return 0;
}

/* By asking all of them. */
static int most_exact(struct schedule *s, uint64_t *ret, struct ckpt_err *err)
{
	int e = 0;

	for (uint32_t i = 0; i < s->ranks.n && !e; i++) {
		struct ckpt_errlist ignored = { .code = -ENOLINK };
		struct schedule_part p;

		e = schedule_part_list(s, s->ranks.rank[i], &p, &ignored, err);
		if (!e) {
			*ret = MAX(*ret, p.in_bytes);
			*ret = MAX(*ret, p.out_bytes);
			schedule_part_free(&p);
		}
		ckpt_errlist_free(&ignored);
	}
	return e;
}

/* A power of two, which is printed exactly. */
static uint64_t round_enough(uint64_t most)
{
	uint64_t bytes = MIB;

	while (div_up(most, bytes) > SCHEDULE_ROUNDS_MAX)
		bytes *= 2;
	return bytes;
}

static int rounds_find(struct schedule *s, struct ckpt_err *err)
{
	uint64_t most = 0;
	int e = most_bound(s, &most, err);

	if (!e && (uint64_t)s->ranks.n * s->nkind <= SCHEDULE_ASKED_MAX) {
		most = 0;
		e = most_exact(s, &most, err);
	}
	if (e)
		return e;
	if (MUTANT(SCHEDULE_FEW_ROUNDS))
		most /= 2;
	s->rounds.n = div_up(most, s->opts.round_bytes);
	if (s->nkind) /* what stays with its rank is carried in a round, too */
		s->rounds.n = MAX(s->rounds.n, UINT64_C(1));
	if (s->rounds.n <= SCHEDULE_ROUNDS_MAX)
		return 0;
	return ckpt_error(
		err, -E2BIG,
		"a rank exchanges up to %s in %s rounds of %s, and %s rounds is the most: choose "
		"rounds of at least %s",
		BYTES_TEXT(most), COUNT_TEXT(s->rounds.n), BYTES_TEXT(s->opts.round_bytes),
		COUNT_TEXT(SCHEDULE_ROUNDS_MAX), BYTES_TEXT(round_enough(most)));
}

/* --- peers of a rank --- */

static int tally_open(struct tally *t, uint32_t ranks)
{
	t->bytes = calloc((size_t)ranks + 1, sizeof *t->bytes);
	t->peer = calloc((size_t)ranks + 1, sizeof *t->peer);
	return t->bytes && t->peer ? 0 : -ENOMEM;
}

static void tally_close(struct tally *t)
{
	free(t->bytes);
	free(t->peer);
}

static void tally_clear(struct tally *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		t->bytes[t->peer[i]] = 0;
	t->n = 0;
}

static int by_place(const void *x, const void *y)
{
	return COMPARE(*(const uint32_t *)x, *(const uint32_t *)y);
}

/* Few peers are sorted; where they are many, looking at all ranks costs less. */
static void tally_sort(struct tally *t, uint32_t ranks)
{
	if (t->n < ranks / TALLY_SORTED) {
		if (t->n)
			qsort(t->peer, t->n, sizeof *t->peer, by_place);
		return;
	}
	t->n = 0;
	for (uint32_t i = 0; i < ranks; i++)
		if (t->bytes[i])
			t->peer[t->n++] = i;
}

/* --- opening --- */

static int opts_check(struct schedule_opts *o, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int e;

	o->round_bytes = o->round_bytes ? o->round_bytes : SCHEDULE_ROUND_BYTES;
	if (!o->message_bytes) {
		o->message_bytes =
			MAX(o->round_bytes / SCHEDULE_MESSAGES_MIN, (uint64_t)SCHEDULE_ALIGN);
		o->message_bytes = MIN(o->message_bytes, SCHEDULE_MESSAGE_BYTES);
	}
	if (o->who == HOLDERS_EACH)
		ckpt_errlist_add(
			&list, "each element has one sender: choose HOLDERS_ONE or HOLDERS_OWNERS");
	if (o->message_bytes < SCHEDULE_ALIGN)
		ckpt_errlist_add(&list, "messages of %s are too small: %u B is the least",
				 BYTES_TEXT(o->message_bytes), SCHEDULE_ALIGN);
	if (o->round_bytes < o->message_bytes)
		ckpt_errlist_add(&list, "rounds of %s are smaller than messages of %s",
				 BYTES_TEXT(o->round_bytes), BYTES_TEXT(o->message_bytes));
	if (o->unreached >= LINKS_TIERS)
		ckpt_errlist_add(&list, "there is no tier number %u", (unsigned)o->unreached);
	e = ckpt_errlist_end(&list, err, "these options give no schedule");
	ckpt_errlist_free(&list);
	return e;
}

static int schedule_find(struct schedule *s, struct ckpt_err *err)
{
	struct reshard_opts how = { .only = s->opts.only,
				    .who = s->opts.who,
				    .pieces = true,
				    .per_host = s->opts.links ? s->opts.links->per_host : 0 };
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
	int e = reshard_open(s->src, s->dst, &how, &s->reshard, err);

	if (e)
		return e;
	e = ranks_find(s->src, s->dst, &s->arena, &s->ranks);
	if (!e)
		e = tally_open(&s->tally, s->ranks.n);
	if (!e)
		e = kinds_find(s, &list);
	if (e)
		ckpt_error(err, e, "out of memory for the schedule of %u tensors", s->dst->ntensor);
	else
		e = ckpt_errlist_end(&list, err,
				     "what ranks have does not fit what they are to have");
	ckpt_errlist_free(&list);
	return e ? e : rounds_find(s, err);
}

int schedule_open(const struct table *src, const struct table *dst,
		  const struct schedule_opts *opts, struct schedule **ret, struct ckpt_err *err)
{
	struct schedule_opts o = opts ? *opts : (struct schedule_opts){ .who = HOLDERS_ONE };
	struct schedule *s;
	int e = opts_check(&o, err);

	*ret = NULL;
	if (e)
		return e;
	s = calloc(1, sizeof *s);
	if (!s)
		return ckpt_error(err, -ENOMEM, "out of memory for a schedule");
	s->src = src;
	s->dst = dst;
	s->opts = o;
	s->rounds.message_bytes = o.message_bytes;
	e = schedule_find(s, err);
	if (e)
		schedule_close(s);
	else
		*ret = s;
	return e;
}

void schedule_close(struct schedule *s)
{
	if (!s)
		return;
	reshard_close(s->reshard);
	tally_close(&s->tally);
	arena_free(&s->arena);
	free(s->kind);
	free(s);
}

const struct schedule_rounds *schedule_rounds(const struct schedule *s)
{
	return &s->rounds;
}

uint32_t schedule_left_out(const struct schedule *s)
{
	return s->left_out;
}

const struct ranks *schedule_ranks(const struct schedule *s)
{
	return &s->ranks;
}

/* --- one rank --- */

struct adding {
	struct schedule *s;
	uint64_t count; /* of tensors of the kind at hand */
	bool out;
};

static int op_add(void *arg, const struct reshard_op *op)
{
	struct adding *a = arg;
	struct tally *t = &a->s->tally;
	uint32_t at = ranks_index(&a->s->ranks, a->out ? op->dst_rank : op->src_rank);
	uint64_t bytes;

	if (a->out && op->dst_rank == op->src_rank)
		return 0;
	if (ckpt_mul(op->bytes, a->count, &bytes) || ckpt_add(t->bytes[at], bytes, &bytes))
		return -EOVERFLOW;
	if (!t->bytes[at] && bytes)
		t->peer[t->n++] = at;
	t->bytes[at] = bytes;
	return 0;
}

static enum links_tier tier_of(const struct schedule *s, uint32_t from, uint32_t to)
{
	return s->opts.links ? links_between(s->opts.links, from, to)
	       : from == to  ? LINKS_MEMORY
			     : LINKS_HOST;
}

/* One direction of a rank, into the tally. */
static int lanes_find(struct schedule *s, uint32_t rank, bool out, struct ckpt_err *err)
{
	struct adding a = { s, 0, out };
	int e = 0;

	tally_clear(&s->tally);
	for (uint32_t i = 0; i < s->nkind && !e; i++) {
		a.count = s->kind[i].count;
		e = (out ? reshard_sends_some : reshard_rank_some)(
			s->reshard, rank, &s->kind[i].tensor, 1, op_add, &a, err);
	}
	if (e == -EOVERFLOW)
		ckpt_error(err, e, "the bytes of rank %u cannot be counted in 64 bits", rank);
	return e;
}

static int lanes_make(struct schedule *s, uint32_t rank, struct schedule_lane **ret,
		      uint32_t *ret_n, uint64_t *ret_bytes)
{
	struct tally *t = &s->tally;

	tally_sort(t, s->ranks.n);
	*ret = calloc((size_t)t->n + 1, sizeof **ret);
	if (!*ret)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n; i++) {
		uint64_t bytes = t->bytes[t->peer[i]];
		uint32_t peer = s->ranks.rank[t->peer[i]];

		if (peer == rank)
			continue;
		(*ret)[(*ret_n)++] = (struct schedule_lane){ peer, tier_of(s, rank, peer), bytes };
		if (ckpt_add(*ret_bytes, bytes, ret_bytes))
			return -EOVERFLOW;
	}
	return 0;
}

/* Streams that no transport carries; their receiver lists them. */
static void unreached_list(const struct schedule *s, const struct schedule_part *p,
			   struct ckpt_errlist *list)
{
	for (uint32_t i = 0; i < p->nin && s->opts.unreached; i++)
		if (p->in[i].tier >= s->opts.unreached)
			ckpt_errlist_add(list, "rank %u needs %s of rank %u (%s)", p->rank,
					 BYTES_TEXT(p->in[i].bytes), p->in[i].peer,
					 links_tier_name(p->in[i].tier));
	for (uint32_t i = 0; i < p->nout && s->opts.unreached; i++)
		if (p->out[i].tier >= s->opts.unreached)
			ckpt_errlist_add(list, "rank %u has %s for rank %u (%s)", p->rank,
					 BYTES_TEXT(p->out[i].bytes), p->out[i].peer,
					 links_tier_name(p->out[i].tier));
}

static int part_find(struct schedule *s, uint32_t rank, struct schedule_part *ret,
		     struct ckpt_err *err)
{
	uint32_t self = ranks_index(&s->ranks, rank);
	int e = self == TABLE_NONE ? 0 : lanes_find(s, rank, false, err);

	if (e || self == TABLE_NONE)
		return e;
	ret->self_bytes = s->tally.bytes[self];
	e = lanes_make(s, rank, &ret->in, &ret->nin, &ret->in_bytes);
	if (!e) {
		e = lanes_find(s, rank, true, err);
		if (e)
			return e;
		e = lanes_make(s, rank, &ret->out, &ret->nout, &ret->out_bytes);
	}
	return e ? ckpt_error(err, e, "rank %u's part of a schedule does not fit into memory", rank)
		 : 0;
}

int schedule_part_list(struct schedule *s, uint32_t rank, struct schedule_part *ret,
		       struct ckpt_errlist *list, struct ckpt_err *err)
{
	int e;

	*ret = (struct schedule_part){ .rank = rank };
	e = part_find(s, rank, ret, err);
	if (e)
		schedule_part_free(ret);
	else
		unreached_list(s, ret, list);
	return e;
}

int schedule_part(struct schedule *s, uint32_t rank, struct schedule_part *ret,
		  struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -ENOLINK };
	int e = schedule_part_list(s, rank, ret, &list, err);

	if (!e)
		e = ckpt_errlist_end(&list, err, SCHEDULE_UNREACHED);
	if (e)
		schedule_part_free(ret);
	ckpt_errlist_free(&list);
	return e;
}

void schedule_part_free(struct schedule_part *p)
{
	free(p->out);
	free(p->in);
	*p = (struct schedule_part){ .rank = p->rank };
}
