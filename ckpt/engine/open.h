/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.h - the one way to open a checkpoint for reading: a step that its store has locked, or what
 * lies at a path. Called by the command and by the daemon.
 */
#ifndef CKPT_ENGINE_OPEN_H
#define CKPT_ENGINE_OPEN_H
#include "ckpt/engine/engine.h"
#include "ckpt/io/io_source.h"

/* By its name; NULL: there is none. */
const struct format *engine_format(const struct engine *e, const char *name);
/* "native, safetensors". Returns buf. */
char *engine_formats_print(const struct engine *e, char *buf, size_t bytes);

struct engine_subject {
	int fd; /* its directory (store_step_open, source_path): the caller keeps it open */
	const char *entry; /* the one file in it, of source_path; NULL, "": the directory */
	const char *path;  /* for sentences */
	const struct format *force; /* NULL: the formats are asked (format.probe) */
	const uint8_t *id;	/* 16 bytes: of the step that was chosen; NULL: any checkpoint */
	uint32_t flags;		/* of source_make */
	struct format_open how; /* but for dir */
};

/*
 * e: ops, and format unless s->force is given.
 * Errors: of the format's open; -ENOMSG: no format fits, and err lists what each probe read;
 * -ENOTUNIQ: two formats fit equally; -ESTALE: it is another checkpoint than s->id; -ENOMEM; errors
 * of reading (-EACCES, ...). The caller closes *ret also after an error: if s->how.partial is set, it may have a
 * checkpoint although the result is an error.
 */
int engine_open(const struct engine *e, const struct engine_subject *s, struct opened *ret,
		struct ckpt_err *err);
void engine_close(struct opened *o);
/*
 * May a new file or directory be made in the directory dirfd? -EINVAL: it is the directory of src,
 * or lies below it, or it is a step of a store, which would be faulty with one more file. If src is
 * one file, its parent directory is allowed. left: the entry of dirfd that will be written over,
 * "" if there is none. -EINVAL also: src is read from it. path: what is to be made, for the message.
 * e: ops and format.
 */
int engine_outside(const struct engine *e, const struct opened *src, const char *path, int dirfd,
		   const char *left, struct ckpt_err *err);
/* Which format is it? Only the probes read. Errors as of engine_open. */
int engine_probe(const struct engine *e, const struct engine_subject *s, const struct format **ret,
		 struct ckpt_err *err);
#endif
