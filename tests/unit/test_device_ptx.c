/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_ptx.c - the interpreter of tests/fakecuda, on which the trainer's kernels run where
 * there is no GPU: what it computes is what the PTX ISA says, and what it does not take it refuses.
 */
#include "tests/fakecuda/ptx.c" /* NOLINT(bugprone-suspicious-include): the library exports none of it */
#include "tests/lib/unit.h"
#include <float.h>

#define HEAD ".version 6.0\n.target sm_52\n.address_size 64\n"
#define PLACES 64

static uint64_t memory[PLACES];

static bool memory_find(uint64_t at, struct ptx_memory *ret)
{
	*ret = (struct ptx_memory){ (uintptr_t)memory, sizeof memory, (uint8_t *)memory };
	return at - ret->at < ret->bytes;
}

/* A kernel of these lines, which finds memory in %d0, the thread in %r0, and x and y in %d1 and %d2
 * (%f1 and %f2), and whose last value %d3 (%r3, %f3) each thread leaves in memory[thread]. */
static enum ptx_end run(const char *lines, const char *result, uint64_t x, uint64_t y,
			unsigned threads)
{
	char text[4096], why[PTX_WHY_BYTES];
	uint64_t at = (uintptr_t)memory;
	uint32_t x32 = (uint32_t)x, y32 = (uint32_t)y;
	void *param[] = { &at, &x, &y, &x32, &y32 };
	struct ptx_module *m;
	enum ptx_end end;

	snprintf(text, sizeof text,
		 HEAD ".visible .entry k(.param .u64 at, .param .u64 x, .param .u64 y,\n"
		      ".param .f32 fx, .param .f32 fy)\n{\n"
		      ".reg .pred %%p<3>; .reg .b16 %%h<4>; .reg .b32 %%r<8>; .reg .b64 %%d<8>;\n"
		      ".reg .f32 %%f<8>;\n"
		      "ld.param.u64 %%d0, [at]; ld.param.u64 %%d1, [x]; ld.param.u64 %%d2, [y];\n"
		      "ld.param.f32 %%f1, [fx]; ld.param.f32 %%f2, [fy]; mov.u32 %%r0, %%tid.x;\n"
		      "mov.b32 %%r1, %%f1; mov.b32 %%r2, %%f2;\n"
		      "%s\n"
		      "mul.wide.u32 %%d6, %%r0, 8; add.u64 %%d0, %%d0, %%d6;\n"
		      "st.global.%s;\nret;\n}\n",
		 lines, result);
	m = ptx_load(text, why);
	if (!m)
		fail_msg("%s", why);
	end = ptx_run(ptx_find(m, "k"), param, 1, threads, memory_find);
	ptx_unload(m);
	return end;
}

static uint64_t bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

