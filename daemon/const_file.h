/* SPDX-License-Identifier: Apache-2.0 */
/*
 * const_file.h - the file of a const part, which many steps share: are its bytes on the disk still
 * those that were written? Each commit that links the file reads up to one MiB of it, past the page
 * cache, and compares it with the sums of what was written. So a rotation over all of the file
 * (header, chunks, sections and trailer) ends after at most const_file_rotation() commits. After
 * CONST_STEPS_MAX steps, or CONST_AGE_NS, the next step writes another file. So damage that no
 * commit has read yet can harm at most CONST_STEPS_MAX steps. Called by persist, in the thread that
 * writes the job's steps.
 *
 * A file is opened with O_DIRECT. If the file system refuses that, the page cache is asked to
 * forget the file before each read (io_forget). Where the file system does not do that either, the
 * read finds what the cache has, which may be right when the disk is wrong.
 *
 * This file knows no launch, no snapshot and no log.
 */
#ifndef DAEMON_CONST_FILE_H
#define DAEMON_CONST_FILE_H
#include "ckpt/store/label.h"
#include "formats/native/native.h"

#define CONST_STEPS_MAX 64u		     /* that share one file, the first one included */
#define CONST_AGE_NS (24 * 3600 * NS_PER_S)  /* no step links a file that is older */
#define CONST_READ_BYTES ((uint64_t)1 << 20) /* of one file at one commit */

struct const_step {
	uint64_t step;
	uint8_t id[16]; /* its checkpoint's */
};

struct const_file {
	struct const_unit { /* [nunit] what is compared as a whole, by offset */
		uint64_t off;
		uint32_t len;	/* at most CONST_READ_BYTES */
		uint32_t chunk; /* its number in the raw space; TABLE_NONE: no chunk */
		bool read; /* by a commit, and right; the last one was that of the step `right` */
		uint64_t right;
		struct hash128 sum;
	} * unit;
	uint32_t nunit, next; /* next: the one that is read next */
	bool cached;	      /* the file system refuses O_DIRECT */
	uint64_t old_ns;      /* CLOCK_MONOTONIC: from then on no step links it */
	uint32_t nstep;
	struct const_step
		step[CONST_STEPS_MAX]; /* committed ones that share it; the first wrote it */
};

/* What is wrong with the file. */
struct const_rot {
	int code; /* -EBADMSG: other bytes; -ENODATA: it is cut short; -EIO, ...: unreadable */
	uint64_t off, len; /* of the file: where it begins, how much was compared as a whole */
	uint64_t right;	   /* the last step whose commit has read these bytes right */
	bool never;	   /* no commit has; right: the step that wrote them */
	uint32_t chunk;	   /* as const_unit */
	uint64_t raw;	   /* of a chunk: the byte of the raw space where it begins */
};

/*
 * The steps that share a file which was found damaged. When a newer step that does not have it is
 * committed, they are quarantined, and that step is held: of what is damaged in them, it may have
 * the only good copy, so no policy removes it.
 */
struct const_lost {
	uint32_t n;
	struct const_step step[CONST_STEPS_MAX];
	char why[200]; /* of the labels */
};
#define CONST_HOLD_NAME "frozen-weights"

/*
 * Of a part that was just written: info, with its role, table and chunks as native_part_tail was
 * given them. It makes header and sections again, for their sums. -ENOMEM; -EPROTO: they are not
 * those that were written.
 */
int const_file_take(struct const_file *f, const struct native_info *info, uint32_t rank,
		    const struct table *t, const struct chunk *chunk, uint64_t nchunk,
		    uint64_t data_end, const struct native_part *part);
void const_file_free(struct const_file *f);
/* A committed step has it; id: its checkpoint's. */
void const_file_shared(struct const_file *f, uint64_t step, const uint8_t id[16]);
/* May one more step share it? */
bool const_file_may_share(const struct const_file *f, uint64_t now_ns);
/* Commits, at most, from one that reads a byte of the file to the next one that does. */
uint32_t const_file_rotation(const struct const_file *f);
/*
 * Reads what is next, for the commit of this step. raw: the raw space that was written, to find out
 * which byte differs. 0: it is right, or it is not the file that id says, which no step links.
 * -EBADMSG: *ret says what is wrong, and the file must not be linked. -EMFILE, -ENFILE, -ENOMEM: it
 * could not be read now.
 */
int const_file_read(struct const_file *f, const struct io_ops *ops, int dirfd, const char *name,
		    const struct store_part_id *id, const void *raw, uint64_t step,
		    struct const_rot *ret);

/* --- labels --- */

/* A sum over the bad labels of all steps of the job: any program may have set one. */
int const_bad_sum(const struct store *s, uint64_t *ret);
/*
 * Quarantines the steps, those that are still there, and holds `good`, which is committed. *ret_n:
 * how many have a bad label now that had none; *ret_sum: what these add to const_bad_sum. The list
 * is forgotten whatever the result. The first error.
 */
int const_lost_label(const struct store *s, struct const_lost *x, const struct const_step *good,
		     uint32_t *ret_n, uint64_t *ret_sum, struct ckpt_err *err);
#endif
