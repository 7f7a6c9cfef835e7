/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_prune.c - removal: what goes, what stays and why, and that no crash, fault, reader,
 * hold, commit or second removal in between loses a step or leaves half of one. */
#include <sys/syscall.h>
#include "ckpt/base/container.h"
#include "ckpt/store/repair.h"
#include "tests/crash/job.h"
#include "tests/lib/row.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

#define NSTEP 5 /* 10, 20, ... 50, seq 1 to 5 */

#define NOBODY_ELSE ((uid_t)-1)

/* Who removes. */
static uid_t pretended = NOBODY_ELSE;

static uid_t who_removes(void)
{
	return pretended != NOBODY_ELSE ? pretended : (uid_t)syscall(SYS_geteuid);
}

static struct prune_result pruned; /* what the last one of a case did */
static char rows[4000];
static int verdict; /* of the next verification */
static uint32_t nverified;

static int setup(void **state)
{
	libc_instead.nanosleep = libc_no_nap;
	libc_instead.geteuid = who_removes;
	nverified = 0;
	verdict = 0;
	(void)job_make_three(state);
	save(40, 30);
	save(50, 40);
	return 0;
}

static int verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *e)
{
	int r = verdict;

	assert_true(step_fd >= 0);
	nverified++;
	verdict = 0;
	return r ? ckpt_error(e, r, "part w0001 is damaged") : 0;
}

static void row(void *arg, const struct store_step *st, const struct retain_row *r)
{
	size_t used = strlen(rows);

	(void)snprintf(rows + used, sizeof rows - used, "%" PRIu64 " %s %s\n", st->step,
		       r->remove ? "remove" : "keep", r->reason);
}

static int prune_with(const struct io_ops *by, int job_fd, const struct prune_opts *o,
		      struct prune_result *ret)
{
	struct store by_hand = { .ops = by,
				 .format = &format_native,
				 .root_fd = -1,
				 .job_fd = job_fd,
				 .job = CRASH_JOB };

	rows[0] = 0;
	memset(&err, 0, sizeof err);
	memset(ret, 0xa5, sizeof *ret);
	return store_prune(&by_hand, o, ret, &err);
}

static struct prune_opts keep_last(const struct retain_policy *p)
{
	return (struct prune_opts){
		.policy = p, .now_ns = wall_ns(), .verify = verify, .row = row
	};
}

static const struct retain_policy last1 = { .keep_last = 1 }, last2 = { .keep_last = 2 };
/* Steps here are written in nanoseconds that follow each other. */
static const struct retain_policy last2_at_once = { .keep_last = 2, .set_aside_for_ns = 1 };

static int prune_try(const struct io_ops *by, const struct retain_policy *p)
{
	struct prune_opts o = keep_last(p);

	return prune_with(by, s->job_fd, &o, &pruned);
}

static struct prune_result prune_by(const struct prune_opts *o)
{
	struct prune_result ret;

	if (prune_with(&io_ops_posix, s->job_fd, o, &ret))
		fail_msg("%s", err.msg);
	return ret;
}

static struct prune_result prune(const struct retain_policy *p)
{
	struct prune_opts o = keep_last(p);

	return prune_by(&o);
}

static void assert_rows(const char *want)
{
	if (strcmp(rows, want) != 0)
		fail_msg("rows:\n%swanted:\n%s", rows, want);
}

static void assert_listed(const char *want)
{
	char text[200];

	listed(s, false, text);
	assert_string_equal(text, want);
}

static int other_entry(void *arg, const char *name, unsigned char d_type)
{
	uint32_t *n = arg;

	*n += strncmp(name, ".trash-", 7) == 0 || strncmp(name, "verified-", 9) == 0;
	return 0;
}

static uint32_t leftovers(const char *dir)
{
	uint32_t n = 0;
	cleanup_close int fd = dir_open(s->job_fd, dir);

	assert_int_equal(io_ops_posix.list(NULL, fd, other_entry, &n), 0);
	return n;
}

/* --- what goes and what stays --- */

TEST(what_no_rule_keeps_goes_and_each_row_says_why)
{
	label(10, LABEL_TAG, "first");
	label(20, LABEL_VERIFIED, NULL);
	pruned = prune(&last2);
	assert_rows("50 keep last 1/2, newest committed\n40 keep last 2/2\n"
		    "30 remove no rule matches\n20 remove no rule matches\n"
		    "10 keep tagged first\n");
	assert_listed("50 40 10");
	assert_int_equal(pruned.removed, 2);
	assert_int_equal(pruned.kept, 3);
	assert_int_equal(pruned.newest, 50);
	assert_true(pruned.freed > 0);
	assert_int_equal(nverified, 1);
	assert_int_equal(leftovers("."), 0);
	assert_int_equal(leftovers(STORE_CLAIMS), 1); /* that of 50 */
	pruned = prune(&last1);
	assert_int_equal(pruned.removed, 1);
	assert_int_equal(nverified, 1); /* the label says so */
	assert_listed("50 10");
}

TEST(a_dry_run_changes_nothing)
{
	struct prune_opts o = keep_last(&last1);

	o.dry = true;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 4);
	assert_true(pruned.unverified);
	assert_int_equal(nverified, 0);
	assert_listed("50 40 30 20 10");
	o.free_bytes = 1;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 1);
	o.verify = NULL; /* nor does it need who verifies */
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 1);
	assert_true(pruned.unverified);
	assert_listed("50 40 30 20 10");
}

