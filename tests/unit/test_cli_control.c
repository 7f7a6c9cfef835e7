/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_control.c - ckptctl's end of a control connection against daemons that are not what they
 * should be: they say nothing, half of it, something else, or what cannot be; and what status makes
 * of a report. Real daemons are tests/e2e/test_control.sh's.
 */
#include "ckpt/cli/daemon_ask.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/row.h"
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

/* How it answers STATUS, CONTROL having been answered well. */
enum manner {
	RIGHT,
	SILENT,	   /* to CONTROL, too */
	LEAVES,	   /* closes instead of an answer */
	BUSY,	   /* refuses CONTROL, as the real one does beyond 64 connections */
	SHORT,	   /* half a message */
	OTHER,	   /* an answer to something else */
	SEQUENCE,  /* to another request */
	NO_MEMFD,  /* the descriptor is missing */
	UNSEALED,  /* the report could shrink while it is read */
	LONGER,	   /* than its memfd */
	NONSENSE,  /* counts that are not those of the report */
	WRONG_JOB, /* a rank of a job that is not there */
	OLDER,	   /* of ABI 1: closes when it has read CONTROL */
	NEWER,	   /* refuses in the words of a newer version */
	NEWER_OK,  /* answers as one */
	UNENDED,   /* a text without its zero */
	UNENDED_TOO,
	MANNERS,
};

static struct {
	char path[108];
	int listener;
	pthread_t thread;
	enum manner manner;
	_Atomic bool over;
	_Alignas(16) uint8_t report[65536];
	uint64_t bytes;
	_Atomic uint64_t ordered; /* the jobs of TRIGGER, DRAIN and FORGET: bit `id`; 0 is all */
} fake;

static int report_fd(void)
{
	uint64_t bytes = fake.bytes;
	int fd;

	if (fake.manner == UNSEALED) {
		fd = memfd_create("fake", MFD_CLOEXEC);
		assert_int_equal(write(fd, fake.report, bytes), bytes);
		return fd;
	}
	assert_int_equal(wire_memfd_of("fake", fake.report, bytes, &fd, NULL), 0);
	return fd;
}

/* An order that does nothing. All three have the job at the same place. */
static bool order_answer(int sock, const struct wire_head *ask)
{
	struct wire_triggered triggered = { .number = 1 };
	struct wire_drained drained = { .written = 1 };
	struct wire_forgotten forgotten = { .steps = 1 };

	if (ask->type != WIRE_TRIGGER && ask->type != WIRE_DRAIN && ask->type != WIRE_FORGET)
		return false;
	fake.ordered |= UINT64_C(1) << ((const struct wire_trigger *)ask)->job;
	if (ask->type == WIRE_TRIGGER)
		(void)wire_send(sock, &triggered, WIRE_TRIGGERED, sizeof triggered, ask->seq, NULL,
				0);
	else if (ask->type == WIRE_DRAIN)
		(void)wire_send(sock, &drained, WIRE_DRAINED, sizeof drained, ask->seq, NULL, 0);
	else
		(void)wire_send(sock, &forgotten, WIRE_FORGOTTEN, sizeof forgotten, ask->seq, NULL,
				0);
	return true;
}

static void answer(int sock, const struct wire_head *ask)
{
	struct wire_status_is is = { .bytes = fake.bytes + (fake.manner == LONGER ? 4096 : 0) };
	struct wire_ok ok = { 0 };
	uint32_t seq = ask->seq + (fake.manner == SEQUENCE);
	int fd;

	if (fake.manner == NEWER) {
		struct {
			struct wire_head head;
			int32_t code;
			char text[64];
		} r = { { WIRE_MAGIC, WIRE_ABI + 1, WIRE_REFUSE, 16 + 4 + 24, seq },
			-EPROTO,
			"ckptd 9 speaks protocol 4, and what follows is not its text" };

		assert_int_equal(send(sock, &r, r.head.bytes, MSG_NOSIGNAL), r.head.bytes);
		return;
	}
	if (fake.manner == NEWER_OK) {
		struct wire_head head = { WIRE_MAGIC, WIRE_ABI + 1, WIRE_OK, sizeof head, seq };

		assert_int_equal(send(sock, &head, sizeof head, MSG_NOSIGNAL), sizeof head);
		return;
	}
	if (fake.manner == BUSY) {
		struct wire_refuse r = { .code = -EAGAIN, .text = "too many" };

		(void)wire_send(sock, &r, WIRE_REFUSE, sizeof r, seq, NULL, 0);
		return;
	}
	if (ask->type == WIRE_CONTROL || fake.manner == OTHER) {
		(void)wire_send(sock, &ok, WIRE_OK, sizeof ok, ask->seq, NULL, 0);
		return;
	}
	if (order_answer(sock, ask))
		return;
	fd = report_fd();
	if (fake.manner == SHORT)
		(void)wire_send(sock, &is, WIRE_STATUS_IS, sizeof is / 2, seq, &fd, 1);
	else
		(void)wire_send(sock, &is, WIRE_STATUS_IS, sizeof is, seq, &fd,
				fake.manner != NO_MEMFD);
	(void)close(fd);
}

