/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_mark.c - what is said of a step: set, read, replaced, cleared, in quarantine, after faults and power losses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "ckpt/store/store_impl.h"
#include "tests/crash/crash_step.c"

static struct place place;
static struct store *s;
static struct ckpt_err err;
static struct store_step *step; /* 30, 20, 10 */
static uint32_t n;
static struct store_mark *mark;
static uint32_t nmark;

static void scan(void)
{
	free(TAKE(step));
	if (store_scan(s, true, &step, &n, &err))
		fail_msg("%s", err.msg);
}

static void marks(void)
{
	free(TAKE(mark));
	if (store_marks(s, &mark, &nmark, &err))
		fail_msg("%s", err.msg);
}

static void save(uint64_t number, uint64_t seq, uint64_t rewind)
{
	struct crash_step c = { 0 };

	if (crash_save(s, number, seq, rewind, &c, &err))
		fail_msg("%s", err.msg);
	crash_step_free(&c);
}

static int setup(void **state)
{
	uint64_t generation;

	(void)state;
	memset(&err, 0, sizeof err);
	place_make(&place);
	if (store_open(&io_ops_posix, place.fd, CRASH_JOB, true, &s, &err) ||
	    store_claim(s, 0, false, &generation, &err))
		return -1;
	save(10, 1, UINT64_MAX);
	save(20, 2, 10);
	save(30, 3, 20);
	scan();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(TAKE(step));
	free(TAKE(mark));
	store_close(s);
	place_remove(&place);
	return 0;
}

static const struct store_step *of(uint64_t number, enum store_state state)
{
	for (uint32_t i = 0; i < n; i++)
		if (step[i].step == number && step[i].state == state)
			return &step[i];
	fail_msg("there is no step %" PRIu64, number);
	return NULL;
}

static void set(uint64_t number, enum store_mark_kind kind, const char *name, uint64_t until,
		const char *why)
{
	if (store_mark_set(s, of(number, STORE_COMMITTED), kind, name, until, why, &err))
		fail_msg("%s", err.msg);
}

static uint32_t count(enum store_mark_kind kind, uint64_t number)
{
	uint32_t found = 0;

	marks();
	for (uint32_t i = 0; i < nmark; i++)
		found += mark[i].kind == kind && mark[i].step == number;
	return found;
}

static int entry_count(void *arg, const char *name, unsigned char d_type);

