/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_layout.c - questions about layouts: a line with a mesh, a line with placements, a line with
 * a shape, and then bytes that are placements as they come from a peer. Whatever they say is
 * refused with a sentence, or every share is a valid set inside the tensor, what is owned is held,
 * and of small ones the owned parts cover the tensor once.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/layout/layout.h"
#include "tests/lib/strided.h"

#define PLACES_MAX 8   /* coordinates that are asked for in a large mesh */
#define WHOLE_RANKS 64 /* meshes and tensors of which all is asked */
#define WHOLE_NUMEL 512

struct question {
	struct mesh mesh;
	uint32_t ndim;
	uint64_t shape[CKPT_DIMS_MAX];
};

static void coordinate(const struct mesh *m, uint32_t place, uint32_t *ret)
{
	for (uint32_t d = m->ndim; d-- > 0; place /= m->dim[d])
		ret[d] = place % m->dim[d];
}

static void check_set(const struct question *q, const struct indexset *x)
{
	uint64_t numel = 1;
	bool empty = false;

	assert(x->ndim == q->ndim);
	for (uint32_t d = 0; d < x->ndim; d++) {
		assert(indices_check(&x->dim[d], q->shape[d], NULL) == 0);
		empty = empty || x->dim[d].total == 0;
	}
	for (uint32_t d = 0; d < x->ndim && !empty; d++)
		assert(ckpt_mul(numel, x->dim[d].total, &numel) == 0);
	assert(x->ndim == 0 || x->numel == (empty ? 0 : numel));
}

/* Elements owned at this place; UINT64_MAX: too many progressions. */
static uint64_t ask(const struct question *q, const struct layout *l, uint32_t place,
		    struct arena *a)
{
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset share, mine, both;
	int e;

	coordinate(&q->mesh, place, coord);
	e = layout_share(&q->mesh, l, q->ndim, q->shape, coord, a, &share);
	assert(e == 0 || e == -E2BIG || e == -EOVERFLOW);
	if (e < 0)
		return UINT64_MAX;
	check_set(q, &share);
	e = layout_owned(&q->mesh, l, q->ndim, q->shape, coord, 4, "c", "n", a, &mine);
	assert(e == 0 || e == -E2BIG);
	if (e < 0)
		return UINT64_MAX;
	check_set(q, &mine);
	assert(mine.numel <= share.numel);
	e = indexset_intersect(&mine, &share, a, &both);
	assert(e == -E2BIG || (e == 0 && indexset_equal(&both, &mine)));
	return mine.numel;
}

static void ask_all(const struct question *q, const struct layout *l, struct arena *a)
{
	uint64_t owned = 0, numel = 0;
	bool whole = q->mesh.nrank <= WHOLE_RANKS && !layout_is_partial(l) &&
		     shape_numel(q->ndim, q->shape, &numel) == 0 && numel <= WHOLE_NUMEL;
	uint32_t n = whole ? q->mesh.nrank : MIN(q->mesh.nrank, (uint32_t)PLACES_MAX);

	for (uint32_t i = 0; i < n; i++) {
		/* of a large mesh some at the beginning and some at the end */
		uint32_t place = i % 2 ? q->mesh.nrank - 1 - i / 2 : i / 2;
		uint64_t mine = ask(q, l, place, a);

		if (mine == UINT64_MAX)
			return;
		owned += mine;
	}
	assert(!whole || owned == numel);
}

/* There and back; what says no order says why. */
static void convert(const struct mesh *m, const struct layout *l)
{
	struct ckpt_placement all[CKPT_DIMS_MAX], order[CKPT_DIMS_MAX], back[CKPT_DIMS_MAX];
	struct ckpt_err err = { 0 };

	for (uint32_t d = 0; d < m->ndim; d++)
		all[d] = (struct ckpt_placement){ .mesh_dim = (uint16_t)d };
	for (uint32_t i = 0; i < l->nplace; i++)
		all[l->place[i].mesh_dim] = l->place[i];
	if (layout_order_of(m, all, order, &err) < 0) {
		assert(err.code == -EINVAL && err.msg[0]);
		return;
	}
	strided_of(m, order, back);
	for (uint32_t d = 0; d < m->ndim; d++)
		assert(back[d].how == all[d].how &&
		       (all[d].how != CKPT_SHARD ||
			MAX(back[d].split_factor, 1u) == MAX(all[d].split_factor, 1u)));
}

