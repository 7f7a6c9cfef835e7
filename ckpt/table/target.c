/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.c - a checkpoint's tensors on another mesh. Called by the verbs that take --mesh.
 * Invariant: whatever the placements were and whatever the mesh is, the shares of all ranks
 * together are the whole tensor, and a tensor comes out cut otherwise than it was only with a note.
 */
#include "ckpt/table/target.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <fnmatch.h>
#include <stdio.h>

#define NONE UINT16_MAX /* no such dimension of a mesh */
#define NOTE_BYTES 1024 /* of the note of one tensor */
#define FULL_BYTES (2 * CKPT_NAME_MAX + 2)
#define ALIGN 64   /* of each tensor's share in a place */
#define MEMO 4096u /* shares that are remembered; a power of two */

#define PIECES_RESERVED (UINT64_C(1) << 20)

/* The placements of one tensor on their way to the new mesh; mesh_dim is the new one's. */
struct cut {
	uint32_t n, mode; /* 0 where nothing is sharded */
	struct ckpt_placement place[CKPT_DIMS_MAX];
	uint32_t inside[CKPT_DIMS_MAX]; /* bit per place: their product is this one's factor */
};

struct rule {
	const struct target_rule *text;
	struct layout layout;
	size_t plain; /* bytes before the first character that is special in a glob */
	bool hit, hit_blob;
	uint32_t last; /* the layout of its last tensor, in the target */
};

struct making {
	const struct table *src;
	struct table *dst;
	const struct mesh *mesh;
	struct arena arena;
	uint16_t *to;	/* [src meshes][CKPT_DIMS_MAX]: the dimension of that name, NONE */
	uint32_t *last; /* [src layouts]: where its last tensor's layout is in dst, TABLE_NONE */
	uint32_t nrule;
	struct rule *rule;
	target_note_fn *note_fn;
	void *note_arg;
	struct text note;
	char note_text[NOTE_BYTES];
};

/* --- notes --- */

__attribute__((format(printf, 2, 3))) static void note_add(struct making *k, const char *fmt, ...)
{
	va_list ap;

	text_add(&k->note, "%s", k->note.len ? "; " : "");
	va_start(ap, fmt);
	text_vadd(&k->note, fmt, ap);
	va_end(ap);
}

static uint32_t factor_of(const struct ckpt_placement *p)
{
	return MAX(p->split_factor, 1u);
}

/* --- a tensor's own placements on the new mesh --- */

static void carry_only(struct making *k, const struct mesh *old, const struct ckpt_placement *p,
		       uint16_t to, struct cut *c)
{
	uint32_t n = old->dim[p->mesh_dim], m = k->mesh->dim[to];
	uint32_t at = (uint32_t)((uint64_t)p->split_factor * m / n);

	if (at != p->split_factor)
		note_add(k, "Only(%u)@%s becomes Only(%u)", p->split_factor, k->mesh->name[to], at);
	c->place[c->n++] =
		(struct ckpt_placement){ .how = CKPT_ONLY, .mesh_dim = to, .split_factor = at };
}

/* Leave only the placements whose bit is set, and make their factors follow. */
static void cut_keep(struct cut *c, uint32_t keep)
{
	uint32_t at[CKPT_DIMS_MAX], n = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		at[i] = n;
		n += keep >> i & 1;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t inside = 0;

		if (!(keep >> i & 1))
			continue;
		for (uint32_t j = 0; j < c->n; j++)
			if (c->inside[i] >> j & keep >> j & 1)
				inside |= 1u << at[j];
		/* Bit 31: there was a set once, also when nothing of it is left. */
		c->inside[at[i]] = inside | (c->inside[i] & UINT32_C(1) << 31);
		c->place[at[i]] = c->place[i];
	}
	c->n = n;
}

