/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - what a ckpt handle holds; the files of this room share it.
 *
 * Two threads use a handle: the trainer's, and the helper, which watches the daemon, attaches again
 * after its death and copies private memory. `rpc` serialises requests and protects what is marked
 * (rpc). The pages of a connection are reached through `link`, an atomic pointer that is replaced
 * on re-attaching and never freed before detach, so that a snapshot in progress needs no lock.
 */
#ifndef CKPT_CLIENT_HANDLE_H
#define CKPT_CLIENT_HANDLE_H
#include "ckpt/ckpt.h"
#include "ckpt/base/log.h"
#include "ckpt/client/shared.h"
#include "ckpt/client/wire.h"
#include "ckpt/table/table.h"
#include <pthread.h>
#include <stdatomic.h>

/* bytes before a by-value blob: its length now (le64), zeros */
#define BLOB_HEAD 64u
#define REATTACH_MIN_NS (100 * NS_PER_MS)
#define REATTACH_MAX_NS (5 * NS_PER_S)
#define ATTACH_BUSY_NS (3 * NS_PER_S) /* an older process of this rank may still be dying */
#define ATTACH_MAX_NS (30 * NS_PER_S) /* daemons that die one after the other while we attach */
#define RPC_NS (60 * NS_PER_S)	      /* a daemon that does not answer for so long is given up */
/* the same for connecting: claiming a job on a slow file system takes its time */
#define HELLO_NS (20 * NS_PER_S)
#define FINISH_MAX_NS (60 * NS_PER_S)

enum link_state { LINK_DOWN, LINK_UP, LINK_FENCED };

struct link {
	struct shared_job *job;
	struct shared_rank *rank;
	int bell;
	struct link *older;
};

struct seg {
	void *base;
	uint64_t bytes;
	int fd;
};

struct part_of { /* one local box of a tensor, or a blob */
	void *ptr;
	uint32_t seg;
	uint64_t off; /* in the segment */
	bool shadow;  /* the daemon sees a copy at seg, off */
	uint32_t ndim;
	uint64_t bytes; /* dense */
	uint64_t start[CKPT_DIMS_MAX], extent[CKPT_DIMS_MAX];
	int64_t stride[CKPT_DIMS_MAX]; /* elements */
	bool dense, boxed;	       /* row-major; start and extent were given */
};

struct declared {
	bool dropped;
	struct ckpt_tensor t; /* strings and arrays are the arena's */
	struct indexset share;
	uint32_t nlocal;
	struct part_of *local;
};

struct blob {
	char *name;
	int per_rank;
	const void *ptr;
	const uint64_t *len;
	uint64_t cap, off;
};

struct ckpt {
	char *job, *store, *socket;
	uint32_t rank, world, flags, nslot, persist_every, guard;
	uint64_t generation, guard_ns, memory_max;
	bool generation_given; /* by the caller, not counted by the daemon */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
	void *agree_ctx;
	struct log log;
	int store_fd;
	uint32_t *alive; /* a page that fork empties */

	pthread_mutex_t rpc;
	int sock;	   /* (rpc) -1: none */
	uint32_t seq;	   /* (rpc) */
	uint64_t base;	   /* (rpc) 1 + restored step */
	uint64_t dev, ino; /* (rpc) of the job's directory, as the daemon's welcome said */
	struct slot {
		int fd;
		uint64_t bytes;
	} slot[WIRE_SLOTS_MAX]; /* (rpc) */
	/* What the slots hold, carried over a daemon's death: kept until this rank marks into the
	 * slot again (step is UINT64_MAX from then on) or declares anew. Other fields: (rpc). */
	struct held {
		_Atomic uint64_t step;
		uint64_t mark_ns;
		uint32_t epoch, flags;
	} held[WIRE_SLOTS_MAX];
	void *decl;
	uint64_t decl_bytes; /* (rpc) the sealed declaration, encoded */
	struct seg *seg;
	uint32_t nseg, nseg_sent; /* (rpc) */

