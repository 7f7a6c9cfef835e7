/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.c - see picture.h. Called by the verbs with --svg, and by doctor.
 * Invariant: no file that begins otherwise is ever replaced.
 */
#include "ckpt/cli/picture.h"
#include "ckpt/base/error.h"
#include "ckpt/cli/cli.h"
#include "ckpt/draw/svg.h"
#include "ckpt/io/publish.h"

static int marked_file_put(struct publish *p, const struct io_ops *ops, const void *bytes,
			   uint64_t len, struct ckpt_err *err)
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

int marked_file_write(const struct io_ops *ops, const char *path, const char *mark,
		      const void *bytes, uint64_t len, struct ckpt_err *err)
{
	const struct publish_opts o = { .ops = ops, .path = path, .mode = 0666, .over = mark };
	struct publish *p;
	int rc = publish_begin(&o, 0, &p, err);

	if (!rc)
		rc = marked_file_put(p, ops, bytes, len, err);
	publish_end(p, false);
	return cli_new_file(rc);
}

int picture_begin(struct picture *p, struct ckpt_err *err)
{
	*p = (struct picture){ 0 };
	p->out = open_memstream(&p->svg, &p->len);
	return p->out ? 0 : ckpt_error(err, -ENOMEM, "out of memory for the picture");
}

int picture_end(struct picture *p, int rc, const struct io_ops *ops, const char *path,
		struct ckpt_err *err)
{
	if (fclose(p->out) && !rc)
		rc = -ENOMEM;
	if (rc == -ENOMEM)
		ckpt_error(err, rc, "out of memory for the picture");
	else if (!rc)
		rc = marked_file_write(ops, path, SVG_MARK, p->svg, p->len, err);
	free(p->svg);
	return rc;
}
