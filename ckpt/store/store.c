/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - open a job's directory, claim it for a launch, sweep what dead launches left. Called by
 * the daemon and, for reading, by ckptctl.
 * Invariant: whoever has a claim on disk higher than another's has also renamed away, or will
 * before it scans, every collecting directory that the other could still commit.
 */
#include "ckpt/store/store.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>
#include "ckpt/store/claimer.h"
#include "ckpt/store/store_impl.h"

static const char *fail_advice(int r)
{
	switch (r) {
	case -ENOSPC:
		return "; free space there, committed steps are untouched";
	case -EIO:
		return "; the device or its connection reports errors (see dmesg), committed steps "
		       "are untouched";
	case -EACCES:
	case -EPERM:
		return "; does the store belong to another user?";
	case -EROFS:
		return "; mount it writable or choose another store";
	case -EMFILE:
	case -ENFILE:
		return "; raise the limit of open files (ulimit -n)";
	case -ELOOP:
		return "; symbolic links inside a store are not followed";
	default:
		return "";
	}
}

int store_fail(struct ckpt_err *err, int r, const char *fmt, ...)
{
	const char *why = strerrordesc_np(-r);
	char what[300];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	if (r == -EDQUOT)
		r = -ENOSPC;
	return ckpt_error(err, r, "%s: %s%s", what, why ? why : "unknown error", fail_advice(r));
}

int store_nonce(uint32_t *ret, struct ckpt_err *err)
{
	if (getrandom(ret, sizeof *ret, 0) != (ssize_t)sizeof *ret)
		return ckpt_error_errno(err, errno, "no random bytes for a fresh name");
	return 0;
}

int store_sync(const struct io_ops *ops, int fd)
{
	int r = ops->sync(ops->ctx, fd);

	if (r && MUTANT(FAILED_SYNC_RETRIED))
		return ops->sync(ops->ctx, fd);
	return r;
}

/* --- trash --- */

int store_trash(const struct store *s, const char *dir, char ret_trash[STORE_DIR_MAX])
{
	int r = -EEXIST;

	for (uint32_t i = 0; r == -EEXIST && i < STORE_TRIES_MAX; i++) {
		uint32_t nonce;

		r = store_nonce(&nonce, NULL);
		if (r)
			return r;
		store_name_trash(nonce, ret_trash);
		r = s->ops->rename(s->ops->ctx, s->job_fd, dir, ret_trash);
	}
	return r;
}

/* Is it a file that the store made in a step's directory? Where entries have no type the name has
 * to do. All else there is foreign, and is never removed. */
bool store_is_ours(const struct store *s, const char *name, unsigned char d_type)
{
	return (d_type == DT_REG || d_type == DT_UNKNOWN) && s->format->root->owns(name);
}

struct foreign_look {
	const struct store *s;
	struct store_foreign *ret;
};

static int foreign_add(void *arg, const char *name, unsigned char d_type)
{
	struct foreign_look *l = arg;
	struct store_foreign *f = l->ret;

	if (!store_is_ours(l->s, name, d_type) && f->n++ == 0)
		(void)snprintf(f->first, sizeof f->first, "%.*s", (int)sizeof f->first - 1, name);
	return 0;
}

int store_foreign_look(const struct store *s, const char *dir, struct store_foreign *ret)
{
	const struct io_ops *ops = s->ops;
	struct foreign_look l = { .s = s, .ret = ret };
	int r, fd = ops->open(ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);

	*ret = (struct store_foreign){ .n = 0 };
	if (fd < 0)
		return fd;
	r = ops->list(ops->ctx, fd, foreign_add, &l);
	(void)ops->close(ops->ctx, fd);
	return r;
}

struct emptying {
	const struct store *s;
	int fd;
	uint32_t removed;
};

static int emptying_unlink(void *arg, const char *name, unsigned char d_type)
{
	struct emptying *e = arg;
	const struct io_ops *ops = e->s->ops;

	if (!store_is_ours(e->s, name, d_type) && !MUTANT(STRANGERS_REMOVED))
		return 0;
	e->removed += ops->unlink(ops->ctx, e->fd, name, false) == 0;
	io_point(ops, POINT_SWEEP_UNLINKED);
	return 0;
}

