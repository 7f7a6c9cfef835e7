/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h - the loss of a model that lies in a file. */
#ifndef TRAINER_EVALUATE_H
#define TRAINER_EVALUATE_H
#include "train_args.h"

struct corpus;
struct model_shape;

/* Prints the mean loss of the model in args->evaluate, in nats a byte, over places of the text that
 * depend on the seed alone. The file: safetensors, a BF16 tensor for each of the model's, under its
 * name. Returns an exit code; what is wrong has been printed. */
int evaluate(const struct train_args *args, const struct corpus *corpus,
	     const struct model_shape *shape);
#endif
