/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_steps.h - the steps of a redistribution on one mesh, and their price (redistribute.h):
 *
 *	{"us":..,"trace":"S(0)R->RR","steps":[{"op":"all_gather","mesh_dim":0,"from":"S(0)",
 *	 "to":"R","bytes":..,"us":..}],"own":{..}}
 *
 * by the planner of the question and in PyTorch's model; "own" is the same of the cheapest of all
 * planners by our own model: the links of preset LINKS_DEFAULT, on hosts of devices_per_host ranks,
 * null for more ranks than ANSWER_OWN_RANKS_MAX, for a tensor of more than 2^62 bytes, and if a
 * plan is too large to be counted. An "exchange" changes all mesh dimensions: its mesh_dim is null,
 * from and to are states. bytes are to a thousandth. The trace is null where PyTorch prints none:
 * its greedy pass undoes a cut that is not the last one of its tensor dimension, which mesh
 * dimensions of size 1 make it do.
 */
#ifndef CKPT_ANSWER_ANSWER_STEPS_H
#define CKPT_ANSWER_ANSWER_STEPS_H
#include "ckpt/answer/answer.h"

#define ANSWER_OWN_RANKS_MAX (1u << 14) /* seconds; our own model looks at what each rank holds */

/* q of kind ASK_STEPS. The errors of redist_plan, and then nothing was written. */
int answer_steps(struct answer *a, const struct question *q, struct arena *arena,
		 struct ckpt_err *err);
#endif
