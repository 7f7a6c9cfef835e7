/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_rows.c - random tables of random product sets, planned and carried out byte by byte,
 * against a loop over elements. Nothing of the planner is shared: the truth is kept in arrays of
 * booleans.
 */
#include "tests/unit/test_layout_naive.h"
#include "ckpt/base/dtype.h"
#include "ckpt/plan/plan.h"
#include "tests/lib/row.h"

#define CASES 6000
#define EXTENT_MAX 9
#define PIECES_MAX 40
#define PLACE_BYTES (1u << 18)

static const uint32_t dtypes[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_C128 };

/* A product set, twice: as booleans per dimension and as an index set. */
struct set {
	bool has[4][EXTENT_MAX * 8];
	struct indices dim[4];
	struct indexset set;
};

struct scene {
	struct arena arena;
	uint32_t ndim, elem, dtype;
	uint64_t shape[4], numel;
	struct table src, dst;
	struct set src_set[PIECES_MAX],
		dst_set[PIECES_MAX]; /* in the order of table.piece after sealing: by tag */
	uint32_t nsrc, ndst;
};

static struct indices list_make(const bool *has, uint64_t n, struct arena *a)
{
	struct run run[EXTENT_MAX * 8];
	struct indices x = { 0 };

	for (uint64_t i = 0, len; i < n; i += len) {
		struct run *last = x.n ? &run[x.n - 1] : NULL;

		for (len = 0; i + len < n && has[i + len]; len++)
			;
		if (!len) {
			len = 1;
			continue;
		}
		x.total += len;
		if (last && last->len == len &&
		    (last->count == 1 || i == last->start + last->count * last->stride)) {
			last->stride = last->count == 1 ? i - last->start : last->stride;
			last->count++;
		} else {
			run[x.n++] = (struct run){ i, len, len, 1 };
		}
	}
	x.run = arena_dup(a, run, x.n * sizeof *run);
	assert_non_null(x.run);
	return x;
}

static void set_finish(struct scene *k, struct set *s)
{
	s->set = (struct indexset){ .ndim = k->ndim, .numel = 1, .dim = s->dim };
	for (uint32_t d = 0; d < k->ndim; d++) {
		s->dim[d] = list_make(s->has[d], k->shape[d], &k->arena);
		s->set.numel *= s->dim[d].total;
	}
}

static bool set_has(const struct scene *k, const struct set *s, uint64_t g)
{
	for (uint32_t d = k->ndim; d-- > 0; g /= k->shape[d])
		if (!s->has[d][g % k->shape[d]])
			return false;
	return true;
}

static void set_random(struct scene *k, struct set *s)
{
	for (uint32_t d = 0; d < k->ndim; d++) {
		uint32_t n = (uint32_t)k->shape[d], a = naive_below(n),
			 b = a + 1 + naive_below(n - a), how = naive_below(4);

		for (uint32_t i = 0; i < n; i++)
			s->has[d][i] = how == 0 || (how == 1   ? naive_below(2)
						    : how == 2 ? i % 3 == a % 3
							       : i >= a && i < b);
	}
	set_finish(k, s);
}

/* A grid of pieces that has every element once: each dimension's indices fall into classes. */
static void grid_make(struct scene *k)
{
	uint32_t part[4] = { 1, 1, 1, 1 }, cls[4][EXTENT_MAX * 8], at[4] = { 0 };

	for (uint32_t d = 0; d < k->ndim; d++) {
		uint32_t n = (uint32_t)k->shape[d], how = naive_below(3);

		part[d] = 1 + naive_below(k->ndim > 2 ? 2 : 4);
		for (uint32_t i = 0; i < n; i++)
			cls[d][i] = how == 0   ? naive_below(part[d])
				    : how == 1 ? i % part[d]
					       : i * part[d] / n;
	}
	for (;;) {
		struct set *s = &k->src_set[k->nsrc];
		uint32_t d;

		for (d = 0; d < k->ndim; d++)
			for (uint32_t i = 0; i < k->shape[d]; i++)
				s->has[d][i] = cls[d][i] == at[d];
		set_finish(k, s);
		if (s->set.numel)
			k->nsrc++;
		for (d = 0; d < k->ndim && ++at[d] == part[d]; d++)
			at[d] = 0;
		if (d == k->ndim)
			return;
	}
}