/* Where several would cut a dimension that is too small for them, one cuts alone. */
static void cut_alone(struct making *k, struct cut *c, const uint64_t *shape, uint16_t tensor_dim)
{
	uint32_t cutting = 0, largest = 0, n = 0, keep = (1u << c->n) - 1;
	uint64_t product = 1;
	char buf[NOTE_BYTES / 2];
	struct text dims = text_in(buf, sizeof buf);

	for (uint32_t i = 0; i < c->n; i++) {
		const struct ckpt_placement *p = &c->place[i], *q = &c->place[largest];
		uint32_t size = k->mesh->dim[p->mesh_dim];

		if (p->how != CKPT_SHARD || p->tensor_dim != tensor_dim || size == 1)
			continue;
		if (!n++ || size > k->mesh->dim[q->mesh_dim] ||
		    (size == k->mesh->dim[q->mesh_dim] && p->mesh_dim < q->mesh_dim))
			largest = i;
		cutting |= 1u << i;
		product *= size; /* of a mesh: at most LAYOUT_RANKS_MAX */
		text_add(&dims, "%s%s=%u", n > 1 ? " x " : "", k->mesh->name[p->mesh_dim], size);
	}
	if (n < 2 || shape[tensor_dim] >= product)
		return;
	note_add(k, "dimension %u has too few elements for %s: %s cuts alone", tensor_dim, buf,
		 k->mesh->name[c->place[largest].mesh_dim]);
	cut_keep(c, keep & ~(cutting & ~(1u << largest)));
}

static void cut_factors(struct making *k, struct cut *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		struct ckpt_placement *p = &c->place[i];
		char old[PLACEMENT_BYTES], new[PLACEMENT_BYTES];
		uint64_t factor = 1;

		if (!c->inside[i])
			continue;
		for (uint32_t j = 0; j < c->n; j++)
			if (c->inside[i] >> j & 1)
				factor *= k->mesh->dim[c->place[j].mesh_dim];
		if (factor == factor_of(p))
			continue;
		placement_print(k->mesh, p, old, sizeof old);
		p->split_factor = factor > 1 ? (uint32_t)factor : 0;
		note_add(k, "%s becomes %s", old, placement_print(k->mesh, p, new, sizeof new));
	}
}

/* How the shards of a cut share a dimension. */
static void cut_mode(struct cut *c, uint32_t mode)
{
	c->mode = CKPT_CHUNK;
	for (uint32_t i = 0; i < c->n; i++)
		if (c->place[i].how == CKPT_SHARD)
			c->mode = mode;
}

/* The placements of a tensor of the source on the new mesh; says what does not stay. */
static void placements_carry(struct making *k, const struct table_tensor *x, struct cut *ret)
{
	const struct layout *l = &k->src->layout[x->layout];
	const struct mesh *old = &k->src->mesh[l->mesh];
	const uint16_t *to = k->to + (size_t)l->mesh * CKPT_DIMS_MAX;
	uint32_t bits[CKPT_DIMS_MAX] = { 0 }, keep = 0;
	struct cut c = { .n = l->nplace };

	layout_inside(old, l, bits);
	*ret = (struct cut){ 0 };
	/* The sets hold numbers of the old list. They are renumbered when placements are removed. */
	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *p = &l->place[i];

		c.place[i] = *p;
		if (p->how == CKPT_PARTIAL)
			note_add(k, "Partial(%s)@%s is reduced", reduce_name(p->reduce),
				 old->name[p->mesh_dim]);
		if (p->how == CKPT_REPLICATE || p->how == CKPT_PARTIAL)
			continue;
		if (to[p->mesh_dim] == NONE) {
			note_add(k,
				 p->how == CKPT_ONLY
					 ? "%s is not in the new mesh: on all ranks"
					 : "%s is not in the new mesh: it no longer cuts",
				 old->name[p->mesh_dim]);
			continue;
		}
		keep |= 1u << i;
		c.inside[i] = bits[i] ? bits[i] | UINT32_C(1) << 31 : 0;
		if (p->how == CKPT_ONLY) {
			struct cut one = { 0 };

			carry_only(k, old, p, to[p->mesh_dim], &one);
			c.place[i] = one.place[0];
		} else {
			c.place[i].mesh_dim = to[p->mesh_dim];
		}
	}
	cut_keep(&c, keep);
	for (uint16_t d = 0; d < x->ndim; d++)
		cut_alone(k, &c, x->shape, d);
	cut_factors(k, &c);
	cut_mode(&c, l->mode);
	*ret = c;
}

/* --- rules --- */

static bool rule_matches(const struct rule *r, const struct table_tensor *x, const char *full)
{
	const char *glob = r->text->glob;

	return (!strncmp(glob, full, r->plain) && !fnmatch(glob, full, 0)) ||
	       (!strncmp(glob, x->name, r->plain) && !fnmatch(glob, x->name, 0));
}

/* The first rule for the tensor; every one that matches anything learns that it does. */
static struct rule *rule_for(struct making *k, const struct table_tensor *x)
{
	struct rule *first = NULL;
	char full[FULL_BYTES];

