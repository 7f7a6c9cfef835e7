/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_stat.h - what is concluded from many measurements. Samples come in blocks A B B A A B ...,
 * for clocks and temperature drift; intervals are 95 % of a bootstrap that draws whole pairs of
 * blocks, because steps of one block are not independent.
 */
#ifndef TESTS_GPU_STAT_H
#define TESTS_GPU_STAT_H
#include <stdint.h>

#define STAT_BLOCKS_MAX 16u
#define STAT_SAMPLES_MAX 4096u /* of a block */

struct stat_side { /* one side of a comparison */
	uint32_t nblock;
	uint32_t n[STAT_BLOCKS_MAX];
	double *sample
		[STAT_BLOCKS_MAX]; /* allocated by stat_add; never freed: a program of minutes */
};
struct stat_value {
	double value, low, high;
	double of_a, of_b; /* the quantile of each side */
	uint64_t n;	   /* samples of the smaller side */
};

void stat_block(struct stat_side *s);		       /* the next samples are a new block's */
void stat_add(struct stat_side *s, double sample);     /* more than the maximum are not kept */
double stat_quantile(double *v, uint64_t n, double q); /* sorts v; n >= 1 */
/* Quantile q of all samples of one side. */
double stat_side_quantile(const struct stat_side *s, double q);
/* q of b / q of a - 1. Both have the same number of blocks. */
struct stat_value stat_slowdown(const struct stat_side *a, const struct stat_side *b, double q);
/* median of b / median of a. */
struct stat_value stat_ratio(const struct stat_side *a, const struct stat_side *b);
#endif
