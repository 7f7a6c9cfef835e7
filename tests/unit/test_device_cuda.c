/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_cuda.c - the memory of a GPU as a device (ckpt/device), over a driver without a GPU
 * (tests/fakecuda) that really tears what is written while it is copied. Every row comes to its
 * place; a snapshot is whole whenever the trainer's stream goes on behind the guard; each step of
 * the order that is left out is seen as a torn snapshot; each road that is missing is replaced.
 */
#include "ckpt/base/util.h"
#include "ckpt/device/cuda_driver.h"
#include "ckpt/device/device.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <dlfcn.h>
#include <sys/mman.h>

#define BYTES (512u << 10)
#define WORDS (BYTES / 4)

static const struct fakecuda *fake;
static const struct cuda_calls *cu;
static struct device_handle *dev;
static struct device_target slot, page;
static _Atomic uint32_t *done;
static uint64_t seed;
static cuda_stream stream; /* the trainer's */
static cuda_ptr weights;

static cuda_rc launch_host(cuda_stream s, void (*fn)(void *), void *arg)
{
	static cuda_rc (*call)(cuda_stream, void (*)(void *), void *);
	static cuda_rc (*find)(const char *, void **, int, uint64_t, unsigned *);
	unsigned status;
	void *p;

	if (!call) {
		p = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
		memcpy(&find, &p, sizeof p);
		assert_int_equal(find("cuLaunchHostFunc", &p, 10000, 1, &status), 0);
		memcpy(&call, &p, sizeof p);
	}
	return call(s, fn, arg);
}

static int library_open(void **unused)
{
	void *lib = dlopen(FAKECUDA, RTLD_NOW | RTLD_GLOBAL);
	struct ckpt_err err;
	int rc;

	(void)unused;
	seed = draw_seed("device_cuda");
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	fake = dlsym(lib, "fakecuda");
	cu = cuda_driver(&rc, &err);
	return cu ? 0 : -1;
}

static void target_make(struct device_target *t, uint64_t bytes)
{
	*t = (struct device_target){ .bytes = bytes, .fd = memfd_create("slot", MFD_CLOEXEC) };
	assert_true(t->fd >= 0);
	assert_int_equal(ftruncate(t->fd, (off_t)bytes), 0);
	t->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
	assert_ptr_not_equal(t->base, MAP_FAILED);
}

static void target_forget_all(void)
{
	dev->ops->forget(dev, &slot);
	dev->ops->forget(dev, &page);
}

static void target_free(struct device_target *t)
{
	munmap(t->base, t->bytes);
	(void)close(t->fd);
}