/* What somebody else put there stays, and the directory with it. */
void store_trash_empty(const struct store *s, const char *trash, int fd)
{
	const struct io_ops *ops = s->ops;
	struct emptying e = { .s = s, .fd = fd };
	int r = -ENOTEMPTY;

	for (uint32_t i = 0; (r == -ENOTEMPTY || r == -EEXIST) && i < STORE_SWEEP_MAX; i++) {
		e.removed = 0;
		(void)ops->list(ops->ctx, fd, emptying_unlink, &e);
		r = ops->unlink(ops->ctx, s->job_fd, trash, true);
		if (e.removed == 0)
			break;
	}
	io_point(ops, POINT_SWEEP_REMOVED);
}

void store_trash_remove(const struct store *s, const char *trash)
{
	const struct io_ops *ops = s->ops;
	int fd, r = store_hold(s, trash, true, &fd);

	if (r == -EOPNOTSUPP) { /* nothing is removed here that was committed (prune.h) */
		fd = ops->open(ops->ctx, s->job_fd, trash, O_RDONLY | O_DIRECTORY, 0);
		r = MIN(fd, 0);
	}
	if (r)
		return;
	store_trash_empty(s, trash, fd);
	store_unlock(ops, fd);
}

/* The names first: what was a step must not come back after a power loss with files missing. */
int store_trash_sweep(const struct store *s, bool always)
{
	cleanup_free struct store_name *found = NULL;
	uint32_t n;
	int r = store_list(s->ops, s->job_fd, STORE_TRASH, &found, &n);

	if (!r && (n || always) && !MUTANT(SWEEP_NOT_SYNCED))
		r = store_sync(s->ops, s->job_fd);
	if (r)
		return r;
	if (n || always)
		io_point(s->ops, POINT_SWEEP_SYNCED);
	/* A removal of another host may bring back what it has just renamed. */
	if (n && store_line_busy(s))
		return 0;
	for (uint32_t i = 0; i < n; i++)
		store_trash_remove(s, found[i].dir);
	return 0;
}

/* --- open --- */

static int open_made(struct store *s, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r;

	r = ops->mkdir(ops->ctx, s->root_fd, s->job, 0700);
	if (r && r != -EEXIST)
		return store_fail(err, r, "cannot make the directory of job %s in the store",
				  s->job);
	s->job_fd = ops->open(ops->ctx, s->root_fd, s->job, O_RDONLY | O_DIRECTORY, 0);
	if (s->job_fd < 0)
		return store_fail(err, s->job_fd, "cannot open the directory of job %s", s->job);
	r = store_home_check(s, err);
	if (r)
		return r;
	r = ops->mkdir(ops->ctx, s->job_fd, STORE_CLAIMS, 0700);
	if (r && r != -EEXIST)
		return store_fail(err, r, "job %s: cannot make " STORE_CLAIMS, s->job);
	r = store_home_take(s, err);
	if (r)
		return r;
	if (MUTANT(NEW_JOB_NOT_SYNCED))
		return 0;
	r = store_sync(ops, s->job_fd);
	if (!r)
		r = store_sync(ops, s->root_fd);
	if (r)
		return store_fail(err, r, "job %s: cannot sync its directory", s->job);
	return 0;
}

static int open_existing(struct store *s, struct ckpt_err *err)
{
	s->job_fd = s->ops->open(s->ops->ctx, s->root_fd, s->job, O_RDONLY | O_DIRECTORY, 0);
	if (s->job_fd == -ENOENT)
		return ckpt_error(err, -ENOENT,
				  "the store has no job %s: ckptctl ls -C STORE lists what it has",
				  s->job);
	if (s->job_fd < 0)
		return store_fail(err, s->job_fd, "cannot open the directory of job %s", s->job);
	return 0;
}

/* The path is kept where it leads back to the root: behind a mount of another namespace, or a name
 * that is too long, nothing can be known. */
static void root_remember(struct store *s)
{
	char path[PATH_MAX];
	struct io_stat held, found;

	if (io_path(s->ops, s->root_fd, path, sizeof path) == 0 &&
	    io_stat(s->ops, s->root_fd, &held) == 0 && io_find(s->ops, path, &found) == 0 &&
	    held.dev == found.dev && held.ino == found.ino)
		s->root = strdup(path);
}

