/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_convert.c - ckptctl convert: the same tensors on another mesh, whatever interrupts it:
 * the destination is whole or not there, and another run goes on where the last one was.
 */
#include "formats/native/native.h"
#include "tests/lib/draw.h"
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
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define LEAST CONVERT_MEM_MIN

static uint64_t rng;
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
static void assert_same(const char *a, const char *b)
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
static void make_whole(const char *from_mesh, uint64_t scale, const char *mesh)
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

/* --- what comes out --- */

TEST(test_every_tensor_and_blob_arrives_on_every_mesh)
{
	static const struct {
		const char *from, *to;
		uint32_t world;
	} pairs[] = { { "fsdp=4", "fsdp=3", 3 },	   { "fsdp=3", "fsdp=7", 7 },
		      { "fsdp=4", "fsdp=1", 1 },	   { "dp=2,fsdp=2", "fsdp=2,tp=2", 4 },
		      { "fsdp=2,tp=2", "fsdp=3", 3 },	   { "fsdp=2,tp=2", "fsdp=3,tp=2", 6 },
		      { "pp=2,fsdp=2", "fsdp=2,tp=2", 4 }, { "pp=2,fsdp=2", "pp=3,fsdp=1", 3 },
		      { "fsdp=1", "dp=2,fsdp=3", 6 },	   { "dp=2,fsdp=2", "dp=8", 8 },
		      { "fsdp=8", "tp=4,fsdp=2", 8 } };

	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		const char *back = hold("back");

		make_source(src, pairs[i].from, 1, 40 + i);
		if (RUN("convert", src, dst, "--mesh", pairs[i].to, "--replicate",
			dims_of(pairs[i].to)) != 0)
			fail_msg("%s -> %s: %s", pairs[i].from, pairs[i].to, got.err);
		assert_true_checkpoint(dst, pairs[i].to, pairs[i].world);
		assert_same(src, dst);
		assert_false(exists(partial_of(dst)));
		RUN_IS(0, "convert", dst, back, "--mesh", pairs[i].from, "--replicate",
		       dims_of(pairs[i].from));
		assert_same(src, back);
		RUN_IS(0, "verify", "--data", dst, back);
		remove_tree(src);
		remove_tree(dst);
		remove_tree(back);
	}
}

TEST(test_the_same_conversion_gives_the_same_bytes)
{
	const char *a = hold("a"), *b = hold("b");

	make_source(src, "fsdp=2,tp=2", 10, 5);
	engine_make(src, a, "fsdp=3");
	assert_int_equal(engine_run(), 0);
	assert_int_equal(f.batch, 2);
	assert_int_equal(f.nfile, 4);
	assert_int_equal(e.ticked, f.bytes);
	/* Other windows, other batches, another engine. */
	e.how.dst = b;
	e.engine.mem_limit = UINT64_C(1) << 30;
	e.engine.io = IO_AUTO;
	e.how.journal_ns = NS_PER_S;
	assert_int_equal(engine_run(), 0);
	assert_int_equal(f.batch, 4);
	assert_true(same_files(a, b));
}

TEST(test_a_converted_checkpoint_is_one_like_any_other)
{
	json_t *j;

	dst = path_of("%s/step-000000000030", top);
	j = json_run("ckptd.convert/1", "-C", path_of("%s/alpha", work), "--json", "convert",
		     "latest", dst, "--mesh", "fsdp=3");
	assert_string_equal(string(j, "type"), "summary");
	assert_string_equal(string(j, "destination"), dst);
	assert_json_has(
		j,
		"{'mesh':'fsdp=3', 'job':'alpha', 'step':30, 'world_size':3, 'resumed_bytes':0}");
	assert_true(number(j, "tensor_bytes") > 1000000);
	assert_true(number(j, "bytes") > number(j, "tensor_bytes"));
	assert_true(number(j, "compared_tensor_count") > 10);
	assert_int_equal(strlen(string(j, "destination_id")), 32);
	assert_true(json_is_array(json_object_get(j, "changes")));
	SHOWN_IS(0, "show", dst);
	RUN_IS(0, "diff", path_of("%s/alpha/step-000000000030", work), dst);
	SHOWN_IS(0, "convert", dst, path_of("%s/two", top), "--mesh", "fsdp=2");
	remove_tree(path_of("%s/two", top));
}

/* --- interruptions --- */

static void interrupted_again_and_again(void)
{
	uint64_t before = 0, runs = 0, resumed = 0;

	make_whole("fsdp=4", 10, "fsdp=2,tp=2");
	/* Each run may read a little more than a window: every window is the last one of some
	 * run. */
	e.stop_at = 11u << 20;
	for (int rc = -ECANCELED; rc == -ECANCELED; runs++) {
		rc = engine_run();
		if (rc && rc != -ECANCELED)
			fail_msg("%s", err.msg);
		assert_int_equal(exists(dst), rc == 0);
		assert_true(f.before >= before);
		before = f.before;
		resumed += f.resumed;
		if (rc)
			assert_true(f.kept == exists(partial_of(dst)));
		assert_true(runs < 100);
	}
	assert_true(runs > 3 && resumed > 2 && before > 0);
	assert_true(same_files(whole, dst));
	assert_false(exists(partial_of(dst)));
}

TEST(test_it_goes_on_where_it_was_interrupted)
{
	interrupted_again_and_again();
}

/* What was written is read again: such files have no checksums. */
TEST(test_files_of_whole_tensors_go_on_where_they_were_interrupted)
{
	writes = &format_safetensors;
	interrupted_again_and_again();
}

TEST(test_an_interrupt_counts_before_the_first_byte_too)
{
	engine_from("fsdp=2", 0, dst, "fsdp=3");
	cli_stops = 1;
	assert_int_equal(engine_run(), -ECANCELED);
	assert_nothing(dst);
	SHOWN_IS(130, "convert", src, dst, "--mesh", "fsdp=3");
	SHOWN_IS(130, "export", src, dst, "--mesh", "fsdp=3");
	cli_stops = 0;
	assert_nothing(dst);
}

