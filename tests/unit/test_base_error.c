/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_error.c - errors, lists of mismatches, log lines, element types and the small words. */
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/log.h"
#include "tests/lib/unit.h"

TEST(an_error_keeps_its_code_and_its_sentence)
{
	struct ckpt_err e;

	assert_int_equal(ckpt_error(&e, -EBUSY, "rank %d is taken", 3), -EBUSY);
	assert_int_equal(e.code, -EBUSY);
	assert_string_equal(e.msg, "rank 3 is taken");
	assert_int_equal(ckpt_error(NULL, -EBUSY, "rank %d", 3), -EBUSY);
}

TEST(a_sentence_that_does_not_fit_ends_in_dots)
{
	struct ckpt_err e;
	char s[2 * sizeof e.msg];

	memset(s, 'x', sizeof s - 1);
	s[sizeof s - 1] = 0;
	ckpt_error(&e, -EINVAL, "%s", s);
	assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
	assert_string_equal(e.msg + sizeof e.msg - 4, "x..");
	s[sizeof e.msg - 1] = 0; /* the longest that fits is not cut */
	ckpt_error(&e, -EINVAL, "%s", s);
	assert_string_equal(e.msg, s);
	ckpt_error_prefix(&e, -EINVAL, "a");
	assert_memory_equal(e.msg, "a: xx", 5);
	assert_string_equal(e.msg + sizeof e.msg - 4, "x..");
	ckpt_error_errno(&e, ENOSPC, "%s", s);
	assert_string_equal(e.msg + sizeof e.msg - 4, "x..");
}

TEST(a_system_error_ends_in_its_description)
{
	struct ckpt_err e;

	assert_int_equal(ckpt_error_errno(&e, ENOSPC, "write %s", "a.part"), -ENOSPC);
	assert_string_equal(e.msg, "write a.part: No space left on device");
	assert_int_equal(ckpt_error_errno(&e, 123456, "x"), -123456);
	assert_string_equal(e.msg, "x: error 123456");
	assert_int_equal(ckpt_error_errno(NULL, ENOSPC, "x"), -ENOSPC);
}

TEST(a_prefix_goes_in_front_and_the_code_stays)
{
	struct ckpt_err e;

	ckpt_error(&e, -EBADMSG, "its checksum is wrong");
	assert_int_equal(ckpt_error_prefix(&e, -EIO, "trailer of %s", "x"), -EBADMSG);
	assert_int_equal(e.code, -EBADMSG);
	assert_string_equal(e.msg, "trailer of x: its checksum is wrong");
	assert_int_equal(ckpt_error_prefix(NULL, -EIO, "x"), -EIO);
	ckpt_error(&e, -EBADMSG, "%s again", e.msg); /* arguments may be the message itself */
	assert_string_equal(e.msg, "trailer of x: its checksum is wrong again");
}

TEST(an_empty_list_is_no_error)
{
	cleanup_errlist struct ckpt_errlist l = { .code = -EMEDIUMTYPE };
	struct ckpt_err e = { .code = 7 };

	assert_int_equal(ckpt_errlist_end(&l, &e, "x"), 0);
	assert_int_equal(e.code, 7);
}

