/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placements.c - placements from the text that a person writes. Called for layout files. What
 * table_layout_print says is read back as the same layout; whatever is read passes layout_check for
 * a tensor that has the dimensions it names.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

#define MESH_TEXT 200 /* of a mesh in a message */

/* A list of placements while it is read. */
struct reading {
	const char *text, *at;
	const struct mesh *mesh;
	uint32_t n, mode;
	struct ckpt_placement place[CKPT_DIMS_MAX];
};

static int text_error(const struct reading *r, struct ckpt_err *err, const char *what)
{
	return ckpt_error(err, -EINVAL,
			  "\"%.120s\", character %zu: %s (write placements as in \"Shard(0)@fsdp, "
			  "Replicate@dp\")",
			  r->text, (size_t)(r->at - r->text) + 1, what);
}

static void skip_blanks(struct reading *r)
{
	while (*r->at == ' ' || *r->at == '\t')
		r->at++;
}

static bool take(struct reading *r, const char *word)
{
	size_t n = strlen(word);

	skip_blanks(r);
	if (strncmp(r->at, word, n) != 0)
		return false;
	r->at += n;
	return true;
}

static int read_number(struct reading *r, uint32_t *ret, struct ckpt_err *err)
{
	const char *p;
	uint64_t n = 0;

	skip_blanks(r);
	for (p = r->at; *p >= '0' && *p <= '9' && n <= UINT32_MAX; p++)
		n = n * 10 + (uint64_t)(*p - '0');
	if (p == r->at)
		return text_error(r, err, "expected a number, 0 or above");
	if (n > UINT32_MAX)
		return text_error(r, err, "this number is too large");
	r->at = p;
	*ret = (uint32_t)n;
	return 0;
}

static int read_tensor_dim(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	uint32_t n = 0;
	int e;

	skip_blanks(r);
	if (*r->at == '-')
		return text_error(r, err, "tensor dimensions are counted from 0, from the left");
	e = read_number(r, &n, err);
	if (e < 0)
		return e;
	if (n >= CKPT_DIMS_MAX)
		return text_error(r, err,
				  "before this character: tensor dimensions go from 0 to 15");
	p->tensor_dim = (uint16_t)n;
	return 0;
}

/* "sum" or "sum, keep" */
static int read_reduction(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	static const char *const name[] = { "sum", "avg", "min", "max", "product" };
	uint8_t i = 0;

	while (i < ARRAY_LEN(name) && !take(r, name[i]))
		i++;
	if (i == ARRAY_LEN(name))
		return text_error(r, err, "expected sum, avg, min, max or product");
	p->how = CKPT_PARTIAL;
	p->reduce = i;
	if (take(r, ",")) {
		if (!take(r, "keep"))
			return text_error(r, err, "expected \"keep\" after this comma");
		p->flags = CKPT_KEEP_PARTIAL;
	}
	return 0;
}

/* "Shard(0)", "StridedShard(0, 2)", "Only(1)", "Partial(sum)", "Replicate". */
static int read_how(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	int e = 0;

	*p = (struct ckpt_placement){ .how = CKPT_REPLICATE };
	if (take(r, "Replicate"))
		return 0;
	if (take(r, "Shard(")) {
		p->how = CKPT_SHARD;
		e = read_tensor_dim(r, p, err);
	} else if (take(r, "StridedShard(") || take(r, "_StridedShard(")) {
		p->how = CKPT_SHARD;
		e = read_tensor_dim(r, p, err);
		if (!e && !take(r, ","))
			return text_error(r, err, "expected a comma and the split factor");
		if (!e)
			e = read_number(r, &p->split_factor, err);
		if (!e && !p->split_factor)
			return text_error(
				r, err, "before this character: a split factor must be at least 1");
	} else if (take(r, "Only(")) {
		p->how = CKPT_ONLY;
		e = read_number(r, &p->split_factor, err);
	} else if (take(r, "Partial")) {
		if (!take(r, "("))
			return text_error(
				r, err,
				"expected '(' and the reduction, sum, avg, min, max or product,");
		e = read_reduction(r, p, err);
	} else {
		return text_error(
			r, err,
			"expected Shard(DIM), StridedShard(DIM, FACTOR), Only(COORDINATE), "
			"Partial(OPERATION) or Replicate");
	}
	if (!e && !take(r, ")"))
		return text_error(r, err, "expected a closing parenthesis");
	return e;
}

static size_t name_bytes(const char *s)
{
	size_t n = 0;

	while (s[n] && !strchr(" \t,", s[n]))
		n++;
	return n;
}

static int read_mesh_dim(struct reading *r, struct ckpt_placement *p, struct ckpt_err *err)
{
	char mesh[MESH_TEXT];
	const char *name;
	size_t n;

	skip_blanks(r);
	name = r->at;
	n = name_bytes(name);
	if (!n)
		return text_error(r, err, "expected the name of a mesh dimension");
	for (uint32_t d = 0; d < r->mesh->ndim; d++) {
		if (strlen(r->mesh->name[d]) != n || memcmp(r->mesh->name[d], name, n) != 0)
			continue;
		p->mesh_dim = (uint16_t)d;
		for (uint32_t i = 0; i < r->n; i++)
			if (r->place[i].mesh_dim == d)
				return text_error(
					r, err,
					"this mesh dimension appears twice; it can do one thing "
					"to a tensor");
		if (r->mode == CKPT_FLAT && p->how == CKPT_SHARD && p->split_factor > 1)
			return text_error(r, err, "in mode flat nothing is strided");
		if (p->how == CKPT_ONLY && p->split_factor >= r->mesh->dim[d])
			return ckpt_error(
				err, -EINVAL,
				"\"%.120s\", character %zu: Only(%u)@%s is not in the mesh %s: "
				"its coordinates go from 0 to %u",
				r->text, (size_t)(r->at - r->text) + 1, p->split_factor,
				r->mesh->name[d], mesh_print(r->mesh, mesh, sizeof mesh),
				r->mesh->dim[d] - 1);
		r->at += n;
		return 0;
	}
	return ckpt_error(err, -EINVAL,
			  "\"%.120s\", character %zu: the mesh %s has no dimension \"%.*s\"; name "
			  "one of its own",
			  r->text, (size_t)(r->at - r->text) + 1,
			  mesh_print(r->mesh, mesh, sizeof mesh), (int)MIN(n, (size_t)80), name);
}

static int read_placement(struct reading *r, struct ckpt_err *err)
{
	struct ckpt_placement p;
	int e = read_how(r, &p, err);

	if (e < 0)
		return e;
	if (!take(r, "@"))
		return text_error(r, err, "expected '@' and the name of a mesh dimension");
	e = read_mesh_dim(r, &p, err);
	if (e < 0)
		return e;
	r->place[r->n++] = p; /* no more than the mesh has dimensions: each comes once */
	skip_blanks(r);
	return 0;
}

static int read_list(struct reading *r, struct ckpt_err *err)
{
	const char *start;
	int e;

	if (take(r, "flat:"))
		r->mode = CKPT_FLAT;
	else if (take(r, "unflatten_pad:"))
		r->mode = CKPT_UNFLATTEN_PAD;
	start = r->at;
	/* Of a mesh, "Replicate" is all that there is to say. */
	if (take(r, "Replicate")) {
		skip_blanks(r);
		if (!*r->at)
			return 0;
		r->at = start;
	}
	for (;;) {
		e = read_placement(r, err);
		if (e < 0 || !*r->at)
			return e;
		if (*r->at != ',')
			return text_error(r, err, "expected a comma or the end");
		r->at++;
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
