/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_impl.h - what the store's files share: names of directory entries, claims, trash, sentences.
 * Private to the room.
 */
#ifndef CKPT_STORE_IMPL_H
#define CKPT_STORE_IMPL_H
#include <stdatomic.h>
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/store/mark.h"
#include "ckpt/store/points.h"

#define STORE_ROOT_MAX 32 /* bytes of the name of a format's root, with its zero */
#define STORE_CLAIMS ".ckptd"
#define STORE_REPAIR_TOOL "ckptctl repair" /* whose MANIFEST has a new id (repair.h) */
#define STORE_TRIES_MAX 16 /* fresh names that turn out taken: random ones never do */
#define STORE_SWEEP_MAX 8  /* times trash is emptied before it is left to the next claim */
#define STORE_ENTRIES_MAX (1u << 20) /* of a job directory; more is somebody's mistake */

/* What an entry of the job directory is. Only names that we print ourselves are ours. */
enum store_kind {
	STORE_FOREIGN = 0,
	STORE_STEP = 1 << 0,
	STORE_TMP = 1 << 1,
	STORE_OLD = 1 << 2,
	STORE_TRASH = 1 << 3,
};
struct store_name {
	enum store_kind kind;
	uint64_t step, generation, seq; /* where the kind has them */
	uint64_t aside_s;		/* OLD */
	uint32_t nonce;			/* TMP, TRASH */
	char dir[STORE_DIR_MAX];
};
/* Each moves *p behind what it has found; false: not there. hex: 8 digits, lower case. */
bool store_take_text(const char **p, const char *text);
bool store_take_decimal(const char **p, uint64_t *ret);
bool store_take_hex(const char **p, uint32_t *ret);
void store_name_parse(const char *entry, struct store_name *ret);
void store_name_tmp(uint64_t step, uint64_t generation, uint32_t nonce, char ret[STORE_DIR_MAX]);
/* aside_s: when it was set aside, seconds since 1970; UNKNOWN: a program that did not say it did that. */
#define STORE_ASIDE_UNKNOWN UINT64_MAX
#define STORE_ASIDE_MAX (UINT64_MAX / NS_PER_S)
void store_name_old(uint64_t step, uint64_t seq, uint64_t aside_s, char ret[STORE_DIR_MAX]);
void store_name_old_again(uint64_t step, uint64_t seq, uint64_t aside_s, uint32_t nonce,
			  char ret[STORE_DIR_MAX]);
void store_name_trash(uint32_t nonce, char ret[STORE_DIR_MAX]);

/* The directories of these kinds (or-ed) in a job directory, in no order. *ret is malloc'ed. */
int store_list(const struct io_ops *ops, int job_fd, uint32_t kinds, struct store_name **ret,
	       uint32_t *ret_n);

/* Is it a job's directory? 1 yes, 0 no, -errno. (store_find.c) */
int store_is_job(const struct io_ops *ops, int fd);

/* store_resolve of a path. (store_path.c) */
int store_path_find(const struct io_ops *ops, const struct format *format, const char *path,
		    struct store_ref *ret, struct ckpt_err *err);

struct store_txn {
	struct store *s;
	struct store_txn *next; /* in s->begun, under s->lock */
	uint64_t step;
	uint32_t nonce;
	int fd;
	char dir[STORE_DIR_MAX];
	atomic_uint nmade, nopen; /* parts: named ever; created, neither finished nor dropped yet */
	atomic_bool
		spoiled;    /* a dead part could not be unlinked: this directory is no checkpoint */
	atomic_bool linked; /* it has a part of another step */
};

/* --- locks (store_lock.c) --- */

/*
 * Open a directory by its entry name and lock it, until the descriptor is closed: shared to read what
 * is in it, exclusive to remove it. Looked at again under the lock: the name leads to it. -EAGAIN:
 * somebody's lock is in the way. -EOPNOTSUPP, exclusive only: no locks here. -ENOENT, ...
 */
int store_hold(const struct store *s, const char *dir, bool exclusive, int *ret_fd);
/* Is what is open as a what is open as b? 0, -ESTALE: it is not, ... Where it cannot be known they are
 * taken for the same. */
int store_same_check(const struct io_ops *ops, int a, int b);
/* Does the entry lead to the directory that is open as fd? 0, -ENOENT, -ESTALE: to another one, ... */
int store_hold_check(const struct store *s, const char *dir, int fd);
/*
 * The line of the job's steps: exclusive for who sets steps aside, waiting for a few seconds, shared
 * for who removes one, who does not wait. *ret_fd -1: no locks here, which is no error for exclusive.
 */
