/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_derived.c - tensors that are the rounding of others: written without bytes if and only
 * if every element is it; read as any tensor is, under any mesh and as another type; verified; and
 * damaged with their masters. What an element should be is said by an oracle of its own, which
 * takes the nearest of all 16-bit numbers.
 */
#include <math.h>
#include "ckpt/base/dtype.h"
#include "ckpt/layout/layout.h"
#include "ckpt/move/damage.h"
#include "daemon/part_file.h"
#include "ckpt/table/operand.h"
#include "tests/lib/handmade.h"
#include "tests/unit/test_move_disk.h"

UNIT(.setup = disk_setup, .teardown = disk_teardown);

#define RANKS_MAX 8
#define PAIRS 6
#define TENSORS (2 * PAIRS + 4)

static const char *const meshes[] = { "fsdp=1", "fsdp=2",      "fsdp=3", "dp=2,fsdp=2",
				      "dp=3",	"fsdp=2,tp=2", "tp=3",	 "dp=2,tp=2,fsdp=2" };

/* A state: every tensor whole, row-major. Tensors 2k and 2k + 1 are a master and what is derived of
 * it; those behind them are like any other. */
struct state {
	struct model_tensor {
		char component[16], name[16], of[32];
		uint32_t dtype, cls, ndim, elem;
		uint64_t shape[2], numel;
		uint8_t *value;
		bool equal; /* of one that is derived: not changed on purpose */
	} x[TENSORS];
	uint64_t rng;
};

static double magnitude(uint32_t dtype, uint32_t h)
{
	int fraction_bits = dtype == CKPT_F16 ? 10 : 7, bias = dtype == CKPT_F16 ? 15 : 127;
	int exponent = (int)(h >> fraction_bits), fraction = (int)h & ((1 << fraction_bits) - 1);

	if (!exponent)
		return ldexp(fraction, 1 - bias - fraction_bits);
	return ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static bool is_nan(uint32_t v)
{
	return (v & 0x7fffffff) > 0x7f800000;
}

/* Of what is no NaN. */
static uint16_t oracle(uint32_t dtype, uint32_t v)
{
	uint32_t infinity = dtype == CKPT_F16 ? 0x7c00 : 0x7f80, low = 0, high = infinity;
	uint16_t sign = (uint16_t)(v >> 16 & 0x8000);
	double x, down, up;
	float f;

	v &= 0x7fffffff;
	memcpy(&f, &v, sizeof f);
	x = (double)f;
	if (x >= magnitude(dtype, infinity))
		return (uint16_t)(sign | infinity);
	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (magnitude(dtype, mid) <= x)
			low = mid;
		else
			high = mid;
	}
	down = x - magnitude(dtype, low);
	up = magnitude(dtype, high) - x;
	return (uint16_t)(sign | (down < up || (down == up && !(low & 1)) ? low : high));
}

static uint32_t word_of(const struct model_tensor *x, uint64_t g)
{
	uint32_t v;

	memcpy(&v, x->value + 4 * g, sizeof v);
	return v;
}

static uint16_t half_of(const struct model_tensor *x, uint64_t g)
{
	uint16_t v;

	memcpy(&v, x->value + 2 * g, sizeof v);
	return v;
}

static void tensor_make(struct state *s, uint32_t i, bool large)
{
	struct model_tensor *x = &s->x[i], *m = &s->x[i - i % 2];
	bool paired = i < 2 * PAIRS, derived = paired && i % 2;

	snprintf(x->component, sizeof x->component, paired && !derived ? "optim" : "model");
	snprintf(x->name, sizeof x->name, "%c%u", derived ? 'p' : 'm', i / 2);
	if (!paired)
		snprintf(x->name, sizeof x->name, "other%u", i);
	x->dtype = derived  ? (draw(&s->rng) % 3 ? CKPT_BF16 : CKPT_F16)
		   : paired ? CKPT_F32
			    : (uint32_t[]){ CKPT_F32, CKPT_BF16, CKPT_F16, CKPT_U8 }[i % 4];
	x->cls = derived ? CKPT_DERIVED : CKPT_STABLE;
	x->elem = dtype_bytes(x->dtype);
	x->ndim = 1 + (uint32_t)(draw(&s->rng) % 2);
	x->shape[0] = 1 + draw(&s->rng) % (large ? 3000 : 60);
	x->shape[1] = 1 + draw(&s->rng) % (large ? 1000 : 50);
	if (derived) {
		snprintf(x->of, sizeof x->of, "%s/%s", m->component, m->name);
		x->ndim = m->ndim;
		memcpy(x->shape, m->shape, sizeof x->shape);
	}
	x->numel = x->shape[0] * (x->ndim > 1 ? x->shape[1] : 1);
	x->value = malloc(x->numel * x->elem + 8);
	assert_non_null(x->value);
}

