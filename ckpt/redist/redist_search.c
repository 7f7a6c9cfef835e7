/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_search.c - Dijkstra's algorithm over the states of a redistribution. Called by
 * redistribute.c.
 *
 * Neighbours come in the order in which PyTorch 2.15.0 makes them, and of equal prices the one that
 * was found first is taken first: so both walk the same way. Left out is Replicate to Partial,
 * which no target needs (redist_check).
 *
 * On meshes of few dimensions a bound of what must still be paid is known for each state. A first
 * search is guided by it and finds only the price; the second one, which walks as PyTorch does,
 * leaves out what must become dearer than that price.
 * Invariant: a state is looked at once, when nothing cheaper can lead to it any more.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/strmap.h"
#include "ckpt/base/util.h"
#include "ckpt/redist/redist_own.h"
#include "ckpt/redist/redist_state.h"
#include <math.h>

/* What a mesh dimension does, as a number: 0 replicates; then the reductions, by enum ckpt_reduce;
 * then Shard, by tensor dimension; then the strided ones of dst and src, by search.strided. */
enum {
	KIND_REPLICATE,
	KIND_PARTIAL = 1,
	KIND_SHARD = KIND_PARTIAL + CKPT_PRODUCT + 1,
	KIND_STRIDED = KIND_SHARD + CKPT_DIMS_MAX,
	KIND_END = KIND_STRIDED + 2 * CKPT_DIMS_MAX,
};

/* A state: for each mesh dimension its kind, and its place in the order of its tensor dimension. */
#define FIELD_ORDER_BITS 4
#define FIELD_BITS (6 + FIELD_ORDER_BITS)
#define FIELDS_PER_WORD 6
struct key {
	uint64_t word[3];
};
_Static_assert(KIND_END <= 1 << (FIELD_BITS - FIELD_ORDER_BITS), "a kind fits its bits");
_Static_assert(3 * FIELDS_PER_WORD >= CKPT_DIMS_MAX, "a key has all mesh dimensions");
_Static_assert(CKPT_DIMS_MAX <= 1 << FIELD_ORDER_BITS, "a place in an order fits its bits");

struct visit {
	struct key key;
	double us;	/* from src */
	double order;	/* the heap's: us, or in the first search us and what must still be paid */
	uint64_t found; /* breaks ties: when this way to it was found */
	uint32_t from;
	uint32_t at; /* in the heap; HEAP_NONE: it has been looked at */
	uint8_t mesh_dim, kind;
	uint8_t differ; /* mesh dimensions that are not as in dst; the first search's, else 0 */
};
#define HEAP_NONE UINT32_MAX

/* Prices that are known, where they depend on what shards. What a mesh dimension does before a step
 * and behind it says which op it is, and whether it gathers what is strided. */
enum price_class { PRICE_REPLICATE, PRICE_PARTIAL, PRICE_SHARD, PRICE_STRIDED, PRICE_CLASSES };
struct price_row {
	uint32_t shards; /* bit for each mesh dimension */
	/* by class before and behind, and mesh dimension. NAN: not known */
	double us[PRICE_CLASSES][PRICE_CLASSES][CKPT_DIMS_MAX];
};

/*
 * What a mesh dimension does, seen from dst and without its tensor dimension: it shards as dst does
 * and so does all that cut before; as dst does, but behind a cut that must go, so that it must go,
 * too; otherwise. A step changes what one mesh dimension does, at a price that all of these
 * together decide: so the price of the way from one combination to dst's is never above that of the
 * steps.
 */
enum status {
	DOES_REPLICATE,
	DOES_PARTIAL,
	DOES_RIGHT,
	DOES_BEHIND,
	DOES_WRONG,
	DOES_STRIDED, /* as dst does */
	DOES_STRIDED_WRONG,
	DOES_END
};
#define REST_MESH_DIMS REDIST_BOUND_MESH_DIMS /* of more, there are too many combinations */
#define ROUNDED 1e-9			      /* of sums in different orders: relative */

struct search {
	const struct redist_problem *p;
	const struct redist_model *model;
	struct arena a; /* of the maps */
	struct keymap map;
	struct visit *visit; /* [map.n] */
	uint32_t visits_cap;
	uint32_t *heap; /* of visits, the cheapest first */
	uint32_t nheap, heap_cap;
	uint64_t found;
	struct keymap row_map; /* by what shards */
	struct price_row *row; /* [row_map.n] */
	uint32_t rows_cap;
	uint32_t nstrided, ntarget; /* of dst are the first ones */
	struct ckpt_placement strided[2 * CKPT_DIMS_MAX];
	struct redist_state src, dst;
	struct key src_key, dst_key;
	struct redist_bound bound; /* of prices that depend on more than what shards */
	uint32_t dst_dims;	   /* bit for each tensor dimension that dst cuts */
	double dst_us;		   /* the cheapest way to dst so far */
	uint64_t too_large;	   /* steps beyond mem_limit */
	uint64_t counted_before;   /* by the prices of others */
	bool first;		   /* the first search */
	uint8_t occurs[REST_MESH_DIMS], may[REST_MESH_DIMS][DOES_END]; /* bits: enum status */
	double *rest_us; /* by combination, to dst's; NULL: not known */
	double (*least)[REST_MESH_DIMS][DOES_END][DOES_END]; /* by what shards */
	double limit_us; /* the price that the first search found, and a little more */
};

