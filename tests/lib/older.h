/* SPDX-License-Identifier: Apache-2.0 */
/*
 * older.h - for tests: a store whose steps an older version wrote, format 0.0 of ckptd 0.1. That is
 * the real one of tests/vectors/v0-store: job demo, steps 10 (held by paper), 20 (tagged best) and
 * 30.
 */
#ifndef CKPT_TESTS_LIB_OLDER_H
#define CKPT_TESTS_LIB_OLDER_H
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* The job of the vectors, as DIR/demo; DIR is there, demo is not, or is empty but for what it
 * gets. */
static inline bool older_store(const char *dir)
{
	char text[600];

	(void)snprintf(text, sizeof text, "tar -xzf tests/vectors/v0-store/store.tar.gz -C '%s'",
		       dir);
	return system(text) == 0;
}
#endif
