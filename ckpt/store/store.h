/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the directory protocol. It defines which files are a checkpoint, and which checkpoint
 * of a job is the latest.
 *
 *	ROOT/JOB/step-%012u/MANIFEST, w....part        committed: visible if and only if complete
 *	        /.tmp-%012u-g%08u-%08x/                collecting: step, generation, nonce
 *	        /.old-%012u-s%u-t%u/                   set aside, because the job went back to an older step and
 *	                                               committed again: step, seq, time in seconds since 1970.
 *	                                               If the name is taken, -%08x follows. Older programs
 *	                                               wrote no -t
 *	        /.trash-%08x/                          being deleted
 *	        /.ckptd/gen-%08u                       claim of a launch, O_EXCL; says who made it (claimer.h)
 *	        /.ckptd/gen-%08u.%u                    takeover n of that claim, n = 1, 2, ...
 *	        /.ckptd/job-NAME                       empty; the directory belongs to the job of this name
 *	        /.ckptd/KIND-%012u-...                 a label of a step: held, tagged, ... (label.h)
 *	        /.ckptd/lock-steps                     empty; its bytes are locked (store_lock.c)
 *	        /.ckptd/reading-%012u-..., lock-now-.. empty; who reads a step (store_reading.c)
 *	        /.ckptd/keep-%012u                     the job's policy: which steps stay (store_policy.h)
 *
 * MANIFEST stands for the root file of the store's format (struct format_root).
 *
 * A writer opens the store and claims a launch. The claim turns older collecting directories into
 * trash. The writer scans the steps, begins a transaction, creates, writes and finishes parts, and
 * commits. If the claim of a store is not the highest on disk, the store cannot commit (-ESTALE).
 * Trashing and committing rename the same directory, so only one of them succeeds. Only prune.h
 * deletes committed steps. points.h names the moments of this protocol.
 *
 * Whatever process dies, at whatever moment, a reader sees the old steps, or the old steps and the
 * new one. Only a commit that goes back has states in between: the old line without its newest
 * step, without its two newest steps, and so on, down to the step that the job went back to. A
 * rewind (rewind.h) has the same states, and then the states of the new line from its oldest step
 * on.
 *
 * The store reaches everything beneath the job directory through struct io_ops. It follows no
 * symbolic link. Directories have mode 0700, files 0600.
 */
#ifndef CKPT_STORE_STORE_H
#define CKPT_STORE_STORE_H
#include <pthread.h>
#include "ckpt/base/source.h"
#include "ckpt/io/io_source.h"
#include "ckpt/store/file_links.h"
#include "formats/format.h"

#define STORE_DIR_MAX 80 /* bytes of an entry of the job directory, with its zero */

/*
 * A reader may make one by hand: { .ops, .format, .job_fd, .job } and zeros is enough for
 * store_scan and store_step_open.
 */
struct store {
	const struct io_ops *ops;
	const struct format *format; /* of its steps: one with a root */
	int root_fd, job_fd;
	char job[CKPT_JOB_MAX + 1];
	uint32_t nonce; /* random: this opener's */
	bool by_name;	/* store_open made it: store_here can find it again */
	char *root;	/* path of root_fd at store_open; NULL: unknown */
	/* Text that the next claim carries: which process makes it (claimer_print); NULL: none. The
	 * caller owns it, and keeps it until the claim is made */
	const char *claimer;

	pthread_mutex_t lock; /* protects all below */
	uint64_t generation;  /* claimed; 0: none (readers) */
	uint32_t takeover;    /* takeovers of that claim, up to ours */
	struct store_txn
		*begun; /* transactions of this store that are neither committed nor aborted */
};

/* A job name: [A-Za-z0-9._-]{1,64}, no leading dot. -EINVAL says what is wrong. */
int store_job_check(const char *job, struct ckpt_err *err);

/*
 * store_open duplicates root_fd. With create, it makes ROOT/JOB, .ckptd and job-NAME, and syncs
 * them and ROOT. It syncs them also if they exist, because the process that made them may have died
 * before its sync. The caller syncs the name of ROOT itself. Without create, a missing job is
 * -ENOENT. With create, a directory that belongs to another job (store_home) is -EINVAL, and
 * nothing in it changes.
 */
int store_open(const struct io_ops *ops, const struct format *format, int root_fd, const char *job,
	       bool create, struct store **ret, struct ckpt_err *err);
