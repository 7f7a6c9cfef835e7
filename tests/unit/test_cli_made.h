/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_made.h - for the tests of ckptctl's verbs: a checkpoint of one rank with tensors that the
 * test makes up, values included..
 */
#ifndef CKPT_TEST_CLI_MADE_H
#define CKPT_TEST_CLI_MADE_H
#include "tests/unit/test_cli_rig.h"

struct made {
	const char *component, *name;
	uint32_t dtype, ndim;
	uint64_t shape[4];
	const void *bytes; /* row-major */
	uint32_t role;	   /* 0: OTHER */
};

static uint64_t made_bytes(const struct made *m)
{
	uint64_t n = dtype_bytes(m->dtype);

	for (uint32_t d = 0; d < m->ndim; d++)
		n *= m->shape[d];
	return n;
}

static void made_table(const struct made *made, uint32_t n, struct table *ret)
{
	struct table_place place = { .name = "memory", .bytes = 1 };
	struct ckpt_err err = { 0 };
	struct mesh mesh;
	uint64_t start[4] = { 0 };

	for (uint32_t i = 0; i < n; i++)
		place.bytes += made_bytes(&made[i]);
	assert_int_equal(mesh_parse("fsdp=1", &ret->arena, &mesh, &err), 0);
	assert_int_equal(table_add_mesh(ret, &mesh, NULL, &err), 0);
	assert_int_equal(table_add_place(ret, &place, NULL, &err), 0);
	for (uint32_t i = 0, at = 0; i < n; i++) {
		struct table_tensor x = { .component = made[i].component,
					  .name = made[i].name,
					  .of = "",
					  .dtype = made[i].dtype,
					  .role = made[i].role,
					  .layout = TABLE_NONE,
					  .rank = TABLE_NONE,
					  .ndim = made[i].ndim,
					  .shape = made[i].shape };
		struct table_piece p = { .off = at };

		if (table_add_tensor(ret, &x, &p.tensor, &err))
			fail_msg("%s", err.msg);
		assert_int_equal(indexset_box(x.ndim, start, x.shape, &ret->arena, &p.set), 0);
		assert_int_equal(table_add_piece(ret, &p, &err), 0);
		at += (uint32_t)made_bytes(&made[i]);
	}
	assert_int_equal(table_seal(ret, &err), 0);
}

static void made_part(struct store_txn *x, const struct made *made, uint32_t n,
		      const struct native_info *info, struct table *t, struct native_part *ret)
{
	struct table decl = { 0 };
	struct ckpt_err err = { 0 };
	bool direct = false;
	uint64_t bytes;
	uint8_t *raw;
	int fd;

	made_table(made, n, &decl);
	assert_int_equal(native_part_table(&decl, 0, t, NULL, &err), 0);
	bytes = align_up(t->place[0].bytes, 4096);
	raw = aligned_alloc(4096, bytes ? bytes : 4096);
	assert_non_null(raw);
	memset(raw, 0, bytes);
	for (uint32_t i = 0; i < t->npiece; i++)
		for (uint32_t k = 0; k < n; k++)
			if (!strcmp(made[k].name, t->tensor[t->piece[i].tensor].name) &&
			    !strcmp(made[k].component, t->tensor[t->piece[i].tensor].component))
				memcpy(raw + t->piece[i].off, made[k].bytes, made_bytes(&made[k]));
	assert_int_equal(
		store_part_create(x, 0, move_part_bytes_max(t), &direct, ret->name, &fd, &err), 0);
	assert_int_equal(
		move_write_part(&(struct move_write){ .ops = &io_ops_posix, .engine = IO_INLINE },
				fd, raw, t, info, 0, ret, &err),
		0);
	assert_int_equal(store_part_finish(x, ret->name, fd, ret->file_bytes, &err), 0);
	free(raw);
	table_free(&decl);
}

/* A committed step of a job below root, which exists. The job has no other step before it. */
static void make_made(const char *root, const char *job, uint64_t step, const struct made *made,
		      uint32_t n)
{
	struct native_lineage lineage = { .seq = 1,
					  .parent_step = UINT64_MAX,
					  .tool = "ckptd 0.1.0" };
	struct native_info info = {
		.job = job, .step = step, .generation = 1, .wall_ns = WALL_NS, .world = 1
	};
	struct native_part part = { 0 };
	struct table table = { 0 };
	struct store *s;
	struct store_txn *x;
	struct ckpt_err err = { 0 };
	uint8_t id[16];
	uint64_t bytes, generation;
	void *manifest;
	int root_fd = open(root, O_RDONLY | O_DIRECTORY);

	assert_true(root_fd >= 0);
	assert_int_equal(store_open(&io_ops_posix, root_fd, job, true, &s, &err), 0);
	assert_int_equal(store_claim(s, 0, false, &generation, &err), 0);
	assert_int_equal(store_begin(s, step, &x, &err), 0);
	made_part(x, made, n, &info, &table, &part);
	part.table = &table;
	if (native_manifest(&info, &part, 1, &lineage, &manifest, &bytes, id, &err) ||
	    store_commit(x, manifest, bytes, UINT64_MAX, &err))
		fail_msg("%s", err.msg);
	free(manifest);
	store_close(s);
	table_free(&table);
	close(root_fd);
}

/* Where such a step lies. */
static const char *made_path(const char *root, const char *job, uint64_t step)
{
	return path_of("%s/%s/step-%012llu", root, job, (unsigned long long)step);
}
#endif