/* Any bits, but of masters no NaN; exponents at both ends of what the derived type has. */
static void master_fill(struct state *s, struct model_tensor *m)
{
	for (uint64_t g = 0; g < m->numel; g++) {
		uint64_t z = draw(&s->rng);
		uint32_t v = (uint32_t)z;

		if (z >> 60 < 12)
			v = (v & 0x807fffff) | (uint32_t)(100 + (z >> 32) % 50) << 23;
		if (z >> 60 == 12)
			v &= 0x807fffff; /* subnormal */
		if (z >> 60 == 13)
			v &= 0xffff0000; /* exact */
		if (z >> 60 == 14)
			v = (v & 0xffff0000) | 0x8000; /* a tie */
		if (is_nan(v))
			v &= 0xff800000;
		memcpy(m->value + 4 * g, &v, 4);
	}
}

static void state_make(struct state *s, uint64_t seed)
{
	*s = (struct state){ .rng = seed };
	for (uint32_t i = 0; i < TENSORS; i++)
		tensor_make(s, i, i / 2 == 2);
	for (uint32_t i = 2 * PAIRS; i < TENSORS; i++)
		for (uint64_t b = 0; b < s->x[i].numel * s->x[i].elem; b++)
			s->x[i].value[b] = (uint8_t)draw(&s->rng);
	for (uint32_t k = 0; k < PAIRS; k++) {
		struct model_tensor *m = &s->x[2 * k], *p = m + 1;

		master_fill(s, m);
		for (uint64_t g = 0; g < p->numel; g++) {
			uint16_t h = oracle(p->dtype, word_of(m, g));

			memcpy(p->value + 2 * g, &h, 2);
		}
		p->equal = true;
	}
}

/* One element is not the rounding of its master. */
static void state_spoil(struct state *s, uint32_t k)
{
	struct model_tensor *m = &s->x[2 * k], *p = m + 1;
	uint64_t g = draw(&s->rng) % p->numel;
	uint32_t how = (uint32_t)(draw(&s->rng) % 3), nan = 0x7fc00001;
	uint16_t h = (uint16_t)(half_of(p, g) ^ (how == 0 ? 0x8000 : 1));

	p->equal = false;
	if (how == 2) { /* what rounding makes of a NaN; still no two NaN are equal */
		h = p->dtype == CKPT_BF16 ? 0x7fc0 : 0x7e00;
		memcpy(m->value + 4 * g, &nan, 4);
	}
	memcpy(p->value + 2 * g, &h, 2);
}

static void state_free(struct state *s)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		free(s->x[i].value);
}

/* --- what ranks hold --- */

struct ranks {
	uint32_t world;
	struct table decl[RANKS_MAX], part[RANKS_MAX];
	struct table all;
	uint8_t *mem[RANKS_MAX], *raw[RANKS_MAX];
	uint64_t bytes[RANKS_MAX];
	struct part_derived derived[RANKS_MAX];
};

static struct layout layout_of(const struct mesh *m, const struct model_tensor *x,
			       struct ckpt_placement *place)
{
	struct layout l = { .place = place };

	for (uint16_t d = 0; d < m->ndim; d++) {
		bool tp = !strcmp(m->name[d], "tp"), fsdp = !strcmp(m->name[d], "fsdp");

		if (fsdp || (tp && x->ndim > 1))
			place[l.nplace++] =
				(struct ckpt_placement)ROW(.how = CKPT_SHARD, .mesh_dim = d,
							   .tensor_dim = tp, .split_factor = 1);
	}
	return l;
}