/* As a trainer does: a context, a stream of its own, weights on the device. */
static int setup(void **unused)
{
	struct ckpt_err err;
	cuda_ctx ctx;

	(void)unused;
	fake->fault_none();
	fake->bandwidth(0);
	fake->seed(0);
	fake->register_limit(0);
	assert_int_equal(cu->primary_retain(&ctx, 0), 0);
	assert_int_equal(cu->ctx_set(ctx), 0);
	assert_int_equal(cu->stream_new(&stream, 0, 0), 0);
	assert_int_equal(cu->mem_alloc(&weights, BYTES), 0);
	if (device_cuda.open(0, &dev, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		return -1;
	}
	target_make(&slot, BYTES);
	target_make(&page, 4096);
	done = (_Atomic uint32_t *)(void *)page.base;
	return 0;
}

static int targets_add(void)
{
	struct ckpt_err err;
	int rc = dev->ops->target(dev, &slot, &err);

	return rc == 0 ? dev->ops->target(dev, &page, &err) : rc;
}

static int teardown(void **unused)
{
	(void)unused;
	fake->fault_none();
	fake->bandwidth(0);
	fake->sticky(0, 0);
	target_forget_all();
	target_free(&slot);
	target_free(&page);
	dev->ops->close(dev);
	assert_int_equal(cu->stream_free(stream), 0);
	assert_int_equal(cu->mem_free(weights), 0);
	assert_int_equal(fake->registered(), 0);
	return 0;
}

static void wait_done(uint32_t target)
{
	uint64_t until = now_ns() + 20 * NS_PER_S;

	while (!device_reached(atomic_load_explicit(done, memory_order_acquire), target)) {
		assert_true(now_ns() < until);
		usleep(50);
	}
}

/* --- rows --- */
TEST(every_row_comes_to_its_place)
{
	uint8_t *src = fake->alias(weights), *want = malloc(BYTES);
	uint32_t bad, target = 0;

	assert_non_null(want);
	assert_int_equal(targets_add(), 0);
	assert_int_equal(dev->caps, DEVICE_ORDERED);
	for (uint32_t i = 0; i < BYTES; i++)
		src[i] = (uint8_t)draw(&seed);
	for (int round = 0; round < 40; round++) {
		struct device_row row[80];
		uint32_t n = 1 + (uint32_t)draw_below(&seed, ARRAY_LEN(row)), k = 0;

		memset(slot.base, 0xee, BYTES);
		memset(want, 0xee, BYTES);
		for (uint64_t at = 0; k < n; k++) {
			uint64_t width = 1 + draw_below(&seed, draw(&seed) & 3 ? 64 : 20000),
				 rows = draw(&seed) & 3 ? 1 : 1 + draw_below(&seed, 9),
				 src_pitch = width + (draw(&seed) & 1 ? draw_below(&seed, 100) : 0),
				 dst_pitch = width + (draw(&seed) & 1 ? draw_below(&seed, 100) : 0),
				 from = draw_below(&seed, BYTES - rows * src_pitch);

			if (at + rows * dst_pitch > BYTES)
				break;
			row[k] = (struct device_row){ .src = weights + from,
						      .dst = slot.base + at,
						      .width = width,
						      .rows = rows,
						      .src_pitch = src_pitch,
						      .dst_pitch = dst_pitch };
			for (uint64_t r = 0; r < rows; r++)
				memcpy(want + at + r * dst_pitch, src + from + r * src_pitch,
				       width);
			at += rows * dst_pitch;
		}
		assert_int_equal(dev->ops->begin(dev, stream), 0);
		assert_int_equal(dev->ops->copy(dev, &slot, row, k, &bad), 0);
		assert_int_equal(dev->ops->end(dev, done, ++target), 0);
		wait_done(target);
		assert_memory_equal(slot.base, want, BYTES);
	}
	assert_int_equal(fake->violations(), 0);
	free(want);
}

/* --- order --- */
/* The optimizer's step: a kernel that sets every word of the weights, one after the other. */
struct step {
	uint32_t value;
};

static void step_run(void *arg)
{
	const struct step *s = arg;
	volatile uint32_t *w = fake->alias(weights);

	for (uint32_t i = 0; i < WORDS; i++)
		w[i] = s->value;
}

/* Steps of a trainer, with a snapshot of each: how many were not whole. A snapshot is whole if all
 * its words are those of the step that was marked. */
static uint32_t train(uint32_t steps, bool guards, cuda_stream on)
{
	struct step *step = calloc(steps + 1, sizeof *step);
	uint32_t torn = 0, bad;

	assert_non_null(step);
	for (uint32_t i = 1; i <= steps; i++) {
		struct device_row row = {
			.src = weights, .dst = slot.base, .width = BYTES, .rows = 1
		};
		const uint32_t *w = (const uint32_t *)(void *)slot.base;
		bool whole = true;

		step[i].value = i;
		assert_int_equal(launch_host(stream, step_run, &step[i]), 0);
		assert_int_equal(dev->ops->begin(dev, on), 0);
		assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), 0);
		assert_int_equal(dev->ops->end(dev, done, i), 0);
		if (guards)
			assert_int_equal(dev->ops->guard(dev, on), 0);
		/* The next update is queued while the copy runs. */
		step[0].value = UINT32_MAX - i;
		assert_int_equal(launch_host(stream, step_run, &step[0]), 0);
		wait_done(i);
		for (uint32_t k = 0; k < WORDS; k++)
			whole = whole && w[k] == i;
		torn += !whole;
		assert_int_equal(cu->stream_sync(stream), 0);
	}
	free(step);
	return torn;
}

TEST(a_snapshot_is_whole)
{
	assert_int_equal(targets_add(), 0);
	fake->bandwidth(.25);
	fake->seed(draw(&seed));
	assert_int_equal(train(12, true, stream), 0);
	assert_int_equal(fake->violations(), 0);
}

