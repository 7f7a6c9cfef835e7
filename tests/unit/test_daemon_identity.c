/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_identity.c - a restore gives the step that was asked for, or an error: what lies
 * under a step's name and is another checkpoint is refused before a byte moves, and gets no
 * quarantine label.
 */
#include "tests/lib/rank.h"

#include "formats/native/native.h"
#include "tests/lib/host.h"
#include "tests/lib/older.h"
#include "tests/lib/unit.h"
#include <stdatomic.h>

static struct io_ops ops;
static const char *dir_of(const char *job, uint64_t step)
{
	static char buf[4][256];
	static uint32_t next;
	char *p = buf[next++ % ARRAY_LEN(buf)];

	snprintf(p, sizeof *buf, "%s/%s/step-%012" PRIu64, H.store, job, step);
	return p;
}

#define plan_of(job) plan(job, "fsdp=1", .rows = 200, .shared_only = true)

static void save_these(const char *job, const uint64_t *step, uint32_t n)
{
	struct plan_of_job p = plan_of(job);
	struct rank k = { 0 };

	p.fresh = true;
	rank_open(&k, &p, 0);
	for (uint32_t i = 0; i < n; i++)
		save(&k, step[i]);
	rank_close(&k, 0);
}

/* Restores from disk into a fresh rank. -errno: no byte of it was touched. */
static int restore(const char *job, uint64_t step)
{
	struct plan_of_job p = plan_of(job);
	int rc;

	rank_open(&K, &p, 0);
	rank_clear(&K);
	rc = rank_restore(&K, step, CKPT_FROM_DISK);
	assert_true(rc == 0 ? rank_check(&K, K.got.step) : rank_check_clear(&K));
	rank_close(&K, 0);
	return rc;
}

static uint64_t restored(const char *job, uint64_t step)
{
	assert_int_equal(restore(job, step), 0);
	return K.got.step;
}

static void copy_dir(const char *from, const char *to)
{
	char command[900];

	snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
	assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
	(void)state;
	host_make(&H);
	ops = host_ops;
	host_start(&H, &ops);
	return 0;
}

TEST(a_step_whose_directory_holds_another_one_is_not_restored)
{
	save_these("run", (const uint64_t[]){ 8, 12 }, 2);
	copy_dir(dir_of("run", 12), dir_of("run", 8));
	assert_int_equal(restore("run", 8), -EBADMSG);
	assert_non_null(strstr(K.err.msg, dir_of("run", 8)));
	assert_non_null(strstr(K.err.msg, "is not step 8: its MANIFEST is that of step 12"));
	assert_int_equal(restored("run", CKPT_LATEST), 12);
	copy_dir(dir_of("run", 12), dir_of("run", 20)); /* and as the newest */
	assert_int_equal(restored("run", CKPT_LATEST), 12);
	assert_int_equal(restore("run", 20), -EBADMSG);
	assert_int_equal(host_count(&H, "run", STORE_MISPLACED), 2);
	assert_int_equal(host_count(&H, "run", STORE_QUARANTINED), 0);
	/* Nothing is committed over it unseen: it is set aside. */
	save_these("run", (const uint64_t[]){ 20 }, 1);
	assert_int_equal(host_count(&H, "run", STORE_COMMITTED), 1);
	assert_int_equal(host_count(&H, "run", STORE_SET_ASIDE), 3);
}

TEST(another_jobs_step_is_not_restored)
{
	save_these("base", (const uint64_t[]){ 50 }, 1);
	save_these("run", (const uint64_t[]){ 8, 12 }, 2);
	copy_dir(dir_of("base", 50), dir_of("run", 50));
	assert_int_equal(restored("run", CKPT_LATEST), 12);
	assert_int_equal(restore("run", 50), -EBADMSG);
	assert_non_null(strstr(K.err.msg, "step of job base"));
	assert_non_null(strstr(K.err.msg, "ckptctl adopt"));
}

TEST(a_directory_of_another_job_is_not_attached_to)
{
	struct plan_of_job p;
	char from[256], to[256];

	save_these("run", (const uint64_t[]){ 8 }, 1);
	snprintf(from, sizeof from, "%s/run", H.store);
	snprintf(to, sizeof to, "%s/other", H.store);
	copy_dir(from, to);
	p = plan_of("other");
	assert_int_equal(rank_attach(&K, &p, 0), -EINVAL);
	assert_non_null(strstr(K.err.msg, "belongs to job run"));
	assert_non_null(strstr(K.err.msg, "ckptctl adopt"));
	rank_free(&K);
	assert_int_equal(restore("run", 8), 0);
}

static void make_newer(const char *dir)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	struct hash128 self;
	char path[300];
	int fd;

	snprintf(path, sizeof path, "%s/MANIFEST", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, head, sizeof *head, 0), sizeof *head);
	head->incompat = le64_of(CONTAINER_TESTED);
	self = hash128(head, offsetof(struct ck_head, self));
	memcpy(head->self, self.b, sizeof head->self);
	assert_int_equal(pwrite(fd, head, sizeof *head, 0), sizeof *head);
	close(fd);
}

