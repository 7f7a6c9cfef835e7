/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.c - see picture.h. Called by the verbs with --svg.
 * Invariant: no file but a picture is ever replaced.
 */
#include "ckpt/cli/picture.h"
#include "ckpt/base/error.h"
#include "ckpt/cli/cli.h"
#include "ckpt/draw/svg.h"
#include "ckpt/io/publish.h"

static int picture_put(struct publish *p, const struct io_ops *ops, const void *bytes, uint64_t len,
		       struct ckpt_err *err)
{
	int fd, rc = publish_file(p, "", 0, NULL, &fd, err);

	if (rc)
		return rc;
	rc = io_pwrite_all(ops, fd, bytes, len, 0);
	if (rc) {
		(void)ops->close(ops->ctx, fd);
		return ckpt_error_errno(err, -rc, "%.3000s cannot be written", publish_path(p));
	}
	rc = publish_file_end(p, "", fd, len, err);
	return rc ? rc : publish_commit(p, err);
}

int picture_write(const struct io_ops *ops, const char *path, const void *bytes, uint64_t len,
		  struct ckpt_err *err)
{
	const struct publish_opts o = { .ops = ops, .path = path, .mode = 0666, .over = SVG_MARK };
	struct publish *p;
	int rc = publish_begin(&o, 0, &p, err);

	if (!rc)
		rc = picture_put(p, ops, bytes, len, err);
	publish_end(p, false);
	return cli_new_file(rc);
}
