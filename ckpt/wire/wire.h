/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the messages between libckpt and ckptd on a SOCK_SEQPACKET socket of one user on one
 * host. This header is the specification. Integers are the host's own; both ends are on it.
 *
 * The client sends a request, the daemon answers it once; the daemon sends nothing else. Anything
 * long is a sealed memfd that travels as a descriptor. An unknown type or flag, a message that is
 * too short or too long, or a wrong number of descriptors ends the session (EPROTO).
 *
 *   HELLO + store directory            -> WELCOME + rank page, job page, doorbell   | REFUSE
 *   SEGMENT + memfd                    -> OK                                        | REFUSE
 *   ADOPT + memfd                      -> OK                                        | REFUSE
 *   SEED [+ directory]                 -> OK                                        | REFUSE
 *   KEEP                               -> OK                                        | REFUSE
 *   DECLARE + memfd                    -> SEALED + one memfd per slot, rows         | REFUSE
 *   RESTORE                            -> RESTORED + memfd of blobs | LANDED        | REFUSE
 *   LAND                               -> LANDED | RESTORED + memfd of blobs        | REFUSE
 *   LIST                               -> LISTED + memfd of tensors                 | REFUSE
 *   STEPS                              -> STEPS_ARE                                 | REFUSE
 *   FRESH                              -> OK
 *   CLAIM                              -> CLAIMED                                   | REFUSE
 *   BYE                                -> OK
 *
 * A client that is no rank (ckptctl) begins with CONTROL instead of HELLO; jobs are named by the
 * ids of the report:
 *
 *   CONTROL                            -> OK                                        | REFUSE
 *   STATUS                             -> STATUS_IS + memfd (struct wire_report)
 *   TRIGGER                            -> TRIGGERED                                 | REFUSE
 *   DRAIN [+ directory]                -> DRAINED, when all is written or has failed | REFUSE
 *   FORGET                             -> FORGOTTEN                                 | REFUSE
 *
 * Memory that is not from ckpt_alloc is never mapped by the daemon. In a declaration it is one more
 * place, behind the segments: its bytes are the process's address space. Of SEALED's rows the
 * library carries out those of that place itself (WIRE_ROW_CLIENT), from memory to the slot. A
 * restore writes it through two windows, which the daemon fills in turn: LANDED says what lies in
 * one of them and where it belongs, the library carries it there, and LAND says that it has.
 *
 * A declaration of the same epoch and a higher rev differs from the one before it in three things
 * at most: where memory lies, its strides, and how much space blobs have. It concerns its rank
 * alone: no other rank seals again, and no snapshot is skipped that begins after SEALED has come.
 *
 * Two things are the same in every version, for ever: struct wire_head, and REFUSE = {wire_head of
 * type 33, int32_t code, text up to head.bytes}. A process that gets a message with the right magic
 * and another abi answers REFUSE with -EPROTO, in that abi, and ends the session, but never answers
 * a REFUSE; a client takes a REFUSE of any abi and any length. ABI 1 closed the connection without
 * a word: a daemon that reads a HELLO and closes twice is taken for one.
 *
 * Segments are created by the client (so that memory exists without a daemon and outlives it),
 * slots by the daemon; both ends keep the descriptors of both, so that either may die. A memfd is
 * accepted only with F_SEAL_SHRINK|F_SEAL_GROW set, a declaration with F_SEAL_WRITE too.
 *
 * After a daemon's death the client attaches to the next one with WIRE_REATTACH and the generation
 * that it had, offers its segments again, offers (ADOPT) each slot whose contents it knows,
 * and declares. A step that every rank offers as copied, in the same slot, with the same epoch, is
 * staged again.
 *
 * A launch belongs to one directory. WELCOME says which one that is, HELLO with WIRE_REATTACH
 * brings it back, and where the job's name in the store leads to another one now (it was moved,
 * removed or replaced) the daemon refuses with -EIO and the sentence: the rank trains on detached
 * and tries again later.
 */
#ifndef CKPT_WIRE_WIRE_H
#define CKPT_WIRE_WIRE_H
#include "ckpt/base/retain_policy.h"
#include "ckpt/ckpt.h"
#include <stdbool.h>