	if (!k->nrule)
		return NULL;
	snprintf(full, sizeof full, "%s%s%s", x->component, *x->component ? "/" : "", x->name);
	for (uint32_t i = 0; i < k->nrule; i++) {
		struct rule *r = &k->rule[i];

		if ((first && r->hit) || !rule_matches(r, x, full))
			continue;
		if (x->flags & TENSOR_BLOB) {
			r->hit_blob = true;
			continue;
		}
		r->hit = true;
		first = first ? first : r;
	}
	return first;
}

/* Returns whether something of the rule could not apply. */
static bool rule_apply(struct making *k, const struct rule *r, const struct table_tensor *x,
		       struct cut *ret)
{
	bool left = false;

	*ret = (struct cut){ 0 };
	for (uint32_t i = 0; i < r->layout.nplace; i++) {
		const struct ckpt_placement *p = &r->layout.place[i];

		if (p->how == CKPT_REPLICATE)
			continue;
		if (p->how == CKPT_SHARD && p->tensor_dim >= x->ndim) {
			if (x->ndim)
				note_add(k, "no dimension %u: replicates over %s", p->tensor_dim,
					 k->mesh->name[p->mesh_dim]);
			else
				note_add(k, "0-d: replicates over %s", k->mesh->name[p->mesh_dim]);
			left = true;
			continue;
		}
		ret->place[ret->n++] = *p;
	}
	cut_mode(ret, r->layout.mode);
	return left;
}

/* --- did it stay what it was? --- */

/* Placements of different tensor dimensions do not know of each other: their order is none. */
static bool comes_before(const struct ckpt_placement *p, const struct ckpt_placement *q)
{
	if (p->how != q->how)
		return p->how < q->how;
	if (p->how == CKPT_ONLY)
		return false;
	return p->tensor_dim < q->tensor_dim;
}

static uint32_t sort_cuts(const struct ckpt_placement *from, uint32_t n, struct ckpt_placement *ret)
{
	uint32_t m = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = m;

		if (from[i].how == CKPT_REPLICATE)
			continue;
		for (; at && comes_before(&from[i], &ret[at - 1]); at--)
			ret[at] = ret[at - 1];
		ret[at] = from[i];
		m++;
	}
	return m;
}

static bool only_is_among(const struct mesh *m, const struct ckpt_placement *p,
			  const struct mesh *old, const struct ckpt_placement *q, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (q[i].how == CKPT_ONLY && q[i].split_factor == p->split_factor &&
		    !strcmp(m->name[p->mesh_dim], old->name[q[i].mesh_dim]))
			return true;
	return false;
}

static bool same_cuts(const struct making *k, const struct table_tensor *x, const struct cut *c)
{
	const struct layout *l = &k->src->layout[x->layout];
	const struct mesh *old = &k->src->mesh[l->mesh];
	struct ckpt_placement a[CKPT_DIMS_MAX], b[CKPT_DIMS_MAX];
	uint32_t n = sort_cuts(l->place, l->nplace, a);

	if (n != sort_cuts(c->place, c->n, b))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (a[i].how != b[i].how)
			return false;
		if (b[i].how == CKPT_ONLY) {
			if (!only_is_among(k->mesh, &b[i], old, a, n))
				return false;
		} else if (c->mode != l->mode || a[i].tensor_dim != b[i].tensor_dim ||
			   factor_of(&a[i]) != factor_of(&b[i]) ||
			   strcmp(old->name[a[i].mesh_dim], k->mesh->name[b[i].mesh_dim]) != 0) {
			return false;
		}
	}
	return true;
}

/* --- the tensors of the target --- */

static bool is_layout(const struct table *t, uint32_t id, const struct cut *c)
{
	return id != TABLE_NONE && t->layout[id].nplace == c->n && t->layout[id].mode == c->mode &&
	       !memcmp(t->layout[id].place, c->place, c->n * sizeof *c->place);
}