/* as: the dtype of derived tensors; 0: their own. */
static void rank_declare(struct ranks *j, const struct state *s, const struct mesh *m, uint32_t r,
			 uint32_t as)
{
	struct table_place place = { .name = "memory", .rank = r, .bytes = INT64_MAX };
	struct arena a = { 0 };
	struct ckpt_err err;
	uint32_t mesh;
	uint64_t at = 0;

	assert_ok(table_add_place(&j->decl[r], &place, NULL, &err));
	assert_ok(table_add_mesh(&j->decl[r], m, &mesh, &err));
	for (uint32_t i = 0; i < TENSORS; i++) {
		const struct model_tensor *x = &s->x[i];
		struct ckpt_placement at_place[CKPT_DIMS_MAX];
		struct layout l = layout_of(m, x, at_place);
		struct table_tensor y = ROW(.component = x->component, .name = x->name, .of = x->of,
					    .dtype = x->dtype, .cls = x->cls, .rank = TABLE_NONE,
					    .ndim = x->ndim, .shape = x->shape);
		struct table_piece p = { .rank = r, .off = at };
		uint32_t coord[CKPT_DIMS_MAX];

		if (as && x->cls == CKPT_DERIVED)
			y.dtype = as;
		y.elem_bytes = dtype_bytes(y.dtype);
		l.mesh = mesh;
		assert_true(mesh_coord(m, r, coord));
		assert_ok(table_add_layout(&j->decl[r], &l, &y.layout, &err));
		assert_ok_err(table_add_tensor(&j->decl[r], &y, &p.tensor, &err), &err);
		assert_ok(layout_share(m, &l, x->ndim, x->shape, coord, &a, &p.set));
		assert_ok_err(table_add_piece(&j->decl[r], &p, &err), &err);
		at = align_up(at + p.set.numel * y.elem_bytes, 16);
	}
	j->bytes[r] = align_up(at + 1, 4096);
	j->decl[r].place[0].bytes = j->bytes[r];
	j->mem[r] = aligned_alloc(4096, j->bytes[r]);
	assert_non_null(j->mem[r]);
	memset(j->mem[r], 0xa5, j->bytes[r]);
	assert_ok(table_seal(&j->decl[r], &err));
	arena_free(&a);
}

static void ranks_make(struct ranks *j, const struct state *s, const char *spec, uint32_t as)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err;
	struct arena a = { 0 };
	struct mesh m;

	*j = (struct ranks){ 0 };
	assert_ok(mesh_parse(spec, &a, &m, &err));
	j->world = m.nrank;
	for (uint32_t r = 0; r < j->world; r++) {
		rank_declare(j, s, &m, r, as);
		assert_ok_err(table_merge(&j->all, &j->decl[r], NULL, &list, &err), &err);
	}
	assert_int_equal(list.n, 0);
	assert_ok(table_seal(&j->all, &err));
	arena_free(&a);
}

static void ranks_free(struct ranks *j)
{
	for (uint32_t r = 0; r < j->world; r++) {
		table_free(&j->decl[r]);
		table_free(&j->part[r]);
		free(j->mem[r]);
		free(j->raw[r]);
	}
	table_free(&j->all);
}

/* Every element of a piece: its global index, and its number. */
typedef void element_fn(void *arg, uint64_t g, uint64_t number);

static void elements_of(const struct table_tensor *x, const struct table_piece *p, element_fn *fn,
			void *arg)
{
	uint64_t *list[2] = { NULL, NULL }, n[2] = { 1, 1 };

	for (uint32_t d = 0; d < x->ndim; d++) {
		list[d] = sample_indices(&p->set.dim[d]);
		n[d] = p->set.dim[d].total;
	}
	for (uint64_t i = 0; i < n[0]; i++)
		for (uint64_t k = 0; k < n[1]; k++)
			fn(arg, x->ndim > 1 ? list[0][i] * x->shape[1] + list[1][k] : list[0][i],
			   i * n[1] + k);
	free(list[0]);
	free(list[1]);
}

struct moving {
	const struct model_tensor *x;
	uint8_t *at;
	uint32_t dtype;
	uint64_t wrong;
};

static void element_put(void *arg, uint64_t g, uint64_t number)
{
	struct moving *k = arg;

	memcpy(k->at + number * k->x->elem, k->x->value + g * k->x->elem, k->x->elem);
}

/* Has memory what it should, perhaps as another type? */
static void element_check(void *arg, uint64_t g, uint64_t number)
{
	struct moving *k = arg;
	double want, have;
	uint16_t h;
	float f;

	if (k->dtype == k->x->dtype) {
		k->wrong += memcmp(k->at + number * k->x->elem, k->x->value + g * k->x->elem,
				   k->x->elem) != 0;
		return;
	}
	h = half_of(k->x, g);
	want = magnitude(k->x->dtype, h & 0x7fff);
	if ((h & 0x7fff) == (k->x->dtype == CKPT_F16 ? 0x7c00 : 0x7f80))
		want = INFINITY;
	if ((h & 0x7fff) > (k->x->dtype == CKPT_F16 ? 0x7c00 : 0x7f80))
		want = NAN;
	want = h & 0x8000 ? -want : want;
	memcpy(&f, k->at + 4 * number, 4);
	have = (double)f;
	k->wrong += (bool)(isnan(want) ? !isnan(have) : memcmp(&want, &have, 8) != 0);
}

static void ranks_fill(struct ranks *j, const struct state *s)
{
	for (uint32_t r = 0; r < j->world; r++)
		for (uint32_t i = 0; i < j->decl[r].npiece; i++) {
			const struct table_piece *p = &j->decl[r].piece[i];
			struct moving k = { &s->x[p->tensor], j->mem[r] + p->off, 0, 0 };

			elements_of(&j->decl[r].tensor[p->tensor], p, element_put, &k);
		}
}

