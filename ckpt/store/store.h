/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the directory protocol: what makes a set of files a checkpoint, and which one is the
 * latest.
 *
 *	ROOT/JOB/step-%012u/MANIFEST, w....part        committed: visible if and only if complete
 *	        /.tmp-%012u-g%08u-%08x/                collecting: step, generation, nonce
 *	        /.old-%012u-s%u-t%u/                   set aside: step, seq, and when, in seconds since 1970:
 *	                                               the job went back to an older step and committed again.
 *	                                               Where the name is taken: -%08x more. Older programs
 *	                                               wrote no -t
 *	        /.trash-%08x/                          being deleted
 *	        /.ckptd/gen-%08u                       claim of a launch, O_EXCL; holds the claimer's nonce
 *	        /.ckptd/gen-%08u.%u                    the n-th time that claim was taken over, n = 1, 2, ...
 *	        /.ckptd/job-NAME                       empty; the directory belongs to the job of this name
 *	        /.ckptd/KIND-%012u-...                 what is said about a step: held, tagged, ... (mark.h)
 *
 * Life: open -> claim -> older collecting directories are trashed -> scan -> begin -> parts (create,
 * write, finish) -> commit. A store whose claim is not the highest on disk cannot commit (-ESTALE).
 * Trashing is a rename and committing is a rename of the same name: only one of them can win.
 * Nothing that was committed is deleted but by prune.h. The moments of all this have names: points.h.
 *
 * What a reader sees, whatever died at whatever moment: the old steps, or the old steps and the new
 * one. Only a commit that goes back has states in between: the old line without its newest step,
 * without its two newest, ..., down to the step that was gone back to. So has a rewind (rewind.h), and then
 * the new line from its oldest step on.
 *
 * Everything beneath the job directory goes through struct io_ops. No symbolic link is followed.
 * Directories are 0700, files 0600.
 */
#ifndef CKPT_STORE_STORE_H
#define CKPT_STORE_STORE_H
#include <pthread.h>
#include "ckpt/base/source.h"
#include "ckpt/io/io_source.h"
#include "ckpt/store/links.h"
#include "formats/format.h"

#define STORE_DIR_MAX 80 /* bytes of an entry of the job directory, with its zero */

/*
 * A reader may make one by hand: { .ops, .format, .job_fd, .job } and zeros is enough for store_scan and
 * store_step_open.
 */
struct store {
	const struct io_ops *ops;
	const struct format *format; /* of its steps: one with a root */
	int root_fd, job_fd;
	char job[CKPT_JOB_MAX + 1];
	uint32_t nonce; /* random: this opener's */
	bool by_name;	/* of store_open: store_here can find it again */
	char *root;	/* the path that led to root_fd then; NULL: cannot be known */

	pthread_mutex_t lock;	 /* protects all below */
	uint64_t generation;	 /* claimed; 0: none (readers) */
	uint32_t takeover;	 /* how often that claim had changed hands when it became ours */
	struct store_txn *begun; /* begun here and not yet committed or aborted */
};

/* A job name: [A-Za-z0-9._-]{1,64}, no leading dot. -EINVAL says what is wrong. */
int store_job_check(const char *job, struct ckpt_err *err);

/*
 * root_fd is duplicated. create: make ROOT/JOB, .ckptd and job-NAME, and sync them and ROOT, also where
 * they existed: another process may have died before it did. ROOT's own name is the caller's to sync.
 * Without create a missing job is -ENOENT. With it, a directory that belongs to another job (store_home)
 * is -EINVAL, and nothing in it is changed.
 */
int store_open(const struct io_ops *ops, const struct format *format, int root_fd, const char *job,
	       bool create, struct store **ret, struct ckpt_err *err);
/*
 * A directory is looked up, not remembered: do ROOT's path and then ROOT/JOB, no link followed, still
 * lead to the directory that is open here? 0: yes, or it cannot be known (a store made by hand; no stat;
 * a root whose path this process does not see). -EIO, the sentence names the job: it was moved, removed
 * or replaced, and nothing may be written to it, set aside in it or removed from it. Another errno: the
 * name could not be looked up. Asked before each claim, each transaction, each rename of a commit and
 * each removal of a step (prune.h). Any thread.
 */
int store_here(const struct store *s, struct ckpt_err *err);
/* Every transaction must have ended. NULL is fine. */
void store_close(struct store *s);

/*
 * Claim a launch. want 0: the highest + 1. Above the highest: that one. Equal to it: ours already, or
 * taken over when again (the same launch returns after a daemon's death) and -EBUSY when not; who
 * held it before cannot commit any more. Below it: -ESTALE.
 * Then the collecting directories of this and older generations are trashed, except those begun
 * through this struct; trash is removed as far as possible (files may still grow under the hand of a
 * dead process's kernel threads: the next claim gets them); and the job directory is synced, so that
 * what a scan finds from now on stays. Claims of older generations go: fencing needs the highest only.
 * When that fails the claim stands and can be asked for again.
 * -EINVAL: the directory belongs to another job by now (store_home): it was adopted. A store made by
 * hand (root_fd -1) claims it whatever its name.
 */
