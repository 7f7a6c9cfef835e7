/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_restored_half.c - a restore that had begun to write and failed, and then there is
 * nothing to restore: the trainer must not be told "there is nothing", because it would keep what
 * memory holds.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define JOB "half"
#define NEVER UINT32_MAX

static bool same(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	(void)g, (void)arg;
	for (uint32_t i = 0; i < t->elem; i++)
		if (p[i] != 0xa5)
			return false;
	return true;
}

/* Has anything been written since rank_clear? */
static bool touched(struct rank *k)
{
	for (uint32_t i = 0; i < k->ntensor; i++)
		if (!rank_each(&k->t[i], same, NULL))
			return true;
	return false;
}

static int one_remove(const char *path, const struct stat *s, int type, struct FTW *at)
{
	(void)s, (void)type, (void)at;
	return strstr(path, "/step-") ? remove(path) : 0;
}

/* What else is in the job's directory says which launch writes there. */

static void job_forget(void)
{
	char path[sizeof H.store + sizeof JOB + 1];

	snprintf(path, sizeof path, "%s/" JOB, H.store);
	assert_int_equal(nftw(path, one_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void step_commit(void)
{
	host_start(&H, NULL);
	open_one(&K, JOB, "fsdp=1", .fresh = true);
	save(&K, 1);
	rank_close(&K, 0);
	host_stop(&H);
}

/* --- a daemon of its own process, which dies at its nth read --- */
static struct io_ops deadly;
static struct {
	_Atomic uint32_t nth; /* 0: not yet */
} * dies_at;		      /* shared with it */

static int64_t deadly_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	uint32_t n = atomic_load(&dies_at->nth);

	while (n && !atomic_compare_exchange_weak(&dies_at->nth, &n, n - 1))
		;
	if (n == 1)
		(void)raise(SIGKILL);
	return host_ops.pread(ctx, fd, buf, len, off);
}

static pid_t deadly_start(void)
{
	pid_t pid;

	dies_at = mmap(NULL, sizeof *dies_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	assert_true(dies_at != MAP_FAILED);
	pid = fork();
	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	deadly = host_ops;
	deadly.pread = deadly_pread;
	host_start(&H, &deadly);
	(void)pthread_join(H.thread, NULL);
	_exit(0);
}

/* What ckpt_restore says when it finds nothing; memory as it was: -ENOENT. */
static void nothing_is_judged(int expected)
{
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_DRY_RUN), -ENOENT);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), expected);
		assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK), expected);
		assert_int_equal(rank_restore(&K, 1, 0), expected);
	}
	if (expected == -ENOENT)
		return;
	assert_non_null(strstr(K.err.msg, "memory is undefined"));
	assert_non_null(strstr(K.err.msg, "ckpt_fresh"));
	assert_int_equal(ckpt_snapshot(K.c, 5, NULL), -EUCLEAN);
	assert_int_equal(rank_why(&K), -EUCLEAN);
	assert_int_equal(ckpt_fresh(K.c), 0);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -ENOENT);
	save(&K, 5);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, 0);
	assert_true(rank_check(&K, 5));
}

/* It may not listen yet. */
static bool attached(const struct plan_of_job *p)
{
	if (rank_attach(&K, p, 0) == 0)
		return true;
	rank_free(&K);
	return false;
}

static struct {
	uint32_t reads;		    /* of a whole restore */
	uint32_t halves, untouched; /* the daemon died amid the writing, and before it */
} seen;

static void died_at(uint32_t nth, bool own)
{
	struct plan_of_job p = plan(JOB, "fsdp=1", .fresh = own, .shared_only = !own);
	bool half;
	pid_t pid;
	int rc, then;

	step_commit();
	pid = deadly_start();
	assert_soon(attached(&p));
	rank_declare_and_seal(&K);
	rank_clear(&K);
	atomic_store(&dies_at->nth, nth);
	rc = rank_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	half = rc < 0 && touched(&K);
	(void)kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	if (nth == NEVER) {
		assert_int_equal(rc, 0);
		seen.reads = NEVER - atomic_load(&dies_at->nth);
	}
	munmap(dies_at, sizeof *dies_at);
	job_forget();
	host_start(&H, NULL);
	if (rc < 0) {
		assert_int_equal(rc, -ECONNRESET);
		must_reattach(&K, 1);
		assert_soon(rank_seal(&K, PATIENCE) == 0);
		then = rank_restore(&K, CKPT_LATEST, 0);
		if (half || then != -ENOENT)
			assert_int_equal(then, -EUCLEAN);
		seen.halves += half;
		seen.untouched += then == -ENOENT;
		nothing_is_judged(then);
	}
	rank_close(&K, 0);
	host_stop(&H);
	job_forget();
}

static void daemon_dies_at_reads(bool own)
{
	memset(&seen, 0, sizeof seen);
	died_at(NEVER, own);
	assert_in_range(seen.reads, 4, NEVER - 1);
	died_at(1, own);
	for (uint32_t before_last = 3; before_last-- > 0;)
		died_at(seen.reads - before_last, own);
	assert_int_not_equal(seen.halves, 0);
	assert_int_not_equal(seen.untouched, 0);
}

TEST(a_daemon_that_dies_amid_a_restore_leaves_memory_undefined)
{
	daemon_dies_at_reads(false);
}

TEST(so_it_is_with_memory_of_the_process_and_after_ckpt_fresh)
{
	daemon_dies_at_reads(true);
}

TEST(a_damaged_step_that_was_tried_and_removed_then_is_not_said_to_be_nothing)
{
	step_commit();
	host_damage(&H, JOB, 1);
	host_start(&H, NULL);
	open_one(&K, JOB, "fsdp=1");
	rank_clear(&K);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, 0), -EBADMSG);
	host_stop(&H);
	job_forget();
	host_start(&H, NULL);
	must_reattach(&K, 1);
	must_seal(&K);
	nothing_is_judged(-EUCLEAN);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
