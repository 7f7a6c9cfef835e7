/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gamma.c - gamma of a sigma_rel, for the canonical form of specs: called by spec.c. It is apart
 * from schedule.c because the library, which reads specs, computes no decays. Invariant: the
 * nearest double, on every host.
 */
#include "ema/schedule.h"
#include "ema/wide.h"
#include <math.h>
#include <stdbool.h>

/* Is (g + 1) / ((g + 2)^2 (g + 3)) >= sigma^2? */
static bool wider_than(struct wide g, double sigma)
{
	struct wide g2 = wide_add(g, wide_of(2)), g3 = wide_add(g, wide_of(3)), s = wide_of(sigma);
	struct wide left = wide_add(g, wide_of(1)),
		    right = wide_mul(wide_mul(s, s), wide_mul(wide_mul(g2, g2), g3));

	return wide_double(wide_sub(left, right)) >= 0;
}

double ema_gamma_of_sigma(double sigma_rel)
{
	double low = 0, high;

	if (!(sigma_rel >= EMA_SIGMA_MIN && sigma_rel < 1) || !wider_than(wide_of(0), sigma_rel))
		return NAN;
	/* The left side falls as g grows, and is less than (g + 2)^-2. */
	high = 1 / sigma_rel;
	for (;;) {
		double half = (high - low) / 2, middle = low + half;

		if (middle <= low || middle >= high) /* neighbours: the nearer one */
			return wider_than((struct wide){ low, half }, sigma_rel) ? high : low;
		if (wider_than(wide_of(middle), sigma_rel))
			low = middle;
		else
			high = middle;
	}
}