#define WIRE_MAGIC 0x64706b63u
/* 12: HELLO says which launcher makes which launch, and what it may end; CLAIM; KEEP; a step may
 * be thinned (OUTCOME_THINNED in shared.h); the report says which steps stay, and when ranks have
 * died
 * 11: the library brings the daemon what it compares of replicas (REPLICAS in shared.h);
 * how many steps were marked is in records, ADOPT and RESTORED; averages say what they left out
 * 10: `copying` is a word of each slot
 * 9: CKPT_EXPLICIT
 * 8: a restore of what an exchange has not brought; derived tensors of devices are copied in turns
 * (turns.h)
 * 7: the job page has a word for the last step, and says which replicas have drifted apart;
 * declarations have attributes; CKPT_PEEK */
#define WIRE_ABI 12
#define WIRE_BYTES_MAX 8192u
#define WIRE_FDS_MAX 8
#define WIRE_TEXT_MAX 4092
#define WIRE_SLOTS_MAX 4
#define WIRE_SEGMENTS_MAX 4096 /* per rank: one mapping each */
#define WIRE_STEPS_MAX 128
#define WIRE_WORLD_MAX 4096 /* local ranks of one job */

enum wire_type {
	WIRE_HELLO = 1,
	WIRE_SEGMENT,
	WIRE_ADOPT,
	WIRE_DECLARE,
	WIRE_RESTORE,
	WIRE_STEPS,
	WIRE_BYE,
	WIRE_CONTROL,
	WIRE_STATUS,
	WIRE_TRIGGER,
	WIRE_DRAIN,
	WIRE_FORGET,
	WIRE_FRESH,
	WIRE_LAND,
	WIRE_LIST,
	WIRE_SEED,
	WIRE_CLAIM,
	WIRE_KEEP,
	WIRE_WELCOME = 32,
	WIRE_REFUSE,
	WIRE_OK,
	WIRE_SEALED,
	WIRE_RESTORED,
	WIRE_STEPS_ARE,
	WIRE_STATUS_IS,
	WIRE_TRIGGERED,
	WIRE_DRAINED,
	WIRE_FORGOTTEN,
	WIRE_LANDED,
	WIRE_LISTED,
	WIRE_CLAIMED,
};

/*
 * One row per message: both sides check what they get, and what they send, against it. A message
 * has exactly `bytes`, and fd_min to fd_max descriptors. answer: what may answer a request, besides
 * REFUSE, which may answer each of them and has any length.
 */
enum wire_sender { WIRE_RANK = 1, WIRE_CONTROLLER, WIRE_DAEMON };
struct wire_kind {
	uint16_t type, sender;
	uint32_t bytes;
	uint8_t fd_min, fd_max;
	uint16_t answer[2]; /* 0: none */
	const char *name;
};
/* NULL: there is no such message. */
const struct wire_kind *wire_kind(uint32_t type);

/* bytes: of the whole message */
struct wire_head {
	uint32_t magic;
	uint16_t abi, type;
	uint32_t bytes, seq;
};

/* hello.flags. ASKED: this launch has restored, or there was nothing to restore. AFRESH: a
 * rank of it has called ckpt_fresh. TAKEOVER, FOREIGN_OWNER: as in ckpt_opts.flags. */
enum {
	WIRE_REATTACH = 1,
	WIRE_ASKED = 2,
	WIRE_AFRESH = 4,
	WIRE_TAKEOVER = 8,
	WIRE_FOREIGN_OWNER = 16
};
/*
 * nslot: how many slots each rank is to have, 2 to WIRE_SLOTS_MAX, the same on all ranks of the
 * launch. 0: the daemon decides, at the first declaration of each epoch, for all ranks alike, and
 * each SEALED says how many there are. Several epochs may have different numbers.
 */