TEST(a_list_shows_all_lines_that_fit_and_counts_the_rest)
{
	cleanup_errlist struct ckpt_errlist l = { .code = -EMEDIUMTYPE };
	struct ckpt_err e;
	uint64_t shown = 0;
	unsigned long long more;

	ckpt_errlist_add(&l, "a: %s", "one\nline");
	ckpt_errlist_add(&l, "b");
	assert_int_equal(ckpt_errlist_end(&l, &e, "step %d does not fit", 5), -EMEDIUMTYPE);
	assert_string_equal(e.msg, "step 5 does not fit:\na: one line\nb");
	assert_string_equal(l.text, "a: one line\nb");
	for (int i = 0; i < 20000; i++)
		ckpt_errlist_add(&l, "line %d", i);
	assert_int_equal(l.n, 20002);
	assert_true(l.used < CKPT_ERRLIST_BYTES);
	assert_int_equal(strlen(l.text), l.used);
	assert_int_equal(ckpt_errlist_end(&l, &e, "step %d does not fit", 5), -EMEDIUMTYPE);
	assert_int_equal(ckpt_errlist_end(&l, NULL, "x"), -EMEDIUMTYPE);
	for (char *c = e.msg; (c = strchr(c, '\n')); c++)
		shown++;
	assert_int_equal(sscanf(strrchr(e.msg, '\n'), "\nand %llu more", &more), 1);
	assert_int_equal(shown - 1 + more, 20002);
	assert_true(strlen(e.msg) > sizeof e.msg - 60);
}

TEST(a_line_longer_than_the_list_is_only_counted)
{
	cleanup_errlist struct ckpt_errlist l = { .code = -EMEDIUMTYPE };
	static char s[CKPT_ERRLIST_BYTES + 10];
	struct ckpt_err e;

	memset(s, 'x', sizeof s - 1);
	ckpt_errlist_add(&l, "first");
	ckpt_errlist_add(&l, "%s", s);
	ckpt_errlist_add(&l, "third");
	assert_string_equal(l.text, "first\nthird");
	ckpt_errlist_end(&l, &e, "x");
	assert_string_equal(e.msg, "x:\nfirst\nthird\nand 1 more");
	ckpt_errlist_free(&l);
	s[sizeof e.msg + 100] =
		0; /* a first line longer than the message is cut, and the rest still counted */
	ckpt_errlist_add(&l, "%s", s);
	ckpt_errlist_add(&l, "second");
	ckpt_errlist_end(&l, &e, "x");
	assert_memory_equal(e.msg, "x:\nxxx", 6);
	assert_string_equal(strrchr(e.msg, '\n'), "\nand 1 more");
}

static int last_level;
static char last_line[2000];

static void keep_line(void *ctx, int level, const char *line)
{
	++*(int *)ctx;
	last_level = level;
	snprintf(last_line, sizeof last_line, "%s", line);
}

TEST(a_log_line_is_one_line_of_at_most_a_kibibyte)
{
	int n = 0;
	struct log l = { .sink = keep_line, .ctx = &n, .level_max = LOG_INFO };
	char s[2000];

	log_line(&l, LOG_INFO, "io: wrote name=%s", "a\nb\x1b[31m");
	assert_int_equal(n, 1);
	assert_int_equal(last_level, LOG_INFO);
	assert_string_equal(last_line, "io: wrote name=a b [31m");
	log_line(&l, LOG_DEBUG, "io: not this");
	assert_int_equal(n, 1);
	memset(s, 'x', sizeof s - 1);
	s[sizeof s - 1] = 0;
	log_line(&l, LOG_ERROR, "%s", s);
	assert_int_equal(strlen(last_line), 1023);
	assert_string_equal(last_line + 1019, "x...");
	log_line(&(struct log){ .level_max = LOG_DEBUG }, LOG_ERROR, "nobody listens");
	assert_int_equal(n, 2);
}

TEST(standard_error_gets_time_level_and_line_in_one_write)
{
	int p[2], keep = dup(STDERR_FILENO);
	char got[3000], s[2000];
	ssize_t n;

	assert_int_equal(pipe(p), 0);
	dup2(p[1], STDERR_FILENO);
	log_to_stderr(NULL, LOG_WARNING, "store: slow disk ms=7");
	n = read(p[0], got, sizeof got - 1);
	memset(s, 'x', sizeof s - 1);
	s[sizeof s - 1] = 0;
	log_to_stderr(NULL, LOG_ERROR, s);
	dup2(keep, STDERR_FILENO);
	close(keep);
	assert_true(n > 0);
	got[n] = 0;
	assert_string_equal(got + 24, " warning store: slow disk ms=7\n");
	assert_int_equal(got[10], 'T');
	assert_int_equal(got[23], 'Z');
	n = read(p[0], got, sizeof got);
	assert_true(n > 1024 && n < 1100);
	assert_int_equal(got[n - 1], '\n');
	close(p[0]);
	close(p[1]);
}

