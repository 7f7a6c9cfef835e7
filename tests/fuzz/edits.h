/* SPDX-License-Identifier: Apache-2.0 */
/*
 * edits.h - a fuzzer's input as changes to something valid: most of a container is checksums and
 * zeros, so that random bytes would test the checksums and nothing behind them. Every 8 bytes of
 * input are one change: what (1), where (3), a number (4). Where is taken modulo the bytes that
 * mean something.
 */
#ifndef TESTS_EDITS_H
#define TESTS_EDITS_H
#include "tests/fuzz/fuzz.h"

#define EDITS_REGIONS_MAX 160
#define EDITS_MAX 64 /* changes per input; the rest of the input is ignored */

struct edits {
	struct {
		uint8_t *p;
		uint64_t len;
	} region[EDITS_REGIONS_MAX];
	uint32_t nregion;
	uint64_t total;
	struct {
		uint8_t *p;
		uint8_t was;
	} undo[EDITS_MAX * 8];
	uint32_t nundo;
};

static inline void edits_region(struct edits *e, uint8_t *p, uint64_t len)
{
	assert(e->nregion < EDITS_REGIONS_MAX);
	if (!len)
		return;
	e->region[e->nregion].p = p;
	e->region[e->nregion++].len = len;
	e->total += len;
}

static inline void edits_write(struct edits *e, uint64_t at, const uint8_t *v, uint32_t n)
{
	uint32_t i = 0;

	at %= e->total;
	while (at >= e->region[i].len)
		at -= e->region[i++].len;
	for (uint32_t k = 0; k < n && at + k < e->region[i].len; k++) {
		uint8_t *p = e->region[i].p + at + k;

		e->undo[e->nundo].p = p;
		e->undo[e->nundo++].was = *p;
		*p = v[k];
	}
}

static inline void edits_apply(struct edits *e, const uint8_t *data, size_t size)
{
	for (size_t k = 0; k + 8 <= size && k / 8 < EDITS_MAX; k += 8) {
		uint64_t at =
			data[k + 1] | (uint64_t)data[k + 2] << 8 | (uint64_t)data[k + 3] << 16;
		uint8_t v[8];

		memcpy(v, data + k + 4, 4);
		memset(v + 4, data[k] & 4 ? 0xff : 0,
		       4); /* as a number of 8 bytes: small, or near 2^64 */
		switch (data[k] & 3) {
		case 0:
			edits_write(e, at, v, 1);
			break;
		case 1:
			edits_write(e, at & ~UINT64_C(3), v, 4);
			break;
		case 2:
			edits_write(e, at & ~UINT64_C(7), v, 8);
			break;
		case 3: /* a small number */
			memset(v + 1, 0, 7);
			edits_write(e, at & ~UINT64_C(3), v, 4);
			break;
		}
	}
}

static inline void edits_undo(struct edits *e)
{
	while (e->nundo) {
		e->nundo--;
		*e->undo[e->nundo].p = e->undo[e->nundo].was;
	}
}
#endif