static uint32_t files(void)
{
	uint32_t found = 0;
	int fd = openat(s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_int_equal(io_ops_posix.list(NULL, fd, entry_count, &found), 0);
	(void)close(fd);
	return found - 1; /* the claim */
}

static void what_was_set_is_read_again(void **state)
{
	uint64_t now = wall_ns();

	(void)state;
	set(20, MARK_HOLD, "eval-17", now + 5 * NS_PER_S, "the paper\nneeds \x01 it: \xc3\xa4");
	set(20, MARK_TAG, "best", 0, NULL);
	set(20, MARK_VERIFIED, NULL, 0, NULL);
	marks();
	assert_int_equal(nmark, 3);
	assert_int_equal(mark[0].kind, MARK_HOLD);
	assert_string_equal(mark[0].name, "eval-17");
	assert_string_equal(mark[0].why, "the paper needs ? it: \xc3\xa4");
	assert_true(mark[0].until_ns == now + 5 * NS_PER_S);
	assert_true(mark[0].made_ns >= now && mark[0].made_ns < now + 100 * NS_PER_S);
	assert_non_null(strchr(mark[0].by, '@'));
	assert_int_equal(mark[1].kind, MARK_TAG);
	assert_int_equal(mark[2].kind, MARK_VERIFIED);
	for (uint32_t i = 0; i < nmark; i++) {
		assert_false(mark[i].unread);
		assert_true(store_mark_is(&mark[i], of(20, STORE_COMMITTED)));
		assert_false(store_mark_is(&mark[i], of(30, STORE_COMMITTED)));
	}
	assert_true(store_mark_counts(&mark[0], now));
	assert_false(store_mark_counts(&mark[0], now + 6 * NS_PER_S));
}

static void a_mark_set_again_says_what_it_says_now(void **state)
{
	uint64_t now = wall_ns();

	(void)state;
	set(20, MARK_HOLD, "x", now + 900 * NS_PER_S, "first");
	set(20, MARK_HOLD, "x", now + 60 * NS_PER_S, "second");
	set(20, MARK_HOLD, "y", 0, NULL);
	assert_int_equal(count(MARK_HOLD, 20), 2);
	assert_string_equal(mark[0].why, "second");
	assert_true(mark[0].until_ns == now + 60 * NS_PER_S);
	assert_int_equal(files(), 2);
}

static void a_tag_is_one_of_its_name_in_a_job_and_moves(void **state)
{
	(void)state;
	set(20, MARK_TAG, "best", 0, NULL);
	set(10, MARK_TAG, "other", 0, NULL);
	set(30, MARK_TAG, "best", 0, NULL);
	assert_int_equal(count(MARK_TAG, 20), 0);
	assert_int_equal(count(MARK_TAG, 30), 1);
	assert_int_equal(count(MARK_TAG, 10), 1);
	assert_int_equal(files(), 2);
}

/* As a crash between the two leaves it: the newer one counts, and both go with the next. */
static void of_two_tags_the_newer_counts_and_of_two_holds_the_longer(void **state)
{
	char from[200], to[220];
	int fd;

	(void)state;
	set(20, MARK_TAG, "best", 0, NULL);
	marks();
	(void)snprintf(from, sizeof from, STORE_CLAIMS "/tag-000000000020-");
	for (uint32_t i = 0; i < 8; i++)
		(void)snprintf(from + strlen(from), 3, "%02x", mark[0].id8[i]);
	(void)snprintf(from + strlen(from), 6, "-best");
	(void)snprintf(to, sizeof to, "%s~00000001", from);
	assert_int_equal(linkat(s->job_fd, from, s->job_fd, to, 0), 0);
	set(30, MARK_TAG, "new", 0, NULL);
	assert_int_equal(count(MARK_TAG, 20), 1);
	set(30, MARK_TAG, "best", 0, NULL);
	assert_int_equal(count(MARK_TAG, 20), 0);
	assert_int_equal(files(), 2);
	fd = openat(s->job_fd, from, O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* torn: no time */
	(void)close(fd);
	assert_int_equal(count(MARK_TAG, 20), 0);
	assert_int_equal(count(MARK_TAG, 30), 2);
}

static void a_name_is_checked(void **state)
{
	static const char *const bad[] = {
		"",
		".x",
		"a b",
		"a/b",
		"a~b",
		"\xc3\xa4",
		"12345678901234567890123456789012345678901234567890123456789012345"
	};
	const struct store_step *st = of(20, STORE_COMMITTED);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(store_mark_set(s, st, MARK_TAG, bad[i], 0, NULL, &err), -EINVAL);
		assert_true(err.msg[0]);
	}
	assert_int_equal(store_mark_set(s, st, MARK_TAG, NULL, 0, NULL, &err), -EINVAL);
	assert_int_equal(store_mark_set(s, st, MARK_BAD, "x", 0, NULL, &err), -EINVAL);
	assert_int_equal(store_mark_set(s, st, MARK_TAG, "x", 7, NULL, &err), -EINVAL);
	set(20, MARK_TAG, "1234567890123456789012345678901234567890123456789012345678901234", 0,
	    NULL);
	assert_int_equal(files(), 1);
}

static void clearing_takes_what_is_named_and_no_more(void **state)
{
	const struct store_step *st = of(20, STORE_COMMITTED);
	uint32_t gone;

	(void)state;
	set(20, MARK_HOLD, "a", 0, NULL);
	set(20, MARK_HOLD, "b", 0, NULL);
	set(20, MARK_HOLD, "c", 0, NULL);
	set(20, MARK_TAG, "a", 0, NULL);
	set(30, MARK_HOLD, "a", 0, NULL);
	assert_int_equal(store_mark_clear(s, st, MARK_HOLD, "a", &gone, &err), 0);
	assert_int_equal(gone, 1);
	assert_int_equal(store_mark_clear(s, st, MARK_HOLD, "a", &gone, &err), 0);
	assert_int_equal(gone, 0);
	assert_int_equal(store_mark_clear(s, st, MARK_HOLD, NULL, &gone, &err), 0);
	assert_int_equal(gone, 2);
	assert_int_equal(count(MARK_HOLD, 20), 0);
	assert_int_equal(count(MARK_TAG, 20), 1);
	assert_int_equal(count(MARK_HOLD, 30), 1);
}

static void a_later_checkpoint_of_the_same_number_has_none_of_them(void **state)
{
	(void)state;
	set(20, MARK_HOLD, "a", 0, NULL);
	set(20, MARK_VERIFIED, NULL, 0, NULL);
	save(20, 4, 10);
	scan();
	marks();
	assert_int_equal(nmark, 2);
	for (uint32_t i = 0; i < nmark; i++) {
		assert_true(store_mark_is(&mark[i], of(20, STORE_SET_ASIDE)));
		assert_false(store_mark_is(&mark[i], of(20, STORE_COMMITTED)));
	}
}

static void what_has_gone_or_is_another_one_by_now_gets_no_mark(void **state)
{
	struct store_step old = *of(20, STORE_COMMITTED), ten = *of(10, STORE_COMMITTED);

	(void)state;
	save(20, 4, 10);
	assert_int_equal(store_mark_set(s, &old, MARK_TAG, "x", 0, NULL, &err), -ENOENT);
	assert_int_equal(renameat(s->job_fd, ten.dir, s->job_fd, "elsewhere"), 0);
	assert_int_equal(store_mark_set(s, &ten, MARK_TAG, "x", 0, NULL, &err), -ENOENT);
	assert_int_equal(files(), 0);
}

static void what_is_being_removed_gets_no_mark_and_is_not_opened(void **state)
{
	int fd, other;

	(void)state;
	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), 0);
	assert_int_equal(store_mark_set(s, of(20, STORE_COMMITTED), MARK_TAG, "x", 0, NULL, &err),
			 -ENOENT);
	assert_int_equal(store_step_open(s, "step-000000000020", &other, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "removed"));
	(void)close(fd);
	set(20, MARK_TAG, "x", 0, NULL);
	assert_int_equal(store_step_open(s, "step-000000000020", &other, &err), 0);
	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), -EAGAIN);
	(void)close(other);
	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), 0);
	(void)close(fd);
}