int store_line_lock(const struct store *s, bool exclusive, bool wait, int *ret_fd);
/* Under it: from its name to this one, or to another one where it is taken, which is returned. */
int store_aside_rename(const struct store *s, const char *from, char to[STORE_DIR_MAX]);

/* --- one step (store_scan.c) --- */

/* The name of the file that makes a directory a step: "MANIFEST". */
const char *store_root(const struct store *s);

/* What a directory is now. 0, with state, id and all; -ENOENT. */
int store_step_look(const struct store *s, const char *dir, struct store_step *ret);
/* The same with a stat for each part, and code and why as store_scan_parts tells them; the state stays. */
int store_step_look_parts(const struct store *s, const char *dir, struct store_step *ret);
/* What code and lacks are called, before why. */
const char *store_step_fault(const struct store_step *st);
/* Sum of its file sizes, as far as they can be seen. -ENOENT: the directory has gone. */
int store_bytes_of(const struct store *s, const char *dir, uint64_t *ret);
/* Its files' names, as removal has them, are added to links, from *ret_first on; returns how many of its bytes
 * stay when they and all names in links go. */
uint64_t store_bytes_stay(const struct store *s, const char *dir, struct links *links,
			  uint32_t *ret_first);
/* Its checkpoint's id could be read. */
bool store_step_has_id(const struct store_step *st);
/* It is there, and its MANIFEST does not say its place in the line: it stands where its number puts it. */
bool store_step_lost(const struct store_step *st);
/* An id is 16 bytes here and 32 hexadecimal digits in struct checkpoint. */
void store_id_of(const char *hex, uint8_t ret[16]);
void store_id_print(const uint8_t id[16], char ret_hex[33]);

/* --- whose directory (store_identity.c) --- */

/* In the line or set aside. */
bool store_step_misplaced(const struct store_step *st);
bool store_step_newer(const struct store_step *st);
/* store_step_refuse; where: as this process reaches the job's directory, as far as it can be known. */
int store_step_refuse_in(const struct store *s, const struct store_step *st, struct ckpt_err *err);
/* -EINVAL: it belongs to another job than s->job. */
int store_home_check(const struct store *s, struct ckpt_err *err);

/* --- marks (store_mark.c) --- */

/* The marks with exactly this step and id, of a checkpoint that is no more: as many as go. */
void store_marks_forget(const struct store *s, uint64_t step, const uint8_t id[16]);
/* "2026-11-21T19:30:00Z" */
#define STORE_TIME_BYTES 40
void store_time_print(uint64_t ns, bool fraction, char ret[STORE_TIME_BYTES]);

/* --- claims and trash (store.c) --- */

struct store_claimed {
	uint64_t generation;
	uint32_t takeover;
};
/* gen-%08u and gen-%08u.%u; false: neither. */
bool store_claimed_parse(const char *entry, struct store_claimed *ret);
/* The highest claim on disk; {0, 0} where nobody has claimed. */
int store_claim_highest(const struct store *s, struct store_claimed *ret, struct ckpt_err *err);
/* 0 while s is where its name leads (store_here) and what it has claimed is the highest claim on disk;
 * -ESTALE. */
int store_claim_check(struct store *s, struct ckpt_err *err);

/* What is in a step's directory, or in trash, that the store did not make. */
struct store_foreign {
	uint32_t n;
	char first[256]; /* its name; "" none */
};
/* Has the store made an entry of such a directory? */
bool store_is_ours(const struct store *s, const char *name, unsigned char d_type);
int store_foreign_look(const struct store *s, const char *dir, struct store_foreign *ret);

/* Rename to .trash-..., whose name is returned: from now on it is nobody's. -ENOENT, ... */
int store_trash(const struct store *s, const char *dir, char ret_trash[STORE_DIR_MAX]);
/* Remove what the store made in it (format_root.owns), and it when nothing else is there, when the name is durable (store_trash_sweep) or was never committed. What
 * somebody has locked is being removed by him, or comes back by his hand: it stays. */
void store_trash_remove(const struct store *s, const char *trash);
/* The same by who has it locked as fd. */
void store_trash_empty(const struct store *s, const char *trash, int fd);
/* Sync the job directory (always, or where there is trash), then remove all trash that was there
 * before. */
int store_trash_sweep(const struct store *s, bool always);

int store_nonce(uint32_t *ret, struct ckpt_err *err);
int store_sync(const struct io_ops *ops, int fd);

/* The sentence, why (r), and what to do next. A quota that is used up is -ENOSPC like a full disk. */
int store_fail(struct ckpt_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#endif