/* What a name leads to instead of the directory that is held. */
static int not_here(const struct store *s, const char *what, const char *name, int r,
		    struct ckpt_err *err)
{
	const char *now = r == -ENOENT	 ? "nothing"
			  : r == -ELOOP	 ? "a symbolic link"
			  : r == -ESTALE ? "another directory"
					 : "what is no directory";

	return ckpt_error(
		err, -EIO,
		"the directory of job %s was moved or replaced: the name of %s, %s, leads to "
		"%s now, so nothing more is written there; move it back, or start the job "
		"again, which writes to what is there then; ckptctl drain %s --to DIR writes "
		"what is staged to another place",
		s->job, what, name, now, s->job);
}

static bool leads_elsewhere(int r)
{
	return r == -ENOENT || r == -ELOOP || r == -ENOTDIR || r == -ESTALE;
}

int store_here(const struct store *s, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	struct io_stat held, found;
	int fd, r = 0;

	if (!s->by_name || MUTANT(DIRECTORY_REMEMBERED))
		return 0;
	if (s->root && io_stat(ops, s->root_fd, &held) == 0) {
		r = io_find(ops, s->root, &found);
		if (!r && (held.dev != found.dev || held.ino != found.ino))
			r = -ESTALE;
	}
	if (r && r != -EOPNOTSUPP)
		return leads_elsewhere(r) ? not_here(s, "its store", s->root, r, err)
					  : store_fail(err, r, "job %s: cannot find the store %s",
						       s->job, s->root);
	fd = ops->open(ops->ctx, s->root_fd, s->job, O_RDONLY | O_DIRECTORY, 0);
	r = fd < 0 ? fd : store_same_check(ops, fd, s->job_fd);
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (r)
		return leads_elsewhere(r)
			       ? not_here(s, "the job", s->job, r, err)
			       : store_fail(err, r, "cannot look up the directory of job %s",
					    s->job);
	return 0;
}

int store_open(const struct io_ops *ops, const struct format *format, int root_fd, const char *job,
	       bool create, struct store **ret, struct ckpt_err *err)
{
	struct store *s;
	int r;

	assert(format->root && strlen(format->root->name) < STORE_ROOT_MAX);
	*ret = NULL;
	r = store_job_check(job, err);
	if (r)
		return r;
	s = calloc(1, sizeof *s);
	if (!s)
		return ckpt_error(err, -ENOMEM, "job %s: no memory to open its store", job);
	(void)pthread_mutex_init(&s->lock, NULL);
	s->ops = ops;
	s->format = format;
	s->job_fd = -1;
	memcpy(s->job, job, strlen(job) + 1);
	s->root_fd = ops->open(ops->ctx, root_fd, ".", O_RDONLY | O_DIRECTORY, 0);
	if (s->root_fd < 0)
		r = store_fail(err, s->root_fd, "job %s: cannot open the store", job);
	if (!r)
		r = store_nonce(&s->nonce, err);
	if (!r)
		r = create ? open_made(s, err) : open_existing(s, err);
	if (!r) {
		s->by_name = true;
		root_remember(s);
	}
	if (r) {
		store_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	assert(!s->begun);
	if (s->job_fd >= 0)
		(void)s->ops->close(s->ops->ctx, s->job_fd);
	if (s->root_fd >= 0)
		(void)s->ops->close(s->ops->ctx, s->root_fd);
	(void)pthread_mutex_destroy(&s->lock);
	free(s->root);
	free(s);
}

/* --- claims --- */

static int claim_compare(struct store_claimed a, struct store_claimed b)
{
	if (a.generation != b.generation)
		return a.generation < b.generation ? -1 : 1;
	return (a.takeover > b.takeover) - (a.takeover < b.takeover);
}

static int claim_max(void *arg, const char *entry, unsigned char d_type)
{
	struct store_claimed *top = arg, c;

	(void)d_type;
	if (store_claimed_parse(entry, &c) && claim_compare(c, *top) > 0)
		*top = c;
	return 0;
}

int store_claim_highest(const struct store *s, struct store_claimed *ret, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);

	*ret = (struct store_claimed){ 0 };
	if (fd == -ENOENT)
		return 0;
	r = fd < 0 ? fd : ops->list(ops->ctx, fd, claim_max, ret);
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (r)
		return store_fail(err, r, "job %s: cannot read the claims in " STORE_CLAIMS,
				  s->job);
	return 0;
}

