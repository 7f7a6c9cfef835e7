/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_nccl.c - ckpt_restore over NCCL: ranks as threads, a daemon, and libckpt-nccl.so with
 * a driver and an NCCL that tests play (fakecuda, fakenccl). What several ranks hold comes to each
 * of them, though each has read its own part alone; whatever fails, each reads all of it.
 */
#include "ckpt/client/handle.h"
#include "ckpt/device/cuda_driver.h"
#include "ckpt/nccl/nccl_library.h"
#include "ckpt/spread/spread.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/fakenccl/fakenccl.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <dlfcn.h>
#include <limits.h>
#include <spawn.h>
#include <sys/wait.h>
#include <pthread.h>
#include <sys/mman.h>

#define RANKS 4 /* dp=2, fsdp=2 */

/* --- an agreement of threads --- */

static struct {
	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t turned;
	uint32_t asked, turn;
	uint32_t refused; /* in this turn the answer is 0; UINT32_MAX: in none */
	uint64_t least, given;
} agreeing = { .lock = PTHREAD_MUTEX_INITIALIZER,
	       .turned = PTHREAD_COND_INITIALIZER,
	       .refused = UINT32_MAX };

static int agree(void *ctx, uint64_t mine, uint64_t *ret)
{
	uint32_t turn;

	(void)ctx;
	pthread_mutex_lock(&agreeing.lock);
	turn = agreeing.turn;
	agreeing.least = agreeing.asked ? MIN(agreeing.least, mine) : mine;
	if (++agreeing.asked == RANKS) {
		agreeing.given = turn == agreeing.refused ? 0 : agreeing.least;
		agreeing.asked = 0;
		agreeing.turn++;
		pthread_cond_broadcast(&agreeing.turned);
	}
	while (turn == agreeing.turn)
		pthread_cond_wait(&agreeing.turned, &agreeing.lock);
	*ret = agreeing.given;
	pthread_mutex_unlock(&agreeing.lock);
	return 0;
}

/* --- ranks --- */

/* A tensor of rows x columns; `gap`: words between the rows in memory. */
static const struct shape {
	const char *name;
	uint64_t n[2];
	uint64_t gap;
	bool cut;     /* its rows by fsdp; else whole on all */
	bool alloced; /* memory that the daemon writes */
	bool boxes;   /* no layout */
	bool device;  /* memory of the CUDA device */
} shape[] = {
	{ .name = "large", .n = { 1500, 1000 }, .device = true },  /* 6 MB: each owns a quarter */
	{ .name = "columns", .n = { 3, 500001 }, .device = true }, /* cut along the columns */
	{ .name = "gaps", .n = { 1251, 700 }, .gap = 13, .cut = true, .device = true },
	{ .name = "small", .n = { 7, 9 }, .device = true },
	{ .name = "bias", .n = { 4, 33 }, .gap = 5, .cut = true },
	{ .name = "offloaded", .n = { 501, 401 } }, /* memory of the host */
	{ .name = "segment", .n = { 500, 1500 }, .cut = true, .alloced = true },
	{ .name = "alone", .n = { 11, 13 }, .boxes = true, .device = true },
};
#define TENSORS ARRAY_LEN(shape)

struct trainer {
	ckpt *c;
	uint32_t rank;
	uint32_t *at[TENSORS];
	uint64_t words[TENSORS], first[TENSORS], rows[TENSORS];
	int rc;
	struct ckpt_err err;
};

static struct said said = SAID_NOTHING;
static const struct fakecuda *fake;
static const struct cuda_calls *cu;
static uint64_t generation;

static uint32_t word_of(uint32_t tensor, uint64_t row, uint64_t column, uint64_t step)
{
	return (uint32_t)((row * 2654435761u + column * 40503u + tensor * 97 + step) *
				  UINT64_C(0x9e3779b97f4a7c15) >>
			  32);
}

/* Where the test may touch it. */
static uint32_t *words_of(const struct trainer *t, uint32_t i)
{
	return shape[i].device ? fake->alias((uintptr_t)t->at[i]) : t->at[i];
}

static void fill(struct trainer *t, uint64_t step)
{
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint64_t n = shape[i].n[1], line = n + shape[i].gap, first = t->first[i];
		uint32_t *at = words_of(t, i);

		memset(at, 0xee, t->words[i] * 4);
		for (uint64_t r = 0; step && r < t->rows[i]; r++)
			for (uint64_t k = 0; k < n; k++)
				at[r * line + k] = word_of(i, first + r, k, step);
	}
}

