/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_faults.c - injection: one gate in front of every call. Recording: one event behind every
 * mutating call. Invariant: an event's position in the log is where it may first reach the disk (a
 * write: its start; all others: their end), and a sync covers only what had ended when the sync
 * began.
 */
#include "tests/lib/row.h"
#include "tests/lib/io_faults.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "ckpt/base/util.h"
#include "tests/lib/memfs.h"

#define CRASH_SECTOR 512
#define REC_NONE UINT32_MAX
#define CRASH_TEXT_BYTES 2048
#define TREE_DEPTH_MAX 32

/* ---------------------------------------------------------------- the log */

enum rec_kind ROW(EV_CREATE, EV_MKDIR, EV_RENAME, EV_LINK, EV_UNLINK, EV_WRITE, EV_ALLOCATE,
		  EV_TRUNCATE, EV_SYNC, EV_PROMISE);
static const char *const rec_kind_name[] = { "create", "mkdir",	    "rename",	"link", "unlink",
					     "write",  "fallocate", "truncate", "sync", "promise" };

struct rec_node {
	bool is_dir;
	dev_t dev;
	ino_t ino;
	uint8_t *base; /* a file's durable bytes when the recording began */
	uint64_t base_len;
};

struct rec_event {
	enum rec_kind kind;
	uint32_t node; /* the file or directory itself */
	uint32_t dir;  /* of the name */
	char *name, *to;
	uint8_t *data;
	uint64_t off, len;
	uint64_t begun, ended; /* lengths of the log */
	uint64_t promise;
	bool failed; /* a sync */
};

struct rec_entry {
	uint32_t dir, node;
	const char *name;
};

struct io_record {
	pthread_mutex_t lock; /* protects all below */
	struct rec_node *node;
	struct rec_event *event;
	struct rec_entry *base;
	uint64_t nnode, nevent, nbase;
};

static void *rec_grow(void *p, uint64_t n, size_t size)
{
	if (n & (n - 1))
		return p;
	p = realloc(p, (n ? 2 * n : 1) * size);
	if (!p)
		abort();
	return p;
}

static void *rec_copy(const void *p, uint64_t len)
{
	void *q = malloc(len + 1);

	if (!q)
		abort();
	if (len)
		memcpy(q, p, len);
	((uint8_t *)q)[len] = 0;
	return q;
}

static uint32_t rec_node_add(struct io_record *r, const struct stat *st)
{
	r->node = rec_grow(r->node, r->nnode, sizeof(*r->node));
	r->node[r->nnode] = (struct rec_node)ROW(.is_dir = S_ISDIR(st->st_mode), .dev = st->st_dev,
						 .ino = st->st_ino);
	return (uint32_t)r->nnode++;
}

static uint32_t rec_node_of(const struct io_record *r, const struct stat *st)
{
	for (uint64_t i = r->nnode; i-- > 0;) { /* newest first: inode numbers are used again */
		if (r->node[i].dev == st->st_dev && r->node[i].ino == st->st_ino)
			return (uint32_t)i;
	}
	return REC_NONE;
}

static uint32_t rec_node_of_fd(const struct io_record *r, int fd)
{
	struct stat st;

	return fstat(fd, &st) ? REC_NONE : rec_node_of(r, &st);
}

static uint32_t rec_node_of_name(const struct io_record *r, int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) ? REC_NONE : rec_node_of(r, &st);
}

/* The directory that holds name, and name's last component. */
static uint32_t rec_node_of_parent(const struct io_record *r, int dirfd, const char *name,
				   const char **ret_last)
{
	const char *slash = strrchr(name, '/');
	char path[4096];

	*ret_last = slash ? slash + 1 : name;
	if (!slash)
		return rec_node_of_fd(r, dirfd);
	(void)snprintf(path, sizeof(path), "%.*s", (int)(slash - name), name);
	return rec_node_of_name(r, dirfd, path);
}

static struct rec_event *rec_event_add(struct io_record *r, enum rec_kind kind, uint32_t node)
{
	struct rec_event *e;

	r->event = rec_grow(r->event, r->nevent, sizeof(*r->event));
	e = &r->event[r->nevent++];
	*e = (struct rec_event)ROW(.kind = kind, .node = node, .dir = REC_NONE,
				   .begun = r->nevent - 1, .ended = r->nevent);
	return e;
}

static void rec_name_event(struct io_record *r, enum rec_kind kind, uint32_t node, uint32_t dir,
			   const char *name, const char *to)
{
	struct rec_event *e;

	if (dir == REC_NONE || node == REC_NONE)
		return;
	e = rec_event_add(r, kind, node);
	e->dir = dir;
	e->name = rec_copy(name, strlen(name));
	e->to = to ? rec_copy(to, strlen(to)) : NULL;
}

static void rec_base_read(struct rec_node *n, int fd, uint64_t len)
{
	n->base = rec_copy("", 0);
	n->base = realloc(n->base, len + 1);
	n->base_len = len;
	if (!n->base || io_pread_all(&io_ops_posix, fd, n->base, len, 0))
		abort();
}

/*
 * Directories are nodes in the order in which they are found, so one pass over the growing array is
 * the walk.
 */
