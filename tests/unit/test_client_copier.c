/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_copier.c - what the library's copier is given (ckpt/client/sealed.h): units that are
 * all of its rows, each byte once, and none much longer than a MiB; of a device's rows that are
 * copied in turns, each byte in its turn; rows of a wrong daemon, which would make it read or write
 * elsewhere, are refused; slots that a later rev keeps are mapped once;
 * how many threads copy.
 */
#include "ckpt/client/handle.h"
#include "ckpt/wire/turns.h"
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
	s->name[0] = (struct source_name){ "model", "w", 0, 1, false };
	s->span[0] = (struct source_span){ (uintptr_t)memory + from, (uintptr_t)memory + to, 0 };
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
	rc = sealed_make(&m, fd, before, sources, segment, 1, ret, &err);
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

	for (uint32_t round = 0; round < unit_scaled(12); round++) {
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

/* --- in turns --- */

/* Rows on a device, ascending in the slot: some in turns, all with gaps between their lines, or
 * none. */
static uint32_t device_rows_draw(struct wire_row *row)
{
	uint64_t at = draw_below(&seed, 5000);
	uint32_t n = 0;

	while (n < ROWS && at + (1 << 20) < SLOT) {
		uint64_t room = MIN(SLOT - at, SLOT / 2),
			 width = 1 + draw_below(&seed, draw_below(&seed, 2) ? 3000 : room / 2),
			 rows, pitch = width + draw_below(&seed, 3) * draw_below(&seed, 700000);

		rows = draw_below(&seed, 3) || pitch >= room ? 1
							     : 1 + draw_below(&seed, room / pitch);
		row[n++] =
			(struct wire_row)ROW(.flags = WIRE_ROW_CLIENT | WIRE_ROW_DERIVED |
						      (draw_below(&seed, 4) ? WIRE_ROW_TURNS : 0u),
					     .src = (uintptr_t)memory, .dst = at, .width = width,
					     .rows = rows, .src_pitch = rows > 1 ? width : 0,
					     .dst_pitch = pitch);
		at += (rows - 1) * pitch + width + draw_below(&seed, 2000);
	}
	return n;
}

/* All that a snapshot with this turn copies: bytes of rows in turns. *ret_rest: of other rows. */
static uint64_t turn_check(const struct sealed *s, uint32_t turn, uint64_t *ret_rest)
{
	const struct sealed_some some = { s->queue, 0, 1 + turn, 0 };
	struct sealed_at at = { 0 }, was = { 0 };
	uint64_t bytes = 0, end = 0;
	struct device_row r;

	*ret_rest = 0;
	while (sealed_queue_next(s, &some, &at, 1 + draw_below(&seed, 3 << 20), &r)) {
		uint64_t off = (uint64_t)(r.dst - s->slot[0]->at.base);
		const struct wire_row *of;

		while (was.row < at.row &&
		       s->row[was.row].dst +
				       (s->row[was.row].rows - 1) * s->row[was.row].dst_pitch +
				       s->row[was.row].width <=
			       off)
			was.row++;
		of = &s->row[was.row];
		assert_true(off >=
			    end); /* rows ascend, and so do their pieces: no byte comes twice */
		end = off + (r.rows - 1) * r.dst_pitch + r.width;
		for (uint64_t line = 0; line < r.rows; line++) {
			uint64_t b = off + line * r.dst_pitch,
				 k = (b - of->dst) / MAX(of->dst_pitch, of->width),
				 in = b - of->dst - k * of->dst_pitch;

			assert_true(k < of->rows && in + r.width <= of->width);
			assert_int_equal(r.src + line * r.src_pitch,
					 of->src + k * of->src_pitch + in);
			assert_true(!s->in_turns[was.row] ||
				    (b / TURN_BYTES % TURNS == turn &&
				     b / TURN_BYTES == (b + r.width - 1) / TURN_BYTES));
		}
		*(s->in_turns[was.row] ? &bytes : ret_rest) += r.width * r.rows;
	}
	assert_int_equal(bytes + *ret_rest, sealed_queue_bytes(s, &some));
	return bytes;
}

TEST(sixteen_turns_are_each_byte_once_and_other_rows_are_whole_in_each)
{
	struct wire_row row[ROWS];

	for (uint32_t round = 0; round < unit_scaled(60); round++) {
		struct sources *sources = declared(0, SLOT);
		uint64_t turned = 0, whole = 0, sum = 0, rest;
		struct sealed *s;
		uint32_t n;
		int fd = slot_new();

		sources->span[0].device = 1;
		n = device_rows_draw(row);
		row[0].flags |= WIRE_ROW_TURNS;
		assert_ok_err(sealed_of(row, n, fd, NULL, sources, &s), &err);
		(void)close(fd);
		for (uint32_t i = 0; i < n; i++)
			*(row[i].flags & WIRE_ROW_TURNS ? &turned : &whole) +=
				row[i].width * row[i].rows;
		for (uint32_t turn = 0; turn < TURNS; turn++) {
			sum += turn_check(s, turn, &rest);
			assert_int_equal(rest, whole);
		}
		assert_int_equal(sum, turned);
		assert_int_equal(sealed_queue_bytes(s, &(struct sealed_some){ s->queue, 0, 0, 0 }),
				 turned + whole);
		/* Of a tensor in whole[] nothing goes in turns. */
		sealed_whole(s, (_Atomic uint32_t[]){ 0 }, 1);
		assert_int_equal(turn_check(s, 3, &rest), 0);
		assert_int_equal(rest, turned + whole);
		sealed_unref(s);
		sources_unref(sources);
	}
}

TEST(rows_that_cannot_go_in_turns_are_refused)
{
	const struct wire_row good =
		ROW(.flags = WIRE_ROW_CLIENT | WIRE_ROW_DERIVED | WIRE_ROW_TURNS,
		    .src = (uintptr_t)memory, .width = 8, .rows = 4, .src_pitch = 16,
		    .dst_pitch = 8);
	struct wire_row bad[] = { good, good, good };
	struct sources *sources = declared(0, SLOT);
	struct sealed *s;
	int fd = slot_new();

	for (uint32_t device = 0; device < 2; device++) {
		sources->span[0].device = device;
		assert_int_equal(sealed_of(&good, 1, fd, NULL, sources, &s), device ? 0 : -EPROTO);
		if (device)
			sealed_unref(s);
	}
	bad[0].flags &= ~(uint32_t)WIRE_ROW_DERIVED;
	bad[1].dst_pitch = 7;
	bad[2].dst_pitch = 0;
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(sealed_of(&bad[i], 1, fd, NULL, sources, &s), -EPROTO);
	(void)close(fd);
	sources_unref(sources);
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
	struct source_span x[] = {
		{ 30, 40, 0 }, { 0, 10, 0 }, { 10, 20, 0 }, { 35, 50, 0 }, { 36, 37, 0 }
	};

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
