/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_files.c - safetensors files of ranks, filled window by window. Called by verb_restore.c.
 * Invariant: a file has its final name only when it is whole, synced, and all others are too; and
 * only files that this run made are ever removed.
 */
#include "ckpt/cli/rank_files.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/move/cast.h"
#include "ckpt/table/target.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/resource.h>

#define FILES_MAX 1024u	    /* open at once */
#define PIECES_MAX 2000000u /* of one batch: their sets are in memory */
#define WRITE_BYTES (8u << 20)
#define CAST_BYTES (1u << 20) /* of cast elements, at once */
#define NONCES 16	      /* names that are tried */
#define TEMP_MARK ".tmp-"

/* Ranks whose files are written in one go. */
struct batch {
	struct rank_files *f;
	uint32_t first, n;  /* files */
	struct table table; /* target_ranks */
	uint64_t *at;	    /* [npiece]: where it begins in its file */
	int *fd;	    /* [n] */
	uint8_t *cast;	    /* CAST_BYTES; NULL: nothing is cast */
	uint32_t nopen;
	/* The first error of a write; what move_windows says comes after it. */
	int rc;
	struct ckpt_err err;
	move_tick_fn *tick;
	void *tick_arg;
};

void rank_file_name(uint32_t rank, char ret_name[RANK_FILE_NAME_MAX])
{
	snprintf(ret_name, RANK_FILE_NAME_MAX, "rank-%05u.safetensors", rank);
}

bool rank_file_is_temp(const char *name)
{
	return !strncmp(name, ".rank-", 6) && strstr(name, TEMP_MARK);
}

/* --- one file's header --- */

/* Does an ONLY put the tensor elsewhere? */
static bool lives_elsewhere(const struct table *t, const struct table_tensor *x,
			    const uint32_t *coord)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];

	for (uint32_t i = 0; l && i < l->nplace; i++)
		if (l->place[i].how == CKPT_ONLY &&
		    coord[l->place[i].mesh_dim] != l->place[i].split_factor)
			return true;
	return false;
}

/* The piece of a tensor that rank holds; TABLE_NONE. */
static uint32_t piece_of(const struct table *t, uint32_t tensor, uint32_t rank)
{
	uint32_t low = t->first[tensor], high = t->first[tensor + 1];

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (t->piece[mid].rank < rank)
			low = mid + 1;
		else
			high = mid;
	}
	return low < t->first[tensor + 1] && t->piece[low].rank == rank ? low : TABLE_NONE;
}

static int local_shape(const struct table *t, const struct table_tensor *x, uint32_t piece,
		       const uint32_t *coord, struct arena *a, const uint64_t **ret)
{
	static const struct layout whole;
	struct indexset set;
	uint64_t *shape = arena_array(a, (size_t)x->ndim + 1, sizeof *shape);
	int rc = 0;

	if (!shape)
		return -ENOMEM;
	if (piece != TABLE_NONE)
		set = t->piece[piece].set;
	else
		rc = layout_share(&t->mesh[0],
				  x->layout == TABLE_NONE ? &whole : &t->layout[x->layout], x->ndim,
				  x->shape, coord, a, &set);
	for (uint32_t d = 0; !rc && d < x->ndim; d++)
		shape[d] = set.dim[d].total;
	*ret = shape;
	return rc;
}

/* What the file calls the elements. */
static uint32_t dtype_in(const struct rank_files *f, const struct table_tensor *x)
{
	bool casts = f->as.dtype && !(x->flags & TENSOR_BLOB) && cast_known(x->dtype, f->as.dtype);

	return casts ? f->as.dtype : x->dtype;
}

/* component/name, or the name, and whose it is where it is another rank's. */
static const char *key_of(const struct table_tensor *x, bool bare, uint32_t rank, struct arena *a)
{
	const char *component = bare ? "" : x->component;
	size_t bytes = strlen(x->component) + strlen(x->name) + 32;
	char *s = arena_alloc(a, bytes);
	int n;

	if (!s)
		return NULL;
	n = snprintf(s, bytes, "%s%s%s", component, *component ? "/" : "", x->name);
	if (x->rank != TABLE_NONE && x->rank != rank)
		snprintf(s + n, bytes - (size_t)n, "/rank-%05u", x->rank);
	return s;
}