TEST(without_a_policy_or_a_verified_step_nothing_goes)
{
	struct prune_opts o = keep_last(&last1);

	o.policy = NULL;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 0);
	assert_false(pruned.unverified);
	o.policy = &last1;
	o.verify = NULL;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 0);
	assert_true(pruned.unverified);
	assert_non_null(strstr(rows, "no newer step is verified"));
	verdict = -EIO;
	o.verify = verify;
	assert_int_equal(prune_with(&io_ops_posix, s->job_fd, &o, &pruned), -EIO);
	assert_listed("50 40 30 20 10");
	verdict = -EIO; /* where nobody wants the sentence, too */
	assert_int_equal(store_prune(s, &o, &pruned, NULL), -EIO);
	assert_listed("50 40 30 20 10");
}

TEST(no_more_than_what_is_asked_goes_the_oldest_first)
{
	struct prune_opts o = keep_last(&last1);

	o.free_bytes = 1;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 1);
	assert_listed("50 40 30 20");
	o.free_bytes = pruned.freed + 1;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 2);
	assert_listed("50 40");
}

TEST(what_verification_finds_damaged_is_quarantined_and_the_next_is_asked)
{
	static const int damage[] = { -EBADMSG, -EPROTO, -EUCLEAN };
	static const char *const said[] = { NULL, "it contradicts itself: ", "it lacks a part: " };

	for (uint32_t i = 0; i < ARRAY_LEN(damage); i++) {
		verdict = damage[i];
		pruned = prune(&last1);
		assert_int_equal(pruned.quarantined, damage[i] == -EBADMSG);
		assert_int_equal(pruned.faulty, damage[i] != -EBADMSG);
		assert_int_equal(pruned.fault.code, damage[i] == -EBADMSG ? 0 : -EBADMSG);
		assert_true(said[i] == NULL ||
			    (strstr(pruned.fault.msg, said[i]) && strstr(rows, said[i])));
		assert_int_equal(pruned.removed, 3);
		assert_int_equal(pruned.newest, 40);
		assert_int_equal(nverified, 2);
		/* Only a sum that is wrong is told to everybody who comes later. */
		assert_listed(damage[i] == -EBADMSG ? "q50 40" : "50 40");
		AFRESH();
	}
}

TEST(lean_it_relies_on_the_newest_verified_step_which_stays)
{
	struct prune_opts o = keep_last(&last1);

	o.lean = true;
	label(20, LABEL_VERIFIED, NULL);
	label(30, LABEL_VERIFIED, NULL);
	pruned = prune_by(&o);
	assert_int_equal(nverified, 0);
	assert_listed("50 30");
	assert_non_null(strstr(rows, "30 keep the newest that is verified"));
	assert_int_equal(pruned.newest, 50);
	o.lean = false;
	pruned = prune_by(&o);
	assert_int_equal(nverified, 1);
	assert_listed("50");
}

TEST(lean_it_reads_the_newest_step_back_if_none_is_verified)
{
	struct prune_opts o = keep_last(&last2);

	o.lean = true;
	label(30, LABEL_VERIFIED, NULL);
	label(30, LABEL_BAD, NULL);
	verdict = -EBADMSG;
	pruned = prune_by(&o);
	assert_int_equal(nverified, 2);
	assert_listed("q50 40 q30 20");
	pruned = prune_by(&o);
	assert_int_equal(nverified, 2);
	assert_int_equal(pruned.removed, 0);
}

TEST(lean_nothing_goes_when_the_step_that_it_relies_on_has_lost_a_part)
{
	struct prune_opts o = keep_last(&last1);
	char name[128];

	o.lean = true;
	label(30, LABEL_VERIFIED, NULL);
	assert_int_equal(saved[2].step, 30);
	(void)snprintf(name, sizeof name, "step-000000000030/%s", saved[2].file[0].name);
	unlinked(name);
	pruned = prune_by(&o);
	assert_int_equal(pruned.faulty, 1);
	assert_int_equal(nverified, 1); /* 50, which is relied on instead */
	assert_non_null(strstr(rows, "30 keep it lacks a part: "));
	assert_int_equal(pruned.removed, 3);
}

static uint32_t labels_looked;

/* Somebody finds the newest one damaged after the scan and before the labels are read. */
static int open_then_bad(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (strcmp(name, STORE_CLAIMS) == 0 && ++labels_looked == 2)
		label(50, LABEL_BAD, NULL);
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(what_is_found_damaged_between_two_looks_is_nothing_to_rely_on)
{
	labels_looked = 0;
	label(50, LABEL_VERIFIED, NULL);
	label(40, LABEL_VERIFIED, NULL);
	ops.open = open_then_bad;
	assert_int_equal(prune_try(&ops, &last1), 0);
	assert_true(labels_looked > 2);
	assert_int_equal(pruned.newest, 40);
	assert_listed("q50 40");
}

TEST(damaged_and_quarantined_steps_go_only_when_asked_for_and_older)
{
	struct prune_opts o = keep_last(NULL);

	label(50, LABEL_BAD, NULL);
	label(30, LABEL_BAD, NULL);
	label(20, LABEL_HOLD, "me");
	unlinked("step-000000000020/MANIFEST");
	unlinked("step-000000000010/MANIFEST");
	assert_listed("q50 40 q30 d20 d10");
	pruned = prune(&last1);
	assert_int_equal(pruned.removed, 0);
	o.bad = true;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 2);
	assert_listed("q50 40 d20");
	assert_non_null(strstr(rows, "20 keep held by me"));
	assert_non_null(strstr(rows, "50 keep no newer step is committed"));
}

