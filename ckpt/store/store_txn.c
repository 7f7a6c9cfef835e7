/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_txn.c - one step from an empty collecting directory to a committed checkpoint, or to
 * nothing. Called by the daemon's persist threads and by what writes checkpoints offline.
 * Invariant: step-N appears by one rename, of a directory whose every file and name is durable; and
 * until that rename has succeeded everything done so far can be, and on an error is, undone.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/io/publish.h"
#include "ckpt/store/store_impl.h"

#define JOB_STEP "job %s, step %" PRIu64
#define JOB_STEP_OF(x) (x)->s->job, (x)->step

static void txn_link(struct store_txn *x)
{
	(void)pthread_mutex_lock(&x->s->lock);
	x->next = x->s->begun;
	x->s->begun = x;
	(void)pthread_mutex_unlock(&x->s->lock);
}

static void txn_free(struct store_txn *x)
{
	struct store_txn **at;

	(void)pthread_mutex_lock(&x->s->lock);
	for (at = &x->s->begun; *at != x; at = &(*at)->next)
		continue;
	*at = x->next;
	(void)pthread_mutex_unlock(&x->s->lock);
	if (x->fd >= 0)
		(void)x->s->ops->close(x->s->ops->ctx, x->fd);
	free(x);
}

/* Did a call fail because another launch has trashed the directory? Then err says so. */
static bool txn_is_fenced(struct store_txn *x, int r, struct ckpt_err *err)
{
	return r == -ENOENT && store_claim_check(x->s, err) == -ESTALE;
}

/* Before mkdir the name is on the list of what this struct has begun, so that no claim trashes
 * it. */
static int txn_mkdir(struct store_txn *x, uint64_t generation, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	int r = -EEXIST;

	for (uint32_t i = 0; r == -EEXIST && i < STORE_TRIES_MAX; i++) {
		r = store_nonce(&x->nonce, err);
		if (r)
			return r;
		if (MUTANT(NAMES_REUSED))
			x->nonce = 0;
		(void)pthread_mutex_lock(&x->s->lock);
		store_name_tmp(x->step, generation, x->nonce, x->dir);
		(void)pthread_mutex_unlock(&x->s->lock);
		r = ops->mkdir(ops->ctx, x->s->job_fd, x->dir, 0700);
		if (MUTANT(NAMES_REUSED) && r == -EEXIST)
			r = 0;
	}
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot make its collecting directory",
				  JOB_STEP_OF(x));
	x->fd = ops->open(ops->ctx, x->s->job_fd, x->dir, O_RDONLY | O_DIRECTORY, 0);
	if (x->fd >= 0)
		return 0;
	if (txn_is_fenced(x, x->fd, err))
		return -ESTALE;
	(void)ops->unlink(ops->ctx, x->s->job_fd, x->dir, true);
	return store_fail(err, x->fd, JOB_STEP ": cannot open %s", JOB_STEP_OF(x), x->dir);
}

int store_begin(struct store *s, uint64_t step, struct store_txn **ret, struct ckpt_err *err)
{
	struct store_txn *x;
	uint64_t generation;
	int r;

	*ret = NULL;
	(void)pthread_mutex_lock(&s->lock);
	generation = s->generation;
	(void)pthread_mutex_unlock(&s->lock);
	if (step == UINT64_MAX)
		return ckpt_error(err, -EINVAL,
				  "job %s: step %" PRIu64 " stands for the latest and cannot be "
				  "written",
				  s->job, step);
	if (!generation)
		return ckpt_error(err, -EINVAL,
				  "job %s: step %" PRIu64
				  " cannot be written, no launch was claimed "
				  "here: call store_claim first",
				  s->job, step);
	r = store_claim_check(s, err);
	if (r)
		return r;
	x = calloc(1, sizeof *x);
	if (!x)
		return ckpt_error(err, -ENOMEM, "job %s: no memory to write step %" PRIu64, s->job,
				  step);
	x->s = s;
	x->step = step;
	x->fd = -1;
	txn_link(x);
	r = txn_mkdir(x, generation, err);
	if (r) {
		txn_free(x);
		return r;
	}
	io_point(s->ops, POINT_BEGIN_MADE);
	*ret = x;
	return 0;
}

/* --- parts --- */