TEST(integers_wrap_at_their_width)
{
	static const struct {
		const char *lines;
		bool wide;
		uint64_t x, y, want;
	} cases[] = {
		{ "add.u32 %r3, %r1, %r2;", false, UINT32_MAX, 2, 1 },
		{ "sub.u32 %r3, %r1, %r2;", false, 1, 2, UINT32_MAX },
		{ "mul.lo.u32 %r3, %r1, %r2;", false, 0x10001, 0x10001, 0x20001 },
		{ "mad.lo.u32 %r3, %r1, %r2, 7;", false, 0x10001, 0x10001, 0x20008 },
		{ "div.u32 %r3, %r1, %r2;", false, 7, 2, 3 },
		{ "min.u32 %r3, %r1, %r2;", false, UINT32_MAX, 2, 2 },
		{ "max.u32 %r3, %r1, %r2;", false, UINT32_MAX, 2, UINT32_MAX },
		{ "shr.u32 %r3, %r1, %r2;", false, 0x80000000, 31, 1 },
		{ "shr.u32 %r3, %r1, %r2;", false, 0x80000000, 32, 0 },
		{ "shl.b32 %r3, %r1, %r2;", false, 3, 31, 0x80000000 },
		{ "and.b32 %r3, %r1, %r2;", false, 12, 10, 8 },
		{ "or.b32 %r3, %r1, %r2;", false, 12, 10, 14 },
		{ "xor.b32 %r3, %r1, %r2;", false, 12, 10, 6 },
		{ "cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r3, %h1;", false, 0x12345, 0, 0x2345 },
		{ "cvt.u32.u64 %r3, %d1;", false, 0x100000005, 0, 5 },
		{ "mul.wide.u32 %d3, %r1, %r2;", true, UINT32_MAX, UINT32_MAX,
		  UINT64_C(0xfffffffe00000001) },
		{ "mad.wide.u32 %d3, %r1, %r2, %d1;", true, 0x10000, 0x10000, 0x100010000 },
		{ "add.u64 %d3, %d1, -1;", true, 0, 0, UINT64_MAX },
		{ "div.u64 %d3, %d1, %d2;", true, UINT64_C(1) << 40, 3, (UINT64_C(1) << 40) / 3 },
		{ "setp.lt.u64 %p1, %d1, %d2; mov.u64 %d3, 5; @%p1 mov.u64 %d3, 6;", true, 1, 2,
		  6 },
		{ "setp.lt.u64 %p1, %d1, %d2; mov.u64 %d3, 5; @!%p1 mov.u64 %d3, 6;", true, 1, 2,
		  5 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		memset(memory, 0xee, sizeof memory);
		assert_int_equal(run(cases[i].lines,
				     cases[i].wide ? "u64 [%d0], %d3" : "u32 [%d0], %r3",
				     cases[i].x, cases[i].y, 1),
				 PTX_DONE);
		if (memory[0] !=
		    (cases[i].wide ? cases[i].want : (cases[i].want | UINT64_C(0xeeeeeeee) << 32)))
			fail_msg("%s: %" PRIx64, cases[i].lines, memory[0]);
	}
}

TEST(floats_are_rounded_once_for_each_operation)
{
	const float x = 1.0f + 0x1p-12f, tiny = FLT_MIN / 8;
	const struct {
		const char *lines;
		float x, y, want;
	} cases[] = {
		{ "mul.rn.f32 %f3, %f1, %f2;", x, x, 1.0f + 0x1p-11f },
		/* Fused, x * x - (1 + 2^-11) is 2^-24; rounded in between it is 0. */
		{ "mul.rn.f32 %f3, %f1, %f1; sub.rn.f32 %f3, %f3, %f2;", x, 1.0f + 0x1p-11f, 0 },
		{ "div.rn.f32 %f3, %f1, %f2;", 1, 3, 1.0f / 3 },
		{ "sqrt.rn.f32 %f3, %f1;", 2, 0, 1.41421354f },
		{ "add.rn.f32 %f3, %f1, %f2;", 1, 0x1p-24f, 1 },
		{ "add.rn.f32 %f3, %f1, %f2;", tiny, tiny, 2 * tiny }, /* not flushed to zero */
		{ "mov.f32 %f3, 0f40490FDB;", 0, 0, 3.14159274f },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		memset(memory, 0, sizeof memory);
		assert_int_equal(run(cases[i].lines, "f32 [%d0], %f3", bits(cases[i].x),
				     bits(cases[i].y), 1),
				 PTX_DONE);
		if (memory[0] != bits(cases[i].want))
			fail_msg("%s: %" PRIx64, cases[i].lines, memory[0]);
	}
}

/* Thread t goes through a loop t times; those with an odd number take another branch in it. */
TEST(threads_go_their_own_ways)
{
	memset(memory, 0, sizeof memory);
	assert_int_equal(run("mov.u64 %d3, 0; mov.u32 %r3, 0;\n"
			     "AGAIN: setp.ge.u32 %p1, %r3, %r0; @%p1 bra OUT;\n"
			     "and.b32 %r4, %r0, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra EVEN;\n"
			     "add.u64 %d3, %d3, 100; bra.uni NEXT;\n"
			     "EVEN: add.u64 %d3, %d3, 1;\n"
			     "NEXT: add.u32 %r3, %r3, 1; bra AGAIN;\n"
			     "OUT: ",
			     "u64 [%d0], %d3", 0, 0, 40),
			 PTX_DONE);
	for (uint64_t t = 0; t < 40; t++)
		assert_int_equal(memory[t], t % 2 ? 100 * t : t);
	assert_int_equal(memory[40], 0);
}

TEST(an_address_without_memory_ends_the_kernel)
{
	assert_int_equal(run("", "u64 [%d0], %d1", 1, 0, PLACES), PTX_DONE);
	assert_int_equal(run("", "u64 [%d0], %d1", 1, 0, PLACES + 1), PTX_NO_MEMORY_THERE);
	assert_int_equal(run("", "u64 [%d0+505], %d1", 1, 0, 1), PTX_MISALIGNED);
	assert_int_equal(run("", "u64 [%d0+512], %d1", 1, 0, 1), PTX_NO_MEMORY_THERE);
	assert_int_equal(run("add.u64 %d0, %d0, 508;", "u32 [%d0], %r1", 1, 0, 1), PTX_DONE);
}

TEST(text_that_it_cannot_run_is_refused_with_its_line)
{
#define BODY(lines) \
	HEAD ".visible .entry k(.param .u64 at)\n{\n.reg .b64 %d<4>;\n.reg .f32 %f<4>;\n" lines
	static const struct {
		const char *text, *why;
	} cases[] = {
		{ "", "line 1: '' where '.version' is needed" },
		{ ".version 6.0\n.target sm_52\n.address_size 32\n", "line 3: '32'" },
		{ HEAD ".visible .func k()\n{\n}\n", "line 4: '.func' where '.entry'" },
		{ BODY("add.f32 %f1, %f2, %f3;\n}"), "line 8: 'add.f32' is no instruction" },
		{ BODY("fma.rn.f32 %f1, %f2, %f3, %f1;\n}"), "'fma.rn.f32' is no instruction" },
		{ BODY("mov.u64 %d4, 0;\n}"), "'%d4' is no register" },
		{ BODY("mov.u64 %e, 0;\n}"), "'%e' is no register" },
		{ BODY("mov.u64 %d1, zero;\n}"), "'zero' is no number" },
		{ BODY("ld.param.u64 %d1, [to];\n}"), "'to' is no parameter" },
		{ BODY("ld.param.f32 %f1, [at];\n}"), "at, which has 8 bytes" },
		{ BODY("bra OUT;\n}"), "there is no label 'OUT'" },
		{ BODY("ret\n}"), "'}' where ';' is needed" },
		{ BODY("ret;\n"), "the text ends within k" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char why[PTX_WHY_BYTES];

		assert_null(ptx_load(cases[i].text, why));
		if (!strstr(why, cases[i].why))
			fail_msg("'%s' is not in '%s'", cases[i].why, why);
	}
}
