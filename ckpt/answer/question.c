/* SPDX-License-Identifier: Apache-2.0 */
/*
 * question.c - from a line of JSON, or from words of the command line, to a layout. Called
 * by ckptctl layout.
 * Invariant: a question that was accepted has passed layout_check, has at most LAYOUT_RANKS_MAX
 * ranks, and a shape whose number of elements fits 63 bits.
 */
#include "ckpt/answer/question_read.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <jansson.h>

#define DIM_UNKNOWN UINT32_MAX /* ndim where there is no shape */

static const char *const mesh_name[CKPT_DIMS_MAX] = { "m0",  "m1",  "m2",  "m3", "m4",	"m5",
						      "m6",  "m7",  "m8",  "m9", "m10", "m11",
						      "m12", "m13", "m14", "m15" };

/* --- one placement --- */

static int bad_placement(const char *text, const char *end, struct ckpt_err *err)
{
	return ckpt_error(
		err, -EINVAL,
		"\"%.*s\" is not a placement; write Shard(DIM), _StridedShard(DIM, FACTOR), "
		"Replicate(), Partial(OP) with sum, avg, min, max or product, or S(DIM), "
		"_S(DIM, FACTOR), R, P(OP)",
		(int)MIN(end - text, 80), text);
}

/* The split factor. One above 32 bits cuts as every factor does that is no smaller than the
 * dimension. */
static int settle_factor(int64_t f, uint64_t extent, struct ckpt_placement *p, struct ckpt_err *err)
{
	if (f < 1)
		return ckpt_error(err, -EINVAL,
				  "a split factor of %lld cuts nothing; it must be at least 1",
				  (long long)f);
	if ((uint64_t)f > UINT32_MAX && extent > UINT32_MAX)
		return ckpt_error(
			err, -EINVAL,
			"a split factor of %lld is too large; at most %u can be asked for",
			(long long)f, UINT32_MAX);
	p->split_factor = (uint32_t)MIN(f, (int64_t)UINT32_MAX);
	return 0;
}

static int settle_dim(int64_t d, uint32_t ndim, struct ckpt_placement *p, struct ckpt_err *err)
{
	bool known = ndim != DIM_UNKNOWN;

	if (known && !ndim)
		return ckpt_error(
			err, -EINVAL,
			"a tensor without dimensions cannot be cut: it can be R or P(OP)");
	if (known && (d < -(int64_t)ndim || d >= (int64_t)ndim))
		return ckpt_error(err, -EINVAL,
				  "there is no dimension %lld: the tensor has %u, so they are %d "
				  "to %u",
				  (long long)d, ndim, -(int)ndim, ndim - 1);
	if (!known && (d < 0 || d >= CKPT_DIMS_MAX))
		return ckpt_error(err, -EINVAL,
				  "dimension %lld: without a shape it must be 0 to %d",
				  (long long)d, CKPT_DIMS_MAX - 1);
	p->tensor_dim = (uint16_t)(d < 0 ? d + (int64_t)ndim : d);
	return 0;
}

int question_placement(const char *text, size_t len, const struct question *q, uint32_t ndim,
		       uint32_t mesh_dim, struct question_side *s, struct ckpt_err *err)
{
	struct ckpt_placement *p = &s->place[mesh_dim];
	const char *at = text, *end = text + len;
	struct placement_text t;
	int rc;

	if (placement_read(&at, &t) || at != end || t.how == CKPT_ONLY || t.keep)
		return bad_placement(text, end, err);
	*p = (struct ckpt_placement){ .how = t.how,
				      .reduce = t.reduce,
				      .mesh_dim = (uint16_t)mesh_dim };
	if (t.how != CKPT_SHARD)
		return 0;
	rc = settle_dim(t.dim, ndim, p, err);
	if (!rc && t.strided) {
		s->strided |= 1u << mesh_dim;
		rc = settle_factor(t.factor, ndim == DIM_UNKNOWN ? 0 : q->shape[p->tensor_dim], p,
				   err);
	}
	return rc;
}

/* --- from JSON --- */