static void part_unlink(struct store_txn *x, const char *name)
{
	int r = MUTANT(FAILED_PART_LEFT) ? 0
					 : x->s->ops->unlink(x->s->ops->ctx, x->fd, name, false);

	if (r && r != -ENOENT)
		atomic_store(&x->spoiled, true);
}

void store_part_drop(struct store_txn *x, const char *name, int fd)
{
	(void)x->s->ops->close(x->s->ops->ctx, fd);
	part_unlink(x, name);
	atomic_fetch_sub(&x->nopen, 1);
}

/* Each is given once. */
static void part_name(struct store_txn *x, uint32_t writer, char name[40])
{
	(void)snprintf(name, 40, "w%04" PRIu32 "-%08" PRIx32 "-%03u.part", writer, x->nonce,
		       atomic_fetch_add(&x->nmade, 1u));
}

/* A file system that refuses O_DIRECT may have made the file all the same: its name is spent. */
static int part_try(struct store_txn *x, uint32_t writer, bool direct, char name[40])
{
	const struct io_ops *ops = x->s->ops;
	int fd, flags = O_WRONLY | O_CREAT | (MUTANT(NAMES_REUSED) ? 0 : O_EXCL);

	part_name(x, writer, name);
	fd = ops->open(ops->ctx, x->fd, name, flags | (direct ? O_DIRECT : 0), 0600);
	if (fd == -EINVAL)
		part_unlink(x, name);
	return fd;
}

static int part_open(struct store_txn *x, uint32_t writer, bool *direct, char name[40])
{
	int fd = part_try(x, writer, *direct, name);

	if (fd != -EINVAL || !*direct)
		return fd;
	*direct = false;
	return part_try(x, writer, false, name);
}

int store_part_create(struct store_txn *x, uint32_t writer, uint64_t bytes_max, bool *direct,
		      char ret_name[40], int *ret_fd, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	int r = 0, fd = part_open(x, writer, direct, ret_name);

	*ret_fd = -1;
	if (txn_is_fenced(x, fd, err))
		return -ESTALE;
	if (fd < 0)
		return store_fail(err, fd, JOB_STEP ": cannot create part %s", JOB_STEP_OF(x),
				  ret_name);
	atomic_fetch_add(&x->nopen, 1);
	io_point(ops, POINT_PART_CREATED);
	if (bytes_max)
		r = ops->fallocate(ops->ctx, fd, bytes_max);
	if (r && r != -EOPNOTSUPP) {
		store_part_drop(x, ret_name, fd);
		return store_fail(err, r, JOB_STEP ": no space for %" PRIu64 " bytes of part %s",
				  JOB_STEP_OF(x), bytes_max, ret_name);
	}
	io_point(ops, POINT_PART_RESERVED);
	*ret_fd = fd;
	return 0;
}

/* Which file an open one is; zeros where that cannot be known. */
static void part_identify(const struct io_ops *ops, int fd, struct store_part_id *ret)
{
	struct io_stat st;

	*ret = (struct store_part_id){ 0 };
	if (io_stat(ops, fd, &st) == 0 && st.ino)
		*ret = (struct store_part_id){ .dev = st.dev,
					       .ino = st.ino,
					       .bytes = st.bytes,
					       .modified_ns = st.modified_ns };
}

bool store_part_is(const struct io_ops *ops, int fd, const struct store_part_id *id)
{
	struct store_part_id now;

	part_identify(ops, fd, &now);
	return now.dev == id->dev && now.ino == id->ino && now.bytes == id->bytes &&
	       now.modified_ns == id->modified_ns;
}

int store_part_finish(struct store_txn *x, const char *name, int fd, uint64_t bytes,
		      struct store_part_id *ret_id, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	const char *what = "cut to its length";
	int closed, r = ops->truncate(ops->ctx, fd, bytes);

	if (!r)
		io_point(ops, POINT_PART_CUT);
	if (!r && !MUTANT(PART_NOT_SYNCED)) {
		what = "sync";
		r = store_sync(ops, fd);
	}
	if (!r)
		io_point(ops, POINT_PART_SYNCED);
	if (ret_id)
		part_identify(ops, fd, ret_id);
	closed = ops->close(ops->ctx, fd);
	if (!r && closed && !MUTANT(CLOSE_ERROR_IGNORED)) {
		what = "close";
		r = closed;
	}
	if (r)
		part_unlink(x, name);
	atomic_fetch_sub(&x->nopen, 1);
	if (r)
		return store_fail(err, r,
				  JOB_STEP ": cannot %s part %s, which is given up (write another)",
				  JOB_STEP_OF(x), what, name);
	io_point(ops, POINT_PART_CLOSED);
	return 0;
}