/* The state that is looked at. */
struct look {
	uint32_t number; /* of its visit */
	struct key key;
	double us;
	uint32_t shards; /* bit for each mesh dimension */
	uint32_t row;
	uint8_t kind[CKPT_DIMS_MAX]; /* by mesh dimension */
	uint8_t n[CKPT_DIMS_MAX];    /* that cut a tensor dimension */
	uint8_t last[CKPT_DIMS_MAX]; /* the last of these */
	uint32_t twins;		     /* bit for each tensor dimension that is as good as another */
	enum status status[REST_MESH_DIMS];
};

/* --- states as keys --- */

static uint64_t *key_word(struct key *k, uint32_t mesh_dim)
{
	return &k->word[mesh_dim / FIELDS_PER_WORD];
}

static uint32_t key_shift(uint32_t mesh_dim)
{
	return mesh_dim % FIELDS_PER_WORD * FIELD_BITS;
}

static void key_set(struct key *k, uint32_t mesh_dim, uint32_t kind, uint32_t order)
{
	uint64_t *w = key_word(k, mesh_dim);

	*w &= ~(((UINT64_C(1) << FIELD_BITS) - 1) << key_shift(mesh_dim));
	*w |= (uint64_t)(kind << FIELD_ORDER_BITS | order) << key_shift(mesh_dim);
}

static void key_get(const struct key *k, uint32_t mesh_dim, uint32_t *ret_kind, uint32_t *ret_order)
{
	uint64_t w = k->word[mesh_dim / FIELDS_PER_WORD] >> key_shift(mesh_dim);

	*ret_order = w & ((1u << FIELD_ORDER_BITS) - 1);
	*ret_kind = w >> FIELD_ORDER_BITS & ((1u << (FIELD_BITS - FIELD_ORDER_BITS)) - 1);
}

static bool key_equal(const struct key *x, const struct key *y)
{
	return x->word[0] == y->word[0] && x->word[1] == y->word[1] && x->word[2] == y->word[2];
}

/* Nobody chooses keys so that they collide: there are few of them, and this program makes them. */
static uint64_t hash_of(const struct key *k)
{
	uint64_t h = k->word[0] * UINT64_C(0x9e3779b97f4a7c15) ^
		     k->word[1] * UINT64_C(0xc2b2ae3d27d4eb4f) ^
		     k->word[2] * UINT64_C(0x165667b19e3779f9);

	return h ^ h >> 32;
}

static struct ckpt_placement kind_placement(const struct search *s, uint32_t kind,
					    uint32_t mesh_dim)
{
	struct ckpt_placement p = { .mesh_dim = (uint16_t)mesh_dim };

	if (kind >= KIND_STRIDED) {
		p = s->strided[kind - KIND_STRIDED];
		p.mesh_dim = (uint16_t)mesh_dim;
	} else if (kind >= KIND_SHARD) {
		p.how = CKPT_SHARD;
		p.tensor_dim = (uint16_t)(kind - KIND_SHARD);
	} else if (kind >= KIND_PARTIAL) {
		p.how = CKPT_PARTIAL;
		p.reduce = (uint8_t)(kind - KIND_PARTIAL);
	}
	return p;
}

static uint32_t tensor_dim_of(const struct search *s, uint32_t kind)
{
	return kind >= KIND_STRIDED ? s->strided[kind - KIND_STRIDED].tensor_dim
				    : kind - KIND_SHARD;
}

static uint32_t strided_kind(struct search *s, const struct ckpt_placement *p)
{
	uint32_t i = 0;

	while (i < s->nstrided && (s->strided[i].tensor_dim != p->tensor_dim ||
				   s->strided[i].split_factor != p->split_factor))
		i++;
	if (i == s->nstrided)
		s->strided[s->nstrided++] = *p;
	return KIND_STRIDED + i;
}

static struct key key_of(struct search *s, const struct redist_state *state)
{
	struct key k = { 0 };
	uint8_t n[CKPT_DIMS_MAX] = { 0 };

	for (uint32_t i = 0; i < s->p->mesh->ndim; i++) {
		const struct ckpt_placement *p = &state->place[i];

		if (redist_is_strided(p))
			key_set(&k, p->mesh_dim, strided_kind(s, p), n[p->tensor_dim]++);
		else if (redist_is_shard(p))
			key_set(&k, p->mesh_dim, KIND_SHARD + p->tensor_dim, n[p->tensor_dim]++);
		else if (p->how == CKPT_PARTIAL)
			key_set(&k, p->mesh_dim, KIND_PARTIAL + p->reduce, 0);
	}
	return k;
}

