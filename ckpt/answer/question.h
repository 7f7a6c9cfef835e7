/* SPDX-License-Identifier: Apache-2.0 */
/*
 * question.h - questions about layouts: a shape, a mesh, and what each mesh dimension does. Asked
 * by ckptctl layout. One question is one JSON object; its fields give its kind, in the order of
 * enum question_kind. Other fields are ignored, and a field that is null counts as missing.
 *
 *	{"shape":[7,5],"mesh":[3,2],"ranks":[..]?,"placements":["_S(0, 2)","S(0)"],
 *	 "order":[[0,[1,0]]]?,"mode":"order"?}
 *	{"mesh":[3,2],"strided":["_S(0, 2)","S(0)"]}
 *	{"shape":[4],"mesh":[2],"dtype":"float32","src":["P(sum)"],"dst":["R"],
 *	 "locals":[[1,2,3,4],[5,6,7,8]]}
 *	{"shape":[30,7],"mesh":[2,2],"dtype":"bfloat16","devices_per_host":8,"src":["S(1)","R"],
 *	 "src_order":[[1,[0]]]?,"dst":["R","S(0)"],"dst_order":[..]?,"planner":"graph"?}
 *
 * Placements are one per mesh dimension, as DTensor prints them: S(d), _S(d, f), R, P(op) with op
 * sum, avg, min, max or product; a negative d counts from the end. mesh has the sizes; ranks is the
 * rank at each coordinate, the last one running fastest. order says in which order mesh dimensions
 * cut: [[tensor dimension, [mesh dimensions]]], all that shard, each under its own. planner is
 * greedy or graph; without it, the one that PyTorch takes by itself. mode is how:
 * literal (the default; _S as it stands), order (the split factors say the order, nothing else),
 * flat and unflatten_pad (enum ckpt_mode).
 */
#ifndef CKPT_ANSWER_QUESTION_H
#define CKPT_ANSWER_QUESTION_H
#include "ckpt/layout/layout.h"
#include "ckpt/redist/redistribute.h"

struct json_t;

enum question_kind {
	ASK_ORDER,  /* "strided": which order do these split factors say? */
	ASK_REDUCE, /* "locals", "src", "dst": what do the ranks have after that redistribution? */
	ASK_STEPS,  /* "dst", "devices_per_host": by which collectives, at which price? */
	ASK_SHARES, /* "placements": which elements does each rank hold? */
};

/* Placements as they are written, one per mesh dimension; strided: a bit for each _S,
 * because a factor of 1 does not show it. */
struct question_side {
	struct ckpt_placement place[CKPT_DIMS_MAX];
	uint32_t strided;
};

struct question {
	enum question_kind kind;
	uint32_t ndim; /* not of ASK_ORDER */
	uint64_t shape[CKPT_DIMS_MAX];
	struct mesh mesh; /* without ranks; its dimensions are called m0, m1, .. or as they were */
	uint32_t mesh_dim[CKPT_DIMS_MAX];
	/* [mesh.nrank] by coordinate, distinct; NULL: 0, 1, 2, .. */
	const uint64_t *rank;
	const uint32_t *ascending; /* [mesh.nrank] places by rank; NULL: they ascend as they are */
	struct layout layout;	   /* ASK_SHARES: as it cuts, in order of application; checked */
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct question_side src, dst; /* ASK_ORDER: src; ASK_REDUCE, ASK_STEPS: both */
	uint32_t dtype;		       /* ASK_REDUCE */
	/* ASK_STEPS: checked (redist_check), of these layouts in order of application */
	struct redist_problem problem;
	struct layout from, to;
	enum redist_planner planner;
	uint32_t devices_per_host;
	const struct json_t *locals; /* ASK_REDUCE: an array, one element a rank */
	struct json_t *json;
};

/*
 * text may be any bytes. -EINVAL: it is no question, or one that must be refused; err says why.
 * -ENOMEM. Always to be freed; it points into itself, so it stays where it is.
 */
int question_parse(const char *text, size_t len, struct arena *a, struct question *ret,
		   struct ckpt_err *err);
/* Words of the command line: "7,5" or "[7, 5]", "dp=3,tp=2", "S(0),_S(0,2)" in any spelling of
 * placement_read (or with the names of mesh dimensions as layout_parse reads it: "Shard(0)@dp"), a
 * mode or NULL. */
int question_of_words(const char *shape, const char *mesh, const char *placements, const char *mode,
		      struct arena *a, struct question *ret, struct ckpt_err *err);
/* The shape alone. */
int question_shape_of_words(const char *text, uint32_t *ret_ndim,
			    uint64_t ret_shape[static CKPT_DIMS_MAX], struct ckpt_err *err);
void question_free(struct question *q);

/* "S(0), _S(0, 2), R", in the order of the mesh. Returns buf. */
char *question_side_print(const struct question *q, const struct question_side *s, char *buf,
			  size_t bytes);
/* The rank at a place, and its coordinate. */
uint64_t question_rank(const struct question *q, uint32_t place, uint32_t *ret_coord);
/* The same of the i-th rank, in ascending order. */
uint64_t question_rank_ascending(const struct question *q, uint32_t i, uint32_t *ret_coord);
#endif