/* All of the tensor as a box that every rank of the mesh holds: each element has one owner. */
static void ask_box(const struct question *q, struct arena *a)
{
	static const uint64_t zero[CKPT_DIMS_MAX];
	struct indexset box, mine;
	uint64_t owned = 0;
	uint32_t coord[CKPT_DIMS_MAX];

	if (q->mesh.nrank > WHOLE_RANKS || indexset_box(q->ndim, zero, q->shape, a, &box) < 0 ||
	    !box.numel)
		return;
	for (uint32_t i = 0; i < q->mesh.nrank; i++) {
		coordinate(&q->mesh, i, coord);
		assert(layout_owned_box(&q->mesh, &box, q->shape, coord, 4, "c", "n", a, &mine) ==
		       0);
		check_set(q, &mine);
		owned += mine.numel;
	}
	assert(owned == box.numel);
}

static void ask_layout(const struct question *q, const struct layout *l, struct arena *a)
{
	struct ckpt_err err = { 0 };
	int e = layout_check(&q->mesh, l, q->ndim, &err);

	if (e < 0) {
		assert(err.code == e && err.msg[0]);
		return;
	}
	if (l->mode == CKPT_BOXES) {
		assert(!l->nplace);
		ask_box(q, a);
		return;
	}
	assert(l->mode <= CKPT_UNFLATTEN_PAD);
	if (layout_check_saved(&q->mesh, l, &err) < 0)
		assert(err.code == -EOPNOTSUPP && layout_is_partial(l));
	convert(&q->mesh, l);
	ask_all(q, l, a);
}

/* One line of the input, zero-terminated in buf; false where it is too long or missing. */
static bool line(const uint8_t **at, size_t *left, char *buf, size_t max)
{
	const uint8_t *end = *left ? memchr(*at, '\n', *left) : NULL;
	size_t n = end ? (size_t)(end - *at) : 0;

	if (!end || n >= max)
		return false;
	memcpy(buf, *at, n);
	buf[n] = '\0';
	*at += n + 1;
	*left -= n + 1;
	return true;
}

static void read_shape(char *text, struct question *q)
{
	char *end = text;

	while (q->ndim < CKPT_DIMS_MAX) {
		uint64_t n = strtoull(text, &end, 10);

		if (end == text)
			return;
		q->shape[q->ndim++] = n;
		text = end;
	}
}

static void ask_bytes(const struct question *q, const uint8_t *at, size_t left, struct arena *a)
{
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = { .place = place };

	if (left == 0)
		return;
	l.mode = *at++;
	left--;
	l.nplace = (uint32_t)MIN(left / sizeof *place, ARRAY_LEN(place));
	memcpy(place, at, l.nplace * sizeof *place);
	ask_layout(q, &l, a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char mesh[512], text[1024], shape[512];
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct question q = { .ndim = 0 };
	struct layout l;

	if (!line(&data, &bytes, mesh, sizeof mesh) || !line(&data, &bytes, text, sizeof text) ||
	    !line(&data, &bytes, shape, sizeof shape))
		return -1;
	if (mesh_parse(mesh, &a, &q.mesh, &err) == 0) {
		read_shape(shape, &q);
		if (layout_parse(text, &q.mesh, &a, &l, &err) == 0)
			ask_layout(&q, &l, &a);
		else
			assert(err.code == -EINVAL && err.msg[0]);
		ask_bytes(&q, data, bytes, &a);
	}
	arena_free(&a);
	return 0;
}
