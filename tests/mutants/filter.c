/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filter.c - linked into the unit tests of V=mutant: CKPT_TEST_FILTER is a pattern (* and ?) of the
 * cases that run. Each mistake is held against the cases that should find it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

__attribute__((constructor)) static void filter(void)
{
	const char *pattern = getenv("CKPT_TEST_FILTER");

	if (pattern && *pattern)
		cmocka_set_test_filter(pattern);
}