static void damage_what(const char *file, const char *text)
{
	int fd = openat(s->job_fd, file, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	(void)close(fd);
}

static void an_unreadable_mark_counts_unless_it_says_that_all_is_well(void **state)
{
	char file[4][200];
	static const char *const name[] = { "hold", "tag", "verified", "bad" };

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		(void)snprintf(file[i], sizeof file[i], STORE_CLAIMS "/%s-000000000020-", name[i]);
		for (uint32_t k = 0; k < 8; k++)
			(void)snprintf(file[i] + strlen(file[i]), 3, "%02x",
				       of(20, STORE_COMMITTED)->id[k]);
		if (i < 2)
			(void)snprintf(file[i] + strlen(file[i]), 3, "-x");
		damage_what(file[i], i % 2 ? "" : "until=yesterday\n");
	}
	marks();
	assert_int_equal(nmark, 3);
	for (uint32_t i = 0; i < nmark; i++) {
		assert_true(mark[i].unread);
		assert_int_not_equal(mark[i].kind, MARK_VERIFIED);
		assert_true(store_mark_counts(&mark[i], UINT64_MAX - 1));
	}
	scan();
	assert_int_equal(of(20, STORE_QUARANTINED)->seq, 2);
}

static void a_step_whose_manifest_is_damaged_keeps_its_holds(void **state)
{
	uint32_t gone;

	(void)state;
	set(30, MARK_HOLD, "a", 0, NULL);
	set(30, MARK_VERIFIED, NULL, 0, NULL);
	assert_int_equal(unlinkat(s->job_fd, "step-000000000030/MANIFEST", 0), 0);
	scan();
	marks();
	assert_int_equal(nmark, 2);
	assert_true(store_mark_is(&mark[0], of(30, STORE_DAMAGED)));
	assert_false(store_mark_is(&mark[1], of(30, STORE_DAMAGED)));
	assert_int_equal(store_mark_set(s, of(30, STORE_DAMAGED), MARK_HOLD, "b", 0, NULL, &err),
			 0);
	assert_int_equal(store_mark_clear(s, of(30, STORE_DAMAGED), MARK_HOLD, NULL, &gone, &err),
			 0);
	assert_int_equal(gone, 2);
}

