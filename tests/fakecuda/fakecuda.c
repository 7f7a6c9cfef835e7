// SPDX-License-Identifier: Apache-2.0
// fakecuda.c - see fakecuda.h. Built as libcuda.so.1 with the other files of fake_impl.h; nothing
// else links it. How calls are counted and fail, the devices, and how symbols are found. Invariant:
// before cuInit has succeeded no call does anything.
#include "tests/fakecuda/fake_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake fake = { .lock = PTHREAD_MUTEX_INITIALIZER,
		     .pause_at = UINT64_MAX,
		     .change = PTHREAD_COND_INITIALIZER,
		     .ndevice = 1,
		     .version = 13000 };

_Thread_local struct CUctx_st *current;
_Thread_local unsigned capture_mode = CUDA_CAPTURE_GLOBAL;
_Thread_local uint64_t calls_here;

cuda_rc call_begin(const char *symbol)
{
	struct count *c = fake.count;

	calls_here++;
	fake.calls++;
	while (c->symbol && strcmp(c->symbol, symbol) != 0)
		c++;
	c->symbol = symbol;
	c->n++;
	for (struct fault **at = &fake.fault, *f; (f = *at); at = &f->next) {
		cuda_rc rc = f->rc;

		if (strcmp(f->symbol, symbol) != 0)
			continue;
		if (f->nth > 1) {
			f->nth--;
			continue;
		}
		if (f->nth) {
			*at = f->next;
			free(f);
		}
		if (rc != FAKECUDA_HANG)
			return rc;
		fake.hang = true;
		while (fake.hang)
			pthread_cond_wait(&fake.change, &fake.lock);
		break;
	}
	return fake.ready || strcmp(symbol, "cuInit") == 0 ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

cuda_rc call_end(cuda_rc rc)
{
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

cuda_rc fake_init(unsigned flags)
{
	const char *devices = getenv("FAKECUDA_DEVICES"), *gbps = getenv("FAKECUDA_GBPS"),
		   *seed = getenv("FAKECUDA_SEED"), *connections = getenv("FAKECUDA_CONNECTIONS"),
		   *version = getenv("FAKECUDA_VERSION"), *fail = getenv("FAKECUDA_FAIL"),
		   *orphans = getenv("FAKECUDA_ORPHANS");
	char symbol[40], rc[16];
	unsigned nth;
	int used;

	pthread_mutex_lock(&fake.lock);
	if (!fake.ready && fail)
		while (sscanf(fail, "%39[^:]:%u:%15[^,]%n", symbol, &nth, rc, &used) == 3) {
			struct fault *f = calloc(1, sizeof *f);

			if (!f)
				abort();
			snprintf(f->symbol, sizeof f->symbol, "%s", symbol);
			f->nth = nth;
			f->rc = strcmp(rc, "hang") == 0 ? FAKECUDA_HANG : (cuda_rc)atoi(rc);
			f->next = fake.fault;
			fake.fault = f;
			fail += used;
			fail += *fail == ',';
		}
	{
		cuda_rc first = call_begin("cuInit");

		FAIL_IF(first, first);
	}
	FAIL_IF(flags, CUDA_INVALID_VALUE);
	FAIL_IF(fake.ready, fake.ndevice ? CUDA_OK : CUDA_NO_DEVICE);
	fake.ndevice = devices ? atoi(devices) : 1;
	fake.gbps = gbps ? atof(gbps) : 0;
	fake.seed = seed ? strtoull(seed, NULL, 10) : 0;
	fake.one_queue = connections && strcmp(connections, "1") == 0;
	fake.version = version ? atoi(version) : 13000;
	fake.orphans = !orphans			    ? ORPHANS_KEPT
		       : !strcmp(orphans, "reused") ? ORPHANS_REUSED
						    : ORPHANS_LOST;
	if (fake.ndevice > DEVICES_MAX)
		fake.ndevice = DEVICES_MAX;
	FAIL_IF(!fake.ndevice, CUDA_NO_DEVICE);
	FAIL_IF(fake.one_queue && !queue_start(&fake.shared), CUDA_OUT_OF_MEMORY);
	for (int i = 0; i < fake.ndevice; i++)
		fake.ctx[i].device = i;
	fake.ready = true;
	return call_end(CUDA_OK);
}

cuda_rc fake_version(int *ret)
{
	pthread_mutex_lock(&fake.lock);
	*ret = fake.version;
	return call_end(CUDA_OK);
}

cuda_rc fake_error_name(cuda_rc rc, const char **ret)
{
	static const struct {
		cuda_rc rc;
		const char *name;
	} names[] = {
		{ CUDA_OK, "CUDA_SUCCESS" },
		{ CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
		{ CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
		{ CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
		{ CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
		{ INVALID_PTX, "CUDA_ERROR_INVALID_PTX" },
		{ MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS" },
		{ LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
	};

	*ret = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].rc == rc)
			*ret = names[i].name;
	return *ret ? CUDA_OK : CUDA_INVALID_VALUE;
}

cuda_rc fake_device_count(int *ret)
{
	CALL("cuDeviceGetCount");
	*ret = fake.ndevice;
	return call_end(CUDA_OK);
}

bool device_is(cuda_device d)
{
	return d >= 0 && d < fake.ndevice;
}

cuda_rc fake_device_get(cuda_device *ret, int number)
{
	CALL("cuDeviceGet");
	FAIL_IF(!device_is(number), CUDA_INVALID_DEVICE);
	*ret = number;
	return call_end(CUDA_OK);
}

cuda_rc fake_device_attr(int *ret, unsigned attr, cuda_device d)
{
	CALL("cuDeviceGetAttribute");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	*ret = attr == CUDA_ATTR_ASYNC_ENGINES	   ? 3
	       : attr == CUDA_ATTR_HOST_NUMA	   ? -1
	       : attr == CUDA_ATTR_MULTIPROCESSORS ? 1
	       : attr == CUDA_ATTR_CAN_MAP_HOST || attr == CUDA_ATTR_UNIFIED_ADDRESSING ||
			       attr == CUDA_ATTR_HOST_REGISTER
		       ? 1
		       : 0;
	return call_end(CUDA_OK);
}

cuda_rc fake_device_name(char *ret, int bytes, cuda_device d)
{
	CALL("cuDeviceGetName");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	snprintf(ret, (size_t)bytes, "fake device %d", d);
	return call_end(CUDA_OK);
}

cuda_rc fake_device_uuid(struct cuda_uuid *ret, cuda_device d)
{
	CALL("cuDeviceGetUuid");
	FAIL_IF(!device_is(d), CUDA_INVALID_DEVICE);
	memset(ret->bytes, 'f', sizeof ret->bytes);
	ret->bytes[15] = (char)d;
	return call_end(CUDA_OK);
}

/* For who has not opened the driver, and looks whether the process has. */
EXPORT cuda_rc cuPointerGetAttributes(unsigned n, unsigned *attr, void **ret, cuda_ptr p);
EXPORT cuda_rc cuPointerGetAttributes(unsigned n, unsigned *attr, void **ret, cuda_ptr p)
{
	return fake_pointer_attrs(n, attr, ret, p);
}

struct symbol {
	const char *name;
	int version;
	void *fn;
};

static bool symbol_missing(const char *name)
{
	const char *without = getenv("FAKECUDA_WITHOUT"),
		   *at = without ? strstr(without, name) : NULL;
	size_t n = strlen(name);

	return at && (at == without || at[-1] == ',') && (at[n] == ',' || !at[n]);
}

EXPORT cuda_rc cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
				   unsigned *ret_status);
EXPORT cuda_rc cuGetProcAddress_v2(const char *symbol, void **ret, int version, uint64_t flags,
				   unsigned *ret_status)
{
#define FAKE_SYMBOL(member, name, since, args) { #name, since, (void *)fake_##member },
#define FAKE_CUDA_SYMBOL(member, name, since, needed, args) FAKE_SYMBOL(member, name, since, args)
	static const struct symbol symbols[] = { CUDA_CALLS(FAKE_CUDA_SYMBOL)
							 FAKE_CALLS(FAKE_SYMBOL) };
	const char *driver = getenv("FAKECUDA_VERSION");
	int have = driver ? atoi(driver) : 13000;

	*ret = NULL;
	if (getenv("FAKECUDA_STUB"))
		return CUDA_STUB_LIBRARY;
	if (ret_status)
		*ret_status = 1; /* not found */
	if (flags != 1)
		return CUDA_INVALID_VALUE; /* other than the legacy stream's */
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (strcmp(symbols[i].name, symbol) == 0 && symbols[i].version == version &&
		    version <= have && !symbol_missing(symbol)) {
			*ret = symbols[i].fn;
			if (ret_status)
				*ret_status = 0;
		}
	return CUDA_OK;
}

EXPORT cuda_rc cuInit(unsigned flags);
EXPORT cuda_rc cuInit(unsigned flags)
{
	return getenv("FAKECUDA_STUB") ? CUDA_STUB_LIBRARY : fake_init(flags);
}
