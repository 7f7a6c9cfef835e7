// SPDX-License-Identifier: Apache-2.0
// gpu_link.c - see gpu_link.h. Called by the experiments.
#include "tests/gpu/gpu_link.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

#define DEPTH_MAX 8u

const char *const link_kind_name[LINK_KINDS] = { "host_alloc", "memfd", "memfd_thp",
						 "memfd_hugetlb", "pageable" };

static bool memfd_map(struct link_host *h, char why[256])
{
	unsigned flags = MFD_CLOEXEC | (h->kind == LINK_MEMFD_HUGE ? MFD_HUGETLB : 0u);

	h->fd = memfd_create("gpubench", flags);
	if (h->fd < 0 || ftruncate(h->fd, (off_t)h->bytes) < 0 ||
	    fallocate(h->fd, 0, 0, (off_t)h->bytes) < 0) {
		snprintf(why, 256, "%llu bytes of %s: %s%s", (unsigned long long)h->bytes,
			 link_kind_name[h->kind], strerror(errno),
			 h->kind == LINK_MEMFD_HUGE ? "; huge pages are reserved by sysctl "
						      "vm.nr_hugepages=N, 2 MiB each"
						    : "");
		return false;
	}
	h->p = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
	if (h->p == MAP_FAILED) {
		snprintf(why, 256, "%s cannot be mapped: %s", link_kind_name[h->kind],
			 strerror(errno));
		h->p = NULL;
		return false;
	}
	if (h->kind == LINK_MEMFD_THP && madvise(h->p, h->bytes, MADV_HUGEPAGE) < 0) {
		snprintf(why, 256, "madvise(MADV_HUGEPAGE): %s", strerror(errno));
		return false;
	}
	return true;
}

bool link_host_touch(struct link_host *h, enum link_kind kind, uint64_t bytes, char why[256])
{
	char name[32];
	cuda_rc rc;

	*h = (struct link_host){ .kind = kind, .bytes = bytes, .fd = -1 };
	if (kind == LINK_HOST_ALLOC) {
		rc = gpu.cu->host_alloc(&h->p, bytes, CUDA_REGISTER_PORTABLE);
		if (rc) {
			snprintf(why, 256, "cuMemHostAlloc of %llu bytes: %s",
				 (unsigned long long)bytes, cuda_error_name(gpu.cu, rc, name));
			h->p = NULL;
			return false;
		}
	} else if (!memfd_map(h, why)) {
		link_host_free(h);
		return false;
	}
	memset(h->p, 0x5a, bytes);
	return true;
}

bool link_host_register(struct link_host *h, uint64_t step_bytes, char why[256])
{
	char name[32];

	h->step_bytes = step_bytes ? step_bytes : h->bytes;
	while (h->registered < h->bytes) {
		uint64_t n = MIN(h->step_bytes, h->bytes - h->registered);
		cuda_rc rc =
			gpu.cu->host_register((char *)h->p + h->registered, n,
					      CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP);

		if (rc) {
			snprintf(why, 256, "cuMemHostRegister of %llu bytes of %s: %s",
				 (unsigned long long)n, link_kind_name[h->kind],
				 cuda_error_name(gpu.cu, rc, name));
			return false;
		}
		h->registered += n;
	}
	return true;
}

bool link_host_make(struct link_host *h, enum link_kind kind, uint64_t bytes, uint64_t step_bytes,
		    char why[256])
{
	if (!link_host_touch(h, kind, bytes, why))
		return false;
	if (kind == LINK_HOST_ALLOC || kind == LINK_PAGEABLE ||
	    link_host_register(h, step_bytes, why))
		return true;
	link_host_free(h);
	return false;
}