/* What says that a file cannot have a second name here, and not that something is broken. */
static bool link_is_refused(int r)
{
	return r == -EXDEV || r == -EPERM || r == -EMLINK || r == -EEXIST || r == -ENOENT ||
	       r == -EOPNOTSUPP || r == -ENOSYS;
}

/* 1: the linked file is the one that id says; 0: it is another one. */
static int link_compare(struct store_txn *x, const char *name, const struct store_part_id *id)
{
	const struct io_ops *ops = x->s->ops;
	int fd = ops->open(ops->ctx, x->fd, name, O_RDONLY, 0);
	bool same;

	if (fd < 0)
		return fd;
	same = store_part_is(ops, fd, id);
	(void)ops->close(ops->ctx, fd);
	return same || MUTANT(LINK_NOT_COMPARED);
}

int store_part_link(struct store_txn *x, uint32_t writer, int dirfd, const char *name,
		    const struct store_part_id *id, char ret_name[40], struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	int r;

	part_name(x, writer, ret_name);
	if (!id->ino || !ops->link)
		return ckpt_error(err, -EXDEV,
				  JOB_STEP ": part %s cannot be linked, because it cannot be known "
					   "which file it is; write it again",
				  JOB_STEP_OF(x), name);
	r = ops->link(ops->ctx, dirfd, name, x->fd, ret_name);
	if (txn_is_fenced(x, r, err))
		return -ESTALE;
	if (link_is_refused(r))
		return ckpt_error(err, -EXDEV,
				  JOB_STEP ": part %s cannot be linked (%s); write it again",
				  JOB_STEP_OF(x), name, strerror(-r));
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot link part %s", JOB_STEP_OF(x), name);
	atomic_store(&x->linked, true);
	io_point(ops, POINT_PART_LINKED);
	r = link_compare(x, ret_name, id);
	if (r == 1)
		return 0;
	part_unlink(x, ret_name);
	if (txn_is_fenced(x, r, err))
		return -ESTALE;
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot open part %s, which was linked",
				  JOB_STEP_OF(x), ret_name);
	return ckpt_error(err, -EXDEV,
			  JOB_STEP ": part %s is not the file that this launch wrote, so it is not "
				   "linked; write it again",
			  JOB_STEP_OF(x), name);
}

/* --- commit --- */

