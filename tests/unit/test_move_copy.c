/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_copy.c - memory to memory: random rows and windows against a loop over bytes, strided
 * locals, and the questions that a copy asks on its way.
 */
#include "tests/unit/test_move_disk.h"
#include "ckpt/move/row_copy.h"

#define CASES 6000
#define MEM_BYTES 4096

static uint8_t src[MEM_BYTES], dst[MEM_BYTES], want[MEM_BYTES];

/* Elements may not overlap in the destination, may coincide in the source. */
static struct plan_row row_random(uint64_t *rng)
{
	static const uint32_t elems[] = { 1, 2, 4, 8, 16, 12 };
	struct plan_row r = { .src_off = draw(rng) % 100, .dst_off = draw(rng) % 100 };

	if (draw(rng) % 3 == 0) {
		r.len = 1 + draw(rng) % 2000;
		return r;
	}
	r.elem = elems[draw(rng) % ARRAY_LEN(elems)];
	r.n = 1 + draw(rng) % 40;
	r.len = r.n * r.elem;
	r.src_stride = r.elem * (draw(rng) % 6);
	r.dst_stride = r.elem * (1 + draw(rng) % 5);
	return r;
}

static void want_row(const struct plan_row *r)
{
	uint64_t n = r->elem ? r->n : 1, len = r->elem ? r->elem : r->len;

	memset(want, 0xee, sizeof want);
	memset(dst, 0xee, sizeof dst);
	for (uint64_t i = 0; i < n; i++)
		for (uint64_t b = 0; b < len; b++)
			want[r->dst_off + i * r->dst_stride + b] =
				src[r->src_off + i * r->src_stride + b];
}

TEST(random_rows_are_copied_whole_in_parts_and_through_windows)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < sizeof src; i++)
		src[i] = (uint8_t)draw(&rng);
	for (uint32_t k = 0; k < CASES; k++) {
		struct plan_row r = row_random(&rng);
		uint64_t unit = r.elem ? r.elem : 1, cut = draw(&rng) % (r.len / unit + 1) * unit,
			 moved = 0, lo = 0, hi;

		want_row(&r);
		row_copy(&r, 0, cut, src, dst);
		row_copy(&r, cut, r.len, src, dst);
		assert_memory_equal(dst, want, sizeof want);
		/* Windows that share no byte, in order, cutting elements anywhere. */
		memset(dst, 0xee, sizeof dst);
		for (; lo < sizeof src; lo = hi) {
			hi = lo + 1 + draw(&rng) % (k % 2 ? 40 : 1500);
			hi = MIN(hi, sizeof src);
			moved += row_copy_window(&r, src + lo, lo, hi, dst);
		}
		assert_memory_equal(dst, want, sizeof want);
		assert_int_equal(moved, r.len);
	}
}

/* --- tables of one tensor, in strided memory --- */

static void one_tensor(struct table *t, uint32_t dtype, uint32_t ndim, const uint64_t *shape,
		       const int64_t *stride)
{
	const uint64_t start[CKPT_DIMS_MAX] = { 0 };
	struct table_tensor x =
		ROW(.component = "m", .name = "x", .dtype = dtype, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = ndim, .shape = shape);
	struct indexset set;
	struct ckpt_err e;

	assert_int_equal(table_add_tensor(t, &x, NULL, &e), 0);
	assert_ok(table_add_place(
		t, &(struct table_place){ .name = "memory", .bytes = UINT64_C(1) << 40 }, NULL,
		&e));
	assert_int_equal(indexset_box(ndim, start, shape, &t->arena, &set), 0);
	assert_ok(table_add_piece(t, &(struct table_piece){ .set = set, .stride = stride }, &e));
	assert_int_equal(table_seal(t, &e), 0);
}

struct ticks {
	uint64_t n, bytes, stop, least;
};

static int on_tick(void *arg, uint64_t done)
{
	struct ticks *x = arg;

	x->bytes += done;
	if (!x->n++ || done < x->least)
		x->least = done;
	return x->n == x->stop;
}