static struct redist_state key_state(const struct search *s, const struct key *k)
{
	const struct mesh *m = s->p->mesh;
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = { .place = place };
	struct redist_state ret;
	uint32_t kind[CKPT_DIMS_MAX], order[CKPT_DIMS_MAX];

	for (uint32_t i = 0; i < m->ndim; i++)
		key_get(k, i, &kind[i], &order[i]);
	for (uint32_t o = 0; o < m->ndim; o++)
		for (uint32_t i = 0; i < m->ndim; i++)
			if (order[i] == o)
				place[l.nplace++] = kind_placement(s, kind[i], i);
	redist_state_of(m, &l, &ret);
	return ret;
}

/* --- the heap --- */

static bool visit_before(const struct visit *x, const struct visit *y)
{
	if (x->order != y->order)
		return x->order < y->order;
	return x->differ < y->differ || (x->differ == y->differ && x->found < y->found);
}

static void heap_put(struct search *s, uint32_t at, uint32_t number)
{
	s->heap[at] = number;
	s->visit[number].at = at;
}

static void heap_up(struct search *s, uint32_t number)
{
	uint32_t at = s->visit[number].at;

	for (uint32_t above; at; at = above) {
		above = (at - 1) / 2;
		if (!visit_before(&s->visit[number], &s->visit[s->heap[above]]))
			break;
		heap_put(s, at, s->heap[above]);
	}
	heap_put(s, at, number);
}

static uint32_t heap_take(struct search *s)
{
	uint32_t first = s->heap[0], number = s->heap[--s->nheap], at = 0;

	s->visit[first].at = HEAP_NONE;
	for (uint32_t below; s->nheap && (below = 2 * at + 1) < s->nheap; at = below) {
		if (below + 1 < s->nheap &&
		    visit_before(&s->visit[s->heap[below + 1]], &s->visit[s->heap[below]]))
			below++;
		if (!visit_before(&s->visit[s->heap[below]], &s->visit[number]))
			break;
		heap_put(s, at, s->heap[below]);
	}
	if (s->nheap)
		heap_put(s, at, number);
	return first;
}

/* --- prices --- */

static int search_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for the search of a redistribution");
}

static int row_find(struct search *s, uint32_t shards, uint32_t *ret, struct ckpt_err *err)
{
	uint64_t hash = key_hash(0, &shards, sizeof shards);
	uint32_t i, n = s->row_map.n;

	for (uint32_t at = 0; (i = keymap_next(&s->row_map, hash, &at)) != KEYMAP_NONE;)
		if (s->row[i].shards == shards) {
			*ret = i;
			return 0;
		}
	if (keymap_reserve(&s->row_map, &s->a, 1) || !ARRAY_GROW(s->row, n, s->rows_cap))
		return search_memory(err);
	s->row[n].shards = shards;
	for (size_t j = 0; j < sizeof s->row[n].us / sizeof(double); j++)
		(&s->row[n].us[0][0][0])[j] = (double)NAN;
	keymap_put(&s->row_map, hash, n);
	*ret = n;
	return 0;
}

static enum price_class price_class(uint32_t kind)
{
	if (kind < KIND_PARTIAL)
		return PRICE_REPLICATE;
	if (kind < KIND_SHARD)
		return PRICE_PARTIAL;
	return kind < KIND_STRIDED ? PRICE_SHARD : PRICE_STRIDED;
}

/* The model's. */
static int price_ask(struct search *s, const struct look *l, const struct ckpt_placement *from,
		     const struct ckpt_placement *to, double *ret_us, struct ckpt_err *err)
{
	const struct mesh *m = s->p->mesh;
	struct redist_state before = key_state(s, &l->key), after = before;
	struct redist_step step = { .op = redist_op_of(from, to),
				    .mesh_dim = to->mesh_dim,
				    .from = *from,
				    .to = *to,
				    .before = { .nplace = m->ndim, .place = before.place },
				    .after = { .nplace = m->ndim, .place = after.place } };
	int rc;

	redist_state_change(m, &after, to);
	rc = s->model->price(s->model, s->p, &step, err);
	*ret_us = step.us;
	return rc;
}

static int price_of(struct search *s, const struct look *l, uint32_t mesh_dim, uint32_t kind,
		    double *ret_us, struct ckpt_err *err)
{
	struct ckpt_placement from, to;
	double *known = NULL;
	int rc;

	if (s->model->by_shards) {
		known = &s->row[l->row]
				 .us[price_class(l->kind[mesh_dim])][price_class(kind)][mesh_dim];
		*ret_us = *known;
		if (!isnan(*known))
			return 0;
	}
	from = kind_placement(s, l->kind[mesh_dim], mesh_dim);
	to = kind_placement(s, kind, mesh_dim);
	rc = price_ask(s, l, &from, &to, ret_us, err);
	if (!rc && known)
		*known = *ret_us;
	return rc;
}

/* --- what must still be paid --- */

static const enum price_class status_class[DOES_END] = {
	PRICE_REPLICATE, PRICE_PARTIAL, PRICE_SHARD,   PRICE_SHARD,
	PRICE_SHARD,	 PRICE_STRIDED, PRICE_STRIDED,
};