TEST(of_what_was_set_aside_the_bad_ones_go_and_the_sound_ones_by_the_rules)
{
	struct prune_opts o = keep_last(NULL);
	cleanup_txn struct store_txn *x = NULL;
	char path[STORE_DIR_MAX + 10];

	label(50, LABEL_BAD, NULL);
	label(20, LABEL_BAD, NULL);
	label(20, LABEL_TAG, "kept");
	label(10, LABEL_TAG, "first");
	save(25, 20);
	(void)snprintf(path, sizeof path, "%s/MANIFEST", crash_aside(s, 40, 4));
	unlinked(path);
	x = begun(s, 60, 7);
	assert_listed("c60 25 a50 a40 a30 q20 10");
	o.bad = true;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 2);
	assert_non_null(strstr(rows, "50 remove quarantined"));
	assert_non_null(strstr(rows, "40 remove its MANIFEST is missing"));
	assert_non_null(strstr(rows, "30 keep no policy"));
	assert_non_null(strstr(rows, "20 keep tagged kept"));
	assert_listed("c60 25 a30 q20 10");
}

TEST(a_hold_that_has_expired_keeps_nothing)
{
	cleanup_free struct store_step *st = NULL;
	struct prune_opts o = keep_last(&last1);
	uint32_t n;

	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	for (uint32_t i = 2; i < 4; i++) /* 30 and 20 */
		assert_int_equal(store_label_set(s, &st[i], LABEL_HOLD, "me",
						 o.now_ns + (i == 2 ? 0 : NS_PER_S), NULL, &err),
				 0);
	label(30, LABEL_BAD, NULL);
	o.bad = true;
	(void)prune_by(&o);
	assert_listed("50 20");
	o.now_ns += NS_PER_S;
	(void)prune_by(&o);
	assert_listed("50");
}

/* Its MANIFEST asks for a feature that nobody here knows. */
static void make_newer(const char *dir)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	struct hash128 self;
	char path[100];
	cleanup_close int fd = -1;

	(void)snprintf(path, sizeof path, "%s/MANIFEST", dir);
	fd = openat(s->job_fd, path, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, head, sizeof *head, 0), sizeof *head);
	head->incompat = le64_of(CONTAINER_TESTED);
	self = hash128(head, offsetof(struct ck_head, self));
	memcpy(head->self, self.b, sizeof head->self);
	assert_int_equal(pwrite(fd, head, sizeof *head, 0), sizeof *head);
}

TEST(what_a_newer_version_wrote_is_not_removed_as_bad_and_not_repaired)
{
	const struct repair_opts r = { .verify = verify };
	struct prune_opts o = keep_last(NULL);
	struct repair_result repaired;

	make_newer("step-000000000020");
	assert_listed("50 40 30 n20 10");
	o.bad = true;
	pruned = prune_by(&o);
	assert_int_equal(pruned.removed, 0);
	assert_non_null(strstr(rows, "20 keep written by a newer version"));
	(void)prune(&last2);
	assert_listed("50 40 n20");
	assert_int_equal(store_repair(s, &r, &repaired, &err), 0);
	assert_int_equal(repaired.rebuilt, 0);
	assert_int_equal(repaired.left, 1);
	assert_listed("50 40 n20");
}

/* They were set aside when they were written. */
static void asides_age(void)
{
	cleanup_free struct store_name *name = NULL;
	char to[STORE_DIR_MAX];
	uint32_t n;

	assert_int_equal(store_list(&io_ops_posix, s->job_fd, STORE_OLD, &name, &n), 0);
	for (uint32_t i = 0; i < n; i++) {
		store_name_old(name[i].step, name[i].seq, 1, to);
		if (strcmp(name[i].dir, to) != 0)
			move(name[i].dir, to);
	}
}

TEST(a_step_that_was_set_aside_goes_when_enough_newer_ones_are_committed)
{
	save(35, 30);
	assert_listed("35 a50 a40 30 20 10");
	(void)prune(&last2);
	assert_listed("35 a50 a40 30"); /* for seven days */
	asides_age();
	(void)prune(&last2_at_once);
	assert_listed("35 a50 30");
	save(45, 35);
	(void)prune(&last2);
	assert_listed("45 35 a50");
	asides_age();
	(void)prune(&last2_at_once);
	assert_listed("45 35");
}

static struct prune_result prune_aside(const struct retain_policy *p, uint64_t free_bytes)
{
	struct prune_opts o = keep_last(p);

	o.set_aside = true;
	o.free_bytes = free_bytes;
	return prune_by(&o);
}

