/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout_vectors.c - layout/ against what PyTorch 2.15.0 answered, and the ownership rule
 * against a second implementation. Form and origin of the lines: tests/vectors/layout/make.py.
 */
#include "tests/unit/test_layout_naive.h"
#include "tests/unit/test_layout_lines.h"
#include "tests/lib/strided.h"

static void read_dim(struct arena *a, struct indices *ret)
{
	uint32_t n = (uint32_t)number();
	struct run *run = arena_array(a, n + 1, sizeof *run);

	assert_non_null(run);
	*ret = (struct indices){ .n = n, .run = run };
	for (uint32_t i = 0; i < n; i++) {
		run[i].start = number();
		run[i].len = run[i].stride = number() - run[i].start;
		run[i].count = 1;
		ret->total += run[i].len;
	}
}

static void expect_set(const struct vector *v, const struct indexset *got, struct arena *a)
{
	struct indices want;
	struct ckpt_err err = { 0 };
	uint64_t numel = 1;

	for (uint32_t d = 0; d < v->ndim; d++) {
		read_dim(a, &want);
		if (indices_check(&got->dim[d], v->shape[d], &err) < 0)
			fail_msg("%s dimension %u: %s", v->id, d, err.msg);
		if (!indices_equal(&want, &got->dim[d]) || !indices_equal(&got->dim[d], &want))
			fail_msg("%s: dimension %u differs", v->id, d);
		numel *= got->dim[d].total;
	}
	if (v->ndim > 0)
		assert_int_equal(got->numel, numel);
}

static void read_coord(const struct vector *v, uint32_t *coord)
{
	uint32_t rank = (uint32_t)number();

	assert_true(mesh_coord(&v->mesh, rank, coord));
	for (uint32_t d = 0; d < v->mesh.ndim; d++)
		assert_int_equal(coord[d], number());
}

static void expect_shares(const struct vector *v)
{
	cleanup_arena struct arena a = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset set;

	for (uint32_t i = 0; i < v->mesh.nrank; i++) {
		read_coord(v, coord);
		assert_int_equal(
			layout_share(&v->mesh, &v->layout, v->ndim, v->shape, coord, &a, &set), 0);
		expect_set(v, &set, &a);
		if (v->ndim == 0)
			assert_int_equal(set.numel, 1);
	}
}

/* A refused case: what says no, or 0 when nothing does. */
static int refusal(const struct vector *v)
{
	struct ckpt_err err = { 0 };
	cleanup_arena struct arena a = { 0 };
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	struct indexset set;
	int e = mesh_check(&v->mesh, &err);

	if (e == 0)
		e = layout_check(&v->mesh, &v->layout, v->ndim, &err);
	if (e < 0)
		assert_true(err.code == e && strlen(err.msg) > 20);
	else
		e = layout_share(&v->mesh, &v->layout, v->ndim, v->shape, coord, &a, &set);
	return e;
}

static void check_vector(struct vector *v, uint32_t *refused, uint32_t *partial)
{
	struct ckpt_err err = { 0 };

	if (strncmp(next_token, "E", 1) == 0) {
		if (refusal(v) >= 0)
			fail_msg("%s should be refused", v->id);
		++*refused;
		return;
	}
	assert_int_equal(mesh_check(&v->mesh, &err), 0);
	*partial += layout_is_partial(&v->layout);
	if (layout_check(&v->mesh, &v->layout, v->ndim, &err) < 0)
		fail_msg("%s: %s", v->id, err.msg);
	expect_shares(v);
}

static void run_mode(const char *name, uint32_t mode, uint32_t at_least)
{
	static struct vector v;
	cleanup_free char *line = NULL;
	size_t cap = 0;
	uint32_t n = 0, refused = 0, partial = 0;
	FILE *f = open_vectors(name);

	while (getline(&line, &cap, f) > 0) {
		if (*line == '#') {
			printf("%s", line);
			continue;
		}
		read_vector(&v, line);
		v.layout.mode = mode;
		check_vector(&v, &refused, &partial);
		n++;
	}
	fclose(f);
	printf("%s: %u cases, %u of them refused, %u with a pending reduction\n", name, n, refused,
	       partial);
	assert_true(n >= at_least);
}

static void run_vectors(const char *name, uint32_t at_least)
{
	run_mode(name, CKPT_CHUNK, at_least);
}

TEST(torch_and_layout_share_agree_on_plain_shards)
{
	run_vectors("literal", 420);
}

TEST(torch_and_layout_share_agree_on_strided_shards)
{
	run_vectors("strided", 380);
}

TEST(torch_and_layout_share_agree_on_explicit_orders)
{
	run_vectors("order", 300);
}

