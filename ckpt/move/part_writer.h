/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_writer.h - native parts written front to back, several at a time, from bytes of their raw
 * spaces that come in ascending order. move_write_part is one part from memory; convert is many
 * from the windows of another checkpoint. Equal states give equal files, whichever way they came.
 *
 * Threads: a part_io and its writers belong to the thread that opened it.
 */
#ifndef CKPT_MOVE_PART_WRITER_H
#define CKPT_MOVE_PART_WRITER_H
#include "ckpt/move/move.h"
#include "ckpt/move/walk.h"

/* Writes in flight, and their bytes: twice what a device wants, so that it does not run dry while
 * this thread sums up the next block. They cost no memory, for what is large is written from where
 * it lies. */
#define PART_DEPTH 64u
#define PART_IN_FLIGHT ((uint64_t)128 << 20)
#define PART_BUFFER (1u << NATIVE_CHUNK_LOG2) /* bytes of a buffer: a chunk */

/*
 * What writers share: a queue of PART_DEPTH writes of PART_IN_FLIGHT bytes, and buffers for chunks
 * that come in more than one piece. The writers call tick with the bytes of the data
 * areas that they have written. It may end everything with -ECANCELED. After an error every call returns it.
 */
struct part_io_opts {
	const struct io_ops *ops;
	enum io_engine engine;
	uint32_t nbuffer; /* of PART_BUFFER; more than there are writers open at a time */
	const struct walk_pass *pass; /* [npass] of the walks that writers open themselves */
	uint32_t npass;
	move_tick_fn *tick;
	void *arg;
};
struct part_io;
int part_io_open(const struct part_io_opts *opts, struct part_io **ret, struct ckpt_err *err);
/* Nothing is under way afterwards, whatever the result: what was given to part_write may change. */
int part_io_drain(struct part_io *io, struct ckpt_err *err);
/* For other writers, after part_io_drain and all writers' end, where nothing has failed: its queue
 * and buffers stay. */
void part_io_again(struct part_io *io, move_tick_fn *tick, void *arg);
/* Then it is not kept while there is nothing to write. */
bool part_io_has_threads(const struct part_io *io);
/* Waits for what is under way. After its writers; NULL is fine. */
void part_io_close(struct part_io *io);

/* How far a part is: enough to go on in another process, with the fingerprints of its pieces. */
struct part_state {
	uint64_t nchunk;	 /* entries of the chunk map that are done; holes count */
	uint32_t fill;		 /* bytes of the next one that lie in the file */
	struct hash128 hash;	 /* of these */
	const struct chunk *sum; /* [nchunk]: only the sums in it count */
};

/*
 * fd and t as move_write_part has them; info and t must outlive the writer and gets the
 * fingerprints.
 * from: NULL for a new part; else fd, which must be readable, is the same file again, t's pieces
 * have the fingerprints that they had, and all that follows the state is written anew. -EBADMSG:
 * the file does not hold what it says.
 */
struct part_writer;
int part_writer_open(struct part_io *io, int fd, struct table *t, const struct native_info *info,
		     uint32_t rank, const struct part_state *from, struct part_writer **ret,
		     struct ckpt_err *err);
/*
 * The raw bytes [off, + len), at or behind the end of those before; bytes in between are zero. They
 * must lie in pieces' chunks and leave none out (-EINVAL), and stay until part_io_drain. Full
 * chunks at p with p % 4096 == 0 are written from there without a copy.
 */
int part_write(struct part_writer *w, uint64_t off, const void *p, uint64_t len,
	       struct ckpt_err *err);
/* A new part that is written behind this walk of t, which outlives the writer: what the walk has
 * passed already is written and not walked again. */
int part_writer_open_walk(struct part_io *io, int fd, struct walk *walk, struct table *t,
			  const struct native_info *info, uint32_t rank, struct part_writer **ret,
			  struct ckpt_err *err);
/*
 * All of a part that lies in memory whole, from a fresh writer: raw as move_write_part has it. What
 * is derived in it is compared with its master on the way, and not written if every element is
 * equal: then t's piece is DERIVED.
 */
int part_write_raw(struct part_writer *w, const void *raw, struct ckpt_err *err);
/* Everything so far is in the file (not synced) and described; *ret lives as long as the writer,
 * until its next call. */
int part_writer_save(struct part_writer *w, struct part_state *ret, struct ckpt_err *err);
/* Sections and trailer, after the last byte. Fills all of *ret_part but name. */
int part_writer_finish(struct part_writer *w, struct native_part *ret_part, struct ckpt_err *err);
/* Some chunks of such a part, [from, to), and no others: of the walk only the places count. After
 * part_io_drain they are in the file. */
int part_write_chunks(struct part_writer *w, const void *raw, uint64_t from, uint64_t to,
		      struct ckpt_err *err);
/* A part whose header and chunks before `from` are in the file: those that are left, sections and
 * trailer. walk: of t, ended. */
int part_write_rest(struct part_io *io, int fd, struct walk *walk, struct table *t,
		    const struct native_info *info, uint32_t rank, const void *raw, uint64_t from,
		    struct native_part *ret_part, struct ckpt_err *err);
void part_writer_close(struct part_writer *w); /* NULL is fine */
#endif