int store_claimed(const struct store *s, uint64_t *ret_generation, struct ckpt_err *err)
{
	struct store_claimed top;
	int r = store_claim_highest(s, &top, err);

	*ret_generation = top.generation;
	return r;
}

static struct store_claimed claim_mine(struct store *s)
{
	struct store_claimed c;

	(void)pthread_mutex_lock(&s->lock);
	c = (struct store_claimed){ s->generation, s->takeover };
	(void)pthread_mutex_unlock(&s->lock);
	return c;
}

int store_claim_check(struct store *s, struct ckpt_err *err)
{
	struct store_claimed top, mine = claim_mine(s);
	int r;

	r = store_here(s, err);
	if (r)
		return r;
	if (MUTANT(CLAIM_NOT_CHECKED))
		return 0;
	r = store_claim_highest(s, &top, err);
	if (r)
		return r;
	if (claim_compare(top, mine) == 0)
		return 0;
	if (top.generation == mine.generation)
		return ckpt_error(err, -ESTALE,
				  "job %s: another daemon has taken launch %" PRIu64
				  " over; this one "
				  "commits nothing any more, stop it",
				  s->job, mine.generation);
	if (top.generation < mine.generation)
		return ckpt_error(err, -ESTALE,
				  "job %s: the claim of launch %" PRIu64
				  " is gone from " STORE_CLAIMS "; start the job again",
				  s->job, mine.generation);
	return ckpt_error(err, -ESTALE,
			  "job %s: launch %" PRIu64 " has claimed the store, launch %" PRIu64
			  " commits nothing any more; stop it",
			  s->job, top.generation, mine.generation);
}

/* Which claim to make: 0, or 1 when *ret is held already. */
static int claim_choose(const struct store *s, struct store_claimed top, struct store_claimed mine,
			uint64_t want, bool again, struct store_claimed *ret, struct ckpt_err *err)
{
	if (want == UINT64_MAX || (want == 0 && top.generation >= UINT64_MAX - 1))
		return ckpt_error(err, -EINVAL,
				  "job %s: launch numbers end below %" PRIu64
				  "; the highest claimed is "
				  "%" PRIu64,
				  s->job, UINT64_MAX, top.generation);
	*ret = (struct store_claimed){ want ? want : top.generation + 1, 0 };
	if (ret->generation > top.generation)
		return 0;
	if (ret->generation < top.generation)
		return ckpt_error(err, -ESTALE,
				  "job %s: launch %" PRIu64 " is over, launch %" PRIu64
				  " has claimed "
				  "the store; give a higher number, or 0 for the next",
				  s->job, want, top.generation);
	*ret = top;
	if (claim_compare(mine, top) == 0)
		return 1;
	if (!again || top.takeover == UINT32_MAX)
		return ckpt_error(err, -EBUSY,
				  "job %s: launch %" PRIu64
				  " is claimed by another daemon; stop that "
				  "one, or give a higher number",
				  s->job, want);
	ret->takeover++;
	return 0;
}

/* A full disk need not have room for what the file says. */
static int claim_write(const struct store *s, int fd, const char *path)
{
	const struct io_ops *ops = s->ops;
	char text[CLAIMER_TEXT + 16];
	int n = snprintf(text, sizeof text, "%08" PRIx32 "%s%s\n", s->nonce, s->claimer ? " " : "",
			 s->claimer ? s->claimer : "");
	int r = io_pwrite_all(ops, fd, text, (uint64_t)n, 0), claims;

	if (r == -ENOSPC || r == -EDQUOT)
		r = 0;
	if (!r && !MUTANT(CLAIM_NOT_SYNCED))
		r = store_sync(ops, fd);
	if (!r && !MUTANT(CLAIM_NOT_SYNCED)) {
		claims = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
		r = claims < 0 ? claims : store_sync(ops, claims);
		if (claims >= 0)
			(void)ops->close(ops->ctx, claims);
	}
	if (r)
		(void)ops->unlink(ops->ctx, s->job_fd, path, false);
	return r;
}