TEST(torch_and_layout_share_agree_on_permuted_and_partial_meshes)
{
	run_vectors("ranks", 160);
}

TEST(torch_and_layout_share_agree_on_large_shapes)
{
	run_vectors("large", 100);
}

TEST(torch_and_layout_share_agree_on_fsdp)
{
	run_vectors("fsdp", 300);
}

TEST(flat_cuts_are_one_cut_by_all_mesh_dimensions)
{
	run_mode("flat", CKPT_FLAT, 172);
}

TEST(padded_unflattening_cuts_columns)
{
	run_mode("unflatten_pad", CKPT_UNFLATTEN_PAD, 68);
}

/* As the library takes CKPT_TORCH_ORDER: checked with CKPT_CHUNK, then turned into an order. */
static int order_taken(struct vector *v, struct ckpt_placement *place, struct ckpt_err *err)
{
	int e = mesh_check(&v->mesh, err);

	if (e == 0)
		e = layout_check(&v->mesh, &v->layout, v->ndim, err);
	if (e == 0)
		e = layout_torch_order(&v->mesh, v->place, v->layout.nplace, place,
				       &v->layout.nplace, err);
	v->layout.place = place;
	return e;
}

TEST(torch_and_layout_share_agree_on_what_torch_prints_of_an_order)
{
	static struct vector v;
	struct ckpt_placement place[CKPT_DIMS_MAX];
	cleanup_free char *line = NULL;
	size_t cap = 0;
	uint32_t n = 0, refused = 0;
	struct ckpt_err err = { 0 };
	FILE *f = open_vectors("torch_order");

	for (; getline(&line, &cap, f) > 0; n++) {
		int e;

		read_vector(&v, line);
		e = order_taken(&v, place, &err);
		if (strncmp(next_token, "E", 1) == 0) {
			assert_true(e < 0 && strlen(err.msg) > 20);
			refused++;
			continue;
		}
		if (e < 0)
			fail_msg("%s: %s", v.id, err.msg);
		for (uint32_t i = 0; i < v.layout.nplace; i++) {
			assert_int_not_equal(place[i].how, CKPT_REPLICATE);
			assert_true(place[i].how != CKPT_SHARD || place[i].split_factor == 0);
		}
		expect_shares(&v);
	}
	fclose(f);
	printf("%u cases, %u of them refused\n", n, refused);
	assert_true(n >= 140 && refused >= 10);
}

TEST(a_mesh_dimension_that_torch_placements_leave_out_replicates)
{
	static const uint32_t dim[] = { 2, 3, 2 };
	static const char *const name[] = { "dp", "fsdp", "tp" };
	static const struct mesh m = { .ndim = 3, .dim = dim, .name = name };
	struct ckpt_placement p[] = {
		{ .how = CKPT_SHARD, .mesh_dim = 1, .split_factor = 2 },
		{ .how = CKPT_SHARD, .mesh_dim = 2 },
	};
	struct ckpt_placement out[CKPT_DIMS_MAX], swapped[] = { p[1], p[0] },
						  twice[] = { p[1], p[1] };
	struct ckpt_err err;
	uint32_t n;

	assert_int_equal(layout_torch_order(&m, p, 2, out, &n, &err), 0);
	assert_int_equal(n, 2);
	assert_true(out[0].mesh_dim == 2 && out[1].mesh_dim == 1 && out[1].split_factor == 0);
	assert_int_equal(layout_torch_order(&m, NULL, 0, out, &n, &err), 0);
	assert_int_equal(n, 0);
	assert_int_equal(layout_torch_order(&m, p, 1, out, &n, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "mesh dimension \"fsdp\"): its split factor 2"));
	assert_int_equal(layout_torch_order(&m, swapped, 2, out, &n, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "\"fsdp\"): it stands behind \"tp\""));
	assert_int_equal(layout_torch_order(&m, twice, 2, out, &n, &err), -EINVAL);
	p[1].mesh_dim = 3;
	assert_int_equal(layout_torch_order(&m, p, 2, out, &n, &err), -EINVAL);
}

/* A line of strided_order.txt, as placements in the order of the mesh. */
static void read_strided(struct vector *v, char *line)
{
	static const char *const name[] = { "a", "b", "c", "d", "e", "f", "g", "h" };

	*v = (struct vector){ .id = strtok_r(line, " \n", &next_token) };
	v->mesh = (struct mesh){ .name = name, .dim = v->dim, .nrank = 1 };
	numbers(&v->mesh.ndim, v->dim, ARRAY_LEN(name));
	for (uint32_t i = 0; i < v->mesh.ndim; i++) {
		struct ckpt_placement *p = &v->place[i];
		char how = *word();

		p->mesh_dim = (uint16_t)i;
		p->how = how == 'S' ? CKPT_SHARD : how == 'P' ? CKPT_PARTIAL : CKPT_REPLICATE;
		if (how == 'S') {
			p->tensor_dim = (uint16_t)number();
			p->split_factor = (uint32_t)number();
		}
	}
}

