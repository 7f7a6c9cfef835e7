/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - is every byte of a checkpoint what was written? As far as anybody can know: bytes with a sum
 * are compared with it; of bytes without one is known that they can be read.
 */
#ifndef CKPT_ENGINE_VERIFY_H
#define CKPT_ENGINE_VERIFY_H
#include "ckpt/engine/engine.h"

/* Bytes of all files that were not lost, by what verify can say of them. summed: a sum covers them, or they
 * must be zero. unsummed: none does. Padding that means nothing is neither. */
struct engine_sums {
	uint64_t summed, unsummed;
};
struct engine_sums engine_sums(const struct checkpoint *k);
#endif
