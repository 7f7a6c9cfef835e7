/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - see open.h. Invariant: after engine_close nothing is left open, however far the opening
 * got.
 */
#include "ckpt/engine/open.h"
#include "ckpt/engine/identity.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/io/io_above.h"

#define TRIED_BYTES 600 /* what the formats looked for, in one sentence */

const struct format *engine_format(const struct engine *e, const char *name)
{
	for (uint32_t i = 0; e->format[i]; i++)
		if (!strcmp(e->format[i]->name, name))
			return e->format[i];
	return NULL;
}

char *engine_formats_print(const struct engine *e, char *buf, size_t bytes)
{
	size_t n = 0;

	buf[0] = 0;
	for (uint32_t i = 0; e->format[i] && n < bytes; i++)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%s", i ? ", " : "",
				      e->format[i]->name);
	return buf;
}

static int format_probe(const struct engine *e, const struct source_dir *dir,
			const struct engine_subject *s, const struct format **ret,
			struct ckpt_err *err)
{
	const struct format *second = NULL;
	char tried[TRIED_BYTES] = "", looked[FORMAT_LOOKED];
	int best = 0;
	size_t at = 0;

	*ret = NULL;
	for (uint32_t i = 0; e->format[i]; i++) {
		int r = e->format[i]->probe(dir, looked);

		if (r < 0)
			return ckpt_error_errno(err, -r, "%.300s cannot be read", s->path);
		if (r > best)
			second = NULL;
		else if (r == best && r)
			second = e->format[i];
		if (r > best) {
			best = r;
			*ret = e->format[i];
		}
		if (at < sizeof tried)
			at += (size_t)snprintf(tried + at, sizeof tried - at, "%s%s: %s",
					       at ? "; " : "", e->format[i]->name, looked);
	}
	if (second && !MUTANT(PROBE_TIE_TAKEN))
		return ckpt_error(err, -ENOTUNIQ,
				  "%.300s fits two formats: %s and %s; --from chooses one", s->path,
				  (*ret)->name, second->name);
	if (best)
		return 0;
	return ckpt_error(err, -ENOMSG,
			  "%.300s is no checkpoint in a format that is known here. %s", s->path,
			  tried);
}

static bool has_id(const struct checkpoint *c, const uint8_t id[16])
{
	char hex[33];

	for (uint32_t i = 0; i < 16; i++)
		(void)snprintf(hex + (size_t)2 * i, 3, "%02x", id[i]);
	return strcmp(hex, c->id[0] ? c->id : "00000000000000000000000000000000") == 0;
}

static int id_check(const struct engine_subject *s, const struct checkpoint *c,
		    struct ckpt_err *err)
{
	if (!s->id || has_id(c, s->id) || MUTANT(SWAPPED_ACCEPTED))
		return 0;
	return ckpt_error(err, -ESTALE,
			  "%.300s is another checkpoint than a moment ago: now it is step %" PRIu64
			  " of job %s; somebody has put it in its place",
			  s->path, c->step, c->job);
}

/* Through a watch: which bytes these are is not in an id that a format made of all of them. */
static int watched_open(const struct format_open *how, struct opened *ret, struct ckpt_err *err)
{
	struct format_open watched = *how;
	struct source_dir watch;
	int r = source_watch(&ret->dir, &watch);

	if (r)
		return ckpt_error(err, r, "out of memory for %.300s", ret->path);
	watched.dir = &watch;
	r = ret->format->open(&watched, &ret->ckpt, err);
	if (!r)
		r = identity_make(ret, &watch, err);
	source_end(&watch);
	return r;
}

int engine_open(const struct engine *e, const struct engine_subject *s, struct opened *ret,
		struct ckpt_err *err)
{
	struct format_open how = s->how;
	int r;

	*ret = (struct opened){ .path = s->path, .format = s->force, .fd = s->fd };
	r = source_make(e->ops, s->fd, s->entry, s->flags, &ret->dir);
	if (r)
		return ckpt_error_errno(err, -r, "%.300s cannot be read", s->path);
	if (!ret->format)
		r = format_probe(e, &ret->dir, s, &ret->format, err);
	how.dir = &ret->dir;
	if (!r && !ret->format->root && how.depth == FORMAT_EXTENTS)
		r = watched_open(&how, ret, err);
	else if (!r)
		r = ret->format->open(&how, &ret->ckpt, err);
	if (ret->ckpt)
		ret->ckpt->links = s->flags & SOURCE_LINKS;
	if (!r && ret->ckpt->has & HAS_SUMS)
		r = identity_make(ret, NULL, err);
	if (ret->ckpt && id_check(s, ret->ckpt, err))
		return -ESTALE; /* also of one that is partial */
	return r;
}

