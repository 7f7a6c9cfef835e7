/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_peek.c - CKPT_PEEK: an average of the newest step that has one, in the memory of
 * SINKs, while the launch stays where it is. An average of decay 0 is what was averaged, so the
 * bytes of each step are known; a step that no average takes in has the one before it.
 */
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define N 4096u /* elements of a tensor of the job */
#define NONE UINT64_MAX

/* What each rank has; odd ones have the SINK in memory of their own. */
struct mine {
	float *w, *sink;
	uint64_t cursor, len;
	uint32_t n;
	bool own;
};
static struct mine mine_of[4];

/* What a script declares. */
struct peeking {
	const char *average; /* its spec; NULL: none */
	bool no_sink, restore;
	uint32_t first; /* the step that the script begins with */
};

static float value(const struct rank *k, uint32_t i, uint64_t step)
{
	return (float)(step * 16384 + k->rank * mine_of[k->rank].n + i);
}

static void fill(const struct rank *k, uint64_t step)
{
	struct mine *m = &mine_of[k->rank];

	for (uint32_t i = 0; i < m->n; i++)
		m->w[i] = value(k, i, step);
	m->cursor = step;
}

static bool is(const struct rank *k, const float *p, uint64_t step)
{
	for (uint32_t i = 0; i < mine_of[k->rank].n; i++)
		if (p[i] != value(k, i, step))
			return false;
	return true;
}

static void tensor_declare(struct rank *k, const char *component, uint32_t cls, uint32_t role,
			   void *at)
{
	const uint64_t shape[] = { N };
	const struct ckpt_placement place = { .how = CKPT_SHARD };
	const struct ckpt_local local = { .ptr = at };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .cls = cls, .role = role, .dtype = CKPT_F32,
		    .component = component, .name = "w", .ndim = 1, .mesh = k->mesh_id, .nplace = 1,
		    .nlocal = 1, .shape = shape, .place = &place, .local = &local);

	MUST_OF(k, ckpt_tensor_add(k->c, &t, NULL, &k->err));
}

static void open_rank(struct rank *k)
{
	const struct peeking *p = k->arg;
	struct mine *m = &mine_of[k->rank];
	uint64_t bytes;

	must_attach(k, k->plan, k->rank);
	*m = (struct mine){ .n = N / k->world, .len = sizeof m->cursor, .own = k->rank % 2 };
	bytes = m->n * sizeof(float);
	MUST_OF(k, ckpt_alloc(k->c, bytes, (void **)&m->w, &k->err));
	if (m->own)
		MUST((m->sink = calloc(1, bytes)) != NULL);
	else
		MUST_OF(k, ckpt_alloc(k->c, bytes, (void **)&m->sink, &k->err));
	tensor_declare(k, "model", CKPT_STABLE, CKPT_PARAM, m->w);
	if (!p->no_sink)
		tensor_declare(k, "ema.fast", CKPT_SINK, CKPT_AVERAGE, m->sink);
	MUST_OF(k,
		ckpt_blob_add(k->c, "cursor", 0, &m->cursor, &m->len, sizeof m->cursor, &k->err));
	if (p->average)
		MUST_OF(k, ckpt_average(k->c, "fast", p->average, &k->err));
	must_seal(k);
	if (p->restore)
		must_restore(k, CKPT_LATEST, 0);
}

static void close_rank(struct rank *k)
{
	rank_meet(k);
	rank_close(k, 0);
	if (mine_of[k->rank].own)
		free(mine_of[k->rank].sink);
}

static int peek(struct rank *k, uint64_t step, uint32_t flags)
{
	const struct ckpt_want want = {
		.size = sizeof want, .flags = CKPT_PEEK | flags, .step = step, .only = "ema.fast"
	};
	struct mine *m = &mine_of[k->rank];

	memset(m->sink, 0xee, m->n * sizeof *m->sink);
	return rank_want(k, &want);
}

