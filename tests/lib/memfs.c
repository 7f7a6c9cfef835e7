/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfs.c - see memfs.h. Invariant: a node whose nlink and nopen are 0 has no bytes; its slot stays
 * unused until the next reset.
 */
#include "tests/lib/row.h"
#include "tests/lib/memfs.h"
#include <dirent.h>
#include <fcntl.h>
#include "ckpt/base/util.h"

#define MEMFS_NONE UINT32_MAX

static void *memfs_grow(void *p, uint64_t n, size_t size)
{
	p = realloc(p, n * size);
	if (!p)
		abort();
	return p;
}

uint64_t memfs_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ (h >> 29);
}

uint64_t memfs_hash_bytes(const void *p, uint64_t len)
{
	const uint8_t *b = p;
	uint64_t h = UINT64_C(0xcbf29ce484222325) ^ len, word;

	for (; len >= sizeof word; len -= sizeof word, b += sizeof word) {
		memcpy(&word, b, sizeof word);
		h = memfs_mix(h, word);
	}
	for (; len > 0; len--)
		h = memfs_mix(h, *b++);
	return h;
}

struct memfs_bytes *memfs_bytes_new(const void *p, uint64_t len)
{
	struct memfs_bytes *b = calloc(1, sizeof(*b));

	if (!b)
		abort();
	b->p = memfs_grow(NULL, len + 1, 1);
	if (len)
		memcpy(b->p, p, len);
	b->refs = 1;
	b->len = b->cap = len;
	return b;
}

void memfs_bytes_drop(struct memfs_bytes *b)
{
	if (!b || --b->refs)
		return;
	free(b->p);
	free(b);
}

static struct memfs_bytes *memfs_bytes_own(struct memfs_node *n)
{
	struct memfs_bytes *b = n->bytes;

	if (b->refs > 1) {
		n->bytes = memfs_bytes_new(b->p, b->len);
		memfs_bytes_drop(b);
	}
	n->bytes->hashed = false;
	return n->bytes;
}

static void memfs_bytes_size(struct memfs_bytes *b, uint64_t len)
{
	if (len > b->cap) {
		b->cap = MAX(len, 2 * b->cap);
		b->p = memfs_grow(b->p, b->cap + 1, 1);
	}
	if (len > b->len)
		memset(b->p + b->len, 0, len - b->len);
	b->len = len;
}

/* --- nodes and names --- */

static uint32_t memfs_node_add(struct memfs *fs, bool is_dir)
{
	struct memfs_node *n;

	if (fs->nnode == fs->node_room) {
		fs->node = memfs_grow(fs->node, 2 * fs->node_room + 16, sizeof(*fs->node));
		memset(fs->node + fs->node_room, 0, (fs->node_room + 16) * sizeof(*fs->node));
		fs->node_room = 2 * fs->node_room + 16;
	}
	n = &fs->node[fs->nnode];
	/* the room for entries is used again */
	*n = (struct memfs_node){ .is_dir = is_dir, .entry = n->entry, .room = n->room };
	return fs->nnode++;
}

static void memfs_node_check(struct memfs *fs, uint32_t node)
{
	struct memfs_node *n = &fs->node[node];

	if (n->nlink == 0 && n->nopen == 0)
		memfs_bytes_drop(TAKE(n->bytes));
}

static struct memfs_entry *memfs_find(struct memfs *fs, uint32_t dir, const char *name)
{
	uint64_t h = memfs_hash_bytes(name, strlen(name));
	struct memfs_node *n = &fs->node[dir];

	for (uint32_t i = 0; i < n->nentry; i++) {
		if (n->entry[i].hash == h && strcmp(n->entry[i].name, name) == 0)
			return &n->entry[i];
	}
	return NULL;
}