static void serve(int sock)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	int fd[WIRE_FDS_MAX], nfd;

	while (!fake.over) {
		struct pollfd p = { .fd = sock, .events = POLLIN };

		if (poll(&p, 1, 20) <= 0)
			continue;
		if (wire_recv(sock, in, sizeof in, fd, &nfd) <= 0)
			break;
		if ((fake.manner == LEAVES && head->type != WIRE_CONTROL) || fake.manner == OLDER)
			break;
		if (fake.manner != SILENT)
			answer(sock, head);
	}
	(void)close(sock);
}

static void *fake_run(void *arg)
{
	(void)arg;
	while (!fake.over) {
		struct pollfd p = { .fd = fake.listener, .events = POLLIN };
		int sock =
			poll(&p, 1, 20) > 0 ? accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC) : -1;

		if (sock >= 0)
			serve(sock);
	}
	return NULL;
}

static void fake_start(enum manner manner)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(fake.path, sizeof fake.path, "%s/fake", top);
	strcpy(a.sun_path, fake.path);
	(void)unlink(fake.path);
	fake.manner = manner;
	fake.over = false;
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake.listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fake.listener, 16), 0);
	assert_int_equal(pthread_create(&fake.thread, NULL, fake_run, NULL), 0);
}

static void fake_stop(void)
{
	fake.over = true;
	pthread_join(fake.thread, NULL);
	(void)close(fake.listener);
	(void)unlink(fake.path);
}

/* --- reports --- */
/* njob jobs, each with nrank ranks and a step. */
static struct wire_report_job *report_make(uint32_t njob, uint32_t nrank)
{
	struct wire_report_head *h = (struct wire_report_head *)fake.report;
	struct wire_report_job *job = (struct wire_report_job *)(h + 1);
	struct wire_report_rank *rank = (struct wire_report_rank *)(job + njob);
	struct wire_report_step *step = (struct wire_report_step *)(rank + njob * nrank);

	memset(fake.report, 0, sizeof fake.report);
	fake.bytes = wire_report_bytes(njob, njob * nrank, njob, 0);
	assert_true(fake.bytes < sizeof fake.report);
	*h = (struct wire_report_head)ROW(.magic = WIRE_MAGIC, .njob = njob, .nrank = njob * nrank,
					  .nstep = njob, .now_ns = 100 * NS_PER_S,
					  .wall_ns = WALL_NS, .began_ns = NS_PER_S, .pid = 77,
					  .version = "ckptd 0.2.0");
	for (uint32_t i = 0; i < njob; i++) {
		job[i] = (struct wire_report_job)ROW(.id = i + 1, .generation = 1,
						     .launch = WIRE_READY, .world = nrank,
						     .attached = nrank, .nslot = 2, .taken = 5,
						     .newest = 6);
		snprintf(job[i].name, sizeof job[i].name, "job%u", i);
		strcpy(job[i].store, "/data/training/runs");
		for (uint32_t r = 0; r < nrank; r++)
			rank[i * nrank + r] = (struct wire_report_rank){ .job = i,
									 .rank = r,
									 .state = WIRE_ATTACHED };
		step[i] = (struct wire_report_step)ROW(.job = i, .step = 5, .generation = 1,
						       .state = WIRE_STAGED, .flags = WIRE_HELD);
	}
	return job;
}

static struct wire_report_rank *report_ranks(void)
{
	struct wire_report_head *h = (struct wire_report_head *)fake.report;

	return (struct wire_report_rank *)((struct wire_report_job *)(h + 1) + h->njob);
}

static struct wire_report_step *report_steps(void)
{
	const struct wire_report_head *h = (const struct wire_report_head *)fake.report;

	return (struct wire_report_step *)(report_ranks() + h->nrank);
}

static struct wire_report_job *report_jobs(void)
{
	return (struct wire_report_job *)((struct wire_report_head *)fake.report + 1);
}

/* A directory of a job that has attached, and has not committed anything. */
static int make_job(const char *path)
{
	char claims[PATH_MAX];

	snprintf(claims, sizeof claims, "%s/.ckptd", path);
	(void)mkdir(path, 0700);
	return mkdir(claims, 0700);
}

/* Where the store of all jobs is. */
static void jobs_below(const char *store, struct wire_report_job *job)
{
	for (uint32_t i = 0; i < ((struct wire_report_head *)fake.report)->njob; i++)
		snprintf(job[i].store, sizeof job[i].store, "%.500s", store);
}