static void rec_base_scan(struct io_record *r, uint32_t dir, int fd)
{
	DIR *d = fdopendir(fd);
	struct dirent *de;

	if (!d)
		abort();
	while ((de = readdir(d))) {
		struct stat st;
		uint32_t node;
		int sub;

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0 ||
		    fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !(S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
			continue;
		node = rec_node_of(r, &st);
		if (node == REC_NONE) {
			node = rec_node_add(r, &st);
			sub = openat(dirfd(d), de->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
			if (sub < 0)
				abort();
			if (S_ISDIR(st.st_mode)) {
				r->node[node].base_len = (uint64_t)sub; /* until it is scanned */
			} else {
				rec_base_read(&r->node[node], sub, (uint64_t)st.st_size);
				(void)close(sub);
			}
		}
		r->base = rec_grow(r->base, r->nbase, sizeof(*r->base));
		r->base[r->nbase++] = (struct rec_entry){
			.dir = dir, .node = node, .name = rec_copy(de->d_name, strlen(de->d_name))
		};
	}
	(void)closedir(d);
}

struct io_record *io_record_new(int rootfd)
{
	struct io_record *r = calloc(1, sizeof(*r));
	struct stat st;
	int fd = openat(rootfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (!r || fd < 0 || fstat(fd, &st))
		abort();
	(void)pthread_mutex_init(&r->lock, NULL);
	(void)rec_node_add(r, &st);
	r->node[0].base_len = (uint64_t)fd;
	for (uint32_t i = 0; i < r->nnode; i++) {
		if (r->node[i].is_dir)
			rec_base_scan(r, i, (int)r->node[i].base_len);
	}
	return r;
}

void io_record_free(struct io_record *r)
{
	if (!r)
		return;
	for (uint64_t i = 0; i < r->nevent; i++) {
		free(r->event[i].name);
		free(r->event[i].to);
		free(r->event[i].data);
	}
	for (uint64_t i = 0; i < r->nnode; i++)
		free(r->node[i].base);
	for (uint64_t i = 0; i < r->nbase; i++)
		free((void *)(uintptr_t)r->base[i].name);
	free(r->node);
	free(r->event);
	free(r->base);
	(void)pthread_mutex_destroy(&r->lock);
	free(r);
}

void io_record_promise(struct io_record *r, uint64_t promise)
{
	(void)pthread_mutex_lock(&r->lock);
	rec_event_add(r, EV_PROMISE, REC_NONE)->promise = promise;
	(void)pthread_mutex_unlock(&r->lock);
}

uint64_t io_record_events(const struct io_record *r)
{
	return r->nevent;
}

static void record_lock(struct io_faults *f)
{
	if (f->record)
		(void)pthread_mutex_lock(&f->record->lock);
}

static void record_unlock(struct io_faults *f)
{
	if (f->record)
		(void)pthread_mutex_unlock(&f->record->lock);
}

/* ---------------------------------------------------------------- injection */

enum fault_verdict { CALL_PASS, CALL_REFUSE, CALL_HALVE };

/* What is to happen to a call of these classes; *ret_rc when it is refused. */
static enum fault_verdict fault_gate(struct io_faults *f, uint32_t classes, int *ret_rc)
{
	enum fault_verdict v = CALL_PASS;
	bool now;

	if (f->about && !f->about())
		return CALL_PASS;
	if (f->on_call)
		f->on_call(f->on_call_arg, classes);
	(void)pthread_mutex_lock(&f->lock);
	if (classes & f->on)
		f->calls++;
	now = (classes & f->on) && f->calls == f->nth;
	*ret_rc = f->err;
	switch (f->mode) {
	case IO_FAULT_NONE:
		break;
	case IO_FAULT_FAIL:
		if (now || (f->sticky && (classes & f->on) && f->calls > f->nth))
			v = CALL_REFUSE;
		break;
	case IO_FAULT_SHORT:
		if (now)
			v = CALL_HALVE;
		break;
	case IO_FAULT_KILL:
		*ret_rc = -EIO;
		if (f->calls >= f->nth)
			v = CALL_REFUSE;
		break;
	}
	f->injected += v != CALL_PASS;
	(void)pthread_mutex_unlock(&f->lock);
	return v;
}

static void fault_plan(struct io_faults *f, enum io_fault_mode mode, uint32_t on, uint64_t nth,
		       int err, bool sticky)
{
	(void)pthread_mutex_lock(&f->lock);
	f->mode = mode;
	f->on = on;
	f->nth = nth;
	f->err = err;
	f->sticky = sticky;
	f->calls = f->injected = 0;
	(void)pthread_mutex_unlock(&f->lock);
}

void io_faults_fail(struct io_faults *f, uint32_t on, uint64_t nth, int err, bool sticky)
{
	fault_plan(f, IO_FAULT_FAIL, on, nth, err, sticky);
}

void io_faults_short(struct io_faults *f, uint64_t nth)
{
	fault_plan(f, IO_FAULT_SHORT, IO_ON_WRITE, nth, 0, false);
}

void io_faults_short_read(struct io_faults *f, uint64_t nth)
{
	fault_plan(f, IO_FAULT_SHORT, IO_ON_READ, nth, 0, false);
}

void io_faults_kill_now(struct io_faults *f)
{
	fault_plan(f, IO_FAULT_KILL, IO_ON_MUTATING, 0, -EIO, true);
}

#define IO_ON_TAKING                                                                         \
	(IO_ON_CREATE | IO_ON_WRITE | IO_ON_SYNC | IO_ON_RENAME | IO_ON_MKDIR | IO_ON_LINK | \
	 IO_ON_FALLOCATE) /* what needs space */

const struct io_fault_kind io_fault_kinds[] = {
	{ "EIO once", IO_ON_ANY, -EIO, false, false },
	{ "EIO for ever", IO_ON_ANY, -EIO, true, false },
	{ "EIO of what changes the disk, for ever", IO_ON_MUTATING, -EIO, true, false },
	{ "EIO of reads, for ever", IO_ON_READ, -EIO, true, false },
	{ "EIO of writes, for ever", IO_ON_WRITE, -EIO, true, false },
	{ "EIO of fsync, then OK", IO_ON_SYNC, -EIO, false, false },
	{ "EIO of fsync, for ever", IO_ON_SYNC, -EIO, true, false },
	{ "EIO of rename, for ever", IO_ON_RENAME, -EIO, true, false },
	{ "ENOSPC once", IO_ON_TAKING, -ENOSPC, false, false },
	{ "ENOSPC for ever", IO_ON_TAKING, -ENOSPC, true, false },
	{ "EDQUOT for ever", IO_ON_TAKING, -EDQUOT, true, false },
	{ "ENOMEM once", IO_ON_ANY, -ENOMEM, false, false },
	{ "EMFILE once", IO_ON_OPEN, -EMFILE, false, false },
	{ "short write", IO_ON_WRITE, 0, false, true },
	{ "short read", IO_ON_READ, 0, false, true },
	{ "EINTR of transfers", IO_ON_READ | IO_ON_WRITE, -EINTR, false, true },
	{ "EAGAIN of transfers", IO_ON_READ | IO_ON_WRITE, -EAGAIN, false, true },
	{ "EINTR of other calls", IO_ON_ANY & ~(uint32_t)(IO_ON_READ | IO_ON_WRITE), -EINTR, false,
	  false },
};
const uint32_t io_fault_kinds_n = ARRAY_LEN(io_fault_kinds);

void io_faults_plan(struct io_faults *f, const struct io_fault_kind *kind, uint64_t nth)
{
	fault_plan(f, kind->err ? IO_FAULT_FAIL : IO_FAULT_SHORT, kind->on, nth, kind->err,
		   kind->sticky);
}

void io_faults_kill(struct io_faults *f, uint64_t nth)
{
	fault_plan(f, IO_FAULT_KILL, IO_ON_MUTATING, nth, -EIO, true);
}

void io_faults_count(struct io_faults *f, uint32_t on)
{
	fault_plan(f, IO_FAULT_NONE, on, 0, 0, false);
}

bool io_faults_hit(struct io_faults *f)
{
	bool hit;

	(void)pthread_mutex_lock(&f->lock);
	hit = f->injected > 0;
	(void)pthread_mutex_unlock(&f->lock);
	return hit;
}

uint64_t io_faults_calls(struct io_faults *f)
{
	uint64_t n;

	(void)pthread_mutex_lock(&f->lock);
	n = f->calls;
	(void)pthread_mutex_unlock(&f->lock);
	return n;
}

/* ---------------------------------------------------------------- the table */

static int faults_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	bool creates = flags & (O_CREAT | O_TRUNC), existed;
	const char *last;
	uint32_t dir;
	struct stat st;
	int rc;

	if (fault_gate(f, IO_ON_OPEN | (creates ? IO_ON_CREATE : 0), &rc) != CALL_PASS)
		return rc;
	if (!creates || !r)
		return f->under->open(f->under->ctx, dirfd, name, flags, mode);
	record_lock(f);
	existed = fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	rc = f->under->open(f->under->ctx, dirfd, name, flags, mode);
	dir = rec_node_of_parent(r, dirfd, name, &last);
	if (rc >= 0 && !existed && dir != REC_NONE && fstat(rc, &st) == 0)
		rec_name_event(r, EV_CREATE, rec_node_add(r, &st), dir, last, NULL);
	if (rc >= 0 && existed && (flags & O_TRUNC) && rec_node_of(r, &st) != REC_NONE)
		(void)rec_event_add(r, EV_TRUNCATE, rec_node_of(r, &st));
	record_unlock(f);
	return rc;
}

static int faults_close(void *ctx, int fd)
{
	struct io_faults *f = ctx;
	int rc, real;
	enum fault_verdict v = fault_gate(f, IO_ON_CLOSE, &rc);

	real = f->under->close(f->under->ctx, fd);
	return v == CALL_PASS ? real : rc;
}

static int64_t faults_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct io_faults *f = ctx;
	int rc;

	enum fault_verdict v = fault_gate(f, IO_ON_READ, &rc);
	int64_t n;

	if (v == CALL_REFUSE)
		return rc;
	n = f->under->pread(f->under->ctx, fd, buf, len, off);
	return v == CALL_HALVE && n > 1 ? n / 2 : n;
}

static int64_t write_recorded(struct io_faults *f, int fd, const void *buf, uint64_t len,
			      uint64_t off)
{
	struct io_record *r = f->record;
	uint64_t at = UINT64_MAX;
	struct rec_event *e;
	int64_t n;

	record_lock(f);
	if (r && rec_node_of_fd(r, fd) != REC_NONE) {
		e = rec_event_add(r, EV_WRITE, rec_node_of_fd(r, fd));
		at = r->nevent - 1;
		e->data = rec_copy(buf, len);
		e->off = off;
		e->len = len;
		e->ended = UINT64_MAX;
	}
	record_unlock(f);
	n = f->under->pwrite(f->under->ctx, fd, buf, len, off);
	record_lock(f);
	if (at != UINT64_MAX) {
		r->event[at].len = n > 0 ? (uint64_t)n : 0;
		r->event[at].ended = r->nevent;
	}
	record_unlock(f);
	return n;
}

static int64_t faults_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct io_faults *f = ctx;
	int rc;

	switch (fault_gate(f, IO_ON_WRITE, &rc)) {
	case CALL_REFUSE:
		return rc;
	case CALL_HALVE:
		len /= 2;
		if (len > 4096) /* as a direct write would be cut */
			len &= ~UINT64_C(4095);
		break;
	case CALL_PASS:
		break;
	}
	return len ? write_recorded(f, fd, buf, len, off) : 0;
}