TEST(latest_stops_at_a_step_that_a_newer_version_wrote)
{
	save_these("run", (const uint64_t[]){ 8, 12, 20 }, 3);
	make_newer(dir_of("run", 20));
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(restore("run", CKPT_LATEST), -EPROTONOSUPPORT);
		assert_non_null(strstr(K.err.msg, "was written by a newer version"));
	}
	assert_int_equal(restore("run", 20), -EPROTONOSUPPORT);
	assert_int_equal(host_count(&H, "run", STORE_NEWER), 1);
	assert_int_equal(host_count(&H, "run", STORE_QUARANTINED), 0);
	assert_int_equal(restore("run", 12), 0);
}

TEST(steps_of_an_older_version_are_refused_and_set_aside_by_who_begins_anew)
{
	assert_true(mkdir(H.store, 0700) == 0 || errno == EEXIST);
	assert_true(older_store(H.store));
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(restore("demo", CKPT_LATEST), -EPROTONOSUPPORT);
		assert_non_null(strstr(K.err.msg, "step-000000000030 has format 0.0 of ckptd 0.1; "
						  "this program reads 0.2: use ckptd 0.1"));
	}
	assert_int_equal(restore("demo", 20), -EPROTONOSUPPORT);
	assert_int_equal(host_count(&H, "demo", STORE_OLDER), 3);
	assert_int_equal(host_count(&H, "demo", STORE_QUARANTINED), 0);
	save_these("demo", (const uint64_t[]){ 8 }, 1);
	assert_int_equal(host_count(&H, "demo", STORE_SET_ASIDE), 3);
	assert_int_equal(host_count(&H, "demo", STORE_COMMITTED), 1);
	assert_int_equal(restored("demo", CKPT_LATEST), 8);
	/* Each attach that found them has said so. */
	assert_int_equal(
		said_times(&daemon_said, "job demo: step-000000000030 has format 0.0 of ckptd 0.1"),
		4);
}

/* $S: the newest step, $P: a part of it that no other step has. */
static const char *const spoils[] = {
	"rm $S/MANIFEST",
	"truncate -s 100 $S/MANIFEST",
	"printf X | dd of=$S/MANIFEST bs=1 seek=64 conv=notrunc status=none",
	"rm $S/$P",
	"truncate -s 4096 $S/$P",
	"mv $S/$P $S/../../elsewhere && ln -s ../../elsewhere $S/$P",
	"D=$(dirname $S); rm -rf $S; cp -a $D/../stranger/step-000000000020 $S",
	"printf X | dd of=$S/$P bs=1 seek=8192 conv=notrunc status=none",
};

TEST(the_latest_step_of_the_library_is_that_of_every_verb)
{
	char command[900], job[16];

	save_these("stranger", (const uint64_t[]){ 20 }, 1);
	for (uint32_t i = 0; i < ARRAY_LEN(spoils); i++) {
		snprintf(job, sizeof job, "spoilt%" PRIu32, i);
		save_these(job, (const uint64_t[]){ 8, 12, 20 }, 3);
		snprintf(command, sizeof command,
			 "S='%s'; P=$(cd $S && find *.part -links 1 | head -1); %s",
			 dir_of(job, 20), spoils[i]);
		assert_int_equal(system(command), 0);
		for (uint32_t k = 0; k < 2; k++)
			if (restore(job, CKPT_LATEST) || K.got.step != 12)
				fail_msg("%s: step %" PRIu64 ", %s", spoils[i], K.got.step,
					 K.err.msg);
	}
}

/* At the n-th time that the daemon opens this directory two change places. */
static struct {
	atomic_int left;
	char a[256], b[256];
} swap;

static void exchange(void)
{
	assert_int_equal(renameat2(AT_FDCWD, swap.a, AT_FDCWD, swap.b, RENAME_EXCHANGE), 0);
}

static int swapping_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (strcmp(name, strrchr(swap.a, '/') + 1) == 0 && atomic_fetch_sub(&swap.left, 1) == 1)
		exchange();
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(a_directory_that_is_exchanged_amid_a_restore_gives_no_other_step)
{
	uint32_t nrefused = 0;
	bool swapped = true;

	save_these("run", (const uint64_t[]){ 8, 12 }, 2);
	host_stop(&H);
	snprintf(swap.a, sizeof swap.a, "%s", dir_of("run", 12));
	snprintf(swap.b, sizeof swap.b, "%s", dir_of("run", 8));
	ops.open = swapping_open;
	for (int n = 1; swapped; n++) {
		int rc;

		atomic_store(&swap.left, 0);
		host_start(&H, &ops);
		atomic_store(&swap.left, n);
		rc = restore("run", 12); /* and checks what came */
		swapped = atomic_exchange(&swap.left, 0) <= 0;
		host_stop(&H);
		if (rc == 0)
			assert_int_equal(K.got.step, 12);
		else
			assert_int_equal(rc, -EBADMSG);
		nrefused += rc != 0;
		if (swapped)
			exchange();
		assert_int_equal(host_count(&H, "run", STORE_QUARANTINED), 0);
		assert_int_equal(host_count(&H, "run", STORE_COMMITTED), 2);
	}
	assert_true(nrefused > 0);
	ops.open = io_ops_posix.open;
	host_start(&H, &ops);
}

UNIT(.setup = setup, .teardown = host_teardown);
