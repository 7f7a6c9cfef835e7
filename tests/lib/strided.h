/* SPDX-License-Identifier: Apache-2.0 */
/* strided.h - split factors from a shard order: the reverse of layout_order_of. torch's own answers
 * (unit-layout_vectors) show that it is right. */
#ifndef TESTS_LIB_STRIDED_H
#define TESTS_LIB_STRIDED_H
#include "ckpt/layout/layout.h"

/* place[m->ndim]: plain ones, in order of application. */
static inline void strided_of(const struct mesh *m, const struct ckpt_placement *place,
			      struct ckpt_placement *ret)
{
	for (uint32_t i = 0; i < m->ndim; i++) {
		const struct ckpt_placement *p = &place[i];
		uint32_t factor = 1;

		for (uint32_t j = 0; j < i && p->how == CKPT_SHARD; j++)
			if (place[j].how == CKPT_SHARD && place[j].tensor_dim == p->tensor_dim &&
			    place[j].mesh_dim > p->mesh_dim)
				factor *= m->dim[place[j].mesh_dim];
		ret[p->mesh_dim] = *p;
		if (p->how == CKPT_SHARD)
			ret[p->mesh_dim].split_factor = factor > 1 ? factor : 0;
	}
}
#endif
