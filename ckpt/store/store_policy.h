/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_policy.h - the retention policy of a job: a small file in its directory, which every ckptd
 * that serves the job obeys. Written by ckptd for a trainer that asks for one (ckpt_opts.keep_last,
 * ...), and by ckptctl keep; read by ckptd before it removes steps, and by ckptctl.
 *
 *	JOB/.ckptd/keep-%012u
 *
 * Of several the one with the highest number counts, whole; the others are old. A policy never
 * changes under its name, because hosts of a network file system may read the old content of a file
 * that was replaced for half a minute. At most 4 KiB of lines "key=value", each ended by a newline:
 * by= (user@host and the program; text), any number of rules (retain_policy.h), and end= as the last
 * one. Without a rule the policy keeps every step. set-aside-for= alone does that, too.
 *
 * To set a policy, the store writes keep-new-%08x, syncs it, renames it to the next number, which no
 * file may have, and syncs .ckptd. So a policy is complete or not there, and of two that are set at
 * once the second one counts, complete. Whoever then gets the lock of the job's line removes the
 * older ones, and what dead writers left.
 *
 * A policy that cannot be read keeps every step: if its file is no regular file, is too large,
 * belongs to another user than the job's directory, is malformed, has a key of a newer version, or
 * cannot be opened. A reader says why, and removes no step by any other policy instead.
 */
#ifndef CKPT_STORE_STORE_POLICY_H
#define CKPT_STORE_STORE_POLICY_H
#include "ckpt/base/retain_policy.h"
#include "ckpt/store/store.h"

#define STORE_POLICY_BYTES_MAX 4096
#define STORE_POLICY_BY_MAX 160

enum store_policy_state {
	STORE_POLICY_NONE, /* the job has none */
	STORE_POLICY_SET,
	STORE_POLICY_UNREAD, /* it has one that cannot be read: every step is kept */
};

struct store_policy {
	enum store_policy_state state;
	struct retain_policy rules; /* all zero unless SET */
	uint64_t number;	    /* of its file; 0: none */
	uint64_t set_ns;	    /* when, by the clock of the file system; 0: not known */
	char by[STORE_POLICY_BY_MAX];
	char why[256]; /* UNREAD */
};

/* The policy of the job. It never fails: what cannot be read is UNREAD. */
void store_policy_read(const struct store *s, struct store_policy *ret);
/*
 * Set it, durably. who: the program that asks, for people: "ckptctl keep". If the policy is the same already, nothing is
 * written. ret (may be NULL): the policy that is in force by then. A store without a claim is
 * enough. -EIO: store_here; -EROFS, -EACCES, -ENOSPC, ...: it cannot be written, and what was in
 * force still is, but for an error of the last sync, after which the new one may be. -EOVERFLOW: the
 * numbers are used up.
 */
int store_policy_set(const struct store *s, const struct retain_policy *rules, const char *who,
		     struct store_policy *ret, struct ckpt_err *err);

/* The content of a file, pure: fuzzed. 0: ret has rules and by. -EPROTO, -EPROTONOSUPPORT: a key of
 * a newer version; and why. */
int store_policy_parse(const char *text, uint64_t bytes, struct store_policy *ret,
		       struct ckpt_err *err);
/* Returns its length; ret has space for STORE_POLICY_BYTES_MAX. */
uint32_t store_policy_print(const struct store_policy *p, char *ret);
#endif
