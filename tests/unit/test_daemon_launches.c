/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_launches.c - launches of one job that begin at once, none of which has a number: in
 * which order ever their ranks come and mark, one of them gets the job with all its ranks and is
 * left alone, and every rank of the others learns that it has not. Ranks are HELLOs and CLAIMs by
 * hand; a launch is known by its token.
 */
#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "ckpt/wire/shared.h"
#include "tests/lib/unit.h"

#define LAUNCHES_MAX 3
#define RANKS_MAX 3

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEWER(n) ((n) / 4)
#else
#define FEWER(n) (n)
#endif

static int store = -1;
static uint32_t jobs;
static uint64_t rng;

static int setup(void **state)
{
	(void)host_setup(state);
	MUST(mkdir(H.store, 0700) == 0);
	store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	host_start(&H, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)close(store);
	return host_teardown(state);
}

/* --- ranks by hand --- */
struct comer {
	struct asker a;
	bool answered, welcome, claimed;
	int code;
	uint64_t generation;
};

static void come(struct comer *k, const char *job, uint64_t token, uint32_t rank, uint32_t world,
		 uint64_t generation)
{
	struct wire_hello h = {
		.rank = rank, .world = world, .nslot = 2, .launch = token, .generation = generation
	};

	*k = (struct comer){ .a.sock = ask_connect(H.socket), .a.seq = 1, .a.asked = WIRE_HELLO };
	snprintf(h.job, sizeof h.job, "%s", job);
	MUST(wire_send(k->a.sock, &h, WIRE_HELLO, sizeof h, 1, &store, 1) == 0);
}

static void learn(struct comer *k)
{
	struct wire_welcome w;
	uint32_t type;

	if (k->answered)
		return;
	type = ask_answer(&k->a, &w, sizeof w, NULL);
	k->answered = true;
	k->welcome = type == WIRE_WELCOME;
	k->generation = k->welcome ? w.generation : 0;
	k->code = type == WIRE_REFUSE ? k->a.refused.code : 0;
}

/* Its first mark. */
static void mark(struct comer *k)
{
	struct wire_plain m = { 0 };

	if (k->welcome)
		(void)wire_send(k->a.sock, &m, WIRE_CLAIM, sizeof m, ++k->a.seq, NULL, 0);
	k->a.asked = WIRE_CLAIM;
}

static void learn_mark(struct comer *k)
{
	struct wire_claimed w;
	uint32_t type;

	if (!k->welcome)
		return;
	type = ask_answer(&k->a, &w, sizeof w, NULL);
	k->claimed = type == WIRE_CLAIMED;
	k->generation = k->claimed ? w.generation : 0;
	if (type == WIRE_REFUSE)
		k->code = k->a.refused.code;
}

/* Was it sent away after it had been welcomed? */
static bool left_alone(const struct comer *k)
{
	struct pollfd p = { .fd = k->a.sock, .events = POLLIN };

	return k->welcome && poll(&p, 1, 0) == 0;
}

static const char *new_job(void)
{
	static char name[32];

	snprintf(name, sizeof name, "job-%u", jobs++);
	return name;
}

/* order[i]: whose next rank comes i-th. */
static void one_survives(const uint8_t *order, uint32_t launches, uint32_t ranks, bool wait)
{
	struct comer k[LAUNCHES_MAX][RANKS_MAX] = { 0 };
	const char *job = new_job();
	uint32_t next[LAUNCHES_MAX] = { 0 }, survivors = 0;
	char said[64] = "";

	for (uint32_t i = 0; i < launches * ranks; i++) {
		uint32_t l = order[i], r = next[l]++;

		come(&k[l][r], job, 1000 + l, r, ranks, 0);
		if (wait)
			learn(&k[l][r]);
		said[i] = (char)('A' + l);
	}
	for (uint32_t l = 0; l < launches; l++)
		for (uint32_t r = 0; r < ranks; r++)
			learn(&k[l][r]);
	/* The last one that came is the first one that marks. */
	memset(next, 0, sizeof next);
	for (uint32_t i = launches * ranks; i-- > 0;) {
		uint32_t l = order[i], r = next[l]++;

		mark(&k[l][r]);
		if (wait)
			learn_mark(&k[l][r]);
	}
	for (uint32_t l = 0; l < launches; l++)
		for (uint32_t r = 0; r < ranks; r++)
			if (!wait)
				learn_mark(&k[l][r]);
	for (uint32_t l = 0; l < launches; l++) {
		uint32_t alone = 0;

		for (uint32_t r = 0; r < ranks; r++) {
			alone += k[l][r].claimed && left_alone(&k[l][r]);
			if (!k[l][r].claimed && k[l][r].code && k[l][r].code != -ESTALE)
				fail_msg("%s: rank %u of %c: %d", said, r, 'A' + l, k[l][r].code);
		}
		if (alone && alone < ranks)
			fail_msg("%s: %u of %u ranks of %c are attached", said, alone, ranks,
				 'A' + l);
		survivors += alone == ranks;
	}
	if (survivors != 1)
		fail_msg("%s: %u launches survive", said, survivors);
	for (uint32_t l = 0; l < launches; l++)
		for (uint32_t r = 0; r < ranks; r++)
			(void)close(k[l][r].a.sock);
}

