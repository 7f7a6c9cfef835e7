/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_cat.c - ckptctl cat, and what it is made of: slices, elements, .npy headers, statistics,
 * previews. The truth is the sample model's, element by element. */
#include "tests/lib/cli_rig.h"
#include "ckpt/cli/element.h"
#include "ckpt/cli/npy.h"
#include "ckpt/cli/preview.h"
#include "ckpt/cli/slice.h"
#include "ckpt/cli/tally.h"
#include "tests/lib/row.h"
#include <math.h>
#include <signal.h>

#define NAME(x) path_of("%s/%s", (x)->component, (x)->name)

static const char *made; /* a store with the job "made", step 1 */

static uint64_t random_state;

static uint64_t rnd(uint64_t below)
{
	random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return below ? (random_state >> 33) % below : 0;
}

/* The elements of a slice, one by one. */
static uint8_t *truth(const struct table_tensor *x, const struct slice *s, uint64_t step)
{
	uint8_t *p = malloc(s->numel * x->elem_bytes + 1);

	assert_non_null(p);
	for (uint64_t i = 0; i < s->numel; i++) {
		uint64_t rest = i, at[CKPT_DIMS_MAX], g = 0;

		for (uint32_t d = x->ndim; d-- > 0; rest /= s->count[d])
			at[d] = s->start[d] + rest % s->count[d];
		for (uint32_t d = 0; d < x->ndim; d++)
			g = g * x->shape[d] + at[d];
		sample_truth(SEED, x, g, step, p + i * x->elem_bytes);
	}
	return p;
}

static const char *checkpoint(int i)
{
	return i ? path_of("%s/beta/step-000000000025", work)
		 : path_of("%s/alpha/step-000000000010", work);
}

static void assert_truth(const struct table_tensor *x, const char *text, uint64_t step,
			 const void *p, uint64_t len)
{
	struct slice s;
	uint8_t *want;

	assert_int_equal(slice_parse(text, x->ndim, x->shape, &s, NULL), 0);
	assert_int_equal(len, s.numel * x->elem_bytes);
	want = truth(x, &s, step);
	if (memcmp(p, want, len))
		fail_msg("%s %s is not what it was", NAME(x), text ? text : "");
	free(want);
}

TEST(every_tensor_leaves_as_its_true_bytes_whatever_the_mesh)
{
	struct sample s;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (int c = 0; c < 2; c++)
		for (uint32_t i = 0; i < s.decl.ntensor; i++) {
			const struct table_tensor *x = &s.decl.tensor[i];

			if (x->rank == TABLE_NONE)
				RUN("cat", checkpoint(c), NAME(x));
			else
				RUN("cat", checkpoint(c), NAME(x), "--rank", "2");
			if (got.code)
				fail_msg("%s: %s", NAME(x), got.err);
			assert_truth(x, NULL, c ? 25 : 10, got.out, got.out_len);
		}
	sample_free(&s);
}

static void random_slice(const struct table_tensor *x, char *buf, size_t bytes)
{
	size_t len = 0;

	buf[0] = 0;
	for (uint32_t d = 0; d < x->ndim && (!d || rnd(4)); d++) {
		long long n = (long long)x->shape[d], a = (long long)rnd(x->shape[d]),
			  b = (long long)rnd(x->shape[d] + 3);

		a = n && rnd(2) ? a - n : a;
		b = rnd(2) ? b - n : b;
		len += (size_t)snprintf(buf + len, bytes - len, "%s", d ? "," : "");
		switch (n ? rnd(6) : 5) {
		case 0:
			len += (size_t)snprintf(buf + len, bytes - len, "%lld", a);
			break;
		case 1:
			len += (size_t)snprintf(buf + len, bytes - len, ":%lld", b);
			break;
		case 2:
			len += (size_t)snprintf(buf + len, bytes - len, " %lld: ", a);
			break;
		case 5:
			len += (size_t)snprintf(buf + len, bytes - len, ":");
			break;
		default:
			len += (size_t)snprintf(buf + len, bytes - len, "%lld:%lld", a, b);
		}
	}
}

