/* SPDX-License-Identifier: Apache-2.0 */
/* file_account.h - what every byte of a checkpoint's files is for. Used by show --files and
 * stats. */
#ifndef CKPT_ENGINE_FILE_ACCOUNT_H
#define CKPT_ENGINE_FILE_ACCOUNT_H
#include "formats/format.h"

/* data + padding + metadata == the file's bytes. */
struct file_account {
	uint64_t data;	     /* stored bytes of pieces */
	uint64_t padding;    /* between pieces and behind them, up to the next boundary */
	uint64_t metadata;   /* all outside of the part that is for data */
	uint64_t hole_bytes; /* raw bytes that no piece needs and nothing is stored for */
	uint64_t piece_bytes;
	uint32_t tensors, pieces;
};

/* *ret[k->nfile] is malloc'ed. ret_other: bytes of the checkpoint that are in none of its data
 * files (metadata). 0 or -ENOMEM. */
int file_account_make(const struct checkpoint *k, struct file_account **ret, uint64_t *ret_other);
#endif
