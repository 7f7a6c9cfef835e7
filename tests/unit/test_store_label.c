/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_label.c - what is said of a step: set, read, replaced, cleared, in quarantine, after
 * faults and power losses. */
#include <pwd.h>
#include <sys/stat.h>
#include "tests/crash/job.h"
#include "tests/lib/row.h"
#include "tests/lib/libc.h"
#include "formats/native/native.h"

static struct store_step *step; /* 30, 20, 10 */
static uint32_t n;
static struct store_label *said;
static uint32_t nlabel;

/* Who runs this, as far as the system knows. */
static struct {
	int error;
	const char *name;
} account = { 0, "tester" };

static int account_of(uid_t uid, struct passwd *ret, char *buf, size_t bytes,
		      struct passwd **ret_found)
{
	*ret = (struct passwd){ .pw_uid = uid, .pw_name = buf };
	*ret_found = account.name && !account.error ? ret : NULL;
	if (*ret_found)
		(void)snprintf(buf, bytes, "%s", account.name);
	return account.error;
}

static void scan(void)
{
	free(TAKE(step));
	if (store_scan(s, true, &step, &n, &err))
		fail_msg("%s", err.msg);
}

static void labels(void)
{
	free(TAKE(said));
	if (store_labels(s, &said, &nlabel, &err))
		fail_msg("%s", err.msg);
}

static int setup(void **state)
{
	libc_instead.getpwuid_r = account_of;
	account.error = 0;
	account.name = "tester";
	(void)job_make_three(state);
	scan();
	return 0;
}

static int teardown(void **state)
{
	free(TAKE(step));
	free(TAKE(said));
	return job_remove(state);
}

static const struct store_step *of(uint64_t number, enum store_state state)
{
	for (uint32_t i = 0; i < n; i++)
		if (step[i].step == number && step[i].state == state)
			return &step[i];
	fail_msg("there is no step %" PRIu64, number);
	return NULL;
}

static void set(uint64_t number, enum store_label_kind kind, const char *name, uint64_t until,
		const char *why)
{
	if (store_label_set(s, of(number, STORE_COMMITTED), kind, name, until, why, &err))
		fail_msg("%s", err.msg);
}

/* Of 20, by the calls of this one. */
static int tag_by(struct store *by)
{
	memset(&err, 0, sizeof err);
	return store_label_set(by, of(20, STORE_COMMITTED), LABEL_TAG, "x", 0, NULL, &err);
}

/* How many went. */
static uint32_t clear(uint64_t number, enum store_state state, enum store_label_kind kind,
		      const char *name)
{
	uint32_t gone = 77;

	if (store_label_clear(s, of(number, state), kind, name, &gone, &err))
		fail_msg("%s", err.msg);
	return gone;
}

/* Three holds of 20. */
static void hold_three(void)
{
	set(20, LABEL_HOLD, "a", 0, NULL);
	set(20, LABEL_HOLD, "b", 0, NULL);
	set(20, LABEL_HOLD, "c", 0, NULL);
}

static uint32_t count(enum store_label_kind kind, uint64_t number)
{
	uint32_t found = 0;

	labels();
	for (uint32_t i = 0; i < nlabel; i++)
		found += said[i].kind == kind && said[i].step == number;
	return found;
}

static uint32_t files(void)
{
	return entries_of(s->job_fd, STORE_CLAIMS) - 2; /* the claim, and whose the directory is */
}

TEST(what_was_set_is_read_again)
{
	uint64_t now = wall_ns();

	set(20, LABEL_HOLD, "eval-17", now + 5 * NS_PER_S, "the paper\nneeds \x01 it: \xc3\xa4");
	set(20, LABEL_TAG, "best", 0, NULL);
	set(20, LABEL_VERIFIED, NULL, 0, NULL);
	labels();
	assert_int_equal(nlabel, 3);
	assert_int_equal(said[0].kind, LABEL_HOLD);
	assert_string_equal(said[0].name, "eval-17");
	assert_string_equal(said[0].why, "the paper needs ? it: \xc3\xa4");
	assert_true(said[0].until_ns == now + 5 * NS_PER_S);
	assert_true(said[0].made_ns >= now && said[0].made_ns < now + 100 * NS_PER_S);
	assert_non_null(strchr(said[0].by, '@'));
	assert_int_equal(said[1].kind, LABEL_TAG);
	assert_int_equal(said[2].kind, LABEL_VERIFIED);
	for (uint32_t i = 0; i < nlabel; i++) {
		assert_false(said[i].unread);
		assert_true(store_label_is(&said[i], of(20, STORE_COMMITTED)));
		assert_false(store_label_is(&said[i], of(30, STORE_COMMITTED)));
	}
	assert_true(store_label_counts(&said[0], now));
	assert_false(store_label_counts(&said[0], now + 6 * NS_PER_S));
}

TEST(a_label_set_again_says_what_it_says_now)
{
	uint64_t now = wall_ns();

	set(20, LABEL_HOLD, "x", now + 900 * NS_PER_S, "first");
	set(20, LABEL_HOLD, "x", now + 60 * NS_PER_S, "second");
	set(20, LABEL_HOLD, "y", 0, NULL);
	assert_int_equal(count(LABEL_HOLD, 20), 2);
	assert_string_equal(said[0].why, "second");
	assert_true(said[0].until_ns == now + 60 * NS_PER_S);
	assert_int_equal(files(), 2);
}

TEST(a_tag_is_one_of_its_name_in_a_job_and_moves)
{
	set(20, LABEL_TAG, "best", 0, NULL);
	set(10, LABEL_TAG, "other", 0, NULL);
	set(30, LABEL_TAG, "best", 0, NULL);
	assert_int_equal(count(LABEL_TAG, 20), 0);
	assert_int_equal(count(LABEL_TAG, 30), 1);
	assert_int_equal(count(LABEL_TAG, 10), 1);
	assert_int_equal(files(), 2);
}

