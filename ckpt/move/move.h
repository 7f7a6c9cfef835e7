/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.h - carries plans out: memory to memory, files to memory; and reads files back to verify
 * them. Bytes to files: chunk_stream.h. Bounded memory; bytes are checked before they are used;
 * every chunk that is needed is read once.
 */
#ifndef CKPT_MOVE_MOVE_H
#define CKPT_MOVE_MOVE_H
#include "ckpt/io/io_files.h"
#include "ckpt/plan/plan.h"
#include "ckpt/plan/window.h"
#include "formats/format.h"

#define MOVE_BLOCK (8u << 20) /* bytes of one read or write */
#define MOVE_DEPTH 8u	      /* blocks in flight */

/*
 * Asked in the calling thread every MOVE_BLOCK bytes or so, also inside one long row, and at the
 * end for the rest; != 0 ends the movement with -ECANCELED. done: bytes since the last call.
 * Together they are the plan's bytes (copy, read), the bytes of the data area (write), or all bytes
 * that the files have there (verify). May be NULL.
 */
typedef int move_tick_fn(void *arg, uint64_t done);

/* Memory to memory, by the calling thread, without an allocation or a system call. bases: [nplace]
 * of the plan's tables; a NULL base whose rows are needed is -EINVAL before anything is written.
 * What is made of operands (plan_reduce.h) takes buffers of 64 MiB: -ENOMEM; and -EOPNOTSUPP where
 * elements have no such reduction, before anything is written. */
int move_copy(const struct plan *p, const void *const *src_base, void *const *dst_base,
	      move_tick_fn *tick, void *arg);

/*
 * The same by several threads, each source byte being read once, however many destinations it has.
 * Sources are row-major, and a row's elements do not lie across a MiB. -EBADMSG naming the tensor:
 * `right` says no. After an error the destinations are undefined. A plan that makes something of
 * operands is carried out by the calling thread, after all that it reads has been compared.
 */
struct move_spread {
	uint32_t nthread; /* 0: as many as there are processors */
	/* Is MiB number i of the source place, which lies at p, what it was? Asked once for each,
	 * by any of the threads, before its bytes go anywhere. NULL: nobody knows */
	bool (*right)(void *arg, uint32_t place, uint64_t i, const void *p);
	void *arg;
};
int move_spread(const struct plan *p, const void *const *src_base, void *const *dst_base,
		const struct move_spread *x, struct ckpt_err *err);

/* Can what the plan makes of operands be made? move_copy and move_read ask it themselves.
 * -EOPNOTSUPP naming the tensor: its elements have no such reduction. */
int move_check(const struct plan *p, struct ckpt_err *err);

struct move_files {
	const struct io_ops *ops;
	const struct checkpoint *ckpt;
	struct io_files *files; /* [nfile]; of those that are lost or unread there is none */
	bool direct;
	uint32_t align;
	enum io_engine engine;
	/* Of move_read's and move_verify's buffers; at least two chunks are held whatever it is. 0:
	 * what is fast. */
	uint64_t buffer_bytes;
	uint32_t decoder_max;	 /* of made places that are kept open; 0: as buffer_bytes allow */
	struct range_sums *sums; /* of what was read through these; NULL: there are none */
};
/*
 * The files of a checkpoint for reading; move_close ends it. Each is opened when it is first
 * needed, and not many at once (io/io_files.h): step_dirfd stays open until then. direct falls back
 * file by file, where the file system refuses it at open or at a read; the page cache forgets the
 * file before.
 * -ENOMEM.
 */
int move_open(const struct io_ops *ops, int step_dirfd, const struct checkpoint *ckpt, bool direct,
	      enum io_engine engine, struct move_files *ret, struct ckpt_err *err);
/* Is file i there to be read? */
static inline bool move_has(const struct move_files *f, uint32_t i)
{
	return !f->ckpt->file[i].lost && !f->ckpt->file[i].unread;
}
/* A descriptor of file i, until io_files_give. -EAGAIN, without a sentence: give one back first.
 * What is no regular file (any more) is -EISDIR or -EINVAL; -ENOENT, -ESTALE, ... */
int move_take(const struct move_files *f, uint32_t i, struct ckpt_err *err);
void move_close(struct move_files *f);

/*
 * Files to memory: plan from ckpt->table. Each needed chunk is read once, in large sequential
 * blocks, its hash checked, then scattered to all destinations. Damage: -EBADMSG naming
 * file, offset, tensor; a short file -EBADMSG. -EPROTO: the chunks do not hold what the pieces say.
 * The destinations are undefined after an error.
 *
 * Of a file without a chunk map the CRC-32 of a range is compared when the last of its bytes has
 * been read through f, by this call or with those before: so damage may be found after bytes of it
 * were used. Of a range that is read in part, and of a file without such ranges, nothing is
 * checked.
 *
 * Threads: up to four workers, no more than there are processors, check and scatter; memory is
 * 33 MiB, or f->buffer_bytes, and the next call finds it. The same holds for move_verify.
 *
 * What is made of operands comes first, in 64 MiB more, or in half of f->buffer_bytes; small
 * windows read a chunk more than once. -EOPNOTSUPP, before anything is written: elements that have
 * no such reduction.
 */
