/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_tree.h - tensors summed up by the modules in their names. Used by stats.
 *
 * A name's parts are separated by '.'. Parts that are numbers are layers, experts, ...: modules
 * that differ in those alone are one row, "model/layers.{0..31}.mlp". Depth 0 is the component,
 * depth n its name's first n parts; a name with fewer parts is a row of its own.
 */
#ifndef CKPT_ENGINE_MODULE_TREE_H
#define CKPT_ENGINE_MODULE_TREE_H
#include "ckpt/table/table.h"

#define MODULE_DEPTH_MAX 16
#define MODULE_AUTO UINT32_MAX

struct module_row {
	const char *path;
	uint64_t tensors, elements, bytes;
};

/* Rows of the n tensors id[], most bytes first. depth MODULE_AUTO: the largest with at most row_max
 * rows, but 1 at least. Memory comes from a. 0 or -ENOMEM. */
int module_rows(const struct table *t, const uint32_t *id, uint32_t n, uint32_t depth,
		uint32_t row_max, struct arena *a, struct module_row **ret, uint32_t *ret_n,
		uint32_t *ret_depth);
#endif