/* The file of a label of 20, as a program of ours names it. */
static const char *file_of(const char *kind, const char *rest)
{
	static char file[2][200];
	static uint32_t turn;
	char *ret = file[turn ^= 1];

	(void)snprintf(ret, sizeof file[0], STORE_CLAIMS "/%s-000000000020-", kind);
	for (uint32_t k = 0; k < 8; k++)
		(void)snprintf(ret + strlen(ret), 3, "%02x", of(20, STORE_COMMITTED)->id[k]);
	(void)snprintf(ret + strlen(ret), 100, "%s", rest);
	return ret;
}

static void put(const char *kind, const char *rest, const char *text)
{
	cleanup_close int fd = openat(s->job_fd, file_of(kind, rest),
				      O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

/* As a crash between the two leaves it: the newer one counts, and both go with the next. */
TEST(of_two_tags_the_newer_counts_and_of_two_holds_the_longer)
{
	set(20, LABEL_TAG, "best", 0, NULL);
	assert_int_equal(linkat(s->job_fd, file_of("tag", "-best"), s->job_fd,
				file_of("tag", "-best~00000001"), 0),
			 0);
	set(30, LABEL_TAG, "new", 0, NULL);
	assert_int_equal(count(LABEL_TAG, 20), 1);
	set(30, LABEL_TAG, "best", 0, NULL);
	assert_int_equal(count(LABEL_TAG, 20), 0);
	assert_int_equal(files(), 2);
	put("tag", "-best", ""); /* torn: no time */
	assert_int_equal(count(LABEL_TAG, 20), 0);
	assert_int_equal(count(LABEL_TAG, 30), 2);
}

TEST(a_name_is_checked)
{
	static const char *const bad[] =
		ROW("", ".x", "a b", "a/b", "a~b", "\xc3\xa4",
		    "12345678901234567890123456789012345678901234567890123456789012345");
	const struct store_step *st = of(20, STORE_COMMITTED);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(store_label_set(s, st, LABEL_TAG, bad[i], 0, NULL, &err), -EINVAL);
		assert_true(err.msg[0]);
	}
	assert_int_equal(store_label_set(s, st, LABEL_TAG, NULL, 0, NULL, &err), -EINVAL);
	assert_int_equal(store_label_set(s, st, LABEL_BAD, "x", 0, NULL, &err), -EINVAL);
	assert_int_equal(store_label_set(s, st, LABEL_TAG, "x", 7, NULL, &err), -EINVAL);
	set(20, LABEL_TAG, "1234567890123456789012345678901234567890123456789012345678901234", 0,
	    NULL);
	assert_int_equal(files(), 1);
}

TEST(clearing_takes_what_is_named_and_no_more)
{
	hold_three();
	set(20, LABEL_TAG, "a", 0, NULL);
	set(30, LABEL_HOLD, "a", 0, NULL);
	assert_int_equal(clear(20, STORE_COMMITTED, LABEL_HOLD, "a"), 1);
	assert_int_equal(clear(20, STORE_COMMITTED, LABEL_HOLD, "a"), 0);
	assert_int_equal(clear(20, STORE_COMMITTED, LABEL_HOLD, NULL), 2);
	assert_int_equal(count(LABEL_HOLD, 20), 0);
	assert_int_equal(count(LABEL_TAG, 20), 1);
	assert_int_equal(count(LABEL_HOLD, 30), 1);
}

TEST(a_later_checkpoint_of_the_same_number_has_none_of_them)
{
	set(20, LABEL_HOLD, "a", 0, NULL);
	set(20, LABEL_VERIFIED, NULL, 0, NULL);
	save(20, 10);
	scan();
	labels();
	assert_int_equal(nlabel, 2);
	for (uint32_t i = 0; i < nlabel; i++) {
		assert_true(store_label_is(&said[i], of(20, STORE_SET_ASIDE)));
		assert_false(store_label_is(&said[i], of(20, STORE_COMMITTED)));
	}
}

TEST(what_has_gone_or_is_another_one_by_now_gets_no_label)
{
	struct store_step old = *of(20, STORE_COMMITTED), ten = *of(10, STORE_COMMITTED);

	save(20, 10);
	assert_int_equal(store_label_set(s, &old, LABEL_TAG, "x", 0, NULL, &err), -ENOENT);
	move(ten.dir, "elsewhere");
	assert_int_equal(store_label_set(s, &ten, LABEL_TAG, "x", 0, NULL, &err), -ENOENT);
	assert_int_equal(files(), 0);
}

TEST(what_is_being_removed_gets_no_label_and_is_not_opened)
{
	int fd, other;

	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), 0);
	assert_int_equal(store_label_set(s, of(20, STORE_COMMITTED), LABEL_TAG, "x", 0, NULL, &err),
			 -ENOENT);
	assert_int_equal(store_step_open(s, "step-000000000020", &other, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "removed"));
	(void)close(fd);
	set(20, LABEL_TAG, "x", 0, NULL);
	assert_int_equal(store_step_open(s, "step-000000000020", &other, &err), 0);
	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), -EAGAIN);
	(void)close(other);
	assert_int_equal(store_hold(s, "step-000000000020", true, &fd), 0);
	(void)close(fd);
}

TEST(an_unreadable_label_counts_unless_it_says_that_all_is_well)
{
	static const char *const name[] = { "hold", "tag", "verified", "bad" };

	for (uint32_t i = 0; i < 4; i++)
		put(name[i], i < 2 ? "-x" : "", i % 2 ? "" : "until=yesterday\n");
	labels();
	assert_int_equal(nlabel, 3);
	for (uint32_t i = 0; i < nlabel; i++) {
		assert_true(said[i].unread);
		assert_int_not_equal(said[i].kind, LABEL_VERIFIED);
		assert_true(store_label_counts(&said[i], UINT64_MAX - 1));
	}
	scan();
	assert_int_equal(of(20, STORE_QUARANTINED)->seq, 2);
}