const json_t *question_field(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

int question_numbers(const json_t *o, const char *key, json_int_t least, uint32_t max,
		     uint64_t *ret, uint32_t *ret_n, struct ckpt_err *err)
{
	const json_t *v = question_field(o, key);
	size_t n = json_array_size(v);

	if (!json_is_array(v))
		return ckpt_error(err, -EINVAL, "\"%s\" must be an array of integers", key);
	if (n > max)
		return ckpt_error(err, -EINVAL, "\"%s\" has %zu elements, at most %u can be", key,
				  n, max);
	for (size_t i = 0; i < n; i++) {
		const json_t *x = json_array_get(v, i);

		if (!json_is_integer(x))
			return ckpt_error(err, -EINVAL, "\"%s\"[%zu] is not an integer", key, i);
		if (json_integer_value(x) < least)
			return ckpt_error(err, -EINVAL,
					  "\"%s\"[%zu] is %lld; at least %d is needed", key, i,
					  (long long)json_integer_value(x), (int)least);
		ret[i] = (uint64_t)json_integer_value(x);
	}
	*ret_n = (uint32_t)n;
	return 0;
}

static int check_shape(const struct question *q, struct ckpt_err *err)
{
	uint64_t numel;

	if (shape_numel(q->ndim, q->shape, &numel))
		return ckpt_error(err, -EINVAL,
				  "the shape has more than 9223372036854775807 elements");
	return 0;
}

int question_shape(struct question *q, struct ckpt_err *err)
{
	int rc = question_numbers(q->json, "shape", 0, CKPT_DIMS_MAX, q->shape, &q->ndim, err);

	return rc ? rc : check_shape(q, err);
}

static int too_many_ranks(struct ckpt_err *err)
{
	return ckpt_error(err, -EINVAL, "the mesh has more than %u ranks", LAYOUT_RANKS_MAX);
}

int question_mesh(struct question *q, struct ckpt_err *err)
{
	uint64_t dim[CKPT_DIMS_MAX], ranks = 1;
	int rc = question_numbers(q->json, "mesh", 1, CKPT_DIMS_MAX, dim, &q->mesh.ndim, err);

	if (rc)
		return rc;
	for (uint32_t d = 0; d < q->mesh.ndim; d++) {
		if (dim[d] > LAYOUT_RANKS_MAX || (ranks *= dim[d]) > LAYOUT_RANKS_MAX)
			return too_many_ranks(err);
		q->mesh_dim[d] = (uint32_t)dim[d];
	}
	q->mesh.dim = q->mesh_dim;
	q->mesh.name = mesh_name;
	q->mesh.nrank = (uint32_t)ranks;
	return 0;
}

static int read_placements(const struct question *q, const char *key, uint32_t ndim,
			   struct question_side *s, struct ckpt_err *err)
{
	const json_t *v = question_field(q->json, key);
	int rc = 0;

	if (!json_is_array(v))
		return ckpt_error(err, -EINVAL, "\"%s\" must be an array of placements", key);
	if (json_array_size(v) != q->mesh.ndim)
		return ckpt_error(err, -EINVAL,
				  "\"%s\" has %zu placements, but the mesh has %u dimensions: one "
				  "for each is needed",
				  key, json_array_size(v), q->mesh.ndim);
	for (uint32_t d = 0; d < q->mesh.ndim && !rc; d++) {
		const json_t *x = json_array_get(v, d);

		if (!json_is_string(x))
			return ckpt_error(err, -EINVAL, "\"%s\"[%u] is not a string", key, d);
		rc = question_placement(json_string_value(x), json_string_length(x), q, ndim, d, s,
					err);
		if (rc)
			ckpt_error_prefix(err, rc, "\"%s\"[%u]", key, d);
	}
	return rc;
}

static int place_compare(const void *a, const void *b, void *arg)
{
	const uint64_t *rank = arg, x = rank[*(const uint32_t *)a], y = rank[*(const uint32_t *)b];

	return (x > y) - (x < y);
}

static int sort_ranks(struct question *q, struct arena *a, struct ckpt_err *err)
{
	uint32_t *place, n = q->mesh.nrank, i = 1;

	while (i < n && q->rank[i - 1] < q->rank[i])
		i++;
	if (i >= n)
		return 0;
	place = arena_array(a, n, sizeof *place);
	if (!place)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		place[i] = i;
	qsort_r(place, n, sizeof *place, place_compare, (void *)q->rank);
	for (i = 1; i < n; i++)
		if (q->rank[place[i - 1]] == q->rank[place[i]])
			return ckpt_error(err, -EINVAL, "rank %llu appears twice in \"ranks\"",
					  (unsigned long long)q->rank[place[i]]);
	q->ascending = place;
	return 0;
}

int question_ranks(struct question *q, struct arena *a, struct ckpt_err *err)
{
	uint64_t *rank;
	uint32_t n = 0;
	int rc;

	if (!question_field(q->json, "ranks"))
		return 0;
	rank = arena_array(a, q->mesh.nrank, sizeof *rank);
	if (!rank)
		return -ENOMEM;
	rc = question_numbers(q->json, "ranks", 0, q->mesh.nrank, rank, &n, err);
	if (!rc && n != q->mesh.nrank)
		rc = ckpt_error(err, -EINVAL, "\"ranks\" has %u elements, but the mesh %u places",
				n, q->mesh.nrank);
	q->rank = rank;
	return rc ? rc : sort_ranks(q, a, err);
}

/* --- in which order, and how --- */

static int bad_order(const char *key, struct ckpt_err *err)
{
	return ckpt_error(err, -EINVAL,
			  "\"%s\" must be [[TENSOR_DIM, [MESH_DIM, ..]], ..] with integers, no "
			  "list empty",
			  key);
}

/* What an order makes of one side. */
struct order_reading {
	const char *key;
	uint32_t mesh_ndim;
	const struct question_side *side;
	struct ckpt_placement *place; /* in order of application */
	uint32_t n, seen;	      /* seen: bit per mesh dimension */
};

/* One entry: the mesh dimensions that cut a tensor dimension, put behind the others. */
static int read_order_entry(struct order_reading *r, const json_t *entry, json_int_t above,
			    struct ckpt_err *err)
{
	const json_t *dim = json_array_get(entry, 0), *list = json_array_get(entry, 1);

	if (json_array_size(entry) != 2 || !json_is_integer(dim) || !json_array_size(list))
		return bad_order(r->key, err);
	if (json_integer_value(dim) <= above)
		return ckpt_error(err, -EINVAL, "\"%s\": tensor dimensions must ascend, from 0 on",
				  r->key);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *x = json_array_get(list, i);
		json_int_t m = json_integer_value(x);
		const struct ckpt_placement *p;

		if (!json_is_integer(x))
			return bad_order(r->key, err);
		if (m < 0 || m >= r->mesh_ndim)
			return ckpt_error(err, -EINVAL, "\"%s\": there is no mesh dimension %lld",
					  r->key, (long long)m);
		p = &r->side->place[m];
		if (p->how != CKPT_SHARD || p->tensor_dim != json_integer_value(dim))
			return ckpt_error(err, -EINVAL,
					  "\"%s\": mesh dimension %lld does not shard tensor "
					  "dimension %lld",
					  r->key, (long long)m, (long long)json_integer_value(dim));
		if (r->seen >> m & 1)
			return ckpt_error(err, -EINVAL, "\"%s\": mesh dimension %lld appears twice",
					  r->key, (long long)m);
		r->seen |= 1u << m;
		r->place[r->n++] = *p;
	}
	return 0;
}

