/* SPDX-License-Identifier: Apache-2.0 */
/* without_memory.h - each allocation of what a test does fails; for programs that are linked with
 * libc.c. */
#ifndef TESTS_LIB_WITHOUT_MEMORY_H
#define TESTS_LIB_WITHOUT_MEMORY_H
#include "ckpt/base/error.h"
#include "tests/lib/libc.h"
#include "tests/lib/unit.h"

/* Do it with failing allocations until none fails: one of them; all from one on; and where there
 * are three ways, all once more with err NULL: nobody asks why. */
static inline void without_memory(int ways, const char *what,
				  int (*act)(void *arg, struct ckpt_err *err), void *arg)
{
	for (int way = 0; way < ways; way++) {
		uint32_t n = 0, refused = 0;

		for (;; n++) {
			struct ckpt_err err = { 0 };
			uint64_t failed;
			int r;

			assert_true(n < 20000);
			no_memory_from(n, way > 0);
			r = act(arg, way < 2 ? &err : NULL);
			failed = no_memory_end();
			if (r != 0 && (!failed || r != -ENOMEM))
				fail_msg("%s, allocation %u fails: %d, %s", what, n, r, err.msg);
			if (r != 0 && way < 2 && (err.code != r || !strstr(err.msg, "memory")))
				fail_msg("%s, allocation %u fails: %d, but it says %d: %s", what, n,
					 r, err.code, err.msg);
			refused += r != 0;
			if (!failed)
				break;
		}
		printf("# %s: %u allocations, refused %u times\n", what, n, refused);
		assert_true(refused > 0);
	}
}
#endif