/* A part directory of an interrupted run. */
static void interrupt(void)
{
	e.stop_at = 25u << 20;
	assert_int_equal(engine_run(), -ECANCELED);
	assert_true(f.kept);
	e.stop_at = 0;
}

TEST(test_torn_journals_are_not_believed)
{
	rng = draw_seed(__func__);
	make_whole("fsdp=4", 10, "fsdp=3");
	for (int what = 0; what < 8; what++) {
		const char *j[2] = { path_of("%s/journal-0", lock_of(dst)),
				     path_of("%s/journal-1", lock_of(dst)) };

		interrupt();
		for (int i = 0; i < 2; i++) {
			int fd = open(j[i], O_RDWR);
			struct stat st;
			uint8_t b = 0;

			assert_true(fd >= 0);
			assert_int_equal(fstat(fd, &st), 0);
			if (what == i || what == 2)
				assert_ok(ftruncate(fd,
						    (off_t)draw_below(&rng, (uint64_t)st.st_size)));
			if (what == 3 + i || what == 5) {
				off_t at = (off_t)draw_below(&rng, (uint64_t)st.st_size);

				assert_int_equal(pread(fd, &b, 1, at), 1);
				b ^= 0x10;
				assert_int_equal(pwrite(fd, &b, 1, at), 1);
			}
			close(fd);
			if (what == 6)
				unlink(j[i]);
		}
		if (what == 7) {
			/* A part that is not what the journal says. */
			DIR *d = opendir(partial_of(dst));

			for (struct dirent *x; (x = readdir(d));)
				if (x->d_name[0] == 'w')
					unlink(path_of("%s/%s", partial_of(dst), x->d_name));
			closedir(d);
		}
		if (engine_run())
			fail_msg("%d: %s", what, err.msg);
		assert_true(f.resumed != f.restarted);
		if (what == 2 || what >= 5)
			assert_true(f.restarted);
		assert_true(same_files(whole, dst));
		remove_tree(dst);
	}
}

TEST(test_a_part_that_lost_what_was_synced_is_given_up)
{
	DIR *d;
	int rc;

	engine_from("fsdp=4", 10, dst, "fsdp=3");
	interrupt();
	d = opendir(partial_of(dst));
	for (struct dirent *x; (x = readdir(d));)
		if (strstr(x->d_name, ".part")) {
			const char *part = path_of("%s/%s", partial_of(dst), x->d_name);
			struct stat st;

			assert_int_equal(stat(part, &st), 0);
			assert_int_equal(truncate(part, 0), 0);
			assert_int_equal(truncate(part, st.st_size), 0);
		}
	closedir(d);
	{

		rc = engine_run();
	}
	assert_int_equal(rc, -EIO);
	assert_says(err.msg, "run the same command again");
	assert_nothing(dst);
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
	assert_true_checkpoint(dst, "fsdp=3", 3);
}

/* Files of whole tensors have no checksums: what an earlier run wrote is read again. */
TEST(test_a_file_of_whole_tensors_that_lost_what_was_synced_is_given_up)
{
	static const uint8_t zeros[4096];
	const char *file;
	int fd;

	writes = &format_safetensors;
	engine_from("fsdp=4", 10, dst, "fsdp=3");
	interrupt();
	file = path_of("%s/model-00001-of-%05u.safetensors", partial_of(dst), f.nfile - 1);
	fd = open(file, O_WRONLY);
	if (fd < 0)
		fail_msg("there is no %s", file);
	assert_int_equal(pwrite(fd, zeros, sizeof zeros, 64 << 10), sizeof zeros);
	close(fd);
	assert_int_equal(engine_run(), -EBADMSG);
	assert_true(f.resumed);
	assert_says(err.msg, "is not on the disk as it was written");
	assert_nothing(dst);
	assert_ok_err(engine_run(), &err);
}

/* A journal that is whole, of this conversion, and wrong: one of its fingerprints is another one. */
static void fingerprint_change(const char *journal, uint32_t which)
{
	struct container_bytes sect[8] = { { 0 } };
	cleanup_free void *bytes = NULL, *again = NULL;
	struct container_view v;
	uint64_t len;
	struct stat st;
	int fd = open(journal, O_RDWR);
	uint8_t *print;

	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	bytes = malloc((size_t)st.st_size);
	assert_int_equal(pread(fd, bytes, (size_t)st.st_size, 0), st.st_size);
	assert_ok(container_decode(bytes, (uint64_t)st.st_size, CONTAINER_JOURNAL, &v, &err));
	assert_true(v.map.nsect > 0 && v.map.nsect <= ARRAY_LEN(sect));
	for (uint32_t i = 0; i < v.map.nsect; i++)
		sect[i] = container_view_get(&v, v.map.sect[i].kind);
	print = (uint8_t *)(uintptr_t)sect[v.map.nsect - 1].p;
	if (sect[v.map.nsect - 1].len > 8 * which)
		print[8 * which] ^= 1;
	assert_int_equal(container_encode(&v.info, sect, v.map.nsect, &again, &len, &err), 0);
	assert_int_equal(len, st.st_size);
	assert_int_equal(pwrite(fd, again, len, 0), (ssize_t)len);
	close(fd);
}

TEST(test_what_has_other_fingerprints_than_its_source_is_never_published)
{
	engine_from("fsdp=4", 10, dst, "fsdp=3");
	interrupt();
	fingerprint_change(path_of("%s/journal-0", lock_of(dst)), 0);
	fingerprint_change(path_of("%s/journal-1", lock_of(dst)), 0);
	assert_int_equal(engine_run(), -EBADMSG);
	assert_true(f.resumed);
	assert_nothing(dst);
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
	assert_true_checkpoint(dst, "fsdp=3", 3);
}

/* Each rank's file has all of it. The second fingerprint is that of the first tensor's second copy,
 * which does not count for the tensor's. */
