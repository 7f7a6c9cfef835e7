/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_daemons.c - the library beside daemons that are not what they should be: silent,
 * full, of another version, handing out doorbells and pages that are none. No call takes longer
 * than it was told, no signal comes, the sentence is logged once, and the library tries again.
 */
#define REATTACH_OTHER_NS (250 * NS_PER_MS)
#include "ckpt/wire/shared.h"
#undef SHARED_BEAT_DEAD_NS
#define SHARED_BEAT_DEAD_NS (600 * NS_PER_MS)
#include "ckpt/client/attach.c"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

#define SLACK_NS (8 * NS_PER_S)	    /* of a machine that has other work */
#define SHORT_NS (200 * NS_PER_MS)  /* that a call is given */
#define IN_VAIN_NS (80 * NS_PER_MS) /* if it needs all of it */

enum manner {
	SILENT,	      /* accepts, and that is all */
	FULL,	      /* does not even accept */
	CLOSES,	      /* reads HELLO and closes: ABI 1 */
	DIES,	      /* closes and reads nothing */
	REFUSES,      /* in the words of a newer version */
	REFUSES_LONG, /* in too many of them */
	ANSWERS_AS_OTHER,
	OUT_OF_TURN,
	BELL_NONE,
	BELL_PIPE,
	BELL_SOCKET,
	BELL_BLOCKS,
	PAGE_SHORT,
	PAGE_UNSEALED,
	PAGE_FILE, /* not even memory */
	PAGE_OTHERS,
	MUTE, /* welcomes, beats, says its steps and goodbye */
	MANNERS
};

static struct {
	char dir[SCRATCH_MAX], store[96], socket[96];
	_Atomic uint32_t manner;
	_Atomic uint32_t accepted, hellos, over, beats;
	_Atomic uint32_t steps_hold; /* answers to STEPS wait until this is 0 again */
	int listener, crowd[64];
	uint32_t ncrowd;
	pthread_t thread;
	struct shared_job *job;
} fake;

static struct {
	pthread_mutex_t lock;
	uint32_t lines;
	char last[5000];
} heard = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void hear(void *ctx, int level, const char *line)
{
	(void)ctx;
	if (level > LOG_WARNING)
		return;
	pthread_mutex_lock(&heard.lock);
	heard.lines++;
	snprintf(heard.last, sizeof heard.last, "%s", line);
	pthread_mutex_unlock(&heard.lock);
}

static uint32_t heard_lines(void)
{
	uint32_t n;

	pthread_mutex_lock(&heard.lock);
	n = heard.lines;
	pthread_mutex_unlock(&heard.lock);
	return n;
}

/* --- the daemon --- */
static int page(uint64_t bytes, uint32_t manner, bool job)
{
	int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p;

	if (manner == PAGE_FILE) {
		(void)close(fd);
		fd = open(fake.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	}
	assert_int_equal(ftruncate(fd, (off_t)(manner == PAGE_SHORT ? bytes / 2 : bytes)), 0);
	if (manner == PAGE_SHORT)
		bytes /= 2;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	if (manner != PAGE_UNSEALED)
		(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
	*(uint32_t *)p = manner == PAGE_OTHERS ? 7 : SHARED_MAGIC;
	if (!job || bytes < sizeof *fake.job) {
		munmap(p, bytes);
		return fd;
	}
	fake.job = p;
	fake.job->world = 1;
	fake.job->nslot = 2;
	atomic_store(&fake.job->beat_ns, now_ns());
	return fd;
}

static void welcome(int sock, const struct wire_head *ask, uint32_t manner)
{
	struct wire_welcome w = { .generation = 1, .nslot = 2 };
	int fd[4], other[2] = { -1, -1 }, n = manner == BELL_NONE ? 2 : 3;

	fd[0] = page(sizeof(struct shared_rank), manner, false);
	fd[1] = page(sizeof(struct shared_job), manner, true);
	fd[2] = eventfd(0, manner == BELL_BLOCKS ? 0 : EFD_NONBLOCK);
	if (manner == BELL_PIPE)
		assert_int_equal(pipe2(other, O_NONBLOCK), 0); /* whose reader leaves: SIGPIPE */
	if (manner == BELL_SOCKET)
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, other), 0);
	if (other[1] >= 0) {
		(void)close(fd[2]);
		fd[2] = other[1];
		(void)close(other[0]);
	}
	(void)wire_send(sock, &w, WIRE_WELCOME, sizeof w, ask->seq, fd, n);
	wire_close_fds(fd, 3);
}

