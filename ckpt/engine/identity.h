/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.h - which checkpoint is it, and is it still the same? For conversions, which take long
 * and are continued: what was written of one model is never mixed with another. Called by open.c
 * and convert.c.
 */
#ifndef CKPT_ENGINE_IDENTITY_H
#define CKPT_ENGINE_IDENTITY_H
#include "ckpt/engine/engine.h"

/* Sets o->identity and o->stamp. watch: the source_watch (io/io_source.h) of o->dir through which
 * the metadata were read. Errors of the file system. */
int identity_make(struct opened *o, const struct source_dir *watch, struct ckpt_err *err);
/* Are the files what they were when it was opened? -ESTALE: no. Those of a checkpoint with HAS_SUMS
 * are not asked: their bytes are checked where they are read. name: of the checkpoint, for the
 * sentence. */
int identity_check(const struct opened *o, const char *name, struct ckpt_err *err);
#endif
