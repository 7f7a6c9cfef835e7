/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_host.c - the process's own memory as a device (ckpt/device): every row comes to its
 * place whatever its width and pitch, bytes beside it stay as they are, and an address without
 * memory is -EFAULT with the row. All of it also where a sandbox refuses process_vm_readv.
 */
#include "ckpt/device/device.h"
#include "tests/lib/deny_syscall.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096u
#define BYTES (1u << 20)

static struct device_handle *dev;
static struct device_target target;
static uint64_t seed;

static int open_all(void)
{
	struct ckpt_err err;

	target = (struct device_target){ .bytes = BYTES, .fd = memfd_create("slot", MFD_CLOEXEC) };
	if (target.fd < 0 || ftruncate(target.fd, BYTES) < 0)
		return -1;
	target.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, target.fd, 0);
	return target.base == MAP_FAILED || device_host.open(0, &dev, &err) < 0 ? -1 : 0;
}

static void close_all(void)
{
	device_host.close(dev);
	munmap(target.base, BYTES);
	(void)close(target.fd);
}

static int setup(void **state)
{
	(void)state;
	seed = draw_seed("device_host");
	return open_all();
}

static int teardown(void **state)
{
	(void)state;
	close_all();
	return 0;
}

/* Carried out one byte at a time. */
static void expect(const struct device_row *r, uint8_t *image)
{
	for (uint64_t line = 0; line < r->rows; line++)
		for (uint64_t b = 0; b < r->width; b++)
			image[(uint64_t)(r->dst - target.base) + line * r->dst_pitch + b] =
				((const uint8_t *)(uintptr_t)r->src)[line * r->src_pitch + b];
}

/* False: something else lies in the target than rows of any shape should have brought. */
static bool rows_come(uint32_t rounds)
{
	uint8_t *src = malloc(2 * BYTES), *image = calloc(1, BYTES);
	bool good = true;

	for (uint64_t i = 0; i < 2 * BYTES; i++)
		src[i] = (uint8_t)draw(&seed);
	for (uint32_t round = 0; round < rounds && good; round++) {
		struct device_row row[70];
		uint32_t n = 1 + (uint32_t)draw_below(&seed, ARRAY_LEN(row)), bad = 0;

		memset(target.base, 0xee, BYTES);
		memset(image, 0xee, BYTES);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t room = BYTES / ARRAY_LEN(row), /* of each row, in the target */
				width = 1 + draw_below(&seed, draw_below(&seed, 4) ? 40 : room),
				 dst_pitch = width + draw_below(&seed, 3),
				 rows = draw_below(&seed, 3)
						? 1 + draw_below(&seed, room / dst_pitch)
						: 1,
				 pitch = draw_below(&seed, 2) ? width + draw_below(&seed, 2000)
							      : draw_below(&seed, 2 * width + 1);

			while (rows > 1 && (rows - 1) * pitch + width > BYTES)
				rows /= 2;
			row[i] = (struct device_row){ .src = (uintptr_t)src +
							     draw_below(&seed, BYTES),
						      .dst = target.base + i * room,
						      .width = width,
						      .rows = rows,
						      .src_pitch = pitch,
						      .dst_pitch = dst_pitch };
			expect(&row[i], image);
		}
		good = device_host.copy(dev, &target, row, n, &bad) == 0 &&
		       memcmp(image, target.base, BYTES) == 0;
	}
	free(src);
	free(image);
	return good;
}

TEST(rows_of_any_width_and_pitch_come_to_their_place)
{
	assert_true(rows_come(300));
}

