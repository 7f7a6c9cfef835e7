/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - a stream that keeps what is printed. */
#ifndef TESTS_LIB_PAGE_H
#define TESTS_LIB_PAGE_H
#include <stdio.h>
#include "tests/lib/unit.h"

struct page {
	FILE *f;
	char *text;
	size_t len;
};

static inline void page_open(struct page *p)
{
	p->f = open_memstream(&p->text, &p->len);
	assert_non_null(p->f);
}

static inline const char *page_read(struct page *p)
{
	fflush(p->f);
	return p->text;
}

static inline void page_close(struct page *p)
{
	fclose(p->f);
	free(p->text);
}
#endif
