/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide.c - arithmetic of twice a double's precision, for the schedules. Invariant: every result is
 * a function of its arguments' bits alone, whatever the processor and the library (the Makefile
 * forbids the compiler to fuse a multiplication with an addition here).
 */
#include "ema/wide.h"
#include <math.h>

static const struct wide zero, ln2 = { 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56 };

/* The exact sum of two doubles. */
static struct wide sum(double a, double b)
{
	double s = a + b, part = s - a;

	return (struct wide){ s, (a - (s - part)) + (b - part) };
}

/* The same for |a| >= |b|. */
static struct wide sum_ordered(double a, double b)
{
	double s = a + b;

	return (struct wide){ s, b - (s - a) };
}

/* The upper 26 bits of a, and the rest. */
static struct wide double_halves(double a)
{
	double t = 0x1.0000002p27 * a, hi = t - (t - a);

	return (struct wide){ hi, a - hi };
}

/* The exact product of two doubles. */
static struct wide product(double a, double b)
{
	struct wide x = double_halves(a), y = double_halves(b);
	double p = a * b;

	return (struct wide){ p, ((x.hi * y.hi - p) + x.hi * y.lo + x.lo * y.hi) + x.lo * y.lo };
}

struct wide wide_of(double x)
{
	return (struct wide){ x, 0 };
}

struct wide wide_of_u64(uint64_t x)
{
	return sum((double)(x >> 32) * 0x1p32, (double)(uint32_t)x);
}

double wide_double(struct wide x)
{
	return x.hi + x.lo;
}

struct wide wide_add(struct wide x, struct wide y)
{
	struct wide s = sum(x.hi, y.hi), t = sum(x.lo, y.lo);

	s = sum_ordered(s.hi, s.lo + t.hi);
	return sum_ordered(s.hi, s.lo + t.lo);
}

struct wide wide_sub(struct wide x, struct wide y)
{
	return wide_add(x, (struct wide){ -y.hi, -y.lo });
}

struct wide wide_mul(struct wide x, struct wide y)
{
	struct wide p = product(x.hi, y.hi);

	return sum_ordered(p.hi, p.lo + (x.hi * y.lo + x.lo * y.hi));
}

struct wide wide_div(struct wide x, struct wide y)
{
	struct wide quotient = zero;

	for (int i = 0; i < 3; i++) {
		struct wide digit = wide_of(x.hi / y.hi);

		quotient = wide_add(quotient, digit);
		x = wide_sub(x, wide_mul(y, digit));
	}
	return quotient;
}

/* The natural logarithm of x = m 2^e: with t = (m - 1) / (m + 1), at most .172, that of m is
 * 2 (t + t^3/3 + t^5/5 + ...). */
#define LOG_TERMS 24
static struct wide wide_log(struct wide x)
{
	int e;
	double m = frexp(x.hi, &e); /* [.5, 1) */
	struct wide one = wide_of(1), t, square, series = zero;

	if (m < 0x1.6a09e667f3bcdp-1)
		e--;
	x = (struct wide){ ldexp(x.hi, -e), ldexp(x.lo, -e) };
	t = wide_div(wide_sub(x, one), wide_add(x, one));
	square = wide_mul(t, t);
	for (int i = LOG_TERMS; i >= 0; i--)
		series = wide_add(wide_mul(series, square), wide_div(one, wide_of(2 * i + 1)));
	return wide_add(wide_mul(wide_mul(wide_of(2), t), series), wide_mul(wide_of(e), ln2));
}

/* e to the power of y <= 0: y = n ln 2 + r with |r| at most .35, and Taylor's series for r. */
#define EXP_TERMS 28
static struct wide wide_exp(struct wide y)
{
	struct wide one = wide_of(1), r, series = one;
	int n;

	if (y.hi < -760)
		return zero;
	n = (int)(y.hi / ln2.hi - .5);
	r = wide_sub(y, wide_mul(wide_of(n), ln2));
	for (int i = EXP_TERMS; i > 0; i--)
		series = wide_add(one, wide_div(wide_mul(series, r), wide_of(i)));
	return (struct wide){ ldexp(series.hi, n), ldexp(series.lo, n) };
}

struct wide wide_pow(struct wide x, struct wide y)
{
	return wide_exp(wide_mul(y, wide_log(x)));
}
