/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isa.h - which vector instructions this machine has. hash.c, round.c of move and kernel.c of ema
 * have a row of kernels for each instruction set. All give the same bits. Any thread may call.
 */
#ifndef CKPT_BASE_ISA_H
#define CKPT_BASE_ISA_H

enum isa {
	ISA_SCALAR,
	ISA_AVX2,   /* with FMA and F16C */
	ISA_AVX512, /* F, VL, BW and DQ, and all of ISA_AVX2 */
};
/* Of the rows x_scalar, x_avx2 and x_avx512: an array by enum isa. */
#ifdef __x86_64__
#define ISA_ROWS(x)                                 \
	{                                           \
		&x##_scalar, &x##_avx2, &x##_avx512 \
	}
#else
#define ISA_ROWS(x)         \
	{                   \
		&x##_scalar \
	}
#endif

enum isa isa_best(void);
/* For tests: "scalar", "avx2", "avx512" is the best from now on; NULL: what the machine has.
 * -EOPNOTSUPP: it lacks that. */
int isa_force(const char *name);
#endif
