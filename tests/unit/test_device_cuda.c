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
#include "tests/fakecuda/fakecuda_test.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <pthread.h>
#include <sys/mman.h>

#define BYTES (512u << 10)
#define WORDS (BYTES / 4)

static const struct fakecuda *fake;
static const struct cuda_calls *cu;
static struct device_handle *dev;
static struct device_target slot, page;
static _Atomic uint32_t *done;
static uint32_t newest;		  /* end, for poll */
static uint64_t seed, violations; /* violations: before this case */
static cuda_stream stream;	  /* the trainer's */
static cuda_ptr weights;

static int library_open(void **unused)
{
	(void)unused;
	seed = draw_seed("device_cuda");
	cu = fakecuda_open(FAKECUDA, "1", &fake);
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
	violations = fake->violations();
	fake->fault_none();
	fake->bandwidth(0);
	fake->seed(0);
	fake->release(false);
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
	fake->release(false);
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
	int rc;

	while ((rc = dev->ops->poll(dev, newest)) == -EAGAIN) {
		assert_true(now_ns() < until);
		usleep(50);
	}
	assert_int_equal(rc, 0);
	if (page.direct)
		assert_true(device_reached(atomic_load(done), target));
}

/* What the copier does of one snapshot. */
static int copies(const struct device_row *row, uint32_t n, uint32_t target, uint32_t *ret_bad)
{
	int rc = dev->ops->follow(dev, dev);

	if (rc == 0)
		rc = dev->ops->copy(dev, &slot, row, n, ret_bad);
	return rc == 0 ? dev->ops->end(dev, page.direct ? done : NULL, target, &newest) : rc;
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
		assert_int_equal(copies(row, k, ++target, &bad), 0);
		wait_done(target);
		assert_memory_equal(slot.base, want, BYTES);
	}
	assert_int_equal(fake->violations(), violations);
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
 * its words are those of the step that was marked. If copies are only queued, the kernels of steps
 * 1, 4, ... come before them where they may, those of steps 2, 5, ... behind them. */
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
		if (slot.direct && i % 3)
			fake->hold();
		assert_int_equal(launch_host(stream, step_run, &step[i]), 0);
		assert_int_equal(dev->ops->check(dev, on), 0);
		assert_int_equal(dev->ops->begin(dev, on), 0);
		assert_int_equal(copies(&row, 1, i, &bad), 0);
		if (guards)
			assert_int_equal(dev->ops->guard(dev, on, dev), 0);
		/* The next update is queued while the copy runs. */
		step[0].value = UINT32_MAX - i;
		assert_int_equal(launch_host(stream, step_run, &step[0]), 0);
		fake->release(i % 3 == 1);
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
	assert_int_equal(fake->violations(), violations);
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
	assert_int_equal(train(1, false, stream), 1);
}

TEST(a_mark_on_a_stream_that_the_update_is_not_on_is_torn)
{
	cuda_stream other;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(cu->stream_new(&other, CUDA_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(train(1, true, other), 1);
	assert_int_equal(cu->stream_free(other), 0);
}

/* --- what the trainer's thread calls --- */
TEST(a_mark_and_a_guard_are_few_calls_and_never_wait)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	uint64_t before;
	uint32_t bad;

	assert_int_equal(targets_add(), 0);
	fake->hold();
	before = fake->calls_here();
	assert_int_equal(dev->ops->check(dev, stream), 0);
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_true(fake->calls_here() - before <= 5);
	assert_int_equal(copies(&row, 1, 1, &bad), 0);
	before = fake->calls_here();
	assert_int_equal(dev->ops->guard(dev, stream, dev), 0);
	assert_true(fake->calls_here() - before <= 4);
	assert_false(device_reached(*done, 1)); /* the copy still runs */
	fake->release(false);
	wait_done(1);
}

TEST(a_thread_without_a_context_marks_and_keeps_none)
{
	cuda_ctx was, now;

	assert_int_equal(targets_add(), 0);
	assert_int_equal(cu->ctx_current(&was), 0);
	assert_int_equal(cu->ctx_set(NULL), 0);
	assert_int_equal(dev->ops->check(dev, stream), 0);
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(dev->ops->guard(dev, stream, dev), 0);
	assert_int_equal(cu->ctx_current(&now), 0);
	assert_null(now);
	assert_int_equal(cu->ctx_set(was), 0);
}

/* --- capture --- */
TEST(a_stream_that_is_captured_is_not_marked_and_stays_captured)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	const struct graph_calls graphs = graph_calls();
	uint32_t bad;
	void *graph;

	assert_int_equal(targets_add(), 0);
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		/* A copy that goes on while a capture begins does not break it. */
		assert_int_equal(dev->ops->begin(dev, stream), 0);
		assert_int_equal(graphs.begin(stream, mode), 0);
		assert_int_equal(copies(&row, 1, mode + 1, &bad), 0);
		assert_int_equal(dev->ops->check(dev, stream), -EBUSY);
		assert_int_equal(dev->ops->guard(dev, stream, dev), -EBUSY);
		wait_done(mode + 1);
		assert_int_equal(graphs.end(stream, &graph), 0);
		assert_int_equal(graphs.drop(graph), 0);
	}
}