static void refuse(int sock, const struct wire_head *ask, size_t len)
{
	static struct {
		struct wire_head head;
		int32_t code;
		char text[7000];
	} r;

	memset(r.text, '!', sizeof r.text);
	memcpy(r.text, "ckptd speaks protocol 3", 23);
	r.head =
		(struct wire_head)ROW(.magic = WIRE_MAGIC, .abi = WIRE_ABI + 1, .type = WIRE_REFUSE,
				      .bytes = (uint32_t)(sizeof r.head + 4 + len),
				      .seq = ask->seq);
	r.code = -EPROTO;
	(void)send(sock, &r, r.head.bytes, MSG_NOSIGNAL);
}

static void say_steps(int sock, const struct wire_head *ask)
{
	struct wire_steps_are are = { .n = 1 };

	while (atomic_load(&fake.steps_hold) && !atomic_load(&fake.over))
		usleep(2000);
	are.step[0] = (struct ckpt_step){ .step = ask->seq, .where = 2, .complete = 1 };
	(void)wire_send(sock, &are, WIRE_STEPS_ARE, sizeof are, ask->seq, NULL, 0);
}

/* False: the connection is over. */
static bool serve(int sock)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	uint32_t manner = atomic_load(&fake.manner);
	struct wire_head other;
	int fd[WIRE_FDS_MAX], nfd;

	if (manner == DIES) {
		atomic_fetch_add(&fake.hellos, 1);
		return false;
	}
	if (wire_recv(sock, in, sizeof in, fd, &nfd) <= 0)
		return false;
	wire_close_fds(fd, nfd);
	if (head->type == WIRE_HELLO)
		atomic_fetch_add(&fake.hellos, 1);
	if (head->type == WIRE_STEPS && manner == MUTE && atomic_load(&fake.steps_hold) != 2)
		say_steps(sock, head);
	if (head->type == WIRE_BYE && atomic_load(&fake.steps_hold) != 2) {
		struct wire_ok ok = { 0 };

		(void)wire_send(sock, &ok, WIRE_OK, sizeof ok, head->seq, NULL, 0);
	}
	if (head->type != WIRE_HELLO)
		return true;
	if (manner == CLOSES)
		return false;
	if (manner == REFUSES || manner == REFUSES_LONG)
		refuse(sock, head, manner == REFUSES ? 23 : 7000);
	if (manner == ANSWERS_AS_OTHER) {
		other = *head;
		other.abi = 99;
		other.type = 77;
		other.bytes = sizeof other;
		(void)send(sock, &other, sizeof other, MSG_NOSIGNAL);
	}
	if (manner == OUT_OF_TURN) {
		struct wire_ok ok = { 0 };

		(void)wire_send(sock, &ok, WIRE_OK, sizeof ok, head->seq, NULL, 0);
	}
	if (manner >= BELL_NONE)
		welcome(sock, head, manner);
	return true;
}

static void *fake_run(void *arg)
{
	struct pollfd p[64] = { { .fd = fake.listener, .events = POLLIN } };
	nfds_t n = 1;

	(void)arg;
	while (!atomic_load(&fake.over)) {
		if (fake.job && atomic_load(&fake.beats))
			atomic_store(&fake.job->beat_ns, now_ns());
		p[0].events = atomic_load(&fake.manner) == FULL ? 0 : POLLIN;
		if (poll(p, n, 10) <= 0)
			continue;
		for (nfds_t i = 1; i < n; i++)
			if (p[i].revents &&
			    (atomic_load(&fake.manner) == SILENT ? p[i].revents & POLLHUP
								 : !serve(p[i].fd))) {
				(void)close(p[i].fd);
				p[i--] = p[--n];
			}
		if (p[0].revents & POLLIN && n < ARRAY_LEN(p)) {
			atomic_fetch_add(&fake.accepted, 1);
			p[n++] = (struct pollfd){ .fd = accept4(fake.listener, NULL, NULL,
								SOCK_CLOEXEC),
						  .events = POLLIN };
		}
	}
	while (n-- > 1)
		(void)close(p[n].fd);
	return NULL;
}

