/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nfs_rank.c - one rank of a job, alone on its host: attaches by CKPTD_SOCKET, CKPTD_STORE and CKPTD_JOB, declares a tensor that all
 * ranks share, marks a step, and waits until it is committed.
 *	rank RANK WORLD
 * Ends with 0, or with 1 and what the library says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/ckpt.h"

#define ROWS UINT64_C(64)
#define WAIT_NS (UINT64_C(60) * 1000000000)

static int failed(const char *call, int rc, const struct ckpt_err *e)
{
	(void)printf("%s: %d: %s\n", call, rc, e->msg);
	return 1;
}

int main(int argc, char **argv)
{
	uint32_t rank = argc == 3 ? (uint32_t)atoi(argv[1]) : 0;
	uint32_t world = argc == 3 ? (uint32_t)atoi(argv[2]) : 0, mesh, id;
	struct ckpt_err e = { .msg = "" };
	struct ckpt_opts o = {
		.size = sizeof o, .flags = CKPT_REQUIRE | CKPT_USE_ENV, .rank = rank, .world = world
	};
	struct ckpt_placement rows = { .how = CKPT_SHARD };
	struct ckpt_local at = { 0 };
	const uint64_t shape[] = { ROWS * world };
	struct ckpt_tensor t = { .size = sizeof t,
				 .role = CKPT_PARAM,
				 .dtype = CKPT_F32,
				 .component = "model",
				 .name = "w",
				 .ndim = 1,
				 .nplace = 1,
				 .nlocal = 1,
				 .shape = shape,
				 .place = &rows,
				 .local = &at };
	struct ckpt_mark last = { .size = sizeof last, .flags = CKPT_FINAL };
	ckpt *c;
	int rc;

	rc = ckpt_attach(&o, &c, &e);
	if (rc < 0)
		return failed("attach", rc, &e);
	rc = ckpt_mesh(c, 1, (const char *const[]){ "dp" }, &world, NULL, &mesh, &e);
	if (rc >= 0)
		rc = ckpt_alloc(c, ROWS * sizeof(float), &at.ptr, &e);
	t.mesh = mesh;
	if (rc >= 0)
		rc = ckpt_tensor_add(c, &t, &id, &e);
	if (rc < 0)
		return failed("declare", rc, &e);
	rc = ckpt_seal(c, WAIT_NS, &e);
	if (rc)
		return failed("seal", rc, &e);
	memset(at.ptr, (int)rank + 1, ROWS * sizeof(float));
	rc = ckpt_snapshot(c, 1, &last);
	if (rc < 0) {
		(void)ckpt_why(c, &e);
		return failed("snapshot", rc, &e);
	}
	rc = ckpt_wait(c, 1, CKPT_COMMITTED, WAIT_NS, &e);
	if (rc < 0)
		return failed("wait", rc, &e);
	(void)ckpt_detach(c, 0);
	(void)puts("committed");
	return 0;
}