/*
 * Do ROOT's path and ROOT/JOB, without links, still lead to the directory that is open here? 0:
 * they do, or it is unknown (a store made by hand; no stat; a root whose path this process does not
 * see).
 * -EIO: the directory was moved, removed or replaced, the sentence names the job, and nothing may
 * be written to it, set aside in it or removed from it. Another errno: the lookup failed. The store
 * asks before each claim, each transaction, each rename of a commit and each removal of a step
 * (prune.h). Any thread.
 */
int store_here(const struct store *s, struct ckpt_err *err);
/* Every transaction must have ended. NULL is fine. */
void store_close(struct store *s);

/*
 * Claim launch `want`. 0 claims the highest launch on disk + 1; a number above the highest claims
 * that number. A number below the highest is -ESTALE. The highest itself is ours already, or is
 * taken over if `again` is set (the same launch returns after its daemon died), or is -EBUSY. After
 * a takeover the previous holder cannot commit.
 *
 * The claim then turns collecting directories of this and older launches into trash, except those
 * that this struct has begun. It removes trash as far as possible: a dead process's kernel threads
 * may still write to files, and the next claim removes those. It syncs the job directory, so that
 * what a scan finds from now on stays. It removes claims of older launches, because fencing needs
 * the highest alone. If this part fails, the claim stands, and the caller can ask for it again.
 *
 * -EINVAL: the directory belongs to another job (store_home), because it was adopted meanwhile. A
 * store made by hand (root_fd -1) claims a directory of any name.
 */
int store_claim(struct store *s, uint64_t want, bool again, uint64_t *ret_generation,
		struct ckpt_err *err);

/*
 * The claim of a launch that has attached beside another one, and marks its first step: it claims
 * the highest launch on disk + 1, if no step with a sequence number above `seq` (the highest that
 * this launch saw when it restored) is committed. -ESTALE: there is such a step; then the job has
 * the claim that it had. It is one step for every daemon: a launch that held the job commits before
 * the claim, and then the claim fails, or it commits nothing more. So a commit of that moment can
 * fail, and the daemon that made it writes its step again.
 */
int store_claim_first(struct store *s, uint64_t seq, uint64_t *ret_generation,
		      struct ckpt_err *err);

/* The highest launch that has claimed the job; 0: no launch has. */
int store_claimed(const struct store *s, uint64_t *ret_generation, struct ckpt_err *err);

/*
 * Call it after a claim and before a scan that must find the whole line. Another launch may have
 * checked its claim before this claim was made, and may be setting steps aside. store_claim_wait
 * waits some seconds at most until that launch has brought the steps back or has committed. -EBUSY:
 * it did not end.
 */
int store_claim_wait(const struct store *s, struct ckpt_err *err);

enum store_state {
	STORE_COMMITTED,
	STORE_COLLECTING, /* step, generation and bytes only */
	STORE_SET_ASIDE,
	STORE_DAMAGED, /* step-N whose MANIFEST cannot be read */
	/* committed, with a good MANIFEST, and a bad label (label.h): damage was found */
	STORE_QUARANTINED,
	/* step-N whose MANIFEST is good and is that of another checkpoint (store_identity): the
	 * bytes are right, the place is wrong */
	STORE_MISPLACED,
	STORE_NEWER, /* step-N whose MANIFEST a newer version wrote: nothing is known of it */
	/* step-N whose MANIFEST ckptd 0.1 wrote, which this program does not read: likewise */
	STORE_OLDER,
};

struct store_step {
	uint64_t step, seq, generation, wall_ns, bytes, parent_step; /* UINT64_MAX: none */
	uint64_t aside_ns; /* SET_ASIDE: when; 0: unknown */
	uint32_t world;
	uint8_t id[16];
	char dir[STORE_DIR_MAX]; /* entry name in the job directory */
	char mesh[128];		 /* "fsdp=4"; several meshes: the first of those with most ranks */
	const char *format;
	enum store_state state;
	int code;   /* 0, or the -errno of reading its MANIFEST; -EUCLEAN: misplaced */
	bool lacks; /* store_scan_parts: a part that MANIFEST names is missing, or no regular file */
	bool older; /* OLDER, or SET_ASIDE with a MANIFEST as of OLDER */
	/* what is wrong, if DAMAGED, QUARANTINED, MISPLACED, NEWER or OLDER; SET_ASIDE: "" or
	 * likewise */
	char why[200];
	struct store_said { /* the words of its MANIFEST; all zero if that cannot be read */
		uint64_t step;
		char job[CKPT_JOB_MAX + 1];
		uint8_t parent_id[16]; /* zero: none */
		bool rebuilt;	       /* ckptctl repair made its MANIFEST, and so its id, anew */
	} said;
	bool adopted; /* it has an adopted label (label.h) */
	/* loss, lr, ...: in the same block as the array of store_scan */
	uint32_t nnote;
	const struct ckpt_note *note;
	uint32_t link_first, nlink; /* store_scan_parts: its names in links->use */
	uint64_t shared; /* store_remove: of bytes, those that stay under other names (links.h) */
	bool shared_unseen; /* shared may be wrong: the state of some files is unknown */
};

