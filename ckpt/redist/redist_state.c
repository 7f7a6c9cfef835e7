/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redist_state.c - states of a redistribution: their canonical form, the steps between them, their
 * text. Called by the planners, and for what users write.
 * Invariant: what redist_state_print prints is read back as the same state.
 */
#include "ckpt/redist/redist_state.h"
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"

/* --- canonical --- */

void redist_state_of(const struct mesh *m, const struct layout *l, struct redist_state *ret)
{
	const struct ckpt_placement *of[CKPT_DIMS_MAX] = { NULL }; /* by mesh dimension */
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->nplace; i++)
		of[l->place[i].mesh_dim] = &l->place[i];
	for (uint32_t d = 0; d < CKPT_DIMS_MAX; d++)
		for (uint32_t i = 0; i < l->nplace; i++)
			if (redist_is_shard(&l->place[i]) && l->place[i].tensor_dim == d)
				ret->place[n++] = l->place[i];
	for (uint32_t i = 0; i < m->ndim; i++) {
		struct ckpt_placement *p = &ret->place[n];

		if (of[i] && redist_is_shard(of[i]))
			continue;
		*p = (struct ckpt_placement){ .mesh_dim = (uint16_t)i };
		if (of[i] && of[i]->how != CKPT_REPLICATE) {
			p->how = of[i]->how;
			p->reduce = of[i]->reduce;
			p->split_factor = of[i]->split_factor;
		}
		n++;
	}
}

bool redist_state_equal(const struct mesh *m, const struct redist_state *x,
			const struct redist_state *y)
{
	return !memcmp(x->place, y->place, m->ndim * sizeof *x->place);
}

const struct ckpt_placement *redist_state_at(const struct mesh *m, const struct redist_state *s,
					     uint32_t mesh_dim)
{
	for (uint32_t i = 0; i < m->ndim; i++)
		if (s->place[i].mesh_dim == mesh_dim)
			return &s->place[i];
	return NULL;
}

void redist_state_change(const struct mesh *m, struct redist_state *s,
			 const struct ckpt_placement *to)
{
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = { .place = place };

	for (uint32_t i = 0; i < m->ndim; i++)
		if (s->place[i].mesh_dim != to->mesh_dim)
			place[l.nplace++] = s->place[i];
	place[l.nplace++] = *to;
	redist_state_of(m, &l, s);
}

/* --- steps --- */

const char *redist_op_name(enum redist_op op)
{
	static const char *const name[] = { "local",	      "all_gather", "all_reduce",
					    "reduce_scatter", "all_to_all", "exchange" };

	return name[op];
}

enum redist_op redist_op_of(const struct ckpt_placement *from, const struct ckpt_placement *to)
{
	if (from->how == CKPT_PARTIAL)
		return redist_is_shard(to) ? REDIST_REDUCE_SCATTER : REDIST_ALL_REDUCE;
	if (redist_is_shard(from) && to->how != CKPT_PARTIAL)
		return redist_is_shard(to) ? REDIST_ALL_TO_ALL : REDIST_ALL_GATHER;
	return REDIST_LOCAL;
}

static int state_layout(const struct mesh *m, const struct redist_state *s, struct arena *a,
			struct layout *ret)
{
	const struct ckpt_placement *place = arena_dup(a, s->place, m->ndim * sizeof *place);

	*ret = (struct layout){ .nplace = m->ndim, .place = place };
	return place ? 0 : -ENOMEM;
}

int redist_steps_add(struct redist_steps *to, const struct redist_problem *p,
		     const struct redist_model *m, struct redist_state *s,
		     const struct ckpt_placement *change, struct arena *a, struct ckpt_err *err)
{
	const struct ckpt_placement *from = redist_state_at(p->mesh, s, change->mesh_dim);
	struct redist_step *step = &to->step[to->n];
	int rc;

	*step = (struct redist_step){ .op = redist_op_of(from, change),
				      .mesh_dim = change->mesh_dim,
				      .from = *from,
				      .to = *change };
	step->before = to->n ? to->step[to->n - 1].after : to->src;
	redist_state_change(p->mesh, s, change);
	rc = state_layout(p->mesh, s, a, &step->after);
	if (rc)
		return ckpt_error(err, rc, "out of memory for the steps of a redistribution");
	rc = m->price(m, p, step, err);
	if (rc)
		return rc;
	to->n++;
	to->us += step->us;
	to->peak_bytes = MAX(to->peak_bytes, step->peak_bytes);
	return 0;
}

