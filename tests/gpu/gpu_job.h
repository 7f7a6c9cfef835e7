/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_job.h - a ckptd of this program's own, and a rank of it whose state lies on the device. */
#ifndef TESTS_GPU_JOB_H
#define TESTS_GPU_JOB_H
#include "ckpt/ckpt.h"
#include "tests/gpu/gpu_device.h"
#include <sys/types.h>

/* Starts the ckptd that lies in `programs`, with its socket and the store in `dir`, which is short.
 * It ends with this process. */
pid_t job_daemon(const char *programs, const char *dir);
/* From now on its threads have half of the processors that this process may use, and are nice. */
void job_daemon_confine(pid_t daemon);
/* Attaches rank 0 of 1 with its state on the device. copy_rate and guard as in ckpt_opts. */
ckpt *job_attach(const char *dir, const char *job, uint64_t copy_rate, uint32_t guard);
/* The same as any rank: what is given, beside where the daemon and the store are. All ranks hold
 * all that is added. */
ckpt *job_attach_as(const char *dir, const struct ckpt_opts *given);
struct job_at {
	const char *component, *name;
	uint32_t cls, role;
	cuda_ptr at;
	uint64_t rows, cols; /* of FP32 */
	int64_t pitch;	     /* elements from row to row; 0: cols */
};
/* c: of the newest job_attach or job_attach_as */
uint32_t job_add(ckpt *c, const struct job_at *t);
void job_seal(ckpt *c);
#endif