void memfs_add_link(struct memfs *fs, uint32_t dir, const char *name, uint32_t node)
{
	struct memfs_node *n = &fs->node[dir];
	struct memfs_entry *e;
	size_t len = strlen(name);

	assert(len < MEMFS_NAME_MAX);
	if (n->nentry == n->room) {
		n->room = 2 * n->room + 8;
		n->entry = memfs_grow(n->entry, n->room, sizeof(*n->entry));
	}
	e = &n->entry[n->nentry++];
	e->node = node;
	e->hash = memfs_hash_bytes(name, len);
	memcpy(e->name, name, len + 1);
	fs->node[node].nlink++;
}

uint32_t memfs_add(struct memfs *fs, uint32_t dir, const char *name, struct memfs_bytes *bytes)
{
	uint32_t node = memfs_node_add(fs, !bytes);

	if (bytes)
		bytes->refs++;
	fs->node[node].bytes = bytes;
	memfs_add_link(fs, dir, name, node);
	return node;
}

static void memfs_entry_remove(struct memfs *fs, uint32_t dir, struct memfs_entry *e)
{
	struct memfs_node *n = &fs->node[dir];
	uint32_t node = e->node;

	*e = n->entry[--n->nentry];
	fs->node[node].nlink--;
	memfs_node_check(fs, node);
}

/* The directory that holds name's last component. */
static int memfs_parent(struct memfs *fs, int dirfd, const char *name, uint32_t *ret_dir,
			const char **ret_last)
{
	uint32_t at = (uint32_t)(dirfd - MEMFS_FD);
	const char *slash;

	if (dirfd < MEMFS_FD || at >= fs->nfd || fs->fd[at].node == MEMFS_NONE)
		return -EBADF;
	at = fs->fd[at].node;
	while ((slash = strchr(name, '/'))) {
		char part[MEMFS_NAME_MAX];
		struct memfs_entry *e;

		if ((size_t)(slash - name) >= sizeof(part))
			return -ENAMETOOLONG;
		memcpy(part, name, (size_t)(slash - name));
		part[slash - name] = 0;
		if (!fs->node[at].is_dir)
			return -ENOTDIR;
		e = memfs_find(fs, at, part);
		if (!e)
			return -ENOENT;
		at = e->node;
		name = slash + 1;
	}
	if (!fs->node[at].is_dir)
		return -ENOTDIR;
	if (strcmp(name, "..") == 0 || !*name)
		return *name ? -EXDEV : -ENOENT;
	if (strlen(name) >= MEMFS_NAME_MAX)
		return -ENAMETOOLONG;
	*ret_dir = at;
	*ret_last = name;
	return 0;
}

static struct memfs_node *memfs_node_of(struct memfs *fs, int fd)
{
	uint32_t at = (uint32_t)(fd - MEMFS_FD);

	if (fd < MEMFS_FD || at >= fs->nfd || fs->fd[at].node == MEMFS_NONE)
		return NULL;
	return &fs->node[fs->fd[at].node];
}

static int memfs_fd_new(struct memfs *fs, uint32_t node)
{
	uint32_t at = 0;

	while (at < fs->nfd && fs->fd[at].node != MEMFS_NONE)
		at++;
	if (at == fs->nfd) {
		fs->fd = memfs_grow(fs->fd, fs->nfd + 1, sizeof(*fs->fd));
		fs->nfd++;
	}
	fs->fd[at] = (struct memfs_fd){ .node = node };
	fs->node[node].nopen++;
	return MEMFS_FD + (int)at;
}

/* --- the table --- */

static int memfs_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	struct memfs *fs = ctx;
	struct memfs_entry *e;
	const char *last;
	uint32_t dir, node;
	int rc = memfs_parent(fs, dirfd, name, &dir, &last);

	(void)mode;
	if (rc)
		return rc;
	e = strcmp(last, ".") == 0 ? NULL : memfs_find(fs, dir, last);
	node = strcmp(last, ".") == 0 ? dir : e ? e->node : MEMFS_NONE;
	if (node == MEMFS_NONE) {
		if (!(flags & O_CREAT))
			return -ENOENT;
		node = memfs_node_add(fs, false);
		fs->node[node].bytes = memfs_bytes_new(NULL, 0);
		memfs_add_link(fs, dir, last, node);
	} else if ((flags & O_CREAT) && (flags & O_EXCL)) {
		return -EEXIST;
	}
	if (fs->node[node].is_dir && (flags & O_ACCMODE) != O_RDONLY)
		return -EISDIR;
	if (!fs->node[node].is_dir && (flags & O_DIRECTORY))
		return -ENOTDIR;
	if (flags & O_TRUNC)
		memfs_bytes_size(memfs_bytes_own(&fs->node[node]), 0);
	return memfs_fd_new(fs, node);
}

