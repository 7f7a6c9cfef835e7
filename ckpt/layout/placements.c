/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placements.c - placements from the text of layout files and questions, and as text. Invariant:
 * what placements_print prints is read back as the same layout; whatever is read passes layout_check for
 * a tensor that has the dimensions it names.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

#define MESH_TEXT 200 /* of a mesh in a message */

/* A list of placements while it is read. */
struct reading {
	const char *text, *at;
	const struct mesh *mesh;
	uint32_t n, mode;
	bool in_order; /* without names of mesh dimensions */
	struct ckpt_placement place[CKPT_DIMS_MAX];
};

static int text_error(const struct reading *r, struct ckpt_err *err, const char *what)
{
	return ckpt_error(err, -EINVAL,
			  "\"%.120s\", character %zu: %s (write placements as in \"Shard(0)@fsdp, "
			  "Replicate@dp\", or as PyTorch prints them)",
			  r->text, (size_t)(r->at - r->text) + 1, what);
}

/* --- one placement --- */

static const char *behind_blanks(const char *p)
{
	while (*p == ' ' || *p == '\t')
		p++;
	return p;
}

static bool text_take(const char **at, const char *word)
{
	const char *p = behind_blanks(*at);
	size_t n = strlen(word);

	if (strncmp(p, word, n) != 0)
		return false;
	*at = p + n;
	return true;
}

/* "dim=", in front of an argument. */
static bool take_key(const char **at, const char *key)
{
	const char *p = *at;

	if (!text_take(&p, key) || !text_take(&p, "="))
		return false;
	*at = p;
	return true;
}

static const char *read_integer(const char **at, int64_t *ret, const char **ret_at)
{
	const char *p = behind_blanks(*at);
	bool negative = *p == '-';
	int64_t n = 0;

	*at = *ret_at = p;
	p += negative;
	if (*p < '0' || *p > '9')
		return "expected a number, 0 or above";
	for (; *p >= '0' && *p <= '9'; p++)
		if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n))
			n = INT64_MAX;
	*ret = negative ? -n : n;
	*at = p;
	return NULL;
}

/* "sum", "'sum'", "reduce_op=sum", "sum, keep"; nothing is sum, as in PyTorch. */
static const char *read_reduction(const char **at, struct placement_text *ret)
{
	const char *quote, *empty = *at;
	uint8_t i = 0;

	if (text_take(&empty, ")"))
		return NULL;
	(void)take_key(at, "reduce_op");
	quote = text_take(at, "'") ? "'" : text_take(at, "\"") ? "\"" : NULL;
	while (i <= CKPT_PRODUCT && !text_take(at, reduce_name(i)))
		i++;
	*at = behind_blanks(*at);
	if (i > CKPT_PRODUCT)
		return "expected sum, avg, min, max or product";
	if (quote && !text_take(at, quote))
		return "expected the closing quotation mark";
	ret->reduce = i;
	if (text_take(at, ",")) {
		ret->keep = text_take(at, "keep");
		*at = behind_blanks(*at);
		if (!ret->keep)
			return "expected \"keep\" after this comma";
	}
	return NULL;
}

static const char *read_factor(const char **at, struct placement_text *ret)
{
	if (!text_take(at, ",")) {
		*at = behind_blanks(*at);
		return "expected a comma and the split factor";
	}
	(void)(take_key(at, "split_factor") || take_key(at, "sf"));
	return read_integer(at, &ret->factor, &ret->factor_at);
}