/* The tensors of a rank's file, and the piece of each. Both in the arena. */
static int list_tensors(const struct batch *b, struct rank_file *file, struct arena *a,
			struct safetensors_tensor **ret, uint32_t **ret_piece)
{
	const struct table *t = &b->table;
	uint32_t world = t->mesh[0].nrank, coord[CKPT_DIMS_MAX], n = 0;
	struct safetensors_tensor *y = arena_array(a, (size_t)t->ntensor + 1, sizeof *y);
	uint32_t *piece = arena_array(a, (size_t)t->ntensor + 1, sizeof *piece);
	int rc = 0;

	if (!y || !piece)
		return -ENOMEM;
	if (!mesh_coord(&t->mesh[0], file->rank, coord))
		return -EINVAL;
	file->nblob_other = 0;
	file->source_bytes = 0;
	for (uint32_t i = 0; i < t->ntensor && !rc; i++) {
		const struct table_tensor *x = &t->tensor[i];

		if (x->cls == CKPT_SINK || lives_elsewhere(t, x, coord) ||
		    (x->rank != TABLE_NONE && x->rank % world != file->rank))
			continue;
		file->nblob_other += x->rank != TABLE_NONE && x->rank != file->rank;
		piece[n] = piece_of(t, i, file->rank);
		if (piece[n] != TABLE_NONE)
			file->source_bytes += t->piece[piece[n]].set.numel * x->elem_bytes;
		y[n] = (struct safetensors_tensor){ .name = key_of(x, b->f->as.bare, file->rank, a),
						    .dtype = dtype_in(b->f, x),
						    .ndim = x->ndim };
		rc = y[n].name ? local_shape(t, x, piece[n], coord, a, &y[n].shape) : -ENOMEM;
		n++;
	}
	file->ntensor = n;
	*ret = y;
	*ret_piece = piece;
	return rc;
}

static int make_head(const struct batch *b, struct rank_file *file, struct arena *a,
		     struct safetensors_head *ret, struct ckpt_errlist *list, struct ckpt_err *err)
{
	const struct checkpoint *k = b->f->ckpt;
	char mesh[1024], step[24], rank[16];
	struct safetensors_meta meta[8 + RANK_FILES_META_MAX] = { { "format", "pt" },
								  { "ckptd", CLI_VERSION } };
	struct safetensors_tensor *y;
	uint32_t nmeta = 2, *piece;
	int rc = list_tensors(b, file, a, &y, &piece);

	if (rc)
		return ckpt_error(err, rc, "no memory for the list of rank %u's tensors",
				  file->rank);
	snprintf(step, sizeof step, "%llu", (unsigned long long)k->step);
	snprintf(rank, sizeof rank, "%u", file->rank);
	if (*k->job)
		meta[nmeta++] = (struct safetensors_meta){ "job", k->job };
	meta[nmeta++] = (struct safetensors_meta){ "step", step };
	if (*k->id)
		meta[nmeta++] = (struct safetensors_meta){ "checkpoint", k->id };
	meta[nmeta++] = (struct safetensors_meta){ "mesh", mesh_print(&b->table.mesh[0], mesh,
								      sizeof mesh) };
	meta[nmeta++] = (struct safetensors_meta){ "rank", rank };
	if (b->f->as.dtype)
		meta[nmeta++] = (struct safetensors_meta){ "dtype", dtype_name(b->f->as.dtype) };
	assert(b->f->as.nmeta <= RANK_FILES_META_MAX);
	for (uint32_t i = 0; i < b->f->as.nmeta; i++)
		meta[nmeta++] = b->f->as.meta[i];
	rc = safetensors_make(y, file->ntensor, meta, nmeta, 8, a, ret, list, err);
	if (rc)
		return rc;
	file->bytes = ret->file_bytes;
	file->data_bytes = ret->file_bytes - ret->len;
	for (uint32_t i = 0; i < file->ntensor; i++)
		if (piece[i] != TABLE_NONE)
			b->at[piece[i]] = y[i].off;
	return 0;
}

/* --- batches --- */

static void batch_free(struct batch *b)
{
	for (uint32_t i = 0; i < b->nopen; i++)
		if (b->fd[i] >= 0)
			(void)b->f->ops->close(b->f->ops->ctx, b->fd[i]);
	free(b->cast);
	free(b->fd);
	free(b->at);
	table_free(&b->table);
}

