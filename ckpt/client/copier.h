/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copier.h - the library's copier (shared.h, NEED_CLIENT): it takes a record that ckpt_snapshot has
 * published, copies the rows of the process's own memory straight into the slot, and ends the copy.
 *
 * The helper thread is the copier. A second thread shares the work where the machine has a core for
 * it: each rank has CPUS / RANKS cores, where CPUS are those that the process may use, and RANKS
 * the ranks of this host if that is every core of the machine (a rank that is bound to some cores
 * has them for itself); with three or more (the trainer's thread, and two that copy) there are two.
 * It is no option: with fewer cores a second thread gains nothing, and with more it costs nothing.
 *
 * Between two units (sealed.h) each thread looks whether the snapshot still goes on. After a guard
 * has torn it, at most one unit more is written. Memory that is not there any more tears the
 * snapshot: `why` has the place in the slot, with SHARED_WHY_GONE, and the daemon names the tensor.
 *
 * Memory of devices comes after that of the host, by way of queued.h. When all of it is queued, and
 * the devices write their ends themselves, the snapshot is ORDERED (shared.h): the guard need not
 * wait here. The helper looks for the ends, and queues the next snapshots meanwhile, if the
 * trainer's host is ahead of its devices: there is a request for each slot that it has taken, and
 * they end in the order in which they were made.
 *
 * The canary's words on devices (canary.h) come with the copies, and are compared before the copy
 * ends.
 *
 * Threads: copier_full, copier_idle, copier_ask and copier_news are the trainer's; copier_help,
 * copier_finish and copier_ends are the helper's.
 */
#ifndef CKPT_CLIENT_COPIER_H
#define CKPT_CLIENT_COPIER_H
#include "ckpt/client/canary.h"
#include "ckpt/client/queued.h"
#include "ckpt/client/sealed.h"
#include "ckpt/wire/shared.h"
#include <pthread.h>

struct ckpt;
struct link;

#define COPIER_ASKED 8u /* more than slots: those of copies that were given up end, too */
_Static_assert(COPIER_ASKED > WIRE_SLOTS_MAX, "who gets a slot can ask for its copy");

/* A request is the trainer's until it is counted in `asked`, and the helper's until it is not
 * counted in `busy` any more; its news are of both. */
struct copier_request {
	struct link *link;
	struct shared_snap *snap;
	uint64_t seq;
	uint32_t slot, epoch, rev;
	uint32_t turn, nwhole; /* as the record says */
	uint32_t replicas;     /* as of struct sealed_some */
	struct queued_news news;
	/* the helper's: what its devices still write to (NULL: it never came so far), and how it
	 * went */
	struct sealed *sealed;
	uint32_t end[SHARED_DEVICES], nend;
	struct queued_course course;
	bool lost;			      /* of replicas not all is there */
	struct canary_place word[CANARY_FAR]; /* that the canary looks at on devices */
	uint32_t nword;
	int rc;
	uint64_t at, begun_ns, bytes; /* at: of -EFAULT, where in the slot */
};

struct copier {
	struct device_handle *host;
	struct queued queued;
	/* of each request: where the canary's words come to. A page of its own, a target of
	 * words_device once there is one */
	struct queued_witness *witness; /* [COPIER_ASKED]; NULL: no memory for it */
	struct device_target words;
	struct device_handle *words_device;
	/* the helper's: 1 + the epoch whose slots devices may write to */
	_Atomic uint64_t registered;
	bool indirect_said;
	/* requests: number n is of[n % COPIER_ASKED] */
	struct copier_request of[COPIER_ASKED];
	_Atomic uint32_t asked; /* so many were made; */
	_Atomic uint32_t busy;	/* futex: so many of them have not ended */
	uint32_t begun, ended;	/* the helper's */
	uint64_t ended_ns, leave;

	/* The helper's, read by the second thread between `go` and `left` */
	struct copier_request *now;
	_Atomic uint32_t next; /* unit */
	_Atomic int rc;	       /* of the first one that failed; */
	_Atomic uint64_t at;   /* where in the slot */

	pthread_t second;
	bool runs;
	_Atomic uint32_t go, left,
		stop; /* futexes: go: rounds begun; left: is the second asked, does it work? */
};

/* How many threads copy: cpus that the process may use, cores of the machine, ranks of this
 * host. */
uint32_t copier_threads(uint32_t cpus, uint32_t online, uint32_t ranks);
/* Opens the device; the second thread starts with the first copy. */
int copier_open(struct ckpt *c, struct ckpt_err *err);
/* After the helper has ended. */
void copier_close(struct ckpt *c);

/* All copies have ended. */
bool copier_idle(const struct ckpt *c);
/* No more can be asked for until one has ended. */
bool copier_full(const struct ckpt *c);
/* Copy for this record, which is published; the helper is to be woken. replicas: as
 * shared_replicas_turn said. */
void copier_ask(struct ckpt *c, struct link *l, struct shared_snap *s, uint64_t seq, uint32_t slot,
		uint32_t replicas);
/* Of the newest request. */
struct queued_news *copier_news(struct ckpt *c);
/* Has its guard the device say when it comes there? m: as of devices_guard. */
bool copier_guarded(struct ckpt *c, const struct ckpt_mark *m, uint32_t devices);
/* Carry out what was asked for, until one copy has ended or none is asked for. */
void copier_help(struct ckpt *c);
/* Carry out all of it. */
void copier_finish(struct ckpt *c);
/* Has a copy not ended? Or is there something to be watched for, besides? */
bool copier_works(const struct ckpt *c);
bool copier_looks(struct ckpt *c);
/* Of the copies that are queued, end the oldest if its devices have. True: it was so. */
bool copier_ends(struct ckpt *c);
/* Once the daemon has the slots in memory: map them before the first copy needs them. */
void copier_prepare(struct ckpt *c);
/* Are the slots of this epoch known to the devices that copy to them, if there are any? If not, the
 * helper is on its way. */
bool copier_ready(struct ckpt *c);
/* Give up the newest copy, if it is under way and no guard has let it go, and wait for the end of
 * all, but not for a device that hangs. */
void copier_quiesce(struct ckpt *c);
#endif
