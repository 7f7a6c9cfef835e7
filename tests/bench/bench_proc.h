/* SPDX-License-Identifier: Apache-2.0 */
/* bench_proc.h - what /proc says about a process. Where it says nothing, the process ends with a
 * sentence. */
#ifndef BENCH_PROC_H
#define BENCH_PROC_H
#include <stdint.h>
#include <sys/types.h>

/* User and system time of all its threads so far. */
uint64_t proc_cpu_ns(pid_t pid);

/* Of the threads that have this name: time on a processor, and time that they could run and had
 * none. */
struct proc_threads {
	uint64_t cpu_ns, wait_ns;
};
struct proc_threads proc_threads(pid_t pid, const char *name);

uint64_t proc_anon(pid_t pid); /* bytes of private memory that are present: heap and stacks */

/*
 * Bytes that these processes hold together: their private memory, and each piece of shared memory
 * (memfd) once, whether it is mapped or only held open. Needs the rights of a debugger over them;
 * 0: it has them not.
 */
#define PROC_MAX 4u
uint64_t proc_memory(const pid_t *pid, uint32_t n);
#endif
