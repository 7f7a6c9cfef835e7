/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many.c - see many.h. Called by ckptbench.
 * Invariant: it does what a daemon does to commit a step, in the same order and with the same
 * calls.
 */
#include "tests/lib/row.h"
#include "tests/lib/many.h"
#include "ckpt/base/util.h"
#include "daemon/part_file.h"
#include "ckpt/store/store.h"
#include "formats/native/native.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define JOB "many"
#define EXPERTS 64u

struct rank {
	struct table decl, part;
	struct native_part file;
};

/* What all of it has in common. */
struct many {
	uint32_t tensors, ranks;
	uint64_t shape[2];
};

static int declare(struct table *t, const char *component, const char *name, const char *of,
		   uint32_t role, const struct many *m, uint32_t rank, struct arena *a,
		   struct ckpt_err *err)
{
	const struct table_piece *last = t->npiece ? &t->piece[t->npiece - 1] : NULL;
	struct table_piece p = { .rank = rank, .off = last ? last->off + last->len : 0 };
	struct table_tensor x =
		ROW(.component = component, .name = name, .of = of, .dtype = CKPT_F32, .role = role,
		    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = 2, .shape = m->shape);
	int r = table_add_tensor(t, &x, &p.tensor, err);

	if (!r)
		r = layout_share(&t->mesh[0], &t->layout[0], 2, m->shape, &rank, a, &p.set);
	return r ? r : table_add_piece(t, &p, err);
}

/* What a rank holds: all of its shares, one behind the other. */
static int declare_all(struct table *t, const struct many *m, uint32_t rank, struct ckpt_err *err)
{
	static const struct ckpt_placement rows = { .how = CKPT_SHARD };
	static const struct {
		const char *suffix;
		uint32_t role;
	} kind[] = { { "", CKPT_PARAM },
		     { ".master", CKPT_MASTER },
		     { ".exp_avg", CKPT_MOMENT1 },
		     { ".exp_avg_sq", CKPT_MOMENT2 } };
	struct table_place mem = { .name = "memory",
				   .rank = rank,
				   .bytes = m->tensors * 4 * m->shape[0] * m->shape[1] };
	struct layout l = { .nplace = 1, .place = &rows };
	struct arena a = { 0 };
	struct mesh mesh;
	char spec[32], name[96], full[112];
	int r;

	snprintf(spec, sizeof spec, "fsdp=%u", m->ranks);
	r = mesh_parse(spec, &a, &mesh, err);
	if (!r)
		r = table_add_mesh(t, &mesh, NULL, err);
	if (!r)
		r = table_add_layout(t, &l, NULL, err);
	if (!r)
		r = table_add_place(t, &mem, NULL, err);
	for (uint32_t i = 0; !r && i < m->tensors; i++) {
		uint32_t k = i % 4, at = i / 4;

		snprintf(name, sizeof name, "layers.%u.experts.%u.w%u.weight", at / 3 / EXPERTS,
			 at / 3 % EXPERTS, at % 3 + 1);
		snprintf(full, sizeof full, "%s%s", name, kind[k].suffix);
		r = declare(t, k ? "optim" : "model", full, k ? name : "", kind[k].role, m, rank,
			    &a, err);
	}
	arena_free(&a);
	return r ? r : table_seal(t, err);
}

static int rank_make(struct rank *x, const struct many *m, uint32_t rank, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int r = declare_all(&x->decl, m, rank, err);

	if (!r)
		r = native_part_table(&x->decl, rank, &x->part, &list, err);
	ckpt_errlist_free(&list);
	return r;
}