int question_order(const struct question *q, const json_t *order, const char *key,
		   const struct question_side *side, struct ckpt_placement *ret_place,
		   struct ckpt_err *err)
{
	struct order_reading r = {
		.key = key, .mesh_ndim = q->mesh.ndim, .side = side, .place = ret_place
	};
	json_int_t above = -1;
	int rc = 0;

	if (!json_is_array(order))
		return bad_order(key, err);
	for (size_t i = 0; i < json_array_size(order) && !rc; i++) {
		const json_t *entry = json_array_get(order, i);

		rc = read_order_entry(&r, entry, above, err);
		above = json_integer_value(json_array_get(entry, 0));
	}
	for (uint32_t m = 0; m < q->mesh.ndim && !rc; m++) {
		if (r.seen >> m & 1)
			continue;
		if (side->place[m].how == CKPT_SHARD)
			rc = ckpt_error(err, -EINVAL,
					"\"%s\" leaves out mesh dimension %u, which shards", key,
					m);
		else
			ret_place[r.n++] = side->place[m];
	}
	return rc;
}

static const char *const mode_name[] = { "literal", "order", "flat", "unflatten_pad" };
enum mode { MODE_LITERAL, MODE_ORDER, MODE_FLAT, MODE_UNFLATTEN_PAD, MODE_COUNT };
static const uint32_t mode_how[MODE_COUNT] = { CKPT_CHUNK, CKPT_CHUNK, CKPT_FLAT,
					       CKPT_UNFLATTEN_PAD };

static int mode_of(const char *word, enum mode *ret, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < MODE_COUNT; i++)
		if (word && !strcmp(word, mode_name[i])) {
			*ret = (enum mode)i;
			return 0;
		}
	return ckpt_error(err, -EINVAL,
			  "a mode is literal, order, flat or unflatten_pad, not \"%.40s\"",
			  word ? word : "");
}

