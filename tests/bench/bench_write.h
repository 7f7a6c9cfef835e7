/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_write.h - what the sums of a save cost: the same bytes to a fresh, allocated, synced file,
 * with them (part_file_write, as the daemon does it) and without (the same queue, depth and blocks,
 * and nothing but the bytes).
 */
#ifndef BENCH_WRITE_H
#define BENCH_WRITE_H
#include <stdint.h>

/* how: "sums", "raw", or "beside": raw while another thread does nothing but read memory, which
 * says how much of what sums cost is the bus and not the processor; "sink": sums to a disk that
 * takes every write at once; "sink2": the same with a second thread; "derived": of a state of mixed
 * precision, whose BF16 parameters are derived of their FP32 masters, and "stored": the same bytes,
 * declared as nothing special. Prints lines NAME NUMBER: wall (ns), cpu (ns of all threads), bytes,
 * written (bytes of the file); the file is removed. tensors: 0 for the large ones of bench_job.h.
 * Ends the process with a sentence on a failure. */
void bench_write(const char *how, const char *dir, uint64_t bytes, uint32_t tensors);
#endif