struct wire_hello {
	struct wire_head head;
	uint32_t flags, rank, world, nslot;
	uint64_t generation; /* 0: the daemon counts */
	/* the same for all ranks of one launch: parent process and its start time; 0 unknown */
	uint64_t launch;
	uint64_t token;	       /* the same, on every host; 0 unknown */
	uint64_t run, restart; /* as in ckpt_opts */
	uint64_t memory_max;
	uint64_t base, back; /* as restored said them; 0: this launch has restored nothing yet */
	uint64_t dev, ino;   /* WIRE_REATTACH: as WELCOME said; else 0 */
	char job[CKPT_JOB_MAX + 8];
};
struct wire_welcome {
	struct wire_head head;
	uint64_t generation; /* 0: the launch has no claim yet (CLAIM) */
	uint64_t dev, ino;   /* the directory of the job that the launch writes to; 0: not known */
	uint32_t nslot, pad; /* nslot: 0: it is not decided yet */
};
/* code: negative errno. What comes may have a shorter or longer text: wire_refusal reads it. */
struct wire_refuse {
	struct wire_head head;
	int32_t code;
	char text[WIRE_TEXT_MAX];
};
struct wire_ok {
	struct wire_head head;
};
/* To CLAIM: this rank is about to mark its first step, and shared_job.unclaimed is set. The launch
 * has the claim of the job now, and slots to mark into. -ESTALE: it has none, and the mark takes
 * nothing; the sentence says who has the job, or that the launch must restore again. */
struct wire_claimed {
	struct wire_head head;
	uint64_t generation;
};
/* BYE, FRESH, CLAIM, CONTROL, STATUS */
struct wire_plain {
	struct wire_head head;
	uint64_t pad;
};

/* id: the place number in declarations */
struct wire_segment {
	struct wire_head head;
	uint32_t id, pad;
	uint64_t bytes;
};

/* Slot `slot` holds this rank's part of `step`, copied whole under `epoch`, marked with `flags`; or
 * (step UINT64_MAX) nothing of use. The rank brings every slot that its newest SEALED has given it.
 * slot: below HELLO's nslot; if that is 0, below WIRE_SLOTS_MAX. turn, whole[0..nwhole): as the
 * record said (turns.h); such a slot is of use only under the rev whose rows were copied. */
#define WIRE_WHOLE_MAX 256u /* as SHARED_WHOLE */
struct wire_adopt {
	struct wire_head head;
	uint32_t slot, epoch, flags, rev;
	uint64_t bytes, step, mark_ns, marked; /* marked: as the record said */
	uint32_t turn, nwhole, whole[WIRE_WHOLE_MAX];
};

/*
 * `seed=` of an average (ckpt_average): the directory that it names, opened by the library, because
 * the rights of the user count. error: the errno that this ended with; 0, and only then the
 * directory comes along. It is an error of the seal only if the average needs the seed. average:
 * its place in the section AVERAGES of the declaration that follows. path: as the user has written
 * it, cut to this size: for messages. Each rank that knows a seed sends it, before the first
 * declaration of an epoch on a connection, and again if that was refused. The session keeps it
 * until the next DECLARE is answered; of one average the newest counts.
 */
#define WIRE_PATH_BYTES 1024u
struct wire_seed {
	struct wire_head head;
	uint32_t average, error;
	char path[WIRE_PATH_BYTES];
};

/* The job's policy from now on (store/store_policy.h): rules as retain_lines_print writes them. It
 * is on disk when OK comes; that of a launch without a claim is set when it has one (CLAIM). Of a
 * launch rank 0 sends it, once, after its first WELCOME. -EINVAL, and the errors of
 * store_policy_set. */
struct wire_keep {
	struct wire_head head;
	char rules[RETAIN_TEXT_MAX];
};

/* The memfd: a container (kind DECLARATION) with the sections of table/encode.h; place i is segment
 * i, and the one behind the last segment, if there is one, the process's own memory: WIRE_OWN_BYTES
 * long, its offsets are addresses. Its section AVERAGES has one record for each ckpt_average, in
 * the order of their names: rule 0, the canonical spec (ema/spec.h), and no updates. The
 * declaration of rank 0 may have the section WIRE_ATTRIBUTES (attributes.h). WIRE_DEVICES, where
 * any tensor lies on devices: a byte for each tensor, 1 where all of it does, but none for the
 * blobs, which are the last ones. rev: 0 in each epoch's first declaration. */
enum { WIRE_ATTRIBUTES = 1026, WIRE_DEVICES };
#define WIRE_OWN_BYTES (UINT64_C(1) << 48)
struct wire_declare {
	struct wire_head head;
	uint32_t epoch, rev;
	uint64_t bytes;
};
/* The last memfd, where nrow is not 0: nrow x wire_row, sealed against writing too. Of the same
 * epoch the slots may be those that the library has already. nslot: from now on the rank has so
 * many, 2 to WIRE_SLOTS_MAX, and those that it had before are no longer its own. With HELLO's nslot
 * 0 the gate may offer one less, if not all ranks can have the last one: that has no memory then.
 * Averages, and what the daemon notes about them, lie in the slots too, behind what rows name: the
 * library writes nowhere but where rows say. */
