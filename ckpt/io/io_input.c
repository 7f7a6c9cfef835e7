/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_input.c - see io_input.h. Called by what reads files of options, and questions.
 * Invariant: no call here waits for longer than STOP_MS without asking stopped().
 */
#include "ckpt/io/io_input.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define STOP_MS 200 /* poll(2) does not see a signal that comes just before it */

int io_input_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

ssize_t io_input_read(int fd, void *to, size_t n, bool (*stopped)(void))
{
	struct pollfd in = { .fd = fd, .events = POLLIN };

	while (!stopped()) {
		int ready = poll(&in, 1, STOP_MS);
		ssize_t got = ready > 0 ? read(fd, to, n) : 0;

		if (ready > 0 && got >= 0)
			return got;
		if ((ready < 0 || got < 0) && errno != EINTR && errno != EAGAIN)
			return -errno;
	}
	return -ECANCELED;
}