static void must_peek(struct rank *k, uint64_t step, uint32_t flags, uint64_t got, uint32_t where,
		      uint64_t has)
{
	MUST_OF(k, peek(k, step, flags));
	MUST_BE(k->got.step, got);
	MUST_BE(k->got.ntensor, 1);
	MUST_BE(k->got.nunused + k->got.nmissing + k->got.npassed, 0);
	MUST(!where || k->got.where == where);
	MUST(is(k, mine_of[k->rank].sink, has));
}

static void train(struct rank *k, uint64_t step, uint32_t flags, int state)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = flags };
	int rc = CKPT_SKIPPED;

	for (int i = 0; i < 200 && rc == CKPT_SKIPPED; i++) {
		if (i)
			(void)poll(NULL, 0, 20);
		(void)ckpt_guard(k->c, NULL);
		fill(k, step);
		rc = ckpt_snapshot(k->c, step, &mark);
	}
	MUST_BE(rc, 0);
	must_wait(k, step, state);
	must_guard(k);
	rank_meet(k);
}

#define ZERO "constant decay=0"

/* A byte of the average of rank 0 in that step. */
static void average_damage(const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(&H, job, step);
	cleanup_close int dir = host_step_fd(&H, job, step), part = -1;
	uint64_t at = 0;
	uint8_t b = 0;

	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];

		if (strcmp(c->table.tensor[p->tensor].component, "ema.fast") != 0 || p->rank != 0)
			continue;
		part = openat(dir, c->file[p->place].name, O_RDWR | O_CLOEXEC);
		at = p->off;
		break;
	}
	MUST(part >= 0 && pread(part, &b, 1, (off_t)at) == 1);
	b ^= 1;
	MUST(pwrite(part, &b, 1, (off_t)at) == 1);
	checkpoint_free(c);
}

static void go_on_script(struct rank *k)
{
	const struct ckpt_want all = { .size = sizeof all, .flags = CKPT_PEEK, .step = 4 };
	uint64_t blob = 0, len = 0;

	open_rank(k);
	for (uint64_t step = 1; step <= 5; step++) {
		MUST_BE(ckpt_last(k->c, step), 0);
		train(k, step, CKPT_PERSIST, CKPT_COMMITTED);
		must_peek(k, CKPT_LATEST, 0, step, 1, step);
		must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, step, 2, step);
		MUST(is(k, mine_of[k->rank].w, step));
	}
	MUST_OF(k, rank_want(k, &all)); /* no component: of all tensors the SINKs */
	MUST(k->got.step == 4 && k->got.ntensor == 1);
	MUST(is(k, mine_of[k->rank].sink, 4) && is(k, mine_of[k->rank].w, 5));
	must_peek(k, 3, CKPT_FROM_DISK, 3, 2, 3);
	must_peek(k, 2, 0, 2, 2, 2);
	train(k, 6, CKPT_PERSIST | CKPT_NO_EMA, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, 0, 6, 0, 5); /* it has the average of the step before it */
	MUST_BE(peek(k, 9, 0), -ENOENT);
	rank_meet(k);
	train(k, 7, CKPT_PERSIST, CKPT_COMMITTED);
	MUST_BE(rank_stats(k).torn, 0);
	MUST_BE(ckpt_last(k->c, 6), 0);
	MUST_BE(ckpt_blob_read(k->c, "cursor", 0, &blob, sizeof blob, &len), -ENOENT);
	rank_meet(k);
	if (k->rank == 0)
		MUST(!strcmp(host_steps(&H, k->plan->job), "1 2 3 4 5 6 7"));
	/* And afterwards it can go back as ever; a look does not take its blobs away. */
	(void)ckpt_guard(k->c, NULL);
	must_restore(k, 4, 0);
	MUST(is(k, mine_of[k->rank].w, 4) && is(k, mine_of[k->rank].sink, 4));
	must_peek(k, 7, CKPT_FROM_DISK, 7, 2, 7);
	MUST_BE(ckpt_blob_read(k->c, "cursor", 0, &blob, sizeof blob, &len), 0);
	MUST_BE(blob, 4);
	train(k, 5, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, 0, 5, 0, 5);
	rank_meet(k);
	if (k->rank == 0)
		MUST(!strcmp(host_steps(&H, k->plan->job), "1 2 3 4 5 ~5 ~6 ~7"));
	close_rank(k);
}