int engine_probe(const struct engine *e, const struct engine_subject *s, const struct format **ret,
		 struct ckpt_err *err)
{
	struct source_dir dir;
	int r = source_make(e->ops, s->fd, s->entry, s->flags, &dir);

	if (r)
		return ckpt_error_errno(err, -r, "%.300s cannot be read", s->path);
	r = format_probe(e, &dir, s, ret, err);
	source_end(&dir);
	return r;
}

/* --- where nothing is made --- */

struct inside {
	const struct io_ops *ops;
	const struct io_stat *top;
};

static int top_is(void *arg, int fd)
{
	const struct inside *x = arg;
	struct io_stat st;

	return !io_stat(x->ops, fd, &st) && st.dev == x->top->dev && st.ino == x->top->ino;
}

/* Is dirfd the directory `top`, or below it? What cannot be found out is no reason to refuse:
 * making something there says why. */
static bool is_inside(const struct io_ops *ops, int dirfd, const struct io_stat *top)
{
	struct inside x = { ops, top };

	return io_above(ops, dirfd, top_is, &x);
}

/* Of the format of stores. A directory with files of another format is anybody's: its parent may be
 * $HOME. */
static bool is_checkpoint(const struct engine *e, int dirfd)
{
	char looked[FORMAT_LOOKED];
	struct source_dir dir;
	bool yes;

	if (source_make(e->ops, dirfd, NULL, 0, &dir))
		return false;
	yes = e->format[0]->probe(&dir, looked) > 0;
	source_end(&dir);
	return yes;
}

static bool is_file(const struct io_ops *ops, int dirfd, const char *name, const struct io_stat *is)
{
	int fd = io_open_path(ops, dirfd, name, O_RDONLY | O_NONBLOCK);
	struct io_stat st;
	bool same;

	if (fd < 0)
		return false;
	same = !io_stat(ops, fd, &st) && st.dev == is->dev && st.ino == is->ino;
	(void)ops->close(ops->ctx, fd);
	return same;
}

/* Is src in the directory `left`, or is the file `left` one of its files, also by a link? */
static bool is_read_from(const struct engine *e, const struct opened *src, int dirfd,
			 const char *left)
{
	const struct checkpoint *k = src->ckpt;
	int fd = e->ops->open(e->ops->ctx, dirfd, left, O_PATH, 0);
	struct io_stat is;
	bool found = false;

	if (fd < 0)
		return false;
	if (!io_stat(e->ops, fd, &is)) {
		found = is_inside(e->ops, src->fd, &is);
		for (uint32_t i = 0; i < k->nfile && !found; i++)
			found = is_file(e->ops, src->fd, k->file[i].name, &is);
	}
	(void)e->ops->close(e->ops->ctx, fd);
	return found;
}

int engine_outside(const struct engine *e, const struct opened *src, const char *path, int dirfd,
		   const char *left, struct ckpt_err *err)
{
	struct io_stat top;
	int rc = src->dir.entry ? 0 : io_stat(e->ops, src->fd, &top);

	if (rc)
		return ckpt_error_errno(err, -rc, "the source cannot be examined");
	if (!src->dir.entry && is_inside(e->ops, dirfd, &top))
		return ckpt_error(
			err, -EINVAL,
			"%.1000s is inside the checkpoint itself: no file is ever added to a "
			"checkpoint",
			path);
	if (is_checkpoint(e, dirfd))
		return ckpt_error(
			err, -EINVAL,
			"%.1000s is inside another checkpoint: no file is ever added to a "
			"checkpoint",
			path);
	if (*left && is_read_from(e, src, dirfd, left))
		return ckpt_error(err, -EINVAL,
				  "%.1000s would be made in %.300s, from which the checkpoint is "
				  "read: give another name",
				  path, left);
	return 0;
}

void engine_close(struct opened *o)
{
	checkpoint_free(TAKE(o->ckpt));
	source_end(&o->dir);
}