TEST(test_copies_of_the_same_elements_have_the_same_fingerprint)
{
	writes = &format_safetensors;
	engine_from("fsdp=4", 10, dst, "dp=2");
	e.how.want.by_rank = true;
	e.how.want.shard_bytes = 0;
	interrupt();
	fingerprint_change(path_of("%s/journal-0", lock_of(dst)), 1);
	fingerprint_change(path_of("%s/journal-1", lock_of(dst)), 1);
	assert_int_equal(engine_run(), -EBADMSG);
	assert_true(f.resumed);
	assert_says(err.msg, "does not have the source's fingerprint");
	assert_nothing(dst);
}

TEST(test_another_conversion_is_not_continued)
{
	const char *other = hold("other"), *rules = hold("rules");

	make_source(src, "fsdp=4", 10, 5);
	make_source(other, "fsdp=4", 1, 6);
	engine_make(src, dst, "fsdp=3");
	interrupt();
	SHOWN_IS(2, "convert", other, dst, "--mesh", "fsdp=3");
	SHOWN_IS(2, "convert", src, dst, "--mesh", "fsdp=5");
	spill(rules, "*0*weight* Replicate@fsdp\n* Shard(0)@fsdp\n");
	if (RUN("convert", src, dst, "--mesh", "fsdp=3", "--layout", rules) != 2)
		fail_msg("%s", got.err);
	assert_true(exists(partial_of(dst)));
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
	assert_says(got.err, "Continuing an earlier run");
	assert_true_checkpoint(dst, "fsdp=3", 3);
	remove_tree(dst);
	/* More memory was promised than is given now. */
	e.engine.mem_limit = 80u << 20;
	e.stop_at = 40u << 20;
	assert_int_equal(engine_run(), -ECANCELED);
	if (exists(partial_of(dst))) {
		RUN_IS(2, "convert", src, dst, "--mesh", "fsdp=3", "--mem-limit", "40M");
		assert_says(got.err, "--mem-limit 83886080");
	}
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
	/* What is not ours. */
	assert_int_equal(mkdir(lock_of(path_of("%s/dst2", top)), 0700), 0);
	spill(path_of("%s/thesis.txt", lock_of(path_of("%s/dst2", top))), "");
	SHOWN_IS(2, "convert", src, path_of("%s/dst2", top), "--mesh", "fsdp=3");
	assert_true(exists(path_of("%s/.dst2.ckptctl/thesis.txt", top)));
}

TEST(test_only_one_run_writes_to_a_destination)
{
	int fd;

	make_source(src, "fsdp=4", 1, 5);
	assert_int_equal(mkdir(lock_of(dst), 0700), 0);
	fd = open(lock_of(dst), O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	SHOWN_IS(11, "convert", src, dst, "--mesh", "fsdp=3");
	assert_false(exists(dst));
	close(fd);
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
}

TEST(test_a_killed_run_is_continued)
{
	uint64_t took, killed = 0, resumed = 0;

	rng = draw_seed(__func__);
	make_source(src, "fsdp=4", 10, 5);
	engine_make(src, whole, "fsdp=3");
	took = now_ns();
	assert_int_equal(engine_run(), 0);
	took = now_ns() - took;
	e.how.dst = dst;
	for (int round = 0; round < 12 || (killed <= 3 && round < 100); round++) {
		for (int i = 0; !exists(dst); i++) {
			struct timespec t = { .tv_nsec = (long)draw_below(
						      &rng, MIN(took, NS_PER_S / 2)) };
			int status, done = 1;
			pid_t pid = fork();

			if (!pid) {
				int rc = engine_run();

				_exit(rc ? 1 : f.resumed ? 3 : 2);
			}
			nanosleep(&t, NULL);
			kill(pid, SIGKILL);
			assert_int_equal(waitpid(pid, &status, 0), pid);
			if (WIFEXITED(status))
				done = WEXITSTATUS(status);
			else
				killed++;
			/* The first run may have been the slowest. */
			if (WIFEXITED(status))
				took = MAX(took - took / 4, NS_PER_MS);
			assert_true(done != 1 || WIFSIGNALED(status));
			resumed += done == 3;
			if (i == 6 && !exists(dst)) {
				assert_ok_err(engine_run(), &err);
				resumed += f.resumed;
			}
		}
		assert_true(same_files(whole, dst));
		assert_false(exists(partial_of(dst)));
		remove_tree(dst);
	}
	printf("killed %llu times, continued %llu times\n", (unsigned long long)killed,
	       (unsigned long long)resumed);
	assert_true(killed > 3);
}

/* --- disks that fail --- */

/* At each write, or, with growth, at fewer and fewer of them. */
static void disk_fills(bool growth, uint64_t *kept, uint64_t *dropped)
{
	struct io_faults faults;
	uint64_t n, step;

	io_faults_init(&faults, quick_ops());
	for (n = 1, step = 1;; n += step, step += growth ? n / 6 : 0) {
		int rc;

		e.engine.ops = &faults.ops;
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, true);
		rc = engine_run();
		if (!io_faults_hit(&faults)) {
			assert_int_equal(rc, 0);
			break;
		}
		assert_int_equal(rc, -ENOSPC);
		assert_says(err.msg, lock_of(dst));
		assert_false(exists(dst));
		assert_int_equal(exists(partial_of(dst)), f.kept);
		*kept += f.kept;
		*dropped += !f.kept;
		e.engine.ops = quick_ops();
		rc = f.kept;
		if (engine_run())
			fail_msg("%llu: %s", (unsigned long long)n, err.msg);
		assert_int_equal(f.resumed, rc);
		assert_true(same_files(whole, dst));
		remove_tree(dst);
	}
	remove_tree(dst);
}