/* Strides of a memory order of its own, with gaps; NULL: row-major. */
static const int64_t *strides_random(const struct set *s, uint32_t ndim, int64_t *stride)
{
	uint32_t order[4] = { 0, 1, 2, 3 };
	int64_t step = 1;

	if (naive_below(3))
		return NULL;
	for (uint32_t i = ndim; i > 1 && naive_below(2); i--) {
		uint32_t j = naive_below(i), t = order[j];

		order[j] = order[i - 1];
		order[i - 1] = t;
	}
	for (uint32_t i = ndim; i-- > 0;) {
		stride[order[i]] = step;
		step *= (int64_t)s->dim[order[i]].total;
		if (!naive_below(3))
			step += 1 + naive_below(3);
	}
	return stride;
}

/* fp carries which set a piece has, as sealing sorts the pieces. derived: some pieces are. */
static void table_fill(struct scene *k, struct table *t, const struct set *s, uint32_t n,
		       bool derived)
{
	struct table_tensor x =
		ROW(.component = "c", .name = "x", .dtype = k->dtype, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = k->ndim, .shape = k->shape);
	uint64_t end[2] = { 0, 0 };
	struct ckpt_err e;

	assert_int_equal(table_add_tensor(t, &x, NULL, &e), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(table_add_place(t,
						 &(struct table_place){ .name = i ? "b" : "a",
									.bytes = PLACE_BYTES },
						 NULL, &e),
				 0);
	for (uint32_t i = 0; i < n; i++) {
		int64_t stride[4];
		struct table_piece p = {
			.place = naive_below(2), .set = s[i].set, .fp = i, .fp_known = true
		};

		p.stride = strides_random(&s[i], k->ndim, stride);
		p.off = end[p.place] + naive_below(50);
		p.from = p.off;
		if (derived && k->dtype == CKPT_BF16 && naive_below(2))
			p.flags = PIECE_DERIVED;
		if (table_add_piece(t, &p, &e) < 0)
			fail_msg("%s", e.msg);
		if (s[i].set.numel)
			end[p.place] = p.off + t->piece[t->npiece - 1].len * (p.flags ? 2 : 1);
	}
	assert_int_equal(table_seal(t, &e), 0);
}

static uint8_t truth(uint64_t g, uint32_t byte)
{
	return (uint8_t)((g * 0x9e3779b97f4a7c15u + byte * 0x12345u) >> 40 ^ (g + byte));
}

/* Where an element lies, or UINT64_MAX. */
static uint64_t locate(const struct scene *k, const struct table_piece *p, const struct set *s,
		       uint64_t g)
{
	uint64_t off = 0, step = 1;

	if (!set_has(k, s, g))
		return UINT64_MAX;
	for (uint32_t d = k->ndim; d-- > 0; g /= k->shape[d]) {
		uint64_t pos = 0;

		for (uint64_t i = 0; i < g % k->shape[d]; i++)
			pos += s->has[d][i];
		off += pos * (p->stride ? (uint64_t)p->stride[d] : step);
		step *= s->dim[d].total;
	}
	return p->flags ? p->from + off * 4 : p->off + off * k->elem;
}

static void scene_make(struct scene *k)
{
	k->dtype = dtypes[naive_below(5)];
	k->elem = dtype_bytes(k->dtype);
	k->ndim = naive_below(5);
	k->numel = 1;
	for (uint32_t d = 0; d < k->ndim; d++) {
		k->shape[d] = 1 + naive_below(k->ndim == 1  ? EXTENT_MAX * 8
					      : k->ndim > 2 ? 6
							    : EXTENT_MAX);
		k->numel *= k->shape[d];
	}
	grid_make(k);
	if (!naive_below(4))
		for (uint32_t i = naive_below(4); i > 0; i--)
			set_random(k, &k->src_set[k->nsrc++]); /* overlaps */
	if (k->nsrc > 1 && !naive_below(4)) {		       /* perhaps a hole */
		struct set *gone = &k->src_set[naive_below(k->nsrc--)];

		*gone = k->src_set[k->nsrc];
		set_finish(k, gone);
	}
	k->ndst = 1 + naive_below(3);
	for (uint32_t i = 0; i < k->ndst; i++)
		set_random(k, &k->dst_set[i]);
	table_fill(k, &k->src, k->src_set, k->nsrc, true);
	table_fill(k, &k->dst, k->dst_set, k->ndst, false);
}

static void scene_free(struct scene *k)
{
	table_free(&k->src);
	table_free(&k->dst);
	arena_free(&k->arena);
}

static uint64_t missing_count(const struct scene *k, const struct set *want, uint64_t *ret_first)
{
	uint64_t n = 0;

	for (uint64_t g = k->numel; g-- > 0;) {
		bool found = !set_has(k, want, g);

		for (uint32_t i = 0; i < k->nsrc && !found; i++)
			found = set_has(k, &k->src_set[i], g);
		if (!found) {
			n++;
			*ret_first = g;
		}
	}
	return n;
}

static void missing_line(const struct scene *k, const struct table_piece *p, char *buf,
			 size_t bytes)
{
	const struct set *want = &k->dst_set[p->fp];
	uint64_t first = 0, at[4], n = missing_count(k, want, &first);
	size_t used;

	*buf = 0;
	if (!n)
		return;
	for (uint32_t d = k->ndim; d-- > 0; first /= k->shape[d])
		at[d] = first % k->shape[d];
	used = (size_t)snprintf(
		buf, bytes,
		"c/x: %llu of the %llu elements of %s are in no piece of the checkpoint, the first is [",
		(unsigned long long)n, (unsigned long long)want->set.numel, p->place ? "b" : "a");
	for (uint32_t d = 0; d < k->ndim; d++)
		used += (size_t)snprintf(buf + used, bytes - used, "%s%llu", d ? ", " : "",
					 (unsigned long long)at[d]);
	snprintf(buf + used, bytes - used, "]");
}

static uint8_t src_mem[2][PLACE_BYTES], dst_mem[2][PLACE_BYTES], dst_hits[2][PLACE_BYTES];

static void row_copy(const struct plan_op *op, const struct plan_row *r)
{
	uint64_t n = r->elem ? r->n : 1, len = r->elem ? r->elem : r->len;

	assert_int_equal(r->len, n * len);
	for (uint64_t i = 0; i < n; i++)
		for (uint64_t b = 0; b < len; b++) {
			/* Of F32 elements that are BF16 numbers rounding leaves the upper half. */
			uint64_t from = r->src_off + i * r->src_stride + b + (r->round ? 2 : 0),
				 to = r->dst_off + i * r->dst_stride + b;

			assert_true(from >= op->src_lo && from < op->src_hi);
			dst_mem[op->dst_place][to] = src_mem[op->src_place][from];
			dst_hits[op->dst_place][to]++;
		}
}

static void op_run(const struct plan *p, const struct plan_op *op)
{
	struct plan_cursor c;
	struct plan_row r;
	uint64_t bytes = 0, end = 0;

	plan_rows(p, op, &c);
	while (plan_row_next(&c, &r)) {
		if (plan_rows_ascend(p, op)) {
			assert_true(r.src_off >= end);
			end = r.src_off + plan_row_src_bytes(&r);
		}
		bytes += r.len;
		row_copy(op, &r);
	}
	assert_false(plan_row_next(&c, &r));
	assert_int_equal(bytes, op->bytes);
}

/* From any offset on come the rows that end above it, in the same order; the first may be cut. */
static void op_seek(const struct plan *p, const struct plan_op *op)
{
	uint64_t from = op->src_lo + naive_below((uint32_t)(op->src_hi - op->src_lo + 20)) - 10;
	struct plan_cursor all, some;
	struct plan_row r, s;

	plan_rows(p, op, &all);
	plan_rows_from(p, op, from, &some);
	while (plan_row_next(&all, &r)) {
		uint64_t step = r.elem ? r.src_stride : 1, span = plan_row_src_bytes(&r);

		if (plan_rows_ascend(p, op) && r.src_off + span <= from)
			continue;
		assert_true(plan_row_next(&some, &s));
		if (s.src_off == r.src_off) {
			assert_int_equal(s.dst_off, r.dst_off);
			assert_int_equal(s.len, r.len);
			continue;
		}
		assert_true(s.src_off > r.src_off && s.src_off <= from && r.src_off < from);
		if (r.elem) {
			assert_int_equal(s.src_off + s.n * step, r.src_off + r.n * step);
			assert_int_equal(s.dst_off + s.n * s.dst_stride,
					 r.dst_off + r.n * r.dst_stride);
		} else {
			assert_int_equal(s.src_off + s.len, r.src_off + r.len);
			assert_int_equal(s.dst_off + s.len, r.dst_off + r.len);
		}
	}
	assert_false(plan_row_next(&some, &s));
}

static void dst_check(const struct scene *k)
{
	static uint8_t want[2][PLACE_BYTES];
	uint64_t used = 0;

	for (uint32_t i = 0; i < k->dst.npiece; i++)
		used = MAX(used, k->dst.piece[i].off + k->dst.piece[i].len);
	memset(want[0], 0, used);
	memset(want[1], 0, used);
	for (uint32_t i = 0; i < k->dst.npiece; i++) {
		const struct table_piece *p = &k->dst.piece[i];

		for (uint64_t g = 0; g < k->numel; g++) {
			uint64_t off = locate(k, p, &k->dst_set[p->fp], g);

			for (uint32_t b = 0; off != UINT64_MAX && b < k->elem; b++) {
				assert_int_equal(dst_mem[p->place][off + b], truth(g, b));
				want[p->place][off + b]++;
			}
		}
	}
	assert_memory_equal(want[0], dst_hits[0], used);
	assert_memory_equal(want[1], dst_hits[1], used);
}

static void scene_run(const struct scene *k, const struct plan *p)
{
	uint64_t bytes = 0;

	memset(dst_hits, 0, sizeof dst_hits);
	for (uint32_t i = 0; i < k->src.npiece; i++) {
		const struct table_piece *q = &k->src.piece[i];

		for (uint64_t g = 0; g < k->numel; g++) {
			uint64_t off = locate(k, q, &k->src_set[q->fp], g);

			for (uint32_t b = 0; off != UINT64_MAX && b < k->elem; b++)
				src_mem[q->place][off + b + (q->flags ? 2 : 0)] = truth(g, b);
		}
	}
	for (uint64_t i = 0; i < p->nop; i++) {
		const struct plan_op *op = &p->op[i];

		if (i > 0) {
			const struct plan_op *prev = op - 1;

			assert_true(
				op->src_place > prev->src_place ||
				(op->src_place == prev->src_place && op->src_lo >= prev->src_lo));
		}
		op_run(p, op);
		op_seek(p, op);
		bytes += op->bytes;
	}
	assert_int_equal(bytes, p->bytes);
	dst_check(k);
}

TEST(random_product_sets_move_every_element_exactly_once)
{
	uint32_t planned = 0, refused = 0;

	naive_seed(__func__);
	for (uint32_t i = 0; i < CASES; i++) {
		cleanup_free struct scene *k = calloc(1, sizeof *k);
		cleanup_errlist struct ckpt_errlist list = { 0 };
		struct ckpt_err err = { 0 };
		char want[4096] = "";
		cleanup_plan struct plan p = { 0 };
		int e;

		assert_non_null(k);
		scene_make(k);
		for (uint32_t j = 0; j < k->dst.npiece; j++) {
			char line[600];

			missing_line(k, &k->dst.piece[j], line, sizeof line);
			if (*line && *want)
				strcat(want, "\n");
			strcat(want, line);
		}
		e = plan_make(&k->src, &k->dst, NULL, &p, &list, &err);
		if (*want) {
			assert_int_equal(e, -EMEDIUMTYPE);
			assert_string_equal(list.text, want);
			assert_int_equal(p.nop, 0);
			refused++;
		} else {
			if (e < 0)
				fail_msg("%s", err.msg);
			scene_run(k, &p);
			planned++;
		}
		scene_free(k);
	}
	printf("%u planned, %u refused\n", planned, refused);
	assert_true(planned > CASES / 2 && refused > CASES / 100);
}
