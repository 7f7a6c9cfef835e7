/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many.h - checkpoints of very many tensors, or of very many bytes, written natively through the
 * rooms without a daemon: for measurements of what opening, listing, printing and converting cost.
 *
 * A store with one job, "many", on the mesh fsdp=RANKS. Tensors are like those of a mixture of
 * experts: "layers.I.experts.E.wX.weight" in "model" with its master weight and two moments in
 * "optim", f32, cut on dimension 0: [4 * ranks, 4], a piece of 64 bytes on every rank; or, with
 * bytes, [n, 1024] with n such that all of them have about so many bytes. No part of them can be
 * compressed.
 */
#ifndef TESTS_MANY_H
#define TESTS_MANY_H
#include "ckpt/base/error.h"

/* Commit the steps 1 .. steps of so many tensors to the store dir, which is made when it is not
 * there. 0 or -errno. */
int many_write(const char *dir, uint32_t tensors, uint32_t ranks, uint32_t steps, uint64_t bytes,
	       struct ckpt_err *err);
#endif
