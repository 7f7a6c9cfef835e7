/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_mesh.c - what was saved on one mesh is restored on another, element by element: through
 * files with every engine, and from memory to memory; and no chunk is read twice.
 */
#include "tests/unit/test_move_disk.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/statfs.h>

static const char *const meshes[] = { "fsdp=1",	     "fsdp=2",	    "fsdp=3",	   "fsdp=4",
				      "fsdp=5",	     "dp=2,fsdp=2", "dp=3",	   "dp=2,fsdp=3",
				      "tp=2",	     "tp=5",	    "fsdp=2,tp=2", "pp=2,fsdp=2",
				      "tp=2,fsdp=3", "pp=3,tp=2" };
static const enum io_engine engines[] = { IO_INLINE, IO_THREADS, IO_URING, IO_AUTO };
static const char *const engine_names[] = { "inline", "threads", "uring", "auto" };

/* --- a table of system calls that counts reads --- */

struct reads {
	struct io_ops ops;
	pthread_mutex_t lock; /* protects the rest */
	struct {
		int fd;
		uint64_t off, len;
	} at[4096];
	uint32_t n;
};

static int64_t counting_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct reads *r = ctx;

	pthread_mutex_lock(&r->lock);
	assert_true(r->n < ARRAY_LEN(r->at));
	r->at[r->n].fd = fd;
	r->at[r->n].off = off;
	r->at[r->n++].len = len;
	pthread_mutex_unlock(&r->lock);
	return io_ops_posix.pread(NULL, fd, buf, len, off);
}

static void one_mesh_to_another(uint64_t *rng, struct disk *d, const char *from, const char *to,
				uint32_t engine, bool direct)
{
	const struct disk_how how =
		ROW(.ops = &io_ops_posix, .engine = engines[engine], .direct = direct);
	uint64_t seed = draw(rng), step = draw(rng) % 1000;
	struct job a, b;
	struct checkpoint *c;
	struct ckpt_err err = { 0 };

	printf("%s -> %s, %s%s\n", from, to, engine_names[engine], direct ? ", direct" : "");
	job_make(&a, from, seed, 1);
	job_stage(&a, step, draw(rng) % 2 ? 0xcc : 0);
	job_write(&a, d, &how);
	c = disk_open(d);
	job_make(&b, to, seed, 1);
	assert_ok_err(job_restore(&b, d, c, &how, NULL, NULL, &err), &err);
	job_check(&b, step);
	checkpoint_free(c);
	job_free(&a);
	job_free(&b);
	disk_clear(d);
}

TEST(what_any_mesh_saved_any_mesh_restores_from_files)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(16); i++)
		one_mesh_to_another(&rng, &D, meshes[draw(&rng) % ARRAY_LEN(meshes)],
				    meshes[draw(&rng) % ARRAY_LEN(meshes)], i % 4, i / 4 % 2);
}

TEST(what_any_mesh_staged_any_mesh_restores_from_memory)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(12); i++) {
		const char *from = meshes[draw(&rng) % ARRAY_LEN(meshes)],
			   *to = meshes[draw(&rng) % ARRAY_LEN(meshes)];
		uint64_t seed = draw(&rng), step = draw(&rng) % 1000;
		struct table staged = { 0 };
		struct ckpt_errlist list = { 0 };
		struct ckpt_err err = { 0 };
		struct job a, b;
		struct plan p;

		printf("%s -> %s\n", from, to);
		job_make(&a, from, seed, 1);
		job_stage(&a, step, 0);
		for (uint32_t r = 0; r < a.world; r++)
			assert_ok_err(table_merge(&staged, &a.part[r], NULL, &list, &err), &err);
		assert_int_equal(list.n, 0);
		assert_int_equal(table_seal(&staged, &err), 0);
		job_make(&b, to, seed, 1);
		assert_ok_err(plan_make(&staged, &b.all, NULL, &p, NULL, &err), &err);
		assert_int_equal(move_copy(&p, (const void *const *)a.raw, b.base, NULL, NULL), 0);
		job_check(&b, step);
		plan_free(&p);
		/* The other way round every element is in many places at once, and one is used. */
		assert_ok_err(plan_make(&b.all, &staged, NULL, &p, NULL, &err), &err);
		assert_ok(move_copy(&p, (const void *const *)b.base, (void *const *)a.raw, NULL,
				    NULL));
		plan_free(&p);
		table_free(&staged);
		job_free(&a);
		job_free(&b);
	}
}

/* How often the reads cover this byte of the file. */
static uint32_t reads_of(const struct reads *r, int fd, uint64_t off)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n; i++)
		n += r->at[i].fd == fd && off >= r->at[i].off && off < r->at[i].off + r->at[i].len;
	return n;
}

/* Few files: once it is open it stays so. */
static int fd_of(const struct move_files *f, uint32_t i)
{
	int fd = io_files_take(f->files, i);

	assert_true(fd >= 0);
	io_files_give(f->files, i);
	return fd;
}

