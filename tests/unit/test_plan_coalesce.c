/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_coalesce.c - reads against a bitmap of what was asked for: each byte in exactly one
 * read, and gaps read through exactly where the rule says.
 */
#include "tests/unit/test_layout_naive.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/coalesce.h"
#include "tests/lib/row.h"

#define CASES 3000
#define PLACES 5
#define UNITS 4096
#define MARK (READ_GAP / 25) /* bytes that a mark of the bitmap stands for */

struct want {
	uint8_t is[PLACES][UNITS]; /* 1 wanted, 2 read */
};

static void random_wants(struct want *w, struct reads *r)
{
	uint32_t n = naive_below(40), near = naive_below(2) ? 100 : 0, place = 0, end = 0;

	memset(w, 0, sizeof *w);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t off = end + naive_below(near + 1), len = naive_below(120);

		if (!near || off >= UNITS) {
			place = naive_below(PLACES);
			off = naive_below(UNITS);
		}
		len = len < UNITS - off ? len : UNITS - off;
		assert_int_equal(reads_add(r, place, off * MARK, len * MARK), 0);
		memset(w->is[place] + off, 1, len);
		end = off + len;
	}
}

TEST(every_byte_is_in_one_read_and_gaps_are_read_through_by_the_rule)
{
	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		uint64_t bytes = 0, requests = 0;
		struct reads r = { .n = 0 };
		struct want w;

		random_wants(&w, &r);
		reads_unite(&r);
		for (uint64_t k = 0; k < r.n; k++) {
			const struct read *x = &r.read[k];

			assert_true(x->len > 0 && x->off % MARK == 0 && x->len % MARK == 0);
			bytes += x->len;
			requests += div_up(x->len, READ_MAX);
			for (uint64_t b = x->off / MARK; b < (x->off + x->len) / MARK; b++) {
				assert_false(w.is[x->place][b] & 2);
				w.is[x->place][b] |= 2;
			}
		}
		for (uint32_t p = 0; p < PLACES; p++)
			for (uint32_t b = 0, from = 0; b < UNITS; b++) {
				if (w.is[p][b] & 1) {
					assert_true(w.is[p][b] & 2);
					from = b + 1;
				} else if (from && b + 1 < UNITS && w.is[p][b + 1] & 1) {
					bool through = (b + 1 - from) * MARK <= READ_GAP;

					for (uint32_t g = from; g <= b; g++)
						assert_int_equal(w.is[p][g], through ? 2 : 0);
				}
			}
		assert_int_equal(bytes, r.bytes);
		assert_int_equal(requests, r.requests);
		reads_free(&r);
	}
}

TEST(a_long_stretch_is_read_in_requests_of_the_largest_size)
{
	struct reads r = { .n = 0 };

	assert_int_equal(reads_add(&r, 3, 7, 2 * READ_MAX), 0);
	assert_int_equal(reads_add(&r, 3, 7 + READ_MAX, READ_MAX + 1), 0);
	assert_int_equal(reads_add(&r, 4, 7, 1), 0);
	reads_unite(&r);
	assert_int_equal(r.n, 2);
	assert_int_equal(r.requests, 3 + 1);
	assert_int_equal(r.bytes, 2 * READ_MAX + 1 + 1);
	reads_free(&r);
}
