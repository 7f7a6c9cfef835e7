/* SPDX-License-Identifier: Apache-2.0 */
/* bench_tensors.h - what a daemon pays for the number of tensors: see bench_main.c, verb tensors. */
#ifndef TESTS_BENCH_TENSORS_H
#define TESTS_BENCH_TENSORS_H
#include <stdint.h>
#include <sys/types.h>

void bench_tensors(const char *socket, const char *store, uint32_t tensors, uint32_t world,
		   uint32_t steps, pid_t daemon);
#endif