/* May a mesh dimension do this at all? */
static bool status_occurs(const struct search *s, uint32_t mesh_dim, enum status x)
{
	const struct ckpt_placement *to = redist_state_at(s->p->mesh, &s->dst, mesh_dim);

	switch (x) {
	case DOES_PARTIAL:
		return to->how == CKPT_PARTIAL ||
		       redist_state_at(s->p->mesh, &s->src, mesh_dim)->how == CKPT_PARTIAL;
	case DOES_RIGHT:
	case DOES_BEHIND:
		return redist_is_shard(to) && !redist_is_strided(to);
	case DOES_STRIDED:
		return redist_is_strided(to);
	case DOES_STRIDED_WRONG:
		return s->nstrided > 0;
	default:
		return true;
	}
}

/* May a mesh dimension do this after that? More than concrete states allow, never less. */
static bool status_may(const struct search *s, uint32_t mesh_dim, enum status from, enum status to)
{
	if (from == to || (from >= DOES_STRIDED && to != DOES_REPLICATE) ||
	    (to >= DOES_STRIDED && from != DOES_REPLICATE) ||
	    (from == DOES_BEHIND && to == DOES_RIGHT))
		return false;
	if (to == DOES_PARTIAL)
		return from != DOES_REPLICATE &&
		       redist_state_at(s->p->mesh, &s->dst, mesh_dim)->how == CKPT_PARTIAL;
	return status_occurs(s, mesh_dim, to);
}

static struct redist_side side_of(const struct search *s, uint32_t mesh_dim, enum status status)
{
	const struct ckpt_placement *to = redist_state_at(s->p->mesh, &s->dst, mesh_dim);
	struct redist_side ret = { .dim_known = status == DOES_RIGHT || status == DOES_BEHIND,
				   .cut_known = status == DOES_RIGHT,
				   .dim = to->tensor_dim };

	for (const struct ckpt_placement *p = s->dst.place; p < to; p++)
		if (redist_is_shard(p) && p->tensor_dim == to->tensor_dim)
			ret.cut |= 1u << p->mesh_dim;
	return ret;
}

/* What a step costs beside the mesh dimensions that shard. */
static int least_ask(struct search *s, uint32_t shards, uint32_t mesh_dim, enum status from,
		     enum status to, struct ckpt_err *err)
{
	static const struct ckpt_placement as[PRICE_CLASSES] = {
		{ .how = CKPT_REPLICATE },
		{ .how = CKPT_PARTIAL },
		{ .how = CKPT_SHARD },
		{ .how = CKPT_SHARD, .split_factor = 1 },
	};
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct redist_step step = { .mesh_dim = mesh_dim,
				    .from = as[status_class[from]],
				    .to = as[status_class[to]],
				    .before = { .nplace = s->p->mesh->ndim, .place = place } };
	double *ret = &s->least[shards][mesh_dim][from][to];
	int rc;

	step.op = redist_op_of(&step.from, &step.to);
	if (!s->model->by_shards) {
		uint32_t others = shards & ~(1u << mesh_dim);
		struct redist_side x = side_of(s, mesh_dim, from), y = side_of(s, mesh_dim, to);

		*ret = redist_bound_us(&s->bound, step.op, mesh_dim, others,
				       others | (uint32_t)(to >= DOES_RIGHT) << mesh_dim, &x, &y);
		return 0;
	}
	for (uint32_t i = 0; i < s->p->mesh->ndim; i++) {
		place[i] = as[shards >> i & 1 ? PRICE_SHARD : PRICE_REPLICATE];
		place[i].mesh_dim = (uint16_t)i;
	}
	rc = s->model->price(s->model, s->p, &step, err);
	*ret = step.us;
	return rc;
}

static int least_fill(struct search *s, struct ckpt_err *err)
{
	uint32_t n = s->p->mesh->ndim;
	int rc = 0;

	for (uint32_t i = 0; i < n * DOES_END * DOES_END; i++) {
		uint32_t m = i / (DOES_END * DOES_END);
		enum status from = i / DOES_END % DOES_END, to = i % DOES_END;

		s->occurs[m] |= (uint8_t)(status_occurs(s, m, from) << from);
		s->may[m][from] |= (uint8_t)(status_may(s, m, from, to) << to);
	}
	s->least = arena_array(&s->a, 1u << n, sizeof *s->least);
	if (!s->least)
		return search_memory(err);
	for (uint32_t shards = 0; shards < 1u << n; shards++)
		for (uint32_t i = 0; i < n * DOES_END * DOES_END && !rc; i++) {
			uint32_t m = i / (DOES_END * DOES_END);
			enum status from = i / DOES_END % DOES_END, to = i % DOES_END;

			if ((from >= DOES_RIGHT) == (shards >> m & 1) &&
			    s->occurs[m] >> from & s->may[m][from] >> to & 1)
				rc = least_ask(s, shards, m, from, to, err);
		}
	return rc;
}

