/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c - see isa.h. Called by the sums, the roundings and the kernels of averages. */
#include "ckpt/base/isa.h"
#include "ckpt/base/atomic.h"
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#define UNKNOWN ISAS
static _Atomic unsigned chosen = UNKNOWN;

static bool isa_has(enum isa isa)
{
#ifdef __x86_64__
	unsigned a, b, c, d;

	if (isa == ISA_AVX512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
		       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("fma");
	if (isa == ISA_AVX2) /* the compilers' names for features lack F16C */
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		       __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
#endif
	return isa == ISA_SCALAR;
}

int isa_force(const char *name)
{
	static const char *const names[ISAS] = { "scalar", "avx2", "avx512" };

	for (unsigned isa = ISAS; isa-- > 0;)
		if (isa_has((enum isa)isa) && (!name || !strcmp(name, names[isa]))) {
			store_relaxed(&chosen, isa);
			return 0;
		}
	return -EOPNOTSUPP;
}

enum isa isa_now(void)
{
	/* Two threads that come first at once choose the same. */
	if (__builtin_expect(load_relaxed(&chosen) == UNKNOWN, 0))
		(void)isa_force(NULL);
	return (enum isa)load_relaxed(&chosen);
}