struct wire_sealed {
	struct wire_head head;
	uint32_t epoch, rev, nslot, nrow;
	uint64_t slot_bytes;
};

/*
 * What is copied from where to where: `rows` times `width` bytes, which are contiguous on both
 * sides, from src on, which goes on by src_pitch, to the byte dst of the slot, which goes on by
 * dst_pitch. Without those of REPLICA they are all that this rank has to save, each byte once. Rows
 * of CLIENT are complete. Where the others would be more than WIRE_ROWS_MAX (tensors in memory of
 * many short strides), they are a random part of them, by number: the daemon copies by its own plan, and the
 * library only looks at some. Rows of REPLICA come last, by turn: with each snapshot the library
 * copies those of its turn (REPLICAS in shared.h), which lie behind each other in the slot, apart
 * from all that is saved.
 */
#define WIRE_REPLICA_TURNS 128u
#define WIRE_ROWS_MAX (1u << 20) /* 64 MiB */
enum {
	WIRE_ROW_CLIENT = 1, /* of the process's own memory: the library copies it */
	WIRE_ROW_CONST = 2,
	WIRE_ROW_DERIVED = 4,
	WIRE_ROW_VALUE = 8,    /* VOLATILE, or a blob: copied by value inside ckpt_snapshot */
	WIRE_ROW_TURNS = 16,   /* with CLIENT: of a derived tensor on devices: see turns.h */
	WIRE_ROW_REPLICA = 32, /* with CLIENT and nothing else */
};
struct wire_row {
	uint32_t tensor, flags; /* tensor: its number in the declaration */
	uint64_t src;		/* segment << 48 | offset in it; CLIENT: the address */
	uint64_t dst, width, rows, src_pitch, dst_pitch;
	uint64_t turn; /* of REPLICA, below WIRE_REPLICA_TURNS; else 0 */
};
#define WIRE_ROW_SEGMENT(src) ((uint32_t)((src) >> 48))
#define WIRE_ROW_OFF(src) ((src) & ((UINT64_C(1) << 48) - 1))
/* Does it stay inside its segment (of so many bytes, each), or the address space, and the slot?
 * Pure: fuzzed. Of CLIENT the library also checks that it has declared that memory for that
 * tensor. */
int wire_row_check(const struct wire_row *r, const uint64_t *segment_bytes, uint32_t nsegment,
		   uint64_t slot_bytes);

/* With the flags of ckpt_want: of what several ranks hold and divide (ckpt/spread/spread.h), each
 * gets its own part. The ranks send it on. */
#define WIRE_DIVIDED (UINT32_C(1) << 31)
/* After that: the exchange has failed, and each rank gets what it lacks of the same step, and
 * nothing else: what the rounds behind the first `rounds` carry to it, in windows of chunk_bytes
 * (spread_missing). The step is given by its number. */
#define WIRE_MISSING (UINT32_C(1) << 30)
struct wire_restore {
	struct wire_head head;
	uint32_t flags, epoch;
	uint64_t step, deadline_ns;
	uint64_t chunk_bytes, rounds; /* MISSING; else 0 */
	char only[CKPT_NAME_MAX + 8];
};
struct wire_restored {
	struct wire_head head;
	uint64_t step, blob_bytes;
	/* 1 + the step on disk from which the line of this launch goes on. Of its own steps on disk
	 * those above that one, with a sequence number up to `back`, are left behind. To be
	 * reported to a daemon that takes over. */
	uint64_t base, back;
	uint64_t marked; /* as the step's record said: the rank counts on from there */
	uint32_t where, world_saved, ntensor, nmissing, nunused, npassed;
	char id[40];
	char passed[512], averages[512]; /* as ckpt_got */
};
/*
 * RESTORE may come after snapshots. While all ranks wait in it no rank can mark: the launch goes
 * back to the restored step, the numbers above it are marked anew, and its first commit sets aside
 * what lies there.
 *
 * A restore into the process's own memory. LANDED: window `window` holds nrow x wire_row at its
 * beginning (CLIENT, dst is the address, src the byte of the window), and what they carry behind
 * them. With the first one of a restore come the memfds of both windows, of `bytes` each. The
 * library answers each with LAND of the same round: code 0, or a negative errno where it could not
 * write its memory; then the restore fails for every rank.
 */
