/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_batch.h - reads questions from a descriptor, a line each, and writes the answers to a
 * stream (answer.h). Called by ckptctl layout --batch.
 *
 * Every line has its answer, also an empty one and one that is longer than BATCH_LINE_MAX. Answers
 * are kept back only while more questions can be read at once: a program that waits for an answer
 * before it writes the next question gets it.
 */
#ifndef CKPT_ANSWER_BATCH_H
#define CKPT_ANSWER_BATCH_H
#include <stdbool.h>
#include <stdio.h>

struct ckpt_err;

#define BATCH_LINE_MAX (16u << 20) /* bytes; a question of 2^20 ranks has 8 MiB */

/* 0; -ECANCELED if stopped() returned true, which is asked between lines and while none comes;
 * -ENOMEM; the errors of read(2). If an answer cannot be written, ferror(out) says so. */
int answer_batch(int fd, FILE *out, bool counts, bool (*stopped)(void), struct ckpt_err *err);
#endif