/* batch_free in any case. */
static int batch_make(struct rank_files *f, uint32_t first, struct batch *b, struct ckpt_err *err)
{
	int rc;

	*b = (struct batch){ .f = f, .first = first, .n = MIN(f->nbatch, f->n - first) };
	rc = target_ranks(f->target, f->file[first].rank, b->n, &b->table, err);
	if (rc)
		return rc;
	b->fd = calloc(b->n, sizeof *b->fd);
	b->at = calloc((size_t)b->table.npiece + 1, sizeof *b->at);
	b->cast = f->as.dtype ? malloc(CAST_BYTES) : NULL;
	return b->fd && b->at && (b->cast || !f->as.dtype)
		       ? 0
		       : ckpt_error(err, -ENOMEM, "out of memory for %u files", b->n);
}

/* As many files as may be open besides the source's, and as their tensors' sets take no more memory
 * than is decent. */
static uint32_t batch_files(const struct checkpoint *k, const struct table *target, uint32_t n)
{
	struct rlimit limit = { .rlim_cur = 256 };
	uint64_t files = 1, used = (uint64_t)k->nfile + 64, pieces = (uint64_t)target->ntensor + 1;

	(void)getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur > used)
		files = MIN((uint64_t)limit.rlim_cur - used, (uint64_t)FILES_MAX);
	files = MIN(files, PIECES_MAX / pieces);
	files = MAX(files, UINT64_C(1));
	return (uint32_t)MIN(files, (uint64_t)n);
}

/* --- what they will be --- */

static int survey(struct rank_files *f, uint32_t first, struct ckpt_errlist *list,
		  struct ckpt_err *err)
{
	struct batch b;
	int rc = batch_make(f, first, &b, err);

	for (uint32_t i = 0; i < b.n && !rc; i++) {
		struct rank_file *file = &f->file[first + i];
		struct safetensors_head head;
		struct arena a = { 0 };

		rc = cli_stopped() ? ckpt_error(err, -ECANCELED, "interrupted")
				   : make_head(&b, file, &a, &head, list, err);
		arena_free(&a);
		if (!rc && (ckpt_add(f->bytes, file->bytes, &f->bytes) ||
			    ckpt_add(f->data_bytes, file->data_bytes, &f->data_bytes) ||
			    ckpt_add(f->source_bytes, file->source_bytes, &f->source_bytes)))
			rc = ckpt_error(err, -EOVERFLOW, "the files' sizes cannot be counted");
	}
	batch_free(&b);
	return rc;
}

/* What no rank's file can hold is told once, not per rank. */
static int check_dtypes(const struct rank_files *f, struct ckpt_errlist *list, struct ckpt_err *err)
{
	char name[2 * CKPT_NAME_MAX + 64];

	for (uint32_t i = 0; i < f->target->ntensor; i++) {
		const struct table_tensor *x = &f->target->tensor[i];

		if (x->cls != CKPT_SINK && !safetensors_dtype(x->dtype))
			ckpt_errlist_add(list, "tensor %s: the format has no dtype %s",
					 table_tensor_print(x, name, sizeof name),
					 dtype_name(x->dtype));
	}
	return ckpt_errlist_end(list, err, "safetensors cannot hold this");
}

int rank_files_make(const struct io_ops *ops, const struct checkpoint *k,
		    const struct table *target, const struct rank_files_as *as, uint32_t first,
		    uint32_t n, struct rank_files *ret, struct ckpt_errlist *ret_list,
		    struct ckpt_err *err)
{
	int rc;

	*ret = (struct rank_files){ .ops = ops, .ckpt = k, .target = target, .as = *as, .n = n };
	ret->file = calloc(n, sizeof *ret->file);
	if (as->dtype)
		ret->overflow = calloc((size_t)target->ntensor + 1, sizeof *ret->overflow);
	if (!ret->file || (as->dtype && !ret->overflow))
		return ckpt_error(err, -ENOMEM, "out of memory for %u files", n);
	for (uint32_t i = 0; i < n; i++) {
		ret->file[i].rank = first + i;
		rank_file_name(first + i, ret->file[i].name);
		if (as->alone)
			strcpy(ret->file[i].name, RANK_FILE_ALONE);
	}
	ret->nbatch = batch_files(k, target, n);
	rc = check_dtypes(ret, ret_list, err);
	for (uint32_t i = 0; i < n && !rc; i += ret->nbatch)
		rc = survey(ret, i, ret_list, err);
	return rc;
}