static bool is_right(enum status x)
{
	return x == DOES_RIGHT || x == DOES_STRIDED;
}

/* It cuts as in dst only where all that dst cuts before do so, and nothing cuts that must go. */
static bool may_be_right(const struct search *s, const enum status *status, uint32_t mesh_dim)
{
	const struct ckpt_placement *to = redist_state_at(s->p->mesh, &s->dst, mesh_dim);

	for (const struct ckpt_placement *p = s->dst.place; p < s->dst.place + s->p->mesh->ndim;
	     p++) {
		if (!redist_is_shard(p) || p->tensor_dim != to->tensor_dim)
			continue;
		if (status[p->mesh_dim] == DOES_BEHIND ||
		    (p < to && !is_right(status[p->mesh_dim])))
			return false;
	}
	return true;
}

/* The cheapest first step from a combination: whether it is cheaper than what was known. */
static bool rest_improve(struct search *s, const uint32_t *weight, uint32_t code)
{
	uint32_t n = s->p->mesh->ndim, shards = 0;
	enum status status[REST_MESH_DIMS];
	double us = s->rest_us[code];

	for (uint32_t m = 0; m < n; m++) {
		status[m] = code / weight[m] % DOES_END;
		if (!(s->occurs[m] >> status[m] & 1))
			return false;
		shards |= (uint32_t)(status[m] >= DOES_RIGHT) << m;
	}
	for (uint32_t m = 0; m < n; m++) {
		uint32_t may = s->may[m][status[m]];

		if (!may_be_right(s, status, m))
			may &= ~(1u << DOES_RIGHT | 1u << DOES_STRIDED);
		for (uint32_t to = 0; to < DOES_END; to++)
			if (may >> to & 1)
				us = MIN(us,
					 s->least[shards][m][status[m]][to] +
						 s->rest_us[code + (to - status[m]) * weight[m]]);
	}
	if (us >= s->rest_us[code])
		return false;
	s->rest_us[code] = us;
	return true;
}

static uint32_t status_of_dst(const struct search *s, uint32_t mesh_dim)
{
	const struct ckpt_placement *p = redist_state_at(s->p->mesh, &s->dst, mesh_dim);

	return p->how == CKPT_PARTIAL ? DOES_PARTIAL
	       : redist_is_strided(p) ? DOES_STRIDED
	       : redist_is_shard(p)   ? DOES_RIGHT
				      : DOES_REPLICATE;
}

static int rest_fill(struct search *s, struct ckpt_err *err)
{
	uint32_t weight[REST_MESH_DIMS + 1] = { 1 }, n = s->p->mesh->ndim, dst = 0;
	int rc;

	if (!s->model->bounded || n > REST_MESH_DIMS)
		return 0;
	if (!s->model->by_shards && redist_bound_of(s->p, s->model->links, &s->bound))
		return 0; /* no price is finite: the first one says so */
	rc = least_fill(s, err);
	if (rc)
		return rc;
	for (uint32_t m = 0; m < n; m++) {
		weight[m + 1] = weight[m] * DOES_END;
		dst += weight[m] * status_of_dst(s, m);
	}
	s->rest_us = arena_array(&s->a, weight[n], sizeof *s->rest_us);
	if (!s->rest_us)
		return search_memory(err);
	for (uint32_t i = 0; i < weight[n]; i++)
		s->rest_us[i] = i == dst ? 0 : (double)INFINITY;
	for (bool better = true; better;) {
		better = false;
		for (uint32_t i = 0; i < weight[n]; i++)
			better = rest_improve(s, weight, i) || better;
	}
	return 0;
}

static enum status status_of(uint32_t kind, uint32_t as, bool in_place)
{
	if (kind < KIND_PARTIAL)
		return DOES_REPLICATE;
	if (kind < KIND_SHARD)
		return DOES_PARTIAL;
	if (kind >= KIND_STRIDED)
		return in_place ? DOES_STRIDED : DOES_STRIDED_WRONG;
	return kind != as ? DOES_WRONG : in_place ? DOES_RIGHT : DOES_BEHIND;
}

/* What each mesh dimension does. How many are not as in dst, or cut behind one that is not. */
static uint8_t statuses_of(const struct search *s, const struct key *k,
			   enum status ret[REST_MESH_DIMS])
{
	uint32_t kind[REST_MESH_DIMS], order[REST_MESH_DIMS], as[REST_MESH_DIMS];
	uint32_t wrong[CKPT_DIMS_MAX]; /* by tensor dimension: the first wrong place of its order */
	uint8_t differ = 0;

