/* SPDX-License-Identifier: Apache-2.0 */
/* handmade.c - see handmade.h. */
#include "tests/lib/row.h"
#include "tests/lib/handmade.h"
#include "tests/lib/sample.h"
#include "ckpt/base/dtype.h"
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

/* As docs/FORMAT.md defines the rounding; by comparing with the halfway point, not by adding to
 * it. */
static uint16_t rounded(uint32_t up, uint32_t rest, uint32_t half)
{
	return (uint16_t)(up + (rest > half || (rest == half && up & 1)));
}

uint16_t handmade_bf16(uint32_t bits)
{
	return rounded(bits >> 16, bits & 0xffff, 0x8000);
}

uint16_t handmade_f16(uint32_t bits)
{
	uint32_t sign = bits >> 16 & 0x8000, mantissa = (bits & 0x7fffff) | 0x800000, shift;
	int e = (int)(bits >> 23 & 0xff) - 127;

	if (e > 15)
		return (uint16_t)(sign | 0x7c00);
	if (e >= -14)
		return (uint16_t)(sign |
				  rounded(((uint32_t)(e + 15) << 10) + (mantissa >> 13 & 0x3ff),
					  mantissa & 0x1fff, 0x1000));
	shift = (uint32_t)(13 + (-14 - e));
	if (shift > 25)
		return (uint16_t)sign;
	return (uint16_t)(sign | rounded(mantissa >> shift, mantissa & ((1u << shift) - 1),
					 1u << (shift - 1)));
}

static uint64_t mixed(const char *component, const char *name, uint64_t g)
{
	char key[256];
	struct hash128 h;
	uint64_t x;

	snprintf(key, sizeof key, "%s/%s", component, name);
	h = hash128(key, strlen(key));
	memcpy(&x, h.b, sizeof x);
	return sample_mix(x + g * UINT64_C(0x9e3779b97f4a7c15));
}

/* Of all magnitudes that both F16 and BF16 show something of, and no NaN. */
static uint32_t float_of(const char *component, const char *name, uint64_t g)
{
	uint64_t x = mixed(component, name, g);

	return (uint32_t)((x & 0x807fffff) | (uint64_t)(100 + x / 7 % 44) << 23);
}

void handmade_element(const struct table *t, const struct table_tensor *x, uint64_t g, uint8_t *ret)
{
	uint32_t m = x->cls == CKPT_DERIVED ? table_find_key(t, x->of) : TABLE_NONE, v;

	if (m != TABLE_NONE) {
		v = float_of(t->tensor[m].component, t->tensor[m].name, g);
		v = x->dtype == CKPT_F16 ? handmade_f16(v) : handmade_bf16(v);
		ret[0] = (uint8_t)v;
		ret[1] = (uint8_t)(v >> 8);
		return;
	}
	if (x->dtype == CKPT_F32) {
		le32 f = le32_of(float_of(x->component, x->name, g));

		memcpy(ret, &f, sizeof f);
		return;
	}
	for (uint32_t i = 0; i < x->elem_bytes; i++)
		ret[i] = (uint8_t)mixed(x->component, x->name, 16 * g + i);
}

/* Row-major over the set, to dense; and to where it lies. */
static void piece_fill(const struct table *t, const struct table_piece *p, uint8_t *dense,
		       uint8_t *raw)
{
	const struct table_tensor *x = &t->tensor[p->tensor];
	uint64_t *list[CKPT_DIMS_MAX];

	for (uint32_t d = 0; d < x->ndim; d++)
		list[d] = sample_indices(&p->set.dim[d]);
	for (uint64_t i = 0; i < p->set.numel; i++) {
		uint64_t g = 0, at[CKPT_DIMS_MAX], rest = i, to = i;

		for (uint32_t d = x->ndim; d-- > 0;) {
			at[d] = rest % p->set.dim[d].total;
			rest /= p->set.dim[d].total;
		}
		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + list[d][at[d]];
		if (p->stride) {
			to = 0;
			for (uint32_t d = 0; d < x->ndim; d++)
				to += at[d] * (uint64_t)p->stride[d];
		}
		handmade_element(t, x, g, dense + i * x->elem_bytes);
		if (!(p->flags & PIECE_DERIVED))
			memcpy(raw + p->off + to * x->elem_bytes, dense + i * x->elem_bytes,
			       x->elem_bytes);
	}
	for (uint32_t d = 0; d < x->ndim; d++)
		free(list[d]);
}

