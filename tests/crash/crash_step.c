/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_step.c - see crash_step.h.
 * Invariant: the bytes that a step must have are in memory before the store has seen the last of
 * them.
 */
#include "tests/crash/crash_step.h"
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include "ckpt/base/util.h"
#include "ckpt/store/store_impl.h"
#include "tests/lib/row.h"
#include "tests/lib/io_faults.h"
#include "formats/native/native.h"

#define CRASH_ELEMENTS 700 /* float32, sharded over both ranks */
#define CRASH_PART_TRIES 2

/* Those that are there: what a test that failed leaves goes when its process ends. */
static struct {
	char path[200];
	pid_t maker;
} left[16];

__attribute__((destructor)) static void places_end(void)
{
	for (uint32_t i = 0; i < ARRAY_LEN(left); i++)
		if (left[i].path[0] && left[i].maker == getpid())
			(void)io_tree_remove(AT_FDCWD, left[i].path);
}

static bool in_memory(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

void place_make(struct place *p)
{
	const char *tmp = getenv("TMPDIR");

	tmp = tmp ? tmp : "/tmp";
	if (!in_memory(tmp) && in_memory("/dev/shm") && access("/dev/shm", W_OK) == 0)
		tmp = "/dev/shm";
	(void)snprintf(p->path, sizeof p->path, "%s/ckpt-crash-XXXXXX", tmp);
	if (!mkdtemp(p->path))
		abort();
	p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->fd < 0)
		abort();
	for (uint32_t i = 0; i < ARRAY_LEN(left); i++)
		if (!left[i].path[0] || i + 1 == ARRAY_LEN(left)) {
			memcpy(left[i].path, p->path, sizeof p->path);
			left[i].maker = getpid();
			break;
		}
}

void place_remove(struct place *p)
{
	for (uint32_t i = 0; i < ARRAY_LEN(left); i++)
		if (strcmp(left[i].path, p->path) == 0)
			left[i].path[0] = 0;
	(void)close(p->fd);
	(void)io_tree_remove(AT_FDCWD, p->path);
}

void crash_step_free(struct crash_step *c)
{
	for (uint32_t i = 0; i < ARRAY_LEN(c->file); i++)
		free(TAKE(c->file[i].bytes));
	free(TAKE(c->base.bytes));
}

/* --- contents --- */

/* A const tensor that the first rank alone has. */
static int base_declare(const struct mesh *m, uint32_t mesh, uint32_t rank, struct table *ret,
			struct arena *a, struct ckpt_err *err)
{
	struct table_place place =
		ROW(.name = "base", .rank = rank, .bytes = CRASH_ELEMENTS * sizeof(float));
	struct ckpt_placement only = { .how = CKPT_ONLY };
	struct layout l = { .mesh = mesh, .nplace = 1, .place = &only };
	struct table_piece piece = { .rank = rank };
	struct table_tensor x =
		ROW(.component = "model", .name = "base", .of = "", .dtype = CKPT_F32,
		    .role = CKPT_PARAM, .cls = CKPT_CONST, .rank = TABLE_NONE, .ndim = 1,
		    .shape = (const uint64_t[]){ CRASH_ELEMENTS });
	int r = table_add_layout(ret, &l, &x.layout, err);

	if (!r)
		r = table_add_tensor(ret, &x, &piece.tensor, err);
	if (!r)
		r = table_add_place(ret, &place, &piece.place, err);
	if (!r)
		r = layout_share(m, &l, 1, x.shape, &rank, a, &piece.set);
	return r ? r : table_add_piece(ret, &piece, err);
}

