/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - what a ckpt handle holds, for the files of ckpt/client.
 *
 * Two threads use a handle: the trainer's, and the helper, which watches the daemon, declares,
 * attaches again after its death and copies the process's own memory (copier.h). `rpc` serialises
 * requests and protects the fields with (rpc); its holder may wait for the daemon for long, so the
 * trainer's thread takes it with a deadline, and the helper goes on copying while it waits. `mem`
 * protects the fields with (mem), which the trainer's thread alone changes; it is held for a moment
 * only. The pages of a connection are reached through `link`, an atomic pointer that is replaced on
 * re-attaching and never freed before detach, so that a snapshot in progress needs no lock.
 */
#ifndef CKPT_CLIENT_HANDLE_H
#define CKPT_CLIENT_HANDLE_H
#include "ckpt/ckpt.h"
#include "ckpt/base/atomic.h"
#include "ckpt/base/log.h"
#include "ckpt/client/canary.h"
#include "ckpt/client/copier.h"
#include "ckpt/client/devices.h"
#include "ckpt/wire/shared.h"
#include "ckpt/wire/wire.h"
#include "ckpt/table/table.h"
#include "ema/spec.h"
#include <pthread.h>

/* bytes before a by-value blob: its length now (le64), zeros */
#define BLOB_HEAD 64u
#define REATTACH_MIN_NS (100 * NS_PER_MS)
#define REATTACH_MAX_NS (5 * NS_PER_S)
#ifndef REATTACH_OTHER_NS /* a test is less patient */
#define REATTACH_OTHER_NS \
	(60 * NS_PER_S) /* a daemon of another protocol does not change by itself */
#endif
#define ATTACH_BUSY_NS (3 * NS_PER_S)	/* an older process of this rank may still be dying */
#define RESTART_WAIT_NS (15 * NS_PER_S) /* ckpt.h says so */
#define RPC_NS (60 * NS_PER_S)		/* a daemon that does not answer for so long is given up */
/* the same for connecting, and the default of ckpt_opts.wait_ns: claiming a job on a slow file
 * system takes its time */
#define HELLO_NS (20 * NS_PER_S)
#define RESTORE_MAX_NS (3600 * NS_PER_S) /* reading a large checkpoint takes its time */
#define FINISH_MAX_NS (60 * NS_PER_S)

enum link_state { LINK_DOWN, LINK_UP, LINK_FENCED };

struct link {
	struct shared_job *job;
	struct shared_rank *rank;
	int bell;
	/* marks up to this one, of steps above that one, were left behind by a restore */
	_Atomic uint64_t left_mark, left_step;
	uint32_t failing_seen; /* changes that ckpt_snapshot has returned */
	/* (why_lock) [n % SHARED_SNAPS] is n: a guard has let snapshot n go by (c); it was counted
	 * as torn */
	uint64_t let_go[SHARED_SNAPS], torn[SHARED_SNAPS];
	/* the helper's: changes that it has logged */
	uint32_t failing_said, waits_said, drift_said;
	/* the helper's: the page of rank->done as a target of devices, and which one knows it */
	struct device_target done;
	struct device_handle *done_device;
	struct link *older;
};

struct seg {
	void *base;
	uint64_t bytes;
	int fd;
	bool given; /* by ckpt_alloc */
};

struct part_of { /* one local box of a tensor, or a blob */
	void *ptr;
	uint32_t seg;
	uint64_t off; /* in the segment */
	bool shadow;  /* copied by value: the daemon sees a copy at seg, off */
	bool own;     /* the process's own memory: the library alone reads and writes it */
	/* 0: host memory; 1 + the number of the device that has it. A shadow of it is own, too: it
	 * lies at off of the device's scratch */
	uint32_t device;
	uint32_t ndim;
	uint64_t bytes, span; /* bytes: dense; span: from the first to the last, by the strides */
	uint64_t *start, *extent; /* [ndim] */
	int64_t *stride;	  /* [ndim] elements */
	bool dense, boxed;	  /* row-major; start and extent were given */
};