int store_claim(struct store *s, uint64_t want, bool again, uint64_t *ret_generation,
		struct ckpt_err *err);

/* The highest launch that has claimed the job; 0: none has. */
int store_claimed(const struct store *s, uint64_t *ret_generation, struct ckpt_err *err);

/*
 * After a claim and before a scan that is to find the whole line: wait, some seconds at most, for who
 * checked his claim before this one was made and is setting steps aside. He brings them back, or has
 * committed. -EBUSY: he does not end.
 */
int store_claim_wait(const struct store *s, struct ckpt_err *err);

enum store_state {
	STORE_COMMITTED,
	STORE_COLLECTING, /* step, generation and bytes only */
	STORE_SET_ASIDE,
	STORE_DAMAGED, /* step-N whose MANIFEST cannot be read */
	/* committed, MANIFEST is right, and somebody has found damage: it has a bad mark (mark.h) */
	STORE_QUARANTINED,
	/* step-N whose MANIFEST is right and says that it is another checkpoint (store_identity): the
	 * bytes are right, the place is wrong */
	STORE_MISPLACED,
	STORE_NEWER, /* step-N whose MANIFEST a newer version has written: nothing is known of it */
	/* step-N whose MANIFEST ckptd 0.1 has written, which this program does not read: the same */
	STORE_OLDER,
};

struct store_step {
	uint64_t step, seq, generation, wall_ns, bytes, parent_step; /* UINT64_MAX: none */
	uint64_t aside_ns; /* SET_ASIDE: when; 0: cannot be known */
	uint32_t world;
	uint8_t id[16];
	char dir[STORE_DIR_MAX]; /* entry name in the job directory */
	char mesh[128];		 /* "fsdp=4"; several meshes: the first of those with most ranks */
	const char *format;
	enum store_state state;
	int code; /* 0, or the -errno with which its MANIFEST was looked at; -EUCLEAN: misplaced */
	bool lacks; /* a scan with parts: one that MANIFEST names is missing, or no regular file */
	bool older; /* OLDER, or SET_ASIDE and its MANIFEST is as that of OLDER */
	char why[200]; /* DAMAGED, QUARANTINED, MISPLACED, NEWER, OLDER: what is wrong; SET_ASIDE: "" or the same */
	struct store_said { /* by its MANIFEST; all zero where that cannot be read */
		uint64_t step;
		char job[CKPT_JOB_MAX + 1];
		uint8_t parent_id[16]; /* zero: none */
		bool rebuilt;	       /* ckptctl repair made its MANIFEST, and so its id, anew */
	} said;
	bool adopted; /* it has an adopted mark (mark.h) */
	/* loss, lr, ...: they live and die with the array that store_scan gave */
	uint32_t nnote;
	const struct ckpt_note *note;
	uint32_t link_first, nlink; /* store_scan_parts: its names in links->use */
	uint64_t shared; /* store_remove: of bytes, those that stay under other names (links.h) */
	bool shared_unseen; /* ... and some could not be looked at: it may be wrong */
};

/*
 * All step directories, newest first (seq, then step); collecting and set aside too when all. A
 * damaged, misplaced, newer or older step, whose seq in this line is unknown (0), stands before the newest
 * committed step with a lower number: where it was. So the first COMMITTED entry is "latest", unless a
 * NEWER or OLDER one stands before it: then nobody knows which one is. An adopted step has the seq of another
 * line: where that does not fit between its neighbours by number it gets that of the one below. The next
 * seq to commit is 1 + the highest of a scan with all. *ret is malloc'ed, one block. Foreign entries are
 * ignored.
 */
int store_scan(const struct store *s, bool all, struct store_step **ret, uint32_t *ret_n,
	       struct ckpt_err *err);
/* The same with a stat for every part: a step that lacks one, or has one of another length than MANIFEST says, is
 * DAMAGED (one set aside stays that), with code -EBADMSG and `why`, unless it is misplaced or quarantined; it
 * stands where it would, and its seq and id are known.
 * links: NULL, or a set to which each part that several names lead to is added; several scans may share it. */
int store_scan_parts(const struct store *s, bool all, struct links *links, struct store_step **ret,
		     uint32_t *ret_n, struct ckpt_err *err);
/* Does the job have steps that are not set aside, of whatever state? One listing. True where it cannot be
 * known. */
bool store_has_steps(const struct store *s);
/* Has an older version written the step of the highest number that is not set aside? Its entry; "": no, or there is
 * none. One listing, one MANIFEST. */
