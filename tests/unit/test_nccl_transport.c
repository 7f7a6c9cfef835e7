/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_transport.c - ranks as processes exchange memory of GPUs over NCCL, both played by
 * libraries of tests (fakecuda, fakenccl): every element arrives; whatever is missing, too old,
 * never answers, or dies, all ranks end in time with a sentence that says so.
 */
#include "tests/unit/test_spread_job.h"
#include "ckpt/device/cuda_driver.h"
#include "ckpt/nccl/nccl_library.h"
#include "ckpt/nccl/nccl_transport.h"
#include "tests/fakecuda/fakecuda_test.h"
#include "tests/fakenccl/fakenccl.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define RANKS 4
#define INIT_NS (15 * NS_PER_S)
#define NEVER_NS (1 * NS_PER_S) /* what never comes is not waited for any longer */
#define LATE_NS (20 * NS_PER_S) /* by then every rank has given up, on a busy machine */

/* --- what all ranks share --- */

struct outcome {
	bool opened, ended;
	int rc;
	uint64_t wrong, rounds, arrived, missing, groups, comms, ns;
	struct ckpt_err err;
};

static struct shared {
	pthread_mutex_t lock; /* protects what agreements need */
	pthread_cond_t turned;
	uint32_t asked, turn;
	uint64_t least, given, agreements;
	bool lies; /* rank 1 gets another result than the others */
	struct outcome outcome[RANKS];
} * shared;

static uint32_t world;
static uint32_t who;

static int agree(void *ctx, uint64_t mine, uint64_t *ret)
{
	struct timespec until;
	uint32_t turn;
	int rc = 0;

	(void)ctx;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 15;
	pthread_mutex_lock(&shared->lock);
	turn = shared->turn;
	shared->least = shared->asked ? MIN(shared->least, mine) : mine;
	if (++shared->asked == world) {
		shared->given = shared->least;
		shared->asked = 0;
		shared->turn++;
		shared->agreements++;
		pthread_cond_broadcast(&shared->turned);
	}
	while (turn == shared->turn && rc == 0)
		rc = pthread_cond_timedwait(&shared->turned, &shared->lock, &until);
	*ret = shared->given;
	if (shared->lies && who == 1 && shared->agreements == 5)
		*ret ^= 4;
	pthread_mutex_unlock(&shared->lock);
	return rc ? -1 : 0;
}

static int shared_make(void **state)
{
	pthread_mutexattr_t m;
	pthread_condattr_t c;

	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		return -1;
	pthread_mutexattr_init(&m);
	pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->lock, &m);
	pthread_condattr_init(&c);
	pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&shared->turned, &c);
	return 0;
}

static int shared_free(void **state)
{
	return munmap(shared, sizeof *shared);
}

UNIT(.setup = shared_make, .teardown = shared_free);

/* --- a rank: a process with a GPU --- */

static const struct fakecuda *fake;
static const struct fakenccl *fake_nccl;
static const struct cuda_calls *cu;

static uint64_t device_alloc(uint64_t bytes)
{
	cuda_ptr p;

	assert_int_equal(cu->mem_alloc(&p, bytes), 0);
	return p;
}

static void device_free(uint64_t at)
{
	assert_int_equal(cu->mem_free(at), 0);
}

static uint8_t *device_at(uint64_t at)
{
	return fake->alias(at);
}

static void libraries_open(void)
{
	void *nccl;
	cuda_ctx ctx;

	nccl = dlopen(FAKENCCL, RTLD_NOW | RTLD_GLOBAL);
	if (!nccl)
		fail_msg("%s", dlerror());
	fake_nccl = dlsym(nccl, "fakenccl");
	cu = fakecuda_open(FAKECUDA, "1", &fake);
	assert_non_null(cu);
	assert_int_equal(cu->primary_retain(&ctx, 0), 0);
	assert_int_equal(cu->ctx_set(ctx), 0);
	memory_kind.alloc = device_alloc;
	memory_kind.free = device_free;
	memory_kind.host = device_at;
}

