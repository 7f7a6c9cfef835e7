/* SPDX-License-Identifier: Apache-2.0 */
/* test_engine_values.c - what the values of a tensor are made of: slices, elements of every dtype,
 * .npy headers, statistics. */
#include "tests/unit/test_engine_naive.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/npy.h"
#include "ckpt/engine/slice.h"
#include "ckpt/engine/tally.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

TEST(a_slice_means_what_it_means_to_numpy)
{
	static const struct {
		const char *text;
		uint64_t start[3], count[3];
		const char *print;
	} cases[] = { { "0:4,:,3", { 0, 0, 3 }, { 4, 5, 1 }, "[0:4, :, 3]" },
		      { "-1", { 6, 0, 0 }, { 1, 5, 4 }, "[6, :, :]" },
		      { "-1:", { 6, 0, 0 }, { 1, 5, 4 }, "[6:7, :, :]" },
		      { ":-2, -2: ,-4", { 0, 3, 0 }, { 5, 2, 1 }, "[0:5, 3:5, 0]" },
		      { "5:3", { 5, 0, 0 }, { 0, 5, 4 }, "[5:5, :, :]" },
		      { "-100:100", { 0, 0, 0 }, { 7, 5, 4 }, "[:, :, :]" },
		      { "99999999999999999999999999:", { 7, 0, 0 }, { 0, 5, 4 }, "[7:7, :, :]" } };
	const uint64_t shape[] = { 7, 5, 4 };
	struct ckpt_err err;
	struct slice s;
	char buf[200];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(slice_parse(cases[i].text, 3, shape, &s, &err), 0);
		for (int d = 0; d < 3; d++) {
			assert_int_equal(s.start[d], cases[i].start[d]);
			assert_int_equal(s.count[d], cases[i].count[d]);
		}
		assert_string_equal(slice_print(&s, shape, buf, sizeof buf), cases[i].print);
	}
	assert_int_equal(slice_parse("1,2:3,1", 3, shape, &s, &err), 0);
	assert_int_equal(s.nshape, 1);
	assert_int_equal(s.shape[0], 1);
	assert_int_equal(s.numel, 1);
	assert_int_equal(slice_parse(NULL, 0, NULL, &s, &err), 0);
	assert_int_equal(s.numel, 1);
}

TEST(a_slice_that_does_not_fit_says_where_and_what_the_shape_is)
{
	static const struct {
		const char *text, *where, *why;
	} cases[] = ROW({ "7", "character 1", "index 7 is outside of dimension 0, which has 7" },
			{ "0, -6", "character 4", "index -6 is outside of dimension 1" },
			{ "::2", "character 2", "no step" }, { "0:4:2", "character 4", "no step" },
			{ "a", "character 1", "expected" }, { "1,,2", "character 3", "expected" },
			{ "0:4 5", "character 5", "the end" },
			{ "0,0,0,0", "character 7", "one item more" },
			{ "-", "character 1", "must follow the sign" },
			{ "0:+", "character 3", "must follow the sign" },
			{ "", "character 1", "expected" });
	const uint64_t shape[] = { 7, 5, 4 };
	struct ckpt_err err;
	struct slice s;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(slice_parse(cases[i].text, 3, shape, &s, &err), -EINVAL);
		assert_non_null(strstr(err.msg, cases[i].where));
		assert_non_null(strstr(err.msg, cases[i].why));
		assert_non_null(strstr(err.msg, "[7, 5, 4]"));
	}
	assert_int_equal(slice_parse("0", 0, NULL, &s, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "single value"));
}

static double real_of(uint32_t dtype, uint64_t bits)
{
	uint8_t p[8];
	double x;

	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(bits >> 8 * i);
	element_reals(dtype, p, 1, &x);
	return x;
}

