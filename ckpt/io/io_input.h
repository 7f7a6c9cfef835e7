/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_input.h - what users name or type for a command: files, FIFOs, terminals. A signal whose
 * handler makes stopped() true ends a wait for it, although other system calls go on (SA_RESTART).
 */
#ifndef CKPT_IO_IO_INPUT_H
#define CKPT_IO_IO_INPUT_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* For io_input_read. A FIFO is opened before its writer comes. A descriptor, or -errno. */
int io_input_open(const char *path);
/* What has come, as read(2), waiting for the first byte: 0 at the end; -ECANCELED: stopped() is
 * true; -errno. */
ssize_t io_input_read(int fd, void *to, size_t n, bool (*stopped)(void));
#endif
