/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_policy.c - see store_policy.h. Called by ckptd and ckptctl.
 * Invariant: a file that has a number is complete and never changes; the highest number is never
 * removed.
 */
#include "ckpt/store/store_policy.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

#define POLICY_FILE_MAX 32		 /* bytes of a name, with its zero */
#define POLICY_NUMBER_MAX 999999999999	 /* twelve digits */
#define POLICY_LEFT_NS (3600 * NS_PER_S) /* a writer that has not finished by then is dead */

/* --- content --- */

static int policy_line(struct store_policy *p, const char *line, struct ckpt_err *err)
{
	struct ckpt_err why = { .msg = "" };
	int r;

	if (strncmp(line, "by=", 3) == 0) {
		store_text_take(p->by, sizeof p->by, line + 3);
		return 0;
	}
	r = retain_line(&p->rules, line, &why);
	if (r == -EOPNOTSUPP && MUTANT(POLICY_KEY_IGNORED))
		return 0;
	return !r ? 0
		  : ckpt_error(err, r == -EOPNOTSUPP ? -EPROTONOSUPPORT : -EPROTO, "%s", why.msg);
}

int store_policy_parse(const char *text, uint64_t bytes, struct store_policy *ret,
		       struct ckpt_err *err)
{
	char copy[STORE_POLICY_BYTES_MAX + 1], *line = copy, *end;
	int r = 0;

	if (bytes == 0 || bytes > STORE_POLICY_BYTES_MAX || text[bytes - 1] != '\n' ||
	    memchr(text, 0, bytes))
		return ckpt_error(err, -EPROTO, "it is no policy, or is cut");
	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	for (; !r && *line; line = end + 1) {
		end = strchr(line, '\n');
		*end = 0;
		if (strcmp(line, "end=") == 0)
			return end + 1 == copy + bytes
				       ? 0
				       : ckpt_error(err, -EPROTO, "it goes on after its end");
		r = policy_line(ret, line, err);
	}
	return r ? r : ckpt_error(err, -EPROTO, "it has no end");
}

uint32_t store_policy_print(const struct store_policy *p, char *ret)
{
	char rules[RETAIN_TEXT_MAX];

	retain_lines_print(&p->rules, rules, sizeof rules);
	return (uint32_t)snprintf(ret, STORE_POLICY_BYTES_MAX, "by=%s\n%send=\n", p->by, rules);
}

/* --- names --- */

static void number_print(uint64_t number, char ret[POLICY_FILE_MAX])
{
	(void)snprintf(ret, POLICY_FILE_MAX, "keep-%012" PRIu64, number);
}

/* 0: another file. */
static uint64_t number_parse(const char *entry)
{
	char again[POLICY_FILE_MAX];
	const char *p = entry;
	uint64_t number;

	if (!store_take_text(&p, "keep-") || !store_take_decimal(&p, &number) ||
	    number > POLICY_NUMBER_MAX)
		return 0;
	number_print(number, again);
	return strcmp(entry, again) == 0 ? number : 0;
}

static int highest_see(void *arg, const char *entry, unsigned char d_type)
{
	uint64_t *highest = arg;

	(void)d_type;
	*highest = MAX(*highest, number_parse(entry));
	return 0;
}

static int highest_find(const struct io_ops *ops, int fd, uint64_t *ret)
{
	*ret = 0;
	return ops->list(ops->ctx, fd, highest_see, ret);
}

/* --- reading --- */

/* Another user could have us remove the steps of this one. */
static int owner_check(const struct store *s, const struct io_stat *st, struct ckpt_err *err)
{
	struct io_stat job;

	if (io_stat(s->ops, s->job_fd, &job) == 0 && job.uid != st->uid &&
	    !MUTANT(POLICY_OF_ANOTHER_USER))
		return ckpt_error(err, -EPERM,
				  "it belongs to user %" PRIu32 ", the job to user %" PRIu32,
				  st->uid, job.uid);
	return 0;
}