TEST(a_look_at_an_average_changes_nothing_else)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("one", "fsdp=1", .slots = 3, .fresh = true), go_on_script, &p);
	team_of(plan("four", "fsdp=4", .slots = 4, .fresh = true), go_on_script, &p);
}

static void explicit_script(struct rank *k)
{
	struct mine *m = &mine_of[k->rank];

	open_rank(k);
	MUST_BE(peek(k, CKPT_LATEST, CKPT_EXPLICIT), -EMEDIUMTYPE);
	MUST(strstr(k->err.msg, "ema.fast/w: reshard, Shard(0)@fsdp on fsdp=2 -> "));
	MUST(!strstr(k->err.msg, "model/w") && !strstr(k->err.msg, "drop"));
	for (uint32_t i = 0; i < m->n * sizeof *m->sink; i++)
		MUST(((uint8_t *)m->sink)[i] == 0xee);
	rank_meet(k);
	must_peek(k, CKPT_LATEST, CKPT_EXPLICIT | CKPT_ALLOW_RESHARD, 2, 0, 2);
	train(k, 3, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, CKPT_EXPLICIT, 3, 0, 3); /* this mesh has saved it */
	close_rank(k);
}

static void two_steps_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED);
	close_rank(k);
}

TEST(an_explicit_look_is_refused_if_the_average_is_cut_otherwise_and_no_other_tensor_matters)
{
	struct peeking p = { .average = ZERO }, again = { .average = ZERO, .restore = true };

	team_of(plan("explicit", "fsdp=2"), two_steps_script, &p);
	team_of(plan("explicit", "fsdp=4"), explicit_script, &again);
}

/* Each step is looked at as soon as it is marked: whichever is found is whole. */
static void in_flight_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	for (uint64_t step = 2; step <= 30; step++) {
		struct ckpt_mark mark = { .size = sizeof mark,
					  .flags = step % 3 ? CKPT_PERSIST : CKPT_STAGE_ONLY };
		uint64_t committed;
		int rc;

		(void)ckpt_guard(k->c, NULL);
		fill(k, step);
		committed = rank_stats(k).last_committed_step;
		rank_meet(k);
		rc = ckpt_snapshot(k->c, step, &mark);
		MUST(rc == 0 || rc == CKPT_SKIPPED);
		MUST_OF(k, peek(k, CKPT_LATEST, 0));
		MUST(k->got.step >= committed && k->got.step <= step);
		MUST(is(k, mine_of[k->rank].sink, k->got.step));
		rank_meet(k);
	}
	MUST_BE(rank_stats(k).torn, 0);
	train(k, 31, CKPT_FINAL, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 31, 2, 31);
	close_rank(k);
}

TEST(looks_amid_copies_and_writing_find_whole_averages)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("two", "fsdp=2", .slots = 2, .fresh = true, .guard = CKPT_FINISH),
		in_flight_script, &p);
	team_of(plan("three", "fsdp=2", .slots = 3, .fresh = true, .guard = CKPT_FINISH),
		in_flight_script, &p);
}

static void writing_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	gate_set(&G, true);
	train(k, 2, CKPT_PERSIST, CKPT_STAGED);
	gate_await(&G);
	MUST_OF(k, peek(k, CKPT_LATEST, 0)); /* and it does not wait for the disk */
	MUST(is(k, mine_of[k->rank].sink, k->got.step));
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 1, 2, 1);
	gate_set(&G, false);
	must_wait(k, 2, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 2, 2, 2);
	close_rank(k);
}

TEST(a_look_does_not_wait_for_what_is_being_written)
{
	struct peeking p = { .average = ZERO };

	host_stop(&H);
	host_start_gated();
	team_of(plan("writing", "fsdp=1", .fresh = true, .slots = 3), writing_script, &p);
}

/* --- steps that have none --- */
static int count_missing(void *arg, const struct ckpt_tensor_info *t)
{
	*(uint32_t *)arg += t->what == CKPT_MISSING && !strcmp(t->component, "ema.fast");
	return 0;
}

