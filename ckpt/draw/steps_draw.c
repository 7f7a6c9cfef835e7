/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps_draw.c - see steps_draw.h: from steps to states, sets and arrows. Called by ckptctl plan.
 * Invariant: what a box shows is what layout_share says of that state, and an arrow's bytes are
 * counted by intersecting such sets, never by dividing sizes.
 */
#include "ckpt/draw/steps_impl.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/draw/layout_shares.h"
#include "ckpt/draw/svg.h"
#include "ckpt/layout/human.h"

#define MEMBERS_MAX 64u /* of a group: 64 x 63 arrows */
#define RUNS_SAID 2u
#define WORD_BYTES 64
#define LINE_BYTES 512

static uint64_t bytes_of(const struct steps_draw *d, uint64_t elements)
{
	uint64_t bytes;

	return ckpt_mul(elements, d->problem->elem_bytes, &bytes) ? UINT64_MAX : bytes;
}

uint64_t steps_bytes(const struct steps_draw *d, const struct indexset *set)
{
	return bytes_of(d, set->numel);
}

/* --- states --- */

static int state_sets(struct steps_draw *d, struct steps_state *s, struct ckpt_err *err)
{
	const struct redist_problem *p = d->problem;
	uint32_t n = p->mesh->nrank;
	struct indexset *set = arena_array(&d->arena, n, sizeof *set);
	struct indices *dim = arena_array(&d->arena, (size_t)n * MAX(p->ndim, 1u), sizeof *dim);
	struct shares all;
	int rc;

	if (!set || !dim)
		return -ENOMEM;
	rc = shares_make(p->mesh, s->layout, p->ndim, p->shape, &d->arena, &all, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++, dim += p->ndim) {
		const struct shares_list *list[CKPT_DIMS_MAX];
		uint32_t coord[CKPT_DIMS_MAX];

		mesh_place_coord(p->mesh, i, coord);
		set[i] = (struct indexset){ p->ndim, shares_at(&all, coord, list), dim };
		for (uint32_t k = 0; k < p->ndim; k++)
			dim[k] = list[k]->x;
	}
	s->set = set;
	if (d->arena.total_bytes > STEPS_BYTES_MAX)
		return ckpt_error(
			err, -E2BIG,
			"what the ranks hold has too many runs to be drawn: leave out --svg "
			"and use --json, or ask for smaller split factors");
	return 0;
}

static int state_map(struct steps_draw *d, struct steps_state *s)
{
	const struct redist_problem *p = d->problem;
	uint32_t n = p->mesh->nrank;
	cleanup_free struct map_in *in = calloc(n, sizeof *in);

	if (!in)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		in[i] = (struct map_in){ p->mesh->rank[i], &s->set[i] };
	return map_make(p->ndim, p->shape, in, n, &s->map);
}

static int make_states(struct steps_draw *d, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < d->nstate; i++) {
		struct steps_state *s = &d->state[i];
		int rc;

		s->layout = i ? &d->steps->step[i - 1].after : &d->steps->src;
		rc = state_sets(d, s, err);
		if (!rc && d->problem->mesh->nrank > STEPS_TEXT_BOXES)
			rc = state_map(d, s);
		if (rc)
			return rc;
	}
	return 0;
}

static bool dim_is_cut(const struct steps_draw *d, uint32_t dim)
{
	for (uint32_t i = 0; i < d->nstate; i++) {
		const struct layout *l = d->state[i].layout;

		for (uint32_t k = 0; k < l->nplace; k++)
			if (l->place[k].how == CKPT_SHARD && l->place[k].tensor_dim == dim &&
			    d->problem->mesh->dim[l->place[k].mesh_dim] > 1)
				return true;
	}
	return false;
}

/* The first two dimensions that are cut; if fewer are, the first of the others, too. */
static void choose_axes(struct steps_draw *d)
{
	int32_t axis[2] = { -1, -1 };
	uint32_t n = 0;

	for (int cut = 1; cut >= 0; cut--)
		for (uint32_t k = 0; k < d->problem->ndim && n < 2; k++)
			if (dim_is_cut(d, k) == cut)
				axis[n++] = (int32_t)k;
	d->across = n == 2 ? MAX(axis[0], axis[1]) : axis[0];
	d->down = n == 2 ? MIN(axis[0], axis[1]) : -1;
}

/* The mesh dimensions that have the most coordinates together for which there are colours; if there
 * are not enough for any, the first that has several. */
