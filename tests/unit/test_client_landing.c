/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_landing.c - what a daemon's window brings goes where it was declared and nowhere
 * else, and memory that is not there is an error.
 */
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
#include "tests/lib/unit.h"
#include <sys/mman.h>

#define WINDOW (64u << 10)
#define AT 4096u /* of the bytes in the window */

static struct landings k;
static struct source_span span;
static uint8_t *window, *page; /* page: three of them */

static int setup(void **state)
{
	int fd[WIRE_FDS_MAX] = { -1, -1, -1, -1, -1, -1, -1, -1 };
	struct ckpt_err err;
	struct wire_landed m = { .bytes = WINDOW };
	void *p;

	(void)state;
	assert_int_equal(wire_memfd("window", WINDOW, &fd[0], &err), 0);
	assert_int_equal(wire_map(fd[0], WINDOW, 0, &p, &err), 0);
	window = p;
	for (uint32_t i = AT; i < WINDOW; i++)
		window[i] = (uint8_t)(i * 7 + i / 251);
	fd[1] = dup(fd[0]);
	page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(page != MAP_FAILED);
	span = (struct source_span){ (uintptr_t)page + 100, (uintptr_t)page + 3 * 4096 - 100, 0 };
	k = (struct landings){ .span = &span, .nspan = 1, .fd = { -1, -1 } };
	assert_int_equal(landing_take(&k, &m, fd), 0); /* which takes them */
	assert_int_equal(fd[0], -1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	k.span = NULL;
	landings_end(&k);
	munmap(window, WINDOW);
	munmap(page, 3 * 4096);
	return 0;
}

static int land(uint32_t n, const struct wire_row *row)
{
	struct wire_landed m = { .window = 1, .nrow = n, .bytes = WINDOW };
	int none[WIRE_FDS_MAX] = { -1, -1, -1, -1, -1, -1, -1, -1 };

	memcpy(window, row, n * sizeof *row);
	return landing_take(&k, &m, none);
}

static struct wire_row row_of(uint64_t dst, uint64_t width, uint64_t rows, uint64_t src_pitch,
			      uint64_t dst_pitch)
{
	return (struct wire_row){ .flags = WIRE_ROW_CLIENT,
				  .src = AT,
				  .dst = (uintptr_t)page + dst,
				  .width = width,
				  .rows = rows,
				  .src_pitch = src_pitch,
				  .dst_pitch = dst_pitch };
}

TEST(rows_are_carried_line_by_line)
{
	struct wire_row r = row_of(200, 3, 700, 5, 11);

	assert_int_equal(land(1, &r), 0);
	for (uint32_t i = 0; i < 700; i++)
		for (uint32_t b = 0; b < 11; b++)
			assert_int_equal(page[200 + i * 11 + b],
					 b < 3 ? window[AT + i * 5 + b] : 0);
}

TEST(many_rows_are_carried_in_their_order)
{
	struct wire_row r[60];

	for (uint32_t i = 0; i < 60; i++) {
		r[i] = row_of(200 + i * 100, 90, 1, 0, 0);
		r[i].src = AT + i * 90;
	}
	assert_int_equal(land(60, r), 0);
	for (uint32_t i = 0; i < 60; i++)
		assert_memory_equal(page + 200 + i * 100, window + AT + i * 90, 90);
}

static bool untouched(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (page[i])
			return false;
	return true;
}

TEST(no_byte_outside_of_what_was_declared_is_written)
{
	const struct wire_row bad[] = {
		row_of(99, 8, 1, 0, 0),
		row_of(3 * 4096 - 107, 8, 1, 0, 0),
		row_of(200, 8, 1000, 8, 4096),
		row_of(200, 8, 3, 8, UINT64_MAX - 100),
		row_of(200, UINT64_MAX - 100, 1, 0, 0),
		row_of(200, 8, UINT64_MAX, 1, 1),
		row_of(200, WINDOW - AT + 1, 1, 0, 0),
		row_of(200, 8, WINDOW, 8, 0),
		row_of(200, 8, UINT64_C(1) << 40, 0, 0), /* it would take a day */
		row_of(200, 8, 3, 7, 8),
		row_of(200, 0, 1, 0, 0),
		row_of(200, 8, 0, 0, 0),
		row_of(UINT64_MAX - 50, 8, 1, 0, 0),
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (land(1, &bad[i]) != -EPROTO)
			fail_msg("row %u", i);
		assert_true(untouched(0, 3 * 4096));
	}
}

TEST(memory_that_is_gone_or_read_only_is_an_error)
{
	struct wire_row r[2] = { row_of(200, 64, 1, 0, 0), row_of(4096 + 100, 64, 1, 0, 0) };

	r[1].src = AT + 64;
	assert_int_equal(mprotect(page + 4096, 4096, PROT_READ), 0);
	assert_int_equal(land(2, r), -EFAULT);
	assert_int_equal(munmap(page + 4096, 4096), 0);
	assert_int_equal(land(2, r), -EFAULT);
}

TEST(a_message_without_sense_is_refused)
{
	struct wire_landed m = { .window = 2, .nrow = 1, .bytes = WINDOW };
	int none[WIRE_FDS_MAX] = { -1, -1, -1, -1, -1, -1, -1, -1 };

	assert_int_equal(landing_take(&k, &m, none), -EPROTO);
	m.window = 0;
	m.nrow = WINDOW / sizeof(struct wire_row) + 1;
	assert_int_equal(landing_take(&k, &m, none), -EPROTO);
	m.nrow = 1;
	m.bytes = UINT64_MAX;
	assert_int_equal(landing_take(&k, &m, none), -EPROTO);
}

UNIT(.setup = setup, .teardown = teardown);
