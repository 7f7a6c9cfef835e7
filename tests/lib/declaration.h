/* SPDX-License-Identifier: Apache-2.0 */
/* declaration.h - a table as the bytes of a DECLARE, for tests that speak the protocol by hand. */
#ifndef TESTS_LIB_DECLARATION_H
#define TESTS_LIB_DECLARATION_H
#include "ckpt/base/container.h"
#include "ckpt/table/encode.h"
#include "tests/lib/rank.h"
#include "tests/lib/row.h"

/* Seals t and frees it. *ret: malloc'ed. */
static inline void declaration_of(struct table *t, void **ret, uint64_t *ret_len)
{
	struct container_info info = { .kind = CONTAINER_DECLARATION };
	struct table_section s[TABLE_SECTIONS_MAX];
	struct container_bytes sect[TABLE_SECTIONS_MAX];
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	uint32_t n;

	MUST_OK(table_seal(t, &err), &err);
	MUST_OK(table_encode(t, true, &a, s, &n, &err), &err);
	for (uint32_t i = 0; i < n; i++)
		sect[i] = (struct container_bytes)ROW(.kind = s[i].kind,
						      .rec_bytes = s[i].rec_bytes, .p = s[i].bytes,
						      .len = s[i].len, .count = s[i].count);
	MUST_OK(container_encode(&info, sect, n, ret, ret_len, &err), &err);
	table_free(t);
	arena_free(&a);
}
#endif