static int size_recorded(struct io_faults *f, enum rec_kind kind, int fd, uint64_t len, int rc)
{
	struct io_record *r = f->record;

	if (r && rc == 0 && rec_node_of_fd(r, fd) != REC_NONE)
		rec_event_add(r, kind, rec_node_of_fd(r, fd))->len = len;
	return rc;
}

static int faults_fallocate(void *ctx, int fd, uint64_t len)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_FALLOCATE, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	rc = size_recorded(f, EV_ALLOCATE, fd, len, f->under->fallocate(f->under->ctx, fd, len));
	record_unlock(f);
	return rc;
}

static int faults_truncate(void *ctx, int fd, uint64_t len)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_TRUNCATE, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	rc = size_recorded(f, EV_TRUNCATE, fd, len, f->under->truncate(f->under->ctx, fd, len));
	record_unlock(f);
	return rc;
}

static int faults_sync(void *ctx, int fd)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	uint64_t begun = 0;
	struct rec_event *e;
	int rc;
	enum fault_verdict v = fault_gate(f, IO_ON_SYNC, &rc);

	record_lock(f);
	if (r)
		begun = r->nevent;
	record_unlock(f);
	if (v == CALL_PASS)
		rc = f->under->sync(f->under->ctx, fd);
	record_lock(f);
	if (r && rec_node_of_fd(r, fd) != REC_NONE) {
		e = rec_event_add(r, EV_SYNC, rec_node_of_fd(r, fd));
		e->begun = begun;
		e->failed = rc != 0;
	}
	record_unlock(f);
	return rc;
}