static int setup(void **state)
{
	(void)state;
	memset(&fake, 0, sizeof fake);
	heard.lines = 0;
	scratch_make(fake.dir);
	snprintf(fake.socket, sizeof fake.socket, "%s/s", fake.dir);
	snprintf(fake.store, sizeof fake.store, "%s/store", fake.dir);
	return 0;
}

static void fake_start(enum manner manner)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	strcpy(a.sun_path, fake.socket);
	atomic_store(&fake.manner, manner);
	atomic_store(&fake.over, 0);
	atomic_store(&fake.beats, 1);
	atomic_store(&fake.hellos, 0);
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake.listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fake.listener, manner == FULL ? 1 : 32), 0);
	for (; manner == FULL && fake.ncrowd < ARRAY_LEN(fake.crowd); fake.ncrowd++) {
		int *sock = &fake.crowd[fake.ncrowd];

		*sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (connect(*sock, (struct sockaddr *)&a, sizeof a) < 0) {
			assert_int_equal(errno, EAGAIN);
			(void)close(*sock);
			break;
		}
	}
	assert_int_equal(pthread_create(&fake.thread, NULL, fake_run, NULL), 0);
}

static void fake_stop(void)
{
	atomic_store(&fake.over, 1);
	pthread_join(fake.thread, NULL);
	(void)close(fake.listener);
	(void)unlink(fake.socket);
	while (fake.ncrowd)
		(void)close(fake.crowd[--fake.ncrowd]);
	if (fake.job)
		munmap(TAKE(fake.job), sizeof *fake.job);
}

static int teardown(void **state)
{
	(void)state;
	if (fake.thread && !atomic_load(&fake.over))
		fake_stop();
	return scratch_remove(fake.dir);
}

/* --- the library --- */
static uint64_t took; /* by the newest call of in_time */

#define in_time(ns, call)                                                                   \
	({                                                                                  \
		uint64_t began_ = now_ns();                                                 \
		__typeof__(call) rc_ = (call);                                              \
		took = now_ns() - began_;                                                   \
		if (took > (ns) + SLACK_NS)                                                 \
			fail_msg("%s took %.1f s", #call, (double)took / (double)NS_PER_S); \
		rc_;                                                                        \
	})

static int attach(ckpt **c, uint32_t flags, uint64_t wait_ns, struct ckpt_err *err)
{
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = flags, .job = "j", .store = fake.store,
		    .socket = fake.socket, .world = 1, .wait_ns = wait_ns, .log = hear);

	return ckpt_attach(&o, c, err);
}

static struct ckpt_err err; /* of the call that failed last */

static int blob_add(ckpt *c)
{
	static uint64_t value, len = 8;

	return ckpt_blob_add(c, "b", 0, &value, &len, 8, &err);
}