void handmade_begin(struct handmade *p, const char *job, uint64_t step, uint32_t world,
		    uint32_t try)
{
	uint64_t seed[2] = { step, try };
	struct hash128 h = hash128(seed, sizeof seed);

	*p = (struct handmade)
		ROW(.info = ROW(.job = job, .step = step, .generation = 3, .world = world,
				.wall_ns = 1700000000000000000 + step),
		    .line = ROW(.seq = step, .parent_step = UINT64_MAX, .tool = "parts 1"));
	memcpy(p->info.uuid, h.b, sizeof p->info.uuid);
}

static void chunks_place(const struct handmade *p, const struct table *t, struct chunk *chunk,
			 uint64_t n, uint64_t *end)
{
	uint64_t at = CONTAINER_BLOCK;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t room = t->place[0].bytes - (i << CHUNK_LOG2);

		if (!chunk[i].raw_len)
			continue;
		at = align_up(at + p->gap, CHUNK_ALIGN);
		chunk[i].off = at;
		room = MIN(room, UINT64_C(1) << CHUNK_LOG2);
		chunk[i].raw_len = (uint32_t)MIN(room, chunk[i].raw_len + p->longer);
		chunk[i].stored_len = chunk[i].raw_len;
		at += chunk[i].raw_len;
	}
	*end = at;
}

