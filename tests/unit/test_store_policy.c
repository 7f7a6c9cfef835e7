/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_policy.c - the policy of a job: set, read again, by several at once, after faults and
 * power losses, and files that are no policy. */
#include <sys/stat.h>
#include <sys/wait.h>
#include "ckpt/store/store_policy.h"
#include "formats/native/native.h"
#include "tests/crash/job.h"
#include "tests/lib/row.h"

static struct store_policy read_policy(void)
{
	struct store_policy p;

	store_policy_read(s, &p);
	return p;
}

static struct retain_policy rules_of(const char *lines)
{
	struct retain_policy p = { 0 };

	if (retain_lines(&p, lines, &err))
		fail_msg("%s", err.msg);
	return p;
}

static int set_by(const struct store *by, const char *lines)
{
	struct retain_policy p = rules_of(lines);

	return store_policy_set(by, &p, "a test", NULL, &err);
}

static void set(const char *lines)
{
	if (set_by(s, lines))
		fail_msg("%s", err.msg);
}

static void assert_policy(const struct store_policy *p, const char *lines)
{
	char text[RETAIN_TEXT_MAX];

	if (p->state == STORE_POLICY_UNREAD)
		fail_msg("%s", p->why);
	assert_int_equal(p->state, STORE_POLICY_SET);
	retain_lines_print(&p->rules, text, sizeof text);
	assert_string_equal(text, lines);
}

static uint32_t policy_files(void)
{
	uint32_t n = 0;

	for (uint64_t i = 0; i < 100; i++) {
		char name[64];

		(void)snprintf(name, sizeof name, STORE_CLAIMS "/keep-%012" PRIu64, i);
		n += exists(name);
	}
	return n;
}

/* A file with this content as the policy of the highest number so far. */
static void forge(const char *text)
{
	uint64_t number = read_policy().number + 1;
	char name[64];
	int fd;

	(void)snprintf(name, sizeof name, STORE_CLAIMS "/keep-%012" PRIu64, number);
	fd = openat(s->job_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	(void)close(fd);
}

TEST(a_job_without_a_policy_has_none)
{
	assert_int_equal(read_policy().state, STORE_POLICY_NONE);
}

TEST(a_policy_is_read_as_it_was_set_and_the_last_one_counts_whole)
{
	static const char every[] = "keep-last=3\nkeep-every=1000\nkeep-within=36h\n"
				    "keep-best=loss:min:1\nkeep-best=eval/acc:max:2\n"
				    "set-aside-for=2w\n";
	struct store_policy p;

	set(every);
	p = read_policy();
	assert_policy(&p, every);
	assert_int_equal(p.number, 1);
	assert_true(p.set_ns);
	assert_non_null(strstr(p.by, "a test"));
	set("keep-last=1\n");
	p = read_policy();
	assert_policy(&p, "keep-last=1\n");
	assert_int_equal(p.number, 2);
	assert_int_equal(policy_files(), 1);
	set("keep-last=1\n"); /* nothing is new, and nothing is written */
	assert_int_equal(read_policy().number, 2);
	set("");
	p = read_policy();
	assert_policy(&p, "");
	assert_false(retain_is_policy(&p.rules));
}

TEST(a_policy_that_cannot_be_read_keeps_every_step_and_says_why)
{
	static const struct {
		const char *text, *says;
	} wrong[] = ROW({ "by=x\nkeep-last=1\nkeep-forever=2\nend=\n", "newer version" },
			{ "by=x\nkeep-last=1\n", "no end" }, { "by=x\nkeep-last=1\nend=", "cut" },
			{ "keep-last=1\nend=\nkeep-last=2\n", "after its end" },
			{ "keep-last=0\nend=\n", "keep-last" }, { "", "cut" },
			{ "keep-last=1\nkeep-last=2\nend=\n", "twice" }, { "\nend=\n", "no rule" },
			{ "keep-last\nend=\n", "no rule" });
	struct store_policy p;
	char name[64];

	set("keep-last=1\n");
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		forge(wrong[i].text);
		p = read_policy();
		assert_int_equal(p.state, STORE_POLICY_UNREAD);
		assert_false(retain_is_policy(&p.rules));
		assert_non_null(strstr(p.why, "keep-0000"));
		if (!strstr(p.why, wrong[i].says))
			fail_msg("%s", p.why);
	}
	for (uint32_t i = 0; i < 4; i++) {
		(void)snprintf(name, sizeof name, STORE_CLAIMS "/keep-%012u", 20 + i);
		if (i == 0)
			assert_int_equal(symlinkat("keep-000000000001", s->job_fd, name), 0);
		else if (i == 1)
			assert_int_equal(mkfifoat(s->job_fd, name, 0600), 0);
		else if (i == 2)
			assert_int_equal(mkdirat(s->job_fd, name, 0700), 0);
		else
			put_file(s->job_fd, name);
		if (i == 3) {
			int fd = openat(s->job_fd, name, O_WRONLY | O_CLOEXEC);

			assert_int_equal(ftruncate(fd, INT64_C(1) << 40), 0);
			(void)close(fd);
		}
		p = read_policy();
		assert_int_equal(p.state, STORE_POLICY_UNREAD);
		assert_int_equal(p.number, 20 + i);
	}
	set("keep-last=4\n"); /* the next one can be read */
	p = read_policy();
	assert_policy(&p, "keep-last=4\n");
}

static int stat_of_another(void *ctx, int fd, struct io_stat *ret)
{
	struct io_stat job;
	int r = io_ops_posix.stat(ctx, fd, ret);

	if (!r && io_ops_posix.stat(ctx, s->job_fd, &job) == 0 && job.ino != ret->ino)
		ret->uid++;
	return r;
}

