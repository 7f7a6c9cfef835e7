/* SPDX-License-Identifier: Apache-2.0 */
/*
 * each_pages.h - the private part of ckpt/base/pages.h as a test has it: from malloc, so that no_memory.h
 * makes it fail as well. Include it behind that into one file of a test program that needs nothing else
 * of pages.c, whose place it takes.
 */
#ifndef TESTS_EACH_PAGES_H
#define TESTS_EACH_PAGES_H
#include "ckpt/base/pages.h"
#include <stdlib.h>
#include <string.h>

void *pages_new(uint64_t bytes)
{
	size_t whole = (bytes + 4095) / 4096 * 4096;
	void *p = bytes ? aligned_alloc(4096, whole) : NULL;

	if (p)
		memset(p, 0, whole);
	return p;
}

void pages_free(void *p, uint64_t bytes)
{
	(void)bytes;
	free(p);
}
#endif