static int model_declare(uint32_t rank, bool base, struct table *ret, struct arena *a,
			 struct ckpt_err *err)
{
	struct table_place place =
		ROW(.name = "mem", .rank = rank, .bytes = CRASH_ELEMENTS * sizeof(float));
	struct ckpt_placement cut = { .how = CKPT_SHARD, .split_factor = 1 };
	struct table_piece piece = { .rank = rank };
	struct table_tensor x = ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_F32,
				    .role = CKPT_PARAM, .rank = TABLE_NONE, .ndim = 1,
				    .shape = (const uint64_t[]){ CRASH_ELEMENTS });
	struct layout l = { .nplace = 1, .place = &cut };
	struct mesh m;
	int r = mesh_parse("fsdp=2", a, &m, err);

	if (!r)
		r = table_add_mesh(ret, &m, &l.mesh, err);
	if (!r)
		r = table_add_layout(ret, &l, &x.layout, err);
	if (!r)
		r = table_add_tensor(ret, &x, &piece.tensor, err);
	if (!r)
		r = table_add_place(ret, &place, &piece.place, err);
	if (!r)
		r = layout_share(&m, &l, 1, x.shape, &rank, a, &piece.set);
	if (!r)
		r = table_add_piece(ret, &piece, err);
	if (!r && base)
		r = base_declare(&m, l.mesh, rank, ret, a, err);
	return r ? r : table_seal(ret, err);
}

static uint32_t model_value(uint64_t step, uint64_t index)
{
	return (uint32_t)(step * 2654435761u) ^ (uint32_t)(index * 40503u + 1);
}

/* One piece in one chunk: the whole part as one buffer. */
static int part_encode(const struct native_info *info, uint32_t rank, struct table *t,
		       struct native_part *ret_part, struct crash_file *ret, struct ckpt_err *err)
{
	struct table_piece *p = &t->piece[0];
	cleanup_free struct chunk *chunk = NULL;
	cleanup_free void *tail = NULL;
	uint64_t nchunk, data_end, tail_len;
	struct ck_head head;
	uint32_t *value;
	int r = chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &nchunk, &data_end, err);

	if (r)
		return r;
	assert(t->npiece == 1 && nchunk == 1);
	ret->bytes = calloc(1, data_end);
	if (!ret->bytes)
		return -ENOMEM;
	value = (uint32_t *)(void *)(ret->bytes + chunk[0].off);
	for (uint64_t i = 0; i < p->set.numel; i++)
		value[i] = model_value(info->step, p->set.dim[0].run[0].start + i);
	p->fp = fingerprint(value, p->set.numel, 4, p->set.dim[0].run[0].start);
	p->fp_known = true;
	chunk[0].raw_hash = hash128(value, chunk[0].raw_len);
	native_part_head(info, rank, &head);
	memcpy(ret->bytes, &head, sizeof head);
	r = native_part_tail(info, rank, t, chunk, nchunk, data_end, &tail, &tail_len,
			     &ret_part->root, err);
	if (r)
		return r;
	ret->len = data_end + tail_len;
	ret->bytes = realloc(ret->bytes, ret->len);
	if (!ret->bytes)
		return -ENOMEM;
	memcpy(ret->bytes + data_end, tail, tail_len);
	ret_part->rank = rank;
	ret_part->kind = info->role ? info->role->kind : PART_MAIN;
	ret_part->step = info->step;
	ret_part->generation = info->generation;
	native_part_uuid(info, rank, ret_part->uuid);
	ret_part->file_bytes = ret->len;
	ret_part->raw_bytes = t->place[0].bytes;
	ret_part->table = t;
	return 0;
}

/* --- writing --- */

/* Three writes, so that a crash can come between them. */
static int part_put(const struct io_ops *ops, int fd, const struct crash_file *f)
{
	uint64_t cut[4] = { 0, f->len / 3, f->len / 2, f->len };
	struct io_req req[3];
	struct io_queue *q;
	int r = io_queue_open(ops, IO_INLINE, 3, &q, NULL);

	if (r)
		return r;
	for (uint32_t i = 0; i < 3; i++) {
		struct io_req *done;

		req[i] = (struct io_req)ROW(.fd = fd, .write = true, .buf = f->bytes + cut[i],
					    .len = cut[i + 1] - cut[i], .off = cut[i]);
		if (r)
			continue;
		r = io_submit(q, &req[i]);
		done = r ? NULL : io_reap(q);
		if (done && done->res < 0)
			r = (int)done->res;
	}
	io_queue_close(q);
	return r;
}

