/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout_human.c - bytes, times and moments that people type, and numbers as people read
 * them. */
#include "ckpt/layout/human.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

struct typed {
	const char *s;
	int rc;
	uint64_t n;
};

TEST(bytes_are_typed_with_or_without_a_unit)
{
	static const struct typed t[] = { { "0", 0, 0 },
					  { "4096", 0, 4096 },
					  { "512M", 0, 512 * MIB },
					  { "1G", 0, GIB },
					  { "1g", 0, GIB },
					  { "1GiB", 0, GIB },
					  { "1GB", 0, GIB },
					  { "1.5 GiB", 0, 3 * GIB / 2 },
					  { "0.5K", 0, 512 },
					  { "2.T", 0, 2048 * GIB },
					  { "7B", 0, 7 },
					  { "18446744073709551615", 0, UINT64_MAX },
					  { "18446744073709551616", -ERANGE, 0 },
					  { "16E", -ERANGE, 0 },
					  { "99999999999999999999999999999999999999999999E",
					    -ERANGE, 0 },
					  { "", -EINVAL, 0 },
					  { ".", -EINVAL, 0 },
					  { "G", -EINVAL, 0 },
					  { "-1", -EINVAL, 0 },
					  { "1GX", -EINVAL, 0 },
					  { "1iB", -EINVAL, 0 },
					  { "1e3", -EINVAL, 0 },
					  { " 1", -EINVAL, 0 },
					  { "1 ", -EINVAL, 0 } };

	for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
		uint64_t n = 0;

		if (human_parse_bytes(t[i].s, &n) != t[i].rc || (!t[i].rc && n != t[i].n))
			fail_msg("\"%s\"", t[i].s);
	}
}

TEST(times_are_typed_with_or_without_a_unit)
{
	static const struct typed t[] = { { "0", 0, 0 },
					  { "30", 0, 30 * NS_PER_S },
					  { "30s", 0, 30 * NS_PER_S },
					  { "1.5s", 0, 3 * NS_PER_S / 2 },
					  { "200ms", 0, NS_PER_S / 5 },
					  { "5m", 0, 300 * NS_PER_S },
					  { "5min", 0, 300 * NS_PER_S },
					  { "5 m", 0, 300 * NS_PER_S },
					  { "2h", 0, 7200 * NS_PER_S },
					  { "100d", 0, 8640000 * NS_PER_S },
					  { "0.000000001", 0, 1 },
					  { "99999999999d", -ERANGE, 0 },
					  { "", -EINVAL, 0 },
					  { "s", -EINVAL, 0 },
					  { "-5m", -EINVAL, 0 },
					  { "5 ", -EINVAL, 0 },
					  { "5m30s", -EINVAL, 0 },
					  { "soon", -EINVAL, 0 } };

	for (uint32_t i = 0; i < ARRAY_LEN(t); i++) {
		uint64_t n = 0;

		if (human_parse_time(t[i].s, &n) != t[i].rc || (!t[i].rc && n != t[i].n))
			fail_msg("\"%s\"", t[i].s);
	}
}

