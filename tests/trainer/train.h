/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.h - the life of one rank: attach, declare, resume, train, and the wait for the last step
 * to be committed. train.c is the example of how a trainer uses ckpt.h; it uses nothing else of
 * ckptd.
 *
 * State that is declared, per parameter P of shape [rows, ...], sharded on dimension 0 over mesh
 * dimension "fsdp" and replicated over "dp":
 *	model  P               BF16  param
 *	optim  P.master        F32   master   of P
 *	optim  P.exp_avg       F32   moment1  of P
 *	optim  P.exp_avg_sq    F32   moment2  of P
 * With --layout boxes, each rank of "fsdp" has a stretch of all elements of all tensors instead, as
 * ZeRO cuts them, which it declares as boxes (CKPT_BOXES), on a mesh of its replicas over "dp".
 * And two blobs, "cursor" (struct train_cursor, the same on all ranks) and "rng" (32 bytes per
 * rank, which nothing draws from: a function of seed, rank and step, checked when read back).
 * events.h has the base and the steps of NaNs.
 *
 * A step, on every rank:
 *	forward, backward      rank 0 appends its line to --losses, with one write(2)
 *	ckpt_guard             waits only if the last copy is late
 *	optimizer
 *	ckpt_snapshot          every --snapshot-every steps, and FINAL at --steps
 */
#ifndef TRAINER_TRAIN_H
#define TRAINER_TRAIN_H
#include "model.h"
#include "ranks.h"
#include "train_args.h"

struct train_job {
	const struct train_args *args;
	const struct corpus *corpus;
	struct model_shape shape;
};

/* Bytes that the ranks share: the gathered parameters and the batch. */
size_t train_shared_bytes(const struct model_shape *s);

/* The body for ranks_run; arg is a struct train_job. Returns the exit code of the rank. */
int train_rank(struct ranks *r, void *arg);
#endif