static int claim_create(const struct store *s, struct store_claimed c, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	char path[STORE_DIR_MAX];
	int fd, r, closed;
	int n = snprintf(path, sizeof path, STORE_CLAIMS "/gen-%08" PRIu64, c.generation);

	if (c.takeover)
		(void)snprintf(path + n, sizeof path - (size_t)n, ".%" PRIu32, c.takeover);
	fd = ops->open(ops->ctx, s->job_fd, path,
		       O_WRONLY | O_CREAT | (MUTANT(CLAIM_SHARED) ? 0 : O_EXCL), 0600);
	if (fd == -EEXIST)
		return fd;
	if (fd < 0)
		return store_fail(err, fd, "job %s: cannot claim launch %" PRIu64, s->job,
				  c.generation);
	io_point(ops, POINT_CLAIM_MADE);
	r = claim_write(s, fd, path);
	closed = ops->close(ops->ctx, fd);
	if (!r && closed) {
		r = closed;
		(void)ops->unlink(ops->ctx, s->job_fd, path, false);
	}
	if (r)
		return store_fail(err, r,
				  "job %s: cannot make the claim of launch %" PRIu64 " durable",
				  s->job, c.generation);
	io_point(ops, POINT_CLAIM_DURABLE);
	return 0;
}

/* A claim stands when it is on disk and still the highest: somebody may have made a higher one
 * between the look and the creation. 1: try again. */
static int claim_once(struct store *s, uint64_t want, bool again, struct store_claimed *ret,
		      struct ckpt_err *err)
{
	struct store_claimed top, mine = claim_mine(s);
	int r;

	r = store_claim_highest(s, &top, err);
	if (!r)
		r = claim_choose(s, top, mine, want, again, ret, err);
	if (r)
		return r < 0 ? r : 0;
	r = claim_create(s, *ret, err);
	if (r == -EEXIST)
		return 1;
	if (!r)
		r = store_claim_highest(s, &top, err);
	if (r)
		return r;
	return claim_compare(top, *ret) != 0 && !MUTANT(CLAIM_LOOKED_ONCE);
}

