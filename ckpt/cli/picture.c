/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.c - see picture.h. Called by the verbs with --svg.
 * Invariant: no file but a picture is ever replaced.
 */
#include "ckpt/cli/picture.h"
#include "ckpt/cli/newfile.h"
#include "ckpt/draw/svg.h"

int picture_write(const struct io_ops *ops, const char *path, const void *bytes, uint64_t len,
		  struct ckpt_err *err)
{
	struct newfile f;
	int rc = newfile_open_over(ops, path, SVG_MARK, &f, err);

	if (!rc)
		rc = newfile_write(&f, bytes, len, err);
	if (!rc)
		rc = newfile_commit(&f, err);
	newfile_drop(&f);
	return rc;
}