static int make_tensor(struct making *k, uint32_t id, struct ckpt_err *err)
{
	struct table_tensor x = k->src->tensor[id];
	struct rule *r = rule_for(k, &x);
	uint32_t nowhere = TABLE_NONE, *last = &nowhere;
	struct cut c = { 0 };
	bool tell = false;
	int rc;

	k->note = text_in(k->note_text, sizeof k->note_text);
	if (x.flags & TENSOR_BLOB)
		return table_add_tensor(k->dst, &x, NULL, err);
	if (r) {
		note_add(k, "%s by %s", r->text->placements, r->text->where);
		last = &r->last;
		tell = rule_apply(k, r, &x, &c);
	} else if (x.layout != TABLE_NONE) {
		last = &k->last[x.layout];
		placements_carry(k, &x, &c);
	} else {
		note_add(k, TARGET_UNPLACED);
	}
	tell = tell || x.layout == TABLE_NONE || !same_cuts(k, &x, &c);
	if (!is_layout(k->dst, *last, &c)) {
		const struct layout l = { .mode = c.mode, .nplace = c.n, .place = c.place };

		rc = table_add_layout(k->dst, &l, last, err);
		if (rc)
			return rc;
	}
	/* What comes of operands has another fingerprint than they have together. */
	if (x.layout != TABLE_NONE && layout_is_partial(&k->src->layout[x.layout]))
		x.fp_known = false;
	if (!x.fp_known)
		x.fp = 0;
	x.layout = *last;
	rc = table_add_tensor(k->dst, &x, NULL, err);
	if (!rc && tell && k->note_fn)
		k->note_fn(k->note_arg, id, k->note_text);
	return rc;
}

static void name_rules(const struct making *k, struct ckpt_errlist *list)
{
	for (uint32_t i = 0; i < k->nrule; i++) {
		const struct rule *r = &k->rule[i];

		if (!r->hit)
			ckpt_errlist_add(list,
					 r->hit_blob ? "%s: \"%.200s\" matches blobs only, which "
						       "have no placements; leave the rule out"
						     : "%s: no tensor matches \"%.200s\"",
					 r->text->where, r->text->glob);
	}
}

static int parse_rules(struct making *k, const struct target_rule *rule, uint32_t nrule,
		       struct ckpt_errlist *list, struct ckpt_err *err)
{
	struct ckpt_err why = { 0 };

	k->rule = arena_array(&k->arena, nrule, sizeof *k->rule);
	if (!k->rule)
		return ckpt_error(err, -ENOMEM, "out of memory for %u layout rules", nrule);
	for (uint32_t i = 0; i < nrule; i++) {
		k->rule[i] = (struct rule){ .text = &rule[i],
					    .plain = strcspn(rule[i].glob, "*?[\\"),
					    .last = TABLE_NONE };
		int rc = layout_parse(rule[i].placements, k->mesh, &k->arena, &k->rule[i].layout,
				      &why);

		if (rc == -ENOMEM)
			return ckpt_error(err, rc, "%s", why.msg);
		if (rc)
			ckpt_errlist_add(list, "%s: %s", rule[i].where, why.msg);
		else if (layout_is_partial(&k->rule[i].layout))
			ckpt_errlist_add(
				list,
				"%s: a stored tensor cannot become a pending reduction; write "
				"Replicate or Shard instead of Partial",
				rule[i].where);
	}
	k->nrule = nrule;
	return 0;
}

/* Where the dimensions of the source's meshes are on the new one. */
static int map_meshes(struct making *k, struct ckpt_err *err)
{
	k->to = arena_array(&k->arena, (size_t)k->src->nmesh * CKPT_DIMS_MAX, sizeof *k->to);
	k->last = arena_array(&k->arena, k->src->nlayout, sizeof *k->last);
	if (!k->to || !k->last)
		return ckpt_error(err, -ENOMEM, "out of memory for layouts on another mesh");
	memset(k->last, 0xff, k->src->nlayout * sizeof *k->last);
	for (uint32_t i = 0; i < k->src->nmesh; i++)
		for (uint32_t d = 0; d < k->src->mesh[i].ndim; d++) {
			uint16_t *to = &k->to[(size_t)i * CKPT_DIMS_MAX + d];

			*to = NONE;
			for (uint16_t e = 0; e < k->mesh->ndim; e++)
				if (!strcmp(k->src->mesh[i].name[d], k->mesh->name[e]))
					*to = e;
		}
	return 0;
}

static int make_all(struct making *k, const char *spec, const struct target_rule *rule,
		    uint32_t nrule, struct ckpt_errlist *list, struct ckpt_err *err)
{
	struct mesh m;
	int rc = mesh_parse(spec, &k->arena, &m, err);

	if (rc)
		return rc;
	k->mesh = &m;
	rc = table_add_mesh(k->dst, &m, NULL, err);
	if (!rc && table_reserve(k->dst, k->src->ntensor, 0))
		rc = ckpt_error(err, -ENOMEM, "out of memory for %u tensors", k->src->ntensor);
	for (uint32_t i = 0; i < k->src->naverage && !rc; i++)
		rc = table_add_average(k->dst, &k->src->average[i], NULL, err);
	if (!rc)
		rc = map_meshes(k, err);
	if (!rc)
		rc = parse_rules(k, rule, nrule, list, err);
	for (uint32_t i = 0; !rc && i < k->src->ntensor; i++)
		rc = make_tensor(k, i, err);
	if (rc)
		return rc;
	name_rules(k, list);
	rc = ckpt_errlist_end(list, err, "the layout rules cannot be followed");
	return rc ? rc : table_seal(k->dst, err);
}

