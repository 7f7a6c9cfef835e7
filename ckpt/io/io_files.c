/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_files.c - see io_files.h. Called by move for the files of a checkpoint.
 * Invariant: open[0..nopen) are the files that have a descriptor, and no other has one.
 */
#include "ckpt/io/io_files.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/io/io_source.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

struct one_file {
	const char *name;
	int dirfd;	/* where it lies */
	int fd;		/* -1: closed */
	uint32_t taken; /* by how many */
	bool seen;	/* dev and ino are known */
	uint64_t dev, ino;
	uint64_t used; /* when it was taken last, by `clock` */
};

struct io_files {
	const struct io_ops *ops;
	uint32_t flags, n;
	bool direct;
	pthread_mutex_t lock; /* protects all below */
	uint32_t open[IO_FILES_MAX], nopen, most;
	uint64_t clock;
	struct one_file file[];
};

/* The rest is for whatever else this process does. */
static uint32_t most_of_process(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur / 4 >= IO_FILES_MAX)
		return IO_FILES_MAX;
	return r.rlim_cur < 8 ? 1 : (uint32_t)(r.rlim_cur / 4);
}

int io_files_make(const struct io_ops *ops, int dirfd, const char *const *name, uint32_t n,
		  uint32_t flags, bool direct, struct io_files **ret)
{
	struct io_files *f = calloc(1, sizeof *f + n * sizeof f->file[0]);

	*ret = f;
	if (!f)
		return -ENOMEM;
	f->ops = ops;
	f->flags = flags & SOURCE_LINKS;
	f->direct = direct;
	f->n = n;
	f->most = most_of_process();
	for (uint32_t i = 0; i < n; i++) {
		f->file[i].name = name[i];
		f->file[i].dirfd = dirfd;
		f->file[i].fd = -1;
	}
	(void)pthread_mutex_init(&f->lock, NULL);
	return 0;
}

void io_files_in(struct io_files *f, uint32_t i, int dirfd)
{
	assert(i < f->n && f->file[i].fd < 0 && !f->file[i].seen);
	f->file[i].dirfd = dirfd;
}

/* Close the file of those that nobody has that was used longest ago. false: all are taken. */
static bool idle_close(struct io_files *f)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t k = 0; k < f->nopen; k++) {
		const struct one_file *x = &f->file[f->open[k]];

		if ((!x->taken || MUTANT(FILES_CLOSED_TAKEN)) &&
		    (best == UINT32_MAX || x->used < f->file[f->open[best]].used))
			best = k;
	}
	if (best == UINT32_MAX)
		return false;
	(void)f->ops->close(f->ops->ctx, TAKE_FD(f->file[f->open[best]].fd));
	f->open[best] = f->open[--f->nopen];
	return true;
}

/* The same file as before? It could have been replaced while it was closed. */
static int file_check(struct io_files *f, struct one_file *x, int fd)
{
	struct io_stat st;

	if (io_stat(f->ops, fd, &st))
		return 0; /* it cannot be known */
	if (x->seen && !MUTANT(FILES_REPLACED) && (x->dev != st.dev || x->ino != st.ino))
		return -ESTALE;
	x->seen = true;
	x->dev = st.dev;
	x->ino = st.ino;
	return 0;
}

/*
 * A fifo in its place would keep an open waiting: so the first one does not wait, and looks. Not
 * with the descriptor that stays: for some kernels O_NONBLOCK means that reads may fail.
 */
static int file_open(struct io_files *f, struct one_file *x)
{
	const struct io_ops *ops = f->ops;
	uint64_t bytes;
	int fd = source_fd(ops, x->dirfd, x->name, f->flags, O_NONBLOCK, &bytes), rc;

	if (fd < 0)
		return fd;
	(void)ops->close(ops->ctx, fd);
	fd = f->direct ? source_fd(ops, x->dirfd, x->name, f->flags, O_DIRECT, &bytes) : -EINVAL;
	if (fd == -EINVAL || fd == -EOPNOTSUPP) {
		fd = source_fd(ops, x->dirfd, x->name, f->flags, 0, &bytes);
		if (f->direct && fd >= 0)
			io_forget(fd);
	}
	if (fd < 0)
		return fd;
	rc = file_check(f, x, fd);
	if (rc)
		(void)ops->close(ops->ctx, fd);
	return rc ? rc : fd;
}

static int file_take(struct io_files *f, uint32_t i)
{
	struct one_file *x = &f->file[i];
	int fd = x->fd;

	if (fd < 0) {
		if (!x->name)
			return -ENOENT;
		while (f->nopen >= f->most && !MUTANT(FILES_UNLIMITED))
			if (!idle_close(f))
				return -EAGAIN;
		fd = file_open(f, x);
		/* Of what others need too, half is enough. */
		if ((fd == -EMFILE || fd == -ENFILE) && f->nopen) {
			f->most = MAX(f->nopen / 2, 1u);
			while (f->nopen >= f->most && idle_close(f))
				;
			fd = f->nopen >= f->most ? -EAGAIN : file_open(f, x);
		}
		if (fd < 0)
			return fd;
		x->fd = fd;
		f->open[f->nopen++] = i;
	}
	x->taken++;
	x->used = ++f->clock;
	return fd;
}

int io_files_take(struct io_files *f, uint32_t i)
{
	int fd;

	assert(i < f->n);
	(void)pthread_mutex_lock(&f->lock);
	fd = file_take(f, i);
	(void)pthread_mutex_unlock(&f->lock);
	return fd;
}

void io_files_give(struct io_files *f, uint32_t i)
{
	(void)pthread_mutex_lock(&f->lock);
	assert(i < f->n && f->file[i].taken);
	f->file[i].taken--;
	(void)pthread_mutex_unlock(&f->lock);
}

void io_files_free(struct io_files *f)
{
	if (!f)
		return;
	for (uint32_t k = 0; k < f->nopen; k++) {
		assert(!f->file[f->open[k]].taken);
		(void)f->ops->close(f->ops->ctx, f->file[f->open[k]].fd);
	}
	(void)pthread_mutex_destroy(&f->lock);
	free(f);
}