static void choose_colours(struct steps_draw *d)
{
	const struct mesh *m = d->problem->mesh;
	uint64_t most = 1;

	for (uint32_t set = 1; set < 1u << m->ndim; set++) {
		uint64_t n = 1;

		for (uint32_t k = 0; k < m->ndim; k++)
			n *= set >> k & 1 ? m->dim[k] : 1;
		if (n > most && n <= SVG_COLOURS) {
			most = n;
			d->colour_dims = set;
		}
	}
	for (uint32_t k = m->ndim; k-- > 0 && most == 1;)
		d->colour_dims = m->dim[k] > 1 ? 1u << k : d->colour_dims;
}

/* --- arrows --- */

static uint64_t runs_of(const struct indexset *set)
{
	uint64_t n = 1;

	for (uint32_t k = 0; k < set->ndim; k++)
		n += set->dim[k].n == 1 && set->dim[k].run->count == 1 ? 1
								       : indices_runs(&set->dim[k]);
	return n;
}

/* Elements that two sets have in common. */
static uint64_t common_of(const struct indexset *x, const struct indexset *y)
{
	uint64_t n = x->numel && y->numel;

	for (uint32_t k = 0; k < x->ndim && n; k++)
		n *= indices_common(&x->dim[k], &y->dim[k]).n;
	return n;
}

/* Of n elements that are divided among so many ranks, those of number i. */
static uint64_t slice_of(uint64_t n, uint32_t ranks, uint32_t i)
{
	return n / ranks + (i < n % ranks);
}

/* What a state does with a mesh dimension; NULL: its coordinates hold the same. */
static const struct ckpt_placement *placement_at(const struct layout *l, uint32_t mesh_dim)
{
	for (uint32_t i = 0; i < l->nplace; i++)
		if (l->place[i].mesh_dim == mesh_dim && l->place[i].how != CKPT_REPLICATE)
			return &l->place[i];
	return NULL;
}

/* The mesh dimensions, a bit for each, on which an exchange goes from coordinate to equal
 * coordinate: those that replicate, and the reductions that stay. */
static uint32_t kept_dims(const struct steps_draw *d, const struct redist_step *s)
{
	uint32_t kept = 0;

	for (uint32_t k = 0; k < d->problem->mesh->ndim; k++) {
		const struct ckpt_placement *p = placement_at(&s->before, k),
					    *q = placement_at(&s->after, k);

		if (!p || (p->how == CKPT_PARTIAL && q && q->how == CKPT_PARTIAL))
			kept |= 1u << k;
	}
	return kept;
}

struct pair {
	const struct mesh *mesh;
	const struct steps_state *before, *after;
	uint32_t from, to;    /* places */
	uint32_t i, k, ranks; /* which of the group they are */
	uint32_t kept;
};

static bool exchange_meets(const struct pair *p)
{
	uint32_t x[CKPT_DIMS_MAX], y[CKPT_DIMS_MAX];

	mesh_place_coord(p->mesh, p->from, x);
	mesh_place_coord(p->mesh, p->to, y);
	for (uint32_t k = 0; k < p->mesh->ndim; k++)
		if (p->kept >> k & 1 && x[k] != y[k] && !MUTANT(ARROW_OF_REPLICAS))
			return false;
	return true;
}

/* Before the step, two members of a group hold the same (replicas, operands) or nothing in common.
 * So what is in both sets is new to the receiver. */
static uint64_t pair_elements(enum redist_op op, const struct pair *p)
{
	const struct indexset *sender = &p->before->set[p->from], *got = &p->after->set[p->to];

	switch (op) {
	case REDIST_LOCAL:
		return 0;
	case REDIST_ALL_REDUCE:
		return slice_of(sender->numel, p->ranks, p->i) +
		       slice_of(sender->numel, p->ranks, p->k);
	case REDIST_EXCHANGE:
		return exchange_meets(p) ? common_of(sender, got) : 0;
	case REDIST_REDUCE_SCATTER:
	case REDIST_ALL_GATHER:
	case REDIST_ALL_TO_ALL:
		return common_of(sender, got);
	}
	return 0;
}

/* The places of group number g: those that differ in one mesh dimension alone; all, of an
 * exchange. */
static void group_places(const struct steps_draw *d, const struct steps_move *m, uint32_t g,
			 uint32_t *ret)
{
	const struct mesh *mesh = d->problem->mesh;
	uint32_t stride = 1;

	if (m->step->op != REDIST_EXCHANGE && !MUTANT(ARROW_TO_NEIGHBOUR))
		for (uint32_t k = mesh->ndim; k-- > m->step->mesh_dim + 1;)
			stride *= mesh->dim[k];
	for (uint32_t i = 0; i < m->members; i++)
		ret[i] = g / stride * stride * m->size + g % stride + i * stride;
}

