// SPDX-License-Identifier: Apache-2.0
// fake_memory.c - memory of devices, managed memory, and host memory that is registered. See
// fake_impl.h. Invariant: what is in fake.range is mapped, and no two ranges overlap.
#include "tests/fakecuda/fake_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REGISTER_MAX ((size_t)512 << 30) /* a call of so much fails on r580 and later */

struct range *range_find(uintptr_t at, size_t bytes)
{
	for (struct range *r = fake.range; r; r = r->next) {
		uintptr_t base = (uintptr_t)r->base;

		if (at >= base && at - base <= r->bytes && bytes <= r->bytes - (at - base) &&
		    (at - base < r->bytes || !bytes))
			return r;
	}
	return NULL;
}

static struct range *range_add(enum range_kind kind, int device, void *base, void *alias,
			       size_t bytes)
{
	struct range *r = calloc(1, sizeof *r);

	if (!r)
		abort();
	*r = (struct range){ .kind = kind,
			     .device = device,
			     .base = base,
			     .alias = alias,
			     .bytes = bytes,
			     .fd = -1,
			     .owner = -1,
			     .next = fake.range };
	fake.range = r;
	return r;
}

struct range *range_map(int device, int fd, size_t bytes)
{
	size_t mapped = (bytes + 4095) / 4096 * 4096;
	void *base = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	     *alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct stat st = { 0 };
	struct range *r;

	if (base == MAP_FAILED || alias == MAP_FAILED || fstat(fd, &st) < 0) {
		if (base != MAP_FAILED)
			munmap(base, mapped);
		if (alias != MAP_FAILED)
			munmap(alias, mapped);
		close(fd);
		return NULL;
	}
	r = range_add(RANGE_DEVICE, device, base, alias, bytes);
	r->fd = fd;
	r->ino = st.st_ino;
	return r;
}

static bool range_overlaps(uintptr_t at, size_t bytes)
{
	for (struct range *r = fake.range; r; r = r->next)
		if (at < (uintptr_t)r->base + r->bytes && (uintptr_t)r->base < at + bytes)
			return true;
	return false;
}

static void range_drop(struct range *r)
{
	struct range **at = &fake.range;

	if (r->fd >= 0)
		close(r->fd);
	if (r->owner >= 0)
		close(r->owner);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	free(r);
}

cuda_rc fake_mem_alloc(cuda_ptr *ret, size_t bytes)
{
	struct range *r = NULL;
	int fd;

	CALL("cuMemAlloc");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!bytes, CUDA_INVALID_VALUE);
	fd = memfd_create("fakecuda", MFD_CLOEXEC);
	FAIL_IF(fd < 0, CUDA_OUT_OF_MEMORY);
	if (ftruncate(fd, (off_t)(bytes + 4095) / 4096 * 4096) == 0)
		r = range_map(current->device, fd, bytes);
	else
		close(fd);
	FAIL_IF(!r, CUDA_OUT_OF_MEMORY);
	*ret = (uintptr_t)r->base;
	return call_end(CUDA_OK);
}

cuda_rc fake_alloc_managed(cuda_ptr *ret, size_t bytes, unsigned flags)
{
	void *p;

	(void)flags;
	CALL("cuMemAllocManaged");
	CONTEXT();
	FAIL_IF(!bytes, CUDA_INVALID_VALUE);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAIL_IF(p == MAP_FAILED, CUDA_OUT_OF_MEMORY);
	range_add(RANGE_MANAGED, current->device, p, p, bytes);
	*ret = (uintptr_t)p;
	return call_end(CUDA_OK);
}

void device_drop(struct range *r)
{
	size_t mapped = (r->bytes + 4095) / 4096 * 4096;

	context_wait(current);
	munmap(r->base, mapped);
	if (r->alias != r->base)
		munmap(r->alias, mapped);
	range_drop(r);
}

cuda_rc fake_mem_free(cuda_ptr p)
{
	struct range *r;

	CALL("cuMemFree");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || (uintptr_t)r->base != p || r->kind == RANGE_HOST || r->imported,
		CUDA_INVALID_VALUE);
	device_drop(r);
	return call_end(CUDA_OK);
}