struct wire_landed {
	struct wire_head head;
	uint32_t round, window, nrow, pad; /* round: 1, 2, ... of this restore */
	uint64_t bytes;
};
struct wire_land {
	struct wire_head head;
	uint32_t round;
	int32_t code;
};

/*
 * What a restorable step holds. flags: of ckpt_want; step: its number, or CKPT_LATEST. The memfd:
 * a container (kind DECLARATION) with the sections of table/encode.h, without pieces, layouts and
 * averages; step, where: as ckpt_got.
 *
 * With WIRE_LIST_TRIED, and nothing else, it is about the step that the newest ckpt_restore of this
 * launch has compared with the declarations of all its ranks, whatever came of it: those tensors
 * alone that did not match. MISSING ones are as declared, the others as saved. Two sections more
 * say of each what and why; the daemon decides what matches, because only it knows what all
 * ranks declare.
 *
 *   WIRE_VERDICTS   struct wire_verdict, one for each tensor, in the order of TENSORS
 *   WIRE_TEXTS      zero-terminated strings; at offset 0 an empty one
 */
enum { WIRE_LIST_TRIED = 1u << 31 }; /* list.flags */
enum { WIRE_VERDICTS = 1024, WIRE_TEXTS };
struct wire_verdict {
	uint32_t what, text; /* enum ckpt_what; of TEXTS: MISMATCH: in words */
};
struct wire_list {
	struct wire_head head;
	uint32_t flags, pad;
	uint64_t step;
};
struct wire_listed {
	struct wire_head head;
	uint64_t step, bytes; /* bytes: of the memfd */
	uint32_t where, pad;
};

/* The blob memfd: uint64_t n, then n x wire_blob, then names (zero-terminated) and bytes, at
 * offsets from the start. */
struct wire_blob {
	uint64_t name_at, at, len;
	uint32_t rank, pad;
};

struct wire_steps {
	struct wire_head head;
};
struct wire_steps_are {
	struct wire_head head;
	uint32_t n, pad;
	struct ckpt_step step[WIRE_STEPS_MAX];
};

/* --- control --- */
struct wire_status_is {
	struct wire_head head;
	uint64_t bytes; /* of the memfd, which is sealed against writing too */
};
/* The next step that is marked is written, whatever persist_every says. -ENOENT: no such job, or no
 * rank of it is attached. */
enum { WIRE_FINAL = 1 }; /* trigger.flags: the trainer waits for a slot rather than skip it */
struct wire_trigger {
	struct wire_head head;
	uint32_t flags, pad;
	uint64_t job;
};
/* number: of this order; the step that fulfils it has it, or a higher one (wire_report_step).
 * after: 1 + the newest step marked so far; 0: none */
struct wire_triggered {
	struct wire_head head;
	uint64_t number, after;
};
/* The newest staged step of the job (0: of every job), and what is marked already, is written. Also
 * a step that could not be written before is. With WIRE_TO, of one job only, the message brings a
 * directory, and the steps are committed in DIR/JOB, claimed there as by a launch, continuing what
 * is there; nothing is set aside or removed there, and for the job's own store nothing has changed.
 * -ENOENT: no such job. -EINVAL: DIR/JOB is a directory that a launch writes to. -EBUSY: another
 * order for this job with WIRE_TO is not over. -EEXIST, as failed: DIR/JOB has this step, or a
 * newer one. */
enum {
	WIRE_TO = 1,
	/* with WIRE_TO: only the newest staged step. That copy is not counted as kept */
	WIRE_COPY = 2,
}; /* drain.flags */
struct wire_drain {
	struct wire_head head;
	uint32_t flags, pad;
	uint64_t job;
};
struct wire_drained {
	struct wire_head head;
	uint32_t written, failed;
	int32_t code; /* of the first failure */
	uint32_t pad;
	char text[2048]; /* what failed and why */
};
/* The memory that a job holds is given back. -ENOENT: no such job. -EBUSY: a rank is attached, a
 * step is being written, or (without WIRE_ALL) a staged step is not on disk. */
