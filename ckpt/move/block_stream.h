/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_stream.h - reads a list of file ranges, MOVE_DEPTH at a time, and hands each to a worker.
 * For ckpt/move only: restore and verify are the same stream with other work.
 *
 * Threads: work runs in a few worker threads (or in the caller's when there is little to do), in
 * any order, several at once; done runs in the caller's thread, in the order of the list.
 */
#ifndef CKPT_MOVE_BLOCK_STREAM_H
#define CKPT_MOVE_BLOCK_STREAM_H
#include "ckpt/move/made.h"
#include "ckpt/move/move.h"

#define STREAM_BLOCK_MAX \
	(64u << 20) /* a larger block (a chunk of such a size) is refused: memory is bounded */

struct stream_block {
	uint32_t file;
	uint64_t off, len;   /* the read itself is widened to the alignment */
	uint64_t first, end; /* the owner's: chunks in it */
	int64_t got; /* when work is called: bytes of them that the file has, or a negative errno */
};

struct stream {
	const struct move_files *files;
	struct stream_block *block; /* [n], malloc'ed; the owner frees it */
	uint64_t n, cap;
	void *ctx;
	/* bytes: those of the block; not when got < 0, then NULL. */
	void (*work)(void *ctx, uint64_t block, const uint8_t *bytes);
	/* != 0 ends the stream with that result, once what is under way has come to rest. */
	int (*done)(void *ctx, uint64_t block);
};

/* Bytes of buffers that were mapped so far, by all rooms of the process. Tests. */
extern _Atomic uint64_t stream_mapped_bytes;

/* Reads of at most so many bytes fit the buffers of these files, or 1 MiB. */
uint64_t stream_block_bytes(const struct move_files *f);

/* Threads, buffers and queue, which one stream after the other can use. It belongs to the thread
 * that opened it. */
struct stream_room;
int stream_room_open(const struct move_files *f, struct stream_room **ret, struct ckpt_err *err);
void stream_room_close(struct stream_room *r); /* NULL is fine */
/* The decoders of its checkpoint's made places, from one stream to the next. NULL: no memory. */
struct made_reader *stream_room_made(struct stream_room *r);

/* A new last block, all zero; NULL: no memory. Moves the blocks before it. */
struct stream_block *stream_block_add(struct stream *s);
/* room NULL: one of its own, for this stream. */
int stream_run(const struct stream *s, struct stream_room *room, struct ckpt_err *err);

/* move_read in such a room. */
int move_read_in(struct stream_room *room, const struct plan *p, const struct move_files *f,
		 void *const *dst_base, move_tick_fn *tick, void *arg, struct ckpt_err *err);
#endif