int target_make(const struct table *src, const char *mesh, const struct target_rule *rule,
		uint32_t nrule, struct table *ret_target, target_note_fn *note, void *arg,
		struct ckpt_err *err)
{
	struct making k = { .src = src, .dst = ret_target, .note_fn = note, .note_arg = arg };
	struct ckpt_errlist list = { .code = -EINVAL };
	int rc;

	*ret_target = (struct table){ 0 };
	rc = make_all(&k, mesh, rule, nrule, &list, err);
	if (rc)
		table_free(ret_target);
	arena_free(&k.arena);
	ckpt_errlist_free(&list);
	return rc;
}

static enum target_placed rule_places(const struct rule *r, const struct table_tensor *x)
{
	for (uint32_t i = 0; r && i < r->layout.nplace; i++)
		if (r->layout.place[i].how == CKPT_SHARD &&
		    r->layout.place[i].tensor_dim >= x->ndim)
			return TARGET_PLACED_IN_PART;
	return r ? TARGET_PLACED : TARGET_FREE;
}

int target_placed(const struct table *src, const struct mesh *m, const struct target_rule *rule,
		  uint32_t nrule, uint8_t *ret, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct making k = { .src = src, .mesh = m };
	int rc = parse_rules(&k, rule, nrule, &list, err);

	for (uint32_t i = 0; i < src->ntensor && !rc; i++)
		ret[i] = (uint8_t)rule_places(rule_for(&k, &src->tensor[i]), &src->tensor[i]);
	ckpt_errlist_free(&list);
	arena_free(&k.arena);
	return rc;
}

/* --- without placements --- */

struct settling {
	const struct table *src;
	const struct mesh *mesh;
	bool grid;
	struct target_settled *ret;
	/* Bytes of tensors by mesh dimension: that it cuts; that it does not, and no rule names. */
	uint64_t cut[CKPT_DIMS_MAX], uncut[CKPT_DIMS_MAX];
};

/* A mesh dimension larger than 1 that size indices fill and nothing else of the tensor takes: one
 * of exactly `want` ranks, else the largest, of equals the first. NONE. */
static uint16_t settle_over(const struct mesh *m, uint64_t size, uint64_t want, uint32_t taken)
{
	uint16_t best = NONE;

	for (uint16_t d = 0; d < m->ndim; d++) {
		if (m->dim[d] < 2 || m->dim[d] > size || taken >> d & 1)
			continue;
		if (m->dim[d] == want)
			return d;
		if (best == NONE || m->dim[d] > m->dim[best])
			best = d;
	}
	return best;
}

/*
 * Are its pieces the grid that torch.chunk makes? ret_count[ndim]: into how many each dimension is
 * cut. Of chunks of c indices there are n = ceil(size / c); torch.chunk makes chunks of c for some
 * number of them if and only if ceil(size / n) is c.
 */
static bool grid_of(const struct table *t, uint32_t id, uint64_t *ret_count)
{
	const struct table_tensor *x = &t->tensor[id];
	uint64_t chunk[CKPT_DIMS_MAX] = { 0 }, cells = 1;
	uint32_t n = t->first[id + 1] - t->first[id];

	for (uint32_t i = t->first[id]; i < t->first[id + 1]; i++)
		for (uint32_t d = 0; d < x->ndim; d++)
			chunk[d] = MAX(chunk[d], t->piece[i].set.dim[d].total);
	for (uint32_t d = 0; d < x->ndim; d++) {
		if (!chunk[d])
			return false;
		ret_count[d] = div_up(x->shape[d], chunk[d]);
		if (div_up(x->shape[d], ret_count[d]) != chunk[d] ||
		    ckpt_mul(cells, ret_count[d], &cells))
			return false;
	}
	/* No two pieces of a checkpoint overlap: as many as there are cells, each a cell, are the
	 * grid. */
	if (n < 2 || cells != n)
		return false;
	for (uint32_t i = t->first[id]; i < t->first[id + 1]; i++)
		for (uint32_t d = 0; d < x->ndim; d++) {
			const struct indices *l = &t->piece[i].set.dim[d];

			if (!indices_is_range(l) || indices_lo(l) % chunk[d] ||
			    l->total != MIN(chunk[d], x->shape[d] - indices_lo(l)))
				return false;
		}
	return true;
}

