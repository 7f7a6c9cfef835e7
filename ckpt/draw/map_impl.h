/* SPDX-License-Identifier: Apache-2.0 */
/* map_impl.h - the model behind a map, between map.c (makes it), map_text.c and map_svg.c (draw
 * it). */
#ifndef CKPT_DRAW_MAP_IMPL_H
#define CKPT_DRAW_MAP_IMPL_H
#include "ckpt/draw/map.h"

/* A stretch of a dimension. many: 0, or how many spans it stands for (UINT64_MAX: unknown). */
struct map_span {
	uint64_t start, stop, many;
};

struct map_axis {
	int32_t dim; /* -1: none; then one span */
	uint64_t extent;
	uint32_t nlist;
	const struct indices **list; /* distinct lists of it, by their first index */
	uint32_t nspan;
	struct map_span *span; /* those that are known; what is unknown is one with many */
	bool whole;	       /* all are known */
};

struct map {
	struct arena arena;
	struct map_facts facts;
	uint32_t ndim;
	const uint64_t *shape;
	struct map_axis down, across;
	/* [nshare] place of a share's list among those of the axis: what its colour comes from */
	uint32_t *down_list, *across_list;
	bool *drawn; /* [nshare] holds index 0 of the dimensions in at_zero */
};

/* What a picture shows of a map: spans chosen, and for each cell the shares that have something in
 * it. A gap's cells are not filled. */
struct map_view {
	uint32_t nrow, ncol;
	struct map_span *row, *col;
	uint32_t *first; /* [nrow * ncol + 1] */
	uint32_t *share; /* [first[cell] .. first[cell + 1]) ascending */
	struct arena arena;
};

enum map_fit { MAP_GAP, MAP_JOIN }; /* what becomes of spans that are too many */

/* At most row_max x col_max spans (at least 3 each). */
int map_view_make(const struct map *m, uint32_t row_max, uint32_t col_max, enum map_fit fit,
		  struct map_view *ret);
void map_view_free(struct map_view *v);
bool map_is_gap(const struct map_span *s, enum map_fit fit);
bool map_cell_equal(const struct map_view *v, uint32_t x, uint32_t y);
/* The ranks of all shares in a cell, ascending and distinct; *ret_rank lives in the view's
 * arena. */
int map_cell_ranks(const struct map *m, struct map_view *v, uint32_t cell, uint32_t *ret_n,
		   const uint32_t **ret_rank);
uint32_t map_colour(const struct map *m, uint32_t share, uint32_t ncolour);
/* Label of a cell in at most max bytes: "r0,r4", "r0-r7", "r0+15"; *ret_short: it is the last
 * kind. */
char *map_label(uint32_t n, const uint32_t *rank, uint32_t max, char *buf, size_t bytes,
		bool *ret_short);
/* "4 every 16, 8 times from 0": the runs of a list. */
char *map_pattern(const struct indices *x, char *buf, size_t bytes);
/* The shares whose list on the axis is list number i: their ranks, ascending, in the arena. */
int map_list_ranks(const struct map *m, const struct map_axis *a, uint32_t i, struct arena *arena,
		   uint32_t *ret_n, const uint32_t **ret_rank);
#endif