	memset(wrong, 0xff, sizeof wrong);
	for (uint32_t m = 0; m < s->p->mesh->ndim; m++) {
		uint32_t o;

		key_get(k, m, &kind[m], &order[m]);
		key_get(&s->dst_key, m, &as[m], &o);
		if (kind[m] >= KIND_SHARD && (kind[m] != as[m] || order[m] != o)) {
			uint32_t *w = &wrong[tensor_dim_of(s, kind[m])];

			*w = MIN(*w, order[m]);
		}
	}
	for (uint32_t m = 0; m < s->p->mesh->ndim; m++) {
		bool in_place = kind[m] == as[m] && (kind[m] < KIND_SHARD ||
						     order[m] < wrong[tensor_dim_of(s, kind[m])]);

		differ += !in_place;
		ret[m] = status_of(kind[m], as[m], in_place);
	}
	return differ;
}

/* What must be paid from a combination to dst at least. */
static double rest_of(const struct search *s, const enum status *status)
{
	uint32_t code = 0;

	for (uint32_t m = s->p->mesh->ndim; m-- > 0;)
		code = code * DOES_END + status[m];
	return s->rest_us[code];
}

/* --- states that are found --- */

static uint32_t visit_find(const struct search *s, const struct key *k, uint64_t hash)
{
	uint32_t i;

	for (uint32_t at = 0; (i = keymap_next(&s->map, hash, &at)) != KEYMAP_NONE;)
		if (key_equal(&s->visit[i].key, k))
			break;
	return i;
}

static int visit_add(struct search *s, const struct visit *v, uint64_t hash, struct ckpt_err *err)
{
	uint32_t n = s->map.n;

	if (n == REDIST_STATES_MAX)
		return ckpt_error(err, -E2BIG,
				  "the search has seen %u states, more than it may; use fewer mesh "
				  "dimensions, or the greedy planner",
				  REDIST_STATES_MAX);
	if (keymap_reserve(&s->map, &s->a, 1) || !ARRAY_GROW(s->visit, n, s->visits_cap) ||
	    !ARRAY_GROW(s->heap, s->nheap, s->heap_cap))
		return search_memory(err);
	s->visit[n] = *v;
	s->visit[n].at = s->nheap++;
	keymap_put(&s->map, hash, n);
	heap_up(s, n);
	return 0;
}

/* Before each price, of which one can take as long as thousands of others. */
static int work_check(const struct search *s, struct ckpt_err *err)
{
	const struct redist_memo *memo = s->model->memo;

	if (s->p->stopped && s->p->stopped())
		return ckpt_error(err, -ECANCELED, "stopped after %u states", s->map.n);
	if (memo && memo->counted - s->counted_before > REDIST_COUNTED_MAX)
		return ckpt_error(
			err, -E2BIG,
			"the search has counted %u shares and messages, more than it may; use "
			"fewer mesh dimensions, or the greedy planner",
			REDIST_COUNTED_MAX);
	return 0;
}

/* A neighbour: mesh dimension mesh_dim becomes `kind`, in that place of the order. */
static int neighbour(struct search *s, const struct look *l, uint32_t mesh_dim, uint32_t kind,
		     uint32_t order, struct ckpt_err *err)
{
	struct visit v = { .key = l->key,
			   .from = l->number,
			   .mesh_dim = (uint8_t)mesh_dim,
			   .kind = (uint8_t)kind };
	enum status status[REST_MESH_DIMS];
	double us, rest = 0;
	uint64_t hash;
	uint32_t i;
	int rc;

	key_set(&v.key, mesh_dim, kind, order);
	hash = hash_of(&v.key);
	i = visit_find(s, &v.key, hash);
	if (i != KEYMAP_NONE && (s->visit[i].at == HEAP_NONE || s->visit[i].us <= l->us))
		return 0;
	if (s->rest_us) {
		v.differ = statuses_of(s, &v.key, status);
		rest = rest_of(s, status);
		us = l->us + s->least[l->shards][mesh_dim][l->status[mesh_dim]][status[mesh_dim]] +
		     rest;
		if (us > s->limit_us || (s->first && us >= s->dst_us))
			return 0;
	}
	rc = work_check(s, err);
	if (!rc)
		rc = price_of(s, l, mesh_dim, kind, &us, err);
	if (rc == -ENOSPC) {
		s->too_large++;
		return 0;
	}
	if (rc)
		return rc;
	v.us = l->us + us;
	if (v.us >= s->dst_us) /* dst has been found, and no dearer */
		return 0;
	if (v.us + rest > s->limit_us)
		return 0;
	v.order = s->first ? v.us + rest : v.us;
	v.differ = s->first ? v.differ : 0;
	v.found = ++s->found;
	if (key_equal(&v.key, &s->dst_key))
		s->dst_us = v.us;
	if (i == KEYMAP_NONE)
		return visit_add(s, &v, hash, err);
	if (v.us < s->visit[i].us && !MUTANT(REDIST_FIRST_WAY)) {
		v.at = s->visit[i].at;
		s->visit[i] = v;
		heap_up(s, i);
	}
	return 0;
}

/* --- neighbours, in PyTorch's order --- */

/* Tensor dimensions that nothing cuts, here or in dst, are as good as each other, and the first of
 * them is tried. If shares are counted, that holds for those of one size. */