TEST(a_step_whose_manifest_is_damaged_keeps_its_holds)
{
	set(30, LABEL_HOLD, "a", 0, NULL);
	set(30, LABEL_VERIFIED, NULL, 0, NULL);
	unlinked("step-000000000030/MANIFEST");
	scan();
	labels();
	assert_int_equal(nlabel, 2);
	assert_true(store_label_is(&said[0], of(30, STORE_DAMAGED)));
	assert_false(store_label_is(&said[1], of(30, STORE_DAMAGED)));
	assert_int_equal(store_label_set(s, of(30, STORE_DAMAGED), LABEL_HOLD, "b", 0, NULL, &err),
			 0);
	assert_int_equal(clear(30, STORE_DAMAGED, LABEL_HOLD, NULL), 2);
}

TEST(releasing_a_damaged_step_leaves_the_holds_of_one_set_aside)
{
	set(20, LABEL_HOLD, "a", 0, NULL);
	save(20, 10);
	unlinked("step-000000000020/MANIFEST");
	scan();
	assert_int_equal(clear(20, STORE_DAMAGED, LABEL_HOLD, NULL), 0);
	assert_int_equal(count(LABEL_HOLD, 20), 1);
}

static void assert_resolves(const char *name, const char *dir, const char *note)
{
	struct store_ref ref;

	if (store_resolve(&io_ops_posix, &format_native, place.path, name, &ref, &err))
		fail_msg("%s", err.msg);
	assert_string_equal(strrchr(ref.path, '/') + 1, dir);
	if (note ? !strstr(ref.note, note) : ref.note[0] != 0)
		fail_msg("%s: note \"%s\"", name, ref.note);
	(void)close(ref.step_fd);
}

TEST(latest_passes_over_what_is_quarantined_and_says_so)
{
	struct store_ref ref;

	assert_resolves("latest", "step-000000000030", NULL);
	set(30, LABEL_BAD, NULL, 0, "part w0001 is damaged");
	scan();
	assert_string_equal(of(30, STORE_QUARANTINED)->why, "part w0001 is damaged");
	assert_resolves("latest", "step-000000000020", "step 30 is passed over: quarantined: part");
	assert_resolves("latest~1", "step-000000000010", "repair step:30");
	assert_resolves("step:30", "step-000000000030", NULL);
	unlinked("step-000000000020/MANIFEST");
	assert_resolves("latest", "step-000000000010", "and 1 more");
	set(10, LABEL_BAD, NULL, 0, NULL);
	assert_int_equal(
		store_resolve(&io_ops_posix, &format_native, place.path, "latest", &ref, &err),
		-EUCLEAN);
	assert_non_null(strstr(err.msg, "passed over"));
	(void)clear(30, STORE_QUARANTINED, LABEL_BAD, NULL);
	assert_resolves("latest", "step-000000000030", NULL);
}

TEST(a_tag_is_a_name_also_of_a_step_that_was_set_aside)
{
	struct store_ref ref;

	set(20, LABEL_TAG, "best", 0, NULL);
	assert_resolves("tag:best", "step-000000000020", NULL);
	save(15, 10);
	assert_resolves("tag:best", crash_aside(s, 20, 2), NULL);
	assert_int_equal(
		store_resolve(&io_ops_posix, &format_native, place.path, "tag:none", &ref, &err),
		-ENOENT);
	assert_non_null(strstr(err.msg, "best"));
	assert_int_equal(
		store_resolve(&io_ops_posix, &format_native, place.path, "tag:", &ref, &err),
		-EINVAL);
	assert_int_equal(io_tree_remove(s->job_fd, crash_aside(s, 20, 2)), 0);
	assert_int_equal(
		store_resolve(&io_ops_posix, &format_native, place.path, "tag:best", &ref, &err),
		-ENOENT);
	assert_non_null(strstr(err.msg, "gone"));
}

TEST(a_job_without_its_own_directory_of_claims_gets_one)
{
	assert_int_equal(io_tree_remove(s->job_fd, STORE_CLAIMS), 0);
	labels();
	assert_int_equal(nlabel, 0);
	set(20, LABEL_TAG, "best", 0, NULL);
	assert_int_equal(count(LABEL_TAG, 20), 1);
}

/* --- faults --- */

/* Every call fails once, each kind of step: what was acknowledged is there, what was not is as
 * before or as wanted. */
TEST(any_call_may_fail_and_nothing_acknowledged_is_lost)
{
	static const int code[] = { -EIO, -ENOSPC };
	struct io_faults f;
	uint64_t now = wall_ns(), runs = 0;

	for (uint32_t c = 0; c < ARRAY_LEN(code); c++) {
		for (uint64_t nth = 1;; nth++, runs++) {
			struct store broken = job_by(&f.ops);
			struct store_label *m;
			uint32_t nm;
			bool second;
			int r;

			set(20, LABEL_HOLD, "x", now + 900 * NS_PER_S, "first");
			io_faults_init(&f, &io_ops_posix);
			io_faults_fail(&f, IO_ON_ANY, nth, code[c], false);
			r = store_label_set(&broken, of(20, STORE_COMMITTED), LABEL_HOLD, "x",
					    now + 60 * NS_PER_S, "second", &err);
			assert_int_equal(store_labels(s, &m, &nm, &err), 0);
			assert_int_equal(nm, 1);
			second = m[0].until_ns == now + 60 * NS_PER_S;
			if (!r && !second && files() == 1)
				fail_msg("call %" PRIu64 ": acknowledged and not there", nth);
			if (r && second)
				fail_msg("call %" PRIu64 ": failed and there", nth);
			free(m);
			(void)clear(20, STORE_COMMITTED, LABEL_HOLD, NULL);
			if (!io_faults_hit(&f))
				break;
		}
	}
	assert_true(runs > 20);
}