/* --- tests --- */
TEST(a_daemon_that_is_none_is_said_to_be_none)
{
	static const char *const says[MANNERS] =
		ROW([RIGHT] = "", [LEAVES] = "closed the connection", [SHORT] = "another version",
		    [OTHER] = "another version", [SEQUENCE] = "another",
		    [NO_MEMFD] = "another version", [UNSEALED] = "seals", [LONGER] = "bytes long",
		    [NONSENSE] = "structure", [WRONG_JOB] = "malformed",
		    [OLDER] = "of an older version", [NEWER] = "ckptd 9 speaks protocol ",
		    [NEWER_OK] = "speaks protocol 4, this ckptctl protocol 3",
		    [UNENDED] = "malformed", [UNENDED_TOO] = "malformed");

	for (enum manner m = RIGHT; m < MANNERS; m++) {
		struct wire_report_job *j = report_make(1, 2);

		if (!says[m])
			continue;
		if (m == UNENDED)
			memset(j->failing, 'x', sizeof j->failing);
		if (m == UNENDED_TOO)
			memset(j->device, 'x', sizeof j->device);
		if (m == NONSENSE)
			((struct wire_report_head *)fake.report)->nrank = 1;
		if (m == WRONG_JOB)
			report_ranks()[1].job = 1;
		fake_start(m);
		SHOWN("status", "-S", fake.path);
		fake_stop();
		if (got.code != (m == RIGHT ? 0 : 14))
			fail_msg("manner %d: %d, %s", m, got.code, got.err);
		if (m != RIGHT)
			assert_says(got.err, "next: ckptctl doctor");
	}
}

TEST(one_who_is_busy_is_another_time_s)
{
	report_make(1, 1);
	fake_start(BUSY);
	SHOWN_IS(75, "status", "-S", fake.path);
	RUN_IS(2, "-S", fake.path); /* it belongs behind a verb */
	SHOWN_IS(75, "wait", "5", "-S", fake.path, "--timeout", "60ms");
	fake_stop();
}

TEST(a_silent_one_keeps_nobody_beyond_his_time)
{
	uint64_t began = now_ns();

	fake_start(SILENT);
	SHOWN_IS(15, "wait", "5", "-S", fake.path, "--timeout", "50ms");
	RUN_IS(15, "drain", "-S", fake.path, "--timeout", "50ms");
	RUN_IS(15, "trigger", "-S", fake.path, "--timeout", "50ms");
	assert_true(now_ns() - began < 14 * NS_PER_S); /* each a second, not five */
	fake_stop();
}

TEST(what_cannot_be_a_daemons_socket_is_a_wrong_command)
{
	const char *file = path_of("%s/file", top), *long_path = path_of("/%0120d", 7);
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)close(open(file, O_CREAT | O_WRONLY, 0600));
	SHOWN_IS(2, "status", "-S", file);
	SHOWN_IS(2, "status", "-S", long_path);
	snprintf(a.sun_path, sizeof a.sun_path, "%s/stream", top);
	assert_int_equal(bind(other, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(other, 5), 0);
	SHOWN_IS(2, "drain", "-S", a.sun_path);
	(void)close(other);
	SHOWN_IS(14, "drain", "-S", a.sun_path); /* it left its name behind */
}

TEST(alone_it_is_status_or_what_is_wrong_or_what_to_do_first)
{
	const char *nobody = path_of("%s", getenv("CKPTD_SOCKET"));

	SHOWN_IS(0, "-q");
	report_make(1, 2);
	fake_start(RIGHT);
	setenv("CKPTD_SOCKET", fake.path, 1);
	SHOWN_IS(0, "-q");
	fake_stop();
	setenv("CKPTD_SOCKET", path_of("/%0120d", 7), 1);
	SHOWN_IS(2, "-q");
	fake_start(LEAVES);
	fake.manner = OTHER;
	setenv("CKPTD_SOCKET", fake.path, 1);
	RUN_IS(14, "-q");
	fake_stop();
	setenv("CKPTD_SOCKET", nobody, 1);
}

TEST(a_launch_that_is_not_there_yet_is_told_in_words)
{
	struct wire_report_job *j;

	j = report_make(1, 0);
	*j = (struct wire_report_job){ .id = 1, .name = "young", .launch = WIRE_FORMING };
	((struct wire_report_head *)fake.report)->nstep = 0;
	fake.bytes = wire_report_bytes(1, 0, 0, 0);
	fake_start(RIGHT);
	SHOWN_IS(0, "status", "-S", fake.path);
	j->launch = WIRE_NO_LAUNCH;
	SHOWN_IS(0, "status", "-S", fake.path);
	fake_stop();
}

TEST(the_longest_stall_is_no_shorter_than_the_last)
{
	struct wire_report_rank *k;

	report_make(1, 2);
	k = report_ranks();
	k[0].measured_ns = k[1].measured_ns = NS_PER_S;
	k[0].stall_last_ns = 30000; /* came after the longest was read */
	k[0].stall_max_ns = k[1].stall_max_ns = 20000;
	fake_start(RIGHT);
	SHOWN_IS(0, "status", "-S", fake.path);
	fake_stop();
}

TEST(what_a_daemon_says_cannot_move_a_terminals_cursor)
{
	struct wire_report_job *j;

	j = report_make(1, 1);
	strcpy(j->store, "/runs/\033[2J\nx");
	strcpy(j->error, "step 3: \033]0;title\007 disk\nfull");
	j->error_wall_ns = WALL_NS - NS_PER_S;
	fake_start(RIGHT);
	SHOWN_IS(0, "status", "-S", fake.path, "--color=never");
	fake_stop();
}

