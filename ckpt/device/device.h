/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - copies memory of the process that the daemon cannot read into a slot: the host's own
 * memory (device_host.c), and that of a GPU (device_cuda.c). The client's copier
 * (ckpt/client/copier.c) is the caller. There are two kinds of devices:
 *
 *   synchronous   host memory has open, close and copy alone. copy returns when its rows are
 *                 copied. Several threads may call it at once, each with rows of its own.
 *   queued        device_copy queues, and may return before anything is copied. Rows are
 *                 carried out in the order in which they are queued, by one caller.
 *
 * A queued copy has an order with the streams of the trainer, by events of the device:
 *
 *   check    the stream belongs to this device, and what it is given now runs now
 *   begin    notes where that stream is now. Of the devices that copy, at least one begins
 *   follow   this device's copies come behind what another one (or it itself) has noted; once for
 *            each that has begun, before the first copy
 *   copy     any number of times; the caller looks at `flight` between them, for a small copy of
 *            the trainer's own waits behind all that is queued
 *   end      notes, behind the copies, that they are done; then the device writes `target` to the
 *            word `done` (ckpt/wire/shared.h), fenced behind the bytes of the slot, if it has
 *            DEVICE_ORDERED. That word shows the end to all, the daemon too
 *   guard    lets a stream wait for the end of this device's or another's copies. After end
 *   poll     have the copies before an end come to theirs? Meanwhile the next ones may begin
 *   come     writes a number, which `came` reads, when the stream comes to where it is now
 *
 * Errors are negative errno. -EFAULT: the source of a row is not there (unmapped, freed on the
 * device): the row is *ret_bad, and what came before it in this call is copied or queued. -EIO: the
 * device has failed and copies nothing until it is opened again; it writes nothing to `done` any
 * more, so a snapshot whose copy has failed has no end. A device never raises a signal for a bad
 * address.
 *
 * Threads: check, begin, guard, come, move, and what says "waits" are the trainer's; the rest is
 * the copier's. The two may call at the same time. close and forget wait until nothing of the
 * device writes to memory any more.
 */
#ifndef CKPT_DEVICE_DEVICE_H
#define CKPT_DEVICE_DEVICE_H
#include "ckpt/base/atomic.h"
#include "ckpt/base/error.h"
#include <stdbool.h>
#include <stdint.h>

/* Bytes of one device_copy, where nobody waits for the end: so flight is counted in calls. */
#define DEVICE_CHUNK ((uint64_t)16 << 20)

enum device_caps { DEVICE_ORDERED = 1 };

/* `rows` times `width` bytes: contiguous on both sides, each side going on by its pitch. rows >= 1;
 * with one row pitches mean nothing. src is an address of the device's, dst one of a mapped
 * target; see land and move for what they are there. */
struct device_row {
	uint64_t src;
	uint8_t *dst;
	uint64_t width, rows, src_pitch, dst_pitch;
};

/* Host memory that devices read or write: a slot, the page of `done`, a window of a restore. The
 * mapping and its memfd are the caller's, and stay until device_forget. It is a target of all
 * devices of one kind as soon as it is that of one of them. */
struct device_target {
	uint8_t *base;
	uint64_t bytes;
	int fd;
	bool direct; /* the device itself reads and writes it; without this, by way of buffers */
	void *own;   /* the device's */
};

struct device_handle;
struct device_ops {
	const char *name; /* for logs: "host" */
	/* number: of the device, 0 for host memory. May try what it needs; -EOPNOTSUPP and the
	 * sentence where it does not work here at all. */
	int (*open)(uint32_t number, struct device_handle **ret, struct ckpt_err *err);
	void (*close)(struct device_handle *d);
	int (*copy)(struct device_handle *d, const struct device_target *to,
		    const struct device_row *row, uint32_t n, uint32_t *ret_bad);

