/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_disk.h - for the tests of move/: the sample model of any mesh, staged, written as a
 * step directory on a real file system, opened, and restored into all ranks of any other mesh at
 * once.
 */
#ifndef CKPT_TEST_MOVE_DISK_H
#define CKPT_TEST_MOVE_DISK_H
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include "daemon/part_file.h"
#include "tests/lib/part_data.h"
#include "tests/lib/row.h"
#include "tests/lib/draw.h"
#include "tests/lib/sample.h"
#include "tests/lib/unit.h"

#define DISK_RANKS_MAX 32

/* --- a directory --- */

struct disk {
	char path[4096];
	int fd;
};

static inline void disk_make(struct disk *d)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(d->path, sizeof d->path, "%s/ckpt-move-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(d->path));
	d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(d->fd >= 0);
}

static inline void disk_clear(struct disk *d)
{
	DIR *dir = fdopendir(openat(d->fd, ".", O_RDONLY | O_DIRECTORY));

	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		if (e->d_name[0] != '.')
			unlinkat(d->fd, e->d_name, 0);
	closedir(dir);
}

static inline void disk_free(struct disk *d)
{
	disk_clear(d);
	rmdir(d->path);
	close(d->fd);
}

/* Of the case that runs, with UNIT(.setup = disk_setup, .teardown = disk_teardown). */
static struct disk D;

static inline int disk_setup(void **state)
{
	(void)state;
	disk_make(&D);
	return 0;
}

static inline int disk_teardown(void **state)
{
	(void)state;
	disk_free(&D);
	return 0;
}

/* --- the formats' view of it --- */

struct disk_source {
	int fd;
};

static inline int disk_source_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	return io_pread_all(&io_ops_posix, ((struct disk_source *)ctx)->fd, buf, len, off);
}

static inline void disk_source_close(void *ctx)
{
	close(((struct disk_source *)ctx)->fd);
	free(ctx);
}

static inline int disk_source_open(void *ctx, const char *name, struct source *ret)
{
	struct disk_source *s = malloc(sizeof *s);
	struct stat st;

	assert_non_null(s);
	s->fd = openat(((struct disk *)ctx)->fd, name, O_RDONLY | O_CLOEXEC);
	if (s->fd < 0) {
		free(s);
		return -errno;
	}
	assert_int_equal(fstat(s->fd, &st), 0);
	*ret = (struct source)ROW(.ctx = s, .bytes = (uint64_t)st.st_size, .read = disk_source_read,
				  .close = disk_source_close);
	return 0;
}

static inline int disk_source_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	DIR *dir = fdopendir(openat(((struct disk *)ctx)->fd, ".", O_RDONLY | O_DIRECTORY));
	int r = 0;

	(void)sub;
	assert_non_null(dir);
	for (struct dirent *e; r == 0 && (e = readdir(dir));)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			r = each(arg, e->d_name, SOURCE_FILE);
	closedir(dir);
	return r;
}

static inline struct checkpoint *disk_open(struct disk *d)
{
	const struct source_dir dir =
		ROW(.ctx = d, .open = disk_source_open, .list = disk_source_list);
	struct checkpoint *c;
	struct ckpt_err err = { 0 };

	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &c, &err), &err);
	return c;
}

/* --- a job's ranks, and their slots --- */

struct job {
	uint32_t world;
	struct sample rank[DISK_RANKS_MAX];
	struct table all;		   /* of all ranks' memory, one place each */
	struct table part[DISK_RANKS_MAX]; /* raw spaces */
	uint8_t *raw[DISK_RANKS_MAX];
	void *base[DISK_RANKS_MAX];
};

/* `make check` looks at fewer (SCALE). Under ThreadSanitizer one thread runs thirty times slower,
 * and more cases show no more races. */
#if defined(__SANITIZE_THREAD__)
#define FEWER(n) ((n) / 6 + 1)
#define EVERY 6
#else
#define FEWER(n) ((uint32_t)unit_scaled(n))
#define EVERY 1
#endif

static inline void job_make(struct job *j, const char *mesh, uint64_t seed, uint64_t scale)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };

	*j = (struct job){ .world = 1 };
	for (uint32_t i = 0; i < j->world; i++) {
		uint32_t place;

		assert_int_equal(sample_make(mesh, i, seed, scale, &j->rank[i]), 0);
		j->world = j->rank[i].world;
		assert_true(j->world <= DISK_RANKS_MAX);
		if (table_merge(&j->all, &j->rank[i].decl, &place, &list, &err) < 0 || list.n)
			fail_msg("%s %s", err.msg, list.text ? list.text : "");
		assert_int_equal(place, i);
		j->base[i] = j->rank[i].mem;
	}
	assert_ok_err(table_seal(&j->all, &err), &err);
}