static void part_write(struct handmade *p, uint32_t i, struct table *t)
{
	struct native_part *part = &p->part[i];
	uint64_t n, end, len, raw_bytes = t->place[0].bytes;
	uint8_t *raw = calloc(1, raw_bytes + 1), *file;
	struct chunk *chunk;
	struct ckpt_err err = { 0 };
	struct ck_head head;
	void *tail;
	int r;

	assert(raw);
	for (uint32_t k = 0; k < t->npiece; k++) {
		struct table_piece *q = &t->piece[k];
		uint32_t elem = t->tensor[q->tensor].elem_bytes;
		uint8_t *dense = malloc(q->set.numel * elem);

		assert(dense);
		piece_fill(t, q, dense, raw);
		q->fp_known = !q->fp;
		q->fp = q->fp_known ? memdir_fingerprint(t, q, dense) : 0;
		free(dense);
	}
	r = chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &n, &end, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	chunks_place(p, t, chunk, n, &end);
	for (uint64_t k = 0; k < n; k++)
		if (chunk[k].raw_len)
			chunk[k].raw_hash = hash128(raw + (k << CHUNK_LOG2), chunk[k].raw_len);
	native_part_head(&p->info, part->rank, &head);
	r = native_part_tail(&p->info, part->rank, t, chunk, n, end, &tail, &len, &part->root,
			     &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	part->file_bytes = end + len;
	file = calloc(1, part->file_bytes);
	assert(file);
	memcpy(file, &head, sizeof head);
	for (uint64_t k = 0; k < n; k++)
		memcpy(file + chunk[k].off, raw + (k << CHUNK_LOG2), chunk[k].raw_len);
	memcpy(file + end, tail, len);
	(void)memdir_add(&p->d, part->name, file, part->file_bytes);
	free(file);
	free(tail);
	free(chunk);
	free(raw);
}

uint32_t handmade_add(struct handmade *p, uint32_t rank, uint32_t kind, uint32_t group,
		      struct table *t, const uint32_t *source, uint32_t nsource)
{
	struct native_part from[HANDMADE_PARTS_MAX], *part = &p->part[p->n];
	struct native_role role = {
		.kind = kind, .group = group, .nsource = nsource, .source = from
	};
	uint64_t end = 0;

	assert(p->n < HANDMADE_PARTS_MAX);
	for (uint32_t i = 0; i < nsource; i++)
		from[i] = p->part[source[i]];
	for (uint32_t i = 0; i < t->npiece; i++)
		end = MAX(end, t->piece[i].off + t->piece[i].len);
	t->place[0].bytes = end;
	t->place[0].rank = rank;
	assert(!table_seal(t, NULL));
	p->table[p->n] = *t;
	*part = (struct native_part)ROW(.rank = rank, .kind = kind, .group = group,
					.step = p->info.step, .generation = p->info.generation,
					.raw_bytes = end, .table = &p->table[p->n]);
	p->info.role = &role;
	native_part_uuid(&p->info, rank, part->uuid);
	snprintf(part->name, sizeof part->name, "w%04u-%02x%02x%02x%02x-%03u.part", rank,
		 p->info.uuid[0], p->info.uuid[1], p->info.uuid[2], p->info.uuid[3], p->n);
	part_write(p, p->n, &p->table[p->n]);
	p->info.role = NULL;
	return p->n++;
}

uint32_t handmade_link(struct handmade *p, const struct handmade *from, uint32_t i)
{
	const struct native_part *part = &from->part[i];
	const struct memdir_file *f = memdir_find((struct memdir *)(uintptr_t)&from->d, part->name);

	assert(p->n < HANDMADE_PARTS_MAX && f);
	(void)memdir_add(&p->d, part->name, f->bytes, f->len);
	p->part[p->n] = *part;
	return p->n++;
}

int handmade_commit(struct handmade *p, struct ckpt_err *err)
{
	uint8_t id[16];
	uint64_t len;
	void *bytes;
	int r = native_manifest(&p->info, p->part, p->n, &p->line, &bytes, &len, id, err);

	if (r < 0)
		return r;
	(void)memdir_add(&p->d, NATIVE_MANIFEST, bytes, len);
	free(bytes);
	return 0;
}

void handmade_free(struct handmade *p)
{
	memdir_clear(&p->d);
	for (uint32_t i = 0; i < p->n; i++)
		if (p->part[i].table == &p->table[i])
			table_free(&p->table[i]);
	p->n = 0;
}

struct memdir_file *handmade_file(struct handmade *p, uint32_t i)
{
	return memdir_find(&p->d, p->part[i].name);
}

void handmade_spill(const struct handmade *p, const char *dir)
{
	char path[PATH_MAX];

	assert(!mkdir(dir, 0777));
	for (uint32_t i = 0; i < p->d.n; i++) {
		const struct memdir_file *f = &p->d.file[i];
		FILE *to;
		size_t n;

		snprintf(path, sizeof path, "%s/%s", dir, f->name);
		to = fopen(path, "w");
		assert(to);
		n = fwrite(f->bytes, 1, f->len, to);
		assert(n == f->len);
		assert(!fclose(to));
	}
}

/* --- tables --- */

void handmade_table(struct table *t, const char *mesh)
{
	struct table_place place = { .name = "part", .bytes = (uint64_t)1 << 40 };
	struct arena a = { 0 };
	struct mesh m;
	int r;

	*t = (struct table){ 0 };
	r = table_add_place(t, &place, NULL, NULL);
	assert(!r);
	if (!mesh)
		return;
	r = mesh_parse(mesh, &a, &m, NULL);
	assert(!r);
	r = table_add_mesh(t, &m, NULL, NULL);
	assert(!r);
	arena_free(&a);
}

uint32_t handmade_layout(struct table *t, const char *placements)
{
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct layout l;
	uint32_t id;
	int r = layout_parse(placements, &t->mesh[0], &a, &l, &err);

	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	r = table_add_layout(t, &l, &id, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	arena_free(&a);
	return id;
}

uint32_t handmade_tensor(struct table *t, const struct handmade_tensor *x)
{
	struct table_tensor y =
		ROW(.component = x->component, .name = x->name, .of = x->of ? x->of : "",
		    .dtype = x->dtype, .cls = x->cls, .role = x->role, .layout = x->layout,
		    .flags = x->flags, .media = x->media, .made = x->made, .rank = x->rank_ - 1,
		    .ndim = x->ndim, .shape = x->shape);
	struct ckpt_err err = { 0 };
	uint32_t id;
	int r = table_add_tensor(t, &y, &id, &err);

	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	return id;
}

void handmade_piece(struct table *t, uint32_t rank, uint32_t tensor, uint64_t off, uint32_t flags,
		    const uint64_t *start, const uint64_t *extent)
{
	struct table_piece p = {
		.tensor = tensor, .rank = rank, .off = off, .flags = (uint16_t)flags
	};
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	int r = indexset_box(t->tensor[tensor].ndim, start, extent, &a, &p.set);

	assert(!r);
	r = table_add_piece(t, &p, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	assert(!r);
	arena_free(&a);
}