static int memfs_close(void *ctx, int fd)
{
	struct memfs *fs = ctx;
	struct memfs_node *n = memfs_node_of(fs, fd);
	struct memfs_fd *f;

	if (!n)
		return -EBADF;
	f = &fs->fd[fd - MEMFS_FD];
	n->shared -= f->lock == 1;
	n->exclusive -= f->lock == 2;
	n->nopen--;
	memfs_node_check(fs, f->node);
	f->node = MEMFS_NONE;
	return 0;
}

static int64_t memfs_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct memfs_node *n = memfs_node_of(ctx, fd);

	if (!n)
		return -EBADF;
	if (n->is_dir)
		return -EISDIR;
	if (off >= n->bytes->len)
		return 0;
	len = MIN(len, n->bytes->len - off);
	memcpy(buf, n->bytes->p + off, len);
	return (int64_t)len;
}

static int64_t memfs_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct memfs_node *n = memfs_node_of(ctx, fd);
	struct memfs_bytes *b;

	if (!n || n->is_dir)
		return -EBADF;
	if (len == 0)
		return 0; /* and the file is not longer for it, wherever off is */
	b = memfs_bytes_own(n);
	memfs_bytes_size(b, MAX(b->len, off + len));
	memcpy(b->p + off, buf, len);
	return (int64_t)len;
}

static int memfs_fallocate(void *ctx, int fd, uint64_t len)
{
	struct memfs_node *n = memfs_node_of(ctx, fd);

	if (!n || n->is_dir)
		return -EBADF;
	memfs_bytes_size(memfs_bytes_own(n), MAX(n->bytes->len, len));
	return 0;
}

static int memfs_truncate(void *ctx, int fd, uint64_t len)
{
	struct memfs_node *n = memfs_node_of(ctx, fd);

	if (!n || n->is_dir)
		return -EBADF;
	memfs_bytes_size(memfs_bytes_own(n), len);
	return 0;
}

static int memfs_sync(void *ctx, int fd)
{
	return memfs_node_of(ctx, fd) ? 0 : -EBADF;
}

static int memfs_mkdir(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	struct memfs *fs = ctx;
	const char *last;
	uint32_t dir;
	int rc = memfs_parent(fs, dirfd, name, &dir, &last);

	(void)mode;
	if (rc)
		return rc;
	if (memfs_find(fs, dir, last))
		return -EEXIST;
	(void)memfs_add(fs, dir, last, NULL);
	return 0;
}

/* Is node the directory `at` or above it? */
static bool memfs_is_above(struct memfs *fs, uint32_t node, uint32_t at)
{
	bool more = true;

	while (node != at && at != MEMFS_ROOT && more) {
		more = false;
		for (uint32_t i = 0; i < fs->nnode && !more; i++) {
			for (uint32_t k = 0; k < fs->node[i].nentry && !more; k++) {
				if (fs->node[i].is_dir && fs->node[i].entry[k].node == at) {
					at = i;
					more = true;
				}
			}
		}
	}
	return node == at;
}

static int memfs_rename(void *ctx, int dirfd, const char *from, const char *to)
{
	struct memfs *fs = ctx;
	const char *from_last, *to_last;
	uint32_t from_dir, to_dir, node;
	struct memfs_entry *e;
	int rc = memfs_parent(fs, dirfd, from, &from_dir, &from_last);

	if (rc == 0)
		rc = memfs_parent(fs, dirfd, to, &to_dir, &to_last);
	if (rc)
		return rc;
	e = memfs_find(fs, from_dir, from_last);
	if (!e)
		return -ENOENT;
	if (memfs_find(fs, to_dir, to_last))
		return -EEXIST;
	node = e->node;
	if (fs->node[node].is_dir && from_dir != to_dir && memfs_is_above(fs, node, to_dir))
		return -EINVAL;
	memfs_add_link(fs, to_dir, to_last, node);
	memfs_entry_remove(fs, from_dir, memfs_find(fs, from_dir, from_last));
	return 0;
}