TEST(what_was_set_aside_goes_at_once_when_that_is_asked_for_and_nothing_else)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	save(25, 20);
	label(40, LABEL_HOLD, "me");
	label(50, LABEL_BAD, NULL);
	assert_listed("25 a50 a40 a30 20 10");
	assert_int_equal(prune_aside(NULL, 0).removed, 2);
	assert_int_equal(nverified, 1);
	assert_rows("25 keep newest committed\n50 remove set aside\n40 keep held by me\n"
		    "30 remove set aside\n20 keep no policy\n10 keep no policy\n");
	assert_listed("25 a40 20 10");
	/* Nothing complete would be left. */
	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	assert_int_equal(store_label_clear(s, &st[1], LABEL_HOLD, NULL, NULL, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		if (st[i].state == STORE_COMMITTED)
			label(st[i].step, LABEL_BAD, NULL);
	assert_int_equal(prune_aside(NULL, 0).removed, 0);
	assert_listed("q25 a40 q20 q10");
}

/* Where room is made: first what was set aside, from the oldest on, and then what the policy does
 * not keep. */
TEST(for_room_what_was_set_aside_goes_before_anything_else)
{
	save(25, 20);
	assert_int_equal(prune_aside(&last1, 1).removed, 1);
	assert_listed("25 a50 a40 20 10");
	assert_int_equal(prune_aside(&last1, 1).removed, 1);
	assert_int_equal(prune_aside(&last1, 1).removed, 1);
	assert_listed("25 20 10");
	assert_int_equal(prune_aside(&last1, 1).removed, 1);
	assert_listed("25 20");
}

/* After a rewind they have a higher seq than what is committed. */
TEST(what_was_set_aside_goes_also_when_it_is_newer)
{
	move("step-000000000050", ".old-000000000050-s5-t1");
	assert_int_equal(prune(&last1).removed, 3);
	assert_listed("a50 40");
	assert_int_equal(prune_aside(NULL, 0).removed, 1);
	assert_listed("40");
}

TEST(what_could_not_be_read_stays_when_what_was_set_aside_goes)
{
	save(25, 20);
	make_newer(crash_aside(s, 40, 4));
	assert_int_equal(prune_aside(NULL, 0).removed, 2);
	assert_listed("25 a40 20 10");
}

/* As a crash between setting aside and committing leaves it. */
TEST(what_is_newer_than_the_newest_committed_step_stays)
{
	move("step-000000000050", ".old-000000000050-s5");
	(void)prune(&last1);
	assert_listed("a50 40");
	move("step-000000000040", ".old-000000000040-s4");
	assert_int_equal(prune(&last1).removed, 0);
	assert_listed("a50 a40");
}

TEST(what_is_being_read_stays)
{
	struct store_ref ref;
	int fd;

	assert_int_equal(store_step_open(s, "step-000000000020", &fd, &err), 0);
	assert_int_equal(
		store_resolve(&io_ops_posix, &format_native, place.path, "step:30", &ref, &err), 0);
	pruned = prune(&last1);
	assert_int_equal(pruned.busy, 2);
	assert_int_equal(pruned.removed, 2);
	assert_non_null(strstr(rows, "30 keep it is being read"));
	assert_listed("50 30 20");
	(void)close(fd);
	(void)close(ref.step_fd);
	assert_int_equal(prune(&last1).removed, 2);
}

TEST(where_there_are_no_locks_nothing_goes)
{
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	io_faults_fail(&f, IO_ON_LOCK, 1, -EOPNOTSUPP, true);
	assert_int_equal(prune_try(&f.ops, &last1), 0);
	assert_int_equal(pruned.removed, 0);
	assert_int_equal(pruned.failed, 4);
	assert_non_null(strstr(rows, "has no locks"));
	assert_listed("50 40 30 20 10");
}

/* What is in the one directory of trash. */
static const char *in_trash(void)
{
	static char dir[STORE_DIR_MAX];
	cleanup_free struct store_name *name = NULL;
	uint32_t n;

	assert_int_equal(store_list(&io_ops_posix, s->job_fd, STORE_TRASH, &name, &n), 0);
	assert_int_equal(n, 1);
	memcpy(dir, name[0].dir, sizeof dir);
	return dir;
}

/* Our files go, the others stay, and so does the directory, as trash that nobody takes for a
 * step. */
TEST(what_the_store_did_not_make_stays)
{
	static const char *const foreign[] = { ".nfs0001", "notes.txt", "MANIFEST~", "weights.part",
					       "MANIFEST.bak" };
	char path[STORE_DIR_MAX + 40];

	put_dir(place.fd, "precious");
	put_file(place.fd, "precious/w0.part");
	put_dir(s->job_fd, "step-000000000030/lost+found");
	put_dir(s->job_fd, "step-000000000030/w0009-0000000a-000.part");
	assert_int_equal(symlinkat("../../precious/w0.part", s->job_fd,
				   "step-000000000030/w0008-0000000a-000.part"),
			 0);
	for (uint32_t i = 0; i < ARRAY_LEN(foreign); i++) {
		(void)snprintf(path, sizeof path, "step-000000000030/%s", foreign[i]);
		put_file(s->job_fd, path);
	}
	put_file(s->job_fd,
		 "step-000000000030/MANIFEST.damaged-0000000a"); /* as a repair leaves it */
	label(30, LABEL_VERIFIED, NULL);
	pruned = prune(&last1);
	assert_int_equal(pruned.removed, 4);
	assert_int_equal(pruned.failed, 0);
	assert_listed("50");
	(void)snprintf(path, sizeof path, "no rule matches; what is not ckptd's stays in %s\n",
		       in_trash());
	assert_non_null(strstr(rows, path));
	for (uint32_t again = 0; again < 2; again++) {
		assert_int_equal(entries_of(s->job_fd, in_trash()), ARRAY_LEN(foreign) + 3);
		(void)prune(&last1); /* sweeps */
	}
	assert_int_equal(faccessat(place.fd, "precious/w0.part", F_OK, 0), 0);
	assert_int_equal(leftovers(STORE_CLAIMS), 1); /* the label of 30 was removed */
}

/* --- one by its name --- */

static int remove_one(const char *dir, bool dry)
{
	struct store_step st;
	char left[STORE_DIR_MAX];

	err.msg[0] = 0;
	return store_remove(s, dir, dry, wall_ns(), &st, left, &err);
}

TEST(a_step_is_removed_by_its_name_and_never_the_last_complete_one)
{
	char left[STORE_DIR_MAX];
	struct store_step st;
	int fd;

	save(35, 30); /* 40 and 50 are set aside */
	label(20, LABEL_BAD, NULL);
	label(10, LABEL_HOLD, "me");
	assert_listed("35 a50 a40 30 q20 10");
	assert_int_equal(remove_one("step-000000000010", false), -EBUSY);
	assert_non_null(strstr(err.msg, "held by me"));
	assert_int_equal(remove_one("step-000000000011", false), -ENOENT);
	assert_int_equal(store_step_open(s, "step-000000000030", &fd, &err), 0);
	assert_int_equal(remove_one("step-000000000030", true), -EAGAIN);
	assert_int_equal(remove_one("step-000000000030", false), -EAGAIN);
	(void)close(fd);
	assert_int_equal(remove_one("step-000000000030", true), 0);
	assert_listed("35 a50 a40 30 q20 10");
	assert_int_equal(store_remove(s, crash_aside(s, 40, 4), false, wall_ns(), &st, left, &err),
			 0);
	assert_int_equal(st.step, 40);
	assert_string_equal(left, "");
	assert_int_equal(remove_one("step-000000000020", false), 0);
	assert_int_equal(remove_one("step-000000000035", false), 0); /* an older one is left */
	assert_listed("a50 30 10");
	label(10, LABEL_BAD, NULL);
	assert_int_equal(remove_one("step-000000000030", false), -EBUSY);
	assert_non_null(strstr(err.msg, "last complete step"));
	assert_int_equal(remove_one(crash_aside(s, 50, 5), false), 0);
	assert_listed("30 q10");
	assert_int_equal(leftovers("."), 0);
}

TEST(a_step_that_another_removal_relies_on_is_not_removed)
{
	char left[STORE_DIR_MAX];
	struct store at = job_by(&ops);
	int fd;

	/* somebody removes 50, which is what this one would rely on */
	assert_int_equal(store_hold(s, "step-000000000050", true, &fd), 0);
	assert_int_equal(store_remove(&at, "step-000000000010", false, wall_ns(), NULL, left, &err),
			 -EBUSY);
	(void)close(fd);
	assert_listed("50 40 30 20 10");
}

TEST(who_is_not_root_removes_what_is_his_own)
{
	pretended = geteuid() + 4711;
	pruned = prune(&last1);
	pretended = NOBODY_ELSE;
	assert_int_equal(pruned.removed, 0);
	assert_int_equal(pruned.failed, 4);
	assert_non_null(strstr(rows, "it is theirs to remove"));
	assert_listed("50 40 30 20 10");
}

#define OWNER 4711

static uint32_t job_owner;

/* The job is job_owner's, all in it OWNER's. */
static int stat_owned(void *ctx, int fd, struct io_stat *ret)
{
	struct io_stat job;
	int r = io_ops_posix.stat(ctx, s->job_fd, &job);

	assert_int_equal(r, 0);
	r = io_ops_posix.stat(ctx, fd, ret);
	ret->uid = ret->ino == job.ino ? job_owner : OWNER;
	return r;
}

TEST(root_removes_what_is_the_job_s_owner_s)
{
	ops.stat = stat_owned;
	for (uint32_t own = 0; own < 2; own++) {
		job_owner = own ? OWNER : OWNER + 1;
		pretended = 0;
		assert_int_equal(prune_try(&ops, &last1), 0);
		pretended = NOBODY_ELSE;
		assert_int_equal(pruned.removed, own ? 4 : 0);
		assert_int_equal(pruned.failed, own ? 0 : 4);
		assert_listed(own ? "50" : "50 40 30 20 10");
	}
}

static uint64_t stat_fails_at, stat_calls;

static int stat_fails(void *ctx, int fd, struct io_stat *ret)
{
	return ++stat_calls == stat_fails_at ? -EIO : io_ops_posix.stat(ctx, fd, ret);
}

TEST(whose_a_step_is_must_be_known)
{
	for (stat_fails_at = 1;; stat_fails_at++) {
		uint32_t left;
		int r;

		label(50, LABEL_VERIFIED, NULL);
		ops.stat = stat_fails;
		stat_calls = 0;
		r = prune_try(&ops, &last2);
		if (stat_calls < stat_fails_at)
			break;
		left = 3 - (r ? 0 : pruned.removed);
		assert_true(left > 0);
		assert_true(r ? err.msg[0] : strstr(rows, "cannot ") && pruned.failed > 0);
		assert_int_equal(prune(&last2).removed, left);
		assert_listed("50 40");
		AFRESH();
	}
	assert_true(stat_fails_at > 6);
}

TEST(where_it_cannot_be_known_whose_a_step_is_it_is_his_who_may)
{
	ops.stat = NULL;
	assert_int_equal(prune_try(&ops, &last1), 0);
	assert_int_equal(pruned.removed, 4);
	assert_listed("50");
}

TEST(another_users_step_is_theirs)
{
	if (geteuid() != 0) {
		print_message("SKIP: only root can give a directory away\n");
		skip();
	}
	assert_int_equal(fchownat(s->job_fd, "step-000000000010", 12345, 12345, 0), 0);
	pruned = prune(&last1);
	assert_int_equal(pruned.failed, 1);
	assert_listed("50 10");
	assert_int_equal(fchownat(s->job_fd, ".", 12345, 12345, 0), 0);
	assert_int_equal(prune(&last1).removed, 1);
	assert_listed("50");
}

/* --- others at the same time --- */

/* Before the at-th point that is reached, another one acts. */
struct meddling {
	uint64_t at, seen;
	void (*act)(void);
	bool done;
};

static void meddle(void *arg, const char *name)
{
	struct meddling *m = arg;

	if (++m->seen != m->at || m->done)
		return;
	m->done = true;
	m->act();
}

static struct prune_result prune_meddled(const struct retain_policy *p, struct meddling *m)
{
	struct prune_opts o = keep_last(p);
	struct prune_result ret;
	struct io_faults f;

	io_faults_init(&f, &io_ops_posix);
	f.on_point = meddle;
	f.on_point_arg = m;
	assert_int_equal(prune_with(&f.ops, s->job_fd, &o, &ret), 0);
	return ret;
}

static enum store_label_kind late;

static void act_hold(void)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		if (st[i].step == 20)
			verdict = store_label_set(s, &st[i], late, "late", 0, NULL, &err);
}