const char *placement_read(const char **at, struct placement_text *ret)
{
	const char *want = NULL;

	*ret = (struct placement_text){ .how = CKPT_REPLICATE };
	*at = behind_blanks(*at);
	if (text_take(at, "Replicate")) {
		if (!text_take(at, "("))
			return NULL;
	} else if (text_take(at, "StridedShard(") || text_take(at, "_StridedShard(") ||
		   text_take(at, "_S(")) {
		ret->how = CKPT_SHARD;
		ret->strided = true;
		(void)take_key(at, "dim");
		want = read_integer(at, &ret->dim, &ret->dim_at);
		want = want ? want : read_factor(at, ret);
	} else if (text_take(at, "Shard(") || text_take(at, "S(")) {
		ret->how = CKPT_SHARD;
		(void)take_key(at, "dim");
		want = read_integer(at, &ret->dim, &ret->dim_at);
	} else if (text_take(at, "Only(")) {
		ret->how = CKPT_ONLY;
		want = read_integer(at, &ret->dim, &ret->dim_at);
	} else if (text_take(at, "Partial(") || text_take(at, "P(")) {
		ret->how = CKPT_PARTIAL;
		want = read_reduction(at, ret);
	} else if (text_take(at, "R")) {
		return NULL;
	} else if (text_take(at, "Partial")) {
		*at = behind_blanks(*at);
		return "expected '(' and the reduction, sum, avg, min, max or product";
	} else {
		return "expected Shard(DIM), StridedShard(DIM, FACTOR), Only(COORDINATE), "
		       "Partial(OPERATION) or Replicate; in short S(DIM), P(OPERATION) or R";
	}
	if (!want && !text_take(at, ")")) {
		*at = behind_blanks(*at);
		want = "expected a closing parenthesis";
	}
	return want;
}

const char *reduce_name(uint32_t reduce)
{
	static const char *const name[] = { "sum", "avg", "min", "max", "product" };

	return name[reduce];
}

char *placement_print(const struct mesh *m, const struct ckpt_placement *p, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	if (p->how == CKPT_SHARD && p->split_factor > 1)
		text_add(&t, "StridedShard(%u, %u)", p->tensor_dim, p->split_factor);
	else if (p->how == CKPT_SHARD)
		text_add(&t, "Shard(%u)", p->tensor_dim);
	else if (p->how == CKPT_ONLY)
		text_add(&t, "Only(%u)", p->split_factor);
	else if (p->how == CKPT_PARTIAL)
		text_add(&t, "Partial(%s%s)", reduce_name(p->reduce),
			 p->flags & CKPT_KEEP_PARTIAL ? ", keep" : "");
	else
		text_add(&t, "Replicate");
	text_add(&t, "@%s", m->name[p->mesh_dim]);
	return buf;
}

char *placements_print(const struct mesh *m, const struct layout *l, char *buf, size_t bytes)
{
	static const char *const mode[] = { "", "flat: ", "unflatten_pad: " };
	struct text t = text_in(buf, bytes);
	char place[PLACEMENT_BYTES];
	const char *comma = "";
	uint32_t named = 0; /* bit per mesh dimension */

	if (l->mode == CKPT_BOXES) {
		text_add(&t, "boxes");
		return buf;
	}
	text_add(&t, "%s", mode[l->mode]);
	for (uint32_t i = 0; i < l->nplace; i++, comma = ", ") {
		text_add(&t, "%s%s", comma, placement_print(m, &l->place[i], place, sizeof place));
		named |= 1u << l->place[i].mesh_dim;
	}
	for (uint32_t d = 0; d < m->ndim; d++)
		if (!(named >> d & 1)) {
			text_add(&t, "%sReplicate@%s", comma, m->name[d]);
			comma = ", ";
		}
	return buf;
}

/* --- a list of them --- */

static void skip_blanks(struct reading *r)
{
	r->at = behind_blanks(r->at);
}

static int settle_number(struct reading *r, int64_t n, const char *at, uint32_t max,
			 const char *too_large, struct ckpt_err *err)
{
	const char *here = r->at;
	const char *what = *at == '-'	    ? "expected a number, 0 or above"
			   : n > UINT32_MAX ? "this number is too large"
					    : NULL;

	if (!what && n <= max)
		return 0;
	r->at = at;
	if (!what) {
		r->at += strspn(at, "0123456789");
		what = too_large;
	}
	(void)text_error(r, err, what);
	r->at = here;
	return -EINVAL;
}