TEST(a_slice_is_what_stands_there)
{
	struct sample s;
	char text[256];

	random_state = 20240611;
	print_message("seed %llu\n", (unsigned long long)random_state);
	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (int n = 0; n < 60; n++) {
		const struct table_tensor *x = &s.decl.tensor[rnd(s.decl.ntensor)];
		int c = (int)rnd(2);

		if (!x->ndim || x->rank != TABLE_NONE)
			continue;
		random_slice(x, text, sizeof text);
		RUN("cat", checkpoint(c), NAME(x), path_of("--slice=%s", text));
		if (got.code)
			fail_msg("%s %s: %s", NAME(x), text, got.err);
		assert_truth(x, text, c ? 25 : 10, got.out, got.out_len);
	}
	sample_free(&s);
}

/* --- slices --- */

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
		assert_says(err.msg, cases[i].where);
		assert_says(err.msg, cases[i].why);
		assert_says(err.msg, "[7, 5, 4]");
	}
	assert_int_equal(slice_parse("0", 0, NULL, &s, &err), -EINVAL);
	assert_says(err.msg, "single value");
	SHOWN_IS(2, "cat", checkpoint(0), "model/embed.weight", "--slice", "0:4,9999");
	assert_int_equal(got.out_len, 0);
}

/* --- elements --- */

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

/* --- F4 --- */

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

/* --- .npy --- */

TEST(a_npy_file_is_the_header_of_numpy_and_the_bytes)
{
	const char *file = path_of("%s/a.npy", top);
	struct sample s;
	struct stat st;
	char *text;
	FILE *f;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	RUN("cat", checkpoint(0), "model/stats.sum", "--npy");
	assert_int_equal(got.code, 0);
	assert_true(got.out_len > 128);
	assert_memory_equal(got.out, "\x93NUMPY\x01\x00\x76\x00", 10);
	assert_memory_equal(got.out + 10,
			    "{'descr': '<f8', 'fortran_order': False, 'shape': (9, 3), }  ", 60);
	assert_int_equal(got.out[127], '\n');
	assert_truth(&s.decl.tensor[table_find(&s.decl, "model", "stats.sum", TABLE_NONE)], NULL,
		     10, got.out + 128, got.out_len - 128);
	/* The same by a file's name; BF16 is written as <u2. */
	SHOWN_IS(0, "cat", checkpoint(0), "model/norm.weight", "--slice=2:7", "-o", file);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_size, 128 + 5 * 2);
	f = fopen(file, "r");
	text = malloc(256);
	assert_int_equal(fread(text, 1, 256, f), 138);
	fclose(f);
	assert_memory_equal(text + 10, "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
			    57);
	assert_truth(&s.decl.tensor[table_find(&s.decl, "model", "norm.weight", TABLE_NONE)], "2:7",
		     10, text + 128, 10);
	free(text);
	unlink(file);
	sample_free(&s);
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

/* --- files --- */

TEST(a_file_that_exists_is_left_alone)
{
	const char *dir = path_of("%s/there", top), *file = path_of("%s/x", dir);
	char buf[8] = "";
	int fd;

	assert_int_equal(mkdir(dir, 0700), 0);
	fd = open(file, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "mine", 4), 4);
	close(fd);
	assert_int_equal(symlink("nowhere", path_of("%s/link", dir)), 0);
	SHOWN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", file);
	RUN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/link", dir));
	RUN_IS(2, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/no/x", dir));
	RUN_IS(11, "cat", checkpoint(0), "model/embed.weight", "-o", dir);
	RUN_IS(2, "cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/", dir));
	fd = open(file, O_RDONLY);
	assert_int_equal(read(fd, buf, sizeof buf), 4);
	assert_string_equal(buf, "mine");
	close(fd);
	assert_int_equal(entries(dir), 2);
	remove_tree(dir);
}

/* Flip bytes in the first half of the first part of a copy of a step. */
static const char *damaged_copy(const char *name)
{
	const char *to = path_of("%s/%s", top, name);
	struct stat st;

	copy_step(checkpoint(0), to);
	assert_int_equal(stat(part(to, 0), &st), 0);
	for (off_t at = 4096; at < st.st_size / 2; at += 65536)
		flip(part(to, 0), at);
	return to;
}