static void ranks_check(const struct ranks *j, const struct state *s)
{
	for (uint32_t r = 0; r < j->world; r++)
		for (uint32_t i = 0; i < j->decl[r].npiece; i++) {
			const struct table_piece *p = &j->decl[r].piece[i];
			const struct table_tensor *x = &j->decl[r].tensor[p->tensor];
			struct moving k = { &s->x[p->tensor], j->mem[r] + p->off, x->dtype, 0 };

			elements_of(x, p, element_check, &k);
			if (k.wrong)
				fail_msg("rank %u, %s/%s: %llu of %llu elements are wrong", r,
					 x->component, x->name, (unsigned long long)k.wrong,
					 (unsigned long long)p->set.numel);
		}
}

/* --- saving --- */

static void ranks_stage(struct ranks *j)
{
	for (uint32_t r = 0; r < j->world; r++) {
		const struct plan_opts opts = { .memory_blobs = true };
		const void *src = j->mem[r];
		struct ckpt_err err = { 0 };
		uint64_t bytes;
		struct plan p;
		void *dst;

		assert_ok_err(native_part_table(&j->decl[r], r, &j->part[r], NULL, &err), &err);
		bytes = align_up(MAX(j->part[r].place[0].bytes, 1u), 4096);
		j->raw[r] = aligned_alloc(4096, bytes);
		assert_non_null(j->raw[r]);
		memset(j->raw[r], 0, bytes);
		dst = j->raw[r];
		assert_ok_err(plan_make(&j->decl[r], &j->part[r], &opts, &p, NULL, &err), &err);
		assert_ok(move_copy(&p, &src, &dst, NULL, NULL));
		plan_free(&p);
	}
}