/* What was promised when the power went: 1 hold a; 2 and tag on 20; 3 tag on 30; 4 hold a is
 * cleared; 5 30 is bad. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *at)
{
	struct store after = {
		.ops = at->ops, .format = &format_native, .root_fd = -1, .job = CRASH_JOB
	};
	struct store_step *st = NULL;
	struct store_label *m = NULL;
	uint32_t nst = 0, nm = 0, hold = 0, tag20 = 0, tag30 = 0, bad = 0;
	int r;

	after.job_fd = at->ops->open(at->ops->ctx, dirfd, CRASH_JOB, O_RDONLY | O_DIRECTORY, 0);
	r = store_scan(&after, true, &st, &nst, &err);
	if (!r)
		r = store_labels(&after, &m, &nm, &err);
	for (uint32_t i = 0; i < nm; i++) {
		/* What it says is as durable as that it is there. */
		if (m[i].unread && m[i].kind == LABEL_HOLD && at->promise >= 1)
			r = -1;
		hold += m[i].kind == LABEL_HOLD && m[i].step == 20;
		tag20 += m[i].kind == LABEL_TAG && m[i].step == 20;
		tag30 += m[i].kind == LABEL_TAG && m[i].step == 30;
	}
	for (uint32_t i = 0; i < nst; i++)
		bad += st[i].state == STORE_QUARANTINED;
	if (!r && ((at->promise >= 1 && at->promise < 3 && !hold) || (at->promise >= 4 && hold) ||
		   (at->promise == 2 && tag20 + tag30 != 1) || (at->promise >= 3 && !tag30) ||
		   (at->promise >= 5 && !bad)))
		r = -1;
	if (r)
		print_message("promise %" PRIu64 ": hold %u tag20 %u tag30 %u bad %u\n",
			      at->promise, hold, tag20, tag30, bad);
	free(st);
	free(m);
	(void)at->ops->close(at->ops->ctx, after.job_fd);
	return r;
}

TEST(what_was_acknowledged_survives_the_power)
{
	struct io_crash_opts o = { .seed = 7, .nrandom = 8, .ntear = 2, .memory = true };
	const struct store_step *st = of(20, STORE_COMMITTED);
	uint64_t states = 0;
	struct io_faults f;
	struct store live = job_by(&f.ops);

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	assert_int_equal(store_label_set(&live, st, LABEL_HOLD, "a", 0, "why", &err), 0);
	io_record_promise(f.record, 1);
	assert_int_equal(store_label_set(&live, st, LABEL_TAG, "best", 0, NULL, &err), 0);
	io_record_promise(f.record, 2);
	st = of(30, STORE_COMMITTED);
	assert_int_equal(store_label_set(&live, st, LABEL_TAG, "best", 0, NULL, &err), 0);
	io_record_promise(f.record, 3);
	st = of(20, STORE_COMMITTED);
	assert_int_equal(store_label_clear(&live, st, LABEL_HOLD, "a", NULL, &err), 0);
	io_record_promise(f.record, 4);
	st = of(30, STORE_COMMITTED);
	assert_int_equal(store_label_set(&live, st, LABEL_BAD, NULL, 0, "why", &err), 0);
	io_record_promise(f.record, 5);
	assert_int_equal(io_crash_states(f.record, &o, after_power_loss, NULL, &states), 0);
	print_message("%" PRIu64 " states, seed %" PRIu64 "\n", states, o.seed);
	assert_true(states >= 20);
	io_record_free(f.record);
}

static int lock_what_has_gone(void *ctx, int fd, bool exclusive)
{
	(void)renameat(s->job_fd, "step-000000000020", s->job_fd, ".trash-00000001");
	return io_ops_posix.lock(NULL, fd, exclusive);
}

TEST(a_reader_that_comes_too_late_is_told_so)
{
	struct io_ops late = io_ops_posix;
	struct store reader = job_by(&late);
	int fd;

	late.lock = lock_what_has_gone;
	assert_int_equal(store_step_open(&reader, "step-000000000020", &fd, &err), -ENOENT);
	assert_int_equal(fd, -1);
}

/* --- what a label may say --- */

#define FILE_OF_HOLD "hold-000000000020-0123456789abcdef-x"

static int parse(const char *file, const char *text, struct store_label *ret)
{
	return store_label_parse(file, text, strlen(text), ret);
}

TEST(the_time_of_a_label_is_a_date_in_utc_that_fits_64_bits)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} good[] = {
		{ "made=1970-01-01T00:00:00Z\n", 0 },
		{ "made=1970-01-01T00:00:01.000000002Z\n", 1000000002 },
		{ "made=2024-02-29T23:59:59.5Z\n", UINT64_C(1709251199500000000) },
		{ "made=2554-07-21T23:34:33.709551615Z\n", UINT64_MAX },
	};
	static const char *const bad[] =
		ROW("made=\n", "made=1970-01-01T00:00:00\n", "made=1970-01-01T00:00:00z\n",
		    "made=1970-01-01T00:00:00Z \n", "made=1970-01-01T00:00:00.Z\n",
		    "made=1970-01-01T00:00:00.x1Z\n", "made=1970-01-01T00:00:00.1234567890Z\n",
		    "made=1970-01-01T00:00:00.1x2Z\n", "made=1970-01-01T00:00:0xZ\n",
		    "made=1970-01-01 00:00:00Z\n", "made=1970-00-01T00:00:00Z\n",
		    "made=1970-13-01T00:00:00Z\n", "made=1970-01-00T00:00:00Z\n",
		    "made=1970-01-32T00:00:00Z\n", "made=2023-02-29T00:00:00Z\n",
		    "made=1970-01-01T24:00:00Z\n", "made=1970-01-01T00:60:00Z\n",
		    "made=1970-01-01T00:00:60Z\n", "made=1969-12-31T23:59:59Z\n",
		    "made=0000-01-01T00:00:00Z\n",
		    "made=2554-07-21T23:34:33.709551616Z\n", /* 2^64 ns */
		    "made=2554-07-21T23:34:34Z\n", "made=9999-12-31T23:59:59Z\n");
	struct store_label m;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(parse(FILE_OF_HOLD, good[i].text, &m), 1);
		assert_true(m.made_ns == good[i].ns);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (parse(FILE_OF_HOLD, bad[i], &m) != -EPROTO || !m.unread)
			fail_msg("taken for a time: %s", bad[i]);
}

