/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_scalar.c - the hash kernels in the baseline instruction set. The other instruction sets are
 * tested against this one.
 */
#include "ckpt/base/hash_body.h"

#define sum1 hash_tail1
#define sum2 hash_tail2
#define sum4 hash_tail4
#define HASH_ISA scalar
#include "ckpt/base/hash_body.h" /* again: the table entry */