static void ranks_write(struct ranks *j, struct disk *d)
{
	struct native_part part[RANKS_MAX] = { 0 };
	struct native_lineage lineage = { .seq = 7, .parent_step = UINT64_MAX, .tool = "test" };
	struct native_info info = disk_info;
	struct ckpt_err err = { 0 };
	uint64_t len;
	uint8_t id[16];
	void *bytes;
	int fd;

	info.world = j->world;
	for (uint32_t r = 0; r < j->world; r++) {
		const struct part_file_opts how = { .ops = &io_ops_posix,
						    .engine = IO_INLINE,
						    .ret_derived = &j->derived[r] };
		uint64_t most = native_part_bytes_max(&j->part[r], 0);

		snprintf(part[r].name, sizeof part[r].name, "w%04u-%08x-%03u.part", r, 1u, 0u);
		fd = openat(d->fd, part[r].name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		assert_ok_err(
			part_file_write(&how, fd, j->raw[r], &j->part[r], &info, r, &part[r], &err),
			&err);
		assert_true(part[r].file_bytes <= most);
		close(fd);
	}
	assert_ok_err(native_manifest(&info, part, j->world, &lineage, &bytes, &len, id, &err),
		      &err);
	fd = openat(d->fd, "MANIFEST", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_ok(io_pwrite_all(&io_ops_posix, fd, bytes, len, 0));
	close(fd);
	free(bytes);
}

/* A state saved on a mesh; disk_open opens it. */
static void saved(struct ranks *j, const struct state *s, const char *mesh)
{
	ranks_make(j, s, mesh, 0);
	ranks_fill(j, s);
	ranks_stage(j);
	ranks_write(j, &D);
}

/* --- what is in the files --- */

struct judging {
	const struct model_tensor *x, *master;
	uint64_t unequal, first;
};

static void element_judge(void *arg, uint64_t g, uint64_t number)
{
	struct judging *k = arg;
	uint32_t v = word_of(k->master, g);

	if (!is_nan(v) && half_of(k->x, g) == oracle(k->x->dtype, v))
		return;
	if (!k->unequal++)
		k->first = number;
}

/* A piece has no bytes if and only if all of its elements are equal; and the writer counted the
 * others. */
static void pieces_check(const struct ranks *j, const struct state *s, const struct checkpoint *c)
{
	struct part_derived want[RANKS_MAX] = { 0 };
	const struct table *t = &c->table;

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct table_tensor *x = &t->tensor[p->tensor];
		uint32_t n = 0;

		while (strcmp(s->x[n].name, x->name) != 0)
			n++;
		if (x->cls != CKPT_DERIVED) {
			assert_int_equal(p->flags, 0);
			continue;
		}
		struct judging k = { &s->x[n], &s->x[n - 1], 0, 0 };

		elements_of(x, p, element_judge, &k);
		assert_int_equal(p->flags, k.unequal ? 0 : PIECE_DERIVED);
		assert_true(p->fp_known);
		want[p->rank].unequal += k.unequal > 0;
		want[p->rank].elements += k.unequal;
		want[p->rank].pieces += !k.unequal;
		want[p->rank].bytes += k.unequal ? 0 : p->len;
		if (k.unequal && j->derived[p->rank].tensor != TABLE_NONE &&
		    !strcmp(j->part[p->rank].tensor[j->derived[p->rank].tensor].name, x->name))
			assert_int_equal(j->derived[p->rank].element, k.first);
	}
	for (uint32_t r = 0; r < j->world; r++) {
		assert_int_equal(j->derived[r].unequal, want[r].unequal);
		assert_int_equal(j->derived[r].elements, want[r].elements);
		assert_int_equal(j->derived[r].pieces, want[r].pieces);
		assert_int_equal(j->derived[r].bytes, want[r].bytes);
		assert_true((j->derived[r].tensor == TABLE_NONE) == !want[r].unequal);
	}
}

/* The fingerprint of every tensor is that of its elements. */
static void prints_check(const struct state *s, const struct checkpoint *c)
{
	for (uint32_t i = 0; i < c->table.ntensor; i++) {
		const struct table_tensor *x = &c->table.tensor[i];
		uint32_t n = 0;

		while (strcmp(s->x[n].name, x->name) != 0)
			n++;
		assert_true(x->fp_known);
		assert_true(x->fp == fingerprint(s->x[n].value, x->numel, x->elem_bytes, 0));
	}
}

static int verify(const struct checkpoint *c, format_fault_fn *fault, void *arg)
{
	struct ckpt_err err = { 0 };
	struct move_files f;
	uint64_t bytes;
	int e;

	assert_ok_err(move_open(&io_ops_posix, D.fd, c, false, IO_INLINE, &f, &err), &err);
	e = move_verify(&f, NULL, NULL, fault, arg, &bytes, &err);
	move_close(&f);
	return e;
}

static void restore(const struct checkpoint *c, const struct state *s, const char *mesh,
		    uint32_t as)
{
	const struct plan_opts opts = { .casts = true };
	struct ckpt_err err = { 0 };
	struct move_files f;
	struct ranks j;
	struct plan p;

	ranks_make(&j, s, mesh, as);
	assert_ok_err(plan_make(&c->table, &j.all, &opts, &p, NULL, &err), &err);
	assert_ok_err(move_open(&io_ops_posix, D.fd, c, false, IO_AUTO, &f, &err), &err);
	assert_ok_err(move_read(&p, &f, (void *const *)j.mem, NULL, NULL, &err), &err);
	ranks_check(&j, s);
	move_close(&f);
	plan_free(&p);
	ranks_free(&j);
}

/* Each of three thirds, and all of them together every chunk once; a derived piece counts in one of
 * them if its master's bytes are all in it. */
static void verify_thirds(const struct checkpoint *c)
{
	struct move_verified got, sum = { 0 };
	struct ckpt_err err = { 0 };
	struct move_files f;

	assert_ok_err(move_open(&io_ops_posix, D.fd, c, false, IO_INLINE, &f, &err), &err);
	for (uint32_t k = 1; k <= 3; k++) {
		const struct move_subset third = { .how = SUBSET_NTH, .k = k, .n = 3 };

		assert_ok_err(move_verify_some(&f, &third, NULL, NULL, NULL, NULL, &got, &err),
			      &err);
		sum.chunks += got.chunks;
		sum.bytes += got.bytes;
		assert_true(got.pieces <= got.all_pieces);
	}
	assert_int_equal(sum.chunks, got.all_chunks);
	assert_int_equal(sum.bytes, got.all_bytes);
	move_close(&f);
}

/* --- windows, as cat, diff, convert and stats read --- */

struct windowed {
	const struct state *s;
	const struct table *dst;
	uint64_t bytes;
};

static int window_check(void *arg, const struct window *w, const uint8_t *buf)
{
	struct windowed *k = arg;

	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct window_cut *cut = &w->cut[i];
		const struct table_piece *p = &k->dst->piece[cut->piece];
		const struct table_piece part = { .set = cut->set };
		struct moving m = { &k->s->x[p->tensor], (uint8_t *)buf + cut->buf_off,
				    k->s->x[p->tensor].dtype, 0 };

		elements_of(&k->dst->tensor[p->tensor], &part, element_check, &m);
		assert_int_equal(m.wrong, 0);
		k->bytes += cut->len;
	}
	return 0;
}