static int faults_mkdir(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	const char *last;
	struct stat st;
	uint32_t dir;
	int rc;

	if (fault_gate(f, IO_ON_MKDIR, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	rc = f->under->mkdir(f->under->ctx, dirfd, name, mode);
	if (r && rc == 0 && (dir = rec_node_of_parent(r, dirfd, name, &last)) != REC_NONE &&
	    fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		rec_name_event(r, EV_MKDIR, rec_node_add(r, &st), dir, last, NULL);
	record_unlock(f);
	return rc;
}

static int faults_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	const char *from_last, *to_last;
	uint32_t node = REC_NONE, dir = REC_NONE;
	int rc;

	if (fault_gate(f, IO_ON_RENAME, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	if (r) {
		node = rec_node_of_name(r, dirfd, from);
		dir = rec_node_of_parent(r, dirfd, from, &from_last);
		if (dir != rec_node_of_parent(r, dirfd, to, &to_last))
			abort();
	}
	rc = f->under->rename(f->under->ctx, dirfd, from, to);
	if (r && rc == 0)
		rec_name_event(r, EV_RENAME, node, dir, from_last, to_last);
	record_unlock(f);
	return rc;
}

static int faults_link(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	const char *last;
	int rc;

	if (fault_gate(f, IO_ON_LINK, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	rc = f->under->link(f->under->ctx, from_dirfd, from, to_dirfd, to);
	if (r && rc == 0) {
		uint32_t dir = rec_node_of_parent(r, to_dirfd, to, &last);

		rec_name_event(r, EV_LINK, rec_node_of_name(r, to_dirfd, to), dir, last, NULL);
	}
	record_unlock(f);
	return rc;
}

static int faults_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	struct io_faults *f = ctx;
	struct io_record *r = f->record;
	uint32_t node = REC_NONE, dir = REC_NONE;
	const char *last;
	int rc;

	if (fault_gate(f, IO_ON_UNLINK, &rc) != CALL_PASS)
		return rc;
	record_lock(f);
	if (r) {
		node = rec_node_of_name(r, dirfd, name);
		dir = rec_node_of_parent(r, dirfd, name, &last);
	}
	rc = f->under->unlink(f->under->ctx, dirfd, name, is_dir);
	if (r && rc == 0)
		rec_name_event(r, EV_UNLINK, node, dir, last, NULL);
	record_unlock(f);
	return rc;
}

static int faults_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_SIZE, &rc) != CALL_PASS)
		return rc;
	return f->under->size(f->under->ctx, fd, ret_bytes);
}

static int faults_list(void *ctx, int dirfd,
		       int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_LIST, &rc) != CALL_PASS)
		return rc;
	return f->under->list(f->under->ctx, dirfd, each, arg);
}

static int faults_space(void *ctx, int fd, struct io_space *ret)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_SPACE, &rc) != CALL_PASS)
		return rc;
	return f->under->space(f->under->ctx, fd, ret);
}

static int faults_lock(void *ctx, int fd, bool exclusive)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_LOCK, &rc) != CALL_PASS)
		return rc;
	return f->under->lock(f->under->ctx, fd, exclusive);
}

/* Of what is open: it does not fail. */
static int faults_stat(void *ctx, int fd, struct io_stat *ret)
{
	struct io_faults *f = ctx;

	return io_stat(f->under, fd, ret);
}

static int faults_path(void *ctx, int fd, char *ret, uint64_t bytes)
{
	struct io_faults *f = ctx;

	return io_path(f->under, fd, ret, bytes);
}

static int faults_find(void *ctx, const char *path, struct io_stat *ret)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_OPEN, &rc) != CALL_PASS)
		return rc;
	return io_find(f->under, path, ret);
}

static int faults_open_path(void *ctx, int dirfd, const char *path, int flags)
{
	struct io_faults *f = ctx;
	int rc;

	if (fault_gate(f, IO_ON_OPEN, &rc) != CALL_PASS)
		return rc;
	return io_open_path(f->under, dirfd, path, flags);
}

static void faults_point(void *ctx, const char *name)
{
	struct io_faults *f = ctx;

	if (f->on_point)
		f->on_point(f->on_point_arg, name);
	io_point(f->under, name);
}

void io_faults_init(struct io_faults *f, const struct io_ops *under)
{
	*f = (struct io_faults)ROW(.ops = { .ctx = f, .open = faults_open, .close = faults_close, .pread = faults_pread, .pwrite = faults_pwrite, .fallocate = faults_fallocate, .truncate = faults_truncate, .sync = faults_sync, .mkdir = faults_mkdir, .rename = faults_rename, .link = faults_link, .unlink = faults_unlink, .size = faults_size, .list = faults_list, .space = faults_space, .lock = faults_lock, .stat = faults_stat, .path = faults_path, .find = faults_find, .open_path = faults_open_path, .point = faults_point, }, .under = under, .on = IO_ON_ANY);
	(void)pthread_mutex_init(&f->lock, NULL);
}

/* ---------------------------------------------------------------- crash states */

enum crash_fate {
	FATE_LOST,
	FATE_KEPT,
	FATE_SIZE_ONLY, /* the file has grown, the bytes have not come */
	FATE_CUT,	/* the first `arg` bytes have come, and the size with them */
	FATE_CUT_GROWN, /* the first `arg` bytes have come, and the size of all */
	FATE_MIXED,	/* each sector is old, new or garbage, by the seed `arg` */
};
static const char *const crash_fate_name[] = {
	"lost", "kept", "size only", "cut", "cut, size grown", "sectors mixed"
};

struct crash_choice {
	enum crash_fate fate;
	uint64_t arg;
};

/* Hashes that were seen; 0 marks a free slot. */

static bool crash_set_put(uint64_t *slot, uint64_t room, uint64_t h)
{
	for (uint64_t i = h & (room - 1);; i = (i + 1) & (room - 1)) {
		if (slot[i] == h)
			return false;
		if (slot[i] == 0) {
			slot[i] = h;
			return true;
		}
	}
}

/* Is it new? */
bool crash_set_add(struct crash_set *c, uint64_t h)
{
	struct crash_set old = *c;
	bool fresh;

	if (2 * c->n >= c->room) {
		c->room = c->room ? 2 * c->room : 1024;
		c->slot = calloc(c->room, sizeof(*c->slot));
		if (!c->slot)
			abort();
		for (uint64_t i = 0; i < old.room; i++) {
			if (old.slot[i])
				(void)crash_set_put(c->slot, c->room, old.slot[i]);
		}
		free(old.slot);
	}
	fresh = crash_set_put(c->slot, c->room, h ? h : 1);
	c->n += fresh;
	return fresh;
}

