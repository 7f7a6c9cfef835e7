/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - opens, converts, verifies and compares checkpoints of any format, and reads their
 * values. The engine uses tables and the functions of formats/format.h, and no format by name.
 * Called by the command. Nothing here prints; long work calls `tick`.
 */
#ifndef CKPT_ENGINE_ENGINE_H
#define CKPT_ENGINE_ENGINE_H
#include "ckpt/move/move.h"
#include "formats/format.h"

struct engine {
	const struct io_ops *ops;
	enum io_engine io;
	const struct format *const *format; /* NULL ends; stores are made of the first */
	uint64_t mem_limit;		    /* bytes for data: windows and buffers */
	move_tick_fn *tick;		    /* may be NULL; != 0 ends it with -ECANCELED */
	void *arg;
};

/* A checkpoint that is open for reading. */
struct opened {
	const char *path;	     /* as messages name it; borrowed */
	const struct format *format; /* NULL: not known yet */
	struct checkpoint *ckpt;
	struct source_dir dir;
	int fd; /* its directory; the caller's */
	/*
	 * Which bytes these are: the hash of its id, where a chain of sums leads from that to every
	 * byte (HAS_SUMS); else of the metadata that was read, and of name, size, times and inode
	 * of its files. Equal identities: the same checkpoint, untouched.
	 */
	struct hash128 identity;
	struct hash128 stamp; /* the files alone, as they were then (identity.h) */
};
#endif