TEST(a_daemon_of_another_kind_is_refused_at_once_or_trained_without)
{
	static const struct {
		enum manner manner;
		const char *says;
	} wrong[] =
		ROW({ CLOSES, "without an answer" }, { REFUSES, "protocol 3" },
		    { REFUSES_LONG, "protocol 3" }, { ANSWERS_AS_OTHER, "protocol 99" },
		    { OUT_OF_TURN, "unexpected answer" }, { BELL_NONE, "unexpected answer" },
		    { BELL_PIPE, "doorbell" }, { BELL_SOCKET, "doorbell" },
		    { BELL_BLOCKS, "doorbell" }, { PAGE_SHORT, "bytes long" },
		    { PAGE_UNSEALED, "seals" }, { PAGE_FILE, "seals" }, { PAGE_OTHERS, "pages" });
	ckpt *c;

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		uint32_t tried = wrong[i].manner == CLOSES ? 2 : 1, lines;

		fake_start(wrong[i].manner);
		c = (void *)&err;
		assert_int_equal(in_time(0, attach(&c, CKPT_REQUIRE, 0, &err)), -EPROTO);
		assert_null(c);
		assert_int_equal(err.code, -EPROTO);
		if (!strstr(err.msg, wrong[i].says))
			fail_msg("manner %d: %s", wrong[i].manner, err.msg);
		assert_int_equal(atomic_load(&fake.hellos), tried);

		lines = heard_lines();
		assert_int_equal(in_time(0, attach(&c, 0, 0, &err)), 0);
		assert_non_null(c);
		assert_int_equal(ckpt_snapshot(c, 1, NULL), CKPT_DETACHED);
		assert_int_equal(ckpt_guard(c, NULL), 0);
		assert_int_equal(heard_lines(), lines + 1);
		assert_non_null(strstr(heard.last, wrong[i].says));
		assert_int_equal(in_time(0, ckpt_detach(c, 0)), 0);
		fake_stop();
	}
}

static bool within(uint64_t ns, _Atomic uint32_t *word, uint32_t at_least)
{
	uint64_t until = now_ns() + ns;

	while (atomic_load(word) < at_least && now_ns() < until)
		usleep(2000);
	return atomic_load(word) >= at_least;
}

TEST(it_is_tried_again_now_and_then_and_the_log_has_one_line)
{
	uint64_t began;
	ckpt *c;

	fake_start(REFUSES);
	began = now_ns();
	assert_int_equal(attach(&c, 0, 0, &err), 0);
	assert_true(within(20 * NS_PER_S, &fake.hellos, 3));
	assert_true(now_ns() - began > 2 * REATTACH_OTHER_NS - 100 * NS_PER_MS);
	assert_int_equal(heard_lines(), 1);
	atomic_store(&fake.manner, MUTE); /* another daemon in its place */
	assert_true(within(20 * NS_PER_S, &fake.hellos, 4));
	began = now_ns();
	while (ckpt_snapshot(c, 1, NULL) == CKPT_DETACHED && now_ns() - began < 20 * NS_PER_S)
		usleep(2000);
	assert_int_equal(ckpt_snapshot(c, 1, NULL), CKPT_SKIPPED); /* attached; nothing is sealed */
	assert_int_equal(heard_lines(), 1);
	assert_int_equal(in_time(NS_PER_S, ckpt_detach(c, 0)), 0);
}

/* A daemon that dies is no other version. */
TEST(one_that_dies_twice_has_died_twice)
{
	int rc = -ETIMEDOUT;
	ckpt *c;

	fake_start(DIES);
	for (int tries = 0; rc == -ETIMEDOUT && tries < 20; tries++) { /* the machine may be busy */
		atomic_store(&fake.hellos, 0);
		rc = in_time(NS_PER_S, attach(&c, CKPT_REQUIRE, NS_PER_S, &err));
	}
	assert_int_equal(rc, -ECONNRESET);
	assert_true(atomic_load(&fake.hellos) > 2);
}

