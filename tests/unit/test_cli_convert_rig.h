/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_convert_rig.h - checkpoints to convert, of any size and mesh, and the engine beneath the
 * command, for test_cli_convert.c and test_cli_convert_stops.c.
 */
#ifndef TESTS_UNIT_TEST_CLI_CONVERT_RIG_H
#define TESTS_UNIT_TEST_CLI_CONVERT_RIG_H
#include "formats/native/native.h"
#include "tests/lib/cli_rig.h"
#include "ckpt/engine/convert.h"
#include "ckpt/engine/identity.h"
#include "ckpt/engine/open.h"
#include "ckpt/io/io_source.h"
#include "formats/registry/registry.h"
#include "formats/safetensors/safetensors_format.h"
#include "ckpt/table/target.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/row.h"
#include <sys/resource.h>

#define LEAST CONVERT_MEM_MIN

/* Of each case: below top, where what it leaves is removed. */
static const char *src, *dst, *whole;

/* top/name, for as long as a test wants it. */
static const char *hold(const char *name)
{
	static struct {
		char name[32], path[128];
	} held[64];
	size_t i = 0;

	while (i < ARRAY_LEN(held) && held[i].name[0] && strcmp(held[i].name, name) != 0)
		i++;
	assert_true(i < ARRAY_LEN(held) && strlen(name) < sizeof held[i].name);
	snprintf(held[i].name, sizeof held[i].name, "%s", name);
	snprintf(held[i].path, sizeof held[i].path, "%s/%s", top, name);
	return held[i].path;
}

/* --- checkpoints of any size and mesh --- */

/* A few KiB, for the tests that make many copies of it. */
static bool is_small(const struct table *t, const struct table_tensor *x)
{
	(void)t;
	return !strcmp(x->name, "layers.2.wo") || !strcmp(x->name, "rng");
}

static void declare_small(struct table *t)
{
	declare_some(t, is_small);
}

/* A step directory at path, without a store. scale 0: the small model. */
static void make_anew(const char *path, const char *mesh, uint64_t scale, uint64_t step)
{
	const char *store = path_of("%s/making", top);

	declare = declare_small;
	make_step(store, &(struct how){ "demo", mesh, step - 1, 1, UINT64_MAX, UINT64_MAX, false });
	declare = scale ? NULL : declare_small;
	rig_scale = MAX(scale, UINT64_C(1));
	make_step(store, &(struct how){ "demo", mesh, step, 2, step - 1, step - 1, false });
	declare = NULL;
	rig_scale = 1;
	assert_int_equal(rename(step_path(path_of("%s/demo", store), step), path), 0);
	remove_tree(store);
}

/* The same; its files are links to those that were made once. */
static void make_source(const char *path, const char *mesh, uint64_t scale, uint64_t step)
{
	const char *made = path_of("%s/made-%s-%d-%d", top, mesh, (int)scale, (int)step);
	DIR *d;

	if (!exists(made))
		make_anew(made, mesh, scale, step);
	assert_int_equal(mkdir(path, 0700), 0);
	d = opendir(made);
	for (struct dirent *x; (x = readdir(d));)
		if (x->d_name[0] != '.')
			assert_ok(linkat(dirfd(d), x->d_name, AT_FDCWD,
					 path_of("%s/%s", path, x->d_name), 0));
	closedir(d);
}

static int try_open(const char *path, struct opened *ret)
{
	struct ckpt_err err = { 0 };
	int rc;

	*ret = (struct opened){ .path = path, .fd = open(path, O_RDONLY | O_DIRECTORY) };
	if (ret->fd < 0)
		return -ENOENT;
	assert_int_equal(source_make(&io_ops_posix, ret->fd, NULL, 0, &ret->dir), 0);
	rc = format_native.open(&(struct format_open){ .dir = &ret->dir }, &ret->ckpt, &err);
	if (rc) {
		print_error("%s: %s\n", path, err.msg);
		source_end(&ret->dir);
		close(ret->fd);
	}
	return rc ? rc : identity_make(ret, NULL, &err);
}

