/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_repair.c - what dead launches left, quarantined steps, and MANIFESTs made again; and
 * that every named point of the store is reached. */
#include "ckpt/store/store_policy.h"
#include "ckpt/store/repair.h"
#include "ckpt/store/rewind.h"
#include "tests/crash/job.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

static struct repair_result repaired; /* what the last one of a case did */
static char rows[4000];
static int verdict; /* of the next verification */
static int row_rc;  /* of the last row */

static int setup(void **state)
{
	verdict = 0;
	return job_make_three(state);
}

/* As the command does it, but for the data: the directory must open as a whole checkpoint. */
static int verify(void *arg, const struct store_step *st, int step_fd, struct ckpt_err *e)
{
	struct checkpoint *c = NULL;
	struct source_dir dir;
	int r = source_make(&io_ops_posix, step_fd, NULL, 0, &dir);

	if (r)
		return r;
	r = format_native.open(&(struct format_open){ .dir = &dir }, &c, e);
	source_end(&dir);
	if (!r)
		assert_int_equal(c->step, st->step);
	checkpoint_free(c);
	if (!r && verdict)
		r = ckpt_error(e, verdict, "chunk 3 is damaged");
	return r;
}

static void row(void *arg, const struct repair_row *r)
{
	static const char *const word[] = { "removed", "released", "rebuilt", "left" };
	size_t used = strlen(rows);

	row_rc = r->rc;
	(void)snprintf(rows + used, sizeof rows - used, "%s %.12s", word[r->act], r->dir);
	used = strlen(rows);
	(void)snprintf(rows + used, sizeof rows - used, "%s: %s\n",
		       strlen(r->dir) > 12 ? "..." : "", r->text);
}

static struct repair_result repair_of(const struct io_ops *by, const char *dir, bool dry,
				      bool abandoned, int want)
{
	struct repair_opts o = {
		.dry = dry, .abandoned = abandoned, .dir = dir, .verify = verify, .row = row
	};
	struct repair_result ret;
	struct store *other;
	int r;

	rows[0] = 0;
	assert_int_equal(
		store_open(&io_ops_posix, &format_native, place.fd, CRASH_JOB, false, &other, &err),
		0);
	other->ops = by;
	r = store_repair(other, &o, &ret, &err);
	other->ops = &io_ops_posix;
	store_close(other);
	if (r != want)
		fail_msg("%d: %s", r, err.msg);
	return ret;
}

static struct repair_result repair(void)
{
	return repair_of(&io_ops_posix, NULL, false, false, 0);
}

static void assert_listed(const char *want)
{
	char text[200];

	listed(s, true, text);
	if (strcmp(text, want) != 0)
		fail_msg("%s, wanted %s; rows:\n%s", text, want, rows);
}

static uint32_t labels(enum store_label_kind kind, uint64_t number)
{
	cleanup_free struct store_label *m = NULL;
	cleanup_free struct store_step *st = NULL;
	uint32_t n, nst, found = 0;

	assert_int_equal(store_labels(s, &m, &n, &err), 0);
	assert_int_equal(store_scan(s, true, &st, &nst, &err), 0);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < nst; k++)
			found += m[i].kind == kind && st[k].step == number &&
				 store_label_is(&m[i], &st[k]);
	return found;
}

static void spoil(const char *file, off_t at)
{
	cleanup_close int fd = openat(s->job_fd, file, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "\xff", 1, at), 1);
}

/* --- what dead launches left --- */

TEST(what_older_launches_left_goes_and_the_newest_ones_stays)
{
	struct crash_step c = { 0 }, d = { 0 };
	struct store_txn *x, *y;
	struct store *later;

	assert_int_equal(crash_begin(s, 40, 4, &x, &c, &err), 0);
	later = opened(&io_ops_posix);
	move(x->dir, "hidden");
	(void)claimed(later, 0, false);
	move("hidden", x->dir);
	assert_int_equal(crash_begin(later, 50, 4, &y, &d, &err), 0);
	put_dir(s->job_fd, ".trash-00000001");
	repaired = repair_of(&io_ops_posix, NULL, true, false, 0);
	assert_int_equal(repaired.removed, 2);
	assert_int_equal(repaired.left, 1);
	assert_int_equal(faccessat(s->job_fd, x->dir, F_OK, 0), 0);
	repaired = repair();
	assert_int_equal(repaired.removed, 2);
	assert_int_equal(repaired.left, 1);
	assert_true(repaired.freed > 0);
	assert_int_equal(faccessat(s->job_fd, x->dir, F_OK, 0), -1);
	assert_int_equal(faccessat(s->job_fd, y->dir, F_OK, 0), 0);
	repaired = repair_of(&io_ops_posix, NULL, false, true, 0);
	assert_int_equal(repaired.removed, 1);
	assert_int_equal(crash_commit(y, &d, 30, &err), -ESTALE);
	store_abort(x);
	store_close(later);
	crash_step_free(&c);
	crash_step_free(&d);
	assert_listed("30-3 20-2 10-1");
}

