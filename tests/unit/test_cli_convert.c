/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_convert.c - ckptctl convert: the same tensors on another mesh, or in another format;
 * what is refused, and which sources and destinations there may be. What interrupts it:
 * test_cli_convert_stops.c.
 */
#include "test_cli_convert_rig.h"
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

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

/* --- refusals --- */

TEST(test_what_cannot_be_done_is_refused_and_nothing_is_touched)
{
	char *long_name = calloc(1, 400);

	make_source(src, "fsdp=2", 1, 5);
	memset(long_name, 'x', 300);
	RUN_IS(2, "convert", src);
	RUN_IS(2, "convert", src, dst, "--replicate", "tp");
	RUN_IS(2, "convert", src, dst, "--mesh", "fsdp=0");
	/* A command to copy has names with blanks as one word. */
	assert_int_equal(rename(src, path_of("%s/it's a src", top)), 0);
	RUN_IS(2, "convert", path_of("%s/it's a src", top), dst, "--mesh", "fsdp=0");
	assert_says(got.err, path_of("ckptctl convert '%s/it'\\''s a src' %s --mesh", top, dst));
	assert_int_equal(rename(path_of("%s/it's a src", top), src), 0);
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
	RUN_IS(2, "convert", src, hold("third"), "--step", "18446744073709551615");
	assert_says(got.err, "below 2^64 - 1");
	RUN_IS(2, "convert", src, hold("third"), "--step", "99999999999999999999");
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

UNIT(.setup = anew, .teardown = clean, .group_setup = make_all, .group_teardown = drop_all);