/* All locals of a tensor. When it is moved or dropped, the next ckpt_seal frees this: until then
 * the helper may read it. */
struct part_block {
	struct part_block *retired; /* the next one that is not used any more */
	struct part_of part[];
};

struct declared {
	bool dropped;
	struct ckpt_tensor t; /* strings and arrays are the arena's */
	struct indexset share;
	uint32_t nlocal;
	struct part_block *block;
	struct part_of *local; /* [nlocal] in block */
};

/* One ckpt_average: declare_average.c's. */
struct average {
	char *name;
	struct ema_spec *spec;
	char *declared; /* the spec, canonical, with its seed */
	int seed_fd;	/* the directory of `seed=`; -1: none, or it cannot be opened */
	int seed_error; /* errno of that */
	bool advised;	/* the log has what is allowed and not advised */
};

/* One ckpt_attr: declare_attr.c's. */
struct attr {
	char *key, *value;
};

struct blob {
	char *name;
	bool per_rank;
	uint32_t media; /* enum ckpt_media */
	const void *ptr;
	const uint64_t *len;
	uint64_t cap, off;
	uint64_t now; /* *len as the snapshot that is being taken has read it */
};

/* When the next mark is to be written: due.c's. */
struct due {
	uint64_t marks;	   /* snapshots so far, each step once */
	uint64_t marked;   /* as shared_record.marked: from a restored step on */
	uint64_t newest;   /* 1 + step of the newest of them */
	uint64_t paid;	   /* marks at the newest one that was staged to be written */
	uint64_t again;	   /* one is owed from so many marks on; 0: none */
	uint32_t distance; /* in marks, between attempts to write; 0: the last one succeeded */
	struct due_step {
		uint64_t step, marks; /* 1 + step, 0: none; marks then */
		struct link *link;
		uint16_t ticket_seq;
		bool heir; /* it is written in the place of one that was asked for */
	} asked,
		staged; /* has a ticket to be written; was staged, to be watched until it is written */
	uint64_t seen;		     /* outcomes of the link when they were read */
	_Atomic uint64_t stage_only; /* 1 + the newest step that was marked so */
};

/* The newest snapshots: skips.c's. */
#define SKIPS_WINDOW 32u
struct skips {
	uint64_t n;
	uint8_t why[SKIPS_WINDOW]; /* 1 + enum wire_skip; 0: taken */
	struct link *link;	   /* whose page has all counters */
	_Atomic uint32_t now;	   /* as shared_rank.skipping */
	uint32_t said;		   /* helper: that was logged */
};

struct ckpt {
	struct ckpt *kept; /* the next one that could not be freed */
	char *job, *store;
	char socket[108];    /* "": the user's default, not found yet */
	bool socket_default; /* (rpc) it is looked for at each try */
	uint32_t rank, world, flags, slots, persist_every, guard; /* slots: 0: the daemon decides */
	_Atomic uint32_t nslot; /* as the newest SEALED said; before the first one `slots` */
	uint64_t generation, guard_ns, memory_max;
	uint64_t launch;	      /* as given to ckpt_attach; 0: that of the parent process */
	uint64_t token, run, restart; /* as wire_hello */
	bool generation_given;	      /* by the caller, not counted by the daemon */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
	void *agree_ctx;
	struct {
		bool on;
		uint32_t device; /* number of the CUDA device */
		void *comm;	 /* the caller's; NULL: one is made */
		uint64_t staging_bytes;
	} nccl; /* nccl_share.c's */
	struct log log;
	uint64_t wait_ns; /* for ckpt_attach and ckpt_steps */
	/* What rank 0 has yet to send as KEEP: rules as retain_lines_print writes them; "": nothing */
	char keep[RETAIN_TEXT_MAX];
	uint64_t restart_wait_ns;
	bool starts;	  /* it has just started one, which it will find on the socket (rpc) */
	pid_t own_daemon; /* a daemon that this handle has started; 0: none */
	uint64_t lost_ns; /* when a daemon that it did not start was lost; 0: none was (rpc) */
	uint32_t *alive;  /* a page that fork empties */