TEST(a_moment_is_a_duration_with_a_unit_or_a_date_that_is_to_come)
{
	static const struct {
		const char *text;
		int rc;
		uint64_t s;
	} t[] = {
		{ "90m", 0, 1000 + 5400 },
		{ "2w", 0, 1000 + 14 * 86400 },
		{ "1970-01-01T00:20:00Z", 0, 1200 },
		{ "1970-01-01t02:20:00.999+02:00", 0, 1200 },
		{ "1970-01-01 00:00:00-00:20", 0, 1200 },
		{ "1970-01-01T00:16:40Z", -ERANGE, 0 },
		{ "1970-02-30T00:00:00Z", -EINVAL, 0 },
		{ "1970-01-01T00:20:00", -EINVAL, 0 },
		{ "1970-01-01T00:20:00.Z", -EINVAL, 0 },
		{ "90", -EINVAL, 0 },
		{ "0s", -EINVAL, 0 },
		{ "w", -EINVAL, 0 },
		{ "", -EINVAL, 0 },
		{ "99999999999999999999999999999999d", -EINVAL, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		uint64_t ns = 0;

		if (human_parse_moment(t[i].text, 1000 * NS_PER_S, &ns) != t[i].rc)
			fail_msg("%s", t[i].text);
		if (!t[i].rc && ns != t[i].s * NS_PER_S)
			fail_msg("%s is %llu", t[i].text, (unsigned long long)ns);
	}
}

TEST(spans_are_told_in_two_numbers_at_most)
{
	static const struct {
		uint64_t ns;
		const char *s;
	} t[] = { { 0, "0 ns" },
		  { 999, "999 ns" },
		  { 1500, "1.50 us" },
		  { 85000, "85.0 us" },
		  { 123456789, "123 ms" },
		  { 1240 * NS_PER_MS, "1.24 s" },
		  { 119 * NS_PER_S, "119 s" },
		  { 130 * NS_PER_S, "2m 10s" },
		  { (3 * 3600 + 5 * 60 + 59) * NS_PER_S, "3h 5m" },
		  { (4 * 86400 + 2 * 3600) * NS_PER_S, "4d 2h" },
		  { UINT64_MAX, "213503d 23h" } };
	char buf[HUMAN_BYTES];

	for (uint32_t i = 0; i < ARRAY_LEN(t); i++)
		assert_string_equal(human_span(t[i].ns, buf), t[i].s);
}

TEST(a_price_is_a_span)
{
	char buf[HUMAN_BYTES];

	assert_string_equal(human_us(0, buf), "0 ns");
	assert_string_equal(human_us(.6, buf), "600 ns");
	assert_string_equal(human_us(14.4, buf), "14.4 us");
	assert_string_equal(human_us(4.2e9, buf), "1h 10m");
	assert_string_equal(human_us(1e40, buf), human_span(UINT64_MAX, (char[HUMAN_BYTES]){ 0 }));
}

TEST(sizes_have_three_digits_and_a_unit)
{
	static const struct {
		uint64_t n;
		const char *text;
	} want[] = ROW({ 0, "0 B" }, { 512, "512 B" }, { 1023, "1023 B" }, { 1024, "1.00 KiB" },
		       { 1536, "1.50 KiB" }, { 10239, "10.0 KiB" }, { 10240, "10.0 KiB" },
		       { 102399, "100 KiB" }, { 1023 * 1024, "1.00 MiB" }, { MIB, "1.00 MiB" },
		       { 999 * MIB, "999 MiB" }, { 5 * GIB / 2, "2.50 GiB" },
		       { UINT64_MAX, "16.0 EiB" });
	char buf[HUMAN_BYTES];

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
		assert_string_equal(human_bytes(want[i].n, buf), want[i].text);
}

TEST(counts_are_grouped_by_thousands)
{
	char buf[HUMAN_BYTES];

	assert_string_equal(human_count(0, buf), "0");
	assert_string_equal(human_count(999, buf), "999");
	assert_string_equal(human_count(1000, buf), "1,000");
	assert_string_equal(human_count(1203200, buf), "1,203,200");
	assert_string_equal(human_count(UINT64_MAX, buf), "18,446,744,073,709,551,615");
}

TEST(ages_take_the_largest_unit_that_fits_twice)
{
	static const struct {
		uint64_t s;
		const char *text;
	} want[] = { { 0, "now" },	   { 1, "1s" },
		     { 119, "119s" },	   { 120, "2m" },
		     { 7199, "119m" },	   { 7200, "2h" },
		     { 2 * 86400, "2d" },  { 13 * 86400, "13d" },
		     { 14 * 86400, "2w" }, { 729 * 86400, "104w" },
		     { 730 * 86400, "2y" } };
	uint64_t now = 2000000000 * NS_PER_S;
	char buf[HUMAN_BYTES];

	for (uint32_t i = 0; i < ARRAY_LEN(want); i++)
		assert_string_equal(human_age(now - want[i].s * NS_PER_S, now, buf), want[i].text);
	assert_string_equal(human_age(now + NS_PER_S, now, buf), "now");
	assert_string_equal(human_age(0, now, buf), "-");
	assert_string_equal(human_time_utc(UINT64_C(1700000000) * NS_PER_S, buf),
			    "2023-11-14T22:13:20Z");
}

TEST(a_set_is_told_by_its_runs_and_a_full_dimension_by_a_colon)
{
	const struct run rows = { 0, 2, 4, 2 }, many = { 1, 1, 3, 1000000 }, all = { 0, 9, 9, 1 };
	const struct indices dim[] = {
		{ 1, 4, &rows }, { 1, 9, &all }, { 1, 1000000, &many }, { 0, 0, NULL }
	};
	const struct indexset set = { 4, 0, dim };
	const uint64_t shape[] = { 8, 9, 4000000, 5 };
	char buf[256], little[12];

	assert_string_equal(human_set(&set, shape, buf, sizeof buf),
			    "[0:2 4:6, :, 1:2 4:5 7:8 .. 2999998:2999999 (1000000 runs), none]");
	assert_string_equal(human_set(&set, NULL, little, sizeof little), "[0:2 4:6,..");
	assert_string_equal(human_shape(2, shape, buf, sizeof buf), "[8, 9]");
	assert_string_equal(human_shape(0, NULL, buf, sizeof buf), "[]");
}

TEST(names_one_slip_apart_are_near)
{
	assert_int_equal(human_distance("verify", "verify", 2), 0);
	assert_int_equal(human_distance("verfiy", "verify", 2), 1);
	assert_int_equal(human_distance("vrify", "verify", 2), 1);
	assert_int_equal(human_distance("ls", "show", 2), UINT32_MAX);
	assert_int_equal(human_distance("", "ab", 2), 2);
}