/* --- as text --- */

/* Which place has each mesh dimension in the order of its tensor dimension, and how many are
 * there? */
struct positions {
	uint8_t at[CKPT_DIMS_MAX]; /* by mesh dimension */
	uint8_t n[CKPT_DIMS_MAX];  /* by tensor dimension */
};

static void positions_of(const struct mesh *m, const struct redist_state *s, struct positions *ret)
{
	*ret = (struct positions){ 0 };
	for (uint32_t i = 0; i < m->ndim; i++)
		if (redist_is_shard(&s->place[i]))
			ret->at[s->place[i].mesh_dim] = ret->n[s->place[i].tensor_dim]++;
}

char *redist_placement_print(const struct ckpt_placement *p, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	if (redist_is_strided(p))
		text_add(&t, "_S(%u, %u)", p->tensor_dim, p->split_factor);
	else if (redist_is_shard(p))
		text_add(&t, "S(%u)", p->tensor_dim);
	else if (p->how == CKPT_PARTIAL)
		text_add(&t, "P(%s)", reduce_name(p->reduce));
	else if (p->how == CKPT_ONLY)
		text_add(&t, "Only(%u)", p->split_factor);
	else
		text_add(&t, "R");
	return buf;
}

char *redist_state_print(const struct mesh *m, const struct layout *l, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);
	char one[REDIST_PLACEMENT_BYTES];
	struct redist_state s;
	struct positions pos;

	redist_state_of(m, l, &s);
	positions_of(m, &s, &pos);
	for (uint32_t i = 0; i < m->ndim; i++) {
		const struct ckpt_placement *p = redist_state_at(m, &s, i);

		text_add(&t, "%s", redist_placement_print(p, one, sizeof one));
		if (redist_is_shard(p) && pos.n[p->tensor_dim] > 1)
			text_add(&t, "[%u]", pos.at[i]);
	}
	return buf;
}

/* A state while it is read. */
struct state_reading {
	const char *text, *at;
	const struct mesh *mesh;
	uint32_t ndim, n;
	struct ckpt_placement place[CKPT_DIMS_MAX];
	const char *bracket[CKPT_DIMS_MAX]; /* by mesh dimension: where its "[i]" is; NULL: none */
	int64_t position[CKPT_DIMS_MAX];
	struct ckpt_errlist wrong;
};

static size_t state_column(const struct state_reading *r, const char *at)
{
	return (size_t)(at - r->text) + 1;
}

static void read_state_dim(struct state_reading *r, const struct placement_text *t,
			   struct ckpt_placement *p)
{
	int64_t d = t->dim < 0 ? t->dim + (int64_t)r->ndim : t->dim;

	if (d < 0 || d >= (int64_t)r->ndim)
		ckpt_errlist_add(&r->wrong,
				 "character %zu: there is no dimension %lld; the tensor has %u",
				 state_column(r, t->dim_at), (long long)t->dim, r->ndim);
	else
		p->tensor_dim = (uint16_t)d;
	if (t->strided && (t->factor < 1 || t->factor > UINT32_MAX))
		ckpt_errlist_add(&r->wrong, "character %zu: a split factor is 1 to %u",
				 state_column(r, t->factor_at), UINT32_MAX);
	else if (t->strided)
		p->split_factor = (uint32_t)t->factor;
}

/* "[1]", behind a placement that cuts. NULL, or what must stand there. */
static const char *read_state_position(struct state_reading *r, const struct ckpt_placement *p)
{
	int64_t i = 0;

	if (*r->at != '[')
		return NULL;
	if (!redist_is_shard(p))
		return "only what shards has a place in an order";
	r->bracket[r->n] = r->at++;
	if (*r->at < '0' || *r->at > '9')
		return "expected a place in the order, 0 or above";
	for (; *r->at >= '0' && *r->at <= '9'; r->at++)
		i = MIN(i * 10 + *r->at - '0', (int64_t)CKPT_DIMS_MAX);
	if (*r->at != ']')
		return "expected ']'";
	r->at++;
	r->position[r->n] = i;
	return NULL;
}