/* The dimensions of a grid go over mesh dimensions, the one with most chunks first. */
static uint32_t settle_grid(const struct settling *k, const struct table_tensor *x, uint64_t *count,
			    struct ckpt_placement *ret)
{
	uint32_t n = 0, taken = 0;

	for (;;) {
		uint32_t d = 0;
		uint16_t over;

		for (uint32_t i = 1; i < x->ndim; i++)
			if (count[i] > count[d])
				d = i;
		if (count[d] < 2)
			return n;
		over = settle_over(k->mesh, x->shape[d], count[d], taken);
		count[d] = 0;
		if (over == NONE)
			continue;
		taken |= 1u << over;
		ret[n++] = (struct ckpt_placement){ .how = CKPT_SHARD,
						    .mesh_dim = over,
						    .tensor_dim = (uint16_t)d };
	}
}

/* A tensor that has no placements, by its chunks or along dimension 0. */
static int tensor_settle(struct settling *k, struct table *target, uint32_t id,
			 struct ckpt_err *err)
{
	struct table_tensor *x = &target->tensor[id];
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = { .mode = CKPT_CHUNK, .place = place };
	uint64_t count[CKPT_DIMS_MAX];
	uint16_t over;

	if (k->grid && k->src->sealed && x->ndim && grid_of(k->src, id, count))
		l.nplace = settle_grid(k, x, count, place);
	if (l.nplace) {
		k->ret->ngrid++;
		return table_add_layout(target, &l, &x->layout, err);
	}
	over = x->ndim ? settle_over(k->mesh, x->shape[0], 0, 0) : NONE;
	if (over == NONE) {
		k->ret->nwhole++;
		return 0;
	}
	place[0] = (struct ckpt_placement){ .how = CKPT_SHARD, .mesh_dim = over };
	l.nplace = 1;
	k->ret->nspread++;
	return table_add_layout(target, &l, &x->layout, err);
}

/* --- copies --- */

/* Bit per dimension of the mesh that divides the tensor: no two of its coordinates hold one
 * element. */
static uint32_t cut_over(const struct mesh *m, const struct layout *l)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < l->nplace; i++)
		if ((l->place[i].how == CKPT_SHARD || l->place[i].how == CKPT_ONLY) &&
		    m->dim[l->place[i].mesh_dim] > 1)
			bits |= 1u << l->place[i].mesh_dim;
	return bits;
}

static void add_held(uint64_t *sum, uint64_t bytes, uint64_t copies)
{
	if (ckpt_mul(bytes, copies, &bytes) || ckpt_add(*sum, bytes, sum))
		*sum = UINT64_MAX;
}

/* What the ranks hold of one tensor; named: by a rule. */
static void count_copies(struct settling *k, const struct table *target, uint32_t id, bool named)
{
	const struct table_tensor *x = &target->tensor[id];
	uint32_t old = k->src->tensor[id].layout, cut = 0;
	uint64_t copies = k->mesh->nrank;

	if (x->cls == CKPT_SINK || x->rank != TABLE_NONE)
		return;
	if (x->layout != TABLE_NONE)
		cut = cut_over(k->mesh, &target->layout[x->layout]);
	for (uint32_t d = 0; d < k->mesh->ndim; d++)
		if (cut >> d & 1)
			copies /= k->mesh->dim[d];
	add_held(&k->ret->bytes, x->numel * x->elem_bytes, 1);
	add_held(&k->ret->held_bytes, x->numel * x->elem_bytes, copies);
	if (x->flags & TENSOR_BLOB)
		return;
	for (uint32_t d = 0; d < k->mesh->ndim; d++)
		if (cut >> d & 1)
			add_held(&k->cut[d], x->numel * x->elem_bytes, 1);
		else if (!named)
			add_held(&k->uncut[d], x->numel * x->elem_bytes, 1);
	if (!cut && !named && old != TABLE_NONE &&
	    cut_over(&k->src->mesh[k->src->layout[old].mesh], &k->src->layout[old]))
		k->ret->nlost++;
}