static int closed_trash(void *ctx, int dirfd, const char *path, int flags, uint32_t mode)
{
	return strncmp(path, ".trash-", 7) == 0 ? -EIO
						: io_ops_posix.open(ctx, dirfd, path, flags, mode);
}

TEST(what_ckptd_did_not_make_is_left_and_listed)
{
	put_dir(s->job_fd, ".trash-00000001");
	put_dir(s->job_fd, ".trash-00000001/sub");
	ops.open = closed_trash;
	for (uint32_t i = 0; i < 2; i++) {
		repaired = repair_of(i ? &io_ops_posix : &ops, NULL, false, false, 0);
		assert_int_equal(repaired.removed, 0);
		assert_int_equal(repaired.left, 1);
		assert_non_null(strstr(rows, i ? "1 file is in it that ckptd did not make: sub"
					       : "left .trash-00000...: it cannot be removed"));
		assert_int_equal(row_rc, i ? -ENOTEMPTY : -EIO);
	}
	put_file(s->job_fd, ".trash-00000001/.nfs0001");
	repaired = repair_of(&io_ops_posix, NULL, true, false, 0);
	assert_int_equal(repaired.removed, 0);
	assert_non_null(strstr(rows, "2 files are in it that ckptd did not make"));
	assert_int_equal(faccessat(s->job_fd, ".trash-00000001/sub", F_OK, 0), 0);
	assert_int_equal(faccessat(s->job_fd, ".trash-00000001/.nfs0001", F_OK, 0), 0);
}

TEST(what_a_dead_launch_left_goes_or_it_is_said_why_not)
{
	struct io_faults f;

	for (uint32_t i = 0; i < 2; i++) {
		char dir[STORE_DIR_MAX];

		store_name_tmp(40, 0, i, dir);
		put_dir(s->job_fd, dir);
	}
	io_faults_init(&f, &io_ops_posix);
	io_faults_fail(&f, IO_ON_RENAME, 1, -EROFS, false);
	repaired = repair_of(&f.ops, NULL, false, false, -EROFS);
	assert_int_equal(repaired.removed + repaired.left, 0);
	assert_non_null(strstr(err.msg, "cannot remove what dead launches left"));
	assert_non_null(strstr(err.msg, "mount it writable"));
	io_faults_fail(&f, IO_ON_RENAME, 1, -ENOENT, false); /* another repair was faster */
	repaired = repair_of(&f.ops, NULL, false, false, 0);
	assert_true(io_faults_hit(&f));
	assert_int_equal(repaired.removed + repaired.left, 2);
	(void)repair();
	assert_listed("30-3 20-2 10-1");
}

/* --- quarantine --- */

static void aside_break(uint64_t step, uint64_t seq)
{
	char path[STORE_DIR_MAX + 10];

	(void)snprintf(path, sizeof path, "%s/MANIFEST", crash_aside(s, step, seq));
	unlinked(path);
}

TEST(what_was_set_aside_is_released_where_it_is)
{
	cleanup_free struct store_step *st = NULL;
	uint32_t n;

	save(25, 20);
	save(26, 25);
	assert_int_equal(store_scan(s, true, &st, &n, &err), 0);
	assert_int_equal(st[2].step, 30);
	assert_int_equal(store_label_set(s, &st[2], LABEL_BAD, NULL, 0, NULL, &err), 0);
	assert_int_equal(store_label_set(s, &st[1], LABEL_BAD, NULL, 0, NULL, &err), 0);
	assert_listed("26-5 q25-4 a30-3 20-2 10-1");
	assert_int_equal(repair_of(&io_ops_posix, NULL, true, false, 0).released, 2);
	assert_non_null(strstr(rows, "released if it is whole: it was found damaged"));
	assert_int_equal(repair_of(&io_ops_posix, crash_aside(s, 30, 3), false, false, 0).released,
			 1);
	assert_listed("26-5 q25-4 a30-3 20-2 10-1");
	assert_int_equal(labels(LABEL_BAD, 30), 0);
	assert_int_equal(labels(LABEL_VERIFIED, 30), 1);
	assert_int_equal(repair().released, 1);
	assert_listed("26-5 25-4 a30-3 20-2 10-1");
	/* Of whose checkpoint nothing is known, nothing is released. */
	label(30, LABEL_BAD, NULL);
	aside_break(30, 3);
	assert_int_equal(repair().released, 0);
	(void)repair_of(&io_ops_posix, ".tmp-000000000030-g00000001-00000000", false, false,
			-EINVAL);
	assert_non_null(strstr(err.msg, "\".tmp-000000000030"));
}

