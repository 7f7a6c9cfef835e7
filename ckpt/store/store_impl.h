/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_impl.h - what the store's files share: names of directory entries, claims, trash,
 * sentences. Private to the room.
 */
#ifndef CKPT_STORE_IMPL_H
#define CKPT_STORE_IMPL_H
#include <stdatomic.h>
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/store/label.h"
#include "ckpt/store/points.h"

#define STORE_ROOT_MAX 32 /* bytes of the name of a format's root, with its zero */
#define STORE_CLAIMS ".ckptd"
#define STORE_LOCK_FILE "lock-steps"	   /* in it (store_lock.c) */
#define STORE_REPAIR_TOOL "ckptctl repair" /* whose MANIFEST has a new id (repair.h) */
#define STORE_TRIES_MAX 16 /* fresh names that turn out taken: random ones never do */
#define STORE_SWEEP_MAX 8  /* times trash is emptied before it is left to the next claim */
#define STORE_ENTRIES_MAX (1u << 20) /* of a job directory; a mistake if there are more */

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
/* Each moves *p behind the text that it finds; false: it is not there. hex: 8 digits, lower
 * case. */
bool store_take_text(const char **p, const char *text);
bool store_take_decimal(const char **p, uint64_t *ret);
bool store_take_hex(const char **p, uint32_t *ret);
void store_name_parse(const char *entry, struct store_name *ret);
void store_name_tmp(uint64_t step, uint64_t generation, uint32_t nonce, char ret[STORE_DIR_MAX]);
/* aside_s: when it was set aside, in seconds since 1970; UNKNOWN: an older program wrote no
 * time. */
#define STORE_ASIDE_UNKNOWN UINT64_MAX
#define STORE_ASIDE_MAX (UINT64_MAX / NS_PER_S)
void store_name_old(uint64_t step, uint64_t seq, uint64_t aside_s, char ret[STORE_DIR_MAX]);
void store_name_old_again(uint64_t step, uint64_t seq, uint64_t aside_s, uint32_t nonce,
			  char ret[STORE_DIR_MAX]);
void store_name_trash(uint32_t nonce, char ret[STORE_DIR_MAX]);

/* The directories of these kinds (or-ed) in a job directory, in no order. *ret is malloc'ed. */
int store_list(const struct io_ops *ops, int job_fd, uint32_t kinds, struct store_name **ret,
	       uint32_t *ret_n);

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
 * Open a directory by its entry name and lock it until store_unlock: shared to read it, exclusive to
 * remove it. Under the lock it checks again that the name leads to it. -EAGAIN: another process has
 * a lock. -EOPNOTSUPP, exclusive only: no locks here. -ENOENT, ...
 */
int store_hold(const struct store *s, const char *dir, bool exclusive, int *ret_fd);
/* Gives a lock of any kind back and closes its descriptor; -1 is fine. */
void store_unlock(const struct io_ops *ops, int fd);
/* To keep it while others are removed, even one with its number that was set aside. */
int store_hold_keep(const struct store *s, const char *dir, int *ret_fd);
/* Of a step that has lost its name: processes of other hosts may lock the name again. */
void store_unlock_name(int fd);
/* Are a and b descriptors of the same file? 0: yes, or it is unknown; -ESTALE: no; ... */
int store_same_check(const struct io_ops *ops, int a, int b);
/* Does the entry lead to the directory that is open as fd? 0, -ENOENT, -ESTALE: to another one,
 * ... */
int store_hold_check(const struct store *s, const char *dir, int fd);
/*
 * Lock the line of the job's steps: exclusive to set steps aside, which waits for a few seconds;
 * shared to remove one, which does not wait. *ret_fd -1: no locks here, which is no error for
 * exclusive.
 */
int store_line_lock(const struct store *s, bool exclusive, bool wait, int *ret_fd);
/* Has a process of any host the line locked now? False if that cannot be known. */
bool store_line_busy(const struct store *s);

/* --- readers of other hosts (store_reading.c) --- */

struct store_reading;
/* NULL: the store is this host's alone, or nothing can be left there. */
struct store_reading *store_reading_begin(const struct store *s, uint64_t step);
void store_reading_end(struct store_reading *x); /* NULL is fine */
/* Has another process left that it reads a step of this number? 0; -EAGAIN says who. Removes what
 * dead readers of any step left; UINT64_MAX: does nothing else. */
int store_readings_check(const struct store *s, uint64_t step, struct ckpt_err *err);
/* Calls end(arg) from another thread, which a server may keep waiting. */
void store_later(void (*end)(void *arg), void *arg);
void store_readings_beat(void); /* what a thread does once a minute; for tests */

