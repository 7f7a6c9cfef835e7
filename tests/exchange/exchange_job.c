// SPDX-License-Identifier: Apache-2.0
// exchange_job.c - see exchange.h. Invariant: a tensor has the same number in the checkpoint's
// table and in both declarations.
#include "ckpt/answer/question.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/spread/spread.h"
#include "tests/exchange/exchange.h"
#include <inttypes.h>
#include <stdio.h>

static uint32_t meshes_world(const struct table *t, uint32_t world)
{
	for (uint32_t m = 0; m < t->nmesh; m++)
		for (uint32_t i = 0; i < t->mesh[m].nrank; i++)
			world = MAX(world, t->mesh[m].rank[i] == UINT32_MAX
						   ? UINT32_MAX
						   : t->mesh[m].rank[i] + 1);
	return world;
}

/* Both declarations are there: which tensors, and how many ranks. */
static int job_settle(struct exchange_job *j, struct ckpt_err *err)
{
	j->moves = calloc((size_t)j->from->ntensor + 1, sizeof *j->moves);
	if (!j->moves)
		return ckpt_error(err, -ENOMEM, "no memory for %u tensors", j->from->ntensor);
	for (uint32_t i = 0; i < j->from->ntensor; i++) {
		j->moves[i] = spread_divides(j->from, &j->from->tensor[i]) &&
			      spread_divides(j->to, &j->to->tensor[i]);
		j->nmoves += j->moves[i];
	}
	j->world = meshes_world(j->to, meshes_world(j->from, 1));
	if (j->world > EXCHANGE_WORLD_MAX)
		return ckpt_error(err, -EINVAL,
				  "these meshes have rank %u, and at most %u processes are "
				  "started: choose a smaller mesh",
				  j->world - 1, EXCHANGE_WORLD_MAX);
	return 0;
}

static int disk_open(const char *name, struct exchange_job *j, struct ckpt_err *err)
{
	int rc = subject_find(&j->disk, &io_ops_posix, ".", name, NULL, err);

	return rc == 0 ? subject_open(&j->disk, NULL, NULL, err) : rc;
}

int exchange_job_checkpoint(const char *name, const struct remesh_ask *q, struct exchange_job *ret,
			    struct ckpt_err *err)
{
	int rc = disk_open(name, ret, err);

	if (rc == 0)
		rc = remesh_make(ret->disk.ckpt, q, &ret->remesh, err);
	if (rc < 0)
		return rc;
	ret->from = &ret->disk.ckpt->table;
	ret->to = &ret->remesh.target;
	return job_settle(ret, err);
}

void exchange_job_free(struct exchange_job *j)
{
	char path[PATH_MAX];

	free(j->moves);
	remesh_free(&j->remesh);
	table_free(&j->own[0]);
	table_free(&j->own[1]);
	subject_close(&j->disk);
	if (j->dir) {
		snprintf(path, sizeof path, "%s/model.safetensors", j->dir);
		(void)unlink(path);
		(void)rmdir(j->dir);
	}
	free(j->dir);
}

/* --- the layouts that were asked for --- */

struct side {
	struct mesh mesh;
	struct layout layout;
};

struct tensor {
	uint32_t ndim, dtype;
	uint64_t numel, shape[CKPT_DIMS_MAX];
	struct side side[2];
};

struct layouts {
	struct arena arena;
	uint32_t n, cap;
	struct tensor *tensor; /* side[1] is not set before they are paired */
};

/* In the order of the mesh's coordinates. */
static const uint32_t *ranks_of(const struct question *q, struct arena *a)
{
	uint32_t *rank = arena_array(a, q->mesh.nrank, sizeof *rank);
	uint32_t coord[CKPT_DIMS_MAX];

	for (uint32_t i = 0; rank && i < q->mesh.nrank; i++)
		rank[i] = (uint32_t)MIN(question_rank(q, i, coord), (uint64_t)UINT32_MAX);
	return rank;
}

static int side_take(const struct question *q, struct arena *a, struct side *ret,
		     uint32_t *ret_partial)
{
	struct ckpt_placement *place =
		arena_dup(a, q->layout.place, q->layout.nplace * sizeof *place);
	uint32_t *dim = arena_dup(a, q->mesh.dim, MAX(q->mesh.ndim, 1u) * sizeof *dim);

	ret->mesh = q->mesh;
	ret->mesh.dim = dim;
	ret->mesh.rank = ranks_of(q, a);
	ret->layout = (struct layout){ .mode = q->layout.mode, .place = place };
	if (!place || !dim || !ret->mesh.rank)
		return -ENOMEM;
	for (uint32_t i = 0; i < q->layout.nplace; i++)
		if (place[i].how != CKPT_PARTIAL)
			place[ret->layout.nplace++] = place[i];
	*ret_partial += ret->layout.nplace < q->layout.nplace;
	return 0;
}