/* The layout from src: order is NULL, or what the question says. */
static int layout_settle(struct question *q, const json_t *order, enum mode mode,
			 struct ckpt_err *err)
{
	int rc = 0;

	q->layout = (struct layout){ .mode = mode_how[mode], .place = q->place };
	if (mode == MODE_FLAT && q->src.strided)
		return ckpt_error(err, -EINVAL, "mode flat makes one cut, so it takes no _S");
	if (mode == MODE_ORDER && order)
		return ckpt_error(
			err, -EINVAL,
			"in mode order the split factors give the order: leave out \"order\"");
	if (mode == MODE_ORDER) {
		rc = layout_order_of(&q->mesh, q->src.place, q->place, err);
		q->layout.nplace = q->mesh.ndim;
	} else if (order) {
		rc = question_order(q, order, "order", &q->src, q->place, err);
		q->layout.nplace = q->mesh.ndim;
	} else {
		memcpy(q->place, q->src.place, sizeof q->place);
		q->layout.nplace = q->mesh.ndim;
	}
	return rc ? rc : layout_check(&q->mesh, &q->layout, q->ndim, err);
}

static int read_shares(struct question *q, struct arena *a, struct ckpt_err *err)
{
	const json_t *word = question_field(q->json, "mode");
	enum mode mode = MODE_LITERAL;
	int rc = read_placements(q, "placements", q->ndim, &q->src, err);

	if (!rc)
		rc = question_ranks(q, a, err);
	if (!rc && word)
		rc = mode_of(json_string_value(word), &mode, err);
	return rc ? rc : layout_settle(q, question_field(q->json, "order"), mode, err);
}

static int read_dtype(struct question *q, struct ckpt_err *err)
{
	static const struct {
		const char *name;
		uint32_t dtype;
	} torch[] = {
		{ "float32", CKPT_F32 }, { "float64", CKPT_F64 },   { "int32", CKPT_I32 },
		{ "int64", CKPT_I64 },	 { "bfloat16", CKPT_BF16 }, { "float16", CKPT_F16 },
		{ "int8", CKPT_I8 },	 { "uint8", CKPT_U8 },	    { "int16", CKPT_I16 },
		{ "uint16", CKPT_U16 },	 { "uint32", CKPT_U32 },    { "uint64", CKPT_U64 },
	};
	const char *word = json_string_value(question_field(q->json, "dtype"));

	for (size_t i = 0; word && i < ARRAY_LEN(torch); i++)
		if (!strcmp(word, torch[i].name) || !strcmp(word, dtype_name(torch[i].dtype))) {
			q->dtype = torch[i].dtype;
			return 0;
		}
	return ckpt_error(err, -EINVAL,
			  "\"dtype\" must be one whose elements can be written here: float16, "
			  "bfloat16, float32, float64, int8 to int64, uint8 to uint64");
}

/* A side by itself is a layout like any other. */
static int read_side(struct question *q, const char *key, struct question_side *s,
		     struct ckpt_err *err)
{
	struct layout l = { .nplace = q->mesh.ndim, .place = s->place };
	int rc = read_placements(q, key, q->ndim, s, err);

	if (!rc)
		rc = layout_check(&q->mesh, &l, q->ndim, err);
	return rc ? ckpt_error_prefix(err, rc, "\"%s\"", key) : 0;
}

static int read_reduce(struct question *q, struct ckpt_err *err)
{
	int rc = read_dtype(q, err);

	if (!rc)
		rc = read_side(q, "src", &q->src, err);
	if (!rc)
		rc = read_side(q, "dst", &q->dst, err);
	q->locals = question_field(q->json, "locals");
	if (!rc && (!json_is_array(q->locals) || json_array_size(q->locals) != q->mesh.nrank))
		rc = ckpt_error(err, -EINVAL,
				"\"locals\" must be an array with an array of numbers for each of "
				"%u ranks",
				q->mesh.nrank);
	return rc;
}

static int read_fields(struct question *q, struct arena *a, struct ckpt_err *err)
{
	int rc;

	if (q->kind == ASK_STEPS)
		return question_steps(q, a, err);
	rc = question_mesh(q, err);
	if (!rc && q->kind == ASK_ORDER)
		return read_placements(q, "strided", DIM_UNKNOWN, &q->src, err);
	if (!rc)
		rc = question_shape(q, err);
	if (rc)
		return rc;
	return q->kind == ASK_REDUCE ? read_reduce(q, err) : read_shares(q, a, err);
}