/* --- writing --- */

static int file_error(struct ckpt_err *err, int rc, const struct rank_file *file, const char *what)
{
	return ckpt_error_errno(err, -rc, "%s cannot be %s", file->name, what);
}

static int file_create(struct batch *b, struct rank_file *file, int dir_fd, int *ret_fd,
		       struct ckpt_err *err)
{
	const struct io_ops *ops = b->f->ops;
	char name[RANK_FILE_NAME_MAX];
	uint32_t nonce = 0;
	int rc = -EEXIST;

	rank_file_name(file->rank, name);
	for (uint32_t i = 0; i < NONCES && rc == -EEXIST; i++) {
		if (getrandom(&nonce, sizeof nonce, GRND_NONBLOCK) != sizeof nonce)
			nonce += (uint32_t)now_ns();
		snprintf(file->temp, sizeof file->temp, ".%s" TEMP_MARK "%08x", name, nonce);
		rc = ops->open(ops->ctx, dir_fd, file->temp, O_WRONLY | O_CREAT | O_EXCL, 0666);
	}
	if (rc < 0) {
		file->temp[0] = 0;
		return file_error(err, rc, file, "created");
	}
	*ret_fd = rc;
	/* All of it now, so that a full disk is found before the work, not behind it. */
	rc = ops->fallocate(ops->ctx, *ret_fd, file->bytes);
	if (rc == -EOPNOTSUPP)
		rc = ops->truncate(ops->ctx, *ret_fd, file->bytes);
	return rc ? file_error(err, rc, file, "given its size") : 0;
}

static int file_begin(struct batch *b, uint32_t i, int dir_fd, struct ckpt_err *err)
{
	struct rank_file *file = &b->f->file[b->first + i];
	struct safetensors_head head;
	struct arena a = { 0 };
	int rc = make_head(b, file, &a, &head, NULL, err);

	b->fd[i] = -1;
	b->nopen = i + 1;
	if (!rc)
		rc = b->rc = file_create(b, file, dir_fd, &b->fd[i], err);
	if (!rc) {
		rc = b->rc = io_pwrite_all(b->f->ops, b->fd[i], head.bytes, head.len, 0);
		if (rc)
			file_error(err, rc, file, "written");
	}
	arena_free(&a);
	return rc;
}

static int put(struct batch *b, uint32_t place, const uint8_t *p, uint64_t len, uint64_t off)
{
	for (uint64_t done = 0; done < len;) {
		uint64_t n = MIN(len - done, (uint64_t)WRITE_BYTES);
		int rc = b->tick && b->tick(b->tick_arg, 0) ? -ECANCELED : 0;

		if (rc)
			return rc;
		rc = io_pwrite_all(b->f->ops, b->fd[place], p + done, n, off + done);
		if (rc) {
			b->rc = rc;
			return file_error(&b->err, rc, &b->f->file[b->first + place], "written");
		}
		done += n;
	}
	return 0;
}

static bool is_cast(const struct batch *b, uint32_t piece)
{
	const struct table_tensor *x = &b->table.tensor[b->table.piece[piece].tensor];

	return dtype_in(b->f, x) != x->dtype;
}

/* The elements of a cut as the file has them. */
static int put_cast(struct batch *b, const struct window_cut *c, const uint8_t *p)
{
	const struct table_piece *piece = &b->table.piece[c->piece];
	const struct table_tensor *x = &b->table.tensor[piece->tensor];
	uint32_t to = b->f->as.dtype, elem = dtype_bytes(to);
	uint64_t at = (c->dst_off - piece->off) / x->elem_bytes, all = c->len / x->elem_bytes;

	for (uint64_t done = 0, n; done < all; done += n) {
		const uint8_t *from = p + done * x->elem_bytes;
		int rc;

		n = MIN(all - done, (uint64_t)CAST_BYTES / elem);
		cast(x->dtype, from, to, b->cast, n);
		b->f->overflow[piece->tensor] += cast_overflows(x->dtype, from, to, b->cast, n);
		rc = put(b, c->place, b->cast, n * elem, b->at[c->piece] + (at + done) * elem);
		if (rc)
			return rc;
	}
	return 0;
}

