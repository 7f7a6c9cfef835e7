/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune.h - remove steps by a policy. Called by the daemon after a commit and when space runs
 * out, and by ckptctl prune.
 *
 * To remove a step, the store locks it exclusively, checks again that the name leads to it and that
 * no hold or tag was set since, renames it to .trash-%08x, syncs the job directory,
 * unlinks the files that the store made, and removes its labels. Other entries (.nfs0001, an
 * editor's backup, a directory, a link) stay in .trash-%08x, which repair lists. So a crash at any
 * point leaves a complete step, or trash, which the next claim or prune removes. A power loss
 * brings no step back with files missing, because the store unlinks files only after the rename is
 * durable.
 *
 * Never removed:
 *	the newest committed step
 *	a step that is being read, on whatever host: readers hold a shared lock (store_step_open,
 *	  store_resolve; store_lock.c). If the file system has no locks, the store removes nothing. Where
 *	  other hosts may use it, a reader also leaves a name, which counts for ten minutes after its last
 *	  beat (store_reading.c): so a step stays whose reader's lock is not seen. A reader that leaves none
 *	  (a mount that is read-only, a version before this one, a host that was stopped for ten minutes)
 *	  and whose lock is not seen either gets an error (ESTALE), never other bytes
 *	a step without a newer committed step (a higher seq) that is kept, nor any while no committed step
 *	  that is kept is verified: the newest one, which is verified by its label, or now by the caller;
 *	  or (lean) the newest verified one. It stays locked. Before each removal the store checks that it
 *	  is there and was not found damaged. To remove a step that was
 *	  set aside on request (set_aside, store_remove), any committed step is enough
 *	a step that is misplaced, or that a newer version wrote, in the line or set aside; only store_remove,
 *	  by its name, removes a step that an older version wrote (STORE_OLDER)
 *	without `bad`: a step that is damaged or quarantined, that lacks a part or has one of another length
 *	  (one stat for each part of the steps that would be removed, and of the newest)
 *	a directory that belongs to another user
 *	any file that the store did not make
 *
 * The store removes nothing from a directory if its name does not lead to it any more (store_here);
 * it checks that at the beginning and before each removal. It removes nothing while a job that goes
 * back sets steps aside and commits (store_commit), because meanwhile the newest step may be one
 * that a policy would not keep. It works with and without a claim, beside a running daemon and
 * beside a second prune.
 */
#ifndef CKPT_STORE_PRUNE_H
#define CKPT_STORE_PRUNE_H
#include "ckpt/store/retain.h"

/*
 * Check every byte of a step. The caller does it, because the store reads no data. step_fd: its
 * directory, locked, borrowed. 0: every byte is right. -EBADMSG: it is damaged; the quarantine
 * keeps the sentence in err. -EPROTO, -EUCLEAN: it contradicts itself, or lacks a part; no label
 * keeps that. Any other error: it could not be checked, and the operation ends.
 */
typedef int store_verify_fn(void *arg, const struct store_step *st, int step_fd,
			    struct ckpt_err *err);

struct prune_opts {
	const struct retain_policy *policy; /* NULL: none */
	bool bad; /* remove damaged and quarantined steps too, where they are neither held nor tagged */
	/* Remove the steps that were set aside before all others, whatever the policy says of them,
	 * except those that are held or tagged or could not be read */
	bool set_aside;
	/* Removals rely on the newest verified step, which stays, too, and none is read back as long as
	 * there is one. false: they rely on the newest step, which is verified for it */
	bool lean;
	bool dry;	 /* decide and report, change nothing, verify nothing */
	uint64_t now_ns; /* wall_ns() */
	uint64_t
		free_bytes; /* != 0: enough when so many were freed, oldest first; the rest is kept */
	struct file_links *links; /* NULL, or of several jobs of a store: files that steps share */
	/* NULL: only a step with a verified label counts as verified */
	store_verify_fn *verify;
	/* NULL, or called at the end for each step, newest first; reason: what was done */
	void (*row)(void *arg, const struct store_step *st, const struct retain_row *row);
	void *arg; /* of both */
};

struct prune_result {
	uint32_t removed, kept; /* steps; of a dry run: that would be */
	uint32_t busy;		/* kept because they are being read */
	uint32_t failed;	/* kept because they could not be removed: see reason */
	struct ckpt_err why;	/* of the first of these */
	uint32_t quarantined;	/* found damaged by verify, by this call */
	uint32_t faulty;       /* newest steps that lack a part or contradict themselves: no removal
				 * relies on them, and they get no label */
	struct ckpt_err fault; /* of the first of these */
	char fault_dir[STORE_DIR_MAX]; /* its entry */
	uint64_t freed;		       /* bytes of files whose last name is removed */
	uint64_t shared; /* bytes of what was removed that stay, because other names lead to them */
	bool unseen;	 /* the state of some files is unknown: freed and shared may be wrong */
	bool unverified; /* something was to be removed, and no newer step is verified: kept (of a dry
			  * run: one will be verified first) */
	uint64_t newest; /* the step that stays in any case; UINT64_MAX: nothing is committed */
};

/*
 * Decide and remove. Unless dry, it removes trash first. 0 also if single steps could not be
 * removed (ret->busy, ret->failed). Negative: it stopped; ret says what was done.
 */
int store_prune(struct store *s, const struct prune_opts *o, struct prune_result *ret,
		struct ckpt_err *err);

/*
 * Remove the step in this entry of the job directory: committed, set aside, damaged, quarantined,
 * or of an older version. -EBUSY: it is the last complete step of the line (or the last of an older
 * version, and none is complete), held, tagged, or the line is being changed; -EAGAIN: it is being
 * read;
 * -EOPNOTSUPP: no locks here; -EPERM: another user's; -ENOENT. dry: check, and remove nothing.
 * ret (may be NULL): the step before its removal, and how many of its bytes stay (shared).
 * ret_left: "", or the .trash-%08x with files that the store did not make.
 */
int store_remove(struct store *s, const char *dir, bool dry, uint64_t now_ns,
		 struct store_step *ret, char ret_left[STORE_DIR_MAX], struct ckpt_err *err);
#endif