	_Atomic uint32_t rpc; /* futex: 1: taken */
	int store_fd;	      /* (rpc) -1: not opened yet */
	int sock;	      /* (rpc) -1: none */
	uint32_t seq;	      /* (rpc) */
	bool late;	      /* (rpc) the answer to seq is still to come, and is not needed */
	bool answered;	      /* (rpc) the newest request was, be it by a refusal */
	bool on_helper;	      /* (rpc) the helper has sent it, and does other work meanwhile */
	pid_t peer, closer;   /* (rpc) the daemon; which one closed at our last HELLO; 0: none */
	int said;	      /* (rpc) the newest error of attaching that the log has; 0: none */
	uint64_t base, back;  /* (rpc) as wire_hello */
	uint64_t dev, ino;    /* (rpc) of the job's directory, as the daemon's welcome said */
	struct slot {
		int fd;
		uint64_t bytes;
	} slot[WIRE_SLOTS_MAX]; /* (rpc) */
	/* What the slots hold, carried over a daemon's death: kept until this rank marks into the
	 * slot again or gets other memory for it (step is UINT64_MAX from then on) or declares
	 * anew. Other fields: (rpc). */
	struct held {
		_Atomic uint64_t step;
		uint64_t mark_ns, marked;
		uint32_t epoch, rev, flags;
		uint32_t turn, nwhole, whole[WIRE_WHOLE_MAX]; /* as wire_adopt */
	} held[WIRE_SLOTS_MAX];
	uint32_t nseg_sent; /* (rpc) */
	uint32_t accepted,
		accepted_rev; /* (rpc) the newest epoch that a daemon took, its newest rev */

	pthread_mutex_t mem;
	void *decl;
	uint64_t decl_bytes; /* (mem) the sealed declaration, encoded, of epoch */
	struct seg *seg;
	uint32_t *seg_by_base; /* [nseg] numbers of segments, the lowest address first */
	uint32_t nseg;	       /* (mem) */
	uint32_t refused_epoch, refused_rev; /* (mem) the daemon has refused this one, */
	struct ckpt_err refusal;	     /* (mem) for this reason */

	/* (mem) since which rev of the epoch pieces lie in slots where they lie now; and what it
	 * was when slots were handed to the daemon that is being attached to */
	uint32_t slots_rev, adopted_rev;
	bool adopting; /* (rpc) */

	_Atomic(struct link *) link;
	_Atomic uint32_t state; /* enum link_state */
	_Atomic uint32_t epoch; /* sealed; 0: none */
	_Atomic uint32_t rev;	/* of its newest declaration */
	/* What the daemon of `link` has taken: the rev first; epoch 0: none */
	_Atomic uint32_t declared, declared_rev;
	_Atomic uint32_t changed; /* futex: link, state or declared changed */

	pthread_t helper;
	bool helper_runs;
	int wake; /* eventfd: the helper is to look */
	_Atomic uint32_t stop;
	struct copier copier;
	struct devices devices;
	struct sources *sources; /* (mem) the newest declaration's */
	struct seeds *seeds;	 /* (mem) the newest declaration's; NULL: it has none */
	struct sealed *sealed;	 /* the helper's: of the newest SEALED; NULL */
	_Atomic uint32_t need;	 /* enum snap_need: the copiers of what it has */
	_Atomic uint32_t which;	 /* devices that copy of it: as shared_record.devices */
	uint32_t turns[2];	 /* of the newest snapshots: as shared_record.turn */

