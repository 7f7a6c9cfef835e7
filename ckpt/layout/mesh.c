/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.c - meshes: checking what a trainer or a file declares, the text form of the command line,
 * and where a rank sits. After mesh_check the sizes multiply to nrank without overflow and every
 * name can be written in the text form.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"

static bool name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '.' || c == '_' || c == '-';
}

static size_t name_span(const char *s)
{
	size_t n = 0;

	while (name_char(s[n]))
		n++;
	return n;
}

static int check_name(const struct mesh *m, uint32_t d, struct ckpt_err *err)
{
	const char *name = m->name ? m->name[d] : NULL;
	size_t n = name ? name_span(name) : 0;

	if (n == 0 || name[n] != '\0' || n > LAYOUT_NAME_MAX)
		return ckpt_error(err, -EINVAL,
				  "mesh dimension %u: its name must be 1 to %d of the characters "
				  "A-Z a-z 0-9 . _ -",
				  d, LAYOUT_NAME_MAX);
	for (uint32_t i = 0; i < d; i++)
		if (strcmp(m->name[i], name) == 0)
			return ckpt_error(err, -EINVAL,
					  "mesh dimensions %u and %u are both named \"%s\": give "
					  "each its own name",
					  i, d, name);
	return 0;
}

static int rank_compare(const void *a, const void *b)
{
	return COMPARE(*(const uint32_t *)a, *(const uint32_t *)b);
}

static int check_ranks(const struct mesh *m, struct ckpt_err *err)
{
	cleanup_free uint32_t *sorted = NULL;
	uint32_t i = 1;

	while (i < m->nrank && m->rank[i - 1] < m->rank[i])
		i++;
	if (i >= m->nrank)
		return 0;
	sorted = malloc(m->nrank * sizeof *sorted);
	if (!sorted)
		return ckpt_error(err, -ENOMEM, "mesh: no memory to check its %u ranks", m->nrank);
	memcpy(sorted, m->rank, m->nrank * sizeof *sorted);
	qsort(sorted, m->nrank, sizeof *sorted, rank_compare);
	for (i = 1; i < m->nrank; i++)
		if (sorted[i - 1] == sorted[i])
			return ckpt_error(
				err, -EINVAL,
				"mesh: rank %u sits at two coordinates; every place needs "
				"a rank of its own",
				sorted[i]);
	return 0;
}

int mesh_check(const struct mesh *m, struct ckpt_err *err)
{
	uint64_t places = 1;

	if (m->ndim > CKPT_DIMS_MAX)
		return ckpt_error(err, -EINVAL,
				  "mesh: it has %u dimensions, at most %d are allowed", m->ndim,
				  CKPT_DIMS_MAX);
	for (uint32_t d = 0; d < m->ndim; d++) {
		int e = check_name(m, d, err);

		if (e < 0)
			return e;
		if (m->dim[d] == 0)
			return ckpt_error(err, -EINVAL,
					  "mesh dimension %u \"%s\": its size is 0; it must be at "
					  "least 1",
					  d, m->name[d]);
		places *= m->dim[d];
		if (places > LAYOUT_RANKS_MAX)
			return ckpt_error(err, -EINVAL,
					  "mesh: up to dimension %u \"%s\" it has %llu places, at "
					  "most %u are allowed",
					  d, m->name[d], (unsigned long long)places,
					  LAYOUT_RANKS_MAX);
	}
	if (places != m->nrank)
		return ckpt_error(err, -EINVAL,
				  "mesh: its sizes make %llu places, but %u ranks are given",
				  (unsigned long long)places, m->nrank);
	return check_ranks(m, err);
}

bool mesh_coord(const struct mesh *m, uint32_t rank, uint32_t *ret_coord)
{
	/* Mostly a rank sits where its number says. */
	uint32_t at = rank < m->nrank && m->rank[rank] == rank ? rank : 0;

	while (at < m->nrank && m->rank[at] != rank)
		at++;
	if (at == m->nrank)
		return false;
	mesh_place_coord(m, at, ret_coord);
	return true;
}

void mesh_place_coord(const struct mesh *m, uint32_t place, uint32_t *ret_coord)
{
	for (uint32_t d = m->ndim; d-- > 0; place /= m->dim[d])
		ret_coord[d] = place % m->dim[d];
}