static int read_how(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	struct placement_text t;
	const char *want = placement_read(&r->at, &t);
	int e = 0;

	if (want)
		return text_error(r, err, want);
	*p = (struct ckpt_placement){ .how = t.how,
				      .reduce = t.reduce,
				      .flags = t.keep ? CKPT_KEEP_PARTIAL : 0 };
	if (t.how == CKPT_SHARD && t.dim < 0) {
		r->at = t.dim_at;
		return text_error(r, err, "tensor dimensions are counted from 0, from the left");
	}
	if (t.how == CKPT_SHARD) {
		e = settle_number(r, t.dim, t.dim_at, CKPT_DIMS_MAX - 1,
				  "before this character: tensor dimensions go from 0 to 15", err);
		p->tensor_dim = (uint16_t)t.dim;
	}
	if (!e && t.how == CKPT_ONLY) {
		e = settle_number(r, t.dim, t.dim_at, UINT32_MAX, "", err);
		p->split_factor = (uint32_t)t.dim;
	}
	if (!e && t.strided) {
		e = settle_number(r, t.factor, t.factor_at, UINT32_MAX, "", err);
		p->split_factor = (uint32_t)t.factor;
		if (!e && !t.factor) {
			r->at = t.factor_at + strspn(t.factor_at, "0");
			e = text_error(r, err,
				       "before this character: a split factor must be at least 1");
		}
	}
	return e;
}

static size_t name_bytes(const char *s)
{
	size_t n = 0;

	while (s[n] && !strchr(" \t,)]", s[n]))
		n++;
	return n;
}

/* The placement does this to mesh dimension d. */
static int settle_mesh_dim(struct reading *r, struct ckpt_placement *p, uint32_t d,
			   struct ckpt_err *err)
{
	char mesh[MESH_TEXT];

	p->mesh_dim = (uint16_t)d;
	for (uint32_t i = 0; i < r->n; i++)
		if (r->place[i].mesh_dim == d)
			return text_error(r, err,
					  "this mesh dimension appears twice; it can do one "
					  "thing to a tensor");
	if (r->mode == CKPT_FLAT && p->how == CKPT_SHARD && p->split_factor > 1)
		return text_error(r, err, "in mode flat nothing is strided");
	if (p->how == CKPT_ONLY && p->split_factor >= r->mesh->dim[d])
		return ckpt_error(err, -EINVAL,
				  "\"%.120s\", character %zu: Only(%u)@%s is not in the mesh %s: "
				  "its coordinates go from 0 to %u",
				  r->text, (size_t)(r->at - r->text) + 1, p->split_factor,
				  r->mesh->name[d], mesh_print(r->mesh, mesh, sizeof mesh),
				  r->mesh->dim[d] - 1);
	return 0;
}

static int read_mesh_dim(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	char mesh[MESH_TEXT];
	const char *name;
	size_t n;
	int e;

	skip_blanks(r);
	name = r->at;
	n = name_bytes(name);
	if (!n)
		return text_error(r, err, "expected the name of a mesh dimension");
	for (uint32_t d = 0; d < r->mesh->ndim; d++) {
		if (strlen(r->mesh->name[d]) != n || memcmp(r->mesh->name[d], name, n) != 0)
			continue;
		e = settle_mesh_dim(r, p, d, err);
		if (!e)
			r->at += n;
		return e;
	}
	return ckpt_error(err, -EINVAL,
			  "\"%.120s\", character %zu: the mesh %s has no dimension \"%.*s\"; name "
			  "one of its own",
			  r->text, (size_t)(r->at - r->text) + 1,
			  mesh_print(r->mesh, mesh, sizeof mesh), (int)MIN(n, (size_t)80), name);
}

