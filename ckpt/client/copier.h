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
 * Threads: copier_idle and copier_ask are the trainer's; copier_help is the helper's.
 */
#ifndef CKPT_CLIENT_COPIER_H
#define CKPT_CLIENT_COPIER_H
#include "ckpt/client/sealed.h"
#include "ckpt/wire/shared.h"
#include <pthread.h>

struct ckpt;
struct link;

struct copier {
	struct device_handle *device;
	/* The trainer's request. It is written before `asked`; the helper takes it with that. */
	struct link *link;
	struct shared_snap *snap;
	uint64_t seq;
	uint32_t slot, epoch, rev;
	_Atomic uint32_t asked;
	_Atomic uint32_t busy; /* futex: 1 from the request until the copy has ended */

	/* The helper's, read by the second thread between `go` and `left` */
	const struct sealed *sealed;
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

/* The copy of the snapshot before has ended. */
bool copier_idle(const struct ckpt *c);
/* Copy for this record, which is published; the helper is to be woken. */
void copier_ask(struct ckpt *c, struct link *l, struct shared_snap *s, uint64_t seq, uint32_t slot);
/* Carry out what was asked for, if anything was. */
void copier_help(struct ckpt *c);
/* Once the daemon has the slots in memory: map them before the first copy needs them. */
void copier_prepare(struct ckpt *c);
/* Give up the copy that is under way, if there is one, and wait for its end. */
void copier_quiesce(struct ckpt *c);
#endif