/* A hold that was acknowledged is a step that stays, whenever it came. */
static void kept_or_refused(void **state, enum store_label_kind kind)
{
	uint32_t held = 0, refused = 0;
	bool acted = true;

	late = kind;
	for (uint64_t at = 1; acted; at++) {
		struct meddling m = { .at = at, .act = act_hold };
		char text[200];

		label(50, LABEL_VERIFIED, NULL);
		verdict = 1;
		(void)prune_meddled(&last1, &m);
		listed(s, false, text);
		acted = m.done;
		if (verdict == 0 && !strstr(text, "20"))
			fail_msg("held before point %" PRIu64 ", and gone", at);
		held += verdict == 0;
		refused += verdict == -ENOENT;
		AFRESH();
	}
	assert_true(held > 0 && refused > 0);
}

TEST(a_hold_at_any_moment_is_kept_or_refused)
{
	kept_or_refused(state, LABEL_HOLD);
}

TEST(a_tag_at_any_moment_is_kept_or_refused)
{
	kept_or_refused(state, LABEL_TAG);
}

static void act_go_back(void)
{
	cleanup_store struct store *other = NULL;

	/* As another process: a claim of its own. */
	other = opened(&io_ops_posix);
	(void)claimed(other, 0, false);
	assert_int_equal(store_step_open(other, "step-000000000010", &verdict, &err) == 0, 1);
	if (crash_save(other, 20, 6, 10, &saved[nsaved], &err) == 0)
		nsaved++;
	else
		crash_step_free(&saved[nsaved]);
	(void)close(verdict);
}