#define MADE "made=2026-11-21T19:30:00Z\n"
#define UNTIL "until=2026-11-22T19:30:00Z\n"

TEST(a_label_says_each_thing_once_and_what_belongs_to_its_kind)
{
	static const char *const bad[] =
		ROW("", "\n", "made=2026-11-21T19:30:00Z", "by=me\n", MADE "=x\n", MADE "x\n",
		    MADE "By=me\n", MADE "\n", MADE MADE, MADE UNTIL UNTIL, MADE "by=me\nby=me\n",
		    MADE "why=x\nwhy=y\n", MADE "why=\x01\n");
	char text[STORE_LABEL_BYTES_MAX + 2], by[200];
	struct store_label m;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (parse(FILE_OF_HOLD, bad[i], &m) != -EPROTO || !m.unread || m.by[0])
			fail_msg("taken for a label: %s", bad[i]);
	assert_int_equal(parse("tag-000000000020-0123456789abcdef-x", MADE UNTIL, &m), -EPROTO);
	assert_int_equal(store_label_parse(FILE_OF_HOLD, NULL, 10, &m), -EPROTO);
	assert_int_equal(store_label_parse(FILE_OF_HOLD, MADE "\0\n", sizeof MADE + 1, &m),
			 -EPROTO);
	assert_int_equal(parse(FILE_OF_HOLD, MADE "until=1970-01-01T00:00:00Z\n", &m), 1);
	assert_true(m.until_ns == 1); /* long ago, and not for ever */
	for (size_t len = sizeof m.by - 2; len <= sizeof m.by; len++) {
		(void)snprintf(by, sizeof by, MADE "by=%0*d\n", (int)len, 0);
		assert_int_equal(parse(FILE_OF_HOLD, by, &m), len < sizeof m.by ? 1 : -EPROTO);
	}
	/* a key of a later version, as long as a label may be and one byte longer */
	memset(text, 'x', sizeof text);
	memcpy(text, MADE "later=", sizeof MADE "later=" - 1);
	text[STORE_LABEL_BYTES_MAX - 1] = '\n';
	assert_int_equal(store_label_parse(FILE_OF_HOLD, text, STORE_LABEL_BYTES_MAX, &m), 1);
	text[STORE_LABEL_BYTES_MAX - 1] = 'x';
	text[STORE_LABEL_BYTES_MAX] = '\n';
	assert_int_equal(store_label_parse(FILE_OF_HOLD, text, STORE_LABEL_BYTES_MAX + 1, &m),
			 -EPROTO);
}

TEST(a_file_is_a_label_only_if_we_would_call_it_so)
{
	static const char *const foreign[] = ROW(
		"", "hold", "hold-", "holder-000000000020-0123456789abcdef-x", "hold-x",
		"hold-000000000020", "hold-000000000020-0123456", "hold-000000000020-012345678",
		"hold-000000000020-0123456789abcdef", "hold-000000000020-0123456789abcdef-",
		"hold-000000000020-0123456789abcdef-.x", "hold-000000000020-0123456789abcdef-x y",
		"hold-000000000020-0123456789abcdef-x~", "hold-000000000020-0123456789abcdef-x~1",
		"hold-000000000020-0123456789abcdef-x~0123456x",
		"hold-000000000020-0123456789abcdef-x~012345678", "hold-20-0123456789abcdef-x",
		"hold-18446744073709551616-0123456789abcdef-x",
		"hold-000000000020-0123456789ABCDEF-x", "verified-000000000020-0123456789abcdef-x",
		"bad-000000000020-0123456789abcdef-", "gen-00000001");
	struct store_label m;
	char file[200];

	for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
		if (parse(foreign[i], MADE, &m))
			fail_msg("taken for a label: %s", foreign[i]);
	for (int len = STORE_LABEL_NAME_MAX - 1; len <= STORE_LABEL_NAME_MAX + 1; len++) {
		(void)snprintf(file, sizeof file, "hold-000000000020-0123456789abcdef-%0*d", len,
			       0);
		assert_int_equal(parse(file, MADE, &m), len <= STORE_LABEL_NAME_MAX);
	}
	assert_int_equal(parse("hold-000000000020-0123456789abcdef-x~0123abcd", MADE, &m), 1);
	assert_int_equal(parse("verified-000000000020-0123456789abcdef", MADE, &m), 1);
	assert_int_equal(m.kind, LABEL_VERIFIED);
	assert_int_equal(m.id8[0], 0x01);
	assert_int_equal(m.id8[7], 0xef);
}

static const char *const well_formed[] = ROW(
	" ", "~", "\xc2\xa0", "\xdf\xbf", "\xe0\xa0\x80", "\xe1\x80\x80", "\xed\x9f\xbf",
	"\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf1\x80\x80\x80", "\xf4\x8f\xbf\xbf");