static int memfs_link(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	struct memfs *fs = ctx;
	const char *from_last, *to_last;
	uint32_t from_dir, to_dir;
	struct memfs_entry *e;
	int rc = memfs_parent(fs, from_dirfd, from, &from_dir, &from_last);

	if (rc == 0)
		rc = memfs_parent(fs, to_dirfd, to, &to_dir, &to_last);
	if (rc)
		return rc;
	e = memfs_find(fs, from_dir, from_last);
	if (!e)
		return -ENOENT;
	if (memfs_find(fs, to_dir, to_last))
		return -EEXIST;
	if (fs->node[e->node].is_dir)
		return -EPERM;
	memfs_add_link(fs, to_dir, to_last, e->node);
	return 0;
}

static int memfs_unlink(void *ctx, int dirfd, const char *name, bool is_dir)
{
	struct memfs *fs = ctx;
	struct memfs_entry *e;
	const char *last;
	uint32_t dir;
	int rc = memfs_parent(fs, dirfd, name, &dir, &last);

	if (rc)
		return rc;
	e = memfs_find(fs, dir, last);
	if (!e)
		return -ENOENT;
	if (fs->node[e->node].is_dir != is_dir)
		return is_dir ? -ENOTDIR : -EISDIR;
	if (fs->node[e->node].nentry)
		return -ENOTEMPTY;
	memfs_entry_remove(fs, dir, e);
	return 0;
}

static int memfs_size(void *ctx, int fd, uint64_t *ret_bytes)
{
	struct memfs_node *n = memfs_node_of(ctx, fd);

	if (!n || n->is_dir)
		return n ? -EISDIR : -EBADF;
	*ret_bytes = n->bytes->len;
	return 0;
}

/* Of the names that are there when it begins, as a directory that fits into one buffer. */
static int memfs_list(void *ctx, int dirfd,
		      int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	struct memfs *fs = ctx;
	struct memfs_node *n = memfs_node_of(fs, dirfd);
	struct memfs_entry *e;
	uint32_t count;
	int rc = 0;

	if (!n || !n->is_dir)
		return n ? -ENOTDIR : -EBADF;
	count = n->nentry;
	e = memfs_grow(NULL, count + 1, sizeof(*e));
	if (count)
		memcpy(e, n->entry, count * sizeof(*e));
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = each(arg, e[i].name, fs->node[e[i].node].is_dir ? DT_DIR : DT_REG);
	free(e);
	return rc;
}

/* "/" and AT_FDCWD are the root. */
static int memfs_open_path(void *ctx, int dirfd, const char *path, int flags)
{
	struct memfs *fs = ctx;
	int root = dirfd == AT_FDCWD || *path == '/' ? memfs_open_root(fs) : dirfd, fd;

	while (*path == '/')
		path++;
	fd = memfs_open(ctx, root, *path ? path : ".", flags, 0);
	if (root != dirfd)
		(void)memfs_close(ctx, root);
	return fd;
}

static int memfs_space(void *ctx, int fd, struct io_space *ret)
{
	*ret = (struct io_space){ .free_bytes = UINT64_C(1) << 40,
				  .total_bytes = UINT64_C(1) << 41 };
	return memfs_node_of(ctx, fd) ? 0 : -EBADF;
}