struct io_crash_set {
	uint64_t room;
	_Atomic uint64_t n, slot[];
};

struct io_crash_set *io_crash_set_new(uint64_t states)
{
	struct io_crash_set *c;
	uint64_t room = 1024;

	while (room < 2 * states)
		room *= 2;
	c = mmap(NULL, sizeof(*c) + room * sizeof(*c->slot), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c == MAP_FAILED)
		abort();
	c->room = room;
	return c;
}

void io_crash_set_free(struct io_crash_set *c)
{
	(void)munmap(c, sizeof(*c) + c->room * sizeof(*c->slot));
}

uint64_t io_crash_set_states(const struct io_crash_set *c)
{
	return atomic_load(&c->n);
}

/* A set that is full counts nothing more, rather than wrongly. */
static void io_crash_set_count(struct io_crash_set *c, uint64_t h)
{
	h = h ? h : 1;
	for (uint64_t i = h & (c->room - 1), k = 0; k < c->room; i = (i + 1) & (c->room - 1), k++) {
		uint64_t free_slot = 0;

		if (atomic_load(&c->slot[i]) == 0 &&
		    atomic_compare_exchange_strong(&c->slot[i], &free_slot, h)) {
			atomic_fetch_add(&c->n, 1u);
			return;
		}
		if (atomic_load(&c->slot[i]) == h)
			return;
	}
}

#define CRASH_KEPT 8 /* contents of a file that are kept to be used again */

struct crash_kept {
	uint64_t key[CRASH_KEPT];
	struct memfs_bytes *bytes[CRASH_KEPT];
	uint32_t next;
};

struct crash_walk {
	const struct io_record *r;
	const struct io_crash_opts *o;
	int (*each)(void *arg, int dirfd, const struct io_crash *at);
	void *arg;
	char dir[256];
	int dirfd;
	struct memfs fs;	 /* in memory */
	struct crash_kept *kept; /* per node */
	struct crash_set chosen, looked_at;
	uint64_t point; /* events before it happened */
	uint64_t promise;
	bool *loose;		     /* per event: not durable at this point */
	bool *orphan;		     /* per event: an fsync that failed has let go of it */
	struct crash_choice *choice; /* per event */
	uint64_t random, number, asked;
	int rc;
};

uint64_t crash_random(uint64_t *state) /* splitmix64 */
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static bool rec_is_name(enum rec_kind k)
{
	return k <= EV_UNLINK;
}

static bool rec_is_data(enum rec_kind k)
{
	return k == EV_WRITE || k == EV_ALLOCATE || k == EV_TRUNCATE;
}

static bool rec_covers(const struct rec_event *sync, const struct rec_event *e)
{
	return sync->kind == EV_SYNC && sync->node == (rec_is_name(e->kind) ? e->dir : e->node);
}

static void crash_durability_find(struct crash_walk *w)
{
	for (uint64_t i = 0; i < w->point; i++) {
		const struct rec_event *e = &w->r->event[i];

		w->orphan[i] = false;
		w->loose[i] = rec_is_name(e->kind) || rec_is_data(e->kind);
		for (uint64_t j = i + 1; w->loose[i] && !w->orphan[i] && j < w->point; j++) {
			const struct rec_event *s = &w->r->event[j];

			if (!rec_covers(s, e))
				continue;
			if (s->failed)
				w->orphan[i] = true;
			else if (e->ended <= s->begun)
				w->loose[i] = false;
		}
	}
}

/*
 * Names of one directory persist in order: after the first that is lost, the others are lost as
 * well.
 */
static void crash_order_close(struct crash_walk *w)
{
	for (uint64_t i = 0; i < w->point; i++) {
		if (!w->loose[i] || w->orphan[i] || !rec_is_name(w->r->event[i].kind) ||
		    w->choice[i].fate != FATE_LOST)
			continue;
		for (uint64_t j = i + 1; j < w->point; j++) {
			if (w->loose[j] && !w->orphan[j] && rec_is_name(w->r->event[j].kind) &&
			    w->r->event[j].dir == w->r->event[i].dir)
				w->choice[j].fate = FATE_LOST;
		}
	}
}

struct crash_content {
	uint8_t *p;
	uint64_t len, cap;
};

static void crash_content_size(struct crash_content *c, uint64_t len)
{
	if (len > c->cap) {
		c->cap = MAX(len, 2 * c->cap);
		c->p = realloc(c->p, c->cap);
		if (!c->p)
			abort();
	}
	if (len > c->len)
		memset(c->p + c->len, 0, len - c->len);
	c->len = len;
}

static void crash_content_put(struct crash_content *c, const struct rec_event *e, uint64_t from,
			      uint64_t to)
{
	crash_content_size(c, MAX(c->len, e->off + to));
	memcpy(c->p + e->off + from, e->data + from, to - from);
}

static void crash_content_mix(struct crash_content *c, const struct rec_event *e, uint64_t seed)
{
	uint64_t next;

	crash_content_size(c, MAX(c->len, e->off + e->len));
	for (uint64_t at = 0; at < e->len; at = next) {
		uint64_t dice = crash_random(&seed);

		next = MIN(e->len,
			   (e->off + at + CRASH_SECTOR) / CRASH_SECTOR * CRASH_SECTOR - e->off);
		if (dice % 3 == 1)
			crash_content_put(c, e, at, next);
		for (uint64_t i = at; dice % 3 == 2 && i < next; i++)
			c->p[e->off + i] = (uint8_t)crash_random(&seed);
	}
}

static void crash_content_write(struct crash_content *c, const struct rec_event *e,
				struct crash_choice ch)
{
	if (e->len == 0)
		return;
	switch (ch.fate) {
	case FATE_LOST:
		break;
	case FATE_KEPT:
		crash_content_put(c, e, 0, e->len);
		break;
	case FATE_SIZE_ONLY:
		crash_content_size(c, MAX(c->len, e->off + e->len));
		break;
	case FATE_CUT_GROWN:
		crash_content_size(c, MAX(c->len, e->off + e->len));
		crash_content_put(c, e, 0, ch.arg);
		break;
	case FATE_CUT:
		crash_content_put(c, e, 0, ch.arg);
		break;
	case FATE_MIXED:
		crash_content_mix(c, e, ch.arg);
		break;
	}
}