/* And how many '?' stand for it. */
static const struct {
	const char *text;
	uint32_t n;
} ill_formed[] = {
	{ "\x01", 1 },		   /* a control character */
	{ "\x7f", 1 },		   /* and another one */
	{ "\xc2\x9f", 2 },	   /* and one of two bytes */
	{ "\x80", 1 },		   /* no first byte */
	{ "\xc1\xbf", 2 },	   /* longer than it need be */
	{ "\xe0\x9f\xbf", 3 },	   /* the same */
	{ "\xf0\x8f\xbf\xbf", 4 }, /* the same */
	{ "\xed\xa0\x80", 3 },	   /* half of a pair */
	{ "\xf4\x90\x80\x80", 4 }, /* above what there is */
	{ "\xf5\x80\x80\x80", 4 }, /* the same */
	{ "\xff", 1 },
	{ "\xc3", 1 },	       /* cut */
	{ "\xe2\x82", 2 },     /* cut */
	{ "\xf1\x80\x80", 3 }, /* cut */
	{ "\xc3\xc3", 2 },     /* no second byte */
};

TEST(text_is_printable_utf_8_as_it_is_read_and_as_it_is_set)
{
	char text[200], want[40];
	struct store_label m;

	for (size_t i = 0; i < ARRAY_LEN(well_formed); i++) {
		(void)snprintf(text, sizeof text, MADE "why=a%sz\n", well_formed[i]);
		(void)snprintf(want, sizeof want, "a%sz", well_formed[i]);
		assert_int_equal(parse(FILE_OF_HOLD, text, &m), 1);
		assert_string_equal(m.why, want);
		set(20, LABEL_HOLD, "x", 0, want);
		labels();
		assert_string_equal(said[0].why, want);
	}
	for (size_t i = 0; i < ARRAY_LEN(ill_formed); i++) {
		for (uint32_t last = 0; last < 2; last++) {
			(void)snprintf(text, sizeof text, MADE "why=a%s%s\n", ill_formed[i].text,
				       last ? "" : "z");
			if (parse(FILE_OF_HOLD, text, &m) != -EPROTO)
				fail_msg("ill-formed text %zu is taken", i);
			(void)snprintf(text, sizeof text, "a%s%s", ill_formed[i].text,
				       last ? "" : "z");
			(void)snprintf(want, sizeof want, "a%.*s%s", (int)ill_formed[i].n, "????",
				       last ? "" : "z");
			set(20, LABEL_HOLD, "x", 0, text);
			labels();
			assert_string_equal(said[0].why, want);
		}
	}
}

TEST(a_reason_is_one_line_and_cut_between_two_characters)
{
	char why[sizeof said->why + 10];

	set(20, LABEL_HOLD, "x", 0, "one\ttwo\nthree");
	labels();
	assert_string_equal(said[0].why, "one two three");
	for (size_t len = sizeof said->why - 4; len < sizeof said->why; len++) {
		memset(why, 'a', len);
		memcpy(why + len, "\xc3\xa4g", 4);
		set(20, LABEL_HOLD, "x", 0, why);
		labels();
		assert_false(said[0].unread);
		if (len + 3 < sizeof said->why)
			why[len + 3] = 0;
		else if (len + 2 < sizeof said->why)
			why[len + 2] = 0;
		else
			why[len] = 0;
		assert_string_equal(said[0].why, why);
	}
}

TEST(who_has_no_account_is_named_by_his_number)
{
	char want[40];

	account.name = "a-rather-long-name-of-an-account-that-a-directory-service-gave-to-somebody";
	set(20, LABEL_HOLD, "x", 0, NULL);
	labels();
	assert_memory_equal(said[0].by, "a-rather-long-name", 18);
	assert_non_null(strchr(said[0].by, '@'));
	(void)snprintf(want, sizeof want, "uid-%u@", (unsigned)geteuid());
	for (uint32_t i = 0; i < 2; i++) {
		account.name = i ? NULL : "somebody";
		account.error = i ? 0 : ERANGE;
		set(20, LABEL_HOLD, "x", 0, NULL);
		labels();
		assert_memory_equal(said[0].by, want, strlen(want));
	}
}

/* --- several files, and files that go --- */

#define AT(hour) "made=2026-11-21T" hour ":00:00Z\n"
#define TO(hour) "until=2026-11-22T" hour ":00:00Z\n"

/* Each pair in both orders of the files' names. */
TEST(of_the_same_label_twice_one_counts_whatever_the_files_are_called)
{
	static const struct {
		const char *kind, *rest, *counts, *other;
	} pair[] = {
		{ "hold", "-x", AT("01") TO("09"), AT("02") TO("08") }, /* the longer */
		{ "hold", "-x", AT("01"), AT("02") TO("23") },		/* for ever */
		{ "hold", "-x", AT("02") TO("08"), AT("01") TO("08") }, /* the newer */
		{ "tag", "-x", AT("02"), AT("01") },
		{ "verified", "", AT("02"), AT("01") },
		{ "bad", "", AT("02"), AT("01") },
	};
	char rest[40], text[200];

	for (uint32_t i = 0; i < 2 * ARRAY_LEN(pair); i++) {
		const char *kind = pair[i / 2].kind;

		for (uint32_t k = 0; k < 2; k++) {
			(void)snprintf(rest, sizeof rest, "%s~%08x", pair[i / 2].rest, k + 1);
			(void)snprintf(text, sizeof text, "%swhy=%s\n",
				       k == i % 2 ? pair[i / 2].counts : pair[i / 2].other,
				       k == i % 2 ? "counts" : "other");
			put(kind, rest, text);
		}
		labels();
		assert_int_equal(nlabel, 1);
		assert_string_equal(said[0].why, "counts");
		assert_int_equal(clear(20, STORE_COMMITTED, said[0].kind, NULL), 2);
	}
	for (uint32_t k = 0; k < 2; k++) /* nothing to tell them by: still one */
		put("hold", k ? "-x~00000001" : "-x~00000002", AT("01"));
	labels();
	assert_int_equal(nlabel, 1);
}

