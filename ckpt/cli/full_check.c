/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full_check.c - engine_check with progress. Called by ckptctl prune before anything older is
 * removed, and by repair.
 * Invariant: 0 means that all bytes of all files were read and that all of them are right.
 */
#include "ckpt/cli/full_check.h"
#include "ckpt/cli/progress.h"
#include "formats/registry/registry.h"

struct check {
	struct cli *c;
	struct progress progress;
	bool begun;
};

static void check_begin(void *arg, const struct checkpoint *k, uint64_t bytes)
{
	struct check *x = arg;

	x->begun = true;
	progress_begin(&x->progress, x->c, bytes, "step %llu", (unsigned long long)k->step);
}

int full_check(struct cli *c, int step_fd, const char *path, struct engine_checked *ret,
	       struct ckpt_err *err)
{
	struct check x = { .c = c };
	const struct engine e = { .ops = c->ops,
				  .io = IO_AUTO,
				  .format = formats,
				  .tick = progress_tick,
				  .arg = &x.progress };
	int rc = engine_check(&e,
			      &(struct engine_check){ .fd = step_fd,
						      .path = path,
						      .format = formats[0],
						      .begin = check_begin,
						      .arg = &x },
			      ret, err);

	if (x.begun)
		progress_end(&x.progress);
	return rc;
}
