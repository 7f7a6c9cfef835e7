/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_links.h - what one host can measure of what messages cost: a copy in memory, messages
 * between two processes through a socket, and writing to a directory's disk with a sync. Called by
 * ckptctl doctor --links, from one thread of a process that has no other.
 *
 * Not measured: links to other hosts, which one host cannot measure, and links between GPUs,
 * because no driver is opened here. It takes two or three seconds, on a slow disk some more, and
 * writes HOST_LINKS_BYTES at most to a file without a name.
 *
 * The sockets need a second process: a thread would share the memory of the first one, and the
 * kernel the work between them.
 */
#ifndef CKPT_HOST_LINKS_H
#define CKPT_HOST_LINKS_H
#include "ckpt/io/io.h"

#define HOST_LINKS_BYTES ((uint64_t)64 << 20)

struct host_link {
	double latency_us;   /* of a message of some bytes */
	double bytes_per_us; /* of large ones; > 0 */
	char why[160];	     /* "": it was measured; else why not, and the figures are 0 */
};
struct host_links {
	struct host_link memory, socket, disk;
};

/* dir: where the disk is measured. It never fails: what cannot be measured says why. */
void host_links_measure(const struct io_ops *ops, const char *dir, struct host_links *ret);
#endif
