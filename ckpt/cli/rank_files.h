/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_files.h - a checkpoint's tensors on another mesh as safetensors files in a directory, one
 * per rank: rank-00000.safetensors, ... Used by ckptctl restore.
 *
 * A file holds the rank's local tensors: the shape has per dimension the number of indices that
 * the rank holds, also where that is 0; the data are row-major. The key is component/name, or the
 * name alone (struct rank_files_as). A tensor
 * that lives on another stage of a pipeline is left out. Blobs are U8; those of the rank itself,
 * and those of no rank, are called component/name, those of old ranks that it carries besides
 * component/name/rank-00007. "__metadata__" says format (pt), ckptd (the version), job, step,
 * checkpoint (its id), mesh and rank.
 *
 * Until rank_files_publish the files have temporary names, and rank_files_drop leaves none of them.
 */
#ifndef CKPT_CLI_RANK_FILES_H
#define CKPT_CLI_RANK_FILES_H
#include "ckpt/base/error.h"
#include "ckpt/io/io.h"
#include "ckpt/move/move.h"
#include "formats/format.h"
#include "formats/safetensors/safetensors.h"

#define RANK_FILE_NAME_MAX 64
#define RANK_FILE_ALONE "model.safetensors" /* of a file that has everything */
#define RANK_FILE_TEMP_MAX 96

/* What the files are like. Zero-initialised: as the checkpoint. */
struct rank_files_as {
	bool bare;	/* keys have no component */
	bool alone;	/* of a mesh of one rank: the file is called RANK_FILE_ALONE */
	uint32_t dtype; /* F16, BF16 and F32, F64 elements become this (cast.h); 0: they stay */
	/* Besides the pairs above; they outlive the files. */
	const struct safetensors_meta *meta;
	uint32_t nmeta; /* at most RANK_FILES_META_MAX */
};
#define RANK_FILES_META_MAX 9u

struct rank_file {
	uint32_t rank, ntensor, nblob_other;	  /* blobs of other ranks that it carries */
	uint64_t bytes, data_bytes, source_bytes; /* source: of the same elements before a cast */
	char name[RANK_FILE_NAME_MAX];
	char temp[RANK_FILE_TEMP_MAX]; /* "": there is none */
	bool published;
};

struct rank_files {
	const struct io_ops *ops;
	const struct checkpoint *ckpt;
	const struct table *target; /* target_make's */
	struct rank_files_as as;
	/* [tensors of target] NULL: nothing is cast. Elements that became infinite. */
	uint64_t *overflow;
	uint32_t n;
	struct rank_file *file; /* [n] in the order of their ranks */
	uint64_t bytes, data_bytes, source_bytes;
	uint32_t nbatch; /* files that are open at once, and written in one go over the source */
};

/*
 * Which files these are, of the ranks first .. first + n - 1: names and sizes, nothing is written.
 * -EMEDIUMTYPE: the format cannot hold it, every reason is a line of the list. -ECANCELED:
 * cli_stopped; -ENOMEM, -E2BIG, -EOVERFLOW. rank_files_free in any case.
 */
int rank_files_make(const struct io_ops *ops, const struct checkpoint *k,
		    const struct table *target, const struct rank_files_as *as, uint32_t first,
		    uint32_t n, struct rank_files *ret, struct ckpt_errlist *ret_list,
		    struct ckpt_err *err);

/*
 * Write and sync all of them in dir_fd under temporary names; one pass over the source for all
 * files of a batch. mem_limit, tick: as move_windows. *ret_write: the error is the destination's,
 * not the checkpoint's.
 */
int rank_files_write(struct rank_files *f, int dir_fd, const struct move_files *from,
		     uint64_t mem_limit, move_tick_fn *tick, void *tick_arg, bool *ret_write,
		     struct ckpt_err *err);
/* Give them their names, none of which may exist (-EBUSY), and sync the directory: all or none. */
int rank_files_publish(struct rank_files *f, int dir_fd, struct ckpt_err *err);
/* Remove what has been made in dir_fd. Nothing after a publish that went well. */
void rank_files_drop(struct rank_files *f, int dir_fd);
void rank_files_free(struct rank_files *f);

/* "rank-00003.safetensors" */
void rank_file_name(uint32_t rank, char ret_name[RANK_FILE_NAME_MAX]);
/* Is it the name of an unfinished file? A restore that was killed leaves such. */
bool rank_file_is_temp(const char *name);
#endif
