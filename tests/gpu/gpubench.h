/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpubench.h - the experiments of gpubench. Each is a function that runs in a process of its own,
 * which has opened the device, and writes its rows by gpu_rows.h. If it cannot go on it ends by
 * gpu_die, which is a failed row. gpubench ends it after 6 minutes, which is one, too.
 */
#ifndef TESTS_GPU_BENCH_H
#define TESTS_GPU_BENCH_H
#include "tests/gpu/gpu_device.h"
#include "tests/gpu/gpu_rows.h"
#include "tests/gpu/gpu_stat.h"
#include <stdint.h>

struct bench {
	bool small;		/* sizes for a look, and for a driver without a GPU */
	uint64_t state_bytes;	/* of the loops that train */
	uint32_t blocks, steps; /* of each side of a comparison; of a block, at most */
	double seconds;		/* that a comparison may take */
	const char *dir;	/* for stores and sockets: a directory of this run */
	const char *programs;	/* where ckptd and libckpt.so lie */
};
extern struct bench bench;

void e0_machine(void);
void e1_link(void);
void e2_register(void);
void e3_noise(void);
void e4_snapshots(void);
void e5_pull(void);
void e5_kills(void); /* the part of it that kills */
void e6_latency(void);
void e6_snapshots(void); /* the part of it that needs ckptd */
void e7_calls(void);
void e7_volatile(void); /* the part of it that needs ckptd */
void e8_connections(void);
void e9_deaths(void);
void e10_torch(void);
void e11_spill(void);
void e12_reload(void);
void e12_nccl(void); /* the part of it that needs two ranks, and ckptd */
void e13_averages(void);

/* n reads of four bytes on a stream of their own, as loss.item() does: another block of side. */
void item_reads(cuda_ptr from, uint32_t n, struct stat_side *side);
/* A row: what the p99 of such reads is above that of those alone. */
void item_put(const char *name, const char *what, enum row_bound bound,
	      const struct stat_side *alone, const struct stat_side *beside);

/* gpubench again, as a process of its own that runs `what` of gpubench_again: its standard output,
 * to be read; the environment has name=value more. It is killed after `seconds`: then *ret_status
 * is -1, otherwise its exit status. */
int again_run(const char *what, const char *name, const char *value, unsigned seconds, char *out,
	      size_t bytes, int *ret_status);
int again_connections(void); /* of E8 */
int again_trainer(void);     /* of E9 */
int again_nccl(void);	     /* of E12: a rank */
int again_pull(void);	     /* of E5: the second process */
int again_owner(void);	     /* of E5: whose memory it copies, and that is killed */
#endif
