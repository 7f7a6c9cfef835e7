/* SPDX-License-Identifier: Apache-2.0 */
/* part_data.h - where the chunks of a part lie, with the padding between them: by its ranges. */
#ifndef CKPT_TEST_PART_DATA_H
#define CKPT_TEST_PART_DATA_H
#include "formats/format.h"

static inline bool data_range(const struct format_range *r)
{
	return r->kind == RANGE_DATA || (r->kind == RANGE_ZERO && r->sum != SUM_OPEN);
}

static inline uint64_t data_from(const struct format_file *f)
{
	for (uint64_t i = 0; i < f->nrange; i++)
		if (data_range(&f->range[i]))
			return f->range[i].off;
	return 4096; /* no data at all: behind the header */
}

static inline uint64_t data_to(const struct format_file *f)
{
	for (uint64_t i = f->nrange; i-- > 0;)
		if (data_range(&f->range[i]))
			return f->range[i].off + f->range[i].len;
	return 4096;
}
#endif