TEST(a_channels_last_tensor_becomes_row_major_and_back)
{
	const uint64_t shape[] = { 5, 7, 11, 13 };
	const int64_t last[] = { 7 * 11 * 13, 1, 7 * 13, 7 };
	const uint32_t n = 5 * 7 * 11 * 13;
	uint32_t *strided = calloc(n, 4), *plain = calloc(n, 4);
	struct table x = { 0 }, y = { 0 };
	const void *from = strided;
	void *to = plain;
	struct ckpt_err e;
	struct plan p;

	one_tensor(&x, CKPT_F32, 4, shape, last);
	one_tensor(&y, CKPT_F32, 4, shape, NULL);
	for (uint32_t i = 0; i < n; i++)
		strided[i] = i;
	assert_int_equal(plan_make(&x, &y, NULL, &p, NULL, &e), 0);
	assert_int_equal(move_copy(&p, &from, &to, NULL, NULL), 0);
	plan_free(&p);
	for (uint32_t a = 0, i = 0; a < 5; a++)
		for (uint32_t b = 0; b < 7; b++)
			for (uint32_t c = 0; c < 11; c++)
				for (uint32_t d = 0; d < 13; d++, i++)
					assert_int_equal(plain[i],
							 a * 7 * 11 * 13 + b + c * 7 * 13 + d * 7);
	memset(strided, 0, 4u * n);
	from = plain;
	to = strided;
	assert_int_equal(plan_make(&y, &x, NULL, &p, NULL, &e), 0);
	assert_int_equal(move_copy(&p, &from, &to, NULL, NULL), 0);
	plan_free(&p);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(strided[i], i);
	table_free(&x);
	table_free(&y);
	free(strided);
	free(plain);
}

TEST(the_owner_is_asked_inside_a_long_row_and_can_end_it)
{
	const uint64_t shape[] = { 5 * MOVE_BLOCK + 1000 };
	const int64_t two[] = { 2 };
	uint8_t *from = malloc(2 * shape[0]), *to = malloc(2 * shape[0]);
	const void *src_base = from;
	void *dst_base = to;
	struct table x = { 0 }, y = { 0 }, z = { 0 };
	struct ticks t = { 0 };
	struct ckpt_err e;
	struct plan p;

	for (uint64_t i = 0; i < 2 * shape[0]; i++)
		from[i] = (uint8_t)(i * 7 + (i >> 12));
	memset(to, 0xee, 2 * shape[0]);
	one_tensor(&x, CKPT_U8, 1, shape, NULL);
	one_tensor(&y, CKPT_U8, 1, shape, NULL);
	one_tensor(&z, CKPT_U8, 1, shape, two);
	assert_int_equal(plan_make(&x, &y, NULL, &p, NULL, &e), 0);
	assert_int_equal(p.nop, 1);
	t.stop = 3;
	assert_int_equal(move_copy(&p, &src_base, &dst_base, on_tick, &t), -ECANCELED);
	assert_int_equal(t.n, 3);
	assert_int_equal(t.bytes, 3 * MOVE_BLOCK);
	assert_memory_equal(from, to, 3 * MOVE_BLOCK);
	assert_int_equal(to[3 * MOVE_BLOCK], 0xee);
	t = (struct ticks){ 0 };
	assert_int_equal(move_copy(&p, &src_base, &dst_base, on_tick, &t), 0);
	assert_int_equal(t.n, 6);
	assert_int_equal(t.bytes, shape[0]);
	assert_int_equal(t.least, 1000);
	assert_memory_equal(from, to, shape[0]);
	plan_free(&p);
	/* And in a row of single elements. */
	assert_int_equal(plan_make(&z, &y, NULL, &p, NULL, &e), 0);
	t = (struct ticks){ 0 };
	assert_int_equal(move_copy(&p, &src_base, &dst_base, on_tick, &t), 0);
	assert_int_equal(t.n, 6);
	assert_int_equal(t.bytes, shape[0]);
	for (uint64_t i = 0; i < shape[0]; i++)
		if (to[i] != from[2 * i])
			fail_msg("byte %llu", (unsigned long long)i);
	plan_free(&p);
	table_free(&x);
	table_free(&y);
	table_free(&z);
	free(from);
	free(to);
}

TEST(a_place_without_memory_is_refused_before_anything_is_written)
{
	const void *src_base[2];
	void *dst_base[2];
	struct ckpt_err e;
	struct job a;
	struct plan p;
	uint8_t *copy;

	job_make(&a, "fsdp=2", 3, 1);
	copy = malloc(a.rank[0].mem_bytes);
	assert_int_equal(plan_make(&a.all, &a.all, NULL, &p, NULL, &e), 0);
	for (int which = 0; which < 2; which++) {
		src_base[0] = which ? NULL : a.base[0];
		src_base[1] = a.base[1];
		dst_base[0] = memset(copy, 7, a.rank[0].mem_bytes);
		dst_base[1] = which ? a.base[1] : NULL;
		assert_int_equal(move_copy(&p, src_base, dst_base, NULL, NULL), -EINVAL);
		for (uint64_t i = 0; i < a.rank[0].mem_bytes; i++)
			assert_int_equal(copy[i], 7);
	}
	plan_free(&p);
	job_free(&a);
	free(copy);
}