TEST(test_a_full_disk_leaves_what_was_done)
{
	uint64_t kept = 0, dropped = 0;

	make_whole("fsdp=4", 10, "fsdp=3");
	disk_fills(true, &kept, &dropped);
	assert_true(kept > 0 && dropped > 0);
	/* Without a journal but the last one, which fails too: there is nothing to keep. */
	kept = dropped = 0;
	e.how.journal_ns = UINT64_MAX;
	disk_fills(false, &kept, &dropped);
	assert_true(!kept && dropped > 0);
}

TEST(test_a_full_disk_leaves_what_was_done_of_whole_tensors)
{
	uint64_t kept = 0, dropped = 0;

	writes = &format_safetensors;
	make_whole("fsdp=4", 10, "fsdp=3");
	disk_fills(true, &kept, &dropped);
	assert_true(kept > 0 && dropped > 0);
}

static struct io_ops broken;
static uint32_t nsync, bad_sync;

/* Is it the sync of a file with data for which the test waits? name: for open. */
static bool is_bad_sync(int fd, char name[64])
{
	char path[PATH_MAX];
	ssize_t n;

	snprintf(name, 64, "/proc/self/fd/%d", fd);
	n = readlink(name, path, sizeof path - 1);
	path[MAX(n, 0)] = 0;
	return strstr(path, ".ckptctl-new/") && ++nsync == bad_sync;
}

/* What of the file is on the disk is not known. */
static int data_sync_fails(void *ctx, int fd)
{
	char name[64];

	return is_bad_sync(fd, name) ? -EIO : 0;
}

TEST(test_after_a_sync_that_failed_nothing_is_continued)
{
	uint32_t failed = 0;

	make_whole("fsdp=4", 10, "fsdp=3");
	broken = *quick_ops();
	broken.sync = data_sync_fails;
	for (bad_sync = 1;; bad_sync++) {
		e.engine.ops = &broken;
		nsync = 0;
		if (!engine_run())
			break;
		assert_int_equal(err.code, -EIO);
		assert_false(f.kept);
		assert_nothing(dst);
		failed++;
	}
	assert_true(failed > 4);
	e.engine.ops = quick_ops();
}

/* What a disk changes of a file after it took it. */
static int sync_and_flip(void *ctx, int fd)
{
	char name[64];
	struct stat st;
	uint8_t b = 0;

	if (!is_bad_sync(fd, name))
		return 0;
	fd = open(name, O_RDWR);
	assert_true(fd >= 0 && !fstat(fd, &st) && pread(fd, &b, 1, st.st_size - 1) == 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, st.st_size - 1), 1);
	close(fd);
	return 0;
}

TEST(test_with_check_what_the_disk_changed_is_found)
{
	uint32_t found = 0;

	writes = &format_safetensors;
	engine_from("fsdp=2", 1, dst, "fsdp=1");
	e.how.check = true;
	broken = *quick_ops();
	broken.sync = sync_and_flip;
	e.engine.ops = &broken;
	for (bad_sync = 1;; bad_sync++) {
		int rc;

		nsync = 0;
		rc = engine_run();
		if (bad_sync > nsync)
			break;
		if (rc != -EBADMSG && rc != -EPROTO) /* data; the index */
			fail_msg("file %u: %d", bad_sync, rc);
		assert_nothing(dst);
		found++;
	}
	assert_true(found > 4);
	e.engine.ops = quick_ops();
}

static struct format liar;

/* Its header calls the elements of the first tensor by another type of the same size. */
static int fill_of_liar(const struct sheet *s, uint32_t run, const struct sheet_state *state,
			struct arena *a, const void **ret, uint64_t *ret_len,
			struct hash128 *ret_seal, struct ckpt_err *x)
{
	int rc = format_safetensors.fill(s, run, state, a, ret, ret_len, ret_seal, x);
	uint8_t *copy, *at;

	if (rc || *ret_len < 8)
		return rc;
	copy = arena_alloc(a, *ret_len);
	assert_non_null(copy);
	memcpy(copy, *ret, *ret_len);
	at = memmem(copy, *ret_len, "\"BF16\"", 6);
	if (at)
		memcpy(at, "\"F16\" ", 6);
	*ret = copy;
	return 0;
}

TEST(test_what_its_own_format_reads_otherwise_is_never_published)
{
	liar = format_safetensors;
	liar.fill = fill_of_liar;
	writes = &liar;
	engine_from("fsdp=2", 1, dst, "fsdp=3");
	assert_int_equal(engine_run(), -EBADMSG);
	assert_says(err.msg, "does not hold what the source holds");
	assert_nothing(dst);
}

TEST(test_no_room_is_told_before_anything_is_written)
{
	struct io_faults faults;

	engine_from("fsdp=4", 1, dst, "fsdp=3");
	io_faults_init(&faults, quick_ops());
	io_faults_fail(&faults, IO_ON_FALLOCATE, 2, -ENOSPC, true);
	e.engine.ops = &faults.ops;
	assert_int_equal(engine_run(), -ENOSPC);
	assert_nothing(dst);
	/* A file system without fallocate does without. */
	io_faults_fail(&faults, IO_ON_FALLOCATE, 1, -EOPNOTSUPP, true);
	assert_int_equal(engine_run(), 0);
	assert_true_checkpoint(dst, "fsdp=3", 3);
}

static void any_call_fails(void)
{
	struct io_faults faults;
	uint64_t n;

	make_whole("fsdp=2", 0, "fsdp=5");
	io_faults_init(&faults, quick_ops());
	for (n = 1;; n++) {
		int rc;

		e.engine.ops = &faults.ops;
		io_faults_fail(&faults, IO_ON_MUTATING | IO_ON_READ | IO_ON_SIZE | IO_ON_LIST, n,
			       -EIO, n % 2);
		err.msg[0] = 0;
		rc = engine_run();
		if (!io_faults_hit(&faults))
			break;
		if (rc && !err.msg[0])
			fail_msg("call %llu: %d without a sentence", (unsigned long long)n, rc);
		if (exists(dst)) {
			assert_true(same_files(whole, dst));
			remove_tree(dst);
		} else {
			assert_true(rc < 0);
		}
		if (!exists(partial_of(dst)))
			continue;
		e.engine.ops = quick_ops();
		if (engine_run())
			fail_msg("%llu: %s", (unsigned long long)n, err.msg);
		assert_true(same_files(whole, dst));
		remove_tree(dst);
	}
	assert_true(n > 30);
	printf("%llu calls\n", (unsigned long long)n);
}

