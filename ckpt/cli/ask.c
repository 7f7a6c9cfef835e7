/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - one question, one line. Called by prune and repair. Whatever is no clear yes is no. */
#include "ckpt/cli/ask.h"
#include "ckpt/base/error.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

bool ask_can(const struct cli *c)
{
	return !c->json && c->err_screen.terminal && isatty(STDIN_FILENO);
}

int ask(struct cli *c, const char *done, struct ckpt_err *err, const char *fmt, ...)
{
	char line[64] = "";
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	size_t n = 0;
	va_list ap;

	fflush(c->out);
	va_start(ap, fmt);
	vfprintf(c->err, fmt, ap);
	va_end(ap);
	fputs(" [y/N] ", c->err);
	fflush(c->err);
	/* By hand: stdio would keep what stands behind the line; and poll(2), unlike read(2), comes
	 * back from a signal. */
	while (n + 1 < sizeof line && !cli_stopped()) {
		if (poll(&in, 1, -1) < 0 && errno == EINTR)
			continue;
		if (read(STDIN_FILENO, line + n, 1) != 1)
			break;
		if (line[n++] == '\n')
			break;
	}
	if (!n || line[n - 1] != '\n')
		fputc('\n', c->err);
	if (cli_stopped())
		return ckpt_error(err, -ECANCELED, "interrupted: nothing was %s", done);
	if (n > 1 && line[n - 1] == '\n' && (line[0] == 'y' || line[0] == 'Y'))
		return 0;
	cli_say(c, STYLE_DIM, "nothing %s", done);
	return 1;
}
