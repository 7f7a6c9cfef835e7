/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - copies memory of the process that the daemon cannot read into a slot: the host's own
 * memory (device_host.c), and that of a GPU (device_cuda.c). The client's copier
 * (ckpt/client/copier.c) is the caller.
 *
 * A copy is one list of rows, in order: device_begin, any number of device_copy, device_end.
 * Nothing else touches the source before device_begin or the destination after the end. Two kinds
 * of devices:
 *
 *   synchronous (caps 0)     device_copy returns when its rows are copied. Several threads may call it at
 *                            once, each with rows of its own; device_end finds nothing left to do.
 *   queued (DEVICE_ORDERED)  device_begin notes where the trainer's stream is now (an event): the copies
 *                            come behind that. device_copy queues, and may return before anything is
 *                            copied; rows are carried out in the order in which they are queued, by one
 *                            caller. device_end queues, behind them, the event for which device_guard lets
 *                            the trainer's stream wait, and then a write of `target` to the word `done`
 *                            (ckpt/wire/shared.h), fenced behind the bytes of the slot. That word
 *                            shows the end to all, the daemon too; the driver is not polled.
 *
 * device_progress is a read of `done`. On a failure a device writes nothing to it any more: a
 * snapshot whose copy has failed has no end.
 *
 * Errors are negative errno. -EFAULT: the source of a row is not there (unmapped, freed on the
 * device): the row is *ret_bad, and what came before it in this call is copied or queued. -EIO: the
 * device has failed and copies nothing until it is opened again. A device never raises a signal for
 * a bad address.
 *
 * Threads: device_begin and device_guard are the trainer's thread's and make no system call of the
 * host device; the rest is the copier's. device_close waits until nothing of it writes to memory
 * any more.
 */
#ifndef CKPT_DEVICE_DEVICE_H
#define CKPT_DEVICE_DEVICE_H
#include "ckpt/base/atomic.h"
#include "ckpt/base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum device_caps { DEVICE_ORDERED = 1 };

/* `rows` times `width` bytes: contiguous on both sides, each side going on by its pitch. rows >= 1;
 * with one row pitches mean nothing. src is an address of the device's, dst one of a mapped
 * target. */
struct device_row {
	uint64_t src;
	uint8_t *dst;
	uint64_t width, rows, src_pitch, dst_pitch;
};

/* Host memory that a device writes: a slot, or the page of `done`. The mapping and its memfd are
 * the caller's, and stay until device_forget. */
struct device_target {
	uint8_t *base;
	uint64_t bytes;
	int fd;
	void *own; /* the device's */
};

struct device_handle;
struct device_ops {
	const char *name; /* for logs: "host" */
	/* number: of the device, 0 for host memory. May try what it needs; -EOPNOTSUPP and the
	 * sentence where it does not work here at all. */
	int (*open)(uint32_t number, struct device_handle **ret, struct ckpt_err *err);
	void (*close)(struct device_handle *d);
	/* Copies may go there from now on (a GPU registers the pages: seconds for many GiB). */
	int (*target)(struct device_handle *d, struct device_target *t, struct ckpt_err *err);
	void (*forget)(struct device_handle *d, struct device_target *t);
	/* stream: the trainer's, as ckpt_mark has it; NULL for host memory. -EBUSY: the stream is
	 * being captured into a graph, so nothing that it is given runs now: no snapshot can begin. */
	int (*begin)(struct device_handle *d, void *stream);
	int (*copy)(struct device_handle *d, const struct device_target *to,
		    const struct device_row *row, uint32_t n, uint32_t *ret_bad);
	int (*end)(struct device_handle *d, _Atomic uint32_t *done, uint32_t target);
	/* -EBUSY: as of begin; the caller waits for `done` instead. */
	int (*guard)(struct device_handle *d, void *stream);
	/* Somebody waits for the end: copies are queued without a bound on the bytes in flight, until
	 * the next begin. Any thread. */
	void (*hurry)(struct device_handle *d);
};
struct device_handle { /* the first member of each implementation's */
	const struct device_ops *ops;
	uint32_t
		caps; /* may lose DEVICE_ORDERED with a target that the device cannot write itself */
};

/* Memory of this process. Copies are the kernel's (process_vm_readv on itself; where a sandbox
 * refuses that, and for the memory of a driver, pwrite to the target's memfd), which checks each
 * page: an address without memory is -EFAULT. */
extern const struct device_ops device_host;

/* CUDA device `number`, in the process's primary context of it. Where there is no driver, no device
 * or no such function: -ENOENT, -ENODEV, -ENOTSUP with the sentence. */
extern const struct device_ops device_cuda;

/* Has the device come so far? Both words wrap around. */
static inline bool device_reached(uint32_t done, uint32_t target)
{
	return (int32_t)(done - target) >= 0;
}
#endif
