/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink.h - writes the bytes of a conversion into files of a sheet (formats/format.h), several of
 * which are open at a time. There are two kinds of sink: one for files with chunks, which takes raw
 * bytes in ascending order (sink_chunks.c), and one for files without chunks, which takes bytes in
 * any order (sink_plain.c).
 * Called by convert.c. A sink belongs to one thread.
 */
#ifndef CKPT_ENGINE_SINK_H
#define CKPT_ENGINE_SINK_H
#include "ckpt/engine/engine.h"
#include "ckpt/engine/journal.h"
#include "ckpt/io/publish.h"

#define SINK_PLAIN_BUFFERS \
	16u /* of 1 MiB, for bytes that O_DIRECT cannot write from where they are */

/* What all sinks of a conversion share. All of it must live longer than the sinks. */
struct sink_env {
	const struct engine *e;
	struct sheet *sheet; /* its pieces get their fingerprints */
	struct publish *to;
	bool file;		   /* the result is one file, not a directory */
	uint32_t nbuffer;	   /* of chunks: more than there are files open at a time */
	const uint32_t *piece;	   /* [npiece] the pieces by their places, in the table's order */
	const uint32_t *first;	   /* [nfile + 1] of a place's pieces, the first index in `piece` */
	struct journal_sum *sum;   /* [sheet->nsum] of the bytes taken so far */
	const uint32_t *piece_sum; /* [npiece] a piece's sheet_sum; TABLE_NONE. NULL: no sums */
};

/* A file's name for publish_file. */
static inline const char *sink_name(const struct sink_env *env, uint32_t file)
{
	return env->file ? "" : env->sheet->file[file].name;
}

/* Bytes of one piece. The caller keeps them until the next drain. */
struct sink_bytes {
	uint32_t piece; /* of the sheet's table */
	uint64_t off;	/* in its place */
	const uint8_t *p;
	uint64_t len;
};

struct sink {
	/* Opens files [first, first + n). from: their state in an earlier run; NULL: they are new.
	 * -EBADMSG: a file is not in that state. After an error the caller calls close. */
	int (*open)(struct sink *s, uint32_t first, uint32_t n, const struct journal_file *from,
		    struct ckpt_err *err);
	int (*take)(struct sink *s, const struct sink_bytes *b, struct ckpt_err *err);
	/* Waits until no write is in flight, also if one fails. */
	int (*drain)(struct sink *s, struct ckpt_err *err);
	/* Syncs all bytes that were taken, and records that in j. */
	int (*save)(struct sink *s, struct journal *j, struct ckpt_err *err);
	/* Called after the last byte of a file's tensors. Sets all of ret but bytes and seal; ret is
	 * valid until close. */
	int (*end)(struct sink *s, uint32_t file, struct sheet_done *ret, struct ckpt_err *err);
	/* Writes bytes of a run, after `end`. */
	int (*put)(struct sink *s, uint32_t file, const void *p, uint64_t len, uint64_t off,
		   struct ckpt_err *err);
	/* Truncates the file to `bytes`, syncs and closes it. */
	int (*finish)(struct sink *s, uint32_t file, uint64_t bytes, struct ckpt_err *err);
	void (*close)(struct sink *s); /* closes open files as they are, and frees the sink */
};

int sink_chunks(const struct sink_env *env, struct sink **ret, struct ckpt_err *err);
int sink_plain(const struct sink_env *env, struct sink **ret, struct ckpt_err *err);
#endif
