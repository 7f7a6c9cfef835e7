/* SPDX-License-Identifier: Apache-2.0 */
/* text_file.c - see text_file.h. Called by mesh_option.c, view_file.c and links_option.c.
 * Invariant: the text has one zero byte, its last. */
#include "ckpt/cli/text_file.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/io/io_input.h"

#define FILE_MAX (4 * MIB) /* a larger file is something else */

uint64_t text_file_silent_ns = 10 * NS_PER_S;
static uint64_t late_ns;

static bool stopped_or_late(void)
{
	return cli_stopped() || now_ns() > late_ns;
}

int text_file_read(const char *path, const char *what, const char *form, struct arena *a,
		   char **ret, struct ckpt_err *err)
{
	cleanup_close int fd = io_input_open(path);
	char *text = arena_alloc(a, FILE_MAX + 1);
	size_t used = 0;
	ssize_t n = fd;

	if (!text)
		return ckpt_error(err, -ENOMEM, "out of memory for the %s %s", what, path);
	late_ns = now_ns() + text_file_silent_ns;
	while (fd >= 0 && used <= FILE_MAX &&
	       (n = io_input_read(fd, text + used, FILE_MAX + 1 - used, stopped_or_late)) > 0) {
		used += (size_t)n;
		late_ns = now_ns() + text_file_silent_ns;
	}
	if (n == -ECANCELED && !cli_stopped())
		return ckpt_error(err, -ETIMEDOUT,
				  "the %s %s gave nothing for too long: it is a FIFO or a terminal "
				  "that nobody writes to",
				  what, path);
	if (n == -ECANCELED)
		return ckpt_error(err, -ECANCELED, "interrupted while reading the %s %s", what,
				  path);
	if (n < 0) {
		int rc = ckpt_error_errno(err, (int)-n, "the %s %s", what, path);

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