TEST(every_dtype_means_its_numbers)
{
	static const struct {
		uint32_t dtype;
		uint64_t bits;
		double x;
	} cases[] = ROW({ CKPT_BOOL, 0, 0 }, { CKPT_BOOL, 2, 1 }, { CKPT_U8, 0xff, 255 },
			{ CKPT_I8, 0xff, -1 }, { CKPT_F8_E4M3, 0x7e, 448 },
			{ CKPT_F8_E4M3, 0x01, 0x1p-9 }, { CKPT_F8_E4M3, 0xb8, -1 },
			{ CKPT_F8_E5M2, 0x7b, 57344 }, { CKPT_F8_E5M2, 0x01, 0x1p-16 },
			{ CKPT_F8_E5M2, 0xfc, -INFINITY }, { CKPT_F8_E8M0, 0, 0x1p-127 },
			{ CKPT_F8_E8M0, 0xfe, 0x1p127 }, { CKPT_U16, 0xffff, 65535 },
			{ CKPT_I16, 0x8000, -32768 }, { CKPT_F16, 0x7bff, 65504 },
			{ CKPT_F16, 0x0001, 0x1p-24 }, { CKPT_F16, 0xfc00, -INFINITY },
			{ CKPT_F16, 0xbc00, -1 }, { CKPT_BF16, 0x3f80, 1 },
			{ CKPT_BF16, 0xc049, -3.140625 }, { CKPT_U32, 0xffffffff, 4294967295.0 },
			{ CKPT_I32, 0xffffffff, -1 }, { CKPT_F32, 0x40490fdb, (double)3.14159274f },
			{ CKPT_U64, UINT64_MAX, 0x1p64 }, { CKPT_I64, UINT64_MAX, -1 },
			{ CKPT_F64, UINT64_C(0x400921fb54442d18), 3.141592653589793 });

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		if (real_of(cases[i].dtype, cases[i].bits) != cases[i].x)
			fail_msg("%s %llx is %g", dtype_name(cases[i].dtype),
				 (unsigned long long)cases[i].bits,
				 real_of(cases[i].dtype, cases[i].bits));
	assert_true(isnan(real_of(CKPT_F8_E4M3, 0x7f)) && isnan(real_of(CKPT_F8_E4M3, 0xff)));
	assert_true(isnan(real_of(CKPT_F8_E5M2, 0x7d)) && isnan(real_of(CKPT_F8_E8M0, 0xff)));
	assert_true(isnan(real_of(CKPT_F16, 0x7c01)) && isnan(real_of(CKPT_BF16, 0x7fc0)));
	assert_true(signbit(real_of(CKPT_F16, 0x8000)) && signbit(real_of(CKPT_BF16, 0x8000)));
}

/* All bit patterns of the small floats against the definition, in other words than element.c's. */
TEST(small_floats_follow_their_definition)
{
	static const struct {
		uint32_t dtype;
		int nexponent, nmantissa, bias;
	} kinds[] = { { CKPT_F8_E4M3, 4, 3, 7 },     { CKPT_F8_E5M2, 5, 2, 15 },
		      { CKPT_F16, 5, 10, 15 },	     { CKPT_BF16, 8, 7, 127 },
		      { CKPT_F8_E4M3FNUZ, 4, 3, 8 }, { CKPT_F8_E5M2FNUZ, 5, 2, 16 },
		      { CKPT_F4, 2, 1, 1 } };

	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		int nm = kinds[k].nmantissa, ne = kinds[k].nexponent;

		for (uint32_t v = 0; v < 1u << (1 + ne + nm); v++) {
			int e = (int)(v >> nm) & ((1 << ne) - 1);
			double m = v & ((1u << nm) - 1), x = real_of(kinds[k].dtype, v);
			double want = e ? (1 + m / (1 << nm)) * pow(2, e - kinds[k].bias)
					: m / (1 << nm) * pow(2, 1 - kinds[k].bias);

			bool fnuz = kinds[k].dtype == CKPT_F8_E4M3FNUZ ||
				    kinds[k].dtype == CKPT_F8_E5M2FNUZ;

			if (fnuz || kinds[k].dtype == CKPT_F4)
				want = fnuz && v == 0x80 ? NAN : want;
			else if (e == (1 << ne) - 1 && kinds[k].dtype != CKPT_F8_E4M3)
				want = m != 0 ? NAN : INFINITY;
			else if (kinds[k].dtype == CKPT_F8_E4M3 && (v & 0x7f) == 0x7f)
				want = NAN;
			if (v >> (ne + nm))
				want = -want;
			assert_true(x == want || (isnan(x) && isnan(want)));
			assert_true(isnan(x) || (signbit(x) != 0) == (v >> (ne + nm) != 0));
		}
	}
}