static bool begun_here(struct store *s, const char *dir)
{
	bool found = false;

	(void)pthread_mutex_lock(&s->lock);
	for (const struct store_txn *x = s->begun; x && !found; x = x->next)
		found = strcmp(x->dir, dir) == 0;
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

/* A higher generation's are left alone: then the claim is lost already and commit will say so. */
static int claim_sweep_tmp(struct store *s, struct ckpt_err *err)
{
	uint64_t generation = claim_mine(s).generation;
	cleanup_free struct store_name *found = NULL;
	char trash[STORE_DIR_MAX];
	uint32_t n;
	int r;

	r = store_list(s->ops, s->job_fd, STORE_TMP, &found, &n);
	if (r)
		return store_fail(err, r, "job %s: cannot list its directory", s->job);
	for (uint32_t i = 0; i < n; i++) {
		if (found[i].generation > generation ||
		    (begun_here(s, found[i].dir) && !MUTANT(SWEPT_OUR_OWN)))
			continue;
		if (MUTANT(SWEPT_IN_PLACE)) {
			store_trash_remove(s, found[i].dir);
			continue;
		}
		r = store_trash(s, found[i].dir, trash);
		if (r == -ENOENT)
			continue; /* committed or trashed by its owner in this moment */
		if (r)
			return store_fail(err, r, "job %s: cannot move %s out of the way", s->job,
					  found[i].dir);
		io_point(s->ops, POINT_SWEEP_TRASHED);
	}
	return 0;
}

struct claims_sweeping {
	const struct io_ops *ops;
	int fd;
	uint64_t below;
};

static int claims_sweep_entry(void *arg, const char *entry, unsigned char d_type)
{
	struct claims_sweeping *w = arg;
	struct store_claimed c;

	(void)d_type;
	if (store_claimed_parse(entry, &c) && c.generation < w->below) {
		(void)w->ops->unlink(w->ops->ctx, w->fd, entry, false);
		io_point(w->ops, POINT_SWEEP_CLAIM);
	}
	return 0;
}

/*
 * Below the one that is ours and durable. Who makes one of these again, having looked before it was
 * there, looks again and sees ours. All takeovers of ours stay: their names say who has it.
 */
static void claim_sweep_claims(struct store *s)
{
	const struct io_ops *ops = s->ops;
	struct claims_sweeping w = { .ops = ops, .below = claim_mine(s).generation };

	w.fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	if (w.fd < 0)
		return;
	(void)ops->list(ops->ctx, w.fd, claims_sweep_entry, &w);
	(void)ops->close(ops->ctx, w.fd);
}

static int claim_sweep(struct store *s, struct ckpt_err *err)
{
	int r = claim_sweep_tmp(s, err);

	if (r)
		return r;
	r = store_trash_sweep(s, true);
	if (r)
		return store_fail(err, r, "job %s: cannot sync its directory", s->job);
	claim_sweep_claims(s);
	return 0;
}

static int claim_make(struct store *s, uint64_t want, bool again, struct ckpt_err *err)
{
	struct store_claimed c = { 0 };
	int r = store_here(s, err);

	if (!r && s->root_fd >= 0)
		r = store_home_check(s, err);
	if (r)
		return r;
	r = 1;
	for (uint32_t i = 0; r > 0 && i < STORE_TRIES_MAX; i++)
		r = claim_once(s, want, again, &c, err);
	if (r > 0)
		return ckpt_error(
			err, -EBUSY,
			"job %s: several daemons are claiming the store at the same time; "
			"stop all but one",
			s->job);
	if (r)
		return r;
	(void)pthread_mutex_lock(&s->lock);
	s->generation = c.generation;
	s->takeover = c.takeover;
	(void)pthread_mutex_unlock(&s->lock);
	return 0;
}

int store_claim(struct store *s, uint64_t want, bool again, uint64_t *ret_generation,
		struct ckpt_err *err)
{
	int r = claim_make(s, want, again, err);

	if (r)
		return r;
	*ret_generation = claim_mine(s).generation;
	return claim_sweep(s, err);
}

/* -ESTALE: a step was committed behind the one with this sequence number. */
static int newer_check(const struct store *s, uint64_t seq, struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	const struct store_step *newer = NULL;
	uint32_t n;
	int r = store_scan(s, false, &step, &n, err);

	for (uint32_t i = 0; !r && i < n; i++)
		if (step[i].seq > seq && (!newer || step[i].seq > newer->seq))
			newer = &step[i];
	if (r || !newer)
		return r;
	return ckpt_error(err, -ESTALE,
			  "job %s: launch %" PRIu64 " has committed step %" PRIu64
			  " since this launch restored; restore again, then mark",
			  s->job, newer->generation, newer->step);
}

/* Our claim is on disk, older ones are too: without ours the highest of them counts again. */
static void claim_return(struct store *s, struct store_claimed was)
{
	char path[STORE_DIR_MAX];

	(void)snprintf(path, sizeof path, STORE_CLAIMS "/gen-%08" PRIu64, claim_mine(s).generation);
	(void)s->ops->unlink(s->ops->ctx, s->job_fd, path, false);
	(void)pthread_mutex_lock(&s->lock);
	s->generation = was.generation;
	s->takeover = was.takeover;
	(void)pthread_mutex_unlock(&s->lock);
}

int store_claim_first(struct store *s, uint64_t seq, uint64_t *ret_generation, struct ckpt_err *err)
{
	struct store_claimed was = claim_mine(s);
	int r = newer_check(s, seq, err);

	if (!r)
		r = claim_make(s, 0, false, err);
	if (r)
		return r;
	/* What others collect is trash from here on: they commit nothing any more. */
	r = claim_sweep_tmp(s, err);
	if (!r)
		r = store_claim_wait(s, err);
	if (!r && !MUTANT(FIRST_CLAIM_UNCHECKED))
		r = newer_check(s, seq, err);
	if (r) {
		claim_return(s, was);
		return r;
	}
	*ret_generation = claim_mine(s).generation;
	return claim_sweep(s, err);
}
