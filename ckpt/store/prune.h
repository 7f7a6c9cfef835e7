/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune.h - remove steps by a policy. Called by the daemon after a commit and when space runs
 * out, and by ckptctl prune.
 *
 * Removal of a step: lock its directory for nobody else, look again that the name leads to it and that
 * nobody has held or tagged it since, rename it to .trash-%08x, sync the job directory, unlink what the
 * store made in it, remove its marks. What else is in it (.nfs0001, an editor's backup, a directory, a
 * link) stays where it is, in .trash-%08x, which repair lists. So a crash at any point leaves the step whole or trash, which the next
 * claim or prune sweeps; and a power loss brings no step back with files missing, for they go only
 * after the rename is durable.
 *
 * Never removed:
 *	the newest committed step
 *	a step that is being read: readers hold a shared lock (store_step_open, store_resolve). Where the
 *	  file system has no locks nothing can be known and nothing is removed. Locks of a directory on a
 *	  network file system are mostly the host's own: a reader on another host gets an error (ESTALE),
 *	  never other bytes
 *	a step without a newer committed one (a higher seq) that is kept and verified: the newest committed
 *	  one is verified first, by its mark or now by the caller; it stays locked and is looked at again
 *	  before each removal: it is there, and not found damaged. For a step that was set aside, when it is
 *	  asked for (set_aside, store_remove), any committed one will do
 *	a step that is misplaced, or that a newer version wrote, in the line or set aside; one that an
 *	  older version wrote (STORE_OLDER) only by store_remove, which is given its name
 *	unless bad was asked for: a step that is damaged or quarantined, that lacks a part or has one of another
 *	  length (one stat for each part of what would go, and of the newest)
 *	a directory that belongs to another user
 *	any file that the store did not make
 *
 * Nothing is removed from a directory to which its name no longer leads (store_here): looked up at the
 * beginning and before each removal.
 * Nothing is removed while a job that goes back sets steps aside and commits (store_commit): between
 * the two the newest step may be one that a policy would not keep.
 * Works with and without a claim, beside a running daemon and beside a second prune.
 */
#ifndef CKPT_STORE_PRUNE_H
#define CKPT_STORE_PRUNE_H
#include "ckpt/store/retain.h"

/*
 * Check every byte of a step: the caller's, for the store cannot. step_fd: its directory, locked,
 * borrowed. 0: all is right. -EBADMSG: it is damaged, and err is the sentence that
 * the quarantine keeps. -EPROTO, -EUCLEAN: it contradicts itself, or lacks a part, which no mark keeps. Else it could not be checked, which ends what asked for it.
 */
typedef int store_verify_fn(void *arg, const struct store_step *st, int step_fd,
			    struct ckpt_err *err);

struct prune_opts {
	const struct retain_policy *policy; /* NULL: none */
	bool bad; /* remove damaged and quarantined steps too, where they are neither held nor tagged */
	/* Remove the steps that were set aside, whatever the policy says of them and before all others: but those
	 * that are held or tagged, and those that could not be read */
	bool set_aside;
	bool dry;	 /* decide and tell, change nothing, verify nothing */
	uint64_t now_ns; /* wall_ns() */
	uint64_t
		free_bytes; /* != 0: enough when so many were freed, oldest first; the rest is kept */
	struct links *links; /* NULL, or of several jobs of a store: files that steps share */
	/* NULL: only a step with a verified mark counts as verified */
	store_verify_fn *verify;
	/* NULL, or told once of each step, newest first, when all is done; reason says what was */
	void (*row)(void *arg, const struct store_step *st, const struct retain_row *row);
	void *arg; /* of both */
};

struct prune_result {
	uint32_t removed, kept; /* steps; of a dry run: that would be */
	uint32_t busy;		/* kept because they are being read */
	uint32_t failed;	/* kept because they could not be removed: reason says why */
	struct ckpt_err why;	/* of the first of these */
	uint32_t quarantined;	/* found damaged by verify, by this call */
	uint32_t faulty;       /* newest steps that this call found to lack a part, or to contradict
				 * themselves: nothing relies on them, and no mark is made */
	struct ckpt_err fault; /* of the first of these */
	char fault_dir[STORE_DIR_MAX]; /* its entry */
	uint64_t freed;		       /* bytes of files whose last name goes */
	uint64_t shared; /* bytes of what was removed that stay, because other names lead to them */
	bool unseen;	 /* some files could not be looked at: freed and shared may be wrong */
	bool unverified; /* something was to be removed, and no newer step is verified: kept (of a dry
			  * run: one will be verified first) */
	uint64_t newest; /* the step that stays in any case; UINT64_MAX: nothing is committed */
};

/*
 * Decide and remove. Trash is swept first (not when dry). 0 also where single steps could not be
 * removed (ret->busy, ret->failed). Negative: nothing more could be done; ret says what was.
 */
int store_prune(struct store *s, const struct prune_opts *o, struct prune_result *ret,
		struct ckpt_err *err);

/*
 * Remove the step in this entry of the job directory: committed, set aside, damaged, quarantined, or of an older
 * version. -EBUSY: it is the last complete step of the line (or the last of an older version, and none is
 * complete), held, tagged, or the line is being changed; -EAGAIN: it is being read;
 * -EOPNOTSUPP: no locks here; -EPERM: another user's; -ENOENT. dry: only say whether it would be.
 * ret (may be NULL): the step as it was, and how many of its bytes stay (shared); ret_left: "", or the .trash-%08x where files stay that the store
 * did not make.
 */
int store_remove(struct store *s, const char *dir, bool dry, uint64_t now_ns,
		 struct store_step *ret, char ret_left[STORE_DIR_MAX], struct ckpt_err *err);
#endif