static int commit_check(struct store_txn *x, uint64_t rewind, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	uint32_t nopen = atomic_load(&x->nopen);
	char dir[STORE_DIR_MAX];
	int fd;

	if (nopen && !MUTANT(OPEN_PARTS_COMMITTED))
		return ckpt_error(err, -EINVAL,
				  JOB_STEP ": %" PRIu32 " of its parts are neither finished nor "
					   "dropped, so it cannot be committed",
				  JOB_STEP_OF(x), nopen);
	if (atomic_load(&x->spoiled) && !MUTANT(SPOILED_COMMITTED))
		return ckpt_error(err, -EIO,
				  JOB_STEP ": a part that failed could not be removed, so its "
					   "directory cannot be committed; begin the step again",
				  JOB_STEP_OF(x));
	if (rewind == UINT64_MAX || x->step > rewind || MUTANT(LINE_OVERWRITTEN))
		return 0;
	store_name_step(x->step, dir);
	fd = ops->open(ops->ctx, x->s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return ckpt_error(err, -EINVAL,
				  JOB_STEP ": it continues step %" PRIu64
					   ", which is not older; steps "
					   "grow along a line",
				  JOB_STEP_OF(x), rewind);
	(void)ops->close(ops->ctx, fd);
	return ckpt_error(err, -EEXIST,
			  JOB_STEP ": %s exists and belongs to the line that step %" PRIu64
				   " ends; to write it again go back to an older step first",
			  JOB_STEP_OF(x), dir, rewind);
}

/* The whole directory becomes durable, MANIFEST last. */
static int commit_manifest(struct store_txn *x, const void *manifest, uint64_t bytes,
			   struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	const char *root = store_root(x->s);
	char name[STORE_ROOT_MAX + 10];
	int r;

	(void)snprintf(name, sizeof name, "%s.%08" PRIx32, root, x->nonce);
	r = publish_put(ops, x->fd, name, manifest, bytes);
	if (!r) {
		io_point(ops, POINT_MANIFEST_SYNCED);
		r = ops->rename(ops->ctx, x->fd, name, root);
	}
	if (txn_is_fenced(x, r, err))
		return -ESTALE;
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot write its %s", JOB_STEP_OF(x), root);
	io_point(ops, POINT_MANIFEST_RENAMED);
	if (!MUTANT(COLLECTING_NOT_SYNCED) && !(MUTANT(LINK_UNSYNCED) && atomic_load(&x->linked)))
		r = store_sync(ops, x->fd);
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot sync its directory", JOB_STEP_OF(x));
	io_point(ops, POINT_COMMIT_DIR_SYNCED);
	return 0;
}

/* Steps that are being set aside: done of n. */
struct aside {
	struct aside_name {
		char from[STORE_DIR_MAX], to[STORE_DIR_MAX];
	} * name;
	uint32_t n, done;
	int lock; /* of the line, until the commit is over; -1: none */
};

/* Newest first, so that whatever is cut short leaves the beginning of a line. Locked: nobody
 * removes what is left of it. */
static int aside_find(struct store_txn *x, uint64_t rewind, struct aside *a, struct ckpt_err *err)
{
	cleanup_free struct store_name *found = NULL;
	cleanup_free struct store_step *step = NULL;
	uint32_t n, above = 0;
	int r;

	r = store_list(x->s->ops, x->s->job_fd, STORE_STEP, &found, &n);
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot list the job's directory",
				  JOB_STEP_OF(x));
	for (uint32_t i = 0; i < n; i++)
		above += rewind == UINT64_MAX || found[i].step > rewind;
	if (!above)
		return 0;
	r = store_line_lock(x->s, true, true, &a->lock);
	if (r == -EAGAIN)
		return ckpt_error(err, -EBUSY,
				  JOB_STEP ": a removal of steps (ckptctl prune, or a daemon) does "
					   "not end, so no step can be set aside; is it stopped?",
				  JOB_STEP_OF(x));
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot lock the job's directory",
				  JOB_STEP_OF(x));
	io_point(x->s->ops, POINT_ASIDE_LOCKED);
	r = store_scan(x->s, false, &step, &n, err);
	if (r)
		return r;
	a->name = calloc((size_t)n + 1, sizeof *a->name);
	if (!a->name)
		return ckpt_error(err, -ENOMEM,
				  JOB_STEP ": no memory to set %" PRIu32 " steps aside",
				  JOB_STEP_OF(x), n);
	for (uint32_t i = 0; i < n; i++) {
		const struct store_step *st = &step[MUTANT(ASIDE_OLDEST_FIRST) ? n - 1 - i : i];
		struct aside_name *m = &a->name[a->n];

		if (rewind != UINT64_MAX && st->step <= rewind)
			continue;
		memcpy(m->from, st->dir, sizeof m->from);
		store_name_old(st->step, st->seq, wall_ns() / NS_PER_S, m->to);
		a->n++;
	}
	return 0;
}

/* The name is taken where a crash between setting aside and committing let a seq be given twice. */
int store_aside_rename(const struct store *s, const char *from, char to[STORE_DIR_MAX])
{
	const struct io_ops *ops = s->ops;
	struct store_name x;
	int r = ops->rename(ops->ctx, s->job_fd, from, to);

	store_name_parse(to, &x);
	for (uint32_t i = 0; r == -EEXIST && i < STORE_TRIES_MAX; i++) {
		uint32_t nonce;

		r = store_nonce(&nonce, NULL);
		if (r)
			return r;
		store_name_old_again(x.step, x.seq, x.aside_s, nonce, to);
		r = ops->rename(ops->ctx, s->job_fd, from, to);
	}
	return r;
}

static int aside_all(struct store_txn *x, struct aside *a, struct ckpt_err *err)
{
	int r;

	while (a->done < a->n) {
		struct aside_name *m = &a->name[a->done];

		r = store_claim_check(x->s, err);
		if (r)
			return r;
		r = store_aside_rename(x->s, m->from, m->to);
		if (r)
			return store_fail(err, r, JOB_STEP ": cannot set %s aside", JOB_STEP_OF(x),
					  m->from);
		a->done++;
		io_point(x->s->ops, POINT_ASIDE_RENAMED);
		r = store_sync(x->s->ops, x->s->job_fd);
		if (r)
			return store_fail(err, r, JOB_STEP ": cannot sync the job's directory",
					  JOB_STEP_OF(x));
		io_point(x->s->ops, POINT_ASIDE_SYNCED);
	}
	return 0;
}