static void group_arrows(struct steps_draw *d, struct steps_move *m, uint32_t g,
			 const struct steps_state *before)
{
	uint32_t place[MEMBERS_MAX], was = m->narrow;
	struct pair p = { .mesh = d->problem->mesh,
			  .before = before,
			  .after = before + 1,
			  .ranks = m->size,
			  .kept = kept_dims(d, m->step) };

	group_places(d, m, g, place);
	for (p.i = 0; p.i < m->members; p.i++)
		for (p.k = 0; p.k < m->members; p.k++) {
			uint64_t n;

			p.from = place[p.i];
			p.to = place[p.k];
			n = p.i == p.k ? 0 : pair_elements(m->step->op, &p);
			if (n)
				m->arrow[m->narrow++] =
					(struct steps_arrow){ p.from, p.to, bytes_of(d, n) };
		}
	if (!g || (!was && m->narrow))
		memcpy(m->member, place, m->members * sizeof *place);
}

/* Would the arrows take too long to count? */
static bool has_many_runs(const struct steps_draw *d, const struct steps_move *m,
			  const struct steps_state *before)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < d->problem->mesh->nrank; i++)
		most = MAX(most, runs_of(&before[0].set[i]) + runs_of(&before[1].set[i]));
	return most > STEPS_RUNS_MAX / ((uint64_t)m->members * m->members * m->drawn);
}

static int make_move(struct steps_draw *d, uint32_t i)
{
	const struct mesh *mesh = d->problem->mesh;
	struct steps_move *m = &d->move[i];
	uint32_t pairs;

	m->step = &d->steps->step[i];
	m->size = m->step->op == REDIST_EXCHANGE ? mesh->nrank : mesh->dim[m->step->mesh_dim];
	m->ngroup = mesh->nrank / m->size;
	m->members = MIN(m->size, MEMBERS_MAX);
	pairs = MAX(m->members * (m->members - 1), 1u);
	m->drawn = MIN(m->ngroup, STEPS_ARROWS_MAX / pairs);
	m->member = arena_array(&d->arena, m->members, sizeof *m->member);
	m->arrow = arena_array(&d->arena, STEPS_ARROWS_MAX, sizeof *m->arrow);
	if (!m->arrow || !m->member)
		return -ENOMEM;
	m->too_many_runs = has_many_runs(d, m, &d->state[i]);
	for (uint32_t g = 0; g < m->drawn && !m->too_many_runs; g++)
		group_arrows(d, m, g, &d->state[i]);
	return 0;
}

/* --- making --- */

static int make_all(struct steps_draw *d, struct ckpt_err *err)
{
	int rc;

	d->nstate = d->steps->n + 1;
	d->state = arena_array(&d->arena, d->nstate, sizeof *d->state);
	d->move = arena_array(&d->arena, d->nstate, sizeof *d->move);
	if (!d->state || !d->move)
		return -ENOMEM;
	rc = make_states(d, err);
	for (uint32_t i = 0; i < d->steps->n && !rc; i++)
		rc = make_move(d, i);
	choose_axes(d);
	choose_colours(d);
	return rc;
}

int steps_draw_make(const struct redist_problem *p, const struct redist_steps *s,
		    struct steps_draw **ret, struct ckpt_err *err)
{
	struct steps_draw *d;
	int rc;

	*ret = NULL;
	if (p->mesh->nrank > STEPS_RANKS_MAX)
		return ckpt_error(
			err, -E2BIG,
			"%u ranks are too many to draw, the maximum is %u; --json has the "
			"steps alone",
			p->mesh->nrank, STEPS_RANKS_MAX);
	d = calloc(1, sizeof *d);
	if (!d)
		return ckpt_error(err, -ENOMEM, "out of memory for the drawing");
	d->problem = p;
	d->steps = s;
	err->msg[0] = 0;
	rc = make_all(d, err);
	if (rc) {
		steps_draw_free(d);
		return err->msg[0] ? rc : ckpt_error(err, rc, "out of memory for the drawing");
	}
	*ret = d;
	return 0;
}

void steps_draw_free(struct steps_draw *d)
{
	if (!d)
		return;
	for (uint32_t i = 0; d->state && i < d->nstate; i++)
		map_free(d->state[i].map);
	arena_free(&d->arena);
	free(d);
}

/* --- what both drawings show --- */

uint32_t steps_colour(const struct steps_draw *d, uint32_t place, uint32_t ncolour)
{
	const struct mesh *m = d->problem->mesh;
	uint32_t coord[CKPT_DIMS_MAX], colour = 0;

	mesh_place_coord(m, place, coord);
	for (uint32_t k = 0; k < m->ndim; k++)
		if (d->colour_dims >> k & 1)
			colour = colour * m->dim[k] + coord[k];
	return colour % ncolour;
}

