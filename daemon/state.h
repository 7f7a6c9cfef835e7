/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - what the daemon knows. Everything here belongs to the thread in daemon_run, except
 * where a field says otherwise.
 *
 *	job       a directory of a store; outlives its launches
 *	launch    one incarnation of the job's ranks: a generation, a job page, its members
 *	member    a rank of a launch: session, rank page, segments, declaration, slots
 *	snap      one ticket that got a slot: who has copied, and what became of it
 *
 * Memory that tasks use is reference-counted: segments (the client's memory), slots, declarations.
 * A snap: COLLECTING -> STAGED [-> QUEUED -> WRITING -> STAGED, committed or failed] -> released.
 */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H
#include "ckpt/base/thread.h"
#include "ckpt/client/shared.h"
#include "ckpt/client/wire.h"
#include "ckpt/move/move.h"
#include "ckpt/plan/plan.h"
#include "ckpt/store/mark.h"
#include "ckpt/store/prune.h"
#include "daemon/daemon.h"

#define COPY_THREADS_MAX 4
#define EXPIRE_NS (60 * NS_PER_S) /* a ticket that not all ranks took */
#define BEAT_NS (NS_PER_S / 2)
/* from a socket's end to the verdict: dead or only detached */
#define DEATH_NS (NS_PER_S)
#define KEEP_COMMITTED_NS (600 * NS_PER_S)
/* of one part after a failed write or sync, from memory to a new file */
#define REWRITES_MAX 2

/* --- tasks --- */
struct task {
	void (*run)(struct task *t);			/* worker */
	void (*done)(struct daemon *d, struct task *t); /* owner; frees the task */
	struct task *next;
};
struct pool {
	struct queue queue;
	pthread_t thread[COPY_THREADS_MAX];
	uint32_t nthread;
	struct daemon *d;
};

/* --- memory --- */
/* Undoing a mapping of many GiB takes seconds, in which the owner's heart would not beat: a thread
 * of its own does it from RELEASE_BYTES on, and what is left when it is told to stop. */
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
	bool touched;
	struct reaper *reaper;
};
struct decl {
	_Atomic uint32_t refs;
	uint32_t epoch, rank;
	struct table table; /* what the rank has: places are its segments */
	struct table part;  /* its raw space */
	struct plan copy;   /* table -> part */
	uint64_t raw_bytes;
	uint32_t nseg;
	struct segment **seg; /* [nseg] references held */
	const void **base;    /* [nseg] */
};
void segment_unref(struct segment *s);
void slotmem_unref(struct slotmem *s);
void decl_unref(struct decl *d);
struct segment *segment_ref(struct segment *s);
struct slotmem *slotmem_ref(struct slotmem *s);
struct decl *decl_ref(struct decl *d);
/* sized and mapped, not touched */
int slotmem_new(struct reaper *r, uint64_t bytes, struct slotmem **ret, struct ckpt_err *err);
/* takes fd */
int slotmem_adopt(struct reaper *r, int fd, uint64_t bytes, struct slotmem **ret,
		  struct ckpt_err *err);
int slotmem_touch(struct slotmem *s); /* worker */
/* Decode, check and plan a declaration that came as `bytes`. seg[]: the rank's segments by id, NULL
 * where there is none. Worker. */
int decl_make(const void *bytes, uint64_t len, uint32_t epoch, uint32_t rank,
	      struct segment *const *seg, uint32_t nseg, struct decl **ret, struct ckpt_err *err);
/* The part table with by-value blobs cut to the length that the slot holds; places[0] is the
 * slot. */