static uint32_t twins_of(const struct search *s, const struct look *l)
{
	const uint64_t *shape = s->p->shape;
	uint32_t free = 0, twins = 0;

	for (uint32_t d = 0; d < s->p->ndim; d++) {
		if (l->n[d] || (s->dst_dims >> d & 1 && !MUTANT(REDIST_TWINS_IN_DST)))
			continue;
		for (uint32_t i = 0; i < d; i++)
			if (free >> i & 1 && (s->model->by_shards || shape[i] == shape[d]))
				twins |= 1u << d;
		free |= 1u << d;
	}
	return twins;
}

static int look_at(struct search *s, uint32_t number, struct look *l, struct ckpt_err *err)
{
	*l = (struct look){ .number = number,
			    .key = s->visit[number].key,
			    .us = s->visit[number].us };
	for (uint32_t i = 0; i < s->p->mesh->ndim; i++) {
		uint32_t kind, order, d;

		key_get(&l->key, i, &kind, &order);
		l->kind[i] = (uint8_t)kind;
		if (kind < KIND_SHARD)
			continue;
		d = tensor_dim_of(s, kind);
		l->shards |= 1u << i;
		if (order < l->n[d] && !MUTANT(REDIST_ANY_CUT))
			continue;
		l->n[d] = (uint8_t)(order + 1);
		l->last[d] = (uint8_t)i;
	}
	l->twins = twins_of(s, l);
	if (s->rest_us)
		statuses_of(s, &l->key, l->status);
	return s->model->by_shards ? row_find(s, l->shards, &l->row, err) : 0;
}

static bool is_plain(uint32_t kind)
{
	return kind >= KIND_SHARD && kind < KIND_STRIDED;
}

static bool is_partial(uint32_t kind)
{
	return kind >= KIND_PARTIAL && kind < KIND_SHARD;
}

/* mesh_dim shards each of the tensor's dimensions, but for `except`. */
static int shard_each(struct search *s, const struct look *l, uint32_t mesh_dim, uint32_t except,
		      struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t d = 0; d < s->p->ndim && !rc; d++)
		if (d != except && !(l->twins >> d & 1))
			rc = neighbour(s, l, mesh_dim, KIND_SHARD + d, l->n[d], err);
	return rc;
}

/* Shard to Shard, Shard to Replicate. */
static int leave_shards(struct search *s, const struct look *l, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t d = 0; d < s->p->ndim && !rc; d++)
		if (l->n[d] && is_plain(l->kind[l->last[d]]))
			rc = shard_each(s, l, l->last[d], d, err);
	for (uint32_t d = 0; d < s->p->ndim && !rc; d++)
		if (l->n[d] && is_plain(l->kind[l->last[d]]))
			rc = neighbour(s, l, l->last[d], KIND_REPLICATE, 0, err);
	return rc;
}

/* A sum beside a reduction of another kind was a Shard before: the other reduction is done
 * first. */
static bool may_reduce(const struct search *s, const struct look *l, uint32_t mesh_dim)
{
	bool alone = true;

	for (uint32_t i = 0; i < s->p->mesh->ndim; i++)
		alone = alone && !(is_partial(l->kind[i]) && l->kind[i] > KIND_PARTIAL + CKPT_AVG);
	return is_partial(l->kind[mesh_dim]) &&
	       (alone || l->kind[mesh_dim] > KIND_PARTIAL + CKPT_AVG);
}

/* Partial to Replicate, Replicate to Shard, Partial to Shard. */
static int leave_others(struct search *s, const struct look *l, struct ckpt_err *err)
{
	uint32_t n = s->p->mesh->ndim;
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++)
		if (may_reduce(s, l, i))
			rc = neighbour(s, l, i, KIND_REPLICATE, 0, err);
	for (uint32_t i = 0; i < n && !rc; i++)
		if (l->kind[i] == KIND_REPLICATE)
			rc = shard_each(s, l, i, UINT32_MAX, err);
	for (uint32_t i = 0; i < n && !rc; i++)
		if (may_reduce(s, l, i))
			rc = shard_each(s, l, i, UINT32_MAX, err);
	return rc;
}

/* In PyTorch's model, gathering strided shards is free, so a detour over a strided state can make
 * other steps cheaper. In ours it costs, and no detour is needed. */
static bool strided_in_vain(const struct search *s, const struct look *l, uint32_t mesh_dim,
			    uint32_t target)
{
	const struct ckpt_placement *to = redist_state_at(s->p->mesh, &s->dst, mesh_dim);

	return s->model->by_shards && l->us * (1 + ROUNDED) >= s->limit_us &&
	       (!redist_is_strided(to) || to->tensor_dim != s->strided[target].tensor_dim ||
		to->split_factor != s->strided[target].split_factor);
}

/* Strided to Replicate, and Replicate to each strided placement of the target. */
static int strides(struct search *s, const struct look *l, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t d = 0; d < s->p->ndim && !rc; d++)
		if (l->n[d] && !is_plain(l->kind[l->last[d]]))
			rc = neighbour(s, l, l->last[d], KIND_REPLICATE, 0, err);
	for (uint32_t i = 0; i < s->p->mesh->ndim && !rc; i++)
		for (uint32_t t = 0; t < s->ntarget && !rc; t++)
			if (l->kind[i] == KIND_REPLICATE && !strided_in_vain(s, l, i, t))
				rc = neighbour(s, l, i, KIND_STRIDED + t,
					       l->n[s->strided[t].tensor_dim], err);
	return rc;
}

