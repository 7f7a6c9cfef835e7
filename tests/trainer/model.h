/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - the language model that the trainer trains: an n-gram MLP over bytes, and AdamW.
 *
 *	x0     = emb.weight[byte] + kind.weight[kind of byte], of the 8 bytes before the target
 *	h1     = tanh(fc1.weight x0 + fc1.bias)
 *	h2     = tanh(fc2.weight h1 + fc2.bias)
 *	logits = out.weight h2 + out.bias, over the 256 byte values
 *
 * Forward and backward use BF16 parameters; AdamW keeps FP32 masters and moments and rounds the
 * master to the parameter.
 *
 * The invariant everything here serves: loss and weights are equal bit for bit at any world size
 * and mesh. A step has MODEL_MICRO micro-batches. One rank computes a whole micro-batch
 * (activations and their gradients, model_micro) into memory that all ranks see; then each rank
 * computes the gradient of the rows it owns (model_grad), summing over the positions of
 * micro-batch 0, 1, 2, ... in that order. So no sum depends on who computed what, no gradient of
 * the whole model exists anywhere, and what ranks exchange is a few hundred KiB.
 *
 * No threads, no communication and no allocation of model memory here: ranks.h and train.c do
 * that.
 */
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H
#include "corpus.h"

#include <stddef.h>
#include <stdint.h>

#define MODEL_MICRO 12	  /* micro-batches of a step: divides by 1, 2, 3, 4 and 6 ranks */
#define MODEL_POSITIONS 4 /* positions of a micro-batch */
#define MODEL_BATCH (MODEL_MICRO * MODEL_POSITIONS)
#define MODEL_CONTEXT 8 /* bytes that the model sees */
#define MODEL_VOCAB 256
#define MODEL_KINDS 3 /* letters, white space and punctuation, the rest: fewer rows than 4 ranks */
#define MODEL_PARAMS_MIN 5000
#define MODEL_PARAMS_MAX UINT64_C(16000000000)

enum { T_EMB, T_KIND, T_FC1_W, T_FC1_B, T_FC2_W, T_FC2_B, T_OUT_W, T_OUT_B, MODEL_TENSORS };

struct model_tensor {
	const char *name;
	uint32_t ndim;
	uint64_t dim[2]; /* dim[1] is 1 for a vector */
	uint64_t at;	 /* first element in the gathered copy */
	double spread;	 /* uniform in [-spread, spread) at the start */
};

struct model_shape {
	uint64_t embed;	   /* width of an embedding */
	uint64_t hidden;   /* prime to 6: never divides evenly over 2, 3 or 4 ranks */
	uint64_t params;   /* of all tensors together */
	uint64_t gathered; /* elements of the gathered copy: params and padding */
	struct model_tensor tensor[MODEL_TENSORS];
};

/* One rank's rows [first, first + rows) of a tensor and all that belongs to them; row-major. */
struct model_part {
	uint64_t first, rows, cols;
	uint16_t *param; /* BF16 */
	float *master, *moment1, *moment2;
	float *grad;
};

/* What a step's micro-batches leave for model_grad; all ranks see it. Row q belongs to micro-batch
 * q / MODEL_POSITIONS and is written by that micro-batch's rank alone. */
struct model_batch {
	uint8_t (*context)[MODEL_CONTEXT]; /* [MODEL_BATCH] */
	double *loss;			   /* [MODEL_BATCH], nats */
	float *x0, *d0; /* [MODEL_BATCH][MODEL_CONTEXT * embed]: value, gradient */
	float *h1, *d1; /* [MODEL_BATCH][hidden]: value, gradient before tanh */
	float *h2, *d2;
	float *dout; /* [MODEL_BATCH][MODEL_VOCAB] */
};

/* The shape whose number of parameters is nearest to `params`, which lies in
 * [MODEL_PARAMS_MIN, MODEL_PARAMS_MAX]. */
void model_shape_for(uint64_t params, struct model_shape *ret_shape);

/* Bytes of a batch, and the pointers into them; mem is 64-byte aligned. */
size_t model_batch_bytes(const struct model_shape *s);
void model_batch_at(const struct model_shape *s, void *mem, struct model_batch *ret_batch);

/* Masters and parameters as they are at step 0; moments zero. Depends on (seed, global index)
 * only. */
void model_init(const struct model_shape *s, uint32_t tensor, uint64_t seed, struct model_part *p);

/* Forward and backward of micro-batch i of a step, from the gathered BF16 parameters. */
void model_micro(const struct model_shape *s, const uint16_t *gathered, const struct corpus *c,
		 uint64_t seed, uint64_t step, uint32_t i, const struct model_batch *b);

/* The mean loss of the batch, summed in one fixed order. */
double model_loss(const struct model_batch *b);

/* The gradient of this rank's rows, from the finished batch. */
void model_grad(const struct model_shape *s, uint32_t tensor, const struct model_batch *b,
		struct model_part *p);

/* The numbers of an AdamW step. The rate is a function of the step alone: a resumed run needs no
 * schedule of its own. */
struct model_adam {
	float keep1, gain1, keep2, gain2, unbias1, unbias2, eps, rate, decay;
};
struct model_adam model_adam_at(const struct model_shape *s, uint32_t tensor, uint64_t step);

/* AdamW: step counts from 1. Changes masters, moments and parameters. */
void model_update(const struct model_shape *s, uint32_t tensor, uint64_t step,
		  struct model_part *p);

/* Rows of which a parameter is not the rounding of its master, if that is finite: 0 unless a
 * restore went wrong. */
uint64_t model_wrong_rows(const struct model_part *p);
#endif
