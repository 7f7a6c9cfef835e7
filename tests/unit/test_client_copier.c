/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_copier.c - what the library's copier is given (ckpt/client/sealed.h): units that are
 * all of its rows, each byte once, and none much longer than a MiB; rows of a wrong daemon, which
 * would make it read or write elsewhere, are refused; slots that a later rev keeps are mapped once;
 * how many threads copy.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

#define SLOT (8u << 20)
#define ROWS 60u

static struct ckpt_err err;
static struct device_handle *dev;
static uint64_t seed;
static uint8_t memory[SLOT];

static int setup(void **state)
{
	(void)state;
	seed = draw_seed("client_copier");
	for (uint32_t i = 0; i < SLOT; i++)
		memory[i] = (uint8_t)draw(&seed);
	return device_host.open(0, &dev, &err);
}

static int teardown(void **state)
{
	(void)state;
	device_host.close(dev);
	return 0;
}

static struct sources *declared(uint64_t from, uint64_t to)
{
	struct sources *s = calloc(1, sizeof *s);

	*s = (struct sources){ .refs = 1,
			       .nname = 1,
			       .nspan = 1,
			       .name = calloc(1, sizeof *s->name),
			       .span = calloc(1, sizeof *s->span) };
	s->name[0] = (struct source_name){ "model", "w", 0, 1 };
	s->span[0] = (struct source_span){ (uintptr_t)memory + from, (uintptr_t)memory + to };
	return s;
}

/* A sealed of these rows and `nslot` slots; fd: of slots that there are, or -1. */
static int sealed_of(const struct wire_row *row, uint32_t nrow, int slot_fd,
		     const struct sealed *before, struct sources *sources, struct sealed **ret)
{
	const uint64_t segment[1] = { 4096 };
	struct wire_sealed m = ROW(.epoch = 1, .nslot = 1, .nrow = nrow, .slot_bytes = SLOT);
	int fd[2] = { slot_fd, -1 }, rc;

	assert_ok_err(wire_memfd_of("rows", row, nrow * sizeof *row, &fd[1], &err), &err);
	rc = sealed_make(&m, fd, before, sources, dev, segment, 1, ret, &err);
	(void)close(fd[1]);
	return rc;
}

static int slot_new(void)
{
	int fd;

	assert_ok_err(wire_memfd("slot", SLOT, &fd, &err), &err);
	return fd;
}

/* Rows one behind the other in the slot, of all shapes. */
static uint32_t rows_draw(struct wire_row *row, uint8_t *image)
{
	uint64_t at = 0;
	uint32_t n = 0;

	while (n < ROWS && at < SLOT) {
		uint64_t room = MIN(SLOT - at, SLOT / 4),
			 width = 1 + draw_below(&seed, draw_below(&seed, 3) ? 64 : room), rows,
			 pitch;

		width = MIN(width, room);
		rows = draw_below(&seed, 2) ? 1 : 1 + draw_below(&seed, room / width);
		pitch = width + draw_below(&seed, 3) * draw_below(&seed, 2000);
		if ((rows - 1) * pitch + width > SLOT)
			pitch = width;
		row[n] = (struct wire_row)
			ROW(.flags = n % 5 ? WIRE_ROW_CLIENT : 0u,
			    .src = n % 5 ? (uintptr_t)memory +
						   draw_below(&seed,
							      SLOT - ((rows - 1) * pitch + width) +
								      1)
					 : 0,
			    .dst = at, .width = width, .rows = rows, .src_pitch = pitch,
			    .dst_pitch = width);
		if (n % 5 == 0) { /* the daemon's */
			row[n].width = row[n].rows = 1;
			at++;
			n++;
			continue;
		}
		for (uint64_t line = 0; line < rows; line++)
			memcpy(image + at + line * width,
			       (const uint8_t *)(uintptr_t)row[n].src + line * pitch, width);
		at += rows * width;
		n++;
	}
	return n;
}