TEST(damaged_data_makes_no_file_and_exit_4)
{
	const char *dir = path_of("%s/out", top), *bad = damaged_copy("damaged");
	int before;

	assert_int_equal(mkdir(dir, 0700), 0);
	before = (int)entries(dir);
	SHOWN_IS(4, "cat", bad, "model/embed.weight", "-o", path_of("%s/x.npy", dir));
	assert_int_equal(entries(dir), before);
	/* A file that exists is seen before anything is read. */
	RUN_IS(11, "cat", bad, "model/embed.weight", "-o", bad);
	RUN_IS(4, "cat", bad, "model/embed.weight", "--stats", "--json");
	assert_json_error(4);
	cli_stops = 1;
	SHOWN("cat", checkpoint(0), "model/embed.weight", "-o", path_of("%s/x", dir));
	cli_stops = 0;
	assert_int_equal(got.code, 130);
	assert_int_equal(entries(dir), before);
	remove_tree(dir);
	remove_tree(bad);
}

/* --- which tensor --- */

TEST(a_blob_of_each_rank_wants_a_rank)
{
	SHOWN_IS(2, "cat", checkpoint(0), "blob/rng");
	SHOWN_IS(10, "cat", checkpoint(0), "rng", "--rank", "9");
	RUN_IS(2, "cat", checkpoint(0), "rng", "--rank", "x");
	SHOWN_IS(2, "cat", checkpoint(0), "model/embed.weight", "--rank", "0");
	RUN_IS(0, "cat", checkpoint(0), "rng", "--rank", "3", "--json");
	json_t *j = json_out("ckptd.cat/1");

	assert_json_has(j, "{'rank':3, 'bytes':121}");
	json_decref(j);
}

TEST(a_name_of_two_tensors_lists_them)
{
	SHOWN_IS(2, "cat", made, "w");
	RUN_IS(0, "cat", made, "optim/w");
	SHOWN_IS(10, "cat", checkpoint(0), "model/embed.weigth");
	SHOWN_IS(2, "cat", checkpoint(0));
	RUN_IS(10, "cat", path_of("%s/none", top), "w");
	RUN_IS(2, "cat", made, "model/w", "--npy", "--stats");
	RUN_IS(2, "cat", made, "model/w", "--npy", "--json");
	assert_json_error(2);
}

/* --- statistics --- */

struct naive {
	uint64_t count, finite, zeros, nan, inf, neg_inf;
	long double sum, sq, mean, std;
	double min, max;
};

static struct naive naive_of(uint32_t dtype, const uint8_t *p, uint64_t n)
{
	struct naive t = { .count = n, .min = INFINITY, .max = -INFINITY };

	for (int pass = 0; pass < 2; pass++)
		for (uint64_t i = 0; i < n; i++) {
			double z[2] = { 0, 0 }, x;

			element_reals(dtype, p + i * dtype_bytes(dtype), 1, z);
			x = element_parts(dtype) == 2 ? hypot(z[0], z[1]) : z[0];
			if (pass) {
				if (isfinite(x))
					t.sq += (x - t.mean) * (x - t.mean);
				continue;
			}
			t.zeros += x == 0;
			t.nan += isnan(x) != 0;
			t.inf += x == INFINITY;
			t.neg_inf += x == -INFINITY;
			if (isfinite(x)) {
				t.finite++;
				t.sum += x;
				t.min = fmin(t.min, x);
				t.max = fmax(t.max, x);
			}
			if (i + 1 == n && t.finite)
				t.mean = t.sum / (long double)t.finite;
		}
	if (t.finite)
		t.std = sqrtl(t.sq / (long double)t.finite);
	return t;
}

static bool near_to(double x, long double want)
{
	return fabsl(x - want) <= 1e-12L * (fabsl(want) + 1e-300L) || x == (double)want;
}

static void check_stats(const json_t *j, const struct naive *t)
{
	const json_t *s = member(j, "stats", JSON_OBJECT);

	assert_int_equal(number(j, "elements"), t->count);
	assert_int_equal(number(s, "finite_count"), t->finite);
	assert_int_equal(number(s, "zero_count"), t->zeros);
	assert_int_equal(number(s, "nan_count"), t->nan);
	assert_int_equal(number(s, "inf_count"), t->inf);
	assert_int_equal(number(s, "neg_inf_count"), t->neg_inf);
	if (!t->finite) {
		assert_json_has(s, "{'min':null, 'mean':null}");
		return;
	}
	assert_true(real(s, "min") == t->min);
	assert_true(real(s, "max") == t->max);
	if (isfinite((double)t->mean) && fabsl(t->mean) > 1e-6L * fmaxl(fabs(t->min), fabs(t->max)))
		assert_true(near_to(real(s, "mean"), t->mean));
	if (isfinite((double)t->std))
		assert_true(near_to(real(s, "std"), t->std));
}

