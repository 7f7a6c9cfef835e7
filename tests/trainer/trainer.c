/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.c - the demo trainer: a byte-level language model trained in N processes with snapshots
 * by ckptd.
 *
 * This process is the parent of the ranks: it reads the text, shapes the model, forks, and waits.
 * What a rank does is in train.h, the arithmetic in model.h, processes and their deaths in
 * ranks.h.
 */
#include "corpus.h"
#include "evaluate.h"
#include "model.h"
#include "ranks.h"
#include "train.h"
#include "train_args.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
	struct train_args args;
	struct corpus corpus;
	struct ranks ranks;
	struct train_job job = { .args = &args, .corpus = &corpus };
	int r = train_args_parse(argc, argv, &args);

	if (r != 0)
		return r > 0 ? EXIT_SUCCESS : EXIT_USAGE;
	if ((r = corpus_load(args.text, &corpus)) < 0)
		return exit_code_of(r);
	model_shape_for(args.params, &job.shape);
	if (args.evaluate)
		return evaluate(&args, &corpus, &job.shape);
	r = ranks_create(args.world, train_shared_bytes(&job.shape), &ranks);
	int status = r < 0 ? exit_code_of(r) : ranks_run(&ranks, train_rank, &job);

	free(corpus.byte);
	return status;
}