/* Dimension 0 cut over 2 to 7 ranks, or a copy on each of them. */
static int side_plain(uint32_t i, uint32_t ndim, struct arena *a, struct side *ret)
{
	static const char *const name[] = { "plain" };
	uint32_t *dim = arena_alloc(a, sizeof *dim), nrank = 2 + i % 6;
	uint32_t *rank = arena_array(a, nrank, sizeof *rank);
	struct ckpt_placement *place = arena_alloc(a, sizeof *place);

	if (!dim || !rank || !place)
		return -ENOMEM;
	*dim = nrank;
	for (uint32_t r = 0; r < nrank; r++)
		rank[r] = r;
	place->how = CKPT_SHARD;
	ret->mesh = (struct mesh){ 1, name, dim, nrank, rank };
	ret->layout = (struct layout){ .nplace = ndim > 0 && i % 3 != 0, .place = place };
	return 0;
}

static void shape_halve(struct tensor *x, struct exchange_job *j)
{
	uint64_t numel;

	for (uint32_t halved = 0;; halved++) {
		uint32_t most = 0;

		numel = 1;
		for (uint32_t d = 0; d < x->ndim; d++) {
			most = x->shape[d] > x->shape[most] ? d : most;
			if (ckpt_mul(numel, x->shape[d], &numel) < 0)
				numel = UINT64_MAX;
		}
		j->nsmaller += numel > j->numel_max && !halved;
		if (numel <= j->numel_max)
			break;
		x->shape[most] = x->shape[most] / 2 + 1;
	}
	x->numel = numel;
}

static int layout_take(struct layouts *l, const char *line, size_t len, struct exchange_job *j,
		       struct ckpt_err *err)
{
	static const uint32_t dtype[] = { CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64 };
	struct question q;
	struct tensor *x;
	int rc = question_parse(line, len, &l->arena, &q, err);

	if (rc == -EINVAL || (rc == 0 && q.kind != ASK_SHARES)) {
		j->nrefused++;
		rc = 0;
	} else if (rc == 0 && !ARRAY_GROW(l->tensor, l->n, l->cap)) {
		rc = ckpt_error(err, -ENOMEM, "no memory for %u layouts", l->n);
	} else if (rc == 0) {
		x = &l->tensor[l->n];
		*x = (struct tensor){ .ndim = q.ndim, .dtype = dtype[l->n % ARRAY_LEN(dtype)] };
		memcpy(x->shape, q.shape, q.ndim * sizeof *x->shape);
		shape_halve(x, j);
		rc = side_take(&q, &l->arena, &x->side[0], &j->nreplicas);
		l->n += rc == 0;
	}
	question_free(&q);
	return rc;
}

static int layouts_read(struct layouts *l, const char *path, struct exchange_job *j,
			struct ckpt_err *err)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;
	int rc = 0;

	if (!f)
		return ckpt_error_errno(err, errno, "cannot read layouts from %s", path);
	while (rc == 0 && (len = getline(&line, &cap, f)) > 0)
		rc = layout_take(l, line, (size_t)len, j, err);
	if (rc == 0 && ferror(f))
		rc = ckpt_error(err, -EIO, "cannot read layouts from %s", path);
	free(line);
	(void)fclose(f);
	return rc;
}

static bool shape_same(const struct tensor *x, const struct tensor *y)
{
	return x->ndim == y->ndim && !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape);
}

/* From each to the next one of its shape, and from the last one to the first: so each is a source
 * once and a destination once. Quadratic in a thousand. */
static int layouts_pair(struct layouts *l, struct ckpt_err *err)
{
	uint32_t n = l->n;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		struct tensor *x = &l->tensor[i];
		uint32_t next = i;

		do
			next = (next + 1) % n;
		while (!shape_same(x, &l->tensor[next]));
		if (next != i) {
			x->side[1] = l->tensor[next].side[0];
			continue;
		}
		if (!ARRAY_GROW(l->tensor, l->n, l->cap))
			return ckpt_error(err, -ENOMEM, "no memory for %u layouts", l->n);
		x = &l->tensor[i];
		rc = side_plain(i, x->ndim, &l->arena, &x->side[1]);
		l->tensor[l->n] = *x;
		l->tensor[l->n].side[0] = x->side[1];
		l->tensor[l->n++].side[1] = x->side[0];
	}
	return rc < 0 ? ckpt_error(err, rc, "no memory for %u layouts", l->n) : 0;
}