static void aside_undo(struct store *s, struct aside *a)
{
	const struct io_ops *ops = s->ops;

	while (a->done > 0 && !MUTANT(ASIDE_NOT_UNDONE)) {
		a->done--;
		(void)ops->rename(ops->ctx, s->job_fd, a->name[a->done].to, a->name[a->done].from);
		io_point(ops, POINT_UNDO_BACK);
		(void)store_sync(ops, s->job_fd);
	}
}

/*
 * 0: visible. *ret_unknown: it may be, for the collecting directory is gone without anybody having
 * claimed the job since (a file server that answers a repeated rename, for instance).
 */
static int commit_rename(struct store_txn *x, bool *ret_unknown, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	char dir[STORE_DIR_MAX];
	int r = store_here(x->s, err);

	if (r)
		return r;
	store_name_step(x->step, dir);
	r = ops->rename(ops->ctx, x->s->job_fd, x->dir, dir);
	if (r == -EEXIST)
		return ckpt_error(err, r,
				  JOB_STEP ": %s exists, but is no step of this line; move it "
					   "out of the job's directory",
				  JOB_STEP_OF(x), dir);
	if (r == -ENOENT) {
		r = store_claim_check(x->s, err);
		*ret_unknown = !r;
		if (!r)
			r = ckpt_error(err, -EIO,
				       JOB_STEP
				       ": its collecting directory has vanished, the step may "
				       "or may not be visible (ckptctl ls tells)",
				       JOB_STEP_OF(x));
		return r;
	}
	if (r)
		return store_fail(err, r, JOB_STEP ": cannot rename %s to %s", JOB_STEP_OF(x),
				  x->dir, dir);
	io_point(ops, POINT_COMMIT_RENAMED);
	return 0;
}

/* Trash first: then nobody can commit what is being taken apart. */
static void txn_discard(struct store_txn *x)
{
	char trash[STORE_DIR_MAX];

	if (store_trash(x->s, x->dir, trash) == 0) {
		io_point(x->s->ops, POINT_UNDO_TRASHED);
		store_trash_remove(x->s, trash);
	}
}

int store_commit(struct store_txn *x, const void *manifest, uint64_t bytes, uint64_t rewind,
		 struct ckpt_err *err)
{
	struct aside a = { .lock = -1 };
	bool unknown = false;
	int r;

	r = commit_check(x, rewind, err);
	if (!r && MUTANT(RENAMED_EARLY))
		r = commit_rename(x, &unknown, err);
	if (!r)
		r = commit_manifest(x, manifest, bytes, err);
	if (!r)
		r = aside_find(x, rewind, &a, err);
	if (!r)
		r = store_claim_check(x->s, err);
	if (!r)
		io_point(x->s->ops, POINT_COMMIT_CLAIM_CHECKED);
	if (!r && !MUTANT(ASIDE_AFTER_COMMIT))
		r = aside_all(x, &a, err);
	if (!r && !MUTANT(RENAMED_EARLY))
		r = commit_rename(x, &unknown, err);
	if (!r && MUTANT(ASIDE_AFTER_COMMIT))
		r = aside_all(x, &a, err);
	if (r) {
		if (!unknown) {
			txn_discard(x);
			aside_undo(x->s, &a);
		}
	} else if (!MUTANT(JOB_NOT_SYNCED) && store_sync(x->s->ops, x->s->job_fd)) {
		r = ckpt_error(err, -EIO,
			       JOB_STEP
			       ": the job's directory could not be synced after the rename, "
			       "the step may or may not be visible after a power loss",
			       JOB_STEP_OF(x));
	}
	if (!r)
		io_point(x->s->ops, POINT_COMMIT_SYNCED);
	store_unlock(x->s->ops, a.lock);
	free(a.name);
	txn_free(x);
	return r;
}

void store_abort(struct store_txn *x)
{
	if (!x)
		return;
	txn_discard(x);
	txn_free(x);
}
