/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_files.h - a checkpoint's tensors on another mesh as safetensors files in a directory, one
 * per rank: rank-00000.safetensors, ... Used by ckptctl restore.
 *
 * A file holds the rank's local tensors: the shape has per dimension the number of indices that
 * the rank holds, also where that is 0; the data are row-major. The key is component/name. A tensor
 * that lives on another stage of a pipeline is left out. Blobs are U8; those of the rank itself, and
 * those of no rank, are called component/name, those of old ranks that it carries besides
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
#include "ckpt/table/format.h"

#define RANK_FILE_NAME_MAX 64
#define RANK_FILE_TEMP_MAX 96

struct rank_file {
	uint32_t rank, ntensor, nblob_other; /* blobs of other ranks that it carries */
	uint64_t bytes, data_bytes;
	char name[RANK_FILE_NAME_MAX];
	char temp[RANK_FILE_TEMP_MAX]; /* "": there is none */
	bool published;
};

struct rank_files {
	const struct io_ops *ops;
	const struct checkpoint *ckpt;
	const struct table *target; /* target_make's */
	uint32_t n;
	struct rank_file *file; /* [n] in the order of their ranks */
	uint64_t bytes, data_bytes;
	uint32_t nbatch; /* files that are open at once, and written in one go over the source */
};

/*
 * Which files these are, of the ranks first .. first + n - 1: names and sizes, nothing is written.
 * -EMEDIUMTYPE: the format cannot hold it, every reason is a line of the list. -ECANCELED:
 * cli_stopped; -ENOMEM, -E2BIG, -EOVERFLOW. rank_files_free in any case.
 */
int rank_files_make(const struct io_ops *ops, const struct checkpoint *k,
		    const struct table *target, uint32_t first, uint32_t n, struct rank_files *ret,
		    struct ckpt_errlist *ret_list, struct ckpt_err *err);

/*
 * Write and sync all of them in dir_fd under temporary names; one pass over the source for all
 * files of a batch. mem_limit, tick: as move_windows. *ret_write: the error is the destination's, not the
 * checkpoint's.
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
