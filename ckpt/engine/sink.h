/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink.h - where the bytes of a conversion go: files of a sheet (formats/format.h), some of them
 * open at a time. There are two kinds: files with chunks, whose raw bytes come in ascending order
 * (sink_chunks.c), and files that are their own bytes, which come in any order (sink_plain.c).
 * Called by convert.c. A sink belongs to one thread.
 */
#ifndef CKPT_ENGINE_SINK_H
#define CKPT_ENGINE_SINK_H
#include "ckpt/engine/engine.h"
#include "ckpt/engine/journal.h"
#include "ckpt/io/publish.h"

#define SINK_PLAIN_BUFFERS 16u /* of 1 MiB, for bytes that do not lie on the pages of their file */

/* What all sinks of a conversion share. Everything outlives them. */
struct sink_env {
	const struct engine *e;
	struct sheet *sheet; /* its pieces get their fingerprints */
	struct publish *to;
	bool file;		 /* it is one file, not a directory with files */
	uint32_t nbuffer;	 /* of chunks: more than there are files open at a time */
	const uint32_t *piece;	 /* [npiece] the pieces by their places, in the table's order */
	const uint32_t *first;	 /* [nfile + 1] where those of a place begin */
	struct journal_sum *sum; /* [sheet->nsum] of what was taken so far */
	const uint32_t
		*piece_sum; /* [npiece] a piece's sheet_sum; TABLE_NONE. NULL: there are none */
};

/* A file's name for publish_file. */
static inline const char *sink_name(const struct sink_env *env, uint32_t file)
{
	return env->file ? "" : env->sheet->file[file].name;
}

/* Bytes of one piece, which stay until the next drain. */
struct sink_bytes {
	uint32_t piece; /* of the sheet's table */
	uint64_t off;	/* in its place */
	const uint8_t *p;
	uint64_t len;
};

struct sink {
	/* Files [first, first + n). from: their state in an earlier run; NULL: they are new.
	 * -EBADMSG: a file does not hold what that says. After an error: close. */
	int (*open)(struct sink *s, uint32_t first, uint32_t n, const struct journal_file *from,
		    struct ckpt_err *err);
	int (*take)(struct sink *s, const struct sink_bytes *b, struct ckpt_err *err);
	/* Nothing is under way afterwards, whatever the result. */
	int (*drain)(struct sink *s, struct ckpt_err *err);
	/* All that was taken is on the disk; then j says so. */
	int (*save)(struct sink *s, struct journal *j, struct ckpt_err *err);
	/* The last byte of a file's tensors was taken; ret: all but bytes and seal, until close. */
	int (*end)(struct sink *s, uint32_t file, struct sheet_done *ret, struct ckpt_err *err);
	/* Bytes of a run, after `end`. */
	int (*put)(struct sink *s, uint32_t file, const void *p, uint64_t len, uint64_t off,
		   struct ckpt_err *err);
	/* It has so many bytes: cut, synced, closed. */
	int (*finish)(struct sink *s, uint32_t file, uint64_t bytes, struct ckpt_err *err);
	void (*close)(struct sink *s); /* what is still open, as it is; and the sink */
};

int sink_chunks(const struct sink_env *env, struct sink **ret, struct ckpt_err *err);
int sink_plain(const struct sink_env *env, struct sink **ret, struct ckpt_err *err);
#endif