char *steps_coloured(const struct steps_draw *d, char *buf, size_t bytes)
{
	const struct mesh *m = d->problem->mesh;
	struct text t = text_in(buf, bytes);

	for (uint32_t k = 0; k < m->ndim; k++)
		if (d->colour_dims >> k & 1)
			text_add(&t, "%s%s", t.len ? ", " : "", m->name[k]);
	return buf;
}

/* How many of the indices [from, to) are in dimension dim of the set; dim -1: in its only one. */
static uint64_t indices_in(const struct indexset *set, int32_t dim, uint64_t from, uint64_t to)
{
	if (dim < 0)
		return 1;
	return indices_below(&set->dim[dim], to) - indices_below(&set->dim[dim], from);
}

double steps_share(const struct steps_draw *d, const struct indexset *set,
		   const struct steps_area *a)
{
	uint64_t rows = d->down < 0 ? 1 : a->r1 - a->r0, cols = d->across < 0 ? 1 : a->c1 - a->c0;

	if (!set->numel || !rows || !cols)
		return 0;
	return (double)indices_in(set, d->down, a->r0, a->r1) / (double)rows *
	       (double)indices_in(set, d->across, a->c0, a->c1) / (double)cols;
}

char *steps_dim(const struct steps_draw *d, const struct indexset *set, uint32_t dim, char *buf,
		size_t bytes)
{
	const struct indices *x = &set->dim[dim];
	struct text t = text_in(buf, bytes);
	struct indices_cursor at = { 0 };
	uint64_t runs = indices_runs(x);
	struct stretch s;

	if (x->total == d->problem->shape[dim]) {
		text_add(&t, ":");
		return buf;
	}
	for (uint32_t i = 0; i < RUNS_SAID && indices_next(x, x, &at, &s); i++)
		text_add(&t, "%s%llu:%llu", i ? " " : "", (unsigned long long)s.index,
			 (unsigned long long)(s.index + s.len));
	if (runs > RUNS_SAID)
		text_add(&t, " +%llu", (unsigned long long)(runs - RUNS_SAID));
	return buf;
}

char *steps_set(const struct steps_draw *d, const struct indexset *set, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);
	char word[WORD_BYTES];

	if (!set->numel || !set->ndim)
		text_add(&t, "%s", set->numel ? "all" : "nothing");
	for (uint32_t k = 0; k < set->ndim && set->numel; k++)
		text_add(&t, "%s%s", k ? "," : "", steps_dim(d, set, k, word, sizeof word));
	return buf;
}

char *steps_move_words(const struct steps_draw *d, const struct steps_move *m, char *buf,
		       size_t bytes)
{
	const struct redist_step *s = m->step;
	struct text t = text_in(buf, bytes);

	text_add(&t, "%s", redist_op_name(s->op));
	if (s->op != REDIST_EXCHANGE)
		text_add(&t, " over %s", d->problem->mesh->name[s->mesh_dim]);
	text_add(&t, ", %s", US_TEXT(s->us));
	if (s->op == REDIST_LOCAL)
		text_add(&t, ": nothing is sent");
	else
		text_add(&t, ": a rank sends at most %s", BYTES_TEXT((uint64_t)s->bytes));
	if (s->peak_bytes)
		text_add(&t, "%s needs at most %s of memory",
			 s->op == REDIST_LOCAL ? ", a rank" : " and", BYTES_TEXT(s->peak_bytes));
	return buf;
}

char *steps_left_out(const struct steps_move *m, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	if (m->too_many_runs)
		text_add(&t, "the ranks hold too many runs to say who sends what to whom");
	else if (m->members < m->size)
		text_add(&t, "the arrows of %u of the %u ranks that talk to each other are drawn",
			 m->members, m->size);
	return buf;
}

char *steps_state_words(const struct steps_draw *d, const struct steps_state *s, char *buf,
			size_t bytes)
{
	uint32_t n = d->problem->mesh->nrank, empty = 0;
	uint64_t least = UINT64_MAX, most = 0;
	struct text t = text_in(buf, bytes);
	char a[HUMAN_BYTES], b[HUMAN_BYTES];

	for (uint32_t i = 0; i < n; i++) {
		least = MIN(least, s->set[i].numel);
		most = MAX(most, s->set[i].numel);
		empty += !s->set[i].numel;
	}
	human_bytes(bytes_of(d, least), a);
	human_bytes(bytes_of(d, most), b);
	if (least == most)
		text_add(&t, "%s %s", n == 1 ? "its one rank holds" : "each rank holds", a);
	else
		text_add(&t, "a rank holds %s to %s", a, b);
	if (empty && most)
		text_add(&t, ", %u of %u nothing", empty, n);
	if (layout_is_partial(s->layout))
		text_add(&t, ", of operands");
	return buf;
}