static inline void job_free(struct job *j)
{
	for (uint32_t i = 0; i < j->world; i++) {
		sample_free(&j->rank[i]);
		table_free(&j->part[i]);
		free(j->raw[i]);
	}
	table_free(&j->all);
}

/* Snapshot every rank into its raw space; bytes of it that no piece has become `fill`. */
static inline void job_stage(struct job *j, uint64_t step, int fill)
{
	for (uint32_t i = 0; i < j->world; i++) {
		struct ckpt_errlist list = { 0 };
		struct ckpt_err err = { 0 };
		const void *src = j->rank[i].mem;
		uint64_t bytes;
		struct plan p;
		void *dst;

		sample_fill(&j->rank[i], step);
		if (!j->raw[i] &&
		    native_part_table(&j->rank[i].decl, i, &j->part[i], &list, &err) < 0)
			fail_msg("%s", err.msg);
		bytes = align_up(j->part[i].place[0].bytes, 4096);
		if (!j->raw[i])
			j->raw[i] = aligned_alloc(4096, bytes ? bytes : 4096);
		assert_non_null(j->raw[i]);
		memset(j->raw[i], fill, bytes);
		dst = j->raw[i];
		assert_ok_err(plan_make(&j->rank[i].decl, &j->part[i],
					&(struct plan_opts){ .memory_blobs = true }, &p, NULL,
					&err),
			      &err);
		assert_int_equal(move_copy(&p, &src, &dst, NULL, NULL), 0);
		plan_free(&p);
	}
}

struct disk_how {
	const struct io_ops *ops;
	enum io_engine engine;
	bool direct;
};

static const struct native_info disk_info = {
	.uuid = { 1, 2, 3 }, .job = "demo", .step = 12, .generation = 3, .wall_ns = 4
};

/* Write what is staged. */
static inline void job_write(struct job *j, struct disk *d, const struct disk_how *how)
{
	struct native_part part[DISK_RANKS_MAX] = { 0 };
	struct native_lineage lineage = { .seq = 7, .parent_step = UINT64_MAX, .tool = "test" };
	struct native_info info = disk_info;
	struct ckpt_err err = { 0 };
	uint64_t len;
	uint8_t id[16];
	void *bytes;
	int fd;

	info.world = j->world;
	for (uint32_t i = 0; i < j->world; i++) {
		struct stat st;

		snprintf(part[i].name, sizeof part[i].name, "w%04u-%08x-%03u.part", i, 0xbeefu, 0u);
		fd = openat(d->fd, part[i].name,
			    O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | (how->direct ? O_DIRECT : 0),
			    0600);
		assert_true(fd >= 0);
		assert_ok_err(part_file_write(&(struct part_file_opts){ .ops = how->ops,
									.engine = how->engine },
					      fd, j->raw[i], &j->part[i], &info, i, &part[i], &err),
			      &err);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_size, part[i].file_bytes);
		assert_int_equal(st.st_size % 4096, 0);
		assert_true((uint64_t)st.st_size <= native_part_bytes_max(&j->part[i], 0));
		close(fd);
	}
	assert_ok_err(native_manifest(&info, part, j->world, &lineage, &bytes, &len, id, &err),
		      &err);
	fd = openat(d->fd, "MANIFEST", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(io_pwrite_all(&io_ops_posix, fd, bytes, len, 0), 0);
	close(fd);
	free(bytes);
}

/* A job of this mesh, whose step 5 is written. */
static inline void job_written(struct job *j, struct disk *d, const char *mesh, uint64_t seed)
{
	job_make(j, mesh, seed, 1);
	job_stage(j, 5, 0);
	job_write(j, d, &(struct disk_how){ &io_ops_posix, IO_INLINE, false });
}

static inline void job_check(const struct job *j, uint64_t step)
{
	char why[400];

	for (uint32_t i = 0; i < j->world; i++)
		if (!sample_check(&j->rank[i], step, why, sizeof why))
			fail_msg("%s", why);
}

/* Restore the checkpoint into all ranks; the result. */
static inline int job_restore(struct job *j, struct disk *d, const struct checkpoint *c,
			      const struct disk_how *how, move_tick_fn *tick, void *arg,
			      struct ckpt_err *err)
{
	struct move_files f;
	struct plan p;
	int e;

	for (uint32_t i = 0; i < j->world; i++)
		sample_clear(&j->rank[i]);
	e = plan_make(&c->table, &j->all, NULL, &p, NULL, err);
	if (e < 0)
		fail_msg("%s", err->msg);
	e = move_open(how->ops, d->fd, c, how->direct, how->engine, &f, err);
	if (e == 0) {
		e = move_read(&p, &f, j->base, tick, arg, err);
		move_close(&f);
	}
	plan_free(&p);
	return e;
}
#endif