TEST(statistics_are_what_one_by_one_gives)
{
	struct sample s;

	assert_int_equal(sample_make("fsdp=4", 2, SEED, 1, &s), 0);
	for (uint32_t i = 0; i < s.decl.ntensor; i++) {
		const struct table_tensor *x = &s.decl.tensor[i];
		struct slice all;
		struct naive want;
		uint8_t *p;
		json_t *j;

		if (x->rank != TABLE_NONE)
			continue;
		assert_int_equal(slice_parse(NULL, x->ndim, x->shape, &all, NULL), 0);
		p = truth(x, &all, 10);
		want = naive_of(x->dtype, p, all.numel);
		free(p);
		j = json_run("ckptd.cat/1", "cat", checkpoint(0), NAME(x), "--stats", "--json");
		check_stats(j, &want);
	}
	sample_free(&s);
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

TEST(what_is_no_number_is_counted_and_left_out)
{
	const json_t *s;
	json_t *j = json_run("ckptd.cat/1", "cat", made, "model/odd", "--stats", "--json");

	s = member(j, "stats", JSON_OBJECT);
	assert_json_has(
		s,
		"{'nan_count':2, 'inf_count':1, 'neg_inf_count':1, 'zero_count':2, 'finite_count':4, 'min':-3.0, 'max':5.0, 'mean':0.5}");
	SHOWN_IS(0, "cat", made, "model/odd", "--stats");
	/* Integers keep all their digits, and doubles at the end of their range their mean. */
	SHOWN_IS(0, "cat", made, "model/whole", "--stats");
	j = json_run("ckptd.cat/1", "cat", made, "model/big", "--stats", "--json");
	s = member(j, "stats", JSON_OBJECT);
	assert_true(fabs(real(s, "mean") / 1.5e308 - 1) < 1e-12);
	assert_true(fabs(real(s, "std") / 0.1e308 - 1) < 1e-12);
}

TEST(nothing_and_a_single_value_pass_through_everything)
{
	json_t *j;
	uint64_t v;

	RUN_IS(0, "cat", checkpoint(0), "model/nothing");
	assert_int_equal(got.out_len, 0);
	RUN_IS(0, "cat", checkpoint(0), "model/nothing", "--npy");
	assert_int_equal(got.out_len, 128);
	j = json_run("ckptd.cat/1", "cat", checkpoint(0), "model/nothing", "--stats", "--json");
	assert_int_equal(number(member(j, "stats", JSON_OBJECT), "finite_count"), 0);
	assert_true(json_is_null(json_object_get(member(j, "stats", JSON_OBJECT), "min_text")));
	RUN_IS(0, "cat", checkpoint(0), "optim/step");
	assert_int_equal(got.out_len, 8);
	memcpy(&v, got.out, 8);
	SHOWN_IS(0, "cat", checkpoint(0), "optim/step", "--stats");
	SHOWN_IS(2, "cat", checkpoint(0), "optim/step", "--slice", ":");
}

/* --- terminals, pipes, programs --- */

TEST(a_terminal_gets_a_few_values_and_never_bytes)
{
	SHOWN_IS(0, "cat", made, "model/w");
	SHOWN_IS(0, "cat", made, "model/wide");
	SHOWN_IS(0, "cat", made, "model/wide", "--slice", "3,:2");
	SHOWN_IS(0, "cat", made, "model/one");
	SHOWN_IS(2, "cat", made, "model/w", "--npy");
	assert_null(strstr(got.out, "NUMPY"));
}

TEST(a_preview_of_any_shape_is_small)
{
	struct preview p;
	uint64_t shape[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	struct indices x;

	random_state = 3;
	for (int i = 0; i < 300; i++) {
		uint32_t ndim = (uint32_t)rnd(CKPT_DIMS_MAX + 1);
		uint64_t all = 1;

		for (uint32_t d = 0; d < ndim; d++) {
			shape[d] = rnd(3) ? rnd(12) : rnd(1u << 30);
			all = all > 1u << 20 ? all : all * shape[d];
		}
		uint32_t grain = ndim && shape[ndim - 1] % 2 == 0 ? 2 : 1;

		preview_choose(ndim, shape, grain, &p);
		if (ndim) {
			assert_int_equal(p.head[ndim - 1] % grain, 0);
			assert_int_equal(p.tail[ndim - 1] % grain, 0);
		}
		assert_true(p.numel <= PREVIEW_MAX);
		assert_true(all > PREVIEW_ALL || all == 0 || p.numel == all);
		for (uint32_t d = 0; d < ndim; d++) {
			assert_true(p.head[d] + p.tail[d] <= shape[d]);
			assert_int_equal(preview_indices(&p, d, 5, &a, &x), 0);
			assert_int_equal(x.total, p.head[d] + p.tail[d]);
			assert_int_equal(indices_check(&x, shape[d] + 5, NULL), 0);
		}
	}
	arena_free(&a);
}

TEST(a_reader_that_goes_away_ends_it_without_a_word)
{
	char *argv[] = { (char *)"ckptctl", (char *)"cat", (char *)checkpoint(0),
			 (char *)"model/embed.weight" };
	char *err_text;
	size_t err_len;
	FILE *out, *err = open_memstream(&err_text, &err_len);
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	close(fd[0]);
	signal(SIGPIPE, SIG_IGN);
	out = fdopen(fd[1], "w");
	assert_int_equal(cli_run(4, argv, out, err), 128 + SIGPIPE);
	signal(SIGPIPE, SIG_DFL);
	fclose(out);
	fclose(err);
	assert_string_equal(err_text, "");
	free(err_text);
}

TEST(a_program_gets_metadata_and_no_values)
{
	json_t *j = json_run("ckptd.cat/1", "cat", made, "model/w", "--slice", "1,:", "--json");

	assert_json_has(j, "{'component':'model', 'name':'w', 'dtype':'F32', 'slice':'[1, :]'}");
	assert_int_equal(count(j, "shape"), 2);
	assert_int_equal(count(j, "result_shape"), 1);
	assert_json_has(j, "{'elements':3, 'bytes':12, 'job':'made', 'stats':null}");
	j = json_run("ckptd.cat/1", "cat", made, "model/w", "-o", path_of("%s/j.npy", top),
		     "--json");
	assert_string_equal(string(j, "destination"), path_of("%s/j.npy", top));
	assert_int_equal(number(j, "file_bytes"), 128 + 24);
	assert_string_equal(string(j, "npy_descr"), "<f4");
	unlink(path_of("%s/j.npy", top));
}

static int make_more(void **state)
{
	static const float odd[] = { NAN, 0, -0.0f, INFINITY, -INFINITY, 5, -3, NAN };
	static const int64_t whole[] = { -INT64_MAX, 3, INT64_MAX - 1 };
	static const double big[] = { 1.6e308, 1.4e308, 1.6e308, 1.4e308 };
	static const float w[] = { 0, 1, 2, 3, 4, 5 };
	static const uint8_t one = 7;
	static int16_t wide[1000];
	const struct made all[] = { { "model", "odd", CKPT_F32, 1, { 8 }, odd, 0 },
				    { "model", "whole", CKPT_I64, 1, { 3 }, whole, 0 },
				    { "model", "big", CKPT_F64, 1, { 4 }, big, 0 },
				    { "model", "w", CKPT_F32, 2, { 2, 3 }, w, 0 },
				    { "optim", "w", CKPT_F32, 2, { 2, 3 }, w, 0 },
				    { "model", "wide", CKPT_I16, 2, { 25, 40 }, wide, 0 },
				    { "model", "one", CKPT_U8, 0, { 0 }, &one, 0 } };

	if (make_all(state))
		return -1;
	for (int16_t i = 0; i < 1000; i++)
		wide[i] = i;
	made = strdup(make_made(path_of("%s/made", top), "made", 1, all, ARRAY_LEN(all)));
	return 0;
}

UNIT(.group_setup = make_more, .group_teardown = drop_all);