static void windows(const struct checkpoint *c, const struct state *s, const char *mesh)
{
	struct windowed k = { .s = s };
	struct ckpt_err err = { 0 };
	struct move_files f;
	struct ranks j;

	ranks_make(&j, s, mesh, 0);
	k.dst = &j.all;
	assert_ok_err(move_open(&io_ops_posix, D.fd, c, false, IO_AUTO, &f, &err), &err);
	assert_ok_err(move_windows(&f, &j.all, 16 << 20, 0, window_check, &k, NULL, NULL, &err),
		      &err);
	assert_true(k.bytes > 0);
	move_close(&f);
	ranks_free(&j);
}

TEST(what_is_the_rounding_of_its_master_is_not_written_and_comes_back_on_any_mesh)
{
	uint64_t rng = draw_seed(__func__), derived = 0, unequal = 0;

	for (uint32_t i = 0; i < FEWER(24); i++) {
		const char *from = meshes[draw(&rng) % ARRAY_LEN(meshes)],
			   *to = meshes[draw(&rng) % ARRAY_LEN(meshes)];
		struct checkpoint *c;
		struct state s;
		struct ranks j;

		state_make(&s, draw(&rng));
		for (uint32_t k = 0; i % 3 && k < 1 + i % 3; k++)
			state_spoil(&s, (uint32_t)(draw(&rng) % PAIRS));
		printf("%s -> %s\n", from, to);
		saved(&j, &s, from);
		c = disk_open(&D);
		pieces_check(&j, &s, c);
		prints_check(&s, c);
		assert_int_equal(verify(c, NULL, NULL), 0);
		verify_thirds(c);
		restore(c, &s, to, 0);
		restore(c, &s, to, CKPT_F32);
		windows(c, &s, to);
		for (uint32_t r = 0; r < j.world; r++) {
			derived += j.derived[r].pieces;
			unequal += j.derived[r].unequal;
		}
		checkpoint_free(c);
		ranks_free(&j);
		state_free(&s);
		disk_clear(&D);
	}
	assert_true(derived >= FEWER(24) && unequal > 0);
}

TEST(a_part_that_is_written_again_is_the_same_part)
{
	uint64_t rng = draw_seed(__func__), most;
	struct state s;
	struct ranks j;
	struct checkpoint *c;

	state_make(&s, draw(&rng));
	saved(&j, &s, "fsdp=2");
	disk_clear(&D);
	ranks_write(&j, &D); /* its tables say what was derived */
	c = disk_open(&D);
	pieces_check(&j, &s, c);
	checkpoint_free(c);
	/* Meanwhile one has changed: it is written now. */
	for (uint32_t i = 0; i < j.part[0].npiece; i++)
		if (j.part[0].piece[i].flags & PIECE_DERIVED) {
			j.raw[0][j.part[0].piece[i].off] ^= 1;
			break;
		}
	disk_clear(&D);
	most = j.derived[0].unequal;
	ranks_write(&j, &D);
	assert_int_equal(j.derived[0].unequal, most + 1);
	c = disk_open(&D);
	assert_int_equal(verify(c, NULL, NULL), 0);
	checkpoint_free(c);
	ranks_free(&j);
	state_free(&s);
}

/* Of what is the rounding nothing was copied: bytes of another step lie there. */
static uint32_t pieces_trust(struct ranks *j)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < j->world; r++)
		for (uint32_t i = 0; i < j->part[r].npiece; i++) {
			struct table_piece *p = &j->part[r].piece[i];

			if (!(p->flags & PIECE_DERIVED))
				continue;
			p->flags = PIECE_TRUSTED;
			memset(j->raw[r] + p->off, 0xa5, p->len);
			n++;
		}
	return n;
}

TEST(a_piece_that_is_trusted_is_the_rounding_whatever_its_bytes_are)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(6); i++) {
		struct checkpoint *c;
		struct state s;
		struct ranks j;
		uint32_t n, trusted = 0;

		state_make(&s, draw(&rng));
		state_spoil(&s, (uint32_t)(draw(&rng) % PAIRS));
		saved(&j, &s, meshes[draw(&rng) % ARRAY_LEN(meshes)]);
		disk_clear(&D);
		n = pieces_trust(&j);
		ranks_write(&j, &D);
		c = disk_open(&D);
		for (uint32_t k = 0; k < c->table.npiece; k++) {
			uint32_t flags = c->table.piece[k].flags;

			assert_true(flags == 0 || flags == (PIECE_DERIVED | PIECE_TRUSTED));
			trusted += flags != 0;
		}
		assert_int_equal(trusted, n);
		prints_check(&s, c);
		assert_int_equal(verify(c, NULL, NULL), 0);
		restore(c, &s, meshes[draw(&rng) % ARRAY_LEN(meshes)], 0);
		checkpoint_free(c);
		ranks_free(&j);
		state_free(&s);
		disk_clear(&D);
	}
}