int move_read(const struct plan *p, const struct move_files *f, void *const *dst_base,
	      move_tick_fn *tick, void *arg, struct ckpt_err *err);

/* One window (plan/window.h) of a destination, per-rank blobs included, from files to its
 * buffer. */
int move_window(const struct move_files *f, const struct window *w, void *buf, move_tick_fn *tick,
		void *arg, struct ckpt_err *err);

/*
 * All windows of dst, one after the other, in bounded memory: while fn has one in the calling
 * thread, the next is read by another. mem_limit: bytes for all of it, windows, read buffers and
 * decoders; -EINVAL with the least that is possible when it is too little. skip: windows to pass
 * by. fn != 0 ends it and is returned; buf is fn's until it returns. tick is asked in the calling
 * thread.
 */
typedef int move_window_fn(void *arg, const struct window *w, const uint8_t *buf);
int move_windows(const struct move_files *f, const struct table *dst, uint64_t mem_limit,
		 uint64_t skip, move_window_fn *fn, void *fn_arg, move_tick_fn *tick,
		 void *tick_arg, struct ckpt_err *err);
/* The windows of such a run are cut for this limit (windows_open), less what decoders take of it;
 * 0: mem_limit is too little. */
uint64_t move_window_bytes(uint64_t mem_limit);
/* What the decoders of a checkpoint take of memory at least; 0: it needs none. */
uint64_t move_decoder_bytes(const struct checkpoint *c);

/*
 * After reading through f: the sums of all ranges and made places that were read in part, and of
 * those that hold pieces of these tensors of f->ckpt->table ([ntensor]), are compared. What has not
 * been read of them is read now. tick is asked with 0 bytes. Errors as of move_read.
 */
int move_sums_finish(const struct move_files *f, const bool *tensor, move_tick_fn *tick, void *arg,
		     struct ckpt_err *err);

/* What a writer found of tensors that are declared as derived of others. */
struct part_derived {
	uint64_t pieces, bytes;	    /* equal: not written */
	uint64_t unequal, elements; /* pieces that are written, and elements because of which */
	uint32_t tensor;	    /* of t, with the first unequal one; TABLE_NONE */
	uint64_t element;	    /* its number in the piece, counted row-major */
};

/* Fingerprint of a piece whose elements lie row-major at p. */
uint64_t move_fingerprint(const struct table *t, const struct table_piece *piece, const void *p);

/* Which units are verified; all for a zero-initialised one. A unit is a chunk (bytes between chunks
 * go with the chunk behind them, those behind the last one with it); of a file without chunks a
 * MiB. */
struct move_subset {
	enum { SUBSET_ALL, SUBSET_NTH, SUBSET_RANDOM } how;
	uint32_t k, n; /* NTH: the k-th of n parts, from 1: each chunk is in exactly one of them */
	/* RANDOM: of each file at least one chunk, and so many that there are about `bytes` in all
	 * files, each having its share; the same for the same seed. */
	uint64_t bytes, seed;
	const bool *skip; /* NULL, or [nfile]: of these no chunk, whatever the rest says */
};

struct move_verified {
	uint64_t bytes, all_bytes; /* that were read; that there are to read */
	/* Of `bytes`: with a sum that was compared, or in padding that must be zero; and
	 * without. */
	uint64_t summed, unsummed;
	uint64_t chunks, all_chunks; /* units with bytes in them */
	uint64_t pieces, all_pieces; /* with a fingerprint; whose every byte was asked for, so
				      * that it was compared */
};
/* What a subset asks for; bytes for a progress bar. Files that are lost are left out. */
void move_subset_size(const struct checkpoint *c, const struct move_subset *subset,
		      struct move_verified *ret);

/* Are its bytes read to be verified? Else `open` has read them, or they mean nothing. */
bool move_reads(const struct format_range *r);
/*
 * Read every byte that is DATA or ZERO (format_range) and has not been read by `open`: hashes of
 * chunks, CRC-32s of ranges, zero padding, fingerprints of pieces where they are known. A file
 * without ranges is read from end to end. Of a file with chunks all bytes from the first of its
 * DATA and ZERO ranges to the last are chunks' or zero. Each fault goes to fault(),
 * in the calling thread and in the order of the files: "checksum", "padding", "truncated",
 * "unreadable" and, at the end, "mismatch". *ret_bytes counts what was read. 0 when there was no
 * fault, or none but padding, -EBADMSG after faults (-EIO when all of them were unreadable bytes),
 * other errors as they are. Files that are lost are passed by: their damage has been told.
 */
int move_verify(const struct move_files *f, move_tick_fn *tick, void *tick_arg,
		format_fault_fn *fault, void *arg, uint64_t *ret_bytes, struct ckpt_err *err);
/* The same for some of the chunks. A piece's fingerprint is compared only where all its bytes are
 * in them. ret: what was done, also after an error (then chunks and pieces are what was asked
 * for). */
int move_verify_some(const struct move_files *f, const struct move_subset *subset,
		     move_tick_fn *tick, void *tick_arg, format_fault_fn *fault, void *arg,
		     struct move_verified *ret, struct ckpt_err *err);
#endif