static void releasing_a_damaged_step_leaves_the_holds_of_one_set_aside(void **state)
{
	uint32_t gone;

	(void)state;
	set(20, MARK_HOLD, "a", 0, NULL);
	save(20, 4, 10);
	assert_int_equal(unlinkat(s->job_fd, "step-000000000020/MANIFEST", 0), 0);
	scan();
	assert_int_equal(store_mark_clear(s, of(20, STORE_DAMAGED), MARK_HOLD, NULL, &gone, &err),
			 0);
	assert_int_equal(gone, 0);
	assert_int_equal(count(MARK_HOLD, 20), 1);
}

static void assert_resolves(const char *name, const char *dir, const char *note)
{
	struct store_ref ref;

	if (store_resolve(&io_ops_posix, place.path, name, &ref, &err))
		fail_msg("%s", err.msg);
	assert_string_equal(strrchr(ref.path, '/') + 1, dir);
	if (note ? !strstr(ref.note, note) : ref.note[0] != 0)
		fail_msg("%s: note \"%s\"", name, ref.note);
	(void)close(ref.step_fd);
}

static void latest_passes_over_what_is_quarantined_and_says_so(void **state)
{
	struct store_ref ref;
	uint32_t gone;

	(void)state;
	assert_resolves("latest", "step-000000000030", NULL);
	set(30, MARK_BAD, NULL, 0, "part w0001 is damaged");
	scan();
	assert_string_equal(of(30, STORE_QUARANTINED)->why, "part w0001 is damaged");
	assert_resolves("latest", "step-000000000020", "step 30 is passed over: quarantined: part");
	assert_resolves("latest~1", "step-000000000010", "repair step:30");
	assert_resolves("step:30", "step-000000000030", NULL);
	assert_int_equal(unlinkat(s->job_fd, "step-000000000020/MANIFEST", 0), 0);
	assert_resolves("latest", "step-000000000010", "and 1 more");
	set(10, MARK_BAD, NULL, 0, NULL);
	assert_int_equal(store_resolve(&io_ops_posix, place.path, "latest", &ref, &err), -EUCLEAN);
	assert_non_null(strstr(err.msg, "passed over"));
	assert_int_equal(
		store_mark_clear(s, of(30, STORE_QUARANTINED), MARK_BAD, NULL, &gone, &err), 0);
	assert_resolves("latest", "step-000000000030", NULL);
}

static void a_tag_is_a_name_also_of_a_step_that_was_set_aside(void **state)
{
	struct store_ref ref;

	(void)state;
	set(20, MARK_TAG, "best", 0, NULL);
	assert_resolves("tag:best", "step-000000000020", NULL);
	save(15, 4, 10);
	assert_resolves("tag:best", ".old-000000000020-s2", NULL);
	assert_int_equal(store_resolve(&io_ops_posix, place.path, "tag:none", &ref, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "best"));
	assert_int_equal(store_resolve(&io_ops_posix, place.path, "tag:", &ref, &err), -EINVAL);
	assert_int_equal(io_tree_remove(s->job_fd, ".old-000000000020-s2"), 0);
	assert_int_equal(store_resolve(&io_ops_posix, place.path, "tag:best", &ref, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "gone"));
}

