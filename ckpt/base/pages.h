/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - large memory on huge pages where the kernel gives them, which it does for mappings that
 * lie on their bounds and ask (transparent_hugepage/enabled, for shared memory .../shmem_enabled =
 * advise). A copy then misses the TLB 512 times less often, and direct I/O pins 512 times fewer
 * pages. All of it is advice: without huge pages everything works the same.
 */
#ifndef CKPT_BASE_PAGES_H
#define CKPT_BASE_PAGES_H
#include <stdint.h>

#define PAGES_HUGE ((uint64_t)2 << 20)

/* Private memory of zeros, `bytes` rounded up to PAGES_HUGE; NULL: none. */
void *pages_new(uint64_t bytes);
/* The first `bytes` of a descriptor, shared; prot as for mmap. 0 or -errno. Undone by munmap. */
int pages_map(int fd, uint64_t bytes, int prot, void **ret);
/* What pages_new gave; NULL is fine. */
void pages_free(void *p, uint64_t bytes);
/* Have writable pages in memory before they are needed, huge ones where the kernel can make them
 * (6.1), whatever shmem_enabled says. A kernel that cannot (before 5.14) is no error: the first
 * touch does it then. What the pages hold stays. -ENOMEM. */
int pages_populate(void *p, uint64_t bytes);
/*
 * Give a mapping of a memfd all of its memory now: the first `bytes` of fd, mapped at p. So nobody
 * dies by SIGBUS who writes to it later. -ENOMEM: the host has none to give, and is not driven to
 * the point where it kills somebody: what was given so far stays given until the memfd goes.
 */
int pages_commit(int fd, void *p, uint64_t bytes);
/* Bytes that the host can give without taking them from anybody; UINT64_MAX: it does not say. */
uint64_t pages_available(void);
#endif
