/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_text.c - texts that are put together in a buffer. */
#include "ckpt/base/text.h"
#include "tests/lib/unit.h"
#include <string.h>

TEST(a_text_that_fits_is_there_and_one_that_does_not_is_cut_with_two_dots)
{
	for (size_t bytes = 1; bytes < 20; bytes++) {
		char buf[24];
		struct text t;

		memset(buf, '!', sizeof buf);
		t = text_in(buf, bytes);
		assert_string_equal(buf, "");
		text_add(&t, "%s", "abcde");
		text_add(&t, "%u", 12345);
		text_add(&t, "%s", "");
		assert_int_equal(buf[bytes], '!');
		if (bytes > 10) {
			assert_string_equal(buf, "abcde12345");
			assert_int_equal(t.len, 10);
			continue;
		}
		assert_int_equal(strlen(buf), bytes - 1);
		assert_int_equal(t.len, bytes);
		if (bytes > 3) {
			assert_memory_equal(buf, "abcde12345", bytes - 3);
			assert_string_equal(buf + bytes - 3, "..");
		}
		text_add(&t, "%s", "more"); /* behind a cut nothing is added */
		assert_int_equal(strlen(buf), bytes - 1);
	}
}