TEST(a_label_set_again_counts_also_when_the_clock_has_gone_back)
{
	static const char *const made[] = { "made=2100-01-01T00:00:00Z\n",
					    "made=2554-07-21T23:34:33.709551615Z\n" };

	for (uint32_t i = 0; i < 2; i++) {
		uint64_t now = wall_ns();

		put("tag", "-best~00000001", made[i]);
		assert_int_equal(count(LABEL_TAG, 20), 1);
		set(30, LABEL_TAG, "best", 0, "now");
		assert_int_equal(count(LABEL_TAG, 30), 1);
		assert_int_equal(nlabel, 1);
		assert_true(i ? said[0].made_ns >= now && said[0].made_ns < UINT64_MAX
			      : said[0].made_ns == UINT64_C(4102444800000000001));
		assert_int_equal(files(), 1);
		assert_int_equal(
			store_label_clear(s, of(30, STORE_COMMITTED), LABEL_TAG, NULL, NULL, &err),
			0);
	}
}

TEST(more_labels_than_one_page_of_them_are_all_there)
{
	char name[20];

	for (uint32_t i = 0; i < 50; i++) {
		(void)snprintf(name, sizeof name, "h%02u", i);
		set(i % 2 ? 20 : 30, LABEL_HOLD, name, 0, NULL);
	}
	labels();
	assert_int_equal(nlabel, 50);
	for (uint32_t i = 0; i < 50; i++) {
		(void)snprintf(name, sizeof name, "h%02u", i);
		assert_string_equal(said[i].name, name);
		assert_int_equal(said[i].step, i % 2 ? 20 : 30);
	}
}

/* What the next open of a label's file gives, the n-th of them. */
static struct {
	uint32_t nth, calls;
	int error;
} opening;

static int open_made_up(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (strstr(name, "-0000000000") && !(flags & O_DIRECTORY) && ++opening.calls == opening.nth)
		return opening.error;
	return io_ops_posix.open(NULL, dirfd, name, flags, mode);
}

TEST(a_label_that_goes_while_they_are_read_is_none_and_one_that_cannot_be_read_is_one)
{
	static const struct {
		int error, r;
		uint32_t n;
	} is[] = { { -ENOENT, 0, 2 },	    { -EIO, 0, 3 },	     { -EACCES, 0, 3 },
		   { -EMFILE, -EMFILE, 0 }, { -ENFILE, -ENFILE, 0 }, { -ENOMEM, -ENOMEM, 0 } };
	struct store other = job_by(&ops);

	ops.open = open_made_up;
	set(20, LABEL_HOLD, "a", 0, "why a");
	set(20, LABEL_HOLD, "b", 0, "why b");
	set(20, LABEL_HOLD, "c", 0, "why c");
	for (uint32_t i = 0; i < ARRAY_LEN(is); i++) {
		for (opening.nth = 1; opening.nth <= 3; opening.nth++) {
			uint32_t nunread = 0;

			free(TAKE(said));
			opening.calls = 0;
			opening.error = is[i].error;
			memset(&err, 0, sizeof err);
			assert_int_equal(store_labels(&other, &said, &nlabel, &err), is[i].r);
			assert_int_equal(nlabel, is[i].n);
			if (is[i].r)
				assert_non_null(
					strstr(err.msg, "job demo: cannot read the labels"));
			for (uint32_t k = 0; k < nlabel; k++) {
				nunread += said[k].unread;
				if (said[k].unread)
					assert_string_equal(said[k].why, "");
				else
					assert_string_equal(said[k].why + 4, said[k].name);
			}
			assert_int_equal(nunread, is[i].n == 3);
		}
	}
}

TEST(a_label_that_is_too_large_counts_and_is_not_read)
{
	static char text[STORE_LABEL_BYTES_MAX + 2];

	memset(text, 'x', STORE_LABEL_BYTES_MAX);
	memcpy(text, AT("01") "why=x\nlater=", sizeof AT("01") "why=x\nlater=" - 1);
	text[STORE_LABEL_BYTES_MAX - 1] = '\n';
	put("hold", "-x", text);
	labels();
	assert_false(said[0].unread);
	text[STORE_LABEL_BYTES_MAX] = '\n';
	put("hold", "-x", text);
	labels();
	assert_int_equal(nlabel, 1);
	assert_true(said[0].unread);
	assert_int_equal(said[0].why[0], 0);
}

TEST(labels_without_memory_are_an_error_and_not_fewer_labels)
{
	uint64_t failed, nth = 0;
	uint32_t open = open_files();
	char name[20];
	int r;

	for (uint32_t i = 0; i < 20; i++) {
		(void)snprintf(name, sizeof name, "h%02u", i);
		set(20, LABEL_HOLD, name, 0, NULL);
	}
	do {
		free(TAKE(said));
		memset(&err, 0, sizeof err);
		no_memory_from(nth++, false);
		r = store_labels(s, &said, &nlabel, &err);
		failed = no_memory_end();
		assert_int_equal(open_files(), open);
		if (r == 0 && !failed)
			break;
		/* the allocation may have been the C library's, for a listing: then it is that
		 * error */
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(nlabel, 0);
		assert_null(said);
		assert_non_null(strstr(err.msg, "job demo: "));
	} while (failed);
	assert_int_equal(nlabel, 20);
	assert_true(nth > 20);
}

/* --- setting where something is in the way --- */

static int open_new_fails;
static uint32_t opened_new;

static int open_new_refused(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	if (!(flags & O_CREAT))
		return io_ops_posix.open(NULL, dirfd, name, flags, mode);
	opened_new++;
	return open_new_fails;
}

