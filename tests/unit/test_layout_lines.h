/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_lines.h - lines of tests/vectors/layout/NAME.txt (form: make.py there), up to what is
 * expected of them. For tests of several rooms that need every layout that was ever asked of
 * PyTorch.
 */
#ifndef CKPT_TEST_LAYOUT_LINES_H
#define CKPT_TEST_LAYOUT_LINES_H
#include "ckpt/layout/layout.h"
#include "tests/lib/unit.h"
#include <limits.h>

static char *next_token; /* of the line that is read */

static inline char *word(void)
{
	char *w = strtok_r(NULL, " \n", &next_token);

	assert_non_null(w);
	return w;
}

static inline uint64_t number(void)
{
	char *end, *w = word();
	uint64_t n = strtoull(w, &end, 10);

	assert_true(*w >= '0' && *w <= '9' && *end == '\0');
	return n;
}

static inline void numbers(uint32_t *ret_n, uint32_t *ret_v, uint32_t max)
{
	*ret_n = (uint32_t)number();
	assert_true(*ret_n <= max);
	for (uint32_t i = 0; i < *ret_n; i++)
		ret_v[i] = (uint32_t)number();
}

struct vector {
	char *id;
	uint32_t ndim, dim[CKPT_DIMS_MAX], rank[4096];
	uint64_t shape[CKPT_DIMS_MAX];
	const char *name[CKPT_DIMS_MAX];
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct mesh mesh;
	struct layout layout;
};

static inline void read_vector(struct vector *v, char *line)
{
	static const char *const name[] = { "a", "b", "c", "d", "e", "f", "g", "h" };

	*v = (struct vector){ .id = strtok_r(line, " \n", &next_token) };
	v->ndim = (uint32_t)number();
	assert_true(v->ndim <= CKPT_DIMS_MAX);
	for (uint32_t d = 0; d < v->ndim; d++)
		v->shape[d] = number();
	v->mesh = (struct mesh){ .name = name, .dim = v->dim, .rank = v->rank };
	numbers(&v->mesh.ndim, v->dim, ARRAY_LEN(name));
	numbers(&v->mesh.nrank, v->rank, ARRAY_LEN(v->rank));
	v->layout = (struct layout){ .place = v->place };
	v->layout.nplace = (uint32_t)number();
	assert_true(v->layout.nplace <= CKPT_DIMS_MAX);
	for (uint32_t i = 0; i < v->layout.nplace; i++) {
		struct ckpt_placement *p = &v->place[i];
		char how = *word();

		p->mesh_dim = (uint16_t)number();
		p->how = how == 'S'   ? CKPT_SHARD
			 : how == 'O' ? CKPT_ONLY
			 : how == 'P' ? CKPT_PARTIAL
				      : CKPT_REPLICATE;
		if (how == 'S')
			p->tensor_dim = (uint16_t)number();
		if (how == 'S' || how == 'O')
			p->split_factor = (uint32_t)number();
		if (how == 'P')
			p->reduce = (uint8_t)number();
	}
}

static inline FILE *open_vectors(const char *name)
{
	char path[PATH_MAX], here[] = __FILE__;
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../vectors/layout/%s.txt", here, name);
	f = fopen(path, "r");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	return f;
}

/* Files of tests/vectors/layout, and how their placements are meant. */
static const struct {
	const char *name;
	uint32_t mode;
} vector_files[] = { { "literal", CKPT_CHUNK },	    { "strided", CKPT_CHUNK },
		     { "order", CKPT_CHUNK },	    { "ranks", CKPT_CHUNK },
		     { "large", CKPT_CHUNK },	    { "fsdp", CKPT_CHUNK },
		     { "torch_order", CKPT_CHUNK }, { "owned", CKPT_CHUNK },
		     { "flat", CKPT_FLAT },	    { "unflatten_pad", CKPT_UNFLATTEN_PAD } };
#endif