static int part_write(struct store_txn *txn, struct rank *x, uint32_t rank,
		      const struct native_info *info, struct ckpt_err *err)
{
	uint64_t bytes = align_up(x->part.place[0].bytes + 1, 4096);
	cleanup_free uint64_t *raw = aligned_alloc(4096, bytes);
	uint64_t state = info->step * 0x9e3779b97f4a7c15u + rank;
	bool direct = false;
	int fd, r;

	if (!raw)
		return ckpt_error(err, -ENOMEM, "out of memory");
	/* splitmix64 */
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t x64 = state += 0x9e3779b97f4a7c15u;

		x64 = (x64 ^ (x64 >> 30)) * 0xbf58476d1ce4e5b9u;
		x64 = (x64 ^ (x64 >> 27)) * 0x94d049bb133111ebu;
		raw[i] = x64 ^ (x64 >> 31);
	}
	r = store_part_create(txn, rank, native_part_bytes_max(&x->part, 0), &direct, x->file.name,
			      &fd, err);
	if (r)
		return r;
	r = part_file_write(&(struct part_file_opts){ .ops = &io_ops_posix, .engine = IO_AUTO }, fd,
			    raw, &x->part, info, rank, &x->file, err);
	if (r) {
		store_part_drop(txn, x->file.name, fd);
		return r;
	}
	x->file.table = &x->part;
	return store_part_finish(txn, x->file.name, fd, x->file.file_bytes, NULL, err);
}

static int step_write(struct store *s, struct rank *x, uint32_t ranks, uint64_t step,
		      uint64_t generation, struct ckpt_err *err)
{
	uint64_t parent = step > 1 ? step - 1 : UINT64_MAX, bytes;
	struct native_lineage lineage = { .seq = step, .parent_step = parent, .tool = "ckptbench" };
	struct native_info info = ROW(.job = JOB, .step = step, .generation = generation,
				      .wall_ns = wall_ns(), .world = ranks);
	cleanup_free struct native_part *part = calloc(ranks, sizeof *part);
	cleanup_free void *manifest = NULL;
	struct store_txn *txn;
	uint8_t id[16];
	int r;

	memcpy(info.uuid, &info.wall_ns, sizeof info.wall_ns);
	r = part ? store_begin(s, step, &txn, err) : ckpt_error(err, -ENOMEM, "out of memory");
	if (r)
		return r;
	for (uint32_t i = 0; !r && i < ranks; i++) {
		r = part_write(txn, &x[i], i, &info, err);
		part[i] = x[i].file;
	}
	if (!r)
		r = native_manifest(&info, part, ranks, &lineage, &manifest, &bytes, id, err);
	if (!r)
		return store_commit(txn, manifest, bytes, parent, err);
	store_abort(txn);
	return r;
}

int many_write(const char *dir, uint32_t tensors, uint32_t ranks, uint32_t steps, uint64_t bytes,
	       struct ckpt_err *err)
{
	struct many m = { .tensors = tensors, .ranks = ranks, .shape = { 4 * (uint64_t)ranks, 4 } };
	cleanup_free struct rank *x = calloc(ranks, sizeof *x);
	struct store *s = NULL;
	uint64_t generation;
	int fd, r = 0;

	if (bytes) {
		m.shape[0] = MAX(bytes / tensors / 4096, 1u);
		m.shape[1] = 1024;
	}
	if (mkdir(dir, 0777) && errno != EEXIST)
		return ckpt_error_errno(err, errno, "%s cannot be made", dir);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !x)
		return ckpt_error_errno(err, errno, "%s cannot be opened", dir);
	for (uint32_t i = 0; !r && i < ranks; i++)
		r = rank_make(&x[i], &m, i, err);
	if (!r)
		r = store_open(&io_ops_posix, &format_native, fd, JOB, true, &s, err);
	if (!r)
		r = store_claim(s, 0, false, &generation, err);
	for (uint64_t i = 1; !r && i <= steps; i++)
		r = step_write(s, x, ranks, i, generation, err);
	store_close(s);
	close(fd);
	for (uint32_t i = 0; i < ranks; i++) {
		table_free(&x[i].decl);
		table_free(&x[i].part);
	}
	return r;
}