/* Every order, by putting the next rank of each launch in turn. */
static uint32_t each_order(uint8_t *order, uint32_t n, uint32_t *left, uint32_t launches,
			   uint32_t ranks)
{
	uint32_t tried = 0;

	if (n == launches * ranks) {
		one_survives(order, launches, ranks, true);
		return 1;
	}
	for (uint32_t l = 0; l < launches; l++)
		if (left[l]) {
			left[l]--;
			order[n] = (uint8_t)l;
			tried += each_order(order, n + 1, left, launches, ranks);
			left[l]++;
		}
	return tried;
}

TEST(of_launches_that_begin_at_once_exactly_one_survives)
{
	uint8_t order[LAUNCHES_MAX * RANKS_MAX];

	assert_int_equal(each_order(order, 0, (uint32_t[]){ 2, 2 }, 2, 2), 6);
	assert_int_equal(each_order(order, 0, (uint32_t[]){ 3, 3 }, 2, 3), 20);
	assert_int_equal(each_order(order, 0, (uint32_t[]){ 2, 2, 2 }, 3, 2), 90);
}

/* Nobody waits for an answer: claims are under way when others come. */
TEST(also_when_they_come_all_together)
{
	rng = draw_seed(__func__);
	for (uint32_t i = 0; i < FEWER((uint32_t)unit_scaled(200)); i++) {
		uint32_t launches = 2 + (uint32_t)(draw(&rng) % 2), ranks = 2, n = 0;
		uint8_t order[LAUNCHES_MAX * RANKS_MAX];

		for (uint32_t l = 0; l < launches; l++)
			for (uint32_t r = 0; r < ranks; r++)
				order[n++] = (uint8_t)l;
		for (uint32_t k = n - 1; k > 0; k--) {
			uint32_t other = (uint32_t)(draw(&rng) % (k + 1));
			uint8_t was = order[k];

			order[k] = order[other];
			order[other] = was;
		}
		one_survives(order, launches, ranks, false);
	}
}

static void close_all(struct comer *k, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)close(k[i].a.sock);
}

/* The second one is beside the first, and has no number; a number decides by itself. */
TEST(a_launch_has_the_job_that_the_one_before_has_left)
{
	const char *job = new_job();
	struct comer a[2], b, given;
	struct wire_plain bye = { 0 };

	come(&a[0], job, 1, 0, 2, 0);
	learn(&a[0]);
	assert_true(a[0].welcome && a[0].generation);
	come(&b, job, 2, 0, 2, 0);
	learn(&b);
	assert_true(b.welcome);
	assert_int_equal(b.generation, 0);
	come(&a[1], job, 1, 1, 2, 0);
	learn(&a[1]);
	assert_true(a[1].welcome && a[1].generation == a[0].generation);
	/* A number is higher or not; tokens do not matter. */
	come(&given, job, 1, 0, 2, a[0].generation + 1);
	learn(&given);
	assert_true(given.welcome);
	ask_until(!left_alone(&a[0]) && !left_alone(&a[1]));
	(void)close(given.a.sock);
	(void)close(b.a.sock);
	close_all(a, 2);
	/* A says that it ends: B has the job when it attaches. */
	job = new_job();
	come(&a[0], job, 1, 0, 1, 0);
	learn(&a[0]);
	ask_send(&a[0].a, &bye, WIRE_BYE, sizeof bye);
	assert_int_equal(ask_answer(&a[0].a, &bye, sizeof bye, NULL), WIRE_OK);
	(void)close(a[0].a.sock);
	come(&b, job, 2, 0, 1, 0);
	learn(&b);
	assert_true(b.welcome);
	assert_int_equal(b.generation, a[0].generation + 1);
	(void)close(b.a.sock);
}

static int attach(ckpt **c, uint64_t launch, uint32_t rank, struct ckpt_err *err)
{
	struct ckpt_opts o = { .size = sizeof o,
			       .flags = CKPT_REQUIRE,
			       .job = "numbered",
			       .store = H.store,
			       .socket = H.socket,
			       .rank = rank,
			       .world = 2,
			       .launch = launch };

	return ckpt_attach(&o, c, err);
}

/* All handles here have one parent process: without the number they are one launch. */
TEST(the_number_that_the_caller_gives_says_which_ranks_are_one_launch)
{
	struct ckpt_err err = { 0 };
	ckpt *a[2], *b[2], *other;

	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(attach(&a[r], 7, r, &err), 0);
	assert_int_equal(attach(&other, 7, 1, &err), -EBUSY);
	for (uint32_t r = 0; r < 2; r++)
		assert_int_equal(attach(&b[r], 8, r, &err), 0);
	assert_int_equal(attach(&other, 7, 0, &err), -EBUSY);
	assert_int_equal(attach(&other, 8, 0, &err), -EBUSY);
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(ckpt_detach(a[r], 0), 0);
		assert_int_equal(ckpt_detach(b[r], 0), 0);
	}
}

UNIT(.setup = setup, .teardown = teardown);