cuda_rc fake_mem_info(size_t *ret_free, size_t *ret_total)
{
	size_t used = 0;

	CALL("cuMemGetInfo");
	CONTEXT();
	for (struct range *r = fake.range; r; r = r->next)
		used += r->kind == RANGE_DEVICE && !r->imported ? r->bytes : 0;
	*ret_total = (size_t)80 << 30;
	*ret_free = *ret_total - used;
	return call_end(CUDA_OK);
}

cuda_rc fake_host_register(void *p, size_t bytes, unsigned flags)
{
	CALL("cuMemHostRegister");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!p || !bytes || flags & ~3u, CUDA_INVALID_VALUE);
	FAIL_IF(range_overlaps((uintptr_t)p, bytes), CUDA_HOST_MEMORY_ALREADY_REGISTERED);
	FAIL_IF(bytes >= REGISTER_MAX, CUDA_OUT_OF_MEMORY);
	FAIL_IF(fake.register_limit && fake.registered + bytes > fake.register_limit,
		CUDA_OUT_OF_MEMORY);
	range_add(RANGE_HOST, current->device, p, p, bytes);
	fake.registered += bytes;
	return call_end(CUDA_OK);
}

cuda_rc fake_host_unregister(void *p)
{
	struct range *r;

	CALL("cuMemHostUnregister");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || r->kind != RANGE_HOST || r->base != p || r->ours,
		CUDA_HOST_MEMORY_NOT_REGISTERED);
	context_wait(current);
	fake.registered -= r->bytes;
	range_drop(r);
	return call_end(CUDA_OK);
}

cuda_rc fake_host_alloc(void **ret, size_t bytes, unsigned flags)
{
	void *p;

	CALL("cuMemHostAlloc");
	CONTEXT();
	rc_ = capture_unsafe();
	FAIL_IF(rc_, rc_);
	FAIL_IF(!bytes || flags & ~7u, CUDA_INVALID_VALUE);
	FAIL_IF(fake.register_limit && fake.registered + bytes > fake.register_limit,
		CUDA_OUT_OF_MEMORY);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FAIL_IF(p == MAP_FAILED, CUDA_OUT_OF_MEMORY);
	range_add(RANGE_HOST, current->device, p, p, bytes)->ours = true;
	fake.registered += bytes;
	*ret = p;
	return call_end(CUDA_OK);
}

cuda_rc fake_host_free(void *p)
{
	struct range *r;

	CALL("cuMemFreeHost");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || r->base != p || !r->ours, CUDA_INVALID_VALUE);
	context_wait(current);
	fake.registered -= r->bytes;
	munmap(p, r->bytes);
	range_drop(r);
	return call_end(CUDA_OK);
}

cuda_rc fake_host_device_ptr(cuda_ptr *ret, void *p, unsigned flags)
{
	struct range *r;

	CALL("cuMemHostGetDevicePointer");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(flags || !r || r->kind != RANGE_HOST, CUDA_INVALID_VALUE);
	*ret = (uintptr_t)p;
	return call_end(CUDA_OK);
}

cuda_rc fake_pointer_attrs(unsigned n, unsigned *attr, void **ret, cuda_ptr p)
{
	struct range *r;

	CALL("cuPointerGetAttributes");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	for (unsigned i = 0; i < n; i++)
		switch (attr[i]) {
		case CUDA_POINTER_CONTEXT:
			*(cuda_ctx *)ret[i] = r ? &fake.ctx[r->device] : NULL;
			break;
		case CUDA_POINTER_MEMORY_TYPE:
			*(unsigned *)ret[i] = !r		      ? 0
					      : r->kind == RANGE_HOST ? CUDA_MEMORY_HOST
								      : CUDA_MEMORY_DEVICE;
			break;
		case CUDA_POINTER_MANAGED:
			*(unsigned *)ret[i] = r && r->kind == RANGE_MANAGED;
			break;
		case CUDA_POINTER_DEVICE:
			*(int *)ret[i] = r ? r->device : -2;
			break;
		case CUDA_POINTER_RANGE_START:
			*(cuda_ptr *)ret[i] = r ? (uintptr_t)r->base : 0;
			break;
		case CUDA_POINTER_RANGE_BYTES:
			*(size_t *)ret[i] = r ? r->bytes : 0;
			break;
		default:
			return call_end(CUDA_INVALID_VALUE);
		}
	return call_end(CUDA_OK);
}
