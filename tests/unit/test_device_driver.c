/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_driver.c - hosts without a GPU, and drivers that lack something: one sentence, or the
 * next best road. A process finds its driver once, so each case is a process of its own.
 */
#include "ckpt/device/cuda_driver.h"
#include "ckpt/device/device.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/lib/unit.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define BYTES (256u << 10)

/* What a process with these variables does: its exit status, 0 or the line that did not hold. */
struct host {
	const char *name, *value;
	bool driver; /* libcuda.so.1 is there */
	int rc;	     /* that opening the device returns */
	const char *says;
};
#define HOLDS(what)                      \
	do {                             \
		if (!(what))             \
			return __LINE__; \
	} while (0)

static int device_open(const struct host *h, struct device_handle **ret)
{
	struct ckpt_err err = { .code = 0 };
	int rc;

	if (h->name)
		setenv(h->name, h->value, 1);
	if (h->driver && !dlopen(FAKECUDA, RTLD_NOW | RTLD_GLOBAL))
		return __LINE__;
	for (int i = 0; i < 2; i++) { /* it is said each time, and found once */
		rc = device_cuda.open(0, ret, &err);
		if (rc != h->rc || (rc < 0 && !strstr(err.msg, h->says))) {
			fprintf(stderr, "# %d: %s\n", rc, err.msg);
			return __LINE__;
		}
		if (rc == 0 && i == 0)
			device_cuda.close(*ret);
	}
	return 0;
}

static void *memory_of(struct device_target *t, uint64_t bytes)
{
	*t = (struct device_target){ .bytes = bytes, .fd = -1 };
	t->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return t->base == MAP_FAILED ? NULL : t->base;
}

/* Some snapshots, with an update behind each guard. */
static int snapshots_take(struct device_handle *dev, bool ordered)
{
	const struct fakecuda *fake = dlsym(RTLD_DEFAULT, "fakecuda");
	struct device_target slot, page;
	const struct cuda_calls *cu;
	struct device_row row = { .width = BYTES, .rows = 1 };
	struct ckpt_err err;
	_Atomic uint32_t *done;
	cuda_stream stream;
	cuda_ptr weights;
	void *now, *next;
	cuda_ctx ctx;
	uint32_t bad, end;
	int rc;

	cu = cuda_driver(&rc, &err);
	HOLDS(cu && fake);
	HOLDS(cu->primary_retain(&ctx, 0) == 0 && cu->ctx_set(ctx) == 0);
	HOLDS(cu->stream_new(&stream, 0, 0) == 0 && cu->mem_alloc(&weights, BYTES) == 0);
	HOLDS(memory_of(&slot, BYTES) && memory_of(&page, 4096));
	HOLDS(dev->ops->target(dev, &slot, &err) == 0 && dev->ops->target(dev, &page, &err) == 0);
	HOLDS(!(dev->caps & DEVICE_ORDERED) == !ordered);
	done = (_Atomic uint32_t *)(void *)page.base;
	row.src = weights;
	row.dst = slot.base;
	HOLDS(cu->host_alloc(&now, BYTES, 0) == 0 && cu->host_alloc(&next, BYTES, 0) == 0);
	memset(next, 0xff, BYTES);
	fake->bandwidth(.1);
	for (uint32_t i = 1; i <= 4; i++) {
		memset(now, (int)i, BYTES);
		HOLDS(cu->copy_in(weights, now, BYTES, stream) == 0);
		HOLDS(dev->ops->begin(dev, stream) == 0);
		HOLDS(dev->ops->follow(dev, dev) == 0);
		HOLDS(dev->ops->copy(dev, &slot, &row, 1, &bad) == 0);
		HOLDS(dev->ops->end(dev, done, i, &end) == 0);
		HOLDS(dev->ops->guard(dev, stream, dev) == 0);
		HOLDS(cu->copy_in(weights, next, BYTES, stream) == 0);
		for (int k = 0; k < 20000 && dev->ops->poll(dev, end) == -EAGAIN; k++)
			usleep(1000);
		HOLDS(dev->ops->poll(dev, end) == 0);
		HOLDS(!ordered || device_reached(*done, i));
		HOLDS(memcmp(slot.base, now, BYTES) == 0);
		HOLDS(cu->stream_sync(stream) == 0);
	}
	HOLDS(cu->host_free(now) == 0 && cu->host_free(next) == 0);
	dev->ops->forget(dev, &slot);
	dev->ops->forget(dev, &page);
	dev->ops->close(dev);
	HOLDS(fake->violations() == 0);
	return 0;
}

static void in_a_process(const struct host *h, bool copies, bool ordered)
{
	struct device_handle *dev = NULL;
	pid_t pid;
	int status;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int rc = device_open(h, &dev);

		if (rc == 0 && copies)
			rc = snapshots_take(dev, ordered);
		if (rc)
			fprintf(stderr, "# line %d\n", rc);
		_exit(rc != 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

TEST(a_host_without_a_driver_says_so)
{
	if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
		puts("# SKIP this host has a CUDA driver");
		skip();
	}
	in_a_process(&(struct host){ .rc = -ENOENT, .says = "no CUDA driver here" }, false, false);
}

TEST(a_driver_that_lacks_what_is_needed_is_named)
{
	static const struct host hosts[] = {
		{ "FAKECUDA_STUB", "1", true, -ENOTSUP, "stub of the CUDA toolkit" },
		{ "FAKECUDA_DEVICES", "0", true, -ENODEV, "no CUDA device" },
		{ "FAKECUDA_VERSION", "11000", true, -ENOTSUP, "too old (CUDA 11.0)" },
		{ "FAKECUDA_WITHOUT", "cuMemHostRegister", true, -ENOTSUP, "no cuMemHostRegister" },
		{ "FAKECUDA_FAIL", "cuInit:1:999", true, -ENOTSUP, "cuInit fails: CUDA error 999" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(hosts); i++)
		in_a_process(&hosts[i], false, false);
}

TEST(without_a_write_by_the_device_the_copier_waits_for_the_end)
{
	in_a_process(&(struct host){ "FAKECUDA_WITHOUT", "cuStreamWriteValue32", true, 0, "" },
		     true, false);
	in_a_process(&(struct host){ "FAKECUDA_FAIL", "cuStreamWriteValue32:0:801", true, 0, "" },
		     true, false);
}

TEST(streams_that_share_one_queue_do_not_hang)
{
	in_a_process(&(struct host){ "FAKECUDA_CONNECTIONS", "1", true, 0, "" }, true, true);
}

TEST(a_driver_of_cuda_12_copies_many_rows_at_once)
{
	in_a_process(&(struct host){ "FAKECUDA_VERSION", "12080", true, 0, "" }, true, true);
}
