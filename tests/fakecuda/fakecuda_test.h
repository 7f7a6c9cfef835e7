/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakecuda_test.h - how unit tests come to the driver without a GPU (fakecuda.h): it is opened, and
 * what ckptd asks of no driver is found in it. Failures end the case.
 */
#ifndef TESTS_FAKECUDA_TEST_H
#define TESTS_FAKECUDA_TEST_H
#include "tests/fakecuda/fakecuda.h"
#include "tests/lib/unit.h"
#include <dlfcn.h>

/* The driver at this path, with so many devices. NULL, and a sentence on stderr: it cannot be. */
static inline const struct cuda_calls *fakecuda_open(const char *path, const char *devices,
						     const struct fakecuda **ret_fake)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	const struct cuda_calls *cu;
	struct ckpt_err err;
	int rc;

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return NULL;
	}
	setenv("FAKECUDA_DEVICES", devices, 1);
	*ret_fake = dlsym(lib, "fakecuda");
	cu = cuda_driver(&rc, &err);
	if (!cu)
		fprintf(stderr, "%s\n", err.msg);
	return cu;
}

/* ret_fn: a pointer to a function. */
static inline void fakecuda_find(const char *name, int version, void *ret_fn)
{
	cuda_rc (*find)(const char *, void **, int, uint64_t, unsigned *);
	void *p = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
	unsigned status;

	assert_non_null(p);
	memcpy(&find, &p, sizeof p);
	assert_int_equal(find(name, &p, version, 1, &status), 0);
	assert_non_null(p);
	memcpy(ret_fn, &p, sizeof p);
}

static inline cuda_rc launch_host(cuda_stream s, void (*fn)(void *), void *arg)
{
	cuda_rc (*call)(cuda_stream, void (*)(void *), void *);

	fakecuda_find("cuLaunchHostFunc", 10000, &call);
	return call(s, fn, arg);
}

struct graph_calls {
	cuda_rc (*begin)(cuda_stream, unsigned mode);
	cuda_rc (*end)(cuda_stream, void **ret_graph);
	cuda_rc (*drop)(void *graph);
};

static inline struct graph_calls graph_calls(void)
{
	struct graph_calls g;

	fakecuda_find("cuStreamBeginCapture", 10010, &g.begin);
	fakecuda_find("cuStreamEndCapture", 10000, &g.end);
	fakecuda_find("cuGraphDestroy", 10000, &g.drop);
	return g;
}
#endif
