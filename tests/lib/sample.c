/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.c - see sample.h. Included by tests, so everything but the declared functions is static.
 * Invariant: a value depends on nothing but seed, key, global index and step, so that no mesh and
 * no order of filling can be seen in it.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include <stdio.h>

const struct sample_spec sample_specs[SAMPLE_TENSORS] = {
	ROW("model", "embed.weight", "", CKPT_PARAM, CKPT_STABLE, CKPT_BF16, CUT_ROWS, -1, 2,
	    { 5, 192 }, 1000),
	ROW("optim", "embed.weight.master", "model/embed.weight", CKPT_MASTER, CKPT_STABLE,
	    CKPT_F32, CUT_ROWS, -1, 2, { 5, 192 }, 1000),
	ROW("optim", "embed.weight.exp_avg", "model/embed.weight", CKPT_MOMENT1, CKPT_STABLE,
	    CKPT_F32, CUT_ROWS, -1, 2, { 5, 192 }, 1000),
	ROW("optim", "embed.weight.exp_avg_sq", "model/embed.weight", CKPT_MOMENT2, CKPT_STABLE,
	    CKPT_F32, CUT_ROWS, -1, 2, { 5, 192 }, 1000),
	ROW("model", "layers.0.wq", "", CKPT_PARAM, CKPT_STABLE, CKPT_BF16, CUT_MATRIX, 0, 2,
	    { 3, 98 }, 64),
	ROW("model", "layers.1.wq", "", CKPT_PARAM, CKPT_STABLE, CKPT_BF16, CUT_MATRIX, 1, 2,
	    { 3, 98 }, 64),
	ROW("model", "layers.2.wo", "", CKPT_PARAM, CKPT_STABLE, CKPT_F16, CUT_TWICE, 2, 2,
	    { 11, 40 }, 64),
	ROW("model", "layers.3.experts", "", CKPT_PARAM, CKPT_STABLE, CKPT_BF16, CUT_MATRIX, 3, 3,
	    { 6, 10, 8 }, 2),
	ROW("model", "layers.3.fused", "", CKPT_PARAM, CKPT_STABLE, CKPT_F32, CUT_COMB, 3, 2,
	    { 20, 17 }, 7),
	ROW("model", "norm.weight", "", CKPT_PARAM, CKPT_STABLE, CKPT_BF16, CUT_NONE, -1, 1, { 48 },
	    0),
	{ "model", "head.bias", "", CKPT_PARAM, CKPT_STABLE, CKPT_F32, CUT_ROWS, -1, 1, { 3 }, 0 },
	ROW("model", "rope.table", "", CKPT_BUFFER, CKPT_CONST, CKPT_F32, CUT_NONE, -1, 2,
	    { 1, 512 }, 1200),
	{ "model", "mask", "", CKPT_BUFFER, CKPT_VOLATILE, CKPT_BOOL, CUT_ROWS, -1, 1, { 77 }, 10 },
	ROW("model", "stats.sum", "", CKPT_BUFFER, CKPT_STABLE, CKPT_F64, CUT_ROWS, -1, 2, { 7, 3 },
	    2),
	ROW("model", "spectrum", "", CKPT_BUFFER, CKPT_STABLE, CKPT_C128, CUT_MATRIX, -1, 2,
	    { 5, 6 }, 1),
	ROW("model", "scales", "", CKPT_BUFFER, CKPT_STABLE, CKPT_F8_E8M0, CUT_NONE, -1, 2,
	    { 9, 7 }, 0),
	{ "model", "nothing", "", CKPT_PARAM, CKPT_STABLE, CKPT_F32, CUT_ROWS, -1, 2, { 0, 8 }, 0 },
	{ "optim", "step", "", CKPT_COUNTER, CKPT_STABLE, CKPT_I64, CUT_NONE, -1, 0, { 0 }, 0 },
};

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t sample_mix(uint64_t z)
{
	return mix(z);
}

static uint64_t sample_key(uint64_t seed, const struct table_tensor *x, uint64_t step)
{
	uint64_t h = sample_mix(seed + 1);

	for (const char *s = x->component; *s; s++)
		h = sample_mix(h ^ (uint8_t)*s);
	h = sample_mix(h ^ 0x100);
	for (const char *s = x->name; *s; s++)
		h = sample_mix(h ^ (uint8_t)*s);
	h = sample_mix(h ^ x->rank);
	return sample_mix(h + (x->cls == CKPT_CONST ? 0 : step));
}