TEST(the_directory_tells_which_of_several_jobs_is_meant)
{
	const char *here = path_of("%s/runs", top), *job = path_of("%s/runs/job1", top);

	assert_int_equal(mkdir(here, 0700), 0);
	assert_int_equal(make_job(job), 0);
	(void)report_make(3, 1);
	fake_start(RIGHT);
	SHOWN_IS(2, "trigger", "-S", fake.path);
	SHOWN_IS(10, "forget", "job1", "-S", fake.path, "-C", "/nonexistent");
	jobs_below(here, (void *)((struct wire_report_head *)fake.report + 1));
	RUN("wait", "5", "--state=staged", "-S", fake.path, "-C", job, "--json");
	assert_json(0, "ckptd.wait/1", "{'job':'job1','step':5,'state':'staged'}");
	setenv("CKPTD_STORE", job, 1);
	RUN("wait", "5", "--state=staged", "-S", fake.path, "--json");
	assert_json(0, "ckptd.wait/1", "{'job':'job1'}");
	/* another job than the one of the directory can be named all the same */
	RUN("wait", "5", "--state=staged", "--job", "job2", "-S", fake.path, "--json");
	assert_json(0, "ckptd.wait/1", "{'job':'job2'}");
	setenv("CKPTD_STORE", here, 1); /* which has all three */
	RUN_IS(2, "wait", "5", "--state=staged", "-S", fake.path);
	unsetenv("CKPTD_STORE");
	fake_stop();
}

/* --- which job --- */
static const char *const asking[] = { "wait", "trigger", "drain", "forget", "status" };

/* A way to choose a job. What wait has as its argument has a step. */
struct choice {
	const char *argument, *job, *store, *env, *here;
};

/* The jobs that it came to, as bits of their ids; the exit code is in got. */
static uint64_t chosen_by(const char *verb, const struct choice *x)
{
	char step[PATH_MAX + 4] = "5", home[PATH_MAX], *argv[12] = { (char *)"ckptctl" };
	bool wait = !strcmp(verb, "wait");
	uint64_t jobs = 0;
	int argc = 1;

	argv[argc++] = (char *)(uintptr_t)verb;
	if (wait && x->argument)
		snprintf(step, sizeof step, "%s%s5", x->argument,
			 x->argument[strlen(x->argument) - 1] == '@' ? "" : "@");
	if (wait || x->argument)
		argv[argc++] = wait ? step : (char *)(uintptr_t)x->argument;
	argv[argc++] = (char *)(uintptr_t)(wait ? "--state=staged" : "-q");
	if (x->job) {
		argv[argc++] = (char *)"--job";
		argv[argc++] = (char *)(uintptr_t)x->job;
	}
	if (x->store) {
		argv[argc++] = (char *)"-C";
		argv[argc++] = (char *)(uintptr_t)x->store;
	}
	argv[argc++] = (char *)"-S";
	argv[argc++] = fake.path;
	argv[argc++] = (char *)"--json";
	assert_non_null(getcwd(home, sizeof home));
	assert_int_equal(chdir(x->here ? x->here : top), 0);
	if (x->env)
		setenv("CKPTD_STORE", x->env, 1);
	fake.ordered = 0;
	run_argv(argc, argv);
	unsetenv("CKPTD_STORE");
	assert_int_equal(chdir(home), 0);
	for (uint32_t i = 0; i < 8; i++)
		if (!strcmp(verb, "wait") || !strcmp(verb, "status"))
			jobs |= (uint64_t) !!strstr(got.out,
						    path_of("\"job\":\"job%" PRIu32 "\"", i))
				<< (i + 1);
	return jobs | fake.ordered;
}

static void every_verb(const struct choice *x, int code, uint64_t jobs, int status_code,
		       uint64_t status_jobs)
{
	for (uint32_t i = 0; i < ARRAY_LEN(asking); i++) {
		bool status = !strcmp(asking[i], "status");
		uint64_t have = chosen_by(asking[i], x);

		if (got.code != (status ? status_code : code) ||
		    have != (status ? status_jobs : jobs))
			fail_msg(
				"%s, argument %s, --job %s, -C %s, CKPTD_STORE %s, in %s: %d, jobs "
				"%" PRIx64 "; %s%s",
				asking[i], x->argument, x->job, x->store, x->env, x->here, got.code,
				have, got.out, got.err);
	}
}