/* Bit per dimension of the mesh, larger than 1, that the source's meshes do not have. */
static uint32_t new_dims(const struct settling *k)
{
	uint32_t bits = 0;

	for (uint32_t d = 0; d < k->mesh->ndim; d++)
		bits |= (k->mesh->dim[d] > 1 ? 1u : 0) << d;
	for (uint32_t i = 0; i < k->src->nmesh; i++)
		for (uint32_t e = 0; e < k->src->mesh[i].ndim; e++)
			for (uint32_t d = 0; d < k->mesh->ndim; d++)
				if (!strcmp(k->src->mesh[i].name[e], k->mesh->name[d]))
					bits &= ~(1u << d);
	return bits;
}

int target_settle(const struct table *src, bool grid, const struct target_rule *rule,
		  uint32_t nrule, struct table *target, struct target_settled *ret,
		  struct ckpt_err *err)
{
	struct settling k = { .src = src, .mesh = &target->mesh[0], .grid = grid, .ret = ret };
	struct making named = { .src = src, .nrule = nrule };
	int rc = 0;

	*ret = (struct target_settled){ 0 };
	ret->fresh = new_dims(&k);
	named.rule = arena_array(&named.arena, nrule, sizeof *named.rule);
	if (nrule && !named.rule)
		return ckpt_error(err, -ENOMEM, "out of memory for %u layout rules", nrule);
	for (uint32_t i = 0; i < nrule; i++)
		named.rule[i] =
			(struct rule){ .text = &rule[i], .plain = strcspn(rule[i].glob, "*?[\\") };
	table_reopen(target);
	for (uint32_t i = 0; i < target->ntensor && !rc; i++) {
		const struct table_tensor *x = &src->tensor[i];
		bool by_rule = rule_for(&named, x) != NULL;

		if (!by_rule && x->layout == TABLE_NONE && !(x->flags & TENSOR_BLOB))
			rc = tensor_settle(&k, target, i, err);
		if (!rc)
			count_copies(&k, target, i, by_rule);
	}
	arena_free(&named.arena);
	for (uint32_t d = 0; d < k.mesh->ndim; d++)
		if (k.uncut[d] > k.cut[d])
			ret->uncut |= ret->fresh & 1u << d;
	return rc ? rc : table_seal(target, err);
}

/* --- what ranks hold --- */

/* A model has few shapes: one share serves all tensors that are cut alike. */
struct share {
	const struct table_tensor *of;
	uint32_t rank;
	struct indexset set;
};

struct holding {
	const struct table *from;
	struct table *t;
	const struct mesh *mesh;
	uint32_t first, n;
	uint32_t *coord; /* [n][mesh dimensions] */
	struct share *memo;
};

uint32_t target_world(const struct table *target)
{
	return target->mesh[0].nrank;
}

static bool is_alike(const struct table_tensor *x, const struct table_tensor *y)
{
	return x->layout == y->layout && table_shape_same(x, y);
}

static struct share *memo_of(const struct holding *h, const struct table_tensor *x, uint32_t rank)
{
	uint64_t key = UINT64_C(0xcbf29ce484222325) ^ rank; /* FNV-1a, by words */

	key = (key ^ x->layout) * UINT64_C(0x100000001b3);
	for (uint32_t d = 0; d < x->ndim; d++)
		key = (key ^ x->shape[d]) * UINT64_C(0x100000001b3);
	/* Sizes are round numbers: their low bits are not enough. */
	key = (key ^ key >> 33) * UINT64_C(0xff51afd7ed558ccd);
	return &h->memo[(key ^ key >> 33) & (MEMO - 1)];
}

/* Has the rank something of the tensor at all? */
static bool is_held(const struct holding *h, const struct table_tensor *x, uint32_t rank)
{
	if (x->cls == CKPT_SINK)
		return false;
	return x->rank == TABLE_NONE || x->rank % h->mesh->nrank == rank;
}

/* n counts from h->first. */
static int share_of(struct holding *h, const struct table_tensor *x, uint32_t n,
		    struct indexset *ret)
{
	static const struct layout whole;
	struct share *s = memo_of(h, x, n);
	int rc = 0;

	if (!s->of || s->rank != n || !is_alike(s->of, x)) {
		rc = layout_share(h->mesh,
				  x->layout == TABLE_NONE ? &whole : &h->from->layout[x->layout],
				  x->ndim, x->shape, h->coord + (size_t)n * h->mesh->ndim,
				  &h->t->arena, &s->set);
		s->of = rc ? NULL : x;
		s->rank = n;
	}
	*ret = s->set;
	return rc;
}