static int file_read(const struct store *s, int fd, const char *file, struct store_policy *ret,
		     struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	char text[STORE_POLICY_BYTES_MAX];
	struct io_stat st = { 0 };
	uint64_t bytes = 0;
	int r, at = source_fd(ops, fd, file, 0, O_NONBLOCK, &bytes);

	if (at < 0)
		return ckpt_error_errno(err, -at, "it cannot be opened");
	r = bytes > sizeof text ? ckpt_error(err, -EFBIG, "it has %" PRIu64 " bytes", bytes) : 0;
	if (!r && io_stat(ops, at, &st) == 0)
		r = owner_check(s, &st, err);
	if (!r) {
		r = io_pread_all(ops, at, text, bytes, 0);
		r = r ? ckpt_error_errno(err, -r, "it cannot be read")
		      : store_policy_parse(text, bytes, ret, err);
	}
	ret->set_ns = st.modified_ns;
	(void)ops->close(ops->ctx, at);
	return r;
}

/* -ENOENT, -ESTALE: a newer one has come, and this one was removed. */
static int policy_look(const struct store *s, int fd, struct store_policy *ret,
		       struct ckpt_err *err)
{
	char file[POLICY_FILE_MAX];
	int r = highest_find(s->ops, fd, &ret->number);

	if (r)
		return ckpt_error_errno(err, -r, STORE_CLAIMS " cannot be listed");
	if (!ret->number)
		return 0;
	number_print(ret->number, file);
	r = file_read(s, fd, file, ret, err);
	if (!r)
		ret->state = STORE_POLICY_SET;
	return r;
}

void store_policy_read(const struct store *s, struct store_policy *ret)
{
	const struct io_ops *ops = s->ops;
	struct ckpt_err why = { .msg = "" };
	int fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0), r = 0;

	*ret = (struct store_policy){ 0 };
	if (fd == -ENOENT)
		return;
	if (fd < 0)
		r = ckpt_error_errno(&why, -fd, STORE_CLAIMS " cannot be opened");
	for (uint32_t i = 0; fd >= 0 && i < STORE_TRIES_MAX; i++) {
		*ret = (struct store_policy){ 0 };
		r = policy_look(s, fd, ret, &why);
		if (r != -ENOENT && r != -ESTALE)
			break;
	}
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (!r || MUTANT(POLICY_UNREAD_IS_NONE))
		return;
	ret->state = STORE_POLICY_UNREAD;
	ret->rules = (struct retain_policy){ 0 };
	if (ret->number)
		(void)snprintf(ret->why, sizeof ret->why,
			       STORE_CLAIMS "/keep-%012" PRIu64 ": %.200s", ret->number, why.msg);
	else
		(void)snprintf(ret->why, sizeof ret->why, "%.250s", why.msg);
}

/* --- setting --- */

static int claims_open(const struct store *s)
{
	const struct io_ops *ops = s->ops;
	int fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	int r = fd == -ENOENT ? store_claims_make(s) : 0;

	if (fd == -ENOENT && !r)
		fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	return r ? r : fd;
}

/* Durable under a name that nobody reads. */
static int new_write(const struct io_ops *ops, int dir, const struct store_policy *p,
		     char file[POLICY_FILE_MAX])
{
	char text[STORE_POLICY_BYTES_MAX];
	uint32_t n = store_policy_print(p, text), nonce;
	int fd = -EEXIST, r, closed;

	for (uint32_t i = 0; fd == -EEXIST && i < STORE_TRIES_MAX; i++) {
		r = store_nonce(&nonce, NULL);
		if (r)
			return r;
		(void)snprintf(file, POLICY_FILE_MAX, "keep-new-%08" PRIx32, nonce);
		fd = ops->open(ops->ctx, dir, file, O_WRONLY | O_CREAT | O_EXCL, 0600);
	}
	if (fd < 0)
		return fd;
	r = io_pwrite_all(ops, fd, text, n, 0);
	if (!r && !MUTANT(POLICY_NOT_SYNCED))
		r = store_sync(ops, fd);
	closed = ops->close(ops->ctx, fd);
	r = r ? r : closed;
	if (!r)
		io_point(ops, POINT_POLICY_SYNCED);
	else
		(void)ops->unlink(ops->ctx, dir, file, false);
	return r;
}

/* The next number, which is this file's alone. */
static int number_take(const struct io_ops *ops, int dir, const char *file, uint64_t *ret)
{
	char name[POLICY_FILE_MAX];
	int r = -EEXIST;

	for (uint32_t i = 0; r == -EEXIST && i < STORE_TRIES_MAX; i++) {
		r = highest_find(ops, dir, ret);
		if (!r && *ret == POLICY_NUMBER_MAX)
			r = -EOVERFLOW;
		if (r)
			return r;
		number_print(++*ret, name);
		r = ops->rename(ops->ctx, dir, file, name);
	}
	return r;
}