/* How many words are not that step's, or were written between the rows. */
static uint64_t wrong(const struct trainer *t, uint32_t i, uint64_t step)
{
	uint64_t wide = shape[i].n[1], line = wide + shape[i].gap, words = t->words[i];
	uint64_t first = t->first[i], n = 0;
	const uint32_t *at = words_of(t, i);

	for (uint64_t w = 0; w < words; w++) {
		uint64_t r = w / line, k = w % line;
		uint32_t want = k < wide ? word_of(i, first + r, k, step) : 0xeeeeeeee;

		n += at[w] != want;
	}
	return n;
}

static void add(struct trainer *t, uint32_t i, uint32_t mesh)
{
	const struct shape *s = &shape[i];
	uint64_t start[2] = { 0, 0 };
	int64_t stride[2] = { (int64_t)(s->n[1] + s->gap), 1 };
	struct ckpt_placement rows_of = { .how = CKPT_SHARD, .mesh_dim = 1 };
	struct ckpt_local local = { .stride = s->gap ? stride : NULL };
	struct ckpt_tensor x =
		ROW(.size = sizeof x, .dtype = CKPT_F32, .component = "model", .name = s->name,
		    .mesh = mesh, .ndim = 2, .shape = s->n, .nplace = s->cut, .place = &rows_of,
		    .nlocal = 1, .local = &local);
	uint64_t half = div_up(s->n[0], 2);
	void *p;

	t->rows[i] = !s->cut ? s->n[0] : t->rank % 2 ? s->n[0] - half : half;
	t->first[i] = s->cut && t->rank % 2 ? half : 0;
	t->words[i] = t->rows[i] * (s->n[1] + s->gap);
	if (s->boxes) {
		x.mode = CKPT_BOXES;
		local.start = start;
		local.extent = s->n;
	}
	if (s->alloced) {
		MUST_OF(t, ckpt_alloc(t->c, t->words[i] * 4, &p, &t->err));
	} else if (s->device) {
		cuda_ptr at;

		MUST_BE(cu->mem_alloc(&at, t->words[i] * 4), 0);
		p = (void *)(uintptr_t)at;
	} else {
		p = mmap(NULL, t->words[i] * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
	}
	MUST(p != MAP_FAILED);
	t->at[i] = local.ptr = p;
	MUST_OF(t, ckpt_tensor_add(t->c, &x, NULL, &t->err));
}

static void attach(struct trainer *t, const char *job, uint32_t rank)
{
	static const char *const names[] = { "dp", "fsdp" };
	static const uint32_t dims[] = { 2, 2 };
	struct ckpt_opts o = ROW(.size = sizeof o, .flags = CKPT_REQUIRE | CKPT_NCCL, .job = job,
				 .store = H.store, .device = 1, .socket = H.socket, .rank = rank,
				 .world = RANKS, .generation = generation, .guard = CKPT_FINISH,
				 .log = said_line, .log_ctx = &said, .agree = agree);
	uint32_t mesh;

	*t = (struct trainer){ .rank = rank };
	MUST_OF(t, ckpt_attach(&o, &t->c, &t->err));
	MUST_OF(t, ckpt_mesh(t->c, 2, names, dims, NULL, &mesh, &t->err));
	/* Each numbers its tensors in another order. */
	for (uint32_t i = 0; i < TENSORS; i++)
		add(t, (i + rank) % TENSORS, mesh);
}

static void team_open(struct trainer *t, const char *job)
{
	generation++;
	for (uint32_t r = 0; r < RANKS; r++)
		attach(&t[r], job, r);
	for (uint32_t r = 0; r < RANKS; r++)
		(void)ckpt_seal(t[r].c, r + 1 < RANKS ? 0 : PATIENCE, &t[r].err);
	for (uint32_t r = 0; r + 1 < RANKS; r++)
		assert_ok_err(ckpt_seal(t[r].c, PATIENCE, &t[r].err), &t[r].err);
}

static void ranks_leave(struct trainer *t)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(ckpt_detach(t[r].c, 0), 0);
		for (uint32_t i = 0; i < TENSORS; i++)
			if (shape[i].device)
				assert_int_equal(cu->mem_free((uintptr_t)t[r].at[i]), 0);
			else if (!shape[i].alloced)
				munmap(t[r].at[i], t[r].words[i] * 4);
	}
}