/*
 * The elements list[0 .. n-1] behind `first`, one behind the other. This is half of the time of the
 * tests that move samples, and its memory is nobody else's: ThreadSanitizer looks at what is copied
 * from it, not at each element.
 */
__attribute__((no_sanitize("thread"))) static void
sample_values(uint64_t key, const struct table_tensor *x, uint64_t first, const uint64_t *list,
	      uint64_t n, uint8_t *to)
{
	uint64_t mask = x->dtype == CKPT_BOOL ? 1 : UINT64_MAX;
	uint32_t bytes = x->elem_bytes;

	for (uint64_t i = 0; i < n; i++, to += bytes) {
		uint64_t g = first + list[i],
			 v = mix(key + g * UINT64_C(0x9e3779b97f4a7c15)) & mask;

		switch (bytes) {
		case 1:
			*to = (uint8_t)v;
			break;
		case 2:
			*(uint16_t *)(void *)to = (uint16_t)v;
			break;
		case 4:
			*(uint32_t *)(void *)to = (uint32_t)v;
			break;
		default:
			*(uint64_t *)(void *)to = v;
			if (bytes > 8)
				*(uint64_t *)(void *)(to + 8) = mix(key ^ ~g);
		}
	}
}

void sample_truth(uint64_t seed, const struct table_tensor *x, uint64_t g, uint64_t step,
		  void *ret_bytes)
{
	uint64_t bytes[2], zero = 0;

	sample_values(sample_key(seed, x, step), x, g, &zero, 1, (uint8_t *)bytes);
	memcpy(ret_bytes, bytes, x->elem_bytes);
}

void sample_element(const struct sample *s, uint32_t tensor, uint64_t g, uint64_t step,
		    void *ret_bytes)
{
	sample_truth(s->seed, &s->decl.tensor[tensor], g, step, ret_bytes);
}

__attribute__((no_sanitize("thread"))) uint64_t *sample_indices(const struct indices *d)
{
	uint64_t *list = malloc((d->total + 1) * sizeof *list), n = 0;

	assert(list);
	for (uint32_t r = 0; r < d->n; r++)
		for (uint64_t c = 0; c < d->run[r].count; c++)
			for (uint64_t i = 0; i < d->run[r].len; i++)
				list[n++] = d->run[r].start + c * d->run[r].stride + i;
	assert(n == d->total);
	return list;
}

void sample_piece(uint64_t seed, const struct table *t, const struct table_piece *p, uint64_t step,
		  void *ret_bytes)
{
	const struct table_tensor *x = &t->tensor[p->tensor];
	uint64_t key = sample_key(seed, x, step), *list[CKPT_DIMS_MAX], at[CKPT_DIMS_MAX] = { 0 };
	uint64_t scalar = 0, bytes = p->set.numel * x->elem_bytes;
	uint32_t last = x->ndim ? x->ndim - 1 : 0;
	uint64_t *inner = &scalar, n = x->ndim ? p->set.dim[last].total : 1;
	uint8_t *made = malloc(bytes + 16);

	assert(made);
	for (uint32_t d = 0; d < x->ndim; d++)
		inner = list[d] = sample_indices(&p->set.dim[d]);
	for (uint64_t done = 0; done < p->set.numel; done += n) {
		uint64_t row = 0;

		for (uint32_t d = 0; d < last; d++)
			row = row * x->shape[d] + list[d][at[d]];
		sample_values(key, x, x->ndim ? row * x->shape[last] : 0, inner, n,
			      made + done * x->elem_bytes);
		for (uint32_t d = last; d-- > 0;) {
			if (++at[d] < p->set.dim[d].total)
				break;
			at[d] = 0;
		}
	}
	memcpy(ret_bytes, made, bytes);
	free(made);
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
}

/* --- declaring --- */

static uint32_t sample_place(const struct mesh *m, const struct sample_spec *spec,
			     struct ckpt_placement *ret)
{
	static const char *const order[] = { "pp", "tp", "fsdp", "dp" };
	uint32_t n = 0;

