// SPDX-License-Identifier: Apache-2.0
// nccl_library.c - see nccl_library.h. Called by nccl_transport.c.
// Invariant: the library is opened once and never closed: other code of the process may use it too.
#include "ckpt/nccl/nccl_library.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

static struct library {
	struct nccl_calls calls;
	int rc;
	struct ckpt_err err; /* if rc < 0 */
} library;

/* As NCCL counts: 2.8.4 was 2804, 2.14.3 is 21403. */
static int too_old(int v, struct ckpt_err *err)
{
	int major = v >= 10000 ? v / 10000 : v / 1000, rest = v >= 10000 ? v % 10000 : v % 1000;

	return ckpt_error(err, -ENOTSUP,
			  "%s is NCCL %d.%d.%d: ckptd needs %d.%d.%d or later to restore over NCCL",
			  LIBRARY, major, rest / 100, rest % 100, NCCL_VERSION_MIN / 10000,
			  NCCL_VERSION_MIN % 10000 / 100, NCCL_VERSION_MIN % 100);
}

static int library_find(struct ckpt_err *err)
{
	void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *fn;
	struct nccl_calls *c = &library.calls;
	const char *missing = NULL;
	int version = 0;
	nccl_rc rc;

	if (!lib)
		return ckpt_error(err, -ENOENT, "there is no NCCL here: %s", dlerror());
#define NCCL_FIND(member, symbol, result, args) \
	fn = dlsym(lib, #symbol);               \
	if (!fn && !missing)                    \
		missing = #symbol;              \
	memcpy(&c->member, &fn, sizeof fn);
	NCCL_CALLS(NCCL_FIND)
#undef NCCL_FIND
	/* The version first: it says why a function is missing. */
	if (!c->version)
		return ckpt_error(err, -ENOTSUP, "%s has no function ncclGetVersion", LIBRARY);
	rc = c->version(&version);
	if (rc)
		return ckpt_error(err, -EIO, "%s: ncclGetVersion fails: error %d", LIBRARY, rc);
	if (version < NCCL_VERSION_MIN)
		return too_old(version, err);
	return missing ? ckpt_error(err, -ENOTSUP, "%s has no function %s", LIBRARY, missing) : 0;
}

static void library_once(void)
{
	library.rc = library_find(&library.err);
}

const struct nccl_calls *nccl_library(int *ret_rc, struct ckpt_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, library_once);
	*ret_rc = library.rc;
	if (library.rc < 0 && err)
		*err = library.err;
	return library.rc < 0 ? NULL : &library.calls;
}