TEST(a_quarantined_step_is_released_only_when_it_is_whole)
{
	static const int verdicts[] = { -EBADMSG, -EPROTO, -EUCLEAN, -EIO };

	label(30, LABEL_BAD, NULL);
	assert_listed("q30-3 20-2 10-1");
	repaired = repair_of(&io_ops_posix, NULL, true, false, 0);
	assert_int_equal(repaired.released, 1);
	for (uint32_t i = 0; i < ARRAY_LEN(verdicts); i++) {
		verdict = verdicts[i];
		repaired = repair();
		assert_int_equal(repaired.left, 1);
		assert_int_equal(row_rc, verdict);
		assert_int_equal(strstr(rows, "it is damaged, and stays") != NULL, verdict != -EIO);
		assert_listed("q30-3 20-2 10-1");
	}
	verdict = 0;
	repaired = repair_of(&io_ops_posix, "step-000000000020", false, false, 0);
	assert_int_equal(repaired.released, 0);
	repaired = repair_of(&io_ops_posix, "step-000000000030", false, false, 0);
	assert_int_equal(repaired.released, 1);
	assert_listed("30-3 20-2 10-1");
	assert_int_equal(labels(LABEL_VERIFIED, 30), 1);
	(void)repair_of(&io_ops_posix, "step-000000000099", false, false, -ENOENT);
	(void)repair_of(&io_ops_posix, "..", false, false, -EINVAL);
}

TEST(why_a_step_is_quarantined_is_told_also_when_it_is_set_aside)
{
	label(30, LABEL_BAD, NULL);
	(void)repair_of(&io_ops_posix, NULL, true, false, 0);
	assert_non_null(strstr(rows, "released if it is whole: why"));
	save(40, 20);
	assert_int_equal(repair_of(&io_ops_posix, NULL, true, false, 0).released, 1);
	assert_non_null(strstr(rows, "released .old-"));
	assert_non_null(strstr(rows, "released if it is whole: why"));
}

/* --- a new MANIFEST --- */

TEST(a_manifest_is_made_again_in_its_place)
{
	static const char *const manifest[] = { "step-000000000010/MANIFEST",
						"step-000000000020/MANIFEST",
						"step-000000000030/MANIFEST" };

	for (uint32_t which = 0; which < 3; which++) {
		for (uint32_t how = 0; how < 3; how++) {
			if (how == 0)
				unlinked(manifest[which]);
			else
				spoil(manifest[which], how == 1 ? 100 : 5000);
			repaired = repair_of(&io_ops_posix, NULL, true, false, 0);
			if (how < 2)
				assert_int_equal(repaired.rebuilt, 1);
			repaired = repair();
			if (repaired.rebuilt) {
				assert_listed("30-3 20-2 10-1");
				assert_int_equal(labels(LABEL_VERIFIED, 10 * (which + 1)), 1);
				assert_int_equal(labels(LABEL_BAD, 10 * (which + 1)), 0);
			}
			AFRESH();
		}
	}
}

TEST(where_the_line_has_no_place_left_a_step_stays_as_it_is)
{
	/* Between 10 and 20, whose places are next to each other. */
	move("step-000000000030", "step-000000000015");
	unlinked("step-000000000015/MANIFEST");
	assert_int_equal(repair().left, 1);
	assert_int_equal(row_rc, -ERANGE);
	assert_non_null(strstr(rows, "leave no place between them"));
	/* Before 10, which has the first place. */
	move("step-000000000015", "step-000000000005");
	assert_int_equal(repair().left, 1);
	assert_int_equal(row_rc, -ERANGE);
	assert_listed("20-2 10-1 d5-0");
}