/* Never a step with bytes that nobody has copied. */
TEST(a_piece_that_is_trusted_and_has_no_master_is_not_written)
{
	const struct part_file_opts how = { .ops = &io_ops_posix, .engine = IO_INLINE };
	struct native_info info = disk_info;
	struct native_part part = { .name = "w0000-00000001-000.part" };
	struct ckpt_err err = { 0 };
	struct state s;
	struct ranks j;
	uint32_t i = 0;
	int fd;

	state_make(&s, draw_seed(__func__));
	saved(&j, &s, "fsdp=2");
	disk_clear(&D);
	info.world = j.world;
	while (j.part[0].tensor[j.part[0].piece[i].tensor].cls != CKPT_STABLE)
		i++;
	j.part[0].piece[i].flags = PIECE_TRUSTED;
	fd = openat(D.fd, part.name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(part_file_write(&how, fd, j.raw[0], &j.part[0], &info, 0, &part, &err),
			 -EINVAL);
	assert_non_null(strstr(err.msg, "a piece without bytes has no master before it"));
	close(fd);
	ranks_free(&j);
	state_free(&s);
	disk_clear(&D);
}

/* fd's bytes; malloc'ed. */
static uint8_t *file_read(int fd, uint64_t *ret_n)
{
	uint8_t *b;

	assert_ok(io_ops_posix.size(NULL, fd, ret_n));
	b = malloc(*ret_n + 1);
	assert_non_null(b);
	assert_ok(io_pread_all(&io_ops_posix, fd, b, *ret_n, 0));
	return b;
}

static int file_new(const char *name)
{
	int fd = openat(D.fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

/* In two halves, the second behind a walk that somebody else made meanwhile. */
static void halves_are_the_whole(struct ranks *j, uint32_t r)
{
	struct native_info info = disk_info;
	struct part_file_opts how = { .ops = &io_ops_posix, .engine = IO_INLINE };
	cleanup_table struct table beside = { 0 };
	struct native_part part[2];
	struct ckpt_err err;
	uint8_t *file[2];
	uint64_t n[2];
	int fd[2] = { file_new("whole.part"), file_new("halves.part") };

	info.world = j->world;
	assert_ok(table_twin(&j->part[r], &beside));
	assert_ok_err(walk_open(&(struct walk_opts){ .data_off = NATIVE_DATA_OFF }, &j->part[r], r,
				&how.walk, &err),
		      &err);
	assert_ok_err(part_file_data(&how, fd[1], j->raw[r], &beside, &info, r, &err), &err);
	assert_ok_err(
		part_file_write(&how, fd[0], j->raw[r], &j->part[r], &info, r, &part[0], &err),
		&err);
	assert_ok_err(part_file_rest(&how, fd[1], j->raw[r], &j->part[r], &info, r, &part[1], &err),
		      &err);
	for (uint32_t i = 0; i < 2; i++) {
		file[i] = file_read(fd[i], &n[i]);
		close(fd[i]);
	}
	assert_int_equal(n[0], n[1]);
	assert_memory_equal(file[0], file[1], n[0]);
	assert_memory_equal(&part[0].root, &part[1].root, sizeof part[0].root);
	assert_int_equal(part[0].file_bytes, part[1].file_bytes);
	free(file[0]);
	free(file[1]);
	walk_close(how.walk);
}

TEST(a_part_that_is_written_beside_its_walk_is_the_same_part)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(16); i++) {
		struct state s;
		struct ranks j;

		state_make(&s, draw(&rng));
		saved(&j, &s, meshes[i % ARRAY_LEN(meshes)]);
		for (uint32_t r = 0; r < j.world; r++)
			halves_are_the_whole(&j, r);
		ranks_free(&j);
		state_free(&s);
		disk_clear(&D);
	}
}

/* --- damage --- */

/* The bytes are a master's, and called by its name. */
static void told(void *arg, const struct format_fault *f)
{
	if (!strcmp(f->kind, "checksum"))
		assert_true(!strncmp(f->tensor, "optim/m", 7) || strstr(f->tensor, "other"));
	damage_fault(arg, f);
}

/* A byte in the bytes of piece i becomes another one. */
static void spoil_byte(const struct checkpoint *c, uint32_t i)
{
	struct piece_bytes b = table_piece_bytes(&c->table, &c->table.piece[i]);
	const struct format_file *f = &c->file[c->table.piece[i].place];
	uint64_t chunk = b.off >> f->chunk_log2;
	uint64_t off = f->chunk[chunk].off + (b.off - (chunk << f->chunk_log2));
	int fd = openat(D.fd, f->name, O_RDWR | O_CLOEXEC);
	uint8_t x = 0;

	assert_true(fd >= 0 && pread(fd, &x, 1, (off_t)off) == 1);
	x ^= 4;
	assert_true(pwrite(fd, &x, 1, (off_t)off) == 1);
	close(fd);
}

TEST(damage_of_a_master_is_damage_of_what_is_derived_of_it)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t round = 0; round < FEWER(6); round++) {
		struct damage d = { 0 };
		struct ckpt_err err;
		struct checkpoint *c;
		uint32_t hit = 0, spared = 0, piece = 0;
		char why[400];
		struct state s;
		struct ranks j;

		state_make(&s, draw(&rng));
		saved(&j, &s, "fsdp=2");
		c = disk_open(&D);
		do
			piece = (uint32_t)(draw(&rng) % c->table.npiece);
		while (!(c->table.piece[piece].flags & PIECE_DERIVED));
		spoil_byte(c, piece);
		assert_int_equal(verify(c, told, &d), -EBADMSG);
		assert_ok(damage_settle(&d, c, &err));
		for (uint32_t i = 0; i < c->table.ntensor; i++) {
			const struct table_tensor *x = &c->table.tensor[i];
			uint32_t m = table_master(&c->table, x);
			bool bad = damage_of(&d, &c->table, i, why, sizeof why);

			if (m != TABLE_NONE)
				assert_int_equal(bad, damage_of(&d, &c->table, m, why, sizeof why));
			hit += bad;
			spared += !bad;
		}
		assert_true(
			damage_of(&d, &c->table, c->table.piece[piece].tensor, why, sizeof why));
		assert_true(hit >= 2 && spared >= 2);
		damage_free(&d);
		checkpoint_free(c);
		ranks_free(&j);
		state_free(&s);
		disk_clear(&D);
	}
}

