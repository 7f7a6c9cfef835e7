/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_coalesce.c - reads against a bitmap of what was asked for: each byte in exactly one
 * read, gaps read through exactly where the rule says, chunks whole and once, files in balance.
 */
#include "tests/unit/test_layout_naive.h"
#include "ckpt/plan/coalesce.h"
#include "tests/lib/row.h"

#define CASES 3000
#define PLACES 5
#define BYTES 4096

struct want {
	uint8_t is[PLACES][BYTES + 64]; /* 1 wanted, 2 read */
};

static uint64_t random_wants(struct want *w, struct reads *r)
{
	uint32_t n = naive_below(40), near = naive_below(2) ? 100 : 0, place = 0, end = 0;
	uint64_t sum = 0;

	memset(w, 0, sizeof *w);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t off = end + naive_below(near + 1), len = naive_below(120);

		if (!near || off >= BYTES) {
			place = naive_below(PLACES);
			off = naive_below(BYTES);
		}
		len = len < BYTES - off ? len : BYTES - off;
		assert_int_equal(reads_add(r, place, off, len), 0);
		memset(w->is[place] + off, 1, len);
		sum += len;
		end = off + len;
	}
	return sum;
}

TEST(every_byte_is_in_one_read_and_gaps_are_read_through_by_the_rule)
{
	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		/* 1 ns a byte: the gap is what a request costs */
		struct read_cost cost = { 1 + naive_below(60), NS_PER_S, 1 + naive_below(800) };
		uint64_t gap = read_cost_gap(&cost), bytes = 0, wanted;
		struct reads r;
		struct want w;

		assert_int_equal(gap, cost.request_ns);
		reads_begin(&r, &cost, 0);
		wanted = random_wants(&w, &r);
		assert_int_equal(reads_make(&r, NULL, naive_below(9)), 0);
		for (uint64_t k = 0; k < r.nread; k++) {
			const struct read *x = &r.read[k];

			assert_true(x->len > 0 && x->len <= cost.read_max);
			bytes += x->len;
			for (uint64_t b = x->off; b < x->off + x->len; b++) {
				assert_false(w.is[x->place][b] & 2);
				w.is[x->place][b] |= 2;
			}
		}
		for (uint32_t p = 0; p < PLACES; p++)
			for (uint32_t b = 0, from = 0; b < BYTES; b++) {
				if (w.is[p][b] & 1) {
					assert_true(w.is[p][b] & 2);
					from = b + 1;
				} else if (from && b + 1 < BYTES && w.is[p][b + 1] & 1) {
					bool through = b + 1 - from <= gap;

					for (uint32_t g = from; g <= b; g++)
						assert_int_equal(w.is[p][g], through ? 2 : 0);
				}
			}
		assert_int_equal(bytes, r.bytes);
		assert_int_equal(wanted, r.wanted_bytes);
		reads_free(&r);
	}
}

TEST(chunks_are_read_whole_and_once_however_many_need_them)
{
	const uint64_t bytes[PLACES] = { BYTES, BYTES + 10, BYTES, BYTES + 33, BYTES };

	naive_seed(__func__);
	for (int i = 0; i < CASES; i++) {
		struct read_cost cost = { 1, 1, 200 }; /* nothing is read through */
		struct reads r;
		struct want w;

		reads_begin(&r, &cost, 6);
		random_wants(&w, &r);
		assert_int_equal(reads_make(&r, bytes, 0), 0);
		for (uint64_t k = 0; k < r.nread; k++) {
			const struct read *x = &r.read[k];

			assert_int_equal(x->off % 64, 0);
			assert_true(x->len <= 192);
			assert_true(x->len % 64 == 0 || x->off + x->len == bytes[x->place]);
			for (uint64_t c = x->off / 64; c < div_up(x->off + x->len, 64); c++) {
				bool any = false;

				for (uint64_t b = c * 64; b < c * 64 + 64; b++) {
					any |= w.is[x->place][b] & 1;
					assert_false(w.is[x->place][b] & 2);
					w.is[x->place][b] |= 2;
				}
				assert_true(any);
			}
		}
		for (uint32_t p = 0; p < PLACES; p++)
			for (uint32_t b = 0; b < BYTES; b++)
				assert_int_not_equal(w.is[p][b], 1);
		reads_free(&r);
	}
}

TEST(at_any_time_all_files_have_given_the_same_fraction)
{
	struct read_cost cost = { 1, 1, 1000 };
	uint64_t given[3] = { 0 };
	struct reads r;

	for (uint32_t turn = 0; turn < 3; turn++) {
		reads_begin(&r, &cost, 0);
		for (uint32_t p = 0; p < 3; p++) {
			assert_int_equal(reads_add(&r, p, 5, (p + 1) * 100000), 0);
			given[p] = 0;
		}
		assert_int_equal(reads_make(&r, NULL, turn), 0);
		assert_int_equal(r.nread, 600);
		assert_int_equal(r.read[0].place, turn);
		for (uint64_t k = 0; k < r.nread; k++) {
			uint32_t p = r.read[k].place;

			assert_int_equal(r.read[k].off, 5 + given[p]);
			given[p] += r.read[k].len;
			for (uint32_t q = 0; q < 3; q++)
				assert_true(given[p] / (p + 1) <= given[q] / (q + 1) + 1000);
		}
		reads_free(&r);
	}
}