TEST(all_verbs_that_ask_the_daemon_choose_the_job_alike)
{
	const char *store = place("chosen"), *job1 = place("chosen/job1");
	const char *other = place("others"), *job9 = place("others/job9");
	const struct choice one[] = {
		{ .argument = "job1" },
		{ .argument = "job1@" },
		{ .argument = job1 },
		{ .job = "job1" },
		{ .job = "job1@" },
		{ .job = job1 },
		{ .store = job1 },
		{ .env = job1 },
		{ .here = job1 },
		{ .job = "job1", .store = store },
		{ .argument = "job1", .env = store },
		/* what is said first counts */
		{ .argument = "job1", .here = job9 },
		{ .job = "job1", .env = place("chosen/job2") },
		{ .store = job1, .env = other, .here = job9 },
		{ .env = job1, .here = job9 },
	};
	const struct choice none[] = {
		{ .argument = "nix" },
		{ .job = "nix" },
		{ .argument = "nix@" },
		{ .argument = job9 },
		{ .store = other },
		{ .store = "/nonexistent" },
		{ .env = other },
		{ .env = "/nonexistent" },
		{ .env = job9 },
		{ .here = other },
		{ .here = job9 },
		{ .argument = "job1", .store = other },
		{ .job = "job1", .env = other },
	};
	const struct choice open[] = { { .here = NULL }, { .store = store }, { .env = store } };

	assert_int_equal(mkdir(store, 0700) | mkdir(other, 0700), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(make_job(path_of("%s/job%" PRIu32, store, i)), 0);
	assert_int_equal(make_job(job9), 0);
	jobs_below(store, report_make(3, 1));
	fake_start(RIGHT);
	for (uint32_t i = 0; i < ARRAY_LEN(one); i++)
		every_verb(&one[i], 0, 1 << 2, 0, 1 << 2);
	for (uint32_t i = 0; i < ARRAY_LEN(none); i++)
		every_verb(&none[i], 10, 0, 10, 0);
	for (uint32_t i = 0; i < ARRAY_LEN(open); i++)
		every_verb(&open[i], 2, 0, 0, 1 << 1 | 1 << 2 | 1 << 3);
	/* drain alone can be told to mean all, of the daemon or of a store, and never what is not
	 * there */
	fake.ordered = 0;
	RUN_IS(0, "drain", "--all", "-S", fake.path);
	assert_int_equal(fake.ordered, 1);
	strcpy(report_jobs()[0].store, "/elsewhere");
	fake.ordered = 0;
	RUN_IS(0, "drain", "--all", "-C", store, "-S", fake.path);
	assert_int_equal(fake.ordered, 1 << 2 | 1 << 3);
	fake.ordered = 0;
	RUN_IS(10, "drain", "--all", "-C", other, "-S", fake.path);
	RUN_IS(2, "drain", "--all", "job1", "-S", fake.path);
	RUN_IS(2, "forget", "--all", "-C", job1, "-S", fake.path);
	for (uint32_t i = 1; i < ARRAY_LEN(asking); i++)
		RUN_IS(2, asking[i], "job1", "--job", "job1", "-S", fake.path);
	RUN_IS(2, "wait", "job1@5", "--job", "job1", "-S", fake.path);
	assert_int_equal(fake.ordered, 0);
	fake_stop();
	/* the only job needs no choice */
	(void)report_make(1, 1);
	fake_start(RIGHT);
	every_verb(&(struct choice){ .here = NULL }, 0, 1 << 1, 0, 1 << 1);
	fake_stop();
}

TEST(a_wait_in_vain_says_how_far_the_job_is)
{
	struct wire_report_job *j;

	j = report_make(1, 1);
	j->newest = 211;
	j->last_committed = 201;
	report_steps()[0].step = 210;
	fake_start(RIGHT);
	SHOWN_IS(15, "wait", "300", "-S", fake.path, "--timeout", "1s");
	j->newest = j->last_committed = 0;
	((struct wire_report_head *)fake.report)->nstep = 0;
	fake.bytes = wire_report_bytes(1, 1, 0, 0);
	RUN_IS(15, "wait", "latest", "-S", fake.path, "--timeout", "50ms", "--json");
	assert_json_error(15);
	assert_says(got.err, "timed out after 5");
	assert_says(got.err, "; job job0 has no step yet");
	fake_stop();
	/* without a daemon, by what the store has */
	SHOWN_IS(15, "wait", "300", "-C", path_of("%s/alpha", work), "--timeout", "50ms");
}

TEST(a_wait_takes_every_address_of_a_step)
{
	static const char *const same[] = {
		"30",		"step:30",	  "step-000000000030", "alpha@30",
		"alpha@latest", "alpha@tag:best", "alpha@latest~0"
	};
	const char *store = path_of("%s/runs", top);

	RUN_IS(0, "tag", "-C", path_of("%s/alpha", work), "30", "best");
	RUN_IS(0, "tag", "-C", path_of("%s/alpha", work), "20", "good");
	for (uint32_t i = 0; i < ARRAY_LEN(same); i++)
		if (RUN("wait", same[i], "-C", i < 3 ? path_of("%s/alpha", work) : work) ||
		    !strstr(got.out, "Step 30 of alpha is committed."))
			fail_msg("%s: %s%s", same[i], got.out, got.err);
	SHOWN_IS(0, "wait", path_of("%s/alpha/step-000000000020", work));
	SHOWN_IS(0, "wait", path_of("%s/alpha@latest~1", work));
	RUN_IS(0, "wait", "tag:good", "--job", "alpha", "-C", work, "--json");
	json_decref(json_out("ckptd.wait/1"));
	SHOWN_IS(10, "wait", "tag:none", "--job", "alpha", "-C", work);
	RUN_IS(10, "wait", "alpha@tag:none", "-C", work, "--timeout", "20ms");
	SHOWN_IS(2, "wait", "alpha@30", "--job", "beta", "-C", work);
	SHOWN_IS(2, "wait", "soon", "-C", work);
	RUN_IS(2, "wait", "./soon", "-C", work);
	RUN_IS(2, "wait", "18446744073709551615", "-C", work);
	RUN_IS(2, "wait", "@30", "-C", work);
	/* and of the daemon's jobs */
	jobs_below(store, report_make(3, 1));
	fake_start(RIGHT);
	RUN("wait", "job1@5", "--state=staged", "-S", fake.path, "--json");
	assert_json(0, "ckptd.wait/1", "{'job':'job1','step':5}");
	for (uint32_t i = 0; i < 2; i++) {
		const char *name = i ? "latest" : "step-000000000005";

		RUN("wait", path_of("%s/job2%c%s", store, i ? '@' : '/', name), "--state=staged",
		    "-S", fake.path, "--json");
		assert_json(0, "ckptd.wait/1", "{'job':'job2','step':5}");
	}
	fake_stop();
}

/* --- status --- */
/* A job that trains: step 210 in memory 2 s ago, 200 on disk 41 s ago, a mark every half second. */
static struct wire_report_job *report_training(void)
{
	struct wire_report_head *h = (struct wire_report_head *)fake.report;
	struct wire_report_job *j = report_make(1, 2);
	struct wire_report_step *s = report_steps();

	h->nstep = 5;
	fake.bytes = wire_report_bytes(1, 2, 5, 0);
	for (uint32_t i = 0; i < 5; i++)
		s[i] = (struct wire_report_step)ROW(.step = 212 - 2 * i, .generation = 1,
						    .state = WIRE_COMMITTED,
						    .mark_ns = 100 * NS_PER_S - NS_PER_S -
							       i * NS_PER_S / 2);
	s[0].state = WIRE_SKIPPED;
	s[1].mark_ns = 98 * NS_PER_S;
	s[1].state = WIRE_STAGED;
	s[1].flags = WIRE_HELD;
	for (uint32_t i = 2; i < 5; i++)
		s[i].mark_ns = 98 * NS_PER_S - (i - 1) * NS_PER_S / 2;
	report_ranks()[1].marks = 100;
	report_ranks()[1].measured_ns = 50 * NS_PER_S;
	*j = (struct wire_report_job)
		ROW(.id = 1, .name = "demo", .store = "/runs", .generation = 1,
		    .launch = WIRE_READY, .world = 2, .attached = 2, .nslot = 2, .newest = 213,
		    .taken = 88, .skipped = 12,
		    .skipped_by = { [WIRE_SKIP_FULL] = 9, [WIRE_SKIP_LATE] = 2 },
		    .last_committed = 201, .last_committed_wall_ns = WALL_NS - 41 * NS_PER_S,
		    .last_commit_ns = NS_PER_S);
	return j;
}

TEST(status_answers_what_there_is_if_it_dies_now)
{
	struct wire_report_job *j = report_training();

	fake_start(RIGHT);
	SHOWN_IS(0, "status", "-S", fake.path);
	RUN("status", "-S", fake.path, "--json");
	/* from step 204 to 212 in 2.5 s; 100 marks in 50 s */
	assert_json(
		0, "ckptd.status/1",
		"{'jobs':[{'if_it_dies':{'memory_step':210,'disk_step':200,'disk_age_s':41.0},"
		"'newest_age_s':1.0,'rate':{'steps_per_s':3.2,'snapshots_per_s':2.0},"
		"'skipped':{'share':0.12,'full':9,'otherwise':1},'failing':{'text':null},'replicas':{'differ':null},"
		"'device':{'stuck_s':null}}]}");
	/* nothing is known yet */
	((struct wire_report_head *)fake.report)->nstep = 0;
	fake.bytes = wire_report_bytes(1, 2, 0, 0);
	j->last_committed = 0;
	j->skipped_by[WIRE_SKIP_FULL] = 99; /* more than there are */
	SHOWN_IS(0, "status", "-S", fake.path);
	RUN("status", "-S", fake.path, "--json");
	assert_json(0, "ckptd.status/1",
		    "{'jobs':[{'rate':{'steps_per_s':null},'if_it_dies':{'memory_step':null},"
		    "'newest_age_s':null}]}");
	fake_stop();
}

/* Two averages behind the steps of report_training: fast, made at step 210, and slow, with nothing
 * yet. */
static struct wire_report_average *report_averages(struct wire_report_job *j)
{
	struct wire_report_head *h = (struct wire_report_head *)fake.report;
	struct wire_report_average *a = (struct wire_report_average *)(report_steps() + h->nstep);

	h->naverage = 2;
	fake.bytes = wire_report_bytes(1, 2, h->nstep, 2);
	a[0] = (struct wire_report_average)ROW(.name = "fast", .schedule = "constant decay=0.999",
					       .flags = WIRE_AVERAGE_MADE | WIRE_AVERAGE_KAHAN,
					       .step = 211, .updates = 7, .last_step = 211,
					       .since = 101, .product = 0.993, .worst = 0.012,
					       .worst_name = "model/w");
	a[1] = (struct wire_report_average)ROW(.name = "slow", .schedule = "uniform", .worst = -1);
	j->average_bytes = 3 * MIB;
	j->averaged = 8;
	j->average_given_up = 2;
	j->average_gated[WIRE_GATE_LOSS] = 1;
	return a;
}

TEST(status_has_averages_and_a_bad_one_is_three)
{
	struct wire_report_average *a = report_averages(report_training());

	fake_start(RIGHT);
	SHOWN_IS(0, "status", "-S", fake.path);
	RUN("status", "-S", fake.path, "--json");
	assert_json(
		0, "ckptd.status/1",
		"{'jobs':[{'averaging':{'bytes':3145728,'averaged':8,'given_up':2,'gated_loss':1,"
		"'gated_not_wanted':0,'gated_nonfinite':0},'averages':[{'name':'fast','rule':0,'step':210,"
		"'updates':7,'last_step':210,'since_step':100,'lag_steps':0,'product':0.993,"
		"'gate':null,'kahan':true,'mixed':false,'worst':0.012,'worst_tensor':'model/w',"
		"'far_count':0,'nan_count':0,'ill':false},{'name':'slow','step':null,"
		"'updates':null,'worst':null,'nan_count':null,'ill':null}]}]}");
	a[0].lag = 3;
	a[0].gate = WIRE_GATE_LOSS;
	SHOWN_IS(0, "status", "-S", fake.path);
	/* Each of these alone. */
	for (uint32_t i = 0; i < 5; i++) {
		a[0].nan = i == 0;
		a[0].inf = i == 1;
		a[0].far = i == 2;
		a[0].convex_broken = i == 3;
		a[0].flags = WIRE_AVERAGE_MADE | (i == 4 ? WIRE_AVERAGE_MIXED : 0);
		RUN_IS(3, "status", "-S", fake.path);
		RUN("status", "-S", fake.path, "--json");
		assert_json(3, "ckptd.status/1", "{'jobs':[{'averages':[{'ill':true},{}]}]}");
	}
	a[0].nan = 5;
	a[0].far = a[0].convex_broken = 2;
	strcpy(a[0].convex_name, "model/w");
	SHOWN_IS(3, "status", "-S", fake.path);
	/* What makes no sense is no report. */
	a[1].gate = WIRE_GATES;
	RUN_IS(14, "status", "-S", fake.path);
	a[1].gate = 0;
	a[1].job = 1;
	RUN_IS(14, "status", "-S", fake.path);
	fake_stop();
}

TEST(what_fails_or_hangs_is_three)
{
	struct wire_report_job *j = report_training();

	fake_start(RIGHT);
	strcpy(j->failing, "step 208 could not be written: No space left on device");
	strcpy(j->device, "/dev/nvme0n1p2 (ext4)");
	j->failing_wall_ns = WALL_NS - 180 * NS_PER_S;
	SHOWN_IS(3, "status", "-S", fake.path);
	j->failing[0] = 0;
	j->failing_wall_ns = 0;
	RUN_IS(0, "status", "-S", fake.path);
	j->stuck_ns = 41 * NS_PER_S;
	SHOWN_IS(3, "status", "-S", fake.path);
	for (const char *line = got.out; *line; line = strchr(line, '\n') + 1)
		assert_true(strcspn(line, "\n") < 200);
	RUN("status", "-S", fake.path, "--json");
	assert_json(3, "ckptd.status/1",
		    "{'jobs':[{'device':{'name':'/dev/nvme0n1p2 (ext4)','stuck_s':41.0}}]}");
	assert_string_equal(got.err, "");
	fake_stop();
}

TEST(replicas_that_differ_are_three_and_told_line_by_line)
{
	struct wire_report_job *j = report_training();

	fake_start(RIGHT);
	strcpy(j->drift,
	       "model/norm: minority 2, against 0, 1, 3; last equal in step 129, first "
	       "unequal in step 251\nmodel/w: ranks 0 | 1; unequal when first compared, in "
	       "step 7");
	SHOWN_IS(3, "status", "-S", fake.path);
	RUN("status", "-S", fake.path, "--json");
	assert_json(3, "ckptd.status/1", "{'jobs':[{'failing':{'text':null}}]}");
	assert_non_null(strstr(got.out, "minority 2, against 0, 1, 3;"));
	fake_stop();
}

/* --- ls --- */
/* The steps of the list, "30 20 10", by their column or in JSON. */
static const char *steps_listed(void)
{
	static char buf[1024];
	json_t *j = json_out("ckptd.ls/1");
	const json_t *list = member(j, "checkpoints", JSON_ARRAY);
	size_t n = 0;

	*buf = 0;
	for (size_t i = 0; i < json_array_size(list); i++)
		n += (size_t)snprintf(buf + n, sizeof buf - n, "%s%" PRIu64, n ? " " : "",
				      number(json_array_get(list, i), "step"));
	json_decref(j);
	return buf;
}

TEST(ls_shows_what_the_daemon_holds_in_memory)
{
	const char *alpha = path_of("%s/alpha", work);
	struct wire_report_job *j;
	struct wire_report_step *s;

	j = report_make(2, 2);
	strcpy(j->name, "alpha");
	s = report_steps();
	/* the first is in the store, too; the second of another job is not listed */
	s[0] = (struct wire_report_step)ROW(.step = 30, .generation = 1, .state = WIRE_COMMITTED,
					    .flags = WIRE_HELD, .mark_ns = 90 * NS_PER_S,
					    .total = 7 * MIB);
	fake_start(RIGHT);
	strcpy(j->store, RIG_HERE "/work");
	SHOWN_IS(0, "ls", alpha, "-S", fake.path);
	strcpy(j->store, work);
	RUN("ls", alpha, "-S", fake.path, "--json");
	assert_json(
		0, "ckptd.ls/1",
		"{'checkpoints':[{'in_memory':true,'notes':{'loss':2.5}},{'in_memory':false},{}],"
		"'staged':[{'on_disk':true}]}");
	/* one that is only there comes first */
	s[0].step = 33;
	s[0].state = WIRE_STAGED;
	strcpy(j->store, RIG_HERE "/work");
	SHOWN_IS(0, "ls", work, "-S", fake.path);
	assert_true(strstr(got.out, "33 ") < strstr(got.out, "30 "));
	/* for programs in a list of its own: the first of checkpoints can be loaded from disk */
	strcpy(j->store, work);
	RUN("ls", alpha, "-S", fake.path, "--json", "-n", "1");
	assert_string_equal(steps_listed(), "30");
	assert_json(0, "ckptd.ls/1",
		    path_of("{'staged':[{'step':33,'bytes':7340032,'world_size':2,'on_disk':false,"
			    "'created_ns':%" PRIu64 "}]}",
			    WALL_NS - 10 * NS_PER_S));
	/* an older one where it belongs, what is being copied nowhere */
	s[0].step = 25;
	RUN_IS(0, "ls", alpha, "-S", fake.path);
	assert_true(strstr(got.out, "\n  30 ") < strstr(got.out, "\n  25 "));
	assert_true(strstr(got.out, "\n  25 ") < strstr(got.out, "\n  20 "));
	s[0].state = WIRE_FAILED;
	strcpy(j->store, RIG_HERE "/work");
	SHOWN_IS(0, "ls", alpha, "-S", fake.path);
	s[0].state = WIRE_MARKED;
	strcpy(j->store, RIG_HERE "/work");
	SHOWN_IS(0, "ls", alpha, "-S", fake.path);
	fake_stop();
	/* and nothing is said of a daemon that is silent, wrong, or not there */
	for (enum manner m = SILENT; m < MANNERS; m++) {
		fake_start(m);
		RUN_IS(0, "ls", alpha, "-S", fake.path);
		assert_string_equal(got.err, "");
		fake_stop();
		m = m == SILENT ? OTHER : MANNERS;
	}
}

TEST(ls_sorts_by_what_it_is_given_and_stops_where_it_is_told)
{
	const char *store = path_of("%s/sorted", top), *alpha = path_of("%s/alpha", work);
	static const struct {
		const char *key, *steps;
	} sorts[] = { { "step", "40 30 20 10" }, { "-step", "10 20 30 40" },
		      { "age", "40 30 20 10" },	 { "-age", "10 20 30 40" },
		      { "loss", "20 40 10 30" }, { "-loss", "30 10 40 20" },
		      { "lr", "40 30 20 10" },	 { "size", "40 30 20 10" } };
	static const double losses[] = { 3, 1, 4.5, 2 };

	assert_int_equal(mkdir(store, 0700), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(losses); i++) {
		uint64_t step = 10 * (i + 1), before = i ? step - 10 : UINT64_MAX;

		rig_loss = losses[i];
		make_step(store,
			  &(struct how){ "one", "fsdp=1", step, i + 1, before, before, false });
	}
	rig_loss = 2.5;
	for (uint32_t i = 0; i < ARRAY_LEN(sorts); i++) {
		RUN_IS(0, "ls", "--json", "--sort", sorts[i].key, store);
		assert_string_equal(steps_listed(), sorts[i].steps);
	}
	RUN_IS(0, "ls", "--json", "--sort", "loss", "-n", "2", store);
	assert_string_equal(steps_listed(), "20 40");
	RUN_IS(0, "ls", "--json", "--count=1", store);
	assert_string_equal(steps_listed(), "40");
	RUN_IS(0, "ls", "--json", "-n", "99999999999999999999999", store);
	assert_string_equal(steps_listed(), "40 30 20 10");
	SHOWN_IS(0, "ls", "--sort", "loss", "-n1", store);
	SHOWN_IS(0, "ls", "--sort", "lr", store);
	SHOWN_IS(2, "ls", "--sort", "lss", store);
	RUN_IS(2, "ls", "--sort", "lss", store, "--json");
	assert_json_error(2);
	assert_string_equal(got.out, "");
	RUN_IS(2, "ls", "-n", "0", alpha);
	RUN_IS(2, "ls", "-n", "x", alpha);
	RUN_IS(2, "ls", "-n", "", alpha);
	RUN_IS(2, "ls", "-n");
	/* -n of other verbs is what it was */
	RUN_IS(0, "prune", "-n", "--keep-last=1", alpha);
	RUN_IS(2, "show", "-n", "1", alpha);
	assert_string_equal(
		(RUN("completion", "complete", "--", "ls", "-C", store, "--sort", "l"), got.out),
		"loss\ta note\nlr\ta note\n");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