/*
 * List all step directories, newest first (seq, then step); with `all`, also those that are
 * collecting or set aside. The seq of a damaged, misplaced, newer or older step is unknown (0): the
 * step stands before the newest committed step with a lower number, which was its place. An adopted step has the seq of another line: if that does not fit between its neighbours
 * by number, the step gets the seq of the one below. The next seq to commit is 1 + the highest of a
 * scan with `all`. *ret is one malloc'ed block. Foreign entries are ignored.
 */
int store_scan(const struct store *s, bool all, struct store_step **ret, uint32_t *ret_n,
	       struct ckpt_err *err);
/*
 * The same with a stat for every part. If a part is missing, or has another length than MANIFEST
 * says, the step is DAMAGED, with code -EBADMSG and `why`, unless it is misplaced, quarantined or
 * set aside. It stands in its place, and its seq and id are known. links: NULL, or a set that
 * collects the parts with several names; several scans may share it.
 */
int store_scan_parts(const struct store *s, bool all, struct file_links *links,
		     struct store_step **ret, uint32_t *ret_n, struct ckpt_err *err);
/*
 * The one choice of what "latest~back" is: of steps in the order of a scan. What is damaged,
 * quarantined or misplaced is passed over. NULL: there is none. A NEWER or OLDER step that stands
 * before it is returned instead, because the latest step is unknown then. Whoever means the latest
 * step scans with store_scan_latest, or with store_scan_parts, which come to the same. The daemon's
 * restore alone takes store_scan: it may have a constant tensor of a lost part from another part,
 * and if it has not, it passes over the step, too.
 */
const struct store_step *store_latest(const struct store_step *step, uint32_t n, uint64_t back);
/* As store_scan, and the steps from latest to latest~back have all their parts: those that do not
 * are DAMAGED, as of store_scan_parts. Costs a stat for each part of these. */
int store_scan_latest(const struct store *s, bool all, uint64_t back, struct store_step **ret,
		      uint32_t *ret_n, struct ckpt_err *err);
/* Does the job have steps of any state that are not set aside? True if the listing fails. Costs one
 * listing. */
bool store_has_steps(const struct store *s);
/* The entry of the step with the highest number that is not set aside, if an older version wrote
 * it; else "". Costs one listing and one MANIFEST. */
void store_older_newest(const struct store *s, char ret_dir[STORE_DIR_MAX]);
/* Could a DAMAGED or NEWER step, or one that was set aside, not be read at all (a failing disk, a
 * missing mount, no permission, a newer version's format)? Then it may be complete. */
bool store_step_unread(const struct store_step *st);
/* Did ckptd 0.1 write this step, in the line or set aside? Nothing is known of it, and no step of
 * this program continues it. */
bool store_step_older(const struct store_step *st);
/*
 * Open a step directory for reading, by its entry name. Until store_step_close the directory is
 * locked against removal (prune.h), by processes of other hosts too: close it after the last byte.
 * -ENOENT: there is no such step, or it is being removed.
 */
int store_step_open(const struct store *s, const char *dir, int *ret_fd, struct ckpt_err *err);
/* Of store_step_open and store_resolve; of any other descriptor it is close, and -1 is fine. */
void store_step_close(int fd);
/* store_step_close for a thread that must not wait for a server: another thread removes what other
 * hosts see. store_leave_wait: waits until it has, at most ns; before a process ends. */
void store_step_leave(int fd);
void store_leave_wait(uint64_t ns);
static inline void store_step_closep(int *fd)
{
	store_step_close(*fd);
}
#define cleanup_step_close __attribute__((cleanup(store_step_closep)))

/* --- is it the checkpoint that was asked for? (store_identity.c) --- */

/*
 * Compares
 *	the step in MANIFEST		with the number in the name of the directory
 *	the job in MANIFEST		with home: the job that the job's directory belongs to
 *	the parent's id in MANIFEST	with the id of the step of that number in the job's directory
 * Of an adopted step it compares the number alone. It compares the parent's id if MANIFEST of st
 * has one, and if parent (NULL: no comparison) is that step, is committed (its MANIFEST is
 * readable, it is neither quarantined nor misplaced), has a lower number than st, is not adopted,
 * and has a MANIFEST that ckptctl repair did not make (that id is new). It compares no parent of a
 * step that was set aside, which belongs to another line. 0, or -EUCLEAN and the reason in `why`.
 */
