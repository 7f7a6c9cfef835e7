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
#include "ckpt/store/store.h"

#define STORE_MANIFEST "MANIFEST"
#define STORE_CLAIMS ".ckptd"
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
	uint32_t nonce;			/* TMP, TRASH */
	char dir[STORE_DIR_MAX];
};
void store_name_parse(const char *entry, struct store_name *ret);
void store_name_step(uint64_t step, char ret[STORE_DIR_MAX]);
void store_name_tmp(uint64_t step, uint64_t generation, uint32_t nonce, char ret[STORE_DIR_MAX]);
void store_name_old(uint64_t step, uint64_t seq, char ret[STORE_DIR_MAX]);
void store_name_old_again(uint64_t step, uint64_t seq, uint32_t nonce, char ret[STORE_DIR_MAX]);
void store_name_trash(uint32_t nonce, char ret[STORE_DIR_MAX]);

/* The directories of these kinds (or-ed) in a job directory, in no order. *ret is malloc'ed. */
int store_list(const struct io_ops *ops, int job_fd, uint32_t kinds, struct store_name **ret,
	       uint32_t *ret_n);

struct store_txn {
	struct store *s;
	struct store_txn *next; /* in s->begun, under s->lock */
	uint64_t step;
	uint32_t nonce;
	int fd;
	char dir[STORE_DIR_MAX];
	atomic_uint nmade, nopen; /* parts: created ever; neither finished nor dropped yet */
	atomic_bool
		spoiled; /* a dead part could not be unlinked: this directory is no checkpoint */
};

struct store_claimed {
	uint64_t generation;
	uint32_t takeover;
};
/* gen-%08u and gen-%08u.%u; false: neither. */
bool store_claimed_parse(const char *entry, struct store_claimed *ret);
/* 0 while what s has claimed is the highest claim on disk; -ESTALE. */
int store_claim_check(struct store *s, struct ckpt_err *err);

/* Rename to .trash-..., whose name is returned: from now on it is nobody's. -ENOENT, ... */
int store_trash(const struct store *s, const char *dir, char ret_trash[STORE_DIR_MAX]);
/* Remove as much as goes. */
void store_trash_remove(const struct store *s, const char *trash);

int store_nonce(uint32_t *ret, struct ckpt_err *err);
int store_sync(const struct io_ops *ops, int fd);
int store_source_open(const struct io_ops *ops, int dirfd, const char *name, struct source *ret);

/* The sentence, why (r), and what to do next. A quota that is used up is -ENOSPC like a full disk. */
int store_fail(struct ckpt_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#endif
