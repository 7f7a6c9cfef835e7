/* SPDX-License-Identifier: Apache-2.0 */
/*
 * each_pages.h - the private part of ckpt/base/pages.h as a test has it: libc.h makes it fail as
 * well, which comes before it. Include it into one file of a test program that needs nothing else
 * of pages.c, whose place it takes.
 */
#ifndef TESTS_EACH_PAGES_H
#define TESTS_EACH_PAGES_H
#include "ckpt/base/pages.h"
#include "tests/lib/libc.h"
#include <sys/mman.h>

void *pages_new(uint64_t bytes)
{
	void *p = no_memory_now() ? MAP_FAILED
				  : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void pages_free(void *p, uint64_t bytes)
{
	if (p)
		(void)munmap(p, bytes);
}
#endif
