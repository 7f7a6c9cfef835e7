/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_convert_stops.c - ckptctl convert, whatever interrupts it (signals, kills, disks that
 * fail, lie or lose their power): the destination is whole or not there, and another run goes on
 * where the last one was.
 */
#include "test_cli_convert_rig.h"
#include "tests/lib/draw.h"
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

/* Of the failing calls and the states of a disk one in so many; without ASan all (make torture). */
#if defined(__SANITIZE_ADDRESS__)
#define EVERY 3u
#else
#define EVERY 1u
#endif

static uint64_t rng;

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

/* A journal that is whole, of this conversion, and wrong: one of its fingerprints is another
 * one. */
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
	assert_says(err.msg, "does not have the source's fingerprint"); /* not a later check */
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
	for (n = 1, step = EVERY;; n += step, step += growth ? n / 6 : 0) {
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
	for (n = 1;; n += EVERY) {
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
	struct io_crash_opts how = { .nrandom = 1, .ntear = 1, .every = EVERY };
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
	assert_true(x.there > 0 && x.resumed >= x.written && x.there < states);
	assert_true(x.written > 0 || EVERY > 1); /* there may be only one of these */
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

UNIT(.setup = anew, .teardown = clean, .group_setup = make_all, .group_teardown = drop_all);
