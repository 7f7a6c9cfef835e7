/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_plan.h - ckptbench plan: what planning costs for models and meshes that no one host has
 * (tests/lib/models.h). Nothing is read or written but memory. For bench_main.c.
 *
 *	dram		one read of memory that no cache has: the yardstick
 *	owners MODEL	who owns what of all tensors, for all ranks
 *	rank MODEL	one rank's plan from declarations; then, with the pieces of the parts that are
 *			needed, plan_make's, and the reads of that rank and of a host of 8
 *	schedule MODEL	one rank's part of an exchange between the two meshes of the model, from the
 *			declarations of all ranks; "layouts": 187,000 tensors in 200 layouts
 *	take		how long schedules take over what their busiest link needs
 *			(tests/lib/onto.h)
 *	steps		the search for the steps of a redistribution, of pairs that have it see many
 *			states: in PyTorch's model, and in our own
 *	pairs		the planners of PyTorch, for the pairs of layouts that stdin names
 *			(redist_torch.py)
 *	manifest MODEL	size of a MANIFEST, and what reading it costs
 */
#ifndef TESTS_BENCH_PLAN_H
#define TESTS_BENCH_PLAN_H
#include <stdbool.h>

/* Prints lines "NAME NUMBER"; dies with a sentence. false: no such measurement. */
bool bench_plan(const char *what, const char *model);
#endif