	/* the trainer's thread alone */
	struct arena arena;
	struct table meshes; /* only its meshes are used */
	struct declared *tensor;
	uint32_t ntensor, cap_tensor; /* cap: a power of two */
	struct keymap tensor_names;   /* also those that were dropped */
	struct part_block *retired;
	struct blob *blob;
	uint32_t nblob, cap_blob;
	struct keymap blob_names;
	struct average *average[TABLE_AVERAGES_MAX]; /* [naverage] in the order of their names */
	uint32_t naverage;
	struct attr *attr; /* [nattr] in the order of their keys */
	uint32_t nattr, cap_attr;
	/* What ckpt_snapshot copies by value, without the blobs: of the newest ckpt_seal */
	struct by_value {
		const struct part_of *part;
		uint32_t elem;
	} * by_value;
	uint32_t nby_value;
	/* moved: only where memory lies, and the capacity of this rank's own blobs, has changed
	 * since the seal;
	 * resized: such a capacity has. */
	bool dirty, moved, resized, sealed_once;
	uint32_t own; /* locals in the process's own memory */
	/* the next ckpt_seal declares anew, changed or not: so all ranks come to one epoch */
	bool redeclare;
	_Atomic bool snapped, restored; /* written here, read by the helper */
	_Atomic bool fresh;		/* ckpt_fresh was called here */
	_Atomic bool unrestored;	/* the newest ckpt_restore failed; why_lock has why */
	/* A ckpt_restore began to write into memory, and none has succeeded since. It ends with
	 * ckpt_fresh, too: a program that starts over has filled memory. */
	_Atomic bool undefined;
	_Atomic bool waits; /* in ckpt_seal or ckpt_restore */
	/* ckpt_snapshot has returned -EUCLEAN: the helper is to log why; it has */
	_Atomic bool unclean_say, unclean_said;
	/* the newest ckpt_snapshot: its result, and of CKPT_SKIPPED 1 + enum wire_skip */
	_Atomic int32_t marked;
	_Atomic uint32_t skipped_why;
	/* a snapshot found a blob too long, and none was taken since; the helper is to log
	 * it */
	_Atomic bool blob_long;
	_Atomic bool blob_say;
	_Atomic bool refuses;	  /* the newest ckpt_snapshot did; refuse_why says why */
	pthread_mutex_t why_lock; /* protects: */
	uint32_t agreements;	  /* as shared_rank.agreements; stored in the page under it, too */
	char unrestored_why[SHARED_TEXT];
	struct ckpt_err claim_why; /* of the newest claim that was refused; code 0: none was */
	char refuse_why[SHARED_TEXT];
	uint32_t shadow;    /* segment of copies; UINT32_MAX none */
	uint64_t last_step; /* 1 + newest that got a slot */
	/* the newest ticket that came to nothing or was marked by; its link, and 1 + its step */
	struct ticket spent;
	struct link *spent_link;
	uint64_t spent_step;
	_Atomic uint64_t
		jumped_to;	/* 1 + the newest step that was marked, if that was too far; 0 */
	struct link *snap_link; /* of the newest snapshot */
	struct due due;
	struct skips skips;
	struct every {
		uint64_t max_ns; /* of one wait: FINISH_MAX_NS; a test is less patient */
		bool on;	 /* an average that was sealed says `every` */
		/* a wait for this daemon was in vain, and since then no guard has found what it
		 * waits for; NULL: none */
		const struct link *late;
		bool waited;			 /* the present call has */
		bool last;			 /* no mark follows: the handle ends */
		_Atomic uint64_t waits, wait_ns; /* as ckpt_stats.average_waits */
	} every;				 /* mark.c's */
	bool left_out_said;			 /* helper */
	struct canary canary;
	uint64_t last_mark_ns, mean_interval_ns;
	uint64_t windowed_mark_ns;		/* the mark whose guard has been measured */
	uint64_t stall_ns_last, measured_since; /* for the rank page */
	uint64_t torn_reported;			/* mark: ckpt_guard said that it is torn */
	void *blobs;
	uint64_t blobs_bytes; /* of the restored step */
	uint64_t restored_step;

