/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.h - the CUDA devices of a handle: which are open, on which one memory lies, and the order
 * of their copies with the trainer's streams (ckpt/device/device.h).
 *
 * The device of ckpt_opts.device is opened by ckpt_attach, others when a tensor is declared that
 * lies there; none is closed before ckpt_detach. Memory says by its address where it lies. A mark
 * has one stream for each device: of ckpt_opts.device ckpt_mark.stream, of others what
 * ckpt_mark.more says, or else the device's default stream. The copies of every device come after
 * what all these streams were given before the mark, and the guard lets all of them wait for the
 * copies of every device: so a trainer whose devices wait for one another need not name them all.
 *
 * By value (CKPT_VOLATILE): at the mark one call on the device's stream copies all such tensors of
 * a device into scratch memory there. From then on the scratch is what the copier copies.
 *
 * Threads: all is the trainer's, but devices_handle, which is any thread's.
 */
#ifndef CKPT_CLIENT_DEVICES_H
#define CKPT_CLIENT_DEVICES_H
#include "ckpt/ckpt.h"
#include "ckpt/device/device.h"
#include "ckpt/wire/shared.h"

struct ckpt;
struct part_of;

struct devices {
	_Atomic(struct device_handle *) at[SHARED_DEVICES]; /* by number; NULL: not open */
	uint32_t asked;					    /* ckpt_opts.device */
	struct ckpt_err why;				    /* code < 0: it could not be opened */
	_Atomic uint32_t open;				    /* bits 1 << number */
	void *given[SHARED_DEVICES];			    /* by the mark that is being taken */
	void *stream[SHARED_DEVICES]; /* of the newest snapshot that devices copy */
	bool marked;		      /* it has had no guard yet: so these streams exist */

	/* by value */
	struct scratch {
		uint64_t at, bytes, retired; /* retired: freed by the next one; 0: none */
		struct device_row *row;	     /* [nrow] from the tensors to the scratch; */
		struct device_row *back;     /* [nrow] and back */
		uint32_t nrow, cap;
		uint64_t used; /* while it is laid out */
	} scratch[SHARED_DEVICES];
};

/* Opens the one that was asked for. Without it the log has a line, and host memory works. */
void devices_open(struct ckpt *c, uint32_t asked);
/* Nothing is copied any more. */
void devices_close(struct ckpt *c);
struct device_handle *devices_handle(const struct ckpt *c, uint32_t number);
/* Where do these bytes lie? *ret 0: in host memory; 1 + number: on this device, which is open.
 * -EINVAL: the handle is for host memory; -EOPNOTSUPP, -ENODEV, ...: it cannot be copied. */
int devices_find(struct ckpt *c, const void *ptr, uint64_t bytes, uint32_t *ret,
		 struct ckpt_err *err);

/* What a mark says of streams. -EINVAL: a device that is not open, or twice; a stream of another
 * device. -EBUSY: a stream is being captured into a graph; -EIO: a device has failed. */
int devices_check(struct ckpt *c, const struct ckpt_mark *m);
/* After devices_check: the streams are noted, and by-value tensors copied. -EIO. */
int devices_begin(struct ckpt *c);
/* The streams wait for the copies of these devices (bits). m: NULL, or without streams: those of
 * the mark. -EBUSY, -EIO, -EINVAL: they do not wait. */
int devices_guard(struct ckpt *c, const struct ckpt_mark *m, uint32_t which);
/* A word is written when the stream of the first of these devices comes to where it is now: the
 * guard's. m: as of devices_guard. */
int devices_come(struct ckpt *c, const struct ckpt_mark *m, uint32_t which, uint32_t number);
/* All that the trainer has queued has ended: before memory is written. w: of the devices whose
 * streams it names, these alone. -EBUSY, -EIO; -EINVAL: as of devices_check. */
int devices_settle(struct ckpt *c, const struct ckpt_want *w, struct ckpt_err *err);

/* The state is what the trainer has queued it to be: before memory of this device is read. Between
 * a mark that devices copy and its guard the mark's streams have ended; else all of this device.
 * -EBUSY, -EIO. */
int devices_settle_state(const struct ckpt *c, uint32_t number);

/* By value, laid out anew at each seal: begin; add each part, which gets its place (part.off); end:
 * scratch memory is there, and parts have addresses. */
void devices_scratch_begin(struct ckpt *c);
int devices_scratch_add(struct ckpt *c, struct part_of *p, uint32_t elem, struct ckpt_err *err);
int devices_scratch_end(struct ckpt *c, struct ckpt_err *err);
/* Now, and waits: to the scratch, or (out) from it. */
int devices_by_value(struct ckpt *c, bool out);
#endif