/* The parts of a mesh while its text is read. */
struct spec {
	const char *text, *at;
	uint32_t ndim;
	uint64_t places;
	const char *name[CKPT_DIMS_MAX];
	size_t name_bytes[CKPT_DIMS_MAX];
	uint32_t dim[CKPT_DIMS_MAX];
};

static int spec_error(const struct spec *s, struct ckpt_err *err, const char *what)
{
	return ckpt_error(err, -EINVAL,
			  "mesh \"%.80s\", character %zu: %s (write names and sizes, as in "
			  "\"dp=2,fsdp=4\")",
			  s->text, (size_t)(s->at - s->text) + 1, what);
}

static int spec_name(struct spec *s, struct ckpt_err *err)
{
	size_t n = name_span(s->at);

	if (s->ndim == CKPT_DIMS_MAX)
		return spec_error(s, err, "there are more than 16 dimensions; leave some out");
	if (n == 0)
		return spec_error(s, err,
				  "expected the name of a dimension, made of A-Z a-z 0-9 . _ -");
	if (n > LAYOUT_NAME_MAX)
		return spec_error(s, err, "this name is longer than 64 bytes; shorten it");
	for (uint32_t i = 0; i < s->ndim; i++)
		if (s->name_bytes[i] == n && memcmp(s->name[i], s->at, n) == 0)
			return spec_error(s, err,
					  "this name appears twice; give each dimension its own");
	s->name[s->ndim] = s->at;
	s->name_bytes[s->ndim] = n;
	s->at += n;
	if (*s->at != '=')
		return spec_error(s, err, "expected '=' and the size of the dimension");
	s->at++;
	return 0;
}

static int spec_size(struct spec *s, struct ckpt_err *err)
{
	const char *p = s->at;
	uint64_t size = 0;

	while (*p >= '0' && *p <= '9' && size <= LAYOUT_RANKS_MAX)
		size = size * 10 + (uint64_t)(*p++ - '0');
	if (p == s->at)
		return spec_error(s, err, "expected a size, a number of at least 1");
	if (size == 0)
		return spec_error(s, err, "a size must be at least 1");
	if (size > LAYOUT_RANKS_MAX || s->places * size > LAYOUT_RANKS_MAX)
		return spec_error(s, err,
				  "with this size the mesh has more than 1048576 places; make it "
				  "smaller");
	s->places *= size;
	s->dim[s->ndim++] = (uint32_t)size;
	s->at = p;
	return 0;
}

static int spec_mesh(const struct spec *s, struct arena *a, struct mesh *ret_mesh)
{
	const char **name = arena_array(a, s->ndim, sizeof *name);
	uint32_t *dim = arena_dup(a, s->dim, s->ndim * sizeof *dim);
	uint32_t *rank = arena_array(a, (size_t)s->places, sizeof *rank);

	if (!name || !dim || !rank)
		return -ENOMEM;
	for (uint32_t d = 0; d < s->ndim; d++) {
		char *p = arena_alloc(a, s->name_bytes[d] + 1);

		if (!p)
			return -ENOMEM;
		memcpy(p, s->name[d], s->name_bytes[d]);
		name[d] = p;
	}
	for (uint32_t i = 0; i < s->places; i++)
		rank[i] = i;
	*ret_mesh = (struct mesh){ s->ndim, name, dim, (uint32_t)s->places, rank };
	return 0;
}

int mesh_parse(const char *spec, struct arena *a, struct mesh *ret_mesh, struct ckpt_err *err)
{
	struct spec s = { .text = spec, .at = spec, .places = 1 };
	int e;

	for (;;) {
		e = spec_name(&s, err);
		if (e == 0)
			e = spec_size(&s, err);
		if (e < 0)
			return e;
		if (*s.at == '\0')
			break;
		if (*s.at != ',')
			return spec_error(&s, err, "expected a comma or the end after the size");
		s.at++;
	}
	e = spec_mesh(&s, a, ret_mesh);
	if (e < 0)
		return ckpt_error(err, e, "mesh \"%.80s\": no memory for its %llu places", spec,
				  (unsigned long long)s.places);
	return 0;
}

char *mesh_print(const struct mesh *m, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	for (uint32_t d = 0; d < m->ndim; d++)
		text_add(&t, "%s%s=%u", d > 0 ? "," : "", m->name[d], m->dim[d]);
	return buf;
}