/* Cuts come sorted by (place, offset in it); what lies side by side in both is written at once. */
static int on_window(void *arg, const struct window *w, const uint8_t *buf)
{
	struct batch *b = arg;

	for (uint32_t i = 0; i < w->ncut;) {
		const struct window_cut *c = &w->cut[i];
		uint64_t len = c->len, off;
		int rc;

		if (is_cast(b, c->piece)) {
			rc = put_cast(b, c, buf + c->buf_off);
			if (rc)
				return rc;
			i++;
			continue;
		}
		off = b->at[c->piece] + (c->dst_off - b->table.piece[c->piece].off);
		for (i++; i < w->ncut; i++) {
			const struct window_cut *d = &w->cut[i];

			if (is_cast(b, d->piece) || d->place != c->place ||
			    d->buf_off != c->buf_off + len ||
			    b->at[d->piece] + (d->dst_off - b->table.piece[d->piece].off) !=
				    off + len)
				break;
			len += d->len;
		}
		rc = put(b, c->place, buf + c->buf_off, len, off);
		if (rc)
			return rc;
	}
	return 0;
}

static int batch_end(struct batch *b, struct ckpt_err *err)
{
	const struct io_ops *ops = b->f->ops;

	for (uint32_t i = 0; i < b->n; i++) {
		const struct rank_file *file = &b->f->file[b->first + i];
		int fd = TAKE_FD(b->fd[i]), rc = ops->sync(ops->ctx, fd);
		int closed = ops->close(ops->ctx, fd);

		b->rc = rc ? rc : closed;
		if (b->rc)
			return file_error(err, b->rc, file, "synced to the disk");
		if (b->tick && b->tick(b->tick_arg, 0))
			return ckpt_error(err, -ECANCELED, "interrupted");
	}
	return 0;
}

static int batch_write(struct batch *b, int dir_fd, const struct move_files *from,
		       uint64_t mem_limit, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < b->n && !rc; i++)
		rc = file_begin(b, i, dir_fd, err);
	if (!rc)
		rc = move_windows(from, &b->table, mem_limit, 0, on_window, b, b->tick, b->tick_arg,
				  err);
	if (b->rc && b->err.msg[0] && err)
		*err = b->err;
	return rc ? rc : batch_end(b, err);
}

int rank_files_write(struct rank_files *f, int dir_fd, const struct move_files *from,
		     uint64_t mem_limit, move_tick_fn *tick, void *tick_arg, bool *ret_write,
		     struct ckpt_err *err)
{
	int rc = 0;

	*ret_write = false;
	for (uint32_t i = 0; i < f->n && !rc; i += f->nbatch) {
		struct batch b;

		rc = batch_make(f, i, &b, err);
		b.tick = tick;
		b.tick_arg = tick_arg;
		if (!rc)
			rc = batch_write(&b, dir_fd, from, mem_limit, err);
		*ret_write = b.rc != 0;
		batch_free(&b);
	}
	return rc;
}

int rank_files_publish(struct rank_files *f, int dir_fd, struct ckpt_err *err)
{
	int rc;

	for (uint32_t i = 0; i < f->n; i++) {
		struct rank_file *file = &f->file[i];

		rc = f->ops->rename(f->ops->ctx, dir_fd, file->temp, file->name);
		if (rc == -EEXIST)
			return ckpt_error(err, -EBUSY,
					  "another process made %s meanwhile: it writes to this "
					  "directory too",
					  file->name);
		if (rc)
			return file_error(err, rc, file, "given its name");
		file->published = true;
		file->temp[0] = 0;
	}
	rc = f->ops->sync(f->ops->ctx, dir_fd);
	if (rc)
		return ckpt_error_errno(err, -rc, "the directory cannot be synced to the disk");
	for (uint32_t i = 0; i < f->n; i++)
		f->file[i].published = false;
	return 0;
}

void rank_files_drop(struct rank_files *f, int dir_fd)
{
	for (uint32_t i = 0; i < f->n && f->file; i++) {
		struct rank_file *file = &f->file[i];

		if (file->temp[0])
			(void)f->ops->unlink(f->ops->ctx, dir_fd, file->temp, false);
		if (file->published)
			(void)f->ops->unlink(f->ops->ctx, dir_fd, file->name, false);
		file->temp[0] = 0;
		file->published = false;
	}
}

void rank_files_free(struct rank_files *f)
{
	free(f->file);
	free(f->overflow);
	*f = (struct rank_files){ 0 };
}