TEST(a_snapshot_of_the_legacy_stream_is_whole)
{
	cuda_stream own = stream;

	assert_int_equal(targets_add(), 0);
	fake->bandwidth(.25);
	fake->seed(draw(&seed));
	stream = NULL;
	assert_int_equal(train(8, true, NULL), 0);
	stream = own;
}

/* The fake driver tears where it should: each of these leaves out one step of the order. */
TEST(without_a_guard_it_is_torn)
{
	assert_int_equal(targets_add(), 0);
	fake->bandwidth(.25);
	assert_true(train(6, false, stream) > 0);
}

TEST(a_mark_on_a_stream_that_the_update_is_not_on_is_torn)
{
	cuda_stream other;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(cu->stream_new(&other, CUDA_STREAM_NON_BLOCKING, 0), 0);
	fake->bandwidth(.25);
	assert_true(train(6, true, other) > 0);
	assert_int_equal(cu->stream_free(other), 0);
}

/* --- what the trainer's thread calls --- */
TEST(a_mark_and_a_guard_are_few_calls_and_never_wait)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	uint64_t before;
	uint32_t bad;

	assert_int_equal(targets_add(), 0);
	fake->bandwidth(.01); /* 50 ms */
	before = fake->calls_here();
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_true(fake->calls_here() - before <= 3);
	assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), 0);
	assert_int_equal(dev->ops->end(dev, done, 1), 0);
	before = fake->calls_here();
	assert_int_equal(dev->ops->guard(dev, stream), 0);
	assert_true(fake->calls_here() - before <= 3);
	assert_false(device_reached(*done, 1)); /* the copy still runs */
	wait_done(1);
}

TEST(a_thread_without_a_context_marks_and_keeps_none)
{
	cuda_ctx was, now;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(cu->ctx_current(&was), 0);
	assert_int_equal(cu->ctx_set(NULL), 0);
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(dev->ops->guard(dev, stream), 0);
	assert_int_equal(cu->ctx_current(&now), 0);
	assert_null(now);
	assert_int_equal(cu->ctx_set(was), 0);
}

/* --- capture --- */
static void *symbol(const char *name, int version)
{
	cuda_rc (*find)(const char *, void **, int, uint64_t, unsigned *);
	void *p = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
	unsigned status;

	memcpy(&find, &p, sizeof p);
	assert_int_equal(find(name, &p, version, 1, &status), 0);
	assert_non_null(p);
	return p;
}

TEST(a_stream_that_is_captured_is_not_marked_and_stays_captured)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	cuda_rc (*begin)(cuda_stream, unsigned), (*end)(cuda_stream, void **), (*drop)(void *);
	uint32_t bad;
	void *graph, *p;

	p = symbol("cuStreamBeginCapture", 10010);
	memcpy(&begin, &p, sizeof p);
	p = symbol("cuStreamEndCapture", 10000);
	memcpy(&end, &p, sizeof p);
	p = symbol("cuGraphDestroy", 10000);
	memcpy(&drop, &p, sizeof p);
	assert_int_equal(targets_add(), 0);
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		/* A copy that goes on while a capture begins does not break it. */
		assert_int_equal(dev->ops->begin(dev, stream), 0);
		assert_int_equal(begin(stream, mode), 0);
		assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), 0);
		assert_int_equal(dev->ops->end(dev, done, mode + 1), 0);
		assert_int_equal(dev->ops->begin(dev, stream), -EBUSY);
		assert_int_equal(dev->ops->guard(dev, stream), -EBUSY);
		wait_done(mode + 1);
		assert_int_equal(end(stream, &graph), 0);
		assert_int_equal(drop(graph), 0);
	}
}

/* --- what is missing, what fails --- */
TEST(pages_that_cannot_be_registered_are_copied_by_way_of_pinned_buffers)
{
	assert_true(fake->registered() < 16384);
	fake->register_limit((33 << 20) + 16384); /* the buffers, and not the slot */
	fake->fault("cuMemHostRegister", 1, CUDA_OUT_OF_MEMORY);
	assert_int_equal(targets_add(), 0);
	assert_false(dev->caps & DEVICE_ORDERED);
	fake->bandwidth(.25);
	/* The copy has ended when device_end returns, so no guard is needed. */
	assert_int_equal(train(6, false, stream), 0);
	assert_int_equal(fake->violations(), 0);
}