/* The caller's communicators, as a trainer has them. */
static void *comm_run(void *arg)
{
	struct nccl_config config = { sizeof config, NCCL_MAGIC, NCCL_VERSION_MIN, 1 };
	struct trainer *t = arg;
	struct nccl_id id = { "" };
	const struct nccl_calls *nc;
	nccl_comm comm = NULL;
	cuda_ctx ctx;
	int rc;

	nc = nccl_library(&rc, NULL);
	MUST(nc);
	MUST_BE(cu->primary_retain(&ctx, 0), 0);
	MUST_BE(cu->ctx_set(ctx), 0);
	snprintf(id.bytes, sizeof id.bytes, "callers-%d", (int)getpid());
	MUST_BE(nc->init(&comm, RANKS, id, (int)t->rank, &config), 0);
	t->c->nccl.comm = comm;
	return NULL;
}

static void comms_open(struct trainer *t)
{
	pthread_t thread[RANKS];

	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(pthread_create(&thread[r], NULL, comm_run, &t[r]), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
}

static uint32_t want_flags;
static uint64_t want_ns; /* how long a restore waits for other ranks; 0: as it likes */

static void *restore_run(void *arg)
{
	struct trainer *t = arg;
	struct ckpt_want w = ROW(.size = sizeof w, .step = 7, .flags = want_flags | CKPT_EXACT,
				 .deadline_ns = want_ns);

	t->rc = ckpt_restore(t->c, &w, NULL, &t->err);
	return NULL;
}

static void restore_all(struct trainer *t, uint32_t flags)
{
	pthread_t thread[RANKS];

	want_flags = flags;
	for (uint32_t r = 0; r < RANKS; r++) {
		fill(&t[r], 0);
		assert_int_equal(pthread_create(&thread[r], NULL, restore_run, &t[r]), 0);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
}

static void restored(struct trainer *t, uint32_t flags)
{
	restore_all(t, flags);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_ok_err(t[r].rc, &t[r].err);
		for (uint32_t i = 0; i < TENSORS; i++)
			if (wrong(&t[r], i, 7))
				fail_msg("rank %u, %s: %" PRIu64 " words are wrong", r,
					 shape[i].name, wrong(&t[r], i, 7));
	}
}

static void saved(struct trainer *t, const char *job)
{
	struct ckpt_mark m = ROW(.size = sizeof m, .flags = CKPT_PERSIST);

	team_open(t, job);
	for (uint32_t r = 0; r < RANKS; r++)
		fill(&t[r], 7);
	for (uint32_t r = 0; r < RANKS; r++)
		if (ckpt_snapshot(t[r].c, 7, &m) != 0) {
			(void)ckpt_why(t[r].c, &t[r].err);
			fail_msg("rank %u: %s", r, t[r].err.msg);
		}
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(ckpt_guard(t[r].c, NULL), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_ok_err(ckpt_wait(t[r].c, 7, CKPT_COMMITTED, PATIENCE, &t[r].err), &t[r].err);
	ranks_leave(t);
	team_open(t, job);
}

static int setup(void **state)
{
	void *lib = dlopen(FAKECUDA, RTLD_NOW | RTLD_GLOBAL);
	struct ckpt_err err;
	cuda_ctx ctx;
	int rc;

	if (!lib || (!getenv("NCCL_OTHER") && !dlopen(FAKENCCL, RTLD_NOW | RTLD_GLOBAL))) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	fake = dlsym(lib, "fakecuda");
	cu = cuda_driver(&rc, &err);
	if (!cu || cu->primary_retain(&ctx, 0) || cu->ctx_set(ctx))
		return -1;
	said_forget(&said);
	generation = 0;
	return host_setup_started(state);
}

UNIT(.setup = setup, .teardown = host_teardown);

TEST(what_ranks_hold_together_comes_to_all_over_nccl)
{
	struct trainer t[RANKS];

	saved(t, "together");
	restored(t, CKPT_FROM_DISK);
	assert_true(said_times(&said, "MiB from other ranks over NCCL"));
	assert_int_equal(said_times(&said, "reads all of its memory"), 0);
	/* Every byte once; each rank alone would have read 55 MiB in all. */
	said_await(&daemon_said, "each has got its part: 15 MiB in all");
	said_forget(&said);
	restored(t, CKPT_FROM_MEMORY);
	assert_true(said_times(&said, "MiB from other ranks over NCCL"));
	ranks_leave(t);
}

/* No word of any rank is written. */
static void refused(struct trainer *t, uint32_t flags, const char *says)
{
	restore_all(t, flags);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(t[r].rc, -EMEDIUMTYPE);
		if (!strstr(t[r].err.msg, says))
			fail_msg("rank %u: %s", r, t[r].err.msg);
		for (uint32_t i = 0; i < TENSORS; i++) {
			const uint32_t *at = words_of(&t[r], i);

			for (uint64_t w = 0; w < t[r].words[i]; w++)
				if (at[w] != 0xeeeeeeee)
					fail_msg("rank %u, %s was written", r, shape[i].name);
		}
	}
}

/* Who had copies of a tensor in boxes, the step does not say: all else is only copied. */
TEST(what_nobody_asked_for_is_refused_before_anything_goes_over_nccl)
{
	struct trainer t[RANKS];

	saved(t, "explicit");
	for (uint32_t disk = 0; disk < 2; disk++) {
		uint32_t from = disk ? CKPT_FROM_DISK : CKPT_FROM_MEMORY;

		refused(t, from | CKPT_EXPLICIT, "model/alone: replicate, ");
		assert_null(strstr(t[0].err.msg, "reshard"));
		assert_null(strstr(t[0].err.msg, "model/large"));
		assert_int_equal(said_times(&said, "from other ranks over NCCL"), 0);
		restored(t, from | CKPT_EXPLICIT | CKPT_ALLOW_REPLICATE);
		assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), RANKS);
		said_forget(&said);
	}
	ranks_leave(t);
}