/* Under that lock: rename `from` to the name in `to`. If it is taken, another name is chosen and
 * returned. */
int store_aside_rename(const struct store *s, const char *from, char to[STORE_DIR_MAX]);

/* --- one step (store_scan.c) --- */

/* The name of the file that makes a directory a step: "MANIFEST". */
const char *store_root(const struct store *s);

/* One step as it is now. 0, with state, id and all; -ENOENT. */
int store_step_look(const struct store *s, const char *dir, struct store_step *ret);
/* The same with a stat for each part, and code and why as of store_scan_parts; the state stays. */
int store_step_look_parts(const struct store *s, const char *dir, struct store_step *ret);
/* Words for code and lacks, which stand before why. */
const char *store_step_fault(const struct store_step *st);
/* Sum of its file sizes, as far as they are known. -ENOENT: there is no such directory. */
int store_bytes_of(const struct store *s, const char *dir, uint64_t *ret);
/* Adds the names of its files that removal would unlink to links, from *ret_first on. Returns how
 * many of its bytes stay after these names and all others in links are removed. */
uint64_t store_bytes_stay(const struct store *s, const char *dir, struct file_links *links,
			  uint32_t *ret_first);
/* Its checkpoint's id could be read. */
bool store_step_has_id(const struct store_step *st);
/* It exists, and its MANIFEST does not give its place in the line: its number does. */
bool store_step_lost(const struct store_step *st);
/* The other way round: store_id_parse of label_words.h. */
void store_id_print(const uint8_t id[16], char ret_hex[33]);

/* --- whose directory (store_identity.c) --- */

/* In the line or set aside. */
bool store_step_misplaced(const struct store_step *st);
bool store_step_newer(const struct store_step *st);
/* store_step_refuse; where: the path of the job's directory for this process, if it is known. */
int store_step_refuse_in(const struct store *s, const struct store_step *st, struct ckpt_err *err);
/* -EINVAL: it belongs to another job than s->job. */
int store_home_check(const struct store *s, struct ckpt_err *err);

/* --- labels (store_label.c) --- */

/* Remove the labels with exactly this step and id, whose checkpoint was removed; errors are
 * ignored. */
void store_labels_forget(const struct store *s, uint64_t step, const uint8_t id[16]);

/* user@host of this process. */
void store_maker_print(char *ret, size_t bytes);
/* As much as fits, '?' for what is not printable UTF-8. */
void store_text_take(char *to, size_t bytes, const char *from);
/* A job that was copied without .ckptd gets one, durably. */
int store_claims_make(const struct store *s);

/* --- claims and trash (store.c) --- */

struct store_claimed {
	uint64_t generation;
	uint32_t takeover;
};
/* gen-%08u and gen-%08u.%u; false: neither. */
bool store_claimed_parse(const char *entry, struct store_claimed *ret);
/* The highest claim on disk; {0, 0}: none. */
int store_claim_highest(const struct store *s, struct store_claimed *ret, struct ckpt_err *err);
/* 0 if the name of s leads to it (store_here) and its claim is the highest on disk; -ESTALE. */
int store_claim_check(struct store *s, struct ckpt_err *err);

/* Entries of a step's directory, or of trash, that the store did not make. */
struct store_foreign {
	uint32_t n;
	char first[256]; /* its name; "" none */
};
/* Has the store made an entry of such a directory? */
bool store_is_ours(const struct store *s, const char *name, unsigned char d_type);
int store_foreign_look(const struct store *s, const char *dir, struct store_foreign *ret);

/* Rename to .trash-..., and return that name. -ENOENT, ... */
int store_trash(const struct store *s, const char *dir, char ret_trash[STORE_DIR_MAX]);
/*
 * Remove the files that the store made in it (format_root.owns), and the directory if nothing else
 * is in it. Its name is durable (store_trash_sweep), or it was never committed. A directory that
 * another process has locked stays: that process removes it or brings it back.
 */
void store_trash_remove(const struct store *s, const char *trash);
/* The same for the process that has locked it as fd. */
void store_trash_empty(const struct store *s, const char *trash, int fd);
/* Sync the job directory (always, or if there is trash), then remove the trash that was there
 * before. */
int store_trash_sweep(const struct store *s, bool always);

int store_nonce(uint32_t *ret, struct ckpt_err *err);
int store_sync(const struct io_ops *ops, int fd);

/* The sentence, why (r), and what to do next. A quota that is used up is -ENOSPC like a full
 * disk. */
int store_fail(struct ckpt_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#endif
