/* SPDX-License-Identifier: Apache-2.0 */
/*
 * util.h - the small words of the house: cleanup attributes, checked arithmetic, little-endian
 * integers, time.
 *
 * Outside bytes (files, peers) are read through le16/le32/le64 and added and multiplied through
 * ckpt_add/ckpt_mul only.
 */
#ifndef CKPT_BASE_UTIL_H
#define CKPT_BASE_UTIL_H
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof(*(a)))
#define MIN(a, b)                       \
	({                              \
		__typeof__(a) a_ = (a); \
		__typeof__(b) b_ = (b); \
		a_ < b_ ? a_ : b_;      \
	})
#define MAX(a, b)                       \
	({                              \
		__typeof__(a) a_ = (a); \
		__typeof__(b) b_ = (b); \
		a_ > b_ ? a_ : b_;      \
	})
/* ownership of a pointer moves out */
#define TAKE(x)                             \
	({                                  \
		__typeof__(x) taken_ = (x); \
		(x) = 0;                    \
		taken_;                     \
	})
/* the same for a descriptor */
#define TAKE_FD(x)                \
	({                        \
		int taken_ = (x); \
		(x) = -1;         \
		taken_;           \
	})

/* For qsort: negative, 0, positive. */
#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))
/* The first i of [from, to) for which `before`, an expression of i, does not hold; it holds for all
 * those before that one, and for none behind it. */
#define SEARCH(i, from, to, before)                                \
	({                                                         \
		__typeof__((to) + 0) lo_ = (from), hi_ = (to);     \
		while (lo_ < hi_) {                                \
			__typeof__(lo_) i = lo_ + (hi_ - lo_) / 2; \
			if (before)                                \
				lo_ = i + 1;                       \
			else                                       \
				hi_ = i;                           \
		}                                                  \
		lo_;                                               \
	})
/* Is there space for one more in an array of n elements, of cap at most? It doubles, or stays as it
 * is: false, out of memory. */
#define ARRAY_GROW(array, n, cap)                                                \
	({                                                                       \
		bool grown_ = true;                                              \
		if ((n) == (cap)) {                                              \
			__typeof__(cap) cap_ = (cap) ? 2 * (cap) : 16;           \
			void *p_ = reallocarray((array), cap_, sizeof *(array)); \
			grown_ = p_ != NULL;                                     \
			(cap) = grown_ ? cap_ : (cap);                           \
			(array) = grown_ ? p_ : (array);                         \
		}                                                                \
		grown_;                                                          \
	})

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

static inline void util_free(void *p)
{
	free(*(void **)p);
}

static inline void util_close(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

#define cleanup_free __attribute__((cleanup(util_free)))
#define cleanup_close __attribute__((cleanup(util_close)))

/* 0, or -EOVERFLOW with *ret unchanged in meaning (do not use it). */
static inline int ckpt_add(uint64_t a, uint64_t b, uint64_t *ret)
{
	return __builtin_add_overflow(a, b, ret) ? -EOVERFLOW : 0;
}

static inline int ckpt_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
	return __builtin_mul_overflow(a, b, ret) ? -EOVERFLOW : 0;
}

/* a: a power of two; the caller knows that it does not overflow */
static inline uint64_t align_up(uint64_t x, uint64_t a)
{
	return (x + a - 1) & ~(a - 1);
}

static inline uint64_t div_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

/* On-disk and on-wire integers: byte arrays, so that a struct of them has no padding and any
 * alignment. */
typedef struct {
	uint8_t b[2];
} le16;
typedef struct {
	uint8_t b[4];
} le32;
typedef struct {
	uint8_t b[8];
} le64;

static inline uint16_t le16_get(le16 v)
{
	return (uint16_t)(v.b[0] | v.b[1] << 8);
}

static inline uint32_t le32_get(le32 v)
{
	return (uint32_t)v.b[0] | (uint32_t)v.b[1] << 8 | (uint32_t)v.b[2] << 16 |
	       (uint32_t)v.b[3] << 24;
}

static inline uint64_t le64_get(le64 v)
{
	uint64_t x = 0;

	for (int i = 7; i >= 0; i--)
		x = x << 8 | v.b[i];
	return x;
}

static inline le16 le16_of(uint16_t x)
{
	return (le16){ { (uint8_t)x, (uint8_t)(x >> 8) } };
}

static inline le32 le32_of(uint32_t x)
{
	return (le32){ { (uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24) } };
}

static inline le64 le64_of(uint64_t x)
{
	le64 v;

	for (int i = 0; i < 8; i++, x >>= 8)
		v.b[i] = (uint8_t)x;
	return v;
}

static inline uint64_t now_ns(void) /* CLOCK_MONOTONIC: the same for all processes of a host */
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* From since to now; 0 where since is the later one. */
static inline uint64_t elapsed_ns(uint64_t since, uint64_t now)
{
	return now > since ? now - since : 0;
}

static inline uint64_t wall_ns(void) /* CLOCK_REALTIME, since 1970 */
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}
#endif