static int memfs_lock(void *ctx, int fd, bool exclusive)
{
	struct memfs *fs = ctx;
	struct memfs_node *n = memfs_node_of(fs, fd);
	struct memfs_fd *f;

	if (!n)
		return -EBADF;
	f = &fs->fd[fd - MEMFS_FD];
	n->shared -= f->lock == 1;
	n->exclusive -= f->lock == 2;
	f->lock = 0; /* one that cannot be changed is lost, as the kernel's */
	if (n->exclusive || (exclusive && n->shared))
		return -EAGAIN;
	f->lock = exclusive ? 2 : 1;
	n->shared += !exclusive;
	n->exclusive += exclusive;
	return 0;
}

static int memfs_stat(void *ctx, int fd, struct io_stat *ret)
{
	struct memfs *fs = ctx;
	struct memfs_node *n = memfs_node_of(fs, fd);

	if (!n)
		return -EBADF;
	*ret = (struct io_stat){ .ino = fs->fd[fd - MEMFS_FD].node,
				 .uid = (uint32_t)geteuid(),
				 .bytes = n->is_dir ? 0 : n->bytes->len,
				 .nlink = n->nlink };
	return 0;
}

/* --- all of it --- */

void memfs_init(struct memfs *fs)
{
	*fs = (struct memfs)ROW(.ops = {
					.ctx = fs,
					.open = memfs_open,
					.close = memfs_close,
					.pread = memfs_pread,
					.pwrite = memfs_pwrite,
					.fallocate = memfs_fallocate,
					.truncate = memfs_truncate,
					.sync = memfs_sync,
					.mkdir = memfs_mkdir,
					.rename = memfs_rename,
					.link = memfs_link,
					.unlink = memfs_unlink,
					.size = memfs_size,
					.list = memfs_list,
					.space = memfs_space,
					.lock = memfs_lock,
					.stat = memfs_stat,
					.open_path = memfs_open_path,
				});
	memfs_reset(fs);
}

void memfs_reset(struct memfs *fs)
{
	for (uint32_t i = 0; i < fs->nnode; i++)
		memfs_bytes_drop(TAKE(fs->node[i].bytes));
	for (uint32_t i = 0; i < fs->nfd; i++)
		fs->fd[i].node = MEMFS_NONE;
	fs->nnode = 0;
	(void)memfs_node_add(fs, true);
	fs->node[MEMFS_ROOT].nlink = 1;
}

void memfs_free(struct memfs *fs)
{
	memfs_reset(fs);
	for (uint32_t i = 0; i < fs->node_room; i++)
		free(fs->node[i].entry);
	free(TAKE(fs->node));
	free(TAKE(fs->fd));
	fs->nnode = fs->node_room = fs->nfd = 0;
}

int memfs_open_root(struct memfs *fs)
{
	return memfs_fd_new(fs, MEMFS_ROOT);
}

uint32_t memfs_open_fds(const struct memfs *fs)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < fs->nfd; i++)
		n += fs->fd[i].node != MEMFS_NONE;
	return n;
}

static uint64_t memfs_hash_file(struct memfs_bytes *b)
{
	if (!b->hashed)
		b->hash = memfs_hash_bytes(b->p, b->len);
	b->hashed = true;
	return b->hash;
}

/* Breadth first: a directory's own hash, of its path, is known when its names are reached. */
uint64_t memfs_hash(struct memfs *fs)
{
	uint64_t sum = 0, *path = memfs_grow(NULL, fs->nnode, sizeof(*path));
	uint32_t *queue = memfs_grow(NULL, fs->nnode, sizeof(*queue)), n = 0;

	path[MEMFS_ROOT] = 1;
	queue[n++] = MEMFS_ROOT;
	for (uint32_t at = 0; at < n; at++) {
		const struct memfs_node *d = &fs->node[queue[at]];

		for (uint32_t i = 0; i < d->nentry; i++) {
			uint32_t node = d->entry[i].node;
			uint64_t h = memfs_mix(path[queue[at]], d->entry[i].hash);

			sum += memfs_mix(h, fs->node[node].is_dir
						    ? 7
						    : memfs_hash_file(fs->node[node].bytes));
			if (!fs->node[node].is_dir)
				continue;
			path[node] = h;
			queue[n++] = node;
		}
	}
	free(path);
	free(queue);
	return sum;
}
