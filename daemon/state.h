/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - the state of the daemon. It belongs to the thread in daemon_run, the owner, unless a
 * field says otherwise. "Worker" behind a function: tasks call it.
 *
 *	job       a directory of a store; outlives its launches
 *	launch    one incarnation of the job's ranks: a generation, a job page, its members
 *	member    a rank of a launch: session, rank page, segments, declaration, slots
 *	snap      one ticket that got a slot: the ranks' copies, and the outcome
 *
 * Memory that tasks use is reference-counted: segments (the client's memory), slots, declarations.
 * The states of a snap, and which of those that wait to be written is written: waiting.h.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H
#include "ckpt/base/thread.h"
#include "ckpt/wire/shared.h"
#include "ckpt/wire/wire.h"
#include "ckpt/engine/open.h"
#include "ckpt/move/move.h"
#include "formats/native/native.h"
#include "ckpt/plan/plan.h"
#include "ckpt/store/lineage.h"
#include "ckpt/store/label.h"
#include "ckpt/store/prune.h"
#include "ckpt/store/store_policy.h"
#include "ckpt/table/names.h"
#include "daemon/const_file.h"
#include "daemon/daemon.h"
#include "daemon/drift.h"
#include "daemon/turned.h"

#define COPY_THREADS_MAX 4
#define EXPIRE_NS (60 * NS_PER_S) /* a ticket that not all ranks took */
#define BEAT_NS (NS_PER_S / 2)
/* from a socket's end to the verdict: dead or only detached */
#define DEATH_NS (NS_PER_S)
#define KEEP_COMMITTED_NS (600 * NS_PER_S)
/* of one part after a failed write or sync, from memory to a new file */
#define REWRITES_MAX 2

/* --- tasks --- */
struct task;
typedef void task_fn(struct task *t);
struct task {
	task_fn *run;  /* in a worker */
	task_fn *done; /* in the owner's thread, when run has returned; frees the task */
	struct task *next;
};
struct worker {
	struct pool *pool;
	pthread_t thread;
	_Atomic uint64_t sign_ns; /* when its task began or last made progress; 0: it has none */
	struct chunk_queue
		*io; /* the thread's: a queue and buffers from one step to the next; NULL */
};
struct pool {
	struct queue queue;
	struct worker worker[COPY_THREADS_MAX];
	uint32_t nworker;
	struct daemon *d;
};
int pool_start(struct daemon *d, struct pool *p, const char *name, uint32_t n);
void pool_stop(struct pool *p);
/* The worker of the calling thread: one that runs a task or works for one; NULL: the owner. */
struct worker *worker_me(void);
/* The task makes progress: bytes were written, read or checked. NULL is fine. */
void worker_sign(struct worker *w);

/* --- devices: a task that touches a store may hang there. Each device has threads of its own, so a
 * frozen disk, or a server that does not answer, delays the tasks of its own jobs only --- */
#define DEVICES_MAX 32u /* of 7 threads each; further devices share one */
/* KEEP: long tasks without a waiter. In WRITE they would delay a step, in ASK a rank that attaches
 * or restores. */
enum lane { LANE_WRITE, LANE_ASK, LANE_KEEP, LANES };
struct device {
	struct daemon *d;
	uint64_t dev; /* st_dev */
	uint32_t refs;
	char name[64];		 /* "/dev/nvme0n1p2 (ext4)"; "": not known */
	struct pool lane[LANES]; /* threads start with the first task */
	_Atomic uint32_t writes; /* steps that are being written to it */
	struct device *next;
};
/* A reference to the device of the open directory fd; NULL: no memory. It touches no file
 * system. */
struct device *device_get(struct daemon *d, int fd);
void device_unref(struct device *v); /* the last one ends its threads; NULL is fine */
void device_task(struct device *v, enum lane lane, struct task *t, task_fn *run, task_fn *done);
/* since when its slowest task makes no progress; 0: less than a second */
uint64_t device_stuck_ns(const struct device *v, uint64_t now);
/* Device and inode of an open directory, without a request to the device. -ENOTDIR, ... */
int dir_look(int fd, uint64_t *ret_dev, uint64_t *ret_ino);

/* --- places: a directory that launches write to. If a job's name leads to another directory later,
 * that is another place; a launch keeps its own --- */
struct place {
	struct daemon *d;
	uint32_t refs; /* launches, jobs, tasks */
	struct store *store;
	struct device *device;
	uint64_t dev, ino;  /* 0: not known */
	bool away;	    /* a write found that its name does not lead to it */
	bool looking;	    /* a task checks whether it is back */
	uint64_t looked_ns; /* the last such check */
};
/* Takes the store. NULL: no memory, and the store is closed. */
struct place *place_new(struct daemon *d, struct store *s);
struct place *place_ref(struct place *p);
/* Do both hold the same directory? While they hold it, no other directory has its inode number. */
static inline bool place_same(const struct place *a, const struct place *b)
{
	return a == b || (a && b && a->ino && a->ino == b->ino && a->dev == b->dev);
}
void place_unref(struct place *p); /* NULL is fine */
struct job;
/* Checks the places of staged steps that are away. If one is back, its newest staged step is
 * written. */
void place_tick(struct job *j, uint64_t now);

/* --- memory --- */
/* To unmap many GiB takes seconds, and meanwhile the owner would send no beats. So a thread of its
 * own unmaps segments of RELEASE_BYTES and more. When it stops, it unmaps all that are left. */
#ifndef RELEASE_BYTES
#define RELEASE_BYTES (64 * MIB)
#endif
struct reaper {
	struct queue queue;
	pthread_t thread;
	bool runs;
};
int reaper_start(struct reaper *r);
void reaper_stop(struct reaper *r);
struct segment {
	_Atomic uint32_t refs;
	void *base;
	uint64_t bytes;
	struct reaper *reaper;
};
struct slotmem {
	_Atomic uint32_t refs;
	int fd;
	void *base;
	uint64_t bytes;
	uint64_t ino; /* the memfd's: a slot that came back with its rank is mapped twice */
	/* A task sets them; a launch that ends meanwhile reads them */
	_Atomic bool touched;
	_Atomic bool dirty; /* of another launch: the bytes between the pieces are not zero */
	struct reaper *reaper;
};
/*
 * A task that copies from or to the rank's memory holds a reference of decl_ref. The last of these
 * frees the rank's segments and all that only a copy needs. A holder of decl_slot_ref can still
 * find what the slot holds: a staged step of a launch that has ended keeps no memory but its slots.
 */
struct decl {
	_Atomic uint32_t refs;	/* all of them together have one of: */
	_Atomic uint32_t slots; /* decl_slot_ref */
	struct names *names;	/* of its tables: a reference */
	uint32_t epoch, rev, rank;
	/* The rank's tensors. Places are its segments, and behind them, if it is used, the
	 * process's own memory, to which the daemon has no access */
	struct table table;
	uint32_t own;	   /* that place; TABLE_NONE: none */
	struct table part; /* the copy in its slot: one place; no averages */
	/* A hash of the positions of its pieces and those of averages. Slots with equal sums have
	 * the same gaps */
	uint64_t slot_sum;
	uint64_t copy_bytes; /* of copy */
	/* The raw spaces of its parts, for decl_part: the main one's is at the beginning of the
	 * slot, the const one's at const_at, a multiple of 2 MiB. Both are empty where it has
	 * nothing that is const. */
	struct table main, constant;
	uint64_t const_at;
	/* What the library brings of replicas (drift.h); it may be empty */
	uint64_t replicas_at;
	/* NULL: it declares none. Their raw space is at average_at, a multiple of 2 MiB; the slot's
	 * last page, of its raw_bytes, is its seal (average.h) */
	struct averages *averages;
	uint64_t average_at;
	char *attributes; /* of rank 0: as wire/attributes.h; NULL: none */
	uint64_t attributes_bytes;
	uint32_t nattribute;
	struct plan copy;   /* table -> part, from the segments alone: what the daemon copies */
	uint64_t own_bytes; /* that the library copies */
	uint64_t raw_bytes;
	int rows_fd; /* of both, for the library: wire/wire.h; -1 none */
	uint32_t nrow;
	uint32_t nseg;
	struct drift_decl *drift; /* drift.c's */
	struct turns *turns;	  /* turned.c's; as long as the slot's description */
	struct segment **seg;	  /* [nseg] references held */
	const void **base;	  /* [table.nplace]; NULL: the process's own memory */
	/* Tensors in boxes on a mesh that has the rank, which `table` does not keep (boxes.c) */
	struct decl_boxes {
		uint32_t tensor, mesh; /* of table; of boxes_mesh */
		uint64_t sum;	       /* of the boxes */
	} * boxes;		       /* [nboxes] */
	uint32_t nboxes;
	struct decl_mesh {
		uint64_t sum;
		bool has_rank;
		char text[64];
	} * boxes_mesh;
};
void segment_unref(struct segment *s);
void slotmem_unref(struct slotmem *s);
void decl_unref(struct decl *d);
struct segment *segment_ref(struct segment *s);
struct slotmem *slotmem_ref(struct slotmem *s);
struct decl *decl_ref(struct decl *d);
/* A reference to the slot's description (part, main, constant, averages, attributes, raw_bytes),
 * not to table, copy and the segments. */
struct decl *decl_slot_ref(struct decl *d);
void decl_slot_unref(struct decl *d);
/* sized and mapped, not touched */
int slotmem_new(struct reaper *r, uint64_t bytes, struct slotmem **ret, struct ckpt_err *err);
/* takes fd */
int slotmem_adopt(struct reaper *r, int fd, uint64_t bytes, struct slotmem **ret,
		  struct ckpt_err *err);
int slotmem_touch(struct slotmem *s); /* worker */
/* Writes zeros between the pieces of a slot that holds other bytes there, and into blobs and its
 * seal. Worker. */
int slotmem_clean(struct slotmem *s, const struct decl *d);
/* Decode, check and plan a declaration. seg[]: the rank's segments by id, or NULL. Worker. */
int decl_make(const void *bytes, uint64_t len, uint32_t epoch, uint32_t rev, uint32_t rank,
	      struct segment *const *seg, uint32_t nseg, struct names *names, struct decl **ret,
	      struct ckpt_err *err);
/* Does a later rev of an epoch differ from the one before it only in the position of memory, in
 * strides, and in the capacity of blobs? 0, or -EINVAL with the first tensor or average that
 * differs otherwise. Worker. */
int decl_moves_only(const struct decl *old, const struct decl *now, struct ckpt_err *err);
/* The tensor that has this byte of the slot: "model/w". Returns buf. */
char *decl_name_at(const struct decl *d, uint64_t off, char *buf, size_t bytes);
/* Keeps the boxes and their meshes, before the table drops them. -ENOMEM. Worker. */
int boxes_note(struct decl *d);
/* --- what all ranks declare (whole.c). Workers --- */
/*
 * Does this declaration agree with those of the other ranks in its epoch? other[world]: NULL for a
 * rank without one. *a: the state of the call before, or NULL; the next call takes it. -EINVAL with
 * every contradiction.
 */
struct agreed;
int agree(struct agreed **a, struct decl *mine, struct decl *const *other, uint32_t world,
	  struct ckpt_err *err);
void agreed_free(struct agreed *a);
/* The parts of all ranks are counted by kind: number kind * world + rank. */
#define PART_KINDS 3u /* main, const, average */
static inline uint32_t part_kind(uint32_t i, uint32_t world)
{
	return i / world;
}
static inline uint32_t part_rank(uint32_t i, uint32_t world)
{
	return i % world;
}
static inline uint32_t part_number(uint32_t kind, uint32_t rank, uint32_t world)
{
	return kind * world + rank;
}
/* The tensors of all parts as one table: made once in an epoch, used by every commit. */
struct whole {
	_Atomic uint32_t refs;
	uint32_t epoch, world;
	struct table table;  /* no pieces, no places */
	struct names *names; /* its */
	/* [PART_KINDS * world], by part_kind and part_rank: where a part's tensors are in the
	 * table. NULL: there is no such part. Ranks that declare the same have one map; own: free
	 * it */
	uint32_t **map, *map_n;
	bool *own;
};
/* -EINVAL: their pieces do not cover every tensor once, or an average cannot be made; the sentence
 * lists all faults. */
int whole_make(struct decl *const *decl, uint32_t world, struct whole **ret, struct ckpt_err *err);
struct whole *whole_ref(struct whole *w);
void whole_unref(struct whole *w); /* NULL is fine */
/* Adds a line to the list for each tensor of which ranks of one mesh declare different boxes. all:
 * sealed, with the tensors of all of them. Worker. */
void boxes_compare(struct decl *const *decl, uint32_t n, const struct table *all,
		   struct ckpt_errlist *ret_list);
/* The rows of a plan, malloc'ed: all those from the place `own` (TABLE_NONE: there is none), and of
 * the others at most WIRE_ROWS_MAX. -ENOMEM; -E2BIG: those from `own` would be more than
 * ROWS_OWN_MAX: the sentence names the tensor that has the most. Worker. */
#define ROWS_OWN_MAX (1u << 24) /* 1 GiB of rows */
int rows_make(const struct plan *p, uint32_t own, const struct turns *turns, struct wire_row **ret,
	      uint32_t *ret_n, struct ckpt_err *err);
/* A number for the elements that this rank's pieces of a tensor are, wherever they lie. */
uint64_t boxes_sum(const struct table *t, uint32_t tensor);
/* Of the part of this kind (enum part_kind); NULL: the rank has no such part. */
const struct table *decl_part(const struct decl *d, uint32_t kind);
/* The slot's table, or that of a part which the rank has, with by-value blobs cut to the length
 * that the slot holds. raw: the slot. Names and sets are the declaration's, which outlives it.
 * averaged: as snap.averaged: the averages are in the table, too; without it they are none of the
 * step's. Their rows are those of no step; the table's own, to be filled in. */
int decl_slot_now(const struct decl *d, const void *raw, bool averaged, struct table *ret,
		  struct ckpt_err *err);
int decl_part_now(const struct decl *d, uint32_t kind, const void *raw, struct table *ret,
		  struct ckpt_err *err);
/* At most, of the files of its parts: all, or those that each step writes. */
uint64_t decl_bytes_max(const struct decl *d, bool with_const);
/* Where the raw space of that part lies in the slot. */
const void *decl_part_raw(const struct decl *d, uint32_t kind, const void *raw);

/* --- sessions --- */
enum session_state {
	SESSION_NEW,
	SESSION_WAITING,
	SESSION_ATTACHED,
	SESSION_CONTROL, /* of no rank: commands.c */
	SESSION_GONE
};
/* A DRAIN that is not answered yet. */
struct draining {
	uint64_t number; /* of the order; 0: there is none */
	bool to;	 /* WIRE_TO: only what it writes itself counts */
	uint32_t seq, written, failed;
	int code;
	char text[2048];
};
/* A directory that `seed=` of an average names (WIRE_SEED). */
struct seed {
	uint32_t average;
	int fd, error; /* fd -1: the rank could not open it: errno */
	char path[WIRE_PATH_BYTES];
	struct seed *next;
};
struct session {
	struct daemon *d;
	int sock, pidfd;
	pid_t pid;
	uid_t uid;
	enum session_state state;
	/* a task works for it: the owner neither reads its socket nor frees it */
	bool busy;
	bool closed; /* end of file seen */
	bool said_bye;
	bool claims; /* CLAIM is not answered yet */
	uint64_t closed_ns;
	struct wire_hello hello;
	int root_fd;
	struct seed
		*seeds; /* of SEED, for the next declaration; they are closed with the session */
	uint32_t seq;	/* of the request being answered */
	struct launch *launch;
	struct member *member;
	bool control;
	uint64_t asked_ns;	   /* CONTROL: the newest request */
	struct draining *draining; /* CONTROL; NULL before the first DRAIN */
	struct session *next;
};
/* Connections of one user with another protocol. The log counts them, one line a second. */
struct garbage {
	uint64_t said_ns;
	uint32_t untold;
	pid_t pid;    /* the newest */
	uint16_t abi; /* its, if it has one; 0 */
};
void session_accept(struct daemon *d);
void session_readable(struct session *s);
void session_end(struct session *s); /* the peer has closed, or must be disconnected */
void session_tick(struct session *s, uint64_t now);
void garbage_tick(struct daemon *d, uint64_t now);
/* A task begins to work for the session, and has ended. */
void session_busy(struct session *s);
void session_unbusy(struct session *s);
/* Is the process of this rank dead, or has it reported that it is done? Then no thread and no
 * device of it writes to its slots. A slot may be used again only if this is so, or if `copying` of
 * its page does not name it. */
bool member_dead(const struct member *m);
void session_reply(struct session *s, void *msg, enum wire_type type, const int *fd, int nfd);
void session_ok(struct session *s);
void session_refuse(struct session *s, int code, const char *text);

/* --- jobs and launches --- */
#define PAST_MAX 64 /* outcomes of steps, for later requests */
struct tally {
	uint64_t skipped_by[WIRE_SKIPS]; /* of launches that another one has replaced */
	uint64_t taken, torn, staged, persisted, committed, failed, thinned;
	uint64_t last_committed, last_committed_wall_ns, last_commit_ns; /* as wire_report_job */
	uint64_t newest;
	uint64_t error_wall_ns, error_step;
	char error[512];
};
/* Of the file system that a store lies on. */
struct space {
	bool known;
	uint64_t free_bytes, looked_ns;
	uint64_t need_bytes; /* of the next step; 0: not known */
};
/*
 * A rank's const part in the newest step of the launch that has it, to be linked by the next one: a
 * file that this launch has synced itself. Of the task that writes.
 */
struct const_part {
	bool set;
	/* If one of these values changes, the part may be outdated or damaged, and the next step
	 * writes it again. */
	struct const_state {
		uint32_t rev;	  /* as snap.const_rev */
		uint32_t damages; /* as daemon.damages */
		uint64_t bad;	  /* sum over the job's bad labels */
	} state;
	char dir[STORE_DIR_MAX]; /* of that step */
	struct store_part_id id;
	struct native_part part; /* name: in that step */
	struct table table;	 /* with fingerprints; part.table */
	struct decl *decl;	 /* decl_slot_ref: that of its names and sets */
	/* Its content, to be compared with later slots (constant.c) */
	struct const_chunk { /* [nchunk], one per raw MiB */
		struct hash128 sum;
		uint32_t raw_len;
		uint64_t right; /* the step whose slot had these bytes last */
	} * chunk;
	uint64_t nchunk, next; /* next: the one that is compared next */
	struct const_word {
		uint64_t off, was; /* in the raw space */
		uint32_t piece, len;
	} * word;
	uint32_t nword;
	uint64_t words_right;	/* as right */
	struct const_file file; /* what is read of the file itself, and how many steps have it */
	struct const_lost lost; /* the steps of the one before, if that was found damaged */
};

/* Of averages: steps. */
struct average_tally {
	uint64_t averaged; /* with averages, whether these took the step in or not */
	/* of these: some row did not take the step in, by enum wire_gate */
	uint64_t gated[4];
	uint64_t given_up; /* without averages, because the next marks needed the slots */
	uint64_t left_out; /* marked, and averages went on without them */
};

#define REFUSALS_MAX 16u
struct job {
	struct daemon *d;
	uint64_t id;
	/* A write failed; code 0: none does. job_failing sets it. */
	struct failing {
		int code;
		uint64_t wall_ns; /* since when */
		char text[512];
	} failing;
	struct tally tally;
	struct average_tally average;
	struct wire_report_step past[PAST_MAX], skipped[PAST_MAX]; /* rings */
	uint32_t npast, nskipped;				   /* so far */
	uint64_t triggers;					   /* orders so far */
	uint32_t trigger,
		trigger_last; /* ticket flags of the one that waits (0: none), of the newest */
	uint64_t dev, ino;
	char name[CKPT_JOB_MAX + 8];
	struct place *place;   /* that of the newest claim; NULL before the first */
	struct device *device; /* of that, or of the root while the first is made; NULL: none was */
	struct rescue *rescue; /* a DRAIN to another directory; NULL: there is none */
	bool claiming;
	struct launch *launch; /* the newest; NULL before the first */
	uint64_t run, restart; /* of the newest launch before that, which had marked */
	/* This is not the job itself, but a launch that attached beside its holder (holder.h), and
	 * what the launch's first HELLO said */
	struct job *beside;
	uint64_t launched_by, token;
	struct snap *snaps;	 /* of all launches, newest first */
	struct snap *writing;	 /* at most one at a time */
	struct passing *passing; /* a walk that writes nothing; NULL */
	struct snap *before;	 /* pinned for the passes of the step behind it; NULL: none */
	bool writing_walked; /* what passes want of `writing` is made: another walk may go beside it */
	/* A step waits only for its guard before it is walked: job_tick checks it often */
	bool awaits_guard;
	uint64_t passed_at; /* staged_at of the newest step that passes have seen */
	uint64_t idle_since;
	bool slow_disk;	 /* launch_wrote: its launches have a third slot from the beginning */
	bool given_back; /* by FORGET, while a task still held it: freed as soon as none does */
	/* found damaged since the newest claim: restores of this place skip them */
	struct bad {
		uint64_t step, generation; /* generation: of one in memory */
		uint32_t where;		   /* as in struct pin */
		bool lacks; /* it is good, and lacks what CKPT_PEEK asks for: not reported */
		char why[200];
	} * bad;
	uint32_t nbad;
	struct space space;
	struct store_policy policy; /* of `place`, as a task has read it last (keep.c) */
	bool policy_known;
	uint64_t policy_ns;   /* when it was read */
	struct spare *spares; /* slots of its launches that have ended (spare.c) */
	uint32_t keeping;     /* tasks of keep.c: the job is not freed */
	/* again: a step was committed since the one that runs began */
	bool pruning, prune_again;
	/* Since this ckptd has read a step back: when, and how many steps were committed (keep.c) */
	uint64_t verified_ns, unverified;
	struct job *next;
};

/* bytes_held: mem became the slot */
struct adopt {
	struct slotmem *mem;
	uint64_t step, mark_ns, marked;
	uint32_t epoch, rev, flags;
	uint32_t turn, nwhole, whole[WIRE_WHOLE_MAX]; /* as wire_adopt */
	bool bytes_held;
};
/* The two windows of a rank's ckpt_restore (land.c). */
struct landing {
	int fd[2];	   /* -1: none yet */
	uint8_t *map[2];   /* of `bytes`, rows first */
	uint64_t bytes;	   /* 0: not made yet */
	uint32_t rows_max; /* that there is space for */
	uint32_t round;	   /* of the newest LANDED */
	bool sent;	   /* the descriptors */
	bool out;	   /* that LANDED is not answered: the window is the library's */
	uint32_t out_window;
	uint64_t out_ns; /* since then */
	int code;	 /* the error of LAND; 0: none */
};
struct member {
	uint32_t rank;
	uid_t uid; /* user of its process */
	pid_t pid;
	struct session *session;
	bool attached, lost, left; /* ever; died; detached by itself */
	bool over;    /* its process is dead, or has reported that it is done: see member_dead */
	bool touched; /* the slots of decl are in memory */
	uint64_t touch_again_ns; /* there was no memory: when to try again; 0 never */
	struct shared_rank *page;
	int page_fd;
	int pidfd; /* of a process that lived when its session ended; -1 */
	uint32_t nseg;
	struct segment **seg; /* [nseg] by id */
	uint64_t seg_bytes;   /* of all of them */
	struct decl *decl;
	struct slotmem *slot[WIRE_SLOTS_MAX];
	struct adopt adopt[WIRE_SLOTS_MAX];
	uint64_t marks_seen;
	uint64_t passed; /* passed_step of its page when it declared last */
	uint32_t round;	 /* restores finished */
	bool asked;	 /* waits in the present round */
	struct wire_restore want;
	uint64_t asked_ns;
	struct landing *landing; /* NULL: nothing of its own memory is restored */
	struct ckpt_err *owed;	 /* of a failed restore: the reply to its LAND */
};

enum launch_state { LAUNCH_FORMING, LAUNCH_READY, LAUNCH_ENDED };
#define ROUNDS_MAX 64
struct launch {
	struct job *job;
	struct place *place; /* where it commits, as long as it lives */
	uint32_t refs;
	/* base: 1 + the step on disk from which its line goes on, as it has restored; 0: none */
	uint64_t generation, base;
	uint64_t launched_by, token, run, restart; /* launch, token, ... of wire_hello */
	/* See holder.h. marked: besides what its pages say; takeover: it may end a launch that has
	 * marked; claims: it is about to; refused: a newer step was there */
	bool unclaimed, marked, takeover, claims, refused;
	uint64_t back;		   /* as wire_restored */
	struct retain_policy keep; /* KEEP came before it had a claim; all zero: none came */
	bool awaits;		   /* all ranks wait in ckpt_restore for copies to end */
	_Atomic uint64_t line; /* 1 + the newest step that it committed; 0: none. The io threads' */
	_Atomic uint64_t seq; /* the highest of those that it committed or found when it restored */
	struct lineage_known known;		 /* the task's that commits */
	uint32_t world, epoch, nattached, nlost; /* nlost: have ended, or detached */
	uint32_t ndied;				 /* of these: ended, and had not detached */
	uint64_t died_wall_ns;			 /* the last of them */
	uint32_t slots, nslot; /* slots: as its ranks ask; 0: ckptd decides on nslot */
	/* Of slots 0, in the epoch slots_epoch: is the third one to be had? Ranks have it mapped
	 * by then, and it takes no memory before that is decided for all of them alike. ASKED,
	 * TOUCHED: it is the last of nslot. LATER: it is the one behind nslot, and is taken when
	 * writing proves to be slow; GROWING: it is being taken. */
	enum { THIRD_SETTLED, THIRD_ASKED, THIRD_TOUCHED, THIRD_LATER, THIRD_GROWING } third;
	/* Of the steps that were marked to be written: when the newest one was, and how long after
	 * the one before it; 0: not known. slow: how many in a row took more than a twentieth of
	 * that to be written */
	uint64_t due_ns, persist_ns;
	uint32_t slow;
	uint32_t slots_epoch;
	enum launch_state state;
	bool again; /* an earlier daemon served it: there may be commits of it that are unknown here */
	bool averaged; /* a step of it has had averages, or may have had, under another daemon */
	bool restoring, covering;
	struct restore *filling; /* whose windows are filled; NULL */
	uint32_t covered_epoch;	 /* its declarations were found to cover every tensor */
	struct whole *whole;	 /* of the newest epoch that was; NULL: there was none */
	struct names *names; /* of what is declared in the epoch names_epoch; NULL: nothing was */
	uint32_t names_epoch;
	/* Declarations are compared with the others one after the other. agreed: NULL meanwhile */
	struct agreed *agreed;
	bool agreeing;
	struct declare *waiting; /* for their turn, oldest first */
	struct pin {
		bool set;
		uint64_t want_step;
		uint32_t want_flags;
		bool none;
		uint64_t step, seq; /* seq: the highest on disk then */
		uint32_t where;	    /* 1: memory, 2: disk */
		char dir[STORE_DIR_MAX];
		uint8_t id[16];	  /* of the step in it */
		uint32_t npassed; /* newer ones, which were passed over */
		char passed[512]; /* as ckpt_got */
	} pin[ROUNDS_MAX];
	/* A round that goes back over damaged steps: how many it has tried, how many of them had
	 * been removed; what is on disk; the wanted tensors that a tried step may have been written
	 * into. */
	struct retreat {
		bool mend; /* the pinned step was damaged: its const tensors may be another's (mend.h) */
		uint32_t tried, removed, nstep, nbegun, nlack;
		struct store_step *step;
		bool *begun;
		struct bad *lack; /* [nlack] of CKPT_PEEK */
	} retreat;
	int peek_fd; /* the step that CKPT_PEEK has chosen, locked against removal; -1 */
	/* What did not match in the newest restore that compared a step with the declarations: the
	 * memfd of LISTED */
	struct listed {
		bool set;
		int fd;
		uint32_t where;
		uint64_t step, bytes;
	} tried;
	uint64_t forming_ns; /* since when a rank waits for the others to seal; 0: none does */
	uint64_t waits_ns;   /* when waits_said was logged; 0: not in this wait */
	char waits_said[SHARED_TEXT];
	/* The step on disk that it restored, locked against removal until it has committed a step
	 * of its own: until then the job goes back to this one. -1: none */
	int step_fd;
	struct shared_job *page;
	int page_fd, bell;
	struct drift *drift;	     /* NULL: nothing to report */
	struct averages_from *from;  /* average_base.c's; NULL: nothing is known or needed */
	struct member *member;	     /* [world] */
	struct const_part *constant; /* [world] */
	uint32_t const_rev;	     /* one more before and after each restore into its memory */
	uint16_t ticket_seen;
	/* Bit i: slot i of a rank also holds a step of an older launch. The gate gets it when that
	 * step is released (spare.c). */
	uint32_t lent;
	uint32_t skipping;   /* as shared_rank.skipping: the log has it */
	uint32_t const_said; /* the same of const tensors that have changed */
	/* Hashes of the reasons for refused links that were logged. The io threads' */
	uint64_t refusal[REFUSALS_MAX];
	uint32_t nrefusal;
	bool cached_said; /* that shared files are read through the page cache. The same */
	uint32_t
		derived_said; /* 1 + the epoch whose unequal derived tensors the log has; 0: none */
};

#define CONST_REV_NONE UINT32_MAX
enum snap_phase { PHASE_COLLECTING, PHASE_STAGED, PHASE_QUEUED, PHASE_WRITING };
struct snap_rank {
	/* QUEUED: it has marked, and a task of ours, its own copier, or both, still copy */
	enum { COPY_NONE, COPY_QUEUED, COPY_DONE, COPY_TORN } copy;
	bool task, not_copied;	  /* not_copied: as RECORD_NOT_COPIED */
	bool summed;		  /* what the library has brought of replicas is in drift */
	uint64_t mark;		  /* 0: taken over from an earlier daemon */
	uint64_t unguarded;	  /* of its record */
	struct drift_sums *drift; /* NULL: none, or taken */
	struct decl *decl;
	struct slotmem *mem;
	struct slot_sums *sums; /* reference; NULL: no walk has made any (passes.h) */
	struct turned *turned;	/* reference; NULL: all of it was copied (turned.h) */
};
struct snap {
	struct launch *launch; /* reference */
	struct job *job;
	uint64_t step;
	bool step_known, dropped, committed;
	_Atomic bool left; /* the launch went back to an older step: its outcome is not reported */
	uint64_t base, back; /* of the launch when it was marked */
	uint64_t marked;     /* as rank 0's record says */
	bool changed, unfit; /* never to be written: its state was changed; or it was not guarded */
	bool told;	     /* it was reported as staged */
	bool by_hand;	     /* RECORD_BY_HAND of any rank */
	bool no_average;     /* CKPT_NO_EMA of any rank */
	bool averaged;	     /* its slots hold all averages of this step */
	bool average_late;   /* it has given up its averages */
	struct average_result
		*average; /* reference: the result of averaging; NULL until averaged */
	char why[1280];	  /* unfit */
	uint16_t ticket_seq;
	uint32_t slot, flags, epoch, world;
	uint32_t drift_turn; /* DRIFT_NO_TURN: none, or given back */
	enum snap_phase phase;
	/* copies, a rescue and a walk in flight: the slot is not given back before they end */
	uint32_t tasks;
	uint32_t pins;	  /* by a pass of the step that follows it (passes.c): the same */
	bool pass_failed; /* its averages could not be made: it is walked again only to be written */
	/* rescue: it is written to another directory, now or later. rescued: it is there */
	bool rescue, rescued;
	bool durable;	   /* WRITING: its parts are durable; MANIFEST is not there yet */
	uint64_t trigger;  /* the order that it fulfils; 0: none */
	uint64_t drain;	   /* the first DRAIN that waits for it; 0: none */
	uint64_t write_ns; /* since when it is being written */
	/* Raw bytes: to be written; written so far; in parts of older steps that it links. The
	 * worker's */
	_Atomic uint64_t total, written, linked;
	/* launch.const_rev when it was marked; CONST_REV_NONE: not known, as it was taken over */
	uint32_t const_rev;
	uint64_t born_ns, mark_ns, phase_ns[3], committed_at, staged_at;
	struct ckpt_note note[SHARED_NOTES];
	char note_key[SHARED_NOTES][48];
	uint32_t nnote;
	struct whole *whole;	/* of its epoch: reference; NULL: every commit makes it anew */
	struct snap_rank *rank; /* [world] */
	struct snap *next;
};

void hello_try(struct session *s);     /* join or begin a launch */
void sessions_retry(struct daemon *d); /* of those that wait for a claim to end */
/* The launch, which had none, has the claim of j now. */
void launch_claimed(struct launch *l, struct job *j, uint64_t generation);
void launch_declare(struct session *s, const struct wire_declare *m, int fd);
/* Ranks have come with a step of an earlier daemon, which is staged when all have declared. */
bool launch_brings(const struct launch *l);
void launch_ring(struct launch *l); /* after the doorbell, or by the clock: reads every page */
void launch_tick(struct launch *l, uint64_t now);
void launch_member_gone(struct launch *l, struct member *m, bool dead);
/* not for good: the same launch comes back to a new beginning */
void launch_fence(struct launch *l, bool for_good);
void launch_unref(struct launch *l);
/* A step was committed, and it took so long to write it. */
void launch_wrote(struct launch *l, uint64_t took_ns);
uint32_t launch_attached(const struct launch *l); /* ranks; NULL: 0 */
void launch_let_go(struct launch *l);		  /* of step_fd */
/* rc: could the seeds of that epoch's averages be used (average.h)? */
void launch_seeds_checked(struct launch *l, uint32_t epoch, int rc, const char *text);
/* By enum wire_skip: of the rank that has skipped the most, NULL launch: zeros. Added to ret. */
void launch_skips(const struct launch *l, uint64_t ret[WIRE_SKIPS]);
void job_tick(struct job *j, uint64_t now);
bool job_idle(const struct job *j); /* no step to write, no rank attached */
/* release what need not be kept, give free slots back, start what is due */
void job_settle(struct job *j);
void job_drain(struct job *j);
/* no rank attached and no step held for a long time */
bool job_forgotten(struct job *j, uint64_t now);
void job_free(struct job *j);
/* Reports the outcome of a step to the ranks, and keeps it for later requests. */
void snap_tell(struct snap *s, enum outcome_state outcome, int code, const char *text);
/* The same: s, which was staged, is not written, but heir in its place. */
void snap_thinned(struct snap *s, const struct snap *heir);
/* A line of the log: "OF: job NAME" and the text; of a snap "OF: job NAME step N". */
void job_log(const struct job *j, int level, const char *of, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#define snap_log(s, level, of, fmt, ...) \
	job_log((s)->job, level, of, " step %" PRIu64 fmt, (s)->step, ##__VA_ARGS__)
/* The same for each line of a text; `before` stands in front of it. */
void job_log_lines(const struct job *j, int level, const char *of, const char *before,
		   const char *text);
/* the newest trouble of the job; step: 1 + step, 0: of none */
void job_error(struct job *j, uint64_t step, const char *text);
/* The newest staged step is written, whatever its marks said, and so are the steps that were marked
 * to be. */
void job_flush(struct job *j, uint64_t drain);
/* The same to another directory (rescue.c); copy: the newest staged one of the newest launch alone,
 * or, where there is none, what is marked. How many steps. */
uint32_t job_rescue(struct job *j, bool copy, bool take);
/* The newest staged step of a place is written again. */
void job_write_again(struct job *j, struct place *p);
/* The newest launch's steps cannot be written now (code, text), or can again (0, NULL). status and
 * the ranks report it. */
void job_failing(struct job *j, int code, const char *text);
/* the next mark is to be written */
void job_trigger(struct job *j, uint32_t ticket_flags);
/* torn, failed or dropped */
void snap_fail(struct snap *s, enum outcome_state outcome, int code, const char *text);
void snap_release(struct snap *s);
/* Rank r's copy was compared (turned.h). why: it is not to be staged; "": it may be. May free s. */
void snap_compared(struct snap *s, uint32_t r, const char *why);
/* no further tickets: what is free is taken out of the gate */
void gate_close(struct launch *l);
/* May the launch's slots be handed out at all? */
bool launch_gate_open(const struct launch *l);
void snap_adopt(struct launch *l, uint32_t slot, uint64_t step, uint32_t flags, uint64_t mark_ns);
/* Nothing of the daemon uses the slot any more. It goes back to the gate, now or as soon as no
 * rank's own copier writes to it. */
void slot_give(struct launch *l, uint32_t slot);
struct snap *snap_in_slot(const struct launch *l, uint32_t slot); /* of the present epoch; NULL */
/* Would the next mark find one? */
bool slot_is_free(const struct launch *l);
/* The newest staged step of a place; NULL: of the newest launch's. */
struct snap *newest_staged(const struct job *j, const struct place *p);
void snap_member_gone(struct launch *l, struct member *m, bool dead);
/* no member is left: staged steps are written */
void snap_salvage(struct launch *l);
void snap_written(struct snap *s, int rc, const char *text);

/* 1: no rank's memory changed while it was copied; 0: not known yet; -1: the memory of one may have
 * changed, which stays so */
int snap_guarded(struct snap *s);

/* It is guarded: it is walked, and written behind the walk. */
void persist_start(struct snap *s);
/* Write it to another place too; rescue_written gets the result. */
void persist_rescue(struct snap *s, struct place *to);

/* --- const parts: are the slot's bytes still those that were written? (constant.c) --- */
/* raw: that of the part, as it was just written for this step; c has its table and the chunks'
 * sums.
 * -ENOMEM: it cannot be compared later, so it must not be linked. */
int const_part_take(struct const_part *c, const void *raw, uint64_t step);
/* Compares some bytes of a later step. TABLE_NONE: they are the same; else a tensor of c->table
 * that differs, and in *ret_right the last step in which those bytes were right. */
uint32_t const_part_changed(struct const_part *c, const void *raw, uint64_t step,
			    uint64_t *ret_right);
void const_part_free(struct const_part *c);
/* A link of this part was refused: is the reason new for the launch? */
bool const_refusal_new(struct launch *l, const char *part, const struct ckpt_err *err);

void restore_ask(struct session *s, const struct wire_restore *m);
void restore_land(struct session *s, const struct wire_land *m);
void landing_free(struct landing *k); /* NULL is fine */
void restore_try(struct launch *l);
void restore_tick(struct launch *l, uint64_t now);
void restore_steps(struct session *s);
/* --- going back after snapshots (back.c) --- */
bool back_marked(const struct launch *l);
/* Do all its ranks wait in ckpt_restore, and has every copy ended? If not, restore_try comes
 * again. */
bool back_ready(struct launch *l);
/* Its ranks have restored this step, and seq is the highest number on disk. staged: the step is the
 * launch's, in memory and not committed. */
void back_go(struct launch *l, uint64_t step, uint64_t seq, bool staged);
bool job_bad(const struct job *j, uint64_t step, uint32_t where);
/* Which step would this restore take now? It pins, marks and keeps nothing. ret_mem: the step in
 * memory; the caller holds its slots until it has read them; NULL: none. Returns NULL: no
 * memory. */
struct restore;
struct restore *restore_look(struct launch *l, const struct wire_restore *want,
			     const struct snap **ret_mem);
/* Worker. -ENOENT: there is none; other errors as of ckpt_restore. fd: the step's directory, if it
 * is on disk; *ret and fd are valid until the next choice. */
int restore_look_choose(struct restore *x, const struct pin **ret, int *ret_fd,
			struct ckpt_err *err);
/* Worker. The chosen step cannot be read for this reason: may another one be chosen? */
bool restore_look_pass(struct restore *x, const struct ckpt_err *why);
void restore_free(struct restore *x);
void retreat_free(struct retreat *r); /* The round is over. */
/* The launch may begin: it has restored, there are no steps (START_CLEAR), or a rank called
 * ckpt_fresh (START_FRESH). */
void launch_start(struct launch *l, enum shared_start start);

/* --- what a step holds, what a restore did not match (list.c) --- */
void list_ask(struct session *s, const struct wire_list *m);
/* The mismatches that plan_make found: zero-initialised, freed by list_notes_free. */
struct list_notes {
	uint32_t n, cap;
	struct list_note {
		uint32_t tensor;
		char *text; /* NULL: missing */
	} * note;
	bool failed; /* there was no memory to */
};
void list_differs(void *notes, uint32_t dst_tensor, const char *text); /* plan_opts.differs */
void list_notes_free(struct list_notes *n);
/* Makes the memfd with the names of missing, mismatched and unused tensors. Worker. If ret is not
 * set, there was no memory. */
void list_unmatched(const struct list_notes *n, const struct table *src, const struct table *dst,
		    const char *only, struct listed *ret);
void listed_free(struct listed *x);
/* Does a restore of this component (NULL: all) concern the tensor? */
bool list_asked(const struct table_tensor *x, const char *only);

/* --- waiting for ranks (waits.c) --- */
/* Ranks that wait for other ranks for some seconds: to the log, and through the job page to the
 * libraries. */
void waits_tick(struct launch *l, uint64_t now);

/* --- slots of a launch that has ended, for the next one (spare.c) --- */
#define SPARE_NS (60 * NS_PER_S) /* that a launch which follows may take */
/* The launch ends: keeps the slots of its members before they are released. */
void spares_keep(struct launch *l);
/*
 * A slot for this declaration of the member: a reference, or NULL. held: one that still holds a
 * step of an older launch, with pieces in the same places.
 */
struct slotmem *spare_take(const struct launch *l, const struct member *m, const struct decl *d,
			   bool held);
/*
 * May l have this memory, which the rank brings along without a step? Not if this very daemon has a
 * step of an older launch in it, with pieces in other places: that cannot be cleaned.
 */
bool spare_brought(const struct launch *l, uint32_t rank, struct slotmem *mem,
		   const struct decl *d);
void spares_drop(struct job *j, uint32_t rank); /* TABLE_NONE: of every rank */
void spares_tick(struct job *j, uint64_t now);
/* Bits: which of these slots of a rank of l still hold a step of an older launch? */
uint32_t slots_lent(const struct launch *l, struct slotmem *const *slot);
/* Where a rank that has these slots so far is to have one that holds such a step, if `lent` are
 * those of the other ranks: with one of them, or else the last one; TABLE_NONE: not the only one
 * that is free on all ranks. */
uint32_t spare_at(const struct launch *l, uint32_t lent, struct slotmem *const *slot);
/* Finds the slots of the launch that still hold a step of an older one, and gives the others to the
 * gate. */
void launch_lent(struct launch *l);

/* --- rescue: DRAIN with WIRE_TO --- */
/* Writes the job's steps to DIR/JOB; number: of the DRAIN. Takes dir_fd. */
int rescue_start(struct job *j, int dir_fd, uint64_t number, bool copy, struct ckpt_err *err);
void rescue_next(struct job *j);
void rescue_written(struct snap *s, int rc, const char *text);
void rescue_lost(struct snap *s, int rc, const char *text); /* it ends unwritten */
void rescue_free(struct job *j);
bool rescue_has(const struct job *j, uint64_t number);

/* --- keeping --- */
/* "149 GiB": 32 bytes. Returns buf. */
const char *keep_human(uint64_t bytes, char *buf);
#define KEEP_SPARE (2 * MIB) /* MANIFEST, directories, claims: beside the parts of a step */
/* Logs the kind of file system that the store is on. Worker. */
void keep_describe(struct daemon *d, const struct store *s);
void keep_tick(struct job *j, uint64_t now);
/* A step was committed in the job's place: removes the steps that the policy does not keep. The
 * policy is that of the job (store/store_policy.h), or, if it has none, that of this ckptd. */
void keep_committed(struct job *j);
/* The launch has another place: nothing is known of its policy. */
void keep_forget(struct job *j);
/* KEEP of a rank: sets the job's policy, and answers. */
void keep_set(struct session *s, const struct wire_keep *m);
/* The launch has a claim now: what it has asked for before is set. */
void keep_claimed(struct launch *l);
void keep_put(const struct job *j, struct wire_report_job *to);
/* Is there space for so many bytes? If not, and if there is a policy, it removes steps; else
 * -ENOSPC and a sentence. It writes nothing. Worker. */
int keep_space(struct daemon *d, struct store *s, uint64_t step, uint64_t bytes,
	       struct ckpt_err *err);
/* Adds to the sentence of a step that does not fit: how many bytes are set aside, and what removes
 * them. Worker. */
void keep_advise(struct store *s, struct ckpt_err *err);
/* If there is a policy: reads the newest step back, then removes the steps that were set aside, the
 * oldest first, then those that the policy does not keep, until so many bytes are freed. Returns
 * how many were. Worker. */
uint64_t keep_free(struct daemon *d, struct store *s, uint64_t bytes);
/* Puts a damaged step into quarantine. said: the result, to be appended to the sentence. Worker. */
void keep_quarantine(const struct store *s, const char *dir, const char *why, char *said,
		     size_t said_bytes);

/* --- control --- */
void control_request(struct session *s, const void *msg, int *fd); /* may take fd[0] */
void control_tick(struct session *s, uint64_t now);
void control_gone(struct session *s);
/* a snap is committed (rc 0), or never will be: it is about to be freed or has failed */
void control_over(struct snap *s, int rc, const char *text);
/* the same of a rescue, for the DRAIN of this number */
void control_rescued(struct snap *s, uint64_t number, int rc, const char *text);
/* answer the DRAINs whose steps have all ended */
void control_look(struct daemon *d);
/* ranks that are attached or want to be; control connections do not keep a daemon */
bool daemon_attended(const struct daemon *d);

/* --- the door (door.c): the socket and its lock --- */
int door_open(struct daemon *d, struct ckpt_err *err);
void door_watch(struct daemon *d); /* accepts connections from now on */
void door_tick(struct daemon *d);
void door_close(struct daemon *d);

/* --- the whole --- */
struct daemon {
	struct daemon_opts opts;
	char socket[108];
	int lock_fd, listen_fd, epoll_fd, timer_fd, done_fd, stop_fd;
	uint64_t socket_dev, socket_ino; /* of the file that the listening socket made */
	bool shut_out; /* another process has the socket's name, or it cannot be made again: logged */
	_Atomic uint32_t stops;
	bool killed;		   /* daemon_kill: end at once, without cleaning up */
	pthread_mutex_t done_lock; /* protects done_first, done_last */
	struct task *done_first, *done_last;
	uint32_t running;	/* tasks handed out and not back */
	struct pool copy, work; /* memory only: what touches a store runs on its device's threads */
	struct device *devices;
	struct reaper reaper;
	struct session *sessions;
	struct job *jobs;
	uint64_t idle_since, drain_until, began_ns;
	uint64_t busy_ns;	    /* when it last worked for a trainer's step or a write */
	uint64_t jobs_seen, drains; /* so far: of them come ids and numbers */
	uint32_t ndraining, ncontrol;
	/* Steps of any job that were found damaged: then no const part that was written before is
	 * linked */
	_Atomic uint32_t damages;
	uint32_t new_max;	   /* of connections without a message yet */
	bool deaf;		   /* no descriptor for a new connection: until the next tick */
	struct garbage garbage[2]; /* this user's, root's */
	int report_fd; /* the newest report, kept for a moment, so that frequent requests cost nothing */
	uint64_t report_ns, report_bytes;
};
/* For engine_open. The daemon names the format of each step, so no format is probed. */
static inline struct engine daemon_engine(const struct daemon *d)
{
	return (struct engine){ .ops = d->opts.ops, .io = d->opts.engine };
}
void daemon_task(struct pool *p, struct task *t, task_fn *run, task_fn *done);
/* what: tagged pointer, see loop.c */
int daemon_watch(struct daemon *d, int fd, void *what, uint32_t events);
void daemon_unwatch(struct daemon *d, int fd);
#define WATCH_SESSION 0u
#define WATCH_BELL 1u
#define WATCH_PIDFD 2u
#define WATCH_SELF 3u
#endif
