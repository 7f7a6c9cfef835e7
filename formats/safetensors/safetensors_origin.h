/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_origin.h - of which checkpoint a safetensors file is, by what it says itself: ckptctl
 * marks each file that it writes (metadata "ckptd"), and says in it what these words are. Files of
 * two checkpoints are never joined: a directory whose files have different origins is not opened,
 * and export adds no file to it.
 *
 * Two files fit together if neither has a mark (another program made them, which says nothing), or
 * both have one and say the same checkpoint, job, step, mesh and source; and if they come from one
 * run, or from runs that write a file each (they are of ranks, or in one index), also the same of
 * all other words. A word that one of them lacks is a difference. The source of a copy of a model
 * is another one: that refuses files that would fit, and never takes some that do not.
 *
 * Called by the reader of the format, and by ckptctl export. Pure but for reading; any thread.
 */
#ifndef CKPT_SAFETENSORS_ORIGIN_H
#define CKPT_SAFETENSORS_ORIGIN_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"
#include "ckpt/base/source.h"
#include <stdbool.h>

enum origin_word {
	ORIGIN_CHECKPOINT, /* the id of the checkpoint; none: its format has no ids, or it was in memory */
	ORIGIN_JOB,
	ORIGIN_STEP,
	ORIGIN_MESH, /* of files of ranks */
	ORIGIN_SOURCE, /* of those whose source has no id: a hash of its files' names, lengths and times */
	ORIGIN_KEYS,
	ORIGIN_ONLY,
	ORIGIN_DTYPE,
	ORIGIN_VIEW,
	ORIGIN_WORDS
};
#define ORIGIN_ALWAYS ORIGIN_KEYS /* words below it must be the same in all files */

struct safetensors_origin {
	bool known;			/* its metadata could be read */
	bool ours;			/* ckptctl wrote it; else all below says nothing */
	bool rank;			/* it is a rank's file */
	const char *word[ORIGIN_WORDS]; /* NULL: it does not say */
};

/* One string of a file's metadata; of most keys nothing is kept. The text lives in the arena.
 * -ENOMEM. */
int safetensors_origin_note(struct safetensors_origin *o, struct arena *a, const char *key,
			    const char *value);
/* Of all bytes before the data, as format.fill gives them. They are changed. Errors as below. */
int safetensors_origin_parse(void *head, uint64_t len, const char *name, struct arena *a,
			     struct safetensors_origin *ret, struct ckpt_err *err);
/* Of a file. -EBADMSG cut; -EPROTO malformed; what reading said; -ENOMEM. Tensors are not looked at. */
int safetensors_origin_read(const struct source *src, const char *name, struct arena *a,
			    struct safetensors_origin *ret, struct ckpt_err *err);
/* Do they fit together? indexed: they are in one index. */
bool safetensors_origin_fits(const struct safetensors_origin *a, const struct safetensors_origin *b,
			     bool indexed);
/* "step 20 of job demo, checkpoint 0123.., mesh fsdp=2". Returns buf. */
#define ORIGIN_TEXT 600
char *safetensors_origin_print(const struct safetensors_origin *o, char buf[ORIGIN_TEXT]);
#endif
