/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queued.h - the copier's work with devices that queue (ckpt/device/device.h): rows are handed to
 * them in pieces of DEVICE_CHUNK bytes, with QUEUED_DEPTH calls in flight on each, so that a small
 * copy of the trainer's own does not wait behind a whole state.
 *
 * Pacing. The copies are spread over the time until the guard, which is expected as it was before:
 * at any moment as much is queued as that time so far has of all of it, and a quarter more. The
 * clock starts when the first piece has been copied, which is when the device has come to the mark.
 * What is not known yet is not paced. ckpt_opts.copy_rate is a bound besides.
 *
 * Ahead: a trainer whose host is ahead of the device marks the next snapshots while the copies of
 * earlier ones are still queued. They are queued behind those, each as soon as all of the one
 * before it is, and end in this order. What a guard asks about is the newest snapshot's (struct
 * queued_news): when the device comes to its mark, the ones before it have ended, for their guards
 * have the trainer's streams wait.
 *
 * Hurry: a guard that finds the copies unfinished says so; then all that is left is queued at once,
 * in large pieces, and the guard lets the trainer's stream wait for the end. CKPT_BOUNDED first
 * asks for how long that would be (queued_stall_ns): what is left, by the rate at which pieces were
 * copied while more were waiting (or at least so fast, as far as we looked often enough to see it),
 * less the time that the device still needs to come to the guard.
 *
 * The window, from mark to guard, is the device's. A guard that finds the copy complete was not
 * early, and takes the host's clock. One that finds it unfinished may be early by whole steps: it
 * has the device say when it comes there (devices_come), and the helper watches for that.
 *
 * Threads: queued_copy is the helper's; news are read, and hurry is set, by the trainer's.
 */
#ifndef CKPT_CLIENT_QUEUED_H
#define CKPT_CLIENT_QUEUED_H
#include "ckpt/client/canary.h"
#include "ckpt/client/sealed.h"
#include "ckpt/wire/shared.h"

struct ckpt;

#define QUEUED_DEPTH 3u
#define QUEUED_HURRY ((uint64_t)256 << 20) /* bytes of a call when nobody is to be let through */
/* of the first call: its end says that the device has come to the mark, so that the rate of a small
 * state is known, too */
#define QUEUED_FIRST ((uint64_t)4 << 10)
#define QUEUED_CALLS 256u

struct queued_device {
	struct device_handle *device;
	const struct sealed_queue *rows;
	struct sealed_at at, replica; /* their rows are indices of rows->row */
	uint64_t bytes;		      /* of the snapshot, with those of replicas */
	uint64_t given, taken, first; /* first: bytes of the first call */
	uint64_t moved_ns, looked_ns; /* it went on, or had nothing to do; we looked */
	uint64_t upto[QUEUED_CALLS];  /* [n % CALLS] bytes that were given with the first n calls */
	uint32_t ncall;
	bool full; /* more than one call was in flight when we looked last */
};

/* Of one snapshot. */
struct queued_news {
	_Atomic bool hurry;
	_Atomic uint64_t left;	/* bytes of the device that has most to copy still */
	_Atomic uint64_t began; /* ns: the first piece was copied; 0: not yet */
};

/* How the devices do one run: the helper's. */
struct queued_course {
	struct device_handle *device; /* the first one; NULL: there is none */
	uint32_t number,
		first_at;      /* number: of its guard (queued.coming); poll: of its first call */
	uint64_t first, given; /* bytes of the first call; of all */
	uint64_t queued_ns, looked_ns,
		before_ns; /* before: the last look at which it had not begun */
	bool watched;
};

struct queued {
	_Atomic uint32_t stir; /* futex: it grows when the helper is to look at once */
	_Atomic uint64_t rate; /* bytes per second of a device; 0: not known */
	/* ns from mark to guard, on average; 0: not known */
	_Atomic uint64_t window;
	/* the trainer's: number of the newest request whose guard the device is to come to */
	_Atomic uint32_t coming;
	struct queued_course
		way; /* the helper's: the run in whose window the device is; began_ns: */
	uint64_t way_ns;
	uint64_t limit;	    /* ckpt_opts.copy_rate */
	_Atomic bool stuck; /* a device does not end: nothing that it uses may be freed */
	/* the helper's: of the newest run */
	struct queued_device *of;
	struct queued_news *news; /* NULL: it has ended */
	uint32_t n, cap;
	uint64_t bytes; /* of all devices */
};

/* The canary's words (canary.h), as devices had them before the copies and behind them. */
struct queued_witness {
	uint64_t before[CANARY_FAR], behind[CANARY_FAR];
};

/* What a copy is for. */
struct queued_copy {
	const struct sealed *sealed;
	uint32_t slot, turn, replicas; /* as of struct sealed_some */
	struct shared_rank *rank;
	struct shared_snap *snap;
	uint64_t seq;
	const struct device_target *done; /* the page of `done` */
	struct queued_news *news;
	_Atomic uint64_t *bad_at; /* of -EFAULT: where in the slot */
	bool *lost;		  /* not all of the replicas could be queued */
	/* What the canary looks at, and the memory that these words come to */
	const struct canary_place *word;
	uint32_t nword;
	const struct device_target *target;
	struct queued_witness *witness;
	uint32_t *end;	/* [SHARED_DEVICES] of each queue: for queued_ended */
	uint32_t *nend; /* so many of them have one */
	uint32_t number;
	struct queued_course *course;
};

/* Queues all of it, and its end: 0; -ECANCELED: it was given up; -EFAULT, -EIO, -ENOMEM. In each
 * case devices may write to the slot until queued_ended. */
int queued_run(struct ckpt *c, const struct queued_copy *q);
/* Looks how far the newest run is. */
void queued_look(struct ckpt *c);
/* Looks at the oldest run: where is its device? Before queued_ended is asked; and when that
 * was 0. */
void queued_watch(struct queued *x, struct queued_course *k, struct queued_news *news);
void queued_note(struct queued *x, const struct queued_course *k, const struct queued_news *news);
/* Is the device still to come to a guard? */
bool queued_coming(struct queued *x);
void queued_window(struct queued *x, uint64_t ns);
/* Have the devices of these rows come to these ends? 0; -EAGAIN; -EIO: they have, and a device has
 * failed. */
int queued_ended(const struct ckpt *c, const struct sealed *s, const uint32_t *end, uint32_t nend);
/* Can all devices of these rows end by themselves, in order? Then the record names them. */
bool queued_ordered(const struct ckpt *c, const struct sealed *s, uint32_t slot,
		    const struct device_target *done);
/* The trainer's thread: a copy is asked for; a guard waits for it. */
void queued_begin(struct queued_news *news);
void queued_hurry(struct queued *x, struct queued_news *news);
void queued_stir(struct queued *x);
/* How long a stream that waits for the end from now on would stand still; UINT64_MAX: not known. */
uint64_t queued_stall_ns(const struct queued *x, const struct queued_news *news, uint64_t now);
#endif