TEST(where_the_numbers_of_the_line_end_there_is_no_place_after_it)
{
	struct crash_step c = { 0 };

	assert_int_equal(crash_save(s, 40, UINT64_MAX - 2, 30, &c, &err), 0);
	crash_step_free(&c);
	for (uint32_t i = 50; i <= 70; i += 10) {
		char manifest[40];

		save(i, i - 10);
		(void)snprintf(manifest, sizeof manifest, "step-%012u/MANIFEST", i);
		unlinked(manifest);
	}
	/* 50 gets the last place; 60 that which stands for none, 70 the first one again */
	repaired = repair();
	assert_int_equal(repaired.rebuilt, 1);
	assert_int_equal(repaired.left, 2);
	assert_non_null(strstr(rows, "the numbers of the line have run out"));
	assert_listed("d70-0 d60-0 50-18446744073709551614 40-18446744073709551613 30-3 20-2 10-1");
	repaired = repair();
	assert_int_equal(repaired.left, 2);
	assert_int_equal(row_rc, -ERANGE);
}

/* Which names a repair gave, it knows; what is nobody's keeps the step in quarantine. */
TEST(what_an_earlier_repair_left_goes_and_nothing_else)
{
	static const char *const gone = "step-000000000030/MANIFEST.0123abcd";
	static const char *const kept = "step-000000000030/MANIFEST.damaged-0000000a";
	static const char *const other[] = { "step-000000000030/MANIFEST.0123abcx",
					     "step-000000000030/MANIFEST.0123abc" };

	put_file(s->job_fd, gone);
	put_file(s->job_fd, kept);
	for (uint32_t i = 0; i < ARRAY_LEN(other); i++)
		put_file(s->job_fd, other[i]);
	spoil("step-000000000030/MANIFEST", 100);
	assert_int_equal(repair().rebuilt, 1);
	assert_listed("30-3 20-2 10-1");
	assert_int_equal(faccessat(s->job_fd, gone, F_OK, 0), -1);
	assert_int_equal(faccessat(s->job_fd, kept, F_OK, 0), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(other); i++)
		assert_int_equal(faccessat(s->job_fd, other[i], F_OK, 0), 0);
}

TEST(all_manifests_may_be_missing)
{
	for (uint32_t i = 0; i < 3; i++) {
		char path[40];

		(void)snprintf(path, sizeof path, "step-%012u/MANIFEST", 10 * (i + 1));
		unlinked(path);
	}
	assert_int_equal(repair().rebuilt, 3);
	assert_listed("30-3 20-2 10-1");
	save(40, 30);
	assert_listed("40-4 30-3 20-2 10-1");
}

/* The MANIFEST of step 20 cannot be opened now: all else can. */
static int unreadable_open(void *ctx, int dirfd, const char *path, int flags, uint32_t mode)
{
	return strcmp(path, "step-000000000020/MANIFEST") == 0
		       ? -EIO
		       : io_ops_posix.open(ctx, dirfd, path, flags, mode);
}

TEST(a_manifest_that_cannot_be_read_now_is_not_made_again)
{
	ops.open = unreadable_open;
	for (uint32_t dry = 0; dry < 2; dry++) {
		repaired = repair_of(&ops, NULL, dry, false, 0);
		if (repaired.left != 1 || repaired.rebuilt)
			fail_msg("%s", rows);
		assert_non_null(strstr(rows, "may be whole"));
	}
	assert_listed("30-3 20-2 10-1");
	spoil("step-000000000020/MANIFEST", 8);
	assert_int_equal(repair().rebuilt, 1);
}

TEST(holds_and_tags_stay_with_a_step_that_is_rebuilt)
{
	label(30, LABEL_HOLD, "me");
	label(30, LABEL_TAG, "best");
	label(30, LABEL_VERIFIED, NULL);
	unlinked("step-000000000030/MANIFEST");
	label(30, LABEL_HOLD, "later");
	assert_int_equal(repair().rebuilt, 1);
	assert_int_equal(labels(LABEL_HOLD, 30), 2);
	assert_int_equal(labels(LABEL_TAG, 30), 1);
}

