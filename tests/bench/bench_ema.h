/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ema.h - what the update of averages costs, beside the cheapest kernel that moves the same
 * bytes, and beside the form with temporaries. For bench_main.c.
 */
#ifndef TESTS_BENCH_EMA_H
#define TESTS_BENCH_EMA_H
#include <stdint.h>

/*
 * Everything of one round in turn, then backwards, and so on; one thread, with health. Prints for
 * each round "NAME NUMBER": nanoseconds of the thread's processor time.
 *	bf16, f32, three, three_f32	   ema_update_targets: one average of a BF16 and of an FP32
 *					   source, three in one walk
 *	bound_NAME_0, _1, _2		   the same pages are read, and stored past the caches; the
 *					   only arithmetic is an exclusive or. 0: the processor alone
 *					   fetches what comes next; 1, 2: it is asked for 2 KiB ahead,
 *					   into the first and into the second cache
 *	temporaries			   e = d * e + (1 - d) * p of an FP32 source by three loops,
 *					   whose two temporaries are allocated, as a framework does it
 *	lerp				   e += a * (p - e) in place, one loop, as compiled
 */
void bench_ema(uint64_t elements, uint32_t rounds);
#endif