static void crash_content_make(const struct crash_walk *w, uint32_t node, struct crash_content *c)
{
	const struct rec_node *n = &w->r->node[node];

	*c = (struct crash_content){ .p = NULL };
	crash_content_size(c, n->base_len);
	if (n->base_len)
		memcpy(c->p, n->base, n->base_len);
	for (uint64_t i = 0; i < w->point; i++) {
		const struct rec_event *e = &w->r->event[i];

		if (e->node != node || w->choice[i].fate == FATE_LOST)
			continue;
		if (e->kind == EV_WRITE)
			crash_content_write(c, e, w->choice[i]);
		else if (e->kind == EV_ALLOCATE)
			crash_content_size(c, MAX(c->len, e->len));
		else if (e->kind == EV_TRUNCATE)
			crash_content_size(c, e->len);
	}
}

/* The names that this state has, as one flat list. */
struct crash_names {
	struct rec_entry *e;
	uint64_t n;
};

static void crash_names_remove(struct crash_names *t, uint32_t dir, const char *name, uint32_t node)
{
	for (uint64_t i = 0; i < t->n; i++) {
		if (t->e[i].dir == dir && strcmp(t->e[i].name, name) == 0 &&
		    (node == REC_NONE || t->e[i].node == node)) {
			t->e[i] = t->e[--t->n];
			return;
		}
	}
}

/* A directory has one name: a rename moves it also when what gave it the old one was lost. */
static void crash_names_remove_dir(struct crash_names *t, uint32_t dir, uint32_t node)
{
	for (uint64_t i = 0; i < t->n; i++) {
		if (t->e[i].dir == dir && t->e[i].node == node) {
			t->e[i] = t->e[--t->n];
			return;
		}
	}
}

static void crash_names_set(struct crash_names *t, uint32_t dir, const char *name, uint32_t node)
{
	crash_names_remove(t, dir, name, REC_NONE);
	t->e[t->n++] = (struct rec_entry){ .dir = dir, .node = node, .name = name };
}

static void crash_names_make(const struct crash_walk *w, struct crash_names *t)
{
	t->e = calloc(w->r->nbase + w->r->nevent + 1, sizeof(*t->e));
	t->n = w->r->nbase;
	if (!t->e)
		abort();
	if (t->n)
		memcpy(t->e, w->r->base, t->n * sizeof(*t->e));
	for (uint64_t i = 0; i < w->point; i++) {
		const struct rec_event *e = &w->r->event[i];

		if (!rec_is_name(e->kind) || w->choice[i].fate == FATE_LOST)
			continue;
		if (e->kind == EV_RENAME && w->r->node[e->node].is_dir)
			crash_names_remove_dir(t, e->dir, e->node);
		else if (e->kind == EV_RENAME || e->kind == EV_UNLINK)
			crash_names_remove(t, e->dir, e->name, e->node);
		if (e->kind != EV_UNLINK)
			crash_names_set(t, e->dir, e->to ? e->to : e->name, e->node);
	}
}

static int crash_file_make(const struct crash_walk *w, uint32_t node, int fd)
{
	struct crash_content c;
	int rc;

	crash_content_make(w, node, &c);
	rc = io_pwrite_all(&io_ops_posix, fd, c.p, c.len, 0);
	free(c.p);
	return rc;
}

struct crash_made {
	int fd;	      /* of a directory */
	uint32_t dir; /* of a file: where it has its first name */
	const char *name;
};

static int crash_entry_make(const struct crash_walk *w, const struct rec_entry *e,
			    struct crash_made *made)
{
	struct crash_made *m = &made[e->node], *in = &made[e->dir];
	int fd, rc;

