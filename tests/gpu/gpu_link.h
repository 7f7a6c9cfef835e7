/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_link.h - host memory of several kinds, and copies between it and the device, without
 * ckptd. */
#ifndef TESTS_GPU_LINK_H
#define TESTS_GPU_LINK_H
#include "tests/gpu/gpu_device.h"

enum link_kind {
	LINK_HOST_ALLOC, /* cuMemHostAlloc: the reference */
	LINK_MEMFD,	 /* memfd, mapped, registered: as slots are */
	LINK_MEMFD_THP,	 /* the same with madvise(MADV_HUGEPAGE) */
	LINK_MEMFD_HUGE, /* MFD_HUGETLB: needs a pool of huge pages */
	LINK_PAGEABLE,	 /* memfd, not registered */
	LINK_KINDS
};
extern const char *const link_kind_name[LINK_KINDS];

struct link_host {
	enum link_kind kind;
	void *p;
	uint64_t bytes;
	int fd;
	uint64_t registered; /* in steps of step_bytes, from p */
	uint64_t step_bytes;
};

/* In memory, each page touched, and registered in steps of step_bytes (0: in one). false: there is
 * no such memory here, and `why` says why. */
bool link_host_make(struct link_host *h, enum link_kind kind, uint64_t bytes, uint64_t step_bytes,
		    char why[256]);
/* The two halves of it. */
bool link_host_touch(struct link_host *h, enum link_kind kind, uint64_t bytes, char why[256]);
bool link_host_register(struct link_host *h, uint64_t step_bytes, char why[256]);
void link_host_free(struct link_host *h);

/* Bytes per ns (GB/s) of copying `total` bytes out of the device in pieces of `size`, at most
 * `depth` of them in flight. from and to have at least `span` bytes and are gone through in
 * turn. */
double link_copy_out(cuda_stream s, const struct link_host *to, cuda_ptr from, uint64_t span,
		     uint64_t total, uint64_t size, uint32_t depth);
double link_copy_in(cuda_stream s, cuda_ptr to, const struct link_host *from, uint64_t span,
		    uint64_t total, uint64_t size, uint32_t depth);

#define LINK_CHUNK ((uint64_t)16 << 20) /* as the library copies: chunks of so much, */
#define LINK_DEPTH 3u			/* so many in flight */
/* What the link gives in that way into cuMemHostAlloc memory: the ceiling of this run. */
double link_ceiling(cuda_stream s, cuda_ptr from, uint64_t span);

/* A thread that copies out of the device all the time, on a stream of its own. */
struct link_copier;
struct link_copier *link_copier_start(cuda_ptr from, uint64_t span, uint64_t size, uint32_t depth);
void link_copier_stop(struct link_copier *c);
#endif
