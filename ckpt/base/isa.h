/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isa.h - the instruction set that this process computes with: the best one of this machine, chosen
 * once, for all code that is compiled once per set. It changes speed only, never a bit.
 */
#ifndef CKPT_BASE_ISA_H
#define CKPT_BASE_ISA_H

enum isa {
	ISA_SCALAR,
	ISA_AVX2,   /* with FMA and F16C */
	ISA_AVX512, /* F, VL, BW and DQ, with FMA */
	ISAS
};
/* Any thread. */
enum isa isa_now(void);
/* For tests: "scalar", "avx2", "avx512"; NULL: the best. 0, -EOPNOTSUPP. */
int isa_force(const char *name);
#endif