	_Atomic(struct link *) link;
	_Atomic uint32_t state;	  /* enum link_state */
	_Atomic uint32_t epoch;	  /* sealed; 0: none */
	_Atomic uint32_t changed; /* futex: link or state changed */

	pthread_t helper;
	bool helper_runs;
	int wake; /* eventfd: the helper is to look */
	_Atomic uint32_t stop;
	_Atomic(struct shared_snap *) fill; /* private memory is to be copied for this record */
	_Atomic uint32_t fill_stop;
	/* futex: 1 from that request until the copy has ended */
	_Atomic uint32_t filling;
	uint64_t fill_mark;
	struct link *fill_link;

	/* the trainer's thread alone */
	struct arena arena;
	struct table meshes; /* only its meshes are used */
	struct declared *tensor;
	uint32_t ntensor, cap_tensor;
	struct blob *blob;
	uint32_t nblob;
	bool dirty, sealed_once, private_memory;
	/* the next ckpt_seal declares anew, changed or not: so all ranks come to one epoch */
	bool redeclare;
	_Atomic bool snapped, restored; /* written here, read by the helper */
	uint32_t shadow;		/* segment of copies; UINT32_MAX none */
	uint64_t last_step;		/* 1 + newest that got a slot */
	/* 1 + newest for which a ticket was asked through asked_link, and how often before */
	uint64_t asked_step;
	uint32_t attempt;
	struct link *asked_link;
	struct link *snap_link; /* of the newest snapshot */
	uint32_t since_persist;
	uint64_t last_mark_ns, mean_interval_ns;
	uint64_t stall_ns_last, measured_since; /* for the rank page */
	uint64_t torn_reported;			/* mark whose tearing guard has told */
	void *blobs;
	uint64_t blobs_bytes; /* of the restored step */
	uint64_t restored_step;

	/* counters, written by the trainer's thread, read by ckpt_stats from any */
	_Atomic uint64_t taken, skipped, torn, stall_ns_sum, stall_ns_max, unguarded, reattached,
		stall_log2_ns[40];
};

int client_alive(const ckpt *c); /* 0, -ECHILD */
/* One request and its answer, under rpc. want: the answer's type; buf holds it. fd: received
 * descriptors (may be NULL when none are expected). */
int rpc_call(ckpt *c, void *msg, uint32_t type, uint32_t bytes, const int *fd, int nfd,
	     uint32_t want, void *buf, uint32_t buf_bytes, int *ret_fd, uint64_t wait_ns,
	     struct ckpt_err *err);
int connect_first(ckpt *c, struct ckpt_err *err);
int send_segments(ckpt *c, struct ckpt_err *err);    /* (rpc) */
int send_declaration(ckpt *c, struct ckpt_err *err); /* (rpc) */
int helper_start(ckpt *c, struct ckpt_err *err);
void helper_stop(ckpt *c);
void helper_wake(ckpt *c);
/* give up the copy of private memory that is under way, if any, and wait for its end */
void fill_quiesce(ckpt *c);
void client_changed(ckpt *c); /* wake whoever waits in ckpt_wait or a guard */
int segment_new(ckpt *c, uint64_t bytes, uint32_t *ret_seg, struct ckpt_err *err);
bool beat_lost(const struct link *l, uint64_t now);

int declare_encode(ckpt *c, struct ckpt_err *err); /* table of all declarations -> c->decl */
/* Ends early when fill_quiesce asks for it. */
/* private memory -> shadow: by_value the volatile ones, else the others */
void shadow_fill(ckpt *c, bool by_value);
/* all private memory -> shadow, before a restore that may leave parts alone */
void shadow_prepare(ckpt *c);
void shadow_drain(ckpt *c);  /* shadow -> private memory, after a restore */
int blobs_by_value(ckpt *c); /* -EINVAL: one is longer than its cap */
#endif
