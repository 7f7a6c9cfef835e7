/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shown.h - shapes, counts and index sets as people see them. Tables, files and ckpt.h count
 * elements, and an element of F4 is a byte of two values (dtype_values): people see its last
 * dimension doubled, in text and in JSON, and type it so. All other dtypes are shown as they are.
 */
#ifndef CKPT_TABLE_SHOWN_H
#define CKPT_TABLE_SHOWN_H
#include "ckpt/table/table.h"

uint64_t shown_numel(const struct table_tensor *x);
/* x->shape, or buf with the shape that is shown. */
const uint64_t *shown_shape(const struct table_tensor *x, uint64_t buf[CKPT_DIMS_MAX]);
/* Elements of x as the values that they are: set itself, or one in the arena. NULL: no memory. */
const struct indexset *shown_set(const struct table_tensor *x, const struct indexset *set,
				 struct arena *a);
/* The first of the meshes with most ranks; "" without one. Returns buf. */
char *shown_mesh(const struct table *t, char *buf, size_t bytes);
#endif