TEST(the_labels_of_another_step_of_that_number_stay_with_it)
{
	label(30, LABEL_HOLD, "first");
	save(25, 20);
	save(30, 25);
	label(30, LABEL_HOLD, "second");
	unlinked("step-000000000030/MANIFEST");
	assert_listed("d30-0 25-4 a30-3 20-2 10-1");
	assert_int_equal(repair().rebuilt, 1);
	assert_listed("30-5 25-4 a30-3 20-2 10-1");
	assert_int_equal(labels(LABEL_HOLD, 30), 2);
	assert_int_equal(repair_of(&io_ops_posix, NULL, false, false, 0).left, 0);
}

TEST(without_random_bytes_no_manifest_is_made)
{
	unlinked("step-000000000030/MANIFEST");
	no_random_at(2); /* its opener's, its MANIFEST's */
	assert_int_equal(repair().left, 1);
	assert_int_equal(no_random_end(), 1);
	assert_int_equal(row_rc, -ENOSYS);
	assert_non_null(strstr(rows, "no random bytes"));
	assert_listed("d30-0 20-2 10-1");
	assert_int_equal(repair().rebuilt, 1);
}

/* 30 is held and cannot be read, 10 is said to be bad. */
static void damage_all(void)
{
	unlinked("step-000000000030/MANIFEST");
	label(30, LABEL_HOLD, "me");
	label(10, LABEL_BAD, NULL);
}

/* After a repair that ended at its nth call, and after one more. */
static void assert_all_come_back(uint64_t nth)
{
	char text[200];

	listed(s, true, text);
	if (!strstr(text, "20-2") || strstr(text, "q20") || labels(LABEL_HOLD, 30) < 1)
		fail_msg("at %" PRIu64 ": %s", nth, text);
	(void)repair();
	assert_listed("30-3 20-2 10-1");
}

/* Memory, or descriptors: of this process and of the machine. Nobody takes that for damage. */
TEST(a_shortage_leaves_all_as_it_was_or_as_it_is_to_be)
{
	static const int why[] = { -ENOMEM, -EMFILE, -ENFILE };

	for (uint32_t k = 0; k < ARRAY_LEN(why); k++) {
		uint64_t short_of = 0, hit = 1;

		for (uint64_t nth = 1; hit; nth++) {
			struct repair_opts o = { .verify = verify, .row = row };
			struct io_faults f;
			int r;

			damage_all();
			io_faults_init(&f, &io_ops_posix);
			s->ops = &f.ops;
			rows[0] = err.msg[0] = 0;
			if (k == 0)
				no_memory_from(nth - 1, false);
			else
				io_faults_fail(&f, IO_ON_OPEN, nth, why[k], false);
			r = store_repair(s, &o, &repaired, &err);
			hit = k == 0 ? no_memory_end() : io_faults_hit(&f);
			s->ops = &ops;
			if (r && (r != why[k] || !err.msg[0]))
				fail_msg("%d at %" PRIu64 ": %d, %s", why[k], nth, r, err.msg);
			short_of += r != 0;
			assert_all_come_back(nth);
			AFRESH();
		}
		assert_true(short_of > 3);
	}
}

TEST(what_cannot_be_made_whole_is_left)
{
	char part[80];

	unlinked("step-000000000030/MANIFEST");
	(void)snprintf(part, sizeof part, "step-000000000030/%s", saved[2].file[1].name);
	move(part, "part");
	repaired = repair();
	assert_int_equal(repaired.left, 1);
	assert_non_null(strstr(rows, "1 of 2 parts are missing"));
	assert_listed("d30-0 20-2 10-1");
	/* another step's */
	(void)snprintf(part, sizeof part, "step-000000000030/%s", saved[1].file[1].name);
	assert_int_equal(linkat(s->job_fd, "part", s->job_fd, "kept", 0), 0);
	{
		char other[80];

		(void)snprintf(other, sizeof other, "step-000000000020/%s", saved[1].file[1].name);
		assert_int_equal(linkat(s->job_fd, other, s->job_fd, part, 0), 0);
	}
	assert_int_equal(repair().left, 1);
	unlinked(part);
	(void)snprintf(part, sizeof part, "step-000000000030/%s", saved[2].file[1].name);
	move("part", part);
	/* damaged data: the metadata are right, the check in full says no */
	verdict = -EBADMSG;
	repaired = repair();
	assert_int_equal(repaired.left, 1);
	assert_listed("q30-3 20-2 10-1");
	verdict = 0;
	assert_int_equal(repair().released, 1);
	assert_listed("30-3 20-2 10-1");
}