TEST(a_fingerprint_of_a_derived_piece_that_is_wrong_is_found)
{
	uint64_t rng = draw_seed(__func__);
	struct damage d = { 0 };
	struct checkpoint *c;
	struct ckpt_err err;
	char why[400];
	uint32_t hit = 0;
	struct state s;
	struct ranks j;

	state_make(&s, draw(&rng));
	saved(&j, &s, "dp=2,fsdp=2");
	c = disk_open(&D);
	for (uint32_t i = 0; i < c->table.npiece; i++)
		if (c->table.piece[i].flags & PIECE_DERIVED) {
			c->table.piece[i].fp++;
			hit = c->table.piece[i].tensor;
			break;
		}
	assert_int_equal(verify(c, told, &d), -EBADMSG);
	assert_ok(damage_settle(&d, c, &err));
	for (uint32_t i = 0; i < c->table.ntensor; i++)
		assert_int_equal(damage_of(&d, &c->table, i, why, sizeof why), i == hit);
	damage_free(&d);
	checkpoint_free(c);
	ranks_free(&j);
	state_free(&s);
}

/* Else one of its elements could lie in two chunks. */
TEST(a_master_that_begins_inside_an_element_is_the_twin_of_nothing)
{
	static const uint64_t origin[1] = { 0 }, six[1] = { 6 };

	for (uint64_t off = 0; off < 4; off += 2) {
		const struct handmade_tensor master = ROW(.component = "o", .name = "w", .of = "",
							  .dtype = CKPT_F32, .layout = TABLE_NONE,
							  .ndim = 1, .shape = { 6 }),
					     rounded =
						     ROW(.component = "m", .name = "w", .of = "o/w",
							 .dtype = CKPT_BF16, .cls = CKPT_DERIVED,
							 .layout = TABLE_NONE, .ndim = 1,
							 .shape = { 6 });
		struct ckpt_err err = { 0 };
		struct source_dir dir;
		struct checkpoint *c;
		struct handmade p;
		struct table t;
		uint32_t m, h;

		handmade_begin(&p, "demo", 5, 1, 0);
		handmade_table(&t, NULL);
		m = handmade_tensor(&t, &master);
		h = handmade_tensor(&t, &rounded);
		handmade_piece(&t, 0, m, off, 0, origin, six);
		handmade_piece(&t, 0, h, 1 << 20, PIECE_DERIVED, origin, six);
		(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
		assert_ok_err(handmade_commit(&p, &err), &err);
		dir = memdir_source(&p.d);
		assert_int_equal(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err),
				 off ? -EPROTO : 0);
		if (off)
			assert_non_null(strstr(err.msg, "derived from nothing in this file"));
		checkpoint_free(c);
		handmade_free(&p);
	}
}