/* Taken names, or a directory that goes again and again: it ends. */
TEST(a_label_for_which_no_file_can_be_made_is_an_error_that_says_so)
{
	static const int error[] = { -EEXIST, -ENOENT, -EROFS, -EDQUOT };
	struct store other = job_by(&ops);

	ops.open = open_new_refused;
	for (uint32_t i = 0; i < ARRAY_LEN(error); i++) {
		open_new_fails = error[i];
		opened_new = 0;
		memset(&err, 0, sizeof err);
		assert_int_equal(store_label_set(&other, of(20, STORE_COMMITTED), LABEL_HOLD, "x",
						 0, NULL, &err),
				 error[i] == -EDQUOT ? -ENOSPC : error[i]);
		assert_non_null(strstr(err.msg, "step 20: cannot make its hold label durable"));
		assert_int_equal(opened_new, i < 2 ? STORE_TRIES_MAX : 1);
		assert_int_equal(files(), 0);
	}
}

static int mkdir_error;

static int mkdir_made_up(void *ctx, int dirfd, const char *name, uint32_t mode)
{
	int r = io_ops_posix.mkdir(ctx, dirfd, name, mode);

	if (mkdir_error != -EEXIST)
		(void)unlinkat(dirfd, name, AT_REMOVEDIR);
	return r ? r : mkdir_error;
}

TEST(where_two_make_the_directory_of_labels_at_once_both_are_content)
{
	struct store other = job_by(&ops);

	ops.mkdir = mkdir_made_up;
	mkdir_error = -EROFS;
	assert_int_equal(io_tree_remove(s->job_fd, STORE_CLAIMS), 0);
	assert_int_equal(tag_by(&other), -EROFS);
	assert_non_null(strstr(err.msg, "mount it writable"));
	mkdir_error = -EEXIST; /* somebody has been faster */
	assert_int_equal(tag_by(&other), 0);
	assert_int_equal(count(LABEL_TAG, 20), 1);
}

TEST(a_step_that_is_being_collected_gets_no_label)
{
	struct store_step st = *of(20, STORE_COMMITTED);

	st.state = STORE_COLLECTING;
	assert_int_equal(store_label_set(s, &st, LABEL_HOLD, "x", 0, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "step 20: a hold label cannot be set like this"));
	assert_int_equal(files(), 0);
}

/* Another directory takes the name between its opening and its lock, every time. */
static int lock_what_is_swapped(void *ctx, int fd, bool exclusive)
{
	static uint32_t turn;
	char away[40];

	(void)snprintf(away, sizeof away, "was-%u", turn++);
	move("step-000000000020", away);
	put_dir(s->job_fd, "step-000000000020");
	return io_ops_posix.lock(NULL, fd, exclusive);
}

TEST(a_step_that_is_swapped_again_and_again_gets_no_label)
{
	struct store other = job_by(&ops);

	ops.lock = lock_what_is_swapped;
	assert_int_equal(tag_by(&other), -ENOENT);
	assert_non_null(strstr(err.msg, "has gone or is being removed"));
	assert_int_equal(files(), 0);
}

/* --- clearing where calls fail --- */

/* Every call fails, once and from there on: what is told done is done, and what is not can be done
 * again. */
TEST(clearing_says_done_only_when_they_are_gone)
{
	static const int code[] = { -EIO, -ENOENT, -EACCES };
	struct io_faults f;
	uint64_t runs = 0;

	for (uint32_t c = 0; c < 2 * ARRAY_LEN(code); c++) {
		for (uint64_t nth = 1;; nth++, runs++) {
			struct store broken = job_by(&f.ops);
			uint32_t gone = 77, open = open_files();
			int r;

			hold_three();
			io_faults_init(&f, &io_ops_posix);
			io_faults_fail(&f, IO_ON_ANY, nth, code[c / 2], c % 2);
			memset(&err, 0, sizeof err);
			r = store_label_clear(&broken, of(20, STORE_COMMITTED), LABEL_HOLD, NULL,
					      &gone, &err);
			assert_int_equal(open_files(), open);
			/* a call that says that there is nothing is believed, if it lies or not */
			if (!r && code[c / 2] != -ENOENT)
				assert_int_equal(files(), 0);
			if (!r && files() == 0)
				assert_in_range(gone, 2, 3);
			if (r) {
				assert_int_equal(gone, 0);
				assert_int_equal(r, code[c / 2]);
				assert_non_null(strstr(err.msg, STORE_CLAIMS));
			}
			if (!io_faults_hit(&f))
				break;
		}
	}
	assert_true(runs > 60);
}

TEST(a_label_that_another_has_cleared_at_the_same_time_is_no_error)
{
	struct io_faults f = { 0 };
	struct store other = job_by(&f.ops);
	uint32_t gone;

	for (uint64_t nth = 1; nth <= 3; nth++) {
		hold_three();
		io_faults_init(&f, &io_ops_posix);
		io_faults_fail(&f, IO_ON_UNLINK, nth, -ENOENT, false);
		assert_int_equal(store_label_clear(&other, of(20, STORE_COMMITTED), LABEL_HOLD,
						   NULL, &gone, &err),
				 0);
		assert_int_equal(gone, 2);
	}
}

TEST(clearing_of_a_damaged_step_where_the_job_cannot_be_read_clears_nothing)
{
	struct io_faults f = { 0 };
	struct store broken = job_by(&f.ops);
	uint32_t gone = 77;

	set(30, LABEL_HOLD, "a", 0, NULL);
	unlinked("step-000000000030/MANIFEST");
	scan();
	io_faults_init(&f, &io_ops_posix);
	io_faults_fail(&f, IO_ON_LIST, 1, -EIO, false);
	assert_int_equal(
		store_label_clear(&broken, of(30, STORE_DAMAGED), LABEL_HOLD, NULL, &gone, &err),
		-EIO);
	assert_non_null(strstr(err.msg, "cannot list its directory"));
	assert_int_equal(gone, 0);
	assert_int_equal(count(LABEL_HOLD, 30), 1);
}

UNIT(.setup = setup, .teardown = teardown);