enum { WIRE_ALL = 1 }; /* forget.flags: also what is not on disk */
struct wire_forget {
	struct wire_head head;
	uint32_t flags, pad;
	uint64_t job;
};
struct wire_forgotten {
	struct wire_head head;
	uint64_t bytes;
	uint32_t steps, lost; /* given up; of these not on disk */
};

/*
 * The daemon's state, as a memfd: this head, then njob wire_report_job, nrank wire_report_rank,
 * nstep wire_report_step, naverage wire_report_average. Times *_ns without "wall" are
 * CLOCK_MONOTONIC; 0 is never. Ranks, steps and averages are ordered by job, ranks by their number,
 * steps newest mark first, averages as the job's declarations have them.
 */
#define WIRE_REPORT_JOBS_MAX 1024u
#define WIRE_REPORT_RANKS_MAX 32768u
#define WIRE_REPORT_STEPS_MAX 32768u
#define WIRE_REPORT_AVERAGES_MAX 16384u
struct wire_report_head {
	uint32_t magic, njob, nrank, nstep;
	uint64_t now_ns, wall_ns, began_ns; /* began: the daemon */
	uint32_t pid, sessions;		    /* sessions: ranks attached */
	uint32_t draining, cut;		    /* cut: there is more than the limits allow */
	uint32_t naverage, pad;
	char version[64];
};
/* Why a step was skipped. */
enum wire_skip {
	WIRE_SKIP_FULL,	    /* every slot holds a step on its way, or the newest one */
	WIRE_SKIP_UNREADY,  /* slots or declarations are not ready */
	WIRE_SKIP_LATE,	    /* the rank came after a newer step's mark */
	WIRE_SKIP_COPYING,  /* the library still copied memory of the step before */
	WIRE_SKIP_DRAINING, /* ckptd is stopping */
	WIRE_SKIP_DETACHED, /* no daemon was attached */
	/* a blob of this rank was longer than its capacity; or this rank's mark was CKPT_REFUSE; or
	 * another rank refused, for whichever reason */
	WIRE_SKIP_BLOB,
	WIRE_SKIP_DEVICE, /* a stream was being captured into a graph, or a device has failed */
	WIRE_SKIPS = 8,
};
/* What that means and what to do, as the end of a sentence. */
const char *wire_skip_text(uint32_t reason);
enum wire_launch_state { WIRE_NO_LAUNCH, WIRE_FORMING, WIRE_READY, WIRE_ENDED };
/* Where the policy in force comes from: there is none; the options of this ckptd; the job's own;
 * the job's own, which cannot be read, so that every step is kept. */