/* What follows `words` in the lines of a log, added up. */
static uint64_t said_sum(struct said *s, const char *words)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&s->lock);
	for (const char *p = strstr(s->text, words); p; p = strstr(p + 1, words))
		sum += strtoull(p + strlen(words), NULL, 10);
	pthread_mutex_unlock(&s->lock);
	return sum;
}

/* The smallest windows: the exchange takes some 60 rounds. */
static void windows_small(struct trainer *t)
{
	for (uint32_t r = 0; r < RANKS; r++)
		t[r].c->nccl.staging_bytes = 2 * 3 * SPREAD_CHUNK_MIN;
}

TEST(if_a_round_fails_each_rank_reads_what_has_not_arrived)
{
	static const char arrived[] = "reads what has not arrived (";
	uint64_t all, lacked, came;
	struct trainer t[RANKS];

	saved(t, "fails");
	windows_small(t);
	restored(t, CKPT_FROM_DISK);
	all = said_sum(&said, "has got ") * MIB;
	assert_true(all > 25 * MIB);
	said_forget(&said);
	setenv("FAKENCCL_FAIL", "ncclRecv:200:2", 1); /* some 12 in each round */
	restored(t, CKPT_FROM_DISK);
	assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), 0);
	assert_int_equal(said_times(&said, arrived), RANKS);
	assert_true(said_times(&said, ", round "));
	came = said_sum(&said, arrived) * 3 * SPREAD_CHUNK_MIN;
	assert_true(came > 6 * MIB);
	lacked = said_sum(&daemon_said, "did not bring: ") * KIB;
	/* Of MiB the log has no fractions, and windows are not always full. */
	if (lacked > all - came + 5 * MIB || lacked + came + 5 * MIB < all)
		fail_msg("%" PRIu64 " KiB of %" PRIu64 " in all came over NCCL, %" PRIu64
			 " were read after all",
			 came / KIB, all / KIB, lacked / KIB);
	unsetenv("FAKENCCL_FAIL");
	restored(t, CKPT_FROM_DISK); /* and the next one is over NCCL again */
	assert_true(said_times(&said, "MiB from other ranks over NCCL"));
	said_forget(&said);
	setenv("FAKENCCL_FAIL", "ncclRecv:100:2", 1);
	restored(t, CKPT_FROM_MEMORY);
	assert_int_equal(said_times(&said, arrived), RANKS);
	unsetenv("FAKENCCL_FAIL");
	ranks_leave(t);
}