	/* Copies may go there, or come from there, from now on (a GPU registers the pages: seconds
	 * for many GiB). Where pages cannot be registered it is not `direct`: copy then waits. */
	int (*target)(struct device_handle *d, struct device_target *t, struct ckpt_err *err);
	void (*forget)(struct device_handle *d, struct device_target *t);
	/* stream: as ckpt_mark has it. -EBUSY: it is being captured into a graph, so nothing that
	 * it is given runs now: no snapshot can begin; -EINVAL: it is none of this device. */
	int (*check)(struct device_handle *d, void *stream);
	int (*begin)(struct device_handle *d, void *stream);
	int (*follow)(struct device_handle *d, const struct device_handle *begun);
	/* Calls of copy and end that have not ended. */
	uint32_t (*flight)(struct device_handle *d);
	/* done NULL: no word is written (the snapshot was given up). *ret_end, also of an error:
	 * for poll. */
	int (*end)(struct device_handle *d, _Atomic uint32_t *done, uint32_t target,
		   uint32_t *ret_end);
	/* 0: ended; -EAGAIN: not yet */
	int (*poll)(struct device_handle *d, uint32_t end);
	/* -EBUSY, -EINVAL: as of check; -EOPNOTSUPP: it writes no words. Any thread may ask `came`;
	 * numbers are compared by device_reached. */
	int (*come)(struct device_handle *d, void *stream, uint32_t number);
	uint32_t (*came)(const struct device_handle *d);
	/* Calls of copy and end so far: for poll. The copier's. */
	uint32_t (*sent)(const struct device_handle *d);
	/* stream is one of d's. -EBUSY: as of check; the caller waits for `done` instead. */
	int (*guard)(struct device_handle *d, void *stream, const struct device_handle *of);

	/* Scratch memory of the device. */
	int (*alloc)(struct device_handle *d, uint64_t bytes, uint64_t *ret, struct ckpt_err *err);
	void (*free)(struct device_handle *d, uint64_t at);
	/* From the device's memory to its memory (dst is an address there, too), queued on that
	 * stream of the trainer's: one call for all rows that are one line, where the driver has
	 * it. */
	int (*move)(struct device_handle *d, void *stream, const struct device_row *row,
		    uint32_t n);

	/* These wait until they are done. */
	/* All that the trainer has queued on the device has ended. -EBUSY: some stream is being
	 * captured. */
	int (*settle)(struct device_handle *d);
	/* The same of what it has queued on this stream; captures of others go on. As of check. */
	int (*settle_stream)(struct device_handle *d, void *stream);
	/* The other way round: to row.src from row.dst, which lies in `from` (NULL: in any memory
	 * of the process). */
	int (*land)(struct device_handle *d, const struct device_target *from,
		    const struct device_row *row, uint32_t n, uint32_t *ret_bad);
	int (*fetch)(struct device_handle *d, uint64_t src, uint64_t bytes, void *to);
	int (*move_now)(struct device_handle *d, const struct device_row *row, uint32_t n);
};
struct device_handle { /* the first member of each implementation's */
	const struct device_ops *ops;
	uint32_t caps;
};

/* Memory of this process. Copies are the kernel's (process_vm_readv on itself; where a sandbox
 * refuses that, and for the memory of a driver, pwrite to the target's memfd), which checks each
 * page: an address without memory is -EFAULT. */
extern const struct device_ops device_host;

/* CUDA device `number`. It works in the context of the thread that opens it, if that is one of this
 * device, or else in the process's primary context, which is what frameworks use. Where there is no
 * driver, no device or no such function: -ENOENT, -ENODEV, -ENOTSUP with the sentence. */
extern const struct device_ops device_cuda;

/* On which CUDA device does the memory lie that goes from `at` to at + bytes? 0: on none, it is
 * host memory; 1: on *ret_number; -EOPNOTSUPP with the sentence: managed memory, or memory that is
 * in several places; -EIO: the device has failed. bytes >= 1. open: any CUDA device that is open;
 * NULL: none is, then a driver is asked only if this process has one in use already. */
int device_cuda_find(struct device_handle *open, uint64_t at, uint64_t bytes, uint32_t *ret_number,
		     struct ckpt_err *err);

/* Has the device come so far? Both words wrap around. */
static inline bool device_reached(uint32_t done, uint32_t target)
{
	return (int32_t)(done - target) >= 0;
}
#endif