enum wire_policy_from {
	WIRE_POLICY_NONE,
	WIRE_POLICY_OPTIONS,
	WIRE_POLICY_JOB,
	WIRE_POLICY_UNREAD
};
struct wire_report_job {
	uint64_t id;
	char name[CKPT_JOB_MAX + 8];
	char store[1024]; /* directory; "" if it is not known */
	/* of its newest launch */
	uint64_t generation;
	uint32_t launch; /* enum wire_launch_state */
	uint32_t world, attached, lost, nslot;
	/* 1 + MiB that are free where the store lies, some seconds ago; 0: not known (so from an
	 * older ckptd) */
	uint32_t free_mib;
	/* since the daemon began: steps */
	uint64_t taken, skipped, torn, staged, persisted, committed, failed, thinned;
	uint64_t last_committed;			 /* 1 + step; 0: none yet */
	uint64_t last_committed_wall_ns, last_commit_ns; /* last_commit: from the mark */
	uint64_t newest;				 /* 1 + step of the newest mark; 0: none */
	/* bytes: slots that hold a step; all slots; the trainers' own memory that is mapped */
	uint64_t used, held, mapped;
	uint64_t triggers;		    /* orders so far */
	uint64_t error_wall_ns, error_step; /* error_step: 1 + step; 0: of none */
	uint32_t trigger_waits;		    /* the newest order is not fulfilled */
	uint32_t next_mib; /* that the next step needs on disk, at most; 0: not known */
	char error[512];   /* the newest; "": none */
	/* snapshots that were skipped, by enum wire_skip; their sum is skipped. Each rank's library
	 * counts them: these are of the rank that has the most, of each launch since the daemon
	 * began, and of the present one since it was attached */
	uint64_t skipped_by[WIRE_SKIPS];
	/* What should have been written could not be, since when and why: as CKPT_FAILING; 0: it
	 * was */
	uint64_t failing_wall_ns;
	/* for how long a task on the device below the store has shown no progress: no bytes
	 * written, read or checked, no end; 0: less than a second, or there is none */
	uint64_t stuck_ns;
	char failing[512]; /* "": nothing fails */
	char device[64];   /* below the store: "/dev/nvme0n1p2 (ext4)"; "": not known */
	/* Replicas of the newest launch that are not equal: a line for each tensor, of those that
	 * fit; "": none is known to differ */
	char drift[512];
	/* Averages of the weights: bytes of all slots that are theirs; steps since the daemon began
	 * that have theirs, that were given up because the next marks needed the slots, and, by
	 * enum wire_gate, that an average did not take in; left_out: those that averages went on
	 * without, whatever kept them from it (docs/AVERAGES.md) */
	uint64_t average_bytes, averaged, average_given_up, average_left_out, average_gated[4];
	uint64_t lost_wall_ns; /* when the last of `lost` ranks has died; 0: none has */
	/* Which steps stay, as options ("--keep-last 3"; "": all of them), as ckptd has found it some
	 * seconds ago. JOB: who has set it, and when; UNREAD: why, in policy_by */
	uint64_t policy_wall_ns;
	uint32_t policy_from, pad; /* enum wire_policy_from */
	char policy[RETAIN_TEXT_MAX], policy_by[256];
};
enum wire_rank_state { WIRE_ABSENT, WIRE_ATTACHED, WIRE_DIED, WIRE_DETACHED };
struct wire_report_rank {
	uint32_t job; /* index */
	uint32_t rank, state, pid;
	uint64_t marks, newest; /* newest: 1 + step of its newest mark */
	uint64_t copy_bytes, copy_ns;
	/* time that ckpt_snapshot and ckpt_guard took: in all, at most, since its newest mark; how
	 * long the library has measured */
	uint64_t stall_sum_ns, stall_max_ns, stall_last_ns, measured_ns;
	uint64_t every_waits, every_wait_ns; /* as ckpt_stats.average_waits */
};
enum wire_step_state {
	WIRE_MARKED, /* being copied */
	WIRE_STAGED,
	WIRE_QUEUED,
	WIRE_WRITING,
	WIRE_PERSISTED, /* its parts are durable; not yet visible */
	WIRE_COMMITTED,
	WIRE_TORN,
	WIRE_FAILED,
	WIRE_SKIPPED,
	WIRE_THINNED, /* it was to be written, and a newer step was in its place */
};
/* step.flags: it is in memory; it is to be written; a rank marked it with CKPT_NO_EMA */
enum { WIRE_HELD = 1, WIRE_TO_WRITE = 2, WIRE_NO_AVERAGE = 4 };
struct wire_report_step {
	uint32_t job, state, flags;
	int32_t code; /* TORN, FAILED: negative errno */
	uint64_t step, generation, trigger;
	uint64_t mark_ns, staged_ns, persisted_ns, committed_ns; /* the last three since mark_ns */
	/* bytes; for how long. total: of its files once it is being written, before of its slots */
	uint64_t written, total, writing_ns;
	char text[192]; /* TORN, FAILED, THINNED: why */
};
/* Why an average did not take a step in. */
enum wire_gate {
	WIRE_GATE_NONE,
	WIRE_GATE_NOT_WANTED, /* CKPT_NO_EMA */
	WIRE_GATE_LOSS,	      /* the note `loss` */
	WIRE_GATE_NONFINITE,  /* a NaN or an infinite value in the weights */
	WIRE_GATES,
};
/* enum average_flags of a table; and: a step in memory has it, what follows is of that one */
enum {
	WIRE_AVERAGE_KAHAN = 1,
	WIRE_AVERAGE_MIXED = 2,
	WIRE_AVERAGE_SEEDED = 4,
	WIRE_AVERAGE_AT_LEAST = 128, /* left_out: its first writer did not count */
	WIRE_AVERAGE_MADE = 256
};
/* An average of a job, or one of its rules with a schedule of its own. Of this host's elements. */
struct wire_report_average {
	uint32_t job, rule;   /* job: index. rule: as in docs/FORMAT.md, 0: the average itself */
	uint32_t flags, gate; /* gate: of that step */
	char name[64];
	char schedule[512];			/* canonical; cut where it is longer */
	uint64_t step;				/* 1 + that step */
	uint64_t updates, last_step, since;	/* last_step, since: 1 + step; 0: none */
	uint64_t left_out;			/* marked steps since `since` that it has not */
	uint64_t lag;				/* steps since the newest update */
	uint64_t nan, inf;			/* values in it */
	uint64_t nan_sources, inf_sources;	/* in the weights */
	uint64_t far, convex_broken;		/* tensors */
	double product, worst;			/* worst: < 0: not known */
	char worst_name[160], convex_name[160]; /* "": none */
};
/* Is it to be reported as bad? */
bool wire_average_is_bad(const struct wire_report_average *a);
struct wire_report {
	const struct wire_report_head *head;
	const struct wire_report_job *job;
	const struct wire_report_rank *rank;
	const struct wire_report_step *step;
	const struct wire_report_average *average;
};
/* Is it whole, and safe to be read? 0 or -EPROTO with the sentence. Pure: fuzzed. */
int wire_report_check(const void *p, uint64_t bytes, struct wire_report *ret, struct ckpt_err *err);
/* Bytes of a report with so many of each. */
uint64_t wire_report_bytes(uint32_t njob, uint32_t nrank, uint32_t nstep, uint32_t naverage);