TEST(units_are_all_rows_each_byte_once_and_none_is_long)
{
	struct wire_row *row = calloc(ROWS, sizeof *row);
	uint8_t *image = malloc(SLOT), *times = malloc(SLOT);
	struct sources *sources = declared(0, SLOT);

	for (uint32_t round = 0; round < 12; round++) {
		struct sealed *s;
		uint64_t bytes = 0;
		uint32_t n, others;
		uint8_t twice = 0;
		int fd = slot_new();

		memset(image, 0, SLOT);
		memset(times, 0, SLOT);
		memset(row, 0, ROWS * sizeof *row);
		n = rows_draw(row, image);
		others = (n + 4) / 5;
		assert_ok_err(sealed_of(row, n, fd, NULL, sources, &s), &err);
		(void)close(fd);
		assert_int_equal(s->others, others);
		for (uint32_t unit = s->nunit; unit-- > 0;) { /* in any order */
			struct sealed_at at = s->unit[unit];
			uint64_t cost = 0;
			struct device_row r;
			uint32_t bad;

			while (sealed_next(s, 0, &at, &s->unit[unit + 1], &r)) {
				uint8_t *base = s->slot[0]->at.base;

				assert_true(r.width * r.rows <= SEALED_UNIT);
				cost += r.width * r.rows;
				bytes += r.width * r.rows;
				for (uint64_t line = 0; line < r.rows; line++)
					for (uint64_t b = 0; b < r.width; b++)
						twice |= times[(uint64_t)(r.dst - base) +
							       line * r.dst_pitch + b]++;
				assert_int_equal(
					device_host.copy(dev, &s->slot[0]->at, &r, 1, &bad), 0);
			}
			assert_true(cost <= SEALED_UNIT && cost > 0);
		}
		assert_true(bytes == s->own_bytes && !twice);
		assert_memory_equal(s->slot[0]->at.base, image, SLOT);
		sealed_unref(s);
	}
	sources_unref(sources);
	free(row);
	free(image);
	free(times);
}

TEST(rows_of_a_wrong_daemon_are_refused)
{
	const uint64_t m = (uintptr_t)memory;
	const struct wire_row good = ROW(.flags = WIRE_ROW_CLIENT, .src = m + 4096, .width = 8,
					 .rows = 4, .src_pitch = 16, .dst_pitch = 8);
	struct wire_row bad[] = {
		good, good, good, good, good, good, good, good, good,
	};
	struct sources *sources = declared(4096, 4096 + 56);
	struct sealed *s;
	int fd = slot_new();

	bad[0].src--; /* before what was declared */
	bad[1].src++; /* behind it */
	bad[2].rows = 5;
	bad[3].width = 9;
	bad[4].tensor = 1;	/* of no tensor */
	bad[5].dst = SLOT - 31; /* out of the slot */
	bad[6].src = 0;
	bad[7].src_pitch = UINT64_MAX / 2;
	bad[8].flags = 0; /* as if it were of a segment: it has no such one */
	assert_ok_err(sealed_of(&good, 1, fd, NULL, sources, &s), &err);
	sealed_unref(s);
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(sealed_of(&bad[i], 1, fd, NULL, sources, &s), -EPROTO);
	(void)close(fd);
	sources_unref(sources);
}

TEST(spans_of_one_tensor_that_touch_are_one)
{
	struct source_span x[] = { { 30, 40 }, { 0, 10 }, { 10, 20 }, { 35, 50 }, { 36, 37 } };

	assert_int_equal(sources_merge(x, ARRAY_LEN(x)), 2);
	assert_true(x[0].from == 0 && x[0].to == 20 && x[1].from == 30 && x[1].to == 50);
	assert_int_equal(sources_merge(x, 0), 0);
}

TEST(slots_that_a_later_rev_keeps_are_mapped_once)
{
	const struct wire_row row =
		ROW(.flags = WIRE_ROW_CLIENT, .src = (uintptr_t)memory, .width = 8, .rows = 1);
	struct sources *sources = declared(0, SLOT);
	struct sealed *first, *second, *other;
	int fd = slot_new(), fd2 = slot_new();
	uint8_t *base;

	assert_ok_err(sealed_of(&row, 1, fd, NULL, sources, &first), &err);
	assert_ok_err(sealed_of(&row, 1, fd, first, sources, &second), &err);
	assert_ok_err(sealed_of(&row, 1, fd2, second, sources, &other), &err);
	(void)close(fd);
	(void)close(fd2);
	base = first->slot[0]->at.base;
	assert_ptr_equal(base, second->slot[0]->at.base);
	assert_ptr_not_equal(base, other->slot[0]->at.base);
	sealed_unref(first);
	base[SLOT - 1] = 1; /* it is still there */
	sealed_unref(second);
	sealed_unref(other);
	sources_unref(sources);
}

TEST(a_second_thread_copies_where_a_rank_has_three_cores)
{
	static const struct {
		uint32_t cpus, online, ranks, want;
	} x[] = {
		{ 1, 1, 1, 1 },	   { 2, 2, 1, 1 },   { 3, 3, 1, 2 },
		{ 16, 16, 1, 2 },  { 16, 16, 8, 1 }, { 16, 16, 5, 2 },
		{ 16, 16, 16, 1 }, { 2, 16, 1, 1 },  { 4, 16, 8, 2 }, /* bound to its own */
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
		assert_int_equal(copier_threads(x[i].cpus, x[i].online, x[i].ranks), x[i].want);
}
UNIT(.setup = setup, .teardown = teardown);
