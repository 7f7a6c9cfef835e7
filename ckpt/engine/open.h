/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.h - from a path to an open checkpoint. Whatever a person typed that is no step's name is a path: of a
 * directory, or of one file. Each format is asked whether it lies there; it reads magic and returns a
 * confidence. The highest wins. Two that fit equally are refused with both names, and one that is forced
 * (--from) is not asked. A step that the store found is of the format that stores are made of, and no other
 * is asked.
 *
 *	engine_find or engine_take	directory, descriptor, format
 *	engine_open			its metadata
 *	engine_close			after any of them, also one that failed
 */
#ifndef CKPT_ENGINE_OPEN_H
#define CKPT_ENGINE_OPEN_H
#include "ckpt/engine/engine.h"

#define ENGINE_FIT_MAGIC 75 /* of what a probe returns, from here on its magic was read */

/* By its name; NULL: there is none. */
const struct format *engine_format(const struct engine *e, const char *name);
/* "native, safetensors". Returns buf. */
char *engine_formats_print(const struct engine *e, char *buf, size_t bytes);
/*
 * Which format lies there? *ret_fit: its confidence, as format.h says. -ENOMSG: none; err says what each
 * looked for. -ENOTUNIQ: two fit equally. -EACCES, ...: it cannot be read.
 */
int engine_probe(const struct engine *e, const struct source_dir *dir, const char *path,
		 const struct format **ret, int *ret_fit, struct ckpt_err *err);
/* path is borrowed until engine_close. force: NULL, or the format that it is. Errors as of engine_probe and
 * source_path. */
int engine_find(const struct engine *e, const char *path, const struct format *force,
		struct opened *ret, struct ckpt_err *err);
/* A step's directory, found and locked by the store. Takes fd, also where it fails. */
int engine_take(const struct engine *e, int fd, const char *path, struct opened *ret,
		struct ckpt_err *err);
/* From now on its metadata is read from the disk, not from what the page cache still has. */
int engine_fresh(const struct engine *e, struct opened *o);
/* how: but for dir. Errors as of format.open; where that says so, o->ckpt is set after an error too. */
int engine_open(const struct format_open *how, struct opened *o, struct ckpt_err *err);
void engine_close(struct opened *o);
#endif
