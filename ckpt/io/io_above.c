/* SPDX-License-Identifier: Apache-2.0 */
/* io_above.c - see io_above.h. Invariant: it ends, also on a file system that never comes to a
 * root: after PATH_MAX directories. */
#include "ckpt/io/io_above.h"
#include <fcntl.h>
#include <limits.h>

int io_above(const struct io_ops *ops, int dirfd, int (*each)(void *arg, int fd), void *arg)
{
	int at = io_open_path(ops, dirfd, ".", O_PATH | O_DIRECTORY), rc = 0;
	struct io_stat st, last = { 0 };

	for (uint32_t i = 0; at >= 0 && i < PATH_MAX && !io_stat(ops, at, &st); i++) {
		int up;

		if (i && st.dev == last.dev && st.ino == last.ino) /* the root is in itself */
			break;
		rc = each(arg, at);
		if (rc)
			break;
		last = st;
		up = io_open_path(ops, at, "..", O_PATH | O_DIRECTORY);
		(void)ops->close(ops->ctx, at);
		at = up;
	}
	if (at >= 0)
		(void)ops->close(ops->ctx, at);
	return rc;
}