TEST(every_needed_chunk_is_read_once_and_the_others_are_not)
{
	struct reads *r = calloc(1, sizeof *r);
	const struct disk_how plain = { .ops = &io_ops_posix, .engine = IO_INLINE };
	uint64_t seed = draw_seed(__func__);
	struct ckpt_err err = { 0 };
	struct checkpoint *c;
	struct move_files f;
	struct job a, b;
	struct plan p;

	r->ops = io_ops_posix;
	r->ops.ctx = r;
	r->ops.pread = counting_pread;
	pthread_mutex_init(&r->lock, NULL);
	job_make(&a, "fsdp=2,tp=2", seed, 3);
	job_stage(&a, 5, 0);
	job_write(&a, &D, &plain);
	c = disk_open(&D);
	job_make(&b, "dp=2,fsdp=3", seed, 3);
	for (int only = 0; only < 2; only++) {
		const struct plan_opts o = { .only = only ? "model" : NULL };
		uint32_t untouched = 0, touched = 0;

		assert_ok_err(plan_make(&c->table, &b.all, &o, &p, NULL, &err), &err);
		assert_int_equal(move_open(&r->ops, D.fd, c, false, IO_THREADS, &f, &err), 0);
		r->n = 0;
		assert_ok_err(move_read(&p, &f, b.base, NULL, NULL, &err), &err);
		for (uint32_t i = 0; i < c->nfile; i++)
			for (uint64_t k = 0; k < c->file[i].nchunk; k++) {
				const struct chunk *x = &c->file[i].chunk[k];
				bool model = false, optim = false;

				for (uint32_t n = 0; n < c->table.npiece && x->raw_len; n++) {
					const struct table_piece *q = &c->table.piece[n];
					const char *component =
						c->table.tensor[q->tensor].component;

					if (q->place != i || q->off >= (k + 1) << 20 ||
					    q->off + q->len <= k << 20)
						continue;
					model |= !strcmp(component, "model");
					optim |= !strcmp(component, "optim");
				}
				if (!x->raw_len)
					continue;
				if (model || (optim && !only)) {
					for (uint64_t at = 0; at < x->stored_len; at += 4096)
						assert_int_equal(
							reads_of(r, fd_of(&f, i), x->off + at), 1);
					touched++;
				} else {
					assert_true(reads_of(r, fd_of(&f, i), x->off) <= 1);
					untouched += !reads_of(r, fd_of(&f, i), x->off);
				}
			}
		printf("%u chunks read, %u not\n", touched, untouched);
		assert_true(touched > 4);
		assert_true(!only || untouched > 4);
		move_close(&f);
		plan_free(&p);
	}
	job_check(&b, 5);
	checkpoint_free(c);
	job_free(&a);
	job_free(&b);
	free(r);
}

/* --- file systems without direct I/O --- */

static int no_direct_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	(void)ctx;
	return flags & O_DIRECT ? -EINVAL : io_ops_posix.open(NULL, dirfd, name, flags, mode);
}

static int64_t no_direct_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	(void)ctx;
	return fcntl(fd, F_GETFL) & O_DIRECT ? -EINVAL
					     : io_ops_posix.pread(NULL, fd, buf, len, off);
}

TEST(where_direct_io_is_refused_files_are_read_through_the_cache)
{
	uint64_t seed = draw_seed(__func__);
	struct ckpt_err err = { 0 };
	struct checkpoint *c;
	struct job a;

	job_written(&a, &D, "fsdp=2", seed);
	c = disk_open(&D);
	for (int at_open = 0; at_open < 2; at_open++) {
		struct io_ops ops = io_ops_posix;
		const struct disk_how how = { .ops = &ops, .engine = IO_THREADS, .direct = true };

		if (at_open)
			ops.open = no_direct_open;
		else
			ops.pread = no_direct_pread;
		assert_ok_err(job_restore(&a, &D, c, &how, NULL, NULL, &err), &err);
		job_check(&a, 5);
	}
	checkpoint_free(c);
	job_free(&a);
}

static uint64_t cached_bytes(int fd)
{
	unsigned char in[4096];
	uint64_t bytes, n = 0;
	void *map;

	assert_int_equal(io_ops_posix.size(NULL, fd, &bytes), 0);
	bytes = MIN(bytes, sizeof in * 4096);
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	assert_int_equal(mincore(map, bytes, in), 0);
	for (uint64_t i = 0; i < div_up(bytes, 4096); i++)
		n += 4096 * (in[i] & 1u);
	assert_int_equal(munmap(map, bytes), 0);
	return n;
}

/* A read error past the cache, where the cache still has what was written. */
static int64_t rotten_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	(void)ctx;
	return fcntl(fd, F_GETFL) & O_DIRECT ? -EIO : io_ops_posix.pread(NULL, fd, buf, len, off);
}

TEST(what_is_asked_for_directly_is_never_what_the_page_cache_still_has)
{
	uint64_t seed = draw_seed(__func__), before = 0, read;
	struct io_ops ops = io_ops_posix;
	struct move_files f;
	struct ckpt_err err = { 0 };
	struct checkpoint *c;
	struct statfs fs;
	struct job a;

	job_written(&a, &D, "fsdp=2", seed);
	c = disk_open(&D);
	assert_int_equal(fstatfs(D.fd, &fs), 0);
	ops.pread = rotten_pread;
	assert_int_equal(move_open(&ops, D.fd, c, true, IO_THREADS, &f, &err), 0);
	if (fcntl(fd_of(&f, 0), F_GETFL) & O_DIRECT)
		assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &read, &err), -EIO);
	for (uint32_t i = 0; i < c->nfile; i++) {
		assert_int_equal(io_ops_posix.sync(NULL, fd_of(&f, i)), 0);
		before += cached_bytes(fd_of(&f, i));
	}
	move_close(&f);
	ops = io_ops_posix;
	ops.open = no_direct_open;
	assert_int_equal(move_open(&ops, D.fd, c, true, IO_THREADS, &f, &err), 0);
	for (uint32_t i = 0; i < c->nfile && fs.f_type != 0x01021994; i++)
		assert_int_equal(cached_bytes(fd_of(&f, i)), 0);
	assert_true(before > 0);
	assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &read, &err), 0);
	move_close(&f);
	checkpoint_free(c);
	job_free(&a);
}

UNIT(.setup = disk_setup, .teardown = disk_teardown);
