/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.h - every byte that reaches or leaves a file passes here. Two engines behind one queue:
 * io_uring, and a pool of threads with pread/pwrite; one table of system calls (struct io_ops) that
 * tests replace to inject faults, record and reorder. fsync( appears in this room only.
 *
 * Rules (facts: docs/DURABILITY.md): an fsync error kills the file for ever, it is never retried;
 * the bytes are rewritten from memory to a new file. An fsync is submitted only after every write
 * to that file has completed. Positional offsets only, never O_APPEND. close() is checked and never
 * retried.
 */
#ifndef CKPT_IO_IO_H
#define CKPT_IO_IO_H
#include "ckpt/ckpt.h"
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct io_space {
	uint64_t free_bytes;  /* that this user may still take */
	uint64_t total_bytes; /* of the whole file system */
};

struct io_stat {
	uint64_t dev, ino; /* the same for the same file, while it is open */
	uint32_t uid;	   /* its owner */
	/* When it or its name last changed (a rename is a change), since 1970 by the file system's
	 * clock; 0: it does not say */
	uint64_t changed_ns;
	uint64_t
		modified_ns; /* when its bytes last changed, by the same clock; 0: it does not say */
	uint64_t bytes;	     /* its length */
	uint32_t nlink;	     /* names that lead to it */
	uint32_t mode;	     /* who may do what with it: st_mode's lowest nine bits */
};

enum io_lock { IO_LOCK_SHARED, IO_LOCK_EXCLUSIVE, IO_LOCK_ASK /* locks nothing: is it free? */ };

/* System calls as the store uses them: each returns >= 0 or a negative errno. ctx is the first
 * argument so that a test's table carries state. Names are single components or paths beneath dirfd
 * that never leave it; symbolic links are not followed. */
struct io_ops {
	void *ctx;
	/* O_CLOEXEC|O_NOFOLLOW are added */
	int (*open)(void *ctx, int dirfd, const char *name, int flags, uint32_t mode);
	int (*close)(void *ctx, int fd);
	/* may be short */
	int64_t (*pread)(void *ctx, int fd, void *buf, uint64_t len, uint64_t off);
	/* may be short */
	int64_t (*pwrite)(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off);
	int (*fallocate)(void *ctx, int fd, uint64_t len); /* -EOPNOTSUPP is fine */
	int (*truncate)(void *ctx, int fd, uint64_t len);
	int (*sync)(void *ctx, int fd); /* fsync of a file or a directory */
	int (*mkdir)(void *ctx, int dirfd, const char *name, uint32_t mode);
	/* within dirfd, RENAME_NOREPLACE: -EEXIST */
	int (*rename)(void *ctx, int dirfd, const char *from, const char *to);
	/* One more name for a file. -EEXIST; -EXDEV, -EPERM, -EMLINK, ...: not there, or not this
	 * file */
	int (*link)(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to);
	int (*unlink)(void *ctx, int dirfd, const char *name, bool is_dir);
	/* -EISDIR, -EINVAL for what is no regular file */
	int (*size)(void *ctx, int fd, uint64_t *ret_bytes);
	/* without . and .. ; each != 0 ends it and is returned */
	int (*list)(void *ctx, int dirfd,
		    int (*each)(void *arg, const char *name, unsigned char d_type), void *arg);
	/* of the file system that holds fd; a hint: quotas and other writers are not in it */
	int (*space)(void *ctx, int fd, struct io_space *ret);
	/* Advisory, of an open file or directory, until its last descriptor is closed; a second
	 * call changes it. -EAGAIN: somebody else's is in the way; -EOPNOTSUPP: no locks here */
	int (*lock)(void *ctx, int fd, bool exclusive);
	/*
	 * NULL: no such locks (io_lock_bytes). The same of a range of an open file's bytes, which
	 * need not exist: for processes of other hosts too if the file system passes locks on, as
	 * NFS does with those of files, and does not with those of directories. Exclusive: the file
	 * is open for writing. -EAGAIN, -EOPNOTSUPP
	 */
	int (*lock_bytes)(void *ctx, int fd, uint64_t off, uint64_t len, enum io_lock how);
	/* NULL: no (io_shared). May processes of other hosts use the file system of fd at the same
	 * time? True for all that is not known to belong to one host */
	bool (*shared)(void *ctx, int fd);
	/* NULL: cannot be known (io_stat). Of an open file or directory, as the kernel knows it: it
	 * asks no device and no server */
	int (*stat)(void *ctx, int fd, struct io_stat *ret);
	/* Both NULL: cannot be known (io_path, io_find). The absolute path by which this process
	 * reaches an open directory; and which directory such a path leads to now, links
	 * followed */
	int (*path)(void *ctx, int fd, char *ret, uint64_t bytes);
	int (*find)(void *ctx, const char *path, struct io_stat *ret);
	/* NULL: refused (io_open_path). A path that a person typed, from dirfd on (AT_FDCWD: the
	 * working directory), or an entry that may be a link: links are followed. Never to make or
	 * to write anything. O_CLOEXEC is added */
	int (*open_path)(void *ctx, int dirfd, const char *path, int flags);
	/* NULL: what open, size and stat say (io_stat_at). Of one entry of dirfd, which is not
	 * opened */
	int (*stat_at)(void *ctx, int dirfd, const char *name, struct io_stat *ret);
	/* NULL, or told the name of each step of a protocol as it is reached (store/points.h):
	 * where tests kill, cut the power and count */
	void (*point)(void *ctx, const char *name);
};
extern const struct io_ops io_ops_posix;

static inline int io_stat(const struct io_ops *ops, int fd, struct io_stat *ret)
{
	return ops->stat ? ops->stat(ops->ctx, fd, ret) : -EOPNOTSUPP;
}

static inline int io_lock_bytes(const struct io_ops *ops, int fd, uint64_t off, uint64_t len,
				enum io_lock how)
{
	return ops->lock_bytes ? ops->lock_bytes(ops->ctx, fd, off, len, how) : -EOPNOTSUPP;
}

static inline bool io_shared(const struct io_ops *ops, int fd)
{
	return ops->shared && ops->shared(ops->ctx, fd);
}

static inline int io_path(const struct io_ops *ops, int fd, char *ret, uint64_t bytes)
{
	return ops->path ? ops->path(ops->ctx, fd, ret, bytes) : -EOPNOTSUPP;
}

static inline int io_find(const struct io_ops *ops, const char *path, struct io_stat *ret)
{
	return ops->find ? ops->find(ops->ctx, path, ret) : -EOPNOTSUPP;
}

static inline int io_open_path(const struct io_ops *ops, int dirfd, const char *path, int flags)
{
	return ops->open_path ? ops->open_path(ops->ctx, dirfd, path, flags) : -ELOOP;
}

/* Looks at a regular file by its name, which is one component. -ENOENT; -EISDIR, -EINVAL, -ELOOP:
 * it is no regular file. If ops has no stat, it opens the file and fills only its length. */
int io_stat_at(const struct io_ops *ops, int dirfd, const char *name, struct io_stat *ret);

static inline void io_point(const struct io_ops *ops, const char *name)
{
	if (ops->point)
		ops->point(ops->ctx, name);
}

/* Whole-buffer helpers over the table; short transfers are continued. read: -ENODATA at an early
 * end of file. */
int io_pread_all(const struct io_ops *ops, int fd, void *buf, uint64_t len, uint64_t off);
int io_pwrite_all(const struct io_ops *ops, int fd, const void *buf, uint64_t len, uint64_t off);

/* Does it bypass the page cache? A file that was opened with O_DIRECT stops doing so at the first
 * transfer that its file system refuses: the transfer is then done buffered, and so are all later
 * ones of that descriptor. */
bool io_fd_direct(int fd);
/* What the page cache has of a file leaves it, but for what is not on the disk yet: the next read
 * is the disk's. For who wanted to read past the cache and cannot; a queue does it by itself where
 * a direct read is refused. */
void io_forget(int fd);

/* What the file system under a directory can do; probed once per store, with a scratch file that is
 * removed. */
struct io_probe {
	bool direct; /* O_DIRECT reads and writes work */
	/* of offsets, lengths and buffers with direct: 4096; where statx says more, direct is
	 * false */
	uint32_t align;
	bool reserves;	  /* fallocate works: what it promised is there */
	bool volatile_fs; /* tmpfs, ramfs: nothing survives power loss */
	char fs_type[16];
};
/* As io_ops.shared of the kernel. */
bool io_fs_shared(int fd);
int io_probe(const struct io_ops *ops, int dirfd, struct io_probe *ret, struct ckpt_err *err);

/* INLINE: in io_submit itself, through the ops table: deterministic, for tests */
enum io_engine { IO_AUTO, IO_URING, IO_THREADS, IO_INLINE };

struct io_req {
	int fd;
	bool write;
	void *buf;	   /* must stay until reaped; a write does not change it */
	uint64_t len, off; /* with O_DIRECT: multiples of align */
	void *user;	   /* comes back with the completion */
	/* len, or a negative errno; a read that meets the end of the file completes with the bytes
	 * it got */
	int64_t res;
	uint64_t done_; /* the queue's */
};

/* A queue belongs to the thread that opened it (asserted). A ring does not call the table, so with
 * one whose pread or pwrite is not the kernel's IO_URING is -EINVAL and IO_AUTO takes threads.
 * depth: 1..4096. Requests complete in any order. Short transfers, EINTR and EAGAIN are continued
 * inside. */
struct io_queue;
int io_queue_open(const struct io_ops *ops, enum io_engine engine, uint32_t depth,
		  struct io_queue **ret, struct ckpt_err *err);
enum io_engine io_queue_engine(const struct io_queue *q); /* which one AUTO took */
/* one line: engine, and why not the faster one */
const char *io_queue_why(const struct io_queue *q);
/* 0; -EAGAIN: depth requests are in flight, reap first */
int io_submit(struct io_queue *q, struct io_req *r);
/* waits for one completion; NULL: none in flight */
struct io_req *io_reap(struct io_queue *q);
uint32_t io_in_flight(const struct io_queue *q);
void io_queue_close(struct io_queue *q); /* waits for what is in flight */
#endif
