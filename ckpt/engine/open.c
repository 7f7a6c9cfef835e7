/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - see open.h. Called by the command, for every checkpoint that it reads.
 * Invariant: what no format recognises is opened as none.
 */
#include "ckpt/engine/open.h"
#include "ckpt/base/util.h"
#include "ckpt/io/io_source.h"
#include <stdio.h>
#include <unistd.h>

#define LOOKED_BYTES 700 /* of a sentence: what some formats looked for */

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

int engine_probe(const struct engine *e, const struct source_dir *dir, const char *path,
		 const struct format **ret, int *ret_fit, struct ckpt_err *err)
{
	char looked[FORMAT_LOOKED], list[LOOKED_BYTES] = "";
	const struct format *also = NULL;
	size_t n = 0;

	*ret = NULL;
	*ret_fit = 0;
	for (uint32_t i = 0; e->format[i]; i++) {
		int fit = e->format[i]->probe(dir, looked);

		if (fit < 0)
			return ckpt_error_errno(err, -fit, "%.300s cannot be read", path);
		if (!fit && n < sizeof list)
			n += (size_t)snprintf(list + n, sizeof list - n, "%s%s: %s", n ? "; " : "",
					      e->format[i]->name, looked);
		if (fit && fit == *ret_fit)
			also = e->format[i];
		if (fit <= *ret_fit)
			continue;
		*ret = e->format[i];
		*ret_fit = fit;
		also = NULL;
	}
	if (!*ret)
		return ckpt_error(err, -ENOMSG,
				  "%.300s is no checkpoint in a format that is known here. %s",
				  path, list);
	if (also)
		return ckpt_error(err, -ENOTUNIQ,
				  "%.300s fits two formats: %s and %s; --from chooses one", path,
				  (*ret)->name, also->name);
	return 0;
}

static int source_begin(const struct engine *e, uint32_t flags, const char *entry, struct opened *o,
			struct ckpt_err *err)
{
	int rc = source_make(e->ops, o->fd, entry, flags, &o->dir);

	o->source_flags = flags;
	return rc ? ckpt_error_errno(err, -rc, "%.300s cannot be read", o->path) : 0;
}

int engine_find(const struct engine *e, const char *path, const struct format *force,
		struct opened *ret, struct ckpt_err *err)
{
	char entry[NAME_MAX + 1];
	int rc, fit;

	*ret = (struct opened){ .path = path, .fd = -1 };
	rc = source_path(e->ops, path, &ret->fd, entry, err);
	if (!rc)
		rc = source_begin(e, SOURCE_LINKS, entry, ret, err);
	if (!rc && force)
		ret->format = force;
	else if (!rc)
		rc = engine_probe(e, &ret->dir, path, &ret->format, &fit, err);
	return rc;
}

int engine_take(const struct engine *e, int fd, const char *path, struct opened *ret,
		struct ckpt_err *err)
{
	*ret = (struct opened){ .path = path, .fd = fd, .format = e->format[0] };
	return source_begin(e, 0, NULL, ret, err);
}

int engine_fresh(const struct engine *e, struct opened *o)
{
	struct source_dir old = o->dir;
	int rc = source_make(e->ops, o->fd, old.entry, o->source_flags | SOURCE_FRESH, &o->dir);

	if (rc)
		o->dir = old;
	else
		source_end(&old);
	return rc;
}

int engine_open(const struct format_open *how, struct opened *o, struct ckpt_err *err)
{
	struct format_open x = *how;

	x.dir = &o->dir;
	return o->format->open(&x, &o->ckpt, err);
}

void engine_close(struct opened *o)
{
	checkpoint_free(o->ckpt);
	if (o->dir.ctx)
		source_end(&o->dir);
	if (o->fd >= 0)
		close(o->fd);
	*o = (struct opened){ .fd = -1 };
}