TEST(no_pinned_memory_at_all_is_a_sentence)
{
	struct ckpt_err err;

	fake->fault("cuMemHostRegister", 0, CUDA_OUT_OF_MEMORY);
	fake->fault("cuMemHostAlloc", 0, CUDA_OUT_OF_MEMORY);
	assert_int_equal(dev->ops->target(dev, &slot, &err), -ENOMEM);
	assert_non_null(strstr(err.msg, "CUDA device 0"));
	assert_non_null(strstr(err.msg, "CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST(memory_that_is_not_there_is_named_and_the_device_goes_on)
{
	struct device_row row[3];
	cuda_ptr freed;
	uint32_t bad = 9;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(cu->mem_alloc(&freed, 4096), 0);
	assert_int_equal(cu->mem_free(freed), 0);
	for (uint32_t i = 0; i < 3; i++)
		row[i] = (struct device_row){ .src = i == 1 ? freed : weights,
					      .rows = 1,
					      .dst = slot.base + i * 4096,
					      .width = 4096 };
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(dev->ops->copy(dev, &slot, row, 3, &bad), -EFAULT);
	assert_int_equal(bad, 1);
	row[1].rows = 2;
	row[1].src_pitch = row[1].dst_pitch = 8192;
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(dev->ops->copy(dev, &slot, row, 3, &bad), -EFAULT);
	assert_int_equal(bad, 1);
	fake->bandwidth(.25);
	assert_int_equal(train(3, true, stream), 0);
}

TEST(a_device_that_has_failed_writes_no_end)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	uint32_t bad;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	fake->sticky(0, CUDA_ILLEGAL_ADDRESS); /* a kernel of the trainer's */
	assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), -EIO);
	assert_int_equal(dev->ops->end(dev, done, 1), -EIO);
	assert_int_equal(dev->ops->begin(dev, stream), -EIO);
	assert_int_equal(*done, 0);
	fake->sticky(0, 0);
	assert_int_equal(dev->ops->begin(dev, stream), -EIO); /* until it is opened again */
}

TEST(every_call_that_fails_is_an_error_and_no_end)
{
	static const char *const calls[] = { "cuStreamWaitEvent",
					     "cuMemcpyDtoHAsync",
					     "cuEventRecord",
					     "cuStreamWriteValue32",
					     "cuCtxSetCurrent",
					     "cuThreadExchangeStreamCaptureMode",
					     "cuMemHostGetDevicePointer" };
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	struct ckpt_err err;
	uint32_t bad;

	assert_int_equal(targets_add(), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(calls); i++) {
		int rc;

		assert_int_equal(dev->ops->begin(dev, stream), 0);
		fake->fault(calls[i], 1, 999);
		rc = dev->ops->copy(dev, &slot, &row, 1, &bad);
		if (rc == 0)
			rc = dev->ops->end(dev, done, i + 1);
		if (rc != -EIO)
			fail_msg("%s: %d", calls[i], rc);
		assert_false(device_reached(*done, i + 1));
		fake->fault_none();
		target_forget_all();
		dev->ops->close(dev);
		assert_ok_err(device_cuda.open(0, &dev, &err), &err);
		assert_int_equal(targets_add(), 0);
	}
}

TEST(a_device_that_is_not_there_is_a_sentence)
{
	struct device_handle *x;
	struct ckpt_err err;

	assert_int_equal(device_cuda.open(7, &x, &err), -ENODEV);
	assert_non_null(strstr(err.msg, "CUDA device 7"));
	for (unsigned n = 1; n < 6; n++) {
		static const char *const calls[] = { "cuStreamCreateWithPriority", "cuEventCreate",
						     "cuMemHostAlloc", "cuDevicePrimaryCtxRetain",
						     "cuMemHostGetDevicePointer" };
		uint64_t registered = fake->registered();

		fake->fault(calls[n - 1], 1, CUDA_OUT_OF_MEMORY);
		assert_int_equal(device_cuda.open(0, &x, &err), -ENOMEM);
		fake->fault_none();
		assert_int_equal(fake->registered(), registered);
	}
}

UNIT(.setup = setup, .teardown = teardown, .group_setup = library_open);
