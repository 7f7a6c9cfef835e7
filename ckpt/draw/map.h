/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - which ranks hold which elements of a tensor, drawn: rows down, columns across, borders
 * where the cuts are. The input is a shape and index sets of ranks, nothing of a checkpoint: what a
 * layout declares and what pieces say are drawn alike.
 *
 * Ranks with equal sets are one *share*. A *span* is a stretch of one dimension inside which nobody
 * begins or ends. Only dimensions that are cut are drawn, two at most: where more are cut, the two
 * with most shares, at index 0 of the others (facts.at_zero). What does not fit is left out in the
 * middle, and counted.
 */
#ifndef CKPT_DRAW_MAP_H
#define CKPT_DRAW_MAP_H
#include "ckpt/draw/screen.h"
#include "ckpt/layout/layout.h"

#define MAP_DIMS_MAX 64		/* dimensions of a tensor */
#define MAP_CUTS_MAX 65536	/* runs of a dimension that are taken one by one */
#define MAP_HITS_MAX (1u << 24) /* (cell, share) pairs of a drawing; more is -E2BIG */
#define MAP_LINES 24		/* lines of a drawing without its legend */

struct map_in {
	uint32_t rank;
	const struct indexset *set;
};

struct map_share {
	const struct indexset *set; /* not empty */
	uint32_t nrank;
	const uint32_t *rank; /* ascending */
};

struct map_facts {
	uint64_t numel;
	uint32_t nshare;
	const struct map_share *share; /* by their lowest ranks */
	uint32_t nempty;
	const uint32_t *empty; /* ranks that hold nothing, ascending */
	/* How many ranks hold an element: the least and the most; unknown where there are too many
	 * blocks to look at, or more than two dimensions are cut unevenly. */
	bool copies_known;
	uint64_t copies_min, copies_max;
	uint64_t held;			       /* elements, copies counted */
	uint64_t share_min, share_max;	       /* elements of a share */
	int32_t down, across;		       /* dimensions drawn; -1: none */
	uint32_t ncut, cut[MAP_DIMS_MAX];      /* dimensions that are cut */
	uint32_t nzero, at_zero[MAP_DIMS_MAX]; /* of them, those that are drawn at index 0 */
};

struct map;

/* The sets must outlive the map. -ENOMEM; -EINVAL: a set of other dimensions, too many
 * dimensions. */
int map_make(uint32_t ndim, const uint64_t *shape, const struct map_in *in, uint32_t nin,
	     struct map **ret);
void map_free(struct map *m);
const struct map_facts *map_facts(const struct map *m);

/* The drawing and its legend: abbreviations, patterns, empty ranks. 0, -ENOMEM, -E2BIG. */
int map_print(const struct map *m, FILE *f, const struct screen *s);
/* "rows: dimension 0, columns: dimension 2; whole: dimension 1"; "" where it needs no words. */
char *map_axes(const struct map *m, char *buf, size_t bytes);
/* "every element is held once, in 4 blocks of 1.00 MiB"; elem_bits 0: "of 512 elements". Returns
 * buf. */
char *map_sentence(const struct map *m, uint32_t elem_bits, char *buf, size_t bytes);

/* The same as a picture. title and lines (NULL ends) stand above it. 0, -ENOMEM, -E2BIG. */
int map_svg(const struct map *m, const char *title, const char *const *line, FILE *f);

/* "r0", "r0,r4", "r0-r7", "r0,r4..r60": ranks, ascending; cut with ".." where buf ends. */
char *map_ranks(uint32_t n, const uint32_t *rank, char *buf, size_t bytes);
#endif
