/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mending.h - a damaged step of a store, with const tensors from the store's other steps
 * (ckpt/engine/mend.h): the newest ones first, those that were set aside or quarantined too. Called
 * by fill.
 */
#ifndef DAEMON_MENDING_H
#define DAEMON_MENDING_H
#include "ckpt/engine/mend.h"
#include "ckpt/store/store.h"

/* As mend_open; damaged->path: the entry of the step. Each step that is looked at is locked against
 * removal, and those that something is taken from stay so until mend_close. */
int mending_open(const struct store *s, const struct engine *e,
		 const struct engine_subject *damaged, struct mended *ret, struct ckpt_err *err);
#endif