int decl_part_now(const struct decl *d, const void *raw, struct table *ret, struct ckpt_err *err);

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
	uint32_t seq, written, failed;
	int code;
	char text[2048];
};
struct session {
	struct daemon *d;
	int sock, pidfd;
	pid_t pid;
	uid_t uid;
	enum session_state state;
	/* a task works for it: its socket is not read, and it is not freed */
	bool busy;
	bool closed; /* end of file seen */
	bool said_bye;
	uint64_t closed_ns;
	struct wire_hello hello;
	int root_fd;
	uint32_t seq; /* of the request being answered */
	struct launch *launch;
	struct member *member;
	bool control;
	uint64_t asked_ns;	   /* CONTROL: the newest request */
	struct draining *draining; /* CONTROL; NULL before the first DRAIN */
	struct session *next;
};
/* Connections of one user that speak another protocol: one line a second says how many. */
struct garbage {
	uint64_t said_ns;
	uint32_t untold;
	pid_t pid; /* the newest */
};
void session_accept(struct daemon *d);
void session_readable(struct session *s);
void session_end(struct session *s); /* the peer is gone, or is to go */
void session_tick(struct session *s, uint64_t now);
void garbage_tick(struct daemon *d, uint64_t now);
void session_unbusy(struct session *s);
void session_reply(struct session *s, void *msg, uint32_t type, uint32_t bytes, const int *fd,
		   int nfd);
void session_ok(struct session *s);
void session_refuse(struct session *s, int code, const char *text);

/* --- jobs and launches --- */
/* What became of a step, for who asks later. */
#define PAST_MAX 64
struct past {
	uint64_t step, generation, trigger, mark_ns, phase_ns[3];
	uint32_t state; /* enum wire_step_state */
	int code;
	char text[192];
};
struct tally {
	uint64_t taken, skipped, torn, staged, persisted, committed, failed;
	uint64_t last_committed, last_committed_wall_ns, last_commit_ns; /* as wire_report_job */
	uint64_t newest;
	uint64_t error_wall_ns, error_step;
	char error[512];
};
/* Of the file system that a store lies on. */
struct room {
	bool known;
	uint64_t free_bytes, looked_ns;
	uint64_t need_bytes; /* of the next step; 0: not known */
};
struct job {
	struct daemon *d;
	uint64_t id;
	struct tally tally;
	struct past past[PAST_MAX], skipped[PAST_MAX]; /* rings */
	uint32_t npast, nskipped;		       /* so far */
	uint64_t triggers;			       /* orders so far */
	uint32_t trigger,
		trigger_last; /* ticket flags of the one that waits (0: none), of the newest */
	uint64_t dev, ino;
	char name[CKPT_JOB_MAX + 8];
	struct store *store;
	bool claiming;
	struct launch *launch; /* the newest; NULL before the first */
	struct snap *snaps;    /* of all launches, newest first */
	struct snap *writing;  /* at most one at a time */
	uint64_t idle_since;
	/* found damaged: restore passes them by, there and nowhere else */
	struct bad {
		uint64_t step;
		uint32_t where; /* as in struct pin */
	} bad[16];
	uint32_t nbad;
	struct room room;
	uint32_t keeping; /* tasks of keep.c: the job is not freed */
	/* again: a step was committed since the one that runs began */
	bool pruning, prune_again;
	struct job *next;
};

/* bytes_held: mem became the slot */
struct adopt {
	struct slotmem *mem;
	uint64_t step, mark_ns;
	uint32_t epoch, flags;
	bool bytes_held;
};
struct member {
	uint32_t rank;
	struct session *session;
	bool attached, lost, left; /* ever; died; detached by itself */
	bool touched;		   /* the slots of decl are in memory */
	uint64_t touch_again_ns;   /* there was no memory: when to try again; 0 never */
	struct shared_rank *page;
	int page_fd;
	uint32_t nseg;
	struct segment **seg; /* [nseg] by id */
	uint64_t seg_bytes;   /* of all of them */
	struct decl *decl;
	struct slotmem *slot[WIRE_SLOTS_MAX];
	struct adopt adopt[WIRE_SLOTS_MAX];
	uint64_t marks_seen;
	uint32_t round; /* restores finished */
	bool asked;	/* waits in the present round */
	struct wire_restore want;
	uint64_t asked_ns;
};