	for (size_t k = 0; k < ARRAY_LEN(order); k++) {
		for (uint16_t d = 0; d < m->ndim; d++) {
			struct ckpt_placement p =
				ROW(.how = CKPT_SHARD, .mesh_dim = d, .split_factor = 1);
			bool named = true;

			if (strcmp(m->name[d], order[k]) != 0)
				continue;
			switch (k) {
			case 0:
				p.how = CKPT_ONLY;
				p.split_factor =
					spec->layer < 0 ? 0 : (uint32_t)spec->layer % m->dim[d];
				named = spec->layer >= 0;
				break;
			case 1:
				p.tensor_dim = spec->cut == CUT_MATRIX;
				named = spec->cut == CUT_MATRIX || spec->cut == CUT_TWICE;
				break;
			case 2:
				p.split_factor = spec->cut == CUT_COMB ? 3 : 1;
				named = spec->cut != CUT_NONE;
				break;
			default: /* said or not, dp replicates: both forms are used */
				p.how = CKPT_REPLICATE;
				p.split_factor = 0;
				named = spec->cut == CUT_MATRIX;
				break;
			}
			if (named)
				ret[n++] = p;
		}
	}
	return n;
}

/* Declare what the rank holds of the tensor at *at, and move *at behind it. */
static int sample_hold(struct table *t, uint32_t tensor, uint32_t rank, const struct indexset *set,
		       uint64_t *at, struct ckpt_err *err)
{
	struct table_piece p = {
		.tensor = tensor, .rank = rank, .place = 0, .set = *set, .off = *at
	};

	*at = align_up(*at + set->numel * t->tensor[tensor].elem_bytes, 64);
	return table_add_piece(t, &p, err);
}

static int sample_blob(struct table *t, const char *name, uint32_t owner, uint64_t bytes,
		       uint32_t rank, uint64_t *at, struct arena *a, struct ckpt_err *err)
{
	struct table_tensor x =
		ROW(.component = "blob", .name = name, .of = "", .dtype = CKPT_U8,
		    .role = CKPT_OTHER, .cls = CKPT_VOLATILE, .flags = TENSOR_BLOB,
		    .layout = TABLE_NONE, .rank = owner, .ndim = 1, .shape = &bytes);
	struct indexset set;
	uint64_t start = 0;
	uint32_t id;
	int r;

	r = table_add_tensor(t, &x, &id, err);
	if (!r)
		r = indexset_box(1, &start, &bytes, a, &set);
	return r ? r : sample_hold(t, id, rank, &set, at, err);
}

static int sample_tensor(struct table *t, const struct mesh *m, uint32_t mesh,
			 const struct sample_spec *spec, uint64_t scale, uint32_t rank,
			 uint64_t *at, struct arena *a, struct ckpt_err *err)
{
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct layout l = { .mesh = mesh, .nplace = sample_place(m, spec, place), .place = place };
	uint64_t shape[3] = { spec->shape[0] + spec->grow * scale, spec->shape[1], spec->shape[2] };
	struct table_tensor x =
		ROW(.component = spec->component, .name = spec->name, .of = spec->of,
		    .dtype = spec->dtype, .role = spec->role, .cls = spec->cls, .rank = TABLE_NONE,
		    .ndim = spec->ndim, .shape = shape);
	uint32_t coord[CKPT_DIMS_MAX], id;
	struct indexset set;
	int r;

	r = table_add_layout(t, &l, &x.layout, err);
	if (!r)
		r = table_add_tensor(t, &x, &id, err);
	if (!r && !mesh_coord(m, rank, coord))
		r = -EINVAL;
	if (!r)
		r = layout_share(m, &l, x.ndim, shape, coord, a, &set);
	return r ? r : sample_hold(t, id, rank, &set, at, err);
}

static int sample_declare(struct sample *s, const struct mesh *m, uint64_t scale,
			  uint64_t *ret_bytes, struct arena *a, struct ckpt_err *err)
{
	/* Its size is known when all is declared; until then it is as large as can be. */
	struct table_place place = { .name = "", .rank = s->rank, .bytes = INT64_MAX };
	char name[32];
	uint64_t at = 0;
	uint32_t mesh;
	int r;

	snprintf(name, sizeof name, "memory of rank %u", s->rank);
	place.name = name;
	r = table_add_place(&s->decl, &place, NULL, err);
	if (!r)
		r = table_add_mesh(&s->decl, m, &mesh, err);
	for (size_t i = 0; !r && i < SAMPLE_TENSORS; i++)
		r = sample_tensor(&s->decl, m, mesh, &sample_specs[i], scale, s->rank, &at, a, err);
	if (!r)
		r = sample_blob(&s->decl, "cursor", TABLE_NONE, 24, s->rank, &at, a, err);
	if (!r)
		r = sample_blob(&s->decl, "rng", s->rank, 100 + 7 * (uint64_t)s->rank, s->rank, &at,
				a, err);
	*ret_bytes = align_up(at, 4096);
	s->decl.place[0].bytes = *ret_bytes;
	return r ? r : table_seal(&s->decl, err);
}