/* Shard to P(sum), where the target wants that. */
static int leave_for_sums(struct search *s, const struct look *l, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t d = 0; d < s->p->ndim && !rc; d++) {
		const struct ckpt_placement *to;

		if (!l->n[d] || !is_plain(l->kind[l->last[d]]))
			continue;
		to = redist_state_at(s->p->mesh, &s->dst, l->last[d]);
		if (to->how == CKPT_PARTIAL && to->reduce == CKPT_SUM)
			rc = neighbour(s, l, l->last[d], KIND_PARTIAL + CKPT_SUM, 0, err);
	}
	return rc;
}

/* --- the way --- */

/* The steps that lead to a visit. */
static int way_to(struct search *s, uint32_t number, struct arena *a, struct redist_steps *ret,
		  struct ckpt_err *err)
{
	struct redist_state state;
	uint32_t n = 0, *way;
	int rc = 0;

	for (uint32_t i = number; i; i = s->visit[i].from)
		n++;
	way = arena_array(&s->a, n + 1, sizeof *way);
	ret->step = arena_array(a, n + 1, sizeof *ret->step);
	if (!way || !ret->step)
		return search_memory(err);
	for (uint32_t i = number, k = n; i; i = s->visit[i].from)
		way[--k] = i;
	redist_state_of(s->p->mesh, s->p->src, &state);
	for (uint32_t k = 0; k < n && !rc; k++) {
		const struct visit *v = &s->visit[way[k]];
		struct ckpt_placement to = kind_placement(s, v->kind, v->mesh_dim);

		rc = redist_steps_add(ret, s->p, s->model, &state, &to, a, err);
	}
	return rc;
}

static int search_walk(struct search *s, uint32_t *ret, struct ckpt_err *err)
{
	struct look l;
	int rc = 0;

	while (s->nheap && !rc) {
		*ret = heap_take(s);
		if (key_equal(&s->visit[*ret].key, &s->dst_key))
			return 0;
		rc = look_at(s, *ret, &l, err);
		if (!rc)
			rc = leave_shards(s, &l, err);
		if (!rc)
			rc = leave_others(s, &l, err);
		if (!rc)
			rc = strides(s, &l, err);
		if (!rc)
			rc = leave_for_sums(s, &l, err);
	}
	return rc ? rc
		  : ckpt_error(err, -ENOSPC,
			       "every sequence of collectives needs more than the %llu bytes of "
			       "memory that a rank may use: raise the limit (%llu steps were "
			       "beyond it)",
			       (unsigned long long)s->p->mem_limit,
			       (unsigned long long)s->too_large);
}

static int search_begin(struct search *s, const struct redist_problem *p,
			const struct redist_model *m, struct ckpt_err *err)
{
	*s = (struct search){
		.p = p, .model = m, .dst_us = (double)INFINITY, .limit_us = (double)INFINITY
	};
	s->counted_before = m->memo ? m->memo->counted : 0;
	redist_state_of(p->mesh, p->src, &s->src);
	redist_state_of(p->mesh, p->dst, &s->dst);
	s->dst_key = key_of(s, &s->dst);
	s->ntarget = s->nstrided;
	for (uint32_t i = 0; i < p->mesh->ndim; i++)
		if (redist_is_shard(&s->dst.place[i]))
			s->dst_dims |= 1u << s->dst.place[i].tensor_dim;
	s->src_key = key_of(s, &s->src);
	return rest_fill(s, err);
}

/* From src to dst; ret: dst's visit. */
static int search_run(struct search *s, uint32_t *ret, struct ckpt_err *err)
{
	const struct visit first = { .key = s->src_key };
	int rc = visit_add(s, &first, hash_of(&first.key), err);

	return rc ? rc : search_walk(s, ret, err);
}

static void search_end(struct search *s)
{
	free(TAKE(s->visit));
	free(TAKE(s->heap));
	free(TAKE(s->row));
	arena_free(&s->a);
}

int redist_search(const struct redist_problem *p, const struct redist_model *m, struct arena *a,
		  struct redist_steps *ret, struct ckpt_err *err)
{
	uint32_t number = 0;
	struct search s;
	int rc = search_begin(&s, p, m, err);

	if (!rc && s.rest_us) {
		struct search first = s;

		first.a = (struct arena){ 0 };
		first.first = true;
		rc = search_run(&first, &number, err);
		if (!rc)
			s.limit_us = first.visit[number].us * (1 + ROUNDED);
		search_end(&first);
	}
	if (!rc)
		rc = search_run(&s, &number, err);
	if (!rc)
		rc = way_to(&s, number, a, ret, err);
	search_end(&s);
	return rc;
}