TEST(if_what_has_not_arrived_cannot_be_read_each_rank_reads_all_of_its_memory)
{
	struct trainer t[RANKS];
	uint32_t turns;

	saved(t, "fails-twice");
	windows_small(t);
	setenv("FAKENCCL_FAIL", "ncclRecv:200:2", 1);
	turns = agreeing.turn;
	restored(t, CKPT_FROM_DISK);
	turns = agreeing.turn - turns;
	said_forget(&said);
	/* The last agreement was about what had not arrived. */
	agreeing.refused = agreeing.turn + turns - 1;
	setenv("FAKENCCL_FAIL", "ncclRecv:210:2", 1);
	restored(t, CKPT_FROM_DISK);
	agreeing.refused = UINT32_MAX;
	unsetenv("FAKENCCL_FAIL");
	assert_int_equal(said_times(&said, "cannot be read, each rank reads all of its memory: "
					   "another rank could not restore step 7"),
			 RANKS);
	ranks_leave(t);
}

TEST(a_round_lasts_no_longer_than_the_restore_waits_for_other_ranks)
{
	struct trainer t[RANKS];
	uint64_t since;

	saved(t, "late");
	want_ns = 10 * NS_PER_S;	   /* enough for a busy machine to come to the exchange */
	setenv("FAKENCCL_SILENT", "1", 1); /* the other ranks do not hear that one has given up */
	setenv("FAKENCCL_FAIL", "ncclRecv:5:2", 1);
	since = now_ns();
	restored(t, CKPT_FROM_DISK);
	unsetenv("FAKENCCL_FAIL");
	unsetenv("FAKENCCL_SILENT");
	want_ns = 0;
	assert_true(said_times(&said, "NCCL: the time is over") > 0);
	assert_true(elapsed_ns(since, now_ns()) < 50 * NS_PER_S); /* not after a minute */
	ranks_leave(t);
}

TEST(the_callers_communicator_is_used_until_an_exchange_fails)
{
	const struct fakenccl *nccl = dlsym(dlopen(FAKENCCL, RTLD_NOW), "fakenccl");
	struct trainer t[RANKS];

	saved(t, "callers");
	comms_open(t);
	restored(t, CKPT_FROM_DISK);
	assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), RANKS);
	assert_int_equal(nccl->comms(), RANKS); /* it stays */
	setenv("FAKENCCL_FAIL", "ncclRecv:9:2", 1);
	restored(t, CKPT_FROM_DISK);
	assert_int_equal(said_times(&said, "has failed and ckpt_opts.nccl is aborted"), RANKS);
	assert_int_equal(nccl->comms(), 0);
	unsetenv("FAKENCCL_FAIL");
	said_forget(&said);
	restored(t, CKPT_FROM_DISK);
	assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), RANKS);
	ranks_leave(t);
}

/* A process looks for NCCL once, so such a case has a process of its own. called: NULL, or what the
 * process takes for its own path. */