int store_identity(const struct store_step *st, const char *home, const struct store_step *parent,
		   char why[200]);

/*
 * The job that a job's directory belongs to, whatever its name: that of .ckptd/job-NAME, which
 * store_open makes with create. If there are several (two directories were copied into one), the
 * one with the directory's name, s->job; else the first by name. If there is none: s->job. So a
 * directory that was renamed or copied with its .ckptd still belongs to its job.
 */
int store_home(const struct store *s, char ret[CKPT_JOB_MAX + 1], struct ckpt_err *err);
/* The directory belongs to s->job from now on, durably. Its steps do not change: see
 * LABEL_ADOPTED. */
int store_home_take(const struct store *s, struct ckpt_err *err);

/*
 * One step as store_scan returns it, without the cost of the others. It compares number, job and
 * labels of the parent, and not the parent's own parent. It leaves notes out. -ENOENT; -EINVAL: no
 * step's name.
 */
int store_step_judge(const struct store *s, const char *dir, struct store_step *ret,
		     struct ckpt_err *err);

/*
 * May a step of the line, or one that was set aside, be used by its name? 0; -EBADMSG: it is
 * misplaced;
 * -EPROTONOSUPPORT: a newer or an older version wrote it. The sentence has the directory, what is
 * in it, and what to do. Damaged steps may be used: their reader says what is wrong. where: the
 * job's directory, for sentences.
 */
int store_step_refuse(const struct store_step *st, const char *where, struct ckpt_err *err);
/* --- writing. Threads: parts of one transaction may be made by several at a time. --- */
struct store_txn;

/* -ESTALE: another launch has claimed the job. -EIO: store_here. -EINVAL: nothing was claimed
 * through s, or the step is UINT64_MAX. */
int store_begin(struct store *s, uint64_t step, struct store_txn **ret, struct ckpt_err *err);

/* Create a part file under a fresh name, O_EXCL, for writing, with O_DIRECT if *direct is set; it
 * clears *direct if the file system refuses that. It allocates bytes_max if the file system can, so
 * that -ENOSPC comes early. */
int store_part_create(struct store_txn *x, uint32_t writer, uint64_t bytes_max, bool *direct,
		      char ret_name[40], int *ret_fd, struct ckpt_err *err);

/* The identity of a part's file, for a later step that links it. All zero: unknown, so no step
 * links it. */
struct store_part_id {
	uint64_t dev, ino, bytes, modified_ns;
};
/* Is the open file that one? */
bool store_part_is(const struct io_ops *ops, int fd, const struct store_part_id *id);

/* Truncate to the true length, sync, close. After an error the file is dead and unlinked: create
 * another one from memory, and do not use this one again. It closes fd in any case. ret_id: NULL,
 * or gets the file's identity. */
int store_part_finish(struct store_txn *x, const char *name, int fd, uint64_t bytes,
		      struct store_part_id *ret_id, struct ckpt_err *err);
/*
 * Link the file `name` of another step into this one, under a fresh name, instead of writing the
 * part again. dirfd: that step's directory, which store_step_open keeps from removal. id: the
 * file's identity, which this launch has from store_part_finish, or because it has read and
 * verified all of it.
 * -EXDEV: write the part instead, because the file system refuses the link, the file does not exist
 * any more, or it is another file than id (then nothing stays linked). Other errors: as of
 * store_part_create.
 */
int store_part_link(struct store_txn *x, uint32_t writer, int dirfd, const char *name,
		    const struct store_part_id *id, char ret_name[40], struct ckpt_err *err);
/* The entry of a committed step, for store_step_open. */
void store_name_step(uint64_t step, char ret[STORE_DIR_MAX]);
/* Close and unlink a part that was created, instead of finishing it. */
void store_part_drop(struct store_txn *x, const char *name, int fd);

/*
 * Write and sync MANIFEST, sync the directory, check the claim, set the steps above rewind aside
 * (newest first, each synced), rename to step-N, sync the parent. The step is committed if and only
 * if the result is 0. rewind: the newest step of the line that this one continues; UINT64_MAX: it
 * continues no step, and every other step is set aside. While the commit sets steps aside, prune.h
 * removes none, so the step that this one continues is there if the commit fails.
 * The transaction ends whatever the result. After an error the collecting directory is removed, or
 * is trash for the next claim, and the steps that were set aside are back in their places. One
 * error is an exception: -EIO with "may or may not be visible" in its text. Then the rename was
 * done, is perhaps not durable, and nothing was changed since.
 * -ESTALE: the claim is lost. -EIO: store_here. -EEXIST: step-N exists and belongs to the line that
 * is continued.
 * -EINVAL: the step is not above rewind, or a part is neither finished nor dropped. -ENOSPC.
 */
