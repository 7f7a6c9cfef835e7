/* SPDX-License-Identifier: Apache-2.0 */
/* steps_impl.h - the model behind a drawn redistribution, between steps_draw.c (makes it),
 * steps_text.c and steps_svg.c (draw it). */
#ifndef CKPT_DRAW_STEPS_IMPL_H
#define CKPT_DRAW_STEPS_IMPL_H
#include "ckpt/draw/map.h"
#include "ckpt/draw/steps_draw.h"

struct steps_state {
	const struct layout *layout;
	const struct indexset *set; /* [nrank] by place in the mesh */
	struct map *map;	    /* NULL: up to STEPS_TEXT_BOXES ranks */
};

struct steps_arrow {
	uint32_t from, to; /* places in the mesh */
	uint64_t bytes;	   /* not 0 */
};

/* Between two states. A group: the ranks that talk to each other. */
struct steps_move {
	const struct redist_step *step;
	uint32_t ngroup, drawn; /* groups that there are, and those whose arrows are known */
	uint32_t size, members; /* ranks of a group, and those of them whose arrows are known */
	uint32_t *member;	/* [members] places: the first group that sends anything */
	uint32_t narrow;
	struct steps_arrow *arrow; /* group by group, by sender, by receiver */
	bool too_many_runs;	   /* no arrow is known */
};

struct steps_draw {
	struct arena arena;
	const struct redist_problem *problem;
	const struct redist_steps *steps;
	int32_t down, across; /* dimensions of the boxes; -1: none */
	uint32_t nstate;
	struct steps_state *state; /* [nstate] */
	struct steps_move *move;   /* [nstate - 1] */
	uint32_t colour_dims;	   /* a bit for each mesh dimension that colours show */
};

/* Of one set: bytes of a rank; UINT64_MAX: or more. */
uint64_t steps_bytes(const struct steps_draw *d, const struct indexset *set);
uint32_t steps_colour(const struct steps_draw *d, uint32_t place, uint32_t ncolour);
/* "m0, m1": the mesh dimensions that colours show; "" where they show none. */
char *steps_coloured(const struct steps_draw *d, char *buf, size_t bytes);
/* How much of the indices [r0, r1) x [c0, c1) of the drawn dimensions a set has: 0 none, 1 all. */
struct steps_area {
	uint64_t r0, r1, c0, c1;
};
double steps_share(const struct steps_draw *d, const struct indexset *set,
		   const struct steps_area *a);
/* "0:9, :", "0:2 8:10 +6, 3:5" (6 more runs), "nothing"; of one dimension. Return buf. */
char *steps_set(const struct steps_draw *d, const struct indexset *set, char *buf, size_t bytes);
char *steps_dim(const struct steps_draw *d, const struct indexset *set, uint32_t dim, char *buf,
		size_t bytes);
/* "all_gather over m1, 7.20 us: a rank sends at most 50 B and needs at most 90 B of memory". */
char *steps_move_words(const struct steps_draw *d, const struct steps_move *m, char *buf,
		       size_t bytes);
/* What of the arrows is not drawn; "" where all are. */
char *steps_left_out(const struct steps_move *m, char *buf, size_t bytes);
/* "8 ranks hold 40 to 45 B each"; with what a pending reduction makes of it. */
char *steps_state_words(const struct steps_draw *d, const struct steps_state *s, char *buf,
			size_t bytes);
#endif