TEST(a_policy_that_cannot_be_trusted_for_its_owner_keeps_every_step)
{
	struct io_ops other = io_ops_posix;
	struct store by = job_by(&other);
	struct store_policy p;

	set("keep-last=1\n");
	other.stat = stat_of_another;
	store_policy_read(&by, &p);
	assert_int_equal(p.state, STORE_POLICY_UNREAD);
	assert_non_null(strstr(p.why, "belongs to user"));
}

TEST(any_call_may_fail_and_the_policy_is_the_one_before_or_the_new_one)
{
	struct io_faults f = { 0 };
	uint64_t runs = 0;

	for (uint64_t nth = 1;; nth++, runs++) {
		struct store broken = job_by(&f.ops);
		struct store_policy p;
		bool new;
		int r;

		set("keep-last=3\nkeep-every=10\n");
		io_faults_init(&f, &io_ops_posix);
		io_faults_fail(&f, IO_ON_ANY, nth, -EIO, false);
		r = set_by(&broken, "keep-last=1\nkeep-every=7\n");
		p = read_policy();
		new = p.rules.keep_last == 1;
		assert_policy(&p,
			      new ? "keep-last=1\nkeep-every=7\n" : "keep-last=3\nkeep-every=10\n");
		if (!r && !new)
			fail_msg("call %" PRIu64 ": acknowledged and not there", nth);
		if (!io_faults_hit(&f))
			break;
	}
	assert_true(runs > 10);
}

/* 1: the first policy was acknowledged; 2: the second one. */
static int after_power_loss(void *arg, int dirfd, const struct io_crash *at)
{
	struct store after = {
		.ops = at->ops, .format = &format_native, .root_fd = -1, .job = CRASH_JOB
	};
	struct store_policy p;
	uint32_t last;

	(void)arg;
	after.job_fd = at->ops->open(at->ops->ctx, dirfd, CRASH_JOB, O_RDONLY | O_DIRECTORY, 0);
	store_policy_read(&after, &p);
	(void)at->ops->close(at->ops->ctx, after.job_fd);
	last = p.rules.keep_last;
	if (p.state == STORE_POLICY_UNREAD || (p.state == STORE_POLICY_NONE && at->promise >= 1) ||
	    (at->promise == 1 && last != 5 && last != 6) || (at->promise == 2 && last != 6) ||
	    (p.state == STORE_POLICY_SET && p.rules.keep_every != last * 100)) {
		print_message("promise %" PRIu64 ": state %d, last %u: %s\n", at->promise, p.state,
			      last, p.why);
		return -1;
	}
	return 0;
}

TEST(after_a_power_loss_the_policy_is_one_that_was_set_and_the_acknowledged_one_stays)
{
	struct io_crash_opts o = { .seed = 7, .nrandom = 8, .ntear = 2, .memory = true };
	uint64_t states = 0;
	struct io_faults f = { 0 };
	struct store live = job_by(&f.ops);

	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(place.fd);
	assert_int_equal(set_by(&live, "keep-last=5\nkeep-every=500\n"), 0);
	io_record_promise(f.record, 1);
	assert_int_equal(set_by(&live, "keep-last=6\nkeep-every=600\n"), 0);
	io_record_promise(f.record, 2);
	assert_int_equal(io_crash_states(f.record, &o, after_power_loss, NULL, &states), 0);
	print_message("%" PRIu64 " states, seed %" PRIu64 "\n", states, o.seed);
	assert_true(states >= 10);
	io_record_free(f.record);
}

#define WRITERS 4u
#define WRITES 25u

/* keep-last W, keep-every 100 W: of one writer. */
static void writer_run(uint32_t w)
{
	char lines[64];

	for (uint32_t i = 0; i < WRITES; i++) {
		int r;

		(void)snprintf(lines, sizeof lines, "keep-last=%u\nkeep-every=%u\n", w, 100 * w);
		r = set_by(s, lines);
		if (r && r != -EEXIST) /* others were faster, again and again */
			_exit(1);
	}
	_exit(0);
}

TEST(several_that_set_a_policy_at_once_leave_a_whole_one)
{
	uint32_t running = WRITERS, seen = 0;
	int status;

	set("keep-last=9\nkeep-every=900\n");
	for (uint32_t w = 1; w <= WRITERS; w++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0)
			writer_run(w);
	}
	while (running) {
		struct store_policy p = read_policy();

		if (p.state != STORE_POLICY_SET || p.rules.keep_every != 100 * p.rules.keep_last)
			fail_msg("a reader found state %d: %s", p.state, p.why);
		seen++;
		if (waitpid(-1, &status, WNOHANG) > 0) {
			assert_int_equal(status, 0);
			running--;
		}
	}
	set("keep-last=8\n");
	assert_int_equal(policy_files(), 1);
	print_message("%u policies read meanwhile\n", seen);
}

TEST(older_policies_stay_while_another_has_the_lock_of_the_line)
{
	int fd = openat(s->job_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	set("keep-last=1\n");
	assert_int_equal(io_ops_posix.lock(NULL, fd, true), 0);
	set("keep-last=2\n");
	assert_int_equal(policy_files(), 2);
	assert_int_equal(read_policy().rules.keep_last, 2);
	(void)close(fd);
	set("keep-last=3\n");
	assert_int_equal(policy_files(), 1);
}

UNIT(.setup = job_make_three, .teardown = job_remove);