struct sweep {
	const struct io_ops *ops;
	int dir;
	uint64_t below, left_ns; /* numbers below; what writers left before */
	uint32_t n;
	char file[16][POLICY_FILE_MAX]; /* as many at a time; the next one takes the rest */
};

static int sweep_see(void *arg, const char *entry, unsigned char d_type)
{
	struct sweep *x = arg;
	uint64_t number = number_parse(entry);
	const char *p = entry;
	struct io_stat st;
	uint32_t nonce;

	(void)d_type;
	if (x->n == ARRAY_LEN(x->file) || strlen(entry) >= POLICY_FILE_MAX)
		return 0;
	if ((number && number < x->below) ||
	    (store_take_text(&p, "keep-new-") && store_take_hex(&p, &nonce) && !*p &&
	     io_stat_at(x->ops, x->dir, entry, &st) == 0 && st.modified_ns &&
	     st.modified_ns < x->left_ns))
		(void)snprintf(x->file[x->n++], POLICY_FILE_MAX, "%s", entry);
	return 0;
}

/* Nobody waits for it: if the lock is another's, the next one who sets a policy does it. */
static void older_remove(const struct store *s, int dir, uint64_t number)
{
	const struct io_ops *ops = s->ops;
	struct sweep x = { .ops = ops, .dir = dir, .below = number };
	char file[POLICY_FILE_MAX];
	struct io_stat st;
	int lock;

	if (store_line_lock(s, true, false, &lock) || lock < 0)
		return;
	number_print(number, file);
	if (io_stat_at(ops, dir, file, &st) == 0 && st.modified_ns > POLICY_LEFT_NS)
		x.left_ns = st.modified_ns - POLICY_LEFT_NS;
	if (ops->list(ops->ctx, dir, sweep_see, &x) == 0)
		for (uint32_t i = 0; i < x.n; i++)
			(void)ops->unlink(ops->ctx, dir, x.file[i], false);
	(void)ops->close(ops->ctx, lock);
}

static int policy_put(const struct store *s, int dir, const struct store_policy *p, uint64_t *ret)
{
	const struct io_ops *ops = s->ops;
	char file[POLICY_FILE_MAX];
	int r = new_write(ops, dir, p, file);

	if (r)
		return r;
	r = number_take(ops, dir, file, ret);
	if (r) {
		(void)ops->unlink(ops->ctx, dir, file, false);
		return r;
	}
	io_point(ops, POINT_POLICY_RENAMED);
	r = store_sync(ops, dir);
	if (!r)
		io_point(ops, POINT_POLICY_DURABLE);
	return r;
}

static bool rules_same(const struct retain_policy *a, const struct retain_policy *b)
{
	char x[RETAIN_TEXT_MAX], y[RETAIN_TEXT_MAX];

	retain_lines_print(a, x, sizeof x);
	retain_lines_print(b, y, sizeof y);
	return strcmp(x, y) == 0;
}

int store_policy_set(const struct store *s, const struct retain_policy *rules, const char *who,
		     struct store_policy *ret, struct ckpt_err *err)
{
	struct store_policy now, new = { .rules = *rules };
	char maker[96], by[STORE_POLICY_BY_MAX];
	uint64_t number;
	int dir, r = store_here(s, err);

	if (r)
		return r;
	store_policy_read(s, &now);
	if (now.state != STORE_POLICY_SET || !rules_same(&now.rules, rules)) {
		store_maker_print(maker, sizeof maker);
		(void)snprintf(by, sizeof by, "%s, %.50s", maker, who);
		store_text_take(new.by, sizeof new.by, by);
		dir = claims_open(s);
		r = dir < 0 ? dir : policy_put(s, dir, &new, &number);
		if (!r)
			older_remove(s, dir, number);
		if (dir >= 0)
			(void)s->ops->close(s->ops->ctx, dir);
		if (r)
			return r == -EOVERFLOW
				       ? ckpt_error(err, r,
						    "job %s: " STORE_CLAIMS "/keep-%012" PRIu64
						    " has the highest number: remove that file",
						    s->job, (uint64_t)POLICY_NUMBER_MAX)
				       : store_fail(err, r, "job %s: cannot set its policy",
						    s->job);
		store_policy_read(s, &now);
	}
	if (ret)
		*ret = now;
	return 0;
}