static void no_call_outlives_its_time_beside(enum manner manner)
{
	struct ckpt_want want = { .size = sizeof want,
				  .step = CKPT_LATEST,
				  .deadline_ns = SHORT_NS };
	struct ckpt_step step[4];
	void *mem;
	ckpt *c;

	fake_start(manner);
	assert_int_equal(in_time(SHORT_NS, attach(&c, CKPT_REQUIRE, SHORT_NS, &err)), -ETIMEDOUT);
	assert_true(took >= SHORT_NS);
	assert_non_null(strstr(err.msg, "is it stopped?"));
	assert_int_equal(in_time(SHORT_NS, attach(&c, 0, SHORT_NS, &err)), 0);
	if (manner == SILENT) /* the helper has come, too, and waits */
		assert_true(within(20 * NS_PER_S, &fake.accepted, 3));
	assert_int_equal(in_time(0, ckpt_alloc(c, 4096, &mem, &err)), 0);
	assert_int_equal(blob_add(c), 0);
	assert_int_equal(in_time(SHORT_NS, ckpt_seal(c, SHORT_NS, &err)), CKPT_SKIPPED);
	assert_true(took >= SHORT_NS);
	assert_int_equal(in_time(0, ckpt_seal(c, 0, &err)), CKPT_SKIPPED);
	assert_int_equal(in_time(SHORT_NS, ckpt_restore(c, &want, NULL, &err)), -ETIMEDOUT);
	assert_int_equal(in_time(SHORT_NS, ckpt_steps(c, step, 4)), -ETIMEDOUT);
	assert_int_equal(in_time(0, ckpt_snapshot(c, 1, NULL)), -EUCLEAN);
	assert_int_equal(in_time(SHORT_NS, ckpt_fresh(c)), -ETIMEDOUT);
	assert_int_equal(in_time(0, ckpt_snapshot(c, 1, NULL)), CKPT_DETACHED);
	assert_int_equal(in_time(0, ckpt_guard(c, NULL)), 0);
	assert_int_equal(in_time(0, ckpt_wait(c, 1, CKPT_STAGED, 0, &err)), -ECONNRESET);
	assert_int_equal(in_time(0, ckpt_detach(c, SHORT_NS)), 0);
	fake_stop();
}

TEST(no_call_outlives_its_time_beside_a_daemon_that_is_silent)
{
	no_call_outlives_its_time_beside(SILENT);
}

TEST(nor_beside_one_that_is_full)
{
	no_call_outlives_its_time_beside(FULL);
}

/* Attached, and then nothing. */
TEST(nor_beside_one_that_falls_silent)
{
	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
	struct ckpt_step step[4];
	uint8_t *mem;
	void *p;
	int rc = -ETIMEDOUT;
	ckpt *c;

	atomic_store(&fake.steps_hold, 2);
	fake_start(MUTE);
	for (int tries = 0; rc == -ETIMEDOUT && tries < 20; tries++) /* the machine may be busy */
		rc = attach(&c, CKPT_REQUIRE, IN_VAIN_NS, &err);
	assert_int_equal(rc, 0);
	assert_int_equal(in_time(IN_VAIN_NS, ckpt_steps(c, step, 4)), -ETIMEDOUT);
	assert_true(took >= IN_VAIN_NS);
	assert_int_equal(in_time(IN_VAIN_NS, ckpt_steps(c, step, 4)), -ETIMEDOUT);
	assert_int_equal(ckpt_alloc(c, 4096, &p, &err), 0);
	mem = p;
	memset(mem, 7, 4096);
	assert_int_equal(blob_add(c), 0);
	/* The helper declares, and waits: with the lock that the others need. */
	assert_int_equal(in_time(IN_VAIN_NS, ckpt_seal(c, IN_VAIN_NS, &err)), CKPT_SKIPPED);
	assert_int_equal(in_time(IN_VAIN_NS, ckpt_steps(c, step, 4)), -ETIMEDOUT);
	assert_int_equal(in_time(0, ckpt_alloc(c, 4096, &p, &err)), 0);
	assert_int_equal(in_time(0, ckpt_snapshot(c, 1, NULL)), CKPT_SKIPPED);
	assert_int_equal(in_time(0, ckpt_guard(c, NULL)), 0);
	/* Its pulse stops, too: for so long, and what it was asked is given up. */
	atomic_store(&fake.beats, 0);
	want.deadline_ns = 30 * NS_PER_S;
	assert_true(in_time(SHARED_BEAT_DEAD_NS, ckpt_restore(c, &want, NULL, &err)) < 0);
	for (int i = 0; i < 4096; i++)
		assert_int_equal(mem[i], 7); /* what is there stays, in other pages */
	assert_int_equal(in_time(NS_PER_S, ckpt_detach(c, 0)), 0);
}