/* --- what is missing, what fails --- */
TEST(pages_that_cannot_be_registered_are_copied_by_way_of_pinned_buffers)
{
	assert_true(fake->registered() < 16384);
	fake->register_limit((17 << 20) + 16384); /* the buffer, and not the slot */
	fake->fault("cuMemHostRegister", 1, CUDA_OUT_OF_MEMORY);
	assert_int_equal(targets_add(), 0);
	assert_false(slot.direct);
	fake->bandwidth(.25);
	/* The copy has ended when copy returns, so no guard is needed. */
	assert_int_equal(train(6, false, stream), 0);
	assert_int_equal(fake->violations(), violations);
}

/* Drivers refuse 512 GiB and more in one call. Addresses alone: no page of it is touched. */
TEST(a_slot_of_any_size_is_registered_in_steps_and_given_back_when_one_of_them_fails)
{
	const uint64_t bytes = UINT64_C(513) << 30, step = UINT64_C(4) << 30;
	uint64_t before = fake->registered(), calls = fake->calls("cuMemHostRegister");
	struct device_target t = { .bytes = bytes, .fd = -1 };
	struct ckpt_err err;

	t.base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(t.base, MAP_FAILED);
	assert_int_equal(dev->ops->target(dev, &t, &err), 0);
	assert_true(t.direct);
	assert_int_equal(fake->registered(), before + bytes);
	assert_int_equal(fake->calls("cuMemHostRegister"), calls + div_up(bytes, step));
	dev->ops->forget(dev, &t);
	assert_int_equal(fake->registered(), before);
	fake->register_limit(before + 3 * step);
	assert_int_equal(dev->ops->target(dev, &t, &err), 0);
	assert_false(t.direct);
	assert_int_equal(fake->registered(), before);
	dev->ops->forget(dev, &t);
	munmap(t.base, bytes);
}

/* By the driver's own buffers, which the fake one reports: any other road is better. */
TEST(without_pinned_memory_it_is_copied_all_the_same)
{
	uint64_t before = fake->violations();
	uint8_t back[64];

	fake->fault("cuMemHostRegister", 0, CUDA_OUT_OF_MEMORY);
	assert_int_equal(targets_add(), 0);
	fake->fault_none();
	fake->fault("cuMemHostAlloc", 0, CUDA_OUT_OF_MEMORY);
	assert_int_equal(train(3, false, stream), 0);
	assert_int_equal(dev->ops->fetch(dev, weights, sizeof back, back), 0);
	assert_memory_equal(back, fake->alias(weights), sizeof back);
	assert_true(fake->violations() > before);
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
	assert_int_equal(copies(row, 3, 1, &bad), -EFAULT);
	assert_int_equal(bad, 1);
	assert_int_equal(dev->ops->end(dev, NULL, 0, &newest),
			 0); /* what was queued before it ends */
	wait_done(0);
	row[1].rows = 2;
	row[1].src_pitch = row[1].dst_pitch = 8192;
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(copies(row, 3, 1, &bad), -EFAULT);
	assert_int_equal(bad, 1);
	assert_int_equal(dev->ops->end(dev, NULL, 0, &newest), 0);
	wait_done(0);
	assert_int_equal(*done, 0);
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
	assert_int_equal(copies(&row, 1, 1, &bad), -EIO);
	assert_int_equal(dev->ops->end(dev, done, 1, &newest), -EIO);
	assert_int_equal(dev->ops->check(dev, stream), -EIO);
	assert_int_equal(dev->ops->begin(dev, stream), -EIO);
	assert_int_equal(*done, 0);
	fake->sticky(0, 0);
	assert_int_equal(dev->ops->begin(dev, stream), -EIO); /* until it is opened again */
}