TEST(test_any_failing_call_leaves_the_destination_away_or_whole)
{
	any_call_fails();
}

TEST(test_any_failing_call_leaves_files_of_whole_tensors_away_or_whole)
{
	writes = &format_safetensors;
	any_call_fails();
}

static void files_limit(rlim_t n)
{
	struct rlimit files;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = n;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

struct crash {
	uint64_t n, there, resumed;
	uint64_t written; /* of these, where all data were written before */
};

/* A state that a power loss may leave. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *at)
{
	struct crash *x = arg;

	(void)dirfd;
	dst = path_of("%s/dst", at->path);
	x->n++;
	if (exists(dst)) {
		x->there++;
	} else if (at->promise) {
		print_error("it had been told that it is there\n");
		return 1;
	} else {
		e.how.dst = dst;
		if (engine_run()) {
			print_error("%s\n", err.msg);
			return 1;
		}
		x->resumed += f.resumed;
		x->written += f.resumed && f.before == f.bytes;
	}
	assert_true(same_files(whole, dst));
	return 0;
}

/* nfile: descriptors that the run has, of which it takes its batches; 0: as many as there are. */
static void power_is_lost(rlim_t nfile)
{
	const char *root = hold("root");
	struct io_faults faults;
	struct io_record *record;
	struct crash x = { 0 };
	struct io_crash_opts how = { .nrandom = 1, .ntear = 1 };
	uint64_t states = 0;
	struct rlimit was;
	int fd;

	rng = draw_seed(__func__);
	how.seed = rng;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	make_source(src, "fsdp=2", 0, 5);
	assert_int_equal(mkdir(root, 0700), 0);
	engine_make(src, whole, "fsdp=5");
	if (nfile)
		e.how.want.shard_bytes = 1; /* a file for each tensor */
	assert_int_equal(engine_run(), 0);
	fd = open(root, O_RDONLY | O_DIRECTORY);
	record = io_record_new(fd);
	io_faults_init(&faults, quick_ops());
	faults.record = record;
	e.engine.ops = &faults.ops;
	e.engine.io = IO_INLINE;
	e.how.dst = path_of("%s/dst", root);
	if (nfile)
		files_limit(nfile);
	assert_ok_err(engine_run(), &err);
	files_limit(was.rlim_cur);
	io_record_promise(record, 1);
	e.engine.ops = quick_ops();
	assert_int_equal(io_crash_states(record, &how, after_power_loss, &x, &states), 0);
	printf("%llu states, %llu complete, %llu continued, %llu of them with all data\n",
	       (unsigned long long)states, (unsigned long long)x.there,
	       (unsigned long long)x.resumed, (unsigned long long)x.written);
	assert_true(x.there > 0 && x.resumed >= x.written && x.written > 0 && x.there < states);
	io_record_free(record);
	close(fd);
}

TEST(test_after_a_power_loss_it_is_whole_or_continued)
{
	power_is_lost(0);
}

TEST(test_after_a_power_loss_files_of_whole_tensors_are_there_or_continued)
{
	writes = &format_safetensors;
	power_is_lost(38);
}

/* --- refusals --- */

TEST(test_what_cannot_be_done_is_refused_and_nothing_is_touched)
{
	char *long_name = calloc(1, 400);

	make_source(src, "fsdp=2", 1, 5);
	memset(long_name, 'x', 300);
	RUN_IS(2, "convert", src);
	RUN_IS(2, "convert", src, dst, "--replicate", "tp");
	RUN_IS(2, "convert", src, dst, "--mesh", "fsdp=0");
	RUN_IS(2, "convert", src, dst, "--mesh", "fsdp=2", "--mem-limit", "much");
	SHOWN_IS(2, "convert", src, dst, "--mesh", "fsdp=2", "--mem-limit", "1M");
	SHOWN_IS(2, "convert", src, src, "--mesh", "fsdp=2");
	SHOWN_IS(2, "convert", src, path_of("%s/sub", src), "--mesh", "fsdp=2");
	SHOWN_IS(2, "convert", src, work, "--mesh", "fsdp=2");
	RUN_IS(10, "convert", src, path_of("%s/no/dst", top), "--mesh", "fsdp=2");
	RUN_IS(10, "convert", path_of("%s/nowhere", top), dst, "--mesh", "fsdp=2");
	RUN_IS(2, "convert", src, "", "--mesh", "fsdp=2");
	RUN_IS(2, "convert", src, "/", "--mesh", "fsdp=2");
	RUN_IS(2, "convert", src, "..", "--mesh", "fsdp=2");
	RUN_IS(2, "convert", src, path_of("%s/%s", top, long_name), "--mesh", "fsdp=2");
	RUN_IS(2, "--json", "convert", src, src, "--mesh", "fsdp=2");
	assert_json_error(2);
	assert_nothing(dst);
	RUN_IS(0, "verify", "--data", src);
	free(long_name);
}

TEST(test_a_damaged_source_gives_nothing)
{
	const char *spoilt;

	make_anew(src, "fsdp=2", 10, 5);
	spoilt = part(src, 1);
	flip(spoilt, 20 << 20);
	SHOWN_IS(4, "convert", src, dst, "--mesh", "fsdp=3", "--mem-limit", "40M");
	assert_nothing(dst);
	RUN_IS(4, "--json", "convert", src, dst, "--mesh", "fsdp=3");
	assert_json_error(4);
	unlink(spoilt);
	RUN_IS(4, "convert", src, dst, "--mesh", "fsdp=3");
	assert_nothing(dst);
}

TEST(test_more_ranks_than_a_checkpoint_has_are_refused_at_once)
{
	make_source(src, "fsdp=2", 0, 5);
	SHOWN_IS(2, "convert", src, dst, "--mesh", "fsdp=1048577");
	assert_nothing(dst);
}

/* --- what else exists --- */

static struct io_ops racing;
static int racing_fd;

/* Somebody else opens and locks the directory between our making it and our lock. */
static int mkdir_and_lose(void *ctx, int dirfd, const char *path, mode_t mode)
{
	int rc = io_ops_posix.mkdir(ctx, dirfd, path, mode);

	assert_int_equal(rc, 0);
	racing_fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(racing_fd, LOCK_EX), 0);
	rc = openat(racing_fd, "journal-0", O_WRONLY | O_CREAT, 0600);
	assert_true(rc >= 0);
	close(rc);
	return 0;
}