/* It goes back to 10 and commits another 20, at any moment of a removal: that one is never taken
 * for the old one. */
TEST(a_step_that_is_committed_meanwhile_stays)
{
	bool acted = true;
	uint32_t committed = 0;

	for (uint64_t at = 1; acted; at++) {
		struct meddling m = { .at = at, .act = act_go_back };
		char text[200];

		move("step-000000000010", "x");
		move("x", "step-000000000010");
		label(10, LABEL_HOLD, "base");
		label(50, LABEL_VERIFIED, NULL);
		(void)prune_meddled(&last1, &m);
		acted = m.done;
		listed(s, false, text);
		if (nsaved > NSTEP) {
			committed++;
			if (strncmp(text, "20 ", 3) != 0)
				fail_msg("point %" PRIu64 ": %s", at, text);
		} else if (strncmp(text, "50 ", 3) != 0) {
			fail_msg("point %" PRIu64 ": %s", at, text);
		}
		assert_non_null(strstr(text, "10"));
		verdict = 0;
		AFRESH();
	}
	assert_true(committed > 5);
}

static void act_exchange(void)
{
	move("step-000000000010", "moved");
	move("step-000000000020", "step-000000000010");
}

TEST(what_is_no_longer_what_was_judged_stays)
{
	struct meddling m = { .at = 1, .act = act_exchange }; /* the keeper is verified */

	label(50, LABEL_VERIFIED, NULL);
	pruned = prune_meddled(&last2, &m);
	assert_true(m.done);
	assert_int_equal(faccessat(s->job_fd, "step-000000000010/MANIFEST", F_OK, 0), 0);
	assert_int_equal(pruned.removed, 1); /* 30 */
}

static void act_keeper_goes(void)
{
	move("step-000000000050", "moved");
}

TEST(when_the_step_that_was_to_stay_goes_nothing_more_is_removed)
{
	struct meddling m = { .at = 1, .act = act_keeper_goes };

	label(50, LABEL_VERIFIED, NULL);
	pruned = prune_meddled(&last1, &m);
	assert_int_equal(pruned.removed, 0);
	assert_listed("40 30 20 10");
}