void link_host_free(struct link_host *h)
{
	for (uint64_t at = 0; at < h->registered; at += h->step_bytes)
		GPU(gpu.cu->host_unregister((char *)h->p + at));
	if (h->p && h->kind == LINK_HOST_ALLOC)
		GPU(gpu.cu->host_free(h->p));
	else if (h->p)
		munmap(h->p, h->bytes);
	if (h->fd >= 0)
		(void)close(h->fd);
	*h = (struct link_host){ .fd = -1 };
}

static double copy(cuda_stream s, void *host, cuda_ptr device, bool out, uint64_t span,
		   uint64_t total, uint64_t size, uint32_t depth)
{
	cuda_event done[DEPTH_MAX];
	uint64_t n = MAX(total / size, UINT64_C(1)), places = span / size, begin;
	double ns;

	assert(depth >= 1 && depth <= DEPTH_MAX && places >= 1);
	for (uint32_t i = 0; i < depth; i++)
		done[i] = gpu_event(false);
	GPU(gpu.cu->stream_sync(s));
	begin = now_ns();
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = i % places * size;

		if (i >= depth)
			gpu_wait(done[i % depth]);
		if (out)
			GPU(gpu.cu->copy_out((char *)host + at, device + at, size, s));
		else
			GPU(gpu.cu->copy_in(device + at, (char *)host + at, size, s));
		GPU(gpu.cu->event_record(done[i % depth], s));
	}
	GPU(gpu.cu->stream_sync(s));
	ns = (double)(now_ns() - begin);
	for (uint32_t i = 0; i < depth; i++)
		GPU(gpu.cu->event_free(done[i]));
	return (double)(n * size) / ns;
}

double link_copy_out(cuda_stream s, const struct link_host *to, cuda_ptr from, uint64_t span,
		     uint64_t total, uint64_t size, uint32_t depth)
{
	return copy(s, to->p, from, true, span, total, size, depth);
}

double link_copy_in(cuda_stream s, cuda_ptr to, const struct link_host *from, uint64_t span,
		    uint64_t total, uint64_t size, uint32_t depth)
{
	return copy(s, from->p, to, false, span, total, size, depth);
}

double link_ceiling(cuda_stream s, cuda_ptr from, uint64_t span)
{
	struct link_host h;
	double best = 0;
	char why[256];

	span = MIN(span, GIB);
	if (!link_host_make(&h, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	for (int i = 0; i < 5; i++) {
		double gbps =
			link_copy_out(s, &h, from, span, span, MIN(LINK_CHUNK, span), LINK_DEPTH);

		best = MAX(best, gbps);
	}
	link_host_free(&h);
	return best;
}

struct link_copier {
	pthread_t thread;
	_Atomic bool stop, started;
	cuda_ptr from;
	uint64_t span, size;
	uint32_t depth;
	struct link_host host;
};

static void *copier_run(void *arg)
{
	struct link_copier *c = arg;
	cuda_stream s;

	gpu_enter();
	s = gpu_stream();
	while (!atomic_load(&c->stop)) {
		(void)link_copy_out(s, &c->host, c->from, c->span, MAX(c->span, 4 * c->size),
				    c->size, c->depth);
		atomic_store(&c->started, true);
	}
	GPU(gpu.cu->stream_free(s));
	return NULL;
}

struct link_copier *link_copier_start(cuda_ptr from, uint64_t span, uint64_t size, uint32_t depth)
{
	struct link_copier *c = calloc(1, sizeof *c);
	struct timespec t = { 0, (long)NS_PER_MS };
	char why[256];

	if (!c)
		abort();
	c->from = from;
	c->span = span;
	c->size = size;
	c->depth = depth;
	if (!link_host_make(&c->host, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	if (pthread_create(&c->thread, NULL, copier_run, c))
		gpu_die("no thread");
	while (!atomic_load(&c->started))
		nanosleep(&t, NULL);
	return c;
}

void link_copier_stop(struct link_copier *c)
{
	atomic_store(&c->stop, true);
	pthread_join(c->thread, NULL);
	link_host_free(&c->host);
	free(c);
}
