// SPDX-License-Identifier: Apache-2.0
// fake_control.c - what tests ask of the driver: struct fakecuda, found by dlsym. See fakecuda.h
// and fake_impl.h. Every function takes the lock.
#include "tests/fakecuda/fake_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCKED(statement)                         \
	do {                                      \
		pthread_mutex_lock(&fake.lock);   \
		statement;                        \
		pthread_mutex_unlock(&fake.lock); \
	} while (0)

static void test_bandwidth(double gbps)
{
	LOCKED(fake.gbps = gbps);
}

static void test_seed(uint64_t seed)
{
	LOCKED(fake.seed = seed);
}

static void test_hold(void)
{
	LOCKED(fake.hold = true);
}

static void test_release(bool kernels_first)
{
	LOCKED(fake.hold = false; fake.kernels_first = kernels_first;
	       pthread_cond_broadcast(&fake.change));
}

static void test_pause(uint64_t bytes)
{
	LOCKED(fake.pause_at = bytes ? fake.moved + bytes : UINT64_MAX; fake.paused = false;
	       pthread_cond_broadcast(&fake.change));
}

static bool test_paused(void)
{
	bool is;

	LOCKED(is = fake.paused);
	return is;
}

static void test_fault(const char *symbol, unsigned nth, cuda_rc rc)
{
	struct fault *f = calloc(1, sizeof *f);

	if (!f)
		abort();
	snprintf(f->symbol, sizeof f->symbol, "%s", symbol);
	f->nth = nth;
	f->rc = rc;
	LOCKED(f->next = fake.fault; fake.fault = f);
}

static void test_fault_none(void)
{
	pthread_mutex_lock(&fake.lock);
	while (fake.fault) {
		struct fault *f = fake.fault;

		fake.fault = f->next;
		free(f);
	}
	pthread_mutex_unlock(&fake.lock);
}

static void test_unhang(void)
{
	LOCKED(fake.hang = false; pthread_cond_broadcast(&fake.change));
}

static void test_sticky(int device, cuda_rc rc)
{
	LOCKED(fake.ctx[device].sticky = rc; pthread_cond_broadcast(&fake.change));
}

static void test_register_limit(size_t bytes)
{
	LOCKED(fake.register_limit = bytes);
}

static uint64_t test_calls(const char *symbol)
{
	uint64_t n = 0;

	pthread_mutex_lock(&fake.lock);
	if (!symbol)
		n = fake.calls;
	for (struct count *c = fake.count; symbol && c->symbol; c++)
		if (strcmp(c->symbol, symbol) == 0)
			n = c->n;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static uint64_t test_calls_here(void)
{
	return calls_here;
}

static uint64_t test_violations(void)
{
	uint64_t n;

	LOCKED(n = fake.violations);
	return n;
}

static uint64_t test_registered(void)
{
	uint64_t n;

	LOCKED(n = fake.registered);
	return n;
}

static uint64_t test_queued(void)
{
	uint64_t n;

	LOCKED(n = fake.queued);
	return n;
}

static uint64_t test_copied(void)
{
	uint64_t n;

	LOCKED(n = fake.copied);
	return n;
}

static void *test_alias(cuda_ptr p)
{
	struct range *r;
	void *at;

	LOCKED(r = range_find((uintptr_t)p, 1);
	       at = r ? r->alias + ((uintptr_t)p - (uintptr_t)r->base) : NULL);
	return at;
}

static void test_kernel(const char *name, fakecuda_kernel_fn *fn, unsigned n, const size_t *bytes)
{
	struct kernel *k = calloc(1, sizeof *k);

	if (!k || n > PTX_PARAMS_MAX)
		abort();
	k->name = name;
	k->fn = fn;
	k->n = n;
	memcpy(k->bytes, bytes, n * sizeof *bytes);
	LOCKED(k->next = fake.kernel; fake.kernel = k);
}

EXPORT extern const struct fakecuda fakecuda;
const struct fakecuda fakecuda = {
	.bandwidth = test_bandwidth,
	.seed = test_seed,
	.hold = test_hold,
	.release = test_release,
	.pause = test_pause,
	.paused = test_paused,
	.fault = test_fault,
	.unhang = test_unhang,
	.fault_none = test_fault_none,
	.sticky = test_sticky,
	.register_limit = test_register_limit,
	.calls = test_calls,
	.calls_here = test_calls_here,
	.violations = test_violations,
	.registered = test_registered,
	.queued = test_queued,
	.copied = test_copied,
	.alias = test_alias,
	.kernel = test_kernel,
};
