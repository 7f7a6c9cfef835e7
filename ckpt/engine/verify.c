/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - see verify.h. Called by the verbs that say that a checkpoint is right.
 * Invariant: a byte counts as summed only if a sum covers it, or its value is fixed.
 */
#include "ckpt/engine/verify.h"

static void ranges_count(const struct format_file *f, struct engine_sums *s)
{
	for (uint64_t i = 0; i < f->nrange; i++) {
		const struct format_range *r = &f->range[i];

		if (r->sum != SUM_NONE || r->kind == RANGE_ZERO)
			s->summed += r->len;
		else if (r->kind != RANGE_SLACK)
			s->unsummed += r->len;
	}
}

struct engine_sums engine_sums(const struct checkpoint *k)
{
	struct engine_sums ret = { 0 };

	for (uint32_t i = 0; i < k->nfile; i++) {
		const struct format_file *f = &k->file[i];

		if (f->lost || f->unread)
			continue;
		if (f->nrange)
			ranges_count(f, &ret);
		else if (f->chunk)
			ret.summed += f->file_bytes;
		else
			ret.unsummed += f->file_bytes;
	}
	return ret;
}