	if (w->r->node[e->node].is_dir) {
		if (mkdirat(in->fd, e->name, 0700))
			return -errno;
		m->fd = openat(in->fd, e->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		return m->fd < 0 ? -errno : 0;
	}
	if (m->name)
		return linkat(made[m->dir].fd, m->name, in->fd, e->name, 0) ? -errno : 0;
	*m = (struct crash_made){ .fd = -1, .dir = e->dir, .name = e->name };
	fd = openat(in->fd, e->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = crash_file_make(w, e->node, fd);
	(void)close(fd);
	return rc;
}

/* Passes over the list make every name whose directory has been made, until a pass makes none. */
static int crash_tree_make(const struct crash_walk *w, int rootfd)
{
	struct crash_made *made = calloc(w->r->nnode, sizeof(*made));
	struct crash_names t;
	bool more = true;
	int rc = 0;

	if (!made)
		abort();
	for (uint64_t i = 0; i < w->r->nnode; i++)
		made[i].fd = -1;
	made[0].fd = rootfd;
	crash_names_make(w, &t);
	while (more && rc == 0) {
		more = false;
		for (uint64_t i = 0; i < t.n && rc == 0; i++) {
			if (t.e[i].node == REC_NONE || made[t.e[i].dir].fd < 0)
				continue;
			rc = crash_entry_make(w, &t.e[i], made);
			t.e[i].node = REC_NONE;
			more = true;
		}
	}
	for (uint64_t i = 1; i < w->r->nnode; i++) {
		if (made[i].fd >= 0)
			(void)close(made[i].fd);
	}
	free(made);
	free(t.e);
	return rc;
}

/* A file's bytes under these choices, made once and shared by the states that agree on them. */
static struct memfs_bytes *crash_bytes_kept(struct crash_walk *w, uint32_t node)
{
	struct crash_kept *k = &w->kept[node];
	struct crash_content c;
	uint64_t key = 1;
	uint32_t at;

	for (uint64_t i = 0; i < w->point; i++) {
		const struct rec_event *e = &w->r->event[i];

		if (e->node != node || !rec_is_data(e->kind) || w->choice[i].fate == FATE_LOST)
			continue;
		key = memfs_mix(key, i);
		key = memfs_mix(key, (uint64_t)w->choice[i].fate);
		key = memfs_mix(key, w->choice[i].arg);
	}
	for (at = 0; at < CRASH_KEPT; at++) {
		if (k->bytes[at] && k->key[at] == key)
			return k->bytes[at];
	}
	crash_content_make(w, node, &c);
	at = k->next++ % CRASH_KEPT;
	memfs_bytes_drop(k->bytes[at]);
	k->bytes[at] = memfs_bytes_new(c.p, c.len);
	k->key[at] = key;
	free(c.p);
	return k->bytes[at];
}

/* As crash_tree_make. */
static void crash_memory_make(struct crash_walk *w)
{
	uint32_t *made =
		calloc(w->r->nnode, sizeof(*made)); /* of a directory or file; 0: not yet */
	struct crash_names t;
	bool more = true;

	if (!made)
		abort();
	crash_names_make(w, &t);
	while (more) {
		more = false;
		for (uint64_t i = 0; i < t.n; i++) {
			struct rec_entry *e = &t.e[i];

			if (e->node == REC_NONE || (e->dir && !made[e->dir]))
				continue;
			if (made[e->node])
				memfs_add_link(&w->fs, made[e->dir], e->name, made[e->node]);
			else
				made[e->node] = memfs_add(&w->fs, made[e->dir], e->name,
							  w->r->node[e->node].is_dir
								  ? NULL
								  : crash_bytes_kept(w, e->node));
			e->node = REC_NONE;
			more = true;
		}
	}
	free(made);
	free(t.e);
}

static int tree_remove_at(int dirfd, const char *name, int depth)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *de;
	DIR *d;
	int rc = 0;

	if (fd < 0)
		return unlinkat(dirfd, name, 0) && errno != ENOENT ? -errno : 0;
	d = fdopendir(fd);
	if (!d || depth == 0)
		abort();
	while (rc == 0 && (de = readdir(d))) {
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			rc = tree_remove_at(fd, de->d_name, depth - 1);
	}
	(void)closedir(d);
	if (rc == 0 && unlinkat(dirfd, name, AT_REMOVEDIR))
		rc = -errno;
	return rc;
}

int io_tree_remove(int dirfd, const char *name)
{
	return tree_remove_at(dirfd, name, TREE_DEPTH_MAX);
}

static void crash_text_event(char *text, const struct rec_event *e, uint64_t at, const char *what)
{
	size_t used = strlen(text);

	(void)snprintf(text + used, CRASH_TEXT_BYTES - used, "%s #%llu %s %s%s%s node %d %llu+%llu",
		       what, (unsigned long long)at, rec_kind_name[e->kind], e->name ? e->name : "",
		       e->to ? " -> " : "", e->to ? e->to : "", (int)e->node,
		       (unsigned long long)e->off, (unsigned long long)e->len);
}

static void crash_text_make(const struct crash_walk *w, char *text)
{
	(void)snprintf(
		text, CRASH_TEXT_BYTES,
		"crash state %llu (seed %llu): power lost after %llu of %llu events, promised %llu",
		(unsigned long long)w->number, (unsigned long long)w->o->seed,
		(unsigned long long)w->point, (unsigned long long)w->r->nevent,
		(unsigned long long)w->promise);
	if (w->point > 0)
		crash_text_event(text, &w->r->event[w->point - 1], w->point - 1, "; the last:");
	for (uint64_t i = 0; i < w->point; i++) {
		if (w->loose[i] && w->choice[i].fate != FATE_KEPT) {
			crash_text_event(text, &w->r->event[i], i, "\n ");
			(void)snprintf(text + strlen(text), CRASH_TEXT_BYTES - strlen(text),
				       ": %s (%llu)", crash_fate_name[w->choice[i].fate],
				       (unsigned long long)w->choice[i].arg);
		}
	}
}

/* The same choices under the same promise give the same state. */
static bool crash_chosen_before(struct crash_walk *w)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325) ^ w->promise;

	for (uint64_t i = 0; i < w->point; i++) {
		if ((!rec_is_name(w->r->event[i].kind) && !rec_is_data(w->r->event[i].kind)) ||
		    w->choice[i].fate == FATE_LOST)
			continue; /* lost is the same as not having happened yet */
		h = memfs_mix(h, i);
		h = memfs_mix(h, (uint64_t)w->choice[i].fate);
		h = memfs_mix(h, w->choice[i].arg);
	}
	return !crash_set_add(&w->chosen, h);
}