static int part_write(struct store_txn *x, const struct io_ops *ops, uint32_t rank,
		      struct crash_file *f, struct store_part_id *ret_id, struct ckpt_err *err)
{
	bool direct = false;
	int fd, r = store_part_create(x, rank, f->len + 4096, &direct, f->name, &fd, err);

	if (r)
		return r;
	r = part_put(ops, fd, f);
	if (r) {
		store_part_drop(x, f->name, fd);
		return ckpt_error(err, r, "part %s could not be written", f->name);
	}
	return store_part_finish(x, f->name, fd, f->len, ret_id, err);
}

static struct native_info info_of(uint64_t step, uint64_t seq, uint64_t generation)
{
	struct native_info info = ROW(.job = CRASH_JOB, .step = step, .generation = generation,
				      .wall_ns = 1700000000 * NS_PER_S + seq, .world = CRASH_WORLD);

	memcpy(info.uuid, &step, sizeof step);
	memcpy(info.uuid + 8, &seq, sizeof seq);
	return info;
}

/* Its bytes follow from the step for which it was written. */
static void base_encode(const struct table *decl, struct crash_step *c, struct native_part *part,
			struct table *t, struct ckpt_err *err)
{
	const struct native_role role = { .kind = PART_CONST };
	struct native_info info = info_of(c->base_step, c->base_seq, c->base_generation);
	int r;

	info.role = &role;
	free(TAKE(c->base.bytes));
	table_free(t);
	r = native_part_table_of(decl, 0, NATIVE_CONST, t, NULL, err);
	if (!r)
		r = part_encode(&info, 0, t, part, &c->base, err);
	assert(!r);
}

static int base_link(struct store *s, struct store_txn *x, const struct crash_step *from,
		     struct crash_step *c, struct ckpt_err *err)
{
	char dir[STORE_DIR_MAX];
	int fd, r;

	store_name_step(from->step, dir);
	r = store_step_open(s, dir, &fd, err);
	if (r)
		return r;
	r = store_part_link(x, 0, fd, from->base.name, &from->base_id, c->base.name, err);
	store_unlock(s->ops, fd);
	c->base_id = from->base_id;
	return r;
}

static int base_make(struct store *s, struct store_txn *x, const struct table *decl,
		     const struct crash_step *from, struct crash_step *c, struct native_part *part,
		     struct table *t, struct ckpt_err *err)
{
	int r = -EXDEV;

	if (from) {
		c->base_step = from->base_step;
		c->base_seq = from->base_seq;
		c->base_generation = from->base_generation;
		base_encode(decl, c, part, t, err);
		r = base_link(s, x, from, c, err);
	}
	if (r == -EXDEV) {
		c->base_step = c->step;
		c->base_seq = c->seq;
		c->base_generation = c->generation;
		base_encode(decl, c, part, t, err);
		r = part_write(x, s->ops, 0, &c->base, &c->base_id, err);
	}
	memcpy(part->name, c->base.name, sizeof part->name);
	return r;
}

/* part, t: [CRASH_WORLD + 1], the last is the const one, if there is one. */
static int parts_write(struct store *s, struct store_txn *x, struct native_info *info, bool base,
		       const struct crash_step *from, struct native_part *part,
		       struct crash_step *c, struct table *t, struct arena *a, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int r = 0;

	for (uint32_t rank = 0; !r && rank < CRASH_WORLD; rank++) {
		struct native_role role = { .nsource = base && rank == 0,
					    .source = &part[CRASH_WORLD] };
		struct table decl = { .ntensor = 0 };

		r = model_declare(rank, base, &decl, a, err);
		assert(!r);
		if (role.nsource)
			r = base_make(s, x, &decl, from, c, &part[CRASH_WORLD], &t[CRASH_WORLD],
				      err);
		if (r) {
			table_free(&decl);
			break;
		}
		r = native_part_table_of(&decl, rank, base ? NATIVE_MAIN : NATIVE_WHOLE, &t[rank],
					 &list, err);
		info->role = &role;
		if (!r)
			r = part_encode(info, rank, &t[rank], &part[rank], &c->file[rank], err);
		info->role = NULL;
		table_free(&decl);
		assert(!r); /* it has not touched the disk */
		for (uint32_t i = 0; i < CRASH_PART_TRIES; i++) {
			r = part_write(x, s->ops, rank, &c->file[rank], NULL, err);
			if (!r)
				break;
		}
		memcpy(part[rank].name, c->file[rank].name, sizeof part[rank].name);
	}
	ckpt_errlist_free(&list);
	return r;
}

