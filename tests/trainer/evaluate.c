/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evaluate.c - see evaluate.h. Called by main. It reads the file with the tests' own reader of
 * safetensors, which knows nothing of ckptd: what ckptctl writes is a model for anybody.
 */
#include "evaluate.h"
#include "model.h"
#include "ranks.h"
#include "tests/lib/strict_safetensors.c" /* NOLINT(bugprone-suspicious-include): as its header says */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 32
#define OTHER_ORDER UINT64_C(0xe7a1) /* than that of any training step */

static int load(const char *path, const struct strict_file *f, const struct model_shape *s,
		uint16_t *gathered)
{
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		const struct model_tensor *m = &s->tensor[t];
		const struct strict_tensor *x = strict_find(f, m->name);
		uint64_t bytes = m->dim[0] * m->dim[1] * sizeof *gathered;

		if (!x || strcmp(x->dtype, "BF16") != 0 || x->end - x->begin != bytes) {
			fprintf(stderr,
				"trainer: %s: %s %s; a model of these --params, in BF16, is needed\n",
				path, m->name,
				!x ? "is not in it" : "is of another shape, or not BF16");
			return EXIT_MISFIT;
		}
		memcpy(gathered + m->at, f->bytes + f->data + x->begin, bytes);
	}
	return 0;
}

static double mean_loss(const struct train_args *args, const struct corpus *corpus,
			const struct model_shape *s, const uint16_t *gathered,
			const struct model_batch *b)
{
	double sum = 0;

	for (uint64_t step = 1; step <= BATCHES; step++) {
		for (uint32_t i = 0; i < MODEL_MICRO; i++)
			model_micro(s, gathered, corpus, args->seed ^ OTHER_ORDER, step, i, b);
		sum += model_loss(b);
	}
	return sum / BATCHES;
}

int evaluate(const struct train_args *args, const struct corpus *corpus,
	     const struct model_shape *shape)
{
	uint16_t *gathered = calloc(shape->gathered, sizeof *gathered);
	void *mem = aligned_alloc(64, (model_batch_bytes(shape) + 63) & ~(size_t)63);
	struct model_batch batch;
	struct strict_file f = { 0 };
	char why[200];
	int status = EXIT_FAILURE;

	if (!gathered || !mem) {
		fputs("trainer: no memory for the model\n", stderr);
	} else if (!strict_load(args->evaluate, &f, why)) {
		fprintf(stderr, "trainer: %s: %s\n", args->evaluate, why);
		status = EXIT_ABSENT;
	} else if ((status = load(args->evaluate, &f, shape, gathered)) == 0) {
		model_batch_at(shape, mem, &batch);
		printf("trainer: loss %.6f of %s\n",
		       mean_loss(args, corpus, shape, gathered, &batch), args->evaluate);
	}
	strict_free(&f);
	free(mem);
	free(gathered);
	return status;
}
