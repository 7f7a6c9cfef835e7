/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_view.c - a view as a person types it, on a small table: it is refused with a sentence that
 * names a line, or every tensor of the result is there whole, its pieces lie inside their places,
 * and there are as many bytes of pieces as there were, unless a rule copies or drops some.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/table/operand.h"
#include "ckpt/table/view.h"
#include "ckpt/table/view_parse.h"
#include "tests/lib/row.h"

#define BYTES_MAX 2048

static const struct {
	const char *component, *name, *placements;
	uint32_t dtype, ndim;
	uint64_t shape[3];
} tensors[] = {
	{ "model", "l.0.qkv", "Shard(0)@fsdp", CKPT_BF16, 2, { 12, 4 } },
	{ "model", "l.1.qkv", "Shard(1)@tp, Shard(0)@fsdp", CKPT_BF16, 2, { 12, 4 } },
	{ "model", "l.0.gate", "Shard(0)@tp", CKPT_F32, 2, { 5, 3 } },
	{ "model", "l.0.up", "Shard(0)@tp", CKPT_F32, 2, { 5, 3 } },
	{ "model", "e.0.w", "StridedShard(0, 2)@fsdp", CKPT_U8, 1, { 8 } },
	{ "model", "e.1.w", "Only(1)@tp", CKPT_U8, 1, { 8 } },
	{ "model", "e.2.w", "Replicate", CKPT_U8, 1, { 8 } },
	{ "optim", "sum", "Partial(sum, keep)@tp, Shard(1)@fsdp", CKPT_F32, 3, { 2, 6, 2 } },
	{ "", "step", "Replicate", CKPT_I64, 0, { 0 } },
	{ "", "a/b c", "Shard(0)@fsdp", CKPT_F64, 2, { 0, 3 } },
};

static void add_pieces(struct table *t, uint32_t id, uint64_t *end, struct arena *a)
{
	const struct table_tensor *x = &t->tensor[id];

	for (uint32_t r = 0; r < 4; r++) {
		struct table_piece p = { .tensor = id, .rank = r, .place = r, .off = end[r] };
		uint32_t coord[2] = { r / 2, r % 2 };

		assert(!layout_share(&t->mesh[0], &t->layout[x->layout], x->ndim, x->shape, coord,
				     a, &p.set));
		assert(!table_add_piece(t, &p, NULL));
		end[r] += p.set.numel * x->elem_bytes;
	}
}

static void make_source(struct table *t)
{
	uint64_t blob = 9, end[4] = { 0 };
	struct arena a = { 0 };
	struct layout l;
	struct mesh m;

	assert(!mesh_parse("fsdp=2,tp=2", &a, &m, NULL));
	assert(!table_add_mesh(t, &m, NULL, NULL));
	for (uint32_t r = 0; r < 4; r++)
		assert(!table_add_place(t, &(struct table_place){ "part", r, 4096 }, NULL, NULL));
	for (uint32_t i = 0; i < ARRAY_LEN(tensors); i++) {
		struct table_tensor x =
			ROW(.component = tensors[i].component, .name = tensors[i].name,
			    .of = i % 2 ? "l.0.qkv" : "", .role = i % 2 ? CKPT_MOMENT1 : CKPT_PARAM,
			    .dtype = tensors[i].dtype, .rank = TABLE_NONE, .ndim = tensors[i].ndim,
			    .shape = tensors[i].shape, .fp = 1 + i, .fp_known = true);

		if (tensors[i].dtype == CKPT_U8 || tensors[i].dtype == CKPT_F32)
			x.role = CKPT_PARAM;
		assert(!layout_parse(tensors[i].placements, &m, &a, &l, NULL));
		assert(!table_add_layout(t, &l, &x.layout, NULL));
		assert(!table_add_tensor(t, &x, NULL, NULL));
		add_pieces(t, i, end, &a);
	}
	for (uint32_t r = 0; r < 2; r++)
		assert(!table_add_tensor(t,
					 &(struct table_tensor)ROW(.name = "rng", .dtype = CKPT_U8,
								   .flags = TENSOR_BLOB,
								   .layout = TABLE_NONE, .rank = r,
								   .ndim = 1, .shape = &blob),
					 NULL, NULL));
	assert(!table_seal(t, NULL));
	arena_free(&a);
}

static void check_piece(const struct table *src, const struct table *t, const struct table_piece *p)
{
	const struct table_tensor *x = &t->tensor[p->tensor];
	uint64_t numel = 1;

	assert(p->set.ndim == x->ndim && p->off + p->len <= src->place[p->place].bytes);
	for (uint32_t d = 0; d < x->ndim; d++) {
		assert(!indices_check(&p->set.dim[d], x->shape[d], NULL));
		numel *= p->set.dim[d].total;
	}
	assert(numel == p->set.numel && numel);
}

/* Of all pieces. */
static uint64_t bytes_held(const struct table *t)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < t->npiece; i++)
		n += t->piece[i].set.numel * t->tensor[t->piece[i].tensor].elem_bytes;
	return n;
}

/* Every element of a tensor is somewhere. */
static void check_cover(const struct table *t, uint32_t id)
{
	const struct table_tensor *x = &t->tensor[id];
	uint8_t seen[65536] = { 0 };
	uint64_t left = x->numel;

	if (x->flags & TENSOR_BLOB || x->numel > sizeof seen)
		return;
	for (uint32_t i = t->first[id]; i < t->first[id + 1]; i++) {
		const struct table_piece *p = &t->piece[i];

		for (uint64_t k = 0; k < p->set.numel; k++) {
			uint64_t rest = k, g = 0, weight = 1;

			for (uint32_t d = x->ndim; d-- > 0;) {
				uint64_t n = p->set.dim[d].total, at = rest % n;
				const struct run *r = p->set.dim[d].run;

				for (; at >= r->len * r->count; r++)
					at -= r->len * r->count;
				g += (r->start + at / r->len * r->stride + at % r->len) * weight;
				weight *= x->shape[d];
				rest /= n;
			}
			left -= !seen[g];
			seen[g] = 1;
		}
	}
	assert(!left);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char text[BYTES_MAX + 1];
	struct table src = { 0 }, t;
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	const struct view_cast *cast;
	struct view v;
	bool more = false, less = false;
	int rc;

	if (bytes > BYTES_MAX)
		return -1;
	memcpy(text, data, bytes);
	text[bytes] = 0;
	make_source(&src);
	rc = view_parse(text, "v", &a, &v, &err);
	if (!rc) {
		rc = view_make(&src, &v, &t, &cast, &err);
		assert(!rc || rc == -EINVAL || rc == -E2BIG || rc == -EALREADY);
	}
	if (rc) {
		assert(err.msg[0] && (rc != -EINVAL || strstr(err.msg, "v:")));
	} else {
		assert(t.sealed && t.nplace == src.nplace);
		for (uint32_t i = 0; i < t.npiece; i++)
			check_piece(&src, &t, &t.piece[i]);
		for (uint32_t i = 0; i < t.ntensor; i++)
			check_cover(&t, i);
		for (uint32_t i = 0; i < v.nrule; i++) {
			more |= v.rule[i].verb == VIEW_COPY;
			less |= v.rule[i].verb == VIEW_DROP;
		}
		assert(more || bytes_held(&t) <= bytes_held(&src));
		assert(less || bytes_held(&t) >= bytes_held(&src));
		table_free(&t);
	}
	table_free(&src);
	arena_free(&a);
	return 0;
}