int store_commit(struct store_txn *x, const void *manifest, uint64_t bytes, uint64_t rewind,
		 struct ckpt_err *err);
/* NULL is fine. Parts that are open stay open: their writers close them. */
void store_abort(struct store_txn *x);

/* --- names that people type --- */
struct store_ref {
	/* the step directory, locked against removal (store_step_open) until store_step_close */
	int step_fd;
	char path[4096]; /* absolute; the result 1: of a file or a directory that is no step */
	/* a sentence for the user: newer steps that "latest" passed over, and why; or that the step
	 * at a path is misplaced. "": none */
	char note[512];
	bool passed;		 /* it is about steps that "latest" passed over */
	char dir[STORE_DIR_MAX]; /* found by a step's name: its entry; "" by path */
	uint8_t id[16];		 /* of it then: engine_open compares it */
};

/*
 * The step that name means (address.h): below where (NULL: "."; a store with one job, or a job
 * directory), unless the name says which job, or is a path. latest passes damaged, misplaced and
 * quarantined steps over (note), and stops at one that a newer or an older version wrote:
 * -EPROTONOSUPPORT. Other names resolve to damaged and quarantined steps, and their reader says
 * what is wrong. A misplaced step has no name: -EBADMSG (store_step_refuse). -ENOENT (exit 10)
 * lists the nearest steps or tags; -EUCLEAN: the step is not committed, or all are damaged (5);
 * -ENOTUNIQ: several jobs, all listed.
 *
 * A path, or a word that is no name of a step and is called so here, is a step if the directory has
 * the name of one (step-N, .old-...), wherever it lies: it is locked, and a note says if it is
 * misplaced. All else at a path is for the formats: 1, with ret->path, and nothing is open.
 */
int store_resolve(const struct io_ops *ops, const struct format *format, const char *where,
		  const char *name, struct store_ref *ret, struct ckpt_err *err);

/* The same, and "step:N" is also the one step of that number that was set aside, where the line has
 * none.
 * -ENOTUNIQ: several were, all listed. */
int store_resolve_aside(const struct io_ops *ops, const struct format *format, const char *where,
			const char *name, struct store_ref *ret, struct ckpt_err *err);
/* As store_resolve, but a number, an entry or a tag may also name a step that an older version
 * wrote and that this one cannot read. For ckptctl rm. */
int store_resolve_any(const struct io_ops *ops, const struct format *format, const char *where,
		      const char *name, struct store_ref *ret, struct ckpt_err *err);

/*
 * May something be made at this path, which is no step that its job commits? -EINVAL: no. It is in
 * the directory of a job, which has steps and labels and nothing else: links and relative paths are
 * followed, and of a directory that exists all that is around it counts. Or stores call a step so
 * (step-N, .old-.., .tmp-.., .trash-..), wherever it is: the job into whose directory it comes
 * would set it aside, or read it. own_step: step-N with this N is allowed (a copy of that step);
 * UINT64_MAX: none is. What cannot be found out is no reason to refuse.
 */
int store_outside(const struct io_ops *ops, const char *path, uint64_t own_step,
		  struct ckpt_err *err);
/* No format knows what is at a path: -ENOENT with a sentence if it is a job's directory, else 0. */
int store_path_job(const struct io_ops *ops, const char *path, struct ckpt_err *err);

/* Is it a job's directory (it has .ckptd or a step)? 1 yes, 0 no, -errno. */
int store_is_job(const struct io_ops *ops, int fd);
/*
 * Calls `each` for the jobs of a path, by name: for the path itself if it is a job directory, else
 * for each subdirectory that is one. No job is no error. job_fd is
 * closed after `each`; a result != 0 of `each` ends the loop and is returned. -ENOENT: there is no
 * such path.
 */
int store_jobs(const struct io_ops *ops, const char *path,
	       int (*each)(void *arg, const char *job, int job_fd, const char *abs_path), void *arg,
	       struct ckpt_err *err);
/* store_jobs passes over directories that this user may not open. If there are any: -EACCES with
 * their names; else 0 or what store_jobs returns. */
int store_jobs_closed(const struct io_ops *ops, const char *path, struct ckpt_err *err);
/* For a path without jobs. 0: it is an empty directory, which may become a store. -ENOENT: it is no
 * store, and the sentence lists stores below it (a bounded search, some levels down). */
int store_none(const struct io_ops *ops, const char *path, struct ckpt_err *err);
#endif