TEST(a_damaged_part_is_not_signed_again)
{
	char part[80];

	unlinked("step-000000000030/MANIFEST");
	(void)snprintf(part, sizeof part, "step-000000000030/%s", saved[2].file[0].name);
	spoil(part, (off_t)saved[2].file[0].len - 100);
	assert_int_equal(repair().left, 1);
	assert_listed("d30-0 20-2 10-1");
}

TEST(it_may_die_or_fail_at_any_call)
{
	for (uint32_t how = 0; how < 2; how++) {
		bool hit = true;

		for (uint64_t nth = 1; hit; nth++) {
			struct repair_opts o = { .verify = verify };
			struct io_faults f;
			struct store *other;

			damage_all();
			assert_int_equal(store_open(&io_ops_posix, &format_native, place.fd,
						    CRASH_JOB, false, &other, &err),
					 0);
			io_faults_init(&f, &io_ops_posix);
			if (how)
				io_faults_kill(&f, nth);
			else
				io_faults_fail(&f, IO_ON_ANY, nth, -EIO, false);
			other->ops = &f.ops;
			(void)store_repair(other, &o, &repaired, &err);
			hit = io_faults_hit(&f);
			other->ops = &io_ops_posix;
			store_close(other);
			assert_all_come_back(nth);
			/* of its old id and of the new one, where it died in between */
			assert_in_range(labels(LABEL_HOLD, 30), 1, 2);
			AFRESH();
		}
	}
}

/* --- points --- */

static const char *const point_names[] = {
#define NAME(id, name, text) name,
	STORE_POINTS(NAME)
#undef NAME
};
static uint32_t reached[ARRAY_LEN(point_names)];

static void point(void *arg, const char *name)
{
	uint32_t i = 0;

	while (i < ARRAY_LEN(point_names) && strcmp(point_names[i], name) != 0)
		i++;
	if (i == ARRAY_LEN(point_names))
		fail_msg("no such point: %s", name);
	reached[i]++;
}

TEST(every_point_is_reached_by_a_life_of_the_store)
{
	static const struct retain_policy p = { .keep_last = 1 };
	struct prune_opts o = {
		.policy = &p, .set_aside = true, .verify = verify, .now_ns = wall_ns()
	};
	struct repair_opts ro = { .verify = verify };
	struct rewind_opts w = { .dir = NULL };
	struct rewind_result wr;
	struct repair_result rr;
	struct prune_result pr;
	struct io_faults f;
	struct crash_step c = { 0 }, linked = { 0 };
	struct store_txn *x, *dead;
	struct store *mine;

	io_faults_init(&f, &io_ops_posix);
	f.on_point = point;
	assert_int_equal(crash_begin(s, 40, 4, &dead, &c, &err), 0);
	crash_step_free(&c);
	mine = opened(&f.ops);
	(void)claimed(mine, 0, false);
	/* Goes back; the rename to its place fails, and what was set aside comes back. */
	assert_int_equal(crash_begin(mine, 15, 4, &x, &c, &err), 0);
	io_faults_fail(&f, IO_ON_RENAME, 4, -EIO, false);
	assert_int_equal(crash_commit(x, &c, 10, &err), -EIO);
	crash_step_free(&c);
	io_faults_count(&f, IO_ON_ANY);
	assert_int_equal(crash_save(mine, 15, 4, 10, &c, &err), 0);
	crash_step_free(&c);
	spoil("step-000000000015/MANIFEST", 100);
	label(10, LABEL_HOLD, "me");
	assert_int_equal(store_repair(mine, &ro, &rr, &err), 0);
	assert_int_equal(rr.rebuilt, 1);
	w.dir = crash_aside(s, 30, 3);
	assert_int_equal(store_rewind(mine, &w, &wr, &err), 0);
	assert_int_equal(store_prune(mine, &o, &pr, &err), 0); /* 15, which is set aside, and 20 */
	assert_int_equal(pr.removed, 2);
	assert_int_equal(store_policy_set(mine, &p, "a test", NULL, &err), 0);
	assert_int_equal(crash_save_base(mine, 50, 5, 30, NULL, &c, &err), 0);
	assert_int_equal(crash_save_base(mine, 60, 6, 50, &c, &linked, &err), 0);
	crash_step_free(&c);
	crash_step_free(&linked);
	store_close(mine);
	store_abort(dead);
	for (uint32_t i = 0; i < ARRAY_LEN(point_names); i++)
		if (!reached[i])
			fail_msg("%s is never reached", point_names[i]);
}

UNIT(.setup = setup, .teardown = job_remove);
