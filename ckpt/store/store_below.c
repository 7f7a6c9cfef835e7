/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_below.c - where the stores are, for somebody who has named a directory that is none. Called
 * by ckptctl. Invariant: the search ends: it goes BELOW_DEPTH levels down and opens BELOW_DIRS
 * directories at most.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

#define BELOW_DEPTH 3	/* levels: HOME/project/runs is found, and a whole disk is not walked */
#define BELOW_DIRS 4096 /* a second on a slow file system */
#define BELOW_SHOWN 5

struct below {
	const struct io_ops *ops;
	uint32_t nopened, nfound;
	char found[1200]; /* "a/runs, b" */
};

struct subdirs {
	char (*name)[256];
	uint32_t n, cap;
	bool other; /* something that is no directory is there */
};

static int subdirs_add(void *arg, const char *name, unsigned char d_type)
{
	struct subdirs *d = arg;

	if (strcmp(name, "lost+found") == 0) /* of an empty file system */
		return 0;
	if ((d_type != DT_DIR && d_type != DT_UNKNOWN) || name[0] == '.' ||
	    strlen(name) >= sizeof *d->name) {
		d->other = true;
		return 0;
	}
	if (d->n == BELOW_DIRS)
		return 0;
	if (!ARRAY_GROW(d->name, d->n, d->cap))
		return -ENOMEM;
	memcpy(d->name[d->n++], name, strlen(name) + 1);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void found_add(struct below *b, const char *path)
{
	size_t used = strlen(b->found);

	if (b->nfound++ < BELOW_SHOWN)
		(void)snprintf(b->found + used, sizeof b->found - used, "%s%.200s",
			       used ? ", " : "", path);
}

/* The stores at path and below. What cannot be looked into is passed over. */
static void below_look(struct below *b, int fd, const char *path, uint32_t depth)
{
	struct subdirs d = { .n = 0 };
	bool found = false;

	if (b->ops->list(b->ops->ctx, fd, subdirs_add, &d))
		d.n = 0;
	if (d.n)
		qsort(d.name, d.n, sizeof *d.name, by_name);
	for (uint32_t i = 0; i < d.n && b->nopened < BELOW_DIRS; i++) {
		char sub[512];
		int sub_fd;

		if ((size_t)snprintf(sub, sizeof sub, "%s%s%s", path, *path ? "/" : "",
				     d.name[i]) >= sizeof sub)
			continue;
		b->nopened++;
		sub_fd = b->ops->open(b->ops->ctx, fd, d.name[i], O_RDONLY | O_DIRECTORY, 0);
		if (sub_fd < 0)
			continue;
		if (store_is_job(b->ops, sub_fd) > 0) {
			if (!found)
				found_add(b, *path ? path : ".");
			found = true;
		} else if (depth < BELOW_DEPTH) {
			below_look(b, sub_fd, sub, depth + 1);
		}
		(void)b->ops->close(b->ops->ctx, sub_fd);
	}
	free(d.name);
}

int store_none(const struct io_ops *ops, const char *path, struct ckpt_err *err)
{
	struct below b = { .ops = ops };
	struct subdirs d = { .n = 0 };
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char more[32] = "";
	int r = fd < 0 ? -errno : store_is_job(ops, fd);

	if (r > 0)
		return 0;
	if (!r)
		r = ops->list(ops->ctx, fd, subdirs_add, &d);
	free(d.name);
	if (r)
		return store_fail(err, r, "cannot list %.300s", path);
	if (!d.n && !d.other)
		return 0;
	below_look(&b, fd, "", 0);
	if (b.nfound && strcmp(b.found, ".") == 0)
		return 0;
	if (b.nfound > BELOW_SHOWN)
		(void)snprintf(more, sizeof more, " and %" PRIu32 " more", b.nfound - BELOW_SHOWN);
	return ckpt_error(err, -ENOENT, "%.300s is no store: no job has written to it%s%s%s", path,
			  b.nfound ? "; stores below it: " : "", b.found, more);
}