	/* as shared_job.last (LAST in shared.h): what ckpt_last has returned to this rank */
	_Atomic uint64_t last;
	/* counters, written by the trainer's thread (torn: under why_lock, also by the helper),
	 * read by ckpt_stats from any */
	_Atomic uint64_t taken, skipped[WIRE_SKIPS], torn, stall_ns_sum, stall_ns_max, unguarded,
		reattached, stall_log2_ns[40];
};

/* Was this snapshot left behind by a restore? */
static inline bool link_left(const struct link *l, uint64_t mark, uint64_t step)
{
	return mark <= atomic_load(&l->left_mark) && step > atomic_load(&l->left_step);
}
int client_alive(const ckpt *c); /* 0; -EINVAL: there is none; -ECHILD */
/* The same, with the sentence. */
int client_check(const ckpt *c, struct ckpt_err *err);
/* Take rpc; false: not by that moment (CLOCK_MONOTONIC). */
bool rpc_take(ckpt *c, uint64_t until);
void rpc_give(ckpt *c);
/* CLOCK_MONOTONIC so long from now; never before now */
uint64_t client_until(uint64_t ns);
/* Sends a request, with this descriptor (-1: none), and waits for its answer, under rpc. Returns
 * the answer's type, > 0; `in` has the message, ret_fd its descriptors. -ETIMEDOUT: no answer came
 * in time. After STEPS and LIST the connection then stays as it is, and the answer is dropped when
 * it comes; else the connection is ended, and so it is after -ECONNRESET and -EPROTO. Other errors
 * are the daemon's own. */
int rpc_ask(ckpt *c, void *msg, enum wire_type type, int fd, uint8_t in[WIRE_BYTES_MAX],
	    int ret_fd[WIRE_FDS_MAX], uint64_t wait_ns, struct ckpt_err *err);
/* The same of a request that has one type of answer, which is copied to *answer. answer and ret_fd
 * may be NULL. 0. */
int rpc_call(ckpt *c, void *msg, enum wire_type type, int fd, void *answer,
	     int ret_fd[WIRE_FDS_MAX], uint64_t wait_ns, struct ckpt_err *err);
/* What LISTED's memfd says, to fn (tensors.c): all of it is the daemon's, or another program's on
 * its socket, so everything is checked. verdicts: with the sections of WIRE_LIST_TRIED. only: this
 * component alone; NULL: all. -EPROTO: it contradicts itself. */
int list_each(const void *bytes, uint64_t len, bool verdicts, uint64_t step, const char *only,
	      ckpt_tensor_fn *fn, void *arg, struct ckpt_err *err);
int connect_first(ckpt *c, struct ckpt_err *err);
/* c->token, as ckpt_opts says. -ECONNRESET: agree has failed. */
int token_find(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err);
void drop_socket(ckpt *c); /* (rpc) */
int helper_start(ckpt *c, struct ckpt_err *err);
/* False: it does not end, because a device's driver hangs: what it uses must stay. */
bool helper_stop(ckpt *c);
void helper_wake(ckpt *c);
/* Was the newest snapshot refused for its step is too far from the one before? 0, or -EINVAL and
 * why */
int why_jump(const ckpt *c, struct ckpt_err *err);
int segment_new(ckpt *c, uint64_t bytes, uint32_t *ret_seg, struct ckpt_err *err); /* (mem) */
/* A daemon may still write into our memory, for an answer that we no longer wait for: what is there
 * goes into new segments, at the same addresses. */
int segments_renew(ckpt *c, struct ckpt_err *err);
bool beat_lost(const struct link *l, uint64_t now);
/* Has the daemon what ckpt_seal has encoded last? */
bool declared_now(const ckpt *c);
/* Has it to be known first that starting over is meant? Two loads. l: NULL without a daemon. */
bool client_unclean(const ckpt *c, const struct link *l);