void store_older_newest(const struct store *s, char ret_dir[STORE_DIR_MAX]);
/* A DAMAGED or NEWER step, or one set aside, of which nothing is known but that it could not be read (a
 * disk that fails, a mount that is away, permission, a newer version's format): it may be whole. */
bool store_step_unread(const struct store_step *st);
/* In the line or set aside: ckptd 0.1 wrote it. Nothing is known of it, and nothing that this program writes
 * continues it. */
bool store_step_older(const struct store_step *st);
/*
 * Open a step directory for reading, by its entry name. As long as *ret_fd is open the directory is
 * locked against removal (prune.h): close it after the last byte. -ENOENT: gone, or being removed.
 */
int store_step_open(const struct store *s, const char *dir, int *ret_fd, struct ckpt_err *err);

/* --- is it the checkpoint that was asked for? (store_identity.c) --- */

/*
 * Compared are
 *	the step that MANIFEST says		with the number in the name of the directory
 *	the job that MANIFEST says		with home: the job that the job's directory belongs to
 *	the parent's id that MANIFEST says	with the id of the step of that number in the job's directory
 * An adopted step is compared by its number only. The parent is compared where it can be: parent is the
 * step of that number, committed (there, its MANIFEST readable, not quarantined, not misplaced itself),
 * of a lower number than st, neither adopted nor with a MANIFEST that ckptctl repair made (its id is
 * new), and MANIFEST of st has a parent's id. parent NULL: not compared. Of a step that was set aside the
 * parent is not compared: it belongs to another line.
 * 0, or -EUCLEAN, and why says what it is.
 */
int store_identity(const struct store_step *st, const char *home, const struct store_step *parent,
		   char why[200]);

/*
 * The job that a job's directory belongs to, whatever the directory is called: the one of .ckptd/job-NAME,
 * which store_open with create makes. Where there are several (two directories were copied into one) that
 * of the directory's name, s->job, else the first by name. Where there is none: s->job. So a directory
 * that was renamed or copied with its .ckptd still belongs to its job.
 */
int store_home(const struct store *s, char ret[CKPT_JOB_MAX + 1], struct ckpt_err *err);
/* From now on, durably, it belongs to s->job. Its steps do not change: see MARK_ADOPTED. */
int store_home_take(const struct store *s, struct ckpt_err *err);

/*
 * One step as store_scan gives it, without the cost of the others: of the parent its number, job and
 * marks are compared, not again its own parent; notes are left out. -ENOENT, -EINVAL: no step's name.
 */
int store_step_judge(const struct store *s, const char *dir, struct store_step *ret,
		     struct ckpt_err *err);

/* May a step of the line, or one that was set aside, be used by its name? 0, or the sentence that says which
 * directory it is, what it says that it is, and what to do: -EBADMSG where it is misplaced, -EPROTONOSUPPORT
 * where a newer or an older version wrote it. What is wrong with damaged ones is for their reader to say. where: the job's directory, as it is
 * called for people. */
int store_step_refuse(const struct store_step *st, const char *where, struct ckpt_err *err);
/* --- writing. Threads: parts of one transaction may be made by several at a time. --- */
struct store_txn;

/* -ESTALE: another launch has claimed the job. -EIO: store_here. -EINVAL: nothing was claimed through s, or the step is
 * UINT64_MAX. */
int store_begin(struct store *s, uint64_t step, struct store_txn **ret, struct ckpt_err *err);

/* A fresh part file: its name is made here; O_EXCL, write only, and O_DIRECT when *direct (cleared
 * where refused); bytes_max are allocated where the file system can, so that -ENOSPC comes early. */
int store_part_create(struct store_txn *x, uint32_t writer, uint64_t bytes_max, bool *direct,
		      char ret_name[40], int *ret_fd, struct ckpt_err *err);

/* Which file a part is, for a later step that links it. All zero: cannot be known, so it is not linked. */
struct store_part_id {
	uint64_t dev, ino, bytes, modified_ns;
};

/* Truncate to the true length, sync, close. An error kills the file: it is unlinked, create another
 * one from memory and never this one again. fd is closed always. ret_id: NULL, or which file it is. */
int store_part_finish(struct store_txn *x, const char *name, int fd, uint64_t bytes,
		      struct store_part_id *ret_id, struct ckpt_err *err);
/*
 * Instead of writing a part again: link the file `name` of another step into this one, under a fresh
 * name. dirfd: of that step's directory, which store_step_open keeps from removal. id: as this launch
 * remembers the file, from store_part_finish, or because it has read and verified all of it.
 * -EXDEV: write the part instead. The file system refuses the link, the file has gone, or it is
 * not the file that id says (then nothing stays linked). Other errors: as of store_part_create.
 */
