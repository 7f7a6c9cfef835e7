/* SPDX-License-Identifier: Apache-2.0 */
/* io_above.h - a directory and all those around it, up to the root. Called by whoever asks in what
 * something would be made (engine/open.h, store/store.h). */
#ifndef CKPT_IO_IO_ABOVE_H
#define CKPT_IO_IO_ABOVE_H
#include "ckpt/io/io.h"

/*
 * Calls each with the directory dirfd, then with the one that holds it, and so on; fd is only good
 * for looking (O_PATH). A result other than 0 ends it and is returned. These are the directories
 * themselves, by whatever links and relative paths dirfd was reached; of a bind mount those around
 * the place where it is mounted. 0 also where one of them cannot be opened.
 */
int io_above(const struct io_ops *ops, int dirfd, int (*each)(void *arg, int fd), void *arg);
#endif