/* The newest committed step up to `rewind`, past whatever the test does to calls. */
static void parent_look(const struct store *s, uint64_t rewind, struct native_lineage *ret)
{
	const struct store by_hand = {
		.ops = &io_ops_posix, .format = &format_native, .root_fd = -1, .job_fd = s->job_fd
	};
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err err;
	uint32_t n = 0;

	if (rewind == UINT64_MAX || store_scan(&by_hand, false, &st, &n, &err))
		return;
	for (uint32_t i = 0; i < n; i++) {
		if (st[i].state != STORE_COMMITTED || st[i].step > rewind)
			continue;
		ret->parent_step = st[i].step;
		memcpy(ret->parent_id, st[i].id, sizeof ret->parent_id);
		return;
	}
}

static int begin_after(struct store *s, uint64_t step, uint64_t seq, uint64_t rewind, bool base,
		       const struct crash_step *from, struct store_txn **ret_txn,
		       struct crash_step *ret, struct ckpt_err *err)
{
	struct native_info info = info_of(step, seq, s->generation);
	struct native_lineage line = { .seq = seq, .parent_step = UINT64_MAX, .tool = "test" };
	struct native_part part[CRASH_WORLD + 1] = { 0 };
	struct table t[CRASH_WORLD + 1] = { 0 };
	struct crash_file *m = &ret->file[CRASH_WORLD];
	struct arena a = { 0 };
	uint8_t id[16];
	void *bytes;
	int r;

	parent_look(s, rewind, &line);
	*ret = (struct crash_step){ .step = step, .seq = seq, .generation = s->generation };
	r = store_begin(s, step, ret_txn, err);
	if (r)
		return r;
	r = parts_write(s, *ret_txn, &info, base, from, part, ret, t, &a, err);
	if (r) {
		store_abort(TAKE(*ret_txn));
	} else {
		r = native_manifest(&info, part, CRASH_WORLD + base, &line, &bytes, &m->len, id,
				    err);
		assert(!r);
		memcpy(m->name, "MANIFEST", 9);
		m->bytes = bytes;
	}
	for (uint32_t i = 0; i <= CRASH_WORLD; i++)
		table_free(&t[i]);
	arena_free(&a);
	return r;
}

int crash_begin(struct store *s, uint64_t step, uint64_t seq, struct store_txn **ret_txn,
		struct crash_step *ret, struct ckpt_err *err)
{
	return begin_after(s, step, seq, UINT64_MAX, false, NULL, ret_txn, ret, err);
}

int crash_save_base(struct store *s, uint64_t step, uint64_t seq, uint64_t rewind,
		    const struct crash_step *from, struct crash_step *ret, struct ckpt_err *err)
{
	struct store_txn *x;
	int r = begin_after(s, step, seq, rewind, true, from, &x, ret, err);

	return r ? r : crash_commit(x, ret, rewind, err);
}

int crash_commit(struct store_txn *x, const struct crash_step *c, uint64_t rewind,
		 struct ckpt_err *err)
{
	const struct crash_file *m = &c->file[CRASH_WORLD];

	return store_commit(x, m->bytes, m->len, rewind, err);
}

int crash_save(struct store *s, uint64_t step, uint64_t seq, uint64_t rewind,
	       struct crash_step *ret, struct ckpt_err *err)
{
	struct store_txn *x;
	int r = begin_after(s, step, seq, rewind, false, NULL, &x, ret, err);

	return r ? r : crash_commit(x, ret, rewind, err);
}

/* --- looking --- */