int store_part_link(struct store_txn *x, uint32_t writer, int dirfd, const char *name,
		    const struct store_part_id *id, char ret_name[40], struct ckpt_err *err);
/* The entry of a committed step, for store_step_open. */
void store_name_step(uint64_t step, char ret[STORE_DIR_MAX]);
/* Give a created part up instead of finishing it: closed and unlinked. */
void store_part_drop(struct store_txn *x, const char *name, int fd);

/*
 * Write and sync MANIFEST, sync the directory, check the claim, set the steps above rewind aside
 * (newest first, each synced), rename to step-N, sync the parent. Only after 0 is the step committed.
 * rewind: the newest step of the line that this one continues (UINT64_MAX: it continues none: every
 * other step is set aside). No step is removed (prune.h) while others are being set aside: what this
 * one continues is there if it fails.
 * The transaction is over whatever the result. On an error the collecting directory is gone, or trash
 * for the next claim, and the steps that were set aside are back where they were; with one exception,
 * -EIO whose text says "may or may not be visible": the rename was done but is perhaps not durable,
 * and nothing was touched since.
 * -ESTALE: the claim is lost. -EIO: store_here. -EEXIST: step-N exists and belongs to the line that is continued.
 * -EINVAL: the step is not above rewind, or a part is neither finished nor dropped. -ENOSPC.
 */
int store_commit(struct store_txn *x, const void *manifest, uint64_t bytes, uint64_t rewind,
		 struct ckpt_err *err);
/* NULL is fine. Parts that are still open stay open: theirs to close. */
void store_abort(struct store_txn *x);

/* --- names that people type --- */
struct store_ref {
	/* the step directory, locked against removal (store_step_open); the caller closes it */
	int step_fd;
	char path[4096]; /* absolute; the result 1: of a file or a directory that is no step */
	/* "", or which newer steps "latest" has passed over and why, or that what lies at a path is not
	 * what its place says: to be told */
	char note[512];
	char dir[STORE_DIR_MAX]; /* found by a step's name: its entry; "" by path */
	uint8_t id[16];		 /* of it then: engine_open compares it */
};

/*
 * The step that name means (address.h): below where (NULL: "."; a store with one job, or a job
 * directory), unless the name says which job, or is a path. latest passes damaged, misplaced and
 * quarantined steps over (note), and stops at one that a newer or an older version wrote:
 * -EPROTONOSUPPORT. Other names resolve to damaged and quarantined steps, and their reader says what
 * is wrong. A misplaced step has no name: -EBADMSG (store_step_refuse). -ENOENT (exit 10) lists the
 * nearest steps or tags; -EUCLEAN: the step is not committed, or all are damaged (5); -ENOTUNIQ:
 * several jobs, all listed.
 *
 * A path, or a word that is no name of a step and is called so here, is a step if the directory has
 * the name of one (step-N, .old-...), wherever it lies: it is locked, and a note says if it is
 * misplaced. All else at a path is for the formats: 1, with ret->path, and nothing is open.
 */
int store_resolve(const struct io_ops *ops, const struct format *format, const char *where,
		  const char *name, struct store_ref *ret, struct ckpt_err *err);

/* The same, and "step:N" is also the one step of that number that was set aside, where the line has none.
 * -ENOTUNIQ: several were, all listed. */
int store_resolve_aside(const struct io_ops *ops, const struct format *format, const char *where,
			const char *name, struct store_ref *ret, struct ckpt_err *err);
/* As store_resolve, but a number, an entry or a tag may also name a step that an older version wrote and
 * that this one cannot read. For ckptctl rm. */
int store_resolve_any(const struct io_ops *ops, const struct format *format, const char *where,
		      const char *name, struct store_ref *ret, struct ckpt_err *err);

/* No format knows what is at a path: -ENOENT with a sentence if it is a job's directory, else 0. */
int store_path_job(const struct io_ops *ops, const char *path, struct ckpt_err *err);

/*
 * Jobs of a path, by name: the path itself when it is a job directory (it has .ckptd or a step), else
 * its subdirectories that are; none is no error. job_fd is closed after each(); each != 0 ends it and
 * is returned. -ENOENT: no such path.
 */
int store_jobs(const struct io_ops *ops, const char *path,
	       int (*each)(void *arg, const char *job, int job_fd, const char *abs_path), void *arg,
	       struct ckpt_err *err);
/* store_jobs passes over directories that this user may not open: -EACCES with their names where there
 * are any, else 0 or what store_jobs returns. */
int store_jobs_closed(const struct io_ops *ops, const char *path, struct ckpt_err *err);
/* Where store_jobs found none: 0, an empty directory, which may become a store; -ENOENT: it is none, and the
 * sentence has the stores that were found below it (a bounded search, some levels down). */
int store_none(const struct io_ops *ops, const char *path, struct ckpt_err *err);
#endif