static void crash_state_on_disk(struct crash_walk *w, struct io_crash *at)
{
	char path[4096];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/state", w->dir);
	if (mkdirat(w->dirfd, "state", 0700) ||
	    (fd = openat(w->dirfd, "state", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		w->rc = -errno;
		return;
	}
	at->ops = &io_ops_posix;
	at->path = path;
	w->rc = crash_tree_make(w, fd);
	if (w->rc == 0) {
		w->number++;
		w->rc = w->each(w->arg, fd, at);
	}
	(void)close(fd);
	if (w->rc == 0)
		w->rc = io_tree_remove(w->dirfd, "state");
}

static void crash_state_in_memory(struct crash_walk *w, struct io_crash *at)
{
	uint64_t h;
	int fd;

	memfs_reset(&w->fs);
	crash_memory_make(w);
	h = memfs_mix(memfs_hash(&w->fs), w->promise);
	if (!crash_set_add(&w->looked_at, h))
		return;
	if (w->o->distinct)
		io_crash_set_count(w->o->distinct, memfs_mix(h, w->o->scenario));
	at->ops = &w->fs.ops;
	fd = memfs_open_root(&w->fs);
	w->number++;
	w->rc = w->each(w->arg, fd, at);
	if (w->rc == 0 && memfs_open_fds(&w->fs) != 1) {
		(void)fprintf(stderr, "the check left descriptors open\n");
		w->rc = -EMFILE;
	}
}

static void crash_state_check(struct crash_walk *w)
{
	struct io_crash at = { .number = w->number, .promise = w->promise };
	char text[CRASH_TEXT_BYTES];

	crash_order_close(w);
	if (w->rc || crash_chosen_before(w) || (w->o->every > 1 && w->asked++ % w->o->every))
		return;
	if (w->o->memory)
		crash_state_in_memory(w, &at);
	else
		crash_state_on_disk(w, &at);
	if (w->rc) {
		crash_text_make(w, text);
		(void)fprintf(stderr, "%s\n", text);
	}
}

static void crash_all(struct crash_walk *w, enum crash_fate names, enum crash_fate data)
{
	for (uint64_t i = 0; i < w->point; i++) {
		bool name = rec_is_name(w->r->event[i].kind);

		w->choice[i] = (struct crash_choice){ FATE_KEPT, 0 };
		if (w->loose[i])
			w->choice[i].fate = name ? names : data;
	}
}

static void crash_one(struct crash_walk *w, uint64_t i, struct crash_choice c)
{
	crash_all(w, FATE_KEPT, FATE_KEPT);
	w->choice[i] = c;
	crash_state_check(w);
}

static void crash_tears(struct crash_walk *w, uint64_t i)
{
	const struct rec_event *e = &w->r->event[i];
	uint64_t first = CRASH_SECTOR - e->off % CRASH_SECTOR;
	uint64_t cuts = e->len > first ? div_up(e->len - first, CRASH_SECTOR) : 0;
	uint64_t take = w->o->ntear ? MIN(cuts, (uint64_t)w->o->ntear) : cuts;

	for (uint64_t k = 0; k < take; k++) {
		uint64_t cut = first + (take > 1 ? k * (cuts - 1) / (take - 1) : 0) * CRASH_SECTOR;

		crash_one(w, i, (struct crash_choice){ FATE_CUT, cut });
		crash_one(w, i, (struct crash_choice){ FATE_CUT_GROWN, cut });
	}
	crash_one(w, i, (struct crash_choice){ FATE_MIXED, crash_random(&w->random) });
}

/* A state that has lost much has little in it that can differ: most lose a little. */
static void crash_random_state(struct crash_walk *w)
{
	uint64_t lost_of_16 = UINT64_C(1) << crash_random(&w->random) % 4; /* 1, 2, 4 or 8 */

	crash_all(w, FATE_KEPT, FATE_KEPT);
	for (uint64_t i = 0; i < w->point; i++) {
		const struct rec_event *e = &w->r->event[i];
		uint64_t dice = crash_random(&w->random), fate = dice >> 4;

		if (!w->loose[i])
			continue;
		w->choice[i].fate = dice % 16 < lost_of_16 ? FATE_LOST : FATE_KEPT;
		if (e->kind != EV_WRITE || e->len == 0 || fate % 2)
			continue;
		w->choice[i].fate = fate % 8 == 0 ? FATE_SIZE_ONLY : FATE_MIXED;
		w->choice[i].arg = w->choice[i].fate == FATE_MIXED ? dice : 0;
	}
	crash_state_check(w);
}

static void crash_point_check(struct crash_walk *w)
{
	uint64_t last = UINT64_MAX;

	crash_durability_find(w);
	if (w->point > 0 && w->r->event[w->point - 1].kind == EV_PROMISE)
		w->promise = w->r->event[w->point - 1].promise;
	crash_all(w, FATE_KEPT, FATE_KEPT);
	crash_state_check(w);
	crash_all(w, FATE_LOST, FATE_LOST);
	crash_state_check(w);
	crash_all(w, FATE_KEPT, FATE_LOST);
	crash_state_check(w);
	crash_all(w, FATE_LOST, FATE_KEPT);
	crash_state_check(w);
	for (uint64_t i = 0; i < w->point; i++) {
		if (!w->loose[i])
			continue;
		crash_one(w, i, (struct crash_choice){ FATE_LOST, 0 });
		if (w->r->event[i].kind != EV_WRITE || w->r->event[i].len == 0)
			continue;
		crash_one(w, i, (struct crash_choice){ FATE_SIZE_ONLY, 0 });
		last = i;
	}
	if (last != UINT64_MAX)
		crash_tears(w, last);
	for (uint32_t i = 0; i < w->o->nrandom; i++)
		crash_random_state(w);
}

/*
 * Thousands of states need no durability of their own: memory is a hundred times faster than a
 * disk.
 */
static int crash_dir_open(struct crash_walk *w)
{
	const char *tmp = getenv("TMPDIR");

	if (w->o->dir) {
		(void)snprintf(w->dir, sizeof(w->dir), "%s", w->o->dir);
	} else {
		(void)snprintf(w->dir, sizeof(w->dir), "/dev/shm/ckpt-crash-XXXXXX");
		if (!mkdtemp(w->dir)) {
			(void)snprintf(w->dir, sizeof(w->dir), "%s/ckpt-crash-XXXXXX",
				       tmp ? tmp : "/tmp");
			if (!mkdtemp(w->dir))
				return -errno;
		}
	}
	w->dirfd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return w->dirfd < 0 ? -errno : 0;
}

int io_crash_states(const struct io_record *r, const struct io_crash_opts *o,
		    int (*each)(void *arg, int dirfd, const struct io_crash *at), void *arg,
		    uint64_t *ret_states)
{
	struct crash_walk w = { .r = r, .o = o, .each = each, .arg = arg, .random = o->seed };

	w.dirfd = -1;
	if (o->memory)
		memfs_init(&w.fs);
	else
		w.rc = crash_dir_open(&w);
	if (w.rc)
		return w.rc;
	w.kept = calloc(r->nnode, sizeof(*w.kept));
	w.loose = calloc(r->nevent + 1, sizeof(*w.loose));
	w.orphan = calloc(r->nevent + 1, sizeof(*w.orphan));
	w.choice = calloc(r->nevent + 1, sizeof(*w.choice));
	if (!w.kept || !w.loose || !w.orphan || !w.choice)
		abort();
	for (w.point = 0; w.point <= r->nevent && w.rc == 0; w.point++)
		crash_point_check(&w);
	if (!o->memory) {
		(void)io_tree_remove(w.dirfd, "state");
		if (!o->dir)
			(void)rmdir(w.dir);
		(void)close(w.dirfd);
	}
	if (!o->quiet)
		(void)fprintf(stderr, "crash states: %llu checked, %llu events, seed %llu\n",
			      (unsigned long long)w.number, (unsigned long long)r->nevent,
			      (unsigned long long)o->seed);
	if (ret_states)
		*ret_states = w.number;
	for (uint64_t i = 0; i < r->nnode; i++) {
		for (uint32_t k = 0; k < CRASH_KEPT; k++)
			memfs_bytes_drop(w.kept[i].bytes[k]);
	}
	if (o->memory)
		memfs_free(&w.fs);
	free(w.kept);
	free(w.chosen.slot);
	free(w.looked_at.slot);
	free(w.loose);
	free(w.orphan);
	free(w.choice);
	return w.rc;
}