/* Without @NAME placements belong to the mesh dimensions one after the other: then all of them
 * do. */
static int read_placement(struct reading *r, struct ckpt_err *err)
{
	struct ckpt_placement p;
	bool first = !r->n;
	int e = read_how(r, &p, err);

	if (e < 0)
		return e;
	if (text_take(&r->at, "@")) {
		if (!first && r->in_order)
			return text_error(
				r, err,
				"before this character: the placements before it have no @ and "
				"no name");
		e = read_mesh_dim(r, &p, err);
	} else if (!first && !r->in_order) {
		skip_blanks(r);
		return text_error(r, err, "expected '@' and the name of a mesh dimension");
	} else {
		r->in_order = true;
		e = r->n < r->mesh->ndim
			    ? settle_mesh_dim(r, &p, r->n, err)
			    : text_error(r, err,
					 "before this character: the mesh has fewer dimensions");
	}
	if (e < 0)
		return e;
	r->place[r->n++] = p; /* no more than the mesh has dimensions: each comes once */
	skip_blanks(r);
	return 0;
}

static int check_end(struct reading *r, struct ckpt_err *err)
{
	char mesh[MESH_TEXT];

	skip_blanks(r);
	if (*r->at)
		return text_error(r, err, "expected the end");
	if (r->in_order && r->n != r->mesh->ndim)
		return ckpt_error(
			err, -EINVAL,
			"\"%.120s\", character %zu: %u of the %u dimensions of the mesh %s "
			"have a placement here; give one for each, in their order, or say "
			"whose each is, as in \"Shard(0)@%s\"",
			r->text, (size_t)(r->at - r->text) + 1, r->n, r->mesh->ndim,
			mesh_print(r->mesh, mesh, sizeof mesh), r->mesh->name[0]);
	return 0;
}

static int read_list(struct reading *r, struct ckpt_err *err)
{
	const char *start, *close;
	int e;

	if (text_take(&r->at, "flat:"))
		r->mode = CKPT_FLAT;
	else if (text_take(&r->at, "unflatten_pad:"))
		r->mode = CKPT_UNFLATTEN_PAD;
	start = r->at;
	/* Of a mesh, "Replicate" is all that there is to say. */
	if (text_take(&r->at, "Replicate")) {
		if (text_take(&r->at, "("))
			(void)text_take(&r->at, ")");
		skip_blanks(r);
		if (!*r->at)
			return 0;
		r->at = start;
	}
	close = text_take(&r->at, "(") ? ")" : text_take(&r->at, "[") ? "]" : NULL; /* Python's */
	for (;;) {
		e = read_placement(r, err);
		if (e < 0 || (!close && !*r->at))
			return e < 0 ? e : check_end(r, err);
		if (close && text_take(&r->at, close))
			return check_end(r, err);
		if (*r->at != ',')
			return text_error(r, err,
					  close ? "expected a comma or the closing bracket"
						: "expected a comma or the end");
		r->at++;
		if (close && text_take(&r->at, close)) /* "(Shard(0),)" */
			return check_end(r, err);
	}
}

int layout_parse(const char *text, const struct mesh *m, struct arena *a, struct layout *ret_layout,
		 struct ckpt_err *err)
{
	struct reading r = { .text = text, .at = text, .mesh = m };
	struct ckpt_placement *place;
	int e = read_list(&r, err);

	if (e < 0)
		return e;
	place = arena_dup(a, r.place, r.n * sizeof *place);
	if (!place)
		return ckpt_error(err, -ENOMEM, "out of memory for placements");
	*ret_layout = (struct layout){ .mode = r.mode, .nplace = r.n, .place = place };
	/* Reductions of mixed kinds: all else was seen where it stands. */
	e = layout_check(m, ret_layout, CKPT_DIMS_MAX, err);
	return e < 0 ? ckpt_error_prefix(err, e, "\"%.120s\"", text) : 0;
}