TEST(a_late_answer_is_not_the_next_ones)
{
	struct ckpt_step step[4] = { { 0 } };
	uint64_t first;
	ckpt *c;

	fake_start(MUTE);
	assert_int_equal(attach(&c, CKPT_REQUIRE, SHORT_NS, &err), 0);
	assert_int_equal(ckpt_steps(c, step, 4), 1);
	first = step[0].step; /* the fake one tells the number of the request */
	atomic_store(&fake.steps_hold, 1);
	assert_int_equal(in_time(SHORT_NS, ckpt_steps(c, step, 4)), -ETIMEDOUT);
	atomic_store(&fake.steps_hold, 0);
	assert_int_equal(in_time(SHORT_NS, ckpt_steps(c, step, 4)), 1);
	assert_int_equal(step[0].step, first + 2);
	assert_int_equal(atomic_load(&fake.hellos), 1); /* nor did it cost the connection */
	assert_int_equal(ckpt_steps(c, step, 4), 1);
	assert_int_equal(step[0].step, first + 3);
	assert_int_equal(in_time(NS_PER_S, ckpt_detach(c, 0)), 0);
}

/* --- the store --- */
TEST(a_store_that_cannot_be_opened_is_opened_later)
{
	char file[160];
	ckpt *c;

	fake_start(MUTE);
	snprintf(file, sizeof file, "%s", fake.store);
	(void)close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC,
			 0600)); /* where the directory is to be */
	assert_int_equal(attach(&c, CKPT_REQUIRE, 0, &err), -ENOTDIR);
	assert_null(c);
	assert_non_null(strstr(err.msg, fake.store));
	assert_int_equal(attach(&c, 0, 0, &err), 0);
	assert_int_equal(heard_lines(), 1);
	assert_non_null(strstr(heard.last, fake.store));
	assert_int_equal(ckpt_snapshot(c, 1, NULL), CKPT_DETACHED);
	assert_int_equal(atomic_load(&fake.hellos), 0);
	assert_int_equal(unlink(file), 0);
	assert_true(within(20 * NS_PER_S, &fake.hellos, 1));
	assert_int_equal(heard_lines(), 1);
	assert_int_equal(in_time(NS_PER_S, ckpt_detach(c, 0)), 0);
}

TEST(what_needs_require_and_what_does_not)
{
	struct ckpt_opts o = { .size = sizeof o, .job = "j", .world = 1, .log = hear };
	ckpt *c;

	o.store = fake.store;
	o.socket = fake.socket;
	o.flags = CKPT_REQUIRE;
	assert_int_equal(ckpt_attach(&o, &c, &err), -ECONNREFUSED);
	o.flags = 0;
	assert_int_equal(ckpt_attach(&o, &c, &err), 0);
	assert_int_equal(ckpt_detach(c, 0), 0);
	o.socket = "/dev/null"; /* another kind of error, the same outcome */
	assert_int_equal(ckpt_attach(&o, &c, &err), 0);
	assert_int_equal(ckpt_detach(c, 0), 0);
	o.socket = fake.socket;
	o.store = "/proc/nothing/here";
	assert_int_equal(ckpt_attach(&o, &c, &err), 0);
	assert_int_equal(ckpt_detach(c, 0), 0);
	/* A mistake of the call is one with and without. */
	o.job = ".hidden";
	assert_int_equal(ckpt_attach(&o, &c, &err), -EINVAL);
	assert_null(c);
	o.job = "j";
	o.rank = 1;
	assert_int_equal(ckpt_attach(&o, &c, &err), -EINVAL);
	o.rank = 0;
	o.flags = 1u << 20;
	assert_int_equal(ckpt_attach(&o, &c, &err), -EOPNOTSUPP);
	o.flags = 0;
	o.device = 40; /* there is none of this number; without a driver host memory works */
	assert_int_equal(ckpt_attach(&o, &c, &err), -EINVAL);
	o.device = 1;
	assert_int_equal(ckpt_attach(&o, &c, &err), 0);
	assert_int_equal(ckpt_detach(c, 0), 0);
}

UNIT(.setup = setup, .teardown = teardown);
