// SPDX-License-Identifier: Apache-2.0
// cuda_driver.c - see cuda_driver.h. Called by device_cuda.c.
// Invariant: the library is opened once and never closed: other code of the process may use it too.
#include "ckpt/device/cuda_driver.h"
#include "ckpt/base/atomic.h"
#include <dlfcn.h>
#include <link.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define LEGACY_STREAM 1 /* CU_GET_PROC_ADDRESS_LEGACY_STREAM */

typedef cuda_rc get_proc_11(const char *symbol, void **ret, int version, uint64_t flags);
typedef cuda_rc get_proc_12(const char *symbol, void **ret, int version, uint64_t flags,
			    unsigned *ret_status);

static struct driver {
	struct cuda_calls calls;
	_Atomic bool open;
	int rc;
	struct ckpt_err err; /* if rc < 0 */
} driver;

static void *driver_symbol(get_proc_12 *get12, get_proc_11 *get11, const char *name, int version)
{
	void *fn = NULL;
	unsigned status;
	cuda_rc rc = get12 ? get12(name, &fn, version, LEGACY_STREAM, &status)
			   : get11(name, &fn, version, LEGACY_STREAM);

	return rc == CUDA_OK ? fn : NULL;
}

/* The first function that is needed and missing; NULL: all are there. */
static const char *driver_symbols(struct cuda_calls *cu, get_proc_12 *get12, get_proc_11 *get11)
{
	const char *missing = NULL;
	void *fn;

#define CUDA_FIND(member, symbol, version, needed, args)    \
	fn = driver_symbol(get12, get11, #symbol, version); \
	if (!fn && needed && !missing)                      \
		missing = #symbol;                          \
	memcpy(&cu->member, &fn, sizeof fn);
	CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
	return missing;
}

static int driver_fail(cuda_rc rc, const char *what, struct ckpt_err *err)
{
	char name[32];

	if (rc == CUDA_NO_DEVICE)
		return ckpt_error(err, -ENODEV, "%s is here, and no CUDA device", LIBRARY);
	if (rc == CUDA_STUB_LIBRARY)
		return ckpt_error(err, -ENOTSUP,
				  "%s is the stub of the CUDA toolkit, not a driver: take its "
				  "directory out of LD_LIBRARY_PATH",
				  LIBRARY);
	return ckpt_error(err, -ENOTSUP, "%s: %s fails: %s", LIBRARY, what,
			  cuda_error_name(&driver.calls, rc, name));
}

static int driver_find(struct ckpt_err *err)
{
	void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *get;
	get_proc_12 *get12 = NULL;
	get_proc_11 *get11 = NULL;
	const char *missing;
	int version = 0, count = 0;
	cuda_rc rc;

	if (!lib)
		return ckpt_error(err, -ENOENT, "there is no CUDA driver here: %s", dlerror());
	get = dlsym(lib, "cuGetProcAddress_v2");
	memcpy(&get12, &get, sizeof get);
	get = get12 ? NULL : dlsym(lib, "cuGetProcAddress");
	memcpy(&get11, &get, sizeof get);
	if (!get12 && !get11)
		return ckpt_error(err, -ENOTSUP,
				  "the CUDA driver is older than 11.3: ckptd needs 11.4 or later");
	missing = driver_symbols(&driver.calls, get12, get11);
	if (!driver.calls.init || !driver.calls.version || !driver.calls.device_count) {
		/* The toolkit's stub answers cuGetProcAddress with its own error. */
		unsigned (*init)(unsigned) = NULL;

		get = dlsym(lib, "cuInit");
		memcpy(&init, &get, sizeof get);
		rc = init ? init(0) : CUDA_NOT_FOUND;
		return rc ? driver_fail(rc, "cuInit", err)
			  : ckpt_error(err, -ENOTSUP, "%s has no function %s", LIBRARY, missing);
	}
	rc = driver.calls.init(0);
	if (rc)
		return driver_fail(rc, "cuInit", err);
	rc = driver.calls.version(&version);
	if (rc == CUDA_OK && missing)
		return ckpt_error(err, -ENOTSUP,
				  "the CUDA driver is too old (CUDA %d.%d): it has no %s",
				  version / 1000, version % 1000 / 10, missing);
	rc = driver.calls.device_count(&count);
	return rc	   ? driver_fail(rc, "cuDeviceGetCount", err)
	       : count > 0 ? 0
			   : ckpt_error(err, -ENODEV, "%s is here, and no CUDA device", LIBRARY);
}

static void driver_once(void)
{
	driver.rc = driver_find(&driver.err);
	atomic_store(&driver.open, driver.rc == 0);
}

const struct cuda_calls *cuda_driver(int *ret_rc, struct ckpt_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, driver_once);
	*ret_rc = driver.rc;
	if (driver.rc < 0 && err)
		*err = driver.err;
	return driver.rc < 0 ? NULL : &driver.calls;
}

static int first_object(struct dl_phdr_info *info, size_t bytes, void *ret)
{
	(void)bytes;
	*(uint64_t *)ret = info->dlpi_adds;
	return 1;
}

/* How often this process has loaded a library so far. */
static uint64_t libraries_loaded(void)
{
	uint64_t n = 0;

	(void)dl_iterate_phdr(first_object, &n);
	return n;
}

const struct cuda_calls *cuda_driver_loaded(void)
{
	static _Thread_local struct cuda_calls some;
	static _Atomic uint64_t without; /* 1 + how many libraries, and it was none of them */
	uint64_t n;
	void *lib, *fn;

	if (atomic_load(&driver.open))
		return &driver.calls;
	n = libraries_loaded();
	if (atomic_load(&without) == n + 1) /* a look for it would search the file system */
		return NULL;
	lib = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
	if (!lib) {
		atomic_store(&without, n + 1);
		return NULL;
	}
	fn = dlsym(lib, "cuPointerGetAttributes");
	memcpy(&some.pointer_attrs, &fn, sizeof fn);
	(void)dlclose(lib); /* who uses it holds it */
	return fn ? &some : NULL;
}

const char *cuda_error_name(const struct cuda_calls *cu, cuda_rc rc, char buf[32])
{
	const char *name = NULL;

	if (cu->error_name && cu->error_name(rc, &name) == CUDA_OK && name)
		return name;
	snprintf(buf, 32, "CUDA error %u", rc);
	return buf;
}
