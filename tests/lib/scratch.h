/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scratch.h - a temporary directory of a test, in $TMPDIR; in /tmp where sockets in it would have
 * too long a name. Who aborts leaves it: a handler may not remove
 * it, and tests/run.sh removes $TMPDIR.
 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H
#include <stddef.h>
#include <stdint.h>

#define SCRATCH_MAX 64 /* bytes of its name: what lies in it and is a socket may have 40 more */

void scratch_make(char ret[SCRATCH_MAX]);
int scratch_remove(const char *dir); /* 0, also when there is none */

uint32_t open_files(void); /* how many descriptors this process has */
#endif