enum launch_state { LAUNCH_FORMING, LAUNCH_READY, LAUNCH_ENDED };
#define ROUNDS_MAX 64
struct launch {
	struct job *job;
	uint32_t refs;
	uint64_t generation, token, base; /* base: 1 + step that it restored; 0: none */
	_Atomic uint64_t line; /* 1 + the newest step that it committed; 0: none. The io threads' */
	_Atomic uint64_t seq; /* the highest of those that it committed or found when it restored */
	uint32_t world, nslot, epoch, nattached, nlost;
	enum launch_state state;
	bool again; /* it was there before: may have committed steps that nobody here saw */
	bool restoring, covering;
	uint32_t covered_epoch; /* its declarations were found to cover every tensor */
	struct pin {
		bool set;
		uint64_t want_step;
		uint32_t want_flags;
		bool none;
		uint64_t step, seq; /* seq: the highest on disk then */
		uint32_t where;	    /* 1: memory, 2: disk */
		char dir[STORE_DIR_MAX];
	} pin[ROUNDS_MAX];
	/* The step on disk that it chose, held against removal until a step of its own is committed:
	 * until then it is where the job goes back to. -1: none */
	int step_fd;
	struct shared_job *page;
	int page_fd, bell;
	struct member *member; /* [world] */
	uint16_t ticket_seen;
};

enum snap_phase { PHASE_COLLECTING, PHASE_STAGED, PHASE_QUEUED, PHASE_WRITING };
struct snap_rank {
	enum { COPY_NONE, COPY_QUEUED, COPY_DONE, COPY_TORN } copy;
	uint64_t mark;	    /* 0: taken over from an earlier daemon */
	uint64_t unguarded; /* of its record */
	struct decl *decl;
	struct slotmem *mem;
};
struct snap {
	struct launch *launch; /* reference */
	struct job *job;
	uint64_t step;
	bool step_known, dropped, stealable, committed;
	bool told; /* that it is staged */
	uint16_t ticket_seq;
	uint32_t slot, flags, epoch, world;
	enum snap_phase phase;
	/* copy tasks in flight: the slot is not given back before they end */
	uint32_t tasks;
	/* its parts are durable; to be committed once every rank is seen to guard */
	struct persist *parked;
	uint64_t trigger;	  /* the order that it fulfils; 0: none */
	uint64_t drain;		  /* the first DRAIN that waits for it; 0: none */
	uint64_t write_ns;	  /* since when it is being written */
	uint64_t total;		  /* bytes to write */
	_Atomic uint64_t written; /* worker */
	uint64_t born_ns, mark_ns, phase_ns[3], committed_at, staged_at;
	struct ckpt_note note[SHARED_NOTES];
	char note_key[SHARED_NOTES][48];
	uint32_t nnote;
	struct snap_rank *rank; /* [world] */
	struct snap *next;
};

void hello_try(struct session *s); /* join or begin a launch */
void launch_declare(struct session *s, const struct wire_declare *m, int fd);
void launch_ring(struct launch *l); /* the doorbell, or the clock: look at every page */
void launch_tick(struct launch *l, uint64_t now);
void launch_member_gone(struct launch *l, struct member *m, bool dead);
/* not for good: the same launch comes back to a new beginning */
void launch_fence(struct launch *l, bool for_good);
void launch_unref(struct launch *l);
void launch_let_go(struct launch *l); /* of step_fd */
void job_tick(struct job *j, uint64_t now);
bool job_idle(const struct job *j); /* nothing to write, nobody attached */
/* release what need not be kept, give free slots back, start what is due */
void job_settle(struct job *j);
void job_drain(struct job *j);
/* nobody attached and nothing held for a long time */
bool job_forgotten(struct job *j, uint64_t now);
void job_free(struct job *j);
/* What the ranks, and later whoever asks, are told of a step. */
void snap_tell(struct snap *s, enum outcome_state outcome, int code, const char *text);
/* the newest trouble of the job; step: 1 + step, 0: of none */
void job_error(struct job *j, uint64_t step, const char *text);
/* What is staged and newest is to be written, whatever its marks said; what was marked is to be,
 * too. */
void job_flush(struct job *j, uint64_t drain);
/* the next mark is to be written */
void job_trigger(struct job *j, uint32_t ticket_flags);
/* torn, failed or dropped */
void snap_fail(struct snap *s, enum outcome_state outcome, int code, const char *text);
void snap_release(struct snap *s);
/* no further tickets: what is free or may be stolen is taken out of the gate */
void gate_close(struct launch *l);
void snap_adopt(struct launch *l, uint32_t slot, uint64_t step, uint32_t flags, uint64_t mark_ns);
struct snap *snap_in_slot(const struct launch *l, uint32_t slot); /* of the present epoch; NULL */
void snap_member_gone(struct launch *l, struct member *m, bool dead);
/* all members are gone: what is staged is to be written */
void snap_salvage(struct launch *l);
void snap_written(struct snap *s, int rc, const char *text);