TEST(test_who_loses_the_lock_takes_nothing_away)
{
	engine_from("fsdp=2", 0, dst, "fsdp=3");
	racing = *quick_ops();
	racing.mkdir = mkdir_and_lose;
	e.engine.ops = &racing;
	assert_int_equal(engine_run(), -EBUSY);
	assert_true(exists(path_of("%s/journal-0", lock_of(dst))));
	close(racing_fd);
	e.engine.ops = quick_ops();
	assert_int_equal(engine_run(), 0);
}

TEST(test_nothing_is_made_in_another_checkpoint)
{
	const char *other = hold("other");

	make_source(src, "fsdp=2", 0, 5);
	make_source(other, "fsdp=2", 0, 6);
	SHOWN_IS(2, "convert", src, path_of("%s/dst", other), "--mesh", "fsdp=3");
	SHOWN_IS(2, "export", src, path_of("%s/dst", other), "--mesh", "fsdp=3");
	SHOWN_IS(2, "export", src, other, "--mesh", "fsdp=3", "--rank", "0");
	RUN_IS(0, "verify", "--data", other);
}

TEST(test_a_store_is_given_no_step_of_another_number)
{
	dst = path_of("%s/step-000000000077", top);
	make_source(src, "fsdp=2", 0, 5);
	SHOWN_IS(2, "convert", src, dst, "--mesh", "fsdp=3");
	assert_nothing(dst);
	dst = path_of("%s/step-77", top);
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
	remove_tree(dst);
	dst = path_of("%s/step-000000000005", top);
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=3");
}

TEST(test_a_missing_parent_is_to_be_made)
{
	make_source(src, "fsdp=2", 0, 5);
	SHOWN_IS(10, "convert", src, path_of("%s/no/such/dst", top), "--mesh", "fsdp=3");
	SHOWN_IS(10, "export", src, path_of("%s/no/such/dst/", top), "--mesh", "fsdp=3");
}

static void die(void *arg)
{
	(void)arg;
	kill(getpid(), SIGKILL);
}

TEST(test_what_did_nothing_is_no_obstacle)
{
	pid_t pid;
	int status;

	engine_from("fsdp=2", 0, dst, "fsdp=3");
	/* Killed before the first journal that speaks of bytes. */
	e.how.begun = die;
	pid = fork();
	if (!pid)
		_exit(engine_run() ? 1 : 2);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_true(exists(partial_of(dst)));
	RUN_IS(0, "convert", src, dst, "--mesh", "fsdp=2");
}

TEST(test_few_descriptors_make_batches_with_the_same_bytes)
{
	struct rlimit was;
	int rc;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	make_source(src, "fsdp=4", 20, 5);
	engine_make(src, whole, "fsdp=100");
	e.engine.mem_limit = UINT64_C(1) << 30;
	assert_int_equal(engine_run(), 0);
	assert_int_equal(f.batch, 101);
	e.how.dst = dst;
	files_limit(64);
	rc = engine_run();
	files_limit(was.rlim_cur);
	if (rc)
		fail_msg("%s", err.msg);
	assert_true(f.batch < 40);
	assert_true(same_files(whole, dst));
	remove_tree(dst);
	/* Windows are those of the batch that began; so another run keeps to it. */
	files_limit(64);
	e.engine.mem_limit = 100u << 20;
	e.stop_at = 80u << 20;
	rc = engine_run();
	files_limit(was.rlim_cur);
	assert_int_equal(rc, -ECANCELED);
	assert_true(f.kept && f.batch < 40);
	rc = (int)f.batch;
	e.stop_at = 0;
	e.engine.mem_limit = UINT64_C(1) << 30;
	assert_int_equal(engine_run(), 0);
	assert_true(f.resumed);
	assert_int_equal(f.batch, rc);
	assert_true(same_files(whole, dst));
}

/* --- sources and results of another format --- */

#define FOREIGN "tests/vectors/safetensors"

/* A directory with one safetensors file. */
static void make_foreign(const char *path, const char *file)
{
	static char bytes[1 << 20];
	int from = open(path_of("%s/%s", FOREIGN, file), O_RDONLY), to;
	ssize_t n = read(from, bytes, sizeof bytes);

	assert_true(from >= 0 && n > 0 && n < (ssize_t)sizeof bytes);
	assert_int_equal(mkdir(path, 0700), 0);
	to = open(path_of("%s/model.safetensors", path), O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(to, bytes, (size_t)n), n);
	close(from);
	close(to);
}

