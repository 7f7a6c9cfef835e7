/* SPDX-License-Identifier: Apache-2.0 */
/* text_file.c - see text_file.h. Called by mesh_option.c and view_file.c. Invariant: the text has one
 * zero byte, its last. */
#include "ckpt/cli/text_file.h"
#include "ckpt/base/util.h"
#include <fcntl.h>

#define FILE_MAX (4 * MIB) /* a larger file is something else */

int text_file_read(const char *path, const char *what, const char *form, struct arena *a,
		   char **ret, struct ckpt_err *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	char *text = arena_alloc(a, FILE_MAX + 1);
	size_t used = 0;
	ssize_t n = -1;

	if (!text)
		return ckpt_error(err, -ENOMEM, "out of memory for the %s %s", what, path);
	do {
		if (fd >= 0)
			n = read(fd, text + used, FILE_MAX + 1 - used);
		used += n > 0 ? (size_t)n : 0;
	} while (n > 0 && used <= FILE_MAX);
	if (n < 0) {
		int rc = ckpt_error_errno(err, errno, "the %s %s", what, path);

		return rc == -ENOENT || rc == -ENOTDIR || rc == -EISDIR ? -EINVAL : rc;
	}
	if (used > FILE_MAX)
		return ckpt_error(err, -EINVAL, "%s is larger than 4 MiB: it is not a %s (%s)",
				  path, what, form);
	if (memchr(text, 0, used))
		return ckpt_error(err, -EINVAL, "%s is not a text file; write %s", path, form);
	text[used] = 0;
	*ret = text;
	return 0;
}