static void without_script(struct rank *k)
{
	const struct peeking *p = k->arg;
	const uint64_t at = p->first;
	uint32_t missing = 0;

	open_rank(k);
	MUST_BE(peek(k, CKPT_LATEST, 0), -ENOENT); /* there may be no step at all */
	train(k, at, CKPT_PERSIST, CKPT_COMMITTED);
	MUST_BE(peek(k, CKPT_LATEST, 0), -ENOENT);
	MUST(strstr(k->err.msg, "ema.fast"));
	MUST_BE(ckpt_unmatched(k->c, count_missing, &missing), 0);
	MUST_BE(missing, 1);
	MUST_BE(peek(k, at, 0), -ENOENT);
	rank_meet(k);
	train(k, at + 1, CKPT_PERSIST, CKPT_COMMITTED);
	close_rank(k);
}

static void older_script(struct rank *k)
{
	open_rank(k);
	train(k, 10, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, 0, 2, 2, 2); /* of an earlier launch */
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 2, 2, 2);
	train(k, 11, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, 0, 2, 2, 2);
	close_rank(k);
}

static void two_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED);
	close_rank(k);
}

TEST(steps_without_the_average_are_passed_in_silence)
{
	struct peeking none = { .first = 1 }, with = { .average = ZERO },
		       after = { .restore = true };

	team_of(plan("never", "fsdp=2", .fresh = true), without_script, &none);
	team_of(plan("older", "fsdp=2", .fresh = true, .slots = 3), two_script, &with);
	team_of(plan("older", "fsdp=2", .slots = 3), older_script, &after);
	assert_int_equal(said_times(&daemon_said, "passed over"), 0);
}

/* --- mistakes --- */
static void mistakes_script(struct rank *k)
{
	const struct peeking *p = k->arg;

	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	if (p->no_sink) {
		MUST_BE(peek(k, CKPT_LATEST, 0), -EINVAL);
		MUST(strstr(k->err.msg, "CKPT_SINK"));
	} else {
		MUST_BE(peek(k, CKPT_LATEST, CKPT_LENIENT), -EINVAL);
		MUST_BE(peek(k, CKPT_LATEST, CKPT_EXACT), -EINVAL);
		MUST_BE(peek(k, k->rank ? CKPT_LATEST : 1, 0), k->world > 1 ? -EINVAL : 0);
	}
	rank_meet(k);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED); /* none of them stops the launch */
	close_rank(k);
}

TEST(mistakes_are_refused_and_training_goes_on)
{
	struct peeking p = { .average = ZERO }, none = { .average = ZERO, .no_sink = true };

	team_of(plan("bad", "fsdp=2", .fresh = true, .slots = 3), mistakes_script, &p);
	team_of(plan("nosink", "fsdp=2", .fresh = true, .slots = 3), mistakes_script, &none);
}

static void killed_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	host_kill(&H);
	must_soon(peek(k, CKPT_LATEST, 0) < 0);
	host_start(&H, NULL);
	must_reattach(k, 1);
	MUST_BE(peek(k, 9, 0), -ENOENT);
	must_peek(k, CKPT_LATEST, 0, 1, 0, 1);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 2, 2, 2);
	MUST(is(k, mine_of[k->rank].w, 2));
	close_rank(k);
}

TEST(a_daemon_that_dies_fails_the_look_and_not_the_launch)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("killed", "fsdp=1", .fresh = true, .slots = 3), killed_script, &p);
}

/* Whoever waits for ranks that never come goes on afterwards. */
static void alone_script(struct rank *k)
{
	const struct ckpt_want want = { .size = sizeof want,
					.flags = CKPT_PEEK,
					.step = CKPT_LATEST,
					.deadline_ns = SEC / 10 };

	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	if (k->rank == 0)
		MUST_BE(rank_want(k, &want), -ETIMEDOUT);
	rank_meet(k);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, 0, 2, 0, 2);
	close_rank(k);
}

TEST(a_rank_that_looks_alone_gives_up_and_trains_on)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("alone", "fsdp=2", .fresh = true, .slots = 3), alone_script, &p);
}