static const char *read_state_placement(struct state_reading *r)
{
	struct ckpt_placement p = { .mesh_dim = (uint16_t)r->n };
	struct placement_text t;
	const char *from = r->at, *want = placement_read(&r->at, &t);

	if (want && r->at > from)
		return want;
	if (want || t.how == CKPT_ONLY || t.keep) {
		r->at = from;
		return "expected what a redistribution can have: S(DIM), _S(DIM, FACTOR), R or "
		       "P(OPERATION)";
	}
	p.how = t.how;
	p.reduce = t.reduce;
	if (r->n == r->mesh->ndim) {
		r->at = from;
		return "the mesh has fewer dimensions, and each has one placement";
	}
	if (redist_is_shard(&p))
		read_state_dim(r, &t, &p);
	want = read_state_position(r, &p);
	r->place[r->n++] = p;
	return want;
}

/* The mesh dimensions that cut tensor dimension d, in order, to the end of `to`. */
static void read_state_order(struct state_reading *r, uint32_t d, struct ckpt_placement *to,
			     uint32_t *n)
{
	uint32_t of[CKPT_DIMS_MAX], count = 0, marked = 0, taken = 0;

	for (uint32_t i = 0; i < r->n; i++)
		if (redist_is_shard(&r->place[i]) && r->place[i].tensor_dim == d) {
			of[count++] = i;
			marked += r->bracket[i] != NULL;
		}
	for (uint32_t k = 0; k < count; k++) {
		uint32_t i = of[k];
		int64_t at = marked ? r->position[i] : (int64_t)k;

		if (marked && !r->bracket[i])
			ckpt_errlist_add(&r->wrong,
					 "mesh dimension %u: the others that cut tensor dimension "
					 "%u have a place in the order, so it needs one too",
					 i, d);
		else if (at >= (int64_t)count || taken >> at & 1)
			ckpt_errlist_add(&r->wrong,
					 "character %zu: the places in the order of tensor "
					 "dimension %u are 0 to %u, each once",
					 state_column(r, r->bracket[i]), d, count - 1);
		else {
			taken |= 1u << at;
			to[*n + (uint32_t)at] = r->place[i];
		}
	}
	*n += count;
}

static void read_state(struct state_reading *r)
{
	const char *want = NULL;

	for (;;) {
		r->at += strspn(r->at, " ,");
		if (!*r->at || want)
			break;
		want = read_state_placement(r);
	}
	if (want)
		ckpt_errlist_add(&r->wrong, "character %zu: %s", state_column(r, r->at), want);
	else if (r->n != r->mesh->ndim)
		ckpt_errlist_add(&r->wrong,
				 "character %zu: %u placements for the %u dimensions of the mesh; "
				 "each has one, in their order",
				 state_column(r, r->at), r->n, r->mesh->ndim);
}

int redist_state_parse(const char *text, const struct mesh *m, uint32_t ndim, struct arena *a,
		       struct layout *ret, struct ckpt_err *err)
{
	struct state_reading r = {
		.text = text, .at = text, .mesh = m, .ndim = ndim, .wrong = { .code = -EINVAL }
	};
	struct ckpt_placement *place = arena_array(a, m->ndim + 1, sizeof *place);
	uint32_t n = 0;
	int rc;

	if (!place)
		return ckpt_error(err, -ENOMEM, "out of memory for placements");
	read_state(&r);
	for (uint32_t d = 0; d < ndim && !r.wrong.n; d++)
		read_state_order(&r, d, place, &n);
	rc = ckpt_errlist_end(&r.wrong, err, "\"%.120s\" is no state", text);
	ckpt_errlist_free(&r.wrong);
	for (uint32_t i = 0; i < r.n && !rc; i++)
		if (!redist_is_shard(&r.place[i]))
			place[n++] = r.place[i];
	*ret = (struct layout){ .nplace = n, .place = place };
	if (!rc)
		rc = layout_check(m, ret, ndim, err);
	return rc;
}