/* Largest and smallest numbers of the formats' papers, and all of F4. */
TEST(new_small_floats_have_the_published_ends)
{
	static const double f4[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	uint8_t value[4];
	double z[2];

	assert_true(real_of(CKPT_F8_E4M3FNUZ, 0x7f) == 240);
	assert_true(real_of(CKPT_F8_E4M3FNUZ, 0xff) == -240);
	assert_true(real_of(CKPT_F8_E4M3FNUZ, 0x01) == 0x1p-10);
	assert_true(real_of(CKPT_F8_E4M3FNUZ, 0x40) == 1);
	assert_true(real_of(CKPT_F8_E5M2FNUZ, 0x7f) == 57344);
	assert_true(real_of(CKPT_F8_E5M2FNUZ, 0x01) == 0x1p-17);
	assert_true(real_of(CKPT_F8_E5M2FNUZ, 0x40) == 1);
	for (uint32_t v = 0; v < 8; v++) {
		assert_true(real_of(CKPT_F4, v) == f4[v]);
		assert_true(real_of(CKPT_F4, v + 8) == -f4[v]);
	}
	element_unpack((const uint8_t *)"\x27\xf1", 2, value);
	assert_memory_equal(value, "\x07\x02\x01\x0f", 4);
	/* C32 is two F16, whatever they are; nothing here is slower than all 65536 of them. */
	for (uint32_t v = 0; v < 65536; v++) {
		uint32_t w = v * 40503u & 0xffff;
		const uint8_t p[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)w,
				       (uint8_t)(w >> 8) };
		double re = real_of(CKPT_F16, v), im = real_of(CKPT_F16, w);

		element_reals(CKPT_C32, p, 1, z);
		assert_memory_equal(&z[0], &re, sizeof re);
		assert_memory_equal(&z[1], &im, sizeof im);
	}
}

/* What is printed is nearer to its element than to any other, and no digit too long. */
TEST(an_element_as_text_is_that_element)
{
	static const uint32_t dtypes[] = { CKPT_F8_E4M3,     CKPT_F8_E5M2, CKPT_F8_E8M0,
					   CKPT_F16,	     CKPT_BF16,	   CKPT_F8_E4M3FNUZ,
					   CKPT_F8_E5M2FNUZ, CKPT_F4 };
	char buf[ELEMENT_BYTES];
	uint8_t p[16];

	for (size_t k = 0; k < ARRAY_LEN(dtypes); k++) {
		uint32_t n = dtype_bytes(dtypes[k]) == 1 ? 256 : 65536;

		n = dtypes[k] == CKPT_F4 ? 16 : n;

		for (uint32_t v = 0; v < n; v++) {
			double x = real_of(dtypes[k], v), y;

			p[0] = (uint8_t)v;
			p[1] = (uint8_t)(v >> 8);
			y = strtod(element_print(dtypes[k], p, 0, buf), NULL);
			if (!isfinite(x)) {
				assert_true(isnan(x) ? isnan(y) : x == y);
				continue;
			}
			for (uint32_t w = v ? v - 1 : 0; w < n && w <= v + 1; w++)
				if (w != v && fabs(real_of(dtypes[k], w) - y) <= fabs(x - y))
					fail_msg("%s %x as %s is nearer to %x",
						 dtype_name(dtypes[k]), v, buf, w);
		}
	}
	random_state = 5;
	for (int i = 0; i < 20000; i++) {
		uint32_t v = (uint32_t)(rnd(1u << 31) << 1 | rnd(2));
		float f;

		memcpy(&f, &v, 4);
		memcpy(p, &v, 4);
		element_print(CKPT_F32, p, 0, buf);
		assert_true(isnan(f) || strtof(buf, NULL) == f);
	}
	memcpy(p, &(float){ 0.1f }, 4);
	assert_string_equal(element_print(CKPT_F32, p, 0, buf), "0.1");
	memcpy(p, &(double){ 0.1 }, 8);
	assert_string_equal(element_print(CKPT_F64, p, 0, buf), "0.1");
	memcpy(p, &(int64_t){ INT64_MIN }, 8);
	assert_string_equal(element_print(CKPT_I64, p, 0, buf), "-9223372036854775808");
	assert_string_equal(element_print(CKPT_U64, p, 0, buf), "9223372036854775808");
	memcpy(p, (float[]){ 1.5f, -2 }, 8);
	assert_string_equal(element_print(CKPT_C64, p, 0, buf), "1.5-2j");
	memcpy(p, (uint16_t[]){ 0x3e00, 0xfc00 }, 4);
	assert_string_equal(element_print(CKPT_C32, p, 0, buf), "1.5-infj");
	assert_string_equal(element_print(CKPT_BOOL, (const uint8_t *)"\1", 0, buf), "True");
}

