// SPDX-License-Identifier: Apache-2.0
// spread.c - see spread.h. Called by the library that ranks with GPUs load, and by tests.
// Invariant: the stream between two ranks is the same function of declarations on both sides: its
// order is that of the tensors' names, which does not depend on how a rank numbers them.
#include "ckpt/spread/spread_impl.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

static bool has_owners(const struct table *t, const struct table_tensor *x)
{
	return x->layout != TABLE_NONE && !x->made && !(x->flags & TENSOR_BLOB) &&
	       x->cls != CKPT_SINK && t->layout[x->layout].mode != CKPT_BOXES &&
	       !layout_is_partial(&t->layout[x->layout]);
}

bool spread_divides(const struct table *t, const struct table_tensor *x)
{
	return has_owners(t, x) && has_owners(t, table_owned_as(t, x));
}

static int divided_tensor(const struct table *all, uint32_t i, struct table *ret,
			  struct ckpt_err *err)
{
	struct table_tensor x = all->tensor[i];
	struct layout l = all->layout[x.layout];
	uint32_t id;
	int rc = table_add_mesh(ret, &all->mesh[l.mesh], &l.mesh, err);

	if (rc == 0)
		rc = table_add_layout(ret, &l, &x.layout, err);
	if (rc == 0)
		rc = table_add_tensor(ret, &x, &id, err);
	for (uint32_t k = all->first[i]; k < all->first[i + 1] && rc == 0; k++) {
		struct table_piece p = all->piece[k];

		p.tensor = id;
		rc = table_add_piece(ret, &p, err);
	}
	return rc;
}

int spread_divided(const struct table *all, struct table *ret, struct ckpt_err *err)
{
	int rc = 0;

	*ret = (struct table){ 0 };
	for (uint32_t i = 0; i < all->nplace && rc == 0; i++)
		rc = table_add_place(ret, &all->place[i], NULL, err);
	for (uint32_t i = 0; i < all->ntensor && rc == 0; i++)
		if (spread_divides(all, &all->tensor[i]))
			rc = divided_tensor(all, i, ret, err);
	return rc == 0 ? table_seal(ret, err) : rc;
}

/* --- what goes from rank to rank --- */

/* The stream to or from a peer, which is added if it is new. NULL: there is no memory. */
static struct stream *stream_of(struct streams *s, uint32_t peer)
{
	uint32_t at = SEARCH(i, 0u, s->n, s->stream[i].peer < peer);

	if (at < s->n && s->stream[at].peer == peer)
		return &s->stream[at];
	if (!ARRAY_GROW(s->stream, s->n, s->cap))
		return NULL;
	memmove(&s->stream[at + 1], &s->stream[at], (s->n - at) * sizeof *s->stream);
	s->n++;
	s->stream[at] = (struct stream){ .peer = peer };
	return &s->stream[at];
}

static int set_keep(struct arena *a, const struct indexset *x, struct indexset *ret)
{
	struct indices *dim = arena_array(a, MAX(x->ndim, 1u), sizeof *dim);

	if (!dim)
		return -ENOMEM;
	*ret = (struct indexset){ .ndim = x->ndim, .numel = x->numel, .dim = dim };
	for (uint32_t d = 0; d < x->ndim; d++) {
		dim[d] = x->dim[d];
		dim[d].run = arena_dup(a, x->dim[d].run, x->dim[d].n * sizeof *dim[d].run);
		if (!dim[d].run)
			return -ENOMEM;
	}
	return 0;
}

/* With pieces whatever a schedule takes, so that both count the same streams. */
static bool exchanges(const struct spread *s, const struct table_tensor *from,
		      const struct table_tensor *to)
{
	return s->pieces ? schedule_takes(s->src, from, true) && schedule_takes(s->dst, to, false)
			 : spread_divides(s->src, from) && spread_divides(s->dst, to);
}

struct taking {
	struct spread *s;
	bool out;
};

static int op_take(void *arg, const struct reshard_op *op)
{
	struct taking *k = arg;
	struct spread *s = k->s;
	uint32_t peer = k->out ? op->dst_rank : op->src_rank;
	uint32_t tensor = k->out ? op->src_tensor : op->dst_tensor;
	struct stream *x;
	int rc;

	if (!exchanges(s, &s->src->tensor[op->src_tensor], &s->dst->tensor[op->dst_tensor]) ||
	    (!k->out && peer == s->rank))
		return 0;
	x = stream_of(k->out ? &s->out : &s->in, peer);
	if (!x || !ARRAY_GROW(x->part, x->n, x->cap))
		return -ENOMEM;
	rc = set_keep(&s->arena, &op->part, &x->part[x->n].set);
	x->part[x->n].off = x->n; /* until streams_place: for streams_sort */
	x->part[x->n++].tensor = tensor;
	x->bytes += op->bytes;
	return rc;
}