static void expect_decoded(const struct vector *v)
{
	struct ckpt_placement order[CKPT_DIMS_MAX], strided[CKPT_DIMS_MAX];
	struct ckpt_err err = { 0 };
	uint32_t n, m;
	int e = layout_order_of(&v->mesh, v->place, order, &err);

	if (*next_token == 'E') {
		word();
		if (e != -EINVAL || strlen(err.msg) < 20)
			fail_msg("%s should say no order", v->id);
		return;
	}
	if (e < 0)
		fail_msg("%s: %s", v->id, err.msg);
	n = (uint32_t)number();
	for (uint32_t i = 0; i < v->mesh.ndim; i++) {
		assert_int_equal(order[i].how == CKPT_SHARD, i < n);
		if (i < n && order[i].mesh_dim != (m = (uint32_t)number()))
			fail_msg("%s: mesh dimension %u cuts as number %u, not %u", v->id,
				 order[i].mesh_dim, i, m);
		assert_true(i >= n || order[i].split_factor == 0);
	}
	strided_of(&v->mesh, order, strided);
	for (uint32_t i = 0; i < v->mesh.ndim; i++) {
		assert_int_equal(strided[i].how, v->place[i].how);
		assert_int_equal(strided[i].tensor_dim, v->place[i].tensor_dim);
		assert_int_equal(MAX(strided[i].split_factor, 1u),
				 MAX(v->place[i].split_factor, 1u));
	}
}

static void expect_strided(const struct vector *v)
{
	struct ckpt_placement order[CKPT_DIMS_MAX], strided[CKPT_DIMS_MAX];
	uint32_t n = (uint32_t)number(), at = n;

	for (uint32_t i = 0; i < n; i++) {
		order[i] = (struct ckpt_placement){ .how = CKPT_SHARD };
		order[i].mesh_dim = (uint16_t)number();
		order[i].tensor_dim = (uint16_t)number();
	}
	for (uint32_t i = 0; i < v->mesh.ndim; i++)
		if (v->place[i].how != CKPT_SHARD)
			order[at++] = v->place[i];
	assert_int_equal(at, v->mesh.ndim);
	strided_of(&v->mesh, order, strided);
	for (uint32_t i = 0; i < v->mesh.ndim; i++)
		if (MAX(strided[i].split_factor, 1u) != MAX(v->place[i].split_factor, 1u))
			fail_msg("%s: mesh dimension %u is strided by %u, not %u", v->id, i,
				 strided[i].split_factor, v->place[i].split_factor);
}

TEST(split_factors_and_shard_order_are_converted_as_torch_does)
{
	static struct vector v;
	cleanup_free char *line = NULL;
	size_t cap = 0;
	uint32_t n = 0, both = 0;
	FILE *f = open_vectors("strided_order");

	for (; getline(&line, &cap, f) > 0; n++) {
		read_strided(&v, line);
		expect_decoded(&v);
		if (number() == 0)
			continue;
		expect_strided(&v);
		both++;
	}
	fclose(f);
	printf("%u cases, %u of them there and back\n", n, both);
	assert_true(n == 200 && both > 50);
}

TEST(what_torch_refuses_is_refused)
{
	run_vectors("errors", 50);
}

TEST(ownership_is_what_the_rule_says)
{
	static struct vector v;
	cleanup_free char *line = NULL;
	size_t cap = 0;
	uint32_t n = 0;
	FILE *f = open_vectors("owned");

	for (; getline(&line, &cap, f) > 0; n++) {
		cleanup_arena struct arena a = { 0 };
		struct indexset set;
		uint32_t coord[CKPT_DIMS_MAX];

		read_vector(&v, line);
		uint32_t elem_bytes = (uint32_t)number();
		const char *component = word(), *name = word();

		for (uint32_t i = 0; i < v.mesh.nrank; i++) {
			read_coord(&v, coord);
			assert_int_equal(layout_owned(&v.mesh, &v.layout, v.ndim, v.shape, coord,
						      elem_bytes, component, name, &a, &set),
					 0);
			if (set.numel != number())
				fail_msg("%s: number of elements owned", v.id);
			expect_set(&v, &set, &a);
		}
	}
	fclose(f);
	printf("owned: %u cases\n", n);
	assert_true(n >= 560);
}