TEST(every_element_type_has_a_size_and_finds_its_name)
{
	for (uint32_t d = CKPT_BOOL; d <= CKPT_F4; d++) {
		assert_true(dtype_bytes(d) >= 1 && dtype_bytes(d) <= 16);
		assert_int_equal(dtype_of_name(dtype_name(d)), d);
	}
	assert_int_equal(dtype_bytes(CKPT_BF16), 2);
	assert_int_equal(dtype_bytes(CKPT_C64), 8);
	assert_int_equal(dtype_bytes(CKPT_C128), 16);
	assert_int_equal(dtype_bytes(CKPT_C32), 4);
	assert_int_equal(dtype_bytes(CKPT_F4), 1);
	/* The numbers are on disk. */
	assert_int_equal(CKPT_C128, 18);
	assert_int_equal(CKPT_C32, 19);
	assert_int_equal(CKPT_F8_E4M3FNUZ, 20);
	assert_int_equal(CKPT_F8_E5M2FNUZ, 21);
	assert_int_equal(CKPT_F4, 22);
	for (uint32_t d = 0; d <= CKPT_F4; d++)
		assert_int_equal(dtype_values(d), d == CKPT_F4 ? 2 : 1);
	assert_string_equal(dtype_name(CKPT_F8_E4M3), "F8_E4M3");
	assert_int_equal(dtype_bytes(0), 0);
	assert_int_equal(dtype_bytes(CKPT_F4 + 1), 0);
	assert_int_equal(dtype_bytes(UINT32_MAX), 0);
	assert_string_equal(dtype_name(0), "?");
	assert_int_equal(dtype_of_name("BF17"), 0);
	assert_int_equal(dtype_of_name("?"), 0);
	assert_string_equal(role_name(CKPT_COUNTER), "counter");
	assert_string_equal(role_name(CKPT_COUNTER + 1), "?");
	assert_string_equal(media_name(0), "raw");
	assert_string_equal(media_name(CKPT_JSON >> 8), "json");
	assert_string_equal(media_name(CKPT_TEXT >> 8), "text");
	assert_string_equal(media_name(CKPT_PICKLE >> 8), "pickle");
	assert_string_equal(media_name(CKPT_TORCH >> 8), "torch");
	assert_string_equal(media_name(CKPT_NPY >> 8), "npy");
	assert_string_equal(media_name(6), "?");
	assert_string_equal(class_name(CKPT_SINK), "sink");
	assert_string_equal(class_name(CKPT_SINK + 1), "?");
}

TEST(little_endian_integers_survive_a_round_trip)
{
	le64 v = le64_of(UINT64_C(0x0102030405060708));
	uint64_t x;

	assert_memory_equal(v.b, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
	assert_true(le64_get(v) == UINT64_C(0x0102030405060708));
	assert_true(le32_get(le32_of(0xfffefdfc)) == 0xfffefdfc);
	assert_true(le16_get(le16_of(0xfffe)) == 0xfffe);
	assert_int_equal(ckpt_add(UINT64_MAX, 1, &x), -EOVERFLOW);
	assert_int_equal(ckpt_mul(UINT64_MAX / 2 + 1, 2, &x), -EOVERFLOW);
	assert_int_equal(ckpt_mul(1 << 20, 1 << 20, &x), 0);
	assert_true(x == UINT64_C(1) << 40);
	assert_true(align_up(4097, 4096) == 8192 && align_up(4096, 4096) == 4096);
	assert_true(div_up(9, 4) == 3 && div_up(8, 4) == 2 &&
		    div_up(UINT64_MAX, 2) == UINT64_C(1) << 63);
}
