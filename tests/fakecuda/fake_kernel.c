// SPDX-License-Identifier: Apache-2.0
// fake_kernel.c - modules, kernels and host functions. See fake_impl.h. Invariant: a kernel is a
// function that a test has registered, or else the PTX text of its module (ptx.h).
#include "tests/fakecuda/fake_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUmod_st {
	struct ptx_module *ptx; /* NULL: it has the kernels that tests have registered */
	struct kernel *kernel;	/* those that were asked for */
};

static bool kernel_memory(uint64_t at, struct ptx_memory *ret)
{
	struct range *r;

	pthread_mutex_lock(&fake.lock);
	r = range_find((uintptr_t)at, 1);
	if (r)
		*ret = (struct ptx_memory){ (uintptr_t)r->base, r->bytes, r->alias };
	pthread_mutex_unlock(&fake.lock);
	return r != NULL;
}

void kernel_run(const struct work *w)
{
	static const cuda_rc rc[] = {
		[PTX_NO_MEMORY_THERE] = CUDA_ILLEGAL_ADDRESS, [PTX_MISALIGNED] = MISALIGNED_ADDRESS
	};
	enum ptx_end end = PTX_DONE;

	if (w->kernel->fn)
		w->kernel->fn(w->param, w->blocks, w->threads);
	else
		end = ptx_run(w->kernel->ptx, w->param, w->blocks, w->threads, kernel_memory);
	if (end == PTX_DONE)
		return;
	pthread_mutex_lock(&fake.lock);
	w->ctx->sticky = rc[end];
	pthread_mutex_unlock(&fake.lock);
}

cuda_rc fake_module_load(struct CUmod_st **ret, const char *image)
{
	struct CUmod_st *m;
	char why[PTX_WHY_BYTES];

	CALL("cuModuleLoadData");
	CONTEXT();
	FAIL_IF(!image, CUDA_INVALID_VALUE);
	m = calloc(1, sizeof *m);
	FAIL_IF(!m, CUDA_OUT_OF_MEMORY);
	if (strstr(image, ".version") && !(m->ptx = ptx_load(image, why))) {
		fprintf(stderr, "fakecuda: %s\n", why);
		free(m);
		return call_end(INVALID_PTX);
	}
	*ret = m;
	return call_end(CUDA_OK);
}

cuda_rc fake_module_unload(struct CUmod_st *m)
{
	CALL("cuModuleUnload");
	CONTEXT();
	FAIL_IF(!m, CUDA_INVALID_HANDLE);
	context_wait(current);
	while (m->kernel) {
		struct kernel *k = m->kernel;

		m->kernel = k->next;
		free(k);
	}
	if (m->ptx)
		ptx_unload(m->ptx);
	free(m);
	return call_end(CUDA_OK);
}

cuda_rc fake_module_function(struct kernel **ret, struct CUmod_st *m, const char *name)
{
	const struct ptx_kernel *ptx;
	struct kernel *k;

	CALL("cuModuleGetFunction");
	FAIL_IF(!m, CUDA_INVALID_HANDLE);
	for (k = fake.kernel; k && strcmp(k->name, name) != 0; k = k->next)
		;
	ptx = k || !m->ptx ? NULL : ptx_find(m->ptx, name);
	if (ptx) {
		k = calloc(1, sizeof *k);
		FAIL_IF(!k, CUDA_OUT_OF_MEMORY);
		k->ptx = ptx;
		k->n = ptx_params(ptx, k->bytes);
		k->next = m->kernel;
		m->kernel = k;
	}
	*ret = k;
	return call_end(k ? CUDA_OK : CUDA_NOT_FOUND);
}

cuda_rc fake_launch(struct kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		    unsigned by, unsigned bz, unsigned shared, cuda_stream s, void **param,
		    void **extra)
{
	struct work w = {
		.kind = OP_KERNEL, .kernel = k, .blocks = gx * gy * gz, .threads = bx * by * bz
	};
	size_t bytes = 0;
	uint8_t *at;
	cuda_rc rc;

	(void)shared;
	CALL("cuLaunchKernel");
	CONTEXT();
	FAIL_IF(!k || extra || !w.blocks || !w.threads || w.threads > PTX_THREADS_MAX ||
			!stream_of(s),
		CUDA_INVALID_VALUE);
	FAIL_IF(k->ptx && (gy * gz != 1 || by * bz != 1), CUDA_NOT_SUPPORTED); /* as ptx.h says */
	w.ctx = stream_of(s)->ctx;
	for (unsigned i = 0; i < k->n; i++)
		bytes += sizeof(void *) + (k->bytes[i] + 7) / 8 * 8;
	w.param = calloc(1, bytes + 8);
	FAIL_IF(!w.param, CUDA_OUT_OF_MEMORY);
	at = (uint8_t *)(w.param + k->n);
	for (unsigned i = 0; i < k->n; at += (k->bytes[i++] + 7) / 8 * 8) {
		memcpy(at, param[i], k->bytes[i]);
		w.param[i] = at;
	}
	rc = stream_do(stream_of(s), &w);
	if (rc)
		free(w.param);
	return call_end(rc);
}

cuda_rc fake_launch_host(cuda_stream s, void (*fn)(void *), void *arg)
{
	struct CUstream_st *x;

	CALL("cuLaunchHostFunc");
	CONTEXT();
	x = stream_of(s);
	FAIL_IF(!x || !fn, CUDA_INVALID_VALUE);
	return call_end(stream_do(x, &(struct work){ .kind = OP_HOST, .host = fn, .arg = arg }));
}