static void opened_close(struct opened *x)
{
	checkpoint_free(x->ckpt);
	source_end(&x->dir);
	close(x->fd);
}

struct truth {
	const struct checkpoint *k;
	uint8_t *want;
	uint64_t bytes;
};

static int window_is_true(void *arg, const struct window *w, const uint8_t *buf)
{
	struct truth *x = arg;

	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct table_piece *p = &x->k->table.piece[w->cut[i].piece];

		/* The samples give a whole piece at a time. */
		x->want = realloc(x->want, p->len);
		sample_piece(SEED, &x->k->table, p, x->k->step, x->want);
		assert_memory_equal(buf + w->cut[i].buf_off, x->want + (w->cut[i].dst_off - p->off),
				    w->cut[i].len);
		x->bytes += w->cut[i].len;
	}
	return 0;
}

/* Every byte is the sample's, and every sum in the files is right. */
static void assert_true_checkpoint(const char *path, const char *mesh, uint32_t world)
{
	struct ckpt_err err = { 0 };
	struct move_files f;
	struct opened x;
	struct truth truth = { 0 };
	char text[128];
	uint64_t bytes;

	assert_int_equal(try_open(path, &x), 0);
	assert_int_equal(x.ckpt->world, world);
	assert_int_equal(x.ckpt->nfile, world);
	assert_string_equal(mesh_print(&x.ckpt->table.mesh[0], text, sizeof text), mesh);
	truth.k = x.ckpt;
	if (move_open(&io_ops_posix, x.fd, x.ckpt, false, IO_INLINE, &f, &err) ||
	    move_verify(&f, NULL, NULL, NULL, NULL, &bytes, &err) ||
	    move_windows(&f, &x.ckpt->table, UINT64_C(1) << 30, 0, window_is_true, &truth, NULL,
			 NULL, &err))
		fail_msg("%s: %s", path, err.msg);
	move_close(&f);
	free(truth.want);
	opened_close(&x);
}

/* What does not depend on the mesh. */
static inline void assert_same(const char *a, const char *b)
{
	struct opened x, y;

	assert_int_equal(try_open(a, &x), 0);
	assert_int_equal(try_open(b, &y), 0);
	assert_int_equal(x.ckpt->step, y.ckpt->step);
	assert_int_equal(x.ckpt->seq, y.ckpt->seq);
	assert_int_equal(x.ckpt->generation, y.ckpt->generation);
	assert_int_equal(x.ckpt->wall_ns, y.ckpt->wall_ns);
	assert_int_equal(x.ckpt->parent_step, y.ckpt->parent_step);
	assert_string_equal(x.ckpt->parent_id, y.ckpt->parent_id);
	assert_string_equal(x.ckpt->job, y.ckpt->job);
	assert_int_equal(x.ckpt->nnote, y.ckpt->nnote);
	for (uint32_t i = 0; i < x.ckpt->nnote; i++) {
		assert_string_equal(x.ckpt->note[i].key, y.ckpt->note[i].key);
		assert_true(x.ckpt->note[i].value == y.ckpt->note[i].value);
	}
	assert_int_equal(x.ckpt->table.ntensor, y.ckpt->table.ntensor);
	for (uint32_t i = 0; i < x.ckpt->table.ntensor; i++) {
		const struct table_tensor *t = &x.ckpt->table.tensor[i], *u;
		uint32_t at = table_find(&y.ckpt->table, t->component, t->name, t->rank);

		assert_true(at != TABLE_NONE);
		u = &y.ckpt->table.tensor[at];
		assert_int_equal(t->fp, u->fp);
		assert_int_equal(t->role, u->role);
		assert_int_equal(t->cls, u->cls);
		assert_int_equal(t->flags, u->flags);
		assert_int_equal(t->dtype, u->dtype);
		assert_string_equal(t->of, u->of);
	}
	opened_close(&x);
	opened_close(&y);
}