/* The rig's source is path from now on. */
static void engine_make_foreign(const char *from, const char *to)
{
	struct engine_subject s = { .path = from };

	if (e.src.ckpt) {
		table_free(&e.target);
		engine_close(&e.src);
		close(e.src.fd);
	}
	s.fd = open(from, O_RDONLY | O_DIRECTORY);
	e.engine = (struct engine)ROW(.ops = quick_ops(), .io = IO_THREADS, .format = formats,
				      .mem_limit = LEAST, .tick = stop_tick, .arg = &e);
	assert_ok_err(engine_open(&e.engine, &s, &e.src, &err), &err);
	assert_ok_err(target_make(&e.src.ckpt->table, "dp=2", NULL, 0, &e.target, NULL, NULL, &err),
		      &err);
	e.said = *e.src.ckpt;
	e.said.parent_step = UINT64_MAX;
	strcpy(e.said.job, "other");
	e.how = (struct engine_convert)ROW(.src = &e.src, .target = &e.target, .to = &format_native,
					   .dst = to,
					   .want = { .facts = &e.said,
						     .tool = "ckptctl " CKPT_VERSION },
					   .source = from, .options = "");
}

/* Until the disk is full, and something of worth is there. */
static void engine_fill_up(void)
{
	struct io_faults faults;
	uint64_t n = 1;

	io_faults_init(&faults, quick_ops());
	e.engine.ops = &faults.ops;
	for (f.kept = false; !f.kept; n++) {
		io_faults_fail(&faults, IO_ON_WRITE, n, -ENOSPC, true);
		assert_int_equal(engine_run(), -ENOSPC);
	}
	e.engine.ops = quick_ops();
}

TEST(test_a_source_without_fingerprints_gets_them_and_says_so)
{
	const char *again = hold("again");
	json_t *j;

	make_foreign(src, "numpy.safetensors");
	j = json_run("ckptd.convert/1", "--json", "convert", src, dst, "--mesh", "dp=2", "--job",
		     "other", "--step", "12");
	assert_json_has(j, "{'from_format':'safetensors', 'format':'native', 'job':'other', "
			   "'step':12, 'compared_tensor_count':0}");
	assert_true(number(j, "made_tensor_count") > 3);
	RUN_IS(0, "verify", "--data", dst);
	/* What it has now is compared. */
	j = json_run("ckptd.convert/1", "--json", "convert", dst, again, "--mesh", "dp=3");
	assert_json_has(j, "{'made_tensor_count':0}");
	RUN_IS(0, "convert", src, hold("direct"), "--mesh", "dp=3");
	RUN_IS(0, "diff", "--values", hold("direct"), again);
	RUN_IS(2, "convert", dst, hold("third"), "--step", "4");
}

/* Other bytes in the same place, and the time that it had. */
static void bytes_change(const char *file)
{
	int fd = open(file, O_RDWR);
	struct stat was, is;
	uint8_t last;

	assert_int_equal(fstat(fd, &was), 0);
	assert_int_equal(pread(fd, &last, 1, was.st_size - 1), 1);
	last ^= 1;
	do {
		assert_int_equal(pwrite(fd, &last, 1, was.st_size - 1), 1);
		assert_int_equal(futimens(fd, (struct timespec[2]){ was.st_atim, was.st_mtim }), 0);
		assert_int_equal(fstat(fd, &is), 0);
		/* The file system's clock ticks some hundred times a second. */
	} while (!memcmp(&is.st_ctim, &was.st_ctim, sizeof is.st_ctim));
	close(fd);
}

TEST(test_what_is_made_of_one_model_is_not_continued_with_another)
{
	const char *other = hold("other"), *file = path_of("%s/model.safetensors", src);

	make_foreign(src, "numpy.safetensors");
	make_foreign(other, "numpy.safetensors");
	engine_make_foreign(src, dst);
	engine_fill_up();
	/* The same names, shapes and bytes in another place. */
	engine_make_foreign(other, dst);
	assert_int_equal(engine_run(), -EINVAL);
	assert_says(err.msg, path_of("of another checkpoint: %s, not %s", src, other));
	assert_true(exists(partial_of(dst)));
	/* The same path, and the file was written again. */
	assert_int_equal(rename(path_of("%s/model.safetensors", other), file), 0);
	engine_make_foreign(src, dst);
	assert_int_equal(engine_run(), -EINVAL);
	assert_says(err.msg, "its files have changed since");
	assert_true(exists(partial_of(dst)));
	remove_tree(partial_of(dst));
	remove_tree(lock_of(dst));
	engine_make_foreign(src, dst);
	engine_fill_up();
	/* Other bytes, and neither inode, length nor time tells. */
	bytes_change(file);
	engine_make_foreign(src, dst);
	assert_int_equal(engine_run(), -EINVAL);
	assert_says(err.msg, "its files have changed since");
	/* Without what was written, the journal of it is no obstacle. */
	remove_tree(partial_of(dst));
	assert_ok_err(engine_run(), &err);
	RUN_IS(0, "verify", "--data", dst);
}

static void change_source(void *arg)
{
	bytes_change(arg);
}

/* A directory, a file, and a file that has another name as well. */
TEST(test_what_an_interrupted_run_left_is_not_written_over_while_it_is_read)
{
	const char *file = hold("dst.safetensors"), *left = hold(".dst.safetensors.ckptctl-new");
	const char *dir = hold("linked");

	make_foreign(partial_of(dst), "numpy.safetensors");
	SHOWN_IS(2, "convert", partial_of(dst), dst);
	SHOWN_IS(2, "convert", path_of("%s/model.safetensors", partial_of(dst)), dst);
	assert_true(exists(path_of("%s/model.safetensors", partial_of(dst))));
	assert_false(exists(lock_of(dst)));
	assert_int_equal(rename(path_of("%s/model.safetensors", partial_of(dst)), left), 0);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(symlink(left, path_of("%s/model.safetensors", dir)), 0);
	RUN_IS(2, "convert", left, file, "--from", "safetensors");
	RUN_IS(2, "convert", dir, file);
	RUN_IS(2, "export", dir, file);
	assert_int_equal(unlink(path_of("%s/model.safetensors", dir)), 0);
	assert_int_equal(link(left, path_of("%s/model.safetensors", dir)), 0);
	RUN_IS(2, "convert", dir, file);
	assert_false(exists(lock_of(file)));
	RUN_IS(0, "convert", dir, dst);
}