/* Of two ranks the second is a process, which is killed while the first one looks. */
static void *look_on(void *arg)
{
	struct rank *k = arg;
	const struct ckpt_want want = { .size = sizeof want,
					.flags = CKPT_PEEK,
					.step = CKPT_LATEST,
					.deadline_ns = 100 * PATIENCE };

	MUST_BE(rank_want(k, &want), -ECONNRESET);
	MUST(strstr(k->err.msg, "has ended"));
	return NULL;
}

TEST(a_rank_that_looks_hears_at_once_that_another_one_has_died)
{
	struct peeking p = { .average = ZERO };
	struct plan_of_job job = plan("widow", "fsdp=2", .fresh = true, .generation = 1);
	pthread_barrier_t alone;
	struct rank k = { .plan = &job, .arg = &p, .barrier = &alone };
	pthread_t thread;
	int status;
	pid_t pid;

#if defined(__SANITIZE_THREAD__)
	print_message(
		"skipped: under ThreadSanitizer a child of a program with threads starts none\n");
	skip();
#endif
	assert_int_equal(pthread_barrier_init(&alone, NULL, 1), 0);
	pid = fork();
	assert_true(pid >= 0);
	k.rank = pid == 0;
	if (pid == 0)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_rank(&k);
	train(&k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	while (pid == 0)
		(void)pause();
	assert_int_equal(pthread_create(&thread, NULL, look_on, &k), 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(is(&k, mine_of[0].w, 1));
	close_rank(&k);
}

/* A look that finds damage marks the step, as a restore does; the launch goes on where it is. */
static void damaged_script(struct rank *k)
{
	open_rank(k);
	for (uint64_t step = 1; step <= 3; step++)
		train(k, step, CKPT_PERSIST, CKPT_COMMITTED);
	if (k->rank == 0)
		average_damage(k->plan->job, 3);
	rank_meet(k);
	MUST_OF(k, peek(k, CKPT_LATEST, CKPT_FROM_DISK));
	MUST_BE(k->got.step, 2);
	MUST_BE(k->got.npassed, 1);
	MUST(is(k, mine_of[k->rank].sink, 2) && is(k, mine_of[k->rank].w, 3));
	must_peek(k, CKPT_LATEST, CKPT_FROM_MEMORY, 3, 1, 3);
	train(k, 4, CKPT_PERSIST, CKPT_COMMITTED);
	must_peek(k, CKPT_LATEST, CKPT_FROM_DISK, 4, 2, 4);
	MUST_BE(rank_stats(k).torn, 0);
	close_rank(k);
}

TEST(a_look_passes_a_damaged_average_and_the_launch_goes_on)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("damaged", "fsdp=2", .fresh = true, .slots = 3), damaged_script, &p);
}

/* One rank looks and the other one restores: both are refused, and together they go on. */
static void unlike_script(struct rank *k)
{
	open_rank(k);
	train(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
	MUST_BE(k->rank ? rank_restore(k, CKPT_LATEST, 0) : peek(k, CKPT_LATEST, 0), -EINVAL);
	rank_meet(k);
	must_peek(k, CKPT_LATEST, 0, 1, 0, 1);
	must_restore(k, CKPT_LATEST, 0);
	train(k, 2, CKPT_PERSIST, CKPT_COMMITTED);
	close_rank(k);
}

TEST(a_look_beside_a_restore_is_refused)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("unlike", "fsdp=2", .fresh = true, .slots = 3), unlike_script, &p);
}

static void unasked_script(struct rank *k)
{
	open_rank(k);
	must_peek(k, CKPT_LATEST, 0, 2, 0, 2);
	fill(k, 3);
	MUST_BE(ckpt_snapshot(k->c, 3, NULL), -EUCLEAN);
	close_rank(k);
}

TEST(a_look_is_no_restore)
{
	struct peeking p = { .average = ZERO };

	team_of(plan("unasked", "fsdp=2", .fresh = true, .slots = 3), two_script, &p);
	team_of(plan("unasked", "fsdp=2", .slots = 3), unasked_script, &p);
}

UNIT(.setup = host_setup_started, .teardown = host_teardown);