static void alone(const char *name, const char *called)
{
	char program[PATH_MAX], one[] = "-j1", *argv[] = { program, one, NULL, NULL };
	ssize_t n = readlink("/proc/self/exe", program, sizeof program - sizeof "_nccl");
	cleanup_free char *mine = strdup(name), *other = strdup(called ? called : "");
	int status = -1;
	pid_t pid;

	MUST(n > 0);
	program[n] = 0;
	/* By its own path: libckpt-nccl.so lies beside it. One program has the cases of a room, or
	 * of this file. */
	strcpy(strrchr(program, '/') + 1, "daemon_nccl");
	if (called)
		argv[0] = other;
	argv[2] = mine;
	setenv("NCCL_ALONE", "1", 1);
	MUST_BE(posix_spawn(&pid, program, NULL, NULL, argv, environ), 0);
	unsetenv("NCCL_ALONE");
	MUST_BE(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* In the process of its own: one line says why, and memory is right. */
static void restored_without(const char *job, const char *why)
{
	struct trainer t[RANKS];

	saved(t, job);
	restored(t, CKPT_FROM_DISK);
	assert_true(
		said_times(&said, "restores without NCCL, each rank reads all of its memory: "));
	assert_true(said_times(&said, why));
	assert_int_equal(said_times(&said, "restores without NCCL"), RANKS);
	ranks_leave(t);
}

/* Makes a directory with such a libnccl.so.2, which is found before all others. */
static void library_found(const char *bytes, size_t n)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	FILE *f;

	snprintf(dir, sizeof dir, "%s/nccl", H.dir);
	snprintf(path, sizeof path, "%s/libnccl.so.2", dir);
	MUST_BE(mkdir(dir, 0700), 0);
	f = fopen(path, "w");
	MUST(f && fwrite(bytes, 1, n, f) == n);
	MUST_BE(fclose(f), 0);
	setenv("LD_LIBRARY_PATH", dir, 1);
	setenv("NCCL_OTHER", "1", 1);
}

static void library_lost(void)
{
	unsetenv("NCCL_OTHER");
	unsetenv("LD_LIBRARY_PATH");
}

TEST(without_a_new_nccl_each_rank_reads_all_of_its_memory)
{
	if (!getenv("NCCL_ALONE")) {
		alone("without_a_new*", NULL);
		return;
	}
	setenv("FAKENCCL_VERSION", "21003", 1);
	restored_without("old", "libnccl.so.2 is NCCL 2.10.3");
}

TEST(without_an_nccl_each_rank_reads_all_of_its_memory)
{
	if (!getenv("NCCL_ALONE")) {
		library_found("", 0); /* whatever this machine has */
		alone("without_an_nccl*", NULL);
		library_lost();
		return;
	}
	restored_without("absent", "there is no NCCL here: ");
}

/* The fake one, in which a name that the linker looks for is another one. */
TEST(without_a_function_of_nccl_each_rank_reads_all_of_its_memory)
{
	static const char name[] = "ncclCommUserRank";
	FILE *f = fopen(FAKENCCL, "r");
	cleanup_free char *bytes = NULL;
	char *at;
	long n = 0;

	if (getenv("NCCL_ALONE")) {
		fclose(f);
		restored_without("incomplete", "libnccl.so.2 has no function ncclCommUserRank");
		return;
	}
	MUST(f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0);
	rewind(f);
	MUST((bytes = malloc((size_t)n)) && fread(bytes, 1, (size_t)n, f) == (size_t)n);
	fclose(f);
	while ((at = memmem(bytes, (size_t)n, name, sizeof name)))
		at[4] = 'K';
	library_found(bytes, (size_t)n);
	alone("without_a_function*", NULL);
	library_lost();
}

TEST(without_its_own_library_each_rank_reads_all_of_its_memory)
{
	if (!getenv("NCCL_ALONE")) {
		alone("without_its_own*", "/nowhere/daemon_nccl");
		return;
	}
	restored_without("beside", "libckpt-nccl.so is not beside libckpt.so: ");
}

TEST(nccl_needs_a_device_and_an_agreement)
{
	struct ckpt_opts o = ROW(.size = sizeof o, .flags = CKPT_NCCL, .job = "options",
				 .store = H.store, .socket = H.socket, .world = 1);
	struct ckpt_err err;
	ckpt *c;

	assert_int_equal(ckpt_attach(&o, &c, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "ckpt_opts.device"));
	o.flags = 0;
	o.nccl = &o;
	assert_int_equal(ckpt_attach(&o, &c, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "ckpt_opts.nccl"));
}

static void kinds_restored(struct rank *k)
{
	k->c->nccl.on = true;
	k->c->nccl.device = 0;
	for (int disk = 0; disk < 2; disk++) {
		rank_clear(k);
		must_restore(k, 2, disk ? CKPT_FROM_DISK : CKPT_FROM_MEMORY);
		MUST(rank_check(k, 2));
	}
}

/* Shares that are strided, uneven, empty; of 0 dimensions; in boxes; rounded from others. */
TEST(every_kind_of_tensor_comes_back_over_nccl_on_any_mesh)
{
	static const char *const mesh[] = { "fsdp=2,tp=2", "dp=2,fsdp=2", "dp=4", "dp=2,tp=2" };
	struct plan_of_job first = plan("kinds", "fsdp=3");
	uint64_t generation_of = 10;

	first.generation = ++generation_of;
	saves(&first, 1, 2);
	for (uint32_t i = 0; i < ARRAY_LEN(mesh); i++) {
		struct plan_of_job p =
			plan("kinds", mesh[i], .agree = agree, .log = said_line, .log_ctx = &said);

		p.generation = ++generation_of;
		launch(&p, kinds_restored, NULL);
		assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), 2 * RANKS);
		said_forget(&said);
		setenv("FAKENCCL_FAIL", "ncclRecv:3:2", 1);
		p.generation = ++generation_of;
		launch(&p, kinds_restored, NULL);
		unsetenv("FAKENCCL_FAIL");
		assert_int_equal(said_times(&said, "reads what has not arrived"), RANKS);
		assert_int_equal(said_times(&said, "MiB from other ranks over NCCL"), RANKS);
		said_forget(&said);
	}
}
