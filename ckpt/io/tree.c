/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - see tree.h. Invariant: nothing outside of the directory is opened or removed. */
#include "ckpt/io/tree.h"
#include "ckpt/base/util.h"
#include <dirent.h>
#include <fcntl.h>

struct tree {
	const struct io_ops *ops;
	int fd;
	uint32_t depth;
	uint64_t bytes, modified_ns;
};

static int size_add(void *arg, const char *name, unsigned char d_type)
{
	struct tree *x = arg;
	const struct io_ops *ops = x->ops;
	struct tree in = { .ops = ops, .depth = x->depth + 1 };
	struct io_stat st = { 0 };
	uint64_t bytes = 0;

	(void)d_type;
	in.fd = ops->open(ops->ctx, x->fd, name, O_RDONLY | O_NONBLOCK, 0);
	if (in.fd < 0)
		return 0;
	if (ops->size(ops->ctx, in.fd, &bytes) == -EISDIR && in.depth <= TREE_DEPTH_MAX)
		(void)ops->list(ops->ctx, in.fd, size_add, &in);
	if (!io_stat(ops, in.fd, &st))
		x->modified_ns = MAX(x->modified_ns, st.modified_ns);
	x->bytes += bytes + in.bytes;
	x->modified_ns = MAX(x->modified_ns, in.modified_ns);
	(void)ops->close(ops->ctx, in.fd);
	return 0;
}

uint64_t tree_entry_bytes(const struct io_ops *ops, int dirfd, const char *name,
			  uint64_t *ret_modified_ns)
{
	struct tree x = { .ops = ops, .fd = dirfd };

	(void)size_add(&x, name, DT_UNKNOWN);
	if (ret_modified_ns)
		*ret_modified_ns = x.modified_ns;
	return x.bytes;
}

static int entry_remove(void *arg, const char *name, unsigned char d_type)
{
	const struct tree *x = arg;
	const struct io_ops *ops = x->ops;
	struct tree in = { .ops = ops, .depth = x->depth + 1 };
	int rc = d_type == DT_DIR ? -EISDIR : ops->unlink(ops->ctx, x->fd, name, false);

	if (rc != -EISDIR)
		return rc == -ENOENT ? 0 : rc;
	if (in.depth > TREE_DEPTH_MAX)
		return -ELOOP;
	in.fd = ops->open(ops->ctx, x->fd, name, O_RDONLY | O_DIRECTORY, 0);
	if (in.fd < 0)
		return in.fd;
	rc = ops->list(ops->ctx, in.fd, entry_remove, &in);
	(void)ops->close(ops->ctx, in.fd);
	return rc ? rc : ops->unlink(ops->ctx, x->fd, name, true);
}

int tree_empty(const struct io_ops *ops, int fd, bool files_only)
{
	struct tree x = { .ops = ops, .fd = fd, .depth = files_only ? TREE_DEPTH_MAX : 0 };

	return ops->list(ops->ctx, fd, entry_remove, &x);
}