TEST(test_a_source_without_placements_is_cut_along_dimension_0)
{
	const char *rules = hold("rules");

	make_foreign(src, "numpy.safetensors");
	RUN_IS(0, "convert", src, dst, "--mesh", "dp=2,fsdp=3", "--replicate", "dp,fsdp");
	assert_says(got.err, "have no placements");
	RUN_IS(0, "show", "--json", "--tensors", "*", dst);
	assert_says(got.out, "Shard(0)@");
	spill(rules, "* Replicate@dp\n");
	RUN_IS(0, "convert", src, hold("direct"), "--mesh", "dp=2", "--layout", rules);
	RUN_IS(0, "show", "--json", "--tensors", "*", hold("direct"));
	assert_null(strstr(got.out, "Shard(0)@"));
	RUN_IS(0, "diff", "--values", dst, hold("direct"));
}

TEST(test_chunks_of_a_source_without_placements_are_kept_as_shards)
{
	RUN_IS(0, "convert", "tests/vectors/dcp_hf/hf_sharded", dst, "--mesh", "fsdp=4", "--job",
	       "other");
	assert_says(got.err, "17 are cut as the chunks are");
	RUN_IS(0, "diff", "--values", "tests/vectors/dcp_hf/hf_sharded", dst);
	RUN_IS(3, "convert", "tests/vectors/dcp_hf/hf_sharded", hold("two"), "--mesh",
	       "dp=2,fsdp=4");
	assert_says(got.err, "--replicate dp");
	assert_false(exists(hold("two")));
	RUN_IS(0, "convert", "tests/vectors/dcp_hf/hf_sharded", hold("two"), "--mesh",
	       "dp=2,fsdp=4", "--replicate", "dp");
	RUN_IS(0, "diff", "--values", dst, hold("two"));
}

static void touch_source(void *arg)
{
	int fd = open(arg, O_WRONLY);

	assert_int_equal(futimens(fd, (struct timespec[2]){ { .tv_sec = 1 }, { .tv_sec = 2 } }), 0);
	close(fd);
}

TEST(test_a_source_that_changes_meanwhile_gives_nothing)
{
	char file[PATH_MAX];

	make_foreign(src, "numpy.safetensors");
	snprintf(file, sizeof file, "%s/model.safetensors", src);
	engine_make_foreign(src, dst);
	e.how.begun = touch_source;
	e.how.begun_arg = file;
	assert_int_equal(engine_run(), -ESTALE);
	assert_says(err.msg, src);
	assert_nothing(dst);
	engine_make_foreign(src, dst);
	e.how.begun = change_source;
	e.how.begun_arg = file;
	assert_int_equal(engine_run(), -ESTALE);
	assert_nothing(dst);
	RUN_IS(0, "convert", src, dst);
}

/* Before it is opened for the second time, another file takes the name of the model's. */
static uint32_t model_opens;

static int replacing_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	const struct io_ops *ops = quick_ops();

	if (!strcmp(name, "model.safetensors") && model_opens++ == 1) {
		copy_file(path_of("%s/model.safetensors", src), path_of("%s/other", src));
		assert_int_equal(
			rename(path_of("%s/other", src), path_of("%s/model.safetensors", src)), 0);
	}
	return ops->open(ops->ctx, dirfd, name, flags, mode);
}

TEST(test_a_source_that_is_replaced_while_it_is_opened_is_refused)
{
	struct engine_subject s = { .path = src, .force = &format_safetensors };
	struct io_ops ops = *quick_ops();
	struct engine engine = { .ops = &ops, .io = IO_THREADS, .format = formats };
	struct opened o;

	make_foreign(src, "numpy.safetensors");
	ops.open = replacing_open;
	model_opens = 0;
	s.fd = open(src, O_RDONLY | O_DIRECTORY);
	assert_int_equal(engine_open(&engine, &s, &o, &err), -ESTALE);
	assert_says(err.msg, "model.safetensors was changed or replaced");
	engine_close(&o);
	/* Now nothing replaces it. */
	assert_ok_err(engine_open(&engine, &s, &o, &err), &err);
	engine_close(&o);
	close(s.fd);
	remove_tree(src);
}

TEST(test_tensors_are_chosen_and_cast)
{
	json_t *j;
	uint64_t bytes;

	make_source(src, "fsdp=2", 0, 5);
	j = json_run("ckptd.convert/1", "--json", "convert", src, dst, "--only", "*wo", "-n");
	assert_json_has(j, "{'dry_run':true, 'mesh':'fsdp=1', 'destination_id':null}");
	assert_nothing(dst);
	j = json_run("ckptd.convert/1", "--json", "convert", src, dst, "--only", "*wo", "--check");
	assert_true(number(j, "compared_tensor_count") > 0);
	RUN_IS(0, "show", "--json", dst);
	assert_null(strstr(got.out, "rng"));
	RUN_IS(2, "convert", src, hold("none"), "--only", "*nothing*");
	RUN_IS(2, "convert", src, hold("none"), "--to", "parchment");
	assert_says(got.err, "convert writes native");
	bytes = number(j, "tensor_bytes");
	j = json_run("ckptd.convert/1", "--json", "convert", src, hold("twice"), "--dtype", "F32",
		     "--only", "*wo");
	assert_int_equal(number(j, "tensor_bytes"), 2 * bytes); /* of F16, which it was */
	RUN_IS(0, "convert", src, hold("cast"), "--dtype", "F32", "--only", "*wo");
	/* What is written, not what was read. */
	assert_says(got.out, "1 part, 11.7 KiB");
	assert_says(got.out, "Fingerprints: 0 as in the source, 1 new");
	RUN_IS(0, "verify", "--data", hold("cast"));
	/* Another dtype, and no other value. */
	RUN_IS(6, "diff", "--values", hold("cast"), dst);
	assert_says(got.out, "F32  F16       0          0");
}

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

UNIT(.setup = anew, .teardown = clean, .group_setup = make_all, .group_teardown = drop_all);