/* A restore of all ranks has succeeded: steps begin anew. line: last_line before its request. */
uint32_t last_line(ckpt *c);
void last_anew(ckpt *c, uint32_t line);

void due_mark(ckpt *c, uint64_t step); /* first, at each mark, with a daemon or without */
/* Is the step that is marked now to be written by persist_every? */
bool due_now(ckpt *c, struct link *l);
/* Its ticket has a slot and says that it is to be written. */
void due_asked(ckpt *c, struct link *l, uint64_t step, uint16_t ticket_seq);

/* The state is about to be overwritten by a restore: the newest snapshot ends as by a guard that
 * waits for nothing, and no other is looked after any more. */
void mark_end(ckpt *c);
/* Steps that were marked are behind us: their numbers come again. marked: as in WIRE_RESTORED. */
void due_back(ckpt *c, uint64_t marked);

/* A snapshot was taken (why < 0), or skipped for that reason. l: may be NULL. */
void skips_count(ckpt *c, struct link *l, int why);
/* The counters go along to a new daemon's page, before the trainer sees it. */
void skips_carry(ckpt *c, struct link *l);
/* A copy has ended. If its guard let it go and it is torn, it is counted here (mark.c). Any
 * thread. */
void torn_behind(ckpt *c, struct link *l, const struct shared_snap *s, uint64_t mark);
/* The newest page has the rank's number of agreements (restoring.c). */
void agreements_carry(ckpt *c);
void skips_log(ckpt *c); /* helper: once for each change */

/* The tensor of this name that is declared and not dropped; NULL. The component has so many
 * bytes. */
const struct declared *named_find(const ckpt *c, const char *component, size_t bytes,
				  const char *name);
void declare_free(ckpt *c); /* at the end of the handle */
/* What is wrong with averages, all of it in one message: -EINVAL. Opens seeds, of which the
 * daemon judges whether they are needed, and logs what is not advised: nothing is locked. */
int declare_averages_check(ckpt *c, struct ckpt_err *err);
/* Those that were checked, as records of the table, and their seeds (mem). */
int declare_averages_add(ckpt *c, struct table *t, struct ckpt_err *err);
void declare_averages_free(ckpt *c);
/* Attributes as a section of the declaration, in memory of the arena; *ret_len 0: there is none. */
int declare_attrs_section(const ckpt *c, struct arena *a, const void **ret_bytes, uint64_t *ret_len,
			  struct ckpt_err *err);
void declare_attrs_free(ckpt *c);
/* Directories that a declaration needs. Immutable and counted. */
struct seeds {
	_Atomic uint32_t refs;
	uint32_t n;
	struct seed_dir {
		int fd; /* -1: it cannot be opened */
		struct wire_seed message;
	} at[];
};
struct seeds *seeds_ref(struct seeds *s); /* NULL is fine */
void seeds_unref(struct seeds *s);	  /* the same */
/* To the daemon, before the declaration that they belong to (rpc). */
int seeds_send(ckpt *c, struct seeds *s, struct ckpt_err *err);
/* table of all declarations -> c->decl (mem) */
int declare_encode(ckpt *c, struct ckpt_err *err);
/* The address that a part of own memory is copied from: of a shadow it is in the scratch. */
static inline uint64_t part_address(const ckpt *c, const struct part_of *p)
{
	return p->shadow ? c->devices.scratch[p->device - 1].at + p->off : (uintptr_t)p->ptr;
}
/* What the library copies of a part of own memory, or lands there. */
struct source_span span_copied(const ckpt *c, const struct part_of *p);
/* What is copied by value in host memory, without the blobs: to the shadow, or (out) from it. */
void shadow_copy(ckpt *c, bool out);
/* How long the blobs are now, read once for this snapshot. One that is longer than its capacity;
 * NULL. */
const struct blob *blobs_look(ckpt *c);
void blobs_by_value(ckpt *c); /* as long as they were then */
#endif
