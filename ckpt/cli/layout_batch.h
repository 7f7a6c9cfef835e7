/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_batch.h - questions from a stream, answers to another, line by line (layout_answer.h).
 *
 * Every line has its answer, also an empty one and one that is longer than BATCH_LINE_MAX. Answers
 * are held back only while there are more questions to read: who waits for one gets it.
 */
#ifndef CKPT_CLI_LAYOUT_BATCH_H
#define CKPT_CLI_LAYOUT_BATCH_H
#include <stdbool.h>
#include <stdio.h>

struct ckpt_err;

#define BATCH_LINE_MAX (16u << 20) /* bytes; a question of 2^20 ranks has 8 MiB */

/* 0, -ECANCELED after a signal, -ENOMEM, the errors of read(2); what cannot be written shows in
 * ferror(out). */
int layout_batch(int fd, FILE *out, bool counts, struct ckpt_err *err);
#endif