/* 1: no rank's memory changed while it was copied; 0: too early to say; -1: one's may have */
int snap_guarded(const struct snap *s);

void persist_start(struct snap *s);
void persist_drop(struct snap *s); /* the daemon leaves: what is parked is given up */
/* is it time to commit what is parked, or to give it up? */
void persist_resume(struct snap *s);

void restore_ask(struct session *s, const struct wire_restore *m);
void restore_try(struct launch *l);
void restore_tick(struct launch *l, uint64_t now);
void restore_steps(struct session *s);
bool job_bad(const struct job *j, uint64_t step, uint32_t where);

/* --- keeping --- */
#define KEEP_SPARE (2 * MIB) /* MANIFEST, directories, claims: beside the parts of a step */
/* Of what kind the store is, to the log. Worker. */
void keep_describe(struct daemon *d, const struct store *s);
void keep_tick(struct job *j, uint64_t now);
/* A step was committed: what the policy does not keep is removed. */
void keep_after(struct job *j);
/* Is there room for so many bytes? If not it is made by the policy, if there is one; else -ENOSPC and
 * the sentence. Nothing is written. Worker. */
int keep_room(struct daemon *d, struct store *s, uint64_t step, uint64_t bytes,
	      struct ckpt_err *err);
/* To the sentence of a step that does not fit: how much was set aside, and what removes it. Worker. */
void keep_advise(struct store *s, struct ckpt_err *err);
/* Where there is a policy, and once the newest step has been read back: remove what was set aside, the oldest first,
 * then what the policy does not keep, until so many bytes are freed. Returns how many were. Worker. */
uint64_t keep_free(struct daemon *d, struct store *s, uint64_t bytes);
/* A step whose files are damaged is marked so, for all that come later. said: what became of it, to
 * be appended to the sentence. Worker. */
void keep_quarantine(const struct store *s, const char *dir, const char *why, char *said,
		     size_t said_bytes);

/* --- control --- */
void control_request(struct session *s, const void *msg);
void control_tick(struct session *s, uint64_t now);
void control_gone(struct session *s);
/* a snap is committed (rc 0), or never will be: it is about to be freed or has failed */
void control_over(struct snap *s, int rc, const char *text);
/* answer the DRAINs whose steps are all over */
void control_look(struct daemon *d);
/* ranks that are attached or want to be; control connections do not keep a daemon */
bool daemon_attended(const struct daemon *d);

/* --- the whole --- */
struct daemon {
	struct daemon_opts opts;
	char socket[108];
	int lock_fd, listen_fd, epoll_fd, timer_fd, done_fd, stop_fd;
	_Atomic uint32_t stops;
	bool killed;		   /* daemon_kill: leave without a trace of order */
	pthread_mutex_t done_lock; /* protects done_first, done_last */
	struct task *done_first, *done_last;
	uint32_t running; /* tasks handed out and not back */
	/* keep: one thread, for what takes long and nobody waits for; in io it would be in the way of
	 * a step, in work of a restore */
	struct pool copy, work, io, keep;
	struct reaper reaper;
	struct session *sessions;
	struct job *jobs;
	uint64_t idle_since, drain_until, began_ns;
	uint64_t jobs_seen, drains; /* so far: of them come ids and numbers */
	uint32_t ndraining, ncontrol;
	uint32_t new_max;	   /* connections that have said nothing yet */
	bool deaf;		   /* no descriptor for who knocks: until the next tick */
	struct garbage garbage[2]; /* this user's, root's */
	int report_fd; /* the newest report, for a moment: who asks all the time costs nothing */
	uint64_t report_ns, report_bytes;
};
void daemon_task(struct daemon *d, struct pool *p, struct task *t);
/* what: tagged pointer, see loop.c */
int daemon_watch(struct daemon *d, int fd, void *what, uint32_t events);
void daemon_unwatch(struct daemon *d, int fd);
#define WATCH_SESSION 0u
#define WATCH_BELL 1u
#define WATCH_PIDFD 2u
#define WATCH_SELF 3u
#endif