/* Pages of memory with nothing behind and before. */
static uint8_t *island(uint32_t pages)
{
	uint8_t *p = mmap(NULL, (pages + 2) * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(p, PAGE);
	munmap(p + (pages + 1) * PAGE, PAGE);
	memset(p + PAGE, 0x5a, pages * PAGE);
	return p + PAGE;
}

/* Rows around an island of 8 pages: which of them cannot be copied, and what came before is
 * there. */
static bool faults_are_told(void)
{
	uint8_t *p = island(8), *hole = island(8);
	const uint64_t at = (uintptr_t)p, h = (uintptr_t)hole;
	const struct {
		int rc;
		uint32_t n, bad;
		struct device_row row[3];
	} x[] = {
		{ 0, 1, 0, { { at, target.base, 8 * PAGE, 1, 0, 0 } } },
		{ -EFAULT, 1, 0, { { at - 1, target.base, 9, 1, 0, 0 } } },	   /* first page */
		{ -EFAULT, 1, 0, { { at, target.base, 8 * PAGE + 1, 1, 0, 0 } } }, /* last page */
		{ -EFAULT, 1, 0, { { at + 7 * PAGE, target.base, 8, 513, 16, 8 } } },
		{ 0, 1, 0, { { at + 7 * PAGE, target.base, 8, 256, 16, 8 } } },
		{ -EFAULT, 1, 0, { { at, target.base, 8, 9, PAGE, 8 } } },
		{ 0, 1, 0, { { at, target.base, 8, 8, PAGE, 8 } } },
		{ -EFAULT,
		  3,
		  1,
		  { { at, target.base, 64, 1, 0, 0 },
		    { at - 64, target.base + 64, 64, 1, 0, 0 },
		    { at, target.base + 128, 64, 1, 0, 0 } } },
		{ -EFAULT,
		  3,
		  2,
		  { { at, target.base, 64, 2, 96, 64 },
		    { at, target.base + 128, 64, 1, 0, 0 },
		    { at - 64, target.base + 192, 64, 1, 0, 0 } } },
		{ -EFAULT, 1, 0, { { h, target.base, 8 * PAGE, 1, 0, 0 } } }, /* in the middle */
		{ -EFAULT, 1, 0, { { 0, target.base, 8, 1, 0, 0 } } },
		{ -EFAULT, 1, 0, { { UINT64_C(1) << 47, target.base, 8, 1, 0, 0 } } },
	};
	bool good = true;

	munmap(hole + 3 * PAGE, PAGE);
	for (uint32_t i = 0; i < ARRAY_LEN(x) && good; i++) {
		uint32_t bad = 99;
		int rc;

		memset(target.base, 0, BYTES);
		rc = device_host.copy(dev, &target, x[i].row, x[i].n, &bad);
		good = rc == x[i].rc && (rc == 0 || bad == x[i].bad);
		for (uint32_t k = 0; k < x[i].bad; k++)
			good = good && x[i].row[k].dst[0] == 0x5a;
		if (!good)
			fprintf(stderr, "case %u: rc %d, row %u\n", i, rc, bad);
	}
	munmap(p, 8 * PAGE);
	munmap(hole, 3 * PAGE);
	munmap(hole + 4 * PAGE, 4 * PAGE);
	return good;
}

TEST(memory_that_is_not_there_is_an_error_with_the_row)
{
	assert_true(faults_are_told());
}

/* Small tensors of malloc: read in one piece, and each comes to its place. */
TEST(small_rows_behind_each_other_come_to_their_places)
{
	uint8_t *src = malloc(BYTES), *image = malloc(BYTES);

	for (uint64_t i = 0; i < BYTES; i++)
		src[i] = (uint8_t)draw(&seed);
	for (uint32_t round = 0; round < 300; round++) {
		struct device_row row[200];
		uint64_t at = draw_below(&seed, PAGE), to = draw_below(&seed, PAGE);
		uint32_t n = 0, bad = 0;

		memset(target.base, 0xee, BYTES);
		memset(image, 0xee, BYTES);
		for (; n < 1 + draw_below(&seed, ARRAY_LEN(row)); n++) {
			row[n] = (struct device_row){ .src = (uintptr_t)src + at,
						      .dst = target.base + to,
						      .width = 1 + draw_below(&seed, 600),
						      .rows = draw_below(&seed, 20) ? 1 : 2,
						      .src_pitch = 5,
						      .dst_pitch = 4100 };
			to += 2 * 4100 + draw_below(&seed, 100);
			if (draw_below(&seed, 30)) /* else the same bytes, or older ones, again */
				at += row[n].width + (draw_below(&seed, 9) ? 16 : 1025);
			else
				at -= draw_below(&seed, at);
			if (at > BYTES - 3 * PAGE || to > BYTES - 3 * PAGE)
				break;
			expect(&row[n], image);
		}
		assert_int_equal(device_host.copy(dev, &target, row, n, &bad), 0);
		assert_memory_equal(image, target.base, BYTES);
	}
	free(src);
	free(image);
}

/* As what CUDA pins: whoever has the address reads it, and process_vm_readv does not. */
static const uint8_t *memory_of_a_driver(void)
{
	char line[256];
	FILE *f = fopen("/proc/self/maps", "re");
	uintptr_t from = 0;

	while (f && !from && fgets(line, sizeof line, f))
		if (strstr(line, "[vvar]"))
			from = strtoull(line, NULL, 16);
	if (f)
		fclose(f);
	return (const uint8_t *)from; /* NOLINT */
}

TEST(the_memory_of_a_driver_is_copied_too)
{
	const uint8_t *page = memory_of_a_driver();
	uint8_t mine[300];
	struct device_row row[5];
	uint32_t bad = 0;
	int fd = memfd_create("try", MFD_CLOEXEC);

	/* gVisor, and kernels that hide it, refuse both */
	if (!page || pwrite(fd, page, 64, 0) != 64) {
		(void)close(fd);
		skip();
	}
	(void)close(fd);
	memset(mine, 0x55, sizeof mine);
	memset(target.base, 0xee, BYTES);
	for (uint32_t i = 0; i < ARRAY_LEN(row); i++)
		row[i] = (struct device_row){ .src = i % 2 ? (uintptr_t)page + 2048
							   : (uintptr_t)mine,
					      .dst = target.base + 1000 * i,
					      .width = 100,
					      .rows = i == 4 ? 3 : 1,
					      .src_pitch = 100,
					      .dst_pitch = 100 };
	row[1].src_pitch = row[3].src_pitch = 0;
	row[3].rows = 2;
	assert_int_equal(device_host.copy(dev, &target, row, ARRAY_LEN(row), &bad), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(row); i++) {
		/* its clocks go on, in the first half of the page */
		const uint8_t *was = (const uint8_t *)(uintptr_t)row[i].src;

		for (uint32_t k = 0; k < row[i].rows; k++)
			assert_memory_equal(target.base + 1000 * i + 100 * k, was, 100);
		assert_int_equal(target.base[1000 * i + 100 * row[i].rows], 0xee);
	}
	/* what is behind it is still looked at */
	row[3].src = PAGE;
	assert_int_equal(device_host.copy(dev, &target, row, ARRAY_LEN(row), &bad), -EFAULT);
	assert_int_equal(bad, 3);
}

static int in_a_sandbox(void *arg)
{
	(void)arg;
	close_all();
	return open_all() < 0 ? 1 : !rows_come(30) ? 2 : !faults_are_told() ? 3 : 0;
}

TEST(where_process_vm_readv_is_refused_it_is_the_same)
{
	static const int eno[] = { EPERM, ENOSYS };

	for (uint32_t i = 0; i < ARRAY_LEN(eno); i++) {
		int rc = deny_run(SYS_process_vm_readv, eno[i], in_a_sandbox, NULL);

		if (rc == DENY_NOT_POSSIBLE)
			skip();
		assert_int_equal(rc, 0);
	}
}

TEST(the_end_is_a_word)
{
	assert_true(device_reached(UINT32_MAX, UINT32_MAX) && device_reached(1, UINT32_MAX));
	assert_false(device_reached(UINT32_MAX, 1));
}
UNIT(.setup = setup, .teardown = teardown);