static int share_hold(struct holding *h, uint32_t tensor, uint32_t n, uint64_t *end,
		      struct ckpt_err *err)
{
	const struct table_tensor *x = &h->from->tensor[tensor];
	struct table_piece p = { .tensor = tensor, .rank = h->first + n, .place = n };
	char label[160];
	int rc = share_of(h, x, n, &p.set);

	if (rc)
		return ckpt_error(err, rc,
				  rc == -E2BIG ? "%s: rank %u's share is too interleaved"
					       : "%s: no memory for rank %u's share",
				  table_tensor_print(x, label, sizeof label), p.rank);
	if (!p.set.numel)
		return 0;
	p.off = align_up(*end, ALIGN);
	/* A share is no larger than its tensor, which has been counted below 2^63. */
	if (ckpt_add(p.off, p.set.numel * x->elem_bytes, end) || *end > INT64_MAX - ALIGN)
		return ckpt_error(err, -EOVERFLOW, "rank %u would hold more than 2^63 - 1 bytes",
				  p.rank);
	return table_put_piece(h->t, &p, err);
}

static int hold_all(struct holding *h, struct ckpt_err *err)
{
	cleanup_free uint64_t *end = calloc(h->n, sizeof *end);
	char name[32];
	int rc = 0;

	if (!end)
		return ckpt_error(err, -ENOMEM, "out of memory for %u ranks", h->n);
	for (uint32_t i = 0; i < h->n && !rc; i++) {
		snprintf(name, sizeof name, "rank %u", h->first + i);
		rc = table_add_place(h->t, &(struct table_place){ name, h->first + i, INT64_MAX },
				     NULL, err);
	}
	for (uint32_t i = 0; i < h->from->ntensor && !rc; i++) {
		rc = table_add_tensor(h->t, &h->from->tensor[i], NULL, err);
		for (uint32_t r = 0; r < h->n && !rc; r++)
			if (is_held(h, &h->from->tensor[i], h->first + r))
				rc = share_hold(h, i, r, &end[r], err);
	}
	/* How large a place is, is known when all lies in it. */
	for (uint32_t i = 0; i < h->n && !rc; i++)
		h->t->place[i].bytes = end[i];
	return rc ? rc : table_seal(h->t, err);
}

static int hold_begin(struct holding *h, struct ckpt_err *err)
{
	uint64_t pieces;
	int rc = table_add_mesh(h->t, h->mesh, NULL, err);

	for (uint32_t i = 0; i < h->from->nlayout && !rc; i++)
		rc = table_add_layout(h->t, &h->from->layout[i], NULL, err);
	for (uint32_t i = 0; i < h->from->naverage && !rc; i++)
		rc = table_add_average(h->t, &h->from->average[i], NULL, err);
	if (rc)
		return rc;
	h->coord = calloc((size_t)h->n * h->mesh->ndim, sizeof *h->coord);
	h->memo = calloc(MEMO, sizeof *h->memo);
	pieces = (uint64_t)h->n * h->from->ntensor; /* of ONLYs there are fewer */
	if (!h->coord || !h->memo ||
	    table_reserve(h->t, h->from->ntensor, MIN(pieces, PIECES_RESERVED)))
		return ckpt_error(err, -ENOMEM, "out of memory for %u ranks", h->n);
	/* The ranks of a target's mesh are 0, 1, 2, ... in the order of the coordinates. */
	for (uint32_t i = 0; i < h->n; i++)
		mesh_place_coord(h->mesh, h->first + i, h->coord + (size_t)i * h->mesh->ndim);
	return 0;
}

int target_ranks(const struct table *target, uint32_t first, uint32_t n, struct table *ret_table,
		 struct ckpt_err *err)
{
	struct holding h = {
		.from = target, .t = ret_table, .mesh = &target->mesh[0], .first = first, .n = n
	};
	int rc;

	*ret_table = (struct table){ 0 };
	if (!n || first >= h.mesh->nrank || n > h.mesh->nrank - first)
		return ckpt_error(err, -EINVAL,
				  "there is no rank %llu: the mesh has the ranks 0 to %u",
				  (unsigned long long)first + (n ? n - 1 : 0), h.mesh->nrank - 1);
	rc = hold_begin(&h, err);
	if (!rc)
		rc = hold_all(&h, err);
	if (rc)
		table_free(ret_table);
	free(h.coord);
	free(h.memo);
	return rc;
}

int target_rank(const struct table *target, uint32_t rank, struct table *ret_table,
		struct ckpt_err *err)
{
	return target_ranks(target, rank, 1, ret_table, err);
}