/* --- their checkpoint --- */

static void noise(uint64_t seed, uint8_t *to, uint64_t bytes)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint64_t i = 0; i < bytes; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		to[i] = (uint8_t)(x >> 32);
	}
}

static uint64_t tensor_bytes(const struct tensor *x)
{
	return x->numel * dtype_bytes(x->dtype);
}

static void header_print(const struct layouts *l, FILE *f)
{
	static const char *const name[] = {
		[CKPT_U8] = "U8", [CKPT_BF16] = "BF16", [CKPT_F32] = "F32", [CKPT_F64] = "F64"
	};
	uint64_t at = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		const struct tensor *x = &l->tensor[i];

		fprintf(f, "%s\"t%05u\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", i,
			name[x->dtype]);
		for (uint32_t d = 0; d < x->ndim; d++)
			fprintf(f, "%s%" PRIu64, d ? "," : "", x->shape[d]);
		fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at,
			at + tensor_bytes(x));
		at += tensor_bytes(x);
	}
	fputs("}", f);
}

static int safetensors_write(const struct layouts *l, FILE *f)
{
	char *header = NULL;
	size_t len = 0;
	FILE *h = open_memstream(&header, &len);
	le64 head;

	if (!h)
		return -ENOMEM;
	header_print(l, h);
	while (ftell(h) % 8)
		fputs(" ", h);
	if (fclose(h) == 0) {
		head = le64_of(len);
		fwrite(&head, sizeof head, 1, f);
		fwrite(header, 1, len, f);
	}
	free(header);
	for (uint32_t i = 0; i < l->n; i++) {
		uint64_t bytes = tensor_bytes(&l->tensor[i]);
		cleanup_free uint8_t *data = malloc(bytes + 1);

		if (!data)
			return -ENOMEM;
		noise(i, data, bytes);
		fwrite(data, 1, bytes, f);
	}
	return ferror(f) ? -EIO : 0;
}

static int checkpoint_write(const struct layouts *l, struct exchange_job *j, char *path,
			    size_t bytes, struct ckpt_err *err)
{
	const char *tmp = getenv("TMPDIR");
	char dir[PATH_MAX - 32];
	FILE *f;
	int rc;

	snprintf(dir, sizeof dir, "%s/exchange.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		return ckpt_error_errno(err, errno, "cannot make the directory %s", dir);
	j->dir = strdup(dir);
	snprintf(path, bytes, "%s/model.safetensors", dir);
	f = fopen(path, "wxe");
	if (!f || !j->dir)
		return ckpt_error_errno(err, errno, "cannot make %s", path);
	rc = safetensors_write(l, f);
	if (fclose(f) != 0 && rc == 0)
		rc = -EIO;
	return rc < 0 ? ckpt_error(err, rc, "cannot write %s", path) : 0;
}

/* The tensors of the checkpoint, each with its layout on this side. */
static int side_declare(const struct layouts *l, const struct table *disk, int side,
			struct table *ret, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < disk->ntensor && rc == 0; i++) {
		struct table_tensor x = disk->tensor[i];
		uint32_t n = (uint32_t)strtoul(x.name + 1, NULL, 10);
		struct layout layout = l->tensor[n].side[side].layout;

		rc = table_add_mesh(ret, &l->tensor[n].side[side].mesh, &layout.mesh, err);
		if (rc == 0)
			rc = table_add_layout(ret, &layout, &x.layout, err);
		if (rc == 0)
			rc = table_add_tensor(ret, &x, NULL, err);
	}
	return rc == 0 ? table_seal(ret, err) : rc;
}

int exchange_job_layouts(char *const *path, uint32_t n, uint64_t numel_max,
			 struct exchange_job *ret, struct ckpt_err *err)
{
	struct layouts l = { 0 };
	char file[PATH_MAX];
	int rc = 0;

	ret->numel_max = numel_max;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = layouts_read(&l, path[i], ret, err);
	if (rc == 0 && !l.n)
		rc = ckpt_error(err, -EINVAL, "no line of %s and the other files asks for a layout",
				path[0]);
	if (rc == 0)
		rc = layouts_pair(&l, err);
	if (rc == 0)
		rc = checkpoint_write(&l, ret, file, sizeof file, err);
	if (rc == 0)
		rc = disk_open(file, ret, err);
	for (int s = 0; s < 2 && rc == 0; s++)
		rc = side_declare(&l, &ret->disk.ckpt->table, s, &ret->own[s], err);
	free(l.tensor);
	arena_free(&l.arena);
	if (rc < 0)
		return rc;
	ret->from = &ret->own[0];
	ret->to = &ret->own[1];
	return job_settle(ret, err);
}