const char *crash_aside(const struct store *s, uint64_t step, uint64_t seq)
{
	static char dir[STORE_DIR_MAX];
	char front[STORE_DIR_MAX];
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err err;
	uint32_t n = 0;

	dir[0] = 0;
	(void)snprintf(front, sizeof front, ".old-%012" PRIu64 "-s%" PRIu64 "-t", step, seq);
	(void)store_scan(s, true, &st, &n, &err);
	for (uint32_t i = 0; i < n; i++)
		if (strncmp(st[i].dir, front, strlen(front)) == 0)
			memcpy(dir, st[i].dir, sizeof dir);
	return dir;
}

int entry_count(void *arg, const char *name, unsigned char d_type)
{
	uint32_t *n = arg;

	(void)name;
	(void)d_type;
	++*n;
	return 0;
}

static bool file_same(const struct io_ops *ops, int dirfd, const struct crash_file *f,
		      char why[CRASH_WHY])
{
	cleanup_free uint8_t *have = malloc(f->len + 1);
	uint64_t bytes = 0, at = 0;
	int r, fd = ops->open(ops->ctx, dirfd, f->name, O_RDONLY, 0);

	assert(have);
	r = fd < 0 ? fd : ops->size(ops->ctx, fd, &bytes);
	if (!r && bytes == f->len)
		r = io_pread_all(ops, fd, have, f->len, 0);
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (r || bytes != f->len) {
		(void)snprintf(why, CRASH_WHY, "%s: %s, %" PRIu64 " of %" PRIu64 " bytes", f->name,
			       r ? strerror(-r) : "wrong size", bytes, f->len);
		return false;
	}
	if (memcmp(have, f->bytes, f->len) == 0)
		return true;
	while (have[at] == f->bytes[at])
		at++;
	(void)snprintf(why, CRASH_WHY, "%s: byte %" PRIu64 " is not what was written", f->name, at);
	return false;
}

static bool format_opens(const struct io_ops *ops, int dirfd, const struct crash_step *want,
			 char why[CRASH_WHY])
{
	struct checkpoint *c = NULL;
	struct ckpt_err err = { 0 };
	struct source_dir dir;
	bool good;

	if (source_make(ops, dirfd, NULL, 0, &dir))
		return false;
	good = format_native.open(&(struct format_open){ .dir = &dir }, &c, &err) == 0;
	source_end(&dir);
	if (!good)
		(void)snprintf(why, CRASH_WHY, "%.500s", err.msg);
	else if (c->step != want->step || c->seq != want->seq)
		good = !snprintf(why, CRASH_WHY, "it is step %" PRIu64 " seq %" PRIu64, c->step,
				 c->seq);
	if (c)
		checkpoint_free(c);
	return good;
}

bool crash_parts_same(const struct store *s, const char *dir, const struct crash_step *want,
		      char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	bool good = true;
	int fd;

	if (store_step_open(s, dir, &fd, &err)) {
		(void)snprintf(why, CRASH_WHY, "%.500s", err.msg);
		return false;
	}
	for (uint32_t i = 0; good && i < CRASH_WORLD; i++)
		good = file_same(s->ops, fd, &want->file[i], why);
	if (good && want->base.name[0])
		good = file_same(s->ops, fd, &want->base, why);
	store_unlock(s->ops, fd);
	return good;
}

bool crash_step_same(const struct store *s, const char *dir, const struct crash_step *want,
		     char why[CRASH_WHY])
{
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	bool good = true;
	int fd;

	if (store_step_open(s, dir, &fd, &err)) {
		(void)snprintf(why, CRASH_WHY, "%.500s", err.msg);
		return false;
	}
	for (uint32_t i = 0; good && i < ARRAY_LEN(want->file); i++)
		good = file_same(s->ops, fd, &want->file[i], why);
	if (good && want->base.name[0])
		good = file_same(s->ops, fd, &want->base, why);
	(void)s->ops->list(s->ops->ctx, fd, entry_count, &n);
	if (good && n != ARRAY_LEN(want->file) + (want->base.name[0] != 0))
		good = !snprintf(why, CRASH_WHY, "%s has %" PRIu32 " files", dir, n);
	if (good)
		good = format_opens(s->ops, fd, want, why);
	store_unlock(s->ops, fd);
	return good;
}