int question_parse(const char *text, size_t len, struct arena *a, struct question *ret,
		   struct ckpt_err *err)
{
	json_error_t why;
	int rc;

	*ret = (struct question){ 0 };
	ret->json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	if (!ret->json)
		return ckpt_error(err, -EINVAL, "not JSON, at byte %d: %s", why.position, why.text);
	if (!json_is_object(ret->json))
		return ckpt_error(err, -EINVAL, "a question must be a JSON object: {..}");
	if (question_field(ret->json, "strided"))
		ret->kind = ASK_ORDER;
	else if (question_field(ret->json, "locals") && question_field(ret->json, "src") &&
		 question_field(ret->json, "dst"))
		ret->kind = ASK_REDUCE;
	else if (question_field(ret->json, "dst") && question_field(ret->json, "devices_per_host"))
		ret->kind = ASK_STEPS;
	else if (question_field(ret->json, "placements"))
		ret->kind = ASK_SHARES;
	else
		return ckpt_error(
			err, -EINVAL,
			"the question asks nothing: \"placements\" asks for the elements of each "
			"rank, \"strided\" for a shard order, \"locals\" with \"src\" and "
			"\"dst\" for the values after a redistribution, \"devices_per_host\" with "
			"\"src\" and \"dst\" for its steps");
	rc = read_fields(ret, a, err);
	if (rc && !err->msg[0])
		ckpt_error(err, rc, "out of memory");
	return rc;
}

/* --- from the command line --- */

static const char *text_skip(const char *s, const char *what)
{
	return s + strspn(s, what);
}

/* One that is too large is as large as can be: question_shape refuses it. */
static bool take_size(const char **at, uint64_t *ret)
{
	const char *from = *at;

	for (*ret = 0; **at >= '0' && **at <= '9'; ++*at)
		if (ckpt_mul(*ret, 10, ret) < 0 || ckpt_add(*ret, (uint64_t)(**at - '0'), ret) < 0)
			*ret = UINT64_MAX;
	return *at > from;
}

static int shape_of_words(struct question *q, const char *text, struct ckpt_err *err)
{
	bool bracket = *text_skip(text, " ") == '[';
	const char *at = bracket ? text_skip(text, " ") + 1 : text;

	for (at = text_skip(at, " "); *at && *at != ']';) {
		const char *from = at;
		uint64_t n;

		if (q->ndim == CKPT_DIMS_MAX)
			return ckpt_error(err, -EINVAL, "a tensor has at most %d dimensions",
					  CKPT_DIMS_MAX);
		if (!take_size(&at, &n))
			return ckpt_error(
				err, -EINVAL,
				"shape \"%.80s\", character %zu: expected a size (write sizes, "
				"as in 4096,1024; [] is a scalar)",
				text, (size_t)(from - text) + 1);
		q->shape[q->ndim++] = n;
		at = text_skip(at, " ");
		if (*at == ',')
			at = text_skip(at + 1, " ");
		else if (*at && *at != ']')
			return ckpt_error(
				err, -EINVAL,
				"shape \"%.80s\", character %zu: expected a comma or the end", text,
				(size_t)(at - text) + 1);
	}
	if (bracket && *at++ != ']')
		return ckpt_error(err, -EINVAL, "shape \"%.80s\": its bracket is not closed", text);
	if (*text_skip(at, " "))
		return ckpt_error(
			err, -EINVAL,
			"shape \"%.80s\", character %zu: unexpected characters after the shape",
			text, (size_t)(at - text) + 1);
	return check_shape(q, err);
}

/* Bytes of a placement: up to the comma behind it, or to what closes the list. */
static size_t placement_bytes(const char *at, char close)
{
	uint32_t depth = 0;
	size_t len = 0;

	for (; at[len] && (depth || (at[len] != ',' && at[len] != close)); len++)
		depth += (uint32_t)(at[len] == '(') - (uint32_t)(at[len] == ')' && depth);
	while (len && at[len - 1] == ' ')
		len--;
	return len;
}