/* A call is refused, and the device lives: what was queued before still comes, and is waited
 * for. */
TEST(a_refused_call_leaves_nothing_in_flight_behind_poll)
{
	static const char *const calls[] = { "cuMemcpyDtoHAsync", "cuStreamWriteValue32" };

	for (uint32_t i = 0; i < ARRAY_LEN(calls); i++) {
		struct device_row row = { .width = BYTES, .rows = 1 };
		uint64_t until = now_ns() + 20 * NS_PER_S;
		uint32_t bad;
		int rc;

		if (i)
			(void)teardown(NULL), (void)setup(NULL);
		row.src = weights;
		row.dst = slot.base;
		assert_int_equal(targets_add(), 0);
		fake->hold();
		assert_int_equal(dev->ops->begin(dev, stream), 0);
		assert_int_equal(dev->ops->follow(dev, dev), 0);
		assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), 0);
		fake->fault(calls[i], 1, CUDA_OUT_OF_MEMORY);
		assert_int_equal(dev->ops->copy(dev, &slot, &row, 1, &bad), -EIO);
		assert_int_equal(dev->ops->end(dev, NULL, 1, &newest), -EIO);
		assert_int_equal(dev->ops->poll(dev, newest), -EAGAIN);
		fake->release(false);
		while ((rc = dev->ops->poll(dev, newest)) == -EAGAIN) {
			assert_true(now_ns() < until);
			usleep(50);
		}
		assert_int_equal(rc, -EIO);
		assert_int_equal(fake->queued(), 0);
	}
}

/* A kernel of the trainer's fails while copies are in flight: nobody waits for them for ever. */
TEST(a_device_that_fails_in_mid_copy_is_found_by_poll)
{
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	uint64_t until = now_ns() + 20 * NS_PER_S;
	uint32_t bad;
	int rc;

	assert_int_equal(targets_add(), 0);
	fake->hold();
	assert_int_equal(dev->ops->begin(dev, stream), 0);
	assert_int_equal(copies(&row, 1, 1, &bad), 0);
	assert_int_equal(dev->ops->poll(dev, newest), -EAGAIN);
	fake->bandwidth(.0001); /* 5 s */
	fake->release(false);
	fake->sticky(0, CUDA_ILLEGAL_ADDRESS);
	while ((rc = dev->ops->poll(dev, newest)) == -EAGAIN)
		assert_true(now_ns() < until);
	assert_int_equal(rc, -EIO);
}