/* What is said of this case: which rank has which variable; "*": all. */
struct scene {
	const char *rank, *variable, *value;
	uint64_t round_ns;
	bool comm; /* the caller's */
	bool captures;
};

/* --- a stream of the trainer, captured into a graph all the while --- */

static cuda_stream capture_begin(void)
{
	cuda_stream s;

	assert_int_equal(cu->stream_new(&s, CUDA_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(graph_calls().begin(s, CUDA_CAPTURE_GLOBAL), 0);
	return s;
}

/* The graph is whole. */
static void capture_end(cuda_stream s)
{
	void *graph;

	assert_int_equal(graph_calls().end(s, &graph), 0);
	assert_int_equal(graph_calls().drop(graph), 0);
	assert_int_equal(cu->stream_free(s), 0);
}

static int exchange(const struct job *j, struct spread *s, struct spread_transport *t,
		    const struct scene *scene, struct memory *from, struct memory *to,
		    struct ckpt_err *err)
{
	struct spread_how how = { .chunk_bytes = j->chunk_bytes,
				  .round_ns = scene->round_ns ? scene->round_ns : LATE_NS,
				  .ahead = true };
	struct spread_memory m = {
		.from = &from->t, .to = &to->t, .from_base = &from->base, .to_base = &to->base
	};
	uint64_t out_bytes, in_bytes;
	int rc;

	spread_staging(s, &how, &out_bytes, &in_bytes);
	rc = nccl_staging(t, out_bytes, in_bytes, &m, err);
	if (rc == 0)
		rc = spread_run(s, t, &m, &how, err);
	assert_int_equal(nccl_settle(t, now_ns() + LATE_NS, rc ? NULL : err), 0);
	assert_int_equal(fake->queued(), 0);
	return rc;
}

static void *comm_of_caller(uint32_t rank)
{
	struct nccl_config config = { sizeof config, NCCL_MAGIC, NCCL_VERSION_MIN, 1 };
	const struct nccl_calls *nc;
	struct nccl_id id = { "" };
	nccl_comm c = NULL;
	int rc;

	nc = nccl_library(&rc, NULL);
	assert_non_null(nc);
	snprintf(id.bytes, sizeof id.bytes, "caller-%d", (int)getppid());
	assert_int_equal(nc->init(&c, (int)world, id, (int)rank, &config), 0);
	return c;
}

static void rank_run(const struct job *j, uint32_t rank, const struct scene *scene)
{
	struct outcome *o = &shared->outcome[rank];
	const struct table *src = &j->table[0], *dst = &j->table[j->in_place ? 0 : 1];
	struct reshard_opts opts = { .who = HOLDERS_OWNERS };
	struct nccl_opts n = { .rank = rank, .world = world, .agree = agree, .init_ns = INIT_NS };
	struct spread_transport *t = NULL;
	cuda_stream captured = NULL;
	struct memory from, to;
	struct spread *s;

	who = rank;
	if (scene->variable && !strcmp(scene->variable, "FAKENCCL_INIT"))
		n.init_ns = NEVER_NS;
	if (scene->variable && (*scene->rank == '*' || (uint32_t)atoi(scene->rank) == rank))
		setenv(scene->variable, scene->value, 1);
	libraries_open();
	assert_ok_err(spread_open(src, dst, &opts, rank, &s, &o->err), &o->err);
	memory_make(src, rank, !j->in_place, &from);
	memory_fill(&from, rank, j->in_place);
	memory_make(dst, rank, false, &to);
	if (scene->comm)
		n.comm = comm_of_caller(rank);
	if (scene->captures)
		captured = capture_begin();
	o->ns = now_ns();
	o->rc = nccl_open(&n, &t, &o->err);
	o->opened = o->rc == 0;
	if (t) {
		o->rc = exchange(j, s, t, scene, &from, j->in_place ? &from : &to, &o->err);
		o->rounds = t->round;
		t->calls->close(t);
	}
	o->ns = now_ns() - o->ns;
	if (captured)
		capture_end(captured);
	if (o->opened) {
		const struct memory *m = j->in_place ? &from : &to;

		/* After an error the rank reads what has not arrived. */
		o->arrived = spread_rounds(s);
		if (o->rc)
			o->missing = missing_bytes(j, s, m, o->arrived, true);
		o->wrong = memory_wrong(m);
	}
	memory_free(&from);
	memory_free(&to);
	spread_close(s);
	o->groups = fake_nccl->groups();
	o->comms = fake_nccl->comms();
	o->ended = true;
}

/* stays: a rank that does not end by itself; -1: none. */
static void ranks_run(const struct job *j, const struct scene *scene, int stays)
{
	pid_t pid[RANKS];

	assert_true(j->world <= RANKS);
	world = j->world;
	memset(shared->outcome, 0, sizeof shared->outcome);
	shared->agreements = 0;
	fflush(NULL);
	for (uint32_t i = 0; i < world; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (pid[i])
			continue;
		rank_run(j, i, scene);
		fflush(NULL);
		_exit(0);
	}
	for (uint32_t i = 0; i < world; i++)
		if ((int)i != stays)
			assert_int_equal(waitpid(pid[i], NULL, 0), pid[i]);
	if (stays >= 0) {
		kill(pid[stays], SIGKILL);
		waitpid(pid[stays], NULL, 0);
	}
}

static void all_well(const struct job *j)
{
	for (uint32_t r = 0; r < world; r++) {
		const struct outcome *o = &shared->outcome[r];

		if (!o->ended || o->rc || o->wrong)
			fail_msg("rank %u: %s, result %d (%s), %u bytes are wrong", r,
				 o->ended ? "ended" : "did not end", o->rc, o->err.msg,
				 (unsigned)o->wrong);
	}
}

TEST(memory_of_devices_is_exchanged_over_nccl)
{
	const struct scene scene = { 0 };
	struct job j;

	plain_job(&j);
	ranks_run(&j, &scene, -1);
	all_well(&j);
	for (uint32_t r = 0; r < world; r++) {
		assert_true(shared->outcome[r].rounds >= 16);
		assert_int_equal(shared->outcome[r].groups, shared->outcome[r].rounds);
		assert_int_equal(shared->outcome[r].comms, 0); /* given back */
	}
	job_free(&j);
}

/* plain_job's ranks, and elements with gaps between them, which go through windows: several
 * rounds. */
static void gapped_job(struct job *j)
{
	static uint32_t dim[] = { 4 }, rank[] = { 0, 1, 2, 3 };
	static const char *const name[] = { "dp" }, *const tensor[] = { "w0", "w1", "w2" };
	struct mesh mesh = { 1, name, dim, 4, rank };
	uint64_t shape[] = { 16, 1024, 8 };
	struct layout l = { 0 };
	struct table_tensor x =
		ROW(.component = "model", .of = "", .dtype = CKPT_F32, .cls = CKPT_STABLE,
		    .rank = TABLE_NONE, .ndim = 3, .shape = shape);

	*j = (struct job){ .world = 4, .in_place = true, .chunk_bytes = SPREAD_CHUNK_MIN };
	assert_ok(table_add_mesh(&j->table[0], &mesh, NULL, NULL));
	assert_ok(table_add_layout(&j->table[0], &l, &x.layout, NULL));
	for (uint32_t i = 0; i < 3; i++) {
		x.name = tensor[i];
		assert_ok(table_add_tensor(&j->table[0], &x, NULL, NULL));
	}
	assert_ok(table_seal(&j->table[0], NULL));
}

/* Copies take their time, and what is queued begins when it likes. */
TEST(rounds_go_beside_the_copies_of_the_rounds_around_them)
{
	const struct scene scene = { 0 };
	struct job j;

	gapped_job(&j);
	setenv("FAKECUDA_GBPS", ".2", 1);
	for (uint32_t i = 1; i <= 3; i++) {
		char seed[16];

		snprintf(seed, sizeof seed, "%u", i * 7);
		setenv("FAKECUDA_SEED", seed, 1);
		ranks_run(&j, &scene, -1);
		all_well(&j);
		for (uint32_t r = 0; r < world; r++)
			assert_true(shared->outcome[r].rounds >= 4);
	}
	unsetenv("FAKECUDA_GBPS");
	unsetenv("FAKECUDA_SEED");
	job_free(&j);
}

TEST(a_capture_of_the_trainers_stream_goes_on_meanwhile)
{
	const struct scene scene = { .captures = true };
	struct job j;

	gapped_job(&j);
	ranks_run(&j, &scene, -1);
	all_well(&j);
	job_free(&j);
}

TEST(random_layouts_on_devices_arrive_element_by_element)
{
	const struct scene scene = { 0 };
	uint64_t rounds = 0;

	naive_seed(__func__);
	for (uint64_t i = 0; i < unit_scaled(20) || !rounds; i++) {
		struct job j;

		do {
			draw_job(&j);
			if (j.world > RANKS)
				job_free(&j);
		} while (j.world > RANKS);
		ranks_run(&j, &scene, -1);
		all_well(&j);
		for (uint32_t r = 0; r < world; r++)
			rounds += shared->outcome[r].groups;
		job_free(&j);
	}
}

TEST(the_callers_communicator_is_used_and_stays)
{
	const struct scene scene = { .comm = true };
	struct job j;

	plain_job(&j);
	ranks_run(&j, &scene, -1);
	all_well(&j);
	assert_int_equal(shared->agreements, 1);
	for (uint32_t r = 0; r < world; r++)
		assert_int_equal(shared->outcome[r].comms, 1);
	job_free(&j);
}

/* All ranks but `gone` end with an error; `of`'s says words. How many said it. */
static void all_fail(const struct scene *scene, int gone, int stays, int of, int rc,
		     const char *words)
{
	struct job j;

	plain_job(&j);
	ranks_run(&j, scene, stays);
	for (int r = 0; r < RANKS; r++) {
		const struct outcome *o = &shared->outcome[r];

		if (r == gone)
			continue;
		printf("rank %d: %d: %s (%d ms)\n", r, o->rc, o->err.msg, (int)(o->ns / NS_PER_MS));
		assert_true(o->ended && o->rc < 0);
		assert_true(o->ns < LATE_NS);
		assert_int_equal(o->wrong, 0);
		assert_int_equal(o->err.code, o->rc);
		assert_non_null(strstr(o->err.msg, "NCCL"));
		assert_null(strchr(o->err.msg, '\n'));
		if (of >= 0 && r != of)
			continue;
		assert_int_equal(o->rc, rc);
		if (!strstr(o->err.msg, words))
			fail_msg("%s", o->err.msg);
	}
	job_free(&j);
}

TEST(a_version_that_is_too_old_is_refused_by_name)
{
	const struct scene all = { .rank = "*", .variable = "FAKENCCL_VERSION", .value = "2804" },
			   one = { .rank = "2", .variable = all.variable, .value = "21003" };

	all_fail(&all, -1, -1, -1, -ENOTSUP, "libnccl.so.2 is NCCL 2.8.4: ckptd needs 2.14.3");
	all_fail(&one, -1, -1, 2, -ENOTSUP, "libnccl.so.2 is NCCL 2.10.3");
	assert_int_equal(shared->outcome[0].rc, -EOPNOTSUPP);
	assert_non_null(strstr(shared->outcome[0].err.msg, "another rank cannot use NCCL"));
}

TEST(without_an_identifier_no_rank_waits_for_another)
{
	const struct scene scene = { .rank = "0", .variable = "FAKENCCL_WITHOUT_ID", .value = "1" };

	all_fail(&scene, -1, -1, 0, -EPROTO, "NCCL gives no identifier");
	assert_int_equal(shared->agreements, 1 + 16 + 1 + 1);
}

TEST(an_identifier_that_arrives_altered_is_not_used)
{
	const struct scene scene = { 0 };

	shared->lies = true;
	all_fail(&scene, -1, -1, 1, -EPROTO,
		 "NCCL's identifier came through ckpt_opts.agree altered");
}

TEST(a_communicator_that_never_comes_up_is_given_up)
{
	const struct scene all = { .rank = "*", .variable = "FAKENCCL_INIT", .value = "never" },
			   one = { .rank = "3", .variable = all.variable, .value = "never" };

	all_fail(&all, -1, -1, -1, -ETIMEDOUT, "NCCL has not come up in 1.0 s");
	all_fail(&one, -1, -1, 3, -ETIMEDOUT, "rank 3: NCCL has not come up in 1.0 s");
	assert_int_equal(shared->agreements, 1 + 16 + 1 + 1 + 1); /* and no rank waited for one */
	for (int r = 0; r < RANKS; r++)
		assert_int_equal(shared->outcome[r].comms, 0);
}

TEST(a_call_that_fails_is_named_with_its_round)
{
	const struct scene scene = { .rank = "1",
				     .variable = "FAKENCCL_FAIL",
				     .value = "ncclSend:40:2",
				     .round_ns = 4 * NS_PER_S };

	all_fail(&scene, -1, -1, 1, -EIO, "rank 1, round 13: NCCL: unhandled system error");
}

TEST(a_rank_that_dies_in_a_round_is_named)
{
	const struct scene scene = {
		.rank = "2", .variable = "FAKENCCL_DIE", .value = "2:5", .round_ns = 10 * NS_PER_S
	};
	int named = 0;

	all_fail(&scene, 2, -1, -1, -ECONNRESET, ", round 5: NCCL: remote process exited");
	for (int r = 0; r < RANKS; r++)
		named += strstr(shared->outcome[r].err.msg, "the connection to rank 2 is closed") !=
			 NULL;
	assert_true(named > 0);
}

TEST(a_rank_that_dies_unheard_is_missed_at_the_deadline)
{
	const struct scene scene = {
		.rank = "*", .variable = "FAKENCCL_SILENT", .value = "1", .round_ns = 4 * NS_PER_S
	};

	setenv("FAKENCCL_DIE", "1:7", 1);
	all_fail(&scene, 1, -1, -1, -ETIMEDOUT, "round 7: NCCL: the time is over; of the ranks");
	unsetenv("FAKENCCL_DIE");
}

TEST(a_rank_that_stops_is_missed_at_the_deadline)
{
	const struct scene scene = {
		.rank = "3", .variable = "FAKENCCL_STOP", .value = "3:2", .round_ns = 4 * NS_PER_S
	};

	all_fail(&scene, 3, 3, -1, -ETIMEDOUT, "round 2: NCCL: the time is over; of the ranks");
}

/* Copies take their time, so they still run when the rank hears of it. */
TEST(what_arrived_before_a_rank_died_is_right_and_the_rest_is_missing)
{
	const struct scene scene = { .round_ns = 10 * NS_PER_S };
	struct job j;

	gapped_job(&j);
	setenv("FAKECUDA_GBPS", ".2", 1);
	for (uint32_t i = 1; i <= 4; i++) {
		char seed[16], die[16];

		snprintf(seed, sizeof seed, "%u", i * 11);
		snprintf(die, sizeof die, "1:%u", i);
		setenv("FAKECUDA_SEED", seed, 1);
		setenv("FAKENCCL_DIE", die, 1);
		ranks_run(&j, &scene, -1);
		for (uint32_t r = 0; r < world; r++) {
			const struct outcome *o = &shared->outcome[r];

			if (r == 1)
				continue;
			assert_true(o->ended && o->rc < 0 && o->missing > 0);
			assert_true(o->arrived > 0 && o->arrived <= i);
			if (o->wrong)
				fail_msg("rank %u: %u bytes are wrong after %u rounds", r,
					 (unsigned)o->wrong, (unsigned)o->arrived);
		}
	}
	unsetenv("FAKENCCL_DIE");
	unsetenv("FAKECUDA_GBPS");
	unsetenv("FAKECUDA_SEED");
	job_free(&j);
}
