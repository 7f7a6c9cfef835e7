/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_file.h - a part that lies in memory, to a new file: the native header, the chunks of the raw
 * space (ckpt/move/chunk_stream.h), native sections and trailer. Called by persist; tests write
 * their parts with it.
 *
 * raw: page-aligned, of t->place[0].bytes rounded up to 4 KiB, must not change. t: of
 * native_part_table; the fingerprints of its pieces are set and, where a derived tensor is bit by
 * bit the rounding of its master, PIECE_DERIVED: its bytes are not written then. (Nothing else of t
 * changes.) fd: fresh, writable, with or without O_DIRECT. Nothing is synced: the caller does that,
 * after return. After an error nothing is under way.
 */
#ifndef DAEMON_PART_FILE_H
#define DAEMON_PART_FILE_H
#include "ckpt/move/chunk_stream.h"
#include "formats/native/native.h"

struct part_file_opts {
	const struct io_ops *ops;
	enum io_engine engine;
	/* The walk (walk.h) over the part. Give it to write the part again after a failed disk, or
	 * if it has walked over the part before. NULL: part_file_write makes one, of these: */
	struct walk *walk;
	const struct walk_pass *pass; /* [npass] */
	uint32_t npass, nhelper;
	/* NULL, or where a queue and its buffers lie from one part to the next, of one thread;
	 * *queue NULL: none yet. chunk_queue_close in the end. */
	struct chunk_queue **queue;
	move_tick_fn *tick; /* may be NULL; gets the bytes of the chunks */
	void *arg;
	struct part_derived *ret_derived; /* set if the call succeeds; may be NULL */
};

/* Fills all of *ret_part but name. */
int part_file_write(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		    const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		    struct ckpt_err *err);
/*
 * The same in two halves, if another thread walks over the part meanwhile, or if what it names is
 * not there yet. First the header, and the chunks whose offsets do not depend on that walk
 * (walk_fixed); t: a table that no other thread uses. Then, with x->walk, which has ended, and its
 * table: the other chunks, sections and trailer.
 */
int part_file_data(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		   const struct native_info *info, uint32_t rank, struct ckpt_err *err);
int part_file_rest(const struct part_file_opts *x, int fd, const void *raw, struct table *t,
		   const struct native_info *info, uint32_t rank, struct native_part *ret_part,
		   struct ckpt_err *err);
#endif