TEST(a_slice_of_values_that_share_a_byte_ends_between_bytes)
{
	const uint64_t shape[] = { 3, 8 };
	struct slice s, x;
	struct ckpt_err err;

	assert_int_equal(slice_parse("1,2:6", 2, shape, &s, NULL), 0);
	assert_int_equal(slice_pack("1,2:6", &s, 2, &x, &err), 0);
	assert_true(x.start[0] == 1 && x.count[0] == 1 && x.start[1] == 1 && x.count[1] == 2);
	assert_true(x.nshape == 1 && x.shape[0] == 2 && x.numel == 2);
	assert_true(s.shape[0] == 4 && s.numel == 4);
	assert_int_equal(slice_parse("1,2:6", 2, shape, &s, NULL), 0);
	assert_int_equal(slice_pack("1,2:6", &s, 1, &x, &err), 0);
	assert_memory_equal(&x, &s, sizeof s);
	for (int i = 0; i < 4; i++) {
		static const char *const odd[] = { ":,1:4", ":,2:5", ":,2", "0,-1" };

		assert_int_equal(slice_parse(odd[i], 2, shape, &s, NULL), 0);
		assert_int_equal(slice_pack(odd[i], &s, 2, &x, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "multiples of 2"));
		assert_non_null(strstr(err.msg, odd[i]));
	}
	assert_int_equal(slice_parse(":,3:3", 2, shape, &s, NULL), 0);
	assert_int_equal(slice_pack(":,3:3", &s, 2, &x, &err), -EINVAL);
}

TEST(every_dtype_has_a_npy_header_of_64_bytes_each)
{
	const uint64_t shape[CKPT_DIMS_MAX] = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
						UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
						UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
						UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
	uint8_t head[NPY_HEADER_MAX];

	for (uint32_t t = CKPT_BOOL; t <= CKPT_F4; t++)
		for (uint32_t d = 0; d <= CKPT_DIMS_MAX; d++) {
			uint32_t n = npy_header(t, d, shape, head);

			assert_true(n && n % 64 == 0 && n <= sizeof head);
			assert_int_equal(head[8] | head[9] << 8, n - 10);
			assert_int_equal(head[n - 1], '\n');
			assert_non_null(memmem(head, n, npy_descr(t), strlen(npy_descr(t))));
		}
	/* Whatever its length, all of the text is there. */
	for (uint64_t v = 1; v < UINT64_MAX / 10; v *= 10)
		for (uint32_t d = 1; d < 8; d++) {
			const uint64_t long_one[8] = { v, v, v, v, 1, 10, 100, 1000 };
			uint32_t n = npy_header(CKPT_C128, d, long_one, head);

			assert_non_null(memmem(head, n, "), }", 4));
			assert_int_equal(head[n - 1], '\n');
		}
	assert_int_equal(npy_header(99, 1, shape, head), 0);
	assert_int_equal(npy_header(CKPT_F32, CKPT_DIMS_MAX + 1, shape, head), 0);
	npy_header(CKPT_F32, 0, NULL, head);
	assert_non_null(strstr((char *)head + 10, "'shape': (), }"));
}

TEST(tally_is_right_for_every_dtype)
{
	uint8_t *p = malloc(16 * 5000), value[10000];

	random_state = 99;
	for (uint32_t i = 0; i < 16 * 5000; i++)
		p[i] = (uint8_t)rnd(256);
	for (uint32_t dtype = CKPT_BOOL; dtype <= CKPT_F4; dtype++) {
		uint32_t values = dtype_values(dtype);
		struct naive want;
		struct tally t;

		if (values > 1)
			element_unpack(p, 5000, value);
		want = naive_of(dtype, values > 1 ? value : p, 5000ul * values);
		tally_begin(&t, dtype);
		for (uint64_t at = 0, n; at < 5000; at += n) {
			n = MIN(UINT64_C(1) + rnd(2000), 5000 - at);
			tally_add(&t, p + at * dtype_bytes(dtype), n);
		}
		assert_int_equal(t.count, 5000 * values);
		assert_int_equal(t.finite, want.finite);
		assert_int_equal(t.finite + t.nan + t.inf + t.neg_inf, t.count);
		assert_int_equal(t.zeros, want.zeros);
		assert_true(t.min == want.min && t.max == want.max);
		assert_true(near_to((double)t.mean, want.mean) ||
			    fabsl(t.mean - want.mean) < 1e-15L * fmaxl(fabs(t.min), fabs(t.max)));
		assert_true(near_to(tally_std(&t), want.std));
	}
	free(p);
}

UNIT();