/* Send one message with nfd descriptors. 0, -EPIPE/-ECONNRESET if the peer has closed, -EAGAIN.
 * Never raises SIGPIPE. */
int wire_send(int sock, void *msg, uint32_t type, uint32_t bytes, uint32_t seq, const int *fd,
	      int nfd);

/*
 * Receive one message of at most `bytes` into buf (a union of what may come). Descriptors are
 * CLOEXEC, in ret_fd[WIRE_FDS_MAX], unused ones -1. Returns its length after checking magic, abi
 * and head.bytes; 0 at end of file; -EAGAIN; -EPROTO with everything closed; -EPROTONOSUPPORT, the
 * same, when only the abi is another: its head is in buf. A REFUSE comes whatever its abi and
 * length, cut to `bytes` and without descriptors.
 */
int wire_recv(int sock, void *buf, uint32_t bytes, int *ret_fd, int *ret_nfd);
void wire_close_fds(int *fd, int nfd);

/* Answer a message of another abi: REFUSE -EPROTO with this text, in the asker's abi. */
int wire_refuse_other(int sock, const struct wire_head *ask, const char *text);
/* What a REFUSE of any abi says, `bytes` long: its code (-EPROTO where that is none) and text. */
int wire_refusal(const void *msg, uint32_t bytes, struct ckpt_err *err);

/* Is it a request, with exactly the size and number of descriptors of its type, and texts that end?
 * 0 or
 * -EPROTO. Pure: fuzzed. */
int wire_request_check(const void *msg, uint32_t bytes, int nfd);
/* The same of an answer, which must be one of those that a request of type `ask` may get. */
int wire_answer_check(uint32_t ask, const void *msg, uint32_t bytes, int nfd);

/* Is this an eventfd that never blocks its writer, and sends no signal? 0 or -EPROTO. */
int wire_bell_check(int fd, struct ckpt_err *err);
/* Map a peer's memfd after checking that it is a regular memfd with SHRINK|GROW (and, for
 * read_only, WRITE) sealed and exactly `bytes` long. */
int wire_map(int fd, uint64_t bytes, int read_only, void **ret_ptr, struct ckpt_err *err);
/* A new memfd of `bytes`, fallocated (not touched), sealed SHRINK|GROW|SEAL. */
int wire_memfd(const char *name, uint64_t bytes, int *ret_fd, struct ckpt_err *err);
/* The same, mapped. */
int wire_memfd_map(const char *name, uint64_t bytes, int *ret_fd, void **ret_ptr,
		   struct ckpt_err *err);
/* A new memfd that holds these bytes and can no more be changed. */
int wire_memfd_of(const char *name, const void *p, uint64_t bytes, int *ret_fd,
		  struct ckpt_err *err);

/* The default socket of this user; buf of 108 bytes. make: create its directory 0700. -EACCES when
 * the directory belongs to another user. */
int wire_socket_path(char *buf, int make, struct ckpt_err *err);
#endif
