/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_numbers.c - sizes and durations as people type them, and the options of retention. A number
 * is taken or refused with a reason; what is taken is what a slower hand makes of it, within half a
 * unit; and nothing is read behind the end.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/retain.h"
#include "ckpt/store/store_policy.h"
#include <math.h>
#include <stdio.h>

/* The value by strtold, where it takes the same characters. */
static bool about(const char *s, uint64_t have)
{
	char *end;
	long double v;

	if (*s < '0' || *s > '9')
		return true;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X'))
		return false; /* is no decimal number */
	v = strtold(s, &end);
	/* Units only make it larger. */
	return (long double)have + 1 >= v;
}

static void number(const char *s)
{
	uint64_t bytes = 0, ns = 0;
	char buf[HUMAN_BYTES];
	int r = human_parse_bytes(s, &bytes);

	assert(r == 0 || r == -EINVAL || r == -ERANGE);
	if (r == 0) {
		assert(*s && about(s, bytes));
		(void)human_bytes(bytes, buf);
		(void)human_count(bytes, buf);
		assert(strlen(buf) < sizeof buf);
	}
	r = human_parse_time(s, &ns);
	assert(r == 0 || r == -EINVAL || r == -ERANGE);
	if (r == 0) {
		assert(*s);
		(void)human_span(ns, buf);
		(void)human_age(1, ns, buf);
		(void)human_time_utc(ns, buf);
		assert(strlen(buf) < sizeof buf);
	}
}

/* What is read from a file or a message is printed, and read again, as the same policy. */
static void lines(const char *s)
{
	struct store_policy file = { 0 };
	struct retain_policy p = { 0 }, again = { 0 };
	char text[RETAIN_TEXT_MAX], more[RETAIN_TEXT_MAX];
	struct ckpt_err err = { 0 };
	int r = store_policy_parse(s, strlen(s), &file, &err);

	assert(r == 0 || r == -EPROTO || r == -EPROTONOSUPPORT);
	if (retain_lines(&p, s, &err) < 0) {
		assert(err.code == -EINVAL || err.code == -EOPNOTSUPP);
		return;
	}
	retain_lines_print(&p, text, sizeof text);
	assert(retain_lines(&again, text, &err) == 0);
	retain_lines_print(&again, more, sizeof more);
	assert(strcmp(text, more) == 0);
}

static void retention(const char *s)
{
	static const char *const option[] = { "keep-last", "keep-every", "keep-within",
					      "keep-best" };
	struct retain_policy p = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(option); i++) {
		struct ckpt_err err = { 0 };
		const struct retain_policy was = p;

		if (retain_parse(&p, option[i], s, &err) < 0)
			assert(err.code == -EINVAL && err.msg[0] && !memcmp(&p, &was, sizeof p));
	}
	lines(s);
	for (uint32_t i = 0; i < p.nbest; i++)
		assert(memchr(p.best[i].key, 0, sizeof p.best[i].key) && p.best[i].n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *s = fuzz_text(data, size);

	number(s);
	retention(s);
	free(s);
	return 0;
}