static void a_job_without_its_own_directory_of_claims_gets_one(void **state)
{
	(void)state;
	assert_int_equal(io_tree_remove(s->job_fd, STORE_CLAIMS), 0);
	marks();
	assert_int_equal(nmark, 0);
	set(20, MARK_TAG, "best", 0, NULL);
	assert_int_equal(count(MARK_TAG, 20), 1);
}

/* --- faults --- */

/* Every call fails once, each kind of step: what was acknowledged is there, what was not is as before or as wanted. */
static void any_call_may_fail_and_nothing_acknowledged_is_lost(void **state)
{
	static const int code[] = { -EIO, -ENOSPC };
	struct io_faults f;
	uint64_t now = wall_ns(), runs = 0;

	(void)state;
	for (uint32_t c = 0; c < ARRAY_LEN(code); c++) {
		for (uint64_t nth = 1;; nth++, runs++) {
			struct store broken = { .job_fd = s->job_fd, .root_fd = -1 };
			struct store_mark *m;
			uint32_t nm, gone;
			bool second;
			int r;

			set(20, MARK_HOLD, "x", now + 900 * NS_PER_S, "first");
			memcpy(broken.job, s->job, sizeof broken.job);
			io_faults_init(&f, &io_ops_posix);
			broken.ops = &f.ops;
			io_faults_fail(&f, IO_ON_ANY, nth, code[c], false);
			r = store_mark_set(&broken, of(20, STORE_COMMITTED), MARK_HOLD, "x",
					   now + 60 * NS_PER_S, "second", &err);
			assert_int_equal(store_marks(s, &m, &nm, &err), 0);
			assert_int_equal(nm, 1);
			second = m[0].until_ns == now + 60 * NS_PER_S;
			if (!r && !second && files() == 1)
				fail_msg("call %" PRIu64 ": acknowledged and not there", nth);
			if (r && second)
				fail_msg("call %" PRIu64 ": failed and there", nth);
			free(m);
			assert_int_equal(store_mark_clear(s, of(20, STORE_COMMITTED), MARK_HOLD,
							  NULL, &gone, &err),
					 0);
			if (!io_faults_hit(&f))
				break;
		}
	}
	assert_true(runs > 20);
}

/* What was promised when the power went: 1 hold a; 2 and tag on 20; 3 tag on 30; 4 hold a is cleared; 5 30 is bad. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *at)
{
	struct store after = { .ops = at->ops, .root_fd = -1, .job = CRASH_JOB };
	struct store_step *st = NULL;
	struct store_mark *m = NULL;
	uint32_t nst = 0, nm = 0, hold = 0, tag20 = 0, tag30 = 0, bad = 0;
	int r;

	(void)arg;
	after.job_fd = at->ops->open(at->ops->ctx, dirfd, CRASH_JOB, O_RDONLY | O_DIRECTORY, 0);
	r = store_scan(&after, true, &st, &nst, &err);
	if (!r)
		r = store_marks(&after, &m, &nm, &err);
	for (uint32_t i = 0; i < nm; i++) {
		/* What it says is as durable as that it is there. */
		if (m[i].unread && m[i].kind == MARK_HOLD && at->mark >= 1)
			r = -1;
		hold += m[i].kind == MARK_HOLD && m[i].step == 20;
		tag20 += m[i].kind == MARK_TAG && m[i].step == 20;
		tag30 += m[i].kind == MARK_TAG && m[i].step == 30;
	}
	for (uint32_t i = 0; i < nst; i++)
		bad += st[i].state == STORE_QUARANTINED;
	if (!r && ((at->mark >= 1 && at->mark < 3 && !hold) || (at->mark >= 4 && hold) ||
		   (at->mark == 2 && tag20 + tag30 != 1) || (at->mark >= 3 && !tag30) ||
		   (at->mark >= 5 && !bad)))
		r = -1;
	if (r)
		print_message("promise %" PRIu64 ": hold %u tag20 %u tag30 %u bad %u\n", at->mark,
			      hold, tag20, tag30, bad);
	free(st);
	free(m);
	(void)at->ops->close(at->ops->ctx, after.job_fd);
	return r;
}