static void act_keeper_exchanged(void)
{
	act_keeper_goes();
	put_dir(s->job_fd, "step-000000000050");
}

TEST(when_another_one_has_its_place_nothing_more_is_removed_either)
{
	struct meddling m = { .at = 1, .act = act_keeper_exchanged };

	label(50, LABEL_VERIFIED, NULL);
	pruned = prune_meddled(&last1, &m);
	assert_int_equal(pruned.removed, 0);
	assert_non_null(strstr(rows, "which was to stay instead, has gone"));
	assert_listed("d50 40 30 20 10");
}

/* The newest one goes, or is being read by nobody knows whom, before it is locked: the next one
 * stays. */
static int open_too_late(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (strcmp(name, "step-000000000050") == 0 && TAKE(late))
		act_keeper_goes();
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

TEST(when_the_step_that_is_to_stay_goes_too_early_another_one_stays)
{
	struct io_faults f;

	late = LABEL_TAG;
	ops.open = open_too_late;
	assert_int_equal(prune_try(&ops, &last1), 0);
	assert_int_equal(pruned.newest, 40);
	assert_listed("40");
	AFRESH();
	/* and locked by another's removal: it is looked at again */
	io_faults_init(&f, &io_ops_posix);
	io_faults_fail(&f, IO_ON_LOCK, 1, -EAGAIN, false);
	assert_int_equal(prune_try(&f.ops, &last1), 0);
	assert_int_equal(pruned.newest, 50);
	assert_listed("50");
}

static bool list_fails;

static int lock_then_fail(void *ctx, int fd, bool exclusive)
{
	list_fails = true;
	return -EAGAIN;
}

static int fail_list(void *ctx, int dirfd,
		     int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	return list_fails ? -EIO : io_ops_posix.list(ctx, dirfd, each, arg);
}

TEST(when_the_second_look_fails_nothing_is_removed)
{
	list_fails = false;
	ops.lock = lock_then_fail;
	ops.list = fail_list;
	assert_int_equal(prune_try(&ops, &last1), -EIO);
	assert_true(list_fails);
	assert_non_null(strstr(err.msg, "cannot list its directory"));
	assert_listed("50 40 30 20 10");
}

static bool exchanges;

static int another_each_time(void *ctx, int fd, struct io_stat *ret)
{
	static uint64_t ino;
	int r = io_ops_posix.stat(ctx, fd, ret);

	if (exchanges)
		ret->ino = ++ino;
	return r;
}

static void point_exchange(void *ctx, const char *name)
{
	exchanges = exchanges || strcmp(name, POINT_PRUNE_VERIFIED) == 0;
}

TEST(what_is_another_one_at_every_look_is_neither_relied_on_nor_removed)
{
	ops.stat = another_each_time;
	exchanges = true;
	assert_int_equal(prune_try(&ops, &last1), 0);
	assert_int_equal(pruned.removed, 0);
	assert_int_equal(pruned.newest, 50);
	for (uint32_t i = 1; i < NSTEP; i++) {
		char want[80];

		(void)snprintf(want, sizeof want, "%u keep the newest step changes all the time\n",
			       10 * i);
		assert_non_null(strstr(rows, want));
	}
	assert_non_null(strstr(rows, "50 keep last 1/1, newest committed\n"));
	exchanges = false;
	ops.point = point_exchange;
	assert_int_equal(prune_try(&ops, &last1), 0);
	assert_true(exchanges);
	assert_int_equal(pruned.removed, 0);
	assert_non_null(strstr(rows, "10 keep it has gone, or is another one now"));
	assert_listed("50 40 30 20 10");
}

static struct io_faults dying;

static void act_prune_then_die(void)
{
	if (prune_try(&io_ops_posix, &last1) == 0)
		io_faults_kill(&dying, 1);
}

/* It is pruned at any moment of a commit that goes back, and the committer dies right there: a step
 * of the line is listed. */
TEST(a_prune_amid_a_commit_that_goes_back_leaves_a_step)
{
	bool acted = true;

	for (uint64_t at = 1; acted; at++) {
		struct meddling m = { .at = at, .act = act_prune_then_die };
		struct crash_step c = { 0 };
		struct store *other;
		char text[200];

		io_faults_init(&dying, &io_ops_posix);
		other = opened(&dying.ops);
		(void)claimed(other, 0, false);
		dying.on_point = meddle;
		dying.on_point_arg = &m;
		(void)crash_save(other, 20, 6, 10, &c, &err);
		store_close(other);
		acted = m.done;
		listed(s, false, text);
		if (!strstr(text, "50") && !strstr(text, "20"))
			fail_msg("point %" PRIu64 ": %s", at, text);
		if (text[0] == 'a' && !strstr(text, " 10") && !strstr(text, " 20") &&
		    !strstr(text, " 30") && !strstr(text, " 40"))
			fail_msg("point %" PRIu64 ": nothing is listed: %s", at, text);
		crash_step_free(&c);
		AFRESH();
	}
}

static void act_prune(void)
{
	static const struct retain_policy p = { .keep_last = 3 };

	(void)prune(&p);
}

TEST(a_second_prune_or_a_claim_at_any_moment_is_harmless)
{
	for (uint32_t who = 0; who < 2; who++) {
		bool acted = true;

		for (uint64_t at = 1; acted; at++) {
			struct meddling m = { .at = at, .act = who ? another_claims : act_prune };

			(void)prune_meddled(&last1, &m);
			acted = m.done;
			(void)prune(&last1);
			assert_listed("50");
			assert_int_equal(leftovers("."), 0);
			AFRESH();
		}
	}
}

/* --- faults and deaths --- */

/* 50 and 40 are to stay; the others are there whole or not at all; a claim and a prune clean the
 * rest. */
static void assert_nothing_lost(const char *what, uint64_t nth)
{
	char text[200];

	listed(s, false, text);
	if (strncmp(text, "50 40", 5) != 0 || strpbrk(text, "acd"))
		fail_msg("%s %" PRIu64 ": %s", what, nth, text);
	another_claims();
	(void)prune(&last2);
	assert_listed("50 40");
	assert_int_equal(leftovers("."), 0);
}

TEST(any_call_may_fail)
{
	static const struct {
		uint32_t on;
		int err;
		bool sticky;
	} kind[] = ROW({ IO_ON_ANY, -EIO, false }, { IO_ON_SYNC, -EIO, true },
		       { IO_ON_UNLINK, -EIO, true }, { IO_ON_RENAME, -EIO, true },
		       { IO_ON_MUTATING, -ENOSPC, true });

	for (uint32_t k = 0; k < ARRAY_LEN(kind); k++) {
		bool hit = true;

		for (uint64_t nth = 1; hit; nth++) {
			struct io_faults f;
			int r;

			io_faults_init(&f, &io_ops_posix);
			io_faults_fail(&f, kind[k].on, nth, kind[k].err, kind[k].sticky);
			r = prune_try(&f.ops, &last2);
			hit = io_faults_hit(&f);
			if (r && !err.msg[0])
				fail_msg("call %" PRIu64 ": no sentence", nth);
			assert_nothing_lost("call", nth);
			AFRESH();
		}
	}
}

TEST(it_may_die_at_any_call)
{
	bool hit = true;

	for (uint64_t nth = 1; hit; nth++) {
		struct io_faults f;

		io_faults_init(&f, &io_ops_posix);
		io_faults_kill(&f, nth);
		(void)prune_try(&f.ops, &last2);
		hit = io_faults_hit(&f);
		assert_nothing_lost("dead at", nth);
		AFRESH();
	}
}

/* Promise 1: 30, 20 and 10 are gone. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *at)
{
	struct store left = { .ops = at->ops,
			      .format = &format_native,
			      .root_fd = -1,
			      .job = CRASH_JOB },
		     *again = NULL;
	struct prune_opts o = keep_last(&last2);
	uint64_t generation;
	char text[200];
	int r;

	left.job_fd = at->ops->open(at->ops->ctx, dirfd, CRASH_JOB, O_RDONLY | O_DIRECTORY, 0);
	listed(&left, false, text);
	r = strncmp(text, "50 40", 5) != 0 || strpbrk(text, "acdq") ||
	    (at->promise == 1 && strcmp(text, "50 40") != 0);
	if (r)
		print_message("%s\n", text);
	if (!r && (store_open(at->ops, &format_native, dirfd, CRASH_JOB, true, &again, &err) ||
		   store_claim(again, 0, false, &generation, &err) ||
		   prune_with(at->ops, left.job_fd, &o, &pruned)))
		r = -1;
	store_close(again);
	if (!r) {
		listed(&left, false, text);
		r = strcmp(text, "50 40") != 0;
	}
	(void)at->ops->close(at->ops->ctx, left.job_fd);
	return r;
}

static int walk(struct io_faults *f, uint64_t *ret_states)
{
	struct io_crash_opts o = {
		.seed = 3, .nrandom = 12, .ntear = 1, .memory = true, .quiet = true
	};

	return io_crash_states(f->record, &o, after_power_loss, NULL, ret_states);
}

TEST(the_power_may_go_at_any_moment)
{
	struct io_faults f;
	uint64_t states = 0;

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	assert_int_equal(prune_try(&f.ops, &last2), 0);
	assert_int_equal(pruned.removed, 3);
	io_record_promise(f.record, 1);
	assert_int_equal(walk(&f, &states), 0);
	io_record_free(f.record);
	print_message("%" PRIu64 " states, seed 3\n", states);
	assert_true(states >= 20);
}

static void act_die(void)
{
	io_faults_kill(&dying, 1);
}

/* It dies at any of its points, a claim sweeps, and then the power goes. */
TEST(a_death_a_sweep_and_then_power_loss)
{
	bool acted = true;

	for (uint64_t at = 1; acted; at++) {
		struct meddling m = { .at = at, .act = act_die };
		struct store *other;
		struct io_faults f;

		label(50, LABEL_VERIFIED, NULL);
		io_faults_init(&f, &io_ops_posix);
		io_faults_init(&dying, &f.ops);
		f.record = io_record_new(place.fd);
		/* Open before: opening makes names durable too. */
		other = opened(&f.ops);
		dying.on_point = meddle;
		dying.on_point_arg = &m;
		(void)prune_try(&dying.ops, &last2);
		acted = m.done;
		(void)claimed(other, 0, false);
		store_close(other);
		if (walk(&f, NULL))
			fail_msg("dead at point %" PRIu64, at);
		io_record_free(f.record);
		AFRESH();
	}
}

UNIT(.setup = setup, .teardown = job_remove);