TEST(every_call_that_fails_is_an_error_and_no_end)
{
	static const char *const calls[] = { "cuStreamWaitEvent", "cuMemcpyDtoHAsync",
					     "cuEventRecord",	  "cuStreamWriteValue32",
					     "cuCtxSetCurrent",	  "cuMemHostGetDevicePointer" };
	struct device_row row = { .src = weights, .dst = slot.base, .width = BYTES, .rows = 1 };
	struct ckpt_err err;
	uint32_t bad;

	assert_int_equal(targets_add(), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(calls); i++) {
		int rc;

		assert_int_equal(dev->ops->begin(dev, stream), 0);
		fake->fault(calls[i], 1, 999);
		rc = copies(&row, 1, i + 1, &bad);
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
	cuda_ctx was;

	assert_int_equal(cu->ctx_current(&was), 0);
	assert_int_equal(cu->ctx_set(NULL), 0);
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
	assert_int_equal(cu->ctx_set(was), 0);
}

TEST(the_context_of_the_thread_that_opens_is_taken)
{
	uint64_t retained = fake->calls("cuDevicePrimaryCtxRetain");
	struct device_handle *x;
	struct ckpt_err err;
	cuda_ctx was;

	assert_int_equal(device_cuda.open(0, &x, &err), 0);
	assert_int_equal(fake->calls("cuDevicePrimaryCtxRetain"), retained);
	x->ops->close(x);
	assert_int_equal(cu->ctx_current(&was), 0);
	assert_int_equal(cu->ctx_set(NULL), 0);
	assert_int_equal(device_cuda.open(0, &x, &err), 0);
	assert_int_equal(fake->calls("cuDevicePrimaryCtxRetain"), retained + 1);
	x->ops->close(x);
	assert_int_equal(cu->ctx_set(was), 0);
}

/* --- the other way, and what stays on the device --- */
TEST(what_lands_is_what_is_fetched)
{
	uint8_t *host = malloc(2 * BYTES), *back = malloc(BYTES), *there = fake->alias(weights);
	struct device_target from;
	struct device_row row[3];
	uint32_t bad;

	assert_true(host && back);
	target_make(&from, BYTES);
	for (int way = 0; way < 3; way++) { /* registered, not registered, any memory */
		struct ckpt_err err;
		uint8_t *base = way == 2 ? host : from.base;

		if (way < 2) {
			fake->fault("cuMemHostRegister", (unsigned)way, CUDA_OUT_OF_MEMORY);
			if (way == 0)
				fake->fault_none();
			assert_ok_err(dev->ops->target(dev, &from, &err), &err);
			assert_int_equal(from.direct, way == 0);
			fake->fault_none();
		}
		memset(there, 0, BYTES);
		for (uint32_t i = 0; i < BYTES; i++)
			base[i] = (uint8_t)draw(&seed);
		row[0] = (struct device_row){
			.src = weights, .dst = base, .width = 1000, .rows = 1
		};
		row[1] = (struct device_row){ .src = weights + 2000,
					      .dst = base + 2000,
					      .width = 100,
					      .rows = 50,
					      .src_pitch = 120,
					      .dst_pitch = 100 };
		row[2] = (struct device_row){
			.src = weights + 10000, .dst = base + 10001, .width = 300000, .rows = 1
		};
		assert_int_equal(dev->ops->land(dev, way == 2 ? NULL : &from, row, 3, &bad), 0);
		assert_memory_equal(there, base, 1000);
		for (int i = 0; i < 50; i++)
			assert_memory_equal(there + 2000 + i * 120, base + 2000 + i * 100, 100);
		assert_int_equal(there[2100], 0); /* between two lines */
		assert_memory_equal(there + 10000, base + 10001, 300000);
		assert_int_equal(dev->ops->fetch(dev, weights, BYTES, back), 0);
		assert_memory_equal(back, there, BYTES);
		if (way < 2)
			dev->ops->forget(dev, &from);
	}
	row[1].src = 4096;
	assert_int_equal(dev->ops->land(dev, NULL, row, 3, &bad), -EFAULT);
	assert_int_equal(bad, 1);
	assert_int_equal(dev->ops->fetch(dev, 4096, 8, back), -EFAULT);
	target_free(&from);
	free(host);
	free(back);
}

/* Of a thread: copies go on when somebody has asked several times whether they have ended. */
struct asked {
	uint64_t before;
	_Atomic bool nobody;
};

static void *go_on_when_asked(void *arg)
{
	struct asked *a = arg;

	while (fake->calls("cuEventQuery") < a->before + 5 && !atomic_load(&a->nobody))
		usleep(50);
	fake->release(false);
	return NULL;
}

/* The caller takes the window away. */
TEST(a_landing_that_fails_half_way_reads_its_window_no_more)
{
	struct device_row row[2];
	struct device_target from;
	struct asked asked = { .before = fake->calls("cuEventQuery") };
	struct ckpt_err err;
	pthread_t other;
	uint64_t queued;
	uint32_t bad;
	int rc;

	target_make(&from, BYTES);
	assert_ok_err(dev->ops->target(dev, &from, &err), &err);
	for (uint32_t i = 0; i < 2; i++)
		row[i] = (struct device_row){ .src = weights + i * (BYTES / 2),
					      .dst = from.base + i * (BYTES / 2),
					      .width = BYTES / 2,
					      .rows = 1 };
	fake->hold();
	fake->fault("cuMemcpyHtoDAsync", 2, CUDA_OUT_OF_MEMORY);
	assert_int_equal(pthread_create(&other, NULL, go_on_when_asked, &asked), 0);
	rc = dev->ops->land(dev, &from, row, 2, &bad);
	queued = fake->queued();
	atomic_store(&asked.nobody, true);
	(void)pthread_join(other, NULL);
	assert_int_equal(rc, -EIO);
	assert_int_equal(bad, 1);
	assert_int_equal(queued, 0);
	dev->ops->forget(dev, &from);
	target_free(&from);
}

/* More than a buffer, so that both are in use at the same time. */
TEST(what_is_larger_than_the_buffers_lands_whole)
{
	const uint64_t bytes = 3 * DEVICE_CHUNK + 12345;
	uint8_t *host = malloc(bytes), *back = malloc(bytes);
	struct device_row row = { .dst = host, .width = bytes, .rows = 1 };
	cuda_ptr p;
	uint32_t bad;

	assert_true(host && back);
	for (uint64_t i = 0; i < bytes; i += 4096)
		host[i] = (uint8_t)draw(&seed);
	assert_int_equal(cu->mem_alloc(&p, bytes), 0);
	row.src = p;
	fake->seed(draw(&seed));
	assert_int_equal(dev->ops->land(dev, NULL, &row, 1, &bad), 0);
	assert_int_equal(dev->ops->fetch(dev, p, bytes, back), 0);
	assert_memory_equal(host, back, bytes);
	assert_int_equal(fake->violations(), violations);
	assert_int_equal(cu->mem_free(p), 0);
	free(host);
	free(back);
}

static void ends(void *arg)
{
	atomic_store((_Atomic int *)arg, 1);
}

/* Ends when the host waits for the context, or when it has ended without that. */
struct awaited {
	uint64_t waits;
	_Atomic int returned, ended;
};

static void ends_awaited(void *arg)
{
	struct awaited *a = arg;

	while (fake->calls("cuCtxSynchronize") == a->waits && !atomic_load(&a->returned))
		usleep(50);
	atomic_store(&a->ended, 1);
}

static void first_changes(void *unused)
{
	(void)unused;
	++*(uint8_t *)fake->alias(weights);
}

TEST(many_buffers_move_by_one_call)
{
	static _Atomic int ended;
	enum { N = 1000 };
	struct device_row *row = calloc(N + 1, sizeof *row);
	uint8_t *w = fake->alias(weights);
	struct ckpt_err err;
	uint64_t scratch, before, at = 0;

	assert_non_null(row);
	assert_ok_err(dev->ops->alloc(dev, BYTES, &scratch, &err), &err);
	for (uint32_t i = 0; i < BYTES; i++)
		w[i] = (uint8_t)draw(&seed);
	for (uint32_t i = 0; i < N; i++, at += 64)
		row[i] = (struct device_row){ .src = weights + at,
					      .dst = (uint8_t *)(uintptr_t)(scratch + at),
					      .width = 1 + i % 64,
					      .rows = 1 };
	row[N] = (struct device_row){ .src = weights + at,
				      .dst = (uint8_t *)(uintptr_t)(scratch + at),
				      .width = 10,
				      .rows = 7,
				      .src_pitch = 30,
				      .dst_pitch = 10 };
	before = fake->calls("cuMemcpyBatchAsync");
	assert_int_equal(dev->ops->move(dev, stream, row, N + 1), 0);
	assert_int_equal(fake->calls("cuMemcpyBatchAsync"), before + 1);
	assert_int_equal(cu->stream_sync(stream), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_memory_equal((uint8_t *)fake->alias(scratch) + i * 64, w + i * 64,
				    1 + i % 64);
	for (uint32_t i = 0; i < 7; i++)
		assert_memory_equal((uint8_t *)fake->alias(scratch) + at + i * 10, w + at + i * 30,
				    10);
	/* The legacy stream takes no such call, and they are few all the same, in its order. */
	for (uint32_t i = 0; i < 2; i++) {
		uint8_t was = w[0];

		ended = 0;
		fake->hold();
		assert_int_equal(launch_host(NULL, ends, &ended), 0);
		before = fake->calls_here();
		assert_int_equal(dev->ops->move(dev, (cuda_stream)(uintptr_t)i, row, N), 0);
		assert_true(fake->calls_here() - before < 12);
		assert_int_equal(ended, 0);
		assert_int_equal(launch_host(NULL, first_changes, NULL), 0);
		fake->release(false);
		assert_int_equal(cu->stream_sync(NULL), 0);
		assert_int_equal(*(uint8_t *)fake->alias(scratch), was);
		assert_int_equal(w[0], (uint8_t)(was + 1));
	}
	w[0]++;
	assert_int_equal(dev->ops->move_now(dev, row, 1), 0);
	assert_int_equal(*(uint8_t *)fake->alias(scratch), w[0]);
	dev->ops->free(dev, scratch);
	free(row);
}

TEST(settle_waits_for_the_trainers_streams_and_says_when_it_cannot)
{
	const struct graph_calls graphs = graph_calls();
	static struct awaited work;
	int rc, ended;
	void *graph;

	work.waits = fake->calls("cuCtxSynchronize");
	assert_int_equal(launch_host(stream, ends_awaited, &work), 0);
	rc = dev->ops->settle(dev);
	ended = atomic_load(&work.ended);
	atomic_store(&work.returned, 1);
	assert_int_equal(rc, 0);
	assert_int_equal(ended, 1);
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		assert_int_equal(graphs.begin(stream, mode), 0);
		assert_int_equal(dev->ops->settle(dev), -EBUSY);
		graph = NULL;
		assert_int_equal(graphs.end(stream, &graph), CUDA_CAPTURE_INVALIDATED);
		if (graph)
			(void)graphs.drop(graph);
		assert_int_equal(dev->ops->settle(dev), 0);
	}
}

TEST(memory_says_by_its_address_where_it_is)
{
	static uint8_t host[64];
	struct ckpt_err err;
	uint32_t number = 9;
	cuda_rc (*managed)(cuda_ptr *, size_t, unsigned);
	cuda_ptr m;

	fakecuda_find("cuMemAllocManaged", 6000, &managed);
	assert_int_equal(device_cuda_find(dev, weights, BYTES, &number, &err), 1);
	assert_int_equal(number, 0);
	number = 9;
	assert_int_equal(device_cuda_find(NULL, weights, BYTES, &number, &err), 1);
	assert_int_equal(number, 0);
	assert_int_equal(device_cuda_find(dev, (uintptr_t)host, sizeof host, &number, &err), 0);
	assert_int_equal(device_cuda_find(NULL, (uintptr_t)host, sizeof host, &number, &err), 0);
	assert_int_equal(device_cuda_find(dev, (uintptr_t)slot.base, 64, &number, &err), 0);
	assert_int_equal(device_cuda_find(dev, weights + BYTES - 8, 64 << 20, &number, &err),
			 -EOPNOTSUPP);
	assert_non_null(strstr(err.msg, "not all memory of one CUDA device"));
	assert_int_equal(managed(&m, 4096, 1), 0);
	assert_int_equal(device_cuda_find(dev, m, 64, &number, &err), -EOPNOTSUPP);
	assert_non_null(strstr(err.msg, "managed memory"));
	assert_int_equal(cu->mem_free(m), 0);
}

UNIT(.setup = setup, .teardown = teardown, .group_setup = library_open);