/* --- the engine --- */

struct rig {
	struct opened src;
	struct table target;
	struct engine engine;
	struct engine_convert how;
	struct checkpoint said; /* of a source that says neither step nor job */
	char source[64];
	uint64_t ticked, stop_at; /* 0: never */
};

/* Of the case that runs. */
static struct rig e;
static struct converted f;
static struct ckpt_err err;

/* What the case's conversions write; NULL: native. */
static const struct format *writes;

static int stop_tick(void *arg, uint64_t done)
{
	struct rig *x = arg;

	x->ticked += done;
	return cli_stopped() || (x->stop_at && x->ticked >= x->stop_at);
}

static void engine_make(const char *from, const char *to, const char *mesh)
{
	assert_int_equal(try_open(from, &e.src), 0);
	assert_ok_err(target_make(&e.src.ckpt->table, mesh, NULL, 0, &e.target, NULL, NULL, &err),
		      &err);
	snprintf(e.source, sizeof e.source, "id %s", e.src.ckpt->id);
	e.engine = (struct engine)ROW(.ops = quick_ops(), .io = IO_THREADS, .format = formats,
				      .mem_limit = LEAST, .tick = stop_tick, .arg = &e);
	e.how = (struct engine_convert)ROW(.src = &e.src, .target = &e.target,
					   .to = writes ? writes : &format_native, .dst = to,
					   .want = { .facts = e.src.ckpt,
						     .tool = "ckptctl " CKPT_VERSION,
						     .shard_bytes = writes ? 1 << 20 : 0 },
					   .source = e.source, .options = "",
					   .drop = writes != NULL);
}

static void engine_free(void)
{
	table_free(&e.target);
	opened_close(&e.src);
}

static int engine_run(void)
{
	struct ckpt_errlist cannot = { .code = -EMEDIUMTYPE };
	int rc;

	e.ticked = 0;
	rc = engine_convert(&e.engine, &e.how, &f, &cannot, &err);
	ckpt_errlist_free(&cannot);
	return rc;
}

static void engine_from(const char *from_mesh, uint64_t scale, const char *to, const char *mesh)
{
	make_source(src, from_mesh, scale, 5);
	engine_make(src, to, mesh);
}

/* What comes out of an engine that nothing disturbs; its next runs are to dst. */
static inline void make_whole(const char *from_mesh, uint64_t scale, const char *mesh)
{
	engine_from(from_mesh, scale, whole, mesh);
	assert_int_equal(engine_run(), 0);
	e.how.dst = dst;
}

static const char *partial_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return path_of("%.*s/.%s.ckptctl-new", (int)(slash - path), path, slash + 1);
}

/* The directory of lock and journals. */
static const char *lock_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return path_of("%.*s/.%s.ckptctl", (int)(slash - path), path, slash + 1);
}

static void assert_nothing(const char *path)
{
	assert_false(exists(path));
	assert_false(exists(partial_of(path)));
	assert_false(exists(lock_of(path)));
}

static void files_limit(rlim_t n)
{
	struct rlimit files;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = n;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

/* --- each case --- */
static int anew(void **state)
{
	(void)state;
	src = hold("src");
	dst = hold("dst");
	whole = hold("whole");
	err = (struct ckpt_err){ 0 };
	return 0;
}

/* What a case left: all but the store and the sources. */
static int clean(void **state)
{
	DIR *d = opendir(top);

	(void)state;
	if (e.src.ckpt)
		engine_free();
	e = (struct rig){ 0 };
	writes = NULL;
	for (struct dirent *x; (x = readdir(d));)
		if (x->d_name[strspn(x->d_name, ".")] && strcmp(x->d_name, "work") &&
		    strncmp(x->d_name, "made-", 5))
			remove_tree(path_of("%s/%s", top, x->d_name));
	closedir(d);
	return 0;
}
#endif
