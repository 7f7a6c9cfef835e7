/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_stream.h - files with the chunks of raw spaces, written front to back, several at a time,
 * from bytes that come in ascending order. The daemon writes one file from memory at a time;
 * convert writes many from the windows of another checkpoint. Equal states give equal files,
 * whichever way they came. A stream ends at data_end with the chunk map: headers, sections and
 * trailers are its caller's.
 *
 * Threads: a queue and its streams belong to the thread that opened it.
 */
#ifndef CKPT_MOVE_CHUNK_STREAM_H
#define CKPT_MOVE_CHUNK_STREAM_H
#include "ckpt/move/move.h"
#include "ckpt/move/walk.h"
#include "formats/chunk_map.h"

/* Writes in flight, and their bytes: twice what a device wants, so that it does not run dry while
 * this thread sums up the next block. They cost no memory, for what is large is written from where
 * it lies. */
#define CHUNK_QUEUE_DEPTH 64u
#define CHUNK_QUEUE_BYTES ((uint64_t)128 << 20)
#define CHUNK_BUFFER (1u << CHUNK_LOG2) /* bytes of a buffer: a chunk */

/*
 * What streams share: a queue of CHUNK_QUEUE_DEPTH writes of CHUNK_QUEUE_BYTES bytes, and buffers
 * for chunks that come in more than one piece. The streams call tick with the bytes of the chunks
 * that they have written. It may end everything with -ECANCELED. After an error every call returns
 * it.
 */
struct chunk_queue_opts {
	const struct io_ops *ops;
	enum io_engine engine;
	uint32_t nbuffer; /* of CHUNK_BUFFER; more than there are streams open at a time */
	const struct walk_pass *pass; /* [npass] of the walks that streams open themselves */
	uint32_t npass;
	move_tick_fn *tick;
	void *arg;
};
struct chunk_queue;
int chunk_queue_open(const struct chunk_queue_opts *opts, struct chunk_queue **ret,
		     struct ckpt_err *err);
/* Nothing is under way afterwards, whatever the result: what was given to chunk_stream_write may
 * change. */
int chunk_queue_drain(struct chunk_queue *q, struct ckpt_err *err);
/* Bytes beside the chunks, written at once, through a buffer: p may lie anywhere. len and off:
 * multiples of CHUNK_ALIGN. rank: whose file it is, for the error. */
int chunk_queue_put(struct chunk_queue *q, int fd, uint32_t rank, const void *p, uint64_t len,
		    uint64_t off, struct ckpt_err *err);
/* For other streams, after chunk_queue_drain and all streams' end, where nothing has failed: its
 * queue and buffers stay. */
void chunk_queue_again(struct chunk_queue *q, move_tick_fn *tick, void *arg);
/* Then it is not kept while there is nothing to write. */
bool chunk_queue_has_threads(const struct chunk_queue *q);
/* Waits for what is under way. After its streams; NULL is fine. */
void chunk_queue_close(struct chunk_queue *q);

/* How far a stream is: enough to go on in another process, with the fingerprints of its pieces. */
struct chunk_state {
	uint64_t nchunk;	 /* entries of the chunk map that are done; holes count */
	uint32_t fill;		 /* bytes of the next one that lie in the file */
	struct hash128 hash;	 /* of these */
	const struct chunk *sum; /* [nchunk]: only the sums in it count */
};

/*
 * fd: a file, writable, with or without O_DIRECT, as all is aligned to CHUNK_ALIGN. t: sealed, one
 * place, the raw space; it must outlive the stream, which sets the fingerprints of its pieces as a
 * walk does (walk.h). data_off: where the first chunk lies in the file. rank: of the writer.
 * from: NULL for a new file; else fd, which must be readable, is the same file again, t's pieces
 * have the fingerprints that they had, and all chunks that follow the state are written anew.
 * -EBADMSG: the file does not hold what it says. Nothing is synced: the caller does that.
 */
struct chunk_stream;
int chunk_stream_open(struct chunk_queue *q, int fd, struct table *t, uint64_t data_off,
		      uint32_t rank, const struct chunk_state *from, struct chunk_stream **ret,
		      struct ckpt_err *err);
/* A new file that is written behind this walk of t, which outlives the stream: what the walk has
 * passed already is written and not walked again. */
int chunk_stream_open_walk(struct chunk_queue *q, int fd, struct walk *walk, struct table *t,
			   uint32_t rank, struct chunk_stream **ret, struct ckpt_err *err);
/*
 * The raw bytes [off, + len), at or behind the end of those before; bytes in between are zero. They
 * must lie in pieces' chunks and leave none out (-EINVAL), and stay until chunk_queue_drain. Full
 * chunks at p with p % CHUNK_ALIGN == 0 are written from there without a copy.
 */
int chunk_stream_write(struct chunk_stream *s, uint64_t off, const void *p, uint64_t len,
		       struct ckpt_err *err);
/*
 * All of a raw space that lies in memory whole, to a fresh stream: raw is page-aligned, of
 * t->place[0].bytes rounded up to CHUNK_ALIGN, and does not change until chunk_queue_drain. Bytes
 * between the pieces of a chunk are written as they are (keep them zero, so that equal states give
 * equal files); behind a chunk's last piece zeros are written whatever lies there. What is derived
 * is compared with its master on the way, and not written if every element is equal: then t's piece
 * is DERIVED.
 */
int chunk_stream_write_raw(struct chunk_stream *s, const void *raw, struct ckpt_err *err);
/* Some chunks of such a raw space, [from, to), and no others, where those before them are in the
 * file already: of the walk only the places count. */
int chunk_stream_write_chunks(struct chunk_stream *s, const void *raw, uint64_t from, uint64_t to,
			      struct ckpt_err *err);
/* Everything so far is in the file (not synced) and described; *ret lives as long as the stream,
 * until its next call. */
int chunk_stream_save(struct chunk_stream *s, struct chunk_state *ret, struct ckpt_err *err);

/* What a stream has written: the chunk map with its sums, as long as the stream or its walk. */
struct chunk_written {
	const struct chunk *chunk; /* [nchunk] */
	uint64_t nchunk;
	uint64_t data_end; /* a multiple of CHUNK_ALIGN: what follows the chunks begins there */
};
/* After the last byte: all is in the file. -EINVAL: bytes were never given. */
int chunk_stream_end(struct chunk_stream *s, struct chunk_written *ret, struct ckpt_err *err);
void chunk_stream_close(struct chunk_stream *s); /* NULL is fine */
#endif