/* torch's notation, one for each mesh dimension. */
static int placements_of_words(struct question *q, const char *text, struct ckpt_err *err)
{
	const char *at = text_skip(text, " ");
	char close = (char)(*at == '[' ? ']' : *at == '(' ? ')' : 0);
	uint32_t n = 0;
	int rc = 0;

	at = close ? text_skip(at + 1, " ") : at;
	while (*at && *at != close && !rc) {
		size_t len = placement_bytes(at, close);

		if (n < q->mesh.ndim)
			rc = question_placement(at, len, q, q->ndim, n, &q->src, err);
		n++;
		at = text_skip(at + len, " ");
		if (*at == ',')
			at = text_skip(at + 1, " ");
	}
	if (!rc && close && *at++ != close)
		return ckpt_error(err, -EINVAL, "placements \"%.80s\": the bracket is not closed",
				  text);
	if (!rc && *text_skip(at, " "))
		return ckpt_error(err, -EINVAL,
				  "placements \"%.80s\", character %zu: this is too much", text,
				  (size_t)(text_skip(at, " ") - text) + 1);
	if (!rc && n != q->mesh.ndim)
		rc = ckpt_error(err, -EINVAL,
				"%u placements for the %u dimensions of the mesh: one for each is "
				"needed, in its order",
				n, q->mesh.ndim);
	return rc;
}

/* The house's own notation says the order by itself. */
static int layout_of_words(struct question *q, const char *text, enum mode mode, struct arena *a,
			   struct ckpt_err *err)
{
	struct layout l;
	int rc = layout_parse(text, &q->mesh, a, &l, err);

	if (rc)
		return rc;
	if (mode == MODE_ORDER)
		return ckpt_error(err, -EINVAL,
				  "mode order reads split factors as torch writes them, one "
				  "placement a mesh dimension: _S(0, 2), S(0); placements with @ "
				  "stand in the order in which they cut");
	for (uint32_t i = 0; i < l.nplace; i++) {
		q->place[i] = l.place[i];
		if (l.place[i].how == CKPT_SHARD && l.place[i].split_factor)
			q->src.strided |= 1u << l.place[i].mesh_dim;
	}
	q->layout = (struct layout){ .mode = mode == MODE_LITERAL ? l.mode : mode_how[mode],
				     .nplace = l.nplace,
				     .place = q->place };
	return layout_check(&q->mesh, &q->layout, q->ndim, err);
}

/* "Replicate", of the whole mesh. */
static bool is_all_replicated(const char *text)
{
	text = text_skip(text, " ");
	return !strncmp(text, "Replicate", 9) && !*text_skip(text + 9, " ()");
}

int question_shape_of_words(const char *text, uint32_t *ret_ndim,
			    uint64_t ret_shape[static CKPT_DIMS_MAX], struct ckpt_err *err)
{
	struct question q = { 0 };
	int rc = shape_of_words(&q, text, err);

	*ret_ndim = q.ndim;
	memcpy(ret_shape, q.shape, sizeof q.shape);
	return rc;
}

int question_of_words(const char *shape, const char *mesh, const char *placements, const char *word,
		      struct arena *a, struct question *ret, struct ckpt_err *err)
{
	enum mode mode = MODE_LITERAL;
	int rc;

	*ret = (struct question){ .kind = ASK_SHARES };
	rc = shape_of_words(ret, shape, err);
	if (!rc)
		rc = mesh_parse(mesh, a, &ret->mesh, err);
	if (!rc && word)
		rc = mode_of(word, &mode, err);
	if (rc)
		return rc;
	if (strchr(placements, '@') || is_all_replicated(placements))
		return layout_of_words(ret, placements, mode, a, err);
	rc = placements_of_words(ret, placements, err);
	return rc ? rc : layout_settle(ret, NULL, mode, err);
}

void question_free(struct question *q)
{
	json_decref(TAKE(q->json));
}

char *question_side_print(const struct question *q, const struct question_side *s, char *buf,
			  size_t bytes)
{
	struct text t = text_in(buf, bytes);

	char one[REDIST_PLACEMENT_BYTES];

	for (uint32_t m = 0; m < q->mesh.ndim; m++)
		text_add(&t, "%s%s", m ? ", " : "",
			 redist_placement_print(&s->place[m], one, sizeof one));
	return buf;
}

uint64_t question_rank(const struct question *q, uint32_t place, uint32_t *ret_coord)
{
	mesh_place_coord(&q->mesh, place, ret_coord);
	return q->rank ? q->rank[place] : place;
}

uint64_t question_rank_ascending(const struct question *q, uint32_t i, uint32_t *ret_coord)
{
	return question_rank(q, q->ascending ? q->ascending[i] : i, ret_coord);
}