int sample_make(const char *mesh_spec, uint32_t rank, uint64_t seed, uint64_t scale,
		struct sample *ret)
{
	struct sample s = { .seed = seed, .rank = rank };
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct mesh m = { 0 };
	int r = scale && scale <= SAMPLE_SCALE_MAX ? mesh_parse(mesh_spec, &a, &m, &err) : -EINVAL;

	if (!r && rank >= m.nrank)
		r = -EINVAL;
	s.world = m.nrank;
	if (!r)
		r = sample_declare(&s, &m, scale, &s.mem_bytes, &a, &err);
	if (!r) {
		s.mem = aligned_alloc(4096, s.mem_bytes);
		r = s.mem ? 0 : -ENOMEM;
	}
	arena_free(&a);
	if (r) {
		fprintf(stderr, "sample %s, rank %u: %s\n", mesh_spec, rank, err.msg);
		sample_free(&s);
		return r;
	}
	*ret = s;
	sample_clear(ret);
	return 0;
}

void sample_free(struct sample *s)
{
	free(s->mem);
	table_free(&s->decl);
	*s = (struct sample){ 0 };
}

/* --- filling and checking --- */

void sample_clear(struct sample *s)
{
	memset(s->mem, SAMPLE_CLEAR, s->mem_bytes);
}

void sample_fill(struct sample *s, uint64_t step)
{
	for (uint32_t i = 0; i < s->decl.npiece; i++)
		sample_piece(s->seed, &s->decl, &s->decl.piece[i], step,
			     (uint8_t *)s->mem + s->decl.piece[i].off);
}

static bool sample_gap(const struct sample *s, uint64_t from, uint64_t to, char *why,
		       size_t why_bytes)
{
	const uint8_t *mem = s->mem;

	if (from < to && mem[from] == SAMPLE_CLEAR &&
	    !memcmp(mem + from, mem + from + 1, to - from - 1))
		return true;
	for (uint64_t i = from; i < to; i++) {
		if (mem[i] == SAMPLE_CLEAR)
			continue;
		snprintf(why, why_bytes, "rank %u: byte %llu between the pieces was written",
			 s->rank, (unsigned long long)i);
		return false;
	}
	return true;
}

static bool sample_same(const struct sample *s, const struct table_piece *p, uint64_t step,
			char *why, size_t why_bytes)
{
	const struct table_tensor *x = &s->decl.tensor[p->tensor];
	const uint8_t *have = (const uint8_t *)s->mem + p->off;
	uint8_t *want = malloc(p->len);
	char label[128];
	uint64_t i = 0;

	assert(want);
	sample_piece(s->seed, &s->decl, p, step, want);
	if (!memcmp(want, have, p->len))
		i = p->len;
	while (i < p->len && want[i] == have[i])
		i++;
	if (i < p->len)
		snprintf(why, why_bytes,
			 "rank %u: %s: element %llu of %llu of its share is not that of "
			 "step %llu (byte %02x, should be %02x)",
			 s->rank, table_tensor_print(x, label, sizeof label),
			 (unsigned long long)(i / x->elem_bytes), (unsigned long long)p->set.numel,
			 (unsigned long long)step, have[i], want[i]);
	free(want);
	return i == p->len;
}

static bool sample_all_same(const struct sample *s, bool blobs, uint64_t step, char *why,
			    size_t why_bytes)
{
	for (uint32_t i = 0; i < s->decl.npiece; i++) {
		const struct table_piece *p = &s->decl.piece[i];

		if (!(s->decl.tensor[p->tensor].flags & TENSOR_BLOB) == blobs)
			continue;
		if (!sample_same(s, p, step, why, why_bytes))
			return false;
	}
	return true;
}

bool sample_check(const struct sample *s, uint64_t step, char *why, size_t why_bytes)
{
	uint64_t at = 0;

	/* Pieces were given places in the order of the tensors, one each, so they ascend. */
	for (uint32_t i = 0; i < s->decl.npiece; i++) {
		const struct table_piece *p = &s->decl.piece[i];

		if (!sample_gap(s, at, p->off, why, why_bytes))
			return false;
		at = p->off + p->len;
	}
	return sample_gap(s, at, s->mem_bytes, why, why_bytes) &&
	       sample_all_same(s, false, step, why, why_bytes);
}

bool sample_check_blobs(const struct sample *s, uint64_t step, char *why, size_t why_bytes)
{
	return sample_all_same(s, true, step, why, why_bytes);
}