static void what_was_acknowledged_survives_the_power(void **state)
{
	struct io_crash_opts o = { .seed = 7, .nrandom = 8, .ntear = 2, .memory = true };
	struct store live = { .root_fd = -1, .job_fd = s->job_fd, .job = CRASH_JOB };
	const struct store_step *st = of(20, STORE_COMMITTED);
	uint64_t states = 0;
	struct io_faults f;

	(void)state;
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	live.ops = &f.ops;
	assert_int_equal(store_mark_set(&live, st, MARK_HOLD, "a", 0, "why", &err), 0);
	io_record_mark(f.record, 1);
	assert_int_equal(store_mark_set(&live, st, MARK_TAG, "best", 0, NULL, &err), 0);
	io_record_mark(f.record, 2);
	st = of(30, STORE_COMMITTED);
	assert_int_equal(store_mark_set(&live, st, MARK_TAG, "best", 0, NULL, &err), 0);
	io_record_mark(f.record, 3);
	st = of(20, STORE_COMMITTED);
	assert_int_equal(store_mark_clear(&live, st, MARK_HOLD, "a", NULL, &err), 0);
	io_record_mark(f.record, 4);
	st = of(30, STORE_COMMITTED);
	assert_int_equal(store_mark_set(&live, st, MARK_BAD, NULL, 0, "why", &err), 0);
	io_record_mark(f.record, 5);
	assert_int_equal(io_crash_states(f.record, &o, after_power_loss, NULL, &states), 0);
	print_message("%" PRIu64 " states, seed %" PRIu64 "\n", states, o.seed);
	assert_true(states >= 20);
	io_record_free(f.record);
}

static int lock_what_has_gone(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)renameat(s->job_fd, "step-000000000020", s->job_fd, ".trash-00000001");
	return io_ops_posix.lock(NULL, fd, exclusive);
}

static void a_reader_that_comes_too_late_is_told_so(void **state)
{
	struct io_ops late = io_ops_posix;
	struct store reader = {
		.ops = &late, .root_fd = -1, .job_fd = s->job_fd, .job = CRASH_JOB
	};
	int fd;

	(void)state;
	late.lock = lock_what_has_gone;
	assert_int_equal(store_step_open(&reader, "step-000000000020", &fd, &err), -ENOENT);
	assert_int_equal(fd, -1);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(what_was_set_is_read_again),
		T(a_mark_set_again_says_what_it_says_now),
		T(a_tag_is_one_of_its_name_in_a_job_and_moves),
		T(of_two_tags_the_newer_counts_and_of_two_holds_the_longer),
		T(a_name_is_checked),
		T(clearing_takes_what_is_named_and_no_more),
		T(a_later_checkpoint_of_the_same_number_has_none_of_them),
		T(what_has_gone_or_is_another_one_by_now_gets_no_mark),
		T(what_is_being_removed_gets_no_mark_and_is_not_opened),
		T(an_unreadable_mark_counts_unless_it_says_that_all_is_well),
		T(a_step_whose_manifest_is_damaged_keeps_its_holds),
		T(releasing_a_damaged_step_leaves_the_holds_of_one_set_aside),
		T(latest_passes_over_what_is_quarantined_and_says_so),
		T(a_tag_is_a_name_also_of_a_step_that_was_set_aside),
		T(a_job_without_its_own_directory_of_claims_gets_one),
		T(a_reader_that_comes_too_late_is_told_so),
		T(any_call_may_fail_and_nothing_acknowledged_is_lost),
		T(what_was_acknowledged_survives_the_power),
	};

	return cmocka_run_group_tests_name("store_mark", tests, NULL, NULL);
}