static int part_order(const void *va, const void *vb, void *arg)
{
	const struct part *a = va, *b = vb;
	const struct table *t = arg;
	const struct table_tensor *x = &t->tensor[a->tensor], *y = &t->tensor[b->tensor];
	int r = strcmp(x->component, y->component);

	r = r ? r : strcmp(x->name, y->name);
	return r ? r : (a->off > b->off) - (a->off < b->off); /* as reshard.h hands them out */
}

static void streams_sort(struct streams *s, const struct table *t)
{
	for (uint32_t i = 0; i < s->n; i++)
		qsort_r(s->stream[i].part, s->stream[i].n, sizeof *s->stream[i].part, part_order,
			(void *)(uintptr_t)t);
}

static void streams_place(struct streams *s, const struct table *t)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct stream *x = &s->stream[i];
		uint64_t at = 0;

		for (uint32_t k = 0; k < x->n; k++) {
			x->part[k].off = at;
			at += x->part[k].set.numel * t->tensor[x->part[k].tensor].elem_bytes;
		}
	}
}

/* Both ends count a stream in elements of one size. reshard_rank reports tensors that src lacks. */
static int dtypes_check(const struct spread *s, struct ckpt_err *err)
{
	const struct table *src = s->src, *dst = s->dst;
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
	int rc;

	for (uint32_t i = 0; i < dst->ntensor && src != dst; i++) {
		const struct table_tensor *y = &dst->tensor[i], *x;
		uint32_t of = table_find(src, y->component, y->name, y->rank);

		x = of == TABLE_NONE ? NULL : &src->tensor[of];
		if (x && x->dtype != y->dtype && exchanges(s, x, y))
			ckpt_errlist_add(&list, "%s/%s is %s here and %s there", y->component,
					 y->name, dtype_name(x->dtype), dtype_name(y->dtype));
	}
	rc = ckpt_errlist_end(&list, err, "an exchange does not change dtypes");
	ckpt_errlist_free(&list);
	return rc;
}

int spread_open(const struct table *src, const struct table *dst, const struct reshard_opts *opts,
		uint32_t rank, struct spread **ret, struct ckpt_err *err)
{
	struct spread *s = calloc(1, sizeof *s);
	struct reshard *r = NULL;
	struct taking out = { s, true }, in = { s, false };
	int rc;

	*ret = NULL;
	if (!s)
		return ckpt_error(err, -ENOMEM, "no memory for an exchange");
	s->src = src;
	s->dst = dst;
	s->rank = rank;
	s->pieces = opts && opts->pieces;
	rc = dtypes_check(s, err);
	if (rc == 0)
		rc = reshard_open(src, dst, opts, &r, err);
	if (rc == 0)
		rc = reshard_sends(r, rank, op_take, &out, err);
	if (rc == 0)
		rc = reshard_rank(r, rank, op_take, &in, err);
	if (rc == -ENOMEM)
		ckpt_error(err, rc, "no memory for what rank %u exchanges", rank);
	reshard_close(r);
	if (rc < 0) {
		spread_close(s);
		return rc;
	}
	if (!MUTANT(SPREAD_UNSORTED)) {
		streams_sort(&s->out, src);
		streams_sort(&s->in, dst);
	}
	streams_place(&s->out, src);
	streams_place(&s->in, dst);
	*ret = s;
	return 0;
}

static void streams_free(struct streams *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		free(s->stream[i].part);
	free(s->stream);
}

void spread_close(struct spread *s)
{
	if (!s)
		return;
	streams_free(&s->out);
	streams_free(&s->in);
	arena_free(&s->arena);
	free(s);
}

struct spread_cost spread_cost(const struct spread *s)
{
	struct spread_cost c = { .in_peers = s->in.n };

	for (uint32_t i = 0; i < s->out.n; i++) {
		bool self = s->out.stream[i].peer == s->rank;

		c.out_peers += !self;
		*(self ? &c.self_bytes : &c.out_bytes) += s->out.stream[i].bytes;
	}
	for (uint32_t i = 0; i < s->in.n; i++)
		c.in_bytes += s->in.stream[i].bytes;
	return c;
}
