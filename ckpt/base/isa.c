/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c - see isa.h. Invariant: what was chosen changes speed only, never a bit. */
#include "ckpt/base/isa.h"
#include "ckpt/base/util.h"
#include <stdatomic.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

static _Atomic int chosen = -1; /* enum isa; -1: none yet */

#ifdef __x86_64__
static bool has_avx2(void)
{
	unsigned a, b, c, d;

	/* The compilers' names for features lack F16C. */
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#endif

static enum isa isa_of_machine(void)
{
#ifdef __x86_64__
	if (has_avx2())
		return has_avx512() ? ISA_AVX512 : ISA_AVX2;
#endif
	return ISA_SCALAR;
}

/* Two threads that come first at once choose the same. */
enum isa isa_best(void)
{
	int i = atomic_load_explicit(&chosen, memory_order_relaxed);

	if (__builtin_expect(i < 0, 0)) {
		i = isa_of_machine();
		atomic_store_explicit(&chosen, i, memory_order_relaxed);
	}
	return (enum isa)i;
}

int isa_force(const char *name)
{
	static const char *const names[] = { "scalar", "avx2", "avx512" };
	enum isa has = isa_of_machine();

	for (enum isa i = name ? ISA_SCALAR : has; i <= has; i++)
		if (!name || !strcmp(name, names[i])) {
			atomic_store_explicit(&chosen, (int)i, memory_order_relaxed);
			return 0;
		}
	return -EOPNOTSUPP;
}
